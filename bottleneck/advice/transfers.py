"""Rules of copies from host to device.

Pageable memory, exposed copies, many small ones, detours. Only what the device waits for counts: a copy beside running
kernels is worth nothing.
"""

import math
import re
from collections.abc import Mapping

import numpy as np
import pandas as pd
from msgspec import Struct

from bottleneck.advice.kernel_work import Size, work_of
from bottleneck.advice.quantities import claims_of, format_count, format_per_step, sources_of
from bottleneck.advice.ranking import Draft, Transformation, up_to
from bottleneck.schema.analysis import LISTED_ALONE, Interval
from bottleneck.schema.evidence import Evidence, remembered
from bottleneck.schema.intervals import Flags, Floats, Integers, union
from bottleneck.schema.tables import OVER_LINK, WAITS, are_calls, as_integers, text_matches
from bottleneck.units import ITEM_BYTES, US_PER_S, counted, format_share, format_si, format_us

TRANSFER = "transfer"

_COPYING = frozenset({"aten::to", "aten::_to_copy", "aten::copy_", "aten::cuda", "aten::_copy_from"})
_MAKING = re.compile(
    r"^aten::(zeros|ones|full|rand|randn|randint|randperm|arange|eye|linspace|logspace|tril_indices|triu_indices)(_like)?$"
)
# The first argument of a call, where it is a list of sizes: '["[64, 128]", ...'.
_SIZE = re.compile(r'^\["\[(\d{1,12}(?:, ?\d{1,12}){0,15})\]"')
_ITEM_BYTES = frozenset(ITEM_BYTES.values())
# Ops of a copy nest no deeper than this: to, _to_copy, copy_, and another copy_ where dtypes differ.
_DEEPEST = 16
# Of the step: from this part on copies are what it does.
_MOST_OF_STEP = 0.5


class DeviceCopies(Struct, frozen=True):
    """Copies to the device in the window, row for row.

    The row in KERNELS, bytes (NaN unknown), duration, pageable or not. ``exposed_us`` is the time per step in which the
    device did nothing else, ``steps`` what other sums are divided by. ``waits_us`` is the idle time of the device, by
    account and per step, while the host was in the call of each copy. ``made`` marks copies of tensors that the device
    could make itself, ``weights`` those of weights that are kept on the host. Each copy belongs to one rule: to that of
    ``made`` copies, of weights, of small ones, or of large ones from pageable memory.
    """

    rows: Integers
    bytes: Floats
    dur_us: Floats
    exposed_us: Floats
    pageable: Flags
    pinned: Flags
    steps: int
    waits_us: Mapping[str, Floats]
    made: Flags
    makers: Integers
    weights: Flags

    @property
    def small(self) -> Flags:
        """Marks the copies that are round trips rather than streams.

        Only where a step has many of them.
        """
        small = (self.bytes < _SMALL_BYTES) & ~self.made
        return np.asarray(small & (small.sum() >= _MANY * self.steps))

    @property
    def large_pageable(self) -> Flags:
        """Mask of the large copies from pageable memory."""
        return np.asarray(self.pageable & (self.bytes >= _SMALL_BYTES) & ~self.made & ~self.weights)

    def waited_us(self, chosen: Flags) -> dict[str, float]:
        """Returns time by account that the device waited in calls of copies.

        Of some of them, per step.
        """
        sums = {account: float(us[chosen].sum()) for account, us in self.waits_us.items()}
        return {account: us for account, us in sums.items() if us > 0}

    def per_step(self, chosen: Flags) -> tuple[float, float, float]:
        """Number, bytes and exposed time of some of them, per step."""
        count, exposed_us = float(chosen.sum()), float(self.exposed_us[chosen].sum())
        return count / self.steps, float(np.nansum(self.bytes[chosen])) / self.steps, exposed_us


