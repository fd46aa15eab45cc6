"""Convolutions: sizes by hand in every argument order, laws, and what old traces leave out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck.cost.call import Cost, OpCall, Scalar, Unmodelled
from bottleneck.cost.convolution import FORMULAS
from bottleneck.schema.records import replace
from tests.cost.calls import BF16, cost_of, moved, tensor

# A 3 x 3 window with stride 2 and padding 1 over 9 x 9: 5 x 5 positions.
X, W, BIAS = tensor(4, 8, 9, 9), tensor(16, 8, 3, 3), tensor(16)
STRIDE, PADDING, ONE, ZERO = "[2, 2]", "[1, 1]", "[1, 1]", "[0, 0]"
FORWARD_FLOPS = 2 * 4 * 25 * 16 * 8 * 9
FORWARD_BYTES = 4 * (X.numel + W.numel + 4 * 16 * 25)

# The same window transposed: 9 -> (9 - 1) * 2 - 2 + 2 + 1 + 1 = 18 with an output padding of 1.
TRANSPOSED_W = tensor(8, 16, 3, 3)
TRANSPOSED_FLOPS = 2 * 4 * 81 * 8 * 16 * 9

FORWARD = {
    "convolution": (X, W, None, STRIDE, PADDING, ONE, "False", ZERO, "1"),
    "_convolution": (X, W, None, STRIDE, PADDING, ONE, "False", ZERO, "1", "False", "False", "True", "True"),
    "conv2d": (X, W, None, STRIDE, PADDING, ONE, "1"),
    "cudnn_convolution": (X, W, PADDING, STRIDE, ONE, "1", "True", "False", "True"),
    "miopen_convolution": (X, W, None, PADDING, STRIDE, ONE, "1", "False", "False"),
    "mkldnn_convolution": (X, W, None, PADDING, STRIDE, ONE, "1"),
    "_nnpack_spatial_convolution": (X, W, None, PADDING, STRIDE),
    "cudnn_convolution_relu": (X, W, None, STRIDE, PADDING, ONE, "1"),
}
TRANSPOSED = {
    "convolution": (X, TRANSPOSED_W, None, STRIDE, PADDING, ONE, "True", PADDING, "1"),
    "conv_transpose2d": (X, TRANSPOSED_W, None, STRIDE, PADDING, PADDING, "1", ONE),
    "cudnn_convolution_transpose": (X, TRANSPOSED_W, PADDING, PADDING, STRIDE, ONE, "1", "False", "False", "True"),
    "miopen_convolution_transpose": (X, TRANSPOSED_W, None, PADDING, PADDING, STRIDE, ONE, "1", "False", "False"),
    "slow_conv_transpose2d": (X, TRANSPOSED_W, "[3, 3]", None, STRIDE, PADDING, PADDING, ONE),
}


@pytest.mark.parametrize("name", FORWARD)
def test_every_backend_gives_the_same_convolution_the_same_cost(name):
    cost = cost_of(FORMULAS, name, *FORWARD[name])
    assert (cost.matrix_flops, cost.vector_flops) == (FORWARD_FLOPS, 0)
    assert moved(cost) == (FORWARD_BYTES, FORWARD_BYTES)


@pytest.mark.parametrize("name", TRANSPOSED)
def test_a_transposed_convolution_applies_its_weight_at_every_input_position(name):
    cost = cost_of(FORMULAS, name, *TRANSPOSED[name])
    assert cost.matrix_flops == TRANSPOSED_FLOPS
    assert moved(cost)[0] == 4 * (X.numel + TRANSPOSED_W.numel + 4 * 16 * 18 * 18)


def test_padding_read_as_stride_would_give_another_cost():
    swapped = cost_of(FORMULAS, "cudnn_convolution", X, W, STRIDE, PADDING, ONE, "1")
    assert swapped.matrix_flops != FORWARD_FLOPS


def test_a_bias_is_read_and_added_to_every_output():
    cost = cost_of(FORMULAS, "convolution", X, W, BIAS, STRIDE, PADDING, ONE, "False", ZERO, "1")
    assert (cost.vector_flops, cost.bytes_low - FORWARD_BYTES) == (4 * 16 * 25, 4 * 16)


def test_unfolding_writes_and_reads_every_window():
    cost = cost_of(FORMULAS, "_slow_conv2d_forward", X, W, "[3, 3]", None, STRIDE, PADDING)
    assert cost.bytes_low == FORWARD_BYTES
    assert cost.bytes_high - cost.bytes_low == 2 * 4 * (4 * 8 * 9 * 25)


def test_a_fused_convolution_reads_the_operand_of_its_epilogue():
    name, other = "mkldnn::_convolution_pointwise", tensor(4, 16, 5, 5)
    scalars = [Scalar(text) for text in (PADDING, STRIDE, ONE, "1", "none")]
    unary = FORMULAS[name](OpCall(name, (X, W, None, *scalars)))
    binary = FORMULAS[name](OpCall(name, (X, other, W, None, *scalars)))
    in_place = FORMULAS[f"{name}_"](OpCall(f"{name}_", (other, X, W, None, *scalars)))
    assert unary == cost_of(FORMULAS, "convolution", *FORWARD["convolution"])
    assert binary == in_place
    assert binary.bytes_low - unary.bytes_low == other.bytes


def test_dilation_shrinks_the_output():
    cost = cost_of(FORMULAS, "convolution", X, W, None, ONE, ZERO, "[2, 2]", "False", ZERO, "1")
    assert cost.matrix_flops == 2 * 4 * 25 * W.numel


def test_an_example_without_a_batch_is_a_batch_of_one():
    cost = cost_of(FORMULAS, "conv2d", tensor(8, 9, 9), W, None, STRIDE, PADDING, ONE, "1")
    assert cost.matrix_flops == FORWARD_FLOPS / 4


def test_one_and_three_dimensional_windows_follow_the_same_rule():
    line = cost_of(FORMULAS, "conv1d", tensor(2, 4, 10), tensor(6, 4, 3), None, "[1]", "[1]", "[1]", "1")
    assert line.matrix_flops == 2 * 2 * 10 * 6 * 4 * 3
    box = cost_of(FORMULAS, "conv3d", tensor(2, 4, 5, 6, 7), tensor(6, 4, 3, 3, 3), None, "[1]", "[0]", "[1]", "1")
    assert box.matrix_flops == 2 * 2 * (3 * 4 * 5) * 6 * 4 * 27


def test_groups_divide_the_flops():
    grouped = cost_of(FORMULAS, "convolution", X, tensor(16, 2, 3, 3), None, STRIDE, PADDING, ONE, "False", ZERO, "4")
    assert grouped.matrix_flops == FORWARD_FLOPS / 4


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("convolution", (X, tensor(8, 1, 3, 3), None, STRIDE, PADDING, ONE, "False", ZERO, "8")),
        ("_conv_depthwise2d", (X, tensor(8, 1, 3, 3), "[3, 3]", None, STRIDE, PADDING, ONE)),
    ],
)
def test_a_depthwise_convolution_runs_on_the_vector_units(name, arguments):
    cost = cost_of(FORMULAS, name, *arguments)
    assert (cost.matrix_flops, cost.vector_flops) == (0, 2 * 4 * 25 * 8 * 9)


def test_a_single_input_channel_is_not_depthwise():
    cost = cost_of(FORMULAS, "convolution", tensor(4, 1, 9, 9), tensor(16, 1, 3, 3), None, ONE, ZERO, ONE, "False")
    assert (cost.matrix_flops, cost.vector_flops) == (2 * 4 * 49 * 16 * 9, 0)


GRAD = tensor(4, 16, 5, 5)
STATIC = ("[16]", STRIDE, PADDING, ONE, "False", ZERO, "1")
BOTH = 2 * (X.numel + W.numel)


@pytest.mark.parametrize(
    ("mask", "passes", "low", "high", "vector_flops"),
    [
        ("[True, True, False]", 2, GRAD.numel + BOTH, 2 * GRAD.numel + BOTH, 0),
        ("[False, True, False]", 1, GRAD.numel + BOTH / 2, GRAD.numel + BOTH / 2, 0),
        ("[True, True, True]", 2, GRAD.numel + BOTH + 16, 3 * GRAD.numel + BOTH + 16, GRAD.numel),
        ("[False, False, True]", 0, GRAD.numel + 16, GRAD.numel + 16, GRAD.numel),
    ],
)
def test_each_gradient_costs_one_forward_pass(mask, passes, low, high, vector_flops):
    cost = cost_of(FORMULAS, "convolution_backward", GRAD, X, W, *STATIC, mask)
    assert (cost.matrix_flops, cost.vector_flops) == (passes * FORWARD_FLOPS, vector_flops)
    assert moved(cost) == (4 * low, 4 * high)


def test_backward_of_old_backends_adds_up_to_the_general_one():
    rest = (PADDING, STRIDE, ONE, "1", "True", "False", "True")
    whole = cost_of(FORMULAS, "cudnn_convolution_backward", X, GRAD, W, *rest, "[True, True]")
    for_input = cost_of(FORMULAS, "cudnn_convolution_backward_input", "[4, 8, 9, 9]", GRAD, W, *rest)
    for_weight = cost_of(FORMULAS, "cudnn_convolution_backward_weight", "[16, 8, 3, 3]", GRAD, X, *rest)
    general = cost_of(FORMULAS, "convolution_backward", GRAD, X, W, *STATIC, "[True, True, False]")
    assert whole == general
    assert for_input + for_weight == replace(general, bytes_low=general.bytes_high)


def test_backward_of_a_transposed_convolution_costs_its_forward():
    rest = ("[16]", STRIDE, PADDING, ONE, "True", PADDING, "1", "[True, True, False]")
    cost = cost_of(FORMULAS, "convolution_backward", tensor(4, 16, 18, 18), X, TRANSPOSED_W, *rest)
    assert cost.matrix_flops == 2 * TRANSPOSED_FLOPS


def test_depthwise_backward_runs_on_the_vector_units():
    rest = ("[0]", ONE, PADDING, ONE, "False", ZERO, "8", "[True, True, False]")
    cost = cost_of(FORMULAS, "convolution_backward", X, X, tensor(8, 1, 3, 3), *rest)
    assert (cost.matrix_flops, cost.vector_flops) == (0, 2 * (2 * 4 * 81 * 8 * 9))


def test_without_the_flag_the_weight_decides_that_the_convolution_was_transposed():
    silent = ("", "", "", "", "", "", "", "[True, False, False]")
    assert cost_of(FORMULAS, "convolution_backward", GRAD, X, W, *silent).matrix_flops == FORWARD_FLOPS
    with pytest.raises(Unmodelled, match="transposed"):
        cost_of(FORMULAS, "convolution_backward", tensor(4, 8, 5, 5), X, tensor(8, 8, 3, 3), *silent)
    # As many positions on both sides: a transposed convolution takes as many FLOPs as any other.
    alike = [
        cost_of(FORMULAS, "convolution_backward", X, X, tensor(8, 8, 3, 3), *silent[:4], flag, *silent[5:])
        for flag in ("", "True", "False")
    ]
    assert len({cost.matrix_flops for cost in alike}) == 1


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("mkldnn_convolution", (X, W, None, "", "", "", ""), "was not recorded"),
        ("conv2d", (X, W, None, STRIDE, "", ONE, "1"), "was not recorded"),
        ("convolution", (X, TRANSPOSED_W, None, STRIDE, PADDING, ONE, "True", ZERO, ""), "groups"),
        ("convolution_backward", (GRAD, X, W, "", "", "", "", "", "", "", ""), "gradients"),
        ("convolution", (tensor(1, 8, 2, 2), W, None, ONE, ZERO, ONE, "False", ZERO, "1"), "larger"),
        ("convolution", (X, tensor(16, 8), None, ONE, ZERO, ONE, "False", ZERO, "1"), "dimensions"),
        ("cudnn_convolution_backward_input", ("[-4, 8, 9, 9]", GRAD, W), "sizes"),
    ],
)
def test_what_the_trace_does_not_hold_is_a_reason(name, arguments, reason):
    with pytest.raises(Unmodelled, match=reason):
        cost_of(FORMULAS, name, *arguments)


def test_half_precision_halves_the_bytes():
    half = cost_of(
        FORMULAS, "conv2d", tensor(4, 8, 9, 9, dtype=BF16), tensor(16, 8, 3, 3, dtype=BF16), None, *STATIC[1:4]
    )
    assert half.bytes_low == FORWARD_BYTES / 2
    assert half.math_dtype == "bf16"


@given(batch=st.integers(1, 64), channels=st.integers(1, 64), size=st.integers(3, 50))
def test_batches_add_and_output_channels_double_the_flops(batch, channels, size):
    def cost(batch: int, outputs: int) -> Cost:
        inputs, weight = tensor(batch, channels, size, size), tensor(outputs, channels, 3, 3)
        return cost_of(FORMULAS, "conv2d", inputs, weight, None, ONE, ZERO, ONE, "1")

    one = cost(batch, 4)
    assert cost(2 * batch, 4).matrix_flops == cost(batch, 8).matrix_flops == 2 * one.matrix_flops
