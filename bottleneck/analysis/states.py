"""Names of host events to what the thread is doing meanwhile: the table behind the causes of idle time."""

import re
from collections.abc import Mapping

# Highest first: where several apply at one instant, the first one owns it. A compilation launches and waits, a loader
# runs ops, an allocator that frees synchronises: so what contains others of its kind stands before them.
STATES = ("profiler", "gc", "compile", "allocator", "sync", "launch", "input", "dispatch", "python")

_LOADER = r"^enumerate\(DataLoader\)|DataLoader\w*\.__next__|dataloader_next|\b(load|wait_for|next)_batch\b"
_SYNC_OP = r"^aten::(item|_local_scalar_dense|nonzero|is_nonzero)$"
_ALLOCATOR_CALL = (
    r"^(cuda|hip)(Malloc|Free|Host(Alloc|Free|Register|Unregister|Malloc))"
    r"|^(cuMem|hipMem)(Alloc|Free|Create|Map|Unmap|Release|Address|SetAccess|Host)|^ur(USM|Mem)\w*(Alloc|Free)"
)
# A copy call without 'Async' in its name returns when the copy is done.
_SYNC_CALL = (
    r"Synchronize(_pt[sd][sz])?$|^(cuda|hip|cu)Memcpy(?!\w*(Async|Batch))|^ur(QueueFinish|EventWait)$|HostSynchronize$"
)
_COMPILE_FRAME = (
    r"torch/_dynamo/convert_frame\.py|torch/_inductor/compile_fx\.py\(\d+\): \w*compile_fx\w*$"
    r"|torch/_inductor/(async_compile|codecache)\.py\(\d+\): (wait|load\w*|compile\w*)$"
    r"|triton_heuristics\.py\(\d+\): (autotune_to_one_config|benchmark_all_configs|_?precompile\w*)$"
    r"|triton/compiler/compiler\.py\(\d+\): compile$|triton/runtime/autotuner\.py\(\d+\): (_bench|benchmark)$"
)
_PROFILER_FRAME = (
    r"torch/profiler/profiler\.py\(\d+\): (start|stop|step|start_trace|stop_trace|_transit_action|prepare_trace)$"
    r"|torch/autograd/profiler\.py\(\d+\): (_start_trace|_prepare_trace|_disable_profiler)$"
)

# Per category of EVENTS: (state, pattern of names); the first match wins, null is a name that tells nothing.
_RULES: Mapping[str, tuple[tuple[str | None, str], ...]] = {
    "runtime": (
        ("allocator", _ALLOCATOR_CALL),
        ("compile", r"^(cu|hip|cuda)(Module|Library)(Load|Get|Unload)|^(cu|hip)Link"),
        ("sync", _SYNC_CALL),
        ("launch", r"Launch|Memcpy|Memset|^urEnqueue|^zeCommandListAppend"),
        ("dispatch", ""),
    ),
    "sync": ((None, "Stream Wait Event"), ("sync", "")),  # one stream waiting for another does not hold the host
    "op": (
        ("input", _LOADER),
        (None, r"^ProfilerStep|^Optimizer\."),  # annotations that traces before 1.12 call ops
        ("compile", r" \(dynamo_timed\)$"),
        ("sync", _SYNC_OP),
        ("dispatch", ""),
    ),
    "annotation": (("input", _LOADER), ("gc", r"^Python GC"), ("compile", r"_compile\b|autotun| \(dynamo_timed\)$")),
    "python": (
        ("input", r"utils/data/dataloader\.py\(\d+\): __next__$"),
        ("gc", r"^gc\.py\(|^<built-in (function|method) collect\b|^Python GC"),
        ("compile", _COMPILE_FRAME),
        ("profiler", _PROFILER_FRAME),
    ),
    # The spans named after the profiler cover the whole recording and tell nothing.
    "profiler": (
        (None, r"^PyTorch Profiler|trace \(\d+\)$|^Record Window|^Iteration Start"),
        ("compile", r"Lazy Function Loading|Module Loading"),
        ("profiler", ""),
    ),
}


# A kernel launch takes 3 to 10 us. One that holds the host this long while the device is idle loads or initialises:
# with lazy loading, CUDA brings a kernel's code in on its first launch.
SLOW_LAUNCH_US = 1000.0


def state_of(category: str, name: str) -> str | None:
    """One of STATES that an event of this category and name puts its thread in; null when it tells nothing."""
    for state, pattern in _COMPILED.get(category, ()):
        if pattern.search(name):
            return state
    return None


def launches_kernel(name: str) -> bool:
    """Whether a runtime call of this name launches one kernel (and not a whole graph or a copy)."""
    return "LaunchKernel" in name or "LaunchCooperativeKernel" in name


STATEFUL_CATEGORIES = tuple(_RULES)
# Frames of Windows have backslashes.
_COMPILED = {
    category: tuple((state, re.compile(pattern.replace("/", r"[/\\]"))) for state, pattern in rules)
    for category, rules in _RULES.items()
}
