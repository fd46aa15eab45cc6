"""Copies from host to device: how long the device did nothing else, and how long it waited for their calls."""

import math
import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

from bottleneck.advice.measures import Flags, Floats, Integers, claims_of, kernels_in_window, remembered
from bottleneck.case import Case
from bottleneck.units import ITEM_BYTES

COPY = "memory.copy"

_TO_DEVICE = re.compile(r"HtoD|HostToDevice|Host -> Device", re.IGNORECASE)
_PAGEABLE, _PINNED = (re.compile(word, re.IGNORECASE) for word in ("pageable", "pinned"))
# A call that issued such a copy, in the words of an idle row: 'cudaMemcpyAsync (pageable, HtoD)'.
_CALL = re.compile(r"\((?P<kind>pageable, |pinned, )?HtoD\)$")

_COPYING = frozenset({"aten::to", "aten::_to_copy", "aten::copy_", "aten::cuda", "aten::_copy_from"})
_MAKING = re.compile(
    r"^aten::(zeros|ones|full|rand|randn|randint|randperm|arange|eye|linspace|logspace|tril_indices|triu_indices)(_like)?$"
)
# The first argument of a call, where it is a list of sizes: '["[64, 128]", ...'.
_SIZE = re.compile(r'^\["\[(\d{1,12}(?:, ?\d{1,12}){0,15})\]"')
_ITEM_BYTES = frozenset(ITEM_BYTES.values())
# Ops of a copy nest no deeper than this: to, _to_copy, copy_, and another copy_ where dtypes differ.
_DEEPEST = 16


@dataclass(frozen=True)
class Copies:
    """Copies to the device in the window, row for row: row in KERNELS, bytes (NaN unknown), duration, pageable or not.

    ``exposed_us`` is the part of the duration in which the device did nothing else, ``steps`` what sums are divided by.
    """

    rows: Integers
    bytes: Floats
    dur_us: Floats
    exposed_us: Floats
    pageable: Flags
    pinned: Flags
    steps: int

    def per_step(self, chosen: Flags) -> tuple[float, float, float]:
        """Number, bytes and exposed time of some of them, per step."""
        count, exposed_us = float(chosen.sum()), float(self.exposed_us[chosen].sum())
        return count / self.steps, float(np.nansum(self.bytes[chosen])) / self.steps, exposed_us / self.steps


def copies_to_device(case: Case) -> Copies | None:
    """The copies to the device; null where there are none, as on a CPU."""
    return remembered(case, "_copies_to_device", _find_copies)


def _find_copies(case: Case) -> Copies | None:
    kernels, names = case.linked.kernels, case.linked.kernels["name"].cat
    codes = names.codes.to_numpy()
    labels = [str(name) for name in names.categories]
    is_copy = (kernels["kind"] == "copy").to_numpy() & kernels_in_window(case)
    rows = np.flatnonzero(is_copy & np.append(_finds(_TO_DEVICE, labels), False)[codes])
    if not rows.size:
        return None
    dur_us = kernels["dur_us"].to_numpy()[rows]
    lasted_us = np.bincount(codes[rows], weights=dur_us, minlength=len(labels)) / case.steps
    charged_us = np.zeros(len(labels))
    known = {name: code for code, name in enumerate(labels)}
    for kernel in case.analysis.kernels:
        if kernel.name in known:
            charged_us[known[kernel.name]] += kernel.us
    exposed = np.minimum(np.divide(charged_us, lasted_us, out=np.zeros(len(labels)), where=lasted_us > 0), 1.0)
    moved = kernels["bytes"].to_numpy(dtype=np.float64, na_value=np.nan)[rows]
    return Copies(
        rows=rows,
        bytes=np.where(moved > 0, moved, np.nan),
        dur_us=dur_us,
        exposed_us=dur_us * exposed[codes[rows]],
        pageable=_finds(_PAGEABLE, labels)[codes[rows]],
        pinned=_finds(_PINNED, labels)[codes[rows]],
        steps=case.steps,
    )


def _finds(pattern: "re.Pattern[str]", labels: list[str]) -> Flags:
    return np.array([pattern.search(label) is not None for label in labels], dtype=bool)


def waits_us(case: Case, kind: str | None = None) -> dict[str, float]:
    """Time in which the device was idle while the host was in a call that issues such a copy, by account."""
    waits: dict[str, float] = {}
    for row in case.analysis.idle:
        match = _CALL.search(row.detail or "")
        if match and (kind is None or kind in (match["kind"] or "")):
            account = f"overhead.{row.cause}"
            waits[account] = waits.get(account, 0.0) + row.us
    return waits


def saving(case: Case, copies: Copies, chosen: Flags) -> dict[str, float]:
    """What these copies cost, by account: their exposed time, and their part of the waits in such calls, by number."""
    _, _, exposed_us = copies.per_step(chosen)
    part = float(chosen.sum()) / copies.rows.size
    waits = {account: us * part for account, us in waits_us(case).items()}
    return {**claims_of(case, COPY, most_us=exposed_us), **{name: us for name, us in waits.items() if us > 0}}


def ops_of(case: Case, rows: Integers) -> Integers:
    """Rows in OPS of the ops that issued some rows of KERNELS, as far as they are known."""
    op = case.linked.kernels["op"].to_numpy(dtype=np.int64, na_value=-1)[rows]
    return op[op >= 0]


def makers(case: Case, copies: Copies) -> tuple[Flags, Integers]:
    """Whether each copy follows an op that makes a tensor which the device could make, and the rows of those ops."""
    ops = case.linked.ops
    parent = np.append(ops["parent"].to_numpy(dtype=np.int64, na_value=-1), -1)
    names = ops["name"].cat
    labels = [str(name) for name in names.categories]
    codes = names.codes.to_numpy()
    names_copy, makes = np.array([name in _COPYING for name in labels], dtype=bool), _finds(_MAKING, labels)
    copying, making = (np.append(flags[codes], False) for flags in (names_copy, makes))
    top = case.linked.kernels["op"].to_numpy(dtype=np.int64, na_value=-1)[copies.rows]
    for _ in range(_DEEPEST):
        above = parent[top]
        top = np.where(copying[above], above, top)
    before = _sibling_before(
        top, parent, np.append(ops["depth"].to_numpy(), -1), ops["thread"].cat.codes.to_numpy().astype(np.int64)
    )
    follows = copying[top] & making[before]
    found = np.flatnonzero(follows)
    follows[found] = [_may_be(case, *pair) for pair in zip(before[found].tolist(), copies.bytes[found], strict=True)]
    return follows, before[follows]


def _may_be(case: Case, maker: int, moved: float) -> bool:
    """Whether so many bytes may be the tensor that an op made; true where the trace does not tell its size."""
    signature = case.linked.ops["signature"].iloc[maker]
    concrete = None if pd.isna(signature) else case.linked.trace.signatures["concrete"].iloc[int(signature)]
    match = _SIZE.match(concrete) if isinstance(concrete, str) else None
    if match is None or np.isnan(moved):
        return True
    elements = math.prod(int(size) for size in match[1].split(","))
    return any(moved == elements * item for item in _ITEM_BYTES)


def _sibling_before(op: Integers, parent: Integers, depth: Integers, thread: Integers) -> Integers:
    """Row in OPS of the op that ended before each one, inside the same op; -1 for none."""
    before = np.where(op > 0, op - 1, -1)
    for _ in range(_DEEPEST):
        before = np.where(depth[before] > depth[op], parent[before], before)
    code = np.append(thread, -1)
    return np.where((before >= 0) & (depth[before] == depth[op]) & (code[before] == code[op]), before, -1)
