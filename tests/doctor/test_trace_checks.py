"""Checks of several traces at once: whether they are the ranks of one job."""

import pytest

from bottleneck.doctor.trace_checks import Member, check_together, is_a_job
from bottleneck.schema.checks import Check
from bottleneck.schema.records import replace

RANKS = tuple(Member(rank, 4, 3, 1e18 + 1e6 * rank, 1e18 + 1e9) for rank in range(4))


def row_together(members: tuple[Member, ...], slug: str) -> Check:
    return next(check for check in check_together(members) if check.slug == slug)


def test_all_ranks_of_one_run_are_ok() -> None:
    assert [check.status for check in check_together(RANKS)] == ["ok", "ok", "ok"]
    assert row_together(RANKS, "ranks-together").fact == "all 4 are there, each once"
    assert row_together(RANKS, "time-together").fact == "all run at once for 997 ms"


@pytest.mark.parametrize(
    ("members", "fact"),
    [
        ((RANKS[0], RANKS[2]), "2 of 4; missing: 1, 3"),
        ((*RANKS, RANKS[1]), "there more than once: 1"),
        ((RANKS[0], replace(RANKS[1], world_size=8)), "they name jobs of different sizes: 4, 8 ranks"),
    ],
)
def test_ranks_that_are_missing_twice_or_of_another_job_are_reported(members: tuple[Member, ...], fact: str) -> None:
    assert (row_together(members, "ranks-together").status, row_together(members, "ranks-together").fact) == (
        "limited",
        fact,
    )


def test_a_size_that_no_job_has_costs_nothing() -> None:
    huge = tuple(replace(each, world_size=2**62) for each in RANKS)
    assert row_together(huge, "ranks-together").fact.endswith("missing: 4, 5, 6, 7, 8, 9, 10, 11 …")


def test_ranks_that_do_not_say_of_how_many_are_unknown() -> None:
    assert row_together(tuple(replace(each, world_size=None) for each in RANKS), "ranks-together").status == "unknown"


def test_different_numbers_of_steps_are_reported() -> None:
    check = row_together((*RANKS[:3], replace(RANKS[3], steps=5)), "steps-together")
    assert (check.status, check.fact) == ("limited", "between 3 and 5")


def test_traces_of_different_times_are_reported() -> None:
    late = replace(RANKS[3], start_ns=1e18 + 3e9, end_ns=1e18 + 4e9)
    assert row_together((*RANKS[:3], late), "time-together").fact == "the last begins 2.00 s after the first has ended"


def test_a_clock_that_is_not_reported_is_unknown() -> None:
    assert row_together((*RANKS[:3], replace(RANKS[3], start_ns=None)), "time-together").status == "unknown"


def test_traces_of_single_programs_are_no_job() -> None:
    single = Member(None, None, 3, 0.0, 1.0)
    assert not is_a_job((single, single))
    assert not is_a_job((single, RANKS[0]))
    assert not is_a_job((replace(RANKS[0], world_size=1), replace(RANKS[0], world_size=1)))
    assert is_a_job(RANKS[:2])
