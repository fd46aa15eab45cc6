"""Rules of precision.

Narrower numbers have half as many bytes, and matrix units are faster on them.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping
from functools import partial

import numpy as np
import pandas as pd
from msgspec import Struct

from bottleneck.advice.kernel_work import (
    LEAST_GAIN,
    PRODUCTS,
    KernelWork,
    has_backward_pass,
    has_double,
    requires_gain,
    work_of,
)
from bottleneck.advice.onednn_products import ATTENDS_BACKWARD, ATTENDS_ON_HOST, attention_calls
from bottleneck.advice.quantities import (
    add_claims,
    format_per_step,
    is_compiled,
    rows_of_ops,
    setting_line,
    smallest_op_us,
)
from bottleneck.advice.ranking import Draft
from bottleneck.advice.removal import DISPATCH, backward_of, removal_of, top_rows
from bottleneck.schema.accounts import FEW_FLOPS_PER_BYTE
from bottleneck.schema.analysis import Interval
from bottleneck.schema.device import ONEDNN_PEAK
from bottleneck.schema.evidence import Evidence, counted_faults_us, remembered
from bottleneck.schema.intervals import Flags, Floats, Integers
from bottleneck.schema.op_names import BACKWARD_NODE, at_known, at_source
from bottleneck.schema.tables import as_integers, text_matches
from bottleneck.units import SHORT_DTYPE, US_PER_S, counted, format_share, format_si, format_us, listed

_LEAST_SHARE = 0.05
# Narrow products have to be this much faster to pay for the casts around them.
_FASTER = 1.5
# Kernels without a price are taken to reach as much of their peak in the narrower dtype as the present ones do of their
# own. What holds those far below it (launch, tails, latency) stays, about half of their time. In ten public traces
# with sizes 64 % of such time is far below, in the mean: without sizes half of that stays, a third of the time.
_FAR_BELOW, _STAYS, _STAYS_UNKNOWN = 0.5, 0.5, 1 / 3
# Each operand of a product is read wide and written narrow, about half of its bytes; gradients are cast too, and the
# weights' the other way round.
_CAST_TRAFFIC = 1.5

# Of the time that fp32 saves against fp64 by peaks and bytes, so much is sure.
_SURE_OF_HALVED = 0.75
# Of the time of an op in fp64 on a CPU, what fp32 saves at least (null: that part of its halved bytes or of its peaks)
# and at most. With torch 2.13 (EPYC, one thread, 30,000 to a million numbers) fp32 was so many times as fast: products
# 1.6 to 2.9 (small ones gain most), arithmetic by elements 1.2 to 2.6, functions such as exp and tanh 1.7 to 4.2,
# softmax 1.8 to 3.4, gelu 9 to 99 (1.9 of its tanh), numbers drawn from normal distributions 5.8. Norms, sums, gathers,
# masks and maxima gained from nothing (0.6 to 1.6 times as fast), sorts and solvers nothing.
_OF_DOUBLES: tuple[tuple[re.Pattern[str], float | None, float], ...] = (
    (re.compile(r"^aten::gelu"), 0.4, 0.99),
    (re.compile(r"^aten::(?:normal_|randn)"), 0.4, 0.85),
    (re.compile(r"softmax|sigmoid|silu|^aten::(?:r?sqrt|exp|log|tanh?|sin|cos|erf|pow|softplus)"), 0.25, 0.77),
    (re.compile(r"norm|^aten::(?:where|index|gather|cum|a?max|a?min|arg|sum|mean|copy_|cat|stack|mask)"), 0.0, 0.6),
    (re.compile(r"^aten::(?:sort|topk|\w*linalg|\w*solve|_?cholesky|_?lu)"), 0.0, 0.45),
    (re.compile(""), None, 0.66),
)

# Of the time of a convolution in fp64 on a CPU, what fp32 saves: oneDNN has none for fp64, which ATen multiplies by
# way of im2col, without vectors in the copies. With torch 2.13 (EPYC, one thread, ten shapes of 3 to 256 channels)
# fp32 was 2.2 to 7.7 times as fast forward and 2.1 to 6.1 times with the backward pass.
_OTHER_KERNEL = (1 - 1 / 2.1, 1 - 1 / 7.7)

# What autocast costs on a CPU (torch 2.13, EPYC with AVX512-BF16, one thread, linear layers of 8x64 to 1536x1536 on 1
# to 1024 rows), in times of the machine's smallest op. A bf16 product goes through oneDNN, whose call takes 10 to 15 us
# longer than the fp32 product of a small matrix; casts of both operands and the bias take 5 to 9 us, with gradients and
# their own backward ops 16 to 30 us.
_PRODUCT_OPS = (19.0, 28.0)
_CASTS_OPS = {False: (9.0, 16.0), True: (30.0, 55.0)}
# An element is read in four bytes and written in two; a weight, at most, also once more into the order of oneDNN.
_CAST_BYTES, _REORDERED = 6.0, 1.5
# Convolutions in bf16 are so many times as fast at least, before their casts, forward and in training: their images and
# gradients change layout. With them five networks (torch 2.13, EPYC with AVX512-BF16, two threads) came to 2.2 times
# forward and to 1.8 to 2.1 times in training, where products reach 4.3 times.
_SURELY_CONVOLVED = {False: 2.6, True: 2.1}
# Recurrent layers of oneDNN at least: a speech model of convolutions and LSTMs came to 1.4 times in all.
_SURELY_RECURRENT = 1.2
# And so many times at most: four more trainings (ResNet students, RetinaNet, U-Net, VQ-VAE) came to 1.5 to 2.3 times.
_MOST_CONVOLVED = {False: 3.2, True: 2.8}
# Fused attention of a CPU multiplies blocks, in fp32 by MKL, backward in bf16 by oneDNN: each block's call costs so
# many smallest ops more, and half of what arithmetic saves is sure. With torch 2.13 (EPYC with AVX512-BF16, one
# thread, 16 to 96 heads of 32 or 64 numbers) its backward pass took 2.2 to 10 times as long in bf16 on 32 to 64
# tokens, 1.6 to 3.4 times on 128, as long on 256, and was 1.6 times as fast on 1,024. Forward it took 1.02 to 1.43
# times as long: it converts between both types, and wins only by matrix units, which are far more than twice as fast
# as vectors.
_ATTENTION_OPS, _SURE_OF_ATTENTION = (13.0, 21.0), 0.5
_ATTENDS_LONGER, _OF_MATRIX_UNITS = 0.45, 3.0
# What the middle of the interval must promise on a CPU, where casts and calls may cost as much as bf16 saves.
_HOST_PAYS = 0.05
# Products of so much of the step make a reader ask for bf16.
_MUCH_OF_STEP = 0.3
# So much of it is what limits it: a first step that nobody can price yet is worth a trial there.
_MOST_OF_STEP = 0.4
# Convolutions by channel that take so much of the step beyond their floors leave open what another dtype gives them.
_MUCH_BEYOND = 0.1
_BACKWARD = re.compile(f"^{BACKWARD_NODE}")
# Families of ops and of kernels whose time is that of their bytes, where no sizes tell.
_BOUND_BY_BYTES = (
    *("pointwise", "elementwise", "pooling", "interpolation"),
    *("normalization", "normalisation", "copy", "auxiliary"),
)
# Autocast keeps layer and group norms and softmax in fp32, whatever they read; batch norm takes the dtype of its input.
_IN_FP32 = re.compile(r"layer_?norm|group_?norm|rms_?norm|rowwisemoments|gammabeta|softmax", re.IGNORECASE)
_TIMES_VECTOR = re.compile(r"^aten::(?:addmv_?|mv|dot)$")

_AUTOCAST = 'with torch.autocast("{kind}", dtype=torch.bfloat16):\n    loss = model(x)'
_NARROW_WEIGHTS = "model = model.to({dtype})  # and its inputs: x = x.to({dtype})"
_TORCH_DTYPE = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}
# Gradients of fp16 underflow without a scale; bf16 has the range of fp32.
_SCALED_AUTOCAST = (
    'scaler = torch.amp.GradScaler("cuda")  # for training\n'
    'with torch.autocast("cuda", dtype=torch.float16):\n    loss = model(x)\n'
    "scaler.scale(loss).backward()\nscaler.step(optimizer)\nscaler.update()"
)
_HOST_PACES = "the host, which the profiler slows, sets the pace: all of the gain needs a quicker host"
_NARROW = ("bf16", "fp16", "fp8")
_FP8 = (
    "from torchao.float8 import convert_to_float8_training\n"
    "convert_to_float8_training(model)  # and compare the loss curve: three bits of mantissa are few"
)


_FP8_WEIGHTS = (
    "from torchao.quantization import Float8DynamicActivationFloat8WeightConfig, quantize_\n"
    "quantize_(model, Float8DynamicActivationFloat8WeightConfig())  # and compare its outputs\n"
    "model = torch.compile(model)  # which fuses scaling and casts into the kernels around them"
)


class _Narrower(Struct, frozen=True):
    """16-bit products that a device multiplies faster than those of the step.

    ``peak`` is that of ``dtype``, ``ratio`` it and the peak of fp32, ``ratios`` the same per row of the work.
    ``products`` marks the rows that multiply in fp32, ``others`` other fp32 work that is bound by its bytes;
    ``faster_us`` and ``halved_us`` are what both save at most, ``surely_faster_us`` and ``surely_halved_us`` at least.
    """

    dtype: str
    peak: float
    ratio: float
    ratios: Floats
    products: Flags
    others: Flags
    faster_us: Floats
    surely_faster_us: Floats
    halved_us: Floats
    surely_halved_us: Floats


@remembered
def _narrower(evidence: Evidence) -> _Narrower | None:
    """Returns the 16-bit type that pays on this device.

    Null where none does, or where fp32 products are next to nothing of the step.
    """
    work, device = work_of(evidence), evidence.analysis.device
    peaks = device.peaks_flops_per_s
    dtype = next((kind for kind in ("bf16", "fp16") if peaks.get(f"{kind}_tensor")), None)
    if dtype is None or (dtype == "fp16" and evidence.is_host_only):
        return None
    narrow = peaks[f"{dtype}_tensor"]
    full = next((peaks[name] for name in ("fp32_matrix", "fp32_tensor", "fp32_vector") if peaks.get(name)), None)
    if full is None or narrow < _FASTER * full:
        return None
    in_tf32 = work.is_text(evidence.linked.kernels, "engine", "matrix")
    ratios = np.where(in_tf32, narrow / (peaks.get("tf32_tensor") or full), narrow / full)
    products = _fp32_products(work) & work.in_model
    others = (
        work.dtype("fp32")
        & ~work.reads(*_NARROW)
        & work.in_model
        & work.bound("memory")
        & work.family("pointwise", "pooling", "normalization", "copy")
    )
    # Without recorded sizes by the names of their kernels: such work is bound by its bytes.
    others |= (
        work.bound("unknown")
        & work.is_text(evidence.roofline, "family", *_BOUND_BY_BYTES)
        & work.kernel_holds("float")
        & work.in_model
    )
    if work.share(products) < _LEAST_SHARE:
        return None  # autocast starts from products: without them nothing changes
    surely_faster, faster = _saved_us(work, products, ratios, dtype)
    # At most the time halves as the bytes do; for certain only what the bytes need at the bandwidth.
    bytes_us = np.where(work.bound("unknown"), work.us, work.memory_us())
    halved = np.where(others, (bytes_us if evidence.is_host_only else work.us) / 2, 0.0)
    follows = True if _may_hold_narrow_weights(evidence) else _follows_convolutions(work, products)
    surely = np.where(others & follows, bytes_us / 4, 0.0)
    return _Narrower(dtype, narrow, narrow / full, ratios, products, others, faster, surely_faster, halved, surely)


def _may_hold_narrow_weights(evidence: Evidence) -> bool:
    """True for inference on a GPU, whose weights may be in 16 bits.

    All that reads their products takes their dtype. A trace without ops does not tell inference from training.
    """
    return bool(evidence.op_sums) and not evidence.is_host_only and not has_backward_pass(evidence)


def _follows_convolutions(work: KernelWork, products: Flags) -> Flags:
    """Marks work that takes the dtype of the results of convolutions.

    That is batch norms, activations, sums and pooling where most products are convolutions: autocast casts nothing
    back between them. Beside linear layers it does, at each layer norm.
    """
    convolutions = products & work.is_text(work.evidence.roofline, "family", "convolution")
    convolutions |= products & work.family("convolution")
    if work.us_of(convolutions) <= work.us_of(products) / 2:
        return np.zeros(work.row.size, dtype=bool)
    return ~(work.op_like(_IN_FP32) | work.kernel_like(_IN_FP32))


@requires_gain
def half_precision(evidence: Evidence) -> Draft | None:
    """Finds fp32 products and tensors that 16 bits make faster (rule 20).

    16 bits halve the bytes and multiply faster by the device's peaks. These are bf16, or fp16 with a gradient scaler on
    GPUs whose matrix units take no bf16 (Volta, Turing). Gain: products t less the time of the same sizes by learned
    rates, without such a price t - t P_fp32/P_bf16 (bytes: t/2) at most and half of it at least, less the casts; other
    work of the model in fp32 that is bound by its bytes t/2, at most: autocast keeps norms, softmax and losses in fp32.
    In inference on a GPU the weights themselves are narrow, so that nothing is cast (published on an A100: Segment
    Anything 12.1 to 39.8 images/s, SDXL 7.36 to 4.63 s). A CPU only counts where its calibrated bf16 peak says so:
    without AVX512-BF16 or AMX it is a hundred times slower. There casts and calls cost more (``_host_cost_us``), and
    the rule is silent unless the middle of the gain is 5 %.
    """
    narrow, work = _narrower(evidence), work_of(evidence)
    if narrow is None:
        return None
    products, is_scaled = narrow.products, narrow.dtype == "fp16"
    most = narrow.faster_us + narrow.halved_us
    asks = False
    if evidence.is_host_only:
        gain, costs = _host_gain(work, narrow)
        asks = evidence.share_of_step(max(gain.low + gain.high, 0.0) / 2) < _HOST_PAYS
        if asks and not _only_measuring_tells(work, products):
            return None
        if asks:
            gain = Interval(gain.low, gain.high + float(narrow.faster_us[_by_channel(work, products)].sum()))
    else:
        cast_traffic = 0.0 if _may_hold_narrow_weights(evidence) else _CAST_TRAFFIC
        casts = np.where(products, work.memory_us() * cast_traffic, 0.0)
        least = np.clip(narrow.surely_faster_us - casts, 0.0, None) + narrow.surely_halved_us
        gain, costs = work.gain(least, most), ()
        if evidence.share_of_step(gain.high) < LEAST_GAIN:
            most_us = work.most_at_any_pace(most)
            if evidence.share_of_step(most_us) >= _LEAST_SHARE:
                gain, costs = Interval(0.0, most_us), (_HOST_PACES,)
    part = _wide_part(work, products)
    words = (*_narrow_words(work, narrow), *costs, *work.describe(products), *work.critical_path_note(most))
    return Draft(
        slug="half-precision",
        title=f"The model works in fp32 where {narrow.dtype} would do"
        if part is None
        else f"A part of the model works in fp32 beside {part.dtype}",
        evidence=words if part is None else (part.words, *words),
        advice=_autocast_advice(evidence, narrow.dtype, part),
        brief=_brief_advice(evidence, narrow.dtype, part),
        places=() if part is None else (part.source,),
        gain_us=gain,
        claims=work.claims(most),
        code=_NARROW_WEIGHTS.format(dtype=_TORCH_DTYPE[narrow.dtype])
        if _may_hold_narrow_weights(evidence)
        else _SCALED_AUTOCAST
        if is_scaled
        else _AUTOCAST.format(kind="cpu" if evidence.is_host_only else "cuda"),
        tries=() if is_scaled else ("bf16-autocast",),
        confidence="low"
        if _HOST_PACES in costs or work.share(products & work.bound("unknown")) > work.share(products) / 2
        else "medium",
        changes_results=True,
        only_measured=asks,
    )


class _WidePart(Struct, frozen=True):
    """Products in fp32 beside others in ``dtype``.

    ``where`` says where they are, as does ``source`` where it is a line; ``words`` give their share.
    """

    dtype: str
    where: str
    words: str
    source: str | None


# Of the time of all products: less in 16 bits makes no model of two dtypes. Of those, so many may lie among the wide
# ones before these are no stretch of their own.
_LEAST_NARROW, _MOST_AMONG = 0.1, 0.05


def _wide_part(work: KernelWork, products: Flags) -> _WidePart | None:
    """Returns the part of a model that is still in fp32.

    Its place is the line or module with most of it, else its first and last op. Null where (nearly) all is in fp32.
    """
    kernels = work.evidence.linked.kernels
    by_name = work.is_text(work.evidence.roofline, "family", *PRODUCTS) & work.bound("unknown")
    by_name &= work.is_text(kernels, "math_dtype", *_NARROW)
    narrow = ((work.family(*PRODUCTS) & (work.dtype(*_NARROW) | work.reads(*_NARROW))) | by_name) & work.in_model
    narrow_us, wide_us = work.us_of(narrow), work.us_of(products)
    if narrow_us < _LEAST_NARROW * (narrow_us + wide_us):
        return None
    dtype = "fp16" if work.us_of(narrow & (work.dtype("fp16") | work.reads("fp16"))) > narrow_us / 2 else "bf16"
    share = wide_us / (narrow_us + wide_us)
    words = f"{format_share(share)} of the products' time is in fp32, {format_share(1 - share)} in 16 bits"
    for column in ("source", "module"):
        label = _most_of(kernels[column], work.row[products], work.us[products])
        if label is not None:
            where = f"most of it {at_source(label)}" if column == "source" else f"most of it in {label}"
            return _WidePart(dtype, where, words, label if column == "source" else None)
    step = kernels["step"].to_numpy(dtype=np.int64, na_value=0)[work.row]
    first = np.flatnonzero(products & (step == step[products].min()))
    start = kernels["ts_us"].to_numpy()[work.row]
    first = first[np.argsort(start[first], kind="stable")]
    among = narrow & (start >= start[first[0]]) & (start <= start[first[-1]])
    ends = " to ".join(dict.fromkeys(work.call_name(int(at)) for at in (first[0], first[-1])))
    if work.us_of(among) > _MOST_AMONG * narrow_us:
        return _WidePart(dtype, ends, words, None)
    begin = start[step == step[first[0]]].min()
    return _WidePart(dtype, f"from {format_us(float(start[first[0]] - begin))} into the step on: {ends}", words, None)


def _autocast_advice(evidence: Evidence, dtype: str, part: _WidePart | None) -> str:
    """Words the change for the model, or its part in fp32."""
    if not has_backward_pass(evidence):
        model = "the model" if part is None else f"the part in fp32 ({part.where})"
        if not _may_hold_narrow_weights(evidence):
            return f"Run {model} under {dtype} autocast, or with weights in {dtype}, and compare its outputs."
        return (
            f"Run {model} with weights and inputs in {dtype}, and compare its outputs. Autocast is tried more easily, "
            "but casts the inputs of each layer anew."
        )
    trained = "forward pass and loss" if part is None else f"the part in fp32 too ({part.where})"
    scaled = ", training with a gradient scaler," if dtype == "fp16" else ","
    return f"Run {trained} under {dtype} autocast{scaled} and watch the loss."


def _brief_advice(evidence: Evidence, dtype: str, part: _WidePart | None) -> str:
    """Words the change in short, where it is long."""
    if not _may_hold_narrow_weights(evidence):
        scaled = ", training with a gradient scaler" if dtype == "fp16" and has_backward_pass(evidence) else ""
        return f"Run the {'model' if part is None else 'part that is still in fp32'} under {dtype} autocast{scaled}"
    model = "the model" if part is None else "the part that is still in fp32"
    return f"Run {model} with weights and inputs in {dtype}, and compare its outputs with those in fp32"


def _most_of(column: "pd.Series[str]", rows: Integers, us: Floats) -> str | None:
    """Returns the label with most of the time; null where none is known."""
    codes = column.cat.codes.to_numpy()[rows].astype(np.int64)
    if not (codes >= 0).any():
        return None
    return str(column.cat.categories[int(np.bincount(codes[codes >= 0], weights=us[codes >= 0]).argmax())])


def _narrow_words(work: KernelWork, found: _Narrower) -> tuple[str, str]:
    products = found.products
    return (
        f"fp32 products take {format_us(work.us_of(products))} per step "
        f"({format_share(work.share(products))}), other fp32 work that is bound by its bytes "
        f"{format_us(work.us_of(found.others))}",
        f"this device multiplies {found.dtype} at {format_si(found.peak, 'FLOP/s')}, "
        f"{work.mean(found.ratios, products):.1f} times what these products may reach",
    )


def half_precision_does_not_pay(evidence: Evidence) -> Draft | None:
    """Finds a CPU on which casts and calls cost more than bf16 saves.

    Products are much of the step there (rule 20).
    """
    narrow, work = _narrower(evidence), work_of(evidence)
    if narrow is None or not evidence.is_host_only or work.share(narrow.products) < _MUCH_OF_STEP:
        return None
    gain, costs = _host_gain(work, narrow)
    if gain.low + gain.high >= 0 or _only_measuring_tells(work, narrow.products):
        return None
    return Draft(
        slug="half-precision-does-not-pay",
        title="bf16 autocast is expected to make the step slower",
        evidence=(*_narrow_words(work, narrow), *costs, *work.describe(narrow.products)),
        advice="Leave bf16 out until the products of a step are larger, with more samples per step for example.",
        gain_reason="casts and the longer calls of small products cost more here than bf16 saves",
        tries=("bf16-autocast",),
        confidence="low",
        changes_results=True,
    )


# Products of int8, or of weights that are unpacked for them.
_QUANTIZED = re.compile(r"^quantized::")


def half_precision_not_known(evidence: Evidence) -> Draft | None:
    """Finds fp32 products on a processor whose rates are not known.

    No gain is predicted. On a CPU with AVX512-BF16 or AMX bf16 is faster, without them a hundred times slower. So it is
    shown on request there, but where these products are most of the step. GPUs with CUDA multiply fp16 at least as fast
    as fp32.
    """
    work, device = work_of(evidence), evidence.analysis.device
    on_host = evidence.is_host_only
    if device.peaks_flops_per_s or evidence.is_broken or not (on_host or evidence.linked.trace.flavour == "cuda"):
        return None
    products = _fp32_products(work) & work.in_model
    named = work.is_text(evidence.roofline, "family", *PRODUCTS) & work.bound("unknown") & work.in_model
    # One row of a recurrent layer after the other is no work for wide multipliers: bf16 made it slower.
    named &= ~work.op_like(_QUANTIZED) & ~work.is_text(evidence.roofline, "family", "recurrent")
    if on_host:
        named &= ~work.reads(*_NARROW, "fp64")  # their types were recorded, though their cost is not known
        products |= named & work.reads("fp32")
    is_guess = on_host and work.share(products) < _MUCH_OF_STEP and not _has_casts_for(named, evidence)
    if is_guess:
        # What factorizes and solves is in fp64 as a rule, and knows no bf16.
        solved = work.is_text(evidence.roofline, "family", "linear algebra")
        products = named & (work.share(solved) < _MUCH_SOLVED)
    if work.share(products) < _MUCH_OF_STEP:
        return None
    convolved = products & work.is_text(evidence.roofline, "family", "convolution")
    what = "Convolutions" if work.us_of(convolved) > work.us_of(products) / 2 else "Matmuls"
    is_thin = work.roof("flops") < FEW_FLOPS_PER_BYTE * work.roof("bytes_low")
    return Draft(
        slug="half-precision-not-known",
        title=f"{what} take much of the step: where they are in fp32, bf16 is faster on CPUs that multiply it"
        if is_guess
        else f"{what} in fp32 take much of the step: bf16 is faster on CPUs that multiply it"
        if on_host
        else f"{what} take much of the step, and what this GPU could do is not known",
        evidence=(
            f"{'' if is_guess else 'fp32 '}products take {format_per_step(evidence, work.us_of(products))}",
            *work.describe(products),
        ),
        advice="Run the program with `bottleneck run` on that machine: it measures how fast the CPU multiplies in bf16 "
        "and with more threads. Or try bf16 autocast there, and all its cores."
        if on_host
        else "Run forward pass and loss under fp16 autocast, training with a gradient scaler: tensor cores, which most "
        "GPUs have, multiply fp16 several times as fast as fp32. With --device NAME the gain is predicted.",
        brief="Try bf16 autocast, if the model is in fp32 and lscpu names avx512_bf16 or amx_bf16 on that machine"
        if is_guess
        else "Try bf16 autocast, if lscpu names avx512_bf16 or amx_bf16 on that machine"
        if on_host
        else "Try fp16 autocast: tensor cores, which most GPUs have, multiply it faster",
        code=_AUTOCAST.format(kind="cpu") if on_host else _SCALED_AUTOCAST,
        gain_reason="no figure: the trace names neither dtypes nor its CPU"
        if is_guess
        else "no figure: the trace does not name its CPU"
        if on_host
        else "the trace does not say which GPU it ran on",
        tries=("bf16-autocast",) if on_host else (),
        changes_results=True,
        on_request=on_host and evidence.bound not in _OF_ARITHMETIC and work.share(products & ~is_thin) < _MOST_OF_STEP,
    )


# Bounds of which arithmetic is a part.
_OF_ARITHMETIC = frozenset({"compute", "mixed"})


# Calls that autocast casts the inputs of, and how many products may come to a cast at most.
_CALLS_PRODUCT = re.compile(r"^aten::(?:linear|conv\w*|matmul|\w*mm|\w*mv|einsum|scaled_dot_product_attention)$")
_PRODUCTS_PER_CAST = 4
_MUCH_SOLVED = 0.05  # of the step


def _has_casts_for(products: Flags, evidence: Evidence) -> bool:
    """True where a trace has casts inside of calls of products.

    Autocast makes them there. What a product before it gave, and a weight that was cast once, needs no cast.
    """
    ops = evidence.linked.ops
    rows, parent = rows_of_ops(evidence, ("aten::_to_copy",)), np.append(as_integers(ops["parent"]), -1)
    # Inside of `aten::to`, inside of the call.
    is_call = np.append(text_matches(ops["name"], _CALLS_PRODUCT.search), [False])
    casts = int(np.count_nonzero(is_call[parent[parent[rows]]]))
    return 0 < int(np.count_nonzero(products)) <= _PRODUCTS_PER_CAST * casts


def _host_gain(work: KernelWork, found: _Narrower) -> tuple[Interval, tuple[str, ...]]:
    """Returns the gain of bf16 on a CPU, and evidence on its cost.

    The gain is less than nothing where its casts and calls cost more. At least, only what arithmetic and bytes need
    gets shorter: what small products take beyond that, stays.
    """
    products, faster = found.products, found.faster_us
    compute_us, memory_us = np.minimum(work.compute_us(), work.us), work.memory_us()
    convolved = min(found.ratio, _SURELY_CONVOLVED[has_backward_pass(work.evidence)])
    ratio = np.where(work.family("convolution"), convolved, found.ratio)
    ratio = np.where(work.family("recurrent"), np.minimum(_SURELY_RECURRENT, found.ratio), ratio)
    floors = np.where(compute_us >= memory_us, compute_us * (1 - 1 / ratio), memory_us / 2)
    floors = np.where(np.isnan(work.roof("compute_us")), faster / 2, np.minimum(floors, faster))
    attended = products & (work.op_like(ATTENDS_ON_HOST) | work.op_like(ATTENDS_BACKWARD))
    multiplied = products & ~_by_channel(work, products) & ~attended
    attention = _attention_gain(work, found, attended)
    low_cost, high_cost, calls = _host_cost_us(work, products)
    most = work.us * (1 - 1 / _MOST_CONVOLVED[has_backward_pass(work.evidence)])
    faster = np.where(work.family("convolution"), np.minimum(faster, most), faster)
    low = float(np.minimum(floors, faster)[multiplied].sum()) + attention.low - high_cost
    high = float(faster[multiplied].sum() + found.halved_us.sum()) + attention.high - low_cost
    words = [
        f"casts and the longer calls of {counted(round(calls), 'product')} cost {format_us(low_cost)} to "
        f"{format_us(high_cost)} of what bf16 saves"
    ]
    if attention.low < 0:
        words.append(
            f"attention, {format_us(work.us_of(attended))} now, may take {format_us(-attention.low)} longer in bf16: "
            "each small block of it is a call of oneDNN"
        )
    return Interval(min(low, high), high), tuple(words)


def _attention_gain(work: KernelWork, narrow: _Narrower, rows: Flags) -> Interval:
    """Gives the gain of bf16 for fused attention on a CPU.

    It is less than nothing where that takes longer.
    """
    backward, us = rows & work.op_like(ATTENDS_BACKWARD), work.us
    forward, peaks = rows & ~backward, work.evidence.analysis.device.peaks_flops_per_s
    arithmetic_us = np.minimum(work.compute_us(), us) * (1 - 1 / narrow.ratio)
    op_us = smallest_op_us(work.evidence) / work.evidence.steps
    least_us, most_us = (ops * op_us * attention_calls(work) for ops in _ATTENTION_OPS)
    low = _SURE_OF_ATTENTION * arithmetic_us - most_us
    high = np.minimum(us * (1 - 1 / narrow.ratio), arithmetic_us) - least_us
    single = max((peaks[name] for name in (*_SINGLE_PEAKS, ONEDNN_PEAK) if peaks.get(name)), default=math.inf)
    gains_forward = narrow.faster_us[forward].sum() if narrow.peak >= _OF_MATRIX_UNITS * single else 0.0
    return Interval(
        float(low[backward].sum()) - _ATTENDS_LONGER * work.us_of(forward),
        float(high[backward].sum() + gains_forward),
    )


def _by_channel(work: KernelWork, products: Flags) -> Flags:
    """Marks convolutions that keep channels apart (depthwise).

    They are sums of few terms, which matrix units do not make faster.
    """

    def keeps_apart(signature: int) -> bool:
        sizes = [size for size in work.sizes_of(signature) if len(size) >= 3]
        return any(size[1] == 1 and size[0] > 1 for size in sizes[1:]) and max(size[1] for size in sizes) > 1

    return work.calls_that(products & work.family("convolution"), keeps_apart)


def _only_measuring_tells(work: KernelWork, products: Flags) -> bool:
    """True if only a measurement can tell how bf16 does.

    That is where convolutions that keep channels apart take a tenth of the step beyond their floors. What takes that
    time is how the library loops over planes, which may differ from dtype to dtype: a step of such convolutions became
    2.3 times as fast in bf16 (torch 2.13, EPYC with AVX512-BF16), and another one a third slower.
    """
    rows = _by_channel(work, products)
    beyond_us = float((work.us - work.floor_us())[rows].sum())
    return work.evidence.share_of_step(beyond_us) >= _MUCH_BEYOND


def _host_cost_us(work: KernelWork, products: Flags) -> tuple[float, float, float]:
    """Returns the cost of autocast on a CPU per step.

    At least and at most, and the number of products. Each product of the forward pass casts
    its weight, and its input where that is fp32; in training the gradients of both are cast back. That the weight of a
    loop is cast once per step is left out of account: loops pay for calls.
    """
    device, steps, trains = work.evidence.analysis.device, work.evidence.steps, has_backward_pass(work.evidence)
    op_us, bytes_per_us = smallest_op_us(work.evidence), (device.bandwidth_bytes_per_s or math.inf) / US_PER_S
    forward = products & ~work.inside(_BACKWARD)
    multiplies = products & work.family("matmul")
    weight, image = _operands(work, forward)
    passes = _CAST_BYTES * (2 if trains else 1) / steps / bytes_per_us
    slower = work.memory_slowdown()
    low, high = (
        op_us * (calls * np.count_nonzero(multiplies) + casts * np.count_nonzero(forward)) / steps
        for calls, casts in zip(_PRODUCT_OPS, _CASTS_OPS[trains], strict=True)
    )
    low += passes * float(weight.sum())
    high += passes * float(((_REORDERED * weight + image) * slower).sum())
    return low, high, float(np.count_nonzero(products)) / steps


def _operands(work: KernelWork, rows: Flags) -> tuple[Floats, Floats]:
    """Counts the elements of the weight of each product, and of its input.

    The weight is the last matrix; 0 where unknown. The matrix of a product with a vector counts as the weight.
    """
    weight, image = np.zeros(len(work.evidence.costs) + 1), np.zeros(len(work.evidence.costs) + 1)
    for code in np.unique(work.signature[rows]).tolist():
        sizes = [size for size in work.sizes_of(code) if len(size) >= 2]
        if sizes:
            weight[code] = math.prod(sizes[-1])
            image[code] = math.prod(sizes[0]) if len(sizes) > 1 else 0.0
    weight[-1] = image[-1] = 0.0
    return np.where(rows, weight[work.signature], 0.0), np.where(rows, image[work.signature], 0.0)


def _fp32_products(work: KernelWork) -> Flags:
    """Marks products, convolutions and attention of fp32 tensors.

    By their cost, else by the names of their kernels. A product with a vector is counted in fp32 whatever its tensors
    hold, since no matrix unit takes it.
    """
    evidence = work.evidence
    by_name = work.is_text(evidence.roofline, "family", *PRODUCTS) & work.bound("unknown")
    by_name &= work.is_text(evidence.linked.kernels, "math_dtype", "fp32", "tf32")
    by_name &= ~work.kernel_holds("c10::Half", "c10::BFloat16")  # plain units sum up half types in fp32
    return np.asarray((work.dtype("fp32") & ~work.reads(*_NARROW) & work.family(*PRODUCTS)) | by_name)


def _saved_us(work: KernelWork, products: Flags, ratio: Floats | float, dtype: str) -> tuple[Floats, Floats]:
    """Returns what each product saves in another type, at least and at most.

    By the learned rates of that type where there are any for its sizes. Otherwise its arithmetic runs ``ratio`` times
    as fast at most, and half of that gain is certain.
    """
    faster = np.where(products, work.us * (1 - _left(work, ratio)), 0.0)
    # The matrix of a product with a vector is read once: its bytes are all that gets less.
    of_vectors = products & work.op_like(_TIMES_VECTOR)
    faster = np.where(of_vectors, np.minimum(faster, work.memory_us() / 2), faster)
    least, most = faster / 2, faster.copy()
    evidence = work.evidence
    if evidence.is_host_only or evidence.price is None:
        return least, most
    place = np.flatnonzero(products & (work.signature >= 0))
    # The kernels of one call.
    _, first, call = np.unique(
        evidence.attribution["group"].to_numpy()[work.row[place]], return_index=True, return_inverse=True
    )
    signature, us = work.signature[place[first]], np.bincount(call, _run_us(work)[place])
    runs = np.bincount(signature, minlength=len(evidence.costs)) / evidence.steps
    now, then = (evidence.price(evidence, runs, name) for name in ("fp32", dtype))
    surely, more = (
        work.us[place] * np.clip(1.0 - after_us[signature] / np.maximum(us, 1e-9), 0.0, 1.0)[call]
        for after_us in (then.high_us, then.low_us)
    )
    # What holds back a call that takes longer than the rates explain may hold back the other one too.
    surely = np.where((us > now.high_us[signature])[call], np.minimum(least[place], surely), surely)
    is_priced = np.isfinite(more)
    least[place[is_priced]], most[place[is_priced]] = surely[is_priced], more[is_priced]
    return least, most


def _left(work: KernelWork, ratio: Floats | float) -> Floats:
    """Returns the part of each product's time that is left.

    Its arithmetic then runs so many times as fast and its bytes halve. A kernel far below its peak is held back by
    something that narrower numbers do not change: it then gains less. Of one whose sizes are not recorded that is not
    known: it is taken to be held back by a third.
    """
    explained = work.roof("compute_us") / np.maximum(_run_us(work), 1e-9)
    bytes_part = np.nan_to_num(work.roof("memory_us") / np.maximum(_run_us(work), 1e-9)) / 2
    held_back = np.where(np.isnan(explained), _STAYS_UNKNOWN, np.where(explained < _FAR_BELOW, _STAYS, 0.0))
    return np.clip(np.maximum(np.maximum(1 / ratio, bytes_part), held_back), 0.0, 1.0)


def _run_us(work: KernelWork) -> Floats:
    return np.asarray(work.evidence.linked.kernels["dur_us"].to_numpy()[work.row])


@requires_gain
def fp32_products(evidence: Evidence) -> Draft | None:
    """Finds fp32 products on plain units where tensor cores take TF32.

    Rule 27. Gain: t less the time in TF32 by learned rates; without such a price t (1 - P_fp32/P_tf32) with the
    device's peaks at most, from half of it. The units follow from kernel names.
    """
    work, peaks = work_of(evidence), evidence.analysis.device.peaks_flops_per_s
    fast, slow = peaks.get("tf32_tensor"), peaks.get("fp32_vector")
    if evidence.is_host_only or not fast or not slow or fast < _FASTER * slow:
        return None
    kernels = evidence.linked.kernels
    rows = work.is_text(kernels, "engine", "vector") & work.is_text(kernels, "family", "matmul", "convolution")
    rows &= _fp32_products(work) & work.bound("compute", "unknown")
    if work.share(rows) < _LEAST_SHARE:
        return None
    least, less = _saved_us(work, rows, fast / slow, "tf32")
    return Draft(
        slug="fp32-products",
        title="fp32 matmuls do not use the tensor cores",
        evidence=(
            f"{format_us(work.us_of(rows))} per step of fp32 products on plain units "
            f"({format_si(slow, 'FLOP/s')}; tensor cores take TF32 at {format_si(fast, 'FLOP/s')})",
            *work.describe(rows),
            *work.critical_path_note(less),
        ),
        advice="Allow TF32 for products and convolutions (10 bits of mantissa), or go on to bf16.",
        gain_us=work.gain(least, less),
        claims=work.claims(less),
        code='torch.set_float32_matmul_precision("high")\ntorch.backends.cudnn.allow_tf32 = True',
        tries=("tf32",),
        changes_results=True,
    )


_NEAR_THE_ROOF = 0.7  # of a data sheet, of which real kernels reach 71-97 %; a calibrated peak requires more
_NEAR_A_MEASURED_ROOF = 0.8


@requires_gain
def eight_bit_products(evidence: Evidence) -> Draft | None:
    """Finds 16-bit products near the peak where 8-bit floats are faster.

    Rule 28. Gain: t (1 - P_bf16/P_fp8) at most, from half of it; scaling and casts take a part.
    """
    work, device = work_of(evidence), evidence.analysis.device
    fast, slow = (device.peaks_flops_per_s.get(name) for name in ("fp8_tensor", "bf16_tensor"))
    if evidence.is_host_only or not fast or not slow or fast < _FASTER * slow:
        return None
    near = _NEAR_A_MEASURED_ROOF if device.source == "measured" else _NEAR_THE_ROOF
    rows = work.family("matmul") & work.dtype("bf16", "fp16") & work.bound("compute")
    rows &= work.roof("explained") >= near
    if work.share(rows) < 2 * _LEAST_SHARE:
        return None
    less = np.where(rows, work.us * (1 - slow / fast), 0.0)
    is_inference = _may_hold_narrow_weights(evidence)
    compiled = "In the compiled model," if is_compiled(evidence) else "Compile the model, then"
    return Draft(
        slug="eight-bit-products",
        title="16-bit matmuls run at the peak of their units; 8-bit ones would run above it",
        evidence=(
            f"products at {format_share(near)} of their peak and more take {format_us(work.us_of(rows))} "
            f"per step ({format_share(work.share(rows))})",
            f"this device multiplies fp8 at {format_si(fast, 'FLOP/s')}, bf16 at {format_si(slow, 'FLOP/s')}",
            *work.describe(rows),
            *work.critical_path_note(less),
        ),
        advice=f"{compiled} multiply in fp8 (weights and activations, scaled per tensor) if outputs stay good enough."
        if is_inference
        else "If the loss allows it, multiply in fp8 with scaling per tensor.",
        gain_us=work.gain(less / 2, less),
        claims=work.claims(less),
        code=_FP8_WEIGHTS if is_inference else _FP8,
        confidence="low",
        changes_results=True,
    )


# A product of one matrix, not of a batch of them (as keys and values are); its weight is so much of its bytes.
_ONE_MATRIX, _MOSTLY_WEIGHT, _LEAST_READ = re.compile(r"^aten::(?:addmm|mm|mv|addmv|linear|matmul)$"), 0.8, 0.2
# Of the time of such products, int8 weights save: Llama-2-7B on an A100 went from 104.9 to 155.6 tokens per second, at
# 1,397 and at 1,069 GB/s (gpt-fast); half of the bytes at the same rate would save half.
_SAVED_BY_INT8 = (0.3, 0.5)


@requires_gain
def weights_for_few_rows(evidence: Evidence) -> Draft | None:
    """Finds products of inference that read 16-bit weights for few rows.

    As in decoding one token per sequence. Gain: 30 to 50 % of their time, by weights of 8 bits.
    """
    work = work_of(evidence)
    if has_backward_pass(evidence):
        return None
    rows = work.family("matmul") & work.op_like(_ONE_MATRIX)
    if evidence.is_host_only:
        is_thin = work.roof("flops") < FEW_FLOPS_PER_BYTE * work.roof("bytes_low")
        rows &= work.dtype("fp32") & (work.bound("memory") | (work.bound("unknown") & is_thin))
    else:
        rows &= work.reads("bf16", "fp16") & work.bound("memory")
    weight, image = _operands(work, rows)
    outcome = np.nan_to_num(work.cost("m") * work.cost("n"), nan=np.inf)
    rows &= weight >= _MOSTLY_WEIGHT * (weight + image + outcome)
    if work.share(rows) < _LEAST_READ:
        return None
    read_bytes = (4.0 if evidence.is_host_only else 2.0) * float(weight[rows].sum()) / evidence.steps
    reached = work.mean(np.nan_to_num(work.roof("explained")), rows)
    less = np.where(rows, work.us, 0.0)
    if evidence.is_host_only:
        return _fp32_weights_for_few_rows(evidence, work, rows, read_bytes)
    return Draft(
        slug="weights-for-few-rows",
        title="Matmuls read all their 16-bit weights for a few rows",
        evidence=(
            f"{format_per_step(evidence, work.us_of(rows))} in products that read {format_si(read_bytes, 'B')} of "
            f"weights, {format_share(reached)} of the time explained by their bytes",
            *work.describe(rows),
            *work.critical_path_note(_SAVED_BY_INT8[1] * less),
        ),
        advice="Keep the weights in int8 or int4 (weight-only quantization: half or a quarter of the bytes), or "
        "compute more rows per step: more sequences at once, or several tokens of one by speculative decoding.",
        brief="Keep the weights in int8 or int4, or compute more rows per step",
        gain_us=work.gain(_SAVED_BY_INT8[0] * less, _SAVED_BY_INT8[1] * less),
        claims=work.claims(_SAVED_BY_INT8[1] * less),
        code="from torchao.quantization import Int8WeightOnlyConfig, quantize_\n\n"
        "quantize_(model, Int8WeightOnlyConfig())  # then torch.compile, which multiplies without unpacking first",
        changes_results=True,
    )


def _fp32_weights_for_few_rows(evidence: Evidence, work: KernelWork, rows: Flags, read_bytes: float) -> Draft:
    """Words the same of fp32 products on a CPU.

    No gain of narrower weights is known there.
    """
    seconds = work.us_of(rows) / US_PER_S
    return Draft(
        slug="weights-for-few-rows",
        title="Matmuls read all their fp32 weights for a few rows",
        evidence=(
            f"{format_per_step(evidence, work.us_of(rows))} in products that read {format_si(read_bytes, 'B')} of "
            f"weights, at {format_si(read_bytes / seconds, 'B/s')}",
            *work.describe(rows),
        ),
        advice="Compute more rows per step, which read the weights once for all of them: more samples at once. Or keep "
        "the weights in int8 (a quarter of the bytes).",
        brief="Raise the batch size (the weights are read for few rows of input), or keep the weights in int8",
        gain_reason="only a trial shows what narrower weights gain on this processor",
        code="from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_\n\n"
        "quantize_(model, Int8DynamicActivationInt8WeightConfig())  # compare its outputs",
        changes_results=True,
    )


# Kernels that unpack quantized weights for products of another kernel.
_UNPACKS = re.compile(r"dequant(?!.*(?:gemm|matmul|attention|attn))", re.IGNORECASE)
# Of their time per sample: twice as many rows leave half, four times as many a quarter.
_SPREAD = (0.5, 0.75)


@requires_gain
def unpacked_weights(evidence: Evidence) -> Draft | None:
    """Finds weights that are unpacked to 16 bits for each product.

    As in QLoRA. That takes as long for few rows as for many. Gain per sample: half to three quarters of it.
    """
    work = work_of(evidence)
    rows = work.kernel_like(_UNPACKS) & work.in_model
    if evidence.is_host_only or work.share(rows) < _LEAST_SHARE:
        return None
    less = np.where(rows, work.us, 0.0)
    return Draft(
        slug="unpacked-weights",
        title="Quantized weights are unpacked for each product",
        evidence=(
            f"{format_per_step(evidence, work.us_of(rows))} in kernels that unpack weights, however few rows are "
            "multiplied with them",
            *work.describe(rows),
            *work.critical_path_note(less),
        ),
        advice="Multiply more rows with each unpacked weight (a larger micro-batch in place of accumulated ones), or "
        "keep weights in 16 bits where memory holds them; a kernel that multiplies packed weights suits few rows only.",
        gain_us=work.gain(_SPREAD[0] * less, _SPREAD[1] * less),
        claims=work.claims(_SPREAD[1] * less),
        code="TrainingArguments(per_device_train_batch_size=4, gradient_accumulation_steps=2)  # in place of 1 and 8",
        per="sample",
    )


# Products of data with weights.
_OF_LAYERS = re.compile(r"^aten::(?:linear|addmm|\w*convolution\w*)$")
# Peaks of the units that work in a dtype, the fastest first.
_DOUBLE_PEAKS, _SINGLE_PEAKS = ("fp64_tensor", "fp64_vector"), ("fp32_matrix", "fp32_tensor", "fp32_vector")


@requires_gain
def double_precision(evidence: Evidence) -> Draft | None:
    """Finds work in fp64, as tensors made from NumPy's numbers are.

    fp32 has half of the bytes and at least twice the peak. Gain: t (1 - P_fp64/P_fp32) of what is bound by arithmetic,
    where both peaks are known, else t/2; from 75 % of it. On a CPU each kind of op saves what was measured of it, and
    at most the new pages of its results go too. Convolutions on a CPU get another kernel.
    """
    work, peaks = work_of(evidence), evidence.analysis.device.peaks_flops_per_s
    double, single = (
        next((peaks[name] for name in names if peaks.get(name)), None) for names in (_DOUBLE_PEAKS, _SINGLE_PEAKS)
    )
    # Gathers and copies compute in no dtype; those of fp64 move its bytes.
    moved = work.calls_that(work.reads("fp64") & work.bound("memory", "copy"), partial(_moves_doubles, work))
    rows = (work.dtype("fp64") & work.bound("compute", "memory", "unknown")) | moved
    if work.share(rows) < _LEAST_SHARE:
        return None
    ratio = double / single if double and single and double < single else 0.5
    less = np.where(rows, work.us * np.where(work.bound("compute"), 1 - ratio, 0.5), 0.0)
    least, most = _of_doubles(work, rows, less)
    replaced = rows & work.family("convolution") & evidence.is_host_only
    least, most = (
        np.where(replaced, part * work.us, us) for part, us in zip(_OTHER_KERNEL, (least, most), strict=True)
    )
    entry, issued_us = _first_double(evidence), _issued_by_convolutions_us(evidence)
    chosen = setting_line(evidence, "double")
    where = "" if entry is None else f", {at_source(entry[0])}"
    gain_us, claims = work.gain(least, most), work.claims(most)
    if issued_us > 0:
        low_us, high_us = (part * issued_us for part in _OTHER_KERNEL)
        gain_us = Interval(gain_us.low + low_us, gain_us.high + high_us)
        claims = {**claims, DISPATCH: claims.get(DISPATCH, 0.0) + high_us}
    gain_us, claims = _with_pages(evidence, gain_us, claims, work.us_of(rows) / max(float(work.us.sum()), 1e-9))
    return Draft(
        slug="double-precision",
        title="Work runs in fp64, which few programs need",
        evidence=(
            f"{format_us(work.us_of(rows))} per step in fp64 ({format_share(work.share(rows))})"
            + ("" if entry is None else f"; the first op of a step with fp64 is {entry[1]} {at_source(entry[0])}"),
            *(
                [f"{format_us(work.us_of(replaced))} of it in convolutions, for which fp32 has another, faster kernel"]
                if replaced.any()
                else []
            ),
            *work.describe(rows),
            *work.critical_path_note(most),
        ),
        advice=_single_precision(where, chosen, has_weights=bool((rows & work.op_like(_OF_LAYERS)).any())),
        places=(chosen, None if entry is None else entry[0]),
        gain_us=gain_us,
        claims=claims,
        code="x = torch.from_numpy(array).float()  # and model.float(), no torch.set_default_dtype(torch.float64)",
        changes_results=True,
    )


# Accounts in which new pages are, the likeliest first.
_OF_PAGES = ("overhead.allocator", "memory", "overhead.unknown", "compute")


def _with_pages(
    evidence: Evidence, gain_us: Interval, claims: Mapping[str, float], part: float
) -> tuple[Interval, dict[str, float]]:
    """Adds this part of the page faults to the upper end.

    Half of the bytes need half of the new pages, and none where they no longer come from the system.
    """
    pages_us = part * counted_faults_us(evidence)
    return Interval(gain_us.low, gain_us.high + pages_us), add_claims(evidence, claims, pages_us, _OF_PAGES)


def _of_doubles(work: KernelWork, rows: Flags, less: Floats) -> tuple[Floats, Floats]:
    """Returns what each row in fp64 saves in fp32, at least and at most.

    ``less`` is that by its bytes or by the peaks, which holds on a device.
    """
    least, most = _SURE_OF_HALVED * less, less
    if not work.evidence.is_host_only:
        return least, most
    open_rows = rows
    for pattern, low, high in _OF_DOUBLES:
        mine = open_rows & work.op_like(pattern)
        open_rows = open_rows & ~mine
        least = np.where(mine & (low is not None), (low or 0.0) * work.us, least)
        most = np.where(mine, np.maximum(high * work.us, least), most)
    return least, most


_CONVOLUTIONS = re.compile(r"^aten::(?:conv[123]d|convolution)$")


def _issued_by_convolutions_us(evidence: Evidence) -> float:
    """Gives the dispatching per step in convolutions of fp64 on a CPU.

    They go sample by sample. The kernel that fp32 has is one call for all samples.
    """
    if not evidence.is_host_only:
        return 0.0
    work, top = work_of(evidence), top_rows(evidence)
    top = top[text_matches(evidence.linked.ops["name"], _CONVOLUTIONS.search)[top]]
    calls = as_integers(evidence.linked.ops["signature"])[top]
    rows = [
        row
        for row, call in zip(top.tolist(), calls.tolist(), strict=True)
        if next(iter(work.text_column("types", call)), None) == "double"
    ]
    return removal_of(evidence, [*rows, *backward_of(evidence, rows)]).claims.get(DISPATCH, 0.0) if rows else 0.0


def _single_precision(where: str, chosen: str | None, *, has_weights: bool) -> str:
    """Words the change to fp32.

    ``chosen`` is the line that asks for fp64, where one alone does.

    A layer takes weights and data of one dtype: to convert the data alone would raise.
    """
    asked = "" if chosen is None else f" fp64 is asked for {at_source(chosen)}."
    if has_weights:
        return (
            f"Make the weights fp32 (model.float(), or no torch.set_default_dtype(torch.float64)), and the data where "
            f"it enters{where}, unless the method needs 64 bits.{asked}"
        )
    return (
        f"Convert the data to fp32 (.float()) where it enters{where}, unless the method needs fp64, which is NumPy's "
        f"default.{asked}"
    )


def _moves_doubles(work: KernelWork, signature: int) -> bool:
    """True if the largest tensor of a call is of fp64.

    Numbers of Python are doubles beside tensors of fp32.
    """
    types = work.text_column("types", signature)
    sizes = {math.prod(size): str(name) for size, name in zip(work.sizes_of(signature), types, strict=False) if size}
    return bool(sizes) and SHORT_DTYPE.get(sizes[max(sizes)]) == "fp64"


def _first_double(evidence: Evidence) -> tuple[str, str] | None:
    """Returns line and name of the steps' first op with a tensor of fp64.

    Null where none tells.
    """
    ops, work, top = evidence.linked.ops, work_of(evidence), top_rows(evidence)
    calls = as_integers(ops["signature"])[top]
    double = [call for call in np.unique(calls).tolist() if has_double(work, call)]
    doubles = ops.iloc[top[np.isin(calls, double)]].sort_values("ts_us")
    firsts = doubles[doubles["source"].notna() & doubles["step"].notna()].groupby("step", observed=True)[
        ["source", "name"]
    ]
    pairs = Counter((str(source), str(name)) for source, name in firsts.first().itertuples(index=False, name=None))
    return pairs.most_common(1)[0][0] if pairs else None


_NARROW_PEAKS = {"bf16": "bf16_tensor", "fp16": "fp16_tensor"}
# Of the fp32 peak: a narrower type whose peak is below that is slower. Of the ratio of the peaks, what is certain.
_SLOWER, _SURE_OF_PEAKS = 0.8, 0.5


@requires_gain
def slower_half_precision(evidence: Evidence) -> Draft | None:
    """Finds products in bf16 or fp16 on a CPU that is faster in fp32.

    Gain: t (1 - P_narrow/P_fp32) of these products, from half of it. Where P_narrow was not measured, as in a short
    calibration, it is the rate of the products themselves, if that is a tenth of P_fp32 at most.
    """
    work, peaks = work_of(evidence), evidence.analysis.device.peaks_flops_per_s
    single = next((peaks[name] for name in _SINGLE_PEAKS if peaks.get(name)), None)
    if not evidence.is_host_only or single is None:
        return None
    slow = {
        dtype: ratio
        for dtype, name in _NARROW_PEAKS.items()
        if (ratio := _ratio_of_rates(work, dtype, peaks.get(name), single)) is not None and ratio < _SLOWER
    }
    less = np.zeros(work.us.size)
    for dtype, ratio in slow.items():
        less = np.where(work.dtype(dtype) & work.family(*PRODUCTS), work.us * (1 - ratio), less)
    rows = less > 0
    if work.share(rows) < _LEAST_SHARE:
        return None
    dtype = max(slow, key=lambda name: work.us_of(rows & work.dtype(name)))
    rates = f"{format_si(slow[dtype] * single, 'FLOP/s')} in {dtype} and {format_si(single, 'FLOP/s')} in fp32"
    return Draft(
        slug="slower-half-precision",
        title=f"Products run in {dtype}, which is slower than fp32 on this CPU",
        evidence=(
            f"{format_us(work.us_of(rows))} per step in {dtype} ({format_share(work.share(rows))}); products reach "
            f"{rates} here, {'as measured' if peaks.get(_NARROW_PEAKS[dtype]) else 'the first in this step'}",
            *work.describe(rows),
            *work.critical_path_note(less),
        ),
        advice=f"Compute in fp32 on this CPU: leave out {_makes_narrow(evidence, dtype)}. {dtype} pays on processors "
        "with units for it.",
        brief=f"Compute in fp32 on this CPU: leave out {_makes_narrow(evidence, dtype)}",
        gain_us=work.gain(_SURE_OF_PEAKS * less, less),
        claims=work.claims(less),
        code='with torch.autocast(device, dtype=torch.bfloat16, enabled=device != "cpu"):'
        if _autocasts(evidence)
        else "model = model.float()  # and its inputs: x = x.float()",
        changes_results=True,
    )


# Of the fp32 peak: products that take so long and reach no more of it are slow by their dtype.
_FAR_SLOWER, _LONG_PRODUCT_US = 0.1, 100.0


def _ratio_of_rates(work: KernelWork, dtype: str, peak: float | None, single: float) -> float | None:
    """Gives how many times as fast as in fp32 products of this dtype are.

    Null where neither the peak nor the products of the step tell.
    """
    if peak:
        return peak / single
    rows = work.dtype(dtype) & work.family(*PRODUCTS)
    window_us = work.us_of(rows) * work.evidence.steps
    if window_us < _LONG_PRODUCT_US * max(int(np.count_nonzero(rows)), 1):
        return None  # calls, not arithmetic
    flops = np.nan_to_num(work.cost("matrix_flops")) + np.nan_to_num(work.cost("vector_flops"))
    ratio = float(flops[rows].sum()) / (window_us / US_PER_S) / single
    return ratio if 0 < ratio <= _FAR_SLOWER else None


def _autocasts(evidence: Evidence) -> bool:
    """True where casts, or lines of the program, show autocast."""
    texts = evidence.source_texts
    return "aten::_autocast_to_reduced_precision" in evidence.op_sums or any(
        "autocast" in text for text in texts.values()
    )


_MOST_LINES = 2


def _makes_narrow(evidence: Evidence, dtype: str) -> str:
    """Words what makes the products narrow, as far as it is known."""
    if _autocasts(evidence):
        return f"torch.autocast{at_known(setting_line(evidence, 'narrow'))}"
    method = "half()" if dtype == "fp16" else "bfloat16()"
    recording = evidence.recording
    if recording is not None:
        lines = recording.setting_lines.get("narrow", ())
        converts = [line for line in lines if f".{method}" in recording.source_texts.get(line, "")]
        if converts:
            return f".{method} {at_source(listed(converts[:_MOST_LINES]))}"
    return f"torch.autocast, or model.{method} and model.to({_TORCH_DTYPE[dtype]})"


RULES = (
    slower_half_precision,
    double_precision,
    half_precision,
    half_precision_does_not_pay,
    half_precision_not_known,
    fp32_products,
    eight_bit_products,
    weights_for_few_rows,
    unpacked_weights,
)
