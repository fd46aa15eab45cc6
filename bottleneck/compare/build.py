"""Builds the comparison of two sides.

It has matched work as rows, ledger accounts as bars, counters, and their summary.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from bottleneck import __version__
from bottleneck.compare.change_summary import (
    answer_lines,
    change_headline,
    change_sentence,
    counter_sentence,
    find_notes,
    find_parts,
)
from bottleneck.compare.conditions import find_conditions
from bottleneck.compare.matching import WorkMatch, match
from bottleneck.compare.pieces import BUSY_ACCOUNTS, DISPATCH, Piece, common_shapes, find_work
from bottleneck.compare.sides import ComparedSide, Diff, Touched, clean_us, describe_side
from bottleneck.compare.time_floor import find_floor, row_floor
from bottleneck.schema.comparison import Bar, ChangeKind, ChangeRow, Comparison, CounterStep, MatchedBy
from bottleneck.schema.counters import COUNTERS
from bottleneck.schema.gate_result import TimeResult

# Names of C++ kernels reach kilobytes; a row that pools several shows the beginning of each.
_LONGEST_NAME = 80
# Kernels of these families do no arithmetic that is counted.
_WITHOUT_FLOPS = ("copy", "fill", "collective")
_LEAST_LOST = 0.01
# The part of a bar's change that a line must make to be named.
_MOST_OF_IT = 0.5


def compare(
    before: ComparedSide, after: ComparedSide, touched: Touched | None = None, timed: TimeResult | None = None
) -> Comparison:
    """Compares two sides into changes that add up to the step's.

    It has counters alone where a side has no times.

    ``touched`` are the lines that the diff between the sides changes, by file; rows that name one are marked.
    ``timed`` are the turns that both sides took, where they did.
    """
    floor = find_floor(before, after, timed)
    if floor is None:
        return _compare_counters(before, after)
    diff, row_share = Diff(touched), row_floor(before, after)
    in_full = before.is_full and after.is_full
    matches = match(find_work(before, in_full), find_work(after, in_full))
    rows = _sorted(_row(pair, row_share, diff) for pair in matches)
    bars = find_bars(before, after, diff)
    idle = tuple(bar for bar in bars if bar.account not in BUSY_ACCOUNTS)
    conditions, counters = find_conditions(before, after, matches), _counters(before, after)
    is_on_host = after.analysis is not None and after.analysis.device.kind == "cpu"
    parts = find_parts(rows, idle, is_on_host=is_on_host)
    return Comparison(
        describe_side(before),
        describe_side(after),
        conditions=conditions,
        bars=bars,
        rows=rows,
        modules=fold_modules(rows, row_share),
        idle=idle,
        counters=counters,
        time_floor=floor,
        notes=find_notes(before, after, row_share, rows),
        sentence=change_sentence((before, after), counters, parts, floor, conditions),
        headline=change_headline((before, after), floor, conditions),
        answer=answer_lines((before, after), counters, parts, floor, conditions),
        version=__version__,
    )


def _compare_counters(before: ComparedSide, after: ComparedSide) -> Comparison:
    counters = _counters(before, after)
    return Comparison(
        describe_side(before),
        describe_side(after),
        conditions=find_conditions(before, after, ()),
        counters=counters,
        sentence=counter_sentence(counters),
        version=__version__,
    )


def _counters(before: ComparedSide, after: ComparedSide) -> tuple[CounterStep, ...]:
    """All counters that a side knows, in the order of their declaration."""
    old = {} if before.counts is None else before.counts.values
    new = {} if after.counts is None else after.counts.values
    names = [*COUNTERS, *sorted({*old, *new} - {*COUNTERS})]
    lacks = any(_has_unmodelled_work(side) for side in (before, after))
    return tuple(
        CounterStep(name, old.get(name), new.get(name), is_lower_bound=lacks and name == "flops")
        for name in names
        if name in old or name in new
    )


def _has_unmodelled_work(side: ComparedSide) -> bool:
    """Tells whether kernels of unknown FLOPs take 1 % of the step.

    Only kernels that compute count.
    """
    kernels = () if side.analysis is None else side.analysis.kernels
    unmodelled = (row for row in kernels if row.flops is None and row.bound != DISPATCH)
    lost_us = math.fsum(row.us for row in unmodelled if row.family not in _WITHOUT_FLOPS)
    return lost_us >= _LEAST_LOST * (side.step_us or math.inf)


class Sums(NamedTuple):
    """Calls and microseconds per step of both sides."""

    calls_before: float
    calls_after: float
    before_us: float
    after_us: float

    def split(self) -> tuple[float, float]:
        """Splits the change into a part by count and the rest.

        The first is the change of the number of calls x the mean call before.

        The rest is the change of the mean call x the number of calls after. Where a side has no calls, all is count.
        """
        change_us = self.after_us - self.before_us
        if not self.calls_before or not self.calls_after:
            return change_us, 0.0
        count_us = (self.calls_after - self.calls_before) * (self.before_us / self.calls_before)
        return count_us, change_us - count_us

    def kind(self, count_us: float, mean_us: float, noise: float) -> ChangeKind:
        """Gives the kind of change.

        ``noise`` is the share of a time by which two recordings of the same code differ.
        """
        if not (self.calls_before or self.before_us):
            return "new" if self.calls_after or self.after_us else "same"
        if not (self.calls_after or self.after_us):
            return "gone"
        change_us = abs(self.after_us - self.before_us)
        if self._is_same_count() and change_us <= noise * max(self.before_us, self.after_us):
            return "same"
        if abs(count_us) >= abs(mean_us):
            return "more" if count_us > 0 else "fewer"
        return "slower" if mean_us > 0 else "faster"

    def _is_same_count(self) -> bool:
        """Tells whether both sides have as many calls.

        Whole numbers must be equal. A step that ends within a call has a part of one, and may differ by it.
        """
        before, after = self.calls_before, self.calls_after
        if before == after:
            return True
        is_whole = float(before).is_integer() and float(after).is_integer()
        return not is_whole and abs(after - before) <= 0.05 * max(before, after)


def fold_modules(rows: Iterable[ChangeRow], noise: float) -> tuple[ChangeRow, ...]:
    """The rows folded by module path, most change first."""
    folds: dict[str | None, list[ChangeRow]] = {}
    for row in rows:
        folds.setdefault(row.module, []).append(row)
    return _sorted(_module(module, fold, noise) for module, fold in folds.items())


def _sorted(rows: Iterable[ChangeRow]) -> tuple[ChangeRow, ...]:
    """Most change first."""
    return tuple(sorted(rows, key=lambda row: (-abs(row.change_us), row.name, row.module or "", row.shapes or "")))


def _row(match: WorkMatch, noise: float, diff: Diff) -> ChangeRow:
    shown = match.after or match.before
    sums = _sums(match)
    source = _source(shown)
    count_us, mean_us = sums.split()
    families = {piece.family for piece in (*match.before, *match.after)}
    old, new = common_shapes(match.before), common_shapes(match.after)
    return ChangeRow(
        name=_name(match),
        module=_common_module(shown),
        shapes=f"{old} -> {new}" if old and new and old != new else new or old,
        family=families.pop() if len(families) == 1 else None,
        kind=sums.kind(count_us, mean_us, noise),
        matched_by=match.matched_by,
        **sums._asdict(),
        count_us=count_us,
        mean_us=mean_us,
        source=source,
        is_touched=diff.touches(source),
    )


def _name(match: WorkMatch) -> str:
    """Names the op of a match, or the kernel without one.

    'after (was before)' where both sides call it differently.
    """
    before, after = _called(match.before), _called(match.after)
    if len(before) > 1 or len(after) > 1:
        families = {piece.family for piece in (*match.before, *match.after)}
        is_pooled = match.matched_by == "kernel family" and len(families) == 1 and None not in families
        whole = f"{families.pop()}: " if is_pooled else ""
        return f"{whole}{_listed(after or before)}" + (f" (was {_listed(before)})" if after and after != before else "")
    old, new = next(iter(before), None), next(iter(after), None)
    return f"{_listed([new])} (was {_listed([old])})" if old and new and old != new else new or old or ""


def _called(pieces: Iterable[Piece]) -> list[str]:
    """Their names, most time first."""
    us: dict[str, list[float]] = {}
    for piece in pieces:
        # The kernel's name where there is no op, or where it is more precise.
        name = piece.op if piece.plain is not None and piece.op is not None else piece.name
        us.setdefault(name, []).append(piece.us)
    if len(us) < 2:
        return list(us)
    return sorted(us, key=lambda name: (-math.fsum(us[name]), name))


def _listed(names: Sequence[str]) -> str:
    shown = [name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…" for name in names[:2]]
    return ", ".join(shown) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def _common_module(pieces: Sequence[Piece]) -> str | None:
    """The leading part that all their module paths share; null where there is none."""
    if len(pieces) == 1:
        return pieces[0].module
    paths = sorted({piece.module or "" for piece in pieces})
    if len(paths) == 1:
        return paths[0] or None
    first, last = paths[0].split("."), paths[-1].split(".")
    length = next((at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    return ".".join(first[:length]) or None


def _sums(match: WorkMatch) -> Sums:
    """Sums that are the same in whatever order the pieces come."""
    calls = (math.fsum(piece.calls for piece in side) for side in (match.before, match.after))
    return Sums(*calls, *(math.fsum(piece.us for piece in side) for side in (match.before, match.after)))


def _source(pieces: Sequence[Piece]) -> str | None:
    """The line that most of the time comes from."""
    if len(pieces) == 1:
        return pieces[0].source
    lines = [(piece.us, piece.source) for piece in pieces if piece.source]
    return max(lines)[1] if lines else None


def _module(module: str | None, rows: Sequence[ChangeRow], noise: float) -> ChangeRow:
    sums = Sums(*(math.fsum(getattr(row, name) for row in rows) for name in Sums._fields))
    count_us, mean_us = sums.split()
    kind = sums.kind(count_us, mean_us, noise)
    matched: MatchedBy = "nothing" if kind in {"new", "gone"} else "module and op"
    return ChangeRow(
        name=module or "outside of modules",
        module=module,
        shapes=None,
        family=None,
        kind=kind,
        matched_by=matched,
        **sums._asdict(),
        count_us=count_us,
        mean_us=mean_us,
    )


def find_bars(before: ComparedSide, after: ComparedSide, diff: Diff) -> tuple[Bar, ...]:
    """Finds a bar for each account that either side has.

    Most change comes first. Waits have the line that they come from.
    """
    old, new = before.accounts, after.accounts
    groups = {**_groups(before), **_groups(after)}
    bars = [Bar(account, group, old.get(account, 0.0), new.get(account, 0.0)) for account, group in groups.items()]
    lines = _line_changes(before, after)
    bars = [_with_line(bar, lines.get(bar.account, {}), diff) for bar in bars]
    return tuple(sorted(bars, key=lambda bar: (-abs(bar.change_us), bar.account)))


def _groups(side: ComparedSide) -> Mapping[str, str]:
    return {} if side.analysis is None else {entry.account: entry.group for entry in side.analysis.ledger}


def _line_changes(before: ComparedSide, after: ComparedSide) -> Mapping[str, Mapping[str, float]]:
    """By account of a wait and source line: what it takes more."""
    changes: dict[str, dict[str, float]] = {}
    for side, sign in ((before, -1.0), (after, 1.0)):
        for idle in () if side.analysis is None else side.analysis.idle:
            if idle.source is not None:
                lines = changes.setdefault(f"overhead.{idle.cause}", {})
                lines[idle.source] = lines.get(idle.source, 0.0) + sign * clean_us(idle.us)
    return changes


def _with_line(bar: Bar, lines: Mapping[str, float], diff: Diff) -> Bar:
    sign = math.copysign(1.0, bar.change_us)
    us, source = max(((sign * us, source) for source, us in lines.items()), default=(0.0, None))
    if source is None or us <= 0 or us < _MOST_OF_IT * abs(bar.change_us):
        return bar
    return replace(bar, source=source, is_touched=diff.touches(source))
