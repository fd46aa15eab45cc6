"""Words the verdict, which is the last stage.

It says what limits the step, where, and what to do first. Which resource limits it, ``bound`` decides.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from msgspec import Struct

from bottleneck.analysis.bound import (
    CLEAR_LEAD,
    LEAST_OWN,
    MOST_OF_STEP,
    STALL,
    START_UP,
    WORK_GROUPS,
    BoundDecision,
    Grounds,
    accounts_aside,
    find_bound,
    is_drawn_on_host,
    is_in_doubt,
    is_thin_product,
    likely_bound_of,
    likely_shares,
    profiler_share,
    reached_share,
    regime_of_group,
    set_aside,
    share_aside,
    start_up_share,
)
from bottleneck.analysis.idle import FAULTS
from bottleneck.schema.accounts import (
    ACCOUNTS,
    UNMODELLED,
    UNMODELLED_ACCOUNTS,
    UNMODELLED_BY_FAMILY,
    phrase_of,
)
from bottleneck.schema.analysis import (
    GROUPS,
    STEPS_VARY,
    Clause,
    Finding,
    KernelSummary,
    LedgerEntry,
    Verdict,
    describe_share,
    is_certain,
    join_clauses,
    share_tenths,
)
from bottleneck.schema.evidence import TwoSided
from bottleneck.schema.finding_order import LITTLE, SURE_FINDINGS, in_reading_order
from bottleneck.schema.kernel_names import between, name_in_sentence, plain_name
from bottleneck.schema.measurements import LEAST_SAMPLED_US
from bottleneck.schema.op_names import RUNS_BACKWARD, at_source, named_source
from bottleneck.schema.records import replace
from bottleneck.schema.request_waits import WAIT, Serving, describe_pace
from bottleneck.units import counted, format_part, format_share, format_si, format_us, listed

_GROUP_WORDS = {
    "compute": "compute",
    "memory": "memory access",
    "overhead": "overhead",
    "communication": "communication",
    "transfer": "copying between host and device",
    "unknown": "unmodelled work",
}
# Of the step: an op with less is not named beside what holds the program up.
_WORTH_NAMING = 0.1
_LEAST_ASIDE = 0.01  # of the step, in start-up that is worth a line
_LEAST_SHOWN = 0.001  # of a step: less than the tables of shares show
# Accounts whose time a sentence names by the largest kernel in their place.
_SORTS = "unknown.sorts"
_NAMED_BY_KERNEL = WORK_GROUPS | {"unknown"}


def _likely(grounds: Grounds, kernel: KernelSummary) -> str | None:
    """Gives the usual bound of unmodelled work of this kind and size.

    Null for other work.
    """
    if is_thin_product(kernel):
        return "memory"
    if is_drawn_on_host(grounds, kernel):
        return "compute"
    if kernel.account not in UNMODELLED_ACCOUNTS:
        return None
    return likely_bound_of(grounds, kernel.account)


def decide(grounds: Grounds, findings: Sequence[Finding] = ()) -> Verdict:
    """The verdict; its first step is the first finding, null where there is none."""
    decision = find_bound(grounds)
    first = next(iter(in_reading_order(findings, grounds.ledger.wall_us, decision.bound)), None)
    step = None if first is None else _first_step(grounds, decision, first)
    clauses = tuple(_clauses(grounds, decision, findings, step))
    text, action = join_clauses(clauses), None if step is None else step.text
    # What is set aside and too little to show is no reason for another share than that of the table.
    is_group = decision.bound in GROUPS and not decision.by_kind and share_aside(grounds) < _LEAST_SHOWN
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
    if (aside := start_up_share(grounds.ledger)) >= _LEAST_ASIDE:
        yield Clause(
            "start_up", f"One-time start-up takes {format_share(aside)} of the recorded time and is not judged"
        )
    if (own := profiler_share(grounds.ledger)) >= LEAST_OWN:
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
            yield Clause("place", _with_time(grounds, largest, grounds.kernels), label="Largest")
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
        likely = likely_shares(grounds)
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
        if leading != first or first not in WORK_GROUPS:
            yield Clause("place", _contributor(grounds, leading, of_group=decision.bound == "mixed"), label="Largest")
        elif (most := _largest_of(_of_bound(grounds, first))) is not None:
            wall_us = grounds.ledger.wall_us
            is_all = most.us >= _ALL_OF_GROUP * likely[first] * wall_us
            place = (
                f"{_label(most)}, which is {_all_words(grounds, first, most.us / (likely[first] * wall_us))}"
                if is_all
                else _line_of_many(grounds, most) or _with_time(grounds, most, _of_bound(grounds, first))
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


# Of a group's time: less than this is not all of it to a tenth of a percent.
_WHOLLY = 0.9995


def _all_words(grounds: Grounds, group: str, part: float) -> str:
    """Says that an op is all of a group's work, or nearly."""
    return f"{'' if part >= _WHOLLY else 'nearly '}all of the {_work_words(grounds, group).lower()}"


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
    few = grounds.few_rows
    if few is not None:
        rows, ridge = counted(round(few.rows), "row"), round(few.ridge)
        limit = f"arithmetic limits products of 16-bit weights from {ridge} on"
        return f"A decoding step has {rows}, and {limit}; the rest is a guess from the types of ops"
    surely = grounds.ledger.group_shares().get(group, 0.0)
    if group in WORK_GROUPS and _WORTH_NAMING <= surely < likely:
        return f"{100 * (likely - surely):.1f} of these {format_share(likely)} are a guess from the types of ops"
    unknown = grounds.ledger.group_shares()[UNMODELLED]
    part = "This" if unknown >= _NEARLY_ALL else "Most of this" if unknown >= MOST_OF_STEP else "A part of this"
    return f"{part} is a guess from the types of ops"


