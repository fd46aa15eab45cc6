"""Rule of gradients for parameters that nothing trains."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from bottleneck.advice.untrained_parameters import untrained_parameters
from bottleneck.schema.measurements import SpareGradients
from bottleneck.schema.records import replace
from tests.advice.cases import case_of
from tests.advice.test_tensor_values import looked_at
from tests.builders import Event, complete, frame, op, step

NODE = "autograd::engine::evaluate_function: AddmmBackward0"
SPARE = SpareGradients(
    parameters=2, numbers=64, trained=2, modules=("Net.encoder",), calls=("Encoder_0",), source="train.py:12"
)


def in_graph(event: Event, sequence: int, forward_thread: int) -> Event:
    """The op with its place in autograd's order."""
    event["args"] |= {"Sequence number": sequence, "Fwd thread id": forward_thread}
    return event


def training(module: str = "Encoder_0") -> list[Event]:
    """Two steps with an op in a module, and its backward pass of 60 us of 100."""
    events: list[Event] = [frame("train.py(12): train", 0, 210)]
    for number in range(2):
        at, index = 100 * number, number + 1
        events += [
            step(number, at, 99),
            frame(f"nn.Module: {module}", at + 1, 25),
            in_graph(op("aten::addmm", at + 2, 20, dims=[[8, 8], [8, 8], []]), index, 0),
            in_graph(op(NODE, at + 30, 60), index, 1),
            op("aten::mm", at + 32, 55, dims=[[8, 8], [8, 8]]),
        ]
    return events


def test_gradients_of_parameters_that_no_optimizer_has_are_worth_their_backward_pass(tmp_path: Path) -> None:
    case = case_of(tmp_path, training(), unprofiled_us=99.0)
    draft = untrained_parameters(looked_at(case, spare=SPARE))
    assert draft is not None and draft.gain_us is not None and draft.comes_first
    assert 0.9 * 50 < draft.gain_us.low < draft.gain_us.high <= 70
    assert "Net.encoder" in draft.advice and "at train.py:12" in draft.advice


def test_a_module_whose_input_needs_a_gradient_keeps_a_part_of_its_backward_pass(tmp_path: Path) -> None:
    case = case_of(tmp_path, training(), unprofiled_us=99.0)
    whole, part = (
        untrained_parameters(looked_at(case, spare=replace(SPARE, passes_on=each))) for each in (False, True)
    )
    assert whole is not None and whole.gain_us is not None and part is not None and part.gain_us is not None
    assert part.gain_us.low == pytest.approx(whole.gain_us.low / 3)
    assert part.gain_us.high == pytest.approx(whole.gain_us.high * 0.6)


def test_a_backward_pass_of_other_modules_is_left_alone(tmp_path: Path) -> None:
    case = case_of(tmp_path, training("Head_0"), unprofiled_us=99.0)
    assert untrained_parameters(looked_at(case, spare=SPARE)) is None
    assert untrained_parameters(looked_at(case)) is None


SUM = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
STUDENT, TEACHER = [64, 32], [64, 128]


def distilling(
    order: Sequence[str] = ("Student_0", "Teacher_0"),
    *,
    added: str = "aten::add_",
    stepped: Sequence[Sequence[int]] = (STUDENT,),
    beside: Sequence[Event] = (),
    inputs: int = 1,
    steps: int = 2,
) -> list[Event]:
    """Steps of 1 ms with two networks, of which only the student's gradients start anew; backward in this order.

    The teacher's backward pass takes 500 us, with so many products in its first layer's node.
    """
    events: list[Event] = [frame("train.py(12): train", 0, 1000 * steps + 10)]
    for number in range(steps):
        at, sequence = 1000 * number, 10 * number
        events.append(step(number, at, 999))
        forward = 2
        places = {}
        for place, module in enumerate(reversed(order)):
            places[module] = sequence + place + 1
            events.append(frame(f"nn.Module: {module}", at + forward, 95))
            events.append(in_graph(op("aten::addmm", at + forward + 1, 90, dims=[TEACHER] * 3), places[module], 0))
            forward += 100
        events.append(op("aten::sum", at + forward, 5, dims=[[64]]))
        backward = at + forward + 10
        for module in order:
            sizes, us = ([STUDENT, [8]], 100) if module == "Student_0" else ([TEACHER], 500)
            events.append(in_graph(op(NODE, backward, us - 42), places[module], 1))
            part, factors = (us - 50) / inputs, [sizes[0], sizes[0]]
            events += [op("aten::mm", backward + 2 + part * number, part - 2, dims=factors) for number in range(inputs)]
            kind = "aten::detach" if module == "Student_0" else added
            for place, size in enumerate(sizes):
                at_us = backward + us - 41 + 20 * place
                events += [op(SUM, at_us, 18), op("torch::autograd::AccumulateGrad", at_us + 1, 16, dims=[size])]
                events.append(op(kind, at_us + 2, 10, dims=[size, size, []]))
            backward += us
        events.append(complete("Optimizer.step#SGD.step", "user_annotation", at + 950, 40))
        events.append(op("aten::_foreach_add_", at + 955, 20, dims=[[*stepped, [8]], [*stepped, [8]], []]))
        events += [event | {"ts": event["ts"] + at} for event in beside]
    return events


