"""What the gate found as GitLab's code quality report: a list of issues that a merge request shows at their lines.

The format is the part of Code Climate's that GitLab reads: description, check_name, fingerprint, severity, location.
An empty list is a pass.
"""

import json
from collections.abc import Mapping
from typing import Any

from bottleneck.gated import Gate
from bottleneck.report.clean import clean
from bottleneck.report.gate_alerts import Alert, Level, alerts
from bottleneck.report.gate_words import closing

_SEVERITIES: Mapping[Level, str] = {"error": "major", "warning": "minor"}
_TEXT = 600


def render(gate: Gate) -> str:
    """The issues as JSON; what got better is none. GitLab ignores ``content``, where the verdict stands."""
    verdict = clean(closing(gate), _TEXT)
    issues = [_issue(alert, verdict) for alert in alerts(gate) if alert.level in _SEVERITIES]
    return json.dumps(issues, indent=1, ensure_ascii=True) + "\n"


def _issue(alert: Alert, verdict: str) -> dict[str, Any]:
    told = " - ".join([f"{alert.workload}: {alert.title}", *alert.lines[:1]])
    return {
        "type": "issue",
        "check_name": f"bottleneck/{alert.rule}",
        "description": clean(told, _TEXT),
        "content": {"body": verdict},
        "categories": ["Performance"],
        "severity": _SEVERITIES[alert.level],
        "fingerprint": alert.fingerprint,
        "location": {"path": clean(alert.place.file, _TEXT), "lines": {"begin": alert.place.line}},
    }
