"""Reaches what PyTorch keeps private and changes between versions.

It is the only module that names any of it.

``PRIVATE`` lists every such name with what nobody can tell without it. Names are looked up where the program has
imported their module already. What a torch does not have, or has in another form, is null to its caller and one caveat
of the recording (``losses``), never an exception; only functions for commands that bring torch in themselves (predict,
verify, calibrate) raise.
"""

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bottleneck.schema.compile_health import METRICS, BreakEvent, CodeFrame, CompileEvents, grouped_reasons
from bottleneck.schema.op_names import line_source

# The name of the threads that work for gloo (torch 2.13). Under another name nobody waits for them.
GLOO_THREAD = "pt_gloo_runloop"

# Private names by what is not told without them; null: something else tells it, or nothing that a user sees is lost.
# Those that begin with a dot are attributes of objects.
PRIVATE: Mapping[str, str | None] = {
    # The profiler.
    "torch.autograd._profiler_enabled": None,
    "torch.autograd.profiler._is_profiler_enabled": None,
    "torch._C._profiler._ExperimentalConfig": "when the host waits for the GPU",
    "torch.distributed.distributed_c10d._get_all_pg_configs": "which ranks a collective is among",
    ".experimental_event_tree": "the lines from which code of the program called something",
    ".trace_activities": None,
    # Dispatch, autograd and tensors.
    "torch._C._len_torch_function_stack": "which lines give the same result in each step",
    "torch._C._functorch.peek_interpreter_stack": "which modules give the same result in each step",
    "torch.overrides._get_current_function_mode_stack": None,
    "torch._C._len_torch_dispatch_stack": "which tensors hold denormal numbers or NaN",
    "torch.utils._python_dispatch._get_current_dispatch_mode_stack": "which modes watch every operation",
    "torch._C._current_autograd_node": None,
    "torch.autograd._get_sequence_nr": None,
    "torch._C._nn": None,
    "._version": None,
    "._schema": None,
    # The compiler.
    "torch._dynamo.convert_frame.FRAME_COMPILE_COUNTER": "how often code was compiled again",
    "torch._dynamo.utils.counters": "how many graphs were compiled, and where they break",
    "torch._dynamo.utils.graph_break_reasons": "the lines at which graphs break",
    "torch._dynamo.utils.guard_failures": "which guards no longer held where code was compiled again",
    "torch._dynamo.utils.get_compilation_metrics": "how long compilations took",
    "torch._dynamo.config": None,
    "torch._dynamo.eval_frame.OptimizedModule": "which calls of compiled modules are steps",
    "torch.export._unlift._StatefulGraphModule": "which calls of exported modules are steps",
    # Backward passes.
    "torch.autograd.graph.log": "when backward passes begin",
    # Memory.
    "torch.cuda.memory._dump_snapshot": "what held the memory where it ran out",
    "torch.cuda.memory._record_memory_history": "the lines that held the memory where it ran out",
    # Data loaders.
    "torch.utils.data.dataloader._BaseDataLoaderIter": "which batches of data loaders are steps",
    "._dataset": None,
    "._num_yielded": None,
    "._workers": None,
    "._num_workers": None,
    "._prefetch_factor": None,
}

# Modules of the compiler, which the program imports when it first compiles something.
DYNAMO = "torch._dynamo"
INDUCTOR_CONFIG = "torch._inductor.config"
INDUCTOR_CPP = "torch._inductor.codegen.cpp"
INDUCTOR_GRAPHS = "torch._inductor.output_code"
EXPORT_UNLIFT = "torch.export._unlift"
# Imported by `torch.compile` before anything else, from torch 2.6 on.
COMPILER = "torch._inductor.compiler_bisector"
# Their code prepares something for the program; it is none of the program's steps.
HELPERS = ("torch.utils.data", "torch._inductor")
COMPILING_FILES = (("torch", "_dynamo", "convert_frame.py"), ("torch", "_inductor", "compile_fx.py"))

# The loader reads this at the start of each `next`, before it opens its own scope; a module, a compiled one too, reads
# the other at each call.
READ_BY_LOADER = "_profile_name"
# Read next, and written once the batch is there.
READ_NEXT_BY_LOADER, WRITTEN_BY_LOADER = "_sampler_iter", "_num_yielded"
READ_BY_COMPILED = "_compiled_call_impl"

