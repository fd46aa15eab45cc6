"""Records a window of the process that `bottleneck attach` has asked, in that process.

The socket to the asking process says when it has ended; then the recording ends as well. Hooks are set and removed in
the main thread, and the profiler starts at the end of a step: never in the middle of an op or a backward pass.
"""

import atexit
import contextlib
import json
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from bottleneck import __version__
from bottleneck.errors import UsageError
from bottleneck.harness import marks
from bottleneck.harness.block import TURN, BlockMeasurement
from bottleneck.harness.main_thread import make_unwakeable, make_wakeable
from bottleneck.harness.messages import Plan
from bottleneck.harness.session import setting_of_window
from bottleneck.harness.torch_private import is_profiling
from bottleneck.harness.torch_state import is_pytorch
from bottleneck.schema.recording import kept_environment

MOST_BYTES = 1 << 18
# How long the other side may take to say what it wants, how often its end is looked for, how long the next end of a
# step is waited for, and how long the main thread may take to end the measurement, which writes the trace.
_ASKING_S, _LOOK_S, _STEP_S, _ENDING_S = 15.0, 0.1, 10.0, 60.0
_RETRY_S = 0.01


class InMainThread(Protocol):
    """Has the main thread do some work."""

    def __call__(self, work: Callable[[], None], seconds: float, /) -> bool:
        """Tells if it did so in time."""


class _WindowRefused(Exception):  # noqa: N818 - an answer
    """The reason why the window cannot be recorded."""


def send(connection: socket.socket, **message: Any) -> None:
    """Sends one message; OSError where the other side has gone."""
    connection.send(json.dumps(message).encode(), socket.MSG_NOSIGNAL)


def receive(connection: socket.socket, seconds: float) -> Mapping[str, Any]:
    """Gives the next message.

    TimeoutError where none comes in time, EOFError where the other side has gone.
    """
    connection.settimeout(seconds)
    try:
        data = connection.recv(MOST_BYTES)
    except ConnectionResetError:
        data = b""
    if not data:
        raise EOFError
    message = json.loads(data)
    return message if isinstance(message, dict) else {}


def peer(connection: socket.socket) -> tuple[int, int]:
    """Gives process and user of the other side, as the system knows them."""
    size = struct.calcsize("3i")
    process, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return process, user


def serve(connection: socket.socket, in_main_thread: InMainThread) -> None:
    """Answers one attachment, to its end."""
    try:
        if peer(connection)[1] != os.geteuid():
            raise _WindowRefused("it belongs to another user")
        _refuse_if_measured()
        send(
            connection,
            version=__version__,
            arguments=[str(word) for word in sys.argv],
            environment=kept_environment(os.environ),
        )
        asked = receive(connection, _ASKING_S)
        _record(_Request(Plan.from_json(asked["plan"]), float(asked["seconds"])), connection, in_main_thread)
    except _WindowRefused as refused:
        send(connection, refused=str(refused))
    except (EOFError, TimeoutError):  # the other side has gone, or says nothing
        return


@dataclass(frozen=True)
class _Request:
    """A window that is asked for, and the most seconds that it may take."""

    plan: Plan
    seconds: float


def _refuse_if_measured() -> None:
    """Raises _WindowRefused where something measures this process already."""
    if marks.supervisor is not None:
        raise _WindowRefused("`bottleneck run` or `bottleneck watch` measures it already")
    if TURN.is_taken:
        raise _WindowRefused("it is being recorded already, by another `bottleneck attach` or by bottleneck.record()")
    if marks.is_listened_to():
        raise _WindowRefused("bottleneck.watch() follows its steps already")
    torch = sys.modules.get("torch")
    if torch is not None and is_pytorch(torch) and is_profiling():
        raise _WindowRefused("a profiler of its own is running")


