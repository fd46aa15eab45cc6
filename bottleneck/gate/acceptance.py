"""Moves a lock-file to what a step counts now, counter by counter, with a reason."""

import contextlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from bottleneck.errors import TraceError, UsageError
from bottleneck.gate.limits import MODULE_PREFIX, split_module_metric
from bottleneck.gate.lockfile import kept, write_whole
from bottleneck.report.ci.phrases import amounts, growth, tell_change
from bottleneck.schema.counters import COUNTERS, Acceptance, Anchor, Counts, Lock, Site
from bottleneck.schema.gate_result import CounterChange

_Modules = Mapping[str, Mapping[str, int]]

_FOLDER = Path(".bottleneck") / "last"
_IGNORE_ALL = "# Made by bottleneck, for this machine only.\n*\n"
_ACCEPTABLE = frozenset({"broken", "gone", "improved", "within budget", "new"})


@dataclass(frozen=True)
class Stamp:
    """What an acceptance says besides the numbers: the day, the commit (empty where unknown) and the reason."""

    date: str
    commit: str
    reason: str


def last_path(root: Path, name: str) -> Path:
    """Where the counts of a workload's last gate run lie."""
    return root / _FOLDER / f"{name}.counts.json"


def write_last(path: Path, counts: Counts) -> None:
    """Keeps the counts for `accept`, in a folder that git ignores; where nothing can be written, it counts anew."""
    with contextlib.suppress(UsageError):
        write_whole(path.parent / ".gitignore", _IGNORE_ALL)
        write_whole(path, msgspec.json.encode(counts).decode())


