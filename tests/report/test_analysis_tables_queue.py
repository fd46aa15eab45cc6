"""Queue depth in a report: the mean over each part of the curve, and what an empty queue proves."""

from dataclasses import replace

import pytest

from bottleneck.report.analysis_tables import mean_depths, queue_caption, queue_sparkline
from bottleneck.schema.analysis import Queue
from tests.report.samples import SAMPLES

CURVE = ((10.0, 0.0), (20.0, 4.0), (25.0, 2.0), (30.0, 2.0))
QUEUE = Queue(0.9, 1.0, 4, CURVE)


def test_depth_is_the_mean_over_each_part_of_the_time() -> None:
    assert mean_depths(CURVE, 2) == pytest.approx((0.0, 3.0))
    assert mean_depths(CURVE, 4) == pytest.approx((0.0, 0.0, 4.0, 2.0))


def test_an_empty_queue_while_the_device_is_idle_says_that_the_host_does_not_keep_up() -> None:
    assert "90.0 % of the device's idle time: the host does not keep up" in queue_caption(QUEUE)
    assert "keep up" not in queue_caption(replace(QUEUE, empty_idle_share=0.3))
    assert "idle" not in queue_caption(replace(QUEUE, empty_idle_share=None))


def test_strip_needs_a_queue_with_some_length() -> None:
    analysis = SAMPLES["gpu_overhead"]
    strip = queue_sparkline(analysis)
    assert strip is not None and max(strip.values) == pytest.approx(14.0)
    assert queue_sparkline(replace(analysis, queue=None)) is None
    assert queue_sparkline(replace(analysis, queue=replace(QUEUE, curve=CURVE[:1]))) is None
