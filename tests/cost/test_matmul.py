"""Matrix products: numbers by hand, laws, and products that run on the vector units."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck.cost import matmul, quantized
from bottleneck.cost.call import Cost, OpCall, Unmodelled
from tests.cost.calls import BF16, HALF, cost_of, moved, tensor, tensors

FORMULAS = {**matmul.FORMULAS, **quantized.FORMULAS}
M, N, K, B = 64, 48, 80, 3
INT8, FP8 = "signed char", "c10::Float8_e4m3fn"
sizes = st.integers(2, 5000)


def flops(cost: Cost) -> tuple[float, float]:
    return cost.matrix_flops, cost.vector_flops


@pytest.mark.parametrize(
    ("name", "arguments", "matrix_flops", "vector_flops", "moved_bytes"),
    [
        ("mm", (tensor(M, K), tensor(K, N)), 2 * M * N * K, 0, 4 * (M * K + K * N + M * N)),
        ("mm", (tensor(M, K, dtype=BF16), tensor(K, N, dtype=BF16)), 2 * M * N * K, 0, 2 * (M * K + K * N + M * N)),
        ("bmm", (tensor(B, M, K), tensor(B, K, N)), 2 * B * M * N * K, 0, 4 * B * (M * K + K * N + M * N)),
        (
            "addmm",
            (tensor(N), tensor(M, K), tensor(K, N), "1", "1"),
            2 * M * N * K,
            M * N,
            4 * (N + M * K + K * N + M * N),
        ),
        (
            "addmm_",
            (tensor(M, N), tensor(M, K), tensor(K, N), "1", "1"),
            2 * M * N * K,
            M * N,
            4 * (M * K + K * N + 2 * M * N),
        ),
        (
            "baddbmm",
            (tensor(1, 1, N), tensor(B, M, K), tensor(B, K, N), "1", "1"),
            2 * B * M * N * K,
            B * M * N,
            4 * (N + B * (M * K + K * N + M * N)),
        ),
        (
            "addbmm",
            (tensor(M, N), tensor(B, M, K), tensor(B, K, N), "1", "1"),
            2 * B * M * N * K,
            M * N,
            4 * (B * (M * K + K * N) + 2 * M * N),
        ),
        (
            "_addmm_activation",
            (tensor(N), tensor(M, K), tensor(K, N), "1", "1", "True"),
            2 * M * N * K,
            13 * M * N,
            4 * (N + M * K + K * N + M * N),
        ),
        ("linear", (tensor(2, 32, K), tensor(N, K), None), 2 * M * N * K, 0, 4 * (M * K + K * N + M * N)),
        (
            "linear",
            (tensor(2, 32, K), tensor(N, K), tensor(N)),
            2 * M * N * K,
            M * N,
            4 * (M * K + K * N + M * N + N),
        ),
        ("mv", (tensor(M, K), tensor(K)), 0, 2 * M * K, 4 * (M * K + K + M)),
        ("addmv", (tensor(M), tensor(M, K), tensor(K), "1", "1"), 0, 2 * M * K + M, 4 * (M * K + K + 2 * M)),
        ("dot", (tensor(K), tensor(K)), 0, 2 * K, 4 * (2 * K + 1)),
        ("addr", (tensor(M, N), tensor(M), tensor(N), "1", "1"), 0, 3 * M * N, 4 * (2 * M * N + M + N)),
        (
            "_int_mm",
            (tensor(M, K, dtype=INT8), tensor(K, N, dtype=INT8)),
            2 * M * N * K,
            0,
            M * K + K * N + 4 * M * N,
        ),
        (
            "_weight_int8pack_mm",
            (tensor(M, K, dtype=BF16), tensor(N, K, dtype=INT8), tensor(N, dtype=BF16)),
            2 * M * N * K,
            0,
            2 * M * K + N * K + 2 * N + 2 * M * N,
        ),
        (
            "_weight_int4pack_mm",
            (tensor(M, K, dtype=BF16), tensor(N // 8, K, dtype="int"), "16", tensor(5, N, 2, dtype=BF16)),
            2 * M * N * K,
            0,
            2 * M * K + N * K / 2 + 2 * 5 * N * 2 + 2 * M * N,
        ),
    ],
)
def test_each_product_counts_two_flops_per_multiply_add_and_moves_each_tensor_once(
    name, arguments, matrix_flops, vector_flops, moved_bytes
):
    cost = cost_of(FORMULAS, name, *arguments)
    assert flops(cost) == (matrix_flops, vector_flops)
    assert moved(cost) == pytest.approx((moved_bytes, moved_bytes), rel=1e-12)


@pytest.mark.parametrize(("m", "n"), [(1, N), (M, 1), (1, 1)])
def test_a_product_with_a_vector_runs_on_the_vector_units(m, n):
    cost = cost_of(FORMULAS, "mm", tensor(m, K, dtype=BF16), tensor(K, n, dtype=BF16))
    assert flops(cost) == (0, 2 * m * n * K)
    assert cost.math_dtype == "fp32"


def test_a_product_of_matrices_runs_on_the_matrix_engine_in_the_dtype_of_its_operands():
    cost = cost_of(FORMULAS, "mm", tensor(M, K, dtype=BF16), tensor(K, N, dtype=BF16))
    assert cost.math_dtype == "bf16"


def test_an_out_tensor_is_a_result_and_not_an_operand():
    plain = cost_of(FORMULAS, "mm", tensor(M, K), tensor(K, N))
    assert cost_of(FORMULAS, "mm", tensor(M, K), tensor(K, N), tensor(M, N)) == plain


def test_an_out_dtype_widens_the_result():
    half = (tensor(M, K, dtype=HALF), tensor(K, N, dtype=HALF))
    widened = cost_of(FORMULAS, "mm", *half, "6")
    assert widened.bytes_low - cost_of(FORMULAS, "mm", *half).bytes_low == 2 * M * N
    biased = cost_of(FORMULAS, "addmm", tensor(N, dtype=HALF), *half, "6", "1", "1")
    plain = cost_of(FORMULAS, "addmm", tensor(N, dtype=HALF), *half, "1", "1")
    assert biased.bytes_low - plain.bytes_low == 2 * M * N


def test_beta_of_zero_leaves_the_addend_unread():
    cost = cost_of(FORMULAS, "addmm", tensor(M, N), tensor(M, K), tensor(K, N), "0", "1")
    assert cost == cost_of(FORMULAS, "mm", tensor(M, K), tensor(K, N))


def test_beta_that_was_not_recorded_makes_the_bytes_an_interval():
    cost = cost_of(FORMULAS, "addmm", tensor(M, N), tensor(M, K), tensor(K, N), "", "")
    assert cost.bytes_high - cost.bytes_low == 4 * M * N


def test_a_batch_operand_expanded_from_one_matrix_is_read_once():
    expanded = tensor(B, K, N, strides=(0, N, 1))
    full = cost_of(FORMULAS, "bmm", tensor(B, M, K), tensor(B, K, N))
    assert full.bytes_low - cost_of(FORMULAS, "bmm", tensor(B, M, K), expanded).bytes_low == 4 * (B - 1) * K * N


def test_a_complex_product_takes_four_times_the_flops():
    complex_ = "c10::complex<float>"
    cost = cost_of(FORMULAS, "mm", tensor(M, K, dtype=complex_), tensor(K, N, dtype=complex_))
    assert cost.matrix_flops == 8 * M * N * K


def test_packed_mkl_weights_are_read_from_the_original_shape():
    call = OpCall("mkl::_mkl_linear", (tensor(M, K), tensor(9999), tensor(N, K), tensor(N), None))
    assert FORMULAS["mkl::_mkl_linear"](call) == cost_of(FORMULAS, "linear", tensor(M, K), tensor(N, K), tensor(N))


def test_a_fused_linear_reads_the_operand_of_its_epilogue():
    name = "mkldnn::_linear_pointwise"
    unary = FORMULAS[name](OpCall(name, (tensor(M, K), tensor(N, K), tensor(N))))
    binary = FORMULAS[name](OpCall(name, (tensor(M, K), tensor(M, N), tensor(N, K), tensor(N))))
    assert unary == cost_of(FORMULAS, "linear", tensor(M, K), tensor(N, K), tensor(N))
    assert (binary.bytes_low - unary.bytes_low, binary.vector_flops - unary.vector_flops) == (4 * M * N, M * N)


def test_fp8_products_write_the_out_dtype_and_read_their_scales():
    operands = (tensor(M, K, dtype=FP8), tensor(K, N, dtype=FP8))
    cost = cost_of(FORMULAS, "_scaled_mm", *operands, tensor(M, 1), tensor(1, N), None, None, "15", "False")
    assert flops(cost) == (2 * M * N * K, 0)
    assert moved(cost)[0] == M * K + K * N + 4 * (M + N) + 2 * M * N
    assert cost.math_dtype == "fp8"


def test_early_fp8_products_keep_out_dtype_where_the_bias_left_it():
    operands = (tensor(M, K, dtype=FP8), tensor(K, N, dtype=FP8))
    early = cost_of(FORMULAS, "_scaled_mm", *operands, None, "15", tensor(), tensor(), None, "False")
    late = cost_of(FORMULAS, "_scaled_mm", *operands, tensor(), tensor(), None, None, "15", "False")
    assert early == late


def test_fp4_operands_hold_two_values_per_element():
    fp4 = "c10::Float4_e2m1fn_x2"
    cost = cost_of(FORMULAS, "_scaled_mm", tensor(M, K, dtype=fp4), tensor(K, N, dtype=fp4), tensor(), tensor(), None)
    assert cost.matrix_flops == 4 * M * N * K


def test_scales_in_a_list_have_between_one_and_four_bytes():
    operands = (tensor(M, K, dtype=FP8), tensor(K, N, dtype=FP8))
    scales = [tensors((M, 1)), "[0]", "[0]", tensors((1, N)), "[0]", "[0]"]
    cost = cost_of(FORMULAS, "_scaled_mm_v2", *operands, *scales, None, "15")
    assert moved(cost) == (M * K + K * N + 2 * M * N + M + N, M * K + K * N + 2 * M * N + 4 * (M + N))


def test_experts_are_read_by_at_least_one_group_and_at_most_all():
    cost = cost_of(
        FORMULAS, "_grouped_mm", tensor(M, K, dtype=BF16), tensor(B, K, N, dtype=BF16), tensor(B, dtype="int")
    )
    assert cost.matrix_flops == 2 * M * N * K
    assert moved(cost) == (2 * (M * K + K * N + M * N), 2 * (M * K + B * K * N + M * N))


def test_a_grouped_weight_gradient_has_one_result_per_group():
    cost = cost_of(FORMULAS, "_grouped_mm", tensor(M, K, dtype=BF16), tensor(K, N, dtype=BF16), tensor(B, dtype="int"))
    assert cost.matrix_flops == 2 * M * N * K
    assert moved(cost) == (2 * (M * K + K * N + B * M * N),) * 2


def test_stacked_operands_on_both_sides_are_a_batch():
    grouped = cost_of(FORMULAS, "_grouped_mm", tensor(B, M, K), tensor(B, K, N), None)
    assert grouped == cost_of(FORMULAS, "bmm", tensor(B, M, K), tensor(B, K, N))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("mm", (tensor(M, K), tensor(K + 1, N))),
        ("bmm", (tensor(2, M, K), tensor(3, K, N))),
        ("mm", (tensor(K), tensor(K, N))),
        ("mv", (tensor(M, K), tensor(M))),
        ("dot", (tensor(K), tensor(M))),
        ("linear", (tensor(M, K), tensor(N, M), None)),
        ("mm", (tensor(M, K, dtype="mystery"), tensor(K, N, dtype="mystery"))),
    ],
)
def test_operands_that_do_not_fit_are_unmodelled(name, arguments):
    with pytest.raises(Unmodelled):
        cost_of(FORMULAS, name, *arguments)


@given(m=sizes, n=sizes, k=sizes)
def test_doubling_any_size_doubles_the_flops(m, n, k):
    def product(m: int, n: int, k: int) -> float:
        return cost_of(FORMULAS, "mm", tensor(m, k), tensor(k, n)).matrix_flops

    once = product(m, n, k)
    assert product(2 * m, n, k) == product(m, 2 * n, k) == product(m, n, 2 * k) == 2 * once


@given(first=sizes, second=sizes, m=sizes, n=sizes, k=sizes)
def test_batches_add(first, second, m, n, k):
    def batch(count: int) -> Cost:
        return cost_of(FORMULAS, "bmm", tensor(count, m, k), tensor(count, k, n))

    assert batch(first) + batch(second) == batch(first + second)


@given(m=sizes, n=sizes, k=sizes)
def test_a_transposed_product_costs_the_same(m, n, k):
    straight = cost_of(FORMULAS, "mm", tensor(m, k), tensor(k, n))
    assert cost_of(FORMULAS, "mm", tensor(n, k), tensor(k, m)) == straight


@pytest.mark.parametrize(
    ("name", "arguments", "sizes"),
    [
        ("mm", (tensor(5, 7), tensor(7, 3)), (5, 3, 7, 1)),
        ("bmm", (tensor(2, 5, 7), tensor(2, 7, 3)), (5, 3, 7, 2)),
        ("addmm", (tensor(3), tensor(5, 7), tensor(7, 3)), (5, 3, 7, 1)),
    ],
)
def test_a_product_records_its_sizes(name, arguments, sizes):
    cost = cost_of(FORMULAS, name, *arguments)
    assert (cost.m, cost.n, cost.k, cost.batch) == sizes


@pytest.mark.parametrize(("mask", "products"), [("[True, True, True]", 2), ("[False, True, False]", 1), ("", 2)])
def test_gradients_of_a_linear_layer_are_products_of_its_size(mask, products):
    x, dy, weight = tensor(5, 8, 32), tensor(5, 8, 16), tensor(16, 32)
    cost = cost_of(matmul.FORMULAS, "mkldnn_linear_backward", x, dy, weight, mask)
    assert cost.matrix_flops == products * 2 * 40 * 16 * 32
    assert cost.bytes_low >= dy.bytes + products * (x.bytes + weight.bytes)


def test_each_gradient_of_onednn_s_linear_layer_is_one_product():
    dy, weight = tensor(40, 16), tensor(16, 32)
    for_input = cost_of(matmul.FORMULAS, "mkldnn_linear_backward_input", "[40, 32]", dy, weight)
    for_weight = cost_of(matmul.FORMULAS, "mkldnn_linear_backward_weights", dy, tensor(40, 32), weight, "True")
    assert for_input.matrix_flops == for_weight.matrix_flops == 2 * 40 * 16 * 32
    assert for_input.bytes_low == 4 * (40 * 16 + 16 * 32 + 40 * 32)
    assert for_weight.bytes_low == 4 * (40 * 16 + 16 * 32 + 40 * 32 + 16)
