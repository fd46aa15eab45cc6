"""Records of the trace stage: columns of a trace, steps, linked work.

The device work is tied to ops.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct, field

from bottleneck.schema.analysis import Caveat
from bottleneck.schema.reasons import Reason

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd

# Of 60,000 gaps between queued kernels of one stream (37 public traces of 15 parts), the longest took 17 us: up to
# here, with a margin, a gap is the device's own. Beyond, something else held it.
KERNEL_GAP_US = 20.0
# From launch to start with an empty queue took 6 to 37 us (median, by part); with a margin for the tail. What starts
# later had another reason.
LAUNCH_LATENCY_US = 60.0
# Issuing an op takes so long at most: a longer stretch of the host is something else.
LONGEST_ISSUE_US = 500.0


class DeviceProperties(Struct, frozen=True):
    """Properties of a device as a trace or the device reports them.

    Every field may be missing.
    """

    index: int = 0
    name: str = ""
    memory_bytes: int | None = None
    sm_count: int | None = None
    compute_capability: str | None = None
    warp_size: int | None = None


class ProcessGroup(Struct, frozen=True):
    """A group of ranks that communicate with each other, as a trace states it.

    ``ranks`` are global ranks in order; empty where the trace does not list them. ``description`` is what the program
    called it ("default_pg", "mesh_tp"), empty where it gave no name.
    """

    name: str
    description: str
    size: int
    ranks: tuple[int, ...] = ()


class Step(Struct, frozen=True):
    """One step on the clock of EVENTS: from ``start_us`` to ``end_us`` on the host.

    ``wall_us`` is its time on host and device together; null where no device is behind the host. ``number`` is that of
    the profiler's own step, or its position among the marks of a recording; null for other steps.
    """

    name: str
    start_us: float
    end_us: float
    wall_us: float | None = None
    number: int | None = None

    @property
    def us(self) -> float:
        """Time of the step."""
        return self.end_us - self.start_us if self.wall_us is None else self.wall_us


class Window(Struct, frozen=True):
    """Stretch of the trace that the ledger partitions, with its steps.

    ``source`` says how the steps were found. Where the device is behind the host, the stretch is that of the device's
    work on the steps, which the host did earlier. ``set_aside`` holds the other steps that were found, in order, each
    with the reason for leaving it out. ``lead_in_us`` is the time cut from its beginning, in which work from before the
    recording held the device.
    """

    start_us: float
    end_us: float
    steps: tuple[Step, ...]
    source: str
    set_aside: tuple[tuple[Step, Reason], ...] = ()
    lead_in_us: float = 0.0

    @property
    def wall_us(self) -> float:
        """Length of the whole window in microseconds (not per step)."""
        return self.end_us - self.start_us

    @property
    def host_us(self) -> tuple[float, float]:
        """Host's begin of the first step and end of the last one.

        The window itself where it has no steps.
        """
        return (self.steps[0].start_us, self.steps[-1].end_us) if self.steps else (self.start_us, self.end_us)


class Trace(Struct, frozen=True):
    """Trace as columns: the tables of ``trace.read`` and facts of the file.

    ``flavour`` is a vendor of trace/vendors.tsv, 'cpu' without device work.

    ``start_unix_ns`` is the wall clock of ts_us == 0, null where the file does not tell; ``origin_ns`` is that instant
    on the clock of the file's own time stamps. ``counts`` holds events per raw category; ``facts`` holds plain
    top-level values (versions, flags), cleaned, for display. ``module_paths`` are attribute paths by the names that the
    trace gives to modules: {"Linear_3": "encoder.layer.0.output"}, only in our own recordings. ``counters`` is
    COUNTER_SAMPLES, null where the trace has no counter tracks.
    """

    path: str
    flavour: str
    events: "pd.DataFrame"
    op_args: "pd.DataFrame"
    signatures: "pd.DataFrame"
    launch_args: "pd.DataFrame"
    device_args: "pd.DataFrame"
    memory: "pd.DataFrame"
    devices: tuple[DeviceProperties, ...]
    start_unix_ns: int | None
    integer_timestamps: bool
    rank: int | None
    world_size: int | None
    counts: Mapping[str, int]
    facts: Mapping[str, str]
    caveats: tuple[Caveat, ...] = ()
    origin_ns: int = 0
    module_paths: Mapping[str, str] = field(default_factory=dict)
    process_groups: tuple[ProcessGroup, ...] = ()
    counters: "pd.DataFrame | None" = None


class Losses(Struct, frozen=True, eq=False):
    """Device work that the profiler lost, as far as what it kept shows.

    ``holes`` marks rows of KERNELS before which work of the same queue is missing; ``products`` are rows of OPS that
    multiply matrices and of whose device work only a fill is left.
    """

    holes: "npt.NDArray[np.bool_]"
    products: "npt.NDArray[np.int64]"


class LaunchCounts(Struct, frozen=True):
    """Counts of calls that launch a kernel, and of those without one by position.

    ``captured`` entered a graph and ran only in its replays. Of the others ``lead`` come before the first launch with a
    kernel, ``tail`` after the last one, ``between`` elsewhere; ``queued`` also come after the last one, but while the
    device still worked: they were in its queue when the recording ended. Inside a step they count as ``tail``.
    ``tail_us`` is the time from the end of the device's last work to the host's last launch. ``bare_steps`` are those
    whose launches all lack their kernel.
    """

    total: int = 0
    captured: int = 0
    lead: int = 0
    between: int = 0
    tail: int = 0
    queued: int = 0
    tail_us: float = 0.0
    bare_steps: tuple[str, ...] = ()

    @property
    def lost(self) -> int:
        """Launches whose kernel should be there."""
        return self.lead + self.between + self.tail


class GraphReplays(Struct, frozen=True):
    """Graph replays that were compared, and kernels missing from them.

    ``short`` counts the replays that miss kernels, ``lost`` the kernels missing of the ``whole``.
    """

    count: int
    short: int
    lost: int
    whole: int


class Integrity(Struct, frozen=True):
    """Counts of what is missing or odd in a trace, which ``analysis.faults`` judges.

    ``repeated_launches`` and ``repeated_work`` have the id of an earlier one. ``overlaps`` are pieces of device work
    that outlast the next on their stream, by up to ``overlap_us``; ``outlasting`` are ops that outlast the op around
    them. ``id_density`` is one over the distance between ids of ops: 1 where all are there, null where unknown.
    ``replays`` are those of a profiler that may lose some of their kernels, ``waits`` those between streams and for
    events: null where the vendor's profiler has none.
    """

    launches: LaunchCounts = LaunchCounts()
    repeated_launches: int = 0
    repeated_work: int = 0
    overlaps: int = 0
    overlap_us: float = 0.0
    outlasting: int = 0
    outlasting_us: float = 0.0
    id_density: float | None = None
    replays: GraphReplays | None = None
    waits: int | None = None


class Linked(Struct, frozen=True):
    """The result of ``trace.link``: op tree, device work tied to it, and the window.

    ``places`` is PLACES, null where the trace has no Python frames; ``captured`` is CAPTURED and ``losses`` what is
    missing, both null on a CPU. ``one_offs`` are the rows in EVENTS of calls that are paid once, such as the creation
    of a context, ``one_offs_before`` those before the window. ``integrity`` counts what is missing or odd.
    """

    trace: Trace
    window: Window
    ops: "pd.DataFrame"
    kernels: "pd.DataFrame"
    linked_share: float | None
    places: "pd.DataFrame | None" = None
    captured: "pd.DataFrame | None" = None
    losses: Losses | None = None
    one_offs: tuple[int, ...] = ()
    one_offs_before: tuple[int, ...] = ()
    integrity: Integrity = Integrity()

    @property
    def is_host_only(self) -> bool:
        """True if the trace has no device work.

        ``kernels`` then holds ops of the host.
        """
        return self.trace.device_args.empty
