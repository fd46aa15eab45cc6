"""Compares two calibrations of this CPU, and looks for kernels of recorded programs that beat its ceilings.

python -m benchmarks.calibrations                         two calibrations from nothing, in processes of their own
python -m benchmarks.calibrations --examples              records every example too, and holds its kernels against them
python -m benchmarks.calibrations RECORDING...            only that, for recordings that there are already
python -m benchmarks.calibrations --seconds 180           both go on for so long, for a machine that others use too
python -m benchmarks.calibrations --examples --write benchmarks/results/ceilings.md
                                                          puts it between the calibration markers of that page

Needs a quiet machine: about two minutes for the first, five with the examples. The script fails when two calibrations
differ by more than 5 % in any ceiling, or a kernel beats a ceiling by more than 5 %.

How quiet it is, it tells from one loop of multiplications in registers and one stream over the same memory, taken in
turns for half a minute after the calibrations: where nothing else uses the machine each is alike from turn to turn.

A kernel's rate of arithmetic is held against the peak of its dtype and engine, its bytes (each counted once) against
the bandwidth of the working set that they are. Kernels that are judged with high confidence count, of 20 us and more: a
shorter one is told by the profiler to within too much. An op in place moves all that it counts, while the streams of a
calibration move a fourth one that they do not count: up to 4/3 of the bandwidth is its due.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pages import write_between_markers
from bottleneck.calibrate.cpu import Loop, build_native
from bottleneck.pipeline import analyse
from bottleneck.schema.analysis import Analysis, KernelSummary
from bottleneck.units import format_share, format_si, format_us

EXAMPLES = Path(__file__).parents[1] / "examples"
# What an example needs besides its name: one that trains in ranks does so alone here.
_OPTIONS = {"ddp": ("--nproc-per-node", "1")}
TOLERANCE = 0.05
SHORTEST_US = 20.0
DRIFT_SECONDS, _TURN_SECONDS = 30.0, 0.3
_DRIFT_BYTES, _DRIFT_ROUNDS = 384 * 2**20, 500_000
UNCOUNTED = 4 / 3  # what a triad moves over what it counts: it fetches what it is about to write


@dataclass(frozen=True)
class Ceiling:
    """One ceiling by two calibrations."""

    name: str
    unit: str
    values: tuple[float, float]
    stable: bool

    @property
    def gap(self) -> float:
        """By how much the larger exceeds the smaller."""
        return max(self.values) / min(self.values) - 1


@dataclass(frozen=True)
class Feat:
    """The kernel of a recording that came nearest to a ceiling, or furthest beyond it."""

    recording: str
    kind: str
    kernel: str
    rate: float
    unit: str
    share: float


def calibrate(folder: Path, threads: int | None, seconds: float | None) -> dict[str, Any]:
    """A calibration from nothing, in a process of its own; it is kept in the folder."""
    command = [sys.executable, "-m", "bottleneck.cli", "calibrate", "--device", "cpu", "--quiet", "--format", "json"]
    for option, value in (("--threads", threads), ("--seconds", seconds)):
        command += [] if value is None else [option, str(value)]
    done = subprocess.run(command, env=environment(folder), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    calibration: dict[str, Any] = json.loads(done.stdout)
    return calibration


def environment(folder: Path) -> dict[str, str]:
    """The environment in which the caches lie in a folder."""
    return {**os.environ, "XDG_CACHE_HOME": str(folder), "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}


@dataclass(frozen=True)
class Drift:
    """The rates that the same loop reached in its turns, in FLOP/s or B/s."""

    what: str
    unit: str
    rates: tuple[float, ...]

    @property
    def gap(self) -> float:
        """By how much the quickest turn exceeds the slowest."""
        return max(self.rates) / min(self.rates) - 1


def measure_drift(seconds: float, threads: int) -> list[Drift]:
    """Two loops in turns, neither of which touches memory that the other turns did not; none without a compiler."""
    native = build_native(threads)
    if native is None:
        return []
    arithmetic, stream = native.multiplications("fp32", _DRIFT_ROUNDS)[-1], native.triad(_DRIFT_BYTES // threads, 1)
    turns: list[tuple[float, float]] = []
    start = time.perf_counter()
    while not turns or time.perf_counter() - start < seconds:
        turns.append((_turn(arithmetic), _turn(stream)))
    native.close()
    products, bytes_ = zip(*turns, strict=True)
    return [Drift("multiplications", "FLOP/s", products), Drift("a stream over the same memory", "B/s", bytes_)]


def _turn(loop: Loop) -> float:
    """The best rate within a turn."""
    start, best = time.perf_counter(), 0.0
    while time.perf_counter() - start < _TURN_SECONDS:
        before = time.perf_counter()
        loop.run()
        best = max(best, loop.amount / (time.perf_counter() - before))
    return best


def tell_drift(drifts: Sequence[Drift]) -> list[str]:
    """A line for each loop."""
    return [
        f"- {each.what}: {format_si(min(each.rates), each.unit)} to {format_si(max(each.rates), each.unit)}, "
        f"{format_share(each.gap)} apart"
        for each in drifts
    ]


def compare(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Ceiling]:
    """Every ceiling that both measured."""
    later = {each["name"]: each for each in second["ceilings"]}
    return [
        Ceiling(
            each["name"],
            each["unit"],
            (each["value"], later[each["name"]]["value"]),
            each["stable"] and later[each["name"]]["stable"],
        )
        for each in first["ceilings"]
        if each["name"] in later
    ]


def feats(analysis: Analysis, name: str) -> list[Feat]:
    """The best of arithmetic and of bytes among the kernels of an analysis that are judged with high confidence."""
    rows = [
        row for row in analysis.kernels if row.confidence == "high" and row.calls and row.us / row.calls >= SHORTEST_US
    ]
    found = [feat for row in rows for feat in (_arithmetic(row, name), _bytes(row, analysis, name)) if feat is not None]
    kinds = dict.fromkeys(feat.kind for feat in found)
    return [max((feat for feat in found if feat.kind == kind), key=lambda feat: feat.share) for kind in kinds]


def _arithmetic(row: KernelSummary, name: str) -> Feat | None:
    if not row.flops or not row.compute_us:
        return None
    kind = f"{row.dtype or 'unknown'} arithmetic"
    return Feat(name, kind, _label(row), row.flops / row.us * 1e6, "FLOP/s", row.compute_us / row.us)


def _bytes(row: KernelSummary, analysis: Analysis, name: str) -> Feat | None:
    points = analysis.device.bandwidth_by_bytes
    if not row.bytes_low or not points or row.bytes_low / row.calls < points[0][0]:
        return None
    sizes, rates = np.log(np.array(points, dtype=np.float64)).T
    ceiling = float(np.exp(np.interp(np.log(row.bytes_low / row.calls), sizes, rates)))
    rate = row.bytes_low / row.us * 1e6
    return Feat(name, "bytes", _label(row), rate, "B/s", rate / ceiling / UNCOUNTED)


def _label(row: KernelSummary) -> str:
    where = f", {row.shapes}" if row.shapes else ""
    return f"{row.op or row.name}{where}"[:60]


def record_examples(folder: Path) -> list[Path]:
    """Recordings of all examples, judged by the calibration that the folder keeps."""
    recordings = []
    for example in sorted(EXAMPLES.glob("*.py")):
        recording = folder / example.stem
        options = _OPTIONS.get(example.stem, ())
        command = [sys.executable, "-m", "bottleneck.cli", "run", "-o", str(recording), *options, str(example)]
        done = subprocess.run(command, env=environment(folder), capture_output=True, text=True, check=False)
        if not (recording / "recording.json").exists():
            raise SystemExit(f"{example.name} gave no recording:\n{done.stderr}")
        recordings.append(recording)
    return recordings


def tell_ceilings(first: Mapping[str, Any], second: Mapping[str, Any], ceilings: Sequence[Ceiling]) -> list[str]:
    """The table of two calibrations, and what disturbed them."""
    device, worst = first["device"], max(ceilings, key=lambda each: each.gap)
    noise = [caveat["message"] for each in (first, second) for caveat in each["caveats"]]
    return [
        f"{device['name']}, {first['threads']} threads, torch {first['torch']}: the worst of {len(ceilings)} ceilings "
        f"is {worst.name}, {format_share(worst.gap)} apart (promised on a quiet machine: {format_share(TOLERANCE)}).",
        *[f"Disturbed: {message}" for message in dict.fromkeys(noise)],
        "",
        "| ceiling | first | second | apart | settled |",
        "|---|---|---|---|---|",
        *[
            f"| {each.name} | {_value(each.values[0], each.unit)} | {_value(each.values[1], each.unit)} "
            f"| {format_share(each.gap)} | {'yes' if each.stable else 'no'} |"
            for each in ceilings
        ],
    ]


def _value(value: float, unit: str) -> str:
    return format_us(value) if unit == "us" else format_si(value, unit)


def tell_feats(found: Sequence[Feat]) -> list[str]:
    """The table of what kernels reached."""
    return [
        "",
        "| recording | ceiling | fastest kernel | reached | of the ceiling |",
        "|---|---|---|---|---|",
        *[
            f"| {each.recording} | {each.kind} | `{each.kernel}` | {format_si(each.rate, each.unit)} "
            f"| {format_share(each.share)} |"
            for each in found
        ],
    ]


def measure(options: argparse.Namespace) -> tuple[list[str], bool]:
    """The text, and whether all of it holds."""
    lines, holds, recordings = [], True, list(options.recordings)
    with tempfile.TemporaryDirectory() as name:
        if not recordings:
            folders = [Path(name) / "first", Path(name) / "second"]
            first, second = (calibrate(folder, options.threads, options.seconds) for folder in folders)
            ceilings = compare(first, second)
            lines += tell_ceilings(first, second, ceilings)
            drifts = measure_drift(DRIFT_SECONDS, first["threads"])
            if drifts:
                lines += ["", f"The same loops in turns of {_TURN_SECONDS:g} s for {DRIFT_SECONDS:g} s after them:", ""]
                lines += tell_drift(drifts)
            holds = max(each.gap for each in ceilings) <= TOLERANCE
            recordings = record_examples(folders[0]) if options.examples else []
        found = [feat for path in recordings for feat in feats(analyse([path]), path.name)]
    lines += tell_feats(found) if recordings else []
    return lines, holds and all(each.share <= 1 + TOLERANCE for each in found)


def main() -> int:
    """Measures and tells; the exit status is 1 when something promised does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", nargs="*", type=Path, help="recordings of `bottleneck run`")
    parser.add_argument("--examples", action="store_true", help="record every example and judge its kernels")
    parser.add_argument("--threads", type=int, help="threads of the calibrations")
    parser.add_argument("--seconds", type=float, help="how long each calibration takes at least")
    parser.add_argument("--write", type=Path, help="page that holds the calibration markers")
    options = parser.parse_args()
    lines, holds = measure(options)
    if options.write:
        write_between_markers(options.write, "calibration", "\n".join(lines))
    else:
        print("\n".join(lines))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
