"""Lists the usual first changes that would bring nothing here.

They come after findings and verdict. Each is a bound: the change would save at most so much. On a device it comes from
a replay of the steps with more taken away than the change can take (every wait for a value, all that a compiler could
rewrite), over the paces that the host may have. On a CPU ops follow one another, and the bound is the recorded time of
all that the change is about.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bottleneck.advice.data_loading import loader_kinds
from bottleneck.advice.kernel_work import PRODUCTS, KernelWork, work_of
from bottleneck.advice.optimizers import FUSABLE, fused_bytes, issued_within
from bottleneck.advice.quantities import (
    ISSUE_ACCOUNTS,
    MANY_READS,
    event_spans,
    is_compiled,
    optimizer_names,
    outermost_spans,
    own_reads,
    rows_of_events,
    sources_of,
)
from bottleneck.advice.transfers import copies_to_device
from bottleneck.schema.analysis import GRAPH_CAPTURE, Analysis, Bound, BoundBasis, Finding, NoGain, NoGainCode
from bottleneck.schema.evidence import AtAnyPace, Evidence, ShorterKernels, remembered
from bottleneck.schema.intervals import Flags, Floats
from bottleneck.schema.loading import LOADER, WORKERS_ITERATOR
from bottleneck.schema.op_names import OPTIMIZER_STEP, place_of
from bottleneck.schema.tables import OVER_LINK

_MOST_LINES = 3
# A gain of at most so much of the step is none: replays are off by up to 1.5 % (docs/explanation/simulator.md).
_NOTHING = 0.02
# Of the step, in copies of pinned memory: where they take less nobody asks for it.
_WORTH_PINNING = 0.1
# Of the step: a device that works for less waits for its host.
_MOSTLY_IDLE = 0.4
# Of the kernels: where fewer have their launch in the trace, nothing tells what the host does.
_LAUNCHES_SEEN = 0.5
# Of arithmetic that becomes faster, where nearly all of the step moves bytes.
_HARDLY_ANY = 0.05
# With more of the step in collectives, what one rank gains is another rank's wait: a replay of one cannot tell.
_MOST_COLLECTIVES = 0.1
# Fewer kernels (CPU: ops) per step are a benchmark of them, and no program to compile or to replay.
_FEW = 10
# Of the device's time, from which on convolutions are in the way of a bound: a compiler lays their images otherwise.
_CONVOLVES = 0.01
# Memory-bound kernels from this share of their time explained on move their bytes at the memory's pace.
_AT_PACE = 0.5
# Groups of a convolution, and the part of the time of all that such take, from which on they are what counts.
_GROUPED, _MOSTLY_GROUPED = 8, 0.9
_FUSED = ("aten::_fused_adam_", "aten::_fused_adamw_", "aten::_fused_sgd_", "aten::_fused_adagrad_")
# Products that copy their addend into the result first.
_ADDS = re.compile(r"^aten::_?addmm\w*$|^aten::(?:baddbmm|addbmm|addmv|addr)_?$")
# Families of calls that a compiler leaves as they are, and what the largest of them is as a cause.
_STAYS = {
    "matmul": "products",
    "attention": "attention",
    "recurrent": "recurrent_layers",
    "linear algebra": "library_calls",
    "vision": "library_calls",
}

# What people try first for each bound; what is not named follows in the order of the makers.
_FIRST: Mapping[Bound, tuple[NoGainCode, ...]] = {
    "overhead": (
        "faster-device",
        "read-later",
        "workers",
        "compile",
        "graph",
        "fused-optimizer",
        "pin-memory",
        "larger-batch",
    ),
    "memory": ("compile", "faster-arithmetic", "fused-optimizer", "channels-last", "larger-batch", "read-later"),
    "compute": ("compile", "channels-last", "larger-batch", "fused-optimizer", "graph", "read-later", "workers"),
    "transfer": ("pin-memory", "workers", "read-later", "compile"),
}
# Findings that advise a change, beside those whose trials it names.
_ADVISED_BY: Mapping[NoGainCode, frozenset[str]] = {
    # One graph for the step needs the reads out of its way, and one compiled graph too, whatever they take themselves.
    "read-later": frozenset(
        {"host-sync", "item-calls", "logged-parameters", "printed-tensor", "read-in-rounds", "late-launches"}
        | {"graph-breaks"}
    ),
    "compile": frozenset(
        {"eager-overhead", "host-overhead", "unfused-chain", "unfused-norm", "unfused-attention", "tiny-kernels"}
        | {"graph-breaks", "compiling-in-step", "compile-break-even"}
    ),
    "graph": frozenset({"late-launches", "small-network"}),
    "fused-optimizer": frozenset({"unfused-optimizer"}),
    "workers": frozenset(
        {"input-wait", "loader-without-workers", "loader-restarts", "loader-hot-spot", "row-fetching"}
    ),
    "pin-memory": frozenset({"pageable-copies", "copies-not-overlapped", "small-copies"}),
    "channels-last": frozenset({"channels-first"}),
    "larger-batch": frozenset({"larger-batch", "small-network", "room-for-batch"}),
    "faster-arithmetic": frozenset(),
    "faster-device": frozenset(),
}
_TRIES: Mapping[NoGainCode, tuple[str, ...]] = {
    "compile": ("compile",),
    "graph": ("cuda-graph",),
    "fused-optimizer": ("fused-optimizer",),
    "workers": ("workers",),
    "pin-memory": ("pin-memory",),
    "channels-last": ("channels-last",),
    "larger-batch": ("batch-x2",),
}


def find_no_gain(evidence: Evidence, analysis: Analysis) -> tuple[NoGain, ...]:
    """Gives the first changes that would bring nothing, in usual order.

    That is the order in which people try them for this bound. None where the trace cannot bound them: it is incomplete
    or disturbed, the verdict is open, ranks wait for one another, or the step is a first one.
    """
    bound = analysis.verdict.bound
    is_open = bound == "inconclusive" or evidence.is_broken or evidence.is_elsewhere
    is_shared = evidence.share_of_step(evidence.group_us("communication")) > _MOST_COLLECTIVES
    if is_open or is_shared or _is_first(evidence):
        return ()
    order = dict.fromkeys((*_FIRST.get(bound, ()), *_MAKERS))
    listed: list[NoGain] = []
    for code in order:
        if len(listed) < _MOST_LINES and not _is_advised(code, analysis.findings):
            made = _MAKERS[code](evidence)
            listed += [made] if made is not None else []
    return tuple(listed)


def _is_first(evidence: Evidence) -> bool:
    """True for a first step of a device.

    It starts, compiles, takes memory or captures a graph. A replay keeps that where it is, and what is captured runs
    later.
    """
    if any(caveat.slug == GRAPH_CAPTURE for caveat in evidence.analysis.caveats):
        return True
    starts_us = evidence.account_us("overhead.compile", "overhead.allocator", "overhead.start_up")
    return not evidence.is_host_only and evidence.share_of_step(starts_us) > _NOTHING


def _is_advised(code: NoGainCode, findings: Sequence[Finding]) -> bool:
    """True if a finding advises the change or rejects it.

    Such a finding says itself that it does not pay.
    """
    tries = frozenset(_TRIES.get(code, ()))
    return any(
        finding.slug in _ADVISED_BY[code]
        or bool(tries & frozenset(finding.tries))
        or (code == "compile" and "torch.compile(" in (finding.code or ""))
        for finding in findings
    )


def _bounded(
    evidence: Evidence,
    code: NoGainCode,
    told: tuple[float | None, BoundBasis],
    cause: str,
    numbers: Mapping[str, float],
    source: str | None = None,
) -> NoGain | None:
    """Gives the line for a change that saves at most so much.

    The saving is per step, by such evidence. Null where that is something.
    """
    most_us, basis = told
    share = np.inf if most_us is None else evidence.share_of_step(max(most_us, 0.0))
    if share > (_HARDLY_ANY if code in {"faster-arithmetic", "faster-device"} else _NOTHING):
        return None
    as_floats = {name: float(number) for name, number in numbers.items()}
    return NoGain(code, float(share), basis, cause, as_floats, source, _TRIES.get(code, ()))


def _replayed(
    evidence: Evidence, changes: tuple[str, ...] = (), kernels: ShorterKernels | None = None
) -> tuple[float | None, BoundBasis]:
    """Returns the most that a replay with these changes saves.

    Null without one.
    """
    if evidence.predict is None:
        return None, "replayed"
    return evidence.predict(evidence, AtAnyPace(changes, kernels)), "replayed"


def _queued_us(evidence: Evidence, at_us: Floats) -> float:
    """Gives the mean time of queued device work at these instants.

    The work was launched before them.
    """
    kernels = evidence.linked.kernels
    issued_us = kernels["launch_ts_us"].to_numpy()
    rows = np.flatnonzero(np.isfinite(issued_us))
    rows = rows[np.argsort(issued_us[rows], kind="stable")]
    ends_us = np.maximum.accumulate((kernels["ts_us"] + kernels["dur_us"]).to_numpy()[rows])
    before = np.searchsorted(issued_us[rows], at_us) - 1
    left_us = np.append(ends_us, -np.inf)[before] - at_us
    return float(np.clip(left_us, 0.0, None).mean()) if at_us.size else 0.0


def _read_later(evidence: Evidence) -> NoGain | None:
    """Bounds the gain of reading tensors' values later, or not at all.

    What the device does meanwhile has to run anyway.
    """
    rows, at_us = own_reads(evidence), evidence.linked.ops["ts_us"].to_numpy()
    # The seed of a loader is read once an epoch. What a loop reads holds more back than the reads take themselves.
    if not evidence.steps <= rows.size < (MANY_READS * evidence.steps if evidence.is_host_only else math.inf):
        return None
    spent_us = float(evidence.linked.ops["dur_us"].to_numpy()[rows].sum()) / evidence.steps
    spent_us, calls = spent_us * (evidence.host_scale if evidence.is_host_only else 1.0), rows.size / evidence.steps
    line = _line_of(next(iter(sources_of(evidence, rows, most=1)), None))
    numbers = {"calls": calls, "spent_us": spent_us}
    if evidence.is_host_only:
        return _bounded(evidence, "read-later", (spent_us, "recorded"), "own_calls", numbers, line)
    numbers["queued_us"] = _queued_us(evidence, at_us[rows])
    bound = _replayed(evidence, ("remove sync",))
    cause = "queued_work" if 2 * numbers["queued_us"] * calls > spent_us else "own_calls"
    return _bounded(evidence, "read-later", bound, cause, numbers, line)


def _line_of(source: str | None) -> str | None:
    """Returns a source as file and line.

    Null for the code of a file itself: the profiler tells where it stood as the recording began, and not where it is.
    """
    place = None if source is None else place_of(source)
    if source is None or place is None:
        return source
    return None if place.is_function and source.startswith("<module>") else f"{place.file}:{place.line}"


@remembered
def compile_without_gain(evidence: Evidence) -> NoGain | None:
    """Bounds the gain of compiling the model.

    The calls of libraries stay as they are, and so does what is outside of the model.
    """
    work = work_of(evidence)
    if is_compiled(evidence) or evidence.kernels_per_step < _FEW or work.share(work.family("convolution")) > _CONVOLVES:
        return None
    library, outside = _library_rows(work), ~work.in_model
    stays = library | outside | _copies_over_link(work)
    assert evidence.kernel_time is not None, "kernels are timed before advice is given"
    us = evidence.kernel_time["us"].to_numpy()[work.row]
    stays_us, library_us = float(us[stays].sum()), float(us[library].sum())
    if evidence.is_host_only:
        bound: tuple[float | None, BoundBasis] = (evidence.step_us - stays_us, "recorded")
    else:
        bound = _with_gaps(evidence, _replayed(evidence, ("graph",), _without(work, ~stays)))
    numbers = {
        "stays_share": evidence.share_of_step(stays_us),
        "library_share": evidence.share_of_step(library_us),
    }
    families = {family: work.us_of(library & work.family(family)) for family in _STAYS}
    largest = max(families, key=lambda family: families[family])
    return _bounded(evidence, "compile", bound, _STAYS[largest], numbers)


def _library_rows(work: KernelWork) -> Flags:
    """Masks the rows that a compiler calls as they are.

    Copies of their addends are included.
    """
    loop = work.evidence.loops["loop"].to_numpy()[work.row]
    return np.asarray((work.family(*_STAYS) | work.op_like(_ADDS, above=True)) & (loop < 0))


def _copies_over_link(work: KernelWork) -> Flags:
    kernels = work.evidence.linked.kernels
    return np.asarray(kernels["copy_way"].isin(OVER_LINK).to_numpy()[work.row])


def _without(work: KernelWork, rows: Flags, part: float = 1.0) -> ShorterKernels:
    """Gives the step with these rows shorter by a part.

    The host does not launch these rows.
    """
    kernels = work.evidence.linked.kernels
    less_us, spared = np.zeros(len(kernels)), np.zeros(len(kernels), dtype=bool)
    less_us[work.row[rows]] = part * kernels["dur_us"].to_numpy()[work.row[rows]]
    spared[work.row[rows]] = True
    return ShorterKernels(less_us, spared)


def _with_gaps(evidence: Evidence, told: tuple[float | None, BoundBasis]) -> tuple[float | None, BoundBasis]:
    """Gives the bound with the device's waits and gaps.

    They are its waits for the host, and the gaps between queued kernels. A replay without launches keeps stretches of
    the host that are too long for issuing an op, and the usual gaps.
    """
    most_us, basis = told
    if most_us is None:
        return None, basis
    return max(most_us, evidence.account_us(*ISSUE_ACCOUNTS)) + evidence.account_us("overhead.kernel_gap"), basis


def _graph(evidence: Evidence) -> NoGain | None:
    """Replaying the step as one graph: launches come in time already."""
    replays = bool((evidence.linked.kernels["replayed"].to_numpy() & evidence.kernels_in_window).any())
    is_able = evidence.linked.trace.flavour in {"cuda", "rocm"} and not replays
    if evidence.is_host_only or not is_able or evidence.kernels_per_step < _FEW:
        return None
    bound = _with_gaps(evidence, _replayed(evidence, ("graph",)))
    idle_us = evidence.account_us(*ISSUE_ACCOUNTS, "overhead.kernel_gap")
    return _bounded(evidence, "graph", bound, "launched_in_time", {"idle_us": idle_us})


def _fused_optimizer(evidence: Evidence) -> NoGain | None:
    """Bounds the gain of one kernel for the whole update.

    It is the update of all parameters, which is short, or hidden behind queued work.
    """
    marks, names = outermost_spans(evidence, OPTIMIZER_STEP), optimizer_names(evidence)
    is_fused = any(name in evidence.op_sums for name in _FUSED)
    if not marks.start.size or not names or is_fused or not all(name in FUSABLE for name in names):
        return None
    if evidence.is_host_only:
        spent_us = marks.total() / evidence.steps * evidence.host_scale
        return _bounded(evidence, "fused-optimizer", (spent_us, "recorded"), "short_update", {"update_us": spent_us})
    work = work_of(evidence)
    rows = issued_within(evidence, marks)[work.row]
    bound = _replayed(evidence, (), _without(work, rows, 1.0 - fused_bytes(names)))
    queued_us = _queued_us(evidence, marks.start)
    cause = "queued_work" if queued_us > marks.total() / marks.start.size else "short_update"
    return _bounded(evidence, "fused-optimizer", bound, cause, {"queued_us": queued_us, "update_us": work.us_of(rows)})


def _workers(evidence: Evidence) -> NoGain | None:
    """More workers of the loader: the step does not wait for data."""
    kinds = loader_kinds(evidence)
    if not kinds:
        return None
    waited_us = evidence.account_us("overhead.input")
    loading_us = event_spans(evidence, rows_of_events(evidence, LOADER)).total() / evidence.steps * evidence.host_scale
    # In the process of the program, loading takes its time on a CPU also where ops of the loader are the work.
    most_us = max(waited_us, loading_us if evidence.is_host_only else 0.0)
    basis: BoundBasis = "recorded"
    if not evidence.is_host_only:
        replayed_us, basis = _replayed(evidence, ("remove input",))
        # No more than the loader's own calls take, by however much the replay misses the step.
        most_us = max(most_us, min(replayed_us or 0.0, loading_us))
    cause = "no_wait" if WORKERS_ITERATOR in kinds or not evidence.is_host_only else "short_loading"
    return _bounded(evidence, "workers", (most_us, basis), cause, {"waited_us": waited_us, "loading_us": loading_us})


def _pin_memory(evidence: Evidence) -> NoGain | None:
    """Bounds the gain of batches in pinned memory.

    Copying them takes no time of the step, or they lie there already.
    """
    copies = copies_to_device(evidence)
    if not copies.large_pageable.any():
        pinned_us = float(copies.dur_us[copies.pinned].sum()) / copies.steps if copies.pinned.all() else 0.0
        if evidence.share_of_step(pinned_us) < _WORTH_PINNING:
            return None
        return _bounded(evidence, "pin-memory", (0.0, "recorded"), "pinned", {"copied_us": pinned_us})
    kernels = evidence.linked.kernels
    names = dict.fromkeys(kernels["name"].iloc[copies.rows[copies.large_pageable]].astype(str))
    patterns = (re.sub(r"[\[\]*@=\n]", "?", name) for name in names)
    bound = _replayed(evidence, tuple(f"remove copy:{pattern}" for pattern in patterns))
    copied_us = float(copies.dur_us[copies.large_pageable].sum()) / copies.steps
    return _bounded(evidence, "pin-memory", bound, "short_copies", {"copied_us": copied_us})


def _channels_last(evidence: Evidence) -> NoGain | None:
    """Bounds the gain of images by pixels.

    Convolutions with many groups are run by kernels that gain nothing by it, or lose.
    """
    work = work_of(evidence)
    convolutions = work.family("convolution")
    if evidence.is_host_only or work.share(convolutions) < _CONVOLVES:
        return None
    grouped = convolutions & _with_groups(work, convolutions)
    share = work.us_of(grouped) / work.us_of(convolutions)
    if share < _MOSTLY_GROUPED:
        return None
    bound = _replayed(evidence, (), _without(work, convolutions & ~grouped))
    return _bounded(evidence, "channels-last", bound, "grouped", {"grouped_share": share})


def _with_groups(work: KernelWork, rows: Flags) -> Flags:
    """Masks convolutions among these rows with channels in many groups.

    Their images lie by planes.
    """
    many = []
    for signature in np.unique(work.signature[rows]).tolist():
        images = [size for size in work.sizes_of(signature) if len(size) == 4]
        groups = images[-2][1] // max(images[-1][1], 1) if len(images) >= 2 else 1
        # The call names its groups: in a transposed one the sizes alone tell nothing.
        if groups >= _GROUPED and str(groups) in map(str, work.text_column("concrete", signature)):
            many.append(signature)
    return np.isin(work.signature, many)


def _larger_batch(evidence: Evidence) -> NoGain | None:
    """Bounds the gain of more samples per step.

    The step was timed with twice as many, and took twice as long.
    """
    proof = evidence.analysis.batch_test
    if proof is None or proof.ratio is None:
        return None
    most_us = evidence.step_us * max(1.0 - proof.ratio.low / 2, 0.0)
    return _bounded(evidence, "larger-batch", (most_us, "timed"), "grows", {"ratio": proof.ratio.median})


def _faster_arithmetic(evidence: Evidence) -> NoGain | None:
    """Bounds the gain of a device with more FLOP/s.

    Its bandwidth stays the same, and nearly all of the step moves bytes at the memory's pace.
    """
    if evidence.is_host_only:
        return None
    work = work_of(evidence)
    moves = (work.bound("memory") & (work.roof("explained") >= _AT_PACE)) | _copies_over_link(work)
    if work.share(moves) < 1.0 - 2 * _HARDLY_ANY:
        return None
    bound = _replayed(evidence, (), _without(work, ~moves))
    return _bounded(evidence, "faster-arithmetic", bound, "moves_bytes", {"moves_share": work.share(moves)})


def _faster_device(evidence: Evidence) -> NoGain | None:
    """Bounds the gain of a device that is twice as fast.

    The host sets the pace of the step.
    """
    if evidence.is_host_only or evidence.is_broken:
        return None
    busy = evidence.share_of_step(evidence.analysis.totals.busy_us)
    if busy > _MOSTLY_IDLE:
        return None
    kernels = evidence.linked.kernels
    if np.isfinite(kernels["launch_ts_us"].to_numpy()).mean() < _LAUNCHES_SEEN:
        return None
    quicker = ShorterKernels(kernels["dur_us"].to_numpy() / 2, np.zeros(len(kernels), dtype=bool))
    numbers = {"busy_share": busy, "wide_share": _wide_share(evidence)}
    return _bounded(evidence, "faster-device", _replayed(evidence, (), quicker), "host_sets_pace", numbers)


def _wide_share(evidence: Evidence) -> float:
    """Gives the share of the step in products of fp32.

    These are faster in bf16.
    """
    work = work_of(evidence)
    return work.share(work.family(*PRODUCTS) & work.dtype("fp32", "tf32"))


# By code, in the order in which people try what ``_FIRST`` does not name.
_MAKERS: Mapping[NoGainCode, Callable[[Evidence], NoGain | None]] = {
    "read-later": _read_later,
    "compile": compile_without_gain,
    "graph": _graph,
    "fused-optimizer": _fused_optimizer,
    "workers": _workers,
    "pin-memory": _pin_memory,
    "channels-last": _channels_last,
    "larger-batch": _larger_batch,
    "faster-arithmetic": _faster_arithmetic,
    "faster-device": _faster_device,
}
