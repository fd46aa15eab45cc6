"""Decides the verdict, the last stage: which resource limits the step, and the sentence that states it."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from msgspec import Struct

from bottleneck.schema.accounts import ACCOUNTS, UNMODELLED, UNMODELLED_ACCOUNTS, phrase_of
from bottleneck.schema.analysis import (
    APPLE_UNRECORDED,
    BROKEN_TRACE_SLUGS,
    DISTURBED_SLUGS,
    ELSEWHERE,
    GRAPH_CAPTURE,
    GROUPS,
    HALF_RECORDED,
    ONE_OFF,
    ONE_RANK,
    REGIMES,
    TRUNCATED,
    Bound,
    Caveat,
    Clause,
    Finding,
    IdleCause,
    KernelSummary,
    Ledger,
    LedgerEntry,
    Regime,
    Verdict,
    describe_share,
    join_clauses,
    regime_of,
    share_tenths,
)
from bottleneck.schema.evidence import Evidence, TwoSided
from bottleneck.schema.finding_order import LITTLE, in_reading_order
from bottleneck.schema.measurements import LEAST_SAMPLED_US, RunSteps
from bottleneck.schema.op_names import at_source
from bottleneck.schema.reasons import REMEDIES
from bottleneck.schema.records import replace
from bottleneck.schema.serving import WAIT, Serving, describe_pace, serving_of
from bottleneck.units import format_share, format_us

# Below half of the step a group does not decide alone when the next one is this close.
_CLEAR_LEAD = 0.1
# A device that works for more than this of the step limits it, whatever its kernels wait for.
_BUSY = 0.9

_GROUP_WORDS = {
    "compute": "compute",
    "memory": "memory bandwidth",
    "overhead": "overhead",
    "communication": "communication",
    "transfer": "copying between host and device",
    "unknown": "unmodelled work",
}

# Caveat -> what to record instead, where it concerns more than half of what was recorded.
_RECORD_INSTEAD: Mapping[str, str] = {
    ELSEWHERE: "record these processes, if they import torch: bottleneck run --follow-children",
    HALF_RECORDED: "record the device too: activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
    APPLE_UNRECORDED: "record the GPU's side in Instruments: torch.mps.profiler.start(mode='interval')",
    GRAPH_CAPTURE: "record later steps, which replay the graph: this window captures it",
    ONE_OFF: "record later steps, after warm-up: {message}",
}
_MOST = 0.5
_START_UP = "overhead.start_up"
_HOST_ACCOUNTS = tuple(key for key, account in ACCOUNTS.items() if account.group == "overhead")
# Rounding may leave nothing of a step that only waits.
_LEAST_JUDGED = 1e-6

_NEAR_THE_ROOF = "it runs near the roof: lower the precision or the number of FLOPs"
_BELOW_THE_ROOF = "lower the precision or the number of FLOPs; {share} of the peak is reached"
_ALL_RANKS = "report the traces of all ranks together: one that comes late holds the others up in their collectives"
_MISALIGNED = "pad the sizes of the matrix product to multiples of 8"
# Accounts whose time a sentence names by the largest kernel instead of the account.
_NAMED_BY_KERNEL = frozenset({"compute", "memory", "unknown"})
_LONGEST_NAME = 60


class Grounds(Struct, frozen=True):
    """Facts that a verdict rests on.

    ``broken`` is the reason why the trace cannot be trusted, null when it can; ``instead`` says what to record where
    this trace shows something else than the program at work; ``straggler`` tells of the rank that the others
    wait for; ``serving`` is the pace of a program that waits for requests. ``disturbed``
    is the reason why times are longer than the program's own, null where they are not. ``run`` holds samples of lines,
    ``line_us`` is the time of ops by line.
    """

    ledger: Ledger
    kernels: tuple[KernelSummary, ...]
    idle: tuple[IdleCause, ...]
    host_only: bool = False
    broken: str | None = None
    instead: str | None = None
    sides: TwoSided | None = None
    straggler: tuple[Clause, ...] = ()
    is_one_of_several: bool = False
    cut_off: str | None = None
    serving: Serving | None = None
    disturbed: str | None = None
    run: RunSteps | None = None
    line_us: Mapping[str, float] = {}


class BoundDecision(Struct, frozen=True):
    """The bound of a step: the group that limits it, or ``mixed`` or ``inconclusive``; ``ranked`` are the known groups.

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
        instead=_record_instead(caveats),
        sides=evidence.sides,
        straggler=evidence.straggler,
        is_one_of_several=any(caveat.slug == ONE_RANK for caveat in analysis.caveats),
        cut_off=next((caveat.message for caveat in analysis.caveats if caveat.slug == TRUNCATED), None),
        serving=serving_of(evidence),
        disturbed=next((caveat.message for caveat in analysis.caveats if caveat.slug in disturbed), None),
        run=analysis.run,
        line_us={fold.name: fold.us for fold in analysis.lines},
    )


