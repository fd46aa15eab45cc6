"""Costs of generated kernels: buffers clamped to the iterations, FLOPs from the names of the fused ops."""

import json

import pytest

from bottleneck.cost import compute_costs, op_family
from bottleneck.cost.call import Cost, OpCall, Scalar, Tensor, Unmodelled
from bottleneck.cost.inductor_triton import formula
from bottleneck.schema.tables import SIGNATURES
from tests.cost.calls import BF16, moved, tensor


def cost_of(name: str, *arguments: Tensor | int) -> Cost:
    """The cost of a launch; numbers are the sizes of its iteration space."""
    parsed = tuple(item if isinstance(item, Tensor) else Scalar(str(item)) for item in arguments)
    found = formula(name)
    assert found is not None
    return found(OpCall(name, parsed))


def half(*shape: int) -> Tensor:
    return tensor(*shape, dtype=BF16)


@pytest.mark.parametrize(
    ("name", "buffers", "sizes", "us", "low", "high"),
    [
        (
            "triton_poi_fused__unsafe_view_mul_silu_2",
            (half(8, 4096, 8192), half(32768, 8192)),
            (268435456,),
            527.38,
            2.04e12,
            3.05e12,
        ),
        (
            "triton_red_fused_add_mean_mul_pow_rsqrt_0",
            (half(8, 4096, 2048), half(2048), half(8, 4096, 2048)),
            (32768, 2048),
            77.07,
            3.48e12,
            5.22e12,
        ),
    ],
)
def test_bandwidth_of_two_kernels_on_an_mi300x_is_the_published_one(name, buffers, sizes, us, low, high):
    """Row 15 of the published checks: 2.04 to 3.05 TB/s, and 3.48 TB/s if nothing is written in place."""
    rates = [size / us * 1e6 for size in moved(cost_of(name, *buffers, *sizes))]
    assert rates == pytest.approx([low, high], rel=0.003)


def test_a_buffer_counts_for_no_more_elements_than_the_kernel_has_iterations():
    whole = cost_of("triton_poi_fused_add_0", tensor(1, 36864, 2432), tensor(4096, 2432), 4096 * 2432)
    assert moved(whole)[0] == 2 * 4 * 4096 * 2432


def test_a_small_operand_that_is_broadcast_counts_once():
    assert moved(cost_of("triton_poi_fused_mul_0", tensor(1000, 64), tensor(64), 64000))[0] == 4 * (64000 + 64)


def test_sizes_that_a_kernel_takes_besides_its_own_do_not_swell_its_iterations():
    changing = cost_of("triton_poi_fused_mul_0", tensor(32, 100), tensor(50, 100), 32, 3200)
    assert moved(changing)[0] == 4 * (3200 + 3200)


def test_without_sizes_a_kernel_touches_its_smallest_buffer_at_least():
    assert moved(cost_of("triton_for_fused_0", tensor(10), tensor(1000))) == (40, 4 * 1010 + 4000)


@pytest.mark.parametrize(
    ("name", "sizes", "flops", "special"),
    [
        ("triton_poi_fused_mul_silu_2", (6400,), 6 * 6400, 6400),
        ("triton_poi_fused_clone_1", (6400,), 0, 0),
        ("triton_red_fused_mean_mul_rsqrt_0", (100, 64), 6400 + 100, 100),
        ("triton_per_fused_native_layer_norm_1", (100, 64), 2 * 6400 + 2 * 100, 0),
    ],
)
def test_flops_are_those_of_the_ops_in_the_name_and_at_least_done(name, sizes, flops, special):
    cost = cost_of(name, tensor(100, 64), *sizes)
    assert (cost.vector_flops, cost.special_ops) == (flops, special)
    assert cost.matrix_flops == 0


@pytest.mark.parametrize(
    ("arguments", "flops"),
    [
        ((tensor(10, 20), tensor(20, 30), tensor(10, 30)), 2 * 10 * 20 * 30),
        ((tensor(10, 20), tensor(30, 20), tensor(10, 30)), 2 * 10 * 20 * 30),
        ((tensor(30), tensor(10, 20), tensor(20, 30), tensor(10, 30)), 2 * 10 * 20 * 30),
        ((tensor(4, 10, 20), tensor(4, 20, 30), tensor(4, 10, 30)), 2 * 4 * 10 * 20 * 30),
    ],
)
def test_a_template_has_its_product_from_the_sizes_of_its_buffers(arguments, flops):
    cost = cost_of("triton_tem_fused_mm_0", *arguments)
    assert (cost.family, cost.matrix_flops, cost.math_dtype) == ("matmul", flops, "fp32")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("triton_tem_fused_mm_0", (tensor(10, 20), tensor(21, 30), tensor(10, 30))),
        ("triton_tem_fused_mm_0", (tensor(10, 20), tensor(20, 30))),
        ("triton_tem_fused_flex_attention_0", (tensor(2, 8, 64), tensor(2, 8, 64), tensor(2, 8, 64))),
        ("triton_tem_fused_convolution_0", (tensor(1, 3, 8, 8), tensor(5, 3, 3, 3))),
        ("triton_poi_fused_add_0", (64,)),
    ],
)
def test_a_kernel_with_useless_shapes_is_unmodelled(name, arguments):
    with pytest.raises(Unmodelled):
        cost_of(name, *arguments)


def test_a_convolution_template_counts_every_output_times_its_window():
    cost = cost_of("triton_tem_fused_convolution_2", tensor(2, 3, 8, 8), tensor(5, 3, 3, 3), tensor(2, 5, 6, 6))
    assert (cost.family, cost.matrix_flops) == ("convolution", 2 * (2 * 5 * 6 * 6) * 27)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("triton_poi_fused_add_0", "pointwise"),
        ("triton_red_fused_sum_0", "reduction"),
        ("triton_tem_fused_mm_0", "matmul"),
        ("triton_tem_fused_convolution_0", "convolution"),
        ("triton_mine", None),
    ],
)
def test_a_generated_kernel_has_a_family_by_its_name(name, family):
    assert op_family(name) == family


def test_a_recorded_launch_is_modelled_by_the_stage():
    row = ["triton_poi_fused_add_cos_sin_0", json.dumps([[10, 10]] * 3 + [[]]), json.dumps(["float"] * 3 + ["Scalar"])]
    frame = SIGNATURES.empty()
    frame.loc[0] = [*row, None, json.dumps(["", "", "", "100"])]
    cost = compute_costs(frame).iloc[0]
    assert (cost["bytes_low"], cost["bytes_high"], cost["family"]) == (1200, 1600, "pointwise")
