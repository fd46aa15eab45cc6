"""Reads dtypes and item sizes of calls without recorded operands from kernel names."""

import re

from bottleneck.units import ITEM_BYTES

# Spellings of floating dtypes in kernel names, by the spelling that traces use for arguments.
_SPELLINGS = {
    "float": "float",
    "double": "double",
    "c10::Half": "c10::Half",
    "__half": "c10::Half",
    "half_t": "c10::Half",
    "c10::BFloat16": "c10::BFloat16",
    "__nv_bfloat16": "c10::BFloat16",
    "__hip_bfloat16": "c10::BFloat16",
    "bfloat16_t": "c10::BFloat16",
    "c10::complex<float>": "c10::complex<float>",
    "c10::complex<double>": "c10::complex<double>",
}
_FLOATING = re.compile(rf"(?<!\w)(?:{'|'.join(sorted(map(re.escape, _SPELLINGS), key=len, reverse=True))})(?!\w)")

# Integer data: 'AddFunctor<long>', 'CatArrayBatchedCopy<bool, …'.
_INTEGER = re.compile(
    r"(?:Functor(?:OnSelf\w*|OnOther\w*|_\w+)?|CatArray\w*)<(long|int|short|bool|unsigned char|signed char)[,>]"
)
# Copies that only care for the size: 'OpaqueType<2u>'.
_OPAQUE = re.compile(r"OpaqueType<(\d+)u?(?:l|ul)?>")
# Kernels that cast while they load or store, whose operands have dtypes of their own.
_CASTING = re.compile(
    r"LoadWithCast|StoreWithCast|copy_device_to_device|direct_copy_kernel|(?:bfloat16|float\w*)_copy_kernel"
)

# Product kernels by the dtype of their arithmetic; fp8 and the like take scales and biases of other dtypes.
_STORED_AS = {"fp32": "float", "tf32": "float", "fp64": "double", "fp16": "c10::Half", "bf16": "c10::BFloat16"}


def kernel_dtype(name: str, math_dtype: str | None) -> str | None:
    """Gives the dtype of a kernel's data by its name.

    The dtype of its arithmetic (KERNELS.math_dtype) decides where the name does not. Else it is null.

    A product's accumulator may be wider than its operands, so that a dtype which the name spells out comes first.
    """
    if _CASTING.search(name):
        return None
    spelled = _FLOATING.search(name)
    if spelled:
        return _SPELLINGS[spelled[0]]
    integer = _INTEGER.search(name)
    return integer[1] if integer else _STORED_AS.get(math_dtype or "")


def kernel_item_bytes(name: str) -> float | None:
    """Gives the bytes per element of a kernel's tensors, by its name.

    Null where the name has no size.

    Unlike dtypes, sizes are also in the names of kernels that only copy.
    """
    opaque = _OPAQUE.search(name)
    if opaque:
        size = int(opaque[1][:3])
        return float(size) if size in {1, 2, 4, 8, 16} else None
    dtype = kernel_dtype(name, None)
    return None if dtype is None else ITEM_BYTES[dtype]
