"""Ops of inference servers: results among the arguments, caches of unknown fill, experts by their ids."""

import pytest

from bottleneck.cost import compute_cost
from bottleneck.cost.call import Cost, OpCall, Scalar, Tensor, Unmodelled
from bottleneck.cost.serving import CACHED, FORMULAS, ROUTED
from bottleneck.schema.reasons import Reason
from tests.cost.calls import BF16, LONG, moved, tensor

T, H = 32, 128


def half(*shape: int) -> Tensor:
    return tensor(*shape, dtype=BF16)


def cost_of(name: str, *arguments: Tensor | str | None) -> Cost:
    return FORMULAS[name](OpCall(name, tuple(Scalar(each) if isinstance(each, str) else each for each in arguments)))


@pytest.mark.parametrize(
    ("name", "arguments", "passes"),
    [
        ("_C::rms_norm", (half(T, H), half(T, H), half(H), "1e-06"), 2),
        ("_C::fused_add_rms_norm", (half(T, H), half(T, H), half(H), "1e-06"), 4),
        ("vllm::rocm_aiter_rms_norm", (half(T, H), half(H), "1e-06"), 2),
        ("vllm::rocm_aiter_rmsnorm2d_fwd_with_add", (half(T, H), half(T, H), half(H), "1e-06"), 4),
        ("aiter::add_rmsnorm", (half(T, H), half(T, H), half(T, H), half(T, H), half(H), "1e-06"), 4),
    ],
)
def test_a_norm_moves_what_it_was_given_and_what_it_returns(name, arguments, passes):
    assert moved(cost_of(name, *arguments)) == (passes * T * H * 2 + H * 2,) * 2


def test_a_group_norm_reads_its_input_again_at_worst():
    cost = cost_of("aiter::_groupnorm_run", half(1, H, 16, 16), "32", half(H), half(H), "1e-06")
    assert cost.bytes_low == 2 * H * 256 * 2 + 2 * H * 2
    assert cost.bytes_high - cost.bytes_low == H * 256 * 2


def test_one_half_gates_the_other():
    cost = cost_of("sgl_kernel::silu_and_mul", half(T, H), half(T, 2 * H))
    assert (cost.bytes_low, cost.vector_flops) == (3 * T * H * 2, 6 * T * H)


def test_a_rotation_turns_query_and_key_in_place():
    arguments = (tensor(T, dtype=LONG), half(T, 512), half(T, 64), "64", half(4096, 64), "True")
    fixed = 2 * T * (512 + 64) * 2 + T * 8
    assert moved(cost_of("_C::rotary_embedding", *arguments)) == (fixed + 128, fixed + T * 128)


def test_rows_written_to_a_cache_take_its_dtype():
    cache = tensor(1000, 32, 8, 64, dtype="c10::Float8_e4m3fn")
    arguments = (half(T, 8, 64), half(T, 8, 64), cache, cache, tensor(T, dtype=LONG), "", "", "")
    rows = T * 8 * 64
    assert moved(cost_of("_C_cache_ops::reshape_and_cache_flash", *arguments)) == (2 * rows * 3 + T * 8,) * 2


def paged(longest: str, sequences: int = 4) -> Cost:
    cache = half(1000, 8, 8, 16, 8)
    return cost_of(
        "_C::paged_attention_v1",
        *(half(sequences, 32, 64), half(sequences, 32, 64), cache, cache, "8", "0.125"),
        *(tensor(sequences, 10, dtype="int"), tensor(sequences, dtype="int"), "16", longest),
    )


def test_a_paged_cache_is_read_between_one_key_and_the_longest_sequences():
    cost = paged("100")
    fixed = 2 * 4 * 32 * 64 * 2
    assert cost.bytes_low == fixed + 2 * 8 * 64 * 2
    assert cost.bytes_high == fixed + 2 * 4 * 100 * 8 * 64 * 2 + 4 * 10 * 4
    assert (cost.matrix_flops, cost.note) == (4 * 4 * 32 * 64, CACHED)


def test_without_a_longest_length_the_block_table_bounds_the_cache():
    assert paged("").bytes_high == paged("160").bytes_high


def test_the_cache_itself_bounds_what_is_read():
    assert paged("99999999").bytes_high == 2 * 4 * 32 * 64 * 2 + 2 * 1000 * 8 * 8 * 16 * 8 * 2 + 4 * 10 * 4


def experts(tokens: int, *, per_token: int = 4, width: int = H) -> Cost:
    inner, count = 256, 16
    arguments = (half(tokens, width), half(count, 2 * inner, width), half(count, width, inner))
    ids = tensor(tokens, per_token, dtype="int")
    return cost_of("vllm::outplace_fused_experts", *arguments, tensor(tokens, per_token), ids)


def test_experts_multiply_every_token_as_often_as_it_chose():
    assert experts(8).matrix_flops == 2 * 8 * 4 * (H * 512 + 256 * H)
    assert experts(8).note == ROUTED