def _record_instead(caveats: Sequence[Caveat]) -> str | None:
    """Advice of the first caveat that says that most of the trace is not the program at work; null where none does."""
    return next(
        (
            _RECORD_INSTEAD[caveat.slug].format(message=caveat.message)
            for caveat in caveats
            if caveat.slug in _RECORD_INSTEAD and (caveat.share is None or caveat.share > _MOST)
        ),
        None,
    )


def find_bound(grounds: Grounds) -> BoundDecision:
    """The largest group, unless too little is known or the lead too small.

    ``mixed`` when the largest known group holds under half and the next is within 10 points. Where more than half, or
    more than in any other group, is unmodelled: ``device`` if a device works nearly all of the time, else the bound
    that such kinds of work usually have; so too where unmodelled work of such kinds would overturn the bound.
    ``inconclusive`` when the kinds are not known either, or when the trace cannot be trusted; where other programs
    disturbed it, only if the bound depends on which part of the time they took.
    """
    if grounds.disturbed is not None:
        return _bound_in_spite_of_load(grounds)
    shares = grounds.ledger.group_shares()
    judged = _set_aside(grounds, shares)
    ranked = _ranked(judged)
    if grounds.broken is not None:
        return BoundDecision("inconclusive", None, shares[ranked[0]], shares, ranked)
    likely = _set_aside(grounds, _likely_shares(grounds))
    by_kind = replace(_bound_of(grounds, likely, shares, _ranked(likely)), regime=None, by_kind=True)
    if not _is_mostly_unknown(judged, ranked):
        known = _bound_of(grounds, judged, shares, ranked)
        return by_kind if _is_in_doubt(grounds, known) and by_kind.bound != known.bound else known
    busy = _busy_share(grounds)
    if busy > _BUSY and not grounds.host_only and shares["communication"] + shares["transfer"] < 1 - _BUSY:
        return BoundDecision("device", None, busy, shares, ranked)
    if _is_mostly_unknown(likely, _ranked(likely)):
        return BoundDecision("inconclusive", None, shares["unknown"], shares, ranked)
    return by_kind


# Of the host's own time, what may have been waiting for a processor that two threads share.
_LEAST_OWN = 0.5


def _bound_in_spite_of_load(grounds: Grounds) -> BoundDecision:
    """The bound if it stays when ops take no longer than they need, or the host half its time; else inconclusive."""
    calm = replace(grounds, disturbed=None)
    found = find_bound(calm)
    others = (_with_less(calm, _needed_parts(grounds)), _with_less(calm, dict.fromkeys(_HOST_ACCOUNTS, _LEAST_OWN)))
    if all(find_bound(each).bound == found.bound for each in others):
        return found
    return BoundDecision("inconclusive", None, found.share, found.shares, found.ranked)


def _needed_parts(grounds: Grounds) -> dict[str, float]:
    """Part of the time of each account of work that its floors explain; none where they are not known."""
    parts = {}
    for account in ("compute", "memory"):
        rows = [row for row in grounds.kernels if row.bound == account]
        total_us = math.fsum(row.us for row in rows)
        needed_us = math.fsum((row.explained or 0.0) * row.us for row in rows)
        parts[account] = min(needed_us / total_us, 1.0) if total_us > 0 else 0.0
    return parts


