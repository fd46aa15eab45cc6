"""Digests of a step's outputs in the program's process: what changes them, and what they are called."""

import gc
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bottleneck.harness.numerics import digest, take_numerics

torch = pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """Hides the models that other tests in this process have left alive from whoever looks for all."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def step_of(rate: float = 0.1, wrap: Callable[[Any], Any] = lambda model: model) -> Callable[[], Any]:
    """A training step from a fixed seed."""
    torch.manual_seed(0)
    model = wrap(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)))
    parameters, inputs = list(model.parameters()), torch.randn(8, 4)

    def step() -> Any:
        loss = model(inputs).square().mean() + model(inputs).sum()
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.sub_(rate * gradient)
        return {"loss": loss, "count": 3, "more": [torch.tensor([1, 2])]}

    return step


def test_outputs_and_parameters_are_digested_by_name_and_twice_the_same() -> None:
    first = take_numerics(step_of(), torch, 3)
    assert list(first.tensors) == [
        *(f"returned of step {step}[{key}]" for step in (1, 3) for key in ("'loss'", "'count'", "'more'][0")),
        *(f"Sequential.{name}" for name in ("0.weight", "0.bias", "1.weight", "1.bias")),
        *(f"Sequential.1.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")),
    ]
    gc.collect()
    assert take_numerics(step_of(), torch, 3) == first


def test_another_learning_rate_changes_what_the_steps_change_and_not_the_first_loss() -> None:
    one = take_numerics(step_of(0.1), torch, 3).tensors
    gc.collect()
    other = take_numerics(step_of(0.11), torch, 3).tensors
    assert one["returned of step 1['loss']"] == other["returned of step 1['loss']"]
    assert one["returned of step 3['loss']"] != other["returned of step 3['loss']"]
    before, after = one["Sequential.0.weight"].moved, other["Sequential.0.weight"].moved
    assert before is not None and after is not None and after > 1.05 * before


def test_a_wrapper_of_a_model_leaves_its_names() -> None:
    class Wrapper(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, model: Any) -> None:
            super().__init__()
            self._orig_mod = model

        def forward(self, inputs: Any) -> Any:
            return self._orig_mod(inputs)

    assert "Sequential.0.weight" in take_numerics(step_of(wrap=Wrapper), torch, 1).tensors


def test_what_is_not_finite_is_counted_and_left_out_of_the_sums() -> None:
    found = digest(torch.tensor([3.0, 4.0, math.nan, math.inf, -math.inf]), torch)
    assert (found.nan, found.inf, found.norm) == (1, 2, 5.0)


def test_elements_that_trade_places_change_the_projection() -> None:
    one, other = torch.arange(1.0, 9.0), torch.arange(8.0, 0.0, -1.0)
    assert digest(one, torch).norm == digest(other, torch).norm
    assert digest(one, torch).projection != digest(other, torch).projection


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([], dtype=torch.float32),
        torch.tensor([1 + 2j, 3j]),
        torch.tensor([True, False]),
        torch.eye(3).to_sparse(),
        torch.tensor([1.0, 2.0], dtype=torch.bfloat16, requires_grad=True),
        torch.tensor([1e308, 1e308], dtype=torch.float64),
    ],
    ids=str,
)
def test_every_kind_of_tensor_has_a_digest_of_finite_numbers(tensor: Any) -> None:
    found = digest(tensor, torch)
    assert all(map(math.isfinite, (found.norm, found.mean, found.projection)))


def test_a_step_without_outputs_says_so() -> None:
    assert "returns no numbers" in take_numerics(lambda: "text", torch, 2).reason
