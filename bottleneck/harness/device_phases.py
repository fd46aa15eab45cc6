"""Times the phases of some steps on the device, without waiting for it.

An event costs some microseconds to record, so that one step in sixteen has them. They are read when the device has
passed them, at the end of a later step: the program is never made to wait. Copies of batches are told apart where the
program makes them by `Tensor.to`, `Tensor.cuda` or `Tensor.copy_` in such a step.
"""

import collections
import functools
import statistics
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bottleneck.schema.watch_log import PHASES, DevicePhases

# One step in so many is timed; so many wait for the device at most, and so many are kept, the last ones.
_EVERY, _MOST_WAITING, _MOST_STEPS = 16, 4, 512
# More copies in one step are those of a program that moves its weights: a batch has a few tensors.
_MOST_COPIES, _MOST_MARKS = 16, 64
_COPY_METHODS = ("to", "cuda", "copy_")


@dataclass
class _StepEvents:
    """The events of one step.

    ``marks`` begin phases, ``end`` is that at its end, and there are two for each of the ``copies``.
    """

    marks: list[tuple[int, Any]]
    copies: list[tuple[Any, Any]] = field(default_factory=list)
    end: Any = None

    @property
    def is_passed(self) -> bool:
        """True once the device has passed all of them; asking does not wait."""
        events = [self.end, *(event for _, event in self.marks), *(event for pair in self.copies for event in pair)]
        return all(event.query() for event in events)

    def times_us(self) -> tuple[tuple[float, ...], float]:
        """Gives the time of each phase, by PHASES, and of the copies."""
        phases_us = [0.0] * len(PHASES)
        ends = [*(event for _, event in self.marks[1:]), self.end]
        for (phase, began), ended in zip(self.marks, ends, strict=True):
            phases_us[phase] += 1e3 * began.elapsed_time(ended)
        return tuple(phases_us), sum(1e3 * began.elapsed_time(ended) for began, ended in self.copies)


class PhaseEvents:
    """Records events in some steps of a program that uses a GPU.

    All calls come from the thread that steps. What fails ends the timing on the device, and nothing else: ``is_off`` is
    true then.
    """

    def __init__(self, cuda: Any, tensor_kind: Any, every: int = _EVERY) -> None:
        self._cuda, self._tensor_kind, self._every = cuda, tensor_kind, every
        self._until_next = every
        self._current: _StepEvents | None = None
        self._waiting: collections.deque[_StepEvents] = collections.deque()
        self._times: collections.deque[tuple[tuple[float, ...], float]] = collections.deque(maxlen=_MOST_STEPS)
        self._originals: dict[str, Any] = {}
        self._thread = 0
        self.is_off = False

    def begin_phase(self, phase: int) -> None:
        """Tells that a phase begins, by its place in PHASES, in any step."""
        if self._current is not None:
            self._guarded(functools.partial(self._mark, self._current, phase))

    def begin_step(self, phase: int) -> None:
        """Tells that a step ended, and that the next begins in this phase."""
        self._until_next -= 1
        if self._current is not None or self._waiting or self._until_next <= 0:
            self._guarded(functools.partial(self._begin_step, phase))

    def drop(self) -> None:
        """Leaves out the step that runs."""
        self._current = None
        self._leave_copies()

    def result(self) -> DevicePhases | None:
        """Gives the median of each phase over the timed steps.

        Null where there is none.
        """
        self.drop()
        self._guarded(self._read)
        if not self._times:
            return None
        phases = zip(*(phases_us for phases_us, _ in self._times), strict=True)
        copies_us = statistics.median(copies_us for _, copies_us in self._times)
        return DevicePhases(len(self._times), tuple(statistics.median(phase) for phase in phases), copies_us)

    def _guarded(self, work: Callable[[], object]) -> None:
        if self.is_off:
            return
        try:
            work()
        except Exception:  # of the driver's, or another kind of event than was asked for
            self.is_off = True
            self._waiting.clear()
            self.drop()

    def _begin_step(self, phase: int) -> None:
        step = self._current
        self.drop()
        if step is not None:
            step.end = self._event()
            if step.end is not None:
                self._waiting.append(step)
        self._read()
        if self._until_next <= 0 and len(self._waiting) < _MOST_WAITING:
            event = self._event()
            self._until_next = self._every
            if event is not None:
                self._current = _StepEvents([(phase, event)])
                self._watch_copies()

    def _mark(self, step: _StepEvents, phase: int) -> None:
        event = self._event()
        if event is None or len(step.marks) >= _MOST_MARKS:
            self.drop()
            return
        step.marks.append((phase, event))
        if PHASES[phase] in {"backward", "optimizer"}:
            self._leave_copies()

    def _event(self) -> Any:
        """Records an event on the stream in use.

        Null while a graph is captured, of which it would be part.
        """
        if self._cuda.is_current_stream_capturing():
            return None
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def _read(self) -> None:
        while self._waiting and self._waiting[0].is_passed:
            self._times.append(self._waiting.popleft().times_us())

    # Copies.

    def _watch_copies(self) -> None:
        """Has the methods of tensors tell of copies in this thread."""
        self._thread = threading.get_ident()
        for name in _COPY_METHODS:
            self._originals[name] = vars(self._tensor_kind).get(name)
            setattr(self._tensor_kind, name, self._telling(getattr(self._tensor_kind, name)))

    def _leave_copies(self) -> None:
        for name, original in self._originals.items():
            if original is None:  # it is of a class above
                delattr(self._tensor_kind, name)
            else:
                setattr(self._tensor_kind, name, original)
        self._originals = {}

    def _telling(self, method: Any) -> Any:
        @functools.wraps(method)
        def call(tensor: Any, *arguments: Any, **options: Any) -> Any:
            step = self._current
            if step is None or threading.get_ident() != self._thread or not self._takes(step, (tensor, *arguments)):
                return method(tensor, *arguments, **options)
            events: list[Any] = []
            self._guarded(lambda: events.append(self._event()))
            result = method(tensor, *arguments, **options)
            if result.is_cuda:
                self._guarded(lambda: events.append(self._event()))
                if len(events) == 2 and None not in events:
                    step.copies.append((events[0], events[1]))
            return result

        return call

    def _takes(self, step: _StepEvents, tensors: Sequence[Any]) -> bool:
        """True where a copy may begin on the host, and few have been seen."""
        is_from_host = any(isinstance(one, self._tensor_kind) and one.is_cpu for one in tensors)
        return is_from_host and len(step.copies) < _MOST_COPIES
