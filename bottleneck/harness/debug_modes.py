"""Reads which aids to debugging are on in the profiled process.

It times what can be timed of them.
"""

import dataclasses
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any

from bottleneck.harness.lines import lines_that_say
from bottleneck.harness.torch_private import dispatch_modes
from bottleneck.harness.torch_state import ask
from bottleneck.schema.measurements import DebugMode, DebugName

# Variables that make torch or a library log, check or trace while the program runs, and values that do not. That of
# C++ stack traces (TORCH_SHOW_CPP_STACKTRACES) is none of them: it costs nothing until an error is raised.
_VARIABLES = (
    "TORCH_LOGS",
    "TORCH_COMPILE_DEBUG",
    "TORCH_SHOW_DISPATCH_TRACE",
    "TORCH_DISTRIBUTED_DEBUG",
    "TORCH_NCCL_DESYNC_DEBUG",
    "TORCH_NCCL_BLOCKING_WAIT",
    "ONEDNN_VERBOSE",
    "DNNL_VERBOSE",
    "MKL_VERBOSE",
    "CUDNN_LOGLEVEL_DBG",
    "CUDNN_LOGINFO_DBG",
    "CUBLAS_LOGINFO_DBG",
    "CUBLASLT_LOG_LEVEL",
    "NCCL_DEBUG",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "PYTORCH_JIT_LOG_LEVEL",
    "PYTHONASYNCIODEBUG",
)
_OFF = {"", "0", "OFF", "off", "false", "False", "WARN", "VERSION"}
_DEBUG_ALLOCATORS = {"debug", "malloc_debug", "pymalloc_debug"}
_SANITIZERS = re.compile(r"lib(?:asan|tsan|ubsan|lsan|msan|clang_rt\.\w*san|memray|efence|duma)[\w.-]*")
_INJECTED = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH")
# Tracers of the interpreter, by the numbers that PEP 669 gives them.
_MONITORING_TOOLS = 6
_LONGEST_DETAIL = 80

# The words of a program that switch an aid on; the first line that holds them is where it is done.
_SWITCHES: Mapping[DebugName, str] = {
    "anomaly-detection": r"\b(?:set_)?detect_anomaly\b",
    "deterministic-algorithms": r"\buse_deterministic_algorithms\b|\bset_deterministic_debug_mode\b|\bdeterministic=",
    "launch-blocking": r"CUDA_LAUNCH_BLOCKING",
    "sync-warnings": r"\bset_sync_debug_mode\b",
    "profile-function": r"\bcProfile\b|\bsetprofile\b",
    "trace-function": r"\bsettrace\b|\bset_trace\b|\bbreakpoint\(",
    "memory-tracing": r"\btracemalloc\b",
}


def read_debug_modes(torch: Any, environment: Mapping[str, str] | None = None) -> tuple[DebugMode, ...]:
    """Reads the aids to debugging that are on now.

    Call it while no profiler of ours runs: that has a profile function too. Nothing of the program is called. ``torch``
    is null where the program has not imported it.
    """
    environment = os.environ if environment is None else environment
    modes = (*_of_torch(torch), *_of_python(), *_of_environment(environment))
    return tuple(dataclasses.replace(mode, source=_line_that_switches(mode.name)) for mode in modes)


def merged(known: tuple[DebugMode, ...], found: tuple[DebugMode, ...]) -> tuple[DebugMode, ...]:
    """Both, each aid once; what was known of one stays."""
    by_name = {(mode.name, mode.detail): mode for mode in (*found, *known)}
    return tuple(sorted(by_name.values(), key=lambda mode: (mode.name, mode.detail)))


def _call(torch: Any, name: str) -> Any:
    """The answer of a function of torch, null where this version has none."""
    function = ask(lambda: attrgetter(name)(torch))
    return None if function is None else ask(function)


