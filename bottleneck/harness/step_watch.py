"""Times every step of a program by its phases, without the profiler.

A phase begins where torch tells of it: a loader's `next` begins and ends, a backward pass begins, an optimizer's step
begins and ends. At the end of a step only the clocks are read; the log gets some tens of steps at once, because code
that has just run costs a third of what it costs between two steps. A thread of our own looks on; it reads the stack
only in a step that already takes far longer than usual.
"""

import _thread
import collections
import contextlib
import dataclasses
import gc
import operator
import os
import platform
import resource
import signal
import statistics
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bottleneck.harness.boundaries import Boundaries
from bottleneck.harness.device_phases import PhaseEvents
from bottleneck.harness.machine import is_on_gpu
from bottleneck.harness.memory_growth import MemoryLook, growth_between
from bottleneck.harness.phase_hooks import PhaseHooks
from bottleneck.harness.run_log import innermost_line, read_stack
from bottleneck.harness.step_log import StepLog
from bottleneck.harness.torch_private import COMPILER, DYNAMO, workers_of
from bottleneck.harness.torch_state import TorchHook, describe_compilation, is_pytorch
from bottleneck.harness.watched_windows import WatchedWindows
from bottleneck.harness.window import resident_bytes
from bottleneck.schema.op_names import line_source
from bottleneck.schema.recording import StepSource
from bottleneck.schema.watch_log import PHASES, STEP_FIELDS, DeadWorker, SeenLine, SlowStep, WatchHeader
from bottleneck.system.process_usage import own_threads, waited_for_processor_ns

DATA, FORWARD, BACKWARD, OPTIMIZER, REST = range(len(PHASES))
# Events beside the beginnings of phases: a step ended; the next begins only here; a pass over the data begins.
_END, _BEGIN, _PASS = range(len(PHASES), len(PHASES) + 3)
# An event is one number, since one less object is made for it: its time, and in the lowest bits what it is.
_KIND_BITS = 3
_KINDS = (1 << _KIND_BITS) - 1
_FIELDS = tuple(name for name, _ in STEP_FIELDS)
_US_OF, _CPU_US_OF = (operator.itemgetter(_FIELDS.index(name)) for name in ("us", "cpu_us"))
_US, _CPU_US, _SWITCHES, _FAULTS = (_FIELDS.index(name) for name in ("us", "cpu_us", "switches", "faults"))
# What is usual is told from so many steps; it is looked at anew after so many more.
_USUAL_STEPS, _LOOK_EVERY = 64, 32
_LEAST_STEPS = 8
# So many slow steps have taken the place of the usual ones; each usual one between them counts against so many.
_STAY_SLOW, _WEIGHT_OF_USUAL = 200, 3
# A step is slow that takes so many times the usual one, is so many deviations away, and so much longer at least.
_TIMES, _DEVIATIONS, _LEAST_US = 2.0, 10.0, 1_000.0
_MAD_TO_DEVIATION = 1.4826
# Shorter steps share a reading of the processor time: it takes more than all the rest.
_USAGE_NS = 3_000_000
# What a reading counts in the share of the time that the thread computes.
_OF_NEW = 0.2
# A rank is the late one whose own work took so much of what a slow step took beyond the usual.
_OWN_SHARE = 0.5
_FLUSH_NS, _LOOK_NS, _PERIOD_S, _LONGEST_PERIOD_S, _PATIENCE_S = 1_000_000_000, 200_000_000, 0.01, 0.25, 1.0
# So many steps are added to the log at once, or those of so long.
_AT_ONCE = 64
# What is told between two steps that count is kept up to so much: a program may read for hours before it trains.
_MOST_EVENTS = 65_536
_MOST_LINES, _MOST_SAMPLES = 5, 2_000
# A look at a thread takes some 10 us.
_MOST_THREADS = 64
# From this step on memory is looked at: the first ones make what all others use. To read how much it is takes 30 us.
_MEMORY_FROM, _MEMORY_NS = 20, 20_000_000
_THREAD = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)


