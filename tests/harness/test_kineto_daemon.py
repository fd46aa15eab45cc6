"""`bottleneck attach` through Kineto's daemon: a training that asks it, and whoever else sends messages."""

import contextlib
import gzip
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import filelock
import pytest

from bottleneck.errors import UsageError
from bottleneck.harness import kineto_daemon
from bottleneck.harness.finish import read_notes
from bottleneck.harness.folder import CLAIM_FILE, RankFiles, RunState
from bottleneck.harness.kineto_daemon import ADDRESS, VARIABLE, DaemonProcess, longer_window_s, uses_daemon
from bottleneck.harness.messages import EVENT_BUDGET, Plan, Program, RecordOptions
from bottleneck.harness.running_process import connect
from bottleneck.pipeline import analyse
from bottleneck.recorder.finish_run import repair
from bottleneck.schema.recording import is_recording, read_recording
from tests.harness import test_attach as attaching

pytest.importorskip("torch")
pytestmark = [pytest.mark.process, pytest.mark.skipif(sys.platform != "linux", reason="attaches on Linux alone")]

QUICK = ("--telemetry-ms", "0", "--quiet")


@contextlib.contextmanager
def asking(folder: Path, code: str) -> Iterator[attaching.Program]:
    """Runs the program with Kineto's daemon in its environment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, "1")
        patch.setenv("KINETO_LOG_LEVEL", "5")
        started = attaching.started(folder, code)
        program = started.__enter__()
    try:
        yield program
    finally:
        started.__exit__(None, None, None)


@pytest.fixture
def real_name() -> Iterator[None]:
    """Lets one test at a time have the name of the daemon."""
    with filelock.FileLock(Path(tempfile.gettempdir(), "bottleneck-test-dynolog.lock")):
        yield


@pytest.mark.usefixtures("real_name")
def test_five_windows_of_a_training_are_recorded_and_it_computes_the_same(tmp_path: Path) -> None:
    with asking(tmp_path, attaching.TRAINS + "train()" + attaching.ENDS) as program:
        for number in range(5):
            folder = tmp_path / f"window-{number}"
            done = program.attach(*QUICK, "-o", str(folder))
            assert done.returncode == 0 and "error" not in done.stderr, done.stderr
            assert "recorded a trace in" in done.stderr and "none was timed without it" in done.stderr
            analysis = analyse([folder])
            assert analysis.steps.count >= 5 and analysis.steps.unprofiled_us is None
            assert any("train.py" in line.name for line in analysis.lines), "the trace has no lines of the program"
            assert any(kernel.flops for kernel in analysis.kernels), "the trace has no shapes"
            assert not list(folder.glob(".fresh*"))
        status, output, _ = program.end()
    assert status == 7
    assert attaching.is_as_without(tmp_path, output)


@pytest.mark.usefixtures("real_name")
def test_a_killed_attachment_leaves_the_name_and_the_program_and_the_next_one_works(tmp_path: Path) -> None:
    with asking(tmp_path, attaching.TRAINS + "train()" + attaching.ENDS) as program:
        with subprocess.Popen(
            program.command("-o", "killed"), cwd=tmp_path, stderr=subprocess.PIPE, text=True
        ) as killed:
            assert killed.stderr is not None and "attached" in killed.stderr.readline()
            wait_for_state_of(tmp_path / "killed")
            killed.kill()
        done = program.attach(*QUICK, "-o", "next")
        assert done.returncode == 0 and is_recording(tmp_path / "next"), done.stderr
        repair(tmp_path / "killed")
        assert len(read_recording(tmp_path / "killed").traces) == 1, "the process wrote it for nobody"
        status, output, _ = program.end()
    assert status == 7
    assert attaching.is_as_without(tmp_path, output)


def wait_for_state_of(folder: Path) -> None:
    """Waits until a window has been asked for."""
    for _ in range(600):
        with contextlib.suppress(OSError):
            if (folder / ".run.json").stat().st_size:
                return
        time.sleep(0.05)
    raise AssertionError("no window was asked for")


@pytest.mark.usefixtures("real_name")
def test_a_program_that_ends_in_the_window_keeps_its_status(tmp_path: Path) -> None:
    with (
        asking(tmp_path, attaching.TRAINS + "train()" + attaching.ENDS) as program,
        subprocess.Popen(
            program.command(*QUICK, "-o", "window"), cwd=tmp_path, stderr=subprocess.PIPE, text=True
        ) as attached,
    ):
        wait_for_state_of(tmp_path / "window")
        status, _, _ = program.end()
        _, errors = attached.communicate(timeout=60)
    assert status == 7
    assert attached.returncode == 5 and "the program ended before it had written its trace" in errors, errors
    assert not (tmp_path / "window").exists()


@pytest.mark.usefixtures("real_name")
def test_a_name_that_dynolog_holds_is_refused(tmp_path: Path) -> None:
    with asking(tmp_path, attaching.WAITS) as program, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dynolog:
        dynolog.bind(ADDRESS)
        with pytest.raises(UsageError) as caught:
            connect(program.process.pid)
    assert "dynolog answers there" in caught.value.why and "dyno gputrace" in caught.value.fix


def test_without_the_variable_the_daemon_is_not_tried(tmp_path: Path) -> None:
    with attaching.started(tmp_path, attaching.WAITS) as plain:
        assert not uses_daemon(plain.process.pid)
    with asking(tmp_path, attaching.WAITS) as program:
        assert uses_daemon(program.process.pid)


def test_a_listener_of_ours_comes_before_the_daemon(tmp_path: Path) -> None:
    with asking(tmp_path, attaching.STARTS + attaching.WAITS) as program:
        target = connect(program.process.pid)
        assert not isinstance(target, DaemonProcess)
        target.close()


class Client:
    """A process, which is this one, that asks as Kineto does."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(f"\0bottleneck-test-client-{os.getpid()}\0")
        self.socket.setblocking(False)

    def ask(self, wanted: int = 3, *, kind: bytes = b"req", size: int | None = None, count: int = 1) -> None:
        body = struct.pack("iiqi", wanted, count, 0, os.getpid())
        header = struct.pack("Q32s", len(body) if size is None else size, kind)
        self.socket.sendto(header + body, kineto_daemon.ADDRESS)

    @contextlib.contextmanager
    def asking(self, **message: Any) -> Iterator[None]:
        """Asks again and again meanwhile."""
        is_over = threading.Event()

        def ask() -> None:
            while not is_over.wait(0.02):
                with contextlib.suppress(OSError):  # the answers are not read meanwhile
                    self.ask(**message)

        thread = threading.Thread(target=ask)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def answers(self) -> set[bytes]:
        """The bodies of all answers."""
        bodies = set()
        with contextlib.suppress(BlockingIOError):
            while True:
                data = self.socket.recv(1 << 16)
                size, _ = struct.unpack_from("Q32s", data)
                assert size == len(data) - 40
                bodies.add(data[40:])
        return bodies


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setattr(kineto_daemon, "ADDRESS", f"\0bottleneck-test-{os.getpid()}\0")
    monkeypatch.setattr(kineto_daemon, "_ASKING_S", 0.3)
    one = Client()
    yield one
    one.socket.close()


