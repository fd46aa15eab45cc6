"""Records of what the ranks of a job say together: which are slow, and where its time goes in collectives."""

from dataclasses import dataclass
from typing import Annotated

from bottleneck.schema.doc import Doc


@dataclass(frozen=True)
class LeftOut:
    """A trace of the job that is not in the result, and why."""

    path: Annotated[str, Doc("trace of the rank")]
    rank: Annotated[int | None, Doc("number of the rank; null where the file could not be read so far")]
    reason: Annotated[str, Doc("what is wrong with it")]


@dataclass(frozen=True)
class SlowRank:
    """A rank, or all ranks of a host, that the others wait for."""

    name: Annotated[str, Doc("'rank 17' or 'host node-3'")]
    ranks: Annotated[tuple[int, ...], Doc("its ranks")]
    late_us: Annotated[float, Doc("mean delay at the collectives of its groups, per step", "us")]
    cost_us: Annotated[float, Doc("time per step that the job would take less without the delay", "us")]
    cost_rank_hours: Annotated[float | None, Doc("rank-hours lost per hour of the job by those that wait")]
    worst_collective: Annotated[str | None, Doc("where most of the delay is seen")]
    since_step: Annotated[int | None, Doc("position of the first late step; null where it is late in all of them")]
    is_steady: Annotated[bool, Doc("true where the same rank is late in most steps, false where lateness wanders")]
    cause: Annotated[str, Doc("largest part of its step by which it differs from the others, in words")]


@dataclass(frozen=True)
class GroupUse:
    """The collectives of one process group (or of equal groups side by side), per step and averaged over its ranks."""

    name: Annotated[str, Doc("the program's name for it, else its number")]
    kind: Annotated[str | None, Doc("'data', 'tensor', 'pipeline' or 'expert'; null where it cannot be told")]
    size: Annotated[int, Doc("ranks in a group")]
    groups: Annotated[int, Doc("groups of this kind side by side")]
    calls: Annotated[float, Doc("calls", "1/step")]
    transfer_us: Annotated[float, Doc("time in its collectives after the last rank came", "us")]
    wait_us: Annotated[float, Doc("time in its collectives before the last rank came", "us")]


@dataclass(frozen=True)
class JobSummary:
    """What the ranks of a job say together."""

    ranks: Annotated[int, Doc("ranks in the result")]
    hosts: Annotated[int | None, Doc("hosts they ran on; null where the traces do not tell")]
    left_out: Annotated[tuple[LeftOut, ...], Doc("traces that could not be used")]
    slow: Annotated[
        tuple[SlowRank, ...], Doc("hosts and ranks that the others wait for, most costly first: the worst ten")
    ]
    groups: Annotated[tuple[GroupUse, ...], Doc("process groups, most time first")]
    wait_share: Annotated[float | None, Doc("of the step that ranks wait in collectives, on average", "share")]
    bubble_share: Annotated[float | None, Doc("of the step that pipeline stages idle; null without one", "share")]
    clock_skew_us: Annotated[float | None, Doc("largest difference between the clocks of two hosts", "us")]
