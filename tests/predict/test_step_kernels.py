"""The kernels that a call is split into."""

import json

import pytest

from bottleneck.predict.step_kernels import Kernel, split
from bottleneck.schema.reasons import Reason
from bottleneck.schema.records import replace
from bottleneck.schema.step_calls import StepCall
from tests.predict.steps import call, convolution, use


def kernels(one: StepCall) -> tuple[Kernel, ...]:
    found = split(one)
    assert not isinstance(found, Reason), found
    return found


def kinds(one: StepCall) -> list[str]:
    return [kernel.kind for kernel in kernels(one)]


def test_a_dense_convolution_changes_the_layout_of_input_and_result() -> None:
    assert kinds(convolution(64, 64)) == ["convolution", "layout", "result layout"]


def test_a_convolution_of_a_library_is_split_as_the_one_that_calls_it() -> None:
    dims, types = "[[8,64,56,56],[128,64,3,3],[],[],[],[],[],[],[]]", str(["float"] * 2 + ["Int"] * 7).replace("'", '"')
    of_library = StepCall(
        "aten::cudnn_convolution", dims, types, "", '["","","[1, 1]","[2, 2]","[1, 1]","1","False","False","True"]'
    )
    general = StepCall(
        "aten::convolution", dims, types, "", '["","","","[2, 2]","[1, 1]","[1, 1]","False","[0, 0]","1"]'
    )
    assert kernels(of_library) == kernels(general)
    assert kernels(general)[0].rows == 8 * 28 * 28


def test_a_pointwise_convolution_is_a_product_in_the_layout_of_its_tensors() -> None:
    (main,) = kernels(convolution(64, 128, window=1))
    assert (main.kind, main.columns, main.inner) == ("pointwise convolution", 128, 64)
    assert main.bytes == main.least_bytes > 0


@pytest.mark.parametrize(("groups", "kind"), [(64, "depthwise convolution"), (4, "grouped convolution")])
def test_groups_make_another_kind_of_convolution(groups: int, kind: str) -> None:
    assert kinds(convolution(64, 64, groups=groups))[0] == kind


def test_the_floor_of_a_convolution_that_winograd_may_take_is_a_quarter_of_its_formula() -> None:
    wide, narrow = kernels(convolution(64, 64))[0], kernels(convolution(64, 64, window=1))[0]
    assert wide.least_flops == wide.flops / 4
    assert narrow.least_flops == narrow.flops


def test_a_batch_norm_in_training_folds_before_it_normalizes() -> None:
    x, weight = use(0, 16, 64, 32, 32), use(1, 64)
    training = call("native_batch_norm", [x, weight, weight, weight, weight], x, ("True", "0.1", "1e-05"))
    inference = call("native_batch_norm", [x, weight, weight, weight, weight], x, ("False", "0.1", "1e-05"))
    assert kinds(training) == ["statistics", "normalize"]
    assert kernels(training)[0].blocks == 64
    assert kinds(inference) == ["normalize"]


def test_softmax_reads_a_long_row_more_often_than_a_short_one() -> None:
    short, long = (call("_softmax", [use(0, 4, n)], use(1, 4, n), ("1", "False")) for n in (512, 100_000))
    assert kernels(short)[0].bytes == kernels(short)[0].least_bytes
    assert kernels(long)[0].bytes == 2 * kernels(long)[0].least_bytes


def test_a_long_row_of_softmax_takes_a_block_of_threads() -> None:
    short, long = (call("_softmax", [use(0, 4, n)], use(1, 4, n), ("1", "False")) for n in (512, 3137))
    assert [kernels(one)[0].long_rows for one in (short, long)] == [0.0, 4.0]


def test_a_call_without_a_formula_says_so_instead_of_being_free() -> None:
    assert split(call("no_such_op", [use(0, 4)], use(1, 4))) == Reason("no_formula", ("aten::no_such_op",))


def in_channels_last(groups: int = 1) -> StepCall:
    """A convolution of images in channels last."""
    made = convolution(64, 64, groups=groups)
    last = str([[64 * 56 * 56, 1, 64 * 56, 64], *json.loads(made.strides)[1:]])
    return replace(made, strides=last)


def test_a_convolution_in_channels_last_is_one_kernel_without_copies() -> None:
    first, last = (split(made) for made in (convolution(64, 64), in_channels_last()))
    assert [kernel.kind for kernel in first] == ["convolution", "layout", "result layout"]
    assert [kernel.kind for kernel in last] == ["convolution channels last"]


def test_groups_take_longer_in_channels_last() -> None:
    first, last = (split(made) for made in (convolution(64, 64, groups=4), in_channels_last(4)))
    assert first[0].kind == last[0].kind == "grouped convolution"
    assert last[0].flops > 1.3 * first[0].flops and last[0].least_flops == first[0].least_flops


def test_a_product_of_eight_bits_stores_its_result_after_its_arithmetic() -> None:
    narrow = [use(0, 64, 256, dtype="signed char"), use(1, 256, 128, dtype="signed char")]
    (of_bytes,) = kernels(call("_int_mm", narrow, use(2, 64, 128, dtype="int")))
    (of_floats,) = kernels(call("mm", [use(0, 64, 256), use(1, 256, 128)], use(2, 64, 128)))
    assert of_bytes.stored_bytes == 64 * 128 * 4
    assert of_floats.stored_bytes == 0.0
