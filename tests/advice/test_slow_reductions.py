"""Rule of argmax along a dimension that is not the last, on a CPU."""

from pathlib import Path

import pytest

from bottleneck.advice import advise
from bottleneck.advice.slow_reductions import slow_argmax
from bottleneck.schema.evidence import Evidence
from tests.advice.cases import program_line, two_steps
from tests.builders import op

IMAGE = [3, 19, 128, 256]


def case(folder: Path, *, dim: str = "1", size: list[int] = IMAGE, dur: float = 400) -> Evidence:
    """Steps with argmax at train.py:18, and a product."""
    places = op("aten::argmax", 110, dur, dims=[size, [], []], concrete=["", dim, "False"])
    model = [program_line(50, 720, 250), op("aten::mm", 730, 200, dims=[[64, 64], [64, 64]])]
    return two_steps(folder, [program_line(18, 100, dur + 20), places, *model])


@pytest.mark.parametrize("dim", ["1", "-3"])
def test_classes_before_places_are_taken_by_max(tmp_path: Path, dim: str) -> None:
    evidence = case(tmp_path, dim=dim)
    draft = slow_argmax(evidence)
    assert draft is not None and draft.gain_us is not None and draft.removes
    assert "x.max(1).indices at train.py:18, in place of x.argmax(1)" in draft.advice
    assert draft.gain_us.low == pytest.approx(260, rel=0.05) and draft.gain_us.high == pytest.approx(380, rel=0.05)
    assert advise(evidence)[0].slug == "slow-argmax"


@pytest.mark.parametrize(
    ("dim", "size", "dur"), [("3", IMAGE, 400), ("", IMAGE, 400), ("1", [512, 1000], 400), ("1", IMAGE, 10)]
)
def test_the_last_dimension_matrices_and_little_time_are_left_alone(
    tmp_path: Path, dim: str, size: list[int], dur: float
) -> None:
    assert slow_argmax(case(tmp_path, dim=dim, size=size, dur=dur)) is None
