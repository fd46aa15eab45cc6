"""Rules of matrix products and attention.

They concern sizes that do not fit, many small products, and products near and far below the roof.
"""

import re

import numpy as np
import pandas as pd

from bottleneck.advice.convolutions import layout_by_pixels
from bottleneck.advice.kernel_work import PRODUCTS, KernelWork, has_backward_pass, requires_gain, work_of
from bottleneck.advice.onednn_products import onednn_is_faster
from bottleneck.advice.quantities import format_count, format_range
from bottleneck.advice.ranking import Draft
from bottleneck.schema.analysis import DISTURBED_SLUGS, REGIMES
from bottleneck.schema.device_facts import attention_kernels
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.intervals import Flags, Floats
from bottleneck.schema.tables import as_integers
from bottleneck.units import counted, format_share, format_us

_LEAST_SHARE = 0.02
_REACHED = REGIMES["near_roof"].least  # of the peak, by products of friendly shapes

_UNIT = 8  # numbers of 16 bits in 16 bytes, what one load of the widest kind takes
_POORLY_EXPLAINED = 0.6


@requires_gain
def misaligned_products(evidence: Evidence) -> Draft | None:
    """Finds products on matrix units with misfit sizes (rule 29).

    Their sizes are no multiple of 8 and they reach less than 60 % of their floor. Gain: what is left above 70 % of the
    peak at the padded shape, at most, from half of it. CPU libraries pack their operands, so that this is about GPUs.
    """
    work = work_of(evidence)
    if evidence.is_host_only:
        return None
    m, n, k = (work.cost(name) for name in ("m", "n", "k"))
    uneven = ((n % _UNIT != 0) & (n > _UNIT)) | ((k % _UNIT != 0) & (k > _UNIT))
    halves = work.family("matmul") & work.dtype("bf16", "fp16") & (work.roof("explained") < _POORLY_EXPLAINED)
    rows = work.has_reason("misaligned") | (halves & uneven & work.bound("compute"))
    if work.share(rows) < _LEAST_SHARE:
        return None
    growth = np.nan_to_num(_padded(m) * _padded(n) * _padded(k) / np.maximum(m * n * k, 1.0), nan=1.0)
    after = work.floor_us() * np.maximum(growth, 1.0) / _REACHED
    less = np.where(rows, np.clip(work.us - after, 0.0, None), 0.0)
    return Draft(
        slug="misaligned-products",
        title="Matmul sizes that are no multiple of 8 run on slower kernels",
        evidence=(
            *work.describe(rows),
            *_uneven_sizes(work, rows),
            *work.critical_path_note(less),
        ),
        advice=f"{_whose_sizes(_size_to_pad(work, rows))} to multiples of 8 (64 is better).",
        gain_us=work.gain(less / 2, less),
        claims=work.claims(less),
        code=_padding_code(_size_to_pad(work, rows)),
        tries=("pad", "pad-vocabulary"),
    )


def _padded(size: Floats) -> Floats:
    return np.asarray(np.where(size > 1, np.ceil(size / _UNIT) * _UNIT, size))


def _size_to_pad(work: KernelWork, rows: Flags) -> int | None:
    """Gives the uneven size with most of the time; null where none is known."""
    us_of_size: dict[float, float] = {}
    for name in ("m", "n", "k"):
        sizes = work.cost(name)[rows]
        for size, us in zip(sizes.tolist(), work.us[rows].tolist(), strict=True):
            if size > 1 and size % _UNIT:
                us_of_size[size] = us_of_size.get(size, 0.0) + us
    worst = max(us_of_size, key=lambda size: us_of_size[size], default=None)
    return None if worst is None else round(worst)


def _whose_sizes(size: int | None) -> str:
    if size is None:
        return "Pad the sizes of the model, vocabulary and heads first,"
    return f"Pad {size} first, and other sizes of the model,"


def _padding_code(size: int | None) -> str | None:
    """Gives the line that pads this size to a multiple of 64."""
    return None if size is None else f"size = (size + 63) // 64 * 64  # {size} to {-(-size // 64) * 64}; mask the rest"


