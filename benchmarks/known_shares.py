"""Compares shares of a step that are known by construction with those of a report on it.

    python -m benchmarks.known_shares [--times 5]

In the program a line of Python holds about two thirds of the step, and the optimizer a tenth. It times both itself in
each of its 400 steps, most of which are not recorded, and prints the medians. Printed are by run what the report says
beside what the program measured in the same run, what it measures when it runs alone, and the median difference in
percentage points. Exit status 1 where that is more than 3. Run it on a quiet machine: what other programs take falls
into the recorded steps or beside them.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bottleneck.pipeline import analyse
from bottleneck.units import format_share

_PROGRAM = """\
import json, statistics, time
import torch


def token(k):
    return (k * 31 + 7) % 97


now = time.perf_counter
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
began, tokens, stepping = [], [], []
for number in range(400):
    began.append(now())
    words = [token(k) for k in range(3000)]
    tokens.append(now() - began[-1])
    loss = model(torch.randn(4, 8)).sum()
    optimizer.zero_grad()
    loss.backward()
    before = now()
    optimizer.step()
    stepping.append(now() - before)
whole = statistics.median(late - early for early, late in zip(began, began[1:]))
print(json.dumps([statistics.median(each) / whole for each in (tokens, stepping)]))
"""
_LINE, _FUNCTION = (
    next(at for at, text in enumerate(_PROGRAM.splitlines(), 1) if text.lstrip().startswith(start))
    for start in ("words =", "def token")
)
_POINTS = 0.03


def shares_alone(program: Path) -> tuple[float, float]:
    """The shares of the line and of the optimizer, as the program times them itself."""
    return _told([sys.executable, str(program)])


def shares_reported(program: Path, folder: Path) -> tuple[tuple[float, float], tuple[float, float]]:
    """The same shares by a report on a run of the program, and as the program times them in this run."""
    command = [sys.executable, "-m", "bottleneck", "run", "--probe-budget", "0", "-q", "-o", str(folder), str(program)]
    true = _told(command)
    analysis = analyse([folder])
    places = {f"{program.name}:{_LINE}", f"token() ({program.name}:{_FUNCTION})"}
    line_us = sum(row.us for row in analysis.idle if row.source in places)
    optimizer_us = sum(phase.us for phase in analysis.phases if phase.name == "optimizer")
    return (line_us / analysis.steps.wall_us, optimizer_us / analysis.steps.wall_us), true


def _told(command: list[str]) -> tuple[float, float]:
    """What the program prints about itself."""
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    line, optimizer = json.loads(next(text for text in done.stdout.splitlines() if text.startswith("[")))
    return line, optimizer


def main() -> None:
    """Prints the shares of each run, and the median differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    apart: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as scratch:
        program = Path(scratch) / "program.py"
        program.write_text(_PROGRAM, encoding="utf-8")
        for number in range(options.times):
            alone, (said, true) = shares_alone(program), shares_reported(program, Path(scratch) / str(number))
            words = (
                f"{format_share(told)} (true: {format_share(fact)}, alone: {format_share(other)})"
                for told, fact, other in zip(said, true, alone, strict=True)
            )
            print("line {}, optimizer {}".format(*words), flush=True)
            apart.append((said[0] - true[0], said[1] - true[1]))
    medians = [statistics.median(each) for each in zip(*apart, strict=True)]
    print(f"median difference: line {100 * medians[0]:+.1f}, optimizer {100 * medians[1]:+.1f} percentage points")
    sys.exit(max(map(abs, medians)) > _POINTS)


if __name__ == "__main__":
    main()
