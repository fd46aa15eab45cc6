"""Frozen records of one analysis: device, ledger, kernels, findings and verdict.

``Analysis`` is the contract of ``analysis.json``: its fields are the file's keys. Durations are microseconds per step,
shares lie in 0-1, and null means unknown.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal

from msgspec import Struct, field
from msgspec.structs import force_setattr

from bottleneck.schema.compile_health import CompileHealth
from bottleneck.schema.device import Device
from bottleneck.schema.inference import InferenceServing
from bottleneck.schema.job import JobSummary
from bottleneck.schema.measurements import BatchProof, MeasuredPieces, OptionCosts, RunSteps, StepTimes
from bottleneck.schema.op_names import line_source, place_of
from bottleneck.schema.records import Doc
from bottleneck.schema.start_up import StartLedger
from bottleneck.units import apportion_groups, format_ratio, format_share

MemoryKind = Literal["parameters", "gradients", "optimizer state", "activations", "temporaries", "unknown"]


class KindBytes(Struct, frozen=True):
    """Memory of one kind at the peak."""

    kind: Annotated[
        MemoryKind,
        Doc(
            "what it holds: 'gradients' outlive the backward pass that makes them, 'activations' the forward op that "
            "makes them, 'temporaries' do neither"
        ),
    ]
    bytes: Annotated[int, Doc("at the peak; those of all kinds add up to peak_bytes", "B")]
    count: Annotated[int | None, Doc("allocations; null where the recording does not show them one by one")]
    reason: Annotated[str | None, Doc("what it is deduced from, or why its kind is not known")] = None


class LiveAllocations(Struct, frozen=True):
    """Allocations of one op, module, line and kind that live at the peak."""

    op: Annotated[str | None, Doc("op that allocated; null outside ops")]
    module: Annotated[str | None, Doc("path of the nn.Module that allocated")]
    source: Annotated[str | None, Doc("line that allocated, 'file.py:57'; in the backward pass not known")]
    kind: Annotated[MemoryKind, Doc("what it holds, see kinds")]
    bytes: Annotated[int, Doc("at the peak", "B")]
    count: Annotated[int, Doc("allocations")]
    longest_us: Annotated[float | None, Doc("the longest life of one; null where one outlives the recording", "us")]


class MemoryUse(Struct, frozen=True):
    """Memory over the window by allocator events, with its peak.

    It lists what lives at the instant of the peak. Of several devices it is the one with the highest peak. The total of
    a device counts all of its memory that torch allocated, that of the host what was allocated since recording began,
    and what models and optimizers held by then where the recording tells.
    """

    device: Annotated[int | None, Doc("device index; null for memory of the host")]
    curve: Annotated[
        tuple[tuple[float, int, int | None], ...],
        Doc("time since the host began the first step, bytes allocated, bytes reserved; thinned", "us, B, B"),
    ]
    peak_at_us: Annotated[float, Doc("instant of the highest use, since the host began the first step", "us")]
    peak_bytes: Annotated[int, Doc("allocated at that instant", "B")]
    reserved_bytes: Annotated[
        int | None, Doc("most that the allocator held of the device; null where it does not tell", "B")
    ]
    earlier_bytes: Annotated[
        int, Doc("part of peak_bytes that was there before recording began, whose op is not known", "B")
    ]
    kinds: Annotated[tuple[KindBytes, ...], Doc("peak_bytes by kind, most first")]
    allocations: Annotated[
        tuple[LiveAllocations, ...],
        Doc("what lives at the peak, most bytes first; with earlier_bytes and other_bytes it adds up to peak_bytes"),
    ]
    other_bytes: Annotated[int, Doc("those that live at the peak and are too small to be listed", "B")] = 0
    reason: Annotated[str | None, Doc("limits of these figures; null where there are none")] = None


SCHEMA = "bottleneck/analysis/2"

Bound = Literal["compute", "memory", "overhead", "communication", "transfer", "device", "mixed", "inconclusive"]
Regime = Literal["near_roof", "below_roof", "far_below_roof"]
Confidence = Literal["high", "medium", "low"]


class RoofBand(Struct, frozen=True):
    """Band of closeness to the roof, by its lowest explained share.

    ``least`` is the smallest share of the time (0-1) that the largest floor explains in this band.
    """

    least: float
    words: str
    meaning: str


REGIMES: Mapping[Regime, RoofBand] = {
    "near_roof": RoofBand(0.7, "near the roof", "only less work, a lower precision or better hardware makes it faster"),
    "below_roof": RoofBand(0.5, "below the roof", "tuning may save up to half of its time"),
    "far_below_roof": RoofBand(0.0, "far below the roof", "at its roof it would take less than half of its time"),
}
"""The bands of ``KernelSummary.explained``, highest first.

