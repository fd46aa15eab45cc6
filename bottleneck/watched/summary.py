"""Sums a watched run up: each rank's usual step, its phases, causes and stretches."""

import shlex
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np

from bottleneck.errors import TraceError
from bottleneck.harness.folder import is_claimed
from bottleneck.schema.telemetry import Sample, read_samples
from bottleneck.schema.watch_log import HEADER_FILES, PHASES, STEP_FILES, RecordedWindow, WatchHeader
from bottleneck.schema.watched import LateRank, WatchedCause, WatchedRun, WatchedRunRank, WindowOfRun
from bottleneck.units import counted, format_share, format_us, listed
from bottleneck.watched.causes import (
    LEVEL,
    LOST_PROCESSOR,
    NO_PROCESSOR,
    OWN_THREADS,
    PHASE,
    UNKNOWN,
    SlowCause,
    advice_to_record,
    during,
    find_causes,
    find_drifts,
)
from bottleneck.watched.late_rank import find_late
from bottleneck.watched.machine import describe_busy_machine, find_clock_falls, others_meanwhile
from bottleneck.watched.pace import SlowStretches, find_slow_stretches
from bottleneck.watched.read_log import WatchedRank, read_header, read_watched

_MOST_BLOCKS = 200
_LONGEST_SILENCE_S = 60.0
_LARGE = 100.0
# So many stretches of slow steps are told.
_MOST_STRETCHES = 4
# Processors that other programs keep busy, below which they take none from this one.
_HARDLY_BUSY = 0.25


def summarise(folder: Path, *, is_over: bool = False) -> WatchedRun:
    """Reads the log in a folder and sums it up.

    ``is_over`` is true where the program is known to have ended. TraceError as ``read_watched``.
    """
    ranks = read_watched(folder)
    first = ranks[0].header
    date = datetime.fromtimestamp(first.clock_ns / 1e9, UTC).date().isoformat() if first.clock_ns > 0 else ""
    warnings, is_on = [], not is_over and is_running(folder)
    for rank in ranks:
        header, who = rank.header, f"rank {rank.header.rank}: " if len(ranks) > 1 else ""
        if header.windows_problem:
            warnings.append(f"{who}no more windows were recorded: {header.windows_problem}")
        if header.problem:
            warnings.append(f"{who}the watching ended early: {header.problem}")
        if not header.is_complete:
            end = int(rank.records["first"][-1] + rank.records["count"][-1] - 1)
            warnings.append(f"{who}the program {'still runs; this is' if is_on else 'was cut off after'} step {end:,}")
        elif header.status:
            warnings.append(f"{who}the program ended with status {header.status}")
    if first.device == "cuda":
        warnings.append(
            "phases go by the host's clock: work that the GPU has still to do shows where the host waits for it"
        )
    samples = _samples(folder)
    busy = describe_busy_machine(ranks[0], samples)
    if busy is not None:
        warnings.append(busy)
    return WatchedRun(
        folder.name,
        date,
        tuple(_rank(rank, samples, folder) for rank in ranks),
        first.step_name,
        _late(ranks),
        tuple(_window(window, folder, rank.header) for rank in ranks for window in rank.header.windows),
        tuple(warnings),
    )


def _late(ranks: Sequence[WatchedRank]) -> LateRank | None:
    """The rank that the others wait for.

    It has the cause of its slow steps meanwhile.
    """
    late = find_late(ranks)
    if late is None:
        return None
    rank = next(rank for rank in ranks if rank.header.rank == late.rank)
    causes = [cause for cause in find_causes(rank) if any(late.first <= step <= late.last for step in cause.steps)]
    return msgspec.structs.replace(late, cause=causes[0].what if causes else None)


def _window(window: RecordedWindow, folder: Path, header: WatchHeader) -> WindowOfRun:
    if window.trigger == "asked" or window.times is None:
        why = "asked for"
    elif window.trigger == "slow":
        why = f"step {window.after:,} took {_times(window.times)} times as long as usual"
    else:
        why = f"steps had come to take {_times(window.times)} times as long"
    where = f" on rank {header.rank}" if header.ranks > 1 else ""
    return WindowOfRun(window.after, window.steps, f"{why}{where}", str(folder / window.folder))


def is_running(folder: Path) -> bool:
    """Tells whether a program that is watched still writes its log here."""
    headers = [header for path in folder.glob(HEADER_FILES) if (header := _header_of(path)) is not None]
    if not headers or all(header.is_complete for header in headers):
        return False
    if headers[0].ranks == 1:
        return is_claimed(folder)
    # The ranks of a job have no lock that is held all along, and may run elsewhere.
    written_s = max((path.stat().st_mtime for path in folder.glob(STEP_FILES)), default=0.0)
    return time.time() - written_s < _LONGEST_SILENCE_S


def _header_of(path: Path) -> WatchHeader | None:
    try:
        return read_header(path)
    except TraceError:
        return None


def _samples(folder: Path) -> Sequence[Sample]:
    try:
        return read_samples(folder)
    except TraceError:  # the steps are worth a report without them
        return ()


