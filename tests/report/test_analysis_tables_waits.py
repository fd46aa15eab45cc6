"""The table of idle time: one row per cause and line, with what the time there went to."""

from dataclasses import replace

from bottleneck.report.analysis_tables import idle
from bottleneck.report.document import TableSection
from bottleneck.schema.analysis import IdleCause
from tests.report.samples import SAMPLES

ANALYSIS = SAMPLES["gpu_overhead"]


def dispatch(us: float, detail: str | None, module: str | None = None, source: str | None = "a.py:1") -> IdleCause:
    return IdleCause("dispatch", us, us / 1e4, source, 2.0, detail, module)


def table_of(*causes: IdleCause) -> TableSection:
    table = idle(replace(ANALYSIS, idle=causes), 5)
    assert table is not None
    return table


def test_waits_of_one_cause_at_one_line_are_one_row() -> None:
    table = table_of(dispatch(50, "aten::mm"), dispatch(30, "aten::add"), dispatch(7, "aten::mm", source="b.py:2"))
    assert [(row.cells[1], row.cells[3]) for row in table.rows[:-1]] == [("a.py:1", "80.00"), ("b.py:2", "7.00")]
    assert table.rows[0].details == ("aten::mm 50.00, aten::add 30.00",)


def test_a_row_names_its_three_largest_details_and_counts_the_others() -> None:
    names = ("aten::mm", "aten::add", "aten::mul", "aten::t", "aten::relu")
    (row, _) = table_of(*(dispatch(50 - at, name) for at, name in enumerate(names))).rows
    assert row.details == ("aten::mm 50.0, aten::add 49.0, aten::mul 48.0 and 2 more",)


def test_one_detail_needs_no_time_and_a_module_is_named_where_it_is_the_only_one() -> None:
    (one, _) = table_of(dispatch(50, "aten::mm", "Net.fc"), dispatch(20, "aten::mm", "Net.fc")).rows
    assert one.details == ("aten::mm", "Net.fc")
    (two, _) = table_of(dispatch(50, "aten::mm", "Net.fc"), dispatch(20, "aten::mm", "Net.head")).rows
    assert two.details == ("aten::mm",)


def test_a_wait_that_nothing_is_known_of_has_no_details() -> None:
    (row, _) = table_of(dispatch(50, None)).rows
    assert row.details == ()