The best large products and streams of public traces reach 0.71 to 0.97 of a data sheet, which gives the first bound.
Below the second one the time is more than twice what the roof allows.
"""

GROUPS = ("compute", "memory", "overhead", "communication", "transfer", "unknown")

# Slugs of caveats that leave no verdict: much of the device's work is not in the trace, or the times are not its own.
DISTURBED, CONTENDED = "disturbed-profile", "contended"
# Profiled steps that took far longer than they should beside free processors: that is the profiler's own doing.
STRETCHED = "stretched-profile"
# Waits for a processor that other programs used are taken off: what is left is the program's own.
LOAD_TAKEN_OFF = "load-taken-off"
# One thread that shared its processor: times are longer, shares are the program's own.
SHARED_PROCESSOR = "shared-processor"
HALF_RECORDED, GRAPH_CAPTURE, ONE_OFF = "device-not-recorded", "graph-capture", "one-off"
LEAD_IN, STARTED_BEFORE = "lead-in", "start-up-before"
# Apple's GPUs, whose work no profiler of torch records.
APPLE_UNRECORDED = "apple-gpu-not-recorded"
# A device of the machine, of which the trace holds nothing.
LISTED_ALONE = "device-listed-alone"
# The file ends early: what came later is missing.
TRUNCATED = "truncated"
# No longer holds once several ranks are looked at together.
ONE_RANK = "one-rank"
ONE_SIDE, TWO_SIDED = "one-side", "two-sided"
KERNELS_MISSING, SAMPLED = "kernels-missing", "sampled"
# What the program's own process did is not what the program does.
ELSEWHERE = "work-in-other-processes"
DISTURBED_SLUGS = frozenset({DISTURBED, CONTENDED, SHARED_PROCESSOR, LOAD_TAKEN_OFF})
BROKEN_TRACE_SLUGS = frozenset(
    {
        "no-device-events",
        HALF_RECORDED,
        APPLE_UNRECORDED,
        KERNELS_MISSING,
        SAMPLED,
        DISTURBED,
        CONTENDED,
        ELSEWHERE,
    }
)


def regime_of(explained: float) -> Regime:
    """The band that this share of a kernel's time lies in (0-1)."""
    return next(regime for regime, band in REGIMES.items() if explained >= band.least)


# Sums of shares miss 0 and 1 by so much.
_ROUNDING = 1e-6


class Caveat(Struct, frozen=True):
    """Limit of this analysis, with the share of the step it affects.

    ``slug`` is a stable key. One with a share below 0 or above 1, but for rounding, cannot be built (ValueError).
    """

    slug: Annotated[str, Doc("stable name of the caveat")]
    message: Annotated[str, Doc("what is not known or not certain, and why")]
    share: Annotated[float | None, Doc("of the step that is affected; null where that is not known", "share")] = None
    cause: Annotated[str | None, Doc("the end of the message that says what led to it; null where none does")] = None

    def __post_init__(self) -> None:
        if self.share is None or 0.0 <= self.share <= 1.0:
            return
        if not -_ROUNDING <= self.share <= 1.0 + _ROUNDING:
            raise ValueError(f"the share of the caveat {self.slug} is {self.share!r}, and has to lie between 0 and 1")
        force_setattr(self, "share", min(max(self.share, 0.0), 1.0))


class LedgerEntry(Struct, frozen=True):
    """One account of the ledger: microseconds per step and share of the step."""

    account: Annotated[str, Doc("such as 'compute', 'memory.copy', 'overhead.input'")]
    group: Annotated[str, Doc("'compute', 'memory', 'overhead', 'communication', 'transfer' or 'unknown'")]
    us: Annotated[float, Doc("per step", "us")]
    share: Annotated[float, Doc("of the step; all shares add up to 1", "share")]


class Ledger(Struct, frozen=True):
    """Partition of the step's wall time.

    One that does not add up cannot be built (AssertionError).
    """

    wall_us: float
    entries: tuple[LedgerEntry, ...]

    def __post_init__(self) -> None:
        total = math.fsum(entry.us for entry in self.entries)
        assert abs(total - self.wall_us) <= 1e-9 * max(self.wall_us, 1e-12), (
            f"ledger holds {total!r} us of {self.wall_us!r} us"
        )
        assert all(entry.us >= 0 for entry in self.entries), "ledger holds a negative account"
        assert all(entry.group in GROUPS for entry in self.entries), "ledger holds an unknown group"

    def group_shares(self) -> dict[str, float]:
        """Share of the step per group, every group present."""
        return {group: math.fsum(entry.share for entry in self.entries if entry.group == group) for group in GROUPS}


def share_tenths(entries: Iterable[LedgerEntry]) -> dict[LedgerEntry, int]:
    """Gives tenths of a per cent per account that has time.

    Those of a group add up to the group's, and all add up to the step's.
    """
    held = sorted((entry for entry in entries if entry.us > 0), key=lambda entry: -entry.us)
    groups = [[entry for entry in held if entry.group == group] for group in GROUPS]
    groups.sort(key=lambda members: -math.fsum(entry.us for entry in members))
    rounded = apportion_groups([[entry.share * 1000 for entry in members] for members in groups])
    return {
        entry: number
        for members, numbers in zip(groups, rounded, strict=True)
        for entry, number in zip(members, numbers, strict=True)
    }


def describe_share(tenths: Mapping[LedgerEntry, int], entries: Iterable[LedgerEntry]) -> str:
    """The share of some accounts as a percentage, the same in tables and sentences."""
    held = [entry for entry in entries if entry in tenths]
    count = sum(tenths[entry] for entry in held)
    return format_share(math.fsum(entry.share for entry in held) if count in {0, 1000} else count / 1000)


class RecordingInfo(Struct, frozen=True):
    """Source of the analysis: a recording or a trace file."""

    path: Annotated[str, Doc("trace or recording, as named on the command line")]
    kind: Annotated[Literal["run", "trace"], Doc("a recording of 'bottleneck run', or a bare trace")]
    framework: Annotated[str | None, Doc("framework and version; null where the trace does not record it")]
    created: Annotated[str | None, Doc("when it was recorded, ISO 8601; null when not known")]
    world_size: Annotated[int | None, Doc("ranks of the job; null when not known")]


ClauseRole = Literal[
    "cut_off",
    "late_rank",
    "late_cause",
    "pace",
    "sure",
    "bound",
    "cause",
    "place",
    "doubt",
    "start_up",
    "profiler",
    "sides",
    "unanswered",
    "first",
]


