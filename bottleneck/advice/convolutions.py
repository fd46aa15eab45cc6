"""Rules of convolutions: batch normalisation beside them, the choice of algorithm, and memory format."""

import itertools
import math
import re
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from bottleneck.advice.kernel_work import KernelWork, Size, has_backward_pass, requires_gain, size_words, work_of
from bottleneck.advice.quantities import ISSUE_ACCOUNTS, claims_of, format_count, overhead_us_per_op, rows_of_ops
from bottleneck.advice.ranking import Draft
from bottleneck.advice.removal import backward_of, issued_by, main_source, removal_of, roots_of, top_rows
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence, remembered
from bottleneck.schema.intervals import Flags, Floats, Integers
from bottleneck.schema.learned_rates import channels_last_times
from bottleneck.schema.op_names import at_source
from bottleneck.schema.tables import are_calls, as_integers, text_matches
from bottleneck.units import US_PER_S, counted, format_share, format_us

_LEAST_SHARE = 0.02

_BATCH_NORM = re.compile(r"^aten::(?:(?:native|cudnn|miopen)_batch_norm|_native_batch_norm_legit\w*)$")


# A module that trains counts its batches right before it calls the op: `num_batches_tracked.add_(1)`, and until PyTorch
# 1.11 `num_batches_tracked + 1`.
_COUNTS_BATCHES, _COUNTED_BATCHES = "aten::add_", "aten::add"
# Places among the arguments of aten::batch_norm and aten::dropout (native_functions.yaml).
_TRAINING, _DROPS = 5, 2
_DROPOUT = re.compile(r"^aten::(?:native_dropout|_fused_dropout|dropout|bernoulli_?|feature_dropout)$")
_TRAINS = re.compile(r"Backward|backward|evaluate_function|^Optimizer\.|AccumulateGrad|_bwd|dgrad|wgrad")
# Statistics take one of three passes over the data; folded into a convolution, the whole normalization is gone.
_STATISTICS_PART = 1 / 3


@requires_gain
def evaluation_mode(evidence: Evidence) -> Draft | None:
    """Batch normalization that computes statistics, with no backward pass anywhere in the trace.

    Gain: what statistics add, a third of the normalization's passes, and dropout, up to the whole normalization, which
    evaluation mode lets fold into the convolution. The first thing to do where it is inference: its results are wrong.
    Dropout alone is worth its own time.
    """
    work = work_of(evidence)
    norms = work.op_like(_BATCH_NORM)
    calls = rows_of_ops(evidence, ("aten::batch_norm",))
    training = calls[_computes_statistics(work, calls)]
    if _trains(evidence):
        return None
    if not norms.any() or 2 * training.size <= calls.size:
        return _dropout_alone(work)
    dropout = work.op_like(_DROPOUT)
    low = np.where(norms, _STATISTICS_PART * work.us, np.where(dropout, work.us, 0.0))
    high = np.where(norms | dropout, work.us, 0.0)
    count = training.size / evidence.steps
    return Draft(
        slug="evaluation-mode",
        title="Batch normalization computes statistics although nothing is trained",
        evidence=(
            f"{format_count(count)} batch normalizations per step in training mode, and no backward pass or optimizer "
            "in the whole trace",
            *work.describe(norms | dropout),
            *work.critical_path_note(high),
        ),
        advice="If this is inference, call model.eval(): batch normalization then uses its stored statistics. In "
        "training mode each result depends on the whole batch, and each call changes the model.",
        brief="If this is inference, call model.eval(): batch normalization then uses its stored statistics",
        gain_us=work.gain(low, high),
        claims=work.claims(high),
        code="model.eval()\nwith torch.inference_mode():\n    output = model(batch)",
        corrects_results=True,
        cannot_lose=True,
    )


def _dropout_alone(work: KernelWork) -> Draft | None:
    """Finds dropout that drops in a step without a backward pass.

    Its results are random, which may be wanted.
    """
    evidence = work.evidence
    calls = rows_of_ops(evidence, ("aten::dropout",))
    given = [
        work.text_column("concrete", signature)
        for signature in as_integers(evidence.linked.ops["signature"])[calls].tolist()
    ]
    drops = [arguments for arguments in given if arguments[_DROPS : _DROPS + 1] == ("True",)]
    rows = work.op_like(_DROPOUT) | work.op_like(_DROPOUT, above=True)
    us = np.where(rows, work.us, 0.0)
    if not drops or 2 * len(drops) <= len(given) or evidence.share_of_step(float(us.sum())) < _LEAST_SHARE:
        return None
    line = main_source(evidence, calls.tolist())
    return Draft(
        slug="evaluation-mode",
        title="Dropout drops numbers although nothing is trained",
        evidence=(
            f"{counted(format_count(len(drops) / evidence.steps), 'call')} of dropout per step in training mode, and "
            "no backward pass or optimizer in the whole trace",
            *work.describe(rows),
        ),
        advice=f"If this is inference, call model.eval(): dropout {at_source(line)} makes its results random. Leave it "
        "where that is meant (Monte Carlo dropout).",
        places=(line,),
        gain_us=work.gain(0.9 * us, us),
        claims=work.claims(us),
        code="model.eval()\nwith torch.inference_mode():\n    output = model(batch)",
        changes_results=True,
    )


