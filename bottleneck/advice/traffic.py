"""Rules of bytes that need not move.

Strided reads, casts and copies, lookups, zeroed gradients, results kept apart.
"""

import math
import re
from collections.abc import Mapping

import numpy as np
import pandas as pd

from bottleneck.advice.hot_lines import HotLine
from bottleneck.advice.kernel_work import KernelWork, has_backward_pass, is_size, requires_gain, work_of
from bottleneck.advice.line_patterns import gathers_columns
from bottleneck.advice.needless_ops import copies_on_purpose
from bottleneck.advice.quantities import (
    ISSUE_ACCOUNTS,
    claims_of,
    format_count,
    format_per_step,
    optimizer_names,
    outermost_ops,
    outermost_spans,
    rows_of_ops,
    setting_line,
)
from bottleneck.advice.ranking import Draft, up_to
from bottleneck.advice.removal import main_source
from bottleneck.advice.transfers import is_listed_alone
from bottleneck.schema.analysis import REGIMES, Interval
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.intervals import Flags, Floats, union
from bottleneck.schema.op_names import IN_PLACE, OPTIMIZER_STEP, at_known, at_source
from bottleneck.schema.tables import FRESH_FROM_BYTES, as_integers
from bottleneck.units import counted, format_share, format_si, format_us

_LEAST_SHARE = 0.02
_LARGE_BYTES = 2.0**20

# What is scattered by its nature, and products, whose libraries pack their operands; copies are the next rule's.
_SCATTERED = ("indexing", "recommendation", "random", "sort", "copy", "matmul", "convolution", "attention")
_COMPILED = re.compile(r"^(?:triton|graph)_")  # records the buffers behind its operands, not these
# Streams of contiguous data reach 0.8 to 0.9 of the bandwidth of a data sheet (cost_model, section 6).
_REACHED = 0.8


@requires_gain
def strided_access(evidence: Evidence) -> Draft | None:
    """Finds kernels that read or write large tensors out of order (rule 18).

    They are bound by memory and reach less than half of it. Gain: t - B/W at most, from half of it, of kernels whose
    name or recorded strides prove the access.
    """
    work = work_of(evidence)
    slow = (work.roof("explained") < REGIMES["below_roof"].least) & (work.roof("bytes_low") >= _LARGE_BYTES)
    slow &= work.bound("memory") & ~work.family(*_SCATTERED) & ~work.op_like(_COMPILED)
    rows = slow & work.has_reason("strided")
    rows |= work.calls_that(slow, lambda signature: _mixed(work, signature))
    if work.share(rows) < _LEAST_SHARE:
        return None
    less = np.where(rows, work.us - work.memory_us() / _REACHED, 0.0).clip(0.0)
    return Draft(
        slug="strided-access",
        title="Tensors out of order in memory are read a few bytes at a time",
        evidence=(
            f"{format_us(work.us_of(rows))} per step where the bytes alone need "
            f"{format_us(float(work.memory_us()[rows].sum()))}",
            *work.describe(rows),
            *work.critical_path_note(less),
        ),
        advice="Lay these tensors out once in the order in which they are read, or keep one layout for all operands.",
        gain_us=work.gain(less / 2, less),
        claims=work.claims(less),
        code="x = x.contiguous()  # once, where it is made; images: x.to(memory_format=torch.channels_last)",
        confidence="low",
    )


def _mixed(work: KernelWork, signature: int) -> bool:
    """True if large operands of one call differ in memory order.

    Or have gaps between their elements.
    """
    orders = set()
    pairs = zip(work.sizes_of(signature), work.text_column("strides", signature), strict=False)
    for sizes, strides in pairs:
        if not isinstance(strides, list) or len(strides) != len(sizes) or math.prod(map(float, sizes or [0])) < 2**16:
            continue
        ordered = [(step, at) for at, (size, step) in enumerate(zip(sizes, strides, strict=True)) if size > 1]
        if any(type(step) is not int for step, _ in ordered):
            return False
        if min(ordered)[0] == 0:  # expanded: few numbers, read many times
            continue
        if min(ordered)[0] > 1:
            return True
        orders.add(tuple(at for _, at in sorted(ordered)))
    return len(orders) > 1


