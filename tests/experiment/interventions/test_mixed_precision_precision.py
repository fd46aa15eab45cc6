from types import SimpleNamespace
from typing import Any

import pytest

from bottleneck.experiment.interventions.mixed_precision import autocast_to_bf16, use_tf32
from bottleneck.experiment.interventions.subject import NotApplicable, Subject, subject_of

torch: Any = pytest.importorskip("torch")
nn = torch.nn


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


def training() -> Subject:
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
    subject = training()
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
        use_tf32(training())
