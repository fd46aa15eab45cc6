"""Builds the tables of an analysis.

They are on ledger, kernels, ranks, places, idle time, memory, collectives, path and pieces.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from bottleneck.report.document import Sparkline, TableColumn, TableRow, TableSection, columns
from bottleneck.report.kernel_names import cut_place, short_names
from bottleneck.report.text import (
    PERCENT,
    UNKNOWN,
    Scale,
    bound_word,
    calls_number,
    describe_calls,
    describe_shapes,
    is_marked,
    percents,
    scale_of,
    top_rows,
)
from bottleneck.schema.accounts import label_of, meaning_of
from bottleneck.schema.analysis import (
    GROUPS,
    REGIMES,
    Analysis,
    CollectiveSummary,
    CriticalPath,
    Fold,
    IdleCause,
    KernelSummary,
    LedgerEntry,
    LiveAllocations,
    MemoryUse,
    PathPart,
    Phase,
    Queue,
    RankSummary,
    ReplayCheck,
    UserRange,
    describe_share,
    regime_of,
    share_tenths,
)
from bottleneck.schema.kernel_names import essential_name
from bottleneck.schema.measurements import MeasuredPiece, MeasuredPieces, left_out_words
from bottleneck.schema.op_names import COMPILED_REGION, at_known, at_source
from bottleneck.schema.records import replace
from bottleneck.units import apportion, apportion_groups, counted, format_share, format_si, format_us


def phases(analysis: Analysis) -> TableSection | None:
    """The step by phase, each split by group; null where no phases are known."""
    if not analysis.phases:
        return None
    us = [phase.us for phase in analysis.phases]
    scale, (titles, cells) = scale_of(math.fsum(us)), _split(analysis.phases)
    times, shares = scale.column(us), percents([phase.share for phase in analysis.phases])
    rows = [
        TableRow((phase.name, time, share, *split), key=phase.name)
        for phase, time, share, split in zip(analysis.phases, times, shares, cells, strict=False)
    ]
    total = TableRow(("all phases", times[-1], shares[-1], *("" for _ in titles)), "total")
    heads = columns("words", "phase") + columns("number", scale.unit, "share", *titles)
    note = "Device work belongs to the phase that launched it. The last columns are parts of the phase."
    return TableSection("Phases of the step", heads, (*rows, total), (note,))


def user_ranges(analysis: Analysis, top: int) -> TableSection | None:
    """The ranges that the program marked, by their time; null where there are none."""
    shown = analysis.ranges[:top]
    if not shown:
        return None
    scale, (titles, cells) = scale_of(analysis.ranges[0].us), _split(shown)
    rows = []
    for one, split in zip(shown, cells, strict=True):
        times = scale.one(one.self_us), scale.one(one.us)
        rows.append(TableRow((one.name, calls_number(one.calls), *times, format_share(one.share), *split)))
    hidden = len(analysis.ranges) - len(shown)
    more = f" {hidden} more take less time." if hidden else ""
    heads = columns("name", "range") + columns("number", "times", "self", "total", "share", *titles)
    note = f"self: without the ranges inside it. The last columns are parts of the total.{more}"
    return TableSection(f"Ranges of the program, in {scale.unit}", heads, tuple(rows), (note,))


# Groups with a column of their own; the others are one column.
_COLUMNS = ("compute", "memory", "overhead")


def _split(parts: Sequence[Phase | UserRange]) -> tuple[list[str], list[tuple[str, ...]]]:
    """Titles and cells of the groups: whole percentages of each part's own time."""
    held = [group for group in GROUPS if any(part.shares.get(group, 0.0) > 0 for part in parts)]
    others = tuple(group for group in held if group not in _COLUMNS)
    columns_of = [*((group,) for group in _COLUMNS), *([others] if others else [])]
    titles = [_short_group(members[0]) if len(members) == 1 else "rest" for members in columns_of]
    sums = [[math.fsum(part.shares.get(group, 0.0) for group in members) for members in columns_of] for part in parts]
    return titles, [tuple(map(_whole_percent, row)) for row in sums]


def _whole_percent(share: float) -> str:
    """Formats a share in whole per cent.

    A part of something never reads as nothing or all.
    """
    if share <= 0:
        return ""
    whole = round(share * 100)
    return "<1 %" if whole == 0 else ">99 %" if whole == 100 and share < 1 - 1e-9 else f"{whole} %"


def _short_group(group: str) -> str:
    return "comm." if group == "communication" else group


