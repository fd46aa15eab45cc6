"""Builds the document of an analysis.

It holds headline, facts about steps and measurement, coverage, caveats and next actions. Terminal and markdown render
the same ``Document``, so they cannot disagree.
"""

import math
import shlex
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import PurePath

from bottleneck.report import analysis_tables as tables
from bottleneck.report import markdown, terminal
from bottleneck.report.compile_health import compile_sections
from bottleneck.report.document import BarSection, Document, LabelledLine, ListSection, Section, TableSection
from bottleneck.report.findings import findings
from bottleneck.report.inference import serving_sections
from bottleneck.report.job_section import job_sections
from bottleneck.report.kernel_names import recording_names, short_names
from bottleneck.report.no_gain import no_gain
from bottleneck.report.roofline_points import roofs
from bottleneck.report.start_up import start_up_table
from bottleneck.report.terminal import PLAIN, TerminalStyle
from bottleneck.report.text import as_sentence, cut_text, percents, with_attribute_paths
from bottleneck.schema.analysis import (
    GROUPS,
    REGIMES,
    Analysis,
    Caveat,
    Clause,
    KernelSummary,
    TelemetrySummary,
    Totals,
    Verdict,
    describe_share,
    library_times,
    share_tenths,
)
from bottleneck.schema.device import Device, peak_name, without_signs
from bottleneck.schema.measurements import BatchProof, OptionCosts, RunSteps, StepTime, StepTimes, Timing, tell_step
from bottleneck.schema.reasons import BRIEF
from bottleneck.schema.records import replace
from bottleneck.schema.start_up import StartLedger
from bottleneck.units import counted, format_ratio, format_ratio_range, format_share, format_si, format_us

# How the steps were found, as it follows "6 steps"; other sources name themselves.
_SOURCES = {
    "whole": ": the whole trace, taken as one",
    "time": ": the time chosen, taken as one",
    "marks": ", found by the marks of the recording",
    "profiler": ", found by the marks of the profiler",
    "optimizer": ", found by the calls of the optimizer",
    "closure": ", found by the optimizer's calls of its closure",
    "server": ", found by the marks of the inference server",
    "repeats": ", found by repeats of the op sequence",
}
_MOST_STRETCHES = 4

Numbered = tuple[int, StepTime]


def window(steps: StepTimes) -> str:
    """The explained steps, by the numbers that ``--steps`` takes, and the time of one."""
    plural = "" if steps.count == 1 else "s"
    kept_numbers = [number for number, step in enumerate(steps.each) if step.set_aside is None]
    chosen = (
        f" ({kept_numbers[0]}:{kept_numbers[-1] + 1} of {len(steps.each)})"
        if kept_numbers and len(kept_numbers) < len(steps.each)
        else ""
    )
    source_words = _SOURCES.get(steps.source, f" found by: {steps.source}")
    if steps.boundary is not None and steps.seen is not None:
        source_words = f" of the program ({tell_step(steps.boundary, steps.seen)})"
    times = f"times below are per {steps.step_word} of {format_us(steps.wall_us)}"
    return f"{steps.count} step{plural}{chosen}{source_words}; {times}"


def variation(steps: StepTimes) -> str:
    """Describes the fastest and the slowest of the steps that count.

    Empty where there are fewer than two.
    """
    kept_steps = [(number, step) for number, step in enumerate(steps.each) if step.set_aside is None]
    if len(kept_steps) < 2:
        return ""
    quick, slow = (choose(kept_steps, key=lambda numbered: numbered[1].us) for choose in (min, max))
    ratio = f", {format_ratio(slow[1].us / quick[1].us)} times as long" if quick[1].us > 0 else ""
    return f"quickest {_one(quick)}, slowest {_one(slow)}{ratio}"


def windows(steps: StepTimes) -> str:
    """The explained window where several were recorded; empty where there was one."""
    if len(steps.windows_us) < 2:
        return ""
    times = ", ".join(format_us(us) for us in steps.windows_us)
    count = len(steps.windows_us)
    return f"the quickest of {count} windows, recorded again because steps were disturbed; their mean steps: {times}"