def _computes_statistics(work: KernelWork, calls: Integers) -> Flags:
    """Masks the calls of aten::batch_norm that train.

    Their argument decides, else the count before them.
    """
    ops, training_of = work.evidence.linked.ops, {}
    signature = as_integers(ops["signature"])[calls]
    for call_signature in np.unique(signature[signature >= 0]).tolist():
        arguments = work.text_column("concrete", call_signature)
        training_of[call_signature] = arguments[_TRAINING] if len(arguments) > _TRAINING else None
    before = calls[calls > 0] - 1
    counts = np.zeros(calls.size, dtype=bool)
    counts[calls > 0] = text_matches(ops["name"], lambda name: name == _COUNTS_BATCHES)[before]
    sums = before[text_matches(ops["name"], lambda name: name == _COUNTED_BATCHES)[before]]
    numbers = [row for row in sums.tolist() if _is_whole_number(work, int(as_integers(ops["signature"])[row]))]
    counts |= np.isin(calls - 1, numbers)
    return np.asarray(
        [
            training_of.get(call_signature) == "True"
            or (training_of.get(call_signature) not in {"True", "False"} and counted)
            for call_signature, counted in zip(signature.tolist(), counts.tolist(), strict=True)
        ],
        dtype=bool,
    )


def _is_whole_number(work: KernelWork, signature: int) -> bool:
    """True if a call's first argument is one integer, not several."""
    types, sizes = work.text_column("types", signature), work.text_column("dims", signature)
    return bool(types) and str(types[0]).startswith("long") and sizes[:1] == ([],)


def _trains(evidence: Evidence) -> bool:
    """True if anything in the whole trace belongs to training.

    That is a backward pass or an optimizer, also outside the window.
    """
    return any(_TRAINS.search(str(name)) for name in evidence.linked.trace.events["name"].cat.categories)


_LEAST_FOLDED = 0.01
_CONVOLVES = re.compile(r"^aten::(?:_slow_conv\w*|thnn_conv\w*|slow_conv\w*|_convolution|convolution)$")
_OPS_EACH = 6  # batch_norm > _batch_norm_impl_index > native_batch_norm, and three tensors


@requires_gain
def unfolded_batch_norm(evidence: Evidence) -> Draft | None:
    """Finds inference with a batch normalization after a convolution (rule 24).

    Its factors can go into the weights. Gain: the normalization's time, from 60 % of it, up to a quarter more (its pass
    also drives other data out of the caches), and what the host does for it. A training step must keep it, as its
    statistics change.
    """
    work = work_of(evidence)
    rows = _after_convolution(work, work.op_like(_BATCH_NORM))
    if has_backward_pass(evidence) or not rows.any():
        return None
    less = np.where(rows, work.us, 0.0)
    count = float(np.unique(work.op[rows]).size) / evidence.steps
    gain = work.gain(0.6 * less, less)
    most_us = gain.high
    if evidence.is_host_only:
        host_us = (overhead_us_per_op(evidence) or 0.0) * _OPS_EACH * count
        most_us = 1.25 * gain.high + host_us
    if evidence.share_of_step((gain.low + most_us) / 2) < _LEAST_FOLDED:
        return None
    return Draft(
        slug="unfolded-batch-norm",
        title="Batch normalization runs beside the convolution that could hold it",
        evidence=(
            f"{format_count(count)} batch normalizations per step directly after a convolution, with no backward pass",
            *work.describe(rows),
            *work.critical_path_note(less),
        ),
        advice="Fold batch normalization into the weights of its convolution before inference.",
        gain_us=Interval(gain.low, most_us),
        claims={
            **work.claims(less),
            **claims_of(evidence, "memory", *ISSUE_ACCOUNTS, most_us=most_us - gain.high),
        },
        code=(
            "from torch.fx.experimental.optimization import fuse\n"
            "model = fuse(model.eval())  # conv + bn becomes conv; a bias before a batch norm is of no use anyway"
        ),
        tries=("fold-batchnorm",),
    )


def _after_convolution(work: KernelWork, norms: Flags) -> Flags:
    """Masks the rows that come right after a convolution.

    The last row of another op before them, on the same stream and step, is of a convolution. A convolution of torch's
    own loops ends in the ops that it is made of.
    """
    convolution = work.family("convolution") | work.op_like(_CONVOLVES, above=True)
    change = np.concatenate((np.ones(min(1, work.op.size), dtype=bool), work.op[1:] != work.op[:-1]))
    first = np.maximum.accumulate(np.where(change, np.arange(work.op.size), 0)) if work.op.size else work.op
    before = np.maximum(first - 1, 0)
    kernels = work.evidence.linked.kernels
    stream = kernels["stream"].cat.codes.to_numpy()[work.row]
    step = kernels["step"].to_numpy(dtype=np.int64, na_value=-1)[work.row]
    together = (stream == stream[before]) & (step == step[before])
    return np.asarray(norms & (first > 0) & convolution[before] & together)


# By the vendor of the trace: the library that runs convolutions, and the units that it multiplies on.
_LIBRARIES: Mapping[str, tuple[str, str]] = {"cuda": ("cuDNN", "tensor cores"), "rocm": ("MIOpen", "matrix cores")}
_BENCHMARK = 9  # place among the arguments of aten::_convolution (native_functions.yaml)
_LARGE_PART = 0.05


def untuned_convolutions(evidence: Evidence) -> Draft | None:
    """Finds GPU convolutions of few shapes without ``cudnn.benchmark`` (rule 32).

    It was recorded as off.
    """
    work = work_of(evidence)
    rows = work.family("convolution")
    library, _ = _LIBRARIES.get(evidence.linked.trace.flavour, (None, None))
    if evidence.is_host_only or library is None or work.share(rows) < _LARGE_PART or _benchmarks(work) is not False:
        return None
    shapes = np.unique(work.signature[rows]).size
    calls = float(np.unique(work.op[rows]).size)
    if shapes > calls / evidence.steps:
        return None  # sizes that change from step to step would be measured anew each time
    return Draft(
        slug="untuned-convolutions",
        title=f"{library} chooses convolution algorithms by rule of thumb",
        evidence=(
            f"convolutions of {counted(shapes, 'shape')} take {format_share(work.share(rows))} of the step; the calls "
            "were recorded with benchmark = False",
            *work.describe(rows),
        ),
        advice=f"Let {library} measure its algorithms once per shape.",
        gain_reason="not predicted: which algorithm is the quickest is only known once all have run",
        code="torch.backends.cudnn.benchmark = True" + ("" if library == "cuDNN" else f"  # sets it for {library} too"),
        tries=("cudnn-benchmark",),
        confidence="low",
    )


