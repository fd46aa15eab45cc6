"""Answers what the step would take if the program were changed.

It also finds the single changes that would help most.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from bottleneck.errors import UsageError
from bottleneck.schema.accounts import ACCOUNTS, HOST_STATES
from bottleneck.schema.analysis import CriticalPath, Interval, LedgerEntry, PathPart, ReplayCheck
from bottleneck.schema.evidence import AtAnyPace, Evidence, ShorterKernels, remembered
from bottleneck.schema.intervals import Flags, tally
from bottleneck.schema.kernel_names import plain_name
from bottleneck.schema.linked_trace import LONGEST_ISSUE_US
from bottleneck.schema.records import replace
from bottleneck.schema.whatif import ChangedStep, WhatIf
from bottleneck.simulate.changes import change_of, floors_of, line_of, loops_of, shorten
from bottleneck.simulate.critical_path import path_parts, replayed_ledger
from bottleneck.simulate.graph import graph_of, sources_of_points
from bottleneck.simulate.replay import (
    NO_CHANGE,
    WITHOUT_DELAYS,
    GraphChange,
    StepReplay,
    replay_steps,
    time_once,
    time_steps,
)
from bottleneck.units import format_share

# A replay that is further off, a step with more unexplained delays, a run of steps that settles further from the
# measured one, or more launches by threads outside of the chain: each predicts nothing.
MOST_ERROR, MOST_HELD, MOST_UNSETTLED, MOST_FOREIGN = 0.05, 0.2, 0.1, 0.2
# How many times slower the profiler makes the host of a bare trace, at most: with shapes, stacks or memory recorded,
# and with ops only (benchmarks/results/run.md).
_MOST_STRETCH, _LIGHT_STRETCH = 2.3, 1.3
# The profiler stretches the host where it issues ops; a stretch so long without an event is something else.
_STRETCHED = frozenset({"overhead.dispatch", "overhead.python", "overhead.launch", "overhead.launch_floor"})
_LEAST_LEFT = 0.01
_LEAST_SPEEDUP = 1.005
_TRIED_PER_KIND, _BEST = 6, 10
_MOST_PARTS = 40
_NUMBERED = re.compile(r"_\d+$")


@remembered
def check_replay(evidence: Evidence) -> ReplayCheck:
    """Returns the error of the reproduced step, or why none is predicted."""
    graph = graph_of(evidence)
    if not graph.wall_us > 0:
        return ReplayCheck(0.0, 0.0, 0.0, graph.steps, "the window has no length")
    # With the host at the pace that was recorded.
    played = _unchanged(evidence) if _pace(evidence).high == 1.0 else replay_steps(graph)
    once_us, delays = played.first_us, bool(graph.device.held_us.any() or graph.host.held.any())
    held = 1.0 - time_once(graph, WITHOUT_DELAYS) / once_us if delays and once_us > 0 else 0.0
    error, settled = once_us / graph.wall_us - 1.0, played.wall_us / graph.wall_us - 1.0
    reason = None
    if not evidence.is_host_only and not graph.device.row.size:
        reason = "no device work is tied to the steps"
    elif abs(error) > MOST_ERROR:
        reason = f"a replay of the recorded steps is off by {format_share(abs(error))}"
    elif held > MOST_HELD:
        reason = f"for {format_share(held)} of the step work was delayed by something that the trace does not show"
    elif abs(settled) > MOST_UNSETTLED:
        more = "longer" if settled > 0 else "shorter"
        reason = f"steps that follow one another would be {format_share(abs(settled))} {more} than the recorded ones"
    elif graph.foreign_share > MOST_FOREIGN:
        reason = f"{format_share(graph.foreign_share)} of the launches are by threads that the replay does not follow"
    return ReplayCheck(error, max(held, 0.0), settled, graph.steps, reason)


@remembered
def _pace(evidence: Evidence) -> Interval:
    """Factors on the host's issue time between which its pace without the profiler lies.

    Both are equal where the step was also timed without it.
    """
    steps, graph = evidence.analysis.steps, graph_of(evidence)
    if steps.unprofiled_us is not None:
        factor = _factor_for(evidence, steps.wall_us * graph.steps)
        return Interval(factor, factor)
    trace = evidence.linked.trace
    has_options = evidence.linked.places is not None or trace.signatures["dims"].notna().any() or len(trace.memory) > 0
    return Interval(1.0 / (_MOST_STRETCH if has_options else _LIGHT_STRETCH), 1.0)


def _factor_for(evidence: Evidence, wall_us: float) -> float:
    """Returns the factor on issue time, 0.1 to 1.25, for this step time."""
    low, high = 0.1, 1.25
    for _ in range(12):
        middle = (low + high) / 2
        if time_steps(graph_of(evidence), _on_host(evidence, middle)) < wall_us:
            low = middle
        else:
            high = middle
    return (low + high) / 2


@remembered
def _stretched(evidence: Evidence) -> Flags:
    """Mask of the host stretches that the profiler makes longer."""
    graph = graph_of(evidence)
    states = np.array([f"overhead.{state}" in _STRETCHED for state in (*HOST_STATES, "unknown")])
    mask = states[graph.host.state]
    if evidence.is_host_only and evidence.kernel_time is not None:
        account = evidence.kernel_time["account"].cat
        of_code = np.array([*(str(name) in _STRETCHED for name in account.categories), False])
        by_account = of_code[np.append(account.codes.to_numpy().astype(np.int64), -1)[graph.host.op]]
        mask = np.where(graph.host.op >= 0, by_account, mask)
    return np.asarray(mask & (graph.host.us <= LONGEST_ISSUE_US))


def _on_host(evidence: Evidence, factor: float) -> GraphChange:
    return NO_CHANGE if factor == 1.0 else GraphChange(host=np.where(_stretched(evidence), factor, 1.0))


@remembered
def _unchanged(evidence: Evidence) -> StepReplay:
    """The unchanged steps, with the host at the higher end of its pace."""
    return replay_steps(graph_of(evidence), _on_host(evidence, _pace(evidence).high))


@remembered
def _base(evidence: Evidence) -> Mapping[float, StepReplay]:
    """The unchanged steps at each end of the host's pace."""
    graph, pace = graph_of(evidence), _pace(evidence)
    lower = {pace.low: replay_steps(graph, _on_host(evidence, pace.low))} if pace.low < pace.high else {}
    return {**lower, pace.high: _unchanged(evidence)}


