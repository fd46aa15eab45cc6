"""Finds what differs between two sides besides the code, and makes their times hard to compare."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bottleneck.compare.matching import Match
from bottleneck.compare.sides import Compared
from bottleneck.compare.work import Piece, sizes
from bottleneck.schema.analysis import Analysis, KernelSummary
from bottleneck.schema.comparison import Condition
from bottleneck.schema.recording import Recording
from bottleneck.units import format_share

# A part of the busy time that is known on one side and not on the other.
_KNOWN, _NOT_KNOWN = 0.5, 0.05
# Shares of priced work; nearer together, the accounts still tell the same kinds of time.
_FAR_APART = 0.3
_OTHER_CLOCK = 0.05
# The share of matched time in which one size became another before that is told as another batch.
_OTHER_SIZES = 0.5

_DETAILS: Mapping[str, Callable[[KernelSummary], bool]] = {
    "ops": lambda row: row.op is not None,
    "modules": lambda row: row.module is not None,
    "shapes": lambda row: row.shapes is not None,
    "source lines": lambda row: row.source is not None,
}


def find_details(before: Compared, after: Compared) -> list[Condition]:
    """What one trace records of its work and the other does not, and what is judged otherwise."""
    if before.told is None or after.told is None:
        return []
    old, new = before.told, after.told
    return [*_lacking(old, new), *_prices(old, new), *_clocks(old, new)]


def _lacking(before: Analysis, after: Analysis) -> list[Condition]:
    found = []
    busy = [
        [row for row in told.kernels if row.bound != "dispatch" and 0 < row.us < math.inf] for told in (before, after)
    ]
    for what, holds in _DETAILS.items():
        old, new = (_share(rows, holds) for rows in busy)
        if min(old, new) <= _NOT_KNOWN and max(old, new) >= _KNOWN:
            message = f"only one side tells its {what}: rows match by what both tell"
            found.append(Condition(f"{what} known", format_share(old), format_share(new), "colours", message))
    return found


def _share(rows: Iterable[KernelSummary], holds: Callable[[KernelSummary], bool]) -> float:
    """Share of the busy time that this holds for."""
    total = sum([row.us for row in rows])
    return sum([row.us for row in rows if holds(row)]) / total if total else 0.0


def _prices(before: Analysis, after: Analysis) -> list[Condition]:
    old, new = before.coverage.priced_share, after.coverage.priced_share
    if old is None or new is None or abs(old - new) < _FAR_APART:
        return []
    message = "work without a price is neither compute nor memory: trust the rows, not these accounts"
    return [Condition("work with a price", format_share(old), format_share(new), "colours", message)]


def _clocks(before: Analysis, after: Analysis) -> list[Condition]:
    old, new = _clock_mhz(before), _clock_mhz(after)
    if not old or not new or before.device.name != after.device.name:
        return []
    if min(old, new) > (1 - _OTHER_CLOCK) * max(old, new):
        return []
    return [Condition("clock", f"{old:.0f} MHz", f"{new:.0f} MHz", "colours", "the device ran at another clock")]


def _clock_mhz(told: Analysis) -> float | None:
    telemetry = told.telemetry
    clock = None if telemetry is None else telemetry.sm_clock_mhz or telemetry.cpu_clock_mhz
    return clock if clock and 0 < clock < math.inf else None


def find_sizes(matches: Iterable[Match]) -> list[Condition]:
    """One size that became another in most of the work that both sides do: another batch, sequence or width."""
    us: dict[tuple[int, int], float] = {}
    total = 0.0
    for match in matches:
        if not match.before or not match.after:
            continue
        spent = sum([piece.us for piece in match.after])
        total += spent
        old, new = _only_shapes(match.before), _only_shapes(match.after)
        if old is None or new is None:
            continue
        for pair in set() if old == new else _changed(sizes(old), sizes(new)):
            us[pair] = us.get(pair, 0.0) + spent
    if not us or max(us.values()) < _OTHER_SIZES * total or not total:
        return []
    pair = max(us, key=lambda pair: (us[pair], pair))
    message = f"in {format_share(us[pair] / total)} of the time of ops that both sides run: another batch or width"
    return [Condition("sizes", str(pair[0]), str(pair[1]), "colours", message)]


def _only_shapes(pieces: Sequence[Piece]) -> str | None:
    if len(pieces) == 1:
        return pieces[0].shapes
    shapes = {piece.shapes for piece in pieces}
    return shapes.pop() if len(shapes) == 1 else None


def _changed(before: tuple[int, ...] | None, after: tuple[int, ...] | None) -> set[tuple[int, int]]:
    """The sizes that differ, before and after; none where the calls are of another form."""
    if before is None or after is None or len(before) != len(after):
        return set()
    return {(one, other) for one, other in zip(before, after, strict=True) if one != other}


_Weight = Literal["breaks", "colours"]
_DISTURBED = ("disturbed-profile", "contended")
DEVICE = "device"
_NO_CODE = "a difference of times tells nothing of the code"


@dataclass(frozen=True)
class _Fact:
    """Something that both sides tell, null where one does not; ``message`` says what follows where it differs."""

    what: str
    tell: Callable[[Compared], str | None]
    weight: _Weight
    message: str = ""


def find_conditions(before: Compared, after: Compared, matches: Sequence[Match]) -> tuple[Condition, ...]:
    """All that differ, those that break the comparison first."""
    told = [_condition(fact, before, after) for fact in _FACTS]
    found = [condition for condition in told if condition is not None]
    said = {condition.what for condition in found}
    found = [condition for condition in found if _SAID_BY.get(condition.what) not in said]
    found += _environment(before, after)
    found += _fingerprints(before, after, {condition.what for condition in found})
    found += [*find_details(before, after), *find_sizes(matches)]
    return tuple(sorted(found, key=lambda condition: condition.weight))


def _condition(fact: _Fact, before: Compared, after: Compared) -> Condition | None:
    old, new = fact.tell(before), fact.tell(after)
    if old is None or new is None or old == new:
        return None
    return Condition(fact.what, old, new, fact.weight, fact.message)


def _of_analysis(tell: Callable[[Analysis], str | None]) -> Callable[[Compared], str | None]:
    return lambda side: None if side.told is None else tell(side.told)


def _of_recording(tell: Callable[[Recording], str | None]) -> Callable[[Compared], str | None]:
    return lambda side: tell(side.case.recording) if side.case is not None and side.case.recording is not None else None


def _knows_device(side: Compared) -> str | None:
    return None if side.told is None else "yes" if side.device_name else "no"


def _dtype(told: Analysis) -> str | None:
    """The dtype of most FLOPs; of most time where none are known."""
    work: dict[str, float] = {}
    is_priced = any(row.flops for row in told.kernels)
    for row in told.kernels:
        if row.dtype is not None and row.bound != "dispatch":
            work[row.dtype] = work.get(row.dtype, 0.0) + ((row.flops or 0.0) if is_priced else row.us)
    return max(work, key=lambda dtype: (work[dtype], dtype)) if work else None


def _world_size(side: Compared) -> str | None:
    told = side.told
    world = None if told is None else told.recording.world_size
    if world is None and side.case is not None:
        world = side.case.linked.trace.world_size
    return None if told is None else str(world or 1)


def _threads(side: Compared) -> str | None:
    recording = None if side.case is None else side.case.recording
    if recording is not None and recording.threads is not None:
        return str(recording.threads)
    threads = None if side.counts is None else side.counts.fingerprint.backend.get("threads")
    return None if threads is None else str(threads)


def _inputs(side: Compared) -> str | None:
    return None if side.counts is None else side.counts.input_sha or None


def _profiled(told: Analysis) -> str:
    return "under the profiler" if told.steps.unprofiled_us is None else "without the profiler"


def _disturbed(told: Analysis) -> str:
    return "disturbed by other programs" if any(each.slug in _DISTURBED for each in told.caveats) else "undisturbed"


_FACTS: tuple[_Fact, ...] = (
    _Fact(DEVICE, lambda side: side.device_name, "breaks", _NO_CODE),
    _Fact("kind of device", _of_analysis(lambda told: told.device.kind), "breaks", _NO_CODE),
    _Fact("device known", _knows_device, "colours", "only one side names its device, so they may not be the same"),
    _Fact("ranks", _world_size, "breaks", "each rank has another part of the work"),
    _Fact("step time", _of_analysis(_profiled), "breaks", "the profiler makes steps longer, mostly on the host's side"),
    _Fact("measurement", _of_analysis(_disturbed), "breaks", "record it again on a quiet machine"),
    _Fact("framework", _of_analysis(lambda told: told.recording.framework), "colours", "another version of torch"),
    _Fact("dtype", _of_analysis(_dtype), "colours", "the dtype of most of the arithmetic"),
    _Fact("threads", _threads, "colours", "torch computes with another number of threads"),
    _Fact("settings", _of_recording(lambda recording: " ".join(sorted(recording.options))), "colours"),
    _Fact("inputs", _inputs, "colours", "the program was given other settings"),
    _Fact("steps", _of_analysis(lambda told: str(told.steps.count)), "colours", "means over another number of steps"),
    _Fact("bottleneck", _of_analysis(lambda told: told.version or None), "colours", "accounts may be drawn otherwise"),
)


def _environment(before: Compared, after: Compared) -> list[Condition]:
    """Variables of the environment that shape performance, as far as both recordings keep them."""
    kept = [
        None if side.case is None or side.case.recording is None else side.case.recording.environment
        for side in (before, after)
    ]
    if kept[0] is None or kept[1] is None:
        return []
    names = [name for name in sorted({*kept[0], *kept[1]}) if kept[0].get(name) != kept[1].get(name)]
    if not names:
        return []
    old, new = (", ".join(f"{name}={side.get(name, '')}" for name in names) for side in kept if side is not None)
    return [Condition("environment", old, new, "colours")]


def _fingerprints(before: Compared, after: Compared, said: set[str]) -> list[Condition]:
    """Facts of the fingerprints that differ: all that a lock-file tells of its conditions."""
    if before.counts is None or after.counts is None:
        return []
    found: list[Condition] = []
    for tier in ("portable", "backend"):
        old: Mapping[str, object] = getattr(before.counts.fingerprint, tier)
        new: Mapping[str, object] = getattr(after.counts.fingerprint, tier)
        names = [name for name in sorted({*old} & {*new}) if old[name] != new[name]]
        found += [
            Condition(name, str(old[name]), str(new[name]), "colours", f"{tier} counters cannot be held together")
            for name in names
            if name not in said and not _SAME_FACTS.get(name, frozenset()) & said
        ]
    return found


# What says nothing more where the other is said.
_SAID_BY = {"inputs": "settings", "kind of device": DEVICE, "device known": DEVICE}
# What a fingerprint calls a fact that stands above under another name.
_SAME_FACTS: Mapping[str, frozenset[str]] = {
    "torch": frozenset({"framework"}),
    "world_size": frozenset({"ranks"}),
    "backend": frozenset({DEVICE, "kind of device"}),
    "sm_count": frozenset({DEVICE, "kind of device"}),
}
