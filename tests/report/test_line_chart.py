"""Charts of curves: every point inside the frame, round ticks, marks where they are known."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck.report.line_chart import ChartCurve, ChartPoint, LineChart
from bottleneck.units import format_memory

VALUES = st.floats(1e-3, 1e12)


def chart(points: list[tuple[float, float]], names: tuple[str, ...] = (), mark: float | None = None) -> LineChart:
    curve = ChartCurve("eager", tuple(ChartPoint(x, y, y * 0.9, y * 1.1) for x, y in points))
    return LineChart("Time", "n", (curve,), lambda value: f"{value:.3g} us", names, mark and (mark, "knee"))


@given(points=st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=20))
def test_everything_that_is_drawn_lies_inside_the_frame(points: list[tuple[float, float]]) -> None:
    one = chart(points)
    left, top, right, bottom = one.frame
    ((_, _, marks),) = one.drawn
    assert len(marks) == len(points)
    for x, y, low, high, _ in marks:
        assert left <= x <= right and top <= high <= y <= low <= bottom
    assert all(left <= x <= right for x, _ in one.x_ticks) and all(top <= y <= bottom for y, _ in one.y_ticks)
    assert 1 <= len(one.y_ticks) <= 16 and 1 <= len(one.x_ticks) <= 9


@pytest.mark.parametrize(
    ("values", "ticks"),
    [((3.0, 9.0), ["0 us", "2.5 us", "5 us", "7.5 us", "10 us"]), ((1.0, 9.0), ["1 us", "2 us", "5 us", "10 us"])],
)
def test_ticks_are_round_numbers(values: tuple[float, float], ticks: list[str]) -> None:
    assert [words for _, words in chart([(1, values[0]), (2, values[1])]).y_ticks] == ticks


def test_words_along_the_axis_are_not_joined_by_a_line() -> None:
    ((_, line, marks),) = chart([(0, 1.0), (1, 2.0)], ("eager", "inductor")).drawn
    assert line == "" and marks[1][-1] == "eager, inductor: 2 us"


def test_a_mark_outside_the_axis_and_an_unknown_value_are_left_out() -> None:
    assert chart([(1, 1.0), (4, 2.0)], mark=2.0).mark_place is not None
    assert chart([(1, 1.0), (4, 2.0)], mark=20.0).mark_place is None
    ((_, line, marks),) = chart([(1, 1.0), (2, math.nan), (4, 2.0)]).drawn
    assert len(marks) == 2 and line.count("L") == 1


def test_roofline_has_ticks_at_powers_and_words_at_the_ends_of_its_roofs() -> None:
    ends = (ChartPoint(20.0, 1e13), ChartPoint(1000.0, 1e13))
    roof = ChartCurve("fp32", ends, is_guide=True, words="fp32 10 TFLOP/s")
    kind = ChartCurve("product", (ChartPoint(2.0, 1e12),))
    one = LineChart("Roofline", "FLOP per byte", (kind, roof), lambda value: f"{value:.3g}", show_x=lambda x: f"{x:g}")
    assert [words for _, words in one.x_ticks] == ["10", "100", "1000"]
    ((x, y, words),) = one.line_words
    left, top, right, bottom = one.frame
    assert words == "fp32 10 TFLOP/s" and left < x < right and top < y < bottom
    assert [curve.label for curve, _ in one.in_legend] == ["product"]
    assert one.drawn[0][2][0][-1] == "product, FLOP per byte=2: 1e+12"


@given(points=st.lists(st.tuples(st.floats(0.1, 1e3), st.floats(1e6, 1e14)), min_size=1, max_size=6))
def test_names_beside_the_marks_of_a_roofline_do_not_overlap(points: list[tuple[float, float]]) -> None:
    kinds = [
        ChartCurve(f"kind {at}", (ChartPoint(*point),), role="memory" if at % 2 else "compute")
        for at, point in enumerate(points)
    ]
    one = LineChart("Roofline", "FLOP per byte", tuple(kinds), lambda value: f"{value:.3g}", show_x=lambda x: f"{x:g}")
    names = one.mark_words
    assert sorted(words for *_, words in names) == sorted(curve.label for curve in kinds)
    boxes = [(x if side == "start" else x - 57, y) for x, y, side, _ in names]
    for at, (x, y) in enumerate(boxes):
        assert all(abs(x - other_x) >= 57 or abs(y - other_y) >= 19.9 for other_x, other_y in boxes[:at])
    assert len(one.in_legend) == len({curve.role for curve in kinds})


def test_no_guide_strikes_a_name_through_and_the_legend_has_those_without_room() -> None:
    """The memory's slope ran through 'fp32 vector 66.9 TFLOP/s' and the names of kinds of work."""
    slope = ChartCurve("memory", (ChartPoint(0.01, 3.35e10), ChartPoint(148.0, 4.95e14)), is_guide=True, role="roof")
    roofs = [
        ChartCurve(name, (ChartPoint(ridge, rate), ChartPoint(1000.0, rate)), True, f"{name} {rate:.3g} FLOP/s", "roof")
        for name, ridge, rate in (("tf32 tensor", 148.0, 4.95e14), ("fp32 vector", 20.0, 6.69e13))
    ]
    kinds = [
        ChartCurve(f"pointwise, memory {at}", (ChartPoint(0.17 * 1.4**at, 4e11),), role="memory") for at in range(5)
    ]
    curves = (*kinds, slope, *roofs)
    one = LineChart("Roofline", "FLOP per byte", curves, lambda value: f"{value:.3g}", show_x=lambda x: f"{x:g}")
    assert [words for *_, words in one.line_words] == [roofs[0].words]
    assert [curve.label for curve, _ in one.in_legend if curve.role == "roof"] == ["memory", roofs[1].words]
    (x, y), (end, top) = (one.at(point.x, point.y) for point in slope.points)
    assert len(one.mark_words) == len(one.leaders) == 5  # each stands away from its mark, with a line to it
    for left, middle, side, words in one.mark_words:
        across = [left, left + 9.5 * len(words)] if side == "start" else [left - 9.5 * len(words), left]
        above = [middle - 10 - (y + (place - x) / (end - x) * (top - y)) for place in across]
        below = [distance + 20 for distance in above]
        assert min(above) >= 0 or max(below) <= 0, words


