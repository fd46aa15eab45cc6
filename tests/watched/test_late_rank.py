"""The rank that the others wait for: since when, and in which phase."""

import numpy as np
import pytest

from bottleneck.schema.watch_log import WatchHeader
from bottleneck.watched.late_rank import find_late
from bottleneck.watched.read_log import _DTYPE, WatchedRank

STEPS = 2_000


def rank(number: int, forward_us: float, late: slice = slice(0), phase: str = "rest", us: float = 400.0) -> WatchedRank:
    """A rank whose steps take 2 ms in all; what its own work does not take is its backward pass."""
    records = np.zeros(STEPS, dtype=_DTYPE)
    records["count"], records["first"], records["us"] = 1, np.arange(1, STEPS + 1), 2_000.0
    records["forward_us"] = forward_us
    records[f"{phase}_us"][late] += us
    own = sum(records[f"{name}_us"] for name in ("data", "forward", "optimizer", "rest"))
    records["backward_us"] = 2_000.0 - own
    return WatchedRank(WatchHeader(number, 4, 0, "optimizer", "optimizer.step of SGD"), records, ())


def test_ranks_alike_and_a_rank_alone_are_never_late() -> None:
    assert find_late([rank(0, 500.0), rank(1, 510.0), rank(2, 495.0)]) is None
    assert find_late([rank(0, 500.0, slice(None))]) is None


@pytest.mark.parametrize("phase", ["data", "forward", "optimizer", "rest"])
def test_a_rank_that_is_late_all_along_is_named_with_its_phase(phase: str) -> None:
    late = find_late([rank(0, 500.0), rank(3, 500.0, slice(None), phase), rank(1, 505.0)])
    assert late is not None and (late.rank, late.phase) == (3, phase)
    assert late.is_from_start and late.is_to_end and (late.first, late.last) == (1, STEPS)
    assert late.own_us == pytest.approx(900.0) and late.others_us == pytest.approx(500.0)


@pytest.mark.parametrize(("start", "stop"), [(1_000, 2_000), (600, 1_400)])
def test_it_says_in_which_steps(start: int, stop: int) -> None:
    late = find_late([rank(0, 500.0, slice(start, stop)), rank(1, 500.0)])
    assert late is not None and late.rank == 0
    assert late.first == start + 1 and abs(late.last - stop) <= STEPS / 40
    assert (late.is_from_start, late.is_to_end) == (False, stop == STEPS)


def test_single_slow_steps_make_no_rank_late() -> None:
    slow = rank(1, 500.0)
    slow.records["rest_us"][::50] += 50_000.0
    assert find_late([rank(0, 500.0), slow]) is None


def test_the_order_of_the_ranks_changes_nothing() -> None:
    ranks = [rank(0, 500.0), rank(1, 520.0, slice(900, None)), rank(2, 530.0, slice(200, 500), "data")]
    assert find_late(ranks) == find_late(ranks[::-1]) is not None


def test_ranks_that_ended_at_other_steps_are_compared_as_far_as_both_went() -> None:
    short = rank(1, 500.0)
    short = WatchedRank(short.header, short.records[:300], ())
    late = find_late([rank(0, 500.0, slice(None)), short])
    assert late is not None and (late.rank, late.last) == (0, 300)