def left_out(steps: StepTimes) -> str:
    """Describes the steps that were found but do not count.

    Each has its reason. Nothing where all of them count.
    """
    stretches = [list(group) for _, group in groupby(enumerate(steps.each), key=_kind)]
    phrases = [_stretch_text(stretch) for stretch in stretches if stretch[0][1].set_aside is not None]
    more = [f"{len(phrases) - _MOST_STRETCHES} more, all in --format json"] if len(phrases) > _MOST_STRETCHES else []
    return "; ".join([*phrases[:_MOST_STRETCHES], *more])


def _stretch_text(stretch: list[Numbered]) -> str:
    """Neighbouring steps that are left out for one reason."""
    (first, head), (last, _) = stretch[0], stretch[-1]
    if first == last:
        return f"{_one(stretch[0])} is {head.set_aside}"
    if len({step.set_aside for _, step in stretch}) == 1:
        return f"steps {first}:{last + 1} are {head.set_aside}"
    quick, slow = (choose(step.us for _, step in stretch) for choose in (min, max))
    kind = BRIEF.get(head.set_aside_code or "", head.set_aside)
    return f"steps {first}:{last + 1} ({format_us(quick)} to {format_us(slow)}) are {kind}"


def _kind(numbered: Numbered) -> str | None:
    """Gives the code of the reason, by which steps are told together.

    The words of the reason where it has no code.
    """
    return numbered[1].set_aside_code or numbered[1].set_aside


def _one(numbered: Numbered) -> str:
    number, step = numbered
    name = f"{step.name}, " if step.name != f"step {number}" else ""
    return f"step {number} ({name}{format_us(step.us)})"


def batch_test(proof: BatchProof | None) -> ListSection | None:
    """Builds the section on the time of twice the batch.

    It has the conclusion from that time. Null where there is no batch size.
    """
    if proof is None:
        return None
    size, ratio = proof.batch_size, proof.ratio
    if proof.once_us is None or proof.twice_us is None or ratio is None or size is None:
        return ListSection("Batch test", ((f"Not run: {proof.reason}.",),))
    longer = f"{format_ratio(ratio.median)} times ({format_ratio_range(ratio.low, ratio.high)}) as long"
    times = f"{format_us(proof.twice_us.median)} against {format_us(proof.once_us.median)}"
    lead = f"Twice the batch ({size} to {2 * size}) takes {longer}: {times}, in {counted(ratio.n, 'pair')}."
    parts, fixed, grows, share = "", proof.fixed_us, proof.proportional_us, proof.fixed_share
    if fixed is not None and grows is not None and share is not None:
        between = f"{format_share(share.low)} to {format_share(share.high)} of the step"
        parts = f"same for any batch: {format_us(fixed.median)} ({between})"
        parts += f"; in proportion to it: {format_us(grows.median)}"
    return ListSection("Batch test", (tuple(filter(None, (lead, parts, proof.sentence))),))


def option_costs(costs: OptionCosts | None) -> str:
    """The overhead of each profiler option; empty where it was not measured.

    Options are shown as additions to the recording of ops alone.
    """
    if costs is None:
        return ""
    ratios = {cost.option: cost.ratio for cost in costs.costs}
    ops = ratios.pop("ops", None)
    if ops is None:
        return f"not known by option: {costs.reason}" if costs.reason else ""
    everything = ratios.pop("all", None)
    parts = [f"ops {ops.median:.2f}x"]
    for name, one in ratios.items():
        added = one.median - ops.median  # no option makes a step faster: a negative value is measurement noise
        parts.append(f"{name} {f'+{added:.2f}x' if added >= 0.005 else 'nothing that shows'}")
    if everything is not None:
        parts.append(f"together {everything.median:.2f}x ({format_ratio_range(everything.low, everything.high)})")
    return f"{', '.join(parts)} of the unprofiled step, by {counted(ops.n, 'window')} of each"


def peak_memory(totals: Totals, device: Device) -> str:
    """The most memory in use at once; nothing where it is not known."""
    if totals.peak_memory_bytes is None:
        return ""
    whose = "resident in the process" if device.kind == "cpu" else "allocated on the device"
    note = f" ({totals.peak_memory_reason})" if totals.peak_memory_reason else ""
    return f"{format_si(totals.peak_memory_bytes, 'B')} {whose} at most{note}"