@remembered
def copies_to_device(evidence: Evidence) -> DeviceCopies:
    """The copies to the device; none on a CPU."""
    kernels, charged = evidence.linked.kernels, evidence.kernel_time
    assert charged is not None, "kernels are timed before advice is given"
    is_copy = (kernels["kind"] == "copy").to_numpy() & evidence.kernels_in_window
    rows = np.flatnonzero(is_copy & (kernels["copy_way"] == "to_device").to_numpy())
    moved = kernels["bytes"].to_numpy(dtype=np.float64, na_value=np.nan)[rows]
    moved = np.where(moved > 0, moved, np.nan)
    pageable, pinned = ((kernels["host_memory"] == kind).to_numpy()[rows] for kind in ("pageable", "pinned"))
    made, makers = _made_on_host(evidence, rows, moved)
    return DeviceCopies(
        rows=rows,
        bytes=moved,
        dur_us=kernels["dur_us"].to_numpy()[rows],
        exposed_us=charged["us"].to_numpy()[rows],
        pageable=pageable,
        pinned=pinned,
        steps=evidence.steps,
        waits_us=_waits_us(evidence, rows, {"pageable": pageable, "pinned": pinned, "": ~(pageable | pinned)}),
        made=made,
        makers=makers,
        weights=_are_weights(evidence, rows, moved) & ~made,
    )


_READS_WEIGHT = re.compile(r"^aten::(?:linear|addmm|conv[123]d)$")
# So many copies of weights in the window are no coincidence.
_LEAST_WEIGHTS = 4


def _are_weights(evidence: Evidence, rows: Integers, moved: Floats) -> Flags:
    """Marks large copies of weights that move again for each use.

    ``rows`` are the copies in KERNELS, ``moved`` their bytes. What products read as weights, and not as data, has such
    sizes. A model that moves once does so before any product; here most copies come after a product of their size.
    """
    none = np.zeros(rows.size, dtype=bool)
    if rows.size < _LEAST_WEIGHTS:
        return none
    used_us = _weights_used_us(evidence)
    signature = np.append(as_integers(evidence.linked.ops["signature"]), -1)
    calls = signature[evidence.linked.kernels["op"].to_numpy(dtype=np.int64, na_value=-1)[rows]]
    work = work_of(evidence)
    first_us = {call: used_us.get(next(iter(work.sizes_of(call)), ()), np.nan) for call in np.unique(calls).tolist()}
    from_us = np.array([first_us[call] for call in calls.tolist()])
    weights = np.isfinite(from_us) & (moved >= _SMALL_BYTES)
    again = weights & (evidence.linked.kernels["launch_ts_us"].to_numpy()[rows] > from_us)
    return weights if again.sum() >= max(_LEAST_WEIGHTS, weights.sum() / 2) else none


def _weights_used_us(evidence: Evidence) -> dict[Size, float]:
    """Gives when a product first read a weight of each size.

    Sizes of data are left out.
    """
    ops, work = evidence.linked.ops, work_of(evidence)
    reading = ops[text_matches(ops["name"], _READS_WEIGHT.match) & ops["signature"].notna().to_numpy()]
    first_us, data = dict[Size, float](), set[Size]()
    calls = reading.groupby(["name", "signature"], observed=True)["ts_us"].min().reset_index()
    for name, call, at_us in calls.itertuples(index=False):
        sizes = work.sizes_of(int(call))[name == "aten::addmm" :]
        if len(sizes) > 1:
            data.add(sizes[0])
            first_us[sizes[1]] = min(at_us, first_us.get(sizes[1], math.inf))
    return {size: at_us for size, at_us in first_us.items() if size not in data}


def _waits_us(evidence: Evidence, rows: Integers, kinds: Mapping[str, Flags]) -> dict[str, Floats]:
    """Returns idle time per step by account for each copy.

    That of the calls of its kind, by when the device idled in its own. The amounts are those of the idle rows; the
    trace's own times only share them out, evenly where they show nothing.
    """
    kernels = evidence.linked.kernels
    begin, end = (kernels[name].to_numpy()[rows] for name in ("launch_ts_us", "launch_end_us"))
    idle = np.nan_to_num(_idle_within_us(evidence, begin, end))
    kind_of = {f"{kind} to_device".lstrip(): mask for kind, mask in kinds.items()}
    waits: dict[str, Floats] = {}
    for row in evidence.analysis.idle:
        mine = kind_of.get(row.copy or "")
        if mine is None or not mine.any():
            continue
        parts = np.where(mine, idle if idle[mine].any() else 1.0, 0.0)
        account = f"overhead.{row.cause}"
        waits[account] = waits.get(account, np.zeros(rows.size)) + row.us * parts / parts.sum()
    return waits


