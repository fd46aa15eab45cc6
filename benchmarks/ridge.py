"""Finds the ridge of this CPU by experiment: one vector multiplied more and more often inside one compiled kernel.

python -m benchmarks.ridge                                prints the table
python -m benchmarks.ridge --write benchmarks/results/ceilings.md
                                                          puts it between the ridge markers of that page

Every point is a `bottleneck run` of examples/pointwise.py in a process of its own, with the ceilings measured by the
first of them; it needs a C++ compiler, a quiet machine and three minutes. The vectors are as large as the working set
with which the memory's bandwidth is measured. The script fails when the class is not memory at the first point, compute
at the last, or when it flips further than 25 % from the ridge.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.pages import write_between_markers
from bottleneck.pipeline import Options, analyse
from bottleneck.report.json_text import to_json
from bottleneck.schema.analysis import REGIMES
from bottleneck.schema.device import Device

EXAMPLE = Path(__file__).parents[1] / "examples" / "pointwise.py"
ELEMENTS = 32 * 2**20
BYTES = 8.0  # per element: read once, written once
REPEATS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TOLERANCE = 0.25
HEADER = "| repeat | FLOP/B | step ms | GFLOP/s | GB/s | floors: compute, memory ms | bound | explained |"


@dataclass(frozen=True)
class Point:
    """One run: times in seconds; ``seconds`` is the unprofiled median step, the floors are those of the one kernel."""

    repeat: int
    seconds: float
    flops: float
    moved: float
    compute_s: float
    memory_s: float
    bound: str
    regime: str | None
    explained: float
    verdict: str


def record(repeat: int, environment: Mapping[str, str], folder: Path) -> Path:
    """The recording of one point."""
    recording = folder / f"repeat-{repeat}"
    settings = ["--set=fused=True", f"--set=repeat={repeat}", f"--set=elements={ELEMENTS}"]
    command = [sys.executable, "-m", "bottleneck.cli", "run", "-o", str(recording), *settings, str(EXAMPLE)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if not (recording / "analysis.json").exists():
        raise SystemExit(f"repeat {repeat} gave no analysis:\n{done.stderr}")
    return recording


def judge(recording: Path, repeat: int, device: Device | None) -> tuple[Point, Device]:
    """The point, held against one device for the whole sweep: null for that of the recording, as `run` judged it."""
    analysis = analyse([recording], Options(device=device))
    return point_of(repeat, json.loads(to_json(analysis))), analysis.device


def point_of(repeat: int, analysis: Mapping[str, Any]) -> Point:
    """What the analysis says of its longest kernel, which is the whole work."""
    kernel = max(analysis["kernels"], key=lambda row: row["us"])
    timing = analysis["steps"]["unprofiled_us"] or {"median": analysis["steps"]["wall_us"]}
    return Point(
        repeat=repeat,
        seconds=timing["median"] / 1e6,
        flops=kernel["flops"] or math.nan,
        moved=kernel["bytes_low"] or math.nan,
        compute_s=(kernel["compute_us"] or math.nan) / 1e6,
        memory_s=(kernel["memory_us"] or math.nan) / 1e6,
        bound=kernel["bound"],
        regime=kernel["regime"],
        explained=kernel["explained"] or math.nan,
        verdict=analysis["verdict"]["bound"],
    )


def repeats_around(ridge: float) -> list[int]:
    """The powers of two, and the last points that have to be memory and the first that have to be compute."""
    nearest = [
        ridge * (1 - TOLERANCE),
        ridge * (1 - TOLERANCE / 2),
        ridge * (1 + TOLERANCE / 2),
        ridge * (1 + TOLERANCE),
    ]
    return sorted({*REPEATS, *(max(1, round(each)) for each in nearest)})


def flip(points: Sequence[Point]) -> tuple[int, int] | None:
    """The last repeat that is memory and the first that is compute; null unless one follows the other for good."""
    bounds = [point.bound for point in points]
    at = bounds.index("compute") if "compute" in bounds else 0
    clean = set(bounds[:at]) == {"memory"} and set(bounds[at:]) == {"compute"}
    return (points[at - 1].repeat, points[at].repeat) if clean else None


def knee(points: Sequence[Point]) -> float:
    """The repeat at which the best rate of arithmetic in the sweep takes as long as the quickest pass over memory."""
    best = max(point.flops / point.seconds for point in points)
    return min(point.seconds for point in points) * best / ELEMENTS


def row(point: Point) -> str:
    """One line of the table."""
    cells = [
        str(point.repeat),
        f"{point.repeat / BYTES:.2f}",
        f"{point.seconds * 1e3:.1f}",
        f"{point.flops / point.seconds / 1e9:.1f}",
        f"{point.moved / point.seconds / 1e9:.1f}",
        f"{point.compute_s * 1e3:.1f}, {point.memory_s * 1e3:.1f}",
        point.bound + (f" ({REGIMES[point.regime].words})" if point.regime else ""),
        f"{point.explained:.0%}",
    ]
    return "| " + " | ".join(cells) + " |"


def report(points: Sequence[Point], device: Mapping[str, Any]) -> tuple[str, bool]:
    """The text for the page, and whether what it has to hold holds."""
    peak, bandwidth = device["peaks_flops_per_s"]["fp32_vector"], device["bandwidth_bytes_per_s"]
    ridge = device["ridge_flops_per_byte"]["fp32_vector"]
    expected = ridge * BYTES
    flipped = flip(points)
    best = max(point.flops / point.seconds for point in points)
    lines = [
        f"On this CPU ({device['name']}) {peak / 1e9:.1f} GFLOP/s of multiplications and {bandwidth / 1e9:.1f} GB/s "
        f"were measured: a ridge of {ridge:.2f} FLOP/B, {expected:.1f} multiplications.",
        "",
        HEADER,
        "|---|---|---|---|---|---|---|---|",
        *map(row, points),
        "",
        _tell_flip(flipped, expected),
        f"By the clock alone the quickest pass over memory and the best rate of arithmetic in this table "
        f"({best / 1e9:.1f} GFLOP/s, {best / peak:.0%} of the peak) meet at {knee(points):.1f} multiplications.",
    ]
    ends = points[0].verdict == "memory" and points[-1].verdict == "compute"
    return "\n".join(lines), ends and flipped is not None and _distance(flipped, expected) <= TOLERANCE


def _tell_flip(flipped: tuple[int, int] | None, expected: float) -> str:
    if flipped is None:
        return "The class does **not** flip once and for good."
    low, high = flipped
    return (
        f"The class flips between {low} and {high} multiplications, at most {_distance(flipped, expected):.0%} from "
        f"the ridge (promised: {TOLERANCE:.0%})."
    )


def _distance(flipped: tuple[int, int], expected: float) -> float:
    """How far from the ridge the flip may lie at most, as a share of it."""
    return max(abs(end / expected - 1) for end in flipped)


def sweep(threads: int | None) -> tuple[list[Point], dict[str, Any]]:
    """All points in order, and the device of the first, whose ceilings all of them share."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = {
            **os.environ,
            "XDG_CACHE_HOME": str(folder / "cache"),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
            **({} if threads is None else {"OMP_NUM_THREADS": str(threads)}),
        }
        first, device = judge(record(1, environment, folder), 1, None)
        others = [each for each in repeats_around(device.ridge_flops_per_byte["fp32_vector"] * BYTES) if each > 1]
        points = [judge(record(repeat, environment, folder), repeat, device)[0] for repeat in others]
        return [first, *points], msgspec.to_builtins(device)


def main() -> int:
    """Runs the sweep; the exit status is 1 when the class does not flip as it should."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="page that holds the ridge markers")
    parser.add_argument("--threads", type=int, help="threads of each run (OMP_NUM_THREADS)")
    options = parser.parse_args()
    text, holds = report(*sweep(options.threads))
    if options.write:
        write_between_markers(options.write, "ridge", text)
    else:
        print(text)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