PEAK_SOURCES = {
    "measured": "measured on this machine",
    "datasheet": "from the vendor's datasheet",
    "derived": "derived from the device's properties",
    "user": "given by the user",
}

_LONGEST_NAME = 80
_LEAST_REACHED = 0.001
_LEAST_ELSEWHERE, _LEAST_HELD, _MOST_OF_REST = 0.005, 0.05, 0.5
_MODELLED_ENOUGH = 0.95  # with less, FLOPs and bytes are missing from the totals

Facts = tuple[tuple[str, str], ...]


def headline(verdict: Verdict) -> str:
    """The bound of the step, and how close its kernels are to their roof."""
    if verdict.bound in {"mixed", "inconclusive"}:
        return verdict.bound
    likely = "probably " if verdict.is_guess else ""
    return f"{likely}{verdict.bound}-bound" + (f", {REGIMES[verdict.regime].words}" if verdict.regime else "")


def facts(analysis: Analysis) -> Facts:
    """Label and text of each fact about how the numbers came about."""
    device, recording = analysis.device, analysis.recording
    count = f"{device.count} x " if device.count > 1 else ""
    phases = zip(analysis.phases, percents([phase.share for phase in analysis.phases]), strict=False)
    ranks = f"{recording.world_size} ranks" if (recording.world_size or 1) > 1 else ""
    extra = ", ".join(filter(None, (recording.framework, recording.created, ranks)))
    rows = (
        ("step", _step(analysis.steps, is_beside_load=analysis.has_load_taken_off)),
        ("window", window(analysis.steps)),
        ("run", describe_run(analysis.run, analysis.steps.count, analysis.start_up, comparable_step_us(analysis))),
        ("varies", variation(analysis.steps)),
        ("left out", left_out(analysis.steps)),
        ("kept", windows(analysis.steps)),
        ("profiler", option_costs(analysis.option_costs)),
        ("phases", ", ".join(f"{phase.name} {share}" for phase, share in phases)),
        ("device", f"{count}{device.name or 'not named by the trace'}"),
        ("peaks", _peaks(analysis)),
        ("reached", _reached(analysis)),
        ("library", libraries(analysis.kernels)),
        ("memory", peak_memory(analysis.totals, device)),
        ("sensors", _sensors(analysis)),
        ("host", _host(analysis.telemetry)),
        ("input", f"{recording.path} ({extra})" if extra else recording.path),
    )
    return tuple((label, text) for label, text in rows if text)


def _timing(timing: Timing) -> str:
    spread = f", {format_us(timing.low)} to {format_us(timing.high)}" if timing.n > 1 else ""
    return f"{format_us(timing.median)} (median of {timing.n}{spread})"


def _step(times: StepTimes, *, is_beside_load: bool = False) -> str:
    if is_beside_load and times.profiled_us is not None:
        return f"{_timing(times.profiled_us)} while profiled, beside other programs"
    if times.unprofiled_us is None:
        profiled = f"{_timing(times.profiled_us)} while profiled; " if times.profiled_us else ""
        return f"{profiled}not timed without the profiler"
    unsettled = " (step times still had a trend)" if times.settled is False else ""
    parts = [f"{_timing(times.unprofiled_us)} without the profiler{unsettled}"]
    if times.profiled_us:
        parts.append(f"{_timing(times.profiled_us)} with it")
        if times.unprofiled_us.median > 0:
            ratio = times.profiled_us.median / times.unprofiled_us.median
            parts.append(f"that is {'<0.01' if 0 < ratio < 0.005 else f'{ratio:.2f}'} times as long")
    return "; ".join(parts)


def _peaks(analysis: Analysis) -> str:
    device = analysis.device
    figures = [
        f"{peak_name(roof.key, device.kind)} {format_si(roof.flops_per_s, 'FLOP/s')}" for roof in roofs(analysis)
    ]
    if device.bandwidth_bytes_per_s is not None:
        figures.append(f"memory {format_si(device.bandwidth_bytes_per_s, 'B/s')}")
    if device.launch_floor_us is not None:
        figures.append(f"launch {format_us(device.launch_floor_us)}")
    if not figures:
        return "not known for this device, so no floors can be computed"
    return f"{', '.join(figures)}; {PEAK_SOURCES.get(device.source or '', 'of unknown origin')}"