def _with_less(grounds: Grounds, parts: Mapping[str, float]) -> Grounds:
    """The grounds of a step in which these accounts take only a part of their time."""
    us = [entry.us * parts.get(entry.account, 1.0) for entry in grounds.ledger.entries]
    wall_us = math.fsum(us)
    entries = tuple(
        replace(entry, us=each, share=each / wall_us if wall_us > 0 else 0.0)
        for entry, each in zip(grounds.ledger.entries, us, strict=True)
    )
    return replace(grounds, ledger=Ledger(wall_us, entries))


def _start_up_share(ledger: Ledger) -> float:
    """Share of the step in start-up that is paid once; 0 where it is most of the step, so that it is not set aside."""
    share = math.fsum(entry.share for entry in ledger.entries if entry.account == _START_UP)
    return share if share <= _MOST else 0.0


def _accounts_aside(grounds: Grounds) -> frozenset[str]:
    """The accounts that are not judged: start-up that is paid once, and the time in which a server has no requests."""
    aside = {_START_UP} if _start_up_share(grounds.ledger) else set()
    return frozenset(aside | ({WAIT} if grounds.serving is not None else set()))


def _share_aside(grounds: Grounds) -> float:
    aside = _accounts_aside(grounds)
    return math.fsum(entry.share for entry in grounds.ledger.entries if entry.account in aside)


def _set_aside(grounds: Grounds, shares: Mapping[str, float]) -> dict[str, float]:
    """The shares of the groups in the step without what is not judged."""
    aside = _share_aside(grounds)
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
    if decisive[first] < 0.5 and decisive[first] - decisive[second] <= _CLEAR_LEAD:
        return BoundDecision("mixed", None, decisive[first], shares, ranked)
    return BoundDecision(cast("Bound", first), _regime(grounds, first), decisive[first], shares, ranked)


# Products that compute less per byte read their operands once for few rows. Below the ridge of most CPUs (their range:
# devices/match.py); that of a GPU is higher.
_FEW_FLOPS_PER_BYTE = 8.0
_PRODUCT = re.compile(r"^aten::(?:\w*mm|\w*mv|linear|matmul|dot)$")


def _likely_shares(grounds: Grounds) -> dict[str, float]:
    """Shares of the groups with unmodelled work counted as the bound that its kind, and where known its size, has."""
    shares = grounds.ledger.group_shares()
    for entry in grounds.ledger.entries:
        likely = ACCOUNTS[entry.account].likely if entry.account in ACCOUNTS else None
        if likely is not None:
            shares[likely] += entry.share
            shares[UNMODELLED] -= entry.share
    thin = math.fsum(kernel.share for kernel in grounds.kernels if _is_thin_product(kernel))
    shares["compute"], shares["memory"] = max(shares["compute"] - thin, 0.0), shares["memory"] + thin
    return shares


def _is_thin_product(kernel: KernelSummary) -> bool:
    """True for an unmodelled product that reads so much for its arithmetic that its kind's usual bound is not its."""
    if kernel.bound != UNMODELLED or kernel.flops is None or kernel.bytes_low is None:
        return False
    return bool(_PRODUCT.match(kernel.op or "")) and 0 < kernel.flops < _FEW_FLOPS_PER_BYTE * kernel.bytes_low


def _busy_share(grounds: Grounds) -> float:
    """Share of the judged part of the step in which the device works: all but the causes of idle time."""
    idle = math.fsum(
        entry.share for entry in grounds.ledger.entries if entry.account in ACCOUNTS and ACCOUNTS[entry.account].cause
    )
    return (1.0 - idle) / max(1.0 - _share_aside(grounds), _LEAST_JUDGED)


def decide(grounds: Grounds, findings: Sequence[Finding] = ()) -> Verdict:
    """The verdict; its first step is the first finding whose gain shows, else what the largest account advises.

    Advice to record anew stays first, whatever the findings on the step are.
    """
    decision = find_bound(grounds)
    first_step = (
        _leading(findings)
        or _recording_advice(grounds, decision, findings)
        or _first_finding(grounds, decision, findings)
    )
    step = first_step or _change_without_gain(decision, findings) or _account_advice(grounds, decision)
    clauses = tuple(_clauses(grounds, decision, findings, step))
    text = join_clauses(clauses)
    return Verdict(decision.bound, decision.regime, decision.share, text, decision.shares, step.text, clauses)


