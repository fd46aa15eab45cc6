"""Inference of dtypes and sizes from kernel names and other ops, and cases in which nothing may be inferred."""

import json
from pathlib import Path

import pandas as pd
import pytest

from bottleneck.cost import compute_costs
from bottleneck.cost.shape_inference import infer_shapes
from bottleneck.schema.linked_trace import Linked
from bottleneck.schema.tables import CALLS, OPS
from bottleneck.trace.link import link
from bottleneck.trace.read import read_trace
from bottleneck.trace.steps import whole_window
from tests.builders import Event, kernel, launch, op, write_trace

RELU = "void at::native::vectorized_elementwise_kernel<4, at::native::threshold_kernel_impl<{}>(at::TensorIterator&)>"
CAT = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::(anonymous namespace)::OpaqueType<2u>>"
CONV = "aten::cudnn_convolution"
INPUT, WEIGHT = [32, 3, 224, 224], [64, 3, 7, 7]


def completed(folder: Path, *events: Event) -> Linked:
    trace = read_trace(write_trace(folder / "trace.json", events))
    linked = infer_shapes(link(trace, whole_window(trace)))
    CALLS.check(linked.trace.signatures)
    OPS.check(linked.ops)
    return linked


def with_kernels(event: Event, *names: str) -> list[Event]:
    """An op of 10 us with kernels that it launches."""
    first = round(event["ts"]) * 10
    launches = [launch(first + at, event["ts"] + at, 0.5) for at in range(len(names))]
    return [event, *launches, *(kernel(first + at, 100 + event["ts"] + at, 1, name) for at, name in enumerate(names))]


def call_of(linked: Linked, name: str, nth: int = 0) -> pd.Series:
    """The row of CALLS that the nth op of a name points to."""
    ops = linked.ops[linked.ops["name"] == name].sort_values("ts_us")
    return linked.trace.signatures.iloc[int(ops["signature"].iloc[nth])]


def bare(name: str, ts: float, dims: list[object], dur: float = 10) -> Event:
    """An op as torch 1.8 records it: shapes, but neither dtypes nor scalars."""
    event = op(name, ts, dur)
    event["args"] |= {"Input Dims": dims, "Input type": []}
    return event


def listed(name: str, ts: float, dims: list[object]) -> Event:
    return op(name, ts, 10, dims=dims, types=["TensorList", "Scalar"])


def test_the_kernel_gives_the_dtype_of_a_call_that_recorded_none(tmp_path):
    linked = completed(tmp_path, *with_kernels(bare("aten::relu", 0, [[64, 32]]), RELU.format("c10::Half")))
    call = call_of(linked, "aten::relu")
    assert (call["types"], call["evidence"]) == ('["c10::Half"]', ("dtype from kernel names",))
    cost = compute_costs(linked.trace.signatures).iloc[call.name]
    assert (cost["bytes_low"], cost["evidence"]) == (2 * 64 * 32 * 2, ("dtype from kernel names",))


def test_calls_of_one_shape_and_two_dtypes_get_a_cost_each(tmp_path):
    names = (RELU.format("float"), RELU.format("c10::Half"))
    events = [each for at, name in enumerate(names) for each in with_kernels(bare("aten::relu", 20 * at, [[64]]), name)]
    linked = completed(tmp_path, *events)
    assert [call_of(linked, "aten::relu", nth)["types"] for nth in (0, 1)] == ['["float"]', '["c10::Half"]']


@pytest.mark.parametrize(
    "names",
    [
        (),
        ("some_kernel",),
        (RELU.format("float"), RELU.format("c10::Half")),
        ("void at::native::unrolled_elementwise_kernel<at::native::memory::LoadWithCast<1>, float>(int)",),
    ],
)
def test_kernels_that_are_silent_or_disagree_leave_the_dtype_unknown(tmp_path, names):
    linked = completed(tmp_path, *with_kernels(bare("aten::relu", 0, [[64]]), *names))
    call = call_of(linked, "aten::relu")
    assert call["evidence"] is None
    assert compute_costs(linked.trace.signatures)["reason"][call.name].words == "dtypes were not recorded"


