"""Builds the sections on a job of many ranks.

They say who is slow and what it costs, its process groups, and what is left out.
"""

from collections.abc import Sequence

from bottleneck.report.document import ListSection, Section, TableColumn, TableRow, TableSection, columns
from bottleneck.report.text import UNKNOWN, cut_text, scale_of
from bottleneck.schema.analysis import Analysis
from bottleneck.schema.job import GroupUse, JobSummary, SlowLink, SlowRank
from bottleneck.units import counted, format_share, format_us

_MOST_LEFT_OUT = 10
_MOST_SHOWN, _MOST_OF_ONE = 64, 8


def job_sections(analysis: Analysis) -> tuple[Section, ...]:
    """Builds the sections on a job of many ranks.

    The worst rank comes first. None where there is one rank.
    """
    job = analysis.job
    if job is None:
        return ()
    sections = (_slow(job), _groups(job.groups), _left_out(job))
    return tuple(section for section in sections if section is not None)


def worst_ranks(analysis: Analysis, most: int, characters: int) -> ListSection | None:
    """Lists the most costly of the slow ranks, hosts and links.

    Each has a line. Null where nobody is slow.
    """
    job = analysis.job
    if job is None or not (job.slow or job.slow_links):
        return None
    costs = []
    for one in job.slow:
        count = f" ({counted(len(one.ranks), 'rank')})" if len(one.ranks) > 1 else ""
        costs.append((one.cost_us, f"{one.name}{count} costs {format_us(one.cost_us)} per step: {one.cause}"))
    costs += [
        (link.transfer_us - link.usual_us, f"{_link_name(link)}: {_link_details(link)[0]}") for link in job.slow_links
    ]
    lines = [text for _, text in sorted(costs, key=lambda pair: -pair[0])]
    texts = [cut_text(text, characters) for text in lines[:most]]
    texts += [f"{len(lines) - most} more with --full."] if len(lines) > most else []
    return ListSection("Slow ranks, hosts and links", tuple((text,) for text in texts))


def describe_job(job: JobSummary) -> str:
    """The job in a sentence: its size, and what the ranks wait."""
    hosts = f" on {counted(job.hosts, 'host')}" if job.hosts else ""
    parts = [
        "" if job.wait_share is None else f"wait {format_share(job.wait_share)} of their step in collectives",
        "" if job.bubble_share is None else f"{format_share(job.bubble_share)} are the bubble of the pipeline",
        "" if job.clock_skew_us is None else f"clocks of hosts are up to {format_us(job.clock_skew_us)} apart",
    ]
    facts = ", ".join(filter(None, parts))
    return f"{counted(job.ranks, 'rank')}{hosts}{f' {facts}' if facts else ''}."


def shown_ranks(analysis: Analysis) -> list[int]:
    """Chooses positions of at most 64 ranks to show.

    They are those that the job names, the latest, and some of the others at equal distances. All of them in their order
    where they are few.
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
    for link in job.slow_links:
        cells = (_link_name(link), scale.one(link.transfer_us - link.usual_us), _hours(link.cost_rank_hours))
        rows.append(TableRow(cells, details=_link_details(link)))
    note = (
        "cost: time per step that the job would take less without the delay. rank-hours: waited for it by all ranks, "
        "per hour of the job."
        if rows
        else "No rank, host or link is far slower than the others."
    )
    heads = columns("words", "which") + columns("number", f"cost, {scale.unit}", "rank-hours")
    why = TableColumn("why", "words")
    return TableSection("Slow ranks, hosts and links", heads, tuple(rows), (describe_job(job), note), why)


def _link_name(link: SlowLink) -> str:
    return f"link of {link.host or link.name}"


def _hours(hours: float | None) -> str:
    return UNKNOWN if hours is None else f"{hours:.1f}"


def _rank_details(one: SlowRank) -> tuple[str, ...]:
    where = "" if one.host is None or len(one.ranks) > 1 else f"on {one.host}"
    since = "" if one.since_step is None else f"since step {one.since_step}"
    pattern = "in most steps" if one.is_steady else "in some steps"
    at = "" if one.worst_collective is None else f"most at {one.worst_collective}"
    ranks = f"ranks {_listed(one.ranks)}" if len(one.ranks) > 1 else ""
    return tuple(filter(None, (one.cause, where, ranks, since or pattern, at)))


def _link_details(link: SlowLink) -> tuple[str, ...]:
    ratio = f", {link.transfer_us / link.usual_us:.1f} times as long" if link.usual_us > 0 else ""
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
    scale, rows = scale_of(max(use.us for use in groups)), []
    for use in groups:
        sizes = f"{use.groups} x {counted(use.size, 'rank')}" if use.groups > 1 else counted(use.size, "rank")
        calls = f"{counted(f'{use.calls:.3g}', 'call')} per step"
        uneven = "" if use.imbalance is None else f"the busiest rank sends {use.imbalance:.2f} times the mean"
        cells = (use.name, use.kind or UNKNOWN, *map(scale.one, (use.us, use.transfer_us, use.wait_us)))
        rows.append(TableRow(cells, group="communication", details=tuple(filter(None, (sizes, calls, uneven)))))
    heads = columns("name", "group") + columns("words", "parallel") + columns("number", "time", "transfer", "waiting")
    note = "transfer: after the last rank of the group came; waiting: before. Averages over the ranks."
    return TableSection(f"Process groups, in {scale.unit} per step", heads, tuple(rows), (note,))


def _left_out(job: JobSummary) -> ListSection | None:
    if not job.left_out:
        return None
    texts = [
        f"{one.path}{'' if one.rank is None else f' (rank {one.rank})'}: {one.reason}"
        for one in job.left_out[:_MOST_LEFT_OUT]
    ]
    hidden = len(job.left_out) - len(texts)
    texts += [f"{hidden} more"] if hidden else []
    return ListSection("Left out", tuple((text,) for text in texts))