@remembered
def waits_in_copies(evidence: Evidence) -> tuple[dict[str, float], Integers]:
    """Returns the waits that the rules of copies count.

    Time per step by account, and rows in EVENTS of the calls.
    """
    copies = copies_to_device(evidence)
    counted = copies.made | copies.weights | copies.small | copies.large_pageable
    call = as_integers(evidence.linked.kernels["launch"])[copies.rows[counted]]
    return copies.waited_us(counted), call[call >= 0]


@remembered
def waits_of_uploads(evidence: Evidence) -> Integers:
    """Returns rows in EVENTS of waits in copies from pageable memory.

    The driver waits in the copy to the device, or right after it: nothing else was issued between.
    """
    trace, kernels = evidence.linked.trace, evidence.linked.kernels
    waits = np.flatnonzero(are_calls(trace, *WAITS))
    issued_us = kernels["launch_ts_us"].to_numpy()
    order = np.argsort(issued_us, kind="stable")
    order = order[np.isfinite(issued_us[order])]
    from_pages = ((kernels["copy_way"] == "to_device") & (kernels["host_memory"] == "pageable")).to_numpy()[order]
    at_us = trace.events["ts_us"].to_numpy()[waits]
    before = np.searchsorted(issued_us[order], at_us, side="right") - 1
    return np.asarray(waits[np.append(from_pages, False)[before]])


def _saving(evidence: Evidence, copies: DeviceCopies, chosen: Flags) -> dict[str, float]:
    """Returns the cost of these copies by account.

    Their exposed time, and the waits in their calls.
    """
    _, _, exposed_us = copies.per_step(chosen)
    return {**claims_of(evidence, TRANSFER, most_us=exposed_us), **copies.waited_us(chosen)}


def ops_of(evidence: Evidence, rows: Integers) -> Integers:
    """Returns rows in OPS of the ops that issued some rows of KERNELS.

    As far as they are known.
    """
    op = evidence.linked.kernels["op"].to_numpy(dtype=np.int64, na_value=-1)[rows]
    return op[op >= 0]


def _made_on_host(evidence: Evidence, rows: Integers, moved: Floats) -> tuple[Flags, Integers]:
    """Marks the copies of tensors that the device could make itself.

    They follow an op that makes one; the rows of those ops come too. ``rows`` are the copies in KERNELS, ``moved``
    their bytes.
    """
    ops = evidence.linked.ops
    parent = np.append(ops["parent"].to_numpy(dtype=np.int64, na_value=-1), -1)
    tests = (lambda name: name in _COPYING, _MAKING.search)
    copying, making = (np.append(text_matches(ops["name"], holds), False) for holds in tests)
    top = evidence.linked.kernels["op"].to_numpy(dtype=np.int64, na_value=-1)[rows]
    for _ in range(_DEEPEST):
        above = parent[top]
        top = np.where(copying[above], above, top)
    before = _sibling_before(
        top, parent, np.append(ops["depth"].to_numpy(), -1), ops["thread"].cat.codes.to_numpy().astype(np.int64)
    )
    follows = copying[top] & making[before]
    following = np.flatnonzero(follows)
    follows[following] = [
        _may_be(evidence, *pair) for pair in zip(before[following].tolist(), moved[following], strict=True)
    ]
    return follows, before[follows]


def _may_be(evidence: Evidence, maker: int, moved: float) -> bool:
    """True if so many bytes may be the tensor that an op made.

    Also where the trace does not record its size.
    """
    signature = evidence.linked.ops["signature"].iloc[maker]
    concrete = None if pd.isna(signature) else evidence.linked.trace.signatures["concrete"].iloc[int(signature)]
    match = _SIZE.match(concrete) if isinstance(concrete, str) else None
    if match is None or np.isnan(moved):
        return True
    elements = math.prod(int(size) for size in match[1].split(","))
    return any(moved == elements * item for item in _ITEM_BYTES)


def _sibling_before(op: Integers, parent: Integers, depth: Integers, thread: Integers) -> Integers:
    """Returns the row in OPS of the op that ended before each one.

    Inside the same op; -1 for none.
    """
    before = np.where(op > 0, op - 1, -1)
    for _ in range(_DEEPEST):
        before = np.where(depth[before] > depth[op], parent[before], before)
    code = np.append(thread, -1)
    return np.where((before >= 0) & (depth[before] == depth[op]) & (code[before] == code[op]), before, -1)


