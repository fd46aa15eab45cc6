"""Builds the document of a watched run.

It has a usual step by its phases, and the slow steps with their causes.
"""

import shlex
from collections.abc import Sequence
from pathlib import PurePath

from bottleneck.report import render_document
from bottleneck.report.compile_health import compile_sections
from bottleneck.report.document import (
    Action,
    ActionSection,
    BarSection,
    Document,
    LabelledLine,
    Section,
    TableRow,
    TableSection,
    columns,
)
from bottleneck.report.json_text import encode
from bottleneck.report.line_chart import ChartCurve, ChartPoint, LineChart
from bottleneck.report.terminal import PLAIN, TerminalStyle
from bottleneck.report.text import UNKNOWN, as_sentence
from bottleneck.schema.watch_log import PHASES, PHASES_OF_LOADER, DevicePhases, Phase, has_loader_phases
from bottleneck.schema.watched import LateRank, WatchedCause, WatchedRun, WatchedRunRank, WindowOfRun
from bottleneck.units import counted, format_part, format_share, format_us

_WORDS = {
    "data": "waiting for data",
    "forward": "forward, with copies to the device",
    "backward": "backward",
    "optimizer": "optimizer",
    "rest": "the rest",
}
# What to do about the rank that the others wait for, by the phase in which it loses its time.
_ON_LATE = {
    "data": "See what the loader of rank {rank} waits for: its storage, its workers, its share of the samples",
    "forward": "Compare the batches and the machine of rank {rank} with the others': longer samples, a slower card",
    "optimizer": "Compare the machine of rank {rank} with the others': other programs, a slower card or processor",
    "rest": "See what rank {rank} alone does between its steps: logging, checkpoints, validation",
}
# Where no loader's batches tell the data and the forward pass from the rest.
_ALL_IN_REST = "forward, data and the rest"
_ON_LATE_REST = "See what rank {rank} alone does outside of its backward pass: its data, its forward pass, logging"
_NOT_PARTED = "no DataLoader gave batches, so that waiting for data and the forward pass are parts of one phase here"
_MOST_CAUSES, _MOST_STEPS, _MOST_WINDOWS = 8, 6, 20
# A share of the run from which waiting for data is its headline.
_LOADER_BOUND, _MUCH = 0.25, 0.05
# A share of a step on the device from which copies to it are named.
_MUCH_COPIED = 0.1
# A share of the run that slow steps take beyond usual ones, from which they are its headline.
_MUCH_SLOW, _MOSTLY = 0.25, 0.8


def build(run: WatchedRun) -> Document:
    """The document of a watched run."""
    rank = _slowest(run)
    causes = _actions(run)
    sections: list[Section] = [_phases(rank)]
    if rank.device_phases is not None:
        sections.append(_phases_on_device(rank.device_phases))
    if causes:
        sections.append(ActionSection("Slow steps and what grows, the largest first", causes))
    if len(run.ranks) > 1:
        sections.append(_ranks(run))
    sections += compile_sections(rank.compile_health, rank.usual_step_us)
    if run.windows:
        sections.append(_windows(run.windows))
    return Document(
        headline="watched",
        subject=f"{run.name} · {counted(rank.steps, 'step')} · {format_us(rank.total_us)} · {run.date}",
        sentence=" ".join(line.text for line in _lines(run, rank)),
        lines=_lines(run, rank),
        sections=tuple(sections),
        warnings=run.warnings,
    )


def _slowest(run: WatchedRun) -> WatchedRunRank:
    return max(run.ranks, key=lambda rank: rank.usual_step_us)


def _causes(run: WatchedRun) -> list[WatchedCause]:
    """The causes of all ranks, the largest first.

    What grows stands behind those that take much of the run. The late rank's come before what others take for waiting
    for it.
    """
    total_us = max(rank.total_us for rank in run.ranks)
    late = run.late.rank if run.late is not None else None

    def order(cause: WatchedCause) -> tuple[int, bool, float]:
        beyond_us, is_others = cause.beyond_us, late is not None and cause.rank != late
        if beyond_us is None:
            return 1, is_others, 0.0
        return 0 if beyond_us >= _MUCH * total_us else 2, is_others, -beyond_us

    return sorted((cause for rank in run.ranks for cause in rank.causes), key=order)


