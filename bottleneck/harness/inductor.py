"""Has Inductor name its C++ kernels in the trace.

It notes what each of them reads, writes and computes. It changes one setting of the program's compiler
(`cpp.enable_kernel_profile`: a scope around each kernel, whose loops and arithmetic stay as they were) and watches
three of its functions. Inductor keeps what it compiles under a key that includes its settings, so the first measured
run of a program compiles anew. The notes ride along in what it keeps: a later run, which compiles nothing, has them
too.
"""

import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import wraps
from typing import Any

from bottleneck.harness.torch_private import INDUCTOR_CONFIG, INDUCTOR_CPP, INDUCTOR_GRAPHS, schema_of
from bottleneck.schema.compiled_kernels import (
    COMPILED_SCHEMA,
    Compiled,
    CompiledBuffer,
    CompiledKernel,
    CompiledOp,
    as_text,
)

# Element types as a trace spells them.
TRACE_TYPES: Mapping[str, str] = {
    "torch.float32": "float",
    "torch.float64": "double",
    "torch.float16": "c10::Half",
    "torch.bfloat16": "c10::BFloat16",
    "torch.int64": "long int",
    "torch.int32": "int",
    "torch.int16": "short int",
    "torch.int8": "signed char",
    "torch.uint8": "unsigned char",
    "torch.bool": "bool",
    "torch.complex64": "c10::complex<float>",
    "torch.complex128": "c10::complex<double>",
    "torch.float8_e4m3fn": "c10::Float8_e4m3fn",
    "torch.float8_e5m2": "c10::Float8_e5m2",
}
_VARIES = "compiled for sizes that vary from call to call"
_LINE_BYTES = 64


class _Varies(Exception):  # noqa: N818 - ends as a reason
    """A size is a symbol, so that it is not known before the call."""


@dataclass
class _Traffic:
    """Elements of one buffer that a kernel touches.

    They are (fewest, most) per distinct way of addressing it.
    """

    reads: dict[str, tuple[int, int]] = field(default_factory=dict)
    writes: dict[str, tuple[int, int]] = field(default_factory=dict)


def describe_kernel(graph: Any, name: str, nodes: Sequence[Any], arguments: Any) -> CompiledKernel:
    """Describes the kernel that was generated for scheduler nodes.

    ``graph`` (a GraphLowering) and its arguments tell.
    """
    number = getattr(graph, "graph_id", None)
    traced = name if number is None else f"graph_{number}_{name}"
    leaves = [leaf for node in nodes for leaf in node.get_nodes()]
    try:
        buffers, ops = tuple(_buffers(graph, leaves, arguments)), tuple(_ops(leaves))
    except _Varies:
        return CompiledKernel(traced, reason=_VARIES)
    return CompiledKernel(traced, buffers, ops, any(leaf.is_template() for leaf in leaves))


def _buffers(graph: Any, leaves: Sequence[Any], arguments: Any) -> Iterator[CompiledBuffer]:
    """Returns the buffers that are arguments.

    What lives in registers or in scratch memory of the kernel is none.
    """
    owner = _owners(arguments)
    traffic = {name: _Traffic() for name in owner.values()}
    real = graph.scheduler.mutation_real_name
    written = {dep.name for leaf in leaves for dep in leaf.read_writes.writes}
    own = {real.get(name, name) for name in written}
    reads = (dep for leaf in leaves for dep in leaf.read_writes.reads)
    former = {owner.get(real.get(dep.name, dep.name)) for dep in reads if dep.name not in written}
    for leaf in leaves:
        for side in ("reads", "writes"):
            for dep in getattr(leaf.read_writes, side):
                name = owner.get(real.get(dep.name, dep.name))
                if name is not None and not _only_orders(leaf, dep, own):
                    getattr(traffic[name], side).update(_touched(graph, name, dep))
    for name, seen in traffic.items():
        buffer = _described(graph, name)
        size = math.prod(buffer.dims)
        read = _bounds(seen.reads, size)
        # What the kernel itself has written before it is read comes from a cache if that can hold it.
        if read is not None and name not in former:
            read = (0, read[1])
        yield replace(buffer, read=read, written=_bounds(seen.writes, size))


