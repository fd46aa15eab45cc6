"""One profiler window around part of the user's program.

It is opened where that is safe, counted, closed and exported.

The profiler is used through ``torch.autograd.profiler.profile``: the class above it imports the compiler stack (two
seconds) when it starts. Its two entry points are watched so that a profiler of the program's own finds ours stopped:
two at once silently destroy data or crash in torch 2.13.
"""

import atexit
import contextlib
import dataclasses
import gc
import itertools
import json
import math
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

from bottleneck.harness import native_export, torch_private, trace_export
from bottleneck.harness.lines import Line, LineTracer, WithLines
from bottleneck.harness.machine import is_on_gpu
from bottleneck.harness.main_thread import run_in_main_thread
from bottleneck.harness.messages import RecordOptions
from bottleneck.harness.module_paths import Held, attribute_paths, find_modules
from bottleneck.harness.program import leave_at_once
from bottleneck.schema.op_names import MODULE_PATHS, OWN_STRETCH
from bottleneck.system.heap import free_heap_bytes
from bottleneck.system.process_usage import is_thread_at_work, peak_bytes

# How long the main thread may take to stop its window for another.
_HANDOVER_SECONDS = 5.0
# How long the threads of gloo may take to end what they are at, and how often to look.
_SETTLING_SECONDS, _GLANCE_SECONDS = 1.0, 0.0005

_LOG_LEVEL = "KINETO_LOG_LEVEL"


@dataclass(frozen=True)
class Detail:
    """The detail that a window records.

    It is recorded in the thread that opens the window and the backward threads that this thread starts.

    ``all_threads`` records the others too; memory events then vanish (torch 2.13). Such a window can be stopped by any
    thread, but an op that another is in the middle of would end under the next window, in memory that is freed.
    ``lines`` follows the program line by line, which takes its time.
    """

    shapes: bool = True
    stacks: bool = True
    memory: bool = False
    all_threads: bool = False
    lines: bool = False

    @property
    def least(self) -> "Detail":
        """The same threads with ops alone, which disturbs the program least."""
        return dataclasses.replace(self, shapes=False, stacks=False, memory=False, lines=False)


def detail_of(options: RecordOptions, default: Detail) -> Detail:
    """Gives the detail that the user requested.

    The default of the form stands for what they left open.
    """
    wanted = {"shapes": options.shapes, "stacks": options.stacks, "memory": options.memory}
    default = dataclasses.replace(default, lines=options.counting)
    return dataclasses.replace(default, **{name: choice for name, choice in wanted.items() if choice is not None})