def _lines(run: WatchedRun, rank: WatchedRunRank) -> tuple[LabelledLine, ...]:
    usual_us, data_us = rank.usual_step_us, rank.phases_us[0]
    data_share = data_us / usual_us if usual_us else 0.0
    slow_share = rank.beyond_us / rank.total_us if rank.total_us else 0.0
    causes = _causes(run)
    lost_us = next((cause.beyond_us or 0.0 for cause in causes if cause.rank == rank.rank), 0.0)
    if lost_us > rank.beyond_us and lost_us >= _MUCH_SLOW * rank.total_us:
        times = f"{format_part(lost_us, rank.total_us)} ({format_share(lost_us / rank.total_us)})"
        first = f"Slow steps hold your run up: {times} beyond its quick steps"
    elif slow_share >= max(_MUCH_SLOW, data_share):
        times = f"{format_part(rank.beyond_us, rank.total_us)} ({format_share(slow_share)})"
        named = "none" if not rank.named_us else format_us(rank.named_us)
        rest = "" if rank.named_us >= _MOSTLY * rank.beyond_us else f"; {named} of it has a known cause"
        first = f"Slow steps hold your run up: {times} beyond usual steps of {format_us(usual_us)}{rest}"
    elif data_share >= _LOADER_BOUND:
        times = f"{format_part(data_us, usual_us)} per step ({format_share(data_share)})"
        first = f"Your program waits for data: {times}"
    else:
        place = max(range(len(PHASES)), key=lambda place: rank.phases_us[place])
        share = rank.phases_us[place] / usual_us if usual_us else 0.0
        most = _phase_words(PHASES[place], rank.phases_us)
        first = f"A usual step takes {format_us(usual_us)}, most of it {most} ({format_share(share)})"
    lines = [LabelledLine("", first)]
    device = rank.device_phases
    if device is not None and device.copies_us >= _MUCH_COPIED * sum(device.phases_us) > 0.0:
        times = format_part(device.copies_us, sum(device.phases_us))
        lines.append(LabelledLine("Copies", f"Copies of the batch to the device take {times} of a step on the device"))
    if run.late is not None:
        lines.append(LabelledLine("Late", _late(run.late, rank.phases_us)))
    if causes:
        lines.append(LabelledLine("Worst", _told(causes[0], run)))
    if run.late is not None:
        is_parted = run.late.phase != "rest" or has_loader_phases(rank.phases_us)
        on_late = _ON_LATE[run.late.phase] if is_parted else _ON_LATE_REST
        lines.append(LabelledLine("First", on_late.format(rank=run.late.rank)))
    elif causes:
        lines.append(LabelledLine("First", as_sentence(causes[0].advice)))
    elif data_share >= _LOADER_BOUND:
        lines.append(
            LabelledLine(
                "First", "Start it by bottleneck run in place of bottleneck watch: that says what the loader waits for"
            )
        )
    else:
        of_data = f": waiting for data takes {format_share(data_share)}" if has_loader_phases(rank.phases_us) else ""
        lines.append(LabelledLine("Note", f"No step stands out, and nothing drifts{of_data}"))
    return tuple(lines)


def _phase_words(phase: Phase, phases_us: Sequence[float]) -> str:
    return _ALL_IN_REST if phase == "rest" and not has_loader_phases(phases_us) else _WORDS[phase]


def _phase_times(phases_us: Sequence[float]) -> tuple[str, ...]:
    """The time of each phase; unknown where no loader parts it from the rest."""
    is_parted = has_loader_phases(phases_us)
    return tuple(
        format_us(us) if is_parted or phase not in PHASES_OF_LOADER else UNKNOWN
        for phase, us in zip(PHASES, phases_us, strict=True)
    )


def _late(late: LateRank, phases_us: Sequence[float]) -> str:
    """Words the rank that the others wait for."""
    if late.is_to_end:
        when = "" if late.is_from_start else f" from step {late.first:,} on"
    else:
        when = f" in steps {late.first:,} to {late.last:,}"
    cause = "" if late.cause is None else f"; meanwhile {late.cause}"
    return (
        f"rank {late.rank}{when}: outside the backward pass it takes {format_us(late.own_us)} a step, the "
        f"quickest rank {format_us(late.others_us)}; most of it is {_phase_words(late.phase, phases_us)}{cause}"
    )


def _told(cause: WatchedCause, run: WatchedRun) -> str:
    who = f"rank {cause.rank}: " if len(run.ranks) > 1 else ""
    return f"{who}{as_sentence(cause.headline)}"


def _actions(run: WatchedRun) -> tuple[Action, ...]:
    """The causes with what to do."""
    actions: list[Action] = []
    for cause in _causes(run)[:_MOST_CAUSES]:
        lines = []
        if cause.steps:
            lines.append(LabelledLine("steps" if len(cause.steps) > 1 else "step", _steps(cause.steps)))
        lines.append(LabelledLine("do", as_sentence(cause.advice)))
        actions.append(Action(_told(cause, run), tuple(lines), key=cause.kind.partition(":")[0]))
    return tuple(actions)


