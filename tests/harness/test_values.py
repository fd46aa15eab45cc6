"""The look at the values of tensors in the host's memory."""

from pathlib import Path
from typing import Any

import pytest

from bottleneck.harness.module_paths import gradient_of
from bottleneck.harness.values import ValueLook, line_of_buffer, line_that_makes
from bottleneck.schema.measurements import ValuesLook
from tests.harness.driver import record

torch: Any = pytest.importorskip("torch")


def values_of(*calls: Any, module: Any = None) -> ValuesLook:
    """What a look at these inputs of a module finds."""
    look = ValueLook()
    look.start(torch)
    assert look.is_on
    for each in calls:
        (module or torch.nn.Identity())(each)
    look.stop()
    found = look.result()
    assert found is not None and not look.is_on
    return found


def test_subnormal_numbers_in_inputs_are_counted_by_their_bits() -> None:
    numbers = torch.ones(100, 10)
    numbers[:20] = 1e-40
    numbers[20:30] = 0.0
    given, got = (each for each in values_of(numbers).odd if each.place != "variable")
    assert (given.place, given.name, given.sizes) == ("input", "Identity", (100, 10)) and got.place == "output"
    assert given.subnormal_share == pytest.approx(0.2) and given.nan_share == 0


@pytest.mark.parametrize(("dtype", "tiny"), [("float32", 1e-39), ("float64", 1e-310), ("bfloat16", 1e-39)])
def test_all_kinds_of_floating_point_numbers_are_told_apart_from_zero(dtype: str, tiny: float) -> None:
    numbers = torch.tensor([1.0, -1e-30, tiny, -tiny, 0.0, -0.0, 3e38, -3e38] * 20, dtype=getattr(torch, dtype))
    assert values_of(numbers).odd[0].subnormal_share == pytest.approx(0.25)


def test_normal_numbers_zeros_and_infinities_are_not_odd_and_nan_is() -> None:
    assert values_of(torch.tensor([0.0, 1.0, float("inf"), -1e-37] * 20)).odd == ()
    found = values_of(torch.tensor([0.0, float("nan")] * 40)).odd[0]
    assert (found.subnormal_share, found.nan_share) == (0.0, 0.5)


def test_large_matrices_of_which_next_to_nothing_is_not_zero_are_told() -> None:
    links, dense, empty = torch.zeros(400, 400), torch.ones(400, 400), torch.zeros(500, 400)
    links[::40] = 0.5
    found = values_of(links, dense, empty, torch.zeros(8, 8)).zeros
    assert [each.sizes for each in found] == [(400, 400)]
    assert found[0].zero_share == pytest.approx(0.975, abs=0.005)


def test_a_look_at_a_buffer_in_the_middle_of_a_graph_does_not_warn() -> None:
    """The memory of a temporal graph network: torch warned of it in the program's output, with our line."""
    module = torch.nn.Module()
    module.register_buffer("memory", torch.ones(8, requires_grad=True) * 2)
    look = ValueLook()
    look.look_at_rest(torch)  # warnings are errors here
    assert gradient_of(module.memory) is None
    module.memory.retain_grad()
    module.memory.sum().backward()
    assert gradient_of(module.memory) is not None


def test_a_mask_of_flags_is_told_and_a_matrix_of_several_names_is_told_once() -> None:
    mask = torch.eye(400, dtype=torch.bool)[None]
    (found,) = values_of(mask, mask.view(400, 400)).zeros
    assert (found.sizes, found.place) == ((400, 400), "variable")
    assert found.zero_share == pytest.approx(0.9975, abs=0.001)
    mask = ~mask
    assert values_of(mask, torch.ones(70)).zeros == ()


def test_a_part_of_a_large_tensor_stands_for_it_whatever_its_layout() -> None:
    numbers = torch.ones(1024, 1024)
    numbers[:, 512:] = 1e-42
    for each in (numbers, numbers.t(), numbers[:, ::2]):
        found = values_of(each)
        assert found.odd[0].subnormal_share == pytest.approx(0.5, abs=0.02) and found.numbers < 400_000


