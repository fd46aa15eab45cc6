"""Changes that record the step's operations once and replay them.

They are TorchScript traces and CUDA graphs.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bottleneck.experiment.interventions.compilers import runs_on_gpu
from bottleneck.experiment.interventions.subject import Change, NotApplicable, Subject
from bottleneck.harness.stopwatch import Step
from bottleneck.harness.torch_private import trees

# What else may stand among the arguments: a trace holds it fast, so it has to be compared with that of the next call.
_PLAIN = (int, float, complex, str, bytes, type(None))
_TENSOR = object()


@dataclass(frozen=True)
class Arguments:
    """Arguments of one call in parts.

    They are its tensors, all else in order, and how they were nested.
    """

    tensors: tuple[Any, ...]
    leaves: tuple[Any, ...]
    spec: Any

    def rebuilt(self, tree: Any, tensors: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and named arguments with these tensors in place of the first ones."""
        given = iter(tensors)
        positional, named = tree.tree_unflatten(
            [next(given) if leaf is _TENSOR else leaf for leaf in self.leaves], self.spec
        )
        return positional, named

    def key(self) -> tuple[Any, ...]:
        """Equal for calls that differ in the values of their tensors only."""
        return (self.leaves, str(self.spec), *map(_kind, self.tensors))


@dataclass(frozen=True)
class Fixed:
    """Replacement of a module for arguments of one kind.

    ``run`` takes its tensors and gives the leaves.
    """

    run: Callable[..., tuple[Any, ...]]
    result_spec: Any


# Makes it of a module that takes the tensors of these arguments and gives a tuple of tensors.
Maker = Callable[[Any, tuple[Any, ...]], Callable[..., tuple[Any, ...]]]


def replace_forward(torch: Any, module: Any, make: Maker) -> None:
    """Has the module run what ``make`` makes of it.

    It is made anew for each kind of arguments, at the first call with them.

    At the call, because only then are the real inputs known; what making it does to buffers and to generators of random
    numbers is undone. Where the arguments are tensors and nothing else, a call costs about a microsecond more.
    """
    forward, made = module.forward, dict[Any, Fixed]()

    def fixed_for(arguments: Arguments, key: Any) -> Fixed:
        if key not in made:
            del module.forward  # what is made of it should see the module as it was
            made[key] = _fix(torch, module, forward, arguments, make)
            module.forward = call
        return made[key]

    def call(*positional: Any, **named: Any) -> Any:
        mode = (module.training, torch.is_grad_enabled(), torch.is_autocast_enabled())
        if not named and all(isinstance(argument, torch.Tensor) for argument in positional):
            key: Any = (mode, *map(_kind, positional))
            fixed = made.get(key) or fixed_for(_arguments(torch, positional, named), key)
            return _result(fixed, fixed.run(*positional))
        arguments = _arguments(torch, positional, named)
        fixed = fixed_for(arguments, (mode, arguments.key()))
        return _result(fixed, fixed.run(*arguments.tensors))

    module.forward = call


def _kind(tensor: Any) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.device, tensor.requires_grad


def _result(fixed: Fixed, leaves: tuple[Any, ...]) -> Any:
    if fixed.result_spec.is_leaf():
        return leaves[0]
    return trees().tree_unflatten(list(leaves), fixed.result_spec)


def _arguments(torch: Any, positional: tuple[Any, ...], named: dict[str, Any]) -> Arguments:
    leaves, spec = trees().tree_flatten((positional, named))
    tensors = tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
    if not all(isinstance(leaf, (torch.Tensor, *_PLAIN)) for leaf in leaves):
        raise NotApplicable("needs networks that take tensors, numbers and texts, in lists, tuples or dictionaries")
    return Arguments(tensors, tuple(_TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves), spec)


def _fix(torch: Any, module: Any, forward: Callable[..., Any], arguments: Arguments, make: Maker) -> Fixed:
    flat = _flat_module(torch, module, forward, arguments)
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    devices = sorted({parameter.device.index for parameter in module.parameters() if parameter.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices):
        run = make(flat, arguments.tensors)
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            buffer.copy_(buffers[name])
    return Fixed(run, flat.result_spec)


def _flat_module(torch: Any, module: Any, forward: Callable[..., Any], arguments: Arguments) -> Any:
    """Wraps the module with another signature.

    It learns the structure of its result, ``result_spec``, when it is called.
    """
    tree = trees()

    class Flat(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = module
            self.training = module.training
            self.result_spec: Any = None

        def forward(self, *tensors: Any) -> tuple[Any, ...]:
            positional, named = arguments.rebuilt(tree, tensors)
            leaves, self.result_spec = tree.tree_flatten(forward(*positional, **named))
            if not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
                raise NotApplicable("needs networks that give back tensors and nothing else")
            return tuple(leaves)

    return Flat()


# What has to have run before a capture: libraries choose and allocate at their first calls (torch.cuda.graphs, 3 too).
_CALLS_BEFORE_CAPTURE = 3


def _trace(subject: Subject) -> Step:
    """Traces the outermost modules of the step at their first call.

    TorchScript optimises at the two calls after it.
    """
    torch = subject.torch
    if not subject.modules:
        raise NotApplicable("needs a module: torch.jit.trace takes a network and its inputs")

    def make(flat: Any, tensors: tuple[Any, ...]) -> Callable[..., Any]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*torch.jit", category=DeprecationWarning)
            traced: Callable[..., Any] = torch.jit.trace(flat, tensors, check_trace=False)
        return traced

    for module in subject.modules:
        replace_forward(torch, module, make)
    return subject.step


def _graph(subject: Subject) -> Step:
    """Runs the step's outermost modules as CUDA graphs.

    Backward passes are graphs too. A step without modules becomes one graph.
    """
    torch = subject.torch
    if not runs_on_gpu(subject):
        raise NotApplicable("needs a step that works on an NVIDIA GPU")
    if not subject.modules:
        return _graph_of_step(subject)

    def make(flat: Any, tensors: tuple[Any, ...]) -> Callable[..., Any]:
        captured: Callable[..., Any] = torch.cuda.make_graphed_callables(flat, tensors, allow_unused_input=True)
        return captured

    for module in subject.modules:
        replace_forward(torch, module, make)
    return subject.step


def _graph_of_step(subject: Subject) -> Step:
    """Captures the whole step as one graph at the first call.

    The same memory holds its results every time.
    """
    torch = subject.torch
    if subject.train or subject.loaders:
        raise NotApplicable("needs a module, or a step that neither trains nor loads data")
    graph, results = torch.cuda.CUDAGraph(), list[Any]()

    def capture() -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_CALLS_BEFORE_CAPTURE):
                subject.step()
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph):
            results.append(subject.step())

    def step() -> Any:
        if not results:
            capture()
        graph.replay()
        return results[0]

    return step


CHANGES = (
    Change("torchscript", "torch.jit.trace of the outermost modules", "reordered", _trace),
    Change("cuda-graph", "torch.cuda.make_graphed_callables of the outermost modules", "same", _graph),
)
