"""Summarises a comparison in one sentence and notes.

They tell counters, the change of the step, its floor, and its parts.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from bottleneck.compare.conditions import DEVICE, DEVICE_NAMED
from bottleneck.compare.pieces import UNLISTED
from bottleneck.compare.sides import ComparedSide
from bottleneck.compare.time_floor import FEWEST_STEPS, describe_floor, floor_share, has_few_steps
from bottleneck.schema.accounts import ACCOUNTS, phrase_of
from bottleneck.schema.comparison import AnswerLine, Bar, ChangeRow, Comparison, Condition, CounterStep, TimeFloor
from bottleneck.schema.counters import COUNTERS, cost_rank
from bottleneck.units import counted, format_ratio, format_share, format_si, format_us

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
    """A part of the change in words, with its size and its place.

    The words read "in 24 new aten::copy_ of decoder.rotary". The action is what to try where it has grown, with its
    source line, else its module or name.
    """

    words: str
    us: float
    action: str


def change_sentence(
    sides: Sequence[ComparedSide],
    counters: Iterable[CounterStep],
    parts: Sequence[ChangePart],
    floor: TimeFloor,
    conditions: Iterable[Condition],
) -> str:
    """Writes the sentence about the change.

    Exact counters come first, then the times. ``parts`` are the parts of the change, most first.
    """
    times = _time_sentence(sides, parts, floor, [condition for condition in conditions if condition.weight == "breaks"])
    lead = _counter_lead(counters)
    return f"{lead[:1].upper()}{lead[1:]}; {times[:1].lower()}{times[1:]}" if lead else times


def change_headline(sides: Sequence[ComparedSide], floor: TimeFloor, conditions: Iterable[Condition]) -> str:
    """Writes the change of the step in a few words, with its noise.

    They are faster, slower, or no difference beyond the noise.
    """
    old, new = (side.step_us or 0.0 for side in sides)
    times = f"{format_us(old)} before, {format_us(new)} after"
    if any(condition.weight == "breaks" for condition in conditions):
        return f"Times that cannot be compared: {times}"
    if old == new or floor.is_within or not (old > 0 and new > 0):
        return f"No difference beyond the noise of {floor_share(floor)}: {times}"
    return f"{_faster_or_slower(old, new)}, noise {floor_share(floor)}: {times}"


def _faster_or_slower(old: float, new: float) -> str:
    """'Slower by 11.7 %'; 'Slower, 99.9 times as long' where that reads better."""
    word, times = ("Slower", "long") if new > old else ("Faster", "fast")
    ratio = max(old, new) / min(old, new)
    if ratio >= _AS_RATIO:
        return f"{word}, {format_ratio(ratio)} times as {times}"
    return f"{word} by {format_share(abs(new - old) / old)}"


def answer_lines(
    sides: Sequence[ComparedSide],
    counters: Sequence[CounterStep],
    parts: Sequence[ChangePart],
    floor: TimeFloor,
    conditions: Sequence[Condition],
) -> tuple[AnswerLine, ...]:
    """Writes what to do about the change, where it is, and its evidence."""
    old, new = (side.step_us or 0.0 for side in sides)
    is_same = old == new or floor.is_within
    least_us = _LEAST_PART * (new if is_same else abs(new - old))
    lead, noise = _counter_lead(counters), describe_floor(floor)
    lines = (
        AnswerLine("First", _what_to_do(sides, counters, parts, floor, conditions)),
        AnswerLine("Where", _largest(parts, least_us)),
        AnswerLine("Counts", lead),
        AnswerLine("Noise", f"{noise[:1].upper()}{noise[1:]}"),
    )
    return tuple(line for line in lines if line.text)


def _what_to_do(
    sides: Sequence[ComparedSide],
    counters: Iterable[CounterStep],
    parts: Sequence[ChangePart],
    floor: TimeFloor,
    conditions: Sequence[Condition],
) -> str:
    """Advises to keep the change, to mend a place, or to measure again."""
    old, new = (side.step_us or 0.0 for side in sides)
    breaking = [condition.what for condition in conditions if condition.weight == "breaks"]
    if DEVICE in breaking:
        return "Judge the devices by these times, not the code; to judge code, record both on one device"
    if breaking:
        return f"Neither keep nor revert by these times: record both again with the same {' and '.join(breaking)}"
    if work := _other_work(counters):
        return f"Before you keep or revert it, check that both should do the same work: {work}"
    if old == new or floor.is_within:
        return "Nothing is decided: the difference is within noise; `bottleneck gate` sees smaller differences"
    if doubts := _doubts(abs(new - old) / old if old else math.inf, floor, conditions):
        grown = next((part for part in parts if part.us > 0), None) if new > old else None
        look = f"; most grew {grown.words}, {format_us(grown.us)}" if grown else ""
        return f"Nothing is decided, as {' and '.join(doubts)}: record both again{look}"
    return "Keep the change" if new < old else _mend(parts, new)


# A difference this many times the noise of two recordings is not near it.
_NEAR_NOISE = 2.0


def _doubts(share: float, floor: TimeFloor, conditions: Iterable[Condition]) -> list[str]:
    """Lists why times that differ do not yet decide on the change."""
    is_near = floor.turns is None and share < _NEAR_NOISE * floor.share
    is_other = any(condition.what == DEVICE_NAMED for condition in conditions)
    return [
        *([f"{format_share(share)} is near the noise of {floor_share(floor)}"] if is_near else []),
        *(["the devices may differ"] if is_other else []),
    ]


def _mend(parts: Sequence[ChangePart], step_us: float) -> str:
    """Advises to mend what grew most, with the most that this can bring.

    To revert all of the change is the other way only where it saves much less than it costs.
    """
    grown, saved = [part for part in parts if part.us > 0], [part for part in parts if part.us < 0]
    if not grown:
        return "Revert the change"
    most = grown[0]
    left_us = step_us - most.us
    gain = f", at most {format_ratio(step_us / left_us)} times as fast without" if left_us > 0 else ""
    action = f"{most.action} ({format_us(most.us)} more{gain})"
    saved_us = math.fsum(-part.us for part in saved)
    if saved_us >= _WORTH_KEEPING * math.fsum(part.us for part in grown):
        return f"{action}, and keep the rest: it saves {format_us(saved_us)}, most {saved[0].words}"
    return f"{action}, or revert the change"


# A change that saves this share of what it costs is worth more than to be reverted as a whole.
_WORTH_KEEPING = 0.5


# Steps whose FLOPs differ by this factor do not do the same work.
_OTHER_WORK = 1.1


def _other_work(counters: Iterable[CounterStep]) -> str:
    """Says by which factor the arithmetic of a step differs.

    Empty where it is much the same, or not known in full.
    """
    flops = next((counter for counter in counters if counter.name == "flops"), None)
    if flops is None or not flops.before or not flops.after or flops.is_lower_bound:
        return ""
    if max(flops.before, flops.after) < _OTHER_WORK * min(flops.before, flops.after):
        return ""
    amounts = f"{_amount('flops', flops.before)} → {_amount('flops', flops.after)}"
    more, ratio = "after", flops.after / flops.before
    if ratio < 1:
        more, ratio = "before", 1 / ratio
    return f"a step {more} does {format_ratio(ratio)} times the arithmetic (FLOPs {amounts})"


def _largest(parts: Sequence[ChangePart], least_us: float) -> str:
    """Lists the largest parts of the change, rises and falls alike."""
    shown = [part for part in parts if abs(part.us) >= least_us][:_MOST_PARTS]
    return "; ".join(f"{format_us(abs(part.us))} {'more' if part.us > 0 else 'less'} {part.words}" for part in shown)


def _time_sentence(
    sides: Sequence[ComparedSide], parts: Sequence[ChangePart], floor: TimeFloor, breaking: Sequence[Condition]
) -> str:
    before, after = sides
    old, new = before.step_us or 0.0, after.step_us or 0.0
    if old == new:
        return f"The step takes {format_us(new)} on both sides.{_inside(parts, new)}"
    causes = f"{_causes(parts, new - old)}{_others(parts, new - old)}.{_besides(breaking)}"
    if any(condition.what == DEVICE for condition in breaking):
        return f"{_other_device(before, after, old, new)}{causes}"
    if floor.is_within:
        return f"{_opening(old, new)}; {describe_floor(floor)}, so the two may be equally fast.{_inside(parts, new)}"
    return f"{_opening(old, new)}, where {describe_floor(floor)}{causes}"


_MOST_COUNTERS = 3


def _counter_lead(counters: Iterable[CounterStep]) -> str:
    """Writes the lead about counters that differ.

    'syncs 4 → 5, kernel launches 303 → 311 and 2 more counters per step', empty where none differs.
    """
    differing = {
        counter.name: counter
        for counter in counters
        if None not in (counter.before, counter.after) and counter.before != counter.after
    }
    names = sorted(differing, key=cost_rank)
    shown = []
    for name in names[:_MOST_COUNTERS]:
        words = COUNTERS[name].many if name in COUNTERS else _short(name)
        shown.append(f"{words} {_amount(name, differing[name].before)} → {_amount(name, differing[name].after)}")
    if not shown:
        return ""
    more = len(names) - len(shown)
    others = f" and {counted(more, 'more counter')}" if more else ""
    return f"{', '.join(shown)}{others} per step"


# Counters of FLOPs and bytes from here on have three digits in a sentence; the table has them all.
_LARGE = 1_000_000


def _amount(name: str, number: int | None) -> str:
    if number is not None and number >= _LARGE and ("flops" in name or "bytes" in name):
        return format_si(number, "").strip()
    return f"{number:,}"


def counter_sentence(counters: Sequence[CounterStep]) -> str:
    """The sentence where a side has no times."""
    both = [
        (counter.name, counter.before, counter.after)
        for counter in counters
        if None not in (counter.before, counter.after)
    ]
    if not both:
        return "Nothing can be compared: a side has no times, and no counter is known of both."
    differing = [f"{name} {old} → {new}" for name, old, new in both if old != new]
    if not differing:
        return f"No difference in {counted(len(both), 'counter')} that both sides know; a side has no times."
    listed = ", ".join(differing[:6]) + (f" and {len(differing) - 6} more" if len(differing) > 6 else "")
    verb = "differs" if len(differing) == 1 else "differ"
    return f"{len(differing)} of {counted(len(both), 'counter')} {verb}: {listed}; a side has no times."


def find_parts(rows: Iterable[ChangeRow], idle: Iterable[Bar], *, is_on_host: bool) -> list[ChangePart]:
    """Finds the rows and waits that changed, as parts.

    Layers of one kind are together, and most change comes first. Those that are the same are left out.
    """
    groups: dict[tuple[str, str, str], list[ChangeRow]] = {}
    for row in rows:
        if row.kind != "same":
            groups.setdefault((row.kind, row.name, _numberless(row.module or "")), []).append(row)
    parts = [
        ChangePart(_row_words(group), math.fsum(row.change_us for row in group), f"Mend {_short(_row_place(group[0]))}")
        for group in groups.values()
    ]
    for bar in idle:
        if bar.change_us:
            line = f" ({bar.source})" if bar.source else ""
            words = _short(phrase_of(bar.account))
            parts.append(ChangePart(f"in {words}{line}", bar.change_us, _idle_action(bar, is_on_host=is_on_host)))
    return sorted(parts, key=lambda part: (-abs(part.us), part.words))


def _idle_action(bar: Bar, *, is_on_host: bool) -> str:
    """Words what to do about a wait: its advice, at its line."""
    account = ACCOUNTS.get(bar.account)
    advice = "" if account is None else (account.host_advice if is_on_host else None) or account.advice
    if not advice:
        return f"Mend {_short(bar.source or phrase_of(bar.account))}"
    return f"{advice[:1].upper()}{advice[1:]}{f' at {_short(bar.source)}' if bar.source else ''}"


def _row_place(row: ChangeRow) -> str:
    return row.source or row.module or row.name


def _opening(old: float, new: float) -> str:
    more = "more" if new > old else "less"
    if old and new >= _AS_RATIO * old:
        return f"The step takes {format_us(new - old)} more ({format_ratio(new / old)} times as long)"
    share = f" ({format_share(abs(new - old) / old)})" if old else ""
    return f"The step takes {format_us(abs(new - old))}{share} {more}"


def _other_device(before: ComparedSide, after: ComparedSide, old: float, new: float) -> str:
    names = [side.analysis.device.name if side.analysis else side.label for side in (before, after)]
    times = f"{format_ratio(new / old)} times as long as" if old else "longer than"
    return (
        f"On {_short(names[1])} the step takes {times} on {_short(names[0])}, {format_us(new)} against {format_us(old)}"
    )


def _causes(parts: Sequence[ChangePart], change_us: float) -> str:
    """Lists the parts that go the way of the change.

    ': 5.2 ms of it in …, 1.1 ms in …'
    """
    along = [part for part in parts if part.us * change_us > 0 and abs(part.us) >= _LEAST_PART * abs(change_us)]
    if not along:
        return ", spread over many small changes"
    shown = [f"{format_us(abs(part.us))}{' of it' if not at else ''} {part.words}" for at, part in enumerate(along)]
    return ": " + ", ".join(shown[:_MOST_PARTS])


def _others(parts: Sequence[ChangePart], change_us: float) -> str:
    """Names the largest part that goes the other way.

    '; against that …', empty where it is not worth it.
    """
    against = [part for part in parts if part.us * change_us < 0]
    if not against or math.fsum(abs(part.us) for part in against) < _LEAST_OPPOSITE * abs(change_us):
        return ""
    total = format_us(math.fsum(abs(part.us) for part in against))
    less = "less" if change_us > 0 else "more"
    return f"; against that {total} {less} elsewhere, {format_us(abs(against[0].us))} of it {against[0].words}"


def _inside(parts: Sequence[ChangePart], step_us: float) -> str:
    """Names the largest growth and the largest fall within a step.

    The step takes as long as before.
    """
    large = [part for part in parts if abs(part.us) >= _LEAST_PART * step_us]
    shown = [
        f"{format_us(abs(part.us))} {'more' if part.us > 0 else 'less'} {part.words}"
        for part in (next((p for p in large if p.us > 0), None), next((p for p in large if p.us < 0), None))
        if part is not None
    ]
    return f" Inside it: {', '.join(shown)}." if shown else ""


def _besides(breaking: Sequence[Condition]) -> str:
    """Breaking conditions other than the device, which the opening names."""
    others = [condition for condition in breaking if condition.what != DEVICE]
    if not others:
        return ""
    listed = "; ".join(
        f"{condition.what}, {_short(condition.before)} against {_short(condition.after)}" for condition in others
    )
    are_all = len(others) == len(breaking)
    return f" {'The code need not be the cause, as these differ' if are_all else 'These differ too'}: {listed}."


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


def _place(rows: Sequence[ChangeRow]) -> str:
    """Words the module and line of a change: ' of decoder.rotary (model.py:12)'.

    Layers are 'layer_*'. Empty where neither is known.
    """
    modules = {row.module or "" for row in rows}
    module = modules.pop() if len(modules) == 1 else _numberless(rows[0].module or "")
    parts = module.split(".")
    shown = ".".join(parts if len(parts) < 3 else ["…", *parts[-2:]])
    source = rows[0].source
    line = f" ({_short(source)}{', changed here' if rows[0].is_touched else ''})" if source else ""
    return (f" of {_short(shown)}" if shown else "") + line


@lru_cache(maxsize=1 << 16)
def _numberless(module: str) -> str:
    """Gives a module path without the numbers of its parts.

    By it layers of a kind are one.
    """
    return _NUMBER.sub("*", module)


def _number(calls: float) -> str:
    return f"{calls:.0f}" if float(calls).is_integer() or calls >= 10 else f"{calls:.2g}"


def _short(name: str) -> str:
    """A name of the trace, short enough for a sentence and on one line."""
    plain = "".join(character if character.isprintable() else " " for character in name[: 2 * _LONGEST_NAME])
    return plain if len(plain) <= _LONGEST_NAME else f"{plain[: _LONGEST_NAME - 1]}…"


_WORTH_A_NOTE = 0.01


def find_notes(
    before: ComparedSide, after: ComparedSide, row_share: float, rows: Sequence[ChangeRow]
) -> tuple[str, ...]:
    """One sentence each."""
    sides, notes = (before, after), []
    if before.device_name is None and after.device_name is None:
        notes.append("Neither side names its device: they may have run on different ones.")
    many = ", ".join(side.label for side in sides if side.analysis is not None and len(side.analysis.ranks) > 1)
    if many:
        notes.append(
            f"Of several ranks ({many}) the one that sets the pace is compared; name single traces for others."
        )
    if any(map(has_few_steps, sides)):
        why = f"A side has fewer than {FEWEST_STEPS} steps, too few to estimate their spread"
        notes.append(f"{why}: rows count as the same within {format_share(row_share)}.")
    if not (before.is_full and after.is_full):
        notes.append("A saved analysis lists kernels and no calls of ops, so kernels are counted on both sides.")
    unlisted_us = max((max(row.before_us, row.after_us) for row in rows if row.name == UNLISTED), default=0.0)
    if unlisted_us and unlisted_us >= _WORTH_A_NOTE * max(before.step_us or 0.0, after.step_us or 0.0):
        notes.append(f"{format_us(unlisted_us)} of the ledger's work belongs to no row.")
    return tuple(notes)


_NOT_IN_TURNS = (
    "The two were recorded one after the other, not in turns: small differences of time may be the machine's. "
    "`bottleneck gate` times them in turns."
)
_UNTOUCHED = (
    "All counters are equal, and the diff touches no line that an op or a wait here comes from: look for the cause of "
    "different times in the machine, the libraries and the data."
)


def source_notes(comparison: Comparison, *, are_recorded: bool, has_diff: bool) -> list[str]:
    """Gives notes on sides that come from sources.

    They were recorded for this comparison, or a diff of the sources separates them.
    """
    is_timed = comparison.time_floor is not None and comparison.time_floor.basis == "turns"
    notes = [_NOT_IN_TURNS] if are_recorded and not is_timed else []
    return [*notes, *([_UNTOUCHED] if has_diff and is_untouched(comparison) else [])]


def is_untouched(comparison: Comparison) -> bool:
    """Tells whether the diff touches nothing that differs.

    No counter differs and no row or wait comes from a line of the diff.
    """
    differs = any(step.before != step.after for step in comparison.counters)
    touched = [row.is_touched for row in comparison.rows] + [bar.is_touched for bar in comparison.bars]
    return not differs and not any(touched)
