"""What differs between two sides besides the code, and makes times hard to compare: said before all else."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bottleneck.compared import Condition
from bottleneck.comparing.details import find_details, find_sizes
from bottleneck.comparing.matching import Match
from bottleneck.comparing.sides import Compared
from bottleneck.recording import Recording
from bottleneck.records import Analysis

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