def lines(analysis: Analysis, top: int) -> TableSection | None:
    """Work and waiting by source line; null where less than two lines are known."""
    timed = sorted((fold for fold in analysis.lines if _all_us(fold) > 0), key=lambda fold: -_all_us(fold))
    if len(timed) < 2 or analysis.steps.wall_us <= 0:
        return None
    cut = top if len(timed) > top + 1 else len(timed)
    shown, hidden = timed[:cut], timed[cut:]
    us, idle_us = (math.fsum(getattr(fold, name) for fold in hidden) for name in ("us", "idle_us"))
    rest = [replace(hidden[0], name=f"{len(hidden)} more", us=us, idle_us=idle_us)] if hidden else []
    numbers = _Additive([*shown, *rest], analysis.steps.wall_us)
    rows = [TableRow((fold.name, *numbers.of([fold])), details=_text_of(analysis, fold.name)) for fold in shown]
    rows += [TableRow((fold.name, *numbers.of([fold])), "rest") for fold in rest]
    backward_note = "Work of the backward pass stands at the line of its forward op, where that is known."
    has_backward = any(phase.name == "backward" for phase in analysis.phases)
    return TableSection(
        "By source line",
        columns("place", "at") + columns("number", "work", "waiting", f"both, {numbers.scale.unit}", "share"),
        (*rows, TableRow(("all of these", *numbers.of([*shown, *rest])), "total")),
        (backward_note,) if has_backward else (),
        TableColumn("source text", "code"),
    )


def _text_of(analysis: Analysis, source: str | None) -> tuple[str, ...]:
    text = analysis.text_of(source)
    return () if text is None else (text,)


def modules(analysis: Analysis, top: int) -> TableSection | None:
    """Builds the table of work and waiting by module.

    Modules of a kind stand together, and modules inside the largest have rows of their own. Null where fewer than two
    are known.
    """
    timed = [fold for fold in analysis.module_classes or analysis.modules if _all_us(fold) > 0]
    if len(timed) < 2 or analysis.steps.wall_us <= 0:
        return None
    trunk = _trunk(timed)
    heads: dict[str, list[tuple[str, Fold]]] = {}
    for fold in sorted(timed, key=lambda fold: -_all_us(fold)):
        head, inside = _below(fold, trunk)
        heads.setdefault(head, []).append((inside, fold))
    ordered = sorted(heads.items(), key=lambda item: -math.fsum(_all_us(fold) for _, fold in item[1]))
    cut = top if len(ordered) > top + 1 else len(ordered)
    leaves = [fold for _, members in ordered for _, fold in members]
    numbers = _Additive(leaves, analysis.steps.wall_us)
    rows = [row for head, members in ordered[:cut] for row in _module_rows(head, members, numbers)]
    if cut < len(ordered):
        rest = [fold for _, members in ordered[cut:] for _, fold in members]
        rows.append(TableRow((f"{len(ordered) - cut} more", *numbers.of(rest)), "rest"))
    title = "By module" + (f", mostly inside {_INSIDE.join(trunk)}" if trunk else "")
    return TableSection(
        title,
        columns("place", "module") + columns("number", "work", "waiting", f"both, {numbers.scale.unit}", "share"),
        (*rows, TableRow(("all of these", *numbers.of(leaves)), "total")),
    )


_INSIDE = " > "
_PARTS = 4
_TRUNK_SHARE = 0.8  # of what is inside a module: that much in one module of its own leads on to what is inside that


def _trunk(folds: Sequence[Fold]) -> tuple[str, ...]:
    """Gives the chain of single modules from the outermost on.

    Each has nearly all of the time of the one around it.
    """
    trunk: tuple[str, ...] = ()
    total = math.fsum(map(_all_us, folds))
    while True:
        sums: dict[str, float] = {}
        for fold in folds:
            path = tuple(fold.name.split(_INSIDE))
            if len(path) > len(trunk) + 1 and path[: len(trunk)] == trunk:
                sums[path[len(trunk)]] = sums.get(path[len(trunk)], 0.0) + _all_us(fold)
        name = max(sums, key=lambda name: sums[name], default=None)
        if name is None or sums[name] < _TRUNK_SHARE * total or not name.replace(".", "").isidentifier():
            return trunk
        trunk, total = (*trunk, name), sums[name]