def _is_safe_now() -> bool:
    """True if hooks may be set now.

    Not while torch is being imported, nor inside an optimizer's step: that may be iterating over its hooks.
    """
    torch = sys.modules.get("torch")
    if getattr(getattr(torch, "__spec__", None), "_initializing", False):
        return False
    for frame in sys._current_frames().values():
        at: Any = frame
        while at is not None:
            if at.f_code.co_name == "wrapper" and at.f_code.co_filename.endswith(_OPTIMIZER_FILE):
                return False
            at = at.f_back
    return True


_OPTIMIZER_FILE = os.path.join("torch", "optim", "optimizer.py")  # noqa: PTH118 - compared with a frame's


def _record(request: _Request, connection: socket.socket, in_main_thread: InMainThread) -> None:
    window = _AttachedWindow(request.plan, connection)
    deadline_s = time.monotonic() + request.seconds
    while not window.has_begun:
        if not in_main_thread(window.begin_if_safe, max(deadline_s - time.monotonic(), 0.0)):
            raise _WindowRefused("its main thread did not come back to Python: it may be in one long call")
        if window.refusal is not None:
            raise _WindowRefused(window.refusal)
        if not window.has_begun:
            if time.monotonic() > deadline_s or _is_told(connection, 0.0):
                raise _WindowRefused("it was in a step of its optimizer, or importing torch, all the time")
            time.sleep(_RETRY_S)
    send(connection, began=True)
    while not (window.is_over or time.monotonic() > deadline_s or _is_told(connection, _LOOK_S)):
        pass
    window.end_soon()
    patience_s = time.monotonic() + _STEP_S
    while not window.is_over and time.monotonic() < patience_s:
        time.sleep(_LOOK_S)
    while not in_main_thread(window.finish, _ENDING_S):  # it may be in one long call
        time.sleep(_LOOK_S)


def _is_told(connection: socket.socket, seconds: float) -> bool:
    """True if the other side has had enough, or has gone.

    Waits so many seconds for it.
    """
    poll = select.poll()  # select.select takes no descriptors from 1,024 on
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(seconds * 1e3))


class _AttachedWindow:
    """One recorded window of this process."""

    def __init__(self, plan: Plan, connection: socket.socket) -> None:
        self._plan, self._connection = plan, connection
        self._measurement: BlockMeasurement | None = None
        self.has_begun = False
        self.refusal: str | None = None

    @property
    def is_over(self) -> bool:
        """True once nothing more will be measured."""
        return self._measurement is None or self._measurement.is_measured

    def begin_if_safe(self) -> None:
        """Sets the hooks, if this is a moment for it; in the main thread."""
        if not _is_safe_now():
            return
        try:
            _refuse_if_measured()
            TURN.take(self._leave)
            try:
                self._measurement = BlockMeasurement(self._plan, setting_of_window())
                make_wakeable()
                self._measurement.start()
            except BaseException:
                TURN.give_back()
                raise
            atexit.register(self.finish)
            self.has_begun = True
        except _WindowRefused as refused:
            self.refusal = str(refused)
        except UsageError as error:
            self.refusal = error.what
        except Exception as error:  # ours, in the middle of the program
            self.refusal = f"the measurement failed: {type(error).__name__}: {error}"

    def end_soon(self) -> None:
        """Has the measurement end with the step that runs."""
        if self._measurement is not None:
            self._measurement.end_soon()

    def finish(self) -> None:
        """Ends the window and keeps what was measured; in the main thread, once."""
        measurement, self._measurement = self._measurement, None
        if measurement is None:
            return
        atexit.unregister(self.finish)
        try:
            measurement.finish()
        finally:
            make_unwakeable()
            TURN.give_back()
            with contextlib.suppress(OSError):  # nobody waits for it any more
                send(self._connection, ended=True)

    def _leave(self) -> None:
        """Leaves a fork alone: it is another process."""
        measurement, self._measurement = self._measurement, None
        atexit.unregister(self.finish)
        self._connection.close()
        if measurement is not None:
            measurement.leave()
