"""Edits lock-files for ``bottleneck accept``.

Counters take their present values with a reason, or the anchor moves.
"""

import contextlib
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from bottleneck.errors import TraceError, UsageError
from bottleneck.experiment.git_clone import find_commit, find_root, git_in, identify
from bottleneck.gate.judge import NUMERICS, is_compared, is_red, judge_counts, judge_outputs
from bottleneck.gate.lockfile import kept, read_lock, read_lock_at
from bottleneck.gate.settings import MODULE_PREFIX, Project, lock_path, split_module_metric, workload_name
from bottleneck.report.ci.phrases import amount, amounts, describe_output, format_change, growth
from bottleneck.report.output import make_folder, write_bytes
from bottleneck.schema.counters import COUNTERS, Acceptance, Anchor, Counts, Lock
from bottleneck.schema.gate_result import CounterChange, GateSettings
from bottleneck.schema.numerics import OutputChange
from bottleneck.system.files import read_file

_Modules = Mapping[str, Mapping[str, int]]

_FOLDER = Path(".bottleneck") / "last"
_IGNORE_ALL = "# Made by bottleneck, for this machine only.\n*\n"
_ACCEPTABLE = frozenset({"broken", "gone", "removed", "improved", "within budget", "new"})


# Variables that CI services set for their jobs; most of them set CI.
_CI_VARIABLES = (
    "CI", "GITHUB_ACTIONS", "GITLAB_CI", "BUILDKITE", "JENKINS_URL", "TEAMCITY_VERSION", "TF_BUILD", "CIRCLECI",
    "TRAVIS", "APPVEYOR", "BITBUCKET_BUILD_NUMBER", "CODEBUILD_BUILD_ID", "DRONE", "SEMAPHORE",
)  # fmt: skip
_SHORT = 10
_OFF = ("", "0", "false", "no")


@dataclass(frozen=True)
class LockedWorkload:
    """A workload with its lock-file.

    ``name`` is the one that the file was found by, whatever the file states.
    """

    name: str
    path: Path
    lock: Lock

    @property
    def file(self) -> str:
        """The lock-file as a person would type it."""
        return os.path.relpath(self.path)


@dataclass(frozen=True)
class Stamp:
    """The day, commit (empty where unknown) and reason of an acceptance."""

    date: str
    commit: str
    reason: str


def refuse_in_ci(environment: Mapping[str, str]) -> None:
    """UsageError where the environment is that of a CI job."""
    named = next((name for name in _CI_VARIABLES if environment.get(name, "").lower() not in _OFF), None)
    if named is not None:
        raise UsageError(
            f"nothing is accepted in CI ({named} is set)",
            why="what a step may count is for a person to change, where others can review it",
            fix="run this on your machine, and commit the lock-file",
        )


def locked_workloads(project: Project, texts: Sequence[str]) -> list[LockedWorkload]:
    """Finds the workloads of these names or command lines, with their lock-files.

    Without any these are those of the settings, else all that have a lock-file.
    """
    root, settings = project.root, project.settings
    named = [_name(text, root) for text in texts or settings.workloads]
    names = list(dict.fromkeys(named)) or _locked(root, settings)
    if not names:
        raise UsageError(
            "there is no lock-file to change", why=f"it is looked for in {root}", fix="bottleneck gate --update FILE"
        )
    paths = {name: lock_path(settings, root, name) for name in names}
    for text in texts:
        path = paths[_name(text, root)]
        if not path.exists():
            raise TraceError(
                f"{text} has no lock-file", why=f"it would be {path}", fix=f"write it: bottleneck gate --update {text}"
            )
    return [LockedWorkload(name, path, read_lock(path)) for name, path in paths.items()]


def _name(text: str, root: Path) -> str:
    """The name of a workload, from its name or its command line."""
    try:
        words = [text] if (root / text).is_file() else shlex.split(text)
    except ValueError as exc:
        raise UsageError(
            f"{text!r} is no command line", why=str(exc), fix="close its quotes, as for a shell, or name the workload"
        ) from exc
    return workload_name(words)


