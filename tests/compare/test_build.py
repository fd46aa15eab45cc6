"""Rows of a comparison: what changed of work that both sides do, how partners are found, and what is said of them."""

from typing import Any

import pytest

from bottleneck.compare.build import compare
from bottleneck.compare.sides import Touched
from bottleneck.report.comparison import render
from bottleneck.schema.analysis import KernelSummary
from bottleneck.schema.comparison import ChangeRow
from bottleneck.schema.counters import Counts, Fingerprint
from bottleneck.schema.records import replace
from tests.compare.sides import side, stepped, work
from tests.report.samples import XEON


def _row(before: list[KernelSummary], after: list[KernelSummary], touched: Touched | None = None) -> ChangeRow:
    """The only row of these two."""
    [row] = compare(stepped(side(before), 0.01), stepped(side(after), 0.01), touched).rows
    return row


@pytest.mark.parametrize(
    ("before", "after", "kind", "count_us", "mean_us"),
    [
        ((10, 100.0), (20, 200.0), "more", 100.0, 0.0),
        ((10, 100.0), (5, 50.0), "fewer", -50.0, 0.0),
        ((10, 100.0), (10, 150.0), "slower", 0.0, 50.0),
        ((10, 100.0), (10, 50.0), "faster", 0.0, -50.0),
        ((10, 100.0), (20, 120.0), "more", 100.0, -80.0),
        ((10, 100.0), (11, 60.0), "faster", 10.0, -50.0),
        ((10, 100.0), (10, 101.0), "same", 0.0, 1.0),
        ((10, 100.0), (11, 101.0), "more", 10.0, -9.0),
    ],
)
def test_a_row_is_explained_by_its_count_or_by_its_mean_call(
    before: tuple[float, float], after: tuple[float, float], kind: str, count_us: float, mean_us: float
) -> None:
    row = _row([work("aten::mm", before[1], before[0])], [work("aten::mm", after[1], after[0])])
    assert (row.kind, row.count_us, row.mean_us) == (kind, pytest.approx(count_us), pytest.approx(mean_us))


def test_part_of_a_call_at_the_edge_of_a_step_is_no_change_of_the_count() -> None:
    assert _row([work("aten::mm", 100.0, 9.97)], [work("aten::mm", 100.5, 10.0)]).kind == "same"


@pytest.mark.parametrize(("half_width", "kind"), [(0.001, "slower"), (0.15, "same")])
def test_a_row_is_the_same_within_the_spread_of_the_steps(half_width: float, kind: str) -> None:
    before, after = (side([work("aten::mm", us)], device=XEON) for us in (100.0, 115.0))
    [row] = compare(stepped(before, half_width), stepped(after, half_width)).rows
    assert row.kind == kind


@pytest.mark.parametrize(
    ("before", "after", "matched_by"),
    [
        ({"module": "Net_0.Linear_0"}, {"module": "Net_0.Linear_0"}, "module and op"),
        ({"module": "Net_0.Linear_0"}, {"module": "Net_0.Linear_0", "shapes": "[[9]]"}, "module and op"),
        ({}, {}, "op and shape"),
        ({"module": "Net_0.Linear_0"}, {}, "op and shape"),
        ({}, {"shapes": "[[9]]"}, "op"),
        ({"name": "ampere_gemm"}, {"name": "Cijk_Ailk"}, "op and shape"),
        (
            {"op": None, "name": "triton_poi_fused_add_3"},
            {"op": None, "name": "triton_poi_fused_add_7"},
            "kernel family",
        ),
        ({"op": None, "name": "ampere_gemm"}, {"op": None, "name": "Cijk_Ailk"}, "kernel family"),
        ({"op": "aten::mm"}, {"op": "aten::addmm", "shapes": "[[9]]"}, "kernel family"),
        ({"op": "aten::cudnn_convolution"}, {"op": "aten::miopen_convolution"}, "op and shape"),
        ({"op": "aten::_flash_attention_forward"}, {"op": "aten::_efficient_attention_forward"}, "op and shape"),
        ({"op": "aten::add"}, {"op": "aten::add_"}, "op and shape"),
        ({"op": "AddmmBackward0"}, {"op": "AddmmBackward1"}, "op and shape"),
        (
            {"op": "Torch-Compiled Region: 0/0", "name": "k"},
            {"op": "Torch-Compiled Region: 0/1", "name": "k"},
            "kernel family",
        ),
    ],
)
def test_work_finds_its_partner_by_the_most_exact_key_that_both_know(
    before: dict[str, Any], after: dict[str, Any], matched_by: str
) -> None:
    sides = [work(**{"op": "aten::addmm", "us": us, **more}) for us, more in ((50.0, before), (70.0, after))]
    row = _row([sides[0]], [sides[1]])
    assert (row.matched_by, row.kind) == (matched_by, "slower")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"op": "aten::add", "family": "elementwise"}, {"op": "aten::mul", "family": "elementwise"}),
        ({"op": "aten::mm"}, {"op": "aten::_softmax", "family": "softmax"}),
        ({"op": None, "name": "k", "family": "scan"}, {"op": None, "name": "q", "family": "sort"}),
    ],
)
def test_work_of_other_kinds_is_new_and_gone(before: dict[str, Any], after: dict[str, Any]) -> None:
    rows = compare(side([work(us=50.0, **before)]), side([work(us=70.0, **after)])).rows
    assert {row.kind for row in rows} == {"new", "gone"}


