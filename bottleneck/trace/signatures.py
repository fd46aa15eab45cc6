"""SIGNATURES: the distinct shapes, types, strides and scalars that ops were called with, as raw text."""

import json
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pandas as pd

from bottleneck.tables import SIGNATURES
from bottleneck.trace.decode import DECODE_ERRORS

Array = npt.NDArray[Any]


def signature_table(shapes: list[bytes], shape: Array, labels: list[str], name: Array) -> tuple[pd.DataFrame, Array]:
    """SIGNATURES, and for each op its row there (int32, -1 without shapes).

    ``shapes`` are texts as ``Columns`` joins them; ``shape`` and ``name`` hold a code among shapes and labels per op.
    """
    texts = [_parts(joined) for joined in shapes]
    rank = np.array(_ranks(texts), np.int64)
    key = name.astype(np.int64) << 32 | (rank[shape] if shape.size else shape)
    has_shape = np.array([bool(parts[0]) for parts in texts], bool)
    shaped = has_shape[shape] if shape.size else np.zeros(0, bool)
    # Hashing beats the sort of np.unique where a few thousand keys stand for a million calls.
    code, met = pd.factorize(key[shaped])
    order = np.argsort(met)
    distinct = met[order]
    row = np.full(len(shape), -1, np.int32)
    row[shaped] = np.argsort(order)[code]
    by_rank = dict(zip(rank.tolist(), texts, strict=True))
    rows = [(labels[code >> 32], *by_rank[code & 0xFFFFFFFF]) for code in distinct.tolist()]
    frame = pd.DataFrame(rows, columns=list(SIGNATURES.columns), dtype=object)
    return SIGNATURES.check(frame), row


def _parts(joined: bytes) -> tuple[str | None, ...]:
    dims, types, strides, concrete, dims_1_8 = joined.decode("utf-8", errors="replace").split("\0")
    return tuple(_plain(text) or None for text in (dims or dims_1_8, types, strides, concrete))


def _plain(text: str) -> str:
    """The list on one line; '' for null. Hand-made and post-processed traces hold the list as a string."""
    try:
        value = json.loads(text) if text.startswith('"') else text
        text = value if isinstance(value, str) else text
        return "" if text == "null" else msgspec.json.format(text, indent=0)
    except DECODE_ERRORS:
        return text


def _ranks(texts: list[tuple[str | None, ...]]) -> list[int]:
    """Position of each text among the distinct ones in sorted order."""
    order = {key: rank for rank, key in enumerate(sorted({_sortable(parts) for parts in texts}))}
    return [order[_sortable(parts)] for parts in texts]


def _sortable(parts: tuple[str | None, ...]) -> tuple[str, ...]:
    return tuple(part or "" for part in parts)