class Clause(Struct, frozen=True):
    """One part of a verdict in words, without a full stop.

    ``joiner`` is the text between it and the part before.
    """

    role: Annotated[ClauseRole, Doc("what it tells: the bound, its place, a doubt, the first action …")]
    text: Annotated[str, Doc("the words")]
    joiner: Annotated[Literal[". ", "; ", ", ", ": "], Doc("what stands before it, unless it is the first")] = ". "
    source: Annotated[str | None, Doc("slug of the finding whose advice it is; null where it is of none")] = None
    label: Annotated[str, Doc("word before the text: 'Worst', 'First'; empty where there is none")] = ""

    @property
    def words(self) -> str:
        """The text with its label before it."""
        return f"{self.label}: {self.text}" if self.label else self.text


def join_clauses(clauses: Sequence[Clause]) -> str:
    """The sentences that these clauses make."""
    return "".join(f"{clause.joiner if at else ''}{clause.words}" for at, clause in enumerate(clauses)) + "."


class Verdict(Struct, frozen=True):
    """Resource that limits the step, its share, and the conclusion in words.

    The conclusion is there as clauses and as the text that they make.
    """

    bound: Annotated[Bound, Doc("resource that limits the step; 'device' where only its being busy is known")]
    regime: Annotated[Regime | None, Doc("how close the kernels of this bound together are to their roof")]
    share: Annotated[float, Doc("share of the step that the verdict rests on", "share")]
    sentence: Annotated[str, Doc("the verdict in words, with the first action")]
    shares: Annotated[Mapping[str, float], Doc("of the step, by group of the ledger", "share")]
    first_step: Annotated[
        str | None,
        Doc("the first action, which ends the sentence: that of finding 1; null where there is none"),
    ] = None
    clauses: Annotated[tuple[Clause, ...], Doc("the sentence in its parts; empty in older analyses")] = ()
    share_shown: Annotated[
        str | None, Doc("'share' as the ledger's table shows it, whose shares add up; null in older analyses")
    ] = None
    is_guess: Annotated[
        bool, Doc("whether 'bound' follows from the types of ops or kernels, since too little has a known cost")
    ] = False

    @property
    def share_words(self) -> str:
        """The share of the verdict, the same wherever it is shown."""
        return self.share_shown or format_share(self.share)


class Totals(Struct, frozen=True):
    """Sums per step; ``peak`` names the one that ``model_flops_utilization`` is a share of."""

    busy_us: Annotated[float, Doc("time in which the device worked", "us")]
    idle_us: Annotated[float, Doc("time in which it did not", "us")]
    flops: Annotated[float | None, Doc("FLOPs of the modelled work (work with a cost formula)", "FLOP")]
    bytes_low: Annotated[float | None, Doc("compulsory traffic: each distinct byte once", "B")]
    bytes_high: Annotated[float | None, Doc("traffic of the usual eager kernels", "B")]
    kernel_count: Annotated[float, Doc("kernels", "1/step")]
    op_count: Annotated[float, Doc("framework ops", "1/step")]
    launch_count: Annotated[float, Doc("host calls that issue device work", "1/step")]
    sync_count: Annotated[float, Doc("host calls that wait for the device", "1/step")]
    copy_count: Annotated[float, Doc("copies", "1/step")]
    h2d_bytes: Annotated[float | None, Doc("copied from host to device", "B")]
    d2h_bytes: Annotated[float | None, Doc("copied from device to host", "B")]
    peak_memory_bytes: Annotated[
        int | None, Doc("most memory in use at once: of the device, on a CPU resident in the process", "B")
    ]
    model_flops_utilization: Annotated[float | None, Doc("FLOPs / (wall time x peak)", "share")]
    bandwidth_utilization: Annotated[float | None, Doc("bytes / (wall time x bandwidth)", "share")]
    peak: Annotated[str | None, Doc("key in device.peaks_flops_per_s that model_flops_utilization refers to")] = None
    peak_memory_reason: Annotated[
        str | None, Doc("limits of the figure for peak memory, or why it is not known; null where there is none")
    ] = None


class UnknownWork(Struct, frozen=True):
    """Busy time that is unmodelled (no cost formula)."""

    name: Annotated[str, Doc("kernel or op")]
    us: Annotated[float, Doc("per step", "us")]
    reason: Annotated[str, Doc("why it is unmodelled")]
    reason_code: Annotated[str | None, Doc("the same as a code; null where none is known, and in older analyses")] = (
        None
    )


class Coverage(Struct, frozen=True):
    """Shares of the busy time linked to ops and modelled (0-1).

    The unmodelled work is listed beside them.
    """

    linked_share: Annotated[
        float | None, Doc("of the busy time that is linked to an op; null where nothing ran", "share")
    ]
    modelled_share: Annotated[float | None, Doc("of the busy time whose FLOPs and bytes are modelled", "share")]
    unknown: Annotated[tuple[UnknownWork, ...], Doc("unmodelled work (no cost formula)")]


