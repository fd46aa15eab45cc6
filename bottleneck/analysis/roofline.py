"""Classifies every kernel by the largest of three floors.

It also says how much of the time that floor explains, and how sure that is.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import numpy as np
import pandas as pd
from msgspec import Struct

from bottleneck.analysis.floors import (
    MATRIX_PEAKS,
    VECTOR_PEAKS,
    Floors,
    RooflineInput,
    fastest_us,
    floors,
    fold,
    launch_floor_us,
    op_dtype_codes,
    settle_compute_us,
    settle_memory_us,
)
from bottleneck.analysis.reasons import (
    ReasonRows,
    Shortfall,
    choose,
    first_that_holds,
    of_device,
    of_host,
    two_digits,
    why_unmodelled,
)
from bottleneck.analysis.telemetry import UNKNOWN_CONDITIONS, Conditions
from bottleneck.schema.analysis import REGIMES
from bottleneck.schema.device import Device
from bottleneck.schema.intervals import Flags, Floats, Integers
from bottleneck.schema.tables import ROOFLINE, as_integers, category
from bottleneck.system.working_memory import returns_memory
from bottleneck.units import US_PER_S

_SMALL_BYTES = 65536.0  # below, a copy between host and device is a round trip rather than a stream


class Copies(Struct, frozen=True):
    """Copies and fills, per row of KERNELS.

    It says if a row is one, if it crosses a link, its floor (NaN if unknown), and why it is slower.
    """

    is_copy: Flags
    crosses_link: Flags
    memory_us: Floats
    reason: ReasonRows


def copy_floors(work: RooflineInput) -> Copies:
    """The least time of every copy and fill.

    A copy inside the device reads and writes its bytes, sparing what the cache holds; a fill only writes. The way
    between two devices is not in the table, so such copies have no floor. Where the trace gives no bytes (ROCm), those
    that the copying op reads and writes stand in.
    """
    kernels, device = work.kernels, work.device
    kind, way = kernels["kind"], kernels["copy_way"]
    over_link, inside = way.isin(("to_device", "to_host")).to_numpy(), (way == "within").to_numpy()
    is_copy, is_fill = (kind == "copy").to_numpy(), (kind == "fill").to_numpy()
    moved = kernels["bytes"].to_numpy(dtype=np.float64, na_value=np.nan)
    moved = np.where(is_copy & np.isnan(moved), _bytes_of_op(work), moved)
    dram = device.bandwidth_bytes_per_s or np.nan
    traffic = np.where(is_fill, moved, 2 * moved)
    seconds = np.select(
        [is_copy & over_link, is_fill | (is_copy & inside)],
        [
            moved / (device.link_bytes_per_s or np.nan),
            np.minimum(traffic / dram, np.maximum(traffic - (device.cache_bytes or 0.0), 0.0) / dram),
        ],
        default=np.nan,
    )
    memory_us = seconds * US_PER_S
    crosses = over_link | (way == "between").to_numpy()
    return Copies(is_copy | is_fill, crosses, memory_us, _why_slow(work, moved, memory_us, is_copy & over_link))


def _bytes_of_op(work: RooflineInput) -> Floats:
    """Gives half of what the op of each row moves.

    Only ops that do nothing but copy count: NaN for the others.
    """
    op = as_integers(work.kernels["op"])
    signature = np.append(as_integers(work.ops["signature"]), -1)[op]
    copies = np.append((work.costs["family"] == "copy").to_numpy(), False)[signature]
    traffic = np.append(work.costs["bytes_low"].to_numpy(), np.nan)[signature]
    return np.where(copies, traffic / 2, np.nan)


def _why_slow(work: RooflineInput, moved: Floats, memory_us: Floats, over_link: Flags) -> ReasonRows:
    """Gives the reason for a copy slower than link or DRAM.

    Null where it is not slower, or where the trace shows no reason.
    """
    duration = work.kernels["dur_us"].to_numpy()
    is_copy = (work.kernels["kind"] == "copy").to_numpy()
    slow = is_copy & (memory_us < work.limits.memory_share * duration)
    pageable = (work.kernels["host_memory"] == "pageable").to_numpy()
    pace = two_digits(moved / np.maximum(duration, 1e-9) * US_PER_S)
    link, dram = work.device.link_bytes_per_s, work.device.bandwidth_bytes_per_s
    limit = np.where(over_link, link or np.nan, dram or np.nan)
    rules = (
        Shortfall(pageable & ~(moved >= _SMALL_BYTES), "pageable"),
        Shortfall(pageable & (limit > 0), "slow_pageable", (pace, limit)),
        Shortfall(pageable, "paced_pageable", (pace,)),
        Shortfall(slow & (moved < _SMALL_BYTES), "small_copy", (moved,)),
        Shortfall(slow & over_link, "slow_link", (pace, limit)),
        Shortfall(slow, "slow_copy", (2 * pace, limit)),
        Shortfall(is_copy & np.isnan(moved), "no_bytes"),
    )
    any_holds = np.any([rule.holds for rule in rules], axis=0)
    return first_that_holds(rules, np.asarray(any_holds))


__all__ = ["classify", "launch_floor_us"]

BOUNDS = ["unknown", "overhead", "compute", "memory", "communication", "transfer", "copy", "dispatch"]
_UNKNOWN, _OVERHEAD, _COMPUTE, _MEMORY, _COMMUNICATION, _TRANSFER, _COPY, _DISPATCH = range(8)
_NO_REGIME, _NEAR, _BELOW, _FAR_BELOW = -1, 0, 1, 2  # positions in REGIMES
CONFIDENCES = ["low", "medium", "high"]
_LOW, _MEDIUM, _HIGH = range(3)


class _Times(Struct, frozen=True):
    """Microseconds per group that a decision uses.

    They are the measured time and one value of each floor, NaN if unknown.

    ``warm`` is the memory floor if all that fits was in cache, ``memory`` the one that is held against the time.
    ``balanced`` is the bound by machine balance, as a position in BOUNDS, for groups that lack a floor.
    """

    time: Floats
    compute: Floats
    warm: Floats
    memory: Floats
    launch: Floats
    balanced: Integers


class _BoundRows(Struct, frozen=True):
    """Bound and regime per group.

    They are positions in BOUNDS and REGIMES, -1 for no regime.
    """

    bound: Integers
    regime: Integers


@returns_memory
def classify(
    kernels: pd.DataFrame,
    ops: pd.DataFrame,
    costs: pd.DataFrame,
    attribution: pd.DataFrame,
    device: Device,
    conditions: Conditions = UNKNOWN_CONDITIONS,
) -> pd.DataFrame:
    """Gives ROOFLINE from kernels, ops, costs and attribution.

    Kernels that share a cost (the same group in ATTRIBUTION) are judged together on their summed time.

    Rules are tried in order: unknown, overhead, compute, memory, else the largest floor.
    Nothing is explained above 1: bytes that arrive faster than DRAM allows came from a cache; a floor
    that even a cache cannot excuse is reported as an error of cost or peak, with low confidence. ``conditions`` are
    what the device's sensors said: a clock below the one at which the peaks hold lowers these, never the bandwidth.
    """
    work = RooflineInput(kernels, ops, costs, attribution, device, fold(kernels, attribution), conditions)
    bounds = floors(work)
    times = _times(work, bounds)
    decision = _decide(work, times)
    reason = _reason(work, bounds, times, decision)
    of_kernel = work.groups.of_kernel
    columns = _amounts(work, times)
    columns["bound"] = decision.bound[of_kernel]
    columns["regime"] = decision.regime[of_kernel]
    columns["explained"] = _explained(work, times, decision)[of_kernel]
    columns["confidence"] = _confidence(work, bounds, times, decision)[of_kernel]
    copies = copy_floors(work)
    others = (kernels["kind"] == "collective").to_numpy() | copies.is_copy | attribution["dispatches"].to_numpy()
    return _frame(
        _judge_others(work, columns, copies, others),
        choose((~others, reason.on(of_kernel)), (others, copies.reason)),
        attribution["family"],
    )


def _times(work: RooflineInput, bounds: Floors) -> _Times:
    """The measured times with the floors that fit them."""
    # A whole-microsecond trace shows short kernels as 0: they took up to half a microsecond each.
    time = np.maximum(work.groups.time_us, np.where(work.groups.time_us == 0, work.groups.resolution_us, 0.0))
    memory = settle_memory_us(bounds.warm_us, bounds.cold_us, time, work.device)
    compute = settle_compute_us(bounds.compute_us, bounds.compute_least_us, time)
    return _Times(time, compute, bounds.warm_us, memory, bounds.launch_us, _balance(work))


# Multiplications that an exponential or a root costs without a unit for it (a vectorised polynomial has 10 to 20).
_FLOPS_PER_SPECIAL = 20.0


def _balance(work: RooflineInput) -> Integers:
    """Gives each group's bound on every device that this may be.

    It is unknown where they differ or nothing is known.

    Arithmetic takes as long as FLOPs / ridge bytes: compute on the device with the highest ridge, or memory on that
    with the lowest, is so on all of them.
    """
    ranges = work.device.plausible_ridges
    if not ranges:
        return np.full(len(work.groups.main), _UNKNOWN, dtype=np.int64)
    dtypes = [*work.costs["math_dtype"].cat.categories, None]
    codes = op_dtype_codes(work)
    matrix, vector = (
        np.array([_range_of(ranges, keys.get(dtype or "fp32", ("fp32_vector",))) for dtype in dtypes])[codes]
        for keys in (MATRIX_PEAKS, VECTOR_PEAKS)
    )
    products, special = work.cost("matrix_flops"), work.cost("special_ops") * _FLOPS_PER_SPECIAL
    others = work.cost("vector_flops")
    with np.errstate(invalid="ignore"):
        least = np.fmax(products / matrix[:, 1], others / vector[:, 1])
        most = np.fmax(products / matrix[:, 0], (others + special) / vector[:, 0])
        is_compute = (least > 0) & (least >= work.cost("bytes_high"))
        is_memory = (work.cost("bytes_low") > 0) & (most <= work.cost("bytes_low"))
    return np.select([is_compute | _is_drawn(work) | _is_compared(work), is_memory], [_COMPUTE, _MEMORY], _UNKNOWN)


# Ops that put numbers in order, or look for those at some places of the order.
_COMPARES = re.compile(r"^aten::(?:sort|argsort|msort|topk|kthvalue|median|nanmedian|mode|_?unique\w*)$")


def _is_compared(work: RooflineInput) -> Flags:
    """Marks groups that compare numbers one after the other on a CPU.

    What they take beyond their bytes is comparisons whose outcome no processor foresees, and no peak tells their rate:
    320,000 random numbers in rows of 40,000 took 62 ns each, and 7.5 ns once in order, with the same bytes (torch 2.13
    on one thread of an EPYC, which copies a number in 1 ns).
    """
    is_named = (work.per_name(_COMPARES.search) > 0) & work.groups.modelled
    return np.asarray(is_named & (work.device.kind == "cpu"))


def _is_drawn(work: RooflineInput) -> Flags:
    """Marks groups that draw random numbers on a CPU.

    What they take beyond their bytes is the arithmetic of the generator, which no peak tells: it runs on one thread.
    """
    is_random = np.append((work.costs["family"] == "random").to_numpy(), False)
    return np.asarray(is_random[work.groups.signature] & (work.device.kind == "cpu"))


def _range_of(ranges: Mapping[str, tuple[float, float]], peaks: Sequence[str]) -> tuple[float, float]:
    """Gives the lowest and the highest ridge of these peaks.

    NaN where none is listed.
    """
    ridges = [ranges[peak] for peak in peaks if peak in ranges]
    return (min(low for low, _ in ridges), max(high for _, high in ridges)) if ridges else (np.nan, np.nan)


def _decide(work: RooflineInput, times: _Times) -> _BoundRows:
    """Bound and regime of every group for one set of times."""
    limits, groups, time = work.limits, work.groups, times.time
    compute, warm, memory, launch = (
        np.nan_to_num(floor) for floor in (times.compute, times.warm, times.memory, times.launch)
    )
    partial = np.isnan(times.compute) | np.isnan(times.memory)
    largest = np.maximum(compute, memory)
    small = (launch >= limits.launch_share * time) & (largest < limits.work_share * time) & ~partial
    alone = (launch >= limits.launch_alone * time) & partial
    short = time * groups.kernels < limits.short_floors * launch
    is_overhead = (launch > 0) & (small | alone | (short & (groups.blocks < (work.device.sm_count or 0))))
    is_compute = (compute > 0) & (compute >= warm) & (compute >= limits.compute_share * time)
    is_memory = (memory > compute) & (memory >= limits.memory_share * time)
    # A kernel of many launch floors is not long because it was launched, however little it computes and moves.
    brief = np.where((launch > time / limits.longest_floors) | (largest <= 0), launch, 0.0)
    side = np.array([_COMPUTE, _MEMORY, _OVERHEAD])[np.argmax(np.stack([compute, memory, brief]), axis=0)]
    is_compared = _is_compared(work) & ~is_overhead & ~is_compute & ~is_memory
    bound = np.select(
        [is_overhead, is_compute, is_memory, _is_drawn(work) | is_compared, partial],
        [_OVERHEAD, _COMPUTE, _MEMORY, _COMPUTE, times.balanced],
        side,
    )
    is_open = is_overhead | is_compared | (partial & ~is_compute & ~is_memory)
    explained = np.maximum(largest, launch) / np.maximum(time, 1e-9)
    return _BoundRows(bound, np.where(is_open, _NO_REGIME, _bands(explained)))


def _bands(explained: Floats) -> Integers:
    """Positions in REGIMES of shares of the time that the largest floor explains."""
    lowest_first = sorted(band.least for band in REGIMES.values())
    return len(REGIMES) - np.searchsorted(lowest_first, explained, side="right")


def _explained(work: RooflineInput, times: _Times, decision: _BoundRows) -> Floats:
    """Largest floor over time, at most 1; NaN where the bound is unknown."""
    largest = np.fmax(np.fmax(times.compute, times.memory), times.launch)
    is_known = (decision.bound != _UNKNOWN) & ~_by_balance(times, decision) & ~_by_comparisons(work, decision)
    return np.where(is_known, np.minimum(1.0, largest / np.maximum(times.time, 1e-9)), np.nan)


def _by_balance(times: _Times, decision: _BoundRows) -> Flags:
    """Marks groups whose bound follows from machine balance.

    One of their floors is not known.
    """
    partial = np.isnan(times.compute) | np.isnan(times.memory)
    decided = (times.balanced != _UNKNOWN) & (decision.bound == times.balanced) & (decision.regime == _NO_REGIME)
    return np.asarray(partial & decided)


def _by_comparisons(work: RooflineInput, decision: _BoundRows) -> Flags:
    """Marks groups that comparisons hold back, of which no floor tells the time."""
    is_open = (decision.bound == _COMPUTE) & (decision.regime == _NO_REGIME)
    return np.asarray(_is_compared(work) & is_open)


def _too_fast(work: RooflineInput, times: _Times) -> Flags:
    """Marks rows whose floor exceeds the time with a warm cache.

    This is an error of cost or peak.
    """
    return np.fmax(times.compute, fastest_us(times.warm, work.device)) > _slowest(work, times)


def _from_cache(work: RooflineInput, bounds: Floors, times: _Times) -> Flags:
    return (bounds.cold_us > _slowest(work, times)) & ~_too_fast(work, times)


def _slowest(work: RooflineInput, times: _Times) -> Floats:
    """Gives the longest time that the measurement allows.

    On a CPU, dispatch was taken off it by an estimate.
    """
    taken_off = np.nan_to_num(times.launch) if work.device.kind == "cpu" else 0.0
    return np.asarray((times.time + work.groups.resolution_us + taken_off) * work.limits.beyond)


def _corners(work: RooflineInput, bounds: Floors, times: _Times) -> Iterator[_Times]:
    """Yields the ends of every interval.

    The intervals are peak, bytes, and time where the trace counts whole microseconds.

    On a CPU, where a cache hit is worth a factor of ten or more, the lower end of the bytes comes from the cache.
    """
    spread = work.limits.peak_spread
    peaks = (times.compute / (1 + spread), bounds.compute_slow_us / (1 - spread))
    coldest = bounds.warm_us if work.device.bandwidth_by_bytes else bounds.cold_us
    traffic = ((bounds.warm_us, coldest), (bounds.eager_warm_us, bounds.eager_cold_us))
    off = work.groups.resolution_us
    lengths = (times.time,) if not off.any() else (np.maximum(times.time - off, off), times.time + off)
    for compute, (warm, cold), time in product(peaks, traffic, lengths):
        memory = settle_memory_us(warm, cold, time, work.device)
        yield _Times(time, compute, warm, memory, times.launch, times.balanced)


def _confidence(work: RooflineInput, bounds: Floors, times: _Times, decision: _BoundRows) -> Integers:
    """Gives codes into CONFIDENCES.

    Confidence is by how many corners give the same decision, less for guesses and gaps.
    """
    is_far = decision.regime == _FAR_BELOW
    corners, agreeing = 0, np.zeros(is_far.size, dtype=np.int64)
    for corner in _corners(work, bounds, times):
        other, corners = _decide(work, corner), corners + 1
        agreeing += (other.bound == decision.bound) & ((other.regime == _FAR_BELOW) == is_far)
    confidence = np.select([agreeing == corners, 2 * agreeing >= corners], [_HIGH, _MEDIUM], _LOW)
    partial = np.isnan(times.compute) | np.isnan(times.memory)
    is_overhead = decision.bound == _OVERHEAD
    completed = np.append(work.costs["evidence"].notna().to_numpy(), False)[work.groups.signature]
    shaky = (
        (bounds.guessed & (decision.bound == _COMPUTE))
        | (completed & ~is_overhead)
        | (_from_cache(work, bounds, times) & (decision.bound == _MEMORY))
        | (partial & is_overhead)
    )
    balanced = _by_balance(times, decision)
    hollow = (partial & ~is_overhead & ~balanced) | _too_fast(work, times)
    shaky |= balanced | _by_comparisons(work, decision)
    return np.where(hollow, _LOW, np.where(shaky, np.minimum(confidence, _MEDIUM), confidence))


def _reason(work: RooflineInput, bounds: Floors, times: _Times, decision: _BoundRows) -> ReasonRows:
    """Gives reasons of rows that need one.

    They are unknown, below their roof or too fast (beyond DRAM, or impossible).
    """
    wanted = (decision.regime > _NEAR) | _mostly_idle(work, times, decision)
    overhead = decision.bound == _OVERHEAD
    rules = of_host(work, bounds) if work.device.kind == "cpu" else of_device(work, bounds, overhead)
    short = first_that_holds(rules, wanted)
    # Half of a roof is usual enough to need no reason, where none can be proven.
    is_usual = (short.code == 0) & (decision.regime == _BELOW)
    balanced, is_unknown = _by_balance(times, decision), decision.bound == _UNKNOWN
    bare = not work.device.peaks_flops_per_s and work.device.bandwidth_bytes_per_s is None
    return choose(
        (_too_fast(work, times), "too_fast"),
        (is_unknown & ~work.groups.modelled, why_unmodelled(work)),
        (is_unknown & bare, "no_peaks"),
        (is_unknown & np.isnan(times.compute), "no_peak"),
        (is_unknown, "no_bandwidth"),
        (wanted & ~is_usual, short),
        (_by_comparisons(work, decision), "comparisons"),
        (balanced & _is_drawn(work), "one_thread"),
        (balanced & (decision.bound == _COMPUTE), "compute_by_balance"),
        (balanced, "memory_by_balance"),
        ((decision.bound == _MEMORY) & _from_cache(work, bounds, times), "from_cache"),
    )


def _mostly_idle(work: RooflineInput, times: _Times, decision: _BoundRows) -> Flags:
    """Marks small grids bound by overhead that mostly idle.

    Launching explains less than half of their time.
    """
    small = work.groups.blocks < (work.device.sm_count or 0)
    return np.asarray((decision.bound == _OVERHEAD) & small & (times.launch < work.limits.launch_share * times.time))


def _amounts(work: RooflineInput, times: _Times) -> dict[str, Floats | Integers]:
    """The part of its group's cost and floors that each kernel carries."""
    of_kernel = work.groups.of_kernel
    share = work.attribution["share"].to_numpy()
    flops = work.cost("matrix_flops") + work.cost("vector_flops")
    return {
        "flops": share * flops[of_kernel],
        "bytes_low": share * work.cost("bytes_low")[of_kernel],
        "bytes_high": share * work.cost("bytes_high")[of_kernel],
        "compute_us": share * times.compute[of_kernel],
        "memory_us": share * times.memory[of_kernel],
        "launch_us": (times.launch / work.groups.kernels)[of_kernel],
    }