class _FirstStep(Struct, frozen=True):
    """The first action, and the slug of the finding or the account whose advice it is; null where it is neither's."""

    text: str
    source: str | None = None


def _clauses(
    grounds: Grounds, decision: BoundDecision, findings: Sequence[Finding], first_step: _FirstStep
) -> Iterator[Clause]:
    """The parts of the verdict in words, in the order in which they are read."""
    if grounds.cut_off:
        yield Clause("cut_off", f"The file was cut off, so this judges only a part: {grounds.cut_off}")
    yield from grounds.straggler
    if grounds.serving is not None:
        yield Clause("pace", _pace(grounds, grounds.serving))
    if sure := _sure(grounds, decision, findings):
        yield Clause("sure", sure)
    yield from _opening(grounds, decision)
    if doubt := _doubt(grounds, decision):
        yield Clause("doubt", doubt, "; ")
    if aside := _start_up_share(grounds.ledger):
        yield Clause("start_up", f"Start-up that is paid once takes {format_share(aside)} and is set aside")
    if grounds.sides:
        yield Clause("sides", describe_sides(grounds.sides))
    yield Clause("first", f"First: {first_step.text}", source=first_step.source)


# Findings that rest on what the program does, so that a busy machine does not make them doubtful.
SURE_FINDINGS = frozenset(
    {
        "anomaly-detection",
        "blocking-launches",
        "caching-allocator-off",
        "compiling-in-step",
        "debug-settings",
        "double-precision",
        "every-rank-reads-all",
        "gc-pauses",
        "gradient-check",
        "graph-breaks",
        "growing-steps",
        "host-sync",
        "item-calls",
        "loader-without-workers",
        "logged-parameters",
        "looped-op",
        "other-threads",
        "side-work",
        "step-sleeps",
        "too-many-threads",
        "traced-python",
        "unfused-attention",
        "unfused-optimizer",
    }
)
_MOST_SURE = 2


def _sure(grounds: Grounds, decision: BoundDecision, findings: Sequence[Finding]) -> str | None:
    """Says what is known of a program whose times say nothing, because others ran beside it; null elsewhere."""
    if grounds.disturbed is None or decision.bound != "inconclusive":
        return None
    titles = [finding.title for finding in findings if finding.slug in SURE_FINDINGS][:_MOST_SURE]
    return f"Whatever the load: {'; '.join(map(_continuing, titles))}" if titles else None


def _pace(grounds: Grounds, serving: Serving) -> str:
    """A sentence on the time in which a server has no requests, which is no fault of its model."""
    idle = format_share(math.fsum(entry.share for entry in grounds.ledger.entries if entry.account == WAIT))
    return (
        f"The program waits for requests {idle} of the time, which is no fault of the model: "
        f"{describe_pace(serving)}. The rest is judged"
    )


def name_in_sentence(name: str) -> str:
    """The beginning of a name, short enough for a sentence."""
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def _regime(grounds: Grounds, group: str) -> Regime | None:
    """The band of all kernels of a group of work together; null for waits and where none is known."""
    if group not in {"compute", "memory"}:
        return None
    judged = [kernel for kernel in grounds.kernels if kernel.regime is not None and kernel.bound == group]
    total_us = math.fsum(kernel.us for kernel in judged)
    floor_us = math.fsum((kernel.explained or 0.0) * kernel.us for kernel in judged)
    return regime_of(floor_us / total_us) if total_us > 0 else None


def _opening(grounds: Grounds, decision: BoundDecision) -> Iterator[Clause]:
    """The bound in words, and what causes it or where it is."""
    wall = format_us(grounds.ledger.wall_us)
    untrue = grounds.broken or grounds.disturbed
    if decision.bound == "inconclusive" and untrue is not None:
        yield Clause("bound", "Inconclusive")
        yield Clause("cause", untrue, ": ")
    elif decision.bound == "inconclusive":
        yield Clause("bound", "Inconclusive")
        yield Clause("cause", f"{_shown(grounds, UNMODELLED)} of the {wall} step is unmodelled work", ": ")
        if most := _largest_kernel(grounds, ("unknown",)):
            yield Clause("place", f"most of it {_label(most)} ({most.reason or 'no cost formula'})", ", ")
    elif decision.bound == "device":
        works = f"The device limits the step: it works for {format_share(decision.share)} of {wall}"
        yield Clause("bound", f"{works}, so overhead and exposed communication are excluded")
        yield Clause("cause", f"Compute and memory bandwidth cannot be told apart: {_kinds(grounds)}")
    else:
        yield from _of_group(grounds, decision, wall)


