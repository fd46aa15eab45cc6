"""Decides which resource limits the step.

It goes by the ledger, and by what the trace is worth. The words for it are in ``verdict``.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
import pandas as pd
from msgspec import Struct

from bottleneck.analysis.load import quickest_calls
from bottleneck.analysis.scaling import least_record_us
from bottleneck.schema.accounts import (
    ACCOUNTS,
    FEW_FLOPS_PER_BYTE,
    UNMODELLED,
)
from bottleneck.schema.analysis import (
    BROKEN_TRACE_SLUGS,
    DISTURBED_SLUGS,
    ELSEWHERE,
    GRAPH_CAPTURE,
    GROUPS,
    LEAD_IN,
    LOAD_TAKEN_OFF,
    ONE_SIDE,
    STARTED_BEFORE,
    TRUNCATED,
    Bound,
    Clause,
    IdleCause,
    KernelSummary,
    Ledger,
    Regime,
    regime_of,
)
from bottleneck.schema.evidence import Evidence, TwoSided, counted_faults_us
from bottleneck.schema.measurements import RunSteps
from bottleneck.schema.records import replace
from bottleneck.schema.request_waits import WAIT, Serving, serving_of
from bottleneck.schema.tables import WAITS, are_calls, as_integers
from bottleneck.units import format_us

# Below half of the step a group does not decide alone when the next one is this close.
CLEAR_LEAD = 0.1
# A device that works for more than this of the step limits it, whatever its kernels wait for.
_BUSY = 0.9
MOST_OF_STEP = 0.5
START_UP, STALL = "overhead.start_up", "overhead.stall"
_LEAST_CUT = 0.1  # of the recording, in a beginning that is left out
# The profiler's own work is no part of the program. Where more of a step is its work, too little is left to judge;
# where less is, nobody needs to be told.
_PROFILER, _MOST_OWN, LEAST_OWN = "overhead.profiler", 0.8, 0.05
_HOST_ACCOUNTS = tuple(key for key, account in ACCOUNTS.items() if account.group == "overhead")
# Rounding may leave nothing of a step that only waits.
_LEAST_JUDGED = 1e-6
# Groups of what a device works at.
WORK_GROUPS = frozenset({"compute", "memory"})


class FewRows(Struct, frozen=True):
    """Rows of a server's decoding step.

    ``ridge`` is the number from which on arithmetic limits products of 16-bit weights.
    """

    rows: float
    ridge: float


class Grounds(Struct, frozen=True):
    """Facts that a verdict rests on.

    ``broken`` is the reason why the trace cannot be trusted, null when it can; ``straggler`` tells of the rank that
    the others wait for; ``serving`` is the pace of a program that waits for requests. ``disturbed`` is the reason
    why times are longer than the program's own, null where they are not. ``run`` holds samples of lines,
    ``line_us`` is the time of ops by line. ``kept_up`` says by what a device whose work is not recorded is known to
    have waited for its host. ``device_noun`` is what people call the device, ``device_kind`` the flavour of the
    trace. ``quick_parts`` is, of each account of work, the part that is left if every call took as long as the
    quickest of its kind. ``row_modules`` is the time of a row of ``kernels`` by the class of its modules, 'Layer >
    Linear'; '' is outside of any. ``late_line`` is the source line at which the late rank of ``straggler`` spends
    its time. ``captures`` marks a window whose launches are for the most part captured into a graph, ``left_out``
    tells of the side of the recording that is not judged. ``faults_us`` is the time of counted page faults in ops
    of the window, ``record_us`` the least time per step that the profiler's own records take, where no step without
    it is known. ``load`` says what waits for other programs were taken off, null where none were. ``has_no_lines``
    marks a trace of others that was recorded without source lines. ``few_rows`` are those of a server's decoding step,
    where arithmetic cannot limit its products; null elsewhere.
    """

    ledger: Ledger
    kernels: tuple[KernelSummary, ...]
    idle: tuple[IdleCause, ...]
    host_only: bool = False
    broken: str | None = None
    sides: TwoSided | None = None
    straggler: tuple[Clause, ...] = ()
    late_line: str | None = None
    cut_off: str | None = None
    serving: Serving | None = None
    disturbed: str | None = None
    run: RunSteps | None = None
    line_us: Mapping[str, float] = {}
    kept_up: str | None = None
    device_noun: str = "device"
    device_kind: str = ""
    quick_parts: Mapping[str, float] = {}
    row_modules: Mapping[int, Mapping[str, float]] = {}
    captures: bool = False
    left_out: str | None = None
    faults_us: float = 0.0
    record_us: float = 0.0
    load: str | None = None
    is_one_step: bool = False
    has_no_lines: bool = False
    few_rows: FewRows | None = None


class BoundDecision(Struct, frozen=True):
    """The bound of a step.

    It is the group that limits it, or ``mixed`` or ``inconclusive``. ``ranked`` are the known groups.

    ``share`` is that of the limiting group; of the busy time for ``device``, of unmodelled work where too little is
    known. ``by_kind`` marks a bound that rests on the kinds of work that names show, because too little is modelled.
    """

    bound: Bound
    regime: Regime | None
    share: float
    shares: Mapping[str, float]
    ranked: tuple[str, ...]
    by_kind: bool = False


def grounds_of(evidence: Evidence) -> Grounds:
    """The part of the evidence that a verdict rests on."""
    analysis = evidence.analysis
    incomplete, disturbed = BROKEN_TRACE_SLUGS - DISTURBED_SLUGS, BROKEN_TRACE_SLUGS & DISTURBED_SLUGS
    caveats = sorted(analysis.caveats, key=lambda caveat: caveat.slug != ELSEWHERE)
    broken = next((caveat.message for caveat in caveats if caveat.slug in incomplete), None)
    return Grounds(
        ledger=Ledger(analysis.steps.wall_us, analysis.ledger),
        kernels=analysis.kernels,
        idle=analysis.idle,
        host_only=evidence.linked.is_host_only,
        broken=broken,
        sides=evidence.sides,
        straggler=evidence.straggler,
        late_line=_late_line(evidence),
        cut_off=next((caveat.message for caveat in analysis.caveats if caveat.slug == TRUNCATED), None),
        serving=serving_of(evidence),
        disturbed=next((caveat.message for caveat in analysis.caveats if caveat.slug in disturbed), None),
        run=analysis.run,
        line_us={fold.name: fold.us for fold in analysis.lines},
        kept_up=_kept_up(evidence) if broken is not None and evidence.linked.is_host_only else None,
        device_noun="GPU" if analysis.device.is_gpu else "device",
        device_kind=evidence.linked.trace.flavour,
        quick_parts=_quick_parts(evidence) if evidence.is_disturbed else {},
        row_modules=_row_modules(evidence),
        left_out=_left_out(evidence),
        captures=any(caveat.slug == GRAPH_CAPTURE for caveat in analysis.caveats),
        faults_us=counted_faults_us(evidence, profiled=True),
        record_us=least_record_us(evidence.linked, analysis.steps.unprofiled_us),
        load=next((caveat.message for caveat in analysis.caveats if caveat.slug == LOAD_TAKEN_OFF), None),
        is_one_step=analysis.steps.count <= 1,
        has_no_lines=evidence.recording is None
        and not (any(row.source for row in analysis.kernels) or any(row.source for row in analysis.idle)),
        few_rows=_few_rows(evidence),
    )


def _few_rows(evidence: Evidence) -> FewRows | None:
    serving = evidence.analysis.serving
    if serving is None or serving.trace_limit != "bandwidth-bound-decode" or serving.ridge_tokens is None:
        return None
    tokens = serving.phases[0].tokens
    return None if tokens is None else FewRows(tokens, serving.ridge_tokens)


def _left_out(evidence: Evidence) -> str | None:
    """Says what of the recording is not explained, where that is much.

    Null elsewhere.
    """
    window = evidence.linked.window
    is_cut = window.lead_in_us >= _LEAST_CUT * (window.lead_in_us + window.wall_us)
    slugs = (ONE_SIDE, STARTED_BEFORE, *([LEAD_IN] if is_cut else []))
    message = next((caveat.message for caveat in evidence.analysis.caveats if caveat.slug in slugs), None)
    return None if message is None else message[0].upper() + message[1:]


def _late_line(evidence: Evidence) -> str | None:
    """Gives the line that the clauses on the late rank name, else null."""
    job = evidence.analysis.job
    slow = next((one for one in job.slow if one.is_steady), None) if evidence.straggler and job is not None else None
    return None if slow is None else slow.line


_INSTANCE = re.compile(r"_\d{1,9}$")  # the profiler numbers the modules of a class


def _row_modules(evidence: Evidence) -> dict[int, dict[str, float]]:
    """Gives the time of rows of the analysis' kernels by module class.

    A class is named with the one around it.
    """
    times, module = evidence.kernel_time, evidence.linked.kernels["module"]
    if times is None:
        return {}
    mine = (times["row"] >= 0).to_numpy(dtype=bool, na_value=False) & (times["us"] > 0).to_numpy()
    paths = module.cat.categories.map(lambda path: " > ".join(_INSTANCE.sub("", part) for part in path.split(".")[-2:]))
    names = np.append(paths.to_numpy(dtype=object), "")[module.cat.codes.to_numpy()[mine]]
    rows = times["row"][mine].tolist()
    by_row: dict[int, dict[str, float]] = {}
    for row, name, us in zip(rows, names.tolist(), times["us"][mine].tolist(), strict=True):
        modules = by_row.setdefault(row, {})
        modules[name] = modules.get(name, 0.0) + us
    return by_row


def _quick_parts(evidence: Evidence) -> dict[str, float]:
    """Gives the part of each work account's time that undisturbed calls need.

    Where the quickest of the calls alike does not tell, they need their floor at least.
    """
    times, explained = evidence.kernel_time, evidence.roofline["explained"].fillna(0.0)
    if times is None:
        return {}
    works = times[(times["us"] > 0) & times["account"].isin(_WORK_ACCOUNTS)]
    us, signature = works["us"].to_numpy(np.float64), as_integers(works["signature"])
    floor_us = us * explained.reindex(works.index).to_numpy()
    quickest_us, is_told = quickest_calls(np.zeros_like(signature), signature, us, floor_us)
    quick_us = pd.Series(np.where(is_told, quickest_us, floor_us), index=works.index)
    account = works["account"].astype(str)
    parts = quick_us.groupby(account).sum() / works["us"].groupby(account).sum()
    return {str(name): float(part) for name, part in parts.items()}


_WORK_ACCOUNTS = ("compute", "memory")
# Of the window: what the last wait for the device takes at most, and all of them, where it had nothing left to do.
_SHORT_WAIT, _LITTLE_WAITING = 0.02, 0.05


def _kept_up(evidence: Evidence) -> str | None:
    """Says that the device kept up with the host.

    It was done with all work when the host waited for it at the end. Null where it was not.
    """
    trace, wall_us = evidence.linked.trace, evidence.linked.window.wall_us
    start_us, dur_us = (trace.events[name].to_numpy() for name in ("ts_us", "dur_us"))
    waits, launches = are_calls(trace, *WAITS), are_calls(trace, "launch", "graph_launch")
    if not waits.any() or not launches.any() or not wall_us > 0:
        return None
    last = int(np.flatnonzero(waits)[np.argmax(start_us[waits])])
    is_last = start_us[last] >= start_us[launches].max()
    if not is_last or dur_us[last] > _SHORT_WAIT * wall_us or dur_us[waits].sum() > _LITTLE_WAITING * wall_us:
        return None
    return (
        f"the last wait for the device, after all launches, takes {format_us(float(dur_us[last]))} of "
        f"{format_us(wall_us)}: the device kept up with the host, which sets the pace"
    )


def find_bound(grounds: Grounds) -> BoundDecision:
    """The largest group, unless too little is known or the lead too small.

    ``mixed`` when the largest known group holds under half and the next is within 10 points. Where more than half, or
    more than in any other group, is unmodelled: ``device`` if a device works nearly all of the time, else the bound
    that such kinds of work usually have; so too where unmodelled work of such kinds would overturn the bound.
    Unmodelled convolutions of a device count as compute, which products may not be, and a device whose kinds of work
    nearly all move bytes is bound by memory. ``inconclusive`` when the kinds are not known either, or when the trace
    cannot be trusted; where other programs disturbed it, only if the bound depends on which part of the time they took.
    """
    if grounds.disturbed is not None:
        return _bound_in_spite_of_load(grounds)
    shares = grounds.ledger.group_shares()
    judged = set_aside(grounds, shares)
    ranked = _ranked(judged)
    if grounds.broken is not None:
        return BoundDecision("inconclusive", None, shares[ranked[0]], shares, ranked)
    likely = set_aside(grounds, likely_shares(grounds))
    by_kind = replace(_bound_of(grounds, likely, shares, _ranked(likely)), regime=None, by_kind=True)
    if not _is_mostly_unknown(judged, ranked):
        decision = _bound_of(grounds, judged, shares, ranked)
        return by_kind if is_in_doubt(grounds, decision) and by_kind.bound != decision.bound else decision
    busy = _busy_share(grounds)
    keeps_busy = busy > _BUSY and not grounds.host_only and shares["communication"] + shares["transfer"] < 1 - _BUSY
    is_compute = by_kind.bound == "compute" and _with_convolutions(grounds, judged) > MOST_OF_STEP
    if keeps_busy and not is_compute and likely["memory"] <= _BUSY and grounds.few_rows is None:
        return BoundDecision("device", None, busy, shares, ranked)
    if _is_mostly_unknown(likely, _ranked(likely)):
        return BoundDecision("inconclusive", None, shares["unknown"], shares, ranked)
    return by_kind


_CONVOLUTIONS, _CREATION = "unknown.convolution", "unknown.creation"


def _with_convolutions(grounds: Grounds, shares: Mapping[str, float]) -> float:
    """Gives the share of compute with that of unmodelled convolutions."""
    return shares["compute"] + math.fsum(
        entry.share for entry in grounds.ledger.entries if entry.account == _CONVOLUTIONS
    )


# Of the host's own time, what may have been waiting for a processor that two threads share.
_LEAST_ON_HOST = 0.5


def _bound_in_spite_of_load(grounds: Grounds) -> BoundDecision:
    """Gives the bound if load could not have changed it.

    It must stay when each op takes as long as its quickest call, and the host half its time: load makes both longer.
    Else it is inconclusive.
    """
    calm = replace(grounds, disturbed=None)
    decision = find_bound(calm)
    less = _with_less(calm, {**dict.fromkeys(_HOST_ACCOUNTS, _LEAST_ON_HOST), **grounds.quick_parts})
    if find_bound(less).bound == decision.bound:
        return decision
    return BoundDecision("inconclusive", None, decision.share, decision.shares, decision.ranked)


def _with_less(grounds: Grounds, parts: Mapping[str, float]) -> Grounds:
    """Gives the grounds with only a part of these accounts' time."""
    us = [entry.us * parts.get(entry.account, 1.0) for entry in grounds.ledger.entries]
    wall_us = math.fsum(us)
    entries = tuple(
        replace(entry, us=entry_us, share=entry_us / wall_us if wall_us > 0 else 0.0)
        for entry, entry_us in zip(grounds.ledger.entries, us, strict=True)
    )
    return replace(grounds, ledger=Ledger(wall_us, entries))


