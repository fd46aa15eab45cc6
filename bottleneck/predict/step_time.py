"""Joins the device's time and the host's to that of a step: the one hides the other where it is longer."""

from collections.abc import Mapping

import numpy as np

from bottleneck.schema.intervals import Floats

_SHARPNESS = 6.0


def step_us(device_us: Floats, host_us: Floats, pace_us: Floats, rates: Mapping[str, float]) -> Floats:
    """Time of a step that begins with an idle device and ends when the device is done; all in microseconds.

    ``pace_us`` is the host's time for one op. Before the first kernel the host enters the program and issues it.
    """
    on_device = device_us + rates["latency"]
    on_host = host_us + rates["host:first"] * pace_us
    return np.asarray((on_device**_SHARPNESS + on_host**_SHARPNESS) ** (1 / _SHARPNESS))
