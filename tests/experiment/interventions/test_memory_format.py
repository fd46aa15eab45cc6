from types import SimpleNamespace
from typing import Any

import pytest

from bottleneck.experiment.interventions.memory_format import FOLDING_CHANGES as CHANGES
from bottleneck.experiment.interventions.memory_format import search_for_kernels, use_channels_last
from bottleneck.experiment.interventions.subject import NotApplicable, Subject, subject_of
from tests.experiment.interventions.subjects import convolutions, inference, perceptron, training

torch: Any = pytest.importorskip("torch")
nn = torch.nn
FOLD = CHANGES[0]


def images() -> Any:
    return torch.randn(2, 2, 8, 8)


def with_statistics(norm: Any) -> Any:
    with torch.no_grad():
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2.0)
        norm.weight.normal_()
        norm.bias.normal_()
    return norm


def norms(subject: Subject) -> list[Any]:
    return [part for module in subject.modules for part in module.modules() if "BatchNorm" in type(part).__name__]


class Residual(nn.Module):
    """As networks of images are written: parts in attributes, in another order than that of the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.second = with_statistics(nn.BatchNorm2d(2)), with_statistics(nn.BatchNorm2d(2))
        self.convolution, self.up = nn.Conv2d(2, 2, 3, padding=1), nn.ConvTranspose2d(2, 2, 3, padding=1)

    def forward(self, values: Any) -> Any:
        return values + self.second(self.up(self.norm(self.convolution(values)).relu()))


class Branching(nn.Module):
    """A module that cannot be traced, around a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(2, 2, 3, bias=False), with_statistics(nn.BatchNorm2d(2)))

    def forward(self, values: Any) -> Any:
        return self.inner(values) if values.sum() > 0 else self.inner(-values)


def dense() -> Any:
    return nn.Sequential(nn.Linear(8, 4), with_statistics(nn.BatchNorm1d(4)))


@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (lambda: convolutions(torch), images),
        (Residual, images),
        (Branching, images),
        (dense, lambda: torch.randn(5, 8)),
    ],
    ids=["sequence", "attributes", "control flow", "linear"],
)
def test_no_batch_norm_is_left_and_the_output_is_close(make: Any, inputs: Any) -> None:
    original, changed = (inference(torch, make, inputs) for _ in range(2))
    step = FOLD.apply(changed)
    assert norms(original) and not norms(changed)
    torch.testing.assert_close(step(), original.step(), rtol=1e-4, atol=1e-5)


def test_folding_leaves_the_original_alone() -> None:
    original = inference(torch, lambda: convolutions(torch), images)
    state = {name: value.clone() for name, value in original.modules[0].state_dict().items()}
    FOLD.apply(inference(torch, lambda: convolutions(torch), images))
    assert norms(original)
    assert all(torch.equal(value, state[name]) for name, value in original.modules[0].state_dict().items())


def test_training_moves_the_statistics_so_nothing_is_folded() -> None:
    with pytest.raises(NotApplicable, match="without training"):
        FOLD.apply(training(torch, lambda: convolutions(torch), images))


def test_a_network_without_batch_norm_has_nothing_to_fold() -> None:
    with pytest.raises(NotApplicable, match="needs a batch norm"):
        FOLD.apply(inference(torch, lambda: perceptron(torch), lambda: torch.randn(5, 8)))


def test_a_batch_norm_that_uses_the_batch_itself_stays() -> None:
    model = convolutions(torch)  # in training mode
    values = images()
    with pytest.raises(NotApplicable, match="evaluation mode"):
        FOLD.apply(subject_of(lambda: model(values)))


