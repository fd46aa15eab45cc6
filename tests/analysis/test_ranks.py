"""Waits between ranks: collectives of several ranks matched by hand-made traces, and by four public ones."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from bottleneck.analysis.arrivals import CallBlock, find_groups, match_collectives
from bottleneck.analysis.ranks import combine_ranks, digest_rank, reduce_ranks
from bottleneck.pipeline import finish
from bottleneck.schema.analysis import Analysis
from bottleneck.schema.digest import RankDigest
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.measurements import StepTime
from bottleneck.schema.records import replace
from bottleneck.schema.tables import DEVICE_ARGS
from bottleneck.system.working_memory import Spool
from tests.analysis.scenes import Event, Kernel, Scene, evidence, table
from tests.digests import Call, Place, make_digest
from tests.trace_cache import analysed

_EPOCH_NS = 1_700_000_000_000_000_000


def _scene(
    starts: Sequence[float], ends: Sequence[float], rank: int | None = 0, start_ns: int | None = _EPOCH_NS
) -> Scene:
    """A rank of two steps of 1000 us with collectives at these times and some work of its own."""
    collectives = [
        Kernel(start, end - start, "communication", kind="collective", name=f"ncclAllReduce_{at % 2}", stream="0/20")
        for at, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]
    told = {"rank": rank, "world_size": 2, "start_unix_ns": start_ns}
    train = Event("annotation", "train", 0, 2000)
    return Scene(2000, [*collectives, Kernel(0, 50, "compute")], events=[train], steps=2, more=told)


def _ranked(scene: Scene) -> Evidence:
    return evidence(scene)


def _combined(ranks: Sequence[Evidence]) -> Analysis:
    digests = [digest_rank(one) for one in ranks]
    reduced = reduce_ranks(digests)
    pace = next(one for one, digest in zip(ranks, digests, strict=True) if digest is reduced.pace)
    return finish(combine_ranks(pace, reduced)).analysis


def _matched(ranks: Sequence[Evidence]) -> CallBlock | None:
    """The collectives that all of the ranks have; null when none can be matched."""
    digests = [digest_rank(one) for one in ranks]
    found = [match_collectives(digests, group, Spool()) for group in find_groups(digests)]
    arrivals = next((one for one in found if one is not None), None)
    return None if arrivals is None else next(arrivals.blocks())


_ENDS = [500.0, 900.0, 1500.0, 1900.0]
_EARLY = _scene([100, 550, 1100, 1550], _ENDS, rank=0)
_LATE = _scene([480, 880, 1480, 1880], _ENDS, rank=1)


def test_rank_that_starts_collectives_last_is_the_straggler() -> None:
    analysis = _combined([_ranked(_LATE), _ranked(_EARLY)])
    assert [rank.rank for rank in analysis.ranks] == [0, 1]
    assert [rank.skew_us for rank in analysis.ranks] == [0.0, pytest.approx(355.0)]
    assert analysis.verdict.sentence.startswith(
        "Rank 1 is late: rank 0 waits 710 us of 1.00 ms per step in collectives for it. "
        "Why: Python between ops 935 us per step, the median rank 225 us"
    )


def test_straggler_is_the_body_of_the_analysis() -> None:
    late = _ranked(_LATE)
    analysis = _combined([_ranked(_EARLY), late])
    assert analysis.ledger == late.analysis.ledger
    assert [rank.verdict for rank in analysis.ranks] == ["communication", "overhead"]


def test_ranks_in_step_have_no_straggler() -> None:
    other = replace(_EARLY, more={**_EARLY.more, "rank": 1})
    analysis = _combined([_ranked(_EARLY), _ranked(other)])
    assert [rank.skew_us for rank in analysis.ranks] == [0.0, 0.0]
    assert "is late" not in analysis.verdict.sentence


def test_body_without_a_straggler_is_the_rank_with_the_longest_step() -> None:
    longer = replace(_EARLY, wall=2100.0, more={**_EARLY.more, "rank": 1})
    assert _combined([_ranked(_EARLY), _ranked(longer)]).steps.wall_us == 1050.0


def test_traces_that_begin_at_different_times_meet_on_the_wall_clock() -> None:
    def shifted(times: Sequence[float]) -> list[float]:
        return [time - 60 for time in times]

    late = _scene(shifted([480, 880, 1480, 1880]), shifted(_ENDS), rank=1, start_ns=_EPOCH_NS + 60_000)
    arrivals = _matched([_ranked(_EARLY), _ranked(late)])
    assert arrivals is not None
    assert arrivals.late_us.mean(axis=1).tolist() == pytest.approx([0.0, 355.0], abs=0.3)


def test_clocks_of_different_hosts_are_aligned_by_the_ends_of_collectives() -> None:
    late = replace(_LATE, more={**_LATE.more, "start_unix_ns": _EPOCH_NS + 5_000_000})
    analysis = _combined([_ranked(_EARLY), _ranked(late)])
    assert [rank.skew_us for rank in analysis.ranks] == [0.0, pytest.approx(355.0, abs=0.3)]
    assert "rank-clocks" in [caveat.slug for caveat in analysis.caveats]


def test_rank_whose_recording_misses_the_first_collectives_is_still_matched() -> None:
    late = _scene([1480, 1880], [1500, 1900], rank=1)
    arrivals = _matched([_ranked(_EARLY), _ranked(late)])
    assert arrivals is not None
    assert arrivals.late_us[1].tolist() == [380.0, 330.0]


def _of_rank(
    rank: int, ends_us: Sequence[float], payloads: Sequence[float], numbers: tuple[int, ...] = ()
) -> RankDigest:
    """A rank that is in each of its reductions for 5 us."""
    calls = [Call("all_reduce", "", end - 5, end, payload) for end, payload in zip(ends_us, payloads, strict=True)]
    return replace(make_digest(rank, calls, {"compute": 1e3}, [0.0, 1000.0], Place()), step_numbers=numbers)


def _clock_us(*digests: RankDigest) -> float | None:
    """By how much the second rank's clock is ahead as the ends of the matched calls tell; null without any."""
    [group] = find_groups(digests)
    found = match_collectives(digests, group, Spool())
    return None if found is None else float(found.clock_us[1])


