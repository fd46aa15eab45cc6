import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bottleneck.errors import UsageError
from bottleneck.harness.rank_coordination import PATIENCE_S, LaunchedRank, PollClock, RankGroup, ranks_present


class Time:
    """A clock that moves when somebody sleeps; ``meanwhile`` is what others do then."""

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.now_s, self._meanwhile = 0.0, meanwhile

    def clock(self) -> PollClock:
        return PollClock(lambda: self.now_s, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self._meanwhile()


def joined(folder: Path, rank: int, *, ranks: int = 2, time: Time | None = None, beside: int = 2) -> RankGroup:
    group = RankGroup(folder, LaunchedRank(rank, ranks, "job-1"), beside, (time or Time()).clock())
    group.join(lambda: None)
    return group


def test_only_the_first_rank_makes_room(tmp_path: Path) -> None:
    made: list[int] = []
    for rank in range(3):
        RankGroup(tmp_path, LaunchedRank(rank, 3, "job-1")).join(lambda rank=rank: made.append(rank))  # type: ignore[misc]
    assert made == [0]
    assert ranks_present(tmp_path) == [0, 1, 2]


def test_a_folder_of_another_job_or_of_a_finished_recording_is_not_joined(tmp_path: Path) -> None:
    def refuse() -> None:
        raise UsageError("not empty")

    joined(tmp_path, 0)
    with pytest.raises(UsageError):
        RankGroup(tmp_path, LaunchedRank(1, 2, "job-2")).join(refuse)
    (tmp_path / "recording.json").write_text("{}")
    with pytest.raises(UsageError):
        RankGroup(tmp_path, LaunchedRank(1, 2, "job-1")).join(refuse)
    assert ranks_present(tmp_path) == [0]


def test_the_last_one_to_leave_finishes(tmp_path: Path) -> None:
    first, second = (joined(tmp_path, rank) for rank in range(2))
    assert not second.leave(in_order=True)
    assert first.leave(in_order=True)
    first.close()
    assert list(tmp_path.iterdir()) == []


def test_the_lowest_rank_stays_until_the_others_have_left(tmp_path: Path) -> None:
    left: list[bool] = []
    time = Time(lambda: time.now_s > 5 and left.append(second.leave(in_order=True)))
    first, second = joined(tmp_path, 0, time=time), joined(tmp_path, 1)
    assert first.leave(in_order=True)
    assert left == [False], "only one of them finishes the recording"
    assert 5 < time.now_s < 6


@pytest.mark.parametrize("is_closed", [False, True], ids=["still at it", "done"])
def test_a_recording_that_another_finishes_is_left_to_it(is_closed: bool, tmp_path: Path) -> None:
    second = joined(tmp_path, 1, beside=0)

    def finish() -> None:
        # On a file system without locks the other cannot tell that this one stays.
        first._rank_file(0).write_bytes(b"no lock")
        assert second.leave(in_order=True)
        if is_closed:
            second.close()

    first = joined(tmp_path, 0, time=Time(finish), beside=0)
    assert not first.leave(in_order=True)


def test_its_patience_has_an_end_and_then_the_other_finishes(tmp_path: Path) -> None:
    time = Time()
    first, second = joined(tmp_path, 0, time=time), joined(tmp_path, 1)
    assert not first.leave(in_order=True)
    assert PATIENCE_S <= time.now_s < PATIENCE_S + 1
    assert second.leave(in_order=True)


def test_a_rank_that_failed_leaves_at_once(tmp_path: Path) -> None:
    time = Time()
    first, second = joined(tmp_path, 0, time=time), joined(tmp_path, 1)
    assert not first.leave(in_order=False)
    assert time.now_s == 0
    assert second.leave(in_order=False)


def test_a_supervisor_that_was_killed_is_not_waited_for(tmp_path: Path) -> None:
    first = joined(tmp_path, 0)
    child = os.fork()
    if child == 0:
        joined(tmp_path, 1)
        os._exit(0)
    os.waitpid(child, 0)
    assert ranks_present(tmp_path) == [0, 1]
    assert first.leave(in_order=True)


def test_a_rank_that_has_yet_to_come_is_waited_for(tmp_path: Path) -> None:
    time = Time(lambda: time.now_s > 1 and not ranks_present(tmp_path)[1:] and joined(tmp_path, 1).leave(in_order=True))
    assert joined(tmp_path, 0, time=time).leave(in_order=True)
    assert time.now_s > 1


def test_ranks_of_other_machines_are_not_missed_in_a_folder_that_is_not_shared(tmp_path: Path) -> None:
    third, fourth = (joined(tmp_path, rank, ranks=4) for rank in (2, 3))
    assert not fourth.leave(in_order=True)
    assert third.leave(in_order=True)


def test_a_folder_that_the_program_removed_is_nobodys_to_finish(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    first = joined(folder, 0)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    assert not first.leave(in_order=True)
