"""Fused attention: visible pairs counted one by one, every argument order, and lengths that a trace may not hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck.cost import op_family
from bottleneck.cost.attention import FORMULAS, PACKED, UNMASKED, formula, visible_pairs
from bottleneck.cost.call import Cost, OpCall, Scalar, Tensor, Unmodelled
from tests.cost.calls import BF16, cost_of, moved, tensor

BATCH, HEADS, QUERIES, KEYS, WIDTH, VALUE_WIDTH = 2, 8, 16, 16, 32, 24
lengths = st.integers(1, 40)


def operands(queries: int = QUERIES, keys: int = KEYS, *, kv_heads: int = HEADS, heads_last: bool = False):
    def shaped(length: int, heads: int, width: int):
        sizes = (BATCH, length, heads, width) if heads_last else (BATCH, heads, length, width)
        return tensor(*sizes, dtype=BF16)

    return shaped(queries, HEADS, WIDTH), shaped(keys, kv_heads, WIDTH), shaped(keys, kv_heads, VALUE_WIDTH)


def gradient(heads_last: bool = False):
    sizes = (BATCH, QUERIES, HEADS, VALUE_WIDTH) if heads_last else (BATCH, HEADS, QUERIES, VALUE_WIDTH)
    return tensor(*sizes, dtype=BF16)


QKV, QKV_LAST = operands(), operands(heads_last=True)
LSE = tensor(BATCH, HEADS, QUERIES)
SEED = tensor(dtype="long")


def forward_arguments(causal: bool) -> dict[str, tuple]:
    flag, kind = str(causal), str(int(causal))
    limits = ("", "", "16", "16")
    return {
        "scaled_dot_product_attention": (*QKV, None, "0.", flag, "", "False"),
        "_scaled_dot_product_flash_attention": (*QKV, "0.", flag, "False", ""),
        "_scaled_dot_product_flash_attention_for_cpu": (*QKV, "0.", flag, None, ""),
        "_scaled_dot_product_efficient_attention": (*QKV, None, "True", "0.", flag, ""),
        "_scaled_dot_product_cudnn_attention": (*QKV, None, "True", "0.", flag, "False", ""),
        "_scaled_dot_product_fused_attention_overrideable": (*QKV, None, "0.", flag, "False", ""),
        "_cudnn_attention_forward": (*QKV, None, *limits, "True", "0.", flag, "False", ""),
        "_flash_attention_forward": (*QKV_LAST, *limits, "0.", flag, "False", "", "", "", None, None),
        "_flash_attention_forward_no_dropout_inplace": (gradient(True), *QKV_LAST, *limits, "0.", flag, "False"),
        "_efficient_attention_forward": (*QKV_LAST, None, *limits, "0.", kind, "True", "", None, ""),
    }


def backward_arguments(causal: bool) -> dict[str, tuple]:
    flag, kind = str(causal), str(int(causal))
    limits = (None, None, "16", "16")
    first, last = (gradient(), *QKV), (gradient(True), *QKV_LAST)
    out, out_last = gradient(), gradient(True)
    return {
        "_scaled_dot_product_flash_attention_backward": (*first, out, LSE, *limits, "0.", flag, SEED, SEED, ""),
        "_scaled_dot_product_flash_attention_for_cpu_backward": (*first, out, LSE, "0.", flag, None, ""),
        "_scaled_dot_product_efficient_attention_backward": (
            *first, None, out, LSE, SEED, SEED, "0.", "[True, True, True, False]", flag, "",
        ),
        "_scaled_dot_product_cudnn_attention_backward": (
            *first, out, LSE, SEED, SEED, None, *limits, "0.", flag, "",
        ),
        "_cudnn_attention_backward": (*first, out, LSE, SEED, SEED, None, *limits, "0.", flag, ""),
        "_flash_attention_backward": (*last, out_last, LSE, *limits, "0.", flag, SEED, SEED, "", "", ""),
        "_efficient_attention_backward": (
            *last, None, out_last, *limits, LSE, "0.", SEED, SEED, kind, "False", "", "", "", "False",
        ),
    }  # fmt: skip


FULL, CAUSAL = QUERIES * KEYS, QUERIES * (QUERIES + 1) // 2
ELEMENTS = BATCH * HEADS * (QUERIES * WIDTH + KEYS * (WIDTH + VALUE_WIDTH))
OUT = BATCH * HEADS * QUERIES * VALUE_WIDTH
FORWARD_BYTES = 2 * (ELEMENTS + OUT) + 4 * BATCH * HEADS * QUERIES


@pytest.mark.parametrize(("causal", "pairs"), [(False, FULL), (True, CAUSAL)])
@pytest.mark.parametrize("name", forward_arguments(False))
def test_every_backend_gives_the_same_forward_pass_the_same_cost(name, causal, pairs):
    cost = cost_of(FORMULAS, name, *forward_arguments(causal)[name])
    assert cost.matrix_flops == 2 * BATCH * HEADS * pairs * (WIDTH + VALUE_WIDTH)
    assert cost.special_ops == BATCH * HEADS * pairs
    assert cost.vector_flops == 4 * cost.special_ops
    assert moved(cost) == (FORWARD_BYTES, FORWARD_BYTES)
    assert cost.math_dtype == "bf16"


@pytest.mark.parametrize(("causal", "pairs"), [(False, FULL), (True, CAUSAL)])
@pytest.mark.parametrize("name", backward_arguments(False))
def test_every_backend_gives_the_same_backward_pass_the_same_cost(name, causal, pairs):
    cost = cost_of(FORMULAS, name, *backward_arguments(causal)[name])
    assert cost.matrix_flops == 2 * BATCH * HEADS * pairs * (3 * WIDTH + 2 * VALUE_WIDTH)
    assert cost.special_ops == BATCH * HEADS * pairs
    assert cost.bytes_low == FORWARD_BYTES + 2 * (OUT + ELEMENTS)
    assert cost.bytes_high > cost.bytes_low


@pytest.mark.parametrize(
    ("name", "arguments", "passes"),
    [
        ("flash_attn::_flash_attn_forward", (*QKV_LAST, "0.", "0.1", "True", "-1", "-1", "0.", "", "False"), 1),
        (
            "flash_attn::_flash_attn_backward",
            (gradient(True), *QKV_LAST, gradient(True), LSE, *QKV_LAST, "0.", "0.1", "True", "-1", "-1"),
            2.5,
        ),
        ("flash_attn_3::fwd", (*QKV_LAST, *[None] * 20, "0.1", "True", "-1", "-1"), 1),
        ("flash_attn_3::bwd", (gradient(True), *QKV_LAST, *[None] * 11, "0.1", "True", "-1", "-1"), 2.5),
    ],
)
def test_flash_attention_packages_cost_the_same_as_torch(name, arguments, passes):
    parsed = tuple(Scalar(item) if isinstance(item, str) else item for item in arguments)
    widths = (3 * WIDTH + 2 * VALUE_WIDTH) if passes > 1 else WIDTH + VALUE_WIDTH
    assert FORMULAS[name](OpCall(name, parsed)).matrix_flops == 2 * BATCH * HEADS * CAUSAL * widths


OFFSETS = tensor(5, dtype="int")


def packed_flash_3(name: str, longest: str) -> Cost:
    """A backward pass of four causal sequences of 16 queries, in the order of arguments of each op."""
    rows = [tensor(4 * 16, HEADS, WIDTH, dtype=BF16) for _ in range(5)]
    lse = tensor(HEADS, 4 * 16)
    offsets, limits = (OFFSETS, OFFSETS, None, None), (longest, longest)
    order = (*rows[:3], *offsets, *limits) if name.endswith("::bwd") else (*offsets, *limits, *rows[:3])
    arguments = (*rows, lse, *order, "0.1", "True", "-1", "-1")
    return FORMULAS[name](OpCall(name, tuple(Scalar(each) if isinstance(each, str) else each for each in arguments)))


@pytest.mark.parametrize("name", ["flash_attn_3::bwd", "flash_attn_3::_flash_attn_backward"])
def test_lengths_of_packed_sequences_stand_elsewhere_in_the_op_in_python(name):
    cost = packed_flash_3(name, "16")
    assert (cost.matrix_flops, cost.note) == (2 * 4 * HEADS * 16 * 17 / 2 * 5 * WIDTH, None)
    assert packed_flash_3(name, "64").note == PACKED


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("aten::_scaled_dot_product_flash_attention", (*QKV, "", "", "")),
        ("aten::_efficient_attention_forward", (*QKV_LAST, None, "", "", "", "", "", "", "")),
        ("flash_attn_3::fwd", QKV_LAST),
        ("FlashAttnFunc", QKV_LAST),
    ],
)
def test_a_mask_that_was_not_recorded_is_a_causal_one_at_least(name, arguments):
    parsed = tuple(Scalar(item) if isinstance(item, str) else item for item in arguments)
    cost = FORMULAS[name](OpCall(name, parsed))
    assert cost.matrix_flops == 2 * BATCH * HEADS * CAUSAL * (WIDTH + VALUE_WIDTH)
    assert cost.note == UNMASKED


@pytest.mark.parametrize("name", ["flash_attn_3::bwd", "FlashAttnFuncBackward"])
def test_a_backward_pass_without_its_mask_is_that_of_a_causal_one(name):
    cost = FORMULAS[name](OpCall(name, (gradient(True), *QKV_LAST)))
    assert cost.matrix_flops == 2 * BATCH * HEADS * CAUSAL * (3 * WIDTH + 2 * VALUE_WIDTH)
    assert cost.note == UNMASKED


def test_packed_sequences_without_any_lengths_have_a_key_for_each_query_at_least():
    rows = tensor(64, HEADS, WIDTH, dtype=BF16)
    cost = FORMULAS["flash_attn_3::bwd"](OpCall("flash_attn_3::bwd", (rows,) * 6))
    assert (cost.matrix_flops, cost.note) == (2 * HEADS * 64 * 5 * WIDTH, PACKED)
    assert cost.bytes_low == 8 * 64 * HEADS * WIDTH * 2 + 4 * HEADS * 64


@given(queries=lengths, keys=lengths, last=st.integers(-50, 50), span=st.none() | st.integers(0, 60))
def test_visible_pairs_agree_with_counting_them_one_by_one(queries, keys, last, span):
    first = None if span is None else last - span
    counted = sum((first is None or i + first <= j) and j <= i + last for i in range(queries) for j in range(keys))
    assert visible_pairs(queries, keys, last=last, first=first) == counted


def flash(queries: int, keys: int, causal: bool, left: int = -1, right: int = -1) -> Cost:
    window = (str(left), str(right))
    arguments = (*operands(queries, keys, heads_last=True), "", "", "1", "1", "0.", str(causal), "False", "", *window)
    return cost_of(FORMULAS, "_flash_attention_forward", *arguments)


def test_flash_kernels_let_the_last_query_see_the_last_key():
    assert flash(1, 100, causal=True).matrix_flops == flash(1, 100, causal=False).matrix_flops
    assert flash(4, 6, causal=True).special_ops == BATCH * HEADS * (3 + 4 + 5 + 6)


def test_other_kernels_let_query_i_see_keys_up_to_i_and_leave_the_rest_unread_at_the_low_end():
    cost = cost_of(FORMULAS, "_scaled_dot_product_flash_attention_for_cpu", *operands(4, 6), "0.", "True", None, "")
    assert cost.special_ops == BATCH * HEADS * (1 + 2 + 3 + 4)
    assert cost.bytes_high - cost.bytes_low == pytest.approx(2 / 6 * 2 * BATCH * HEADS * 6 * (WIDTH + VALUE_WIDTH))


def test_mask_type_two_is_aligned_bottom_right_where_one_is_top_left():
    def pairs(kind: str) -> float:
        arguments = (*operands(4, 6, heads_last=True), None, "", "", "", "", "0.", kind, "True")
        return cost_of(FORMULAS, "_efficient_attention_forward", *arguments).special_ops / (BATCH * HEADS)

    assert (pairs("0"), pairs("1"), pairs("2")) == (24, 1 + 2 + 3 + 4, 3 + 4 + 5 + 6)


def test_mask_type_of_torch_before_2_5_stands_one_place_earlier():
    early = (*operands(4, 4, heads_last=True), None, "", "", "", "0.", "1", "False", "", "", "")
    assert cost_of(FORMULAS, "_efficient_attention_forward", *early).special_ops == BATCH * HEADS * 10


def test_a_sliding_window_limits_the_pairs():
    assert flash(8, 8, causal=True, left=2).special_ops == BATCH * HEADS * (1 + 2 + 3 * 6)
    assert flash(8, 8, causal=False, left=1, right=1).special_ops == BATCH * HEADS * (2 + 3 * 6 + 2)


def test_shared_key_heads_save_bytes_and_no_flops():
    def flash_cpu(kv_heads: int) -> Cost:
        return cost_of(
            FORMULAS, "_scaled_dot_product_flash_attention", *operands(kv_heads=kv_heads), "0.", "False", "False"
        )

    shared, full = flash_cpu(2), flash_cpu(HEADS)
    assert shared.matrix_flops == full.matrix_flops
    assert full.bytes_low - shared.bytes_low == 2 * BATCH * (HEADS - 2) * KEYS * (WIDTH + VALUE_WIDTH)


def test_a_bias_is_read_once_however_it_is_expanded():
    bias = tensor(BATCH, HEADS, QUERIES, KEYS, dtype=BF16, strides=(0, 0, KEYS, 1))
    cost = cost_of(FORMULAS, "_scaled_dot_product_efficient_attention", *QKV, bias, "True", "0.", "False", "")
    assert cost.bytes_low - FORWARD_BYTES == 2 * QUERIES * KEYS


def test_dropout_draws_random_bits_per_pair():
    cost = cost_of(FORMULAS, "_scaled_dot_product_flash_attention", *QKV, "0.1", "False", "False", "")
    assert cost.vector_flops == 14 * cost.special_ops


def packed(tokens: int, sequences: int, longest: int):
    shape = (tokens, HEADS, WIDTH)
    qkv = tuple(tensor(*shape, dtype=BF16) for _ in range(3))
    offsets = tensor(sequences + 1, dtype="int")
    return (*qkv, offsets, offsets, str(longest), str(longest), "0.", "True", "False", "", "", "")


def test_packed_sequences_of_one_length_are_a_batch():
    packed_cost = cost_of(FORMULAS, "_flash_attention_forward", *packed(4 * 16, 4, 16))
    assert packed_cost.matrix_flops == 4 * HEADS * CAUSAL * 2 * (2 * WIDTH)


def test_packed_sequences_of_unknown_lengths_take_at_least_what_even_ones_do():
    even, uneven = (cost_of(FORMULAS, "_flash_attention_forward", *packed(4 * 16, 4, longest)) for longest in (16, 32))
    assert uneven.matrix_flops == even.matrix_flops
    assert (even.note, uneven.note) == (None, PACKED)
    assert (uneven.bytes_low, uneven.bytes_high) == (even.bytes_low, even.bytes_high)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8))
def test_no_split_of_packed_sequences_takes_less_than_the_cost(lengths):
    cost = cost_of(FORMULAS, "_flash_attention_forward", *packed(sum(lengths), len(lengths), max(lengths)))
    pairs = sum(length * (length + 1) / 2 for length in lengths)
    assert cost.matrix_flops <= HEADS * pairs * 4 * WIDTH * (1 + 1e-9)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8))
def test_one_query_per_packed_sequence_sees_all_of_its_keys(lengths):
    q, k, v, offsets, _, _, _, *more = packed(sum(lengths), len(lengths), max(lengths))
    q = tensor(len(lengths), HEADS, WIDTH, dtype=BF16)
    cost = cost_of(FORMULAS, "_flash_attention_forward", q, k, v, offsets, offsets, "1", str(max(lengths)), *more)
    assert cost.matrix_flops == pytest.approx(HEADS * sum(lengths) * 4 * WIDTH)


def test_packed_sequences_with_fewer_keys_than_queries_are_unmodelled():
    q, _, v, *more = packed(64, 4, 32)
    with pytest.raises(Unmodelled, match="lengths of the packed sequences"):
        cost_of(FORMULAS, "_flash_attention_forward", q, tensor(32, HEADS, WIDTH), v, *more)


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("_flash_attention_forward", (*forward_arguments(False)["_flash_attention_forward"][:13], LSE), "cached"),
        ("_scaled_dot_product_flash_attention", (QKV[0], QKV[2], QKV[2], "0.", "False"), "fit"),
        ("_scaled_dot_product_flash_attention", (None, QKV[1], QKV[2], "0.", "False"), "tensor"),
    ],
)
def test_what_the_trace_does_not_hold_is_a_reason(name, arguments, reason):
    with pytest.raises(Unmodelled, match=reason):
        cost_of(FORMULAS, name, *arguments)


def test_backward_takes_two_and_a_half_times_the_forward_when_widths_agree():
    square = (tensor(1, 2, 64, 32),) * 3
    forward = cost_of(FORMULAS, "_scaled_dot_product_flash_attention", *square, "0.", "True", "False")
    rest = (square[0], tensor(1, 2, 64), "0.", "True", None, "")
    backward = cost_of(FORMULAS, "_scaled_dot_product_flash_attention_for_cpu_backward", square[0], *square, *rest)
    assert backward.matrix_flops == 2.5 * forward.matrix_flops


@given(queries=lengths, keys=lengths)
def test_a_causal_mask_never_adds_work(queries, keys):
    assert flash(queries, keys, causal=True).matrix_flops <= flash(queries, keys, causal=False).matrix_flops


def test_an_empty_placeholder_is_no_table_of_lengths():
    arguments = forward_arguments(False)["_flash_attention_forward"]
    empty = tensor(0, dtype="int")
    with_placeholders = (*arguments[:3], empty, empty, *arguments[5:13], empty)
    assert cost_of(FORMULAS, "_flash_attention_forward", *with_placeholders) == cost_of(
        FORMULAS, "_flash_attention_forward", *arguments
    )


FP8, INT8 = "c10::Float8_e4m3fnuz", "signed char"


def sage_cost_of(name: str, *arguments: Tensor) -> Cost:
    found = formula(name)
    assert found is not None
    return found(OpCall(name, arguments))


def attention(length: int) -> Cost:
    sizes = (2, 24, length, 128)
    query, key, value = tensor(*sizes, dtype=INT8), tensor(*sizes, dtype=INT8), tensor(*sizes, dtype=FP8)
    return sage_cost_of("sage_fwd_1", query, key, value, tensor(2, 24, 3), tensor(*sizes, dtype=BF16))


@pytest.mark.parametrize("length", [64, 128, 768])
def test_at_least_the_pairs_of_a_causal_mask_are_multiplied(length):
    cost, elements = attention(length), 48 * length * 128
    assert cost.matrix_flops == 48 * length * (length + 1) / 2 * 2 * 256
    assert moved(cost) == (5 * elements + 4 * 2 * 24 * 3,) * 2
    assert (cost.math_dtype, cost.note) == ("fp8", UNMASKED)


def test_rounding_moves_every_buffer_once():
    cost = sage_cost_of("sage_quant_kernel_0", tensor(100, 128, dtype=BF16), tensor(100, 128, dtype=INT8), tensor(4))
    assert moved(cost) == (3 * 12800 + 16,) * 2


def test_operands_that_do_not_fit_are_unmodelled():
    with pytest.raises(Unmodelled):
        sage_cost_of("sage_fwd", tensor(2, 3, 4), tensor(2, 3, 4), tensor(2, 3, 4))


@pytest.mark.parametrize(
    ("name", "family"),
    [("sage_fwd_1", "attention"), ("sage_quant_kernel", "pointwise"), ("sage_fwd_x", None), ("my_sage_fwd", None)],
)
def test_only_its_own_names_are_known(name, family):
    assert op_family(name) == family
    assert (formula(name) is None) == (family is None)