def _judge_others(
    work: RooflineInput, columns: dict[str, Floats | Integers], copies: Copies, others: Flags
) -> dict[str, Floats | Integers]:
    """Gives the columns with ``others`` judged.

    They are the rows that no roofline applies to: collectives, copies, ops that only call.
    """
    duration = work.kernels["dur_us"].to_numpy()
    collective = (work.kernels["kind"] == "collective").to_numpy()
    largest = np.fmax(copies.memory_us, columns["launch_us"])
    has_floor = ~np.isnan(copies.memory_us)
    replaced = {
        "bound": np.select(
            [collective, copies.crosses_link, copies.is_copy], [_COMMUNICATION, _TRANSFER, _COPY], _DISPATCH
        ),
        "regime": np.full(len(duration), _NO_REGIME),
        "explained": np.where(has_floor, np.minimum(1.0, largest / np.maximum(duration, 1e-9)), np.nan),
        "confidence": np.where(copies.is_copy & ~has_floor, _MEDIUM, _HIGH),
        "memory_us": copies.memory_us,
    }
    return columns | {name: np.where(others, values, columns[name]) for name, values in replaced.items()}


def _frame(columns: dict[str, Floats | Integers], reason: ReasonRows, family: "pd.Series[str]") -> pd.DataFrame:
    """Builds ROOFLINE from numbers and codes.

    Reasons that nobody gives are left out of the categories.
    """
    used, codes = np.unique(reason.code, return_inverse=True)
    given = [reason.labels[code] if code >= 0 else None for code in used.tolist()]
    distinct = [label for label in dict.fromkeys(given) if label is not None]
    position = np.array([-1 if label is None else distinct.index(label) for label in given], dtype=np.int64)
    texts = {
        "bound": category(columns["bound"].astype(np.int64), BOUNDS),
        "regime": category(columns["regime"].astype(np.int64), list(REGIMES)),
        "confidence": category(columns["confidence"].astype(np.int64), CONFIDENCES),
        "reason": category(position[codes.ravel()], distinct),
        "family": family.array,
    }
    return ROOFLINE.check(pd.DataFrame({name: (columns | texts)[name] for name in ROOFLINE.columns}))
