"""Rules of ops that a step need not run.

They are one-hot products, copies of all weights, and several backward passes.
"""

import math
import re
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from bottleneck.advice.kernel_work import KernelWork, Size, size_words, work_of
from bottleneck.advice.quantities import (
    format_count,
    format_per_step,
    format_times,
    ops_in_window,
    outermost_frames,
    rows_of_events,
)
from bottleneck.advice.ranking import Draft
from bottleneck.advice.removal import (
    BYTES_OF_NUMBER,
    LEAST_SHARE,
    MOVES_AT,
    backward_rows,
    forward_threads,
    issued_by,
    main_source,
    moved_us,
    removal_of,
    roots_of,
    sequence_numbers,
    top_rows,
    with_python,
)
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence, remembered
from bottleneck.schema.intervals import Flags, Integers
from bottleneck.schema.op_names import BACKWARD_NODE, OPTIMIZER_STEP, at_source, backward_of, is_backward, place_of
from bottleneck.schema.tables import as_integers, text_matches
from bottleneck.units import counted

# A matrix with a single one per row: made by these ops, cast, and multiplied.
_ONE_HOT, _SCATTER, _EYE = "aten::one_hot", re.compile(r"^aten::scatter_?$"), "aten::eye"
_PICKS = frozenset({"aten::index", "aten::index_select", "aten::embedding"})
_CASTS = frozenset({"aten::to", "aten::_to_copy", "aten::contiguous", "aten::clone", "aten::copy_"})
_PRODUCTS = frozenset({"aten::linear", "aten::mm", "aten::matmul", "aten::bmm", "aten::addmm", "aten::einsum"})
_ZEROES = re.compile(r"^aten::(?:zeros|new_zeros|zeros_like|zero_)$")
_LEAST_CLASSES = 16
# Rows that are looked up are read and written; a gradient of the table is filled and added to.
_OF_LOOKUP, _OF_GRADIENT = 4.0, 2.0


class _OneHot(Struct, frozen=True):
    """A one-hot matrix that is multiplied with a table.

    It has its sizes, those of the table, and its outermost ops.
    """

    size: Size
    table: Size
    rows: tuple[int, ...]


@remembered
def _one_hots(evidence: Evidence) -> tuple[_OneHot, ...]:
    """Finds the one-hot matrices of the window that a product takes.

    Each comes with all ops from its making to the product.
    """
    ops, work = evidence.linked.ops, work_of(evidence)
    if not any(name in {_ONE_HOT, _EYE} or _SCATTER.search(name) for name in evidence.op_sums):
        return ()
    rows = top_rows(evidence)
    names = ops["name"].astype(object).to_numpy()[rows].tolist()
    calls = as_integers(ops["signature"])[rows].tolist()
    made: dict[Size, list[int]] = {}
    zeroed: dict[Size, int] = {}
    one_hots = []
    for row, name, call in zip(rows.tolist(), names, calls, strict=True):
        sizes = work.tensors_of(call)
        made_size = next((size for size in (*sizes[:1], *(size[-1:] for size in sizes[:1])) if size in made), None)
        if _ZEROES.search(name) or name == _EYE:
            zeroed[_zeroed_size(work, name, call, sizes)] = row
        elif (size := _one_hot_size(evidence, work, row, name, sizes)) is not None and size[-1] >= _LEAST_CLASSES:
            begun = zeroed.pop(sizes[0], None) if name != _ONE_HOT else row
            if begun is not None:
                made[size] = sorted({begun, row})
        elif made_size is not None and name in _CASTS:
            made[made_size].append(row)
        elif made_size is not None and name in _PRODUCTS and len(sizes) >= 2 and made_size[-1] in sizes[1][-2:]:
            one_hots.append(_OneHot(sizes[0], sizes[1], (*made.pop(made_size), row)))
    return tuple(one_hots)


def _zeroed_size(work: KernelWork, name: str, call: int, sizes: Sequence[Size]) -> Size:
    """Gives the sizes of a matrix filled with zeros.

    It may also be one with ones on its diagonal.
    """
    if name in {"aten::zero_", "aten::zeros_like"}:
        return sizes[0] if sizes else ()
    at = 1 if name == "aten::new_zeros" else 0
    text = str((*work.text_column("concrete", call), "", "")[at])
    made = tuple(int(number) for number in re.findall(r"\d{1,15}", text))
    return made * 2 if name == _EYE else made