def start_up_share(ledger: Ledger) -> float:
    """Gives the share of the step in start-up paid once.

    It is 0 where that is most of the step, so that it is not set aside.
    """
    share = math.fsum(entry.share for entry in ledger.entries if entry.account == START_UP)
    return share if share <= MOST_OF_STEP else 0.0


def profiler_share(ledger: Ledger) -> float:
    """Gives the share of the step in the profiler's own work.

    It is 0 where that is nearly all of the step.
    """
    share = math.fsum(entry.share for entry in ledger.entries if entry.account == _PROFILER)
    return share if share <= _MOST_OWN else 0.0


def accounts_aside(grounds: Grounds) -> frozenset[str]:
    """Gives the accounts that are not judged.

    They are start-up that is paid once, the profiler's own work, and the time in which a server has no requests.
    """
    ledger = grounds.ledger
    aside = {START_UP: start_up_share(ledger), _PROFILER: profiler_share(ledger), WAIT: grounds.serving is not None}
    return frozenset(account for account, is_aside in aside.items() if is_aside)


def share_aside(grounds: Grounds) -> float:
    """Gives the share of the step in accounts that are not judged."""
    aside = accounts_aside(grounds)
    return math.fsum(entry.share for entry in grounds.ledger.entries if entry.account in aside)