# These copy their bias to where the product is added to it.
_ADDS_TO_BIAS = re.compile(r"^aten::(?:_?addmm(?:_activation)?|addmv|addbmm|baddbmm)$")
_COPY = re.compile(r"^aten::(?:copy_|_to_copy|to|clone|contiguous|_foreach_copy_|_copy_from)$")
# Kernels that read one dtype and write another.
_CASTING = re.compile(r"copy_kernel_cuda.*WithCast|\bb?float\d+\w*_copy_kernel_cuda")
# Products of bitsandbytes that unpack their weight in the dtype in which it was packed.
_PACKED_PRODUCT = re.compile(r"^MatMul(?:4Bit|8bit)")
_ONE_DTYPE = "model = model.to(torch.bfloat16)  # parameters too: nothing is cast on the way"
# Updates of weights in bf16 are lost where they are smaller than its rounding: training keeps them in fp32.
_ONE_DTYPE_TRAINED = (
    'with torch.autocast("cuda", torch.bfloat16):  # parameters stay fp32; torch.compile fuses what casts stay\n'
    "    loss = loss_of(model(batch))"
)
_OF_UNPACKED = (
    "BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)  # weights unpacked as inputs are"
)
_FEW_BYTES = 65536.0
_TOO_MUCH_COPYING = 0.05


@requires_gain
def needless_copies(evidence: Evidence) -> Draft | None:
    """Finds casts and changes of layout that take much of the time (rule 19).

    More than 5 % of that in which the device works. Gain: at most all of them that lie in the model, from half of it,
    and what the device waits for their launches: a model in fp32 under autocast casts each small parameter anew. Copies
    over the link are another rule's affair, and so are those that convolutions make of their images and products of
    their bias, of one-hot rows and a model's state.
    """
    work = work_of(evidence)
    rows = work.op_like(_COPY) & work.in_model & ~copies_on_purpose(evidence)
    rows &= ~work.op_like(_ADDS_TO_BIAS, above=True)
    casts = work.calls_that(rows, lambda signature: _casts(work, signature)) | (rows & work.kernel_like(_CASTING))
    # Few bytes that take long were waited for, not moved.
    rows &= ~(work.roof("bytes_low") < _FEW_BYTES)
    if is_listed_alone(evidence) and not casts.any():
        return None  # they may go to the device, which the trace does not show
    busy_us, us = evidence.analysis.totals.busy_us, work.us_of(rows)
    if not busy_us or not (rows | casts).any():
        return None
    less = np.where(rows, work.us, 0.0)
    passes = work.gain(less / 2, less)
    waited_us = max(0.0, work.gain(less, less, rows | casts).high - passes.high)
    issues = claims_of(evidence, *ISSUE_ACCOUNTS, most_us=waited_us)
    launches_us = math.fsum(issues.values())
    are_long = us > _TOO_MUCH_COPYING * busy_us and work.share(rows) >= _LEAST_SHARE
    if not are_long and evidence.share_of_step(launches_us) < _LEAST_SHARE:
        return None
    cast_us, count = (
        work.us_of(rows & casts),
        format_count(float((casts if casts.any() else rows).sum()) / evidence.steps),
    )
    what = "casts" if casts.any() else "copies"
    is_unpacked = work.us_of(casts & work.inside(_PACKED_PRODUCT)) > cast_us / 2
    trains = not evidence.is_host_only and has_backward_pass(evidence)
    return Draft(
        slug="needless-copies",
        title="Tensors are copied only to change their dtype or layout",
        evidence=(
            f"copies inside the device take {format_us(us)} per step ({format_share(us / busy_us)} of its work)"
            + (f", {format_us(cast_us)} of it in casts" if cast_us else "")
            if us
            else f"{count} casts of few bytes per step",
            *(
                [f"the device waits for the launches of {count} {what}: up to {format_us(launches_us)}"]
                if issues
                else []
            ),
            *work.describe(rows if us else casts),
            *work.critical_path_note(less),
        ),
        advice="Unpack quantized weights in the dtype of what they are multiplied with, so that nothing has to be cast."
        if is_unpacked
        else "Keep one dtype and one layout from end to end, so that nothing has to be cast or transposed.",
        gain_us=Interval(passes.low, passes.high + launches_us),
        claims={**work.claims(less), **issues},
        code=(
            (_OF_UNPACKED if is_unpacked else _ONE_DTYPE_TRAINED if trains else _ONE_DTYPE)
            if cast_us > us / 2 or not are_long
            else "y = x.transpose(1, 2)  # a view; the op that follows takes it without .contiguous() where it can"
        ),
        confidence="low",
    )


def _casts(work: KernelWork, signature: int) -> bool:
    types = [kind for kind in work.text_column("types", signature) if isinstance(kind, str)]
    tensors = [kind for kind in types if kind not in {"", "Scalar", "ScalarList", "TensorList"}]
    return len(set(tensors[:2])) > 1


