r"""Renders the gate as alerts at lines, for GitHub, GitLab, SARIF.

Printed to a log, one a line: ``::error file=train.py,line=141,title=…::…``. Properties escape %, \r, \n, ':' and ',',
messages %, \r and \n (ActionCommand.cs of actions/runner); what is unprintable is a visible escape before that.

The format is the part of Code Climate's that GitLab reads: description, check_name, fingerprint, severity, location.
An empty list is a pass.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

from bottleneck.report.ci import phrases
from bottleneck.report.text import clean
from bottleneck.schema.counters import COUNTERS, Site
from bottleneck.schema.gate_result import Cause, CounterChange, CounterVerdict, Gate, WorkloadResult
from bottleneck.schema.op_names import place_of
from bottleneck.units import counted

Level = Literal["error", "warning", "note"]

# Rules besides the counters: what an alert can be about.
TIME, RUN, MEASUREMENT, OTHER = "step-time", "workload-failed", "nothing-measured", "other-counter"
OUTPUTS = "step-outputs"

_FAILING: Mapping[CounterVerdict, Level] = {"broken": "error", "gone": "error", "removed": "error", "new": "warning"}
_DRIVE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


@dataclass(frozen=True)
class AlertLocation:
    """A line of a file of the repository.

    ``is_cause`` unless it stands for an unknown line.
    """

    file: str
    line: int
    is_cause: bool


@dataclass(frozen=True)
class Alert:
    """One message at a source line: its workload, rule and severity.

    ``fix`` is how to fix or accept it, ``others`` are further locations. ``fingerprint``
    stays the same when the line of code moves or the numbers change.
    """

    workload: str
    rule: str
    level: Level
    title: str
    causes: tuple[Cause, ...]
    place: AlertLocation
    fingerprint: str
    others: tuple[AlertLocation, ...] = ()
    fix: str = ""

    @property
    def lines(self) -> tuple[str, ...]:
        """The causes, each in one line."""
        return tuple(cause.text for cause in self.causes)


def alerts(gate: Gate) -> tuple[Alert, ...]:
    """Lists all alerts, errors first.

    A workload that does not pass has one at least, a gate that fails has an error.

    Fingerprints are unique, as GitLab shows one issue of each: of two limits on one metric the first that is broken.
    """
    all_alerts = [alert for result in phrases.worst_first(gate.results) for alert in _of(result, gate.exit_code)]
    if gate.exit_code and all(alert.level != "error" for alert in all_alerts):
        settings = AlertLocation("pyproject.toml", 1, is_cause=False)
        causes, mark = _causes(gate.warnings), _fingerprint(MEASUREMENT)
        all_alerts.append(Alert("all workloads", MEASUREMENT, "error", phrases.closing(gate), causes, settings, mark))
    order = list(_COMMANDS)
    unique: dict[str, Alert] = {}
    for alert in sorted(all_alerts, key=lambda alert: order.index(alert.level)):
        unique.setdefault(alert.fingerprint, alert)
    return tuple(unique.values())


def _of(result: WorkloadResult, exit_code: int) -> list[Alert]:
    wrong = [change for change in result.counters if change.verdict in _FAILING]
    raised = [] if result.is_new else [_counter(result, change) for change in wrong]
    raised += [_counter(result, change, "note") for change in phrases.improved(result)]
    raised += _outputs(result)
    raised += _time(result, exit_code)
    is_reported = any(alert.level == _level(result, exit_code) for alert in raised)
    if result.is_new or (result.verdict != "pass" and not is_reported):
        raised.append(_whole(result, exit_code))
    return raised


def _level(result: WorkloadResult, exit_code: int) -> Level:
    """Grades a workload's verdict.

    An undecided one is an error only where that fails the build.
    """
    if result.verdict == "pass" and not result.is_new:
        return "note"
    return "error" if result.verdict in {"fail", "failed"} or exit_code == 5 else "warning"


def _counter(result: WorkloadResult, change: CounterChange, level: Level | None = None) -> Alert:
    counter = phrases.counter_of(change.metric)
    sites = [culprit.site for culprit in change.culprits if culprit.site is not None]
    places = _places(sites)
    # What identifies a change survives moved lines: the text of its first line, else what changed.
    anchor = change.culprits[0].what if change.culprits else ""
    if sites:
        first = next(culprit for culprit in change.culprits if culprit.site is not None)
        anchor = f"{sites[0].file}\n{sites[0].text.strip() or first.what}"
    return Alert(
        result.name,
        OTHER if counter is None else counter.name,
        level or _FAILING[change.verdict],
        f"{phrases.describe_change(change)}{' (better)' if level == 'note' else ''}",
        _causes(phrases.describe_cause(change)),
        places[0] if places else stand_in(result),
        _fingerprint(result.name, change.metric, str(change.is_creep), anchor),
        places[1:],
        result.fix.text if level is None else "",
    )


def _outputs(result: WorkloadResult) -> list[Alert]:
    """One alert for all outputs that differ."""
    changes = () if result.numerics is None else result.numerics.changes
    if not changes:
        return []
    title, causes = phrases.outputs_in_short(result.numerics), _causes(map(phrases.describe_output, changes))
    mark = _fingerprint(result.name, OUTPUTS)
    return [Alert(result.name, OUTPUTS, "error", title, causes, stand_in(result), mark, fix=result.fix.text)]


def _time(result: WorkloadResult, exit_code: int) -> list[Alert]:
    """Alerts of a step that is slower, faster or undecided.

    A slower one stands at the line that takes the most more time.
    """
    undecided = _level(result, exit_code) if result.verdict == "undecided" else "warning"
    levels: dict[str, Level] = {"slower": "error", "undecided": undecided, "faster": "note"}
    time = result.time
    if time is None or time.verdict not in levels:
        return []
    is_cause = time.verdict == "slower" or result.verdict == "undecided"
    why, fix = (result.why, result.fix.text) if is_cause else ((), "")
    place = (_slowest(result) if time.verdict == "slower" else None) or stand_in(result)
    title, mark = f"step {phrases.describe_time(time)}", _fingerprint(result.name, TIME)
    return [Alert(result.name, TIME, levels[time.verdict], title, why, place, mark, fix=fix)]


def _whole(result: WorkloadResult, exit_code: int) -> Alert:
    """Alerts of a workload whose verdict no counter or time explains."""
    rule = RUN if result.verdict == "failed" else MEASUREMENT
    title = result.what or ("there is no lock-file yet" if result.is_new else result.verdict)
    causes = result.why or _causes(result.warnings)
    level, mark = _level(result, exit_code), _fingerprint(result.name, rule)
    return Alert(result.name, rule, level, title, causes, stand_in(result), mark, fix=result.fix.text)


def _causes(sentences: Iterable[str]) -> tuple[Cause, ...]:
    return tuple(map(Cause, sentences))


def _slowest(result: WorkloadResult) -> AlertLocation | None:
    """Finds the line that explains a slowdown best.

    One whose counters broke, else the one that takes the most more time.
    """
    sites = [culprit.site for change in result.counters if change.verdict == "broken" for culprit in change.culprits]
    places = _places([site for site in sites if site is not None])
    rows = [] if result.comparison is None else sorted(result.comparison.rows, key=lambda row: -row.change_us)
    for row in rows:
        place = place_of(row.source or "")
        if row.change_us > 0 and place is not None:
            places = (*places, *_places([Site(place.file, place.line, "")]))
    return places[0] if places else None


def stand_in(result: WorkloadResult) -> AlertLocation:
    """Locates an alert without a known line.

    At the workload's own file, its lock-file, or the settings.
    """
    candidates = [word for word in result.program if word.endswith(".py")] + [result.lock, "pyproject.toml"]
    file = next(file for file in candidates if is_inside(file))
    return AlertLocation(file.removeprefix("./"), 1, is_cause=False)


def _places(sites: Sequence[Site]) -> tuple[AlertLocation, ...]:
    """Locates the sites inside the repository, without './' before files."""
    inside = [site for site in sites if is_inside(site.file)]
    places = (AlertLocation(site.file.removeprefix("./"), max(site.line, 1), is_cause=True) for site in inside)
    return tuple(dict.fromkeys(places))


def is_inside(file: str) -> bool:
    """Tells paths inside the repository from all others.

    Those are absolute, have a drive or a scheme, or lead up.
    """
    parts = re.split(r"[/\\]", file)
    return bool(file) and bool(parts[0]) and ".." not in parts and not (_DRIVE.match(parts[0]) and len(parts) > 1)


def _fingerprint(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "backslashreplace")).hexdigest()[:32]


# GitHub shows so many annotations of each kind per step.
MOST = 10

_COMMANDS: Mapping[Level, str] = {"error": "error", "warning": "warning", "note": "notice"}
_TITLE = 120
_LINE = 600
_LINES = 20


def render_github(gate: Gate) -> str:
    """Renders commands: a notice of the verdict, then each line's.

    One per line of code and level.
    """
    verdict = phrases.verdict_words(gate)
    shown = [_command("notice", {"title": f"bottleneck gate: {verdict}"}, [phrases.closing(gate)])]
    groups = _by_line(alerts(gate))
    for level, command in _COMMANDS.items():
        of_level = [group for group in groups if group[0].level == level]
        room = MOST - 1 if command == "notice" else MOST
        shown += [_annotation(command, group, len(of_level) - room) for group in of_level[:room]]
    return "\n".join(shown) + "\n"


def _by_line(raised: Iterable[Alert]) -> list[list[Alert]]:
    """Groups alerts by level and line.

    An added .item() changes several counters.
    """
    groups: dict[tuple[str, str, str, int], list[Alert]] = {}
    for alert in raised:
        key = (alert.level, alert.workload, alert.place.file, alert.place.line)
        groups.setdefault(key, []).append(alert)
    return list(groups.values())


def _annotation(command: str, group: list[Alert], left_out: int) -> str:
    first, lines = group[0], [alert.title for alert in group]
    causes: dict[str, Cause] = {}
    for cause in (cause for alert in group for cause in alert.causes):
        if cause.code or cause.sentence not in causes:  # the same cause is told with and without its line of code
            causes[cause.sentence] = cause
    lines += [cause.text for cause in causes.values()]
    lines += dict.fromkeys([alert.fix for alert in group if alert.fix])
    if len(lines) > _LINES:
        lines = [*lines[:_LINES], f"in gate.md: {counted(len(lines) - _LINES, 'more line')}"]
    lines += [f"{left_out} more are in gate.md"] if left_out > 0 else []
    place = {"file": first.place.file, "line": str(first.place.line)}
    return _command(command, {**place, "title": f"bottleneck gate: {first.workload}"}, lines)


def _command(command: str, properties: Mapping[str, str], lines: Iterable[str]) -> str:
    shown = ((key, _data(clean(value, _TITLE))) for key, value in properties.items())
    escaped = ",".join(f"{key}={value.replace(':', '%3A').replace(',', '%2C')}" for key, value in shown)
    return f"::{command} {escaped}::" + "%0A".join(_data(clean(line, _LINE)) for line in lines)


def _data(text: str) -> str:
    """Cleans text for the message of a command.

    The mark of the runner's older commands is broken as well.
    """
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A").replace("##[", "#\\[")


_SEVERITIES: Mapping[Level, str] = {"error": "major", "warning": "minor"}
_TEXT = 600


def render_gitlab(gate: Gate) -> str:
    """Renders the issues as JSON; what got better is none.

    GitLab ignores ``content``, where the verdict stands.
    """
    issues = [
        {
            "type": "issue",
            "check_name": f"bottleneck/{alert.rule}",
            "description": clean(" - ".join([f"{alert.workload}: {alert.title}", *alert.lines[:1]]), _TEXT),
            "content": {"body": clean(phrases.closing(gate), _TEXT)},
            "categories": ["Performance"],
            "severity": _SEVERITIES[alert.level],
            "fingerprint": alert.fingerprint,
            "location": {"path": clean(alert.place.file, _TEXT), "lines": {"begin": alert.place.line}},
        }
        for alert in alerts(gate)
        if alert.level in _SEVERITIES
    ]
    return json.dumps(issues, indent=1) + "\n"


_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_SARIF_TEXT = 2000
_SHORT = 200

_RULES: Mapping[str, str] = {
    **{name: f"{counter.many} per step: {counter.meaning}" for name, counter in COUNTERS.items()},
    OTHER: "a counter of a later version",
    OUTPUTS: "what a step returns and makes of its parameters, held against the lock-file",
    TIME: "the time of a step, held against the base in turns",
    RUN: "the workload itself failed",
    MEASUREMENT: "a workload of which nothing was measured or decided",
}
_INDEX = {rule: index for index, rule in enumerate(_RULES)}


def render_sarif(gate: Gate) -> str:
    """Renders one run: rules per counter, results per alert."""
    rules = [
        {
            "id": rule,
            "shortDescription": {"text": f"{COUNTERS[rule].many} per step" if rule in COUNTERS else meaning},
            "fullDescription": {"text": meaning},
            "defaultConfiguration": {"level": "error"},
            "properties": {"tags": ["performance"]},
        }
        for rule, meaning in _RULES.items()
    ]
    version = {"version": clean(gate.version)} if gate.version else {}
    invocation = {
        # Successful wherever it came to a verdict, whatever the verdict is.
        "executionSuccessful": gate.exit_code in {0, 1},
        "exitCode": gate.exit_code,
        "exitCodeDescription": clean(phrases.closing(gate), _SARIF_TEXT),
    }
    run = {
        "tool": {"driver": {"name": "bottleneck gate", **version, "rules": rules}},
        "automationDetails": {"id": "bottleneck-gate/"},
        "invocations": [invocation],
        "columnKind": "unicodeCodePoints",
        "results": [_result(alert) for alert in alerts(gate)],
        "properties": {"verdict": phrases.verdict_words(gate), "exitCode": gate.exit_code},
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _result(alert: Alert) -> dict[str, Any]:
    lines = [f"{alert.workload}: {alert.title}", *alert.lines, *([alert.fix] if alert.fix else [])]
    result: dict[str, Any] = {
        "ruleId": alert.rule,
        "ruleIndex": _INDEX[alert.rule],
        "level": alert.level,
        "message": {"text": "\n".join(clean(line, _SARIF_TEXT) for line in lines)},
        "locations": [_location(alert.place)],
        "partialFingerprints": {"bottleneckGate/v1": alert.fingerprint},
        "properties": {"workload": clean(alert.workload, _SHORT)},
    }
    others = [{"id": number, **_location(place)} for number, place in enumerate(alert.others, 1)]
    return {**result, "relatedLocations": others} if others else result


def _location(place: AlertLocation) -> dict[str, Any]:
    uri = quote(place.file, safe="/", errors="backslashreplace")
    return {
        "physicalLocation": {
            "artifactLocation": {"uri": uri, "uriBaseId": "%SRCROOT%"},
            "region": {"startLine": place.line},
        }
    }
