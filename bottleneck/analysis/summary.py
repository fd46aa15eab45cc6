"""Assembles the analysis of one trace.

Ledger, roofline and costs become the record that reports are made of.
"""

import itertools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from bottleneck.analysis.collectives import fold_collectives
from bottleneck.analysis.faults import DECISIVE_LOSS, find_faults
from bottleneck.analysis.kernel_rows import KernelTimes, against_onednn, codes_of, fold_kernels, lost_products
from bottleneck.analysis.ledger import GROUP_OF_ACCOUNT, LedgerResult, is_wait
from bottleneck.analysis.memory import measure_memory
from bottleneck.analysis.phases import divide
from bottleneck.analysis.queue import measure_queue
from bottleneck.analysis.verdict import describe_sides
from bottleneck.schema.accounts import ACCOUNTS, UNMODELLED_ACCOUNTS
from bottleneck.schema.analysis import (
    GROUPS,
    KERNELS_MISSING,
    ONE_RANK,
    TWO_SIDED,
    Caveat,
    Coverage,
    Fold,
    IdleCause,
    KernelSummary,
    RecordingInfo,
    StepAnalysis,
    Totals,
    UnknownWork,
)
from bottleneck.schema.device import Device
from bottleneck.schema.intervals import Flags, Integers, tally
from bottleneck.schema.kernel_names import name_in_sentence
from bottleneck.schema.linked_trace import Linked
from bottleneck.schema.measurements import RestingMemory, StepTime, StepTimes, Timing
from bottleneck.schema.statistics import summarise_durations
from bottleneck.system.working_memory import return_freed_memory
from bottleneck.units import US_PER_S, counted, format_share, format_si

if TYPE_CHECKING:
    from bottleneck.schema.reasons import Reason

_NO_PEAK = "a trace counts host memory from where it begins, not what was in use before"
_UNMODELLED = tuple(tuple(ACCOUNTS).index(name) for name in UNMODELLED_ACCOUNTS)


def total(rows: KernelTimes, kernels: Sequence[KernelSummary], device: Device) -> Totals:
    """Gives work, traffic and counts of one step.

    They include the part of the device's ceilings that these use.

    ``kernels`` are the folded kernels, which know their dtype and engine. Sums over several devices are their mean.
    """
    linked, result = rows.linked, rows.result
    copies, is_fill = ((linked.kernels["kind"] == kind).to_numpy() for kind in ("copy", "fill"))
    works = ~(copies | is_fill) & (rows.roofline["bound"] != "dispatch").to_numpy()
    amounts = {name: _known_total(rows, name) for name in ("flops", "bytes_low", "bytes_high")}
    amounts["flops"] = (amounts["flops"] or 0.0) + lost_products(rows)[1] or amounts["flops"]
    wall_us, steps = result.ledger.wall_us, max(len(linked.window.steps), 1)
    launch = codes_of(linked.kernels["launch"])[rows.runs > 0]
    begun_us, (low_us, high_us) = linked.ops["ts_us"].to_numpy(), linked.window.host_us
    peak = _peak(kernels, device)
    return Totals(
        busy_us=result.busy_us,
        idle_us=max(wall_us - result.busy_us, 0.0),
        **amounts,
        kernel_count=float(rows.runs[works].sum()) / rows.repeats,
        op_count=int(np.count_nonzero((begun_us >= low_us) & (begun_us < high_us))) / steps,
        launch_count=int(pd.unique(launch[launch >= 0]).size) / rows.repeats,
        sync_count=result.sync_count / steps,
        copy_count=float(rows.runs[copies].sum()) / rows.repeats,
        h2d_bytes=_copied(rows, copies, "to_device"),
        d2h_bytes=_copied(rows, copies, "to_host"),
        peak_memory_bytes=None if result.host_only else _peak_memory(linked),
        peak_memory_reason=_NO_PEAK if result.host_only else None,
        model_flops_utilization=_utilisation(amounts["flops"], device.peaks_flops_per_s.get(peak or ""), wall_us),
        bandwidth_utilization=_utilisation(amounts["bytes_low"], device.main_bandwidth_bytes_per_s, wall_us),
        peak=peak,
    )


