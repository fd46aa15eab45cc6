"""What ``bottleneck accept`` does: finds lock-files and what was counted last, and edits only what is asked for."""

import os
import shlex
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from bottleneck.errors import TraceError, UsageError

if TYPE_CHECKING:
    from bottleneck.gate.acceptance import Stamp
    from bottleneck.schema.counters import Counts, Lock
    from bottleneck.schema.gate_result import GateSettings

# What services set for their jobs, besides CI, which most of them do.
_OF_SERVICES = (
    "CI",
    "GITHUB_ACTIONS",
    "GITLAB_CI",
    "BUILDKITE",
    "JENKINS_URL",
    "TEAMCITY_VERSION",
    "TF_BUILD",
    "CIRCLECI",
    "TRAVIS",
    "APPVEYOR",
    "BITBUCKET_BUILD_NUMBER",
    "CODEBUILD_BUILD_ID",
    "DRONE",
    "SEMAPHORE",
)
_SHORT = 10
_OFF = ("", "0", "false", "no")


@dataclass(frozen=True)
class Wanted:
    """What the command line asks for."""

    workloads: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    reason: str = ""
    anchor: str | None = None
    quiet: bool = False


@dataclass(frozen=True)
class _Target:
    """A workload's lock-file, and what all share: the folder of the settings, and they.

    ``name`` is that which the file was found by; what sides in it leads to no other file.
    """

    name: str
    root: Path
    settings: "GateSettings"
    path: Path
    lock: "Lock"

    @property
    def file(self) -> str:
        """The lock-file as a person would type it."""
        return os.path.relpath(self.path)


def accept(wanted: Wanted) -> None:
    """Edits the lock-files that are asked for, and prints what each gives up."""
    from bottleneck.commands.report_options import send
    from bottleneck.gate.lockfile import write_lock

    _refuse_in_ci(os.environ)
    if not wanted.reason and wanted.anchor is None:
        raise UsageError(
            "an acceptance has a reason", why="those who review it have nothing else to go by", fix='--reason "…"'
        )
    edits = [(target, *_edited(wanted, target)) for target in _targets(wanted)]
    for target, lock, text in edits:  # all that can fail has been done: either all are written or none
        if lock != target.lock:
            write_lock(target.path, lock)
        send(text)


def _refuse_in_ci(environment: Mapping[str, str]) -> None:
    named = next((name for name in _OF_SERVICES if environment.get(name, "").lower() not in _OFF), None)
    if named is not None:
        raise UsageError(
            f"nothing is accepted in CI ({named} is set)",
            why="what a step may count is for a person to change, where others can review it",
            fix="run this on your machine, and commit the lock-file",
        )


def _targets(wanted: Wanted) -> list[_Target]:
    """The lock-files of the workloads that are named, or of all."""
    from bottleneck.gate.lockfile import read_lock
    from bottleneck.gate.settings import find_pyproject, lock_path, read_settings

    pyproject = find_pyproject(Path.cwd())
    settings = read_settings(pyproject)
    root = Path.cwd() if pyproject is None else pyproject.parent
    named = [_name(text, root) for text in wanted.workloads or settings.workloads]
    names = list(dict.fromkeys(named)) or _locked(root, settings)
    if not names:
        raise UsageError(
            "there is no lock-file to change", why=f"it is looked for in {root}", fix="bottleneck gate --update FILE"
        )
    paths = {name: lock_path(settings, root, name) for name in names}
    return [_Target(name, root, settings, path, read_lock(path)) for name, path in paths.items()]


def _name(text: str, root: Path) -> str:
    """The workload's name, of its name or its command line."""
    from bottleneck.gate.settings import workload_name

    try:
        words = [text] if (root / text).is_file() else shlex.split(text)
    except ValueError as exc:
        raise UsageError(f"{text!r} is no command line: {exc}") from exc
    return workload_name(words)


def _locked(root: Path, settings: "GateSettings") -> list[str]:
    """The names of all workloads that have a lock-file."""
    before, _, after = settings.lock.partition("{workload}")
    folder, prefix = (root / f"{before}x").parent, Path(f"{before}x").name[:-1]
    found = folder.glob("*") if folder.is_dir() else ()
    names = [path.name for path in found if path.name.startswith(prefix) and path.name.endswith(after)]
    return sorted(name[len(prefix) : len(name) - len(after)] for name in names if not name.startswith("."))


