"""Steps that all ranks of a job recorded: by number, by position or by the clock, and set aside alike."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from bottleneck.schema.digest import RankDigest
from bottleneck.schema.reasons import Reason
from bottleneck.schema.records import replace
from bottleneck.trace.common_steps import NOT_OF_ALL, share_steps
from bottleneck.trace.steps import set_aside_reasons
from tests.digests import EPOCH_NS, Place, make_digest


def _rank(rank: int, walls_ms: Sequence[float], first: int | None = None, start_ms: float = 0.0) -> RankDigest:
    """A rank with steps of these lengths, of which it explains those that are steady by themselves."""
    walls_us = 1e3 * np.array(walls_ms)
    starts_us = 1e3 * start_ms + np.cumsum(walls_us) - walls_us
    made = make_digest(rank, [], {"compute": 1000.0}, starts_us.tolist(), Place())
    reasons = tuple(set_aside_reasons(walls_us.tolist()))
    numbers = () if first is None else tuple(range(first, first + len(walls_ms)))
    return replace(made, step_wall_us=walls_us, set_aside=reasons, step_numbers=numbers)


# The trace of rank 1 is written in step 2 of rank 0, whose later steps are quick: nobody is waited for any more.
_LONG, _SHORT = (40.0, 32.0, 3700.0, 14.0, 16.0), (38.0, 31.0)


def _kept(digest: RankDigest, reasons: tuple[Reason | None, ...] | None) -> list[int]:
    """Positions of the steps that a rank explains in the end."""
    chosen = reasons if reasons is not None else digest.set_aside
    return [at for at, reason in enumerate(chosen) if reason is None]


def _shared(*digests: RankDigest) -> tuple[str, list[list[int]]]:
    found = share_steps(digests)
    return found.sharing, [_kept(*pair) for pair in zip(digests, found.set_aside, strict=True)]


def test_a_rank_by_itself_would_explain_none_of_the_steps_of_the_other() -> None:
    assert _kept(_rank(0, _LONG), None) == [2, 3, 4] and _kept(_rank(1, _SHORT), None) == [0, 1]


@pytest.mark.parametrize("first", [None, 29], ids=["by the clock", "by their numbers"])
def test_steps_that_another_rank_did_not_record_are_set_aside(first: int | None) -> None:
    long, short = _rank(0, _LONG, first), _rank(1, _SHORT, first, start_ms=1.0)
    found = share_steps([long, short])
    assert found.sharing == "same"
    assert found.set_aside == ((None, None, NOT_OF_ALL, NOT_OF_ALL, NOT_OF_ALL), None)


def test_numbers_tell_the_steps_that_begin_later_on_one_rank() -> None:
    sharing, kept = _shared(_rank(0, [10, 11, 10, 11], first=5), _rank(1, [10, 10, 11, 10], first=7, start_ms=1e6))
    assert (sharing, kept) == ("same", [[2, 3], [0, 1]])


def test_the_clock_tells_the_steps_that_begin_later_on_one_rank() -> None:
    sharing, kept = _shared(_rank(0, [10, 11, 10, 11]), _rank(1, [11, 10, 11], start_ms=10.5))
    assert (sharing, kept) == ("same", [[1, 2, 3], [0, 1, 2]])


def test_as_many_steps_are_the_same_ones_whatever_the_clocks_say() -> None:
    other = replace(_rank(1, [10, 11, 10]), start_unix_ns=EPOCH_NS + 2_000_000_000)
    assert _shared(_rank(0, [10, 11, 10]), other) == ("same", [[0, 1, 2], [0, 1, 2]])


def test_ranks_that_warm_up_for_other_steps_keep_the_same_ones() -> None:
    sharing, kept = _shared(_rank(0, [50, 10, 10, 10, 10], 3), _rank(1, [11, 10, 10, 10, 10], 3))
    assert (sharing, kept) == ("same", [[1, 2, 3, 4], [1, 2, 3, 4]])


def test_steps_that_are_not_typical_of_all_ranks_are_told_why() -> None:
    first, other = (_rank(rank, [walls, 10, 10, 10, 10], 3) for rank, walls in enumerate((50, 11)))
    reasons = share_steps([first, other]).set_aside
    assert reasons[0] is None
    assert reasons[1] is not None and reasons[1][0] is not None
    assert reasons[1][0].words.startswith("still warming up: 3.05 times the median")


def test_nothing_is_read_again_where_all_ranks_explain_the_same_steps() -> None:
    assert share_steps([_rank(rank, [10, 11, 10], 3) for rank in range(4)]).set_aside == (None,) * 4


def test_a_step_that_a_rank_cannot_explain_is_left_out_on_all() -> None:
    held = replace(_rank(0, [10, 10, 11], 3), set_aside=(Reason("held_before"), None, None))
    assert _shared(held, _rank(1, [10, 10, 11], 3)) == ("same", [[1, 2], [1, 2]])
    longer = share_steps([held, _rank(1, [10, 11], 4)])
    assert longer.set_aside == (None, None)


def test_of_steps_with_a_gap_the_longest_stretch_counts() -> None:
    gap = replace(_rank(1, [10, 11, 10, 10]), step_numbers=(3, 5, 6, 7))
    assert _shared(_rank(0, [10, 11, 10, 10, 11], 3), gap) == ("same", [[2, 3, 4], [1, 2, 3]])


def test_ranks_without_a_step_in_common_are_told_so() -> None:
    sharing, _ = _shared(_rank(0, [10, 11, 10], 20), _rank(1, [12], 2))
    assert sharing == "none"
    assert _shared(_rank(0, [10, 11, 10]), _rank(1, [12], start_ms=500))[0] == "none"


def test_without_a_clock_other_numbers_of_steps_have_none_in_common() -> None:
    timeless = replace(_rank(1, _SHORT), start_unix_ns=None)
    assert _shared(_rank(0, _LONG), timeless)[0] == "none"


def _of_source(digest: RankDigest, source: str) -> RankDigest:
    return replace(digest, steps=replace(digest.steps, source=source))


def test_whole_traces_and_repeats_of_a_loop_are_left_as_they_are() -> None:
    for source in ("whole", "repeats"):
        ranks = [_of_source(_rank(rank, walls), source) for rank, walls in enumerate((_LONG, _SHORT))]
        assert share_steps(ranks).sharing == "unknown"
    assert share_steps([_rank(0, _LONG)]).sharing == "unknown"


def test_a_rank_without_steps_has_none_in_common_with_those_that_have_some() -> None:
    assert share_steps([_rank(0, _SHORT), _of_source(_rank(1, [80.0]), "whole")]).sharing == "none"


def test_batches_of_a_server_are_not_judged_by_their_time() -> None:
    ranks = [_of_source(_rank(rank, [50, 10, 10, 10, 10]), "server") for rank in range(2)]
    whole = [replace(one, set_aside=(None,) * 5) for one in ranks]
    assert _shared(*whole) == ("same", [[0, 1, 2, 3, 4]] * 2)


def test_the_order_of_ranks_changes_nothing() -> None:
    ranks = [_rank(0, _LONG), _rank(1, _SHORT, start_ms=1.0), _rank(2, (39.0, 32.0, 3690.0), start_ms=2.0)]
    expected = share_steps(ranks)
    for order in itertools.permutations(range(3)):
        found = share_steps([ranks[at] for at in order])
        assert found.sharing == expected.sharing
        assert found.set_aside == tuple(expected.set_aside[at] for at in order)
