"""Says why steps were slow, and what changed over the run.

A cause must explain most of what a step took beyond the usual. What the host is known to have done comes first, then
the line at which the step was seen.
"""

import shlex
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct

from bottleneck.schema.watch_log import PHASES, DeadWorker, Phase, SeenLine, SlowStep, has_loader_phases
from bottleneck.units import counted, format_share, format_si, format_us
from bottleneck.watched.read_log import WatchedRank
from bottleneck.watched.turning_point import first_beyond

# Where the system had no processor for it, where nothing but the phase is known (with the phase behind a colon), and
# where not even that is.
NO_PROCESSOR, PHASE, UNKNOWN = "no-processor", "phase", "unknown"
# Steps that stay longer from one on.
LEVEL = "level"
_MOST, _NEARLY_ALL = 0.5, 0.75
_DATA = PHASES.index("data")
_DURING: Mapping[Phase, str] = {
    "data": "while it waits for data",
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "optimizer": "in the optimizer",
    "rest": "between the optimizer and the next batch",
}
# More batches than usual in one step, without an optimizer's step, are a pass over other data.
_MORE_BATCHES = 2
_DISK_FAULT_US = 100.0
# How long another program keeps the processor at most, and work that is no more than what a busy machine adds.
AWAY_US, _LEAST_MORE_US = 20_000.0, 1_000.0
# A cause is weighty that takes so much of the run, or makes one step so many times as long and so much longer.
_LEAST_SHARE, _TIMES, _LEAST_US = 0.03, 3.0, 20_000.0
# Every machine takes the processor away now and then.
_LEAST_SHARE_AWAY = 0.05
# A stretch is short and has so many steps, with so much of the time that was lost for this reason. These reasons may
# follow from the lack of a processor.
_SHORT, _LEAST_STEPS, _MOSTLY = 0.2, 8, 0.8
_FOLLOWS = frozenset({"loader", "pass", "line", UNKNOWN})
# The kind of a reason, the reason in words, and what to do.
_Words = tuple[str, str, str]
_LEAST_RECORDS, _QUARTER = 40, 4
# The rank correlation of so many parts of the run with their order.
_TREND_PARTS, _TREND = 16, 0.9
# Over some seconds any machine becomes faster or slower by itself.
_SHORTEST_DRIFT_US = 20e6
# From a step on all take so many times as long; the parts of the run before and behind it vary by so much of the rise.
_LASTING, _LEVEL_PARTS, _LEAST_LEVEL_PARTS, _LEVEL_SPREAD = 1.5, 40, 4, 0.25
# A step is slow beside those of its level that takes so many times as long.
_TIMES_LEVEL = 2.0
_LEAST_DRIFT, _LEAST_GROWTH_BYTES, _LEAST_GROWTH_SHARE = 1.15, 50e6, 0.05


LOST_PROCESSOR = (
    "other programs or threads had the processor",
    "leave it processors of its own (taskset, fewer threads), or fewer programs beside it",
)
_AWAY = (NO_PROCESSOR, *LOST_PROCESSOR)

# The same where no other program had work: what it says in place of the words and the advice above.
OWN_THREADS = (
    "its own threads had too few processors",
    "give it more processors, or fewer threads (OMP_NUM_THREADS, num_workers)",
)


class SlowCause(Struct, frozen=True):
    """Slow steps with one reason.

    ``beyond_us`` is their time beyond the usual; ``advice`` is what to do about it. ``start_s`` and ``end_s`` are the
    stretch of the run in which they lie, since its first step.
    """

    kind: str
    what: str
    advice: str
    steps: tuple[int, ...]
    beyond_us: float
    longest: SlowStep
    start_s: float
    end_s: float


class Drift(Struct, frozen=True):
    """Something that changed over the run. ``kind`` is time, memory or clock.

    ``beyond_us`` is the time that steps took beyond those before; null where that is not what changed.
    """

    kind: str
    what: str
    advice: str
    beyond_us: float | None = None


class _Level(Struct, frozen=True):
    """Steps that are longer, from ``first`` to the end of the run."""

    first: int
    before_us: float
    after_us: float
    beyond_us: float
    phase: Phase