def set_aside(grounds: Grounds, shares: Mapping[str, float]) -> dict[str, float]:
    """The shares of the groups in the step without what is not judged."""
    aside = share_aside(grounds)
    return {
        group: max(share - (aside if group == "overhead" else 0.0), 0.0) / max(1.0 - aside, _LEAST_JUDGED)
        for group, share in shares.items()
    }


def _ranked(shares: Mapping[str, float]) -> tuple[str, ...]:
    """The known groups, largest first."""
    return tuple(sorted((group for group in GROUPS if group != UNMODELLED), key=lambda group: -shares[group]))


def _is_mostly_unknown(shares: Mapping[str, float], ranked: Sequence[str]) -> bool:
    return shares[UNMODELLED] > min(0.5, shares[ranked[0]])


def _bound_of(
    grounds: Grounds, decisive: Mapping[str, float], shares: Mapping[str, float], ranked: tuple[str, ...]
) -> BoundDecision:
    """The bound by the shares that decide; the ledger's own ``shares`` are kept."""
    first, second = ranked[0], ranked[1]
    if decisive[first] < 0.5 and decisive[first] - decisive[second] <= CLEAR_LEAD:
        return BoundDecision("mixed", None, decisive[first], shares, ranked)
    return BoundDecision(cast("Bound", first), regime_of_group(grounds, first), decisive[first], shares, ranked)


