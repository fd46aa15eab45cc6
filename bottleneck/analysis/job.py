"""Compares the ranks of a job.

It says who is slow, why and since when, which links are slow, and what the groups wait for.

Amounts are microseconds per step. A rank's *own time* at a collective is that since it left the one before. A rank is
slow when its own times are far longer than those of the median rank at the same collectives, so that the others wait;
one that others made late has no longer own time than they. A host is slow when all of its ranks are. "Median" is the
lower one of an even number.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from bottleneck.analysis.arrivals import SEND_RECV, Arrivals, Group, own_times, payloads
from bottleneck.analysis.collectives import quickest_calls
from bottleneck.schema.accounts import phrase_of
from bottleneck.schema.digest import RankDigest
from bottleneck.schema.intervals import Codes, Flags, Floats, Integers, tally, union
from bottleneck.schema.job import GroupUse, JobSummary, LeftOut, SlowLink, SlowRank
from bottleneck.schema.linked_trace import ProcessGroup
from bottleneck.schema.op_names import at_source
from bottleneck.units import counted, format_us

COMMUNICATION, _PYTHON = "communication", "overhead.python"
# A delay worth a name, as a share of the step: of few ranks, of which chance makes one late, and of many.
_WORTH_FEW, _WORTH = 0.05, 0.02
_MANY = 8
# Distance from the median in standard deviations, by the median absolute deviation; noise of real machines has tails.
_FAR, _SIGMAS_PER_MAD = 6.0, 1.4826
# A host is late as a whole when its least late rank has this part of the lateness of its median rank.
_TOGETHER = 0.5
_MOST_STEPS, _STEADY_STEPS = 2 / 3, 3
_SLOW_LINK, _LEAST_GROUPS = 1.5, 3
_EQUAL_BYTES = 0.1
# A constant factor explains this part of the squares; one account holds so much of what is longer, a second is told.
_CONSTANT, _ONE_ACCOUNT, _ONE_PART = 0.8, 0.8, 0.4
# An account is told as a cause from this part of what a rank takes too long.
_NAMED = 0.1
_WORST = 10


@dataclass(frozen=True, eq=False)
class GroupTimes:
    """The calls of one group, per step of each of its ranks.

    They say how late the ranks come, how long they wait and transfer.

    ``late_us`` is the mean delay after the first rank, over the ``calls`` in the window; ``behind_us`` the delay beyond
    the median rank, summed over the calls of each step (ranks x steps). ``own_us`` is the own time by step likewise,
    ``own_by_label_us`` that by label of the collective (ranks x labels). ``sent_bytes`` is the payload per step of the
    first rank, NaN where a size is not known.
    """

    arrivals: Arrivals
    calls: Integers
    late_us: Floats
    behind_us: Floats
    own_us: Floats
    own_by_label_us: Floats
    wait_us: Floats
    transfer_us: Floats
    sent_bytes: float


def stretch_of(digests: Sequence[RankDigest]) -> float:
    """Returns the factor from times in traces to those without the profiler.

    Ranks that meet in each step have steps of one length, so it is one factor for all: the median of theirs. Where the
    profiler lengthened some steps more than others, the middle step of each rank is another one.
    """
    return float(np.median([digest.stretch for digest in digests]))


def measure(digests: Sequence[RankDigest], arrivals: Arrivals) -> GroupTimes:
    """Measures one group from the calls in its ranks' windows."""
    counts = np.array([digests[at].steps.count for at in arrivals.members], dtype=np.float64)
    first = digests[arrivals.members[0]]
    size, steps, labels = len(counts), max(1, first.step_start_us.size), len(arrivals.labels)
    stretch = stretch_of(digests)
    calls, late, waits, transfers = np.zeros(size, np.int64), np.zeros(size), np.zeros(size), np.zeros(size)
    behind, own, by_label = np.zeros((size, steps)), np.zeros((size, steps)), np.zeros((size, labels))
    payload, sent = payloads(first.calls.read()), 0.0
    for block in arrivals.blocks():
        inside = block.inside
        wait = block.waits_us
        calls += inside.sum(axis=1)
        sent += float(payload[block.message[0]][inside[0]].sum())
        late += (block.late_us * inside).sum(axis=1)
        waits += (wait * inside).sum(axis=1)
        transfers += ((block.end - block.start - wait) * inside).sum(axis=1)
        spent = block.own_us * inside
        behind += _tally_rows(block.step, (block.start - _median(block.start)) * inside, steps)
        own += _tally_rows(block.step, spent, steps)
        by_label += _tally_rows(block.label, spent, labels)
    return GroupTimes(
        arrivals=arrivals,
        calls=calls,
        late_us=np.divide(late, calls, out=np.zeros(size), where=calls > 0) * stretch,
        behind_us=behind * stretch,
        own_us=own * stretch,
        own_by_label_us=by_label * stretch,
        wait_us=waits / counts * stretch,
        transfer_us=transfers / counts * stretch,
        sent_bytes=sent / float(counts[0]),
    )


