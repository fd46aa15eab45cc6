"""Replays of graphs whose time can be worked out by hand."""

import numpy as np
import pytest

from bottleneck.simulate.replay import WITHOUT_DELAYS, GraphChange, replay_once, replay_steps
from tests.simulate.graphs import GAP_US, LATENCY_US, Script


def test_a_chain_without_device_work_takes_its_sum() -> None:
    assert replay_once(Script().work(10).work(25).work(5).graph()).wall_us == 40


def test_work_starts_a_latency_after_its_launch() -> None:
    played = replay_once(Script().work(10).launch(100).graph())
    assert played.starts_us.tolist() == [10 + LATENCY_US]
    assert played.wall_us == 10 + LATENCY_US + 100


def test_work_of_one_stream_follows_the_work_before_it() -> None:
    played = replay_once(Script().work(10).launch(100).launch(50).graph())
    assert played.wall_us == 10 + LATENCY_US + 100 + GAP_US + 50


def test_two_streams_of_equal_work_take_as_long_as_one() -> None:
    one = replay_once(Script().launch(100).graph()).wall_us
    assert replay_once(Script().launch(100).launch(100, stream=1).graph()).wall_us == one


def test_two_streams_take_as_long_as_the_longer_one() -> None:
    longer = replay_once(Script().launch(300, stream=1).graph()).wall_us
    assert replay_once(Script().launch(100).launch(300, stream=1).graph()).wall_us == longer


def test_work_waits_for_work_of_another_stream_that_it_depends_on() -> None:
    played = replay_once(Script().launch(100).launch(50, stream=1, after=0).graph())
    assert played.wall_us == LATENCY_US + 100 + GAP_US + 50


def test_the_host_goes_on_when_the_work_that_it_waits_for_has_ended() -> None:
    played = replay_once(Script().launch(100).wait(0).work(20).graph())
    assert played.waited_us.tolist() == [0, LATENCY_US + 100, 0]
    assert played.wall_us == LATENCY_US + 100 + 20


def test_a_wait_for_the_device_is_for_all_streams() -> None:
    played = replay_once(Script().launch(100).launch(300, stream=1).wait().work(20).graph())
    assert played.wall_us == LATENCY_US + 300 + 20


def test_without_a_sync_the_host_runs_ahead_until_the_device_binds() -> None:
    graph = Script().launch(100).wait(0).work(60).launch(100).wait(1).work(60).graph()
    with_waits = replay_once(graph).wall_us
    without = replay_once(graph, GraphChange(no_wait=graph.waits))
    assert with_waits == 2 * (LATENCY_US + 100 + 60)
    assert without.at_us[-1] == 120
    assert without.wall_us == LATENCY_US + 100 + GAP_US + 100


def test_a_wait_that_found_its_work_done_binds_once_the_host_is_faster() -> None:
    graph = Script().launch(100).work(200).wait(0).work(10).graph()
    assert replay_once(graph).waited_us[1] == 0
    faster = replay_once(graph, GraphChange(host=np.array([0.1, 1.0])))
    assert faster.waited_us[1] == LATENCY_US + 100 - 20
    assert faster.wall_us == LATENCY_US + 100 + 10


def test_a_batch_of_workers_does_not_come_earlier_because_the_host_is_faster() -> None:
    graph = Script().work(50).batch(200.0).work(30).graph()
    assert replay_once(graph).wall_us == 230
    assert replay_once(graph, GraphChange(host=np.array([0.1, 1.0]))).wall_us == 230
    assert replay_once(graph, GraphChange(arrival=np.array([0.5]))).wall_us == 130
    assert replay_once(graph, GraphChange(arrival=np.array([0.0]))).wall_us == 80


def test_work_that_is_gone_is_neither_run_nor_waited_for() -> None:
    graph = Script().launch(100).launch(50).wait(1).work(10).graph()
    played = replay_once(graph, GraphChange(device=np.array([0.0, 1.0])))
    assert played.wall_us == LATENCY_US + 50 + 10


def test_overlapped_work_holds_nothing_but_other_overlapped_work() -> None:
    graph = Script().launch(100).launch(70, stream=1, after=0).launch(70, stream=1).launch(40, after=1).wait(1).graph()
    detached = np.array([False, True, True, False])
    played = replay_once(graph, GraphChange(detached=detached))
    assert played.starts_us[3] == LATENCY_US + 100 + GAP_US
    assert played.starts_us[2] == played.ends_us[1] + GAP_US
    assert played.waited_us.sum() == 0


def test_delays_without_an_explanation_are_kept_unless_taken_away() -> None:
    graph = Script().launch(100, held_us=40).graph()
    assert replay_once(graph).wall_us == LATENCY_US + 40 + 100
    assert replay_once(graph, WITHOUT_DELAYS).wall_us == LATENCY_US + 100


def test_steps_that_repeat_take_as_long_as_what_binds_them() -> None:
    by_device = Script(repeats=True).work(10).launch(100).work(20)
    assert replay_steps(by_device.graph()).wall_us == pytest.approx(100 + GAP_US)
    by_host = Script(repeats=True).work(200).launch(100).work(20)
    assert replay_steps(by_host.graph()).wall_us == pytest.approx(220)


def test_a_step_takes_at_least_what_the_change_says() -> None:
    assert replay_once(Script().work(30).graph(), GraphChange(least_us=80)).wall_us == 80


def test_changes_add_up() -> None:
    graph = Script().work(100).launch(100).wait(0).work(100).graph()
    both = GraphChange(host=np.array([0.5, 1.0])) & GraphChange(host=np.array([0.5, 0.5]), no_wait=graph.waits)
    assert both.host is not None
    assert both.host.tolist() == [0.25, 0.5]
    assert replay_once(graph, both).at_us[-1] == 75