def _of_one_group(grounds: Grounds, decision: BoundDecision) -> Iterator[Clause]:
    """Yields what limits the step with its time and share, and the worst place.

    An account that is most of its group is named in place of the group.
    """
    group = decision.ranked[0]
    entries = [entry for entry in grounds.ledger.entries if entry.group == group]
    largest, group_us = _largest_entry(grounds, group), math.fsum(entry.us for entry in entries)
    wall_us = grounds.ledger.wall_us
    if group in WORK_GROUPS:
        rate = _rate(grounds, [at for at, row in enumerate(grounds.kernels) if row.bound == group])
        is_far = regime_of_group(grounds, group) == "far_below_roof"
        small = _small_ops(grounds, group) if is_far else ""
        # What is taken off beside load is the least that a call waited.
        is_least = grounds.load is not None and regime_of_group(grounds, group) != "near_roof"
        only, more = "only " if is_far and not is_least else "", " or more" if is_least else ""
        reached = f"{small and f', in {small}'}, at {only}{rate}{more}" if rate is not None else ""
        takes = _takes(grounds, group, group_us / wall_us, is_known=not is_in_doubt(grounds, decision))
        is_limit = not is_far and group_us >= MOST_OF_STEP * wall_us and not is_in_doubt(grounds, decision)
        held = _limits(grounds, group) if is_limit else takes
        share = _shown(grounds, group)
        yield Clause("bound", f"{held}: {format_part(group_us, wall_us)} per step ({share}){reached}")
        if group == "memory" and is_far and grounds.faults_us >= _MUCH_IN_FAULTS * group_us:
            touched = format_us(min(grounds.faults_us, group_us))
            yield Clause("cause", f"Up to {touched} of it is the first touch of fresh pages (page faults)")
        if (kernel := _largest_kernel(grounds, _bounds_of(largest.account))) is not None:
            all_words = _all_words(grounds, group, kernel.us / group_us)
            is_all = kernel.us >= _ALL_OF_GROUP * group_us
            place = f"{_label(kernel)}, {all_words}" if is_all else _contributor(grounds, group)
            yield Clause("place", place, label="Largest")
        unknown = _larger_of_unknown_bound(grounds, largest)
        if unknown is not None and not is_in_doubt(grounds, decision):  # else the doubt names it
            unknown_time = _with_time(grounds, unknown, _with_bounds(grounds, ("unknown",)))
            yield Clause("place", f"{unknown_time}; its bound is not known", label="Besides")
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
    per_step = "" if largest.account == START_UP and grounds.is_one_step else " per step"
    yield Clause("bound", f"{words}: {format_part(us, wall_us)}{per_step} ({share})")
    if not stands:
        yield Clause("place", _contributor(grounds, group), label="Largest")
    elif place := _worst_place(grounds, largest):
        yield Clause("place", place, label="Worst")
    # A machine that holds the program up says nothing of the program itself.
    own = _largest_of(grounds.kernels) if largest.account == STALL else None
    if own is not None and own.share >= _WORTH_NAMING:
        yield Clause("place", f"of the program itself: {_with_time(grounds, own, grounds.kernels)}", label="Besides")


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
    if group not in WORK_GROUPS:
        return f"{_GROUP_WORDS[group].capitalize()} {how_sure}limits {_whose(grounds)}"
    return f"{_work_words(grounds, group)} {how_sure}limits {_whose(grounds)}"


