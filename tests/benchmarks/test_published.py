"""The score of published cases: gains inside and outside their intervals, negative cases, and times."""

import math
from pathlib import Path

import pytest

from benchmarks.published.predicted import hold
from benchmarks.published.score import HeldGain, HeldTime, score
from benchmarks.published.stated import StatedGain, read_cases
from bottleneck.predict.gains import PredictedGain
from bottleneck.schema.analysis import Interval
from bottleneck.schema.predicted_changes import PredictedVerdict


def held(
    stated: float, low: float, high: float, verdict: PredictedVerdict = "open", negative: bool = False
) -> HeldGain:
    gain = PredictedGain(math.sqrt(low * high), Interval(low, high))
    return HeldGain(StatedGain("a", "b", stated, negative), gain, verdict)


def test_a_stated_gain_is_inside_or_outside_its_interval() -> None:
    inside, outside = held(1.5, 1.2, 1.8, "helps"), held(2.5, 1.2, 1.8, "helps")
    found = score([inside, outside, outside], [])
    assert (found.inside, found.gains) == (1, 3)
    assert found.width == pytest.approx(1.5)
    assert (found.right, found.signs) == (3, 3)


def test_a_predicted_loss_of_a_stated_gain_has_the_wrong_sign() -> None:
    found = score([held(1.5, 0.6, 0.9, "hurts"), held(1.01, 0.6, 0.9, "hurts")], [])
    assert (found.right, found.signs) == (0, 1)


def test_a_negative_case_is_met_by_nothing_or_a_loss_and_missed_by_a_promise() -> None:
    nothing, loss = held(1.0, 0.99, 1.01, "nothing", True), held(0.9, 0.8, 0.95, "hurts", True)
    missed, unsure = held(1.0, 1.1, 1.3, "helps", True), held(1.0, 0.9, 1.5, "open", True)
    found = score([nothing, loss, missed, unsure], [])
    assert (found.nothing, found.negatives) == (2, 4)


def test_a_time_is_near_within_a_fifth() -> None:
    found = score([], [HeldTime(100.0, 119.0), HeldTime(100.0, 79.0)])
    assert (found.near, found.times) == (1, 2)
    assert math.isnan(found.width)


CASE = """
ITEM = 7
DEVICE = "A100"
SOURCE = "made by hand"
TIMES = {
    "fp32": ({"width": 4096}, (), 10.0),
    "bf16": ({"width": 4096}, ("bf16-autocast",), 2.0),
    "wide": ({"width": 8192}, (), None),
}
GAINS = [("fp32", "bf16"), ("fp32", "wide", 0.25, "nothing")]


def workload(width=1024):
    import torch

    layer, x = torch.nn.Linear(width, width), torch.randn(width, width)

    def step():
        with torch.no_grad():
            layer(x)

    return step
"""


def test_a_case_is_read_recorded_and_priced(tmp_path: Path) -> None:
    (tmp_path / "made.py").write_text(CASE)
    (case,) = read_cases(tmp_path)
    assert [gain.gain for gain in case.gains] == [5.0, 0.25]
    assert [gain.is_negative for gain in case.gains] == [False, True]
    found = hold(case, tmp_path / "kept")
    assert found.gains[0].verdict == "helps" and found.gains[1].predicted.speedup < 0.5
    assert set(found.times) == {"fp32", "bf16"}
    assert hold(case, tmp_path / "kept").gains == found.gains


def test_every_case_names_steps_that_it_has() -> None:
    cases = read_cases()
    assert cases
    for case in cases:
        assert {name for gain in case.gains for name in (gain.before, gain.after)} <= set(case.steps)
