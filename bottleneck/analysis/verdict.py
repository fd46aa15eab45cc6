"""Decides the verdict, which is the last stage.

It is the resource that limits the step, and the sentence that states it.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import cast

import numpy as np
import pandas as pd
from msgspec import Struct

from bottleneck.analysis.idle import FAULTS
from bottleneck.analysis.load import quickest_calls
from bottleneck.analysis.scaling import least_record_us
from bottleneck.schema.accounts import (
    ACCOUNTS,
    FEW_FLOPS_PER_BYTE,
    UNMODELLED,
    UNMODELLED_ACCOUNTS,
    UNMODELLED_BY_FAMILY,
    phrase_of,
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
    STEPS_VARY,
    TRUNCATED,
    Bound,
    Clause,
    Finding,
    IdleCause,
    KernelSummary,
    Ledger,
    LedgerEntry,
    Regime,
    Verdict,
    describe_share,
    is_certain,
    join_clauses,
    regime_of,
    share_tenths,
)
from bottleneck.schema.evidence import Evidence, TwoSided, counted_faults_us
from bottleneck.schema.finding_order import LITTLE, SURE_FINDINGS, in_reading_order
from bottleneck.schema.kernel_names import between, name_in_sentence, plain_name
from bottleneck.schema.measurements import LEAST_SAMPLED_US, RunSteps
from bottleneck.schema.op_names import RUNS_BACKWARD, at_source, named_source
from bottleneck.schema.records import replace
from bottleneck.schema.request_waits import WAIT, Serving, describe_pace, serving_of
from bottleneck.schema.tables import WAITS, are_calls, as_integers
from bottleneck.units import format_part, format_share, format_si, format_us, listed

# Below half of the step a group does not decide alone when the next one is this close.
_CLEAR_LEAD = 0.1
# A device that works for more than this of the step limits it, whatever its kernels wait for.
_BUSY = 0.9

_GROUP_WORDS = {
    "compute": "compute",
    "memory": "memory access",
    "overhead": "overhead",
    "communication": "communication",
    "transfer": "copying between host and device",
    "unknown": "unmodelled work",
}

_MOST = 0.5
_START_UP, _STALL = "overhead.start_up", "overhead.stall"
# Of the step: an op with less is not named beside what holds the program up.
_WORTH_NAMING = 0.1
_LEAST_ASIDE = 0.01  # of the step, in start-up that is worth a line
_LEAST_CUT = 0.1  # of the recording, in a beginning that is left out
# The profiler's own work is no part of the program. Where more of a step is its work, too little is left to judge;
# where less is, nobody needs to be told.
_PROFILER, _MOST_OWN, _LEAST_OWN = "overhead.profiler", 0.8, 0.05
_HOST_ACCOUNTS = tuple(key for key, account in ACCOUNTS.items() if account.group == "overhead")
# Rounding may leave nothing of a step that only waits.
_LEAST_SHOWN = 0.001  # of a step: less than the tables of shares show
_LEAST_JUDGED = 1e-6

# Groups of what a device works at, and accounts whose time a sentence names by the largest kernel in their place.
_WORK = frozenset({"compute", "memory"})
_NAMED_BY_KERNEL = _WORK | {"unknown"}


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
    marks a trace of others that was recorded without source lines.
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
    )


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
    judged = _set_aside(grounds, shares)
    ranked = _ranked(judged)
    if grounds.broken is not None:
        return BoundDecision("inconclusive", None, shares[ranked[0]], shares, ranked)
    likely = _set_aside(grounds, _likely_shares(grounds))
    by_kind = replace(_bound_of(grounds, likely, shares, _ranked(likely)), regime=None, by_kind=True)
    if not _is_mostly_unknown(judged, ranked):
        decision = _bound_of(grounds, judged, shares, ranked)
        return by_kind if _is_in_doubt(grounds, decision) and by_kind.bound != decision.bound else decision
    busy = _busy_share(grounds)
    keeps_busy = busy > _BUSY and not grounds.host_only and shares["communication"] + shares["transfer"] < 1 - _BUSY
    is_compute = by_kind.bound == "compute" and _with_convolutions(grounds, judged) > _MOST
    if keeps_busy and not is_compute and likely["memory"] <= _BUSY:
        return BoundDecision("device", None, busy, shares, ranked)
    if _is_mostly_unknown(likely, _ranked(likely)):
        return BoundDecision("inconclusive", None, shares["unknown"], shares, ranked)
    return by_kind


_CONVOLUTIONS = "unknown.convolution"


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


def _start_up_share(ledger: Ledger) -> float:
    """Gives the share of the step in start-up paid once.

    It is 0 where that is most of the step, so that it is not set aside.
    """
    share = math.fsum(entry.share for entry in ledger.entries if entry.account == _START_UP)
    return share if share <= _MOST else 0.0


def _profiler_share(ledger: Ledger) -> float:
    """Gives the share of the step in the profiler's own work.

    It is 0 where that is nearly all of the step.
    """
    share = math.fsum(entry.share for entry in ledger.entries if entry.account == _PROFILER)
    return share if share <= _MOST_OWN else 0.0


def _accounts_aside(grounds: Grounds) -> frozenset[str]:
    """Gives the accounts that are not judged.

    They are start-up that is paid once, the profiler's own work, and the time in which a server has no requests.
    """
    ledger = grounds.ledger
    aside = {_START_UP: _start_up_share(ledger), _PROFILER: _profiler_share(ledger), WAIT: grounds.serving is not None}
    return frozenset(account for account, is_aside in aside.items() if is_aside)


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


_PRODUCT = re.compile(r"^aten::(?:\w*mm|\w*mv|linear|matmul|dot)$")


def _likely_shares(grounds: Grounds) -> dict[str, float]:
    """Gives shares of the groups with unmodelled work assigned.

    It counts as the bound that its kind, and where known its size, has.
    """
    shares = grounds.ledger.group_shares()
    for entry in grounds.ledger.entries:
        likely = ACCOUNTS[entry.account].likely if entry.account in ACCOUNTS else None
        if likely is not None:
            shares[likely] += entry.share
            shares[UNMODELLED] -= entry.share
    thin = math.fsum(kernel.share for kernel in grounds.kernels if _is_thin_product(kernel))
    shares["compute"], shares["memory"] = max(shares["compute"] - thin, 0.0), shares["memory"] + thin
    return shares


def _likely(kernel: KernelSummary) -> str | None:
    """Gives the usual bound of unmodelled work of this kind and size.

    Null for other work.
    """
    if _is_thin_product(kernel):
        return "memory"
    return ACCOUNTS[kernel.account].likely if kernel.account in UNMODELLED_ACCOUNTS else None


def _is_thin_product(kernel: KernelSummary) -> bool:
    """Tells whether an unmodelled product is thin.

    It reads so much for its arithmetic that its kind's usual bound does not hold.
    """
    if kernel.bound != UNMODELLED or kernel.flops is None or kernel.bytes_low is None:
        return False
    return bool(_PRODUCT.match(kernel.op or "")) and 0 < kernel.flops < FEW_FLOPS_PER_BYTE * kernel.bytes_low


def _busy_share(grounds: Grounds) -> float:
    """Gives the share of the judged step in which the device works.

    This is all but the causes of idle time.
    """
    idle = math.fsum(
        entry.share for entry in grounds.ledger.entries if entry.account in ACCOUNTS and ACCOUNTS[entry.account].cause
    )
    return (1.0 - idle) / max(1.0 - _share_aside(grounds), _LEAST_JUDGED)


def decide(grounds: Grounds, findings: Sequence[Finding] = ()) -> Verdict:
    """The verdict; its first step is the first finding, null where there is none."""
    decision = find_bound(grounds)
    first = next(iter(in_reading_order(findings, grounds.ledger.wall_us, decision.bound)), None)
    step = None if first is None else _first_step(grounds, decision, first)
    clauses = tuple(_clauses(grounds, decision, findings, step))
    text, action = join_clauses(clauses), None if step is None else step.text
    # What is set aside and too little to show is no reason for another share than that of the table.
    is_group = decision.bound in GROUPS and not decision.by_kind and _share_aside(grounds) < _LEAST_SHOWN
    shown = _shown(grounds, decision.bound) if is_group else format_share(decision.share)
    words = text, decision.shares, action, clauses, shown
    return Verdict(decision.bound, decision.regime, decision.share, *words, is_guess=decision.by_kind)


class _FirstStep(Struct, frozen=True):
    """The first action in words, and the slug of the finding that advises it."""

    text: str
    source: str


def _clauses(
    grounds: Grounds, decision: BoundDecision, findings: Sequence[Finding], first_step: _FirstStep | None
) -> Iterator[Clause]:
    """Yields the parts of the verdict in words.

    They are in the order in which they are read.
    """
    if grounds.cut_off:
        yield Clause("cut_off", f"The file was cut off, so this judges only a part: {grounds.cut_off}")
    yield from grounds.straggler
    if grounds.serving is not None:
        yield Clause("pace", _pace(grounds, grounds.serving))
    if sure := _sure(grounds, decision, findings):
        yield Clause("sure", sure)
    opening = _opening(grounds, decision)
    yield from opening if decision.bound == "communication" else map(partial(_with_lines, grounds), opening)
    if doubt := _doubt(grounds, decision):
        yield Clause("doubt", doubt, label="But")
    yield from _not_judged(grounds)
    if unanswered := _unanswered(grounds, decision, findings):
        yield Clause("unanswered", unanswered)
    if first_step is not None:
        yield Clause("first", first_step.text, source=first_step.source, label="First")


def _with_lines(grounds: Grounds, clause: Clause) -> Clause:
    """Says how the line of a place is shown, where none were recorded."""
    if clause.role != "place" or not grounds.has_no_lines:
        return clause
    return replace(clause, text=f"{clause.text}; with_stack=True would show the line")


def _not_judged(grounds: Grounds) -> Iterator[Clause]:
    """Yields what is set aside or left out, and sides that differ."""
    if (aside := _start_up_share(grounds.ledger)) >= _LEAST_ASIDE:
        yield Clause(
            "start_up", f"One-time start-up takes {format_share(aside)} of the recorded time and is not judged"
        )
    if (own := _profiler_share(grounds.ledger)) >= _LEAST_OWN:
        yield Clause(
            "profiler", f"The profiler itself takes {format_share(own)} of the recorded time and is not judged"
        )
    if grounds.sides:
        yield Clause("sides", describe_sides(grounds.sides))
    if grounds.left_out:
        yield Clause("sides", grounds.left_out)


_MOST_SURE = 2


def _sure(grounds: Grounds, decision: BoundDecision, findings: Sequence[Finding]) -> str | None:
    """Says what is known of a program whose times say nothing.

    They say nothing because other programs ran beside it. Null elsewhere.
    """
    if grounds.disturbed is None or decision.bound != "inconclusive":
        return None
    titles = [finding.title for finding in findings if finding.slug in SURE_FINDINGS][:_MOST_SURE]
    return f"Whatever the load: {'; '.join(map(_continuing, titles))}" if titles else None


def _pace(grounds: Grounds, serving: Serving) -> str:
    """Gives a sentence on a server's time without requests.

    This time is no fault of its model.
    """
    idle = format_share(math.fsum(entry.share for entry in grounds.ledger.entries if entry.account == WAIT))
    return (
        f"The program waits for requests {idle} of the time, which is no fault of the model: "
        f"{describe_pace(serving)}. The rest is judged"
    )


def _regime(grounds: Grounds, group: str) -> Regime | None:
    """Gives the band of all kernels of a group of work.

    They are taken together. Null for waits and where none is known.
    """
    if group not in _WORK:
        return None
    kernels = [kernel for kernel in grounds.kernels if kernel.bound == group]
    judged = [kernel for kernel in kernels if kernel.regime is not None]
    if _are_too_fast(kernels):
        return None
    reached = _reached(kernels)
    # Bytes that are open for most of the time still bound the regime from above.
    reached = _explained_share(judged) if reached is None else reached
    return regime_of(reached) if judged and reached is not None else None


def _opening(grounds: Grounds, decision: BoundDecision) -> Iterator[Clause]:
    """The bound in words, and what causes it or where it is."""
    wall = format_us(grounds.ledger.wall_us)
    untrue = grounds.broken or grounds.disturbed
    if decision.bound == "inconclusive" and untrue is not None:
        yield Clause("bound", "Inconclusive")
        yield Clause("cause", untrue, ": ")
        if grounds.kept_up is not None:
            yield Clause("doubt", grounds.kept_up, label="But")
    elif decision.bound == "inconclusive":
        yield Clause("bound", "Inconclusive")
        yield Clause("cause", f"{_shown(grounds, UNMODELLED)} of the {wall} step is unmodelled work", ": ")
        if most := _largest_kernel(grounds, ("unknown",)):
            yield Clause("place", f"most of it {_label(most)} ({most.reason or 'no cost formula'})", ", ")
    elif decision.bound == "device":
        works = f"Your {grounds.device_noun} is busy for {format_share(decision.share)} of {wall} per step"
        yield Clause("bound", f"{works}, and hardly waits")
        yield Clause("cause", f"Whether arithmetic or memory access limits it is not known{_kinds(grounds)}")
        small = next((entry for entry in grounds.ledger.entries if entry.account == "overhead.launch_floor"), None)
        if small is not None and small.share >= _WORTH_NAMING:
            busy = f"{_shown_account(grounds, small)} of the step is busy with {phrase_of(small.account)}"
            yield Clause("doubt", f"{busy} (counted as overhead)", label="But")
        if (largest := _largest_of(grounds.kernels)) is not None:
            yield Clause("place", _with_time(grounds, largest), label="Largest")
    else:
        yield from _of_group(grounds, decision, wall)


# Of its group: a smaller account does not stand for the group in the headline.
_STANDS_FOR_GROUP = 0.6
# Of the overhead: time in which the device has too little to do in one go, and waits for nobody.
_TOO_LITTLE_WORK = ("overhead.launch_floor", "overhead.kernel_gap", "overhead.dependency")
_LEAST_TOO_LITTLE = 0.4
# What an op moves at most for all of it to lie in a processor's own cache (1 MiB of L2, as servers have).
_SMALL_OP_BYTES = 2.0**20
# Page faults that take so much of the memory's time are why it is far from its roof.
_MUCH_IN_FAULTS = 0.25
# And what a program without a device does around its ops; with a device it also launches.
_CALLS = ("overhead.python", "overhead.dispatch")
_ISSUES = (*_CALLS, "overhead.launch")


# Of a group's time: an op with as much is all of it, whose time is not said again.
_ALL_OF_GROUP = 0.995


def _of_group(grounds: Grounds, decision: BoundDecision, wall: str) -> Iterator[Clause]:
    """Yields the clauses of a bound that is a ledger group.

    It may also be two of them.
    """
    first = decision.ranked[0]
    if decision.by_kind:
        likely = _likely_shares(grounds)
        if decision.bound == "mixed":
            sharing = _sharing_groups(grounds, decision)
            shares = listed([_likely_share(grounds, group, likely[group]) for group in sharing])
            yield Clause("bound", f"Probably no single limit: {shares} of {wall} per step")
        else:
            yield Clause(
                "bound",
                f"{_limits(grounds, first, 'probably ')}: about {format_share(likely[first])} of {wall} per step",
            )
        yield Clause("cause", f"{_guessed(grounds, first, likely[first])}{_kinds(grounds)}")
        leading = _leading_group(grounds, decision)
        if leading != first or first not in _WORK:
            yield Clause("place", _contributor(grounds, leading, of_group=decision.bound == "mixed"), label="Largest")
        elif (most := _largest_of([row for row in grounds.kernels if first in {row.bound, _likely(row)}])) is not None:
            is_all = most.us >= _ALL_OF_GROUP * likely[first] * grounds.ledger.wall_us
            place = (
                f"{_label(most)}, which is all of the {'arithmetic' if first == 'compute' else 'memory access'}"
                if is_all
                else _line_of_many(grounds, most) or _with_time(grounds, most)
            )
            yield Clause("place", place, label="Largest")
    elif decision.bound == "mixed":
        sharing = _sharing_groups(grounds, decision)
        shares = listed([f"{_GROUP_WORDS[group]} {_shown(grounds, group)}" for group in sharing])
        yield Clause("bound", f"No single limit: {shares} of {wall} per step")
        leading = _leading_group(grounds, decision)
        # The largest part of the second group is not the largest of the step.
        yield Clause("place", _contributor(grounds, leading, of_group=True), label="Largest")
    else:
        yield from _of_one_group(grounds, decision)


# Of the step: with more unmodelled work, all that is said of the bound is a guess.
_NEARLY_ALL = 0.8


def _likely_share(grounds: Grounds, group: str, likely: float) -> str:
    """Words a group with its likely share, of which a part may be guessed."""
    surely = grounds.ledger.group_shares().get(group, 0.0)
    about = "" if math.isclose(likely, surely, abs_tol=_LEAST_SHOWN) else "about "
    return f"{_GROUP_WORDS[group]} {about}{format_share(likely)}"


def _guessed(grounds: Grounds, group: str, likely: float) -> str:
    """Says how much of a group's likely share is guessed.

    Of one that holds thin products by their name less may be likely than is known.
    """
    surely = grounds.ledger.group_shares().get(group, 0.0)
    if group in _WORK and _WORTH_NAMING <= surely < likely:
        return f"{format_share(likely - surely)} of the step is a guess from the types of ops"
    unknown = grounds.ledger.group_shares()[UNMODELLED]
    part = "This" if unknown >= _NEARLY_ALL else "Most of this" if unknown >= _MOST else "A part of this"
    return f"{part} is a guess from the types of ops"


def _of_one_group(grounds: Grounds, decision: BoundDecision) -> Iterator[Clause]:
    """Yields what limits the step with its time and share, and the worst place.

    An account that is most of its group is named in place of the group.
    """
    group = decision.ranked[0]
    entries = [entry for entry in grounds.ledger.entries if entry.group == group]
    largest, group_us = _largest_entry(grounds, group), math.fsum(entry.us for entry in entries)
    wall_us = grounds.ledger.wall_us
    if group in _WORK:
        rate = _rate(grounds, [at for at, row in enumerate(grounds.kernels) if row.bound == group])
        is_far = _regime(grounds, group) == "far_below_roof"
        small = _small_ops(grounds, group) if is_far else ""
        # What is taken off beside load is the least that a call waited.
        is_least = grounds.load is not None and _regime(grounds, group) != "near_roof"
        only, more = "only " if is_far and not is_least else "", " or more" if is_least else ""
        reached = f"{small and f', in {small}'}, at {only}{rate}{more}" if rate is not None else ""
        takes = _takes(grounds, group, group_us / wall_us, is_known=not _is_in_doubt(grounds, decision))
        is_limit = not is_far and group_us >= _MOST * wall_us and not _is_in_doubt(grounds, decision)
        held = _limits(grounds, group) if is_limit else takes
        share = _shown(grounds, group)
        yield Clause("bound", f"{held}: {format_part(group_us, wall_us)} per step ({share}){reached}")
        if group == "memory" and is_far and grounds.faults_us >= _MUCH_IN_FAULTS * group_us:
            touched = format_us(min(grounds.faults_us, group_us))
            yield Clause("cause", f"Up to {touched} of it is the first touch of fresh pages (page faults)")
        if (kernel := _largest_kernel(grounds, _bounds_of(largest.account))) is not None:
            is_all = kernel.us >= _ALL_OF_GROUP * group_us
            yield Clause(
                "place", f"{_label(kernel)}, all of it" if is_all else _contributor(grounds, group), label="Largest"
            )
        unknown = _larger_of_unknown_bound(grounds, largest)
        if unknown is not None and not _is_in_doubt(grounds, decision):  # else the doubt names it
            yield Clause("place", f"{_with_time(grounds, unknown)}; its bound is not known", label="Besides")
        return
    stands = largest.us >= _STANDS_FOR_GROUP * group_us
    if grounds.captures and group == "overhead" and largest.account in _ISSUES:
        held = f"Your {grounds.device_noun} waits while its host captures a graph: {format_part(group_us, wall_us)}"
        yield Clause("bound", f"{held} per step ({_shown(grounds, group)})")
        if line := _line_of(grounds, largest.account)[0]:
            yield Clause("place", line, label="Worst")
        return
    us, share = (largest.us, _shown_account(grounds, largest)) if stands else (group_us, _shown(grounds, group))
    words = _waiting(grounds, largest) if stands else _group_waits(grounds, entries, group_us)
    per_step = "" if largest.account == _START_UP and grounds.is_one_step else " per step"
    yield Clause("bound", f"{words}: {format_part(us, wall_us)}{per_step} ({share})")
    if not stands:
        yield Clause("place", _contributor(grounds, group), label="Largest")
    elif place := _worst_place(grounds, largest):
        yield Clause("place", place, label="Worst")
    # A machine that holds the program up says nothing of the program itself.
    own = _largest_of(grounds.kernels) if largest.account == _STALL else None
    if own is not None and own.share >= _WORTH_NAMING:
        yield Clause("place", f"of the program itself: {_with_time(grounds, own)}", label="Besides")


def _small_ops(grounds: Grounds, group: str) -> str:
    """Names the small ops of a CPU that are most of a group's time.

    Their tensors lie in a processor's own cache, so that no bandwidth holds them back. Empty where most are larger.
    """
    rows = [row for row in grounds.kernels if row.bound == group and row.bytes_low and row.calls]
    small = [row for row in rows if (row.bytes_low or 0.0) <= row.calls * _SMALL_OP_BYTES]
    if group != "memory" or not grounds.host_only or not small:
        return ""
    us = math.fsum(row.us for row in small)
    if us < _STANDS_FOR_GROUP * math.fsum(row.us for row in rows):
        return ""
    calls = math.fsum(row.calls for row in small)
    return f"small ops ({format_si(math.fsum(row.bytes_low or 0.0 for row in small) / calls, 'B')} each)"


def _limits(grounds: Grounds, group: str, how_sure: str = "") -> str:
    """Says what limits the device or the program, as a person would."""
    if group not in _WORK:
        return f"{_GROUP_WORDS[group].capitalize()} {how_sure}limits {_whose(grounds)}"
    return f"{'Arithmetic' if group == 'compute' else 'Memory access'} {how_sure}limits {_whose(grounds)}"


def _takes(grounds: Grounds, group: str, share: float, *, is_known: bool) -> str:
    """Says what takes the time where its roof is far from being the limit.

    It also does so where ``is_known`` is false, since unmodelled work may be a larger part.
    """
    part = "most" if share >= _MOST else "the largest part" if is_known else "the largest known part"
    return f"{'Arithmetic' if group == 'compute' else 'Memory access'} takes {part} of {_whose(grounds)}'s time"


def _whose(grounds: Grounds) -> str:
    return "your program" if grounds.host_only else f"your {grounds.device_noun}"


def _waiting(grounds: Grounds, entry: LedgerEntry) -> str:
    """Says what the device waits for, or what most of a step is."""
    waited_for = ACCOUNTS[entry.account].device_waits_for if entry.account in ACCOUNTS else ""
    if waited_for and not grounds.host_only:
        return f"Your {grounds.device_noun} waits for {waited_for}"
    part = "Most" if entry.share >= _MOST else "The largest part"
    if entry.account == _START_UP:
        return f"{part} of this recording is start-up, which is paid once"
    if _is_first_touch(grounds, entry):
        return f"{part} of your step is the first touch of fresh pages of memory (page faults)"
    return f"{part} of your step is {phrase_of(entry.account)}"


def _is_first_touch(grounds: Grounds, entry: LedgerEntry) -> bool:
    """Tells whether most of an account is the first touch of new pages."""
    rows = [row for row in grounds.idle if f"overhead.{row.cause}" == entry.account and row.on_pages]
    touched_us = math.fsum(row.us for row in rows if (row.detail or "").endswith(FAULTS))
    return touched_us >= _MOST * entry.us > 0


def _group_waits(grounds: Grounds, entries: Sequence[LedgerEntry], group_us: float) -> str:
    """Says what a group of waits comes to.

    None of its accounts is most of it.
    """
    if grounds.host_only:
        calls_us = math.fsum(entry.us for entry in entries if entry.account in _CALLS)
        is_calls = calls_us >= _STANDS_FOR_GROUP * group_us
        if group_us < _MOST * grounds.ledger.wall_us:
            return f"The largest part of your step is {'Python and dispatching' if is_calls else 'overhead'}"
        return "Python and dispatching take most of your step" if is_calls else "Your step is mostly overhead"
    little_us = math.fsum(entry.us for entry in entries if entry.account in _TOO_LITTLE_WORK)
    if little_us >= _LEAST_TOO_LITTLE * group_us:
        return f"Your {grounds.device_noun} gets too little work at a time"
    return f"Your {grounds.device_noun} waits for its host"


def _shown(grounds: Grounds, group: str) -> str:
    """The share of a group as the ledger's table shows it."""
    entries = grounds.ledger.entries
    return describe_share(share_tenths(entries), [entry for entry in entries if entry.group == group])