class Shared(nn.Module):
    """A convolution whose result goes two ways."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(2, 2, 3), with_statistics(nn.BatchNorm2d(2))

    def forward(self, values: Any) -> Any:
        between = self.convolution(values)
        return self.norm(between) + between


class Twice(Shared):
    """One convolution that is called twice."""

    def forward(self, values: Any) -> Any:
        return self.convolution(self.norm(self.convolution(values)))


@pytest.mark.parametrize("make", [Shared, Twice])
def test_a_layer_whose_result_is_used_elsewhere_stays(make: Any) -> None:
    subject = inference(torch, make, images)
    with pytest.raises(NotApplicable, match="alone takes"):
        FOLD.apply(subject)
    assert norms(subject)


def is_last(tensor: Any) -> bool:
    return bool(tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous())


def test_weights_images_and_results_lie_channels_last() -> None:
    model, images = nn.Conv2d(3, 8, 3), torch.randn(2, 3, 9, 9)
    expected = model(images)
    weight = model.weight
    result = use_channels_last(subject_of(lambda: model(images)))()
    assert model.weight is weight and is_last(weight) and is_last(images) and is_last(result)
    torch.testing.assert_close(result, expected)


def test_volumes_have_a_layout_of_their_own() -> None:
    model, volumes, flat = nn.Conv3d(3, 8, 3), torch.randn(2, 3, 5, 5, 5), nn.Conv2d(3, 8, 3)
    use_channels_last(subject_of(lambda: (model(volumes), flat)))
    assert is_last(flat.weight)
    assert model.weight.is_contiguous(memory_format=torch.channels_last_3d)
    assert volumes.is_contiguous(memory_format=torch.channels_last_3d)


def test_an_image_that_shares_its_memory_stays_where_it_is() -> None:
    model, whole = nn.Conv2d(3, 8, 3), torch.randn(4, 3, 9, 9)
    images = whole[:2]

    def step() -> Any:
        whole.zero_()
        return model(images)

    result = use_channels_last(subject_of(step))()
    assert is_last(model.weight) and not is_last(images)
    torch.testing.assert_close(result, model.bias.view(1, 8, 1, 1).expand_as(result))


def test_channels_last_needs_a_convolution() -> None:
    model, data = nn.Linear(3, 3), torch.ones(1, 3)
    with pytest.raises(NotApplicable, match="needs a module with convolutions in two or three dimensions"):
        use_channels_last(subject_of(lambda: model(data)))


def test_what_lies_channels_last_already_is_left_alone() -> None:
    model, images = nn.Conv2d(3, 8, 3), torch.randn(2, 3, 9, 9).contiguous(memory_format=torch.channels_last)
    use_channels_last(subject_of(lambda: model(images)))
    with pytest.raises(NotApplicable, match="these lie channels last already"):
        use_channels_last(subject_of(lambda: model(images)))


class OnGpu(nn.Conv2d):
    """A convolution that says that it lies on a GPU."""

    def parameters(self, recurse: bool = True) -> Any:
        return iter([SimpleNamespace(device=SimpleNamespace(type="cuda"))])


def on_gpu(benchmark: bool) -> Subject:
    cudnn = SimpleNamespace(benchmark=benchmark)
    fake = SimpleNamespace(nn=nn, backends=SimpleNamespace(cudnn=cudnn))
    return Subject(torch=fake, step=lambda: cudnn.benchmark, modules=(OnGpu(3, 8, 3),))


def test_cudnn_searches_within_the_step_only() -> None:
    subject = on_gpu(benchmark=False)
    step = search_for_kernels(subject)
    assert step() is True
    assert subject.torch.backends.cudnn.benchmark is False


def test_cudnn_does_not_search_twice() -> None:
    with pytest.raises(NotApplicable, match="the program has it on"):
        search_for_kernels(on_gpu(benchmark=True))


def test_the_search_of_cudnn_does_not_apply_to_a_cpu() -> None:
    model, images = nn.Conv2d(3, 8, 3), torch.randn(2, 3, 9, 9)
    with pytest.raises(NotApplicable, match="needs a step that runs on an NVIDIA GPU"):
        search_for_kernels(subject_of(lambda: model(images)))