_LOOKUPS = ("indexing", "recommendation")
_BACKWARD = re.compile(r"embedding\w*backward|index_put|scatter|index_add|index_backward")
_EMBEDDING = re.compile("embedding")
_TOO_MANY_LOOKUPS = 0.10
# Gradients of embeddings, embeddings, and rows of any other tensor: what to do, and the code.
_OF_GRADIENTS = (
    "Give the embedding sparse gradients, or sort and merge equal indices before adding.",
    "nn.Embedding(rows, width, sparse=True)  # with torch.optim.SparseAdam",
)
_OF_EMBEDDINGS = (
    "Look up equal indices once, sorted, and let EmbeddingBag sum rows while it reads them.",
    'nn.EmbeddingBag(rows, width, mode="sum")',
)
_OF_ROWS = (
    "Gather and write whole rows with index_select and index_copy_, and use index_put_(accumulate=True) only where "
    "indices repeat.",
    "sorted_rows = x.index_select(0, order)  # and back: out.index_copy_(0, order, rows)",
)
# On a CPU indexing with a tensor takes longer than index_select, and far longer in its backward pass, whose threads add
# number by number with atomics. Measured (torch 2.13, Xeon, two threads and one): 4000 rows of 256 picked 80000 times
# 88.8 to 11.3 ms backward (one thread: 20.1 to 15.8) and 26.3 to 25.0 ms forward, of 128 46.4 to 4.2 (11.7 to 8.1) and
# 14.3 to 11.4, 50000 rows of 64 picked 20000 times 9.7 to 2.4 (8.3 to 3.2) and 0.85 to 0.20, 100000 rows of 16 picked
# 100000 times 9.0 to 3.7 (5.6 to 5.6) and 1.4 to 0.31. Results that the system hands out anew keep their pages' time.
_OF_ROWS_ON_CPU = (
    "Pick rows with x.index_select(0, rows) in place of x[rows]{at}: on a CPU the backward pass of x[rows] adds the "
    "gradients number by number (index_put with atomic additions), that of index_select row by row (index_add).",
    "picked = x.index_select(0, rows)  # in place of x[rows]: same values",
)
_ADDING_SPARED, _ADDING_SPARED_BY_ONE_THREAD = (0.5, 0.92), (0.0, 0.6)
_PICKING_SPARED, _FRESH_PICKING_SPARED = 0.75, 0.25
_INDEXES, _ADDS_BY_INDEX = re.compile("^aten::index$"), re.compile("^aten::_?(?:unsafe_)?index_put(?:_|_impl_)?$")
# Rows of a table that holds a sample in each column.
_OF_COLUMNS = (
    "Keep one row per sample, so that what is gathered {at} lies together: transpose the table once, before the loop, "
    "and index its first dimension. Along the last one each number that is taken comes from another place in memory.",
    "rows_first = table.t().contiguous()  # once, before the loop\nbatch = rows_first[rows]  # not table[:, rows].t()",
)


def _main_line(evidence: Evidence, rows: Flags) -> str | None:
    """Returns the line with most of these rows' time."""
    us: dict[str, float] = {}
    work = work_of(evidence)
    sources = evidence.linked.kernels["source"].astype(object).to_numpy()[work.row[rows]]
    for source, one_us in zip(sources.tolist(), work.us[rows].tolist(), strict=True):
        if isinstance(source, str):
            us[source] = us.get(source, 0.0) + one_us
    return max(us, key=lambda source: us[source], default=None)


def _gathering_line(evidence: Evidence, rows: Flags) -> str | None:
    """Returns the line with most of these rows' time, if it gathers.

    Its text gathers along the last dimension: ``table[:, rows]``.
    """
    most, texts = _main_line(evidence, rows), evidence.source_texts
    if most is None:
        return None
    return most if gathers_columns(HotLine(most, (most,), 0.0, texts.get(most, ""))) else None


def _spared_by_selecting_us(evidence: Evidence, rows: Flags) -> tuple[Floats, Floats]:
    """Returns the time that ``index_select`` saves of each row, at least and most."""
    work = work_of(evidence)
    threads = None if evidence.recording is None else evidence.recording.threads
    least, most = _ADDING_SPARED_BY_ONE_THREAD if threads == 1 else _ADDING_SPARED
    adds, picks = rows & work.op_like(_ADDS_BY_INDEX), rows & work.op_like(_INDEXES)
    is_fresh = np.nan_to_num(work.roof("bytes_low")) >= FRESH_FROM_BYTES
    picking = np.where(is_fresh, _FRESH_PICKING_SPARED, _PICKING_SPARED)
    return np.where(adds, least * work.us, 0.0), np.where(adds, most, np.where(picks, picking, 0.0)) * work.us


