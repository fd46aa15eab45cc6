"""Workers of a Dask cluster: with a stand-in for Dask, and with Dask itself where it is installed."""

import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bottleneck.errors import TraceError, UsageError, WorkloadError
from bottleneck.mapping import cluster
from bottleneck.mapping.cluster import ClusterWorkers
from bottleneck.mapping.rank_reading import DigestFolder, RankReading
from bottleneck.mapping.workers import LocalWorkers, map_tasks
from bottleneck.pipeline import analyse
from bottleneck.report.json_text import to_json
from tests.builders import write_trace
from tests.test_pipeline import gpu_events


class KilledWorker(Exception):  # noqa: N818 - the name is Dask's
    """As Dask's."""


class FutureCancelledError(Exception):
    """As Dask's."""


class Client:
    """A client of a cluster of two threads, whose tasks run here."""

    def __init__(self, address: object, set_as_default: bool) -> None:
        self.threads = {"tcp://a": 2}

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def nthreads(self) -> dict[str, int]:
        return self.threads

    def get_events(self, topic: str) -> list[tuple[float, object]]:
        return []

    def cancel(self, tasks: object) -> None:
        pass

    def submit(self, fn: Any, *args: Any, key: str, pure: bool) -> "Task":
        assert not pure
        return Task(fn, args)


class Task:
    """A task that is done when its result is asked for."""

    def __init__(self, fn: Any, args: Any) -> None:
        self._fn, self._args = fn, args

    def add_done_callback(self, callback: Any) -> None:
        callback(self)

    def result(self) -> Any:
        return self._fn(*self._args)


@pytest.fixture
def _dask(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def local(**_: object) -> Iterator[str]:
        yield "tcp://local"

    fake = SimpleNamespace(Client=Client, LocalCluster=local, KilledWorker=KilledWorker)
    monkeypatch.setattr(cluster, "import_module", lambda _: fake)


def failing(number: int) -> int:
    if number == 1:
        raise KilledWorker
    if number == 2:
        raise FutureCancelledError("scheduler")
    return number


@pytest.mark.usefixtures("_dask")
@pytest.mark.parametrize("address", ["local:3", "tcp://10.0.0.1:8786"])
def test_tasks_run_on_the_cluster_and_one_that_kills_its_workers_is_an_error_of_its_item(address: str) -> None:
    found = dict(map_tasks(failing, {0: 0, 1: 1, 3: 3}, ClusterWorkers(address), 0))
    error = found.pop(1)
    assert isinstance(error, TraceError) and "killed" in error.why
    assert found == {0: 0, 3: 3}


@pytest.mark.usefixtures("_dask")
def test_a_lost_scheduler_is_an_error_that_tells_how_to_go_on() -> None:
    with pytest.raises(WorkloadError, match="scheduler at tcp://h:1 is gone") as caught:
        dict(map_tasks(failing, {2: 2}, ClusterWorkers("tcp://h:1"), 0))
    assert "--resume" in caught.value.fix


@pytest.mark.usefixtures("_dask")
def test_a_cluster_without_workers_is_waited_for_a_while_only() -> None:
    now_s = 0.0
    workers = ClusterWorkers("tcp://h:1", clock=lambda: now_s)
    with workers.opened(1, 0):
        workers.check()
        workers._client.threads = {}
        workers.check()
        now_s = 19.0
        workers.check()
        now_s = 20.0
        with pytest.raises(WorkloadError, match="no worker of the Dask cluster tcp://h:1 is left") as caught:
            workers.check()
    assert caught.value.exit_code == 4 and "--resume" in caught.value.fix


@pytest.mark.usefixtures("_dask")
@pytest.mark.parametrize("address", ["local:0", "local:", "node1", "http://x"])
def test_an_address_that_is_none_is_wrong_usage(address: str) -> None:
    with pytest.raises(UsageError, match="is no address of a Dask cluster"):
        ClusterWorkers(address)


def test_without_dask_its_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_: str) -> Any:
        raise ImportError

    monkeypatch.setattr(cluster, "import_module", absent)
    with pytest.raises(UsageError, match="needs Dask") as caught:
        ClusterWorkers("local:2")
    assert caught.value.fix == "install it: pip install distributed"


