"""Matches each piece of work with that of the other side.

Exact keys come first, then weaker ones.

A profiler numbers modules by class in the order of their first calls, so that one layer more renames all that follow;
wrappers (DistributedDataParallel, torch.compile) lengthen every path. Two trees of modules are walked from the root
down: children of matched modules are aligned in order, class by class, those that run the same first.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from bottleneck.compare.pieces import EXCHANGEABLE, Piece, is_region, plain_kernel, share_of_time, sizes
from bottleneck.schema.comparison import MatchedBy

_WRAPPER = re.compile(
    r"^(module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module"
    r"|(DistributedDataParallel|DataParallel|FullyShardedDataParallel|FSDP\w*|DDP|OptimizedModule|CheckpointWrapper"
    r"|DistributedModelParallel|DeepSpeedEngine|_?LightningModuleWrapper)(_\d+)?)$"
)
_NUMBERED = re.compile(r"^(.*?)_?(\d{1,18})$")
# Paths beyond this depth, and families of siblings whose table would exceed this size, keep their own names.
_DEEPEST = 64
_LARGEST_TABLE = 250_000


@dataclass
class _Node:
    """A module with its path, its children by name, and its work.

    ``runs`` is of the module itself, the sets are of its subtree.
    """

    path: str
    children: dict[str, "_Node"] = field(default_factory=dict)
    runs: bool = False
    ops: set[str] = field(default_factory=set)
    calls: set[tuple[str, str]] = field(default_factory=set)


def align(before: Iterable[Piece], after: Iterable[Piece]) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Names the modules of both sides alike.

    Gives for each side the path of each module that runs something -> the name that it goes by on both sides.
    """
    old, new = _ModuleTree(before), _ModuleTree(after)
    names: dict[int, str] = {}
    pairs = [(old.root, new.root)]
    while pairs:
        one, other = pairs.pop()
        names[id(one)] = names[id(other)] = f"= {one.path}"
        pairs += _paired(list(one.children.values()), list(other.children.values()))
    return old.named(names, "before"), new.named(names, "after")


@lru_cache(maxsize=1 << 16)
def unwrapped(path: str) -> tuple[str, ...]:
    """Gives the parts of a path that are no wrappers.

    The whole path is one part where it is too deep to be one.
    """
    parts = path.split(".")
    return tuple(part for part in parts if not _WRAPPER.match(part)) if len(parts) <= _DEEPEST else (path,)


class _ModuleTree:
    """The modules of one side.

    ``places`` are those that run something, by their paths in the trace.
    """

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self.root = _Node("")
        self.places: dict[str, _Node] = {}
        for piece in pieces:
            if piece.module is not None:
                if piece.module not in self.places:
                    self.places[piece.module] = self._plant(unwrapped(piece.module))
                self.places[piece.module].calls.add((piece.op or piece.name, piece.shapes or ""))
        for node in reversed(self._all()):
            node.runs = bool(node.calls)
            for child in node.children.values():
                node.calls |= child.calls
            node.ops = {op for op, _ in node.calls}

    def named(self, names: Mapping[int, str], own: str) -> dict[str, str]:
        """Maps each path to the name of its pair.

        A module without one gets a name that no module of the other side has.
        """
        return {path: names.get(id(node), f"{own} {node.path}") for path, node in self.places.items()}

    def _plant(self, parts: Iterable[str]) -> _Node:
        node = self.root
        for part in parts:
            if part not in node.children:
                node.children[part] = _Node(f"{node.path}.{part}" if node.path else part)
            node = node.children[part]
        return node

    def _all(self) -> list[_Node]:
        """Each before those inside it."""
        nodes = [self.root]
        for node in nodes:
            nodes += node.children.values()
        return nodes


def _paired(before: list[_Node], after: list[_Node]) -> list[tuple[_Node, _Node]]:
    """Pairs children that are the same module.

    They are aligned by class, else below a wrapper, else by what they run.
    """
    pairs = _aligned(before, after)
    old, new = _left(before, [one for one, _ in pairs]), _left(after, [other for _, other in pairs])
    return [*pairs, *(_aligned(_opened(old), new) or _aligned(old, _opened(new)) or _renamed(old, new))]


def _left(nodes: Sequence[_Node], taken: Iterable[_Node]) -> list[_Node]:
    ids = {id(node) for node in taken}
    return [node for node in nodes if id(node) not in ids]


def _opened(nodes: list[_Node]) -> list[_Node]:
    """Gives the children of the one module that does no work itself.

    The modules as they are otherwise.
    """
    return list(nodes[0].children.values()) if len(nodes) == 1 and not nodes[0].runs else nodes


