"""Gives the caveats on a trace that hold whatever its steps are.

They say what is damaged, missing or odd in it.

The trace stage reads and counts; here the counts become the list that a report and `bottleneck doctor` both show.
"""

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pandas as pd

from bottleneck.schema.analysis import GRAPH_CAPTURE, KERNELS_MISSING, LEAD_IN, ONE_OFF, SAMPLED, STARTED_BEFORE, Caveat
from bottleneck.schema.intervals import Flags, grouped, union
from bottleneck.schema.linked_trace import GraphReplays, Integrity, Linked, Window
from bottleneck.units import counted, format_share, format_us

# Beyond this part of the window, or of its FLOPs, lost work could be what limits the step: no verdict stands.
DECISIVE_LOSS = 0.1
# A few calls whose kernels ran after the profiler stopped are normal.
TOLERATED_SHARE = 0.02
# The profiler numbers its ops from one to the next; of an excerpt of them few ids follow one another.
_WHOLE_DENSITY = 0.5
# Of the window: less start-up is not worth a caveat.
_WORTH_A_CAVEAT = 0.1


def find_faults(linked: Linked) -> tuple[Caveat, ...]:
    """Gives the caveats on a trace and its links.

    Damage of the file comes first. Shares are those of the window.
    """
    faults = (*linked.trace.caveats, *step_caveats(linked.window), *_of_ops(linked))
    if linked.is_host_only:
        return (*faults, *_of_profiler(linked))
    return (
        *faults,
        *_of_links(linked.window, linked.kernels),
        *_of_launches(linked.integrity, _busy_share(linked)),
        *_of_one_offs(linked),
        *_of_earlier_one_offs(linked),
        *_of_replays(linked.integrity.replays),
        *_of_queues(linked),
        *_of_profiler(linked),
    )


def step_caveats(window: Window) -> tuple[Caveat, ...]:
    """Caveats on a beginning and on steps that were left out, if any."""
    if window.lead_in_us:
        message = (
            f"the first {format_us(window.lead_in_us)} of the recording are not counted: the device was still busy "
            "with earlier work, or the profiler was starting; --all counts them"
        )
        return (Caveat(LEAD_IN, message),)
    if not window.set_aside:
        return ()
    total = len(window.set_aside) + len(window.steps)
    reasons = Counter(reason.kind for _, reason in window.set_aside)
    listed = "; ".join(f"{count} {reason}" for reason, count in reasons.items())
    return (
        Caveat(
            "steps-set-aside", f"{len(window.steps)} of {counted(total, 'step')} explained, the others not: {listed}"
        ),
    )


def _of_ops(linked: Linked) -> Iterator[Caveat]:
    """Yields caveats on the ops of a trace.

    They are on a trace that holds a sample of the ops, and on ops that outlast the op around them.
    """
    measured = linked.integrity
    if measured.id_density is not None and measured.id_density < _WHOLE_DENSITY:
        message = (
            f"judging by the ids of its ops, the trace holds about one op in {round(1 / measured.id_density)}: it"
            " was sampled or filtered, so its times and counts are not the program's"
        )
        yield Caveat(SAMPLED, message)
    if measured.outlasting > TOLERATED_SHARE * len(linked.ops):
        message = (
            f"{measured.outlasting:,} of {counted(len(linked.ops), 'op')} outlast the op around them, by up to"
            f" {format_us(measured.outlasting_us)}; they are cut where that ends, so that no time counts twice"
        )
        yield Caveat("ops-overlap", message)


