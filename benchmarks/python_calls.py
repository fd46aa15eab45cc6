"""How much of a step a Python loop of many calls is told to take, beside what it takes.

python -m benchmarks.python_calls               prints the table
python -m benchmarks.python_calls --rounds 9    takes the median over more recordings

The step trains a network of many small layers and then calls a small function 50,000 times. The truth is the part of
the step that this loop takes without any profiler, timed in turns with the step, before and after the recording. Told
is the part of its lines in the analysis of the recording with its two windows, and of the same recording without the
second one, where all host-side causes get one factor. Both are shown over the truth: 1 is right.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bottleneck.pipeline import examine
from bottleneck.schema.records import replace
from bottleneck.schema.sources import find_traces

CALLS = 50_000
_FILE = Path(__file__)


def one(value: int) -> int:
    """Does hardly anything, so that recording the call costs more than the call."""
    return value + 1


def many(calls: int) -> int:
    """The loop."""
    total = 0
    for _ in range(calls):
        total = one(total)
    return total


def workload(depth: int = 150, width: int = 32) -> Callable[[], None]:
    """A training step of many small ops, with the loop."""
    import torch  # noqa: PLC0415

    torch.set_flush_denormal(True)
    layers = (torch.nn.Linear(width, width), torch.nn.LayerNorm(width), torch.nn.Tanh())
    model = torch.nn.Sequential(*(layer for _ in range(depth) for layer in layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, foreach=False)
    data, target = torch.randn(16, width), torch.randn(16, width)

    def step() -> None:
        model.zero_grad()
        (model(data) - target).square().mean().backward()
        optimizer.step()
        many(CALLS)

    return step


def true_share() -> tuple[float, float]:
    """Microseconds of the loop without a profiler, and the part of the step that it is: medians of 40, in turns."""
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)
    step, steps, loops = workload(), [], []
    for turn in range(50):
        times = [time.perf_counter()]
        for call in (step, lambda: many(CALLS)):
            call()
            times.append(time.perf_counter())
        if turn >= 10:
            steps.append(1e6 * (times[1] - times[0]))
            loops.append(1e6 * (times[2] - times[1]))
    return statistics.median(loops), statistics.median(loops) / statistics.median(steps)


def told_shares(recording: Path) -> tuple[float, float]:
    """The part of the step that the loop's lines take, as told by both windows and by the first one alone."""
    source = find_traces(recording)[0]
    first, last = one.__code__.co_firstlineno, workload.__code__.co_firstlineno
    told = []
    for each in (source, replace(source, light=None)):
        rows = [row for row in examine(each).analysis.idle if row.source and row.cause == "python"]
        places = [(row.share, *(row.source or "").rpartition(":")[::2]) for row in rows]
        told.append(sum(share for share, file, line in places if file == _FILE.name and first <= int(line) < last))
    return told[0], told[1]


def measure() -> tuple[float, float, float]:
    """The loop in microseconds, and its part of the step as told by both windows and by one, over the true part."""
    with tempfile.TemporaryDirectory() as folder:
        out, (loop_us, before) = Path(folder) / "recording", true_share()
        command = [sys.executable, "-m", "bottleneck.cli", "run", "--no-batch-test", "-o", str(out), _FILE.name]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(_FILE.parents[1])}
        subprocess.run(command, check=True, env=environment, cwd=_FILE.parent, capture_output=True)
        share = (before + true_share()[1]) / 2
        both, alone = told_shares(out)
        return loop_us, both / share, alone / share


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    truth, *told = zip(*(measure() for _ in range(parser.parse_args().rounds)), strict=True)
    print("| the loop | median | range |\n|---|---:|---:|")
    rows = (("takes, us", truth), ("told by two windows / truth", told[0]), ("told by one window / truth", told[1]))
    for name, values in rows:
        print(f"| {name} | {statistics.median(values):.4g} | {min(values):.3g} to {max(values):.3g} |")


if __name__ == "__main__":
    main()