def _uneven_sizes(work: KernelWork, rows: Flags) -> tuple[str, ...]:
    descriptions = {
        f"{name} = {size:.0f}"
        for name in ("m", "n", "k")
        for size in np.unique(work.cost(name)[rows]).tolist()
        if size > 1 and size % _UNIT
    }
    return (f"no multiple of {_UNIT}: {', '.join(sorted(descriptions)[:6])}",) if descriptions else ()


_FILLED_ENOUGH = 0.75
# hipBLASLt writes the tile of a product, and in how many parts its sum is shared out, into the kernel's name.
_TILE, _SPLIT = re.compile(r"^Cijk_\w*?_MT(\d{1,3})x(\d{1,3})x"), re.compile(r"_GSU(\d{1,3})_")
_FEWEST_SMS = 32  # a small part has so many; an MI300X has 304
_TUNE_TILES = (
    "Set PYTORCH_TUNABLEOP_ENABLED=1, which tries other kernels for each matrix product: the few blocks of this one "
    "leave a part of the GPU idle."
)


@requires_gain
def unfilled_waves(evidence: Evidence) -> Draft | None:
    """Finds product tiles that leave their waves unfilled (rule 30).

    More than a quarter of the slots of the waves is empty. Gain: t (1 - fill) at most, from half of it.
    ``ROOFLINE.reason`` proves the fill from grid and sizes. Where the size of the device is not known, tiles that are
    too few for any.
    """
    work = work_of(evidence)
    fill = work.reason_number("fill") if evidence.analysis.device.sm_count else _most_fill(work)
    rows = (fill < _FILLED_ENOUGH) & work.family("matmul", "convolution")
    if evidence.is_host_only or work.share(rows) < _LEAST_SHARE:
        return None
    less = np.where(rows, np.minimum(work.us * (1 - fill), work.us - work.floor_us()), 0.0)
    few = () if evidence.analysis.device.sm_count else _few_tiles(work, rows)
    return Draft(
        slug="unfilled-waves",
        title="The tiles of matmuls do not fill the device evenly",
        evidence=(
            *work.describe(rows),
            *(few or sorted(reason.words for reason in evidence.roofline["reason"].iloc[work.row[rows]].unique())[:3]),
            *work.critical_path_note(less),
        ),
        advice=_TUNE_TILES
        if few
        else "Choose batch or sequence so that the tiles fill whole waves, or let an autotuner choose other tiles.",
        gain_us=work.gain(less / 2, less),
        claims=work.claims(less),
        code=_TUNE["rocm"][1] if few else 'model = torch.compile(model, mode="max-autotune")  # or another batch size',
        tries=("compile-max-autotune",),
        confidence="low",
    )


def _most_fill(work: KernelWork) -> Floats:
    """Gives the part of an unknown device that each product's tiles fill.

    It is an upper bound, NaN where the name has no tile. Tiles that share their sum out (global split-U of hipBLASLt)
    count once for each part.
    """
    names = [str(name) for name in work.evidence.linked.kernels["name"].cat.categories]
    matches = [(_TILE.search(name), _SPLIT.search(name)) for name in names]
    tiles = np.array(
        [(float(t[1]), float(t[2]), float(s[1]) if s else 1.0) if t else (np.nan,) * 3 for t, s in matches]
    )
    rows, columns, parts = tiles.reshape(-1, 3)[work.evidence.linked.kernels["name"].cat.codes.to_numpy()[work.row]].T
    count = np.ceil(work.cost("m") / rows) * np.ceil(work.cost("n") / columns) * work.cost("batch")
    return np.asarray(np.minimum(count * parts / _FEWEST_SMS, 1.0))


def _few_tiles(work: KernelWork, rows: Flags) -> tuple[str, ...]:
    most = float(np.nanmax(_most_fill(work)[rows]) * _FEWEST_SMS)
    return (
        f"at most {counted(format_count(most), 'tile')} at once: even small devices have {_FEWEST_SMS} multiprocessors",
    )


