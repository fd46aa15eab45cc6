"""Written-out attention is replaced by the fused op where the pattern matches, with the same results."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from bottleneck.experiment.interventions.attention import CHANGES
from bottleneck.experiment.interventions.subject import NotApplicable
from tests.experiment.interventions.subjects import inference, perceptron, training

torch: Any = pytest.importorskip("torch")
F = torch.nn.functional
pytestmark = pytest.mark.compiler
FUSED = CHANGES[0]
LOW = float("-inf")
KEEP = torch.ones(6, 6).tril().bool()
ADDED = torch.zeros(6, 6).masked_fill(~KEEP, LOW)

Written = Callable[[Any, Any, Any], Any]

FORMS: dict[str, Written] = {
    "plain": lambda q, k, v: F.softmax(q @ k.transpose(-2, -1), dim=-1) @ v,
    "scaled": lambda q, k, v: ((q @ k.mT) * (1.0 / math.sqrt(k.size(-1)))).softmax(-1) @ v,
    "divided": lambda q, k, v: torch.matmul(torch.softmax(torch.matmul(q, k.mT) / 2.0, dim=3), v),
    "filled": lambda q, k, v: F.softmax((0.5 * (q @ k.mT)).masked_fill(~KEEP, LOW), dim=-1) @ v,
    "kept": lambda q, k, v: F.softmax(torch.where(KEEP, q @ k.mT / 2, -1e9), dim=-1) @ v,
    "added": lambda q, k, v: F.softmax((q @ k.mT) / 2 + ADDED, dim=-1) @ v,
    "upcast": lambda q, k, v: F.softmax(q @ k.mT, dim=-1, dtype=torch.float32).to(q.dtype) @ v,
    "dropped": lambda q, k, v: F.dropout(F.softmax(q @ k.mT, dim=-1), 0.3, training=False) @ v,
    "three": lambda q, k, v: torch.bmm(F.softmax(torch.bmm(q[0], k[0].mT), dim=-1), v[0]),
}

OTHERS: dict[str, Written] = {
    "another dimension": lambda q, k, v: F.softmax(q @ k.mT, dim=-2) @ v,
    "scores that are used again": lambda q, k, v: F.softmax(scores := q @ k.mT, dim=-1) @ v + scores.sum(),
    "a mask before the factor": lambda q, k, v: F.softmax((q @ k.mT + ADDED) * 2.0, dim=-1) @ v,
    "a factor that is a tensor": lambda q, k, v: F.softmax((q @ k.mT) * q.sum(), dim=-1) @ v,
    "weights on the other side": lambda q, k, v: v.mT @ F.softmax(q @ k.mT, dim=-1),
    "a batch that is expanded": lambda q, k, v: F.softmax(q @ k.mT, dim=-1) @ v[:1, :1],
}


class Attention(torch.nn.Module):  # type: ignore[misc]
    """Attention of two heads over six tokens, written in the given way."""

    def __init__(self, written: Written) -> None:
        super().__init__()
        self.joint, self.written = torch.nn.Linear(8, 24), written

    def forward(self, values: Any) -> Any:
        parts = (each.view(2, 6, 2, 4).transpose(1, 2) for each in self.joint(values).chunk(3, dim=-1))
        return self.written(*parts)


def given() -> Any:
    return torch.randn(2, 6, 8)


def ops_of(step: Callable[[], Any]) -> set[str]:
    """Names of the ops that a step runs."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step()
    return {event.name for event in profile.events()}


@pytest.mark.parametrize("form", FORMS)
def test_written_out_attention_becomes_one_call_with_the_same_results(form: str) -> None:
    original, changed = (inference(torch, lambda: Attention(FORMS[form]), given) for _ in range(2))
    step = FUSED.apply(changed)
    torch.testing.assert_close(step(), original.step())
    ops = ops_of(step)
    assert "aten::scaled_dot_product_attention" in ops
    assert "aten::_scaled_dot_product_attention_math" not in ops


@pytest.mark.parametrize("form", OTHERS)
def test_what_only_looks_like_attention_is_left_alone(form: str) -> None:
    subject = inference(torch, lambda: Attention(OTHERS[form]), given)
    with pytest.raises(NotApplicable, match="a softmax between two batched products"):
        FUSED.apply(subject)()


def test_training_goes_through_the_fused_call_too() -> None:
    original, changed = (training(torch, lambda: Attention(FORMS["filled"]), given) for _ in range(2))
    step = FUSED.apply(changed)
    for _ in range(3):
        torch.testing.assert_close(step(), original.step())


def test_modules_without_attention_have_nothing_to_replace() -> None:
    subject = inference(torch, lambda: perceptron(torch), lambda: torch.randn(4, 8))
    with pytest.raises(NotApplicable, match="needs attention that is written out"):
        FUSED.apply(subject)()
