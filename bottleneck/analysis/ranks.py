"""Reduces each rank to a digest, and digests to who waits.

Who waits for whom follows from the arrival of each rank at each collective.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import numpy as np

from bottleneck.analysis.arrivals import Arrivals, find_groups, match_collectives
from bottleneck.analysis.bound import find_bound, grounds_of
from bottleneck.analysis.collectives import message_of, messages_of, quickest_calls, repaced, with_transfer
from bottleneck.analysis.job import (
    COMMUNICATION,
    GroupTimes,
    clock_offsets,
    exposed_us_of,
    measure,
    stretch_of,
    summarise_job,
)
from bottleneck.schema.accounts import phrase_of
from bottleneck.schema.analysis import ONE_RANK, TRUNCATED, Caveat, Clause, CollectiveSummary, Fold, RankSummary
from bottleneck.schema.digest import CollectiveCalls, RankDigest, StepSharing
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.intervals import Integers
from bottleneck.schema.job import JobSummary, LeftOut, SlowRank
from bottleneck.schema.linked_trace import Linked, Step
from bottleneck.schema.measurements import StepTimes
from bottleneck.schema.op_names import at_source, place_of
from bottleneck.schema.records import replace
from bottleneck.system.working_memory import Spool
from bottleneck.units import counted, format_part, format_share, format_us, listed

# A rank is called a straggler when the others wait for it this part of their step.
_STRAGGLING = 0.05
# Between hosts, clocks kept by NTP agree to about this.
_CLOCKS_AGREE_US = 1000.0
# Of two clocks neither is the one that is off.
_LEAST_MAJORITY = 3
# Ranks that are named one by one.
_MOST_LISTED = 8

Value = TypeVar("Value")


def digest_rank(evidence: Evidence, host: str | None = None, first_step: int | None = None) -> RankDigest:
    """Gives the digest of one rank.

    ``host`` is where it ran, as its folder or file name tells.

    ``first_step`` is the number of the step that begins at the first mark of its recording.
    """
    analysis, linked = evidence.analysis, evidence.linked
    window = linked.window
    aside = dict(window.set_aside)
    steps = sorted([*window.steps, *aside], key=lambda step: step.start_us)
    return RankDigest(
        path=analysis.recording.path,
        host=host,
        rank=linked.trace.rank,
        world_size=linked.trace.world_size,
        start_unix_ns=linked.trace.start_unix_ns,
        steps=analysis.steps,
        ledger=analysis.ledger,
        collectives=analysis.collectives,
        bound=find_bound(grounds_of(evidence)).bound,
        calls=_collective_calls(linked),
        process_groups=linked.trace.process_groups,
        step_start_us=np.array([step.start_us for step in steps], dtype=np.float64),
        step_wall_us=np.array([step.us for step in steps], dtype=np.float64),
        is_cut_off=any(caveat.slug == TRUNCATED for caveat in analysis.caveats),
        lines=_own_lines(analysis.lines),
        step_numbers=_step_numbers(steps, window.source, first_step),
        set_aside=tuple(aside.get(step) for step in steps),
    )


def _step_numbers(steps: Sequence[Step], source: str, first_step: int | None) -> tuple[int, ...]:
    """Gives the numbers of the steps, alike on all ranks.

    Empty where one is not known.
    """
    base = first_step if source == "marks" else 0
    numbers = [step.number + base for step in steps if step.number is not None and base is not None]
    return tuple(numbers) if len(numbers) == len(steps) else ()


# The lines of a program that take most of its step; a digest does not grow with the program.
_MOST_LINES = 64


def _own_lines(lines: Sequence[Fold]) -> dict[str, float]:
    """Gives time per step at the lines that take most.

    That of collectives is left out, and so is time where no line is known.
    """
    own = {fold.name: fold.us * (1.0 - fold.shares.get(COMMUNICATION, 0.0)) + fold.idle_us for fold in lines}
    most = sorted((name for name in own if place_of(name)), key=lambda name: (-own[name], name))[:_MOST_LINES]
    return {name: own[name] for name in most}


def _collective_calls(linked: Linked) -> CollectiveCalls:
    """Gives every collective of the trace with its recorded duration.

    Those outside the window count too.

    Ranks leave a collective together: that must not be moved by what profiling takes of an op on the host.
    """
    kernels, window = linked.kernels, linked.window
    rows = np.flatnonzero((kernels["kind"] == "collective").to_numpy())
    rows = rows[np.argsort(kernels["ts_us"].to_numpy()[rows], kind="stable")]
    start_us = kernels["ts_us"].to_numpy()[rows]
    dur_us = kernels["dur_us"].to_numpy()[rows]
    if linked.is_host_only:
        dur_us = np.maximum(dur_us, linked.trace.events["dur_us"].to_numpy()[kernels["event"].to_numpy()[rows]])
    end_us = start_us + dur_us
    named = linked.trace.device_args.set_index("event")["process_group"].reindex(kernels["event"].to_numpy()[rows])
    message, messages = _coded(messages_of(linked, rows))
    group, groups = _coded([*named.astype(object).where(named.notna(), "")])
    return CollectiveCalls(
        messages=messages,
        groups=groups,
        message=message,
        group=group,
        start_us=start_us,
        end_us=end_us,
        is_inside=np.asarray((end_us > window.start_us) & (start_us < window.end_us)),
    )


def _coded(values: Sequence[Value]) -> tuple[Integers, tuple[Value, ...]]:
    """Gives the position of each value among the distinct ones.

    The distinct values come in the order met.
    """
    code = {value: position for position, value in enumerate(dict.fromkeys(values))}
    return np.array([code[value] for value in values], dtype=np.int64), tuple(code)


@dataclass(frozen=True)
class Reduced:
    """The digests of a job, compared with one another.

    ``pace`` is the digest of the rank that sets the pace, whose tables stand for the job; ``collectives`` are its own
    beside the quickest calls of all ranks. ``straggler`` tells of the rank or host that the others wait for.
    """

    pace: RankDigest
    ranks: tuple[RankSummary, ...]
    collectives: tuple[CollectiveSummary, ...]
    caveats: tuple[Caveat, ...]
    job: JobSummary
    straggler: tuple[Clause, ...]


def reduce_ranks(
    digests: Sequence[RankDigest], left_out: Sequence[LeftOut] = (), sharing: StepSharing = "unknown"
) -> Reduced:
    """Gives the summary of all ranks.

    It does not depend on the order of their digests. ``left_out`` are traces without a digest.

    ``sharing`` tells whether they explain the same steps: without any in common, none is held against the others.

    Every rank waits for the last one, so an average over ranks would describe none of them. The pace is set by the
    straggler, the rank that starts collectives last; without one, by the rank with the longest step.
    """
    ordered = sorted(digests, key=lambda one: (one.rank is None, one.rank or 0, one.path))
    numbers = _numbers(ordered)
    groups, spool = find_groups(ordered) if sharing != "none" else [], Spool()
    matched = [common for group in groups if (common := match_collectives(ordered, group, spool)) is not None]
    times = [measure(ordered, arrivals) for arrivals in matched]
    late_us = _late_us(ordered, times)
    job = summarise_job(ordered, numbers, groups, times, left_out)
    longest = int(np.argmax([one.steps.wall_us for one in ordered]))
    position, straggler = _find_straggler(ordered, numbers, times, late_us, job) or (longest, ())
    return Reduced(
        pace=ordered[position],
        ranks=tuple(
            RankSummary(number, one.path, one.steps.wall_us, one.ledger, late, one.bound)
            for one, number, late in zip(ordered, numbers, late_us, strict=True)
        ),
        collectives=_collectives(ordered, position, matched),
        caveats=_caveats(ordered, numbers, times, left_out, sharing),
        job=job,
        straggler=straggler,
    )


def combine_ranks(evidence: Evidence, reduced: Reduced, path: str | None = None) -> Evidence:
    """Adds what all ranks say together to one rank's evidence.

    That rank sets the pace.

    ``path`` is that of the whole job, where it has one; otherwise the path of that rank is kept.
    """
    body = evidence.analysis
    caveats = (caveat for caveat in body.caveats if caveat.slug != ONE_RANK)
    analysis = replace(
        body,
        recording=replace(body.recording, path=path or body.recording.path, world_size=reduced.job.ranks),
        ranks=reduced.ranks,
        collectives=reduced.collectives,
        caveats=(*caveats, *reduced.caveats),
        job=reduced.job,
    )
    return replace(evidence, analysis=analysis, straggler=reduced.straggler)


def _numbers(ordered: Sequence[RankDigest]) -> list[int]:
    """Gives rank numbers as the traces tell them.

    Positions stand for them where they do not, or not uniquely.
    """
    stated = [one.rank for one in ordered if one.rank is not None]
    return stated if len(set(stated)) == len(ordered) else list(range(len(ordered)))


def _late_us(ordered: Sequence[RankDigest], times: Sequence[GroupTimes]) -> list[float | None]:
    """Gives mean lateness of each rank at its window's collectives.

    Null where none of its own could be matched.
    """
    late, calls = np.zeros(len(ordered)), np.zeros(len(ordered))
    is_matched = np.zeros(len(ordered), dtype=bool)
    for one in times:
        members = list(one.arrivals.members)
        late[members] += one.late_us * one.calls
        calls[members] += one.calls
        is_matched[members] = True
    means = late / np.maximum(calls, 1)
    return [mean if is_known else None for mean, is_known in zip(means.tolist(), is_matched.tolist(), strict=True)]


def _find_straggler(
    ordered: Sequence[RankDigest],
    numbers: Sequence[int],
    times: Sequence[GroupTimes],
    late_us: Sequence[float | None],
    job: JobSummary,
) -> tuple[int, tuple[Clause, ...]] | None:
    """Gives the straggler's position among the ranks, and clauses on it.

    The straggler is the rank that is last on average, when the others wait for it a good part of their step. Else null.

    Where a rank or host is known to be slow, it is that one, and the latest of its ranks.
    """
    matched = [position for position, late in enumerate(late_us) if late is not None]
    if len(matched) < 2:
        return None
    slow = next((one for one in job.slow if one.is_steady), None)
    ranks = set(numbers) if slow is None else set(slow.ranks)
    position = max((at for at in matched if numbers[at] in ranks), key=lambda at: late_us[at] or 0.0)
    waited_us = max(_waited_us(ordered, times, position), 0.0 if slow is None else slow.cost_us)
    walls = [one.steps.wall_us for at, one in enumerate(ordered) if at != position]
    if waited_us < _STRAGGLING * float(np.mean(walls)):
        return None
    waited = format_part(waited_us, float(np.mean(walls)))
    return position, _straggler(slow, waited, numbers[position], numbers, ordered[position])


def _waited_us(ordered: Sequence[RankDigest], times: Sequence[GroupTimes], position: int) -> float:
    """Gives time per step that other ranks wait for this one.

    They wait where it comes last. The time is averaged over them.

    Of a step that was timed without the profiler, no more than the collectives that nothing hides.
    """
    waited = np.zeros(len(ordered))
    for one in times:
        members = one.arrivals.members
        if position not in members:
            continue
        row = members.index(position)
        for block in one.arrivals.blocks():
            last = block.inside & (block.start.argmax(axis=0) == row)
            waited[list(members)] += np.where(last, block.waits_us, 0.0).sum(axis=1)
    waited /= np.array([one.steps.count for one in ordered])
    waited_us = float(np.delete(waited, position).mean())
    if ordered[position].steps.unprofiled_us is None:
        return waited_us
    exposed_us = [exposed_us_of(one) for at, one in enumerate(ordered) if at != position]
    return min(waited_us * stretch_of(ordered), float(np.mean(exposed_us)))


def _straggler(
    slow: SlowRank | None, waited: str, rank: int, numbers: Sequence[int], digest: RankDigest
) -> tuple[Clause, ...]:
    """Gives clauses on the wait for a rank and its cause.

    The others wait for the rank, or for the slow rank or host that it is of; ``waited`` is how long, of their step.
    """
    late = {rank} if slow is None else {rank, *slow.ranks}
    waiting = [number for number in numbers if number not in late]
    if len(waiting) > _MOST_LISTED:
        who = f"{len(waiting)} of {counted(len(numbers), 'rank')} wait"
    else:
        who = f"ranks {_listed(waiting)} wait" if len(waiting) > 1 else f"rank {_listed(waiting)} waits"
    if slow is None:
        others = (entry for entry in digest.ledger if entry.group != COMMUNICATION)
        own = max(others, key=lambda entry: entry.us, default=None)
        part = "" if own is None else f"{phrase_of(own.account)} ({format_share(own.share)})"
        name, cause = f"rank {rank}", part and f"the largest part of its own step is {part}"
    else:
        name = slow.name if len(slow.ranks) == 1 else f"{slow.name} ({counted(len(slow.ranks), 'rank')})"
        cause = slow.cause
        if slow.line is not None and slow.line_us is not None:
            usual = format_us(slow.usual_line_us or 0)
            cause = f"it spends {format_us(slow.line_us)} {at_source(slow.line)}, the others {usual}"
    late_rank = f"{name[:1].upper()}{name[1:]} is late: {who} {waited} per step in collectives for it"
    rank_waited_for = Clause("late_rank", late_rank)
    return (rank_waited_for, Clause("late_cause", cause, label="Why")) if cause else (rank_waited_for,)


def _listed(numbers: Sequence[int]) -> str:
    """'0, 1 and 3'; beyond eight the count of the rest."""
    if len(numbers) > _MOST_LISTED:
        return f"{', '.join(str(number) for number in numbers[:6])} and {len(numbers) - 6} more"
    return listed(numbers)


def _collectives(
    ordered: Sequence[RankDigest], position: int, matched: Sequence[Arrivals]
) -> tuple[CollectiveSummary, ...]:
    """The collectives of one rank beside the quickest calls of all ranks.

    Where no call of one size was quickest, the rank that came last to a call tells: it waited for nobody.
    """
    mine = ordered[position]
    summaries = repaced(mine.collectives, quickest_calls(one.calls.read() for one in ordered))
    messages = mine.calls.read().messages
    size = len(messages)
    spent, least = np.zeros(size), np.zeros(size)
    for arrivals in matched:
        if position in arrivals.members:
            row = arrivals.members.index(position)
            for block in arrivals.blocks():
                inside = block.inside[row]
                dur = (block.end - block.start)[:, inside]
                np.add.at(spent, block.message[row][inside], dur[row])
                np.add.at(least, block.message[row][inside], dur.min(axis=0))
    ratios = np.divide(least, spent, out=np.zeros(size), where=spent > 0)
    share = {message: ratio for message, ratio in zip(messages, ratios.tolist(), strict=True) if ratio}
    return tuple(
        with_transfer(one, share[message_of(one)]) if one.transfer_us is None and message_of(one) in share else one
        for one in summaries
    )


_NONE_SHARED = "the ranks recorded no step in common: none of them is held against the others, and lateness is unknown"


def _chosen(steps: StepTimes) -> str:
    """The steps that a rank explains, spelt as ``--steps`` takes them."""
    numbers = [number for number, step in enumerate(steps.each) if step.set_aside is None]
    return f"{numbers[0]}:{numbers[-1] + 1}" if numbers else "0:0"


def _caveats(
    ordered: Sequence[RankDigest],
    numbers: Sequence[int],
    times: Sequence[GroupTimes],
    left_out: Sequence[LeftOut],
    sharing: StepSharing,
) -> tuple[Caveat, ...]:
    caveats = [*_other_jobs(ordered), *_absent(ordered, numbers, left_out), *_told_twice(numbers, left_out)]
    if numbers != [one.rank for one in ordered]:
        caveats.append(
            Caveat("unnumbered-ranks", "the traces do not tell their ranks apart; they are counted as given")
        )
    chosen = [_chosen(one.steps) for one in ordered]
    if sharing == "none":
        caveats.append(Caveat("other-steps", _NONE_SHARED))
    elif sharing == "unknown" and len(set(chosen)) > 1:
        several = ", ".join(f"rank {number} {steps}" for number, steps in list(zip(numbers, chosen, strict=True))[:8])
        caveats.append(
            Caveat(
                "other-steps", f"the ranks do not explain the same steps ({several}); --steps A:B takes the same of all"
            )
        )
    if not times and sharing != "none":
        caveats.append(
            Caveat("unmatched-ranks", "no collective could be matched across the ranks: lateness is unknown")
        )
    return (*caveats, *_apart_in_time(ordered), *_clocks_apart(numbers, clock_offsets(ordered, times)))


def _other_jobs(ordered: Sequence[RankDigest]) -> list[Caveat]:
    """Gives a caveat on traces that state different numbers of ranks."""
    sizes = sorted({one.world_size for one in ordered if one.world_size is not None})
    if len(sizes) < 2:
        return []
    return [Caveat("different-jobs", f"the traces name jobs of different sizes: {_listed(sizes)} ranks")]


def _apart_in_time(ordered: Sequence[RankDigest]) -> list[Caveat]:
    """Gives a caveat on traces that were not recorded at the same time."""
    shared_us = common_us(ordered)
    if shared_us is None or shared_us >= 0:
        return []
    return [Caveat("apart-in-time", f"the last trace begins {format_us(-shared_us)} after the first has ended")]


def common_us(digests: Sequence[RankDigest]) -> float | None:
    """Gives how long all ranks recorded steps at once, in microseconds.

    Below 0 it is how long after the end of one another one begins. Null where one does not tell its wall clock.
    """
    starts, ends = [], []
    for one in digests:
        if one.start_unix_ns is None or not one.step_start_us.size:
            return None
        zero_us = one.start_unix_ns / 1e3
        starts.append(zero_us + float(one.step_start_us.min()))
        ends.append(zero_us + float((one.step_start_us + one.step_wall_us).max()))
    return min(ends) - max(starts)


def _absent(ordered: Sequence[RankDigest], numbers: Sequence[int], left_out: Sequence[LeftOut]) -> list[Caveat]:
    """Gives caveats on ranks without a trace and unused traces.

    Such a rank belongs to the job.
    """
    caveats = []
    world = max((one.world_size or 0 for one in ordered), default=0)
    accounted = {*numbers, *(one.rank for one in left_out)}
    # A file may claim any size: what is missing is counted, and only the first are listed.
    missing = [*islice((rank for rank in range(world) if rank not in accounted), _MOST_LISTED)]
    count = world - len([rank for rank in accounted if rank is not None and rank < world])
    if missing and [one.rank for one in ordered] == numbers:
        more = f" and {count - len(missing):,} more" if count > len(missing) else ""
        listed = _listed(missing) if not more else ", ".join(map(str, missing))
        caveats.append(Caveat("missing-ranks", f"of {counted(world, 'rank')}, no trace was given of {listed}{more}"))
    elif world > len(ordered) + len(left_out):
        caveats.append(Caveat("missing-ranks", f"{len(ordered)} of {counted(world, 'rank')} were given"))
    others = sorted((one for one in left_out if one.rank is None or one.rank not in numbers), key=lambda one: one.path)
    if others:
        more = f", and {len(others) - 1} more" if len(others) > 1 else ""
        rank = "" if others[0].rank is None else f"rank {others[0].rank}, "
        message = f"left out: {rank}{others[0].path}: {others[0].reason}{more}"
        caveats.append(Caveat("left-out-ranks", message))
    return caveats


def _told_twice(numbers: Sequence[int], left_out: Sequence[LeftOut]) -> list[Caveat]:
    """The ranks with several files, of which one is used."""
    twice = [one for one in left_out if one.rank is not None and one.rank in numbers]
    if not twice:
        return []
    first = min(twice, key=lambda one: (one.rank or 0, one.path))
    ranks = sorted({one.rank for one in twice if one.rank is not None})
    has = "rank {} has" if len(ranks) == 1 else "ranks {} have"
    message = f"{has.format(_listed(ranks))} several files; not used is {first.path}: {first.reason}"
    return [Caveat("repeated-ranks", f"{message}{f', and {len(twice) - 1} more' if len(twice) > 1 else ''}")]


def _clocks_apart(numbers: Sequence[int], clocks: Sequence[float | None]) -> list[Caveat]:
    """Gives a caveat on ranks whose clocks are far off.

    They are far from those of most others. Where there is no majority, it names those furthest apart.
    """
    clock_of = {number: clock_us for number, clock_us in zip(numbers, clocks, strict=True) if clock_us is not None}
    if not clock_of or np.ptp([*clock_of.values()]) <= _CLOCKS_AGREE_US:
        return []
    middle_us = float(np.median([*clock_of.values()]))
    off = {rank: us - middle_us for rank, us in clock_of.items() if abs(us - middle_us) > _CLOCKS_AGREE_US}
    aligned = "; the ends of collectives align them"
    if len(clock_of) < _LEAST_MAJORITY or not off or 2 * len(off) >= len(clock_of):
        first, last = (pick(clock_of, key=lambda rank: clock_of[rank]) for pick in (min, max))
        apart = format_us(clock_of[last] - clock_of[first])
        return [Caveat("rank-clocks", f"the clock of rank {last} is {apart} ahead of that of rank {first}{aligned}")]
    if len(off) == 1:
        ((rank, us),) = off.items()
        message = f"the clock of rank {rank} is {format_us(abs(us))} {'ahead of' if us > 0 else 'behind'} the others'"
    else:
        worst = max(off, key=lambda rank: abs(off[rank]))
        message = (
            f"the clocks of ranks {_listed(sorted(off))} are off, that of rank {worst} by {format_us(abs(off[worst]))}"
        )
    return [Caveat("rank-clocks", f"{message}{aligned}")]