def _of_group(grounds: Grounds, decision: BoundDecision, wall: str) -> Iterator[Clause]:
    """The same for a bound that is a group of the ledger, or two of them."""
    first, second = decision.ranked[0], decision.ranked[1]
    if decision.by_kind:
        likely = _likely_shares(grounds)
        opening = ", ".join(f"{_GROUP_WORDS[group]} {format_share(likely[group])}" for group in (first, second))
        known = f"{_GROUP_WORDS[first].capitalize()} probably holds"
        held = "No single bound holds" if decision.bound == "mixed" else known
        yield Clause("bound", f"{held} the {wall} step back, by the kinds of its work: {opening}")
        yield Clause("cause", _kinds(grounds), "; ")
    elif decision.bound == "mixed":
        yield Clause(
            "bound",
            f"No single bound holds the {wall} step back: {_GROUP_WORDS[first]} {_shown(grounds, first)}, "
            f"{_GROUP_WORDS[second]} {_shown(grounds, second)}",
        )
        yield Clause("place", f"of the first, the largest part is {_contributor(grounds, first)}", "; ")
    else:
        close = f", {REGIMES[decision.regime].words}," if decision.regime else ""
        held = f"{_GROUP_WORDS[first].capitalize()}{close} holds the step back"
        yield Clause("bound", f"{held}: {_shown(grounds, first)} of {wall}")
        yield Clause("place", f"its largest part {_contributor(grounds, first)}", ", ")


def _shown(grounds: Grounds, group: str) -> str:
    """The share of a group as the ledger's table shows it."""
    entries = grounds.ledger.entries
    return describe_share(share_tenths(entries), [entry for entry in entries if entry.group == group])


def _shown_account(grounds: Grounds, entry: LedgerEntry) -> str:
    return describe_share(share_tenths(grounds.ledger.entries), [entry])


def _kinds(grounds: Grounds) -> str:
    """The unmodelled work by kind, largest first, with the reason for most of it."""
    entries = sorted((one for one in grounds.ledger.entries if one.group == UNMODELLED), key=lambda one: -one.share)
    named = [f"{ACCOUNTS[one.account].kind or 'other work'} {_shown_account(grounds, one)}" for one in entries[:3]]
    most = _largest_kernel(grounds, ("unknown",))
    reason = f" ({most.reason})" if most is not None and most.reason else ""
    return f"{_shown(grounds, UNMODELLED)} is unmodelled: {', '.join(named)}{reason}"


def _is_in_doubt(grounds: Grounds, decision: BoundDecision) -> bool:
    """True if unmodelled work, were it of the next group, would overturn the bound; of what is judged."""
    # Unknown work is work: it may be compute or memory, never overhead or communication.
    shares, first = _set_aside(grounds, decision.shares), decision.ranked[0]
    rival = max(shares[group] for group in ("compute", "memory") if group != first)
    is_open = decision.bound in {"inconclusive", "device"} or decision.by_kind
    return not is_open and 0 < shares["unknown"] >= shares[first] - rival


def _doubt(grounds: Grounds, decision: BoundDecision) -> str | None:
    """Addition where unmodelled work could overturn the verdict, or times are not the program's own; else null."""
    if grounds.disturbed is not None and decision.bound != "inconclusive":
        return "other programs took a part of this time, which changes how long it is but not what it is"
    if not _is_in_doubt(grounds, decision):
        return None
    return f"another {_shown(grounds, UNMODELLED)} is unmodelled work, which could overturn this"