def held_once(work: tuple[int, Path | None]) -> int:
    """The number itself; the first call with a folder tells its process and waits to be killed."""
    number, folder = work
    if folder is not None:
        with (folder / "calls").open("a") as calls:
            calls.write(f"{number}\n")
        if number == 3 and (folder / "calls").read_text().split().count("3") == 1:
            (folder / "pid").write_text(str(os.getpid()))
            signal.pause()
    return number


def kill_the_one_that_waits(pipe: Path, may_kill: threading.Event) -> None:
    number = int(pipe.read_text())
    may_kill.wait()
    os.kill(number, signal.SIGKILL)


@pytest.mark.process
def test_a_killed_worker_costs_one_task_and_the_results_stay_the_same(tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="the extra `cluster` is not installed")
    os.mkfifo(tmp_path / "pid")
    may_kill = threading.Event()
    killer = threading.Thread(target=kill_the_one_that_waits, args=(tmp_path / "pid", may_kill), daemon=True)
    killer.start()
    workers, found = ClusterWorkers("local:2"), {}
    for key, result in map_tasks(held_once, {number: (number, tmp_path) for number in range(12)}, workers, 0):
        found[key] = result
        if len(found) == 8:  # all that the worker did before it waited has been fetched from it
            may_kill.set()
    assert found == {number: number for number in range(12)}
    calls = (tmp_path / "calls").read_text().split()
    assert workers.repeated == len(calls) - 12 == 1


@pytest.fixture
def cluster_without_nannies(tmp_path: Path) -> Iterator[tuple[str, list[subprocess.Popen[str]]]]:
    """The address of a scheduler with two workers that nobody starts again, and their processes."""
    pytest.importorskip("distributed", reason="the extra `cluster` is not installed")
    dask = [sys.executable, "-W", "ignore", "-m"]
    quiet = ["--no-dashboard", "--host", "127.0.0.1"]
    scheduler = subprocess.Popen(
        [*dask, "distributed.cli.dask_scheduler", "--port", "0", *quiet],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
    )
    assert scheduler.stderr is not None
    address = next(line.split()[-1] for line in scheduler.stderr if "Scheduler at:" in line)
    command = [*dask, "distributed.cli.dask_worker", address, "--no-nanny", "--nthreads", "1", *quiet]
    with (tmp_path / "workers.log").open("w") as log:
        workers = [subprocess.Popen(command, stderr=log, text=True, cwd=tmp_path) for _ in range(2)]
    yield address, workers
    for process in (*workers, scheduler):
        process.kill()
        process.wait()
    scheduler.stderr.close()


@pytest.mark.process
def test_a_job_whose_workers_are_all_killed_ends_with_a_clear_error_and_is_finished_by_resume(
    tmp_path: Path,
    cluster_without_nannies: tuple[str, list[subprocess.Popen[str]]],
    capfd: pytest.CaptureFixture[str],
) -> None:
    job = tmp_path / "job"
    job.mkdir()
    for rank in range(12):
        write_trace(job / f"{rank}.json", gpu_events(), distributedInfo={"rank": rank, "world_size": 12})
    expected = to_json(analyse([job]))
    address, processes = cluster_without_nannies

    def kill_all(done: int, _total: int, _path: Path, *_bytes: int) -> None:
        if done == 3:
            for process in processes:
                process.kill()

    later_s = itertools.count(0.0, 60.0)
    kept = DigestFolder(tmp_path / "kept")
    workers = ClusterWorkers(address, clock=lambda: next(later_s))
    with pytest.raises(WorkloadError, match="no worker of the Dask cluster") as caught:
        analyse([job], on_trace=kill_all, reading=RankReading(workers, kept, resumes=False))
    assert caught.value.exit_code == 4 and "--resume" in caught.value.fix
    assert capfd.readouterr() == ("", "")
    assert 3 <= len(list((tmp_path / "kept").iterdir())) < 12
    assert to_json(analyse([job], reading=RankReading(LocalWorkers(), kept, resumes=True))) == expected
