"""Rules of ops whose result is far larger than what is taken from it.

Select first, then compute.
"""

import math
import re
from collections.abc import Sequence

from msgspec import Struct

from bottleneck.advice.kernel_work import KernelWork, Size, broadcast, is_size, size_words, work_of
from bottleneck.advice.quantities import format_per_step
from bottleneck.advice.ranking import Draft
from bottleneck.advice.removal import (
    LEAST_SHARE,
    backward_of,
    issued_by,
    main_source,
    program_rows,
    removal_of,
)
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence, remembered
from bottleneck.schema.op_names import at_known
from bottleneck.schema.tables import as_integers
from bottleneck.units import SHORT_DTYPE, counted, format_share


def _named(*names: str) -> frozenset[str]:
    return frozenset(f"aten::{name}" for name in names)


# Ops that take a part of their operand.
_TAKES = _named("slice", "select", "narrow", "index_select", "diagonal", "diag", "linalg_diagonal", "trace", "index")
_DIAGONALS = _named("diagonal", "diag", "linalg_diagonal", "trace")
# Ops whose result has the sizes of their first operand; along the axis of the soft ones it is not to be cut before.
_SAME = _named("to", "_to_copy", "clone", "contiguous", "float", "double", "half", "layer_norm", "dropout", "argsort")
_SORTS = _named("sort", "argsort", "msort")
_PLACES = _named("argsort")  # their result is places, which are whole numbers
_SOFT = _named("softmax", "log_softmax", "cumsum", "cumprod")
_PRODUCTS = _named("mm", "matmul", "bmm")
# What their result has of sizes is not told by the call: by the next op on the same line.
_MADE_ON_LINE = _named("index", "index_select", "cat", "stack", "pad", "repeat", "repeat_interleave", "tile")
# What is used of a result, at most, for the finding.
_MOST_USED = 0.5
# Of the time of a sort a selection of few values takes that much, on any device; and on a CPU beside a part that grows
# with what is taken, from rows that are not short (`python -m benchmarks.select_or_sort`).
_SELECTS, _ON_CPU, _SHORT = Interval(0.1, 0.6), Interval(0.02, 0.15), 100
_WHOLE_NUMBER = re.compile(r"^-?\d{1,19}$")


class _UsingCall(Struct, frozen=True):
    """Outermost op of the forward pass.

    With its operands' sizes and its arguments as text. ``whole_numbers`` are the sizes of which it reads an operand of
    whole numbers, or one whose dtype is not recorded.
    """

    row: int
    name: str
    source: object
    sizes: list[Size]
    whole_numbers: frozenset[Size]
    concrete: list[str]
    is_pointwise: bool

    @property
    def axis(self) -> int | None:
        """Returns the dimension that the op works along.

        Counted from the front; null where it is not told.
        """
        rank = len(self.sizes[0]) if self.sizes else 0
        number = next((int(text) for text in self.concrete[1:2] if _WHOLE_NUMBER.match(text)), None)
        return None if number is None or not -rank <= number < rank else number % rank


class Unused(Struct, frozen=True):
    """Result of which a part is used.

    The ops that make it, those that take parts, the part, and its sizes.
    """

    rows: tuple[int, ...]
    takes: tuple[int, ...]
    used: float
    size: Size
    name: str


class _Made(Struct):
    """Newest result of some sizes.

    The ops that made it, how often it was read whole, and the parts taken.
    """

    call: _UsingCall
    rows: list[int]
    takes: list[int]
    used: float = 0.0
    reads: int = 0


@remembered
def unused_results(evidence: Evidence) -> tuple[Unused, ...]:
    """Finds results of the forward pass of which only parts are read.

    As far as sizes tell. A trace has no names of tensors: a result is known by its sizes until the next op makes one of
    the same sizes. An op that reads a whole tensor of these sizes leaves it out.
    """
    ops, top = evidence.linked.ops, program_rows(evidence)
    table = ops.iloc[top][["thread", "step"]].assign(row=top)
    unused: list[Unused] = []
    for _, group in table.groupby(["thread", "step"], observed=True, sort=False):
        unused += _unused_in(_calls_of(evidence, group["row"].tolist()))
    return tuple(unused)