@requires_gain
def scattered_lookups(evidence: Evidence) -> Draft | None:
    """Rule 22: embeddings, gathers, indexing and scatters beyond 10 % of the device's work.

    Gain: t - B/W at most, from half of it: what hot rows and atomic adds cost beyond their bytes. Where rows of other
    tensors than embeddings move, it is at least what the quickest large lookup of the same trace would spare; on a CPU
    it is what ``index_select`` was measured to spare.
    """
    work = work_of(evidence)
    # Of lookups in an optimizer's own code no line of the program can pick otherwise.
    at_us = np.append(evidence.linked.ops["ts_us"].to_numpy(), np.nan)[work.op]
    rows = work.family(*_LOOKUPS) & ~outermost_spans(evidence, OPTIMIZER_STEP).hold(at_us)
    busy_us, us = evidence.analysis.totals.busy_us, work.us_of(rows)
    if not busy_us or us <= _TOO_MANY_LOOKUPS * busy_us or work.share(rows) < _LEAST_SHARE:
        return None
    less = np.where(rows, work.us - work.memory_us(), 0.0)
    backward = work.us_of(rows & work.op_like(_BACKWARD))
    embedded = work.us_of(rows & work.op_like(_EMBEDDING)) > us / 2
    large = rows & (work.roof("bytes_low") >= _LARGE_BYTES) & work.bound("memory")
    best = float(np.nan_to_num(work.roof("explained")[large]).max(initial=0.0))
    reached = np.where(large, np.clip(work.us - work.memory_us() / max(best, 1e-9), 0.0, less), 0.0)
    advice, code = (_OF_GRADIENTS if backward > us / 2 else _OF_EMBEDDINGS) if embedded else _OF_ROWS
    least, line = less / 2 if embedded else np.maximum(less / 2, reached), _gathering_line(evidence, rows)
    if line is not None and not embedded:
        advice, code = _OF_COLUMNS[0].format(at=at_source(line)), _OF_COLUMNS[1]
    elif evidence.is_host_only and not embedded:
        least, less = _spared_by_selecting_us(evidence, rows)
        line = _main_line(evidence, rows & work.op_like(_INDEXES))
        advice, code = _OF_ROWS_ON_CPU[0].format(at=f" {at_source(line)}" if line else ""), _OF_ROWS_ON_CPU[1]
    return Draft(
        slug="scattered-lookups",
        title="Lookups by index take a large part of the work",
        evidence=(
            f"indexing takes {format_us(us)} per step ({format_share(us / busy_us)} of the device's work), "
            f"{format_us(backward)} of it in adding up gradients or scattering",
            *work.describe(rows),
            *work.critical_path_note(less),
        ),
        advice=advice,
        places=(line,),
        gain_us=work.gain(least, less),
        claims=work.claims(less),
        code=code,
        confidence="low",
    )


# A lookup, and the op that makes a gradient as large as the table.
_DENSE_BACKWARD = {
    "aten::embedding": "aten::embedding_dense_backward",
    "aten::_embedding_bag": "aten::_embedding_bag_dense_backward",
}
_FEW_ROWS = 0.1
# Steps of two tables of 100000 and 200000 rows took 43 ms (SGD) and 245 ms (Adam) with dense gradients, and 2.0 and
# 6.5 ms with sparse ones (torch 2.13, EPYC, one thread), one of 500000 rows 91.7 and 0.22 ms: these ops go.
_LEAST_REMOVED = 0.95
# Optimizers that leave a row without a gradient as it is: those with sparse gradients give the same results.
_SAME_RESULTS = frozenset({"SGD", "Adagrad"})
_SPARSE = "nn.Embedding(rows, width, sparse=True)  # with torch.optim.SparseAdam, or SGD or Adagrad as they are"


