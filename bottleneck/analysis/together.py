"""Whether the traces of several ranks make one job: none missing, none twice, the same steps at the same time."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from bottleneck.checks import Check
from bottleneck.tracing import Linked
from bottleneck.units import format_us

_GROUP = "together"
_RANKS = partial(Check, "ranks-together", _GROUP, "ranks", decides=True)
_STEPS = partial(Check, "steps-together", _GROUP, "steps", decides=True)
_TIME = partial(Check, "time-together", _GROUP, "time", decides=True)
_MOST_NAMED = 8


@dataclass(frozen=True)
class Member:
    """One trace of the job: rank, ranks in all, steps, and when it ran in ns since 1970 (null: not told)."""

    rank: int | None
    world_size: int | None
    steps: int
    start_ns: float | None
    end_ns: float | None


def member(linked: Linked) -> Member:
    """What a trace says of its place in a job."""
    trace, window = linked.trace, linked.window
    zero_ns = trace.start_unix_ns
    return Member(
        rank=trace.rank,
        world_size=trace.world_size,
        steps=len(window.steps) + len(window.set_aside),
        start_ns=None if zero_ns is None else zero_ns + 1e3 * window.start_us,
        end_ns=None if zero_ns is None else zero_ns + 1e3 * window.end_us,
    )


def is_a_job(members: Sequence[Member]) -> bool:
    """Whether several of the traces say that they are ranks."""
    return sum(each.rank is not None and (each.world_size or 2) > 1 for each in members) > 1


def check_together(members: Sequence[Member]) -> list[Check]:
    """Rows about all of them at once."""
    return [_ranks(members), _steps(members), _time(members)]


def _ranks(members: Sequence[Member]) -> Check:
    seen = Counter(each.rank for each in members if each.rank is not None)
    worlds = {each.world_size for each in members if each.world_size is not None}
    twice = sorted(rank for rank, count in seen.items() if count > 1)
    if len(worlds) > 1:
        fact = f"they name jobs of different sizes: {_named(sorted(worlds))} ranks"
        return _RANKS("limited", fact, "traces of different jobs say nothing of one another", "pass those of one job")
    if twice:
        fact = f"there more than once: {_named(twice)}"
        return _RANKS("limited", fact, "two runs may be mixed", "pass one trace for each rank")
    total = worlds.pop() if worlds else None
    if total is None:
        return _RANKS("unknown", f"{len(seen)} ranks; of how many is not told")
    # A file may claim any size: what is missing is counted, and only the first few are listed.
    missing = [rank for rank in range(min(total, len(seen) + _MOST_NAMED + 1)) if rank not in seen]
    if len(seen) < total:
        fact = f"{len(seen)} of {total}; missing: {_named(missing)}"
        return _RANKS("limited", fact, "a rank that all wait for may be among them", "pass the traces of all ranks")
    return _RANKS("ok", f"all {total} are there, each once")


def _named(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:_MOST_NAMED])) + (" …" if len(numbers) > _MOST_NAMED else "")


def _steps(members: Sequence[Member]) -> Check:
    counts = sorted({each.steps for each in members})
    if len(counts) == 1:
        return _STEPS("ok", f"{counts[0]} in each")
    why = "steps of different ranks are compared by their place"
    return _STEPS("limited", f"between {counts[0]} and {counts[-1]}", why, "record the same steps on all ranks")


def _time(members: Sequence[Member]) -> Check:
    spans = [(each.start_ns, each.end_ns) for each in members if each.start_ns is not None and each.end_ns is not None]
    if len(spans) < len(members):
        fact = f"{len(members) - len(spans)} of {len(members)} do not say when they were recorded"
        return _TIME("unknown", fact, "who waits for whom is told by the order of collectives alone")
    apart_ns = max(start for start, _ in spans) - min(end for _, end in spans)
    if apart_ns > 0:
        fact = f"the last begins {format_us(apart_ns / 1e3)} after the first has ended"
        return _TIME("limited", fact, "they were not recorded at the same time", "record all ranks in one run")
    return _TIME("ok", f"all run at once for {format_us(-apart_ns / 1e3)}")