def _calls_of(evidence: Evidence, rows: Sequence[int]) -> list[_UsingCall]:
    ops, work = evidence.linked.ops.iloc[list(rows)], work_of(evidence)
    columns = (ops[name].astype(object).tolist() for name in ("name", "source"))
    families = evidence.costs["family"].astype(object).tolist()
    calls = []
    for row, name, source, number in zip(rows, *columns, as_integers(ops["signature"]).tolist(), strict=True):
        concrete = [str(text) for text in work.text_column("concrete", number)]
        is_pointwise = number >= 0 and families[number] == "pointwise"
        sizes = work.tensors_of(number)
        calls.append(_UsingCall(row, str(name), source, sizes, _whole_numbers(work, number), concrete, is_pointwise))
    return calls


def _whole_numbers(work: KernelWork, signature: int) -> frozenset[Size]:
    """Gives the sizes of a call's operands that are not floating-point numbers."""
    columns = (work.text_column(column, signature) for column in ("dims", "types"))
    members = [pair for dims, kind in zip(*columns, strict=False) for pair in _members(dims, kind)]
    return frozenset(size for size, kind in members if SHORT_DTYPE.get(str(kind), "int")[:2] not in {"fp", "bf"})


def _members(dims: object, kind: object) -> list[tuple[Size, object]]:
    """The sizes of an argument's tensors, each with its dtype."""
    if is_size(dims):
        return [(tuple(dims), kind)]
    return [(tuple(size), kind) for size in dims if is_size(size)] if isinstance(dims, list) else []


def _unused_in(calls: Sequence[_UsingCall]) -> list[Unused]:
    """The results of one step of one thread of which parts are read."""
    unused: list[Unused] = []
    made: dict[Size, _Made] = {}

    def keep(size: Size, one: _Made) -> None:
        unused.extend(_finished(made.pop(size, None), size))
        made[size] = one

    for at, call in enumerate(calls):
        part = _part_taken(call, calls[at + 1 : at + 3])
        before = calls[at - 1] if at else None
        if part is not None and before is not None and _makes_on_line(before, call):
            keep(call.sizes[0], _Made(before, [before.row], []))
        if part is not None:
            _take(made.get(call.sizes[0]), call, part)
            continue
        result = _result(call)
        source = made.get(result) if result is not None and (call.is_pointwise or call.name in _SAME) else None
        for size in set(call.sizes) & set(made):
            made[size].reads += _reads_all(call, made[size], size)
        if result is not None:
            goes_on = source is not None and result in call.sizes and source.reads == 1 and not source.takes
            # A selection needs all of what a sort would order.
            chain = [*source.rows, call.row] if source and goes_on and call.name not in _SORTS else [call.row]
            keep(result, _Made(call, chain, []))
    for size, one in made.items():
        unused += _finished(one, size)
    return unused


def _reads_all(call: _UsingCall, one: _Made, size: Size) -> bool:
    """True if a call may read all of the newest result of these sizes.

    What is sorted has the sizes of its sorted values and of their places. Only places are whole numbers; and what is
    gathered at the first places comes from what was sorted, as ``scores.gather(1, order[:, :k])``.
    """
    if one.call.name in _PLACES and size not in call.whole_numbers:
        return False
    gathers = one.call.name in _SORTS and call.name == "aten::gather" and len(call.sizes) > 1
    return not (gathers and call.sizes[0] == size and math.prod(call.sizes[1]) <= one.used * math.prod(size))


def _finished(one: _Made | None, size: Size) -> list[Unused]:
    if one is None or not one.takes or one.reads or one.used > _MOST_USED:
        return []
    return [Unused(tuple(one.rows), tuple(one.takes), one.used, size, one.call.name)]


