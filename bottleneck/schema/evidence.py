"""Evidence behind an analysis, as advice and counters read it.

It is the tables of the stages and the recording.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import wraps
from itertools import chain
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import structs

from bottleneck.schema.analysis import (
    BROKEN_TRACE_SLUGS,
    DISTURBED_SLUGS,
    ELSEWHERE,
    Analysis,
    Bound,
    Clause,
    Finding,
    StepAnalysis,
    Verdict,
)
from bottleneck.schema.finding_order import put_in_reading_order
from bottleneck.schema.linked_trace import Linked
from bottleneck.schema.op_names import line_source, place_of
from bottleneck.schema.recording import LONGEST_SOURCE_TEXT, Recording
from bottleneck.schema.records import replace
from bottleneck.schema.telemetry import Sample

T = TypeVar("T")


def remembered(make: "Callable[[Evidence], T]") -> "Callable[[Evidence], T]":
    """The same function, computed once per evidence: many rules need the same result."""

    @wraps(make)
    def recall(evidence: "Evidence") -> T:
        if make not in evidence.cache:
            evidence.cache[make] = make(evidence)
        result: T = evidence.cache[make]  # type: ignore[assignment]
        return result

    return recall


HELD_UP = ("op", "name", "dur_us", "usual_us", "beyond_us")


@dataclass(frozen=True)
class OpSum:
    """Calls and time per step of one op.

    The time is in microseconds per profiled step, in full and less that of ops directly inside.
    """

    calls: float
    us: float
    self_us: float


@dataclass(frozen=True)
class TwoSided:
    """Moment that parts the window, with the busy share of each side.

    The moment is a share of the window, and busy means that the device was.

    ``is_one_step`` is True where both sides belong to each step of the program, so that one verdict holds for both.
    """

    split: float
    busy_before: float
    busy_after: float
    is_one_step: bool = False


@dataclass(frozen=True, eq=False)
class Evidence:
    """The analysis of one step with the tables that it rests on.

    With several ranks the analysis is of all of them, the tables are those of the rank that sets the pace, and
    ``straggler`` tells of the rank that the others wait for.

    ``costs`` is COSTS, row for row as ``linked.trace.signatures`` (CALLS); ``attribution`` and ``roofline`` are
    ATTRIBUTION and ROOFLINE, row for row as ``linked.kernels``. These tables hold the whole trace under the
    profiler: rows whose ``step`` is null lie outside the window, and times are of profiled steps, not yet scaled to
    unprofiled ones. ``kernel_time`` is KERNEL_TIME, row for row as ``linked.kernels``: time per step on the
    ledger's scale, zero outside the window; ``idle_time`` is IDLE_TIME, the rest of the ledger. ``recording`` is
    null for a bare trace. ``sides`` is null unless the device is busy in one part of the window and idle in the
    other. ``samples`` are the readings of the sensors around the trace, oldest first; empty where it has no sensor
    log or no wall clock.

    ``loops`` is LOOPS, row for row as ``linked.kernels``: what a compiler would fuse.

    ``bound`` is the resource that limits the step, null before that is decided.

    ``predict`` gives the time per step that changes of the step save, by a replay; null where the steps cannot be
    replayed well enough to name a change in words. Without it no replay is at hand.

    ``price`` gives the times of calls in another type of numbers, by learned rates. Without it none are at hand.

    ``held_up`` are calls of the host in the window that are held up: the process did not run. Columns are ``HELD_UP``;
    ``op`` is the row in OPS, ``beyond_us`` what such a call takes beyond the usual time of its op.

    ``cache`` is the one place for values derived from it; functions that are ``remembered`` fill it.
    """

    analysis: StepAnalysis
    linked: Linked
    costs: pd.DataFrame
    attribution: pd.DataFrame
    roofline: pd.DataFrame
    loops: pd.DataFrame
    recording: Recording | None = None
    kernel_time: pd.DataFrame | None = None
    idle_time: pd.DataFrame | None = None
    sides: TwoSided | None = None
    straggler: tuple[Clause, ...] = ()
    samples: Sequence[Sample] = ()
    bound: Bound | None = None
    predict: "Predict | None" = None
    price: "Price | None" = None
    held_up: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=HELD_UP))
    cache: dict[Callable[..., object], object] = field(default_factory=dict, init=False, repr=False)

    @property
    def step_us(self) -> float:
        """The step that gains are gains of: unprofiled where that was measured."""
        return self.analysis.steps.wall_us

    @property
    def source_texts(self) -> Mapping[str, str]:
        """The text of each recorded line, by its place; empty without a recording."""
        return {} if self.recording is None else self.recording.source_texts

    @property
    def steps(self) -> int:
        """Steps in the window: what sums over rows of the tables are divided by."""
        return max(1, self.analysis.steps.count)

    @property
    def is_host_only(self) -> bool:
        """True if the step runs on the CPU: the trace holds no device work."""
        return self.linked.is_host_only

    @property
    def kernels_per_step(self) -> float:
        """Kernels per step (CPU: ops that do work themselves)."""
        return self.analysis.totals.kernel_count

    @property
    def is_broken(self) -> bool:
        """True if the trace is incomplete or was disturbed.

        Its waits are then not the program's own.
        """
        return any(caveat.slug in BROKEN_TRACE_SLUGS for caveat in self.analysis.caveats)

    @property
    def is_incomplete(self) -> bool:
        """True if the trace lacks a part of what ran.

        A trace that was only disturbed is broken, but complete.
        """
        return any(caveat.slug in BROKEN_TRACE_SLUGS - DISTURBED_SLUGS for caveat in self.analysis.caveats)

    @property
    def is_disturbed(self) -> bool:
        """True if other programs took the processors from the steps."""
        return any(caveat.slug in DISTURBED_SLUGS for caveat in self.analysis.caveats)

    @property
    def has_load_taken_off(self) -> bool:
        """True if what the ops waited for other programs is not in their times."""
        return self.analysis.has_load_taken_off

    @property
    def is_elsewhere(self) -> bool:
        """True if most of the work was done by processes that were not recorded."""
        return any(caveat.slug == ELSEWHERE for caveat in self.analysis.caveats)

    @property
    def host_scale(self) -> float:
        """Factor from host times of the tables to those unprofiled.

        1 where unknown.
        """
        profiled_us = self.linked.window.wall_us / self.steps
        return min(self.step_us / profiled_us, 1.0) if profiled_us > 0 and self.step_us > 0 else 1.0

    @property
    def kernels_in_window(self) -> "npt.NDArray[np.bool_]":
        """Mask of the KERNELS rows issued in steps of the window.

        If the window has no steps, the rows that ran in it; without steps of the program also those whose launch the
        trace lacks.
        """
        kernels, window = self.linked.kernels, self.linked.window
        start = kernels["ts_us"].to_numpy()
        ran = np.asarray((start >= window.start_us) & (start < window.end_us))
        if not window.steps:
            return ran
        issued = kernels["step"].notna().to_numpy()
        lacks_launch = kernels["launch"].isna().to_numpy()
        if self.is_host_only or not (window.source == "whole" or lacks_launch.all()):
            return issued
        return np.asarray(issued | (ran & lacks_launch))

    def share_of_step(self, us: float) -> float:
        """Share of the step (0-1) of so much time per step."""
        return min(max(us / self.step_us, 0.0), 1.0) if self.step_us > 0 else 0.0

    def account_us(self, *accounts: str) -> float:
        """Microseconds per step in these accounts of the ledger."""
        return math.fsum(entry.us for entry in self.analysis.ledger if entry.account in accounts)

    def group_us(self, group: str) -> float:
        """Microseconds per step in all accounts of a group."""
        return math.fsum(entry.us for entry in self.analysis.ledger if entry.group == group)

    def idle_us(self, *causes: str) -> float:
        """Returns microseconds per step that the device waited for these causes.

        All waits count where no cause is named.
        """
        return math.fsum(row.us for row in self.analysis.idle if not causes or row.cause in causes)

    @property
    @remembered
    def op_sums(self) -> Mapping[str, OpSum]:
        """Sums over the ops of the window, by name."""
        ops = self.linked.ops
        rows = _inside(self, ops["ts_us"].to_numpy())
        durations = _until_the_end(self, ops, rows)
        return _sums(self, ops["name"].iloc[rows], durations, np.minimum(ops["self_us"].to_numpy()[rows], durations))

    @property
    @remembered
    def mark_sums(self) -> Mapping[str, OpSum]:
        """Sums over the annotations of the window, by name.

        They are optimizer steps, loaders, garbage collection and others. Their self time is the full one.
        """
        events = self.linked.trace.events
        rows = np.flatnonzero((events["category"] == "annotation").to_numpy())
        rows = rows[_inside(self, events["ts_us"].to_numpy()[rows])]
        durations = _until_the_end(self, events, rows)
        return _sums(self, events["name"].iloc[rows], durations, durations)


@dataclass(frozen=True, eq=False)
class ShorterKernels:
    """Step whose rows of KERNELS take less time, in the trace's time.

    The host does not launch the ``spared`` ones.
    """

    less_us: "npt.NDArray[np.float64]"
    spared: "npt.NDArray[np.bool_] | None" = None


@dataclass(frozen=True, eq=False)
class AtAnyPace:
    """Changes together whose largest gain at any host pace is asked for.

    The host is as recorded, or as quick as without the profiler. ``changes`` are in words that `bottleneck whatif`
    takes.
    """

    changes: tuple[str, ...] = ()
    kernels: ShorterKernels | None = None


@dataclass(frozen=True, eq=False)
class PricedCalls:
    """Times of calls in another type of numbers, by learned rates.

    The ends of an interval in which the sum of all is expected: for each row of CALLS the time of one run, null where
    it has no price.
    """

    low_us: "npt.NDArray[np.float64]"
    high_us: "npt.NDArray[np.float64]"


# The times of calls in fp32 if their numbers were of a type or multiplied in TF32, by the runs of each row of CALLS.
Price = Callable[[Evidence, "npt.NDArray[np.float64]", str], PricedCalls]
# The time per step that some changes save: in words that `bottleneck whatif` takes, of kernels, or both at any pace.
Predict = Callable[[Evidence, Sequence[str] | ShorterKernels | AtAnyPace], float | None]


@dataclass(frozen=True, eq=False)
class Explanation(Evidence):
    """Evidence with the finished analysis: the findings and the verdict that follow from it."""

    analysis: Analysis


@dataclass(frozen=True, eq=False)
class Annotations:
    """One trace, its evidence and its timeline, for an export.

    The ledger in time is a TIMELINE, which the export adds to the trace.
    """

    trace: Path
    evidence: Evidence
    timeline: pd.DataFrame


def counted_faults_us(evidence: Evidence, *, profiled: bool = False) -> float:
    """Returns time per step of the page faults of unprofiled steps.

    At the calibrated rate of new pages; 0 where unknown. With ``profiled``, of the steps of the trace: as many as these
    touch new pages in ops that the trace shows.
    """
    faults = None if evidence.recording is None else evidence.recording.page_faults
    if faults is None:
        return 0.0
    count = faults.profiled if profiled else faults.unprofiled
    return faults.us_of(count, evidence.analysis.device.fresh_bytes_per_s)


def conclude(evidence: Evidence, verdict: Verdict, findings: tuple[Finding, ...], version: str) -> Explanation:
    """Adds the verdict and the findings to the analysis of the evidence.

    The analysis also gets the text of the lines that it names. The findings come in the order in which they are read.
    """
    findings = put_in_reading_order(findings, evidence.step_us, verdict.bound)
    step = {**structs.asdict(evidence.analysis), "version": version}
    analysis = Analysis(**step, verdict=verdict, findings=findings)
    if evidence.recording is not None:
        sampled = {line.source: line.text for line in analysis.run.lines if line.text} if analysis.run else {}
        texts = {**sampled, **evidence.recording.source_texts}
        analysis = replace(analysis, source_texts=_named_texts(analysis, texts))
    parts = {part.name: getattr(evidence, part.name) for part in fields(evidence) if part.init}
    return Explanation(**{**parts, "analysis": analysis})


def _named_texts(analysis: Analysis, texts: Mapping[str, str]) -> Mapping[str, str]:
    """Returns the texts of the lines that the analysis names, cut.

    They are cut because the recording may be a stranger's.
    """
    sources = (fold.name for fold in analysis.lines), (row.source for row in analysis.kernels)
    waits = (row.source for row in analysis.idle)
    advised = (source for finding in analysis.findings for source in (*finding.places, *finding.seen_at))
    places = [place for source in chain(*sources, waits, advised) if source is not None and (place := place_of(source))]
    named = dict.fromkeys(line_source(place.file, place.line) for place in places if not place.is_function)
    return {line: texts[line][:LONGEST_SOURCE_TEXT] for line in named if line in texts}


def _inside(evidence: Evidence, at_us: "npt.NDArray[np.float64]") -> "npt.NDArray[np.int64]":
    low, high = evidence.linked.window.host_us
    return np.flatnonzero((at_us >= low) & (at_us < high))


def _until_the_end(evidence: Evidence, table: pd.DataFrame, rows: "npt.NDArray[np.int64]") -> "npt.NDArray[np.float64]":
    """Returns durations of these rows, cut at the window's end.

    An event that is open there may reach to the end of the trace.
    """
    start, dur = (table[name].to_numpy()[rows] for name in ("ts_us", "dur_us"))
    return np.asarray(np.minimum(dur, evidence.linked.window.host_us[1] - start))


def _sums(
    evidence: Evidence, names: "pd.Series[str]", us: "npt.NDArray[np.float64]", self_us: "npt.NDArray[np.float64]"
) -> Mapping[str, OpSum]:
    codes, labels = names.cat.codes.to_numpy(), names.cat.categories
    size = len(labels)
    columns = (
        np.bincount(codes, minlength=size),
        np.bincount(codes, weights=us, minlength=size),
        np.bincount(codes, weights=self_us, minlength=size),
    )
    used_codes = np.flatnonzero(columns[0])
    values = np.stack(columns, axis=1)[used_codes] / evidence.steps
    return {str(labels[code]): OpSum(*row) for code, row in zip(used_codes.tolist(), values.tolist(), strict=True)}