# The oldest version that the tests ran with (docs/reference/versions.md).
OLDEST = (2, 4)

_FRAME_COUNTS = "torch._dynamo.convert_frame.FRAME_COMPILE_COUNTER"
_lost: dict[str, str] = {}


def private(path: str) -> Any:
    """Looks up the thing of this name in ``PRIVATE``.

    Null where torch has no such name or its module is not imported.
    """
    module, name = path.rpartition(".")[::2]
    parts = list[str]()
    while module.startswith("torch._C.") and module not in sys.modules:  # a class in a module of C++
        module, _, part = module.rpartition(".")
        parts.insert(0, part)
    # Torch imports some of its modules when they are first asked for: only those that are there are asked.
    thing: Any = sys.modules.get(module)
    if thing is None:
        return None
    for part in parts:
        thing = getattr(thing, part, None)
    return _get(thing, name, path)


def _attribute(thing: Any, name: str, default: Any = None) -> Any:
    """An attribute of an object of torch, by its name in ``PRIVATE``."""
    value = _get(thing, name[1:], name)
    return default if value is None else value


def _get(thing: Any, name: str, path: str) -> Any:
    try:
        return getattr(thing, name)
    except Exception:  # a stand-in of the program's may raise anything
        _lose(path)
        return None


def _of_kind(path: str, kind: type) -> Any:
    """Looks up the thing of this name and kind.

    Null where there is none, or it is of another kind by now.
    """
    thing = private(path)
    if thing is None or isinstance(thing, kind):
        return thing
    _lose(path)
    return None


def _lose(path: str) -> None:
    lost = PRIVATE.get(path)
    if lost is not None:
        _lost[path] = lost


def _answer(path: str, function: Any, *arguments: Any, default: Any = None) -> Any:
    """Gives the answer of the function of this name.

    The default where there is none, or it is another by now.
    """
    if function is None:
        return default
    try:
        return function(*arguments)
    except Exception:
        _lose(path)
        return default


def losses() -> tuple[str, ...]:
    """Gives a caveat for each thing that this torch does not tell.

    It lists what was asked for in this process.
    """
    version = getattr(sys.modules.get("torch"), "__version__", "of this version")
    return tuple(f"torch {version} does not tell {lost}" for lost in dict.fromkeys(_lost.values()))


def refuse_old(torch: Any) -> str | None:
    """Gives the reason why this torch is too old to be measured.

    Null where it can be measured, and for a torch that is null.
    """
    numbers = re.match(r"(\d+)\.(\d+)", str(getattr(torch, "__version__", "")))
    if numbers is None or (int(numbers[1]), int(numbers[2])) >= OLDEST:
        return None
    return f"torch {torch.__version__} is older than {OLDEST[0]}.{OLDEST[1]}, the oldest that can be measured"


# The profiler.


def is_profiling() -> bool:
    """True if a profiler is at work now, in any thread."""
    path = "torch.autograd._profiler_enabled"
    return private("torch.autograd.profiler._is_profiler_enabled") is True or bool(_answer(path, private(path)))


# What every way of starting a profiler goes through, by module.
PROFILER_STARTS: Mapping[str, Sequence[str]] = {
    "profiler": ("_prepare_profiler", "_enable_profiler"),
    "profiler_legacy": ("_enable_profiler_legacy",),
}


def profiler_config(**options: bool) -> Any:
    """Makes the profiler's unstable options that this torch has.

    Null where it takes none at all.
    """
    path = "torch._C._profiler._ExperimentalConfig"
    kind = private(path)
    wanted = {**options, "record_python_gc_info": True}
    signature = getattr(getattr(kind, "__init__", None), "__doc__", None) or ""
    chosen = {name: True for name, is_on in wanted.items() if is_on and f"{name}:" in signature}
    return _answer(path, None if kind is None else lambda: kind(**chosen))


def leave_unparsed(profiler: Any) -> None:
    """Has the profiler's stop leave the events as they are.

    Torch before 2.5 makes objects of all, at 0.1 ms each.
    """
    profiler._parse_kineto_results = lambda *_: []


def event_tree(results: Any) -> Sequence[Any]:
    """Gives the roots of the profiler's tree of events.

    The tree alone tells the line of a call. Empty where torch has none.
    """
    path = ".experimental_event_tree"
    return _answer(path, _attribute(results, path), default=())  # type: ignore[no-any-return]


