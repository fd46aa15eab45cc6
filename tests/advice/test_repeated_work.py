"""Rules of work that a step does several times over with the same result."""

from pathlib import Path

import pytest

from bottleneck.advice import advise
from bottleneck.advice.repeated_work import repeated_parametrization
from tests.advice.cases import program_line, two_steps
from tests.builders import Event, complete, frame, op

LISTED = "torch/nn/utils/parametrize.py(326): forward"
HOOKS = ["torch/nn/utils/weight_norm.py(91): __call__", "torch/nn/utils/spectral_norm.py(99): __call__"]


def computed(ts: float, name: str = LISTED, layer: str = "Linear_0", size: int = 64) -> list[Event]:
    """A parametrized weight that is computed in 100 us."""
    return [
        program_line(24, ts, 110),
        frame(f"nn.Module: {layer}", ts + 1, 108),
        *([frame("nn.Module: ParametrizationList_0", ts + 2, 106)] if name == LISTED else []),
        frame(name, ts + 3, 104),
        op("aten::matmul", ts + 4, 100, dims=[[size, size], [size, size]]),
    ]


def stepping(ts: float) -> Event:
    return complete("Optimizer.step#SGD.step", "user_annotation", ts, 10)


@pytest.mark.parametrize("name", [LISTED, *HOOKS])
def test_a_weight_that_is_computed_at_each_access_is_to_be_kept(tmp_path: Path, name: str) -> None:
    evidence = two_steps(tmp_path, [event for at in range(4) for event in computed(100 + 120.0 * at, name)])
    draft = repeated_parametrization(evidence)
    assert draft is not None and draft.gain_us is not None and draft.removes
    assert "parametrize.cached()" in draft.advice and "at train.py:24" in draft.advice
    assert "recomputed 4 times between two updates" in draft.evidence[0]
    # The first of the four stays.
    assert draft.gain_us.high == pytest.approx(0.75 * 410, rel=0.1)
    assert advise(evidence)[0].slug == "repeated-parametrization"


def test_a_weight_that_is_computed_once_per_update_is_left_alone(tmp_path: Path) -> None:
    assert repeated_parametrization(two_steps(tmp_path / "once", computed(100))) is None
    updated = [*computed(100), stepping(300), *computed(400), stepping(600)]
    assert repeated_parametrization(two_steps(tmp_path / "updated", updated)) is None


def test_weights_of_several_layers_are_no_repetition(tmp_path: Path) -> None:
    body = [*computed(100, layer="Linear_0"), *computed(300, layer="Linear_1", size=32)]
    assert repeated_parametrization(two_steps(tmp_path, body)) is None
