"""Ops of a chain that write out a norm, softmax or GELU are found by their order, and by nothing less."""

import pytest

from bottleneck.experiment.pieces.hand_written import HandWritten, find_hand_written


def found(text: str) -> list[HandWritten]:
    return list(find_hand_written([f"aten::{name}" for name in text.split()]))


@pytest.mark.parametrize(
    ("ops", "op"),
    [
        ("mean sub pow mean add sqrt div mul add", "layer_norm"),
        ("sum div_ sub pow sum div_ add rsqrt mul mul add", "layer_norm"),
        ("mean var add sqrt sub div mul add", "layer_norm"),
        ("mean std sub mul add div add", "layer_norm"),
        ("pow mean add rsqrt mul mul", "rms_norm"),
        ("pow sum div_ add rsqrt mul copy_ mul", "rms_norm"),
        ("mul mean add rsqrt mul", "rms_norm"),
        ("amax sub exp sum div", "softmax"),
        ("max sub exp_ sum div_", "softmax"),
        ("exp sum div", "softmax"),
        ("mul pow mul add mul tanh add mul", "gelu_tanh"),
        ("mul div erf add mul", "gelu"),
    ],
)
def test_what_is_written_out_is_found_whole(ops: str, op: str) -> None:
    assert found(ops) == [HandWritten(op, 0, len(ops.split()))]


@pytest.mark.parametrize(
    "ops", ["mul add mul add", "mul mean mul", "tanh add mul", "exp sum", "sub exp mul", "pow mul"]
)
def test_other_ops_are_left_alone(ops: str) -> None:
    assert found(ops) == []


def test_ops_around_it_stay_outside() -> None:
    assert found("add pow mean add rsqrt mul mul relu relu exp sum div") == [
        HandWritten("rms_norm", 1, 6),
        HandWritten("softmax", 9, 3),
    ]