_MOST_LIBRARIES = 6


def libraries(kernels: Sequence[KernelSummary]) -> str:
    """The libraries that compute the kernels, by their share of the time.

    Empty where none is known.
    """
    times = library_times(kernels)
    total, unknown_us = math.fsum(times.values()), times.pop(None, 0.0)
    if not times or total <= 0:
        return ""
    names, us_of_names = [*times], [*times.values()]
    if len(names) > _MOST_LIBRARIES:
        names[_MOST_LIBRARIES:] = [f"{len(names) - _MOST_LIBRARIES} more"]
        us_of_names[_MOST_LIBRARIES:] = [math.fsum(us_of_names[_MOST_LIBRARIES:])]
    *shares, unknown, _ = percents([us / total for us in (*us_of_names, unknown_us)])
    shown = ", ".join(f"{name} {share}" for name, share in zip(names, shares, strict=True))
    return "; ".join(filter(None, (shown, f"{unknown} unknown" if unknown_us > 0 else "")))


def reached(analysis: Analysis) -> list[tuple[str, str, str]]:
    """Gives the shares of peaks that the step reached.

    Each is "at least " or nothing, the share, and the peak. Where much of the work is unmodelled a share is a lower
    bound, and left out where that bound says nothing.
    """
    totals = analysis.totals
    name = "arithmetic" if totals.peak is None else peak_name(totals.peak, analysis.device.kind)
    peak = f"peak of {name}" if name.endswith("products") else f"{name} peak"
    shares = (
        (totals.model_flops_utilization, f"{peak} (MFU)"),
        (totals.bandwidth_utilization, "memory bandwidth"),
    )
    modelled = analysis.coverage.modelled_share
    least = "at least " if modelled is not None and modelled < _MODELLED_ENOUGH else ""
    return [
        (least, format_share(share), what)
        for share, what in shares
        if share is not None and not (least and share < _LEAST_REACHED)
    ]


def _reached(analysis: Analysis) -> str:
    shares = reached(analysis)
    words = " and ".join(f"{share} of the {peak}" for _, share, peak in shares)
    return f"{shares[0][0]}{words}, over the whole step" if shares else ""


# The usual step of the run is that of the recording where they differ by no more than this.
_LIKE = 1.5


def comparable_step_us(analysis: Analysis) -> float | None:
    """Returns the recorded step as one of the run's.

    Null where waits for other programs were taken off it alone.
    """
    return None if analysis.has_load_taken_off else analysis.steps.wall_us


def are_usual(run: RunSteps, step_us: float | None) -> bool:
    """True where steps of so long are like the usual one of the run.

    So is a step that cannot be compared with it (null).
    """
    return step_us is None or run.typical_us / _LIKE <= step_us <= run.typical_us * _LIKE


def describe_run(
    run: RunSteps | None, recorded: int, start: StartLedger | None = None, step_us: float | None = None
) -> str:
    """Describes the part of the run that the recorded steps represent.

    Also says where the rest is. First steps that were not sampled compiled code, where that took as long. Nothing where
    the run was not followed. Steps that grow are typical of no part of it: their growth is told instead. So is the
    usual step of the run where the recorded ones, of ``step_us`` without the profiler, are far from it.
    """
    if run is None:
        return ""
    held_share = run.held_us / run.total_us if run.total_us > 0 else 0.0
    steps = f"the {recorded} recorded steps are" if recorded != 1 else "the recorded step is"
    usual_us = run.typical_us
    if run.growth is not None:
        text = run.growth.words()  # no step is typical of such a run
    elif step_us is not None and not are_usual(run, step_us):
        text = f"{steps} {'longer' if step_us > usual_us else 'shorter'} than usual: half of the run's steps take "
        text += f"{format_us(usual_us)} or less"
    else:
        text = f"{steps} typical of {format_share(1 - run.elsewhere_share - held_share)} of the run"
    if run.elsewhere_share >= _LEAST_ELSEWHERE:
        where = ", ".join(
            f"{place.words()} ({format_share(place.share * run.elsewhere_share)})" for place in run.named_places()[:2]
        )
        compiled_us = 0.0 if start is None else start.seconds("compile") * 1e6
        if where:
            rest = f"from its first step to its last is elsewhere: {where}"
        elif compiled_us >= _MOST_OF_REST * run.elsewhere_us:
            rest = f"is in first steps, most of it compiling code ({format_us(compiled_us)} of the whole start)"
        else:
            rest = "is in steps far longer than usual, which were not sampled"
        text += f"; {format_share(run.elsewhere_share)} {rest}"
    if held_share >= _LEAST_HELD:
        text += f"; {format_share(held_share)} is in steps that were held up, by other programs or threads as a rule"
    return text


