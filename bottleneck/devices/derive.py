"""Ceilings by formula: multiprocessors x clock x FLOPs per clock, for parts that no row of the table names."""

from collections.abc import Iterable, Mapping

from bottleneck.devices.catalogue import Entry, entries, rates
from bottleneck.tracing import DeviceProperties

# AMD reports a gfx version as compute capability; 9.0 is several parts, told apart by their compute units.
_AMD_ARCHITECTURES = {
    "9.0": ("gfx908", "gfx90a"),
    "9.4": ("gfx942",),
    "9.5": ("gfx950",),
    "11.0": ("gfx1100",),
    "12.0": ("gfx1201",),
}
_CDNA_WARP = 64
_MHZ = 1e6


def formula_peaks(architecture: str, sm_count: float, clock_mhz: float, tensor_mhz: float) -> dict[str, float]:
    """FLOP/s per peak of an architecture; empty when its rates are unknown. Sparsity is never counted."""
    return {
        peak: rate * sm_count * _MHZ * clock_of(peak, clock_mhz, tensor_mhz)
        for peak, rate in rates().get(architecture, {}).items()
        if peak != "special" and not peak.endswith("_accumulate")
    }


def clock_of(peak: str, clock_mhz: float, tensor_mhz: float) -> float:
    """The clock at which a data sheet quotes a peak: tensor cores have one of their own, except for fp64."""
    return clock_mhz if peak.startswith("fp64") or peak.endswith("_vector") else tensor_mhz


def special_ops_per_s(architecture: str, sm_count: float, clock_mhz: float) -> float | None:
    """Exponentials, roots … per second of the special-function units; null where the rate is unknown."""
    rate = rates().get(architecture, {}).get("special")
    return None if rate is None else rate * sm_count * clock_mhz * _MHZ


def default_clocks_mhz(architecture: str) -> tuple[float, float] | None:
    """The fastest boost and tensor clocks that the table lists for an architecture; null when it lists none.

    Traces do not record clocks. The fastest gives ceilings that may be too high, so that floors stay lower bounds.
    """
    rows = [entry for entry in entries() if entry.architecture == architecture]
    if not rows:
        return None
    return max(row.boost_mhz for row in rows), max(row.tensor_mhz for row in rows)


def architectures(properties: DeviceProperties, flavour: str) -> tuple[str, ...]:
    """The rows of rates.csv that a device may belong to, by vendor, compute capability and name.

    NVIDIA and AMD number different parts alike (9.0 is an H100 and an MI210): a warp of 64 means AMD. GeForce boards
    run tensor cores with fp32 accumulation at half rate; without a name both variants are possible.
    """
    capability = properties.compute_capability or ""
    if flavour == "rocm" or properties.warp_size == _CDNA_WARP:
        return _AMD_ARCHITECTURES.get(capability, ())
    halved = f"{capability}-geforce"
    wanted = (capability, halved) if not properties.name else ((halved,) if "GeForce" in properties.name else ())
    known = tuple(name for name in wanted or (capability,) if name in rates())
    return known or ((capability,) if capability in rates() else ())


def upper_peaks(several: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The highest ceiling per peak over several devices: an upper bound whichever of them it is."""
    highest: dict[str, float] = {}
    for peaks in several:
        for peak, value in peaks.items():
            highest[peak] = max(value, highest.get(peak, 0.0))
    return highest


def alike(properties: DeviceProperties, flavour: str) -> list[Entry]:
    """Rows of the same architecture, multiprocessor count and memory (within 15 %): the fingerprint without a name."""
    kinds = architectures(properties, flavour)
    return [
        entry
        for entry in entries()
        if entry.architecture in kinds
        and properties.sm_count in entry.sm_counts
        and memory_agrees(entry, properties.memory_bytes)
    ]


def memory_agrees(entry: Entry, memory_bytes: int | None) -> bool:
    """Whether a reported memory size is one of the row's, within 15 % (part of it is reserved); True when not told."""
    return memory_bytes is None or any(abs(memory_bytes / size - 1) <= 0.15 for size in entry.memory_bytes)
