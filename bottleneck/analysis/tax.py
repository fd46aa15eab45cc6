"""What the profiler adds to each op of a CPU trace, taken off before the ops are judged."""

from dataclasses import replace

import numpy as np

from bottleneck.analysis.ledger import is_host_only
from bottleneck.analysis.timeline import Floats
from bottleneck.measured import Timing
from bottleneck.tracing import Linked

# The profiler writes a record for each of these.
_RECORDED = ("op", "annotation", "collective", "python")


def event_tax_us(linked: Linked, unprofiled: Timing | None) -> float:
    """Microseconds that one recorded event costs: what the profiled steps took longer, over the events in them.

    The cost is one per event and not per second (0.7 to 1.1 us by option), so a program of tiny ops is stretched
    several times and one of large ops hardly at all. 0 when no undisturbed step time is known.
    """
    steps, window = len(linked.window.steps), linked.window
    if unprofiled is None or not steps:
        return 0.0
    events = linked.trace.events
    start = events["ts_us"].to_numpy()
    inside = (start >= window.start_us) & (start < window.end_us) & events["category"].isin(_RECORDED).to_numpy()
    count = int(np.count_nonzero(inside))
    return max(0.0, window.wall_us - steps * unprofiled.median) / count if count else 0.0


def untax(linked: Linked, unprofiled: Timing | None, floor_us: float | None) -> Linked:
    """The same with the profiler's part taken off the self times of host ops (KERNELS.dur_us); device work is kept.

    Half of an event's cost falls inside the event, half into the op around it. No op gets shorter than
    ``floor_us``, the least that any op costs on this machine.
    """
    if not is_host_only(linked):
        return linked
    tax = event_tax_us(linked, unprofiled)
    self_us = linked.ops["self_us"].to_numpy()
    part = tax * (1 + linked.ops["children"].to_numpy()) / 2
    least = np.minimum(self_us, floor_us or 0.0)
    return replace(linked, kernels=linked.kernels.assign(dur_us=np.maximum(self_us - part, least)))


def untaxed_parts(linked: Linked) -> Floats:
    """Part of each row of KERNELS that is its own and not the profiler's (0-1); 1 for device work."""
    if not is_host_only(linked):
        return np.ones(len(linked.kernels))
    self_us, own_us = linked.ops["self_us"].to_numpy(), linked.kernels["dur_us"].to_numpy()
    parts: Floats = np.divide(own_us, self_us, out=np.ones(len(own_us)), where=self_us > 0)
    return parts