class Guard:
    """Guards the window that is open in this process.

    Closes it when the program starts a profiler of its own.
    """

    def __init__(self) -> None:
        self.window: ProfilerWindow | None = None
        self.yielded = False
        self.used = False
        self._starting = False
        self._scopes: list[weakref.ref[Any]] = []

    def watch(self, torch: Any) -> None:
        """Wraps the functions that every way of starting a profiler goes through."""
        for module, names in torch_private.PROFILER_STARTS.items():
            profiler = getattr(torch.autograd, module, None)
            for name in names:
                original = getattr(profiler, name, None)
                if original is not None and getattr(original, "bottleneck_guard", None) is not self:
                    setattr(profiler, name, self._yielding(original))

    def _yielding(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def start(*arguments: Any, **keywords: Any) -> Any:
            if not self._starting:
                self.yield_to_program()
            return original(*arguments, **keywords)

        start.bottleneck_guard = self  # type: ignore[attr-defined]
        return start

    def yield_to_program(self) -> None:
        """Closes our window for good: the program profiles itself."""
        self.yielded = True
        if self.window is not None:
            self.window.stop()

    def is_clear(self) -> bool:
        """True if every scope that a closed window left open has ended.

        A `record_function` that begins under one profiler and ends under the next writes into memory that the first
        has freed: torch 2.13 then dies, sooner or later, of a corrupted heap.
        """
        self._scopes = [scope for scope in self._scopes if scope() is not None]
        return not self._scopes

    def open(self, window: "ProfilerWindow") -> bool:
        """Starts a window and tells whether it did.

        It does not where the program profiles itself, another window is open, or it would be unsafe.
        """
        if self.yielded or self.window is not None or not self.is_clear() or torch_private.is_profiling():
            return False
        self._starting = self.used = True
        try:
            window.start()
        except Exception:
            # A profiler that was left running would crash the interpreter at exit.
            with contextlib.suppress(Exception):
                window.stop()
            raise
        finally:
            self._starting = False
        self.window = window
        return True

    def closed(self, window: "ProfilerWindow") -> None:
        """Notes that a window has stopped, and which scopes it left open.

        A scope is open as long as its object lives.

        Each object refers to its class. To follow that takes half the time of a look at the class of every object.
        """
        self.window = None
        kind = window.torch.autograd.profiler.record_function
        self._scopes += [weakref.ref(scope) for scope in gc.get_referrers(kind) if type(scope) is kind]


GUARD = Guard()


def leave_forks_quietly(is_here: Callable[[], bool], status: Callable[[], int]) -> None:
    """Makes forks of the process leave at once at their exit.

    A fork of a process that used the profiler else hangs in a destructor. Call it before the program runs, so that its
    own callbacks come first. ``is_here`` is false in a fork, ``status`` gives the exit status.
    """

    def leave() -> None:
        if GUARD.used and not is_here():
            leave_at_once(status())

    atexit.register(leave)


class ProfilerWindow:
    """A stretch of the program under the profiler.

    ``stop`` may be called at any time and more than once.

    One that ``is_only_timed`` is not exported, and the modules of the program are not looked for when it stops.
    """

    def __init__(self, torch: Any, detail: Detail, *, is_only_timed: bool = False) -> None:
        self.torch = torch
        self._detail = detail
        self._is_only_timed = is_only_timed
        self._process, self._thread, self._native = os.getpid(), threading.get_ident(), threading.get_native_id()
        self._profiler: Any = None
        self._running = False
        self._exported = False
        self._tracer = LineTracer() if detail.lines and detail.stacks else None
        self._modules: Mapping[int, Held] = {}

    def open(self) -> bool:
        """True if the profiler now runs; it does not when the program's own does."""
        GUARD.watch(self.torch)
        return GUARD.open(self)

    def start(self) -> None:
        """Starts the profiler; called by the guard."""
        profile = self.torch.autograd.profiler.profile
        on_gpu = is_on_gpu(self.torch)
        self._profiler = profile(
            use_device="cuda" if on_gpu else None,
            record_shapes=self._detail.shapes,
            # A profile hook of the program's own would be removed by ours.
            with_stack=self._detail.stacks and sys.getprofile() is None,
            profile_memory=self._detail.memory,
            use_kineto=True,
            experimental_config=torch_private.profiler_config(
                enable_cuda_sync_events=on_gpu, profile_all_threads=self._detail.all_threads
            ),
        )
        torch_private.leave_unparsed(self._profiler)
        with quiet_profiler():
            self._profiler.__enter__()
        self._running = True
        if self._tracer is not None:
            self._tracer.start()

    def stop(self) -> None:
        """Stops the profiler if it runs in this process.

        One that was left running would crash the interpreter at exit.
        """
        if not (self._running and os.getpid() == self._process):
            return
        if self.is_mine:
            self._stop_here()
        elif self._thread == threading.main_thread().ident:
            run_in_main_thread(self._stop_here, _HANDOVER_SECONDS)

    def _stop_here(self) -> None:
        if self._running:
            self._running = False
            if self._tracer is not None:
                self._tracer.stop()
            _let_collectives_end(self.torch)
            with _kept_profile_hook():
                self._profiler.__exit__(None, None, None)
            GUARD.closed(self)
            if self._detail.stacks and self._tracer is None and not self._is_only_timed:
                self._modules = find_modules(self.torch)

    @property
    def is_mine(self) -> bool:
        """True if the caller can stop the window itself."""
        is_here = threading.get_ident() == self._thread or self._detail.all_threads
        return os.getpid() == self._process and is_here

    @property
    def is_running(self) -> bool:
        """True if it has been started and not been stopped.

        It may be stopped here or by the thread that was asked to.
        """
        return self._running

    def event_count(self) -> int:
        """Events that the stopped window holds; key_averages() would take 40-135 us for each."""
        results = self._profiler.kineto_results if self._profiler is not None else None
        if results is None:
            return 0
        events = torch_private.activities(results)
        return native_export.count_events(results) if events is None else len(events)

    def export(self, path: Path, own_ns: Sequence[tuple[int, int]] = ()) -> None:
        """Writes the trace, once; OSError when the disk cannot take it.

        ``own_ns`` are the stretches of the wall clock that our hooks took in it, which the trace then tells.

        From the activities where torch tells them: its exporter in C++ writes invalid JSON for a quotation mark in a
        name, and raises nothing when the disk is full.
        """
        assert not self._is_only_timed, "a window that is only timed has no trace to export"
        assert not self._exported, "a trace can be exported once only"
        self._exported = True
        with _no_collections():
            self._write(path, own_ns)

    def _write(self, path: Path, own_ns: Sequence[tuple[int, int]]) -> None:
        metadata = self._metadata()
        results = self._profiler.kineto_results
        own = [
            Line(OWN_STRETCH, start_ns, end_ns, self._process, self._native, "overhead") for start_ns, end_ns in own_ns
        ]
        followed = [] if self._tracer is None else self._tracer.lines
        self._profiler.kineto_results = results = WithLines(results, followed, own, self._detail.stacks)
        if self._modules:
            named = attribute_paths(itertools.chain.from_iterable(results.siblings), self._modules)
            metadata[MODULE_PATHS] = json.dumps(named)
        if torch_private.has_python_export(self.torch):
            # A later torch may tell less of an activity, and any torch now and then gives one a name that is no text.
            with contextlib.suppress(AttributeError, UnicodeDecodeError):
                trace_export.export(self.torch, results, path, metadata)
                return
        native_export.export(results, path, metadata)

    @property
    def lines(self) -> Sequence[Line]:
        """The stretches at lines of the program that the exported trace holds."""
        return getattr(self._profiler.kineto_results, "lines", ())

    def _metadata(self) -> dict[str, str]:
        detail = self._detail
        flags = {"record_shapes": detail.shapes, "with_stack": detail.stacks, "profile_memory": detail.memory}
        metadata = {name: "1" for name, is_on in flags.items() if is_on}
        distributed = self.torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            metadata["distributedInfo"] = json.dumps(
                {
                    "backend": distributed.get_backend(),
                    "rank": distributed.get_rank(),
                    "world_size": distributed.get_world_size(),
                    **torch_private.process_groups(distributed),
                }
            )
        return metadata


def _let_collectives_end(torch: Any) -> None:
    """Waits for the threads of gloo to end what they are at.

    They tell the profiler that a collective is over after the thread that waits for it may go on. Once the profiler is
    stopped they would write into memory that is freed.
    """
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return
    until_s = time.monotonic() + _SETTLING_SECONDS
    while is_thread_at_work(torch_private.GLOO_THREAD) and time.monotonic() < until_s:
        time.sleep(_GLANCE_SECONDS)


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    """Runs no garbage collection meanwhile.

    The events of a window are a hundred thousand objects without a cycle, and each full collection goes through all
    that the program holds.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextlib.contextmanager
def _kept_profile_hook() -> Iterator[None]:
    """Gives the program back its profile hook after torch removed it.

    The program set it while ours was at work, and torch removes whichever there is.
    """
    hook: Any = sys.getprofile()
    try:
        yield
    finally:
        if sys.getprofile() is None and hook is not None:
            if type(hook).__module__ in ("_lsprof", "cProfile"):
                hook.enable()
            elif isinstance(hook, FunctionType | MethodType):
                sys.setprofile(hook)


@contextlib.contextmanager
def quiet_profiler() -> Iterator[None]:
    """Keeps the profiler library from writing lines of its own to the program's stderr.

    It reads the variable once, when it is first used; the program does not get to see it.
    """
    is_ours = _LOG_LEVEL not in os.environ
    if is_ours:
        os.environ[_LOG_LEVEL] = "99"
    try:
        yield
    finally:
        if is_ours:
            os.environ.pop(_LOG_LEVEL, None)


MOST_GROWTH_BYTES, MOST_SECONDS = 1e9, 60.0
# Free memory that the heap may grow by in a window, and that is made ready for it: a step of 512 gradients of 4 MB each
# splits 2 GB.
MOST_SPLIT_BYTES = 4e9
# To read the memory takes up to 0.1 ms, in the middle of the program's step.
_READING_SECONDS = 0.1


class Bounds:
    """Counts from when it is made, which is when the window opens.

    Memory counts beyond what the process has ever had in use: a step that allocates as much as the one before is none
    of the window's doing.
    """

    def __init__(self) -> None:
        self._since_s = self._read_s = time.perf_counter()
        self._usual_bytes = max(peak_bytes(), resident_bytes())
        self._free_bytes = free_heap_bytes()

    def passed(self) -> str | None:
        """Gives the bound that the window has reached, in words.

        Null while there is none. Reads the memory at a period.
        """
        now_s = time.perf_counter()
        if now_s - self._read_s >= _READING_SECONDS:
            self._read_s = now_s
            if self.is_memory_passed():
                return f"{MOST_GROWTH_BYTES / 1e9:g} GB of memory"
        if now_s - self._since_s >= MOST_SECONDS:
            return f"{MOST_SECONDS:g} s"
        return None

    def is_memory_passed(self) -> bool:
        """True if it is the memory; false where the system does not tell.

        Free memory of the heap counts for less: the profiler's events may keep blocks from being taken again (heap.py).
        """
        grown = resident_bytes() - self._usual_bytes
        if not math.isfinite(grown) or grown <= MOST_GROWTH_BYTES:
            return False
        return grown > MOST_SPLIT_BYTES or grown - self.split_bytes() > MOST_GROWTH_BYTES

    def split_bytes(self) -> float:
        """Free memory of the heap that has come up since the window opened."""
        return float(free_heap_bytes() - self._free_bytes)


def resident_bytes() -> float:
    """Memory that this process has in use; infinite where the system does not tell."""
    try:
        descriptor = os.open("/proc/self/statm", os.O_RDONLY)
        try:
            pages = int(os.read(descriptor, 256).split()[1])
        finally:
            os.close(descriptor)
    except (OSError, ValueError, IndexError):
        return math.inf
    return float(pages * os.sysconf("SC_PAGE_SIZE"))