def _of_links(window: Window, kernels: pd.DataFrame) -> Iterator[Caveat]:
    """Yields caveats on the links of device work.

    Messages give shares of the device's busy time.
    """
    early_us = (kernels["launch_ts_us"] - kernels["ts_us"]).to_numpy()
    most_early = format_us(float(np.nanmax(early_us, initial=0.0)))
    texts = (
        (
            "orphans",
            kernels["launch"].isna() & kernels["op"].isna(),
            "{pieces} ({busy}) have no launch in the trace; they count as busy, but are attributed to no op",
        ),
        (
            "launched-outside-ops",
            kernels["unlinked"] == "outside_op",
            "{pieces} ({busy}) were launched outside any recorded op",
        ),
        (
            "graph-replay",
            kernels["replayed"],
            "{count} kernels ({busy}) were replayed from a graph; the trace does not say which ops they belong to",
        ),
        (
            "clock-skew",
            early_us > 0,
            f"{{pieces}} start before their launch, by up to {most_early}: the clocks of host and device disagree by at"
            " least as much",
        ),
    )
    dur_us = kernels["dur_us"].to_numpy()
    total_us = dur_us.sum()
    for slug, column, message in texts:
        chosen = np.asarray(column)
        if not chosen.any():
            continue
        share = float(dur_us[chosen].sum() / total_us) if total_us > 0 else 0.0
        text = message.format(
            count=chosen.sum(),
            pieces=f"{chosen.sum()} of {counted(len(kernels), 'piece')} of device work",
            busy=f"{format_share(share)} of the device's busy time",
        )
        yield Caveat(slug, text, _touched(window, kernels, chosen))


def _touched(window: Window, kernels: pd.DataFrame, chosen: Flags) -> float:
    """Share of the window in which any of the chosen work runs."""
    start_us = kernels["ts_us"].to_numpy()[chosen]
    end_us = start_us + kernels["dur_us"].to_numpy()[chosen]
    order = np.argsort(start_us)
    start_us, end_us = (np.clip(at_us[order], window.start_us, window.end_us) for at_us in (start_us, end_us))
    covered_us = np.maximum.accumulate(np.append(window.start_us, end_us))
    new_us = np.maximum(end_us - np.maximum(start_us, covered_us[:-1]), 0.0)
    return min(float(new_us.sum()) / window.wall_us, 1.0) if window.wall_us > 0 else 0.0


def _busy_share(linked: Linked) -> float:
    """Gives the busy part of the window, of its least busy device."""
    window, kernels = linked.window, linked.kernels
    begin_us, dur_us = kernels["ts_us"].to_numpy(), kernels["dur_us"].to_numpy()
    start, end = (np.clip(at_us, window.start_us, window.end_us) for at_us in (begin_us, begin_us + dur_us))
    busy_us = [union(start[rows], end[rows]).total() for _, rows in grouped(kernels["device"].to_numpy())]
    return min((us for us in busy_us if us > 0), default=0.0) / max(window.wall_us, 1e-9)


def _of_launches(measured: Integrity, busy: float) -> Iterator[Caveat]:
    """Yields caveats on launches without a kernel.

    These were captured into a graph, dropped, or queued when the profiler stopped. A device that is ``busy`` nearly all
    the time leaves lost kernels no time in which they could have limited the step.
    """
    launches = measured.launches
    if 2 * launches.captured > launches.total:
        yield Caveat(
            GRAPH_CAPTURE,
            f"{launches.captured} of {launches.total} kernel launches"
            f" ({format_share(launches.captured / launches.total)}) were captured into a graph, where they run later:"
            " the trace shows start-up",
        )
    if launches.lost > TOLERATED_SHARE * launches.total:
        lost = (
            f"{launches.lost} of {launches.total} kernel launches ({format_share(launches.lost / launches.total)}) have"
            " no kernel in the trace"
        )
        if busy >= 1 - DECISIVE_LOSS:
            yield Caveat(
                "links-missing",
                f"{lost}, but the device is busy for {format_share(busy)} of the window, so that its own record"
                " carries the verdict; what is missing is which calls of the host some of its work belongs to",
            )
        else:
            yield Caveat(KERNELS_MISSING, f"{lost}: dropped by the profiler, or still queued when it stopped")
    if launches.queued > TOLERATED_SHARE * launches.total:
        yield Caveat(
            "queued-at-end",
            f"{launches.queued} of {launches.total} kernel launches ({format_share(launches.queued / launches.total)})"
            " were still in the device's queue when the recording ended: their kernels lie beyond it",
        )


