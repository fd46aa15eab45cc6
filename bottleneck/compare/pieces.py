"""Splits the busy time of one side of a comparison into pieces of work that add up to its ledger."""

import math
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from bottleneck.compare.canonical_names import family_of_op, is_region, own_op, plain_op
from bottleneck.compare.sides import ComparedSide, clean_us
from bottleneck.schema.accounts import ACCOUNTS
from bottleneck.schema.analysis import KernelSummary
from bottleneck.schema.evidence import Evidence

# Accounts of kernel time (on a CPU: of leaf ops), which the rows partition. All others are waits.
BUSY_ACCOUNTS = frozenset(key for key, account in ACCOUNTS.items() if account.cause is None)


def busy_us(side: ComparedSide) -> list[float]:
    """The accounts that the side's kernels share."""
    return [us for account, us in side.accounts.items() if account in BUSY_ACCOUNTS]


UNLISTED = "work without a row"
# The bound of CPU rows that are framework overhead, which belongs to waiting accounts, not to work.
DISPATCH = "dispatch"
# What rows and ledger may differ by, as a share of the busy time, for rounding.
_ROUNDING = 1e-9
_LONGEST_SHAPES = 200
_SIZE = re.compile(r"\d{1,18}")
# Families that name only the place where work ran.
_NO_FAMILY = frozenset({"", "host", "other"})

_Integers = npt.NDArray[np.int64]


class Piece(NamedTuple):
    """Work of one kind: calls and microseconds per step.

    ``op`` is as the trace spells it, ``plain`` its canonical name: null where kernels have no op,
    or where the kernel names are more precise. ``place`` is the module's name after alignment, equal on both sides.
    """

    module: str | None
    op: str | None
    shapes: str | None
    family: str | None
    name: str
    source: str | None
    calls: float
    us: float
    plain: str | None = None
    place: str | None = None


def find_work(side: ComparedSide, in_full: bool = True) -> list[Piece]:
    """All busy work of a step. What the ledger has beyond the rows is a piece of its own; rows beyond it are scaled.

    ``in_full`` takes exact modules and calls of ops from a recording; else what its analysis folded: the modules that
    many calls share, and kernels instead of calls.
    """
    analysis = side.analysis
    if analysis is None or side.step_us is None:
        return []
    charged = None if side.case is None else side.case.kernel_time
    if in_full and side.case is not None and charged is not None:
        pieces = _pieces_of(side.case, charged)
    else:
        pieces = [_of_row(row) for row in analysis.kernels if row.bound != DISPATCH]
    return _reconciled(pieces, math.fsum(busy_us(side)))


def _of_row(row: KernelSummary) -> Piece:
    return _piece((row.module, row.op, row.shapes, row.family, row.name, row.source), row.calls, row.us)


def _piece(texts: Sequence[str | None], calls: float, us: float) -> Piece:
    module, recorded_op, shapes, family, name, source = texts
    op = own_op(recorded_op, name or "")
    plain = None if op is None else plain_op(op)
    family = (None if op is None else family_of_op(op)) or (None if family in _NO_FAMILY else family)
    return Piece(module, op, shapes, family, name or "", source, clean_us(calls), clean_us(us), plain)


def _pieces_of(evidence: Evidence, charged: pd.DataFrame) -> list[Piece]:
    """Rows of KERNELS folded by module, op, shapes, kernel and line.

    An op that runs several kernels is one call, which its first kernel carries.
    """
    kernels, ops = evidence.linked.kernels, evidence.linked.ops
    us, runs = charged["us"].to_numpy(), charged["runs"].to_numpy()
    busy = charged["account"].isin(BUSY_ACCOUNTS).to_numpy()
    keep = np.flatnonzero(busy & ((us > 0) | (runs > 0)))
    op_rows = charged["op"].to_numpy(dtype=np.int64, na_value=-1)[keep]
    signature = charged["signature"].to_numpy(dtype=np.int64, na_value=-1)[keep]
    columns = [_codes(kernels[name])[keep] for name in ("module", "family", "name", "source")]
    fold, first = _numbered([*columns, np.append(_codes(ops["name"]), -1)[op_rows], signature])
    module, family, name, source = (
        _texts(codes[first], kernels[column].cat.categories)
        for codes, column in zip(columns, ("module", "family", "name", "source"), strict=True)
    )
    op, shapes = _op_texts(evidence, op_rows[first], signature[first])
    calls = np.where(_opens_call(op_rows, ops["name"]), runs[keep], 0.0)
    sums = [np.bincount(fold, weights=values, minlength=first.size).tolist() for values in (calls, us[keep])]
    texts = zip(module, op, shapes, family, name, source, strict=True)
    # A call in each of six steps is a call per step, and not 0.9999999999999999 of one.
    return [_piece(text, round(calls, 9), us) for text, calls, us in zip(texts, *sums, strict=True)]