def _one_hot_size(evidence: Evidence, work: KernelWork, row: int, name: str, sizes: Sequence[Size]) -> Size | None:
    """Gives the sizes of the one-hot matrix that an op makes.

    Null where it makes none, as far as its record tells.
    """
    ops = evidence.linked.ops
    if name == _ONE_HOT:
        until = np.searchsorted(roots_of(evidence), row, side="right")
        inner = range(row + 1, int(until))
        names, calls = ops["name"], as_integers(ops["signature"])
        inside = [work.sizes_of(int(calls[at])) for at in inner if _SCATTER.search(str(names.iloc[at]))]
        return next((size[0] for size in inside if size), None)
    if _SCATTER.search(name) and len(sizes) == 2 and len(sizes[0]) >= 2 and sizes[1] == (*sizes[0][:-1], 1):
        return sizes[0]
    # The sizes of the rows that are picked are not always recorded: the columns tell.
    if name in _PICKS and _EYE in evidence.op_sums and sizes and len(sizes[0]) == 2 and sizes[0][0] == sizes[0][1]:
        return sizes[0][1:]
    return None


def one_hot_product(evidence: Evidence) -> Draft | None:
    """Finds a one-hot matrix that is multiplied with a table.

    Each row of the result is a row of the table. Gain: the time of the ops from the making of the matrix to the
    product, and of the backward pass's product with it, less the bytes of a lookup of the rows and of its gradient. It
    is counted from 90 % of the time with the bytes at 40 % of the bandwidth.
    """
    one_hots, work, ops = _one_hots(evidence), work_of(evidence), evidence.linked.ops
    if not one_hots:
        return None
    sources = {str(source) for source in ops["source"].iloc[[one.rows[-1] for one in one_hots]].dropna()}
    sizes = {one.size for one in one_hots}
    backward = _backward_products(evidence, sizes, sources)
    lookup_bytes = math.fsum(
        BYTES_OF_NUMBER * _OF_LOOKUP * math.prod(one.size[:-1]) * min(one.table) for one in one_hots
    )
    lookup_bytes += (
        BYTES_OF_NUMBER * _OF_GRADIENT * math.fsum(math.prod(one.table) for one in one_hots) if backward else 0.0
    )
    rows = [*(row for one in one_hots for row in one.rows), *backward]
    removal = removal_of(evidence, rows, kept_us=moved_us(evidence, lookup_bytes))
    if removal.gain.low <= 0 or evidence.share_of_step(removal.us) < LEAST_SHARE:
        return None
    largest = max(one_hots, key=lambda one: math.prod(one.size))
    line = main_source(evidence, [row for one in one_hots for row in one.rows])
    return Draft(
        slug="one-hot-product",
        title="A product with one-hot rows only looks rows of a table up",
        evidence=(
            f"one-hot rows are made and multiplied {format_times(len(one_hots) / evidence.steps)} per step, "
            f"{size_words(largest.size)} with a table of {size_words(largest.table)} at most",
            f"making, casting and multiplying them takes {format_per_step(evidence, removal.us)}",
            *work.describe(issued_by(evidence, work, rows)),
        ),
        advice=f"Look the rows up by their numbers {at_source(line)}: an embedding instead of one-hot rows.",
        places=(line,),
        code="self.table = nn.Embedding(classes, width)\nrows = self.table(ids)  # or F.embedding(ids, weight.t())",
        gain_us=removal.gain,
        claims=removal.claims,
        removes=True,
        confidence="high",
    )


def _backward_products(evidence: Evidence, sizes: set[Size], sources: set[str]) -> list[int]:
    """Gives the outermost backward ops of these lines that multiply such matrices.

    A product in them takes a matrix of such sizes, or its transpose.
    """
    ops, work = evidence.linked.ops, work_of(evidence)
    flat: set[Size] = {(math.prod(size[:-1]), size[-1]) for size in sizes}
    flat |= {size[::-1] for size in flat}
    flat |= {(1, *size) for size in flat}
    wanted = {*map(backward_of, sources)}
    inside = ops_in_window(evidence) & text_matches(ops["source"], wanted.__contains__)
    inside &= text_matches(ops["name"], lambda name: name in {"aten::mm", "aten::bmm"})
    rows = np.flatnonzero(inside)
    calls = as_integers(ops["signature"])[rows].tolist()
    taken = [row for row, call in zip(rows.tolist(), calls, strict=True) if flat & set(work.sizes_of(call)[:2])]
    return sorted(set(roots_of(evidence)[taken].tolist()))


# Copies of all tensors of an object: in these frames.
_DEEP_COPY = re.compile(r"(?:^|[/\\])copy\.py\(\d+\): deepcopy$|\): __deepcopy__$")
_STATE_DICT = re.compile(r"\): state_dict$")
_COPIES = re.compile(r"^aten::(?:clone|copy_|_to_copy|to)$")
_LINES_OF_A_LOOP = 3