def _tally_rows(codes: Codes, amounts: Floats, size: int) -> Floats:
    """Sums of each row of the amounts by the codes of their columns."""
    return np.stack([tally(codes, row, size) for row in amounts])


def _median(values: Floats) -> Floats:
    """The lower median of each column."""
    middle = (values.shape[0] - 1) // 2
    return np.asarray(np.partition(values, middle, axis=0)[middle])


def exposed_us_of(digest: RankDigest) -> float:
    """Exposed communication of a rank."""
    return sum(entry.us for entry in digest.ledger if entry.group == COMMUNICATION)


def summarise_job(
    digests: Sequence[RankDigest],
    numbers: Sequence[int],
    groups: Sequence[Group],
    times: Sequence[GroupTimes],
    left_out: Sequence[LeftOut],
) -> JobSummary:
    """Summarises the ranks of a job.

    ``numbers`` are their rank numbers, ``times`` are of the groups that could be matched.
    """
    job = _Job(digests, numbers, times, _own_without_others(digests, groups, times))
    kinds = [_kind(group, len(digests)) for group in groups]
    hosts = {digest.host for digest in digests}
    links = sorted((link for _, link in job.links), key=lambda link: (link.usual_us - link.transfer_us, link.ranks))
    return JobSummary(
        ranks=len(digests),
        hosts=None if None in hosts else len(hosts),
        left_out=tuple(sorted(left_out, key=lambda one: one.path)),
        slow=job.find_slow()[:_WORST],
        slow_links=tuple(links[:_WORST]),
        groups=_group_uses(digests, groups, kinds, times),
        wait_share=_wait_share(digests, times),
        bubble_share=_bubble_share(
            digests, [group for group, kind in zip(groups, kinds, strict=True) if kind == "pipeline"]
        ),
        clock_skew_us=_clock_skew_us(digests, times),
    )


def _own_without_others(
    digests: Sequence[RankDigest], groups: Sequence[Group], times: Sequence[GroupTimes]
) -> list[Floats]:
    """Gives own times of each rank at collectives of unmatched groups.

    They are by step. Too few ranks of such a group are there to match any call.

    They are part of the rank's step as those before matched calls are: a rank is late by all that it did.
    """
    matched = {(one.arrivals.group, at) for one in times for at in one.arrivals.members}
    steps = max((one.own_us.shape[1] for one in times), default=1)
    own_us = [np.zeros(0) for _ in digests]
    for group in groups:
        # A group of one rank, as that of a host's last one, has all of its members and nobody to match.
        if not group.process_group.name or 1 < group.process_group.size <= len(group.members):
            continue
        for at, code in zip(group.members, group.codes, strict=True):
            if (group.process_group, at) in matched:
                continue
            calls = digests[at].calls.read()
            rows = np.flatnonzero((calls.group == code) & calls.is_inside)
            step = np.searchsorted(digests[at].step_start_us, calls.start_us[rows], side="right") - 1
            us = tally(step.clip(0, steps - 1), own_times(digests[at], calls)[rows], steps) * stretch_of(digests)
            own_us[at] = us if not own_us[at].size else own_us[at] + us
    return own_us


@dataclass(frozen=True)
class Suspect:
    """A rank or host whose own time is far longer than usual.

    It has the positions of its ranks, and how much longer its own time is.
    """

    name: str
    members: tuple[int, ...]
    excess_us: float