_PRODUCT = re.compile(r"^aten::(?:\w*mm|\w*mv|linear|matmul|dot)$")


_OF_VECTOR = re.compile(r"^aten::(?:addmv|mv|dot|vdot)_?$")


def likely_shares(grounds: Grounds) -> dict[str, float]:
    """Gives shares of the groups with unmodelled work assigned.

    It counts as the bound that its kind, and where known its size, has.
    """
    shares = grounds.ledger.group_shares()
    for entry in grounds.ledger.entries:
        likely = likely_bound_of(grounds, entry.account)
        if likely is not None:
            shares[likely] += entry.share
            shares[UNMODELLED] -= entry.share
    thin = math.fsum(kernel.share for kernel in grounds.kernels if is_thin_product(kernel))
    drawn = math.fsum(kernel.share for kernel in grounds.kernels if is_drawn_on_host(grounds, kernel))
    for group, more in (("compute", drawn - thin), ("memory", thin - drawn)):
        shares[group] = max(shares[group] + more, 0.0)
    return shares


def likely_bound_of(grounds: Grounds, account: str) -> str | None:
    """Gives the bound that unmodelled work of an account usually has.

    Null for other accounts. Products and attention of few rows read more than they compute.
    """
    likely = ACCOUNTS[account].likely_bound(host_only=grounds.host_only) if account in ACCOUNTS else None
    return "memory" if likely == "compute" and grounds.few_rows is not None else likely


