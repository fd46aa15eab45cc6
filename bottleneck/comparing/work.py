"""The busy work of one side as pieces that partition the busy accounts of its ledger."""

import math
import re
from collections.abc import Iterable
from typing import NamedTuple

from bottleneck.comparing.bars import busy_us
from bottleneck.comparing.sides import Compared, clean_us

# The bound of rows that are time of the framework on a CPU: accounts of waiting, not of work.
_DISPATCH = "dispatch"
UNTOLD = "work that no row tells"
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|(?<=_)\d+$")
# What rows and ledger may differ by, as a share of the busy time, for rounding.
_ROUNDING = 1e-9


class Piece(NamedTuple):
    """Work of one kind: calls and microseconds per step. ``module`` is the path as told, ``place`` its matched name."""

    module: str | None
    op: str | None
    shapes: str | None
    family: str
    name: str
    source: str | None
    calls: float
    us: float


def find_work(side: Compared) -> list[Piece]:
    """All busy work of a step. What the ledger has beyond the rows is a piece of its own; rows beyond it are scaled."""
    told = side.told
    if told is None or side.step_us is None:
        return []
    pieces = [
        Piece(row.module, row.op, row.shapes, row.family, row.name, row.source, clean_us(row.calls), clean_us(row.us))
        for row in told.kernels
        if row.bound != _DISPATCH
    ]
    return _reconciled(pieces, math.fsum(busy_us(side)))


def _reconciled(pieces: list[Piece], ledger_us: float) -> list[Piece]:
    rows_us = math.fsum(piece.us for piece in pieces)
    rest_us = ledger_us - rows_us
    if abs(rest_us) <= _ROUNDING * ledger_us:
        return pieces
    if rest_us > 0:
        return [*pieces, Piece(None, None, None, "other", UNTOLD, None, 0.0, rest_us)]
    scale = ledger_us / rows_us
    return [piece._replace(us=piece.us * scale) for piece in pieces]


def plain_name(name: str) -> str:
    """A kernel's name without the numbers that change from run to run: addresses, the count at the end."""
    return _NUMBERS.sub("", name)


def sum_us(pieces: Iterable[Piece]) -> float:
    """Their time, the same in whatever order they come."""
    return math.fsum(piece.us for piece in pieces)
