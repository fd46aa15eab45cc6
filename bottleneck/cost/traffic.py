"""Bytes that tensors move, and the dtype of results.

Every memory-bound formula uses this arithmetic.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from msgspec import Struct

from bottleneck.cost.call import Cost, OpCall, Tensor, TensorList, Unmodelled
from bottleneck.schema.records import replace

# DRAM is read in sectors of this size: a strided walk moves a whole sector for each element that it touches.
SECTOR_BYTES = 32

# c10::ScalarType by number, as 'Concrete Inputs' holds dtype arguments.
DTYPE_BY_CODE = {
    0: "unsigned char",
    1: "signed char",
    2: "short int",
    3: "int",
    4: "long int",
    5: "c10::Half",
    6: "float",
    7: "double",
    8: "c10::complex<c10::Half>",
    9: "c10::complex<float>",
    10: "c10::complex<double>",
    11: "bool",
    12: "c10::qint8",
    13: "c10::quint8",
    14: "c10::qint32",
    15: "c10::BFloat16",
    23: "c10::Float8_e5m2",
    24: "c10::Float8_e4m3fn",
    25: "c10::Float8_e5m2fnuz",
    26: "c10::Float8_e4m3fnuz",
    27: "unsigned short",
    28: "unsigned int",
    44: "c10::Float8_e8m0fnu",
    45: "c10::Float4_e2m1fn_x2",
}

_INTEGERS = (
    "unsigned char",
    "signed char",
    "short",
    "short int",
    "unsigned int",
    "int",
    "long",
    "long int",
    "long long",
    "__int64",
)
_FLOATS = ("c10::Half", "c10::BFloat16", "float", "double")
_REAL_PART = {
    "c10::complex<c10::Half>": "c10::Half",
    "c10::complex<float>": "float",
    "c10::complex<double>": "double",
}
# Rank within a category, then the category itself: bool < integer < float < complex.
_RANK = {
    "bool": (0, 0),
    **{dtype: (1, rank) for rank, dtype in enumerate(_INTEGERS)},
    **{dtype: (2, rank) for rank, dtype in enumerate(_FLOATS)},
    **{dtype: (3, rank) for rank, dtype in enumerate(_REAL_PART)},
}
_NUMBERS = frozenset({"double", "long int", "long", "long long", "__int64", "c10::complex<double>"})
_DOUBLE = frozenset({"double", "c10::complex<double>"})
_FP64_BYTES = 8.0


Value = TypeVar("Value")
# An argument by its position, or a result shaped like one: its position, and its dtype where that is another.
Like = int | tuple[int, str]


def op_names(names: str) -> frozenset[str]:
    """Names of ATen's ops from a text that holds them without their prefix."""
    return frozenset(f"aten::{name}" for name in names.split())


def named(table: Mapping[str, Value], suffixes: tuple[str, ...] = ("",), prefix: str = "aten::") -> dict[str, Value]:
    """Gives one value per op name.

    The keys of ``table`` hold names separated by spaces, without prefix and suffix.
    """
    names = [name for key in table for name in key.split()]
    assert len(names) == len(set(names)), "a table has an op twice"
    return {
        f"{prefix}{name}{suffix}": formula
        for key, formula in table.items()
        for name in key.split()
        for suffix in suffixes
    }


def promote(tensors: Sequence[Tensor]) -> str:
    """The dtype of a result of these tensors by torch's promotion rules.

    Tensors without dimensions (which the profiler also records for plain numbers) lift the category at most, and then
    to its default width. Raises Unmodelled when there is no tensor.
    """
    if not tensors:
        raise Unmodelled("no_dtype")
    dimensioned = [tensor.dtype for tensor in tensors if tensor.shape] or [tensor.dtype for tensor in tensors]
    widest = _join(dimensioned)
    lifted = _join([widest, *(tensor.dtype for tensor in tensors)])
    if _category(lifted) > _category(widest):
        return {1: "long int", 2: "float", 3: "c10::complex<float>"}[_category(lifted)]
    return widest


def as_float(dtype: str) -> str:
    """Gives the dtype itself, or float for integers and bool.

    It is the result dtype of division and exp.
    """
    return "float" if _category(dtype) < 2 else dtype


def as_sum(dtype: str) -> str:
    """Gives the dtype itself, or long for integers and bool.

    It is the result dtype of sums and products of many elements.
    """
    return dtype if dtype.startswith("c10::") or dtype in {"float", "double"} else "long int"


def as_real(dtype: str) -> str:
    """The dtype of the parts of a complex number; any other dtype itself."""
    return _REAL_PART.get(dtype, dtype)


def as_complex(dtype: str) -> str:
    """The complex dtype whose parts have this dtype."""
    return {part: whole for whole, part in _REAL_PART.items()}.get(dtype, "c10::complex<float>")


def math_dtype(*tensors: Tensor) -> str:
    """Gives the dtype that vector units compute in.

    It is fp64 if any operand is double, else fp32.

    Eager kernels compute half precision in fp32 (``opmath_t`` in ATen); integer rates are bounded by the fp32 rate.
    """
    return "fp64" if any(tensor.dtype in _DOUBLE for tensor in without_numbers(tensors)) else "fp32"