# What the host does while it fills a tensor.
_HOST_WORK = ("overhead.host_compute", "overhead.dispatch")
# Below this a copy is a round trip rather than a stream (advice_rules 42).
_SMALL_BYTES = 65536
_LEAST_SHARE = 0.01
_MANY = 8
# What copies from pinned memory reach of the link that the device table has.
_PINNED_SHARE = 0.8


_PIN_SENT = ("loader = DataLoader(dataset, pin_memory=True)", "batch = batch.to(device, non_blocking=True)")
_PIN_BACK = (
    "kept = torch.empty(result.shape, dtype=result.dtype, pin_memory=True)  # once",
    "kept.copy_(result, non_blocking=True)  # read it after torch.cuda.current_stream().synchronize()",
)


_PINNING = {
    (True, False): "Let the loader put batches into pinned memory (pin_memory=True), and copy them without waiting "
    "(non_blocking=True).",
    (False, True): "Copy results into memory that is pinned once, and without waiting.",
    (True, True): "Pin batches (pin_memory=True) and buffers for results, copy with non_blocking=True, and synchronize "
    "before results are read.",
}


def pageable_copies(evidence: Evidence) -> Draft | None:
    """Finds large copies of pageable memory (rule 40).

    The driver has to copy it by way of a buffer of its own, while the host waits. Results that are copied back count
    too, where the device does nothing else meanwhile.
    """
    copies = copies_to_device(evidence)
    chosen = copies.large_pageable
    back_us, back_bytes, back_exposed_us = _copies_back(evidence)
    count, moved, exposed_us = copies.per_step(chosen)
    is_sent, count, moved = count > 0, count + back_us.size / copies.steps, moved + back_bytes
    exposed_us += back_exposed_us
    waits = copies.waited_us(chosen)
    if not count or evidence.share_of_step(exposed_us + sum(waits.values())) < _LEAST_SHARE:
        return None
    lasted_us = float(copies.dur_us[chosen].sum() + back_us.sum()) / copies.steps
    pace = moved / lasted_us * US_PER_S if lasted_us > 0 else None
    pinned_per_s = _pinned_bytes_per_s(evidence, copies, pace)
    streamed_us = moved / pinned_per_s * US_PER_S if pinned_per_s else 0.0
    saved_us = exposed_us * max(0.0, 1 - streamed_us / lasted_us) if lasted_us > 0 else 0.0
    if saved_us + sum(waits.values()) <= 0:
        return None
    claims = {**claims_of(evidence, TRANSFER, most_us=saved_us), **waits}
    way = " and ".join([*(["from"] if is_sent else []), *(["to"] if back_us.size else [])])
    return Draft(
        slug="pageable-copies",
        title="Batches are copied from pageable memory" if is_sent else "Results are copied to pageable memory",
        evidence=(
            f"copies {way} pageable memory, {format_count(count)} per step, move {format_si(moved, 'B')}"
            + (f" at {format_si(pace, 'B/s')}" if pace else ""),
            f"the device does nothing else for {format_us(exposed_us)} of them ({_of_step(evidence, exposed_us)})",
            *((f"the host is held in the calls for another {format_us(sum(waits.values()))}",) if waits else ()),
            f"from pinned memory they take about {format_us(streamed_us)} at {format_si(pinned_per_s, 'B/s')}"
            if pinned_per_s
            else "how fast this link is with pinned memory is not known",
        ),
        advice=_PINNING[is_sent, back_us.size > 0],
        code="\n".join((_PIN_SENT if is_sent else ()) + (_PIN_BACK if back_us.size else ())),
        gain_us=up_to(saved_us + sum(waits.values())) if pinned_per_s else None,
        gain_reason=None if pinned_per_s else "the speed of this link with pinned memory is not known",
        claims=claims,
        tries=("pin-memory",),
    )


def _copies_back(evidence: Evidence) -> tuple[Floats, float, float]:
    """Returns durations of the large copies to pageable host memory.

    And, per step, their bytes and exposed time.
    """
    kernels, charged = evidence.linked.kernels, evidence.kernel_time
    assert charged is not None, "kernels are timed before advice is given"
    moved = kernels["bytes"].to_numpy(dtype=np.float64, na_value=np.nan)
    is_copy = (kernels["kind"] == "copy").to_numpy() & evidence.kernels_in_window & (moved >= _SMALL_BYTES)
    back = is_copy & ((kernels["copy_way"] == "to_host") & (kernels["host_memory"] == "pageable")).to_numpy()
    exposed_us = float(charged["us"].to_numpy()[back].sum())
    return kernels["dur_us"].to_numpy()[back], float(moved[back].sum()) / evidence.steps, exposed_us


