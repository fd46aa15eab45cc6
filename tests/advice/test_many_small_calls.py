"""Rule of a small model that one place calls again and again."""

from pathlib import Path

from bottleneck.advice import advise
from bottleneck.advice.many_small_calls import many_small_calls
from bottleneck.schema.evidence import Evidence
from tests.advice.cases import two_steps
from tests.builders import Event, frame, op


def calls(count: int, apart_us: float = 100, dur_us: float = 40, work_us: float = 10) -> list[Event]:
    """So many calls of a layer from rollout(), each with one op, and Python between them."""
    events = [frame("train.py(19): rollout", 50, count * apart_us)]
    for number in range(count):
        at = 60 + apart_us * number
        events += [frame("nn.Module: Linear_0", at, dur_us), op("aten::addmm", at + 5, work_us)]
    return events


def case(folder: Path, body: list[Event], length_us: float = 6000) -> Evidence:
    return two_steps(folder, body, length_us)


def test_a_policy_that_is_called_for_each_environment_is_told_to_take_them_all(tmp_path: Path) -> None:
    evidence = case(tmp_path, calls(50))
    draft = many_small_calls(evidence)
    assert draft is not None and draft.gain_us is not None
    assert "called in rollout() (train.py:19) 50 times per step, 40.0 us each" in draft.evidence[0]
    assert 0.2 * 5000 < draft.gain_us.low < draft.gain_us.high < 0.9 * 5000
    slugs = [finding.slug for finding in advise(evidence)]
    assert slugs[0] == "many-small-calls" and "python-call" not in slugs


def test_few_calls_long_ones_and_those_that_compute_are_left_alone(tmp_path: Path) -> None:
    assert many_small_calls(case(tmp_path / "few", calls(20))) is None
    assert many_small_calls(case(tmp_path / "long", calls(40, 1500, 1400), 70_000)) is None
    assert many_small_calls(case(tmp_path / "busy", calls(50, 100, 98, 90))) is None
