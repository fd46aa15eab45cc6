"""One line comes while the program goes on, the report at its end; `--stop` ends the program instead."""

import os
import re
import select
import subprocess
import termios
import textwrap
from pathlib import Path

import pytest

from bottleneck.schema.recording import read_recording
from tests.harness.driver import driven, without_announcement

pytestmark = pytest.mark.process

pytest.importorskip("torch")

# Ends when the test says so, long after everything is measured, however many steps that took.
TRAINS = """
    import os, select, sys, termios, torch

    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    def train(steps):
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(4, 64)).sum().backward()
            optimizer.step()
    {before}
    {training}
    print("trained", flush=True)
    {then}
"""
UNTIL_TOLD = "while not select.select([sys.stdin], [], [], 0)[0]: train(1)"
LEAVES = "input()\n    print('done')\n    sys.exit(7)"

# Ceilings of their own take ten seconds, and are another test's matter.
KNOWN = """
    from bottleneck.recorder import finish_run
    finish_run.EARLY_AFTER_S = 1.0
    finish_run.known_ceilings = lambda threads: {ceilings}
    finish_run.Reporter._has_to_wait = lambda self, ask=finish_run.Reporter._has_to_wait: {waits}
"""
READY = KNOWN.format(ceilings=None, waits=False)
RECORDED = r"bottleneck: recorded 5 steps( \(.*\))? in recording\n"
TOLD = "settings.say('the report')"
MEASURED = "bottleneck: measured: OVERHEAD-BOUND (82.1 %); full report at the program's end\n"


def trains(before: str = "", training: str = UNTIL_TOLD, then: str = LEAVES) -> str:
    return TRAINS.format(before=before, training=training, then=then)


