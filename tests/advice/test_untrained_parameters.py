"""Rule of gradients for parameters that nothing trains."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bottleneck.advice.quantities import smallest_op_us
from bottleneck.advice.ranking import Draft
from bottleneck.advice.untrained_parameters import untrained_parameters
from bottleneck.schema.measurements import SpareGradients
from bottleneck.schema.records import replace
from tests.advice.cases import case_of, program_line
from tests.advice.test_tensor_values import looked_at
from tests.builders import Event, complete, frame, in_graph, op, step

NODE = "autograd::engine::evaluate_function: AddmmBackward0"
SPARE = SpareGradients(
    parameters=2, numbers=64, trained=2, modules=("Net.encoder",), calls=("Encoder_0",), source="train.py:12"
)


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


def most_in_ops(draft: Draft) -> float:
    """The upper end without the Python between ops, and what autograd records there."""
    assert draft.gain_us is not None
    return draft.gain_us.high - draft.claims.get("overhead.python", 0.0)


def test_gradients_of_parameters_that_no_optimizer_has_are_worth_their_backward_pass(tmp_path: Path) -> None:
    case = case_of(tmp_path, training(), unprofiled_us=99.0)
    draft = untrained_parameters(looked_at(case, spare=SPARE))
    assert draft is not None and draft.gain_us is not None and draft.comes_first
    assert 0.9 * 50 < draft.gain_us.low < most_in_ops(draft) <= 70
    # Of the Python between two ops per step, half may be autograd's; its node takes 7 of the smallest ops at most.
    smallest_us = smallest_op_us(case)
    unseen_us = case.account_us("overhead.python") / 2 + 7 * smallest_us
    assert draft.gain_us.high == pytest.approx(draft.gain_us.low / 0.9 + unseen_us, rel=0.02)
    assert "Net.encoder" in draft.advice and "at train.py:12" in draft.advice


def test_a_module_whose_input_needs_a_gradient_keeps_a_part_of_its_backward_pass(tmp_path: Path) -> None:
    case = case_of(tmp_path, training(), unprofiled_us=99.0)
    whole, part = (
        untrained_parameters(looked_at(case, spare=replace(SPARE, passes_on=each))) for each in (False, True)
    )
    assert whole is not None and whole.gain_us is not None and part is not None and part.gain_us is not None
    assert part.gain_us.low == pytest.approx(whole.gain_us.low / 3)
    assert part.gain_us.high == pytest.approx(whole.gain_us.low / 0.9 * 0.6)


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
    assert 0.9 * 450 <= draft.gain_us.low < most_in_ops(draft) <= 500 < draft.gain_us.high
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
    assert through.gain_us.high < alone.gain_us.high * 0.7


def test_momentum_of_the_same_size_resets_no_gradient(tmp_path: Path) -> None:
    momentum = [op("aten::mul_", 980, 5, dims=[TEACHER, []])]
    draft = untrained_parameters(case_of(tmp_path, distilling(beside=momentum), unprofiled_us=1000.0))
    assert draft is not None and "Freeze Teacher_0" in draft.advice
    outside = distilling(beside=[op("aten::mul_", 940, 5, dims=[TEACHER, []])])
    assert untrained_parameters(case_of(tmp_path / "outside", outside, unprofiled_us=1000.0)) is None


def test_gradients_that_start_anew_are_unread_where_no_optimizer_has_their_sizes(tmp_path: Path) -> None:
    draft = untrained_parameters(case_of(tmp_path, distilling(added="aten::detach"), unprofiled_us=1000.0))
    assert draft is not None and draft.advice.startswith("Detach the output of Teacher_0")
    assert "If nothing trains it, freeze it" in draft.advice


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


WIDE, SHARED = [64, 128], [64, 32]


def layer_backward(at: float, sequence: int, size: Sequence[int], products: int = 2) -> list[Event]:
    """A layer's backward pass of 200 us, with so many products, and its gradient that starts anew."""
    part = 150 / products
    return [
        in_graph(op(NODE, at, 160), sequence, 1),
        *(op("aten::mm", at + 2 + part * place, part - 2, dims=[[64, 64], size]) for place in range(products)),
        op(SUM, at + 162, 30),
        op("torch::autograd::AccumulateGrad", at + 163, 28, dims=[size]),
        op("aten::detach", at + 165, 20, dims=[size]),
    ]


def optimizer_step(at: float, *sizes: Sequence[int]) -> list[Event]:
    """The step of an optimizer that updates parameters of these sizes one by one."""
    updates = [op("aten::addcdiv_", at + 5 + 10 * place, 8, dims=[size] * 3) for place, size in enumerate(sizes)]
    return [complete("Optimizer.step#Adam.step", "user_annotation", at, 90), *updates]


