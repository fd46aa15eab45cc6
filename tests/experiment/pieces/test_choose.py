"""Which pieces a recording has, and in which order they are measured."""

from pathlib import Path

import pytest

from bottleneck.experiment.pieces.choose import choose_pieces
from bottleneck.experiment.pieces.specs import PieceSpec
from bottleneck.pipeline import explain
from tests.advice.programs import Call, on_cpu

MS = 1000.0
PRODUCT = Call("aten::mm", 40 * MS, [[1024, 1024], [1024, 1024]])


def chosen(folder: Path, calls: list[Call], **more: object) -> tuple[PieceSpec, ...]:
    on_cpu(folder, calls, **more)  # type: ignore[arg-type]
    explained = explain([folder])
    return choose_pieces(explained, explained.analysis.findings)


def test_a_step_without_findings_that_can_be_measured_has_no_pieces(tmp_path: Path) -> None:
    assert not chosen(tmp_path, [Call("aten::add", 100.0, [[8, 8], [8, 8], []])] * 4)


def test_a_product_is_a_piece_with_its_time_and_its_calls(tmp_path: Path) -> None:
    [piece] = chosen(tmp_path, [PRODUCT] * 3)
    assert (piece.kind, piece.finding, piece.change) == ("narrow-product", "half-precision", "bf16-autocast")
    assert piece.what == "mm on 1024x1024, 1024x1024"
    assert piece.calls == 3
    assert piece.recorded_us == pytest.approx(120 * MS, rel=0.01)
    assert piece.share == pytest.approx(1.0)
    assert piece.settings == {"dtype": "bfloat16"}


def test_the_largest_promise_per_second_comes_first(tmp_path: Path) -> None:
    small = Call("aten::mm", 5 * MS, [[512, 1024], [1024, 512]])
    chain = [Call("aten::mul_", 2 * MS, [[25_000_000], []])] * 8
    pieces = chosen(tmp_path, [PRODUCT, small, *chain])
    assert [piece.kind for piece in pieces] == ["narrow-product", "narrow-product", "chain"]
    assert [piece.what for piece in pieces[:2]] == ["mm on 1024x1024, 1024x1024", "mm on 512x1024, 1024x512"]


def test_a_norm_that_is_written_out_is_a_piece_beside_its_chain(tmp_path: Path) -> None:
    rows, each = [64, 512, 512], [64, 512, 1]
    norm = [
        Call("aten::pow", 8 * MS, [rows, []]),
        Call("aten::mean", 6 * MS, [rows, [], [], []], more={"concrete": ["", "[-1]", "True", ""]}),
        Call("aten::add", 1 * MS, [each, [], []]),
        Call("aten::rsqrt", 1 * MS, [each]),
        Call("aten::mul", 8 * MS, [rows, each]),
        Call("aten::mul", 8 * MS, [rows, [512]]),
    ]
    pieces = chosen(tmp_path, [*norm, PRODUCT])
    [piece] = [piece for piece in pieces if piece.kind == "library-op"]
    assert (piece.change, piece.settings["op"], piece.calls) == ("library-op", "rms_norm", 1)
    assert piece.what == "rms_norm for 6 ops on 64x512x512"
    assert [op.name for op in piece.ops] == [call.name for call in norm]
    assert piece.recorded_us == pytest.approx(32 * MS, rel=0.01)
    assert piece.source == "train() (train.py:12)"
    assert "chain" in {piece.kind for piece in pieces}


def test_the_optimizer_is_rebuilt_from_the_sizes_of_its_parameters(tmp_path: Path) -> None:
    mark = "Optimizer.step#AdamW.step"
    update = [Call(name, 40.0, [[256, 256], [256, 256]]) for name in ("aten::mul_", "aten::lerp_", "aten::addcmul_")]
    parameter = [*update, Call("aten::addcdiv_", 40.0, [[256, 256], [256, 256], [256, 256], []])]
    autograd = Call("torch::autograd::AccumulateGrad", 0.3, [])
    pieces = chosen(tmp_path, [autograd] * 2 + parameter * 2, marks=(mark,))
    [piece] = [piece for piece in pieces if piece.kind == "optimizer"]
    assert piece.settings["class"] == "AdamW"
    assert piece.settings["sizes"] == [[256, 256], [256, 256]]
    assert piece.what == "AdamW.step over 2 parameters"
    assert piece.calls == 1