def _sensors(analysis: Analysis) -> str:
    telemetry = analysis.telemetry
    if telemetry is None:
        return ""
    clock, power, used = telemetry.sm_clock_mhz, telemetry.power_w, telemetry.utilization
    energy, error = telemetry.energy_j, telemetry.energy_error_j
    parts = [
        "" if clock is None else f"{clock:.0f} MHz",
        "" if telemetry.temperature_c is None else f"{telemetry.temperature_c:.0f} C",
        "" if power is None else f"{power:.0f} W",
        "" if energy is None or error is None else f"{energy:.3g} J per step (give or take {error:.1g} J)",
        "" if used is None else f"busy {format_share(used)} by its own counter",
        _activity(telemetry, analysis.totals),
        f"throttled: {', '.join(telemetry.throttle)}" if telemetry.throttle else "",
    ]
    return ", ".join(filter(None, parts))


def _activity(telemetry: TelemetrySummary, totals: Totals) -> str:
    """Describes activity of SMs, tensor cores and DRAM.

    It is that by the device's own counters, beside what the modelled work accounts for.
    """
    units = (
        ("SMs", telemetry.sm_activity, None),
        ("tensor cores", telemetry.tensor_activity, totals.model_flops_utilization),
        ("DRAM", telemetry.dram_activity, totals.bandwidth_utilization),
    )
    phrases = [
        f"{unit} {format_share(share)}" + ("" if modelled is None else f" (modelled: {format_share(modelled)})")
        for unit, share, modelled in units
        if share is not None
    ]
    return f"active: {', '.join(phrases)}" if phrases else ""


# Threads on average: fewer wait for a processor on a quiet machine too.
_WORTH_WAITS = 0.05


def _host(telemetry: TelemetrySummary | None) -> str:
    if telemetry is None:
        return ""
    own, all_busy, clock = telemetry.process_processors, telemetry.host_utilization, telemetry.cpu_clock_mhz
    resident, waits = telemetry.process_memory_bytes, telemetry.process_waits or 0.0
    parts = [
        "" if own is None else f"the program kept {own:.2f} processors busy",
        "" if waits < _WORTH_WAITS else f"{waits:.2f} of its threads waited for one",
        "" if all_busy is None else f"the machine's were {format_share(all_busy)} busy in all",
        "" if clock is None else f"{clock:.0f} MHz",
        "" if resident is None else f"{format_si(resident, 'B')} resident",
    ]
    return ", ".join(filter(None, parts))


def coverage(analysis: Analysis) -> ListSection:
    """The modelled shares of the busy time, and the largest unmodelled work."""
    covered = analysis.coverage
    shares = (("is attributed to ops", covered.linked_share), ("has a known cost", covered.modelled_share))
    parts = [f"{format_share(share)} {word}" for word, share in shares if share is not None and share < 1]
    if all(share is None for _, share in shares):
        lead = "How much of the busy time is understood is not known."
    elif not parts:
        lead = "All of the busy time is attributed to ops, and the cost of all of it is known."
    else:
        lead = f"Of the busy time: {', '.join(parts)}."
    worst, lines = sorted(covered.unknown, key=lambda work: -work.us), []
    for work in worst[:3]:
        # Only names of kernels with all their template arguments are longer.
        name = work.name if len(work.name) <= _LONGEST_NAME else short_names([work.name], _LONGEST_NAME)[0]
        lines.append(f"{format_us(work.us)} {name}: {work.reason}")
    more = [f"{len(worst) - 3} more unmodelled"] if len(worst) > 3 else []
    return ListSection("Coverage", ((lead, *lines, *more),))