def _shown_account(grounds: Grounds, entry: LedgerEntry) -> str:
    return describe_share(share_tenths(grounds.ledger.entries), [entry])


_ALL_OF_IT = 0.98  # of the unmodelled work
_LEAST_KIND = 0.05  # of the step: smaller kinds of unmodelled work are not listed beside the largest


def _kinds(grounds: Grounds) -> str:
    """Continues a sentence with the reason for most unmodelled work.

    Then it tells that work by kind, largest first.
    """
    entries = sorted((one for one in grounds.ledger.entries if one.group == UNMODELLED), key=lambda one: -one.share)
    kinds = [(ACCOUNTS[one.account].kind or "unclassified work", one) for one in entries]
    shown = [one for at, one in enumerate(kinds[:3]) if at == 0 or one[1].share >= _LEAST_KIND]
    named = [f"{kind} ({_shown_account(grounds, one)})" for kind, one in shown]
    most = _largest_kernel(grounds, ("unknown",))
    reason = f": {most.reason}" if most is not None and most.reason else ""
    is_all = len(kinds) > 0 and kinds[0][1].share >= _ALL_OF_IT * math.fsum(one.share for _, one in kinds)
    what = f", all of it {kinds[0][0]}" if is_all else f", mostly {', '.join(named)}" if named else ""
    return f"{reason}. {_shown(grounds, UNMODELLED)} of the step cannot be judged by FLOPs and bytes{what}"


