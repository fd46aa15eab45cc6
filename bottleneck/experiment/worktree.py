"""Checks out the base of a comparison in a temporary worktree.

The worktree is one of the user's clone.
"""

import importlib.metadata
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bottleneck.experiment.git_clone import (
    NO_GIT,
    BaseCommit,
    Git,
    GitOutput,
    find_base,
    find_commit,
    git_in,
    identify,
    is_dirty,
    is_merge_base,
)
from bottleneck.experiment.side import Side
from bottleneck.harness.folder import try_lock
from bottleneck.harness.supervise import run_quietly
from bottleneck.schema.records import replace

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
    """Makes a worktree at this commit for the length of the block.

    It lies in a new folder under ``scratch`` and is removed however the block ends.

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
            yield Tree(folder, f"git cannot make a worktree at {commit[:7]}: {added.error_line}")
            return
        with _held(folder):
            yield Tree(folder)
    finally:
        _remove(git, folder)


def remove_left_over(git: Git) -> tuple[Path, ...]:
    """Removes our worktrees that nobody holds any more.

    Those of others and of living jobs stay. The removed ones are returned.

    ``git worktree prune`` would take the user's own along whose disk is not there just now.
    """
    common = git("rev-parse", "--path-format=absolute", "--git-common-dir")
    if not common.is_good:
        return ()
    entries: list[Path] = []
    with suppress(OSError):
        entries = sorted(path for path in (Path(common.text) / "worktrees").iterdir() if path.name.startswith(PREFIX))
    left = [folder for entry in entries if (folder := _left_over(entry)) is not None]
    for folder in left:
        _remove(git, folder)
    return tuple(left)


def _left_over(entry: Path) -> Path | None:
    """Returns the folder of a worktree whose lock nobody holds.

    Null where somebody does, or where it has none yet.
    """
    with suppress(OSError, UnicodeDecodeError):
        lock = try_lock(entry / _LOCK) if (entry / _LOCK).is_file() else None
        if lock is not None:
            lock.release()
            folder = Path((entry / "gitdir").read_text(encoding="utf-8").strip()).parent
            return folder if folder.name.startswith(PREFIX) else None
    return None


def _add(git: Git, folder: Path, commit: str, sleep: Sleep) -> GitOutput:
    """Adds the worktree, and returns the last answer of git.

    A conflict with another job is retried, after twice as long each time.
    """
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
    """Holds the lock that shows other jobs this process lives.

    The system drops it when the process ends.
    """
    entry, lock = git_in(folder)("rev-parse", "--absolute-git-dir"), None
    with suppress(OSError):
        lock = try_lock(Path(entry.text) / _LOCK)
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


def _remove(git: Git, folder: Path) -> None:
    """Takes the worktree out of the clone and off the disk.

    It is forced twice, since one half made counts as locked.
    """
    try:
        git("worktree", "remove", "--force", "--force", str(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# Runs the user's own words in a folder: the only use of a shell. Both streams go into one log.
_SETUP = ("/bin/sh", "-ec", 'exec >&2; cd -- "$1"; eval "$2"', "setup")
_SETUP_LOG = "setup.txt"
# Tells them where the candidate is: what git ignores, data perhaps, is there alone.
CANDIDATE = "BOTTLENECK_CANDIDATE"
_TAIL_LINES, _LINE = 3, 200
_FOLDER_STARTS = ("/", "./", "../", "~/")


@dataclass(frozen=True)
class Base:
    """The base that a change is compared with.

    Without a ``side`` there is a ``reason``, which also states the remedy.

    ``commit`` is its full name, empty for a folder outside of git. ``is_dirty``: the candidate has changes that are
    in no commit. ``own`` says that the base is the candidate itself, for who compares it with what lies here.
    """

    side: Side | None
    label: str
    commit: str = ""
    reason: str | None = None
    is_dirty: bool = False
    warnings: tuple[str, ...] = ()
    own: str | None = None


@contextmanager
def base_side(
    root: Path | None,
    against: str,
    setup: str,
    scratch: Path,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Base]:
    """Makes the base for the length of the block.

    ``against`` is "merge-base", "merge-base:BRANCH", a name that git knows, or a folder.

    ``root`` is that of the candidate's clone, null outside of one. ``folder`` is where the candidate runs (the root by
    default): the base runs in the same folder of its own. ``setup`` are words for a shell, run in there; not in a
    folder that was given, which is somebody's own. ``environment`` is that of this process (os.environ).
    """
    here = (folder or root or Path()).resolve()
    variables = os.environ if environment is None else environment
    if (given := _given(root, against, here)) is not None:
        yield _folder_base(root, given, here)
        return
    if root is None:
        wanted = "a base" if is_merge_base(against) else repr(against)
        why = f"this folder is in no git repository, where {wanted} could be found; name a folder with --against DIR"
        yield Base(None, against, reason=why)
        return
    git = git_in(root)
    if (reason := _unusable(git, root)) is not None:
        yield Base(None, against, reason=reason)
        return
    basis = find_base(git, against, variables)
    changed = is_dirty(git)
    is_own = basis.commit is not None and basis.commit == find_commit(git, "HEAD") and not changed
    own = f"nothing here differs from {basis.label}: it is compared with itself" if is_own else None
    warnings = _warnings(git, basis, setup)
    base = Base(None, basis.label, basis.commit or "", basis.reason, changed, warnings, own)
    if basis.commit is None:
        yield base
        return
    with worktree_at(git, basis.commit, scratch) as tree:
        if tree.reason is not None:
            yield replace(base, reason=tree.reason)
            return
        inner = _moved(here, root.resolve(), tree.folder) if here.is_relative_to(root.resolve()) else tree.folder
        side = Side(base.label, inner, sources(root.resolve(), tree.folder))
        if side.folder.is_dir():
            reason = _set_up(side, setup, scratch, here)
        else:
            reason = f"the base, {side.label}, has no folder {side.folder.relative_to(tree.folder)}"
        yield replace(base, reason=reason) if reason else replace(base, side=side)


def sources(root: Path, tree: Path) -> dict[str, str]:
    """Makes variables that move imports from ``root`` to ``tree``.

    Processes import from ``tree`` what they would have imported from ``root``.

    An installation in place names the root's own folders: without this, the base would run the candidate's code.
    """
    paths = [Path(entry).absolute() for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    moved = [_moved(path, root, tree) for path in paths]
    # The first entry is our own: the folder of the script that was started.
    inside = [Path(entry) for entry in sys.path[1:] if entry and Path(entry).is_relative_to(root)]
    inside += [path for entry in _installed_in_place() if entry.is_relative_to(root) for path in (entry, entry / "src")]
    moved += [path for entry in inside if (path := _moved(entry, root, tree)).is_dir()]
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys(map(str, moved)))} if moved else {}


def moved_target(target: str, root: Path | None, here: Path) -> str:
    """Names a program's file as each side finds it from its folder.

    A file outside of the clone is the same for both.
    """
    path = Path(target)
    if not path.is_absolute() or root is None or not path.resolve().is_relative_to(root.resolve()):
        return target
    return os.path.relpath(path.resolve(), here.resolve())


def lacks(base: Base, target: str) -> str | None:
    """Says why the base cannot run this program, if so.

    The cause is that its file is not there. Null where it is.
    """
    if base.side is None or (base.side.folder / target).exists():
        return None
    return f"the base, {base.label}, has no {target}: there is nothing to hold its time against until it is merged"


def _given(root: Path | None, against: str, here: Path) -> Path | None:
    """Returns the folder that ``against`` means, if any.

    A name that git knows goes first, unless it is written as a path.
    """
    if is_merge_base(against) or not against:
        return None
    path = here / Path(against).expanduser()
    if against in {".", ".."} or against.startswith(_FOLDER_STARTS):
        return path
    is_known = root is not None and find_commit(git_in(root), against) is not None
    return path if not is_known and path.is_dir() else None


def _folder_base(root: Path | None, given: Path, here: Path) -> Base:
    if not given.is_dir():
        return Base(None, str(given), reason=f"there is no folder {given} to hold the change against")
    tree, identity = given.resolve(), identify(given)
    inner = tree / here.relative_to(root.resolve()) if root and here.is_relative_to(root.resolve()) else tree
    side = Side(str(given), inner if inner.is_dir() else tree, sources(root.resolve() if root else here, tree))
    mine = identify(root) if root is not None else None
    own = f"{given} is the candidate's own folder: it is compared with itself" if tree == here else None
    commit = find_commit(git_in(given), "HEAD") if identity else None
    return Base(side, str(given), commit or "", None, bool(mine and mine.is_dirty), own=own)


def _unusable(git: Git, root: Path) -> str | None:
    """The reason why git cannot be used here; null where it can."""
    answer = git("rev-parse", "--git-dir")
    if answer.is_good:
        return None
    if answer.status == NO_GIT:
        return (
            "git is not installed, so the base cannot be checked out; install it, or name a folder with --against DIR"
        )
    if "dubious ownership" in answer.errors:
        return f"git refuses {root}, which belongs to another user: git config --global --add safe.directory {root}"
    return f"git cannot read {root}: {answer.error_line}"


def _warnings(git: Git, found: BaseCommit, setup: str) -> tuple[str, ...]:
    warnings = [found.warning] if found.warning else []
    if found.commit is None:
        return tuple(warnings)
    if git("cat-file", "-e", f"{found.commit}:.gitmodules").is_good:
        warnings.append("submodules are empty in the base; let `setup` run `git submodule update --init`")
    if b"filter=lfs" in git("show", f"{found.commit}:.gitattributes").output:
        warnings.append("files of git-lfs are pointers in the base; let `setup` run `git lfs pull`")
    if "pip install" in setup and "--target" not in setup:
        warnings.append("`setup` installs into the environment that both sides run in; build in place instead")
    return tuple(warnings)


def _set_up(side: Side, setup: str, scratch: Path, here: Path) -> str | None:
    """Sets up the base, and returns the reason where that failed.

    The reason has the last output. Null where it worked, or needs no set-up.
    """
    if not setup.strip():
        return None
    log = scratch / f"{side.folder.name}-{_SETUP_LOG}"
    environment = {**os.environ, **side.environment, CANDIDATE: str(here)}
    try:
        ran = run_quietly((*_SETUP, str(side.folder), setup), log, environment)
    except OSError as error:
        return f"`setup` cannot be run: {error.strerror or error}"
    finally:
        log.unlink(missing_ok=True)
    if ran.end.status == 0:
        return None
    output = "; ".join(line.strip()[:_LINE] for line in ran.stderr.strip().splitlines()[-_TAIL_LINES:])
    return f"`setup` failed in the base with status {ran.end.status}{f': {output}' if output else ''}"


def _moved(path: Path, root: Path, tree: Path) -> Path:
    return tree / path.relative_to(root) if path.is_relative_to(root) else path


def _installed_in_place() -> Sequence[Path]:
    """Returns folders of packages that are installed in place.

    Their sources lie there (PEP 660, by direct_url.json of PEP 610).

    Where setuptools hooks the import instead of the path, the module that does so maps packages to their folders.
    """
    hooks = [module for name, module in list(sys.modules.items()) if name.startswith("__editable__")]
    mapped = [item for hook in hooks for item in getattr(hook, "MAPPING", {}).items()]
    folders = [Path(folder).parents[name.count(".")] for name, folder in mapped]
    for package in importlib.metadata.distributions():
        with suppress(OSError, ValueError, TypeError, AttributeError, KeyError):
            origin = json.loads(package.read_text("direct_url.json") or "{}")
            if origin.get("dir_info", {}).get("editable"):
                folders.append(Path(unquote(urlsplit(origin["url"]).path)))
    return folders
