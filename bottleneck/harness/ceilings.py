"""The measured ceilings of this CPU, from the cache or from a helper process that runs after the program."""

import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from bottleneck.harness.calibrate import Calibration, read_calibration

# A measurement that other programs disturbed is repeated, which can only improve it, but not at every run.
_REPEAT_AFTER = timedelta(minutes=10)


def cpu_calibration(threads: int | None, tell: Callable[[str], None]) -> Calibration | None:
    """The calibration for this number of threads, made now if there is none; null (and told why) if that fails.

    One that was disturbed is made again after a while. In a process of its own: the measurement needs torch, which
    this one must not import.
    """
    known = read_calibration(threads)
    if known is not None and not _is_worth_repeating(known):
        return known
    often = "once" if known is None else "again, since it was busy the last time"
    tell(f"bottleneck: measuring the ceilings of this CPU, {often}; it takes about ten seconds")
    code = f"from bottleneck.harness.calibrate import calibrate_cpu; calibrate_cpu({threads!r})"
    helper = subprocess.run(  # noqa: S603 - our own interpreter and text
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    known = read_calibration(threads)
    if known is None:
        reason = (helper.stderr.strip().splitlines() or ["it left no calibration"])[-1]
        tell(f"bottleneck: this CPU could not be measured: {reason}")
    return known


def _is_worth_repeating(known: Calibration) -> bool:
    return bool(known.caveats) and datetime.now(UTC) - datetime.fromisoformat(known.created) > _REPEAT_AFTER
