"""`bottleneck watch` names the faults of the program of `benchmarks.watched`, with their steps."""

import pytest

from benchmarks.watched.__main__ import PLANTED, matching, row, watch

pytest.importorskip("torch")

# A machine that others keep busy has no stretch without processors: that fault is the benchmark's alone.
HERE = [name for name in PLANTED if name != "contention"]


@pytest.mark.slow
def test_planted_faults_are_named_with_their_steps() -> None:
    causes = watch(HERE)
    assert [name for name in HERE if matching(name, causes) is None] == [], causes


def test_a_row_says_what_was_named_and_what_was_not() -> None:
    causes = [
        {"kind": "gc", "steps": [400], "headline": "step 400"},
        {"kind": "other-data", "steps": [800, 900], "headline": "two passes"},
    ]
    assert row(("gc", "validation"), causes) == "| gc, validation | gc (400) | validation | two passes |"
