"""A count in a text for people agrees with its noun: '1 step', never '1 steps'."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import bottleneck
from bottleneck.units import counted

PACKAGE = Path(bottleneck.__file__).parent
# What follows a number in our texts. Those that are verbs or units of a ratio ('2.5 times') are left out.
NOUNS = frozenset(
    """
    pairs ranks steps threads processors kernels ops launches copies calls counters rows files traces
    recordings findings caveats windows samples events days parameters tensors values workloads trials
    shapes modules processes rounds graphs replays streams collectives blocks tiles pieces iterations
    batches workers cores syncs allocations multiprocessors devices others
    """.split()  # noqa: SIM905 - a list of so many would be a page
)
ADJECTIVES = frozenset(["more", "other", "fresh", "matrix", "distinct"])
# Texts that are only reached with two or more, by the start of what follows the number, and why.
ALWAYS_SEVERAL = {
    "steps are enough for the full measurement": "30 or more",
    "devices": "a caveat about several",
    "ranks, and one at a time": "an error about several",
    "traces together": "a check-up of several",
    "traces": "a check-up of several",
    "windows, recorded again": "of several, one is kept",
    "ranks": "said of two or more",
    "traces in one file": "said of two or more",
    "others": "of one its own name is said",
    "modules": "said of two or more",
    "findings are": "of one the other words stand beside it",
    "pairs of fresh processes": "a constant",
    "kernels": "a family, or the caveats of link",
    "tensors became": "the two differ",
    "workers": "a constant of the change",
    "processors": "a fact that is kept as a key",
    "counters cannot": "a tier",
    "shapes take": "several",
    "steps, too few": "a constant",
    "multiprocessors": "of a device, which has many",
    "values of": "a constant",
    "values; it": "a constant",
    "pairs of": "a constant",
    "calls": "a verb: a line that calls an op",
    "ranks were given": "of several, some are missing",
    "ranks, and the sampler": "said of two or more",
    "ranks: its": "said of two or more",
    "workers begin": "said of two or more",
    "multiprocessors take": "of a device, which has many",
    "multiprocessors, the": "of a device, which has many",
    "samples per second": "a rate, which is a number with a fraction",
    "events, and the budget": "many, where there are too many",
}


def _texts() -> Iterator[tuple[str, str]]:
    """The place of each text that follows a value in an f-string, and its beginning."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.JoinedStr):
                continue
            for value, after in zip(node.values, node.values[1:], strict=False):
                if isinstance(value, ast.FormattedValue) and isinstance(after, ast.Constant) and _is_plain(value):
                    yield f"{path.relative_to(PACKAGE)}:{node.lineno}", str(after.value)


def _is_plain(value: ast.FormattedValue) -> bool:
    """True but for a number with decimals, which takes the plural: '1.0 processors'."""
    form = value.format_spec
    return form is None or "." not in ast.unparse(form) or ".0f" in ast.unparse(form)


def _noun(text: str) -> str:
    words = text.split(" ")[1:] if text.startswith(" ") else []
    while words and words[0] in ADJECTIVES:
        words = words[1:]
    return words[0].rstrip(",.:;)") if words else ""


def _is(text: str, known: str) -> bool:
    return text.rstrip(" ,:") == known or (" " in known and text.startswith(known))


def test_counts_go_through_the_function_that_knows_the_singular() -> None:
    wrong = [
        f"{place}: {text}"
        for place, text in _texts()
        if _noun(text) in NOUNS and not any(_is(text.strip(), known) for known in ALWAYS_SEVERAL)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("number", "words", "shown"),
    [
        (1, ("step",), "1 step"),
        (0, ("step",), "0 steps"),
        (2, ("copy", "copies"), "2 copies"),
        (1200, ("op",), "1,200 ops"),
        ("0.5", ("op",), "0.5 ops"),
    ],
)
def test_a_count_agrees_with_its_noun(number: int, words: tuple[str, ...], shown: str) -> None:
    assert counted(number, *words) == shown
