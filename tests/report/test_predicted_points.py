"""The work of a prediction as points under the roofs of its device."""

from dataclasses import replace

import pytest

from bottleneck.report.predict import not_drawn, roofline_chart, step_point, work_points, work_roofs
from bottleneck.schema.prediction import PredictedWork
from tests.report.test_predict import ON_H100

COPY = PredictedWork("copy", "memory", None, 5, 950.0, 300.0, 0.0, 300.0, 0.0, 1e9)


def test_point_of_a_kind_of_work_has_its_speed_and_intensity() -> None:
    product, pointwise = work_points(ON_H100)
    assert (product.name, product.bound) == ("matmul", "compute")
    assert product.intensity == pytest.approx(300.0)
    assert product.flops_per_s == pytest.approx(9e10 / 2e-3)
    assert product.share == pytest.approx(2000 / 2850)
    assert pointwise.intensity == pytest.approx(0.25)


def test_kind_of_work_with_two_bounds_is_told_apart() -> None:
    small = replace(ON_H100.work[0], bound="memory", us=10.0)
    assert [point.name for point in work_points(replace(ON_H100, work=(*ON_H100.work, small)))] == [
        "matmul, compute",
        "pointwise",
        "matmul, memory",
    ]


def test_roofs_are_those_of_the_engines_that_work() -> None:
    assert [roof.key for roof in work_roofs(ON_H100)] == ["fp32_vector"]
    half = replace(ON_H100.work[0], engine="bf16_tensor")
    assert [roof.key for roof in work_roofs(replace(ON_H100, work=(half, ON_H100.work[0])))] == [
        "bf16_tensor",
        "fp32_vector",
    ]


def test_whole_step_is_slower_than_its_kernels_by_what_it_waits() -> None:
    point = step_point(replace(ON_H100, step=replace(ON_H100.step, us=5700.0)))
    assert point == pytest.approx((9.03e10 / 1.5e9, 9.03e10 / 5.7e-3))
    assert step_point(replace(ON_H100, work=())) is None


def test_time_without_a_point_is_told() -> None:
    assert not_drawn(ON_H100) == ""
    assert not_drawn(replace(ON_H100, work=(*ON_H100.work, COPY))).startswith("not drawn: 25.0 % of the time")


def test_chart_needs_a_point_and_a_bandwidth() -> None:
    chart = roofline_chart(ON_H100, "H100")
    assert chart is not None
    assert [curve.label for curve in chart.curves] == [
        "matmul 70.2 %",
        "pointwise 29.8 %",
        "the whole step, waiting included",
        "memory, 3.35 TB/s",
        "fp32 vector",
    ]
    assert [curve.role for curve in chart.curves] == ["compute", "memory", "step", "roof", "roof"]
    assert roofline_chart(replace(ON_H100, work=(COPY,)), "H100") is None
    unknown = replace(ON_H100.device, bandwidth_bytes_per_s=None)
    assert roofline_chart(replace(ON_H100, device=unknown), "H100") is None
