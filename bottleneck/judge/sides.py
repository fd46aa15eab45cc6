"""Finds the two sides of a patch.

They are commits, folders, the working tree, or any of these with a patch applied.
"""

import difflib
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bottleneck.errors import UsageError
from bottleneck.experiment.git_clone import find_commit, find_root, git_in, touched_lines
from bottleneck.experiment.side import Side
from bottleneck.experiment.worktree import base_side, sources
from bottleneck.schema.gate_result import GateSettings, Touched
from bottleneck.units import counted

WORKING_TREE = "."
_NAMES_OF_TREE = frozenset({".", "worktree"})
_PATCHES = (".patch", ".diff")
# Larger files are data, which both sides may share.
_COPIED_BYTES = 1 << 20
_MOST_FILES = 20_000
_UNSHARED = frozenset({"__pycache__", ".git", ".bottleneck", ".mypy_cache", ".ruff_cache", ".pytest_cache"})


@dataclass(frozen=True)
class PatchSides:
    """The sources before and after a patch.

    ``touched`` are the lines that it adds or changes, by file; null where that is not known. ``ours`` are the folders
    that were made for this judgement, in which files may be written.
    """

    base: Side
    changed: Side
    touched: Touched | None
    ours: frozenset[Path] = frozenset()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class _NamedSide:
    side: Side
    commit: str = ""
    is_ours: bool = False
    warnings: tuple[str, ...] = ()


@contextmanager
def patch_sides(
    base: str, changed: str | None, here: Path, settings: GateSettings, scratch: Path
) -> Iterator[PatchSides]:
    """Makes both sides for the length of the block.

    Each of ``base`` and ``changed`` is a git ref, a folder, or `.` for the sources as they lie ``here``; ``changed``
    may be a patch file too, which is applied to a copy of the base. A patch alone is applied to the sources as they
    lie here. UsageError where a side cannot be made.
    """
    if is_patch(base):
        if changed is not None:
            raise UsageError(
                f"{base} is a patch, and stands where the base is named",
                fix=f"bottleneck judge {changed} {base}, or the patch alone",
            )
        base, changed = WORKING_TREE, base
    changed = WORKING_TREE if changed is None else changed
    with ExitStack() as stack:
        before = stack.enter_context(_side_of(base, here, settings, scratch))
        if is_patch(changed):
            after = _NamedSide(_patched(before.side, Path(changed), here, scratch), is_ours=True)
        else:
            after = stack.enter_context(_side_of(changed, here, settings, scratch))
        both = (before, after)
        touched = _touched(before, after, here, changed)
        warnings = tuple(dict.fromkeys(warning for source in both for warning in source.warnings))
        if before.side.folder.resolve() == after.side.folder.resolve():
            warnings += (f"{after.side.label} is compared with itself",)
        elif not touched and not differing_lines(after.side.folder, before.side.folder):
            warnings += ("no Python file differs between both sides: only other files can make a difference",)
        ours = frozenset(source.side.folder for source in both if source.is_ours)
        yield PatchSides(before.side, after.side, touched, ours, warnings)


def is_patch(text: str) -> bool:
    """True for a file that holds a patch, by its name."""
    return text.endswith(_PATCHES) and Path(text).is_file()


def share_program(sides: PatchSides, target: str, here: Path) -> str | None:
    """Gives both sides the workload, and warns where one lacked it.

    A file that a commit does not have yet is copied there from ``here``. UsageError where a folder of the user's lacks
    it.
    """
    warning = None
    for side in (sides.base, sides.changed):
        if (side.folder / target).exists():
            continue
        if side.folder not in sides.ours or not (here / target).is_file():
            raise UsageError(
                f"{side.label} has no {target}",
                why=f"it is looked for in {side.folder}",
                fix="name a workload that both sides have",
            )
        file = side.folder / target
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(here / target, file)
        warning = f"{side.label} has no {target}: that of this folder ran there"
    return warning


@contextmanager
def _side_of(text: str, here: Path, settings: GateSettings, scratch: Path) -> Iterator[_NamedSide]:
    if text in _NAMES_OF_TREE and (text == WORKING_TREE or not Path(text).exists()):
        label = "this folder" if find_root(here) is None else "the working tree"
        yield _NamedSide(Side(label, here, settings.environment))
        return
    root = find_root(here)
    if Path(text).is_dir() and (root is None or find_commit(git_in(root), text) is None):
        text = str(Path(text).resolve())  # it is named from where the user is, which may be below the project
    with base_side(root, text, settings.setup, scratch, here) as base:
        if base.side is None:
            raise UsageError(
                f"{text} names no sources",
                why=base.reason or "there is no such commit or folder",
                fix="name a git ref, a folder, or a .patch or .diff file",
            )
        side = replace(base.side, environment={**settings.environment, **base.side.environment})
        # A worktree was made for this; a folder that was named is the user's own.
        yield _NamedSide(side, base.commit, side.folder.is_relative_to(scratch.resolve()), base.warnings)


