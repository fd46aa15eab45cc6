"""Why the device waited: every gap between device work split over causes, with the line that was being prepared."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from bottleneck.analysis.host import Host
from bottleneck.analysis.owners import innermost_op
from bottleneck.analysis.states import STATES
from bottleneck.analysis.timeline import Flags, Floats, Integers, grouped
from bottleneck.records import Linked

CAUSES = (*STATES, "unknown", "dependency")

# A gap between work that was queued is the device's own pace up to the p90 of such gaps: 0 to 4 us on every part
# measured. Beyond the upper end something else held the device.
_QUEUED_GAP_US = (4.0, 10.0)
# From launch to start with an empty queue took 6 to 37 us (median, by part); with a margin for the tail.
_LAUNCH_LATENCY_US = 60.0

_RESOLUTION_US = 5e-4

_LAUNCH, _SYNC, _DEPENDENCY = (CAUSES.index(cause) for cause in ("launch", "sync", "dependency"))


@dataclass(frozen=True)
class Gaps:
    """Stretches without device work; ``following`` is the row in KERNELS that ends each, -1 for none in the window."""

    start: Floats
    end: Floats
    following: Integers


@dataclass(frozen=True)
class _Calls:
    """The launch behind the work that ends each gap: when, and on which thread; unknown calls have end NaN."""

    end: Floats
    thread: Integers


def split_gaps(gaps: Gaps, linked: Linked, host: Host) -> Floats:
    """Time per gap (rows) and cause (columns as CAUSES); each row adds up to its gap.

    Until its launch call returned, the host was behind: that part goes to what the launching thread was doing. What
    is left is ``launch`` when it is no longer than launches take, else ``dependency``. Where the call is unknown and
    the gap longer than that, and after the last work, the main thread speaks for the whole gap.
    """
    calls = _launches(gaps, linked, host)
    pace = _queued_gap_us(gaps, calls)
    unknown = np.isnan(calls.end) & ((gaps.following < 0) | (gaps.end - gaps.start > pace))
    host_end = np.clip(np.where(unknown, gaps.end, np.nan_to_num(calls.end, nan=-np.inf)), gaps.start, gaps.end)
    charge = np.zeros((gaps.start.size, len(CAUSES)))
    behind = host_end > gaps.start
    late = np.flatnonzero(behind)
    for thread, rows in grouped(calls.thread[late]):
        mine = late[rows]
        charge[mine, : len(STATES) + 1] = host.charge(thread, gaps.start[mine], host_end[mine])
    rest = gaps.end - host_end
    paced = rest <= np.where(behind, _LAUNCH_LATENCY_US, pace)
    charge[:, _LAUNCH] += np.where(paced, rest, 0.0)
    charge[:, _DEPENDENCY] += np.where(paced, 0.0, rest)
    return without_dust(charge)


def without_dust(charge: Floats) -> Floats:
    """The same rows with what is below the clock's resolution given to the largest cause of the row."""
    dust = np.where(charge < _RESOLUTION_US, charge, 0.0)
    charge = charge - dust
    charge[np.arange(len(charge)), charge.argmax(axis=1)] += dust.sum(axis=1)
    return charge


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
    return _Calls(end, np.where(event < 0, host.main_thread, threads[np.maximum(event, 0)]))


def _queued_gap_us(gaps: Gaps, calls: _Calls) -> float:
    queued: Flags = calls.end <= gaps.start
    low, high = _QUEUED_GAP_US
    if not queued.any():
        return low
    return float(np.clip(np.quantile((gaps.end - gaps.start)[queued], 0.9), low, high))


def fold_gaps(gaps: Gaps, charge: Floats, linked: Linked, host: Host) -> pd.DataFrame:
    """Time and number of gaps per cause and source line: columns cause, source (null when unknown), us, calls.

    A gap's line is the one that issued the work behind it; for a wait it is the line of the op that waited, and null
    when the wait was called outside any op, because the line behind it is not the one to change.
    """
    gap, cause = np.nonzero(charge)
    kernel_lines, op_lines = (frame["source"] for frame in (linked.kernels, linked.ops))
    labels = kernel_lines.cat.categories.union(op_lines.cat.categories)
    source = _relabelled(kernel_lines, labels)[gaps.following][gap]
    waits = np.flatnonzero(cause == _SYNC)
    source[waits] = _relabelled(op_lines, labels)[_waiting_ops(gaps, gap[waits], linked, host)]
    return fold_causes(cause, charge[gap, cause], source, labels)


def _relabelled(column: "pd.Series[str]", labels: "pd.Index[str]") -> Integers:
    """Codes of a category in other labels, with one more at the end for no row: -1."""
    to_label = np.append(labels.get_indexer(column.cat.categories), -1)
    return np.asarray(to_label[np.append(column.cat.codes.to_numpy(), -1)], dtype=np.int64)


def _waiting_ops(gaps: Gaps, rows: Integers, linked: Linked, host: Host) -> Integers:
    """Row in OPS of the op whose wait was the last to begin before the end of each gap; -1 for none."""
    calls = _launches(gaps, linked, host)
    thread, until = calls.thread[rows], np.fmin(gaps.end, calls.end)[rows]
    op = np.full(rows.size, -1, dtype=np.int64)
    labels = linked.trace.events["thread"].cat.categories
    for code, mine in grouped(thread):
        if code >= 0:
            op[mine] = innermost_op(linked.ops, str(labels[code]), host.last_wait(code, until[mine]))
    return op


def fold_causes(cause: Integers, us: Floats, source: Integers, labels: "pd.Index[str]") -> pd.DataFrame:
    """Rows of one cause (index in CAUSES) and source (code in labels, -1 unknown) added up, largest first."""
    key = cause * (len(labels) + 1) + source + 1
    distinct, inverse = np.unique(key, return_inverse=True)
    causes, sources = np.divmod(distinct, len(labels) + 1)
    frame = pd.DataFrame(
        {
            "cause": [CAUSES[code] for code in causes],
            "source": [labels[code - 1] if code else None for code in sources],
            "us": np.bincount(inverse, weights=us, minlength=distinct.size),
            "calls": np.bincount(inverse, minlength=distinct.size),
        }
    )
    return frame.sort_values("us", ascending=False, kind="stable", ignore_index=True)
