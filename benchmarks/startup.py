"""Start-up time of ``bottleneck report`` and ``bottleneck --help`` beside that of pandas and of bare Python.

    python -m benchmarks.startup [--rounds N]

Each round starts every command once, in turns, so that a change in the load of the machine meets all of them. The
shortest time of each is compared: whatever else runs only adds to a time. Wall time and processor time (user and
system) are both printed. The limits are those of the processor time, which a busy machine changes least; on an idle one
the two agree. The exit status is 1 where a limit is broken.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = {
    "python -c pass": ("-c", "pass"),
    "python -c 'import pandas'": ("-c", "import pandas"),
    "bottleneck --help": ("-m", "bottleneck", "--help"),
    "bottleneck report": ("-m", "bottleneck", "report", "sample_traces/mlp"),
}


@dataclass(frozen=True)
class Seconds:
    """Wall time and processor time of one start, or the shortest of each."""

    wall: float
    processor: float


def start(command: tuple[str, ...], environment: dict[str, str]) -> Seconds:
    """The time that one start of ``command`` takes until it ends."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, check=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Seconds(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def measure(rounds: int) -> dict[str, Seconds]:
    """The shortest times of each command over ``rounds`` rounds, after one round that fills the caches."""
    seen: dict[str, list[Seconds]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as cache:
        # Packages that pip installs are compiled; a checkout may not be, and the environment may forbid to keep it.
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": cache}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for number in range(rounds + 1):
            for name, command in COMMANDS.items():
                seconds = start(command, environment)
                if number > 0:
                    seen[name].append(seconds)
    return {
        name: Seconds(min(each.wall for each in times), min(each.processor for each in times))
        for name, times in seen.items()
    }


def main() -> int:
    """Prints the times and the two ratios; 1 where one of them is above its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    shortest = measure(parser.parse_args().rounds)
    for name, seconds in shortest.items():
        print(f"{name:26} {seconds.wall * 1e3:6.0f} ms wall {seconds.processor * 1e3:6.0f} ms processor")
    bare, pandas, usage, report = shortest.values()
    ratio = report.processor / pandas.processor
    print(f"report / import pandas     {ratio:6.2f} (at most 2); wall {report.wall / pandas.wall:.2f}")
    limit = 3 * bare.processor + 0.1
    print(f"--help - 3 x bare Python   {(usage.processor - 3 * bare.processor) * 1e3:6.0f} ms processor (at most 100)")
    return int(ratio > 2 or usage.processor > limit)


if __name__ == "__main__":
    sys.exit(main())
