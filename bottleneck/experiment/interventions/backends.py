"""Changes that compile the outermost modules with another backend of torch.compile, such as ONNX Runtime or OpenVINO.

Torch's own `onnxrt` backend is gone (2.13 keeps a placeholder), and OpenVINO's falls back to Inductor without a word
where it fails, which would give its name to another's figures. So the graph is handed over here, and what an engine
cannot do is said.
"""

import importlib
import importlib.metadata
import importlib.util
import io
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from bottleneck.experiment.interventions.compilers import compile_parts, runs_on_gpu
from bottleneck.experiment.interventions.subject import Change, Missing, NotApplicable, Subject
from bottleneck.harness.stopwatch import Step

EngineBackend = Callable[[Any, Sequence[Any]], Callable[..., Any]]
# What runs a graph: from a tensor for each of its inputs to an array for each of its outputs.
Engine = Callable[[Sequence[Any]], Sequence[Any]]
EngineMaker = Callable[[Any, "Graph"], Engine]


@dataclass(frozen=True)
class Graph:
    """A captured graph with its weights in it. ``inputs`` are examples of the inputs, ``places`` where they stand."""

    module: Any
    inputs: tuple[Any, ...]
    places: tuple[int, ...]


def engine_backend(torch: Any, make_engine: EngineMaker) -> EngineBackend:
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

    The captured graph itself stays as it is: torch still reads its inputs.
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


# Packages name the backends that they bring under this entry point (torch/_dynamo/backends/registry.py).
_GROUP = "torch_dynamo_backends"


@dataclass(frozen=True)
class Backend:
    """A backend of torch.compile: the modules that it needs and how to get them, and what it can be used for.

    ``engine`` runs the graph where torch has no backend of this name itself. ``imports`` is what registers it.
    """

    title: str
    modules: tuple[str, ...] = ()
    get: str = ""
    engine: EngineMaker | None = None
    imports: str | None = None
    trains: bool = False
    needs_gpu: bool = False


BACKENDS: Mapping[str, Backend] = {
    "openvino": Backend("OpenVINO", ("openvino",), "pip install openvino", openvino),
    "onnxrt": Backend("ONNX Runtime", ("onnxruntime", "onnx"), "pip install onnxruntime onnx", onnx_runtime),
    "tvm": Backend("TVM", ("tvm", "tvm.relay"), "Apache TVM with Relay (before 0.20), see tvm.apache.org/docs/install"),
    "openxla": Backend("XLA", ("torch_xla",), "pip install torch_xla", imports="torch_xla.core.xla_model", trains=True),
    "tensorrt": Backend(
        "TensorRT", ("torch_tensorrt",), "pip install torch-tensorrt", imports="torch_tensorrt", needs_gpu=True
    ),
    "cudagraphs": Backend("CUDA graphs without Inductor", trains=True, needs_gpu=True),
}


def _compile_with(name: str, backend: Backend, subject: Subject) -> Step:
    """The step with its outermost modules (the whole step where it has none) compiled by this backend."""
    if subject.train and not backend.trains:
        raise NotApplicable(f"needs a step without training: {backend.title} only runs networks forward")
    if backend.needs_gpu and not runs_on_gpu(subject):
        raise NotApplicable("needs a step that works on a GPU")
    if not all(_is_installed(module) for module in backend.modules):
        raise Missing(f"{backend.title}: {backend.get}")
    torch = subject.torch
    if backend.engine is None:
        if backend.imports is not None:
            importlib.import_module(backend.imports)
        return compile_parts(subject, backend=name)
    made = engine_backend(torch, backend.engine)
    return _without_fast_path(torch, compile_parts(subject, backend=made, dynamic=False))


def _without_fast_path(torch: Any, run: Step) -> Step:
    """The step without the fused encoder layer that torch takes for inference, an operator that no exporter knows."""
    mha = torch.backends.mha

    def step() -> Any:
        was_enabled = mha.get_fastpath_enabled()
        mha.set_fastpath_enabled(False)
        try:
            return run()
        finally:
            mha.set_fastpath_enabled(was_enabled)

    return step


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


def _all_backends() -> dict[str, Backend]:
    """Those above, and whatever else an installed package has announced to torch."""
    announced = {each.name for each in importlib.metadata.entry_points(group=_GROUP)} - BACKENDS.keys() - {"inductor"}
    return {**BACKENDS, **{name: Backend(name, trains=True) for name in sorted(announced)}}


CHANGES = tuple(
    Change(f"backend-{name}", f"torch.compile with {each.title}", "reordered", partial(_compile_with, name, each))
    for name, each in _all_backends().items()
)