class _StateCopies(Struct, frozen=True):
    """Outermost ops that copy all tensors of an object.

    It has the words for how, and the steps that hold some.
    """

    rows: tuple[int, ...]
    words: str
    steps: int


@remembered
def _state_copies(evidence: Evidence) -> _StateCopies | None:
    """Finds copies in copy.deepcopy, else clones of a state dict.

    The clones are of what state_dict() gives in a line of the program.
    """
    ops, rows = evidence.linked.ops, top_rows(evidence)
    at_us = ops["ts_us"].to_numpy()[rows]
    deep = rows[outermost_frames(evidence, _DEEP_COPY).hold(at_us)]
    words, mine = "copy.deepcopy", deep
    if not deep.size:
        words, mine = "cloning state_dict()", _cloned_states(evidence, rows)
    copies = mine[text_matches(ops["name"], _COPIES.search)[mine]]
    if not copies.size:
        return None
    return _StateCopies(tuple(mine.tolist()), words, int(ops["step"].iloc[copies].nunique()))


def _cloned_states(evidence: Evidence, rows: Integers) -> Integers:
    """Gives the outermost ops that clone tensors around a state_dict() call.

    They are in lines around that call.
    """
    ops = evidence.linked.ops
    calls = outermost_frames(evidence, _STATE_DICT)
    walked = rows[calls.hold(ops["ts_us"].to_numpy()[rows])]
    places = [place for source in ops["source"].iloc[walked].dropna().unique() if (place := place_of(str(source)))]
    near = {
        (place.file, place.line + more) for place in places for more in range(-_LINES_OF_A_LOOP, _LINES_OF_A_LOOP + 1)
    }

    def is_near(source: str) -> bool:
        place = place_of(source)
        return place is not None and not is_backward(source) and (place.file, place.line) in near

    clones = text_matches(ops["name"], lambda name: name == "aten::clone") & text_matches(ops["source"], is_near)
    clones &= ops["module"].isna().to_numpy()
    return rows[clones[rows]] if np.count_nonzero(clones[rows]) >= 2 * evidence.steps else rows[:0]


def state_copies(evidence: Evidence) -> Draft | None:
    """All tensors of a model, or of its state, are copied in each step.

    Gain: the time of the ops of these copies and of Python between them; from what is left of it where the tensors are
    copied into ones that are kept, at 40 % of the bandwidth.
    """
    copied = _state_copies(evidence)
    if copied is None or copied.steps < evidence.steps:
        return None
    rows, work, ops = list(copied.rows), work_of(evidence), evidence.linked.ops
    under = issued_by(evidence, work, rows)
    moved_us = float(np.nan_to_num(work.roof("memory_us"))[under].sum()) * work.scale / evidence.steps
    removal = with_python(evidence, removal_of(evidence, rows), rows)
    line, high = main_source(evidence, rows), removal.gain.high
    if line is None or evidence.share_of_step(removal.us) < LEAST_SHARE:
        return None
    low = float(max(high - moved_us / MOVES_AT, high / 2))
    count = np.count_nonzero(text_matches(ops["name"], _COPIES.search)[rows]) / evidence.steps
    return Draft(
        slug="state-copies",
        title="All weights are copied in every step",
        evidence=(
            f"{copied.words} {at_source(line)} makes copies of {counted(format_count(count), 'tensor')} per step",
            f"that takes {format_per_step(evidence, removal.us)}, with the Python between the copies",
            *work.describe(under),
        ),
        advice=f"Copy {at_source(line)} only where the copy is kept (the best so far, every so many steps), or into "
        "tensors that were made once.",
        brief=f"Copy {at_source(line)} only where the copy is kept, or into tensors that were made once",
        places=(line,),
        code="if loss < best:\n    torch._foreach_copy_(kept, list(model.state_dict().values()))  # kept: made once",
        gain_us=Interval(low, high),
        claims=removal.claims,
        removes=True,
    )


def copies_on_purpose(evidence: Evidence) -> Flags:
    """Masks the work that other rules here explain.

    It is that of one-hot rows and copies of a model's state.
    """
    copied = _state_copies(evidence)
    rows = [*(row for one in _one_hots(evidence) for row in one.rows), *(copied.rows if copied else ())]
    return issued_by(evidence, work_of(evidence), rows)


# A node that adds to a parameter's gradient; the engine runs it right after the node that made the gradient.
_ADDS_GRADIENT = f"{BACKWARD_NODE}: torch::autograd::AccumulateGrad"
_LEAST_RUNS = 1.5


