"""Checks traces for the check-up: completeness, missing recording options, and ranks of one job."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bottleneck.errors import TraceError
from bottleneck.pipeline import examine, finish
from bottleneck.schema.analysis import Analysis
from bottleneck.schema.checks import Check, Checkup, Status, Verdict, at_fault
from bottleneck.schema.linked_trace import Linked, Window
from bottleneck.schema.sources import TraceSource, find_traces
from bottleneck.trace.integrity import check_device_work, check_file, check_host_work
from bottleneck.units import counted, format_share, format_us

_GROUP = "for a full report"
_MODELLED_ENOUGH = 0.95

_NAME_CAPTURE = "name a trace of the capture: bottleneck report TRACE --capture FILE"
_REMEDIES = {
    "graph_replay": _NAME_CAPTURE,
    "graph_launch": _NAME_CAPTURE,
    "compiled_region": "record the same step without torch.compile too",
}
# Reasons that work has no cost which recording shapes would mend.
_WITHOUT_SHAPES = ("no_shapes", "no_dtypes")

_STEPS_BY = {
    "marks": "the marks of the recording",
    "profiler": "ProfilerStep marks",
    "optimizer": "the optimizer's steps",
    "server": "the marks of an inference server",
    "repeats": "the repeats of the host's work",
}
_FLAGS = ("record_shapes", "with_stack", "profile_memory", "with_flops", "with_modules")

_NEWER = "record with PyTorch 2.3 or newer"
_SYNC = "experimental_config=torch.profiler._ExperimentalConfig(enable_cuda_sync_events=True)"


def check_contents(linked: Linked, analysis: Analysis) -> list[Check]:
    """A row for each thing that a full report rests on; rows that do not concern this trace are left out."""
    rows = (rule(linked, analysis) for rule in RULES)
    return [row for row in rows if row is not None]


def _steps(linked: Linked, analysis: Analysis) -> Check:  # noqa: ARG001 - as all rules
    window = linked.window
    if window.source == "whole":
        fact = "no step marks, and the work does not repeat"
        why = "the whole trace counts as one step, so nothing is reported per step"
        command = _option("schedule=torch.profiler.schedule(wait=1, warmup=2, active=3)")
        return _row("steps", "missing", fact, why, "call prof.step() after each step", command=command)
    left_out = f", {counted(len(window.set_aside), 'other')} left out" if window.set_aside else ""
    fact = f"{len(window.steps)} by {_STEPS_BY.get(window.source, window.source)}{left_out}{_gaps(window)}"
    return _row("steps", "ok", fact)


def _gaps(window: Window) -> str:
    """A word on profiler steps whose numbers are not consecutive: some were recorded without their mark."""
    names = [step.name for step in (*window.steps, *(step for step, _ in window.set_aside))]
    numbers = sorted(int(tail) for name in names if (tail := name.rpartition("#")[2]).isdecimal() and len(tail) < 16)
    missing = numbers[-1] - numbers[0] + 1 - len(numbers) if numbers else 0
    return f"; numbers missing between them: {missing}" if missing > 0 else ""


def _shapes(linked: Linked, analysis: Analysis) -> Check:
    recorded = linked.ops["signature"].notna()
    lost = sum(each.us for each in analysis.coverage.unknown if each.reason_code in _WITHOUT_SHAPES)
    busy_us = analysis.totals.busy_us
    share = min(lost / busy_us, 1.0) if busy_us > 0 else None
    cost = "" if not share else f"{format_share(share)} of the busy time cannot be modelled"
    fact, command = f"known for {format_share(float(recorded.mean()))} of the ops", _option("record_shapes=True")
    if not recorded.any():
        why = cost or "no op can be modelled"
        return _row("shapes", "missing", "not recorded", why, command=command, share=share)
    if share is not None and share > 1 - _MODELLED_ENOUGH:
        return _row("shapes", "limited", fact, cost, command=command, share=share)
    return _row("shapes", "ok", fact)


def _prices(linked: Linked, analysis: Analysis) -> Check | None:  # noqa: ARG001 - as all rules
    """Check of the work that stays unmodelled although its shapes were recorded."""
    modelled, unknown = analysis.coverage.modelled_share, analysis.coverage.unknown
    if modelled is None:
        return _row("modelled", "unknown", "no busy time to model", title="modelled work")
    if modelled >= _MODELLED_ENOUGH or not unknown:
        return _row("modelled", "ok", f"{format_share(modelled)} of the busy time is modelled")
    if unknown[0].reason_code in _WITHOUT_SHAPES:
        return None
    fact = f"{format_share(1 - modelled)} of the busy time cannot be modelled"
    why, remedy = (
        f"most of it is {unknown[0].name}: {unknown[0].reason}",
        _REMEDIES.get(unknown[0].reason_code or "", ""),
    )
    return _row("modelled", "limited", fact, why, remedy, share=1 - modelled)


def _strides(linked: Linked, analysis: Analysis) -> Check | None:  # noqa: ARG001 - as all rules
    signatures = linked.trace.signatures
    if not signatures["dims"].notna().any():
        return None
    if signatures["strides"].notna().any():
        return _row("strides", "ok", "recorded")
    return _row("strides", "missing", "not recorded", "layouts are taken to be dense", _NEWER)


def _links(linked: Linked, analysis: Analysis) -> Check | None:  # noqa: ARG001 - as all rules
    share = linked.linked_share
    if share is None:
        return None
    fact = f"{format_share(share)} of the device's time is tied to the op that issued it"
    if share >= _MODELLED_ENOUGH:
        return _row("ops", "ok", fact)
    if linked.kernels["replayed"].any():
        why = "kernels replayed from a graph do not say which op they belong to"
        return _row("ops", "limited", fact, why, _NAME_CAPTURE, share=1 - share)
    return _row("ops", "limited", fact, "the rest has no op", share=1 - share)


def _lines(linked: Linked, analysis: Analysis) -> Check:
    counts = linked.trace.events["category"].value_counts()
    frames = int(counts.get("python", 0) + counts.get("line", 0))
    idle_us = sum(cause.us for cause in analysis.idle)
    placeless_us = sum(cause.us for cause in analysis.idle if cause.source is None)
    share = placeless_us / idle_us if idle_us > 0 else None
    if frames:
        known = "" if share is None else f"; {format_share(1 - share)} of the waiting has its source line"
        return _row("source-lines", "ok", f"{frames:,} Python frames{known}", title="source lines")
    cost = "work and waiting cannot be tied to source lines and modules"
    if share:
        cost += f": {format_share(share)} of the waiting has none"
    command = _option("with_stack=True")
    return _row("source-lines", "missing", "no Python frames", cost, command=command, share=share, title="source lines")


def _modules(linked: Linked, analysis: Analysis) -> Check | None:
    is_requested = linked.trace.facts.get("with_modules") == "1"
    if linked.ops["module"].notna().any() or not (analysis.modules or is_requested):
        return None
    fact = "no module is known" + (" though with_modules is on" if is_requested else "")
    why = "with_modules has no effect in eager mode; modules come with the Python frames"
    return _row("modules", "missing", fact, why, command=_option("with_stack=True"))


def _memory(linked: Linked, analysis: Analysis) -> Check:  # noqa: ARG001 - as all rules
    count = len(linked.trace.memory)
    if count:
        return _row("memory", "ok", f"{counted(count, 'event')} of the allocator")
    cost = "peak memory is unknown, and time in the allocator shows only where calls reveal it"
    return _row("memory", "missing", "no allocations", cost, command=_option("profile_memory=True"))


def _syncs(linked: Linked, analysis: Analysis) -> Check | None:
    """Stream and event waits, which only CUDA reports."""
    if linked.trace.flavour != "cuda":
        return None
    count = int((linked.trace.events["category"] == "sync").sum())
    row = partial(_row, "sync-events", title="sync events")
    if count:
        return row("ok", f"{counted(count, 'wait')} between streams and for events")
    vague = [each for each in analysis.idle if any(word in each.cause for word in ("dependency", "unknown"))]
    share = sum(cause.share for cause in vague)
    cost = "the stream or event of a wait is not recorded"
    if share > 0:
        cost += f"; {format_share(share)} of the step is waiting whose cause may lie there"
    return row("missing", "not recorded", cost, command=_option(_SYNC), share=share or None)


def _ranks(linked: Linked, analysis: Analysis) -> Check | None:
    trace = linked.trace
    if not analysis.collectives and trace.world_size is None and trace.rank is None:
        return None
    if trace.rank is None or trace.world_size is None:
        fact = "distributedInfo is missing: the trace does not say which rank of how many it is"
        why = "ranks are distinguished only by their order on the command line"
        return _row("ranks", "missing", fact, why, "start the profiler after torch.distributed.init_process_group()")
    return _row("ranks", "ok", f"rank {trace.rank} of {trace.world_size}")


def _collectives(linked: Linked, analysis: Analysis) -> Check | None:  # noqa: ARG001 - as all rules
    total_us = sum(each.us for each in analysis.collectives)
    if not total_us:
        return None
    sizeless_us = sum(each.us for each in analysis.collectives if each.bytes is None)
    share = sizeless_us / total_us
    row = partial(_row, "collective-sizes", title="collectives")
    if not sizeless_us:
        return row("ok", "sizes of all are known")
    status: Status = "limited" if share < 1 else "missing"
    fact = f"{format_share(share)} of their time has no message size"
    why = "bus speed, and transfer apart from waiting, are unknown there"
    return row(status, fact, why, _NEWER, command=_option("record_shapes=True"), share=share)


def _device(linked: Linked, analysis: Analysis) -> Check:  # noqa: ARG001 - as all rules
    device = analysis.device
    if device.source is None:
        name = device.name or "a device that the trace does not name"
        fix = "bottleneck report TRACE --device " + ("cpu" if device.kind == "cpu" else "NAME")
        why = "nothing can be judged against its peaks"
        return _row("ceilings", "missing", f"none known for {name}", why, command=fix)
    return _row("ceilings", "ok", f"{device.name}: {device.source}")


def _resolution(linked: Linked, analysis: Analysis) -> Check | None:  # noqa: ARG001 - as all rules
    if not linked.trace.integer_timestamps:
        return None
    zero = float((linked.kernels["dur_us"] == 0).mean()) if len(linked.kernels) else 0.0
    if not zero:
        return _row("resolution", "ok", "whole microseconds")
    rows = "ops" if linked.trace.flavour == "cpu" else "kernels"
    fact = f"whole microseconds: {format_share(zero)} of the {rows} last 0"
    return _row("resolution", "limited", fact, "their time is lost or lies with their neighbours", _NEWER, share=zero)


def _disturbance(linked: Linked, analysis: Analysis) -> Check:  # noqa: ARG001 - as all rules
    times = analysis.steps
    row = partial(_row, "honest-time", title="honest time")
    if times.unprofiled_us is not None:
        factor = "" if times.perturbation is None else f": profiled steps take {times.perturbation:.2f} times as long"
        return row("ok", f"steps were timed without the profiler too{factor}")
    why = "by how much the profiler stretched the steps is unknown"
    return row("missing", "no step was timed without the profiler", why, command="bottleneck run FILE")


def _flags(linked: Linked, analysis: Analysis) -> Check:  # noqa: ARG001 - as all rules
    """Profilers write a flag only where it is on."""
    on = [flag for flag in _FLAGS if linked.trace.facts.get(flag) == "1"]
    return _row("flags", "ok", f"on: {', '.join(on)}" if on else "the trace names none that is on", title="options")


def _option(text: str) -> str:
    return f"torch.profiler.profile({text})"


def _row(
    slug: str, status: Status, fact: str, why: str = "", remedy: str = "", title: str | None = None, **more: Any
) -> Check:
    """A row of this group, titled by its slug unless it has a title."""
    return Check(slug, _GROUP, title or slug, status, fact, why, remedy, **more)


def _verdict(linked: Linked, analysis: Analysis) -> Check:  # noqa: ARG001 - as all rules
    """The sentence that sums up the checks."""
    verdict = analysis.verdict
    return _row("verdict", "limited" if verdict.bound == "inconclusive" else "ok", verdict.sentence)


RULES: tuple[Callable[[Linked, Analysis], Check | None], ...] = (
    _flags,
    _steps,
    _shapes,
    _prices,
    _strides,
    _links,
    _lines,
    _modules,
    _memory,
    _syncs,
    _ranks,
    _collectives,
    _device,
    _resolution,
    _disturbance,
    _verdict,
)


_JOB_GROUP = "together"
_RANKS = partial(Check, "ranks-together", _JOB_GROUP, "ranks", decides=True)
_STEPS = partial(Check, "steps-together", _JOB_GROUP, "steps", decides=True)
_TIME = partial(Check, "time-together", _JOB_GROUP, "time", decides=True)
_MOST_NAMED = 8


@dataclass(frozen=True)
class Member:
    """One trace of the job: rank, ranks in all, steps, and when it ran in ns since 1970 (null: unknown)."""

    rank: int | None
    world_size: int | None
    steps: int
    start_ns: float | None
    end_ns: float | None


def member(linked: Linked) -> Member:
    """Rank, number of ranks, steps and time that a trace states."""
    trace, window = linked.trace, linked.window
    zero_ns = trace.start_unix_ns
    return Member(
        rank=trace.rank,
        world_size=trace.world_size,
        steps=len(window.steps) + len(window.set_aside),
        start_ns=None if zero_ns is None else zero_ns + 1e3 * window.start_us,
        end_ns=None if zero_ns is None else zero_ns + 1e3 * window.end_us,
    )


def is_a_job(members: Sequence[Member]) -> bool:
    """True if several of the traces state a rank."""
    return sum(each.rank is not None and (each.world_size or 2) > 1 for each in members) > 1


def check_together(members: Sequence[Member]) -> list[Check]:
    """Rows about all of them at once."""
    return [_job_ranks(members), _job_steps(members), _time(members)]


def _job_ranks(members: Sequence[Member]) -> Check:
    seen = Counter(each.rank for each in members if each.rank is not None)
    worlds = {each.world_size for each in members if each.world_size is not None}
    twice = sorted(rank for rank, count in seen.items() if count > 1)
    if len(worlds) > 1:
        fact = f"they name jobs of different sizes: {_named(sorted(worlds))} ranks"
        return _RANKS("limited", fact, "traces of different jobs say nothing of one another", "pass those of one job")
    if twice:
        fact = f"there more than once: {_named(twice)}"
        return _RANKS("limited", fact, "two runs may be mixed", "pass one trace for each rank")
    total = worlds.pop() if worlds else None
    if total is None:
        return _RANKS("unknown", f"{counted(len(seen), 'rank')}; their number in all is not recorded")
    # A file may claim any size: what is missing is counted, and only the first few are listed.
    missing = [rank for rank in range(min(total, len(seen) + _MOST_NAMED + 1)) if rank not in seen]
    if len(seen) < total:
        fact = f"{len(seen)} of {total}; missing: {_named(missing)}"
        return _RANKS("limited", fact, "a rank that all wait for may be among them", "pass the traces of all ranks")
    return _RANKS("ok", f"all {total} are there, each once")


def _named(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:_MOST_NAMED])) + (" …" if len(numbers) > _MOST_NAMED else "")


def _job_steps(members: Sequence[Member]) -> Check:
    counts = sorted({each.steps for each in members})
    if len(counts) == 1:
        return _STEPS("ok", f"{counts[0]} in each")
    why = "steps of different ranks are compared by their place"
    return _STEPS("limited", f"between {counts[0]} and {counts[-1]}", why, "record the same steps on all ranks")


def _time(members: Sequence[Member]) -> Check:
    spans = [(each.start_ns, each.end_ns) for each in members if each.start_ns is not None and each.end_ns is not None]
    if len(spans) < len(members):
        fact = f"{len(members) - len(spans)} of {len(members)} do not say when they were recorded"
        return _TIME("unknown", fact, "only the order of collectives shows which rank waits for which")
    apart_ns = max(start for start, _ in spans) - min(end for _, end in spans)
    if apart_ns > 0:
        fact = f"the last begins {format_us(apart_ns / 1e3)} after the first has ended"
        return _TIME("limited", fact, "they were not recorded at the same time", "record all ranks in one run")
    return _TIME("ok", f"all run at once for {format_us(-apart_ns / 1e3)}")


def examine_traces(paths: Sequence[Path]) -> list[Checkup]:
    """One check-up per trace, and one of all ranks of a job together.

    What is no trace has one too, unless it is all there is: then TraceError is raised.
    """
    examined = [_examine(source) for path in paths for source in _sources(path)]
    errors = [found for _, found in examined if isinstance(found, TraceError)]
    if errors and len(examined) == 1:
        raise errors[0]
    members = [found for _, found in examined if isinstance(found, Member)]
    return [*(checkup for checkup, _ in examined), *([_together(members)] if is_a_job(members) else [])]


def _sources(path: Path) -> Sequence[TraceSource | tuple[Path, TraceError]]:
    """The traces of a path; it and the error where there is none that could be read."""
    try:
        return find_traces(path)
    except TraceError as error:
        return [(path, error)]


def _examine(source: TraceSource | tuple[Path, TraceError]) -> tuple[Checkup, Member | TraceError]:
    """The check-up of a trace, and what it says of its place among others or why it could not be read."""
    if isinstance(source, tuple):
        return _unreadable(*source), source[1]
    try:
        explained = finish(examine(source))
    except TraceError as error:
        return _unreadable(source.trace, error), error
    linked, analysis = explained.linked, explained.analysis
    whole = [*check_file(linked.trace), *check_device_work(linked), *check_host_work(linked)]
    contents = check_contents(linked, analysis)
    faults = at_fault(whole)
    lacks = [check for check in contents if check.status in {"limited", "missing"} and check.slug != "verdict"]
    checkup = Checkup(
        kind="trace",
        subject=str(source.trace),
        verdict="damaged" if faults else "sound",
        sentence=_sentence(faults, lacks),
        checks=(*whole, *contents),
    )
    return checkup, member(linked)


def _together(members: Sequence[Member]) -> Checkup:
    checks = tuple(check_together(members))
    faults = at_fault(checks)
    sentence = f"As one job they are not whole: {_titles(faults)}." if faults else "They make one job."
    verdict: Verdict = "damaged" if faults else "sound"
    return Checkup("trace", f"all {len(members)} traces together", verdict, sentence, checks)


def _sentence(faults: Sequence[Check], lacks: Sequence[Check]) -> str:
    head = f"Usable, but not whole: {_titles(faults)}." if faults else "The trace is whole."
    return f"{head} For a full report it lacks {_titles(lacks)}." if lacks else f"{head} It has all for a full report."


def _titles(checks: Sequence[Check]) -> str:
    *first, last = [check.title for check in checks]
    return f"{', '.join(first)} and {last}" if first else last


def _unreadable(path: Path, error: TraceError) -> Checkup:
    check = Check("readable", "the file", "readable", "missing", error.what, error.why, error.fix, decides=True)
    return Checkup("trace", str(path), "unreadable", "There is nothing to explain.", (check,))