@pytest.mark.parametrize("tokens", [1, 2, 100])
def test_weights_of_the_chosen_experts_are_read_once(tokens):
    each = (512 * H + H * 256) * 2
    activations = 2 * tokens * H * 2 + tokens * 4 * 4
    cost = experts(tokens)
    assert cost.bytes_low == activations + 4 * each
    between = 2 * tokens * 4 * (512 + 256 + H) * 2
    assert cost.bytes_high == activations + min(16, 4 * tokens) * each + between


def test_twice_the_tokens_take_twice_the_arithmetic():
    assert experts(20).matrix_flops == 2 * experts(10).matrix_flops


def test_packed_weights_hold_two_numbers_per_byte():
    packed = tensor(16, 512, H // 2, dtype="unsigned char"), tensor(16, H, 128, dtype="unsigned char")
    arguments = (half(8, H), *packed, tensor(8, 4), tensor(8, 4, dtype="int"))
    cost = cost_of("vllm::fused_experts", *arguments)
    assert (cost.matrix_flops, cost.math_dtype) == (experts(8).matrix_flops, "bf16")


def test_scaled_products_write_their_out_tensor():
    left, right = tensor(64, H, dtype="c10::Float8_e4m3fn"), tensor(H, 32, dtype="c10::Float8_e4m3fn")
    cost = cost_of("_C::cutlass_scaled_mm", half(64, 32), left, right, tensor(1), tensor(1), None)
    assert (cost.matrix_flops, cost.bytes_low, cost.math_dtype) == (
        2 * 64 * 32 * H,
        64 * H + 32 * H + 64 * 32 * 2 + 8,
        "fp8",
    )
    scaled = cost_of("sgl_kernel::fp8_scaled_mm", left, right, tensor(1), tensor(1), "15", None)
    assert scaled.bytes_low == cost.bytes_low


def test_weights_of_four_bits_come_eight_to_an_integer():
    arguments = (half(64, H), tensor(H, 4, dtype="int"), half(1, 32), tensor(1, 4, dtype="int"), "8")
    cost = cost_of("_C::awq_gemm", *arguments)
    assert (cost.matrix_flops, cost.bytes_low) == (2 * 64 * 32 * H, 2 * (64 * H + 64 * 32 + 32) + 4 * (4 * H + 4))


def test_quantising_moves_what_it_reads_and_writes():
    arguments = (tensor(T, H, dtype="c10::Float8_e4m3fn"), half(T, H), tensor(T))
    assert moved(cost_of("_C::dynamic_per_token_scaled_fp8_quant", *arguments)) == (3 * T * H + 4 * T,) * 2


@pytest.mark.parametrize("name", sorted(FORMULAS))
def test_a_call_without_tensors_is_unmodelled(name):
    with pytest.raises((Unmodelled, IndexError, ValueError)):
        cost_of(name, "1", "2")


QUERIES, OFFSETS = half(64, 32, 64), tensor(5, dtype="int")
CACHE = half(1000, 16, 8, 64)


def varlen(table: Tensor | None, *, used: Tensor | None = None) -> Cost:
    """FlashAttention 2 as vLLM builds it: four causal sequences of 16 queries."""
    keys = half(64, 8, 64) if table is None else CACHE
    limits = ("16", "16" if table is None else "100")
    return cost_of(
        "_vllm_fa2_C::varlen_fwd",
        *(QUERIES, keys, keys, half(64, 32, 64), OFFSETS, OFFSETS, used, None, table, None),
        *(*limits, "0.", "0.125", "False", "True", "-1", "-1", "0.", "False", ""),
    )


def test_attention_without_a_cache_is_that_of_its_packed_sequences():
    cost = varlen(None)
    assert (cost.matrix_flops, cost.note) == (2 * 4 * 32 * 16 * 17 / 2 * 128, None)


def test_attention_over_a_cache_is_bounded_by_its_longest_sequence():
    cost = varlen(tensor(4, 7, dtype="int"))
    assert cost.bytes_high == 2 * 64 * 32 * 64 * 2 + 2 * 4 * 100 * 8 * 64 * 2 + 4 * 7 * 4
    assert cost.note == CACHED


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("sglang_profiler::attention_paged_attention_ragged_100", "cached_lengths"),
        ("flashinfer::batch_decode_run", "cached_lengths"),
        ("aiter::unpaged", "no_formula"),
        ("mine::paged_attention", "no_formula"),
    ],
)
def test_attention_over_a_cache_is_known_by_its_words(name, code):
    reason = compute_cost(name, "[[32, 32, 128]]", '["c10::BFloat16"]', None, None)
    assert isinstance(reason, Reason) and reason.code == code


@pytest.mark.parametrize(
    ("name", "reason"),
    [("vllm::unified_attention_with_output", "cached sequences"), ("vllm::moe_forward", "weights of the experts")],
)
def test_what_is_no_argument_of_the_op_is_the_reason(name, reason):
    with pytest.raises(Unmodelled, match=reason):
        cost_of(name, half(T, H), half(T, H))
    with pytest.raises(Unmodelled, match="cached"):
        varlen(None, used=tensor(4, dtype="int"))
