"""Rule of loops in Python that read a number in each round."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from bottleneck.advice.host import item_calls, python_call
from bottleneck.advice.looped_functions import read_in_rounds
from tests.advice.cases import case_of, two_steps
from tests.builders import Event, complete, frame, op, step


def suppressing(
    name: str = "nms",
    *,
    rounds: int = 20,
    read: str = "aten::item",
    op_us: float = 4,
    steps: int = 2,
    inside: Sequence[Event] = (),
) -> list[Event]:
    """Steps of 2 ms with a function of so many rounds: a read, a call of another function, and its three ops."""
    events: list[Event] = [frame("detect.py(60): <module>", 0, 2000 * steps + 10)]
    for number in range(steps):
        at = 2000 * number
        events += [step(number, at, 1999), op("aten::mm", at + 1, 500, dims=[[64, 64], [64, 64]])]
        events.append(frame(f"detect.py(18): {name}", at + 510, 60 * rounds + 2))
        for start in (at + 511 + 60 * place for place in range(rounds)):
            events += [op(read, start, 4), frame("detect.py(14): iou", start + 10, 48)]
            events += [op("aten::maximum", start + 11 + 15 * place, op_us, dims=[[900 - place]]) for place in range(3)]
        events += [event | {"ts": event["ts"] + at} for event in inside]
    return events


def test_a_loop_over_what_it_reads_is_worth_the_calls_inside_of_its_function(tmp_path: Path) -> None:
    case = case_of(tmp_path, suppressing(), unprofiled_us=2000.0)
    draft = read_in_rounds(case)
    assert draft is not None and draft.gain_us is not None and draft.removes
    assert draft.gain_us.low == pytest.approx(0.6 * 1202 * 19 / 20, rel=0.01)
    assert draft.gain_us.high == pytest.approx(1202 * 19 / 20, rel=0.01)
    assert "in nms() (detect.py:18)" in draft.advice and "batched_nms" in draft.advice
    assert "reads 20 numbers each time" in draft.evidence[0] and "80 ops" in draft.evidence[1]
    # Its Python and its reads are said nowhere else.
    assert python_call(case) is None and item_calls(case) is None


def test_a_loop_over_other_things_is_not_told_of_boxes(tmp_path: Path) -> None:
    events = [event | {"name": event["name"].replace("iou", "distance")} for event in suppressing("align")]
    draft = read_in_rounds(case_of(tmp_path, events, unprofiled_us=2000.0))
    assert draft is not None and "batched_nms" not in draft.advice + (draft.code or "")
    assert draft.code is not None and "tolist" in draft.code


def test_a_loop_that_counts_is_told_of_bincount(tmp_path: Path) -> None:
    counts = [complete("detect.py(22): iou", "python_line", 521.5 + 60.0 * place, 45) for place in range(20)]
    texts = {"detect.py:22": "self.matrix[t, p] += 1"}
    events = suppressing("update", inside=counts)
    draft = read_in_rounds(case_of(tmp_path, events, unprofiled_us=2000.0, source_texts=texts))
    assert draft is not None and "torch.bincount" in draft.advice + (draft.code or "")
    assert "which counts at detect.py:22" in draft.advice and "detect.py:22" in draft.places


@pytest.mark.parametrize(
    "events",
    [
        suppressing(read="aten::neg"),
        suppressing(rounds=10),
        suppressing(inside=[frame("nn.Module: Linear_0", 600, 20)]),
        [event | {"dur": 60 * 20 + 2} if "nms" in event["name"] else event for event in suppressing(rounds=3)],
        [event | {"name": event["name"].replace("detect.py", "/x/site-packages/y.py")} for event in suppressing()],
    ],
    ids=["no read", "few rounds", "a model", "few ops", "a library"],
)
def test_a_function_without_such_a_loop_is_left_alone(tmp_path: Path, events: list[Event]) -> None:
    assert read_in_rounds(case_of(tmp_path, events, unprofiled_us=2000.0)) is None


@pytest.mark.parametrize("runs_ops", [True, False])
def test_python_of_a_function_that_runs_ops_is_not_told_to_be_cached(tmp_path: Path, runs_ops: bool) -> None:
    """The arguments of such a function are tensors that differ from call to call."""
    body = [frame("detect.py(30): boxes", 510, 3400), *([op("aten::neg", 511, 4)] if runs_ops else [])]
    draft = python_call(two_steps(tmp_path, [op("aten::mm", 1, 500, dims=[[64, 64]] * 2), *body], 4000.0))
    assert draft is not None and ("functools.cache" in draft.advice) != runs_ops
