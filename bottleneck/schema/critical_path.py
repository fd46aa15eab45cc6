"""The critical path of the step as replayed, and how well the replay reproduces the step that was measured."""

from typing import Annotated, Literal

from msgspec import Struct

from bottleneck.schema.doc import Doc


class PathPart(Struct, frozen=True):
    """A part of the critical path: the time per step in one kind of work, or without any."""

    what: Annotated[
        Literal["device", "host", "wait"], Doc("where the time passes; 'wait' is time in which neither of both works")
    ]
    name: Annotated[str, Doc("kernel, state of the host (without a device: op), or reason of the wait")]
    source: Annotated[str | None, Doc("line of the program; null where it is not known")]
    us: Annotated[float, Doc("time on the path", "us")]
    share: Annotated[float, Doc("part of the step", "share")]


class ReplayCheck(Struct, frozen=True):
    """The error of a replay of the recorded steps, without a change, against what was measured."""

    error: Annotated[float, Doc("replayed / measured - 1")]
    held_share: Annotated[
        float,
        Doc("of the replayed steps, delays that nothing on record explains and that are kept as they are", "share"),
    ]
    settled: Annotated[float, Doc("step that follows others like it / measured step - 1; 0 for a steady run of steps")]
    steps: Annotated[int, Doc("number of steps that were replayed")]
    reason: Annotated[str | None, Doc("why no change can be predicted from this trace; null where one can")]


class CriticalPath(Struct, frozen=True):
    """The chain of work that sets the time of the step: its parts add up to ``step_us``, the longest first."""

    check: Annotated[ReplayCheck, Doc("how well the replay that it comes from reproduces the step")]
    step_us: Annotated[float, Doc("time of the step", "us")]
    parts: Annotated[tuple[PathPart, ...], Doc("parts of the path, longest first")]
