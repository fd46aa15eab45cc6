"""Frozen records of what the harness measures: step times, compilation, batch test and profiler options."""

from dataclasses import dataclass
from typing import Literal

# What a window of the profiler may record: ops alone, one option more, or all that the kept window had on.
ProfilerOption = Literal["ops", "shapes", "stacks", "memory", "all"]

# What the batch test proves: the step is (mostly) fixed, proportional to the batch, some of both; or it was too noisy.
Growth = Literal["fixed", "proportional", "both", "undecided"]


@dataclass(frozen=True)
class Timing:
    """Step times: median with its interval, over n steps."""

    median: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class StepTime:
    """One step of the recording: its wall time, and why it was set aside; null when it counts."""

    name: str
    us: float
    set_aside: str | None = None


@dataclass(frozen=True)
class StepTimes:
    """Steps of the window: mean wall time, spread, and the undisturbed time where it was measured.

    ``windows_us`` is the mean step of each window that was opened; this one was the quickest. ``boundary`` is what
    ended a step of the program, ``seen`` how often it did while the program was watched.
    """

    count: int
    wall_us: float
    profiled_us: Timing | None
    unprofiled_us: Timing | None
    perturbation: float | None
    source: str
    each: tuple[StepTime, ...] = ()
    settled: bool | None = None
    windows_us: tuple[float, ...] = ()
    boundary: str | None = None
    seen: int | None = None


def tell_step(name: str, seen: int) -> str:
    """What a step of the program was, in the words of the summary and of the report."""
    return f"step = {name}, {seen} seen"


@dataclass(frozen=True)
class GraphBreak:
    """A line of the program at which torch.compile broke a graph, why, and how often until the window ended."""

    file: str
    line: int
    reason: str
    count: int


@dataclass(frozen=True)
class Compilation:
    """What torch.compile did from the program's start to the window's end.

    ``graphs`` are those that dynamo captured, ``recompiles`` the times that a function was compiled again since its
    guards failed. ``breaks`` holds the lines as far as dynamo tells them, files relative to the working folder.
    """

    graphs: int
    graph_breaks: int
    recompiles: int
    breaks: tuple[GraphBreak, ...] = ()


@dataclass(frozen=True)
class Ratio:
    """A ratio of step times: median of ratios of neighbours in time, with its interval, over n such pairs."""

    median: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class BatchTest:
    """Unprofiled steps of ``batch_size`` samples (``once``) and of twice as many (``twice``), in turns.

    ``reason`` says why there are no times; null where there are.
    """

    batch_size: int | None
    once: Timing | None = None
    twice: Timing | None = None
    ratio: Ratio | None = None
    reason: str | None = None


@dataclass(frozen=True)
class BatchProof:
    """What the batch test says: t = fixed + proportional x batch, with the parts of the step at its own batch size.

    ``agrees`` tells whether the ledger's overhead fits into the fixed part; null where nothing can be said. ``reason``
    says why there are no figures; null where there are.
    """

    batch_size: int | None
    once_us: Timing | None = None
    twice_us: Timing | None = None
    ratio: Ratio | None = None
    fixed_us: Timing | None = None
    proportional_us: Timing | None = None
    fixed_share: Ratio | None = None
    growth: Growth | None = None
    agrees: bool | None = None
    sentence: str = ""
    reason: str | None = None


@dataclass(frozen=True)
class OptionCost:
    """How many times as long a step takes under the profiler with this option besides the record of ops."""

    option: ProfilerOption
    ratio: Ratio


@dataclass(frozen=True)
class OptionCosts:
    """What each option of the profiler costs on this step; ``reason`` says why that is not known."""

    costs: tuple[OptionCost, ...] = ()
    reason: str | None = None


@dataclass(frozen=True)
class PeakMemory:
    """Most memory in use at once: of a device by its allocator, or resident in the process.

    ``since``: while unprofiled steps ran, or since the program started. ``bytes`` is null where that is not known, and
    ``reason`` says why. ``reserved_bytes`` is what the allocator of that device held at most, used or not.
    """

    bytes: int | None
    of: Literal["device", "process"]
    since: Literal["steps", "start"]
    reason: str | None = None
    reserved_bytes: int | None = None


@dataclass(frozen=True)
class Extras:
    """What was measured besides step times and the trace.

    ``windows_us`` is the mean step of each window that was opened; the trace is that of the quickest.
    """

    settled: bool | None = None
    windows_us: tuple[float, ...] = ()
    peak_memory: PeakMemory | None = None
    option_costs: OptionCosts | None = None
    batch_test: BatchTest | None = None
