"""Records the processes that a program starts, under `--follow-children`.

Each is a rank of one recording. Followed are those of `multiprocessing`, however they are started, and Python
interpreters that inherit the environment of the program. A process takes a rank when it has something to keep; one
without torch leaves nothing.
"""

import atexit
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bottleneck.harness import marks
from bottleneck.harness.folder import NOTES_FILES, RankFiles
from bottleneck.harness.messages import Notes, Plan, rank_of
from bottleneck.harness.script import Script
from bottleneck.harness.session import Session
from bottleneck.harness.torch_private import HELPERS
from bottleneck.harness.torch_state import TorchHook
from bottleneck.harness.window import GUARD

# Holds the plan in the environment of the program, with this folder first on PYTHONPATH.
VARIABLE = "BOTTLENECK_FOLLOW"
_STARTUP = str(Path(__file__).with_name("startup"))

_MOST_FOLLOWED = 64
# Modules whose processes prepare something for others: workers of data loaders, servers of shared objects, compilers.
_HELPERS = (*HELPERS, "multiprocessing.")
_HELPER_COMMANDS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "compile_worker")
_SPAWNED = "--multiprocessing-fork"

# The measurement of this process; a fork leaves that of its parent.
_current: "FollowedProcess | None" = None


class FollowedRanks:
    """Gives this process a rank in the folder of the recording.

    By its number in the job, else by order. ``index`` is its number among the processes of its parent; null where it
    has none. The program's own process, which may evaluate what its processes have trained, is a rank if it is one of
    the job, or if it is the first that steps.
    """

    def __init__(self, folder: Path, index: int | None = None, *, is_parent: bool = False) -> None:
        self._folder, self._index, self._is_parent = folder, index, is_parent

    def take(self) -> tuple[RankFiles, int]:
        """Returns the files of the rank that this process takes.

        And the number of ranks of its job (1: it is of none). Where no rank is left, they lie in a folder that does not
        exist, so that nothing is kept.
        """
        in_job = _rank_in_job()
        wanted, ranks = in_job or (self._index or 0, 1)
        is_late = self._is_parent and in_job is None and any(self._folder.glob(NOTES_FILES))
        is_only = in_job is not None or self._index is not None
        for rank in () if is_late else [wanted] if is_only else range(_MOST_FOLLOWED):
            files = RankFiles(self._folder, rank)
            try:
                with files.notes.open("x", encoding="utf-8") as notes:
                    notes.write(json.dumps(asdict(Notes(ranks=ranks))))
            except OSError:  # it is taken, or the folder is gone
                continue
            return files, ranks
        return RankFiles(self._folder / "without-a-rank", 0), 1


def _rank_in_job() -> tuple[int, int] | None:
    """Returns rank and number of ranks of this process in its job.

    By torch's process group, else by the environment; null where neither tells.
    """
    distributed: Any = getattr(sys.modules.get("torch"), "distributed", None)
    with suppress(Exception):  # a build of torch without it, or one that is half loaded
        if distributed.is_initialized():
            return int(distributed.get_rank()), int(distributed.get_world_size())
    return rank_of(os.environ) if os.environ.get("RANK", "").isdecimal() else None


class FollowedProcess:
    """The measurement of a process that the program started."""

    def __init__(self, plan: Plan, index: int | None = None) -> None:
        self._session = Session(plan, places=FollowedRanks(Path(plan.folder), index))
        self._script = Script(self._session)
        self._hook = self._script.hook()

    def start(self) -> Sequence[TorchHook]:
        """Returns the hooks that watch from now on.

        torch itself is watched at once where it is loaded.
        """
        global _current  # noqa: PLW0603 - one process has one measurement
        if _current is not None:
            _current.leave()
        _current = self
        marks.supervise(lambda: None)
        self._hook.install()
        torch = sys.modules.get("torch")
        if torch is not None:
            self._script.on_torch(torch)
        return (self._hook,)

    def leave(self) -> None:
        """Ends it without keeping anything: in a fork."""
        self._hook.remove()
        self._script.leave()

    def finish(self) -> None:
        """Ends it and keeps what was measured; does nothing in a fork."""
        if not self._session.is_here:
            return
        if GUARD.window is not None:
            GUARD.window.stop()
        self._script.finish()
        self._session.save()


def follow_children(plan: Plan, script: Script) -> None:
    """Follows the processes that this program starts from now on.

    ``script`` is its own measurement.
    """
    os.environ[VARIABLE] = plan.to_json()
    theirs = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join((_STARTUP, *([theirs] if theirs else [])))
    _watch_multiprocessing(plan, script)


def follow_this_interpreter() -> Sequence[TorchHook]:
    """Returns the hooks of an interpreter that the program started.

    They are set before it imports torch or starts a process.
    """
    try:
        plan = Plan.from_json(os.environ[VARIABLE])
    except (KeyError, ValueError, TypeError):
        return ()
    words = " ".join(sys.orig_argv)
    hooks = (_watch_multiprocessing(plan),)
    # A process of `multiprocessing` is followed from its function on.
    if _SPAWNED in sys.orig_argv or any(word in words for word in _HELPER_COMMANDS):
        return hooks
    followed = FollowedProcess(plan)
    atexit.register(followed.finish)
    return (*followed.start(), *hooks)


def _watch_multiprocessing(plan: Plan, script: Script | None = None) -> TorchHook:
    """Returns the hook by which processes of `multiprocessing` are followed.

    ``script`` is left in a fork.
    """
    hook = TorchHook({"multiprocessing.process": lambda module: _wrap(module, plan, script)}, {})
    hook.install()
    if "multiprocessing.process" in sys.modules:
        _wrap(sys.modules["multiprocessing.process"], plan, script)
    return hook


def _wrap(module: Any, plan: Plan, script: Script | None) -> None:
    plain = module.BaseProcess._bootstrap

    def _bootstrap(process: Any, *arguments: Any, **options: Any) -> Any:
        with _followed(plan, process, script):
            return plain(process, *arguments, **options)

    module.BaseProcess._bootstrap = _bootstrap


@contextmanager
def _followed(plan: Plan, process: Any, script: Script | None) -> Iterator[None]:
    """Measures what runs in it, in the process of `multiprocessing` that this is."""
    if script is not None:  # a fork of the program; in any other process it is null
        script.leave()
    if str(getattr(process._target, "__module__", "")).startswith(_HELPERS):
        yield
        return
    followed = FollowedProcess(plan, _index_of(process))
    followed.start()
    try:
        yield
    finally:
        with _uninterrupted():
            followed.finish()


def _index_of(process: Any) -> int | None:
    """Its number among those that `torch.multiprocessing.spawn` started together; null for others."""
    is_spawned = getattr(process._target, "__module__", "") == "torch.multiprocessing.spawn"
    index = process._args[1] if is_spawned and len(process._args) > 1 else None
    return index if isinstance(index, int) else None


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Keeps Ctrl-C from losing what was recorded.

    It reaches all processes of a terminal.
    """
    theirs = signal.getsignal(signal.SIGINT)
    if theirs is not None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        if theirs is not None:
            signal.signal(signal.SIGINT, theirs)
