"""Infers shapes and dtypes that calls lack.

The ops and kernels around the calls tell them. Turns SIGNATURES into CALLS.

Runs between link and the cost formulas. These sources are used, and each completed call names its evidence:

- Dtypes: traces of torch 1.8 record shapes without dtypes. A C++ kernel names its data type first among the types of
  its template (``softmax_warp_forward<c10::Half, float, float>``: the others are accumulators). Index arithmetic is
  ``int`` and ``long`` too, so integers count only where a functor or a copy is made for them.
- Item sizes: lists of tensors never have a dtype, but the names of the kernels that process them may contain one.
- Results: no trace records what an op returns, but another op often does: the backward op that received its gradient,
  the op that reads it next, the op that called it, or the view or the memory that it makes on the way.
- Forward operands: the backward pass of an embedding lookup is recorded with nothing but the gradient of its result;
  the number of indices is in the record of the forward call. So are the operands of functions written in Python, which
  autograd's sequence number ties to their backward node.
- Gradients: a backward op of a convolution whose mask was not recorded makes those that its kernels' names tell.
- Sizes of lists: a kernel over lists of tensors has one block per part of 65536 elements, as its grid shows.
"""

import json
import re
from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pandas as pd
from msgspec import Struct

from bottleneck.cost.call import load_json
from bottleneck.cost.convolution import BACKWARD, FORWARD, UNFOLDED
from bottleneck.cost.functions import BACKWARD as NODE_SUFFIX
from bottleneck.cost.functions import NEED_OPERANDS
from bottleneck.cost.quantized import PACKED_LINEAR
from bottleneck.cost.recommendation import CLASSIC, NARROWEST_ROW, WIDEST_ROW
from bottleneck.cost.traffic import named
from bottleneck.schema.intervals import Integers, numbered
from bottleneck.schema.kernel_dtypes import kernel_dtype, kernel_item_bytes
from bottleneck.schema.linked_trace import Linked
from bottleneck.schema.records import replace
from bottleneck.schema.tables import CALLS, as_integers

_NODE = re.compile(r"torch::autograd::CppNode<SplitLookupFunction_\w+_Op>")
_FORWARD = re.compile(r"fb(?:gemm)?::split_embedding_codegen_lookup_\w+_function")
# More gradients of different sizes than any model has lookups; each is compared with every forward call.
_MOST_GRADIENTS = 64


def forward_operands(signatures: pd.DataFrame, ops: pd.DataFrame) -> tuple[Integers, list[str | None]]:
    """Gives for each op a code into a list of forward calls.

    A forward call is JSON of dims and types. Code 0, null, is for ops without a known one.

    A gradient [batch, width] belongs to the latest lookup before it of as many sequences whose tables can add up to
    that width: their rows are 4 to 1024 elements wide.
    """
    codes = np.zeros(len(ops), np.int64)
    gradients = _sizes(signatures, _NODE)
    lookups = {row: size for row, dims in _sizes(signatures, _FORWARD).items() if (size := _batch(dims)) is not None}
    code_by_lookup: dict[int, int] = {}
    texts: list[str | None] = [None]
    signature = as_integers(ops["signature"])
    started = ops["ts_us"].to_numpy()
    for row, dims in list(gradients.items())[:_MOST_GRADIENTS] if lookups else []:
        fitting = [lookup for lookup, (batch, tables) in lookups.items() if _fits(dims, batch, tables)]
        backward, forward = (np.flatnonzero(np.isin(signature, rows)) for rows in ([row], fitting))
        forward = forward[np.argsort(started[forward], kind="stable")]
        before = np.searchsorted(started[forward], started[backward]) - 1
        backward, nearest = backward[before >= 0], signature[forward[before[before >= 0]]]
        for lookup in np.unique(nearest).tolist():
            if lookup not in code_by_lookup:
                code_by_lookup[lookup] = len(texts)
                texts.append(json.dumps([signatures["dims"].iloc[lookup], signatures["types"].iloc[lookup]]))
        codes[backward] = [code_by_lookup[lookup] for lookup in nearest.tolist()]
    return codes, texts


