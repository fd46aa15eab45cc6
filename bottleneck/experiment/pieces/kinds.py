"""Table of kinds of pieces, which build original and changed work.

The work is made from recorded shapes, dtypes and strides.

A kind knows what to build, not how often it is run: ``timing`` takes the turns. Results are not compared here, which
`bottleneck verify` does for the whole step.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bottleneck.experiment.pieces.recorded_calls import BoundCall, NotRebuilt, arguments_of, bind
from bottleneck.experiment.pieces.specs import PieceSpec

_WIDE_UNIT, _NARROW_UNIT = 64, 8
# Rounds of turns that a ratio needs for its interval (order statistics), and calls of each way before them.
ROUNDS_AT_LEAST, WARM_CALLS = 7, 2


@dataclass(frozen=True)
class Way:
    """One way to do the work of a piece.

    ``prepare`` is called before each turn, outside of what is timed.
    """

    run: Callable[[], object]
    prepare: Callable[[], object] = lambda: None


@dataclass(frozen=True)
class Ways:
    """Work as it is and changed.

    ``at_worst`` is the least favourable change, null where there is but one.
    """

    as_is: Way
    changed: Way
    at_worst: Way | None = None


# Torch, the piece, the name of the device -> its ways; NotRebuilt where the recording does not tell enough.
Make = Callable[[Any, PieceSpec, str], Ways]


# Seconds at least, where the compiler finds its results in the cache, and usually.
_Seconds = tuple[float, float]


@dataclass(frozen=True)
class PieceKind:
    """Builder of a kind, and the seconds that one piece takes.

    The piece is one of short calls, on two cores that are free.

    ``first_s`` is what the first piece of the kind takes beyond, ``compile_s`` each kernel that is compiled.
    """

    make: Make
    seconds: float = 0.7
    first_s: _Seconds = (0.0, 0.0)
    compile_s: _Seconds = (0.0, 0.0)


def _calls(torch: Any, spec: PieceSpec, device: str) -> list[BoundCall]:
    return [bind(torch, op.name, arguments_of(torch, op, device)) for op in spec.ops]


def compiled_chain(torch: Any, spec: PieceSpec, device: str) -> Ways:
    """Makes neighbouring ops one by one, and in one compiled loop.

    At worst the loop keeps all results between them.

    Each op takes the result of the one before as its first argument of that size; a trace has no ids of tensors. A
    backward pass may need results between the ops: then the truth lies between both ways to compile.
    """
    last, inputs, every = _chain_functions(torch, spec, device)
    compiled = torch.compile(last, dynamic=False, fullgraph=True)
    keeping = torch.compile(every, dynamic=False, fullgraph=True) if spec.settings.get("keeps") else None
    return Ways(
        Way(lambda: last(*inputs)),
        Way(lambda: compiled(*inputs)),
        None if keeping is None else Way(lambda: keeping(*inputs)),
    )


def _chain_functions(torch: Any, spec: PieceSpec, device: str) -> tuple[Callable[..., Any], list[Any], Any]:
    """Makes the chain a function of its inputs.

    It returns that function, the inputs, and a function that returns all results.

    Written as text, so that neither way pays for our own bookkeeping between two ops.
    """
    names: dict[str, Any] = {}
    inputs: list[Any] = []
    lines: list[str] = []
    result, previous = None, ""
    for place, op in enumerate(spec.ops):
        bound = bind(torch, op.name, arguments_of(torch, op, device))
        taken = _place_of(bound.arguments, result)
        words = []
        for at, value in enumerate(bound.arguments):
            if at == taken:
                assert result is not None
                is_same = result.shape == value.shape
                words.append(previous if is_same else f"{previous}.reshape({tuple(value.shape)})")
                bound.arguments[at] = result if is_same else result.reshape(value.shape)
            else:
                words.append(_word(value, names, inputs))
        words += [f"{key}={_word(value, names, inputs)}" for key, value in bound.keywords.items()]
        names[f"op{place}"] = bound.call
        outcome = bound.run()
        is_several = isinstance(outcome, tuple | list)
        result = outcome[0] if is_several else outcome
        previous = f"r{place}"
        lines.append(f"    {previous} = op{place}({', '.join(words)}){'[0]' if is_several else ''}")
    arguments = ", ".join(f"i{at}" for at in range(len(inputs)))
    body = "\n".join(lines)
    every = ", ".join(f"r{at}" for at in range(len(spec.ops)))
    ways = {"last": previous, "every": f"({every},)"}
    text = "\n".join(f"def {name}({arguments}):\n{body}\n    return {result}" for name, result in ways.items())
    exec(text, names)  # noqa: S102 - our own text; what was recorded are its arguments, not its words
    return names["last"], inputs, names["every"]


def _place_of(arguments: Sequence[Any], result: Any) -> int | None:
    """Finds the argument that takes the result of the op before.

    It is a position, null for none.
    """
    if result is None or not hasattr(result, "shape"):
        return None
    tensors = [(at, argument) for at, argument in enumerate(arguments) if hasattr(argument, "storage_offset")]
    same = [at for at, argument in tensors if argument.shape == result.shape and argument.dtype == result.dtype]
    as_many = [at for at, argument in tensors if argument.numel() == result.numel() and argument.dtype == result.dtype]
    return next(iter([*same, *as_many]), None)


def _word(value: Any, names: dict[str, Any], inputs: list[Any]) -> str:
    """The name by which the text of a chain calls a value."""
    if hasattr(value, "storage_offset"):
        inputs.append(value)
        return f"i{len(inputs) - 1}"
    name = f"c{len(names)}"
    names[name] = value
    return name


def library_op(torch: Any, spec: PieceSpec, device: str) -> Ways:
    """Makes written-out ops, and the library's op on the same numbers.

    The ops write out a norm, softmax or GELU one by one.
    """
    last, inputs, _ = _chain_functions(torch, spec, device)
    tensors = [argument for argument in arguments_of(torch, spec.ops[0], device) if hasattr(argument, "storage_offset")]
    numbers = max(tensors, key=lambda argument: int(argument.numel()), default=None)
    if numbers is None or not numbers.dim() or not numbers.is_floating_point():
        raise NotRebuilt(f"{spec.ops[0].name} has no tensor of numbers")
    row, functions = tuple(numbers.shape[-1:]), torch.nn.functional
    weight, bias = numbers.new_ones(row), numbers.new_zeros(row)
    calls: Mapping[str, Callable[[], object]] = {
        "layer_norm": lambda: functions.layer_norm(numbers, row, weight, bias),
        "rms_norm": lambda: functions.rms_norm(numbers, row, weight),
        "softmax": lambda: functions.softmax(numbers, -1),
        "gelu": lambda: functions.gelu(numbers),
        "gelu_tanh": lambda: functions.gelu(numbers, approximate="tanh"),
    }
    return Ways(Way(lambda: last(*inputs)), Way(calls[spec.settings["op"]]))


def channels_last(torch: Any, spec: PieceSpec, device: str) -> Ways:
    """Makes an op on contiguous images and in channels last.

    At worst the images are converted before each call.
    """
    (call,) = _calls(torch, spec, device)

    def by_pixels(tensor: Any) -> Any:
        return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor

    images = next((argument for argument in call.arguments if hasattr(argument, "dim") and argument.dim() == 4), None)
    if images is None:
        raise NotRebuilt(f"{spec.ops[0].name} has no argument of four dimensions")
    turned = call.with_tensors(by_pixels)

    def turn_and_run() -> None:
        by_pixels(images)
        turned.run()

    return Ways(Way(call.run), Way(turned.run), Way(turn_and_run))


def narrow_product(torch: Any, spec: PieceSpec, device: str) -> Ways:
    """Makes a product in fp32 and in the narrow dtype.

    One operand is cast each time, at worst all of them and the result.

    Under autocast weights are cast in each step, while activations come narrow from the op before where that is one
    that autocast narrows.
    """
    (call,) = _calls(torch, spec, device)
    dtype = getattr(torch, spec.settings["dtype"])

    def narrow(tensor: Any) -> Any:
        return tensor.to(dtype) if tensor.dtype is torch.float32 else tensor

    narrowed = call.with_tensors(narrow)
    wide = [operand for operand in call.arguments if getattr(operand, "dtype", None) is torch.float32]
    if not wide:
        raise NotRebuilt(f"{spec.ops[0].name} has no operand in fp32")
    weight = min(wide[-2:], key=lambda operand: int(operand.numel()))

    def cast_weight() -> None:
        narrow(weight)
        narrowed.run()

    def cast_all() -> None:
        result = call.with_tensors(narrow).run()
        for output in result if isinstance(result, tuple) else (result,):
            if getattr(output, "dtype", None) is dtype:
                output.float()

    return Ways(Way(call.run), Way(cast_weight), Way(cast_all))


def padded_product(torch: Any, spec: PieceSpec, device: str) -> Ways:
    """Makes a product as recorded and with padded sizes.

    They are multiples of 64, at worst of 8.
    """
    (call,) = _calls(torch, spec, device)

    def padded(unit: int) -> BoundCall:
        def pad(tensor: Any) -> Any:
            sizes = [-(-size // unit) * unit if size > unit else size for size in tensor.shape]
            return torch.rand(sizes, device=tensor.device).to(tensor.dtype)

        return call.with_tensors(pad)

    wide, narrow = padded(_WIDE_UNIT), padded(_NARROW_UNIT)
    return Ways(Way(call.run), Way(wide.run), Way(narrow.run))


def optimizer_step(torch: Any, spec: PieceSpec, device: str) -> Ways:
    """Makes the optimizer's step looped as it is, fused or foreach.

    It works on the recorded sizes of its parameters.
    """
    cls = getattr(torch.optim, spec.settings["class"])

    def step_of(**settings: bool) -> Callable[[], object]:
        parameters = [torch.rand(sizes, device=device) for sizes in spec.settings["sizes"]]
        for parameter in parameters:
            parameter.grad = torch.rand_like(parameter)
        momentum = {"momentum": 0.9} if spec.settings.get("has_momentum") and spec.settings["class"] == "SGD" else {}
        return cls(parameters, lr=1e-3, **momentum, **settings).step  # type: ignore[no-any-return]

    looped = step_of(foreach=False, fused=False)
    is_fused = spec.change == "fused-optimizer"
    return Ways(Way(looped), Way(step_of(fused=True) if is_fused else step_of(foreach=True)))


def written_attention(torch: Any, spec: PieceSpec, device: str) -> Ways:
    """Makes attention as two products with softmax, and as the fused op.

    In training it includes the backward pass.
    """
    batch, rows, columns, inner, width = (int(spec.settings[name]) for name in ("batch", "m", "n", "k", "d"))
    trains = bool(spec.settings.get("trains"))
    shapes = ((1, batch, rows, inner), (1, batch, columns, inner), (1, batch, columns, width))
    query, key, value = (torch.rand(shape, device=device, requires_grad=trains) for shape in shapes)

    def written() -> Any:
        return torch.softmax((query @ key.transpose(-2, -1)) * inner**-0.5, -1) @ value

    def fused() -> Any:
        return torch.nn.functional.scaled_dot_product_attention(query, key, value)

    grown = torch.rand((1, batch, rows, width), device=device)

    def both(forward: Callable[[], Any]) -> Callable[[], object]:
        return (lambda: torch.autograd.grad(forward(), (query, key, value), grown)) if trains else forward

    return Ways(Way(both(written)), Way(both(fused)))


def fewer_threads(torch: Any, spec: PieceSpec, device: str) -> Ways:
    """An op with the threads that it had, and with fewer."""
    (call,) = _calls(torch, spec, device)
    had, fewer = int(spec.settings["threads"]), int(spec.settings["fewer"])
    return Ways(
        Way(call.run, lambda: torch.set_num_threads(had)),
        Way(call.run, lambda: torch.set_num_threads(fewer)),
    )


# Times of chains: processor time on two cores of a Xeon with torch 2.13 and GCC 12, with and without a filled cache.
KINDS: Mapping[str, PieceKind] = {
    "chain": PieceKind(compiled_chain, seconds=0.5, first_s=(2.7, 4.7), compile_s=(0.1, 2.6)),
    "library-op": PieceKind(library_op),
    "layout": PieceKind(channels_last),
    "narrow-product": PieceKind(narrow_product),
    "padded-product": PieceKind(padded_product),
    "optimizer": PieceKind(optimizer_step, first_s=(0.5, 0.5)),
    "attention": PieceKind(written_attention),
    "threads": PieceKind(fewer_threads),
}
"""Kinds of pieces by name."""

# A piece of long calls takes so many at least: warm ones, and one in each round, as it is and changed.
_CALLS_AT_LEAST = 2 * (WARM_CALLS + ROUNDS_AT_LEAST)


def seconds_of(spec: PieceSpec, seen: Collection[str]) -> _Seconds:
    """Estimates the seconds that a piece takes, at least and usually.

    ``seen`` are kinds of which one was measured before.
    """
    kind = KINDS[spec.kind]
    call_us = spec.recorded_us / spec.calls if spec.recorded_us is not None and spec.calls > 0 else 0.0
    kernels = 2 if spec.settings.get("keeps") else 1
    turns_s = kind.seconds + _CALLS_AT_LEAST * call_us / 1e6

    def total(first_s: float, compile_s: float) -> float:
        return turns_s + kernels * compile_s + (0.0 if spec.kind in seen else first_s)

    least, usual = (total(*costs) for costs in zip(kind.first_s, kind.compile_s, strict=True))
    return least, usual