def _by_share(all_caveats: Sequence[Caveat]) -> list[Caveat]:
    return sorted(all_caveats, key=lambda caveat: -(caveat.share or 0.0))


def caveats(analysis: Analysis) -> ListSection | None:
    """The limits of this analysis, the one that affects most of the step first."""
    texts = []
    for caveat in _by_share(analysis.caveats):
        touched = "" if caveat.share is None else f" (touches {format_share(caveat.share)} of the step)"
        texts.append(f"{as_sentence(caveat.message)}{touched} [{caveat.slug}]")
    return ListSection("Caveats", tuple((text,) for text in texts)) if texts else None


def trust(analysis: Analysis, most: int, where: str = "", characters: int | None = None) -> ListSection:
    """Describes how much of the work is understood, with the main caveats.

    They are those that affect most of the step, at most so many. ``where`` says where the others are, ``characters``
    limits the text of each.
    """
    ((lead, *_),) = coverage(analysis).items
    all_caveats = caveats(analysis)
    texts = [] if all_caveats is None else [text for (text,) in all_caveats.items]
    shown = [text if characters is None else cut_text(text, characters) for text in texts[:most]]
    hidden = len(texts) - most
    more = [f"{counted(hidden, 'more caveat')}{where}."] if hidden > 0 else []
    return ListSection("How far to trust this", tuple((text,) for text in (lead, *shown, *more)))


def trust_in_brief(analysis: Analysis, characters: int) -> str:
    """Says in a line how far to trust the report.

    It has the number of caveats, and the main one where that has at most so many characters; else their names, where
    they fit into two lines.
    """
    caught = caveats(analysis)
    texts = [] if caught is None else [text for (text,) in caught.items]
    ((lead, *_),) = coverage(analysis).items
    if not texts:
        return lead
    if len(texts[0]) <= characters:
        return f"{lead} {counted(len(texts), 'caveat')}: {texts[0]}"
    names = ", ".join(caveat.slug for caveat in _by_share(analysis.caveats))
    named = f"{lead} {counted(len(texts), 'caveat')}: {names}."
    return named if len(named) <= _TWO_LINES else f"{lead} {counted(len(texts), 'caveat')}."


_TWO_LINES = 156
HOPS = 5  # of the critical path
_PLACES = 6  # lines and modules: enough to see where to look, since the JSON has them all
# Facts that stand on the screen too: without it the report would hide what the recorded steps do not show.
WHOLE_FACTS = ("run",)


def build(analysis: Analysis, top: int = 10, *, all_findings: bool = False) -> Document:
    """Builds the document of an analysis.

    It has at most ``top`` rows in the tables that could grow without end. ``all_findings`` shows those too that the
    run's noise would hide, and all that follow the first few.
    """
    analysis = with_attribute_paths(analysis)
    verdict = analysis.verdict
    sections: tuple[Section | None, ...] = (
        ledger_bar(analysis, tables.ledger(analysis)),
        findings(analysis, all_findings=all_findings),
        no_gain(analysis.no_gain),
        tables.measured_pieces(analysis.pieces),
        batch_test(analysis.batch_test),
        start_up_table(analysis.start_up, analysis.source_texts),
        *compile_sections(analysis.compile_health, analysis.steps.wall_us),
        *serving_sections(analysis.serving),
        tables.phases(analysis),
        tables.user_ranges(analysis, top),
        tables.kernels(analysis, top),
        tables.idle(analysis, top),
        tables.critical_path(analysis.critical_path, HOPS),
        tables.queue_sparkline(analysis),
        tables.lines(analysis, _PLACES),
        tables.modules(analysis, _PLACES),
        tables.memory(analysis),
        tables.collectives(analysis, top),
        *job_sections(analysis),
        tables.ranks(analysis, top),
        coverage(analysis),
        caveats(analysis),
    )
    return Document(
        headline=headline(verdict if not verdict.clauses else replace(verdict, regime=None)),
        subject=about(analysis),
        sentence=verdict.sentence,
        lines=verdict_lines(verdict),
        tone=verdict.bound,
        facts=facts(analysis),
        facts_title="How the numbers came about",
        sections=tuple(filter(None, sections)),
        closing=_details(analysis.recording.path),
        ending=ending(verdict),
    )


