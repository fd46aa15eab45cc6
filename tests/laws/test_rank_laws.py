"""Laws of a job of several ranks: its analysis depends on the traces alone, not on how and when they are read."""

import itertools
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from pathlib import Path

import fsspec
import pytest

from bottleneck.errors import TraceError
from bottleneck.mapping.cluster import ClusterWorkers
from bottleneck.mapping.rank_reading import DigestFolder, RankReading
from bottleneck.mapping.workers import InProcess, LocalWorkers
from bottleneck.pipeline import Options, analyse
from bottleneck.report.json_text import to_json
from bottleneck.system.files import located


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
