"""Facts that a call's own record lacks and the rest of the trace tells: the cost stage's step before pricing.

Traces of torch 1.8 hold shapes without dtypes, lists of tensors never have a dtype, and no result is recorded unless it
was passed in. The names of the kernels that an op launched tell dtypes and item sizes; the ops around it tell the
sizes of its result. A completed call is a row of its own, which says what completed it, so that no price hides it.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from bottleneck.cost.forwards import forward_operands
from bottleneck.cost.kernel_dtypes import kernel_dtype, kernel_item_bytes
from bottleneck.cost.witnesses import witness_results
from bottleneck.tables import CALLS
from bottleneck.tracing import Linked

Rows = npt.NDArray[np.int64]
Row = dict[str, Any]

# Integer and boolean arguments by the schemas of the ops that traces without dtypes (torch 1.8) hold; the others follow
# the data.
_MASK_ARGUMENTS = {
    "aten::_masked_scale": (1,),
    "aten::_s_where": (0,),
    "aten::masked_fill": (1,),
    "aten::masked_fill_": (1,),
    "aten::masked_scatter_": (1,),
    "aten::masked_select": (1,),
    "aten::where": (0,),
}
_INDEX_ARGUMENTS = {
    "aten::embedding": (1,),
    "aten::embedding_dense_backward": (1,),
    "aten::gather": (2,),
    "aten::index_select": (2,),
    "aten::max_pool2d_with_indices_backward": (7,),
    "aten::max_pool3d_with_indices_backward": (7,),
    "aten::nll_loss_backward": (2,),
    "aten::nll_loss_forward": (1,),
    "aten::nll_loss2d_backward": (2,),
    "aten::nll_loss2d_forward": (1,),
    "aten::scatter_": (2,),
    "aten::scatter_add_": (2,),
}
_INTEGERS = ("long int", "int", "long", "short", "bool", "unsigned char", "signed char")


@dataclass(frozen=True)
class _Told:
    """What one source tells of every op: codes into ``labels`` (0: nothing), and how a row takes a label in."""

    codes: Rows
    labels: list[Any]
    fill: Callable[[Row, Any], Row]
    source: str


def complete(linked: Linked) -> Linked:
    """The same trace with CALLS in place of SIGNATURES; ops that evidence completes point to rows of their own.

    Rows of SIGNATURES keep their numbers. Where an op's kernels, or the ops around it, disagree, they tell nothing.
    """
    signatures, ops = linked.trace.signatures, linked.ops
    signature = np.array(ops["signature"].to_numpy(dtype=np.int64, na_value=-1), np.int64)
    sources = (_dtypes(linked, signature), _item_sizes(linked, signature), _results(linked), _forwards(linked))
    key = signature
    for told in sources:
        key = key * len(told.labels) + told.codes
    completed = np.flatnonzero(np.any([told.codes > 0 for told in sources], axis=0) & (signature >= 0))
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


def _completed(row: Row, sources: tuple[_Told, ...], op: int) -> Row:
    row = {**row, "result": None, "evidence": None}
    given = [told for told in sources if told.codes[op] > 0]
    for told in given:
        row = told.fill(row, told.labels[told.codes[op]])
    return {**row, "evidence": "; ".join(told.source for told in given)}


def _dtypes(linked: Linked, signature: Rows) -> _Told:
    """Dtypes of calls without any, by the kernels that the op itself launched."""
    signatures = linked.trace.signatures
    asked = [
        isinstance(dims, str) and dims != "[]" and (not isinstance(types, str) or types == "[]")
        for dims, types in zip(signatures["dims"], signatures["types"], strict=True)
    ]
    return _Told(*_by_kernel(linked, asked, signature, kernel_dtype), _fill_types, "dtype from kernel names")


def _item_sizes(linked: Linked, signature: Rows) -> _Told:
    """Item sizes of lists of tensors, by the kernels that the op itself launched."""
    asked = [isinstance(types, str) and '"TensorList"' in types for types in linked.trace.signatures["types"]]
    by_name: Callable[[str, str | None], float | None] = lambda name, _: kernel_item_bytes(name)  # noqa: E731
    return _Told(*_by_kernel(linked, asked, signature, by_name), _fill_lists, "item size from kernel names")


def _results(linked: Linked) -> _Told:
    codes, labels = witness_results(linked.trace.signatures, linked.ops)
    return _Told(codes, labels, lambda row, sizes: {**row, "result": sizes}, "sizes from the ops around it")


def _forwards(linked: Linked) -> _Told:
    codes, labels = forward_operands(linked.trace.signatures, linked.ops)
    return _Told(codes, labels, _append_operands, "sizes from its forward op")


def _by_kernel(
    linked: Linked, asked: list[bool], signature: Rows, tell: Callable[[str, str | None], Any]
) -> tuple[Rows, list[Any]]:
    """For each op whose signature asks, a code into the distinct answers of its kernels; 0, null, unless they agree.

    Each pair of kernel name and math dtype is judged once.
    """
    kernels, codes = linked.kernels, np.zeros(len(signature), np.int64)
    op = kernels["op"].to_numpy(dtype=np.int64, na_value=-1)
    wants = np.append(np.array([*asked, False], bool)[signature], False)
    mine = np.flatnonzero(wants[op] & (kernels["family"] != "host").to_numpy())
    name, dtype = (kernels[column].cat.codes.to_numpy()[mine].astype(np.int64) for column in ("name", "math_dtype"))
    if not len(mine):
        return codes, [None]
    pairs, which = np.unique(np.stack([name, dtype]), axis=1, return_inverse=True)
    texts, dtypes = kernels["name"].cat.categories, [*kernels["math_dtype"].cat.categories, None]
    answers = [tell(str(texts[row]), dtypes[column]) for row, column in pairs.T.tolist()]
    labels = [None, *dict.fromkeys(answer for answer in answers if answer is not None)]
    answer = np.array([labels.index(each) for each in answers], np.int64)[which.ravel()]
    telling, asker = answer[answer > 0], op[mine][answer > 0]
    lowest = np.full(len(signature), len(labels), np.int64)
    np.minimum.at(lowest, asker, telling)
    np.maximum.at(codes, asker, telling)
    return np.where(codes == lowest, codes, 0), labels


def _fill_types(row: Row, dtype: str) -> Row:
    """Dtypes for every argument with dimensions; indices and masks by the schema of the op keep their own."""
    indices, masks = (table.get(row["name"], ()) for table in (_INDEX_ARGUMENTS, _MASK_ARGUMENTS))
    data = "float" if dtype in _INTEGERS and indices else dtype
    own = {**dict.fromkeys(indices, "long int"), **dict.fromkeys(masks, "bool")}
    types = [_type_of(sizes, own.get(at, data)) for at, sizes in enumerate(json.loads(row["dims"]))]
    return {**row, "types": json.dumps(types)}


def _append_operands(row: Row, forward: str) -> Row:
    """The arguments of the forward call behind those of the node itself."""
    texts = dict(zip(("dims", "types"), json.loads(forward), strict=True))
    return {**row, **{name: json.dumps([*json.loads(row[name]), *json.loads(text)]) for name, text in texts.items()}}


def _type_of(sizes: object, dtype: str) -> str:
    if not isinstance(sizes, list) or not sizes:
        return ""
    return "TensorList" if isinstance(sizes[0], list) else dtype


def _fill_lists(row: Row, item_bytes: float) -> Row:
    return {**row, "types": row["types"].replace('"TensorList"', f'"TensorList[{item_bytes:.0f}]"')}
