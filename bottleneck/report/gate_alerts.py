"""What the gate found as alerts at lines of code: what annotations, SARIF and code quality are made of."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bottleneck.counters import Site
from bottleneck.gated import CounterChange, CounterVerdict, Gate, WorkloadResult
from bottleneck.gated_words import counter_of
from bottleneck.report.gate_counter_words import cause_words, change_words, improved
from bottleneck.report.gate_time_words import time_words
from bottleneck.report.gate_words import closing, worst_first

Level = Literal["error", "warning", "note"]

# Rules besides the counters: what an alert can be about.
TIME, RUN, MEASUREMENT, OTHER = "step-time", "workload-failed", "nothing-measured", "other-counter"

_FAILING: Mapping[CounterVerdict, Level] = {"broken": "error", "gone": "error", "new": "warning"}
_DRIVE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


@dataclass(frozen=True)
class Place:
    """A line of a file, relative to the repository; ``is_cause`` unless it only stands in for a line nobody knows."""

    file: str
    line: int
    is_cause: bool


@dataclass(frozen=True)
class Alert:
    """One thing to tell at a line: about which rule of which workload, how grave, and since when it is the same.

    ``lines`` say why, ``fix`` how to fix or accept it, ``others`` are further places that did it. ``fingerprint`` does
    not change when the line of code moves or the numbers do.
    """

    workload: str
    rule: str
    level: Level
    title: str
    lines: tuple[str, ...]
    place: Place
    fingerprint: str
    others: tuple[Place, ...] = ()
    fix: str = ""


def alerts(gate: Gate) -> tuple[Alert, ...]:
    """All alerts, errors first; a workload that does not pass has one at least, a gate that fails has an error.

    Fingerprints are unique, as GitLab shows one issue of each: of two limits on one metric the first that is broken.
    """
    found = [alert for result in worst_first(gate.results) for alert in _of(result, gate.exit_code)]
    if gate.exit_code and all(alert.level != "error" for alert in found):
        settings = Place("pyproject.toml", 1, is_cause=False)
        mark = _fingerprint(MEASUREMENT)
        found.append(Alert("all workloads", MEASUREMENT, "error", closing(gate), gate.warnings, settings, mark))
    order: list[Level] = ["error", "warning", "note"]
    unique: dict[str, Alert] = {}
    for alert in sorted(found, key=lambda alert: order.index(alert.level)):
        unique.setdefault(alert.fingerprint, alert)
    return tuple(unique.values())


def _of(result: WorkloadResult, exit_code: int) -> list[Alert]:
    wrong = [change for change in result.counters if change.verdict in _FAILING]
    found = [] if result.is_new else [_counter(result, change) for change in wrong]
    found += [_counter(result, change, "note") for change in improved(result)]
    found += _time(result, exit_code)
    is_told = any(alert.level == _level(result, exit_code) for alert in found)
    if result.is_new or (result.verdict != "pass" and not is_told):
        found.append(_whole(result, exit_code))
    return found


def _level(result: WorkloadResult, exit_code: int) -> Level:
    """How grave a workload's verdict is: what is undecided is an error only where that fails the build."""
    if result.verdict == "pass" and not result.is_new:
        return "note"
    return "error" if result.verdict in {"fail", "failed"} or exit_code == 5 else "warning"


def _counter(result: WorkloadResult, change: CounterChange, level: Level | None = None) -> Alert:
    counter = counter_of(change.metric)
    places = _places([culprit.site for culprit in change.culprits if culprit.site is not None])
    return Alert(
        result.name,
        OTHER if counter is None else counter.name,
        level or _FAILING[change.verdict],
        f"{change_words(change)}{' (better)' if level == 'note' else ''}",
        tuple(cause_words(change)),
        places[0] if places else stand_in(result),
        _fingerprint(result.name, change.metric, str(change.is_creep), _anchor(change)),
        places[1:],
        result.fix if level is None else "",
    )


def _time(result: WorkloadResult, exit_code: int) -> list[Alert]:
    """The step that got slower, at the line that takes the most more time, got faster, or was not decided."""
    undecided = _level(result, exit_code) if result.verdict == "undecided" else "warning"
    levels: dict[str, Level] = {"slower": "error", "undecided": undecided, "faster": "note"}
    time = result.time
    if time is None or time.verdict not in levels:
        return []
    is_cause = time.verdict == "slower" or result.verdict == "undecided"
    why, fix = (result.why, result.fix) if is_cause else ((), "")
    place = (_slowest(result) if time.verdict == "slower" else None) or stand_in(result)
    title = f"step {time_words(time)}"
    mark = _fingerprint(result.name, TIME)
    return [Alert(result.name, TIME, levels[time.verdict], title, why, place, mark, fix=fix)]


def _whole(result: WorkloadResult, exit_code: int) -> Alert:
    """What is to be told of a workload that no counter and no time tells."""
    rule = RUN if result.verdict == "failed" else MEASUREMENT
    return Alert(
        result.name,
        rule,
        _level(result, exit_code),
        result.what or ("there is no lock-file yet" if result.is_new else result.verdict),
        result.why or result.warnings,
        stand_in(result),
        _fingerprint(result.name, rule),
        fix=result.fix,
    )


def _slowest(result: WorkloadResult) -> Place | None:
    """The line that explains a slowdown best: one whose counters broke, else the one that takes the most more time."""
    sites = [culprit.site for change in result.counters if change.verdict == "broken" for culprit in change.culprits]
    places = _places([site for site in sites if site is not None])
    rows = [] if result.comparison is None else sorted(result.comparison.rows, key=lambda row: -row.change_us)
    for row in rows:
        file, _, line = (row.source or "").rpartition(":")
        if row.change_us > 0 and line.isdecimal():
            places = (*places, *_places([Site(file, int(line), "")]))
    return places[0] if places else None


def stand_in(result: WorkloadResult) -> Place:
    """Where an alert stands whose line nobody knows: the workload's own file, its lock-file, or the settings."""
    candidates = [word for word in result.program if word.endswith(".py")] + [result.lock, "pyproject.toml"]
    return Place(_tidy(next(file for file in candidates if is_inside(file))), 1, is_cause=False)


def _places(sites: Sequence[Site]) -> tuple[Place, ...]:
    inside = [Place(_tidy(site.file), max(site.line, 1), is_cause=True) for site in sites if is_inside(site.file)]
    return tuple(dict.fromkeys(inside))


def _tidy(file: str) -> str:
    """The path as servers compare it: without './' before it."""
    return file.removeprefix("./")


def is_inside(file: str) -> bool:
    """Whether this names a file below the repository: no absolute path, no drive or scheme, no way up."""
    parts = re.split(r"[/\\]", file)
    return bool(file) and bool(parts[0]) and ".." not in parts and not (_DRIVE.match(parts[0]) and len(parts) > 1)


def _anchor(change: CounterChange) -> str:
    """What a change is known by again after lines have moved: the text of its first line, else what changed."""
    for culprit in change.culprits:
        if culprit.site is not None:
            return f"{culprit.site.file}\n{culprit.site.text.strip() or culprit.what}"
    return change.culprits[0].what if change.culprits else ""


def _fingerprint(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "backslashreplace")).hexdigest()[:32]
