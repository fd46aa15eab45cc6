"""The gate's result as text for a terminal or a log: failures in three lines first, then the evidence."""

import io
import re

from rich.console import Console
from rich.text import Text

from bottleneck.report.ci.phrases import (
    CHANGES,
    VERDICTS,
    amounts,
    asides,
    cause_words,
    closing,
    differing,
    headline,
    limit_words,
    split_command,
    story,
    time_words,
    verdict_of,
    worst_first,
)
from bottleneck.report.document import Column, Row, Table
from bottleneck.report.terminal import Look, table_lines, wrapped
from bottleneck.schema.gate_result import CounterChange, Gate, GateVerdict, WorkloadResult

_PROSE = 600
_COMMAND = 2000
_INDENT = 7
_STYLES: dict[GateVerdict, str] = {"fail": "bold red", "failed": "bold red", "pass": "green"}
_COLUMNS = (
    Column("counter", "name"),
    Column("before", "number"),
    Column("after", "number"),
    Column("change", "number"),
    Column("limit", "words"),
    Column("", "words"),
)
# A log of GitHub Actions obeys lines that begin with two colons, and '##[' anywhere in a line (ActionCommand.cs of
# actions/runner); others obey '##vso[' and '##teamcity['. Names of programs must not become commands.
_COMMAND_START = re.compile(r"^\s*(::)")
_OTHER_COMMAND = re.compile(r"##(?=\w*\[)")


def render(gate: Gate, width: int = 80, *, color: bool = False, encoding: str = "utf-8") -> str:
    """The gate as text; escape sequences appear in it only with ``color``."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding)
    console = Console(
        file=stream, width=width, force_terminal=color, color_system="standard" if color else None, _environ={}
    )
    show(gate, console)
    stream.seek(0)
    return stream.read()


def show(gate: Gate, console: Console) -> None:
    """Writes the gate to a console, which decides the width, the colours and the character set."""
    for line in lines(gate, Look(console.width, console.encoding)):
        console.print(
            _harmless(line), no_wrap=True, overflow="ignore", crop=False, highlight=False, markup=False, emoji=False
        )


def lines(gate: Gate, look: Look) -> list[Text]:
    """The gate line by line: workloads that do not pass first, the verdict on all of them last."""
    out: list[Text] = []
    for result in worst_first(gate.results):
        out += _workload(result, look)
        out += [Text()] if result.verdict != "pass" else []
    for warning in gate.warnings:
        out += _aside("warning", warning, look)
    style = _STYLES.get(verdict_of(gate), "bold yellow")
    return [*out, *wrapped(Text(look.text(closing(gate), _PROSE), style), look)]


def _workload(result: WorkloadResult, look: Look) -> list[Text]:
    out = [*_headline(result, look), *_story(result, look)]
    is_passed = result.verdict == "pass"
    if not is_passed and result.time is not None:
        out += _labelled("time", time_words(result.time), look)
    if not is_passed and result.base:
        out += _labelled("base", result.base, look, "dim")
    changes = [] if is_passed else differing(result)
    if changes:
        out += [Text("  ") + line for line in _table(changes, Look(look.width - 2, look.encoding))]
    for label, text in asides(result):
        out += _aside(label, text, look)
    return out


def _story(result: WorkloadResult, look: Look) -> list[Text]:
    """The three lines, each label once."""
    out: list[Text] = []
    last = ""
    for label, text in story(result):
        out += _labelled("" if label == last else label, text, look, "bold" if label == "what" else "")
        last = label
    return out


def _headline(result: WorkloadResult, look: Look) -> list[Text]:
    """'FAIL bench/train_step.py  3 counters over budget; step +7.6 % [+5.1 %, +9.9 %], …'."""
    verdict = VERDICTS[result.verdict]
    text = Text.assemble(
        (verdict, _STYLES.get(result.verdict, "bold yellow")),
        (f" {look.text(result.name)}", "bold"),
        f"  {look.text(headline(result), _PROSE)}",
    )
    return _hanging(text, look, 2)


def _hanging(text: Text, look: Look, indent: int) -> list[Text]:
    """The text wrapped, with all lines but the first indented."""
    first, *others = wrapped(text, Look(look.width - indent, look.encoding))
    return [first, *(Text(" " * indent) + line for line in others)]


def _labelled(label: str, text: str, look: Look, style: str = "") -> list[Text]:
    """A line with its label in the margin."""
    told, command = split_command(text)
    told, source = _split_source(told, look)
    out = wrapped(Text(look.text(told, _PROSE), style), look, _INDENT, f"  {label}".ljust(_INDENT)) if told else []
    out += wrapped(Text(look.text(source, _PROSE), "dim"), look, _INDENT + 2, " " * _INDENT) if source else []
    return [*out, *_command(command, look, _INDENT)]


def _split_source(text: str, look: Look) -> tuple[str, str]:
    """What happened and, after two blanks, the line of code: in a line of its own where both do not fit into one."""
    told, _, source = text.partition("  ")
    return (text, "") if len(text) <= look.width - _INDENT else (told, source)


def _aside(label: str, text: str, look: Look) -> list[Text]:
    told, command = split_command(f"{label}: {text}")
    inner = Look(look.width - 2, look.encoding)
    lines = _hanging(Text(look.text(told, _PROSE), "dim"), inner, 2)
    return [*(Text("  ") + line for line in lines), *_command(command, look, 4)]


def _command(command: str, look: Look, indent: int) -> list[Text]:
    """A command on a line of its own that is not broken: who copies it should get it whole."""
    return [Text(" " * indent + look.text(command, _COMMAND), "bold")] if command else []


def _table(changes: list[CounterChange], look: Look) -> list[Text]:
    causes = [tuple(cause_words(change)) for change in changes]
    rows = tuple(
        Row(
            (change.metric, *amounts(change), limit_words(change), CHANGES[change.verdict]),
            details=() if cause == before else cause,
        )
        for change, cause, before in zip(changes, causes, [(), *causes], strict=False)
    )
    return table_lines(Table("", _COLUMNS, rows), look)


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
