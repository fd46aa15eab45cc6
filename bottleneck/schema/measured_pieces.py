"""Frozen records of measured pieces: parts of a step, timed alone on their recorded shapes, as they are and changed."""

from dataclasses import dataclass
from typing import Annotated

from bottleneck.schema.doc import Doc
from bottleneck.schema.measurements import Ratio, Timing


@dataclass(frozen=True)
class MeasuredPiece:
    """One piece of the step, timed as it is and changed, in turns; ``reason`` says why there are no times.

    ``at_worst`` is the ratio of the least favourable way to make the change, where a program may need it.
    """

    kind: Annotated[str, Doc("kind of piece, such as 'chain' or 'optimizer'")]
    finding: Annotated[str, Doc("slug of the finding whose gain it measures")]
    change: Annotated[str, Doc("the change, as `bottleneck verify` calls it")]
    what: Annotated[str, Doc("ops and sizes of the piece")]
    calls: Annotated[float, Doc("how often the step runs it")]
    recorded_us: Annotated[
        float | None, Doc("time of all its calls in the recorded step; null where they cannot be told apart", "us")
    ]
    share: Annotated[float, Doc("part of the finding's work that it stands for", "share")]
    as_is_us: Annotated[Timing | None, Doc("one call as it is", "us")] = None
    changed_us: Annotated[Timing | None, Doc("one call with the change", "us")] = None
    ratio: Annotated[
        Ratio | None, Doc("changed / as it is: median over pairs of turns, with its 95 % interval by order statistics")
    ] = None
    at_worst: Annotated[Ratio | None, Doc("the same for the least favourable way to make the change")] = None
    reason: Annotated[str | None, Doc("why it was not measured; null where it was")] = None


@dataclass(frozen=True)
class MeasuredPieces:
    """The pieces of a recording that were measured, and those that the time did not suffice for."""

    budget_s: Annotated[float, Doc("seconds that measuring was allowed to take", "s")]
    spent_s: Annotated[float, Doc("seconds that it took", "s")]
    machine: Annotated[str, Doc("processor or device that they were measured on")]
    threads: Annotated[int | None, Doc("threads that torch computed with")]
    torch: Annotated[str | None, Doc("version of torch")]
    pieces: Annotated[tuple[MeasuredPiece, ...], Doc("pieces that were tried, most promising first")] = ()
    left_out: Annotated[tuple[str, ...], Doc("pieces for which no time was left")] = ()
