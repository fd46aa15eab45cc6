"""Rule of branches that run on all rows, though few are kept.

A mask or an index then keeps one result for each row.
"""

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence, Set

from msgspec import Struct

from bottleneck.advice.kernel_work import KernelWork, Size, work_of
from bottleneck.advice.quantities import format_count, format_per_step
from bottleneck.advice.ranking import Draft
from bottleneck.advice.removal import LEAST_SHARE, backward_of, issued_by, main_source, removal_of, top_rows
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence, remembered
from bottleneck.schema.op_names import at_source
from bottleneck.schema.tables import as_integers
from bottleneck.units import counted, format_share

_INSTANCE = re.compile(r"^(?P<kind>\w{1,200}?)_\d{1,9}$")
_MASKS = frozenset({"aten::where", "aten::mul", "aten::mul_", "aten::masked_fill", "aten::masked_fill_"})
_PICKS = frozenset({"aten::index", "aten::index_put_", "aten::masked_scatter", "aten::masked_scatter_"})
_TAKES = frozenset({"aten::gather", "aten::index", "aten::take_along_dim", "aten::index_select"})
# With weights of which a routing leaves most at zero.
_WEIGHTS = frozenset({"aten::mul", "aten::einsum", "aten::bmm", "aten::matmul"})
_JOINS = frozenset({"aten::stack", "aten::cat"})
_EQUALS = frozenset({"aten::eq", "aten::ne"})
_COLUMNS = frozenset({"aten::select", "aten::slice", "aten::narrow"})
_ROUTES = frozenset({"aten::topk", "aten::one_hot", "aten::scatter", "aten::scatter_", "aten::argmax"})
_NUMBER = re.compile(r"^-?\d{1,9}$")
# Ops of the module itself that may follow its last branch up to the one that selects.
_MOST_AFTER = 8
# Numbers that rows are compared with beside those of the branches: that of padding, say.
_OTHER_NUMBERS = 1
# Of the time that is spared so much is gained at least: the rows have to be gathered and written back.
_CERTAIN = 0.5


_Run = tuple[int, int]
_Path = tuple[str, ...]


class _Branched(Struct, frozen=True):
    """Branches of one kind that run on the same rows.

    They have their ops, with those on all results joined, the line that selects, and the part used. ``count`` is the
    number of branches, ``used`` how many of them a row needs, ``rows_read`` the rows that each reads.
    """

    rows: tuple[int, ...]
    line: str | None
    kind: str
    count: int
    used: int
    rows_read: int
    is_experts: bool


class _Op(Struct, frozen=True):
    """An outermost op as this rule reads it."""

    row: int
    name: str
    sizes: list[Size]
    concrete: tuple[str, ...]
    source: object

    @property
    def call(self) -> tuple[object, ...]:
        """Name and sizes, equal for the ops of like branches."""
        return (self.name, *self.sizes)


def _ops_of(evidence: Evidence, work: KernelWork, rows: Sequence[int]) -> list[_Op]:
    ops = evidence.linked.ops.iloc[list(rows)]
    names, sources = (ops[column].astype(object).tolist() for column in ("name", "source"))
    return [
        _Op(row, str(name), work.tensors_of(call), tuple(map(str, work.text_column("concrete", call))), source)
        for row, name, source, call in zip(rows, names, sources, as_integers(ops["signature"]).tolist(), strict=True)
    ]


@remembered
def _branched(evidence: Evidence) -> tuple[_Branched, ...]:
    """The branches of the steps whose results are selected afterwards, by module and step."""
    top, work = top_rows(evidence), work_of(evidence)
    table = evidence.linked.ops.iloc[top][["thread", "step", "module"]].astype({"module": object}).assign(row=top)
    branched = []
    for _, group in table.groupby(["thread", "step"], observed=True, sort=False):
        rows = group["row"].tolist()
        paths = [tuple(path.split(".")) if isinstance(path, str) else () for path in group["module"].tolist()]
        ops = _ops_of(evidence, work, rows)
        places: dict[_Path, list[int]] = {}
        for at, path in enumerate(paths):
            places.setdefault(path, []).append(at)
        for parent, kind, runs in _siblings(paths):
            one = _selected(ops, places.get(parent, []), kind, runs)
            if one is not None:
                branched.append(one)
    return tuple(branched)


