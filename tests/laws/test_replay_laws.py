"""Laws of a replay, on graphs drawn at random: what holds whatever the host and the device do."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bottleneck.schema.intervals import Flags
from bottleneck.simulate.critical_path import path_times
from bottleneck.simulate.graph import StepGraph
from bottleneck.simulate.replay import GraphChange, replay_once, replay_steps
from tests.simulate.graphs import Script, ones, scaled

_TIMES = st.integers(1, 300).map(float)


@st.composite
def graphs(draw: st.DrawFn, *, repeats: bool | None = None) -> StepGraph:
    """A step of up to 30 actions of the host on up to three streams."""
    script = Script(repeats=draw(st.booleans()) if repeats is None else repeats)
    script.work(draw(_TIMES))
    launched, came_us = 0, 0.0
    for action in draw(
        st.lists(st.sampled_from(("work", "launch", "launch", "wait", "wait for all", "batch")), max_size=30)
    ):
        if action == "work":
            script.work(draw(_TIMES))
        elif action == "launch":
            after = draw(st.integers(-1, launched - 1)) if launched else -1
            script.launch(draw(_TIMES), draw(st.integers(0, 2)), after, draw(st.sampled_from((0.0, 0.0, 40.0))))
            launched += 1
        elif action == "wait" and launched:
            script.wait(draw(st.integers(0, launched - 1)))
        elif action == "wait for all":
            script.wait()
        elif action == "batch":
            came_us += draw(_TIMES)
            script.batch(came_us)
    return script.work(draw(_TIMES)).graph()


def _some(draw: st.DrawFn, size: int) -> Flags:
    return np.array(draw(st.lists(st.booleans(), min_size=size, max_size=size)), dtype=bool)


@given(graphs())
def test_removing_nothing_changes_nothing(graph: StepGraph) -> None:
    nothing = GraphChange(
        host=ones(graph.host.us),
        device=ones(graph.device.us),
        arrival=ones(graph.ready_us),
        no_wait=np.zeros(graph.awaited.size, dtype=bool),
        detached=np.zeros(graph.device.us.size, dtype=bool),
    )
    assert replay_steps(graph, nothing).wall_us == replay_steps(graph).wall_us


@given(graphs(), st.sampled_from((0.25, 0.5, 2.0, 8.0)))
def test_the_step_scales_with_its_times(graph: StepGraph, factor: float) -> None:
    assert replay_steps(scaled(graph, factor)).wall_us == pytest.approx(factor * replay_steps(graph).wall_us)


@given(st.data(), graphs(repeats=False))
def test_removing_work_never_makes_a_step_longer(data: st.DataObject, graph: StepGraph) -> None:
    gone = data.draw(st.composite(_some)(graph.device.us.size))
    idle = data.draw(st.composite(_some)(graph.host.us.size))
    change = GraphChange(host=np.where(idle, 0.0, 1.0), device=np.where(gone, 0.0, 1.0))
    assert replay_once(graph, change).wall_us <= replay_once(graph).wall_us + 1e-6


@given(st.data(), graphs(repeats=False))
def test_removing_waits_never_makes_a_step_longer(data: st.DataObject, graph: StepGraph) -> None:
    passed = data.draw(st.composite(_some)(graph.awaited.size))
    change = GraphChange(no_wait=passed, arrival=np.where(passed, 0.0, 1.0))
    assert replay_once(graph, change).wall_us <= replay_once(graph).wall_us + 1e-6


@given(st.data(), graphs(repeats=False), st.floats(0.0, 1.0))
def test_shorter_work_never_makes_a_step_longer(data: st.DataObject, graph: StepGraph, factor: float) -> None:
    chosen = data.draw(st.composite(_some)(graph.device.us.size))
    change = GraphChange(device=np.where(chosen, max(factor, 1e-6), 1.0))
    assert replay_once(graph, change).wall_us <= replay_once(graph).wall_us + 1e-6


@given(graphs())
def test_a_step_is_no_shorter_than_its_busiest_stream_or_the_host(graph: StepGraph) -> None:
    played = replay_once(graph)
    busy_us = np.bincount(graph.device.stream, weights=graph.device.us, minlength=1).max()
    assert played.wall_us >= max(busy_us, graph.host.us.sum()) - 1e-6


@given(st.data(), graphs())
def test_the_critical_path_adds_up_to_the_step(data: st.DataObject, graph: StepGraph) -> None:
    gone = data.draw(st.composite(_some)(graph.device.us.size))
    changes = (GraphChange(), GraphChange(device=np.where(gone, 0.0, 1.0)), GraphChange(detached=gone))
    played = replay_steps(graph, data.draw(st.sampled_from(changes)))
    assume(played.wall_us > 0)
    times = path_times(graph, played)
    assert times.total_us == pytest.approx(played.wall_us)
    assert min((*times.device_us, *times.host_us, *times.waits_us.values())) >= 0


@given(graphs(repeats=True))
def test_steps_that_repeat_settle_no_longer_than_one_alone(graph: StepGraph) -> None:
    assume(not (graph.ready_us > 0).any())
    assert replay_steps(graph).wall_us <= replay_once(graph).wall_us + 1e-6