_DRAWS = re.compile(r"^aten::(?:bernoulli|normal|uniform|rand|exponential|geometric|cauchy|log_normal|multinomial)")


def is_drawn_on_host(grounds: Grounds, kernel: KernelSummary) -> bool:
    """Tells whether a CPU draws random numbers here, by one generator in one thread.

    That is arithmetic, where fills, which share the account, write memory.
    """
    is_open = kernel.bound == UNMODELLED and kernel.account == _CREATION
    return grounds.host_only and is_open and bool(_DRAWS.match(kernel.op or ""))


def is_thin_product(kernel: KernelSummary) -> bool:
    """Tells whether an unmodelled product is thin.

    It reads so much for its arithmetic that its kind's usual bound does not hold.
    """
    if kernel.bound != UNMODELLED:
        return False
    if _OF_VECTOR.match(kernel.op or ""):
        return True  # each number of the matrix is read for one product
    if kernel.flops is None or kernel.bytes_low is None:
        return False
    return bool(_PRODUCT.match(kernel.op or "")) and 0 < kernel.flops < FEW_FLOPS_PER_BYTE * kernel.bytes_low


def _busy_share(grounds: Grounds) -> float:
    """Gives the share of the judged step in which the device works.

    This is all but the causes of idle time.
    """
    idle = math.fsum(
        entry.share for entry in grounds.ledger.entries if entry.account in ACCOUNTS and ACCOUNTS[entry.account].cause
    )
    return (1.0 - idle) / max(1.0 - share_aside(grounds), _LEAST_JUDGED)


