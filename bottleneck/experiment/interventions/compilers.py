"""Changes that hand modules or the whole step to torch.compile.

The outermost modules are handed over, to Inductor or another backend.

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

from bottleneck.experiment.interventions import tvm_relax, xla
from bottleneck.experiment.interventions.subject import Change, Missing, NotApplicable, Subject
from bottleneck.harness.stopwatch import Step
from bottleneck.harness.torch_private import (
    backend_failure,
    graphs_compiled,
    has_cpp_compiler,
    is_compiled,
    is_constant_input,
    own_cache,
    version_of,
)


def compile_parts(subject: Subject, **options: Any) -> Step:
    """Compiles the step's outermost modules in place.

    A step without modules is compiled whole.

    `forward` is what is compiled: `Module.compile()` silently does nothing to an `nn.Sequential` (torch 2.13).
    Every compiled thing keeps entries of its own (``isolate_recompiles``): torch's cache is per code object, which the
    original and all other fresh subjects share, and gives up after eight entries without a word.
    """
    torch = subject.torch
    if any(_is_compiled(module) for module in subject.modules):
        raise NotApplicable("needs modules that are not compiled yet; these are")
    if not subject.modules:
        return compile_whole(subject, **options)
    for module in subject.modules:
        module.forward = torch.compile(module.forward, **own_cache(subject.torch), **options)
    return checked(subject.step, "needs a module that the step calls as a whole; try compile-step")


def compile_whole(subject: Subject, **options: Any) -> Step:
    """Compiles the step as one function.

    There are breaks where it leaves torch (and at `backward()`).
    """
    run = subject.torch.compile(lambda: subject.step(), **own_cache(subject.torch), **options)  # noqa: PLW0108
    return checked(run, "needs operations of torch that can be captured in a graph")


def checked(run: Step, need: str) -> Step:
    """Makes a first call without a compiled graph raise NotApplicable.

    An exception of our own backends is taken out of torch's wrapping.
    """
    failure: Any = backend_failure()
    is_first = True

    def first() -> Any:
        nonlocal is_first
        before = graphs_compiled()
        try:
            result = run()
        except failure as exc:
            if isinstance(exc.inner_exception, NotApplicable | Missing):
                raise exc.inner_exception from None
            raise
        if graphs_compiled() == before:
            raise NotApplicable(need)
        is_first = False
        return result

    return lambda: first() if is_first else run()


def runs_on_gpu(subject: Subject) -> bool:
    """True if the step works on a GPU, by its tensors."""
    return "cuda" in subject.device_types()


def _is_compiled(module: Any) -> bool:
    return any(map(is_compiled, module.modules()))


def need_inductor(subject: Subject) -> None:
    """Raises Missing where Inductor lacks what it makes kernels with.

    That is a C++ compiler, or Triton for a GPU.
    """
    if runs_on_gpu(subject):
        if importlib.util.find_spec("triton") is None:
            raise Missing("Triton: pip install triton")
        return
    if not has_cpp_compiler():
        raise Missing("a C++ compiler: install g++ (apt install g++) or name one in CXX")


def _compile(subject: Subject) -> Step:
    need_inductor(subject)
    return compile_parts(subject)


def _compile_step(subject: Subject) -> Step:
    if not subject.modules:
        raise NotApplicable("needs modules beside other code: without any, compile takes the whole step already")
    if subject.loaders or subject.iterators:
        raise NotApplicable("needs a step that loads no data: the compiler would follow it into the dataset")
    need_inductor(subject)
    return compile_whole(subject)


def _reduce_overhead(subject: Subject) -> Step:
    if not runs_on_gpu(subject):
        raise NotApplicable("needs a GPU: its CUDA graphs are all that this mode adds to compile")
    need_inductor(subject)
    return _by_marked_steps(subject.torch, compile_parts(subject, mode="reduce-overhead"))


def _max_autotune(subject: Subject) -> Step:
    need_inductor(subject)
    return _by_marked_steps(subject.torch, compile_parts(subject, mode="max-autotune"))


def _by_marked_steps(torch: Any, run: Step) -> Step:
    """Marks each step's begin for the CUDA graphs of Inductor.

    It tells them that nobody needs the results of the step before.
    """

    def step() -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return run()

    return step


CHANGES = (
    Change("compile", "torch.compile", "reordered", _compile),
    Change("compile-step", "torch.compile of the whole step, optimizer included", "reordered", _compile_step),
    Change("compile-reduce-overhead", 'torch.compile(mode="reduce-overhead")', "reordered", _reduce_overhead),
    Change("compile-max-autotune", 'torch.compile(mode="max-autotune")', "reordered", _max_autotune),
)


EngineBackend = Callable[[Any, Sequence[Any]], Callable[..., Any]]
# What runs a graph: from a tensor for each of its inputs to one for each of its outputs.
Engine = Callable[[Sequence[Any]], Sequence[Any]]
EngineMaker = Callable[[Any, "Graph"], Engine]


@dataclass(frozen=True)
class Graph:
    """Captured graph with its weights in it.

    ``inputs`` are examples of the inputs, and ``places`` their positions among the original ones.
    """

    module: Any
    inputs: tuple[Any, ...]
    places: tuple[int, ...]


def engine_backend(torch: Any, make_engine: EngineMaker) -> EngineBackend:
    """A backend for torch.compile that runs each graph in such an engine."""

    def backend(captured: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
        graph = _with_weights(torch, captured, inputs)
        require_cpu(torch, inputs)
        _require_purity(torch, graph)
        with torch.no_grad(), without_deprecations():
            engine = make_engine(torch, graph)

        def call(*values: Any) -> tuple[Any, ...]:
            return tuple(engine([values[place].detach() for place in graph.places]))

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
    names = [argument.name for argument in session.get_inputs()]
    asarray = importlib.import_module("numpy").asarray

    def run(tensors: Sequence[Any]) -> list[Any]:
        arrays = [tensor.numpy() for tensor in tensors]
        results = session.run(None, dict(zip(names, arrays, strict=True)))
        return [torch.from_numpy(asarray(result)) for result in results]

    return run


def openvino(torch: Any, graph: Graph) -> Engine:
    """Makes the graph in OpenVINO, with as many threads as torch has.

    It computes in the precision of its weights. Left to itself it computes in bfloat16 where the processor has
    instructions for that.
    """
    library = importlib.import_module("openvino")
    model = library.convert_model(graph.module, example_input=graph.inputs)
    shapes = [library.PartialShape(list(example.shape)) for example in graph.inputs]
    model.reshape(dict(zip(model.inputs, shapes, strict=True)))
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
    }
    request = library.compile_model(model, "CPU", settings).create_infer_request()

    def run(tensors: Sequence[Any]) -> list[Any]:
        arrays = [tensor.numpy() for tensor in tensors]
        results = request.infer(arrays, share_inputs=True, share_outputs=False)
        return [torch.from_numpy(results[index]) for index in range(len(model.outputs))]

    return run


def _with_weights(torch: Any, captured: Any, inputs: Sequence[Any]) -> Graph:
    """Copies the graph with parameters and buffers as constants.

    They are no inputs of the copy, since engines prepare constants once.

    The captured graph itself stays as it is: torch still reads its inputs.
    """
    copied = torch.fx.Graph()
    copied.output(copied.graph_copy(captured.graph, {}))
    module = torch.fx.GraphModule(captured, copied)
    places = []
    placeholders = [node for node in copied.nodes if node.op == "placeholder"]
    for place, (node, value) in enumerate(zip(placeholders, inputs, strict=True)):
        if not isinstance(value, torch.nn.Parameter) and not is_constant_input(value):
            places.append(place)
            continue
        module.register_buffer(f"_constant_{place}", value.detach())
        with copied.inserting_before(node):
            node.replace_all_uses_with(copied.get_attr(f"_constant_{place}"))
        copied.erase_node(node)
    module.recompile()
    return Graph(module, tuple(inputs[place] for place in places), tuple(places))


def require_cpu(torch: Any, inputs: Sequence[Any]) -> None:
    """Raises NotApplicable for tensors that an engine on the CPU does not take."""
    if not all(isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu" for tensor in inputs):
        raise NotApplicable("needs a graph of tensors on the CPU")
    if any(tensor.dtype is torch.bfloat16 for tensor in inputs):
        raise NotApplicable("needs tensors of a type that numpy knows, which bfloat16 is not")


def _require_purity(torch: Any, graph: Graph) -> None:
    """Raises NotApplicable for a graph that writes into its inputs.

    An engine would give back results only.
    """
    copies = tuple(tensor.detach().clone() for tensor in graph.inputs)
    buffers = dict(graph.module.named_buffers())
    versions = {name: version_of(tensor) for name, tensor in buffers.items()}
    before = [version_of(tensor) for tensor in copies]
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        graph.module(*copies)
    is_pure = [version_of(tensor) for tensor in copies] == before
    if not is_pure or any(version_of(tensor) != versions[name] for name, tensor in buffers.items()):
        raise NotApplicable("needs a graph that changes none of its inputs in place")


@contextmanager
def without_deprecations() -> Iterator[None]:
    """Hides deprecation warnings of ways into an engine.

    The user did not take those ways.
    """
    with warnings.catch_warnings():
        for kind in (DeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", kind)
        yield


# Packages name the backends that they bring under this entry point (torch/_dynamo/backends/registry.py).
_GROUP = "torch_dynamo_backends"


@dataclass(frozen=True)
class Backend:
    """Backend of torch.compile: its needs and its uses.

    ``modules`` are those that it needs, and ``get`` says how to get them. ``lacks`` says that of this torch, where
    versions have to fit.

    ``engine`` runs the graph where torch has no backend of this name itself. ``imports`` is what registers it.
    """

    title: str
    modules: tuple[str, ...] = ()
    get: str = ""
    lacks: Callable[[Any], str | None] | None = None
    engine: EngineMaker | None = None
    imports: str | None = None
    trains: bool = False
    needs_gpu: bool = False


BACKENDS: Mapping[str, Backend] = {
    "openvino": Backend("OpenVINO", ("openvino",), "pip install openvino", engine=openvino),
    "onnxrt": Backend("ONNX Runtime", ("onnxruntime", "onnx"), "pip install onnxruntime onnx", engine=onnx_runtime),
    "tvm": Backend("TVM", ("tvm", "tvm.relax"), "pip install apache-tvm", engine=tvm_relax.tvm),
    "tvm-tuned": Backend(
        f"TVM, tuned for {tvm_relax.TUNING_S} s",
        ("tvm", "tvm.relax", "psutil"),
        "pip install apache-tvm 'apache-tvm-ffi<0.1.15' psutil",
        engine=tvm_relax.tvm_tuned,
    ),
    "xla": Backend("XLA", lacks=xla.torchax_is_there, engine=xla.xla),
    "openxla": Backend(
        "XLA by torch_xla", lacks=xla.torch_xla_is_there, imports="torch_xla.core.xla_model", trains=True
    ),
    "tensorrt": Backend(
        "TensorRT", ("torch_tensorrt",), "pip install torch-tensorrt", imports="torch_tensorrt", needs_gpu=True
    ),
    "cudagraphs": Backend("CUDA graphs without Inductor", trains=True, needs_gpu=True),
}


def _compile_with(name: str, backend: Backend, subject: Subject) -> Step:
    """Compiles the step's outermost modules with this backend.

    The whole step is compiled where it has no modules.
    """
    if subject.train and not backend.trains:
        raise NotApplicable(f"needs a step without training: {backend.title} only runs networks forward")
    if backend.needs_gpu and not runs_on_gpu(subject):
        raise NotApplicable("needs a step that works on a GPU")
    torch = subject.torch
    lacking = None if all(_is_installed(module) for module in backend.modules) else backend.get
    lacking = lacking or (None if backend.lacks is None else backend.lacks(torch))
    if lacking is not None:
        raise Missing(f"{backend.title}: {lacking}")
    if backend.engine is None:
        if backend.imports is not None:
            importlib.import_module(backend.imports)
        return compile_parts(subject, backend=name)
    made = engine_backend(torch, backend.engine)
    return _without_fast_path(torch, compile_parts(subject, backend=made, dynamic=False))


def _without_fast_path(torch: Any, run: Step) -> Step:
    """Runs the step without torch's fused encoder layer for inference.

    No exporter knows that operator.
    """
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
    announced = {point.name for point in importlib.metadata.entry_points(group=_GROUP)} - BACKENDS.keys() - {"inductor"}
    return {**BACKENDS, **{name: Backend(name, trains=True) for name in sorted(announced)}}


BACKEND_CHANGES = tuple(
    Change(f"backend-{name}", f"torch.compile with {item.title}", "reordered", partial(_compile_with, name, item))
    for name, item in _all_backends().items()
)