def critic_round(
    at: float, sequence: int, *, updates: Sequence[Sequence[int]] = (SHARED, [64]), products: int = 1
) -> list[Event]:
    """A step of a critic of 1 ms on what a generator of two layers makes, whose backward pass is 400 us of it."""
    critic, first, last = sequence + 3, sequence + 1, sequence + 2
    return [
        program_line(20, at + 1, 60),
        frame("nn.Module: Generator_0", at + 2, 56),
        frame("nn.Module: Linear_0", at + 3, 24),
        in_graph(op("aten::addmm", at + 4, 20, dims=[SHARED] * 3), first, 0),
        frame("nn.Module: Linear_1", at + 30, 24),
        in_graph(op("aten::addmm", at + 31, 20, dims=[WIDE] * 3), last, 0),
        program_line(21, at + 65, 30),
        frame("nn.Module: Critic_0", at + 66, 28),
        in_graph(op("aten::addmm", at + 67, 20, dims=[SHARED] * 3), critic, 0),
        op("aten::sum", at + 100, 5, dims=[[3]]),
        program_line(22, at + 110, 800),
        in_graph(op(NODE, at + 111, 60), critic, 1),
        op("aten::mm", at + 112, 50, dims=[[64, 64], SHARED]),
        *(
            event
            for place, size in enumerate((SHARED, [64]))
            for event in (
                op(SUM, at + 172 + 20 * place, 18),
                op("torch::autograd::AccumulateGrad", at + 173 + 20 * place, 16, dims=[size]),
                op("aten::detach", at + 174 + 20 * place, 10, dims=[size]),
            )
        ),
        *layer_backward(at + 250, last, WIDE),
        *layer_backward(at + 450, first, SHARED, products),
        *optimizer_step(at + 905, *updates),
    ]


def generator_round(at: float, sequence: int) -> list[Event]:
    """A step of the generator itself, of 1 ms."""
    return [
        program_line(30, at + 1, 60),
        frame("nn.Module: Generator_0", at + 2, 56),
        frame("nn.Module: Linear_0", at + 3, 24),
        in_graph(op("aten::addmm", at + 4, 20, dims=[SHARED] * 3), sequence + 1, 0),
        frame("nn.Module: Linear_1", at + 30, 24),
        in_graph(op("aten::addmm", at + 31, 20, dims=[WIDE] * 3), sequence + 2, 0),
        program_line(32, at + 110, 800),
        *layer_backward(at + 250, sequence + 2, WIDE),
        *layer_backward(at + 450, sequence + 1, SHARED, products=1),
        *optimizer_step(at + 905, SHARED, WIDE),
    ]


def adversarial(rounds: str, **critic: Any) -> list[Event]:
    """Steps of a critic ("c") and of the generator ("g") in this order."""
    events: list[Event] = [frame("train.py(1): <module>", 0, 1000 * len(rounds) + 10)]
    for number, kind in enumerate(rounds):
        at, sequence = 1000 * number, 10 * number
        events.append(step(number, at, 999))
        events += critic_round(at, sequence, **critic) if kind == "c" else generator_round(at, sequence)
    return events


@pytest.mark.parametrize("rounds", ["ccc", "cgc"])
def test_a_generator_whose_output_a_critic_learns_from_is_to_be_detached(tmp_path: Path, rounds: str) -> None:
    """Some of its sizes are the critic's too, and its own step reads what its own backward pass made."""
    draft = untrained_parameters(case_of(tmp_path, adversarial(rounds), unprofiled_us=1000.0))
    assert draft is not None and draft.gain_us is not None
    assert draft.advice.startswith("Detach the output of Generator_0 at train.py:20 with .detach()")
    assert draft.places == ("train.py:20",) and draft.comes_first and draft.removes
    part = rounds.count("c") / len(rounds)
    assert 0.9 * 350 * part <= draft.gain_us.low < most_in_ops(draft) <= 400 * part


def test_a_network_that_another_one_learns_through_is_to_be_switched_off(tmp_path: Path) -> None:
    """Its first layer makes the gradient of its input, so that a part of its backward pass stays."""
    ends, through = (
        untrained_parameters(
            case_of(tmp_path / str(products), adversarial("ccc", products=products), unprofiled_us=1e3)
        )
        for products in (1, 2)
    )
    assert ends is not None and ends.gain_us is not None and through is not None and through.gain_us is not None
    assert through.advice.startswith("Switch the parameters of Generator_0 off") and "train.py:20" in through.advice
    assert through.gain_us.low < 0.5 * ends.gain_us.low and through.gain_us.high < 0.75 * ends.gain_us.high
    assert not through.removes