class LineDelay(NamedTuple):
    """A source line with its time on a rank.

    It also has the time of the median rank there.
    """

    name: str
    us: float
    usual_us: float


def _line_words(line: LineDelay, account: str | None) -> str:
    kind = "" if account is None else f"{phrase_of(account)} "
    return f"{kind}{format_us(line.us)} per step {at_source(line.name)}, the median rank {format_us(line.usual_us)}"


class _Job:
    """The ranks of a job with their excess over the median rank.

    The excess is in own time, by rank and step.
    """

    def __init__(
        self,
        digests: Sequence[RankDigest],
        numbers: Sequence[int],
        times: Sequence[GroupTimes],
        alone: Sequence[Floats],
    ) -> None:
        self.digests, self.numbers, self.times = digests, numbers, times
        self.wall_us = float(_median(np.array([[digest.steps.wall_us] for digest in digests]))[0])
        self.worth_us = self._worth_us(len(digests))
        self.steps = max((one.own_us.shape[1] for one in times), default=1)
        own_us, self.behind_us = self._by_step("own_us"), self._by_step("behind_us")
        for at, us in enumerate(alone):
            own_us[at, : us.size] += us[: self.steps]
        matched = sorted({at for one in times for at in one.arrivals.members})
        self.longer_us = np.zeros_like(own_us)
        if matched:
            self.longer_us[matched] = own_us[matched] - _median(own_us[matched])
        self.excess_us = self.longer_us.sum(axis=1) / np.array([digest.steps.count for digest in digests])
        self.families = _families(times)
        self.links = self._find_links()

    def _worth_us(self, count: int) -> float:
        """A delay that is worth a name among so many ranks."""
        return (_WORTH if count >= _MANY else _WORTH_FEW) * self.wall_us

    def _by_step(self, name: Literal["own_us", "behind_us"]) -> Floats:
        """One of the amounts of each rank by step, over all of its groups."""
        sums = np.zeros((len(self.digests), self.steps))
        for times in self.times:
            amount = getattr(times, name)
            sums[list(times.arrivals.members), : amount.shape[1]] += amount
        return sums

    def find_slow(self) -> tuple[SlowRank, ...]:
        """Gives slow hosts and ranks, most costly first.

        Several that are late now and then are ranks in turn.
        """
        suspects = self._suspects()
        slow = self._costly(suspects)
        if sum(not one.is_steady for one in slow) > 1:
            steady = {one.name for one in slow if one.is_steady}
            suspects = [suspect for suspect in suspects if suspect.name in steady]
            slow = self._costly(suspects)
        slow += self._wandering({at for suspect in suspects for at in suspect.members})
        return tuple(sorted(slow, key=lambda one: (-one.cost_us, one.ranks)))

    def _costly(self, suspects: Sequence[Suspect]) -> list[SlowRank]:
        """The suspects whose delay costs the job enough to be named."""
        slow = [self._describe(*pair) for pair in zip(suspects, self._delays(suspects), strict=True)]
        return [one for one in slow if one.cost_us >= self.worth_us / 2]

    def _suspects(self) -> list[Suspect]:
        """Gives hosts and ranks with a longer own time.

        All ranks of such a host have one. Such a rank has a longer one than the rest of its host.
        """
        by_host: dict[str, list[int]] = {}
        for at, digest in enumerate(self.digests):
            if digest.host is not None:
                by_host.setdefault(digest.host, []).append(at)
        shared = {host: at for host, at in sorted(by_host.items()) if len(at) > 1}
        usual = {host: float(_median(self.excess_us[at][:, None])[0]) for host, at in shared.items()}
        suspects, rest = [], self.excess_us.copy()
        for (host, members), is_far in zip(
            shared.items(), self._far(np.array([*usual.values()])).tolist(), strict=True
        ):
            if is_far and self.excess_us[members].min() >= _TOGETHER * usual[host]:
                suspects.append(Suspect(f"host {host}", tuple(members), usual[host]))
                rest[members] -= usual[host]
        alone = np.flatnonzero(self._far(rest))
        return suspects + [Suspect(f"rank {self.numbers[at]}", (at,), float(rest[at])) for at in alone.tolist()]

    def _far(self, values: Floats, worth: float = 1.0) -> Flags:
        """Marks values far above the median of all.

        They exceed it also by what is worth a name (times ``worth``).
        """
        if values.size < 2:
            return np.zeros(values.size, dtype=bool)
        middle = float(_median(values[:, None])[0])
        noise = _SIGMAS_PER_MAD * float(np.median(np.abs(values - middle))) if values.size >= _MANY else 0.0
        return np.asarray(values - middle > max(worth * self._worth_us(values.size), _FAR * noise))

    def _delays(self, suspects: Sequence[Suspect]) -> list[tuple[float, str | None]]:
        """Gives for each suspect the delay that it adds to collectives.

        Collectives begin later by so much than they would without it and the other suspects.

        The delay is over all steps, with the kind of collective at which most of it is seen. Ranks that these hold up
        in smaller groups do not count, nor do those behind a slow link.
        """
        delays = np.zeros(len(suspects))
        by_kind: list[dict[str, float]] = [{} for _ in suspects]
        every = {at for suspect in suspects for at in suspect.members}
        for times in self.times:
            place = {at: row for row, at in enumerate(times.arrivals.members)}
            held = self._held(every, len(place))
            healthy = [row for at, row in place.items() if at not in held]
            mine = [[place[at] for at in suspect.members if at in place] for suspect in suspects]
            if not healthy or not any(mine):
                continue
            for block in times.arrivals.blocks():
                others = block.start[healthy].max(axis=0)
                for number, rows in enumerate(mine):
                    if rows:
                        delay = np.maximum(block.start[rows].max(axis=0) - others, 0.0) * block.inside[rows].any(axis=0)
                        delays[number] += delay.sum()
                        sums = tally(block.label, delay, len(times.arrivals.labels))
                        for (kind, _), us in zip(times.arrivals.labels, sums.tolist(), strict=True):
                            by_kind[number][kind] = by_kind[number].get(kind, 0.0) + us
        worst = (max(sums.items(), key=lambda item: (item[1], item[0]), default=("", 0.0)) for sums in by_kind)
        return [(us, kind if most > 0 else None) for us, (kind, most) in zip(delays.tolist(), worst, strict=True)]

    def _held(self, slow: set[int], size: int) -> set[int]:
        """Gives the slow ranks and those that they may hold up.

        The latter share a group smaller than ``size`` with one. Ranks behind a slow link are included.
        """
        held = set(slow)
        for times in self.times:
            if len(times.arrivals.members) < size and slow.intersection(times.arrivals.members):
                held.update(times.arrivals.members)
        for members, _ in self.links:
            if len(members) < size:
                held.update(members)
        return held

    def _describe(self, suspect: Suspect, delay: tuple[float, str | None]) -> SlowRank:
        members, (delay_us, worst) = suspect.members, delay
        first = self.digests[members[0]]
        cost_us = min(delay_us * stretch_of(self.digests) / first.steps.count, self._excess_us(suspect))
        line = self._line(suspect)
        since, is_steady = self._pattern(members)
        behind = [float(self.behind_us[at].sum()) / self.digests[at].steps.count for at in members]
        return SlowRank(
            name=suspect.name,
            ranks=tuple(sorted(self.numbers[at] for at in members)),
            host=self._host(members),
            late_us=max(float(np.mean(behind)), 0.0),
            cost_us=cost_us,
            cost_rank_hours=self._rank_hours(cost_us, len(members)),
            worst_collective=worst,
            since_step=since,
            is_steady=is_steady,
            cause=self._cause(suspect) if line is None else _line_words(line, self._kind_of(suspect, line)),
            line=None if line is None else line.name,
            line_us=None if line is None else line.us,
            usual_line_us=None if line is None else line.usual_us,
        )

    def _rank_hours(self, cost_us: float, own: int) -> float:
        return cost_us / self.wall_us * (len(self.digests) - own) if self.wall_us > 0 else 0.0

    def _host(self, members: Sequence[int]) -> str | None:
        hosts = {self.digests[at].host for at in members}
        return hosts.pop() if len(hosts) == 1 else None

    def _steps(self, member: int) -> Integers:
        """Gives positions of the steps that a rank explains.

        Only steps whose own times are known count.
        """
        steps = self.digests[member].steps
        numbers = [number for number, step in enumerate(steps.each) if step.set_aside is None]
        positions = np.array(numbers or range(steps.count), dtype=np.int64)
        return positions[positions < self.steps]

    def _pattern(self, members: Sequence[int]) -> tuple[int | None, bool]:
        """Gives the first late step, and whether most after it are late.

        The step is null where it is the first of all, or where most are not late.

        A step is late when its own time is longer by half of what is usual in the late ones, and worth a name. Fewer
        than three late steps at the end of a recording could be chance.
        """
        steps = self._steps(members[0])
        delay = self.longer_us[list(members)].mean(axis=0)[steps]
        usual = delay[delay >= self.worth_us / 2]
        if not usual.size:
            return None, False
        late = delay >= max(self.worth_us / 2, float(np.median(usual)) / 2)
        first = int(np.argmax(late))
        is_steady = bool(
            late[first:].mean() >= _MOST_STEPS and late.sum() >= min(_STEADY_STEPS, _MOST_STEPS * late.size)
        )
        return (int(steps[first]) if is_steady and first > 0 else None), is_steady

    def _excess_us(self, suspect: Suspect) -> float:
        """Gives the suspect's excess time in us per step.

        Of a step timed without the profiler, it is no more than the suspect's ledger says.

        A profiler takes longer where there are more calls, which the times of collectives do not tell.
        """
        if self.digests[suspect.members[0]].steps.unprofiled_us is None:
            return suspect.excess_us
        _, usual, own = self._by_account(suspect)
        return min(suspect.excess_us, float(np.maximum(own - usual, 0.0).sum()))

    def _by_account(self, suspect: Suspect) -> tuple[list[str], Floats, Floats]:
        """Gives the accounts, the median rank's time in each, and the suspect's.

        Accounts of collectives are left out.
        """
        ledgers = [
            {entry.account: entry.us for entry in one.ledger if entry.group != COMMUNICATION} for one in self.digests
        ]
        names = sorted({name for ledger in ledgers for name in ledger})
        spent = np.array([[ledger.get(name, 0.0) for name in names] for ledger in ledgers])
        return names, _median(spent), spent[list(suspect.members)].mean(axis=0)

    def _line(self, suspect: Suspect) -> "LineDelay | None":
        """Gives the source line with most of the suspect's delay.

        Null where the suspect is slow everywhere, or nowhere.

        Work that takes longer on it by one factor is longer at every line.
        """
        members = list(suspect.members)
        names = sorted({name for at in members for name in self.digests[at].lines})
        if not names:
            return None
        spent = np.array([[digest.lines.get(name, 0.0) for name in names] for digest in self.digests])
        usual, own = _median(spent), spent[members].mean(axis=0)
        more = np.maximum(own - usual, 0.0)
        at = int(np.argmax(more))
        if more[at] < _ONE_PART * self._excess_us(suspect):
            return None
        if self._factor(members) is not None and more[at] < _ONE_ACCOUNT * float(more.sum()):
            return None
        return LineDelay(names[at], float(own[at]), float(usual[at]))

    def _kind_of(self, suspect: Suspect, line: LineDelay) -> str | None:
        """Gives the account with at least half of a line's delay.

        Python is left out. Null where no account has so much.
        """
        names, usual, own = self._by_account(suspect)
        more = own - usual
        at = int(np.argmax(more)) if names else -1
        is_it = at >= 0 and names[at] != _PYTHON and more[at] >= (line.us - line.usual_us) / 2
        return names[at] if is_it else None

    def _cause(self, suspect: Suspect) -> str:
        """Gives the cause of a suspect's delay, in words.

        It is the factor by which all of its own times are longer, else the accounts in which it differs most.

        An account that is longer by little beside what the suspect takes too long is no cause of it.
        """
        names, usual, own = self._by_account(suspect)
        more = np.maximum(own - usual, 0.0)
        order = np.argsort(-more, kind="stable")[:2].tolist()
        largest_us = float(more[order[0]]) if order else 0.0
        factor = self._factor(list(suspect.members))
        if factor is not None and largest_us < _ONE_ACCOUNT * float(more.sum()):
            return f"its own work takes {factor:.2f} times as long as the median rank's"
        parts = [
            f"{phrase_of(names[at])} {format_us(float(own[at]))} per step, "
            f"the median rank {format_us(float(usual[at]))}"
            for at in order
            if more[at] >= max(_ONE_PART * largest_us, _NAMED * self._excess_us(suspect)) > 0
        ]
        return "; ".join(parts) or "no account of its ledger is longer by as much"

    def _factor(self, members: list[int]) -> float | None:
        """Gives the factor by which own times exceed the median's.

        Null unless one factor explains most of the excess.
        """
        columns: dict[object, Floats] = {}
        for number, family in enumerate(self.families):
            for times in family:
                for label, us in zip(times.arrivals.labels, times.own_by_label_us.T, strict=True):
                    column = columns.setdefault((number, label), np.zeros(len(self.digests)))
                    column[list(times.arrivals.members)] += us
        if len(columns) < 2:
            return None
        own = np.stack(list(columns.values()), axis=1)
        usual = _median(own)
        longer = own[members].mean(axis=0) - usual
        both = float(longer @ usual)
        is_constant = both > 0 and both**2 >= _CONSTANT * float(usual @ usual) * float(longer @ longer)
        return 1.0 + both / float(usual @ usual) if is_constant else None

    def _wandering(self, known: set[int]) -> list[SlowRank]:
        """Gives ranks that are late in some steps each.

        The job then waits for another one from step to step.
        """
        count, steps = len(self.digests), self._steps(0)
        free = [at for at in range(count) if at not in known]
        if len(free) < 2 or not steps.size:
            return []
        longer = np.minimum(self.longer_us, self.behind_us)[free][:, steps]
        noise = _SIGMAS_PER_MAD * np.median(np.abs(longer - np.median(longer, axis=0)), axis=0)
        worst, worst_us = longer.argmax(axis=0), longer.max(axis=0)
        late = worst_us > np.maximum(_WORTH_FEW * self.wall_us, _FAR * noise if count >= _MANY else 0.0)
        cost_us = float(np.where(late, worst_us - np.sort(longer, axis=0)[-2], 0.0).mean())
        if cost_us < self.worth_us:
            return []
        members = [free[row] for row in np.unique(worst[late]).tolist()]
        ranks = sorted({self.numbers[at] for at in members})
        alone = len(ranks) == 1
        cause = f"late in {int(late.sum())} of {counted(late.size, 'step')}"
        in_turn = SlowRank(
            name=f"rank {ranks[0]}" if alone else "other ranks in turn",
            ranks=tuple(ranks),
            host=self._host(members) if alone else None,
            late_us=float(np.where(late, worst_us, 0.0).mean()),
            cost_us=cost_us,
            cost_rank_hours=self._rank_hours(cost_us, 1),
            worst_collective=None,
            since_step=None,
            is_steady=False,
            cause=cause if alone else f"{cause}, another rank each time: its data, or a resource that they share",
        )
        return [in_turn]

    def _find_links(self) -> list[tuple[tuple[int, ...], SlowLink]]:
        """Finds groups with far slower transfers than the groups beside them.

        Each comes with the positions of its ranks.

        Transfers vary less than work does: half of what a rank must be late is enough.
        """
        links = []
        for family in self.families:
            if len(family) < _LEAST_GROUPS:
                continue
            spent = np.array([float(np.median(times.transfer_us)) for times in family])
            sent = np.array([times.sent_bytes for times in family])
            usual, usual_bytes = _median(np.stack((spent, sent), axis=1)).tolist()
            equal = ~(np.abs(sent - usual_bytes) > _EQUAL_BYTES * usual_bytes)
            slow = equal & self._far(spent, 0.5) & (spent > _SLOW_LINK * usual)
            for at in np.flatnonzero(slow).tolist():
                arrivals, transfer_us = family[at].arrivals, float(spent[at])
                link = SlowLink(
                    name=arrivals.group.description or f"group {arrivals.group.name}",
                    ranks=tuple(sorted(self.numbers[member] for member in arrivals.members)),
                    host=self._host(arrivals.members),
                    transfer_us=transfer_us,
                    usual_us=usual,
                    groups=len(family),
                    cost_rank_hours=self._rank_hours(transfer_us - usual, 0),
                )
                links.append((arrivals.members, link))
        return links