def _renamed(before: Sequence[_Node], after: Sequence[_Node]) -> list[tuple[_Node, _Node]]:
    """Pairs modules of different classes that run exactly the same.

    They alone run these ops with these shapes.
    """
    old, new = _by_calls(before), _by_calls(after)
    return [(old[calls][0], new[calls][0]) for calls in old if len(old[calls]) == len(new.get(calls, ())) == 1]


def _by_calls(nodes: Sequence[_Node]) -> dict[frozenset[tuple[str, str]], list[_Node]]:
    groups: dict[frozenset[tuple[str, str]], list[_Node]] = {}
    for node in nodes:
        groups.setdefault(frozenset(node.calls), []).append(node)
    return groups


def _aligned(before: Sequence[_Node], after: Sequence[_Node]) -> list[tuple[_Node, _Node]]:
    old, new = _by_class(before), _by_class(after)
    return [pair for name in old if name in new for pair in _in_order(old[name], new[name])]


def _by_class(nodes: Sequence[_Node]) -> dict[str, list[_Node]]:
    """Modules by the name of their class, each in the order of their numbers."""
    groups: dict[str, list[tuple[int, str, _Node]]] = {}
    for node in nodes:
        name = node.path.rpartition(".")[2]
        numbered = _NUMBERED.match(name)
        base, number = (numbered.group(1), int(numbered.group(2))) if numbered else (name, -1)
        groups.setdefault(base, []).append((number, node.path, node))
    return {base: [node for _, _, node in sorted(members, key=lambda m: m[:2])] for base, members in groups.items()}


def _in_order(before: Sequence[_Node], after: Sequence[_Node]) -> list[tuple[_Node, _Node]]:
    """Pairs the nodes that are most alike in sum, in order.

    The order holds on both sides: a longest common subsequence with weights.
    """
    if len(before) * len(after) > _LARGEST_TABLE:
        named = {node.path: node for node in after}
        return [(node, named[node.path]) for node in before if node.path in named]
    old, new = [_signature(node) for node in before], [_signature(node) for node in after]
    best = [[0.0] * (len(after) + 1) for _ in range(len(before) + 1)]
    for row, one in enumerate(old):
        for column, other in enumerate(new):
            diagonal = best[row][column] + _likeness(one, other)
            best[row + 1][column + 1] = max(best[row][column + 1], best[row + 1][column], diagonal)
    pairs, row, column = [], len(before), len(after)
    while row and column:
        if best[row][column] == best[row - 1][column - 1] + _likeness(old[row - 1], new[column - 1]):
            row, column = row - 1, column - 1
            pairs.append((before[row], after[column]))
        elif best[row][column] == best[row - 1][column]:
            row -= 1
        else:
            column -= 1
    return pairs


_Signature = tuple[str, int, int]


def _signature(node: _Node) -> _Signature:
    """Gives the name, and digests of the subtree's ops and calls.

    They are equal where these are.
    """
    return node.path.rpartition(".")[2], hash(frozenset(node.ops)), hash(frozenset(node.calls))


def _likeness(one: _Signature, other: _Signature) -> float:
    """Scores how alike two modules are.

    Most for the same calls, then for the same ops, then for the same name. Modules of a class are never unlike.
    """
    same = 4.0 if one[2] == other[2] else 3.0 if one[1] == other[1] else 1.0
    return same + 0.5 * (one[0] == other[0])


Key = Callable[[Piece], Hashable | None]


@dataclass(frozen=True)
class WorkMatch:
    """Pieces of both sides that are the same work.

    ``matched_by`` is the key that matched them.
    """

    matched_by: MatchedBy
    before: tuple[Piece, ...]
    after: tuple[Piece, ...]


def _exact(piece: Piece) -> Hashable:
    return (piece.place, piece.plain, piece.shapes, None if piece.plain else piece.name)


def _parent_and_op(piece: Piece) -> Hashable | None:
    """Gives the key of the module around and the op.

    An op of the same name elsewhere in the model is other work.
    """
    if piece.plain is None:
        return None
    return (None if piece.place is None else piece.place.rpartition(".")[0], piece.plain)


def _all_known(*parts: Hashable | None) -> Hashable | None:
    return None if None in parts else parts


def _exchangeable(piece: Piece) -> str | None:
    return piece.family if piece.family in EXCHANGEABLE else None


def _kernel(piece: Piece) -> str | None:
    return plain_kernel(piece.name) if piece.plain is None else None


