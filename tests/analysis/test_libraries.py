"""Libraries of kernels and ops by what torch was built with: known where the build tells, else null with a reason."""

from typing import Any

import pytest

from bottleneck.analysis.libraries import name_libraries
from bottleneck.schema.analysis import KernelSummary
from tests.report.samples import kernel

MKL = {"blas": "mkl", "lapack": "mkl", "mkl": True, "onednn": True, "isa": "AVX512", "float32": "highest"}
OPENBLAS = {"blas": "open", "lapack": "open", "mkl": False, "onednn": False, "isa": "DEFAULT", "float32": "highest"}
ARM = {**OPENBLAS, "onednn": True}


def op(name: str, library: str | None, **more: Any) -> KernelSummary:
    return kernel(name, 10.0, 100.0, **{"op": name, "library": library, "dtype": "fp32", "bound": "compute", **more})


def library_of(case: KernelSummary, built: dict[str, Any], device_kind: str = "cpu") -> str | None:
    (named,) = name_libraries([case], built, device_kind)
    assert (named.library is None) == (named.library_reason is not None)
    return named.library


def reason_of(case: KernelSummary, built: dict[str, Any]) -> str | None:
    return name_libraries([case], built, "cpu")[0].library_reason


@pytest.mark.parametrize(
    ("built", "more", "library"),
    [
        (MKL, {}, "MKL"),
        (MKL, {"dtype": "fp64"}, "MKL"),
        (MKL, {"dtype": "int64"}, "ATen"),
        (MKL, {"dtype": "bf16"}, None),  # oneDNN or MKL, by processor and size
        (MKL, {"dtype": None}, None),
        ({**MKL, "float32": "medium"}, {}, None),  # products of fp32 may go to oneDNN, which rounds to bf16
        ({**MKL, "float32": "medium"}, {"dtype": "fp64"}, "MKL"),
        ({"mkl": True, "onednn": True, "isa": "AVX2"}, {}, "MKL"),  # recordings of before the build was kept
        (OPENBLAS, {}, "OpenBLAS"),
        (ARM, {}, None),  # oneDNN takes large products of fp32 there
        ({**OPENBLAS, "blas": "mystery"}, {}, None),
        ({}, {}, None),
    ],
)
def test_a_product_is_of_the_blas_of_the_build_where_the_dtype_leaves_no_choice(
    built: dict[str, Any], more: dict[str, Any], library: str | None
) -> None:
    assert library_of(op("aten::mm", "BLAS", **more), built) == library


@pytest.mark.parametrize(
    ("name", "shapes", "library"),
    [
        ("aten::bmm", "[[3, 7, 7], [3, 7, 7]]", "ATen"),  # 343 multiply-adds
        ("aten::bmm", "[[3, 8, 10], [3, 10, 5]]", "MKL"),  # 400
        ("aten::baddbmm", "[[3, 7, 7], [3, 7, 7], [3, 7, 7]]", "ATen"),
        ("aten::baddbmm", "[[3, 16, 16], [3, 16, 16], [3, 16, 16]]", "MKL"),
        ("aten::bmm", None, None),
        ("aten::bmm", "[[3, 7, 7], [3, …", None),
        ("aten::bmm", "[[3, 7], [7, 3]]", None),
        ("aten::bmm", '{"a": 1}', None),
    ],
)
def test_small_products_of_a_batch_are_loops_of_aten(name: str, shapes: str | None, library: str | None) -> None:
    assert library_of(op(name, "BLAS", shapes=shapes), MKL) == library


@pytest.mark.parametrize(
    ("part", "built", "library"),
    [
        ("LAPACK", MKL, "MKL"),
        ("LAPACK", OPENBLAS, "OpenBLAS"),
        ("LAPACK", {}, None),
        ("FFT", MKL, "MKL"),
        ("FFT", OPENBLAS, "PocketFFT"),
        ("FFT", {}, None),
        ("ATen or other", MKL, None),
        ("ATen or other", OPENBLAS, "ATen"),
        ("ATen or other", {}, None),
        ("ATen", {}, "ATen"),
        ("oneDNN", {}, "oneDNN"),
        (None, MKL, None),
    ],
)
def test_other_parts_of_the_build(part: str | None, built: dict[str, Any], library: str | None) -> None:
    assert library_of(op("aten::something", part), built) == library


def test_what_is_not_known_says_why() -> None:
    assert reason_of(op("aten::mm", "BLAS"), {}) == "a trace does not tell which BLAS torch was built with"
    assert reason_of(op("aten::_fft_r2c", "FFT"), {}) == "a trace does not tell which FFT torch was built with"
    assert reason_of(op("aten::mm", "BLAS", dtype="bf16"), MKL) == (
        "torch chooses a library by dtype, size and processor"
    )
    assert reason_of(op("mine", None), MKL) == "its name tells no library"


def test_dispatch_computes_nothing_and_has_neither_library_nor_reason() -> None:
    (named,) = name_libraries([op("aten::linear", "ATen", bound="dispatch")], MKL, "cpu")
    assert (named.library, named.library_reason) == (None, None)


@pytest.mark.parametrize(("kind", "library"), [("cuda", "NCCL"), ("rocm", "RCCL"), ("xpu", "NCCL/RCCL")])
def test_collectives_are_of_the_vendors_library(kind: str, library: str) -> None:
    assert library_of(op("ncclDevKernel_SendRecv", "NCCL/RCCL"), {}, kind) == library


def test_the_backward_pass_of_a_convolution_is_of_the_library_of_its_forward_pass() -> None:
    forward = op("aten::mkldnn_convolution", "oneDNN", shapes="[[8, 3, 32, 32], [16, 3, 3, 3], [16]]")
    alike = op("aten::convolution_backward", "ATen or other", shapes="[[8, 16, 30, 30], [8, 3, 32, 32], [16, 3, 3, 3]]")
    other = op("aten::convolution_backward", "ATen or other", shapes="[[8, 16, 30, 30], [8, 3, 32, 32], [16, 3, 1, 1]]")
    unknown = op("aten::convolution_backward", "ATen or other", shapes=None)
    unknown_forward = op("aten::mkldnn_convolution", "oneDNN", shapes=None)
    named = name_libraries([forward, alike, other, unknown, unknown_forward], {}, "cpu")
    assert [one.library for one in named] == ["oneDNN", "oneDNN", None, None, "oneDNN"]
