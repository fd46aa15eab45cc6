"""The tables of a report: ledger, kernels, idle causes and ranks, rounded so that they re-add to their totals."""

import math
from collections.abc import Sequence

from bottleneck.records import GROUPS, Analysis, IdleCause, KernelSummary, LedgerEntry
from bottleneck.report.layout import Column, Row, Table
from bottleneck.report.numbers import UNKNOWN, Scale, apportion, percents, scale_of
from bottleneck.report.words import ACCOUNT_LABELS, ACCOUNT_MEANINGS, bound_words, calls_words
from bottleneck.units import format_share


def ledger(analysis: Analysis) -> Table:
    """Where the step goes: groups by size, their accounts beneath them, and the total."""
    entries = sorted((entry for entry in analysis.ledger if entry.us > 0), key=lambda entry: -entry.us)
    scale = scale_of(math.fsum(entry.us for entry in entries))
    parts = dict(zip(entries, apportion([scale.quanta(entry.us) for entry in entries]), strict=True))
    tenths = dict(zip(entries, apportion([entry.share * 1000 for entry in entries]), strict=True))
    groups = [(group, [entry for entry in entries if entry.group == group]) for group in GROUPS]
    groups.sort(key=lambda item: -math.fsum(entry.us for entry in item[1]))
    rows = [row for group, members in groups if members for row in _group_rows(group, members, (scale, parts, tenths))]
    total = Row(("total", "", *_numbers(entries, (scale, parts, tenths))), "total")
    return Table(
        "Where the step goes",
        (Column("", "words"), Column("", "words"), Column(scale.unit, "number"), Column("share", "number")),
        (*rows, total),
    )


Rounded = tuple[Scale, dict[LedgerEntry, int], dict[LedgerEntry, int]]


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
    rows = sorted(analysis.kernels, key=lambda row: -row.us)
    if not rows:
        return None
    noun = "ops" if analysis.device.kind == "cpu" else "kernels"
    shown, rest = rows[:top], rows[top:]
    folded = [*(row.us for row in shown), *([math.fsum(row.us for row in rest)] if rest else [])]
    shares = [*(row.share for row in shown), *([math.fsum(row.share for row in rest)] if rest else [])]
    scale = scale_of(math.fsum(folded))
    times, shares_shown = scale.column(folded), percents(shares)
    body = [
        Row((row.name, time, share, *_floors(row, scale)), group=_group(row), details=_details(row))
        for row, time, share in zip(shown, times, shares_shown, strict=False)
    ]
    if rest:
        more = f"{len(rest)} more"
        body.append(Row((more, times[len(shown)], shares_shown[len(shown)], "", "", "", ""), "rest"))
    body.append(Row((f"all {noun}", times[-1], shares_shown[-1], "", "", "", ""), "total"))
    count = f"{len(shown)} of {len(rows)} {noun}" if rest else f"{len(rows)} {noun}"
    return Table(
        f"Top {noun}: {count} by time",
        (
            Column(noun.removesuffix("s"), "name"),
            Column(scale.unit, "number"),
            Column("share", "number"),
            Column("compute", "number"),
            Column("memory", "number"),
            Column("launch", "number"),
            Column("explained", "number"),
        ),
        tuple(body),
        (
            f"compute, memory, launch: floors in {scale.unit}, the least time that the arithmetic, the bytes and the "
            f"launches could take. explained: largest floor / time. share: of the step. {UNKNOWN}: not known.",
        ),
    )


def _floors(row: KernelSummary, scale: Scale) -> tuple[str, str, str, str]:
    explained = UNKNOWN if row.explained is None else format_share(row.explained)
    return scale.one(row.compute_us), scale.one(row.memory_us), scale.one(row.launch_us), explained


def _group(row: KernelSummary) -> str:
    return {"copy": "memory", "dispatch": "overhead"}.get(row.bound, row.bound)


def _details(row: KernelSummary) -> tuple[str, ...]:
    shapes = f" {row.shapes}" if row.shapes else ""
    op = f"{row.op}{shapes}" if row.op and row.op != row.name else shapes.strip()
    parts = (bound_words(row), calls_words(row.calls), op, row.dtype or "", row.source or row.module or "")
    return tuple(part for part in parts if part)


def idle(analysis: Analysis, top: int) -> Table | None:
    """Why the device waited, with source lines; the smaller causes folded into one row."""
    causes = sorted((cause for cause in analysis.idle if cause.us > 0), key=lambda cause: -cause.us)
    if not causes:
        return None
    shown, rest = causes[:top], causes[top:]
    us = [cause.us for cause in shown] + ([math.fsum(cause.us for cause in rest)] if rest else [])
    shares = [cause.share for cause in shown] + ([math.fsum(cause.share for cause in rest)] if rest else [])
    scale = scale_of(math.fsum(us))
    times, shares_shown = scale.column(us), percents(shares)
    rows = [Row((*_cause(cause), *numbers)) for cause, *numbers in zip(shown, times, shares_shown, strict=False)]
    if rest:
        rows.append(Row((f"{len(rest)} more", "", "", times[len(shown)], shares_shown[len(shown)]), "rest"))
    rows.append(Row(("all idle time", "", "", times[-1], shares_shown[-1]), "total"))
    who = "the step's threads did no work" if analysis.device.kind == "cpu" else "the device had no work"
    return Table(
        f"Why {who}",
        (
            Column("cause", "words"),
            Column("at", "place"),
            Column("times", "number"),
            Column(scale.unit, "number"),
            Column("share", "number"),
        ),
        tuple(rows),
    )


def _cause(cause: IdleCause) -> tuple[str, str, str]:
    meaning = ACCOUNT_MEANINGS.get(f"overhead.{cause.cause}")
    return (f"{cause.cause}: {meaning}" if meaning else cause.cause, cause.source or UNKNOWN, calls_number(cause.calls))


def calls_number(calls: float) -> str:
    """How often per step, without decimals that say nothing."""
    return f"{calls:.0f}" if calls == round(calls) else f"{calls:.1f}" if calls >= 0.1 else "<0.1"


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