def cover(rows: KernelTimes) -> Coverage:
    """Gives shares of busy time tied to ops and modelled.

    It also lists what has no cost, most time first.
    """
    busy_us = rows.result.busy_us
    unknown = np.flatnonzero(np.isin(rows.account, _UNMODELLED) & (rows.us > 0))
    unknown_us = float(rows.us[unknown].sum())
    return Coverage(
        linked_share=rows.linked.linked_share,
        modelled_share=max(1.0 - unknown_us / busy_us, 0.0) if busy_us > 0 else None,
        unknown=_unknown_work(rows, unknown),
    )


def _unknown_work(rows: KernelTimes, unknown: Integers) -> tuple[UnknownWork, ...]:
    """Unmodelled time by op (by kernel where no op is known) and reason."""
    reasons, ops, kernels = rows.labels("reason"), rows.linked.ops["name"].cat.categories, rows.labels("name")
    op, kernel, reason = rows.op_codes("name"), rows.codes("name"), rows.codes("reason")
    us: dict[tuple[str, Reason | None], float] = {}
    keys = np.stack((op[unknown], np.where(op[unknown] < 0, kernel[unknown], -1), reason[unknown]), axis=1)
    distinct, inverse = np.unique(keys, axis=0, return_inverse=True)
    sums = np.bincount(inverse.ravel(), weights=rows.us[unknown], minlength=len(distinct))
    for (op_code, kernel_code, reason_code), amount in zip(distinct.tolist(), sums.tolist(), strict=True):
        name = str(ops[op_code]) if op_code >= 0 else str(kernels[kernel_code])
        key = name, reasons[reason_code] if reason_code >= 0 else None
        us[key] = us.get(key, 0.0) + amount
    ranked = sorted(us.items(), key=lambda item: -item[1])
    return tuple(
        UnknownWork(
            name, amount, "no cost formula" if reason is None else reason.words, None if reason is None else reason.code
        )
        for (name, reason), amount in ranked
    )


def _known_total(rows: KernelTimes, column: str) -> float | None:
    values = rows.roofline[column].to_numpy()
    is_known = ~np.isnan(values) & (rows.runs > 0)
    return float((values[is_known] * rows.runs[is_known]).sum()) / rows.repeats if is_known.any() else None


def _copied(rows: KernelTimes, copies: Flags, way: str) -> float | None:
    """Gives bytes per step that copies of this direction moved.

    Null when one of them does not say how many.
    """
    mine = np.flatnonzero(copies & (rows.linked.kernels["copy_way"] == way).to_numpy() & (rows.runs > 0))
    amount = rows.linked.kernels["bytes"].to_numpy(dtype=np.float64, na_value=np.nan)[mine] * rows.runs[mine]
    return None if np.isnan(amount).any() else float(amount.sum()) / rows.repeats


def _peak_memory(linked: Linked) -> int | None:
    """Gives the most memory that the device's allocator handed out.

    Null on a host, of which a trace counts from its own start.
    """
    memory = linked.trace.memory
    totals = memory["total_allocated"][memory["on_device"]].dropna()
    return int(totals.max()) if len(totals) and totals.max() > 0 else None


def _peak(kernels: Sequence[KernelSummary], device: Device) -> str | None:
    """Gives the key of the peak for most of the FLOPs.

    It is for the dtype and engine that these use. Null when the device has none for it.
    """
    flops: defaultdict[tuple[str, str | None], float] = defaultdict(float)
    for kernel in kernels:
        if kernel.flops and kernel.dtype:
            flops[kernel.dtype, _peak_of(kernel, device)] += kernel.flops
    return max(flops, key=lambda key: flops[key])[1] if flops else None


def _peak_of(kernel: KernelSummary, device: Device) -> str | None:
    """Gives the peak that a kernel is compared with.

    A CPU op's name states no engine: the peak of its floor counts.
    """
    peaks = device.peaks_flops_per_s
    units = ("vector", "tensor") if kernel.engine == "vector" else ("tensor", "vector")
    keys = [key for unit in units if peaks.get(key := f"{kernel.dtype}_{unit}")]
    if kernel.engine is None and kernel.flops and kernel.compute_us:
        rate = kernel.flops / kernel.compute_us * US_PER_S
        return min(keys, key=lambda key: abs(math.log(peaks[key] / rate)), default=None)
    return next(iter(keys), None)


