"""Whether other programs held the processors while the steps ran, so that the time of ops is not their own."""

import numpy as np

from bottleneck.analysis.ledger import ACCOUNTS, LedgerResult
from bottleneck.analysis.timeline import Floats
from bottleneck.records import Caveat, TelemetrySummary
from bottleneck.units import format_share

CONTENDED = "contended"

# Processors that were all at work, and of those that the program wanted, the part that it did not get.
_FULL, _GOT_AT_MOST = 0.95, 0.9
_WORK = [tuple(ACCOUNTS).index(name) for name in ("compute", "memory", "overhead.launch_floor")]
# Where floors explain this much of the ops' time, waiting for a processor cannot be most of it.
_EXPLAINED = 0.25


def find_contention(
    telemetry: TelemetrySummary | None, threads: int | None, result: LedgerResult, explained: Floats
) -> tuple[Caveat, ...]:
    """A caveat when the program got fewer processors than it has threads, for want of free ones, and little adds up.

    Threads that compute together wait for the last of them: one that has to wait for a processor makes a tiny op last
    for a whole time slice of the system, and which op that is, is chance. ``explained`` holds, for each row of KERNELS,
    the part of its time that a floor explains (0-1, NaN unknown). Only for programs on the host.
    """
    if telemetry is None or not threads or not result.host_only:
        return ()
    used, got = telemetry.host_utilization, telemetry.process_processors
    if used is None or got is None or used < _FULL or got > _GOT_AT_MOST * threads:
        return ()
    works = np.isin(result.account, _WORK) & (result.kernel_us > 0)
    total_us = float(result.kernel_us[works].sum())
    share = float((result.kernel_us * np.nan_to_num(explained))[works].sum()) / total_us if total_us > 0 else 1.0
    if share >= _EXPLAINED:
        return ()
    message = (
        f"other programs held the processors while the steps ran: the program got {got:.2f} for its {threads} threads, "
        f"and its ops took so much longer than they need that floors explain {format_share(share)} of their time"
    )
    return (Caveat(CONTENDED, message, 1.0 - share),)