def activities(results: Any) -> Any:
    """Gives the activities that the exporter in Python writes.

    Null in torch before 2.13, which has none.
    """
    path = ".trace_activities"
    return _answer(path, _attribute(results, path))


def has_python_export(torch: Any) -> bool:
    """Tells whether torch can write a trace from Python.

    It does so by a module that it imports only then.
    """
    return (Path(torch.__file__).parent / "profiler" / "_chrome_trace_export.py").is_file()


def process_groups(distributed: Any) -> dict[str, Any]:
    """Gives the process groups of this rank, as torch's profiler writes them.

    Empty from a torch that lists none.
    """
    path = "torch.distributed.distributed_c10d._get_all_pg_configs"
    configs = _answer(path, private(path))
    return {} if configs is None else {"pg_count": distributed.get_pg_count(), "pg_config": configs}


# Dispatch, autograd and tensors.


def dispatch_modes() -> Sequence[Any]:
    """The modes that see every op that this thread calls now."""
    path = "torch.utils._python_dispatch._get_current_dispatch_mode_stack"
    return tuple(_answer(path, private(path), default=()))


def count_modes() -> int | None:
    """The number of such modes; null where this torch does not count them."""
    path = "torch._C._len_torch_dispatch_stack"
    return _answer(path, private(path))  # type: ignore[no-any-return]


def function_modes() -> int | None:
    """Counts the modes that see every function of torch.

    Null where this torch does not count them.
    """
    path = "torch._C._len_torch_function_stack"
    return _answer(path, private(path))  # type: ignore[no-any-return]


def innermost_function_mode() -> Any:
    """The mode that sees functions of torch first; null where there is none."""
    path = "torch.overrides._get_current_function_mode_stack"
    modes = _answer(path, private(path), default=())
    return modes[-1] if modes else None


def without_functions(torch: Any) -> AbstractContextManager[Any]:
    """A context in which no mode sees functions of torch."""
    return torch._C.DisableTorchFunction()  # type: ignore[no-any-return]


def is_transformed() -> bool | None:
    """Tells whether `torch.func` answers for torch, as in a mapped model.

    Null where this torch does not tell.
    """
    path = "torch._C._functorch.peek_interpreter_stack"
    peek = private(path)
    return None if peek is None else _answer(path, lambda: peek() is not None)


def version_of(tensor: Any) -> int:
    """Gives the number of times that a tensor was written.

    0 where that is not counted.
    """
    return 0 if tensor.is_inference() else int(_attribute(tensor, "._version", 0))


def is_view(tensor: Any) -> bool:
    """True if the tensor shows a part of another one's memory."""
    return bool(tensor._is_view())


def storage_key(storage: Any) -> int:
    """A number that no other living storage has."""
    return int(storage._cdata)


def schema_of(op: Any) -> Any:
    """Gives the name and arguments of an overload of an op.

    Null for what is none.
    """
    return _attribute(op, "._schema")


def is_written(argument: Any) -> bool:
    """Tells whether an op writes into this argument of its schema."""
    flag = getattr(argument, "is_write", None)  # from torch 2.5 on
    return bool(argument.alias_info is not None and argument.alias_info.is_write if flag is None else flag)


def current_node() -> Any:
    """Gives the node of the graph of gradients that is at work.

    Null outside a backward pass.
    """
    return _answer("torch._C._current_autograd_node", private("torch._C._current_autograd_node"))


def is_inside_backward() -> bool:
    """True where Python runs inside a backward pass of this thread.

    Checkpoints and hooks do.

    A profiler that is stopped there goes on: autograd gives the thread back the state that it had before.
    """
    return current_node() is not None


def newest_number() -> int:
    """The number of the node that autograd made last."""
    return int(_answer("torch.autograd._get_sequence_nr", private("torch.autograd._get_sequence_nr"), default=0)) - 1


def network_function(name: str) -> Any:
    """Gives a private op of networks by its name, such as `gelu`.

    Torch has it under no other name. Null where there is none.
    """
    return getattr(private("torch._C._nn"), name, None)


def autograd_number(node: Any) -> int:
    """The number that autograd gave a node of its graph, rising with time."""
    return int(node._sequence_nr())


def dispatch_mode_class() -> type:
    """The class whose modes see every op."""
    return importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode  # type: ignore[no-any-return]