@requires_gain
def dense_embedding_gradients(evidence: Evidence) -> Draft | None:
    """Finds gradients as large as an embedding's table.

    They are filled, added and applied for the few rows that were looked up. Gain: what all ops over the whole table
    take, less the part of its rows that is looked up, and on a CPU what giving the gradient back to the system takes;
    from 95 % of it. At most also the time between ops, by the part of these in the work: blocks as large as a table go
    back to the system there. A table whose shape a product also has may be its weight, whose gradient is dense anyway.
    """
    work = work_of(evidence)
    tables = _sparse_tables(work)
    if not tables:
        return _by_filling(evidence, work)
    saved = np.zeros(len(evidence.costs) + 1)
    others = ~work.family("matmul", *_LOOKUPS)
    for signature in np.unique(work.signature[others & (work.signature >= 0)]).tolist():
        saved[signature] = _part_of_tables(work.text_column("dims", signature), tables)
    less = np.where(others, work.us * saved[work.signature], 0.0)
    if float(less.sum()) < _LEAST_SHARE * evidence.step_us:
        return None
    (rows, width), read_part = min(tables.items(), key=lambda item: item[1])
    names = optimizer_names(evidence)
    gain, freed_us = work.gain(_LEAST_REMOVED * less, less), _freeing_us(evidence)
    between_us = max(freed_us, _between_ops_us(work, less))
    line = setting_line(evidence, "embedding") or main_source(
        evidence, rows_of_ops(evidence, ("aten::embedding", "aten::_embedding_bag")).tolist()
    )
    return Draft(
        slug="dense-embedding-gradients",
        title="An embedding's gradient is as large as its table",
        evidence=(
            f"{counted(len(tables), 'size')} of tables; of {rows}x{width} a lookup reads {format_share(read_part)} of "
            "the rows",
            *work.describe(less > 0),
            *work.critical_path_note(less),
            *([f"dropping gradients takes another {format_us(freed_us)}"] if freed_us else []),
        ),
        advice=f"Give the embedding{at_known(line)} sparse gradients (sparse=True), or take an optimizer that updates "
        "rows.",
        places=(line,),
        gain_us=Interval(gain.low + _LEAST_REMOVED * freed_us, gain.high + between_us),
        claims={**work.claims(less), **claims_of(evidence, *_BETWEEN, most_us=between_us)},
        removes=True,
        code=_SPARSE,
        changes_results=not (names and _SAME_RESULTS.issuperset(names)),
    )


_FILLS = re.compile(r"^aten::(?:fill_|zero_)$")
_FILLS_TABLE = re.compile(r"^aten::(?:embedding_dense_backward|_embedding_bag_dense_backward)$")
# Of the step, and of the op that makes such a gradient: filling it with zeros takes so much where few rows were read.
_LEAST_FILLED, _MOSTLY_FILLED = 0.1, 0.5


def _by_filling(evidence: Evidence, work: KernelWork) -> Draft | None:
    """Finds such gradients on a CPU by names and times.

    Sizes were not recorded. Gain: the ops that make them, from 95 %; at most all that the optimizer does too, with its
    part of the time between ops.
    """
    if not evidence.is_host_only or not work.has_reason("no_shapes").any():
        return None
    ops = evidence.linked.ops
    makes = outermost_ops(evidence, _FILLS_TABLE).hold(np.append(ops["ts_us"].to_numpy(), np.nan)[work.op])
    fills_us, makes_us = work.us_of(makes & work.op_like(_FILLS)), work.us_of(makes)
    if evidence.share_of_step(fills_us) < _LEAST_FILLED or fills_us < _MOSTLY_FILLED * makes_us:
        return None
    updates = work.inside(OPTIMIZER_STEP) & ~makes
    names = optimizer_names(evidence)
    least, most = np.where(makes, _LEAST_REMOVED * work.us, 0.0), np.where(makes | updates, work.us, 0.0)
    gain, between_us = work.gain(least, most), max(_freeing_us(evidence), _between_ops_us(work, most))
    return Draft(
        slug="dense-embedding-gradients",
        title="An embedding's gradient is far larger than what was looked up",
        evidence=(
            f"filling gradients of embeddings with zeros takes {format_per_step(evidence, fills_us)}, and adding what "
            f"was looked up {format_us(makes_us - fills_us)}",
            *work.describe(makes),
        ),
        advice="Give the embedding sparse gradients, or take an optimizer that updates rows. The weight of an output "
        "layer that shares the table keeps it dense.",
        brief="Give the embedding sparse gradients (sparse=True), or take an optimizer that updates rows",
        gain_us=Interval(gain.low, gain.high + between_us),
        claims={**work.claims(most), **claims_of(evidence, *_BETWEEN, most_us=between_us)},
        removes=True,
        code=_SPARSE,
        changes_results=not (names and _SAME_RESULTS.issuperset(names)),
    )


