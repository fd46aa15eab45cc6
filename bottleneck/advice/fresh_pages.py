"""Finds memory that is taken from the system anew in each step (rule 10).

A CPU program gave it back when it freed it. The time is that of recorded first touches, of page faults that were
counted, or of large results by their rate.
"""

import math

import numpy as np

from bottleneck.advice.kernel_work import KernelWork, work_of
from bottleneck.advice.quantities import (
    claims_of,
    format_per_step,
    idle_place,
    idle_rows,
    kept_pages_gain,
)
from bottleneck.advice.ranking import Draft, SourcedLine, up_to
from bottleneck.schema.accounts import UNMODELLED_ACCOUNTS
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence, counted_faults_us
from bottleneck.schema.intervals import Flags, Floats
from bottleneck.schema.op_names import IN_PLACE
from bottleneck.schema.tables import FRESH_FROM_BYTES
from bottleneck.system.heap import KEEPS_MEMORY
from bottleneck.units import counted, format_si, format_us

# Of the step: first touches that the trace shows.
_LEAST_FAULTS = 0.03
# Of faults that were only counted: at most so much time, of which half may stay.
_LEAST_COUNTED = 0.05
_WORK = ("memory", "compute", *UNMODELLED_ACCOUNTS)
_BRIEF = f"Start it with {KEEPS_MEMORY} (glibc), so that it keeps the memory that it frees"
_ADVICE = (
    "Have the process keep the memory that it frees, by variables of its allocator; or write into tensors that are "
    "kept (in place, or out= where autograd records nothing)."
)

_KEEPS_MEMORY = (
    f"{KEEPS_MEMORY} python train.py  # glibc\n"
    "LD_PRELOAD=libjemalloc.so.2 MALLOC_CONF=dirty_decay_ms:-1 python train.py  # or jemalloc"
)


def fresh_pages(evidence: Evidence) -> Draft | None:
    """Finds large results in new pages in each step (rule 10).

    This is the rule on a CPU: the system has to hand out (and zero) these pages each time. The time is that of first
    touches in the trace, or of the page faults that were counted in unprofiled steps, if that is more. The gain is from
    half of it to all, and of counted faults to somewhat more, see ``kept_pages_gain``.
    """
    if not evidence.is_host_only:
        return None
    faults = None if evidence.recording is None else evidence.recording.page_faults
    rows = [row for row in idle_rows(evidence, "allocator") if row.on_pages]
    seen_us, counted_us = sum(row.us for row in rows), counted_faults_us(evidence)
    spent_us = max(seen_us, counted_us)
    if evidence.share_of_step(seen_us) < _LEAST_FAULTS and evidence.share_of_step(counted_us) < _LEAST_COUNTED:
        is_uncounted = faults is None and evidence.analysis.device.fresh_bytes_per_s is None
        return _by_the_rate_of_large_results(evidence) if is_uncounted else None
    are_counted = counted_us > seen_us or math.isclose(counted_us, seen_us)
    gain = kept_pages_gain(evidence, spent_us) if are_counted else up_to(spent_us)
    lines = (
        (
            f"an unprofiled step has {counted(round(faults.unprofiled), 'page fault')}, which take "
            f"{format_per_step(evidence, counted_us)} as calibrated",
        )
        if faults is not None and faults.unprofiled and are_counted
        else (
            f"{format_per_step(evidence, spent_us)} goes into the first touch of new pages and into giving them back",
        )
    )
    return Draft(
        slug="fresh-pages",
        title="Memory goes back to the system and is taken anew in every step (page faults)",
        evidence=(*lines, *(SourcedLine(idle_place(row), row.source) for row in rows[:3] if row.source is not None)),
        advice=_ADVICE,
        brief=_BRIEF,
        code=_KEEPS_MEMORY,
        gain_us=gain,
        claims=claims_of(evidence, "overhead.allocator", "overhead.unknown", *_WORK, most_us=gain.high),
        tries=("keep-pages", "jemalloc"),
    )


