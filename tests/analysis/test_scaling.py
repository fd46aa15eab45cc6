"""The profiler's cost per event: taken off tiny ops, hardly noticed by large ones, never below the floor."""

import pandas as pd
import pytest

from bottleneck.analysis.ledger import build_ledger
from bottleneck.analysis.scaling import (
    find_held_up_timing,
    find_profiler_cost,
    least_record_us,
    measure_light,
    own_parts,
    profiler_us_per_event,
    scale_to_unprofiled,
    subtract_profiler_overhead,
)
from bottleneck.schema.measurements import Timing
from bottleneck.schema.records import replace
from bottleneck.schema.tables import SIGNATURES
from tests.analysis.scenes import Event, Kernel, Op, Scene, analysis_of, table

# 100 us with four recorded events: three ops and an annotation.
SCENE = Scene(
    100.0,
    ops=[Op(0, 10, bound="compute"), Op(20, 50, bound="dispatch"), Op(30, 30, bound="memory", parent=1)],
    events=[Event("annotation", "train", 0, 100)],
    steps=1,
)


def timing(median_us: float) -> Timing:
    return Timing(median_us, median_us, median_us, 9)


def test_the_tax_is_what_profiled_steps_took_longer_over_their_events() -> None:
    assert profiler_us_per_event(SCENE.linked(), timing(92.0)) == pytest.approx(2.0)


def test_options_of_a_bare_trace_give_the_interval_of_the_hosts_shares() -> None:
    scene = Scene(100, [Kernel(0, 10, launch=(-5, 2)), Kernel(90, 10, launch=(85, 5))], events=SCENE.events)
    linked, ledger = scene.linked(), build_ledger(scene.linked(), scene.roofline()).ledger
    signatures = table(SIGNATURES, [{"name": "aten::mm", "dims": "[]"}])
    shapes = replace(linked, trace=replace(linked.trace, signatures=signatures))
    # 80 us of the host and 20 us of the device: of 80 / 1.3 and of 80 / 2.3 us beside them.
    (caveat,) = find_profiler_cost(shapes, ledger, None)
    assert caveat.message.startswith(
        "the profiler slows the host by recording shapes (1.3 to 2.3 times); without it, its time would be "
    )
    assert "63.5 % to 75.5 % of the step, not 80.0 % (python 59.5 % to 70.8 %, launch" in caveat.message
    assert find_profiler_cost(shapes, ledger, timing(92.0)) == ()
    assert find_profiler_cost(linked, ledger, None) == ()


def test_a_host_of_few_long_calls_hardly_pays_for_their_records() -> None:
    scene = Scene(1000, [Kernel(0, 10), Kernel(990, 10)], events=[Event("annotation", "train", 0, 1000)])
    linked, ledger = scene.linked(), build_ledger(scene.linked(), scene.roofline()).ledger
    signatures = table(SIGNATURES, [{"name": "aten::argmax", "dims": "[]"}])
    shapes = replace(linked, trace=replace(linked.trace, signatures=signatures))
    assert find_profiler_cost(shapes, ledger, None) == ()


def test_records_of_ops_take_the_host_of_a_bare_trace_so_long_at_least() -> None:
    linked = SCENE.linked()
    assert linked.is_host_only and len(linked.window.steps) == 1
    assert least_record_us(linked, None) == pytest.approx(3 * 0.4)  # three ops; the annotation is none
    assert least_record_us(linked, timing(92.0)) == 0
    on_device = Scene(100, [Kernel(0, 10, launch=(-5, 2))], events=SCENE.events, steps=1).linked()
    assert least_record_us(on_device, None) == 0


@pytest.mark.parametrize("unprofiled", [None, timing(100.0), timing(130.0)])
def test_without_a_stretched_step_there_is_no_tax(unprofiled: Timing | None) -> None:
    assert profiler_us_per_event(SCENE.linked(), unprofiled) == 0.0


def test_an_op_pays_half_for_itself_and_half_for_each_op_inside_it() -> None:
    linked = subtract_profiler_overhead(SCENE.linked(), timing(92.0), None)
    assert linked.kernels["dur_us"].tolist() == pytest.approx([9.0, 18.0, 29.0])
    assert own_parts(linked).tolist() == pytest.approx([0.9, 0.9, 29 / 30])


def test_no_op_gets_shorter_than_the_floor_of_the_machine() -> None:
    linked = subtract_profiler_overhead(SCENE.linked(), timing(20.0), 1.5)
    assert linked.kernels["dur_us"].tolist() == pytest.approx([1.5, 1.5, 20.0])


