"""The analysis of one trace: ledger, roofline and costs told as the record that reports are made of."""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from bottleneck.analysis.charged import Charged, charged_rows
from bottleneck.analysis.collectives import fold_collectives
from bottleneck.analysis.completed import completed_caveats
from bottleneck.analysis.contention import CONTENDED
from bottleneck.analysis.folds import fold_lines, fold_modules, fold_ops
from bottleneck.analysis.kernel_rows import fold_kernels
from bottleneck.analysis.ledger import LedgerResult
from bottleneck.analysis.queue import measure_queue
from bottleneck.analysis.scaling import DISTURBED, rescale
from bottleneck.analysis.tax import untaxed_parts
from bottleneck.analysis.totals import cover, total
from bottleneck.analysis.verdict import Grounds, decide, describe_sides, name_in_sentence
from bottleneck.measured import StepTime, StepTimes, Timing
from bottleneck.records import Analysis, Caveat, Coverage, Device, IdleCause, RecordingInfo
from bottleneck.tracing import Linked, Window
from bottleneck.units import format_share

# Caveats that leave nothing to judge: a good part of the device's work is not in the trace, or the time is not its own.
_BROKEN = frozenset({"no-device-events", "kernels-missing", DISTURBED, CONTENDED})
_PRICED_ENOUGH = 0.95
_WORTH_A_CAVEAT = 0.05
# The slug of a caveat that no longer holds once several ranks are looked at together.
ONE_RANK = "one-rank"


@dataclass(frozen=True)
class Evidence:
    """What the stages found about one trace. ``unprofiled`` are step times without the profiler, where measured."""

    linked: Linked
    costs: pd.DataFrame
    charges: pd.DataFrame
    roofline: pd.DataFrame
    result: LedgerResult
    device: Device
    recording: RecordingInfo
    unprofiled: Timing | None = None
    caveats: tuple[Caveat, ...] = ()


def charge_rows(evidence: Evidence) -> Charged:
    """What each row of KERNELS is charged per step; with ``unprofiled`` given, of the undisturbed step."""
    result = rescale(evidence.result, evidence.unprofiled, untaxed_parts(evidence.linked))
    return charged_rows(evidence.linked, evidence.costs, evidence.charges, evidence.roofline, result)


def assemble(evidence: Evidence, charged: Charged | None = None) -> Analysis:
    """Everything that a report tells of one trace, per step; ``charged`` is what ``charge_rows`` gives for it."""
    linked = evidence.linked
    rows = charge_rows(evidence) if charged is None else charged
    result = rows.result
    kernels, idle, coverage = fold_kernels(rows), _idle_causes(result), cover(rows, result)
    caveats = (
        *linked.trace.caveats,
        *linked.caveats,
        *evidence.caveats,
        *result.caveats,
        *_coverage_caveats(coverage, result),
        *completed_caveats(rows),
        *_sides_caveats(result),
        *_one_rank_caveats(linked, result),
    )
    grounds = Grounds(result.ledger, kernels, idle, result.host_only, _broken(caveats), result.sides)
    return Analysis(
        recording=evidence.recording,
        device=evidence.device,
        steps=_step_times(linked, evidence),
        verdict=decide(grounds),
        ledger=result.ledger.entries,
        totals=total(rows, result, kernels, evidence.device),
        coverage=coverage,
        kernels=kernels,
        ops=fold_ops(rows),
        modules=fold_modules(rows, idle),
        lines=fold_lines(rows, idle),
        idle=idle,
        ranks=(),
        caveats=caveats,
        queue=None if result.host_only else measure_queue(linked, result.devices),
        collectives=fold_collectives(rows),
    )


def _idle_causes(result: LedgerResult) -> tuple[IdleCause, ...]:
    wall_us = result.ledger.wall_us
    columns = [result.idle[name].tolist() for name in ("cause", "us", "source", "calls", "detail", "module")]
    return tuple(
        IdleCause(cause, us, us / wall_us, source, float(calls), detail, module)
        for cause, us, source, calls, detail, module in zip(*columns, strict=True)
        if us > 0
    )


def _step_times(linked: Linked, evidence: Evidence) -> StepTimes:
    """Times of the steps. ``perturbation`` is how many times longer a profiled step takes than an unprofiled one."""
    profiled_us, unprofiled = evidence.result.ledger.wall_us, evidence.unprofiled
    undisturbed = unprofiled is not None and unprofiled.median > 0
    return StepTimes(
        count=max(len(linked.window.steps), 1),
        wall_us=unprofiled.median if unprofiled is not None and undisturbed else profiled_us,
        profiled_us=_timing([step.us for step in linked.window.steps]),
        unprofiled_us=unprofiled,
        perturbation=profiled_us / unprofiled.median if unprofiled is not None and undisturbed else None,
        source=linked.window.source,
        each=_each(linked.window),
    )


def _each(window: Window) -> tuple[StepTime, ...]:
    """Every step that was found, in order, those set aside too."""
    steps = [*((step, None) for step in window.steps), *window.set_aside]
    return tuple(StepTime(step.name, step.us, why) for step, why in sorted(steps, key=lambda each: each[0].start_us))


def _timing(durations_us: list[float]) -> Timing | None:
    """Median of step times with its 95 % interval by order statistics (binomial, no shape assumed); null without steps.

    Below six steps the interval is the whole range and covers less than 95 %.
    """
    count = len(durations_us)
    if not count:
        return None
    ordered = np.sort(durations_us)
    rank = max(math.floor(count / 2 - 0.98 * math.sqrt(count)), 0)
    return Timing(float(np.median(ordered)), float(ordered[rank]), float(ordered[count - 1 - rank]), count)


def _coverage_caveats(coverage: Coverage, result: LedgerResult) -> tuple[Caveat, ...]:
    unknown = result.ledger.group_shares()["unknown"]
    if not coverage.unknown or coverage.priced_share is None or coverage.priced_share >= _PRICED_ENOUGH:
        return ()
    most = coverage.unknown[0]
    message = (
        f"{format_share(unknown)} of the step is work without a price, so neither compute nor memory can claim it; "
        f"the largest is {name_in_sentence(most.name)} ({most.reason})"
    )
    return (Caveat("unpriced-work", message, unknown),)


def _sides_caveats(result: LedgerResult) -> tuple[Caveat, ...]:
    if result.sides is None:
        return ()
    return (Caveat("two-sided", f"{describe_sides(result.sides)}: each side has its own bound"),)


def _one_rank_caveats(linked: Linked, result: LedgerResult) -> tuple[Caveat, ...]:
    share, world = result.ledger.group_shares()["communication"], linked.trace.world_size or 1
    if world < 2 or share < _WORTH_A_CAVEAT:
        return ()
    message = (
        f"this is one of {world} ranks: its {format_share(share)} in collectives includes waiting for ranks that are "
        "late; give the traces of all ranks to see which"
    )
    return (Caveat(ONE_RANK, message, share),)


def _broken(caveats: tuple[Caveat, ...]) -> str | None:
    """Why the trace cannot carry a verdict; null when it can."""
    return next((caveat.message for caveat in caveats if caveat.slug in _BROKEN), None)