def _utilisation(amount: float | None, per_s: float | None, wall_us: float) -> float | None:
    """Gives the part of a ceiling that an amount uses.

    The amount is per step. Null where unknown, or where it exceeds the ceiling.

    More than the ceiling means that the bytes came from a cache, or that the ceiling is not this device's.
    """
    if amount is None or not per_s or not wall_us:
        return None
    share = amount / (per_s * wall_us / US_PER_S)
    return share if share <= 1.0 else None


# Less of the charged time than this is not worth a line.
_WORTH_A_LINE = 0.01
_SHOWN = 3


def completed_caveats(rows: KernelTimes) -> tuple[Caveat, ...]:
    """Gives one caveat on completed calls and their sources.

    Most time comes first. There is none where nearly all was recorded.
    """
    place, distinct = pd.factorize(rows.costs["evidence"])
    code = np.append(place, -1)[rows.op_codes("signature")]
    completed = (code >= 0) & (rows.us > 0)
    total_us = float(rows.us.sum())
    share = float(rows.us[completed].sum()) / total_us if total_us > 0 else 0.0
    if share < _WORTH_A_LINE:
        return ()
    us = np.bincount(code[completed], weights=rows.us[completed], minlength=len(distinct))
    most = [distinct[row] for row in np.argsort(-us, kind="stable")[:_SHOWN] if us[row] > 0]
    facts = dict.fromkeys(itertools.chain.from_iterable(most))
    message = (
        f"the sizes of {format_share(share)} of the work were not recorded with its calls but inferred "
        f"({'; '.join(facts)}): none of it is judged with high confidence"
    )
    return (Caveat("completed-calls", message, share),)


_NO_WORK = dict.fromkeys(GROUPS, 0.0)


def _sums(waits: Iterable[tuple[str | None, float]]) -> dict[str, float]:
    """Idle time by name; that of unknown places is left out."""
    sums: dict[str, float] = {}
    for name, us in waits:
        if name is not None:
            sums[name] = sums.get(name, 0.0) + us
    return sums


def _fold(
    rows: KernelTimes, codes: Integers, labels: "pd.Index[str]", idle_us: Mapping[str, float]
) -> tuple[Fold, ...]:
    """Folds by name, most time first; work without a known name is left out.

    What a data loader or a compiler runs is idle time.
    """
    keep = np.flatnonzero((codes >= 0) & (rows.us > 0) & ~is_wait(rows.account))
    size, groups = len(labels), len(GROUPS)
    us = tally(codes[keep], rows.us[keep], size)
    calls = tally(codes[keep], rows.runs[keep], size) / rows.repeats
    cell = codes[keep] * groups + GROUP_OF_ACCOUNT[rows.account[keep]]
    split = tally(cell, rows.us[keep], size * groups).reshape(size, groups)
    worked = [
        Fold(
            name=str(labels[code]),
            calls=float(calls[code]),
            us=float(us[code]),
            share=float(us[code]) / rows.wall_us,
            shares=dict(zip(GROUPS, (split[code] / us[code]).tolist(), strict=True)),
            idle_us=idle_us.get(str(labels[code]), 0.0),
        )
        for code in np.flatnonzero(us).tolist()
    ]
    places = {fold.name for fold in worked}
    waited = [Fold(name, 0.0, 0.0, 0.0, _NO_WORK, waited) for name, waited in idle_us.items() if name not in places]
    return tuple(sorted((*worked, *waited), key=lambda fold: -(fold.us + fold.idle_us)))


_INSTANCE = re.compile(r"_\d+$")  # the profiler numbers the modules of a class


def fold_classes(modules: Sequence[Fold], known: Mapping[str, str]) -> tuple[Fold, ...]:
    """Folds the modules by place, most time first.

    A place is 'Model > layer.* x 24 > attention > query'.

    ``known`` are attribute paths by the profiler's names. One without a path goes by its class: 'Layer x 24'. The
    number is that of the modules inside each of those around them, where all of these have as many.
    """
    paths = {fold.name: tuple(fold.name.split(".")) for fold in modules}
    attributes = _Attributes({name: known[name] for path in paths.values() for name in path if name in known})
    members: defaultdict[tuple[str, ...], set[tuple[str, ...]]] = defaultdict(set)
    for path in paths.values():
        for depth in range(1, len(path) + 1):
            members[attributes.of(path[:depth])].add(path[:depth])
    same: defaultdict[tuple[str, ...], list[Fold]] = defaultdict(list)
    for fold in modules:
        same[attributes.of(paths[fold.name])].append(fold)
    titles = {names: " > ".join(_counted(names[: depth + 1], members) for depth in range(len(names))) for names in same}
    folded = [_together(titles[names], folds) for names, folds in same.items()]
    return tuple(sorted(folded, key=lambda fold: -(fold.us + fold.idle_us)))


