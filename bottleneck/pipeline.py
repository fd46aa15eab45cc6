"""The only code that knows the order of the stages: from paths to one Analysis."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bottleneck import __version__
from bottleneck.advice import advise
from bottleneck.analysis.batch_test import add_extras, find_disturbance, find_page_faults
from bottleneck.analysis.ledger import build_ledger
from bottleneck.analysis.ranks import RankedAnalysis, combine_ranks
from bottleneck.analysis.roofline import classify
from bottleneck.analysis.scaling import untax
from bottleneck.analysis.summary import Evidence, assemble, charge_rows
from bottleneck.analysis.telemetry import MARGIN_NS, Stretch, find_conditions, find_contention, summarise_samples
from bottleneck.analysis.verdict import with_findings
from bottleneck.cost import compute_costs
from bottleneck.cost.attribution import attribute
from bottleneck.cost.graph_replay import CostedTrace, assign_replayed_costs
from bottleneck.cost.inductor_cpp import add_kernels
from bottleneck.cost.shape_inference import infer_shapes
from bottleneck.devices.match import match_device
from bottleneck.errors import TraceError, UsageError
from bottleneck.report.analysis_json import from_json
from bottleneck.schema.analysis import Analysis, Caveat, Device, RecordingInfo, TelemetrySummary
from bottleneck.schema.case import Case
from bottleneck.schema.compiled_kernels import Compiled, compiled_file, is_compiled_file, read_compiled
from bottleneck.schema.linked_trace import Linked, Trace
from bottleneck.schema.measurements import Extras, Timing
from bottleneck.schema.recording import RankTrace, Recording, extras_of, is_recording, read_recording
from bottleneck.schema.telemetry import read_samples
from bottleneck.trace.link import link
from bottleneck.trace.read import read_trace
from bottleneck.trace.steps import find_steps, whole_window


@dataclass(frozen=True)
class Options:
    """What the command line may ask of an analysis.

    ``device`` overrules what the trace says; ``steps`` chooses among the steps found, by position. ``captures`` are
    traces of the captures of graphs that the program replays.
    """

    whole: bool = False
    device: Device | None = None
    steps: slice | None = None
    captures: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Source:
    """One rank's trace on disk, the recording that it belongs to, if any, and the kernels that its program compiled.

    ``marks_ns``, ``unprofiled`` and ``timed_ns`` are what the recording says of this rank.
    """

    trace: Path
    recording: Recording | None = None
    marks_ns: tuple[int, ...] | None = None
    compiled: Compiled | None = None
    unprofiled: Timing | None = None
    timed_ns: tuple[int, int] | None = None
    extras: Extras | None = None


def analyse(paths: Sequence[Path], options: Options | None = None) -> Analysis:
    """The analysis of a trace, a recording, several rank traces, or a saved analysis.

    Raises TraceError when something cannot be read or is no trace, UsageError when the paths make no sense together.
    """
    saved = saved_analysis(paths, options)
    return explain(paths, options).analysis if saved is None else saved


def saved_analysis(paths: Sequence[Path], options: Options | None = None) -> Analysis | None:
    """The finished analysis that the one path is a file of; null where none is. Raises as ``analyse`` does."""
    saved = [path for path in paths if path.is_file() and _is_saved_analysis(path)]
    if saved and len(paths) > 1:
        raise UsageError(
            f"{saved[0]} is a finished analysis and cannot be combined with other inputs",
            fix="pass the traces themselves, or this one file alone",
        )
    if saved and options is not None and options.steps is not None:
        raise UsageError(
            f"{saved[0]} is a finished analysis, whose steps were chosen when it was made",
            fix="pass the trace or recording that it was made from",
        )
    return from_json(saved[0].read_text(encoding="utf-8")) if saved else None


def explain(paths: Sequence[Path], options: Options | None = None) -> Case:
    """The analysis of traces or a recording with its findings and its evidence; raises as ``analyse`` does.

    With several ranks the analysis is of all, the tables of the rank that sets the pace.
    """
    sources = [source for path in paths for source in locate(path)]
    cases = [_analyse_source(source, options or Options()) for source in sources]
    if len(cases) == 1:
        return replace(cases[0], analysis=with_findings(cases[0].analysis, advise(cases[0])))
    combined = combine_ranks([RankedAnalysis(case.linked, case.analysis) for case in cases])
    # The rank that sets the pace gives the body, but the same report comes from the folder of all of them.
    path = str(paths[0]) if len(paths) == 1 else combined.recording.path
    combined = replace(combined, recording=replace(combined.recording, path=path, world_size=len(cases)))
    body = next((case for case in cases if case.analysis.kernels is combined.kernels), cases[0])
    whole = replace(body, analysis=combined)
    return replace(whole, analysis=with_findings(combined, advise(whole)))


def locate(path: Path) -> list[Source]:
    """The traces that a path stands for: itself, those of a recording, or every trace in a folder."""
    if not path.is_dir():
        return [Source(path)]
    if is_recording(path):
        recording = read_recording(path)
        return [_of_rank(path, recording, trace) for trace in recording.traces] or _no_trace(path)
    found = sorted(file for pattern in ("*.json", "*.json.gz") for file in path.glob(pattern))
    return [Source(file) for file in found if _is_trace(file)] or _no_trace(path)


def _of_rank(folder: Path, recording: Recording, trace: RankTrace) -> Source:
    # Recordings of one rank once kept its step times for the whole recording only.
    is_alone = len(recording.traces) == 1
    return Source(
        trace=folder / trace.file,
        recording=recording,
        marks_ns=trace.step_marks_ns or None,
        compiled=read_compiled(folder / compiled_file(trace.rank)),
        unprofiled=trace.unprofiled or (recording.unprofiled if is_alone else None),
        timed_ns=trace.timed_ns or (recording.timed_ns if is_alone else None),
        extras=extras_of(recording) if trace.rank == recording.traces[0].rank else None,
    )


def _is_trace(path: Path) -> bool:
    return path.is_file() and not is_compiled_file(path) and not _is_saved_analysis(path)


def _no_trace(path: Path) -> list[Source]:
    raise TraceError(
        f"{path} holds no trace",
        why="the folder has neither recording.json with a trace nor files ending in .json or .json.gz",
        fix="name a trace file, or record one: bottleneck run FILE",
    )


def _is_saved_analysis(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return b'"bottleneck/analysis/' in file.read(200)
    except OSError:  # the reader says why, with a remedy
        return False


def _analyse_source(source: Source, options: Options) -> Case:
    trace = read_trace(source.trace)
    window = whole_window(trace) if options.whole else find_steps(trace, source.marks_ns, options.steps)
    device, caveats = _choose_device(trace, source.recording, options)
    unprofiled = None if options.whole else source.unprofiled
    linked = infer_shapes(untax(link(trace, window), unprofiled, device.launch_floor_us))
    costs = compute_costs(linked.trace.signatures)
    if source.compiled is not None:
        linked, costs = add_kernels(linked, costs, source.compiled)
    attribution = attribute(linked.ops, linked.kernels, costs)
    lent, borrowed = assign_replayed_costs(
        CostedTrace(linked, costs, attribution), [_read_capture(path) for path in options.captures]
    )
    linked, costs, attribution = lent.linked, lent.costs, lent.attribution
    telemetry, complaints = _hear_sensors(source, linked, unprofiled)
    conditions, slow = find_conditions(device, telemetry)
    roofline = classify(linked.kernels, linked.ops, costs, attribution, device, conditions)
    result = build_ledger(linked, roofline, device)
    threads = None if source.recording is None else source.recording.threads
    contended = find_contention(telemetry, threads, result, roofline["explained"].to_numpy(dtype=np.float64))
    evidence = Evidence(
        linked=linked,
        costs=costs,
        attribution=attribution,
        roofline=roofline,
        result=result,
        device=device,
        recording=_describe(source),
        unprofiled=unprofiled,
        caveats=(*caveats, *borrowed, *complaints, *_disturbances(source, unprofiled, device), *contended, *slow),
    )
    charged = charge_rows(evidence)
    analysis = replace(assemble(evidence, charged), telemetry=telemetry, version=__version__)
    if source.recording is not None and not options.whole:
        analysis = _with_boundary(analysis, source.recording)
    if source.extras is not None and not options.whole:
        analysis = add_extras(analysis, source.extras)
    return Case(analysis, linked, costs, attribution, roofline, source.recording, charged.table())


def _with_boundary(analysis: Analysis, recording: Recording) -> Analysis:
    """The analysis that tells what ended a step of the program, as the harness saw it."""
    return replace(analysis, steps=replace(analysis.steps, boundary=recording.step_name, seen=recording.steps_seen))


def _disturbances(source: Source, unprofiled: Timing | None, device: Device) -> tuple[Caveat, ...]:
    extras = source.extras or Extras()
    return find_disturbance(extras, unprofiled) + find_page_faults(extras, device.fresh_bytes_per_s)


def _read_capture(path: Path) -> CostedTrace:
    """The calls of another trace, from which twins are taken."""
    trace = read_trace(path)
    linked = infer_shapes(link(trace, whole_window(trace)))
    costs = compute_costs(linked.trace.signatures)
    return assign_replayed_costs(CostedTrace(linked, costs, attribute(linked.ops, linked.kernels, costs)))[0]


_NO_CEILINGS = (
    "the ceilings of this CPU were not measured, so no kernel is judged against them; `bottleneck calibrate` measures "
    "them once on the machine that recorded this, and the next report there uses them"
)


def _choose_device(trace: Trace, recording: Recording | None, options: Options) -> tuple[Device, tuple[Caveat, ...]]:
    if options.device is not None:
        return options.device, ()
    measured = None if recording is None else recording.device
    if measured is not None and measured.kind == trace.flavour == "cpu":
        return measured, ()
    used = trace.device_args["device"].dropna().unique()
    device, caveats = match_device(trace.devices, [int(index) for index in used], trace.flavour)
    if recording is not None and trace.flavour == "cpu":
        caveats = (Caveat("unknown-device", _NO_CEILINGS),)
    if measured is None or _kind_of(measured) != _kind_of(device):
        return device, caveats
    # What is doubtful about a data sheet does not touch what was measured.
    mixed = tuple(caveat for caveat in caveats if caveat.slug == "mixed-devices")
    return replace(measured, count=device.count), mixed


def _kind_of(device: Device) -> tuple[str, str, int | None]:
    return device.kind, device.name, device.sm_count


def _hear_sensors(
    source: Source, linked: Linked, unprofiled: Timing | None
) -> tuple[TelemetrySummary | None, tuple[Caveat, ...]]:
    """What the recording's sensors said while the steps of the window ran, and while they ran unprofiled."""
    recording = source.recording
    if recording is None or recording.sampling is None:
        return None, ()
    stretches = _stretches(source, linked, unprofiled)
    spans_ns = [(each.start_ns - MARGIN_NS, each.end_ns + MARGIN_NS) for each in stretches]
    try:
        samples = read_samples(source.trace.parent, spans_ns)
    except TraceError as exc:
        message = f"the log of the sensors cannot be used: {exc.why or exc.what}"
        return None, (Caveat("sensors-unreadable", message),)
    used = linked.trace.device_args["device"].dropna().unique()
    sensors = [recording.sampling.sensors[index] for index in map(int, used) if index in recording.sampling.sensors]
    return summarise_samples(samples, stretches, sensors), ()


def _stretches(source: Source, linked: Linked, unprofiled: Timing | None) -> tuple[Stretch, ...]:
    """The window on the wall clock, and the unprofiled steps, which ran on their own."""
    zero_ns, window = linked.trace.start_unix_ns, linked.window
    stretches = []
    if zero_ns is not None:
        start_ns, end_ns = (zero_ns + 1e3 * at_us for at_us in (window.start_us, window.end_us))
        stretches.append(Stretch(start_ns, end_ns, max(1, len(window.steps))))
    if source.timed_ns is not None and unprofiled is not None:
        stretches.append(Stretch(*source.timed_ns, unprofiled.n))
    return tuple(stretches)


def _describe(source: Source) -> RecordingInfo:
    recording = source.recording
    return RecordingInfo(
        path=str(source.trace if recording is None else source.trace.parent),
        kind="trace" if recording is None else "run",
        framework=None if recording is None else recording.framework,
        created=None if recording is None else recording.created,
        world_size=None,
    )


def examine(source: Source, options: Options | None = None) -> Case:
    """One trace and what was made of it, for those who ask about the trace itself; raises as ``analyse`` does."""
    return _analyse_source(source, options or Options())
