"""Measures the ceilings of a GPU: what recordings made on it are judged against instead of its data sheet."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from bottleneck.devices.match import match_device
from bottleneck.devices.peaks import ridges
from bottleneck.harness.calibrate import (
    Calibration,
    Ceiling,
    Tell,
    ceiling_of,
    doubts,
    keep,
    kept_calibrations,
    silent,
)
from bottleneck.harness.calibrate_clock import Sensors, stamp
from bottleneck.harness.cpu import torch_version
from bottleneck.harness.facts import describe_torch
from bottleneck.harness.probes import Effort, Outcome, Watch, settle
from bottleneck.harness.probes_cuda import (
    BACK_TO_BACK,
    ENQUEUE,
    LAUNCH,
    LINKS,
    PRODUCTS,
    VECTORS,
    CudaBench,
    Sizes,
    cuda_probes,
    product_name,
    stream_name,
    stream_sizes,
    vector_name,
)
from bottleneck.records import Caveat, Device
from bottleneck.tracing import DeviceProperties
from bottleneck.units import format_share

# Under a minute in all: rounds end after 35 s, and one of them takes some 8 s.
GPU_EFFORT = Effort(most_seconds=35.0)

_L2_BYTES = 32.0 * 2**20  # where torch does not tell
_LEAST_SHARE = 0.5  # of a data sheet; the best products of the slowest boards under their power limit reach 54 %
_BUSY = 0.05  # share of the second before in which kernels ran, of whoever
_ABOVE = 1.005  # of a data sheet: more is none of its rounding

# Peaks of the table by what is measured. An NVIDIA board multiplies fp32 on its vector units, an AMD one on others.
_PRODUCT_PEAKS: Mapping[str, tuple[str, ...]] = {
    "fp64": ("fp64_tensor", "fp64_vector"),
    "fp32": ("fp32_matrix", "fp32_vector"),
    **{dtype: (f"{dtype}_tensor",) for dtype in ("tf32", "bf16", "fp16", "fp8", "int8")},
}

Facts = Mapping[str, str | int | float | None]


def calibrate_gpu(
    index: int = 0, tell: Tell = silent, effort: Effort = GPU_EFFORT, *, fresh: bool = False
) -> Calibration:
    """The ceilings of a GPU as torch numbers them, measured now and kept for later; under a minute.

    As with a CPU, a result that was disturbed is only improved on, unless it is ``fresh``.
    """
    import torch

    torch.cuda.init()  # type: ignore[no-untyped-call]
    with torch.cuda.device(index):
        now = measure_gpu(torch, index, effort, tell)
    before = None if fresh else read_gpu_calibration(now.identity, now.driver)
    return keep(before, now)


def measure_gpu(torch: Any, index: int, effort: Effort, tell: Tell, sizes: Sizes | None = None) -> Calibration:
    """A calibration made now, of the device that torch has at hand."""
    facts = describe_torch(torch)["device_facts"][index]
    sheet, doubtful = data_sheet(torch, facts)
    sensors = Sensors(facts)
    watch, before, used = Watch(sensors.clock_mhz), sensors.clock_mhz(), sensors.used_share() or 0.0
    bench = CudaBench(torch, f"cuda:{index}", float(torch.cuda.mem_get_info(index)[0]), _cache_bytes(facts))
    bench = bench if sizes is None else replace(bench, sizes=sizes)
    try:
        with torch.inference_mode():
            outcome = settle(list(cuda_probes(bench)), effort, watch, tell)
        clock = stamp(before, watch.seen_mhz(), sensors.clock_mhz(), sensors.memory_mhz())
    finally:
        sensors.close()
    ceilings = as_ceilings(outcome, bench, sheet)
    return Calibration(
        device=as_device(sheet, facts, ceilings),
        identity=identity(facts),
        torch=torch_version(),
        threads=0,
        is_default=True,
        allowance="",
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        dispatch_us=next((each.value for each in ceilings if each.name == ENQUEUE), None),
        caveats=(
            *doubts(ceilings, "this device", _company(used), f"--device cuda:{index}"),
            *off_sheet(ceilings),
            *doubtful,
        ),
        ceilings=ceilings,
        clock=clock,
        driver=sensors.driver,
        missing=dict(outcome.missing),
    )


def _company(used: float) -> str:
    """What is to be said of a device that had work before ours."""
    return f"it was busy with other work ({format_share(used)} of the time) as we began" if used > _BUSY else ""


def identity(facts: Facts) -> str:
    """What a device is, without what it alone is: name, multiprocessors, memory, highest clock; no serial number."""
    keys = ("name", "multi_processor_count", "total_memory", "major", "minor", "clock_rate", "gcnArchName")
    return ", ".join(f"{key}={facts[key]}" for key in keys if facts.get(key) is not None)


def read_gpu_calibration(wanted: str, driver: str) -> Calibration | None:
    """The kept calibration of such a device, with this driver and version of torch; null if there is none."""
    found = (known for kind in ("cuda", "rocm") for known in kept_calibrations(kind))
    return next((known for known in found if (known.identity, known.driver) == (wanted, driver)), None)


def data_sheet(torch: Any, facts: Facts) -> tuple[Device, tuple[Caveat, ...]]:
    """What the table knows of the device, by the same rules as for a trace."""
    flavour = "rocm" if getattr(torch.version, "hip", None) else "cuda"
    properties = DeviceProperties(
        index=int(facts["index"] or 0),
        name=str(facts["name"] or ""),
        memory_bytes=int(facts["total_memory"] or 0) or None,
        sm_count=int(facts["multi_processor_count"] or 0) or None,
        compute_capability=f"{facts.get('major')}.{facts.get('minor')}",
        warp_size=None,
    )
    return match_device([properties], [properties.index], flavour)


def _cache_bytes(facts: Facts) -> float:
    return float(facts.get("L2_cache_size") or _L2_BYTES)


def as_ceilings(outcome: Outcome, bench: CudaBench, sheet: Device) -> tuple[Ceiling, ...]:
    """What was measured as ceilings beside the data sheet, in the order in which people read them."""
    streams = {stream_name(level): size for level, size in stream_sizes(bench).items()}
    nominal: dict[str, float | None] = {stream_name("DRAM"): sheet.bandwidth_bytes_per_s}
    nominal |= {product_name(dtype): _nominal(sheet, _PRODUCT_PEAKS[dtype]) for dtype in PRODUCTS}
    nominal |= {vector_name(dtype): _nominal(sheet, (f"{dtype}_vector",)) for dtype in VECTORS}
    found = [
        *(ceiling_of(outcome, product_name(dtype), "matrix", "FLOP/s") for dtype in PRODUCTS),
        *(ceiling_of(outcome, vector_name(dtype), "vector", "FLOP/s") for dtype in VECTORS),
        *(ceiling_of(outcome, name, "memory", "B/s") for name in streams),
        *(ceiling_of(outcome, name, "link", "B/s") for name in LINKS),
        *(ceiling_of(outcome, name, "time", "us") for name in (LAUNCH, BACK_TO_BACK, ENQUEUE)),
    ]
    return tuple(
        replace(each, working_set_bytes=streams.get(each.name), nominal=nominal.get(each.name))
        for each in found
        if each is not None
    )


def _nominal(sheet: Device, peaks: tuple[str, ...]) -> float | None:
    return next((sheet.peaks_flops_per_s[peak] for peak in peaks if peak in sheet.peaks_flops_per_s), None)


def as_device(sheet: Device, facts: Facts, ceilings: tuple[Ceiling, ...]) -> Device:
    """The data sheet with what was measured in place of it.

    Vector units are held against chains of multiply-adds, or products where these were faster. Without the chains the
    data sheet stands: products reach less. Dtypes that the data sheet does not have run on other units than their own,
    as bf16 does on a V100, and give no peak.
    """
    by_name = {ceiling.name: ceiling for ceiling in ceilings}
    told = _peaks(sheet, by_name)
    peaks = {**sheet.peaks_flops_per_s, **{peak: each.value for peak, each in told.items()}}
    clocks = {**sheet.peak_clocks_mhz, **{peak: each.clock_mhz for peak, each in told.items() if each.clock_mhz}}
    dram, floor = by_name.get(stream_name("DRAM")), by_name.get(LAUNCH)
    bandwidth = sheet.bandwidth_bytes_per_s if dram is None else dram.value
    link = max((by_name[name].value for name in LINKS if name in by_name and "pinned" in name), default=None)
    cache = facts.get("L2_cache_size")
    return replace(
        sheet,
        peaks_flops_per_s=peaks,
        bandwidth_bytes_per_s=bandwidth,
        launch_floor_us=None if floor is None else floor.value,
        source="measured",
        ridge_flops_per_byte=ridges(peaks, bandwidth),
        cache_bytes=max(float(cache or 0.0), sheet.cache_bytes or 0.0) or None,
        link_bytes_per_s=link or sheet.link_bytes_per_s,
        peak_clocks_mhz={peak: clock for peak, clock in clocks.items() if peak in peaks},
    )


def _peaks(sheet: Device, by_name: Mapping[str, Ceiling]) -> dict[str, Ceiling]:
    """The ceiling that each peak of the device is, where it was measured."""
    known = sheet.peaks_flops_per_s
    told: dict[str, Ceiling] = {}
    for dtype in VECTORS:
        if vector_name(dtype) in by_name:
            told[f"{dtype}_vector"] = by_name[vector_name(dtype)]
    for dtype, names in _PRODUCT_PEAKS.items():
        ceiling = by_name.get(product_name(dtype))
        peak = next((name for name in names if name in known), None if known else names[-1])
        if ceiling is None or peak is None:
            continue
        # Of vector units the data sheet is a better ceiling than products, which reach less, but not if it is beaten.
        stands = known.get(peak, 0.0) if peak.endswith("_vector") else 0.0
        if ceiling.value > (told[peak].value if peak in told else stands):
            told[peak] = ceiling
    return told


def off_sheet(ceilings: tuple[Ceiling, ...]) -> tuple[Caveat, ...]:
    """Ceilings that cannot be, or that something holds back: above the data sheet, or below half of it."""
    odd = [each for each in ceilings if each.share is not None and not _LEAST_SHARE <= each.share <= _ABOVE]
    if not odd:
        return ()
    named = ", ".join(f"{each.name} {format_share(each.share or 0.0)}" for each in odd)
    message = (
        f"measured against the data sheet: {named}; above it the sheet is not this device's, below half of it another "
        "program, a power limit or heat holds the device back"
    )
    return (Caveat("off-data-sheet", message),)