def _rank(rank: WatchedRank, samples: Sequence[Sample], folder: Path) -> WatchedRunRank:
    number = rank.header.rank
    drifts = [
        WatchedCause(drift.kind, drift.what, drift.advice, number, beyond_us=drift.beyond_us)
        for drift in (*find_drifts(rank), *find_clock_falls(rank, samples))
    ]
    slow = find_slow_stretches(rank)
    # Steps that stay longer from one on are told as that, but for those that lack a processor.
    if slow is not None and (slow.is_starved or not any(drift.kind == LEVEL for drift in drifts)):
        drifts = [_stretches(slow, rank, samples), *(drift for drift in drifts if drift.kind != LEVEL)]
    phases = rank.phases_us()
    return WatchedRunRank(
        rank=number,
        steps=rank.steps,
        total_us=rank.total_us,
        usual_us=rank.usual_us,
        phases_us=tuple(phases[phase] for phase in PHASES),
        causes=(*(_cause(cause, rank, samples, folder) for cause in find_causes(rank)), *drifts),
        blocks=_blocks(rank),
        device_phases=rank.header.device_phases,
        compile_health=rank.header.compile_health,
    )


def _cause(cause: SlowCause, rank: WatchedRank, samples: Sequence[Sample], folder: Path) -> WatchedCause:
    longest, number, others = cause.longest, rank.header.rank, ""
    if cause.kind == NO_PROCESSOR:
        (what, advice), others = _who_had_processor(rank, samples, cause.start_s, cause.end_s)
        cause = msgspec.structs.replace(cause, what=what, advice=advice)
    times = f"{_times(longest.us / longest.usual_us)} times as long" if longest.usual_us > 0 else "far longer"
    if len(cause.steps) == 1:
        headline = f"{cause.what}: step {longest.step:,} took {format_us(longest.us - longest.usual_us)} more, {times}"
    else:
        count, sum_ = len(cause.steps), format_us(cause.beyond_us)
        ends = f"{min(cause.steps):,} to {max(cause.steps):,}"
        which = f"{count:,} of the steps {ends}" if count > 2 else counted(count, "step")
        longest_one = f"the longest (step {longest.step:,}) {times}"
        headline = f"{cause.what}: {which} took {sum_} more than usual, {longest_one}"
    window = next((one for one in rank.header.windows if one.after >= cause.steps[0]), None)
    if cause.kind.partition(":")[0] in {PHASE, UNKNOWN}:
        where = "" if window is None else shlex.quote(str(folder / window.folder))
        seen = f"see what steps behind it did: bottleneck report {where}"
        cause = msgspec.structs.replace(cause, advice=seen if where else advice_to_record(rank.header.command))
    return WatchedCause(cause.kind, headline + others, cause.advice, number, cause.steps, cause.beyond_us)


def _who_had_processor(
    rank: WatchedRank, samples: Sequence[Sample], start_s: float, end_s: float
) -> tuple[tuple[str, str], str]:
    """Says who had the processor, what to do, and what other programs did."""
    others = others_meanwhile(rank, samples, start_s, end_s)
    if others is None:
        return LOST_PROCESSOR, ""
    if others < _HARDLY_BUSY:
        return OWN_THREADS, ""
    return LOST_PROCESSOR, f" (others kept {counted(f'{others:.1f}', 'processor')} busy meanwhile)"


def _stretches(slow: SlowStretches, rank: WatchedRank, samples: Sequence[Sample]) -> WatchedCause:
    """Words stretches of steps that are far slower than the others."""
    ends = [f"{first:,} to {last:,}" for first, last in slow.stretches[:_MOST_STRETCHES]]
    if len(slow.stretches) > _MOST_STRETCHES:
        ends.append(f"{counted(len(slow.stretches) - _MOST_STRETCHES, 'more stretch', 'more stretches')}")
    where = f"{slow.steps:,} of the steps {ends[0]}" if slow.is_scattered else f"steps {listed(ends)}"
    pace = f"{format_us(slow.step_us)} in the median, the other {slow.other_steps:,} take {format_us(slow.other_us)}"
    number, beyond_us = rank.header.rank, slow.beyond_us
    if slow.is_starved:
        (what, advice), others = _who_had_processor(rank, samples, slow.start_s, slow.end_s)
        computed = f"their thread had a processor for {format_share(slow.computed_share)} of that time"
        headline = f"{what}: {where} take {pace}; {computed}{others}"
        return WatchedCause(NO_PROCESSOR, headline, advice, number, beyond_us=beyond_us)
    headline = f"{where} take {pace}; most of the difference is {during(slow.phase, is_parted=rank.is_parted)}"
    advice = "look for what is different in them; two windows (--every) show it, by bottleneck compare"
    # Where few steps are quick, these may be the ones that do less.
    return WatchedCause("pace", headline, advice, number, beyond_us=None if slow.is_most else beyond_us)


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= _LARGE else f"{ratio:.3g}"


def _blocks(rank: WatchedRank) -> tuple[tuple[float, float, float, float], ...]:
    parts = np.array_split(np.arange(rank.records.size), min(_MOST_BLOCKS, rank.records.size))
    step_us, records = rank.step_us, rank.records
    return tuple(
        (
            float(records["first"][part[len(part) // 2]]),
            float(np.median(step_us[part])),
            float(step_us[part].min()),
            float(records["longest_us"][part].max()),
        )
        for part in parts
    )
