"""Rules of dispatch overhead: late launches, small kernels and small CPU ops."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct

from bottleneck.advice.bare_loops import bare_loop
from bottleneck.advice.kernel_work import work_of
from bottleneck.advice.optimizers import issued_within, loops_over_parameters, optimizer_share
from bottleneck.advice.quantities import (
    ISSUE_ACCOUNTS,
    MANY_READS,
    SMALLEST_OP_US,
    claims_of,
    format_count,
    format_per_step,
    has_backward_marks,
    host_us_per_launch,
    idle_lines,
    idle_rows,
    is_compiled,
    issue_us,
    mark_spans,
    outermost_frames,
    outermost_spans,
    own_reads,
    refuses_compiling,
    rows_of_events,
    rows_of_ops,
    timing_confidence,
    work_in_window,
)
from bottleneck.advice.ranking import Draft, Transformation, up_to
from bottleneck.advice.transfers import waits_of_uploads
from bottleneck.schema.accounts import UNMODELLED_ACCOUNTS
from bottleneck.schema.analysis import Interval
from bottleneck.schema.compile_causes import SKIPS
from bottleneck.schema.evidence import Evidence, remembered
from bottleneck.schema.intervals import Flags, grouped, union
from bottleneck.schema.learned_rates import fastest_host_us, host_units
from bottleneck.schema.op_names import BACKWARD_NODE, OPTIMIZER_STEP, at_known, place_of
from bottleneck.schema.tables import LAUNCHES, are_calls, as_integers, text_matches
from bottleneck.units import counted, format_share, format_us

# Rule 1 of advice_rules: below this share of the step, late launches are not what holds it back.
_LATE_SHARE = 0.2
# Queued kernels follow one another after 1 to 3 us (NVIDIA: cost_model, section 7), in a graph after the least.
_GRAPH_GAP_US = 1.3
# What launching the graph itself takes: 2.5 us by NVIDIA ("Constant Time Launch for Straight-Line CUDA Graphs", 2024)
# for the call alone, and Python around it.
_GRAPH_LAUNCH_US = 10.0
# Of what a graph saves at most, it saves so much at least: with few waits for the device in the step, and with more.
_LEAST_OF_GRAPH, _FEW_WAITS = {True: 0.5, False: 0.25}, 1
# Rule 2: kernels too short for their launch, and enough of them to matter.
_SHORT_US, _MANY = 10.0, 500
# Of the ops between two library kernels a compiler makes one kernel at best; no more than half as many as ops at worst.
_LEAST_FUSED = 0.5
# A compiled model still launches kernel by kernel: no more than this part of the waiting goes away.
_MOST_SAVED = 0.8
_LEAST_SHARE = 0.02
# A step of fewer kernels is a benchmark of them, and no program to compile.
_FEW = 4
# Of the step: from this part on, ops that compute on the CPU are no leftovers.
_ON_CPU = 0.05
# Of the ops of a step: so many with other sizes than in the step before are no single buffer that grows.
_OTHER_SIZES = 0.1


def late_launches(evidence: Evidence) -> Draft | None:
    """Finds idle time that one replayed graph would save (rule 1).

    The device waits for launches, which the graph would issue at once. The gain is the idle time in which the host
    dispatched, ran Python or launched, and the gaps between queued kernels, less one launch and the gap that a graph
    leaves between two kernels. At least half of that is counted. With several waiting calls inside, only the stretches
    between them can be replayed, each with a launch of its own: a quarter is counted then, and no gaps; but a loop over
    tokens may wait once for each. Silent where ops compute on the CPU or sizes change from step to step, as no graph
    holds such a step, unless a cache of keys and values is what grows.
    """
    late_us = issue_us(evidence)
    if (
        evidence.is_host_only
        or evidence.is_broken
        or _replays_graphs(evidence)
        or evidence.share_of_step(late_us) < _LATE_SHARE
        or loops_over_parameters(evidence)
    ):
        return None
    is_program = evidence.kernels_per_step >= _FEW or is_compiled(evidence)
    graph = graph_name(evidence)
    if graph is None or not is_program or _has_no_graph(evidence):
        return None
    kinds, lengths = _waits(evidence), _cache_lengths(evidence)
    waits = max(evidence.analysis.totals.sync_count - kinds.around - kinds.before, 0.0)
    has_few_waits = waits <= _FEW_WAITS * max(len(lengths) / evidence.steps, 1)
    gaps_us = late_us + (evidence.account_us("overhead.kernel_gap") if has_few_waits else 0.0)
    high_us = gaps_us - _GRAPH_GAP_US * evidence.kernels_per_step - _GRAPH_LAUNCH_US * (1 + waits)
    # With one wait for a result at the end of the step, one graph still holds the rest.
    least = _LEAST_OF_GRAPH[has_few_waits]
    if evidence.share_of_step(high_us) < _LEAST_SHARE:
        return None
    empty = None if evidence.analysis.queue is None else evidence.analysis.queue.empty_idle_share
    between = 0.0 if lengths and has_few_waits else waits
    stops = f"; {counted(format_count(between), 'waiting call')} per step in the way of one graph" if between else ""
    calls = _calls_in_words(kinds, waits)
    advice, brief, code = _to_replay(graph, between, lengths, f"{calls}{_place_of_waits(evidence)}")
    if not lengths and _optimizer_launches(evidence):
        code = _WHOLE_STEP
    skipped, change, to_capture = _skipped_graphs(evidence)
    return Draft(
        slug="late-launches",
        title="The device waits for the host to launch its next kernel",
        evidence=(
            f"idle for {format_us(late_us)} of each step ({format_share(evidence.share_of_step(late_us))}) while the "
            f"host prepares "
            f"{counted(format_count(evidence.analysis.totals.launch_count), 'launch', 'launches')}{stops}",
            *_growth_in_words(lengths),
            *(() if empty is None else (f"no kernel was queued in {format_share(empty)} of the idle time",)),
            *idle_lines(evidence, "dispatch", "python", "launch"),
            *_around_in_words(kinds),
            *skipped,
        ),
        advice=advice + change,
        brief=brief,
        code=to_capture + code,
        gain_us=Interval(high_us * least, high_us),
        claims=claims_of(evidence, *ISSUE_ACCOUNTS, "overhead.kernel_gap", most_us=gaps_us - _GRAPH_LAUNCH_US),
        tries=("compile-reduce-overhead", "cuda-graph"),
        confidence="low" if waits else timing_confidence(evidence),
        transformation=Transformation(("graph",), least=least),
    )


_MOST_SKIPS = 2


def _skipped_graphs(evidence: Evidence) -> tuple[tuple[str, ...], str, str]:
    """Gives the graphs that torch.compile did not capture though asked to.

    Advice and code are for the first. All empty where it captured what it was asked to.
    """
    health = evidence.analysis.compile_health
    skips = () if health is None else health.skips
    if not skips:
        return (), "", ""
    words = tuple(
        f"torch captured no graph{at_known(one.source)}: {SKIPS[one.cause].words}" for one in skips[:_MOST_SKIPS]
    )
    first = SKIPS[skips[0].cause]
    return words, f" {first.change}", f"{first.code}\n"


class _SyncCounts(Struct, frozen=True):
    """Counts calls per step that wait for the device, by place and cause.

    ``around`` wait for all of it before the first or after the last launch of their step, ``before`` copy inputs from
    pageable memory before its first kernel: no graph has to hold either. The others are ``of_device``, ``of_copies``,
    ``of_events`` and those that read a value.
    """

    around: float
    before: float
    of_device: float
    of_copies: float
    of_events: float


_EVENT_WAIT = re.compile(r"Event\w*(?:Synchronize|Wait)")


@remembered
def _waits(evidence: Evidence) -> _SyncCounts:
    trace, window, kernels = evidence.linked.trace, evidence.linked.window, evidence.linked.kernels
    start = trace.events["ts_us"].to_numpy()
    waits, copies = start[are_calls(trace, "synchronise_device")], start[waits_of_uploads(evidence)]
    launched = start[are_calls(trace, *LAUNCHES)]
    computed = kernels["launch_ts_us"].to_numpy()[(kernels["kind"] == "compute").to_numpy()]
    is_event = are_calls(trace, "synchronise") & text_matches(trace.events["name"], _EVENT_WAIT.search)
    events = start[is_event]
    around = between = before = after = of_events = 0
    for low, high in [(step.start_us, step.end_us) for step in window.steps] or [window.host_us]:
        mine, copied, issued, begun = (at[(at >= low) & (at < high)] for at in (waits, copies, launched, computed))
        inside = int(np.count_nonzero((mine > issued.min(initial=high)) & (mine < issued.max(initial=low))))
        around, between = around + mine.size - inside, between + inside
        late = int(np.count_nonzero(copied > begun.min(initial=high)))
        before, after = before + copied.size - late, after + late
        of_events += int(np.count_nonzero((events >= low) & (events < high)))
    return _SyncCounts(*(count / evidence.steps for count in (around, before, between, after, of_events)))


_ONE_CALL = 1.5  # per step: up to here it is told as one


def _calls_in_words(kinds: _SyncCounts, waits: float) -> str:
    """Names the calls that wait between launches: 'torch.cuda.synchronize()'."""
    others = kinds.of_device + kinds.of_copies + kinds.of_events
    names = (
        *(["torch.cuda.synchronize()"] if kinds.of_device else []),
        *(["copies from pageable memory"] if kinds.of_copies else []),
        *(["event.synchronize()"] if kinds.of_events else []),
        *(
            [f"{'calls' if waits - others > _ONE_CALL else 'a call'} such as .item() or .cpu()"]
            if waits > others
            else []
        ),
    )
    return " and ".join(names)


def _place_of_waits(evidence: Evidence) -> str:
    """Gives ', train.py:12' for the line or function that waits longest for the device.

    Without lines it says what shows them; else it is empty where none is known.
    """
    source = next((row.source for row in idle_rows(evidence, "sync") if row.source is not None), None)
    place = None if source is None else place_of(source)
    if place is None:
        return "; with_stack=True shows where" if evidence.linked.places is None else ""
    return f", {place.file}:{place.line}"


def _around_in_words(waits: _SyncCounts) -> tuple[str, ...]:
    around = (
        f"waits for the device before the first or after the last launch ({format_count(waits.around)} per step), as a "
        "benchmark has them, are no hindrance: they cost what could overlap with the next step"
    )
    before = (
        f"{counted(format_count(waits.before), 'copy', 'copies')} of inputs from pageable memory per step, which the "
        "host waits for, come before the first kernel and are no hindrance; pin_memory=True and non_blocking=True end "
        "these waits"
    )
    return (*([around] if waits.around else []), *([before] if waits.before else []))


def _to_replay(graph: str, waits: float, lengths: Sequence[int], calls: str) -> tuple[str, str, str]:
    """Gives advice, its short form and code that make a graph of the step.

    ``waits`` are the calls per step that stand in its way, which may be ``calls``; ``lengths`` are those of a cache
    that grows by a token each.
    """
    count = format_count(waits)
    removed = f"take the calls that wait for the device ({count} per step) out of the step, " if waits else ""
    what = "the step of a token" if lengths else "it" if waits else "the step"
    replay = f"{'then ' if waits or lengths else ''}run {what} as a {graph} (torch.cuda.graph)"
    static = "keep keys and values in a static cache, " if lengths else ""
    advice = f"{static}{removed}{replay}, so that one call launches all of its kernels."
    if lengths:
        brief = f"Keep keys and values in a static cache, {replay}"
        code = (
            'model.generation_config.cache_implementation = "static"  # Hugging Face\n'
            'model.forward = torch.compile(model.forward, mode="reduce-overhead")'
        )
        return advice[0].upper() + advice[1:], brief, code
    many = "the host sync" if count == "1" else f"the {counted(count, 'host sync')}"
    syncs = f"remove {many} of the step ({calls}), " if waits else ""
    brief = f"{syncs}{replay}"
    code = 'model = torch.compile(model, mode="reduce-overhead")  # or torch.cuda.make_graphed_callables'
    return advice[0].upper() + advice[1:], brief[0].upper() + brief[1:], code


# A compiled model leaves its optimizer out: from this part of the launches on, the graph has to hold that too.
_MOST_LEFT_OUT = 0.2
_WHOLE_STEP = (
    "with torch.cuda.graph(graph):  # of the whole step, the optimizer's too (capturable=True), after a few warm-up "
    "steps\n"
    "    loss = loss_of(model(batch)); loss.backward(); optimizer.step()\n"
    "graph.replay()  # in the loop, after batch.copy_(next_batch)"
)


def _optimizer_launches(evidence: Evidence) -> bool:
    """True if optimizers launch a good part of the step's kernels."""
    marks = outermost_spans(evidence, OPTIMIZER_STEP)
    mine = issued_within(evidence, marks).sum() if marks.start.size else 0
    return bool(mine > _MOST_LEFT_OUT * evidence.kernels_in_window.sum())


