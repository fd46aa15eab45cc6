"""The tables of an analysis: they re-add as printed, fold what is alike, and are absent where nothing is known."""

from decimal import Decimal
from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck.report import analysis_tables as places
from bottleneck.report.analysis_tables import (
    collectives,
    idle,
    kernels,
    mean_depths,
    phases,
    queue_caption,
    queue_sparkline,
    user_ranges,
    varying_together,
)
from bottleneck.report.document import TableRow, TableSection
from bottleneck.schema.analysis import Fold, IdleCause, KernelSummary, Phase, PhaseName, Queue
from bottleneck.schema.records import replace
from tests.report.samples import SAMPLES, kernel
from tests.report.test_text import printed

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


PLACES_ANALYSIS = SAMPLES["gpu_overhead"]
TIMES = st.lists(st.tuples(st.floats(0, 5e3), st.floats(0, 5e3)), min_size=2, max_size=12)


def table_of(times: list[tuple[float, float]], top: int = 4) -> TableSection | None:
    folds = tuple(Fold(f"a.py:{at}", 1.0, us, us / 1e4, {}, idle_us) for at, (us, idle_us) in enumerate(times))
    return places.lines(replace(PLACES_ANALYSIS, lines=folds), top)


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
    assert places.modules(replace(PLACES_ANALYSIS, modules=(), module_classes=()), 4) is None


CURVE = ((10.0, 0.0), (20.0, 4.0), (25.0, 2.0), (30.0, 2.0))
QUEUE = Queue(0.9, 1.0, 4, CURVE)


def test_depth_is_the_mean_over_each_part_of_the_time() -> None:
    assert mean_depths(CURVE, 2) == pytest.approx((0.0, 3.0))
    assert mean_depths(CURVE, 4) == pytest.approx((0.0, 0.0, 4.0, 2.0))


def test_an_empty_queue_while_the_device_is_idle_says_that_the_host_does_not_keep_up() -> None:
    assert "90.0 % of the device's idle time: the host does not keep up" in queue_caption(QUEUE)
    assert "keep up" not in queue_caption(replace(QUEUE, empty_idle_share=0.3))
    assert "idle" not in queue_caption(replace(QUEUE, empty_idle_share=None))


def test_strip_needs_a_queue_with_some_length() -> None:
    analysis = SAMPLES["gpu_overhead"]
    strip = queue_sparkline(analysis)
    assert strip is not None and max(strip.values) == pytest.approx(14.0)
    assert queue_sparkline(replace(analysis, queue=None)) is None
    assert queue_sparkline(replace(analysis, queue=replace(QUEUE, curve=CURVE[:1]))) is None


ROW = kernel("k", 30.0, 100.0, calls=0.25, shapes="[[8]]", bound="memory", memory_us=15.0, explained=0.5, flops=1e3)
LONGER = replace(ROW, us=90.0, share=0.9, shapes="[[24]]", memory_us=72.0, explained=0.8, flops=3e3)


def test_rows_that_differ_only_in_shapes_of_some_steps_are_added_up() -> None:
    ((both, shapes),) = varying_together([ROW, LONGER])
    assert shapes == 2
    assert (both.us, both.calls, both.flops, both.memory_us) == (120.0, 0.5, 4e3, 87.0)
    assert both.shapes == "[[24]]"
    assert both.explained == pytest.approx(87.0 / 120.0)


def test_what_one_row_does_not_know_is_not_known_of_the_sum() -> None:
    ((both, _),) = varying_together([ROW, replace(LONGER, flops=None, explained=None)])
    assert (both.flops, both.explained) == (None, None)


def modules_of(*folds: Fold) -> TableSection:
    table = places.modules(replace(PLACES_ANALYSIS, module_classes=folds), 4)
    assert table is not None
    return table


def module(name: str, us: float, idle_us: float = 0.0) -> Fold:
    return Fold(name, 1.0, us, us / PLACES_ANALYSIS.steps.wall_us, {"compute": 1.0}, idle_us)


LAYERS = ("Net", 1.0), ("Net > Layer x 24 > Attention > Linear x 4", 400.0), ("Net > Layer x 24 > Norm", 90.0)