class _Attributes:
    """The names under which modules are folded.

    Each is its path in the module around it, numbers as '*'.

    Where numbers count modules of several classes, as those of a Sequential, the class stands behind: 'net.* (ReLU)'.
    """

    def __init__(self, known: Mapping[str, str]) -> None:
        self._known = known
        self._classes: defaultdict[str, set[str]] = defaultdict(set)
        for name, path in known.items():
            self._classes[_starred(path)].add(_class(name))

    def of(self, path: tuple[str, ...]) -> tuple[str, ...]:
        """A name for each module of the path."""
        return tuple(self._name(around, name) for around, name in itertools.pairwise(("", *path)))

    def _name(self, around: str, name: str) -> str:
        path = self._known.get(name)
        if path is None:
            return _class(name)
        starred = _starred(path)
        kind = f" ({_class(name)})" if len(self._classes[starred]) > 1 else ""
        return starred.removeprefix(f"{_starred(self._known.get(around, ''))}.") + kind


def _class(name: str) -> str:
    return _INSTANCE.sub("", name)


def _starred(path: str) -> str:
    return ".".join("*" if part.isdecimal() else part for part in path.split("."))


def _counted(names: tuple[str, ...], found: Mapping[tuple[str, ...], set[tuple[str, ...]]]) -> str:
    """Gives the innermost name with its number per module around it.

    It is their total where these differ in it.
    """
    around = Counter(path[:-1] for path in found[names])
    counts = {around.get(path, 0) for path in found.get(names[:-1], around)}
    name, most = names[-1], max(counts)
    if len(counts) > 1:
        return f"{name} ({len(found[names])} in all)"
    return name if most == 1 else f"{name} x {most}"


def _together(name: str, folds: Sequence[Fold]) -> Fold:
    us, share, calls, idle_us = (
        math.fsum(getattr(fold, field) for fold in folds) for field in ("us", "share", "calls", "idle_us")
    )
    parts = {group: math.fsum(fold.us * fold.shares[group] for fold in folds) for group in GROUPS}
    return Fold(name, calls, us, share, {group: part / us if us > 0 else 0.0 for group, part in parts.items()}, idle_us)


_ENOUGH_MODELLED = 0.95
_WORTH_A_CAVEAT = 0.05


def assemble(
    rows: KernelTimes,
    device: Device,
    recording: RecordingInfo,
    unprofiled: Timing | None = None,
    caveats: Sequence[Caveat] = (),
    resting: Sequence[RestingMemory] = (),
) -> StepAnalysis:
    """Assembles the analysis of one trace, per step.

    ``unprofiled`` are step times without the profiler, where measured, ``resting`` the memory that was held before.
    """
    linked, result = rows.linked, rows.result
    kernels = tuple(against_onednn(row, device) for row in fold_kernels(rows))
    idle, coverage = _idle_causes(result), cover(rows)
    totals = total(rows, kernels, device)
    sides = "" if result.sides is None else f"{describe_sides(result.sides)}: each side has its own bound"
    return_freed_memory()
    phases, ranges = divide(rows)
    memory, memory_reason = measure_memory(linked, resting)
    waits = _sums((entry.module, entry.us) for entry in idle)
    modules = _fold(rows, rows.codes("module"), rows.labels("module"), waits)
    live = () if memory is None else memory.allocations
    used = ".".join([*(fold.name for fold in modules), *(entry.module for entry in live if entry.module)]).split(".")
    paths = linked.trace.module_paths
    return StepAnalysis(
        recording=recording,
        device=device,
        steps=_step_times(linked, unprofiled, result.ledger.wall_us),
        ledger=result.ledger.entries,
        totals=totals,
        coverage=coverage,
        kernels=kernels,
        ops=_fold(rows, rows.op_codes("name"), linked.ops["name"].cat.categories, {}),
        modules=modules,
        module_classes=fold_classes(modules, paths),
        module_paths={name: paths[name] for name in sorted(set(used) & paths.keys())},
        lines=_fold(
            rows, rows.codes("source"), rows.labels("source"), _sums((entry.source, entry.us) for entry in idle)
        ),
        idle=idle,
        ranks=(),
        caveats=(
            *find_faults(linked),
            *caveats,
            *result.caveats,
            *_lost_product_caveats(rows, totals),
            *_coverage_caveats(coverage, result),
            *completed_caveats(rows),
            *((Caveat(TWO_SIDED, sides),) if sides else ()),
            *_one_rank_caveats(linked, result),
        ),
        queue=None if result.host_only else measure_queue(linked, result.devices),
        collectives=fold_collectives(rows),
        phases=phases,
        ranges=ranges,
        memory=memory,
        memory_reason=memory_reason,
    )


