"""Changes for `predict --fit` under fake tensors, and the predicted peak beside the memory of a real run."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from bottleneck.experiment.fake_variants import FakeWorker
from bottleneck.experiment.worker import Refused
from bottleneck.harness.target import make_program
from bottleneck.predict.peak_memory import step_memory
from bottleneck.predict.smaller_steps import blocks_of, recomputed
from bottleneck.schema.step_calls import BEFORE_THE_STEP, StepCalls

WIDTH, BLOCKS, ROWS = 256, 6, 2048
MODEL = f"""\
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.act = nn.LayerNorm(width), nn.GELU()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(self.act(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block({WIDTH}) for _ in range({BLOCKS}))
        self.relu = nn.ReLU()

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.relu(x)


model = Net()
optimizer = torch.optim.AdamW(model.parameters())


def workload(batch_size={ROWS}):
    x = torch.randn(batch_size, {WIDTH})

    def step():
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()

    return step
"""
ALL = [f"blocks.{number}" for number in range(BLOCKS)]


def checkpointed(blocks: list[str]) -> str:
    return f"checkpoint-blocks:{json.dumps({'blocks': blocks})}"


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeWorker]:
    folder = tmp_path_factory.mktemp("remedies")
    (folder / "program.py").write_text(MODEL)
    with FakeWorker(make_program(str(folder / "program.py")), folder / "stderr.txt") as made:
        yield made


def peak(calls: StepCalls) -> int:
    memory = step_memory(calls)
    assert memory is not None
    return memory.peak_bytes


@pytest.mark.process
@pytest.mark.parametrize("number", [1, 3, BLOCKS])
def test_recomputed_blocks_are_as_expected_before_they_ran(worker: FakeWorker, number: int) -> None:
    base = worker.record([])
    blocks = blocks_of(base)
    assert [block.name for block in blocks] == ALL
    expected, ran = recomputed(base, blocks[:number]), worker.record([checkpointed(ALL[:number])])
    assert peak(expected) == pytest.approx(peak(ran), rel=0.005)
    assert Counter(call.name for call in expected.calls) == Counter(call.name for call in ran.calls)


@pytest.mark.process
def test_parameters_gradients_and_states_take_four_four_and_eight_bytes(worker: FakeWorker) -> None:
    base = worker.record([])
    parameters = BLOCKS * (2 * WIDTH + WIDTH * 4 * WIDTH + 4 * WIDTH + 4 * WIDTH * WIDTH + WIDTH)
    assert base.bytes_of("parameter") == 4 * parameters
    assert base.bytes_of("gradient") == 4 * parameters
    assert base.bytes_of("optimizer state") == 8 * parameters


@pytest.mark.process
def test_micro_batches_update_once_and_hold_the_activations_of_one(worker: FakeWorker) -> None:
    base, parts = worker.record([]), worker.record(["accumulate-4"])
    names = [Counter(call.name for call in calls.calls) for calls in (base, parts)]
    assert names[1]["aten::gelu"] == 4 * names[0]["aten::gelu"] == 4 * BLOCKS
    updates = [sum(call.phase == "optimizer" for call in calls.calls) for calls in (base, parts)]
    assert updates[0] == updates[1] > 0
    assert peak(parts) < peak(base)


@pytest.mark.process
def test_micro_batches_need_a_batch_that_they_divide(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(MODEL)
    program = make_program(str(tmp_path / "program.py"), (), ("batch_size=6",))
    with FakeWorker(program, tmp_path / "stderr.txt") as small, pytest.raises(Refused, match="that 4 divides"):
        small.record(["accumulate-4"])


@pytest.mark.process
def test_a_block_that_is_not_there_is_refused(worker: FakeWorker) -> None:
    with pytest.raises(Refused, match=r"blocks\.99"):
        worker.record([checkpointed(["blocks.99"])])


@pytest.mark.process
def test_activations_in_place_write_to_their_input(worker: FakeWorker) -> None:
    names = Counter(call.name for call in worker.record(["inplace-activations"]).calls)
    assert (names["aten::relu_"], names["aten::relu"]) == (1, 0)


@pytest.mark.process
@pytest.mark.parametrize("number", [0, BLOCKS])
def test_the_predicted_peak_of_the_passes_is_that_of_a_real_run(worker: FakeWorker, number: int) -> None:
    """The memory of a real step on the CPU, as the profiler sees it allocated, without the optimizer."""
    torch = pytest.importorskip("torch")
    calls = worker.record([checkpointed(ALL[:number])] if number else [])
    end = next(at for at, call in enumerate(calls.calls) if call.phase == "optimizer")
    lives = [one for one in calls.storages if BEFORE_THE_STEP < one.created < end]
    predicted = max(
        sum(one.bytes for one in lives if one.created <= at and (one.freed is None or one.freed > at))
        for at in range(end)
    )
    names: dict[str, object] = {}
    exec(compile(MODEL, "program.py", "exec"), names)
    model, x = names["model"], torch.randn(ROWS, WIDTH)
    again = torch.utils.checkpoint.checkpoint

    def forward() -> object:
        values = x
        for at, block in enumerate(model.blocks):  # type: ignore[attr-defined]
            values = again(block, values, use_reentrant=False) if at < number else block(values)
        return model.relu(values).pow(2).mean()  # type: ignore[attr-defined]

    forward().backward()  # type: ignore[attr-defined]
    model.zero_grad()  # type: ignore[attr-defined]
    with torch.profiler.profile(profile_memory=True) as profile:
        forward().backward()  # type: ignore[attr-defined]
    held, most = 0, 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    assert predicted == pytest.approx(most, rel=0.05)