def test_device_work_is_not_taxed() -> None:
    linked = Scene(100, [Kernel(0, 30, launch=(-9, 2))], events=[Event("annotation", "train", 0, 100)]).linked()
    assert subtract_profiler_overhead(linked, timing(50.0), None) is linked
    assert own_parts(linked).tolist() == [1.0]


def test_the_undisturbed_ledger_holds_the_untaxed_time_of_ops_and_adds_up() -> None:
    linked = subtract_profiler_overhead(SCENE.linked(), timing(92.0), None)
    result = scale_to_unprofiled(build_ledger(linked, SCENE.roofline()), timing(92.0), own_parts(linked))
    accounts = {entry.account: entry.us for entry in result.ledger.entries}
    assert result.ledger.wall_us == 92.0
    assert accounts["compute"] == pytest.approx(9.0)
    assert accounts["memory"] == pytest.approx(29.0)
    assert sum(accounts.values()) == pytest.approx(92.0, rel=1e-12)


def test_rows_and_accounts_of_the_undisturbed_step_agree() -> None:
    linked = subtract_profiler_overhead(SCENE.linked(), timing(92.0), None)
    result = scale_to_unprofiled(build_ledger(linked, SCENE.roofline()), timing(92.0), own_parts(linked))
    accounts = {entry.account: entry.us for entry in result.ledger.entries}
    assert result.kernel_us[[0, 2]].tolist() == pytest.approx([accounts["compute"], accounts["memory"]])


def test_a_scene_in_which_all_is_the_ops_own_time_scales_as_without_a_tax() -> None:
    linked = SCENE.linked()
    plain = replace(linked, kernels=linked.kernels)
    assert own_parts(plain).tolist() == [1.0, 1.0, 1.0]


def test_where_the_work_alone_fills_the_step_no_factor_of_the_host_is_named() -> None:
    scene = Scene(100.0, ops=[Op(0, 90, bound="compute")], events=[Event("annotation", "train", 0, 100)], steps=1)
    (told,) = (
        each.message for each in analysis_of(scene, unprofiled=timing(80.0)).caveats if each.slug == "perturbation"
    )
    assert "the work alone fills that, and leaves nothing for the host; the work is scaled by" in told
    (told,) = (
        each.message for each in analysis_of(scene, unprofiled=timing(95.0)).caveats if each.slug == "perturbation"
    )
    assert "host-side causes are scaled by 0.5 so that" in told


def test_work_far_longer_than_whole_undisturbed_steps_is_no_evidence() -> None:
    scene = Scene(100.0, ops=[Op(0, 90, bound="compute")], events=[Event("annotation", "train", 0, 100)], steps=1)
    slow, near = (analysis_of(scene, unprofiled=timing(median)) for median in (30.0, 80.0))
    assert slow.verdict.bound == "inconclusive"
    assert "disturbed-profile" in [caveat.slug for caveat in slow.caveats]
    assert not any("record it again" in caveat.message for caveat in slow.caveats)  # the verdict ends so
    assert near.verdict.bound == "compute"
    assert "disturbed-profile" not in [caveat.slug for caveat in near.caveats]


def test_steps_that_were_held_up_without_the_profiler_do_not_stretch_the_ledger() -> None:
    linked = Scene(100.0, ops=[Op(0, 90, bound="compute")], steps=1).linked()
    left, caveats = find_held_up_timing(linked, timing(300.0))
    assert left is None and [caveat.slug for caveat in caveats] == ["held-up-timing"]
    assert caveats[0].message.startswith("a step took 300 us without the profiler and 100 us with it")
    assert find_held_up_timing(linked, timing(150.0)) == (timing(150.0), ())
    with_device = Scene(100.0, [Kernel(0, 90)], steps=1).linked()
    assert find_held_up_timing(with_device, timing(300.0)) == (timing(300.0), ())


def test_steps_that_all_took_longer_without_the_profiler_were_held_up() -> None:
    ops = [Op(100 * at, 90, bound="compute") for at in range(4)]
    linked = Scene(400.0, ops=ops, steps=4).linked()
    left, caveats = find_held_up_timing(linked, timing(125.0))
    assert left is None and [caveat.slug for caveat in caveats] == ["held-up-timing"]
    overlapping = Timing(125.0, 102.0, 140.0, 9)
    assert find_held_up_timing(linked, overlapping) == (overlapping, ())


