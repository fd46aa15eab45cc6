"""Coordinates the supervisors of a job's ranks.

The last one to exit merges the recording.

No supervisor waits for another while its program runs. The lowest rank, whose output a launcher shows first, waits a
while at its end so that it is the last where it can be.

Ranks agree through a file in the folder of the recording and never wait for one another: a rank that waits keeps the
others waiting in a collective. The lowest rank decides when the steps have settled and are timed, and names a step a
little ahead. No rank can pass it unawares: none ends a step whose collectives rank 0 has not reached. All windows take
as many steps as the rank can whose steps make most events, and none stays open when another has closed: that rank
writes its trace, which holds up the steps of all.
"""

import importlib.util
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bottleneck.errors import UsageError
from bottleneck.harness.folder import exclusive, is_locked, try_lock
from bottleneck.harness.messages import rank_of
from bottleneck.schema.recording import Form
from bottleneck.system.files import write_whole

if TYPE_CHECKING:
    from filelock import FileLock

# A number, or a word for which torchrun counts devices: gpu, cpu, auto, xpu or that of another backend.
_RANKS = re.compile(r"[1-9][0-9]{0,5}|[a-z]\w*")


def check_ranks(wanted: str | None, form: Form, target: str, environment: Mapping[str, str]) -> None:
    """Raises UsageError for ranks that cannot be started.

    The same where the program cannot be run by several ranks.
    """
    if wanted is not None and not _RANKS.fullmatch(wanted):
        raise UsageError(
            f"--nproc-per-node {wanted} is no number of ranks", fix="write --nproc-per-node 2, or auto, gpu or cpu"
        )
    if wanted is not None and importlib.util.find_spec("torch") is None:
        raise UsageError(
            "--nproc-per-node needs torch, which is not installed here",
            why="torchrun, which is part of it, starts the ranks",
            fix="pip install torch, or leave --nproc-per-node out",
        )
    if form != "script" and (wanted is not None or launched_rank(environment) is not None):
        raise UsageError(
            f"{target} is a {form}, which runs in one process",
            why="each rank would repeat its step as often as it sees fit, and the collectives would wait for ever",
            fix="run a script that makes its own process group and steps through its loop",
        )


@dataclass(frozen=True)
class LaunchedRank:
    """One rank among those that a launcher of the user's started.

    Holds its number, how many there are, and a name for the job.

    ``name`` is the same for all ranks of the job and, as far as the launcher tells, for no other.
    """

    rank: int
    ranks: int
    name: str


# Variables that together name the job, of torchrun and of Slurm.
_NAMES = (("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"), ("SLURM_JOB_ID", "SLURM_STEP_ID"))


def launched_rank(environment: Mapping[str, str]) -> LaunchedRank | None:
    """Gives the rank that this process is in a launched job.

    Null where it is on its own.
    """
    rank, ranks = rank_of(environment)
    if not rank < ranks or ranks < 2:
        return None
    names = _NAMES[0 if environment.get("RANK", "").isdecimal() else 1]
    values = [environment[name] for name in names if environment.get(name)]
    return LaunchedRank(rank, ranks, "-".join(re.sub(r"\W+", "-", value) for value in values))


JOB_FILE = ".job.json"
RANK_FILES, RANK_LOCKS = ".job.rank*.json", ".job.rank*.lock"
_RANK_FILE = re.compile(r"\.job\.rank(\d{1,9})\.json")
# The others may still be writing their traces.
PATIENCE_S = 60.0
_LOOK_S = 0.05


