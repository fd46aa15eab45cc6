from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bottleneck.experiment.interventions import mixed_precision as padding
from bottleneck.experiment.interventions.mixed_precision import PADDING_CHANGES as CHANGES
from bottleneck.experiment.interventions.mixed_precision import (
    MatrixProduct,
    autocast_to_bf16,
    misaligned_products,
    use_tf32,
)
from bottleneck.experiment.interventions.subject import NotApplicable, Subject, subject_of
from bottleneck.experiment.variants import VariantHost
from bottleneck.harness.messages import Program
from tests.experiment.interventions.subjects import inference, training

torch: Any = pytest.importorskip("torch")
nn = torch.nn
PAD = CHANGES[0]
WORKLOAD = """
import torch

def workload():
    left, right = torch.ones(12, 10), torch.ones(10, 24)
    return lambda: torch.relu(left @ right)
"""


def linear(inputs: int, outputs: int) -> Subject:
    return training(torch, lambda: nn.Linear(inputs, outputs), lambda: torch.randn(12, inputs))


def product(*sizes: int, left: bool = False, right: bool = False, batch: int | None = None) -> MatrixProduct:
    return MatrixProduct(batch, *sizes, torch.float32, torch.device("cpu"), left, right)


def sizes_of(step: Any) -> list[list[tuple[int, ...]]]:
    """The shapes of both operands of each product that a step makes."""
    with torch.autograd.profiler.profile(record_shapes=True) as profile:
        step()
    products = [event for event in profile.function_events if event.name in {"aten::mm", "aten::bmm", "aten::addmm"}]
    return [[tuple(shape) for shape in event.input_shapes if shape][-2:] for event in products]


def test_products_of_forward_and_backward_are_found_with_their_layouts() -> None:
    found = misaligned_products(linear(10, 24))
    forward, weights = product(12, 10, 24, right=True), product(24, 12, 10, left=True)
    assert dict(found) == {forward: 1, weights: 1}


def test_only_the_sizes_that_make_a_pitch_are_padded() -> None:
    assert product(3, 10, 17).padded() == product(3, 16, 24)
    assert product(3, 10, 17, left=True).padded() == product(8, 10, 24, left=True)
    assert product(3, 10, 17, right=True).padded() == product(3, 16, 24, right=True)


def test_padding_what_is_aligned_changes_nothing() -> None:
    assert product(3, 16, 24).padded() == product(3, 16, 24)
    assert not product(3, 16, 24).is_misaligned() and product(3, 10, 24).is_misaligned()


def test_products_with_a_vector_do_not_count() -> None:
    assert not product(5, 10, 1).is_misaligned()


def test_the_changed_step_makes_the_padded_products_and_nothing_else() -> None:
    step = PAD.apply(linear(10, 24))
    assert sorted(sizes_of(step)) == sorted([[(12, 16), (16, 24)], [(24, 12), (12, 16)]])


def test_it_is_compared_with_the_products_as_they_are() -> None:
    assert PAD.against is not None
    step = PAD.against(linear(10, 24))
    assert sorted(sizes_of(step)) == sorted([[(12, 10), (10, 24)], [(24, 12), (12, 10)]])


def test_a_trial_compares_the_padded_products_with_those_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "odd_sizes.py"
    file.write_text(WORKLOAD)
    host = VariantHost(Program(str(file), (), "workload", (), train=False), {"pad": PAD})
    host.build("original", (), None, ("pad",))
    host.build("changed", ("pad",), None)
    original, changed = (sizes_of(lambda name=name: host.turn(name, 1, 0)) for name in ("original", "changed"))
    assert original == [[(12, 10), (10, 24)]] and changed == [[(12, 16), (16, 24)]]


def test_products_in_batches_are_padded_within_each() -> None:
    left, right = torch.randn(3, 4, 10), torch.randn(3, 10, 6)
    step = PAD.apply(subject_of(lambda: left @ right))
    assert sizes_of(step) == [[(3, 4, 16), (3, 16, 8)]]


def test_a_product_that_is_made_twice_is_timed_twice() -> None:
    left, right = torch.randn(4, 10), torch.randn(10, 8)
    assert list(misaligned_products(subject_of(lambda: (left @ right, left @ right))).values()) == [2]