def test_integers_and_few_numbers_are_not_looked_at() -> None:
    look = ValueLook()
    look.start(torch)
    torch.nn.Identity()(torch.arange(1000))
    torch.nn.Identity()(torch.ones(3) * 1e-40)
    look.stop()
    assert look.result() is None


def test_a_look_that_has_taken_its_time_ends() -> None:
    now = iter(range(1000))
    look = ValueLook(clock=lambda: float(next(now)))
    look.start(torch)
    for _ in range(5):
        torch.nn.Identity()(torch.ones(100) * 1e-40)
    look.stop()
    found = look.result()
    assert found is not None and found.numbers == 100


PROGRAM = """
import torch
import torch.nn as nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.head = nn.Linear(64, 64), nn.Linear(64, 64)
        self.register_buffer("decay", torch.full((64, 64), 1e-41))

    def forward(self, x):
        hidden = self.encoder(x)
        tiny = hidden * self.decay
        return self.head(hidden + tiny)


trace = torch.full((32, 64), 1e-40)
net = Net()
optimizer = torch.optim.SGD(net.head.parameters(), lr=0.1)
for _ in range(600):
    optimizer.zero_grad()
    net(torch.randn(64, 64)).square().mean().backward()
    optimizer.step()
print(float(net.head.weight.sum()))
"""


def test_a_recording_keeps_odd_tensors_with_their_lines_and_gradients_that_nobody_uses(tmp_path: Path) -> None:
    run = record(tmp_path, PROGRAM, "--steps", "2")
    assert run.status == 0 and run.recording.values is not None
    odd = {(each.place, each.name): each.source for each in run.recording.values.odd}
    assert odd[("buffer", "Net.decay")] == "program.py:9"
    assert odd[("variable", "trace")] == "program.py:17"
    assert odd[("variable", "tiny")] == "program.py:14"
    spare = run.recording.values.spare
    assert spare is not None and (spare.parameters, spare.trained) == (2, 2)
    assert spare.modules == ("Net.encoder",) and spare.calls == ("Linear_0",)
    assert spare.source == "program.py:12" and not spare.passes_on
    assert run.recording.source_texts["program.py:17"].startswith("trace = torch.full(")


def test_parameters_that_an_optimizer_or_the_program_changes_are_no_spare_ones(tmp_path: Path) -> None:
    by_hand = PROGRAM.replace(
        "    optimizer.step()",
        "    optimizer.step()\n    for each in net.encoder.parameters():\n        each.data.sub_(0.1 * each.grad)",
    )
    run = record(tmp_path, by_hand, "--steps", "2")
    assert run.recording.values is not None and run.recording.values.spare is None


def test_a_program_without_steps_is_looked_at_at_its_end(tmp_path: Path) -> None:
    program = """
        import torch

        class Filter:
            def __init__(self):
                self.state = torch.full((64, 64), 1e-42)

        kept = Filter()
        print(float((kept.state @ kept.state).sum()))
    """
    run = record(tmp_path, program)
    assert run.recording.values is not None
    (odd,) = run.recording.values.odd
    assert (odd.place, odd.name, odd.source) == ("variable", "kept.state", "program.py:7")


def test_lines_are_found_in_the_text_of_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "train.py"
    text = "a, b = 1, 2\nself.c = 3\nself.register_buffer('decay', b)\nb = 4"
    monkeypatch.setattr("bottleneck.harness.lines.program_lines", lambda: [(str(file), text.splitlines())])
    assert line_that_makes(str(file), "b") == "train.py:1"
    assert line_that_makes(str(file), "self.c") == "train.py:2" == line_of_buffer("c")
    assert line_of_buffer("decay") == "train.py:3"
    assert line_that_makes(str(file), "missing") is None and line_that_makes("other.py", "b") is None