_ONE_LINE = 80


def _details(path: str) -> str:
    """Says where all numbers are.

    The path is left out where it would break the line.
    """
    line = f"details: bottleneck report {shlex.quote(path)} --format json (or markdown)"
    return line if len(line) <= _ONE_LINE else "details: the same command with --format json (or markdown)"


def about(analysis: Analysis) -> str:
    """Says in one line what was analysed: its name, device, steps and date."""
    device, recording, steps = analysis.device, analysis.recording, analysis.steps
    ranks = len(analysis.ranks)
    count = f"{device.count} x " if device.count > 1 and device.count != ranks else ""
    parts = (
        *recording_names([PurePath(recording.path).name or recording.path]),
        f"{ranks} ranks" if ranks > 1 else "",
        f"{count}{without_signs(device.name)}" if device.name else "device not named by the trace",
        counted(steps.count, "step"),
        "" if recording.created is None else recording.created[: len("2026-01-31")],
    )
    return " · ".join(filter(None, parts))


def verdict_lines(verdict: Verdict) -> tuple[LabelledLine, ...]:
    """Gives the verdict line by line.

    The first says what holds the step back. A clause that goes on after a comma or a semicolon stays in its line.
    """
    rows: list[tuple[Clause, str]] = []
    for clause in verdict.clauses:
        if rows and rows[-1][0].role == "bound" and clause.joiner == ": ":
            rows[-1] = (rows[-1][0], clause.text)  # the headline has the word before the colon
        elif rows and clause.joiner != ". ":
            head, text = rows[-1]
            rows[-1] = (head, f"{text}{clause.joiner}{clause.words}")
        else:
            rows.append((clause, clause.text))
    if not rows:
        return (LabelledLine("", verdict.sentence),)
    # What must be known before the verdict is read stands behind it where the eye goes to the verdict first.
    leading = next((at for at, (clause, _) in enumerate(rows) if clause.role in {"late_rank", "bound"}), 0)
    ordered = [rows[leading], *rows[:leading], *rows[leading + 1 :]]
    lines = [
        LabelledLine(
            clause.label or _LABELS.get(clause.role, "Note"),
            text if clause.role == "place" else f"{text[:1].upper()}{text[1:]}",  # a place begins with a name
        )
        for clause, text in ordered
    ]
    return (LabelledLine("", lines[0].text), *lines[1:])


# Of clauses without a label of their own, where they have a line to themselves.
_LABELS: Mapping[str, str] = {"bound": "Step", "cause": "Why", "cut_off": "Cut", "pace": "Load", "sure": "Sure"}


def ending(verdict: Verdict) -> tuple[str, ...]:
    """Repeats the verdict and the first step, for the end of a terminal."""
    lines = verdict_lines(verdict)
    first = next((f"{clause.words}." for clause in verdict.clauses if clause.role == "first"), None)
    return (f"{headline(verdict).upper()}: {lines[0].text}.", *((first,) if first else ()))


def ledger_bar(analysis: Analysis, table: TableSection | None = None) -> BarSection:
    """Builds the bar of the ledger's groups.

    A table stands beneath it, or its legend.
    """
    tenths = share_tenths(analysis.ledger)
    members = {group: [entry for entry in analysis.ledger if entry.group == group] for group in GROUPS}
    parts = tuple(
        (group, math.fsum(entry.share for entry in entries), describe_share(tenths, entries))
        for group, entries in members.items()
        if any(entry.us > 0 for entry in entries)
    )
    title = "" if table is None else table.title
    return BarSection(
        title, tuple(sorted(parts, key=lambda part: -part[1])), None if table is None else replace(table, title="")
    )


def to_terminal(analysis: Analysis, style: TerminalStyle = PLAIN, *, all_findings: bool = False) -> str:
    """Renders the report as text.

    Escape sequences appear in it only where the style has colour.
    """
    return terminal.render(build(analysis, all_findings=all_findings), style)


def to_markdown(analysis: Analysis, *, all_findings: bool = False) -> str:
    """The report as markdown for a comment on a pull request."""
    return markdown.render(build(analysis, all_findings=all_findings))