def _below(fold: Fold, trunk: tuple[str, ...]) -> tuple[str, str]:
    """Gives the module below the trunk that holds this one.

    Also gives the path inside it. Of the trunk itself it is its name.
    """
    path = tuple(fold.name.split(_INSIDE))
    if path == trunk[: len(path)]:
        return f"{path[-1]} itself", ""
    shared = next(at for at, name in enumerate(path) if trunk[at : at + 1] != (name,))
    return path[shared], _INSIDE.join(path[shared + 1 :])


def _module_rows(head: str, members: Sequence[tuple[str, Fold]], numbers: "_Additive") -> list[TableRow]:
    """Builds the rows for a module below the trunk.

    Where several modules lie inside it, the largest of them have rows too.
    """
    if len(members) == 1:
        ((inside, fold),) = members
        return [TableRow((f"{head}{_INSIDE}{inside}" if inside else head, *numbers.of([fold])))]
    cut = _PARTS if len(members) > _PARTS + 1 else len(members)
    parts = [TableRow((inside or "itself", *numbers.of([fold])), "part") for inside, fold in members[:cut]]
    if cut < len(members):
        rest = numbers.of([fold for _, fold in members[cut:]])
        parts.append(TableRow((f"{len(members) - cut} more", *rest), "part"))
    return [TableRow((head, *numbers.of([fold for _, fold in members]))), *parts]


class _Additive:
    """Work, waiting, both and their share of the step for folds.

    As printed, the numbers of any of these folds add up to those of all.
    """

    def __init__(self, folds: Sequence[Fold], wall_us: float) -> None:
        self.scale = scale_of(math.fsum(map(_all_us, folds)))
        amounts = [[self.scale.quanta(us) for us in (fold.us, fold.idle_us)] for fold in folds]
        names = [fold.name for fold in folds]
        self._quanta = dict(zip(names, apportion_groups(amounts), strict=True))
        shares = apportion([PERCENT.quanta(_all_us(fold) / wall_us) for fold in folds])
        self._shares = dict(zip(names, shares, strict=True))
        self._wall_us = wall_us

    def of(self, folds: Sequence[Fold]) -> tuple[str, ...]:
        """The cells of a row that stands for some of the folds."""
        work, waiting = (sum(self._quanta[fold.name][at] for fold in folds) for at in (0, 1))
        us, idle_us = math.fsum(fold.us for fold in folds), math.fsum(fold.idle_us for fold in folds)
        times = ((work, us), (waiting, idle_us), (work + waiting, us + idle_us))
        ratio = (us + idle_us) / self._wall_us
        share = PERCENT.show(sum(self._shares[fold.name] for fold in folds), ratio)
        share = ">99.9" if share == "100.0" and len(folds) == 1 and ratio < 1 - 1e-9 else share
        return (*(self.scale.show(quanta, amount) for quanta, amount in times), f"{share} %")


def _all_us(fold: Fold) -> float:
    return fold.us + fold.idle_us


_DETAILS = 3


def idle(analysis: Analysis, top: int) -> TableSection | None:
    """Causes of idle time with source lines; the smaller causes folded into one row."""
    places = _by(analysis.idle, lambda cause: (cause.cause, cause.source or ""))
    folded = top_rows([_whole(parts) for parts in places.values()], top)
    if not folded.shown:
        return None
    rows = []
    for one, numbers in zip(folded.shown, folded.each, strict=True):
        meaning = meaning_of(f"overhead.{one.cause}")
        name = f"{one.cause}: {meaning}" if meaning else one.cause
        waits = _wait_details(places[one.cause, one.source or ""], folded.scale)
        cells = (name, one.source or UNKNOWN, calls_number(one.calls), *numbers)
        rows.append(TableRow(cells, details=(*waits, *_text_of(analysis, one.source))))
    if folded.rest:
        rows.append(TableRow((f"{folded.hidden} more", "", "", *folded.rest), "rest"))
    rows.append(TableRow(("all idle time", "", "", *folded.total), "total"))
    who = "the step's threads did no work" if analysis.device.kind == "cpu" else "the device had no work"
    heads = columns("words", "cause") + columns("place", "at") + columns("number", "gaps", folded.scale.unit, "share")
    return TableSection(f"Why {who}", heads, tuple(rows))


def _by(
    causes: Sequence[IdleCause], key: Callable[[IdleCause], tuple[str, ...]]
) -> dict[tuple[str, ...], list[IdleCause]]:
    groups: dict[tuple[str, ...], list[IdleCause]] = {}
    for cause in causes:
        groups.setdefault(key(cause), []).append(cause)
    return groups