@pytest.mark.parametrize(("light_us", "is_calm"), [(120.0, True), (500.0, False)])
def test_where_only_the_lightest_window_was_left_alone_its_steps_are_the_times(light_us: float, is_calm: bool) -> None:
    held_up = Scene(4000.0, ops=[Op(1000 * at, 990, bound="compute") for at in range(4)], steps=4).linked()
    ops = [Op(light_us * at, 0.9 * light_us, bound="compute") for at in range(4)]
    light = Scene(4 * light_us, ops=ops, steps=4).linked()
    unprofiled = Timing(900.0, 850.0, 950.0, 9)
    answer, caveats = find_held_up_timing(held_up, unprofiled, light)
    if is_calm:
        assert answer == Timing(light_us, light_us, light_us, 4)
        assert [caveat.slug for caveat in caveats] == ["contended"]
        assert "one took 900 us without the profiler and 1.00 ms with it, and 120 us" in caveats[0].message
    else:
        assert (answer, caveats) == (unprofiled, ())


def test_a_window_that_is_shorter_for_its_kept_memory_is_no_sign_of_other_programs() -> None:
    held_up = Scene(4000.0, ops=[Op(1000 * at, 990, bound="compute") for at in range(4)], steps=4).linked()
    light = Scene(1600.0, ops=[Op(400 * at, 390, bound="compute") for at in range(4)], steps=4).linked()
    unprofiled = Timing(900.0, 850.0, 950.0, 9)
    assert find_held_up_timing(held_up, unprofiled, light, 10.0)[1][0].slug == "contended"
    assert find_held_up_timing(held_up, unprofiled, light, 300.0) == (unprofiled, ())


def test_a_lightest_window_says_nothing_of_profiled_steps_that_are_as_short() -> None:
    steps = [Scene(480.0, ops=[Op(120 * at, 110, bound="compute") for at in range(4)], steps=4).linked()] * 2
    answer, caveats = find_held_up_timing(steps[0], Timing(900.0, 850.0, 950.0, 9), steps[1])
    assert answer is None and [caveat.slug for caveat in caveats] == ["held-up-timing"]


@pytest.mark.parametrize(
    ("faults_us", "touched_us"), [((30.0, 0.0), 30.0), ((900.0, 0.0), 75.0), ((30.0, 20.0), 10.0), ((30.0, 30.0), None)]
)
def test_a_step_that_is_longer_without_the_profiler_touches_the_pages_that_were_counted(
    faults_us: tuple[float, float], touched_us: float | None
) -> None:
    scene = Scene(100.0, ops=[Op(0, 100, bound="compute")], events=[Event("annotation", "train", 0, 100)], steps=1)
    linked, seen = scene.linked(), timing(175.0)
    profiled = build_ledger(linked, scene.roofline())
    result = scale_to_unprofiled(profiled, seen, own_parts(linked), None, faults_us)
    accounts = {entry.account: entry.us for entry in result.ledger.entries}
    assert accounts.get("overhead.allocator") == (None if touched_us is None else pytest.approx(touched_us))
    assert sum(accounts.values()) == pytest.approx(175.0)
    rows = result.idle[result.idle["cause"] == "allocator"]
    assert rows["us"].sum() == pytest.approx(touched_us or 0.0)
    assert rows["on_pages"].all() and {*rows["detail"]} <= {"first touch of fresh pages"}
    assert result.idle["us"].sum() == pytest.approx(75.0)


@pytest.mark.parametrize(("waits_us", "work_us"), [({}, 600.0), ({3: 4000.0, 4: 2000.0}, 682.0)])
def test_a_few_calls_of_the_lightest_window_that_waited_make_no_op_longer(
    waits_us: dict[int, float], work_us: float
) -> None:
    """Two calls of an all-reduce that waited for milliseconds doubled the time of every product of a report."""
    ops = list[Op]()
    for number in range(5):
        ops += [
            Op(10_000.0 * number, 400.0, "aten::mm", bound="compute"),
            Op(10_000.0 * number + 400.0, 200.0 + waits_us.get(number, 0.0), "c10d::allreduce_", bound="compute"),
        ]
    linked = Scene(50_000.0, ops=ops, steps=5).linked()
    in_steps = linked.ops.assign(step=pd.array([at // 2 for at in range(10)], dtype="Int32"))
    light = measure_light(replace(linked, ops=in_steps), timing(10_000.0), None)
    assert light is not None and light.us["work"] == pytest.approx(work_us, rel=0.01)
    assert sum(light.us.values()) == pytest.approx(10_000.0)