class KernelSummary(Struct, frozen=True):
    """Kernels of one name, op, shape and line, folded: microseconds and counts per step."""

    name: Annotated[str, Doc("as the trace spells it")]
    family: Annotated[str, Doc("matmul, convolution, attention, pointwise, copy …")]
    op: Annotated[str | None, Doc("op that issued it; null where it is linked to none")]
    shapes: Annotated[str | None, Doc("shapes of that op's inputs")]
    module: Annotated[str | None, Doc("path of the nn.Module that issued it")]
    source: Annotated[str | None, Doc("line that issued it, 'file.py:57'")]
    dtype: Annotated[str | None, Doc("dtype of its data; on matrix units that of the arithmetic (tf32 …)")]
    engine: Annotated[str | None, Doc("'matrix', 'vector' or 'none'; null where its name does not show it")]
    calls: Annotated[float, Doc("number of runs", "1/step")]
    us: Annotated[float, Doc("time per step; concurrent kernels share the time", "us")]
    share: Annotated[float, Doc("of the step", "share")]
    flops: Annotated[float | None, Doc("FLOPs attributed to it; null where it is unmodelled", "FLOP")]
    bytes_low: Annotated[float | None, Doc("compulsory traffic", "B")]
    bytes_high: Annotated[float | None, Doc("traffic of the usual eager kernels", "B")]
    compute_us: Annotated[float | None, Doc("floor: time that its arithmetic needs at the device's peak", "us")]
    memory_us: Annotated[float | None, Doc("floor: time that its bytes need at the device's bandwidth", "us")]
    launch_us: Annotated[float | None, Doc("floor: time that its launches need", "us")]
    bound: Annotated[
        str, Doc("largest floor: compute, memory, overhead; or communication, transfer, copy, dispatch, unknown")
    ]
    regime: Annotated[
        Regime | None, Doc("how close it is to its roof: 'explained' of 0.7 and more, of 0.5 and more, or below")
    ]
    explained: Annotated[float | None, Doc("largest floor / time", "share")]
    confidence: Annotated[Confidence, Doc("whether the bound stays the same over the intervals of cost and peak")]
    reason: Annotated[str | None, Doc("why it is below its roof or unknown")]
    headroom_us: Annotated[float | None, Doc("time / step that reaching the floor would save", "us")]
    flops_per_s: Annotated[float | None, Doc("FLOPs / time while it runs; needs no peak", "FLOP/s")] = None
    bytes_per_s: Annotated[
        float | None, Doc("compulsory bytes / time while it runs; more is moved where a cache misses", "B/s")
    ] = None
    account: Annotated[
        str | None, Doc("account of the ledger that its time is part of; null in analyses of before that was kept")
    ] = None
    reason_code: Annotated[str | None, Doc("the reason as a code; null without one, and in older analyses")] = None
    library: Annotated[
        str | None, Doc("library that computes it: cuBLAS, MKL, ATen …; null where that is not known, and of dispatch")
    ] = None
    library_reason: Annotated[str | None, Doc("why the library is not known; null in older analyses")] = None


def library_times(kernels: Iterable[KernelSummary]) -> dict[str | None, float]:
    """Time per step by library, most first and the unknown last.

    They add up to the time of the kernels. Dispatch is none: it computes nothing.
    """
    us_of: dict[str | None, list[float]] = {}
    for kernel in kernels:
        if kernel.bound != "dispatch":
            us_of.setdefault(kernel.library, []).append(kernel.us)
    sums = {library: math.fsum(us) for library, us in us_of.items()}
    return dict(sorted(sums.items(), key=lambda item: (item[0] is None, -item[1], item[0] or "")))


class Fold(Struct, frozen=True):
    """Work folded by op, module path or source line; ``shares`` splits it by group."""

    name: Annotated[str, Doc("op, module path or source line")]
    calls: Annotated[float, Doc("number of calls", "1/step")]
    us: Annotated[float, Doc("per step", "us")]
    share: Annotated[float, Doc("of the step", "share")]
    shares: Annotated[Mapping[str, float], Doc("of its own time, by group of the ledger", "share")]
    idle_us: Annotated[float, Doc("idle time in which the host was here, per step; not part of us", "us")] = 0.0


PhaseName = Literal["data", "forward", "backward", "optimizer", "communication", "other"]


class Phase(Struct, frozen=True):
    """Time of the step that one phase caused, busy and idle.

    ``shares`` splits it by group. Device work belongs to the phase in which it was launched. ``kernels`` and
    ``other_us`` add up to ``us``.
    """

    name: Annotated[PhaseName, Doc("phase of training; 'other' is what no mark tells")]
    us: Annotated[float, Doc("per step; those of all phases add up to steps.wall_us", "us")]
    share: Annotated[float, Doc("of the step; all shares add up to 1", "share")]
    shares: Annotated[Mapping[str, float], Doc("of its own time, by group of the ledger", "share")]
    kernels: Annotated[
        tuple[tuple[int, float], ...], Doc("rows of kernels and their time in this phase, most time first", "row, us")
    ] = ()
    other_us: Annotated[
        Mapping[str, float], Doc("time in no row of kernels (idle time above all), by account of the ledger", "us")
    ] = field(default_factory=dict)


class UserRange(Struct, frozen=True):
    """Time of the step in a range that the program marked (``record_function``).

    It includes the idle time while the range was open. Device work belongs to the range in which it was launched.
    Ranges nest, so that their times do not add up; ``self_us``, without the ranges inside it, does.
    """

    name: Annotated[str, Doc("as the program spells it")]
    calls: Annotated[float, Doc("number of times that it was opened", "1/step")]
    us: Annotated[float, Doc("per step, ranges inside it included", "us")]
    self_us: Annotated[float, Doc("per step, without the ranges inside it", "us")]
    share: Annotated[float, Doc("us, of the step", "share")]
    shares: Annotated[Mapping[str, float], Doc("of us, by group of the ledger", "share")]


