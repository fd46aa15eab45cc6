"""Record of the step's time as a tree.

It goes from the outermost Python frame or module down to ops; an icicle draws it.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from msgspec import Struct, field

NodeKind = Literal["frame", "line", "module", "op", "rest"]
_LEAST_SHARE = 1 / 2500  # of the step: less is thinner than a pixel
_DEEPEST = 80
_MOST_NODES = 4000  # about as many as a page can hold beside all else


class TreePiece(Struct, frozen=True):
    """Part of the step's time with its account and its place.

    ``path`` begins with the outermost frame. ``kernel`` and ``idle`` are positions in the analysis, -1 for none.
    """

    path: tuple[tuple[str, NodeKind], ...]
    account: str
    us: float
    kernel: int = -1
    idle: int = -1


class TimeNode(Struct, frozen=True):
    """Node with its own time per step, by account.

    That is in none of its children. ``parent`` is the position of the node around it, -1 for none. ``kernels`` and
    ``idle`` are the rows of the analysis behind its own time.
    """

    parent: int
    name: str
    kind: NodeKind
    us: Mapping[str, float]
    kernels: tuple[int, ...] = ()
    idle: tuple[int, ...] = ()


class TimeTree(Struct, frozen=True):
    """All nodes, a parent before its children.

    Their times add up to what was placed.
    """

    by: Literal["frames", "modules", "ops"]
    nodes: tuple[TimeNode, ...]


class _Branch(Struct):
    """A node while it is built."""

    kind: NodeKind
    us: dict[str, float] = field(default_factory=dict)
    kernels: set[int] = field(default_factory=set)
    idle: set[int] = field(default_factory=set)
    inner: dict[str, "_Branch"] = field(default_factory=dict)

    def add(self, other: "_Branch") -> None:
        """Takes in the own time of another."""
        for account, us in other.us.items():
            self.us[account] = self.us.get(account, 0.0) + us
        self.kernels |= other.kernels
        self.idle |= other.idle

    def walk(self) -> Iterator["_Branch"]:
        """This one and all inside it."""
        yield self
        for branch in self.inner.values():
            yield from branch.walk()


def fold_pieces(pieces: Iterable[TreePiece], by: Literal["frames", "modules", "ops"]) -> TimeTree:
    """Folds pieces into a tree, largest first.

    Nodes of less than a pixel are one, the rest, inside the node around them.
    """
    root = _Branch("rest")
    for piece in pieces:
        branch = root
        for name, kind in piece.path[:_DEEPEST]:
            branch = branch.inner.setdefault(name, _Branch(kind))
        branch.add(
            _Branch(
                "rest",
                {piece.account: piece.us},
                {piece.kernel} if piece.kernel >= 0 else set(),
                {piece.idle} if piece.idle >= 0 else set(),
            )
        )
    totals: dict[int, float] = {}
    least_us = _total(root, totals) * _LEAST_SHARE
    if len(totals) > _MOST_NODES:
        least_us = max(least_us, sorted(totals.values(), reverse=True)[_MOST_NODES])
    nodes: list[TimeNode] = []

    def add(parent: int, name: str, branch: _Branch) -> None:
        at = len(nodes)
        rows = (tuple(sorted(rows)) for rows in (branch.kernels, branch.idle))
        nodes.append(TimeNode(parent, name, branch.kind, branch.us, *rows))
        add_inner(at, branch)

    def add_inner(at: int, branch: _Branch) -> None:
        ordered = sorted(branch.inner.items(), key=lambda item: -totals[id(item[1])])
        shown = [item for item in ordered if totals[id(item[1])] >= least_us]
        for name, inner in shown:
            add(at, name, inner)
        if len(shown) < len(ordered):
            rest = _Branch("rest")
            for _, inner in ordered[len(shown) :]:
                for part in inner.walk():
                    rest.add(part)
            add(at, f"{len(ordered) - len(shown)} smaller", rest)

    add_inner(-1, root)
    return TimeTree(by, tuple(nodes))


def _total(branch: _Branch, totals: dict[int, float]) -> float:
    """Adds up the time of a branch and of all inside it."""
    us = math.fsum((*branch.us.values(), *(_total(inner, totals) for inner in branch.inner.values())))
    totals[id(branch)] = us
    return us
