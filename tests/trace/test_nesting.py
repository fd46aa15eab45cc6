"""Interval nesting against a brute-force oracle, on families that overlap in every way."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bottleneck.schema.tables import nearest_ancestor
from bottleneck.trace.nesting import Nest, nest, to_ns


@dataclass(frozen=True)
class Interval:
    track: int
    start: int
    end: int


INTERVALS = st.lists(
    st.builds(
        lambda track, start, length: Interval(track, start, start + length),
        st.integers(0, 2),
        st.integers(0, 20),
        st.integers(0, 12),
    ),
    max_size=25,
)


def nested(intervals: list[Interval]) -> Nest:
    columns = [
        np.array([getattr(each, name) for each in intervals], dtype=np.int64) for name in ("track", "start", "end")
    ]
    return nest(*columns)


def parents_and_ends(intervals: list[Interval]) -> tuple[list[int], list[int]]:
    """The definition, quadratic: inside the latest earlier interval of the track that is open, and cut at its end."""
    parents, ends = [], []
    for row, each in enumerate(intervals):
        open_ = [
            other
            for other in range(row)
            if intervals[other].track == each.track and intervals[other].start <= each.start < ends[other]
        ]
        parents.append(max(open_, default=-1))
        ends.append(min(each.end, ends[parents[-1]]) if open_ else each.end)
    return parents, ends


@settings(deadline=None)
@given(INTERVALS)
def test_parents_and_ends_are_those_of_the_quadratic_definition(intervals: list[Interval]) -> None:
    trees = nested(intervals)
    parents, ends = parents_and_ends([intervals[row] for row in trees.order])
    assert trees.parent.tolist() == parents
    assert trees.end_ns.tolist() == ends


@settings(deadline=None)
@given(INTERVALS)
def test_self_times_of_a_tree_add_up_to_its_root(intervals: list[Interval]) -> None:
    trees = nested(intervals)
    root = trees.parent < 0
    assert (trees.self_ns >= 0).all()
    assert trees.self_ns.sum() == (trees.end_ns - trees.start_ns)[root].sum()


@settings(deadline=None)
@given(INTERVALS)
def test_depth_and_children_follow_from_the_parents(intervals: list[Interval]) -> None:
    trees = nested(intervals)
    for row, parent in enumerate(trees.parent):
        assert trees.depth[row] == (0 if parent < 0 else trees.depth[parent] + 1)
        assert trees.children[row] == (trees.parent == row).sum()


@settings(deadline=None)
@given(INTERVALS, st.integers(0, 2), st.integers(-1, 34))
def test_innermost_is_the_deepest_interval_that_is_open(intervals: list[Interval], track: int, at: int) -> None:
    trees = nested(intervals)
    open_ = np.flatnonzero((trees.track == track) & (trees.start_ns <= at) & (at < trees.end_ns))
    deepest = open_[np.argmax(trees.depth[open_])] if len(open_) else -1
    assert trees.innermost(np.array([track]), np.array([at])) == [deepest]


@settings(deadline=None)
@given(INTERVALS, st.randoms(use_true_random=False))
def test_the_order_of_the_input_does_not_matter(intervals: list[Interval], random: object) -> None:
    shuffled = list(intervals)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    before, after = nested(intervals), nested(shuffled)
    assert before.parent.tolist() == after.parent.tolist()
    assert before.end_ns.tolist() == after.end_ns.tolist()


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=30))
def test_ancestor_where_climbs_to_the_nearest_chosen_row(rows: list[tuple[int, bool]]) -> None:
    parent = np.array([min(up, row) - 1 for row, (up, _) in enumerate(rows)], dtype=np.int64)
    chosen = np.array([yes for _, yes in rows], dtype=bool)
    found = nearest_ancestor(parent, chosen)
    for row in range(len(rows)):
        at = row
        while at >= 0 and not chosen[at]:
            at = parent[at]
        assert found[row] == at


def test_of_two_intervals_with_equal_times_the_lower_tie_is_the_outer_one() -> None:
    same = np.array([5, 5]), np.array([0, 0]), np.array([10, 10])
    trees = nest(same[0], same[1], same[2], np.array([9, 4]))
    assert trees.order.tolist() == [1, 0]
    assert trees.parent.tolist() == [-1, 0]


def test_an_interval_that_outlasts_its_parent_is_cut_not_moved() -> None:
    trees = nested([Interval(0, 0, 10), Interval(0, 8, 12), Interval(0, 10, 14)])
    assert trees.parent.tolist() == [-1, 0, -1]
    assert trees.end_ns.tolist() == [10, 10, 14]


def test_an_interval_of_no_length_lies_inside_the_one_that_starts_with_it() -> None:
    trees = nested([Interval(0, 5, 5), Interval(0, 5, 9), Interval(0, 0, 5)])
    assert trees.parent.tolist() == [-1, -1, 1]


def test_microseconds_that_add_up_badly_in_floating_point_do_not_overlap() -> None:
    start, dur = np.array([434.706]), np.array([4.124])
    assert start + dur != np.array([438.83])
    assert to_ns(start) + to_ns(dur) == to_ns(np.array([438.83]))


def test_absurd_times_are_clipped_without_a_warning() -> None:
    assert (to_ns(np.array([1e300, -1e300])) == [4e18, -4e18]).all()


@pytest.mark.parametrize("depth", [20_000])
def test_deep_nesting_neither_recurses_nor_slows_the_climb(depth: int) -> None:
    start = np.arange(depth)
    trees = nest(np.zeros(depth, np.int64), start, 2 * depth - start)
    assert trees.depth[-1] == depth - 1
    assert (nearest_ancestor(trees.parent, trees.depth == 0) == 0).all()
