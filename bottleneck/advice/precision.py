"""Rules of precision: half as many bytes, and matrix units that are faster on narrower numbers."""

import numpy as np

from bottleneck.advice.kernel_work import PRODUCTS, KernelWork, requires_gain, work_of
from bottleneck.advice.ranking import Draft
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.intervals import Flags, Floats
from bottleneck.units import format_share, format_si, format_us

_LEAST_SHARE = 0.05
# Narrow products have to be this much faster to pay for the casts around them.
_FASTER = 1.5
# Kernels of the narrower dtype are taken to reach as much of their peak as the present ones do of their own. What
# holds those far below it (launch, tails, latency) stays, about half of their time.
_FAR_BELOW, _STAYS = 0.5, 0.5
# Each operand of a product is read wide and written narrow, and the weights' gradients the other way round.
_CAST_TRAFFIC = 1.5

_AUTOCAST = 'with torch.autocast("{kind}", dtype=torch.bfloat16):\n    loss = model(x)'
# Gradients of fp16 underflow without a scale; bf16 has the range of fp32.
_SCALED_AUTOCAST = (
    'scaler = torch.amp.GradScaler("cuda")  # for training\n'
    'with torch.autocast("cuda", dtype=torch.float16):\n    loss = model(x)\n'
    "scaler.scale(loss).backward()\nscaler.step(optimizer)\nscaler.update()"
)
_FP8 = (
    "from torchao.float8 import convert_to_float8_training\n"
    "convert_to_float8_training(model)  # and compare the loss curve: three bits of mantissa are few"
)


@requires_gain
def half_precision(evidence: Evidence) -> Draft | None:
    """Rule 20: fp32 products and tensors where 16 bits halve the bytes and multiply faster by the device's peaks.

    These are bf16, or fp16 with a gradient scaler on GPUs whose matrix units take no bf16 (Volta, Turing).
    Gain: products t - t P_fp32/P_bf16 (bytes: t/2), other work of the model in fp32 that is bound by its bytes t/2,
    at most; from half of the products' part, less the casts: autocast keeps norms, softmax and losses in fp32. A CPU
    only counts where its calibrated bf16 peak says so: without AVX512-BF16 or AMX it is a hundred times slower.
    """
    work, device = work_of(evidence), evidence.analysis.device
    peaks = device.peaks_flops_per_s
    dtype = next((each for each in ("bf16", "fp16") if peaks.get(f"{each}_tensor")), None)
    if dtype is None or (dtype == "fp16" and evidence.is_host_only):
        return None
    narrow, is_scaled = peaks[f"{dtype}_tensor"], dtype == "fp16"
    full = next((peaks[name] for name in ("fp32_matrix", "fp32_tensor", "fp32_vector") if peaks.get(name)), None)
    if full is None or narrow < _FASTER * full:
        return None
    tf32 = peaks.get("tf32_tensor")
    in_tf32 = work.is_text(evidence.linked.kernels, "engine", "matrix")
    ratios = np.where(in_tf32, narrow / (tf32 or full), narrow / full)
    products = _fp32_products(work) & work.in_model
    others = (
        work.dtype("fp32")
        & work.in_model
        & work.bound("memory")
        & work.family("pointwise", "pooling", "normalization", "copy")
    )
    if work.share(products) < _LEAST_SHARE:
        return None  # autocast starts from products: without them nothing changes
    faster = np.where(products, work.us * (1 - _left(work, ratios)), 0.0)
    casts = np.where(products, work.memory_us() * _CAST_TRAFFIC, 0.0)
    halved = np.where(others, np.minimum(work.memory_us(), work.us) / 2, 0.0)
    return Draft(
        slug="half-precision",
        title=f"The model works in fp32 where {dtype} would do",
        evidence=(
            f"fp32 products take {format_us(work.us_of(products))} per step "
            f"({format_share(work.share(products))}), other fp32 work that is bound by its bytes "
            f"{format_us(work.us_of(others))}",
            f"this device multiplies {dtype} at {format_si(narrow, 'FLOP/s')}, "
            f"{work.mean(ratios, products):.1f} times what these products may reach",
            *work.describe(products),
            *work.critical_path_note(faster + halved),
        ),
        advice=(
            "Run forward pass and loss under bf16 autocast, and watch the loss."
            if not is_scaled
            else "Run forward pass and loss under fp16 autocast, training with a gradient scaler, and watch the loss."
        ),
        gain_us=work.gain(np.clip(faster / 2 - casts, 0.0, None), faster + halved),
        claims=work.claims(faster + halved),
        code=_AUTOCAST.format(kind="cpu" if evidence.is_host_only else "cuda") if not is_scaled else _SCALED_AUTOCAST,
        tries=() if is_scaled else ("bf16-autocast",),
        confidence="low" if work.share(products & work.bound("unknown")) > work.share(products) / 2 else "medium",
        changes_results=True,
    )


