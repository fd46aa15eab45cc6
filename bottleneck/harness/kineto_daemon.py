"""Records a window of a process that asks Kineto's on-demand daemon what to record.

With KINETO_USE_DAEMON in its environment torch asks every five seconds, as a datagram to a socket without a file. We
take the name of that socket for as long as a window takes, and answer as `dynolog` would (dynolog/src/ipcfabric and
dynolog/src/tracing/IPCMonitor.cpp, libkineto/src/IpcFabricConfigClient.cpp and Config.cpp). The process then writes a
trace of its own.
"""

import gzip
import json
import os
import re
import select
import shutil
import socket
import struct
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bottleneck.errors import TraceError, UsageError
from bottleneck.harness.attachable import VARIABLE as ATTACH
from bottleneck.harness.folder import RankFiles
from bottleneck.harness.messages import Notes, Plan, Program
from bottleneck.harness.running_process import refusal
from bottleneck.schema.recording import kept_environment
from bottleneck.system.files import write_whole
from bottleneck.units import counted

VARIABLE, _FOLDER_VARIABLE = "KINETO_USE_DAEMON", "KINETO_IPC_SOCKET_DIR"
# The name has a NUL at both ends.
ADDRESS = "\0dynolog\0"
# Each message begins with the size of what follows and its type. A request then has what is asked for, the number of
# processes in its list and the job; the list is the process and its ancestors as the process itself numbers them.
_HEADER, _REQUEST, _PROCESS = struct.Struct("Q32s"), struct.Struct("iiq"), struct.Struct("i")
# Kineto reads a line only with one `=` and up to `#`, and puts the number of the process before the first `.json`.
_UNFIT = ("=", "#", ".json")
_REGISTERS, _ASKS = b"ctxt", b"req"
_WANTS_TRACE = 2  # the bit is not set while a profiler runs
_MOST_MESSAGE_BYTES = 1 << 16
_CREDENTIALS = struct.Struct("3i")

_ASKING_S = 15.0
# A request that came before ours, of an `attach` that was killed, is worked on first: ours is then made once more.
_AGAIN_S = 20.0
# How long CUPTI warms up, how long the process may take to write its trace, and how often a look is taken.
_WARMUP_S, _WRITING_S, _LOOK_S = 1, 60.0, 0.1
# The first window is short enough for any program; what it holds tells how long another may be. A step that is cut at
# either end does not count, and steps vary.
_FIRST_S, _CUT_STEPS, _SPARE = 0.2, 2, 1.25
# A window is at most so many times as long as the one before, fills so much of the events that it may hold, and is
# worth another five seconds where it is so much longer.
_MOST_TIMES, _FITTING_SHARE, _WORTHWHILE = 8.0, 0.8, 1.2
# Far more than the events of a first window take.
_MOST_BYTES = 1e9
_GZIP_LEVEL = 5
# The name of a trace: the milliseconds of its window, and the number that Kineto puts behind them.
_WRITTEN = re.compile(r"\.fresh\.kineto-([0-9]{1,9})_[0-9]{1,20}\.json")

_TRY = "try again; if it stays so, record a block: bottleneck.record()"
_UNAWAITED = "Kineto ends no window early: the program writes its trace without us"
_MISSING = (
    "recorded by the profiler of torch on its own: the steps take what it costs, none was timed without it, and "
    "modules, memory and versions are unknown"
)


def uses_daemon(process: int) -> bool:
    """True if the process of this user was started with Kineto's on-demand daemon."""
    return bool(_environment(process).get(VARIABLE))


def _environment(process: int) -> Mapping[str, str]:
    """Gives the environment that the process was started with.

    It is empty where it may not be read.
    """
    try:
        entries = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return dict(os.fsdecode(entry).split("=", 1) for entry in entries if b"=" in entry)


_WITH_VALUE = ("-X", "-W")


