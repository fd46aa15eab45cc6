"""Runs the stages in order, from paths to one Analysis.

No other code knows their order.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
import pandas as pd

from bottleneck import __version__
from bottleneck.advice import advise
from bottleneck.advice.no_gain import find_no_gain
from bottleneck.advice.servers import find_server
from bottleneck.analysis.batch_test import (
    add_measurements,
    find_disturbance,
    find_page_faults,
    find_work_elsewhere,
    time_page_faults,
)
from bottleneck.analysis.between_ops import Stretches, quick_part
from bottleneck.analysis.bound import find_bound, grounds_of
from bottleneck.analysis.compile_regions import price_compile
from bottleneck.analysis.counter_tracks import hold_against_model, read_counters
from bottleneck.analysis.host import Host, read_host
from bottleneck.analysis.kernel_rows import signature_of, time_kernels
from bottleneck.analysis.ledger import LedgerResult, build_ledger
from bottleneck.analysis.libraries import name_libraries
from bottleneck.analysis.load import find_load, quick_stretches, quicken, without_load, without_stalls
from bottleneck.analysis.roofline import classify
from bottleneck.analysis.scaling import (
    find_held_up_timing,
    find_profiler_cost,
    measure_light,
    own_parts,
    scale_to_unprofiled,
    subtract_profiler_overhead,
)
from bottleneck.analysis.summary import assemble
from bottleneck.analysis.telemetry import (
    Conditions,
    find_conditions,
    find_contention,
    find_contention_of_short_steps,
    read_telemetry,
    samples_of_trace,
    tell_profiler_from_load,
)
from bottleneck.analysis.verdict import decide, describe_sides
from bottleneck.cost import compute_costs
from bottleneck.cost.attribution import attribute
from bottleneck.cost.fusion import find_loops
from bottleneck.cost.graph_replay import CostedTrace, assign_replayed_costs
from bottleneck.cost.shape_inference import infer_shapes
from bottleneck.devices.match import choose_device
from bottleneck.errors import BottleneckError, TraceError, UsageError
from bottleneck.mapping.rank_reading import RankReading, stamp
from bottleneck.report import lazily
from bottleneck.report.json_text import from_json
from bottleneck.schema.analysis import ONE_SIDE, TWO_SIDED, Analysis, Caveat, Finding, RecordingInfo
from bottleneck.schema.compiled_kernels import Compiled
from bottleneck.schema.device import Device
from bottleneck.schema.digest import RankDigest, StepSharing
from bottleneck.schema.evidence import (
    Annotations,
    AtAnyPace,
    Evidence,
    Explanation,
    PricedCalls,
    ShorterKernels,
    TwoSided,
    conclude,
)
from bottleneck.schema.inference import ServerMetrics
from bottleneck.schema.intervals import Floats
from bottleneck.schema.job import LeftOut
from bottleneck.schema.linked_trace import Linked, Trace, Window
from bottleneck.schema.records import replace
from bottleneck.schema.sources import TraceSource, find_traces, is_saved_analysis
from bottleneck.schema.step_tracks import StepTimeline
from bottleneck.system.files import cannot_read, is_remote, read_file
from bottleneck.trace.inflate import ignore_progress
from bottleneck.trace.link import link
from bottleneck.trace.rare_names import fold_rare_names
from bottleneck.trace.read import read_trace
from bottleneck.trace.steps import choose_side, find_steps, side_options, stretch, whole_window
from bottleneck.units import counted


@dataclass(frozen=True)
class Options:
    """Options of an analysis, as the command line has them.

    ``whole`` takes the whole trace as one step, ``stretch_us`` what lies between two instants after its first event
    (null: its first or last event); ``steps`` chooses among the steps found, by position. ``device`` overrules what
    the trace states. ``captures`` are traces of the captures of graphs that the program replays. ``split`` allows to
    judge one side of a window that has two. ``jobs`` processes decode a large trace; the result is the same.
    ``critical_path`` asks for that of the step, which the first screen of a report does not show. ``metrics`` are those
    of the inference server that the trace is of.
    """

    whole: bool = False
    device: Device | None = None
    steps: slice | None = None
    captures: tuple[Path, ...] = ()
    stretch_us: tuple[float | None, float | None] | None = None
    split: bool = True
    jobs: int = 1
    critical_path: bool = True
    metrics: ServerMetrics | None = None

    @property
    def has_own_window(self) -> bool:
        """True where the window is not made of the steps that the recording measured."""
        return self.whole or self.stretch_us is not None


DEFAULTS = Options()
# Notebooks ask a value for its page by this name. Records import no stage, so the last stage is named here.
Analysis._repr_html_ = lazily("page", "first_screen")  # type: ignore[attr-defined]
# A report of more events than this leaves the replay to `bottleneck whatif`.
_MOST_REPLAYED_EVENTS = 1_000_000
# Another rank's trace of this size takes a few seconds, for its lanes in the page alone.
_LARGEST_OTHER_RANK_BYTES = 16 * 2**20
# Those of the largest public traces take 3 MB.
_LARGEST_ANALYSIS_BYTES = 256 * 2**20


class OnTrace(Protocol):
    """Called as traces are read.

    With the number of those done, of all, the path of one, and the bytes read of it.
    """

    def __call__(self, done: int, total: int, path: Path, read_bytes: int = 0, size_bytes: int = 0, /) -> None:
        """Takes how far the reading is."""


def _tell_nobody(_done: int, _total: int, _path: Path, _read_bytes: int = 0, _size_bytes: int = 0, /) -> None:
    """Tells nobody how far the reading is."""


def analyse(
    paths: Sequence[Path],
    options: Options | None = None,
    on_trace: OnTrace = _tell_nobody,
    reading: RankReading | None = None,
) -> Analysis:
    """The analysis of a trace, a recording, several rank traces, or a saved analysis.

    ``on_trace`` is called before each trace is read, with the number of those done, of all, and its path, and while the
    only one is read also with the bytes read of those in its file; ``reading`` tells in which processes several ranks
    are read. Raises TraceError when something cannot be read or is no trace, UsageError when the paths make no sense
    together.
    """
    saved = saved_analysis(paths, options)
    return explain(paths, options, on_trace, reading).analysis if saved is None else saved


def saved_analysis(paths: Sequence[Path], options: Options | None = None) -> Analysis | None:
    """Reads the finished analysis that the one path is a file of.

    Null where none is. Raises as ``analyse`` does.
    """
    saved = [path for path in paths if is_saved_analysis(path)]
    if saved and len(paths) > 1:
        raise UsageError(
            f"{saved[0]} is a finished analysis and cannot be combined with other inputs",
            fix="pass the traces themselves, or this one file alone",
        )
    if saved and options is not None and options.metrics is not None:
        raise UsageError(
            f"{saved[0]} is a finished analysis, which takes no metrics",
            fix="pass the trace that it was made from, with --metrics",
        )
    if saved and options is not None and (options.steps is not None or options.stretch_us is not None):
        raise UsageError(
            f"{saved[0]} is a finished analysis, whose steps were chosen when it was made",
            fix="pass the trace or recording that it was made from",
        )
    return _read_analysis(saved[0]) if saved else None


def _read_analysis(path: Path) -> Analysis:
    try:
        return from_json(read_file(path, _LARGEST_ANALYSIS_BYTES).decode("utf-8", "replace"))
    except OSError as exc:
        raise cannot_read(path, exc) from exc


def explain(
    paths: Sequence[Path],
    options: Options | None = None,
    on_trace: OnTrace = _tell_nobody,
    reading: RankReading | None = None,
) -> Explanation:
    """Explains traces or a recording, with findings and evidence.

    Raises as ``analyse`` does. With several ranks the analysis is of all of them, the tables are those of the rank that
    sets the pace.
    """
    sources = [source for path in paths for source in find_traces(path)]
    options = options or DEFAULTS
    if len(sources) == 1:
        on_trace(0, 1, sources[0].trace)
        evidence = examine(sources[0], options, partial(on_trace, 0, 1, sources[0].trace))
    else:
        options = replace(options, split=False)
        of_rank = replace(options, jobs=1, critical_path=True)
        reading = reading or RankReading()
        digests, left_out = digest_all(sources, of_rank, on_trace, reading)
        from bottleneck.analysis.ranks import combine_ranks, reduce_ranks  # noqa: PLC0415 - for several ranks only

        sharing: StepSharing = "unknown"
        if options.steps is None and not options.has_own_window:
            digests, sharing = _on_shared_steps(digests, of_rank, on_trace, reading)
        reduced = reduce_ranks([one for one, _ in digests], left_out, sharing)
        pace = next(source for one, source in digests if one is reduced.pace)
        evidence = combine_ranks(examine(pace, options), reduced, path=str(paths[0]) if len(paths) == 1 else None)
    evidence = _with_bound(_with_serving(evidence, options.metrics))
    return finish_with_advice(_with_critical_path(evidence) if options.critical_path else evidence)


def _with_bound(evidence: Evidence) -> Evidence:
    decided = replace(evidence, bound=find_bound(grounds_of(evidence)).bound)
    decided.cache.update(evidence.cache)
    return decided


def _with_serving(evidence: Evidence, metrics: ServerMetrics | None) -> Evidence:
    """Returns the evidence with what limits an inference server.

    It is unchanged where it is of no server and has no metrics.
    """
    server = find_server(evidence)
    if server is None and metrics is None:
        return evidence

    from bottleneck.analysis.server_phases import summarize_serving  # noqa: PLC0415 - for servers only

    serving = summarize_serving(evidence, None if server is None else server.name, metrics)
    explained = replace(evidence, analysis=replace(evidence.analysis, serving=serving))
    explained.cache.update(evidence.cache)
    return explained


def _is_replayed(linked: Linked) -> bool:
    """True where a report replays the step.

    Of a larger trace it would take an eighth of the time and memory.
    """
    return len(linked.trace.events) <= _MOST_REPLAYED_EVENTS


def _with_critical_path(evidence: Evidence) -> Evidence:
    if not _is_replayed(evidence.linked):
        return evidence

    from bottleneck.simulate.whatif import find_critical_path  # noqa: PLC0415 - for reports that read a trace only

    return replace(evidence, analysis=replace(evidence.analysis, critical_path=find_critical_path(evidence)))


def _predict(evidence: Evidence, change: Sequence[str] | ShorterKernels | AtAnyPace) -> float | None:
    # Imported for findings that need a replay only.
    from bottleneck.simulate.whatif import gain_of_kernels_us, most_gain_us, predict_gain_us  # noqa: PLC0415

    if isinstance(change, ShorterKernels):
        return gain_of_kernels_us(evidence, change)
    if isinstance(change, AtAnyPace):
        return most_gain_us(evidence, change) if _is_replayed(evidence.linked) else None
    return predict_gain_us(evidence, change) if _is_replayed(evidence.linked) else None


def _price(evidence: Evidence, runs: Floats, dtype: str) -> PricedCalls:
    # Imported for findings on products in fp32 only.
    from bottleneck.predict.other_dtype import price_in_dtype  # noqa: PLC0415

    return price_in_dtype(evidence, runs, dtype)


def _digest_each(
    sources: Sequence[TraceSource],
    options: Options,
    on_trace: Callable[[int, int, Path], None],
    reading: RankReading,
) -> Iterator[tuple[int, RankDigest | BottleneckError]]:
    """Yields the digest of each source, or why it has none.

    By its position, as they get done.
    """
    options_text = "\n".join((repr(options), *map(stamp, options.captures)))
    return reading.results(partial(digest, options=options), sources, options_text, on_trace)


def digest_all(
    sources: Sequence[TraceSource],
    options: Options,
    on_trace: Callable[[int, int, Path], None],
    reading: RankReading,
) -> tuple[list[tuple[RankDigest, TraceSource]], list[LeftOut]]:
    """Returns the digests of the ranks, each with its source.

    And those that could not be used, by path. Neither depends on the workers or on the order of the sources. Raises
    TraceError or UsageError where none can be used, WorkloadError where the workers were lost.
    """
    results = dict(_digest_each(sources, options, on_trace, reading))
    errors = [(sources[at], result) for at, result in results.items() if isinstance(result, BottleneckError)]
    digests = [(result, sources[at]) for at, result in results.items() if isinstance(result, RankDigest)]
    if not digests:
        raise _none_usable([error for _, error in sorted(errors, key=lambda pair: str(pair[0].trace))])
    from bottleneck.analysis.rank_numbers import number_ranks  # noqa: PLC0415 - for several ranks only

    numbered = number_ranks([one for one, _ in digests], [source.rank for _, source in digests])
    pairs = [(one, digests[at][1]) for one, at in zip(numbered.digests, numbered.positions, strict=True)]
    left_out = [*(_left_out(source, error) for source, error in errors), *numbered.left_out]
    return pairs, sorted(left_out, key=lambda one: one.path)


def _on_shared_steps(
    digests: Sequence[tuple[RankDigest, TraceSource]],
    options: Options,
    on_trace: Callable[[int, int, Path], None],
    reading: RankReading,
) -> tuple[list[tuple[RankDigest, TraceSource]], StepSharing]:
    """Returns the digests over the steps that all ranks recorded.

    And whether there are any; few ranks are read again.
    """
    from bottleneck.trace.common_steps import share_steps  # noqa: PLC0415 - for several ranks only

    shared = share_steps([one for one, _ in digests])
    pairs = [*digests]
    again = [at for at, reasons in enumerate(shared.set_aside) if reasons is not None]
    sources = [replace(pairs[at][1], set_aside=shared.set_aside[at]) for at in again]
    for number, result in _digest_each(sources, options, on_trace, reading):
        if not isinstance(result, RankDigest):
            raise result
        at = again[number]
        pairs[at] = (replace(result, rank=pairs[at][0].rank), sources[number])
    return pairs, shared.sharing


def _left_out(source: TraceSource, error: BottleneckError) -> LeftOut:
    """Returns the trace and the error, which names the file.

    Beside its path it is "it".
    """
    path = str(source.trace)
    return LeftOut(path, source.rank if error.rank is None else error.rank, error.what.replace(path, "it"))


def _none_usable(errors: Sequence[BottleneckError]) -> BottleneckError:
    """The error of the first rank, which says how many share it."""
    first = errors[0]
    if isinstance(first, UsageError):
        return first
    why = "; ".join(filter(None, (first.why, f"none of {counted(len(errors), 'trace')} can be used")))
    return TraceError(first.what, why=why, fix=first.fix)


def timeline_of(explained: Explanation, paths: Sequence[Path], options: Options = DEFAULTS) -> StepTimeline | None:
    """Lays out steps over time, of a few other ranks too.

    Of those it reads the traces again: the one that comes first to collectives, the last and the one between. Large
    ones, and those in a store, are left out.
    """
    from bottleneck.analysis.step_tracks import MOST_IN_ALL, lay_out, lay_out_beside  # noqa: PLC0415 - for pages only

    timeline = lay_out(explained)
    ranks = {one.path: one for one in explained.analysis.ranks}
    if timeline is None or (path := explained.linked.trace.path) not in ranks:
        return timeline
    timeline = replace(timeline, rank=ranks.pop(path).rank)
    ordered = sorted(ranks.values(), key=lambda one: (one.skew_us or 0.0, one.rank))
    chosen = [ordered[at] for at in sorted({0, len(ordered) // 2, len(ordered) - 1})] if ordered else []
    sources = {str(source.trace): source for path in paths for source in find_traces(path)}
    for rank in sorted(chosen, key=lambda one: one.rank):
        source = sources.get(rank.path)
        if source is None or is_remote(source.trace) or source.trace.stat().st_size > _LARGEST_OTHER_RANK_BYTES:
            continue
        evidence = examine(source, replace(options, split=False, jobs=1))
        beside = lay_out_beside(evidence, timeline, explained.analysis)
        if beside is not None and timeline.count + beside.count <= MOST_IN_ALL:
            timeline = replace(timeline, others=(*timeline.others, replace(beside, rank=rank.rank)))
    return timeline


def annotate(paths: Sequence[Path], options: Options = DEFAULTS) -> Annotations:
    """Returns one trace with what an export adds to it.

    Raises as ``analyse`` does, UsageError for several traces.
    """
    if saved_analysis(paths, options) is not None:
        raise UsageError(f"{paths[0]} is a finished analysis, without the events of its trace", fix="pass the trace")
    from bottleneck.analysis.timeline import build_timeline  # noqa: PLC0415 - for an export only

    sources = [source for path in paths for source in find_traces(path)]
    if len(sources) > 1:
        names = ", ".join(str(source.trace) for source in sources[:3])
        raise UsageError(
            f"an export is of one trace, and {len(sources)} were named", fix=f"pass the one of a rank: {names} …"
        )
    evidence = examine(sources[0], options)
    analysis, linked = evidence.analysis, evidence.linked
    timeline = build_timeline(linked, evidence.roofline, analysis.ledger, analysis.device)
    return Annotations(sources[0].trace, evidence, timeline)


def digest(source: TraceSource, options: Options = DEFAULTS) -> RankDigest:
    """Reduces one rank of a job to what the ranks are compared by.

    Raises as ``analyse`` does. It depends on the files of the source and the options alone, so that it may run in any
    process.
    """
    from bottleneck.analysis.ranks import digest_rank  # noqa: PLC0415 - for several ranks only

    return digest_rank(examine(source, replace(options, split=False, jobs=1)), source.host, source.first_step)


def examine(
    source: TraceSource, options: Options = DEFAULTS, on_bytes: Callable[[int, int], None] = ignore_progress
) -> Evidence:
    """Returns the evidence of one trace.

    Findings and verdict follow from it. Raises as ``analyse`` does.
    """
    trace = read_trace(source.trace, options.jobs, on_bytes)
    try:
        window = _window(trace, source, options)
    except BottleneckError as error:
        error.rank = trace.rank
        raise
    trace = fold_rare_names(trace)
    evidence = _examine(trace, window, source, options)
    if (
        evidence.is_disturbed
        and not evidence.has_load_taken_off
        and options.steps is None
        and not options.has_own_window
    ):
        quick = quick_part(window)
        if quick is not None:
            window, evidence = quick, _examine(trace, quick, source, options)
    sides = evidence.sides
    if sides is None or not options.split or options.steps is not None or options.has_own_window or source.unprofiled:
        return evidence
    at_us = window.start_us + sides.split * window.wall_us
    side, (earlier, later) = choose_side(trace, window, at_us), side_options(trace, window, at_us)
    if side is None:
        message = f"both belong to one step, explained as a whole; apart: --window {earlier}, then {later}"
        sides = replace(sides, is_one_step=True)
        return _with_sides_told(evidence, Caveat("two-sided-step", f"{describe_sides(sides)}; {message}"), sides)
    is_later = side.start_us > window.start_us
    (which, part), other = (("later", "earlier"), earlier) if is_later else (("earlier", "later"), later)
    message = f"only the {which} part is judged here; for the {part} one, run again with --window {other}"
    caveat = Caveat(ONE_SIDE, f"{describe_sides(sides)}; {message}", max(1.0 - side.wall_us / window.wall_us, 0.0))
    return _with_sides_told(_examine(trace, side, source, options), caveat, None)


def _with_sides_told(evidence: Evidence, told: Caveat, sides: TwoSided | None) -> Evidence:
    """Returns the evidence with these sides.

    A caveat stands in place of the one that a window has two of them.
    """
    caveats = tuple(caveat for caveat in evidence.analysis.caveats if caveat.slug != TWO_SIDED)
    explained = replace(evidence, analysis=replace(evidence.analysis, caveats=(told, *caveats)), sides=sides)
    # Neither changes what the host did.
    explained.cache.update({make: value for make, value in evidence.cache.items() if make is read_host})
    return explained


def _examine(trace: Trace, window: Window, source: TraceSource, options: Options) -> Evidence:
    """The evidence of one window of a trace."""
    unprofiled = None if options.has_own_window else source.unprofiled
    device, device_caveats = choose_device(trace, source.recording, options.device)
    linked = link(trace, window)
    timing = unprofiled
    light_window = None if unprofiled is None else _light_window(source, linked)
    counted_us, lightly_us = time_page_faults(source.extras, device.fresh_bytes_per_s, lightly=True)
    unprofiled, timing_caveats = find_held_up_timing(linked, timing, light_window, max(counted_us - lightly_us, 0.0))
    light = None if light_window is None else measure_light(light_window, unprofiled, device.launch_floor_us)
    telemetry, sensor_caveats = read_telemetry(source, linked, timing)
    load = find_load(telemetry, source.recording, linked, unprofiled)
    if load.kind == "waits":
        unprofiled, timing_caveats = None, ()
    else:
        linked = subtract_profiler_overhead(linked, unprofiled, device.launch_floor_us, light)
    captures = [_cost(link(capture, whole_window(capture)))[0] for capture in map(read_trace, options.captures)]
    costed, replay_caveats = _cost(linked, source.compiled, captures)
    if telemetry is None:
        telemetry = read_counters(costed.linked)
    conditions, clock_caveats = find_conditions(device, telemetry)
    if load.kind == "waits":
        signature = signature_of(costed.linked, costed.attribution)
        raw = _classified(costed, device, conditions)
        costed = replace(costed, linked=quicken(costed.linked, signature, raw, load.most))
        stretches = quick_stretches(costed.linked if light_window is None else light_window)
    else:
        stretches = None if light is None else light.stretches
    roofline = _classified(costed, device, conditions)
    profiled_ledger, host = _ledger(costed.linked, roofline, device, stretches)
    if load.kind == "waits":
        ledger = without_load(profiled_ledger, costed.linked, load)
    else:
        profiled_ledger = without_stalls(profiled_ledger) if load.kind == "stalls" else profiled_ledger
        faults_us = time_page_faults(source.extras, device.fresh_bytes_per_s, lightly=light is not None)
        ledger = scale_to_unprofiled(profiled_ledger, unprofiled, own_parts(costed.linked), light, faults_us)
    threads = None if source.recording is None else source.recording.threads
    processors = None if source.recording is None else source.recording.processors
    times = time_kernels(costed.linked, costed.costs, costed.attribution, roofline, ledger)
    explained = roofline["explained"].to_numpy(dtype=np.float64)
    contention = (
        *find_contention(telemetry, threads, profiled_ledger, explained, ledger.ledger),
        *find_contention_of_short_steps(telemetry, processors, profiled_ledger, explained),
    )
    contention = () if load.kind == "waits" else contention
    caveats = (
        *device_caveats,
        *timing_caveats,
        *replay_caveats,
        *find_profiler_cost(costed.linked, ledger.ledger, unprofiled),
        *sensor_caveats,
        *find_disturbance(source.extras, unprofiled),
        *find_work_elsewhere(source.recording),
        *find_page_faults(source.extras, device.fresh_bytes_per_s),
        *contention,
        *clock_caveats,
    )
    resting = () if source.recording is None else source.recording.resting_memory
    step = assemble(times, device, _recording_info(source), unprofiled, caveats, resting)
    built = {} if source.recording is None else source.recording.libraries
    step = replace(
        step,
        telemetry=telemetry,
        kernels=name_libraries(step.kernels, built, device.kind),
        caveats=(
            *tell_profiler_from_load(step.caveats, telemetry, threads, processors),
            *hold_against_model(telemetry, step.totals, step.coverage),
        ),
    )
    evidence = Evidence(
        analysis=step if options.has_own_window else add_measurements(step, source.recording, source.extras),
        linked=costed.linked,
        costs=costed.costs,
        attribution=costed.attribution,
        roofline=roofline,
        loops=find_loops(costed.linked, costed.costs, costed.attribution),
        recording=source.recording,
        kernel_time=times.table(),
        idle_time=ledger.idle_times.table(),
        sides=ledger.sides,
        samples=samples_of_trace(source, costed.linked),
        predict=_predict,
        price=_price,
        held_up=profiled_ledger.held_up,
    )
    evidence = _with_compile_health(evidence, source)
    if host is not None:
        evidence.cache[read_host] = host
    return evidence


def _classified(costed: CostedTrace, device: Device, conditions: Conditions) -> pd.DataFrame:
    """Returns ROOFLINE of the trace."""
    return classify(costed.linked.kernels, costed.linked.ops, costed.costs, costed.attribution, device, conditions)


def _with_compile_health(evidence: Evidence, source: TraceSource) -> Evidence:
    """Returns the evidence with what torch.compile made of the program."""
    compilation = None if source.recording is None else source.recording.compilation
    health = None if compilation is None else compilation.health
    priced = price_compile(health, evidence.linked, evidence.steps, evidence.host_scale)
    return evidence if priced is None else replace(evidence, analysis=replace(evidence.analysis, compile_health=priced))


def _ledger(
    linked: Linked, roofline: pd.DataFrame, device: Device, light: Stretches | None
) -> tuple[LedgerResult, Host | None]:
    """Returns the ledger, and what the host did.

    A replay needs that too: null for a trace too large to replay.
    """
    host = read_host(linked)
    return build_ledger(linked, roofline, device, host, light), host if _is_replayed(linked) else None


def _light_window(source: TraceSource, linked: Linked) -> Linked | None:
    """Reads the recording's window with the fewest options.

    Null where there is none of the same kind.
    """
    if source.light is None:
        return None
    trace = read_trace(source.trace.parent / source.light.file)
    light = link(trace, find_steps(trace, source.light.step_marks_ns))
    return light if light.is_host_only is linked.is_host_only else None


def finish_with_advice(evidence: Evidence) -> Explanation:
    """The evidence with findings, the verdict, and what would not help."""
    explained = finish(evidence, advise(evidence))
    no_gain = find_no_gain(evidence, explained.analysis)
    return replace(explained, analysis=replace(explained.analysis, no_gain=no_gain)) if no_gain else explained


def finish(evidence: Evidence, findings: tuple[Finding, ...] = ()) -> Explanation:
    """The evidence with findings and the verdict that follows from both."""
    return conclude(evidence, decide(grounds_of(evidence), findings), findings, __version__)


def _cost(
    linked: Linked, compiled: Compiled | None = None, captures: Sequence[CostedTrace] = ()
) -> tuple[CostedTrace, tuple[Caveat, ...]]:
    """Returns the trace with completed calls and their costs.

    And with the op that each kernel is attributed to.
    """
    generated = infer_shapes(linked)
    costs = compute_costs(generated.trace.signatures)
    if compiled is not None:
        from bottleneck.cost.inductor_cpp import add_compiled_kernels  # noqa: PLC0415 - for few recordings

        generated, costs = add_compiled_kernels(generated, costs, compiled)
    attribution = attribute(generated.ops, generated.kernels, costs)
    return assign_replayed_costs(CostedTrace(generated, costs, attribution), captures)


def _window(trace: Trace, source: TraceSource, options: Options) -> Window:
    """The stretch of the trace that the options choose, else its steady steps."""
    if options.stretch_us is not None:
        return stretch(trace, *options.stretch_us)
    return whole_window(trace) if options.whole else find_steps(trace, source.marks_ns, options.steps, source.set_aside)


def _recording_info(source: TraceSource) -> RecordingInfo:
    recording = source.recording
    return RecordingInfo(
        path=str(source.trace if recording is None else source.trace.parent),
        kind="trace" if recording is None else "run",
        framework=None if recording is None else recording.framework,
        created=None if recording is None else recording.created,
        world_size=None,
    )