def _siblings(paths: Sequence[_Path]) -> Iterator[tuple[_Path, str, list[_Run]]]:
    """Gives runs of ops in modules of one kind and parent.

    A run has the first and the last place of a module.
    """
    spans: dict[tuple[_Path, str], dict[str, _Run]] = {}
    for at, path in enumerate(paths):
        for depth, part in enumerate(path):
            match = _INSTANCE.match(part)
            if match is not None:
                runs = spans.setdefault((path[:depth], match["kind"]), {})
                runs[part] = (runs[part][0] if part in runs else at, at)
    for (parent, kind), runs in spans.items():
        if len(runs) > 1:
            yield parent, kind, sorted(runs.values())


def _selected(ops: Sequence[_Op], own: Sequence[int], kind: str, runs: Sequence[_Run]) -> _Branched | None:
    """Gives the branches among these runs of which few are kept.

    A mask per branch or an index over all of them keeps it. ``own`` are the places of the ops of the module that has
    them.
    """
    if any(one[1] >= other[0] for one, other in itertools.pairwise(runs)):
        return None
    inside = [ops[first : last + 1] for first, last in runs]
    calls = [tuple(one.call for one in run) for run in inside]
    largest, count = Counter(calls).most_common(1)[0]
    alike = [at for at, run_calls in enumerate(calls) if run_calls == largest]
    reads = next((size for one in inside[alike[0]] for size in one.sizes if len(size) > 1), ())
    if count < 2 or not math.prod(reads) or not reads:
        return None
    first, last = runs[alike[0]][0], runs[alike[-1]][1]
    before = [ops[at] for at in own if at < first][-3 * _MOST_AFTER :]
    between = [ops[at] for at in own if first <= at <= last]
    after = [ops[at] for at in own if at > last][:_MOST_AFTER]
    branches = [inside[at] for at in alike]
    select = _selecting(branches, _numbers([ops[at] for at in own], reads), reads, before, (between, after))
    if select is None:
        return None
    used = _used(before, len(alike))
    return _Branched(
        tuple(one.row for run in (*branches, _over_all(after, len(alike))) for one in run),
        select.source if isinstance(select.source, str) else None,
        kind,
        len(alike),
        used,
        math.prod(reads[:-1]),
        len(alike) > 2,
    )


def _over_all(after: Sequence[_Op], count: int) -> list[_Op]:
    """Gives the op that joins all results, and those on what it joined."""
    joined = next((at for at, one in enumerate(after) if one.name in _JOINS and len(one.sizes) >= count), None)
    if joined is None:
        return []
    parts = after[joined].sizes
    rest = (one for one in after[joined + 1 :] if any(_is_of_all(size, parts, count) for size in one.sizes))
    return [after[joined], *rest]


def _used(before: Sequence[_Op], count: int) -> int:
    """Counts the branches that a row needs.

    It is k of a topk ahead of them, else 1.
    """
    tops = [one for one in before if one.name == "aten::topk" and len(one.concrete) > 1]
    number = tops[-1].concrete[1] if tops else ""
    return min(int(number), count) if _NUMBER.match(number) and int(number) > 0 else 1


def _selecting(
    branches: Sequence[Sequence[_Op]],
    numbers: Set[str],
    reads: Size,
    before: Sequence[_Op],
    rest: tuple[Sequence[_Op], Sequence[_Op]],
) -> _Op | None:
    """Finds the op that keeps a part of the branches' results.

    Null where all of them may be used. ``numbers`` are those that rows are compared with, ``rest`` the ops between the
    branches and after them.
    """
    between, after = rest
    count, near = len(branches), [*before[-_MOST_AFTER:], *between, *after]
    # With many more numbers than branches the rows are of other groups: a mean for each graph of a batch.
    is_numbered = count <= len(numbers) <= count + _OTHER_NUMBERS
    masks = [one for one in (*between, *after) if _masks_rows(one, reads)]
    picks = [one for one in (*between, *after) if one.name in _PICKS and one.sizes]
    if len(masks) >= count and (is_numbered or _has_own_columns(near, before, count)):
        return masks[0]
    if len(picks) >= count and is_numbered:
        return picks[0]
    joined = next((at for at, one in enumerate(after) if one.name in _JOINS and len(one.sizes) >= count), None)
    if joined is not None:
        is_routed = any(one.name in _ROUTES for one in before)
        takes = (one for one in after[joined + 1 :] if one.name in _TAKES or (is_routed and one.name in _WEIGHTS))
        parts = after[joined].sizes
        return next((one for one in takes if any(_is_of_all(size, parts, count) for size in one.sizes)), None)
    wheres = [one for one in masks if one.name == "aten::where" and len([s for s in one.sizes if s[-1:] != (1,)]) == 2]
    return wheres[0] if count == 2 and wheres and wheres[0] in after else None