def _locked(root: Path, settings: GateSettings) -> list[str]:
    """The names of all workloads that have a lock-file."""
    before, _, after = settings.lock.partition("{workload}")
    folder, prefix = (root / f"{before}x").parent, Path(f"{before}x").name[:-1]
    files = folder.glob("*") if folder.is_dir() else ()
    names = [path.name for path in files if path.name.startswith(prefix) and path.name.endswith(after)]
    return sorted(name[len(prefix) : len(name) - len(after)] for name in names if not name.startswith("."))


def accept_counts(
    workload: LockedWorkload, counts: Counts, project: Project, metrics: Sequence[str], reason: str
) -> tuple[Lock, str]:
    """Accepts metrics as counted; gives the lock and a text.

    Without any metric all are accepted that are beyond their budgets.
    """
    changes = judge_counts(workload.lock, counts, project.settings)
    if not is_compared(changes) and not any(map(is_red, changes)):
        raise UsageError(
            f"{workload.name}: nothing can be compared with {workload.file}",
            why=next((change.reason for change in changes if change.reason), ""),
            fix="write it anew: bottleneck gate --update",
        )
    outputs = _accepted_outputs(workload.lock, counts, metrics)
    others = [metric for metric in metrics if metric != NUMERICS]
    accepted = chosen(changes, others) if others or not metrics else ()
    clone = find_root(project.root)
    identity = None if clone is None else identify(clone)
    stamp = Stamp(datetime.now(UTC).date().isoformat(), "" if identity is None else identity.commit, reason)
    lock = accept(workload.lock, counts, accepted, stamp) if accepted else workload.lock
    lock = _with_outputs(lock, counts, outputs, stamp) if outputs else lock
    creep = [row for row in judge_counts(lock, counts, project.settings) if row.is_creep and is_red(row)]
    other_outputs = [describe_output(change) for change in outputs]
    return lock, describe_acceptance(workload.file, workload.name, accepted, creep, stamp, other_outputs)


def _accepted_outputs(lock: Lock, counts: Counts, metrics: Sequence[str]) -> tuple[OutputChange, ...]:
    """Finds the outputs that differ, if all or they are accepted.

    UsageError where they are named and cannot be.
    """
    judged = judge_outputs(lock, counts)
    if NUMERICS in metrics and judged.verdict not in {"differs", "same"}:
        fix = "write the lock-file anew: bottleneck gate --update --numerics"
        raise UsageError("the outputs cannot be accepted", why=judged.reason or "", fix=fix)
    return judged.changes if not metrics or NUMERICS in metrics else ()


def _with_outputs(lock: Lock, counts: Counts, changes: Sequence[OutputChange], stamp: Stamp) -> Lock:
    """Writes the outputs of now into the lock.

    What differs from run to run stays left out.
    """
    before, after = lock.counts.numerics, counts.numerics
    assert before is not None and after is not None
    tensors = {name: digest for name, digest in after.tensors.items() if name not in before.unstable}
    merged = replace(after, tensors=tensors, unstable={**before.unstable, **after.unstable})
    row = Acceptance(stamp.date, stamp.commit, NUMERICS, 0, len(changes), stamp.reason)
    return kept(replace(lock, counts=replace(lock.counts, numerics=merged), accepted=(*lock.accepted, row)))


def move_anchor(workload: LockedWorkload, ref: str, *, is_required: bool) -> tuple[Lock, str]:
    """Moves the anchor of creep to the lock-file of a commit.

    Gives the lock, unchanged where that commit has no lock-file, and a text on it.

    UsageError where git knows no such commit, or where it has no lock-file and ``is_required``.
    """
    clone = find_root(workload.path.parent)
    git = None if clone is None else git_in(clone)
    commit = None if git is None else find_commit(git, ref)
    if git is None or commit is None:
        raise UsageError(f"there is no commit {ref}", fix="name a tag or a commit of this clone")
    before = read_lock_at(commit, workload.path)
    if before is None and is_required:
        raise UsageError(f"{ref} has no {workload.file} that can be read", fix="name a commit in which it stands")
    if before is None:
        return workload.lock, f"{workload.name}: as it was, for {ref} has no {workload.file}\n"
    is_tag = git("rev-parse", "--verify", "--quiet", f"refs/tags/{ref}").is_good
    lock = with_anchor(workload.lock, ref if is_tag else commit[:_SHORT], before.counts.values)
    return lock, describe_anchor(workload.file, workload.lock, lock)