def test_only_the_largest_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(padding, "PRODUCTS_AT_MOST", 1)
    model = nn.Sequential(nn.Linear(10, 100), nn.Linear(100, 3))
    values = torch.randn(4, 10)
    assert [each.n for each in misaligned_products(subject_of(lambda: model(values).detach()))] == [100]


def test_aligned_products_leave_nothing_to_pad() -> None:
    with pytest.raises(NotApplicable, match="multiples of 8"):
        PAD.apply(inference(torch, lambda: nn.Linear(16, 24), lambda: torch.randn(5, 16)))


def test_a_step_without_products_leaves_nothing_to_pad() -> None:
    values = torch.ones(3)
    with pytest.raises(NotApplicable, match="matrix products"):
        PAD.apply(subject_of(lambda: values + 1))


def dtypes_of_products(step: Any) -> set[Any]:
    """The types of what the matrix products of this step give back."""
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = set()

    class ProductRecorder(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
            result = function(*arguments, **(options or {}))
            if function.overloadpacket in {torch.ops.aten.mm, torch.ops.aten.addmm}:
                seen.add(result.dtype)
            return result

    with ProductRecorder():
        step()
    return seen


def train_two_layers() -> Subject:
    model, data = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), torch.ones(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> Any:
        optimizer.zero_grad()
        loss = model(data).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    return subject_of(step)


def test_autocast_computes_products_in_bf16_forward_and_backward() -> None:
    subject = train_two_layers()
    assert dtypes_of_products(subject.step) == {torch.float32}
    assert dtypes_of_products(autocast_to_bf16(subject)) == {torch.bfloat16}
    assert {parameter.dtype for parameter in subject.trained()} == {torch.float32}
    assert {parameter.grad.dtype for parameter in subject.trained()} == {torch.float32}


def test_autocast_sees_parameters_that_changed_within_the_step() -> None:
    model, data = nn.Linear(4, 1), torch.ones(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def step() -> tuple[Any, ...]:
        losses = []
        for _ in range(2):
            optimizer.zero_grad()
            loss = model(data).float().pow(2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return tuple(losses)

    first, second = autocast_to_bf16(subject_of(step))()
    assert not torch.equal(first, second)


def test_autocast_needs_float32() -> None:
    model, data = nn.Linear(4, 4).bfloat16(), torch.ones(3, 4, dtype=torch.bfloat16)
    with pytest.raises(NotApplicable, match="needs float32 parameters or inputs"):
        autocast_to_bf16(subject_of(lambda: model(data)))


def on_gpu(torch: Any) -> Subject:
    """A step on a GPU that is not there: it gives back what precision it was called with."""
    tensor = SimpleNamespace(
        device=SimpleNamespace(type="cuda"), dtype=torch.float32, is_floating_point=lambda: True, requires_grad=False
    )
    return Subject(torch=torch, step=torch.get_float32_matmul_precision, tensors=(tensor,))


class Gpu:
    """As much of torch as TF32 needs, with a GPU of this compute capability."""

    float32 = torch.float32

    def __init__(self, capability: tuple[int, int] = (9, 0), precision: str = "highest") -> None:
        self.precision = precision
        self.cuda = SimpleNamespace(get_device_capability=lambda: capability)

    def get_float32_matmul_precision(self) -> str:
        return self.precision

    def set_float32_matmul_precision(self, precision: str) -> None:
        self.precision = precision


def test_tf32_is_allowed_within_the_step_only() -> None:
    gpu = Gpu()
    step = use_tf32(on_gpu(gpu))
    assert gpu.precision == "highest"
    assert step() == "high"
    assert gpu.precision == "highest"


@pytest.mark.parametrize(
    ("gpu", "need"),
    [(Gpu(capability=(7, 5)), "compute capability 8.0"), (Gpu(precision="high"), "allows TF32 already")],
)
def test_tf32_needs_a_gpu_that_has_it_and_a_program_that_does_not_use_it(gpu: Gpu, need: str) -> None:
    with pytest.raises(NotApplicable, match=need):
        use_tf32(on_gpu(gpu))


def test_tf32_does_not_apply_to_a_cpu() -> None:
    with pytest.raises(NotApplicable, match="needs a step that runs on an NVIDIA GPU"):
        use_tf32(train_two_layers())
