"""How fit the traces of one job are together: what a check-up lists, from the caveats that a report states."""

from collections.abc import Sequence

import pytest

from bottleneck.analysis.job_fitness import check_job, is_a_job
from bottleneck.schema.checks import Check
from bottleneck.schema.digest import RankDigest
from bottleneck.schema.records import replace
from tests.digests import Job


def _job() -> list[RankDigest]:
    return Job(ranks=4).digests()


def _rows(digests: Sequence[RankDigest]) -> dict[str, Check]:
    return {row.slug: row for row in check_job(digests, [None] * len(digests), "same")}


def _later(digest: RankDigest, by_ns: int) -> RankDigest:
    assert digest.start_unix_ns is not None
    return replace(digest, start_unix_ns=digest.start_unix_ns + by_ns)


def test_all_ranks_of_one_run_are_ok() -> None:
    rows = _rows(_job())
    assert {row.status for row in rows.values()} == {"ok"}
    assert rows["job-ranks"].fact == "all 4 are there, each once"
    assert rows["job-time"].fact.startswith("all run at once for ")


@pytest.mark.parametrize(
    ("change", "slug", "fact"),
    [
        (lambda ranks: [ranks[0], ranks[2]], "missing-ranks", "of 4 ranks, no trace was given of 1 and 3"),
        (
            lambda ranks: [*ranks, replace(_later(ranks[1], -1), path="again.json")],
            "repeated-ranks",
            "rank 1 has several",
        ),
        (
            lambda ranks: [ranks[0], replace(ranks[1], world_size=8)],
            "different-jobs",
            "the traces name jobs of different sizes: 4 and 8 ranks",
        ),
        (
            lambda ranks: [*ranks[:3], _later(ranks[3], 3_600_000_000_000)],
            "apart-in-time",
            "the last trace begins ",
        ),
    ],
)
def test_what_is_missing_twice_of_another_job_or_of_another_time_is_at_fault(
    change: "object", slug: str, fact: str
) -> None:
    assert callable(change)
    row = _rows(change(_job()))[slug]
    assert (row.status, row.decides) == ("limited", True) and row.fact.startswith(fact)


def test_a_size_that_no_job_has_costs_nothing() -> None:
    row = _rows([replace(one, world_size=2**62) for one in _job()])["missing-ranks"]
    assert "4, 5, 6, 7" in row.fact and len(row.fact) < 200


def test_ranks_that_do_not_say_of_how_many_or_when_are_unknown() -> None:
    digests = [replace(one, world_size=None) for one in _job()]
    assert _rows(digests)["job-ranks"].status == "unknown"
    assert _rows([*digests[:3], replace(digests[3], start_unix_ns=None)])["job-time"].status == "unknown"


def test_traces_of_single_programs_are_no_job() -> None:
    ranks = _job()
    single = [replace(one, rank=None, world_size=None) for one in ranks]
    assert not is_a_job(single) and not is_a_job([*single[:3], ranks[3]])
    assert not is_a_job([replace(one, world_size=1) for one in ranks])
    assert is_a_job(ranks[:2])
