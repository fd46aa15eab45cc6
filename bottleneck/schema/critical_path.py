"""The critical path of the step as replayed, and how well the replay reproduces the step that was measured."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class PathPart:
    """A part of the critical path: time per step in one kind of work, and its share of the step.

    ``what`` is 'device' (``name`` is a kernel), 'host' (a state of the host, on a CPU an op), or 'wait': a time in
    which neither of them works. ``source`` is the line of the program, null where it is not known.
    """

    what: Literal["device", "host", "wait"]
    name: str
    source: str | None
    us: float
    share: float


@dataclass(frozen=True)
class ReplayCheck:
    """How far a replay of the recorded step, without a change, is from the step that was measured.

    ``error`` is replayed / measured - 1. ``held_share`` is the share of the replayed step that is due to delays which
    nothing on record explains, and that are therefore kept as they are. ``settled`` is the time of a step that follows
    others like it, over that of the measured one, less 1: where it is not 0, the recorded steps were no steady run.
    ``steps`` counts the steps replayed. ``reason`` says why no change can be predicted; null where one can.
    """

    error: float
    held_share: float
    settled: float
    steps: int
    reason: str | None


@dataclass(frozen=True)
class CriticalPath:
    """The critical path per step, the longest part first: the parts add up to ``step_us``, the replayed step."""

    check: ReplayCheck
    step_us: float
    parts: tuple[PathPart, ...]