def find_causes(rank: WatchedRank) -> tuple[SlowCause, ...]:
    """Gives the causes of slow steps, the largest part of the run first."""
    groups: dict[str, list[tuple[SlowStep, _Words]]] = {}
    level = _level(rank)
    for slow in rank.slow:
        if level is not None and slow.step >= level.first and slow.us <= _TIMES_LEVEL * level.after_us:
            continue  # it is as long as all steps from there on
        words = _reason_of(slow)
        groups.setdefault(words[0], []).append((slow, words))
    causes = [_cause(steps) for steps in _with_stretch(groups, rank.steps)]
    weighty = [cause for cause in causes if _matters(cause, rank.total_us, rank.steps)]
    return tuple(sorted(weighty, key=lambda cause: -cause.beyond_us))


def _cause(steps: Sequence[tuple[SlowStep, _Words]]) -> SlowCause:
    """The cause of these steps, in the words of the longest."""
    longest, words = max(steps, key=lambda entry: entry[0].us)
    slow_steps = [slow for slow, _ in steps]
    return SlowCause(
        *words,
        tuple(slow.step for slow in slow_steps),
        sum(slow.us - slow.usual_us for slow in slow_steps),
        longest,
        min(slow.end_s - slow.us / 1e6 for slow in slow_steps),
        max(slow.end_s for slow in slow_steps),
    )


def _with_stretch(
    groups: Mapping[str, Sequence[tuple[SlowStep, _Words]]], run_steps: int
) -> Iterator[Sequence[tuple[SlowStep, _Words]]]:
    """Gives the groups; a stretch without a processor is one of its own.

    What came late in such a stretch, came late for that.
    """
    first, last = _stretch([slow for slow, _ in groups.get(NO_PROCESSOR, ())], run_steps)
    inside = [
        (slow, _AWAY)
        for kind, steps in groups.items()
        for slow, _ in steps
        if first <= slow.step <= last and (kind == NO_PROCESSOR or kind.partition(":")[0] in _FOLLOWS)
    ]
    if inside:
        yield sorted(inside, key=lambda entry: entry[0].step)
    taken = {slow.step for slow, _ in inside}
    for steps in groups.values():
        others = [(slow, words) for slow, words in steps if slow.step not in taken]
        if others:
            yield others


def _stretch(steps: Sequence[SlowStep], run_steps: int) -> tuple[int, int]:
    """Finds the shortest stretch with most of the time lost.

    It is empty where it would be long, or have few steps.
    """
    lost_us = np.cumsum([0.0, *(slow.us - slow.usual_us for slow in steps)])
    ends = np.searchsorted(lost_us, lost_us[:-1] + _MOSTLY * lost_us[-1] - 1e-6)
    numbers = [slow.step for slow in steps]
    spans = [(numbers[end - 1] - numbers[start], start, end) for start, end in enumerate(ends) if end <= len(steps)]
    length, start, end = min(spans, default=(run_steps, 0, 0))
    if end - start < _LEAST_STEPS or length > _SHORT * run_steps:
        return 0, -1
    # What lies as near as the steps in it do to one another is part of it.
    near = max(later - earlier for earlier, later in pairwise(numbers[start:end]))
    while start > 0 and numbers[start] - numbers[start - 1] <= near:
        start -= 1
    while end < len(numbers) and numbers[end] - numbers[end - 1] <= near:
        end += 1
    return numbers[start], numbers[end - 1]


def _matters(cause: SlowCause, total_us: float, run_steps: int) -> bool:
    longest = cause.longest
    is_long = longest.us >= _TIMES * longest.usual_us and longest.us - longest.usual_us >= _LEAST_US
    is_stretch = len(cause.steps) >= _LEAST_STEPS and cause.steps[-1] - cause.steps[0] <= _SHORT * run_steps
    is_scattered = cause.kind == NO_PROCESSOR and not is_stretch
    least = _LEAST_SHARE_AWAY if is_scattered else _LEAST_SHARE
    return cause.beyond_us >= least * total_us or is_long


def _reason_of(slow: SlowStep) -> _Words:
    """The kind of the reason, the reason in words, and what to do."""
    beyond_us = max(slow.us - slow.usual_us, 1e-3)
    for reason in _REASONS:
        words = reason(slow, beyond_us)
        if words is not None:
            return words
    return UNKNOWN, "nothing that was looked at explains it", advice_to_record(())


def advice_to_record(command: Sequence[str]) -> str:
    """Says how to record steps of the program, with its command if known."""
    if not command:
        return "record some steps of it: start it by bottleneck run in place of bottleneck watch"
    return f"record some steps of it: bottleneck run {shlex.join(command)}"


