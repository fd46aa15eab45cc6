"""The measured ceilings of this CPU, from the cache or from a helper process that runs after the program."""

import subprocess
import sys

from bottleneck.harness.calibrate import load_calibration
from bottleneck.records import Device

_CALIBRATE = "from bottleneck.harness.calibrate import calibrate_cpu; calibrate_cpu()"


def cpu_ceilings() -> tuple[Device | None, str | None]:
    """The ceilings, or null with the reason."""
    known = load_calibration()
    if known is not None:
        return known, None
    helper = subprocess.run(  # noqa: S603 - our own interpreter and text
        [sys.executable, "-c", _CALIBRATE], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    known = load_calibration()
    if known is not None:
        return known, None
    last = (helper.stderr.strip().splitlines() or ["no message"])[-1]
    return None, f"this CPU could not be calibrated: {last}"
