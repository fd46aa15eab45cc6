"""Rule of derivatives that take a backward pass for each of their components."""

from pathlib import Path

import pytest

from bottleneck.advice.derivatives import derivative_by_component, gradients_apart
from bottleneck.advice.untrained_parameters import ACCUMULATES
from bottleneck.schema.evidence import Evidence
from tests.advice.cases import case_of, program_line, two_steps
from tests.advice.test_untrained_parameters import NODE, in_graph
from tests.builders import Event, frame, op, step

GRAD = "rows.append(torch.autograd.grad(y[i], x, create_graph=True)[0])"


def passes(folder: Path, count: int, text: str = GRAD) -> Evidence:
    """So many backward passes of 80 us at train.py:11, and a product at train.py:14."""
    name = "<built-in method run_backward of torch._C._EngineBase object at 0x7>"
    events = [program_line(14, 900, 90), op("aten::mm", 910, 70, dims=[[64, 64], [64, 64]])]
    for number in range(count):
        at = 100.0 + 100 * number
        events += [
            program_line(11, at, 90),
            frame(name, at + 5, 80),
            op("aten::mul", at + 10, 60, dims=[[64, 64], [64, 64]]),
        ]
    return two_steps(folder, events, source_texts={"train.py:11": text})


def test_a_derivative_by_component_is_to_be_taken_at_once(tmp_path: Path) -> None:
    draft = derivative_by_component(passes(tmp_path, 6))
    assert draft is not None and draft.gain_us is not None and draft.removes
    assert "at train.py:11" in draft.advice and "6 backward passes" in draft.evidence[0]
    assert 300 < draft.gain_us.high <= 400 and 90 < draft.gain_us.low < 130


def test_few_passes_and_those_of_losses_are_left_alone(tmp_path: Path) -> None:
    assert derivative_by_component(passes(tmp_path / "few", 2)) is None
    assert derivative_by_component(passes(tmp_path / "loss", 6, "loss.backward()")) is None


GRAD_FRAME = "torch/autograd/__init__.py(470): grad"


@pytest.mark.parametrize("text", ["grad = torch.autograd.grad(loss, fast)", "g = grad(self.loss_of, weights)"])
def test_the_gradient_of_a_loss_in_each_round_is_no_component(tmp_path: Path, text: str) -> None:
    assert derivative_by_component(passes(tmp_path, 8, text)) is None


def through(at: float, us: float, numbers: list[int]) -> list[Event]:
    """A backward pass through the nodes of these numbers, in equal parts."""
    part = us / len(numbers)
    return [
        event
        for place, number in enumerate(numbers)
        for event in (
            in_graph(op(NODE, at + part * place, part - 2), number, 1),
            op("aten::mm", at + part * place + 1, part - 4, dims=[[64, 64], [64, 64]]),
        )
    ]


def asking(folder: Path, second: list[int], *, is_grad: bool = True) -> Evidence:
    """Steps of a forward op, two gradients that each make a node, and the backward pass through all of these."""
    name = GRAD_FRAME if is_grad else GRAD_FRAME.replace("grad", "backward")
    events = [frame("train.py(1): <module>", 0, 2000)]
    for at in (0, 1000):
        first = at // 10 + 5
        body = [
            step(at // 1000, 0, 999),
            program_line(10, 1, 48),
            in_graph(op("aten::addmm", 2, 40, dims=[[64], [64, 64], [64, 64]]), first, 0),
            program_line(11, 50, 450),
            frame(name, 60, 200),
            *through(70, 180, [first]),
            in_graph(op("aten::mul", 255, 3, dims=[[64, 64], [64, 64]]), first + 1, 0),
            frame(name, 270, 200),
            *through(280, 180, [first + number for number in second]),
            in_graph(op("aten::mul", 465, 3, dims=[[64, 64], [64, 64]]), first + 2, 0),
            program_line(12, 500, 450),
            *through(510, 420, [first + 2, first + 1, first]),
        ]
        events += [event | {"ts": event["ts"] + at} for event in body]
    return case_of(folder, events, unprofiled_us=1000.0)


def test_gradients_of_one_output_are_to_be_asked_for_together(tmp_path: Path) -> None:
    """The second pass of 180 us, and the third of the last one that goes through what the second has made."""
    draft = gradients_apart(asking(tmp_path, [0]))
    assert draft is not None and draft.gain_us is not None
    assert draft.gain_us.high == pytest.approx(180 + 140, abs=15)
    assert 0.85 * draft.gain_us.high < draft.gain_us.low < draft.gain_us.high
    assert "in one call at train.py:11" in draft.advice and "1 call of" in draft.evidence[0]


def without_calls(folder: Path, closures: int, *, is_grad: bool = True) -> Evidence:
    """One step, of many closures as LBFGS calls them, without Python calls: two passes from one output in each."""
    events = [step(0, 0, 1000 * closures - 1)]
    for number in range(closures):
        first, at = 5 + 100 * number, 1000.0 * number
        adds = [] if is_grad else [op(ACCUMULATES, 252, 2), op(ACCUMULATES, 462, 2)]
        body = [
            in_graph(op("aten::addmm", 2, 40, dims=[[64], [64, 64], [64, 64]]), first, 0),
            *through(70, 180, [first + 1, first]),
            in_graph(op("aten::mul", 247.2, 0.5, dims=[[64, 64], [64, 64]]), first + 2, 0),
            *through(280, 180, [first + 1, first]),
            in_graph(op("aten::mul", 457.2, 0.5, dims=[[64, 64], [64, 64]]), first + 3, 0),
            *adds,
            *through(510, 420, [first + 3, first + 2, first]),
            op(ACCUMULATES, 940, 10),
        ]
        events += [event | {"ts": event["ts"] + at} for event in body]
    return case_of(folder, events, unprofiled_us=1000.0 * closures)


def test_without_python_calls_the_order_of_the_nodes_tells_the_passes_apart(tmp_path: Path) -> None:
    """What a pass makes is told by its time: the third pass goes through it."""
    draft = gradients_apart(without_calls(tmp_path, 8))
    assert draft is not None and draft.gain_us is not None and draft.removes
    assert draft.gain_us.high == pytest.approx(8 * (180 + 140), rel=0.1)
    assert "8 calls of torch.autograd.grad per step go through" in draft.evidence[0]


def test_passes_that_add_to_gradients_are_those_of_losses(tmp_path: Path) -> None:
    assert gradients_apart(without_calls(tmp_path, 2, is_grad=False)) is None


def test_gradients_of_other_outputs_and_backward_passes_are_left_alone(tmp_path: Path) -> None:
    assert gradients_apart(asking(tmp_path / "other", [1])) is None
    assert gradients_apart(asking(tmp_path / "losses", [0], is_grad=False)) is None
