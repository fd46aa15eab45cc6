"""The work of a predicted step as points under the roofs of a device: for its picture and the charts of its page."""

import math
from collections.abc import Sequence

from bottleneck.report.line_chart import ChartCurve, ChartPoint, LineChart
from bottleneck.report.roofline_points import RooflinePoint, RooflineRoof
from bottleneck.schema.prediction import DevicePrediction, PredictedWork
from bottleneck.units import US_PER_S, format_share, format_si

_MOST_ROOFS = 3
_MOST_KINDS = 6  # a chart of the page has colours for these and for the step
_ROOM = 10.0  # between the outermost points and the ends of the roofs, as a factor


def work_points(prediction: DevicePrediction) -> tuple[RooflinePoint, ...]:
    """The kinds of work that have FLOPs and bytes, longest first."""
    total_us = sum(row.us for row in prediction.work)
    kinds = [row.kind for row in prediction.work]
    return tuple(
        _point(row, at, f"{row.kind}, {row.bound}" if kinds.count(row.kind) > 1 else row.kind, total_us)
        for at, row in enumerate(prediction.work)
        if row.flops and row.bytes and row.us
    )


def _point(row: PredictedWork, at: int, name: str, total_us: float) -> RooflinePoint:
    assert row.flops and row.bytes
    intensity = row.flops / row.bytes
    return RooflinePoint(
        kernel=at,
        name=name,
        intensity=intensity,
        intensity_low=intensity,
        intensity_high=intensity,
        flops_per_s=row.flops / row.us * US_PER_S,
        us=row.us,
        share=row.us / total_us,
        bound=row.bound,
        regime=None,
    )


def work_roofs(prediction: DevicePrediction) -> tuple[RooflineRoof, ...]:
    """The peaks that the work is held against, highest first; the three with most time."""
    peaks, us = prediction.device.peaks_flops_per_s, dict[str, float]()
    for row in prediction.work:
        if row.engine is not None and row.engine in peaks and row.flops:
            us[row.engine] = us.get(row.engine, 0.0) + row.us
    used = sorted(us, key=lambda key: -us[key])[:_MOST_ROOFS] or sorted(peaks, key=lambda key: -peaks[key])[:1]
    return tuple(sorted((RooflineRoof(key, peaks[key]) for key in used), key=lambda roof: -roof.flops_per_s))


def step_point(prediction: DevicePrediction) -> tuple[float, float] | None:
    """FLOP/byte and FLOP/s of the whole step, the waiting for its host included; null where they are not known."""
    flops = sum(row.flops or 0.0 for row in prediction.work)
    moved = sum(row.bytes or 0.0 for row in prediction.work)
    if not flops or not moved or not prediction.step.us:
        return None
    return flops / moved, flops / prediction.step.us * US_PER_S


def not_drawn(prediction: DevicePrediction) -> str:
    """The share of the time of the kernels that has no point; empty where all has one."""
    total_us = sum(row.us for row in prediction.work)
    missing_us = math.fsum(row.us for row in prediction.work if not (row.flops and row.bytes))
    if missing_us <= 1e-9 * total_us:
        return ""
    return f"not drawn: {format_share(missing_us / total_us)} of the time of the kernels, which does no arithmetic"


def roofline_chart(prediction: DevicePrediction, title: str) -> LineChart | None:
    """The chart of one device for a page: a mark per kind of work, and the roofs as lines; null without points."""
    points = work_points(prediction)[:_MOST_KINDS]
    bandwidth = prediction.device.bandwidth_bytes_per_s
    if not points or not bandwidth:
        return None
    roofs = work_roofs(prediction)
    ridges = [roof.flops_per_s / bandwidth for roof in roofs]
    low = min(*(point.intensity for point in points), *ridges) / _ROOM
    high = max(*(point.intensity for point in points), *ridges) * _ROOM
    kinds = [
        ChartCurve(f"{point.name} {format_share(point.share)}", (ChartPoint(point.intensity, point.flops_per_s),))
        for point in points
    ]
    step = step_point(prediction)
    if step is not None:
        kinds.append(ChartCurve("the whole step, waiting for its host included", (ChartPoint(*step),)))
    return LineChart(
        f"{title}, speed in FLOP/s",
        "arithmetic intensity, FLOP per byte",
        (*kinds, *_roof_lines(roofs, bandwidth, low, high)),
        lambda value: format_si(value, "").strip(),
        show_x=lambda value: f"{value:,.0f}" if value >= 100 else f"{value:.3g}",
    )


def _roof_lines(roofs: Sequence[RooflineRoof], bandwidth: float, low: float, high: float) -> list[ChartCurve]:
    """The slope of the memory up to the highest peak, and each peak from its ridge on."""
    highest = max(roof.flops_per_s for roof in roofs)
    ends = (ChartPoint(low, low * bandwidth), ChartPoint(highest / bandwidth, highest))
    slope = ChartCurve(f"memory, {format_si(bandwidth, 'B/s')}", ends, is_guide=True)
    flats = [
        ChartCurve(
            roof.key.replace("_", " "),
            (ChartPoint(roof.flops_per_s / bandwidth, roof.flops_per_s), ChartPoint(high, roof.flops_per_s)),
            is_guide=True,
            words=f"{roof.key.replace('_', ' ')} {format_si(roof.flops_per_s, 'FLOP/s')}",
        )
        for roof in roofs
    ]
    return [slope, *flats]