def _opens_call(op_rows: _Integers, names: "pd.Series[str]") -> "npt.NDArray[np.bool_]":
    """True for the first kernel of each op, for kernels without an op, and for those of a compiled region."""
    regions = np.array([*(is_region(str(name)) for name in names.cat.categories), True], dtype=np.bool_)
    opens: npt.NDArray[np.bool_] = regions[np.append(_codes(names), -1)[op_rows]]
    opens[np.unique(op_rows, return_index=True)[1]] = True
    return opens


def _codes(column: "pd.Series[str]") -> _Integers:
    return column.cat.codes.to_numpy().astype(np.int64)


def _texts(codes: _Integers, labels: "pd.Index[str]") -> list[str | None]:
    return [None if code < 0 else str(labels[code]) for code in codes.tolist()]


def _numbered(keys: Sequence[_Integers]) -> tuple[_Integers, _Integers]:
    """The number of each distinct combination of codes, and the first row of each."""
    number = np.zeros(keys[0].size, dtype=np.int64)
    first = number
    for key in keys if number.size else ():
        combined = number * (int(key.max()) + 2) + key + 1
        _, first, number = np.unique(combined, return_index=True, return_inverse=True)
    return number, first


def _op_texts(
    evidence: Evidence, op_rows: _Integers, signature: _Integers
) -> tuple[list[str | None], list[str | None]]:
    """Names and shapes as in the rows of an analysis: of the call that a kernel is attributed to, else of its op."""
    calls = evidence.linked.trace.signatures
    names, dims = (calls[column].to_numpy() for column in ("name", "dims"))
    ops = evidence.linked.ops["name"]
    own = _texts(np.append(_codes(ops), -1)[op_rows], ops.cat.categories)
    rows = signature.tolist()
    shown = [str(names[row]) if row >= 0 else op for row, op in zip(rows, own, strict=True)]
    known = {row: _shapes(dims[row]) for row in set(rows) if row >= 0}
    return shown, [known.get(row) for row in rows]


def _shapes(dims: object) -> str | None:
    """The shapes of a call in the spelling of an analysis."""
    if not isinstance(dims, str):
        return None
    text = "".join(dims.split()).replace(",", ", ")
    return text if len(text) <= _LONGEST_SHAPES else text[: _LONGEST_SHAPES - 1] + "…"


def _reconciled(pieces: list[Piece], ledger_us: float) -> list[Piece]:
    rows_us = math.fsum(piece.us for piece in pieces)
    rest_us = ledger_us - rows_us
    if abs(rest_us) <= _ROUNDING * ledger_us:
        return pieces
    if rest_us > 0:
        return [*pieces, Piece(None, None, None, None, UNLISTED, None, 0.0, rest_us)]
    scale = ledger_us / rows_us
    return [piece._replace(us=piece.us * scale) for piece in pieces]


@lru_cache(maxsize=1 << 16)
def sizes(shapes: str | None) -> tuple[int, ...] | None:
    """All sizes of a call's shapes, in order; null where they are unknown or shortened."""
    if not shapes or shapes.endswith("…"):
        return None
    return tuple(int(size) for size in _SIZE.findall(shapes))


def common_shapes(pieces: Sequence[Piece]) -> str | None:
    """The shapes that all of them have; null where they differ or are not known."""
    if len(pieces) == 1:
        return pieces[0].shapes
    shapes = {piece.shapes for piece in pieces}
    return shapes.pop() if len(shapes) == 1 else None


Work = TypeVar("Work", Piece, KernelSummary)


def share_of_time(work: Sequence[Work], holds: Callable[[Work], bool]) -> float:
    """Share of the time of this work that a condition holds for."""
    total = sum([each.us for each in work])
    return sum([each.us for each in work if holds(each)]) / total if total else 0.0