_REDUCES = re.compile(
    r"^aten::(?:arg|a)?(?:max|min)$|^aten::(?:sum|mean|prod|any|all|std|var|norm|median|count_nonzero)$"
)
_INDEX_BYTES = 8


def copied_to_reduce(evidence: Evidence, name: str) -> tuple[float, Interval] | None:
    """Gives the copies to the host of what an op reduces there.

    The results are their bytes per step, and how much of their time goes where the op runs on the device: all of it at
    most, and at least what a result along the shortest dimension leaves. Null for an op that reduces nothing, or
    without copies of its operand.
    """
    if not _REDUCES.match(name):
        return None
    left = _left_after_reduction(evidence, name)
    kernels, charged = evidence.linked.kernels, evidence.kernel_time
    assert charged is not None, "kernels are timed before advice is given"
    moved = kernels["bytes"].to_numpy(dtype=np.float64, na_value=np.nan)
    rows = np.flatnonzero((kernels["copy_way"] == "to_host").to_numpy() & evidence.kernels_in_window)
    rows = rows[np.isin(moved[rows], list(left))]
    us = charged["us"].to_numpy()[rows]
    if not us.sum() > 0:
        return None
    least_us = float((us * np.array([1 - left[size] for size in moved[rows].tolist()])).sum())
    return float(moved[rows].sum()) / evidence.steps, Interval(least_us, float(us.sum()))


def _left_after_reduction(evidence: Evidence, name: str) -> dict[float, float]:
    """Gives the part that a reduction leaves at most, by its operand's bytes."""
    ops, work, left = evidence.linked.ops, work_of(evidence), dict[float, float]()
    calls = as_integers(ops["signature"])[(ops["name"] == name).to_numpy()]
    for call in np.unique(calls).tolist():
        size, kind = next(iter(work.sizes_of(call)), ()), next(iter(work.text_column("types", call)), None)
        item = ITEM_BYTES.get(str(kind))
        if size and item is not None:
            shortest = min((length for length in size if length > 1), default=1)
            left[item * math.prod(size)] = min((_INDEX_BYTES + item) / item / shortest, 1.0)
    return left


def _pinned_bytes_per_s(evidence: Evidence, copies: DeviceCopies, pace: float | None) -> float | None:
    """Returns the rate of the quickest copy from pinned memory.

    Else what such copies reach of the device's link. Never less than the ``pace`` of those from pageable memory.
    """
    seen = copies.pinned & (copies.bytes >= _SMALL_BYTES) & (copies.dur_us > 0)
    if seen.any():
        return float((copies.bytes[seen] / copies.dur_us[seen]).max()) * US_PER_S
    link = evidence.analysis.device.link_bytes_per_s
    return None if link is None else max(_PINNED_SHARE * link, pace or 0.0)


def copies_not_overlapped(evidence: Evidence) -> Draft | None:
    """Finds kernels that wait for a copy which could have run before.

    Beside those of the step before (rule 41). The link is busy as long as before: the step cannot become shorter than
    its copies, nor do they hide behind more work than there is, on the device or the other way over the link.
    """
    copies = copies_to_device(evidence)
    chosen = ~(copies.bytes < _SMALL_BYTES) & ~copies.weights
    count, moved, exposed_us = copies.per_step(chosen)
    linked_us = float(copies.dur_us[chosen].sum()) / copies.steps
    computed_us, returned_us = float(work_of(evidence).us.sum()), _copied_back_us(evidence)
    hidden_us = min(exposed_us, max(0.0, evidence.step_us - linked_us), computed_us + returned_us)
    if not count or evidence.share_of_step(hidden_us) < _LEAST_SHARE:
        return None
    return Draft(
        slug="copies-not-overlapped",
        title="The device waits for its input to be copied",
        evidence=(
            f"copies to the device, {format_count(count)} per step{_sized(moved)}, take {format_us(linked_us)}",
            f"for {format_us(exposed_us)} of that the device computes nothing ({_of_step(evidence, exposed_us)})",
            *(
                ("they come from pageable memory, which has to be pinned first",)
                if copies.pageable[chosen].any()
                else ()
            ),
            *sources_of(evidence, ops_of(evidence, copies.rows[chosen]), most=2),
        ),
        advice="Copy the next batch on a stream of its own while "
        + ("this one is computed." if computed_us >= returned_us else "results are copied back: a link has two ways."),
        code="with torch.cuda.stream(copying):\n"
        "    following = batch.to(device, non_blocking=True)  # from pinned memory\n"
        "torch.cuda.current_stream().wait_stream(copying)  # before it is used",
        gain_us=up_to(hidden_us),
        claims=claims_of(evidence, TRANSFER, most_us=hidden_us),
        # A copy from pageable memory holds the host until it is staged, so that nothing can run beside it yet.
        remedies=("pageable-copies",) if bool(copies.pageable[chosen].all()) else (),
        transformation=Transformation(("overlap copy",)),
    )


