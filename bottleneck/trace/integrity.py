"""Whether a trace is whole: one row per defect that was looked for, in the words that `doctor` shows."""

from bottleneck.checks import Check, Status
from bottleneck.trace import audit
from bottleneck.trace.limits import TOLERATED_SHARE
from bottleneck.tracing import Linked, Trace
from bottleneck.units import format_share, format_us

_FILE, _DEVICE, _HOST = "the file", "device work", "host work"

_AGAIN = "record it again, and let the program end by itself; look for free disk space first"
# Slug of a caveat of the reader -> title of the row, what follows from the defect, what to do.
_DAMAGE = {
    "truncated": ("end of file", "work that was recorded last is missing", _AGAIN),
    "damaged-gzip": ("checksum", "the file changed after it was written", "copy it again from where it was recorded"),
    "trailing-garbage": ("after the end", "the trace itself was read whole", "copy it again if the size looks wrong"),
    "repaired-json": (
        "JSON",
        "torch's own exporter does not escape names; numbers are not affected",
        "export with prof.export_chrome_trace(path, use_python_export=True), in PyTorch 2.13 and newer",
    ),
    "skipped-events": ("left out", "their time is missing", "record it again"),
    "clamped-durations": ("durations", "events that had not ended were written with a negative length", ""),
    "odd-arguments": ("arguments", "what they would have told is unknown", ""),
    "large-ids": ("large ids", "such work is tied to its launch in other ways or not at all", ""),
    "metadata-unreadable": ("description", "device and versions are unknown", "name the device: --device NAME"),
}
# Clock skew above this part of the kernels makes queueing times worthless.
_SKEWED_SHARE = 0.05
_LOG = "the profiler wrote this into the trace while it recorded"
_SHORTER = "record fewer steps at a time: schedule(wait=1, warmup=2, active=3)"


def check_file(trace: Trace) -> list[Check]:
    """How the file was read, and a row for each kind of damage that the reader tolerated."""
    events = f"{len(trace.events):,} events of {trace.flavour.upper() if trace.flavour != 'cpu' else 'a CPU'}"
    span_us = float((trace.events["ts_us"] + trace.events["dur_us"]).max())
    rows = [Check("file", _FILE, "events", "ok", f"{events} over {format_us(span_us)}")]
    for caveat in trace.caveats:
        if caveat.slug in _DAMAGE:
            title, why, remedy = _DAMAGE[caveat.slug]
            rows.append(Check(caveat.slug, _FILE, title, "limited", caveat.message, why, remedy, decides=True))
    return [*rows, *_profiler_log(trace)]


def _profiler_log(trace: Trace) -> list[Check]:
    """What the profiler itself complained of while it recorded."""
    status: Status = "limited" if "ERROR" in trace.facts else "ok"
    said = [f"{level.lower()}: {trace.facts[level]}" for level in ("ERROR", "WARNING") if level in trace.facts]
    return [Check("profiler-log", _FILE, "profiler log", status, "; ".join(said), _LOG)] if said else []


def check_device_work(linked: Linked) -> list[Check]:
    """Launches against device work, clocks, ids and streams; what concerns a CPU trace is that it has none of it."""
    trace = linked.trace
    if trace.flavour == "cpu":
        return [_no_device_work(trace)]
    launches, kernels = audit.audit_launches(linked), linked.kernels
    return [
        _launches(launches),
        _cut_off(launches),
        _orphans(audit.audit_orphans(kernels), has_launches=bool(len(trace.launch_args))),
        _clocks(audit.audit_clocks(kernels)),
        _ids(linked),
        _streams(audit.audit_streams(trace)),
    ]


def check_host_work(linked: Linked) -> list[Check]:
    """Whether the ops nest."""
    found = audit.audit_ops(linked)
    if not found.count:
        return [Check("ops-overlap", _HOST, "ops nest", "ok", f"{found.total:,} ops, each inside or beside the others")]
    return [
        Check(
            "ops-overlap",
            _HOST,
            "ops nest",
            "limited",
            f"{found.count:,} of {found.total:,} outlast the op around them, by up to {format_us(found.most_us)}",
            "they are cut where that ends, so that no time counts twice",
            "record without with_stack, which is known to stretch ops (pytorch#174555)",
            share=found.count / found.total,
            decides=True,
        )
    ]


def _no_device_work(trace: Trace) -> Check:
    told = next((caveat.message for caveat in trace.caveats if caveat.slug == "no-device-events"), None)
    if told is None:
        return Check("no-device-events", _DEVICE, "device", "ok", "a CPU trace: no kernel was launched")
    return Check(
        "no-device-events",
        _DEVICE,
        "device",
        "missing",
        "kernels were launched, but the trace holds none of them",
        told.partition("; ")[2] or told,
        "see what the machine says",
        "bottleneck doctor",
        share=1.0,
        decides=True,
    )


