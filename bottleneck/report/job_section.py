"""Builds the sections on a job of many ranks: who is slow and what it costs, its process groups, what is left out."""

from collections.abc import Sequence

from bottleneck.report.document import ListSection, Section, TableColumn, TableRow, TableSection, number_columns
from bottleneck.report.text import UNKNOWN, cut_text, scale_of
from bottleneck.schema.analysis import Analysis
from bottleneck.schema.job import GroupUse, JobSummary, SlowLink, SlowRank
from bottleneck.units import counted, format_share, format_us

_MOST_LEFT_OUT = 10
_MOST_SHOWN, _MOST_OF_ONE = 64, 8


def job_sections(analysis: Analysis) -> tuple[Section, ...]:
    """The sections on a job of many ranks, the worst rank first; none where there is one rank."""
    job = analysis.job
    if job is None:
        return ()
    found = (_slow(job), _groups(job.groups), _left_out(job))
    return tuple(section for section in found if section is not None)


def worst_ranks(analysis: Analysis, most: int, characters: int) -> ListSection | None:
    """The most costly of the slow ranks, hosts and links, a line each; null where nobody is slow."""
    job = analysis.job
    if job is None or not (job.slow or job.slow_links):
        return None
    slow = [
        (one.cost_us, f"{_with_count(one)} costs {format_us(one.cost_us)} per step: {one.cause}") for one in job.slow
    ]
    links = [
        (link.transfer_us - link.usual_us, f"link of {link.host or link.name}: {_link_details(link)[0]}")
        for link in job.slow_links
    ]
    told = [text for _, text in sorted([*slow, *links], key=lambda each: -each[0])]
    hidden = len(told) - most
    more = (f"{hidden} more with --full.",) if hidden > 0 else ()
    texts = (*(cut_text(text, characters) for text in told[:most]), *more)
    return ListSection("Slow ranks, hosts and links", tuple((text,) for text in texts))


def _with_count(one: SlowRank) -> str:
    return f"{one.name} ({counted(len(one.ranks), 'rank')})" if len(one.ranks) > 1 else one.name


def describe_job(job: JobSummary) -> str:
    """The job in a sentence: its size, and what the ranks wait."""
    hosts = f" on {counted(job.hosts, 'host')}" if job.hosts else ""
    parts = [
        "" if job.wait_share is None else f"wait {format_share(job.wait_share)} of their step in collectives",
        "" if job.bubble_share is None else f"{format_share(job.bubble_share)} are the bubble of the pipeline",
        "" if job.clock_skew_us is None else f"clocks of hosts are up to {format_us(job.clock_skew_us)} apart",
    ]
    told = ", ".join(part for part in parts if part)
    return f"{counted(job.ranks, 'rank')}{hosts}{f' {told}' if told else ''}."


