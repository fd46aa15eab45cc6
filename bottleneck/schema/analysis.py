"""Frozen records of one analysis: device, ledger, kernels, findings and verdict (the contract of ``analysis.json``).

``Analysis`` is the contract of ``analysis.json``: its fields are the file's keys. Durations are microseconds per step,
shares lie in 0-1, and null means unknown.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from bottleneck.schema.measurements import BatchProof, OptionCosts, StepTimes

SCHEMA = "bottleneck/analysis/1"

Bound = Literal["compute", "memory", "overhead", "communication", "mixed", "inconclusive"]
Regime = Literal["saturated", "underutilised"]
Confidence = Literal["high", "medium", "low"]

GROUPS = ("compute", "memory", "overhead", "communication", "unknown")


@dataclass(frozen=True)
class Caveat:
    """A limit of this analysis: a stable slug, the share of the step that it touches, and a sentence."""

    slug: str
    message: str
    share: float | None = None


@dataclass(frozen=True)
class Device:
    """Ceilings of one device. Peaks are dense, keyed '<dtype>_tensor' or '<dtype>_vector', in FLOP/s.

    ``source`` says where they come from, ``peak_clocks_mhz`` at which clock a peak holds, where that is known. A CPU
    has (working set in bytes, bytes/s) pairs in ``bandwidth_by_bytes``, smallest first, a GPU the size of its last
    cache. ``fresh_bytes_per_s`` is the rate of new pages: what a CPU program's first write costs beyond a second one.
    Blocks of 32 MiB and more come as new pages each time they are allocated.
    """

    name: str
    vendor: str | None
    kind: Literal["cuda", "rocm", "xpu", "cpu", "other"]
    count: int
    peaks_flops_per_s: Mapping[str, float]
    bandwidth_bytes_per_s: float | None
    launch_floor_us: float | None
    source: Literal["measured", "datasheet", "derived", "user"] | None
    ridge_flops_per_byte: Mapping[str, float]
    sm_count: int | None = None
    memory_bytes: int | None = None
    cache_bytes: float | None = None
    special_ops_per_s: float | None = None
    link_bytes_per_s: float | None = None
    bandwidth_by_bytes: tuple[tuple[float, float], ...] = ()
    fresh_bytes_per_s: float | None = None
    peak_clocks_mhz: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class LedgerEntry:
    """One account of the ledger: microseconds per step and share of the step."""

    account: str
    group: str
    us: float
    share: float


@dataclass(frozen=True)
class Ledger:
    """A partition of the step's wall time. One that does not add up cannot be built (AssertionError)."""

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


@dataclass(frozen=True)
class RecordingInfo:
    """Where the analysis comes from."""

    path: str
    kind: Literal["run", "trace"]
    framework: str | None
    created: str | None
    world_size: int | None


@dataclass(frozen=True)
class Verdict:
    """The answer: what holds the step back, how sure, and the sentence that says so.

    The sentence ends with "First: ``first_step``."; null in analyses of before that was kept.
    """

    bound: Bound
    regime: Regime | None
    share: float
    sentence: str
    shares: Mapping[str, float]
    first_step: str | None = None


@dataclass(frozen=True)
class Totals:
    """Sums per step; ``peak`` names the one that ``model_flops_utilization`` is a share of."""

    busy_us: float
    idle_us: float
    flops: float | None
    bytes_low: float | None
    bytes_high: float | None
    kernel_count: float
    op_count: float
    launch_count: float
    sync_count: float
    copy_count: float
    h2d_bytes: float | None
    d2h_bytes: float | None
    peak_memory_bytes: int | None
    model_flops_utilization: float | None
    bandwidth_utilization: float | None
    peak: str | None = None
    peak_memory_reason: str | None = None


@dataclass(frozen=True)
class UnknownWork:
    """Busy time without a price."""

    name: str
    us: float
    reason: str


@dataclass(frozen=True)
class Coverage:
    """How much of the busy time is tied to ops and priced (0-1), and what is not."""

    linked_share: float | None
    priced_share: float | None
    unknown: tuple[UnknownWork, ...]


@dataclass(frozen=True)
class KernelSummary:
    """Kernels of one name, op, shape and line, folded: microseconds and counts per step."""

    name: str
    family: str
    op: str | None
    shapes: str | None
    module: str | None
    source: str | None
    dtype: str | None
    engine: str | None
    calls: float
    us: float
    share: float
    flops: float | None
    bytes_low: float | None
    bytes_high: float | None
    compute_us: float | None
    memory_us: float | None
    launch_us: float | None
    bound: str
    regime: Regime | None
    explained: float | None
    confidence: Confidence
    reason: str | None
    headroom_us: float | None


