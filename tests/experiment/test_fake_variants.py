"""Programs with changes under fake tensors: what their ops become, and what does not apply."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from bottleneck.experiment.fake_variants import FakeWorker
from bottleneck.experiment.worker import Refused
from bottleneck.harness.target import make_program
from bottleneck.schema.step_calls import StepCalls

MODEL = """\
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (each.view(batch, length, 4, width // 4).transpose(1, 2) for each in self.qkv(x).split(width, 2))
        weights = torch.softmax(q @ k.transpose(-2, -1) / (width // 4) ** 0.5, -1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))


model = nn.Sequential(Attention(64), nn.ReLU(), Attention(64))
optimizer = torch.optim.AdamW(model.parameters())


def train(x):
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
"""
WORKLOAD = f"""{MODEL}

def workload(batch_size=4):
    x = torch.randn(batch_size, 32, 64)
    return lambda: train(x)
"""
SCRIPT = f"""{MODEL}
for _ in range(6):
    train(torch.randn(4, 32, 64))
"""


def worker_of(folder: Path, text: str) -> FakeWorker:
    file = folder / "program.py"
    file.write_text(text)
    return FakeWorker(make_program(str(file)), folder / "stderr.txt")


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeWorker]:
    with worker_of(tmp_path_factory.mktemp("workload"), WORKLOAD) as worker:
        yield worker


def ops(calls: StepCalls) -> Counter[str]:
    return Counter(call.name.removeprefix("aten::") for call in calls.calls)


def test_written_out_attention_becomes_one_op_forward_and_backward(workload: FakeWorker) -> None:
    before, after = ops(workload.record([])), ops(workload.record(["fused-attention"]))
    assert before["_softmax"] == 2 and not any("scaled_dot_product" in name for name in before)
    assert after["_softmax"] == after["bmm"] == 0
    assert after["_scaled_dot_product_efficient_attention"] == 2
    assert after["_scaled_dot_product_efficient_attention_backward"] == 2


def test_autocast_adds_casts_and_makes_products_of_half_precision(workload: FakeWorker) -> None:
    before, after = workload.record([]), workload.record(["bf16-autocast"])
    assert ops(after)["_to_copy"] > ops(before)["_to_copy"] == 0
    products = [call for call in after.calls if call.name == "aten::mm"]
    assert products and all(use.type == "c10::BFloat16" for call in products for use in call.inputs)
    assert after.settings.autocast == ("bfloat16",) and before.settings.autocast == ()


def test_a_fused_optimizer_is_one_op(workload: FakeWorker) -> None:
    after = ops(workload.record(["fused-optimizer"]))
    assert after["_fused_adamw_"] == 1 and not any(name.startswith("_foreach") for name in after)


def test_twice_the_batch_has_twice_the_rows(workload: FakeWorker) -> None:
    assert (workload.record([]).batch_size, workload.record(["batch-x2"]).batch_size) == (4, 8)


def test_changes_add_up(workload: FakeWorker) -> None:
    after = ops(workload.record(["bf16-autocast", "fused-attention", "fused-optimizer"]))
    assert after["_fused_adamw_"] == 1 and after["_softmax"] == 0 and after["_to_copy"] > 0
    assert after["_scaled_dot_product_flash_attention"] == 2


def test_what_does_not_apply_is_refused_and_the_next_is_recorded_all_the_same(workload: FakeWorker) -> None:
    with pytest.raises(Refused, match="convolutions") as refused:
        workload.record(["channels-last"])
    assert refused.value.verdict == "not applicable"
    assert workload.record([]).calls


def test_the_objects_of_a_script_are_changed_after_its_first_step(tmp_path: Path) -> None:
    with worker_of(tmp_path, SCRIPT) as worker:
        after = worker.record(["bf16-autocast", "fused-attention", "fused-optimizer"])
    found = ops(after)
    assert found["_fused_adamw_"] == 1 and found["_softmax"] == 0
    products = [call for call in after.calls if call.name == "aten::mm"]
    assert products and all(use.type == "c10::BFloat16" for call in products for use in call.inputs)


@pytest.mark.parametrize("change", ["batch-x2", "inference-mode", "channels-last"])
def test_a_script_refuses_what_needs_more_than_its_objects(tmp_path: Path, change: str) -> None:
    with worker_of(tmp_path, SCRIPT) as worker, pytest.raises(Refused) as refused:
        worker.record([change])
    assert refused.value.verdict == "not applicable"


def test_a_step_that_depends_on_its_data_is_refused_with_its_line(tmp_path: Path) -> None:
    text = "import torch\n\n\ndef workload():\n    x = torch.randn(4)\n    return lambda: x if x.sum() > 0 else -x\n"
    with (
        worker_of(tmp_path, text) as worker,
        pytest.raises(Refused, match=r"depends on values of its data at program\.py:6"),
    ):
        worker.record([])