# So many tokens one after the other are no coincidence; each adds a key and a value.
_LEAST_TOKENS, _KEY_AND_VALUE = 4, 2


@remembered
def _cache_lengths(evidence: Evidence) -> tuple[int, ...]:
    """Gives the lengths of a growing cache of keys and values.

    aten::cat makes it longer by a token each. Empty where there is none, or where sizes are not recorded.
    """
    work, rows = work_of(evidence), rows_of_ops(evidence, ("aten::cat",))
    calls = as_integers(evidence.linked.ops["signature"])[rows]
    grown: dict[tuple[int, ...], Counter[int]] = {}
    for call, count in Counter(calls.tolist()).items():
        sizes = work.tensors_of(call)
        if len(sizes) != 2 or len(sizes[0]) != len(sizes[1]) or len(sizes[0]) < 3:
            continue
        differing = [place for place, (old, new) in enumerate(zip(*sizes, strict=True)) if old != new]
        if len(differing) == 1 and sizes[1][differing[0]] == 1:
            place = differing[0]
            grown.setdefault((place, *sizes[1]), Counter())[sizes[0][place]] += count
    for counts in grown.values():
        lengths = sorted(length for length, count in counts.items() if count >= _KEY_AND_VALUE)
        if len(lengths) >= _LEAST_TOKENS and lengths[-1] - lengths[0] == len(lengths) - 1:
            return tuple(lengths)
    return ()


