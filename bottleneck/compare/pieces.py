"""Splits the busy time of one side into pieces of work.

The pieces add up to its ledger.

Names of ops and kernels that differ between backends, builds or runs have one canonical name, by which pieces match.
"""

import math
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from bottleneck.analysis.kernel_rows import shapes_text
from bottleneck.compare.sides import ComparedSide, clean_us
from bottleneck.schema.accounts import ACCOUNTS
from bottleneck.schema.analysis import KernelSummary
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.intervals import Integers, numbered

# Backend-specific names of an op and the name they share. The first pattern that matches wins; other ops keep their
# own names.
_RENAMED: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"^aten::((cudnn|miopen|mkldnn|mps|thnn|_?slow)_)?_?conv\w*_backward", "convolution backward"),
        (r"^aten::(cudnn|miopen|mkldnn|thnn)_(depthwise_)?conv\w*|^aten::_?(slow_)?conv\w*", "convolution"),
        (r"^aten::(_nnpack_spatial_convolution|xnnpack_conv)", "convolution"),
        (r"^aten::(native|cudnn|miopen|_?)_?batch_norm\w*_backward", "batch norm backward"),
        (r"^aten::(native_|cudnn_|miopen_|_native_|_)?batch_norm", "batch norm"),
        (r"^aten::(_scaled_dot_product|_\w*attention)\w*_backward", "attention backward"),
        (r"^aten::(_?scaled_dot_product\w*attention|_(flash|efficient|cudnn)_attention)", "attention"),
        (r"^aten::(_cudnn|miopen|mkldnn)_rnn\w*_backward", "recurrent layer backward"),
        (r"^aten::(_cudnn_rnn|miopen_rnn|mkldnn_rnn_layer)", "recurrent layer"),
        (r"^aten::_(cudnn_)?ctc_loss$", "CTC loss"),
        (r"^aten::(cudnn_)?grid_sampler(_[23]d)?$", "grid sampler"),
        (r"^aten::(mkldnn_|mkl_|_mkl_)?linear$", "linear"),
        (r"^aten::(relu|clamp_min|threshold)_?$", "relu"),
    )
)
# An op that encloses a compiled region: its kernels have informative names, the op has none.
_REGION = re.compile(
    r"^(Torch-Compiled Region|Compiled(Fx)?(Function|Graph|Autograd)|## Call|TorchDynamo|Inductor|(cuda|hip)Graph)"
)
# No op that has several names has a longer one; patterns take their time on what is longer.
_LONGEST_NAME = 300
# The op that all collectives of a trace are recorded under; the kernel names the collective.
_ANY_COLLECTIVE = "record_param_comms"
_COLLECTIVES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), name)
    for pattern, name in (
        (r"all_?reduce", "all-reduce"),
        (r"reduce_?scatter", "reduce-scatter"),
        (r"all_?gather", "all-gather"),
        (r"all_?to_?all|send_?recv", "all-to-all"),
        (r"broadcast", "broadcast"),
        (r"reduce", "reduce"),
    )
)
_COUNTED_REGION = re.compile(r":? *\d+/\d+.*$")
# Of aten::add and aten::add_ a version of torch may take either; the arithmetic is the same.
_IN_PLACE = re.compile(r"(?<=\w)_$")
_COUNTED_NODE = re.compile(r"(?<=Backward)\d+$")
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|(?<=_)\d+$")

# Families whose members replace one another: another implementation of the same work. Those of other families only
# look alike (an addition is no product, but both are elementwise).
EXCHANGEABLE = frozenset(
    {
        "matmul",
        "convolution",
        "attention",
        "normalisation",
        "softmax",
        "pooling",
        "collective",
        "optimizer",
        "recurrent",
    }
)
# On a CPU kernels have no names: the family of an op by its own name.
_FAMILY_OF_OP: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), family)
    for pattern, family in (
        (r"attention", "attention"),
        (r"conv", "convolution"),
        (r"^aten::(_?addmm|mm|bmm|baddbmm|addbmm|addmv|mv|dot|linear|matmul|mkldnn_linear|_grouped_mm)", "matmul"),
        (r"_(batch|layer|group|instance|rms)_norm", "normalisation"),
        (r"softmax", "softmax"),
        (r"_pool[123]d", "pooling"),
        (r"^aten::_(foreach|fused)_|^Optimizer", "optimizer"),
        (r"rnn|lstm|gru", "recurrent"),
    )
)