def _launches(found: audit.Launches) -> Check:
    if not found.total:
        return Check("kernels-missing", _DEVICE, "launches", "unknown", "the trace holds no launches to compare with")
    share = found.lost / found.total
    captured = f"; {found.captured:,} others were captured into a graph, where they run later" if found.captured else ""
    if not found.lost:
        return Check(
            "kernels-missing",
            _DEVICE,
            "launches",
            "ok",
            f"of {found.total - found.captured:,}, none lacks its kernel{captured}",
        )
    places = ((found.lead, "before the first"), (found.between, "between"), (found.tail, "after the last"))
    where = ", ".join(f"{count:,} {place}" for count, place in places if count)
    bare = f"; none at all in {_some(found.bare_steps)}" if found.bare_steps else ""
    return Check(
        "kernels-missing",
        _DEVICE,
        "launches",
        _status(share),
        f"{found.lost:,} of {found.total:,} ({format_share(share)}) have no kernel{bare}{captured}",
        f"{where} of those that have one; the profiler dropped them or stopped before they ran",
        _remedy_of(found),
        share=share,
        decides=True,
    )


def _remedy_of(found: audit.Launches) -> str:
    if found.lead > max(found.between, found.tail):
        return "let the profiler warm up: schedule(wait=1, warmup=2, active=3); an idle GPU loses its first kernels"
    return "synchronize the device before the profiler stops (torch.cuda.synchronize()), or record fewer steps"


def _some(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more steps"


def _cut_off(found: audit.Launches) -> Check:
    if not found.total or found.total == found.captured:
        return Check("cut-off", _DEVICE, "end", "unknown", "without launches of its own the end cannot be checked")
    share = found.tail / found.total
    if share <= TOLERATED_SHARE:
        return Check("cut-off", _DEVICE, "end", "ok", "the device's work goes on as long as the host launches some")
    return Check(
        "cut-off",
        _DEVICE,
        "end",
        "limited",
        f"the device's work ends {format_us(found.tail_us)} before the host's last launch, {found.tail:,} of"
        f" {found.total:,} launches come after it",
        "the profiler ran out of room (128 MB of buffers) or was stopped before the device was done",
        _SHORTER,
        share=share,
        decides=True,
    )


def _orphans(found: audit.Orphans, *, has_launches: bool) -> Check:
    if not found.count:
        return Check(
            "orphans", _DEVICE, "kernels", "ok", f"of {found.total:,} pieces of work, none lacks its launch or op"
        )
    fact = f"{found.count:,} of {found.total:,}, {format_share(found.share)} of the busy time, have no launch"
    if not has_launches:
        why, remedy = (
            "launches were not recorded",
            "record the host too: ProfilerActivity.CPU and ProfilerActivity.CUDA",
        )
    elif found.is_earlier:
        why, remedy = (
            "they were launched before the recording began",
            "synchronize the device before it starts (torch.cuda.synchronize())",
        )
    else:
        why, remedy = "the profiler dropped their launches", _SHORTER
    status = _status(found.share)
    advice = remedy if status == "limited" else ""
    return Check("orphans", _DEVICE, "kernels", status, fact, why, advice, share=found.share, decides=True)


def _clocks(found: audit.Skew) -> Check:
    if not found.total:
        return Check("clock-skew", _DEVICE, "clocks", "unknown", "no work has its launch, so clocks cannot be compared")
    if not found.count:
        return Check("clock-skew", _DEVICE, "clocks", "ok", "no kernel starts before its launch")
    share = found.count / found.total
    return Check(
        "clock-skew",
        _DEVICE,
        "clocks",
        _status(share, _SKEWED_SHARE),
        f"{found.count:,} of {found.total:,} ({format_share(share)}) start before their launch: by"
        f" {format_us(found.median_us)} in the median, {format_us(found.most_us)} at most",
        "the clocks of host and device disagree by at least as much; durations are not affected, delays are",
        share=share,
        decides=True,
    )


def _ids(linked: Linked) -> Check:
    ops, launches, work = audit.repeated_ids(linked)
    counts = ((launches, "launches"), (work, "device work"), (ops, "ops"))
    doubled = [f"{what} {count:,}" for count, what in counts if count]
    if not doubled:
        return Check("repeated-ids", _DEVICE, "ids", "ok", "no id is used twice")
    return Check(
        "repeated-ids",
        _DEVICE,
        "ids",
        "limited" if launches or work else "ok",
        f"used more than once: {', '.join(doubled)}",
        "each is tied to the nearest in time",
        decides=True,
    )


def _streams(found: audit.Crossing) -> Check:
    if not found.count:
        return Check("streams-overlap", _DEVICE, "streams", "ok", "work on one stream never overlaps")
    share = found.count / found.total
    return Check(
        "streams-overlap",
        _DEVICE,
        "streams",
        _status(share),
        f"{found.count:,} of {found.total:,} overlap the next on their stream, by up to {format_us(found.most_us)}",
        "busy time is the union, so no time counts twice",
        share=share,
        decides=True,
    )


def _status(share: float, tolerated: float = TOLERATED_SHARE) -> Status:
    return "ok" if share <= tolerated else "limited"
