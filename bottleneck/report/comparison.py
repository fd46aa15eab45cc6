"""A comparison as a document: what differs besides the code, the sentence, the waterfall, then rows that sum to it."""

from dataclasses import dataclass

from bottleneck.compared import CompareSide, Comparison, CounterStep
from bottleneck.counters import COUNTERS
from bottleneck.report import comparison_rows
from bottleneck.report.comparison_numbers import rounded
from bottleneck.report.comparison_waterfall import Waterfall, waterfall
from bottleneck.report.comparison_words import condition_words, sentence, side_words, title
from bottleneck.report.layout import Column, Notes, Row, Table
from bottleneck.report.numbers import UNKNOWN

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
    both = [each for each in comparison.counters if each.before is not None and each.after is not None]
    differing = [each for each in both if each.before != each.after]
    if not comparison.counters:
        return None
    same = [each for each in both if each.before == each.after]
    notes = (
        [f"The same on both sides: {', '.join(f'{_label(each)} {each.before:,}' for each in same)}."] if same else []
    )
    notes += _not_compared(comparison)
    columns = (Column("counter", "words"), *(Column(name, "number") for name in ("before", "after", "change")))
    title = "Counters that differ, per step" if differing else "Counters: none that both sides know differs"
    return Table(title, columns, tuple(map(_counter_row, differing)), tuple(notes))


def _counter_row(step: CounterStep) -> Row:
    before, after = step.before, step.after
    if before is None or after is None:
        return Row((_label(step), *(UNKNOWN if each is None else f"{each:,}" for each in (before, after)), UNKNOWN))
    return Row((_label(step), f"{before:,}", f"{after:,}", f"{after - before:+,}"))


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