def test_recorded_dtypes_are_left_alone(tmp_path):
    linked = completed(tmp_path, *with_kernels(op("aten::relu", 0, 10, dims=[[64]]), RELU.format("c10::Half")))
    assert call_of(linked, "aten::relu")["types"] == '["float"]'
    assert len(linked.trace.signatures) == 1


def test_arguments_that_are_indices_by_schema_stay_integers(tmp_path):
    name = "void cunn_ClassNLLCriterion_updateOutput_kernel<float, float>(float*, long*)"
    linked = completed(tmp_path, *with_kernels(bare("aten::nll_loss_forward", 0, [[8, 10], [8], []]), name))
    assert json.loads(call_of(linked, "aten::nll_loss_forward")["types"]) == ["float", "long int", ""]


def test_arguments_that_are_masks_by_schema_stay_of_one_byte(tmp_path):
    name = "void at::native::unrolled_elementwise_kernel<at::native::where_kernel_impl<c10::Half>(at::TensorIterator&)>"
    linked = completed(tmp_path, *with_kernels(bare("aten::where", 0, [[8], [8], [8]]), name))
    assert json.loads(call_of(linked, "aten::where")["types"]) == ["bool", "c10::Half", "c10::Half"]


def test_the_copying_kernel_gives_the_item_size_of_a_list(tmp_path):
    linked = completed(tmp_path, *with_kernels(listed("aten::cat", 0, [[[64], [32]], []]), CAT))
    call = call_of(linked, "aten::cat")
    cost = compute_costs(linked.trace.signatures).iloc[call.name]
    assert (cost["bytes_low"], cost["bytes_high"]) == (2 * 96 * 2, 2 * 96 * 2)


def test_without_a_kernel_name_with_a_size_a_list_keeps_its_interval(tmp_path):
    linked = completed(tmp_path, *with_kernels(listed("aten::cat", 0, [[[64], [32]], []]), "Memcpy"))
    cost = compute_costs(linked.trace.signatures).iloc[call_of(linked, "aten::cat").name]
    assert (cost["bytes_low"], cost["bytes_high"], cost["evidence"]) == (2 * 96 * 2, 2 * 96 * 4, None)


OVER_LISTS = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
    "FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4> >"
)


def fused_adamw(*grids: int, name: str = OVER_LISTS) -> list[Event]:
    """aten::_fused_adamw_ over six lists without sizes, as torch 2.0 records it, with a kernel per grid."""
    lists = ["TensorList"] * 6
    event = op("aten::_fused_adamw_", 0, 10, dims=[[]] * 8, types=[*lists, "Scalar", "Scalar"])
    launches = [launch(at, 1 + at, 0.5) for at in range(len(grids))]
    kernels = [kernel(at, 100 + 10 * at, 9, name, grid=[grid, 1, 1]) for at, grid in enumerate(grids)]
    return [event, *launches, *kernels]


def test_the_grids_of_a_fused_optimizer_bound_the_elements_of_its_lists(tmp_path):
    linked = completed(tmp_path, *fused_adamw(320, 20))
    call = call_of(linked, "aten::_fused_adamw_")
    cost = compute_costs(linked.trace.signatures).iloc[call.name]
    # Of 320 blocks 36 may hold one element; 20 blocks may all be tensors of one.
    least, most = (320 - 36) * 65536 + 20, 340 * 65536
    assert cost["bytes_low"] == 4 * 7 * least
    assert cost["bytes_high"] == pytest.approx(4 * 7 * most, rel=1e-3)
    assert "sizes of lists from the kernels' grids" in cost["evidence"]


@pytest.mark.parametrize("events", [fused_adamw(320, name="some_kernel"), fused_adamw()], ids=["other kernel", "none"])
def test_without_such_kernels_lists_without_sizes_stay_unmodelled(tmp_path, events):
    linked = completed(tmp_path, *events)
    cost = compute_costs(linked.trace.signatures).iloc[call_of(linked, "aten::_fused_adamw_").name]
    assert cost["reason"].code == "no_list_sizes"


