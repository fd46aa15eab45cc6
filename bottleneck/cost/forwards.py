"""The forward calls of autograd nodes whose own record does not tell their work (cost stage).

The backward pass of an embedding lookup is recorded with nothing but the gradient of its result; how many indices there
were stands in the forward call.
"""

import json
import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from bottleneck.cost.recommendation import CLASSIC, NARROWEST_ROW, WIDEST_ROW

Rows = npt.NDArray[np.int64]

_NODE = re.compile(r"torch::autograd::CppNode<SplitLookupFunction_\w+_Op>")
_FORWARD = re.compile(r"fb(?:gemm)?::split_embedding_codegen_lookup_\w+_function")
# More gradients of different sizes than any model has lookups; each is held against every forward call.
_MOST_GRADIENTS = 64


def forward_operands(signatures: pd.DataFrame, ops: pd.DataFrame) -> tuple[Rows, list[str | None]]:
    """For each op a code into a list of forward calls (JSON: dims and types); code 0, null, where none is known.

    A gradient [batch, width] belongs to the latest lookup before it of as many sequences whose tables can add up to
    that width: their rows are 4 to 1024 elements wide.
    """
    codes = np.zeros(len(ops), np.int64)
    gradients = _sizes(signatures, _NODE)
    lookups = {row: size for row, dims in _sizes(signatures, _FORWARD).items() if (size := _batch(dims)) is not None}
    known: dict[int, int] = {}
    texts: list[str | None] = [None]
    signature = np.array(ops["signature"].to_numpy(dtype=np.int64, na_value=-1), np.int64)
    started = ops["ts_us"].to_numpy()
    for row, dims in list(gradients.items())[:_MOST_GRADIENTS] if lookups else []:
        fitting = [each for each, (batch, tables) in lookups.items() if _fits(dims, batch, tables)]
        asking, answering = (np.flatnonzero(np.isin(signature, rows)) for rows in ([row], fitting))
        answering = answering[np.argsort(started[answering], kind="stable")]
        before = np.searchsorted(started[answering], started[asking]) - 1
        asking, found = asking[before >= 0], signature[answering[before[before >= 0]]]
        for each in np.unique(found).tolist():
            if each not in known:
                known[each] = len(texts)
                texts.append(json.dumps([signatures["dims"].iloc[each], signatures["types"].iloc[each]]))
        codes[asking] = [known[each] for each in found.tolist()]
    return codes, texts


def _sizes(signatures: pd.DataFrame, name: re.Pattern[str]) -> dict[int, list[Any]]:
    """Dims per argument of the signatures whose name matches, by their row."""
    rows = [row for row, text in enumerate(signatures["name"]) if name.fullmatch(str(text))]
    return {row: dims for row in rows if isinstance(dims := _loaded(signatures["dims"].iloc[row]), list)}


def _loaded(text: object) -> object:
    try:
        return json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None


def _batch(dims: list[Any]) -> tuple[int, int] | None:
    """Sequences and tables of a lookup by its offsets, null where they do not fit."""
    try:
        tables, bags = (dims[position][0] - 1 for position in (CLASSIC.d_offsets, CLASSIC.offsets))
    except (LookupError, TypeError):
        return None
    return (bags // tables, tables) if tables > 0 and bags % tables == 0 else None


def _fits(dims: list[Any], batch: int, tables: int) -> bool:
    size = dims[0] if dims else None
    if not isinstance(size, list) or len(size) != 2 or not all(type(each) is int for each in size):
        return False
    return bool(size[0] == batch and NARROWEST_ROW * tables <= size[1] <= WIDEST_ROW * tables)
