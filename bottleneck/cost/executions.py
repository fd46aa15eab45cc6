"""What ran and what was captured, in sequences, with the call that each kernel belongs to; used by ``twins``."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from bottleneck.cost.alignment import Flags, Rows
from bottleneck.cost.charge import charge
from bottleneck.tables import CAPTURED
from bottleneck.tracing import Linked

_AMOUNTS = ["matrix_flops", "vector_flops", "special_ops", "bytes_low", "bytes_high"]


@dataclass(frozen=True)
class Priced:
    """A trace with the price of its calls and the op that pays for each kernel."""

    linked: Linked
    costs: pd.DataFrame
    charges: pd.DataFrame


def elements_of(sources: Sequence[Priced], costs: pd.DataFrame, asks: Flags) -> pd.DataFrame:
    """Everything that ran or was captured, sequence by sequence: streams, replays, captures.

    ``call`` is a row in ``costs``, those of all sources, -1 for none; ``price`` is the same for calls that cost the
    same. ``instance`` tells one call of an op from another, ``ordinal`` and ``size`` say which of its kernels this is.
    ``row`` is the row in KERNELS, ``asks`` marks kernels of the first source that look for a twin.
    """
    offsets = np.cumsum([0, *(len(each.costs) for each in sources)])
    # Captures come first: of several answers the first counts, and that of a capture needs no likeness in time.
    parts = [
        make(source, int(offset)).assign(source=number, captured=make is _captured)
        for make in (_captured, _ran)
        for number, (source, offset) in enumerate(zip(sources, offsets.tolist(), strict=False))
    ]
    elements = pd.concat(parts, ignore_index=True)
    own = np.flatnonzero((elements["source"] == 0) & ~elements["captured"])
    elements["asks"] = np.isin(np.arange(len(elements)), own[asks[elements["row"].to_numpy()[own]]])
    for column in ("sequence", "instance"):
        elements[column] = elements.groupby(["source", "captured", column], sort=False).ngroup()
    paid = elements["paid"].to_numpy()
    elements["ordinal"] = np.where(paid, elements.groupby("instance").cumcount(), 0)
    elements["size"] = np.where(paid, elements.groupby("instance")["call"].transform("size"), 1)
    elements["price"] = _prices(elements, costs)
    return elements.sort_values("sequence", kind="stable", ignore_index=True)


def _ran(source: Priced, offset: int) -> pd.DataFrame:
    kernels, charges = source.linked.kernels, source.charges
    rows = np.flatnonzero(kernels["kind"].isin(["compute", "collective"]))
    kernels, charges = kernels.iloc[rows], charges.iloc[rows]
    replayed = kernels["replayed"].to_numpy()
    launch = kernels["launch"].to_numpy(np.int64, na_value=-1)
    part = pd.DataFrame(
        {
            "row": rows,
            "name": kernels["name"].astype(object).to_numpy(),
            "blocks": kernels["blocks"].to_numpy(np.int64, na_value=-1),
            "threads": kernels["threads"].to_numpy(np.int64, na_value=-1),
            "family": kernels["family"].astype(object).to_numpy(),
            "auxiliary": kernels["auxiliary"].to_numpy(),
            "dur_us": kernels["dur_us"].to_numpy(),
            "replayed": replayed,
            "sequence": np.where(replayed, launch, -2 - kernels["stream"].cat.codes.to_numpy(np.int64)),
        }
    )
    op = np.where(replayed, -1, kernels["op"].to_numpy(np.int64, na_value=-1))
    return _with_calls(part, source, charges, op, offset)


def _captured(source: Priced, offset: int) -> pd.DataFrame:
    captured = CAPTURED.empty() if source.linked.captured is None else source.linked.captured
    kernels = captured.assign(kind="compute", dur_us=0.0, replayed=False)
    charges = charge(source.linked.ops, kernels, source.costs)
    part = pd.DataFrame(
        {
            "row": -1,
            "name": captured["name"].astype(object).to_numpy(),
            "blocks": -1,
            "threads": -1,
            "family": captured["family"].astype(object).to_numpy(),
            "auxiliary": captured["auxiliary"].to_numpy(),
            "dur_us": np.nan,
            "replayed": False,
            "sequence": captured["capture"].to_numpy(),
        },
        index=range(len(captured)),
    )
    return _with_calls(part, source, charges, captured["op"].to_numpy(np.int64, na_value=-1), offset)


def _with_calls(part: pd.DataFrame, source: Priced, charges: pd.DataFrame, op: Rows, offset: int) -> pd.DataFrame:
    """The elements with the call that pays for each, or the call that should: that of its op."""
    signatures = np.append(source.linked.ops["signature"].to_numpy(np.int64, na_value=-1), -1)
    payer = charges["payer"].to_numpy(np.int64, na_value=-1)
    # An op that is priced and yet pays nothing has handed its work on: nothing tells to which of its ops.
    unpriced = np.append(source.costs["reason"].notna().to_numpy(), False)[signatures[op]]
    own = np.where(unpriced, signatures[op], -1)
    call = np.where(payer >= 0, charges["signature"].to_numpy(np.int64, na_value=-1), own)
    return part.assign(
        call=np.where(call >= 0, call + offset, -1),
        paid=payer >= 0,
        op=np.where(payer >= 0, payer, op),
        instance=charges["group"].to_numpy(),
    )


def _prices(elements: pd.DataFrame, costs: pd.DataFrame) -> Rows:
    """The number of each element's price, the same for calls that cost the same; without a price, that of its call."""
    amounts = (
        costs[_AMOUNTS]
        .fillna(-1.0)
        .assign(
            **{name: costs[name].astype(object).fillna("") for name in ("family", "math_dtype")},
            call=np.where(costs["reason"].isna(), -1, np.arange(len(costs))),
        )
    )
    price = np.append(amounts.groupby(list(amounts.columns), sort=False).ngroup().to_numpy(), -1)
    return price[elements["call"]].astype(np.int64)
