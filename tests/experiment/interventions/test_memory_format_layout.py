from types import SimpleNamespace
from typing import Any

import pytest

from bottleneck.experiment.interventions.memory_format import search_for_kernels, use_channels_last
from bottleneck.experiment.interventions.subject import NotApplicable, Subject, subject_of

torch: Any = pytest.importorskip("torch")
nn = torch.nn


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
