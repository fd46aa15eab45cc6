"""Turns matched work into rows: calls and time of both sides, split into change of count and change of mean."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bottleneck.compare.matching import Match
from bottleneck.compare.sides import Diff
from bottleneck.compare.work import Piece
from bottleneck.schema.comparison import ChangeKind, ChangeRow, MatchedBy

# Kernels of C++ have names of kilobytes; of several in one row each is told by its beginning.
_LONGEST_NAME = 80


class Sums(NamedTuple):
    """Calls and microseconds per step of both sides."""

    calls_before: float
    calls_after: float
    before_us: float
    after_us: float

    def split(self) -> tuple[float, float]:
        """The change of the number of calls x the mean call before, and the rest of the change.

        The rest is the change of the mean call x the number of calls after. Where a side has no calls, all is count.
        """
        change_us = self.after_us - self.before_us
        if not self.calls_before or not self.calls_after:
            return change_us, 0.0
        count_us = (self.calls_after - self.calls_before) * (self.before_us / self.calls_before)
        return count_us, change_us - count_us

    def kind(self, count_us: float, mean_us: float, noise: float) -> ChangeKind:
        """Which of both explains more; ``noise`` is the share of a time by which recordings differ anyhow."""
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
        """Whole numbers must be equal; a step that ends within a call has a part of one, and may differ by it."""
        before, after = self.calls_before, self.calls_after
        if before == after:
            return True
        is_whole = float(before).is_integer() and float(after).is_integer()
        return not is_whole and abs(after - before) <= 0.05 * max(before, after)


def tell_rows(matches: Iterable[Match], noise: float, diff: Diff) -> tuple[ChangeRow, ...]:
    """A row per match, most change first."""
    return _sorted(_row(match, noise, diff) for match in matches)


def fold_modules(rows: Iterable[ChangeRow], noise: float) -> tuple[ChangeRow, ...]:
    """The rows folded by module path, most change first."""
    folds: dict[str | None, list[ChangeRow]] = {}
    for row in rows:
        folds.setdefault(row.module, []).append(row)
    return _sorted(_module(module, fold, noise) for module, fold in folds.items())


def _sorted(rows: Iterable[ChangeRow]) -> tuple[ChangeRow, ...]:
    return tuple(sorted(rows, key=lambda row: (-abs(row.change_us), row.name, row.module or "", row.shapes or "")))


def _row(match: Match, noise: float, diff: Diff) -> ChangeRow:
    shown = match.after or match.before
    sums = _sums(match)
    source = _source(shown)
    count_us, mean_us = sums.split()
    families = {piece.family for piece in (*match.before, *match.after)}
    return ChangeRow(
        name=_name(match),
        module=_common_module(shown),
        shapes=_told(_shapes(match.before), _shapes(match.after)),
        family=families.pop() if len(families) == 1 else None,
        kind=sums.kind(count_us, mean_us, noise),
        matched_by=match.matched_by,
        calls_before=sums.calls_before,
        calls_after=sums.calls_after,
        before_us=sums.before_us,
        after_us=sums.after_us,
        count_us=count_us,
        mean_us=mean_us,
        source=source,
        is_touched=diff.touches(source),
    )


def _name(match: Match) -> str:
    """The op, or the kernel where it has none; 'after (was before)' where both sides call it differently."""
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
        us.setdefault(_own_name(piece), []).append(piece.us)
    if len(us) < 2:
        return list(us)
    return sorted(us, key=lambda name: (-math.fsum(us[name]), name))


def _own_name(piece: Piece) -> str:
    """The op; the kernel where there is none, or where it tells more."""
    return piece.op if piece.plain is not None and piece.op is not None else piece.name


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


def _shapes(pieces: Iterable[Piece]) -> str | None:
    """The shapes that all of them have; null where they differ or are not known."""
    shapes = {piece.shapes for piece in pieces}
    return shapes.pop() if len(shapes) == 1 else None


def _told(before: str | None, after: str | None) -> str | None:
    return f"{before} -> {after}" if before and after and before != after else after or before


def _sums(match: Match) -> Sums:
    before, after = match.before, match.after
    return Sums(
        _sum([piece.calls for piece in before]),
        _sum([piece.calls for piece in after]),
        _sum([piece.us for piece in before]),
        _sum([piece.us for piece in after]),
    )


def _sum(values: Sequence[float]) -> float:
    """Their sum, the same in whatever order they come."""
    return values[0] if len(values) == 1 else math.fsum(values)


def _source(pieces: Sequence[Piece]) -> str | None:
    """The line that most of the time comes from."""
    if len(pieces) == 1:
        return pieces[0].source
    lines = [(piece.us, piece.source) for piece in pieces if piece.source]
    return max(lines)[1] if lines else None


def _module(module: str | None, rows: Sequence[ChangeRow], noise: float) -> ChangeRow:
    sums = Sums(
        math.fsum(row.calls_before for row in rows),
        math.fsum(row.calls_after for row in rows),
        math.fsum(row.before_us for row in rows),
        math.fsum(row.after_us for row in rows),
    )
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
        calls_before=sums.calls_before,
        calls_after=sums.calls_after,
        before_us=sums.before_us,
        after_us=sums.after_us,
        count_us=count_us,
        mean_us=mean_us,
    )