def test_modules_are_told_by_class_with_what_is_inside_the_largest() -> None:
    table = modules_of(*(module(*each) for each in LAYERS), module("Net > Head", 9.0))
    assert table.title == "By module, mostly inside Net"
    assert [(row.role, row.cells[0]) for row in table.rows] == [
        ("plain", "Layer x 24"),
        ("part", "Attention > Linear x 4"),
        ("part", "Norm"),
        ("plain", "Head"),
        ("plain", "Net itself"),
        ("total", "all of these"),
    ]


def test_of_two_models_neither_is_what_the_others_are_inside_of() -> None:
    table = modules_of(module("Actor > Linear x 3", 50.0), module("Critic > Linear x 3", 50.0))
    assert (table.title, table.rows[0].cells[0]) == ("By module", "Actor > Linear x 3")


@given(st.lists(st.tuples(st.floats(0.01, 1e4), st.floats(0, 1e4)), min_size=2, max_size=40), st.integers(1, 8))
def test_parts_of_a_module_add_up_to_it_and_modules_to_their_total(
    amounts: list[tuple[float, float]], kinds: int
) -> None:
    folds = [module(f"Net > Block{at % kinds} > Kind{at}", *both) for at, both in enumerate(amounts)]
    table = modules_of(*folds)
    *rows, total = table.rows
    heads = [row for row in rows if row.role != "part"]
    assert sum(printed(row.cells[3]) for row in heads) == printed(total.cells[3])
    for at, head in enumerate(rows):
        parts = list(takewhile(lambda row: row.role == "part", rows[at + 1 :]))
        if head.role == "plain" and parts:
            assert sum(printed(row.cells[3]) for row in parts) == printed(head.cells[3])


def test_phases_show_whole_percentages_that_never_read_as_nothing_or_all() -> None:
    table = phases(SAMPLES["gpu_overhead"])
    assert table is not None
    assert [column.title for column in table.columns][3:] == ["compute", "memory", "overhead", "unknown"]
    assert table.rows[0].cells == ("data", "5.12", "42.0 %", "", "", "100 %", "")
    assert table.rows[2].cells[-1] == "<1 %"
    times = [Decimal(row.cells[1]) for row in table.rows]
    assert sum(times[:-1]) == times[-1]
    assert phases(SAMPLES["multi_rank"]) is None


def test_ranges_beyond_the_first_are_counted() -> None:
    table = user_ranges(SAMPLES["gpu_overhead"], 1)
    assert table is not None
    assert table.rows[0].cells[:5] == ("train_step", "1", "512", "7,056", "57.9 %")
    assert table.notes[0].endswith("1 more take less time.")
    whole = user_ranges(SAMPLES["gpu_overhead"], 5)
    assert whole is not None and whole.rows[1].cells[-3:] == ("<1 %", ">99 %", "")
    assert user_ranges(SAMPLES["multi_rank"], 5) is None


def row_of(row: KernelSummary) -> TableRow:
    table = kernels(replace(SAMPLES["gpu_overhead"], kernels=(row,)), 5)
    assert table is not None
    return table.rows[0]


def test_a_kernel_leads_with_its_op_and_shapes_and_its_own_name_comes_second() -> None:
    row = row_of(kernel("void gemm<1>()", 30.0, 100.0, op="aten::mm", shapes="[[8, 4], [4, 2]]", flops=6e7))
    assert (row.cells[0], row.details[0]) == ("mm 8x4, 4x2", "void gemm<1>()")
    assert row.cells[3] == "2,000"


@pytest.mark.parametrize("op", [None, "Torch-Compiled Region: 0/0"])
def test_a_kernel_without_an_op_of_its_own_leads_with_its_name(op: str | None) -> None:
    row = row_of(kernel("triton_poi", 30.0, 100.0, op=op))
    assert row.cells[0] == "triton_poi"
    assert row.details[0] == (op or "1 call")


def test_rates_are_shown_where_the_device_is_unknown() -> None:
    row = row_of(kernel("k", 100.0, 1e3, bytes_low=1e8, flops=1e6))
    assert row.cells[3:] == ("10.0", "1,000", "-", "-")


@pytest.mark.parametrize("change", [{"calls": 1.0}, {"bound": "compute"}, {"source": "a.py:1"}, {"dtype": "fp32"}])
def test_rows_of_every_step_and_rows_that_differ_otherwise_stay_apart(change: dict[str, object]) -> None:
    rows = [ROW, replace(LONGER, **change)]  # type: ignore[arg-type]
    assert [kernel for kernel, _ in varying_together(rows)] == rows


