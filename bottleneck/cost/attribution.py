"""Attributes the time of each kernel to the op doing its work.

Builds ATTRIBUTION from OPS, KERNELS and COSTS.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd

from bottleneck.cost import OP_FAMILIES, op_family
from bottleneck.schema.intervals import Flags, Integers
from bottleneck.schema.tables import ATTRIBUTION, as_integers, nearest_ancestor
from bottleneck.system.working_memory import returns_memory

# An op of the name or family on the left delegates its whole work to nested ops of the families on the right; that to
# an op of its own family (to > _to_copy > copy_) needs no row. A matmul that copies its bias first is not listed: the
# copy is extra work, and the product is still its own.
DELEGATES: dict[str, tuple[str, ...]] = {
    "attention": ("matmul", "softmax"),
    "convolution": ("matmul",),
    "optimizer": ("pointwise", "reduction"),
    "recurrent": ("matmul",),
    "aten::_foreach_copy_": ("copy",),
    "aten::_foreach_zero_": ("fill",),
    "aten::_fused_rms_norm": ("pointwise",),
}

AMOUNTS = ["matrix_flops", "vector_flops", "special_ops", "bytes_low", "bytes_high"]


@returns_memory
def attribute(ops: pd.DataFrame, kernels: pd.DataFrame, costs: pd.DataFrame) -> pd.DataFrame:
    """Gives ATTRIBUTION, the op that each row of KERNELS belongs to.

    Each row also has the part of the op's cost that it carries.

    A GPU kernel is attributed to the nearest worker among its op and that op's ancestors; on a CPU, where the rows of
    KERNELS are the ops themselves, a worker is attributed to itself and other rows to no op. A worker is an op whose
    cost is not zero and that does not delegate its work to an op nested in it. The shares of one op add up to 1.
    """
    parent = as_integers(ops["parent"])
    assert (parent < np.arange(len(ops))).all(), "an op comes before its parent"
    workers = _workers(ops, costs, parent)
    owner = _attributed_ops(kernels, parent, workers)
    dispatchers = _dispatchers(ops, costs, parent) & ~workers
    on_host = (kernels["family"] == "host").to_numpy()
    frame = pd.DataFrame(
        {
            "op": pd.array(np.where(owner < 0, 0, owner), dtype="Int32"),
            "signature": ops["signature"].array.take(owner, allow_fill=True),
            "share": shares(kernels, owner),
            "group": np.where(owner < 0, len(ops) + np.arange(len(kernels)), owner),
            "dispatches": on_host & np.append(dispatchers, False)[as_integers(kernels["op"])],
            "family": _families(ops, kernels),
        }
    )
    frame.loc[owner < 0, "op"] = pd.NA
    return ATTRIBUTION.check(frame)


def _families(ops: pd.DataFrame, kernels: pd.DataFrame) -> "pd.Categorical":
    """Gives the family of each row by the kernel's name.

    The op decides where that name tells none, and where the op leaves its work to such kernels: the product by which a
    convolution with a window of 1x1 runs is a convolution.
    """
    names, kernel_families = ops["name"].cat, kernels["family"].cat
    of_name = [op_family(name) for name in names.categories]
    labels = [*kernel_families.categories, *dict.fromkeys(filter(None, of_name))]
    by_op = np.array([*(labels.index(family) if family else -1 for family in of_name), -1])
    op = np.append(names.codes.to_numpy(dtype=np.int64), -1)[as_integers(kernels["op"])]
    families, code = [*kernel_families.categories, None], kernel_families.codes.to_numpy()
    leaves = [[family in DELEGATES.get(own or "", ()) for family in families] for own in [*of_name, None]]
    is_of_op = np.array(leaves, dtype=bool)[op, code]
    is_of_op |= kernels["family"].isin(("host", "other")).to_numpy()
    texts = np.array([*labels, None], dtype=object)[np.where(is_of_op, by_op[op], code)]
    return pd.Categorical(texts)


def _working_family(ops: pd.DataFrame, costs: pd.DataFrame) -> Integers:
    """Gives the family code of each op.

    It is -1 where the op is unmodelled, has zero cost, or is a view.
    """
    amount = costs[AMOUNTS].fillna(0.0).sum(axis=1).to_numpy() > 0
    is_view = (costs["family"] == "view").to_numpy()
    family = np.where(amount & ~is_view, costs["family"].cat.codes.to_numpy(), -1).astype(np.int64)
    return np.append(family, -1)[as_integers(ops["signature"])]


def _workers(ops: pd.DataFrame, costs: pd.DataFrame, parent: Integers) -> Flags:
    """Marks ops that do their work themselves.

    An op that delegates its work to an op nested in it is not marked.
    """
    families = list(costs["family"].cat.categories)
    assert len(families) < 63, "families no longer fit the bits of an integer"
    bit = {name: 1 << code for code, name in enumerate(families)}
    family = _working_family(ops, costs)
    names = ops["name"].cat
    below = _nested_bits(parent, np.append(np.array([*bit.values()], dtype=np.int64), 0)[family])
    by_family = np.array([*(bit[name] | _delegate_bits(name, bit) for name in families), 0], dtype=np.int64)
    by_name = np.array([*(_delegate_bits(name, bit) for name in names.categories), 0], dtype=np.int64)
    delegated = below & (by_family[family] | by_name[names.codes.to_numpy()])
    return np.asarray((family >= 0) & (delegated == 0))


def _dispatchers(ops: pd.DataFrame, costs: pd.DataFrame, parent: Integers) -> Flags:
    """Marks ops without work of their own.

    They are free by name or cost, or delegate their work to ops nested in them.

    Without shapes the name decides: an op of a family delegates when an op of the same family is nested in it. An op
    of no known family is taken to delegate when the ops in it take at least half of its time.
    """
    names = ops["name"].cat
    families_by_name = [op_family(name) for name in names.categories]
    bit = {family: 1 << code for code, family in enumerate(OP_FAMILIES)}
    codes = names.codes.to_numpy()
    own = np.array([*(bit.get(family or "", 0) for family in families_by_name), 0], dtype=np.int64)[codes]
    delegates = np.array(
        [*(bit.get(family or "", 0) | _delegate_bits(family or "", bit) for family in families_by_name), 0],
        dtype=np.int64,
    )[codes]
    free = np.array([*(family == "free" for family in families_by_name), False], dtype=bool)[codes]
    unknown = np.array([*(family is None for family in families_by_name), False], dtype=bool)[codes]
    below = _nested_bits(parent, own)
    calls = np.where(unknown, (below != 0) & (ops["self_us"] <= ops["dur_us"] / 2).to_numpy(), (below & delegates) != 0)
    modelled = np.append(costs["reason"].isna().to_numpy(), False)[as_integers(ops["signature"])]
    return np.asarray(free | modelled | calls)


def _delegate_bits(name: str, bit: Mapping[str, int]) -> int:
    """Gives the families that an op or family delegates to, as bits."""
    return sum(bit.get(family, 0) for family in DELEGATES.get(name, ()))


def _nested_bits(parent: Integers, own: Integers) -> Integers:
    """The union of ``own`` over everything nested below each op.

    Reaches twice as far up in every round, so that its cost grows with the logarithm of the depth: a trace may nest
    ops as deeply as it likes.
    """
    gathered, ancestor = own.copy(), parent.copy()
    while (linked := ancestor >= 0).any():
        reached = gathered.copy()
        holding = np.flatnonzero(linked & (gathered != 0))
        np.bitwise_or.at(reached, ancestor[holding], gathered[holding])
        gathered, ancestor = reached, np.where(linked, ancestor[ancestor], -1)
    below = np.zeros_like(own)
    children = np.flatnonzero((parent >= 0) & (gathered != 0))
    np.bitwise_or.at(below, parent[children], gathered[children])
    return below


def _attributed_ops(kernels: pd.DataFrame, parent: Integers, workers: Flags) -> Integers:
    """The op that each kernel is attributed to, -1 for none.

    Copies, fills and collectives are judged by the bytes that they record themselves. A kernel replayed by a graph is
    not the work of the op that launched the graph.
    """
    op = as_integers(kernels["op"])
    own = np.where(workers, np.arange(len(workers)), -1)
    on_host = (kernels["family"] == "host").to_numpy()
    owner = np.where(on_host, np.append(own, -1)[op], np.append(nearest_ancestor(parent, workers), -1)[op])
    eligible = (kernels["kind"] == "compute").to_numpy() & ~kernels["replayed"].to_numpy()
    return np.where(eligible, owner, -1)


def shares(kernels: pd.DataFrame, owner: Integers) -> npt.NDArray[np.float64]:
    """Gives the part of its op's cost that each kernel carries.

    Parts are by duration, and NaN for kernels without an op.

    Auxiliary kernels carry nothing, unless an op has no others: its cost must not vanish. Kernels of no measurable
    duration carry equal parts.
    """
    attributed, slot = owner >= 0, np.maximum(owner, 0)
    main = attributed & ~kernels["auxiliary"].to_numpy()
    has_main = np.bincount(slot, weights=main) > 0
    carries = attributed & (main | ~has_main[slot]) if len(slot) else attributed
    total = np.bincount(slot, weights=np.where(carries, kernels["dur_us"].to_numpy(), 0.0))
    untimed = total[slot] == 0
    weight = np.where(carries, np.where(untimed, 1.0, kernels["dur_us"].to_numpy()), 0.0)
    total = np.bincount(slot, weights=weight)
    return np.where(attributed, weight / np.where(attributed, total[slot], 1.0), np.nan)
