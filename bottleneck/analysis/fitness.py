"""Lists how fit a trace is for a full report.

The rows are the caveats of its analysis, what is in order, and what was not recorded.

A caveat is made once, where it is found, and has its row here by its slug. `bottleneck doctor TRACE` shows these rows.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from msgspec import Struct

from bottleneck.analysis.faults import TOLERATED_SHARE
from bottleneck.schema.analysis import (
    APPLE_UNRECORDED,
    HALF_RECORDED,
    KERNELS_MISSING,
    LISTED_ALONE,
    SAMPLED,
    Analysis,
    Caveat,
)
from bottleneck.schema.checks import Check, Status
from bottleneck.schema.linked_trace import Linked, Window
from bottleneck.units import counted, format_share, format_us

# What a row says beside its caveat: the same of all traces, or made from one.
Words = str | Callable[[Linked, Analysis], str]

_FILE, _DEVICE, _HOST, FULL_REPORT, _OTHERS = (
    "the file",
    "device work",
    "host work",
    "for a full report",
    "other caveats of the report",
)
_GROUPS = (_FILE, _DEVICE, _HOST, _OTHERS, FULL_REPORT)


class ListedFault(Struct, frozen=True):
    """Heading of a caveat's row in its group.

    It also says what follows from the caveat and what would help.

    ``fine`` is the fact of the row where there is no such caveat; without it there is no row then. ``extent`` is the
    share of the trace's work that is affected: so much as ``tolerated`` of it is as it should be.
    """

    group: str
    title: str
    why: Words = ""
    remedy: Words = ""
    command: Words = ""
    fine: Words = ""
    status: Status = "limited"
    decides: bool = False
    extent: Callable[[Linked], float] | None = None
    tolerated: float = TOLERATED_SHARE


def check_trace(linked: Linked, analysis: Analysis) -> tuple[Check, ...]:
    """Gives the rows on how fit a trace is.

    There is one for each caveat of the analysis, for each thing in order, and for what a full report needs.
    """
    stated = {caveat.slug for caveat in analysis.caveats}
    rows: list[Check | None] = [_file(linked), *(_row_of(caveat, linked, analysis) for caveat in analysis.caveats)]
    rows += [_fine(slug, subject, linked, analysis) for slug, subject in SUBJECTS.items() if slug not in stated]
    rows += [rule(linked, analysis) for rule in RULES]
    return tuple(sorted((row for row in rows if row is not None), key=lambda row: _GROUPS.index(row.group)))


def _row_of(caveat: Caveat, linked: Linked, analysis: Analysis) -> Check:
    """Gives the row of a caveat.

    One without a subject is among the others, headed by its slug.
    """
    subject = SUBJECTS.get(caveat.slug, _OTHER)
    why, remedy, command = (
        words if isinstance(words, str) else words(linked, analysis)
        for words in (subject.why, subject.remedy, subject.command)
    )
    share = caveat.share if subject.extent is None else subject.extent(linked)
    is_fine = subject.extent is not None and share is not None and share <= subject.tolerated
    return Check(
        caveat.slug,
        subject.group,
        subject.title or caveat.slug.replace("-", " "),
        "ok" if is_fine else subject.status,
        caveat.message,
        why,
        remedy,
        command,
        share,
        subject.decides,
    )


def _fine(slug: str, subject: ListedFault, linked: Linked, analysis: Analysis) -> Check | None:
    """Gives the row of a thing that no caveat is about.

    Null where it does not concern this trace.
    """
    fact = subject.fine if isinstance(subject.fine, str) else subject.fine(linked, analysis)
    return Check(slug, subject.group, subject.title, "ok", fact, decides=subject.decides) if fact else None


def _file(linked: Linked) -> Check:
    trace = linked.trace
    events = f"{counted(len(trace.events), 'event')} of {trace.flavour.upper() if trace.flavour != 'cpu' else 'a CPU'}"
    span_us = float((trace.events["ts_us"] + trace.events["dur_us"]).max())
    return Check("file", _FILE, "events", "ok", f"{events} over {format_us(span_us)}")


def _with_launches(text: str) -> Words:
    """A fact of traces that hold launches of kernels."""
    return lambda linked, _: text if linked.integrity.launches.total else ""


def _launches(linked: Linked, _: Analysis) -> str:
    """Launches, and the few that lack their kernel.

    Empty without launches, and where many do.
    """
    launches = linked.integrity.launches
    if not launches.total or launches.lost > TOLERATED_SHARE * launches.total:
        return ""
    captured = f"; {counted(launches.captured, 'other')} captured into a graph, to run later"
    lacking = f"{launches.lost:,} without a kernel" if launches.lost else "none lacks its kernel"
    return f"of {launches.total - launches.captured:,}, {lacking}{captured if launches.captured else ''}"


def _on_device(text: str) -> Words:
    """A fact of traces with device work."""
    return lambda linked, _: "" if linked.is_host_only else text


def _without_device(linked: Linked, analysis: Analysis) -> str:
    """A fact of traces in which no device was to be expected."""
    is_silent = any(caveat.slug in _UNRECORDED for caveat in analysis.caveats)
    return "a CPU trace: no kernel was launched" if linked.is_host_only and not is_silent else ""


def _where_launches_lie(linked: Linked, _: Analysis) -> str:
    """Says where launches without a kernel lie.

    It also says by how much the host went on after the device's last work.
    """
    launches = linked.integrity.launches
    places = ((launches.lead, "before the first"), (launches.between, "between"), (launches.tail, "after the last"))
    parts = [f"{', '.join(f'{count:,} {place}' for count, place in places if count)} of those that have one"]
    if launches.bare_steps:
        parts.append(f"none at all in {_some(launches.bare_steps)}")
    if launches.tail > TOLERATED_SHARE * launches.total:
        parts.append(
            f"the device's work ends {format_us(launches.tail_us)} before the host's last launch: the profiler ran out"
            " of room (128 MB of buffers) or was stopped before the device was done"
        )
    return "; ".join(parts) if launches.lost else ""


def _some(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {counted(len(names) - 3, 'more step')}"


def _to_keep_kernels(linked: Linked, _: Analysis) -> str:
    launches = linked.integrity.launches
    if launches.total and launches.lost == launches.total - launches.captured:
        return "use a newer library of the profiler: intel-pti 0.17 has no kernels on Arc B GPUs (torch-xpu-ops#3985)"
    if launches.lead > max(launches.between, launches.tail):
        return "let the profiler warm up: schedule(wait=1, warmup=2, active=3); an idle GPU loses its first kernels"
    return f"synchronize the device before the profiler stops (torch.cuda.synchronize()), or {_SHORTER}"


def _why_orphans(linked: Linked, _: Analysis) -> str:
    if linked.trace.launch_args.empty:
        return "launches were not recorded"
    return _BEFORE if _began_before(linked) else "the profiler dropped their launches"


def _to_keep_launches(linked: Linked, _: Analysis) -> str:
    if linked.trace.launch_args.empty:
        return "record the host too: ProfilerActivity.CPU and ProfilerActivity.CUDA"
    return "synchronize the device before it starts (torch.cuda.synchronize())" if _began_before(linked) else _SHORTER


def _began_before(linked: Linked) -> bool:
    """True where all device work without a launch comes before any other."""
    kernels = linked.kernels
    orphan, start_us = (kernels["launch"].isna() & kernels["op"].isna()).to_numpy(), kernels["ts_us"].to_numpy()
    return bool(orphan.any() and not orphan.all() and start_us[orphan].max() < start_us[~orphan].min())


def _orphan_share(linked: Linked) -> float:
    """Share of the device's busy time whose work has no launch."""
    dur_us, orphan = linked.kernels["dur_us"].to_numpy(), linked.kernels["launch"].isna() & linked.kernels["op"].isna()
    return float(dur_us[orphan.to_numpy()].sum() / dur_us.sum()) if dur_us.any() else 0.0