def _growth_in_words(lengths: Sequence[int]) -> tuple[str, ...]:
    if not lengths:
        return ()
    return (f"aten::cat makes the key/value cache longer with each token ({lengths[0]} to {lengths[-1]})",)


def graph_name(evidence: Evidence) -> str | None:
    """Names the graph of the device's vendor: 'CUDA graph' or 'HIP graph'.

    Null where it has none.
    """
    return {"cuda": "CUDA graph", "rocm": "HIP graph"}.get(evidence.linked.trace.flavour)


def _has_no_graph(evidence: Evidence) -> bool:
    """True where no graph can hold the step.

    Ops compute on the CPU within it, or its sizes change from one step to the next, and not by a cache that can be made
    static.
    """
    on_cpu_us = evidence.account_us("overhead.host_compute")
    changes = not _cache_lengths(evidence) and _sizes_change(evidence)
    return changes or evidence.share_of_step(on_cpu_us) >= _ON_CPU


def _sizes_change(evidence: Evidence) -> bool:
    """True if in most steps the same ops get other sizes.

    That is by what was recorded of them, against the step before.
    """
    ops = evidence.linked.ops
    ops = ops[(ops["step"].notna() & ops["signature"].notna()).to_numpy()]
    names, sizes = ops["name"].cat.codes.to_numpy(), ops["signature"].to_numpy(dtype=np.int64)
    rows = [mine for _, mine in grouped(ops["step"].to_numpy(dtype=np.int64))]
    changed = [
        float(np.mean(sizes[one] != sizes[next_one]))
        for one, next_one in pairwise(rows)
        if np.array_equal(names[one], names[next_one])
    ]
    return len(changed) > 0 and float(np.median(changed)) >= _OTHER_SIZES


