"""Watches a program of 2,000 steps with five planted faults, and without any.

    python -m benchmarks.watched [--clean 10]

A row per run: what was named with which steps, and what was not planted. The program of the faults has no hint for
`bottleneck watch`; other programs are started beside it when it asks for them.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.watched.train import CONTENTION, CONTENTION_ENDS, DEATH, GARBAGE, VALIDATION

PROGRAM = Path(__file__).with_name("train.py")
PLANTED = ("gc", "validation", "contention", "growing", "dead-worker")
# The kind of cause of each fault, and the steps that it may be named with; none for what grows over the run.
NAMED: Mapping[str, tuple[str, range]] = {
    "gc": ("gc", range(GARBAGE, GARBAGE + 1)),
    "validation": ("other-data", range(VALIDATION, VALIDATION + 1)),
    "contention": ("no-processor", range(CONTENTION, CONTENTION_ENDS + 20)),
    "growing": ("memory", range(0)),
    "dead-worker": ("dead-worker", range(DEATH, DEATH + 5)),
}
_SPINS = "while True: pass"
_OTHERS = 8


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clean", type=int, default=10, metavar="N", help="runs without faults")
    arguments = parser.parse_args()
    print("| run | named | not named | named beside |\n|---|---|---|---|")
    for planted in (PLANTED, *((),) * arguments.clean):
        causes = watch(planted)
        print(row(planted, causes), flush=True)


def watch(planted: Sequence[str]) -> list[Mapping[str, Any]]:
    """The causes that a watched run names."""
    with tempfile.TemporaryDirectory() as folder:
        ended = threading.Event()
        others = threading.Thread(target=contend, args=(Path(folder), ended))
        others.start()
        try:
            command = [sys.executable, "-m", "bottleneck", "watch", "--quiet", "--format", "json", "-o", "log"]
            done = subprocess.run(
                [*command, str(PROGRAM), *planted], cwd=folder, capture_output=True, text=True, check=False
            )
        finally:
            ended.set()
            others.join()
        if done.returncode:
            raise SystemExit(f"the watched program ended with {done.returncode}: {done.stderr[:2_000]}")
        report = [sys.executable, "-m", "bottleneck", "watch", "--format", "json", "log"]
        document = subprocess.run(report, cwd=folder, capture_output=True, text=True, check=True).stdout
    return list(json.loads(document)["ranks"][0]["causes"])


def contend(folder: Path, ended: threading.Event) -> None:
    """Runs other programs as long as the watched one asks for them."""
    spinning: list[subprocess.Popen[bytes]] = []
    while not ended.wait(0.005):
        is_wanted = (folder / "contend").exists()
        if is_wanted and not spinning:
            spinning = [subprocess.Popen([sys.executable, "-S", "-c", _SPINS]) for _ in range(_OTHERS)]
        if spinning and not is_wanted:
            end(spinning)
    end(spinning)


def end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Ends these programs."""
    for process in processes:
        process.kill()
        process.wait()
    processes.clear()


def row(planted: Sequence[str], causes: Sequence[Mapping[str, Any]]) -> str:
    """The row of a run."""
    right = {name: cause for name in planted if (cause := matching(name, causes)) is not None}
    named = "; ".join(f"{name} ({steps(cause)})" for name, cause in right.items())
    beside = "; ".join(cause["headline"] for cause in causes if cause not in right.values())
    return f"| {', '.join(planted) or 'clean'} | {named} | {', '.join(set(planted) - set(right))} | {beside} |"


def matching(name: str, causes: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The cause that names a planted fault: of its kind, with its steps and no others."""
    kind, allowed = NAMED[name]
    return next((c for c in causes if c["kind"] == kind and set(c["steps"]) <= set(allowed)), None)


def steps(cause: Mapping[str, Any]) -> str:
    """The steps of a cause in short."""
    numbers = cause["steps"]
    if not numbers:
        return "the whole run"
    return f"{numbers[0]:,}" if len(numbers) == 1 else f"{len(numbers)} in {min(numbers):,} to {max(numbers):,}"


if __name__ == "__main__":
    main()