def without_numbers(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Gives the tensors less plain numbers.

    The profiler records a number as a double or long without dimensions.
    """
    has_others = any(tensor.shape or tensor.dtype not in _NUMBERS for tensor in tensors)
    return [tensor for tensor in tensors if not has_others or tensor.shape or tensor.dtype not in _NUMBERS]


def broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape that these shapes broadcast to; raises Unmodelled when they do not."""
    rank = max((len(shape) for shape in shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(_broadcast_size(sizes) for sizes in zip(*padded, strict=True))


def dtype_argument(call: OpCall, position: int, default: str) -> str:
    """Gives the dtype that a ScalarType argument names.

    It is ``default`` when none was given or recorded.
    """
    code = call.integer(position)
    if code is None:
        return default
    if code not in DTYPE_BY_CODE:
        raise Unmodelled("unknown_dtype_number", code)
    return DTYPE_BY_CODE[code]


def out_argument(call: OpCall, operands: int, result: Tensor) -> Tensor:
    """Gives the tensor that the call writes.

    It is the ``out=`` tensor recorded behind the operands, else ``result``.

    An ``out=`` of another size is resized by the call, so only its dtype counts.
    """
    given = [argument for argument in call.arguments[operands:] if isinstance(argument, Tensor)]
    if not given:
        return result
    return given[-1] if given[-1].shape == result.shape else Tensor(result.shape, given[-1].dtype)


def sector_bytes(tensor: Tensor) -> float:
    """Gives bytes moved when each element is fetched by its stride.

    A whole sector moves where neighbours lie far apart.
    """
    strides = [
        stride for size, stride in zip(tensor.shape, tensor.strides or (), strict=False) if size > 1 and stride != 0
    ]
    step_bytes = min(strides, default=1) * tensor.item_bytes
    return tensor.distinct * min(step_bytes, max(SECTOR_BYTES, tensor.item_bytes))


def stream(family: str, *tensors: Tensor, vector_flops: float = 0.0, special_ops: float = 0.0) -> Cost:
    """Prices moving each tensor once between DRAM and the chip.

    The arithmetic on the way is given.
    """
    return Cost(
        family,
        vector_flops=vector_flops,
        special_ops=special_ops,
        bytes_low=sum(tensor.bytes for tensor in tensors),
        bytes_high=sum(sector_bytes(tensor) for tensor in tensors),
        math_dtype=math_dtype(*tensors),
    )


class Streams(Struct, frozen=True):
    """The formula of an op that moves its arguments once.

    It reads its first ``reads`` arguments, and writes results ``like`` some of them.

    FLOPs and special ops count per element of the argument ``per``. ``optional`` arguments move where they are given;
    kernels that make a second pass read ``again``, which only the high end counts.
    """

    family: str
    reads: int
    like: tuple[Like, ...] = (0,)
    flops: float = 0.0
    special_ops: float = 0.0
    per: int = 0
    optional: tuple[int, ...] = ()
    again: tuple[int, ...] = ()

    def __call__(self, call: OpCall) -> Cost:
        """The cost of one call."""
        read = [call.tensor(position) for position in range(self.reads)]
        given = [tensor for tensor in map(call.optional_tensor, self.optional) if tensor is not None]
        written = [self._result(read, place) for place in self.like]
        count = read[self.per].numel
        flops, special_ops = self.flops * count, self.special_ops * count
        cost = stream(self.family, *read, *given, *written, vector_flops=flops, special_ops=special_ops)
        return replace(cost, bytes_high=cost.bytes_high + sum(read[position].bytes for position in self.again))

    @staticmethod
    def _result(read: Sequence[Tensor], like: Like) -> Tensor:
        position, dtype = (like, None) if isinstance(like, int) else like
        return Tensor(read[position].shape, dtype or read[position].dtype)


def list_elements(call: OpCall, position: int) -> int:
    """Counts the elements of the tensor list at a position.

    Raises Unmodelled when the trace does not give its sizes.
    """
    argument = call.arguments[position] if position < len(call.arguments) else None
    if not isinstance(argument, TensorList) or not argument.shapes:
        raise Unmodelled("no_list_sizes")
    return argument.numel


def item_bytes_of_lists(call: OpCall) -> tuple[float, float]:
    """Gives fewest and most bytes per element of a call's lists.

    They are inferred from kernel names, else 2 to 4 (half, fp32).

    Rarely are they of another size: fp64, or integers in a cat whose kernels are not in the trace.
    """
    sizes = [argument.item_bytes for argument in call.lists() if argument.item_bytes is not None]
    return (min(sizes), max(sizes)) if sizes else (2.0, 4.0)


def listed(call: OpCall, family: str, elements: float, *, vector_flops: float = 0.0, special_ops: float = 0.0) -> Cost:
    """Prices moving so many elements of a call's lists.

    No trace gives the dtype of these tensors.
    """
    least, most = item_bytes_of_lists(call)
    return Cost(
        family,
        vector_flops=vector_flops,
        special_ops=special_ops,
        bytes_low=least * elements,
        bytes_high=most * elements * max((argument.spread for argument in call.lists()), default=1.0),
        math_dtype="fp64" if least == _FP64_BYTES else "fp32",
    )


def _join(dtypes: list[str]) -> str:
    """The widest dtype of the highest category; half with bfloat16 gives float."""
    unknown = [dtype for dtype in dtypes if dtype not in _RANK]
    if unknown:
        return unknown[0] if len(set(dtypes)) == 1 else _join([d for d in dtypes if d in _RANK] or unknown[:1])
    widest = max(dtypes, key=lambda dtype: _RANK[dtype])
    mixed = {"c10::Half", "c10::BFloat16"} <= set(dtypes)
    return "float" if mixed and widest == "c10::BFloat16" else widest


def _category(dtype: str) -> int:
    """0 bool, 1 integer, 2 float (the 8-bit floats included), 3 complex."""
    return _RANK.get(dtype, (2, 0))[0]


def _broadcast_size(sizes: tuple[int, ...]) -> int:
    wide = {size for size in sizes if size != 1}
    if len(wide) > 1:
        raise Unmodelled("no_broadcast")
    return wide.pop() if wide else 1
