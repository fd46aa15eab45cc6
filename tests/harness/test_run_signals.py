import fcntl
import os
import signal
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bottleneck.schema.recording import read_recording
from tests.harness.driver import driven

# These programs wait by turning: a signal just before `signal.pause()` would leave it waiting for the next one.
WAITS = """
import os
try:
    print("ready", os.getpgrp(), flush=True)
    while True:
        pass
finally:
    print("cleaned up", flush=True)
"""

COMMAND = [sys.executable, "-m", "bottleneck.cli", "run", "--probe-budget", "0", "-o", "recording", "program.py"]
PLAIN = [sys.executable, "program.py"]
DEADLY = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Path:
    """One that is there already is kept, whatever it holds in the end."""
    (tmp_path / "recording").mkdir()
    return tmp_path


def start(command: list[str], folder: Path, program: str, **options: Any) -> subprocess.Popen[str]:
    (folder / "program.py").write_text(program)
    return subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )


def first_word_then_number(run: subprocess.Popen[str], word: str) -> int:
    """Waits for a line `WORD NUMBER` of the program."""
    assert run.stdout is not None
    line = run.stdout.readline().split()
    assert line[:1] == [word], run.communicate()
    return int(line[1])


@pytest.mark.parametrize(
    ("number", "status", "output"),
    [(signal.SIGINT, 130, "cleaned up\n"), (signal.SIGTERM, 143, ""), (signal.SIGHUP, 129, "")],
)
def test_a_signal_to_us_reaches_the_program_once(number: int, status: int, output: str, folder: Path) -> None:
    with start(COMMAND, folder, WAITS, stdin=subprocess.DEVNULL) as run:
        first_word_then_number(run, "ready")
        run.send_signal(number)
        told, complaints = run.communicate()
        assert told == output
        assert complaints.count("KeyboardInterrupt") == (number == signal.SIGINT)
        assert f"the program ended by signal {number} (" in complaints.splitlines()[-1]
        assert run.returncode == status
    assert read_recording(folder / "recording").program_status == status


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("send", [os.kill, os.killpg], ids=["to the process", "to its group"])
@pytest.mark.parametrize("number", DEADLY)
def test_a_signal_has_the_effect_that_it_has_under_python(
    number: int, send: Callable[[int, int], None], times: int, folder: Path
) -> None:
    statuses = []
    for command in (PLAIN, COMMAND):
        with start(command, folder, WAITS, stdin=subprocess.DEVNULL) as run:
            group = first_word_then_number(run, "ready")
            for _ in range(times):
                send(run.pid, number)
            run.communicate()
            # A shell shows 128 + N for signal N, subprocess shows -N.
            statuses.append(run.returncode if run.returncode >= 0 else 128 - run.returncode)
        with pytest.raises(ProcessLookupError):
            os.killpg(group, 0)
    assert statuses == [128 + number] * 2
    assert read_recording(folder / "recording").program_status == 128 + number


def test_a_signal_to_us_reaches_a_program_that_started_a_session_of_its_own(folder: Path) -> None:
    with start(COMMAND, folder, "import os\nos.setsid()\n" + WAITS, stdin=subprocess.DEVNULL) as run:
        first_word_then_number(run, "ready")
        run.send_signal(signal.SIGTERM)
        run.communicate()
        assert run.returncode == 143


def test_a_signal_that_our_caller_ignores_is_ignored_by_the_program(folder: Path) -> None:
    # A shell starts a background job like this.
    program = "import os; print('ready', os.getpid(), flush=True); input(); print('went on')"
    with start(COMMAND, folder, program, stdin=subprocess.PIPE, preexec_fn=_ignore_interrupts) as run:
        first_word_then_number(run, "ready")
        os.killpg(run.pid, signal.SIGINT)
        told, complaints = run.communicate("\n")
        assert (told, run.returncode) == ("went on\n", 0)
        assert "KeyboardInterrupt" not in complaints


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


