"""Reduces each rank of a job to a digest, and the digests to who waits for whom.

That follows from the arrival of each rank at each collective.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import numpy as np

from bottleneck.analysis.arrivals import Arrivals, find_groups, match_collectives
from bottleneck.analysis.collectives import message_of, messages_of, quickest_calls, repaced, with_transfer
from bottleneck.analysis.job import COMMUNICATION, GroupTimes, clock_offsets, exposed_us_of, measure, summarise_job
from bottleneck.analysis.verdict import find_bound, grounds_of
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
from bottleneck.units import counted, format_share, format_us

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
    """The digest of one rank; ``host`` is where it ran, as its folder or file name tells.

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
    """The numbers of the steps, alike on all ranks; empty where one is not known."""
    base = first_step if source == "marks" else 0
    known = [step.number + base for step in steps if step.number is not None and base is not None]
    return tuple(known) if len(known) == len(steps) else ()


# The lines of a program that take most of its step; a digest does not grow with the program.
_MOST_LINES = 64


def _own_lines(lines: Sequence[Fold]) -> dict[str, float]:
    """Time per step at the lines that take most of it, less that of collectives; where no line is known is left out."""
    own = {fold.name: fold.us * (1.0 - fold.shares.get(COMMUNICATION, 0.0)) + fold.idle_us for fold in lines}
    most = sorted((name for name in own if place_of(name)), key=lambda name: (-own[name], name))[:_MOST_LINES]
    return {name: own[name] for name in most}


def _collective_calls(linked: Linked) -> CollectiveCalls:
    """Every collective of the trace, in and outside the window, as long as it took there.

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
    """The position of each value among the distinct ones, and those in the order met."""
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
    """The summary of all ranks, whatever the order of their digests; ``left_out`` are traces without a digest.

    ``sharing`` tells whether they explain the same steps: without any in common, none is held against the others.

    Every rank waits for the last one, so an average over ranks would describe none of them. The pace is set by the
    straggler, the rank that starts collectives last; without one, by the rank with the longest step.
    """
    ordered = sorted(digests, key=lambda one: (one.rank is None, one.rank or 0, one.path))
    numbers = _numbers(ordered)
    groups, spool = find_groups(ordered) if sharing != "none" else [], Spool()
    matched = [found for group in groups if (found := match_collectives(ordered, group, spool)) is not None]
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
    """The evidence of the rank that sets the pace with what all ranks say together.

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
    """Rank numbers as the traces tell them; positions where they do not, or not uniquely."""
    known = [one.rank for one in ordered if one.rank is not None]
    return known if len(set(known)) == len(ordered) else list(range(len(ordered)))


def _late_us(ordered: Sequence[RankDigest], times: Sequence[GroupTimes]) -> list[float | None]:
    """Mean lateness of each rank over the collectives in its window; null where none of its own could be matched."""
    late, calls = np.zeros(len(ordered)), np.zeros(len(ordered))
    known = np.zeros(len(ordered), dtype=bool)
    for one in times:
        members = list(one.arrivals.members)
        late[members] += one.late_us * one.calls
        calls[members] += one.calls
        known[members] = True
    means = late / np.maximum(calls, 1)
    return [mean if is_known else None for mean, is_known in zip(means.tolist(), known.tolist(), strict=True)]


def _find_straggler(
    ordered: Sequence[RankDigest],
    numbers: Sequence[int],
    times: Sequence[GroupTimes],
    late_us: Sequence[float | None],
    job: JobSummary,
) -> tuple[int, tuple[Clause, ...]] | None:
    """The rank that is last on average, when the others wait for it a good part of their step; else null.

    Its position among the ranks, and clauses on it. Where a rank or host is known to be slow, it is that one, and
    the latest of its ranks.
    """
    known = [position for position, late in enumerate(late_us) if late is not None]
    if len(known) < 2:
        return None
    slow = next((one for one in job.slow if one.is_steady), None)
    ranks = set(numbers) if slow is None else set(slow.ranks)
    position = max((at for at in known if numbers[at] in ranks), key=lambda at: late_us[at] or 0.0)
    waited_us = max(_waited_us(ordered, times, position), 0.0 if slow is None else slow.cost_us)
    walls = [one.steps.wall_us for at, one in enumerate(ordered) if at != position]
    if waited_us < _STRAGGLING * float(np.mean(walls)):
        return None
    return position, _straggler(slow, waited_us, numbers[position], numbers, ordered[position])