class IdleCause(Struct, frozen=True):
    """Time without work on the device, by cause and source line.

    On a CPU it is the time in which the step's threads did no work.
    """

    cause: Annotated[str, Doc("account of the ledger without 'overhead.'")]
    us: Annotated[float, Doc("per step", "us")]
    share: Annotated[float, Doc("of the step", "share")]
    source: Annotated[str | None, Doc("line at which the host was, 'file.py:57'")]
    calls: Annotated[float, Doc("number of gaps", "1/step")]
    detail: Annotated[
        str | None, Doc("call, op, data loader or Python frame that the host was in; null where not known")
    ] = None
    module: Annotated[str | None, Doc("path of the nn.Module at which the host was; null when not known")] = None
    copy: Annotated[
        str | None,
        Doc("the copy that this call issued: the host's memory and the way, 'pageable to_device'; else null"),
    ] = None
    before: Annotated[
        str | None, Doc("kernel whose end left the device idle in most of this time; null where another cause did")
    ] = None
    after: Annotated[str | None, Doc("op (without one, kernel) that came next in most of this time; null if none")] = (
        None
    )
    on_pages: Annotated[bool, Doc("whether the system spends it on pages of memory, given out anew or given back")] = (
        False
    )


class Queue(Struct, frozen=True):
    """Queue depth over time: launches issued less kernels finished.

    ``curve`` holds pairs of the time since the window's start in us and the depth.
    """

    empty_idle_share: Annotated[
        float | None,
        Doc("of the device's idle time in which the queue was empty, so that the host was too slow", "share"),
    ]
    median_depth: Annotated[float, Doc("launches issued less kernels finished, median over time")]
    highest_depth: Annotated[int, Doc("the most at one time")]
    curve: Annotated[
        tuple[tuple[float, float], ...],
        Doc("depth by time from the start of the window, thinned for a figure", "us, 1"),
    ]


class CollectiveSummary(Struct, frozen=True):
    """Collectives of one kind and size, per step.

    It holds the traffic on the link and how much of the time is transfer. ``transfer_us`` is the time of the quickest
    call of this size (over the ranks where they are known) for all calls, ``wait_us`` the rest: waiting for ranks that
    come later, or sharing the device.
    """

    name: Annotated[str, Doc("kind of collective, else the kernel's name")]
    dtype: Annotated[str | None, Doc("element type of the message")]
    group_size: Annotated[int | None, Doc("ranks that take part")]
    calls: Annotated[float, Doc("calls", "1/step")]
    us: Annotated[float, Doc("per step, waiting for other ranks included", "us")]
    exposed_us: Annotated[float, Doc("the part of it in which no kernel computed", "us")]
    bytes: Annotated[float | None, Doc("payload per rank and step", "B")]
    bus_bytes_per_s: Annotated[
        float | None, Doc("of the fastest call: payload / time x the factor of its kind (nccl-tests)", "B/s")
    ]
    transfer_us: Annotated[float | None, Doc("time of all calls at the rate of the fastest call of this size", "us")]
    wait_us: Annotated[float | None, Doc("remaining time: waiting for other ranks, or sharing the device", "us")]
    reason: Annotated[str | None, Doc("why bytes or rate are not known")]
    forward_calls: Annotated[float, Doc("calls issued before the first backward node of their step", "1/step")] = 0.0


class Interval(Struct, frozen=True):
    """A closed interval, both ends included."""

    low: Annotated[float, Doc("lower end")]
    high: Annotated[float, Doc("upper end")]


# A predicted speedup is shown as an interval up to this ratio of its ends, and is certain only up to it.
_WIDEST = 2.5
# Times as fast, from where on hardly anything is left of the step.
_NOTHING_LEFT = 10.0
# A change that may make the step so much slower, or more, is no certain gain.
_LEAST_CERTAIN = 0.95
_NO_SLOWER = 0.995  # a speedup below it does not read 1.00
STEPS_VARY = "single steps differ by more than that, so compare the mean of many"
_LEAST_TOLD = 1.005  # a speedup below it reads 1.00, and "at least 1.00 times" says nothing


def is_certain(speedup: Interval) -> bool:
    """Returns whether a predicted speedup is certain.

    Its ends must be near one another, and it may cost hardly any time.
    """
    return speedup.low >= _LEAST_CERTAIN and speedup.high <= _WIDEST * speedup.low


