from dataclasses import replace

from benchmarks.counts import Row, compare_counts, table
from bottleneck.schema.counters import Counts, Fingerprint, Site

ONE = Counts({"ops": 3, "allocations": 5}, Fingerprint(), sites=(Site("a.py", 1, "x", {"ops": 3}),))


def test_counts_that_agree_differ_in_nothing() -> None:
    assert compare_counts(ONE, ONE) == {}


def test_what_differs_or_is_unstable_is_named_and_stands_in_its_tier() -> None:
    other = replace(
        ONE, values={"ops": 4}, unstable={"allocations": "5..6: steps differ", "ops:aten::set_": "1..2"}, sites=()
    )
    differs = compare_counts(ONE, other)
    assert differs == {"allocations": "5..6: steps differ", "ops": "3 -> 4", "(lines)": "1 differ"}
    text = table([Row("mlp", "no gc", differs), Row("mlp", "again", {}), Row("lenet", "again", {}, "it failed")])
    assert "| mlp | no gc | ops 3 -> 4 | allocations 5..6: steps differ; (lines) 1 differ |" in text
    assert "| mlp | again | none | none |" in text and "| lenet | again | it failed | |" in text.replace("|  |", "| |")
