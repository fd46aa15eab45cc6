"""Changes to convolutions: channels last, cuDNN's search for the fastest algorithm, folded batch norms."""

import importlib
import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

from bottleneck.experiment.interventions.subject import Change, NotApplicable, Subject
from bottleneck.harness.stopwatch import Step
from bottleneck.harness.torch_private import convolution_class, has_hooks, is_view


def use_channels_last(subject: Subject) -> Step:
    """Lays out convolution weights and held images channels last.

    They are those of the step. What a loader brings is not touched: the first convolution converts it, which is part of
    the cost.
    """
    torch = subject.torch
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    weights = [weight for weight in _weights(subject) if weight.dim() in formats]
    if not weights:
        raise NotApplicable("needs a module with convolutions in two or three dimensions")
    images = [tensor for tensor in _alone(subject.tensors) if _is_image(tensor, formats)]
    waiting = [
        misplaced
        for misplaced in (*weights, *images)
        if not misplaced.is_contiguous(memory_format=formats[misplaced.dim()])
    ]
    if not waiting:
        raise NotApplicable("needs data that lie channels first; these lie channels last already")
    for misplaced in waiting:  # not by Module.to(), which refuses a module that has weights of both ranks
        misplaced.data = misplaced.data.contiguous(memory_format=formats[misplaced.dim()])
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
    convolution = convolution_class(subject.torch)
    parts = (part for module in subject.modules for part in module.modules())
    return [part.weight for part in parts if issubclass(type(part), convolution)]


def _is_image(tensor: Any, formats: dict[int, Any]) -> bool:
    return tensor.dim() in formats and tensor.is_floating_point() and tensor.shape[1] > 1


def _alone(tensors: tuple[Any, ...]) -> list[Any]:
    """Picks the tensors that share their memory with no other.

    A view that moved would no longer show what is written.
    """
    dense = [tensor for tensor in tensors if str(tensor.layout) == "torch.strided"]
    sharing = Counter(tensor.untyped_storage().data_ptr() for tensor in dense)
    return [loose for loose in dense if not is_view(loose) and sharing[loose.untyped_storage().data_ptr()] == 1]


CHANGES = (
    Change("channels-last", "lay out convolutions channels last", "reordered", use_channels_last),
    Change("cudnn-benchmark", "let cuDNN search for its quickest kernels", "reordered", search_for_kernels),
)


# Of exactly these types: a subclass may do something else.
_TRANSPOSED = ("ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d")
_LAYERS = ("Linear", "Conv1d", "Conv2d", "Conv3d", *_TRANSPOSED)
_NORMS = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d")


# Names, within a network, of a layer and the batch norm that alone takes its result.
_Pair = tuple[str, str]


def _fold(subject: Subject) -> Step:
    """Folds batch norms into the layers right before them.

    These are convolution and linear layers.
    """
    if subject.train:
        raise NotApplicable("needs a step without training: the statistics of batch norm have to stand still")
    folded = sum(_fold_pairs(subject.torch, module) for module in subject.modules)
    if not folded:
        raise NotApplicable("needs a batch norm in evaluation mode that alone takes what a convolution or linear makes")
    return subject.step


def _fold_pairs(torch: Any, network: Any) -> int:
    """The number of pairs that were folded."""
    pairs = [pair for pair in _pairs(torch, network) if _can_fold(torch, network, pair)]
    for layer, norm in pairs:
        network.set_submodule(layer, _folded(torch, network.get_submodule(layer), network.get_submodule(norm)))
        network.set_submodule(norm, torch.nn.Identity())
    return len(pairs)


def _folded(torch: Any, layer: Any, norm: Any) -> Any:
    fusion = importlib.import_module("torch.nn.utils.fusion")
    kind = type(layer).__name__
    with torch.no_grad():
        if kind == "Linear":
            return fusion.fuse_linear_bn_eval(layer.eval(), norm)
        return fusion.fuse_conv_bn_eval(layer.eval(), norm, transpose=kind in _TRANSPOSED)


def _can_fold(torch: Any, network: Any, pair: _Pair) -> bool:
    layer, norm = map(network.get_submodule, pair)
    is_known = _is_one_of(torch, layer, _LAYERS) and _is_one_of(torch, norm, _NORMS)
    # A hook looks at what lies between the two, which will be another number.
    is_hooked = any(map(has_hooks, (layer, norm)))
    return is_known and not norm.training and norm.running_var is not None and not is_hooked


def _is_one_of(torch: Any, module: Any, names: tuple[str, ...]) -> bool:
    return any(type(module) is getattr(torch.nn, name) for name in names)


def _pairs(torch: Any, network: Any) -> list[_Pair]:
    """Finds layers and the norms after them, each called once.

    It goes by the graph of the network, else by its sequential parts.
    """
    try:
        graph = torch.fx.Tracer().trace(network)
    except Exception:  # control flow, or whatever else the user's network does with a symbol
        return list(_pairs_in_sequences(torch, network))
    return list(_pairs_in_graph(graph))


def _pairs_in_graph(graph: Any) -> Iterator[_Pair]:
    calls = [node.target for node in graph.nodes if node.op == "call_module"]
    for node in graph.nodes:
        before: Any = node.args[0] if node.op == "call_module" and node.args else None
        if before is None or getattr(before, "op", "") != "call_module" or len(before.users) != 1:
            continue
        if calls.count(node.target) == calls.count(before.target) == 1:
            yield before.target, node.target


def _pairs_in_sequences(torch: Any, network: Any) -> Iterator[_Pair]:
    """Yields neighbours in parts of type `nn.Sequential`.

    A layer must stand in one place only.
    """
    names = [id(module) for _, module in network.named_modules(remove_duplicate=False)]
    for prefix, module in network.named_modules():
        if type(module) is not torch.nn.Sequential:
            continue
        children = [(f"{prefix}.{name}" if prefix else name, child) for name, child in module.named_children()]
        for (name, child), (after, norm) in itertools.pairwise(children):
            if names.count(id(child)) == names.count(id(norm)) == 1:
                yield name, after


FOLDING_CHANGES = (
    Change(
        "fold-batchnorm", "fold batch norms into the layers before them (torch.nn.utils.fusion)", "reordered", _fold
    ),
)