def _of_one_offs(linked: Linked) -> Iterator[Caveat]:
    """Yields a caveat on calls that are paid once.

    It has their share of the window, and is given only where that is worth one.
    """
    calls, events = list(linked.one_offs), linked.trace.events
    dur_us = events["dur_us"].to_numpy()[calls]
    share = min(1.0, float(dur_us.sum()) / linked.window.wall_us) if calls else 0.0
    if share < _WORTH_A_CAVEAT:
        return
    longest = int(dur_us.argmax())
    label = events["name"].iloc[calls[longest]]
    others = f" and {len(calls) - 1} more" if len(calls) > 1 else ""
    take, are = ("take", "are") if others else ("takes", "is")
    message = (
        f"one call of {label} ({format_us(float(dur_us[longest]))}){others} {take} {format_share(share)} of the window,"
        f" and {are} paid once: start-up of a context or a library, loading of a kernel, or memory that is kept"
    )
    yield Caveat(ONE_OFF, message, share)


def _of_earlier_one_offs(linked: Linked) -> Iterator[Caveat]:
    """Yields a caveat on calls before the steps that are paid once.

    It is given where they take longer than a step.
    """
    calls, events = list(linked.one_offs_before), linked.trace.events
    dur_us = events["dur_us"].to_numpy()[calls]
    if not calls or dur_us.sum() <= linked.window.wall_us / len(linked.window.steps):
        return
    longest = int(dur_us.argmax())
    message = (
        f"one-time start-up before these steps ({format_us(float(dur_us.sum()))}) is not counted: most of it is"
        f" {events['name'].iloc[calls[longest]]} ({format_us(float(dur_us[longest]))})"
    )
    yield Caveat(STARTED_BEFORE, message)


def _of_replays(replays: GraphReplays | None) -> Iterator[Caveat]:
    """Yields a caveat on graph replays that lack kernels.

    They hold fewer kernels than others of the same graph.
    """
    if replays is None or replays.lost <= TOLERATED_SHARE * replays.whole:
        return
    message = (
        f"{replays.short:,} of {counted(replays.count, 'graph replay')} lack {counted(replays.lost, 'kernel')} that"
        f" others of the same graph have, {format_share(replays.lost / replays.whole)} of {replays.whole:,}"
    )
    yield Caveat("graph-kernels", message)


def _of_queues(linked: Linked) -> Iterator[Caveat]:
    """Yields caveats on overlapping work and repeated ids.

    The work overlaps on its stream. The ids are used more than once.
    """
    measured, work = linked.integrity, len(linked.kernels)
    if measured.overlaps > TOLERATED_SHARE * work:
        message = (
            f"{measured.overlaps:,} of {counted(work, 'piece')} of device work overlap the next on their stream, by up"
            f" to {format_us(measured.overlap_us)}; busy time is the union, so that no time counts twice"
        )
        yield Caveat("streams-overlap", message)
    counts = ((measured.repeated_launches, "launches"), (measured.repeated_work, "device work"))
    doubled = [f"{what} {count:,}" for count, what in counts if count]
    if max(count for count, _ in counts) > TOLERATED_SHARE * work:
        message = f"ids are used more than once ({', '.join(doubled)}); each is tied to the nearest in time"
        yield Caveat("repeated-ids", message)


def _of_profiler(linked: Linked) -> Iterator[Caveat]:
    """A caveat on errors that the profiler wrote into the trace while it recorded."""
    if "ERROR" in linked.trace.facts:
        yield Caveat("profiler-log", f"the profiler reported an error while it recorded: {linked.trace.facts['ERROR']}")