def _sizes(signatures: pd.DataFrame, name: re.Pattern[str]) -> dict[int, list[Any]]:
    """Dims per argument of the signatures whose name matches, by their row."""
    rows = [row for row, text in enumerate(signatures["name"]) if name.fullmatch(str(text))]
    return {row: dims for row in rows if (dims := _list(signatures["dims"].iloc[row])) is not None}


def _batch(dims: list[Any]) -> tuple[int, int] | None:
    """Gives sequences and tables of a lookup by its offsets.

    Null where they do not fit.
    """
    try:
        tables, bags = (dims[position][0] - 1 for position in (CLASSIC.d_offsets, CLASSIC.offsets))
    except (LookupError, TypeError):
        return None
    return (bags // tables, tables) if tables > 0 and bags % tables == 0 else None


def _fits(dims: list[Any], batch: int, tables: int) -> bool:
    size = dims[0] if dims else None
    if not isinstance(size, list) or len(size) != 2 or not all(type(length) is int for length in size):
        return False
    return bool(size[0] == batch and NARROWEST_ROW * tables <= size[1] <= WIDEST_ROW * tables)


def function_operands(linked: Linked) -> tuple[Integers, list[str | None]]:
    """Gives for each op a code into a list of forward calls.

    They are as in ``forward_operands``, for nodes of functions in Python.
    """
    ops, signatures = linked.ops, linked.trace.signatures
    codes, texts = np.zeros(len(ops), np.int64), list[str | None]([None])
    names, signature = ops["name"].cat, as_integers(ops["signature"])
    forward_names = {name.removesuffix(NODE_SUFFIX) for name in NEED_OPERANDS}
    is_wanted, is_forward = (
        np.append(names.categories.isin(list(some)), False)[names.codes.to_numpy()] & (signature >= 0)
        for some in (NEED_OPERANDS, forward_names)
    )
    if not is_wanted.any() or not is_forward.any():
        return codes, texts
    number = np.full(len(linked.trace.events), -1, np.int64)
    number[linked.trace.op_args["event"].to_numpy()] = as_integers(linked.trace.op_args["sequence"])
    number = number[ops["event"].to_numpy()]
    labels = ops["name"].astype(object).to_numpy()
    forward_rows, node_rows = (np.flatnonzero(rows & (number >= 0)).tolist() for rows in (is_forward, is_wanted))
    calls = {(str(labels[row]), int(number[row])): int(signature[row]) for row in forward_rows}
    code_of: dict[int, int] = {}
    for row in node_rows:
        call = calls.get((str(labels[row]).removesuffix(NODE_SUFFIX), int(number[row])))
        if call is not None:
            if call not in code_of:
                code_of[call] = len(texts)
                texts.append(json.dumps([signatures["dims"].iloc[call], signatures["types"].iloc[call]]))
            codes[row] = code_of[call]
    return codes, texts


# Elements that a block of a kernel over lists takes (ATen/native/cuda/ForeachFunctors.cuh), and the most tensors of one
# launch, by how many lists it walks (MultiTensorApply.cuh): the last block of each tensor may hold a single element.
_LIST_BLOCK = 65536
_OVER_LISTS = re.compile(r"multi_tensor_apply_kernel(?:<.*?ListMetadata<([1-5])>)?")
_MOST_TENSORS = {"1": 110, "2": 64, "3": 48, "4": 36, "5": 30}


def list_sizes(linked: Linked, signature: Integers) -> tuple[Integers, list[tuple[int, int] | None]]:
    """Gives for each op a code into sizes of its lists.

    A size is the least and most elements, by the blocks of the op's kernels. Code 0 is null.
    """
    kernels, codes = linked.kernels, np.zeros(len(signature), np.int64)
    labels: list[tuple[int, int] | None] = [None]
    wanted = np.array([*map(_lacks_list_sizes, *_texts_of(linked.trace.signatures)), False], bool)
    op = as_integers(kernels["op"])
    rows = np.flatnonzero(np.append(wanted[signature], False)[op] & (kernels["kind"] == "compute").to_numpy())
    names, blocks = kernels["name"].astype(object).to_numpy()[rows], as_integers(kernels["blocks"])[rows]
    for owner in np.unique(op[rows]).tolist():
        mine = op[rows] == owner
        kinds = [_OVER_LISTS.search(str(name)) for name in names[mine]]
        if not all(kinds) or (blocks[mine] <= 0).any():
            continue
        most = [_MOST_TENSORS[kind[1] or "1"] for kind in kinds if kind]
        pairs = list(zip(blocks[mine].tolist(), most, strict=True))
        least = sum(max(count, (count - tensors) * _LIST_BLOCK) for count, tensors in pairs)
        label = (least, sum(count for count, _ in pairs) * _LIST_BLOCK)
        if label not in labels:
            labels.append(label)
        codes[owner] = labels.index(label)
    return codes, labels


def _texts_of(signatures: pd.DataFrame) -> tuple[list[Any], list[Any]]:
    return signatures["dims"].to_list(), signatures["types"].to_list()


def _lacks_list_sizes(dims: object, types: object) -> bool:
    """True for calls with lists of tensors of which no sizes were recorded."""
    if not (isinstance(types, str) and '"TensorList"' in types):
        return False
    sizes = _list(dims) or []
    return not any(isinstance(size, list) and size and isinstance(size[0], list) for size in sizes)


Sizes = list[int]

# Between a convolution and the op that reads it lies at most bookkeeping without tensors, such as counting batches.
_OPS_BETWEEN = 8
_VIEW = "aten::as_strided"

# Convolutions whose input and weight come first, and the layouts of backward ops by the gradients that they make.
_CONVOLUTIONS = frozenset(
    name
    for name, layout in {**FORWARD, **UNFOLDED}.items()
    if (layout.inputs, layout.weight) == (0, 1) and not layout.always_transposed
)
_GRADIENTS = {name: layout for name, layout in BACKWARD.items() if layout.makes is None}
# Backward ops that make one gradient, and the position of the argument that holds its sizes.
_FOR_INPUT = {name: layout.inputs for name, layout in BACKWARD.items() if layout.makes == (True, False, False)}
_FOR_WEIGHT = {name: layout.weight for name, layout in BACKWARD.items() if layout.makes == (False, True, False)}
_PARTS = _FOR_INPUT | _FOR_WEIGHT
_INDEXED = frozenset({"aten::index", "aten::_unsafe_index"})


class _Signature(Struct, frozen=True):
    """Name, sizes and scalars of one signature."""

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


class _CallIndex:
    """The ops of a trace and the calls that they make.

    A signature is parsed when it is used.
    """

    def __init__(self, signatures: pd.DataFrame, ops: pd.DataFrame) -> None:
        self.ops = ops
        self.names = [str(name) for name in signatures["name"]]
        self._dims, self._concrete = signatures["dims"].to_list(), signatures["concrete"].to_list()
        self.signature = as_integers(ops["signature"])

    def call(self, row: int) -> _Signature:
        """Gives the call of one signature.

        Lists are empty where the trace has none, or holds something else.
        """
        return _Signature(self.names[row], _list(self._dims[row]) or [], _list(self._concrete[row]) or [])

    def calls_of(self, names: frozenset[str]) -> dict[int, _Signature]:
        """The calls of some ops by their row in SIGNATURES."""
        return {row: self.call(row) for row, name in enumerate(self.names) if name in names}

    @cached_property
    def parent(self) -> Integers:
        """Row in OPS of the op around each op, -1 for none."""
        return as_integers(self.ops["parent"])

    def ops_of(self, calls: dict[int, _Signature]) -> Integers:
        """The ops that make one of the calls."""
        wanted = np.zeros(len(self.names) + 1, bool)
        wanted[list(calls)] = True
        return np.flatnonzero(wanted[self.signature])

    def outermost(self, ops: Integers, names: frozenset[str]) -> Integers:
        """Finds the outermost enclosing op of these names, per op.

        The ops from it inwards all have one of the names.

        Jumps double, so that a trace may nest ops as deeply as it likes.
        """
        labels = self.ops["name"].cat
        alike = np.append(labels.categories.isin(list(names))[labels.codes.to_numpy()], False)
        jump = np.where(alike[self.parent], self.parent, np.arange(len(self.parent)))
        while not np.array_equal(further := jump[jump], jump):
            jump = further
        return np.asarray(jump[ops], np.int64)

    def next_after(self, ops: Integers) -> Integers:
        """Finds the first op that starts after each op has ended.

        It is on the same thread. Where there is none, the number of ops stands for it.
        """
        thread = self.ops["thread"].cat.codes.to_numpy()
        track = np.cumsum(np.concatenate([[False], thread[1:] != thread[:-1]]))
        start, end = (self.ops["ts_us"].to_numpy(), (self.ops["ts_us"] + self.ops["dur_us"]).to_numpy())
        span = float(end.max() - start.min()) + 1.0
        position = track * span + (start - start.min())
        after = np.searchsorted(position, (track * span + (end - start.min()))[ops], side="left")
        after = np.maximum(after, ops + 1)
        same = (after < len(track)) & (np.append(track, -1)[np.minimum(after, len(track))] == track[ops])
        return np.where(same, after, len(track))


def result_sizes(signatures: pd.DataFrame, ops: pd.DataFrame) -> tuple[Integers, list[str | None]]:
    """Gives for each op a code into sizes of its result.

    Sizes are JSON. Code 0, null, is for unknown ones.
    """
    index = _CallIndex(signatures, ops)
    codes = np.zeros(len(ops), np.int64)
    code_of: dict[str | None, int] = {None: 0}
    for find in (_convolution_results, _backward_results, _indexed_results, _packed_results):
        wanted, source, read = find(index)
        pairs, which = np.unique(np.stack([index.signature[wanted], source]), axis=1, return_inverse=True)
        results = [read(*pair) for pair in pairs.T.tolist()]
        for sizes in (json.dumps(size) for size in results if size):
            code_of.setdefault(sizes, len(code_of))
        codes[wanted] = np.array([code_of[json.dumps(size) if size else None] for size in results], np.int64)[which]
    return codes, list(code_of)


# Ops without a recorded result, the signature of the op that holds its sizes (-1: none), and how to read them there.
_Found = tuple[Integers, Integers, Callable[[int, int], Sizes | None]]


def _convolution_results(index: _CallIndex) -> _Found:
    """Gives result sizes of forward convolutions without stride and padding.

    They are those of the gradient, else of the next operand.
    """
    wanted = {row: call for row, call in index.calls_of(_CONVOLUTIONS).items() if not any(call.concrete)}
    gradients = _gradients(index) if wanted else {}
    ops = index.ops_of(wanted)
    source = _consumers(index, ops) if len(ops) else ops

    def read(row: int, source_row: int) -> Sizes | None:
        inputs, weight = wanted[row].sizes(0), wanted[row].sizes(1)
        if inputs is None or weight is None:
            return None
        exact = gradients.get((tuple(inputs), tuple(weight)))
        if exact is not None or source_row < 0:
            return exact
        return _as_output(index.call(source_row).sizes(0), inputs, weight)

    return ops, source, read


def _gradients(index: _CallIndex) -> dict[tuple[tuple[int, ...], tuple[int, ...]], Sizes]:
    """Gives sizes of the output's gradient by input and weight.

    Only sizes count where all calls with these agree.
    """
    grads_by_operands: dict[tuple[tuple[int, ...], tuple[int, ...]], list[Sizes]] = {}
    for call in index.calls_of(frozenset(_GRADIENTS)).values():
        layout = _GRADIENTS[call.name]
        grad, inputs, weight = (call.sizes(at) for at in (layout.grad, layout.inputs, layout.weight))
        if grad and inputs and weight and _as_output(grad, inputs, weight):
            grads_by_operands.setdefault((tuple(inputs), tuple(weight)), []).append(grad)
    return {key: grads[0] for key, grads in grads_by_operands.items() if all(grad == grads[0] for grad in grads)}


def _as_output(sizes: Sizes | None, inputs: Sizes, weight: Sizes) -> Sizes | None:
    """The sizes themselves where a convolution of this input and weight can have them."""
    if sizes is None or not len(sizes) == len(inputs) == len(weight):
        return None
    # Padding beyond the window would convolve nothing but zeros.
    fits = all(
        1 <= out <= size + window - 1 for out, size, window in zip(sizes[2:], inputs[2:], weight[2:], strict=True)
    )
    return sizes if fits and sizes[:2] == [inputs[0], weight[0]] else None


def _consumers(index: _CallIndex, ops: Integers) -> Integers:
    """Finds the first later op that may read the result.

    It is on the same thread, and its first operand has as many dimensions. Gives its signature, -1 for none nearby.
    """
    ranks = np.array([*(len(index.call(row).sizes(0) or []) for row in range(len(index.names))), 0], np.int64)
    wanted = ranks[index.signature[ops]]
    candidate = index.next_after(index.outermost(ops, _CONVOLUTIONS | {"aten::_convolution", "aten::convolution"}))
    source = np.full(len(ops), -1, np.int64)
    thread = np.append(index.ops["thread"].cat.codes.to_numpy(), -1)
    signature = np.append(index.signature, -1)
    for _ in range(_OPS_BETWEEN):
        here = np.minimum(candidate, len(index.signature))
        matches = (source < 0) & (thread[here] == thread[ops]) & (ranks[signature[here]] == wanted)
        source = np.where(matches, signature[here], source)
        candidate = candidate + 1
    return source


def _backward_results(index: _CallIndex) -> _Found:
    """Gives sizes of gradients that are a list of integers.

    They are gradients of an input or a weight. The sizes come from the op that requested both.
    """
    wanted = {
        row: call
        for row, call in index.calls_of(frozenset(_PARTS)).items()
        if call.sizes(_PARTS[call.name]) is None and not any(call.concrete)
    }
    ops = index.ops_of(wanted)
    source = np.append(index.signature, -1)[index.parent[ops]]

    def read(row: int, source_row: int) -> Sizes | None:
        whole = index.call(source_row) if source_row >= 0 else None
        layout = _GRADIENTS.get(whole.name) if whole else None
        if whole is None or layout is None:
            return None
        return whole.sizes(layout.inputs if wanted[row].name in _FOR_INPUT else layout.weight)

    return ops, source, read


def _indexed_results(index: _CallIndex) -> _Found:
    """Gives result sizes of index(x, indices).

    They are the sizes of the view of x that it makes, with stride 0 where indices replace x.

    ATen's restride_src lays x out like the result before the kernel adds the indices' offsets.
    """
    wanted = index.calls_of(_INDEXED)
    views = {
        row: call.integers(1)
        for row, call in (index.calls_of(frozenset({_VIEW})) if wanted else {}).items()
        if 0 in (call.integers(2) or [])
    }
    view_ops = index.ops_of({row: index.call(row) for row in views})
    seen = np.full(len(index.signature) + 1, -1, np.int64)
    seen[index.parent[view_ops]] = index.signature[view_ops]
    ops = index.ops_of(wanted)
    return ops, seen[ops], lambda _, source_row: views.get(source_row)


# Ops that make memory of the sizes that they are given first.
_MAKE_MEMORY = frozenset({"aten::empty", "aten::_empty_affine_quantized"})


def _packed_results(index: _CallIndex) -> _Found:
    """Gives result sizes of linear layers with a packed weight.

    They are those of memory that the layer makes, if these are the sizes of its input but for the last one.
    """
    wanted = index.calls_of(frozenset(PACKED_LINEAR))
    made = {row: call.integers(0) for row, call in (index.calls_of(_MAKE_MEMORY) if wanted else {}).items()}
    memory_ops = index.ops_of({row: index.call(row) for row in made})[::-1]
    first = np.full(len(index.signature) + 1, -1, np.int64)
    first[index.parent[memory_ops]] = index.signature[memory_ops]
    ops = index.ops_of(wanted)

    def read(row: int, source_row: int) -> Sizes | None:
        inputs, sizes = wanted[row].sizes(0), made.get(source_row)
        return sizes if inputs and sizes and sizes[:-1] == inputs[:-1] else None

    return ops, first[ops], read


@lru_cache(maxsize=4096)
def _list(text: object) -> list[Any] | None:
    """A JSON list, which is not to be changed; null for anything else."""
    try:
        value = load_json(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, list) else None


Row = dict[str, Any]

# Integer and boolean arguments by the schemas of the ops that traces without dtypes (torch 1.8) hold; the others follow
# the data.
_MASK_ARGUMENTS = named(
    {"_masked_scale masked_fill masked_fill_ masked_scatter_ masked_select": (1,), "_s_where where": (0,)}
)
_INDEX_ARGUMENTS = named(
    {
        "embedding embedding_dense_backward nll_loss_forward nll_loss2d_forward": (1,),
        "gather index_select nll_loss_backward nll_loss2d_backward scatter_ scatter_add_": (2,),
        "max_pool2d_with_indices_backward max_pool3d_with_indices_backward": (7,),
    }
)
_INTEGERS = ("long int", "int", "long", "short", "bool", "unsigned char", "signed char")


class _Inferred(Struct, frozen=True):
    """Values that one source gives per op.

    They are codes into ``labels`` (0: none), and a function that adds one to a row.
    """

    codes: Integers
    labels: list[Any]
    fill: Callable[[Row, Any], Row]
    source: str


def infer_shapes(linked: Linked) -> Linked:
    """Gives the trace with CALLS in place of SIGNATURES.

    Completed ops point to rows of their own.

    Rows of SIGNATURES keep their numbers. Where an op's kernels, or the ops around it, disagree, nothing is inferred.
    """
    signatures, ops = linked.trace.signatures, linked.ops
    signature = as_integers(ops["signature"]).copy()
    sources = (
        _dtypes(linked, signature),
        _item_sizes(linked, signature),
        _Inferred(*result_sizes(signatures, ops), _set_result, "sizes from the ops around it"),
        _Inferred(*forward_operands(signatures, ops), _append_operands, "sizes from its forward op"),
        _Inferred(*function_operands(linked), _append_operands, "sizes from its forward op"),
        _Inferred(*list_sizes(linked, signature), _set_list_sizes, "sizes of lists from the kernels' grids"),
        _Inferred(*_gradient_masks(linked, signature), _append_mask, "gradients from kernel names"),
    )
    key = signature
    for inferred in sources:
        key = key * len(inferred.labels) + inferred.codes
    completed = np.flatnonzero(np.any([inferred.codes > 0 for inferred in sources], axis=0) & (signature >= 0))
    code, distinct = pd.factorize(key[completed])
    first = completed[np.unique(code, return_index=True)[1]]
    texts = {name: signatures[name].to_list() for name in signatures.columns}
    rows = [
        _completed({name: column[signature[op]] for name, column in texts.items()}, sources, op)
        for op in first.tolist()
    ]
    whole = signatures.assign(result=None, evidence=None)
    calls = pd.concat([whole, pd.DataFrame(rows, columns=list(CALLS.columns))]) if len(distinct) else whole
    signature[completed] = len(signatures) + code
    renumbered = pd.arrays.IntegerArray(signature.astype(np.int32), signature < 0)
    return replace(
        linked,
        trace=replace(linked.trace, signatures=CALLS.check(calls.astype(object).reset_index(drop=True))),
        ops=ops.assign(signature=renumbered),
    )


def _completed(row: Row, sources: tuple[_Inferred, ...], op: int) -> Row:
    row = {**row, "result": None, "evidence": None}
    given = [source for source in sources if source.codes[op] > 0]
    for source in given:
        row = source.fill(row, source.labels[source.codes[op]])
    return {**row, "evidence": tuple(source.source for source in given)}


def _dtypes(linked: Linked, signature: Integers) -> _Inferred:
    """Dtypes of calls without any, by the kernels that the op itself launched."""
    signatures = linked.trace.signatures
    wanted = [
        isinstance(dims, str) and dims != "[]" and (not isinstance(types, str) or types == "[]")
        for dims, types in zip(signatures["dims"], signatures["types"], strict=True)
    ]
    return _Inferred(*_by_kernel(linked, wanted, signature, kernel_dtype), _fill_types, "dtype from kernel names")


def _item_sizes(linked: Linked, signature: Integers) -> _Inferred:
    """Item sizes of lists of tensors, by the kernels that the op itself launched."""
    wanted = [isinstance(types, str) and '"TensorList"' in types for types in linked.trace.signatures["types"]]
    by_name: Callable[[str, str | None], float | None] = lambda name, _: kernel_item_bytes(name)  # noqa: E731
    return _Inferred(*_by_kernel(linked, wanted, signature, by_name), _fill_lists, "item size from kernel names")


def _by_kernel(
    linked: Linked, wanted: list[bool], signature: Integers, parse: Callable[[str, str | None], Any]
) -> tuple[Integers, list[Any]]:
    """Gives for each wanted op a code into its kernels' values.

    The values are distinct. Code 0, null, is for ops whose kernels disagree or whose signature is not wanted.

    Each pair of kernel name and math dtype is parsed once.
    """
    kernels, codes = linked.kernels, np.zeros(len(signature), np.int64)
    op = as_integers(kernels["op"])
    is_wanted = np.append(np.array([*wanted, False], bool)[signature], False)
    mine = np.flatnonzero(is_wanted[op] & (kernels["family"] != "host").to_numpy())
    name, dtype = (kernels[column].cat.codes.to_numpy()[mine].astype(np.int64) for column in ("name", "math_dtype"))
    if not len(mine):
        return codes, [None]
    which, first = numbered(name, dtype)
    texts, dtypes = kernels["name"].cat.categories, [*kernels["math_dtype"].cat.categories, None]
    pairs = zip(name[first].tolist(), dtype[first].tolist(), strict=True)
    values = [parse(str(texts[row]), dtypes[column]) for row, column in pairs]
    labels = [None, *dict.fromkeys(value for value in values if value is not None)]
    label = np.array([labels.index(parsed) for parsed in values], np.int64)[which.ravel()]
    label, owner = label[label > 0], op[mine][label > 0]
    lowest = np.full(len(signature), len(labels), np.int64)
    np.minimum.at(lowest, owner, label)
    np.maximum.at(codes, owner, label)
    return np.where(codes == lowest, codes, 0), labels


# Kernels of cuDNN, CUTLASS, CK and MIOpen that make the gradient of the input, and of the weight.
_OF_INPUT = re.compile(r"dgrad|bwd_?data|backward_?data", re.IGNORECASE)
_OF_WEIGHT = re.compile(r"wgrad|wrw|bwd_?weight|backward_?weight", re.IGNORECASE)
_MASKED = frozenset(name for name, layout in BACKWARD.items() if layout.makes is None)


def _gradient_masks(linked: Linked, signature: Integers) -> tuple[Integers, list[str | None]]:
    """Gives each op the code of its mask of gradients.

    A mask says which gradients the kernels make. Code 0, null, is for ops whose mask was recorded, and for those with a
    kernel of a convolution that tells none.
    """
    signatures, kernels = linked.trace.signatures, linked.kernels
    lacks = [
        name in _MASKED and not any(_list(concrete) or ())
        for name, concrete in zip(signatures["name"], signatures["concrete"], strict=True)
    ]
    op = as_integers(kernels["op"])
    is_mine = np.append(np.array([*lacks, False], bool)[signature], False)[op]
    mine = np.flatnonzero(is_mine & (kernels["family"] == "convolution").to_numpy())
    names = kernels["name"].cat.categories
    tells = np.array([[bool(kind.search(name)) for name in names] for kind in (_OF_INPUT, _OF_WEIGHT)])
    made = np.zeros((2, len(signature)), bool)
    for kind in range(2 if mine.size else 0):
        made[kind, op[mine[tells[kind, kernels["name"].cat.codes.to_numpy()[mine]]]]] = True
    silent = mine[~tells[:, kernels["name"].cat.codes.to_numpy()[mine]].any(axis=0)] if mine.size else mine
    made[:, op[silent]] = False
    labels = [None, "[True, False, False]", "[False, True, False]", "[True, True, False]"]
    return made[0] + 2 * made[1].astype(np.int64), labels


def _append_mask(row: Row, mask: str) -> Row:
    """Puts the mask behind the arguments that were recorded."""
    columns = {name: _list(row[name]) or [] for name in ("dims", "types", "strides", "concrete")}
    size = len(columns["dims"])
    blank: dict[str, object] = {"dims": [], "types": "", "strides": [], "concrete": ""}
    lists = {name: [*values[:size], *[blank[name]] * (size - len(values))] for name, values in columns.items()}
    last = {**blank, "concrete": mask}
    return {**row, **{name: json.dumps([*values, last[name]]) for name, values in lists.items()}}


def _fill_types(row: Row, dtype: str) -> Row:
    """Fills in a dtype for every argument with dimensions.

    Indices and masks by the schema of the op keep their own.
    """
    indices, masks = (table.get(row["name"], ()) for table in (_INDEX_ARGUMENTS, _MASK_ARGUMENTS))
    data = "float" if dtype in _INTEGERS and indices else dtype
    own = {**dict.fromkeys(indices, "long int"), **dict.fromkeys(masks, "bool")}
    types = [_type_of(sizes, own.get(at, data)) for at, sizes in enumerate(json.loads(row["dims"]))]
    return {**row, "types": json.dumps(types)}


def _set_result(row: Row, sizes: str) -> Row:
    return {**row, "result": sizes}


def _append_operands(row: Row, forward: str) -> Row:
    """The arguments of the forward call behind those of the node itself."""
    texts = dict(zip(("dims", "types"), json.loads(forward), strict=True))
    return {**row, **{name: json.dumps([*json.loads(row[name]), *json.loads(text)]) for name, text in texts.items()}}


def _set_list_sizes(row: Row, elements: tuple[int, int]) -> Row:
    """Puts the least elements in place of the first list.

    Its type tells how many times as many they may be.
    """
    types, sizes = json.loads(row["types"]), json.loads(row["dims"] or "[]")
    at = next(place for place, name in enumerate(types) if str(name).startswith("TensorList"))
    least, most = elements
    sizes += [[]] * (at + 1 - len(sizes))
    sizes[at] = [[least]]
    types[at] = f"TensorList[{types[at].removeprefix('TensorList').strip('[]')},{most / least:.3f}]"
    return {**row, "types": json.dumps(types), "dims": json.dumps(sizes)}


def _type_of(sizes: object, dtype: str) -> str:
    if not isinstance(sizes, list) or not sizes:
        return ""
    return "TensorList" if isinstance(sizes[0], list) else dtype


def _fill_lists(row: Row, item_bytes: float) -> Row:
    return {**row, "types": row["types"].replace('"TensorList"', f'"TensorList[{item_bytes:.0f}]"')}
