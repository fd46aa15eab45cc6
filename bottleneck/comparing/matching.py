"""Finds the partner of each piece of work on the other side: exact keys first, then weaker and weaker ones."""

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from bottleneck.compared import MatchedBy
from bottleneck.comparing.modules import align
from bottleneck.comparing.names import EXCHANGEABLE, is_region, plain_kernel
from bottleneck.comparing.work import Piece, sizes

Key = Callable[[Piece], Hashable | None]


@dataclass(frozen=True)
class Match:
    """Pieces of both sides that are the same work, and what told so."""

    matched_by: MatchedBy
    before: tuple[Piece, ...]
    after: tuple[Piece, ...]


def _exact(piece: Piece) -> Hashable:
    return (piece.place, piece.plain, piece.shapes, None if piece.plain else piece.name)


def _module_and_op(piece: Piece) -> Hashable | None:
    return (piece.place, piece.plain) if piece.place is not None and piece.plain is not None else None


def _module_and_kernel(piece: Piece) -> Hashable | None:
    return (piece.place, plain_kernel(piece.name)) if piece.plain is None else None


def _op_and_shape(piece: Piece) -> Hashable | None:
    return (piece.plain, piece.shapes) if piece.plain is not None and piece.shapes is not None else None


def _kernel(piece: Piece) -> Hashable | None:
    return plain_kernel(piece.name) if piece.plain is None else None


def _parent_and_op(piece: Piece) -> Hashable | None:
    """Within the module around: an op of the same name elsewhere in the model is other work."""
    if piece.plain is None:
        return None
    return (None if piece.place is None else piece.place.rpartition(".")[0], piece.plain)


def _op(piece: Piece) -> Hashable | None:
    return piece.plain


def _module_and_family(piece: Piece) -> Hashable | None:
    return (piece.place, piece.family) if piece.place is not None and piece.family in EXCHANGEABLE else None


def _exchangeable(piece: Piece) -> Hashable | None:
    return piece.family if piece.family in EXCHANGEABLE else None


def _family(piece: Piece) -> Hashable | None:
    return piece.family


_Level = tuple[MatchedBy, Key]
_LEVELS: tuple[_Level, ...] = (
    ("module and op", _module_and_op),
    ("kernel family", _module_and_kernel),
    ("op and shape", _op_and_shape),
    ("kernel family", _kernel),
)
# Where both sides know modules and ops, and where one side does not: there nothing finer can be held together.
_WITHIN_MODULES: tuple[_Level, ...] = (("op", _parent_and_op), ("kernel family", _module_and_family))
_ACROSS_MODULES: tuple[_Level, ...] = (("op", _op),)


def match(before: Sequence[Piece], after: Sequence[Piece]) -> list[Match]:
    """Every piece in exactly one match; what has no partner is alone in its own.

    Modules go by the paths of the first side, and ties are broken by order: so that it matches the same whichever side
    is before, the smaller one is always the first.
    """
    if _is_first(before, after):
        return _match(before, after)
    return [Match(each.matched_by, each.after, each.before) for each in _match(after, before)]


def _is_first(one: Sequence[Piece], other: Sequence[Piece]) -> bool:
    sizes_us = [(len(side), math.fsum(piece.us for piece in side)) for side in (one, other)]
    return sizes_us[0] < sizes_us[1] if sizes_us[0] != sizes_us[1] else _told_in_full(one) <= _told_in_full(other)


def _told_in_full(pieces: Sequence[Piece]) -> list[str]:
    return sorted(map(repr, pieces))


def _match(before: Sequence[Piece], after: Sequence[Piece]) -> list[Match]:
    regions = _common_regions(before, after)
    sides = [_placed(side, names, regions) for side, names in zip((before, after), align(before, after), strict=True)]
    matches, old, new = _meet(sides, _exact, None)
    for matched_by, key in _levels(before, after):
        found, old, new = _meet([old, new], key, matched_by)
        matches += found
    alone = [Match("nothing", tuple(group), ()) for group in _grouped(old, _exact).values()]
    return [*matches, *alone, *(Match("nothing", (), tuple(group)) for group in _grouped(new, _exact).values())]