@contextlib.contextmanager
def daemon_for(process: int) -> Iterator[DaemonProcess]:
    target = DaemonProcess(process)
    try:
        yield target
    finally:
        target.close()


def plan_in(folder: Path, options: RecordOptions | None = None) -> Plan:
    return Plan(str(folder), Program("train.py"), options or RecordOptions())


def test_a_process_that_asks_is_told_once_to_record_a_short_window(client: Client, tmp_path: Path) -> None:
    with daemon_for(os.getpid()) as target:
        with client.asking():
            target.begin(plan_in(tmp_path), 60.0)
        client.ask()
    (text,) = client.answers() - {b""}
    told = dict(line.split("=") for line in text.decode().splitlines())
    assert told["ACTIVITIES_DURATION_MSECS"] == "200"
    assert Path(told["ACTIVITIES_LOG_FILE"]).parent == tmp_path


LIES: dict[str, dict[str, Any]] = {
    "too large": {"size": 1 << 40},
    "too small": {"size": 4},
    "more processes than follow": {"count": 1 << 20},
    "fewer than none": {"count": -4},
    "another type": {"kind": b"data"},
}


def refusal(target: DaemonProcess, plan: Plan) -> UsageError:
    with pytest.raises(UsageError) as caught:
        target.begin(plan, 60.0)
    return caught.value


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_message_that_lies_about_itself_gets_no_answer(client: Client, tmp_path: Path, lie: dict[str, Any]) -> None:
    with daemon_for(os.getpid()) as target:
        for nonsense in (b"", b"\xff" * (1 << 17)):
            client.socket.sendto(nonsense, kineto_daemon.ADDRESS)
        with client.asking(**lie):
            assert "asked for nothing" in refusal(target, plan_in(tmp_path)).why
        assert not client.answers()
        with client.asking():
            target.begin(plan_in(tmp_path), 60.0)


