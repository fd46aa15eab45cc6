"""By how much `bottleneck run` slows a script down in its unprofiled phase, and after the measurement.

python -m benchmarks.disturbance                                        prints the table
python -m benchmarks.disturbance --minutes 7 --write benchmarks/results/run.md
                                                                        puts it between the disturbance markers there

benchmarks/stamped.py stamps its own steps. It runs bare, and under the supervisor and child of `run` with and without
sensors, in turns whose order changes; under `run` the unprofiled phase is held open for many more steps than the usual
20, so that many can be compared. Compared with the bare run beside it are the same step numbers: in that phase, and
after the measurement, when the hooks are gone. Wall time is the median step. CPU time is that of all of the process's
threads, per step; sensors are read in the supervisor, another process. Ratios are medians over the pairs with 95 %
intervals by order statistics. All runs start with the same memory layout (no address randomisation). The report, which
`run` makes in the supervisor, is left out.

The steps of "optimizer" are empty but for the optimizer, so that the difference in microseconds is what the hook costs.
"""

import argparse
import contextlib
import ctypes
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.pages import write_between_markers
from bottleneck.harness.finish import SensorReading
from bottleneck.harness.messages import Plan, RecordOptions
from bottleneck.harness.supervise import supervise
from bottleneck.harness.target import make_program
from bottleneck.schema.measurements import Timing
from bottleneck.schema.statistics import summarise_durations
from bottleneck.system.child_process import Child

HERE = Path(__file__).parent
SCRIPT, HELD_CHILD = HERE / "stamped.py", HERE / "held_child.py"
# Steps before the phase: opening, second, pilot and warm-up, which is told to be three steps.
_BEFORE, _WARMUP = 6, 3
# Steps between the end of the phase and the end of the measurement: lead-in and profiled steps of up to four windows.
_WINDOWS = 60
_NO_RANDOM_ADDRESSES = 0x0040000  # personality(2)
_BARE = -1


@dataclass(frozen=True)
class Case:
    """A model, how many of its steps are left to settle, compared in the phase, and compared after it.

    ``periods_ms`` are the sensors' (0: none); ``every`` is how often it takes part in a round.
    """

    model: str
    settling: int
    held: int
    after: int
    periods_ms: tuple[int, ...]
    every: int = 1

    @property
    def steps(self) -> int:
        """Steps of a run."""
        return _BEFORE + self.settling + self.held + _WINDOWS + self.after


CASES = (
    Case("mlp", 200, 2500, 1200, (20, 0)),
    Case("transformer", 10, 100, 50, (20, 0)),
    Case("mlp-inference", 200, 5000, 2500, (20,), every=3),
    Case("optimizer", 500, 10_000, 5000, (20,), every=3),
)


@dataclass(frozen=True)
class Steps:
    """Microseconds per step of one run: median wall time and mean CPU time, in the phase and after it."""

    held_wall_us: float
    held_cpu_us: float
    after_wall_us: float
    after_cpu_us: float


Pair = tuple[Steps, Steps]


def measure_round(case: Case, index: int) -> Mapping[int, Pair]:
    """By period of the sensors, the bare run of this round and the one under `bottleneck run`."""
    arms = (_BARE, *case.periods_ms)
    order = list(itertools.permutations(arms))[index % len(list(itertools.permutations(arms)))]
    found = {period: _run(case, period) for period in order}
    return {period: (found[_BARE], found[period]) for period in case.periods_ms}


def _run(case: Case, period_ms: int) -> Steps:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "stamps.json"
        arguments = [case.model, str(case.steps), str(out)]
        ours = [sys.executable, "-m", "benchmarks.disturbance", "--supervise", str(period_ms), folder, *arguments]
        command = [sys.executable, str(SCRIPT), *arguments] if period_ms == _BARE else ours
        held = {"HELD_STEPS": str(_BEFORE - _WARMUP + case.settling + case.held)}
        launch(command, {} if period_ms == _BARE else held)
        return _steps(case, out)