_MANY = 3
_SMALL_US = 20.0
_GROUPED_REACHED = 0.5


@requires_gain
def many_small_products(evidence: Evidence) -> Draft | None:
    """Finds runs of small products of one shape (rule 31).

    They are three or more, directly after one another, too small to reach half their floor. In trace order nothing but
    views lies between them, so that none can need another's result through an activation. Gain: Sigma t less the time
    of one product of them all, at most (at half of the peak, and no faster than one of them is now), from half of it.
    """
    work = work_of(evidence)
    rows, first = _repeated(work)
    if work.share(rows) < _LEAST_SHARE:
        return None
    run = np.cumsum(first)[rows]
    us, floor = work.us[rows], work.floor_us()[rows]
    total, least, longest = np.bincount(run, us), np.bincount(run, floor) / _GROUPED_REACHED, np.zeros(run.max() + 1)
    np.maximum.at(longest, run, us)
    part = np.clip(1 - np.maximum(least, longest) / np.maximum(total, 1e-12), 0.0, 1.0)
    less = np.zeros(work.row.size)
    less[rows] = us * part[run]
    if not less.any():
        return None
    runs = np.bincount(run)
    return Draft(
        slug="many-small-products",
        title="Many small matmuls of one shape run one by one",
        evidence=(
            f"{format_count(np.count_nonzero(runs) / evidence.steps)} runs per step of {format_range(runs[runs > 0])} "
            "products of one shape, in trace order",
            *work.describe(rows),
            *work.critical_path_note(less),
        ),
        advice="Where they do not need one another's results, join them: one batched product, or one wider weight.",
        gain_us=work.gain(less / 2, less),
        claims=work.claims(less),
        code="q, k, v = self.qkv(x).chunk(3, dim=-1)  # one product for three; stacked weights: torch.bmm",
        confidence="low",
    )


def _repeated(work: KernelWork) -> tuple[Flags, Flags]:
    """Rows in runs of equal small products of a step, and where runs open."""
    small = work.family("matmul") & (work.signature >= 0) & (work.floor_us() < _GROUPED_REACHED * work.us)
    if not work.evidence.is_host_only:
        small &= work.evidence.linked.kernels["dur_us"].to_numpy()[work.row] < _SMALL_US
    kernels = work.evidence.linked.kernels
    stream, step = kernels["stream"].cat.codes.to_numpy()[work.row], as_integers(kernels["step"])[work.row]
    same = (work.signature[1:] == work.signature[:-1]) & (stream[1:] == stream[:-1]) & (step[1:] == step[:-1])
    same &= small[1:] & small[:-1]
    same &= work.op[1:] != work.op[:-1]
    first = np.concatenate((np.ones(min(1, small.size), dtype=bool), ~same))
    run = np.cumsum(first) - 1
    long = np.bincount(run, minlength=1)[run] >= _MANY if run.size else small
    return small & long, first


_MOST_OF_STEP = 0.3


# Of its time the floor of its arithmetic: beyond that it is no error of the peak.
_TOO_FAST = 1.2


def near_roof(evidence: Evidence) -> Draft | None:
    """Finds arithmetic near the roof in much of the step (rule 34).

    There is nothing to tune.
    """
    work = work_of(evidence)
    rows = work.bound("compute") & (work.roof("explained") >= REGIMES["near_roof"].least) & work.family(*PRODUCTS)
    # What is far faster than its roof has another one, which is not known.
    rows &= ~(work.compute_us() > _TOO_FAST * work.us)
    if onednn_is_faster(evidence):
        rows &= ~(work.family("matmul") & work.dtype("fp32"))
    part = work.share(rows)
    if part < _MOST_OF_STEP:
        return None
    reached = work.mean(work.roof("explained"), rows)
    is_most = part > work.share(work.bound("compute")) / 2
    return Draft(
        slug="near-roof",
        title=f"{'Most' if is_most else 'Part of the'} arithmetic runs near the device's peak",
        evidence=(
            f"{format_share(part)} of the step is products at {format_share(reached)} of their peak",
            *work.describe(rows),
        ),
        advice="Do less arithmetic (another algorithm, a smaller model, narrower numbers), or use more devices.",
        gain_reason=f"none: these products run at {format_share(reached)} of the peak of this device",
        confidence="high",
    )


