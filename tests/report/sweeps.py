"""Sweeps made by hand for the tests of their report."""

from collections.abc import Callable

from bottleneck.experiment.curve_fit import fit_series
from bottleneck.schema.analysis import Interval
from bottleneck.schema.measurements import Timing
from bottleneck.schema.trials import Point, Roof, Sweep

PEAK, BANDWIDTH = 80e9, 32e9
ELEMENTS = 2**20


def chain_us(repeat: int) -> float:
    """A fused chain at the roofs: eight bytes and ``repeat`` FLOPs for each element."""
    return max(8 * ELEMENTS / BANDWIDTH, repeat * ELEMENTS / PEAK) * 1e6


def chain_point(repeat: int, series: str = "eager", slower: float = 1.0) -> Point:
    """A point of that chain, so many times as slow as its roofs."""
    us = chain_us(repeat) * slower
    flops, moved = float(repeat * ELEMENTS), 8.0 * ELEMENTS
    return Point(
        values={"repeat": repeat},
        series=series,
        step_us=Timing(us, us * 0.98, us * 1.02, 20),
        flops=flops,
        bytes_low=moved,
        bytes_high=moved,
        flops_per_s=flops / us * 1e6,
        bytes_per_s=Interval(moved / us * 1e6, moved / us * 1e6),
        peak="fp32_vector",
        bound="memory" if repeat <= 20 else "compute",
        bound_share=0.9,
        peak_memory_bytes=300_000_000,
        repeats=1,
    )


def roof(series: str = "eager") -> Roof:
    """The roofs that the chain runs under."""
    return Roof(series, "A processor", "fp32_vector", PEAK, BANDWIDTH, 8_000_000_000)


def chain(*series: str, repeats: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)) -> Sweep:
    """The intensity experiment, each further series 10 % slower."""
    names = series or ("eager",)
    points = tuple(
        chain_point(repeat, name, 1.05 + 0.1 * index) for index, name in enumerate(names) for repeat in repeats
    )
    return of(points, "repeat", roofs=tuple(roof(name) for name in names))


def batches(law: Callable[[int], float], sizes: tuple[int, ...] = (1, 4, 16, 64)) -> Sweep:
    """A sweep over batch sizes with these step times in us, without known work; memory grows by 1 MB a sample."""
    points = tuple(
        Point(
            {"batch_size": size},
            "eager",
            Timing(law(size), law(size), law(size), 9),
            bound="overhead",
            bound_share=0.95,
            peak_memory_bytes=100_000_000 + size * 1_000_000,
            samples_per_s=size / law(size) * 1e6,
            repeats=1,
        )
        for size in sizes
    )
    return of(points, "batch_size", roofs=(roof(),))


def failed(parameter: str, value: int, reason: str, series: str = "eager") -> Point:
    """A point without figures."""
    return Point({parameter: value}, series, reason=reason)


def of(points: tuple[Point, ...], *parameters: str, roofs: tuple[Roof, ...] = ()) -> Sweep:
    """The sweep that these points make."""
    return Sweep(("model.py",), parameters, points, fit_series(points, parameters, roofs), roofs, version="0")