class Finding(Struct, frozen=True):
    """One piece of advice with its predicted gain if nothing else changes.

    The gain is per step. ``predicted_speedup`` is what the rule states, ``stated_speedup``, as wide as earlier trials
    of such evidence showed that it has to be; below 1 where it may cost time. ``predicted_gain_us`` is the same in time
    per step. ``gain_reason`` is why no gain is predicted; null where one is. ``added_gain_us`` is what this one adds
    once those ranked above it are done: over all findings it does not add up to more than the step. ``claims`` is the
    time that the gain would come from; without any it is the whole step. No gain exceeds the time of the accounts, the
    phase or the lines that it comes from. ``tries`` names the changes that `bottleneck verify` applies for it,
    ``verify`` is the command. ``within_noise`` marks a gain that is smaller than what the step times of this recording
    can tell apart. Where ``per`` is "sample", the gain is that of as many samples as the recorded step had, in a step
    that takes longer.
    """

    slug: Annotated[str, Doc("stable name of the rule")]
    title: Annotated[str, Doc("observation, in one line")]
    evidence: Annotated[tuple[str, ...], Doc("measurements behind it")]
    predicted_gain_us: Annotated[
        Interval | None,
        Doc(
            "per step, if nothing else is changed; below 0 where it may cost time; null where none can be predicted",
            "us",
        ),
    ]
    predicted_speedup: Annotated[Interval | None, Doc("old time / new time", "ratio")]
    advice: Annotated[str, Doc("change to make")]
    verify: Annotated[str | None, Doc("command that tries it; null where it cannot be tried alone")]
    code: Annotated[str | None, Doc("code to write")] = None
    gain_reason: Annotated[str | None, Doc("why no gain is predicted")] = None
    by_formula: Annotated[str | None, Doc("why a formula gave the gain where timed pieces of the step could")] = None
    added_gain_us: Annotated[
        Interval | None,
        Doc("per step, once the findings above it are applied; these add up to less than the step", "us"),
    ] = None
    tries: Annotated[tuple[str, ...], Doc("names of the changes that `bottleneck verify` applies for it")] = ()
    confidence: Annotated[Confidence, Doc("confidence in the figures behind it")] = "medium"
    within_noise: Annotated[bool, Doc("whether the gain is too small for the step times of this recording to show")] = (
        False
    )
    changes_results: Annotated[
        bool, Doc("whether it changes what the program computes (batch size, precision), not only how")
    ] = False
    corrects_results: Annotated[bool, Doc("whether the program's results are wrong without it")] = False
    per: Annotated[
        Literal["step", "sample"], Doc("whether the gain is of the time per step, or of the time per sample")
    ] = "step"
    on_request: Annotated[bool, Doc("whether reports show it only with --all-findings")] = False
    claims: Annotated[
        Mapping[str, float],
        Doc(
            "time per step that the gain would come from, by account of the ledger or 'kernel:N', row N of kernels",
            "us",
        ),
    ] = field(default_factory=dict)
    changes: Annotated[
        tuple[str, ...],
        Doc("the change in words that `bottleneck whatif` takes; empty where a formula of the rule gives the gain"),
    ] = ()
    measured: Annotated[
        bool, Doc("whether the gain rests on times measured for it: of pieces of the step, or of twice the batch")
    ] = False
    stated_speedup: Annotated[
        Interval | None,
        Doc("predicted_speedup as the rule states it, before trials of such evidence made it wider", "ratio"),
    ] = None
    brief: Annotated[
        str | None, Doc("the change in a few words; null where 'advice' is short enough for a line or two")
    ] = None
    comes_first: Annotated[
        bool, Doc("whether it stands before all others, which are of a disturbed step or of a small part of the run")
    ] = False
    phase: Annotated[PhaseName | None, Doc("phase that all of the gain comes from; null where it is not one")] = None
    lines: Annotated[
        tuple[str, ...], Doc("source lines that all of the gain comes from; empty where it is more than these")
    ] = ()
    waits: Annotated[
        tuple[int, ...],
        Doc("rows of idle that the claimed idle time is; empty where it is all that the claimed accounts hold"),
    ] = ()
    places: Annotated[tuple[str, ...], Doc("source lines and functions that title and advice name")] = ()
    seen_at: Annotated[tuple[str, ...], Doc("source lines and functions that the evidence names")] = ()
    relief_us: Annotated[
        float,
        Doc(
            "part of the gain's upper end that is of the rest of the step, on a CPU: memory time of data that stays in "
            "the caches once the claimed work is gone",
            "us",
        ),
    ] = 0.0

    @property
    def is_open(self) -> bool:
        """True where only the lower end of the speedup is predicted.

        The ends are far apart, or next to nothing is left of the step by the upper one: less than the rule's error.
        """
        if self.predicted_speedup is None:
            return False
        low, high = self.predicted_speedup.low, self.predicted_speedup.high
        return (low >= _WIDEST and high >= _NOTHING_LEFT) or high > _WIDEST * low >= _WIDEST

    def describe_speedup(self) -> str | None:
        """The predicted speedup in words; null where none is predicted.

        One that reaches far below 1 predicts nothing, and says so.
        """
        if self.predicted_speedup is None:
            return None
        low = self.predicted_speedup.low
        if self.is_open and low < _LEAST_TOLD:
            return "may help little or much, try it"
        times = f"times {'as many samples per second' if self.per == 'sample' else 'as fast'}"
        if _LEAST_CERTAIN <= low < _NO_SLOWER:
            slower = f"{max(round((1.0 - low) * 100), 1)} % {'fewer' if self.per == 'sample' else 'slower'}"
            return f"from {slower} to {format_ratio(self.predicted_speedup.high)} {times}"
        words = f"{self._times(' to ')} {times}"
        return words if low >= _LEAST_CERTAIN else f"may help or hurt, try it: {words}"

    def describe_speedup_briefly(self) -> str | None:
        """The predicted speedup for a place of few letters: '1.02-1.03x'."""
        if self.predicted_speedup is None:
            return None
        low = self.predicted_speedup.low
        if self.is_open and low < _LEAST_TOLD:
            return "try it"
        words = f"{self._times('-')}x{' samples' if self.per == 'sample' else ''}"
        return words if low >= _LEAST_CERTAIN else f"try it: {words}"

    def _times(self, to: str) -> str:
        """The predicted speedup in digits.

        Both ends stand where they differ as shown; from 1 on only the upper one does.
        """
        assert self.predicted_speedup is not None
        low, high = self.predicted_speedup.low, self.predicted_speedup.high
        if self.is_open:
            return f"at least {format_ratio(low)}"
        if format_ratio(low) == format_ratio(1.0) != format_ratio(high):  # "1.00 to 1.08" reads as a gain
            return f"up to {format_ratio(high)}"
        ends = [(format_ratio(low), format_ratio(high)), *((f"{low:.{at}f}", f"{high:.{at}f}") for at in (3, 4))]
        return next((f"{first}{to}{last}" for first, last in ends if first != last), format_ratio(low))


# The kind of evidence of a bound: a replay of the recorded steps, times measured for it, or the recorded time of all
# that the change could take away.
BoundBasis = Literal["replayed", "timed", "recorded"]

NoGainCode = Literal[
    "read-later",
    "compile",
    "graph",
    "fused-optimizer",
    "workers",
    "pin-memory",
    "channels-last",
    "larger-batch",
    "faster-arithmetic",
    "faster-device",
]


