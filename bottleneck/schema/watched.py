"""Declares what is reported of a watched run."""

from msgspec import Struct

from bottleneck.schema.compile_health import CompileHealth
from bottleneck.schema.watch_log import DevicePhases, Phase


class WatchedCause(Struct, frozen=True):
    """Why some steps were slow, or what grew over the run.

    ``beyond_us`` is the time that it took beyond usual steps; null for what grows.
    """

    kind: str
    headline: str
    advice: str
    rank: int = 0
    steps: tuple[int, ...] = ()
    beyond_us: float | None = None


class WatchedRunRank(Struct, frozen=True):
    """One rank of a watched run. ``phases_us`` go by PHASES, mean per step.

    ``blocks`` are stretches of the run: the step in the middle, and the median, shortest and longest step of each.
    ``device_phases`` are null where the program used no GPU, ``compile_health`` where it compiled nothing.
    """

    rank: int
    steps: int
    total_us: float
    usual_us: float
    phases_us: tuple[float, ...]
    causes: tuple[WatchedCause, ...] = ()
    blocks: tuple[tuple[float, float, float, float], ...] = ()
    device_phases: DevicePhases | None = None
    compile_health: CompileHealth | None = None

    @property
    def usual_step_us(self) -> float:
        """The mean step that is not slow: what its phases add up to."""
        return sum(self.phases_us)

    @property
    def beyond_us(self) -> float:
        """The time of all steps beyond usual ones."""
        return max(self.total_us - self.steps * self.usual_step_us, 0.0)

    @property
    def named_us(self) -> float:
        """As much of it as has a cause."""
        return sum(cause.beyond_us or 0.0 for cause in self.causes)


class LateRank(Struct, frozen=True):
    """A rank that the others wait for, in the steps from ``first`` to ``last``.

    ``own_us`` is what its own work took per step in them, all but its backward pass, and ``others_us`` that of the
    quickest other; ``phase`` is the one in which most of the difference is. ``cause`` is that of its slow steps there;
    null where it had none.
    """

    rank: int
    first: int
    last: int
    own_us: float
    others_us: float
    phase: Phase
    is_from_start: bool
    is_to_end: bool
    cause: str | None = None


class WindowOfRun(Struct, frozen=True):
    """A recording of some steps of the run, and why it was made.

    It follows step ``after`` and took so many ``steps``. ``folder`` is what `bottleneck report` reads.
    """

    after: int
    steps: int
    why: str
    folder: str


class WatchedRun(Struct, frozen=True):
    """A watched run as it is reported. ``warnings`` say what is missing from it."""

    name: str
    date: str
    ranks: tuple[WatchedRunRank, ...]
    step_name: str = ""
    late: LateRank | None = None
    windows: tuple[WindowOfRun, ...] = ()
    warnings: tuple[str, ...] = ()
    schema: str = "bottleneck/watched/1"
