"""Finds differences between two sides that make times hard to compare.

The code is not one of them.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bottleneck.compare.matching import WorkMatch
from bottleneck.compare.pieces import common_shapes, share_of_time, sizes
from bottleneck.compare.sides import ComparedSide
from bottleneck.schema.analysis import DISTURBED_SLUGS, Analysis, KernelSummary
from bottleneck.schema.comparison import Condition
from bottleneck.units import format_share

# A detail counts as recorded from the first share of busy time on, and as missing up to the second.
_KNOWN, _NOT_KNOWN = 0.5, 0.05
# Shares of modelled work that differ by less leave the accounts comparable.
_FAR_APART = 0.3
_OTHER_CLOCK = 0.05
# The share of matched time in which one size became another from which on it is reported as another batch.
_OTHER_SIZES = 0.5

_DETAILS: Mapping[str, Callable[[KernelSummary], bool]] = {
    "ops": lambda row: row.op is not None,
    "modules": lambda row: row.module is not None,
    "shapes": lambda row: row.shapes is not None,
    "source lines": lambda row: row.source is not None,
}


def _lacking(before: Analysis, after: Analysis) -> list[Condition]:
    conditions = []
    busy = [
        [row for row in analysis.kernels if row.bound != "dispatch" and 0 < row.us < math.inf]
        for analysis in (before, after)
    ]
    for what, holds in _DETAILS.items():
        old, new = (share_of_time(rows, holds) for rows in busy)
        if min(old, new) <= _NOT_KNOWN and max(old, new) >= _KNOWN:
            message = f"only one side records its {what}: rows are matched by what both record"
            conditions.append(Condition(f"{what} known", format_share(old), format_share(new), "colours", message))
    return conditions


def _modelled_work(before: Analysis, after: Analysis) -> list[Condition]:
    old, new = before.coverage.modelled_share, after.coverage.modelled_share
    if old is None or new is None or abs(old - new) < _FAR_APART:
        return []
    message = "unmodelled work is neither compute nor memory: trust the rows, not these accounts"
    return [Condition("modelled work", format_share(old), format_share(new), "colours", message)]


def _clocks(before: Analysis, after: Analysis) -> list[Condition]:
    old, new = _clock_mhz(before), _clock_mhz(after)
    if not old or not new or before.device.name != after.device.name:
        return []
    if min(old, new) > (1 - _OTHER_CLOCK) * max(old, new):
        return []
    return [Condition("clock", f"{old:.0f} MHz", f"{new:.0f} MHz", "colours", "the device ran at another clock")]


def _clock_mhz(analysis: Analysis) -> float | None:
    telemetry = analysis.telemetry
    clock = None if telemetry is None else telemetry.sm_clock_mhz or telemetry.cpu_clock_mhz
    return clock if clock and 0 < clock < math.inf else None


def find_sizes(matches: Iterable[WorkMatch]) -> list[Condition]:
    """Finds one size that became another in most of the work.

    The work is what both sides do, with another batch, sequence or width.
    """
    us: dict[tuple[int, int], float] = {}
    total = 0.0
    for match in matches:
        if not match.before or not match.after:
            continue
        spent = sum([piece.us for piece in match.after])
        total += spent
        old, new = common_shapes(match.before), common_shapes(match.after)
        if old is None or new is None:
            continue
        changes = zip(sizes(old) or (), sizes(new) or (), strict=False)
        if old == new or len(sizes(old) or ()) != len(sizes(new) or ()):
            continue  # nothing changed, or the calls are of another form
        for pair in {(one, other) for one, other in changes if one != other}:
            us[pair] = us.get(pair, 0.0) + spent
    if not us or max(us.values()) < _OTHER_SIZES * total or not total:
        return []
    pair = max(us, key=lambda pair: (us[pair], pair))
    message = f"in {format_share(us[pair] / total)} of the time of ops that both sides run: another batch or width"
    return [Condition("sizes", str(pair[0]), str(pair[1]), "colours", message)]


_Weight = Literal["breaks", "colours"]
DEVICE, DEVICE_NAMED = "device", "device name"
_NO_CODE = "a difference in time does not show a change of the code"


@dataclass(frozen=True)
class _Fact:
    """A property that both sides may record.

    ``read`` gives None if a side does not. ``message`` is the consequence of a difference.
    """

    what: str
    read: Callable[[ComparedSide], str | None]
    weight: _Weight
    message: str = ""


def find_conditions(before: ComparedSide, after: ComparedSide, matches: Sequence[WorkMatch]) -> tuple[Condition, ...]:
    """The conditions that differ, those that break the comparison first."""
    conditions = []
    for fact in _FACTS:
        old, new = fact.read(before), fact.read(after)
        if old is not None and new is not None and old != new:
            conditions.append(Condition(fact.what, old, new, fact.weight, fact.message))
    named = {condition.what for condition in conditions}
    conditions = [condition for condition in conditions if _IMPLIED_BY.get(condition.what) not in named]
    conditions += _environment(before, after)
    conditions += _fingerprints(before, after, {condition.what for condition in conditions})
    if before.analysis is not None and after.analysis is not None:
        for find in (_lacking, _modelled_work, _clocks):
            conditions += find(before.analysis, after.analysis)
    conditions += find_sizes(matches)
    return tuple(sorted(conditions, key=lambda condition: condition.weight))


def _of_analysis(read: Callable[[Analysis], str | None]) -> Callable[[ComparedSide], str | None]:
    return lambda side: None if side.analysis is None else read(side.analysis)


def _settings(side: ComparedSide) -> str | None:
    recording = None if side.case is None else side.case.recording
    return None if recording is None else " ".join(sorted(recording.options))


def _named_device(side: ComparedSide) -> str | None:
    return None if side.analysis is None else side.device_name or "none"


def _dtype(analysis: Analysis) -> str | None:
    """The dtype of most FLOPs; of most time where none are known."""
    work: dict[str, float] = {}
    has_flops = any(row.flops for row in analysis.kernels)
    for row in analysis.kernels:
        if row.dtype is not None and row.bound != "dispatch":
            work[row.dtype] = work.get(row.dtype, 0.0) + ((row.flops or 0.0) if has_flops else row.us)
    return max(work, key=lambda dtype: (work[dtype], dtype)) if work else None


def _world_size(side: ComparedSide) -> str | None:
    analysis = side.analysis
    world = None if analysis is None else analysis.recording.world_size
    if world is None and side.case is not None:
        world = side.case.linked.trace.world_size
    return None if analysis is None else str(world or 1)


def _threads(side: ComparedSide) -> str | None:
    recording = None if side.case is None else side.case.recording
    if recording is not None and recording.threads is not None:
        return str(recording.threads)
    threads = None if side.counts is None else side.counts.fingerprint.backend.get("threads")
    return None if threads is None else str(threads)


def _inputs(side: ComparedSide) -> str | None:
    return None if side.counts is None else side.counts.input_sha or None


def _profiled(analysis: Analysis) -> str:
    return "under the profiler" if analysis.steps.unprofiled_us is None else "without the profiler"


def _disturbed(analysis: Analysis) -> str:
    is_disturbed = any(caveat.slug in DISTURBED_SLUGS for caveat in analysis.caveats)
    return "disturbed by other programs" if is_disturbed else "undisturbed"


_FACTS: tuple[_Fact, ...] = (
    _Fact(DEVICE, lambda side: side.device_name, "breaks", _NO_CODE),
    _Fact("kind of device", _of_analysis(lambda analysis: analysis.device.kind), "breaks", _NO_CODE),
    _Fact(DEVICE_NAMED, _named_device, "colours", "the devices may differ"),
    _Fact("ranks", _world_size, "breaks", "each rank has another part of the work"),
    _Fact("step time", _of_analysis(_profiled), "breaks", "the profiler makes steps longer, mostly on the host's side"),
    _Fact("measurement", _of_analysis(_disturbed), "breaks", "record it again on a quiet machine"),
    _Fact(
        "framework", _of_analysis(lambda analysis: analysis.recording.framework), "colours", "another version of torch"
    ),
    _Fact("dtype", _of_analysis(_dtype), "colours", "the dtype of most of the arithmetic"),
    _Fact("threads", _threads, "colours", "torch computes with another number of threads"),
    _Fact("settings", _settings, "colours"),
    _Fact("inputs", _inputs, "colours", "the program was given other settings"),
    _Fact(
        "steps",
        _of_analysis(lambda analysis: str(analysis.steps.count)),
        "colours",
        "means over another number of steps",
    ),
    _Fact(
        "bottleneck",
        _of_analysis(lambda analysis: analysis.version or None),
        "colours",
        "accounts may be defined differently",
    ),
)


def _environment(before: ComparedSide, after: ComparedSide) -> list[Condition]:
    """Variables of the environment that shape performance, as far as both recordings keep them."""
    recordings = [side.case.recording for side in (before, after) if side.case is not None]
    environments = [recording.environment for recording in recordings if recording is not None]
    if len(environments) < 2:
        return []
    names = [
        name
        for name in sorted({*environments[0], *environments[1]})
        if environments[0].get(name) != environments[1].get(name)
    ]
    if not names:
        return []
    old, new = (", ".join(f"{name}={side.get(name, '')}" for name in names) for side in environments)
    return [Condition("environment", old, new, "colours")]


def _fingerprints(before: ComparedSide, after: ComparedSide, named: set[str]) -> list[Condition]:
    """Facts of the fingerprints that differ: the only conditions that a lock-file records."""
    if before.counts is None or after.counts is None:
        return []
    conditions: list[Condition] = []
    for tier in ("portable", "backend"):
        old: Mapping[str, object] = getattr(before.counts.fingerprint, tier)
        new: Mapping[str, object] = getattr(after.counts.fingerprint, tier)
        names = [name for name in sorted({*old} & {*new}) if old[name] != new[name]]
        conditions += [
            Condition(name, str(old[name]), str(new[name]), "colours", f"{tier} counters cannot be compared")
            for name in names
            if name not in named and not _SAME_FACTS.get(name, frozenset()) & named
        ]
    return conditions


# Conditions that add nothing where the other one is listed.
_IMPLIED_BY = {"inputs": "settings", "kind of device": DEVICE, DEVICE_NAMED: DEVICE}
# Facts of a fingerprint that are listed above under other names.
_SAME_FACTS: Mapping[str, frozenset[str]] = {
    "torch": frozenset({"framework"}),
    "world_size": frozenset({"ranks"}),
    "backend": frozenset({DEVICE, "kind of device"}),
    "sm_count": frozenset({DEVICE, "kind of device"}),
}
