"""Phases and ranges of hand-made scenes: they are told by marks, and share out all of the step."""

import math

import pytest

from bottleneck.analysis import phases as phases_module
from bottleneck.schema.analysis import Analysis
from bottleneck.schema.measurements import Timing
from tests.analysis.scenes import MAIN, Event, Kernel, Op, Scene, analysis_of

NODE = "autograd::engine::evaluate_function: AddmmBackward0"
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
STEP = Event("annotation", "Optimizer.step#SGD.step", 80, 15)
ENGINE = "1/2"


def phases(analysis: Analysis) -> dict[str, float]:
    assert math.fsum(phase.us for phase in analysis.phases) == pytest.approx(analysis.steps.wall_us, rel=1e-9)
    assert math.fsum(phase.share for phase in analysis.phases) == pytest.approx(1.0, rel=1e-9)
    assert all(math.fsum(phase.shares.values()) == pytest.approx(1.0) for phase in analysis.phases)
    by_row = dict.fromkeys(range(len(analysis.kernels)), 0.0)
    for phase in analysis.phases:
        assert math.fsum((*(us for _, us in phase.kernels), *phase.other_us.values())) == pytest.approx(phase.us)
        for row, us in phase.kernels:
            by_row[row] += us
    assert by_row == pytest.approx({row: kernel.us for row, kernel in enumerate(analysis.kernels)})
    return {phase.name: phase.us for phase in analysis.phases}


def trained(*kernels: Kernel, node: str = NODE, thread: str = ENGINE) -> Scene:
    """Data until 10, forward from the op at 12 to 40, backward from 40 to 75, the optimizer from 80 to 95 of 100."""
    ops = [Op(12, 20), Op(40, 15, node, thread=thread), Op(60, 15, node, thread=thread), Op(82, 5)]
    return Scene(100, kernels, ops, [Event("annotation", LOADER, 0, 10), STEP])


def test_idle_time_belongs_to_the_phase_of_the_host_at_that_time() -> None:
    scene = trained(Kernel(99, 1, launch=(97, 1)))
    assert phases(analysis_of(scene)) == pytest.approx(
        {"data": 10, "forward": 28, "backward": 35, "optimizer": 15, "other": 12}
    )


@pytest.mark.parametrize(("node", "thread"), [("AddmmBackward", ENGINE), ("torch::autograd::AccumulateGrad", MAIN)])
def test_nodes_of_old_traces_mark_the_backward_pass_too(node: str, thread: str) -> None:
    assert phases(analysis_of(trained(Kernel(99, 1, launch=(97, 1)), node=node, thread=thread)))["backward"] == 35


def test_an_op_of_the_program_between_two_nodes_ends_the_backward_pass() -> None:
    scene = trained(Kernel(99, 1, launch=(97, 1)))
    told = phases(analysis_of(Scene(100, scene.kernels, [*scene.ops, Op(56, 2)], scene.events)))
    assert (told["backward"], told["forward"]) == (30, 32)