def _dead(slow: SlowStep, _: float) -> _Words | None:
    if not slow.dead_workers:
        return None
    return "dead-worker", describe_dead(slow.dead_workers), advice_on_dead(slow.dead_workers)


def _workers(slow: SlowStep, _: float) -> _Words | None:
    if not slow.started_workers and _of_kind(slow, "workers") < _MOST:
        return None
    return (
        "workers",
        f"the loader started its {counted(slow.workers, 'worker')}",
        "keep them over epochs: persistent_workers=True",
    )


def _collection(slow: SlowStep, beyond_us: float) -> _Words | None:
    if slow.gc_us < _MOST * beyond_us:
        return None
    return (
        "gc",
        "Python collected garbage",
        "call gc.freeze() after the start, or collect by yourself between epochs: gc.disable(), then gc.collect()",
    )


def _of_kind(slow: SlowStep, kind: str) -> float:
    seen = sum(line.samples for line in slow.lines)
    return sum(line.samples for line in slow.lines if line.kind == kind) / seen if seen else 0.0


def _compiling(slow: SlowStep, _: float) -> _Words | None:
    if _of_kind(slow, "compile") < _MOST:
        return None
    where = next(line.source for line in slow.lines if line.kind == "compile")
    return (
        "compile",
        f"torch.compile compiled again, called from {where}",
        "keep shapes the same, or torch._dynamo.mark_dynamic the one that changes; TORCH_LOGS=recompiles says why",
    )


def _saving(slow: SlowStep, _: float) -> _Words | None:
    if _of_kind(slow, "checkpoint") < _MOST:
        return None
    where = next(line.source for line in slow.lines if line.kind == "checkpoint")
    return "checkpoint", f"a checkpoint was saved at {where}", "save less often, or in a thread of its own"


def _other_data(slow: SlowStep, beyond_us: float) -> _Words | None:
    more = slow.batches - slow.usual_batches
    if more < _MORE_BATCHES or slow.phases_us[_DATA] - slow.usual_phases_us[_DATA] > 2 * _MOST * beyond_us:
        return None
    where = f", at {_place(slow.lines[0])}" if slow.lines else ""
    return (
        "other-data",
        f"a pass over other data (validation, most often) came between two steps of the optimizer{where}",
        "evaluate less often, on fewer batches, or under torch.inference_mode()",
    )


def _loader(slow: SlowStep, beyond_us: float) -> _Words | None:
    if slow.phases_us[_DATA] - slow.usual_phases_us[_DATA] < _MOST * beyond_us:
        return None
    where = f", at {_place(slow.lines[0])}" if slow.lines and not slow.workers else ""
    workers = f", and its {counted(slow.workers, 'worker')} had no batch ready" if slow.workers else ""
    if slow.passes:
        return (
            "pass",
            "a pass over the data began, with no batch ready",
            "fewer, longer passes: a sampler that draws several epochs in one, as RandomSampler(num_samples=...) does",
        )
    return (
        "loader",
        f"it waited for data{where}{workers}",
        "use more workers or a larger prefetch_factor: bottleneck verify --try workers"
        if slow.workers
        else "load in worker processes: num_workers=2 or more",
    )


def describe_dead(workers: Sequence[DeadWorker]) -> str:
    """Says which workers of the loader are gone, and how each ended."""
    ways = {_end_of(worker.exit_code) for worker in workers}
    how = ways.pop() if len(ways) == 1 else "in several ways"
    numbers = ", ".join(str(worker.number) for worker in workers)
    return f"{'worker' if len(workers) == 1 else 'workers'} {numbers} of the loader {how}"


def _end_of(exit_code: int | None) -> str:
    if exit_code is None or exit_code >= 0:
        return f"ended with status {exit_code}"
    try:
        return f"died by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"died by signal {-exit_code}"


def advice_on_dead(workers: Sequence[DeadWorker]) -> str:
    """Says where to look for what ended the workers."""
    if any(worker.exit_code == -signal.SIGKILL for worker in workers):
        return "see whether memory ran out (dmesg, memory limit of the container): fewer workers, or smaller batches"
    return "run the data set's __getitem__ in the process itself (num_workers=0): its error shows there"


def _disk(slow: SlowStep, beyond_us: float) -> _Words | None:
    if slow.faults * _DISK_FAULT_US < _MOST * beyond_us:
        return None
    return (
        "disk",
        f"memory was read back from disk ({counted(slow.faults, 'page fault')})",
        "free memory: the machine swaps",
    )


