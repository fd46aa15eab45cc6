"""Why the device waited: every gap between device work cut into pieces, each with its cause and what held the host."""

from dataclasses import dataclass, fields

import numpy as np

from bottleneck.analysis.host import Host
from bottleneck.analysis.segments import RESOLUTION_US, cut
from bottleneck.analysis.states import STATES
from bottleneck.analysis.timeline import Flags, Floats, Integers, grouped, tally
from bottleneck.tracing import Linked

CAUSES = (*STATES, "unknown", "dependency")

# A gap between work that was queued is the device's own pace up to the p90 of such gaps: 0 to 4 us on every part
# measured. Beyond the upper end something else held the device.
_QUEUED_GAP_US = (4.0, 10.0)
# From launch to start with an empty queue took 6 to 37 us (median, by part); with a margin for the tail.
_LAUNCH_LATENCY_US = 60.0

_LAUNCH, _DEPENDENCY = (CAUSES.index(cause) for cause in ("launch", "dependency"))


@dataclass(frozen=True)
class Gaps:
    """Stretches without device work; ``following`` is the row in KERNELS that ends each, -1 for none in the window."""

    start: Floats
    end: Floats
    following: Integers


@dataclass(frozen=True)
class Pieces:
    """Parts of gaps with one cause each (index in CAUSES); those of a gap add up to it.

    ``event`` is the row in EVENTS of what held the host, and for ``launch`` after the call the call itself; ``thread``
    the one that tells. Both are -1 where nothing does.
    """

    gap: Integers
    start: Floats
    end: Floats
    cause: Integers
    event: Integers
    thread: Integers

    @property
    def us(self) -> Floats:
        """Length of each piece."""
        return self.end - self.start

    def by_cause(self) -> Floats:
        """Time per cause."""
        return tally(self.cause, self.us, len(CAUSES))


@dataclass(frozen=True)
class _Calls:
    """The launch behind the work that ends each gap: row in EVENTS, end, and thread; unknown calls have end NaN."""

    event: Integers
    end: Floats
    thread: Integers


def split_gaps(gaps: Gaps, linked: Linked, host: Host) -> Pieces:
    """The pieces of gaps between device work.

    Until its launch call returned, the host was behind: that part goes to what the launching thread was doing. What
    is left is ``launch`` when it is no longer than launches take, else ``dependency``. Where the call is unknown and
    the gap longer than that, and after the last work, the main thread speaks for the whole gap.
    """
    calls = _launches(gaps, linked, host)
    pace = _queued_gap_us(gaps, calls)
    unknown = np.isnan(calls.end) & ((gaps.following < 0) | (gaps.end - gaps.start > pace))
    host_end = np.clip(np.where(unknown, gaps.end, np.nan_to_num(calls.end, nan=-np.inf)), gaps.start, gaps.end)
    # What is below the clock's resolution is no stretch of its own.
    host_end = np.where(host_end - gaps.start < RESOLUTION_US, gaps.start, host_end)
    host_end = np.where(gaps.end - host_end < RESOLUTION_US, gaps.end, host_end)
    behind, early = np.flatnonzero(host_end > gaps.start), np.flatnonzero(host_end < gaps.end)
    parts = [
        _ask(host, thread, Gaps(gaps.start[late], host_end[late], late))
        for thread, rows in grouped(calls.thread[behind])
        for late in [behind[rows]]
    ]
    paced = (gaps.end - host_end)[early] <= np.where(host_end > gaps.start, _LAUNCH_LATENCY_US, pace)[early]
    rest = Pieces(
        gap=early,
        start=host_end[early],
        end=gaps.end[early],
        cause=np.where(paced, _LAUNCH, _DEPENDENCY),
        event=np.where(paced, calls.event[early], -1),
        thread=np.full(early.size, -1, dtype=np.int64),
    )
    return _joined([*parts, rest])


def split_host_gaps(gaps: Gaps, host: Host) -> Pieces:
    """The pieces of gaps between ops of the host: what the main thread did meanwhile."""
    return _ask(host, host.main_thread, Gaps(gaps.start, gaps.end, np.arange(gaps.start.size)))


def _ask(host: Host, thread: int, parts: Gaps) -> Pieces:
    """The pieces of some stretches, by what a thread was doing; ``parts.following`` numbers them."""
    cuts = cut(parts.start, parts.end, list(host.changes(thread)))
    answer = host.at(thread, (cuts.start + cuts.end) / 2)
    return Pieces(parts.following[cuts.interval], cuts.start, cuts.end, answer.state, answer.event, answer.thread)


def _joined(parts: list[Pieces]) -> Pieces:
    return Pieces(*(np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(Pieces)))


def _launches(gaps: Gaps, linked: Linked, host: Host) -> _Calls:
    kernels, threads = linked.kernels, linked.trace.events["thread"].cat.codes.to_numpy()
    known = gaps.following >= 0
    end = np.full(gaps.start.size, np.nan)
    end[known] = kernels["launch_end_us"].to_numpy()[gaps.following[known]]
    event = np.full(gaps.start.size, -1, dtype=np.int64)
    event[known] = kernels["launch"].to_numpy(dtype=np.int64, na_value=-1)[gaps.following[known]]
    end[event < 0] = np.nan
    # Work that starts before the first launch on record was queued when the recording began.
    first_launch = np.nanmin(kernels["launch_ts_us"].to_numpy(), initial=np.inf)
    end[(event < 0) & known & (gaps.end <= first_launch) & np.isfinite(first_launch)] = -np.inf
    return _Calls(event, end, np.where(event < 0, host.main_thread, threads[np.maximum(event, 0)]))


def _queued_gap_us(gaps: Gaps, calls: _Calls) -> float:
    queued: Flags = calls.end <= gaps.start
    low, high = _QUEUED_GAP_US
    if not queued.any():
        return low
    return float(np.clip(np.quantile((gaps.end - gaps.start)[queued], 0.9), low, high))