def test_another_process_is_given_nothing_and_named(client: Client, tmp_path: Path) -> None:
    with attaching.started(tmp_path, attaching.WAITS) as program, daemon_for(program.process.pid) as target:
        with client.asking():
            refused = refusal(target, plan_in(tmp_path))
        assert "asked for nothing" in refused.why and refused.fix == f"bottleneck attach {os.getpid()}"
        assert client.answers() == {b""}


def test_a_process_of_another_user_is_given_nothing(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: ours + 1)
    with daemon_for(os.getpid()) as target, client.asking():
        refusal(target, plan_in(tmp_path))
    assert client.answers() == {b""}


def test_a_process_with_a_profiler_of_its_own_is_refused(client: Client, tmp_path: Path) -> None:
    with daemon_for(os.getpid()) as target, client.asking(wanted=1):
        assert refusal(target, plan_in(tmp_path)).why == "a profiler of its own is running"


def test_a_context_that_registers_gets_the_number_of_its_processes(client: Client, tmp_path: Path) -> None:
    with daemon_for(os.getpid()) as target, client.asking(kind=b"ctxt"):
        refusal(target, plan_in(tmp_path))
    assert client.answers() == {struct.pack("i", 1)}


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize(
    ("options", "name", "reason"),
    [
        (RecordOptions(step="module"), "runs", "has no --step"),
        (RecordOptions(warmup=3), "runs", "has no --warmup"),
        (RecordOptions(), "lr=0.1", "no folder of such a name"),
        (RecordOptions(), "a\nb", "no folder of such a name"),
    ],
)
def test_what_kineto_cannot_do_is_refused(tmp_path: Path, options: RecordOptions, name: str, reason: str) -> None:
    with daemon_for(os.getpid()) as target:
        assert reason in refusal(target, plan_in(tmp_path / name, options)).why


def warnings_of(target: DaemonProcess, folder: Path, seconds: float) -> tuple[str, ...]:
    """Has the client's window waited for, and gives what the notes say."""
    target.begin(plan_in(folder), seconds)
    assert target.wait(seconds)
    return read_notes(RankFiles(folder, 0)).warnings


def test_a_trace_that_never_comes_is_told(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto_daemon, "_WRITING_S", 0.1)
    monkeypatch.setattr(kineto_daemon, "_WARMUP_S", 0)
    with daemon_for(os.getpid()) as target, client.asking():
        assert "wrote none that is seen here" in warnings_of(target, tmp_path, 0.1)[0]


TRACE = {
    "traceEvents": [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 10 * number, "dur": 5}
        for number in range(3)
    ]
}