def test_a_backward_pass_whose_gradients_pile_up_unread_need_not_run(tmp_path: Path) -> None:
    draft = untrained_parameters(case_of(tmp_path, distilling(), unprofiled_us=1000.0))
    assert draft is not None and draft.gain_us is not None and draft.comes_first
    assert 0.9 * 450 <= draft.gain_us.low < draft.gain_us.high <= 500
    assert "Freeze Teacher_0" in draft.advice and "at train.py:12" not in draft.advice
    assert "in train() (train.py:12) under torch.no_grad()" in draft.advice
    assert draft.evidence[0].startswith("1 gradient of Teacher_0") and "64x128" in draft.evidence[0]


def test_a_network_that_gradients_pass_through_keeps_a_part_of_its_backward_pass(tmp_path: Path) -> None:
    """Before the student's backward pass, it may be what computes the gradient of the student's output."""
    order = ("Teacher_0", "Student_0")
    alone = untrained_parameters(case_of(tmp_path / "alone", distilling(order), unprofiled_us=1000.0))
    through = untrained_parameters(case_of(tmp_path / "through", distilling(order, inputs=2), unprofiled_us=1000.0))
    assert alone is not None and alone.gain_us is not None and through is not None and through.gain_us is not None
    assert through.gain_us.low == pytest.approx(alone.gain_us.low / 3, rel=0.02)
    assert through.gain_us.high == pytest.approx(alone.gain_us.high * 0.6, rel=0.02)


def test_momentum_of_the_same_size_resets_no_gradient(tmp_path: Path) -> None:
    momentum = [op("aten::mul_", 980, 5, dims=[TEACHER, []])]
    draft = untrained_parameters(case_of(tmp_path, distilling(beside=momentum), unprofiled_us=1000.0))
    assert draft is not None and "Freeze Teacher_0" in draft.advice
    outside = distilling(beside=[op("aten::mul_", 940, 5, dims=[TEACHER, []])])
    assert untrained_parameters(case_of(tmp_path / "outside", outside, unprofiled_us=1000.0)) is None


def test_gradients_that_start_anew_are_unread_where_no_optimizer_has_their_sizes(tmp_path: Path) -> None:
    draft = untrained_parameters(case_of(tmp_path, distilling(added="aten::detach"), unprofiled_us=1000.0))
    assert draft is not None and "Freeze Teacher_0" in draft.advice


@pytest.mark.parametrize(
    "events",
    [
        distilling(added="aten::detach", stepped=(STUDENT, TEACHER)),
        distilling(stepped=(), beside=[op("aten::_foreach_zero_", 940, 5, dims=[[TEACHER]])]),
        distilling(added="aten::detach", beside=[op("aten::_foreach_norm", 940, 5, dims=[[STUDENT, TEACHER], []])]),
        distilling(("Teacher_0",)),
        distilling(steps=1),
        distilling(added="aten::detach", stepped=()),
        [event for event in distilling() if "Optimizer" not in event["name"]],
    ],
    ids=["stepped", "reset", "clipped", "alone", "one step", "sizes unknown", "no optimizer"],
)
def test_gradients_that_something_uses_are_left_alone(tmp_path: Path, events: list[Event]) -> None:
    assert untrained_parameters(case_of(tmp_path, events, unprofiled_us=1000.0)) is None