class _Repeated(Struct, frozen=True):
    """Backward nodes that ran before in the same step.

    It has how often the ones that repeat run per step.
    """

    rows: tuple[int, ...]
    runs: float
    source: str | None


def _repeated_nodes(evidence: Evidence) -> _Repeated | None:
    """Gives the runs of backward nodes beyond the first of each.

    Null where the passes do not only add to gradients. A node is known by its sequence number. With create_graph the
    backward pass makes nodes of its own, and goes through the forward graph twice by need. An optimizer step between
    two passes changes what the second one computes.
    """
    ops, number = evidence.linked.ops, sequence_numbers(evidence)
    nodes = backward_rows(evidence)
    adds = text_matches(ops["name"], _ADDS_GRADIENT.__eq__)[nodes]
    numbered_at = np.flatnonzero((number[nodes] >= 0) & ~adds)
    if numbered_at.size < 2:
        return None
    same = ["step", "number", "forward_thread", "name"]
    rows = nodes[numbered_at]
    table = ops.iloc[rows][["name", "step", "ts_us"]].assign(number=number[rows])
    table = table.assign(forward_thread=forward_threads(evidence)[rows]).sort_values("ts_us", kind="stable")
    runs = table.groupby(same, observed=True)
    again = (runs.cumcount() > 0).reindex(rows).to_numpy()
    count = runs["ts_us"].transform("size").reindex(rows).to_numpy()
    if not again.any() or _makes_graphs(evidence, number, nodes) or _steps_between(evidence, rows[count > 1]):
        return None
    # The last node before an AccumulateGrad made its gradient.
    is_again = np.zeros(nodes.size, dtype=bool)
    is_again[numbered_at] = again
    last = np.maximum.accumulate(np.where(adds, -1, np.arange(nodes.size)))
    is_again |= adds & (last >= 0) & is_again[np.maximum(last, 0)]
    added = nodes[is_again & adds]
    if not added.size:
        return None
    first = np.count_nonzero((count > 1) & ~again)
    # Gradients are added where the pass was called.
    source = main_source(evidence, added.tolist())
    return _Repeated(tuple(nodes[is_again].tolist()), float(np.count_nonzero(count > 1) / first), source)


def _makes_graphs(evidence: Evidence, number: Integers, nodes: Integers) -> bool:
    """True if ops inside backward nodes made nodes that run themselves."""
    ops = evidence.linked.ops
    inside = np.isin(roots_of(evidence), nodes) & text_matches(ops["name"], lambda name: name.startswith("aten::"))
    made = number[inside & (number >= 0)]
    return bool(np.isin(made, number[nodes]).any())


def _steps_between(evidence: Evidence, rows: Integers) -> bool:
    """True if an optimizer's step begins between two of these rows.

    The rows belong to one step.
    """
    ops = evidence.linked.ops.iloc[rows]
    marks = rows_of_events(evidence, OPTIMIZER_STEP)
    begun = evidence.linked.trace.events["ts_us"].to_numpy()[marks]
    spans = ops.groupby("step", observed=True)["ts_us"].agg(["min", "max"])
    return any(((begun > low) & (begun < high)).any() for low, high in spans.itertuples(index=False))


def repeated_backward(evidence: Evidence) -> Draft | None:
    """Several losses go backward one after the other through the same graph.

    Gain: the time of all runs of a backward node but the first, from 90 % of it: the gradients of the losses are then
    added where their graphs meet.
    """
    repeated = _repeated_nodes(evidence)
    if repeated is None or repeated.runs < _LEAST_RUNS:
        return None
    removal = removal_of(evidence, repeated.rows)
    if evidence.share_of_step(removal.us) < LEAST_SHARE:
        return None
    line, work = repeated.source, work_of(evidence)
    count = format_count(len(repeated.rows) / evidence.steps)
    return Draft(
        slug="repeated-backward",
        title="The backward pass goes through the same graph several times",
        evidence=(
            f"the backward pass of the same forward ops runs {format_count(round(repeated.runs, 1))} times per step, "
            f"called {at_source(line)}",
            f"{counted(count, 'node')} that ran before in the same step take {format_per_step(evidence, removal.us)}",
            *work.describe(issued_by(evidence, work, repeated.rows)),
        ),
        advice=f"Add the losses up, and go backward once {at_source(line)}: the gradients are the same.",
        places=(line,),
        code="sum(losses).backward()  # in place of loss.backward(retain_graph=True) for each",
        gain_us=removal.gain,
        claims=removal.claims,
        removes=True,
        confidence="high",
    )


RULES = (one_hot_product, state_copies, repeated_backward)
