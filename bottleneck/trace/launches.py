"""Device work tied to the host call that issued it, by correlation; used by ``steps`` and ``link``."""

import re

from bottleneck.trace.events import starts_ns
from bottleneck.trace.joins import match_latest, whole
from bottleneck.trace.nesting import Ints
from bottleneck.tracing import Trace

# Calls that each issue exactly one kernel.
LAUNCHES_A_KERNEL = re.compile(r"^(cuda|cu|hip)\w*LaunchKernel|^(cuda|cu|hip)LaunchCooperativeKernel")


def find_launches(trace: Trace) -> Ints:
    """Row in LAUNCH_ARGS of the call that issued each row of DEVICE_ARGS, -1 where the trace does not hold it.

    Of several calls with the same correlation the latest before the work counts, or the first when all of them come
    after it: the clocks of host and device differ by up to 200 us, so order in time alone proves nothing.
    """
    called, issued = trace.launch_args, trace.device_args
    return match_latest(
        whole(called["correlation"]),
        starts_ns(trace, called["event"].to_numpy()),
        whole(issued["correlation"]),
        starts_ns(trace, issued["event"].to_numpy()),
    ).nearest