def test_reductions_of_other_payloads_are_not_the_same_ones() -> None:
    large_small = [4e6, 1e6] * 3
    # By their ends alone, those of the second rank would begin one later.
    one = _of_rank(0, [100, 200, 320, 420, 560, 640], large_small)
    other = _of_rank(1, [30, 100, 200, 320, 420, 560], large_small)
    assert _clock_us(one, other) == pytest.approx(-110, abs=30)
    alike = [1e6] * 6
    assert _clock_us(_of_rank(0, [100, 200, 320, 420, 560, 640], alike), other_of(other, alike)) == 0


def other_of(digest: RankDigest, payloads: Sequence[float]) -> RankDigest:
    """The rank with other payloads."""
    calls = digest.calls.read()
    return _of_rank(digest.rank or 0, calls.end_us.tolist(), payloads)


def test_few_reductions_of_the_same_steps_begin_together_though_others_coincide_by_chance() -> None:
    one, other = [100, 310, 400, 610, 700, 910], [120, 300, 424, 590, 744, 900]
    chance = [_of_rank(0, one, [1e6] * 6), _of_rank(1, other, [1e6] * 6)]
    same = [replace(digest, step_numbers=(7, 8)) for digest in chance]
    assert _clock_us(*same) is not None
    assert abs(_clock_us(*same) or 0.0) < 25


def test_a_rank_with_less_than_half_of_the_reductions_is_matched_where_all_of_its_own_are_there() -> None:
    long = _of_rank(0, [100, 300, 4000, 4100, 4200], [1e6] * 5)
    assert _clock_us(long, _of_rank(1, [101, 302], [1e6] * 2)) == pytest.approx(1.5, abs=1)


def test_traces_without_a_clock_are_matched_only_when_they_hold_as_many_collectives() -> None:
    def timeless(scene: Scene) -> Scene:
        return replace(scene, more={**scene.more, "start_unix_ns": None})

    same = _matched([_ranked(timeless(_EARLY)), _ranked(timeless(_LATE))])
    assert same is not None
    assert same.late_us[1].tolist() == [380.0, 330.0, 380.0, 330.0]
    fewer = timeless(_scene([1480, 1880], [1500, 1900], rank=1))
    assert _matched([_ranked(timeless(_EARLY)), _ranked(fewer)]) is None


def test_collectives_among_other_numbers_of_ranks_are_left_out() -> None:
    linked = []
    for scene in (_EARLY, _LATE):
        given = scene.linked()
        collective = given.kernels["kind"] == "collective"
        rows = [{"event": event, "group_size": 8} for event in given.kernels["event"][collective]]
        told = replace(given, trace=replace(given.trace, device_args=table(DEVICE_ARGS, rows)))
        linked.append(evidence(scene, linked=told))
    assert _matched(linked) is None


def test_traces_without_collectives_are_told_to_be_unmatched() -> None:
    alone = [_ranked(Scene(100, [Kernel(0, 50)], more={"rank": rank})) for rank in (0, 1)]
    analysis = _combined(alone)
    assert [rank.skew_us for rank in analysis.ranks] == [None, None]
    assert "unmatched-ranks" in [caveat.slug for caveat in analysis.caveats]


def test_traces_that_share_a_rank_number_are_counted_as_given() -> None:
    analysis = _combined([_ranked(_EARLY), _ranked(replace(_LATE, more={**_LATE.more, "rank": 0}))])
    assert [rank.rank for rank in analysis.ranks] == [0, 1]
    assert "unnumbered-ranks" in [caveat.slug for caveat in analysis.caveats]


def test_ranks_that_were_not_given_are_missed() -> None:
    wide = [_ranked(replace(scene, more={**scene.more, "world_size": 8})) for scene in (_EARLY, _LATE)]
    messages = {caveat.slug: caveat.message for caveat in _combined(wide).caveats}
    assert messages["missing-ranks"] == "of 8 ranks, no trace was given of 2, 3, 4, 5, 6 and 7"


