import pytest

from bottleneck.gate.counted_work import is_op, plain_kernel, plain_module, plain_op


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("aten::add", True),
        ("c10d::allreduce_", True),
        ("autograd::engine::evaluate_function: AddBackward0", False),
        ("torch::autograd::AccumulateGrad", False),
        ("AddmmBackward0", False),
        ("detach", False),
    ],
)
def test_calls_of_the_dispatcher_are_told_by_name(name: str, expected: bool) -> None:
    assert is_op(name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("triton_poi_fused_add_relu_3", "triton_poi_fused_add_relu"),
        ("cpp_fused_add_mul_0", "cpp_fused_add_mul"),
        ("_attn_fwd_0d1d2de", "_attn_fwd"),
        ("ampere_sgemm_128x64_nn", "ampere_sgemm_128x64_nn"),
        ("wrapper<0x7f12ab>", "wrapper<0x…>"),
    ],
)
def test_kernels_lose_the_number_that_their_generator_gave_them(name: str, expected: str) -> None:
    assert plain_kernel(name) == expected


def test_modules_and_ops_lose_their_running_numbers() -> None:
    assert plain_module("Net_0.Conv2d_12.Act_3_1") == "Net.Conv2d.Act_3"
    assert plain_op("custom::AddBackward0") == "custom::AddBackward"
    assert plain_op("mylib::call_0xdeadbeef") == "mylib::call_0x…"