def _whole(parts: Sequence[IdleCause]) -> IdleCause:
    """The sum of these parts, as one."""
    us, share, calls = (math.fsum(getattr(part, name) for part in parts) for name in ("us", "share", "calls"))
    return replace(parts[0], us=us, share=share, calls=calls)


def _wait_details(parts: Sequence[IdleCause], scale: Scale) -> tuple[str, ...]:
    """Gives the calls, ops and loaders that the time went to.

    Most time comes first. The module is added if all of the time was in one.
    """
    named = [_whole(same) for same in _by(parts, lambda part: (part.detail or "",)).values()]
    named.sort(key=lambda part: -part.us)
    detailed = [part for part in named if part.detail]
    modules = {part.module for part in parts}
    where = modules.pop() if len(modules) == 1 else None
    if len(named) == 1:
        return tuple(filter(None, (named[0].detail, where)))
    shown = [f"{part.detail} {scale.one(part.us)}" for part in detailed[:_DETAILS]]
    more = f" and {len(detailed) - len(shown)} more" if len(detailed) > len(shown) else ""
    return tuple(filter(None, (", ".join(shown) + more, where)))


_ALLOCATIONS, _LONGEST_MODULE = 3, 48
# Less than this holds nothing back, whatever it is.
_LEAST_BYTES = 2**20


def memory(analysis: Analysis) -> TableSection | None:
    """Builds the table of memory at its peak by kind.

    Null where the recording has no memory events, or the step next to none.
    """
    use = analysis.memory
    if use is None or use.peak_bytes < _LEAST_BYTES:
        return None
    shares = percents([part.bytes / use.peak_bytes for part in use.kinds])
    rows = [
        TableRow(
            (part.kind, format_si(part.bytes, "B"), share, UNKNOWN if part.count is None else str(part.count)),
            details=() if part.reason is None else (part.reason,),
        )
        for part, share in zip(use.kinds, shares, strict=False)
    ]
    total = TableRow(("at the peak", format_si(use.peak_bytes, "B"), shares[-1], ""), "total")
    heads = columns("words", "kind") + columns("number", "bytes", "share", "allocations")
    where = "the host" if use.device is None else f"device {use.device}"
    return TableSection(f"Memory of {where} at its peak", heads, (*rows, total), tuple(_memory_notes(use)))


def _memory_notes(use: MemoryUse) -> list[str]:
    """When the peak is, what the allocator held, the largest allocations, and limits."""
    held = "" if use.reserved_bytes is None else f"; the allocator held up to {format_si(use.reserved_bytes, 'B')}"
    notes = [f"The peak is {format_us(use.peak_at_us)} after the first step began{held}."]
    if use.allocations:
        notes.append(f"Most of it: {'; '.join(map(_describe_allocations, use.allocations[:_ALLOCATIONS]))}.")
    return notes if use.reason is None else [*notes, f"{use.reason[0].upper()}{use.reason[1:]}."]


def _describe_allocations(each: LiveAllocations) -> str:
    module = "" if each.module is None else f" in {cut_place(each.module, _LONGEST_MODULE)}"
    place = at_known(each.source)
    return f"{format_si(each.bytes, 'B')} by {each.op or 'Python'}{module}{place} ({each.kind})"


def collectives(analysis: Analysis, top: int) -> TableSection | None:
    """Collectives by time; null where there are none."""
    if not analysis.collectives:
        return None
    ordered = sorted(analysis.collectives, key=lambda one: -one.us)
    scale = scale_of(max(one.us for one in ordered))
    rows = [_collective_row(one, scale) for one in ordered[:top]]
    heads = columns("name", "collective") + columns("number", scale.unit, "exposed", "transfer", "waiting", "bus speed")
    hidden = len(ordered) - len(rows)
    notes = (
        "exposed: no kernel computed meanwhile. transfer, at most: all calls at the rate of the quickest of this size; "
        "waiting: the rest, for ranks that come later or for a share of the device. bus speed: of the quickest call, "
        "as nccl-tests defines it.",
        *((f"{hidden} more kinds and sizes take less time.",) if hidden else ()),
    )
    title = "Collectives" + (f" ({len(rows)} of {len(ordered)})" if hidden else "")
    return TableSection(title, heads, tuple(rows), notes)


