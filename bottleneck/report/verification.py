"""Renders the result of ``verify`` and the score of past predictions as text, markdown and JSON."""

import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from rich.console import Console
from rich.text import Text

from bottleneck.report.document import Column, Row, Table
from bottleneck.report.markdown import name as code_name
from bottleneck.report.markdown import prose
from bottleneck.report.terminal import Look, table_lines, wrapped
from bottleneck.report.text import clean
from bottleneck.schema.analysis import Interval
from bottleneck.schema.measurements import Ratio
from bottleneck.schema.trials import Difference, Score, Trial, Verification
from bottleneck.units import format_si, format_us

_PROSE = 600
_LONGEST_JSON_TEXT = 2000
_COLUMNS = (
    Column("change", "name"),
    Column("predicted", "number"),
    Column("measured", "number"),
    Column("verdict", "words"),
)
# Colours of verdicts are those of the groups of a ledger.
_UNTRIED = frozenset({"not applicable", "missing", "failed", "skipped"})


def to_json(done: Verification) -> str:
    """The document of `verify --format json`; null is what is not known."""
    return json.dumps(_safe(asdict(done)), indent=1, ensure_ascii=True) + "\n"


def to_terminal(done: Verification, width: int = 80, *, color: bool = False, encoding: str = "utf-8") -> str:
    """The trials as a table with what each showed beneath it; escape sequences appear in it only with ``color``."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding)
    console = Console(
        file=stream, width=width, force_terminal=color, color_system="standard" if color else None, _environ={}
    )
    look = Look(width, encoding)
    for line in _lines(done, look):
        console.print(line, no_wrap=True, overflow="ignore", crop=False, highlight=False, markup=False, emoji=False)
    stream.seek(0)
    return stream.read()


def to_markdown(done: Verification) -> str:
    """The trials as a table, fit for a comment on a pull request."""
    lines = [f"## {prose(_headline(done))}", "", f"**{prose(sentence(done))}**", ""]
    if done.trials:
        lines += ["| change | predicted | measured | verdict | what it showed |", "|---|---:|---:|---|---|"]
        lines += [_markdown_row(trial) for trial in _all(done)]
        lines += [""]
    lines += [f"- {prose(warning)}" for warning in done.warnings]
    return "\n".join(lines).rstrip("\n") + "\n"


def sentence(done: Verification) -> str:
    """The outcome in one sentence."""
    faster = [trial for trial in done.trials if trial.verdict == "faster" and not trial.is_bound]
    if not done.trials:
        return "no finding of this recording names a change to try; --try all tries them all"
    if not faster:
        return f"none of {_count(len(done.trials))} makes the step faster"
    best = done.best or max(faster, key=lambda trial: trial.speedup.median if trial.speedup else 0.0)
    told = f"{len(faster)} of {_count(len(done.trials))} make the step faster"
    if len(faster) == 1:
        told = told.replace(" make ", " makes ")
    return f"{told}; best: {best.change}, {_times(best.speedup)}"


def details(trial: Trial) -> tuple[str, ...]:
    """What a trial showed besides its speed, a phrase each."""
    bound = "a bound that no fix can pass, not a change to keep" if trial.is_bound else None
    bound = "figures of a part of the step alone" if trial.is_part else bound
    phrases = [trial.reason, bound, _steps(trial), _noise(trial), _setup(trial), _memory(trial)]
    return tuple(phrase for phrase in [*phrases, *_differences(trial.differences)] if phrase)


def _lines(done: Verification, look: Look) -> list[Text]:
    out = [*wrapped(Text(look.text(_headline(done), _PROSE), "bold"), look)]
    out += wrapped(Text(look.text(sentence(done), _PROSE), "bold"), look)
    if done.trials:
        rows = tuple(Row(_cells(trial), details=details(trial)) for trial in _all(done))
        out += [Text(), *table_lines(Table("", _COLUMNS, rows), look)]
    for warning in done.warnings:
        out += [Text(), *wrapped(Text(look.text(warning, _PROSE), "yellow"), look)]
    return out


def _all(done: Verification) -> tuple[Trial, ...]:
    """The trials of single changes, then those of several together."""
    return (*done.trials, *done.combinations)


def _headline(done: Verification) -> str:
    step = "" if done.step_us is None else f", {format_us(done.step_us)} per step"
    return f"VERIFY: {' '.join(done.program)}{step}"


def _count(number: int) -> str:
    return f"{number} change{'' if number == 1 else 's'}"


def _cells(trial: Trial) -> tuple[str, ...]:
    return (trial.change, _predicted(trial.predicted_speedup), _times(trial.speedup), trial.verdict)


def _markdown_row(trial: Trial) -> str:
    cells = [code_name(trial.change), *map(prose, _cells(trial)[1:]), prose("; ".join(details(trial)))]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _predicted(speedup: Interval | None) -> str:
    return "none" if speedup is None else f"{speedup.low:.2f} to {speedup.high:.2f}"


def _times(speedup: Ratio | None) -> str:
    """The speedup with its interval; with more digits where two would hide on which side of 1 it lies."""
    if speedup is None:
        return "-"
    digits = 3 if 0.99 < speedup.low <= speedup.high < 1.01 else 2
    return f"{speedup.median:.{digits}f}x [{speedup.low:.{digits}f}, {speedup.high:.{digits}f}]"


def _steps(trial: Trial) -> str | None:
    if trial.original_us is None or trial.changed_us is None or trial.speedup is None:
        return None
    times = f"{format_us(trial.original_us.median)} -> {format_us(trial.changed_us.median)}"
    return f"{times} per step over {trial.speedup.n} pairs"


def _noise(trial: Trial) -> str | None:
    """What the pairs could have shown, where they showed nothing."""
    if trial.smallest_visible is None or trial.verdict not in {"no effect", "inconclusive"}:
        return None
    return f"a change of {trial.smallest_visible:.1%} or more would have been seen"


def _setup(trial: Trial) -> str | None:
    if trial.setup_s is None or trial.setup_s < 0.05:
        return None
    told = f"set-up {format_us(trial.setup_s * 1e6)}"
    if trial.break_even_steps is None:
        return told
    return f"{told}, paid back after {trial.break_even_steps:,.0f} steps"


def _memory(trial: Trial) -> str | None:
    if trial.peak_before_bytes is None or trial.peak_after_bytes is None:
        return None
    before, after = (format_si(float(peak), "B") for peak in (trial.peak_before_bytes, trial.peak_after_bytes))
    return f"peak memory {before} -> {after}"


def _differences(differences: tuple[Difference, ...]) -> list[str]:
    """The largest difference and whether it is allowed; why where nothing could be compared."""
    known = [each for each in differences if each.relative is not None]
    if not known:
        return list(dict.fromkeys(each.reason for each in differences if each.reason))
    worst = max(known, key=lambda each: ((each.relative or 0.0) / (each.allowed or 1e-30), each.relative or 0.0))
    if not worst.relative:
        return ["results the same bit for bit" if all(not each.relative for each in known) else ""]
    allowed = (
        "" if worst.allowed is None else f" ({'allowed' if worst.is_within else 'allowed only'} {worst.allowed:.0e})"
    )
    return [f"{worst.what} differ by {worst.relative:.0e}{allowed}"]


def _safe(value: object) -> object:
    """Text with what could act on a terminal made visible, as everywhere; what is no finite number is null."""
    if isinstance(value, str):
        return clean(value, _LONGEST_JSON_TEXT)
    if isinstance(value, dict):
        return {key: _safe(each) for key, each in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return [_safe(each) for each in value] if isinstance(value, list | tuple) else value


_TITLES = ("rule", "tried", "judged", "inside", "touching", "measured/predicted")
_NONE = "no prediction has been verified on this machine yet: bottleneck verify FILE"
_MEANING = (
    "inside: the measured speedup lies in the predicted interval; touching: the two intervals meet. The last column "
    "is the median of the gains."
)


def _terminal(scores: Sequence[Score]) -> str:
    """A table of at most 80 columns, if slugs are not longer than theirs."""
    if not scores:
        return _NONE + "\n"
    rows = [_TITLES, *(_score_cells(score) for score in scores)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(_TITLES))]
    lines = [
        "  ".join(
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join([*lines, "", *_MEANING.split("; ")]) + "\n"


def _markdown(scores: Sequence[Score]) -> str:
    if not scores:
        return prose(_NONE) + "\n"
    lines = ["| " + " | ".join(_TITLES) + " |", "|---|" + "---:|" * (len(_TITLES) - 1)]
    lines += ["| " + " | ".join(prose(cell) for cell in _score_cells(score)) + " |" for score in scores]
    return "\n".join([*lines, "", prose(_MEANING)]) + "\n"


def _json(scores: Sequence[Score]) -> str:
    return json.dumps({"scores": [asdict(score) for score in scores]}, indent=1) + "\n"


def _score_cells(score: Score) -> tuple[str, ...]:
    ratio = "-" if score.ratio is None else f"{score.ratio:.2f}"
    counts = (str(score.applied), str(score.count))
    return (clean(score.finding, 40), *counts, _share(score.inside), _share(score.near), ratio)


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


FORMATS: Mapping[str, Callable[[Sequence[Score]], str]] = {
    "terminal": _terminal,
    "markdown": _markdown,
    "json": _json,
}
