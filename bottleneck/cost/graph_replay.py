"""Prices kernels without an op, such as those of a CUDA graph replay, by the same kernel where its op is known.

A replayed graph says which kernels ran, not which ops they belong to; so do kernels whose launch lies before the trace.
The ops are known where the same kernels were captured into the graph, or where they ran outside of it. Such a twin has
the same name (and grid, where both say it) and the same neighbours. It tells the price, never with high confidence.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from bottleneck.cost.attribution import attribute, shares
from bottleneck.schema.analysis import Caveat
from bottleneck.schema.linked_trace import Linked
from bottleneck.schema.tables import ATTRIBUTION, CAPTURED, COSTS
from bottleneck.units import format_share

Rows = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Sequences:
    """Elements of several sequences, one after the other and each in its order.

    ``token`` says what an element looks like, ``kind`` what it stands for: elements of the same kind may stand for one
    another. ``sequence`` numbers the sequence, ``asks`` marks elements that look for another to stand for them, and
    ``answers`` those that may.
    """

    token: Rows
    sequence: Rows
    kind: Rows
    asks: Flags
    answers: Flags


def align(elements: Sequences) -> Rows:
    """For each element that asks, the row of an answer, -1 where there is none or where it cannot be told.

    Answers share with the element a stretch of neighbours of 0, 1, 3, 7 … on either side, as many as any answer does.
    Where those of the widest stretch are of different kinds, nothing is told: a guess is no evidence.
    The time grows with n log n: each stretch is made of three of the stretch before.
    """
    count = len(elements.token)
    found = np.full(count, -1, np.int64)
    stretch, radius = pd.factorize(elements.token)[0].astype(np.int64), 0
    answers, asking = np.flatnonzero(elements.answers), np.flatnonzero(elements.asks)
    while len(asking) and len(answers) and radius < count:
        first, agree = _answers(stretch, elements.kind, answers)
        match = first[stretch[asking]]
        met = match >= 0
        asking, match = asking[met], match[met]
        found[asking] = np.where(agree[stretch[asking]], match, -1)
        stretch, radius = _wider(stretch, elements.sequence, radius), 2 * radius + 1
    return found


def _answers(stretch: Rows, kind: Rows, answers: Rows) -> tuple[Rows, Flags]:
    """Per stretch the first answer (-1: none), and whether all its answers are of one kind."""
    size = int(stretch.max()) + 1
    first = np.full(size, -1, np.int64)
    first[stretch[answers[::-1]]] = answers[::-1]
    other = kind[answers] != kind[first[stretch[answers]]]
    agree = np.ones(size, bool)
    agree[stretch[answers[other]]] = False
    return first, agree


def _wider(stretch: Rows, sequence: Rows, radius: int) -> Rows:
    """The number of each element's stretch of more than twice the radius; where a sequence ends, that is part of it."""
    size = np.int64(stretch.max()) + 2
    step = radius + 1
    before, after = np.full(len(stretch), -1, np.int64), np.full(len(stretch), -1, np.int64)
    before[step:] = np.where(sequence[step:] == sequence[:-step], stretch[:-step], -1)
    after[:-step] = np.where(sequence[:-step] == sequence[step:], stretch[step:], -1)
    left = pd.factorize((before + 1) * size + stretch)[0].astype(np.int64)
    return pd.factorize((after + 1) * (np.int64(left.max()) + 1) + left)[0].astype(np.int64)


_AMOUNTS = ["matrix_flops", "vector_flops", "special_ops", "bytes_low", "bytes_high"]


@dataclass(frozen=True)
class CostedTrace:
    """A trace with the price of its calls and the op that pays for each kernel."""

    linked: Linked
    costs: pd.DataFrame
    attribution: pd.DataFrame


def elements_of(sources: Sequence[CostedTrace], costs: pd.DataFrame, asks: Flags) -> pd.DataFrame:
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


def _ran(source: CostedTrace, offset: int) -> pd.DataFrame:
    kernels, attribution = source.linked.kernels, source.attribution
    rows = np.flatnonzero(kernels["kind"].isin(["compute", "collective"]))
    kernels, attribution = kernels.iloc[rows], attribution.iloc[rows]
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
    return _with_calls(part, source, attribution, op, offset)