def _benchmarks(work: KernelWork) -> bool | None:
    """Gives the flag of the first convolution that recorded it.

    Null where none did.
    """
    signatures = work.evidence.linked.trace.signatures
    for signature in np.flatnonzero(signatures["name"].isin(["aten::_convolution"]).to_numpy()).tolist():
        arguments = work.text_column("concrete", signature)
        if len(arguments) > _BENCHMARK and arguments[_BENCHMARK] in {"True", "False"}:
            return arguments[_BENCHMARK] == "True"
    return None


_SEARCHES = re.compile(r"^aten::(?:(?:cudnn|miopen)_convolution\w*|convolution_backward)$")
# A search times each engine between two events and waits for the second one; other convolutions wait for none.
_LEAST_TRIALS = 3
# Without a search a rule of thumb chooses engines, which take up to a fifth of what the search cost longer.
_LEAST_SPARED = 0.8
_MOST_SHOWN = 3


def recurring_search(evidence: Evidence) -> Draft | None:
    """Finds convolutions whose engines are searched for in step after step.

    `cudnn.benchmark` runs every engine at the first call on each shape: a start-up where shapes repeat, and a part of
    the step where they change. Gain: what steps with a search take longer than those without, from 80 % of it; where
    all steps search, the time of the calls that do, from half of it.
    """
    ops, steps = evidence.linked.ops, evidence.linked.window.steps
    rows = _searching_rows(evidence)
    step = as_integers(ops["step"])[rows]
    rows, step = rows[step >= 0], step[step >= 0]
    spent_us = float(ops["dur_us"].to_numpy()[rows].sum()) / evidence.steps
    if evidence.is_host_only or evidence.share_of_step(spent_us) < _LARGE_PART:
        return None
    searches = np.isin(np.arange(len(steps)), step)
    recurs = bool(searches[1:][searches.size // 2 - 1 :].any())
    gain, words = Interval(spent_us / 2, spent_us), list[str]()
    if recurs and not searches.all():
        times_us = np.array([one.us for one in steps])
        usual_us = float(np.median(times_us[~searches]))
        more_us = float(np.clip(times_us[searches] - usual_us, 0.0, None).sum()) / evidence.steps
        gain = Interval(_LEAST_SPARED * more_us, more_us)
        typical_us = float(np.median(times_us[searches]))
        words.append(f"steps with a search take {format_us(typical_us)}, those without {format_us(usual_us)}")
    return Draft(
        slug="recurring-search",
        title="The engines of convolutions are searched for " + ("again and again" if recurs else "in this step"),
        evidence=(
            f"{counted(rows.size, 'convolution')} in {int(searches.sum())} of {counted(len(steps), 'step')} try one "
            f"engine after the other{_searched_sizes(evidence, rows)}: {format_us(spent_us)} per step on the host",
            *words,
        ),
        advice="Leave torch.backends.cudnn.benchmark off, or bring inputs to a few sizes (pad or group them by length) "
        "and run each size once before work begins: every new shape is searched for anew."
        if recurs
        else "Record later steps: at the first call on each shape all engines are tried. Where inputs keep changing "
        "their shape, leave torch.backends.cudnn.benchmark off.",
        brief="Leave cudnn.benchmark off, or pad inputs to a few sizes" if recurs else None,
        gain_us=gain if recurs else None,
        gain_reason=None if recurs else "these steps do not tell whether the search comes back",
        code="torch.backends.cudnn.benchmark = False",
        confidence="medium" if words else "low",
    )


def _searched_sizes(evidence: Evidence, rows: Integers) -> str:
    """Names the first sizes that are searched for, one of each step."""
    ops, work = evidence.linked.ops, work_of(evidence)
    _, first = np.unique(as_integers(ops["step"])[rows], return_index=True)
    inputs = [work.sizes_of(call)[:1] for call in as_integers(ops["signature"])[rows[first]].tolist()]
    shown = list(dict.fromkeys(size_words(size) for sizes in inputs for size in sizes if size))
    more = ", …" if len(shown) > _MOST_SHOWN else ""
    return f" (first on {', '.join(shown[:_MOST_SHOWN])}{more})" if shown else ""


def _searching_rows(evidence: Evidence) -> Integers:
    """Gives the convolutions that wait for the device once per engine."""
    trace, ops = evidence.linked.trace, evidence.linked.ops
    rows = np.flatnonzero(text_matches(ops["name"], _SEARCHES.search))
    waits = np.flatnonzero(are_calls(trace, "synchronise"))
    if not rows.size or not waits.size:
        return rows[:0]
    events = trace.events
    thread = events["thread"].cat.codes.to_numpy()
    event = ops["event"].to_numpy()[rows]
    start, end = (np.asarray(ops["ts_us"].to_numpy()[rows]), (ops["ts_us"] + ops["dur_us"]).to_numpy()[rows])
    at, trials = events["ts_us"].to_numpy()[waits], np.zeros(rows.size, dtype=np.int64)
    for code in np.unique(thread[event]).tolist():
        mine = np.flatnonzero(thread[event] == code)
        mine = mine[np.argsort(start[mine], kind="stable")]
        sorted_waits = np.sort(at[thread[waits] == code])
        trials[mine] = np.searchsorted(sorted_waits, end[mine]) - np.searchsorted(sorted_waits, start[mine])
    return rows[trials >= _LEAST_TRIALS]


_WITHOUT_RATE = re.compile(r"backward|transpose")
# cuDNN's convertTensor is none of them: it rounds the operands of NHWC kernels to TF32, element by element.
_CHANGES_LAYOUT = re.compile(r"nchwToNhwc|nhwcToNchw|batched_transpose_\w*(?:half|bf16|float)", re.IGNORECASE)
# torch's own kernels for depthwise convolutions in 16 bits; what is learned of cuDNN's holds for these.
_OWN_DEPTHWISE = re.compile(r"conv_depthwise2d_\w*kernel\w*<(?:c10::|at::)?(?:BFloat16|Half)")
_OWN_BACKWARD = re.compile(r"conv_depthwise2d_(?:backward|grad)")
_ON_CPU = 0.2
# Where turning is little, convolutions that take so much of the step beyond their floors leave open what the layout
# costs them: the library may have quicker loops over pixels than over planes.
_MUCH_BEYOND = 0.1
# Without oneDNN (small batches on one thread, by its rules in Convolution.cpp) torch multiplies columns of the image.
_OWN_LOOPS = re.compile(r"slow_conv")
# Input and result, each read once and written once; fp32.
_TURNED, _ITEM_BYTES = 4.0, 4.0
# Of the time of convolutions of a CPU that may gain by it: a network of depthwise and 1x1 ones took 1.15 and 1.29
# times as long by planes, VGG19 1.05 to 1.13 times, an upscaler of 3x3 ones 1.40 to 1.50 times (torch 2.13, an EPYC).
_MOST_BY_PIXELS = 0.35


@requires_gain
def channels_first(evidence: Evidence) -> Draft | None:
    """Finds images by planes where channels_last would suit (rule 33).

    The convolution wants them by pixels. On a GPU the library turns them round and back: these kernels go, with their
    launches, and the convolution takes what the learned rates say (``_priced_by_pixels``). On a CPU the turning is
    hidden inside the convolution: from nothing to what reading and writing its input and its result once more takes,
    where that is 2 % of the step at the calibrated bandwidth. Depthwise convolutions turn nothing, but may run in slow
    kernels.
    """
    work = work_of(evidence)
    convolutions = work.family("convolution")
    if evidence.is_host_only:
        return _on_host(work, convolutions & _by_planes(work, convolutions))
    rows = work.kernel_like(_CHANGES_LAYOUT)
    if work.share(rows) < _LEAST_SHARE:
        return _own_depthwise(work)
    less = np.where(rows, work.us, 0.0)
    low, high, words = _priced_by_pixels(work, rows)
    gain, most = work.gain(low, high, rows), np.clip(high, 0.0, None)
    layout = layout_by_pixels(work, rows)
    _, units = _LIBRARIES.get(evidence.linked.trace.flavour, ("", "matrix units"))
    return Draft(
        slug="channels-first",
        title=f"Images are NCHW; the {units} need NHWC, so each convolution transposes",
        evidence=(
            f"kernels that only change the layout of images take {format_us(float(less.sum()))} per step "
            f"({format_share(work.share(rows))})",
            *words,
            *work.describe(rows),
            *work.critical_path_note(less),
        ),
        advice=f"Keep model and images in {layout}.",
        gain_us=gain,
        claims={
            **work.claims(most),
            **claims_of(evidence, *ISSUE_ACCOUNTS, most_us=max(0.0, gain.high - float(most.sum()))),
        },
        code=_LAST.format(layout=layout),
        tries=("channels-last",),
    )


def _own_depthwise(work: KernelWork) -> Draft | None:
    """Gives the finding on depthwise convolutions in torch's own kernels.

    By planes cuDNN gets those in fp16 with small windows at most, by pixels all (`use_cudnn_depthwise` in torch's
    Convolution.cpp). Gain: what the learned rates say of forward passes; backward passes save as much at most, and half
    of it at least.
    """
    rows = work.kernel_like(_OWN_DEPTHWISE)
    learned = channels_last_times("depthwise convolution", 1)
    if learned is None or work.evidence.analysis.device.kind != "cuda" or work.share(rows) < _LEAST_SHARE:
        return None
    time, spread = learned
    saved = np.where(work.kernel_like(_OWN_BACKWARD), 0.5, 1.0) * (1.0 - min(time * spread, 1.0))
    low, high = (np.where(rows, part * work.us, 0.0) for part in (saved, 1.0 - time / spread))
    return Draft(
        slug="channels-first",
        title="Images are NCHW, where depthwise convolutions run in torch's own slow kernels",
        evidence=(
            f"depthwise convolutions in kernels of torch's own take {format_us(work.us_of(rows))} per step "
            f"({format_share(work.share(rows))}); in channels_last cuDNN takes them",
            f"by other programs' timings that takes {time:.2f} times as long forward; of backward passes nothing is "
            "learned: half of their gain may stay out",
            *work.describe(rows),
            *work.critical_path_note(high),
        ),
        advice="Keep model and images in channels_last.",
        gain_us=work.gain(low, high),
        claims=work.claims(high),
        code=_LAST.format(layout="channels_last"),
        tries=("channels-last",),
    )


def _priced_by_pixels(work: KernelWork, turns: Flags) -> tuple[Floats, Floats, tuple[str, ...]]:
    """Prices the convolutions in channels last with the learned rates.

    Gives what each row takes less at least and at most, and words on what has no rate. A convolution that turns its
    images runs the library's kernel for channels last already: it keeps that, within the spread of the rate. Where
    nothing is learned (backward passes, groups, volumes, other vendors, sizes that are not recorded) the kernel keeps
    its time, and from half of the turning to all of it goes.
    """
    turned = np.isin(work.op, work.op[turns & (work.op >= 0)])
    on_matrix = work.is_text(work.evidence.linked.kernels, "engine", "matrix")
    forward = work.family("convolution") & ~turns & ~work.op_like(_WITHOUT_RATE)
    candidates = forward & (turned | (on_matrix & _by_planes(work, forward)))
    times, spreads = np.full(work.row.size, np.nan), np.full(work.row.size, np.nan)
    for signature in np.unique(work.signature[candidates]).tolist():
        learned = _learned_by_pixels(work, signature)
        if learned is not None:
            rows = candidates & (work.signature == signature)
            times[rows], spreads[rows] = np.where(turned[rows], 1.0, learned[0]), learned[1]
    has_rate = np.isfinite(times)
    is_priced = turns & np.isin(work.op, work.op[has_rate & turned])
    low, high = (
        np.where(has_rate, work.us * (1.0 - times * spread), np.where(turns, work.us, 0.0))
        for spread in (spreads, 1.0 / spreads)
    )
    unknown = turns & ~is_priced
    low = np.where(unknown, low / 2, low)
    if not unknown.any():
        return low, high, ()
    share = format_share(work.us_of(unknown) / work.us_of(turns))
    words = f"nothing is learned of the convolutions behind {share} of that time in channels_last"
    return low, high, (f"{words}: half of it may stay",)


def _learned_by_pixels(work: KernelWork, signature: int) -> tuple[float, float] | None:
    """Gives the learned time by pixels over a convolution's own, and its spread."""
    sizes = work.tensors_of(signature)
    is_image = len(sizes) > 1 and len(sizes[0]) == len(sizes[1]) == _DIMS_OF_IMAGES
    if work.evidence.analysis.device.kind != "cuda" or not is_image or not sizes[1][1]:
        return None
    channels, per_group, window = sizes[0][1], sizes[1][1], sizes[1][2:]
    if channels == per_group:
        kind = "pointwise convolution" if math.prod(window) == 1 else "convolution"
    elif per_group == 1 and len(set(window)) == 1:
        kind = "depthwise convolution"
    else:
        return None
    return channels_last_times(kind, per_group)


_LAST = "model = model.to(memory_format=torch.{layout})\nimages = images.to(memory_format=torch.{layout})"
_DIMS_OF_IMAGES, _DIMS_OF_VOLUMES = 4, 5  # samples, channels, (depth,) height, width


def layout_by_pixels(work: KernelWork, rows: Flags) -> str:
    """Names torch's memory format by pixels.

    It is that of volumes if most of these rows' time is on volumes: a model of these refuses the other.
    """
    volumes = work.calls_that(rows, lambda call: len(next(iter(work.tensors_of(call)), ())) == _DIMS_OF_VOLUMES)
    return "channels_last_3d" if work.us_of(volumes) > work.us_of(rows) / 2 else "channels_last"


def _on_host(work: KernelWork, rows: Flags) -> Draft | None:
    """Gives the finding on convolutions of a CPU.

    There oneDNN turns each input and result. Convolutions of torch's own loops turn nothing.
    """
    rows = rows & ~work.op_like(_OWN_LOOPS)
    if work.evidence.analysis.device.bandwidth_bytes_per_s is None:
        return _on_unknown_host(work, rows)
    turned_us = np.where(rows, _turning_us(work, rows), 0.0)
    compute_us = work.roof("compute_us") * work.scale / work.evidence.steps
    floors = np.maximum(compute_us, work.memory_us())  # unknown where there is no cost
    beyond = np.where(rows & np.isfinite(floors), np.clip(work.us - floors, 0.0, None), 0.0)
    share_of_step = work.evidence.share_of_step
    asks = work.share(rows) < _ON_CPU or share_of_step(float(turned_us.sum())) < _LEAST_SHARE
    if asks and share_of_step(float(beyond.sum())) < _MUCH_BEYOND:
        return None
    slower = work.memory_slowdown()
    less = np.minimum(turned_us * slower, beyond)
    if share_of_step(float(less.sum())) >= _LEAST_SHARE:
        less = np.maximum(less, np.where(rows, _MOST_BY_PIXELS * work.us, 0.0))
    return Draft(
        slug="channels-first",
        title="Images are NCHW, and each convolution transposes them",
        evidence=(
            f"convolutions take {format_share(work.share(rows))} of the step, {format_us(float(beyond.sum()))} of it "
            "more than their arithmetic and their bytes need",
            f"turning their inputs and results takes {format_us(float(turned_us.sum()))} at the calibrated bandwidth",
            *work.describe(rows),
        ),
        advice=f"Try model and images in {layout_by_pixels(work, rows)}.",
        gain_us=Interval(0.0, work.gain(less, less).high),
        claims=work.claims(less),
        code=_LAST.format(layout=layout_by_pixels(work, rows)),
        tries=("channels-last",),
        confidence="low",
        only_measured=asks,
    )


def _on_unknown_host(work: KernelWork, rows: Flags) -> Draft | None:
    """Gives the finding where the trace does not tell the CPU.

    Its convolutions have to be a large part of the step.
    """
    if work.share(rows) < _MOSTLY_CONVOLUTIONS:
        return None
    return Draft(
        slug="channels-first",
        title="Images are NCHW, and each convolution may transpose them",
        evidence=(f"convolutions take {format_share(work.share(rows))} of the step", *work.describe(rows)),
        advice=f"Try model and images in {layout_by_pixels(work, rows)}.",
        gain_reason="only a trial shows it: what a convolution costs by pixels depends on the CPU",
        code=_LAST.format(layout=layout_by_pixels(work, rows)),
        tries=("channels-last",),
        confidence="low",
    )


# Of the step, on a CPU that is not known.
_MOSTLY_CONVOLUTIONS = 0.3


def _turning_us(work: KernelWork, rows: Flags) -> Floats:
    """Gives the time per step to turn the convolutions' inputs and results.

    It is the time to read and write as many bytes again as they have. The result is taken to be as large as the input.
    """
    bytes_of = np.zeros(len(work.evidence.costs) + 1)
    for signature in np.unique(work.signature[rows]).tolist():
        bytes_of[signature] = _ITEM_BYTES * math.prod(next((size for size in work.sizes_of(signature) if size), (0,)))
    bytes_of[-1] = 0.0
    rate = work.evidence.analysis.device.bandwidth_bytes_per_s
    if not rate:
        return np.zeros(rows.size)
    return np.asarray(_TURNED * bytes_of[work.signature] / rate * US_PER_S / work.evidence.steps)


def _by_planes(work: KernelWork, rows: Flags) -> Flags:
    """Masks the rows whose images are recorded by channel.

    Their rows of pixels lie side by side, one channel apart. A convolution over one dimension comes as one over images
    of height 1. Weights of three dimensions have no channels_last.
    """
    planes = []
    for signature in np.unique(work.signature[rows]).tolist():
        sizes, strides = work.sizes_of(signature), work.text_column("strides", signature)
        first = strides[0] if strides else None
        is_image = bool(sizes) and len(sizes[0]) == 4 and sizes[0][1] > 1 and sizes[0][2] > 1
        if is_image and isinstance(first, list) and len(first) == 4:
            planes += [signature] * (first[3] == 1)
    return np.isin(work.signature, planes)


_LONG_SHARE = 0.05
# Kernels of so many numbers and more are looked at: below, no transform is quicker.
_LONG_KERNEL = 128
# Of a transform of n real numbers: 2.5 n log2 n steps of arithmetic, at this part of the peak of vectors; each tensor
# is read and written some times, which is a complex number for two real ones.
_OF_TRANSFORM, _TRANSFORMS_AT, _PASSES = 2.5, 0.1, 6.0
_COMPLEX_PRODUCT = 8.0
_FORWARD = frozenset({"aten::conv1d", "aten::conv2d", "aten::conv3d", "aten::convolution"})
_TRANSFORMED = 0.5  # of a convolution's time, at most, that is left for the transforms


def _transform_us(work: KernelWork, signature: int) -> float | None:
    """Gives the time of a convolution by transforms.

    It counts the transforms of each input, each kernel and each result, and the products in between. Null where the
    kernel is short, or the call or the device does not tell.
    """
    sizes, concrete = work.tensors_of(signature), [str(value) for value in work.text_column("concrete", signature)]
    peak, bandwidth = _ceilings(work)
    if len(sizes) < 2 or len(sizes[0]) != len(sizes[1]) or len(sizes[0]) < 3 or not peak or not bandwidth:
        return None
    (batch, channels, *lengths), (results, per_group, *taps) = sizes[0], sizes[1]
    if math.prod(taps) < _LONG_KERNEL or not math.prod(sizes[0]) * math.prod(sizes[1]):
        return None
    text = concrete[5] if len(concrete) > 5 else ""
    spread = [int(value) for value in re.findall(r"\d{1,6}", text)] or [1]
    spread = (spread * len(taps))[: len(taps)]
    padded = (length + (tap - 1) * by for length, tap, by in zip(lengths, taps, spread, strict=True))
    points = math.prod(map(float, padded))
    count = batch * channels + results * per_group + batch * results
    flops = _OF_TRANSFORM * points * math.log2(max(points, 2.0)) * count
    flops += _COMPLEX_PRODUCT * points / 2 * batch * results * per_group
    nbytes = _ITEM_BYTES * _PASSES * points * count
    return (flops / (_TRANSFORMS_AT * peak) + nbytes / bandwidth) * US_PER_S


# FLOP/s and bytes per second that a CPU which the trace does not name has at least.
_ANY_CPU = (64e9, 8e9)


def _ceilings(work: KernelWork) -> tuple[float | None, float | None]:
    """Returns the peak of vectors and the bandwidth.

    They are those of any CPU where the trace names none.
    """
    device = work.evidence.analysis.device
    names = ("fp32_vector", "fp32_tensor", "fp32_matrix")
    peak = next((device.peaks_flops_per_s[name] for name in names if device.peaks_flops_per_s.get(name)), None)
    if work.evidence.is_host_only and (peak is None or device.bandwidth_bytes_per_s is None):
        return _ANY_CPU
    return peak, device.bandwidth_bytes_per_s


class _LongConvolution(Struct, frozen=True):
    """Convolutions of the same sizes with a long kernel.

    They have their ops, the kernel's sizes, and the time by transforms.
    """

    rows: tuple[int, ...]
    kernel: Size
    transforms_us: float


@remembered
def _long_convolutions(evidence: Evidence) -> tuple[_LongConvolution, ...]:
    """The convolutions that transforms do in less than half of their time, by sizes."""
    ops, work, top = evidence.linked.ops, work_of(evidence), top_rows(evidence)
    top = top[text_matches(ops["name"], _FORWARD.__contains__)[top]]
    by_call: dict[int, list[int]] = {}
    for row, call in zip(top.tolist(), as_integers(ops["signature"])[top].tolist(), strict=True):
        by_call.setdefault(call, []).append(row)
    convolutions = []
    for call, rows in by_call.items():
        once_us = _transform_us(work, call)
        if once_us is None:
            continue
        nodes = backward_of(evidence, rows)
        us = once_us * len(rows) / evidence.steps * (3.0 if nodes else 1.0)
        if us < _TRANSFORMED * removal_of(evidence, [*rows, *nodes]).us:
            convolutions.append(_LongConvolution(tuple(rows), work.tensors_of(call)[1], us))
    return tuple(convolutions)


def long_convolution(evidence: Evidence) -> Draft | None:
    """Finds convolutions with kernels of 128 numbers and more.

    Transforms do them in less than half of the time. Gain: their time with that of their backward nodes, less that of
    the transforms. These run at a tenth of the peak of vectors, with six passes over each tensor. The low end of the
    gain is where they take two and a half times as long. A backward pass has twice as many.
    """
    work, convolutions = work_of(evidence), _long_convolutions(evidence)
    if not convolutions:
        return None
    rows = [row for call in convolutions for row in call.rows]
    nodes = backward_of(evidence, rows)
    kept_us = math.fsum(call.transforms_us for call in convolutions)
    removal = removal_of(evidence, [*rows, *nodes], certain=1.0, kept_us=kept_us)
    if evidence.share_of_step(removal.gain.high) < _LONG_SHARE or removal.gain.low <= 0:
        return None
    line = main_source(evidence, rows)
    longest = max((call.kernel for call in convolutions), key=lambda size: math.prod(size[2:]))
    is_data = not nodes and has_backward_pass(evidence)
    is_fixed = not _learns_kernels(evidence, nodes)
    gain_us, may_part = removal.gain, is_fixed and all(_may_be_product(call.kernel) for call in convolutions)
    if may_part:
        parted = max(sum(call.kernel[2:]) / math.prod(call.kernel[2:]) for call in convolutions)
        gain_us = Interval(gain_us.low, max(gain_us.high, removal.us * (1 - _TWO_PASSES * parted)))
    return Draft(
        slug="long-convolution",
        title="A convolution with a very long kernel is computed tap by tap",
        evidence=(
            f"kernels of {size_words(longest[2:])} numbers with {longest[1]} channel"
            f"{'' if longest[1] == 1 else 's'} per result {at_source(line)}: {format_us(removal.us)} per step "
            f"({format_share(evidence.share_of_step(removal.us))}), where Fourier transforms need about "
            f"{format_us(kept_us)}",
            *work.describe(issued_by(evidence, work, [*rows, *nodes])),
        ),
        advice=f"Convolve by FFT {at_source(line)}: transform input and kernel (torch.fft.rfft), multiply, and "
        "transform back."
        + (
            " No gradient goes through it: it may also be done once, beforehand, or in loader workers."
            if is_data
            else ""
        )
        + (
            " A kernel that is a product of a column and a row, such as a Gaussian or a box, takes two short passes, "
            f"with {sum(longest[2:])} products per result in place of {math.prod(longest[2:]):,}."
            if len(longest) > 3
            else ""
        ),
        brief=(
            f"Convolve {at_source(line)} by columns, then by rows, if the kernel is a Gaussian or a box, else by FFT"
            if may_part
            else f"Convolve by FFT {at_source(line)}"
        ),
        places=(line,),
        code=_CODE_BY_PASSES if may_part else _CODE_BY_TRANSFORM,
        gain_us=gain_us,
        claims=removal.claims,
        removes=True,
    )


_CODE_BY_TRANSFORM = (
    "size = x.shape[-1] + kernel.shape[-1] - 1\n"
    "spectrum = torch.fft.rfft(x, size) * torch.fft.rfft(kernel.flip(-1), size)  # conv1d does not flip\n"
    "y = torch.fft.irfft(spectrum, size)[..., : x.shape[-1]]"
)
_CODE_BY_PASSES = (
    "y = F.conv2d(x, column[:, :, :, None], padding=(n // 2, 0), groups=channels)  # column: (channels, 1, n)\n"
    "y = F.conv2d(y, row[:, :, None, :], padding=(0, n // 2), groups=channels)"
)
# Two passes of short kernels are as far from the peak as one of a long kernel, or farther.
_TWO_PASSES = 2.0


def _learns_kernels(evidence: Evidence, nodes: Sequence[int]) -> bool:
    """True where the backward pass gives the kernels gradients.

    Or where it does not tell.
    """
    ops, work = evidence.linked.ops, work_of(evidence)
    rows = np.flatnonzero((ops["name"] == "aten::convolution_backward").to_numpy())
    calls = {int(ops["signature"].iloc[row]) for row in rows[np.isin(roots_of(evidence)[rows], nodes)].tolist()}
    masks = ([str(value) for value in work.text_column("concrete", call)][-1:] for call in calls)
    return any(not mask or _SECOND.match(mask[0]) is None for mask in masks)


# The second of three: the kernel gets no gradient.
_SECOND = re.compile(r"^\[\w+, False,")


def _may_be_product(kernel: Size) -> bool:
    """True for a kernel with rows and columns for each channel.

    Filters of images are such ones.
    """
    return len(kernel) > 3 and kernel[1] == 1


_UPSAMPLES = re.compile(r"^aten::(?:upsample_\w+|_upsample_\w+)$")
# Fewer results than so many of the channels that were enlarged: else the order hardly matters.
_FEWER = 0.5


class _LateProjection(Struct, frozen=True):
    """An enlargement and the pointwise convolution after it.

    The convolution has fewer results. It holds their rows and the part left: ``left`` is the part of their time that
    the other order takes, of the enlargement by channels, of the convolution by places.
    """

    rows: tuple[int, int]
    sizes: tuple[Size, Size]
    left: float


@remembered
def _late_projections(evidence: Evidence) -> tuple[_LateProjection, ...]:
    """Finds enlargements that a pointwise convolution of the same channels follows.

    Its kernel has one place.
    """
    ops, work, top = evidence.linked.ops, work_of(evidence), top_rows(evidence)
    names, calls = ops["name"].astype(object).to_numpy(), as_integers(ops["signature"])
    thread, projections = ops["thread"].cat.codes.to_numpy(), []
    for row, after in itertools.pairwise(top.tolist()):
        if _UPSAMPLES.match(str(names[row])) and names[after] in _FORWARD and thread[row] == thread[after]:
            enlarged, projected = (work.tensors_of(int(calls[op])) for op in (row, after))
            left = _left_in_other_order(enlarged[0], *projected[:2]) if enlarged and len(projected) > 1 else None
            if left is not None:
                projections.append(_LateProjection((row, after), (enlarged[0], projected[0]), left))
    return tuple(projections)


def _left_in_other_order(small: Size, large: Size, weight: Size) -> float | None:
    """Gives the part of the time left where the convolution comes first.

    Null where that is no remedy.
    """
    is_pointwise = 2 < len(large) == len(weight) == len(small) and set(weight[2:]) == {1}
    if not is_pointwise or small[:2] != large[:2] or weight[1] != large[1] or weight[0] > _FEWER * weight[1]:
        return None
    places = math.prod(small[2:]) / max(math.prod(large[2:]), 1)
    return max(weight[0] / weight[1], places) if places < 1 else None


def late_upsampling(evidence: Evidence) -> Draft | None:
    """Finds features enlarged before a pointwise convolution makes fewer channels.

    Both are linear and commute. Gain: the time of both with their backward nodes but for the part that the other order
    takes, from 90 % of it.
    """
    projections = _late_projections(evidence)
    if not projections:
        return None
    rows = [row for late in projections for row in late.rows]
    removal = removal_of(evidence, [*rows, *backward_of(evidence, rows)])
    left = max(late.left for late in projections)
    gain = Interval((1 - left) * removal.gain.low, (1 - left) * removal.gain.high)
    if evidence.share_of_step(gain.high) < _LONG_SHARE:
        return None
    line, (small, large) = main_source(evidence, [late.rows[0] for late in projections]), projections[0].sizes
    return Draft(
        slug="late-upsampling",
        title="Features are enlarged before they are reduced to a few channels",
        evidence=(
            f"{small[1]} channels of {size_words(small[2:])} become as many of {size_words(large[2:])} "
            f"{at_source(line)}, and a convolution of single places then makes fewer of them: {format_us(removal.us)} "
            f"per step ({format_share(evidence.share_of_step(removal.us))})",
        ),
        advice=f"Apply the 1x1 convolution before the upsampling {at_source(line)}, and upsample its few results: both "
        "are linear, so that their order changes nothing but rounding.",
        brief=f"Apply the 1x1 convolution before the upsampling {at_source(line)}",
        places=(line,),
        code="logits = F.interpolate(classifier(features), size=size, mode=mode, align_corners=False)",
        gain_us=gain,
        claims=removal.claims,
        removes=True,
    )


_UNFOLDS = re.compile(r"^aten::im2col$")
_OF_WINDOWS = re.compile(r"^aten::(?:im2col|col2im)$")
_COPIES = re.compile(r"^aten::(?:copy_|contiguous|clone|_unsafe_view|expand)$")
# Between unfold and the product that reads its windows: views, and a copy into the layout of the product.
_TO_PRODUCT = 8


@requires_gain
def written_convolution(evidence: Evidence) -> Draft | None:
    """Finds convolutions that are an unfold and a product.

    `unfold` writes each input k * k times, which the product reads, and the backward pass writes as much again. Gain:
    these writes and the copies of the windows, from half of them, at most with what the products take beyond their
    arithmetic.
    """
    work = work_of(evidence)
    unfolds = np.flatnonzero(work.op_like(_UNFOLDS))
    if not unfolds.size:
        return None
    heights = _window_heights(work, unfolds)
    if not heights:
        return None
    of_windows = np.array(
        [any(set(size[-2:]) & heights for size in work.sizes_of(code)) for code in work.signature.tolist()], dtype=bool
    )
    products = work.family("matmul") & of_windows
    written = work.op_like(_OF_WINDOWS) | (work.op_like(_COPIES) & of_windows)
    if work.share(written) < _LEAST_SHARE:
        return None
    less = np.where(written, work.us, 0.0)
    beyond = np.where(products, np.clip(work.us - work.compute_us(), 0.0, None), 0.0)
    line = main_source(evidence, np.unique(work.op[written]).tolist())
    high = less + beyond
    return Draft(
        slug="written-convolution",
        title="A convolution is written out as unfold and a product",
        evidence=(
            f"{counted(format_count(unfolds.size / evidence.steps), 'unfold')} per step, whose windows a product reads",
            f"{format_us(work.us_of(written))} per step ({format_share(work.share(written))}) write and copy windows, "
            f"{format_us(work.us_of(products))} are the products",
            *work.describe(written),
            *work.critical_path_note(high),
        ),
        advice=f"Call the convolution {at_source(line)} itself: its kernels read the windows where they are, and write "
        "none. Its weight is the matrix by channels, rows and columns of the window.",
        brief=f"Call F.conv2d {at_source(line)} in place of unfold and a product",
        places=(line,),
        code="y = F.conv2d(x, weight.view(out_channels, in_channels, k, k), bias, stride, padding)",
        gain_us=work.gain(0.5 * less, high),
        claims=work.claims(high),
    )


def _window_heights(work: KernelWork, unfolds: Integers) -> frozenset[int]:
    """Returns the numbers of a window, channels times its area.

    Products behind these unfolds add up so many of them for each result.
    """
    heights: set[int] = set()
    product, inner = np.flatnonzero(work.family("matmul")), work.cost("k")
    for at in unfolds.tolist():
        channels = next((size[-3] for size in work.sizes_of(work.signature[at]) if len(size) >= 3), 0)
        behind = product[(product > at) & (product <= at + _TO_PRODUCT)][:1]
        heights |= {int(side) for side in inner[behind] if channels and side > channels and side % channels == 0}
    return frozenset(heights)


RULES = (
    written_convolution,
    evaluation_mode,
    unfolded_batch_norm,
    recurring_search,
    untuned_convolutions,
    channels_first,
    long_convolution,
    late_upsampling,
)
