"""Reads the counter tracks of a trace over its window.

Modelled work is then compared with what the device counted.

Monitors write them beside the events: CUPTI's samples SM activity, DRAM bandwidth and tensor activity every
millisecond. A value holds from its time stamp to the next one, as viewers draw it; in a trace of a B200 whose device
begins to work 0.2 ms after a sample, that sample already tells of the work.
"""

import re
from collections.abc import Iterator

import numpy as np
import pandas as pd

from bottleneck.schema.analysis import Caveat, Coverage, TelemetrySummary, Totals
from bottleneck.schema.intervals import Flags
from bottleneck.schema.linked_trace import Linked
from bottleneck.units import format_share

COUNTERS_DIFFER = "counters-differ"

# Reading of the sensors -> names of its counters, in lower case. The first that matches counts; those of one reading
# whose names say "read" and "write" are added up.
_SHARES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("tensor_activity", re.compile(r"tensor|\bpipe_tensor|\bmma\b")),
    ("dram_activity", re.compile(r"\bdram|\bhbm|memory (?:bw|bandwidth|throughput)")),
    ("sm_activity", re.compile(r"^(?:gpu \d+ )?(?:sms?|cus?|eus?|xve)\b.*(?:activ|busy|util)|^sm__cycles_active")),
)
_OTHERS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("power_w", re.compile(r"^(?:gpu \d+ )?power.*\(w\)")),
    ("temperature_c", re.compile(r"^(?:gpu \d+ )?temp\w*.*\(c\)")),
    ("sm_clock_mhz", re.compile(r"^(?:gpu \d+ )?(?:sm|graphics|gpc) (?:clock|freq\w*).*\(mhz\)")),
)
_PERCENT = re.compile(r"%|\bpct\b|pct_of|percent")
_HALVES = re.compile(r"\b(?:read|write)\b|_(?:read|write)", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")
# Below, the samples say too little of the window.
_LEAST_COVERED = 0.5
# What differs by less is the error of model, sampling and peaks together.
_DIFFERS = 1.5


def read_counters(linked: Linked) -> TelemetrySummary | None:
    """Reads a trace's own counter tracks over its window.

    Null where it has none that are known.

    Shares are means over the time, of the devices that worked; power, temperature and clock are medians.
    """
    samples = linked.trace.counters
    if samples is None:
        return None
    samples = samples[_of_devices(samples, linked)]
    shares = {reading: share for reading, pattern in _SHARES if (share := _share(samples, pattern, linked)) is not None}
    others = {reading: value for reading, pattern in _OTHERS if (value := _median(samples, pattern)) is not None}
    if not shares and not others:
        return None
    within = samples["ts_us"].between(linked.window.start_us, linked.window.end_us)
    readings = {"sm_clock_mhz": None, "power_w": None, **others, **shares}
    return TelemetrySummary(
        samples=int(within.sum()), memory_clock_mhz=None, energy_j=None, utilization=None, throttle=(), **readings
    )


def _of_devices(samples: pd.DataFrame, linked: Linked) -> Flags:
    """Marks the samples of devices that worked.

    All are marked where the places do not tell their devices.
    """
    used = set(linked.trace.device_args["device"].dropna().astype(int).tolist())
    numbers = {place: _NUMBER.search(place) for place in samples["place"].cat.categories}
    wanted = {place for place, number in numbers.items() if number is None or int(number[0][:9]) in used}
    mask: Flags = samples["place"].isin(wanted).to_numpy(dtype=np.bool_)
    return mask if mask.any() else np.ones(len(samples), dtype=np.bool_)


def _tracks(samples: pd.DataFrame, pattern: re.Pattern[str]) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Place, name and samples of each track whose name matches."""
    for (place, name), track in samples.groupby(["place", "name"], observed=True):
        if pattern.search(str(name).lower()):
            yield str(place), str(name), track


def _share(samples: pd.DataFrame, pattern: re.Pattern[str], linked: Linked) -> float | None:
    """Gives the mean share of the matching tracks over devices.

    Halves of one device are added up.
    """
    of_place: dict[str, float] = {}
    for place, name, track in _tracks(samples, pattern):
        is_half = _HALVES.search(name) is not None
        if not _PERCENT.search(name.lower()) or (place in of_place and not is_half):
            continue
        mean = _mean(track, linked)
        if mean is not None:
            of_place[place] = of_place.get(place, 0.0) + mean / 100
    return min(float(np.mean([*of_place.values()])), 1.0) if of_place else None


def _mean(track: pd.DataFrame, linked: Linked) -> float | None:
    """Gives the mean over the time of the window.

    Null where samples cover too little of it.
    """
    ts_us, value = track["ts_us"].to_numpy(), track["value"].to_numpy()
    if len(ts_us) < 2:
        return None
    pause_us = float(np.median(np.diff(ts_us)))
    # After a long pause nobody knows the value.
    end_us = np.minimum(np.append(ts_us[1:], np.inf), ts_us + 2 * pause_us)
    end_us[-1] = ts_us[-1] + pause_us
    held_us = np.minimum(end_us, linked.window.end_us) - np.maximum(ts_us, linked.window.start_us)
    held_us = np.maximum(held_us, 0.0)
    known_us = float(held_us.sum())
    if known_us < _LEAST_COVERED * linked.window.wall_us or known_us <= 0:
        return None
    return float((held_us * value).sum()) / known_us


def _median(samples: pd.DataFrame, pattern: re.Pattern[str]) -> float | None:
    values = [value for _, _, track in _tracks(samples, pattern) for value in track["value"].tolist()]
    return float(np.median(values)) if values else None


def hold_against_model(telemetry: TelemetrySummary | None, totals: Totals, coverage: Coverage) -> tuple[Caveat, ...]:
    """Gives a caveat where counters and the model disagree.

    The device then counted far more, or far less, traffic or matrix work than the model accounts for.

    Both are shares of the step: of its time at the whole bandwidth, and at the peak of the arithmetic. Tensor cores
    count as active also while they wait for operands, so that less work than activity is no contradiction.
    """
    if telemetry is None:
        return ()
    parts = []
    counted, low = telemetry.dram_activity, totals.bandwidth_utilization
    if counted is not None and low and totals.bytes_low and totals.bytes_high is not None:
        high = low * max(totals.bytes_high / totals.bytes_low, 1.0)
        if counted > _DIFFERS * high or low > _DIFFERS * counted:
            against = high if counted > high else low
            parts.append(f"DRAM {_told(counted, against)}")
    counted, modelled = telemetry.tensor_activity, totals.model_flops_utilization
    if counted is not None and modelled is not None and modelled > _DIFFERS * counted:
        parts.append(f"tensor cores {_told(counted, modelled)}")
    if not parts:
        return ()
    modelled_share = coverage.modelled_share
    scope = "" if modelled_share is None else f", which cover {format_share(modelled_share)} of the busy time,"
    message = f"the device's own counters and the modelled amounts{scope} disagree: {'; '.join(parts)}"
    return (Caveat(COUNTERS_DIFFER, message),)


def _told(counted: float, modelled: float) -> str:
    more = counted > modelled
    large, small = (counted, modelled) if more else (modelled, counted)
    ratio = f"{large / small:.1f} times as much" if small > 0 else "all of it"
    side = "was counted" if more else "is modelled"
    return f"{format_share(counted)} by the counters, {format_share(modelled)} by the model ({ratio} {side})"