class NoGain(Struct, frozen=True):
    """Change that people try first, but would bring next to nothing.

    No finding advises it. ``cause`` and ``numbers`` are why; times among the numbers are microseconds per step.
    ``tries`` names the changes that `bottleneck verify --no-gain` applies, none where it has none of the kind.
    """

    code: Annotated[NoGainCode, Doc("the change")]
    most_share: Annotated[float, Doc("gain at most, of the step (of a larger batch: of the time per sample)", "share")]
    basis: Annotated[
        BoundBasis, Doc("evidence of the bound: a replay, timed steps, or recorded time that it is part of")
    ]
    cause: Annotated[str, Doc("why it brings nothing, as a code")]
    numbers: Annotated[Mapping[str, float], Doc("amounts that the cause is told with: ..._us, ..._share, ratio")] = (
        field(default_factory=dict)
    )
    source: Annotated[str | None, Doc("line that it is about; null where it is not about one, or none is known")] = None
    tries: Annotated[
        tuple[str, ...], Doc("names of the changes that `bottleneck verify --no-gain` applies for it")
    ] = ()


class RankSummary(Struct, frozen=True):
    """One rank of several: its own ledger, and its mean delay at collectives."""

    rank: Annotated[int, Doc("number of the rank")]
    path: Annotated[str, Doc("trace of the rank")]
    wall_us: Annotated[float, Doc("step of the rank", "us")]
    ledger: Annotated[tuple[LedgerEntry, ...], Doc("ledger of the rank")]
    skew_us: Annotated[float | None, Doc("mean delay at collectives; null where there are none", "us")]
    verdict: Annotated[str, Doc("bound of the rank")]


class TelemetrySummary(Struct, frozen=True):
    """Sensor readings while the steps ran, mostly as medians.

    Energy is per step, and processors are a mean.

    The first fields and those up to ``dram_activity`` are the device's, of one where several were used (energy: of
    all); the rest are the host's. ``energy_error_j`` is the size of two updates of the counter.
    """

    samples: Annotated[int, Doc("number of samples of the device's sensors; of the host's where there is no device")]
    sm_clock_mhz: Annotated[float | None, Doc("clock of the multiprocessors", "MHz")]
    memory_clock_mhz: Annotated[float | None, Doc("clock of the memory", "MHz")]
    power_w: Annotated[float | None, Doc("power drawn", "W")]
    energy_j: Annotated[
        float | None, Doc("energy per step, by the device's counter; null for less than 2 s of steps", "J")
    ]
    utilization: Annotated[float | None, Doc("by the device's own counter: time in which any kernel ran", "share")]
    throttle: Annotated[tuple[str, ...], Doc("reasons for reduced clocks")]
    energy_error_j: Annotated[float | None, Doc("error bound of the energy: two updates of the counter", "J")] = None
    temperature_c: Annotated[float | None, Doc("temperature of the chip", "C")] = None
    memory_used_bytes: Annotated[float | None, Doc("device memory in use, by all programs", "B")] = None
    pcie_tx_bytes_per_s: Annotated[float | None, Doc("sent by the device", "B/s")] = None
    pcie_rx_bytes_per_s: Annotated[float | None, Doc("received by the device", "B/s")] = None
    sm_activity: Annotated[
        float | None, Doc("of the multiprocessors that were busy, by the device's own counters", "share")
    ] = None
    tensor_activity: Annotated[
        float | None, Doc("of the time in which tensor cores worked, by the device's own counters", "share")
    ] = None
    dram_activity: Annotated[
        float | None, Doc("of the DRAM bandwidth that was used, by the device's own counters", "share")
    ] = None
    process_processors: Annotated[
        float | None, Doc("processors that the program and its children kept busy, on average")
    ] = None
    process_waits: Annotated[
        float | None,
        Doc("threads of the program's first process that were ready and had no processor, on average"),
    ] = None
    host_utilization: Annotated[
        float | None, Doc("of all processors of the machine that were busy, by any program, on average", "share")
    ] = None
    cpu_clock_mhz: Annotated[float | None, Doc("mean clock of the processors, as reported by the system", "MHz")] = None
    process_memory_bytes: Annotated[float | None, Doc("resident memory of the program and its children", "B")] = None
    host_memory_used_bytes: Annotated[float | None, Doc("the machine's memory in use, by all programs", "B")] = None
    other_processors: Annotated[
        float | None, Doc("processors that other programs kept busy, from a second before the steps to one after them")
    ] = None
    waited_share: Annotated[
        float | None,
        Doc("part of the program's time in which it was ready and had no processor, in the same stretch", "share"),
    ] = None


class PathPart(Struct, frozen=True):
    """Part of the critical path in one kind of work.

    The time without any work is a part too.

    Its time is per step.
    """

    what: Annotated[
        Literal["device", "host", "wait"], Doc("where the time passes; 'wait' is time in which neither of both works")
    ]
    name: Annotated[str, Doc("kernel, state of the host (without a device: op), or reason of the wait")]
    source: Annotated[str | None, Doc("line of the program; null where it is not known")]
    us: Annotated[float, Doc("time on the path", "us")]
    share: Annotated[float, Doc("part of the step", "share")]


class ReplayCheck(Struct, frozen=True):
    """Error of an unchanged replay of the recorded steps against the measurement."""

    error: Annotated[float, Doc("replayed / measured - 1")]
    held_share: Annotated[
        float,
        Doc("of the replayed steps, delays that nothing on record explains and that are kept as they are", "share"),
    ]
    settled: Annotated[float, Doc("step that follows others like it / measured step - 1; 0 for a steady run of steps")]
    steps: Annotated[int, Doc("number of steps that were replayed")]
    reason: Annotated[str | None, Doc("why no change can be predicted from this trace; null where one can")]


