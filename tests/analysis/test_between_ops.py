"""The time between two ops comes from the window in which only ops were recorded."""

from collections.abc import Sequence

import numpy as np
import pytest

from bottleneck.analysis.between_ops import (
    StretchPieces,
    calm_steps,
    in_lighter_window,
    measure_stretches,
    quick_part,
)
from bottleneck.analysis.host import own_stretches
from bottleneck.analysis.ledger import build_ledger
from bottleneck.analysis.scaling import measure_light, own_parts, scale_to_unprofiled
from bottleneck.schema.intervals import union
from bottleneck.schema.linked_trace import Linked, Step, Window
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
    assert found.marks == ("op aten::mm", "op aten::add", "the step ends")
    assert found.us.tolist() == pytest.approx([79.0, 18.0, 0.0])


def pieces_of(
    us: Sequence[float], middle_us: Sequence[float], kind: Sequence[int] | None = None, calls: Sequence[float] = ()
) -> StretchPieces:
    """Pieces of one call each, of one kind unless told, each around a time."""
    return StretchPieces(
        us=np.array(us, dtype=float),
        calls=np.array(calls or [1.0] * len(us), dtype=float),
        kind=np.array(kind or [0] * len(us)),
        middle_us=np.array(middle_us, dtype=float),
    )


def left_in(light: Linked, full: Linked, pieces: StretchPieces) -> list[float] | None:
    """How long the pieces of the full window take in the light one."""
    own = own_stretches(full.trace.events)
    found = in_lighter_window(pieces, full, own, measure_stretches(light, own, 0.0))
    return None if found is None else found.tolist()


def test_what_is_left_of_a_stretch_is_what_the_lighter_window_has() -> None:
    light, full = linked_of(80.0, 20.0, steps=2), linked_of(400.0, 30.0, steps=2)
    left = left_in(light, full, pieces_of([400.0, 30.0, 300.0, 30.0, 100.0], [200, 420, 600, 870, 800]))
    assert left is not None
    assert [left[0], left[1], left[3]] == pytest.approx([80.0, 20.0, 20.0])
    assert left[2] + left[4] == pytest.approx(80.0)


def test_an_annotation_parts_what_is_before_its_edge_from_what_is_after() -> None:
    def annotated(gaps_us: tuple[float, float], edge_us: float) -> Linked:
        scene, wall = scene_of(gaps_us), sum(gaps_us) + 20
        marks = [Event("annotation", "Optimizer.step#SGD.step", wall * step + edge_us, 20.0) for step in range(4)]
        return replace(scene, events=[*scene.events, *marks]).linked()

    # 300 us of the line before the annotation was recording it: the 8 us of the optimizer's own code remain.
    light, full = annotated((80.0, 20.0), 72.0), annotated((400.0, 20.0), 390.0)
    us, middles = [390.0, 10.0] * 4, [at + 440 * step for step in range(4) for at in (195, 395)]
    left = left_in(light, full, pieces_of(us, middles, [0, 1] * 4))
    assert left is not None
    assert left[:2] == pytest.approx([72.0, 8.0])


def test_a_piece_that_was_interrupted_once_takes_nothing_from_the_others() -> None:
    light, full = linked_of(80.0, 20.0, steps=3), linked_of(400.0, 30.0, steps=3)
    # In the second step 4,000 us pass inside a function that takes no time otherwise.
    middles, kinds = [1, 1, 451, 451, 451, 901, 901], [0, 1, 0, 1, 2, 0, 1]
    pieces = pieces_of([300, 100, 300, 100, 4000, 300, 100], middles, kinds, [5] * 7)
    left = left_in(light, full, pieces)
    assert left is not None
    assert left[4] == 0.0
    assert sum(left) == pytest.approx(240.0)


def test_recording_a_call_again_and_again_costs_less_than_recording_another() -> None:
    # The second stretch tells what a call costs that is made once: 10 calls took 10 us longer. So of the 1,040 us that
    # the first one took longer its 10 single calls took 10, and its loop the others.
    light, full = linked_of(280.0, 20.0, steps=2), linked_of(1320.0, 30.0, steps=2)
    middles, calls = [1, 1, 1340, 1371, 1371, 2710], [3000.0, 10.0, 10.0] * 2
    pieces = pieces_of([1240, 80, 30, 1240, 80, 30], middles, [0, 1, 2] * 2, calls)
    left = left_in(light, full, pieces)
    assert left is not None
    assert left[:3] == pytest.approx([1240 - 1030, 80 - 10, 20])


def test_windows_of_other_ops_are_not_compared() -> None:
    light = linked_of(80.0, 20.0)
    other = Scene(100.0, ops=[Op(10, 10, "aten::mul")], steps=1).linked()
    own = own_stretches(other.trace.events)
    assert in_lighter_window(pieces_of([10.0], [5]), other, own, measure_stretches(light, own, 0.0)) is None
    assert in_lighter_window(pieces_of([10.0], [5]), other, own, None) is None


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
    assert beside.us.tolist() == alone.us.tolist() == [pytest.approx(10), pytest.approx(70), 0.0]


def window_of(*us: float) -> Window:
    ends = np.cumsum(us)
    steps = tuple(
        Step(f"step {place}", end - time, end) for place, (end, time) in enumerate(zip(ends, us, strict=True))
    )
    return Window(0.0, float(ends[-1]), steps, "marks")


def test_the_quick_part_is_the_longest_run_of_steps_like_the_quickest() -> None:
    part = quick_part(window_of(10, 50, 10, 12, 11, 90))
    assert part is not None and [step.name for step in part.steps] == ["step 2", "step 3", "step 4"]
    assert (part.start_us, part.end_us) == (60.0, 93.0)
    assert [(step.name, reason.kind) for step, reason in part.set_aside] == [
        ("step 0", "held up by other programs"),
        ("step 1", "held up by other programs"),
        ("step 5", "held up by other programs"),
    ]


def test_steps_that_are_all_alike_have_no_quick_part() -> None:
    assert quick_part(window_of(10, 12, 11)) is None
    assert quick_part(window_of(10)) is None
