"""The thread that follows a program's notes, with a clock of the test's own."""

import json
import signal
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from bottleneck.harness.finish import Follower
from bottleneck.harness.folder import RankFiles
from bottleneck.harness.messages import Notes
from bottleneck.system.child_process import Child
from bottleneck.system.files import write_whole


class Program(Child):
    """A program that dies of the signals in ``deadly``; remembers all that it gets."""

    def __init__(self, folder: Path, *deadly: int) -> None:
        self.folder, self.deadly = folder, deadly
        self.got: list[tuple[int, bool]] = []
        self.died = False

    def send(self, number: int, *, to_group: bool) -> None:
        self.got.append((number, to_group))
        self.died = self.died or number in self.deadly

    def note(self, rank: int = 0, **changes: object) -> None:
        path = RankFiles(self.folder, rank).notes
        write_whole(path, json.dumps(asdict(replace(Notes(), **changes))))  # type: ignore[arg-type]


def follow(program: Program, *moments: Callable[[], object]) -> tuple[Follower, list[bool]]:
    """The follower after the program went through these moments, one between each two looks, and ended."""
    left = list(moments)
    told: list[bool] = []

    def wait(_ended: threading.Event, _seconds: float) -> bool:
        if not left or program.died:
            return True
        left.pop(0)()
        return False

    follower = Follower(program.folder, lambda ended: told.append(ended.is_set()), wait)
    follower.start(program)
    follower.stop()
    return follower, told


def nothing() -> None:
    """A moment in which nothing happens."""


def test_it_tells_once_when_everything_is_measured(tmp_path: Path) -> None:
    program = Program(tmp_path)
    measured = lambda: program.note(is_measured=True)  # noqa: E731
    _, told = follow(
        program, nothing, program.note, measured, nothing, lambda: program.note(is_measured=True, threads=2)
    )
    assert len(told) == 1
    assert program.got == []


def test_it_tells_nothing_of_a_program_that_was_not_measured(tmp_path: Path) -> None:
    program = Program(tmp_path)
    assert follow(program, nothing, program.note, nothing)[1] == []


def test_it_waits_until_every_rank_is_measured(tmp_path: Path) -> None:
    program = Program(tmp_path)
    first, second = (lambda rank=rank: program.note(rank, ranks=2, is_measured=True) for rank in range(2))
    assert follow(program, first, nothing)[1] == []
    (tmp_path / ".notes.rank0.json").unlink()
    assert len(follow(program, first, second, nothing)[1]) == 1


def test_a_program_that_stops_by_itself_gets_no_signal(tmp_path: Path) -> None:
    program = Program(tmp_path)
    follower, _ = follow(program, lambda: program.note(is_measured=True, stopped=True))
    assert program.got == []
    assert not follower.is_forced


def test_a_program_that_does_not_stop_is_terminated(tmp_path: Path) -> None:
    program = Program(tmp_path, signal.SIGTERM)
    follower, _ = follow(program, lambda: program.note(stopped=True), nothing, nothing, nothing)
    assert program.got == [(signal.SIGTERM, False)]
    assert follower.is_forced


def test_a_program_that_does_not_end_at_all_is_killed_with_its_group(tmp_path: Path) -> None:
    program = Program(tmp_path, signal.SIGKILL)
    follow(program, lambda: program.note(stopped=True), nothing, nothing, nothing)
    assert program.got == [(signal.SIGTERM, False), (signal.SIGKILL, True)]


def test_notes_that_cannot_be_read_are_waited_for(tmp_path: Path) -> None:
    program = Program(tmp_path)
    broken = lambda: RankFiles(tmp_path, 0).notes.write_text("{")  # noqa: E731
    assert len(follow(program, broken, lambda: program.note(is_measured=True))[1]) == 1