def trees() -> Any:
    """Functions that take nested arguments apart and put them together."""
    return importlib.import_module("torch.utils._pytree")


# Fake tensors, and what a CUDA device would choose.


def fake_tensors() -> Any:
    """The module of tensors that have sizes and no memory."""
    return importlib.import_module("torch._subclasses.fake_tensor")


def without_modes() -> AbstractContextManager[Any]:
    """A context in which no mode sees the ops."""
    return importlib.import_module("torch.utils._python_dispatch")._disable_current_modes()  # type: ignore[no-any-return]


def replace_scaled_step(torch: Any, take_step: Callable[..., Any]) -> None:
    """Has `GradScaler` call ``take_step`` in its step.

    It replaces the function that looks whether a gradient overflowed.
    """
    torch.amp.GradScaler._maybe_opt_step = take_step


def has_kernel(op: Any, key: str) -> bool:
    """True if the dispatcher has a kernel of the op under this key."""
    return bool(sys.modules["torch._C"]._dispatch_has_kernel_for_dispatch_key(op.name(), key))


def has_arm_library(torch: Any) -> bool:
    """True if oneDNN uses the Arm Compute Library."""
    return bool(torch.ops.mkldnn._is_mkldnn_acl_supported())


def without_key(key: str) -> AbstractContextManager[Any]:
    """A context in which the dispatcher passes this key over."""
    core: Any = sys.modules["torch._C"]
    keys = core.DispatchKeySet(getattr(core.DispatchKey, key))
    return core._ExcludeDispatchKeyGuard(keys)  # type: ignore[no-any-return]


def is_enabled(autocast: Any) -> bool:
    """True if a region of autocast is switched on."""
    return bool(autocast._enabled)


def use_foreach_for(kind: type) -> None:
    """Has optimizers and gradient clipping take tensors of this class together.

    They take all of them in one call, those of the CPU too.
    """
    # By its name: torch.optim deletes this one from its namespace.
    optimizer: Any = importlib.import_module("torch.optim.optimizer")
    foreach: Any = importlib.import_module("torch.utils._foreach_utils")
    for module in (optimizer, foreach):
        module._get_foreach_kernels_supported_devices = lambda: ["cpu", "cuda"]
        module._foreach_supported_types = [*optimizer._foreach_supported_types, kind]


# The compiler.


def compile_counters() -> Mapping[str, Mapping[str, int]] | None:
    """Gives the compiler's counts by name, as graphs and graph breaks.

    Null where it does not tell.
    """
    return _of_kind("torch._dynamo.utils.counters", Mapping)  # type: ignore[no-any-return]


def break_reasons() -> Sequence[Any]:
    """The reasons for which graphs broke; empty where the compiler keeps none."""
    return _of_kind("torch._dynamo.utils.graph_break_reasons", Sequence) or ()


@dataclass(frozen=True)
class CompiledGraph:
    """One run of the compiler, on the wall clock in ns.

    ``name`` is the function with its graph's number, ``source`` its first line. ``stages`` are seconds by the
    compiler's own clock, ``hits`` and ``misses`` those of its caches on this machine.
    """

    name: str
    source: str | None
    begin_ns: int
    end_ns: int
    stages: Mapping[str, float]
    hits: int
    misses: int

    def shifted(self, by_ns: int) -> "CompiledGraph":
        """The same by a clock that is so far behind."""
        return replace(self, begin_ns=self.begin_ns - by_ns, end_ns=self.end_ns - by_ns)


def compilations() -> list[CompiledGraph]:
    """Lists the compiler's runs that it still keeps, usually the last 64."""
    path = "torch._dynamo.utils.get_compilation_metrics"
    metrics = _answer(path, private(path), default=())
    functions = {
        graph.compile_id: graph for graph in metrics if getattr(graph, "co_name", None) and hasattr(graph, "compile_id")
    }
    graphs = []
    for graph in metrics:
        function = functions.get(getattr(graph, "compile_id", None), graph)
        begin_s, length_s = getattr(graph, "start_time", None), _number(graph, "entire_frame_compile_time_s")
        length_s = max(length_s, _number(graph, "duration_us") / 1e6)
        name = getattr(function, "co_name", None)
        if begin_s is None or name is None or length_s <= 0:
            continue
        graphs.append(
            CompiledGraph(
                name=f"{name}()",
                source=line_source(function.co_filename, function.co_firstlineno),
                begin_ns=round(begin_s * 1e9),
                end_ns=round((begin_s + length_s) * 1e9),
                stages=_stages(graph, length_s),
                hits=round(sum(_number(graph, f"{cache}_local_cache_hit_count") for cache in _CACHES)),
                misses=round(sum(_number(graph, f"{cache}_local_cache_miss_count") for cache in _CACHES)),
            )
        )
    return graphs


