"""Builds the tables of torch.compile, and the document of its logs."""

import json
from collections.abc import Sequence
from pathlib import PurePath

from bottleneck.report import render_document
from bottleneck.report.document import (
    Action,
    ActionSection,
    Document,
    LabelledLine,
    Section,
    TableColumn,
    TableRow,
    TableSection,
    columns,
)
from bottleneck.report.json_text import encode
from bottleneck.report.terminal import PLAIN, TerminalStyle
from bottleneck.schema.compile_causes import BREAKS, RECOMPILES, SKIPS, CompileCause
from bottleneck.schema.compile_health import (
    CompileHealth,
    CompileLog,
    GraphHealth,
    Recompile,
    known_sum,
    resumed_function,
)
from bottleneck.units import US_PER_S, counted, format_us, format_us_range

LOG_SCHEMA = "bottleneck/compile-log/1"
_MOST_ROWS = 12
_MOST_LOGS = 4
# Times as fast by compiling, for which it is said when that is paid back: a small gain, and a good one.
_GAINS = (1.1, 1.5)
_STARTS = {
    "cold": "All were compiled anew (a cold start).",
    "warm": "A cache on disk had the code of all (a warm start).",
    "partly warm": "cold: compiled anew; warm: a cache on disk had its code.",
}
_UNPRICED = {
    "no-steps": "not known: no trace of steps",
    "not-entered": "0: not run in these steps",
    "no-calls": "not known: the trace does not show where graphs end",
    "no-device": "none: the program uses no GPU",
}


def compile_sections(
    health: CompileHealth | None, step_us: float | None = None, most: int = _MOST_ROWS
) -> tuple[TableSection, ...]:
    """Builds the tables: graphs, breaks, recompiles and skipped CUDA graphs.

    None of them for a program that compiled nothing. ``step_us`` is the time of a compiled step, where it is known.
    """
    if health is None or not (health.graphs or health.breaks):
        return ()
    tables = (_graphs(health, step_us, most), _breaks(health, most), _recompiles(health, most), _skips(health, most))
    return tuple(table for table in tables if table is not None)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f}" if seconds < 100 else f"{seconds:.0f}"


def _us(us: float | None) -> str:
    return "-" if us is None else format_us(us)


def _name(graph: GraphHealth | Recompile) -> str:
    """Names a graph by its number and function.

    Parts of one function differ by their line.
    """
    return f"{graph.compile_id} {resumed_function(graph.function)}".strip()


def _graphs(health: CompileHealth, step_us: float | None, most: int) -> TableSection:
    """Builds the table of graphs in order.

    Those without ops are functions of which nothing is left.
    """
    has_steps = any(graph.calls is not None for graph in health.graphs)
    is_mixed = health.start == "partly warm"
    heads = (
        *columns("name", "graph"),
        *columns("place", "line"),
        *(columns("number", "calls") if has_steps else ()),
        *columns("number", "ops", "kernels", "guards"),
        *(columns("number", "checks") if has_steps else ()),
        *columns("number", "compile s"),
        *(columns("words", "cache") if is_mixed else ()),
    )
    rows = [_graph_row(graph, has_steps=has_steps, is_mixed=is_mixed) for graph in health.graphs[:most]]
    rest = health.graphs[most:]
    blank, end = ("",) * (5 if has_steps else 3), ("",) * is_mixed
    if rest:
        seconds = known_sum(graph.seconds for graph in rest)
        rows.append(TableRow((f"{len(rest)} more", "", *blank, _seconds(seconds), *end), "rest"))
    total = counted(len(health.graphs), "compilation")
    rows.append(TableRow((total, "", *blank, _seconds(health.seconds), *end), "total"))
    return TableSection(
        "What torch.compile made of it",
        heads,
        tuple(rows),
        tuple(_graph_notes(health, step_us, has_steps=has_steps)),
        details=TableColumn("", "words"),
        menu="compile",
    )


def _graph_row(graph: GraphHealth, *, has_steps: bool, is_mixed: bool) -> TableRow:
    cells = (
        _name(graph),
        graph.source or "",
        *((_number(graph.calls),) if has_steps else ()),
        *(_number(value) for value in (graph.ops, graph.kernels, graph.guards)),
        *((_us(graph.guards_us),) if has_steps else ()),
        _seconds(graph.seconds),
        *((_cache(graph),) if is_mixed else ()),
    )
    return TableRow(cells, details=(f"runs uncompiled: {graph.failure}",) if graph.failure else ())


def _cache(graph: GraphHealth) -> str:
    return "" if graph.is_warm is None else "warm" if graph.is_warm else "cold"