class Usual:
    """The median of recent steps, and the limit of a slow one."""

    def __init__(self) -> None:
        self._recent: collections.deque[Sequence[Any]] = collections.deque(maxlen=_USUAL_STEPS)
        self._until_look = _LEAST_STEPS
        self._slow = 0
        self._record: Mapping[str, float] | None = None
        self.limit_us = float("inf")

    def add(self, records: Sequence[Sequence[Any]]) -> None:
        """Adds steps by their records, whose fields are STEP_FIELDS."""
        is_usual = len(self._recent) >= _LEAST_STEPS and max(map(_US_OF, records), default=0.0) <= self.limit_us
        if is_usual:  # nearly always
            self._recent.extend(records)
            self._slow = max(self._slow - _WEIGHT_OF_USUAL * len(records), 0)
        for record in () if is_usual else records:
            if record[_US] <= self.limit_us or len(self._recent) < _LEAST_STEPS:
                self._recent.append(record)
                self._slow = max(self._slow - _WEIGHT_OF_USUAL, 0)
                continue
            self._slow += 1
            if self._slow >= _STAY_SLOW:  # these are the usual ones now
                self._recent.clear()
                self._recent.append(record)
                self._slow = 0
        self._until_look -= len(records)
        if self._until_look <= 0:
            self._look()

    @property
    def is_full(self) -> bool:
        """True once it has as many steps as it keeps."""
        return len(self._recent) == _USUAL_STEPS

    def median(self, name: str) -> float:
        """Returns the median of one field."""
        place = _FIELDS.index(name)
        values: list[float] = [record[place] for record in self._recent]
        return statistics.median(values)

    def record(self) -> Mapping[str, float]:
        """The median of each field, as of the last look at what is usual."""
        if self._record is None:
            columns = zip(*self._recent, strict=True)
            self._record = {name: statistics.median(values) for name, values in zip(_FIELDS, columns, strict=True)}
        return self._record

    def _look(self) -> None:
        self._until_look, self._record = _LOOK_EVERY, None
        times_us = list(map(_US_OF, self._recent))
        usual_us = statistics.median(times_us)
        deviation_us = _MAD_TO_DEVIATION * statistics.median([abs(us - usual_us) for us in times_us])
        self.limit_us = max(_TIMES * usual_us, usual_us + _DEVIATIONS * deviation_us, usual_us + _LEAST_US)


class LoaderWorkers:
    """The worker processes of the loader that gave a batch last.

    ``started`` and those that died are of the step that runs; ``dead_before`` of all steps before.
    """

    def __init__(self) -> None:
        self.processes: tuple[Any, ...] = ()
        self.started = 0
        self.dead_before: list[DeadWorker] = []
        self._dead: list[DeadWorker] = []
        self._met: set[int] = set()

    def meet(self, processes: Sequence[Any]) -> None:
        """Notes the workers of another loader."""
        self._dead += _dead_among(self.processes)
        self.processes = tuple(processes)
        fresh = set(self.pids()) - self._met
        self.started += len(fresh)
        self._met |= fresh

    def pids(self) -> list[int]:
        """The process numbers of those that were started."""
        return [process.pid for process in self.processes if process.pid is not None]

    def look_for_dead(self) -> tuple[DeadWorker, ...]:
        """Lists the workers that ended otherwise than in order in this step."""
        before = set(self.dead_before)
        return tuple(dead for dead in (*self._dead, *_dead_among(self.processes)) if dead not in before)

    def forget_changes(self) -> None:
        """Begins another step."""
        self.started = 0
        self.dead_before += self._dead
        self._dead.clear()


def _dead_among(processes: Sequence[Any]) -> list[DeadWorker]:
    """Lists those that failed.

    A loader ends its own by SIGTERM.
    """
    dead = []
    for number, process in enumerate(processes):
        with contextlib.suppress(Exception):  # not ours to ask any more, or closed
            if process.exitcode not in (None, 0, -signal.SIGTERM):
                dead.append(DeadWorker(number, process.exitcode))
    return dead


@dataclasses.dataclass(frozen=True)
class WaitedUs:
    """The time that was waited for a processor; null where nobody tells.

    It is that of the stepping thread, and the most of another thread of the process, and of a worker of its loader.
    """

    stepping: float | None = None
    other: float | None = None
    worker: float | None = None