def test_a_trace_that_is_too_large_is_removed(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = tmp_path / ".fresh.kineto-200_1.json"
    trace.write_text(json.dumps(TRACE))
    monkeypatch.setattr(kineto_daemon, "_MOST_BYTES", trace.stat().st_size - 1)
    with daemon_for(os.getpid()) as target, client.asking():
        assert "its trace of 0.2 s has" in warnings_of(target, tmp_path, 0.2)[0]
    assert not trace.exists() and not RankFiles(tmp_path, 0).partial.exists()


def test_the_trace_is_kept_and_the_notes_tell_what_kineto_does_not(client: Client, tmp_path: Path) -> None:
    trace = tmp_path / ".fresh.kineto-200_1.json"
    trace.write_text(json.dumps(TRACE))
    with daemon_for(os.getpid()) as target, client.asking():
        warnings = warnings_of(target, tmp_path, 0.2)
    assert "no step was found of 5 wanted" in warnings[0] and "none was timed without it" in warnings[1]
    assert json.loads(gzip.decompress(RankFiles(tmp_path, 0).partial.read_bytes())) == TRACE
    assert not trace.exists()


def test_a_window_in_which_nothing_ran_is_told(client: Client, tmp_path: Path) -> None:
    (tmp_path / ".fresh.kineto-200_1.json").write_text('{"traceEvents": []}')
    with daemon_for(os.getpid()) as target, client.asking():
        assert "called no op of torch in 0.2 s" in warnings_of(target, tmp_path, 0.2)[0]


def test_the_trace_of_a_killed_attachment_is_taken_by_a_repair(tmp_path: Path) -> None:
    for number, name in enumerate((".fresh.kineto-200_1.json", ".fresh.kineto-1600_1.json")):
        (tmp_path / name).write_text(json.dumps({"traceEvents": TRACE["traceEvents"][: 2 + number]}))
    (tmp_path / ".fresh.kineto-300_1.json").symlink_to(tmp_path / ".fresh.kineto-200_1.json")
    state = RunState(Plan(str(tmp_path), Program("train.py", form="script"), RecordOptions()), {}, 0.0, os.getpid())
    (tmp_path / CLAIM_FILE).write_text(json.dumps(asdict(state)))
    waited: list[float] = []
    repair(tmp_path, waited.append)
    (trace,) = read_recording(tmp_path).traces
    assert json.loads(gzip.decompress((tmp_path / trace.file).read_bytes())) == TRACE and not waited
    assert not list(tmp_path.glob(".fresh*"))


def test_a_process_that_was_asked_for_a_trace_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto_daemon, "uses_daemon", lambda process: process == 42)
    state = RunState(Plan(str(tmp_path), Program("train.py", form="script"), RecordOptions()), {}, 0.0, 42)
    (tmp_path / CLAIM_FILE).write_text(json.dumps(asdict(state)))
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        (tmp_path / ".fresh.kineto-200_42.json").write_text(json.dumps(TRACE))

    repair(tmp_path, wait)
    assert len(waited) == 1 and len(read_recording(tmp_path).traces) == 1


def recorded(seconds: float, events: int, steps: int) -> kineto_daemon._WrittenTrace:
    return kineto_daemon._WrittenTrace(
        kineto_daemon._AskedWindow(Path("trace.json"), seconds), Path("trace.json"), events, steps
    )


@pytest.mark.parametrize(
    ("events", "steps", "most_events", "most_s", "length_s"),
    [
        (5_000, 7, EVENT_BUDGET, 60.0, None),  # two of seven steps may be cut
        (5_000, 2, EVENT_BUDGET, 60.0, 0.875),  # 7 steps, and a quarter more, since steps vary
        (5_000, 0, EVENT_BUDGET, 60.0, 1.6),
        (0, 0, EVENT_BUDGET, 60.0, 1.6),
        (5_000, 0, EVENT_BUDGET, 0.5, 0.5),
        (5_000, 2, 10_000, 60.0, 0.32),  # so long that it has 8,000 of them
        (150_000, 2, EVENT_BUDGET, 60.0, None),  # the longer window would have more
        (500_000, 2, EVENT_BUDGET, 60.0, None),
    ],
)
def test_a_window_is_lengthened_for_its_steps_within_the_bounds(
    events: int, steps: int, most_events: int, most_s: float, length_s: float | None
) -> None:
    length = longer_window_s(recorded(0.2, events, steps), 5, most_events, most_s)
    assert length == (None if length_s is None else pytest.approx(length_s))


COMMANDS = {
    "python -u -X dev train.py --lr 1": (["train.py", "--lr", "1"], False),
    "python -m package.train small": (["package.train", "small"], True),
    "python": ([""], False),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_program_is_that_of_the_command_line(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_bytes", lambda _: command.replace(" ", "\0").encode() + b"\0")
    program, (words, is_module) = kineto_daemon._program(1), COMMANDS[command]
    assert ([program.target, *program.arguments], program.module) == (words, is_module)