@remembered
def find_critical_path(evidence: Evidence) -> CriticalPath:
    """Finds the critical path of the step.

    Beyond the longest parts all others of a kind are one.
    """
    played, step_us = _unchanged(evidence), evidence.analysis.steps.wall_us
    parts = path_parts(evidence, played, step_us) if played.wall_us > 0 else ()
    return CriticalPath(check_replay(evidence), step_us, _folded(parts))


def _folded(parts: Sequence[PathPart]) -> tuple[PathPart, ...]:
    """Returns the longest parts, and one for all others.

    The others are on the device, on the host and in waits.
    """
    rest = parts[_MOST_PARTS:]
    others = []
    for what in dict.fromkeys(part.what for part in rest):
        mine = [part for part in rest if part.what == what]
        us, share = math.fsum(part.us for part in mine), math.fsum(part.share for part in mine)
        others.append(PathPart(what, f"other parts ({what})", None, us, share))
    return tuple(sorted((*parts[:_MOST_PARTS], *others), key=lambda part: -part.us))


def speedup_of(evidence: Evidence, change: GraphChange) -> Interval:
    """The speedup that a change gives the steps, over the pace of the host."""
    graph = graph_of(evidence)
    speedups = [
        base.wall_us / max(time_steps(graph, _on_host(evidence, factor) & change), _LEAST_LEFT * base.wall_us)
        for factor, base in _base(evidence).items()
    ]
    return Interval(min(speedups), max(speedups))


def predict_gain_us(evidence: Evidence, texts: Sequence[str]) -> float | None:
    """Returns the time per step that changes save at the host's recorded pace.

    Null where the step cannot be replayed, or nothing in it fits.
    """
    if check_replay(evidence).reason is not None:
        return None
    try:
        change = change_of(tuple(texts), evidence)
    except UsageError:
        return None
    return _gain_us(evidence, change)


def gain_of_kernels_us(evidence: Evidence, change: ShorterKernels) -> float:
    """Returns the time per step that shorter kernels save."""
    return _gain_us(evidence, shorten(evidence, change))


def most_gain_us(evidence: Evidence, asked: AtAnyPace) -> float | None:
    """Returns the time per step that changes save at most.

    It is over the paces of the host; null where nothing can be predicted.
    """
    if check_replay(evidence).reason is not None:
        return None
    try:
        change = change_of(asked.changes, evidence)
    except UsageError:
        return None
    if asked.kernels is not None:
        change &= shorten(evidence, asked.kernels)
    return max(1.0 - 1.0 / speedup_of(evidence, change).high, 0.0) * evidence.analysis.steps.wall_us