# Of the step: less unmodelled work raises no doubt, even where two groups are as large as one another.
_LEAST_DOUBT = 0.01


def _is_in_doubt(grounds: Grounds, decision: BoundDecision) -> bool:
    """Tells whether unmodelled work could overturn the bound.

    It is taken as work of the next group. Only what is judged counts.
    """
    # Unknown work is work: it may be compute or memory, never overhead or communication.
    shares, first = _set_aside(grounds, decision.shares), decision.ranked[0]
    rival = max(shares[group] for group in ("compute", "memory") if group != first)
    is_open = decision.bound in {"inconclusive", "device"} or decision.by_kind
    return not is_open and shares["unknown"] >= max(shares[first] - rival, _LEAST_DOUBT)


# Of a step: the profiler's records that a reader has to know of, since the program alone does without.
_MUCH_RECORDED = 0.15


def _doubt(grounds: Grounds, decision: BoundDecision) -> str | None:
    """Gives the addition to a doubtful verdict.

    Unmodelled work could overturn it, or times are not the program's own. Else null.
    """
    if grounds.load is not None:
        return grounds.load
    if grounds.disturbed is not None and decision.bound != "inconclusive":
        return "other programs ran meanwhile: the step is longer, and its limit is the same"
    if decision.bound == "overhead" and grounds.record_us >= _MUCH_RECORDED * grounds.ledger.wall_us:
        wall = format_us(grounds.ledger.wall_us)
        return f"the profiler's own records take {format_us(grounds.record_us)} of these {wall} or more"
    if not _is_in_doubt(grounds, decision):
        return None
    most = _largest_kernel(grounds, ("unknown",))
    mostly = f" ({_label(replace(most, source=None))}: {format_share(most.share)})" if most is not None else ""
    return f"{_shown(grounds, UNMODELLED)} of the step could not be modelled{mostly}, which could overturn this"


