"""Builds the document of a what-if: the replay check, the changed step, and ledger and critical path beside the old."""

import shlex
from collections.abc import Callable, Mapping, Sequence

from bottleneck.report import markdown, terminal
from bottleneck.report.analysis_tables import PATH_NOTE, check_words, part_name, path_table
from bottleneck.report.document import Document, TableColumn, TableRow, TableSection, number_columns
from bottleneck.report.json_text import encode
from bottleneck.report.terminal import PLAIN, TerminalStyle
from bottleneck.report.text import UNKNOWN, cut_text, scale_of
from bottleneck.schema.accounts import label_of
from bottleneck.schema.analysis import CriticalPath, Interval, LedgerEntry, PathPart
from bottleneck.schema.whatif import ChangedStep, WhatIf
from bottleneck.units import counted, format_us

_PARTS = 10
_LONGEST_OPTION = 60


def build(answer: WhatIf) -> Document:
    """The document of a what-if."""
    changes = () if answer.changed is None else answer.changed.changes
    sections = [_best(answer)] if answer.best else []
    if answer.changed is not None and answer.changed_path is not None:
        sections += [_ledgers(answer), _paths(answer.path, answer.changed_path)]
    else:
        sections.append(path_table(answer.path, _PARTS))
    return Document(
        headline="what if",
        subject=" ".join(map(option_of, changes)) or answer.trace,
        sentence=sentence(answer),
        facts=_facts(answer),
        fact_width=7,
        sections=tuple(sections),
        closing="" if changes or answer.path.check.reason else _CLOSING,
    )


_CLOSING = "ask for a change: bottleneck whatif TRACE --remove sync@model.py:57"


def sentence(answer: WhatIf) -> str:
    """The answer in a sentence or two."""
    reason = answer.path.check.reason
    if reason is not None:
        return f"No change can be predicted from this trace: {reason}."
    if answer.changed is not None:
        return (
            f"The step would take {_range(answer.changed.step_us, format_us)} instead of {format_us(answer.step_us)}: "
            f"{_speedup(answer.changed)}."
        )
    if not answer.best:
        return f"The step takes {format_us(answer.step_us)}, and no single change that was tried would shorten it."
    best = answer.best[0]
    option = cut_text(" ".join(map(option_of, best.changes)), _LONGEST_OPTION)
    return (
        f"The step takes {format_us(answer.step_us)}. Of the single changes that were tried, {option} would help most: "
        f"{_speedup(best)}."
    )


def option_of(change: str) -> str:
    """The option of `bottleneck whatif` that asks for a change, as it is typed in a shell."""
    verb, _, what = change.partition(" ")
    return f"--{verb} {shlex.quote(what)}" if what else f"--{verb}"


def _speedup(changed: ChangedStep) -> str:
    return f"{_range(changed.speedup, lambda value: f'{value:.2f}')} times as fast"


def _range(interval: Interval, show: Callable[[float], str]) -> str:
    low, high = show(interval.low), show(interval.high)
    return low if low == high else f"{low} to {high}"


def _facts(answer: WhatIf) -> tuple[tuple[str, str], ...]:
    facts = [("trace", answer.trace)] if answer.changed is not None else []
    return (*facts, ("replay", check_words(answer.path.check)), ("host", _pace_words(answer.host_pace)))


def _pace_words(pace: Interval) -> str:
    if pace.low < pace.high:
        return (
            f"replayed as recorded, and issuing {1 / pace.low:.1f} times as fast: the profiler slows the host by a "
            "factor in between"
        )
    if pace.high == 1.0:
        return "replayed as recorded"
    return f"issue time scaled by {pace.high:.2f}, with which the replay takes as long as the unprofiled step"


def _best(answer: WhatIf) -> TableSection:
    rows = tuple(
        TableRow(
            (
                " ".join(map(option_of, each.changes)),
                _range(each.step_us, format_us),
                _range(each.speedup, lambda value: f"{value:.2f}"),
            )
        )
        for each in answer.best
    )
    columns = (TableColumn("change", "words"), *number_columns(("step", "times as fast")))
    note = "each for itself: two changes together may save less than the sum, or more"
    return TableSection("Changes that would help most", columns, rows, (note,))


