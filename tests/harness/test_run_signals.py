import fcntl
import os
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

WAITS = """
import os, signal, sys
try:
    print("ready", os.getpid(), flush=True)
    signal.pause()
finally:
    print("cleaned up", flush=True)
"""

COMMAND = [sys.executable, "-m", "bottleneck.cli", "run", "-o", "recording", "program.py"]


@pytest.mark.parametrize(
    ("number", "status", "output"),
    [(signal.SIGINT, 130, "cleaned up\n"), (signal.SIGTERM, 143, ""), (signal.SIGHUP, 129, "")],
)
def test_a_signal_to_us_reaches_the_program_once(number: int, status: int, output: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(WAITS)
    with subprocess.Popen(
        COMMAND, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
    ) as run:
        assert run.stdout is not None and run.stderr is not None
        assert run.stdout.readline().startswith("ready")
        run.send_signal(number)
        assert run.stdout.read() == output
        assert run.stderr.read().count("KeyboardInterrupt") == (number == signal.SIGINT)
        assert run.wait() == status
    assert (tmp_path / "recording" / "recording.json").exists()


READS = """
import os, sys
foreground = os.tcgetpgrp(0) == os.getpgrp()
print("ready", foreground, flush=True)
try:
    print("read", input(), flush=True)
    input()
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(5)
"""


def _own_terminal() -> None:
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """A pseudo-terminal with `bottleneck run` on it; lines are awaited, never slept for."""

    def __init__(self, folder: Path) -> None:
        self.master, slave = os.openpty()
        self.run = subprocess.Popen(
            COMMAND,
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
