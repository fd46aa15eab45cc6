"""The tables of a report: ledger, kernels and ranks, rounded so that they re-add to their totals."""

import math
from collections.abc import Callable, Sequence

from bottleneck.records import GROUPS, Analysis, KernelSummary, LedgerEntry
from bottleneck.report.layout import Column, Row, Table
from bottleneck.report.numbers import UNKNOWN, Scale, apportion_groups, scale_of
from bottleneck.report.tops import top_of
from bottleneck.report.variants import varying_together
from bottleneck.report.words import (
    ACCOUNT_LABELS,
    ACCOUNT_MEANINGS,
    bound_words,
    calls_words,
    is_marked,
    shapes_words,
)
from bottleneck.units import format_share

Rounded = tuple[Scale, dict[LedgerEntry, int], dict[LedgerEntry, int]]


def ledger(analysis: Analysis) -> Table:
    """Where the step goes: groups by size, their accounts beneath them, and the total."""
    entries = sorted((entry for entry in analysis.ledger if entry.us > 0), key=lambda entry: -entry.us)
    scale = scale_of(math.fsum(entry.us for entry in entries))
    groups = [(group, [entry for entry in entries if entry.group == group]) for group in GROUPS]
    groups.sort(key=lambda item: -math.fsum(entry.us for entry in item[1]))
    parts = _rounded(groups, lambda entry: scale.quanta(entry.us))
    tenths = _rounded(groups, lambda entry: entry.share * 1000)
    rows = [row for group, members in groups if members for row in _group_rows(group, members, (scale, parts, tenths))]
    total = Row(("total", "", *_numbers(entries, (scale, parts, tenths))), "total")
    return Table(
        "Where the step goes",
        (Column("", "words"), Column("", "words"), Column(scale.unit, "number"), Column("share", "number")),
        (*rows, total),
    )


def _rounded(
    groups: Sequence[tuple[str, list[LedgerEntry]]], value: Callable[[LedgerEntry], float]
) -> dict[LedgerEntry, int]:
    rounded = apportion_groups([[value(entry) for entry in members] for _, members in groups])
    return {
        entry: number
        for (_, members), numbers in zip(groups, rounded, strict=True)
        for entry, number in zip(members, numbers, strict=True)
    }


def _group_rows(group: str, members: list[LedgerEntry], rounded: Rounded) -> list[Row]:
    if len(members) == 1:
        account = members[0].account
        label = group if account == group else f"{group}: {_label(account)}"
        return [Row((label, ACCOUNT_MEANINGS.get(account, ""), *_numbers(members, rounded)), group=group)]
    head = Row((group, "", *_numbers(members, rounded)), group=group)
    return [head, *(Row((_label(one.account), _meaning(one), *_numbers([one], rounded)), "part") for one in members)]


def _label(account: str) -> str:
    return ACCOUNT_LABELS.get(account, account.partition(".")[2] or account)


def _meaning(entry: LedgerEntry) -> str:
    return ACCOUNT_MEANINGS.get(entry.account, "")


def _numbers(entries: Sequence[LedgerEntry], rounded: Rounded) -> tuple[str, str]:
    scale, parts, tenths = rounded
    us, share = math.fsum(entry.us for entry in entries), math.fsum(entry.share for entry in entries)
    time = scale.show(sum(parts[entry] for entry in entries), us)
    count = sum(tenths[entry] for entry in entries)
    return time, format_share(share if count in {0, 1000} else count / 1000)


def kernels(analysis: Analysis, top: int) -> Table | None:
    """The kernels (CPU: ops) that take the most time, with their floors; the others folded into one row."""
    noun = "op" if analysis.device.kind == "cpu" else "kernel"
    variants = {variant.kernel: variant.shapes for variant in varying_together(analysis.kernels)}
    folded = top_of(list(variants), top)
    if not folded.shown:
        return None
    rows = [
        Row((row.name, *numbers, *_floors(row, folded.scale)), group=_group(row), details=_details(row, variants[row]))
        for row, numbers in zip(folded.shown, folded.each, strict=True)
    ]
    blank = ("",) * 4
    if folded.rest:
        rows.append(Row((f"{folded.hidden} more", *folded.rest, *blank), "rest"))
    rows.append(Row((f"all {noun}s", *folded.total, *blank), "total"))
    titles = (folded.scale.unit, "share", "compute", "memory", "launch", "explained")
    return Table(
        f"Top {noun}s by time" + (f" ({len(folded.shown)} of {len(variants)})" if folded.hidden else ""),
        (Column(noun, "name"), *(Column(title, "number") for title in titles)),
        tuple(rows),
        _kernel_notes(folded.shown, folded.scale),
    )


def _kernel_notes(rows: Sequence[KernelSummary], scale: Scale) -> tuple[str, ...]:
    floors = (
        f"compute, memory and launch are floors in {scale.unit}: the least time that the arithmetic, the bytes and the "
        "launches could take. The largest floor names the bound; explained = largest floor / time."
    )
    unsure = "'likely' and 'perhaps': medium and low confidence." if any(is_marked(row) for row in rows) else ""
    absent = f"{UNKNOWN}: not known." if any(row.explained is None for row in rows) else ""
    return (" ".join(part for part in (floors, unsure, absent) if part),)


def _floors(row: KernelSummary, scale: Scale) -> tuple[str, str, str, str]:
    explained = UNKNOWN if row.explained is None else format_share(row.explained)
    return scale.one(row.compute_us), scale.one(row.memory_us), scale.one(row.launch_us), explained


def _group(row: KernelSummary) -> str:
    return {"copy": "memory", "dispatch": "overhead"}.get(row.bound, row.bound)


def _details(row: KernelSummary, variants: int) -> tuple[str, ...]:
    shapes = shapes_words(row.shapes) if row.shapes else ""
    shapes += f" and {variants - 1} other shapes" if shapes and variants > 1 else ""
    op = row.op if row.op and row.op != row.name else ""
    parts = (
        bound_words(row),
        calls_words(row.calls),
        f"{op}({shapes})" if op and shapes else op or shapes,
        row.dtype or "",
        row.source or row.module or "",
    )
    return tuple(part for part in parts if part)


def ranks(analysis: Analysis, top: int) -> Table | None:
    """One row per rank, the slowest first where there are too many to show."""
    if not analysis.ranks:
        return None
    shown = sorted(analysis.ranks, key=lambda rank: (-(rank.skew_us or 0.0), -rank.wall_us))[:top]
    shown.sort(key=lambda rank: rank.rank)
    scale = scale_of(max(rank.wall_us for rank in shown))
    rows = []
    for rank in shown:
        groups = [math.fsum(entry.us for entry in rank.ledger if entry.group == group) for group in GROUPS]
        rows.append(Row((str(rank.rank), rank.verdict, *scale.column(groups), scale.one(rank.skew_us))))
    hidden = len(analysis.ranks) - len(shown)
    note = (f"{hidden} more ranks, none later than these.",) if hidden else ()
    heads = ("compute", "memory", "overhead", "comm.", "unknown", "wall", "late")
    return Table(
        f"Ranks, in {scale.unit} per step",
        (Column("rank", "words"), Column("bound", "words"), *(Column(head, "number") for head in heads)),
        tuple(rows),
        ("late: how much later than the first rank it reaches collectives, on average.", *note),
    )