def _families(several: Sequence[GroupTimes]) -> list[list[GroupTimes]]:
    """Groups side by side: of equal description, size and kinds of collectives."""
    alike: dict[object, list[GroupTimes]] = {}
    for times in several:
        arrivals = times.arrivals
        kinds = tuple(kind for kind, _ in arrivals.labels)
        # Ranks without a trace are of the group all the same.
        size = max(arrivals.group.size, len(arrivals.members))
        alike.setdefault((_described(arrivals.group), size, kinds), []).append(times)
    return list(alike.values())


def _wait_share(digests: Sequence[RankDigest], several: Sequence[GroupTimes]) -> float | None:
    """Gives the part of the step that ranks wait in collectives.

    It is at most what the ledger has of exposed communication.
    """
    if not several:
        return None
    waits = np.zeros(len(digests))
    for times in several:
        waits[list(times.arrivals.members)] += times.wait_us
    shares = [
        min(wait_us, exposed_us_of(digest)) / digest.steps.wall_us
        for wait_us, digest in zip(waits.tolist(), digests, strict=True)
        if digest.steps.wall_us > 0
    ]
    return max(float(np.mean(shares)), 0.0) if shares else None


def _bubble_share(digests: Sequence[RankDigest], pipelines: Sequence[Group]) -> float | None:
    """Gives the part of the step that pipeline stages wait.

    They wait in sends and receives. The part is averaged over their ranks.

    Time in them when nothing else runs (at most the exposed communication of the ledger), less that of the quickest
    call of each size for all calls, which is the transfer.
    """
    shares = []
    for group in pipelines:
        quickest = quickest_calls(digests[at].calls.read() for at in group.members)
        for at, code in zip(group.members, group.codes, strict=True):
            digest, own = digests[at], digests[at].calls.read()
            is_sent = np.array([message.name == SEND_RECV for message in own.messages] or [False])
            rows = np.flatnonzero((own.group == code) & own.is_inside)
            rows = rows[is_sent[own.message[rows]]]
            open_us = union(own.start_us[rows], own.end_us[rows]).total() / digest.steps.count
            least = np.array([quickest[message].us for message in own.messages])
            moved_us = float(least[own.message[rows]].sum()) / digest.steps.count if rows.size else 0.0
            exposed_us, wall_us = min(open_us, exposed_us_of(digest)), digest.steps.wall_us
            shares.append(max(exposed_us - moved_us, 0.0) / wall_us if wall_us > 0 else 0.0)
    return float(np.mean(shares)) if shares else None


