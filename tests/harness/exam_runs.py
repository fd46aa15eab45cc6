"""Runs a program as a plain interpreter and as `bottleneck run` does, and gives what a shell sees of either."""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from .driver import HANGS_S, driven

STDIN = b"first line\nthe rest\n"


@dataclass(frozen=True)
class Outcome:
    """The streams and the status of a program, as a shell sees them."""

    stdout: bytes
    stderr: bytes
    status: int


def run_plainly(folder: Path, *arguments: str) -> Outcome:
    """The outcome of `python ARGUMENTS`."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, input=STDIN, capture_output=True, check=False, timeout=HANGS_S
    )
    # A shell shows 128 + N for signal N, subprocess shows -N.
    return Outcome(done.stdout, done.stderr, done.returncode if done.returncode >= 0 else 128 - done.returncode)


def run_recorded(folder: Path, *arguments: str, output: str = "recording", flags: tuple[str, ...] = ()) -> Outcome:
    """The outcome of `bottleneck run ARGUMENTS`, without what bottleneck itself says at the end."""
    command = [sys.executable, *flags, "-m", "bottleneck.cli", "run", "--probe-budget", "0", "-o", output, *arguments]
    done = subprocess.run(command, cwd=folder, input=STDIN, capture_output=True, check=False, timeout=HANGS_S)
    stderr = re.sub(rb"\Abottleneck: running .*\n", b"", done.stderr)
    theirs, mark, _ = stderr.partition(b"bottleneck: recorded ")
    assert mark, f"bottleneck said nothing at the end: {done.stderr!r}"
    return Outcome(done.stdout, theirs, done.returncode)


def run_quietly(folder: Path, *arguments: str, output: str = "recording") -> Outcome:
    """The outcome of `bottleneck run ARGUMENTS` without a report, and without our lines, wherever they stand.

    The report comes as soon as the measurement is over, in the middle of what a longer program writes.
    """
    command = driven("run", "-o", output, *arguments)
    done = subprocess.run(command, cwd=folder, input=STDIN, capture_output=True, check=False, timeout=HANGS_S)
    lines = done.stderr.splitlines(keepends=True)
    assert any(line.startswith(b"bottleneck: recorded ") for line in lines), f"nothing was said: {done.stderr!r}"
    theirs = b"".join(line for line in lines if not line.startswith(b"bottleneck: "))
    return Outcome(done.stdout, theirs, done.returncode)
