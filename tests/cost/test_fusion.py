"""What ends a loop of a compiler: where the memory of tensors is known, and in the order of a trace."""

from pathlib import Path

import pytest

from bottleneck.cost.fusion import fuse_calls
from tests.advice.programs import Call, on_cpu, on_gpu
from tests.predict.steps import call, step, use

IMAGES = [32, 64, 56, 56]
ROWS = [4096, 4096]


def given(name: str, *dims: object, numbers: dict[int, str] | None = None, us: float = 50.0) -> Call:
    """A call with these sizes, and texts for its arguments that are numbers."""
    texts = [(numbers or {}).get(position, "") for position in range(len(dims))]
    return Call(f"aten::{name}", us, [*dims], more={"concrete": texts})


def loops(folder: Path, *calls: Call) -> list[list[str]]:
    """The names of the calls in each loop of a trace of them, in order."""
    case = on_gpu(folder, calls)
    names = case.linked.ops["name"].astype(str).to_numpy()[case.linked.kernels["op"].to_numpy(dtype=int)]
    found: dict[int, list[str]] = {}
    for loop, name in zip(case.loops["loop"].tolist(), names.tolist(), strict=True):
        if loop >= 0:
            found.setdefault(loop, []).append(name.removeprefix("aten::"))
    return list(found.values())


RELU, TANH = given("relu", IMAGES), given("tanh", IMAGES)


def batch_norm(training: str) -> Call:
    channels = [64]
    return given("native_batch_norm", IMAGES, channels, channels, channels, channels, [], [], [], numbers={5: training})


def test_pointwise_calls_on_one_result_are_one_loop(tmp_path: Path) -> None:
    assert loops(tmp_path, RELU, TANH) == [["relu", "tanh"]]


def test_a_batch_norm_of_training_begins_a_loop_and_one_of_evaluation_goes_on(tmp_path: Path) -> None:
    training, evaluation = batch_norm("True"), batch_norm("False")
    assert loops(tmp_path / "a", RELU, training, TANH) == [["relu"], ["native_batch_norm", "tanh"]]
    assert loops(tmp_path / "b", RELU, evaluation, TANH) == [["relu", "native_batch_norm", "tanh"]]


def test_the_memory_of_tensors_tells_the_same_of_batch_norms() -> None:
    x, y, z, out, channels = *(use(at, *IMAGES) for at in range(4)), use(4, 64)

    def made(training: str) -> list[list[int]]:
        calls = [
            call("relu", [x], y),
            call("native_batch_norm", [y, *[channels] * 4], z, (training, "0.1", "1e-05")),
            call("tanh", [z], out),
        ]
        return [loop.calls for loop in fuse_calls(step(*calls))]

    assert made("True") == [[0, 1], [1, 2]]
    assert made("False") == [[0, 1, 2]]


@pytest.mark.parametrize("between", ["lstm", "mm", "convolution_overrideable", "sort"])
def test_a_call_without_a_loop_keeps_apart_what_stands_around_it(tmp_path: Path, between: str) -> None:
    assert loops(tmp_path, RELU, given(between, IMAGES), TANH) == [["relu"], ["tanh"]]


def test_a_reduction_to_one_number_ends_a_loop_and_one_of_rows_does_not(tmp_path: Path) -> None:
    square, less = given("pow", ROWS, [], numbers={1: "2"}), given("sub", ROWS, [4096, 1], [])

    def around(dims: str) -> list[list[str]]:
        return loops(tmp_path / dims, square, given("sum", ROWS, [], [], numbers={1: dims, 2: "True"}), less)

    assert around("[-1]") == [["pow", "sum", "sub"]]
    assert around("[0]") == around("[]") == [["pow", "sum"], ["sub"]]


def test_a_softmax_over_columns_is_statistics_and_a_loop_that_goes_on(tmp_path: Path) -> None:
    softmax = [given("_softmax", ROWS, [], [], numbers={1: dim, 2: "False"}) for dim in ("-1", "0")]
    scale, half = given("mul", ROWS, []), given("div", ROWS, [])
    rows, columns = (loops(tmp_path / str(at), scale, call, half) for at, call in enumerate(softmax))
    assert rows == [["mul", "_softmax", "div"]]
    assert columns == [["mul"], ["_softmax", "div"]]


def test_few_tensors_are_joined_where_they_are_made_and_many_are_copied(tmp_path: Path) -> None:
    def joined(count: int) -> list[list[str]]:
        cat = Call(
            "aten::cat", 50, [[ROWS] * count, []], more={"types": ["TensorList[4]", "Scalar"], "concrete": ["", "0"]}
        )
        return loops(tmp_path / str(count), given("relu", ROWS), cat)

    assert joined(2) == [["relu", "cat"]]
    assert joined(9) == [["relu"]]


def test_a_number_that_the_host_reads_ends_a_loop(tmp_path: Path) -> None:
    read = given("_local_scalar_dense", [1], us=5)
    case = on_cpu(tmp_path, [RELU, read, TANH], steps=1)
    apart = case.loops["loop"].to_numpy()[case.linked.ops["name"].isin(("aten::relu", "aten::tanh")).to_numpy()]
    assert apart[0] != apart[1]
    assert apart.min() >= 0
