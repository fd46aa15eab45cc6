"""Frozen records of ``verify`` and ``sweep``: trials, predictions, sweep points and fits."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from bottleneck.schema.analysis import Bound, Interval
from bottleneck.schema.measurements import Difference, LoaderSetting, Ratio, Timing, TrialVerdict

VERIFY_SCHEMA = "bottleneck/verify/1"
SWEEP_SCHEMA = "bottleneck/sweep/1"
# The series of a sweep that runs the program as it is.
EAGER = "eager"
# Of the processors: turns of a change and of the original meet so much other work alike, but one that uses fewer of
# them gains by it.
_MUCH_BESIDE = 0.25


@dataclass(frozen=True)
class TriedSetting:
    """A setting of the loader, and its time.

    ``sample_us`` is the time of the step per sample of a batch, null where no turn was completed. ``rungs`` is how many
    rungs of the search it survived. ``is_own`` marks the program's own setting. ``reason`` says why it failed.
    """

    setting: LoaderSetting
    sample_us: Timing | None = None
    rungs: int = 0
    is_own: bool = False
    reason: str | None = None


@dataclass(frozen=True)
class LoaderSearch:
    """The search of the settings of one loader.

    ``best`` is the setting that was tried against the program as it is, null where none was timed. ``constructor`` is
    the call that makes it, and ``line`` where the program has its own; both null where the trial did not show it to be
    faster. ``samples`` is how many samples a batch has; null where the loader does not tell, and then times are per
    step. ``notes`` say what was left out, and why. ``stopped_by`` is what ended the search early. ``batches`` are the
    best setting with larger batches, the program's own first: they change the results. The call has the quickest of
    these sizes where it is clear of the program's own.
    """

    settings: tuple[TriedSetting, ...]
    best: LoaderSetting | None = None
    constructor: str | None = None
    line: str | None = None
    samples: int | None = None
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    stopped_by: Literal["time", "user"] | None = None
    batches: tuple[TriedSetting, ...] = ()


@dataclass(frozen=True)
class Trial:
    """One change, tried: prediction beside measurement.

    ``speedup`` is original / changed step time (per sample, where the change does more of them per step) with its
    interval over n pairs. ``predicted_speedup`` comes from the findings named in ``findings``; null where no rule
    predicted anything. ``predicted_most`` is the speedup at most, where a report lists the change as bringing nothing.
    ``setup_s`` is what compiling or capturing took beyond the first step of the original,
    ``break_even_steps`` the steps that pay for it. ``smallest_visible`` is the smallest change of time, as a share,
    that these pairs could have shown. ``is_bound`` marks what nobody can keep, such as the replay of one batch: it only
    shows what a fix of its kind could gain at most. ``is_part`` marks figures of a part of the step alone.
    ``samples`` is how many times as many samples a changed step works on.
    ``stopped_by`` is what kept it from being made or confirmed: no time was left, or the user interrupted; null where
    nothing did. ``loader_search`` is how the settings of a loader were chosen, null for other changes.
    """

    change: str
    title: str
    verdict: TrialVerdict
    reason: str | None = None
    findings: tuple[str, ...] = ()
    predicted_speedup: Interval | None = None
    predicted_most: float | None = None
    speedup: Ratio | None = None
    original_us: Timing | None = None
    changed_us: Timing | None = None
    smallest_visible: float | None = None
    setup_s: float | None = None
    break_even_steps: float | None = None
    peak_before_bytes: int | None = None
    peak_after_bytes: int | None = None
    differences: tuple[Difference, ...] = ()
    is_bound: bool = False
    is_part: bool = False
    samples: float = 1.0
    stopped_by: Literal["time", "user"] | None = None
    loader_search: LoaderSearch | None = None


@dataclass(frozen=True)
class Verification:
    """All trials of one program.

    ``best`` is the combination of winners, where that was asked for.

    ``combinations`` are those that were tried on the way to it. ``tried`` says where the changes come from: findings or
    the command line, or the list of what would bring nothing. ``seed`` is what the order of turns was drawn with, and
    what the program's random numbers began with. ``is_interrupted`` is set where the user ended it before its end.
    ``other_processors`` is how many of the ``processors`` of the machine other programs kept busy meanwhile, null where
    the system does not tell.
    """

    program: tuple[str, ...]
    step_us: float | None
    trials: tuple[Trial, ...]
    best: Trial | None = None
    combinations: tuple[Trial, ...] = ()
    seed: int = 0
    warnings: tuple[str, ...] = ()
    is_interrupted: bool = False
    tried: Literal["findings", "no-gain"] = "findings"
    other_processors: float | None = None
    processors: int | None = None
    schema: str = VERIFY_SCHEMA
    version: str = ""

    @property
    def is_contended(self) -> bool:
        """True where other programs kept more than a quarter of the machine busy."""
        others, processors = self.other_processors, self.processors
        return others is not None and processors is not None and others > _MUCH_BESIDE * processors


@dataclass(frozen=True)
class Point:
    """One point of a sweep: parameters, run conditions and measurements.

    ``step_us`` is the unprofiled step; ``bytes_low`` is what has to move at least, ``bytes_high`` what usual kernels
    move, the rates are those of the unprofiled step. ``peak`` names the ceiling of arithmetic that most of the FLOPs
    are held against. ``samples_per_s`` needs a batch size among the parameters. ``setup_s`` is what the first two steps
    and the change before them took beyond usual ones. ``repeats`` is how many processes measured it: times are the
    median of theirs, the rest is of the one in the middle. ``reason`` says why a point has no figures.
    """

    values: Mapping[str, int | float | str]
    series: str
    step_us: Timing | None = None
    flops: float | None = None
    bytes_low: float | None = None
    bytes_high: float | None = None
    flops_per_s: float | None = None
    bytes_per_s: Interval | None = None
    peak: str | None = None
    bound: Bound | None = None
    bound_share: float | None = None
    peak_memory_bytes: int | None = None
    samples_per_s: float | None = None
    setup_s: float | None = None
    repeats: int = 0
    reason: str | None = None


@dataclass(frozen=True)
class Roof:
    """Ceilings that points of a series are held against.

    They are of arithmetic (by the name of the peak) and of memory traffic.

    ``memory_bytes`` is how much memory there is for it: of a GPU all, of the host what was free as the sweep began.
    ``kind`` is that of the device, as in an analysis.
    """

    series: str
    device: str
    peak: str | None
    flops_per_s: float | None
    bytes_per_s: float | None
    memory_bytes: int | None = None
    kind: str = ""


@dataclass(frozen=True)
class Fit:
    """Step time of one series as a line of a parameter.

    t = fixed + each x value, or the larger of both parts.

    ``model`` is "sum" where one part follows the other, "max" where they overlap. ``fixed_us`` and ``each_us`` are 95 %
    intervals around ``fixed_mid_us`` and ``each_mid_us``. It was made over the ``points`` points of ``over``.
    ``knee`` is the value at which both parts are equal: below it the step is mostly fixed. ``residual_share`` is how
    far, as a share of its time, a point lies from it at most, but for the one at ``apart``: null where no single point
    lies far from it. ``largest`` is the largest value whose memory fits, by a
    line through the peaks. What is null has its reason in ``reason``, ``knee_reason`` or ``largest_reason``.
    """

    series: str
    parameter: str
    fixed_us: Interval | None
    each_us: Interval | None
    knee: float | None
    residual_share: float | None
    largest: float | None = None
    reason: str | None = None
    model: Literal["sum", "max"] = "sum"
    fixed_mid_us: float | None = None
    each_mid_us: float | None = None
    over: Interval | None = None
    points: int = 0
    others: Mapping[str, int | float | str] = field(default_factory=dict)
    knee_reason: str | None = None
    largest_reason: str | None = None
    apart: float | None = None

    def step_us(self, value: float) -> float | None:
        """Returns the step time that the fit predicts at a value.

        The value is that of the parameter. Null where there is no fit.
        """
        if self.fixed_mid_us is None or self.each_mid_us is None:
            return None
        parts = (self.fixed_mid_us, self.each_mid_us * value)
        return max(parts) if self.model == "max" else sum(parts)


@dataclass(frozen=True)
class SeriesResults:
    """Results of a changed series beside those of the program as it is.

    They are of its first point that was measured. ``reason`` says why none were compared.
    """

    series: str
    differences: tuple[Difference, ...] = ()
    reason: str | None = None

    @property
    def is_wrong(self) -> bool:
        """True where a result lies beyond what the change allows."""
        return any(difference.is_within is False for difference in self.differences)


@dataclass(frozen=True)
class Sweep:
    """All points of a sweep in order, and their fits.

    The order is that in which they were asked for, and each series has a fit.

    ``settings`` are the parameters that were the same for all points, ``how`` the device, number of threads
    and rounds of turns, where one was asked for. ``results`` has the changed series whose results were compared.
    """

    program: tuple[str, ...]
    parameters: tuple[str, ...]
    points: tuple[Point, ...]
    fits: tuple[Fit, ...] = ()
    roofs: tuple[Roof, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    how: str = ""
    warnings: tuple[str, ...] = ()
    results: tuple[SeriesResults, ...] = ()
    schema: str = SWEEP_SCHEMA
    version: str = ""
