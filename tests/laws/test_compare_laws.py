"""Laws of comparisons: parts add up to the change, a side is as itself, and order tells nothing."""

import math

from hypothesis import example, given
from hypothesis import strategies as st

from bottleneck.compare.build import compare
from bottleneck.compare.sides import ComparedSide
from bottleneck.schema.analysis import KernelSummary
from bottleneck.schema.comparison import Comparison
from bottleneck.schema.records import replace
from tests.compare.sides import side, work

_OPS = ("aten::addmm", "aten::copy_", "aten::add_", "aten::cudnn_convolution", "CompiledFunction", None)
_MODULES = (
    None,
    "Net_0",
    "Net_0.Linear_0",
    "Net_0.Linear_1",
    "Net_0.Block_1.Linear_2",
    "DistributedDataParallel_0.Net_0",
)
_SHAPES = (None, "[[2, 3]]", "[[4, 3]]", "[[2, 3], []]", "[[8]]")
_FAMILIES = ("matmul", "copy", "elementwise", "other")
_times = st.floats(0.015625, 1e5, width=32)
_works = st.builds(
    work,
    st.sampled_from(_OPS),
    _times,
    calls=st.integers(0, 50).map(float),
    name=st.sampled_from(("k_1", "k_2", "gemm")),
    module=st.sampled_from(_MODULES),
    shapes=st.sampled_from(_SHAPES),
    family=st.sampled_from(_FAMILIES),
    source=st.sampled_from((None, "train.py:3", "net.py:7")),
    bound=st.sampled_from(("compute", "memory", "communication", "unknown", "dispatch")),
)
_waits = st.dictionaries(st.sampled_from(("python", "sync", "input", "unknown")), _times, max_size=3)


def _side(kernels: list[KernelSummary], waits: dict[str, float]) -> ComparedSide:
    """The ledger has time of the framework for the rows that are such time."""
    busy = [row for row in kernels if row.bound != "dispatch"]
    dispatch = math.fsum(row.us for row in kernels if row.bound == "dispatch")
    made = side(busy, {**waits, **({"dispatch": dispatch} if dispatch else {})})
    assert made.analysis is not None
    return replace(made, saved=replace(made.analysis, kernels=tuple(kernels)))


_sides = st.builds(_side, st.lists(_works, max_size=12), _waits)


def _assert_sums(comparison: Comparison) -> None:
    change_us = comparison.change_us
    assert change_us is not None
    size = max(comparison.before.step_us or 0.0, comparison.after.step_us or 0.0)
    bars = math.fsum(bar.change_us for bar in comparison.bars)
    rows = math.fsum([*(row.change_us for row in comparison.rows), *(bar.change_us for bar in comparison.idle)])
    modules = math.fsum([*(row.change_us for row in comparison.modules), *(bar.change_us for bar in comparison.idle)])
    assert all(math.isclose(total, change_us, abs_tol=1e-9 * size) for total in (bars, rows, modules))


@given(_sides, _sides)
def test_bars_rows_and_modules_each_add_up_to_the_change_of_the_step(before: ComparedSide, after: ComparedSide) -> None:
    comparison = compare(before, after)
    _assert_sums(comparison)
    for row in (*comparison.rows, *comparison.modules):
        scale = max(row.before_us, row.after_us, abs(row.count_us))
        assert math.isclose(row.count_us + row.mean_us, row.change_us, abs_tol=1e-9 * scale)


@given(_sides, _sides)
def test_rows_hold_the_work_of_each_side_once(before: ComparedSide, after: ComparedSide) -> None:
    comparison = compare(before, after)
    for one, us, calls in ((before, "before_us", "calls_before"), (after, "after_us", "calls_after")):
        assert one.analysis is not None
        busy = [row for row in one.analysis.kernels if row.bound != "dispatch"]
        held = math.fsum(getattr(row, us) for row in comparison.rows)
        assert math.isclose(held, math.fsum(row.us for row in busy), rel_tol=1e-9)
        assert math.fsum(getattr(row, calls) for row in comparison.rows) == math.fsum(row.calls for row in busy)