# Torch keeps the metrics of so many compilations (`DEFAULT_COMPILATION_METRICS_LIMIT`, 2.4 to 2.13).
_MOST_METRICS = 64


def compile_events() -> CompileEvents:
    """Tells what the compiler did until now, as its own log would."""
    path = "torch._dynamo.utils.get_compilation_metrics"
    metrics = _answer(path, private(path), default=())
    counts = (compile_counters() or {}).get("inductor", {})
    return CompileEvents(
        metrics=[_plain_metrics(one) for one in metrics],
        breaks=[_break_event(reason) for reason in break_reasons() if getattr(reason, "graph_break", False)],
        recompiles=_recompile_reasons(),
        skips=int(counts.get("cudagraph_skips", 0)),
        is_partial=len(metrics) >= _MOST_METRICS,
    )


def _recompile_reasons() -> dict[str, list[str]]:
    """The reasons of recompiles by the compilation that followed.

    Empty where the compiler keeps none.
    """
    failures = _of_kind("torch._dynamo.utils.guard_failures", Mapping) or {}
    reasons: dict[str, list[str]] = {}
    for texts in failures.values():
        reasons.update(grouped_reasons([str(text) for text in texts]))
    return reasons


def _plain_metrics(one: Any) -> dict[str, Any]:
    """The fields of one compilation.

    Torch before 2.6 numbers it by its frame alone.
    """
    fields = {name: getattr(one, name, None) for name in METRICS}
    key, again = getattr(one, "frame_key", None), getattr(one, "cache_size", None)
    if not fields["compile_id"] and str(key).isdecimal() and isinstance(again, int):
        fields["compile_id"] = f"{int(str(key)) - 1}/{again}"
    return fields


def _break_event(reason: Any) -> BreakEvent:
    frames = getattr(reason, "user_stack", None) or ()
    lines = (
        CodeFrame(frame.filename, int(frame.lineno or 0), str(getattr(frame, "name", "") or "")) for frame in frames
    )
    return BreakEvent(str(getattr(reason, "reason", "")), tuple(lines))


_CACHES = ("inductor_fx", "aotautograd")


def _number(metrics: Any, name: str) -> float:
    value = getattr(metrics, name, None)
    return float(value) if isinstance(value, int | float) else 0.0


def _stages(graph: Any, length_s: float) -> dict[str, float]:
    """The seconds of each stage, from those that hold the later ones."""
    nested = [
        ("dynamo", length_s),
        ("autograd", _number(graph, "backend_compile_time_s")),
        ("lowering", _number(graph, "inductor_compile_time_s")),
        ("code", _number(graph, "code_gen_time_s")),
    ]
    inner = [seconds for _, seconds in nested[1:]] + [0.0]
    alone = {name: seconds - within for (name, seconds), within in zip(nested, inner, strict=True)}
    return {name: seconds for name, seconds in alone.items() if seconds > 0}


def compiler_settings() -> Any:
    """The settings of the compiler; null where the program has not imported it."""
    return private("torch._dynamo.config")


def own_cache(torch: Any) -> Mapping[str, bool]:
    """Gives the `torch.compile` option for a cache of its own.

    A compiled thing then keeps its own entries. Empty in torch before 2.13.
    """
    parameters = inspect.signature(torch.compile).parameters
    return {"isolate_recompiles": True} if "isolate_recompiles" in parameters else {}


def graphs_compiled() -> int:
    """The graphs that were compiled so far. Imports the compiler."""
    return int(importlib.import_module("torch._dynamo.utils").counters["stats"]["unique_graphs"])


def backend_failure() -> type[Exception]:
    """Gives the exception in which the compiler wraps one of a backend.

    The backend's is its ``inner_exception``. Imports the compiler.
    """
    return importlib.import_module("torch._dynamo.exc").BackendCompilerFailed  # type: ignore[no-any-return]


