"""Starts and durations of any era as exact nanoseconds and microseconds.

Epoch microseconds with three decimals have 19 digits, more than a float64 holds; so starts become whole nanoseconds
before anything is subtracted from them.
"""

import math
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import numpy.typing as npt

from bottleneck.trace.decode import ABSENT, EXACT_BELOW_US, Number

Array = npt.NDArray[Any]

_LARGEST_US = 9.2e15
_LARGEST_DIGITS = 15


def starts_ns(values: list[Number]) -> Array:
    """Starts in microseconds of any type as nanoseconds (int64); ABSENT for what is no time."""
    try:
        floats = np.fromiter(values, np.float64, len(values))
        if np.abs(floats).max(initial=0) < EXACT_BELOW_US:
            nanoseconds: Array = np.rint(floats * 1000).astype(np.int64)
            return nanoseconds
        # Of decimals the fraction would be cut off here, so only a column that begins with a whole number is tried.
        if isinstance(values[0], int) and np.abs(floats).max() < _LARGEST_US:
            integers = np.fromiter(values, np.int64, len(values))
            if (integers == floats).all():
                return integers * 1000
    except (TypeError, ValueError, OverflowError):
        pass
    return np.fromiter(map(start_ns, values), np.int64, len(values))


def start_ns(value: Number) -> int:
    """One start in microseconds as nanoseconds; ABSENT for what is no time."""
    if isinstance(value, int):
        return value * 1000 if abs(value) < _LARGEST_US else ABSENT
    try:
        exact = Decimal(str(value)) if isinstance(value, str | float) else value
        if exact is None or not exact.is_finite() or exact.adjusted() > _LARGEST_DIGITS:
            return ABSENT
        return int((exact * 1000).to_integral_value()) if abs(exact) < _LARGEST_US else ABSENT
    except InvalidOperation:
        return ABSENT


def has_fraction(values: list[Number]) -> bool:
    """Whether a column of starts is written with decimals."""
    return any(isinstance(value, float | str | Decimal) for value in (*values[:4], *values[-4:]))


def durations_us(values: list[Any]) -> Array:
    """Durations in microseconds (float64); NaN for what is none."""
    try:
        return np.fromiter(values, np.float64, len(values))
    except (TypeError, ValueError, OverflowError):
        return np.array([_float(value) for value in values])


def _float(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return math.nan