_THIN = 96.0  # thinner products cannot fill the panels of a matrix library (as in analysis.thresholds)


@requires_gain
def slow_cpu_products(evidence: Evidence) -> Draft | None:
    """Finds slow products on a CPU that are not small (rule 36).

    They reach less than half of its calibrated peak. Gain: t - F/P_cpu at most, from a quarter of it, as the peak is
    that of square products of the best size. Silent where other programs had the processors: the time that they took is
    not the product's.
    """
    work, analysis = work_of(evidence), evidence.analysis
    if not evidence.is_host_only or analysis.device.source != "measured":
        return None
    if any(caveat.slug in DISTURBED_SLUGS for caveat in analysis.caveats):
        return None
    rows = work.family(*PRODUCTS) & work.bound("compute") & (work.roof("explained") < REGIMES["below_roof"].least)
    thinnest = np.fmin(np.fmin(work.cost("m"), work.cost("n")), work.cost("k"))
    rows &= ~work.has_reason("small_product", "too_fast") & ~(thinnest < _THIN)
    if work.share(rows) < 2 * _LEAST_SHARE:
        return None
    less = np.where(rows, work.us - work.floor_us(), 0.0)
    convolving = rows & work.family("convolution")
    convolutions = bool(convolving.any())
    kinds = ["matmuls"] * bool((rows & ~convolving).any()) + ["convolutions"] * convolutions
    mostly = 2 * work.us_of(convolving) > work.us_of(rows)
    by_pixels = layout_by_pixels(work, convolving)
    layouts = [by_pixels] * mostly + ["frozen weights"] * (not has_backward_pass(evidence))
    return Draft(
        slug="slow-cpu-products",
        title=f"{' and '.join(kinds).capitalize()} ({format_share(work.share(rows))} of the step) stay far below this "
        "CPU's peak",
        evidence=(
            f"{format_us(work.us_of(rows))} per step where the calibrated peak allows "
            f"{format_us(float(work.floor_us()[rows].sum()))}",
            *work.describe(rows),
        ),
        advice=(f"Let the library choose its layout ({', '.join(layouts)}), and look" if layouts else "Look")
        + " at threads and other load.",
        gain_us=work.gain(less / 4, less),
        claims=work.claims(less),
        code=(
            f"model = model.to(memory_format=torch.{by_pixels})"
            if mostly
            else "print(torch.__config__.parallel_info())  # MKL and oneDNN at hand, and as many threads as cores?"
        ),
        confidence="low",
    )


@requires_gain
def slow_attention(evidence: Evidence) -> Draft | None:
    """Finds compute-bound attention in a kernel with a quicker successor.

    The successor is for this device. Gain: t less the floor at what the successor reaches in long sequences, at most,
    from half of it.
    """
    work = work_of(evidence)
    architecture = evidence.analysis.device.architecture
    long = work.family("attention") & work.bound("compute")
    for kind in attention_kernels(architecture) if long.any() else ():
        rows = long & work.kernel_like(kind.kernel) & (work.roof("explained") < kind.reached)
        if work.share(rows) < _LEAST_SHARE:
            continue
        less = np.where(rows, np.clip(work.us - work.floor_us() / kind.reached, 0.0, None), 0.0)
        explained = work.mean(work.roof("explained"), rows)
        return Draft(
            slug="slow-attention",
            title="Attention runs in a kernel that is slow for this device",
            evidence=(
                f"{kind.words} reaches {format_share(explained)} of the peak; others for this device reach "
                f"{format_share(kind.reached)} and more in long sequences",
                *work.describe(rows),
                *work.critical_path_note(less),
            ),
            advice=kind.advice,
            gain_us=work.gain(less / 2, less),
            claims=work.claims(less),
            code=kind.code,
            confidence="low",
        )
    return None