def _takes(grounds: Grounds, group: str, share: float, *, is_known: bool) -> str:
    """Says what takes the time where its roof is far from being the limit.

    It also does so where ``is_known`` is false, since unmodelled work may be a larger part.
    """
    part = "most" if share >= MOST_OF_STEP else "the largest part" if is_known else "the largest known part"
    return f"{_work_words(grounds, group)} takes {part} of {_whose(grounds)}'s time"


def _of_bound(grounds: Grounds, group: str) -> list[KernelSummary]:
    """Gives the rows that a group of work limits, surely or by their kind."""
    return [row for row in grounds.kernels if group in {row.bound, _likely(grounds, row)}]


def _work_words(grounds: Grounds, group: str) -> str:
    """Names what a device or program does in a group of work.

    On a CPU most of it may be sorts, which compare numbers and compute nothing.
    """
    if group != "compute":
        return "Memory access"
    rows = _of_bound(grounds, group) if grounds.host_only else []
    compared_us = math.fsum(row.us for row in rows if row.reason_code == "comparisons" or row.account == _SORTS)
    return "Sorting" if compared_us > _STANDS_FOR_GROUP * math.fsum(row.us for row in rows) else "Arithmetic"


def _whose(grounds: Grounds) -> str:
    return "your program" if grounds.host_only else f"your {grounds.device_noun}"


def _waiting(grounds: Grounds, entry: LedgerEntry) -> str:
    """Says what the device waits for, or what most of a step is."""
    waited_for = ACCOUNTS[entry.account].device_waits_for if entry.account in ACCOUNTS else ""
    if waited_for and not grounds.host_only:
        return f"Your {grounds.device_noun} waits for {waited_for}"
    part = "Most" if entry.share >= MOST_OF_STEP else "The largest part"
    if entry.account == START_UP:
        return f"{part} of this recording is start-up, which is paid once"
    if _is_first_touch(grounds, entry):
        return f"{part} of your step is the first touch of fresh pages of memory (page faults)"
    return f"{part} of your step is {phrase_of(entry.account)}"


def _is_first_touch(grounds: Grounds, entry: LedgerEntry) -> bool:
    """Tells whether most of an account is the first touch of new pages."""
    rows = [row for row in grounds.idle if f"overhead.{row.cause}" == entry.account and row.on_pages]
    touched_us = math.fsum(row.us for row in rows if (row.detail or "").endswith(FAULTS))
    return touched_us >= MOST_OF_STEP * entry.us > 0


def _group_waits(grounds: Grounds, entries: Sequence[LedgerEntry], group_us: float) -> str:
    """Says what a group of waits comes to.

    None of its accounts is most of it.
    """
    if grounds.host_only:
        calls_us = math.fsum(entry.us for entry in entries if entry.account in _CALLS)
        is_calls = calls_us >= _STANDS_FOR_GROUP * group_us
        if group_us < MOST_OF_STEP * grounds.ledger.wall_us:
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
    if not is_in_doubt(grounds, decision):
        return None
    most = _largest_kernel(grounds, ("unknown",))
    mostly = f" ({_label(replace(most, source=None))}: {format_share(most.share)})" if most is not None else ""
    return f"{_shown(grounds, UNMODELLED)} of the step could not be modelled{mostly}, which could overturn this"


def _sharing_groups(grounds: Grounds, decision: BoundDecision) -> tuple[str, ...]:
    """Gives the groups that share a step without a single limit.

    They are the largest and those within 10 points of it.
    """
    shares = set_aside(grounds, likely_shares(grounds) if decision.by_kind else decision.shares)
    largest = shares[decision.ranked[0]]
    return tuple(group for group in decision.ranked if largest - shares[group] <= CLEAR_LEAD)


def _leading_group(grounds: Grounds, decision: BoundDecision) -> str:
    """Gives the group whose largest part is named.

    Of those that share the step it is not the first where another has an account larger than any op of the first.
    """
    first = decision.ranked[0]
    account = _largest_entry(grounds, first).account
    if decision.by_kind and first in WORK_GROUPS:
        op = _largest_of(_of_bound(grounds, first))
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
        bounds = _bounds_of(entry.account)
        return _line_of_many(grounds, kernel, bounds) or _with_time(grounds, kernel, _with_bounds(grounds, bounds))
    phrase, share = phrase_of(entry.account), _shown_account(grounds, entry)
    place, part = _worst_place(grounds, entry), f" (a part of the {_GROUP_WORDS[group]})" if of_group else ""
    return f"{phrase}{part}, {format_us(entry.us)} ({share}){f'; worst: {place}' if place else ''}"


