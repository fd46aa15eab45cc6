"""Made jobs: what is planted follows from seed and number, and a sample of reports names it and nothing else."""

import random
from pathlib import Path

import pytest

from benchmarks.fuzz_jobs import Job, check_job, faults_of, make_job, simulate


def test_a_seed_gives_the_same_job_again_and_others_differ() -> None:
    assert make_job(random.Random("1:5")) == make_job(random.Random("1:5"))
    assert len({repr(make_job(random.Random(f"1:{number}"))) for number in range(30)}) == 30


def test_the_planted_rank_keeps_its_file_and_a_link_the_files_of_three_hosts() -> None:
    for number in range(300):
        job = make_job(random.Random(f"1:{number}"))
        gone = {*job.cut, *job.empty, *job.missing}
        assert len(gone) < job.ranks - 1 and not gone & job.twice.keys()
        if job.fault == "link":
            whole = [
                host
                for host in range(job.ranks // job.host_ranks)
                if not gone & {*range(host * job.host_ranks, (host + 1) * job.host_ranks)}
            ]
            assert job.at in whole and len(whole) >= 3
        elif job.fault is not None:
            assert job.at not in gone


def test_a_planted_fault_makes_its_rank_later_by_so_much() -> None:
    job = Job(8, 2, "python", 3, 4000.0, names="told", compress=False)
    times = simulate(job, "seed")
    spent = times.ends["python"] - times.begins["python"]
    assert (spent[3] - 4000.0 < 400).all() and (spent[3] > 4200).all() and (spent[[0, 1, 2, 4]] < 400).all()


def test_a_report_that_names_another_rank_is_wrong() -> None:
    job = Job(4, 2, "loader", 3, 4000.0, names="told", compress=False, missing=(1,))
    ranks = [{"rank": rank} for rank in (0, 2, 3)]
    told = [{"slug": "missing-ranks", "message": "of 4 ranks, no trace was given of 1"}]
    sound = {"job": {"slow": [{"name": "rank 3"}], "slow_links": []}, "ranks": ranks, "caveats": told}
    assert faults_of(job, sound) == []
    other = {**sound, "job": {"slow": [{"name": "rank 2"}], "slow_links": []}}
    assert faults_of(job, other) == ["names rank 2", "misses rank 3"]
    assert faults_of(job, {**sound, "caveats": []}) == ["does not miss all of [1]: "]
    wrong = [{"slug": "missing-ranks", "message": "of 4 ranks, no trace was given of 1 and 2"}]
    assert faults_of(job, {**sound, "caveats": wrong}) == ["misses rank 2, which is there"]


@pytest.mark.parametrize(("more", "is_wrong"), [(4, False), (1, True)])
def test_a_list_of_missing_ranks_that_is_cut_counts_the_rest(more: int, is_wrong: bool) -> None:
    job = Job(20, 2, "loader", 0, 4000.0, names="told", compress=False, missing=tuple(range(8, 20)))
    listed = ", ".join(map(str, range(8, 16)))
    told = [{"slug": "missing-ranks", "message": f"of 20 ranks, no trace was given of {listed} and {more} more"}]
    ranks = [{"rank": rank} for rank in range(8)]
    report = {"job": {"slow": [{"name": "rank 0"}], "slow_links": []}, "ranks": ranks, "caveats": told}
    assert bool(faults_of(job, report)) == is_wrong


@pytest.mark.process
@pytest.mark.parametrize(
    ("seed", "number"), [(1, 5), (1, 8), (1, 11), pytest.param(4, 13, id="a slow rank that is alone on its host")]
)
def test_a_sample_of_jobs_has_the_planted_named_and_nobody_else(
    seed: int, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    job, wrong = check_job(seed, number, tmp_path / "job")
    assert not wrong, (wrong, job)
