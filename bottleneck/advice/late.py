"""Finds the rank that the others wait for: how long per step, and what it does longer than they do."""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bottleneck.advice.draft import Draft
from bottleneck.advice.measures import format_count, idle_lines, idle_rows, share_of_step
from bottleneck.case import Case
from bottleneck.records import Interval, LedgerEntry, RankSummary
from bottleneck.units import format_share, format_us

COMMUNICATION = "communication"

# Lateness worth a word (advice_rules 49), and the part of it that an account must hold to be named.
_LATE, _TELLING = 0.1, 0.1

# Accounts in which one rank may spend longer than the others, in words that follow 'in'.
_WORDS: Mapping[str, str] = {
    "overhead.python": "Python code",
    "overhead.input": "waiting for data",
    "overhead.dispatch": "framework work around the ops",
    "overhead.gc": "garbage collection",
    "overhead.allocator": "allocating memory",
    "overhead.sync": "waiting for the device",
    "overhead.launch": "launching",
    "overhead.launch_floor": "tiny kernels",
    "memory.copy": "copies",
    "unknown": "work without a price",
}


@dataclass(frozen=True)
class _Late:
    """The rank that the others wait for, how long per step, and what takes it longer than them, longest first.

    ``waited_us`` counts by when the ranks come to their collectives, from half of by how much longer the others are in
    them.
    """

    rank: RankSummary
    waited_us: Interval
    longer: tuple[tuple[str, float], ...]


def late_rank(case: Case) -> Draft | None:
    """Rule 49: the others wait in their collectives for one rank; the step can lose no more than they wait."""
    calls = math.fsum(one.calls for one in case.analysis.collectives)
    late = _find_late(case.analysis.ranks, calls)
    if late is None or share_of_step(case, late.waited_us.high) < _LATE:
        return None
    number, waited_us = late.rank.rank, late.waited_us.high
    return Draft(
        slug="late-rank",
        title=f"All ranks wait for rank {number}",
        evidence=(
            f"the other ranks wait {format_us(waited_us)} per step in collectives for rank {number} "
            f"({format_share(share_of_step(case, waited_us))})",
            f"it comes {format_us(late.rank.skew_us or 0.0)} after the first to each of {format_count(calls)} per step",
            *(
                f"it spends {format_us(us)} more in {_WORDS.get(name, name)}"
                for name, us in late.longer[:2]
                if us >= _TELLING * waited_us
            ),
            *(_lines(case, late) if late.rank.wall_us == case.step_us else ()),
        ),
        advice=f"Find what rank {number} does longer than the others: its input, its share of the data, its machine.",
        code=f"bottleneck report {shlex.quote(late.rank.path)}",
        gain_us=late.waited_us,
        claims=_claims(late),
    )


def _claims(late: _Late) -> dict[str, float]:
    """What of its own time the rank is late by: what takes it longer than the others, then its largest accounts."""
    own = {name: us for name, us in _by_account(late.rank.ledger).items() if name != COMMUNICATION}
    first = dict(late.longer)
    claims: dict[str, float] = {}
    for name in (*first, *sorted(own, key=lambda each: -own[each])):
        open_us = late.waited_us.high - math.fsum(claims.values())
        claims[name] = claims.get(name, 0.0) + min(first.pop(name, own[name] - claims.get(name, 0.0)), open_us)
    return {name: us for name, us in claims.items() if us > 0}


def _lines(case: Case, late: _Late) -> tuple[str, ...]:
    """Where it spends the longest part of that, if it is a wait whose line is known."""
    cause = late.longer[0][0].removeprefix("overhead.") if late.longer else ""
    return idle_lines(case, cause, most=1) if any(row.source for row in idle_rows(case, cause)[:1]) else ()


def _find_late(ranks: Sequence[RankSummary], calls: float) -> _Late | None:
    """The rank that comes last on average to so many collectives per step; null where none could be matched.

    Ranks that are late in turns wait for one another: only what one is late beyond the others counts.
    """
    known = [rank for rank in ranks if rank.skew_us is not None]
    if len(known) < 2 or len(known) < len(ranks):
        return None
    late = max(known, key=lambda rank: rank.skew_us or 0.0)
    own = _by_account(late.ledger)
    others = [rank for rank in known if rank is not late]
    ledgers = [_by_account(rank.ledger) for rank in others]
    names = dict.fromkeys([*own, *(name for ledger in ledgers for name in ledger)])
    usual = {name: float(np.mean([ledger.get(name, 0.0) for ledger in ledgers])) for name in names}
    beyond_us = (late.skew_us or 0.0) - float(np.mean([rank.skew_us or 0.0 for rank in others]))
    waits_us = usual.get(COMMUNICATION, 0.0)
    high_us = max(0.0, min(beyond_us * calls, waits_us, late.wall_us - own.get(COMMUNICATION, 0.0)))
    low_us = min(high_us, max(0.0, waits_us - own.get(COMMUNICATION, 0.0))) / 2
    longer = {name: own.get(name, 0.0) - usual[name] for name in names if name != COMMUNICATION}
    ranked = sorted(((name, us) for name, us in longer.items() if us > 0), key=lambda item: -item[1])
    return _Late(late, Interval(low_us, high_us), tuple(ranked))


def _by_account(ledger: Sequence[LedgerEntry]) -> dict[str, float]:
    return {entry.account: entry.us for entry in ledger}
