"""Makes, checks and claims the folder of a recording.

It does so before the program runs, and finishes or removes the folder after it. A run that records holds a lock on a
file in the folder for as long as its supervisor lives, and leaves a mark with what it does. So nobody else records
there, and the recording of a run that was killed can be finished.
"""

import contextlib
import errno
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from bottleneck.errors import UsageError
from bottleneck.harness.messages import Plan, Program
from bottleneck.schema.compiled_kernels import compiled_file
from bottleneck.schema.recording import is_recording, light_file
from bottleneck.schema.watch_log import HEADER_FILES, SLOW_FILES, STEP_FILES, WINDOWS_FOLDER
from bottleneck.system.files import write_whole

if TYPE_CHECKING:
    from filelock import FileLock

# Every rank has notes of its own; what is being written has another name until it is whole.
NOTES_FILES = ".notes.rank*.json"
# What the run does, and the file that is locked meanwhile.
CLAIM_FILE, LOCK_FILE = ".run.json", ".run.lock"
# Locked for a moment by ranks that share the folder.
SHARED_LOCK_FILE = ".job.lock"

# What stands in the folder once all ranks are done.
_FINISHED = (
    "recording.json",
    "analysis.json",
    "report.html",
    "roofline.png",
    "telemetry.csv",
    "trace.rank*.json.gz",
    "light.rank*.json.gz",
)
# Who names one of these means a single file: the page, the numbers or the trace.
_FILE_SUFFIXES = (".html", ".htm", ".json", ".md", ".txt", ".gz", ".png", ".csv")
# All that a recording ever writes into its folder.
_OURS = (
    *_FINISHED,
    "compiled.rank*.json",
    STEP_FILES,
    SLOW_FILES,
    HEADER_FILES,
    f".{STEP_FILES}*",
    f".{HEADER_FILES}*",
    "bottleneck-crash.txt",
    ".run.*",
    ".recording.json.*",
    ".analysis.json.*",
    ".report.html.*",
    ".roofline.png.*",
    ".telemetry.csv.*",
    ".partial.*",
    ".fresh.*",
    ".notes*",
    ".job.*",
)
_LOCKS = frozenset({LOCK_FILE, SHARED_LOCK_FILE})
# Recordings that are given no folder lie in this one, each in a folder of its own.
RUNS_FOLDER = "bottleneck-runs"
_IGNORE_FILE, _IGNORE_ALL = ".gitignore", "# Made by bottleneck: recordings are no part of the project.\n*\n"


@dataclass(frozen=True)
class RankFiles:
    """Files of one rank's part of a recording.

    The trace is ``partial`` until the supervisor has found it whole, then ``trace``. ``light`` is the trace of the
    window with the fewest options, ``partial_light`` until it is found whole. ``compiled`` describes the kernels of a
    compiled program, for the trace that lies beside it.
    """

    folder: Path
    rank: int

    @property
    def trace(self) -> Path:
        """The trace under its final name."""
        return self.folder / f"trace.rank{self.rank}.json.gz"

    @property
    def partial(self) -> Path:
        """The trace as the child left it."""
        return self.folder / f".partial.{self.trace.name}"

    @property
    def light(self) -> Path:
        """The trace of the window with the fewest options under its final name."""
        return self.folder / light_file(self.rank)

    @property
    def partial_light(self) -> Path:
        """The same as the child left it."""
        return self.folder / f".partial.{self.light.name}"

    @property
    def fresh(self) -> Path:
        """The trace while it is being written."""
        return self.folder / f".fresh.{self.trace.name}"

    @property
    def compiled(self) -> Path:
        """The kernels that the program compiled."""
        return self.folder / compiled_file(self.rank)

    @property
    def notes(self) -> Path:
        """The notes of the child."""
        return self.folder / NOTES_FILES.replace("*", str(self.rank))


