"""What was measured besides step times and the trace, told in the analysis."""

from dataclasses import replace

from bottleneck.analysis.batch import prove
from bottleneck.analysis.scaling import DISTURBED
from bottleneck.measured import Extras, PeakMemory, Timing
from bottleneck.records import Analysis, Caveat, Totals

# Steps in a window vary; twice what the profiler costs is no chance any more.
_MORE_THAN_THE_PROFILER = 2.0


def add_extras(analysis: Analysis, extras: Extras) -> Analysis:
    """The analysis with the batch test judged beside its ledger, and with what else the recording holds."""
    return replace(
        analysis,
        steps=replace(analysis.steps, settled=extras.settled, windows_us=extras.windows_us),
        totals=analysis.totals if extras.peak_memory is None else _with_peak(analysis.totals, extras.peak_memory),
        batch_test=None if extras.batch_test is None else prove(extras.batch_test, analysis.ledger),
        option_costs=extras.option_costs,
    )


def find_disturbance(extras: Extras, unprofiled: Timing | None) -> tuple[Caveat, ...]:
    """A caveat when the steps of the kept window took far longer than the profiler alone makes of such steps.

    Without it all of that time would pass for the profiler's, and what is left of the ops would be chance.
    """
    costs = () if extras.option_costs is None else extras.option_costs.costs
    usual = next((cost.ratio.median for cost in costs if cost.option == "all"), None)
    if usual is None or not extras.windows_us or unprofiled is None or not unprofiled.median > 0:
        return ()
    times = min(extras.windows_us) / unprofiled.median
    if times <= _MORE_THAN_THE_PROFILER * max(usual, 1.0):
        return ()
    message = (
        f"the steps of the window took {times:.1f} times as long as unprofiled ones, where the profiler alone makes it "
        f"{usual:.1f} times: other programs disturbed them"
    )
    return (Caveat(DISTURBED, message, 1.0 - usual / times),)


def _with_peak(totals: Totals, peak: PeakMemory) -> Totals:
    """The peak that was measured without the profiler, in place of what the trace tells."""
    if peak.bytes is None:
        return totals if totals.peak_memory_bytes is not None else replace(totals, peak_memory_reason=peak.reason)
    reason = "since the program started" if peak.since == "start" else None
    return replace(totals, peak_memory_bytes=peak.bytes, peak_memory_reason=reason)
