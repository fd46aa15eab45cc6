"""Summarises a comparison in one sentence and notes: the change of the step, its largest parts, and its noise."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from bottleneck.compare.conditions import DEVICE
from bottleneck.compare.pieces import UNLISTED
from bottleneck.compare.sides import ComparedSide
from bottleneck.schema.accounts import phrase_of
from bottleneck.schema.comparison import Bar, ChangeRow, Comparison, Condition, CounterStep
from bottleneck.units import format_share, format_us

# With fewer steps the range of their times does not predict the next recording.
FEWEST_STEPS = 3
# The assumed spread of a recording with too few steps: kernel times repeat within a few percent.
ASSUMED_SPREAD = 0.05


@dataclass(frozen=True)
class Noise:
    """The expected difference between two recordings of the same code.

    ``share`` is that difference relative to the time; ``is_known`` is false if a side has too few steps to estimate it.
    ``is_within`` is true if the change of the step is no larger; None where that is not known. ``row_share`` is the
    same for a row: kernels of a device repeat within a few percent, however much the host's part of a step varies.
    """

    share: float
    is_known: bool
    is_within: bool | None
    row_share: float = ASSUMED_SPREAD


def find_noise(before: ComparedSide, after: ComparedSide) -> Noise:
    """Noise of a difference: the spreads of both medians, taken as independent (root of the sum of squares)."""
    spreads = [_spread(side) for side in (before, after)]
    known = [spread for spread in spreads if spread is not None]
    share = math.hypot(*(ASSUMED_SPREAD if spread is None else spread for spread in spreads))
    is_known = len(known) == len(spreads)
    old, new = before.step_us, after.step_us
    is_on_host = any(side.analysis is not None and side.analysis.device.kind == "cpu" for side in (before, after))
    row_share = share if is_on_host else min(share, ASSUMED_SPREAD)
    if not is_known or old is None or new is None:
        return Noise(share, is_known, None, row_share)
    return Noise(share, True, abs(new - old) <= share * max(old, new), row_share)


def _spread(side: ComparedSide) -> float | None:
    """Half of the interval of the median step as a share of it; null where there are too few steps.

    The steps are those behind the ledger: unprofiled ones where they were measured.
    """
    steps = None if side.analysis is None else side.analysis.steps
    timing = None if steps is None else steps.unprofiled_us or steps.profiled_us
    if timing is None or timing.n < FEWEST_STEPS or not 0 < timing.median < math.inf:
        return None
    half = (timing.high - timing.low) / 2 / timing.median
    return half if 0 <= half < math.inf else None


# The number of parts listed, each at least this share of the change.
_MOST_PARTS = 3
_LEAST_PART = 0.05
# Parts of the opposite sign are listed from this share of the change on.
_LEAST_OPPOSITE = 0.25
# A step this many times as long is shown as a ratio instead of a percentage.
_AS_RATIO = 3.0
_LONGEST_NAME = 60
_NUMBER = re.compile(r"(?<!\d)\d++(?=\.|$)")


@dataclass(frozen=True)
class ChangePart:
    """A part of the change in words ("24 new aten::copy_ in decoder.rotary") and its size."""

    words: str
    us: float


def change_sentence(
    sides: Sequence[ComparedSide], parts: Sequence[ChangePart], noise: Noise, conditions: Iterable[Condition]
) -> str:
    """The sentence; ``parts`` are the parts of the change, most first."""
    before, after = sides
    old, new = before.step_us or 0.0, after.step_us or 0.0
    breaking = [condition for condition in conditions if condition.weight == "breaks"]
    is_other_device = any(condition.what == DEVICE for condition in breaking)
    if old == new:
        return f"The step takes {format_us(new)} on both sides.{_inside(parts, new)}"
    if noise.is_within and not is_other_device:
        return (
            f"The step takes as long as before, {format_us(new)} against {format_us(old)}: "
            f"differences below {format_share(noise.share)} are within the spread of their steps.{_inside(parts, new)}"
        )
    causes = _causes(parts, new - old)
    opening = _other_device(before, after, old, new) if is_other_device else _opening(old, new)
    return f"{opening}{causes}{_others(parts, new - old)}.{_besides(breaking) if breaking else _doubt(noise)}"


def counter_sentence(counters: Sequence[CounterStep]) -> str:
    """The sentence where a side has no times."""
    both = [(each.name, each.before, each.after) for each in counters if None not in (each.before, each.after)]
    if not both:
        return "Nothing can be compared: a side has no times, and no counter is known of both."
    differing = [f"{name} {old} -> {new}" for name, old, new in both if old != new]
    if not differing:
        return f"All {len(both)} counters that both sides know are equal; a side has no times."
    listed = ", ".join(differing[:6]) + (f" and {len(differing) - 6} more" if len(differing) > 6 else "")
    verb = "differs" if len(differing) == 1 else "differ"
    return f"{len(differing)} of {len(both)} counters {verb}: {listed}; a side has no times."


def find_parts(rows: Iterable[ChangeRow], idle: Iterable[Bar]) -> list[ChangePart]:
    """Rows and waits as parts, layers of one kind together, most change first; those that are the same are left out."""
    groups: dict[tuple[str, str, str], list[ChangeRow]] = {}
    for row in rows:
        if row.kind != "same":
            groups.setdefault((row.kind, row.name, _numberless(row.module or "")), []).append(row)
    parts = [ChangePart(_row_words(group), math.fsum(row.change_us for row in group)) for group in groups.values()]
    parts += [ChangePart(_wait_words(bar), bar.change_us) for bar in idle if bar.change_us]
    return sorted(parts, key=lambda part: (-abs(part.us), part.words))


def _opening(old: float, new: float) -> str:
    more = "more" if new > old else "less"
    share = format_share(abs(new - old) / old) if old else ""
    ratio = f"{new / old:.3g}x as long" if old and new >= _AS_RATIO * old else share
    return f"The step takes {format_us(abs(new - old))}{f' ({ratio})' if ratio else ''} {more}"


def _other_device(before: ComparedSide, after: ComparedSide, old: float, new: float) -> str:
    names = [side.analysis.device.name if side.analysis else side.label for side in (before, after)]
    times = f"{new / old:.2f}x as long as" if old else "longer than"
    return (
        f"On {_short(names[1])} the step takes {times} on {_short(names[0])}, {format_us(new)} against {format_us(old)}"
    )


def _causes(parts: Sequence[ChangePart], change_us: float) -> str:
    """': 5.2 ms of it in …, 1.1 ms in …'; the parts that go the way of the change."""
    along = [part for part in parts if part.us * change_us > 0 and abs(part.us) >= _LEAST_PART * abs(change_us)]
    if not along:
        return ", spread over many small changes"
    shown = [f"{format_us(abs(part.us))}{' of it' if not at else ''} {part.words}" for at, part in enumerate(along)]
    return ": " + ", ".join(shown[:_MOST_PARTS])


def _others(parts: Sequence[ChangePart], change_us: float) -> str:
    """'; against that …': the largest part that goes the other way, where it is worth it."""
    against = [part for part in parts if part.us * change_us < 0]
    if not against or math.fsum(abs(part.us) for part in against) < _LEAST_OPPOSITE * abs(change_us):
        return ""
    total = format_us(math.fsum(abs(part.us) for part in against))
    less = "less" if change_us > 0 else "more"
    return f"; against that {total} {less} elsewhere, {format_us(abs(against[0].us))} of it {against[0].words}"


def _inside(parts: Sequence[ChangePart], step_us: float) -> str:
    """The largest growth and the largest fall within a step that takes as long as before."""
    large = [part for part in parts if abs(part.us) >= _LEAST_PART * step_us]
    shown = [
        f"{format_us(abs(part.us))} {'more' if part.us > 0 else 'less'} {part.words}"
        for part in (next((p for p in large if p.us > 0), None), next((p for p in large if p.us < 0), None))
        if part is not None
    ]
    return f" Inside it: {', '.join(shown)}." if shown else ""


def _besides(breaking: Sequence[Condition]) -> str:
    """Breaking conditions other than the device, which the opening names."""
    differing = [
        f"{each.what}, {_short(each.before)} against {_short(each.after)}" for each in breaking if each.what != DEVICE
    ]
    if not differing:
        return ""
    opening = "The code need not be the cause, as these" if len(differing) == len(breaking) else "These"
    return f" {opening} differ{'' if len(differing) == len(breaking) else ' too'}: {'; '.join(differing)}."


def _doubt(noise: Noise) -> str:
    if not noise.is_known:
        return " How much the steps themselves vary is not known: a side has too few of them."
    return f" Differences below {format_share(noise.share)} are within the spread of their steps."


def _row_words(rows: Sequence[ChangeRow]) -> str:
    first, place = rows[0], _place(rows)
    is_pooled = first.family is not None and first.name.startswith(f"{first.family}: ")
    name = f"{first.family} kernels" if is_pooled else _short(first.name)
    before, after = (math.fsum(calls) for calls in ([r.calls_before for r in rows], [r.calls_after for r in rows]))
    if first.kind == "new":
        return f"in {_number(after)} new {name}{place}" if after else f"in {name}{place}"
    if first.kind == "gone":
        return f"in {_number(before)} {name}{place} that {'is' if before == 1 else 'are'} gone"
    if first.kind in {"more", "fewer"}:
        return f"in {_number(abs(after - before))} {first.kind} {name}{place}"
    return f"in {first.kind} {name}{place}"


def _wait_words(bar: Bar) -> str:
    words = f"in {_short(phrase_of(bar.account))}"
    return f"{words} ({bar.source})" if bar.source else words


def _place(rows: Sequence[ChangeRow]) -> str:
    """' in decoder.rotary', layers as 'layer_*'; empty where no module is known."""
    modules = {row.module or "" for row in rows}
    module = modules.pop() if len(modules) == 1 else _numberless(rows[0].module or "")
    parts = module.split(".")
    shown = ".".join(parts if len(parts) < 3 else ["…", *parts[-2:]])
    source = rows[0].source
    line = f" ({_short(source)}{', changed here' if rows[0].is_touched else ''})" if source else ""
    return (f" of {_short(shown)}" if shown else "") + line


@lru_cache(maxsize=1 << 16)
def _numberless(module: str) -> str:
    """A module path without the numbers of its parts, by which layers of a kind are one."""
    return _NUMBER.sub("*", module)


def _number(calls: float) -> str:
    return f"{calls:.0f}" if float(calls).is_integer() or calls >= 10 else f"{calls:.2g}"


def _short(name: str) -> str:
    """A name of the trace, short enough for a sentence and on one line."""
    plain = "".join(character if character.isprintable() else " " for character in name[: 2 * _LONGEST_NAME])
    return plain if len(plain) <= _LONGEST_NAME else f"{plain[: _LONGEST_NAME - 1]}…"


_WORTH_A_NOTE = 0.01


def find_notes(before: ComparedSide, after: ComparedSide, noise: Noise, rows: Sequence[ChangeRow]) -> tuple[str, ...]:
    """One sentence each."""
    return (
        *_of_devices(before, after),
        *_of_ranks(before, after),
        *_of_noise(noise),
        *_of_calls(before, after),
        *_of_work(before, after, rows),
    )


def _of_devices(before: ComparedSide, after: ComparedSide) -> list[str]:
    if before.device_name is not None or after.device_name is not None:
        return []
    return ["Neither side names its device: they may have run on different ones."]


def _of_ranks(before: ComparedSide, after: ComparedSide) -> list[str]:
    many = [side.label for side in (before, after) if side.analysis is not None and len(side.analysis.ranks) > 1]
    if not many:
        return []
    return [
        f"Of several ranks ({', '.join(many)}) the one that sets the pace is compared; name single traces for others."
    ]


def _of_noise(noise: Noise) -> list[str]:
    if noise.is_known:
        return []
    return [
        f"A side has fewer than {FEWEST_STEPS} steps, too few to estimate their spread: "
        f"rows count as the same within {format_share(ASSUMED_SPREAD)}."
    ]


def _of_calls(before: ComparedSide, after: ComparedSide) -> list[str]:
    if before.is_full and after.is_full:
        return []
    return ["A saved analysis lists kernels and no calls of ops, so kernels are counted on both sides."]


def _of_work(before: ComparedSide, after: ComparedSide, rows: Sequence[ChangeRow]) -> list[str]:
    unlisted = [row for row in rows if row.name == UNLISTED]
    us = max((max(row.before_us, row.after_us) for row in unlisted), default=0.0)
    if us < _WORTH_A_NOTE * max(before.step_us or 0.0, after.step_us or 0.0) or not us:
        return []
    return [f"{format_us(us)} of the ledger's work belongs to no row."]


_NOT_IN_TURNS = (
    "The two were recorded one after the other, not in turns: small differences of time may be the machine's. "
    "`bottleneck gate` times them in turns."
)
_UNTOUCHED = (
    "All counters are equal, and the diff touches no line that an op or a wait here comes from: look for the cause of "
    "different times in the machine, the libraries and the data."
)


def source_notes(comparison: Comparison, *, are_recorded: bool, has_diff: bool) -> list[str]:
    """Notes on sides that were recorded from sources for this comparison, or that a diff of the sources separates."""
    notes = [_NOT_IN_TURNS] if are_recorded else []
    return [*notes, *([_UNTOUCHED] if has_diff and is_untouched(comparison) else [])]


def is_untouched(comparison: Comparison) -> bool:
    """True if no counter differs and no row or wait comes from a line of the diff."""
    differs = any(step.before != step.after for step in comparison.counters)
    touched = [row.is_touched for row in comparison.rows] + [bar.is_touched for bar in comparison.bars]
    return not differs and not any(touched)
