"""A comparison as a document: what differs besides the code, the sentence, the waterfall, then rows that sum to it."""

from dataclasses import dataclass

from bottleneck.compared import CompareSide, Comparison, CounterStep
from bottleneck.counters import COUNTERS
from bottleneck.report import comparison_rows
from bottleneck.report.comparison_numbers import rounded
from bottleneck.report.comparison_waterfall import Waterfall, waterfall
from bottleneck.report.comparison_words import condition_words, sentence, side_words, title
from bottleneck.report.layout import Column, Notes, Row, Table

TOP = 10
_MOST_MODULES = 8
WATERFALL_TITLE = "Where the change comes from"


@dataclass(frozen=True)
class ComparisonDocument:
    """The parts in reading order; all text is uncleaned. ``breaks`` are conditions that void a difference of times."""

    title: str
    breaks: tuple[str, ...]
    colours: tuple[str, ...]
    sentence: str
    facts: tuple[tuple[str, str], ...]
    waterfall: Waterfall | None
    parts: tuple[Table | Notes, ...]


def build(comparison: Comparison, top: int = TOP) -> ComparisonDocument:
    """The document of a comparison, with at most ``top`` ops."""
    parts: list[Table | Notes | None] = []
    drawn = None
    if comparison.change_us is not None and comparison.bars:
        numbers = rounded(comparison)
        drawn = waterfall(numbers)
        parts += [
            comparison_rows.rows(comparison, numbers, top),
            comparison_rows.modules(comparison, numbers, min(top, _MOST_MODULES)),
        ]
    parts += [_counters(comparison), _notes(comparison)]
    return ComparisonDocument(
        title=title(comparison),
        breaks=tuple(condition_words(each) for each in comparison.conditions if each.weight == "breaks"),
        colours=tuple(condition_words(each) for each in comparison.conditions if each.weight != "breaks"),
        sentence=sentence(comparison),
        facts=(("before", side_words(comparison.before)), ("after", side_words(comparison.after))),
        waterfall=drawn,
        parts=tuple(part for part in parts if part is not None),
    )


def _counters(comparison: Comparison) -> Table | None:
    """The counters that differ, and in a note those that are the same or known on one side only."""
    known = [(_label(each), each.before, each.after) for each in comparison.counters]
    both = [(name, before, after) for name, before, after in known if before is not None and after is not None]
    if not known:
        return None
    rows = [
        Row((name, f"{before:,}", f"{after:,}", f"{after - before:+,}"))
        for name, before, after in both
        if before != after
    ]
    same = ", ".join(f"{name} {before:,}" for name, before, after in both if before == after)
    notes = [f"The same on both sides: {same}."] if same else []
    columns = (Column("counter", "words"), *(Column(name, "number") for name in ("before", "after", "change")))
    title = "Counters that differ, per step" if rows else "Counters: none that both sides know differs"
    title = title if both else "Counters: none that both sides know"
    return Table(title, columns, tuple(rows), (*notes, *_not_compared(comparison)))


def _label(step: CounterStep) -> str:
    return COUNTERS[step.name].many if step.name in COUNTERS else step.name


def _not_compared(comparison: Comparison) -> list[str]:
    """The counters that a side does not know, those with the same reason in one sentence."""
    reasons: dict[str, list[str]] = {}
    for each in comparison.counters:
        sides = (("before", each.before, comparison.before), ("after", each.after, comparison.after))
        missing = [f"{name}: {_why(each.name, side)}" for name, value, side in sides if value is None]
        if missing:
            reasons.setdefault("; ".join(missing), []).append(_label(each))
    return [f"Not compared: {', '.join(names)}; not known {why}." for why, names in reasons.items()]


def _why(name: str, side: CompareSide) -> str:
    counts = side.counts
    if counts is None:
        return "it has no counters"
    return counts.unknown.get(name) or counts.unstable.get(name) or "no reason given"


def _notes(comparison: Comparison) -> Notes | None:
    return Notes("Notes", tuple((note,) for note in comparison.notes)) if comparison.notes else None