def shown_ranks(analysis: Analysis) -> list[int]:
    """Positions of at most 64 ranks: those that the job names, the latest, and some of the others at equal distances.

    All of them in their order where they are few.
    """
    ranks, job = analysis.ranks, analysis.job
    if len(ranks) <= _MOST_SHOWN:
        return list(range(len(ranks)))
    slow = [] if job is None else [one.ranks for one in job.slow] + [link.ranks for link in job.slow_links]
    place = {rank.rank: at for at, rank in enumerate(ranks)}
    named = [place[rank] for own in slow for rank in own[:_MOST_OF_ONE] if rank in place]
    late = sorted(range(len(ranks)), key=lambda at: -(ranks[at].skew_us or 0.0))
    first = list(dict.fromkeys([*named[: _MOST_SHOWN // 2], *late[: _MOST_SHOWN // 4]]))
    rest = sorted(set(range(len(ranks))).difference(first))
    room = _MOST_SHOWN - len(first)
    return [*first, *(rest[at * len(rest) // room] for at in range(room))]


def _slow(job: JobSummary) -> TableSection:
    """One row per slow host, rank or link, with its cause beneath."""
    scale = scale_of(max([one.cost_us for one in job.slow] + [one.transfer_us for one in job.slow_links], default=1.0))
    rows = [
        TableRow((one.name, scale.one(one.cost_us), _hours(one.cost_rank_hours)), details=_rank_details(one))
        for one in job.slow
    ]
    rows += [
        TableRow(
            (
                f"link of {link.host or link.name}",
                scale.one(link.transfer_us - link.usual_us),
                _hours(link.cost_rank_hours),
            ),
            details=_link_details(link),
        )
        for link in job.slow_links
    ]
    notes = (
        "cost: time per step that the job would take less without the delay. rank-hours: waited for it by all ranks, "
        "per hour of the job."
    )
    nobody = "No rank, host or link is far slower than the others."
    return TableSection(
        "Slow ranks, hosts and links",
        (TableColumn("which", "words"), *number_columns((f"cost, {scale.unit}", "rank-hours"))),
        tuple(rows),
        (describe_job(job), notes if rows else nobody),
        TableColumn("why", "words"),
    )


def _hours(hours: float | None) -> str:
    return UNKNOWN if hours is None else f"{hours:.1f}"


def _rank_details(one: SlowRank) -> tuple[str, ...]:
    where = "" if one.host is None or one.name.startswith("host") else f"on {one.host}"
    since = "" if one.since_step is None else f"since step {one.since_step}"
    pattern = "in most steps" if one.is_steady else "in some steps"
    at = "" if one.worst_collective is None else f"most at {one.worst_collective}"
    ranks = f"ranks {_listed(one.ranks)}" if len(one.ranks) > 1 else ""
    parts = (one.cause, where, ranks, since or pattern, at)
    return tuple(part for part in parts if part)


def _link_details(link: SlowLink) -> tuple[str, ...]:
    times = link.transfer_us / link.usual_us if link.usual_us > 0 else None
    ratio = "" if times is None else f", {times:.1f} times as long"
    usual = f"in {counted(link.groups - 1, 'equal group')} {format_us(link.usual_us)}"
    return (
        f"transfers take {format_us(link.transfer_us)}, {usual}{ratio}",
        f"{link.name}, ranks {_listed(link.ranks)}",
    )


def _listed(ranks: Sequence[int]) -> str:
    """'40 to 47', '3, 21 and 4 more'."""
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]} to {ranks[-1]}"
    more = f" and {len(ranks) - 6} more" if len(ranks) > 6 else ""
    return ", ".join(str(rank) for rank in ranks[:6]) + more


def _groups(groups: Sequence[GroupUse]) -> TableSection | None:
    if not groups:
        return None
    scale = scale_of(max(use.us for use in groups))
    rows = [
        TableRow(
            (use.name, use.kind or UNKNOWN, *(scale.one(us) for us in (use.us, use.transfer_us, use.wait_us))),
            group="communication",
            details=_group_details(use),
        )
        for use in groups
    ]
    return TableSection(
        f"Process groups, in {scale.unit} per step",
        (
            TableColumn("group", "name"),
            TableColumn("parallel", "words"),
            *number_columns(("time", "transfer", "waiting")),
        ),
        tuple(rows),
        ("transfer: after the last rank of the group came; waiting: before. Averages over the ranks.",),
    )


def _group_details(use: GroupUse) -> tuple[str, ...]:
    sizes = f"{use.groups} x {counted(use.size, 'rank')}" if use.groups > 1 else counted(use.size, "rank")
    calls = f"{counted(f'{use.calls:.3g}', 'call')} per step"
    uneven = "" if use.imbalance is None else f"the busiest rank sends {use.imbalance:.2f} times the mean"
    return tuple(part for part in (sizes, calls, uneven) if part)


def _left_out(job: JobSummary) -> ListSection | None:
    if not job.left_out:
        return None
    items = tuple(
        (f"{one.path}{'' if one.rank is None else f' (rank {one.rank})'}: {one.reason}",)
        for one in job.left_out[:_MOST_LEFT_OUT]
    )
    hidden = len(job.left_out) - len(items)
    return ListSection("Left out", (*items, *(((f"{hidden} more",),) if hidden else ())))