def _take(one: _Made | None, call: _UsingCall, part: float) -> None:
    """Notes that a part of the newest result of these sizes is taken.

    All of it is the same tensor.
    """
    if one is None or part >= 1.0:
        return
    one.takes.append(call.row)
    one.used += part
    if one.call.name in _SOFT and one.call.axis in {call.axis, None}:
        one.reads += 1


def _part_taken(call: _UsingCall, after: Sequence[_UsingCall]) -> float | None:
    """Returns the part of its operand that an op takes.

    Null for an op that reads all, or whose record does not tell.
    """
    if call.name not in _TAKES or not call.sizes or not math.prod(call.sizes[0]):
        return None
    size, axis = call.sizes[0], call.axis
    if call.name in _DIAGONALS:
        return min(size[-2:]) / math.prod(size[-2:]) if len(size) >= 2 else None
    if call.name == "aten::index":
        shorter = (shape for later in after for shape in later.sizes if len(shape) >= 2 and shape[1:] == size[1:])
        taken = next(shorter, None)
        return None if taken is None or taken[0] >= size[0] else taken[0] / size[0]
    return None if axis is None or not size[axis] else _part_along(call, size[axis])


def _part_along(call: _UsingCall, length: int) -> float | None:
    """The part of a dimension of so many numbers that an op takes."""
    if call.name == "aten::select":
        return 1 / length
    if call.name == "aten::index_select":
        return math.prod(call.sizes[1]) / length if len(call.sizes) > 1 else None
    numbers = [int(text) if _WHOLE_NUMBER.match(text) else None for text in call.concrete[2:5]]
    start, end, step = (*numbers, None, None, None)[:3]
    if call.name == "aten::narrow":
        return None if end is None else end / length
    return len(range(length)[start : end : step if step and step > 0 else 1]) / length


def _makes_on_line(before: _UsingCall, call: _UsingCall) -> bool:
    """True if the op before can have made what this one takes.

    This one takes a part of it. It is on the same line.
    """
    if before.name not in _MADE_ON_LINE or before.source is None or before.source != call.source or not before.sizes:
        return False
    size, given = call.sizes[0], before.sizes
    if before.name in _named("index", "index_select"):
        return len(size) >= 1 and size[1:] == given[0][1:]
    if before.name in _named("cat", "stack"):
        return math.prod(size) == sum(math.prod(shape) for shape in given)
    return math.prod(size) >= math.prod(given[0])


def _result(call: _UsingCall) -> Size | None:
    """The sizes of an op's result, where they follow from its record."""
    sizes = call.sizes
    if not sizes:
        return None
    if call.name == "aten::linear":
        return (*sizes[0][:-1], sizes[1][0]) if len(sizes) > 1 and len(sizes[1]) == 2 else None
    if call.name in _PRODUCTS:
        are_matrices = len(sizes) > 1 and min(map(len, sizes[:2])) >= 2
        return (*broadcast([sizes[0][:-2], sizes[1][:-2]]), sizes[0][-2], sizes[1][-1]) if are_matrices else None
    if call.name == "aten::cdist":
        return (*sizes[0][:-1], sizes[1][-2]) if len(sizes) > 1 and len(sizes[1]) >= 2 else None
    if call.is_pointwise:
        return broadcast(sizes)
    return sizes[0] if call.name in _SAME | _SORTS | _SOFT else None


