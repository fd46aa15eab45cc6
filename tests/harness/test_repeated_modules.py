"""The look at modules that give the same result in two steps."""

import gzip
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from bottleneck.harness.messages import Plan, Program, RecordOptions
from bottleneck.harness.repeated_modules import RepeatLook, Repeats
from bottleneck.harness.session import Session
from bottleneck.schema.measurements import RepeatedModule
from tests.harness.driver import record

torch: Any = pytest.importorskip("torch")


def found_in(step: Callable[[], object], **look: Any) -> tuple[RepeatedModule, ...]:
    """The modules that the look finds in two such steps."""
    watch = RepeatLook(**look)
    watch.start(torch)
    assert watch.is_on
    step()
    assert watch.end_step() is None
    step()
    found = watch.end_step()
    assert found is not None and not watch.is_on
    watch.start(torch)
    assert not watch.is_on  # once is enough
    assert not torch._C._len_torch_function_stack()
    return found.modules


def layers(*sizes: int) -> Any:
    return torch.nn.Sequential(*(torch.nn.Linear(*pair) for pair in itertools.pairwise(sizes))).eval()


def test_the_outermost_module_with_the_same_inputs_and_result_is_found_where_others_have_new_ones() -> None:
    text, image, prompts = layers(8, 16, 8), layers(8, 8), torch.randn(4, 8)
    found = found_in(lambda: image(torch.randn(2, 8)) @ text(prompts).T)
    assert [(each.label, each.calls, each.repeated) for each in found] == [("Sequential_1", 1, ())]
    assert found[0].source is None or found[0].source.startswith("test_repeated_modules.py:")


def test_a_step_that_is_the_same_as_a_whole_is_a_measurement_and_no_fault() -> None:
    model, x = layers(8, 16, 8), torch.randn(4, 8)
    assert found_in(lambda: model(x)) == ()


def test_modules_whose_weights_or_inputs_change_or_that_draw_numbers_give_new_results() -> None:
    model, other, x = layers(8, 8), layers(8, 8), torch.randn(4, 8)

    def train() -> None:
        model(x)
        other(torch.randn(2, 8))
        with torch.no_grad():
            model[0].weight.add_(0.1)

    assert found_in(train) == ()
    dropout = torch.nn.Dropout(0.5).train()
    assert found_in(lambda: (dropout(x), other(torch.randn(2, 8)))) == ()


def test_only_the_repeated_calls_of_a_module_that_has_others_are_named() -> None:
    model, x = layers(8, 8), torch.randn(4, 8)
    found = found_in(lambda: (model(torch.randn(2, 8)), model(x)))
    assert [(each.calls, each.repeated) for each in found] == [(2, (1,))]


def test_inputs_by_name_and_in_lists_and_results_in_dicts_count() -> None:
    class Net(torch.nn.Module):  # type: ignore[misc]
        def forward(self, *, parts: Any) -> Any:
            return {"sum": parts[0] + parts[1]}

    net, other, x = Net(), layers(8, 8), torch.randn(4, 8)
    assert [each.label for each in found_in(lambda: (net(parts=[x, x]), other(torch.randn(2, 8))))] == ["Net_0"]
    assert found_in(lambda: (net(parts=[x, torch.randn(4, 8)]), other(torch.randn(2, 8)))) == ()


def test_the_look_ends_when_its_time_is_spent_and_finds_nothing_then() -> None:
    now = iter(range(100))
    model, other, x = layers(8, 8), layers(8, 8), torch.randn(4, 8)
    watch = RepeatLook(clock=lambda: float(next(now)))
    watch.start(torch)
    model(x)
    other(torch.randn(2, 8))
    assert watch.end_step() == Repeats() and not watch.is_on


def test_lines_whose_ops_give_the_same_are_found_and_those_that_draw_or_read_new_numbers_are_not() -> None:
    adjacency = torch.rand(8, 8)

    def step() -> None:
        scaled = adjacency / adjacency.sum(1)
        x = torch.randn(8, 4)
        _ = (x > -100).all()
        scaled @ x

    first = step.__code__.co_firstlineno
    assert looked_at(step).lines == (f"test_repeated_modules.py:{first + 1}",)


def test_a_line_that_fills_a_tensor_gives_that_tensor() -> None:
    rows = [0, 1, 2]

    def step() -> None:
        bank, of_data, x = torch.zeros(4, 4), torch.zeros(4, 4), torch.randn(8, 4)
        for row in rows:
            bank[row, 1] = 0.5 * row
            of_data[row] = x[row]
        x @ bank

    first = step.__code__.co_firstlineno
    assert looked_at(step).lines == (f"test_repeated_modules.py:{first + 3}",)


def looked_at(step: FunctionType) -> Repeats:
    """All that the look finds in two such steps, with the step's file as the program's."""
    watch = RepeatLook()
    watch._own[step.__code__.co_filename] = True  # a test is no program
    watch.start(torch)
    step()
    watch.end_step()
    step()
    found = watch.end_step()
    assert found is not None
    return found


def test_a_module_that_reads_the_same_rows_in_each_round_of_a_step_is_found_also_where_the_rows_get_fewer() -> None:
    keys, query, memory = layers(64, 64), layers(64, 64), [torch.randn(0)]

    def step() -> None:
        memory[0], hidden = torch.randn(32, 50, 64), torch.randn(32, 1, 64)
        for rows in (32, 32, 20, 9):
            hidden = torch.tanh(query(hidden[:rows]) + keys(memory[0][:rows]).mean(1, keepdim=True))

    found = looked_at(step)
    assert [(each.label, each.calls) for each in found.in_step] == [("Sequential_1", 4)]


