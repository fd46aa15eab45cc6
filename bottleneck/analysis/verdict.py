"""Decides the verdict: what holds the step back, how sure that is, and the sentence that says so."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from bottleneck.analysis.ledger import TwoSided
from bottleneck.schema.analysis import (
    GROUPS,
    Analysis,
    Bound,
    Finding,
    IdleCause,
    KernelSummary,
    Ledger,
    LedgerEntry,
    Regime,
    Verdict,
)
from bottleneck.units import format_share, format_us

# Below half of the step a group does not decide alone when the next one is this close.
_CLEAR_LEAD = 0.1

_GROUP_WORDS = {
    "compute": "compute",
    "memory": "memory bandwidth",
    "overhead": "overhead",
    "communication": "communication",
    "unknown": "work without a price",
}

# Account -> the first thing to try. '{at}' becomes ' at file.py:57' where the line is known.
_ADVICE: Mapping[str, str] = {
    "compute": "give the kernels larger or better shaped work",
    "memory": "fuse neighbouring pointwise ops (torch.compile) or move fewer bytes with a lower precision",
    "memory.copy": "copy less, or from pinned memory with non_blocking=True so that copies overlap with work",
    "overhead.launch_floor": "fuse the small kernels (torch.compile, fused optimizers) or raise the batch size",
    "overhead.profiler": "record fewer details: this time is the profiler's own",
    "overhead.gc": "keep the garbage collector out of the step: gc.freeze() after start-up, gc.collect() between steps",
    "overhead.compile": "record after warm-up; if it stays, find the recompilations with TORCH_LOGS=recompiles",
    "overhead.allocator": "keep memory between steps: no empty_cache() in the loop, expandable_segments:True",
    "overhead.sync": "remove or defer the synchronisation{at}",
    "overhead.launch": "issue fewer launches: CUDA graphs, torch.compile, or a larger batch",
    "overhead.input": "give the data loader more workers or let it prefetch further ahead",
    "overhead.dispatch": "dispatch less per step: torch.compile, CUDA graphs, or a larger batch",
    "overhead.python": "run less Python between the ops{at}: torch.compile, CUDA graphs, or a larger batch",
    "overhead.dependency": "find what the queued work waits for: another stream, another rank, a host callback",
    "overhead.unknown": "record again with CPU activity, so that the trace shows what the host did",
    "communication": "overlap the collectives with computation, or send less: larger buckets, gradients less often",
    "unknown": "record with shapes (record_shapes=True), so that more of the work can be priced",
}
_NEWER_TRACE = "record with shapes in a recent PyTorch: traces since 2.3 also hold dtypes and scalar arguments"
# Part of the reason why work has no price -> what would give it one.
_PRICE_ADVICE: Mapping[str, str] = {
    "compiled region": "judge the same step without torch.compile too: a compiled region records no shapes",
    "peak": "name the device (--device) or its ceilings (--peaks), or record with `bottleneck run`",
    "bandwidth": "name the device (--device) or its ceilings (--peaks), so that bytes can be judged",
    "graph": "record the same step without graphs too: a replay does not say which ops its kernels belong to",
    "outside any op": "call this work through an op (torch.library.custom_op), so that its shapes are recorded",
    "correlation": "record with a newer profiler, one that ties device work to the calls that issued it",
    "formula": "this op has no cost formula yet: judge the rest of the step by its kernels",
    "launch": "let the recording begin before the work is launched, and keep CPU activity on",
    "dilation": _NEWER_TRACE,
    "dtypes": _NEWER_TRACE,
    "as a tensor": _NEWER_TRACE,
    "indices": "no trace holds the indices: judge the rest of the step by its kernels",
}
_NEAR_THE_ROOF = "it runs near the roof: lower the precision or the number of FLOPs"
_UNDER_THE_ROOF = "lower the precision or the number of FLOPs; {share} of the peak is reached"
JUDGE_APART = "judge the sides apart, with a recording of warmed-up steps"
_NEAR = 0.7  # of the time explained; the best large products of public traces reach 0.71 to 0.97
_MISALIGNED = "pad the sizes of the matrix product to multiples of 8"
# On a CPU there are no launches to save, and time between ops has other remedies.
_HOST_ADVICE: Mapping[str, str] = {
    "overhead.launch_floor": "run fewer, larger ops: torch.compile or a larger batch",
    "overhead.dispatch": "run fewer, larger ops: torch.compile or a larger batch",
    "overhead.python": "run less Python between the ops{at}: torch.compile or a larger batch",
    "overhead.allocator": "allocate less: write into tensors that exist (out=, in-place ops)",
}


_ACCOUNT_WORDS: Mapping[str, str] = {
    "memory.copy": "copies",
    "overhead.launch_floor": "kernels too small to be worth a launch",
    "overhead.profiler": "the profiler itself",
    "overhead.gc": "garbage collection",
    "overhead.compile": "compiling or loading kernels",
    "overhead.allocator": "memory allocation",
    "overhead.sync": "waiting in synchronisations",
    "overhead.launch": "launching",
    "overhead.input": "waiting for data",
    "overhead.dispatch": "dispatching ops",
    "overhead.python": "Python between ops",
    "overhead.dependency": "queued work that the device itself held up",
    "overhead.unknown": "idle time without a recorded cause",
    "communication": "exposed collectives",
}
_BOUNDS_OF_ACCOUNT: Mapping[str, tuple[str, ...]] = {
    "compute": ("compute",),
    "memory": ("memory",),
    "memory.copy": ("copy",),
    "overhead.launch_floor": ("overhead",),
    "overhead.dispatch": ("dispatch",),
    "communication": ("communication",),
    "unknown": ("unknown",),
}
_EMPTY_ACCOUNT = {
    "compute": "compute",
    "memory": "memory",
    "overhead": "overhead.unknown",
    "communication": "communication",
    "unknown": "unknown",
}
_LONGEST_NAME = 60


@dataclass(frozen=True)
class Grounds:
    """What a verdict rests on. ``broken`` says why the trace cannot be trusted; null when it can."""

    ledger: Ledger
    kernels: tuple[KernelSummary, ...]
    idle: tuple[IdleCause, ...]
    host_only: bool = False
    broken: str | None = None
    sides: TwoSided | None = None


def decide(grounds: Grounds) -> Verdict:
    """The verdict: the largest group, unless too little is known or the lead too small.

    ``mixed`` when the largest known group holds under half and the next is within 10 points; ``inconclusive`` when more
    than half, or more than in any other group, is unknown, or when the trace cannot be trusted.
    """
    shares = grounds.ledger.group_shares()
    ranked = sorted((group for group in GROUPS if group != "unknown"), key=lambda group: -shares[group])
    first, second = ranked[0], ranked[1]
    regime = _regime(grounds, first)
    bound = first
    if grounds.broken is not None or shares["unknown"] > min(0.5, shares[first]):
        bound, regime = "inconclusive", None
    elif shares[first] < 0.5 and shares[first] - shares[second] <= _CLEAR_LEAD:
        bound, regime = "mixed", None
    share = shares["unknown"] if bound == "inconclusive" and grounds.broken is None else shares[first]
    opening = _opening(grounds, bound, ranked, regime) + _doubt(bound, shares, first)
    step = _first_step(grounds, bound, first, regime)
    return Verdict(cast("Bound", bound), regime, share, _join(opening, grounds.sides, step), shares, step)


def account_words(account: str) -> str:
    """An account of the ledger in words that continue a sentence."""
    return _ACCOUNT_WORDS.get(account, _GROUP_WORDS.get(account, account))


def name_in_sentence(name: str) -> str:
    """The beginning of a name, short enough for a sentence."""
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def _regime(grounds: Grounds, group: str) -> Regime | None:
    """The regime that holds most of the time of a group of work; null for waits and where none is known."""
    if group not in {"compute", "memory"}:
        return None
    us: dict[Regime | None, float] = {}
    for kernel in grounds.kernels:
        if kernel.regime is not None and kernel.bound == group:
            us[kernel.regime] = us.get(kernel.regime, 0.0) + kernel.us
    return max(us, key=lambda regime: us[regime], default=None)


def _opening(grounds: Grounds, bound: str, ranked: list[str], regime: Regime | None) -> str:
    wall, shares = format_us(grounds.ledger.wall_us), grounds.ledger.group_shares()
    if grounds.broken is not None:
        return f"Inconclusive: {grounds.broken}"
    if bound == "inconclusive":
        most = _largest_kernel(grounds, ("unknown",))
        reason = f", most of it {_label(most)} ({most.reason or 'no price'})" if most else ""
        return f"Inconclusive: {format_share(shares['unknown'])} of the {wall} step is work without a price{reason}"
    first, second = ranked[0], ranked[1]
    if bound == "mixed":
        return (
            f"No single bound holds the {wall} step back: {_GROUP_WORDS[first]} {format_share(shares[first])}, "
            f"{_GROUP_WORDS[second]} {format_share(shares[second])}; "
            f"of the first, the largest part is {_contributor(grounds, first)}"
        )
    words = f"{_GROUP_WORDS[first]}, {regime}," if regime else _GROUP_WORDS[first]
    return (
        f"{words[0].upper()}{words[1:]} holds the step back: {format_share(shares[first])} of {wall}, "
        f"its largest part {_contributor(grounds, first)}"
    )


def _doubt(bound: str, shares: Mapping[str, float], first: str) -> str:
    """What to add where the work without a price, given to the next group, would overturn the verdict."""
    # Unknown work is work: it may be compute or memory, never overhead or communication.
    rival = max(shares[group] for group in ("compute", "memory") if group != first)
    if bound == "inconclusive" or shares["unknown"] <= 0 or rival + shares["unknown"] < shares[first]:
        return ""
    return f"; another {format_share(shares['unknown'])} is work without a price, which could overturn this"


def _contributor(grounds: Grounds, group: str) -> str:
    """The largest account of a group in words, with its share and its largest kernel or source line."""
    entry = _largest_entry(grounds, group)
    kernel = _largest_kernel(grounds, _BOUNDS_OF_ACCOUNT.get(entry.account, ()))
    if entry.account in _ACCOUNT_WORDS:
        line = kernel.source if kernel is not None else _line_of(grounds, entry.account)
        where = f" at {line}" if line else f", as in {_label(kernel)}" if kernel is not None else ""
        return f"{_ACCOUNT_WORDS[entry.account]}{where} ({format_share(entry.share)})"
    return f"{_label(kernel)} ({format_share(kernel.share)})" if kernel is not None else entry.account


def _first_step(grounds: Grounds, bound: str, group: str, regime: Regime | None) -> str:
    if grounds.broken is not None:
        return "record it again"
    if grounds.sides is not None and bound != "inconclusive":
        return JUDGE_APART
    entry = _largest_entry(grounds, "unknown" if bound == "inconclusive" else group)
    kernel = _largest_kernel(grounds, _BOUNDS_OF_ACCOUNT.get(entry.account, ()))
    if entry.account == "unknown" and kernel is not None:
        known = [advice for part, advice in _PRICE_ADVICE.items() if part in (kernel.reason or "")]
        return (known or [_ADVICE["unknown"]])[0]
    if entry.account == "compute" and regime == "saturated":
        explained = None if kernel is None else kernel.explained
        is_near = explained is None or explained >= _NEAR
        return _NEAR_THE_ROOF if is_near else _UNDER_THE_ROOF.format(share=format_share(explained or 0.0))
    if entry.account == "compute" and kernel is not None and "align" in (kernel.reason or ""):
        return _MISALIGNED
    advice = (_HOST_ADVICE if grounds.host_only else {}).get(entry.account) or _ADVICE[entry.account]
    line = _line_of(grounds, entry.account)
    return advice.format(at=f" at {line}" if line else "")


def _join(opening: str, sides: TwoSided | None, step: str) -> str:
    parts = (opening, describe_sides(sides) if sides else None, f"First: {step}")
    return " ".join(f"{part}." for part in parts if part)


def describe_sides(sides: TwoSided) -> str:
    """The two sides of a window with their figures."""
    return (
        f"The window has two sides: the device was busy {format_share(sides.busy_before)} of its first "
        f"{format_share(sides.split)} and {format_share(sides.busy_after)} of the rest"
    )


def _largest_entry(grounds: Grounds, group: str) -> LedgerEntry:
    entries = [entry for entry in grounds.ledger.entries if entry.group == group]
    return max(entries, key=lambda entry: entry.us, default=LedgerEntry(_EMPTY_ACCOUNT[group], group, 0.0, 0.0))


def _largest_kernel(grounds: Grounds, bounds: tuple[str, ...]) -> KernelSummary | None:
    """The largest row of the op with the most time in these bounds, with the time of all rows of that op and line."""
    groups: dict[str, list[KernelSummary]] = {}
    for row in grounds.kernels:
        if row.bound in bounds:
            groups.setdefault(_label(row), []).append(row)
    rows = max(groups.values(), key=lambda rows: math.fsum(row.us for row in rows), default=None)
    if rows is None:
        return None
    us, share = math.fsum(row.us for row in rows), math.fsum(row.share for row in rows)
    return replace(max(rows, key=lambda row: row.us), us=us, share=share)


def _line_of(grounds: Grounds, account: str) -> str | None:
    """The source line with most of the time of an idle cause; null when it is not known."""
    lines: dict[str | None, float] = {}
    for row in grounds.idle:
        if f"overhead.{row.cause}" == account:
            lines[row.source] = lines.get(row.source, 0.0) + row.us
    return max(lines, key=lambda line: lines[line]) if lines else None


def _label(kernel: KernelSummary) -> str:
    """The op with its line, else the kernel, short enough for a sentence."""
    name = name_in_sentence(kernel.name if kernel.bound == "communication" else kernel.op or kernel.name)
    return f"{name} at {kernel.source}" if kernel.source else name


# A verdict names what matters; from this share of the step on, by the middle of the predicted gain.
_WORTH_NAMING = 0.02


def with_findings(analysis: Analysis, findings: Sequence[Finding]) -> Analysis:
    """The analysis with its findings; the first of them is the first thing to do.

    The verdict keeps its own advice where that is to record anew, and where no finding predicts a gain that shows.
    """
    found = replace(analysis, findings=tuple(findings))
    first = next((finding for finding in findings if _is_worth_naming(finding, analysis.steps.wall_us)), None)
    if first is None or not _is_open(analysis.verdict):
        return found
    return replace(found, verdict=_beginning_with(analysis.verdict, first))


def _is_worth_naming(finding: Finding, step_us: float) -> bool:
    gain = finding.predicted_gain_us
    if gain is None or finding.within_noise:
        return False
    return (gain.low + gain.high) / 2 >= _WORTH_NAMING * step_us > 0


def _is_open(verdict: Verdict) -> bool:
    """Whether the verdict advises how to save time, not how to learn more."""
    return verdict.bound != "inconclusive" and verdict.first_step not in {None, JUDGE_APART}


def _beginning_with(verdict: Verdict, finding: Finding) -> Verdict:
    assert finding.predicted_speedup is not None
    low, high = (f"{times:.2f}" for times in (finding.predicted_speedup.low, finding.predicted_speedup.high))
    times = high if low == high else f"{low} to {high}"
    step = f"{_continuing(finding.advice)} (predicted: {times} times as fast)"
    opening = verdict.sentence.removesuffix(f"First: {verdict.first_step}.")
    return replace(verdict, sentence=f"{opening}First: {step}.", first_step=step)


def _continuing(advice: str) -> str:
    """Advice as it continues a sentence: names such as CUDA keep their capitals, the full stop goes."""
    text = advice.strip().removesuffix(".")
    return text[:1].lower() + text[1:] if text[1:2].islower() else text
