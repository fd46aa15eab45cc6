"""Each kind of piece runs on small shapes, both ways; what it rebuilds is what the recording says."""

import time
from pathlib import Path
from typing import Any

import pytest

from bottleneck.experiment.pieces.choose import choose_pieces
from bottleneck.experiment.pieces.kinds import KINDS, Ways
from bottleneck.experiment.pieces.recorded_calls import NotRebuilt, arguments_of, bind
from bottleneck.experiment.pieces.specs import OpCallSpec, PieceSpec
from bottleneck.experiment.pieces.timing import PieceTimer
from bottleneck.pipeline import explain
from tests.advice.programs import Call, on_cpu

torch = pytest.importorskip("torch")

MS = 1000.0
# What other programs take meanwhile does not count.
PROCESSOR_TIME = time.process_time


def call(name: str, *dims: list[Any], concrete: tuple[str, ...] | None = None, **more: Any) -> OpCallSpec:
    types = more.pop("types", tuple("float" if each else "Scalar" for each in dims))
    return OpCallSpec(name, dims, types, concrete or ("",) * len(dims), more.pop("strides", ()))


def spec(kind: str, *ops: OpCallSpec, change: str = "compile", **settings: Any) -> PieceSpec:
    return PieceSpec(kind, "a-finding", change, "a piece", 1.0, None, 1.0, ops, settings)


