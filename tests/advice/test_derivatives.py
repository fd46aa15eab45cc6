"""Rule of derivatives that take a backward pass for each of their components."""

from pathlib import Path

from bottleneck.advice.derivatives import derivative_by_component
from bottleneck.schema.evidence import Evidence
from tests.advice.cases import program_line, two_steps
from tests.builders import frame, op

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