def _waited_us(ordered: Sequence[RankDigest], times: Sequence[GroupTimes], position: int) -> float:
    """Time per step that the other ranks wait where this one comes last, averaged over them.

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
    return min(waited_us * ordered[position].stretch, float(np.mean(exposed_us)))


def _straggler(
    slow: SlowRank | None, waited_us: float, rank: int, numbers: Sequence[int], digest: RankDigest
) -> tuple[Clause, ...]:
    """The wait of the others for a rank, or for the slow rank or host that it is of, and why it is late."""
    late = {rank} if slow is None else {rank, *slow.ranks}
    waiting = [number for number in numbers if number not in late]
    if len(waiting) > _MOST_LISTED:
        wait = f"{len(waiting)} of {counted(len(numbers), 'rank')} wait"
    else:
        wait = f"Ranks {_listed(waiting)} wait" if len(waiting) > 1 else f"Rank {_listed(waiting)} waits"
    wait += f" in collectives {format_us(waited_us)} per step for "
    if slow is None:
        others = (entry for entry in digest.ledger if entry.group != COMMUNICATION)
        own = max(others, key=lambda entry: entry.us, default=None)
        part = "" if own is None else f"{phrase_of(own.account)} ({format_share(own.share)})"
        name, cause = f"rank {rank}", part and f"the largest part of its own step is {part}"
    else:
        name = slow.name if len(slow.ranks) == 1 else f"{slow.name} ({counted(len(slow.ranks), 'rank')})"
        cause = slow.cause
        if slow.line is not None and slow.line_us is not None:
            spent = f"{format_us(slow.line_us)} {at_source(slow.line)}, the others {format_us(slow.usual_line_us or 0)}"
            return (Clause("late_rank", f"{wait}{name}, which spends {spent}"),)
    rank_waited_for = Clause("late_rank", f"{wait}{name}")
    return (rank_waited_for, Clause("late_cause", cause, "; ")) if cause else (rank_waited_for,)


def _listed(numbers: Sequence[int]) -> str:
    """'0, 1 and 3'; beyond eight the count of the rest."""
    if len(numbers) > _MOST_LISTED:
        return f"{', '.join(str(number) for number in numbers[:6])} and {len(numbers) - 6} more"
    return " and ".join([*filter(None, [", ".join(map(str, numbers[:-1]))]), *map(str, numbers[-1:])])


def _collectives(
    ordered: Sequence[RankDigest], position: int, matched: Sequence[Arrivals]
) -> tuple[CollectiveSummary, ...]:
    """The collectives of one rank beside the quickest calls of all ranks.

    Where no call of one size was quickest, the rank that came last to a call tells: it waited for nobody.
    """
    mine = ordered[position]
    found = repaced(mine.collectives, quickest_calls(one.calls.read() for one in ordered))
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
        for one in found
    )


_NONE_SHARED = "the ranks recorded no step in common: none of them is held against the others, and lateness is unknown"


def _chosen(steps: StepTimes) -> str:
    """The steps that a rank explains, spelt as ``--steps`` takes them."""
    kept = [number for number, step in enumerate(steps.each) if step.set_aside is None]
    return f"{kept[0]}:{kept[-1] + 1}" if kept else "0:0"


def _caveats(
    ordered: Sequence[RankDigest],
    numbers: Sequence[int],
    times: Sequence[GroupTimes],
    left_out: Sequence[LeftOut],
    sharing: StepSharing,
) -> tuple[Caveat, ...]:
    found = [*_absent(ordered, numbers, left_out), *_told_twice(numbers, left_out)]
    if numbers != [one.rank for one in ordered]:
        found.append(Caveat("unnumbered-ranks", "the traces do not tell their ranks apart; they are counted as given"))
    chosen = [_chosen(one.steps) for one in ordered]
    if sharing == "none":
        found.append(Caveat("other-steps", _NONE_SHARED))
    elif sharing == "unknown" and len(set(chosen)) > 1:
        several = ", ".join(f"rank {number} {steps}" for number, steps in list(zip(numbers, chosen, strict=True))[:8])
        found.append(
            Caveat(
                "other-steps", f"the ranks do not explain the same steps ({several}); --steps A:B takes the same of all"
            )
        )
    if not times and sharing != "none":
        found.append(Caveat("unmatched-ranks", "no collective could be matched across the ranks: lateness is unknown"))
    return (*found, *_clocks_apart(numbers, clock_offsets(ordered, times)))


def _absent(ordered: Sequence[RankDigest], numbers: Sequence[int], left_out: Sequence[LeftOut]) -> list[Caveat]:
    """The ranks of the job without a trace, and the traces that could not be used."""
    found = []
    world = max((one.world_size or 0 for one in ordered), default=0)
    known = {*numbers, *(one.rank for one in left_out)}
    # A file may claim any size: what is missing is counted, and only the first are listed.
    missing = [*islice((rank for rank in range(world) if rank not in known), _MOST_LISTED)]
    count = world - len([rank for rank in known if rank is not None and rank < world])
    if missing and [one.rank for one in ordered] == numbers:
        more = f" and {count - len(missing):,} more" if count > len(missing) else ""
        listed = _listed(missing) if not more else ", ".join(map(str, missing))
        found.append(Caveat("missing-ranks", f"of {counted(world, 'rank')}, no trace was given of {listed}{more}"))
    elif world > len(ordered) + len(left_out):
        found.append(Caveat("missing-ranks", f"{len(ordered)} of {counted(world, 'rank')} were given"))
    others = sorted((one for one in left_out if one.rank is None or one.rank not in numbers), key=lambda one: one.path)
    if others:
        more = f", and {len(others) - 1} more" if len(others) > 1 else ""
        rank = "" if others[0].rank is None else f"rank {others[0].rank}, "
        told = f"left out: {rank}{others[0].path}: {others[0].reason}{more}"
        found.append(Caveat("left-out-ranks", told))
    return found


def _told_twice(numbers: Sequence[int], left_out: Sequence[LeftOut]) -> list[Caveat]:
    """The ranks with several files, of which one is used."""
    twice = [one for one in left_out if one.rank is not None and one.rank in numbers]
    if not twice:
        return []
    first = min(twice, key=lambda one: (one.rank or 0, one.path))
    ranks = sorted({one.rank for one in twice if one.rank is not None})
    has = "rank {} has" if len(ranks) == 1 else "ranks {} have"
    told = f"{has.format(_listed(ranks))} several files; not used is {first.path}: {first.reason}"
    return [Caveat("repeated-ranks", f"{told}{f', and {len(twice) - 1} more' if len(twice) > 1 else ''}")]


def _clocks_apart(numbers: Sequence[int], clocks: Sequence[float | None]) -> list[Caveat]:
    """The ranks whose clocks are far from those of most others; those furthest apart where there is no majority."""
    known = {number: clock_us for number, clock_us in zip(numbers, clocks, strict=True) if clock_us is not None}
    if not known or np.ptp([*known.values()]) <= _CLOCKS_AGREE_US:
        return []
    middle_us = float(np.median([*known.values()]))
    off = {rank: us - middle_us for rank, us in known.items() if abs(us - middle_us) > _CLOCKS_AGREE_US}
    aligned = "; the ends of collectives align them"
    if len(known) < _LEAST_MAJORITY or not off or 2 * len(off) >= len(known):
        first, last = (pick(known, key=lambda rank: known[rank]) for pick in (min, max))
        apart = format_us(known[last] - known[first])
        return [Caveat("rank-clocks", f"the clock of rank {last} is {apart} ahead of that of rank {first}{aligned}")]
    if len(off) == 1:
        ((rank, us),) = off.items()
        told = f"the clock of rank {rank} is {format_us(abs(us))} {'ahead of' if us > 0 else 'behind'} the others'"
    else:
        worst = max(off, key=lambda rank: abs(off[rank]))
        told = (
            f"the clocks of ranks {_listed(sorted(off))} are off, that of rank {worst} by {format_us(abs(off[worst]))}"
        )
    return [Caveat("rank-clocks", f"{told}{aligned}")]
