"""Builds the document of a what-if.

It has the replay check, the changed step, and ledger and critical path beside the old.
"""

import shlex
from collections.abc import Callable, Sequence

from bottleneck.report import render_document
from bottleneck.report.analysis_tables import PATH_COLUMNS, PATH_NOTE, check_words, part_name, path_table
from bottleneck.report.document import Document, TableRow, TableSection, columns
from bottleneck.report.json_text import encode
from bottleneck.report.terminal import PLAIN, TerminalStyle
from bottleneck.report.text import UNKNOWN, Scale, scale_of
from bottleneck.schema.accounts import label_of
from bottleneck.schema.analysis import CriticalPath, Interval, PathPart
from bottleneck.schema.whatif import ChangedStep, WhatIf
from bottleneck.units import counted, format_ratio, format_us

_PARTS = 10
_LONGEST_OPTION = 60
# A wider change stands beneath its row, so that no terminal cuts it.
_WIDEST_CHANGE = 46


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
        closing="" if changes or not answer.best else f"for one of them: {_command(answer, answer.best[0])}",
    )


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
    option = " ".join(map(option_of, best.changes))
    option = option if len(option) <= _LONGEST_OPTION else "the first below"  # a command is never cut
    return (
        f"The step takes {format_us(answer.step_us)}. Of the single changes that were tried, {option} would help most: "
        f"{_speedup(best)}."
    )


def option_of(change: str) -> str:
    """Gives the option of `bottleneck whatif` that asks for a change.

    It is as it is typed in a shell.
    """
    verb, _, what = change.partition(" ")
    return f"--{verb} {shlex.quote(what)}" if what else f"--{verb}"


def _command(answer: WhatIf, changed: ChangedStep) -> str:
    """Gives the command that asks for a change of this trace."""
    return f"bottleneck whatif {shlex.quote(answer.trace)} {' '.join(map(option_of, changed.changes))}"


def _speedup(changed: ChangedStep) -> str:
    return f"{_range(changed.speedup, format_ratio)} times as fast"


def _range(interval: Interval, show: Callable[[float], str]) -> str:
    low, high = show(interval.low), show(interval.high)
    return low if low == high else f"{low} to {high}"


def _facts(answer: WhatIf) -> tuple[tuple[str, str], ...]:
    facts = [("trace", answer.trace)] if answer.changed is not None else []
    return (*facts, ("replay", check_words(answer.path.check)), ("host", _pace_words(answer.host_pace)))


def _pace_words(pace: Interval) -> str:
    if pace.low < pace.high:
        return (
            f"replayed as recorded, and issuing {format_ratio(1 / pace.low)} times as fast: the profiler slows the "
            "host by a factor in between"
        )
    if pace.high == 1.0:
        return "replayed as recorded"
    return f"issue time scaled by {pace.high:.2f}, with which the replay takes as long as the unprofiled step"


def _best(answer: WhatIf) -> TableSection:
    rows = []
    for option in answer.best:
        change, step = " ".join(map(option_of, option.changes)), _range(option.step_us, format_us)
        cells = step, _range(option.speedup, "{:.2f}".format)
        is_long = len(change) > _WIDEST_CHANGE
        rows.append(TableRow(("this one:" if is_long else change, *cells), details=(change,) if is_long else ()))
    heads = columns("words", "change") + columns("number", "step", "times as fast")
    note = "each for itself: two changes together may save less than the sum, or more"
    return TableSection("Changes that would help most", heads, tuple(rows), (note,))


def _ledgers(answer: WhatIf) -> TableSection:
    """Both ledgers side by side; each column adds up."""
    groups = {entry.account: entry.group for entry in (*answer.changed_ledger, *answer.ledger)}
    now, then = ({entry.account: entry.us for entry in entries} for entries in (answer.ledger, answer.changed_ledger))
    us = {account: (now.get(account, 0.0), then.get(account, 0.0)) for account in {**now, **then}}
    accounts = sorted(us, key=lambda account: -max(us[account]))
    scale = scale_of(answer.step_us)
    before, after = (scale.column([us[account][side] for account in accounts]) for side in (0, 1))
    changes = [us[account][1] - us[account][0] for account in accounts]
    rows = []
    for account, one, other, change in zip(accounts, before, after, changes, strict=False):
        group, label = groups[account], label_of(account)
        name = f"{group} {label}" if label != group else group
        rows.append(TableRow((name, one, other, _signed(change, scale)), group=group))
    rows.append(TableRow(("step", before[-1], after[-1], _signed(sum(changes), scale)), "total"))
    heads = columns("words", "account") + columns("number", f"now {scale.unit}", "then", "change")
    notes = () if answer.host_pace.low == answer.host_pace.high else ("then: with the host at its recorded pace",)
    return TableSection("Ledger", heads, tuple(rows), notes)


def _signed(us: float, scale: Scale) -> str:
    text = f"{us / scale.size:+.{scale.decimals}f}"
    return text if float(text) else UNKNOWN


def _paths(now: CriticalPath, then: CriticalPath) -> TableSection:
    """The longest parts of either path side by side."""
    scale = scale_of(now.step_us)
    before, after = _by_part(now.parts), _by_part(then.parts)
    ranked = sorted({**before, **after}, key=lambda key: -max(before.get(key, 0.0), after.get(key, 0.0)))
    shown, rest = ranked[:_PARTS], ranked[_PARTS:]
    times = []
    for path in (before, after):
        amounts = [path.get(key, 0.0) for key in shown] + [sum(path.get(key, 0.0) for key in rest)]
        times.append(scale.column(amounts))
    *shown_times, others, total = zip(*times, strict=True)
    rows = [
        TableRow((name, where, source or UNKNOWN, *numbers))
        for (where, name, source), numbers in zip(shown, shown_times, strict=True)
    ]
    if rest:
        rows.append(TableRow((counted(len(rest), "more part"), "", "", *others), "rest"))
    rows.append(TableRow(("step", "", "", *total), "total"))
    heads = PATH_COLUMNS + columns("number", f"now {scale.unit}", "then")
    return TableSection("Critical path", heads, tuple(rows), (PATH_NOTE,))


def _by_part(parts: Sequence[PathPart]) -> dict[tuple[str, str, str | None], float]:
    sums: dict[tuple[str, str, str | None], float] = {}
    for part in parts:
        key = part.what, part_name(part), part.source
        sums[key] = sums.get(key, 0.0) + part.us
    return sums


def render(answer: WhatIf, form: str, style: TerminalStyle = PLAIN) -> str:
    """Renders the answer for a terminal, as markdown or JSON.

    The markdown is for a comment on a pull request.
    """
    return encode(answer) if form == "json" else render_document(build(answer), form, style)
