"""Rule of calls that a step makes twice with the same arguments."""

from pathlib import Path

import pytest

from bottleneck.advice import advise
from bottleneck.advice.repeated_calls import repeated_call
from bottleneck.schema.evidence import Evidence
from tests.advice.cases import case_of
from tests.builders import Event, complete, frame, op, step

LENGTH = 1000.0
LOSS, METRIC = "loss = F.cross_entropy(net(x), y)", "hits += (net(x).argmax(1) == y).sum().item()"


def called(ts: float, line: int, number: int | None, ops: tuple[str, ...] = ("aten::mm",)) -> list[Event]:
    """A call of the net at a line, in 200 us; with the number of its node where autograd records it."""
    found = [complete(f"train.py({line}): <module>", "python_line", ts, 210), frame("nn.Module: Net_0", ts + 1, 205)]
    for at, name in enumerate(ops):
        made = op(name, ts + 5 + 200 * at / len(ops), 195 / len(ops), dims=[[64, 64], [64, 64]])
        made["args"] |= {"Sequence number": -1 if number is None else number + at, "Fwd thread id": 0}
        found.append(made)
    return found


def after(ts: float, number: int) -> Event:
    made = op("aten::mean", ts, 5, dims=[[64, 64]])
    made["args"] |= {"Sequence number": number, "Fwd thread id": 0}
    return made


def node(ts: float, number: int) -> list[Event]:
    made = op("autograd::engine::evaluate_function: MmBackward0", ts, 150)
    made["args"] |= {"Sequence number": number, "Fwd thread id": 1}
    return [made, op("aten::mm", ts + 1, 148, dims=[[64, 64], [64, 64]])]


def case(folder: Path, body: list[Event], **texts: str) -> Evidence:
    """Two steps of 1 ms with these events each, and the texts of lines ('line12')."""
    events = [frame("train.py(1): <module>", 0, 2 * LENGTH)]
    for number in range(2):
        events.append(step(number, LENGTH * number, LENGTH - 1))
        for event in body:
            args = event["args"]
            if args.get("Sequence number", -1) >= 0:
                args = args | {"Sequence number": args["Sequence number"] + 100 * number}
            events.append(event | {"ts": event["ts"] + LENGTH * number, "args": args})
    lines = {f"train.py:{name.removeprefix('line')}": text for name, text in texts.items()}
    return case_of(folder, events, unprofiled_us=LENGTH, source_texts=lines)


# The loss, its backward pass, and the metric.
METRIC_BODY = [*called(10, 12, 1), after(225, 2), *node(250, 1), *called(500, 17, None)]


def test_a_model_that_runs_again_for_a_metric_is_told_with_its_lines(tmp_path: Path) -> None:
    evidence = case(tmp_path, METRIC_BODY, line12=LOSS, line17=METRIC)
    draft = repeated_call(evidence)
    assert draft is not None and draft.gain_us is not None and draft.removes and not draft.changes_results
    assert "arguments of net(x) at train.py:12 and train.py:17 are the same" in draft.advice
    # The call without a backward pass is spared.
    assert draft.gain_us.high == pytest.approx(200, rel=0.1) and draft.gain_us.low < 0.6 * draft.gain_us.high
    assert advise(evidence)[0].slug == "repeated-call"


def test_a_metric_of_the_updated_weights_is_told_as_another_result(tmp_path: Path) -> None:
    update = complete("Optimizer.step#SGD.step", "user_annotation", 450, 20)
    draft = repeated_call(case(tmp_path, [*METRIC_BODY, update], line12=LOSS, line17=METRIC))
    assert draft is not None and draft.changes_results and "before the update" in draft.advice


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (LOSS, "hits += (net(z).argmax(1) == y).sum()"),
        ("x = net(x)", "x = net(x)"),
        ("", METRIC),
        ("a = torch.f(x)",) * 2,
    ],
)
def test_calls_of_other_or_unknown_arguments_are_left_alone(tmp_path: Path, first: str, second: str) -> None:
    assert repeated_call(case(tmp_path, METRIC_BODY, line12=first, line17=second)) is None


def test_calls_in_a_loop_or_of_other_sizes_are_left_alone(tmp_path: Path) -> None:
    loop = [*called(10, 12, None), *called(300, 12, None)]
    assert repeated_call(case(tmp_path / "loop", loop, line12="y = net(x)")) is None
    other = [*called(10, 12, 1), after(225, 2), *node(250, 1), *called(500, 17, None, ("aten::mm", "aten::mm"))]
    assert repeated_call(case(tmp_path / "other", other, line12=LOSS, line17=METRIC)) is None


@pytest.mark.parametrize(("ops", "is_told"), [(("aten::mm",), True), (("aten::mm", "aten::dropout"), False)])
def test_two_passes_that_both_go_backward_are_told_unless_they_draw_numbers(
    tmp_path: Path, ops: tuple[str, ...], is_told: bool
) -> None:
    body = [*called(10, 12, 1, ops), *called(300, 13, 5, ops), after(520, 9), *node(550, 5), *node(720, 1)]
    draft = repeated_call(case(tmp_path, body, line12="a = f(net(x))", line13="b = g(net(x))"))
    assert (draft is not None) == is_told
    if draft is not None and draft.gain_us is not None:
        assert draft.gain_us.high > 300  # with the backward nodes


def test_a_function_that_runs_again_is_told_unless_it_draws_numbers(tmp_path: Path) -> None:
    for ops, is_told in ((("aten::mm",), True), (("aten::mm", "aten::rand"), False)):
        body = [*called(10, 12, None, ops), *called(300, 13, None, ops), *node(550, 1)]
        body = [event | {"name": event["name"].replace("nn.Module: Net_0", "train.py(4): view")} for event in body]
        evidence = case(tmp_path / ops[-1].partition("::")[2], body, line12="a = view(x)", line13="b = view(x)")
        assert (repeated_call(evidence) is not None) == is_told


def test_a_pass_after_the_backward_pass_of_the_first_is_another_one(tmp_path: Path) -> None:
    body = [*called(10, 12, 1), after(215, 2), *node(220, 1), *called(400, 13, 5), after(615, 6), *node(620, 5)]
    assert repeated_call(case(tmp_path, body, line12="a = f(net(x))", line13="b = f(net(x))")) is None
