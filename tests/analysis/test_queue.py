"""Queue depth on scenes of a few launches: what counts as issued and done, and what an empty queue proves."""

import pytest

from bottleneck.analysis.queue import MOST_POINTS, measure_queue
from bottleneck.schema.analysis import Queue
from tests.analysis.scenes import Kernel, Op, Scene, analysis_of


def _queue(*kernels: Kernel, wall: float = 100.0, devices: tuple[int, ...] = (0,), start: float = 0.0) -> Queue | None:
    return measure_queue(Scene(wall, kernels=kernels, start=start).linked(), devices)


def test_depth_counts_launches_from_the_end_of_their_call_to_the_end_of_their_kernel() -> None:
    queue = _queue(Kernel(20, 30, launch=(10, 5)), Kernel(50, 40, launch=(15, 5)))
    assert queue is not None
    assert queue.curve == ((0.0, 0.0), (15.0, 1.0), (20.0, 2.0), (50.0, 1.0), (90.0, 0.0), (100.0, 0.0))
    assert (queue.median_depth, queue.highest_depth) == (1.0, 2)


def test_idle_time_with_nothing_queued_is_the_hosts() -> None:
    queue = _queue(Kernel(0, 10, launch=(-9, 5)), Kernel(60, 40, launch=(45, 5)))
    assert queue is not None
    assert queue.empty_idle_share == pytest.approx(40 / 50)


def test_idle_time_with_work_queued_is_not_the_hosts() -> None:
    queue = _queue(Kernel(0, 10, launch=(-9, 2)), Kernel(60, 40, launch=(-5, 2)))
    assert queue is not None
    assert queue.empty_idle_share == 0.0


def test_device_that_never_idles_has_no_such_share() -> None:
    queue = _queue(Kernel(0, 100, launch=(-9, 2)))
    assert queue is not None
    assert (queue.empty_idle_share, queue.median_depth) == (None, 1.0)


def test_kernel_that_starts_before_its_call_returns_is_queued_from_its_start() -> None:
    queue = _queue(Kernel(20, 30, launch=(10, 15)))
    assert queue is not None
    assert queue.curve[1] == (20.0, 1.0)


def test_graph_is_one_launch_until_its_last_kernel_ends() -> None:
    scene = Scene(100, kernels=[Kernel(20, 10, launch=(10, 5)), Kernel(40, 10), Kernel(60, 10)])
    linked = scene.linked()
    for column in ("launch", "launch_ts_us", "launch_end_us"):
        linked.kernels[column] = linked.kernels[column].iloc[0]
    queue = measure_queue(linked, (0,))
    assert queue is not None
    assert queue.curve == ((0.0, 0.0), (15.0, 1.0), (70.0, 0.0), (100.0, 0.0))
    assert queue.empty_idle_share == pytest.approx((15 + 30) / (20 + 10 + 10 + 30))


def test_launches_outside_the_window_count_at_its_edges() -> None:
    queue = _queue(Kernel(90, 20, launch=(50, 5)), Kernel(150, 10, launch=(60, 5)), start=100)
    assert queue is not None
    assert queue.curve[0] == (0.0, 2.0)


def test_work_without_a_known_launch_neither_proves_nor_disproves() -> None:
    queue = _queue(Kernel(0, 10, launch=(-9, 5)), Kernel(50, 10), Kernel(90, 10, launch=(80, 5)))
    assert queue is not None
    assert queue.empty_idle_share == pytest.approx(25 / 30)


def test_trace_without_linked_launches_or_without_a_device_has_no_queue() -> None:
    assert _queue(Kernel(0, 10), Kernel(50, 10)) is None
    assert measure_queue(Scene(100, ops=[Op(0, 10)]).linked(), (0,)) is None
    assert _queue(Kernel(0, 0, launch=(0, 0)), wall=0.0) is None


def test_shares_are_over_all_devices_and_the_curve_is_of_the_busiest() -> None:
    kernels = [Kernel(20.0 * n, 10, launch=(20.0 * n - 5, 2)) for n in range(1, 4)]
    queue = _queue(*kernels, Kernel(0, 50, launch=(-9, 2), device=1, stream="1/7"), devices=(0, 1))
    assert queue is not None
    assert queue.highest_depth == 1
    assert queue.empty_idle_share == pytest.approx((70 - 3 * 3 + 50) / (70 + 50))


def test_long_curve_is_thinned_and_keeps_its_extremes() -> None:
    kernels = [Kernel(10.0 * n + 5, 4, launch=(10.0 * n, 2)) for n in range(1000)]
    burst = [Kernel(5003 + 0.1 * n, 0.1, launch=(5000, 1), stream="0/8") for n in range(9)]
    queue = _queue(*kernels, *burst, wall=10_000)
    assert queue is not None
    assert len(queue.curve) <= MOST_POINTS
    assert max(depth for _, depth in queue.curve) == queue.highest_depth
    assert (queue.curve[0][0], queue.curve[-1][0]) == (0.0, 10_000.0)
    assert list(queue.curve) == sorted(queue.curve, key=lambda point: point[0])


def test_analysis_of_a_device_holds_its_queue_and_that_of_a_host_none() -> None:
    on_device = Scene(100, kernels=[Kernel(20, 30, launch=(10, 5))])
    assert analysis_of(on_device).queue == _queue(*on_device.kernels)
    assert analysis_of(Scene(100, ops=[Op(0, 10)])).queue is None
