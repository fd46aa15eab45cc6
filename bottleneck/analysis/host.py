"""What each host thread was doing at any time: the ledger asks it why a device waited."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from bottleneck.analysis.states import SLOW_LAUNCH_US, STATEFUL_CATEGORIES, STATES, launches_kernel, state_of
from bottleneck.analysis.timeline import Flags, Floats, Integers, Spans, grouped, join, tally, union

_NONE = -1
_PYTHON = STATES.index("python")
_SYNC = STATES.index("sync")
_INPUT = STATES.index("input")
_TELLING = ("op", "annotation", "python")


@dataclass(frozen=True)
class Host:
    """All host threads: per thread (code of EVENTS.thread) and state (index in STATES) the spans spent in it.

    ``everywhere`` holds what the profiler reports for the process and not for a thread. ``recorded`` is the stretch in
    which the trace tells of the host at all; in it a thread without events runs Python. ``sync_calls`` are the
    starts of waiting calls, ``waits`` those of waiting ops and calls per thread, sorted.
    """

    main_thread: int
    labels: Mapping[str, int]
    threads: Mapping[int, Mapping[int, Spans]]
    everywhere: Mapping[int, Spans]
    recorded: Spans
    sync_calls: Floats
    waits: Mapping[int, Floats]

    def sync_calls_between(self, start: float, end: float) -> int:
        """Number of calls that wait for a device and begin in [start, end)."""
        return int(np.count_nonzero((self.sync_calls >= start) & (self.sync_calls < end)))

    def last_wait(self, thread: int, times: Floats) -> Floats:
        """Start of the last wait of a thread (else of the main thread) before each time; NaN for none."""
        waits = self.waits.get(thread, self.waits.get(self.main_thread, np.zeros(0)))
        return np.concatenate(([np.nan], waits))[np.searchsorted(waits, times, side="left")]

    def charge(self, thread: int, start: Floats, end: Floats) -> Floats:
        """Time per interval (rows) and state (columns as STATES, then unknown); each row adds up to its interval.

        Where the thread has no events the main thread speaks: a backward thread that is idle waits for it.
        """
        charge = np.zeros((start.size, len(STATES) + 1))
        higher, covered = union(np.zeros(0), np.zeros(0)), np.zeros(start.size)
        for state, spans in self._stack(thread):
            higher = join(higher, spans)
            now = np.maximum(higher.covered_between(start, end), covered)
            charge[:, state] += now - covered
            covered = now
        charge[:, -1] = np.maximum(end - start - covered, 0.0)
        return charge

    def loads_at(self, thread: str, times: Floats) -> Flags:
        """Whether the thread of this label was inside a data loader at each time."""
        loading = self.threads.get(self.labels.get(thread, _NONE), {}).get(_INPUT)
        if loading is None or not loading.start.size:
            return np.zeros(times.shape, dtype=bool)
        span = np.searchsorted(loading.start, times, side="right") - 1
        return (span >= 0) & (times < loading.end[np.maximum(span, 0)])

    def _stack(self, thread: int) -> Iterator[tuple[int, Spans]]:
        yield from sorted(self.everywhere.items(), key=_by_state)
        for source in dict.fromkeys((thread, self.main_thread)):
            yield from sorted(self.threads.get(source, {}).items(), key=_by_state)
        yield _PYTHON, self.recorded


def _by_state(item: tuple[int, Spans]) -> int:
    return item[0]


def read_host(events: pd.DataFrame) -> Host:
    """The states of all host threads; ``events`` is EVENTS."""
    rows, states = _stateful_rows(events)
    start = events["ts_us"].to_numpy()[rows]
    end = start + events["dur_us"].to_numpy()[rows]
    thread = events["thread"].cat.codes.to_numpy()[rows].astype(np.int64)
    labels = events["thread"].cat.categories
    runtime = _is_category(events, "runtime")[rows]
    states = np.where(_waits(states, runtime, thread, start, end), states, STATES.index("dispatch"))
    key = thread * len(STATES) + states
    threads: dict[int, dict[int, Spans]] = {}
    everywhere: dict[int, Spans] = {}
    for number, part in grouped(key):
        code, state = divmod(number, len(STATES))
        target = everywhere if str(labels[code]).startswith("-1/") else threads.setdefault(code, {})
        target[state] = union(start[part], end[part])
    codes = {str(label): code for code, label in enumerate(labels)}
    waiting = np.flatnonzero(states == _SYNC)
    waits = {code: np.sort(start[waiting[rows]]) for code, rows in grouped(thread[waiting])}
    sync_calls = start[waiting[runtime[waiting]]]
    return Host(_main_thread(events), codes, threads, everywhere, _recorded(events), sync_calls, waits)


def _stateful_rows(events: pd.DataFrame) -> tuple[Integers, Integers]:
    """Rows of EVENTS whose name tells a state, and the state; names are matched once each, not once per row."""
    category, names = events["category"].cat, events["name"].cat
    category_codes, name_codes = category.codes.to_numpy(), names.codes.to_numpy()
    rows, states = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for wanted in STATEFUL_CATEGORIES:
        if wanted not in category.categories:
            continue
        mine = np.flatnonzero(category_codes == category.categories.get_loc(wanted))
        codes = name_codes[mine].astype(np.int64)
        state_by_name = np.full(len(names.categories), _NONE, dtype=np.int64)
        for code in np.flatnonzero(np.bincount(codes, minlength=len(names.categories))):
            state = state_of(wanted, str(names.categories[int(code)]))
            if state is not None:
                state_by_name[code] = STATES.index(state)
        found = state_by_name[codes]
        if wanted == "runtime":
            found = _with_slow_launches(found, events["dur_us"].to_numpy()[mine], names.categories, codes)
        rows.append(mine[found != _NONE])
        states.append(found[found != _NONE])
    return np.concatenate(rows), np.concatenate(states)


def _with_slow_launches(states: Integers, dur_us: Floats, names: "pd.Index[str]", codes: Integers) -> Integers:
    """The states with kernel launches that load code counted as compilation."""
    slow = np.flatnonzero((states == STATES.index("launch")) & (dur_us > SLOW_LAUNCH_US))
    loads = slow[[launches_kernel(str(names[code])) for code in codes[slow].tolist()]]
    states[loads] = STATES.index("compile")
    return states


def _is_category(events: pd.DataFrame, name: str) -> Flags:
    codes, categories = events["category"].cat.codes.to_numpy(), events["category"].cat.categories
    return codes == categories.get_loc(name) if name in categories else np.zeros(codes.size, dtype=bool)


def _waits(states: Integers, runtime: Flags, thread: Integers, start: Floats, end: Floats) -> Flags:
    """True but for ops that could wait for the device and made no waiting call, such as item() of a CPU tensor.

    A trace without any runtime call cannot tell, so there such ops count as waiting.
    """
    waits = np.ones(states.size, dtype=bool)
    if not runtime.any():
        return waits
    candidates = np.flatnonzero(states == _SYNC)
    for _, rows in grouped(thread[candidates]):
        mine = candidates[rows]
        calls, doubtful = np.sort(start[mine[runtime[mine]]]), mine[~runtime[mine]]
        waits[doubtful] = np.searchsorted(calls, end[doubtful]) > np.searchsorted(calls, start[doubtful])
    return waits


def _main_thread(events: pd.DataFrame) -> int:
    """The thread that runs the program: most time in nested frames and annotations, among the threads with ops.

    A backward thread may spend more time in ops, but it has next to no frames. Without any op: among all threads, and
    as a last resort the one with the most time in runtime calls.
    """
    threads = len(events["thread"].cat.categories)
    codes, dur = events["thread"].cat.codes.to_numpy().astype(np.int64), events["dur_us"].to_numpy()

    def time_in(*categories: str) -> Floats:
        rows = np.flatnonzero(np.logical_or.reduce([_is_category(events, name) for name in categories]))
        return tally(codes[rows], dur[rows], threads)

    in_ops, in_frames = time_in("op"), time_in("annotation", "python")
    for score in (in_frames * (in_ops > 0), in_ops, in_frames, time_in("runtime")):
        if score.any():
            best = np.flatnonzero(score == score.max())
            return int(best[0] if best.size == 1 else codes[np.isin(codes, best)][0])  # of equals the first to appear
    return _NONE


def _recorded(events: pd.DataFrame) -> Spans:
    rows = np.flatnonzero(np.logical_or.reduce([_is_category(events, name) for name in _TELLING]))
    if not rows.size:
        return union(np.zeros(0), np.zeros(0))
    start, dur = events["ts_us"].to_numpy()[rows], events["dur_us"].to_numpy()[rows]
    return union(start[:1], np.array([np.max(start + dur)]))
