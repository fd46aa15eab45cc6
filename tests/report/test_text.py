"""Text from traces is shown, never obeyed."""

import unicodedata

import pytest

from bottleneck.report.text import clean
from tests.report.samples import HOSTILE_NAMES


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain <4, x>", "plain <4, x>"),
        ("\x1b[31m", "\\x1b[31m"),
        ("a\nb\tc\rd\x00", "a\\x0ab\\x09c\\x0dd\\x00"),
        ("\x7f\x9b2J", "\\x7f\\x9b2J"),
        ("\u202egnp\u2069", "\\u202egnp\\u2069"),
        ("a\u200bb\ufeff\u2060\u00ad", "a\\u200bb\\ufeff\\u2060\\xad"),
        ("\u2028\u2029\x85", "\\u2028\\u2029\\x85"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
        ("62\u00a0%", "62 %"),
        ("核心 ü 🧮", "核心 ü 🧮"),
    ],
)
def test_what_cannot_be_printed_becomes_a_visible_escape(text: str, shown: str) -> None:
    assert clean(text) == shown


@pytest.mark.parametrize("text", HOSTILE_NAMES, ids=ascii)
def test_nothing_unprintable_is_left(text: str) -> None:
    shown = clean(text, 5000)
    assert shown.isprintable()
    assert not {unicodedata.category(character) for character in shown} & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def test_text_is_cut_at_the_limit_and_says_so() -> None:
    assert clean("x" * 200) == "x" * 200
    assert clean("x" * 201) == "x" * 199 + "…"
    assert len(clean("\x1b" * 300, 50)) == 50
