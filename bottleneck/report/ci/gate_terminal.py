"""The gate's result as text for a terminal or a log: failures in three lines first, then the evidence."""

import re

from rich.text import Text

from bottleneck.report.ci import phrases
from bottleneck.report.ci.gate_document import counter_table, labelled_lines
from bottleneck.report.terminal import PLAIN, TerminalStyle, table_lines, to_text, wrapped
from bottleneck.schema.gate_result import Gate, GateVerdict, WorkloadResult

_PROSE = 600
_COMMAND = 2000
_INDENT = 7
_STYLES: dict[GateVerdict, str] = {"fail": "bold red", "failed": "bold red", "pass": "green"}
_EMPHASIS = {"what": "bold", "base": "dim"}
# A log of GitHub Actions obeys lines that begin with two colons, and '##[' anywhere in a line (ActionCommand.cs of
# actions/runner); others obey '##vso[' and '##teamcity['. Names of programs must not become commands.
_COMMAND_START = re.compile(r"^\s*(::)")
_OTHER_COMMAND = re.compile(r"##(?=\w*\[)")


def render(gate: Gate, style: TerminalStyle = PLAIN) -> str:
    """The gate as text: workloads that do not pass first, the verdict on all of them last.

    Escape sequences appear in it only where the style has colour.
    """
    out: list[Text] = []
    for result in phrases.worst_first(gate.results):
        out += _workload(result, style)
        out += [Text()] if result.verdict != "pass" else []
    for warning in gate.warnings:
        out += _aside("warning", warning, style)
    emphasis = _STYLES.get(phrases.verdict_of(gate), "bold yellow")
    out += wrapped(Text(style.text(phrases.closing(gate), _PROSE), emphasis), style)
    return to_text(map(_harmless, out), style)


def _workload(result: WorkloadResult, style: TerminalStyle) -> list[Text]:
    """The headline, the labelled lines with each label once, the counters, and further facts."""
    out, last = _headline(result, style), ""
    for label, text in labelled_lines(result):
        out += _labelled("" if label == last else label, text, style, _EMPHASIS.get(label, ""))
        last = label
    changes = [] if result.verdict == "pass" else phrases.differing(result)
    if changes:
        out += [Text("  ") + line for line in table_lines(counter_table(changes), style.narrowed(2))]
    for label, text in phrases.asides(result):
        out += _aside(label, text, style)
    return out


def _headline(result: WorkloadResult, style: TerminalStyle) -> list[Text]:
    """'FAIL bench/train_step.py  3 counters over budget; step +7.6 % [+5.1 %, +9.9 %], …'."""
    verdict = phrases.VERDICTS[result.verdict]
    text = Text.assemble(
        (verdict, _STYLES.get(result.verdict, "bold yellow")),
        (f" {style.text(result.name)}", "bold"),
        f"  {style.text(phrases.headline(result), _PROSE)}",
    )
    return _hanging(text, style, 2)


def _hanging(text: Text, style: TerminalStyle, indent: int) -> list[Text]:
    """The text wrapped, with all lines but the first indented."""
    first, *others = wrapped(text, style.narrowed(indent))
    return [first, *(Text(" " * indent) + line for line in others)]


def _labelled(label: str, text: str, style: TerminalStyle, emphasis: str = "") -> list[Text]:
    """A line with its label in the margin."""
    phrase, command = phrases.split_command(text)
    source, out = "", []
    if len(phrase) > style.width - _INDENT:  # the event and, after two blanks, its line of code do not fit on one line
        phrase, _, source = phrase.partition("  ")
    if phrase:
        out += wrapped(Text(style.text(phrase, _PROSE), emphasis), style, _INDENT, f"  {label}".ljust(_INDENT))
    if source:
        out += wrapped(Text(style.text(source, _PROSE), "dim"), style, _INDENT + 2, " " * _INDENT)
    return [*out, *_command(command, style, _INDENT)]


def _aside(label: str, text: str, style: TerminalStyle) -> list[Text]:
    phrase, command = phrases.split_command(f"{label}: {text}")
    inner = style.narrowed(2)
    lines = _hanging(Text(style.text(phrase, _PROSE), "dim"), inner, 2)
    return [*(Text("  ") + line for line in lines), *_command(command, style, 4)]


def _command(command: str, style: TerminalStyle, indent: int) -> list[Text]:
    """A command on a line of its own that is not broken: who copies it should get it whole."""
    return [Text(" " * indent + style.text(command, _COMMAND), "bold")] if command else []


def _harmless(line: Text) -> Text:
    """The line with what a log would obey broken by a backslash, as wide as before."""
    plain = _OTHER_COMMAND.sub("#\\\\", line.plain)
    found = _COMMAND_START.match(plain)
    if found:
        plain = f"{plain[: found.start(1)]}\\:{plain[found.end(1) :]}"
    if plain != line.plain:
        line = line.copy()
        line.plain = plain
    return line
