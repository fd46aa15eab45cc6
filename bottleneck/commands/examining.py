"""A check-up of traces: each is read and explained as a report would, and what was met on the way is told."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bottleneck.analysis.lacks import check_contents
from bottleneck.analysis.together import Member, check_together, is_a_job, member
from bottleneck.checks import Check, Checkup, Verdict, at_fault
from bottleneck.errors import TraceError
from bottleneck.pipeline import Source, examine, locate
from bottleneck.trace.integrity import check_device_work, check_file, check_host_work


def examine_traces(paths: Sequence[Path]) -> list[Checkup]:
    """One check-up per trace, and one of all ranks of a job together.

    What is no trace has one too, unless it is all there is: then TraceError is raised.
    """
    found = [each for path in paths for each in _sources(path)]
    examined = [each if isinstance(each, Unreadable) else _examine(each) for each in found]
    if len(examined) == 1 and isinstance(examined[0], Unreadable):
        raise examined[0].error
    members = [each.member for each in examined if isinstance(each, Examined)]
    together = [_together(members)] if is_a_job(members) else []
    return [*(_tell(each) if isinstance(each, Unreadable) else each.checkup for each in examined), *together]


@dataclass(frozen=True)
class Unreadable:
    """A path that holds no trace that could be read, and why."""

    path: Path
    error: TraceError


@dataclass(frozen=True)
class Examined:
    """The check-up of a trace, and what it says of its place among others."""

    checkup: Checkup
    member: Member


def _sources(path: Path) -> Sequence[Source | Unreadable]:
    try:
        return locate(path)
    except TraceError as error:
        return [Unreadable(path, error)]


def _examine(source: Source) -> Examined | Unreadable:
    try:
        ranked = examine(source)
    except TraceError as error:
        return Unreadable(source.trace, error)
    linked, analysis = ranked.linked, ranked.analysis
    whole = [*check_file(linked.trace), *check_device_work(linked), *check_host_work(linked)]
    contents = check_contents(linked, analysis)
    faults = at_fault(whole)
    lacks = [check for check in contents if check.status in {"limited", "missing"} and check.slug != "verdict"]
    checkup = Checkup(
        kind="trace",
        subject=str(source.trace),
        verdict="damaged" if faults else "sound",
        sentence=_sentence(faults, lacks),
        checks=(*whole, *contents),
    )
    return Examined(checkup, member(linked))


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


def _tell(found: Unreadable) -> Checkup:
    error = found.error
    check = Check("readable", "the file", "readable", "missing", error.what, error.why, error.fix, decides=True)
    return Checkup("trace", str(found.path), "unreadable", "There is nothing to explain.", (check,))
