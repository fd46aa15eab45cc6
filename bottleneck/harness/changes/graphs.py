"""Changes that record the step's operations once and replay them: TorchScript traces and CUDA graphs."""

import warnings
from collections.abc import Callable
from typing import Any

from bottleneck.harness.changes.change import Change, NotApplicable
from bottleneck.harness.changes.compilers import runs_on_gpu
from bottleneck.harness.changes.flat import replace_forward
from bottleneck.harness.changes.subject import Subject

Step = Callable[[], Any]

# What has to have run before a capture: libraries choose and allocate at their first calls (torch.cuda.graphs, 3 too).
_CALLS_BEFORE_CAPTURE = 3


def _trace(subject: Subject) -> Step:
    """The step with the outermost modules traced at their first call; TorchScript optimises at the two after it."""
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
    """The step with the outermost modules as CUDA graphs, backward passes too; one graph where there is no module."""
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
    """The whole step as one graph, captured at the first call: the same memory holds its results every time."""
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