class Run:
    """A `bottleneck run` that goes on while the test looks on; lines are awaited, never slept for."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        program: str = "",
        setup: str = READY,
        report: str = TOLD,
        stderr: int = subprocess.PIPE,
    ) -> None:
        text = textwrap.dedent(program or trains()).lstrip("\n")
        (folder / "program.py").write_text(text)
        self.folder = folder / "recording"
        self.process = subprocess.Popen(
            driven("run", "-o", "recording", *options, "program.py", setup=setup, report=report),
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )

    def wait_for(self, words: str) -> list[str]:
        """The lines that were said up to the one with these words."""
        assert self.process.stderr is not None
        lines: list[str] = []
        while not lines or words not in lines[-1]:
            lines.append(self.process.stderr.readline())
            assert lines[-1], lines
        return [line for line in lines if not line.startswith("bottleneck: running ")]

    def end(self) -> tuple[str, str]:
        """The output of the program and of ours after the test let the program go on."""
        stdout, stderr = self.process.communicate("\n")
        return stdout, without_announcement(stderr or "")


def test_the_verdict_comes_while_the_program_goes_on_and_the_report_once_at_its_end(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert run.wait_for("measured") == [MEASURED]
    assert len(MEASURED) <= 80
    early = read_recording(run.folder)
    assert early.program_status is None
    assert early.sampling is not None and early.unprofiled is not None
    assert run.process.poll() is None
    theirs, said = run.end()
    assert (theirs, run.process.returncode) == ("trained\ndone\n", 7)
    assert re.match(RECORDED, said) and said.count("the report\n") == 1
    assert said.endswith("bottleneck: the program ended with status 7; the report is of what it did until then\n")
    late = read_recording(run.folder)
    assert late.program_status == 7
    assert (late.traces, late.sampling, late.warnings) == (early.traces, early.sampling, early.warnings)
    names = {path.name for path in run.folder.iterdir()}
    # A second window is kept where it disturbed less than the first.
    light = {trace.light.file for trace in late.traces if trace.light is not None}
    assert names == {"recording.json", "telemetry.csv", "trace.rank0.json.gz"} | light


def test_a_program_that_ends_at_once_gets_one_report_after_its_end(tmp_path: Path) -> None:
    # A program that ends before the sensors have been read for as long as is wanted, however long that takes it.
    late = READY + "    from bottleneck.analysis import telemetry\n    telemetry.MARGIN_NS = 600e9\n"
    run = Run(tmp_path, "--warmup", "3", program=trains(training="train(400)", then="sys.exit(7)"), setup=late)
    _, said = run.end()
    assert run.process.returncode == 7
    assert re.match(RECORDED, said)
    assert said.count("the report\n") == 1
    assert "full report at" not in said
    assert said.splitlines()[-1].startswith("bottleneck: the program ended with status 7; the report")
    assert read_recording(run.folder).program_status == 7


def test_ceilings_are_not_measured_beside_the_program(tmp_path: Path) -> None:
    run = Run(tmp_path, setup=KNOWN.format(ceilings=None, waits="ask(self)"))
    assert run.wait_for("measured") == ["bottleneck: measured; full report at the program's end\n"]
    assert not (run.folder / "recording.json").exists()
    _, said = run.end()
    assert re.match(RECORDED, said) and said.count("the report\n") == 1
    assert read_recording(run.folder).sampling is not None


def test_a_death_after_the_report_is_reported_and_kept(tmp_path: Path) -> None:
    run = Run(tmp_path, program=trains(then="input(); os.abort()"))
    run.wait_for("measured")
    _, said = run.end()
    assert run.process.returncode == 134
    assert said.splitlines()[-1].startswith("bottleneck: the program ended by signal 6 (SIGABRT): native code gave up")
    recording = read_recording(run.folder)
    assert recording.program_status == 134
    assert "by signal 6" in recording.warnings[0]


def test_a_failure_of_ours_in_the_middle_leaves_the_program_alone(tmp_path: Path) -> None:
    run = Run(tmp_path, report="1 / 0")
    assert run.wait_for("measured") == ["bottleneck: measured; full report at the program's end\n"]
    theirs, said = run.end()
    assert "error: bottleneck itself failed; what was recorded is kept\n" in said
    assert (theirs, run.process.returncode) == ("trained\ndone\n", 7)
    assert "ZeroDivisionError" in (run.folder / "bottleneck-crash.txt").read_text()
    assert read_recording(run.folder).program_status == 7


def test_a_program_that_is_to_stop_is_reported_on_after_its_end(tmp_path: Path) -> None:
    run = Run(tmp_path, "--stop", program=trains(training="train(10**9)"))
    theirs, said = run.end()
    assert (theirs.splitlines(), run.process.returncode) in (([], 0), (["trained"], 0))
    assert re.match(RECORDED, said)
    assert "full report at" not in said


@pytest.mark.sample
def test_a_program_that_clings_to_life_when_it_is_to_stop_is_ended(tmp_path: Path) -> None:
    setup = READY + "    from bottleneck.harness import finish\n    finish._GRACE_S = 0.0\n"
    clings = "import atexit, threading; atexit.register(threading.Event().wait)"
    program = trains(clings, "train(10**9)")
    run = Run(tmp_path, "--stop", program=program, setup=setup)
    _, said = run.end()
    assert run.process.returncode == 0
    assert "had to be killed: it did not end within ten seconds" in said.splitlines()[-1]
    assert said.count("the report\n") == 1
    assert read_recording(run.folder).program_status == 0


@pytest.fixture
def terminal() -> tuple[int, int]:
    master, slave = os.openpty()
    attributes = termios.tcgetattr(slave)
    attributes[1] &= ~termios.ONLCR  # lines end as they were written
    termios.tcsetattr(slave, termios.TCSANOW, attributes)
    return master, slave


def read_until(terminal: tuple[int, int], words: bytes, run: Run) -> bytes:
    """What the terminal shows until these words, or until the program has ended; a line may be broken at any space."""
    seen = b""
    sought = re.compile(rb"\s+".join(re.escape(part) for part in re.split(rb"\s+", words)))
    while not sought.search(seen):
        has_ended = run.process.poll() is not None
        if select.select([terminal[0]], [], [], 0.05)[0]:
            seen += os.read(terminal[0], 1024)
        elif has_ended:
            break
    return seen


def test_on_a_terminal_the_verdict_has_a_line_of_its_own(tmp_path: Path, terminal: tuple[int, int]) -> None:
    half = "print('half a line', end='', file=sys.stderr, flush=True)"
    run = Run(tmp_path, program=trains(half), stderr=terminal[1])
    assert f"half a line\n{MEASURED}".encode() in read_until(terminal, b"the program's end\n", run)
    run.end()
    assert run.process.returncode == 7


def test_a_program_with_the_whole_terminal_is_not_written_over(tmp_path: Path, terminal: tuple[int, int]) -> None:
    # It goes on until its recording is finished, when the line would have come.
    goes_on = "while not os.path.exists('recording/recording.json'): train(1)"
    program = trains("import tty; tty.setraw(2)", goes_on, "sys.exit(7)")
    run = Run(tmp_path, program=program, stderr=terminal[1])
    run.end()
    seen = read_until(terminal, b"until then\n", run)
    assert b"bottleneck: measured" not in seen and b"the report\n" in seen
    assert run.process.returncode == 7