def _gain_us(evidence: Evidence, change: GraphChange) -> float:
    base_us = _unchanged(evidence).wall_us
    changed_us = time_steps(graph_of(evidence), _on_host(evidence, _pace(evidence).high) & change)
    return max(base_us - changed_us, 0.0) * evidence.analysis.steps.wall_us / base_us if base_us > 0 else 0.0


def _changed(evidence: Evidence, texts: tuple[str, ...], change: GraphChange) -> ChangedStep:
    speedup = speedup_of(evidence, change)
    step_us = evidence.analysis.steps.wall_us
    return ChangedStep(texts, Interval(step_us / speedup.high, step_us / speedup.low), speedup)


def ask(evidence: Evidence, texts: Sequence[str]) -> WhatIf:
    """The answer for these changes together; without any, the best single changes.

    Raises UsageError for a text that is no change or fits nothing in the trace.
    """
    change, pace, path = change_of(tuple(texts), evidence), _pace(evidence), find_critical_path(evidence)
    base = _unchanged(evidence)
    step_us = evidence.analysis.steps.wall_us
    answer = WhatIf(
        trace=evidence.analysis.recording.path,
        step_us=step_us,
        host_pace=pace,
        path=path,
        ledger=_ledger(evidence, base, base),
        version=evidence.analysis.version,
    )
    if path.check.reason is not None:
        return answer
    if not texts:
        return replace(answer, best=best_changes(evidence))
    played = replay_steps(graph_of(evidence), _on_host(evidence, pace.high) & change)
    new_us = step_us * played.wall_us / base.wall_us
    parts = path_parts(evidence, played, new_us) if new_us > 0 else ()
    return replace(
        answer,
        changed=_changed(evidence, tuple(texts), change),
        changed_path=CriticalPath(path.check, new_us, _folded(parts)),
        changed_ledger=_ledger(evidence, played, base),
    )


def _ledger(evidence: Evidence, played: StepReplay, base: StepReplay) -> tuple[LedgerEntry, ...]:
    """Returns the ledger of a replayed step.

    On a CPU it is the measured one, changed by what the replay changes. Several threads of a CPU work at once, and the
    ledger counts what each of them does; the replay follows one.
    """
    step_us = evidence.analysis.steps.wall_us
    new_us = step_us * played.wall_us / base.wall_us if base.wall_us > 0 else 0.0
    if not new_us > 0:
        return ()
    replayed = replayed_ledger(evidence, played, new_us)
    if not evidence.is_host_only:
        return replayed
    us = {entry.account: entry.us for entry in evidence.analysis.ledger}
    for entry in replayed:
        us[entry.account] = us.get(entry.account, 0.0) + entry.us
    for entry in replayed_ledger(evidence, base, step_us):
        us[entry.account] = us.get(entry.account, 0.0) - entry.us
    left_us = {account: max(amount, 0.0) for account, amount in us.items()}
    total = sum(left_us.values())
    return tuple(
        LedgerEntry(key, account.group, left_us[key] * new_us / total, left_us[key] / total)
        for key, account in ACCOUNTS.items()
        if left_us.get(key, 0.0) > 0
    )


def best_changes(evidence: Evidence) -> tuple[ChangedStep, ...]:
    """Finds the single changes that would help most.

    They are of those that the steps show a reason for.
    """
    changed = []
    for text in dict.fromkeys(_candidates(evidence)):
        try:
            changed.append(_changed(evidence, (text,), change_of((text,), evidence)))
        except UsageError:  # a name that no pattern can spell
            continue
    # By the middle of the interval that is shown, as a factor.
    changed.sort(key=lambda step: -step.speedup.low * step.speedup.high)
    return tuple(step for step in changed if step.speedup.high > _LEAST_SPEEDUP)[:_BEST]


def _candidates(evidence: Evidence) -> tuple[str, ...]:
    """Changes that something in the steps could be a reason for, as words."""
    graph, kernels = graph_of(evidence), evidence.linked.kernels.iloc[graph_of(evidence).device.row]
    texts = []
    waits = Counter(line_of(str(source)) for source in sources_of_points(evidence)[graph.waits] if source)
    texts += [f"remove sync@{source}" for source, _ in waits.most_common(_TRIED_PER_KIND)]
    texts += ["remove sync"] if graph.waits.any() and len(waits) != 1 else []
    states = tally(graph.host.state, graph.host.us, len(HOST_STATES) + 1)
    has = {state: states[code] > 0 for code, state in enumerate(HOST_STATES)}
    texts += ["overlap input"] if has["input"] else []
    texts += ["remove input"] if has["input"] or (graph.ready_us > 0).any() else []
    texts += [f"remove {state}" for state in ("gc", "allocator") if has[state]]
    texts += [f"set host:{state}=0.5x" for state in ("python", "dispatch", "host_compute") if has[state]]
    texts += ["graph"] if len(kernels) > 10 * graph.steps else []
    kinds = set(kernels["kind"].astype(str))
    for kind, members in (("collective", {"collective"}), ("copy", {"copy", "fill"})):
        texts += [f"overlap {kind}", f"set {kind}=0.5x"] if kinds & members else []
    return (*texts, *_kernels_to_floor(evidence), *_modules_to_fuse(evidence))


