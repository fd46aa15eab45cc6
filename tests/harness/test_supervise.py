import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from bottleneck.harness.supervise import MemoryKills, describe_end, run_quietly, supervise
from bottleneck.system.child_process import End
from tests.harness.driver import HANGS_S


def died_of(number: int) -> End:
    return End(number, 3_100_000_000)  # the low byte of a wait status is the signal


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGSEGV, "signal 11 (SIGSEGV) after 3 steps: native code crashed"),
        (signal.SIGABRT, "signal 6 (SIGABRT) after 3 steps: native code gave up"),
        (signal.SIGTERM, "signal 15 (SIGTERM) after 3 steps: it was told to end"),
        (signal.SIGINT, "signal 2 (SIGINT) after 3 steps: it was interrupted"),
    ],
)
def test_a_death_is_told_by_number_name_and_meaning(number: int, words: str) -> None:
    assert describe_end(died_of(number), 3, None).startswith(f"the program ended by {words}")
    assert died_of(number).status == 128 + number


@pytest.mark.parametrize("number", sorted({*signal.Signals, *range(signal.SIGRTMIN, signal.SIGRTMAX + 1)}))
def test_every_signal_has_a_name(number: int) -> None:
    assert f"by signal {number} (" in describe_end(died_of(number), None, None)


@pytest.mark.parametrize(
    ("kills", "words"),
    [(1, "the system killed it for lack of memory"), (0, "not for lack of memory"), (None, "perhaps")],
)
def test_a_kill_is_blamed_on_memory_only_as_far_as_is_known(kills: int | None, words: str) -> None:
    told = describe_end(died_of(signal.SIGKILL), 1, kills)
    assert words in told and "3.1 GB" in told and "after 1 step:" in told


def test_an_exit_is_reported_with_its_status() -> None:
    assert describe_end(End(7 << 8, 0), None, None) == "the program ended with status 7"


def test_a_status_above_128_is_not_taken_for_a_signal() -> None:
    assert describe_end(End(137 << 8, 0), None, None) == "the program ended with status 137"


def test_kills_before_the_program_began_are_not_its(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bottleneck.harness.supervise.count_memory_kills", lambda: 5)
    assert MemoryKills(4).since() == 1
    assert MemoryKills(None).since() is None


def test_a_process_that_ended_can_be_told_apart_from_one_that_died() -> None:
    process = os.fork()
    if process == 0:
        os._exit(3)
    end = End(os.waitpid(process, 0)[1], 0)
    assert (end.signal, end.status) == (None, 3)


def test_a_command_that_cannot_be_started_ends_as_in_a_shell(capfd: pytest.CaptureFixture[str]) -> None:
    assert supervise(["/no/such/python"], lambda child: pytest.fail("nothing was started")).status == 126
    assert "error: cannot start /no/such/python: " in capfd.readouterr().err


def test_a_quiet_command_has_no_terminal_at_which_it_could_wait(tmp_path: Path) -> None:
    program = "import os, sys; sys.exit(os.getsid(0) != os.getpid())"
    assert run_quietly([sys.executable, "-c", program], tmp_path / "log.txt", os.environ).end.status == 0


def test_a_command_whose_wait_is_interrupted_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen(['sleep', '3600'], start_new_session=True)\n"
        "open(sys.argv[1], 'w').write(str(child.pid))\n"
        "time.sleep(3600)\n"
    )
    number = tmp_path / "number"

    def interrupt(_process: int) -> None:
        while not (number.exists() and number.read_text()):
            pass
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_quietly([sys.executable, "-c", program, str(number)], tmp_path / "log.txt", os.environ, None, interrupt)
    with contextlib.suppress(psutil.NoSuchProcess):
        left = psutil.Process(int(number.read_text()))
        # Its end takes the system a moment; a zombie stays where nobody waits for orphans.
        while left.status() != psutil.STATUS_ZOMBIE:
            pass


SIGNALLED = """
import os, signal, sys
from bottleneck.system.child_process import Child

os.register_at_fork(before=lambda: signal.raise_signal(signal.SIGINT))
try:
    Child([sys.executable, "-c", "input()"])
except KeyboardInterrupt:
    print("interrupted")
"""


def test_a_signal_while_a_process_starts_is_not_lost() -> None:
    """Python prints and drops what a handler raises in a function that it calls at a fork."""
    command = [sys.executable, "-c", SIGNALLED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGS_S, check=False)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")