def _group_uses(
    digests: Sequence[RankDigest], groups: Sequence[Group], kinds: Sequence[str | None], times: Sequence[GroupTimes]
) -> tuple[GroupUse, ...]:
    """Gives time in the collectives of each group, most first.

    Groups side by side count as one.
    """
    matched = {item.arrivals.group: item for item in times}
    alike: dict[object, tuple[str | None, list[Group]]] = {}
    for group, kind in zip(groups, kinds, strict=True):
        key = (_described(group.process_group), len(group.members), kind, group.usages[0].kinds)
        alike.setdefault(key, (kind, []))[1].append(group)
    uses = [_use(digests, *item, matched) for item in alike.values()]
    return tuple(sorted(uses, key=lambda use: (-use.us, use.name, use.size)))


def _use(
    digests: Sequence[RankDigest],
    kind: str | None,
    groups: Sequence[Group],
    matched: Mapping[ProcessGroup, GroupTimes],
) -> GroupUse:
    first, several = groups[0].process_group, len(groups) > 1
    # Calls, time and bytes of all-to-alls per step, of each rank of each group.
    used = [
        np.array([(usage.calls, usage.us, usage.all_to_all_bytes) for usage in group.usages])
        / np.array([[digests[at].steps.count] for at in group.members])
        for group in groups
    ]
    calls, us, _ = np.concatenate(used).T
    measured = [matched[group.process_group] for group in groups if group.process_group in matched]
    transfer_us, wait_us = (
        float(np.concatenate([getattr(times, name) for times in measured]).mean()) if measured else None
        for name in ("transfer_us", "wait_us")
    )
    sent = [amounts[:, 2] for amounts in used if kind == "expert" and amounts[:, 2].mean() > 0]
    unnamed = "not named" if several else f"group {first.name}"
    return GroupUse(
        name=_described(first) or ("all ranks" if len(groups[0].members) == len(digests) else unnamed),
        kind=kind,
        size=first.size,
        groups=len(groups),
        calls=float(calls.mean()),
        us=float(us.mean()),
        transfer_us=transfer_us,
        wait_us=wait_us,
        imbalance=max((float(amounts.max() / amounts.mean()) for amounts in sent), default=None),
    )


