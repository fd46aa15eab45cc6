"""Takes off what ops waited for processors that other programs used.

Load makes a call longer and never shorter. Calls of one op with the same sizes do the same work, so that the quickest
of them comes closest to what it takes on a quiet machine. On a CPU only.
"""

import math
from typing import Literal

import numpy as np
import pandas as pd
from msgspec import Struct

from bottleneck.analysis.between_ops import Stretches, measure_stretches
from bottleneck.analysis.host import own_stretches
from bottleneck.analysis.ledger import LedgerResult
from bottleneck.analysis.scaling import kept_parts, rescaled, with_lighter_python
from bottleneck.analysis.telemetry import FULL, GOT_AT_MOST
from bottleneck.schema.accounts import ACCOUNTS
from bottleneck.schema.analysis import LOAD_TAKEN_OFF, Caveat, TelemetrySummary
from bottleneck.schema.intervals import Flags, Floats, Integers, numbered, tally
from bottleneck.schema.linked_trace import Linked
from bottleneck.schema.measurements import Timing
from bottleneck.schema.recording import Recording
from bottleneck.schema.records import replace
from bottleneck.units import counted, format_part

# Of the processors that the program wanted: what others have to take for the load to be theirs.
_LEAST_TAKEN = 0.25
# Of the time that threads wanted a processor, what they waited for it; and processors of others that explain it.
_WAITED, _SOMEBODY = 0.1, 0.25
# Of one part of a run more may be waits than of all of it, by so many times at most.
_COUNTED = 1.5
# A call whose floor is less of it waited for a processor, if it takes as long as the system lets another program run.
_HARDLY_EXPLAINED, _TIME_SLICE_US = 0.02, 1000.0
# Of steps that load leaves alone: the interval of their median, from end to end.
_STEADY = 1.2
_STALL = "overhead.stall"


class Load(Struct, frozen=True):
    """Time of the steps that other programs took.

    ``waits`` for a processor are in most ops, or only single calls were held up (``stalls``). ``others`` of the
    ``processors`` they kept busy. ``most`` is the part of a step that waits can be at most, by the system's counters;
    1 where it does not count them.
    """

    kind: Literal["none", "stalls", "waits"] = "none"
    others: float = 0.0
    processors: int = 0
    most: float = 1.0


def find_load(
    telemetry: TelemetrySummary | None, recording: Recording | None, linked: Linked, unprofiled: Timing | None
) -> Load:
    """Says what other programs took from the steps.

    Of steps so short that load leaves most of them alone the median is the program's own, and only single calls stall.
    Only for programs on the host, and for no rank of a job: ranks wait for one another, and on one machine they are
    other programs to each other.
    """
    is_rank = (linked.trace.world_size or 1) > 1 or (recording is not None and len(recording.traces) > 1)
    threads, processors = (None, None) if recording is None else (recording.threads, recording.processors)
    if telemetry is None or not linked.is_host_only or is_rank or not is_beside_load(telemetry, threads, processors):
        return Load()
    kind: Literal["stalls", "waits"] = "stalls" if _are_short(unprofiled) else "waits"
    waited = _waited(telemetry)
    most = 1.0 if waited is None else min(_COUNTED * waited, 1.0)
    return Load(kind, telemetry.other_processors or 0.0, processors or 0, most)


def _waited(telemetry: TelemetrySummary) -> float | None:
    """Part of the time in which threads were ready and had no processor.

    It is that of the steps, or where these are too short for the counters, of the seconds around them.
    """
    got, waits = telemetry.process_processors, telemetry.process_waits
    if waits is not None and got is not None and waits + got > 0:
        return waits / (waits + got)
    return telemetry.waited_share


def is_beside_load(telemetry: TelemetrySummary | None, threads: int | None, processors: int | None) -> bool:
    """True where other programs had processors that the program wanted.

    The system counts how long its threads were ready without one. Elsewhere the counters of all processors tell: false
    where those of the steps themselves show that its threads had theirs. Threads beyond the ``processors`` wait for one
    another, whoever else runs.
    """
    if telemetry is None or telemetry.other_processors is None or not threads or not processors:
        return False
    used, got = telemetry.host_utilization, telemetry.process_processors
    waited = _waited(telemetry)
    if waited is not None and threads <= processors:
        return waited >= _WAITED and telemetry.other_processors >= _SOMEBODY
    had_theirs = used is not None and got is not None and (used < FULL or got > GOT_AT_MOST * threads)
    return not had_theirs and telemetry.other_processors - max(processors - threads, 0) >= _LEAST_TAKEN * threads


def _are_short(unprofiled: Timing | None) -> bool:
    return unprofiled is not None and unprofiled.median < _TIME_SLICE_US and unprofiled.high <= _STEADY * unprofiled.low


def without_stalls(result: LedgerResult) -> LedgerResult:
    """Gives the ledger without calls that others held up."""
    factors = {account: 0.0 if account == _STALL else 1.0 for account in ACCOUNTS}
    wall_us = math.fsum(entry.us for entry in result.ledger.entries if entry.account != _STALL)
    return rescaled(result, wall_us, factors, np.ones(result.kernel_us.size), {}, ())


