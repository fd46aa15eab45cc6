"""What the ranks of a job say: faults planted in made digests are named, and nothing else is."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bottleneck.analysis.ranks import Reduced, reduce_ranks
from bottleneck.schema.analysis import join_clauses
from bottleneck.schema.digest import RankDigest
from bottleneck.schema.job import JobSummary, LeftOut
from bottleneck.schema.linked_trace import ProcessGroup
from bottleneck.schema.measurements import Timing
from bottleneck.schema.records import replace
from tests.digests import PROGRAM, Call, Job, Place, make_digest


def _job(job: Job) -> JobSummary:
    return reduce_ranks(job.digests()).job


def _named(job: JobSummary) -> list[str]:
    return [one.name for one in job.slow] + [one.name for one in job.slow_links]


def _slow_loader(rank: int, us: float = 5000.0) -> "Job":
    return Job(late_us=lambda _, each: us if each == rank else 0.0)


SLOW_HOST = Job(pace=dict.fromkeys(range(40, 48), 1.15))


def test_a_healthy_job_names_nobody() -> None:
    job = _job(Job())
    assert _named(job) == []
    assert (job.ranks, job.hosts) == (128, 16)


@pytest.mark.parametrize("cells", [1, 300])
def test_what_is_said_does_not_depend_on_how_many_calls_are_looked_at_together(
    cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(ranks=32, pace=dict.fromkeys(range(8, 16), 1.15), late_us=lambda _, rank: 5e3 * (rank == 21))
    expected = _job(job)
    monkeypatch.setattr("bottleneck.analysis.arrivals._MOST_CELLS", cells)
    monkeypatch.setattr("bottleneck.system.working_memory._HELD_BYTES", 1)
    found = _job(job)
    assert _named(found) == _named(expected) == ["rank 21", "host node-1"]
    assert [one.cost_us for one in found.slow] == pytest.approx([one.cost_us for one in expected.slow])
    assert [use.wait_us for use in found.groups] == pytest.approx([use.wait_us for use in expected.groups])


def test_a_slow_host_is_named_once_and_not_its_ranks() -> None:
    job = _job(SLOW_HOST)
    assert _named(job) == ["host node-5"]
    (slow,) = job.slow
    assert slow.ranks == tuple(range(40, 48))
    assert slow.host == "node-5"
    assert slow.is_steady
    assert slow.since_step is None
    assert slow.worst_collective == "all_reduce"
    assert slow.cause == "its own work takes 1.15 times as long as the median rank's"
    # 15 % of 9 ms of work per step, less what the latest of the others is late by chance.
    assert slow.cost_us == pytest.approx(1350, rel=0.2)
    wall_us = Job().digests()[0].steps.wall_us + 1350
    assert slow.cost_rank_hours == pytest.approx(120 * slow.cost_us / wall_us, rel=0.05)


def test_a_rank_with_a_slow_loader_is_named_and_not_the_ranks_that_it_makes_late() -> None:
    job = _job(_slow_loader(51))
    assert _named(job) == ["rank 51"]
    (slow,) = job.slow
    assert (slow.host, slow.is_steady, slow.since_step) == ("node-6", True, None)
    assert slow.worst_collective == "all_gather"
    assert slow.cause.startswith("waiting for data 5.5")
    assert slow.cost_us == pytest.approx(5000, rel=0.1)


def _with_lines(digests: Sequence[RankDigest], late: int, us: float) -> list[RankDigest]:
    """The digests with the time at two lines, at the first of which one rank spends so much more."""
    lines = {"train.py:15": 0.0, "train.py:16": 9000.0}
    return [replace(one, lines={**lines, "train.py:15": us if one.rank == late else 0.0}) for one in digests]


def test_a_slow_rank_is_told_by_the_line_at_which_it_alone_spends_its_delay() -> None:
    reduced = reduce_ranks(_with_lines(_slow_loader(51).digests(), 51, 5000.0))
    (slow,) = reduced.job.slow
    assert (slow.line, slow.line_us, slow.usual_line_us) == ("train.py:15", 5000.0, 0.0)
    assert slow.cause == "waiting for data 5.00 ms per step at train.py:15, the median rank 0 us"
    assert join_clauses(reduced.straggler).endswith(
        "per step in collectives for it. Why: it spends 5.00 ms at train.py:15, the others 0 us."
    )


def test_a_line_that_is_no_part_of_the_delay_is_not_named() -> None:
    (slow,) = reduce_ranks(_with_lines(_slow_loader(51).digests(), 51, 1000.0)).job.slow
    assert slow.line is None and slow.cause.startswith("waiting for data")


def test_a_rank_that_is_slow_by_one_factor_has_no_line_of_its_own() -> None:
    digests = Job(pace={51: 1.5}).digests()
    lines = {"train.py:15": 3000.0, "train.py:16": 6000.0}
    scaled = [
        replace(one, lines={name: us * (1.5 if one.rank == 51 else 1.0) for name, us in lines.items()})
        for one in digests
    ]
    (slow,) = reduce_ranks(scaled).job.slow
    assert slow.line is None and slow.cause.startswith("its own work takes 1.5")


def test_a_delay_of_profiled_steps_counts_as_much_as_it_takes_without_the_profiler() -> None:
    timing = Timing(5000.0, 4900.0, 5100.0, 20)
    digests = [
        replace(
            one,
            steps=replace(
                one.steps, wall_us=timing.median, unprofiled_us=timing, profiled_us=replace(timing, median=10_000.0)
            ),
        )
        for one in _slow_loader(51).digests()
    ]
    (slow,) = reduce_ranks(digests).job.slow
    assert slow.cost_us == pytest.approx(2500, rel=0.1)


def test_ranks_whose_middle_steps_the_profiler_lengthened_by_more_are_compared_on_one_scale() -> None:
    """The profiler took longer in some steps: the middle one of the late rank is among them, those of others not."""
    digests = _slow_loader(51).digests()
    wall_us = digests[0].steps.wall_us

    def stretched(digest: RankDigest) -> RankDigest:
        profiled_us = wall_us * (2.0 if digest.rank == 51 else 1.0)
        own = replace(
            digest.steps,
            unprofiled_us=Timing(wall_us, wall_us, wall_us, 9),
            profiled_us=Timing(profiled_us, profiled_us, profiled_us, 9),
        )
        return replace(digest, steps=own)

    (slow,) = reduce_ranks([stretched(digest) for digest in digests]).job.slow
    assert slow.name == "rank 51"
    assert slow.cost_us == pytest.approx(5000, rel=0.1)


def test_an_account_that_is_longer_by_noise_is_no_cause() -> None:
    digests = _slow_loader(51).digests()
    late = {entry.account: entry for entry in digests[51].ledger}
    moved = [
        replace(late["overhead.input"], us=late["overhead.input"].us - 5000.0),
        replace(late["communication"], us=late["communication"].us + 5000.0),
    ]
    rest = [entry for name, entry in late.items() if name not in {"overhead.input", "communication"}]
    digests[51] = replace(digests[51], ledger=(*moved, *rest))
    (slow,) = reduce_ranks(digests).job.slow
    assert slow.cause == "no account of its ledger is longer by as much"


def test_a_rank_that_is_slow_on_a_slow_host_is_named_beside_it() -> None:
    job = _job(replace(SLOW_HOST, late_us=lambda _, rank: 5000.0 if rank == 42 else 0.0))
    assert set(_named(job)) == {"host node-5", "rank 42"}


def test_a_late_link_is_named_and_not_the_host_that_it_makes_late() -> None:
    job = _job(Job(links={9: 4.0}))
    assert _named(job) == ["mesh_tp"]
    (link,) = job.slow_links
    assert link.ranks == tuple(range(72, 80))
    assert link.host == "node-9"
    assert (link.transfer_us, link.usual_us) == (pytest.approx(1200), pytest.approx(300))
    assert link.groups == 16


def test_three_faults_at_once_are_all_named() -> None:
    job = _job(replace(SLOW_HOST, late_us=lambda _, rank: 5000.0 if rank == 51 else 0.0, links={9: 4.0}))
    assert sorted(_named(job)) == ["host node-5", "mesh_tp", "rank 51"]


def test_lateness_that_begins_later_is_dated() -> None:
    (slow,) = _job(Job(steps=9, late_us=lambda step, rank: 5000.0 if rank == 51 and step >= 3 else 0.0)).slow
    assert (slow.name, slow.since_step, slow.is_steady) == ("rank 51", 3, True)


def test_a_rank_that_is_late_now_and_then_is_not_steady() -> None:
    (slow,) = _job(Job(steps=8, late_us=lambda step, rank: 9000.0 if rank == 51 and step % 4 == 0 else 0.0)).slow
    assert (slow.name, slow.is_steady, slow.since_step) == ("rank 51", False, None)


def test_lateness_that_wanders_blames_no_rank_alone() -> None:
    turns = [3, 77, 21, 110, 64, 35]
    (slow,) = _job(Job(late_us=lambda step, rank: 4000.0 if rank == turns[step] else 0.0)).slow
    assert slow.name == "other ranks in turn"
    assert slow.ranks == tuple(sorted(turns))
    assert not slow.is_steady
    assert slow.cost_us == pytest.approx(4000, rel=0.1)


def test_clocks_of_hosts_are_told_apart_by_the_ends_of_collectives() -> None:
    job = _job(Job(clocks_us={4: 5000.0}))
    assert job.clock_skew_us == pytest.approx(5000, abs=1)
    assert _named(job) == []
    assert _job(Job()).clock_skew_us == pytest.approx(0, abs=1)


def test_waiting_is_told_from_transfer_in_each_group() -> None:
    uses = {use.name: use for use in _job(_slow_loader(51)).groups}
    assert uses["mesh_tp"].kind == "tensor"
    assert (uses["mesh_tp"].size, uses["mesh_tp"].groups, uses["mesh_tp"].calls) == (8, 16, 1)
    assert uses["mesh_tp"].transfer_us == pytest.approx(300, abs=1)
    # The seven neighbours of the late rank wait 5 ms in it, all other hosts in the next one among all.
    assert uses["mesh_tp"].wait_us == pytest.approx(5000 * 7 / 128, rel=0.5)
    assert uses["all ranks"].kind == "data"
    assert uses["all ranks"].transfer_us == pytest.approx(1200, abs=1)
    assert uses["all ranks"].wait_us == pytest.approx(5000 * 120 / 128, rel=0.1)


_WORK_US, _MOVE_US = 100.0, 2.0


def _stages(microbatches: int, stages: int = 4) -> list[RankDigest]:
    """One step of a pipeline: each stage receives a microbatch, works on it and sends it on."""
    group = ProcessGroup("7", "mesh_pp", stages, tuple(range(stages)))
    cycle_us = _WORK_US + 2 * _MOVE_US
    wall_us = microbatches * cycle_us + (stages - 1) * (_WORK_US + _MOVE_US)
    digests = []
    for stage in range(stages):
        calls, free_us = [], 0.0
        for number in range(microbatches):
            begins_us = number * cycle_us + stage * (_WORK_US + _MOVE_US) + _MOVE_US
            if stage:
                calls.append(Call("send_recv", "7", free_us, begins_us))
            free_us = number * cycle_us + stage * (_WORK_US + _MOVE_US) + cycle_us
            if stage < stages - 1:
                calls.append(Call("send_recv", "7", begins_us + _WORK_US, free_us))
        calls.append(Call("all_reduce", "0", free_us, wall_us))
        ledger = {"compute": microbatches * _WORK_US, "communication": wall_us - microbatches * _WORK_US}
        digests.append(make_digest(stage, calls, ledger, [0.0], Place((group,))))
    return digests


@pytest.mark.parametrize("microbatches", [4, 16])
def test_the_bubble_of_a_pipeline_is_that_of_its_stages(microbatches: int) -> None:
    job = reduce_ranks(_stages(microbatches)).job
    # Stages wait for the first microbatch here; after the last one they wait in the all-reduce.
    lag_us = _WORK_US + _MOVE_US
    wall_us = microbatches * (lag_us + _MOVE_US) + 3 * lag_us
    assert job.bubble_share == pytest.approx(np.mean([0, 1, 2, 3]) * lag_us / wall_us, rel=0.02)
    assert [use.kind for use in job.groups if use.name == "mesh_pp"] == ["pipeline"]


def test_a_job_without_stages_has_no_bubble() -> None:
    assert _job(Job(ranks=16)).bubble_share is None


def _experts(payloads: Sequence[float]) -> list[RankDigest]:
    group = ProcessGroup("3", "mesh_ep", len(payloads), tuple(range(len(payloads))))
    return [
        make_digest(
            rank,
            [Call("all_to_all", "3", 100, 200, payload)],
            {"compute": 900.0, "communication": 100.0},
            [0.0],
            Place((group,)),
        )
        for rank, payload in enumerate(payloads)
    ]


def test_the_imbalance_of_experts_is_that_of_their_messages() -> None:
    (use,) = reduce_ranks(_experts([4e6, 2e6, 1e6, 1e6])).job.groups
    assert (use.kind, use.imbalance) == ("expert", pytest.approx(2.0))
    (use,) = reduce_ranks(_experts([2e6, 2e6, 2e6, 2e6])).job.groups
    assert use.imbalance == pytest.approx(1.0)


def _comparable(reduced: Reduced) -> tuple[object, ...]:
    return reduced.pace.path, reduced.ranks, reduced.collectives, reduced.caveats, reduced.job, reduced.straggler


@settings(deadline=None, max_examples=5)
@given(st.randoms(use_true_random=False))
def test_the_order_of_the_digests_changes_nothing(random: "np.random.Generator") -> None:
    digests = replace(SLOW_HOST, ranks=64).digests()
    shuffled = list(digests)
    random.shuffle(shuffled)
    assert _comparable(reduce_ranks(shuffled)) == _comparable(reduce_ranks(digests))


def test_a_shift_of_all_times_of_a_rank_with_its_clock_changes_nothing() -> None:
    digests = replace(SLOW_HOST, ranks=64).digests()
    moved = digests[13]
    calls = replace(moved.calls, start_us=moved.calls.start_us + 4096.0, end_us=moved.calls.end_us + 4096.0)
    assert moved.start_unix_ns is not None
    moved = replace(
        moved,
        calls=calls,
        step_start_us=moved.step_start_us + 4096.0,
        start_unix_ns=moved.start_unix_ns - 4_096_000,
    )
    before, after = reduce_ranks(digests).job, reduce_ranks([*digests[:13], moved, *digests[14:]]).job
    assert _named(after) == _named(before)
    assert after.slow[0].cost_us == pytest.approx(before.slow[0].cost_us, rel=1e-6)
    assert after.wait_share == pytest.approx(before.wait_share, rel=1e-6)
    assert after.clock_skew_us == pytest.approx(before.clock_skew_us, abs=0.01)


@settings(deadline=None, max_examples=15)
@given(
    ranks=st.sampled_from([2, 3, 8, 24, 64]),
    noise=st.floats(0.0, 0.02),
    seed=st.integers(0, 2**31),
    steps=st.integers(1, 8),
)
def test_a_healthy_job_of_any_size_names_nobody(ranks: int, noise: float, seed: int, steps: int) -> None:
    job = _job(Job(ranks=ranks, noise=noise, seed=seed, steps=steps))
    assert _named(job) == []
    assert job.wait_share is not None and 0 <= job.wait_share < 0.1


def test_traces_without_a_digest_are_told() -> None:
    left_out = [LeftOut("b.json", 20, "it is cut off"), LeftOut("a.json", None, "it is empty")]
    reduced = reduce_ranks(Job(ranks=16).digests(), left_out)
    assert [one.path for one in reduced.job.left_out] == ["a.json", "b.json"]
    told = {caveat.slug: caveat.message for caveat in reduced.caveats}
    assert told["left-out-ranks"] == "left out: a.json: it is empty, and 1 more"


def test_the_rank_that_sets_the_pace_is_of_the_slow_host() -> None:
    reduced = reduce_ranks(SLOW_HOST.digests())
    assert reduced.pace.host == "node-5"
    told = join_clauses(reduced.straggler)
    assert told.startswith("Host node-5 (8 ranks) is late: 120 of 128 ranks wait ")
    assert told.endswith("in collectives for it. Why: its own work takes 1.15 times as long as the median rank's.")


def test_the_program_of_the_tests_has_calls_in_both_groups() -> None:
    assert {item.group for item in PROGRAM if hasattr(item, "group")} == {"host", "world"}


def test_a_slow_rank_whose_neighbours_files_are_missing_is_named() -> None:
    digests = Job(ranks=8, host_ranks=2, late_us=lambda _, rank: 5e3 * (rank == 2)).digests()
    named = [_named(reduce_ranks([one for one in digests if one.rank not in gone]).job) for gone in ({}, {3}, {0, 3})]
    assert named == [["rank 2"]] * 3
    healthy = Job(ranks=8, host_ranks=2).digests()
    assert _named(reduce_ranks([one for one in healthy if one.rank not in {0, 3}]).job) == []