def _early_share(linked: Linked) -> float:
    """Share of the work with a launch that starts before it."""
    early_us = (linked.kernels["launch_ts_us"] - linked.kernels["ts_us"]).dropna()
    return float((early_us > 0).mean())


def _to_model(_: Linked, analysis: Analysis) -> str:
    return _REMEDIES.get(analysis.coverage.unknown[0].reason_code or "", "") if analysis.coverage.unknown else ""


def _modelled(_: Linked, analysis: Analysis) -> str:
    share = analysis.coverage.modelled_share
    return "" if share is None else f"{format_share(share)} of the busy time is modelled"


_BEFORE = "they were launched before the recording began"
_SHORTER = "record fewer steps at a time: schedule(wait=1, warmup=2, active=3)"
_AGAIN = "record it again, and let the program end by itself; look for free disk space first"
_BOTH = "record the device too: activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
_NAME_CAPTURE = "name a trace of the capture: bottleneck report TRACE --capture FILE"
_REMEDIES = {
    "graph_replay": _NAME_CAPTURE,
    "graph_launch": _NAME_CAPTURE,
    "compiled_region": "record the same step without torch.compile too",
}

_damage = partial(ListedFault, _FILE, decides=True)
_unrecorded = partial(ListedFault, _DEVICE, "device", status="missing", decides=True)
_work = partial(ListedFault, _DEVICE, decides=True)