def _steps(steps: Sequence[int]) -> str:
    """Lists steps, those that follow one another as a range."""
    ranges: list[list[int]] = []
    for step in sorted(steps):
        if ranges and step == ranges[-1][-1] + 1:
            ranges[-1] = [ranges[-1][0], step]
        else:
            ranges.append([step])
    shown = ", ".join(" to ".join(f"{step:,}" for step in ends) for ends in ranges[:_MOST_STEPS])
    left_out = sum(ends[-1] - ends[0] + 1 for ends in ranges[_MOST_STEPS:])
    return f"{shown} and {left_out:,} more" if left_out else shown


def _phases(rank: WatchedRunRank) -> BarSection:
    total_us = rank.usual_step_us
    shares = [us / total_us if total_us else 0.0 for us in rank.phases_us]
    names = [_phase_words(phase, rank.phases_us) for phase in PHASES]
    times = _phase_times(rank.phases_us)
    rows = [
        TableRow((name, time, format_share(share) if time != UNKNOWN else UNKNOWN), group=phase)
        for phase, name, time, share in zip(PHASES, names, times, shares, strict=True)
    ]
    rows.append(TableRow(("the usual step", format_us(total_us), ""), role="total"))
    table = TableSection(
        "A usual step by its phases",
        (*columns("words", "phase"), *columns("number", "per step", "share")),
        tuple(rows),
        () if has_loader_phases(rank.phases_us) else (_NOT_PARTED,),
    )
    parts = tuple(
        (phase, share, f"{name} {format_share(share)}")
        for phase, name, share in zip(PHASES, names, shares, strict=True)
    )
    return BarSection("A usual step by its phases", parts, table)


def _phases_on_device(device: DevicePhases) -> TableSection:
    """The phases by the device's own clock, with the copies to it."""
    rows = [
        TableRow((_WORDS[phase], format_us(us)), group=phase)
        for phase, us in zip(PHASES, device.phases_us, strict=True)
    ]
    rows.append(TableRow(("of them, copies from the host before the backward pass", format_us(device.copies_us))))
    note = f"medians of {counted(device.steps, 'step')} with events on the device: what it did between them, or waited"
    return TableSection(
        "The phases on the device", (*columns("words", "phase"), *columns("number", "per step")), tuple(rows), (note,)
    )


def _ranks(run: WatchedRun) -> TableSection:
    rows = [
        TableRow((str(rank.rank), f"{rank.steps:,}", format_us(rank.usual_step_us), *_phase_times(rank.phases_us)))
        for rank in run.ranks
    ]
    return TableSection("Ranks", columns("number", "rank", "steps", "usual step", *PHASES), tuple(rows))


def _windows(windows: Sequence[WindowOfRun]) -> TableSection:
    """The recorded windows, which `bottleneck report` explains."""
    example = shlex.quote(windows[-1].folder)
    rows = [
        TableRow((PurePath(window.folder).name, f"{window.steps:,}", window.why)) for window in windows[:_MOST_WINDOWS]
    ]
    if len(windows) > _MOST_WINDOWS:
        rows.append(TableRow((f"and {len(windows) - _MOST_WINDOWS} more", "", "")))
    return TableSection(
        "Recorded windows",
        (*columns("words", "recording"), *columns("number", "steps"), *columns("words", "why")),
        tuple(rows),
        notes=(f"for one of them: bottleneck report {example}",),
    )


def charts(run: WatchedRun) -> tuple[LineChart, ...]:
    """The chart of step times over the run, a curve for each rank."""
    curves = tuple(
        ChartCurve(f"rank {rank.rank}" if len(run.ranks) > 1 else "step time", tuple(map(_point, rank.blocks)))
        for rank in run.ranks
    )
    if not any(curve.points for curve in curves):
        return ()
    is_each = all(median == low == high for rank in run.ranks for _, median, low, high in rank.blocks)
    return (
        LineChart(
            "Time of each step"
            if is_each
            else "Step time: the median of each stretch, and its shortest and longest step",
            "step",
            curves,
            format_us,
            show_x=lambda step: f"{step:,.0f}",
            from_zero=True,
        ),
    )


def _point(block: Sequence[float]) -> ChartPoint:
    step, median, low, high = block
    return ChartPoint(step, median, low, high)


def render(run: WatchedRun, form: str, style: TerminalStyle = PLAIN) -> str:
    """Renders the run for a terminal, as markdown, JSON or a page.

    The page has a chart of step times.
    """
    if form == "json":
        return encode(run)
    return render_document(build(run), form, style, charts(run) if form == "html" else ())
