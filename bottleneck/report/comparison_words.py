"""What a comparison is called and said to be: its sides, what differs besides the code, and the sentence."""

from collections.abc import Mapping

from bottleneck.compared import ChangeRow, CompareSide, Comparison, Condition
from bottleneck.report.facts import headline
from bottleneck.report.words import calls_number, shapes_words
from bottleneck.units import format_share, format_us

_KINDS: Mapping[str, str] = {"more": "more calls", "fewer": "fewer calls", "same": "as before"}
# How a partner was found is told only where it is less than certain.
_MATCHES: Mapping[str, str] = {"op": "matched by its name alone", "kernel family": "matched by kernel family"}
# From here on a factor reads better than percent.
_TIMES_FROM = 3.0
CHANGED_HERE = "changed here"


def title(comparison: Comparison) -> str:
    """'main → HEAD'."""
    return f"{comparison.before.label} → {comparison.after.label}"


def condition_words(condition: Condition) -> str:
    """'device: H100 → MI300X; times say nothing of the code'."""
    told = condition.what
    if condition.before or condition.after:
        told += f": {condition.before or 'none'} → {condition.after or 'none'}"
    return f"{told}; {condition.message}" if condition.message else told


def sentence(comparison: Comparison) -> str:
    """The comparison's own sentence, or what the step took and takes."""
    if comparison.sentence:
        return comparison.sentence
    before, after = comparison.before.step_us, comparison.after.step_us
    if before is None or after is None:
        return f"Only counters can be compared, for a side has no times: {_count_differing(comparison)}."
    if before == after:
        return f"The step takes {format_us(after)} on both sides."
    return f"The step takes {format_us(after)} instead of {format_us(before)}{percent(before, after)}."


def _count_differing(comparison: Comparison) -> str:
    """'2 of 14 differ'."""
    both = [each for each in comparison.counters if each.before is not None and each.after is not None]
    differing = sum(each.before != each.after for each in both)
    return f"{differing or 'none'} of {len(both)} differ{'s' if differing < 2 else ''}"


def percent(before: float, after: float) -> str:
    """' (+12.3 %)', ' (4.0 times as long)'; empty where there is nothing to be a share of."""
    if not before or before == after:
        return ""
    if after > _TIMES_FROM * before:
        return f" ({after / before:,.{0 if after > 100 * before else 1}f} times as long)"
    share = after / before - 1
    return f" ({'-' if share < 0 else '+'}{format_share(abs(share))})"


def side_words(side: CompareSide) -> str:
    """'mlp, 826 us per step, overhead-bound (82.1 %), AMD EPYC, sample_traces/mlp'."""
    parts = [
        "counters only" if side.step_us is None else f"{format_us(side.step_us)} per step",
        "" if side.verdict is None else f"{headline(side.verdict)} ({format_share(side.verdict.share)})",
        side.device,
        side.path if not side.path.endswith(side.label) and not side.label.startswith(side.path) else "",
    ]
    return ", ".join(part for part in (side.label, *parts) if part)


def calls_words(row: ChangeRow) -> str:
    """'12 → 24'; one number where both are the same."""
    before, after = calls_number(row.calls_before), calls_number(row.calls_after)
    if row.calls_before == 0 or row.calls_after == 0:
        before, after = (
            "0" if not calls else text for calls, text in ((row.calls_before, before), (row.calls_after, after))
        )
    return before if before == after else f"{before} → {after}"


def row_details(row: ChangeRow, modules: int = 1) -> tuple[str, ...]:
    """Kind, module, shapes, source line and how it was matched, those that are known."""
    parts = (
        _KINDS.get(row.kind, row.kind),
        f"in {modules} modules" if modules > 1 else "",
        row.module or "",
        # Shapes of both sides stand beside one another where they differ.
        " → ".join(map(_shapes, row.shapes.split("->"))) if row.shapes else "",
        *source_details(row.source, is_touched=row.is_touched),
        _MATCHES.get(row.matched_by, ""),
    )
    return tuple(part for part in parts if part)


def _shapes(text: str) -> str:
    """Shapes as everywhere; of a list that was cut off those that are whole."""
    if text.endswith("…") and text.startswith("[[") and "]" in text:
        text = text[: text.rindex("]") + 1] + "]"
    return shapes_words(text)


def source_details(source: str | None, *, is_touched: bool | None) -> tuple[str, ...]:
    """The line, marked where the diff between the refs touches it; nothing where it is not known."""
    return (f"{source} ({CHANGED_HERE})" if is_touched else source,) if source else ()