def _collective_row(one: CollectiveSummary, scale: Scale) -> TableRow:
    times = (scale.one(us) for us in (one.us, one.exposed_us, one.transfer_us, one.wait_us))
    speed = UNKNOWN if one.bus_bytes_per_s is None else format_si(one.bus_bytes_per_s, "B/s")
    details = (
        describe_calls(one.calls),
        "" if one.bytes is None else f"{format_si(one.bytes, 'B')} per rank",
        one.dtype,
        "" if one.group_size is None else counted(one.group_size, "rank"),
        one.reason,
    )
    return TableRow((one.name, *times, speed), group="communication", details=tuple(filter(None, details)))


_CELLS = 200
_HOST_BOUND = 0.8  # of the idle time with an empty queue: launching sooner would have filled it


def queue_sparkline(analysis: Analysis) -> Sparkline | None:
    """Gives the queue depth over the window, 0 to the highest.

    Null where no launches are on record.
    """
    queue = analysis.queue
    if queue is None or len(queue.curve) < 2:
        return None
    length_us = queue.curve[-1][0] - queue.curve[0][0]
    depths = f"from 0 to {counted(queue.highest_depth, 'launch', 'launches')}"
    caption = f"{depths} over {format_us(length_us)}; {queue_caption(queue)}"
    return Sparkline("Queue depth: launches issued, kernels not yet done", mean_depths(queue.curve, _CELLS), caption)


def queue_caption(queue: Queue) -> str:
    """The typical depth of the queue, and its conclusion for the host."""
    typical = f"the median depth is {queue.median_depth:.0f}"
    if queue.empty_idle_share is None:
        return typical
    empty = f"{typical}, and the queue was empty in {format_share(queue.empty_idle_share)} of the device's idle time"
    return f"{empty}: the host does not keep up" if queue.empty_idle_share >= _HOST_BOUND else empty


def mean_depths(curve: Sequence[tuple[float, float]], cells: int) -> tuple[float, ...]:
    """Gives the mean depth in equal parts of the curve.

    The curve holds each depth until the next point. There are ``cells`` parts.
    """
    import numpy as np  # noqa: PLC0415 - the one figure of a report that needs it

    at, depth = (np.array(column, dtype=np.float64) for column in zip(*curve, strict=True))
    edges = np.linspace(at[0], at[-1], cells + 1)
    area = np.concatenate(([0.0], np.cumsum(depth[:-1] * np.diff(at))))
    width = (at[-1] - at[0]) / cells
    if width <= 0:
        return ()
    return tuple((np.diff(np.interp(edges, at, area)) / width).tolist())


_SUMS = ("us", "share", "calls")
_KNOWN_SUMS = ("flops", "bytes_low", "bytes_high", "compute_us", "memory_us", "launch_us")
_MEANS = ("explained", "flops_per_s", "bytes_per_s")


def varying_together(kernels: Iterable[KernelSummary]) -> list[tuple[KernelSummary, int]]:
    """One entry per kernel, with the number of its shapes.

    Those that run less than once per step and share all but their shapes are one.
    """
    groups: dict[tuple[object, ...], list[KernelSummary]] = {}
    for number, row in enumerate(kernels):
        key = (row.name, row.op, row.source, row.dtype, row.bound) if row.calls < 1 - 1e-9 else (number,)
        groups.setdefault(key, []).append(row)
    return [(_together(rows), len(rows)) for rows in groups.values()]


def _together(rows: Sequence[KernelSummary]) -> KernelSummary:
    """Gives the largest of these rows with the sums of all.

    A sum of which a part is unknown is unknown.
    """
    if len(rows) == 1:
        return rows[0]
    sums: dict[str, float | None] = {name: math.fsum(getattr(row, name) for row in rows) for name in _SUMS}
    for name in _KNOWN_SUMS:
        parts = [getattr(row, name) for row in rows]
        sums[name] = None if None in parts else math.fsum(parts)
    for name in _MEANS:
        parts = [getattr(row, name) for row in rows]
        weighted = [mean * row.us for mean, row in zip(parts, rows, strict=True) if mean is not None]
        sums[name] = math.fsum(weighted) / sums["us"] if len(weighted) == len(rows) and sums["us"] else None
    largest = max(rows, key=lambda row: row.us)
    explained = sums["explained"]
    regime = largest.regime if largest.regime is None or explained is None else regime_of(explained)
    return replace(largest, **sums, regime=regime)


# Before the name of a group, in the key of its row: 'memory' alone is an account of that group.
WHOLE_GROUP = "group:"
LedgerNumbers = Callable[[Sequence[LedgerEntry]], tuple[str, str]]