def _new_lock(path: Path) -> "FileLock":
    # Not at the top: few processes that import this module lock anything, and the user's program may be one of them.
    from filelock import FileLock

    if not path.parent.is_dir():  # a lock would make the folder that the program has removed
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path.parent))
    return FileLock(path, mode=0o600, thread_local=False)


def try_lock(path: Path) -> "FileLock | None":
    """Locks a file until it is released or this process ends.

    Null if another has it. Raises OSError if it cannot be locked.
    """
    from filelock import Timeout

    lock = _new_lock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return None
    return lock


def is_locked(path: Path) -> bool:
    """True if a process has locked the file.

    False for a file that is missing, is a link or cannot be opened.
    """
    if path.is_symlink() or not path.is_file():
        return False
    try:
        lock = try_lock(path)
    except OSError:
        return False
    if lock is not None:
        lock.release()
    return lock is None


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Keeps other ranks that share the folder out meanwhile.

    It leaves nothing behind. Raises OSError if the folder is gone.
    """
    path = folder / SHARED_LOCK_FILE
    lock = _new_lock(path)
    lock.acquire(poll_interval=0.01)
    try:
        yield
    finally:
        # While it is locked: who waits for it finds the file removed, and makes a new one.
        path.unlink(missing_ok=True)
        lock.release()


@dataclass(frozen=True)
class RunState:
    """The state of a run: enough to finish its recording without it.

    ``process`` is the program's, null before it; ``status`` its exit status, null until it has ended. ``versions`` and
    ``processors`` are those of its machine; null in states of before that was kept.
    """

    plan: Plan
    environment: Mapping[str, str]
    busy_processors: float
    process: int | None = None
    status: int | None = None
    versions: Mapping[str, str] | None = None
    processors: int | None = None


class FolderClaim:
    """Folder that is ours to record in.

    It is until it is released or forgotten, or this process ends.
    """

    def __init__(self, folder: Path, lock: "FileLock") -> None:
        self._folder, self._lock = folder, lock

    def note(self, state: RunState) -> None:
        """Leaves what is being done; OSError if the disk does not take it."""
        write_whole(self._folder / CLAIM_FILE, json.dumps(asdict(state)))

    def release(self, *, is_finished: bool = True) -> None:
        """Removes the mark, or leaves it to whoever finishes the work.

        The folder may be gone already.
        """
        for name in (CLAIM_FILE, LOCK_FILE) if is_finished else (LOCK_FILE,):
            (self._folder / name).unlink(missing_ok=True)
        self._lock.release()


def claim(folder: Path) -> FolderClaim | None:
    """Claims the folder.

    Null if another run has it. Raises OSError if nothing can be written there.
    """
    lock = try_lock(folder / LOCK_FILE)
    if lock is None:
        return None
    try:
        os.close(os.open(folder / CLAIM_FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600))
    except BaseException:
        (folder / LOCK_FILE).unlink(missing_ok=True)
        lock.release()
        raise
    return FolderClaim(folder, lock)


def is_claimed(folder: Path) -> bool:
    """True if a run records there now."""
    return is_locked(folder / LOCK_FILE)


def is_unfinished(folder: Path) -> bool:
    """True for a folder in which a run records, or was killed.

    It has not written the recording then.
    """
    mark = folder / CLAIM_FILE
    return mark.is_file() and not mark.is_symlink() and not is_recording(folder)


def read_run_state(folder: Path) -> RunState | None:
    """Reads the state of the run that left its mark here.

    Null if there is none that can be read. The folder may have been moved, or come from anywhere: nothing outside of it
    is meant.
    """
    import msgspec  # the user's program shares a process with this module, not with msgspec

    try:
        state = msgspec.convert(json.loads((folder / CLAIM_FILE).read_bytes()), RunState)
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError):
        return None
    return replace(state, plan=replace(state.plan, folder=str(folder)))


def program_name(program: Program) -> str:
    """Returns the name of the program as part of that of a folder.

    It is 'train' of dir/train.py and of the module package.train.
    """
    file = Path(program.target)
    names = program.target.split(".") if program.module else [file.parent.name, file.stem]
    name = names[-2] if names[-1] == "__main__" and len(names) > 1 else names[-1]
    name = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)
    return name.lstrip("-.")[:80] or "program"


class FolderTakenError(UsageError):
    """The folder holds something already, or another run records into it."""


class RecordingFolder:
    """Folder for one recording.

    ``output`` is the one that the user names, null to number one after the program. A recording never overwrites what
    it finds, unless by force, and then only what another recording left.
    """

    def __init__(self, output: Path | None, program: str, *, force: bool = False) -> None:
        self._output, self._program, self._force = output, program, force
        self._made: list[Path] = []
        self._claim: FolderClaim | None = None
        self._is_begun = False
        self.folder = Path()

    def make(self) -> Path:
        """Returns the absolute path of the folder, found fit for writing.

        Raises UsageError, and leaves nothing behind, if it is not.
        """
        try:
            self.folder = self._new_folder() if self._output is None else self._named_folder(_absolute(self._output))
            self._occupy()
        except BaseException:
            self.discard()
            raise
        return self.folder

    def make_shared(self, join: Callable[[Callable[[], None]], None]) -> None:
        """Makes the folder as ``make`` does, for several ranks of one job.

        ``join`` says which of them comes first and has to make room.
        """
        assert self._output is not None, "ranks agree on a folder before it is made"
        self.folder = self._named_folder(_absolute(self._output))
        try:
            join(self._make_room)
        except OSError as exc:
            raise _cannot("write to", self.folder, exc) from exc

    def _make_room(self) -> None:
        self._refuse_what_is_there(apart_from={SHARED_LOCK_FILE})
        if is_claimed(self.folder):
            raise _in_use(self.folder)
        _remove_recording(self.folder, apart_from={SHARED_LOCK_FILE})

    def note(self, state: RunState) -> None:
        """Leaves what is being done here, for whoever finds it unfinished."""
        self._is_begun = True
        if self._claim is not None:
            try:
                self._claim.note(state)
            except OSError:  # a full disk; the recording itself will say so
                return

    def leave(self, *, is_worth_keeping: bool, is_finished: bool) -> None:
        """Leaves the folder to others.

        It is marked if its recording has to be finished, and gone if it holds nothing.
        """
        if is_worth_keeping:
            self.release(is_finished=is_finished)
        else:
            self.discard()

    def release(self, *, is_finished: bool = True) -> None:
        """Leaves the folder to others, with the mark of an unfinished recording or without."""
        claim, self._claim = self._claim, None
        if claim is not None:
            claim.release(is_finished=is_finished)

    def abandon(self) -> None:
        """Forgets the folder in a fork: it stays the parent's, with its lock."""
        self._claim = None

    def give_up(self) -> None:
        """Takes the folder away again if nothing was begun in it."""
        if not self._is_begun:
            self.discard()

    def discard(self) -> bool:
        """Removes the folder if it holds nothing but what a recording leaves.

        True if it is gone: only if it was made here.
        """
        if self._claim is not None and self.folder in self._made:
            _remove_recording(self.folder, apart_from={LOCK_FILE})
        self.release()
        for made in self._made:
            try:
                _remove_folder(made)
            except OSError:
                return False
        return bool(self._made)

    def _new_folder(self) -> Path:
        """Makes the next folder of this program in RUNS_FOLDER.

        Other runs may take numbers meanwhile.
        """
        runs = _absolute(Path(RUNS_FOLDER))
        for number in count(_last_number(runs, self._program) + 1):
            folder = runs / f"{self._program}-{number}"
            self._mkdir(runs)
            try:
                if self._mkdir(folder):
                    break
            except UsageError:
                if runs.is_dir():
                    raise  # else another run that came to nothing has just removed it
        return folder

    def _named_folder(self, folder: Path) -> Path:
        if folder.suffix.lower() in _FILE_SUFFIXES and not folder.is_dir():
            stem = _shown(folder.with_suffix(""))
            raise UsageError(
                f"{_shown(folder)} is the name of a file, and a recording is a folder",
                why="the folder holds the trace, the measurements and the page",
                fix=f"name a folder: -o {stem}; its page for a browser is then {stem}/report.html",
                fix_in_code=f"name a folder: {stem}; its page for a browser is then {stem}/report.html",
            )
        for path in reversed([folder, *folder.parents]):
            self._mkdir(path)
        if folder.is_symlink():
            raise UsageError(
                f"{_shown(folder)} is a symbolic link",
                why="a recording is never written through one",
                fix=f"name the folder itself: -o {_shown(folder.resolve())}",
                fix_in_code=f"name the folder itself: {_shown(folder.resolve())}",
            )
        return folder

    def _mkdir(self, path: Path) -> bool:
        """True if the folder was made; false if it is there already."""
        try:
            if path.is_dir():
                return False
            path.mkdir()
            if path.name == RUNS_FOLDER:
                (path / _IGNORE_FILE).write_text(_IGNORE_ALL)
        except FileExistsError:
            if path.is_dir():
                return False
            raise UsageError(
                f"{_shown(path)} is no folder",
                why="something else has this name",
                fix="name another with -o DIR",
                fix_in_code="name another",
            ) from None
        except (OSError, ValueError) as exc:
            raise _cannot("make", path, exc) from exc
        if path not in self._made:
            self._made.insert(0, path)
        return True

    def _occupy(self) -> None:
        """Claims the folder and makes room in it.

        That also proves that it can be written to.
        """
        try:
            self._refuse_what_is_there()
            for name in (CLAIM_FILE, LOCK_FILE):
                if (self.folder / name).is_symlink():
                    (self.folder / name).unlink()
            self._claim = claim(self.folder)
            if self._claim is None:
                raise _in_use(self.folder)
            # Another run may have come and gone in between.
            self._refuse_what_is_there(apart_from={CLAIM_FILE, LOCK_FILE})
            _remove_recording(self.folder, apart_from={CLAIM_FILE, LOCK_FILE})
        except OSError as exc:
            raise _cannot("write to", self.folder, exc) from exc

    def _refuse_what_is_there(self, apart_from: Set[str] = frozenset()) -> None:
        if not self._force and any(path.name not in apart_from for path in self.folder.iterdir()):
            raise _not_empty(self.folder)