def _copied_back_us(evidence: Evidence) -> float:
    """Gives the time per step of copies to the host."""
    kernels = evidence.linked.kernels
    rows = (kernels["copy_way"] == "to_host").to_numpy() & evidence.kernels_in_window
    return float(kernels["dur_us"].to_numpy()[rows].sum()) / evidence.steps


def offloaded_weights(evidence: Evidence) -> Draft | None:
    """Finds weights that are kept on the host and copied for each use.

    Gain: at most all that the device waits for these copies, and at least what pinned memory and copies beside the work
    leave of the step: its other work, or the copies at the pace of the link.
    """
    copies = copies_to_device(evidence)
    chosen = copies.weights
    count, moved, exposed_us = copies.per_step(chosen)
    saved = _saving(evidence, copies, chosen)
    saved_us = sum(saved.values())
    if not count or evidence.share_of_step(saved_us) < _LEAST_SHARE:
        return None
    lasted_us = float(copies.dur_us[chosen].sum()) / copies.steps
    pace = moved / lasted_us * US_PER_S if lasted_us > 0 else None
    pinned_per_s = _pinned_bytes_per_s(evidence, copies, pace) if copies.pageable[chosen].any() else pace
    streamed_us = moved / pinned_per_s * US_PER_S if pinned_per_s else lasted_us
    left_us = max(evidence.step_us - saved_us, streamed_us)
    return Draft(
        slug="offloaded-weights",
        title="Weights are kept on the host and copied for each use",
        evidence=(
            f"copies of weights, {format_count(count)} per step, move {format_si(moved, 'B')}"
            + (f" at {format_si(pace, 'B/s')}" if pace else ""),
            f"the device does nothing else for {format_us(exposed_us)} of them ({_of_step(evidence, exposed_us)})",
            f"from pinned memory they take about {format_us(streamed_us)}, beside the other work",
            *sources_of(evidence, ops_of(evidence, copies.rows[chosen]), most=2),
        ),
        advice="Keep the weights on the device: in fewer bits, or with fewer layers offloaded. Where they do not fit, "
        "pin them, and copy the next layer while this one computes.",
        brief="Keep the weights on the device: in fewer bits, or with fewer layers offloaded",
        code="model = AutoModelForCausalLM.from_pretrained(\n"
        '    name, quantization_config=BitsAndBytesConfig(load_in_4bit=True), device_map={"": 0}\n'
        ")\n"
        "# else: weight.data = weight.data.pin_memory()  # once, and copied on a stream of its own",
        gain_us=Interval(max(0.0, evidence.step_us - left_us), saved_us),
        claims=saved,
    )