def _of_torch(torch: Any) -> Iterator[DebugMode]:
    if torch is None:
        return
    if _call(torch, "is_anomaly_enabled"):
        checks = _call(torch, "is_anomaly_check_nan_enabled")
        yield DebugMode("anomaly-detection", "without NaN checks" if checks is False else "")
    if _call(torch, "are_deterministic_algorithms_enabled"):
        warns = _call(torch, "is_deterministic_algorithms_warn_only_enabled")
        yield DebugMode("deterministic-algorithms", "warn only" if warns else "")
    if _call(torch, "cuda.is_initialized") and _call(torch, "cuda.get_sync_debug_mode"):
        yield DebugMode("sync-warnings")
    for mode in dispatch_modes():
        yield DebugMode("dispatch-mode", _class_name(mode))
    if ask(lambda: torch.version.debug):
        yield DebugMode("debug-build", "torch")


def _of_python() -> Iterator[DebugMode]:
    hooks: tuple[tuple[DebugName, Any], ...] = (
        ("profile-function", sys.getprofile()),
        ("trace-function", sys.gettrace()),
    )
    for name, hook in hooks:
        if hook is not None:
            yield DebugMode(name, _owner(hook))
    monitoring: Any = getattr(sys, "monitoring", None)
    for tool in range(_MONITORING_TOOLS if monitoring is not None else 0):
        if (owner := monitoring.get_tool(tool)) is not None:
            yield DebugMode("monitoring", str(owner)[:_LONGEST_DETAIL])
    if "tracemalloc" in sys.modules and sys.modules["tracemalloc"].is_tracing():
        yield DebugMode("memory-tracing")
    if sys.flags.dev_mode:
        yield DebugMode("development-mode")
    if hasattr(sys, "gettotalrefcount"):
        yield DebugMode("debug-build", "Python")


def _of_environment(environment: Mapping[str, str]) -> Iterator[DebugMode]:
    if environment.get("CUDA_LAUNCH_BLOCKING", "") not in _OFF:
        yield DebugMode("launch-blocking")
    if environment.get("PYTHONMALLOC", "") in _DEBUG_ALLOCATORS:
        yield DebugMode("debug-allocator", f"PYTHONMALLOC={environment['PYTHONMALLOC']}")
    for library in dict.fromkeys(_SANITIZERS.findall(environment.get("LD_PRELOAD", ""))):
        yield DebugMode("sanitizer", library[:_LONGEST_DETAIL])
    for name in _INJECTED:
        if environment.get(name):
            yield DebugMode("injected-tool", re.split(r"[/\\]", environment[name])[-1][:_LONGEST_DETAIL])
    for name in _VARIABLES:
        if environment.get(name, "") not in _OFF:
            yield DebugMode("environment", f"{name}={environment[name]}"[:_LONGEST_DETAIL])


_HOOKS = ("profile-function", "trace-function")
_TIMED_STEPS = 3


def _owner(hook: Any) -> str:
    """'coverage.tracer.CTracer' of an object, 'pydevd.trace_dispatch' of a function."""
    named = hook if isinstance(getattr(hook, "__qualname__", None), str) else type(hook)
    return f"{named.__module__}.{named.__qualname__}"[:_LONGEST_DETAIL]


def _class_name(thing: Any) -> str:
    return type(thing).__name__[:_LONGEST_DETAIL]


def _line_that_switches(name: DebugName) -> str | None:
    """Finds the first line of the program that switches the aid on.

    As 'train.py:5', with the words that do so; null where none has.
    """
    words = _SWITCHES.get(name)
    return None if words is None else next(lines_that_say(re.compile(words)), None)


def call_us(clock: Callable[[], int] = time.thread_time_ns) -> float:
    """Times a call of an empty function, in microseconds.

    It is the quickest of three times twenty: few calls for a foreign tool.
    """

    def empty() -> None:
        return None

    best_ns = float("inf")
    for _ in range(3):
        started = clock()
        for _ in range(20):
            empty()
        best_ns = min(best_ns, (clock() - started) / 20)
    return best_ns / 1e3


