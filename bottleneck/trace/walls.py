"""When steps begin and end on host and device together; used by ``steps``.

A host that runs ahead ends its step while the device still works on an earlier one, so its marks alone do not bound
what the device does. MI300X, resnet with checkpointing: the host takes 16.2 ms per step, the device 18.8 ms, and is
30 ms behind when the first step begins.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bottleneck.trace.events import starts_ns
from bottleneck.trace.joins import match_latest, whole
from bottleneck.trace.launches import find_launches
from bottleneck.trace.nesting import Floats
from bottleneck.tracing import Step, Trace


@dataclass(frozen=True)
class _Work:
    """Device work: when each piece was launched (-inf: before the trace began) and when it ended."""

    called_us: Floats
    end_us: Floats

    def ended_of(self, before_us: Floats) -> Floats:
        """When all work launched before each instant has ended; -inf where there was none."""
        order = np.argsort(self.called_us, kind="stable")
        ended_us = np.maximum.accumulate(np.append(-np.inf, self.end_us[order]))
        return np.asarray(ended_us[np.searchsorted(self.called_us[order], before_us, side="left")])


def wall_spans(trace: Trace, steps: Sequence[Step]) -> tuple[Floats, Floats]:
    """Begin and end of each step: when the host got there and the device had ended all work launched until then.

    So both ends of any stretch of steps lie in the same phase, and with a steady device its length is the number of
    steps times their true period, and holds the work of exactly these steps, however far the host runs ahead. Where
    the device keeps up, these are the host's own bounds. If work of one step outlasts the whole next one (a kernel
    that waits for another process), only the last end is that of the device.
    """
    start_us = np.array([step.start_us for step in steps])
    end_us = np.array([step.end_us for step in steps])
    work = _device_work(trace, float(start_us[0]))
    began_us = np.maximum(start_us, work.ended_of(start_us))
    done_us = np.maximum(end_us, work.ended_of(end_us))
    if (done_us > began_us).all():
        return began_us, done_us
    mine = (work.called_us >= start_us[0]) & (work.called_us < end_us[-1])
    end_us[-1] = work.end_us[mine].max(initial=end_us[-1])
    return start_us, end_us


def called_us(trace: Trace) -> Floats:
    """When each piece of device work was launched, row for row as DEVICE_ARGS; NaN where the trace does not tell.

    By its launch, else by the op whose id it carries.
    """
    event, launch = trace.device_args["event"].to_numpy(), find_launches(trace)
    ops = trace.op_args["event"].to_numpy()
    issuers = match_latest(
        whole(trace.op_args["external_id"]),
        starts_ns(trace, ops),
        whole(trace.device_args["external_id"]),
        starts_ns(trace, event),
    ).nearest
    calls = np.append(trace.launch_args["event"].to_numpy(), -1)[launch]
    calls = np.where(launch >= 0, calls, np.append(ops, -1)[issuers])
    at_us: Floats = np.append(trace.events["ts_us"].to_numpy(), np.nan)[calls]
    return at_us


def _device_work(trace: Trace, first_us: float) -> _Work:
    """Work whose call is known, and what ran before any of it that was called from ``first_us`` on."""
    event = trace.device_args["event"].to_numpy()
    start_us = trace.events["ts_us"].to_numpy()[event]
    end_us = start_us + trace.events["dur_us"].to_numpy()[event]
    at_us = called_us(trace)
    first_work_us = start_us[at_us >= first_us].min(initial=np.inf)
    if np.isfinite(first_work_us):
        at_us[np.isnan(at_us) & (start_us < first_work_us)] = -np.inf
    known = ~np.isnan(at_us)
    return _Work(at_us[known], end_us[known])