def _idle_causes(result: LedgerResult) -> tuple[IdleCause, ...]:
    wall_us = result.ledger.wall_us
    names = ("cause", "us", "source", "calls", "detail", "module", "copy", "before", "after", "on_pages")
    columns = [result.idle[name].tolist() for name in names]
    return tuple(
        IdleCause(cause, us, us / wall_us, source, float(calls), *texts)
        for cause, us, source, calls, *texts in zip(*columns, strict=True)
        if us > 0
    )


def _step_times(linked: Linked, unprofiled: Timing | None, wall_us: float) -> StepTimes:
    """Gives the times of the steps, with the step of the ledger.

    ``perturbation`` is how many times longer a profiled step takes than an unprofiled one.
    """
    window = linked.window
    count = max(len(window.steps), 1)
    profiled_us = window.wall_us / count
    undisturbed_us = unprofiled.median if unprofiled is not None and unprofiled.median > 0 else None
    # Every step that was found, in order, those set aside too.
    every = sorted([*((step, None) for step in window.steps), *window.set_aside], key=lambda item: item[0].start_us)
    return StepTimes(
        count=count,
        wall_us=wall_us,
        profiled_us=summarise_durations([step.us for step in window.steps]),
        unprofiled_us=unprofiled,
        perturbation=None if undisturbed_us is None else profiled_us / undisturbed_us,
        source=window.source,
        each=tuple(
            StepTime(step.name, step.us, *(() if why is None else (why.words, why.code))) for step, why in every
        ),
    )


def _coverage_caveats(coverage: Coverage, result: LedgerResult) -> tuple[Caveat, ...]:
    unknown = result.ledger.group_shares()["unknown"]
    if not coverage.unknown or coverage.modelled_share is None or coverage.modelled_share >= _ENOUGH_MODELLED:
        return ()
    most = coverage.unknown[0]
    message = (
        f"{format_share(unknown)} of the step is unmodelled work, so neither compute nor memory can claim it; "
        f"the largest is {name_in_sentence(most.name)} ({most.reason})"
    )
    return (Caveat("unmodelled-work", message, unknown),)


def _lost_product_caveats(rows: KernelTimes, totals: Totals) -> tuple[Caveat, ...]:
    """Gives a caveat on products without a recorded kernel.

    It has their FLOPs where those are known.
    """
    count, flops = lost_products(rows)
    if not count:
        return ()
    amount = f" ({format_si(flops, 'FLOP')} per step, which count)" if flops else ""
    message = (
        f"{counted(count, 'matrix product')}{amount} ran, but their kernels are not recorded: of each only a fill "
        "of its workspace is left, so the profiler lost events"
    )
    is_decisive = flops > DECISIVE_LOSS * (totals.flops or 0.0)
    return (Caveat(KERNELS_MISSING if is_decisive else "lost-products", message),)


def _one_rank_caveats(linked: Linked, result: LedgerResult) -> tuple[Caveat, ...]:
    share, world = result.ledger.group_shares()["communication"], linked.trace.world_size or 1
    if world < 2 or share < _WORTH_A_CAVEAT:
        return ()
    message = (
        f"this is one of {world} ranks: its {format_share(share)} in collectives includes waiting for ranks that are "
        "late; give the traces of all ranks to see which"
    )
    return (Caveat(ONE_RANK, message, share),)
