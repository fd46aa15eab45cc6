"""Finds the partner of each piece of work on the other side: exact keys first, then weaker and weaker ones."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

from bottleneck.compared import MatchedBy
from bottleneck.comparing.work import Piece, plain_name

Key = Callable[[Piece], Hashable | None]


@dataclass(frozen=True)
class Match:
    """Pieces of both sides that are the same work, and what told so."""

    matched_by: MatchedBy
    before: tuple[Piece, ...]
    after: tuple[Piece, ...]


def _exact(piece: Piece) -> Hashable:
    return (piece.module, piece.op, piece.shapes, None if piece.op else plain_name(piece.name))


def _module_and_op(piece: Piece) -> Hashable | None:
    return (piece.module, piece.op) if piece.module is not None and piece.op is not None else None


def _op_and_shape(piece: Piece) -> Hashable | None:
    return (piece.op, piece.shapes) if piece.op is not None and piece.shapes is not None else None


def _op(piece: Piece) -> Hashable | None:
    return piece.op


def _family(piece: Piece) -> Hashable | None:
    return None if piece.op is not None else piece.family


_LEVELS: tuple[tuple[MatchedBy, Key], ...] = (
    ("module and op", _module_and_op),
    ("op and shape", _op_and_shape),
    ("op", _op),
    ("kernel family", _family),
)


def match(before: Iterable[Piece], after: Iterable[Piece]) -> list[Match]:
    """Every piece in exactly one match; what has no partner is alone in its own."""
    matches, old, new = _meet(_grouped(before, _exact), _grouped(after, _exact), None)
    for matched_by, key in _LEVELS:
        found, old, new = _meet(_grouped(old, key), _grouped(new, key), matched_by)
        matches += found
    alone = [Match("nothing", tuple(group), ()) for group in _grouped(old, _exact).values()]
    return [*matches, *alone, *(Match("nothing", (), tuple(group)) for group in _grouped(new, _exact).values())]


_Groups = dict[Hashable | None, list[Piece]]


def _grouped(pieces: Iterable[Piece], key: Key) -> _Groups:
    groups: _Groups = defaultdict(list)
    for piece in pieces:
        groups[key(piece)].append(piece)
    return groups


def _meet(
    before: _Groups, after: _Groups, matched_by: MatchedBy | None
) -> tuple[list[Match], list[Piece], list[Piece]]:
    """Groups that both sides have, and what is left of each; ``matched_by`` is null for the exact key."""
    common = {key for key in before if key is not None and key in after}
    found = [
        Match(matched_by or _told_by(before[key][0]), tuple(before[key]), tuple(after[key]))
        for key in before
        if key in common
    ]
    return found, _rest(before, common), _rest(after, common)


def _told_by(piece: Piece) -> MatchedBy:
    """What an exact match rests on."""
    if piece.op is None:
        return "kernel family"
    return "op and shape" if piece.module is None else "module and op"


def _rest(groups: _Groups, taken: set[Hashable | None]) -> list[Piece]:
    return [piece for key, group in groups.items() if key not in taken for piece in group]
