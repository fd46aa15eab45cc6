"""What the gate found as SARIF 2.1.0 (OASIS), which code scanning of GitHub and other servers show at lines of code."""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from bottleneck.counters import COUNTERS
from bottleneck.gated import Gate
from bottleneck.report.clean import clean
from bottleneck.report.gate_alerts import MEASUREMENT, OTHER, RUN, TIME, Alert, Place, alerts
from bottleneck.report.gate_words import VERDICTS, closing, verdict_of

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_TEXT = 2000
_SHORT = 200

_RULES: Mapping[str, str] = {
    **{name: f"{counter.many} per step: {counter.meaning}" for name, counter in COUNTERS.items()},
    OTHER: "a counter of a later version",
    TIME: "the time of a step, held against the base in turns",
    RUN: "the workload itself failed",
    MEASUREMENT: "a workload of which nothing was measured or decided",
}
_INDEX = {rule: index for index, rule in enumerate(_RULES)}


def render(gate: Gate) -> str:
    """One run with a rule per counter and one for the time, and a result per alert."""
    run = {
        "tool": {"driver": _driver(gate)},
        "automationDetails": {"id": "bottleneck-gate/"},
        "invocations": [_invocation(gate)],
        "columnKind": "unicodeCodePoints",
        "results": [_result(alert) for alert in alerts(gate)],
        "properties": {"verdict": VERDICTS[verdict_of(gate)], "exitCode": gate.exit_code},
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1, ensure_ascii=True) + "\n"


def _driver(gate: Gate) -> dict[str, Any]:
    rules = [
        {
            "id": rule,
            "shortDescription": {"text": meaning.partition(":")[0]},
            "fullDescription": {"text": meaning},
            "defaultConfiguration": {"level": "error"},
            "properties": {"tags": ["performance"]},
        }
        for rule, meaning in _RULES.items()
    ]
    version = {"version": clean(gate.version)} if gate.version else {}
    return {"name": "bottleneck gate", **version, "rules": rules}


def _invocation(gate: Gate) -> dict[str, Any]:
    """How the gate ended; it was successful wherever it came to a verdict, whatever the verdict is."""
    return {
        "executionSuccessful": gate.exit_code in {0, 1},
        "exitCode": gate.exit_code,
        "exitCodeDescription": clean(closing(gate), _TEXT),
    }


def _result(alert: Alert) -> dict[str, Any]:
    told = [f"{alert.workload}: {alert.title}", *alert.lines, *([alert.fix] if alert.fix else [])]
    result: dict[str, Any] = {
        "ruleId": alert.rule,
        "ruleIndex": _INDEX[alert.rule],
        "level": alert.level,
        "message": {"text": "\n".join(clean(line, _TEXT) for line in told)},
        "locations": [_location(alert.place)],
        "partialFingerprints": {"bottleneckGate/v1": alert.fingerprint},
        "properties": {"workload": clean(alert.workload, _SHORT)},
    }
    others = [{"id": number, **_location(place)} for number, place in enumerate(alert.others, 1)]
    return {**result, "relatedLocations": others} if others else result


def _location(place: Place) -> dict[str, Any]:
    uri = quote(place.file, safe="/", errors="backslashreplace")
    return {
        "physicalLocation": {
            "artifactLocation": {"uri": uri, "uriBaseId": "%SRCROOT%"},
            "region": {"startLine": place.line},
        }
    }
