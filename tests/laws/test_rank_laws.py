"""Laws of a job of several ranks: its analysis depends on the traces alone, not on how and when they are read."""

import itertools
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from pathlib import Path
from random import Random

import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck.analysis.ranks import reduce_ranks
from bottleneck.errors import TraceError
from bottleneck.mapping.cluster import ClusterWorkers
from bottleneck.mapping.rank_reading import DigestFolder, RankReading
from bottleneck.mapping.workers import InProcess, LocalWorkers
from bottleneck.pipeline import Options, analyse
from bottleneck.report.json_text import to_json
from bottleneck.schema.analysis import Analysis
from bottleneck.schema.digest import RankDigest
from bottleneck.schema.reasons import Reason
from bottleneck.schema.recording import RankTrace, read_recording, write_recording
from bottleneck.schema.records import replace
from bottleneck.system.files import located
from bottleneck.trace.common_steps import share_steps
from tests.builders import HOST, Event, complete, frame, op, step, write_trace
from tests.digests import Job, Place, make_digest
from tests.test_pipeline import ORIGIN_NS, record


@pytest.fixture(scope="module")
def job(traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four real ranks on two hosts, and a file that is no trace."""
    folder = tmp_path_factory.mktemp("job")
    for at, trace in enumerate(sorted(traces.glob("pytorch+torchrec*sst_long_a2a*"))):
        host = folder / f"host{at % 2}"
        host.mkdir(exist_ok=True)
        shutil.copyfile(trace, host / f"rank{3 - at}.json.gz")
    (folder / "host1" / "torn.json").write_text('{"traceEvents": [{"ph"')
    return folder


@pytest.fixture(scope="module")
def answer(job: Path) -> str:
    """The analysis by one process."""
    return to_json(analyse([job]))


class Scrambled:
    """Workers that finish their tasks in another order."""

    at_once = 100

    @contextmanager
    def opened(self, tasks: int, size_bytes: int) -> Iterator[Executor]:
        done: list[tuple[Future[object], Future[object]]] = []

        class Late(InProcess):
            def submit(self, fn, /, *args, **kwargs):  # type: ignore[no-untyped-def]
                promise: Future[object] = Future()
                done.append((promise, super().submit(fn, *args, **kwargs)))
                if len(done) == tasks:
                    for one, other in reversed(done):
                        error = other.exception()
                        one.set_exception(error) if error else one.set_result(other.result())
                return promise

        yield Late()

    def check(self) -> None:
        pass

    def item_error(self, failure: Exception) -> TraceError | None:
        return LocalWorkers().item_error(failure)


def test_the_analysis_names_all_ranks_hosts_and_what_was_left_out(job: Path) -> None:
    analysis = analyse([job])
    assert [rank.rank for rank in analysis.ranks] == [0, 1, 2, 3]
    assert analysis.job is not None
    assert (analysis.job.ranks, analysis.job.hosts) == (4, 2)
    [left_out] = analysis.job.left_out
    assert left_out.path.endswith("torn.json")


def test_the_analysis_does_not_depend_on_the_order_in_which_ranks_get_done(job: Path, answer: str) -> None:
    assert to_json(analyse([job], reading=RankReading(Scrambled()))) == answer


@pytest.mark.process
@pytest.mark.parametrize("jobs", [2, 3])
def test_the_analysis_does_not_depend_on_the_number_of_processes(
    job: Path, answer: str, jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bottleneck.mapping.workers._WORTH_PROCESSES_BYTES", 0)
    assert to_json(analyse([job], reading=RankReading(LocalWorkers(jobs)))) == answer


def test_the_analysis_does_not_depend_on_the_store_that_holds_the_files(job: Path, answer: str) -> None:
    store = fsspec.filesystem("memory")
    store.put(str(job), "/law/job", recursive=True)
    assert to_json(analyse([located(Path("memory://law/job"))])) == answer.replace(str(job), "memory://law/job")


@pytest.mark.process
def test_the_analysis_of_files_in_a_store_does_not_depend_on_the_number_of_processes(
    job: Path, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bottleneck.mapping.workers._WORTH_PROCESSES_BYTES", 0)
    found = to_json(analyse([located(Path(f"file://{job}"))], reading=RankReading(LocalWorkers(2))))
    assert found == answer.replace(str(job), f"file://{job}")


@pytest.mark.process
def test_the_analysis_does_not_depend_on_a_cluster(job: Path, answer: str) -> None:
    pytest.importorskip("distributed", reason="the extra `cluster` is not installed")
    assert to_json(analyse([job], reading=RankReading(ClusterWorkers("local:2")))) == answer


def test_the_analysis_does_not_depend_on_digests_that_were_kept(job: Path, answer: str, tmp_path: Path) -> None:
    for _ in range(2):
        assert to_json(analyse([job], reading=RankReading(folder=DigestFolder(tmp_path), resumes=True))) == answer


def test_the_analysis_does_not_depend_on_what_is_held_in_memory(
    job: Path, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bottleneck.system.working_memory._HELD_BYTES", 1)
    assert to_json(analyse([job])) == answer


def _orders(files: Sequence[Path]) -> Iterator[Sequence[Path]]:
    yield from itertools.islice(itertools.permutations(files), 1, None, 37)


def test_the_analysis_does_not_depend_on_the_order_of_files(job: Path) -> None:
    files = sorted(job.rglob("*.json*"))
    expected = to_json(analyse(files))
    for order in _orders(files):
        assert to_json(analyse(order)) == expected


def test_digests_that_were_kept_for_other_options_are_not_used(job: Path, tmp_path: Path) -> None:
    reading = RankReading(folder=DigestFolder(tmp_path), resumes=True)
    analyse([job], reading=reading)
    whole = Options(whole=True)
    assert to_json(analyse([job], whole, reading=reading)) == to_json(analyse([job], whole))


# Rank 1 computes for 20 ms in each step, and rank 0 waits for it. It records two steps and then writes its trace, which
# rank 0 waits for in its third step; its fourth and fifth are quick.
_LATE_MS = 20.0
_WALLS_MS = {0: (40.0, 32.0, 3700.0, 14.0, 16.0), 1: (40.0, 32.0)}
_MS = 1e3


def _step_of_rank(rank: int, number: int, at_us: float, wall_us: float) -> list[Event]:
    """One step: Python on rank 1 alone, a product, and a reduction that both leave at its end."""
    late_us = _LATE_MS * _MS if rank == 1 else 0.0
    begun_us = at_us + late_us + 6 * _MS
    return [
        step(number, at_us, wall_us),
        *([frame("train.py(15): tokenise", at_us + 10, late_us)] if late_us else []),
        op("aten::mm", at_us + late_us + 100, 5 * _MS, dims=[[256, 256], [256, 256]]),
        op("c10d::allreduce_", begun_us - 50, 40, external_id=2),
        complete(
            "gloo:all_reduce",
            "user_annotation",
            begun_us,
            at_us + wall_us - 2 * _MS - begun_us,
            tid=HOST + 1,
            args={"Input Dims": [[65536]]},
        ),
        op("aten::add_", at_us + wall_us - 1.9 * _MS, 1 * _MS, dims=[[256, 256], [256, 256], []]),
    ]


def _events_of_rank(rank: int) -> tuple[list[Event], list[float]]:
    """The events of a rank, and where its steps begin and end."""
    marks_us = [0.0, *itertools.accumulate(wall_ms * _MS for wall_ms in _WALLS_MS[rank])]
    steps = itertools.pairwise(marks_us)
    events = [
        event
        for number, (start, end) in enumerate(steps)
        for event in _step_of_rank(rank, 4 + number, start, end - start)
    ]
    return events, marks_us


def _told(rank: int) -> dict[str, object]:
    return {"distributedInfo": {"backend": "gloo", "rank": rank, "world_size": 2}, "deviceProperties": []}


@pytest.fixture
def late(tmp_path: Path) -> Sequence[Path]:
    """The traces of both ranks, with steps of the profiler."""
    return [write_trace(tmp_path / f"rank{rank}.json", _events_of_rank(rank)[0], **_told(rank)) for rank in (0, 1)]


def _recorded(folder: Path, first_step: int | None, ranks: Sequence[int] = (0, 1)) -> Path:
    """A recording of both ranks, whose steps its marks tell."""
    record(folder, [])
    traces = []
    for rank in ranks:
        events, marks_us = _events_of_rank(rank)
        name, marks_ns = f"trace.rank{rank}.json", tuple(round(ORIGIN_NS + 1e3 * at_us) for at_us in marks_us)
        write_trace(folder / name, [event for event in events if "#" not in event["name"]], **_told(rank))
        traces.append(RankTrace(rank, name, marks_ns, first_step=first_step))
    write_recording(folder, replace(read_recording(folder), traces=tuple(traces)))
    return folder


def _blames_rank_1(analysis: Analysis) -> bool:
    late = [finding.title for finding in analysis.findings if finding.slug == "late-rank"]
    return late == ["The other ranks wait for rank 1"] and analysis.verdict.sentence.startswith(
        "Rank 1 is late: rank 0 waits "
    )


def test_the_rank_whose_window_closed_early_is_the_late_one_by_the_steps_of_both(late: Sequence[Path]) -> None:
    analysis = analyse(late)
    assert _blames_rank_1(analysis)
    assert analysis.steps.count == 2
    assert [rank.wall_us for rank in analysis.ranks] == pytest.approx([36 * _MS, 36 * _MS])
    assert analysis.job is not None and [one.line for one in analysis.job.slow] == ["tokenise() (train.py:15)"]
    assert not {"other-steps", "unmatched-ranks", "rank-clocks"} & {caveat.slug for caveat in analysis.caveats}


def test_each_rank_alone_explains_steps_of_its_own(late: Sequence[Path]) -> None:
    chosen = [[at for at, one in enumerate(analyse([path]).steps.each) if one.set_aside is None] for path in late]
    assert not set(chosen[0]) & set(chosen[1])


def test_the_steps_of_both_do_not_depend_on_the_order_of_files(late: Sequence[Path]) -> None:
    expected = analyse(late)
    assert analyse([*reversed(late)]).ranks == expected.ranks
    assert to_json(replace(analyse([*reversed(late)]), recording=expected.recording)) == to_json(expected)


@pytest.mark.parametrize("first_step", [None, 29], ids=["marks", "numbered marks"])
def test_ranks_of_a_recording_are_judged_over_the_steps_of_both(tmp_path: Path, first_step: int | None) -> None:
    analysis = analyse([_recorded(tmp_path / "run", first_step)])
    assert _blames_rank_1(analysis)
    assert analysis.steps.source == "marks" and analysis.steps.count == 2
    turned = analyse([_recorded(tmp_path / "turned", first_step, (1, 0))])
    assert to_json(turned).replace(str(tmp_path / "turned"), str(tmp_path / "run")) == to_json(analysis)


def test_steps_that_the_user_chose_stay_as_they_are(late: Sequence[Path]) -> None:
    analysis = analyse(late, Options(steps=slice(1, 2)))
    assert analysis.steps.count == 1
    assert [rank.wall_us for rank in analysis.ranks] == pytest.approx([32 * _MS, 32 * _MS])
    assert {one.set_aside for one in analysis.steps.each} == {None, "not in --steps 1:2"}


def test_a_whole_trace_that_the_user_chose_stays_as_it_is(late: Sequence[Path]) -> None:
    assert analyse(late, Options(whole=True)).ranks[0].wall_us > 3700 * _MS


def test_ranks_that_recorded_no_step_in_common_accuse_nobody(late: Sequence[Path]) -> None:
    events = [
        {**event, "name": event["name"].replace("#5", "#25").replace("#4", "#24")} for event in _events_of_rank(1)[0]
    ]
    write_trace(late[1], events, **_told(1))
    analysis = analyse(late)
    messages = {caveat.slug: caveat.message for caveat in analysis.caveats}
    assert messages["other-steps"].startswith("the ranks recorded no step in common")
    assert "unmatched-ranks" not in messages
    assert "late-rank" not in {finding.slug for finding in analysis.findings}
    assert " wait" not in analysis.verdict.sentence.partition("Communication")[0]
    assert analysis.job is not None and analysis.job.slow == ()
    assert [rank.skew_us for rank in analysis.ranks] == [None, None]


def test_what_is_kept_of_a_rank_that_is_read_again_is_told_apart(late: Sequence[Path], tmp_path: Path) -> None:
    expected = to_json(analyse(late))
    for _ in range(2):
        reading = RankReading(folder=DigestFolder(tmp_path / "kept"), resumes=True)
        assert to_json(analyse(late, reading=reading)) == expected


_WALLS = st.lists(st.sampled_from([10.0, 11.0, 12.0, 30.0, 400.0]), min_size=1, max_size=9)


@given(st.lists(st.tuples(st.integers(0, 6), _WALLS), min_size=2, max_size=5), st.randoms())
def test_ranks_explain_the_same_steps_which_all_of_them_recorded(
    windows: Sequence[tuple[int, Sequence[float]]], random: Random
) -> None:
    ranks = [_numbered_rank(rank, *window) for rank, window in enumerate(windows)]
    shared = share_steps(ranks)
    common = set.intersection(*(set(one.step_numbers) for one in ranks))
    assert shared.sharing == ("same" if common else "none")
    kept = [
        [one.step_numbers[at] for at, why in enumerate(_reasons(one, chosen)) if why is None]
        for one, chosen in zip(ranks, shared.set_aside, strict=True)
    ]
    if common:
        assert kept[0] and all(each == kept[0] for each in kept)
        assert set(kept[0]) <= common
    order = [*range(len(ranks))]
    random.shuffle(order)
    assert share_steps([ranks[at] for at in order]).set_aside == tuple(shared.set_aside[at] for at in order)


def _numbered_rank(rank: int, first: int, walls_us: Sequence[float]) -> RankDigest:
    starts_us = [0.0, *itertools.accumulate(walls_us)][:-1]
    made = make_digest(rank, [], {"compute": 10.0}, starts_us, Place())
    return replace(
        made,
        step_wall_us=np.array(walls_us),
        step_numbers=tuple(range(first, first + len(walls_us))),
    )


def _reasons(digest: RankDigest, chosen: Sequence[Reason | None] | None) -> Sequence[Reason | None]:
    return digest.set_aside if chosen is None else chosen


def test_no_rank_of_a_job_without_common_steps_is_slow() -> None:
    digests = Job(ranks=8, pace={3: 2.0}).digests()
    assert [one.name for one in reduce_ranks(digests).job.slow] == ["rank 3"]
    silent = reduce_ranks(digests, sharing="none")
    assert silent.job.slow == () and silent.straggler == ()