def _contributor(grounds: Grounds, group: str) -> str:
    """The largest account of a group in words, with its share and its largest kernel or source line."""
    entry = _largest_entry(grounds, group)
    kernel = _largest_kernel(grounds, _bounds_of(entry.account))
    if entry.account not in _NAMED_BY_KERNEL:
        phrase, share = phrase_of(entry.account), _shown_account(grounds, entry)
        line, line_us = _line_of(grounds, entry.account) if kernel is None else (kernel.source, kernel.us)
        if line is None:
            return f"{phrase}, as in {_label(kernel)} ({share})" if kernel is not None else f"{phrase} ({share})"
        # The share is that of the account, which other lines may have a part in.
        is_whole = math.isclose(line_us, entry.us, rel_tol=1e-3)
        return (
            f"{phrase} {at_source(line)} ({share})"
            if is_whole
            else f"{phrase} ({share}), most of all {at_source(line)}"
        )
    return f"{_label(kernel)} ({format_share(kernel.share)})" if kernel is not None else entry.account


def _recording_advice(grounds: Grounds, decision: BoundDecision, findings: Sequence[Finding]) -> _FirstStep | None:
    """Advice on a new recording where this one cannot show what limits the step; null where it can.

    One rank of several does not show why it waits in collectives, unless a finding explains most of that time.
    """
    if grounds.instead is not None or grounds.broken is not None:
        return _FirstStep(grounds.instead or "record it again")
    if decision.bound == "inconclusive" and grounds.disturbed is not None:
        sure = next((each for each in findings if each.slug in SURE_FINDINGS), None)
        return _FirstStep("record it again while nothing else runs") if sure is None else _advised(sure)
    if decision.bound == "inconclusive":
        return _account_advice(grounds, decision)
    if decision.bound == "communication" and grounds.is_one_of_several:
        gains = (each.predicted_gain_us for each in findings)
        most_us = max((gain.low for gain in gains if gain is not None), default=0.0)
        return None if most_us > decision.share * grounds.ledger.wall_us / 2 else _FirstStep(_ALL_RANKS)
    parted = grounds.sides is not None and not grounds.sides.is_one_step
    return _FirstStep("judge the sides apart, with a recording of warmed-up steps") if parted else None


def _advised(finding: Finding, gained: str = "") -> _FirstStep:
    return _FirstStep(f"{_continuing(finding.advice)}{gained}", finding.slug)


def _leading(findings: Sequence[Finding]) -> _FirstStep | None:
    """The finding without a gain of the step that stands before all others: it holds whatever the step is."""
    first = next((each for each in findings if each.comes_first), None)
    return None if first is None or first.predicted_gain_us is not None else _advised(first)


def _first_finding(grounds: Grounds, decision: BoundDecision, findings: Sequence[Finding]) -> _FirstStep | None:
    """The finding that reports show first, with its gain where it is large enough to name; null where it is not.

    Advice without which the results are wrong needs no gain. Where the steps vary more than every gain, the first of
    them is still the best that is known to do.
    """
    wall_us = grounds.ledger.wall_us
    finding = next(iter(in_reading_order(findings, wall_us, decision.bound)), None)
    if finding is None:
        return None
    gain = finding.predicted_gain_us
    is_large = gain is not None and (gain.low + gain.high) / 2 >= LITTLE * wall_us > 0
    if not is_large and not finding.corrects_results and not finding.comes_first:
        return None
    noise = ", less than these step times can show" if finding.within_noise else ""
    gained = f" (predicted: {finding.describe_speedup()}{noise})" if gain is not None else ""
    return _advised(finding, gained)


def _change_without_gain(decision: BoundDecision, findings: Sequence[Finding]) -> _FirstStep | None:
    """Advice to change something, where the trace shows too little to predict what it gains; null where there is none.

    It comes before advice to record more of a step that a busy device is known to limit.
    """
    if decision.bound != "device":
        return None
    changes = (each for each in findings if each.predicted_gain_us is None and each.code and not each.on_request)
    return next((_advised(each) for each in changes if each.confidence != "low"), None)