class ProcessorWaits:
    """The time that threads of the program were ready without a processor."""

    def __init__(self, thread: int, clock_ns: Callable[[], int]) -> None:
        self._thread, self._clock_ns = thread, clock_ns
        # When the waits were read, what they were, and how much of the time before each waited.
        self._last: tuple[int, dict[int, int], dict[int, float]] = (clock_ns(), {}, {})
        self._workers: frozenset[int] = frozenset()
        # When the step began that was seen to be slow, and what the threads had waited by then.
        self._slow: tuple[int, dict[int, int]] = (0, {})

    def look_at_slow(self, began_ns: int) -> None:
        """Reads the waits once in a step that takes longer than usual."""
        if self._slow[0] != began_ns:
            self._slow = began_ns, self._read(own_threads(_MOST_THREADS))

    def look(self, workers: Sequence[int]) -> None:
        """Reads the waits now and then, in steps that are not slow."""
        now_ns, (before_ns, before, _) = self._clock_ns(), self._last
        if now_ns - before_ns < _LOOK_NS:
            return
        self._workers = frozenset(workers)
        waits = self._read(own_threads(_MOST_THREADS))
        shares = {one: (wait - before[one]) / (now_ns - before_ns) for one, wait in waits.items() if one in before}
        self._last = now_ns, waits, shares

    def since(self, began_ns: int) -> WaitedUs:
        """Gives the time that was waited since then."""
        before_ns, before, shares = self._last
        now = self._read([one for one in before if one not in self._workers])
        # From the last look to the beginning of the step each waited as it did before.
        waited_us = {
            one: max(wait - before[one] - shares.get(one, 0.0) * max(began_ns - before_ns, 0), 0.0) / 1e3
            for one, wait in now.items()
            if one in before
        }
        of_workers = [us for one, us in waited_us.items() if one in self._workers]
        # There are many other threads, and the most of them would be what one waited between the looks by chance.
        slow_ns, at_slow = self._slow
        others = [
            (wait - at_slow[one]) / 1e3
            for one, wait in now.items()
            if slow_ns == began_ns and one in at_slow and one != self._thread and one not in self._workers
        ]
        return WaitedUs(waited_us.get(self._thread), max(others, default=None), max(of_workers, default=None))

    def _read(self, threads: Sequence[int]) -> dict[int, int]:
        process = os.getpid()
        waits = {thread: waited_for_processor_ns(process, thread) for thread in {self._thread, *threads}}
        waits |= {worker: waited_for_processor_ns(worker) for worker in self._workers}
        return {one: wait for one, wait in waits.items() if wait is not None}