def last_path(root: Path, name: str) -> Path:
    """The file with the counts of a workload's last gate run."""
    return root / _FOLDER / f"{name}.counts.json"


_LARGEST_BYTES = 64 * 2**20


def write_last(path: Path, counts: Counts) -> None:
    """Keeps the counts for `accept`, in a folder that git ignores.

    Where nothing can be written, `accept` counts anew.
    """
    with contextlib.suppress(UsageError):
        make_folder(path.parent)
        write_bytes(_IGNORE_ALL.encode(), path.parent / ".gitignore")
        write_bytes(msgspec.json.encode(counts), path)


def read_last(path: Path) -> Counts:
    """The counts that ``write_last`` kept; TraceError where the file is no such."""
    try:
        return msgspec.json.decode(read_file(path, _LARGEST_BYTES), type=Counts)
    except OSError as exc:
        raise TraceError(f"cannot read {path}: {exc.strerror}", fix="run bottleneck gate") from exc
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise TraceError(f"{path} holds no counts", why=str(exc), fix="remove it, and run bottleneck gate") from exc


def last_counts(workload: LockedWorkload, project: Project) -> Counts | None:
    """Reads the counts of the gate's last run.

    None without any, or where a source that they name has changed since.
    """
    path = last_path(project.root, workload.name)
    try:
        counts = read_last(path)
    except TraceError:  # none is there, or it is of another version
        return None
    named = {*(site.file for site in counts.sites), *workload.lock.program, "pyproject.toml"}
    kept_at = path.stat().st_mtime_ns
    files = (project.root / name for name in named)
    return None if any(file.is_file() and file.stat().st_mtime_ns > kept_at for file in files) else counts


def chosen(changes: Sequence[CounterChange], metrics: Sequence[str]) -> tuple[CounterChange, ...]:
    """Chooses the changes to accept: those named, else all beyond their budgets.

    UsageError where one cannot be accepted.
    """
    of_step = [change for change in changes if not change.is_creep]
    if not metrics:
        red = [change for change in of_step if is_red(change)]
        return tuple(_acceptable(change) for change in red)
    by_name = {change.metric: change for change in of_step}
    named_changes = [_named(metric, by_name) for metric in dict.fromkeys(metrics)]
    return tuple(_acceptable(change) for change in named_changes if change.verdict != "same")


def accept(lock: Lock, counts: Counts, changes: Sequence[CounterChange], stamp: Stamp) -> Lock:
    """Writes these metrics, and what explains them, into the lock.

    All else stays as it was.
    """
    before, after = lock.counts.input_sha, counts.input_sha
    if before and after and before != after:
        raise UsageError(
            "a metric cannot be accepted alone: the program was given other arguments or settings",
            why="the other counters would stay those of the old ones, and never be compared again",
            fix="write the lock-file anew: bottleneck gate --update",
        )
    unstable = next((change.metric for change in changes if change.metric in counts.unstable), None)
    if unstable is not None:
        raise UsageError(
            f"{unstable} cannot be accepted: it varies from step to step",
            why=counts.unstable[unstable],
            fix="list it as unstable, which no gate holds to anything: bottleneck gate --update",
        )
    accepted = [
        Acceptance(stamp.date, stamp.commit, change.metric, change.before, change.after, stamp.reason)
        for change in changes
        if change.before is not None and change.after is not None  # only a metric that had a baseline
    ]
    edited = replace(kept(lock), accepted=(*lock.accepted, *accepted))
    for change in changes:
        edited = replace(edited, counts=_moved(edited.counts, counts, change))
    return kept(edited)


def with_anchor(lock: Lock, commit: str, values: Mapping[str, int] | None = None) -> Lock:
    """Anchors creep budgets at these counters, or at the lock's own."""
    return replace(lock, anchor=Anchor(commit, dict(lock.counts.values if values is None else values)))


def _named(metric: str, by_name: Mapping[str, CounterChange]) -> CounterChange:
    if metric in by_name:
        return by_name[metric]
    if metric.startswith("step"):
        raise UsageError(
            f"{metric} is a time, and lock-files hold no times",
            fix="change the budget of step_us in pyproject.toml, for all to see",
        )
    is_known = metric in COUNTERS or metric.startswith(MODULE_PREFIX)
    raise UsageError(
        f"{metric} is {'not among what was counted' if is_known else 'no counter'}",
        why=f"there are {', '.join(by_name)}",
        fix="name some of these, or leave --metric out to accept every counter beyond its budget",
    )


