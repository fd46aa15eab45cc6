"""What trying a change showed, and what a sweep showed: the records that `verify` and `sweep` make and reports tell."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from bottleneck.measured import Ratio, Timing
from bottleneck.records import Bound, Interval

VERIFY_SCHEMA = "bottleneck/verify/1"
SWEEP_SCHEMA = "bottleneck/sweep/1"

# "wrong": the results differ by more than the change implies. "not applicable": the step has nothing for it to change.
# "missing": something has to be installed first. "failed": it raised, or its process died.
TrialVerdict = Literal[
    "faster", "slower", "no effect", "inconclusive", "wrong", "not applicable", "missing", "failed", "skipped"
]


@dataclass(frozen=True)
class Difference:
    """The largest difference between original and changed in one kind of result, and how much the change implies.

    ``relative`` is the largest difference over the largest magnitude of the original; null where nothing is comparable,
    and ``reason`` says why.
    """

    what: Literal["outputs", "loss", "gradients", "parameters"]
    absolute: float | None
    relative: float | None
    allowed: float | None
    is_within: bool | None
    reason: str | None = None


@dataclass(frozen=True)
class Trial:
    """One change, tried: prediction beside measurement.

    ``speedup`` is original / changed step time (per sample, where the change does more of them per step) with its
    interval over n pairs. ``predicted_speedup`` comes from the findings named in ``findings``; null where no rule
    predicted anything. ``setup_s`` is what compiling or capturing took beyond the first step of the original,
    ``break_even_steps`` the steps that pay for it. ``smallest_visible`` is the smallest change of time, as a share,
    that these pairs could have shown.
    """

    change: str
    title: str
    verdict: TrialVerdict
    reason: str | None = None
    findings: tuple[str, ...] = ()
    predicted_speedup: Interval | None = None
    speedup: Ratio | None = None
    original_us: Timing | None = None
    changed_us: Timing | None = None
    smallest_visible: float | None = None
    setup_s: float | None = None
    break_even_steps: float | None = None
    peak_before_bytes: int | None = None
    peak_after_bytes: int | None = None
    differences: tuple[Difference, ...] = ()


@dataclass(frozen=True)
class Verification:
    """All trials of one program; ``best`` is the combination of winners, where that was asked for."""

    program: tuple[str, ...]
    step_us: float | None
    trials: tuple[Trial, ...]
    best: Trial | None = None
    warnings: tuple[str, ...] = ()
    schema: str = VERIFY_SCHEMA
    version: str = ""


@dataclass(frozen=True)
class Point:
    """One point of a sweep: values of the parameters, how the step was run, and what was measured.

    ``reason`` says why a point has no figures. ``samples_per_s`` needs a batch size among the parameters.
    """

    values: Mapping[str, int | float | str]
    series: str
    step_us: Timing | None = None
    flops: float | None = None
    bytes_low: float | None = None
    bytes_high: float | None = None
    bound: Bound | None = None
    bound_share: float | None = None
    peak_memory_bytes: int | None = None
    samples_per_s: float | None = None
    setup_s: float | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Fit:
    """t = fixed + each x value over the points of one series, with the interval of each coefficient.

    ``knee`` is the value at which both parts are equal: below it the step is mostly fixed. ``largest`` is the largest
    value whose memory fits, by a line through the peaks; null with ``reason`` where that is not known.
    """

    series: str
    parameter: str
    fixed_us: Interval | None
    each_us: Interval | None
    knee: float | None
    residual_share: float | None
    largest: float | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Sweep:
    """All points of a sweep, in the order in which they were asked for, and the fit of each series."""

    program: tuple[str, ...]
    parameters: tuple[str, ...]
    points: tuple[Point, ...]
    fits: tuple[Fit, ...] = ()
    warnings: tuple[str, ...] = ()
    schema: str = SWEEP_SCHEMA
    version: str = ""