@dataclass(frozen=True)
class PollClock:
    """The source of the time; tests give their own."""

    now_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class RankGroup:
    """This rank among those that record into the folder.

    A file of its own is locked while its supervisor lives.

    ``beside`` is how many ranks of the job record here at least, because they run on the same machine.
    """

    def __init__(self, folder: Path, job: LaunchedRank, beside: int = 0, clock: PollClock | None = None) -> None:
        self._folder, self._job, self._beside, self._clock = folder, job, beside, clock or PollClock()
        self._lock: FileLock | None = None

    def join(self, prepare: Callable[[], None]) -> None:
        """Adds this rank to the recording.

        The first rank of the job calls ``prepare``, which makes room in the folder or raises.
        """
        with exclusive(self._folder):
            if self._job_here() != self._job.name or (self._folder / "recording.json").exists():
                prepare()
                (self._folder / JOB_FILE).write_text(json.dumps({"job": self._job.name}))
            self._lock = try_lock(self._rank_file(self._job.rank, RANK_LOCKS))
            own = self._rank_file(self._job.rank)
            own.unlink(missing_ok=True)
            own.touch(0o600)

    def leave(self, *, in_order: bool) -> bool:
        """Tells whether this rank is the last and must finish the recording.

        ``in_order`` says that its program ended well. One that failed does not stay: its launcher ends the others only
        when it has heard of the failure.
        """
        until_s = self._clock.now_s() + (PATIENCE_S if in_order else 0.0)
        while True:
            try:
                with exclusive(self._folder):
                    # Another rank finishes the recording, or has done so and taken the marks away.
                    if self._job.rank not in self.present() or self._job_here() is None:
                        return False
                    if self._is_last():
                        (self._folder / JOB_FILE).write_text(json.dumps({"job": self._job.name, "by": self._job.rank}))
                        return True
                    # One that stays has not left: the others must not take its work.
                    if self._job.rank != min(self.present()) or self._clock.now_s() >= until_s:
                        self._rank_file(self._job.rank).write_text('{"left": true}')
                        return False
            except OSError:  # the folder is gone
                return False
            self._clock.sleep(_LOOK_S)

    def close(self) -> None:
        """Removes the marks of all ranks, after the recording was made."""
        for path in [*self._folder.glob(RANK_FILES), *self._folder.glob(RANK_LOCKS), self._folder / JOB_FILE]:
            path.unlink(missing_ok=True)
        if self._lock is not None:
            self._lock.release()

    def present(self) -> list[int]:
        """The ranks that have taken part here."""
        return ranks_present(self._folder)

    def _is_last(self) -> bool:
        ranks = self.present()
        return len(ranks) >= self._beside and not any(self._is_running(rank) for rank in ranks)

    def _is_running(self, rank: int) -> bool:
        """True if the rank's supervisor lives and has not left."""
        if rank == self._job.rank or self._rank_file(rank).read_bytes():
            return False
        return is_locked(self._rank_file(rank, RANK_LOCKS))

    def _job_here(self) -> str | None:
        try:
            record = json.loads((self._folder / JOB_FILE).read_bytes())
        except (OSError, ValueError, RecursionError):
            return None
        return record.get("job") if isinstance(record, dict) and "by" not in record else None

    def _rank_file(self, rank: int, pattern: str = RANK_FILES) -> Path:
        return self._folder / pattern.replace("*", str(rank))


def ranks_present(folder: Path) -> list[int]:
    """Gives the ranks of a job that recorded into this folder.

    Empty where one supervisor has all of them.
    """
    matches = (_RANK_FILE.fullmatch(path.name) for path in folder.glob(RANK_FILES))
    return sorted(int(match[1]) for match in matches if match)


WINDOW_FILE = ".notes.window.json"
# All the files through which ranks agree on their windows.
WINDOW_FILES = ".notes.window*"
_BUDGET_FILES, _CLOSED_FILE = ".notes.window.budget.rank*", ".notes.window.closed.{}"
# A step more than it takes, for programs whose ranks meet less than once a step.
_AHEAD = 2


@dataclass(frozen=True)
class WindowAt:
    """The step after which the windows open.

    ``timed`` counts the steps before it that are timed.
    """

    step: int
    timed: int


# The window with all options, and the one with the fewest.
WindowKind = Literal["full", "light"]


class SharedWindow:
    """Steps at which the ranks of a job open and close windows.

    It holds them as far as this rank knows them.
    """

    def __init__(self, folder: Path, rank: int, ranks: int) -> None:
        self._path, self._rank = folder / WINDOW_FILE, rank
        self._opening: WindowAt | None = None
        self.is_alone = ranks < 2

    @property
    def follows(self) -> bool:
        """True if another rank decides."""
        return not self.is_alone and self._rank > 0

    def may_open(self, step: int, timed: int) -> bool:
        """Tells whether the windows open after this step.

        Asked by the rank that decides, when it has timed enough steps.
        """
        if self.is_alone:
            return True
        if self._opening is None:
            self._opening = WindowAt(step + _AHEAD, timed + _AHEAD)
            try:
                write_whole(self._path, json.dumps(vars(self._opening)))
            except OSError:  # a full disk, which the recording will tell of
                return True
        return step >= self._opening.step

    def opening(self) -> WindowAt | None:
        """Gives the step that the deciding rank has named.

        Null as long as it has named none.
        """
        if self._opening is None:
            try:
                self._opening = WindowAt(**json.loads(self._path.read_bytes()))
            except (OSError, ValueError, TypeError):
                return None
        return self._opening

    def tell_budget(self, steps: int) -> None:
        """Tells the others how many steps this rank can profile.

        Called many steps before the windows open.
        """
        if not self.is_alone:
            with suppress(OSError):
                write_whole(self._path.with_name(_BUDGET_FILES.replace("*", str(self._rank))), str(steps))

    def least_budget(self, own: int) -> int:
        """The steps that each rank here can profile; asked when the windows open."""
        return own if self.is_alone else min([own, *self._budgets()])

    def _budgets(self) -> Iterator[int]:
        for path in self._path.parent.glob(_BUDGET_FILES):
            with suppress(OSError, ValueError):
                yield int(path.read_bytes())

    def close(self, kind: WindowKind) -> None:
        """Tells the others that this rank closes its window now."""
        if not self.is_alone:
            with suppress(OSError):
                self._closed(kind).touch()

    def is_closed(self, kind: WindowKind) -> bool:
        """Tells whether a rank has closed its window.

        Asked at the end of each step in one.
        """
        try:
            return not self.is_alone and self._closed(kind).exists()
        except OSError:
            return False

    def _closed(self, kind: WindowKind) -> Path:
        return self._path.with_name(_CLOSED_FILE.format(kind))
