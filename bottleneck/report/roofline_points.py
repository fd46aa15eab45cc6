"""Describes a roofline, which the page and the pictures draw.

It gives its points, lines and words, and what it cannot show.
"""

import math
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from bottleneck.schema.analysis import Analysis, KernelSummary, Totals
from bottleneck.schema.device import Device, peak_name
from bottleneck.units import US_PER_S, format_share, format_si

# Values outside are drawn at the edge: nothing real lies there, and a logarithmic axis must stay readable.
_INTENSITIES = (1e-4, 1e6)
_RATES = (1e3, 1e19)
# How far flops / floor may lie above a peak, as a factor, to count as compared with it: some floors mix two engines.
_SAME_PEAK = 1.5
_MOST_POINTS, _MOST_ROOFS = 300, 4
_FASTER_CACHE = 1.2  # a cache by this factor faster than memory has a slope of its own
_MOVING = frozenset({"transfer", "copy", "communication", "dispatch"})  # bounds of work without arithmetic
_ENGINES = {"matrix": ("tensor", "matrix", "vector"), "vector": ("vector",)}


class RooflinePoint(Struct, frozen=True):
    """A kernel on the plane: FLOP/byte, FLOP/s, bound and regime.

    The FLOP/byte has the interval that its traffic allows. ``kernel`` is its position in ``Analysis.kernels``.
    ``intensity`` is the middle of the interval, or what bandwidth allows at this speed where that is more: data from a
    cache never came from memory. ``own_roof_flops_per_s`` is the kernel's own compute roof where it runs above the one
    that is drawn for it, as Winograd and FFT do; null for the others.
    """

    kernel: int
    name: str
    intensity: float
    intensity_low: float
    intensity_high: float
    flops_per_s: float
    us: float
    share: float
    bound: str
    regime: str | None
    own_roof_flops_per_s: float | None = None


class RooflineRoof(Struct, frozen=True):
    """A compute roof: the key of the peak and its height."""

    key: str
    flops_per_s: float


class FlatLine(Struct, frozen=True):
    """A compute roof as drawn.

    It has its height, the intensity at which it meets memory, and its words, long and short. ``ridge`` is null where
    the bandwidth of the memory is not known.
    """

    flops_per_s: float
    ridge: float | None
    label: str
    short_label: str


class SlopedLine(Struct, frozen=True):
    """A bandwidth roof as drawn, up to the highest compute roof.

    It has bytes per second, and its words.
    """

    bytes_per_s: float
    label: str
    is_cache: bool = False


class RooflinePlane(Struct, frozen=True):
    """The lines of a roofline.

    They are compute and bandwidth roofs, and guides at parts of the highest of each.
    """

    flats: tuple[FlatLine, ...]
    slopes: tuple[SlopedLine, ...]
    guides: tuple[float, ...]


# The names of the axes, and the parts of the highest roof at which guides run.
ACROSS, UP = "arithmetic intensity, FLOP per byte of memory traffic", "speed, FLOP/s"
_GUIDES = (0.5, 0.25)
GUIDES_NOTE = "dashed: 50, 25 % of the highest roof"
CACHE_NOTE = "dotted: the fastest cache; marks between it and the memory's line read from a cache"
HOLLOW_WORDS = "hollow: far below the roof"
OWN_ROOF_WORDS = "own roof: Winograd, FFT, inexact cost or peak"


def plane_of(device: Device, used: Sequence[RooflineRoof]) -> RooflinePlane:
    """The lines that are drawn for these compute roofs of a device."""
    memory, cached = device.bandwidth_bytes_per_s, fastest_bandwidth(device)
    slopes = [SlopedLine(memory, f"memory {format_si(memory, 'B/s')}")] if memory else []
    if cached and cached != memory:
        slopes.append(SlopedLine(cached, f"fastest cache {format_si(cached, 'B/s')}", is_cache=True))
    return RooflinePlane(
        tuple(_flat(roof, memory, device.kind) for roof in used), tuple(slopes), _GUIDES if used else ()
    )


def _flat(roof: RooflineRoof, bandwidth: float | None, kind: str) -> FlatLine:
    ridge = roof.flops_per_s / bandwidth if bandwidth else None
    short = f"{peak_name(roof.key, kind)} {format_si(roof.flops_per_s, 'FLOP/s')}"
    at = "" if ridge is None else f", ridge {f'{ridge:.0f}' if ridge >= 100 else f'{ridge:.3g}'} FLOP/B"
    return FlatLine(roof.flops_per_s, ridge, f"{short}{at}", short)


def points(analysis: Analysis) -> tuple[RooflinePoint, ...]:
    """Gives the kernels that have FLOPs and bytes, most time first.

    They are as many as one can still make out.
    """
    placed = sorted(
        (at for at, row in enumerate(analysis.kernels) if _has_place(row)), key=lambda at: -analysis.kernels[at].us
    )
    used = {roof.key: roof.flops_per_s for roof in roofs(analysis)}
    return tuple(_point(analysis.kernels[at], at, analysis.device, used) for at in placed[:_MOST_POINTS])


def fastest_bandwidth(device: Device) -> float | None:
    """Gives bytes/s of the steepest slope that is drawn.

    It is that of a cache where one is clearly faster than memory.
    """
    memory = device.bandwidth_bytes_per_s
    cached = max((rate for _, rate in device.bandwidth_by_bytes), default=0.0)
    return memory if memory is None or cached <= _FASTER_CACHE * memory else cached


