"""Changes that compile networks ahead of time and call them without Python's dispatch.

A network is exported, and compiled by AOTInductor into a shared library or by ExecuTorch into a program. A call runs
the whole network, without guards, modules or operators of torch in between: what remains beside the arithmetic is one
call.
"""

import importlib
import importlib.util
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bottleneck.experiment.interventions.compilers import need_inductor, require_cpu, without_deprecations
from bottleneck.experiment.interventions.graphs import replace_forward
from bottleneck.experiment.interventions.subject import Change, Missing, NotApplicable, Subject
from bottleneck.harness.stopwatch import Step
from bottleneck.harness.torch_private import compile_graph, package_maker, record_as_compiling

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


def _whole_step(subject: Subject) -> Step:
    """The step as one compiled call: forward, backward and optimizer.

    The first step runs as it is, and makes the optimizer's state. The second is recorded as it runs, operator by
    operator, with the parameters and that state as inputs. `torch.compile` would break the step at `backward()`.
    """
    if not subject.train or not subject.optimizers:
        raise NotApplicable("needs a step that trains with an optimizer; aot-package is for others")
    if subject.loaders or subject.iterators:
        raise NotApplicable("needs a step that loads no data: a record would take one batch for all")
    if any(hasattr(optimizer.step, "_wrapped_by_lr_sched") for optimizer in subject.optimizers):
        raise NotApplicable("needs a learning rate that stays: a record would keep that of one step")
    need_inductor(subject)
    torch, step = subject.torch, subject.step
    calls, compiled = 0, list[Callable[[], Any]]()

    def run() -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            return step()
        if compiled:
            with torch.no_grad():
                return compiled[0]()
        results = list[Any]()
        with _tensor_counts(subject.optimizers):
            compiled.append(_recorded(torch, step, results))
        return results[0]

    return run


@contextmanager
def _tensor_counts(optimizers: Sequence[Any]) -> Iterator[None]:
    """Has optimizers keep their count of steps in a tensor for a while."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups if "capturable" in group]
    before = [group["capturable"] for group in groups]
    for group in groups:
        group["capturable"] = True
    try:
        yield
    finally:
        for group, value in zip(groups, before, strict=True):
            group["capturable"] = value


def _recorded(torch: Any, step: Step, results: list[Any]) -> Callable[[], Any]:
    """Runs the step, with its result in ``results``, and compiles what it did."""

    def watched() -> Any:
        results.append(step())
        return results[0]

    try:
        graph = record_as_compiling(watched)
    except RuntimeError as error:
        if "value out of a tracing tensor" not in str(error):
            raise
        raise NotApplicable("needs a step that reads no numbers from its tensors, as item() does") from error
    tensors = _constants_as_inputs(graph)
    run = compile_graph(torch, graph, tensors)
    return lambda: run(*tensors)


def _constants_as_inputs(graph: Any) -> list[Any]:
    """Makes the tensors that a graph holds its inputs, and gives these."""
    first, inputs, tensors = next(iter(graph.graph.nodes)), dict[str, Any](), list[Any]()
    for node in list(graph.graph.nodes):
        if node.op == "get_attr":
            if node.target not in inputs:
                with graph.graph.inserting_before(first):
                    inputs[node.target] = graph.graph.placeholder(f"held_{len(tensors)}")
                tensors.append(getattr(graph, node.target).detach())
            node.replace_all_uses_with(inputs[node.target])
            graph.graph.erase_node(node)
    graph.recompile()
    return tensors


CHANGES = (
    Change("aot-package", "AOTInductor package of the outermost modules, called directly", "reordered", _packaged),
    Change("executorch", "ExecuTorch program of the outermost modules, by XNNPACK", "reordered", _executed),
    Change(
        "whole-step", "the whole step as one compiled call, backward and optimizer included", "reordered", _whole_step
    ),
)