def _freeing_us(evidence: Evidence) -> float:
    """Returns time per step of a CPU in zero_grad() outside ops.

    The system takes back the pages of dropped gradients.
    """
    if not evidence.is_host_only:
        return 0.0
    marks = outermost_spans(evidence, _ZERO_GRAD)
    ops, top = evidence.linked.ops, (evidence.linked.ops["depth"] == 0).to_numpy()
    start, end = ops["ts_us"].to_numpy()[top], (ops["ts_us"] + ops["dur_us"]).to_numpy()[top]
    idle_us = marks.total() - float(union(start, end).covered_between(marks.start, marks.end).sum())
    return min(max(idle_us, 0.0) / evidence.steps * evidence.host_scale, evidence.account_us("overhead.python"))


_BETWEEN = ("overhead.python", "overhead.dispatch")


def _between_ops_us(work: KernelWork, less: Floats) -> float:
    """Returns the part of the time between ops that goes too.

    It is that of the work, on a CPU.
    """
    busy_us = float(work.us.sum())
    if not work.evidence.is_host_only or not busy_us > 0:
        return 0.0
    return work.evidence.account_us(*_BETWEEN) * min(float(less.sum()) / busy_us, 1.0)


def _sparse_tables(work: KernelWork) -> dict[tuple[int, ...], float]:
    """Returns sizes of tables with a dense gradient and few rows looked up.

    Each with the part of its rows, by the mean lookup.
    """
    evidence = work.evidence
    calls = as_integers(evidence.linked.ops["signature"])
    products = np.unique(work.signature[work.family("matmul")]).tolist()
    weights = {tuple(sorted(size)) for product in products for size in work.sizes_of(product)}
    parts: dict[tuple[int, ...], list[float]] = {}
    for lookup, backward in _DENSE_BACKWARD.items():
        rows = rows_of_ops(evidence, [lookup] if backward in evidence.op_sums else [])
        for signature, count in zip(
            *(product.tolist() for product in np.unique(calls[rows], return_counts=True)), strict=True
        ):
            table, indices, *_ = (*work.sizes_of(signature), (), ())
            if len(table) == 2 and tuple(sorted(table)) not in weights:
                parts.setdefault(table, []).extend([math.prod(map(float, indices)) / max(table[0], 1)] * count)
    means = {table: float(np.mean(product)) for table, product in parts.items()}
    return {table: mean for table, mean in means.items() if mean <= _FEW_ROWS}


def _part_of_tables(dims: tuple[object, ...], tables: Mapping[tuple[int, ...], float]) -> float:
    """Returns the part of a call's numbers in rows that no lookup read.

    Over all of its tensors; the rows are of tables.
    """
    sizes = [tuple(size) for argument in dims if isinstance(argument, list) for size in _tensors_in(argument)]
    counts = [math.prod(map(float, size)) for size in sizes]
    unread = math.fsum(count * (1 - tables[size]) for size, count in zip(sizes, counts, strict=True) if size in tables)
    return unread / math.fsum(counts) if unread else 0.0


def _tensors_in(argument: list[object]) -> list[list[int]]:
    """Returns the sizes of one tensor, or of a list of them.

    None for other arguments.
    """
    nested = argument if all(isinstance(entry, list) for entry in argument) else [argument]
    return [size for size in nested if size and is_size(size)]


_ZERO_GRAD = re.compile(r"^Optimizer\.zero_grad#")
_ZEROES = re.compile(r"^aten::(?:zero_|fill_|_foreach_zero_)$")
_ACCUMULATES = re.compile(r"AccumulateGrad$")
_ADDS = re.compile(r"^aten::add_$")