def _program(process: int) -> Program:
    """Gives the program of a process from its command line."""
    words = [os.fsdecode(word) for word in Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")[1:-1]]
    while words and words[0].startswith("-") and words[0] not in ("-m", "-c"):
        words = words[2 if words[0] in _WITH_VALUE else 1 :]
    is_module = words[:1] == ["-m"] and len(words) > 1
    target, *arguments = words[1:] if is_module else words or [""]
    return Program(target, tuple(arguments), "script", seed=None, module=is_module)


@dataclass(frozen=True)
class _DaemonMessage:
    """Message to the daemon.

    Process and user are those of the sender as the system knows them.
    """

    kind: bytes
    wanted: int
    process: int
    user: int
    address: Any


class _Daemon:
    """Answers one process at the address of the daemon.

    A thread answers: Kineto waits for 50 ms, and would take a later answer for that to its next request.
    """

    def __init__(self, process: int) -> None:
        self._process = process
        self._configuration, self._most_times = "", 0
        self.given_s: tuple[float, ...] = ()
        self.others: frozenset[int] = frozenset()
        self.is_profiled = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self._socket.setblocking(False)
            self._socket.bind(ADDRESS)
        except OSError:
            self._socket.close()
            raise refusal(
                process,
                "dynolog answers there, or another `bottleneck attach`",
                f"dyno gputrace --pids {process}, and bottleneck report on its trace",
            ) from None
        self._end = os.eventfd(0)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Leaves the name to others."""
        os.eventfd_write(self._end, 1)
        self._thread.join()
        os.close(self._end)
        self._socket.close()

    def offer(self, configuration: str) -> None:
        """Has the process be given the configuration, once.

        ``given_s`` then has the time of it.
        """
        self.given_s, self._most_times, self._configuration = (), 1, configuration

    def offer_again(self) -> None:
        """Has it be given the same once more."""
        self._most_times = 2

    def _serve(self) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._end, select.POLLIN)
        while self._end not in {descriptor for descriptor, _ in poll.poll()}:
            request = self._receive()
            if request is not None:
                self._answer(request)

    def _answer(self, request: _DaemonMessage) -> None:
        if request.kind == _REGISTERS:
            self._send(request, _PROCESS.pack(1))
            return
        is_ours = (request.process, request.user) == (self._process, os.geteuid())
        takes = is_ours and bool(request.wanted & _WANTS_TRACE)
        if is_ours:
            self.is_profiled = not takes
        else:
            self.others |= {request.process}
        gives = takes and len(self.given_s) < self._most_times
        if self._send(request, os.fsencode(self._configuration) if gives else b"") and gives:
            self.given_s = (*self.given_s, time.monotonic())

    def _receive(self) -> _DaemonMessage | None:
        """Gives the next message; null for one that is none."""
        try:
            data, ancillary, flags, address = self._socket.recvmsg(
                _MOST_MESSAGE_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size)
            )
        except OSError:
            return None
        return None if flags & socket.MSG_TRUNC else _read(data, ancillary, address)

    def _send(self, request: _DaemonMessage, body: bytes) -> bool:
        try:
            self._socket.sendto(_HEADER.pack(len(body), request.kind) + body, request.address)
        except OSError:  # it has ended, or does not read
            return False
        return True


def _read(data: bytes, ancillary: list[tuple[int, int, bytes]], address: Any) -> _DaemonMessage | None:
    """Reads a message.

    Null for one that is none, or that states a wrong size.
    """
    senders = [
        _CREDENTIALS.unpack(content)
        for level, kind, content in ancillary
        if (level, kind, len(content)) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS, _CREDENTIALS.size)
    ]
    if not senders or not address or len(data) < _HEADER.size:
        return None
    size, kind = _HEADER.unpack_from(data)
    kind, body, (process, user, _) = kind.rstrip(b"\0"), data[_HEADER.size :], senders[0]
    if size != len(body) or kind not in (_REGISTERS, _ASKS):
        return None
    wanted = 0
    if kind == _ASKS:
        if size < _REQUEST.size:
            return None
        wanted, count, _ = _REQUEST.unpack_from(body)
        if size != _REQUEST.size + count * _PROCESS.size:
            return None
    return _DaemonMessage(kind, wanted, process, user, address)


@dataclass(frozen=True)
class _AskedWindow:
    """Window that is asked for: the file of its trace, and its length."""

    file: Path
    seconds: float

    @property
    def configuration(self) -> str:
        """The request in Kineto's words."""
        return (
            f"ACTIVITIES_LOG_FILE={self.file}\n"
            "PROFILE_START_TIME=0\n"
            f"ACTIVITIES_WARMUP_PERIOD_SECS={_WARMUP_S}\n"
            f"ACTIVITIES_DURATION_MSECS={round(1e3 * self.seconds)}\n"
            "PROFILE_REPORT_INPUT_SHAPES=true\n"
            "PROFILE_WITH_STACK=true\n"
        )

    def written(self) -> Path | None:
        """Gives the whole trace, once it is there.

        It has the number of the process in its name.
        """
        return next(iter(self.file.parent.glob(f"{self.file.stem}_*{self.file.suffix}")), None)


@dataclass(frozen=True)
class _WrittenTrace:
    """Trace that the process has written, with its events, whole steps and devices."""

    window: _AskedWindow
    file: Path
    events: int = 0
    steps: int = 0
    devices: tuple[Mapping[str, str | int | float | None], ...] = ()


class DaemonProcess:
    """A process that asks the daemon."""

    def __init__(self, process: int) -> None:
        environment = _environment(process)
        if environment.get(_FOLDER_VARIABLE):
            raise refusal(
                process,
                f"{_FOLDER_VARIABLE} in its environment has it ask Kineto's daemon through a file",
                "start it without that variable",
            )
        self._process = process
        self.program = _program(process)
        self.environment: Mapping[str, str] = kept_environment(environment)
        self._daemon = _Daemon(process)
        self._ended = os.pidfd_open(process)
        self._plan: Plan | None = None
        self._window: _AskedWindow | None = None
        self._best: _WrittenTrace | None = None

    def begin(self, plan: Plan, seconds: float) -> None:
        """Has it record a first, short window.

        UsageError where it does not ask for one in time.
        """
        _refuse_options(self._process, plan)
        self._plan = plan
        self._ask_for(min(_FIRST_S, seconds))
        deadline_s = time.monotonic() + _ASKING_S
        while not self._daemon.given_s:
            if time.monotonic() > deadline_s or self._has_ended(_LOOK_S):
                raise self._never_asked()

    def wait(self, seconds: float) -> bool:
        """Waits for the trace of a window, and keeps it.

        A longer one follows as long as it holds too few steps. It lasts ``seconds`` at most; 0 waits for none. False
        where the process has ended.
        """
        is_alive, lack = True, "" if seconds else _UNAWAITED
        try:
            while seconds and is_alive and self._window is not None:
                file = self._await_trace(self._window)
                is_alive = file is not None
                if file is not None:
                    self._take(_examined(self._window, file), seconds)
        except UsageError as error:
            lack = error.why
        self._keep(lack if is_alive else "the program ended before it had written its trace")
        return is_alive

    def stop(self) -> None:
        """Does nothing: the process ends its window by itself."""

    def close(self) -> None:
        """Leaves the process alone, which writes the trace that it was asked for."""
        self._daemon.close()
        os.close(self._ended)

    def _ask_for(self, seconds: float) -> None:
        assert self._plan is not None, "the window has begun"
        self._window = _AskedWindow(Path(self._plan.folder, f".fresh.kineto-{round(1e3 * seconds)}.json"), seconds)
        self._daemon.offer(self._window.configuration)

    def _await_trace(self, window: _AskedWindow) -> Path | None:
        """Gives the trace of the window.

        Null where the process has ended before. UsageError where none comes in time.
        """
        deadline_s = time.monotonic() + _ASKING_S + _WARMUP_S + window.seconds + _WRITING_S
        while (file := window.written()) is None:
            now_s = time.monotonic()
            if now_s > deadline_s:
                raise refusal(self._process, "it was asked for a trace and wrote none that is seen here", _TRY)
            if any(now_s - given_s > _AGAIN_S for given_s in self._daemon.given_s):
                self._daemon.offer_again()
            if self._has_ended(_LOOK_S):
                return None
        size_bytes = file.stat().st_size
        if size_bytes > _MOST_BYTES:
            file.unlink()
            raise refusal(
                self._process,
                f"its trace of {window.seconds:.3g} s has {size_bytes / 1e9:.2g} GB",
                "attach for a shorter time: --seconds 0.1",
            )
        return file

    def _has_ended(self, seconds: float) -> bool:
        """True if the process has ended; waits so many seconds for it."""
        poll = select.poll()
        poll.register(self._ended, select.POLLIN)
        return bool(poll.poll(seconds * 1e3))

    def _never_asked(self) -> UsageError:
        if self._daemon.is_profiled:
            return refusal(self._process, "a profiler of its own is running", "wait for its end, then attach again")
        others = sorted(self._daemon.others)
        return refusal(
            self._process,
            f"it was started with {VARIABLE} and asked for nothing in {_ASKING_S:g} s: it has not imported torch, is "
            "a fork, or its torch has no Kineto",
            " or ".join(f"bottleneck attach {other}" for other in others[:3]) if others else _TRY,
        )

    def _take(self, recorded: _WrittenTrace, most_s: float) -> None:
        """Keeps the better of two traces, and asks for another window."""
        assert self._plan is not None, "the window has begun"
        before = self._best
        if before is None or recorded.steps >= before.steps:
            self._best = recorded
        if before is not None:
            (recorded if self._best is before else before).file.unlink(missing_ok=True)
        seconds = longer_window_s(recorded, self._plan.options.wanted_steps, self._plan.options.most_events, most_s)
        self._window = None
        if seconds is not None:
            self._ask_for(seconds)

    def _keep(self, lack: str) -> None:
        """Leaves the best trace as that of the recording.

        ``lack`` is why there is none.
        """
        assert self._plan is not None, "the window has begun"
        _keep_trace(self._plan, self._best, lack)


def _keep_trace(plan: Plan, best: _WrittenTrace | None, lack: str) -> None:
    """Makes a trace that of the recording, and notes on it.

    ``lack`` is why there is none.
    """
    files, notes = RankFiles(Path(plan.folder), 0), Notes(is_measured=True, warnings=(lack,))
    if best is not None and not best.events:
        notes = replace(notes, warnings=(f"the program called no op of torch in {best.window.seconds:g} s",))
    elif best is not None:
        with best.file.open("rb") as plain, gzip.open(files.fresh, "wb", _GZIP_LEVEL) as packed:
            shutil.copyfileobj(plain, packed)
        files.fresh.replace(files.partial)
        notes = replace(notes, warnings=_warnings(best, plan), device_facts=best.devices)
    write_whole(files.notes, json.dumps(asdict(notes)))
    if best is not None:
        best.file.unlink(missing_ok=True)


def left_traces(folder: Path) -> list[Path]:
    """Lists the traces that a process has written for an `attach` which was killed."""
    files = (path for path in folder.glob(".fresh.kineto-*.json") if _WRITTEN.fullmatch(path.name))
    return sorted(path for path in files if path.is_file() and not path.is_symlink())


def keep_left_trace(plan: Plan) -> None:
    """Makes the best of those traces that of the recording, if there is any."""
    written = []
    for file in left_traces(Path(plan.folder)):
        match = _WRITTEN.fullmatch(file.name)
        if match is not None and file.stat().st_size <= _MOST_BYTES:
            written.append(_examined(_AskedWindow(file, int(match[1]) / 1e3), file))
    if written:
        _keep_trace(plan, max(written, key=lambda trace: (trace.steps, trace.events)), "")


def _refuse_options(process: int, plan: Plan) -> None:
    """Raises UsageError for what Kineto cannot do."""
    given = {"--warmup": plan.options.warmup is not None, "--step": plan.options.step is not None}
    for option, is_given in given.items():
        if is_given:
            raise refusal(
                process,
                f"it is asked through Kineto's daemon, which has no {option}",
                f"leave it out, or start the program with {ATTACH}=1",
            )
    if any(part in plan.folder for part in _UNFIT) or not plan.folder.isprintable():
        raise refusal(process, "Kineto writes to no folder of such a name", "name another with -o DIR")


def _examined(window: _AskedWindow, file: Path) -> _WrittenTrace:
    """Counts the events and whole steps of a trace."""
    from bottleneck.trace.read import read_trace
    from bottleneck.trace.steps import find_steps

    try:
        trace = read_trace(file)
    except TraceError:  # nothing ran meanwhile
        return _WrittenTrace(window, file)
    steps = find_steps(trace)
    count = 0 if steps.source == "whole" else len(steps.steps) + len(steps.set_aside)
    devices = tuple(
        {
            "index": device.index,
            "name": device.name,
            "total_memory": device.memory_bytes,
            "multi_processor_count": device.sm_count,
        }
        for device in trace.devices
    )
    return _WrittenTrace(window, file, len(trace.events), count, devices)


def longer_window_s(recorded: _WrittenTrace, wanted: int, most_events: int, most_s: float) -> float | None:
    """Gives the length of another window that would hold enough steps.

    Null where this one will do: it holds them, or so many events or seconds allow of none that is worth it.
    """
    length_s, needed = recorded.window.seconds, wanted + _CUT_STEPS
    if recorded.steps >= needed:
        return None
    times = min(_MOST_TIMES, _SPARE * needed / max(recorded.steps, 1))
    times = min(times, _FITTING_SHARE * most_events / max(recorded.events, 1), most_s / length_s)
    return times * length_s if times >= _WORTHWHILE else None


def _warnings(recorded: _WrittenTrace, plan: Plan) -> tuple[str, ...]:
    wanted, most_events = plan.options.wanted_steps, plan.options.most_events
    length = f"Kineto recorded {recorded.window.seconds:.3g} s with {counted(recorded.events, 'event')}"
    steps = f"{counted(recorded.steps, 'whole step')}" if recorded.steps else "no step was found"
    fewer = (f"{length}: {steps} of {wanted} wanted",) if recorded.steps < wanted else ()
    many = (f"{length}, and the budget is {most_events}",) if recorded.events > most_events else ()
    return (*fewer, *many, _MISSING)
