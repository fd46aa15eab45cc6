"""Input and output of cost formulas.

The input is an op call as the trace recorded it (OpCall), the output its Cost.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import chain, repeat, zip_longest
from typing import TypeVar

import msgspec
from msgspec import Struct

from bottleneck.schema.reasons import Reason
from bottleneck.schema.records import replace
from bottleneck.units import ITEM_BYTES, SHORT_DTYPE


class Tensor(Struct, frozen=True, gc=False):
    """A tensor argument: shape, strides and dtype.

    Strides are null when the trace has none. The dtype is spelled as in the trace.
    """

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None = None

    @property
    def numel(self) -> int:
        """Elements by shape."""
        return math.prod(self.shape)

    @property
    def distinct(self) -> int:
        """Elements in memory: dims of stride 0 (broadcast by expand) count once."""
        if self.strides is None or len(self.strides) != len(self.shape):
            return self.numel
        return math.prod(
            size for size, stride in zip(self.shape, self.strides, strict=True) if stride != 0 or size == 0
        )

    @property
    def item_bytes(self) -> float:
        """Bytes per element; raises Unmodelled for a dtype that we do not know."""
        try:
            return ITEM_BYTES[self.dtype]
        except KeyError:
            raise Unmodelled("unknown_dtype", repr(self.dtype)) from None

    @property
    def bytes(self) -> float:
        """Distinct bytes."""
        return self.distinct * self.item_bytes

    @property
    def short_dtype(self) -> str:
        """Dtype as peaks are keyed: 'bf16', 'fp32' …"""
        return SHORT_DTYPE.get(self.dtype, self.dtype)


class TensorList(Struct, frozen=True, gc=False):
    """A list of tensors.

    The trace gives their shapes (or none at all) but never their dtype.

    ``item_bytes`` is known where the names of the kernels that processed the list contain it. Where ``spread`` is above
    1, the shapes are the least, by the grids of these kernels, and the elements may be so many times as many.
    """

    shapes: tuple[tuple[int, ...], ...]
    item_bytes: float | None = None
    spread: float = 1.0

    @property
    def numel(self) -> int:
        """Elements of all its tensors."""
        return sum(math.prod(shape) for shape in self.shapes)


class Scalar(Struct, frozen=True, gc=False):
    """A number, flag or list argument.

    It is the text that the trace holds, and empty when it was not recorded.
    """

    text: str = ""


_NOT_TENSORS = frozenset({"", "Scalar", "ScalarList", "Int", "Double", "Bool", "GenericList", "None"})

_LISTS = frozenset({"TensorList", "GenericList"})

# A list of tensors whose item size was inferred from kernel names: 'TensorList[2]'; behind a comma its spread.
_LIST_ITEMS = re.compile(r"TensorList\[(\d{0,3})(?:,(\d{1,9}\.\d{1,3}))?\]")

# Torch keeps sizes in 64-bit integers; a larger one is no size, and its products would overflow a float.
_SIZE_LIMIT = 2**63

Argument = Tensor | TensorList | Scalar | None


class Unmodelled(Exception):  # noqa: N818 - a value of the cost stage that ends as a null with a reason, not an error
    """This call has no modelled cost, for a reason that the report shows."""

    def __init__(self, code: str, *numbers: float | str) -> None:
        self.reason = Reason(code, numbers)
        super().__init__(self.reason)

    def __str__(self) -> str:
        return self.reason.words


Known = TypeVar("Known")


def recorded(value: Known | None, code: str) -> Known:
    """The value; raises Unmodelled for the reason of this code where there is none."""
    if value is None:
        raise Unmodelled(code)
    return value


class OpCall(Struct, frozen=True):
    """One op call: name and arguments in the order of the op's schema.

    ``result`` is the shape of its result where other ops of the trace give it: no trace records results.
    """

    name: str
    arguments: tuple[Argument, ...]
    result: tuple[int, ...] | None = None

    def tensor(self, position: int) -> Tensor:
        """The tensor at a position; raises Unmodelled when there is none."""
        argument = self.arguments[position] if position < len(self.arguments) else None
        if not isinstance(argument, Tensor):
            raise Unmodelled("no_tensor_argument", position, self.name)
        return argument

    def optional_tensor(self, position: int) -> Tensor | None:
        """Gives the tensor at a position.

        Null when the argument is None, absent or a placeholder of 0 elements.
        """
        argument = self.arguments[position] if position < len(self.arguments) else None
        return argument if isinstance(argument, Tensor) and argument.numel else None

    def tensors(self) -> tuple[Tensor, ...]:
        """All tensor arguments in order."""
        return tuple(argument for argument in self.arguments if isinstance(argument, Tensor))

    def lists(self) -> tuple[TensorList, ...]:
        """All tensor-list arguments in order."""
        return tuple(argument for argument in self.arguments if isinstance(argument, TensorList))

    def text(self, position: int) -> str:
        """The recorded text of a scalar argument; empty when it was not recorded."""
        argument = self.arguments[position] if position < len(self.arguments) else None
        return argument.text if isinstance(argument, Scalar) else ""

    def flag(self, position: int) -> bool | None:
        """A boolean argument; null when it was not recorded."""
        return {"True": True, "1": True, "False": False, "0": False}.get(self.text(position))

    def integer(self, position: int) -> int | None:
        """An integer argument; null when it was not recorded."""
        try:
            return int(self.text(position))
        except ValueError:
            return None

    def number(self, position: int) -> float | None:
        """A number argument such as '0.'; null when it was not recorded."""
        try:
            return float(self.text(position))
        except ValueError:
            return None

    def flags(self, position: int) -> tuple[bool, ...] | None:
        """A list-of-booleans argument such as '[True, False]'; null when it was not recorded."""
        words = [word.strip() for word in self.text(position).strip("[]").split(",")]
        values = [{"True": True, "1": True, "False": False, "0": False}.get(word) for word in words]
        flags = tuple(value for value in values if value is not None)
        return flags if len(flags) == len(values) else None

    def integers(self, position: int) -> tuple[int, ...] | None:
        """A list-of-integers argument such as '[1, 1]'; null when it was not recorded."""
        try:
            values = load_json(self.text(position))
        except (ValueError, RecursionError):
            return None
        if isinstance(values, int) and not isinstance(values, bool):
            return (values,)
        if isinstance(values, list) and all(type(value) is int for value in values):
            return tuple(values)
        return None

    def result_size(self, position: int) -> tuple[int, ...]:
        """Gives the size of the result from an argument.

        Raises Unmodelled when it was not recorded.
        """
        return recorded(self.integers(position), "no_result_size")


class Cost(Struct, frozen=True, eq=False, gc=False):
    """The cost of one call. A fused multiply-add is 2 FLOPs. Costs add.

    ``bytes_low`` counts each distinct byte once; ``bytes_high`` what the usual eager kernels move. ``math_dtype`` is
    the dtype of the arithmetic by the op's arguments; a kernel's name may overrule it. A product of [batch, m, k] and
    [batch, k, n] has its sizes, and so has attention: m queries, n keys, k numbers per head. Sizes are no amounts:
    they do not add, and costs of other sizes may be equal. ``note`` names what the cost leaves open, if anything.
    """

    family: str
    matrix_flops: float = 0.0
    vector_flops: float = 0.0
    special_ops: float = 0.0
    bytes_low: float = 0.0
    bytes_high: float = 0.0
    math_dtype: str | None = None
    m: float | None = None
    n: float | None = None
    k: float | None = None
    batch: float | None = None
    note: str | None = None

    @property
    def _amounts(self) -> tuple[str, float, float, float, float, float, str | None]:
        return (
            self.family,
            self.matrix_flops,
            self.vector_flops,
            self.special_ops,
            self.bytes_low,
            self.bytes_high,
            self.math_dtype,
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cost) and self._amounts == other._amounts

    def __hash__(self) -> int:
        return hash(self._amounts)

    def __add__(self, other: "Cost") -> "Cost":
        return replace(
            self,
            matrix_flops=self.matrix_flops + other.matrix_flops,
            vector_flops=self.vector_flops + other.vector_flops,
            special_ops=self.special_ops + other.special_ops,
            bytes_low=self.bytes_low + other.bytes_low,
            bytes_high=self.bytes_high + other.bytes_high,
        )


Formula = Callable[[OpCall], Cost]
Formulas = Mapping[str, Formula]


def parse_call(
    name: str,
    dims: str | None,
    types: str | None,
    strides: str | None,
    concrete: str | None,
    result: str | None = None,
) -> OpCall:
    """Parses the raw trace texts of one call.

    Raises Unmodelled when shapes are missing or malformed.

    The first four texts are the JSON of 'Input Dims', 'Input type', 'Input Strides' and 'Concrete Inputs' of one event;
    the last one is the JSON of the result's sizes, where they were found elsewhere.
    """
    if not dims:
        raise Unmodelled("no_shapes")
    if not types:
        raise Unmodelled("no_dtypes")
    shapes, dtypes = _load(dims), _load(types)
    rest = zip_longest(dtypes, _load(strides) if strides else (), _load(concrete) if concrete else ())
    if not dtypes and any(shapes):
        raise Unmodelled("no_dtypes")
    padded = chain(rest, repeat((None, None, None)))
    return OpCall(
        name,
        tuple([_argument(shape, *texts) for shape, texts in zip(shapes, padded, strict=False)]),
        _sizes(_load(result)) if result else None,
    )


_decode = msgspec.json.Decoder().decode


def load_json(text: str) -> object:
    """Gives the value in a JSON text.

    Raises ValueError or RecursionError as ``json.loads``, which takes five times as long.
    """
    try:
        return _decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return json.loads(text)


@lru_cache(maxsize=4096)
def _load(text: str) -> list[object]:
    """The list in a text, which calls share: it is not to be changed."""
    try:
        value = load_json(text)
    except (ValueError, RecursionError):
        raise Unmodelled("bad_json") from None
    if not isinstance(value, list):
        raise Unmodelled("no_list")
    return value


_UNRECORDED = Scalar()


def _argument(shape: object, dtype: object, strides: object, text: object) -> Argument:
    if (
        isinstance(dtype, str)
        and dtype in ITEM_BYTES
        and isinstance(shape, list)
        and not (shape and type(shape[0]) is list)
    ):
        return Tensor(_sizes(shape), dtype, _sizes(strides) if isinstance(strides, list) else None)
    sized = _LIST_ITEMS.fullmatch(dtype) if isinstance(dtype, str) and dtype.endswith("]") else None
    item_bytes = float(sized[1]) if sized and sized[1] else None
    spread = float(sized[2]) if sized and sized[2] else 1.0
    if isinstance(shape, list) and shape and all(isinstance(inner, list) for inner in shape):
        return TensorList(tuple(_sizes(inner) for inner in shape), item_bytes, spread)
    if (sized or dtype in _LISTS) and shape == []:
        return TensorList((), item_bytes)
    if not isinstance(dtype, str) or dtype in _NOT_TENSORS:
        return Scalar(text) if isinstance(text, str) and text else (_UNRECORDED if dtype else None)
    return Tensor(_sizes(shape), dtype, _sizes(strides) if isinstance(strides, list) else None)


def _sizes(values: object) -> tuple[int, ...]:
    if not isinstance(values, list):
        raise Unmodelled("no_sizes")
    for value in values:
        if type(value) is not int or not 0 <= value < _SIZE_LIMIT:
            raise Unmodelled("no_sizes")
    return tuple(values)