def flash_function(sequence: int) -> list[Event]:
    """A function of FlashAttention before 2.7, and its backward node with the sequence number given."""
    forward = op("FlashAttnFunc", 0, 10, dims=[[2, 64, 8, 32]] * 3, types=["c10::Half"] * 3)
    forward["args"]["Sequence number"] = 7
    backward = op("FlashAttnFuncBackward", 50, 10, dims=[[2, 64, 8, 32]], types=["c10::Half"])
    backward["args"] |= {"Sequence number": sequence, "Fwd thread id": 1}
    return [forward, backward]


def test_a_node_of_a_function_in_python_gets_the_operands_of_its_forward_call(tmp_path):
    linked = completed(tmp_path, *flash_function(7))
    call = call_of(linked, "FlashAttnFuncBackward")
    cost = compute_costs(linked.trace.signatures).iloc[call.name]
    assert cost["matrix_flops"] == 2 * 2 * 8 * 64 * 65 / 2 * 5 * 32
    assert call["evidence"] == ("sizes from its forward op",)


def test_a_node_of_another_call_gets_no_operands(tmp_path):
    linked = completed(tmp_path, *flash_function(8))
    cost = compute_costs(linked.trace.signatures).iloc[call_of(linked, "FlashAttnFuncBackward").name]
    assert cost["reason"].code == "no_tensor_argument"


def convolution(*, backward: list[object] | None = None, consumer: list[object] | None = None) -> list[Event]:
    event = bare(CONV, 0, [INPUT, WEIGHT, [], []])
    events = [*with_kernels(event, "volta_scudnn_128x64_relu_medium_nn_v1"), bare("aten::add", 20, [[], [], []])]
    events += [bare("aten::cudnn_batch_norm", 40, [consumer, [64]])] if consumer else []
    return events + ([bare(f"{CONV}_backward", 60, [INPUT, backward, WEIGHT])] if backward else [])


@pytest.mark.parametrize("source", ["consumer", "backward"])
def test_the_next_op_or_the_gradient_gives_the_output_of_a_convolution(tmp_path, source):
    linked = completed(tmp_path, *convolution(**{source: [32, 64, 112, 112]}))
    call = call_of(linked, CONV)
    assert call["result"] == "[32, 64, 112, 112]"
    cost = compute_costs(linked.trace.signatures).iloc[call.name]
    assert cost["matrix_flops"] == 2 * 32 * 112 * 112 * 64 * 3 * 7 * 7
    assert cost["evidence"] == ("dtype from kernel names", "sizes from the ops around it")


def test_an_unfolding_convolution_gets_its_result_like_any_other(tmp_path):
    dims = [INPUT, WEIGHT, [], [64], [], []]
    types = ["float", "float", "ScalarList", "float", "ScalarList", "ScalarList"]
    outer = op("aten::thnn_conv2d", 0, 30, dims=dims, types=types)
    inner = op("aten::_slow_conv2d_forward", 5, 20, dims=dims, types=types)
    linked = completed(tmp_path, outer, inner, op("aten::relu", 40, 5, dims=[[32, 64, 112, 112]]))
    call = call_of(linked, "aten::_slow_conv2d_forward")
    assert call["result"] == "[32, 64, 112, 112]"
    assert compute_costs(linked.trace.signatures)["matrix_flops"][call.name] == 2 * 32 * 112 * 112 * 64 * 3 * 7 * 7


def test_the_gradient_outweighs_the_next_op(tmp_path):
    linked = completed(tmp_path, *convolution(consumer=[32, 64, 111, 111], backward=[32, 64, 112, 112]))
    assert call_of(linked, CONV)["result"] == "[32, 64, 112, 112]"