def _sharing_groups(grounds: Grounds, decision: BoundDecision) -> tuple[str, ...]:
    """Gives the groups that share a step without a single limit.

    They are the largest and those within 10 points of it.
    """
    shares = _set_aside(grounds, _likely_shares(grounds) if decision.by_kind else decision.shares)
    largest = shares[decision.ranked[0]]
    return tuple(group for group in decision.ranked if largest - shares[group] <= _CLEAR_LEAD)


def _leading_group(grounds: Grounds, decision: BoundDecision) -> str:
    """Gives the group whose largest part is named.

    Of those that share the step it is not the first where another has an account larger than any op of the first.
    """
    first = decision.ranked[0]
    account = _largest_entry(grounds, first).account
    if decision.by_kind and first in _WORK:
        op = _largest_of([row for row in grounds.kernels if first in {row.bound, _likely(row)}])
    else:
        op = None if account not in _NAMED_BY_KERNEL else _largest_kernel(grounds, _bounds_of(account))
    if decision.bound != "mixed" or op is None:
        return first
    others = [_largest_entry(grounds, group) for group in _sharing_groups(grounds, decision)[1:]]
    larger = [entry for entry in others if entry.account not in _NAMED_BY_KERNEL and entry.us > op.us]
    return max(larger, key=lambda entry: entry.us).group if larger else first


