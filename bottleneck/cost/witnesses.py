"""Sizes of results that calls do not record, from the ops around them: gradient, consumer, caller, view (cost stage).

No trace holds what an op returns, but another op often does: the backward op that was handed its gradient, the op that
reads it next, the op that called for it, or the view that it makes of its operand on the way.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from bottleneck.cost.conv_layouts import BACKWARD, FORWARD, UNFOLDED, BackwardLayout

Rows = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Sizes = list[int]

# Between a convolution and the op that reads it lies at most bookkeeping without tensors, such as counting batches.
_OPS_BETWEEN = 8
_VIEW = "aten::as_strided"

# Convolutions whose input and weight come first, and where the parts of backward ops keep what they are handed.
_CONVOLUTIONS = frozenset(
    name
    for name, layout in {**FORWARD, **UNFOLDED}.items()
    if (layout.inputs, layout.weight) == (0, 1) and not layout.always_transposed
)
_GRADIENTS = {name: layout for name, layout in BACKWARD.items() if layout.makes is None}
_FOR_INPUT = {name: layout for name, layout in BACKWARD.items() if layout.makes == (True, False, False)}
_FOR_WEIGHT = {name: layout for name, layout in BACKWARD.items() if layout.makes == (False, True, False)}
_PARTS = {**_FOR_INPUT, **_FOR_WEIGHT}
_INDEXED = frozenset({"aten::index", "aten::_unsafe_index"})


@dataclass(frozen=True)
class _Call:
    """One signature as far as witnesses are asked about it."""

    name: str
    dims: list[Any]
    concrete: list[Any]

    def sizes(self, position: int) -> Sizes | None:
        """The sizes of a tensor argument that has dimensions, else null."""
        value = self.dims[position] if position < len(self.dims) else None
        if not isinstance(value, list) or not value:
            return None
        return value if all(type(size) is int and size >= 0 for size in value) else None

    def integers(self, position: int) -> Sizes | None:
        """A list of integers among the recorded scalars, else null."""
        return _list(self.concrete[position] if position < len(self.concrete) else None)


class _Scene:
    """The ops of a trace and the calls that they make, each signature parsed once and only where it is asked for."""

    def __init__(self, signatures: pd.DataFrame, ops: pd.DataFrame) -> None:
        self.ops = ops
        self.names = [str(name) for name in signatures["name"]]
        self._dims, self._concrete = signatures["dims"].to_list(), signatures["concrete"].to_list()
        self.signature = np.array(ops["signature"].to_numpy(dtype=np.int64, na_value=-1), np.int64)

    def call(self, row: int) -> _Call:
        """The call of one signature; lists are empty where the trace has none, or holds something else."""
        return _Call(self.names[row], _list(self._dims[row]) or [], _list(self._concrete[row]) or [])

    def calls_of(self, names: frozenset[str]) -> dict[int, _Call]:
        """The calls of some ops by their row in SIGNATURES."""
        return {row: self.call(row) for row, name in enumerate(self.names) if name in names}

    @cached_property
    def parent(self) -> Rows:
        """Row in OPS of the op around each op, -1 for none."""
        return np.array(self.ops["parent"].to_numpy(dtype=np.int64, na_value=-1), np.int64)

    def of_ops(self, asked: dict[int, _Call]) -> Rows:
        """The ops that make one of the calls."""
        wanted = np.zeros(len(self.names) + 1, bool)
        wanted[list(asked)] = True
        return np.flatnonzero(wanted[self.signature])

    def outermost(self, ops: Rows, names: frozenset[str]) -> Rows:
        """The outermost of the ops around each op that bear one of the names, without a break between.

        Jumps double, so that a trace may nest ops as deeply as it likes.
        """
        labels = self.ops["name"].cat
        alike = np.append(labels.categories.isin(list(names))[labels.codes.to_numpy()], False)
        jump = np.where(alike[self.parent], self.parent, np.arange(len(self.parent)))
        while not np.array_equal(further := jump[jump], jump):
            jump = further
        return np.asarray(jump[ops], np.int64)

    def next_after(self, ops: Rows) -> Rows:
        """The first op on the same thread that starts after each op has ended, or the number of ops."""
        thread = self.ops["thread"].cat.codes.to_numpy()
        track = np.cumsum(np.concatenate([[False], thread[1:] != thread[:-1]]))
        start, end = (self.ops["ts_us"].to_numpy(), (self.ops["ts_us"] + self.ops["dur_us"]).to_numpy())
        span = float(end.max() - start.min()) + 1.0
        position = track * span + (start - start.min())
        after = np.searchsorted(position, (track * span + (end - start.min()))[ops], side="left")
        after = np.maximum(after, ops + 1)
        same = (after < len(track)) & (np.append(track, -1)[np.minimum(after, len(track))] == track[ops])
        return np.where(same, after, len(track))


def witness_results(signatures: pd.DataFrame, ops: pd.DataFrame) -> tuple[Rows, list[str | None]]:
    """For each op a code into a list of sizes (JSON) of its result; code 0, null, where nothing tells them."""
    scene = _Scene(signatures, ops)
    codes = np.zeros(len(ops), np.int64)
    known: dict[str | None, int] = {None: 0}
    for find in (_convolution_results, _backward_results, _indexed_results):
        asked, witness, read = find(scene)
        pairs, which = np.unique(np.stack([scene.signature[asked], witness]), axis=1, return_inverse=True)
        found = [read(*pair) for pair in pairs.T.tolist()]
        for sizes in (json.dumps(each) for each in found if each):
            known.setdefault(sizes, len(known))
        codes[asked] = np.array([known[json.dumps(each) if each else None] for each in found], np.int64)[which.ravel()]
    return codes, list(known)


_Found = tuple[Rows, Rows, Callable[[int, int], Sizes | None]]


def _convolution_results(scene: _Scene) -> _Found:
    """Forward convolutions without stride and padding: by their gradient's sizes, else by the next op's operand."""
    asked = {row: call for row, call in scene.calls_of(_CONVOLUTIONS).items() if not any(call.concrete)}
    gradients = _gradients(scene) if asked else {}
    ops = scene.of_ops(asked)
    witness = _consumers(scene, ops) if len(ops) else ops

    def read(row: int, witness_row: int) -> Sizes | None:
        inputs, weight = asked[row].sizes(0), asked[row].sizes(1)
        if inputs is None or weight is None:
            return None
        exact = gradients.get((tuple(inputs), tuple(weight)))
        if exact is not None or witness_row < 0:
            return exact
        return _as_output(scene.call(witness_row).sizes(0), inputs, weight)

    return ops, witness, read


def _gradients(scene: _Scene) -> dict[tuple[tuple[int, ...], tuple[int, ...]], Sizes]:
    """Sizes of the output's gradient by those of input and weight, where all calls with these agree."""
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], list[Sizes]] = {}
    for call in scene.calls_of(frozenset(_GRADIENTS)).values():
        layout = _GRADIENTS[call.name]
        grad, inputs, weight = (call.sizes(at) for at in (layout.grad, layout.inputs, layout.weight))
        if grad and inputs and weight and _as_output(grad, inputs, weight):
            found.setdefault((tuple(inputs), tuple(weight)), []).append(grad)
    return {key: grads[0] for key, grads in found.items() if all(grad == grads[0] for grad in grads)}