# No work of the device was recorded, for one of these reasons.
_UNRECORDED: Mapping[str, ListedFault] = {
    "no-device-events": _unrecorded(
        remedy="see what the machine says",
        command="bottleneck doctor",
        fine=_without_device,
    ),
    HALF_RECORDED: _unrecorded(remedy=_BOTH),
    APPLE_UNRECORDED: _unrecorded(remedy="record its side in Instruments: torch.mps.profiler"),
    LISTED_ALONE: ListedFault(_DEVICE, "device", remedy=f"if the program uses it, {_BOTH}"),
}
_OTHER = ListedFault(_OTHERS, "")
SUBJECTS: Mapping[str, ListedFault] = {
    "truncated": _damage("end of file", "work that was recorded last is missing", _AGAIN),
    "damaged-gzip": _damage(
        "checksum", "the file changed after it was written", "copy it again from where it was recorded"
    ),
    "trailing-garbage": _damage(
        "after the end", "the trace itself was read whole", "copy it again if the size looks wrong"
    ),
    "repaired-json": _damage(
        "JSON",
        "torch's own exporter does not escape names; numbers are not affected",
        "export with prof.export_chrome_trace(path, use_python_export=True), in PyTorch 2.13 and newer",
    ),
    "skipped-events": _damage("left out", "their time is missing", "record it again"),
    "clamped-durations": _damage("durations", "events that had not ended were written with a negative length"),
    "odd-arguments": _damage("arguments", "the values of these arguments are unknown"),
    "large-ids": _damage("large ids", "such work is tied to its launch in other ways or not at all"),
    "several-traces": _damage(
        "further traces",
        "what was recorded in the others is missing",
        "write each rank into a file of its own: prof.export_chrome_trace(f'trace.rank{rank}.json')",
    ),
    "metadata-unreadable": _damage("description", "device and versions are unknown", "name the device: --device NAME"),
    "profiler-log": ListedFault(
        _FILE,
        "profiler log",
        fine=lambda linked, _: f"warning: {log}" if (log := linked.trace.facts.get("WARNING")) else "",
    ),
    **_UNRECORDED,
    KERNELS_MISSING: _work(
        "launches",
        _where_launches_lie,
        _to_keep_kernels,
        fine=_launches,
    ),
    "links-missing": _work("launches", _where_launches_lie, _to_keep_kernels),
    "graph-kernels": _work(
        "graph replays",
        "ROCm 7.2.0 and 7.2.1 lose records of kernels that hipGraphLaunch issues (ROCm#6102)",
        "record with ROCm 7.2.2 or newer; wheels of torch bring these libraries along",
    ),
    "orphans": _work(
        "kernels",
        _why_orphans,
        _to_keep_launches,
        fine=_on_device("no piece of work lacks its launch or op"),
        extent=_orphan_share,
    ),
    "clock-skew": _work(
        "clocks",
        "durations are not affected, delays are",
        fine=_with_launches("no kernel starts before its launch"),
        extent=_early_share,
        tolerated=0.05,  # clock skew above this makes queueing times worthless
    ),
    "holes": _work("queues", "the profiler lost what ran there", _SHORTER),
    "lost-products": _work("products", "they ran, but the profiler lost their kernels", _SHORTER),
    "repeated-ids": _work("ids", fine=_on_device("hardly any id is used twice")),
    "streams-overlap": _work("streams", fine=_on_device("work on one stream hardly ever overlaps")),
    SAMPLED: ListedFault(_HOST, "ops", remedy="record again, and keep the whole file", decides=True),
    "ops-overlap": ListedFault(
        _HOST,
        "ops nest",
        remedy="record without with_stack, which is known to stretch ops (pytorch#174555)",
        fine=lambda linked, _: f"{counted(len(linked.ops), 'op')}, each inside or beside the others",
        decides=True,
    ),
    "unmodelled-work": ListedFault(FULL_REPORT, "modelled work", remedy=_to_model, fine=_modelled),
    "unknown-device": ListedFault(
        FULL_REPORT,
        "ceilings",
        "nothing can be judged against its peaks",
        command=lambda _, analysis: (
            f"bottleneck report TRACE --device {'cpu' if analysis.device.kind == 'cpu' else 'NAME'}"
        ),
        fine=lambda _, analysis: f"{analysis.device.name}: {analysis.device.source}" if analysis.device.source else "",
        status="missing",
    ),
    "graph-replay": ListedFault(FULL_REPORT, "graph replays", remedy=_NAME_CAPTURE),
}

_MODELLED_ENOUGH = 0.95
# Reasons that work has no cost which recording shapes would mend.
_WITHOUT_SHAPES = ("no_shapes", "no_dtypes")
_STEPS_BY = {
    "marks": "the marks of the recording",
    "profiler": "ProfilerStep marks",
    "optimizer": "the optimizer's steps",
    "closure": "the optimizer's calls of its closure",
    "server": "the marks of an inference server",
    "repeats": "the repeats of the host's work",
}
_FLAGS = ("record_shapes", "with_stack", "profile_memory", "with_flops", "with_modules")
_NEWER = "record with PyTorch 2.3 or newer"
_SYNC = "experimental_config=torch.profiler._ExperimentalConfig(enable_cuda_sync_events=True)"


