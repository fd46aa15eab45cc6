"""Runs `bottleneck run` on a small program without the ceilings and the report, which have tests of their own."""

import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

from bottleneck.schema.recording import Recording, read_recording

# No limit on speed: a program that hangs fails its own test, before `faulthandler_timeout` would end the whole run.
HANGS_S = 500

_DRIVER = """
import sys
from bottleneck.recorder import finish_run
from bottleneck.calibrate import cache
cache.cpu_calibration = lambda threads, tell, is_quiet=False: None
def report(folder, settings):
    {report}
    return "OVERHEAD-BOUND (82.1 %)"
finish_run._report = report
{setup}
from bottleneck.cli import main
main(sys.argv[1:])
"""


def driven(*command: str, report: str = "pass", setup: str = "") -> list[str]:
    """The command line of `bottleneck COMMAND`, as ``record`` runs it."""
    return [sys.executable, "-c", _DRIVER.format(report=report, setup=textwrap.dedent(setup)), *command]


# A report while the program goes on depends on how long the program takes from its last measured step to its end.
_ONE_REPORT = "finish_run.Reporter.report_early = lambda self, ended: None\n"


def without_announcement(stderr: str) -> str:
    """What stderr got after the line in which `run` says what it will do, if it did."""
    return re.sub(r"\Abottleneck: running .*\n", "", stderr)


@dataclass(frozen=True)
class Run:
    """A finished `bottleneck run`: what the program wrote, what we said, and the recording (null if there is none)."""

    stdout: str
    stderr: str
    said: str
    status: int
    folder: Path
    recording: Recording


def record(
    folder: Path, program: str, *options: str, arguments: tuple[str, ...] = (), report: str = "pass", setup: str = ""
) -> Run:
    """The run of a program text, with options before it and arguments after it; ``setup`` runs in the supervisor.

    It reports once, after the program's end, however busy the machine is.
    """
    (folder / "program.py").write_text(textwrap.dedent(program).lstrip("\n"))
    # One that is there already is kept, whatever it holds in the end.
    (folder / "recording").mkdir(exist_ok=True)
    setup = _ONE_REPORT + textwrap.dedent(setup)
    command = driven("run", "-o", "recording", *options, "program.py", *arguments, report=report, setup=setup)
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=HANGS_S
    )
    theirs, mark, said = without_announcement(done.stderr).partition("bottleneck: recorded ")
    assert mark, f"bottleneck said nothing at the end: {done.stderr}"
    target = folder / "recording"
    return Run(done.stdout, theirs, mark + said, done.returncode, target, read_recording(target))