def _replays_graphs(evidence: Evidence) -> bool:
    """True if device work of the window comes from replayed graphs."""
    return bool((evidence.linked.kernels["replayed"].to_numpy() & evidence.kernels_in_window).any())


def eager_overhead(evidence: Evidence) -> Draft | None:
    """Finds a host that issues ops too slowly (rule 4).

    This is the rule on a device: op by op, the host is slower than the device.
    """
    late_us = issue_us(evidence)
    if evidence.is_host_only or evidence.is_broken or is_compiled(evidence) or _replays_graphs(evidence):
        return None
    if evidence.share_of_step(late_us) < _LATE_SHARE or evidence.kernels_per_step < _FEW:
        return None
    low, high = compiled_parts(evidence)
    if evidence.share_of_step(high * late_us) < _LEAST_SHARE:
        return None
    launches, each_us = evidence.analysis.totals.launch_count, host_us_per_launch(evidence)
    issued = f"{format_count(launches or evidence.kernels_per_step)} {'launches' if launches else 'kernels'} per step"
    pace = "" if each_us is None else f", one each {format_us(each_us)}"
    return Draft(
        slug="eager-overhead",
        title="Ops are issued one by one, slower than the device runs them",
        evidence=(
            f"{issued}{pace}; the device idles "
            f"{format_us(late_us)} ({format_share(evidence.share_of_step(late_us))}) meanwhile",
            *idle_lines(evidence, "dispatch", "python", "launch"),
        ),
        advice="Compile the model: fewer kernels, and less Python and dispatching between them.",
        code="model = torch.compile(model)",
        gain_us=Interval(low * late_us, high * late_us),
        claims=claims_of(evidence, *ISSUE_ACCOUNTS, most_us=high * late_us),
        tries=("compile",),
        confidence=timing_confidence(evidence),
        transformation=Transformation(("graph",), low, high),
    )