def _masks_rows(one: _Op, reads: Size) -> bool:
    """True for an op with a tensor of one number per row.

    Another of its tensors has several per row.
    """
    if one.name not in _MASKS or len(one.sizes) < 2:
        return False
    rows = math.prod(reads[:-1])
    masks = [size for size in one.sizes if len(size) > 1 and size[-1] == 1 and math.prod(size) == rows]
    others = [size for size in one.sizes if len(size) > 1 and size[-1] > 1 and math.prod(size[:-1]) == rows]
    return bool(masks and others)


def _has_own_columns(near: Sequence[_Op], before: Sequence[_Op], count: int) -> bool:
    """True if each branch has a column of its own in what routes rows."""
    columns = {one.concrete for one in near if one.name in _COLUMNS and one.sizes and count in one.sizes[0]}
    return len(columns) >= count and any(one.name in _ROUTES for one in before)


def _numbers(ops: Sequence[_Op], reads: Size) -> frozenset[str]:
    """The numbers that rows are compared with."""
    rows = math.prod(reads[:-1])
    mine = (one for one in ops if one.name in _EQUALS and one.sizes and math.prod(one.sizes[0]) % rows == 0)
    return frozenset(one.concrete[1] for one in mine if len(one.concrete) > 1 and _NUMBER.match(one.concrete[1]))


def _is_of_all(size: Size, parts: Sequence[Size], count: int) -> bool:
    """True for the size of the results of all branches together.

    It has a dimension of their number.
    """
    return math.prod(size) == sum(math.prod(part) for part in parts) and count in size


def runs_each_expert(evidence: Evidence) -> bool:
    """True where modules are experts of which each runs on all rows."""
    return any(one.is_experts for one in _branched(evidence))


def discarded_branches(evidence: Evidence) -> Draft | None:
    """Finds branches that run on all rows though rows keep few results.

    Experts, heads and cases are such branches. Gain: the part of their time, and of the ops on all results joined, with
    their backward nodes, that no row needs. It is counted from half, since the rows have to be gathered and written
    back.
    """
    branched = _branched(evidence)
    if not branched:
        return None
    us = evidence.linked.ops["dur_us"].to_numpy()
    largest = max(branched, key=lambda one: float(us[list(one.rows)].sum()))
    mine = [one for one in branched if one.count == largest.count and one.kind == largest.kind]
    forward = [row for one in mine for row in one.rows]
    rows = [*forward, *backward_of(evidence, forward)]
    removal, work = removal_of(evidence, rows), work_of(evidence)
    spared = 1 - largest.used / largest.count
    gain = Interval(_CERTAIN * spared * removal.gain.low, spared * removal.gain.high)
    if evidence.share_of_step(gain.high) < LEAST_SHARE:
        return None
    line, needs = largest.line or main_source(evidence, forward), counted(largest.used, "branch", "branches")
    times = format_count(len(mine) / evidence.steps)
    who = f"{counted(largest.count, 'module')} of the kind {largest.kind}"
    return Draft(
        slug="discarded-branches",
        title="Every expert runs on all rows, and few of each are used"
        if largest.is_experts
        else "Both branches run on all rows, and one result is thrown away",
        evidence=(
            f"{who} run on the same {counted(largest.rows_read, 'row')} {counted(times, 'time')} per step; "
            f"{at_source(line)} each row keeps the results of {needs}",
            f"they take {format_per_step(evidence, removal.us)}, with the backward pass; about {format_share(spared)} "
            "of that is for results that are not used",
            *work.describe(issued_by(evidence, work, rows)),
        ),
        advice=f"Run each of {counted(largest.count, 'module')} whose results are selected {at_source(line)} only on "
        "the rows that are routed to it: find them (nonzero), gather them (index_select), and write the results back "
        "(index_add or index_copy). Where the branches' weights alone differ, rows sorted by branch can share one "
        "grouped product.",
        brief=f"Run each module selected {at_source(line)} only on the rows that are routed to it",
        places=(line,),
        code="rows = (choice == e).nonzero().squeeze(1)\n"
        "out = out.index_add(0, rows, expert(h.index_select(0, rows)))  # in place of torch.where(mask, expert(h), 0)",
        gain_us=gain,
        claims={name: spared * claimed_us for name, claimed_us in removal.claims.items()},
        removes=True,
    )


RULES = (discarded_branches,)