def _ledgers(answer: WhatIf) -> TableSection:
    """Both ledgers side by side; each column adds up."""
    now = {entry.account: entry for entry in answer.ledger}
    then = {entry.account: entry for entry in answer.changed_ledger}
    accounts = sorted({**now, **then}, key=lambda account: -max(_us(now, account), _us(then, account)))
    scale = scale_of(answer.step_us)
    before = scale.column([_us(now, account) for account in accounts])
    after = scale.column([_us(then, account) for account in accounts])
    changes = [_us(then, account) - _us(now, account) for account in accounts]
    shown = [*(_signed(each / scale.size, scale.decimals) for each in changes)]
    groups = [(now.get(account) or then[account]).group for account in accounts]
    rows = [
        TableRow(
            (f"{group} {label_of(account)}" if label_of(account) != group else group, one, other, change), group=group
        )
        for account, group, one, other, change in zip(accounts, groups, before, after, shown, strict=False)
    ]
    whole = _signed(sum(changes) / scale.size, scale.decimals)
    rows.append(TableRow(("step", before[-1], after[-1], whole), "total"))
    columns = (TableColumn("account", "words"), *number_columns((f"now {scale.unit}", "then", "change")))
    notes = () if answer.host_pace.low == answer.host_pace.high else ("then: with the host at its recorded pace",)
    return TableSection("Ledger", columns, tuple(rows), notes)


def _us(ledger: Mapping[str, LedgerEntry], account: str) -> float:
    return ledger[account].us if account in ledger else 0.0


def _signed(value: float, decimals: int) -> str:
    text = f"{value:+.{decimals}f}"
    return text if float(text) else UNKNOWN


def _paths(now: CriticalPath, then: CriticalPath) -> TableSection:
    """The longest parts of either path side by side."""
    scale = scale_of(now.step_us)
    before, after = _by_part(now.parts), _by_part(then.parts)
    ranked = sorted({**before, **after}, key=lambda key: -max(before.get(key, 0.0), after.get(key, 0.0)))
    shown, rest = ranked[:_PARTS], ranked[_PARTS:]
    columns = []
    for path in (before, after):
        amounts = [path.get(key, 0.0) for key in shown] + [sum(path.get(key, 0.0) for key in rest)]
        columns.append(scale.column(amounts))
    rows = [
        TableRow((name, where, source or UNKNOWN, one, other))
        for (where, name, source), one, other in zip(shown, *columns, strict=False)
    ]
    if rest:
        rows.append(TableRow((counted(len(rest), "more part"), "", "", columns[0][-2], columns[1][-2]), "rest"))
    rows.append(TableRow(("step", "", "", columns[0][-1], columns[1][-1]), "total"))
    titles = (TableColumn("part", "name"), TableColumn("where", "words"), TableColumn("line", "place"))
    return TableSection(
        "Critical path", (*titles, *number_columns((f"now {scale.unit}", "then"))), tuple(rows), (PATH_NOTE,)
    )


def _by_part(parts: Sequence[PathPart]) -> dict[tuple[str, str, str | None], float]:
    found: dict[tuple[str, str, str | None], float] = {}
    for part in parts:
        key = part.what, part_name(part), part.source
        found[key] = found.get(key, 0.0) + part.us
    return found


def to_terminal(answer: WhatIf, style: TerminalStyle = PLAIN) -> str:
    """The answer as text; escape sequences appear in it only where the style has colour."""
    return terminal.render(build(answer), style)


def to_markdown(answer: WhatIf) -> str:
    """The answer as markdown for a comment on a pull request."""
    return markdown.render(build(answer))


def to_json(answer: WhatIf) -> str:
    """The answer as JSON."""
    return encode(answer)