def _kernels_to_floor(evidence: Evidence) -> list[str]:
    """The kernels with the most time above their floors."""
    graph = graph_of(evidence)
    kernels = evidence.linked.kernels.iloc[graph.device.row]
    above = np.nan_to_num(np.maximum(graph.device.us - floors_of(evidence), 0.0), nan=0.0)
    by_name: dict[str, float] = defaultdict(float)
    for name, us, kind in zip(kernels["name"].astype(str), above.tolist(), kernels["kind"].astype(str), strict=True):
        if kind == "compute":
            by_name[name] += us
    ranked = sorted(by_name, key=lambda name: -by_name[name])[:_TRIED_PER_KIND]
    names = kernels["name"].astype(str).unique().tolist()
    return [f"set kernel:{_as_pattern(name, names)}=floor" for name in ranked if by_name[name] > 0]


_LONGEST_PATTERN = 24  # with the words around it, it fits into a column of a terminal
_LEAST_OWN, _MOST_OWN = 4, 60
_TOKEN = re.compile(r"\w+")
_SIGNS = frozenset("[]*?@='\n")  # of patterns, changes and shells
_LONG_WORD = re.compile(r"[A-Za-z_]\w{7,}")  # a shorter one, such as 'void' or 'cutlass', may be in any name
_END_OF_PART = re.compile(r"(?<=\w{8})_")


def _as_pattern(name: str, names: Sequence[str]) -> str:
    """Returns a short pattern that fits this name alone.

    It is the beginning of a word, as much of it as no other name holds; without such a word the shortest text that only
    this name holds, behind the name's first word. Else it is the whole name: signs of patterns, '@' and '=' become '?'.
    """
    others = [other for other in names if other != name]
    words = (match[0] for match in _LONG_WORD.finditer(plain_name(name)))
    ends = ((word, [*(part.start() for part in _END_OF_PART.finditer(word)), len(word)]) for word in words)
    beginnings = (word[:end] for word, at in ends for end in at)
    own = next((text for text in beginnings if not any(text in other for other in others)), None)
    if own is None or len(own) > _LONGEST_PATTERN:
        own = _shortest_own(name, others) or own
    return re.sub(r"[\[\]*@=\n]", "?", name) if own is None else own


def _shortest_own(name: str, others: Sequence[str]) -> str | None:
    """Returns the shortest text from a word's beginning that no other name holds.

    It stands behind the first long word, where that comes before it and leaves it short. Null where there is none.
    """
    word = _LONG_WORD.search(name)
    after = 0 if word is None else word.start()  # words before it, such as 'void', tell nothing
    starts = [match.start() for match in _TOKEN.finditer(name, after)]
    for length in range(_LEAST_OWN, min(len(name), _MOST_OWN) + 1):
        for start in starts:
            text = name[start : start + length]
            if len(text) < length or _SIGNS & set(text) or any(text in other for other in others):
                continue
            room = _LONGEST_PATTERN - len(text) - 1
            has_lead = word is not None and word.end() <= start and room >= _LEAST_OWN
            return f"{word[0][:room]}*{text}" if word is not None and has_lead else text
    return None


def _modules_to_fuse(evidence: Evidence) -> list[str]:
    """Returns module classes by the time of kernels that a compiler would fuse away."""
    graph = graph_of(evidence)
    work = pd.DataFrame({"loop": loops_of(evidence), "us": graph.device.us})
    paths = evidence.linked.kernels["module"].cat
    work["module"] = paths.codes.to_numpy()[graph.device.row]
    work = work[(work["loop"] >= 0) & (work["module"] >= 0)]
    times = work.groupby(["module", "loop"])["us"]
    spared = (times.sum() - times.max()).groupby(level="module").sum()
    us = defaultdict[str, float](float)
    for module, spared_us in zip(spared.index.to_list(), spared.to_list(), strict=True):
        us[_NUMBERED.sub("", str(paths.categories[module]).rpartition(".")[2])] += spared_us
    ranked = sorted(us, key=lambda name: -us[name])
    return [f"fuse module:{name}" for name in ranked if us[name] > 0 and name.isidentifier()][:_TRIED_PER_KIND]