def test_an_op_of_another_module_is_other_work() -> None:
    layer = [work("aten::mm", 500.0, module=f"Net_0.Layer_{at}.Linear_{at}") for at in range(2)]
    before = [*layer, work("aten::copy_", 9.0, module="Net_0.Head_0", shapes="[[3]]", family="copy")]
    after = [*layer, work("aten::copy_", 90.0, 24, module="Net_0.Rotary_0.Cache_0", shapes="[[7]]", family="copy")]
    rows = {(row.kind, row.module) for row in compare(side(before), side(after)).rows if row.kind != "same"}
    assert rows == {("gone", "Net_0.Head_0"), ("new", "Net_0.Rotary_0.Cache_0")}


def test_many_kernels_of_one_op_are_one_row_whatever_a_vendor_calls_them() -> None:
    before = [work("aten::addmm", 40.0, 4, name="ampere_gemm"), work("aten::addmm", 8.0, 4, name="splitK_reduce")]
    row = _row(before, [work("aten::addmm", 60.0, 4, name="Cijk_Ailk")])
    assert (row.before_us, row.after_us, row.name) == (48.0, 60.0, "aten::addmm")


def test_another_batch_is_matched_shape_by_shape_and_said() -> None:
    before = [work("aten::addmm", 10.0 * at, 2, shapes=f"[[32, {at}]]") for at in (1, 2, 3)]
    after = [work("aten::addmm", 40.0 * at, 2, shapes=f"[[128, {at}]]") for at in (1, 2, 3)]
    comparison = compare(side(before), side(after))
    assert [row.shapes for row in comparison.rows] == [f"[[32, {at}]] -> [[128, {at}]]" for at in (3, 2, 1)]
    [condition] = [each for each in comparison.conditions if each.what == "sizes"]
    assert (condition.before, condition.after, condition.weight) == ("32", "128", "colours")


def test_shapes_that_do_not_pair_are_pooled() -> None:
    before = [work("aten::addmm", 10.0, 2, shapes=f"[[32, {at}]]") for at in (1, 2, 3)]
    row = _row(before, [work("aten::addmm", 40.0, 6, shapes="[[128, 9]]")])
    assert (row.calls_before, row.before_us, row.after_us, row.kind) == (6.0, 30.0, 40.0, "slower")


def test_the_name_of_both_sides_is_reported_where_they_differ() -> None:
    row = _row([work("aten::cudnn_convolution", 5.0)], [work("aten::miopen_convolution", 9.0)])
    assert row.name == "aten::miopen_convolution (was aten::cudnn_convolution)"
    pooled = _row([work("aten::mm", 5.0), work("aten::bmm", 3.0)], [work("aten::addmm", 9.0, shapes="[[1]]")])
    assert pooled.name == "matmul: aten::addmm (was aten::mm, aten::bmm)"


def test_a_region_of_only_one_side_is_a_row_and_not_a_kernel_each() -> None:
    kernels = [work("CompiledFunction", 5.0, name=f"triton_{name}", family="triton") for name in ("add", "mul", "gelu")]
    rows = compare(side([work("aten::mul", 90.0, family="elementwise")]), side(kernels)).rows
    assert {(row.kind, row.name, row.after_us) for row in rows} == {
        ("gone", "aten::mul", 0.0),
        ("new", "CompiledFunction", 15.0),
    }


def test_regions_of_both_sides_are_held_together_by_their_kernels() -> None:
    before = [work("CompiledFunction", 5.0, name=f"triton_{name}_0", family="triton") for name in ("add", "mul")]
    after = [
        work("CompiledFunction", us, name=f"triton_{name}_4", family="triton")
        for name, us in (("add", 5.0), ("mul", 9.0))
    ]
    assert {(row.name, row.kind) for row in compare(side(before), side(after)).rows} == {
        ("triton_add_4 (was triton_add_0)", "same"),
        ("triton_mul_4 (was triton_mul_0)", "slower"),
    }


@pytest.mark.parametrize(
    ("touched", "expected"),
    [
        (None, None),
        ({"model/rope.py": frozenset({88})}, True),
        ({"model/rope.py": frozenset({87, 89})}, False),
        ({"other/slope.py": frozenset({88})}, False),
        ({}, False),
    ],
)
def test_a_line_is_marked_where_the_diff_touches_it(touched: Touched | None, expected: bool | None) -> None:
    rows = [work("aten::copy_", us, source="rope.py:88") for us in (5.0, 9.0)]
    assert _row(rows[:1], rows[1:], touched).is_touched is expected
    no_line = _row([work("aten::mm", 5.0)], [work("aten::mm", 9.0)], touched)
    assert no_line.source is None and no_line.is_touched is None


def test_time_of_the_framework_on_a_cpu_is_a_wait_and_no_row() -> None:
    busy, dispatch = work("aten::mm", 50.0), work("aten::linear", 20.0, bound="dispatch")
    made = side([busy], {"dispatch": 20.0})
    assert made.analysis is not None
    told = replace(made, saved=replace(made.analysis, kernels=(busy, dispatch)))
    comparison = compare(made, told)
    assert [row.name for row in comparison.rows] == ["aten::mm"]
    assert [bar.account for bar in comparison.idle] == ["overhead.dispatch"]


@pytest.mark.parametrize(("flops", "is_lower_bound"), [(1e9, False), (None, True)])
def test_flops_are_at_least_so_many_where_a_side_has_unmodelled_work(flops: float | None, is_lower_bound: bool) -> None:
    counts = Counts({"flops": 10, "ops": 2}, Fingerprint())
    rows = [work("aten::mm", 50.0, flops=1e9), work("lib::op", 5.0, flops=flops), work("c", 5.0, family="copy")]
    both = compare(side(rows, counts=counts), side(rows[:1], counts=counts))
    assert {each.name: each.is_lower_bound for each in both.counters} == {"flops": is_lower_bound, "ops": False}
    assert ("FLOPs (at least)" in render(both, "terminal")) == is_lower_bound
