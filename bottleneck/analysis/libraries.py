"""Names the library that computes each kernel or op.

A GPU's kernel is named after its library (``trace/kernels.tsv``). An op of a CPU is not: which library multiplies
matrices follows from the build of torch, which a recording holds, and from dtype, size and processor.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bottleneck.schema.analysis import KernelSummary
from bottleneck.schema.reasons import Reason
from bottleneck.schema.records import replace

Build = Mapping[str, str | int | float | bool]

# Names of libraries by BLAS_INFO and LAPACK_INFO of torch's build, in lower case.
BUILD_NAMES = {
    "mkl": "MKL",
    "open": "OpenBLAS",
    "openblas": "OpenBLAS",
    "accelerate": "Accelerate",
    "veclib": "Accelerate",
    "nvpl": "NVPL",
    "atlas": "ATLAS",
    "blis": "BLIS",
    "flame": "libFLAME",
    "eigen": "Eigen",
    "goto": "GotoBLAS",
    "acml": "ACML",
    "essl": "ESSL",
    "flexi": "FlexiBLAS",
}
_COLLECTIVES = {"cuda": "NCCL", "rocm": "RCCL"}
# Batched products of fewer multiply-adds each are loops of ATen (bmm_out_or_baddbmm_ in LinearAlgebra.cpp).
_LEAST_IN_BATCH = 400
_FIRST_OPERAND = {"aten::bmm": 0, "aten::baddbmm": 1, "aten::baddbmm_": 1}
_WHOLE_NUMBERS = frozenset({"int8", "int32", "int64", "short int", "short", "bool"})


def name_libraries(kernels: Sequence[KernelSummary], built: Build, device_kind: str) -> tuple[KernelSummary, ...]:
    """Returns the kernels with their libraries, or why these are not known.

    ``built`` holds the libraries of a recording; it is empty for a bare trace.
    """
    forward = {_convolved(kernel, 0) for kernel in kernels if kernel.op == "aten::mkldnn_convolution"} - {None}
    return tuple(
        replace(kernel, library="oneDNN")
        if kernel.op == "aten::convolution_backward" and _convolved(kernel, 1) in forward
        else _named(kernel, built, device_kind)
        for kernel in kernels
    )


def _convolved(kernel: KernelSummary, first: int) -> tuple[str, str | None] | None:
    """Gives the shapes of a convolution's input and weight, and its dtype.

    Null where they are not known. torch chooses the library of both passes by these (``select_conv_backend`` in
    Convolution.cpp).
    """
    operands = _shapes(kernel.shapes)[first : first + 2]
    return (str(operands), kernel.dtype) if len(operands) == 2 and all(operands) else None


def _shapes(text: str | None) -> list[Any]:
    """The shapes of a call; none where they are cut or not known."""
    try:
        shapes = json.loads(text or "")
    except (ValueError, RecursionError):
        return []
    return shapes if isinstance(shapes, list) else []


def _named(kernel: KernelSummary, built: Build, device_kind: str) -> KernelSummary:
    if kernel.bound == "dispatch":
        return replace(kernel, library=None)
    if kernel.library == "NCCL/RCCL":
        return replace(kernel, library=_COLLECTIVES.get(device_kind, kernel.library))
    resolve = _BY_BUILD.get(kernel.library or "")
    if resolve is None:
        reason = Reason("no_library_in_name") if kernel.library is None else None
        return replace(kernel, library_reason=None if reason is None else reason.words)
    library = resolve(kernel, built)
    if isinstance(library, Reason):
        return replace(kernel, library=None, library_reason=library.words)
    return replace(kernel, library=library)


def _blas(kernel: KernelSummary, built: Build) -> str | Reason:
    """The library of a matrix product.

    oneDNN takes products of half types, and on ARM those of fp32 too, where they are large enough.
    """
    library = _of_build(built, "blas", "BLAS")
    if isinstance(library, Reason):
        return library
    if kernel.dtype in _WHOLE_NUMBERS:
        return "ATen"
    lowered = kernel.dtype == "fp32" and built.get("float32", "highest") != "highest"
    elsewhere = built.get("onednn") is not False and not str(built.get("isa")).startswith("AVX")
    if kernel.dtype not in {"fp32", "fp64"} or lowered or elsewhere:
        return Reason("chosen_by_dtype")
    if kernel.op not in _FIRST_OPERAND:
        return library
    count = _multiply_adds(kernel.shapes, _FIRST_OPERAND[kernel.op])
    if count is None:
        return Reason("chosen_by_dtype")
    return "ATen" if count < _LEAST_IN_BATCH else library


def _multiply_adds(shapes: str | None, first: int) -> int | None:
    """Multiply-adds of one product of a batch; null without its shapes."""
    try:
        (_, rows, inner), (_, _, columns) = _shapes(shapes)[first : first + 2]
        return int(rows) * int(inner) * int(columns)
    except (ValueError, TypeError):
        return None


def _lapack(_kernel: KernelSummary, built: Build) -> str | Reason:
    return _of_build(built, "lapack", "LAPACK")


def _of_build(built: Build, name: str, part: str) -> str | Reason:
    """The library of the build; MKL is both where torch has it."""
    library = BUILD_NAMES.get(str(built.get(name)), "MKL" if built.get("mkl") is True else None)
    return Reason("unknown_build", (part,)) if library is None else library


def _fft(_kernel: KernelSummary, built: Build) -> str | Reason:
    if not isinstance(built.get("mkl"), bool):
        return Reason("unknown_build", ("FFT",))
    return "MKL" if built["mkl"] else "PocketFFT"


def _aten_or_other(_kernel: KernelSummary, built: Build) -> str | Reason:
    """Loops of ATen in a build without MKL and oneDNN."""
    return "ATen" if built.get("mkl") is False and built.get("onednn") is False else Reason("inside_aten")


_BY_BUILD: Mapping[str, Callable[[KernelSummary, Build], str | Reason]] = {
    "BLAS": _blas,
    "LAPACK": _lapack,
    "FFT": _fft,
    "ATen or other": _aten_or_other,
}
"""Libraries of ``trace/kernels.tsv`` that stand for what torch was built with."""