def _patched(base: Side, patch: Path, here: Path, scratch: Path) -> Side:
    """Copies the sources of a side and applies a patch to the copy."""
    root = find_root(base.folder) or base.folder.resolve()
    tree = (scratch / "patched").resolve()
    _copy_tree(root, tree)
    _apply(patch.resolve(), tree)
    inner = tree / base.folder.resolve().relative_to(root)
    moved = sources(find_root(here) or here.resolve(), tree)
    return Side(f"{base.label} with {patch.name}", inner, {**base.environment, **moved})


def _copy_tree(root: Path, tree: Path) -> None:
    """Copies the sources.

    Large files and those that git ignores are links to those of the root.
    """
    files, ignored = _listed(root)
    if len(files) > _MOST_FILES:
        raise UsageError(
            f"{root} holds {counted(len(files), 'file')}, too many to copy for a patch",
            fix="commit the patch to a branch, and name the branch",
        )
    for name in files:
        source, copy = root / name, tree / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink() or source.stat().st_size > _COPIED_BYTES:
            copy.symlink_to(source.resolve())
        else:
            shutil.copy2(source, copy)
    for name in ignored:
        link = tree / name
        if not link.exists() and Path(name).name not in _UNSHARED:
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to((root / name).resolve())


def _listed(root: Path) -> tuple[list[str], list[str]]:
    """Lists the files that git knows or would, and those that it ignores.

    Without git it is all files.
    """
    git = git_in(root)
    own = git("ls-files", "--cached", "--others", "--exclude-standard", "-z")
    ignored = git("ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z")
    if own.is_good and ignored.is_good and find_root(root) is not None:
        names, left = (_names(answer.output) for answer in (own, ignored))
        return [name for name in names if (root / name).is_file()], [name.rstrip("/") for name in left]
    return list(itertools.islice(_walked(root), _MOST_FILES + 1)), []


def _names(listed: bytes) -> list[str]:
    return [os.fsdecode(name) for name in listed.split(b"\0") if name]


def _walked(folder: Path) -> Iterator[str]:
    """All files below a folder, by their path in it.

    Without caches and git's own.
    """
    for inner, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in _UNSHARED]
        yield from (str((Path(inner) / name).relative_to(folder)) for name in names)


def _apply(patch: Path, tree: Path) -> None:
    """Applies a patch as `git apply` does, which needs no clone.

    UsageError where it does not fit.
    """
    command = ("git", "apply", "--whitespace=nowarn", str(patch))
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.parent), "LC_ALL": "C"}
    try:
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, check=False)  # noqa: S603
    except FileNotFoundError:
        raise UsageError(
            "a patch can only be applied where git is installed", fix="install git, or name two folders"
        ) from None
    if done.returncode:
        errors = os.fsdecode(done.stderr).strip().splitlines()
        raise UsageError(
            f"{patch.name} cannot be applied",
            why=errors[0] if errors else f"git apply ended with status {done.returncode}",
            fix="make it against these sources: git diff BASE > change.patch",
        )


def _touched(before: _NamedSide, after: _NamedSide, here: Path, changed: str) -> Touched | None:
    """Finds the lines that the patch adds or changes, by file.

    Files are named from the changed side's folder.
    """
    is_tree = changed in _NAMES_OF_TREE
    if before.commit and (after.commit or is_tree) and not is_patch(changed):
        return touched_lines(here, before.commit, after.commit)
    return differing_lines(before.side.folder, after.side.folder)


def differing_lines(before: Path, after: Path) -> Mapping[str, frozenset[int]]:
    """Finds lines of Python files that those of another folder lack."""
    lines = {}
    for name in _python_files(after):
        old, new = _text(before / name), _text(after / name)
        if old != new:
            matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
            blocks = [block[3:] for block in matcher.get_opcodes() if block[0] in {"replace", "insert"}]
            lines[name] = frozenset(number + 1 for first, last in blocks for number in range(first, last))
    return {name: numbers for name, numbers in lines.items() if numbers}


def _python_files(folder: Path) -> Iterator[str]:
    return itertools.islice((name for name in _walked(folder) if name.endswith(".py")), _MOST_FILES)


def _text(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
    except OSError:
        return []