# Products are compared with those of a similar size: within this factor in FLOPs and in their smallest dimension.
_SIMILAR = 4.0
_FAR_BEHIND = 0.5
# A shorter product is mostly its beginning and end.
_LEAST_FLOOR_US = 10.0
_EXPLAINED_ELSEWHERE = ("misaligned", "wave_quantisation", "tile_quantisation", "too_few_blocks", "ramp_up")
_TUNE = {
    "rocm": (
        "Let the library measure its kernels for these sizes (TunableOp), or take the other one (hipBLASLt, rocBLAS).",
        "PYTORCH_TUNABLEOP_ENABLED=1 python train.py  # or torch.backends.cuda.preferred_blas_library('hipblaslt')",
    ),
    "": (
        "Let an autotuner choose the kernel for these sizes, or take the other library (cuBLASLt, cuBLAS).",
        "torch.backends.cuda.preferred_blas_library('cublaslt')  # or torch.compile(model, mode='max-autotune')",
    ),
}


@requires_gain
def slow_products(evidence: Evidence) -> Draft | None:
    """Finds products below half of the rate of like ones.

    The others of like size and type reach it in the same trace. The library chose a kernel that does not fit these
    sizes. Gain: t (1 - reached / reached by the others), from half.
    """
    work = work_of(evidence)
    rows = work.family("matmul") & work.bound("compute") & (work.signature >= 0) & (work.roof("explained") > 0)
    rows &= work.roof("compute_us") >= _LEAST_FLOOR_US
    if evidence.is_host_only or not rows.any():
        return None
    rows = work.largest_calls(rows)
    usual, best = _reached(work, rows)
    slow = rows & (usual < _FAR_BEHIND * best) & ~work.has_reason(*_EXPLAINED_ELSEWHERE)
    if work.share(slow) < _LEAST_SHARE:
        return None
    less = np.where(slow, work.us * (1 - usual / best), 0.0)
    reached, others = (work.mean(part, slow) for part in (usual, best))
    advice, code = _TUNE.get(evidence.analysis.device.kind, _TUNE[""])
    return Draft(
        slug="slow-products",
        title="Some matmuls are far slower than others of their size",
        evidence=(
            f"they reach {format_share(reached)} of the peak where products of like size reach {format_share(others)}",
            *work.describe(slow),
            *work.critical_path_note(less),
        ),
        advice=advice,
        gain_us=work.gain(less / 2, less),
        claims=work.claims(less),
        code=code,
        tries=("compile-max-autotune",),
        confidence="low",
    )


def _reached(work: KernelWork, rows: Flags) -> tuple[Floats, Floats]:
    """Gives the share of the peak that products of one size reach.

    The second array has the best of those of like size. NaN elsewhere. It is a median of the runs, as a single slow one
    was disturbed.
    """
    usual = pd.Series(work.roof("explained")[rows]).groupby(work.signature[rows]).median()
    fold = usual.index.get_indexer(pd.Index(work.signature[rows]))
    one = np.flatnonzero(rows)[np.unique(fold, return_index=True)[1]]
    flops, thinnest = work.roof("flops")[one], np.fmin(np.fmin(work.cost("m"), work.cost("n")), work.cost("k"))[one]
    peak = flops / work.roof("compute_us")[one]
    alike = np.ones((one.size, one.size), dtype=bool)
    for amount, factor in ((flops, _SIMILAR), (thinnest, _SIMILAR), (peak, 1.01)):
        alike &= (amount[:, None] <= factor * amount) & (amount <= factor * amount[:, None])
    best = np.where(alike, usual.to_numpy(), 0.0).max(axis=1)
    usual_of_row, best_of_row = np.full((2, work.row.size), np.nan)
    usual_of_row[rows], best_of_row[rows] = usual.to_numpy()[fold], best[fold]
    return usual_of_row, best_of_row


RULES = (
    misaligned_products,
    unfilled_waves,
    many_small_products,
    near_roof,
    slow_cpu_products,
    slow_attention,
    slow_products,
)
