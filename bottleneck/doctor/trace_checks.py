"""Checks traces for the check-up.

Each is checked by the list of its analysis, and the ranks of one job together.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bottleneck.analysis.fitness import FULL_REPORT, check_trace
from bottleneck.errors import TraceError
from bottleneck.pipeline import examine, finish
from bottleneck.schema.checks import Check, Checkup, Verdict, at_fault
from bottleneck.schema.linked_trace import Linked
from bottleneck.schema.sources import TraceSource, find_traces
from bottleneck.units import counted, format_us

_JOB_GROUP = "together"
_RANKS = partial(Check, "ranks-together", _JOB_GROUP, "ranks", decides=True)
_STEPS = partial(Check, "steps-together", _JOB_GROUP, "steps", decides=True)
_TIME = partial(Check, "time-together", _JOB_GROUP, "time", decides=True)
_MOST_NAMED = 8


@dataclass(frozen=True)
class Member:
    """One trace of the job.

    Its rank, ranks in all, steps, and when it ran in ns since 1970 (null: unknown).
    """

    rank: int | None
    world_size: int | None
    steps: int
    start_ns: float | None
    end_ns: float | None


def member(linked: Linked) -> Member:
    """Rank, number of ranks, steps and time that a trace states."""
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
    """True if several of the traces state a rank."""
    return sum(one.rank is not None and (one.world_size or 2) > 1 for one in members) > 1


def check_together(members: Sequence[Member]) -> list[Check]:
    """Rows about all of them at once."""
    return [_job_ranks(members), _job_steps(members), _time(members)]


def _job_ranks(members: Sequence[Member]) -> Check:
    seen = Counter(one.rank for one in members if one.rank is not None)
    worlds = {one.world_size for one in members if one.world_size is not None}
    twice = sorted(rank for rank, count in seen.items() if count > 1)
    if len(worlds) > 1:
        fact = f"they name jobs of different sizes: {_named(sorted(worlds))} ranks"
        return _RANKS("limited", fact, "traces of different jobs say nothing of one another", "pass those of one job")
    if twice:
        fact = f"there more than once: {_named(twice)}"
        return _RANKS("limited", fact, "two runs may be mixed", "pass one trace for each rank")
    total = worlds.pop() if worlds else None
    if total is None:
        return _RANKS("unknown", f"{counted(len(seen), 'rank')}; their number in all is not recorded")
    # A file may claim any size: what is missing is counted, and only the first few are listed.
    missing = [rank for rank in range(min(total, len(seen) + _MOST_NAMED + 1)) if rank not in seen]
    if len(seen) < total:
        fact = f"{len(seen)} of {total}; missing: {_named(missing)}"
        return _RANKS("limited", fact, "a rank that all wait for may be among them", "pass the traces of all ranks")
    return _RANKS("ok", f"all {total} are there, each once")


def _named(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:_MOST_NAMED])) + (" …" if len(numbers) > _MOST_NAMED else "")


def _job_steps(members: Sequence[Member]) -> Check:
    counts = sorted({one.steps for one in members})
    if len(counts) == 1:
        return _STEPS("ok", f"{counts[0]} in each")
    why = "steps of different ranks are compared by their place"
    return _STEPS("limited", f"between {counts[0]} and {counts[-1]}", why, "record the same steps on all ranks")


def _time(members: Sequence[Member]) -> Check:
    spans = [(one.start_ns, one.end_ns) for one in members if one.start_ns is not None and one.end_ns is not None]
    if len(spans) < len(members):
        fact = f"{len(members) - len(spans)} of {len(members)} do not say when they were recorded"
        return _TIME("unknown", fact, "only the order of collectives shows which rank waits for which")
    apart_ns = max(start for start, _ in spans) - min(end for _, end in spans)
    if apart_ns > 0:
        fact = f"the last begins {format_us(apart_ns / 1e3)} after the first has ended"
        return _TIME("limited", fact, "they were not recorded at the same time", "record all ranks in one run")
    return _TIME("ok", f"all run at once for {format_us(-apart_ns / 1e3)}")


def examine_traces(paths: Sequence[Path]) -> list[Checkup]:
    """One check-up per trace, and one of all ranks of a job together.

    What is no trace has one too, unless it is all there is: then TraceError is raised.
    """
    examined = [_examine(source) for path in paths for source in _sources(path)]
    errors = [result for _, result in examined if isinstance(result, TraceError)]
    if errors and len(examined) == 1:
        raise errors[0]
    members = [result for _, result in examined if isinstance(result, Member)]
    return [*(checkup for checkup, _ in examined), *([_together(members)] if is_a_job(members) else [])]


def _sources(path: Path) -> Sequence[TraceSource | tuple[Path, TraceError]]:
    """Lists the traces of a path.

    It is the path with the error where there is none that could be read.
    """
    try:
        return find_traces(path)
    except TraceError as error:
        return [(path, error)]


def _examine(source: TraceSource | tuple[Path, TraceError]) -> tuple[Checkup, Member | TraceError]:
    """Checks a trace.

    The second result is its place among others, or why it could not be read.
    """
    if isinstance(source, tuple):
        return _unreadable(*source), source[1]
    try:
        explained = finish(examine(source))
    except TraceError as error:
        return _unreadable(source.trace, error), error
    linked, analysis = explained.linked, explained.analysis
    checks = check_trace(linked, analysis)
    faults = at_fault(checks)
    lacks = [check for check in checks if check.group == FULL_REPORT and check.status in {"limited", "missing"}]
    checkup = Checkup(
        kind="trace",
        subject=str(source.trace),
        verdict="damaged" if faults else "sound",
        sentence=_sentence(faults, [check for check in lacks if check.slug != "verdict"]),
        checks=checks,
    )
    return checkup, member(linked)


def _together(members: Sequence[Member]) -> Checkup:
    checks = tuple(check_together(members))
    faults = at_fault(checks)
    sentence = f"As one job they are not whole: {_titles(faults)}." if faults else "They make one job."
    verdict: Verdict = "damaged" if faults else "sound"
    return Checkup("trace", f"all {len(members)} traces together", verdict, sentence, checks)


def _sentence(faults: Sequence[Check], lacks: Sequence[Check]) -> str:
    head = f"Usable, but not whole: {_titles(faults)}." if faults else "The trace is whole."
    return f"{head} For a full report it lacks {_titles(lacks)}." if lacks else f"{head} It has all for a full report."


def _titles(checks: Sequence[Check]) -> str:
    *first, last = [check.title for check in checks]
    return f"{', '.join(first)} and {last}" if first else last


def _unreadable(path: Path, error: TraceError) -> Checkup:
    check = Check("readable", "the file", "readable", "missing", error.what, error.why, error.fix, decides=True)
    return Checkup("trace", str(path), "unreadable", "There is nothing to explain.", (check,))
