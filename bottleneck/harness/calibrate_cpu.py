"""Measures the ceilings of this CPU: what a CPU recording is judged against."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from bottleneck.devices.peaks import ridges
from bottleneck.harness.calibrate import Calibration, Ceiling, Tell, ceiling_of, doubts
from bottleneck.harness.calibrate_clock import ClockStamp, Company, cpu_clock_mhz, stamp
from bottleneck.harness.cpu import CpuFacts, allowance, cpu_facts, torch_version
from bottleneck.harness.native import build_native
from bottleneck.harness.probes import Effort, Outcome, Watch, descending, settle
from bottleneck.harness.probes_cpu import (
    DISPATCH,
    DTYPES,
    LAUNCH,
    NEW_PAGES,
    Bench,
    Sizes,
    cpu_probes,
    product_name,
    stream_name,
    vector_name,
)
from bottleneck.records import Device

_QUIET_LOAD = 0.5  # processors kept busy by others while we measure
_LARGEST_STREAM_BYTES = 384 * 2**20
_MEMORY_SHARE = 16  # of physical memory at most one part in so many


def measure_cpu(threads: int | None, effort: Effort, tell: Tell, sizes: Sizes | None = None) -> Calibration:
    """A calibration made now; torch's own number of threads is put back afterwards."""
    import torch

    facts, usual = cpu_facts(), torch.get_num_threads()
    chosen = threads or usual
    torch.set_num_threads(chosen)
    company, before = Company(), cpu_clock_mhz()
    watch = Watch(cpu_clock_mhz)
    try:
        outcome = _measure(torch, working_sets(facts, chosen), facts.l1_bytes, (effort, sizes or Sizes()), watch, tell)
    finally:
        torch.set_num_threads(usual)
    busy, clock = company.busy_processors(), stamp(before, watch.seen_mhz(), cpu_clock_mhz(), None)
    ceilings = as_ceilings(outcome, level_sizes(facts, chosen))
    return Calibration(
        device=as_device(facts, ceilings, clock),
        identity=facts.identity,
        torch=torch_version(),
        threads=chosen,
        is_default=chosen == usual,
        allowance=allowance(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        dispatch_us=next((each.value for each in ceilings if each.name == DISPATCH), None),
        caveats=doubts(ceilings, "this CPU", others(busy), _options(chosen, usual)),
        ceilings=ceilings,
        clock=clock,
        missing=dict(outcome.missing),
    )


def _options(threads: int, usual: int) -> str:
    return "--device cpu" if threads == usual else f"--device cpu --threads {threads}"


def others(busy: float) -> str:
    """What is to be said of processors that others kept busy."""
    return f"other programs kept {busy:.1f} processors busy" if busy > _QUIET_LOAD else ""


def _measure(
    torch: Any, sets: Mapping[str, int], l1_bytes: int, effort: tuple[Effort, Sizes], watch: Watch, tell: Tell
) -> Outcome:
    native = build_native(torch.get_num_threads())
    try:
        with torch.inference_mode():
            bench = Bench(torch, native, effort[1])
            return settle(cpu_probes(bench, sets, l1_bytes, effort[0]), effort[0], watch, tell)
    finally:
        if native is not None:
            native.close()


def working_sets(facts: CpuFacts, threads: int) -> dict[str, int]:
    """Bytes to stream over, by the memory that should hold them: half of the caches, twice the last, and far beyond.

    Each thread has its own second-level cache.
    """
    last = facts.last_level_bytes
    room = (facts.memory_bytes or 2**33) // _MEMORY_SHARE
    return {
        "L2": min(facts.l2_bytes * threads, last) // 2,
        "LLC": last // 2,
        "2 x LLC": min(2 * last, room),
        "DRAM": min(max(8 * last, 2**27), _LARGEST_STREAM_BYTES, room),
    }


def level_sizes(facts: CpuFacts, threads: int) -> dict[str, int]:
    """The working sets with that of the first caches, which no op reaches: calling it takes longer."""
    return {"L1": threads * facts.l1_bytes // 2, **working_sets(facts, threads)}


def as_ceilings(outcome: Outcome, sizes: Mapping[str, int]) -> tuple[Ceiling, ...]:
    """What was measured as ceilings, in the order in which people read them."""
    streams = {stream_name(level): float(size) for level, size in sizes.items()}
    found = [
        *(ceiling_of(outcome, product_name(dtype), "matrix", "FLOP/s") for dtype in DTYPES),
        *(ceiling_of(outcome, vector_name(dtype), "vector", "FLOP/s") for dtype in DTYPES),
        *(ceiling_of(outcome, name, "memory", "B/s") for name in (*streams, NEW_PAGES)),
        *(ceiling_of(outcome, name, "time", "us") for name in (DISPATCH, LAUNCH)),
    ]
    return tuple(replace(each, working_set_bytes=streams.get(each.name)) for each in found if each is not None)


def as_device(facts: CpuFacts, ceilings: tuple[Ceiling, ...], clock: ClockStamp) -> Device:
    """The ceilings as a device.

    Pointwise work is held against multiplications outside of products: these fuse a multiplication with an addition,
    which neither torch's ops nor its compiler do, and so reach up to twice as much. Where there is no compiler the rate
    of products stands for both, an upper bound. The launch floor is a tiny op's time as the profiler shows it, which is
    what an op's self time in a trace is compared with. Clocks are told only where the sensor moves.
    """
    by_name = {ceiling.name: ceiling for ceiling in ceilings}
    told = {f"{dtype}_tensor": by_name[product_name(dtype)] for dtype in DTYPES if product_name(dtype) in by_name} | {
        f"{dtype}_vector": by_name.get(vector_name(dtype), by_name[product_name(dtype)])
        for dtype in ("fp32", "fp64")
        if product_name(dtype) in by_name
    }
    peaks = {peak: ceiling.value for peak, ceiling in told.items()}
    streams = descending([(each.working_set_bytes, each.value) for each in ceilings if each.working_set_bytes])
    bandwidth = streams[-1][1] if streams else None
    return Device(
        name=facts.model,
        vendor=facts.vendor,
        kind="cpu",
        count=1,
        peaks_flops_per_s=peaks,
        bandwidth_bytes_per_s=bandwidth,
        launch_floor_us=by_name[LAUNCH].value if LAUNCH in by_name else None,
        source="measured",
        ridge_flops_per_byte=ridges(peaks, bandwidth),
        memory_bytes=facts.memory_bytes,
        cache_bytes=float(facts.last_level_bytes),
        bandwidth_by_bytes=streams,
        fresh_bytes_per_s=by_name[NEW_PAGES].value if NEW_PAGES in by_name else None,
        peak_clocks_mhz={peak: each.clock_mhz for peak, each in told.items() if clock.is_sensed and each.clock_mhz},
    )