def whole_step(analysis: Analysis) -> tuple[float, float] | None:
    """Gives FLOP/byte and FLOP/s of the step as a whole.

    Waiting is included. Null where totals are not known.
    """
    totals: Totals = analysis.totals
    if not (totals.flops and totals.bytes_low and totals.bytes_high and analysis.steps.wall_us > 0):
        return None
    intensity = totals.flops / math.sqrt(totals.bytes_low * totals.bytes_high)
    rate = totals.flops / analysis.steps.wall_us * US_PER_S
    intensity = max(intensity, rate / (fastest_bandwidth(analysis.device) or math.inf))
    return clip(intensity, _INTENSITIES), clip(rate, _RATES)


def roofs(analysis: Analysis) -> tuple[RooflineRoof, ...]:
    """The peaks that the kernels are compared with, by the time of those kernels.

    Where no kernel is modelled, those of the kernels' engines and dtypes; where these are not known, the highest.
    """
    peaks = analysis.device.peaks_flops_per_s
    us = _us_by_peak(analysis, peaks, _peak_of)
    us = us if any(us.values()) else _us_by_peak(analysis, peaks, _peak_by_name)
    used = sorted((key for key in peaks if us[key] > 0), key=lambda key: -us[key])
    by_height = {peaks[key]: key for key in reversed(used)}  # of roofs at one height, that with the most time
    shown = [key for key in used if key in by_height.values()][:_MOST_ROOFS]
    shown = shown or sorted(peaks, key=lambda key: -peaks[key])[:1]
    return tuple(sorted((RooflineRoof(key, peaks[key]) for key in shown), key=lambda roof: -roof.flops_per_s))


def _us_by_peak(
    analysis: Analysis, peaks: Mapping[str, float], peak_of: Callable[[KernelSummary, Mapping[str, float]], str | None]
) -> dict[str, float]:
    us = dict.fromkeys(peaks, 0.0)
    for row in analysis.kernels:
        key = peak_of(row, peaks)
        if key is not None:
            us[key] += row.us
    return us


def _peak_by_name(row: KernelSummary, peaks: Mapping[str, float]) -> str | None:
    """Gives the peak that a kernel's name implies.

    It is that of its engine and dtype. Null where the name implies none.
    """
    keys = (f"{row.dtype}_{engine}" for engine in _ENGINES.get(row.engine or "", ()))
    return next((key for key in keys if key in peaks), None)


def absences(analysis: Analysis) -> str:
    """Sentences on the time that has no point: unmodelled work, and work without arithmetic."""
    busy_us = math.fsum(row.us for row in analysis.kernels)
    missing = [row for row in analysis.kernels if not _has_place(row)]
    moving = [row for row in missing if row.flops == 0 or row.bound in _MOVING]
    moving_us = math.fsum(row.us for row in moving)
    unmodelled_us = math.fsum(row.us for row in missing) - moving_us
    small_us = math.fsum(sorted(row.us for row in analysis.kernels if _has_place(row))[:-_MOST_POINTS])
    kinds = (
        (unmodelled_us, "is unmodelled"),
        (moving_us, "does no arithmetic"),
        (small_us, f"lies in kernels smaller than the {_MOST_POINTS} shown"),
    )
    parts = [f"{format_share(us / busy_us)} of busy time that {what}" for us, what in kinds if us > 1e-9 * busy_us]
    return f"not drawn: {' and '.join(parts)}" if parts else ""


def clip(value: float, limits: tuple[float, float]) -> float:
    """The value, or the limit that it lies beyond."""
    return min(max(value, limits[0]), limits[1])


def _has_place(row: KernelSummary) -> bool:
    return bool(row.flops and row.bytes_low and row.bytes_high and row.us > 0)


def _point(row: KernelSummary, at: int, device: Device, drawn: Mapping[str, float]) -> RooflinePoint:
    assert row.flops and row.bytes_low and row.bytes_high
    low, high = (clip(row.flops / amount, _INTENSITIES) for amount in (row.bytes_high, row.bytes_low))
    rate = clip(row.flops / row.us * US_PER_S, _RATES)
    roof = drawn.get(_peak_of(row, device.peaks_flops_per_s) or "", max(drawn.values(), default=math.inf))
    own = max(row.flops / (row.compute_us or row.us) * US_PER_S, rate)
    return RooflinePoint(
        kernel=at,
        name=row.name,
        intensity=max(math.sqrt(low * high), clip(rate / (fastest_bandwidth(device) or math.inf), _INTENSITIES)),
        intensity_low=low,
        intensity_high=high,
        flops_per_s=rate,
        us=row.us,
        share=row.share,
        bound=row.bound,
        regime=row.regime,
        own_roof_flops_per_s=clip(own, _RATES) if rate > roof else None,
    )


def _peak_of(row: KernelSummary, peaks: Mapping[str, float]) -> str | None:
    """Gives the peak that the compute floor of a kernel stands for.

    Null where there is no floor or no such peak. Where several dtypes share a figure, that of the kernel's own dtype
    and engine is meant.
    """
    if not row.flops or not row.compute_us:
        return None
    rate = row.flops / row.compute_us * US_PER_S
    engines = _ENGINES.get(row.engine or "", ("tensor", "matrix", "vector", "onednn"))

    def misfit(key: str) -> tuple[float, bool]:
        return round(abs(math.log(peaks[key] / rate)), 2), key.partition("_")[0] != row.dtype

    # Some floors lie below a peak, where an operation takes several instructions, but none far above it.
    above = [key for key in peaks if peaks[key] >= rate / _SAME_PEAK and key.rpartition("_")[2] in engines]
    fit = [key for key in above if key.partition("_")[0] in {row.dtype, "fp32", "tf32"}]
    same = [key for key in above if math.isclose(peaks[key], rate, rel_tol=0.02)]
    return min(fit or same, key=misfit, default=None)