_Level = tuple[MatchedBy, Key]
_LEVELS: tuple[_Level, ...] = (
    ("module and op", lambda piece: _all_known(piece.place, piece.plain)),
    ("kernel family", lambda piece: (piece.place, _kernel(piece)) if piece.plain is None else None),
    ("op and shape", lambda piece: _all_known(piece.plain, piece.shapes)),
    ("kernel family", _kernel),
)
# Levels where both sides record modules and ops, and where one side does not, so that nothing finer can be compared.
_WITHIN_MODULES: tuple[_Level, ...] = (
    ("op", _parent_and_op),
    ("kernel family", lambda piece: _all_known(piece.place, _exchangeable(piece))),
)
_ACROSS_MODULES: tuple[_Level, ...] = (("op", lambda piece: piece.plain),)


def match(before: Sequence[Piece], after: Sequence[Piece]) -> list[WorkMatch]:
    """Puts every piece into exactly one match.

    What has no partner is alone in its own.

    Modules go by the paths of the first side, and ties are broken by order: so that it matches the same whichever side
    is before, the smaller one is always the first.
    """
    sizes_us = [(len(side), math.fsum(piece.us for piece in side)) for side in (before, after)]
    is_first = sizes_us[0] < sizes_us[1]
    if sizes_us[0] == sizes_us[1]:
        is_first = sorted(map(repr, before)) <= sorted(map(repr, after))
    if is_first:
        return _match(before, after)
    return [WorkMatch(pair.matched_by, pair.after, pair.before) for pair in _match(after, before)]


def _match(before: Sequence[Piece], after: Sequence[Piece]) -> list[WorkMatch]:
    # Kernels of regions that both sides run are compared by their own names.
    old_regions, new_regions = (
        {piece.plain for piece in side if piece.op and piece.plain and is_region(piece.op)} for side in (before, after)
    )
    regions = old_regions & new_regions
    sides = [_placed(side, names, regions) for side, names in zip((before, after), align(before, after), strict=True)]
    matches, old, new = _meet(sides, _exact, None)
    for matched_by, key in _levels(before, after):
        matched, old, new = _meet([old, new], key, matched_by)
        matches += matched
    alone = [WorkMatch("nothing", tuple(group), ()) for group in _grouped(old, _exact).values()]
    return [*matches, *alone, *(WorkMatch("nothing", (), tuple(group)) for group in _grouped(new, _exact).values())]


def _levels(before: Sequence[Piece], after: Sequence[Piece]) -> tuple[_Level, ...]:
    sides = (before, after)
    both_know_modules = all(share_of_time(side, lambda piece: piece.module is not None) >= 0.5 for side in sides)
    both_know_ops = all(share_of_time(side, lambda piece: piece.op is not None) >= 0.5 for side in sides)
    last: _Level = ("kernel family", _exchangeable if both_know_ops else lambda piece: piece.family)
    return (*_LEVELS, *(_WITHIN_MODULES if both_know_modules else _ACROSS_MODULES), last)


def _placed(pieces: Iterable[Piece], names: Mapping[str, str], regions: set[str]) -> list[Piece]:
    """The pieces with their aligned module names, and without the ops of compiled regions."""
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
) -> tuple[list[WorkMatch], list[Piece], list[Piece]]:
    """Matches pieces by this key, and gives what is left.

    ``matched_by`` is null for the exact key.
    """
    before, after = (_grouped(side, key) for side in sides)
    common = {key for key in before if key is not None and key in after}
    matches = []
    for shared in common:
        level = matched_by or _exact_level(before[shared][0])
        parts = [(before[shared], after[shared])] if matched_by is None else _in_parts(before[shared], after[shared])
        matches += [WorkMatch(level, tuple(old), tuple(new)) for old, new in parts]
    return matches, _rest(before, common), _rest(after, common)


def _in_parts(before: list[Piece], after: list[Piece]) -> list[tuple[list[Piece], list[Piece]]]:
    """Splits two groups shape by shape, or leaves them pooled.

    They are split where both sides have as many calls of as many shapes (another batch size).
    """
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
    groups: dict[tuple[int, ...], list[Piece]] = {}
    for piece in pieces:
        size = sizes(piece.shapes)
        if size is None:
            return None
        groups.setdefault(size, []).append(piece)
    return dict(sorted(groups.items(), key=lambda item: (len(item[0]), item[0])))


def _exact_level(piece: Piece) -> MatchedBy:
    """The level of an exact match."""
    if piece.plain is None:
        return "kernel family"
    return "op and shape" if piece.place is None else "module and op"


def _rest(groups: _Groups, taken: set[Hashable | None]) -> list[Piece]:
    return [piece for key, group in groups.items() if key not in taken for piece in group]
