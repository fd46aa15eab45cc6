"""The measured ceilings of this CPU, from the cache or from a helper process that runs after the program."""

import subprocess
import sys
from collections.abc import Callable

from bottleneck.harness.calibrate import Calibration, read_calibration


def cpu_calibration(threads: int | None, tell: Callable[[str], None]) -> Calibration | None:
    """The calibration for this number of threads, made now if there is none; null (and told why) if that fails.

    In a process of its own: the measurement needs torch, which this one must not import.
    """
    known = read_calibration(threads)
    if known is not None:
        return known
    tell("bottleneck: measuring the ceilings of this CPU, once; it takes about ten seconds")
    code = f"from bottleneck.harness.calibrate import calibrate_cpu; calibrate_cpu({threads!r})"
    helper = subprocess.run(  # noqa: S603 - our own interpreter and text
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    known = read_calibration(threads)
    if known is None:
        reason = (helper.stderr.strip().splitlines() or ["it left no calibration"])[-1]
        tell(f"bottleneck: this CPU could not be measured: {reason}")
    return known
