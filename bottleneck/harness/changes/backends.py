"""Changes that compile the outermost modules with a backend other than Inductor, or say how to get it."""

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from bottleneck.harness.changes.change import Change, Missing, NotApplicable
from bottleneck.harness.changes.compilers import compile_parts, runs_on_gpu
from bottleneck.harness.changes.engines import EngineMaker, engine_backend, onnx_runtime, openvino
from bottleneck.harness.changes.subject import Subject

Step = Callable[[], Any]

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
