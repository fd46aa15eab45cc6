"""Signals and kills at random instants of `bottleneck run`: nothing hangs, nothing is orphaned, nothing is lost.

    python benchmarks/exam_kills.py --runs 500 --kind signals
    python benchmarks/exam_kills.py --runs 200 --kind kills
    python benchmarks/exam_kills.py --runs 100 --kind signals --until 1.5      while it starts
    python benchmarks/exam_kills.py --runs 100 --kind plain --until 1.5        what a plain python does then

Each run records a short training and is hit at an instant drawn evenly from the time that an undisturbed run takes, so
that the start, every phase of the measurement, the end and the report are hit. `signals` sends SIGINT, SIGTERM or
SIGHUP to `bottleneck run`; `kills` sends SIGKILL to it or to the program. Then `bottleneck report --repair`
must find or make a whole recording. The ceilings of the CPU are not measured: that takes ten seconds of their own.
What a SIGINT does while torch is being imported is Python's and torch's own: it can be lost, so that the program goes
on, lock the import up, end the interpreter with status 1 before it is ready, or abort it in native code. What leaves a
line of its own on stderr is counted apart; `plain` shows how often all of them befall `python program.py`.

Prints a row per case and what was wrong with any run; leaves with status 1 if anything was.
"""

import argparse
import gzip
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bottleneck.harness.folder import read_run_state
from bottleneck.schema.recording import read_recording

PROGRAM = """
import torch
model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(150):
    optimizer.zero_grad()
    model(torch.ones(8, 64)).sum().backward()
    optimizer.step()
"""
WITHOUT_CEILINGS = """
import sys
from bottleneck.calibrate import cache
cache.cpu_calibration = lambda threads, tell, is_quiet=False: None
from bottleneck.cli import main
main(sys.argv[1:])
"""
# What is said where an interrupt cannot be raised as an error: by native code, by the interpreter's own start, and by
# callbacks, after which the program goes on.
PYTHONS_OWN = {
    "aborted by torch's import": (
        128 + signal.SIGABRT,
        b"terminate called after throwing an instance of 'pybind11::error_already_set'\n  what():  KeyboardInterrupt",
    ),
    "python not ready": (1, b"Fatal Python error: init_import_site: Failed to import the site module"),
    "interrupt lost": (0, b"Exception ignored in"),
}
# What a run may take to end after it was hit: this, or on a busy machine as long as all of an undisturbed run.
PATIENCE_S, LONGEST_S = 10.0, 300.0


@dataclass(frozen=True)
class Case:
    """What is sent to whom: to `bottleneck run` itself, to the program that it runs, or to one that runs alone."""

    number: signal.Signals
    target: Literal["the run", "the program", "plain python"]

    def __str__(self) -> str:
        return f"{self.number.name} to {self.target}"


KINDS = {
    "signals": [Case(number, "the run") for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)],
    "kills": [Case(signal.SIGKILL, "the run"), Case(signal.SIGKILL, "the program")],
    "plain": [Case(signal.SIGINT, "plain python")],
}


def command(*arguments: str) -> list[str]:
    """The command line of `bottleneck ARGUMENTS`."""
    return [sys.executable, "-c", WITHOUT_CEILINGS, *arguments]


def start(folder: Path, case: Case) -> subprocess.Popen[bytes]:
    """A run that records the program into this folder, or the program alone."""
    recording = command("run", "-o", "recording", "--telemetry-ms", "20", "program.py")
    (folder / "program.py").write_text(PROGRAM)
    with (folder / "said.txt").open("wb") as said:
        return subprocess.Popen(
            [sys.executable, "program.py"] if case.target == "plain python" else recording,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
        )


def undisturbed_s(case: Case) -> float:
    """How long a run takes that nobody hits."""
    with tempfile.TemporaryDirectory() as name:
        began = time.monotonic()
        start(Path(name), case).wait(LONGEST_S)
        return time.monotonic() - began


def hit(run: subprocess.Popen[bytes], case: Case, folder: Path) -> bool:
    """Whether there was somebody to hit."""
    target = run.pid
    if case.target == "the program":
        course = read_run_state(folder / "recording")
        if course is None or course.process is None:
            return False
        target = course.process
    try:
        os.kill(target, case.number)
    except ProcessLookupError:
        return False
    return run.poll() is None or case.target == "the program"


