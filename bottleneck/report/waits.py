"""The table of idle time: one row per cause and line, and beneath it what the time there went to."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from bottleneck.records import Analysis, IdleCause
from bottleneck.report.layout import Column, Row, Table
from bottleneck.report.numbers import UNKNOWN, Scale
from bottleneck.report.tops import top_of
from bottleneck.report.words import ACCOUNT_MEANINGS, calls_number

_DETAILS = 3


def idle(analysis: Analysis, top: int) -> Table | None:
    """Why the device waited, with source lines; the smaller causes folded into one row."""
    places = _by(analysis.idle, lambda cause: (cause.cause, cause.source or ""))
    folded = top_of([_whole(parts) for parts in places.values()], top)
    if not folded.shown:
        return None
    rows = [
        Row((*_cause(one), *numbers), details=_details(places[one.cause, one.source or ""], folded.scale))
        for one, numbers in zip(folded.shown, folded.each, strict=True)
    ]
    if folded.rest:
        rows.append(Row((f"{folded.hidden} more", "", "", *folded.rest), "rest"))
    rows.append(Row(("all idle time", "", "", *folded.total), "total"))
    who = "the step's threads did no work" if analysis.device.kind == "cpu" else "the device had no work"
    numbers = (Column(title, "number") for title in ("times", folded.scale.unit, "share"))
    return Table(f"Why {who}", (Column("cause", "words"), Column("at", "place"), *numbers), tuple(rows))


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


def _cause(cause: IdleCause) -> tuple[str, str, str]:
    meaning = ACCOUNT_MEANINGS.get(f"overhead.{cause.cause}")
    return (f"{cause.cause}: {meaning}" if meaning else cause.cause, cause.source or UNKNOWN, calls_number(cause.calls))


def _details(parts: Sequence[IdleCause], scale: Scale) -> tuple[str, ...]:
    """What the time went to, most first, and the module if all of it was in one."""
    named = [_whole(same) for same in _by(parts, lambda part: (part.detail or "",)).values()]
    named.sort(key=lambda part: -part.us)
    known = [part for part in named if part.detail]
    modules = {part.module for part in parts}
    where = modules.pop() if len(modules) == 1 else None
    if len(named) == 1:
        return tuple(text for text in (named[0].detail, where) if text)
    shown = [f"{part.detail} {scale.one(part.us)}" for part in known[:_DETAILS]]
    more = len(known) - len(shown)
    return tuple(text for text in (", ".join(shown) + (f" and {more} more" if more else ""), where) if text)