def copied_bytes(evidence: Evidence) -> Draft | None:
    """Finds copies over the link that hold most of the step.

    Neither pinned memory nor work beside them would hide them. Gain: none predicted, because the program knows which of
    the bytes it needs.
    """
    exposed_us = evidence.account_us(TRANSFER)
    if evidence.is_host_only or evidence.share_of_step(exposed_us) < _MOST_OF_STEP:
        return None
    if any(rule(evidence) is not None for rule in (offloaded_weights, pageable_copies, copies_not_overlapped)):
        return None
    kernels = evidence.linked.kernels
    linked = (kernels["kind"] == "copy").to_numpy() & kernels["copy_way"].isin(OVER_LINK).to_numpy()
    linked &= evidence.kernels_in_window
    moved = float(np.nansum(kernels["bytes"].to_numpy(dtype=np.float64, na_value=np.nan)[linked])) / evidence.steps
    lasted_us = float(kernels["dur_us"].to_numpy()[linked].sum()) / evidence.steps
    if not moved > 0 or not lasted_us > 0:
        return None
    pace, limit = moved / lasted_us * US_PER_S, evidence.analysis.device.link_bytes_per_s
    pinned = copies_to_device(evidence).pinned
    pinning = "" if pinned.size and pinned.all() else ".pin_memory()"
    of_link = "" if limit is None else f", {format_share(min(pace / limit, 1.0))} of what its link can do"
    return Draft(
        slug="copied-bytes",
        title="Copies between host and device are most of the step",
        evidence=(
            f"{counted(format_count(float(linked.sum()) / evidence.steps), 'copy', 'copies')} per step{_sized(moved)} "
            f"run at {format_si(pace, 'B/s')}{of_link}",
            f"the device does nothing else for {_of_step(evidence, exposed_us)}",
        ),
        advice="Copy fewer bytes (a narrower dtype, only what is used, data that stays on the device), and look at the "
        "link where it is slower than it should be.",
        brief="Copy fewer bytes: a narrower dtype, only what is used, data that stays on the device",
        code=f"batch = batch.to(torch.bfloat16){pinning}.to(device, non_blocking=True)  # half of the bytes\n"
        "# diagnosis: nvidia-smi --query-gpu=pcie.link.gen.current,pcie.link.width.current --format=csv",
        gain_reason="not predicted: a trace does not show which of the data the program needs",
        claims=claims_of(evidence, TRANSFER, most_us=exposed_us),
    )


def small_copies(evidence: Evidence) -> Draft | None:
    """Rule 42: many copies that are round trips rather than streams."""
    copies = copies_to_device(evidence)
    small = copies.small
    count, moved, exposed_us = copies.per_step(small)
    saved = _saving(evidence, copies, small)
    saved_us = sum(saved.values()) * (1 - 1 / count) if count else 0.0
    if evidence.share_of_step(saved_us) < _LEAST_SHARE:
        return None
    waited_us = sum(saved.values()) - min(exposed_us, saved.get(TRANSFER, 0.0))
    return Draft(
        slug="small-copies",
        title="Many small copies go to the device one by one",
        evidence=(
            f"{counted(format_count(count), 'copy', 'copies')} per step of less than {format_si(_SMALL_BYTES, 'B')}, "
            f"{format_si(moved, 'B')} together",
            f"the device does nothing else for {format_us(exposed_us)}, "
            f"and waits for the host in these calls for {format_us(waited_us)}",
            *sources_of(evidence, ops_of(evidence, copies.rows[small]), most=2),
        ),
        advice="Pack them into one copy, or make them on the device.",
        code="packed = torch.cat([each.flatten() for each in small]).to(device, non_blocking=True)\n"
        "small = packed.split([each.numel() for each in small])",
        gain_us=up_to(saved_us),
        claims={account: us * (1 - 1 / count) for account, us in saved.items()},
    )


def made_on_host(evidence: Evidence) -> Draft | None:
    """Finds a tensor that is filled on the CPU and copied (rule 43).

    The device could fill it itself.
    """
    copies = copies_to_device(evidence)
    copying, making = copies.made, copies.makers
    saved = _saving(evidence, copies, copying)
    copied_us = sum(saved.values())
    made = claims_of(evidence, *_HOST_WORK, most_us=_idle_us(evidence, making))
    saved |= {account: us + saved.get(account, 0.0) for account, us in made.items()}
    if not copying.any() or evidence.share_of_step(sum(saved.values())) < _LEAST_SHARE:
        return None
    count, moved, _ = copies.per_step(copying)
    names = list(dict.fromkeys(evidence.linked.ops["name"].astype(object).to_numpy()[making].tolist()))[:3]
    maker = names[0].replace("aten::", "torch.")
    return Draft(
        slug="made-on-host",
        title="Tensors are made on the CPU and then copied to the device",
        evidence=(
            f"copies, {format_count(count)} per step{_sized(moved)}, follow {', '.join(names)} on the CPU",
            f"they cost {format_us(copied_us)} of the step: copying, and the device waiting for the call",
            *((f"the device waits another {format_us(sum(made.values()))} while they are made",) if made else ()),
            *sources_of(evidence, making, most=2),
        ),
        advice="Make these tensors on the device.",
        code=f"x = {maker}(…, device=device)  # not {maker}(…).to(device)",
        gain_us=up_to(sum(saved.values())),
        claims=saved,
    )