def _owners(arguments: Any) -> dict[str, str]:
    """Returns the buffer behind each name that the kernel is called with.

    Names that take turns in one place share it.
    """
    owner = {name: name for name in (*arguments.input_buffers, *arguments.output_buffers)}
    for inplaced in arguments.inplace_buffers.values():
        names = getattr(inplaced, "other_names", ())
        owner.update(dict.fromkeys(names, names[-1] if names else ""))
    called_with = set(arguments.cpp_argdefs()[1])
    return {alias: name for alias, name in owner.items() if name in called_with}


def _only_orders(leaf: Any, dep: Any, own: set[str]) -> bool:
    """True if a dependence moves nothing.

    Before loops overwrite a buffer, whatever else uses it has to be done.
    """
    return type(dep).__name__ == "WeakDep" or (
        type(dep).__name__ == "StarDep" and dep.name in own and not leaf.is_template()
    )


def _touched(graph: Any, name: str, dep: Any) -> dict[str, tuple[int, int]]:
    """Fewest and most distinct elements behind one way of addressing a buffer.

    Where the address comes from data all of it may hit one place, or each element a cache line of its own.
    """
    if type(dep).__name__ != "MemoryDep":
        whole = _size(graph.get_numel(name))
        return {"all": (whole, whole)}
    way, loops = f"{dep.index} {dep.size}", math.prod(_size(size) for size in dep.size)
    if not dep.is_indirect():
        moved = min(loops, _size(dep.get_numel()))
        return {way: (moved, moved)}
    in_rows = any(dep.index.coeff(variable) == 1 for variable in dep.var_names)
    item_bytes = graph.get_dtype(name).itemsize
    return {way: (0, loops * (1 if in_rows else max(1, _LINE_BYTES // item_bytes)))}


def _bounds(ways: Mapping[str, tuple[int, int]], size: int) -> tuple[int, int] | None:
    """Bounds the distinct elements over all ways of addressing.

    They may overlap wholly or not at all.
    """
    if not ways:
        return None
    return min(size, max(low for low, _ in ways.values())), min(size, sum(high for _, high in ways.values()))


def _described(graph: Any, name: str) -> CompiledBuffer:
    source = graph.graph_inputs.get(name)
    buffer = graph.get_buffer(name) if source is None else source
    strides = buffer.get_stride()
    return CompiledBuffer(
        tuple(_size(size) for size in buffer.get_size()),
        tuple(_size(stride) for stride in strides),
        trace_type(graph.get_dtype(name)),
    )


def trace_type(dtype: object) -> str:
    """The element type as a trace spells it."""
    return TRACE_TYPES.get(str(dtype), str(dtype))


def _size(expression: Any) -> int:
    try:
        return int(expression)
    except TypeError:
        raise _Varies from None


def _ops(leaves: Sequence[Any]) -> list[CompiledOp]:
    """Returns the ops of the captured graph that the nodes stem from.

    Each counts once per kernel, and equal ones are counted.
    """
    turns: dict[Any, float] = {}
    for leaf in leaves:
        for origin in _origins(leaf):
            turns[origin] = max(turns.get(origin, 0.0), _turns(leaf))
    counts = Counter(_op(origin, count) for origin, count in sorted(turns.items(), key=lambda item: item[0].name))
    return [replace(op, calls=count) for op, count in counts.items()]


def _turns(leaf: Any) -> float:
    """Counts how often the innermost loop body of a node runs.

    A template's loops are its own affair.
    """
    if leaf.is_template():
        return math.inf
    return math.prod(_size(size) for sizes in leaf.get_ranges() for size in sizes)


def _origins(leaf: Any) -> Iterable[Any]:
    node = leaf.node
    origins = node.get_origins() if hasattr(node, "get_origins") else node.origins
    return [origin for origin in origins if origin.op == "call_function" and schema_of(origin.target) is not None]


def _op(origin: Any, turns: float) -> CompiledOp:
    """Describes one op with its arguments in the order of its schema.

    And the part of it that ``turns`` loop turns can do.
    """
    schema = schema_of(origin.target)
    given = dict(origin.kwargs)
    values = [
        origin.args[position] if position < len(origin.args) else given.get(argument.name, argument.default_value)
        for position, argument in enumerate(schema.arguments)
    ]
    dims, types, strides, concrete = spelled_columns(_argument(value) for value in values)
    sizes = [_elements(value) for value in (origin, *values)]
    elements = max([size for size in sizes if size is not None], default=0)
    return CompiledOp(
        name=schema.name,
        dims=dims,
        types=types,
        strides=strides,
        concrete=concrete,
        share=min(1.0, turns / elements) if elements else 1.0,
    )


# An argument as a trace spells it: sizes, type, strides and text.
SpelledArgument = tuple[Sequence[Any], str, Sequence[Any], str]


def spelled_columns(arguments: Iterable[SpelledArgument]) -> list[str]:
    """Spells sizes, types, strides and texts of a call's arguments in JSON.

    Each is as a trace holds it.
    """
    described = list(arguments)
    return [json.dumps([argument[place] for argument in described]) for place in range(4)]


def _argument(value: Any) -> SpelledArgument:
    if isinstance(value, list | tuple):
        tensors = [_tensor(item) for item in value]
        if any(tensor is not None for tensor in tensors):
            dims = [[_size(size) for size in tensor.shape] for tensor in tensors if tensor is not None]
            return dims, "TensorList", (), ""
        return (), "ScalarList", (), str([_plain(item) for item in value])
    tensor = _tensor(value)
    if tensor is None:
        return (), "" if value is None else "Scalar", (), "" if value is None else str(_plain(value))
    strides = [_size(stride) for stride in tensor.stride()]
    return [_size(size) for size in tensor.shape], trace_type(tensor.dtype), strides, ""


def _tensor(value: Any) -> Any:
    """The stand-in tensor of a node of the captured graph, null for anything else."""
    tensor = getattr(value, "meta", {}).get("val") if hasattr(value, "meta") else None
    return tensor if hasattr(tensor, "shape") else None


def _plain(value: Any) -> Any:
    """Returns a number, flag or text.

    A node that stands for a number is not known before the call.
    """
    if hasattr(value, "meta"):
        raise _Varies
    return value


def _elements(value: Any) -> int | None:
    items = value if isinstance(value, list | tuple) else [value]
    tensors = [tensor for tensor in map(_tensor, items) if tensor is not None]
    return sum(math.prod(_size(size) for size in tensor.shape) for tensor in tensors) if tensors else None


# Where notes hang on the objects of the compiler; as plain text, which any process can unpickle.
_NOTES = "bottleneck_notes"


class Inductor:
    """Kernels of every graph that this process has compiled or loaded.

    ``problem`` says why some are missing. ``is_on`` turns true when the program's compiler has been told to name its
    kernels.
    """

    def __init__(self) -> None:
        self.is_on = False
        self.problem: str | None = None
        self._kernels: dict[str, Any] = {}
        self._watched: set[str] = set()
        self._give_back: Callable[[], None] | None = None

    def watchers(self) -> dict[str, Callable[[Any], None]]:
        """Returns functions to call once a module of the compiler is loaded.

        They are by the module's name.
        """
        return {
            INDUCTOR_CONFIG: self._careful(self._name_kernels),
            INDUCTOR_CPP: self._careful(self._watch_generation),
            INDUCTOR_GRAPHS: self._careful(self._watch_graphs),
        }

    def resume(self) -> None:
        """Does the same to what the program has loaded already, as after ``rest``."""
        for name, watch in self.watchers().items():
            if name in sys.modules and name not in self._watched:
                watch(sys.modules[name])

    def rest(self) -> None:
        """Gives the program its own setting back.

        What it has compiled meanwhile keeps its names.
        """
        give_back, self._give_back, self.is_on = self._give_back, None, False
        if give_back is not None:
            give_back()

    @property
    def has_something_to_tell(self) -> bool:
        """True if the program compiled anything, or could not be watched doing so."""
        return bool(self._kernels) or self.problem is not None

    def as_text(self) -> str:
        """The content of the file that lies beside the trace."""
        return as_text(Compiled(tuple(self._kernels.values()), self.problem))

    def _careful(self, work: Callable[..., None]) -> Callable[..., None]:
        """The same work, without ever disturbing the program in whose middle it is done."""

        def call(*arguments: Any) -> None:
            try:
                work(*arguments)
            except Exception as exc:  # another version of the compiler
                self.problem = f"this version of torch.compile could not be watched: {type(exc).__name__}: {exc}"

        return call

    def _name_kernels(self, config: Any) -> None:
        import torch

        # A GPU program's C++ kernels are few, and compiling all of its kernels anew can take long.
        if not torch.cuda.is_available():
            usual = config.cpp.enable_kernel_profile
            self._give_back = lambda: setattr(config.cpp, "enable_kernel_profile", usual)
            config.cpp.enable_kernel_profile = True
            self.is_on = True

    def _watch_generation(self, cpp: Any) -> None:
        self._watched.add(INDUCTOR_CPP)
        scheduling = cpp.CppScheduling
        define, note = scheduling.define_kernel, self._careful(self._note_kernel)

        @wraps(define)
        def define_kernel(this: Any, source: str, nodes: Sequence[Any], kernel_args: Any = None) -> Any:
            name = define(this, source, nodes, kernel_args)
            note(cpp.V.graph, name, nodes, this.kernel_group.args if kernel_args is None else kernel_args)
            return name

        scheduling.define_kernel = define_kernel

    def _note_kernel(self, graph: Any, name: str, nodes: Sequence[Any], arguments: Any) -> None:
        """Hangs the description of one kernel on the graph that is being compiled."""
        notes = graph.__dict__.setdefault(_NOTES, {})
        if self.is_on and name not in notes:
            notes[name] = asdict(describe_kernel(graph, name, nodes, arguments))

    def _watch_graphs(self, output_code: Any) -> None:
        self._watched.add(INDUCTOR_GRAPHS)
        kind = output_code.CompiledFxGraph
        make, finish = kind.__init__, kind.post_compile
        hand_on, collect = self._careful(_hand_on), self._careful(self._collect)

        @wraps(make)
        def make_and_note(this: Any, *arguments: Any, **keywords: Any) -> None:
            make(this, *arguments, **keywords)
            hand_on(this, (*arguments, *keywords.values()))

        @wraps(finish)
        def collect_and_finish(this: Any, *arguments: Any, **keywords: Any) -> Any:
            collect(this)
            return finish(this, *arguments, **keywords)

        kind.__init__, kind.post_compile = make_and_note, collect_and_finish

    def _collect(self, compiled: Any) -> None:
        """Takes over the notes of a graph.

        It was just compiled, or loaded as it was compiled by an earlier process. A kernel's name holds the number of
        its graph in the process that compiled it, so that two may share one.
        """
        notes = json.loads(getattr(compiled, _NOTES, "{}"))
        if notes.get("schema") != COMPILED_SCHEMA:
            return
        for kernel in notes["kernels"]:
            name = kernel["name"]
            if self._kernels.setdefault(name, kernel) != kernel:
                reason = "two compiled graphs have a kernel of this name"
                self._kernels[name] = asdict(CompiledKernel(name, reason=reason))


def _hand_on(compiled: Any, made_from: Sequence[Any]) -> None:
    """Hangs the notes of a graph on what the compiler keeps.

    They are those of the graph that it was made from.
    """
    for source in made_from:
        notes = getattr(source, "__dict__", {}).get(_NOTES)
        if notes is not None:
            setattr(compiled, _NOTES, json.dumps({"schema": COMPILED_SCHEMA, "kernels": [*notes.values()]}))