class CaptureClock:
    """Times the stack traces that anomaly detection records.

    They are those of the forward pass; the program gets the same ones. torch 2 calls `torch.fx.traceback.format_stack`
    for each node of the graph, by its name in that module.
    """

    def __init__(self, clock: Callable[[], int] = time.thread_time_ns) -> None:
        self._clock = clock
        self._module: Any = None
        self._original: Callable[[], Any] | None = None
        self._spent_ns = self._calls = 0

    def start(self) -> None:
        """Begins, where this version of torch records them there."""
        module: Any = sys.modules.get("torch.fx.traceback")
        original = getattr(module, "format_stack", None)
        if original is None or self._original is not None:
            return
        self._spent_ns = self._calls = 0
        self._module, self._original = module, original

        def format_stack() -> Any:
            started = self._clock()
            stack = original()
            self._spent_ns += self._clock() - started
            self._calls += 1
            is_ours = isinstance(stack, list) and stack and isinstance(stack[-1], str) and __file__ in stack[-1]
            return stack[:-1] if is_ours else stack

        module.format_stack = format_stack

    def stop(self) -> float | None:
        """Ends it: microseconds since ``start``; null where nothing was recorded, or nothing begun."""
        module, original = self._module, self._original
        if module is None:
            return None
        module.format_stack = original
        self._module = self._original = None
        return self._spent_ns / 1e3 if self._calls else None


class DebugWatch:
    """Aids to debugging that a process had on.

    They are read from time to time, with the time that they took in a few steps. All times are processor time of the
    thread: a step, on a processor that others want too, is no measure.
    """

    def __init__(self, clock: Callable[[], int] = time.thread_time_ns) -> None:
        self._clock = clock
        self._captures = CaptureClock(clock)
        self._since_ns: int | None = None
        self._timed_us: list[tuple[float, float]] = []

    @property
    def is_timing(self) -> bool:
        """True if a step has begun whose time is taken."""
        return self._since_ns is not None

    def read(self, known: tuple[DebugMode, ...], torch: Any) -> tuple[DebugMode, ...]:
        """Those known and those that are on now."""
        timed = {mode.name for mode in known if mode.call_us is not None}
        modes = [
            dataclasses.replace(mode, call_us=call_us(self._clock)) if mode.name in _HOOKS else mode
            for mode in read_debug_modes(torch)
            if mode.name not in timed
        ]
        return merged(known, tuple(modes))

    def begin_step(self, known: tuple[DebugMode, ...]) -> None:
        """Begins to time the stack traces of the next steps.

        Only where anomaly detection is on and its share is not known yet. Those steps are not measured.
        """
        if any(mode.name == "anomaly-detection" and mode.share is None for mode in known):
            self._timed_us = []
            self._start()

    def _start(self) -> None:
        self._captures.start()
        self._since_ns = self._clock()

    def end_step(self, known: tuple[DebugMode, ...], *, is_last: bool = False) -> tuple[DebugMode, ...]:
        """Ends a step, and begins the next one unless enough are timed.

        Returns the aids with the part that they took of the quickest step: the first one after a window also frees what
        that recorded.
        """
        spent_us, since_ns = self._captures.stop(), self._since_ns
        step_us = 0.0 if since_ns is None else (self._clock() - since_ns) / 1e3
        self._since_ns = None
        if spent_us is not None and step_us > 0:
            self._timed_us.append((step_us, spent_us))
            if len(self._timed_us) < _TIMED_STEPS and not is_last:
                self._start()
                return known
        quickest_us, part_us = min(self._timed_us, default=(0.0, 0.0))
        share = min(part_us / quickest_us, 1.0) if quickest_us > 0 else None
        return tuple(
            dataclasses.replace(mode, share=share) if mode.name == "anomaly-detection" else mode for mode in known
        )