WAITS_ANALYSIS = SAMPLES["gpu_overhead"]


def dispatch(us: float, detail: str | None, module: str | None = None, source: str | None = "a.py:1") -> IdleCause:
    return IdleCause("dispatch", us, us / 1e4, source, 2.0, detail, module)


def waits_table_of(*causes: IdleCause) -> TableSection:
    table = idle(replace(WAITS_ANALYSIS, idle=causes), 5)
    assert table is not None
    return table


def test_waits_of_one_cause_at_one_line_are_one_row() -> None:
    table = waits_table_of(
        dispatch(50, "aten::mm"), dispatch(30, "aten::add"), dispatch(7, "aten::mm", source="b.py:2")
    )
    assert [(row.cells[1], row.cells[3]) for row in table.rows[:-1]] == [("a.py:1", "80.00"), ("b.py:2", "7.00")]
    assert table.rows[0].details == ("aten::mm 50.00, aten::add 30.00",)


def test_a_row_names_its_three_largest_details_and_counts_the_others() -> None:
    names = ("aten::mm", "aten::add", "aten::mul", "aten::t", "aten::relu")
    (row, _) = waits_table_of(*(dispatch(50 - at, name) for at, name in enumerate(names))).rows
    assert row.details == ("aten::mm 50.0, aten::add 49.0, aten::mul 48.0 and 2 more",)


def test_one_detail_needs_no_time_and_a_module_is_named_where_it_is_the_only_one() -> None:
    (one, _) = waits_table_of(dispatch(50, "aten::mm", "Net.fc"), dispatch(20, "aten::mm", "Net.fc")).rows
    assert one.details == ("aten::mm", "Net.fc")
    (two, _) = waits_table_of(dispatch(50, "aten::mm", "Net.fc"), dispatch(20, "aten::mm", "Net.head")).rows
    assert two.details == ("aten::mm",)


def test_a_wait_that_nothing_is_known_of_has_no_details() -> None:
    (row, _) = waits_table_of(dispatch(50, None)).rows
    assert row.details == ()


@pytest.mark.parametrize("name", ["backward", "forward"])
def test_lines_say_where_the_backward_pass_stands(name: PhaseName) -> None:
    folds = tuple(Fold(f"train.py:{line}", 1.0, 10.0, 0.1, {"memory": 1.0}) for line in (1, 2))
    section = places.lines(replace(PLACES_ANALYSIS, lines=folds, phases=(Phase(name, 20.0, 0.2, {}),)), 5)
    assert section is not None and bool(section.notes) == (name == "backward")


def test_the_text_of_a_line_stands_beside_it_and_beside_its_backward_work() -> None:
    names = ("train.py:1", "backward of train.py:1", "step() (train.py:1)", "train.py:2")
    folds = tuple(Fold(name, 1.0, 10.0, 0.1, {"memory": 1.0}) for name in names)
    told = replace(PLACES_ANALYSIS, lines=folds, source_texts={"train.py:1": "loss.backward()"})
    section = places.lines(told, 5)
    assert section is not None
    assert [row.details for row in section.rows] == [("loss.backward()",), ("loss.backward()",), (), (), ()]


def test_the_text_of_a_line_stands_beside_a_wait_at_it() -> None:
    told = replace(
        WAITS_ANALYSIS,
        idle=(dispatch(50, "aten::mm"), dispatch(30, None, source="b.py:2")),
        source_texts={"a.py:1": "x @ y"},
    )
    table = idle(told, 5)
    assert table is not None and [row.details for row in table.rows] == [("aten::mm", "x @ y"), (), ()]


def test_a_kernel_shows_its_library_and_one_without_a_dash() -> None:
    rows = (kernel("gemm", 60.0, 100.0, library="cuBLAS"), kernel("mine", 40.0, 100.0, library_reason="no name"))
    table = kernels(replace(PLACES_ANALYSIS, kernels=rows), 10)
    assert table is not None and table.columns[-1].title == "library"
    assert [row.cells[-1] for row in table.rows] == ["cuBLAS", "-", ""]
    assert {len(row.cells) for row in table.rows} == {len(table.columns)}
