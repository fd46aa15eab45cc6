"""Forward passes without gradients in each step of a training."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from bottleneck.advice import advise
from bottleneck.advice.passes_without_gradients import evaluation_in_step, features_in_step, frozen_features
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.records import replace
from tests.advice.cases import case_of, idle_row, program_line, two_steps, with_analysis
from tests.builders import Event, complete, frame, op, step

SIZES = [[512, 64], [64, 64], [64]]


def numbered(event: Event, number: int) -> Event:
    return event | {"args": event["args"] | {"Sequence number": number, "Fwd thread id": 0}}


def forward(module: str, at: float, dur: float, number: int, line: int) -> list[Event]:
    """A line that calls a module, whose ops have this number of autograd."""
    ops = [op("aten::linear", at + 2 + index * dur / 2, dur / 2 - 4, dims=SIZES) for index in range(2)]
    where = [program_line(line, at, dur), frame(f"nn.Module: {module}", at + 1, dur - 2)]
    return [*where, *(numbered(each, number) for each in ops)]


def training_of_net(at: float) -> list[Event]:
    """A step of training Net_0 from this time on, which takes 260 us."""
    return [
        *forward("Net_0", at, 100, 3, 11),
        program_line(12, at + 110, 10),
        numbered(op("aten::mse_loss", at + 112, 5, dims=[[512, 64], [512, 64]]), 4),
        program_line(13, at + 130, 100),
        numbered(op("autograd::engine::evaluate_function: AddmmBackward0", at + 135, 80), 3),
        complete("Optimizer.step#SGD.step", "user_annotation", at + 240, 20),
    ]


def case(folder: Path, other: str, text: str, more: tuple[Event, ...] = ()) -> Evidence:
    """Steps that train Net_0 at lines 11 to 14, and run a module at line 20 for 400 us."""
    training = training_of_net(100)
    passes = [*more, *forward(other, 500, 400, 5, 20)]
    return two_steps(folder, [*training, *passes], source_texts={"train.py:20": text})


@pytest.mark.parametrize("text", ["best = max(best, accuracy(model))", "val_loss = loss_of(model, data)", "evaluate()"])
def test_an_evaluation_in_each_step_is_to_be_seldom(tmp_path: Path, text: str) -> None:
    evidence = case(tmp_path, "Net_0", text)
    draft = evaluation_in_step(evidence)
    assert draft is not None and draft.gain_us is not None and "Evaluate at train.py:20 every" in draft.advice
    assert 300 < draft.gain_us.low < draft.gain_us.high < 0.95 * 500
    assert frozen_features(evidence) is None
    assert advise(evidence)[0].slug == "evaluation-in-step"


def test_two_lines_that_evaluate_are_both_named_and_save_their_page_faults(tmp_path: Path) -> None:
    texts = {"train.py:20": "train_acc = test(model)", "train.py:21": "val_acc = test(model)"}
    passes = [*forward("Net_0", 500, 200, 5, 20), *forward("Net_0", 700, 200, 5, 21)]
    evidence = two_steps(tmp_path, [*training_of_net(100), *passes], source_texts=texts)
    plain = evaluation_in_step(evidence)
    row = replace(idle_row("allocator", 200.0, None, detail="first touch of fresh pages"), on_pages=True)
    faults = evaluation_in_step(with_analysis(evidence, idle=(*evidence.analysis.idle, row)))
    assert plain is not None and plain.gain_us is not None and faults is not None and faults.gain_us is not None
    assert "Evaluate at train.py:20 and train.py:21 every" in plain.advice
    assert plain.places == ("train.py:20", "train.py:21")
    # Half of their part of 200 us at least, and no more than what keeping all of it saves.
    assert 20 < faults.gain_us.low - plain.gain_us.low < 100
    assert 100 < faults.gain_us.high - plain.gain_us.high < 1.7 * 200


def test_of_more_lines_that_evaluate_the_longest_is_named_and_the_others_are_counted(tmp_path: Path) -> None:
    texts = {f"train.py:{line}": "accuracy = test(model)" for line in (20, 21, 22)}
    passes = [event for line in (20, 21, 22) for event in forward("Net_0", 500 + 130 * (line - 20), 130, 5, line)]
    draft = evaluation_in_step(two_steps(tmp_path, [*training_of_net(100), *passes], source_texts=texts))
    assert draft is not None and "Evaluate at train.py:20 and 2 other lines every" in draft.advice
    assert "at train.py:20 and 2 other lines in each of 2 steps" in draft.evidence[0]


@pytest.mark.parametrize(("function", "is_told"), [("val_accuracy", True), ("predict_next", False)])
def test_a_trace_without_lines_tells_an_evaluation_by_its_function(
    tmp_path: Path, function: str, is_told: bool
) -> None:
    calls = [frame("train.py(7): on_step_end", 495, 410), frame(f"train.py(9): {function}", 497, 406)]
    body = [*training_of_net(100), *calls, *forward("Net_0", 500, 400, 5, 20)]
    draft = evaluation_in_step(two_steps(tmp_path, [event for event in body if event.get("cat") != "python_line"]))
    assert (draft is not None) == is_told
    if draft is not None:
        assert f"Evaluate in {function}() (train.py:9) every" in draft.advice


def test_a_pass_that_is_not_named_so_is_no_evaluation(tmp_path: Path) -> None:
    for at, text in enumerate(("values = model(states)", "interval = model(x)", "latest = model(x)")):
        assert evaluation_in_step(case(tmp_path / str(at), "Net_0", text)) is None


def test_what_a_frozen_network_gives_may_be_kept(tmp_path: Path) -> None:
    evidence = case(tmp_path, "Backbone_0", "f = backbone(images[rows])")
    draft = frozen_features(evidence)
    assert draft is not None and draft.gain_us is not None and draft.confidence == "low"
    assert "the frozen network gives at train.py:20 once" in draft.advice
    assert draft.gain_us.low < 0.4 * draft.gain_us.high


def test_trained_followed_and_changing_networks_are_left_alone(tmp_path: Path) -> None:
    text = "f = backbone(images[rows])"
    assert frozen_features(case(tmp_path / "trained", "Net_0", text)) is None
    assert frozen_features(case(tmp_path / "target", "Backbone_0", "y = target(states)")) is None
    noise = op("aten::randn", 480, 5, dims=[[], [], [], [], []])
    assert frozen_features(case(tmp_path / "noise", "Backbone_0", text, (program_line(19, 478, 10), noise))) is None


def prepared(folder: Path, *first: Event) -> Evidence:
    """Steps that begin with these ops, up to 500 us, and then train Net_0."""
    return two_steps(folder, [*first, *training_of_net(500)])


def feature(name: str, at: float, dur: float) -> Event:
    return numbered(op(name, at, dur, dims=[[512, 64]]), 3)


def test_features_of_the_inputs_may_be_kept(tmp_path: Path) -> None:
    features = [program_line(5, 98, 400), feature("aten::_fft_r2c", 100, 250), feature("aten::abs", 360, 120)]
    draft = features_in_step(prepared(tmp_path, *features))
    assert draft is not None and draft.gain_us is not None and draft.confidence == "low"
    assert "Compute the features at train.py:5 once" in (draft.brief or "")
    assert draft.gain_us.low < 0.4 * draft.gain_us.high and draft.gain_us.high >= 370


def test_inputs_that_are_drawn_moved_or_loaded_are_no_features(tmp_path: Path) -> None:
    noise = [program_line(5, 98, 400), feature("aten::randn", 100, 20), feature("aten::abs", 130, 350)]
    assert features_in_step(prepared(tmp_path / "drawn", *noise)) is None
    moved = [program_line(5, 98, 400), feature("aten::copy_", 100, 350), feature("aten::abs", 460, 20)]
    assert features_in_step(prepared(tmp_path / "moved", *moved)) is None
    metric = [program_line(5, 98, 400), feature("aten::argmax", 100, 370), feature("aten::item", 480, 10)]
    assert features_in_step(prepared(tmp_path / "read", *metric)) is None
    loader = complete("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "user_annotation", 99, 395)
    loaded = [loader, program_line(5, 98, 400), feature("aten::_fft_r2c", 100, 370)]
    assert features_in_step(prepared(tmp_path / "loaded", *loaded)) is None


def test_metrics_and_layers_that_may_follow_the_trained_ones_are_no_features(tmp_path: Path) -> None:
    """A running AUC sorted all scores; a target network gave its values of new samples."""
    ranks = [program_line(5, 98, 400), feature("aten::sort", 100, 200), feature("aten::mul", 310, 170)]
    assert features_in_step(prepared(tmp_path / "metric", *ranks)) is None
    target = [program_line(5, 98, 400), feature("aten::addmm", 100, 370)]
    assert features_in_step(prepared(tmp_path / "lines", *target)) is not None
    bare = [
        event for event in (*target, *training_of_net(500)) if event["cat"] not in {"python_function", "python_line"}
    ]
    assert features_in_step(two_steps(tmp_path / "bare", bare)) is None


def steps_with_a_second_loss(
    folder: Path, *, run: Sequence[int] = (1, 2), reduction: str = "1", optimizer: bool = True
) -> Evidence:
    """Three steps with a training of 200 us, and a forward pass and its loss, of 400 us, before the optimizer's step.

    The numbers of a step's nodes are 1 and 2 for the training's, and 3 and 4 for the other pass; these run backward.
    """
    events = [frame("train.py(1): <module>", 0, 3000)]
    for number in range(3):
        at, first = 1000.0 * number, 10 * number
        events += [step(number, at, 999), program_line(11, at + 5, 60), frame("nn.Module: Net_0", at + 6, 58)]
        events.append(numbered(op("aten::linear", at + 7, 50, dims=SIZES), first + 1))
        events += [program_line(12, at + 70, 20)]
        events.append(numbered(op("aten::cross_entropy_loss", at + 72, 10, dims=[[512, 64], [512]]), first + 2))
        events += [program_line(20, at + 100, 350), frame("nn.Module: Net_0", at + 101, 348)]
        events.append(numbered(op("aten::linear", at + 105, 340, dims=SIZES), first + 3))
        arguments = ["", "", "", reduction, "-100", "0."]
        loss = op("aten::cross_entropy_loss", at + 462, 40, dims=[[512, 64], [512]], concrete=arguments)
        events += [program_line(21, at + 460, 50), numbered(loss, first + 4)]
        events += [numbered(op("aten::add", at + 515, 2, dims=[[], []]), first + 5), program_line(22, at + 600, 200)]
        for place, node in enumerate(run):
            name = "autograd::engine::evaluate_function: AddmmBackward0"
            events.append(numbered(op(name, at + 605 + 40 * place, 30), first + node))
        if optimizer:
            events.append(complete("Optimizer.step#SGD.step", "user_annotation", at + 900, 20))
    return case_of(folder, events, unprofiled_us=1000.0)


def test_a_loss_that_no_backward_pass_starts_from_is_to_be_left_out(tmp_path: Path) -> None:
    draft = evaluation_in_step(steps_with_a_second_loss(tmp_path))
    assert draft is not None and draft.gain_us is not None
    assert draft.advice.startswith("Leave out the loss at train.py:21")
    assert draft.evidence[0].startswith("1 time per step")
    assert 0.8 * 370 < draft.gain_us.low < draft.gain_us.high < 400


def test_a_loss_that_is_used_or_picks_samples_is_left_alone(tmp_path: Path) -> None:
    """Or whose backward pass may yet run, in a step that the trace does not hold."""
    assert evaluation_in_step(steps_with_a_second_loss(tmp_path / "run", run=(1, 2, 3, 4))) is None
    assert evaluation_in_step(steps_with_a_second_loss(tmp_path / "samples", reduction="0")) is None
    assert evaluation_in_step(steps_with_a_second_loss(tmp_path / "open", optimizer=False)) is None
