"""Lists how fit the traces of one job are to be compared.

The rows are the caveats of its ranks, which a report states too, and what is in order. `bottleneck doctor` shows them.
"""

from collections.abc import Mapping, Sequence

from bottleneck.analysis.rank_numbers import number_ranks
from bottleneck.analysis.ranks import common_us, reduce_ranks
from bottleneck.schema.analysis import Caveat
from bottleneck.schema.checks import Check, Status
from bottleneck.schema.digest import RankDigest, StepSharing
from bottleneck.units import counted, format_us

_GROUP = "together"
_ALL_RANKS = "pass the traces of all ranks"
_ONE_RUN = "record all ranks in one run"
# Title of a caveat's row, what follows from it, and what would help.
JOB_SUBJECTS: Mapping[str, tuple[str, str, str]] = {
    "different-jobs": ("ranks", "traces of different jobs say nothing of one another", "pass those of one job"),
    "repeated-ranks": ("ranks", "two runs may be mixed", "pass one trace for each rank"),
    "missing-ranks": ("ranks", "a rank that all wait for may be among them", _ALL_RANKS),
    "left-out-ranks": ("ranks", "a rank that all wait for may be among them", "pass traces that can be read"),
    "unnumbered-ranks": ("ranks", "no rank can be named", "start the profiler after init_process_group()"),
    "other-steps": ("steps", "the ranks are not compared over the same work", "record the same steps on all ranks"),
    "unmatched-ranks": ("collectives", "nobody can be called late", _ONE_RUN),
    "rank-clocks": ("clocks", "times of different ranks are compared by their collectives", "synchronise the clocks"),
    "apart-in-time": ("time", "they say nothing of who waits for whom", _ONE_RUN),
}
_DECIDE = frozenset(JOB_SUBJECTS) - {"rank-clocks", "unmatched-ranks"}


def is_a_job(digests: Sequence[RankDigest]) -> bool:
    """True if several of the traces state a rank."""
    return sum(one.rank is not None and (one.world_size or 2) > 1 for one in digests) > 1


def check_job(digests: Sequence[RankDigest], named: Sequence[int | None], sharing: StepSharing) -> tuple[Check, ...]:
    """Gives the rows on the traces of a job, in their order.

    ``named`` are the ranks that recordings or names of files tell, ``sharing`` whether all explain the same steps.
    """
    numbered = number_ranks(digests, named)
    reduced = reduce_ranks(numbered.digests, numbered.left_out, sharing)
    rows = [_row_of(caveat) for caveat in reduced.caveats]
    stated = {row.title for row in rows}
    return (*rows, *(row for row in _fine(numbered.digests) if row.title not in stated))


def _row_of(caveat: Caveat) -> Check:
    title, why, remedy = JOB_SUBJECTS.get(caveat.slug, (caveat.slug.replace("-", " "), "", ""))
    decides = caveat.slug in _DECIDE
    return Check(caveat.slug, _GROUP, title, "limited", caveat.message, why, remedy, decides=decides)


def _fine(digests: Sequence[RankDigest]) -> tuple[Check, ...]:
    total = next((one.world_size for one in digests if one.world_size is not None), None)
    counts = sorted({one.step_start_us.size for one in digests})
    steps = f"{counts[0]} in each" if len(counts) == 1 else f"between {counts[0]} and {counts[-1]}"
    shared_us = common_us(digests)
    return (
        _row("ranks", "ok", f"all {total} are there, each once")
        if total is not None
        else _row("ranks", "unknown", f"{counted(len(digests), 'rank')}; of how many is not recorded"),
        _row("steps", "ok", steps),
        _row("time", "ok", f"all run at once for {format_us(shared_us)}")
        if shared_us is not None
        else _row("time", "unknown", "not all say when they were recorded"),
    )


def _row(title: str, status: Status, fact: str) -> Check:
    return Check(f"job-{title}", _GROUP, title, status, fact)