def _levels(before: Sequence[Piece], after: Sequence[Piece]) -> tuple[_Level, ...]:
    both_know_modules = all(_share(side, lambda piece: piece.module is not None) >= 0.5 for side in (before, after))
    both_know_ops = all(_share(side, lambda piece: piece.op is not None) >= 0.5 for side in (before, after))
    last: _Level = ("kernel family", _exchangeable if both_know_ops else _family)
    return (*_LEVELS, *(_WITHIN_MODULES if both_know_modules else _ACROSS_MODULES), last)


def _share(pieces: Iterable[Piece], holds: Callable[[Piece], bool]) -> float:
    """Share of the time that this holds for."""
    total = sum([piece.us for piece in pieces])
    return sum([piece.us for piece in pieces if holds(piece)]) / total if total else 0.0


def _common_regions(before: Iterable[Piece], after: Iterable[Piece]) -> set[str]:
    """Regions that both sides run: their kernels are held against one another by their own names."""
    old, new = ({piece.op: piece.plain for piece in side} for side in (before, after))
    told = [{plain for op, plain in ops.items() if op and plain and is_region(op)} for ops in (old, new)]
    return told[0] & told[1]


def _placed(pieces: Iterable[Piece], names: Mapping[str, str], regions: set[str]) -> list[Piece]:
    """The pieces with the names that their modules go by, and without ops whose kernels tell more."""
    placed = []
    for piece in pieces:
        place = None if piece.module is None else names[piece.module]
        plain = None if piece.plain in regions else piece.plain
        placed.append(Piece(*piece[:-2], plain, place))  # an order of magnitude quicker than _replace
    return placed


_Groups = dict[Hashable | None, list[Piece]]


def _grouped(pieces: Iterable[Piece], key: Key) -> _Groups:
    groups: _Groups = defaultdict(list)
    for piece in pieces:
        groups[key(piece)].append(piece)
    return groups


def _meet(
    sides: Sequence[Sequence[Piece]], key: Key, matched_by: MatchedBy | None
) -> tuple[list[Match], list[Piece], list[Piece]]:
    """Matches of this key, and what is left of each side; ``matched_by`` is null for the exact key."""
    before, after = (_grouped(side, key) for side in sides)
    common = {key for key in before if key is not None and key in after}
    found = []
    for each in common:
        told = matched_by or _told_by(before[each][0])
        parts = [(before[each], after[each])] if matched_by is None else _in_parts(before[each], after[each])
        found += [Match(told, tuple(old), tuple(new)) for old, new in parts]
    return found, _rest(before, common), _rest(after, common)


def _in_parts(before: list[Piece], after: list[Piece]) -> list[tuple[list[Piece], list[Piece]]]:
    """Shape by shape where both sides have as many calls of as many shapes (another batch size); else pooled."""
    pooled = [(before, after)]
    if len(before) < 2 or len(after) < 2:
        return pooled
    old, new = _by_sizes(before), _by_sizes(after)
    if old is None or new is None or [len(size) for size in old] != [len(size) for size in new]:
        return pooled
    pairs = list(zip(old.values(), new.values(), strict=True))
    calls = [[math.fsum(piece.calls for piece in part) for part in pair] for pair in pairs]
    return pairs if all(one == other for one, other in calls) else pooled


def _by_sizes(pieces: Iterable[Piece]) -> dict[tuple[int, ...], list[Piece]] | None:
    """Pieces by their shapes, smallest first; null where a shape is not known."""
    found: dict[tuple[int, ...], list[Piece]] = {}
    for piece in pieces:
        size = sizes(piece.shapes)
        if size is None:
            return None
        found.setdefault(size, []).append(piece)
    return dict(sorted(found.items(), key=lambda item: (len(item[0]), item[0])))


def _told_by(piece: Piece) -> MatchedBy:
    """What an exact match rests on."""
    if piece.plain is None:
        return "kernel family"
    return "op and shape" if piece.place is None else "module and op"


def _rest(groups: _Groups, taken: set[Hashable | None]) -> list[Piece]:
    return [piece for key, group in groups.items() if key not in taken for piece in group]
