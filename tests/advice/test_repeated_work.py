"""Rules of work that a step does several times over with the same result."""

from pathlib import Path
from typing import Any

import pytest

from bottleneck.advice import advise
from bottleneck.advice.repeated_work import (
    normalised_operand,
    normalised_weights,
    repeated_module,
    repeated_parametrization,
    repeated_result,
    same_in_step,
)
from bottleneck.schema.evidence import Evidence, counted_faults_us
from bottleneck.schema.measurements import PageFaults, RepeatedModule
from bottleneck.schema.records import replace
from tests.advice.cases import program_line, two_steps
from tests.analysis.frames import CPU
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


def encoded(ts: float, label: str, number: int = 43) -> list[Event]:
    """A call of a module whose ops take 200 us."""
    return [
        program_line(number, ts, 210),
        frame(f"nn.Module: {label}", ts + 1, 208),
        op("aten::linear", ts + 4, 200, dims=[[64, 64], [64, 64]]),
    ]


def test_a_module_that_gave_the_same_in_two_steps_is_called_once_before_the_loop(tmp_path: Path) -> None:
    found = RepeatedModule("TextTower_0", "train.py:43")
    body = [*encoded(100, "TextTower_0"), *encoded(400, "ImageTower_0", 44)]
    evidence = two_steps(
        tmp_path, body, repeated_modules=(found,), source_texts={"train.py:43": "text = encode(prompts)"}
    )
    draft = repeated_module(evidence)
    assert draft is not None and draft.gain_us is not None and draft.comes_first
    assert "train.py:43 (`text = encode(prompts)`)" in draft.advice and "once, before the loop" in draft.advice
    assert 170 < draft.gain_us.low < draft.gain_us.high < 260
    assert advise(evidence)[0].slug == "repeated-module"


def test_only_the_calls_that_repeat_count(tmp_path: Path) -> None:
    found = RepeatedModule("Encoder_0", "train.py:43", calls=2, repeated=(1,))
    body = [*encoded(100, "Encoder_0"), *encoded(400, "Encoder_0", 44)]
    draft = repeated_module(two_steps(tmp_path, body, repeated_modules=(found,)))
    assert draft is not None and draft.gain_us is not None and draft.gain_us.high < 260


def test_without_such_a_module_or_with_a_small_one_nothing_is_said(tmp_path: Path) -> None:
    body = encoded(100, "TextTower_0")
    assert repeated_module(two_steps(tmp_path / "none", body)) is None
    other = RepeatedModule("Pos_0", None)
    assert repeated_module(two_steps(tmp_path / "other", body, repeated_modules=(other,))) is None
    small = RepeatedModule("TextTower_0", None)
    assert repeated_module(two_steps(tmp_path / "small", body, 9000.0, repeated_modules=(small,))) is None


def test_lines_that_gave_the_same_in_two_steps_are_computed_once(tmp_path: Path) -> None:
    product = [program_line(27, 100, 310), op("aten::mul", 104, 300, dims=[[640, 640], [640, 640]])]
    other = [program_line(30, 500, 60), op("aten::mm", 504, 50, dims=[[64, 64], [64, 64]])]
    text = {"train.py:27": "return d[:, None] * a"}
    evidence = two_steps(tmp_path, [*product, *other], repeated_lines=("train.py:27",), source_texts=text)
    draft = repeated_result(evidence)
    assert draft is not None and draft.gain_us is not None and draft.comes_first
    assert "at train.py:27 (`return d[:, None] * a`)" in draft.advice and "before the loop" in draft.advice
    assert 260 < draft.gain_us.low < draft.gain_us.high < 360
    assert advise(evidence)[0].slug == "repeated-result"
    assert repeated_result(two_steps(tmp_path / "small", [*product, *other], repeated_lines=("train.py:30",))) is None
    assert repeated_result(two_steps(tmp_path / "none", [*product, *other])) is None


def test_a_module_that_reads_the_same_in_each_round_is_called_once_before_the_loop(tmp_path: Path) -> None:
    found = RepeatedModule("Keys_0", "train.py:43", calls=4)
    body = [*(event for at in range(4) for event in encoded(100 + 300.0 * at, "Keys_0")), *encoded(1400, "Out_0", 44)]
    text = {"train.py:43": "keys = self.keys(encoded)"}
    draft = same_in_step(two_steps(tmp_path, body, 2000.0, same_in_step=(found,), source_texts=text))
    assert draft is not None and draft.gain_us is not None and draft.comes_first
    assert "train.py:43 (`keys = self.keys(encoded)`)" in draft.advice and "before the loop" in draft.advice
    # Three of four calls with 200 us each.
    assert 0.65 * 600 < draft.gain_us.low < draft.gain_us.high < 680
    assert same_in_step(two_steps(tmp_path / "none", body)) is None