def _replays(linked: Linked, analysis: Analysis) -> Check | None:
    """Checks graph replays that hold the same kernels.

    It is unknown under a version that loses some of them. Null without replays, or where a caveat has the row.
    """
    replays, subject = linked.integrity.replays, SUBJECTS["graph-kernels"]
    if replays is None or any(caveat.slug == "graph-kernels" for caveat in analysis.caveats):
        return None
    check = partial(Check, "graph-kernels", subject.group, subject.title)
    if str(linked.trace.facts.get("hip_runtime_version", "")).startswith(("702", "7.2.0", "7.2.1")):
        fact = "replays of one graph hold the same kernels; whether all of them cannot be told"
        return check("unknown", fact, str(subject.why), str(subject.remedy))
    return check("ok", f"{counted(replays.count, 'replay')}, those of one graph with the same kernels")


def _steps(linked: Linked, analysis: Analysis) -> Check:  # noqa: ARG001 - as all rules
    window = linked.window
    if window.source == "whole":
        fact = "no step marks, and the work does not repeat"
        why = "the whole trace counts as one step, so nothing is reported per step"
        command = _option("schedule=torch.profiler.schedule(wait=1, warmup=2, active=3)")
        return _row("steps", "missing", fact, why, "call prof.step() after each step", command=command)
    fact = f"{len(window.steps)} by {_STEPS_BY.get(window.source, window.source)}{_gaps(window)}"
    return _row("steps", "ok", fact)


def _gaps(window: Window) -> str:
    """Gives a note on profiler steps with gaps in their numbers.

    Some were recorded without their mark.
    """
    names = [step.name for step in (*window.steps, *(step for step, _ in window.set_aside))]
    numbers = sorted(int(tail) for name in names if (tail := name.rpartition("#")[2]).isdecimal() and len(tail) < 16)
    missing = numbers[-1] - numbers[0] + 1 - len(numbers) if numbers else 0
    return f"; numbers missing between them: {missing}" if missing > 0 else ""


def _shapes(linked: Linked, analysis: Analysis) -> Check:
    recorded = linked.ops["signature"].notna()
    lost = sum(work.us for work in analysis.coverage.unknown if work.reason_code in _WITHOUT_SHAPES)
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
    return _row("ops", "limited", fact, "the rest has no op", share=1 - share)


def _lines(linked: Linked, analysis: Analysis) -> Check:
    counts = linked.trace.events["category"].value_counts()
    frames = int(counts.get("python", 0) + counts.get("line", 0))
    idle_us = sum(cause.us for cause in analysis.idle)
    placeless_us = sum(cause.us for cause in analysis.idle if cause.source is None)
    share = placeless_us / idle_us if idle_us > 0 else None
    if frames:
        placed = "" if share is None else f"; {format_share(1 - share)} of the waiting has its source line"
        return _row("source-lines", "ok", f"{frames:,} Python frames{placed}", title="source lines")
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
    """Stream and event waits, which not every vendor's profiler reports."""
    count = linked.integrity.waits
    if count is None:
        return None
    row = partial(_row, "sync-events", title="sync events")
    if count:
        return row("ok", f"{counted(count, 'wait')} between streams and for events")
    vague = [cause for cause in analysis.idle if any(word in cause.cause for word in ("dependency", "unknown"))]
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
    total_us = sum(collective.us for collective in analysis.collectives)
    if not total_us:
        return None
    sizeless_us = sum(collective.us for collective in analysis.collectives if collective.bytes is None)
    share = sizeless_us / total_us
    row = partial(_row, "collective-sizes", title="collectives")
    if not sizeless_us:
        return row("ok", "sizes of all are known")
    status: Status = "limited" if share < 1 else "missing"
    fact = f"{format_share(share)} of their time has no message size"
    why = "bus speed, and transfer apart from waiting, are unknown there"
    return row(status, fact, why, _NEWER, command=_option("record_shapes=True"), share=share)


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
        return row("ok", "steps were timed without the profiler too")
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
    return Check(slug, FULL_REPORT, title or slug, status, fact, why, remedy, **more)


def _verdict(linked: Linked, analysis: Analysis) -> Check:  # noqa: ARG001 - as all rules
    """The sentence that sums up the checks."""
    verdict = analysis.verdict
    return _row("verdict", "limited" if verdict.bound == "inconclusive" else "ok", verdict.sentence)


RULES: tuple[Callable[[Linked, Analysis], Check | None], ...] = (
    _replays,
    _flags,
    _steps,
    _shapes,
    _strides,
    _links,
    _lines,
    _modules,
    _memory,
    _syncs,
    _ranks,
    _collectives,
    _resolution,
    _disturbance,
    _verdict,
)
