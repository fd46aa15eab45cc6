"""Tasks mapped through executors that lose their workers, or not."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import closing, contextmanager
from pathlib import Path

import psutil
import pytest

from bottleneck.errors import TraceError, WorkloadError
from bottleneck.mapping.workers import InProcess, LocalWorkers, map_tasks

LARGE = 2**40


def halved(number: int) -> int:
    if number % 2:
        raise TraceError(f"{number} is odd")
    return number // 2


class Losing:
    """Workers that are lost after so many tasks of each executor, for so many executors."""

    def __init__(self, after: int, times: int) -> None:
        self.after, self.times, self.calls = after, times, 0
        self.at_once = 2

    @contextmanager
    def opened(self, tasks: int, size_bytes: int) -> Iterator[Executor]:
        outer = self

        class Fragile(InProcess):
            done = 0

            def submit(self, fn, /, *args, **kwargs):  # type: ignore[no-untyped-def]
                if self.done == outer.after and outer.times:
                    outer.times -= 1
                    raise BrokenExecutor("gone")
                self.done += 1
                outer.calls += 1
                return super().submit(fn, *args, **kwargs)

        yield Fragile()

    def check(self) -> None:
        pass

    def item_error(self, failure: Exception) -> TraceError | None:
        return LocalWorkers().item_error(failure)


def test_results_and_errors_of_items_come_by_their_keys() -> None:
    found = dict(map_tasks(halved, {number: number for number in range(6)}, LocalWorkers(), 0))
    assert {key: value for key, value in found.items() if isinstance(value, int)} == {0: 0, 2: 1, 4: 2}
    assert [str(found[key]) for key in (1, 3, 5)] == ["1 is odd", "3 is odd", "5 is odd"]


def test_a_bug_is_no_result() -> None:
    with pytest.raises(TypeError):
        dict(map_tasks(halved, {0: "text"}, LocalWorkers(), 0))  # type: ignore[dict-item]


def test_only_what_was_not_done_is_done_again_after_a_loss() -> None:
    workers = Losing(after=4, times=2)
    assert len(dict(map_tasks(halved, {number: number for number in range(10)}, workers, 0))) == 10
    assert workers.calls == 10


def test_workers_that_are_lost_again_and_again_are_an_error_that_tells_how_to_go_on() -> None:
    with pytest.raises(WorkloadError, match="7 traces still to read") as caught:
        dict(map_tasks(halved, {number: number for number in range(10)}, Losing(after=1, times=99), 0))
    assert "--resume" in caught.value.fix


class Silent(Executor):
    """An executor whose tasks never end."""

    def submit(self, fn, /, *args, **kwargs):  # type: ignore[no-untyped-def]
        return Future()


class Deserted:
    """Workers that all go away while a task is waited for."""

    at_once = 2

    def item_error(self, failure: Exception) -> TraceError | None:
        return None

    @contextmanager
    def opened(self, tasks: int, size_bytes: int) -> Iterator[Executor]:
        yield Silent()

    def check(self) -> None:
        raise BrokenExecutor("no worker is left")


def test_workers_that_are_all_gone_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bottleneck.mapping.workers._LOOK_S", 0.0)
    with pytest.raises(WorkloadError) as caught:
        dict(map_tasks(halved, {0: 0}, Deserted(), 0))
    assert caught.value.why == "no worker is left"


def test_small_work_stays_in_this_process() -> None:
    with LocalWorkers(4).opened(4, 1000) as executor:
        assert isinstance(executor, InProcess)
    with LocalWorkers(1).opened(4, LARGE) as executor:
        assert isinstance(executor, InProcess)


@pytest.mark.process
def test_processes_give_what_this_one_gives() -> None:
    items = {number: number for number in range(20)}

    def found(workers: LocalWorkers) -> dict[int, str]:
        return {key: repr(result) for key, result in map_tasks(halved, items, workers, LARGE)}

    assert found(LocalWorkers(2)) == found(LocalWorkers())


@pytest.mark.process
def test_processes_are_ended_where_their_results_are_no_longer_wanted() -> None:
    before = set(psutil.Process().children(recursive=True))
    with closing(map_tasks(abs, {number: number for number in range(500)}, LocalWorkers(2), LARGE)) as results:
        next(results)
    assert set(psutil.Process().children(recursive=True)) <= before


def fatal_once(marker: str) -> str:
    """Ends its process at the first call with this file, which it leaves behind."""
    if marker and not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return marker


@pytest.mark.process
def test_a_killed_process_costs_its_own_task_only(tmp_path: Path) -> None:
    items = {number: str(tmp_path / "marker") if number == 3 else "" for number in range(8)}
    assert dict(map_tasks(fatal_once, items, LocalWorkers(2), LARGE)) == items


def fatal(number: int) -> int:
    """Ends its process for the number 3."""
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.process
def test_a_task_that_ends_each_process_is_an_error_of_its_item() -> None:
    found = dict(map_tasks(fatal, {number: number for number in range(6)}, LocalWorkers(2), LARGE))
    error = found.pop(3)
    assert isinstance(error, TraceError) and "killed" in error.why
    assert found == {number: number for number in (0, 1, 2, 4, 5)}
