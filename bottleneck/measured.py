"""What the harness measured of a program, as recordings and analyses keep it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Step times: median with its interval, over n steps."""

    median: float
    low: float
    high: float
    n: int
