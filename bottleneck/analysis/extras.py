"""What was measured besides step times and the trace, told in the analysis."""

from dataclasses import replace

from bottleneck.analysis.batch import prove
from bottleneck.measured import Extras, PeakMemory
from bottleneck.records import Analysis, Totals


def add_extras(analysis: Analysis, extras: Extras) -> Analysis:
    """The analysis with the batch test judged beside its ledger, and with what else the recording holds."""
    return replace(
        analysis,
        steps=replace(analysis.steps, settled=extras.settled, windows_us=extras.windows_us),
        totals=analysis.totals if extras.peak_memory is None else _with_peak(analysis.totals, extras.peak_memory),
        batch_test=None if extras.batch_test is None else prove(extras.batch_test, analysis.ledger),
        option_costs=extras.option_costs,
    )


def _with_peak(totals: Totals, peak: PeakMemory) -> Totals:
    """The peak that was measured without the profiler, in place of what the trace tells."""
    if peak.bytes is None:
        return totals if totals.peak_memory_bytes is not None else replace(totals, peak_memory_reason=peak.reason)
    reason = "since the program started" if peak.since == "start" else None
    return replace(totals, peak_memory_bytes=peak.bytes, peak_memory_reason=reason)
