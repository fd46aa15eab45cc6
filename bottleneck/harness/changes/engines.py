"""Backends for torch.compile made of inference engines: each runs a captured graph in ONNX Runtime or OpenVINO.

Torch's own `onnxrt` backend is gone (2.13 keeps a placeholder), and OpenVINO's falls back to Inductor without a word
where it fails, which would give its name to another's figures. So the graph is handed over here, and what an engine
cannot do is said.
"""

import importlib
import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bottleneck.harness.changes.outcomes import NotApplicable

Backend = Callable[[Any, Sequence[Any]], Callable[..., Any]]
# What runs a graph: from a tensor for each of its inputs to an array for each of its outputs.
Engine = Callable[[Sequence[Any]], Sequence[Any]]
EngineMaker = Callable[[Any, "Graph"], Engine]


@dataclass(frozen=True)
class Graph:
    """A captured graph with its weights in it. ``inputs`` are examples of the inputs, ``places`` where they stand."""

    module: Any
    inputs: tuple[Any, ...]
    places: tuple[int, ...]


def engine_backend(torch: Any, make_engine: EngineMaker) -> Backend:
    """A backend for torch.compile that runs each graph in such an engine."""

    def backend(captured: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
        graph = _with_weights(torch, captured, inputs)
        _require_cpu(torch, inputs)
        _require_purity(torch, graph)
        with torch.no_grad(), _without_deprecations():
            engine = make_engine(torch, graph)

        def call(*values: Any) -> tuple[Any, ...]:
            results = engine([values[place].detach().numpy() for place in graph.places])
            return tuple(torch.from_numpy(result) for result in results)

        return call

    return backend


def onnx_runtime(torch: Any, graph: Graph) -> Engine:
    """The graph in ONNX Runtime, with as many threads as torch has.

    The older exporter is enough: a captured graph has no control flow left, and it takes a tenth of the newer's time.
    """
    runtime = importlib.import_module("onnxruntime")
    file = io.BytesIO()
    torch.onnx.export(graph.module, graph.inputs, file, dynamo=False)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    # Its threads would go on spinning into the turn of the original.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = runtime.InferenceSession(file.getvalue(), options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    asarray = importlib.import_module("numpy").asarray

    def run(arrays: Sequence[Any]) -> list[Any]:
        return [asarray(each) for each in session.run(None, dict(zip(names, arrays, strict=True)))]

    return run


def openvino(torch: Any, graph: Graph) -> Engine:
    """The graph in OpenVINO, with as many threads as torch has and in the precision of its weights.

    Left to itself it computes in bfloat16 where the processor has instructions for that.
    """
    library = importlib.import_module("openvino")
    model = library.convert_model(graph.module, example_input=graph.inputs)
    shapes = [library.PartialShape(list(each.shape)) for each in graph.inputs]
    model.reshape(dict(zip(model.inputs, shapes, strict=True)))
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
    }
    request = library.compile_model(model, "CPU", settings).create_infer_request()

    def run(arrays: Sequence[Any]) -> list[Any]:
        results = request.infer(arrays, share_inputs=True, share_outputs=False)
        return [results[index] for index in range(len(model.outputs))]

    return run


def _with_weights(torch: Any, captured: Any, inputs: Sequence[Any]) -> Graph:
    """A copy of the graph in which parameters and buffers are no inputs but constants: engines prepare those once.

    The captured graph itself stays as it is: torch still asks it for its inputs.
    """
    copied = torch.fx.Graph()
    copied.output(copied.graph_copy(captured.graph, {}))
    module = torch.fx.GraphModule(captured, copied)
    places = []
    placeholders = [node for node in copied.nodes if node.op == "placeholder"]
    for place, (node, value) in enumerate(zip(placeholders, inputs, strict=True)):
        if not isinstance(value, torch.nn.Parameter) and not hasattr(value, "_dynamo_static_input_type"):
            places.append(place)
            continue
        module.register_buffer(f"_constant_{place}", value.detach())
        with copied.inserting_before(node):
            node.replace_all_uses_with(copied.get_attr(f"_constant_{place}"))
        copied.erase_node(node)
    module.recompile()
    return Graph(module, tuple(inputs[place] for place in places), tuple(places))


def _require_cpu(torch: Any, inputs: Sequence[Any]) -> None:
    if not all(isinstance(each, torch.Tensor) and each.device.type == "cpu" for each in inputs):
        raise NotApplicable("needs a graph of tensors on the CPU")
    if any(each.dtype is torch.bfloat16 for each in inputs):
        raise NotApplicable("needs tensors of a type that numpy knows, which bfloat16 is not")


def _require_purity(torch: Any, graph: Graph) -> None:
    """Raises NotApplicable for a graph that writes into what it is given: an engine would give back results only."""
    copies = tuple(each.detach().clone() for each in graph.inputs)
    kept = dict(graph.module.named_buffers())
    versions = {name: each._version for name, each in kept.items()}
    before = [each._version for each in copies]
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        graph.module(*copies)
    is_pure = [each._version for each in copies] == before
    if not is_pure or any(each._version != versions[name] for name, each in kept.items()):
        raise NotApplicable("needs a graph that changes none of its inputs in place")


@contextmanager
def _without_deprecations() -> Iterator[None]:
    """Hides that ways into an engine are on their way out: it is not the user who took them."""
    with warnings.catch_warnings():
        for kind in (DeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", kind)
        yield