def _clock_skew_us(digests: Sequence[RankDigest], times: Sequence[GroupTimes]) -> float | None:
    """Gives the largest difference between the clocks of two hosts.

    It follows from the ends of the collectives that they share.
    """
    by_host: dict[str, list[float]] = {}
    for digest, clock_us in zip(digests, clock_offsets(digests, times), strict=True):
        if digest.host is not None and clock_us is not None and digest.start_unix_ns is not None:
            by_host.setdefault(digest.host, []).append(clock_us)
    hosts = [float(np.median(offsets)) for offsets in by_host.values()]
    return float(np.ptp(hosts)) if len(hosts) > 1 else None


def clock_offsets(digests: Sequence[RankDigest], times: Sequence[GroupTimes]) -> list[float | None]:
    """Gives how far each rank's wall clock is ahead.

    It is ahead of the first rank's. Null where no chain of groups leads to it.
    """
    clocks: list[float | None] = [None] * len(digests)
    waiting = [one.arrivals for one in times]
    if waiting:
        clocks[waiting[0].members[0]] = 0.0
    while waiting:
        ready = next((arrivals for arrivals in waiting if any(clocks[at] is not None for at in arrivals.members)), None)
        if ready is None:
            break
        waiting.remove(ready)
        own = dict(zip(ready.members, ready.clock_us.tolist(), strict=True))
        origin = float(np.median([clock - own[at] for at in own if (clock := clocks[at]) is not None]))
        for at, clock_us in own.items():
            clocks[at] = origin + clock_us if clocks[at] is None else clocks[at]
    return clocks