def quicken(linked: Linked, signature: Integers, roofline: pd.DataFrame, most: float = 1.0) -> Linked:
    """Gives each op the time that it takes where it need not wait.

    All that is taken off is ``most`` of the window at most (0-1).

    It is that of the quickest call with the same name and sizes (``signature`` of each row of KERNELS, -1 unknown). An
    op without others like it, or all of whose calls waited, has its floor by ROOFLINE, divided by the part that
    floors are of the quickest calls of its bound.
    """
    dur_us, name = linked.kernels["dur_us"].to_numpy(), _codes(linked.kernels["name"])
    floor_us = dur_us * roofline["explained"].fillna(0.0).to_numpy()
    quickest_us, is_told = quickest_calls(name, signature, dur_us, floor_us)
    bound = _codes(roofline["bound"])
    alone_us = np.where(floor_us > 0, floor_us / _parts(bound, floor_us, quickest_us, is_told), dur_us)
    part = float(quickest_us[is_told].sum() / dur_us[is_told].sum()) if dur_us[is_told].any() else 1.0
    alone_us = np.where(floor_us > 0, alone_us, dur_us * part)
    waits_us = np.maximum(dur_us - np.where(is_told, quickest_us, np.maximum(alone_us, floor_us)), 0.0)
    bound_us, all_us = most * linked.window.wall_us, float(waits_us.sum())
    quick_us = dur_us - waits_us * min(bound_us / all_us if all_us > 0 else 1.0, 1.0)
    return replace(linked, kernels=linked.kernels.assign(dur_us=quick_us))


def quickest_calls(name: Integers, signature: Integers, us: Floats, floor_us: Floats) -> tuple[Floats, Flags]:
    """Gives the quickest of the calls alike, and where that tells.

    It does not tell what a call takes alone that has no others like it, nor where all of them waited: their floor is
    next to nothing of the quickest, which takes as long as another program's turn.
    """
    kind, first = numbered(name, signature)
    calls = tally(kind, np.ones(us.size), first.size)[kind]
    quickest_us = _least(kind, us, first.size)[kind]
    waited = (floor_us > 0) & (floor_us < _HARDLY_EXPLAINED * quickest_us) & (quickest_us >= _TIME_SLICE_US)
    return quickest_us, (signature >= 0) & (calls > 1) & ~waited


def quick_stretches(linked: Linked) -> Stretches | None:
    """The quickest time of each stretch between ops in any step.

    Null where the steps have no ops in common.
    """
    return measure_stretches(linked, own_stretches(linked.trace.events), 0.0, are_held_up=True)


def _codes(column: "pd.Series[str]") -> Integers:
    return column.cat.codes.to_numpy().astype(np.int64)


def _least(kind: Integers, dur_us: Floats, count: int) -> Floats:
    """Gives the least of each kind."""
    least = np.full(count, np.inf)
    np.minimum.at(least, kind, dur_us)
    return least


def _parts(bound: Integers, floor_us: Floats, quickest_us: Floats, is_told: Flags) -> Floats:
    """Gives the part that floors are of the quickest calls.

    It is 0-1, by bound, and 1 where no calls of a bound tell.
    """
    chosen = is_told & (floor_us > 0)
    count = int(bound.max(initial=-1)) + 2
    floors, quickest = (tally(bound[chosen], us[chosen], count) for us in (floor_us, quickest_us))
    parts = np.divide(floors, quickest, out=np.ones(count), where=quickest > 0)
    return np.clip(parts, _HARDLY_EXPLAINED, 1.0)[bound]


def without_load(result: LedgerResult, linked: Linked, load: Load) -> LedgerResult:
    """Gives the ledger of the step without what its ops waited.

    ``linked`` has the quick times of the ops. Calls that were held up are left out. A caveat tells both step times.
    """
    quick_us = linked.kernels["dur_us"].to_numpy()
    parts = np.divide(quick_us, result.kernel_us, out=np.ones(quick_us.size), where=result.kernel_us > 0)
    parts = np.minimum(parts, 1.0)
    before_us = result.ledger.wall_us
    result = with_lighter_python(result, {entry.account for entry in result.ledger.entries}) or result
    factors = {account: 0.0 if account == _STALL else 1.0 for account in ACCOUNTS}
    own_parts = kept_parts(result, parts)
    wall_us = sum(entry.us * factors[entry.account] * own_parts[entry.account] for entry in result.ledger.entries)
    others = min(load.others, load.processors)
    message = (
        f"other programs kept {others:.1f} of {counted(load.processors, 'processor')} busy: at least "
        f"{format_part(before_us - wall_us, before_us)} per step were waits for them; these are taken off, and what is "
        "left may hold more"
    )
    taken = Caveat(LOAD_TAKEN_OFF, message, max(1.0 - wall_us / before_us, 0.0) if before_us > 0 else None)
    return rescaled(result, wall_us, factors, parts, {}, (taken,))