@requires_gain
def zeroed_gradients(evidence: Evidence) -> Draft | None:
    """Finds gradients that are set to zero and added to (rule 25).

    Instead of dropped and replaced (``set_to_none``). Gain: the fills, on a device with their launches, and at most the
    additions of the backward pass that then find something to add to. On a CPU large gradients that are dropped go back
    to the system, and their pages have to be had anew: measured slower than filling them (50 MB of gradients: 44 ms
    with zeros, 59 ms without), so that nothing is predicted for these.
    """
    work = work_of(evidence)
    zeroes = work.op_like(_ZEROES) & work.inside(_ZERO_GRAD)
    if not zeroes.any():
        return None
    adds = work.op_like(_ADDS) & work.op_like(_ACCUMULATES, above=True)
    zeroing, adding = (np.where(rows, work.us, 0.0) for rows in (zeroes, adds))
    dropped = float(np.nan_to_num(work.elements(zeroes)).sum()) * 4.0 / evidence.steps
    comes_anew = evidence.is_host_only and dropped >= FRESH_FROM_BYTES
    spared = None if evidence.is_host_only else zeroes
    most = work.gain(zeroing, zeroing + adding, spared)
    gain = Interval(most.low / 2, most.high)
    claims = work.claims(zeroing + adding)
    if not evidence.is_host_only:
        issued_us = max(gain.high - math.fsum(claims.values()), 0.0)
        claims = {**claims, **claims_of(evidence, *ISSUE_ACCOUNTS, most_us=issued_us)}
    return Draft(
        slug="zeroed-gradients",
        title="Gradients are filled with zeros at every step",
        evidence=(
            f"{format_count(zeroes.sum() / evidence.steps)} fills per step in zero_grad take "
            f"{format_us(float(zeroing.sum()))}",
            *work.describe(zeroes | adds),
        ),
        advice="Drop gradients instead of filling them with zeros (the default of zero_grad since PyTorch 2.0).",
        gain_us=None if comes_anew else gain,
        claims={} if comes_anew else claims,
        gain_reason=(
            f"not predicted: {format_si(dropped, 'B')} of gradients come in new pages once they are dropped, "
            "which may cost more than the zeros"
            if comes_anew
            else None
        ),
        code="optimizer.zero_grad(set_to_none=True)",
        tries=("set-to-none",),
    )


# Only ops whose backward pass needs their result, or nothing, may overwrite what they read.
_MAY_OVERWRITE = re.compile(
    r"^aten::(?:relu|clamp|clamp_min|hardtanh|leaky_relu|elu|celu|selu|sigmoid|tanh|silu|hardswish|dropout|add|mul|div)$"
)
_NEARLY_FULL = 0.8


@requires_gain
def results_apart(evidence: Evidence) -> Draft | None:
    """Rule 26: activations that write their result beside what they read.

    On a CPU each large result is new memory, whose pages cost more than the arithmetic (``fresh_bytes_per_s``). Gain:
    from half of what such ops take beyond their bytes, bounded by the cost of the pages. On a GPU the bytes stay the
    same: only peak memory shrinks, which the finding states where memory is nearly full.
    """
    work = work_of(evidence)
    rows = work.op_like(_MAY_OVERWRITE) & work.family("pointwise")
    rows &= ~work.calls_that(rows, lambda signature: _given(work, signature))
    written = work.elements(rows) * 4.0
    if evidence.is_host_only:
        return _fresh_results(work, rows & (written >= FRESH_FROM_BYTES), np.nan_to_num(written))
    peak, capacity = evidence.analysis.totals.peak_memory_bytes, evidence.analysis.device.memory_bytes
    if not peak or not capacity or peak < _NEARLY_FULL * capacity or not rows.any():
        return None
    return Draft(
        slug="results-apart",
        title="Activations keep what they read beside what they write",
        evidence=(
            f"peak memory is {format_si(peak, 'B')} of {format_si(capacity, 'B')}",
            *work.describe(rows),
        ),
        advice="Let activations overwrite their input where nothing else reads it.",
        gain_reason="none in time: it moves as many bytes, and frees memory, which a larger batch may use",
        code="nn.ReLU(inplace=True)",
    )


def _given(work: KernelWork, signature: int) -> bool:
    """True if a call got the tensor to write to (out=).

    It is recorded after its other arguments, two at most.
    """
    sizes = work.sizes_of(signature)
    return len(sizes) > 2 and bool(sizes[-1])


def _fresh_results(work: KernelWork, rows: Flags, written: Floats) -> Draft | None:
    rate = work.evidence.analysis.device.fresh_bytes_per_s
    if rate is None or has_backward_pass(work.evidence) or work.share(rows) < _LEAST_SHARE:
        return None
    pages_us = written / rate * 1e6 * work.scale / work.evidence.steps
    less = np.where(rows, np.minimum(work.us - work.floor_us(), pages_us), 0.0)
    if float(less.sum()) < _LEAST_SHARE * work.evidence.step_us:
        return None
    return Draft(
        slug="results-apart",
        title="Every large result is written to memory that is new",
        evidence=(
            f"{format_si(float(written[rows].sum()) / work.evidence.steps, 'B')} of results per step come in new "
            f"pages, at {format_si(rate, 'B/s')}",
            *work.describe(rows),
        ),
        advice="Write large results over their input, or into memory that is kept from step to step.",
        gain_us=up_to(float(less.sum())),
        claims=work.claims(less),
        code="x.relu_()                    # over its input\ntorch.mul(x, y, out=result)  # into memory that is kept",
    )


