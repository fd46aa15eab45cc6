"""Ranks read through workers: what is done is kept, what is missing is read, and what cannot be read is named."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from bottleneck import pipeline
from bottleneck.errors import TraceError, UsageError
from bottleneck.mapping.rank_reading import DigestFolder, RankReading
from bottleneck.mapping.workers import LocalWorkers
from bottleneck.pipeline import DEFAULTS, Options, analyse, digest
from bottleneck.schema.digest import RankDigest
from bottleneck.schema.records import replace
from bottleneck.schema.sources import TraceSource, find_traces
from tests.builders import write_trace
from tests.test_pipeline import gpu_events


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Six ranks on three hosts."""
    for rank in range(6):
        host = tmp_path / "job" / f"node-{rank // 2}"
        host.mkdir(parents=True, exist_ok=True)
        write_trace(host / f"{rank}.json", gpu_events(), distributedInfo={"rank": rank, "world_size": 6})
    return tmp_path / "job"


class Counting:
    """Reads traces; Ctrl-C comes before one of them."""

    def __init__(self, stops_before: int | None = None) -> None:
        self.read: list[str] = []
        self._stops_before = stops_before

    def __call__(self, source: TraceSource, options: Options = DEFAULTS) -> RankDigest:
        if len(self.read) == self._stops_before:
            raise KeyboardInterrupt
        self.read.append(source.trace.name)
        return digest(source, options)


def _kept(folder: Path, *, resumes: bool = True) -> RankReading:
    return RankReading(folder=DigestFolder(folder), resumes=resumes)


def test_hosts_come_from_the_folders_of_a_job(job: Path) -> None:
    (job / "link").symlink_to(job / "node-0")
    (job / ".hidden").mkdir()
    (job / ".hidden" / "9.json").write_text("")
    sources = find_traces(job)
    assert [(one.host, one.trace.name) for one in sources] == [(f"node-{at // 2}", f"{at}.json") for at in range(6)]
    assert [one.host for one in find_traces(job.parent)] == [f"job/node-{at // 2}" for at in range(6)]


def test_what_was_read_before_an_interrupt_is_not_read_again(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = analyse([job])
    first, second = Counting(stops_before=4), Counting()
    monkeypatch.setattr(pipeline, "digest", first)
    with pytest.raises(KeyboardInterrupt) as stopped:
        analyse([job], reading=_kept(tmp_path / "kept", resumes=False))
    assert stopped.value.__notes__ == ["4 of 6 ranks are read; the same command with --resume reads the rest"]
    monkeypatch.setattr(pipeline, "digest", second)
    assert analyse([job], reading=_kept(tmp_path / "kept")) == expected
    assert (first.read, second.read) == (["0.json", "1.json", "2.json", "3.json"], ["4.json", "5.json"])


def test_a_trace_that_has_changed_and_a_digest_that_is_damaged_are_read_again(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    analyse([job], reading=_kept(tmp_path / "kept"))
    write_trace(job / "node-0" / "1.json", gpu_events()[:-1], distributedInfo={"rank": 1, "world_size": 6})
    next((tmp_path / "kept").iterdir()).write_bytes(b"bottleneck digest 1\n")
    again = Counting()
    monkeypatch.setattr(pipeline, "digest", again)
    analyse([job], reading=_kept(tmp_path / "kept"))
    assert "1.json" in again.read and len(again.read) in {1, 2}


def test_digests_are_gone_after_a_report_that_does_not_resume(job: Path, tmp_path: Path) -> None:
    analyse([job], reading=_kept(tmp_path / "kept", resumes=False))
    assert list((tmp_path / "kept").iterdir()) == []
    analyse([job], reading=_kept(tmp_path / "kept"))
    assert len(list((tmp_path / "kept").iterdir())) == 6


def _names_left_out(paths: Sequence[Path], options: Options | None = None) -> dict[str, str]:
    job = analyse(paths, options).job
    assert job is not None
    return {Path(one.path).name: one.reason for one in job.left_out}


def test_a_rank_that_cannot_be_read_is_named_and_the_others_are_reported(job: Path) -> None:
    (job / "node-1" / "2.json").write_text("no trace")
    (job / "node-1" / "3.json").write_text("")
    left_out = _names_left_out([job])
    assert left_out.keys() == {"2.json", "3.json"}
    assert left_out["3.json"] == "it is empty"
    assert [rank.rank for rank in analyse([job]).ranks] == [0, 1, 4, 5]


def test_a_rank_without_the_chosen_steps_is_named(job: Path) -> None:
    short = [event for event in gpu_events() if "#" not in event["name"] or event["name"].endswith("#1")]
    write_trace(job / "node-1" / "2.json", short, distributedInfo={"rank": 2, "world_size": 6})
    summary = analyse([job], Options(steps=slice(0, 2))).job
    assert summary is not None
    [left_out] = summary.left_out
    assert (Path(left_out.path).name, left_out.rank) == ("2.json", 2) and "--steps" in left_out.reason


@pytest.mark.process
def test_the_rank_of_a_trace_without_the_chosen_steps_comes_back_from_another_process(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = [event for event in gpu_events() if "#" not in event["name"] or event["name"].endswith("#1")]
    write_trace(job / "node-1" / "2.json", short, distributedInfo={"rank": 2, "world_size": 6})
    monkeypatch.setattr("bottleneck.mapping.workers._WORTH_PROCESSES_BYTES", 0)
    summary = analyse([job], Options(steps=slice(0, 2)), reading=RankReading(LocalWorkers(2))).job
    assert summary is not None and [one.rank for one in summary.left_out] == [2]


def test_a_rank_that_is_cut_off_before_its_first_step_ends_is_named(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stumpy(source: TraceSource, options: Options) -> RankDigest:
        found = digest(source, options)
        is_stump = source.trace.name == "4.json"
        source_of_steps = "whole" if is_stump else "profiler"
        return replace(found, is_cut_off=is_stump, steps=replace(found.steps, source=source_of_steps))

    monkeypatch.setattr(pipeline, "digest", stumpy)
    job_summary = analyse([job]).job
    assert job_summary is not None
    [left_out] = job_summary.left_out
    assert (left_out.rank, left_out.reason) == (4, "the file is cut off before the end of its first step")


def test_ranks_none_of_which_can_be_read_are_an_error(job: Path) -> None:
    for file in job.rglob("*.json"):
        file.write_text("")
    with pytest.raises(TraceError, match=r"0\.json is empty") as caught:
        analyse([job])
    assert caught.value.why.endswith("none of 6 traces can be used")


def test_steps_that_no_rank_has_are_wrong_usage(job: Path) -> None:
    with pytest.raises(UsageError, match="--steps 70:80 is out of range"):
        analyse([job], Options(steps=slice(70, 80)))