def _captured(source: CostedTrace, offset: int) -> pd.DataFrame:
    captured = CAPTURED.empty() if source.linked.captured is None else source.linked.captured
    kernels = captured.assign(kind="compute", dur_us=0.0, replayed=False)
    attribution = attribute(source.linked.ops, kernels, source.costs)
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
    return _with_calls(part, source, attribution, captured["op"].to_numpy(np.int64, na_value=-1), offset)


def _with_calls(
    part: pd.DataFrame, source: CostedTrace, attribution: pd.DataFrame, op: Rows, offset: int
) -> pd.DataFrame:
    """The elements with the call that pays for each, or the call that should: that of its op."""
    signatures = np.append(source.linked.ops["signature"].to_numpy(np.int64, na_value=-1), -1)
    owner = attribution["op"].to_numpy(np.int64, na_value=-1)
    # An op that is priced and yet pays nothing has handed its work on: nothing tells to which of its ops.
    unpriced = np.append(source.costs["reason"].notna().to_numpy(), False)[signatures[op]]
    own = np.where(unpriced, signatures[op], -1)
    call = np.where(owner >= 0, attribution["signature"].to_numpy(np.int64, na_value=-1), own)
    return part.assign(
        call=np.where(call >= 0, call + offset, -1),
        paid=owner >= 0,
        op=np.where(owner >= 0, owner, op),
        instance=attribution["group"].to_numpy(),
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


AT_CAPTURE = "its twin at capture"
ELSEWHERE = "its twin elsewhere in the trace"

# The same kernel on the same sizes takes about as long each time; beyond this factor, sizes or data must differ.
_LONGEST_FACTOR = 2.0
_JITTER_US = 3.0
# Families of kernels and of ops that do matrix products: both must be such where launches are not named.
_PRODUCTS = ("matmul", "convolution", "attention")
_ALIKE_SHARE = 0.9


def assign_replayed_costs(
    priced: CostedTrace, captures: Sequence[CostedTrace] = ()
) -> tuple[CostedTrace, tuple[Caveat, ...]]:
    """The same trace with the prices that twins lend to kernels without an op, and what to say of it.

    Twins are looked for in the trace itself and in ``captures``: recordings of the graphs' captures, or of the same
    program without graphs. CALLS and COSTS grow by a row for each call lent, which names its evidence; ATTRIBUTION has
    groups of kernels that together stand for one call. Where twins disagree, nothing is lent.
    """
    asks = _asking(priced)
    if not asks.any():
        return priced, ()
    sources = (priced, *captures)
    costs = pd.concat([each.costs for each in sources], ignore_index=True)
    elements = elements_of(sources, costs, asks)
    twin = _twins(elements)
    twin = _plausible(elements, _by_position(elements, twin, costs))
    return _lent(priced, sources, costs, elements, twin)


def _asking(priced: CostedTrace) -> Flags:
    """Kernels that nobody pays for because no op of theirs is known."""
    kernels = priced.linked.kernels
    loose = kernels["replayed"].to_numpy() | kernels["op"].isna().to_numpy()
    unpaid = priced.attribution["op"].isna().to_numpy()
    return np.asarray((kernels["kind"] == "compute").to_numpy() & loose & unpaid)


def _twins(elements: pd.DataFrame) -> Rows:
    """Row among the elements of each one's twin by names and neighbours, -1 for none.

    Grids take part where both sides have one: HIP tells none for replayed kernels, launches do not keep theirs.
    """
    names = pd.factorize(elements["name"])[0].astype(np.int64)
    shapes, kind = (
        np.asarray(elements.groupby(columns, sort=False, dropna=False).ngroup(), np.int64)
        for columns in (["name", "blocks", "threads"], ["price", "ordinal", "size", "paid"])
    )
    sequence, asks = elements["sequence"].to_numpy(), elements["asks"].to_numpy()
    answers = (elements["call"].to_numpy() >= 0) & (names >= 0) & ~asks
    grid = elements["blocks"].to_numpy() >= 0
    found = np.full(len(elements), -1, np.int64)
    for token, mine, theirs in ((shapes, asks & grid, grid), (names, asks & grid, ~grid), (names, asks & ~grid, True)):
        open_ = mine & (found < 0)
        if open_.any():
            found = np.where(open_, align(Sequences(token, sequence, kind, open_, answers & theirs)), found)
    return found


def _by_position(elements: pd.DataFrame, twin: Rows, costs: pd.DataFrame) -> Rows:
    """Twins of replays by the order of the captured launches, which CUDA does not name.

    The N-th launch of a capture is the N-th kernel of its replay, if both have as many, if all captures of this length
    make the same calls, and if products stand where kernels are products.
    """
    captures = _by_sequence(elements, elements["name"].isna().to_numpy())
    if not captures:
        return twin
    twin, names, asks = twin.copy(), pd.factorize(elements["name"])[0], elements["asks"].to_numpy()
    known: dict[bytes, Rows | None] = {}  # many replays are of one graph
    for replay in _by_sequence(elements, elements["replayed"].to_numpy()):
        graph = names[replay].tobytes()
        if graph not in known:
            known[graph] = _capture_of(elements, replay, captures, costs)
        answers = known[graph]
        if answers is not None:
            twin[replay] = np.where(asks[replay], answers, -1)
    return twin


def _capture_of(elements: pd.DataFrame, replay: Rows, captures: list[Rows], costs: pd.DataFrame) -> Rows | None:
    """The captured launch of each kernel of a replay, -1 for one without a call; null where no capture fits."""
    calls = elements["call"].to_numpy()
    same = [capture for capture in captures if len(capture) == len(replay)]
    agree = all(np.array_equal(calls[capture], calls[same[0]]) for capture in same)
    if not same or not agree or not _alike(elements, replay, same[0], costs):
        return None
    return np.where(calls[same[0]] >= 0, same[0], -1)


def _by_sequence(elements: pd.DataFrame, chosen: Flags) -> list[Rows]:
    """The chosen rows of each sequence; rows of one sequence stand together."""
    rows = np.flatnonzero(chosen)
    sequence = elements["sequence"].to_numpy()[rows]
    starts = np.flatnonzero(np.diff(sequence, prepend=-1))
    return np.split(rows, starts[1:]) if len(rows) else []


def _alike(elements: pd.DataFrame, replay: Rows, capture: Rows, costs: pd.DataFrame) -> bool:
    """Whether kernels that do products stand where the calls do."""
    families = costs["family"].astype(object).reindex(range(-1, len(costs)))
    calls = families.loc[elements["call"].to_numpy()[capture]]
    told = calls.notna().to_numpy()
    kernels = elements["family"].iloc[replay].isin(_PRODUCTS).to_numpy()
    auxiliary = elements["auxiliary"].to_numpy()[replay]
    same = (calls.isin(_PRODUCTS).to_numpy() == kernels) | auxiliary
    return bool(told.any()) and float(same[told].mean()) >= _ALIKE_SHARE


def _plausible(elements: pd.DataFrame, twin: Rows) -> Rows:
    """Twins that ran one by one must have taken about as long as the kernel that asks."""
    took = elements["dur_us"].to_numpy()
    other = np.append(np.where(elements["replayed"], np.nan, took), np.nan)[twin]
    with np.errstate(invalid="ignore"):
        longer, shorter = np.fmax(took, other), np.fmin(took, other)
        differ = (longer > _LONGEST_FACTOR * shorter) & (longer - shorter > _JITTER_US)
    return np.where(differ, -1, twin)


def _lent(
    priced: CostedTrace, sources: Sequence[CostedTrace], costs: pd.DataFrame, elements: pd.DataFrame, twin: Rows
) -> tuple[CostedTrace, tuple[Caveat, ...]]:
    """The trace with the calls of the twins: those with a price in groups that stand for whole calls."""
    asking = elements[twin >= 0]
    lent = elements.iloc[twin[twin >= 0]].assign(**{name: asking[name].to_numpy() for name in ("row", "sequence")})
    # The n-th kernels of equal calls in a sequence belong together; a call of which one is missing is not whole.
    alike = ["sequence", "price", "size"]
    lent["turn"] = lent.groupby([*alike, "ordinal"], sort=False).cumcount().to_numpy()
    lent["group"] = lent.groupby([*alike, "turn"], sort=False).ngroup().to_numpy()
    whole = lent.groupby("group")["row"].transform("size") == lent["size"]
    lent = lent[~lent["paid"] | whole].reset_index(drop=True)
    # What stands for one call is one call, though its kernels may have been met in several of the same price.
    lent["call"] = lent["call"].where(~lent["paid"], lent.groupby("group")["call"].transform("first"))
    lent["here"] = (lent["source"] == 0) & ~lent["captured"]
    number, rows = _rows_lent(priced, sources, costs, lent)
    calls, prices = rows
    attribution = _attribution_lent(priced, lent, number)
    linked = replace(priced.linked, trace=replace(priced.linked.trace, signatures=calls))
    return CostedTrace(linked, prices, attribution), _caveats(priced, elements, lent, len(sources) > 1)


def _rows_lent(
    priced: CostedTrace, sources: Sequence[CostedTrace], costs: pd.DataFrame, lent: pd.DataFrame
) -> tuple[Rows, tuple[pd.DataFrame, pd.DataFrame]]:
    """CALLS and COSTS with a row for each call lent, and the number of that row for each kernel."""
    signatures = priced.linked.trace.signatures
    number, met = pd.factorize(pd.MultiIndex.from_frame(lent[["call", "here"]]))
    chosen = [int(call) for call, _ in met]
    said = [ELSEWHERE if here else AT_CAPTURE for _, here in met]
    every = pd.concat([each.linked.trace.signatures for each in sources], ignore_index=True)
    calls, prices = every.iloc[chosen].reindex(columns=signatures.columns), costs.iloc[chosen].copy()
    told = prices["reason"].isna().to_numpy()
    prices["evidence"] = [
        "; ".join(filter(None, (old if isinstance(old, str) else None, new))) if ok else None
        for old, new, ok in zip(prices["evidence"], said, told, strict=True)
    ]
    prices["reason"] = [
        None if ok else f"{old} ({new})" for old, new, ok in zip(prices["reason"], said, told, strict=True)
    ]
    both = pd.concat([priced.costs, prices], ignore_index=True)
    both = both.astype({name: column.dtype for name, column in COSTS.columns.items()})
    grown = pd.concat([signatures, calls], ignore_index=True).astype(object)
    return number.astype(np.int64) + len(signatures), (grown, COSTS.check(both))


def _attribution_lent(priced: CostedTrace, lent: pd.DataFrame, number: Rows) -> pd.DataFrame:
    """ATTRIBUTION in which the kernels carry what they are lent; the owner is known where the twin is of this trace."""
    attribution = priced.attribution.copy()
    rows, paid = lent["row"].to_numpy(), lent["paid"].to_numpy()
    kernels = priced.linked.kernels.iloc[rows[paid]]
    group = pd.factorize(lent["group"].to_numpy()[paid])[0].astype(np.int64)
    attribution.loc[rows, "signature"] = number.astype(np.int32)
    attribution.loc[rows[paid], "share"] = shares(kernels, group)
    attribution.loc[rows[paid], "group"] = group + int(attribution["group"].max()) + 1
    own = paid & (lent["source"] == 0).to_numpy()
    attribution.loc[rows[own], "op"] = lent["op"].to_numpy()[own].astype(np.int32)
    return ATTRIBUTION.check(attribution)


def _caveats(priced: CostedTrace, elements: pd.DataFrame, lent: pd.DataFrame, other: bool) -> tuple[Caveat, ...]:
    asked, got = elements["asks"].to_numpy(), lent[lent["paid"]]
    took = priced.linked.kernels["dur_us"].to_numpy()
    asked_us = elements["dur_us"].to_numpy()[asked].sum()
    share = float(took[got["row"]].sum() / asked_us) if asked_us > 0 else 0.0
    said = Caveat(
        "twins",
        f"{len(got)} of {np.count_nonzero(asked)} kernels without an op ({format_share(share)} of their time) are"
        " priced by their twins: the same kernels at capture, or where they ran one by one",
    )
    unused = Caveat("capture-unused", "no kernel of the capture that you named matches one of this trace")
    return (*((said,) if len(got) else ()), *((unused,) if other and not (lent["source"] > 0).any() else ()))