def _described(group: ProcessGroup) -> str:
    """The program's name for a group; empty for names that torch gives by itself."""
    return "" if group.description in {"default_pg", "undefined"} else group.description


# Words of descriptions, such as mesh_tp or DATA_PARALLEL_GROUP, in the order in which they win.
_WORDS: Mapping[str, frozenset[str]] = {
    "pipeline": frozenset({"pp", "pipe", "pipeline"}),
    "tensor": frozenset({"tp", "tensor", "sp"}),
    "data": frozenset({"dp", "ddp", "fsdp", "hsdp", "data", "shard", "replicate"}),
    "expert": frozenset({"ep", "expert", "moe"}),
}
_GRADIENTS = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier"})


def _kind(group: Group, ranks: int) -> str | None:
    """Gives the kind of parallelism that a group serves.

    Its description tells it, else its calls. Null where neither does.

    Sends and receives alone are of a pipeline, all-to-alls alone of experts (or of tables spread over ranks).
    Reductions of several sizes among all ranks are of gradients: those of a tensor parallel model have one size.
    """
    words = set(re.split(r"[^a-z]+", group.process_group.description.lower()))
    by_words = next((kind for kind, names in _WORDS.items() if names & words), None)
    if by_words is not None:
        return by_words
    first = group.usages[0]
    names = first.kinds - {"barrier"}
    if names in ({SEND_RECV}, {"all_to_all"}):
        return "pipeline" if SEND_RECV in names else "expert"
    return "data" if len(group.members) == ranks and names <= _GRADIENTS and first.has_sizes else None
