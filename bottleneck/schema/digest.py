"""Records of one rank of a job: the digest of its trace.

A digest holds what the ranks must be compared by and nothing that grows with the trace but its collectives. Ranks are
mapped to digests one by one, in any process and any order; the reduction needs the digests alone.
"""

from collections.abc import Mapping
from typing import Literal, Protocol, runtime_checkable

from msgspec import Struct, field

from bottleneck.schema.analysis import CollectiveSummary, LedgerEntry
from bottleneck.schema.intervals import Flags, Floats, Integers
from bottleneck.schema.linked_trace import ProcessGroup
from bottleneck.schema.measurements import StepTimes
from bottleneck.schema.reasons import Reason


class Message(Struct, frozen=True):
    """Identity of a collective: kind or kernel name, element type, ranks, payload.

    The payload is in bytes, null where unknown.
    """

    name: str
    dtype: str | None
    group_size: int | None
    payload: float | None


@runtime_checkable
class Calls(Protocol):
    """The collectives of one rank, in memory or in a file.

    Those of many ranks may not fit in memory.
    """

    def read(self) -> "CollectiveCalls":
        """The collectives in memory."""
        ...


class CollectiveCalls(Struct, frozen=True, eq=False):
    """Collectives of one rank in order of start, in columns by call.

    ``start_us`` and ``end_us`` are on the clock of the rank's own trace; ``is_inside`` tells those in its window.
    ``message`` and ``group`` are positions in ``messages`` and in ``groups`` (names of process groups; "" where the
    trace does not tell).
    """

    messages: tuple[Message, ...]
    groups: tuple[str, ...]
    message: Integers
    group: Integers
    start_us: Floats
    end_us: Floats
    is_inside: Flags

    def read(self) -> "CollectiveCalls":
        """Themselves."""
        return self


class RankDigest(Struct, frozen=True, eq=False):
    """One rank reduced to what a job is judged by.

    It takes some kB, and 33 bytes for each collective.

    ``rank`` and ``world_size`` come from the file's own metadata, null where it states none; ``host`` from the folder
    or the file name of the profiler's handler, null where neither tells. ``start_unix_ns`` is the wall clock of
    microsecond zero, null where unknown. ``step_start_us`` and ``step_wall_us`` are of all steps found, in the order of
    ``steps.each``, on the clock of ``calls``. ``bound`` is that of the rank's own verdict. ``is_cut_off`` is
    True where the file ends before the trace does. ``lines`` is the time per step at the source lines that take most of
    it, work and waits but no collectives. ``step_numbers`` are those of all steps found, alike on all ranks that tell
    them by the same source; empty where none tells. ``set_aside`` is why each of them does not count.
    """

    path: str
    host: str | None
    rank: int | None
    world_size: int | None
    start_unix_ns: int | None
    steps: StepTimes
    ledger: tuple[LedgerEntry, ...]
    collectives: tuple[CollectiveSummary, ...]
    bound: str
    calls: Calls
    process_groups: tuple[ProcessGroup, ...]
    step_start_us: Floats
    step_wall_us: Floats
    is_cut_off: bool = False
    lines: Mapping[str, float] = field(default_factory=dict)
    step_numbers: tuple[int, ...] = ()
    set_aside: tuple[Reason | None, ...] = ()

    @property
    def stretch(self) -> float:
        """Factor from times in its trace to times of its ledger's step.

        It is 1 unless profiling lengthened the step.
        """
        profiled = self.steps.profiled_us
        if profiled is None or self.steps.unprofiled_us is None or not profiled.median > 0:
            return 1.0
        return min(self.steps.wall_us / profiled.median, 1.0)


# Whether all ranks explain the same steps; "unknown" where nothing tells, or the user chose the steps.
StepSharing = Literal["same", "none", "unknown"]


class SharedSteps(Struct, frozen=True):
    """Steps that the ranks of a job are judged over.

    ``set_aside`` has an entry for each rank: why each of its steps does not count, null where it does; null as a whole
    where the rank explains these steps already, or none are shared.
    """

    sharing: StepSharing
    set_aside: tuple[tuple[Reason | None, ...] | None, ...]