def unused_result(evidence: Evidence) -> Draft | None:
    """Finds an op that computes far more than is taken from its result.

    Or copies more. Gain: the time of the op, of those that it alone reads, and of their backward nodes, less the part
    that is used; from 90 % of it. A sort of which few values are taken leaves what their selection takes.
    """
    unused, ops = unused_results(evidence), evidence.linked.ops
    if not unused:
        return None
    source = ops["source"].astype(object)
    by_line: dict[object, list[Unused]] = {}
    for one in unused:
        by_line.setdefault(source.iloc[one.takes[0]], []).append(one)
    us = ops["dur_us"].to_numpy()
    line, mine = max(by_line.items(), key=lambda item: sum(us[list(one.rows)].sum() for one in item[1]))
    largest = max(mine, key=lambda one: us[list(one.rows)].sum())
    forward = sorted({row for one in mine for row in one.rows})
    rows = [*forward, *backward_of(evidence, [*forward, *(row for one in mine for row in one.takes)])]
    removal, work = removal_of(evidence, rows), work_of(evidence)
    is_sort = largest.name in _SORTS
    left = Interval(largest.used, largest.used)
    if is_sort:
        length = max(largest.size, default=0) if evidence.is_host_only else 0
        left = left_of_sort(largest.used, length)
    gain = Interval((1 - left.high) * removal.gain.low, (1 - left.low) * removal.gain.high)
    # In order of the calls alone, a sort and a slice of its sizes belong together; others may not.
    if evidence.share_of_step(gain.high) < LEAST_SHARE or not (isinstance(line, str) or is_sort):
        return None
    line = line if isinstance(line, str) else None
    made_at = main_source(evidence, largest.rows)
    elsewhere = "" if made_at == line else f", made{at_known(made_at)},"
    return Draft(
        slug="unused-result",
        title="Far more is computed than what is taken from the result",
        evidence=(
            f"of a tensor of {size_words(largest.size)} by {largest.name}{elsewhere} only {format_share(largest.used)} "
            f"is taken{at_known(line)}",
            f"making it takes {format_per_step(evidence, removal.us)}",
            *work.describe(issued_by(evidence, work, rows)),
        ),
        advice=_advice(largest, line, is_diagonal=_takes_diagonal(evidence, largest)),
        places=(
            made_at,
            line,
        ),
        code=_code(largest),
        gain_us=gain,
        claims=removal.claims_of_part(1 - left.low),
        removes=True,
        confidence="high" if made_at == line and line is not None else "medium",
    )


def _takes_diagonal(evidence: Evidence, one: Unused) -> bool:
    """True for a product of matrices whose diagonal is taken, or its sum."""
    names = evidence.linked.ops["name"].iloc[list(one.takes)]
    return one.name in _PRODUCTS and all(str(name) in _DIAGONALS for name in names)


def left_of_sort(used: float, length: int) -> Interval:
    """Returns what a selection takes of the time of a sort.

    ``used`` is the part of the values that it gives, and ``length`` that of a row on a CPU, else 0.
    """
    if length < _SHORT:
        return Interval(max(used, _SELECTS.low), max(used, _SELECTS.high))
    return Interval(max(used / 2, _ON_CPU.low), min(_ON_CPU.high + math.sqrt(used), 1.0))


def _advice(one: Unused, line: str | None, *, is_diagonal: bool = False) -> str:
    where, name = at_known(line), one.name
    if is_diagonal:
        return (
            f"Multiply row by row{where} in place of the full product: the diagonal of a @ b.T is "
            f"(a * b).sum(-1), its sum (a trace) is (a * b).sum(). The product of {size_words(one.size)} numbers, and "
            "its backward pass, then need not be made."
        )
    if name in _SORTS:
        return f"Take the few values that are used{where} with torch.topk, kthvalue, max or min: no sort is needed."
    if name in _named("index", "index_select"):
        return (
            f"Slice the index first{where}, then take the rows: indexing copies {counted(one.size[0], 'row')} in each "
            f"step, of which {format_share(one.used)} is kept. Or shuffle once per epoch."
        )
    return (
        f"Take the part that is used{where} ahead of {name}: slice or select its input, so that only "
        f"{format_share(one.used)} of the result is computed."
    )


def _code(one: Unused) -> str:
    if one.name in _SORTS:
        return "values, places = x.topk(k)  # in place of x.sort(descending=True) and a slice"
    if one.name in _named("index", "index_select"):
        return "batch = data[order[start:stop]]  # in place of data[order][start:stop]"
    if one.name in _PRODUCTS and one.size[-1] == one.size[-2]:
        return "rows = (a * b).sum(-1)  # the diagonal of a @ b.T; for some rows: a[rows] @ b.T"
    return "last = head(h[:, -1])  # in place of head(h)[:, -1]"


RULES = (unused_result,)
