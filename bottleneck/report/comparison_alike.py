"""Rows that say the same of many modules as one: the twelve layers of a model change together more often than not."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from bottleneck.compared import ChangeRow

_NUMBERS = re.compile(r"(\d+)")
_ANY = "*"


@dataclass(frozen=True)
class Alike:
    """Rows of one op that changed alike, added up, and in how many modules they lie.

    The numbers by which the paths of the modules differ are '*' in that of ``row``.
    """

    row: ChangeRow
    modules: int = 1


def fold_alike(rows: Iterable[ChangeRow], *, by_op: bool = True) -> list[Alike]:
    """The rows, those alike but for numbers in the module's path together; most change first.

    ``by_op`` keeps ops, shapes and lines apart; rows that are modules have none.
    """
    folds: dict[object, list[ChangeRow]] = {}
    for row in rows:
        place = _NUMBERS.sub(_ANY, row.module or "")
        key = (row.name, row.shapes, row.source, row.matched_by) if by_op else ()
        folds.setdefault((place, row.kind, key), []).append(row)
    return sorted(map(_folded, folds.values()), key=lambda alike: -abs(alike.row.change_us))


def added(rows: Sequence[ChangeRow]) -> ChangeRow:
    """The first row with the calls and times of all."""
    return replace(
        rows[0],
        calls_before=math.fsum(row.calls_before for row in rows),
        calls_after=math.fsum(row.calls_after for row in rows),
        before_us=math.fsum(row.before_us for row in rows),
        after_us=math.fsum(row.after_us for row in rows),
        count_us=math.fsum(row.count_us for row in rows),
        mean_us=math.fsum(row.mean_us for row in rows),
    )


def _folded(rows: Sequence[ChangeRow]) -> Alike:
    if len(rows) == 1:
        return Alike(rows[0])
    paths = list(dict.fromkeys(row.module or "" for row in rows))
    return Alike(replace(added(rows), module=_common(paths) or None), len(paths))


def _common(paths: Sequence[str]) -> str:
    """The path that all share, with '*' for the numbers that differ."""
    parts = zip_longest(*(_NUMBERS.split(path) for path in paths), fillvalue="")
    return "".join(column[0] if len(set(column)) == 1 else _ANY for column in parts)