def test_calls_with_inputs_of_an_earlier_one_are_found_beside_calls_with_others() -> None:
    """A physics-informed network: u for each derivative of the residual, and once more for the initial condition."""
    net = layers(2, 16)

    def u(x: Any, t: Any) -> Any:
        return net(torch.stack([x, t], dim=-1)).sum(-1)

    def step() -> None:
        x, t = (torch.rand(50, requires_grad=True) for _ in range(2))
        start = u(torch.rand(20), torch.zeros(20))
        derivatives = [torch.autograd.grad(u(x, t).sum(), to, create_graph=True)[0] for to in (x, t)]
        (sum(derivatives) + u(x, t)).square().mean().add(start.square().mean()).backward()

    (found,) = looked_at(step).in_step
    assert (found.label, found.calls, found.repeated) == ("Sequential_0", 4, (2, 3))


def test_rounds_with_other_rows_other_weights_or_random_results_are_none() -> None:
    model, dropout, x = layers(8, 8), torch.nn.Dropout(0.5).train(), torch.randn(4, 8)

    def update() -> None:
        for _ in range(4):
            model(x)
            with torch.no_grad():
                model[0].weight.add_(0.1)

    def rewrite() -> None:
        for _ in range(4):
            model(x)
            x.add_(1.0)

    assert looked_at(lambda: [model(torch.randn(4, 8)) for _ in range(4)]).in_step == ()
    assert looked_at(lambda: [dropout(x) for _ in range(4)]).in_step == ()
    assert looked_at(update).in_step == () and looked_at(rewrite).in_step == ()


def test_lines_that_give_the_same_in_each_round_are_found_with_their_rounds_and_those_that_write_are_not() -> None:
    scale, parts = torch.randn(6, 6), [torch.ones(6, 6) for _ in range(5)]

    def step() -> None:
        x = torch.randn(6, 6)
        for part in parts:
            weight = torch.softmax(scale * 2.0, -1)
            x = weight @ x
            part.mul_(0.0)

    first = step.__code__.co_firstlineno
    assert looked_at(step).lines_in_step == {f"test_repeated_modules.py:{first + 3}": 5}


def test_a_part_of_a_tensor_that_is_not_contiguous_is_read_in_the_order_of_its_rows() -> None:
    watch, tensor = RepeatLook(), torch.arange(6000.0).reshape(20, 300).t()
    watch._torch = torch
    assert watch._some_numbers(tensor, 6000, 7).equal(tensor.reshape(-1)[::7])
    assert watch._some_numbers(tensor[3], 20, 1).equal(tensor[3])


def test_a_mode_that_the_program_has_open_stays_on_top() -> None:
    watch = RepeatLook()
    with torch.device("cpu"):
        watch.start(torch)
        assert torch._C._len_torch_function_stack() == 1
    watch.end_step(is_last=True)
    watch = RepeatLook()
    watch.start(torch)
    with torch.device("cpu"):
        watch.end_step(is_last=True)
        assert torch._C._len_torch_function_stack() == 2
    watch.release()
    assert not torch._C._len_torch_function_stack()


PROGRAM = """
import torch

torch.manual_seed(0)
text, image = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)
prompts = torch.randn(32, 64)
optimizer = torch.optim.SGD(image.parameters(), lr=0.1)
for _ in range(60):
    with torch.no_grad():
        features = text(prompts)
    (image(torch.randn(16, 64)) @ features.T).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print(float(image.weight.sum()))
"""


def test_a_recording_keeps_the_modules_that_repeat_with_their_lines(tmp_path: Path) -> None:
    run = record(tmp_path, PROGRAM, "--steps", "2")
    assert run.status == 0
    assert run.recording.repeated_modules == (RepeatedModule("Linear_0", "program.py:9"),)
    assert run.recording.source_texts["program.py:9"] == "features = text(prompts)"


SAMPLER = """
import torch

torch.manual_seed(0)
text, image = torch.nn.Sequential(torch.nn.Tanh()), torch.nn.Linear(64, 64)
prompts, empty = torch.randn(32, 64), torch.zeros(32, 64)
x = torch.zeros(32, 64)
with torch.no_grad():
    for _ in range(6):
        wanted, unwanted = text(prompts), text(empty)
        x = torch.randn(32, 64) + image(x + wanted) - image(x + unwanted)
print(float(x.sum()))
"""


def test_a_look_that_began_in_shorter_steps_is_in_no_window(tmp_path: Path) -> None:
    run = record(tmp_path, SAMPLER, "--steps", "2")
    assert run.status == 0 and run.recording.step_name == "2 calls of Sequential"
    with gzip.open(run.folder / run.recording.traces[0].file, "rt") as file:
        names = [event["name"] for event in json.load(file)["traceEvents"]]
    assert "aten::linear" in names and "aten::equal" not in names


@pytest.mark.parametrize(
    ("is_counting", "step", "is_sampled"), [(True, None, False), (False, None, True), (False, lambda: None, False)]
)
def test_nothing_is_sampled_where_ops_are_counted_or_the_harness_repeats_the_step(
    is_counting: bool, step: object, is_sampled: bool, tmp_path: Path
) -> None:
    plan = Plan(str(tmp_path), Program("train.py", form="script"), RecordOptions(counting=is_counting))
    session = Session(plan)
    session.begin_debugged_step(step)
    assert session._repeats.is_on == is_sampled
    session.end_debugged_step(is_last=True)
    assert not session._repeats.is_on