def read_last(path: Path) -> Counts:
    """The counts that ``write_last`` kept; TraceError where the file is no such."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Counts)
    except OSError as exc:
        raise TraceError(f"cannot read {path}: {exc.strerror}", fix="run bottleneck gate") from exc
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise TraceError(f"{path} holds no counts", why=str(exc), fix="remove it, and run bottleneck gate") from exc


def chosen(changes: Sequence[CounterChange], metrics: Sequence[str]) -> tuple[CounterChange, ...]:
    """The changes to accept: those of the metrics, or all beyond their budget; UsageError where one cannot be."""
    of_step = [change for change in changes if not change.is_creep]
    if not metrics:
        red = [change for change in of_step if change.verdict in {"broken", "gone"}]
        return tuple(_acceptable(change) for change in red)
    by_name = {change.metric: change for change in of_step}
    found = [_named(metric, by_name) for metric in dict.fromkeys(metrics)]
    return tuple(_acceptable(change) for change in found if change.verdict != "same")


def accept(lock: Lock, counts: Counts, changes: Sequence[CounterChange], stamp: Stamp) -> Lock:
    """The lock with these metrics, and what explains them, as they are counted now; all else stays as it was."""
    _refuse_other_input(lock.counts.input_sha, counts.input_sha)
    _refuse_unstable(changes, counts)
    edited = replace(kept(lock), accepted=(*lock.accepted, *_acceptances(changes, stamp)))
    for change in changes:
        edited = replace(edited, counts=_moved(edited.counts, counts, change))
    return kept(edited)


def with_anchor(lock: Lock, commit: str, values: Mapping[str, int] | None = None) -> Lock:
    """The lock whose creep budgets count from these counters, or from its own."""
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
    )


def _acceptable(change: CounterChange) -> CounterChange:
    if change.verdict in _ACCEPTABLE and change.after is not None:
        return change
    raise UsageError(
        f"{change.metric} cannot be accepted: it is {change.verdict}",
        why=change.reason or "",
        fix="write the lock-file anew, and look at what it loses: bottleneck gate --update",
    )


def _refuse_other_input(before: str, after: str) -> None:
    if before and after and before != after:
        raise UsageError(
            "a metric cannot be accepted alone: the program was given other arguments or settings",
            why="the other counters would stay those of the old ones, and never be compared again",
            fix="write the lock-file anew: bottleneck gate --update",
        )


def _refuse_unstable(changes: Sequence[CounterChange], counts: Counts) -> None:
    for change in changes:
        if change.metric in counts.unstable:
            raise UsageError(
                f"{change.metric} cannot be accepted: it varies from step to step",
                why=counts.unstable[change.metric],
                fix="list it as unstable, which no gate holds to anything: bottleneck gate --update",
            )


def _acceptances(changes: Sequence[CounterChange], stamp: Stamp) -> list[Acceptance]:
    """One for each metric that had a baseline."""
    return [
        Acceptance(stamp.date, stamp.commit, change.metric, change.before, change.after, stamp.reason)
        for change in changes
        if change.before is not None and change.after is not None
    ]


def _moved(old: Counts, new: Counts, change: CounterChange) -> Counts:
    parts = split_module_metric(change.metric)
    if parts is not None:
        path, counter = parts
        one = {path: new.modules.get(path, {})}
        return replace(old, modules={**old.modules, **_moved_modules({path: old.modules.get(path, {})}, one, counter)})
    name = change.metric
    moved = replace(
        old,
        values={**old.values, name: change.after or 0},
        unknown={key: text for key, text in old.unknown.items() if key != name},
        modules=_moved_modules(old.modules, new.modules, name),
        sites=_moved_sites(old.sites, new.sites, name),
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


def _moved_sites(old: Sequence[Site], new: Sequence[Site], counter: str) -> tuple[Site, ...]:
    """The lines with this counter as it is now; a line that both sides know is put together by ``kept``."""
    others = [replace(site, counts=_without(site.counts, counter)) for site in old]
    return (*others, *(replace(site, counts=_only(site.counts, counter)) for site in new))


def _without(counts: Mapping[str, int], counter: str) -> dict[str, int]:
    return {name: value for name, value in counts.items() if name != counter}


def _only(counts: Mapping[str, int], counter: str) -> dict[str, int]:
    return {name: value for name, value in counts.items() if name == counter}


def tell_accepted(
    file: str, name: str, changes: Sequence[CounterChange], creep: Sequence[CounterChange], stamp: Stamp
) -> str:
    """What an acceptance gives up, and what stays red all the same."""
    lines = [f"{name}: {'accepted in ' + file if changes else 'nothing to accept, and ' + file + ' is as it was'}"]
    lines += [f"  {_loss(change)}" for change in changes]
    if changes:
        lines += [f"  reason: {stamp.reason}", f"commit it: git add {shlex.quote(file)}"]
    lines += [
        f"still red: {tell_growth(change)} {change.reason}, beyond its creep budget"
        " (a release moves it: bottleneck accept --anchor COMMIT)"
        for change in creep
    ]
    return "\n".join(lines) + "\n"


def tell_anchor(file: str, before: Lock, after: Lock) -> str:
    """From where creep counts now, and how far the counters have come since."""
    anchor = after.anchor
    assert anchor is not None
    moved = [
        CounterChange(metric, value, before.counts.values[metric], "same")
        for metric, value in anchor.values.items()
        if before.counts.values.get(metric, value) != value
    ]
    lines = [f"{after.name}: creep counts from {anchor.commit} in {file}"]
    lines += [f"  {tell_growth(change)} since" for change in moved]
    return "\n".join([*lines, f"commit it: git add {shlex.quote(file)}"]) + "\n"


def tell_growth(change: CounterChange) -> str:
    """'launches 303 -> 311 per step (+8, +2.6 %)'."""
    if change.before is None or change.after is None:
        return f"{change.metric}: {amounts(change)[1]} per step, new"
    share = f", {growth(change.after / change.before)}" if change.before else ""
    return f"{tell_change(change)} per step ({amounts(change)[2]}{share})"


def _loss(change: CounterChange) -> str:
    is_win = change.before is not None and change.after is not None and change.after < change.before
    return f"{'keeps' if is_win else 'takes' if change.before is None else 'gives up'}: {tell_growth(change)}"