def _fp32_products(work: KernelWork) -> Flags:
    """Mask of products, convolutions and attention in fp32: by their cost, else by the names of their kernels."""
    evidence = work.evidence
    by_name = work.is_text(evidence.roofline, "family", *PRODUCTS) & work.bound("unknown")
    by_name &= work.is_text(evidence.linked.kernels, "math_dtype", "fp32", "tf32")
    return np.asarray((work.dtype("fp32") & work.family(*PRODUCTS)) | by_name)


def _left(work: KernelWork, ratio: Floats | float) -> Floats:
    """The part of each product's time that is left if its arithmetic runs so many times as fast and its bytes halve.

    A kernel far below its peak is held back by something that narrower numbers do not change: it then gains less. So
    does one whose sizes are not recorded, because that is not known.
    """
    explained = np.nan_to_num(work.roof("compute_us") / np.maximum(_run_us(work), 1e-9))
    bytes_part = np.nan_to_num(work.roof("memory_us") / np.maximum(_run_us(work), 1e-9)) / 2
    held_back = np.where(explained < _FAR_BELOW, _STAYS, 0.0)
    return np.clip(np.maximum(np.maximum(1 / ratio, bytes_part), held_back), 0.0, 1.0)


def _run_us(work: KernelWork) -> Floats:
    return np.asarray(work.evidence.linked.kernels["dur_us"].to_numpy()[work.row])


@requires_gain
def fp32_products(evidence: Evidence) -> Draft | None:
    """Rule 27: fp32 products on plain units of a device whose tensor cores take TF32.

    Gain: t (1 - P_fp32/P_tf32) with the device's peaks at most, from half of it. The units follow from kernel names.
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
    less = np.where(rows, work.us * (1 - _left(work, fast / slow)), 0.0)
    return Draft(
        slug="fp32-products",
        title="Products in fp32 leave the tensor cores unused",
        evidence=(
            f"{format_us(work.us_of(rows))} per step of fp32 products on plain units "
            f"({format_si(slow, 'FLOP/s')}; tensor cores take TF32 at {format_si(fast, 'FLOP/s')})",
            *work.describe(rows),
            *work.critical_path_note(less),
        ),
        advice="Allow TF32 for products and convolutions (10 bits of mantissa), or go on to bf16.",
        gain_us=work.gain(less / 2, less),
        claims=work.claims(less),
        code='torch.set_float32_matmul_precision("high")\ntorch.backends.cudnn.allow_tf32 = True',
        tries=("tf32",),
        changes_results=True,
    )


_NEAR_THE_ROOF = 0.7  # of a data sheet, of which real kernels reach 71-97 %; a calibrated peak requires more
_NEAR_A_MEASURED_ROOF = 0.8


@requires_gain
def eight_bit_products(evidence: Evidence) -> Draft | None:
    """Rule 28: 16-bit products near the peak of a device that multiplies 8-bit floats faster.

    Gain: t (1 - P_bf16/P_fp8) at most, from half of it; scaling and casts take a part.
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
    return Draft(
        slug="eight-bit-products",
        title="16-bit products run at the peak of their units; 8-bit ones would run above it",
        evidence=(
            f"products at {format_share(near)} of their peak and more take {format_us(work.us_of(rows))} "
            f"per step ({format_share(work.share(rows))})",
            f"this device multiplies fp8 at {format_si(fast, 'FLOP/s')}, bf16 at {format_si(slow, 'FLOP/s')}",
            *work.describe(rows),
            *work.critical_path_note(less),
        ),
        advice="If the loss allows it, multiply in fp8 with scaling per tensor.",
        gain_us=work.gain(less / 2, less),
        claims=work.claims(less),
        code=_FP8,
        confidence="low",
        changes_results=True,
    )


RULES = (half_precision, fp32_products, eight_bit_products)
