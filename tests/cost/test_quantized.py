"""Rounding to integers and back, and oneDNN's quantised layers."""

import pytest

from bottleneck.cost.call import Cost, OpCall, Scalar, Tensor, Unmodelled
from bottleneck.cost.quantized import FORMULAS
from tests.cost.calls import HALF, moved, tensor

K = 1000


def cost_of(name: str, *arguments: Tensor | str | None) -> Cost:
    return FORMULAS[name](OpCall(name, tuple(Scalar(each) if isinstance(each, str) else each for each in arguments)))


@pytest.mark.parametrize(
    ("name", "arguments", "nbytes"),
    [
        ("aten::quantize_per_tensor", (tensor(K), "0.1", "0", "13"), 5 * K),
        ("aten::quantize_per_tensor", (tensor(K), "0.1", "0", "14"), 8 * K),
        ("aten::quantize_per_tensor_dynamic", (tensor(K, dtype=HALF), "12", "False"), 3 * K),
        ("aten::quantize_per_channel", (tensor(K), tensor(10), tensor(10), "0", "12"), 5 * K + 80),
        ("aten::dequantize", (tensor(K, dtype="c10::quint8"),), 5 * K),
        ("aten::fake_quantize_per_tensor_affine_cachemask", (tensor(K), "0.1", "0", "-128", "127"), 9 * K),
        ("quantized_decomposed::quantize_per_tensor", (tensor(K), "0.1", "0", "-128", "127", "1"), 5 * K),
    ],
)
def test_rounding_reads_one_dtype_and_writes_another(name, arguments, nbytes):
    assert moved(cost_of(name, *arguments)) == (nbytes, nbytes)


@pytest.mark.parametrize("rows", [4, 8])
def test_onednn_multiplies_packed_bytes(rows):
    arguments = (tensor(rows, 32, dtype="unsigned char"), "0.1", "0", tensor(32, 16, dtype="signed char"))
    cost = cost_of("onednn::qlinear_pointwise", *arguments)
    assert (cost.matrix_flops, cost.math_dtype) == (2 * rows * 16 * 32, "int8")
    assert moved(cost) == (rows * 32 + 512 + rows * 16, rows * 32 + 512 + 4 * rows * 16)


@pytest.mark.parametrize(("name", "dtype", "item"), [("linear_dynamic", "float", 4), ("linear_relu", "c10::quint8", 1)])
def test_a_layer_of_packed_weight_multiplies_as_its_result_tells(name, dtype, item):
    call = OpCall(f"quantized::{name}", (tensor(8, 4, 32, dtype=dtype), None), (8, 4, 16))
    cost = FORMULAS[call.name](call)
    assert (cost.matrix_flops, cost.math_dtype) == (2 * 32 * 16 * 32, "int8")
    assert moved(cost) == (item * 32 * 32 + 16 * 32 + item * 32 * 16,) * 2
    with pytest.raises(Unmodelled):
        FORMULAS[call.name](OpCall(call.name, call.arguments))


def test_a_packed_weight_that_does_not_fit_is_unmodelled():
    with pytest.raises(Unmodelled):
        cost_of("onednn::qlinear_pointwise", tensor(4, 33), "0.1", "0", tensor(32, 16))
