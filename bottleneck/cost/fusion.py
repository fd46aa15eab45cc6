"""Groups op calls that a compiler makes one kernel of.

The rules are those of Inductor. No other module models fusion.

Inductor fuses ops that walk over the same elements (torch/_inductor/scheduler.py): chains of pointwise ops, and a
reduction with the ops before and behind it. Products, convolutions, recurrent layers and attention stay kernels of
libraries. A norm over more than a block holds is two loops: one that computes the statistics, and one that normalizes
and goes on with the ops that follow.

Where the memory of each tensor is known, loops follow the data (``fuse_calls``). A trace records no tensors: there a
call is taken to work on the result of the one before it on its stream (``find_loops``), which is likely, not proven.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pandas as pd
from msgspec import Struct

from bottleneck.cost import op_family
from bottleneck.cost.call import OpCall, Unmodelled, parse_call
from bottleneck.schema.intervals import Flags, Integers, numbered
from bottleneck.schema.linked_trace import Linked
from bottleneck.schema.step_calls import StepCall, StepCalls, TensorUse
from bottleneck.schema.tables import LOOPS, OVER_LINK, as_integers, text_matches

_LIBRARY = frozenset({"convolution", "matmul", "attention", "recurrent", "linear algebra", "vision"})
# Constants of Reduction.num_splits (torch/_inductor/ir.py), for a device of this many multiprocessors.
_MULTIPROCESSORS, _THREADS_PER_MULTIPROCESSOR, _THREADS = 108, 2048, 256
_LEAST_PER_THREAD, _MOST_PER_THREAD = 32, 512
_LONGEST_UNSPLIT, _VALUES_PER_THREAD, _RESULTS_PER_BLOCK = 8192, 4, 128
# A block of a generated kernel reads a row of more elements than this more than once.
_LONGEST_ROW = 32_768
# Above this a pooling window is left to ATen (torch/_inductor/lowering.py).
_LARGEST_WINDOW = 25
_IMAGE_DIMS = 4
# More tensors than this are concatenated by copies (torch/_inductor/config.py, max_pointwise_cat_inputs).
_MOST_CONCATENATED = 8
# Batch norms that tell by an argument whether they take the statistics of this batch, and all others that do.
_FLAGGED_NORMS = frozenset({"native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "_native_batch_norm_legit"})
_TRAINING = 5
_BATCH_NORM = re.compile(r"native_group_norm|_batch_norm_with_update|(?:\w+_)?(?:batch|native_group)_norm_backward")
_VECTOR_PRODUCTS = frozenset({"mm", "bmm"})
_JOINS = frozenset({"cat", "_cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack"})


@dataclass
class FusedLoop:
    """A group of calls that run together.

    It has their positions in the step, and what the group reads and writes.

    ``sizes`` are the numbers of elements that it walks over, ``bytes`` what it moves. One that ``folds`` reduces; where
    it ``splits``, what follows needs all of its results. One that ``is_product`` multiplies a matrix by a vector.
    A call of a library stands alone; in channels last it may copy
    its input (``moves_input``) and its result (``moves_result``) from and into the usual layout.
    """

    calls: list[int] = field(default_factory=list)
    sizes: set[int] = field(default_factory=set)
    reads: dict[tuple[int, int], float] = field(default_factory=dict)
    writes: dict[tuple[int, int], float] = field(default_factory=dict)
    folds: bool = False
    splits: bool = False
    launches: float = 1.0
    reads_again: float = 0.0
    bytes: float = 0.0
    is_library: bool = False
    is_product: bool = False
    moves_input: bool = False
    moves_result: bool = False


def fuse_calls(step: StepCalls, *, channels_last: bool = False, tunes: bool = False) -> list[FusedLoop]:
    """Gives the loops of a step whose storages are known.

    They are in the order of their first calls. Calls whose results nothing uses have no loop. A compiler that ``tunes``
    makes a loop of a product with one row or column (torch/_inductor/decomposition.py, `mm`).
    """
    return _Fusion(step, channels_last, tunes).run()


def live_calls(step: StepCalls) -> list[bool]:
    """Marks calls whose results reach what outlives the step.

    A compiler drops the others. A step that leaves nothing behind gives back what it holds at its end, which the
    program dropped.
    """
    lasting = {number for number, storage in enumerate(step.storages) if storage.freed is None or storage.created < 0}
    made = {use.storage for call in step.calls for use in call.outputs}
    if not made & lasting:
        lasting |= {number for number, storage in enumerate(step.storages) if (storage.freed or 0) >= len(step.calls)}
    needed, live = set(lasting), [True] * len(step.calls)
    for position in range(len(step.calls) - 1, -1, -1):
        call = step.calls[position]
        made = {use.storage for use in call.outputs}
        live[position] = not made or None in made or bool(made & needed) or call.waits
        if live[position]:
            needed |= {use.storage for use in call.inputs if use.storage is not None}
    return live


def reduction_kernels(length: float, results: float, is_strided: bool) -> int:
    """Gives the number of kernels that a reduction is split into.

    They run one after the other. ``length`` elements make one result.

    With few results each is shared out among blocks, whose parts the next kernel reduces. The elements of a strided
    reduction do not lie next to one another (torch/_inductor/ir.py, Reduction.num_splits).
    """
    total = length * results
    threads = _MULTIPROCESSORS * _THREADS_PER_MULTIPROCESSOR
    per_thread: float = _LEAST_PER_THREAD
    if is_strided and results > 1:
        if length <= _LEAST_PER_THREAD or results >= 64 * _MULTIPROCESSORS:
            return 1
        blocks, at_once = math.ceil(results / _RESULTS_PER_BLOCK), _VALUES_PER_THREAD
        wanted = math.ceil(threads / _THREADS / blocks)
    else:
        if length <= _LONGEST_UNSPLIT or results >= 2 * _MULTIPROCESSORS:
            return 1
        wanted, at_once = math.ceil(threads / (2 * _THREADS) / results), _THREADS
    if total >= _MOST_PER_THREAD * threads:
        per_thread = _MOST_PER_THREAD
    elif total >= _LEAST_PER_THREAD * threads:
        per_thread = max(length / (at_once * wanted), 1.0)
    parts = math.ceil(length / (per_thread * at_once))
    return 1 if parts <= 1 else 1 + reduction_kernels(parts, results, is_strided)


def _bare(name: str) -> str:
    return name.removeprefix("aten::").rstrip("_")


def _folds(name: str, family: str | None) -> bool:
    return family in ("reduction", "loss", "passes", "sort") or "softmax" in name or name.endswith("logsumexp")


def _folded_dims(call: OpCall | None, rank: int) -> tuple[int, ...] | None:
    """Gives the dimensions that a reduction or softmax folds.

    They count from 0 on. () where it names none, null where not recorded.
    """
    if call is None or rank < 1:
        return None
    if "softmax" in call.name:
        return ((call.integer(1) or 0) % rank,)
    position = 2 if "vector_norm" in call.name or _bare(call.name) == "norm" else 1
    dims = call.integers(position)
    if dims is None:
        return () if len(call.arguments) > position else None
    return tuple(dim % rank for dim in dims)


def _is_large_window(call: OpCall | None, name: str) -> bool:
    """True for a pooling window that is left to ATen."""
    if call is None:
        return True
    size = call.integers(1) or (1,)
    area = math.prod(size) if len(size) > 1 else size[0] ** (3 if "3d" in name else 2)
    return area > _LARGEST_WINDOW or "max_pool3d" in name


def _norm_rows(call: OpCall | None, name: str) -> Literal["rows", "batch"] | None:
    """Tells a norm over rows from one over more than a block.

    Rows are rows of memory. Null where the norm only scales its input.

    A batch norm that uses the statistics of training is a pointwise op.
    """
    bare = _bare(name)
    if bare in ("native_layer_norm", "_fused_rms_norm"):
        return "rows"
    if bare in _FLAGGED_NORMS and call is not None and call.flag(_TRAINING) is False:
        return None
    return "batch" if bare in _FLAGGED_NORMS or _BATCH_NORM.fullmatch(bare) else None


def _parsed(call: StepCall) -> OpCall | None:
    try:
        return parse_call(call.name, call.dims, call.types, call.strides, call.concrete, call.result)
    except Unmodelled:
        return None


def _is_by_vector(call: StepCall) -> bool:
    """True for a product of which one operand has one row or column."""
    left, right = (use.dims for use in call.inputs[-2:])
    return left[-2] == 1 or right[-1] == 1


def _reduced(call: StepCall) -> tuple[float, bool]:
    """Gives the number of elements that make one result.

    The flag is true where they lie apart in memory.
    """
    if _bare(call.name) in _VECTOR_PRODUCTS:
        return float(call.inputs[-1].dims[-2]), False
    dims = call.inputs[0].dims
    folded = _folded_dims(_parsed(call), len(dims)) or ()
    if "softmax" in call.name:
        length = float(math.prod(dims[dim] for dim in folded) if folded else (*dims, 1)[-1] if dims else 1)
    else:
        length = math.prod(dims) / max(math.prod(call.outputs[0].dims), 1)
    return length, bool(folded) and length > 1 and len(dims) - 1 not in folded


class _Fusion:
    """Builds the loops in one walk over the calls.

    Each write to a storage makes a new version of it, which one loop produces.
    """

    def __init__(self, step: StepCalls, channels_last: bool, tunes: bool) -> None:
        self.step = step
        self.channels_last = channels_last
        self.tunes = tunes
        self.loops: list[FusedLoop] = []
        self.version: dict[int, int] = {}
        self.maker: dict[tuple[int, int], FusedLoop] = {}
        self.readers: dict[tuple[int, int], list[FusedLoop]] = {}
        self.in_channels_last: set[int] = set()
        self.copied: set[tuple[int, int]] = set()
        self.unnumbered = -1

    def run(self) -> list[FusedLoop]:
        for position, (call, is_live) in enumerate(zip(self.step.calls, live_calls(self.step), strict=True)):
            if is_live and not call.on_host:
                self._add(position, call)
        alive = {(number, self.version.get(number, 0)) for number in self._kept()}
        wanted: dict[tuple[int, int], set[int]] = {key: {-1} for key in alive}
        for index, loop in enumerate(self.loops):
            for key in loop.reads:
                wanted.setdefault(key, set()).add(index)
        runs = []
        for index, loop in enumerate(self.loops):
            written = sum(size for key, size in loop.writes.items() if wanted.get(key, set()) - {index})
            loop.bytes = sum(loop.reads.values()) + written + loop.reads_again
            if loop.is_library or written or loop.splits or loop.folds:
                runs.append(loop)
        return runs

    def _kept(self) -> Iterable[int]:
        return (number for number, storage in enumerate(self.step.storages) if storage.freed is None)

    def _add(self, position: int, call: StepCall) -> None:
        family, name = op_family(call.name), call.name.removeprefix("aten::")
        is_large = family == "pooling" and _is_large_window(_parsed(call), name)
        if name == "convolution":
            self._add_convolution(position, call)
        elif self.tunes and name in _VECTOR_PRODUCTS and _is_by_vector(call):
            self._add_reduction(position, call, {max(math.prod(use.dims) for use in call.inputs)})
            self.maker[self._key(call.outputs[0])].is_product = True
        elif family in _LIBRARY or is_large or not call.outputs:
            self._add_library(position, call)
        elif name == "cat" and len(call.inputs) > 1:
            self._add_concatenation(position, call)
        elif (norm := _norm_rows(_parsed(call), name)) is not None:
            self._add_norm(position, call, norm == "rows")
        else:
            self._add_loop(position, call, family)
        if name != "convolution" and any(self._number(use) in self.in_channels_last for use in call.inputs):
            self.in_channels_last |= {self._number(use) for use in call.outputs if len(use.dims) == _IMAGE_DIMS}

    def _add_convolution(self, position: int, call: StepCall) -> None:
        """A kernel of a library, and its bias as a loop of its own."""
        if len(call.inputs) < 2 or not call.outputs:
            self._add_library(position, call)
            return
        moved = self.channels_last and len(call.inputs[1].dims) == _IMAGE_DIMS
        x, out = self._number(call.inputs[0]), self._number(call.outputs[0])
        comes_as_is = x not in self.in_channels_last and (x, self.version.get(x, 0)) not in self.maker
        is_kept = out < len(self.step.storages) and self.step.storages[out].freed is None
        loop = self._add_library(position, call)
        loop.moves_input, loop.moves_result = moved and comes_as_is, moved and is_kept and len(call.inputs) == 2
        if len(call.inputs) > 2:
            self._extend(position, call.outputs[:1], call.outputs[:1], {math.prod(call.outputs[0].dims)})
        if moved:
            self.in_channels_last.add(out)

    def _add_library(self, position: int, call: StepCall) -> FusedLoop:
        loop = FusedLoop(calls=[position], is_library=True)
        self.loops.append(loop)
        for use in call.inputs:
            loop.reads[self._key(use)] = use.bytes
        for use in call.outputs:
            self._write(loop, use)
        return loop

    def _add_norm(self, position: int, call: StepCall, by_row: bool) -> None:
        """Adds the loops of a norm.

        It is one loop where it walks over its rows one by one, else a loop that folds and one that normalizes.
        """
        x = call.inputs[0]
        numel = math.prod(x.dims)
        rows = self._rows(call)
        is_strided = len(x.dims) == 2 or self._number(x) in self.in_channels_last
        by_row = by_row or (call.name.endswith("batch_norm") and x.dims[0] == 1)
        kernels = reduction_kernels(numel / max(rows, 1), rows, is_strided and not by_row)
        outputs, is_backward = call.outputs[:1], call.name.endswith("backward")
        if by_row and kernels == 1:
            loop = self._extend(position, call.inputs, outputs, {numel})
            loop.folds = True
            return
        folded, sums = (call.inputs[:2], call.outputs[1:]) if is_backward else (call.inputs[:1], ())
        loop = self._extend(position, folded, sums, {numel})
        loop.folds = loop.splits = True
        loop.launches = max(loop.launches, kernels)
        self._extend(position, call.inputs, outputs, {numel}, fresh=True)

    @staticmethod
    def _rows(call: StepCall) -> float:
        dims = call.inputs[0].dims
        if "batch_norm" not in call.name and len(call.outputs) > 1:
            return float(math.prod(call.outputs[1].dims))
        return float(dims[1]) if len(dims) > 1 else 1.0

    def _add_concatenation(self, position: int, call: StepCall) -> None:
        """Adds the loops of a concatenation.

        It is one loop that computes its few inputs itself where all are pointwise, else copies of many inputs.

        See `cat` in torch/_inductor/lowering.py. Copies of one input into several results are one kernel.
        """
        makers = [self.maker.get(self._key(use)) for use in call.inputs]
        is_few = len(call.inputs) <= _MOST_CONCATENATED
        loop = FusedLoop(calls=[position], sizes={math.prod(use.dims) for use in call.outputs})
        for use, maker in zip(call.inputs, makers, strict=True):
            is_computed = is_few and maker is not None and not (maker.is_library or maker.folds)
            reads = maker.reads if maker is not None and is_computed else {self._key(use): use.bytes}
            for key, size in reads.items():
                loop.reads[key] = max(loop.reads.get(key, 0.0), size)
                self.readers.setdefault(key, []).append(loop)
        if not is_few:
            copied = {self._key(use) for use in call.inputs}
            loop.launches = float(len(copied - self.copied))
            self.copied |= copied
        self.loops.append(loop)
        for use in call.outputs:
            self._write(loop, use)

    def _add_loop(self, position: int, call: StepCall, family: str | None) -> None:
        sizes = {math.prod(use.dims) for use in call.outputs} | {math.prod(use.dims) for use in call.inputs}
        largest = {max(sizes, default=0)}
        if family == "pooling":
            largest = {math.prod(call.outputs[0].dims)}
        outputs = call.outputs[:1] if family == "pooling" else call.outputs
        if _folds(call.name, family) and call.inputs and outputs:
            self._add_reduction(position, call, largest)
        else:
            self._extend(position, call.inputs, outputs, largest)

    def _add_reduction(self, position: int, call: StepCall, sizes: set[int]) -> None:
        """Adds the loop of a reduction.

        What follows on the same elements joins it, unless the reduction is split among blocks.
        """
        x, results = call.inputs[0], {math.prod(use.dims) for use in call.outputs}
        is_softmax = "softmax" in call.name
        length, is_strided = _reduced(call)
        kernels = reduction_kernels(length, math.prod(x.dims) / max(length, 1.0), is_strided)
        if is_softmax and kernels > 1:
            loop = self._extend(position, call.inputs, [], sizes)
            loop.folds = loop.splits = True
            # The maximum, and the sum of the exponentials.
            loop.launches, loop.reads_again = 2.0 * kernels, x.bytes
            self._extend(position, call.inputs, call.outputs, sizes, fresh=True)
            return
        # Negative sizes: only other reductions walk over the elements of one that is split.
        split = {-size for size in sizes}
        loop = self._extend(position, call.inputs, call.outputs, sizes | split)
        loop.folds = True
        loop.launches = max(loop.launches, kernels)
        loop.sizes = results | split if kernels > 1 else loop.sizes | results
        if is_softmax and max(x.dims, default=0) > _LONGEST_ROW:
            loop.reads_again += x.bytes

    def _extend(
        self,
        position: int,
        inputs: Sequence[TensorUse],
        outputs: Sequence[TensorUse],
        sizes: set[int],
        fresh: bool = False,
    ) -> FusedLoop:
        """Gives the loop that takes the call on.

        It is that of a producer that walks over the same elements, else a new one.
        """
        loop = None if fresh else self._fitting(inputs, sizes)
        if loop is None:
            loop = FusedLoop()
            self.loops.append(loop)
        loop.calls += [] if position in loop.calls else [position]
        loop.sizes |= sizes
        for use in inputs:
            key = self._key(use)
            if self.maker.get(key) is not loop:
                loop.reads[key] = max(loop.reads.get(key, 0.0), use.bytes)
                self.readers.setdefault(key, []).append(loop)
        for use in outputs:
            self._write(loop, use)
        return loop

    def _fitting(self, inputs: Sequence[TensorUse], sizes: set[int]) -> FusedLoop | None:
        """Finds a loop over these sizes that shares an input.

        The loop makes one of the inputs or reads it too. No other input may depend on the loop.
        """
        keys = [self._key(use) for use in inputs]
        makers = [self.maker[key] for key in keys if key in self.maker]
        for loop in (*reversed(makers), *(reader for key in keys for reader in reversed(self.readers.get(key, [])))):
            is_open = not loop.is_library and not loop.splits and bool(loop.sizes & sizes)
            if is_open and not any(other is not loop and self._depends(other, loop) for other in makers):
                return loop
        return None

    def _depends(self, loop: FusedLoop, on: FusedLoop) -> bool:
        """True where a loop needs what another one makes, directly or through others."""
        seen, rest = {id(loop)}, [loop]
        while rest:
            for key in rest.pop().reads:
                maker = self.maker.get(key)
                if maker is on:
                    return True
                # What ended before the other began needs nothing of it.
                if maker is not None and maker.calls[-1] >= on.calls[0] and id(maker) not in seen:
                    seen.add(id(maker))
                    rest.append(maker)
        return False

    def _number(self, use: TensorUse) -> int:
        if use.storage is not None:
            return use.storage
        self.unnumbered -= 1
        return self.unnumbered

    def _key(self, use: TensorUse) -> tuple[int, int]:
        number = self._number(use)
        return number, self.version.get(number, 0)

    def _write(self, loop: FusedLoop, use: TensorUse) -> None:
        number = self._number(use)
        self.version[number] = self.version.get(number, 0) + 1
        key = number, self.version[number]
        self.maker[key] = loop
        loop.writes[key] = use.bytes


# Families whose calls work on the result of the call before, as a rule; others take a table, a window or nothing.
_IN_ORDER = ("pointwise", "normalization", "softmax", "reduction", "random", "copy")
_OWN_LOOPS = re.compile(r"_foreach_|_fused_(?!rms_norm)")
# Products that copy their addend into the result first: such a copy is no op of its own.
_ADDING_PRODUCT = re.compile(r"^aten::_?addmm\w*$|^aten::(?:baddbmm|addbmm|addmv|addr)_?$")
# The host reads a number or a size: a graph of a compiler ends.
_BREAKS_GRAPH = re.compile(r"^aten::(?:_local_scalar_dense|item|nonzero)$")
_TEXTS = ("dims", "types", "strides", "concrete", "result")
_CONCRETE = _TEXTS.index("concrete")
# Scalars on their way between other ops; they do not end a loop.
_TRIFLE_BYTES = 4096.0


class _CallWalk(Struct, frozen=True):
    """Sizes that a call walks over, and its place in a loop.

    It may begin one anew, or end the one that it is in.

    A call that ``joins`` tensors may also follow one that makes a part of them.
    """

    shape: tuple[int, ...]
    begins: bool = False
    ends: bool = False
    joins: bool = False


def find_loops(linked: Linked, costs: pd.DataFrame, attribution: pd.DataFrame) -> pd.DataFrame:
    """Gives LOOPS, the compiler's loop of each row of KERNELS.

    Neighbours share a loop. Rows are in the order of their streams.

    Neighbours walk over as many numbers each, or over sizes of which one is a row, a half or a broadcast of the other:
    a norm written out reduces each row and multiplies by the result, a rotary embedding joins two halves.
    """
    kernels, ops = linked.kernels, linked.ops
    issuer, owner = as_integers(kernels["op"]), as_integers(attribution["op"])
    op = np.where(owner < 0, issuer, owner)
    carried = as_integers(attribution["signature"])
    signature = np.where(carried < 0, np.append(as_integers(ops["signature"]), -1)[op], carried)
    parent = np.append(as_integers(ops["parent"]), -1)[op]
    row = _rows_in_order(linked, attribution, op)
    row = row[~_is_trifle(linked, costs, attribution, signature, parent)[row]]
    walks = _walks(linked, costs, np.unique(signature[row]), linked.is_host_only)
    is_copied_addend = np.append(text_matches(ops["name"], _ADDING_PRODUCT.search), False)[parent[row]]
    has_loop = np.append(np.isin(np.arange(len(costs)), [*walks]), False)[signature[row]] & ~is_copied_addend
    follows = _follow(walks, signature[row], has_loop, np.diff(op[row]) == 0)
    for column in ("stream", "step"):
        codes = kernels[column].cat.codes.to_numpy() if column == "stream" else as_integers(kernels[column])
        follows &= np.diff(codes[row]) == 0
    loop = np.cumsum(np.append(True, ~follows)[: row.size]) - 1
    numbers = np.full(len(costs) + 1, np.nan)
    for code, walk in walks.items():
        numbers[code] = math.prod(map(float, walk.shape or [math.nan]))
    loops, elements = np.full(len(kernels), -1), np.full(len(kernels), np.nan)
    loops[row] = np.where(has_loop, loop, -1)
    elements[row] = np.where(has_loop, numbers[signature[row]], np.nan)
    return LOOPS.check(pd.DataFrame({"loop": loops, "elements": elements}))


def _rows_in_order(linked: Linked, attribution: pd.DataFrame, op: Integers) -> Integers:
    """Gives rows of KERNELS by stream and start.

    They are those that work on the device, and reads of the host.
    """
    kernels = linked.kernels
    works = kernels["kind"].isin(("compute", "fill")).to_numpy() & ~attribution["dispatches"].to_numpy()
    breaks = np.append(text_matches(linked.ops["name"], _BREAKS_GRAPH.search), False)
    is_copy = (kernels["kind"] == "copy").to_numpy()
    row = np.flatnonzero(works | (is_copy & ~kernels["copy_way"].isin(OVER_LINK).to_numpy()) | breaks[op])
    return row[np.lexsort((kernels["ts_us"].to_numpy()[row], kernels["stream"].cat.codes.to_numpy()[row]))]


def _is_trifle(
    linked: Linked, costs: pd.DataFrame, attribution: pd.DataFrame, signature: Integers, parent: Integers
) -> Flags:
    """Marks rows of KERNELS that do next to no work.

    They are scalars on their way, or fills that a reduction makes of its own result.
    """
    kernels, family = linked.kernels, costs["family"].cat
    bytes_low = np.append(costs["bytes_low"].to_numpy(np.float64), np.nan)[signature]
    share = attribution["share"].to_numpy(np.float64)
    own = kernels["bytes"].to_numpy(np.float64, na_value=np.nan)
    moved = np.where(np.isnan(own), bytes_low * np.where(np.isnan(share), 1.0, share), own)

    def is_of(*families: str) -> Flags:
        is_wanted = np.append(np.isin(family.categories.astype(str), families), False)
        return np.asarray(is_wanted[np.append(family.codes.to_numpy(), -1)[signature]])

    op = np.where(attribution["op"].isna(), as_integers(kernels["op"]), as_integers(attribution["op"]))
    is_small = (moved <= _TRIFLE_BYTES) & ~is_of("matmul", "convolution", "attention", "recurrent")
    prepares = is_of("fill") & (parent >= 0) & np.isin(parent, op[is_of("reduction")])
    breaks = np.append(text_matches(linked.ops["name"], _BREAKS_GRAPH.search), False)[as_integers(kernels["op"])]
    return np.asarray((is_small | prepares) & ~breaks)


def _walks(linked: Linked, costs: pd.DataFrame, signatures: Integers, on_host: bool) -> dict[int, _CallWalk]:
    """Reads the sizes that each of these calls walks over.

    Calls without a loop are left out.
    """
    calls = linked.trace.signatures
    texts = [calls[name].to_list() for name in ("name", *_TEXTS)]
    families = costs["family"].astype(object).to_list()
    walks: dict[int, _CallWalk] = {}
    for code in signatures[signatures >= 0].tolist():
        name, *given = (text[code] if isinstance(text[code], str) else None for text in texts)
        if families[code] in _IN_ORDER and name is not None and not _OWN_LOOPS.search(name):
            walk = _walk(families[code], on_host, name, *given)
            walks |= {code: walk} if walk else {}
    return walks


def _walk(family: str, on_host: bool, name: str, *texts: str | None) -> _CallWalk | None:
    try:
        call = parse_call(name, *texts)
    except Unmodelled:
        return None
    sizes = [tensor.shape for tensor in call.tensors() if tensor.shape]
    shape = max(sizes, key=math.prod, default=())
    if _bare(name) in _JOINS:
        parts = call.lists()[0].shapes if call.lists() else ()
        return _CallWalk(_joined(parts, call) or shape, joins=True) if len(parts) <= _MOST_CONCATENATED else None
    if family == "normalization":
        return _CallWalk(shape, begins=_norm_rows(call, name) == "batch")
    if family not in ("reduction", "softmax"):
        return _CallWalk(shape)
    has_numbers = texts[_CONCRETE] is not None
    folded = _folded_dims(call, len(shape)) if has_numbers else None
    if folded is None:
        return _CallWalk(shape)
    length = float(math.prod(shape[dim] for dim in folded) if folded else math.prod(shape))
    results = math.prod(shape) / max(length, 1.0)
    is_strided = bool(folded) and len(shape) - 1 not in folded
    is_split = results <= 1 if on_host else reduction_kernels(length, results, is_strided) > 1
    apart = is_split or is_strided
    return _CallWalk(shape, begins=apart and family == "softmax", ends=apart and family == "reduction")


def _joined(parts: Sequence[tuple[int, ...]], call: OpCall) -> tuple[int, ...]:
    """Gives the sizes of the result of joining tensors.

    () where they are not known.
    """
    dim = (call.integers(1) or (-1,))[0]
    if not parts or any(len(part) != len(parts[0]) for part in parts) or not -len(parts[0]) <= dim < len(parts[0]):
        return ()
    joined = [*parts[0]]
    joined[dim] = sum(part[dim] for part in parts)
    return tuple(joined)


def _follow(walks: Mapping[int, _CallWalk], signature: Integers, has_loop: Flags, same_op: Flags) -> Flags:
    """Marks rows that go on with the loop of the one before.

    There is a flag for each row but the first.
    """
    one, two = signature[:-1], signature[1:]
    both = has_loop[:-1] & has_loop[1:]
    pair, first = numbered(one[both], two[both])
    befores, afters = (at[both][first].tolist() for at in (one, two))
    pairs = [(walks[before], walks[after]) for before, after in zip(befores, afters, strict=True)]
    fits = np.array([_fit(before.shape, after.shape, joins=after.joins) for before, after in pairs], dtype=bool)
    apart = np.array([before.ends or after.begins for before, after in pairs], dtype=bool)
    follows = both.copy()
    follows[both] = fits[pair] & (same_op[both] | ~apart[pair])
    return follows


def _fit(one: tuple[int, ...], other: tuple[int, ...], *, joins: bool) -> bool:
    """Tells whether one loop can walk over both sizes.

    One may be rows or a broadcast of the other.

    An op that joins tensors (``joins``: the other one) may also follow one that makes a part of it.
    """
    if not one or not other:
        return False
    large, small = ([size for size in sizes if size > 1] for sizes in sorted((one, other), key=math.prod, reverse=True))
    if math.prod(large) == math.prod(small):
        return True
    is_part = small in (large[: len(small)], large[len(large) - len(small) :])
    uneven = [pair for pair in zip(large, small, strict=False) if pair[0] != pair[1]]
    is_joined = joins and len(large) == len(small) and len(uneven) == 1
    return bool(small) and (is_part or is_joined)
