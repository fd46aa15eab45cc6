"""Rules of whole programs: recomputation where memory has room, and compilers for eager inference."""

from dataclasses import replace
from pathlib import Path

import pytest

from bottleneck.advice.compilation import other_backends, recomputation
from bottleneck.schema.case import Case
from tests.advice.cases import case_of, with_analysis
from tests.advice.programs import Call, on_cpu
from tests.builders import op, step


def square(us: float) -> list[Call]:
    return [Call("aten::mm", us, [[1000, 1000], [1000, 1000]])]


def checkpointed(tmp_path: Path, peak: float) -> Case:
    node = "autograd::engine::evaluate_function: "
    events = [
        step(0, 0, 1000),
        op("aten::mm", 10, 300, dims=[[500, 500], [500, 500]]),
        op(f"{node}CheckpointFunctionBackward", 320, 660),
        op("CheckpointFunctionBackward", 321, 658),
        op("aten::mm", 330, 300, dims=[[500, 500], [500, 500]]),
        op(f"{node}MmBackward0", 640, 330),
        op("aten::mm", 650, 310, dims=[[500, 500], [500, 500]]),
    ]
    case = case_of(tmp_path, events)
    device = replace(case.analysis.device, memory_bytes=10**9)
    return with_analysis(case, device=device, totals=replace(case.analysis.totals, peak_memory_bytes=int(peak * 1e9)))


def test_a_forward_pass_that_is_repeated_although_memory_has_room(tmp_path: Path) -> None:
    draft = recomputation(checkpointed(tmp_path, 0.4))
    assert draft is not None
    assert draft.gain_us is not None
    assert draft.gain_us.high == pytest.approx(300, rel=0.02)


def test_recomputation_is_right_where_memory_is_short_or_unknown(tmp_path: Path) -> None:
    case = checkpointed(tmp_path, 0.9)
    assert recomputation(case) is None
    assert recomputation(with_analysis(case, totals=replace(case.analysis.totals, peak_memory_bytes=None))) is None


def test_eager_inference_in_products_is_worth_comparing_compilers(tmp_path: Path) -> None:
    draft = other_backends(on_cpu(tmp_path, square(22_000)))
    assert draft is not None
    assert draft.gain_us is None
    assert "backend-openvino" in draft.tries
    assert "torchscript" in draft.tries


@pytest.mark.parametrize(
    "extra",
    [
        Call("autograd::engine::evaluate_function: MmBackward0", 10, []),
        Call("Torch-Compiled Region: 0/0", 10, []),
        Call("aten::mul_", 300_000, [[25_000_000], []]),
    ],
    ids=["training", "compiled", "hardly any products"],
)
def test_no_other_compilers_for(tmp_path: Path, extra: Call) -> None:
    assert other_backends(on_cpu(tmp_path, [*square(22_000), extra])) is None