_HOST_KINDS = {"convolution": "convolution", "matmul": "product", "attention": "product", "normalization": "norm"}
_LIBRARY_FAMILIES = ("convolution", "matmul", "attention", "recurrent")


@remembered
def compiled_parts(evidence: Evidence) -> tuple[float, float]:
    """Gives the parts of the host's time that compiling the model saves.

    They are parts of the time for issuing a device's step, at least and at most. Eager ops, calls of a compiled graph
    and the kernels in it take multiples of the host's pace, which timed programs taught. At most the pace is what makes
    eager ops fill the step: then compiling saves the least. At least it is that of the fastest timed host, and the rest
    of the step is Python, which compiled code does not run. The optimizer, and what else is no part of the model,
    stays.
    """
    work, steps = work_of(evidence), evidence.steps
    ops, first = np.unique(work.op, return_index=True)
    first = first[ops >= 0]
    first = first[np.argsort(evidence.linked.ops["ts_us"].to_numpy()[work.op[first]], kind="stable")]
    units = np.full(work.row.size, host_units("op"))
    for family, kind in _HOST_KINDS.items():
        units[work.family(family)] = host_units(kind)
    units[work.family("recurrent")] = host_units("recurrent")
    library, in_model = work.family(*_LIBRARY_FAMILIES)[first], work.in_model[first]
    eager = float(units[first].sum()) / steps
    if not in_model.any() or not evidence.step_us > 0:
        return 0.0, 0.0
    loops = ~library[in_model]
    runs = max(np.count_nonzero(loops & np.concatenate(([True], ~loops[:-1]))) / steps, float(loops.any()))
    calls = host_units("compiled step") * (2.0 if has_backward_marks(evidence) else 1.0)
    stays = float(units[first][~in_model].sum()) / steps + calls
    stays += host_units("library kernel") * float(np.count_nonzero(library & in_model)) / steps
    most = max(runs, _LEAST_FUSED * float(np.count_nonzero(loops)) / steps)
    least_left, most_left = (stays + host_units("generated kernel") * number for number in (runs, most))
    slowest_us = evidence.step_us / eager
    fastest_us = min(fastest_host_us(), slowest_us)
    left = (slowest_us * most_left, fastest_us * least_left)
    low, high = (min(max(1.0 - us / evidence.step_us, 0.0), _MOST_SAVED) for us in left)
    return low, high


def tiny_kernels(evidence: Evidence) -> Draft | None:
    """Finds many kernels close to the shortest possible time (rule 2).

    The device is kept busy with them. Fusing takes away launches: half to all of the time that these kernels spend on
    their launch floor. Where the device waits for the host instead, that is the larger loss, which the rules above
    cover.
    """
    durations_us = evidence.linked.kernels["dur_us"].to_numpy()[work_in_window(evidence)]
    floor_us = evidence.analysis.device.launch_floor_us
    if evidence.is_host_only or not durations_us.size or floor_us is None:
        return None
    typical_us = float(np.median(durations_us))
    count, paid_us = evidence.kernels_per_step, evidence.account_us("overhead.launch_floor")
    late_us = issue_us(evidence)
    if typical_us >= _SHORT_US or count <= _MANY or evidence.share_of_step(late_us) >= _LATE_SHARE:
        return None
    if evidence.share_of_step(paid_us) < _LEAST_SHARE:
        return None
    return Draft(
        slug="tiny-kernels",
        title="Many kernels are over as soon as they have begun",
        evidence=(
            f"{counted(format_count(count), 'kernel')} per step, half of them under {format_us(typical_us)}; none can "
            f"take less than {format_us(floor_us)}",
            f"{format_per_step(evidence, paid_us)} goes into starting kernels",
        ),
        advice="Fuse the small kernels, or give each more work with a larger batch.",
        code="model = torch.compile(model)",
        gain_us=up_to(paid_us),
        claims=claims_of(evidence, "overhead.launch_floor"),
        tries=("compile", "compile-max-autotune"),
    )


