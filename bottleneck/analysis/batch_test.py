"""Adds the harness's extra measurements to an analysis.

These are the batch test and the cost of the profiler's options.
"""

import math
from collections.abc import Sequence

from bottleneck.schema.analysis import DISTURBED, ELSEWHERE, Caveat, LedgerEntry, StepAnalysis, Totals
from bottleneck.schema.measurements import BatchProof, BatchTest, Extras, Growth, PeakMemory, Ratio, Timing
from bottleneck.schema.recording import Recording
from bottleneck.schema.records import replace
from bottleneck.units import format_share, format_us

# "Making Deep Learning Go Brrrr" calls a step overhead-bound that grows by 10 % when its batch doubles; what grows by
# less than a fifth of its work is mostly fixed, what grows by more than four fifths mostly proportional.
_MOSTLY_FIXED, _MOSTLY_PROPORTIONAL = 1.2, 1.8
_MORE_THAN_TWICE = 2.2
# Overhead that each sample brings with it: loading it, and the pages that its activations lie in.
_PER_SAMPLE = frozenset({"overhead.input", "overhead.allocator"})
# How far the ledger and the test may lie apart, as a share of the step, without a word about it.
_ALIKE = 0.1


def prove(test: BatchTest, ledger: Sequence[LedgerEntry]) -> BatchProof:
    """Gives the fixed and the proportional part of the step.

    It also says what that proves, and whether the ledger's overhead fits in.

    With t(B) = fixed + proportional x B, a ratio r = t(2B) / t(B) leaves a share 2 - r of the step fixed. Overhead is
    only a part of that: reading the weights and stepping the optimizer cost the same for any batch, and a device that
    is not full takes more samples in the same time.
    """
    if test.ratio is None or test.once is None or test.twice is None:
        return BatchProof(batch_size=test.batch_size, reason=test.reason or "the test was not finished")
    ratio, once = test.ratio, test.once
    fixed = Ratio(_stays(ratio.median), _stays(ratio.high), _stays(ratio.low), ratio.n)
    growth = _growth(ratio)
    overhead = math.fsum(entry.share for entry in ledger if entry.group == "overhead")
    per_sample = math.fsum(entry.share for entry in ledger if entry.account in _PER_SAMPLE)
    agrees = None if growth == "undecided" else overhead - per_sample <= fixed.high + _ALIKE
    return BatchProof(
        batch_size=test.batch_size,
        once_us=once,
        twice_us=test.twice,
        ratio=ratio,
        fixed_us=_part(once, fixed.median, fixed.low, fixed.high),
        proportional_us=_part(once, 1.0 - fixed.median, 1.0 - fixed.high, 1.0 - fixed.low),
        fixed_share=fixed,
        growth=growth,
        agrees=agrees,
        sentence=" ".join((_meaning(growth, ratio), *_beside_ledger(agrees, fixed, overhead, per_sample))),
        reason=None,
    )


def _growth(ratio: Ratio) -> Growth:
    if ratio.low < _MOSTLY_FIXED and ratio.high > _MOSTLY_PROPORTIONAL:
        return "undecided"
    if ratio.high <= _MOSTLY_FIXED:
        return "fixed"
    return "proportional" if ratio.low >= _MOSTLY_PROPORTIONAL else "both"


def _stays(ratio: float) -> float:
    return min(max(2.0 - ratio, 0.0), 1.0)


def _part(once: Timing, share: float, low: float, high: float) -> Timing:
    return Timing(share * once.median, low * once.median, high * once.median, once.n)


def _meaning(growth: Growth, ratio: Ratio) -> str:
    if growth == "undecided":
        return "The times scatter too much to tell whether the step grows with its batch."
    if growth == "fixed":
        return "The step hardly grows with its work, so what takes the time is not the work on the samples."
    if ratio.low > _MORE_THAN_TWICE:
        return "The step grows faster than its work: what fitted into a cache at this batch size may not at twice that."
    if growth == "proportional":
        return "The step grows with its work, so nearly all of it is spent on the samples."
    return "A part of the step grows with its work, the rest is the same for any batch."


def _beside_ledger(agrees: bool | None, fixed: Ratio, overhead: float, per_sample: float) -> tuple[str, ...]:
    """Comparison of the fixed part with the overhead that the ledger found."""
    if agrees is None:
        return ()
    said = f"{format_share(overhead)} overhead"
    if per_sample >= _ALIKE:
        said += f", {format_share(per_sample)} of the step for input and page faults, which each sample brings with it"
    if not agrees:
        return (
            f"The ledger does not agree: it says {said}, more than the {format_share(fixed.high)} that stay at most. "
            "A part of that overhead grows with the batch, or the ledger puts it too high.",
        )
    rest = fixed.low - (overhead - per_sample)
    if rest <= _ALIKE:
        return (f"The ledger agrees: it says {said}.",)
    return (
        f"The ledger says {said}. The rest of what stays is work that does not depend on the batch (the weights' "
        "traffic, the optimizer) or kernels that do not fill the device yet.",
    )


# Steps in a window vary; twice what the profiler costs is no chance any more.
_MORE_THAN_THE_PROFILER = 2.0