# The ops inside the calls of `_MAKING` that do their work.
_FILLING = re.compile(r"^aten::(fill_|zero_|normal_|uniform_|random_|bernoulli_|exponential_|cauchy_)$")
# Such an op makes its numbers for a tensor of the model, which lies where the model runs.
_DROPPING = re.compile(r"^aten::(?:_fused_|native_|alpha_|feature_|feature_alpha_)?dropout_?$|^aten::rrelu\w*$")
_MOVING = re.compile(r"^aten::(_to_copy|to)$")


def made_beside_device(evidence: Evidence) -> Draft | None:
    """Finds random numbers or constants made by the CPU beside a device.

    The device is one of the machine and shows nothing of its work. Masks of dropout are left out: their model runs on
    the CPU. Gain: at most the time of making and of the copies to another dtype or device; on a device it takes hardly
    any.
    """
    devices = evidence.linked.trace.devices
    if not is_listed_alone(evidence) or not devices:
        return None
    work = work_of(evidence)
    making = (work.op_like(_FILLING) | work.op_like(_MAKING)) & ~work.inside(_DROPPING)
    made_us, share = work.us_of(making), work.share(making)
    if share < _LEAST_SHARE:
        return None
    moving = np.where(work.op_like(_MOVING) | work.op_like(_MOVING, above=True), work.us, 0.0)
    names = evidence.linked.ops["name"].astype(object).to_numpy()
    makers = np.flatnonzero(text_matches(evidence.linked.ops["name"], _MAKING.search))
    called = list(dict.fromkeys(names[makers].tolist()))[:3]
    maker = next(iter(called), "aten::randn").replace("aten::", "torch.")
    less = np.where(making, work.us, 0.0)
    return Draft(
        slug="made-on-host",
        title="Tensors are made on the CPU of a machine that has another device",
        evidence=(
            f"{', '.join(called) or 'fills and random numbers'} on the CPU take {format_per_step(evidence, made_us)}; "
            f"copies another {format_us(float(moving.sum()))}",
            f"the machine lists a device ({devices[0].name}), of which the trace holds nothing",
            *sources_of(evidence, makers, most=2),
        ),
        advice="Make these tensors on the device, if the program uses it.",
        code=f"x = {maker}(…, device=device)  # not {maker}(…).to(device)",
        gain_us=up_to(made_us + float(moving.sum())),
        claims=work.claims(less + moving),
        confidence="low",
    )


def is_listed_alone(evidence: Evidence) -> bool:
    """True where the machine lists a device and the trace holds nothing of it."""
    return any(caveat.slug == LISTED_ALONE for caveat in evidence.linked.trace.caveats)


def _idle_us(evidence: Evidence, ops: Integers) -> float:
    """Returns time per step in which these ops run and the device idles.

    Rows are of OPS; the time is of unprofiled steps.
    """
    start = evidence.linked.ops["ts_us"].to_numpy()[ops]
    end = start + evidence.linked.ops["dur_us"].to_numpy()[ops]
    return float(_idle_within_us(evidence, start, end).sum()) / evidence.steps * evidence.host_scale


def _idle_within_us(evidence: Evidence, start: Floats, end: Floats) -> Floats:
    """Returns the part of each span in which the device does nothing.

    It is in the trace's time.
    """
    kernels = evidence.linked.kernels
    begin = kernels["ts_us"].to_numpy()
    return np.asarray(end - start - union(begin, begin + kernels["dur_us"].to_numpy()).covered_between(start, end))


def _sized(moved: float) -> str:
    """The bytes in brackets; empty where the trace does not record them."""
    return f" ({format_si(moved, 'B')})" if moved > 0 else ""


def _of_step(evidence: Evidence, us: float) -> str:
    return f"{format_share(evidence.share_of_step(us))} of the step"


RULES = (
    offloaded_weights,
    pageable_copies,
    copies_not_overlapped,
    copied_bytes,
    small_copies,
    made_on_host,
    made_beside_device,
)