def ledger(analysis: Analysis, most: int | None = None) -> TableSection:
    """Builds the table of the ledger.

    It has groups by size, their accounts beneath them (at most ``most``, the others as one), and the total.
    """
    entries = sorted((entry for entry in analysis.ledger if entry.us > 0), key=lambda entry: -entry.us)
    scale = scale_of(math.fsum(entry.us for entry in entries))
    groups = [(group, [entry for entry in entries if entry.group == group]) for group in GROUPS]
    groups.sort(key=lambda item: -math.fsum(entry.us for entry in item[1]))
    rounded = apportion_groups([[scale.quanta(entry.us) for entry in members] for _, members in groups])
    parts = {
        entry: number
        for (_, members), numbers in zip(groups, rounded, strict=True)
        for entry, number in zip(members, numbers, strict=True)
    }
    tenths = share_tenths(entries)

    def numbers(of: Sequence[LedgerEntry]) -> tuple[str, str]:
        time = scale.show(sum(parts[entry] for entry in of), math.fsum(entry.us for entry in of))
        return time, describe_share(tenths, of)

    rows = [row for group, members in groups if members for row in _group_rows(group, members, numbers, most)]
    total = TableRow(("total", "", *numbers(entries)), "total")
    heads = columns("words", "", "") + columns("number", scale.unit, "share")
    return TableSection("Where the step goes", heads, (*rows, total))


def _group_rows(group: str, members: list[LedgerEntry], numbers: LedgerNumbers, most: int | None) -> list[TableRow]:
    if len(members) == 1:
        account = members[0].account
        label = group if account == group else f"{group}: {label_of(account)}"
        return [TableRow((label, meaning_of(account), *numbers(members)), group=group, key=account)]
    head = TableRow((group, "", *numbers(members)), group=group, key=f"{WHOLE_GROUP}{group}")
    cut = len(members) if most is None or len(members) <= most else most - 1
    shown, rest = members[:cut], members[cut:]
    rows = [
        TableRow((label_of(one.account), meaning_of(one.account), *numbers([one])), "part", key=one.account)
        for one in shown
    ]
    if rest and shown:
        rows.append(TableRow((f"{len(rest)} more", "", *numbers(rest)), "part"))
    return [head, *rows]


def kernels(analysis: Analysis, top: int) -> TableSection | None:
    """Builds the table of the kernels that take the most time.

    On a CPU they are ops. Each has its floors; the others are folded into one row.
    """
    noun = "op" if analysis.device.kind == "cpu" else "kernel"
    variants = dict(varying_together(analysis.kernels))
    folded = top_rows(list(variants), top)
    if not folded.shown:
        return None
    names = short_names([row.name for row in folded.shown], _KERNEL_NAME)
    named = any(row.library for row in folded.shown)
    flops, data = (_rate_scale(folded.shown, *rate) for rate in (("flops_per_s", "FLOP/s"), ("bytes_per_s", "B/s")))
    rows = []
    for row, name, numbers in zip(folded.shown, names, folded.each, strict=True):
        rates = flops.one(row.flops_per_s), data.one(row.bytes_per_s)
        of_roof = UNKNOWN if row.explained is None else format_share(row.explained)
        cells = (
            call_words(row),
            *numbers,
            *rates,
            of_roof,
            bound_word(row),
            *([row.library or UNKNOWN] if named else []),
        )
        rows.append(TableRow(cells, group=kernel_group(row), details=_details(row, name, variants[row])))
    blank = ("",) * (4 + named)
    if folded.rest:
        rows.append(TableRow((f"{folded.hidden} more", *folded.rest, *blank), "rest"))
    rows.append(TableRow((f"all {noun}s", *folded.total, *blank), "total"))
    numbers_heads = columns("number", folded.scale.unit, "share", flops.unit, data.unit, "of roof")
    library = (TableColumn("library", "words", may_move=True),) if named else ()
    heads = columns("name", "op and shapes") + numbers_heads + columns("words", "bound") + library
    title = f"Top {noun}s by time" + (f" ({len(folded.shown)} of {len(variants)})" if folded.hidden else "")
    return TableSection(title, heads, tuple(rows), (_kernel_note(folded.shown),))


_KERNEL_NAME = 60


def call_words(row: KernelSummary) -> str:
    """Gives the op with the shapes of its inputs.

    The kernel where only a whole region or nothing is known to issue it.
    """
    if row.op is None or row.op.startswith(COMPILED_REGION):
        return row.name
    return f"{row.op.removeprefix('aten::')} {describe_shapes(row.shapes) if row.shapes else ''}".rstrip()


