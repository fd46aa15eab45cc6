"""Changes that compile networks ahead of time and call them without Python's dispatch.

A network is exported, and compiled by AOTInductor into a shared library or by ExecuTorch into a program. A call runs
the whole network, without guards, modules or operators of torch in between: what remains beside the arithmetic is one
call.
"""

import importlib
import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bottleneck.experiment.interventions.compilers import need_inductor, require_cpu, without_deprecations
from bottleneck.experiment.interventions.graphs import replace_forward
from bottleneck.experiment.interventions.subject import Change, Missing, NotApplicable, Subject
from bottleneck.harness.stopwatch import Step
from bottleneck.harness.torch_private import package_maker

Call = Callable[[list[Any]], list[Any]]
# Makes of an exported program what runs it.
ProgramMaker = Callable[[Any], Call]


def _ahead(subject: Subject, make_call: ProgramMaker, *, is_for_cpu: bool = False) -> Step:
    """The step with its outermost modules compiled at their first call."""
    torch = subject.torch
    if subject.train:
        raise NotApplicable("needs a step without training: a network that is exported only runs forward")
    if not subject.modules:
        raise NotApplicable("needs a module: torch.export takes a network and its inputs")

    def make(flat: Any, tensors: tuple[Any, ...]) -> Callable[..., tuple[Any, ...]]:
        if is_for_cpu:
            require_cpu(torch, tensors)
        with torch.no_grad(), without_deprecations():
            flat(*tensors)  # learns how its results are nested; what an export sets is taken back
            call = make_call(torch.export.export(flat, tensors))
        return lambda *given: tuple(call(list(given)))

    for module in subject.modules:
        replace_forward(torch, module, make)
    return subject.step


def _packaged(subject: Subject) -> Step:
    """The step with its outermost modules as packages of AOTInductor."""
    package = package_maker()
    if package is None:
        raise Missing("torch 2.6 or later: pip install 'torch>=2.6'")
    need_inductor(subject)

    def call_of(program: Any) -> Call:
        with tempfile.TemporaryDirectory(prefix="bottleneck-aot-") as folder:
            return package(program, str(Path(folder) / "network.pt2"))

    return _ahead(subject, call_of)


def _executed(subject: Subject) -> Step:
    """The step with its outermost modules as programs of ExecuTorch and XNNPACK."""
    if importlib.util.find_spec("executorch") is None:
        raise Missing("ExecuTorch: pip install executorch")
    return _ahead(subject, _executorch_call, is_for_cpu=True)


def _executorch_call(program: Any) -> Call:
    lower: Any = importlib.import_module("executorch.exir").to_edge_transform_and_lower
    partition: Any = importlib.import_module("executorch.backends.xnnpack.partition.xnnpack_partitioner")
    runtime: Any = importlib.import_module("executorch.runtime").Runtime
    lowered = lower(program, partitioner=[partition.XnnpackPartitioner()]).to_executorch()
    buffer = lowered.buffer
    loaded = runtime.get().load_program(buffer)
    method = loaded.load_method("forward")

    def call(tensors: list[Any]) -> list[Any]:
        # The next call writes into these results, and the method points into the other two, which it does not hold.
        assert buffer and loaded is not None
        return [result.clone() for result in method.execute(tensors)]

    return call


CHANGES = (
    Change("aot-package", "AOTInductor package of the outermost modules, called directly", "reordered", _packaged),
    Change("executorch", "ExecuTorch program of the outermost modules, by XNNPACK", "reordered", _executed),
)
