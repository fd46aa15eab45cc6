"""Workers of a Dask cluster: with a stand-in for Dask, and with Dask itself where it is installed."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from bottleneck.errors import TraceError, UsageError, WorkloadError
from bottleneck.mapping import cluster
from bottleneck.mapping.cluster import ClusterWorkers
from bottleneck.mapping.tasks import map_tasks
from bottleneck.mapping.workers import InProcess


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

    def get_executor(self, pure: bool) -> InProcess:
        assert not pure
        return InProcess()


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


def test_without_dask_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_: str) -> Any:
        raise ImportError

    monkeypatch.setattr(cluster, "import_module", absent)
    with pytest.raises(UsageError, match="needs Dask") as caught:
        ClusterWorkers("local:2")
    assert "torch-bottleneck[cluster]" in caught.value.fix