def _contributor(grounds: Grounds, group: str, *, of_group: bool = False) -> str:
    """Describes the largest account of a group.

    It comes with its share and its largest kernel or source line. With ``of_group`` it says whose part it is.
    """
    entry = _largest_entry(grounds, group)
    kernel = _largest_kernel(grounds, _bounds_of(entry.account))
    if entry.account in _NAMED_BY_KERNEL:
        if kernel is None:
            return entry.account
        return _line_of_many(grounds, kernel, _bounds_of(entry.account)) or _with_time(grounds, kernel)
    phrase, share = phrase_of(entry.account), _shown_account(grounds, entry)
    place, part = _worst_place(grounds, entry), f" (a part of the {_GROUP_WORDS[group]})" if of_group else ""
    return f"{phrase}{part}, {format_us(entry.us)} ({share}){f'; worst: {place}' if place else ''}"


# Times the largest op: a line whose ops take as much says more of where the time goes.
_LINE_OVER_OP = 2.0


def _line_of_many(grounds: Grounds, largest: KernelSummary, bounds: tuple[str, ...] | None = None) -> str | None:
    """Describes the line whose ops together take far more than the largest op.

    With ``bounds`` only ops of these count. Null where there is none.
    """
    line_us: Mapping[str, float] = grounds.line_us if bounds is None else _line_us(grounds, bounds)
    line, us = max(line_us.items(), key=lambda pair: pair[1], default=("", 0.0))
    if us < _LINE_OVER_OP * largest.us:
        return None
    return f"the ops {at_source(line)} together, {format_us(us)} ({format_share(us / grounds.ledger.wall_us)})"


