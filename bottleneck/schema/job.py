"""Records of what the ranks of a job say together.

They tell which ranks are slow and where time goes in collectives.
"""

from typing import Annotated

from msgspec import Struct

from bottleneck.schema.records import Doc


class LeftOut(Struct, frozen=True):
    """A trace of the job that is not in the result, and why."""

    path: Annotated[str, Doc("trace of the rank")]
    rank: Annotated[int | None, Doc("number of the rank; null where the file could not be read so far")]
    reason: Annotated[str, Doc("what is wrong with it")]


class SlowRank(Struct, frozen=True):
    """A rank, or all ranks of a host, that the others wait for."""

    name: Annotated[str, Doc("'rank 17', 'host node-3', or 'other ranks in turn'")]
    ranks: Annotated[tuple[int, ...], Doc("its ranks")]
    host: Annotated[str | None, Doc("host of its ranks; null where they have several or it is not known")]
    late_us: Annotated[
        float, Doc("delay at collectives beyond the median rank of each group, over all collectives of a step", "us")
    ]
    cost_us: Annotated[float, Doc("time per step that the job would take less without the delay", "us")]
    cost_rank_hours: Annotated[
        float | None, Doc("rank-hours that the other ranks wait because of it, per hour of the job", "h/h")
    ]
    worst_collective: Annotated[str | None, Doc("kind of collective at which most of the delay is seen")]
    since_step: Annotated[
        int | None, Doc("position of the first step with the delay; null where it is there from the first on")
    ]
    is_steady: Annotated[
        bool, Doc("whether it is late in most steps since then, as of slow hardware; else it is late now and then")
    ]
    cause: Annotated[str, Doc("how its step differs from that of the median rank, in words")]
    line: Annotated[
        str | None, Doc("source line at which it spends most of the delay beyond the median rank; null where none is")
    ] = None
    line_us: Annotated[float | None, Doc("time at that line, collectives left out; null without a line", "us")] = None
    usual_line_us: Annotated[float | None, Doc("the same of the median rank", "us")] = None


class SlowLink(Struct, frozen=True):
    """Process group whose transfers take longer than those of equal groups.

    Its ranks come in time.
    """

    name: Annotated[str, Doc("name of the process group")]
    ranks: Annotated[tuple[int, ...], Doc("its ranks")]
    host: Annotated[str | None, Doc("host of its ranks; null where they have several or it is not known")]
    transfer_us: Annotated[float, Doc("per step, in its collectives after the last rank came", "us")]
    usual_us: Annotated[float, Doc("median of the same over the equal groups", "us")]
    groups: Annotated[int, Doc("equal groups, itself included")]
    cost_rank_hours: Annotated[
        float, Doc("rank-hours per hour of the job, if all ranks wait for the longer transfers", "h/h")
    ]


class GroupUse(Struct, frozen=True):
    """Collectives of one process group, per step and averaged over its ranks.

    Equal groups side by side count as one.
    """

    name: Annotated[str, Doc("the program's name for it, else its number")]
    kind: Annotated[str | None, Doc("'data', 'tensor', 'pipeline' or 'expert' parallel; null where it cannot be told")]
    size: Annotated[int, Doc("ranks in a group")]
    groups: Annotated[int, Doc("equal groups side by side")]
    calls: Annotated[float, Doc("calls", "1/step")]
    us: Annotated[float, Doc("time in its collectives", "us")]
    transfer_us: Annotated[
        float | None, Doc("of us, after the last rank came; null where the calls could not be matched", "us")
    ]
    wait_us: Annotated[float | None, Doc("of us, before the last rank came; null as transfer_us", "us")]
    imbalance: Annotated[
        float | None,
        Doc("experts: most bytes that a rank of the group sends / mean of its ranks; null for others", "ratio"),
    ]


class JobSummary(Struct, frozen=True):
    """Findings about the ranks of a job, from all of them together."""

    ranks: Annotated[int, Doc("ranks in the result")]
    hosts: Annotated[int | None, Doc("hosts they ran on; null where the traces do not tell")]
    left_out: Annotated[tuple[LeftOut, ...], Doc("traces that could not be used")]
    slow: Annotated[
        tuple[SlowRank, ...], Doc("hosts and ranks that the others wait for, most costly first: the worst ten")
    ]
    slow_links: Annotated[tuple[SlowLink, ...], Doc("groups with slow transfers, most costly first: the worst ten")]
    groups: Annotated[tuple[GroupUse, ...], Doc("process groups, most time first")]
    wait_share: Annotated[
        float | None, Doc("of the step that ranks wait in collectives, on average; null where none matched", "share")
    ]
    bubble_share: Annotated[
        float | None, Doc("of the step that pipeline stages wait for one another; null without stages", "share")
    ]
    clock_skew_us: Annotated[
        float | None, Doc("largest difference between the clocks of two hosts; null where it cannot be told", "us")
    ]