# A call of compiled code on a CPU (guards, wrappers, with gradients autograd's entry and its backward node), in times
# of the smallest op of the machine (0.54 us): 10 to 25 us without gradients and up to twice that between other work,
# 120 to 490 us with them (torch 2.13, EPYC, one thread, one small layer, convolutions with batch norm the dearest).
_CALL_OPS = {False: (30.0, 100.0), True: (220.0, 900.0)}
# What a model's call takes, in times of that of the small model of `bottleneck calibrate`, which has 8 parameters: it
# grows with them. Measured with 1, 8 and 48 layers of one parameter (torch 2.13, EPYC, one thread): 23, 26 and 55 us,
# with the backward pass 70, 324 and 860 us, of which a part is autograd's, that a model has in either case.
_MODEL_CALLS = {False: (0.8, 2.1), True: (0.4, 1.5)}
# Part of the overhead per op that compiling takes away, measured there too: most of it where ops become one loop
# (60 pointwise ops: 3.1 of 3.6 us each; forward and backward 7.8 of 13); next to nothing, or less, where a product
# stays a call of its own (48 linear layers: 41 us of 460).
FUSED, _KEPT = (0.4, 0.95), (-0.3, 0.2)
# Overhead per op beyond so many times the smallest op is not that of issuing it (13 us forward and backward), but of a
# processor that others use too.
_EACH_OPS = 25.0
# Where the smallest op of the machine is not known, it is this part of the overhead per op (0.54 of 13 us there).
_SMALLEST_OP = 0.04
_PRODUCT = re.compile(
    r"^aten::(\w*mm|_?addm?v|mv|dot|einsum|linear|bilinear|\w*conv\w*|\w*attention\w*|lstm|gru|\w*rnn\w*)$"
)
# Ops for which Inductor makes no loop on a CPU (torch 2.13, `make_fallback` in torch/_inductor/lowering.py): each stays
# one call with all that it calls itself. Promised 1.05 to 1.32 with the ops inside them, a model of embedding bags gave
# 0.97 compiled.
_NO_LOOP = re.compile(
    r"^aten::(_?embedding_bag\w*|sort|topk|kthvalue|nanmedian|_?unique\w*|nonzero|bincount|hist\w+|multinomial|randperm"
    r"|_?cdist\w*|_pdist\w*|_?linalg_\w+|cholesky\w*|triangular_solve|lu_unpack|geqrf|ormqr|_fft_\w+|cumsum|logcumsumexp"
    r"|masked_scatter\w*|segment_reduce|_segment_reduce_backward|adaptive_max_pool3d"
    r"|max_pool3d_with_indices_backward|_?(?:adaptive_avg|adaptive_max|fractional_max)_pool[23]d_backward"
    r"|grid_sampler_2d_backward|upsample_(?:linear1d|bicubic2d|trilinear3d)_backward|index_reduce)$"
)
# Dynamo leaves recurrent layers of the library as they are (torch 2.13, `allow_rnn` in torch/_dynamo/config.py):
# promised 1.3 to 3.0 with the ops of its GRU, a tagger gave 0.94 (0.84 to 1.06) compiled.
_LEFT_EAGER = re.compile(r"\b(?:LSTM|GRU|RNN)_\d+")
# Random numbers of a compiled loop are drawn one by one: six dropouts of 32768 numbers made a step 4 to 6 ms slower.
_RANDOM = re.compile(r"^aten::(bernoulli_?|native_dropout|rand\w*|normal_|uniform_)$")
_RANDOM_COST = 2.5
_FACTORY = re.compile(r"^aten::(?:randn?|randint|normal)(?:_like)?$")
# What the middle of the interval must promise before compiling is advised: below it, as many lost as won by it (17
# programs, torch 2.13: linear layers with ReLU won from 48 on and lost up to 16).
COMPILE_PAYS = 0.05
# The part of the gain at best that may be lost at worst. A low end that loses much is no promise: examples/mlp.py was
# promised 1.00 to 1.49, and gave 0.86.
_MAY_LOSE = 1 / 8
_MODULE, _BACKWARD = re.compile(r"^nn\.Module: "), re.compile(f"^{BACKWARD_NODE}")
_READ = re.compile(r"^aten::(?:_local_scalar_dense|is_nonzero)$")
# The sum of gradients into parameters is autograd's own, whoever made the backward pass.
_ACCUMULATES = re.compile(r"AccumulateGrad$")


