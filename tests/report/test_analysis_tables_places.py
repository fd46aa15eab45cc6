"""Tables of lines and modules: they re-add both ways, and appear only where there is something to compare."""

from dataclasses import replace
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from bottleneck.report import analysis_tables as places
from bottleneck.report.document import TableSection
from bottleneck.schema.analysis import Fold
from tests.report.samples import SAMPLES
from tests.report.test_text_numbers import printed

ANALYSIS = SAMPLES["gpu_overhead"]
TIMES = st.lists(st.tuples(st.floats(0, 5e3), st.floats(0, 5e3)), min_size=2, max_size=12)


def table_of(times: list[tuple[float, float]], top: int = 4) -> TableSection | None:
    folds = tuple(Fold(f"a.py:{at}", 1.0, us, us / 1e4, {}, idle_us) for at, (us, idle_us) in enumerate(times))
    return places.lines(replace(ANALYSIS, lines=folds), top)


@given(TIMES)
def test_work_and_waiting_re_add_to_both_and_lines_to_all(times: list[tuple[float, float]]) -> None:
    table = table_of(times)
    if table is None:
        return
    numbers = [[printed(cell) for cell in row.cells[1:]] for row in table.rows]
    *parts, total = numbers
    assert [sum(column, Decimal(0)) for column in zip(*parts, strict=True)] == total
    assert all(work + waiting == both for work, waiting, both, _ in numbers)


def test_lines_with_most_time_come_first_and_the_others_in_one_row() -> None:
    table = table_of([(1.0, 2.0), (50.0, 0.0), (0.0, 90.0), (3.0, 3.0), (7.0, 0.0), (1.0, 1.0), (0.5, 0.5)], 3)
    assert table is not None
    assert [row.cells[0] for row in table.rows] == ["a.py:2", "a.py:1", "a.py:4", "4 more", "all of these"]


def test_one_place_alone_needs_no_table() -> None:
    assert table_of([(1.0, 2.0)]) is None
    assert table_of([(1.0, 2.0), (0.0, 0.0)]) is None
    assert places.modules(replace(ANALYSIS, modules=()), 4) is None
