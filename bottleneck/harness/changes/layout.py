"""Changes to how convolutions find their data and their kernels: channels last, cuDNN's search for the quickest."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from bottleneck.harness.changes.change import Change
from bottleneck.harness.changes.outcomes import NotApplicable
from bottleneck.harness.changes.subject import Subject

Step = Callable[[], Any]


def use_channels_last(subject: Subject) -> Step:
    """The step with the weights of its convolutions, and the images that it holds, laid out channels last.

    What a loader brings is not touched: the first convolution converts it, which is part of the price.
    """
    torch = subject.torch
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    weights = [weight for weight in _weights(subject) if weight.dim() in formats]
    if not weights:
        raise NotApplicable("needs a module with convolutions in two or three dimensions")
    images = [tensor for tensor in _alone(subject.tensors) if _is_image(tensor, formats)]
    waiting = [each for each in (*weights, *images) if not each.is_contiguous(memory_format=formats[each.dim()])]
    if not waiting:
        raise NotApplicable("needs data that lie channels first; these lie channels last already")
    for each in waiting:  # not by Module.to(), which refuses a module that has weights of both ranks
        each.data = each.data.contiguous(memory_format=formats[each.dim()])
    return subject.step


def search_for_kernels(subject: Subject) -> Step:
    """The step with `cudnn.benchmark` on; off again between steps."""
    cudnn, inner = subject.torch.backends.cudnn, subject.step
    if "cuda" not in subject.device_types():
        raise NotApplicable("needs a step that runs on an NVIDIA GPU")
    if not _weights(subject):
        raise NotApplicable("needs a module with convolutions")
    if cudnn.benchmark:
        raise NotApplicable("needs cudnn.benchmark to be off; the program has it on")

    def step() -> Any:
        cudnn.benchmark = True
        try:
            return inner()
        finally:
            cudnn.benchmark = False

    return step


def _weights(subject: Subject) -> list[Any]:
    convolution = subject.torch.nn.modules.conv._ConvNd
    parts = (part for module in subject.modules for part in module.modules())
    return [part.weight for part in parts if issubclass(type(part), convolution)]


def _is_image(tensor: Any, formats: dict[int, Any]) -> bool:
    return tensor.dim() in formats and tensor.is_floating_point() and tensor.shape[1] > 1


def _alone(tensors: tuple[Any, ...]) -> list[Any]:
    """Those that share their memory with none of the others: a view that moved would no longer show what is written."""
    dense = [tensor for tensor in tensors if str(tensor.layout) == "torch.strided"]
    sharing = Counter(tensor.untyped_storage().data_ptr() for tensor in dense)
    return [each for each in dense if not each._is_view() and sharing[each.untyped_storage().data_ptr()] == 1]


CHANGES = (
    Change("channels-last", "lay out convolutions channels last", "reordered", use_channels_last),
    Change("cudnn-benchmark", "let cuDNN search for its quickest kernels", "reordered", search_for_kernels),
)