def _account_advice(grounds: Grounds, decision: BoundDecision) -> _FirstStep:
    """The default advice on the largest account of the group that limits the step."""
    is_unmodelled = decision.bound in {"inconclusive", "device"} or decision.by_kind
    entry = _largest_entry(grounds, UNMODELLED if is_unmodelled else decision.ranked[0])
    kernel = _largest_kernel(grounds, _bounds_of(entry.account))
    if entry.account in UNMODELLED_ACCOUNTS and kernel is not None:
        remedy = REMEDIES.get(kernel.reason_code or "")
        return _FirstStep(ACCOUNTS[UNMODELLED].advice, UNMODELLED) if remedy is None else _FirstStep(remedy)
    if entry.account == "compute" and kernel is not None and kernel.reason_code == "misaligned":
        return _FirstStep(_MISALIGNED)
    if entry.account == "compute" and decision.regime in {"near_roof", "below_roof"}:
        explained = None if kernel is None else kernel.explained
        is_near = explained is None or regime_of(explained) == "near_roof"
        below = _BELOW_THE_ROOF.format(share=format_share(explained or 0.0))
        return _FirstStep(_NEAR_THE_ROOF if is_near else below)
    account = ACCOUNTS[entry.account]
    advice = (account.host_advice if grounds.host_only else None) or account.advice
    line, _ = _line_of(grounds, entry.account)
    return _FirstStep(advice.format(at=f" {at_source(line)}" if line else ""), account.key)


def describe_sides(sides: TwoSided) -> str:
    """The two sides of a window with their figures."""
    whole = "step" if sides.is_one_step else "window"
    return (
        f"The device is busy {format_share(sides.busy_before)} of the first {format_share(sides.split)} of the"
        f" {whole}, and {format_share(sides.busy_after)} of the rest"
    )


def _largest_entry(grounds: Grounds, group: str) -> LedgerEntry:
    aside = _accounts_aside(grounds)
    entries = [entry for entry in grounds.ledger.entries if entry.group == group and entry.account not in aside]
    empty = "overhead.unknown" if group == "overhead" else group
    return max(entries, key=lambda entry: entry.us, default=LedgerEntry(empty, group, 0.0, 0.0))


def _bounds_of(account: str) -> tuple[str, ...]:
    bound = UNMODELLED if account in UNMODELLED_ACCOUNTS else ACCOUNTS[account].bound
    return () if bound is None else (bound,)


def _largest_kernel(grounds: Grounds, bounds: tuple[str, ...]) -> KernelSummary | None:
    """The largest row of the op with the most time in these bounds, with the time of all rows of that op and line."""
    groups: dict[str, list[KernelSummary]] = {}
    for row in grounds.kernels:
        if row.bound in bounds:
            groups.setdefault(_label(row), []).append(row)
    rows = max(groups.values(), key=lambda rows: math.fsum(row.us for row in rows), default=None)
    if rows is None:
        return None
    us, share = math.fsum(row.us for row in rows), math.fsum(row.share for row in rows)
    return replace(max(rows, key=lambda row: row.us), us=us, share=share)


def _line_of(grounds: Grounds, account: str) -> tuple[str | None, float]:
    """The source line with most of the time of an idle cause (null where it is not known), and that time in us.

    Of a function whose lines the trace does not tell, the line with most samples.
    """
    lines: dict[str | None, float] = {}
    for row in grounds.idle:
        if f"overhead.{row.cause}" == account:
            lines[row.source] = lines.get(row.source, 0.0) + row.us
    source, us = max(lines.items(), key=lambda line: line[1], default=(None, 0.0))
    if grounds.run is None or math.fsum(lines.values()) < LEAST_SAMPLED_US:
        return source, us
    known_us = {
        line: grounds.line_us.get(line, 0.0) + lines.get(line, 0.0) for line in (*grounds.line_us, *lines) if line
    }
    spread = grounds.run.spread(source, us, known_us)
    if not spread:
        return source, us
    sampled = max(spread, key=lambda line: spread[line])
    return sampled.source, spread[sampled] + lines.get(sampled.source, 0.0)


def _label(kernel: KernelSummary) -> str:
    """The op with its line, else the kernel, short enough for a sentence."""
    name = name_in_sentence(kernel.name if kernel.bound == "communication" else kernel.op or kernel.name)
    return f"{name} {at_source(kernel.source)}" if kernel.source else name


def _continuing(advice: str) -> str:
    """Advice as it continues a sentence: names such as CUDA keep their capitals, the full stop goes."""
    text = advice.strip().rstrip(".")
    return text[:1].lower() + text[1:] if text[1:2].islower() else text