def _rate_scale(rows: Sequence[KernelSummary], field: str, unit: str) -> Scale:
    """The scale that gives the highest rate of a table three digits."""
    most = max((getattr(row, field) or 0.0 for row in rows), default=0.0)
    prefix, size = ("T", 1e12) if most >= _TERA else ("G", 1e9)
    digits = math.floor(math.log10(most / size)) if most > 0 else 0
    return Scale(prefix + unit, size, min(max(2 - digits, 0), 3))


_TERA = 1e13


def _kernel_note(rows: Sequence[KernelSummary]) -> str:
    floors = (
        "Rates are achieved ones: FLOPs, and bytes of which each counts once, by the time. of roof = the largest of "
        "three floors / time: what the arithmetic, the bytes and the launches take at the ceilings of the device; "
        "that floor names the bound."
    )
    unsure = "?: medium, ??: low confidence." if any(is_marked(row) for row in rows) else ""
    absent = f"{UNKNOWN}: not known." if any(row.explained is None for row in rows) else ""
    return " ".join(filter(None, (floors, unsure, absent)))


def kernel_group(row: KernelSummary) -> str:
    """The group of the ledger whose mark and colour stand beside a kernel."""
    return {"copy": "memory", "dispatch": "overhead"}.get(row.bound, row.bound)


def _details(row: KernelSummary, name: str, variants: int) -> tuple[str, ...]:
    """Gives the details of a row.

    They are the name of kernel or op that it does not lead with, its reason, calls, dtype and place.
    """
    why = ": ".join(filter(None, (row.regime and REGIMES[row.regime].words, row.reason)))
    parts = (
        "" if row.op == row.name else (row.op or "") if call_words(row) == row.name else name,
        why,
        describe_calls(row.calls),
        f"and {counted(variants - 1, 'other shape')}" if variants > 1 else "",
        row.dtype,
        row.source or row.module,
    )
    return tuple(filter(None, parts))


def ranks(analysis: Analysis, top: int) -> TableSection | None:
    """One row per rank, the slowest first where there are too many to show."""
    if not analysis.ranks:
        return None

    def of_group(rank: RankSummary, group: str) -> list[LedgerEntry]:
        return [entry for entry in rank.ledger if entry.group == group]

    shown = sorted(analysis.ranks, key=lambda rank: (-(rank.skew_us or 0.0), -rank.wall_us))[:top]
    shown.sort(key=lambda rank: rank.rank)
    scale = scale_of(max(rank.wall_us for rank in shown))
    groups = [group for group in GROUPS if any(entry.us > 0 for rank in shown for entry in of_group(rank, group))]
    rows = []
    for rank in shown:
        spent = [math.fsum(entry.us for entry in of_group(rank, group)) for group in groups]
        *parts, wall = scale.column(spent)
        rows.append(TableRow((str(rank.rank), rank.verdict, wall, scale.one(rank.skew_us), *parts)))
    hidden = len(analysis.ranks) - len(shown)
    note = (f"{counted(hidden, 'more rank')}, none later than these.",) if hidden else ()
    heads = columns("words", "rank", "bound") + columns("number", "wall", "late", *map(_short_group, groups))
    notes = ("late: how much later than the first rank it reaches collectives, on average.", *note)
    return TableSection(f"Ranks, in {scale.unit} per step", heads, tuple(rows), notes)


def critical_path(path: CriticalPath | None, most: int) -> TableSection | None:
    """Builds the table of the longest parts of the path.

    It also says how well the replay behind it reproduces the step. Null without a path.
    """
    if path is None or not path.parts:
        return None
    table = path_table(path, most)
    replayed = f"from a replay of {check_words(path.check)}"
    doubt = () if path.check.reason is None else (f"no what-if from this trace: {path.check.reason}",)
    return replace(table, notes=(*table.notes, replayed, *doubt))


def path_table(path: CriticalPath, most: int) -> TableSection:
    """The critical path as a table of its longest parts and the rest."""
    shown, rest = path.parts[:most], path.parts[most:]
    us, shares = [part.us for part in shown], [part.share for part in shown]
    if rest:
        us.append(sum(part.us for part in rest))
        shares.append(sum(part.share for part in rest))
    scale = scale_of(path.step_us)
    *numbers, total = zip(scale.column(us), percents(shares), strict=True)
    rows = [
        TableRow((part_name(part), part.what, part.source or UNKNOWN, *number))
        for part, number in zip(shown, numbers, strict=False)
    ]
    if rest:
        rows.append(TableRow((counted(len(rest), "more part"), "", "", *numbers[-1]), "rest"))
    rows.append(TableRow(("step", "", "", *total), "total"))
    heads = (*PATH_COLUMNS, *columns("number", scale.unit, "share"))
    return TableSection("Critical path", heads, tuple(rows), (PATH_NOTE,))