def _edited(wanted: Wanted, target: _Target) -> "tuple[Lock, str]":
    """The lock as it is to be, and what is printed of it."""
    from bottleneck.gate.acceptance import tell_anchor, with_anchor

    if wanted.anchor is None:
        return _accepted(wanted, target)
    commit, values = _anchor(wanted.anchor, target)
    if values is None and wanted.workloads:
        raise UsageError(
            f"{wanted.anchor} has no {target.file} that can be read", fix="name a commit in which it stands"
        )
    if values is None:
        return target.lock, f"{target.name}: as it was, for {wanted.anchor} has no {target.file}\n"
    lock = with_anchor(target.lock, commit, values)
    return lock, tell_anchor(target.file, target.lock, lock)


def _accepted(wanted: Wanted, target: _Target) -> "tuple[Lock, str]":
    from bottleneck.gate.acceptance import accept, chosen, tell_accepted
    from bottleneck.gate.judge import is_compared, is_red, judge_counts

    counts = _counts(wanted, target)
    changes = judge_counts(target.lock, counts, target.settings)
    if not is_compared(changes) and not any(map(is_red, changes)):
        raise UsageError(
            f"{target.name}: nothing can be held against {target.file}",
            why=next((change.reason for change in changes if change.reason), ""),
            fix="write it anew: bottleneck gate --update",
        )
    accepted = chosen(changes, wanted.metrics)
    stamp = _stamp(wanted.reason, target.root)
    lock = accept(target.lock, counts, accepted, stamp) if accepted else target.lock
    creep = [row for row in judge_counts(lock, counts, target.settings) if row.is_creep and is_red(row)]
    return lock, tell_accepted(target.file, target.name, accepted, creep, stamp)


def _counts(wanted: Wanted, target: _Target) -> "Counts":
    """Those of the last run of the gate, or where a source has changed since, those of now."""
    from bottleneck.commands.gating import progress
    from bottleneck.gate.acceptance import last_path, read_last, write_last

    path = last_path(target.root, target.name)
    try:
        counts = read_last(path)
        if not _is_stale(path, counts, target):
            return counts
    except TraceError:  # none is there, or it is of another version
        pass
    with progress(quiet=wanted.quiet) as say:
        say(f"counting {target.name}")
        counts = _count(target)
    write_last(path, counts)
    return counts


def _is_stale(path: Path, counts: "Counts", target: _Target) -> bool:
    """Whether a file that the counts come from, as far as they tell, has changed since."""
    named = {*(site.file for site in counts.sites), *target.lock.program, "pyproject.toml"}
    kept_at = path.stat().st_mtime_ns
    files = (target.root / name for name in named)
    return any(file.is_file() and file.stat().st_mtime_ns > kept_at for file in files)


def _count(target: _Target) -> "Counts":
    from bottleneck.commands.gating import Place, find_program
    from bottleneck.experiment.side import Side
    from bottleneck.gate.count_program import count_program

    program = find_program(shlex.join(target.lock.program), Place(target.root, target.settings))
    with tempfile.TemporaryDirectory(prefix="bottleneck-accept-", ignore_cleanup_errors=True) as scratch:
        side = Side("this folder", target.root, target.settings.environment)
        return count_program(program, Path(scratch), side).counts


def _stamp(reason: str, root: Path) -> "Stamp":
    from bottleneck.experiment.sources import find_root, identify
    from bottleneck.gate.acceptance import Stamp

    clone = find_root(root)
    identity = None if clone is None else identify(clone)
    return Stamp(datetime.now(UTC).date().isoformat(), "" if identity is None else identity.commit, reason)


def _anchor(ref: str, target: _Target) -> tuple[str, Mapping[str, int] | None]:
    """What the anchor is called, and the counters of the lock-file at that commit; null where it has none."""
    from bottleneck.experiment.sources import find_commit, find_root, git_in
    from bottleneck.gate.lockfile import read_lock_at

    clone = find_root(target.root)
    git = None if clone is None else git_in(clone)
    commit = None if git is None else find_commit(git, ref)
    if git is None or commit is None:
        raise UsageError(f"there is no commit {ref}", fix="name a tag or a commit of this clone")
    lock = read_lock_at(commit, target.path)
    is_tag = git("rev-parse", "--verify", "--quiet", f"refs/tags/{ref}").is_good
    return ref if is_tag else commit[:_SHORT], None if lock is None else lock.counts.values