class CriticalPath(Struct, frozen=True):
    """Chain of work that sets the time of the step.

    Its parts add up to ``step_us``, the longest first.
    """

    check: Annotated[ReplayCheck, Doc("how well the replay that it comes from reproduces the step")]
    step_us: Annotated[float, Doc("time of the step", "us")]
    parts: Annotated[tuple[PathPart, ...], Doc("parts of the path, longest first")]


class StepAnalysis(Struct, frozen=True):
    """Partition of a step's time and its work, before findings and verdict."""

    recording: Annotated[RecordingInfo, Doc("source of the analysis")]
    device: Annotated[Device, Doc("the device and its ceilings")]
    steps: Annotated[StepTimes, Doc("how many steps, how long")]
    ledger: Annotated[tuple[LedgerEntry, ...], Doc("partition of the wall time; us add up to steps.wall_us")]
    totals: Annotated[Totals, Doc("sums over the step")]
    coverage: Annotated[Coverage, Doc("how much of the busy time is understood")]
    kernels: Annotated[tuple[KernelSummary, ...], Doc("kernels, most time first")]
    ops: Annotated[tuple[Fold, ...], Doc("time by op")]
    modules: Annotated[tuple[Fold, ...], Doc("time by module path")]
    lines: Annotated[tuple[Fold, ...], Doc("time by source line")]
    idle: Annotated[tuple[IdleCause, ...], Doc("causes of idle time, with source lines")]
    ranks: Annotated[tuple[RankSummary, ...], Doc("one entry per rank; empty when there is one rank")]
    caveats: Annotated[tuple[Caveat, ...], Doc("limits of this analysis")]
    telemetry: Annotated[TelemetrySummary | None, Doc("sensor readings; null where none was read")] = None
    queue: Annotated[Queue | None, Doc("device queue depth; null where no launches are on record")] = None
    collectives: Annotated[tuple[CollectiveSummary, ...], Doc("collectives, most time first")] = ()
    batch_test: Annotated[
        BatchProof | None, Doc("step time at twice the batch size; null where the program has no batch size to double")
    ] = None
    option_costs: Annotated[
        OptionCosts | None, Doc("overhead of each profiler option on this step; null where none was measured")
    ] = None
    phases: Annotated[
        tuple[Phase, ...], Doc("the step by phase of training; empty where no op or range tells them")
    ] = ()
    ranges: Annotated[tuple[UserRange, ...], Doc("ranges that the program marked, most time first")] = ()
    module_classes: Annotated[
        tuple[Fold, ...], Doc("modules folded by place: 'Model > Layer x 24 > Linear x 4', most time first")
    ] = ()
    module_paths: Annotated[
        Mapping[str, str],
        Doc("attribute path in the model ('encoder.layer.0') by a module's name in the trace ('Layer_0'); where known"),
    ] = field(default_factory=dict)
    memory: Annotated[
        MemoryUse | None, Doc("memory over the step and what lives at its peak; null where there are no memory events")
    ] = None
    memory_reason: Annotated[str | None, Doc("why there is no record of memory; null where there is one")] = None
    source_texts: Annotated[
        Mapping[str, str],
        Doc(
            "text of the source lines named in this file, by 'file.py:57', as the recording kept it: shortened, "
            "without comments and without strings that look like a secret; empty for a bare trace"
        ),
    ] = field(default_factory=dict)
    critical_path: Annotated[
        CriticalPath | None,
        Doc("what the time of the step consists of, by a replay; null where none was made: beyond a million events"),
    ] = None
    pieces: Annotated[
        MeasuredPieces | None, Doc("pieces of the step that `bottleneck run` timed alone; null where it timed none")
    ] = None
    run: Annotated[
        RunSteps | None, Doc("the steps of the whole run, and what is between them; null where they were not followed")
    ] = None
    start_up: Annotated[
        StartLedger | None, Doc("the time from the process to its first steady step; null where it was not followed")
    ] = None
    compile_health: Annotated[
        CompileHealth | None,
        Doc("graphs of torch.compile, with breaks, recompiles and skips; null where the step has no compiled code"),
    ] = None
    serving: Annotated[
        InferenceServing | None,
        Doc("phases, metrics, limit and settings of an inference server; null where the program is none"),
    ] = None
    job: Annotated[JobSummary | None, Doc("what the ranks of a job say together; null when there is one rank")] = None
    schema: Annotated[str, Doc("format of this file; other values are other formats")] = SCHEMA
    version: Annotated[str, Doc("version of bottleneck that made the analysis")] = ""

    @property
    def has_load_taken_off(self) -> bool:
        """True if waits for other programs are not in the step."""
        return any(caveat.slug == LOAD_TAKEN_OFF for caveat in self.caveats)

    def text_of(self, source: str | None) -> str | None:
        """Returns the text of the line that a source names.

        Null where the text is not known, or where the source names a function.
        """
        place = None if source is None else place_of(source)
        return (
            None if place is None or place.is_function else self.source_texts.get(line_source(place.file, place.line))
        )


class Analysis(StepAnalysis, frozen=True, kw_only=True):
    """The whole analysis; written to and read from ``analysis.json``."""

    verdict: Annotated[Verdict, Doc("the resource that limits the step")]
    findings: Annotated[tuple[Finding, ...], Doc("advice, largest predicted gain first")] = ()
    no_gain: Annotated[
        tuple[NoGain, ...],
        Doc("changes that people try first and that would bring nothing here, at most three; empty in older analyses"),
    ] = ()