def test_a_network_that_gets_the_same_again_beside_other_inputs_is_called_once_for_them(tmp_path: Path) -> None:
    """A physics-informed network was called for u, its two derivatives and its second one with the same points."""
    found = RepeatedModule("Net_0", "train.py:43", calls=4, repeated=(1, 2))
    body = [event for at in range(4) for event in encoded(100 + 300.0 * at, "Net_0")]
    evidence = two_steps(
        tmp_path, body, 2000.0, same_in_step=(found,), source_texts={"train.py:43": "u = self.net(x, t)"}
    )
    draft = same_in_step(evidence)
    assert draft is not None and draft.gain_us is not None
    assert "2 of 4 calls of Net had inputs of an earlier one" in draft.evidence[0]
    assert draft.advice.startswith("Call Net once per step for these inputs, and pass its result on")
    assert 0.65 * 400 < draft.gain_us.low < draft.gain_us.high < 460


@pytest.mark.parametrize("name", ["aten::_weight_norm_interface", "aten::mul"])
def test_weight_norm_without_a_backward_pass_is_taken_off_by_its_ops_alone(tmp_path: Path, name: str) -> None:
    size = [512, 512]
    norm = ("aten::_weight_norm", 150), (name, 149)  # in double precision it is made of a norm and products
    made = [op(of, 100 + 250 * at, us, dims=[size, [512, 1], []]) for at in range(2) for of, us in norm]
    body = [*made, *(op("aten::linear", 260 + 250 * at, 80, dims=[[8, 512], size, [512]]) for at in range(2))]
    draft = normalised_weights(two_steps(tmp_path / "inference", body))
    assert draft is not None and draft.gain_us is not None and draft.slug == "repeated-module"
    assert draft.brief is not None and "remove_parametrizations" in draft.brief and "2 weights" in draft.evidence[0]
    assert draft.gain_us.low == pytest.approx(0.25 * 300, rel=0.05)
    # With 10 us of Python before the second one.
    assert 305 < draft.gain_us.high < 315
    node = complete("autograd::engine::evaluate_function: AddmmBackward0", "cpu_op", 700, 100)
    assert normalised_weights(two_steps(tmp_path / "training", [*body, node])) is None
    assert normalised_weights(two_steps(tmp_path / "little", [one | {"dur": one["dur"] - 135} for one in made])) is None
    found = RepeatedModule("ParametrizationList_0", "train.py:43")
    known = two_steps(tmp_path / "known", [*encoded(800, "ParametrizationList_0"), *body], repeated_modules=(found,))
    assert repeated_module(known) is not None and normalised_weights(known) is None


def test_a_parametrization_that_nothing_trains_is_taken_off(tmp_path: Path) -> None:
    found = RepeatedModule("ParametrizationList_0", "train.py:43")
    body = [*encoded(100, "ParametrizationList_0"), *encoded(400, "Out_0", 44)]
    draft = repeated_module(two_steps(tmp_path, body, repeated_modules=(found,)))
    assert draft is not None and draft.advice.startswith("Take the parametrization of the weights off")
    assert draft.code is not None and "remove_parametrizations" in draft.code and "List once" not in draft.advice


def test_of_lines_that_give_the_same_in_each_round_the_ops_of_one_round_stay(tmp_path: Path) -> None:
    def rounds(ts: float) -> list[Event]:
        two = [op("aten::mul", ts + 4 + 110 * at, 100, dims=[[640, 640], [640, 640]]) for at in range(2)]
        return [program_line(27, ts, 230), *two]

    body = [event for at in range(4) for event in rounds(100 + 300.0 * at)]
    draft = same_in_step(two_steps(tmp_path, body, 2000.0, lines_same_in_step={"train.py:27": 4}))
    assert draft is not None and draft.gain_us is not None
    assert 0.65 * 600 < draft.gain_us.low < draft.gain_us.high < 680
    small = two_steps(tmp_path / "small", body, 90_000.0, lines_same_in_step={"train.py:27": 4})
    assert same_in_step(small) is None


