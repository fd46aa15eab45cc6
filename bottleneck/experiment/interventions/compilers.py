"""Changes that hand the step to torch.compile with Inductor: the outermost modules, or the step as a whole."""

import importlib
import importlib.util
from typing import Any

from bottleneck.experiment.interventions.subject import Change, Missing, NotApplicable, Subject
from bottleneck.harness.stopwatch import Step


def compile_parts(subject: Subject, **options: Any) -> Step:
    """The step with its outermost modules compiled in place; compiled whole where it has none.

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
        module.forward = torch.compile(module.forward, isolate_recompiles=True, **options)
    return checked(subject.step, "needs a module that the step calls as a whole; try compile-step")


def compile_whole(subject: Subject, **options: Any) -> Step:
    """The step compiled as one function, with breaks where it leaves torch (and at `backward()`)."""
    run = subject.torch.compile(lambda: subject.step(), isolate_recompiles=True, **options)  # noqa: PLW0108
    return checked(run, "needs operations of torch that can be captured in a graph")


def checked(run: Step, need: str) -> Step:
    """The step, whose first call raises NotApplicable if not one graph was compiled in it.

    An exception of our own backends is taken out of torch's wrapping.
    """
    dynamo = importlib.import_module("torch._dynamo")
    stats = importlib.import_module("torch._dynamo.utils").counters["stats"]
    is_first = True

    def first() -> Any:
        nonlocal is_first
        before = stats["unique_graphs"]
        try:
            result = run()
        except dynamo.exc.BackendCompilerFailed as exc:
            if isinstance(exc.inner_exception, NotApplicable | Missing):
                raise exc.inner_exception from None
            raise
        if stats["unique_graphs"] == before:
            raise NotApplicable(need)
        is_first = False
        return result

    return lambda: first() if is_first else run()


def runs_on_gpu(subject: Subject) -> bool:
    """True if the step works on a GPU, by its tensors."""
    return "cuda" in subject.device_types()


def _is_compiled(module: Any) -> bool:
    return any(
        each._compiled_call_impl is not None
        or type(each).__name__ == "OptimizedModule"
        or hasattr(each.forward, "_torchdynamo_orig_callable")
        for each in module.modules()
    )


def _need_inductor(subject: Subject) -> None:
    """Raises Missing where Inductor lacks what it makes kernels with: a C++ compiler, or Triton for a GPU."""
    if runs_on_gpu(subject):
        if importlib.util.find_spec("triton") is None:
            raise Missing("Triton: pip install triton")
        return
    try:
        importlib.import_module("torch._inductor.cpp_builder").get_cpp_compiler()
    except importlib.import_module("torch._inductor.exc").InvalidCxxCompiler:
        raise Missing("a C++ compiler: install g++ (apt install g++) or name one in CXX") from None


def _compile(subject: Subject) -> Step:
    _need_inductor(subject)
    return compile_parts(subject)


def _compile_step(subject: Subject) -> Step:
    if not subject.modules:
        raise NotApplicable("needs modules beside other code: without any, compile takes the whole step already")
    if subject.loaders or subject.iterators:
        raise NotApplicable("needs a step that loads no data: the compiler would follow it into the dataset")
    _need_inductor(subject)
    return compile_whole(subject)


def _reduce_overhead(subject: Subject) -> Step:
    if not runs_on_gpu(subject):
        raise NotApplicable("needs a GPU: its CUDA graphs are all that this mode adds to compile")
    _need_inductor(subject)
    return _by_marked_steps(subject.torch, compile_parts(subject, mode="reduce-overhead"))


def _max_autotune(subject: Subject) -> Step:
    _need_inductor(subject)
    return _by_marked_steps(subject.torch, compile_parts(subject, mode="max-autotune"))


def _by_marked_steps(torch: Any, run: Step) -> Step:
    """The step, which signals to the CUDA graphs of Inductor that nobody needs the results of the one before."""

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