@lru_cache(maxsize=1 << 16)
def plain_op(op: str) -> str:
    """Gives the canonical name of an op.

    It is the same on every backend and without the profiler's running numbers.
    """
    if len(op) > _LONGEST_NAME:
        return op
    if is_region(op):
        return _COUNTED_REGION.sub("", op)
    name = next((name for pattern, name in _RENAMED if pattern.search(op)), op)
    return _COUNTED_NODE.sub("", _IN_PLACE.sub("", name))


@lru_cache(maxsize=1 << 16)
def own_op(op: str | None, kernel: str) -> str | None:
    """The op; for the generic collective op the collective that its kernel names."""
    if op != _ANY_COLLECTIVE:
        return op
    return next((name for pattern, name in _COLLECTIVES if pattern.search(kernel[:_LONGEST_NAME])), op)


@lru_cache(maxsize=1 << 16)
def is_region(op: str) -> bool:
    """True for an op that encloses a compiled region, whose kernels are more informative."""
    return len(op) <= _LONGEST_NAME and _REGION.search(op) is not None


@lru_cache(maxsize=1 << 16)
def plain_kernel(name: str) -> str:
    """Gives a kernel's name without what changes from build to build.

    That is addresses, and the number at its end.
    """
    return _NUMBERS.sub("", name)


@lru_cache(maxsize=1 << 16)
def family_of_op(op: str) -> str | None:
    """The kernel family that an op's name implies; None if it implies none."""
    return next((family for pattern, family in _FAMILY_OF_OP if pattern.search(op[:_LONGEST_NAME])), None)


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
_SIZE = re.compile(r"\d{1,18}")
# Families that name only the place where work ran.
_NO_FAMILY = frozenset({"", "host", "other"})


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
    """Finds all busy work of a step.

    What the ledger has beyond the rows is a piece of its own. Rows beyond it are scaled.

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
    fold, first = numbered(*columns, np.append(_codes(ops["name"]), -1)[op_rows], signature)
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


def _opens_call(op_rows: Integers, names: "pd.Series[str]") -> "npt.NDArray[np.bool_]":
    """Marks the rows that open a call.

    True for the first kernel of each op, for kernels without an op, and for those of a compiled region.
    """
    regions = np.array([*(is_region(str(name)) for name in names.cat.categories), True], dtype=np.bool_)
    opens: npt.NDArray[np.bool_] = regions[np.append(_codes(names), -1)[op_rows]]
    opens[np.unique(op_rows, return_index=True)[1]] = True
    return opens


def _codes(column: "pd.Series[str]") -> Integers:
    return column.cat.codes.to_numpy().astype(np.int64)


def _texts(codes: Integers, labels: "pd.Index[str]") -> list[str | None]:
    return [None if code < 0 else str(labels[code]) for code in codes.tolist()]


def _op_texts(evidence: Evidence, op_rows: Integers, signature: Integers) -> tuple[list[str | None], list[str | None]]:
    """Gives names and shapes as in the rows of an analysis.

    They are of the call that a kernel is attributed to, else of its op.
    """
    calls = evidence.linked.trace.signatures
    names, dims = (calls[column].to_numpy() for column in ("name", "dims"))
    ops = evidence.linked.ops["name"]
    own = _texts(np.append(_codes(ops), -1)[op_rows], ops.cat.categories)
    rows = signature.tolist()
    shown = [str(names[row]) if row >= 0 else op for row, op in zip(rows, own, strict=True)]
    shapes = {row: shapes_text(dims[row]) for row in set(rows) if row >= 0}
    return shown, [shapes.get(row) for row in rows]


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
    """Gives all sizes of a call's shapes, in order.

    Null where they are unknown or shortened.
    """
    if not shapes or shapes.endswith("…"):
        return None
    return tuple(int(size) for size in _SIZE.findall(shapes))


def common_shapes(pieces: Sequence[Piece]) -> str | None:
    """Gives the shapes that all pieces have.

    Null where they differ or are not known.
    """
    if len(pieces) == 1:
        return pieces[0].shapes
    shapes = {piece.shapes for piece in pieces}
    return shapes.pop() if len(shapes) == 1 else None


Work = TypeVar("Work", Piece, KernelSummary)


def share_of_time(work: Sequence[Work], holds: Callable[[Work], bool]) -> float:
    """Share of the time of this work that a condition holds for."""
    total = sum([item.us for item in work])
    return sum([item.us for item in work if holds(item)]) / total if total else 0.0
