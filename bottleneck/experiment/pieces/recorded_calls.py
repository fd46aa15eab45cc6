"""Makes recorded calls of ops again.

Their tensors come from sizes, dtypes and strides, and torch has the function to call.
"""

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bottleneck.experiment.pieces.specs import OpCallSpec
from bottleneck.harness.torch_private import network_function, schema_of

# Kineto's names of dtypes, and torch's.
_DTYPES = {
    "float": "float32",
    "double": "float64",
    "c10::BFloat16": "bfloat16",
    "c10::Half": "float16",
    "long int": "int64",
    "long": "int64",
    "int": "int32",
    "short int": "int16",
    "signed char": "int8",
    "unsigned char": "uint8",
    "bool": "bool",
}
FLOATING = frozenset({"float32", "float64", "bfloat16", "float16"})
# Kineto's names of arguments that are no tensors and whose values it writes as text.
_VALUES = frozenset({"Scalar", "ScalarList", ""})


class NotRebuilt(Exception):  # noqa: N818 - an outcome, not an error of ours
    """A call that cannot be made again from what was recorded, and why."""


@dataclass
class BoundCall:
    """Call that can be made: the function and its arguments.

    The arguments are positional and by keyword.
    """

    call: Callable[..., Any]
    arguments: list[Any]
    keywords: dict[str, Any] = field(default_factory=dict)

    def run(self) -> Any:
        """The result."""
        return self.call(*self.arguments, **self.keywords)

    def with_tensors(self, change: Callable[[Any], Any]) -> "BoundCall":
        """The same call with each of its tensors changed."""

        def changed(value: Any) -> Any:
            if isinstance(value, list):
                return [changed(item) for item in value]
            return change(value) if hasattr(value, "storage_offset") else value

        keywords = {name: changed(value) for name, value in self.keywords.items()}
        return BoundCall(self.call, [changed(item) for item in self.arguments], keywords)


def make_tensor(torch: Any, sizes: Sequence[int], dtype: str, strides: object, device: str) -> Any:
    """Makes a tensor of such sizes and strides.

    Its numbers are of 0.5 to 1, zeros for integers, since they may be indices.
    """
    kind = getattr(torch, dtype)
    usual = _contiguous(sizes)
    steps = strides if isinstance(strides, list) and len(strides) == len(sizes) else usual
    count = 1 + sum((size - 1) * step for size, step in zip(sizes, steps, strict=True)) if all(sizes) else 0
    if dtype in FLOATING:
        base = torch.rand(max(count, 0), device=device).mul_(0.5).add_(0.5).to(kind)
    else:
        base = torch.zeros(max(count, 0), dtype=kind, device=device)
    return base.as_strided(tuple(sizes), tuple(steps)) if count else torch.empty(tuple(sizes), dtype=kind)


def _contiguous(sizes: Sequence[int]) -> list[int]:
    steps, step = [], 1
    for size in reversed(sizes):
        steps.append(step)
        step *= max(size, 1)
    return steps[::-1]


def arguments_of(torch: Any, call: OpCallSpec, device: str) -> list[Any]:
    """The arguments of a call; NotRebuilt where one cannot be made."""
    return [_argument(torch, call, place, device) for place in range(len(call.types))]


def _argument(torch: Any, call: OpCallSpec, place: int, device: str) -> Any:
    kind, sizes = call.types[place], call.dims[place]
    text = call.concrete[place] if place < len(call.concrete) else ""
    strides = call.strides[place] if place < len(call.strides) else None
    if kind in _DTYPES and isinstance(sizes, list):
        return make_tensor(torch, sizes, _DTYPES[kind], strides, device)
    if kind == "TensorList" and isinstance(sizes, list):
        return [make_tensor(torch, shape, "float32", None, device) for shape in sizes]
    if kind in _VALUES:
        return _value(text, call.name)
    raise NotRebuilt(f"{call.name} takes an argument of type {kind!r}, which is not recorded")


def _value(text: object, name: str) -> Any:
    if not isinstance(text, str) or text in {"", "None"}:
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        if text.strip().isalpha():
            return text
        raise NotRebuilt(f"{name} takes {text[:40]!r}, which is no number") from None


def bind(torch: Any, name: str, arguments: Sequence[Any]) -> BoundCall:
    """Binds the op to these arguments.

    NotRebuilt where no overload of it takes them.

    It uses torch's own function where it has one that takes them. Calls through ``torch.ops`` are slower than a
    program's.
    """
    namespace, _, base = name.partition("::")
    # A recording may be a stranger's: nothing but torch's own ops is called for it.
    packet = getattr(torch.ops.aten, base, None) if namespace == "aten" else None
    if packet is None:
        raise NotRebuilt(f"torch has no op {name}")
    # Composite ops call others with the tensor that takes the result as the last argument: without it they make one.
    for taken in (arguments, arguments[:-1]):
        for overload in packet.overloads():
            overload_call = getattr(packet, overload)
            split = _split(schema_of(overload_call), taken)
            if split is not None:
                return BoundCall(_quick_call(torch, base, overload_call, split), *split)
    raise NotRebuilt(f"no overload of {name} takes the arguments that were recorded")


def _split(schema: Any, arguments: Sequence[Any]) -> tuple[list[Any], dict[str, Any]] | None:
    """Splits arguments by position and keyword, as the schema wants.

    Null where the schema does not take them.
    """
    wanted = list(schema.arguments)
    if len(wanted) < len(arguments) or any(declared.is_out for declared in wanted):
        return None
    if any(not declared.has_default_value() for declared in wanted[len(arguments) :]):
        return None
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    for parameter, value in zip(wanted, arguments, strict=False):
        if value is None and parameter.has_default_value() and parameter.kwarg_only:
            continue
        if not _takes(str(parameter.type), value):
            return None
        if parameter.kwarg_only:
            keywords[parameter.name] = value
        else:
            positional.append(value)
    return positional, keywords


# Kinds of values, most special first, and the types of a schema that take them.
_TAKEN: tuple[tuple[Callable[[Any], bool], frozenset[str]], ...] = (
    (lambda value: hasattr(value, "storage_offset"), frozenset({"Tensor"})),
    (lambda value: isinstance(value, bool), frozenset({"bool", "number"})),
    (lambda value: isinstance(value, str), frozenset({"str"})),
    (lambda value: isinstance(value, int), frozenset({"int", "float", "number"})),
    (lambda value: isinstance(value, float), frozenset({"float", "number"})),
)


def _takes(wanted: str, value: Any) -> bool:
    if value is None:
        return wanted.startswith("Optional")
    wanted = wanted.removeprefix("Optional[").removesuffix("]") if wanted.startswith("Optional") else wanted
    if isinstance(value, list):
        return wanted.startswith("List[")
    return any(holds(value) and wanted in types for holds, types in _TAKEN)


def _quick_call(
    torch: Any, base: str, found: Callable[..., Any], split: tuple[list[Any], Mapping[str, Any]]
) -> Callable[..., Any]:
    if base.endswith("_") and not base.endswith("__"):
        function = getattr(torch.Tensor, base, None)
    else:
        function = getattr(torch, base, None) or network_function(base)
    if function is None:
        return found
    try:
        function(*split[0], **split[1])
    except (TypeError, RuntimeError, ValueError):
        return found
    return function  # type: ignore[no-any-return]
