"""Checks traces for the check-up.

Each is checked by the list of its analysis, and the ranks of one job together by that of the job.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bottleneck.analysis.fitness import FULL_REPORT, check_trace
from bottleneck.analysis.job_fitness import check_job, is_a_job
from bottleneck.analysis.ranks import digest_rank
from bottleneck.errors import TraceError
from bottleneck.pipeline import examine, finish
from bottleneck.schema.checks import Check, Checkup, Verdict, at_fault
from bottleneck.schema.digest import RankDigest
from bottleneck.schema.sources import TraceSource, find_traces
from bottleneck.trace.common_steps import share_steps


class _Rank(NamedTuple):
    """A trace to compare, and the rank that file names tell."""

    digest: RankDigest
    named: int | None


def examine_traces(paths: Sequence[Path]) -> list[Checkup]:
    """One check-up per trace, and one of all ranks of a job together.

    What is no trace has one too, unless it is all there is: then TraceError is raised.
    """
    examined = [_examine(source) for path in paths for source in _sources(path)]
    errors = [result for _, result in examined if isinstance(result, TraceError)]
    if errors and len(examined) == 1:
        raise errors[0]
    ranks = [result for _, result in examined if isinstance(result, _Rank)]
    together = [_together(ranks)] if is_a_job([one.digest for one in ranks]) else []
    return [*(checkup for checkup, _ in examined), *together]


def _sources(path: Path) -> Sequence[TraceSource | tuple[Path, TraceError]]:
    """Lists the traces of a path.

    It is the path with the error where there is none that could be read.
    """
    try:
        return find_traces(path)
    except TraceError as error:
        return [(path, error)]


def _examine(source: TraceSource | tuple[Path, TraceError]) -> tuple[Checkup, _Rank | TraceError]:
    """Checks a trace.

    The second result is what it is compared by, or why it could not be read.
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
    return checkup, _Rank(digest_rank(explained, source.host, source.first_step), source.rank)


def _together(ranks: Sequence[_Rank]) -> Checkup:
    digests = [one.digest for one in ranks]
    checks = check_job(digests, [one.named for one in ranks], share_steps(digests).sharing)
    faults = at_fault(checks)
    sentence = f"As one job they are not whole: {_titles(faults)}." if faults else "They make one job."
    verdict: Verdict = "damaged" if faults else "sound"
    return Checkup("trace", f"all {len(ranks)} traces together", verdict, sentence, checks)


def _sentence(faults: Sequence[Check], lacks: Sequence[Check]) -> str:
    head = f"Usable, but not whole: {_titles(faults)}." if faults else "The trace is whole."
    return f"{head} For a full report it lacks {_titles(lacks)}." if lacks else f"{head} It has all for a full report."


def _titles(checks: Sequence[Check]) -> str:
    *first, last = [check.title for check in checks]
    return f"{', '.join(first)} and {last}" if first else last


def _unreadable(path: Path, error: TraceError) -> Checkup:
    check = Check("readable", "the file", "readable", "missing", error.what, error.why, error.fix, decides=True)
    return Checkup("trace", str(path), "unreadable", "There is nothing to explain.", (check,))