class _ModelOverhead(Struct, frozen=True):
    """The model's part of a CPU step.

    It is its overhead per step and the ops that do work: those that a compiler fuses, and others. ``us`` leaves out
    what the optimizer and the zeroing of gradients take, as compiling the model does not touch them. ``each_us`` is the
    overhead per op. An op that stays a call counts once, whatever it calls itself. ``entries`` are the calls of
    outermost modules, each of which is a call of compiled code. Where modules are not recorded, they are the stretches
    between values that Python reads. ``random_us`` is what drawing random numbers takes.
    """

    us: float
    each_us: float
    fused: float
    stays: float
    entries: float
    random_us: float


@remembered
def _model_calls(evidence: Evidence) -> _ModelOverhead:
    share = optimizer_share(evidence)
    us = (issue_us(evidence) + evidence.account_us("overhead.launch_floor")) * (1 - share.overhead)
    works = work_in_window(evidence)
    each_us = us / max(float(np.count_nonzero(works)) / evidence.steps - share.ops, 1.0)
    kernels, modules = evidence.linked.kernels, outermost_frames(evidence, _MODULE)
    product = text_matches(kernels["name"], _PRODUCT.search)
    compiled = works & made_by_model(evidence) & ~text_matches(kernels["module"], _LEFT_EAGER.search)
    library, at_us = outermost_spans(evidence, _NO_LOOP), kernels["ts_us"].to_numpy()
    inside = compiled & library.hold(at_us)
    calls = np.unique(np.searchsorted(library.start, at_us[inside], side="right")).size
    stays = float(np.count_nonzero(compiled & product & ~inside) + calls) / evidence.steps
    fused = float(np.count_nonzero(compiled & ~product & ~inside)) / evidence.steps
    fused -= 0.0 if modules.start.size else share.ops
    random_us = math.fsum(row.us for row in evidence.analysis.kernels if _RANDOM.search(row.name))
    random_us = max(random_us - work_of(evidence).us_of(drawn_ahead(evidence)), 0.0)
    entries = modules.start.size / evidence.steps or _stretches_between_reads(evidence, compiled & product)
    most_us = _EACH_OPS * (evidence.analysis.device.launch_floor_us or each_us)
    return _ModelOverhead(us, min(each_us, most_us), max(fused, 0.0), stays, max(entries, 1.0), random_us)


def _stretches_between_reads(evidence: Evidence, products: Flags) -> float:
    """Counts the stretches of a step's products between two values that Python reads.

    The products are those of the forward pass. Such a read ends a call of compiled code: a model that is asked for each
    action of an episode is called for each.
    """
    events, at_us = evidence.linked.trace.events, evidence.linked.kernels["ts_us"].to_numpy()
    reads_us = np.sort(events["ts_us"].to_numpy()[rows_of_events(evidence, _READ)])
    backward = union(*mark_spans(evidence, rows_of_events(evidence, _BACKWARD)))
    forward_us = at_us[products & ~backward.hold(at_us)]
    return float(np.unique(np.searchsorted(reads_us, forward_us)).size) / evidence.steps


@remembered
def drawn_ahead(evidence: Evidence) -> Flags:
    """Masks rows that draw random numbers ahead of a fusible loop.

    They draw into a new tensor, ahead of a loop that a compiler would fuse. The program can draw them before it calls
    the compiled loop. A dropout draws inside of what it is applied to.
    """
    work = work_of(evidence)
    loop = evidence.loops["loop"].to_numpy()[work.row]
    begins = np.append(True, np.diff(loop) != 0)[: loop.size]
    return np.asarray(begins & (loop >= 0) & work.family("random") & work.op_like(_FACTORY, above=True))


def made_by_model(evidence: Evidence) -> Flags:
    """Masks the rows of KERNELS that a module's passes run.

    They are its forward and backward passes. All rows where no module is recorded.
    """
    modules = outermost_frames(evidence, _MODULE)
    at_us = evidence.linked.kernels["ts_us"].to_numpy()
    if not modules.start.size:
        return np.ones(at_us.size, dtype=bool)
    backward, sums = (
        union(*mark_spans(evidence, rows_of_events(evidence, pattern))) for pattern in (_BACKWARD, _ACCUMULATES)
    )
    return np.asarray(modules.hold(at_us) | (backward.hold(at_us) & ~sums.hold(at_us)))