def add_measurements(analysis: StepAnalysis, recording: Recording | None, extras: Extras | None) -> StepAnalysis:
    """Adds what else the recording holds to the analysis.

    These are step boundaries, the batch test, memory and profiler options.

    ``extras`` is null for ranks whose measurements the recording does not hold.
    """
    steps, totals = analysis.steps, analysis.totals
    if recording is not None:
        steps = replace(steps, boundary=recording.step_name, seen=recording.steps_seen)
        analysis = replace(analysis, pieces=recording.pieces)
    if extras is None:
        return replace(analysis, steps=steps)
    return replace(
        analysis,
        steps=replace(steps, settled=extras.settled, windows_us=extras.windows_us),
        totals=totals if extras.peak_memory is None else _with_peak(totals, extras.peak_memory),
        batch_test=None if extras.batch_test is None else prove(extras.batch_test, analysis.ledger),
        option_costs=extras.option_costs,
        run=extras.run,
        start_up=extras.start_up,
    )


def find_disturbance(extras: Extras | None, unprofiled: Timing | None) -> tuple[Caveat, ...]:
    """Gives a caveat when profiled steps were disturbed.

    The steps of the kept window then took far longer than the profiler alone makes of such steps.

    Without the caveat all of that time would pass for the profiler's, and what is left of the ops would be chance.
    """
    costs = () if extras is None or extras.option_costs is None else extras.option_costs.costs
    usual = next((cost.ratio.median for cost in costs if cost.option == "all"), None)
    if usual is None or extras is None or not extras.windows_us or unprofiled is None or not unprofiled.median > 0:
        return ()
    times = min(extras.windows_us) / unprofiled.median
    if times <= _MORE_THAN_THE_PROFILER * max(usual, 1.0):
        return ()
    message = (
        f"the steps of the window took {times:.1f} times as long as unprofiled ones, where the profiler alone makes it "
        f"{usual:.1f} times: other programs disturbed them"
    )
    return (Caveat(DISTURBED, message, 1.0 - usual / times),)


# No step was found in the recorded process.
_WITHOUT_STEPS = frozenset({"whole program", "none"})


def find_work_elsewhere(recording: Recording | None) -> tuple[Caveat, ...]:
    """Gives a caveat where other processes did most of the work.

    The recorded process made no steps then, but had started the others.
    """
    work = None if recording is None or recording.step_source not in _WITHOUT_STEPS else recording.child_work
    if work is None or work.children_share <= 0.5:
        return ()
    return (Caveat(ELSEWHERE, work.describe()),)


# Page faults per profiled step below which nothing is said, and how many times those of an unprofiled step they are.
_PAGE_FAULTS_AT_LEAST, _PAGE_FAULTS_TIMES = 128.0, 4.0


def find_page_faults(extras: Extras | None, fresh_bytes_per_s: float | None) -> tuple[Caveat, ...]:
    """Gives a caveat when page faults came only with the profiler.

    Profiled steps then had many that unprofiled ones did not have.

    The profiler keeps its records between the program's tensors on the heap, so that glibc hands out new pages for the
    next tensors (seen with glibc 2.36). ``fresh_bytes_per_s`` is the rate at which this CPU hands out new pages: its
    measured cost of a first write beyond that of a second one; null where it was not measured.
    """
    faults = None if extras is None else extras.page_faults
    if extras is None or faults is None or faults.profiled is None or faults.unprofiled is None:
        return ()
    if faults.profiled < max(_PAGE_FAULTS_AT_LEAST, _PAGE_FAULTS_TIMES * faults.unprofiled):
        return ()
    more = faults.profiled - faults.unprofiled
    message = (
        f"a profiled step had {faults.profiled:.0f} page faults, an unprofiled one {faults.unprofiled:.0f}: the "
        "profiler's records leave less of the program's memory to be used again"
    )
    share = None
    if fresh_bytes_per_s is not None:
        cost_us = faults.us_of(more, fresh_bytes_per_s)
        message += f"; that takes about {format_us(cost_us)} of a profiled step"
        share = min(cost_us / min(extras.windows_us), 1.0) if extras.windows_us else None
    return (Caveat("profiler-page-faults", message + ", which the scaling to the unprofiled step removes", share),)


def time_page_faults(extras: Extras | None, fresh_bytes_per_s: float | None, *, lightly: bool) -> tuple[float, float]:
    """Gives time per step of page faults, of unprofiled and of profiled steps.

    With ``lightly`` the latter are those of the window with the fewest options. It may run in memory which the window
    before it left in the process: attention on 63 MB tensors had 390,000 page faults per step before it, and 80,000 to
    210,000 in it. 0 where they were not counted, or where the rate of new pages is unknown.
    """
    faults = None if extras is None else extras.page_faults
    if faults is None:
        return 0.0, 0.0
    seen = faults.lightly if lightly else faults.profiled
    return faults.us_of(faults.unprofiled, fresh_bytes_per_s), faults.us_of(seen, fresh_bytes_per_s)


def _with_peak(totals: Totals, peak: PeakMemory) -> Totals:
    """Gives the totals with the peak measured without the profiler.

    It replaces the peak that the trace records.
    """
    if peak.bytes is None:
        return totals if totals.peak_memory_bytes is not None else replace(totals, peak_memory_reason=peak.reason)
    reason = "since the program started" if peak.since == "start" else None
    return replace(totals, peak_memory_bytes=peak.bytes, peak_memory_reason=reason)
