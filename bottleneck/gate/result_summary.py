"""Summarises a workload's verdict in three lines: what happened, why (with the line of code), and how to fix it."""

import shlex
from collections.abc import Sequence
from dataclasses import replace

from bottleneck.report.ci.phrases import describe_culprit, format_change, time_change_words
from bottleneck.schema.comparison import ChangeRow, Comparison
from bottleneck.schema.gate_result import CounterChange, WorkloadResult
from bottleneck.schema.op_names import at_source
from bottleneck.units import format_us

_LISTED = 3


# The event, its causes (the largest first), and the fix.
_Lines = tuple[str, Sequence[str], str]


def with_summary(result: WorkloadResult) -> WorkloadResult:
    """The result with its three lines, whatever its verdict."""
    what, why, fix = _summarise(result)
    return replace(result, what=what, why=tuple(why[:_LISTED]), fix=fix)


def _summarise(result: WorkloadResult) -> _Lines:
    time, gone = result.time, [change for change in result.counters if change.verdict == "gone"]
    if gone:  # which usually means a failed measurement
        what = f"{', '.join(change.metric for change in gone)}: counted before, and no more"
        fix = "see that the workload still does its work; if it really does without: bottleneck gate --update"
        return what, [change.reason for change in gone[:_LISTED] if change.reason], fix
    if result.verdict == "fail":
        return _summarise_failure(result)
    if result.verdict == "undecided" and time is not None:
        fix = "run it on a quieter machine, or with more --pairs"
        return f"undecided: {time_change_words(time)}", [time.reason] if time.reason else [], fix
    if result.verdict == "nothing measured":
        what = "there is no lock-file yet" if result.is_new else "no counter could be compared"
        update = "bottleneck gate --update, and commit the lock-file"
        why = [change.reason for change in result.counters if change.reason][:1]
        return what, why, update if result.lock else "name recordings of the same program"
    return _pass_sentence(result), (), ""


def _summarise_failure(result: WorkloadResult) -> _Lines:
    """The summary of counters beyond their budgets, of a slower step, or of both."""
    broken = [change for change in result.counters if change.verdict == "broken"]
    parts, why = [_counter_changes(broken)] if broken else [], _causes(broken)
    is_slower = result.time is not None and result.time.verdict == "slower"
    if result.time is not None and is_slower:
        parts.append(time_change_words(result.time))
        why += _rows(result.comparison) if result.comparison is not None else []
    fix = _fix(result.name, broken, why, is_slower=is_slower)
    return "; ".join(parts), why, fix if result.lock else "undo that, or raise the budget in pyproject.toml"


def _counter_changes(broken: Sequence[CounterChange]) -> str:
    shown = ", ".join(format_change(change) for change in broken[:_LISTED])
    more = f" and {len(broken) - _LISTED} more" if len(broken) > _LISTED else ""
    creep = " since the anchor" if all(change.is_creep for change in broken) else ""
    return f"{shown}{more} per step{creep}"


def _causes(broken: Sequence[CounterChange]) -> list[str]:
    """One sentence per line of code, the best known first: several counters often change for one and the same line."""
    found: dict[tuple[str, str], str] = {}
    ranked = sorted(
        (culprit for change in broken for culprit in change.culprits),
        key=lambda culprit: (culprit.site is None, not culprit.is_touched),
    )
    for culprit in ranked:
        place = culprit.site.place if culprit.site is not None else culprit.what
        text = culprit.site.text if culprit.site is not None else ""
        words = describe_culprit(culprit)
        found.setdefault((place, text), f"{words}  {text}" if text else words)
    return list(found.values())


def _rows(comparison: Comparison) -> list[str]:
    """Rows and waits that take more time, from the recordings of both sides; none if these show no slowdown."""
    if comparison.change_us is None or comparison.change_us <= 0:
        return []
    rows = [row for row in comparison.rows if row.change_us > 0 and row.kind != "same"]
    rows.sort(key=lambda row: -row.change_us)
    idle = [bar for bar in comparison.idle if bar.change_us > 0]
    grown = [(row.change_us, _row_line(row)) for row in rows[:_LISTED]]
    grown += [(bar.change_us, f"+{format_us(bar.change_us)} {bar.account}") for bar in idle]
    return [text for _, text in sorted(grown, reverse=True)[:_LISTED]]


def _row_line(row: ChangeRow) -> str:
    module = f" in {row.module}" if row.module else ""
    place = f" {at_source(row.source)}{', changed here' if row.is_touched else ''}" if row.source else ""
    return f"+{format_us(row.change_us)} {row.name} ({row.kind}){module}{place}"


def _fix(name: str, broken: Sequence[CounterChange], why: Sequence[str], *, is_slower: bool) -> str:
    undo = "undo that" if why else "see what changed: bottleneck compare"
    if not broken:
        return f"{undo}, or raise the budget of step_us in pyproject.toml" if is_slower else undo
    metrics = ",".join(sorted({change.metric for change in broken if not change.is_creep}))
    if not metrics:
        return f"{undo}, or move the anchor in the lock-file"
    time = " raise the budget of step_us and:" if is_slower else ":"
    return f'{undo}, or{time} bottleneck accept {shlex.quote(name)} --metric {shlex.quote(metrics)} --reason "…"'


def _pass_sentence(result: WorkloadResult) -> str:
    kept = sum(change.verdict in {"same", "within budget", "accepted"} for change in result.counters)
    better = sum(change.verdict == "improved" for change in result.counters)
    parts = [f"{kept} counter{'' if kept == 1 else 's'} within budget"] if kept else []
    parts += [f"{better} better"] if better else []
    parts += [time_change_words(result.time)] if result.time is not None and result.time.ratio is not None else []
    return "; ".join(parts)