def processes_about(folder: Path) -> list[int]:
    """Processes that have the folder in their command line, as the program has its plan."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(folder / "recording").encode() in words:
                found.append(int(entry.name))
    return found


def is_true_within(seconds: float, holds: Callable[[], bool]) -> bool:
    """Whether something comes true in time; looked at often."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def problems_after(run: subprocess.Popen[bytes], case: Case, folder: Path, patience_s: float) -> Iterator[str]:
    """What is wrong with a run that was hit."""
    hangs = not is_true_within(patience_s, lambda: run.poll() is not None)
    if hangs:
        run.kill()
        run.wait()
        yield "hangs"
    if not is_true_within(patience_s, lambda: not processes_about(folder)):
        for process in processes_about(folder):
            os.kill(process, signal.SIGKILL)
        yield "leaves an orphan"
    allowed = {0, -case.number, 128 + case.number}
    if not hangs and run.returncode not in allowed and pythons_own_end(run, case, folder) is None:
        yield f"ends with status {run.returncode}"
    if not (folder / "recording").exists():
        return
    yield from problems_of_files(folder / "recording")
    told = subprocess.run(
        command("report", "--repair", "recording"), cwd=folder, capture_output=True, text=True, check=False
    )
    if told.returncode not in {0, 3} or "Traceback" in told.stderr:
        yield f"report ends with {told.returncode}: {told.stderr[-300:]}"
    if told.returncode == 3 and "holds no trace" not in told.stderr:
        yield f"report says {told.stderr[-300:]}"
    yield from problems_of_files(folder / "recording")
    left = [path.name for path in (folder / "recording").glob(".*")]
    if left:
        yield f"report leaves {', '.join(sorted(left))}"


def pythons_own_end(run: subprocess.Popen[bytes], case: Case, folder: Path) -> str | None:
    """What became of an interrupt that was not raised in the program, by what the program left on stderr."""
    if case.number != signal.SIGINT:
        return None
    # A shell shows 128 + N for signal N, subprocess shows -N.
    status = run.returncode if run.returncode >= 0 else 128 - run.returncode
    said = (folder / "said.txt").read_bytes()
    return next((name for name, (own, words) in PYTHONS_OWN.items() if status == own and words in said), None)


def problems_of_files(recording: Path) -> Iterator[str]:
    """Files under a final name that are not whole."""
    checks: dict[str, Callable[[Path], object]] = {
        "recording.json": lambda path: read_recording(path.parent),
        "analysis.json": lambda path: json.loads(path.read_bytes()),
        "trace.rank*.json.gz": lambda path: json.loads(gzip.decompress(path.read_bytes())),
        "roofline.png": _end_of_picture,
    }
    for pattern, check in checks.items():
        for path in recording.glob(pattern):
            try:
                check(path)
            except Exception as exc:
                yield f"{path.name} is not whole: {exc}"


def _end_of_picture(path: Path) -> None:
    if not path.read_bytes().endswith(b"IEND\xaeB`\x82"):
        raise ValueError("the picture is cut off")


def examine(case: Case, at_s: float, patience_s: float) -> tuple[str, list[str]]:
    """What became of one run ('missed' if it had ended before), and what was wrong with it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        run = start(folder, case)
        is_true_within(at_s, lambda: run.poll() is not None)
        was_hit = hit(run, case, folder)
        problems = list(problems_after(run, case, folder, patience_s)) if was_hit else []
        if problems:
            problems.append(f"said: {(folder / 'said.txt').read_text(errors='replace')[-600:]!r}")
        run.wait(LONGEST_S)
        recording = folder / "recording"
        if not was_hit:
            return "missed", problems
        own_end = pythons_own_end(run, case, folder)
        if own_end is not None:
            return own_end, problems
        if case.target == "plain python":
            return "went on" if run.returncode == 0 else "ended", problems
        if not (recording / "recording.json").exists():
            return "nothing captured", problems
        return "with a trace" if read_recording(recording).traces else "without a trace", problems


def main() -> int:
    """Makes the runs and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50, help="runs in all")
    parser.add_argument("--kind", choices=sorted(KINDS), default="kills")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--until", type=float, help="hit within so many seconds; else within those of a whole run")
    options = parser.parse_args()
    cases = KINDS[options.kind]
    chance, length_s = random.Random(options.seed), undisturbed_s(cases[0])
    latest_s = min(length_s, options.until or length_s)
    outcomes: dict[Case, Counter[str]] = {case: Counter() for case in cases}
    wrong: list[str] = []
    for number in range(options.runs):
        case, at_s = cases[number % len(cases)], chance.uniform(0.0, latest_s)
        outcome, problems = examine(case, at_s, max(PATIENCE_S, length_s))
        outcomes[case][outcome] += 1
        print(f"{number + 1}: {case} after {at_s:.2f} s: {outcome} {problems or ''}", file=sys.stderr, flush=True)
        wrong += [f"{case} after {at_s:.2f} s: {'; '.join(problems)}"] if problems else []
    print(f"{options.runs} runs, hit within {latest_s:.1f} s; {len(wrong)} with problems")
    for case, counts in outcomes.items():
        print(f"  {case}: " + ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())))
    print("\n".join(wrong), end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