# Results that ops stream into new memory; a convolution and its backward pass write one too, but compute for longer.
_STREAMS = ("pointwise", "normalization")
_CONVOLVES = "convolution"
# A quicker write finds its memory in place: `bottleneck calibrate` measured 3.1 and 6.5 GB/s of new pages on an EPYC.
_PAGES_AT_MOST = 8e9
# Other ops of the trace move their bytes so many times as fast, or its memory is slow as a whole.
_MUCH_FASTER, _SOME_BYTES = 3.0, 2.0**20
# Of that time saved by three programs that kept their memory (torch 2.13, EPYC, 2.4 times as fast): smaller results and
# giving memory back cost as well. No step may lose more to it.
_SAVED_OF_LARGE, _MOST_OF_STEP = 2.7, 0.7


def _by_the_rate_of_large_results(evidence: Evidence) -> Draft | None:
    """Finds large results that are all written at the rate of new pages.

    This is for traces that do not name their CPU and count no faults. glibc maps results of 32 MiB and more anew each
    time. Where the fastest of them is written at no more than that rate, and ops on memory in place are several times
    as fast, their bytes at that rate are the time. Gain: from half of it for results that ops only stream, to all of it
    with those of convolutions.
    """
    work = work_of(evidence)
    written = np.nan_to_num(work.elements(work.us > 0)) * 4.0
    fresh = (written >= FRESH_FROM_BYTES) & ~work.op_like(IN_PLACE)
    streamed = fresh & work.family(*_STREAMS)
    rate = _fastest(work, streamed, written)
    moved = work.roof("bytes_low")
    others = _fastest(work, (moved >= _SOME_BYTES) & work.op_like(IN_PLACE) & work.family("pointwise"), moved)
    if not 0 < rate <= _PAGES_AT_MOST or others < _MUCH_FASTER * rate:
        return None
    us = np.minimum(written / rate * 1e6 * work.scale / evidence.steps, work.us)
    sure_us, all_us = (float(us[rows].sum()) for rows in (streamed, fresh & work.family(*_STREAMS, _CONVOLVES)))
    most_us = min(_SAVED_OF_LARGE * all_us, _MOST_OF_STEP * evidence.step_us)
    if evidence.share_of_step(sure_us) < _LEAST_COUNTED:
        return None
    return Draft(
        slug="fresh-pages",
        title="Large results are written at the rate of new memory pages, as if each was taken anew (page faults)",
        evidence=(
            f"{format_si(float(written[streamed].sum()) / evidence.steps, 'B')} of results of 32 MiB and more per step "
            f"are written at {format_si(rate, 'B/s')} at best, where ops in place move {format_si(others, 'B/s')}",
            f"at that rate their pages take {format_us(sure_us)} per step, with convolutions {format_us(all_us)}",
            *work.describe(streamed),
        ),
        advice=_ADVICE,
        brief=_BRIEF,
        code=_KEEPS_MEMORY,
        gain_us=Interval(min(sure_us, most_us), most_us),
        claims=claims_of(evidence, *_WORK, most_us=most_us),
        tries=("keep-pages", "jemalloc"),
        cannot_lose=True,
    )


def _fastest(work: KernelWork, rows: Flags, nbytes: Floats) -> float:
    """Returns the bytes per second of the fastest op of these.

    By the median of its calls; 0 without one.
    """
    ops, us = work.evidence.linked.ops, work.evidence.linked.kernels["dur_us"].to_numpy()[work.row]
    rates: dict[int, list[float]] = {}
    names = ops["name"].cat.codes.to_numpy()[work.op]
    for row in np.flatnonzero(rows & (us > 0) & (work.op >= 0) & np.isfinite(nbytes)).tolist():
        rates.setdefault(int(names[row]), []).append(float(nbytes[row] / us[row] * 1e6))
    return max((float(np.median(calls)) for calls in rates.values()), default=0.0)


RULES = (fresh_pages,)
