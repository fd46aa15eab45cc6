"""A worktree of the user's clone for as long as it is needed: made aside, held by a lock, and gone afterwards."""

import fcntl
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bottleneck.experiment.git import Answer, Git, git_in

PREFIX = "bottleneck-base-"
_LOCK = "bottleneck.lock"

# What another job in the same clone can cause for a moment: a lock of git's, a folder of its that comes and goes.
_PASSING = re.compile(r"\.lock|could not create|unable to create|File exists|No such file or directory", re.IGNORECASE)
_TRIES, _FIRST_WAIT_S = 6, 0.1

# Large files stay pointers: fetching them is not ours to start, and git-lfs need not be there.
_WITHOUT_LFS = ("filter.lfs.smudge=cat", "filter.lfs.process=", "filter.lfs.required=false")

Sleep = Callable[[float], None]


@dataclass(frozen=True)
class Tree:
    """A worktree's folder, which is not there where it has a ``reason``."""

    folder: Path
    reason: str | None = None


@contextmanager
def worktree_at(git: Git, commit: str, scratch: Path, sleep: Sleep = time.sleep) -> Iterator[Tree]:
    """A worktree at this commit in a new folder under ``scratch``; removed however the block ends.

    No branch is made and no hook runs. What killed jobs left of theirs goes first.
    """
    remove_left_over(git)
    try:
        scratch.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=scratch)).resolve()
    except OSError as error:
        yield Tree(scratch, f"no folder can be made for the base in {scratch}: {error.strerror or error}")
        return
    try:
        added = _add(git, folder, commit, sleep)
        if not added.is_good:
            yield Tree(folder, f"git cannot make a worktree at {commit[:7]}: {added.complaint}")
            return
        with _held(folder):
            yield Tree(folder)
    finally:
        _remove(git, folder)


def remove_left_over(git: Git) -> tuple[Path, ...]:
    """The worktrees of ours that nobody holds any more, removed; those of others and of living jobs stay.

    ``git worktree prune`` would take the user's own along whose disk is not there just now.
    """
    common = git("rev-parse", "--path-format=absolute", "--git-common-dir")
    if not common.is_good:
        return ()
    left = [folder for entry in _entries(Path(common.text)) if (folder := _left_over(entry)) is not None]
    for folder in left:
        _remove(git, folder)
    return tuple(left)


def _entries(common: Path) -> list[Path]:
    """The folders in which git keeps what it knows of the worktrees that are named as ours are."""
    with suppress(OSError):
        return sorted(each for each in (common / "worktrees").iterdir() if each.name.startswith(PREFIX))
    return []


def _left_over(entry: Path) -> Path | None:
    """The folder of a worktree whose lock nobody holds; null where somebody does, or where it has none yet."""
    with suppress(OSError, UnicodeDecodeError), (entry / _LOCK).open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        folder = Path((entry / "gitdir").read_text(encoding="utf-8").strip()).parent
        return folder if folder.name.startswith(PREFIX) else None
    return None


def _add(git: Git, folder: Path, commit: str, sleep: Sleep) -> Answer:
    """What git says to it at last; what another job causes is waited for, twice as long each time."""
    wait_s = _FIRST_WAIT_S
    for _ in range(_TRIES - 1):
        answer = git("worktree", "add", "--detach", "--quiet", str(folder), commit, settings=_WITHOUT_LFS)
        if answer.is_good or not _PASSING.search(answer.errors):
            return answer
        sleep(wait_s)
        wait_s *= 2
    return git("worktree", "add", "--detach", "--quiet", str(folder), commit, settings=_WITHOUT_LFS)


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Holds the lock that tells other jobs that we live; it ends with us, however we end."""
    entry = git_in(folder)("rev-parse", "--absolute-git-dir")
    lock: IO[bytes] | None = None
    with suppress(OSError):
        lock = (Path(entry.text) / _LOCK).open("wb")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        yield
    finally:
        if lock is not None:
            lock.close()


def _remove(git: Git, folder: Path) -> None:
    """Takes the worktree out of the clone and off the disk; forced twice, since one half made counts as locked."""
    try:
        git("worktree", "remove", "--force", "--force", str(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