def has_cpp_compiler() -> bool:
    """True if Inductor finds a compiler of C++."""
    builder = importlib.import_module("torch._inductor.cpp_builder")
    try:
        builder.get_cpp_compiler()
    except importlib.import_module("torch._inductor.exc").InvalidCxxCompiler:
        return False
    return True


def package_maker() -> Callable[[Any, str], Callable[[list[Any]], list[Any]]] | None:
    """Gives what compiles an exported program into a file, and the call of that.

    The call takes the tensors and gives the results, without the structure around them. Null before torch 2.6.
    """
    inductor = importlib.import_module("torch._inductor")
    make, load = (getattr(inductor, f"aoti_{name}", None) for name in ("compile_and_package", "load_package"))
    if make is None or load is None:
        return None

    def package(program: Any, path: str) -> Callable[[list[Any]], list[Any]]:
        run: Callable[[list[Any]], list[Any]] = load(make(program, package_path=path)).loader.run
        return run

    return package


def record_as_compiling(step: Callable[[], Any]) -> Any:
    """Runs the step and gives the graph of the operators that it called."""
    make_fx = importlib.import_module("torch.fx.experimental.proxy_tensor").make_fx
    compiler: Any = importlib.import_module("torch.compiler")
    asked = compiler.is_compiling
    compiler.is_compiling = lambda: True
    try:
        return make_fx(step)()
    finally:
        compiler.is_compiling = asked


def compile_graph(torch: Any, graph: Any, tensors: Sequence[Any]) -> Callable[..., Any]:
    """Compiles a graph that may write into its inputs, by Inductor and without guards.

    Without Inductor's patterns: they make addmm of a product and an `add_` with a factor, and lose the factor, so that
    plain SGD went the other way (torch 2.13).
    """
    config = importlib.import_module(INDUCTOR_CONFIG)
    with torch.no_grad(), config.patch(pattern_matcher=False):
        compiled: Callable[..., Any] = importlib.import_module("torch._inductor.compile_fx").compile_fx(graph, tensors)
    return compiled


def optimized_module() -> Any:
    """The class of compiled modules; null until the program has imported the compiler."""
    return _of_kind("torch._dynamo.eval_frame.OptimizedModule", type)


def exported_module() -> Any:
    """Gives the class of the modules of exported programs.

    Null until the program has imported it.
    """
    return _of_kind("torch.export._unlift._StatefulGraphModule", type)


def compiled_frames() -> Mapping[Any, int]:
    """Counts how often torch's compiler has compiled each frame.

    Empty where it never ran. It is not imported for this.
    """
    return _of_kind(_FRAME_COUNTS, Mapping) or {}


def may_trace_hooks() -> bool:
    """Tells whether the compiler may trace our hooks.

    It would once it has compiled something, or may have where it does not tell.
    """
    counts = _of_kind(_FRAME_COUNTS, Mapping)
    return bool(counts) if counts is not None else _FRAME_COUNTS.rpartition(".")[0] in sys.modules


def note_untold_kernels() -> None:
    """Keeps a caveat where this torch does not describe compiled kernels.

    Torch before 2.6 compiles without the module that describes them.
    """
    if INDUCTOR_GRAPHS not in sys.modules and INDUCTOR_CONFIG in sys.modules:
        _lost[INDUCTOR_GRAPHS] = "which ops are in the kernels of compiled code"


def is_compiled(module: Any) -> bool:
    """True if `torch.compile` has been applied to this module itself or to its forward."""
    is_wrapped = type(module).__name__ == "OptimizedModule" or hasattr(module.forward, "_torchdynamo_orig_callable")
    return is_wrapped or getattr(module, READ_BY_COMPILED, None) is not None


def is_constant_input(value: Any) -> bool:
    """Tells whether the compiler takes a graph's input for a constant.

    Such an input stays at its place, as a parameter does.
    """
    return hasattr(value, "_dynamo_static_input_type")


# Backward passes.


class _TellingLogger:
    """A logger that tells when its level is asked for.

    In all else it is another.
    """

    def __init__(self, logger: Any, tell: Callable[[], None]) -> None:
        self._logger, self._tell = logger, tell

    def getEffectiveLevel(self) -> Any:  # noqa: N802 - as logging calls it
        """Tells, and gives the level of the other."""
        self._tell()
        return self._logger.getEffectiveLevel()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._logger, name)