# Times the largest op: a line whose ops take as much says more of where the time goes.
_LINE_OVER_OP = 2.0
# Reasons why work has no cost: a graph replayed it.
_REPLAYED = frozenset({"graph_replay", "graph_launch"})


def _line_of_many(grounds: Grounds, largest: KernelSummary, bounds: tuple[str, ...] | None = None) -> str | None:
    """Describes the line whose ops together take far more than the largest op.

    With ``bounds`` only ops of these count. Null where there is none. A line that replays a graph says less than the
    largest kernel of it: all of the graph runs there.
    """
    line_us: Mapping[str, float] = grounds.line_us if bounds is None else _line_us(grounds, bounds)
    replays = {row.source for row in grounds.kernels if row.reason_code in _REPLAYED}
    lines = ((line, us) for line, us in line_us.items() if line not in replays)
    line, us = max(lines, key=lambda pair: pair[1], default=("", 0.0))
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


def _with_time(grounds: Grounds, kernel: KernelSummary, rows: Sequence[KernelSummary]) -> str:
    """Describes an op by its time and share.

    ``rows`` are those of which the op is the largest: its time is that of its calls among them. The module with most of
    it is named only where its line calls modules of several classes.
    """
    words = f"{_label(kernel)}, {format_us(kernel.us)} ({format_share(kernel.share)})"
    sums: dict[str, float] = {}
    for number, row in enumerate(grounds.kernels):
        if row in rows and _label(row) == _label(kernel):
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
    return " (autograd between its ops)" if engine_us > MOST_OF_STEP * math.fsum(row.us for row in rows) else ""


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

        The finding's gain, 1 % of the step or more, must come from this part, or from the whole step. Advice without a
        gain has to name an op of this part.
        """
        gain = finding.predicted_gain_us
        if gain is not None and gain.high < LITTLE / 2 * grounds.ledger.wall_us:
            return False
        if not finding.claims:
            is_general = gain is not None or finding.comes_first
            # More rows per step make the products of few rows shorter, per row.
            is_general |= grounds.few_rows is not None and finding.slug == "server-settings"
            return is_general or (finding.code is not None and self._is_named_by(finding, grounds))
        own_us = math.fsum(grounds.kernels[row].us for row in self.rows) if self.rows else self.entry.us
        names = {self.entry.account, *(f"kernel:{row}" for row in self.rows)}
        claimed_us = math.fsum(us for claim, us in finding.claims.items() if claim in names)
        return claimed_us >= _LEAST_ANSWERED * own_us

    def _is_named_by(self, finding: Finding, grounds: Grounds) -> bool:
        ops = {name for row in self.rows if (name := grounds.kernels[row].op or grounds.kernels[row].name)}
        words = " ".join((finding.title, finding.advice, *finding.evidence))
        return not ops or any(re.search(rf"(?<![\w:]){re.escape(name)}(?!\w|::)", words) for name in ops)


# What shows why a kernel is slow, where nothing else is to be said.
_LOOK_INTO = {
    "cuda": "; Nsight Compute (ncu) shows what such a kernel waits for",
    "rocm": "; rocprof-compute shows what such a kernel waits for",
}


def why_later(first: Finding, later: Finding) -> str:
    """Says why the finding on the largest part does not come first.

    It goes by its gain; empty where that does not tell.
    """
    sooner, gain = first.predicted_gain_us, later.predicted_gain_us
    if gain is None:
        return ", whose gain is not known"
    if sooner is None:
        return ""
    if gain.low + gain.high < sooner.low + sooner.high:
        return ", which gains less"
    return ", which is less sure" if gain.low < sooner.low else ""


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
        why = "" if number == 1 else why_later(read[0], read[number - 1])
        return None if number == 1 else f"For {_name_of_part(grounds, part)} see number {number} below{why}"
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
    if entry.group not in WORK_GROUPS:
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
    reached = None if roof is None else reached_share(kernels)
    return None if reached is None else f"{format_share(reached)} of {roof}"


def describe_sides(sides: TwoSided) -> str:
    """The two sides of a window with their figures."""
    whole = "step" if sides.is_one_step else "recording"
    busy = (sides.busy_before, sides.busy_after)
    before, after = (f"works {format_share(one)} of the time" if one else "is idle" for one in busy)
    return f"For the first {format_share(sides.split)} of the {whole} the device {before}, after that it {after}"


def _largest_entry(grounds: Grounds, group: str) -> LedgerEntry:
    aside = accounts_aside(grounds)
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
    return _largest_of(_with_bounds(grounds, bounds))


def _with_bounds(grounds: Grounds, bounds: tuple[str, ...]) -> list[KernelSummary]:
    return [row for row in grounds.kernels if row.bound in bounds]


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