def attacked(at: float, sequence: int) -> list[Event]:
    """A step that trains a network of two layers on inputs that its gradient moved before: a pass of 400 us each."""

    def forward(begin: float, first: int) -> list[Event]:
        return [
            frame("nn.Module: Net_0", begin, 20),
            frame("nn.Module: Linear_0", begin + 1, 8),
            in_graph(op("aten::addmm", begin + 2, 6, dims=[SHARED] * 3), first, 0),
            frame("nn.Module: Linear_1", begin + 10, 8),
            in_graph(op("aten::addmm", begin + 11, 6, dims=[WIDE] * 3), first + 1, 0),
        ]

    passes = ((20, 22, 2.0, sequence), (30, 32, 460.0, sequence + 2))
    return [
        event
        for line, backward, begin, first in passes
        for event in (
            program_line(line, at + begin, 22),
            *forward(at + begin + 1, first),
            program_line(backward, at + begin + 25, 410),
            *layer_backward(at + begin + 30, first + 1, WIDE),
            *layer_backward(at + begin + 230, first, SHARED),
        )
    ] + optimizer_step(at + 905, SHARED, WIDE)


def test_an_attack_takes_the_gradient_of_its_input_alone(tmp_path: Path) -> None:
    """Its backward pass made all gradients of the network, which the training's own pass makes anew."""
    events: list[Event] = [frame("train.py(1): <module>", 0, 3010)]
    for number in range(3):
        events += [step(number, 1000.0 * number, 999), *attacked(1000.0 * number, 10 * number)]
    draft = untrained_parameters(case_of(tmp_path, events, unprofiled_us=1000.0))
    assert draft is not None and draft.gain_us is not None
    assert draft.advice.startswith("Take the gradient of the input alone, with torch.autograd.grad(loss, x)")
    assert "Net_0 at train.py:20" in draft.advice and 0 < draft.gain_us.low < most_in_ops(draft) < 0.62 * 400


def test_an_output_to_detach_goes_before_a_network_to_switch_off(tmp_path: Path) -> None:
    """The critic's gradients from another line are dropped too, and its first layer makes that of its input."""
    events = adversarial("ccc")
    for number in range(3):
        at, critic = 1000 * number, 10 * number + 4
        events += [frame("nn.Module: Critic_0", at + 103, 6), program_line(40, at + 660, 230)]
        events.append(in_graph(op("aten::addmm", at + 104, 4, dims=[SHARED] * 3), critic, 0))
        events += layer_backward(at + 665, critic, [64, 96])
    draft = untrained_parameters(case_of(tmp_path, events, unprofiled_us=1000.0))
    assert draft is not None and draft.advice.startswith("Detach the output of Generator_0 at train.py:20")
    assert "Critic_0" not in draft.evidence[0]


@pytest.mark.parametrize(
    "events",
    [
        adversarial("ccc", updates=(SHARED, [64], SHARED, WIDE)),
        adversarial("ggg"),
        [*adversarial("ccc"), *(op("aten::add", 1000 * n + 880, 5, dims=[WIDE, WIDE, []]) for n in range(3))],
    ],
    ids=["one optimizer for both", "its own step", "combined"],
)
def test_gradients_that_a_step_reads_in_time_are_left_alone(tmp_path: Path, events: list[Event]) -> None:
    assert untrained_parameters(case_of(tmp_path, events, unprofiled_us=1000.0)) is None


def test_a_vector_outside_as_long_as_a_small_gradient_hides_no_network(tmp_path: Path) -> None:
    """The labels of a batch of 64 had as many numbers as the batch norm of a generator."""
    events = adversarial("ccc")
    for number in range(3):
        at = 1000 * number
        events += [op(SUM, at + 443, 6), op("torch::autograd::AccumulateGrad", at + 444, 4, dims=[[48]])]
        events += [op("aten::detach", at + 445, 2, dims=[[48]]), op("aten::add", at + 880, 5, dims=[[48], [48], []])]
    draft = untrained_parameters(case_of(tmp_path, events, unprofiled_us=1000.0))
    assert draft is not None and draft.advice.startswith("Detach the output of Generator_0 at train.py:20")
    assert "3 gradients of Generator_0" in draft.evidence[0]


def test_a_step_that_reads_more_than_the_critic_has_spares_the_layer(tmp_path: Path) -> None:
    """The optimizer has one of the generator's layers too: only the other one's gradients are thrown away."""
    events = adversarial("ccc", updates=(SHARED, [64], SHARED))
    draft = untrained_parameters(case_of(tmp_path, events, unprofiled_us=1000.0))
    assert draft is not None and "Generator_0.Linear_1" in draft.advice
