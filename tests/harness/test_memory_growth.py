"""The comparison of a process's memory and variables at two step boundaries."""

import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bottleneck.harness.memory_growth import MemoryLook, growth_between, line_that_adds
from bottleneck.schema.measurements import Keeper, MemoryGrowth
from tests.harness.driver import record

torch: Any = pytest.importorskip("torch")


def growth_of(step: Callable[[], object], steps: int = 10) -> MemoryGrowth:
    """The growth over so many steps of a function, whose variables are those of its closure and of this module."""
    before = MemoryLook(torch, step)
    for _ in range(steps):
        step()
    found = growth_between(before, MemoryLook(torch, step), steps, torch, left=lambda: 10**9)
    assert found is not None
    return found


def names(growth: MemoryGrowth) -> list[tuple[str, float, bool]]:
    return [(keeper.name, keeper.per_step, keeper.has_graph) for keeper in growth.keepers]


def test_a_list_that_gets_a_tensor_with_its_graph_in_each_step_is_found() -> None:
    weight, kept, plain = torch.ones(3, requires_grad=True), [], [torch.ones(1)]  # type: ignore[var-annotated]
    kept.append((weight * 2).sum())

    def step() -> None:
        kept.append((weight * 2).sum())
        assert plain

    growth = growth_of(step)
    assert names(growth) == [("kept", 1.0, True)]
    assert growth.steps == 10 and growth.left_bytes == 10**9 and growth.device_bytes is None
    assert growth.host_bytes is not None and growth.host_bytes >= 0


def test_detached_tensors_and_entries_of_containers_are_told_apart_from_graphs() -> None:
    weight = torch.ones(3, requires_grad=True)
    queue, records, by_name = deque([torch.ones(1)]), [{"loss": weight * 2}], {"loss": [weight * 2]}

    def step() -> None:
        queue.append((weight * 2).detach())
        records.append({"loss": weight * 2})
        by_name["loss"].extend([weight * 2, weight * 3])

    assert sorted(names(growth_of(step))) == [("by_name", 2.0, True), ("queue", 1.0, False), ("records", 1.0, True)]


def test_a_sum_of_losses_that_keeps_every_graph_is_found() -> None:
    weight, total = torch.ones(3, requires_grad=True), torch.zeros(())

    def step() -> None:
        nonlocal total
        total = total + (weight * 2).sum()

    step()
    (keeper,) = growth_of(step).keepers
    assert keeper.name == "total" and keeper.is_sum and keeper.has_graph and keeper.per_step == pytest.approx(1.0)


def test_what_does_not_grow_with_the_steps_is_no_keeper() -> None:
    bounded, numbers = deque([torch.ones(1)] * 4, maxlen=4), [1.0]

    def step() -> None:
        bounded.append(torch.ones(1))
        numbers.append(2.0)

    assert growth_of(step).keepers == ()
    look = MemoryLook(torch, step)
    assert growth_between(look, look, 4, torch) is None


