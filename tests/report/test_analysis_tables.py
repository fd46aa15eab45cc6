"""The table of collectives: figures where the trace has them, the reason where it has not."""

from dataclasses import replace

from bottleneck.report.analysis_tables import collectives
from tests.report.samples import SAMPLES

ANALYSIS = SAMPLES["multi_rank"]


def test_a_collective_shows_its_pace_and_its_waiting() -> None:
    table = collectives(ANALYSIS, 10)
    assert table is not None
    assert table.rows[0].cells == ("all_reduce", "58.00", "55.50", "46.00", "12.00", "231 GB/s")
    assert table.rows[0].details == ("10 calls", "500 MB per rank", "bf16", "4 ranks")


def test_what_the_trace_does_not_tell_is_a_dash_with_the_reason() -> None:
    table = collectives(ANALYSIS, 10)
    assert table is not None
    assert table.rows[1].cells[3:] == ("-", "-", "-")
    assert table.rows[1].details[-1] == "no message size in the trace"


def test_hidden_kinds_are_counted_and_no_collectives_make_no_table() -> None:
    table = collectives(ANALYSIS, 1)
    assert table is not None and table.title == "Collectives (1 of 2)"
    assert table.notes[-1].startswith("1 more")
    assert collectives(replace(ANALYSIS, collectives=()), 10) is None