def _graph_notes(health: CompileHealth, step_us: float | None, *, has_steps: bool) -> list[str]:
    notes = []
    if health.seconds and step_us:
        notes.append(_break_even(health.seconds, step_us))
    if has_steps:
        notes.append(
            "calls are per step; checks: time per step of checking guards, by which torch finds the graph that fits."
        )
    if note := _STARTS.get(health.start):
        notes.append(note)
    if health.is_partial:
        notes.append("Some compilations are missing here: torch keeps its last ones only, or the log is damaged.")
    return notes


def _break_even(seconds: float, step_us: float) -> str:
    """Says after how many steps compiling is paid back, by how much it gains."""
    many, few = (counted(round(seconds * US_PER_S / (step_us * (times - 1.0))), "step") for times in _GAINS)
    often, seldom = (f"{times:.1f}" for times in _GAINS)
    return (
        f"Compiling took {_seconds(seconds)} s. That is paid back after {many} if it made the step {often} times as "
        f"fast, after {few} if {seldom} times; bottleneck verify --try compile measures which."
    )


def _price(price_us: tuple[float, float] | None, reason: str | None) -> str:
    if price_us is None:
        return _UNPRICED.get(reason or "", "not known")
    low, high = price_us
    return format_us_range(low, high) if high > low else format_us(high)


def _breaks(health: CompileHealth, most: int) -> TableSection | None:
    if not health.breaks:
        return None
    has_prices = any(one.price_us is not None for one in health.breaks)
    ordered = sorted(health.breaks, key=lambda one: -(one.price_us or (0.0, 0.0))[1])
    heads = (
        *columns("place", "line"),
        *columns("words", "why"),
        *columns("number", "broke", *(("per step",) if has_prices else ())),
    )
    rows = []
    for one in ordered[:most]:
        price = () if not has_prices else (_price(one.price_us, one.price_reason),)
        details = [f"torch: {one.text}"] if one.cause == "other" and one.text else []
        if len(one.lines) > 1:
            details.append(f"from {', '.join(one.lines[:-1][-3:])}")
        if one.eager_ops:
            often = "" if one.eager_calls is None else f" ({counted(_number(one.eager_calls), 'call')} per step)"
            details.append(f"uncompiled there: {', '.join(one.eager_ops[:4])}{often}")
        rows.append(
            TableRow(
                (one.source or "not known", BREAKS[one.cause].words, str(one.count), *price), details=tuple(details)
            )
        )
    if rest := ordered[most:]:
        blank = ("",) * has_prices
        rows.append(TableRow((f"{len(rest)} more", "", str(sum(one.count for one in rest)), *blank), "rest"))
    notes = ["broke: how many compilations ended there."]
    if has_prices:
        notes.append(
            "per step: host time from one graph to the next, with guards, at most with the ops that run there and one "
            "more entry of the backward pass; what the compiler could fuse across is not in it."
        )
    else:
        notes.append("What a break costs per step is known from a trace of steps: bottleneck run FILE.")
    return TableSection("Graph breaks", heads, tuple(rows), tuple(notes), details=TableColumn("", "words"))


def _recompiles(health: CompileHealth, most: int) -> TableSection | None:
    if not health.recompiles:
        return None
    heads = (
        *columns("name", "graph"),
        *columns("place", "line"),
        *columns("words", "guard that failed"),
        *columns("number", "compile s"),
    )
    rows = [
        TableRow((_name(one), one.source or "", one.guard_words, _seconds(one.seconds)))
        for one in health.recompiles[:most]
    ]
    seconds = known_sum(one.seconds for one in health.recompiles)
    if rest := health.recompiles[most:]:
        rest_s = known_sum(one.seconds for one in rest)
        rows.append(TableRow((f"{len(rest)} more", "", "", _seconds(rest_s)), "rest"))
    rows.append(TableRow((counted(len(health.recompiles), "recompile"), "", "", _seconds(seconds)), "total"))
    return TableSection("Recompiles", heads, tuple(rows), ("Their seconds are part of those of the graphs.",))


def _skips(health: CompileHealth, most: int) -> TableSection | None:
    if not health.skips:
        return None
    has_prices = any(one.price_us is not None or one.price_reason != "no-steps" for one in health.skips)
    heads = (
        *columns("place", "line"),
        *columns("words", "why"),
        *columns("number", "graphs"),
        *(columns("words", "per step") if has_prices else ()),
    )
    rows = []
    for one in health.skips[:most]:
        price = () if not has_prices else (_price(one.price_us, one.price_reason),)
        details = (f"torch: {one.text}",) if one.text else ("torch counts it, and does not tell why",)
        rows.append(
            TableRow((one.source or "not told", SKIPS[one.cause].words, str(one.count), *price), details=details)
        )
    return TableSection("Not captured as CUDA graphs", heads, tuple(rows), details=TableColumn("", "words"))