TRAINS = """
import os
import torch

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    seen = 0 if not torch.autograd._profiler_enabled() else seen + 1
    if seen == 3:  # well within the second window: the first has one step
        print("profiling", os.getpgrp(), flush=True)
        while True:
            pass
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("number", "times"), [(signal.SIGINT, 1), (signal.SIGINT, 3), (signal.SIGTERM, 3), (signal.SIGHUP, 3)]
)
def test_what_was_recorded_outlives_a_deadly_signal(number: int, times: int, folder: Path) -> None:
    pytest.importorskip("torch")
    command = driven("run", "-o", "recording", "--steps", "50", "program.py")
    with start(command, folder, TRAINS, stdin=subprocess.DEVNULL) as run:
        group = first_word_then_number(run, "profiling")
        for _ in range(times):
            os.killpg(run.pid, number)
        _, complaints = run.communicate()
        assert run.returncode == 128 + number
        assert "bottleneck: recorded" in complaints
    with pytest.raises(ProcessLookupError):
        os.killpg(group, 0)
    recording = read_recording(folder / "recording")
    assert len(recording.traces) == 1
    assert any(f"ended by signal {number} (" in warning for warning in recording.warnings)
    assert not list((folder / "recording").glob(".*"))


READS = """
import os, sys
foreground = os.tcgetpgrp(0) == os.getpgrp()
print("ready", foreground, flush=True)
try:
    print("read", input(), flush=True)
    while True:
        pass
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(5)
"""


def _own_terminal() -> None:
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """A pseudo-terminal with `bottleneck run` on it; lines are awaited, never slept for."""

    def __init__(self, folder: Path, command: list[str] = COMMAND) -> None:
        self.master, slave = os.openpty()
        self.run = subprocess.Popen(
            command,
            cwd=folder,
            stdin=slave,
            stdout=slave,
            stderr=subprocess.DEVNULL,
            preexec_fn=_own_terminal,  # noqa: PLW1509 - a controlling terminal can only be taken after the fork
        )
        os.close(slave)
        self.seen = b""

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def wait_for(self, text: bytes) -> None:
        while text not in self.seen:
            self.seen += os.read(self.master, 1024)


def test_the_program_has_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(READS)
    terminal = Terminal(tmp_path)
    terminal.wait_for(b"ready True")
    terminal.type(b"hello\n")
    terminal.wait_for(b"read hello")
    terminal.type(b"\x03")
    terminal.wait_for(b"interrupted")
    assert terminal.run.wait() == 5
    os.close(terminal.master)


def test_the_program_can_be_stopped_and_resumed_from_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(READS)
    terminal = Terminal(tmp_path)
    terminal.wait_for(b"ready True")
    terminal.type(b"\x1a")
    _, status = os.waitpid(terminal.run.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    os.kill(terminal.run.pid, signal.SIGCONT)
    terminal.type(b"again\n")
    terminal.wait_for(b"read again")
    terminal.type(b"\x03")
    terminal.wait_for(b"interrupted")
    assert terminal.run.wait() == 5
    os.close(terminal.master)


INSISTS = """
try:
    print("ready", flush=True)
    while True:
        pass
except KeyboardInterrupt:
    try:
        print("once", flush=True)
        while True:
            pass
    except KeyboardInterrupt:
        print("twice", flush=True)
        raise
"""


def test_ctrl_c_twice_reaches_the_program_twice(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(INSISTS)
    terminal = Terminal(tmp_path)
    terminal.wait_for(b"ready")
    terminal.type(b"\x03")
    terminal.wait_for(b"once")
    terminal.type(b"\x03")
    terminal.wait_for(b"twice")
    assert terminal.run.wait() == 130
    os.close(terminal.master)


# What a shell does with a job that it starts in the background, and then brings to the front.
SHELL = """
import os, signal, subprocess, sys
job = subprocess.Popen(sys.argv[1:], process_group=0)
_, status = os.waitpid(job.pid, os.WUNTRACED)
print("stopped", os.WIFSTOPPED(status) and os.WSTOPSIG(status) in (signal.SIGSTOP, signal.SIGTTIN), flush=True)
os.tcsetpgrp(0, job.pid)
os.killpg(job.pid, signal.SIGCONT)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(job.pid, 0)[1]))
"""


def test_a_program_in_the_background_stops_when_it_reads_and_goes_on_in_the_foreground(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(READS)
    terminal = Terminal(tmp_path, [sys.executable, "-c", SHELL, *COMMAND])
    terminal.wait_for(b"ready False")
    terminal.wait_for(b"stopped True")
    terminal.type(b"hello\n")
    terminal.wait_for(b"read hello")
    terminal.type(b"\x03")
    terminal.wait_for(b"interrupted")
    assert terminal.run.wait() == 5
    os.close(terminal.master)


ABORTS = """
import atexit, os
import torch
atexit.register(os.abort)
for _ in range(8):
    torch.nn.Linear(8, 8)(torch.ones(4, 8))
{}
"""


@pytest.mark.process
@pytest.mark.parametrize(("end", "is_whole"), [("", True), ("raise SystemExit(3)", False), ("os.abort()", False)])
def test_a_death_after_the_work_is_told_from_one_within_it(end: str, is_whole: bool, folder: Path) -> None:
    pytest.importorskip("torch")
    with start(driven("run", "-o", "recording", "program.py"), folder, ABORTS.format(end)) as run:
        _, complaints = run.communicate()
        assert run.returncode == 128 + signal.SIGABRT
    assert ("that was after its work, so the recording is whole" in complaints) == is_whole
