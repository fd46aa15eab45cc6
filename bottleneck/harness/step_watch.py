"""Times every step of a program by its phases, without the profiler.

A phase begins where torch tells of it: a loader's `next` begins and ends, a backward pass begins, an optimizer's step
begins and ends. Each costs about half a microsecond. A thread of our own looks on; it reads the stack only in a step
that already takes far longer than usual.
"""

import _thread
import collections
import contextlib
import dataclasses
import gc
import os
import platform
import resource
import statistics
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bottleneck.harness.boundaries import Boundaries
from bottleneck.harness.machine import is_on_gpu
from bottleneck.harness.memory_growth import MemoryLook, growth_between
from bottleneck.harness.phase_hooks import PhaseHooks
from bottleneck.harness.run_log import innermost_line, read_stack
from bottleneck.harness.step_log import StepLog
from bottleneck.harness.torch_private import workers_of
from bottleneck.harness.torch_state import is_pytorch
from bottleneck.harness.window import resident_bytes
from bottleneck.schema.op_names import line_source
from bottleneck.schema.recording import StepSource
from bottleneck.schema.watch_log import PHASES, SeenLine, SlowStep, WatchHeader

DATA, FORWARD, BACKWARD, OPTIMIZER, REST = range(len(PHASES))
# What is usual is told from so many steps; it is looked at anew after so many more.
_USUAL_STEPS, _LOOK_EVERY = 64, 16
_LEAST_STEPS = 8
# A step is slow that takes so many times the usual one, is so many deviations away, and so much longer at least.
_TIMES, _DEVIATIONS, _LEAST_US = 2.0, 10.0, 1_000.0
_MAD_TO_DEVIATION = 1.4826
_FLUSH_S, _PERIOD_S = 1.0, 0.01
_MOST_LINES, _MOST_SAMPLES = 5, 2_000
# From this step on memory is looked at: the first ones make what all others use.
_MEMORY_FROM, _MEMORY_EVERY = 20, 16
_THREAD = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)


class Usual:
    """The median of recent steps, and the limit of a slow one."""

    def __init__(self) -> None:
        self._recent: collections.deque[tuple[float, ...]] = collections.deque(maxlen=_USUAL_STEPS)
        self._until_look = _LEAST_STEPS
        self.medians: tuple[float, ...] = ()
        self.limit_us = float("inf")

    def add(self, step: tuple[float, ...]) -> None:
        """Adds a step: its time comes first, then what else is compared."""
        if step[0] <= self.limit_us or len(self._recent) < _LEAST_STEPS:
            self._recent.append(step)
        elif len(self._recent) == _USUAL_STEPS:
            self._recent.popleft()  # steps that stay slow become the usual ones
        self._until_look -= 1
        if self._until_look <= 0 and self._recent:
            self._look()

    def _look(self) -> None:
        self._until_look = _LOOK_EVERY
        self.medians = tuple(statistics.median(values) for values in zip(*self._recent, strict=True))
        usual_us = self.medians[0]
        deviation_us = _MAD_TO_DEVIATION * statistics.median(abs(step[0] - usual_us) for step in self._recent)
        self.limit_us = max(_TIMES * usual_us, usual_us + _DEVIATIONS * deviation_us, usual_us + _LEAST_US)