PATH_COLUMNS = columns("name", "part") + columns("words", "where") + columns("place", "line")
PATH_NOTE = "the chain of work that sets the time of the step: what is not on it is hidden behind it"


def part_name(part: PathPart) -> str:
    """A kernel by its essential name; everything else as it is."""
    return essential_name(part.name) if part.what == "device" else part.name


def check_words(check: ReplayCheck) -> str:
    """The replay check in words: 'error +0.01 % against the measured step; …'."""
    error = f"{100 * check.error:+.2f}"
    error = f"{error} %" if float(error) else "<0.01 %"
    words = f"{counted(check.steps, 'step')}, error {error} against the measured one"
    if check.held_share > 0:
        words += f"; {format_share(check.held_share)} of it are delays that nothing on record explains"
    return words


KIND_WORDS: Mapping[str, str] = {
    "chain": "chain compiled",
    "library-op": "the library's op",
    "layout": "channels last",
    "narrow-product": "narrow dtype",
    "padded-product": "padded sizes",
    "optimizer": "optimizer",
    "attention": "fused attention",
    "threads": "fewer threads",
}
"""Kinds of pieces by key, as people read them."""


def measured_pieces(measured: MeasuredPieces | None) -> TableSection | None:
    """Builds the table of pieces of the step that were timed alone.

    It has their times, what each saves per step, and why others have none.
    """
    if measured is None or not (measured.pieces or measured.left_out):
        return None
    pieces = sorted(measured.pieces, key=lambda piece: piece.ratio is None)
    timed = [piece for piece in pieces if piece.ratio is not None]
    scale = scale_of(max((max(map(abs, _piece_us(piece))) for piece in timed), default=0.0))
    note = (
        f"Timed alone after the program's end, on recorded sizes, in {measured.spent_s:.1f} of "
        f"{measured.budget_s:g} s: one call as it is and changed, in turns. ratio: changed / as it is, with its 95 % "
        "interval. saves: calls x (as it is - changed) per step, before the finding counts what else binds the step."
    )
    return TableSection(
        f"Pieces of the step, timed alone{f', in {scale.unit}' if timed else ''}",
        columns("words", "change") + columns("number", "calls", "as it is", "changed", "ratio", "95 %", "saves"),
        tuple(_piece_row(piece, scale) for piece in pieces),
        (note, *left_out_words(measured, len(measured.left_out))),
        TableColumn("piece", "words"),
    )


def _piece_us(piece: MeasuredPiece) -> tuple[float, float, float]:
    """Gives times of a call of the piece, as it is and changed.

    The third number is what the change saves per step.
    """
    assert piece.as_is_us is not None and piece.changed_us is not None, "a piece with a ratio has times"
    before, after = piece.as_is_us.median, piece.changed_us.median
    return before, after, piece.calls * (before - after)


def _piece_row(piece: MeasuredPiece, scale: Scale) -> TableRow:
    place = f" in {piece.module}" if piece.module is not None else ""
    place = f" {at_source(piece.source)}" if piece.source is not None else place
    what = f"{KIND_WORDS.get(piece.kind, piece.kind)}: {piece.what}{place} [{piece.finding}]"
    calls, ratio = calls_number(piece.calls), piece.ratio
    if ratio is None:
        return TableRow((piece.change, calls, *(UNKNOWN,) * 5), details=(what, f"not measured: {piece.reason}"))
    before, after, saved_us = _piece_us(piece)
    saved = f"-{scale.one(-saved_us)}" if saved_us < 0 else scale.one(saved_us)
    between = f"{_ratio_words(ratio.low)} to {_ratio_words(ratio.high)}"
    cells = (piece.change, calls, scale.one(before), scale.one(after), _ratio_words(ratio.median), between, saved)
    worst = () if piece.at_worst is None else (f"at worst {_ratio_words(piece.at_worst.median)}",)
    return TableRow(cells, details=(what, *worst))


def _ratio_words(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio >= 0.095 or not ratio else f"{ratio:.2g}"