def us_per_call(evidence: Evidence) -> float:
    """Overhead of the model per op that does work, on a CPU."""
    return _model_calls(evidence).each_us


def compile_gain_us(evidence: Evidence) -> Interval | None:
    """Gives the overhead that compiling the model of a CPU step saves.

    It is in us per step, negative where compiling costs, and null elsewhere. It is the overhead per op x (fused ops x
    0.4-0.95 + ops that stay calls x -0.3-0.2) less the calls of compiled code, one per call of an outermost module. See
    above for the source of these numbers. Bytes that fusing saves are another rule's.
    """
    if not evidence.is_host_only or is_compiled(evidence) or refuses_compiling(evidence):
        return None
    calls, call_us = _model_calls(evidence), compiled_call_us(evidence)
    low = calls.each_us * (calls.fused * FUSED[0] + calls.stays * _KEPT[0]) - call_us.high * calls.entries
    high = calls.each_us * (calls.fused * FUSED[1] + calls.stays * _KEPT[1]) - call_us.low * calls.entries
    return Interval(low - _RANDOM_COST * calls.random_us, min(high, calls.us))


def compiled_call_us(evidence: Evidence) -> Interval:
    """Gives the time of a compiled CPU call beyond its work.

    It is as calibrated, else in times of the smallest op.
    """
    device, trains = evidence.analysis.device, has_backward_marks(evidence)
    known_us = device.compiled_call_backward_us if trains else device.compiled_call_us
    if known_us is not None:
        factors, us = _MODEL_CALLS[trains], known_us
    else:
        factors, us = (
            _CALL_OPS[trains],
            device.launch_floor_us or max(SMALLEST_OP_US, _SMALLEST_OP * us_per_call(evidence)),
        )
    return Interval(*(factor * us for factor in factors))


def pays(evidence: Evidence, gain: Interval) -> bool:
    """True if such a gain of compiling is worth advising.

    Little is lost at its low end, and its middle is 5 %.
    """
    return gain.low >= -_MAY_LOSE * gain.high and evidence.share_of_step((gain.low + gain.high) / 2) >= COMPILE_PAYS


# Of Python and dispatching: what a loop over rows holds is not the model's.
_MOST_IN_LOOP = 0.5


def host_overhead(evidence: Evidence) -> Draft | None:
    """Finds Python and dispatch that cost more than compiled code (rule 4).

    This is the rule on a CPU: they take longer than what compiled code would cost to call. Silent where most of it is
    in a loop beside the model, or where the model reads numbers again and again: each read ends a compiled graph.
    """
    gain = compile_gain_us(evidence)
    if gain is None or evidence.is_broken or not pays(evidence, gain):
        return None
    calls, loop = _model_calls(evidence), bare_loop(evidence)
    if loop is not None and loop.us >= _MOST_IN_LOOP * calls.us:
        return None
    if own_reads(evidence).size >= MANY_READS * evidence.steps:
        return None
    claims = claims_of(
        evidence, *ISSUE_ACCOUNTS, "overhead.launch_floor", "memory", "compute", *UNMODELLED_ACCOUNTS, most_us=gain.high
    )
    high_us = math.fsum(claims.values())
    return Draft(
        slug="host-overhead",
        title="Python and dispatching between small ops hold the step back",
        evidence=(
            f"{format_us(calls.us)} of every step ({format_share(evidence.share_of_step(calls.us))}) is Python and "
            f"dispatching, {format_us(calls.each_us)} for each of "
            f"{counted(format_count(calls.fused + calls.stays), 'op')} of the model",
            f"{format_count(calls.fused)} of them can be fused into loops, "
            f"{format_count(calls.stays)} stay library calls",
            *idle_lines(evidence, "python"),
        ),
        advice="Compile the model, so that its small ops become a few loops without Python in between.",
        code="model = torch.compile(model)",
        gain_us=Interval(min(gain.low, high_us), high_us),
        claims=claims,
        tries=("compile",),
        confidence=timing_confidence(evidence),
    )


RULES = (late_launches, eager_overhead, tiny_kernels, host_overhead)