class StepWatch:
    """Follows the steps of a program in its process and writes their log.

    What goes wrong in here is noted in the log's header, and ends the watching alone.
    """

    def __init__(
        self,
        log: StepLog,
        wanted: str | None,
        rank: int,
        ranks: int,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._log, self._clock_ns = log, clock_ns
        self._boundaries = Boundaries(self._end_step, self._start_over, wanted)
        self._hooks = PhaseHooks(self._begin_data, self._end_data, self._begin_backward, self._in_optimizer)
        self._torch: Any = None
        self._thread: int | None = None
        self._process = os.getpid()
        self._phase, self._last_ns = FORWARD, 0
        self._sums_ns = [0] * len(PHASES)
        self._batches = 0
        self._gc_ns = self._gc_began_ns = 0
        self._step, self._began_ns, self._zero_ns, self._flushed_ns = 0, 0, 0, 0
        self._cpu_ns = 0
        self._switches = self._faults = 0
        self._memory_bytes = 0.0
        self._usual = Usual()
        self._samples: list[tuple[tuple[str, int, str] | None, str]] = []
        self._loader: weakref.ref[Any] | None = None
        self._memory: tuple[int, MemoryLook] | None = None
        self._is_over = False
        self.header = WatchHeader(rank, ranks, 0, "none", "", platform.python_version())

    # What torch tells.

    def watchers(self) -> tuple[Mapping[str, Callable[[Any], None]], Mapping[str, Callable[[], None]]]:
        """Gives what to call after, and before, the import of which module."""
        from bottleneck.harness.torch_private import COMPILER, DYNAMO

        after = {"torch": self._on_torch, "torch.utils.data.dataloader": lambda _: self._on_loader()}
        return after, {COMPILER: self._boundaries.watch_compiled, DYNAMO: self._boundaries.watch_compiled}

    def _on_torch(self, torch: Any) -> None:
        if not is_pytorch(torch) or threading.current_thread() is not threading.main_thread():
            return
        try:
            self._torch = torch
            self._boundaries.watch(torch)
            self._hooks.watch()
            gc.callbacks.append(self._collect)
            os.register_at_fork(after_in_child=self._leave)
        except Exception as exc:
            self._fail(exc)

    def _on_loader(self) -> None:
        self._boundaries.watch_loaders()
        self._hooks.watch_loaders()

    def _start_over(self, source: StepSource, name: str) -> None:
        """Another source was found to end steps: those before were parts of steps."""
        self.header = dataclasses.replace(self.header, step_source=source, step_name=name)
        self._thread, self._step = threading.get_ident(), 0

    # Phases.

    def _enter(self, phase: int) -> None:
        now_ns = self._clock_ns()
        self._sums_ns[self._phase] += now_ns - self._last_ns
        self._last_ns, self._phase = now_ns, phase

    def _is_ours(self) -> bool:
        return self._thread == threading.get_ident()

    def _begin_data(self, iterator: Any) -> None:
        if self._is_ours() and self._phase != DATA:
            self._enter(DATA)
            if self._loader is None or self._loader() is not iterator:
                self._loader = weakref.ref(iterator)

    def _end_data(self, _: Any) -> None:
        if self._is_ours():
            self._batches += 1
            self._enter(FORWARD)

    def _begin_backward(self) -> None:
        if self._is_ours():
            self._enter(BACKWARD)

    def _in_optimizer(self, *, is_end: bool) -> None:
        if self._is_ours():
            self._enter(REST if is_end else OPTIMIZER)

    def _collect(self, stage: str, _: Mapping[str, int]) -> None:
        """Notes the time of a garbage collection.

        In whichever thread it is, it stops all of them.
        """
        if stage == "start":
            self._gc_began_ns = self._clock_ns()
        elif self._gc_began_ns:
            self._gc_ns += self._clock_ns() - self._gc_began_ns

    # Steps.

    def _end_step(self) -> None:
        if self._is_over:
            return
        try:
            self._note_step()
        except Exception as exc:
            self._fail(exc)

    def _note_step(self) -> None:
        now_ns, usage, cpu_ns = self._clock_ns(), resource.getrusage(_THREAD), time.thread_time_ns()
        if self._step == 0 or not self._zero_ns:
            self._begin(now_ns)
        else:
            self._sums_ns[self._phase] += now_ns - self._last_ns
            phases = tuple(total_ns / 1e3 for total_ns in self._sums_ns)
            cpu_us = (cpu_ns - self._cpu_ns) / 1e3
            switches, faults = usage.ru_nivcsw - self._switches, usage.ru_majflt - self._faults
            us, gc_us, end_s = (now_ns - self._began_ns) / 1e3, self._gc_ns / 1e3, (now_ns - self._zero_ns) / 1e9
            record = (end_s, self._step, 1, us, *phases, gc_us, cpu_us, us, self._batches, switches, faults)
            self._log.add((*record, self._memory_bytes))
            if us > self._usual.limit_us:
                self._note_slow(us, end_s, phases, (gc_us, cpu_us, switches, faults))
            self._usual.add((us, *phases, cpu_us, float(switches), float(self._batches)))
            if now_ns - self._flushed_ns > _FLUSH_S * 1e9:
                self._flushed_ns = now_ns
                self._log.flush()
            if self._step % _MEMORY_EVERY == 0:
                self._memory_bytes = resident_bytes() or 0.0
            if self._step == _MEMORY_FROM:
                with contextlib.suppress(Exception):  # the program's variables may be of any kind
                    self._memory = self._step, MemoryLook(self._torch)
        self._step += 1
        self._samples = []
        self._sums_ns = [0] * len(PHASES)
        self._batches = self._gc_ns = 0
        self._switches, self._faults = usage.ru_nivcsw, usage.ru_majflt
        # What we took is no part of the next step.
        self._cpu_ns = time.thread_time_ns()
        self._last_ns = self._began_ns = self._clock_ns()

    def _begin(self, now_ns: int) -> None:
        """The first step ended: those that follow are timed."""
        is_first = not self._zero_ns
        self._zero_ns = self._flushed_ns = now_ns
        self._memory_bytes, self._usual = resident_bytes() or 0.0, Usual()
        device = "cuda" if is_on_gpu(self._torch) else "cpu"
        version = str(getattr(self._torch, "__version__", ""))
        self.header = dataclasses.replace(self.header, clock_ns=time.time_ns(), torch=version, device=device)
        self._log.write_header(self.header)
        if is_first:
            _thread.start_new_thread(self._look_on, (self._thread,))

    def _note_slow(
        self, us: float, end_s: float, phases: tuple[float, ...], host: tuple[float, float, int, int]
    ) -> None:
        usual, count = self._usual.medians, len(PHASES)
        gc_us, cpu_us, switches, faults = host
        workers = list(workers_of(self._loader())) if self._loader is not None and self._loader() is not None else []
        self._log.add_slow(
            SlowStep(
                step=self._step,
                end_s=end_s,
                us=us,
                usual_us=usual[0],
                phases_us=phases,
                usual_phases_us=usual[1 : count + 1],
                gc_us=gc_us,
                cpu_us=cpu_us,
                usual_cpu_us=usual[count + 1],
                switches=switches,
                usual_switches=usual[count + 2],
                faults=faults,
                batches=self._batches,
                usual_batches=usual[count + 3],
                lines=_lines_of(self._samples),
                workers=len(workers),
                dead_workers=sum(not worker.is_alive() for worker in workers),
            )
        )

    def _look_on(self, thread: int | None) -> None:
        """Samples the stack of a step that is already slow."""
        while not self._is_over and os.getpid() == self._process:
            began_ns, limit_us = self._began_ns, self._usual.limit_us
            if (self._clock_ns() - began_ns) / 1e3 > limit_us and len(self._samples) < _MOST_SAMPLES:
                frame = sys._current_frames().get(thread or 0)
                with contextlib.suppress(Exception):  # of what the program's code looks like
                    place, (_, kind) = innermost_line(frame), read_stack(frame)
                    line = None if place is None else place[0][:3]
                    if began_ns == self._began_ns:
                        self._samples.append((line, kind or ""))
                del frame
            time.sleep(_PERIOD_S)

    # The end.

    def finish(self, status: int) -> None:
        """Writes what is left; called when the program ends, whichever way."""
        if os.getpid() != self._process or self._is_over:
            return
        self._is_over = True
        self._stop()
        keepers: tuple[str, ...] = ()
        if self._memory is not None:
            with contextlib.suppress(Exception):
                step, before = self._memory
                growth = growth_between(before, MemoryLook(self._torch), self._step - step, self._torch)
                keepers = () if growth is None else tuple(keeper.source or keeper.name for keeper in growth.keepers)
        problem = (
            self.header.problem or self._boundaries.problem or (None if self._torch else "it never imported torch")
        )
        self.header = dataclasses.replace(
            self.header,
            steps=max(self._step - 1, 0),
            is_complete=True,
            status=status,
            memory_keepers=keepers,
            problem=problem,
        )
        with contextlib.suppress(OSError):
            self._log.close()
            self._log.write_header(self.header)

    def _stop(self) -> None:
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self._collect)
        self._boundaries.forget()
        self._hooks.forget()

    def _leave(self) -> None:
        """Leaves a fork of the process alone: a worker of the program's."""
        self._is_over, self._thread = True, None

    def _fail(self, exc: Exception) -> None:
        self.header = dataclasses.replace(self.header, problem=f"{type(exc).__name__}: {exc}"[:200])
        self._thread = None
        self._stop()


def _lines_of(samples: Sequence[tuple[tuple[str, int, str] | None, str]]) -> tuple[SeenLine, ...]:
    counts = Counter(sample for sample in samples if sample[0] is not None)
    return tuple(
        SeenLine(line_source(line[0], line[1]), line[2], count, kind)
        for (line, kind), count in counts.most_common(_MOST_LINES)
        if line is not None
    )