def _acceptable(change: CounterChange) -> CounterChange:
    if change.verdict in _ACCEPTABLE and change.after is not None:
        return change
    raise UsageError(
        f"{change.metric} cannot be accepted: it is {change.verdict}",
        why=change.reason or "",
        fix="write the lock-file anew, and look at what it loses: bottleneck gate --update",
    )


def _moved(old: Counts, new: Counts, change: CounterChange) -> Counts:
    parts = split_module_metric(change.metric)
    if parts is not None:
        path, counter = parts
        one, other = ({path: side.modules.get(path, {})} for side in (old, new))
        return replace(old, modules={**old.modules, **_moved_modules(one, other, counter)})
    name = change.metric
    moved = replace(
        old,
        values={**old.values, name: change.after or 0},
        unknown={key: text for key, text in old.unknown.items() if key != name},
        modules=_moved_modules(old.modules, new.modules, name),
        # A line that both sides know is put together by ``kept``.
        sites=(
            *(replace(site, counts=_without(site.counts, name)) for site in old.sites),
            *(replace(site, counts=_only(site.counts, name)) for site in new.sites),
        ),
    )
    if name == "ops":
        moved = replace(moved, ops=new.ops)
    return replace(moved, kernels=new.kernels) if name in {"launches", "kernel_names"} else moved


def _moved_modules(old: _Modules, new: _Modules, counter: str) -> _Modules:
    """The modules with this counter as it is now."""
    moved = {
        path: {**_without(old.get(path, {}), counter), **_only(new.get(path, {}), counter)} for path in {*old, *new}
    }
    return {path: counts for path, counts in moved.items() if counts}


def _without(counts: Mapping[str, int], counter: str) -> dict[str, int]:
    return {name: value for name, value in counts.items() if name != counter}


def _only(counts: Mapping[str, int], counter: str) -> dict[str, int]:
    return {name: value for name, value in counts.items() if name == counter}


def describe_acceptance(
    file: str,
    name: str,
    changes: Sequence[CounterChange],
    creep: Sequence[CounterChange],
    stamp: Stamp,
    outputs: Sequence[str] = (),
) -> str:
    """Words what an acceptance gives up, and creep budgets still exceeded."""
    is_edited = bool(changes or outputs)
    lines = [f"{name}: {'accepted in ' + file if is_edited else 'nothing to accept, and ' + file + ' is as it was'}"]
    for change in changes:
        is_win = change.before is not None and change.after is not None and change.after < change.before
        verb = "keeps" if is_win else "takes" if change.before is None else "gives up"
        lines.append(f"  {verb}: {growth_words(change)}")
    lines += [f"  other output: {text}" for text in outputs]
    if is_edited:
        lines += [f"  reason: {stamp.reason}", f"commit it: git add {shlex.quote(file)}"]
    lines += [
        f"still red: {growth_words(change)} {change.reason}, beyond its creep budget"
        " (a release moves it: bottleneck accept --anchor COMMIT)"
        for change in creep
    ]
    return "\n".join(lines) + "\n"


def describe_anchor(file: str, before: Lock, after: Lock) -> str:
    """Words the commit of the anchor and how counters changed since."""
    anchor = after.anchor
    assert anchor is not None
    moved = [
        CounterChange(metric, value, before.counts.values[metric], "same")
        for metric, value in anchor.values.items()
        if before.counts.values.get(metric, value) != value
    ]
    lines = [f"{after.name}: creep counts from {anchor.commit} in {file}"]
    lines += [f"  {growth_words(change)} since" for change in moved]
    return "\n".join([*lines, f"commit it: git add {shlex.quote(file)}"]) + "\n"


def growth_words(change: CounterChange) -> str:
    """'launches 303 to 311 per step (+8, +2.6 %)'."""
    if change.before is None or change.after is None:
        return f"{change.metric}: {amount(change.metric, change.after)} per step, new"
    share = f", {growth(change.after / change.before)}" if change.before else ""
    return f"{format_change(change)} per step ({amounts(change.metric, change.before, change.after)[2]}{share})"