@pytest.mark.parametrize("other", [[32, 65, 112, 112], [16, 64, 112, 112], [32, 64, 300, 112], [32, 64], None])
def test_an_operand_that_cannot_be_the_output_is_ignored(tmp_path, other):
    linked = completed(tmp_path, *convolution(consumer=other))
    call = call_of(linked, CONV)
    assert call["result"] is None
    assert compute_costs(linked.trace.signatures)["reason"][call.name].code == "no_strides"


def test_gradients_of_two_sizes_for_the_same_shapes_are_ignored(tmp_path):
    events = convolution(backward=[32, 64, 112, 112])
    linked = completed(tmp_path, *events, bare(f"{CONV}_backward", 80, [INPUT, [32, 64, 56, 56], WEIGHT]))
    assert call_of(linked, CONV)["result"] is None


def test_a_recorded_stride_needs_no_inference(tmp_path):
    scalars = ["", "", "[3, 3]", "[2, 2]", "[1, 1]", "1"]
    event = op(CONV, 0, 10, dims=[INPUT, WEIGHT, [], [], [], []], concrete=scalars)
    linked = completed(tmp_path, event, op("aten::relu", 20, 10, dims=[[32, 64, 111, 111]]))
    assert call_of(linked, CONV)["result"] is None
    assert compute_costs(linked.trace.signatures)["matrix_flops"][0] == 2 * 32 * 112 * 112 * 64 * 3 * 7 * 7


@pytest.mark.parametrize(
    ("part", "dims", "result"),
    [
        ("backward_input", [[], [32, 64, 112, 112], WEIGHT], INPUT),
        ("backward_weight", [[], [32, 64, 112, 112], INPUT], WEIGHT),
    ],
)
def test_the_caller_of_a_partial_gradient_gives_its_size(tmp_path, part, dims, result):
    whole = bare(f"{CONV}_backward", 0, [INPUT, [32, 64, 112, 112], WEIGHT], dur=50)
    kernel_name = "void cudnn::detail::dgrad_engine<float, 512, 6>(int)"
    linked = completed(tmp_path, whole, *with_kernels(bare(f"{CONV}_{part}", 10, dims), kernel_name))
    call = call_of(linked, f"{CONV}_{part}")
    assert json.loads(call["result"]) == result
    cost = compute_costs(linked.trace.signatures).iloc[call.name]
    assert cost["matrix_flops"] == 2 * 32 * 112 * 112 * 64 * 3 * 7 * 7
    elements = 32 * 64 * 112 * 112 + 32 * 3 * 224 * 224 + 64 * 3 * 7 * 7
    assert cost["bytes_low"] == 4 * elements


WGRAD, DGRAD = "sm80_xmma_wgrad_implicit_gemm_tf32f32", "void cudnn::detail::dgrad_engine<float, 512, 6>(int)"


@pytest.mark.parametrize(
    ("names", "passes"),
    [
        ((WGRAD,), 1),
        ((DGRAD, WGRAD, "void cudnn::ops::nchwToNhwcKernel<float>(int)"), 2),
        ((WGRAD, "volta_scudnn_128x64_relu_medium_nn_v1"), None),
    ],
    ids=["of the weight", "both", "a kernel that tells none"],
)
def test_kernels_tell_which_gradients_a_convolution_makes(tmp_path, names, passes):
    event = op("aten::convolution_backward", 0, 10, dims=[[8, 64, 32, 32], [8, 64, 32, 32], [64, 64, 3, 3]])
    linked = completed(tmp_path, *with_kernels(event, *names))
    call = call_of(linked, "aten::convolution_backward")
    cost = compute_costs(linked.trace.signatures).iloc[call.name]
    assert (call["evidence"] or ()) == (("gradients from kernel names",) if passes else ())
    assert passes is None or cost["matrix_flops"] == passes * 2 * 8 * 32 * 32 * 64 * 64 * 3 * 3
    assert passes is not None or cost["reason"].code == "no_gradients"