def _no_processor(slow: SlowStep, beyond_us: float) -> _Words | None:
    # What computes far longer than usual is slow by itself, whoever else had the processor meanwhile.
    if slow.cpu_us - slow.usual_cpu_us > max(slow.usual_us, _LEAST_MORE_US):
        return _AWAY if _has_spun(slow, beyond_us) else None
    away_us = _without_processor(slow)
    if away_us is None:
        away_us = max(slow.switches - slow.usual_switches, 0.0) * AWAY_US
    return _AWAY if away_us >= _MOST * beyond_us else None


def _without_processor(slow: SlowStep) -> float | None:
    """Gives the time that the step lacked a processor.

    That of workers which it waited for counts too. Null where the system does not tell.
    """
    if slow.waited_us is None:
        return None
    waits_us = slow.phases_us[_DATA] - slow.usual_phases_us[_DATA]
    of_workers_us = max(min(slow.workers_waited_us or 0.0, waits_us - slow.waited_us), 0.0)
    # What it neither computed nor was ready in, it may have waited for a thread of an op that has several.
    slept_us = slow.us - slow.usual_us - waits_us - slow.waited_us - (slow.cpu_us - slow.usual_cpu_us)
    return slow.waited_us + of_workers_us + max(min(slow.threads_waited_us or 0.0, slept_us), 0.0)


def _has_spun(slow: SlowStep, beyond_us: float) -> bool:
    """True if it computed more than usual by waiting for a thread.

    It or that thread had no processor for nearly all that it lost, and one of OpenMP spins while it waits for others.
    """
    if slow.waited_us is None:
        return False
    waited_us = min(slow.waited_us, slow.us - slow.cpu_us) + (slow.threads_waited_us or 0.0)
    return waited_us >= _NEARLY_ALL * beyond_us


def during(phase: Phase, *, is_parted: bool) -> str:
    """Words when in a step something took longer.

    ``is_parted`` says that a loader's batches part its phases.
    """
    if phase == "rest" and not is_parted:
        return "outside of the backward pass and the optimizer"
    return _DURING[phase]


def _line(slow: SlowStep, beyond_us: float) -> _Words | None:
    phase = max(range(len(PHASES)), key=lambda place: slow.phases_us[place] - slow.usual_phases_us[place])
    is_parted = has_loader_phases(slow.phases_us)
    name = during(PHASES[phase], is_parted=is_parted)
    if not slow.lines:
        return f"{PHASE}:{PHASES[phase]}", f"the time goes {name}", advice_to_record(())
    line = slow.lines[0]
    kind, place = f"line:{line.source}", f"{_place(line)}, {name}"
    if slow.cpu_us - slow.usual_cpu_us < _MOST * beyond_us:
        return kind, f"it waits at {place}", "see what that line waits for: a file, the network, a lock, the device"
    if PHASES[phase] == "rest" and is_parted:
        advice = "take it out of the loop, or do it less often"
    else:
        advice = (
            "take it out of the loop where it is no part of training; else compare these steps' batches with others: "
            "longer sequences, new shapes"
        )
    return kind, f"the time goes to {place}", advice


def _place(line: SeenLine) -> str:
    """Gives a line with its function: 'train.py:18 (log_metrics)'.

    The line alone at the top of a file.
    """
    return line.source if line.function.startswith("<") else f"{line.source} ({line.function})"


# What the host is known to have done comes first.
_REASONS: tuple[Callable[[SlowStep, float], _Words | None], ...] = (
    _dead,
    _collection,
    _compiling,
    _saving,
    _workers,
    _other_data,
    _disk,
    _no_processor,
    _loader,
    _line,
)


def find_drifts(rank: WatchedRank) -> tuple[Drift, ...]:
    """Gives what grew over the run: the time of usual steps, and memory."""
    drifts: list[Drift] = []
    dead = rank.header.dead_workers
    if dead and rank.header.status:
        ended = f"{describe_dead(dead)}, and the program ended with status {rank.header.status}"
        drifts.append(Drift("dead-worker", ended, advice_on_dead(dead)))
    if rank.records.size < _LEAST_RECORDS:
        return tuple(drifts)
    finders: tuple[Callable[[WatchedRank], Drift | None], ...] = (_slower, _lasting, _memory)
    for finder in finders:
        drift = finder(rank)
        if drift is not None:
            drifts.append(drift)
    return tuple(drifts)


