"""The mark in a folder that a run records there: nobody else does meanwhile, and a run that was killed can be told.

A file that the system keeps locked for as long as the supervisor lives, whatever ends it.
"""

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from bottleneck.harness.messages import Plan
from bottleneck.schema.recording import is_recording

CLAIM_FILE = ".run.json"


@dataclass(frozen=True)
class Course:
    """What a run was doing: enough to finish its recording without it.

    ``process`` is the program's, null before it; ``status`` its exit status, null until it has ended.
    """

    plan: Plan
    command: tuple[str, ...]
    environment: Mapping[str, str]
    busy_processors: float
    process: int | None = None
    status: int | None = None


class Claim:
    """A folder that is ours to record in, until it is released or this process ends."""

    def __init__(self, folder: Path, handle: int) -> None:
        self._folder, self._handle = folder, handle

    def note(self, course: Course) -> None:
        """Leaves what is being done; OSError if the disk does not take it."""
        text = {
            "plan": course.plan.to_json(),
            "command": course.command,
            "environment": dict(course.environment),
            "busy_processors": course.busy_processors,
            "process": course.process,
            "status": course.status,
        }
        data = json.dumps(text).encode()
        os.pwrite(self._handle, data, 0)
        os.ftruncate(self._handle, len(data))

    def release(self, *, is_finished: bool = True) -> None:
        """Takes the mark away, or leaves it to whoever finishes the work; the folder may be gone already."""
        if is_finished:
            (self._folder / CLAIM_FILE).unlink(missing_ok=True)
        os.close(self._handle)


def claim(folder: Path) -> Claim | None:
    """The folder, claimed; null if another run has it. OSError if nothing can be written there."""
    while True:
        handle = os.open(folder / CLAIM_FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        if _is_at(folder / CLAIM_FILE, handle):
            return Claim(folder, handle)
        # Its last owner has just taken it away.
        os.close(handle)


def is_claimed(folder: Path) -> bool:
    """Whether a run records there now."""
    try:
        handle = os.open(folder / CLAIM_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
    return False


def is_unfinished(folder: Path) -> bool:
    """True for a folder in which a run records, or was killed, before it wrote the recording."""
    mark = folder / CLAIM_FILE
    return mark.is_file() and not mark.is_symlink() and not is_recording(folder)


def read_course(folder: Path) -> Course | None:
    """What the run did that left its mark here; null if there is none that can be read.

    The folder may have been moved, or come from anywhere: nothing outside of it is meant.
    """
    try:
        found = json.loads((folder / CLAIM_FILE).read_bytes())
        plan = replace(Plan.from_json(found["plan"]), folder=str(folder))
        command = tuple(str(word) for word in found["command"])
        environment = {str(name): str(value) for name, value in found["environment"].items()}
        busy = float(found["busy_processors"])
        process, status = (found[name] if isinstance(found[name], int) else None for name in ("process", "status"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return Course(plan, command, environment, busy, process, status)


def _is_at(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(handle))
    except FileNotFoundError:
        return False