def test_a_recorded_mask_of_gradients_is_left_alone(tmp_path):
    arguments = [[8, 64, 32, 32], [8, 64, 32, 32], [64, 64, 3, 3], *[[]] * 8]
    event = op("aten::convolution_backward", 0, 10, dims=arguments, concrete=[*[""] * 10, "[False, True, False]"])
    linked = completed(tmp_path, *with_kernels(event, DGRAD, WGRAD))
    call = call_of(linked, "aten::convolution_backward")
    assert call["evidence"] is None
    flops = compute_costs(linked.trace.signatures)["matrix_flops"].iloc[call.name]
    assert flops == 2 * 8 * 32 * 32 * 64 * 64 * 3 * 3


def test_a_partial_gradient_without_a_caller_stays_unmodelled(tmp_path):
    dims = [[], [32, 64, 112, 112], WEIGHT]
    linked = completed(tmp_path, *with_kernels(bare(f"{CONV}_backward_input", 10, dims), "dgrad_engine<float>"))
    assert compute_costs(linked.trace.signatures)["reason"][call_of(linked, f"{CONV}_backward_input").name] is not None


def indexing(strides: str) -> list[Event]:
    view = op("aten::as_strided", 1, 1, dims=[[256, 80], [], [], []], concrete=["", "[161, 80]", strides, ""])
    return [op("aten::index", 0, 10, dims=[[256, 80], []], types=["float", ""]), view]


def test_the_view_that_an_index_makes_gives_the_size_of_its_result(tmp_path):
    linked = completed(tmp_path, *indexing("[0, 1]"))
    call = call_of(linked, "aten::index")
    assert call["result"] == "[161, 80]"
    assert compute_costs(linked.trace.signatures)["bytes_low"][call.name] == 161 * 80 * 4


def test_a_view_without_a_stride_of_zero_is_not_that_of_the_indices(tmp_path):
    linked = completed(tmp_path, *indexing("[80, 1]"))
    assert compute_costs(linked.trace.signatures)["reason"][call_of(linked, "aten::index").name] is not None


def test_a_trace_without_ops_is_complete(tmp_path):
    linked = completed(tmp_path, kernel(1, 0, 5))
    assert len(linked.trace.signatures) == 0


@pytest.mark.parametrize("dims", ["[[1, 2], 3]", '"[[-1]]"', "[[]]", "{}", "[" * 900, "null", "[[[[1]]]]"])
def test_hostile_shapes_are_no_evidence(tmp_path, dims):
    names = (CONV, f"{CONV}_backward", f"{CONV}_backward_input", "aten::index", "aten::as_strided", "aten::cat")
    events = [op(name, 20 * at, 10, dims=[]) for at, name in enumerate(names)]
    for event in events:
        event["args"] |= {"Input Dims": dims, "Input type": '["TensorList"]', "Concrete Inputs": [""]}
    linked = completed(tmp_path, *events, *with_kernels(bare("aten::relu", 300, [[1], "x", 7]), RELU.format("float")))
    compute_costs(linked.trace.signatures)


def test_ops_nested_without_end_are_climbed_in_few_steps(tmp_path):
    dims = [[1, 3, 8, 8], [4, 3, 3, 3], [], []]
    count = 3000
    nested = [op(CONV, at, 3 * count - 2 * at, dims=dims, concrete=[]) for at in range(count)]
    linked = completed(tmp_path, *nested, op("aten::relu", 3 * count + 10, 5, dims=[[1, 4, 6, 6]]))
    assert call_of(linked, CONV, count - 1)["result"] == "[1, 4, 6, 6]"


@pytest.mark.parametrize(("made", "result"), [([16, 128, 1152], [16, 128, 1152]), ([2048, 1152], None)])
def test_the_memory_that_a_packed_layer_makes_gives_the_size_of_its_result(
    tmp_path: Path, made: list[int], result: list[int] | None
) -> None:
    layer = op("quantized::linear_dynamic", 0, 10, dims=[[16, 128, 384], [], []], types=["float", "", "Scalar"])
    memory = op("aten::empty", 2, 1, dims=[[]], concrete=[str(made)])
    assert call_of(completed(tmp_path, layer, memory), "quantized::linear_dynamic")["result"] == (
        None if result is None else json.dumps(result)
    )