def _not_empty(folder: Path) -> FolderTakenError:
    return FolderTakenError(
        f"{_shown(folder)} is not empty",
        why="a recording never overwrites what it finds",
        fix="name another folder with -o, or pass --force",
        fix_in_code="name another folder, or pass force=True",
    )


def _in_use(folder: Path) -> FolderTakenError:
    return FolderTakenError(
        f"another run is recording into {_shown(folder)}",
        why="two recordings in one folder would spoil each other",
        fix="wait for it to end, or name another folder with -o DIR",
        fix_in_code="wait for it to end, or name another folder",
    )


def remove_made(folder: Path) -> None:
    """Removes a folder that was made for a recording without a result.

    It stays where something else lies in it.
    """
    _remove_recording(folder)
    with contextlib.suppress(OSError):
        _remove_folder(folder)
        if folder.parent.name == RUNS_FOLDER:
            _remove_folder(folder.parent)


def _remove_folder(folder: Path) -> None:
    """Removes an empty folder.

    Also RUNS_FOLDER with nothing but the ignore file in it. Raises OSError if it holds more.
    """
    is_bare = folder.name == RUNS_FOLDER and [path.name for path in folder.iterdir()] == [_IGNORE_FILE]
    if is_bare:
        (folder / _IGNORE_FILE).unlink(missing_ok=True)
    try:
        folder.rmdir()
    except OSError:
        if is_bare:  # another run has begun meanwhile
            (folder / _IGNORE_FILE).write_text(_IGNORE_ALL)
        raise