def test_it_does_not_matter_how_many_moments_are_looked_at_together(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = trained(Kernel(20, 30, launch=(14, 1)), Kernel(99, 1, launch=(97, 1)))
    scene = Scene(100, scene.kernels, scene.ops, [*scene.events, Event("annotation", "mine", 5, 50)])
    whole = analysis_of(scene)
    monkeypatch.setattr(phases_module, "_AT_ONCE", 1)
    parts = analysis_of(scene)
    assert whole.phases and whole.ranges
    assert (parts.phases, parts.ranges) == (whole.phases, whole.ranges)


@pytest.mark.parametrize(
    ("losses", "forward"),
    [([Op(34, 2)], 19 + 6), ([], 19), ([Op(34, 1), Op(35, 1), Op(36, 1)], 6)],
    ids=["a loss behind it", "none", "more behind it than before"],
)
def test_a_loop_may_clear_its_gradients_between_the_model_and_its_loss(losses: list[Op], forward: float) -> None:
    """Twenty-one linear layers of such a loop were of no phase."""
    scene = trained(Kernel(99, 1, launch=(97, 1)))
    zeroed = Event("annotation", "Optimizer.zero_grad#SGD.zero_grad", 31, 3 if losses else 9)
    ops = [Op(12, 6), Op(20, 11), *losses, *scene.ops[1:]]
    told = phases(analysis_of(Scene(100, scene.kernels, ops, [zeroed, STEP])))
    assert told["forward"] == pytest.approx(forward)
    assert told["optimizer"] == pytest.approx(15 + zeroed.dur)


def test_ops_between_a_backward_pass_and_its_update_are_not_forward() -> None:
    passes = [Op(20, 10, NODE, thread=ENGINE), Op(60, 10, NODE, thread=ENGINE)]
    ops = [passes[0], Op(32, 2), Op(35, 2), Op(50, 8), passes[1]]
    update = Event("annotation", "Optimizer.step#SGD.step", 40, 5)
    told = phases(analysis_of(Scene(100, [Kernel(99, 1, launch=(97, 1))], ops, [update])))
    assert told == pytest.approx({"forward": 10, "backward": 20, "optimizer": 5, "other": 65})


def test_forward_and_backward_of_a_closure_are_not_the_optimizers() -> None:
    scene = trained(Kernel(99, 1, launch=(97, 1)))
    zeroed = Event("annotation", "Optimizer.zero_grad#SGD.zero_grad", 34, 4)
    step = Event("annotation", "Optimizer.step#SGD.step", 11, 84)
    told = phases(analysis_of(Scene(100, scene.kernels, scene.ops, [scene.events[0], zeroed, step])))
    assert told == pytest.approx({"data": 10, "forward": 25, "backward": 35, "optimizer": 24, "other": 6})


def test_work_belongs_to_the_phase_that_launched_it_and_collectives_to_communication() -> None:
    late = Kernel(76, 4, "compute", launch=(20, 2))
    reduced = Kernel(85, 5, "communication", kind="collective", launch=(50, 2), thread=ENGINE)
    analysis = analysis_of(trained(late, reduced))
    told = {phase.name: phase for phase in analysis.phases}
    assert told["communication"].us == 5
    assert told["forward"].shares["compute"] * told["forward"].us == pytest.approx(4)


def test_ops_of_a_cpu_belong_to_the_phase_in_which_they_begin() -> None:
    told = phases(analysis_of(trained(thread=MAIN)))
    assert told == pytest.approx({"data": 10, "forward": 28, "backward": 35, "optimizer": 15, "other": 12})


def test_what_the_profiler_does_not_explain_is_of_no_phase() -> None:
    unprofiled = Timing(200.0, 200.0, 200.0, 5)
    assert phases(analysis_of(trained(Kernel(5, 1)), unprofiled=unprofiled))["other"] > 50


def test_names_that_a_program_gives_its_phases_are_marks() -> None:
    marks = [Event("annotation", "## forward ##", 0, 40), Event("annotation", "backward", 40, 60)]
    assert phases(analysis_of(Scene(100, [Kernel(99, 1, launch=(97, 1))], [Op(1, 1)], marks))) == {
        "forward": 40,
        "backward": 60,
    }


def test_a_program_without_marks_has_no_phases_and_no_ranges() -> None:
    analysis = analysis_of(Scene(100, [Kernel(10, 20, launch=(2, 2))], [Op(0, 50)]))
    assert (analysis.phases, analysis.ranges) == ((), ())


def test_a_range_holds_its_time_with_and_without_the_ranges_inside_it() -> None:
    outer, inner = Event("annotation", "outer", 0, 60), Event("annotation", "inner", 20, 20)
    work = Kernel(70, 10, "compute", launch=(30, 2))
    analysis = analysis_of(Scene(100, [work, Kernel(90, 10, launch=(85, 2))], events=[outer, inner]))
    told = {each.name: (each.us, each.self_us, each.calls) for each in analysis.ranges}
    # From 32 on the work was queued: idle time before it belongs to the range that launched it.
    assert told == {"outer": (80, 20, 1), "inner": (60, 60, 1)}
    assert analysis.ranges[1].shares["compute"] == pytest.approx(10 / 60)


def test_a_range_inside_one_of_its_name_is_counted_once() -> None:
    ranges = [Event("annotation", "block", 0, 60), Event("annotation", "block", 20, 20)]
    (told,) = analysis_of(Scene(100, [Kernel(99, 1)], events=ranges)).ranges
    assert (told.us, told.self_us, told.calls) == (60, 60, 2)


def test_the_backward_pass_works_for_the_range_of_the_main_thread() -> None:
    work = Kernel(70, 10, launch=(30, 2), thread=ENGINE)
    (told,) = analysis_of(Scene(100, [work], events=[Event("annotation", "train", 0, 60)])).ranges
    assert told.us == 80


@pytest.mark.parametrize("name", ["ProfilerStep#3", "nccl:all_reduce", "Torch-Compiled Region: 0/0"])
def test_marks_of_pytorch_are_no_ranges_of_the_program(name: str) -> None:
    assert analysis_of(Scene(100, [Kernel(50, 10)], events=[Event("annotation", name, 0, 100)])).ranges == ()