@dataclass(frozen=True)
class Fold:
    """Work folded by op, module path or source line; ``shares`` splits it by group.

    ``idle_us`` is the idle time in which the host was at this line or module; it is no part of ``us``.
    """

    name: str
    calls: float
    us: float
    share: float
    shares: Mapping[str, float]
    idle_us: float = 0.0


@dataclass(frozen=True)
class IdleCause:
    """Time in which the device (CPU: the step's threads) did no work, by cause and source line."""

    cause: str
    us: float
    share: float
    source: str | None
    calls: float
    detail: str | None = None
    module: str | None = None


@dataclass(frozen=True)
class Queue:
    """Queue depth: launches issued less kernels finished. ``curve`` holds (us from the window's start, depth) pairs.

    ``empty_idle_share`` is the part of the device's idle time in which the queue was empty: the proof of a slow host.
    """

    empty_idle_share: float | None
    median_depth: float
    highest_depth: int
    curve: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class CollectiveSummary:
    """Collectives of one kind and size, per step: traffic on the link, and how much of the time is transfer.

    ``transfer_us`` is the time of the quickest call of this size (over the ranks where they are known) for all calls,
    ``wait_us`` the rest: waiting for ranks that come later, or sharing the device.
    """

    name: str
    dtype: str | None
    group_size: int | None
    calls: float
    us: float
    exposed_us: float
    bytes: float | None
    bus_bytes_per_s: float | None
    transfer_us: float | None
    wait_us: float | None
    reason: str | None


@dataclass(frozen=True)
class Interval:
    """A closed interval."""

    low: float
    high: float


@dataclass(frozen=True)
class Finding:
    """One piece of advice with the gain that it predicts, per step, if nothing else is changed.

    ``gain_reason`` says why no gain is predicted; null where one is. ``added_gain_us`` is what this one adds once those
    ranked above it are done: over all findings it does not add up to more than the step. ``tries`` names the changes
    that `bottleneck verify` applies for it, ``verify`` is the command. ``within_noise`` marks a gain that is smaller
    than what the step times of this recording can tell apart.
    """

    slug: str
    title: str
    evidence: tuple[str, ...]
    predicted_gain_us: Interval | None
    predicted_speedup: Interval | None
    advice: str
    verify: str | None
    code: str | None = None
    gain_reason: str | None = None
    added_gain_us: Interval | None = None
    tries: tuple[str, ...] = ()
    confidence: Confidence = "medium"
    within_noise: bool = False


@dataclass(frozen=True)
class RankSummary:
    """One rank: its own ledger, and by how much it is late at collectives on average."""

    rank: int
    path: str
    wall_us: float
    ledger: tuple[LedgerEntry, ...]
    skew_us: float | None
    verdict: str


@dataclass(frozen=True)
class TelemetrySummary:
    """What the sensors said while the steps ran: medians, but for energy (per step) and processors (a mean).

    The first fields and those up to ``dram_activity`` are the device's, of one where several were used (energy: of
    all); the rest are the host's. ``energy_error_j`` is the size of two updates of the counter.
    """

    samples: int
    sm_clock_mhz: float | None
    memory_clock_mhz: float | None
    power_w: float | None
    energy_j: float | None
    utilization: float | None
    throttle: tuple[str, ...]
    energy_error_j: float | None = None
    temperature_c: float | None = None
    memory_used_bytes: float | None = None
    pcie_tx_bytes_per_s: float | None = None
    pcie_rx_bytes_per_s: float | None = None
    sm_activity: float | None = None
    tensor_activity: float | None = None
    dram_activity: float | None = None
    process_processors: float | None = None
    host_utilization: float | None = None
    cpu_clock_mhz: float | None = None
    process_memory_bytes: float | None = None
    host_memory_used_bytes: float | None = None


@dataclass(frozen=True)
class Analysis:
    """Everything that a report tells; written to and read from ``analysis.json``."""

    recording: RecordingInfo
    device: Device
    steps: StepTimes
    verdict: Verdict
    ledger: tuple[LedgerEntry, ...]
    totals: Totals
    coverage: Coverage
    kernels: tuple[KernelSummary, ...]
    ops: tuple[Fold, ...]
    modules: tuple[Fold, ...]
    lines: tuple[Fold, ...]
    idle: tuple[IdleCause, ...]
    ranks: tuple[RankSummary, ...]
    caveats: tuple[Caveat, ...]
    findings: tuple[Finding, ...] = ()
    telemetry: TelemetrySummary | None = None
    queue: Queue | None = None
    collectives: tuple[CollectiveSummary, ...] = ()
    batch_test: BatchProof | None = None
    option_costs: OptionCosts | None = None
    schema: str = SCHEMA
    version: str = field(default="")