def _last_number(folder: Path, program: str) -> int:
    """Returns the highest number of a recording of this program.

    It is 0 where the folder has none.
    """
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError:  # there is no such folder yet; whatever else is wrong shows when one is made in it
        return 0
    matches = (re.fullmatch(rf"{re.escape(program)}-([0-9]{{1,9}})", name) for name in names)
    return max((int(match[1]) for match in matches if match), default=0)


def _absolute(path: Path) -> Path:
    try:
        return path.absolute()
    except FileNotFoundError as exc:
        raise UsageError(
            "the working folder no longer exists",
            why=f"{_shown(path)} would lie in it",
            fix="name a full path with -o",
            fix_in_code="name a full path",
        ) from exc


def _remove_recording(folder: Path, apart_from: Set[str] = frozenset()) -> None:
    """Removes what a recording leaves, and nothing else; of links only the link."""
    for pattern in _OURS:
        for path in folder.glob(pattern):
            if path.name not in apart_from:
                path.unlink()
    windows = folder / WINDOWS_FOLDER
    if windows.is_dir() and not windows.is_symlink():
        for window in windows.iterdir():
            if window.is_dir() and not window.is_symlink():
                _remove_recording(window)
                _remove_if_empty(window)
        _remove_if_empty(windows)


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _cannot(do: str, path: Path, exc: OSError | ValueError) -> UsageError:
    reason = exc.strerror if isinstance(exc, OSError) else str(exc)
    return UsageError(
        f"cannot {do} the folder {_shown(path)}",
        why=reason or str(exc),
        fix="name one that can be written with -o DIR",
        fix_in_code="name one that can be written",
    )