class StepWatch:
    """Follows the steps of a program in its process and writes their log.

    What goes wrong in here is noted in the log's header, and ends the watching alone.
    """

    def __init__(  # noqa: PLR0913 - each is a choice of its own
        self,
        log: StepLog,
        wanted: str | None,
        rank: int,
        ranks: int,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
        windows: WatchedWindows | None = None,
        *,
        command: tuple[str, ...] = (),
    ) -> None:
        self._log, self._clock_ns, self._windows = log, clock_ns, windows
        # What torch told in the thread that steps since steps were last taken in.
        self._events: collections.deque[int] = collections.deque(maxlen=_MOST_EVENTS)
        # Of each step that ended: the time of garbage collections until then, and what the thread had used, if read.
        self._ended: list[tuple[int, Any]] = []
        self._boundaries = Boundaries(self._end_step, self._start_over, wanted)
        self._boundaries.tell_other_optimizers(self._noting(REST))
        self._hooks = self._listen()
        watch_compiled = self._boundaries.watch_compiled
        self._import_hook = TorchHook(
            {"torch": self._on_torch, "torch.utils.data.dataloader": lambda _: self._on_loader()},
            {COMPILER: watch_compiled, DYNAMO: watch_compiled},
        )
        self._torch: Any = None
        self._device: PhaseEvents | None = None  # null on a CPU
        self._thread: int | None = None
        self._process = os.getpid()
        # The step that runs.
        self._began_ns = 0
        self._limit_ns = float("-inf")
        # The first step that was not taken in yet: its number is 0 until one has ended.
        self._step = 0
        self._phase, self._last_ns, self._start_ns = FORWARD, 0, 0
        self._sums_ns = [0] * len(PHASES)
        self._batches = self._passes = 0
        self._usage: Any = None
        self._read_ns, self._cpu_share = 0, 1.0
        self._gc_ns = self._gc_began_ns = self._gc_before_ns = 0
        self._zero_ns, self._flushed_ns = 0, 0
        self._memory_ns, self._memory_bytes = 0, 0.0
        self._usual = Usual()
        # When the step began that the samples are of, and the samples.
        self._samples: tuple[int, list[tuple[tuple[str, int, str] | None, str]]] = (0, [])
        self._loader: weakref.ref[Any] | None = None
        self._workers = LoaderWorkers()
        self._waits: ProcessorWaits | None = None
        self._memory: tuple[int, MemoryLook] | None = None
        self._is_over = False
        # The end of the run wakes the thread that looks on, and waits for it: the interpreter must not end before.
        self._wake, self._looks_on = _thread.allocate_lock(), _thread.allocate_lock()
        self._wake.acquire()
        self.header = WatchHeader(rank, ranks, 0, "none", "", platform.python_version(), command=command)

    # What torch tells.

    def start(self) -> None:
        """Begins to watch what is imported, and what will be."""
        self._import_hook.install()
        torch = sys.modules.get("torch")
        if torch is None:
            return
        self._listen_to(torch)
        if COMPILER in sys.modules or DYNAMO in sys.modules:
            self._boundaries.watch_compiled()

    def _on_torch(self, torch: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            self._listen_to(torch)

    def _listen_to(self, torch: Any) -> None:
        if not is_pytorch(torch):
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
        if self._windows is not None:
            self._windows.close()
        self.header = dataclasses.replace(self.header, step_source=source, step_name=name)
        self._thread, self._step, self._limit_ns = threading.get_ident(), 0, float("-inf")
        self._forget_events()
        self._leave_device()
        self._log.start_over()
        if source != "optimizer":
            self._hooks.watch_optimizer_ends()

    def _leave_device(self) -> None:
        """Leaves the step that runs out of what is timed on the device."""
        if self._device is not None:
            self._device.drop()

    def _forget_events(self) -> None:
        self._events.clear()
        self._ended.clear()

    # Phases.

    def _listen(self) -> PhaseHooks:
        """Gives the hooks, which only note what begins and when."""
        note_data = self._noting(DATA)

        def begin_data(iterator: Any) -> None:
            if self._loader is None or self._loader() is not iterator:
                self._workers.meet(workers_of(iterator))
                self._loader = weakref.ref(iterator)
            note_data()

        forward, backward, optimizer = self._noting(FORWARD), self._noting(BACKWARD), self._noting(OPTIMIZER)
        return PhaseHooks(self._noting(_PASS), begin_data, forward, backward, optimizer, self._noting(REST))

    def _noting(self, kind: int) -> Callable[..., None]:
        """Gives a call that notes such events in the thread that steps."""
        note, clock_ns, thread = self._events.append, self._clock_ns, threading.get_ident

        def note_it(_: object = None) -> None:
            if thread() == self._thread:
                note(clock_ns() << _KIND_BITS | kind)
                if self._device is not None and kind < _END:
                    self._device.begin_phase(kind)

        return note_it

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
            if self._windows is not None and self._windows.is_open:
                self._end_step_in_window(self._windows)
                return
            now_ns = self._clock_ns()
            is_slow = now_ns - self._began_ns > self._limit_ns
            is_due = is_slow or len(self._ended) >= _AT_ONCE - 1 or now_ns - self._flushed_ns > _FLUSH_NS
            usage = None
            if is_due or now_ns - self._read_ns > _USAGE_NS:
                usage, self._read_ns = resource.getrusage(_THREAD), now_ns
            self._events.append(now_ns << _KIND_BITS | _END)
            self._ended.append((self._gc_ns, usage))
            if is_due:
                self._take_in(now_ns, is_slow=is_slow)
                if self._windows is not None and self._step and self._windows.open_if_due(self._step - 1):
                    self._limit_ns = float("inf")
                    self._leave_device()
                    return
                # What we took is no part of the next step.
                now_ns = self._clock_ns()
                self._events.append(now_ns << _KIND_BITS | _BEGIN)
            self._began_ns = now_ns
            if self._device is not None:
                self._device.begin_step(REST)
        except Exception as exc:
            self._fail(exc)

    def _end_step_in_window(self, windows: WatchedWindows) -> None:
        """Ends a step that the profiler records, and is not timed here.

        After the last one the steps are timed again.
        """
        self._step += 1
        windows.tell_step(self.header.step_source, self.header.step_name)
        if windows.is_open:
            return
        self._note_windows(windows)
        self._log.write_header(self.header)
        self._forget_events()
        self._usage, self._gc_before_ns = resource.getrusage(_THREAD), self._gc_ns
        self._sums_ns, self._batches, self._passes = [0] * len(PHASES), 0, 0
        self._workers.forget_changes()
        self._limit_ns = self._usual.limit_us * 1e3
        self._began_ns = self._start_ns = self._last_ns = self._clock_ns()

    def _note_windows(self, windows: WatchedWindows) -> None:
        self.header = dataclasses.replace(self.header, windows=windows.recorded, windows_problem=windows.problem)

    def _take_in(self, now_ns: int, *, is_slow: bool) -> None:
        """Adds the steps that have ended to the log and to the usual."""
        events, ended = list(self._events), list(self._ended)
        self._forget_events()
        if len(events) == _MOST_EVENTS:  # earlier ones were dropped, of steps too
            ended = ended[len(ended) - sum(event & _KINDS == _END for event in events) :]
        records = self._records(events, ended)
        self._log.add(records)
        self._usual.add(records)
        self._limit_ns = self._usual.limit_us * 1e3
        if self._windows is not None and self._usual.is_full:
            # A rank waits for the others in its backward pass.
            of_others_us = self._usual.median("backward_us") if self.header.rank else 0.0
            self._windows.tell_usual(self._usual.median("us") - of_others_us)
        if is_slow and records:
            self._note_slow(dict(zip(_FIELDS, records[-1], strict=True)))
        self._workers.forget_changes()
        if now_ns - self._flushed_ns > _FLUSH_NS:
            self._flushed_ns = now_ns
            self._log.flush()
        if now_ns - self._memory_ns > _MEMORY_NS:
            self._memory_ns, self._memory_bytes = now_ns, resident_bytes() or 0.0
        if self._memory is None and self._step > _MEMORY_FROM:
            with contextlib.suppress(Exception):  # the program's variables may be of any kind
                self._memory = self._step, MemoryLook(self._torch)

    def _records(self, events: Sequence[int], ended: Sequence[tuple[int, Any]]) -> list[list[Any]]:
        """Gives the records of the steps that ended, by STEP_FIELDS."""
        records: list[list[Any]] = []
        current, last_ns, ends, unread = self._phase, self._last_ns, iter(ended), 0
        sums_ns, batches, passes = self._sums_ns, self._batches, self._passes
        step, start_ns, gc_before_ns = self._step, self._start_ns, self._gc_before_ns
        ends_optimizer = self.header.step_source == "optimizer"
        for event in events:
            kind, at_ns = event & _KINDS, event >> _KIND_BITS
            if kind < _END:
                if kind != current or kind != DATA:
                    sums_ns[current] += at_ns - last_ns
                    current, last_ns = kind, at_ns
                    batches += kind == FORWARD
            elif kind == _BEGIN:
                start_ns = last_ns = at_ns
            elif kind == _PASS:
                passes += 1
            else:
                sums_ns[current] += at_ns - last_ns
                last_ns, (gc_ns, usage) = at_ns, next(ends)
                if step:
                    data_ns, forward_ns, backward_ns, optimizer_ns, rest_ns = sums_ns
                    us = (at_ns - start_ns) / 1e3
                    record = [
                        (at_ns - self._zero_ns) / 1e9,
                        step,
                        1,
                        us,
                        data_ns / 1e3,
                        forward_ns / 1e3,
                        backward_ns / 1e3,
                        optimizer_ns / 1e3,
                        rest_ns / 1e3,
                        (gc_ns - gc_before_ns) / 1e3,
                        self._cpu_share * us,
                        us,
                        batches,
                        passes,
                        0,
                        0,
                        self._memory_bytes,
                    ]
                    records.append(record)
                    if usage is not None:
                        self._share_usage(records[unread:], usage)
                        unread = len(records)
                else:
                    self._begin(at_ns)
                    self._usage = usage
                step += 1
                current = REST if ends_optimizer else current
                start_ns, gc_before_ns = at_ns, gc_ns
                sums_ns, batches, passes = [0] * len(PHASES), 0, 0
        self._phase, self._last_ns, self._sums_ns = current, last_ns, sums_ns
        self._batches, self._passes = batches, passes
        self._step, self._start_ns, self._gc_before_ns = step, start_ns, gc_before_ns
        return records

    def _share_usage(self, records: Sequence[list[Any]], usage: Any) -> None:
        """Gives steps what their thread has used since the last reading.

        All but the last are taken to have computed for the usual share of their time, and the last for the rest: it
        alone may be a slow one.
        """
        before, self._usage = self._usage, usage
        used_us = 1e6 * (usage.ru_utime + usage.ru_stime - before.ru_utime - before.ru_stime)
        last = records[-1]
        of_others_us = sum(map(_CPU_US_OF, records)) - last[_CPU_US]
        last[_CPU_US] = min(max(used_us - of_others_us, 0.0), last[_US])
        last[_SWITCHES] = usage.ru_nivcsw - before.ru_nivcsw
        last[_FAULTS] = usage.ru_majflt - before.ru_majflt
        total_us = sum(map(_US_OF, records))
        if total_us and last[_US] <= self._usual.limit_us:
            self._cpu_share += _OF_NEW * (min(used_us / total_us, 1.0) - self._cpu_share)

    def _begin(self, now_ns: int) -> None:
        """The first step ended: those that follow are timed."""
        is_first = not self._zero_ns
        self._zero_ns = self._flushed_ns = now_ns
        self._memory_bytes, self._usual = resident_bytes() or 0.0, Usual()
        device = "cuda" if is_on_gpu(self._torch) else "cpu"
        self._leave_device()
        self._device = PhaseEvents(self._torch.cuda, self._torch.Tensor) if device == "cuda" else None
        version = str(getattr(self._torch, "__version__", ""))
        self.header = dataclasses.replace(self.header, clock_ns=time.time_ns(), torch=version, device=device)
        self._log.write_header(self.header)
        if is_first:
            self._waits = ProcessorWaits(threading.get_native_id(), self._clock_ns)
            self._looks_on.acquire()
            _thread.start_new_thread(self._look_on, (self._thread,))

    def _note_slow(self, step: Mapping[str, float]) -> None:
        usual = self._usual.record()
        began_ns, samples = self._samples
        if self._windows is not None and self._usual.is_full and self._is_to_record(step, usual):
            self._windows.tell_slow(step["us"] / usual["us"] if usual["us"] else float("inf"))
        if not self._log.takes_slow:
            return
        waited = self._waits.since(self._began_ns) if self._waits else WaitedUs()
        self._log.add_slow(
            SlowStep(
                step=int(step["first"]),
                end_s=step["end_s"],
                us=step["us"],
                usual_us=usual["us"],
                phases_us=tuple(step[f"{phase}_us"] for phase in PHASES),
                usual_phases_us=tuple(usual[f"{phase}_us"] for phase in PHASES),
                gc_us=step["gc_us"],
                cpu_us=step["cpu_us"],
                usual_cpu_us=usual["cpu_us"],
                switches=int(step["switches"]),
                usual_switches=usual["switches"],
                faults=int(step["faults"]),
                batches=int(step["batches"]),
                usual_batches=usual["batches"],
                lines=_lines_of(samples) if began_ns == self._began_ns else (),
                passes=int(step["passes"]),
                waited_us=waited.stepping,
                threads_waited_us=waited.other,
                workers_waited_us=waited.worker,
                workers=len(self._workers.processes),
                started_workers=self._workers.started,
                dead_workers=self._workers.look_for_dead(),
            )
        )

    def _is_to_record(self, step: Mapping[str, float], usual: Mapping[str, float]) -> bool:
        """Tells whether a slow step is worth a window of this rank.

        All ranks are slow where one is: of the others that one is recorded whose own work took the time.
        """
        beyond_us = self._own_us(step) - self._own_us(usual)
        return self.header.rank == 0 or beyond_us > _OWN_SHARE * (step["us"] - usual["us"])

    @staticmethod
    def _own_us(step: Mapping[str, float]) -> float:
        """The time without the backward pass, in which a rank waits for the others."""
        return step["us"] - step["backward_us"]

    def _look_on(self, thread: int | None) -> None:
        """Samples the stack of a step that is already slow, until the run ends."""
        try:
            self._sample(thread)
        finally:
            self._looks_on.release()

    def _sample(self, thread: int | None) -> None:
        while not self._is_over:
            began_ns = self._began_ns
            left_s = (began_ns + self._limit_ns - self._clock_ns()) / 1e9
            if self._samples[0] != began_ns:
                self._samples = began_ns, []
            if left_s > 0.0 and self._waits is not None:
                self._waits.look(self._workers.pids())
            if left_s < 0.0 and len(self._samples[1]) < _MOST_SAMPLES:
                if self._waits is not None:
                    self._waits.look_at_slow(began_ns)
                frame = sys._current_frames().get(thread or 0)
                with contextlib.suppress(Exception):  # of what the program's code looks like
                    place, (_, kind) = innermost_line(frame), read_stack(frame)
                    line = None if place is None else place[0][:3]
                    self._samples[1].append((line, kind or ""))
                del frame
            self._wake.acquire(timeout=min(max(left_s, _PERIOD_S), _LONGEST_PERIOD_S))

    # The end.

    def finish(self, status: int) -> None:
        """Writes what is left; called when the program ends, whichever way."""
        if os.getpid() != self._process or self._is_over:
            return
        self._is_over = True
        self._wake.release()
        self._looks_on.acquire(timeout=_PATIENCE_S)
        for part in (self._stop, lambda: self._take_in(self._clock_ns(), is_slow=False)):
            try:
                part()
            except Exception as exc:  # ours, at the end of the program: the other part is kept all the same
                self._note_problem(exc)
        keepers: tuple[str, ...] = ()
        if self._memory is not None:
            with contextlib.suppress(Exception):
                step, before = self._memory
                growth = growth_between(before, MemoryLook(self._torch), self._step - step, self._torch)
                keepers = () if growth is None else tuple(keeper.source or keeper.name for keeper in growth.keepers)
        compiled = describe_compilation(os.getcwd()) if DYNAMO in sys.modules else None  # noqa: PTH109 - as plain text
        problem = (
            self.header.problem or self._boundaries.problem or (None if self._torch else "it never imported torch")
        )
        self.header = dataclasses.replace(
            self.header,
            steps=max(self._step - 1, 0),
            is_complete=True,
            status=status,
            memory_keepers=keepers,
            dead_workers=(*self._workers.dead_before, *self._workers.look_for_dead()),
            device_phases=None if self._device is None else self._device.result(),
            problem=problem,
            compile_health=None if compiled is None else compiled.health,
        )
        with contextlib.suppress(OSError):
            self._log.close()
        with contextlib.suppress(OSError):
            self._log.write_header(self.header)

    def _stop(self) -> None:
        self._leave_device()
        if self._windows is not None:
            self._windows.close()
            self._note_windows(self._windows)
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self._collect)
        self._import_hook.remove()
        self._boundaries.forget()
        self._hooks.forget()

    def _leave(self) -> None:
        """Leaves a fork of the process alone: a worker of the program's."""
        self._is_over, self._thread = True, None
        self._leave_device()

    def _note_problem(self, exc: Exception) -> None:
        self.header = dataclasses.replace(self.header, problem=f"{type(exc).__name__}: {exc}"[:200])

    def _fail(self, exc: Exception) -> None:
        self._note_problem(exc)
        self._thread = None
        self._stop()


def _lines_of(samples: Sequence[tuple[tuple[str, int, str] | None, str]]) -> tuple[SeenLine, ...]:
    counts = Counter(sample for sample in samples if sample[0] is not None)
    return tuple(
        SeenLine(line_source(line[0], line[1]), line[2], count, kind)
        for (line, kind), count in counts.most_common(_MOST_LINES)
        if line is not None
    )