# Other ops on as many bytes, within this factor, show what the memory usually gives (their median; ops in place find
# their operand in a cache); less than this part of it is far behind. Random numbers and special functions take their
# time in arithmetic, products in reuse.
_LIKE_BYTES, _FAR_BEHIND = 2.0, 1 / 3
_NO_STREAM = ("matmul", "convolution", "attention", "recurrent", "random", "indexing", "recommendation", "sort", "view")


@requires_gain
def slow_for_its_bytes(evidence: Evidence) -> Draft | None:
    """Finds ops that move bytes at less than a third of the usual rate.

    It is the rate that others usually reach on as many, in the same trace. For devices whose bandwidth is not known:
    elsewhere the roofline tells it. Gain: t (1 - rate / usual rate) at most, from a quarter of it, since the op may
    have to do more per byte.
    """
    work = work_of(evidence)
    if evidence.analysis.device.bandwidth_bytes_per_s is not None:
        return None
    special = np.nan_to_num(work.cost("special_ops")) > 0
    moved = work.roof("bytes_low")
    rows = (moved >= _LARGE_BYTES) & (work.us > 0) & (work.op >= 0) & ~work.family(*_NO_STREAM) & ~special
    rows = work.largest_calls(rows)
    if not rows.any():
        return None
    rate, usual = _rates(work, rows)
    slow = rows & (rate < _FAR_BEHIND * usual)
    if work.share(slow) < _LEAST_SHARE:
        return None
    less = np.where(slow, work.us * (1 - rate / usual), 0.0)
    slowest = int(np.flatnonzero(slow)[np.argmax(work.us[slow])])
    return Draft(
        slug="slow-for-its-bytes",
        title="Some ops move their bytes far more slowly than others of this trace",
        evidence=(
            f"{format_us(work.us_of(slow))} per step at {format_si(float(rate[slowest]), 'B/s')}, where "
            f"other ops on as many bytes usually reach {format_si(float(usual[slowest]), 'B/s')}",
            *work.describe(slow),
            *work.critical_path_note(less),
        ),
        advice="Give these ops another form: another memory format, a size or dtype with a fast kernel, or let "
        "torch.compile write them.",
        brief=f"Give {work.call_name(slowest)} another form: another memory format, a size or dtype with a fast "
        "kernel, or let torch.compile write it",
        gain_us=work.gain(less / 4, less),
        claims=work.claims(less),
        code="images = images.to(memory_format=torch.channels_last)  # pooling, interpolation; or torch.compile(model)",
        tries=("channels-last", "compile"),
        confidence="low",
    )


def _rates(work: KernelWork, rows: Flags) -> tuple[Floats, Floats]:
    """Returns bytes per second of each call and of others on like bytes.

    Both are medians; NaN elsewhere.
    """
    kernels, ops = work.evidence.linked.kernels, work.evidence.linked.ops
    runs_table = pd.DataFrame(
        {
            "name": ops["name"].cat.codes.to_numpy()[work.op[rows]],
            "call": work.signature[rows],
            "us": kernels["dur_us"].to_numpy()[work.row[rows]],
            "bytes": work.roof("bytes_low")[rows],
            "in_place": work.op_like(IN_PLACE)[rows],
        }
    )
    by_call = runs_table.groupby(["name", "call"])
    calls = by_call.agg({"us": "median", "bytes": "first", "in_place": "first"}).reset_index()
    name, moved, in_place = (calls[column].to_numpy() for column in ("name", "bytes", "in_place"))
    rate = moved / np.maximum(calls["us"].to_numpy(), 1e-3) * 1e6
    usual = np.full(rate.size, np.nan)
    for one in range(rate.size):
        alike = (moved <= _LIKE_BYTES * moved[one]) & (moved[one] <= _LIKE_BYTES * moved)
        others = ~in_place & alike & (name != name[one])
        if others.any():
            usual[one] = np.median(rate[others])
    rates, usuals = np.full((2, work.row.size), np.nan)
    call = by_call.ngroup().to_numpy()
    rates[rows], usuals[rows] = rate[call], usual[call]
    return rates, usuals


RULES = (
    strided_access,
    needless_copies,
    scattered_lookups,
    dense_embedding_gradients,
    zeroed_gradients,
    results_apart,
    slow_for_its_bytes,
)