def test_ranks_of_a_job_that_claims_any_size_are_counted() -> None:
    wide = [_ranked(replace(scene, more={**scene.more, "world_size": 10**9})) for scene in (_EARLY, _LATE)]
    messages = {caveat.slug: caveat.message for caveat in _combined(wide).caveats}
    told = "of 1,000,000,000 ranks, no trace was given of 2, 3, 4, 5, 6, 7, 8, 9 and 999,999,990 more"
    assert messages["missing-ranks"] == told


def _with_clock(rank: int, ahead_us: float) -> Evidence:
    """A rank of a job in which nobody waits, with its wall clock ahead."""
    start_ns = _EPOCH_NS + round(1e3 * ahead_us)
    return _ranked(_scene([100, 550, 1100, 1550], _ENDS, rank=rank, start_ns=start_ns))


def test_the_rank_whose_clock_is_off_is_named() -> None:
    def told(*ahead_us: float) -> str | None:
        ranks = [_with_clock(rank, us) for rank, us in enumerate(ahead_us)]
        return {caveat.slug: caveat.message for caveat in _combined(ranks).caveats}.get("rank-clocks")

    align = "; the ends of collectives align them"
    assert told(0, 0, 5000, 0, 0) == f"the clock of rank 2 is 5.00 ms ahead of the others'{align}"
    assert told(0, -2e6, 0, 0, 0) == f"the clock of rank 1 is 2.00 s behind the others'{align}"
    assert told(0, 0, 5000, 9000, 0) == f"the clocks of ranks 2 and 3 are off, that of rank 3 by 9.00 ms{align}"
    assert told(0, 5000) == f"the clock of rank 1 is 5.00 ms ahead of that of rank 0{align}"
    assert told(0, 500, 0, 0) is None


def test_one_rank_alone_is_reported_that_it_cannot_see_the_others() -> None:
    alone = _ranked(_EARLY)
    assert "one-rank" in [caveat.slug for caveat in alone.analysis.caveats]
    both = _combined([alone, _ranked(replace(_EARLY, more={**_EARLY.more, "rank": 1}))])
    assert "one-rank" not in [caveat.slug for caveat in both.caveats]


def test_no_rank_is_late_by_less_than_nothing() -> None:
    arrivals = _matched([_ranked(_EARLY), _ranked(_LATE)])
    assert arrivals is not None
    assert (arrivals.late_us >= 0).all() and (arrivals.waits_us >= 0).all()
    assert np.array_equal(arrivals.late_us.min(axis=0), np.zeros(4))


@pytest.fixture(scope="module")
def sleepy(traces: Path) -> Sequence[Path]:
    return sorted(traces.glob("pytorch+torchrec__examples__golden_training__trace__sst_sleep*"))


def test_rank_that_sleeps_is_told_from_the_ranks_that_wait_for_it(sleepy: Sequence[Path]) -> None:
    analysis = analysed(*sleepy)
    assert len(analysis.ranks) == 4
    assert [rank.verdict for rank in analysis.ranks] == ["communication", "communication", "overhead", "communication"]
    assert max(analysis.ranks, key=lambda rank: rank.skew_us or 0.0).rank == 2
    assert analysis.verdict.bound == "overhead"
    assert analysis.verdict.sentence.startswith(
        "Rank 2 is late: ranks 0, 1 and 3 wait 1.01 of 1.10 s per step in collectives for it."
    )


def test_waiting_ranks_alone_have_no_straggler(sleepy: Sequence[Path]) -> None:
    awake = [path for path in sleepy if "_19490." not in path.name]
    assert " per step for rank " not in analysed(*awake).verdict.sentence


def test_ranks_that_explain_other_steps_say_so() -> None:
    def kept(*reasons: str | None) -> Evidence:
        one = _ranked(replace(_EARLY, more={**_EARLY.more, "rank": len(reasons)}))
        each = tuple(StepTime(f"step {row}", 1000, reason) for row, reason in enumerate(reasons))
        return replace(one, analysis=replace(one.analysis, steps=replace(one.analysis.steps, each=each)))

    two = kept("still warming up", None, None)
    told = {caveat.slug: caveat.message for caveat in _combined([two, kept(None, None)]).caveats}
    assert "(rank 2 0:2, rank 3 1:3)" in told["other-steps"]
    assert "other-steps" not in {caveat.slug for caveat in _combined([two, two]).caveats}


def test_ranks_without_common_steps_say_so_and_accuse_nobody() -> None:
    digests = [digest_rank(_ranked(scene)) for scene in (_EARLY, _LATE)]
    shared, apart = (reduce_ranks(digests, sharing=sharing) for sharing in ("same", "none"))
    assert shared.straggler and [one.name for one in shared.job.slow] == ["rank 1"]
    assert apart.straggler == () and apart.job.slow == ()
    assert [rank.skew_us for rank in apart.ranks] == [None, None]
    assert [caveat.slug for caveat in apart.caveats] == ["other-steps"]
    assert shared.caveats == ()