def tell_of_backward(tell: Callable[[], None]) -> Callable[[], None] | None:
    """Tells from now on when a backward pass begins, and gives what ends that.

    The engine asks its logger for its level first. Null where this torch has no such logger.
    """
    module, logger = sys.modules.get("torch.autograd.graph"), private("torch.autograd.graph.log")
    if module is None or not hasattr(logger, "getEffectiveLevel"):
        return None
    vars(module)["log"] = _TellingLogger(logger, tell)

    def end() -> None:
        vars(module)["log"] = logger

    return end


# Memory.


def record_memory_history(most_events: int) -> bool:
    """Has the allocator of CUDA note each request with its Python calls.

    False where this torch has no such history.
    """
    record = private("torch.cuda.memory._record_memory_history")
    if record is None:
        return False
    record(max_entries=most_events, stacks="python")
    return True


def dump_memory(path: Path) -> bool:
    """Writes what the allocator of CUDA holds; false where this torch cannot."""
    dump = private("torch.cuda.memory._dump_snapshot")
    if dump is None:
        return False
    dump(str(path))
    return True


# Data loaders.


def loader_iterator() -> Any:
    """Gives the class of the iterators of data loaders.

    Null until the program has imported them.
    """
    return _of_kind("torch.utils.data.dataloader._BaseDataLoaderIter", type)


def dataset_of(iterator: Any) -> Any:
    """The data set that a loader's iterator draws from."""
    return _attribute(iterator, "._dataset", iterator)


def batches_given(iterator: Any) -> int | None:
    """Counts the batches that a loader's iterator has given.

    Null where it does not count them.
    """
    batches = _attribute(iterator, "._num_yielded")
    return batches if isinstance(batches, int) else None


def workers_of(iterator: Any) -> Sequence[Any]:
    """The worker processes of a loader's iterator."""
    return _attribute(iterator, "._workers", ())  # type: ignore[no-any-return]


def prefetched_by(iterator: Any) -> int:
    """The number of batches that the workers of an iterator may have ready."""
    return int(_attribute(iterator, "._num_workers", 0)) * int(_attribute(iterator, "._prefetch_factor", 0))


def call_before_shutdown(iterator: Any, call: Callable[[], None]) -> None:
    """Has this called before the iterator ends its workers."""
    end = iterator._shutdown_workers

    def call_and_end() -> None:
        call()
        end()

    iterator._shutdown_workers = call_and_end


def end_workers(iterator: Any) -> None:
    """Ends the workers of a loader's iterator, if it has any."""
    getattr(iterator, "_shutdown_workers", lambda: None)()


def loader_like(torch: Any, iterator: Any) -> Any:
    """A loader without workers like the one whose iterator alone is left."""
    batching = {"batch_sampler": iterator._index_sampler}
    if not iterator._auto_collation:
        batching = {"batch_size": None, "sampler": iterator._index_sampler}
    return torch.utils.data.DataLoader(iterator._dataset, collate_fn=iterator._collate_fn, **batching)


# Modules and optimizers.


def call_code(torch: Any) -> Any:
    """The code that runs in every call of a module."""
    return torch.nn.Module._call_impl.__code__


def convolution_class(torch: Any) -> Any:
    """The class above all convolutions."""
    return torch.nn.modules.conv._ConvNd


def has_hooks(module: Any) -> bool:
    """True if something looks at what goes into the module or comes out."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def has_own_parameters(module: Any) -> bool:
    """True if the module holds parameters itself."""
    return bool(module._parameters)


def takes_scaled_gradients(optimizer: Any, like: Any) -> None:
    """Has an optimizer scale gradients itself where the other one does."""
    optimizer._step_supports_amp_scaling = getattr(like, "_step_supports_amp_scaling", False)


# The GPU.


def gpu_function(torch: Any, name: str) -> Any:
    """Gives a private function of torch that calibration needs.

    Its name is 'sleep', 'int8 product', 'fp8 product' or 'jit'. Raises RuntimeError where this torch has none.
    """
    owner, attribute = {
        "sleep": (torch.cuda, "_sleep"),
        "int8 product": (torch, "_int_mm"),
        "fp8 product": (torch, "_scaled_mm"),
        "jit": (torch.cuda.jiterator, "_create_jit_fn"),
    }[name]
    function = getattr(owner, attribute, None)
    if function is None:
        raise RuntimeError(f"torch {torch.__version__} has no {attribute}")
    return function