def _as_output(sizes: Sizes | None, inputs: Sizes, weight: Sizes) -> Sizes | None:
    """The sizes themselves where a convolution of this input and weight can have them."""
    if sizes is None or not len(sizes) == len(inputs) == len(weight):
        return None
    # Padding beyond the window would convolve nothing but zeros.
    fits = all(
        1 <= out <= size + window - 1 for out, size, window in zip(sizes[2:], inputs[2:], weight[2:], strict=True)
    )
    return sizes if fits and sizes[:2] == [inputs[0], weight[0]] else None


def _consumers(scene: _Scene, ops: Rows) -> Rows:
    """Signature of the first later op on the thread whose first operand has as many dimensions, -1 for none near by."""
    ranks = np.array([*(len(scene.call(row).sizes(0) or []) for row in range(len(scene.names))), 0], np.int64)
    wanted = ranks[scene.signature[ops]]
    candidate = scene.next_after(scene.outermost(ops, _CONVOLUTIONS | {"aten::_convolution", "aten::convolution"}))
    witness = np.full(len(ops), -1, np.int64)
    thread = np.append(scene.ops["thread"].cat.codes.to_numpy(), -1)
    signature = np.append(scene.signature, -1)
    for _ in range(_OPS_BETWEEN):
        here = np.minimum(candidate, len(scene.signature))
        matches = (witness < 0) & (thread[here] == thread[ops]) & (ranks[signature[here]] == wanted)
        witness = np.where(matches, signature[here], witness)
        candidate = candidate + 1
    return witness


def _backward_results(scene: _Scene) -> _Found:
    """The gradient of an input or a weight whose sizes are a list of integers: by the op that called for both."""
    asked = {
        row: call
        for row, call in scene.calls_of(frozenset(_PARTS)).items()
        if call.sizes(_wanted_at(_PARTS[call.name])) is None and not any(call.concrete)
    }
    ops = scene.of_ops(asked)
    witness = np.append(scene.signature, -1)[scene.parent[ops]]

    def read(row: int, witness_row: int) -> Sizes | None:
        whole = scene.call(witness_row) if witness_row >= 0 else None
        layout = _GRADIENTS.get(whole.name) if whole else None
        if whole is None or layout is None:
            return None
        return whole.sizes(layout.inputs if asked[row].name in _FOR_INPUT else layout.weight)

    return ops, witness, read


def _wanted_at(layout: BackwardLayout) -> int:
    """Position of the argument that holds the sizes of the gradient that is made."""
    return layout.inputs if layout.makes == (True, False, False) else layout.weight


def _indexed_results(scene: _Scene) -> _Found:
    """index(x, indices): by the view of x that it makes, with the result's sizes and stride 0 where indices replace x.

    ATen's restride_src lays x out like the result before the kernel adds the indices' offsets.
    """
    asked = scene.calls_of(_INDEXED)
    views = {
        row: call.integers(1)
        for row, call in (scene.calls_of(frozenset({_VIEW})) if asked else {}).items()
        if 0 in (call.integers(2) or [])
    }
    view_ops = scene.of_ops({row: scene.call(row) for row in views})
    seen = np.full(len(scene.signature) + 1, -1, np.int64)
    seen[scene.parent[view_ops]] = scene.signature[view_ops]
    ops = scene.of_ops(asked)
    return ops, seen[ops], lambda _, witness_row: views.get(witness_row)


def _list(text: object) -> list[Any] | None:
    """A JSON list; null for anything else."""
    try:
        value = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, list) else None