def _line_us(grounds: Grounds, bounds: tuple[str, ...]) -> dict[str, float]:
    """Adds up the ops of these bounds by line."""
    sums: dict[str, float] = {}
    for row in grounds.kernels:
        if row.source and row.bound in bounds:
            sums[row.source] = sums.get(row.source, 0.0) + row.us
    return sums


# Of the time of an op at a line: a module with less is not most of it.
_MOST_OF_OP = 0.5


def _with_time(grounds: Grounds, kernel: KernelSummary) -> str:
    """Describes an op by its time and share.

    The module with most of it is named only where its line calls modules of several classes.
    """
    words = f"{_label(kernel)}, {format_us(kernel.us)} ({format_share(kernel.share)})"
    sums: dict[str, float] = {}
    for number, row in enumerate(grounds.kernels):
        if row.bound == kernel.bound and _label(row) == _label(kernel):
            for name, us in grounds.row_modules.get(number, {}).items():
                sums[name] = sums.get(name, 0.0) + us
    name, us = max(sums.items(), key=lambda pair: pair[1], default=("", 0.0))
    if len(sums) < 2 or not name or us < _MOST_OF_OP * kernel.us:
        return words
    return f"{words}, {format_us(us)} of it in {name}"


def _worst_place(grounds: Grounds, entry: LedgerEntry) -> str:
    """Gives the kernel or line with most of an account's time, and that time.

    Empty where none is known.
    """
    kernel = _largest_kernel(grounds, _bounds_of(entry.account))
    if kernel is not None:
        return _line_of_many(grounds, kernel, _bounds_of(entry.account)) or f"{_label(kernel)}, {format_us(kernel.us)}"
    line, line_us = _line_of(grounds, entry.account)
    if line is None:
        return ""
    # A line that has the whole account is as long as the account, and that was said. What a line waits in two threads
    # at once may be longer.
    time = (
        ""
        if line_us > entry.us or math.isclose(line_us, entry.us, rel_tol=1e-3)
        else f", {format_part(line_us, entry.us)}"
    )
    beside = f"{time}{_around(grounds, entry.account, line)}"
    place = f"{named_source(line)}{_of_engine(grounds, entry.account, line)}"
    return "" if line == grounds.late_line and not beside else f"{place}{beside}"