def test_names_beside_marks_at_the_bottom_stay_above_the_axis() -> None:
    """Of a predicted roofline on a phone two names lay over the numbers of the axis."""
    points = [(1.0, 1e6), (1.1, 1.02e6), (1.2, 1e6), (100.0, 1e12)]
    kinds = tuple(ChartCurve(f"kind {at}", (ChartPoint(*one),), role="memory") for at, one in enumerate(points))
    one = LineChart("Roofline", "FLOP per byte", kinds, lambda value: f"{value:.3g}", show_x=lambda x: f"{x:g}")
    assert all(one.frame[1] < y < one.frame[3] - 5 for _, y, _, _ in one.mark_words)


def test_marks_are_drawn_beside_a_fit_of_many_points() -> None:
    points, fit = [(1, 1.0), (4, 2.0)], tuple(ChartPoint(1 + at / 20, 1.0) for at in range(60))
    one = chart(points)
    assert not LineChart("Time", "n", (*one.curves, ChartCurve("fit", fit, is_guide=True)), one.show).is_dense
    assert chart([(point.x, point.y) for point in fit]).is_dense


@pytest.mark.parametrize(
    ("sizes", "ticks"),
    [
        ((0.5, 1.8), ["0 B", "512 MiB", "1 GiB", "1.5 GiB", "2 GiB"]),
        ((0.2, 0.5), ["0 B", "100 MiB", "200 MiB", "300 MiB", "400 MiB", "500 MiB"]),
        ((0.001, 8.0), ["1 MiB", "4 MiB", "16 MiB", "64 MiB", "256 MiB", "1 GiB", "4 GiB"]),
    ],
)
def test_ticks_of_memory_are_round_in_the_unit_that_they_are_shown_in(
    sizes: tuple[float, float], ticks: list[str]
) -> None:
    """They stood at 954 MiB and 1.86 GiB: round in bytes alone."""
    points = tuple(ChartPoint(float(at), size * 2**30) for at, size in enumerate(sizes))
    one = LineChart("Memory", "ms", (ChartCurve("allocated", points),), format_memory, is_memory=True)
    assert [words for _, words in one.y_ticks] == ticks


@given(
    xs=st.lists(st.floats(1e-5, 1e6), min_size=1, max_size=60, unique=True),
    is_round=st.booleans(),
    from_zero=st.booleans(),
)
def test_words_along_the_axis_do_not_cover_one_another(xs: list[float], is_round: bool, from_zero: bool) -> None:
    """On a phone the times of a snapshot were one unreadable line of digits."""
    points = tuple(ChartPoint(x, 1.0) for x in xs)
    show = (lambda x: f"{x:,.6g}") if is_round else None
    one = LineChart("Memory", "s", (ChartCurve("a", points),), str, show_x=show, from_zero=from_zero)
    right = one.frame[2]
    starts = [(x - 9.5 * len(words) / (1 if x > right - 20 else 2), words) for x, words in one.x_ticks]
    ends = [(start, start + 9.5 * len(words)) for start, words in starts]
    assert ends and all(end < start for (_, end), (start, _) in itertools.pairwise(ends))
