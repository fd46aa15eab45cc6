"""The gate's result as GitHub flavoured markdown, for a job summary or a pull request comment.

Its first line is a mark by which the comment is found again. The story of each failure is shown, the rest is folded.
"""

import re
from collections.abc import Iterable, Sequence

from bottleneck.report.ci import phrases
from bottleneck.report.ci.gate_document import bare_comparison
from bottleneck.report.comparison import render as render_comparison
from bottleneck.report.markdown import code, name, prose
from bottleneck.schema.gate_result import CounterChange, Gate, WorkloadResult
from bottleneck.units import counted

MARK = "<!-- bottleneck-gate -->"

# A comment on GitHub holds 65 536 characters; these are bytes, and leave room for a line that links to the run.
MOST_BYTES = 58_000

_ROWS = 5
_WORST_ROWS = 40
_INTERVAL = re.compile(r"\[([-+\d.,:<% ]+)\]")


def render(gate: Gate) -> str:
    """The gate as markdown of at most ``MOST_BYTES``: where it gets longer, details are left out, then workloads."""
    verdict = phrases.VERDICTS[phrases.verdict_of(gate)]
    head = [MARK, f"## bottleneck gate: {verdict}", "", _prose(phrases.closing(gate)), ""]
    tail = [*(f"- warning: {prose(warning)}" for warning in gate.warnings[:_ROWS]), ""]
    results = phrases.worst_first(gate.results)
    room = MOST_BYTES - _size([*head, *tail, _cut(len(results), len(results))])
    shown, room = _fitting(("\n".join(_summary(result)) for result in results), room)
    opened, _ = _fitting(("\n".join(_details(result)) for result in results[: len(shown)]), room)
    blocks = [text + (opened[index] if index < len(opened) else "") for index, text in enumerate(shown)]
    left_out = len(results) - len(shown), sum(map(_has_details, results)) - sum(map(bool, opened))
    note = [_cut(*left_out)] if any(left_out) else []
    return "\n".join([*head, *blocks, *tail, *note]).rstrip("\n") + "\n"


def _fitting(blocks: Iterable[str], room: int) -> tuple[list[str], int]:
    """The first blocks that have room together, and the room that is left; none is made after the first without."""
    shown: list[str] = []
    for block in blocks:
        size = _size([block])
        if size > room:
            break
        room -= size
        shown.append(block)
    return shown, room


def _size(lines: Iterable[str]) -> int:
    return sum(len(line.encode("utf-8", "backslashreplace")) + 1 for line in lines)


def _cut(workloads: int, details: int) -> str:
    """A note on what was left out, and the file that has it."""
    return f"*Cut to fit into a comment: {counted(workloads, 'workload')}, details of {details} only in gate.json.*"


def _summary(result: WorkloadResult) -> list[str]:
    """The visible part of a workload: one line for a pass, else its story."""
    verdict = phrases.VERDICTS[result.verdict]
    if result.verdict == "pass":
        return [f"- **{verdict}** {name(result.name)}: {_prose(phrases.headline(result))}", *_asides(result, "  "), ""]
    out = [f"### {verdict} {name(result.name)}", "", _prose(phrases.headline(result)), ""]
    out += [_item(label, text) for label, text in phrases.story(result)]
    out += [_item("time", phrases.describe_time(result.time))] if result.time is not None else []
    return [*out, *_asides(result), ""]


def _asides(result: WorkloadResult, indent: str = "") -> list[str]:
    return [_item(label, text, indent) for label, text in phrases.asides(result)]


def _item(label: str, text: str, indent: str = "") -> str:
    """A line of a list; a line of code, and a command that it ends in, stand in one piece."""
    phrase, command = phrases.split_command(text)
    phrase, _, source = phrase.partition("  ")
    spans = [code(part) for part in (source, command) if part]
    return " ".join([f"{indent}- **{label}**", _prose(phrase), *spans])


def _prose(text: str) -> str:
    """The text with arrows and intervals that need no code span: '303 → 311', '+7.6 % (+5.1 %, +9.9 %)'."""
    return prose(_INTERVAL.sub(r"(\1)", text.replace(" -> ", " → ")))


def _has_details(result: WorkloadResult) -> bool:
    return result.verdict != "pass" and bool(phrases.differing(result) or result.comparison)


def _details(result: WorkloadResult) -> list[str]:
    """The folded part of a workload: the counters that differ, and the comparison of the times."""
    if not _has_details(result):
        return []
    changes = phrases.differing(result)
    out = _folded(f"Counters that differ ({len(changes)})", _table(changes)) if changes else []
    if result.comparison is not None:
        # Without its title, with smaller headings.
        text = render_comparison(bare_comparison(result.comparison), "markdown", top=_ROWS)
        lines = text.rstrip("\n").split("\n")[2:]
        out += _folded("Where the time went", [f"#{line}" if line.startswith("### ") else line for line in lines])
    return out


def _folded(title: str, lines: Sequence[str]) -> list[str]:
    """Lines behind a title; the empty lines let markdown be markdown inside of HTML."""
    return ["", f"<details><summary>{title}</summary>", "", *lines, "", "</details>", ""]


def _table(changes: Sequence[CounterChange]) -> list[str]:
    """Four columns, as many as a phone shows; causes stand beneath, once each."""
    rows = [_row(change) for change in changes[:_WORST_ROWS]]
    more = [f"and {len(changes) - _WORST_ROWS} more", ""] if len(changes) > _WORST_ROWS else []
    causes = dict.fromkeys(prose(cause) for change in changes[:_WORST_ROWS] for cause in phrases.describe_cause(change))
    head = ["| counter | before → after | limit | |", "|---|---:|---:|---|"]
    return [*head, *rows, "", *more, *(f"- {cause}" for cause in causes)]


def _row(change: CounterChange) -> str:
    before, after, grown = phrases.amounts(change)
    limit, verdict = name(phrases.describe_limit(change)), phrases.CHANGES[change.verdict]
    cells = (name(change.metric), f"{before} → {after} ({grown})", limit, verdict)
    return "| " + " | ".join(cell.replace("\\|", "\\¦").replace("|", "\\|") for cell in cells) + " |"
