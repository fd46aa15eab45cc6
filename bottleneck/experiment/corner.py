"""A fresh process for the step of one side of a duel; whatever goes wrong in it is told as that side's."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from bottleneck.experiment.stand import Stand
from bottleneck.experiment.worker import Refused, Worker
from bottleneck.harness.trial import Built
from bottleneck.harness.trial_program import Program

Role = Literal["base", "candidate"]

# How the lack of memory shows: an exception of torch's or Python's, or the system's own way.
_NO_MEMORY = ("OutOfMemoryError", "out of memory", "MemoryError", "can't allocate memory", "SIGKILL")


class SideFailed(Exception):  # noqa: N818 - an outcome, not an error of ours
    """A side whose step was not made or did not run, and why."""

    def __init__(self, role: Role, label: str, reason: str) -> None:
        super().__init__(reason)
        self.role, self.label, self.reason = role, label, reason

    @property
    def is_for_memory(self) -> bool:
        """Whether it may have been for lack of memory."""
        return any(sign in self.reason for sign in _NO_MEMORY)


class NoTurns(Exception):  # noqa: N818 - an outcome, not an error of ours
    """Turns that cannot be taken, through no fault of either side; why, and what would help."""


class Corner(Worker):
    """A process that starts in the folder of its side and imports the packages that lie there."""

    def __init__(self, program: Program, role: Role, stand: Stand, log: Path) -> None:
        self.role, self._label = role, stand.label
        try:
            super().__init__(program, log, stand.variables, folder=stand.folder)
        except OSError as error:
            raise SideFailed(role, stand.label, f"no process could be started: {error}") from None

    def start_making(self, name: str) -> None:
        """Has the step made and warmed up; ``made`` waits for it."""
        with self._blamed():
            super().start_making(name)

    def made(self) -> Built:
        """What ``start_making`` has made."""
        with self._blamed():
            return super().made()

    def turn(self, name: str, steps: int, lead: int, usual_us: float) -> list[float]:
        """Microseconds of each step of a turn."""
        with self._blamed():
            return super().turn(name, steps, lead, usual_us)

    @contextmanager
    def _blamed(self) -> Iterator[None]:
        try:
            yield
        except Refused as refused:
            if refused.verdict == "not applicable":
                raise NoTurns(f"{self._label}: {refused.reason}") from None
            raise SideFailed(self.role, self._label, refused.reason) from None
