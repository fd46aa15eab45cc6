"""Which steps count: what is called warming up, an outlier or beside the steady stretch, and what is not."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bottleneck.trace.steps import set_aside_reasons


def kinds(*us: float) -> list[str]:
    """The first word or two of each step's reason; empty for steps that count."""
    return [(reason or "").split(":")[0] for reason in set_aside_reasons(us)]


def test_a_first_step_that_takes_longer_than_the_later_ones_is_warming_up() -> None:
    assert set_aside_reasons([13, 10, 10.2, 9.9, 10]) == [
        "still warming up: 1.3 times the median of the later steps",
        *[None] * 4,
    ]


def test_all_first_steps_are_set_aside_up_to_the_first_that_is_like_the_later_ones() -> None:
    assert kinds(90, 30, 14, 10, 10, 10, 10, 10) == ["still warming up"] * 3 + [""] * 5


def test_a_slow_step_that_a_usual_one_precedes_is_not_warming_up() -> None:
    assert kinds(10, 14, 10, 10, 10, 10) == [""] * 6


def test_a_first_step_within_the_scatter_of_the_later_ones_counts() -> None:
    assert kinds(13, 8, 12, 9, 11, 10) == [""] * 6


def test_a_first_step_that_is_a_little_longer_counts() -> None:
    assert kinds(11.5, 10, 10, 10, 10) == [""] * 5


def test_of_three_steps_only_a_first_one_far_above_both_others_is_set_aside() -> None:
    assert kinds(134, 44, 42) == ["still warming up", "", ""]
    assert kinds(80, 44, 42) == [""] * 3
    assert kinds(42, 134, 44) == [""] * 3


@pytest.mark.parametrize("us", [(), (5.0,), (50.0, 5.0)])
def test_too_few_steps_are_not_judged(us: tuple[float, ...]) -> None:
    assert set_aside_reasons(us) == [None] * len(us)


def test_an_outlier_leaves_the_longest_stretch_beside_it() -> None:
    assert set_aside_reasons([10, 11, 25, 10, 10, 12]) == [
        "cut off from the longest steady stretch by an outlier",
        "cut off from the longest steady stretch by an outlier",
        "an outlier: 2.38 times the median",
        None,
        None,
        None,
    ]


def test_of_stretches_of_one_length_the_later_counts() -> None:
    assert kinds(10, 11, 30, 10, 12)[3:] == ["", ""]


def test_steps_that_vary_less_than_twofold_count() -> None:
    assert kinds(210, 219, 425, 210, 220) == [""] * 5


def test_slow_steps_that_come_often_are_the_rhythm_of_the_program() -> None:
    assert kinds(10, 10, 10, 40, 10, 10, 10, 40, 10) == [""] * 9
    assert "an outlier" in kinds(10, 10, 10, 40, 10, 10, 10, 10, 10)


times = st.lists(st.floats(min_value=1e-3, max_value=1e9), max_size=40)


@settings(deadline=None)
@given(times)
def test_the_steps_that_count_lie_side_by_side_and_are_never_none(us: list[float]) -> None:
    kept = [row for row, reason in enumerate(set_aside_reasons(us)) if reason is None]
    assert kept == list(range(kept[0], kept[-1] + 1)) if us else kept == []
    assert len(kept) >= min(len(us), 2)


@settings(deadline=None)
@given(times, st.sampled_from([0.5, 4.0, 1024.0]))
def test_the_unit_of_time_does_not_matter(us: list[float], scale: float) -> None:
    assert set_aside_reasons([one * scale for one in us]) == set_aside_reasons(us)


@settings(deadline=None)
@given(st.floats(min_value=1e-3, max_value=1e9), st.integers(min_value=1, max_value=30))
def test_of_equal_steps_none_is_set_aside(us: float, count: int) -> None:
    assert set_aside_reasons([us] * count) == [None] * count