PRODUCT = call("aten::addmm", [24], [8, 20], [20, 24], [], [], concrete=("", "", "", "1", "1"))
IMAGES = call(
    "aten::convolution",
    [2, 3, 8, 8],
    [4, 3, 3, 3],
    [4],
    [],
    [],
    [],
    [],
    [],
    [],
    types=("float", "float", "float", *["ScalarList"] * 3, "Scalar", "ScalarList", "Scalar"),
    concrete=("", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"),
)
ROW = call("aten::pow", [4, 8, 32], [], concrete=("", "2."))
MEAN = call(
    "aten::mean", [4, 8, 32], [], [], [], types=("float", "ScalarList", "Scalar", ""), concrete=("", "[-1]", "True", "")
)
SCALED = call("aten::mul", [4, 8, 32], [4, 8, 1])
PIECES = {
    "library-op": spec("library-op", ROW, MEAN, SCALED, op="rms_norm"),
    "layout": spec("layout", IMAGES),
    "narrow-product": spec("narrow-product", PRODUCT, dtype="bfloat16"),
    "padded-product": spec("padded-product", call("aten::mm", [65, 129], [129, 67])),
    "optimizer": spec(
        "optimizer", change="fused-optimizer", **{"class": "AdamW", "sizes": [[8, 8], [8]], "has_momentum": False}
    ),
    "attention": spec("attention", batch=4, m=16, n=16, k=8, d=8, trains=True),
    "threads": spec("threads", PRODUCT, threads=2, fewer=1),
}


@pytest.mark.parametrize("kind", PIECES)
def test_both_ways_of_a_kind_run_and_are_timed(kind: str) -> None:
    threads = torch.get_num_threads()
    try:
        found = PieceTimer(PROCESSOR_TIME).times(KINDS[kind].make(torch, PIECES[kind], "cpu"))
    finally:
        torch.set_num_threads(threads)
    assert found.as_is_us.median > 0
    assert found.changed_us.median > 0
    assert found.ratio.low <= found.ratio.median <= found.ratio.high


def test_every_kind_has_its_test() -> None:
    assert {*PIECES, "chain"} == KINDS.keys()


def test_a_product_is_narrowed_and_its_result_widened_at_worst() -> None:
    seen: list[Any] = []

    class Spy(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[name-defined,misc]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            seen.append((str(function), result.dtype))
            return result

    ways = KINDS["narrow-product"].make(torch, PIECES["narrow-product"], "cpu")
    assert ways.at_worst is not None
    with Spy():
        ways.as_is.run()
        ways.changed.run()
        ways.at_worst.run()
    products = [dtype for name, dtype in seen if "addmm" in name]
    casts = [name for name, _ in seen if "_to_copy" in name]
    assert products == [torch.float32, torch.bfloat16, torch.bfloat16]
    assert len(casts) == 1 + 4  # the weight; then bias, both operands and the result


def test_a_convolution_gets_its_images_by_pixels() -> None:
    seen: list[bool] = []

    class Spy(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[name-defined,misc]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if "convolution" in str(function):
                seen.append(args[0].is_contiguous(memory_format=torch.channels_last))
            return function(*args, **(kwargs or {}))

    ways = KINDS["layout"].make(torch, PIECES["layout"], "cpu")
    with Spy():
        ways.as_is.run()
        ways.changed.run()
    assert seen == [False, True]


@pytest.mark.parametrize("op", ["layer_norm", "rms_norm", "softmax", "gelu", "gelu_tanh"])
def test_the_op_of_the_library_takes_the_numbers_of_the_first_op(op: str) -> None:
    ways = KINDS["library-op"].make(torch, spec("library-op", ROW, MEAN, SCALED, op=op), "cpu")
    result: Any = ways.changed.run()
    assert result.shape == (4, 8, 32)
    assert result.dtype is torch.float32


def test_a_chain_of_indices_has_no_op_of_the_library() -> None:
    index = call("aten::mul", [8], [], types=("long int", "Scalar"), concrete=("", "2"))
    with pytest.raises(NotRebuilt, match="no tensor of numbers"):
        KINDS["library-op"].make(torch, spec("library-op", index, op="gelu"), "cpu")


def test_an_op_without_images_has_no_layout() -> None:
    with pytest.raises(NotRebuilt, match="no argument of four dimensions"):
        KINDS["layout"].make(torch, spec("layout", PRODUCT), "cpu")


SUM = call(
    "aten::sum", [4, 8], [], [], [], types=("float", "ScalarList", "Scalar", ""), concrete=("", "[-1]", "True", "")
)
EMBEDDING = call(
    "aten::embedding",
    [9, 3],
    [2, 5],
    [],
    [],
    [],
    types=("float", "long int", "Scalar", "Scalar", "Scalar"),
    concrete=("", "", "-1", "False", "False"),
)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (call("aten::mul", [4, 8], [4, 8]), (4, 8)),
        (call("aten::mul", [4, 8], [], concrete=("", "2.5")), (4, 8)),
        (call("aten::add", [4, 8], [8], [], concrete=("", "", "1")), (4, 8)),
        (SUM, (4, 1)),
        (call("aten::gelu", [4, 8], [], types=("float", "")), (4, 8)),
        (call("aten::clamp", [4, 8], [], [], [4, 8], concrete=("", "0.", "6.", "")), (4, 8)),
        (EMBEDDING, (2, 5, 3)),
    ],
)
def test_a_recorded_call_is_made_again(made: OpCallSpec, expected: tuple[int, ...]) -> None:
    assert tuple(bind(torch, made.name, arguments_of(torch, made, "cpu")).run().shape) == expected


def test_recorded_strides_are_those_of_the_tensor() -> None:
    [turned] = arguments_of(torch, call("aten::relu", [4, 8], strides=([1, 4],)), "cpu")
    assert turned.stride() == (1, 4)


@pytest.mark.parametrize(
    ("name", "words"), [("own::op", "torch has no op own::op"), ("aten::no_such_op", "torch has no op")]
)
def test_nothing_but_ops_of_torch_is_called(name: str, words: str) -> None:
    with pytest.raises(NotRebuilt, match=words):
        bind(torch, name, [])


def chain(numbers: int, ops: int = 8) -> PieceSpec:
    """Ops one after the other on so many numbers, as a step records them."""
    return spec("chain", *[call("aten::mul", [numbers], [], concrete=("", "1.0001"))] * ops)


def test_each_op_of_a_chain_takes_the_result_of_the_one_before() -> None:
    ways: Ways = KINDS["chain"].make(torch, chain(8), "cpu")
    [before] = arguments_of(torch, call("aten::mul", [8]), "cpu")
    result: Any = ways.as_is.run()
    assert result.shape == before.shape
    assert float(result.max()) > 1.0001**7 * 0.5


@pytest.mark.compiler
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_long_chain_over_memory_wins_compiled_and_a_tiny_one_loses() -> None:
    with torch.no_grad():
        large, tiny = (
            PieceTimer(PROCESSOR_TIME).times(KINDS["chain"].make(torch, made, "cpu"))
            for made in (chain(16_000_000), chain(16, ops=2))
        )
    assert large.ratio.median < 0.7  # eight passes over 64 MB against one
    assert tiny.ratio.median > 1.5  # a call of compiled code against two ops that do next to nothing


@pytest.mark.compiler
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_recorded_chain_is_chosen_and_measured(tmp_path: Path) -> None:
    on_cpu(tmp_path, [Call("aten::mul_", 20 * MS, [[16_000_000], []], more={"concrete": ["", "1.0001"]})] * 8)
    explained = explain([tmp_path])
    [piece] = choose_pieces(explained, explained.analysis.findings)
    assert (piece.kind, piece.calls, len(piece.ops)) == ("chain", 1.0, 8)
    assert piece.recorded_us == pytest.approx(160 * MS, rel=0.01)
    with torch.no_grad():
        assert PieceTimer(PROCESSOR_TIME).times(KINDS["chain"].make(torch, piece, "cpu")).ratio.high < 0.7