def _of_engine(grounds: Grounds, account: str, line: str) -> str:
    """Says that autograd's engine takes most of an idle cause's time at a line.

    That is no Python of the program. Empty where it is not so.
    """
    rows = [row for row in grounds.idle if f"overhead.{row.cause}" == account and row.source == line]
    engine_us = math.fsum(row.us for row in rows if RUNS_BACKWARD.search(row.detail or ""))
    return " (autograd between its ops)" if engine_us > _MOST * math.fsum(row.us for row in rows) else ""


# Advice to record or to look, which makes nothing faster.
_RECORDINGS = frozenset({"record-anew", "incomplete-trace", "padding-not-known"})


def _first_step(grounds: Grounds, decision: BoundDecision, finding: Finding) -> _FirstStep:
    """Puts the first finding in words.

    Its gain is given unless other programs made the times of the step doubtful, or why it is open. A recording and
    what is certain to gain nothing have none that is open. What makes results right stands first for that, so that a
    gain which may be a loss is no reason for it.
    """
    is_open = finding.slug not in _RECORDINGS and finding.confidence != "high" and not finding.corrects_results
    gained = f" ({finding.gain_reason})" if finding.gain_reason and is_open else ""
    is_for_results = finding.corrects_results and not _is_certain(finding)
    is_doubtful = decision.bound == "inconclusive" and grounds.disturbed is not None
    if finding.predicted_gain_us is not None and not (is_doubtful or is_for_results):
        noise = f"; {STEPS_VARY}" if finding.within_noise else ""
        gained = f" (predicted: {finding.describe_speedup()}{noise})"
    return _FirstStep(f"{_continuing(finding.brief or finding.advice)}{gained}", finding.slug)


def _is_certain(finding: Finding) -> bool:
    return finding.predicted_speedup is not None and is_certain(finding.predicted_speedup)


# Findings that stand below a verdict where it is read first.
_MOST_READ = 3
# Of the largest part: a finding that comes from less of it does not answer it.
_LEAST_ANSWERED = 0.1


class LargestPart(Struct, frozen=True):
    """The largest part of what limits a step.

    It has its account, and the rows of kernels that are its time.
    """

    entry: LedgerEntry
    rows: tuple[int, ...] = ()

    def is_answered_by(self, finding: Finding, grounds: Grounds) -> bool:
        """Tells whether a finding makes this part shorter.

        The finding's gain, 1 % of the step or more, must come from this part, or from the whole step.
        """
        gain = finding.predicted_gain_us
        if gain is not None and gain.high < LITTLE / 2 * grounds.ledger.wall_us:
            return False
        if not finding.claims:
            return gain is not None or finding.comes_first or finding.code is not None
        own_us = math.fsum(grounds.kernels[row].us for row in self.rows) if self.rows else self.entry.us
        names = {self.entry.account, *(f"kernel:{row}" for row in self.rows)}
        claimed_us = math.fsum(us for claim, us in finding.claims.items() if claim in names)
        return claimed_us >= _LEAST_ANSWERED * own_us


# What shows why a kernel is slow, where nothing else is to be said.
_LOOK_INTO = {
    "cuda": "; Nsight Compute (ncu) shows what such a kernel waits for",
    "rocm": "; rocprof-compute shows what such a kernel waits for",
}


def _unanswered(grounds: Grounds, decision: BoundDecision, findings: Sequence[Finding]) -> str | None:
    """Says that no finding makes the largest part shorter, or which one does.

    It also says how near its roof the part is. Null where the first finding does.
    """
    if decision.bound == "inconclusive":
        return None
    is_unmodelled = decision.bound == "device" or decision.by_kind
    leading = _leading_group(grounds, decision)
    is_unmodelled &= leading == decision.ranked[0]
    entry = _largest_entry(grounds, UNMODELLED if is_unmodelled else leading)
    part = LargestPart(entry, _rows_of_part(grounds, entry))
    if any(part.is_answered_by(finding, grounds) for finding in findings if not finding.on_request):
        read = in_reading_order(findings, grounds.ledger.wall_us, decision.bound)[:_MOST_READ]
        number = next((at for at, finding in enumerate(read, start=1) if part.is_answered_by(finding, grounds)), 1)
        return None if number == 1 else f"For {_name_of_part(grounds, part)} see number {number} below"
    first = next(iter(in_reading_order(findings, grounds.ledger.wall_us, decision.bound)), None)
    if first is not None and first.slug in _RECORDINGS:
        return None  # what it shows may be answered
    if is_unmodelled:
        most, largest = _largest_of([grounds.kernels[row] for row in part.rows]), _largest_of(grounds.kernels)
        is_named = most is None or decision.by_kind or (largest is not None and _label(most) == _label(largest))
        named = "" if is_named or most is None else f" (the largest: {_label(most)}, {format_share(most.share)})"
        lacks_sizes = most is not None and most.reason_code == "no_shapes"
        sizes = "; with recorded sizes (record_shapes=True) there may be some" if lacks_sizes else ""
        return f"There is no advice for the {ACCOUNTS[entry.account].kind or 'unclassified work'}{named}{sizes}"
    rate = _rate(grounds, part.rows) if entry.account in _NAMED_BY_KERNEL else None
    if rate is not None:
        look = "" if findings else _LOOK_INTO.get(grounds.device_kind, "")
        return f"There is no advice for {_name_of_part(grounds, part)}, which reaches {rate}{look}"
    return f"There is no advice for {_name_of_part(grounds, part)}"


