r"""What the gate found as workflow commands of GitHub Actions, which show as annotations at lines of a pull request.

Printed to a log, one a line: ``::error file=train.py,line=141,title=…::…``. Properties escape %, \r, \n, ':' and ',',
messages %, \r and \n (ActionCommand.cs of actions/runner); what is unprintable is a visible escape before that.
"""

from collections.abc import Iterable, Mapping

from bottleneck.gated import Gate
from bottleneck.report.clean import clean
from bottleneck.report.gate_alerts import Alert, Level, alerts
from bottleneck.report.gate_words import VERDICTS, closing, verdict_of

# GitHub shows so many annotations of each kind per step.
MOST = 10

_COMMANDS: Mapping[Level, str] = {"error": "error", "warning": "warning", "note": "notice"}
_TITLE = 120
_LINE = 600
_LINES = 20


def render(gate: Gate) -> str:
    """The commands: one notice with the verdict and the exit code, then one per line of code and level."""
    head = _command("notice", {"title": f"bottleneck gate: {VERDICTS[verdict_of(gate)]}"}, [closing(gate)])
    groups = _by_line(alerts(gate))
    shown = [head]
    for level, command in _COMMANDS.items():
        of_level = [group for group in groups if group[0].level == level]
        room = MOST - 1 if command == "notice" else MOST
        shown += [_annotation(command, group, len(of_level) - room) for group in of_level[:room]]
    return "\n".join(shown) + "\n"


def _by_line(found: Iterable[Alert]) -> list[list[Alert]]:
    """Alerts of one level at one line together: an added .item() changes several counters."""
    groups: dict[tuple[str, str, str, int], list[Alert]] = {}
    for alert in found:
        key = (alert.level, alert.workload, alert.place.file, alert.place.line)
        groups.setdefault(key, []).append(alert)
    return list(groups.values())


def _annotation(command: str, group: list[Alert], left_out: int) -> str:
    first = group[0]
    place = {"file": first.place.file, "line": str(first.place.line)}
    told = [alert.title for alert in group]
    told += _longest(dict.fromkeys(line for alert in group for line in alert.lines))
    told += dict.fromkeys([alert.fix for alert in group if alert.fix])
    told = [*told[:_LINES], f"{len(told) - _LINES} more lines are in gate.md"] if len(told) > _LINES else told
    told += [f"{left_out} more are in gate.md"] if left_out > 0 else []
    return _command(command, {**place, "title": f"bottleneck gate: {first.workload}"}, told)


def _longest(lines: Iterable[str]) -> list[str]:
    """The lines without those that another one begins with: a cause, and the same with its line of code."""
    known = list(lines)
    return [line for line in known if not any(other != line and other.startswith(line) for other in known)]


def _command(command: str, properties: Mapping[str, str], lines: Iterable[str]) -> str:
    told = ",".join(f"{key}={_property(clean(value, _TITLE))}" for key, value in properties.items())
    return f"::{command} {told}::" + "%0A".join(_data(clean(line, _LINE)) for line in lines)


def _data(text: str) -> str:
    """Cleaned text as the message of a command; the mark of the runner's older commands is broken as well."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A").replace("##[", "#\\[")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
