"""Assigns costs to kernels without an op, such as in graph replays.

The cost is that of the same kernel with a known op.

The trace of a replayed graph records which kernels ran, not which ops they belong to; the same holds for kernels whose
launch lies before the trace. The ops are known where the same kernels were captured into the graph, or where they ran
outside of it. A match has the same name (and grid, where both are recorded) and the same neighbours. It gives the cost,
never with high confidence. Runs after attribution, on OPS, KERNELS, COSTS and ATTRIBUTION.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from msgspec import Struct

from bottleneck.cost.attribution import AMOUNTS, attribute, shares
from bottleneck.schema.analysis import Caveat
from bottleneck.schema.intervals import Flags, Integers
from bottleneck.schema.linked_trace import Linked
from bottleneck.schema.reasons import PLACES
from bottleneck.schema.records import replace
from bottleneck.schema.tables import ATTRIBUTION, CAPTURED, COSTS, as_integers
from bottleneck.units import counted, format_share


class Sequences(Struct, frozen=True):
    """Elements of several sequences, one after the other and each in its order.

    ``token`` codes the appearance of an element, ``kind`` its cost: elements of the same kind are interchangeable.
    ``sequence`` numbers the sequence, ``wanted`` marks elements for which a match is searched, and ``candidates`` those
    that may be a match.
    """

    token: Integers
    sequence: Integers
    kind: Integers
    wanted: Flags
    candidates: Flags


def align(elements: Sequences) -> Integers:
    """Gives the row of the match of each wanted element.

    It is -1 where there is none or where candidates disagree.

    A match shares with the element a stretch of neighbours of 0, 1, 3, 7 … on either side, as wide as any candidate
    does. Where the candidates of the widest stretch are of different kinds there is no match: a guess is no evidence.
    The time grows with n log n: each stretch is made of three of the stretch before.
    """
    count = len(elements.token)
    matches = np.full(count, -1, np.int64)
    stretch, radius = pd.factorize(elements.token)[0].astype(np.int64), 0
    candidates, wanted = np.flatnonzero(elements.candidates), np.flatnonzero(elements.wanted)
    while len(wanted) and len(candidates) and radius < count:
        first, agree = _first_candidates(stretch, elements.kind, candidates)
        match = first[stretch[wanted]]
        met = match >= 0
        wanted, match = wanted[met], match[met]
        matches[wanted] = np.where(agree[stretch[wanted]], match, -1)
        stretch, radius = _wider(stretch, elements.sequence, radius), 2 * radius + 1
    return matches


def _first_candidates(stretch: Integers, kind: Integers, candidates: Integers) -> tuple[Integers, Flags]:
    """Gives the first candidate per stretch, -1 for none.

    The flags are true where all candidates of a stretch are of one kind.
    """
    size = int(stretch.max()) + 1
    first = np.full(size, -1, np.int64)
    first[stretch[candidates[::-1]]] = candidates[::-1]
    other = kind[candidates] != kind[first[stretch[candidates]]]
    agree = np.ones(size, bool)
    agree[stretch[candidates[other]]] = False
    return first, agree


def _wider(stretch: Integers, sequence: Integers, radius: int) -> Integers:
    """Numbers each element's stretch of more than twice the radius.

    Where a sequence ends, that is part of the stretch.
    """
    size = np.int64(stretch.max()) + 2
    step = radius + 1
    before, after = np.full(len(stretch), -1, np.int64), np.full(len(stretch), -1, np.int64)
    before[step:] = np.where(sequence[step:] == sequence[:-step], stretch[:-step], -1)
    after[:-step] = np.where(sequence[:-step] == sequence[step:], stretch[step:], -1)
    left = pd.factorize((before + 1) * size + stretch)[0].astype(np.int64)
    return pd.factorize((after + 1) * (np.int64(left.max()) + 1) + left)[0].astype(np.int64)


class CostedTrace(Struct, frozen=True):
    """A linked trace with its costs and attribution.

    The costs of its calls are COSTS, the op of each kernel is in ATTRIBUTION.
    """

    linked: Linked
    costs: pd.DataFrame
    attribution: pd.DataFrame


def _elements(sources: Sequence[CostedTrace], costs: pd.DataFrame, wanted: Flags) -> pd.DataFrame:
    """All kernels that ran or were captured, sequence by sequence: streams, replays, captures.

    ``call`` is a row in ``costs``, those of all sources, -1 for none; ``cost_id`` is the same for calls of equal cost.
    ``instance`` numbers the calls of ops, ``ordinal`` and ``size`` the position of the kernel in its call and the
    number of kernels there. ``row`` is the row in KERNELS, ``wanted`` marks kernels of the first source without a cost.
    """
    offsets = np.cumsum([0, *(len(costed.costs) for costed in sources)])
    # Captures come first: the first candidate counts, and one from a capture need not match in duration.
    parts = [
        make(source, int(offset)).assign(source=number, captured=make is _captured)
        for make in (_captured, _ran)
        for number, (source, offset) in enumerate(zip(sources, offsets.tolist(), strict=False))
    ]
    elements = pd.concat(parts, ignore_index=True)
    own = np.flatnonzero((elements["source"] == 0) & ~elements["captured"])
    elements["wanted"] = np.isin(np.arange(len(elements)), own[wanted[elements["row"].to_numpy()[own]]])
    for column in ("sequence", "instance"):
        elements[column] = elements.groupby(["source", "captured", column], sort=False).ngroup()
    attributed = elements["attributed"].to_numpy()
    elements["ordinal"] = np.where(attributed, elements.groupby("instance").cumcount(), 0)
    elements["size"] = np.where(attributed, elements.groupby("instance")["call"].transform("size"), 1)
    elements["cost_id"] = _cost_ids(elements, costs)
    return elements.sort_values("sequence", kind="stable", ignore_index=True)


def _ran(source: CostedTrace, offset: int) -> pd.DataFrame:
    kernels, attribution = source.linked.kernels, source.attribution
    rows = np.flatnonzero(kernels["kind"].isin(["compute", "collective"]))
    kernels, attribution = kernels.iloc[rows], attribution.iloc[rows]
    replayed = kernels["replayed"].to_numpy()
    launch = as_integers(kernels["launch"])
    part = pd.DataFrame(
        {
            "row": rows,
            "name": kernels["name"].astype(object).to_numpy(),
            "blocks": as_integers(kernels["blocks"]),
            "threads": as_integers(kernels["threads"]),
            "family": kernels["family"].astype(object).to_numpy(),
            "auxiliary": kernels["auxiliary"].to_numpy(),
            "dur_us": kernels["dur_us"].to_numpy(),
            "replayed": replayed,
            "sequence": np.where(replayed, launch, -2 - kernels["stream"].cat.codes.to_numpy(np.int64)),
        }
    )
    op = np.where(replayed, -1, as_integers(kernels["op"]))
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
    return _with_calls(part, source, attribution, as_integers(captured["op"]), offset)


def _with_calls(
    part: pd.DataFrame, source: CostedTrace, attribution: pd.DataFrame, op: Integers, offset: int
) -> pd.DataFrame:
    """Gives the elements with the call that each is attributed to.

    Where there is none, it is the call of the kernel's own op.
    """
    signatures = np.append(as_integers(source.linked.ops["signature"]), -1)
    owner = as_integers(attribution["op"])
    # A modelled op without attributed kernels delegates its work; the trace does not record to which of its ops.
    unmodelled = np.append(source.costs["reason"].notna().to_numpy(), False)[signatures[op]]
    own = np.where(unmodelled, signatures[op], -1)
    call = np.where(owner >= 0, as_integers(attribution["signature"]), own)
    return part.assign(
        call=np.where(call >= 0, call + offset, -1),
        attributed=owner >= 0,
        op=np.where(owner >= 0, owner, op),
        instance=attribution["group"].to_numpy(),
    )


def _cost_ids(elements: pd.DataFrame, costs: pd.DataFrame) -> Integers:
    """Gives a number per element, the same for calls of equal cost.

    Unmodelled calls have a number each.
    """
    amounts = (
        costs[AMOUNTS]
        .fillna(-1.0)
        .assign(
            **{name: costs[name].astype(object).fillna("") for name in ("family", "math_dtype")},
            call=np.where(costs["reason"].isna(), -1, np.arange(len(costs))),
        )
    )
    cost_id = np.append(amounts.groupby(list(amounts.columns), sort=False).ngroup().to_numpy(), -1)
    return cost_id[elements["call"]].astype(np.int64)


# Evidence in COSTS and CALLS: where the matching kernel was found.

# The same kernel on the same sizes takes about as long each time; beyond this factor, sizes or data must differ.
_LONGEST_FACTOR = 2.0
_JITTER_US = 3.0
# Families of kernels and of ops that do matrix products: both must be such where launches are not named.
_PRODUCTS = ("matmul", "convolution", "attention")
_COINCIDING_SHARE = 0.9


def assign_replayed_costs(
    traced: CostedTrace, captures: Sequence[CostedTrace] = ()
) -> tuple[CostedTrace, tuple[Caveat, ...]]:
    """Assigns costs of matching kernels to kernels without an op.

    Returns the same trace with these costs, and caveats about them.

    Matches are searched in the trace itself and in ``captures``: recordings of the graphs' captures, or of the same
    program without graphs. CALLS and COSTS grow by a row for each matched call, whose evidence names the match;
    ATTRIBUTION gets groups of kernels that together carry one call. Where candidates disagree, no cost is assigned.
    """
    wanted = _unattributed(traced)
    if not wanted.any():
        return traced, ()
    sources = (traced, *captures)
    costs = pd.concat([source.costs for source in sources], ignore_index=True)
    elements = _elements(sources, costs, wanted)
    match = _match_by_context(elements)
    match = _without_other_durations(elements, _match_by_position(elements, match, costs))
    return _assign(traced, sources, costs, elements, match)


def _unattributed(traced: CostedTrace) -> Flags:
    """Marks kernels without a known op.

    They are attributed to no op for this reason.
    """
    kernels = traced.linked.kernels
    loose = kernels["replayed"].to_numpy() | kernels["op"].isna().to_numpy()
    unattributed = traced.attribution["op"].isna().to_numpy()
    return np.asarray((kernels["kind"] == "compute").to_numpy() & loose & unattributed)


def _match_by_context(elements: pd.DataFrame) -> Integers:
    """Finds the match of each element by names and neighbours.

    It is a row among the elements, -1 for none.

    Grids are compared where both sides have one: HIP records none for replayed kernels, captured launches have none.
    """
    names = pd.factorize(elements["name"])[0].astype(np.int64)
    shapes, kind = (
        np.asarray(elements.groupby(columns, sort=False, dropna=False).ngroup(), np.int64)
        for columns in (["name", "blocks", "threads"], ["cost_id", "ordinal", "size", "attributed"])
    )
    sequence, wanted = elements["sequence"].to_numpy(), elements["wanted"].to_numpy()
    candidates = (elements["call"].to_numpy() >= 0) & (names >= 0) & ~wanted
    grid = elements["blocks"].to_numpy() >= 0
    matches = np.full(len(elements), -1, np.int64)
    rounds = ((shapes, wanted & grid, grid), (names, wanted & grid, ~grid), (names, wanted & ~grid, True))
    for token, mine, theirs in rounds:
        open_ = mine & (matches < 0)
        if open_.any():
            matches = np.where(open_, align(Sequences(token, sequence, kind, open_, candidates & theirs)), matches)
    return matches


def _match_by_position(elements: pd.DataFrame, match: Integers, costs: pd.DataFrame) -> Integers:
    """Adds matches of replays by the order of the captured launches.

    CUDA does not name these launches.

    The N-th launch of a capture is the N-th kernel of its replay, if both have the same number, if all captures of this
    length make the same calls, and if product ops coincide with product kernels.
    """
    captures = _by_sequence(elements, elements["name"].isna().to_numpy())
    if not captures:
        return match
    match, names, wanted = match.copy(), pd.factorize(elements["name"])[0], elements["wanted"].to_numpy()
    launches_by_graph: dict[bytes, Integers | None] = {}  # many replays are of one graph
    for replay in _by_sequence(elements, elements["replayed"].to_numpy()):
        graph = names[replay].tobytes()
        if graph not in launches_by_graph:
            launches_by_graph[graph] = _capture_of(elements, replay, captures, costs)
        launches = launches_by_graph[graph]
        if launches is not None:
            match[replay] = np.where(wanted[replay], launches, -1)
    return match


def _capture_of(
    elements: pd.DataFrame, replay: Integers, captures: list[Integers], costs: pd.DataFrame
) -> Integers | None:
    """Gives the captured launch of each kernel of a replay.

    It is -1 for one without a call. Null where no capture fits.
    """
    calls = elements["call"].to_numpy()
    same = [capture for capture in captures if len(capture) == len(replay)]
    agree = all(np.array_equal(calls[capture], calls[same[0]]) for capture in same)
    if not same or not agree or not _products_coincide(elements, replay, same[0], costs):
        return None
    return np.where(calls[same[0]] >= 0, same[0], -1)


def _by_sequence(elements: pd.DataFrame, chosen: Flags) -> list[Integers]:
    """The chosen rows of each sequence; rows of one sequence are adjacent."""
    rows = np.flatnonzero(chosen)
    sequence = elements["sequence"].to_numpy()[rows]
    starts = np.flatnonzero(np.diff(sequence, prepend=-1))
    return np.split(rows, starts[1:]) if len(rows) else []


def _products_coincide(elements: pd.DataFrame, replay: Integers, capture: Integers, costs: pd.DataFrame) -> bool:
    """Tells whether product kernels coincide with product calls.

    The kernels of the replay then have the same positions as the calls of the capture.
    """
    families = costs["family"].astype(object).reindex(range(-1, len(costs)))
    calls = families.loc[elements["call"].to_numpy()[capture]]
    has_family = calls.notna().to_numpy()
    kernels = elements["family"].iloc[replay].isin(_PRODUCTS).to_numpy()
    auxiliary = elements["auxiliary"].to_numpy()[replay]
    same = (calls.isin(_PRODUCTS).to_numpy() == kernels) | auxiliary
    return bool(has_family.any()) and float(same[has_family].mean()) >= _COINCIDING_SHARE


def _without_other_durations(elements: pd.DataFrame, match: Integers) -> Integers:
    """Gives the matches less those of a very different duration.

    Only kernels that ran one by one are compared with the wanted kernel.
    """
    took = elements["dur_us"].to_numpy()
    other = np.append(np.where(elements["replayed"], np.nan, took), np.nan)[match]
    with np.errstate(invalid="ignore"):
        longer, shorter = np.fmax(took, other), np.fmin(took, other)
        differ = (longer > _LONGEST_FACTOR * shorter) & (longer - shorter > _JITTER_US)
    return np.where(differ, -1, match)


def _assign(
    traced: CostedTrace, sources: Sequence[CostedTrace], costs: pd.DataFrame, elements: pd.DataFrame, match: Integers
) -> tuple[CostedTrace, tuple[Caveat, ...]]:
    """Gives the trace with the calls of the matches.

    Modelled calls come in groups that make up whole calls.
    """
    wanted = elements[match >= 0]
    matched = elements.iloc[match[match >= 0]].assign(**{name: wanted[name].to_numpy() for name in ("row", "sequence")})
    # The n-th kernels of equal calls in a sequence belong together; a call that lacks one of its kernels is not whole.
    equal = ["sequence", "cost_id", "size"]
    matched["turn"] = matched.groupby([*equal, "ordinal"], sort=False).cumcount().to_numpy()
    matched["group"] = matched.groupby([*equal, "turn"], sort=False).ngroup().to_numpy()
    whole = matched.groupby("group")["row"].transform("size") == matched["size"]
    matched = matched[~matched["attributed"] | whole].reset_index(drop=True)
    # A group gets one call, though its kernels may have matched several of the same cost.
    matched["call"] = matched["call"].where(~matched["attributed"], matched.groupby("group")["call"].transform("first"))
    matched["here"] = (matched["source"] == 0) & ~matched["captured"]
    number, calls, grown_costs = _with_matched_calls(traced, sources, costs, matched)
    attribution = _with_matched_groups(traced, matched, number)
    linked = replace(traced.linked, trace=replace(traced.linked.trace, signatures=calls))
    return CostedTrace(linked, grown_costs, attribution), _caveats(traced, elements, matched, len(sources) > 1)


def _with_matched_calls(
    traced: CostedTrace, sources: Sequence[CostedTrace], costs: pd.DataFrame, matched: pd.DataFrame
) -> tuple[Integers, pd.DataFrame, pd.DataFrame]:
    """Adds a row to CALLS and COSTS for each matched call.

    Also returns the row of each matched kernel's call in these tables.
    """
    signatures = traced.linked.trace.signatures
    number, met = pd.factorize(pd.MultiIndex.from_frame(matched[["call", "here"]]))
    chosen = [int(call) for call, _ in met]
    places = ["elsewhere" if here else "at_capture" for _, here in met]
    every = pd.concat([source.linked.trace.signatures for source in sources], ignore_index=True)
    calls, more = every.iloc[chosen].reindex(columns=signatures.columns), costs.iloc[chosen].copy()
    modelled = more["reason"].isna().to_numpy()
    facts = [
        (*(old if isinstance(old, tuple) else ()), PLACES[place]) if ok else None
        for old, place, ok in zip(more["evidence"], places, modelled, strict=True)
    ]
    more["evidence"] = pd.Series(facts, dtype="object", index=more.index)
    more["reason"] = [
        None if ok else replace(reason, contexts=(*reason.contexts, place))
        for reason, place, ok in zip(more["reason"], places, modelled, strict=True)
    ]
    both = pd.concat([traced.costs, more], ignore_index=True)
    both = both.astype({name: column.dtype for name, column in COSTS.columns.items()})
    grown = pd.concat([signatures, calls], ignore_index=True).astype(object)
    return number.astype(np.int64) + len(signatures), grown, COSTS.check(both)


def _with_matched_groups(traced: CostedTrace, matched: pd.DataFrame, number: Integers) -> pd.DataFrame:
    """Gives ATTRIBUTION with the matched kernels.

    Their op is known where the match is of this trace.
    """
    attribution = traced.attribution.copy()
    rows, attributed = matched["row"].to_numpy(), matched["attributed"].to_numpy()
    kernels = traced.linked.kernels.iloc[rows[attributed]]
    group = pd.factorize(matched["group"].to_numpy()[attributed])[0].astype(np.int64)
    attribution.loc[rows, "signature"] = number.astype(np.int32)
    attribution.loc[rows[attributed], "share"] = shares(kernels, group)
    attribution.loc[rows[attributed], "group"] = group + int(attribution["group"].max()) + 1
    own = attributed & (matched["source"] == 0).to_numpy()
    attribution.loc[rows[own], "op"] = matched["op"].to_numpy()[own].astype(np.int32)
    return ATTRIBUTION.check(attribution)


def _caveats(
    traced: CostedTrace, elements: pd.DataFrame, matched: pd.DataFrame, has_captures: bool
) -> tuple[Caveat, ...]:
    wanted, costed = elements["wanted"].to_numpy(), matched[matched["attributed"]]
    took = traced.linked.kernels["dur_us"].to_numpy()
    wanted_us = elements["dur_us"].to_numpy()[wanted].sum()
    share = float(took[costed["row"]].sum() / wanted_us) if wanted_us > 0 else 0.0
    replayed = Caveat(
        "replayed-costs",
        f"{len(costed)} of {counted(int(np.count_nonzero(wanted)), 'kernel')} without an op ("
        f"{format_share(share)} of their time) take their cost from the same kernels at "
        "capture, or where they ran one by one",
    )
    unused = Caveat("capture-unused", "no kernel of the capture that you named matches one of this trace")
    is_unused = has_captures and not (matched["source"] > 0).any()
    return (*((replayed,) if len(costed) else ()), *((unused,) if is_unused else ()))