@given(_sides)
def test_a_side_is_the_same_as_itself(one: ComparedSide) -> None:
    comparison = compare(one, one)
    assert comparison.change_us == 0
    assert {row.kind for row in (*comparison.rows, *comparison.modules)} <= {"same"}
    assert not any(each.change_us for each in (*comparison.rows, *comparison.bars, *comparison.modules))
    assert comparison.conditions == ()


# Found by chance: modules went by the paths of the side that was before, so that parents differed with the order.
_ALIKE = [work("aten::addmm", 1.0, calls=0.0, name="k_1", family="matmul", shapes=None, module=None)] * 7


@example(
    _side(
        [
            *_ALIKE,
            work("aten::addmm", 1.0, calls=0.0, name="k_1", module="Net_0.Linear_0", shapes=None, family="matmul"),
            work("aten::copy_", 6.0, calls=0.0, name="k_1", module="Net_0.Linear_1", shapes=None, family="matmul"),
        ],
        {},
    ),
    _side(
        [
            *_ALIKE,
            work("aten::addmm", 5.0, calls=0.0, name="k_1", module="Net_0", shapes=None, family="matmul"),
            work(
                "aten::copy_", 1.0, calls=0.0, name="k_1", module="Net_0.Block_1.Linear_2", shapes=None, family="matmul"
            ),
            work("aten::add_", 1.0, calls=0.0, name="k_1", module="Net_0.Linear_1", shapes=None, family="matmul"),
        ],
        {},
    ),
)
@given(_sides, _sides)
def test_turning_the_sides_around_turns_every_bar_around(before: ComparedSide, after: ComparedSide) -> None:
    there, back = compare(before, after), compare(after, before)
    assert {bar.account: bar.change_us for bar in there.bars} == {bar.account: -bar.change_us for bar in back.bars}
    assert there.change_us == -(back.change_us or 0.0)
    assert sorted(abs(row.change_us) for row in there.rows) == sorted(abs(row.change_us) for row in back.rows)


@given(_sides, _sides, st.randoms(use_true_random=False))
def test_the_order_of_rows_and_accounts_tells_nothing(
    before: ComparedSide, after: ComparedSide, random: "st.Random"
) -> None:
    shuffled = [_shuffled(one, random) for one in (before, after)]
    assert compare(*shuffled) == compare(before, after)


def _shuffled(one: ComparedSide, random: "st.Random") -> ComparedSide:
    assert one.analysis is not None
    kernels, ledger = list(one.analysis.kernels), list(one.analysis.ledger)
    random.shuffle(kernels)
    random.shuffle(ledger)
    return replace(one, saved=replace(one.analysis, kernels=tuple(kernels), ledger=tuple(ledger)))


@given(_sides, _times, st.integers(1, 9))
def test_a_row_added_is_new_with_its_whole_time(one: ComparedSide, us: float, calls: int) -> None:
    assert one.analysis is not None
    added = work("aten::roll", us, float(calls), module="Net_0.Rotary_0", shapes="[[77]]", family="elementwise")
    more = _side([*one.analysis.kernels, added], _waits_of(one))
    [row] = [row for row in compare(one, more).rows if row.name == "aten::roll"]
    assert row.kind == "new" and row.module == "Net_0.Rotary_0" and row.matched_by == "nothing"
    assert row.after_us == row.change_us == row.count_us == us and row.calls_after == calls
    [lost] = [row for row in compare(more, one).rows if row.name == "aten::roll"]
    assert lost.kind == "gone" and lost.count_us == -us


def _waits_of(one: ComparedSide) -> dict[str, float]:
    assert one.analysis is not None
    waits = [entry for entry in one.analysis.ledger if entry.account.startswith("overhead.")]
    return {entry.account[9:]: entry.us for entry in waits if entry.account != "overhead.dispatch"}


@given(_sides, st.floats(0.5, 4))
def test_a_step_that_is_slower_by_a_factor_changes_every_row_by_its_mean(one: ComparedSide, factor: float) -> None:
    assert one.analysis is not None
    slower = _side(
        [replace(row, us=row.us * factor) for row in one.analysis.kernels],
        {cause: us * factor for cause, us in _waits_of(one).items()},
    )
    for row in compare(one, slower).rows:
        assert (
            row.calls_before == row.calls_after and row.kind in {"same", "slower", "faster"}
        ) or not row.calls_before