@pytest.mark.parametrize(
    ("resident_mb", "growth_mb"),
    [
        ([100, 150, 200, 250, 260, 260], 0.0),  # taken once, in the first half
        ([100, 110, 120, 140, 180, 260], 10.0),
        ([100, 100, 100, 100, 180, 260], 10.0),  # more and more: no less than the usual step
        ([100, 110, 120, 110, 90, 90], 0.0),
    ],
)
def test_memory_that_grew_in_the_first_half_alone_was_taken_once(
    resident_mb: list[int], growth_mb: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = iter([1e6 * mb for mb in resident_mb])
    monkeypatch.setattr("bottleneck.harness.memory_growth.resident_bytes", lambda: next(readings))
    before = MemoryLook(torch)
    for steps in range(1, 16):
        before.read_again(steps)
    growth = growth_between(before, MemoryLook(torch), 16, torch)
    assert growth is not None and growth.host_bytes == pytest.approx(1e6 * growth_mb)


class Hostile(list):  # type: ignore[type-arg]
    """A container, and an object, that must not be asked anything."""

    def __len__(self) -> int:
        raise AssertionError("a look called code of the program")

    __iter__ = __getitem__ = __getattribute__ = __len__  # type: ignore[assignment]


def test_a_look_calls_nothing_of_the_program() -> None:
    self = Hostile()
    inside = [Hostile()]

    def step() -> tuple[object, object]:
        return self, inside

    with pytest.raises(AssertionError, match="called code of the program"):
        len(self)
    assert not {"self", "inside"} & {name for _, name in MemoryLook(torch, step).holdings}


def test_variables_of_a_function_on_the_stack_are_not_kept_alive() -> None:
    def looks() -> int:
        tensor = torch.ones(1)
        before = sys.getrefcount(tensor)
        MemoryLook(torch)
        return sys.getrefcount(tensor) - before

    assert looks() == 0


def test_a_look_stops_when_its_time_is_over() -> None:
    kept = [torch.ones(1)]
    ticks = iter(range(100_000))
    assert MemoryLook(torch, lambda: kept, clock=lambda: float(next(ticks))).holdings == {}


def test_the_line_that_adds_is_found_in_the_text_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "eval.py"
    text = "losses = []\nself.seen = {}\n# losses.append(1)\nlosses.append(1)\nself.seen[1] = 2\n"
    text += "total = total + 1\nn += 1\n"
    file.write_text(text)
    monkeypatch.setattr("bottleneck.harness.lines.program_lines", lambda: [(str(file), text.splitlines())])
    found = {name: line_that_adds(str(file), name) for name in ("losses", "self.seen", "total", "n", "absent")}
    assert found == {
        "losses": "eval.py:4",
        "self.seen": "eval.py:5",
        "total": "eval.py:6",
        "n": "eval.py:7",
        "absent": None,
    }
    file.write_text("losses.append(")
    monkeypatch.setattr("bottleneck.harness.lines.program_lines", lambda: [(str(file), ["losses.append("])])
    assert line_that_adds(str(file), "losses") is None


EVALUATION = """
import torch

class Evaluation:
    def __init__(self):
        self.outputs = []

    def run(self, model):
        total = 0.0
        for _ in range(90):
            out = model(torch.ones(512, 8))
            self.outputs.append(out)
            total = total + out.mean()
        return total

print(float(Evaluation().run(torch.nn.Linear(8, 512))))
"""


@pytest.mark.process
def test_a_recording_names_the_variables_that_grow_and_their_lines(tmp_path: Path) -> None:
    growth = record(tmp_path, EVALUATION).recording.memory_growth
    assert growth is not None
    assert {(keeper.name, keeper.source, keeper.has_graph) for keeper in growth.keepers} == {
        ("self.outputs", "program.py:11", True),
        ("total", "program.py:12", True),
    }
    # Outputs of 1 MiB per step: what the heap had free at first is little beside them.
    assert growth.host_bytes is not None and growth.host_bytes > 512 * 512 * 4 / 2


@pytest.mark.process
def test_an_evaluation_without_gradients_keeps_no_graph(tmp_path: Path) -> None:
    text = EVALUATION.replace("out = model(torch.ones(512, 8))", "out = model(torch.ones(512, 8)).detach()")
    growth = record(tmp_path, text).recording.memory_growth
    assert growth is not None
    assert [keeper for keeper in growth.keepers if keeper.has_graph] == []
    assert Keeper("self.outputs", "program.py:11", 1.0) in growth.keepers


@pytest.mark.process
def test_a_workload_that_keeps_its_losses_is_read_by_its_closure(tmp_path: Path) -> None:
    run = record(
        tmp_path,
        """
        import torch

        def workload():
            model, losses = torch.nn.Linear(8, 8), []

            def step():
                losses.append(model(torch.ones(2, 8)).sum())

            return step
        """,
    )
    growth = run.recording.memory_growth
    assert growth is not None
    assert growth.keepers == (Keeper("losses", "program.py:7", 1.0, has_graph=True),)
