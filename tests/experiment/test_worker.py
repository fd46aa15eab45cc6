"""The process that holds variants: what it makes and refuses, and that it never outlives what it is for."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bottleneck.experiment.worker import Refused, Worker
from bottleneck.harness.messages import Program
from tests.experiment import own_changes

pytest.importorskip("torch")

CHILD = (own_changes.__file__,)


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """The program of our own, in a file."""
    file = tmp_path / "program.py"
    file.write_text(own_changes.PROGRAM)
    return Program(str(file))


@pytest.fixture
def worker(program: Program, tmp_path: Path) -> Iterator[Worker]:
    """A process for it."""
    with Worker(program, tmp_path / "log.txt", {"OMP_NUM_THREADS": "1"}, CHILD) as worker:
        yield worker


def test_a_variant_is_made_and_gives_a_time_for_each_step_of_a_turn(worker: Worker) -> None:
    built = worker.build("original")
    assert built.samples == 1
    assert built.setup_s > 0 and built.step_us > 1
    times_us = worker.turn("original", 5, 1, built.step_us)
    assert len(times_us) == 5 and min(times_us) > 0


def test_no_request_is_waited_for_beyond_the_time_that_is_left(worker: Worker) -> None:
    worker.until = time.monotonic()
    with pytest.raises(Refused) as refused:
        worker.build("original")
    assert (refused.value.verdict, refused.value.reason) == ("skipped", "no time was left")


def test_settings_of_a_change_reach_the_workload(worker: Worker) -> None:
    us = {
        name: min(worker.turn(name, 20, 1, worker.build(name, changes).step_us))
        for name, changes in {"original": (), "changed": ("least-work",)}.items()
    }
    assert us["changed"] < us["original"]  # the quickest step of each: others may be disturbed
    assert worker.build("doubled", ("double", "nothing")).samples == 2


@pytest.mark.parametrize(
    ("change", "verdict", "reason"),
    [
        ("needs-more", "not applicable", "needs a loader"),
        ("needs-installing", "missing", "pip install something"),
        ("raises", "failed", "ValueError: first line"),
        ("leaves", "failed", "SystemExit: no more"),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason_and_the_process_goes_on(
    worker: Worker, change: str, verdict: str, reason: str
) -> None:
    with pytest.raises(Refused) as refused:
        worker.build("changed", (change,))
    assert (refused.value.verdict, refused.value.reason) == (verdict, reason)
    assert worker.build("original").step_us > 0


def test_a_death_is_refused_with_the_signal(worker: Worker) -> None:
    with pytest.raises(Refused) as refused:
        worker.build("changed", ("dies",))
    assert refused.value.verdict == "failed"
    assert "SIGABRT" in refused.value.reason
    with pytest.raises(Refused):
        worker.turn("changed", 1, 0, 1.0)


def test_what_the_program_prints_goes_into_the_log_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "loud.py"
    file.write_text("print('HELLO')\nimport os\nos.write(1, b'THERE\\n')\n" + own_changes.PROGRAM)
    with Worker(Program(str(file)), tmp_path / "log.txt", {"OMP_NUM_THREADS": "1"}, CHILD) as worker:
        worker.build("original")
    said = (tmp_path / "log.txt").read_text()
    assert "HELLO" in said and "THERE" in said
    assert capfd.readouterr() == ("", "")


def test_a_program_that_ends_its_process_is_reported_with_its_last_words(tmp_path: Path) -> None:
    file = tmp_path / "leaves.py"
    file.write_text("import os, sys\nprint('out of luck', flush=True)\nos._exit(7)\n" + own_changes.PROGRAM)
    with Worker(Program(str(file)), tmp_path / "log.txt", None, CHILD) as worker, pytest.raises(Refused) as refused:
        worker.build("original")
    assert refused.value.reason == "its process ended with status 7: out of luck"


def test_the_process_is_gone_when_the_block_ends(program: Program, tmp_path: Path) -> None:
    with Worker(program, tmp_path / "log.txt", None, CHILD) as worker:
        process = worker._child.process
        os.kill(process, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


class _PromptWorker(Worker):
    """Its process has ended before anybody looks for what it started."""

    def _ask_to_quit(self) -> None:
        super()._ask_to_quit()
        _wait_until(lambda: self._child.has_ended)


@pytest.mark.parametrize("kind", [Worker, _PromptWorker])
def test_a_process_that_left_the_group_of_its_worker_is_ended_too(
    program: Program, tmp_path: Path, kind: type[Worker]
) -> None:
    file = Path(program.target)
    start = "import subprocess\nsubprocess.Popen(['sleep', '3600'], start_new_session=True)\n"
    file.write_text(start + file.read_text())
    with kind(program, tmp_path / "log.txt", None, CHILD) as worker:
        worker.build("original")
        sleepers = [
            each.pid
            for each in psutil.Process(worker._child.process).children(recursive=True)
            if each.name() == "sleep"
        ]
    assert sleepers
    _wait_until(lambda: not any(map(_is_running, sleepers)))


_HOLDER = """
import sys
from pathlib import Path
from bottleneck.experiment.worker import Worker
from bottleneck.harness.messages import Program
with Worker(Program(sys.argv[1]), Path(sys.argv[2]), None, sys.argv[3:]) as worker:
    print(worker._child.process, flush=True)
    worker.build("original")
"""
_ENDLESS = (
    "import time\ndef workload():\n    return lambda: time.sleep(3600)\nimport torch\nprint('READY', flush=True)\n"
)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["interrupted", "killed"])
def test_nothing_stays_behind_however_its_holder_ends(tmp_path: Path, number: int) -> None:
    (tmp_path / "endless.py").write_text(_ENDLESS)
    log = tmp_path / "log.txt"
    command = [sys.executable, "-c", _HOLDER, str(tmp_path / "endless.py"), str(log), *CHILD]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as holder:
        assert holder.stdout is not None
        process = int(holder.stdout.readline())
        _wait_until(lambda: "READY" in log.read_text())
        holder.send_signal(number)
        holder.wait()
    _wait_until(lambda: not _is_running(process))


def _is_running(process: int) -> bool:
    """True if a process runs; one that nobody waits for in a container stays as a zombie."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in {"Z", "X"}


def _wait_until(is_so: object, seconds: float = 120.0) -> None:
    assert callable(is_so)
    until = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.05)