def changes(health: CompileHealth, most: int = 6) -> tuple[Action, ...]:
    """Builds what to change, the dearest first, once per cause."""
    actions: dict[tuple[str, str], Action] = {}
    for one in sorted(health.breaks, key=lambda row: (-(row.price_us or (0.0, 0.0))[1], -row.count)):
        _add(actions, ("break", one.cause), BREAKS[one.cause], one.source, BREAKS[one.cause].code)
    for again in sorted(health.recompiles, key=lambda row: -(row.seconds or 0.0)):
        cause = RECOMPILES[again.cause]
        _add(actions, ("recompile", again.cause), cause, again.source, again.code)
    for skip in health.skips:
        _add(actions, ("skip", skip.cause), SKIPS[skip.cause], skip.source, SKIPS[skip.cause].code)
    return tuple(actions.values())[:most]


def _add(
    actions: dict[tuple[str, str], Action], key: tuple[str, str], cause: CompileCause, source: str | None, code: str
) -> None:
    line = LabelledLine("why", f"{cause.words}{f', at {source}' if source else ''}")
    if key not in actions:
        actions[key] = Action(cause.change, (line,), tuple(code.splitlines()))


def compile_summary(health: CompileHealth) -> str:
    """Says in one sentence what was compiled, and what was not."""
    graphs = sum(1 for graph in health.graphs if graph.ops or graph.ops is None)
    parts = [
        f"{counted(graphs, 'graph')} compiled"
        + ("" if health.seconds is None else f" in {_seconds(health.seconds)} s")
        + (f" ({health.start})" if health.start else "")
    ]
    breaks = counted(len(health.breaks), "line breaks graphs", "lines break graphs")
    parts.append(breaks if health.breaks else "nothing breaks graphs")
    if health.recompiles:
        again_s = known_sum(one.seconds for one in health.recompiles)
        again = counted(len(health.recompiles), "recompile")
        parts.append(again if again_s is None else f"{again} took {_seconds(again_s)} s of that")
    if health.skips:
        skips = sum(one.count for one in health.skips)
        parts.append(f"{counted(skips, 'graph is', 'graphs are')} not captured as a CUDA graph")
    return "; ".join(parts) + "."


def build_log(logs: Sequence[CompileLog], name: str) -> Document:
    """Builds the document of a program's logs, with tables per process."""
    sections: list[Section] = []
    for log in logs[:_MOST_LOGS]:
        suffix = f" ({_process(log)})" if len(logs) > 1 else ""
        sections += [_renamed(table, suffix) for table in compile_sections(log.health)]
        if actions := changes(log.health):
            sections.append(ActionSection(f"What to change{suffix}", actions))
    damaged = sum(log.damaged for log in logs)
    warnings = [f"{counted(damaged, 'line')} of the logs could not be read, and left out"] if damaged else []
    if len(logs) > _MOST_LOGS:
        warnings.append(f"{counted(len(logs) - _MOST_LOGS, 'more process', 'more processes')} are in --format json")
    version = next((log.torch_version for log in logs if log.torch_version), None)
    subject = f"{name} · {counted(len(logs), 'process', 'processes')}" + (f" · PyTorch {version}" if version else "")
    return Document(
        headline="compile log",
        subject=subject,
        sentence=compile_summary(logs[0].health),
        sections=tuple(sections),
        warnings=tuple(warnings),
        closing="a log of the compiler has no steps: what a break costs per step tells bottleneck run FILE",
    )


def _process(log: CompileLog) -> str:
    return f"rank {log.rank}" if log.rank is not None else PurePath(log.path).name


def _renamed(table: TableSection, suffix: str) -> TableSection:
    return (
        table
        if not suffix
        else TableSection(
            f"{table.title}{suffix}", table.columns, table.rows, table.notes, table.details, table.is_cards
        )
    )


def log_text(logs: Sequence[CompileLog], name: str, form: str, style: TerminalStyle = PLAIN) -> str:
    """Renders the logs of a program in one of four formats.

    These are terminal, markdown, json and html.
    """
    if form == "json":
        content = json.loads(encode(list(logs)))
        return json.dumps({"schema": LOG_SCHEMA, "processes": content}, indent=1) + "\n"
    return render_document(build_log(logs, name), form, style)
