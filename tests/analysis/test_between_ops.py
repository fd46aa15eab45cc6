"""The time between two ops comes from the window in which only ops were recorded."""

import numpy as np
import pytest

from bottleneck.analysis.between_ops import calm_steps, measure_stretches, parts_left
from bottleneck.analysis.host import own_stretches
from bottleneck.analysis.ledger import build_ledger
from bottleneck.analysis.scaling import measure_light, own_parts, scale_to_unprofiled
from bottleneck.schema.intervals import union
from bottleneck.schema.linked_trace import Linked, Step
from bottleneck.schema.measurements import Timing
from bottleneck.schema.op_names import OWN_STRETCH
from bottleneck.schema.records import replace
from tests.analysis.scenes import Event, Op, Scene


def scene_of(gaps_us: tuple[float, float], own_us: float = 0.0, steps: int = 4) -> Scene:
    """Steps of two ops of 10 us with these times before them; our hook takes a part of the first."""
    wall = sum(gaps_us) + own_us + 20.0
    starts = [wall * step for step in range(steps)]
    ops = [
        Op(start + at, 10.0, name)
        for start in starts
        for at, name in ((own_us + gaps_us[0], "aten::mm"), (own_us + sum(gaps_us) + 10, "aten::add"))
    ]
    events = [Event("profiler", OWN_STRETCH, start, own_us) for start in starts if own_us]
    events += [Event("python", "train.py(1): <module>", 0.0, wall * steps)]
    return Scene(wall * steps, ops=ops, events=events, steps=steps)


def linked_of(*arguments: float, **more: float) -> Linked:
    return scene_of((arguments[0], arguments[1]), **more).linked()  # type: ignore[arg-type]


def test_stretches_are_those_before_each_op_without_our_own_time() -> None:
    linked = linked_of(80.0, 20.0, own_us=30.0)
    found = measure_stretches(linked, own_stretches(linked.trace.events), 2.0)
    assert found is not None
    assert found.ops == ("aten::mm", "aten::add")
    assert found.us.tolist() == pytest.approx([78.0, 18.0])


def test_what_is_left_of_a_stretch_is_what_the_lighter_window_has() -> None:
    light, full = linked_of(80.0, 20.0), linked_of(400.0, 30.0)
    own = own_stretches(full.trace.events)
    stretches = measure_stretches(light, own, 0.0)
    parts = parts_left(full, own, np.array([0, 1, -1]), stretches)
    assert parts is not None
    assert parts.tolist() == pytest.approx([80 / 400, 20 / 30, 80 / 400])


def test_windows_of_other_ops_are_not_compared() -> None:
    light = linked_of(80.0, 20.0)
    other = Scene(100.0, ops=[Op(10, 10, "aten::mul")], steps=1).linked()
    own = own_stretches(other.trace.events)
    assert parts_left(other, own, np.array([0]), measure_stretches(light, own, 0.0)) is None
    assert parts_left(other, own, np.array([0]), None) is None


def test_steps_that_were_held_up_are_not_calm() -> None:
    window = Scene(100.0, ops=[Op(10, 10)], steps=4).linked().window
    assert calm_steps(window) == window.steps


def test_our_hooks_are_charged_to_nobody_and_the_time_between_ops_is_the_lighter_one() -> None:
    unprofiled = Timing(120.0, 119.0, 121.0, 20)
    light_amounts = measure_light(linked_of(80.0, 20.0, own_us=10.0), unprofiled, None)
    scene = scene_of((400.0, 30.0), own_us=100.0)
    linked = scene.linked()
    profiled = build_ledger(linked, scene.roofline(), None, None, light_amounts.stretches if light_amounts else None)
    assert {entry.account: entry.us for entry in profiled.ledger.entries}["overhead.profiler"] == pytest.approx(100.0)
    result = scale_to_unprofiled(profiled, unprofiled, own_parts(linked), light_amounts)
    accounts = {entry.account: entry.us for entry in result.ledger.entries}
    assert "overhead.profiler" not in accounts
    assert sum(accounts.values()) == pytest.approx(120.0)
    assert accounts["overhead.python"] == pytest.approx(100.0, rel=0.02)


NO_HOOKS = union(np.zeros(0), np.zeros(0))


def _steps(*lengths: float) -> Linked:
    """Steps that run two ops of 10 us each: one after a tenth of the step, one at the end."""
    ops, steps, at = [], [], 0.0
    for number, us in enumerate(lengths):
        ops += [Op(at + us / 10, 10), Op(at + us - 10, 10)]
        steps.append(Step(f"step {number}", at, at + us))
        at += us
    linked = Scene(at, ops=ops).linked()
    return replace(linked, window=replace(linked.window, steps=tuple(steps)))


@pytest.mark.parametrize(
    ("lengths", "calm"), [((100, 110), 2), ((100, 1000), 1), ((1000, 100), 1), ((100, 90, 1000), 2)]
)
def test_a_step_that_was_held_up_is_not_calm_even_where_there_are_two(lengths: tuple[float, ...], calm: int) -> None:
    assert len(calm_steps(_steps(*lengths).window)) == calm


def test_stretches_are_those_of_calm_steps() -> None:
    alone, beside = (measure_stretches(_steps(*lengths), NO_HOOKS, 0.0) for lengths in ((100,), (100, 1000)))
    assert alone is not None and beside is not None
    # The first stretch begins after the last op before it, which a single step does not show.
    assert beside.us.tolist() == alone.us.tolist() == [pytest.approx(10), pytest.approx(70)]