def _name_of_part(grounds: Grounds, part: LargestPart) -> str:
    """Names the largest part by its kind of work or its largest op.

    The op's line is left out.
    """
    if kind := ACCOUNTS[part.entry.account].kind:
        return f"the {kind}"
    largest = _largest_of([grounds.kernels[row] for row in part.rows])
    return phrase_of(part.entry.account) if largest is None else _label(replace(largest, source=None))


def _larger_of_unknown_bound(grounds: Grounds, entry: LedgerEntry) -> KernelSummary | None:
    """Gives the kernel of unknown bound that takes longer than any of this account.

    The verdict names it beside those. Null where there is none.
    """
    if entry.group not in _WORK:
        return None
    worst, unknown = (_largest_kernel(grounds, bounds) for bounds in (_bounds_of(entry.account), ("unknown",)))
    return unknown if worst is not None and unknown is not None and unknown.us > worst.us else None


def _rows_of_part(grounds: Grounds, entry: LedgerEntry) -> tuple[int, ...]:
    """Gives the rows of kernels that are an account's time.

    Of an account that a kernel names, they are those of that kernel.
    """
    bounds = _bounds_of(entry.account)
    kernel = _largest_kernel(grounds, bounds) if entry.account in _NAMED_BY_KERNEL - {UNMODELLED} else None
    is_kind = entry.account in UNMODELLED_ACCOUNTS and any(row.account == entry.account for row in grounds.kernels)
    return tuple(
        number
        for number, row in enumerate(grounds.kernels)
        if row.bound in bounds
        and (kernel is None or _label(row) == _label(kernel))
        and (not is_kind or row.account == entry.account)
    )


def _rate(grounds: Grounds, rows: Sequence[int]) -> str | None:
    """Says how near these rows of kernels are to their roof.

    It reads like '31.0 % of the bandwidth'. Null if that is unknown, or the bytes are open, for half of their time.
    """
    kernels = [grounds.kernels[row] for row in rows]
    roof = {"compute": "the peak", "memory": "the bandwidth"}.get(kernels[0].bound) if kernels else None
    reached = None if roof is None else _reached(kernels)
    return None if reached is None else f"{format_share(reached)} of {roof}"


def _reached(kernels: Sequence[KernelSummary]) -> float | None:
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


def describe_sides(sides: TwoSided) -> str:
    """The two sides of a window with their figures."""
    whole = "step" if sides.is_one_step else "recording"
    busy = (sides.busy_before, sides.busy_after)
    before, after = (f"works {format_share(one)} of the time" if one else "is idle" for one in busy)
    return f"For the first {format_share(sides.split)} of the {whole} the device {before}, after that it {after}"


def _largest_entry(grounds: Grounds, group: str) -> LedgerEntry:
    aside = _accounts_aside(grounds)
    entries = [entry for entry in grounds.ledger.entries if entry.group == group and entry.account not in aside]
    empty = "overhead.unknown" if group == "overhead" else group
    return max(entries, key=lambda entry: entry.us, default=LedgerEntry(empty, group, 0.0, 0.0))


def _bounds_of(account: str) -> tuple[str, ...]:
    bound = UNMODELLED if account in UNMODELLED_ACCOUNTS else ACCOUNTS[account].bound
    return () if bound is None else (bound,)


def _largest_kernel(grounds: Grounds, bounds: tuple[str, ...]) -> KernelSummary | None:
    """Gives the largest row of the op with the most time.

    Only rows of these bounds count. It has the time of all rows of that op and line.
    """
    return _largest_of([row for row in grounds.kernels if row.bound in bounds])


def _largest_of(kernels: Sequence[KernelSummary]) -> KernelSummary | None:
    groups: dict[str, list[KernelSummary]] = {}
    for row in kernels:
        groups.setdefault(_label(row), []).append(row)
    rows = max(groups.values(), key=lambda rows: math.fsum(row.us for row in rows), default=None)
    if rows is None:
        return None
    us, share = math.fsum(row.us for row in rows), math.fsum(row.share for row in rows)
    return replace(max(rows, key=lambda row: row.us), us=us, share=share)


def _line_of(grounds: Grounds, account: str) -> tuple[str | None, float]:
    """Gives the source line with most of an idle cause's time.

    Null where it is not known. The number is that time in us.

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


def _around(grounds: Grounds, account: str, line: str) -> str:
    """Names the kernel that a wait at a line is for.

    Empty where none is known.
    """
    rows = [row for row in grounds.idle if f"overhead.{row.cause}" == account and row.source == line]
    longest = max(rows, key=lambda row: row.us, default=None)
    if longest is None:
        return ""
    return between(longest.before, None, is_waited_for=longest.cause == "sync")


def _label(kernel: KernelSummary) -> str:
    """The op with its line, short enough for a sentence.

    The kernel and its kind where there is none: a replayed kernel has no op of its own, only what launched the graph.
    """
    op = None if kernel.bound == "communication" or kernel.reason_code == "graph_launch" else kernel.op
    name = name_in_sentence(op or plain_name(kernel.name))
    if op is None and "::" not in kernel.name and ":" not in name:
        kind = ACCOUNTS[UNMODELLED_BY_FAMILY.get(kernel.family, UNMODELLED)].kind
        name = f"the kernel `{name}`" if kind is None else f"the kernel {name} ({kind})"
    return f"{name} {at_source(kernel.source)}" if kernel.source else name


def _continuing(advice: str) -> str:
    """Gives advice as it continues a sentence.

    Names such as CUDA keep their capitals, the full stop goes.
    """
    text = advice.strip().rstrip(".")
    return text[:1].lower() + text[1:] if text[1:2].islower() or text.startswith("A ") else text