def regime_of_group(grounds: Grounds, group: str) -> Regime | None:
    """Gives the band of all kernels of a group of work.

    They are taken together. Null for waits and where none is known.
    """
    if group not in WORK_GROUPS:
        return None
    kernels = [kernel for kernel in grounds.kernels if kernel.bound == group]
    judged = [kernel for kernel in kernels if kernel.regime is not None]
    us, judged_us = (math.fsum(row.us for row in rows) for rows in (kernels, judged))
    if _are_too_fast(kernels) or judged_us < us / 2:
        return None
    reached = reached_share(kernels)
    # Bytes that are open for most of the time still bound the regime from above.
    reached = _explained_share(judged) if reached is None else reached
    return regime_of(reached) if judged and reached is not None else None


# Of the step: less unmodelled work raises no doubt, even where two groups are as large as one another.
_LEAST_DOUBT = 0.01


def is_in_doubt(grounds: Grounds, decision: BoundDecision) -> bool:
    """Tells whether unmodelled work could overturn the bound.

    It is taken as work of the next group. Only what is judged counts.
    """
    # Unknown work is work: it may be compute or memory, never overhead or communication.
    shares, first = set_aside(grounds, decision.shares), decision.ranked[0]
    rival = max(shares[group] for group in ("compute", "memory") if group != first)
    is_open = decision.bound in {"inconclusive", "device"} or decision.by_kind
    return not is_open and shares["unknown"] >= max(shares[first] - rival, _LEAST_DOUBT)


def reached_share(kernels: Sequence[KernelSummary]) -> float | None:
    """Gives the share of their roof that these kernels reach together.

    Null if that is unknown, or the bytes are open, for half of their time, and where the roof is too low.
    """
    if _are_too_fast(kernels):
        return None
    sized = [row for row in kernels if row.explained is not None and row.reason_code != "open_bytes"]
    us, sized_us = (math.fsum(row.us for row in rows) for rows in (kernels, sized))
    return _explained_share(sized) if sized_us > us / 2 else None


# Of the time of kernels: where so much is faster than its floor by more than that floor's error, the roof that was
# measured is not theirs.
_MOST_TOO_FAST, _TOO_FAST = 0.2, 1.2


def _are_too_fast(kernels: Sequence[KernelSummary]) -> bool:
    """Tells whether many of these kernels are far faster than their arithmetic may be.

    Convolutions of oneDNN reached 2.4 times the rate of MKL's matrix products, by which a CPU's peak is measured.
    """
    too_fast_us = math.fsum(row.us for row in kernels if (row.compute_us or 0.0) > _TOO_FAST * row.us)
    return too_fast_us > _MOST_TOO_FAST * math.fsum(row.us for row in kernels)


def _explained_share(kernels: Sequence[KernelSummary]) -> float | None:
    us = math.fsum(row.us for row in kernels)
    return math.fsum((row.explained or 0.0) * row.us for row in kernels) / us if us > 0 else None
