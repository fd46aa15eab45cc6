"""Reasons: every code has words, its numbers are named by them, and what surrounds a reason leaves its code alone."""

import re
from pathlib import Path

import pytest

import bottleneck
from bottleneck.schema.reasons import PLACES, REASONS, Reason

SOURCES = {
    path: path.read_text()
    for path in Path(bottleneck.__file__).parent.rglob("*.py")
    if path.name != "reasons.py" or path.parent.name != "schema"
}


def test_a_reason_is_worded_with_its_numbers() -> None:
    waves = Reason("wave_quantisation", (328.0, 128.0, 128.0, 328 / 132, 132.0, 0.828, 3.0))
    assert waves.words == (
        "wave quantisation: 328 tiles of 128x128 fill 2.48 waves of 132 multiprocessors, 83 % of the slots of 3"
    )
    assert waves.number("fill") == 0.828
    assert Reason("ramp_up", (1.0, 132.0)).words == "ramp-up: 1 block for 132 multiprocessors"


def test_a_name_is_no_number_and_another_reason_has_none_of_it() -> None:
    assert Reason("no_formula", ("aten::odd",)).number("op") is None
    assert Reason("unexplained").number("fill") is None


def test_a_code_that_is_not_declared_is_refused() -> None:
    with pytest.raises(AssertionError, match="unheard_of"):
        Reason("unheard_of")


def test_what_surrounds_a_reason_changes_its_words_alone() -> None:
    inside = Reason("no_formula", ("aten::odd",), ("fused", "at_capture"))
    assert inside.code == "no_formula"
    assert inside.words == f"it fuses an unmodelled op: no formula for aten::odd ({PLACES['at_capture']})"


@pytest.mark.parametrize("code", REASONS)
def test_every_reason_can_be_worded_and_some_stage_gives_it(code: str) -> None:
    fields = re.findall(r"{(\w+)", REASONS[code])
    words = Reason(code, (2.0,) * len(fields)).words
    assert words and "{" not in words
    assert any(f'"{code}"' in source for source in SOURCES.values())