def _shown(path: Path) -> str:
    from bottleneck.report.text import clean

    return clean(str(path))


# What a rank writes while it measures.
_OF_RANK = re.compile(r"(?:\.notes|\.partial\.(?:trace|light)|\.fresh\.trace|compiled)\.rank(\d+)\..*")


class BlockFolder(RecordingFolder):
    """The folder of a block (`bottleneck.record`) in one rank of a job.

    Another rank may have been here for a while: its files are left alone, by force too. Rank 0 has the claim, and
    removes an old recording.
    """

    def __init__(self, folder: Path, rank: int, *, force: bool) -> None:
        super().__init__(folder, "", force=force)
        self.folder, self._rank = folder.absolute(), rank

    def make(self) -> Path:
        """Returns the absolute path of the folder, found fit for writing.

        Raises UsageError if it is not.
        """
        try:
            self._named_folder(self.folder)
            if self._force:
                self._remove_old()
            elif any(not self._is_of_others(path) for path in self.folder.iterdir()):
                raise _not_empty(self.folder)
            if self._rank == 0:
                self._claim = claim(self.folder)
                if self._claim is None:
                    raise _in_use(self.folder)
        except OSError as exc:
            raise _cannot("write to", self.folder, exc) from exc
        return self.folder

    def release(self, *, is_finished: bool = True) -> None:
        """Leaves the folder.

        The mark of an unfinished recording goes with the last rank, whichever that is.
        """
        if self._claim is None and is_finished:
            for name in (CLAIM_FILE, LOCK_FILE):
                (self.folder / name).unlink(missing_ok=True)
        super().release(is_finished=is_finished)

    def discard(self) -> bool:
        """Leaves the folder, which others may use."""
        self.release(is_finished=self._claim is not None)
        return False

    def _is_of_others(self, path: Path) -> bool:
        match = _OF_RANK.fullmatch(path.name)
        return path.name in {CLAIM_FILE, *_LOCKS} or (match is not None and int(match[1]) != self._rank)

    def _remove_old(self) -> None:
        for path in self.folder.iterdir():
            match = _OF_RANK.fullmatch(path.name)
            if match is not None and int(match[1]) == self._rank:
                path.unlink()
        if self._rank == 0:
            for pattern in _FINISHED:
                for path in self.folder.glob(pattern):
                    path.unlink()
