"""The time that the gate measured, in words: growth with its interval, what could have been seen, how long it took."""

import math

from bottleneck.gated import TimeResult
from bottleneck.gated_words import growth, share
from bottleneck.units import format_us


def time_summary(time: TimeResult | None) -> str:
    """'step +0.4 % [-0.6 %, +1.3 %], could see 1.8 % or more'; why there is none where the time was not measured."""
    if time is None:
        return "time not measured"
    if time.ratio is None:
        told = f"{_steps(time)} ({time.verdict})" if _steps(time) else f"time {time.verdict}"
        return told + (f": {time.reason}" if time.reason else "")
    ratio = time.ratio
    told = f"step {growth(ratio.median)} [{growth(ratio.low)}, {growth(ratio.high)}]{_doubt(time)}"
    return f"{told}, could see {share(time.smallest_visible)} or more" if time.smallest_visible is not None else told


def time_in_short(time: TimeResult | None) -> str:
    """'step +7.6 %', 'step +2.1 % (undecided)', 'time not run'; nothing where the workload came to no time at all."""
    if time is None:
        return ""
    if time.ratio is None:
        return f"time {time.verdict}"
    return f"step {growth(time.ratio.median)}{_doubt(time)}"


def _doubt(time: TimeResult) -> str:
    """What keeps a figure from being a verdict."""
    return f" ({time.verdict})" if time.verdict in {"undecided", "advisory"} else ""


def time_words(time: TimeResult) -> str:
    """All that is known of the time, in one sentence."""
    phrases = [time.verdict, _steps(time), _interval(time), _budget(time), _visible(time), time.reason]
    spent = [f"measured in {took(time.seconds)}"] if time.seconds else []
    return "; ".join([*filter(None, phrases), *spent])


def _steps(time: TimeResult) -> str | None:
    if time.base_us is None or time.candidate_us is None:
        return None
    before, after = format_us(time.base_us.median), format_us(time.candidate_us.median)
    number, _, unit = before.partition(" ")
    return f"step {number if after.endswith(f' {unit}') else before} -> {after}"


def _interval(time: TimeResult) -> str | None:
    """The growth between bounds that each hold at 99 %, over so many pairs, and how many of them confirmed it."""
    if time.ratio is None:
        return None
    ratio = time.ratio
    pairs = f"{ratio.n} pair{'' if ratio.n == 1 else 's'}"
    confirmed = f", {time.confirming} of them fresh ones to confirm" if time.confirming else ""
    return f"{growth(ratio.median)} [98 %: {growth(ratio.low)}, {growth(ratio.high)}] over {pairs}{confirmed}"


def _budget(time: TimeResult) -> str | None:
    if time.budget is None:
        return None
    floor = f", or {format_us(time.floor_us)} where that is more" if time.floor_us else ""
    return f"budget {growth(1 + time.budget)}{floor}"


def _visible(time: TimeResult) -> str | None:
    if time.smallest_visible is None:
        return None
    return f"this run could see {share(time.smallest_visible)} or more"


def took(seconds: float) -> str:
    """A duration of waiting: '4.2 s', '41 s', '3 min 12 s'."""
    if not math.isfinite(seconds):
        return "an unknown time"
    if seconds < 9.95:
        return f"{max(seconds, 0.0):.1f} s"
    whole = round(seconds)
    return f"{whole} s" if whole < 120 else f"{whole // 60} min {whole % 60} s"