def launch(command: Sequence[str], more: Mapping[str, str]) -> str:
    """What a command writes to stderr; it runs with one thread, and with the same memory layout each time."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", **more}
    done = subprocess.run(
        command,
        env=environment,
        check=False,
        cwd=HERE.parent,
        preexec_fn=_fix_addresses,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(done.stderr)
    return done.stderr


def _fix_addresses() -> None:
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).personality(_NO_RANDOM_ADDRESSES)


def supervise_script(period_ms: int, folder: Path, arguments: Sequence[str]) -> None:
    """Runs the script as `bottleneck run` does, but for the held phase and the report."""
    recording = folder / "recording"
    recording.mkdir()
    program = make_program(str(SCRIPT), arguments, seed=None)
    plan = Plan(str(recording), program, RecordOptions(warmup=_WARMUP))
    sampling = SensorReading(recording, period_ms / 1e3)

    def started(child: Child) -> None:
        sampling.start(child.process)

    end = supervise([sys.executable, str(HELD_CHILD), *plan.words], started)
    sampling.stop()
    if end.status or not list(recording.glob(".partial.*")):
        sys.exit(end.status or "the measurement did not come to its end")


def _steps(case: Case, stamps: Path) -> Steps:
    found = json.loads(stamps.read_text(encoding="utf-8"))
    first, last = _BEFORE + case.settling, _BEFORE + case.settling + case.held
    return Steps(*_part(found, first, last), *_part(found, last + _WINDOWS, case.steps))


def _part(stamps: Mapping[str, list[int]], first: int, last: int) -> tuple[float, float]:
    wall_ns, cpu_ns = (np.array(stamps[name][first : last + 1]) for name in ("wall_ns", "cpu_ns"))
    return float(np.median(np.diff(wall_ns))) / 1e3, float(cpu_ns[-1] - cpu_ns[0]) / (last - first) / 1e3


def rows_of(model: str, period_ms: int, pairs: Sequence[Pair]) -> list[str]:
    """Two rows of the table, one per phase: bare step, ratios, and the difference in microseconds."""
    sensors = f"every {period_ms} ms" if period_ms else "off"
    rows = []
    for phase, name in (("held", "unprofiled phase"), ("after", "after the measurement")):
        wall, cpu = f"{phase}_wall_us", f"{phase}_cpu_us"
        bare_us = np.median([getattr(bare, wall) for bare, _ in pairs])
        ratios = (_told(_over(pairs, wall, lambda bare, run: run / bare), ".4f"),)
        ratios += (_told(_over(pairs, cpu, lambda bare, run: run / bare), ".4f"),)
        more = _told(_over(pairs, wall, lambda bare, run: run - bare), "+.1f")
        rows.append(f"| {' | '.join((model, sensors, name, f'{bare_us:.4g} us', *ratios, more, str(len(pairs))))} |")
    return rows


def _over(pairs: Sequence[Pair], name: str, compare: Callable[[float, float], float]) -> Timing | None:
    return summarise_durations([compare(getattr(bare, name), getattr(run, name)) for bare, run in pairs])


def _told(found: Timing | None, spec: str) -> str:
    return "-" if found is None else f"{found.median:{spec}} ({found.low:{spec}} to {found.high:{spec}})"


_HEAD = (
    "| steps | sensors | when | bare step | wall time, run / bare | CPU time, run / bare | us more per step | pairs |",
    "|---|---|---|---:|---:|---:|---:|---:|",
)


def main() -> None:
    """Measures in rounds of all cases until the time is over, so that no case has a quieter machine than another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=7.0)
    parser.add_argument("--models", nargs="+", default=[case.model for case in CASES])
    parser.add_argument("--write", type=Path)
    parser.add_argument("--supervise", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.supervise:
        period, folder, *arguments = options.supervise
        supervise_script(int(period), Path(folder), arguments)
        return
    pairs: dict[tuple[str, int], list[Pair]] = {}
    deadline, index = time.monotonic() + 60 * options.minutes, 0
    while time.monotonic() < deadline:
        for case in CASES:
            if case.model in options.models and index % case.every == 0:
                for period, pair in measure_round(case, index // case.every).items():
                    pairs.setdefault((case.model, period), []).append(pair)
        index += 1
        print(f"round {index}, {max(0.0, deadline - time.monotonic()):.0f} s left", file=sys.stderr)
    text = "\n".join([*_HEAD, *(row for key, found in pairs.items() for row in rows_of(*key, found))])
    print(text)
    if options.write:
        write_between_markers(options.write, "disturbance", text)


if __name__ == "__main__":
    main()
