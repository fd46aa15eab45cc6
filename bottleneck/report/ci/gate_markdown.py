"""The gate's result as GitHub flavoured markdown, for a job summary or a pull request comment.

Its first line is a mark by which the comment is found again. The story of each failure is shown, the rest is folded.
"""

import re
from collections.abc import Iterable, Sequence

from bottleneck.report.ci.gate_document import bare_comparison
from bottleneck.report.ci.phrases import (
    CHANGES,
    VERDICTS,
    amounts,
    asides,
    closing,
    describe_cause,
    describe_limit,
    describe_time,
    differing,
    headline,
    split_command,
    story,
    verdict_of,
    worst_first,
)
from bottleneck.report.comparison import render as render_comparison
from bottleneck.report.markdown import code, name, prose
from bottleneck.schema.comparison import Comparison
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
    head = [MARK, f"## bottleneck gate: {VERDICTS[verdict_of(gate)]}", "", _prose(closing(gate)), ""]
    tail = [*(f"- warning: {prose(warning)}" for warning in gate.warnings[:_ROWS]), ""]
    results = worst_first(gate.results)
    room = MOST_BYTES - _size([*head, *tail, _cut(len(results), len(results))])
    shown, room = _fitting(("\n".join(_summary(result)) for result in results), room)
    opened, _ = _fitting(("\n".join(_details(result)) for result in results[: len(shown)]), room)
    blocks = [story + (opened[index] if index < len(opened) else "") for index, story in enumerate(shown)]
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
    verdict = VERDICTS[result.verdict]
    if result.verdict == "pass":
        return [f"- **{verdict}** {name(result.name)}: {_prose(headline(result))}", *_asides(result, "  "), ""]
    out = [f"### {verdict} {name(result.name)}", "", _prose(headline(result)), ""]
    for label, text in story(result):
        out += _item(f"**{label}**", text)
    out += _item("**time**", describe_time(result.time)) if result.time is not None else []
    return [*out, *_asides(result), ""]


def _asides(result: WorkloadResult, indent: str = "") -> list[str]:
    return [line for label, text in asides(result) for line in _item(f"**{label}**", text, indent)]


def _item(label: str, text: str, indent: str = "") -> list[str]:
    """A line of a list; a line of code, and a command that it ends in, stand in one piece."""
    phrase, command = split_command(text)
    phrase, _, source = phrase.partition("  ")
    spans = [code(part) for part in (source, command) if part]
    return [" ".join([f"{indent}-", label, _prose(phrase), *spans])]


def _prose(text: str) -> str:
    """The text with arrows and intervals that need no code span: '303 → 311', '+7.6 % (+5.1 %, +9.9 %)'."""
    return prose(_INTERVAL.sub(r"(\1)", text.replace(" -> ", " → ")))


def _has_details(result: WorkloadResult) -> bool:
    return result.verdict != "pass" and bool(differing(result) or result.comparison)


def _details(result: WorkloadResult) -> list[str]:
    """The folded part of a workload: the counters that differ, and the comparison of the times."""
    if not _has_details(result):
        return []
    changes = differing(result)
    out = _folded(f"Counters that differ ({len(changes)})", _table(changes)) if changes else []
    if result.comparison is not None:
        out += _folded("Where the time went", _compared(result.comparison))
    return out


def _compared(comparison: Comparison) -> list[str]:
    """The comparison without its title, with smaller headings."""
    lines = render_comparison(bare_comparison(comparison), "markdown", top=_ROWS).rstrip("\n").split("\n")[2:]
    return [f"#{line}" if line.startswith("### ") else line for line in lines]


def _folded(title: str, lines: Sequence[str]) -> list[str]:
    """Lines behind a title; the empty lines let markdown be markdown inside of HTML."""
    return ["", f"<details><summary>{title}</summary>", "", *lines, "", "</details>", ""]


def _table(changes: Sequence[CounterChange]) -> list[str]:
    """Four columns, as many as a phone shows; causes stand beneath, once each."""
    rows = [_row(change) for change in changes[:_WORST_ROWS]]
    more = [f"and {len(changes) - _WORST_ROWS} more", ""] if len(changes) > _WORST_ROWS else []
    causes = dict.fromkeys(prose(cause) for change in changes[:_WORST_ROWS] for cause in describe_cause(change))
    head = ["| counter | before → after | limit | |", "|---|---:|---:|---|"]
    return [*head, *rows, "", *more, *(f"- {cause}" for cause in causes)]


def _row(change: CounterChange) -> str:
    before, after, grown = amounts(change)
    cells = [
        name(change.metric),
        f"{before} → {after} ({grown})",
        name(describe_limit(change)),
        CHANGES[change.verdict],
    ]
    return "| " + " | ".join(cell.replace("\\|", "\\¦").replace("|", "\\|") for cell in cells) + " |"