def test_a_call_that_does_nothing_else_is_named_with_the_line_that_calls_it(tmp_path: Path) -> None:
    """The line of the caller is where the change is made: the lines inside of the call are not."""

    def body(own_us: float) -> list[Event]:
        return [
            program_line(20, 95, 700),
            frame("train.py(5): mel_filterbank", 100, 400),
            complete("train.py(7): mel_filterbank", "python_line", 102, 310),
            op("aten::mul", 104, 300, dims=[[640, 640], [640, 640]]),
            complete("train.py(8): mel_filterbank", "python_line", 415, own_us + 5),
            op("aten::abs", 416, own_us, dims=[[64, 64]]),
            complete("train.py(30): step", "python_line", 560, 60),
            op("aten::mm", 564, 50, dims=[[64, 64], [64, 64]]),
        ]

    kept: dict[str, Any] = {
        "repeated_lines": ("train.py:7", "train.py:8"),
        "source_texts": {"train.py:20": "fb = mel_filterbank()"},
    }
    draft = repeated_result(two_steps(tmp_path / "whole", body(20), **kept))
    assert draft is not None and "keep what mel_filterbank() gives at train.py:20 (`fb = " in draft.advice
    part = repeated_result(two_steps(tmp_path / "part", body(80), **{**kept, "repeated_lines": ("train.py:7",)}))
    assert part is not None and "keep what is computed at train.py:7" in part.advice


@pytest.mark.parametrize("faults", [0.0, 100.0])
def test_freeing_what_is_left_out_counts_as_far_as_page_faults_were_counted(tmp_path: Path, faults: float) -> None:
    product = [program_line(27, 100, 310), op("aten::mul", 104, 300, dims=[[640, 640], [640, 640]])]
    other = [program_line(30, 500, 60), op("aten::mm", 504, 50, dims=[[64, 64], [64, 64]])]
    counted = PageFaults(4096, profiled=faults, unprofiled=faults)
    device = replace(CPU, fresh_bytes_per_s=5e9)
    case = two_steps(tmp_path, [*product, *other], repeated_lines=("train.py:27",), page_faults=counted, device=device)
    draft = repeated_result(case)
    assert draft is not None and draft.gain_us is not None
    assert (draft.gain_us.high > 360) == (faults > 0)
    assert draft.gain_us.high <= 360 + 2 * counted_faults_us(case)


def searching(folder: Path, queries: int = 8, *, recorded: bool = False, divided: bool = True) -> Evidence:
    """A step that normalises 4,096 vectors and multiplies a few queries with them."""
    vectors = [4096, 256]
    calls: list[tuple[str, float, list[list[int]]]] = [
        ("aten::linalg_vector_norm", 50, [vectors, [], []]),
        ("aten::clamp_min", 5, [[4096, 1], []]),
        ("aten::div" if divided else "aten::mul", 300, [vectors, vectors]),
        ("aten::numpy_T", 2, [vectors]),
        ("aten::matmul", 200, [[queries, 256], [256, 4096]]),
    ]
    events, at = list[Event](), 100.0
    for number, (name, us, dims) in enumerate(calls):
        call = op(name, at, us, dims=dims)
        numbers = {"Sequence number": number if recorded else 7, "Fwd thread id": 0}
        events.append(call | {"args": call["args"] | numbers})
        at += us + 2
    return two_steps(folder, events)


def test_a_large_operand_that_is_normalised_in_each_step_is_to_be_normalised_once(tmp_path: Path) -> None:
    """30,000 vectors of a search took 3.7 of 8.1 ms; without that a run was 1.43 times as fast."""
    draft = normalised_operand(searching(tmp_path / "search"))
    assert draft is not None and draft.gain_us is not None and draft.confidence == "low"
    assert "If the tensor of 4096x256 stays the same from step to step, normalise it once" in draft.advice
    assert draft.gain_us.low == pytest.approx(draft.gain_us.high / 2, rel=0.02) and draft.gain_us.high > 350
    assert normalised_operand(searching(tmp_path / "many", queries=512)) is None
    assert normalised_operand(searching(tmp_path / "trained", recorded=True)) is None
    assert normalised_operand(searching(tmp_path / "scaled", divided=False)) is None
