"""Scales, item sizes and the one place where numbers become text for people."""

import math
import re
from collections.abc import Sequence

US_PER_S = 1e6

# Bytes per element, by the names that traces of any era use. Sub-byte types are fractions.
ITEM_BYTES = {
    "double": 8.0,
    "float": 4.0,
    "c10::Half": 2.0,
    "c10::BFloat16": 2.0,
    "long int": 8.0,
    "long": 8.0,
    "long long": 8.0,
    "__int64": 8.0,
    "int": 4.0,
    "unsigned int": 4.0,
    "short int": 2.0,
    "unsigned short": 2.0,
    "short": 2.0,
    "signed char": 1.0,
    "unsigned char": 1.0,
    "bool": 1.0,
    "c10::complex<float>": 8.0,
    "c10::complex<double>": 16.0,
    "c10::complex<c10::Half>": 4.0,
    "c10::Float8_e4m3fn": 1.0,
    "c10::Float8_e5m2": 1.0,
    "c10::Float8_e4m3fnuz": 1.0,
    "c10::Float8_e5m2fnuz": 1.0,
    "c10::Float8_e8m0fnu": 1.0,
    "c10::Float4_e2m1fn_x2": 1.0,
    "c10::qint8": 1.0,
    "c10::quint8": 1.0,
    "c10::qint32": 4.0,
}

# The short dtype names that peaks are keyed by.
SHORT_DTYPE = {
    "double": "fp64",
    "float": "fp32",
    "c10::Half": "fp16",
    "c10::BFloat16": "bf16",
    "c10::Float8_e4m3fn": "fp8",
    "c10::Float8_e5m2": "fp8",
    "c10::Float8_e4m3fnuz": "fp8",
    "c10::Float8_e5m2fnuz": "fp8",
    "c10::Float4_e2m1fn_x2": "fp4",
    "signed char": "int8",
    "unsigned char": "int8",
    "c10::qint8": "int8",
    "c10::quint8": "int8",
    "int": "int32",
    "long int": "int64",
    "long": "int64",
    "long long": "int64",
    "__int64": "int64",
    "c10::complex<float>": "fp32",
    "c10::complex<double>": "fp64",
}

_SI = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def counted(number: int | str, noun: str, plural: str | None = None) -> str:
    """Words a count, or its text, with its noun.

    Such as '1 step', '1,200 steps', '0.5 steps', '2 copies'.
    """
    text = number if isinstance(number, str) else f"{number:,}"
    return f"{text} {noun if text == '1' else plural or f'{noun}s'}"


def listed(names: Sequence[object]) -> str:
    """Lists names in a sentence: 'A', 'A and B', 'A, B and C'."""
    *before, last = map(str, names)
    return f"{', '.join(before)} and {last}" if before else last


def format_us(us: float) -> str:
    """A duration with three significant digits: '12.3 us', '4.56 ms', '1.20 s'."""
    for scale, unit in ((1e6, "s"), (1e3, "ms"), (1.0, "us")):
        if abs(us) >= scale * 0.9995:
            return f"{_three_digits(us / scale)} {unit}"
    return f"{_three_digits(us)} us" if us else "0 us"


def format_us_range(low: float, high: float, to: str = " to ") -> str:
    """Formats both ends in the unit of the upper one."""
    amount, unit = format_us(high).split()
    size = {"us": 1.0, "ms": 1e3, "s": 1e6}[unit]
    decimals = len(amount.partition(".")[2])
    first = f"{low / size:.{decimals}f}"
    return f"{amount} {unit}" if first == amount else f"{first}{to}{amount} {unit}"


def format_part(us: float, whole_us: float) -> str:
    """Formats a part of a duration.

    It reads '217 of 383 ms' or '845 us of 1.20 s'.
    """
    (amount, unit), whole = format_us(us).split(), format_us(whole_us)
    return f"{amount} of {whole}" if whole.endswith(f" {unit}") else f"{amount} {unit} of {whole}"


def format_si(value: float, unit: str) -> str:
    """A quantity with a decimal prefix: '1.20 GB', '312 TFLOP/s'."""
    for scale, prefix in _SI:
        if abs(value) >= scale * 0.9995:
            return f"{_three_digits(value / scale)} {prefix}{unit}"
    return f"{_three_digits(value)} {unit}"


def format_memory(held_bytes: float) -> str:
    """Formats device memory in the units that torch shows: '80 GiB', '56.8 MiB'."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if held_bytes >= 1024**power * 0.9995:
            return f"{trimmed(_three_digits(held_bytes / 1024**power))} {unit}"
    return f"{held_bytes:.0f} B"


def format_share(share: float) -> str:
    """Words a share as a percentage.

    Nonzero never shows as 0 %, partial never as 100 %.
    """
    percent = share * 100
    if 0 < percent < 0.1:
        return "<0.1 %"
    if 99.95 <= percent < 100 - 1e-7:
        return ">99.9 %"
    return f"{percent:.1f} %" if percent < 100.05 else f"{format_ratio(percent)} %"


def format_ratio(ratio: float) -> str:
    """A ratio with three significant digits: '0.98', '12.3', '2,610'."""
    if abs(ratio) < 999.5 or not math.isfinite(ratio):
        return _three_digits(ratio)
    digits = math.floor(math.log10(abs(ratio))) - 2
    return f"{round(ratio, -digits):,.0f}"


def format_ratio_range(low: float, high: float, to: str = " to ") -> str:
    """Formats an interval of ratios: '1.32 to 2.35'; in a table, with ``to``, '1.32-2.35'."""
    first, last = format_ratio(low), format_ratio(high)
    return last if first == last else f"{first}{to}{last}"


_ZEROS = re.compile(r"\.(\d*?)0+(?!\d)")


def trimmed(amount: str) -> str:
    """Returns an amount as formatted here without decimals that are 0.

    As ticks of an axis have it: '2.5 us', '10 G'.
    """
    return _ZEROS.sub(lambda decimals: f".{decimals[1]}" if decimals[1] else "", amount).strip()


def apportion_groups(groups: Sequence[Sequence[float]]) -> list[list[int]]:
    """Returns whole numbers beside the values of each group.

    Sums of groups are rounded first, as they are shown alone too.
    """
    totals = apportion([math.fsum(group) for group in groups])
    return [apportion(group, total) for group, total in zip(groups, totals, strict=True)]


def apportion(values: Sequence[float], total: int | None = None) -> list[int]:
    """Returns whole numbers beside the values that add up to their sum.

    The sum is rounded (largest remainder; earlier wins a tie). ``total`` is a sum that was rounded elsewhere, up or
    down.
    """
    floors = [math.floor(value) for value in values]
    missing = (round(math.fsum(values)) if total is None else total) - sum(floors)
    by_remainder = sorted(range(len(values)), key=lambda index: floors[index] - values[index])
    raised = set(by_remainder[:missing])
    return [floor + (index in raised) for index, floor in enumerate(floors)]


def _three_digits(value: float) -> str:
    magnitude = abs(value)
    if magnitude >= 99.95:
        return f"{value:.0f}"
    if magnitude >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}"
