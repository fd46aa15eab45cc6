"""Words for people: shapes, counts, bounds."""

import pytest

from bottleneck.report.text import bound_word, describe_calls, describe_shapes, with_attribute_paths
from bottleneck.schema.analysis import LiveAllocations, MemoryUse
from bottleneck.schema.records import replace
from tests.report.samples import SAMPLES, kernel


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ("[[512], [141, 512], [512, 512], [], []]", "512, 141x512, 512x512"),
        ("[\n  [\n    2,\n    3\n  ],\n  []\n]", "2x3"),
        ("[[[4, 4], [4, 4]], [1]]", "2 tensors, 1"),
        ("[[1], [2], [3], [4], [5]]", "1, 2, 3, 4, …"),
        ("[[16, null], [8]]", "16x?, 8"),
        ("[]", ""),
        ("[\n  [\n    2,\n…", "[[2,…"),
        ("{}", "{}"),
        ("not JSON", "notJSON"),
    ],
)
def test_shapes_read_as_people_write_them(shapes: str, words: str) -> None:
    assert describe_shapes(shapes) == words


def test_modules_go_by_their_attribute_paths_where_these_are_known() -> None:
    analysis = next(iter(SAMPLES.values()))
    paths = "Net_0.Layer_0.Linear_3", "Net_0.Layer_1", None
    rows = tuple(kernel("gemm", 1.0, 9.0, module=path) for path in paths)
    idle = tuple(replace(cause, module="Net_0.Layer_0") for cause in analysis.idle[:1])
    live = LiveAllocations("aten::mm", "Net_0.Layer_0", None, "activations", 8, 1, None)
    use = MemoryUse(None, (), 0.0, 8, None, 0, (), (live,))
    known = {"Linear_3": "encoder.layer.0.query", "Layer_0": "encoder.layer.0"}
    named = with_attribute_paths(replace(analysis, kernels=rows, idle=idle, memory=use, module_paths=known))
    assert [row.module for row in named.kernels] == ["encoder.layer.0.query", "Net_0.Layer_1", None]
    assert [row.module for row in named.idle] == ["encoder.layer.0"]
    assert named.memory is not None and named.memory.allocations[0].module == "encoder.layer.0"
    assert with_attribute_paths(named) == named


def test_nesting_without_end_is_only_text() -> None:
    assert describe_shapes("[" * 100_000) == "[" * 60


@pytest.mark.parametrize(
    ("calls", "words"),
    [(1.0, "1 call"), (0.9999999, "1 call"), (24.00000001, "24 calls"), (2.5, "2.5 calls"), (0.01, "<0.1 calls")],
)
def test_calls_have_a_decimal_only_where_they_need_one(calls: float, words: str) -> None:
    assert describe_calls(calls) == words


@pytest.mark.parametrize(
    ("bound", "confidence", "word"),
    [
        ("compute", "high", "compute"),
        ("memory", "medium", "memory?"),
        ("overhead", "low", "overhead??"),
        ("unknown", "low", "-"),
        ("dispatch", "low", "calls ops"),
        ("later", "high", "later"),
    ],
)
def test_a_bound_is_one_word_with_the_mark_of_its_confidence(bound: str, confidence: str, word: str) -> None:
    assert bound_word(kernel("a", 1, 1, bound=bound, confidence=confidence)) == word
