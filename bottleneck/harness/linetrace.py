"""Which line of the program ran when, from Python itself: for counting, where time does not matter and lines do.

The profiler tells the lines of calls only: `x + 1` is none, and its op would belong to the first line of the function.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from bottleneck.harness.lines import Line, is_program

_OURS = str(Path(__file__).parents[1]) + os.sep
# The profiler's clock and ours may be apart by less than what lies between a line's beginning and its first op.
_LEAD_NS = 500

Tracer = Callable[[FrameType, str, Any], Any]


class LineTracer:
    """Notes the stretches that one thread spends in each line of the program's own files while it is on."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self._open: dict[FrameType, tuple[int, int]] = {}
        self._known: dict[str, bool] = {}
        self._is_on = False

    def start(self) -> None:
        """Begins, in this thread, with the functions that are under way; not where a debugger watches."""
        if sys.gettrace() is not None or not _may_trace():
            return
        self._is_on = True
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if self._is_own(frame):
                frame.f_trace = self._in_frame
                self._begin(frame)
            frame = frame.f_back
        sys.settrace(self._call)

    def stop(self) -> None:
        """Ends all stretches."""
        if not self._is_on:
            return
        self._is_on = False
        if sys.gettrace() == self._call:
            sys.settrace(None)
        for frame in list(self._open):
            frame.f_trace = None
            self._end(frame)

    def _call(self, frame: FrameType, _event: str, _argument: Any) -> Tracer | None:
        return self._in_frame if self._is_own(frame) else None

    def _in_frame(self, frame: FrameType, event: str, _argument: Any) -> Tracer:
        if event == "line":
            self._end(frame)
            self._begin(frame)
        elif event == "return":
            self._end(frame)
        return self._in_frame

    def _begin(self, frame: FrameType) -> None:
        if self._is_on:
            self._open[frame] = (time.time_ns() - _LEAD_NS, frame.f_lineno)

    def _end(self, frame: FrameType) -> None:
        started = self._open.pop(frame, None)
        if started is not None:
            code = frame.f_code
            label = f"{code.co_filename}({started[1]}): {code.co_name}"
            until_ns = time.time_ns() - _LEAD_NS
            self.lines.append(Line(label, started[0], until_ns, os.getpid(), threading.get_native_id()))

    def _is_own(self, frame: FrameType) -> bool:
        name = frame.f_code.co_filename
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = not name.startswith((_OURS, _torch_folder())) and is_program(name)
        return known


def _torch_folder() -> str:
    return str(Path(getattr(sys.modules.get("torch"), "__file__", None) or _OURS).parent) + os.sep


def _may_trace(version: tuple[int, ...] = sys.version_info[:2]) -> bool:
    """Whether tracing leaves alone what runs compiled: seen with Python 3.11, whose successors trace in another way."""
    compiler = sys.modules.get("torch._dynamo.convert_frame")
    return version <= (3, 11) or not getattr(compiler, "FRAME_COMPILE_COUNTER", None)
