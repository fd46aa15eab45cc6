"""Objects that each step makes again of nothing but constants."""

from pathlib import Path
from typing import Any

import pytest

from bottleneck.advice import advise
from bottleneck.advice.objects_made_anew import object_made_anew
from bottleneck.schema.evidence import Evidence
from tests.advice.cases import program_line, two_steps
from tests.builders import Event, frame, op

CONSTRUCTOR = "train.py(5): __init__"


def making(name: str = CONSTRUCTOR, us: float = 300) -> list[Event]:
    """A line of 320 us whose constructor takes so much, and a product."""
    inner = [frame("filters.py(9): __init__", 30, us / 2), op("aten::fill_", 40, us / 4, dims=[[64, 64], []])]
    return [
        program_line(22, 10, us + 20),
        frame(name, 20, us),
        *inner,
        program_line(23, 500, 300),
        op("aten::mm", 510, 280, dims=[[64, 64], [64, 64]]),
    ]


def case(folder: Path, text: str = "mel = LogMel()", body: list[Event] | None = None, **recording: Any) -> Evidence:
    return two_steps(folder, making() if body is None else body, source_texts={"train.py:22": text}, **recording)


def test_an_object_of_constants_is_to_be_made_once(tmp_path: Path) -> None:
    """A keyword spotter built its mel filter bank for each batch, a third of its step."""
    evidence = case(tmp_path)
    draft = object_made_anew(evidence)
    assert draft is not None and draft.gain_us is not None and draft.removes
    assert (draft.gain_us.low, draft.gain_us.high) == pytest.approx((270, 300), rel=0.01)
    assert draft.advice == (
        "Make LogMel once, before the loop or in the constructor of what uses it: train.py:22 makes it in each step."
    )
    assert draft.places == ("train.py:22",) and "1 time per step" in draft.evidence[0]
    assert advise(evidence)[0].slug == "object-made-anew"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("spec = audio.STFT(512, hop=HOP_LENGTH, center=True)(wave)", "STFT"),
        ("x = Shift(-1, scale=1 - 2 * N)(x)", "Shift"),
        ("return Filter(cfg.model.size, 'same', scale=2 * N_MELS)(x)", "Filter"),
        ("x = nn.Sequential(Blur(3, 1e-3,))(x)", "Blur"),
    ],
)
def test_numbers_constants_and_settings_do_not_change(tmp_path: Path, text: str, name: str) -> None:
    draft = object_made_anew(case(tmp_path, text))
    assert draft is not None and draft.title.startswith(f"{name} is made anew")


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ("batch = Batch(x, y)", None),
        ("filters = Filter(self.width)", None),
        ("mel = make_filters()", None),
        ("x = Scale(" + "1--" * 130 + "x)", None),
        ("mel = LogMel()", making(us=20)),
        ("optimizer = Adam(LR)", making("torch/optim/adam.py(37): __init__")),
        ("with Watch():", making("bottleneck/harness/window.py(399): __init__")),
    ],
    ids=["of data", "of a variable", "no class", "a row of signs", "cheap", "an optimizer", "our own"],
)
def test_what_may_change_and_what_is_cheap_is_left_alone(tmp_path: Path, text: str, body: list[Event] | None) -> None:
    assert object_made_anew(case(tmp_path, text, body)) is None