def _quarters(values: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> list[float]:
    return [float(np.median(part)) for part in np.array_split(values, _QUARTER)]


def _is_rising(parts: Sequence[float]) -> bool:
    return all(later > earlier for earlier, later in pairwise(parts))


def _grows(values: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> bool:
    """True if it grows all along, rather than once or up and down."""
    parts = np.array([np.median(part) for part in np.array_split(values, _TREND_PARTS)])
    ranks = parts.argsort().argsort()
    return bool(np.corrcoef(ranks, np.arange(parts.size))[0, 1] >= _TREND)


def _slower(rank: WatchedRank) -> Drift | None:
    if rank.total_us < _SHORTEST_DRIFT_US:
        return None
    parts = _quarters(rank.step_us)
    if parts[-1] < _LEAST_DRIFT * parts[0] or not _grows(rank.step_us):
        return None
    phases = {phase: _quarters(rank.records[f"{phase}_us"] / rank.records["count"]) for phase in PHASES}
    phase = max(PHASES, key=lambda name: phases[name][-1] - phases[name][0])
    what = (
        f"steps grew from {format_us(parts[0])} to {format_us(parts[-1])} ({format_share(parts[-1] / parts[0] - 1)}), "
        f"most of it {during(phase, is_parted=rank.is_parted)}"
    )
    return Drift("time", what, "look for what grows: lists, hooks, a graph that is kept; bottleneck run names it")


def _lasting(rank: WatchedRank) -> Drift | None:
    level = _level(rank)
    if level is None:
        return None
    what = (
        f"from step {level.first:,} on steps take {format_us(level.after_us)}, before {format_us(level.before_us)}; "
        f"most of it {during(level.phase, is_parted=rank.is_parted)}"
    )
    advice = "look for what begins there; two windows (--every) show it, by bottleneck compare"
    return Drift(LEVEL, what, advice, level.beyond_us)


def _level(rank: WatchedRank) -> _Level | None:
    """Finds the step from which on all are longer.

    Null where there is none: in a run that is slower for a while, one that becomes slower all along, and a short one.
    """
    values, records = rank.step_us, rank.records
    count = min(_LEVEL_PARTS, values.size // _LEAST_STEPS)
    if count < 2 * _LEAST_LEVEL_PARTS:
        return None
    parts = np.array_split(np.arange(values.size), count)
    logs = np.log(np.maximum([np.median(values[part]) for part in parts], 1e-9))
    splits = range(_LEAST_LEVEL_PARTS, count - _LEAST_LEVEL_PARTS + 1)
    split = min(splits, key=lambda at: sum(np.abs(side - np.median(side)).sum() for side in (logs[:at], logs[at:])))
    before, after = logs[:split], logs[split:]
    rise = float(np.median(after) - np.median(before))
    if rise < np.log(_LASTING) or max(before.std(), after.std()) > _LEVEL_SPREAD * rise:
        return None
    limit_us = float(np.exp((np.median(before) + np.median(after)) / 2))
    begin, end = int(parts[split - 1][0]), int(parts[split][-1]) + 1
    start = begin + first_beyond(values[begin:end], limit_us)
    before_us, after_us = float(np.median(values[:start])), float(np.median(values[start:]))
    phases = {phase: records[f"{phase}_us"] / records["count"] for phase in PHASES}
    rises = {phase: float(np.median(us[start:]) - np.median(us[:start])) for phase, us in phases.items()}
    steps = int(records["count"][start:].sum())
    phase = max(PHASES, key=lambda name: rises[name])
    return _Level(int(records["first"][start]), before_us, after_us, (after_us - before_us) * steps, phase)


def _memory(rank: WatchedRank) -> Drift | None:
    values = rank.records["memory_bytes"]
    parts = _quarters(values[values > 0]) if (values > 0).sum() >= _LEAST_RECORDS else []
    if not parts or not _is_rising(parts):
        return None
    grown = parts[-1] - parts[0]
    if grown < _LEAST_GROWTH_BYTES or grown < _LEAST_GROWTH_SHARE * parts[0]:
        return None
    keepers = ", ".join(rank.header.memory_keepers[:3])
    held = f"; it is held by {keepers}" if keepers else ""
    per_step = grown / (rank.steps * (_QUARTER - 1) / _QUARTER)
    sizes = f"{format_si(parts[0], 'B')} to {format_si(parts[-1], 'B')}"
    what = f"memory grew from {sizes}, {format_si(per_step, 'B')} a step{held}"
    advice = "keep numbers in place of tensors (loss.item(), loss.detach()), and empty what is collected"
    return Drift("memory", what, advice)
