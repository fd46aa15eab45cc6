"""Cuts the device's waiting time into pieces with one cause each.

Each piece also has the call that held the host.
"""

import re
from collections.abc import Mapping
from typing import Literal

import numpy as np
import pandas as pd
from msgspec import Struct

from bottleneck.analysis.host import STATE, THREAD, Host
from bottleneck.schema.accounts import IDLE_CAUSES, SILENCE
from bottleneck.schema.intervals import (
    NOTHING,
    RESOLUTION_US,
    Codes,
    Flags,
    Floats,
    Integers,
    Segments,
    cut,
    grouped,
    joined,
    numbered,
    tally,
)
from bottleneck.schema.linked_trace import KERNEL_GAP_US, LAUNCH_LATENCY_US, Linked
from bottleneck.schema.op_names import BACKWARD_NODE, BUILT_IN_CALL
from bottleneck.schema.records import replace
from bottleneck.schema.tables import as_integers
from bottleneck.system.working_memory import return_freed_memory

# Where the next work had to wait for another stream, or its launch is not on record, only a gap up to the p90 of such
# gaps is: 0 to 4 us on every part measured.
_QUEUED_GAP_US = (4.0, 10.0)

_LAUNCH, _KERNEL_GAP, _DEPENDENCY, _UNKNOWN = (
    IDLE_CAUSES.index(cause) for cause in ("launch", "kernel_gap", "dependency", "unknown")
)


class Gaps(Struct, frozen=True):
    """Stretches without work.

    ``following`` is the row in KERNELS that ends each, ``preceding`` the one that ran last before it, -1 for none in
    the window; gaps between ops of the host have no ``preceding``.
    """

    start: Floats
    end: Floats
    following: Integers
    preceding: Integers | None = None


class Pieces(Struct, frozen=True):
    """Parts of gaps with one cause each.

    A cause is an index in IDLE_CAUSES. The parts of a gap add up to it.

    ``event`` is the row in EVENTS of what held the host, for ``launch`` after the call the call itself, for
    ``dependency`` the work of another stream that was waited for; ``thread`` is the one that tells. Both are -1 where
    nothing does.
    """

    gap: Integers
    start: Floats
    end: Floats
    cause: Codes
    event: Integers
    thread: Codes

    @property
    def us(self) -> Floats:
        """Length of each piece."""
        return self.end - self.start

    def by_cause(self) -> Floats:
        """Time per cause."""
        return tally(self.cause, self.us, len(IDLE_CAUSES))


class _GapLaunches(Struct, frozen=True):
    """The launch behind the work that ends each gap.

    It has its row in EVENTS, its end and its thread. Unknown calls have end NaN.
    """

    event: Integers
    end: Floats
    thread: Integers


def split_gaps(gaps: Gaps, linked: Linked, host: Host) -> Pieces:
    """The pieces of gaps between device work.

    Until its launch call returned, the host was behind: that part goes to what the launching thread was doing. What
    is left is ``launch`` when it is no longer than a start takes, else ``dependency``. Work that was launched before
    the work before it ended was queued: a short gap is the device's own (``kernel_gap``), a longer one ``dependency``,
    or ``unknown`` where the profiler lost the work that ran in it.
    Where the call is unknown and the gap longer than that, and after the last work, the main thread speaks for the
    whole gap.
    """
    calls = _launches(gaps, linked, host)
    pace = _queued_gap_us(gaps, calls)
    unknown = np.isnan(calls.end) & ((gaps.following < 0) | (gaps.end - gaps.start > pace))
    host_end = np.clip(np.where(unknown, gaps.end, np.nan_to_num(calls.end, nan=-np.inf)), gaps.start, gaps.end)
    # What is below the clock's resolution is no stretch of its own.
    host_end = np.where(host_end - gaps.start < RESOLUTION_US, gaps.start, host_end)
    host_end = np.where(gaps.end - host_end < RESOLUTION_US, gaps.end, host_end)
    behind, early = np.flatnonzero(host_end > gaps.start), np.flatnonzero(host_end < gaps.end)
    parts = [
        _ask(host, thread, Gaps(gaps.start[late], host_end[late], late))
        for thread, rows in grouped(calls.thread[behind])
        for late in [behind[rows]]
    ]
    return joined([*parts, _after_launch(early, host_end[early], gaps, calls, pace, linked)])


def _after_launch(
    rows: Integers, host_end: Floats, gaps: Gaps, calls: _GapLaunches, pace: float, linked: Linked
) -> Pieces:
    """Gives the rest of some gaps after ``host_end``.

    It is the start of the work, a kernel gap, or a wait on the device.
    """
    assert gaps.preceding is not None
    before, call = gaps.preceding[rows], calls.event[rows]
    stream = np.append(linked.kernels["stream"].cat.codes.to_numpy().astype(np.int64), -1)
    one_stream = (stream[before] == stream[gaps.following[rows]]) & (call >= 0)
    was_late = host_end > gaps.start[rows]
    longest = np.where(was_late, LAUNCH_LATENCY_US, np.where(one_stream, KERNEL_GAP_US, pace))
    is_held = gaps.end[rows] - host_end > longest
    is_lost = is_held & holes_before(gaps, linked)[rows]
    other_work = np.append(as_integers(linked.kernels["event"]), -1)[before]
    return Pieces(
        gap=rows,
        start=host_end,
        end=gaps.end[rows],
        cause=np.select([is_lost, is_held, was_late], [_UNKNOWN, _DEPENDENCY, _LAUNCH], _KERNEL_GAP).astype(STATE),
        event=np.select([is_lost, is_held & ~one_stream & ~was_late, was_late & ~is_held], [-1, other_work, call], -1),
        thread=np.full(rows.size, -1, dtype=THREAD),
    )


def holes_before(gaps: Gaps, linked: Linked) -> Flags:
    """Mask of the gaps in which device work ran that the profiler lost."""
    holes = np.zeros(len(linked.kernels), dtype=bool) if linked.losses is None else linked.losses.holes
    return np.append(holes, False)[gaps.following]


def lost_us(pieces: Pieces, gaps: Gaps, linked: Linked) -> float:
    """Time of the pieces in which lost work ran."""
    return float(pieces.us[(pieces.cause == _UNKNOWN) & holes_before(gaps, linked)[pieces.gap]].sum())


def split_host_gaps(gaps: Gaps, host: Host) -> Pieces:
    """Gives the pieces of gaps between ops of the host.

    They say what the main thread did meanwhile.
    """
    return _ask(host, host.main_thread, Gaps(gaps.start, gaps.end, np.arange(gaps.start.size)))


def _ask(host: Host, thread: int, parts: Gaps) -> Pieces:
    """The pieces of some stretches, by what a thread was doing; ``parts.following`` numbers them."""
    cuts = cut(parts.start, parts.end, list(host.changes(thread)))
    answer = host.at(thread, (cuts.start + cuts.end) / 2)
    return Pieces(parts.following[cuts.interval], cuts.start, cuts.end, answer.state, answer.event, answer.thread)


def _launches(gaps: Gaps, linked: Linked, host: Host) -> _GapLaunches:
    kernels, threads = linked.kernels, linked.trace.events["thread"].cat.codes.to_numpy()
    is_followed = gaps.following >= 0
    end = np.full(gaps.start.size, np.nan)
    end[is_followed] = kernels["launch_end_us"].to_numpy()[gaps.following[is_followed]]
    event = np.full(gaps.start.size, -1, dtype=np.int64)
    event[is_followed] = kernels["launch"].to_numpy(dtype=np.int64, na_value=-1)[gaps.following[is_followed]]
    end[event < 0] = np.nan
    # Work that starts before the first launch on record was queued when the recording began.
    first_launch = np.nanmin(kernels["launch_ts_us"].to_numpy(), initial=np.inf)
    end[(event < 0) & is_followed & (gaps.end <= first_launch) & np.isfinite(first_launch)] = -np.inf
    return _GapLaunches(event, end, np.where(event < 0, host.main_thread, threads[np.maximum(event, 0)]))


def _queued_gap_us(gaps: Gaps, calls: _GapLaunches) -> float:
    queued: Flags = calls.end <= gaps.start
    low, high = _QUEUED_GAP_US
    if not queued.any():
        return low
    return float(np.clip(np.quantile((gaps.end - gaps.start)[queued], 0.9), low, high))


_FRAME = re.compile(r"^(?P<file>[^\n]{1,1000}?)\(\d{1,9}\): (?P<function>[^\n]{1,200})")
_COPY_WORDS = {"to_device": "HtoD", "to_host": "DtoH", "within": "DtoD", "between": "PtoP", "on_host": "HtoH"}
_LONGEST = 120
# What the system does with the pages of large blocks on a CPU.
FAULTS, FREED = "first touch of fresh pages", "giving freed pages back"
HELD_UP = "held up"


def detail_of(
    cause: str, event: str | None, op: str | None, call: tuple[str | None, str | None], function: str | None
) -> str | None:
    """Description of what held the host; null where the trace does not show it.

    ``event`` put the thread in its state, ``op`` is the outermost one open, ``call`` the runtime call with the copy
    that it issued, ``function`` the innermost one of the program.
    """
    name, copy = call
    if cause == "python":
        return function
    if cause == "sync":
        held = [short(op), _with_copy(name or event, copy) if name or event != op else None]
        return " > ".join(part for part in held if part) or None
    if cause == "launch":
        return _with_copy(event, copy)
    if cause == "dispatch":
        return short(op or event)
    if cause == "dependency":
        return event and f"{short(event)} of another stream"
    return FREED if cause == "allocator" and event is None else short(event)


def short(name: str | None) -> str | None:
    """Cuts from a name what varies or says nothing.

    These are line numbers of library code, addresses, and the engine's prefix.
    """
    if name is None:
        return None
    built_in, frame = BUILT_IN_CALL.match(name), _FRAME.match(name)
    if built_in is not None:
        return built_in["name"]
    if frame is not None:
        return f"{frame['file'].replace(chr(92), '/')}: {frame['function']}"[:_LONGEST]
    return name.removeprefix(f"{BACKWARD_NODE}: ")[:_LONGEST]


def _words_of_copy(copy: str) -> str:
    """A copy as profilers write it: 'pageable, DtoH'."""
    *memory, way = copy.split()
    return ", ".join((*memory, _COPY_WORDS[way]))


def _with_copy(name: str | None, copy: str | None) -> str | None:
    return f"{name[:_LONGEST]} ({copy})" if name and copy else short(name)


# A thread of which nothing is recorded for so long does something else than calling ops.
_LONG_SILENCE_US = 1000.0

IDLE_TEXTS, RECORDS = ("source", "module", "detail"), ("frames", "ops", "lightly_us")
NEIGHBOURS = ("before", "after")
IDLE_FIELDS = (*IDLE_TEXTS, "copy")
_SYNC, _INPUT, _ALLOCATOR, _PYTHON, _LAUNCH = (
    IDLE_CAUSES.index(cause) for cause in ("sync", "input", "allocator", "python", "launch")
)


class Coded(Struct, frozen=True):
    """Texts as codes into labels; -1 is null."""

    code: Codes
    labels: list[str]

    def on(self, rows: Integers) -> "Coded":
        """The texts of some rows, null for row -1."""
        return Coded(np.append(self.code, -1)[rows], self.labels)

    def texts(self) -> list[str | None]:
        """The texts themselves."""
        return [self.labels[code] if code >= 0 else None for code in self.code.tolist()]

    def or_else(self, other: "Coded") -> "Coded":
        """The same with nulls filled from another."""
        labels = sorted({*self.labels, *other.labels})
        position = {label: code for code, label in enumerate(labels)}
        mine, others = (
            np.array([*(position[label] for label in side.labels), -1], dtype=np.int32)[side.code]
            for side in (self, other)
        )
        return Coded(np.where(mine < 0, others, mine), labels)


def coded(column: "pd.Series[str]") -> Coded:
    """A category column."""
    return Coded(column.cat.codes.to_numpy(), [str(label) for label in column.cat.categories])


class Waits(Struct, frozen=True):
    """Stretches of idle time.

    Each has its cause (index in IDLE_CAUSES), place, detail, copy, length and occasion.

    ``frames`` and ``ops`` count the Python calls in each and the ops beside it, whose recording took time; null: none.
    ``lightly_us`` is how long each takes in a window with the fewest options; null where none tells. ``before`` is the
    kernel whose end left the device idle, ``after`` the op whose work ended that; null on a host. ``on_pages`` marks
    time that the system spends on pages of memory; null: none is.
    """

    cause: Codes
    source: Coded
    module: Coded
    detail: Coded
    copy: Coded
    us: Floats
    occasion: Integers
    frames: Floats | None = None
    ops: Floats | None = None
    lightly_us: Floats | None = None
    before: Coded | None = None
    after: Coded | None = None
    on_pages: Flags | None = None


def fold(waits: Waits) -> pd.DataFrame:
    """Gives time, occasions and records of waits, largest first.

    They are per cause, line, module, detail and copy (null: unknown).
    """
    codes = (getattr(waits, name).code for name in IDLE_FIELDS)
    group, first = numbered(waits.cause, *codes)
    _, occasions = numbered(group, waits.occasion)
    causes = [IDLE_CAUSES[code] for code in waits.cause[first].tolist()]
    texts: dict[str, Coded] = {name: getattr(waits, name) for name in IDLE_FIELDS}
    counts = {name: getattr(waits, name) for name in RECORDS}
    neighbours = {name: _longest(getattr(waits, name), group, waits.us, first.size) for name in NEIGHBOURS}
    frame = pd.DataFrame(
        {
            "cause": pd.Series(causes, dtype=object),
            **{name: pd.Series(column.on(first).texts(), dtype=object) for name, column in texts.items()},
            **{name: pd.Series(texts, dtype=object) for name, texts in neighbours.items()},
            "on_pages": np.zeros(first.size, dtype=bool) if waits.on_pages is None else waits.on_pages[first],
            "us": np.bincount(group, weights=waits.us, minlength=first.size).astype(np.float64),
            "calls": np.bincount(group[occasions], minlength=first.size).astype(np.float64),
            **{
                name: np.zeros(first.size) if count is None else np.bincount(group, count, first.size)
                for name, count in counts.items()
            },
        }
    )
    return frame.sort_values("us", ascending=False, kind="stable", ignore_index=True)


def _longest(texts: Coded | None, group: Integers, us: Floats, count: int) -> list[str | None]:
    """Gives the text with most of each group's time.

    Null where none is known.
    """
    longest: list[str | None] = [None] * count
    if texts is None or not texts.labels:
        return longest
    pair, first = numbered(group, texts.code)
    pair_us = np.bincount(pair, weights=us, minlength=first.size)
    for row in np.argsort(pair_us, kind="stable").tolist():
        code = int(texts.code[first[row]])
        longest[int(group[first[row]])] = texts.labels[code] if code >= 0 else None
    return longest


def explain(pieces: Pieces, gaps: Gaps, linked: Linked, host: Host) -> Waits:
    """The pieces of gaps with their places and details.

    The place is where the thread was meanwhile; where that is not on record, the one that issued the work behind the
    gap. A wait for the device gets no such stand-in: the line behind it is not the one to change.
    """
    source, module, frame = _places_of(pieces, gaps, linked, host)
    return_freed_memory()
    detail, copy = _details(pieces, (pieces.start + pieces.end) / 2, frame, linked, host)
    return_freed_memory()
    waits = Waits(
        pieces.cause, source, module, detail, copy, pieces.us, pieces.gap, *_count_records(pieces, linked),
        on_pages=(pieces.cause == _ALLOCATOR) & (pieces.event < 0),
    )  # fmt: skip
    return waits if gaps.preceding is None else replace(waits, **_neighbours(pieces, gaps, gaps.preceding, linked))


def _neighbours(pieces: Pieces, gaps: Gaps, preceding: Integers, linked: Linked) -> dict[str, Coded]:
    """Gives the kernels and ops beside each piece.

    They are the kernel that it follows directly, and the op whose work ends its gap.
    """
    kernels, ops = linked.kernels, linked.ops
    is_first = pieces.start - gaps.start[pieces.gap] < RESOLUTION_US
    before = np.where(is_first, preceding[pieces.gap], -1)
    following = gaps.following[pieces.gap]
    issued = np.where(following >= 0, as_integers(kernels["op"])[following], -1)
    after = coded(ops["name"]).on(issued).or_else(coded(kernels["name"]).on(following))
    return {"before": coded(kernels["name"]).on(before), "after": after}


def _places_of(pieces: Pieces, gaps: Gaps, linked: Linked, host: Host) -> tuple[Coded, Coded, Coded]:
    """Line and module of each piece, and the function that its thread was in."""
    at = (pieces.start + pieces.end) / 2
    place, op = (_rows_at(segments, pieces.thread, at) for segments in (host.places, host.inner))
    silent = np.flatnonzero((place < 0) & (op < 0) & (pieces.thread >= 0))
    place[silent] = _rows_at(host.places, np.full(silent.size, host.main_thread), at[silent])
    stands_in = (place < 0) & (op < 0) & (pieces.cause != _SYNC)
    following = np.where(stands_in, gaps.following[pieces.gap], -1)

    def texts_of(name: str) -> Coded:
        sources = [coded(linked.ops[name]).on(op), coded(linked.kernels[name]).on(following)]
        if linked.places is not None:
            sources.insert(0, coded(linked.places[name]).on(place))
        first, *others = sources
        for other in others:
            first = first.or_else(other)
        return first

    unknown = Coded(np.full(at.size, -1, dtype=STATE), [])
    frame = unknown if linked.places is None else coded(linked.places["frame"]).on(place)
    return texts_of("source"), texts_of("module"), frame


def _count_records(pieces: Pieces, linked: Linked) -> tuple[Floats, Floats]:
    """Counts Python calls in each piece, and ops beside it.

    The ops have no parent. Half of each counts where it begins, half at its end.
    """
    events, ops = linked.trace.events, linked.ops
    calls = np.flatnonzero((events["category"] == "python").to_numpy())
    thread = events["thread"].cat.codes.to_numpy()[calls].astype(np.int64)
    ranges: list[tuple[pd.DataFrame, Integers, Flags | slice]] = [
        (events, calls[rows], pieces.thread == code) for code, rows in grouped(thread)
    ]
    counts = np.zeros((2, pieces.start.size))
    ranges += [(ops, np.flatnonzero(ops["parent"].isna().to_numpy()), slice(None))]
    for table, rows, mine in ranges:
        kind, begins, length = int(table is ops), table["ts_us"].to_numpy()[rows], table["dur_us"].to_numpy()[rows]
        side: Literal["left", "right"] = "right" if kind else "left"
        low, high = pieces.start[mine], pieces.end[mine]
        counts[kind, mine] += _between(begins, low, high, side) / 2
        counts[kind, mine] += _between(begins + length, low, high, "left") / 2
    return counts[0], counts[1]


def _between(at: Floats, start: Floats, end: Floats, where: Literal["left", "right"]) -> Integers:
    """Counts the instants in each stretch.

    Its start is included for ``left``, its end for ``right``.
    """
    at = np.rint(at * 1e3)  # ends are sums, which miss starts by rounding
    at.sort(kind="stable")  # which passes over what is in order
    count = np.searchsorted(at, np.rint(end * 1e3), side=where)
    count -= np.searchsorted(at, np.rint(start * 1e3), side=where)
    return np.asarray(count)


def explain_ops(rows: Integers, cause: Integers, us: Floats, linked: Linked, host: Host) -> Waits:
    """Gives ops of the host as waits of these causes.

    They are rows of OPS that a data loader or a compiler runs.
    """
    ops = linked.ops.iloc[rows]
    threads, start = coded(ops["thread"]), ops["ts_us"].to_numpy()
    code = np.array([*(host.labels.get(label, -1) for label in threads.labels), -1], dtype=np.int64)[threads.code]
    nothing = np.full(rows.size, -1, dtype=np.int64)
    event = np.full(rows.size, -1, dtype=np.int64)
    for state in np.unique(cause).tolist():
        mine = np.flatnonzero(cause == state)
        event[mine] = _rows_at(host.states_of(IDLE_CAUSES[state]), code[mine], start[mine])
    pieces = Pieces(rows, start, start, cause, event, code)
    detail, copy = _details(pieces, start, Coded(nothing, []), linked, host)
    return Waits(cause, coded(ops["source"]), coded(ops["module"]), detail, copy, us, rows)


def explain_beside(rows: Integers, us: Floats, linked: Linked, cause: int, what: str) -> Waits:
    """Gives time of host ops that is no work as waits.

    The cause is an index in IDLE_CAUSES; rows are those of OPS.
    """
    ops = linked.ops.iloc[rows]
    names = coded(ops["name"])
    detail = Coded(names.code, [f"{short(label)} > {what}" for label in names.labels])
    causes, no_copy = np.full(rows.size, cause), Coded(np.full(rows.size, -1, dtype=np.int8), [])
    on_pages = causes == _ALLOCATOR
    return Waits(causes, coded(ops["source"]), coded(ops["module"]), detail, no_copy, us, rows, on_pages=on_pages)


def _rows_at(segments: Mapping[int, Segments], thread: Codes, at: Floats) -> Integers:
    """The row that holds each instant on its thread, -1 for none."""
    rows = np.full(at.size, -1, dtype=np.int64)
    for code, mine in grouped(thread):
        rows[mine] = segments.get(code, NOTHING).at(at[mine])
    return rows


def _details(pieces: Pieces, at: Floats, frame: Coded, linked: Linked, host: Host) -> tuple[Coded, Coded]:
    """Gives descriptions of what held the host, and the copies named.

    Each distinct combination of events is described once.
    """
    name, op_name, call_name, copied = _names_of(pieces, at, linked, host)
    silent = (pieces.cause == _PYTHON) & (frame.code < 0) & (pieces.us >= _LONG_SILENCE_US)
    parts = (pieces.cause, name, op_name, call_name, copied.code, frame.code, silent)
    group, first = numbered(*parts)
    label = [str(text) for text in linked.trace.events["name"].cat.categories]

    def text(labels: list[str], code: int) -> str | None:
        return labels[code] if code >= 0 else None

    copy_words = {label: _words_of_copy(label) for label in copied.labels}
    words = [
        SILENCE
        if is_silent
        else detail_of(
            IDLE_CAUSES[cause],
            text(label, event),
            text(label, op),
            (text(label, call), copy_words.get(text(copied.labels, copy) or "")),
            text(frame.labels, function),
        )
        for cause, event, op, call, copy, function, is_silent in zip(
            *(part[first].tolist() for part in parts), strict=True
        )
    ]
    distinct = sorted({word for word in words if word})
    position = {word: code for code, word in enumerate(distinct)}
    detail = Coded(np.array([position.get(word or "", -1) for word in words], dtype=np.int32)[group], distinct)
    is_call = (pieces.cause == _SYNC) | (pieces.cause == _LAUNCH)
    return detail, Coded(np.where(is_call, copied.code, -1), copied.labels)


def _names_of(pieces: Pieces, at: Floats, linked: Linked, host: Host) -> tuple[Codes, Codes, Codes, Coded]:
    """Gives names of the event, op and call that held the host.

    They are codes of EVENTS, -1 for none. The call's copy comes last.
    """
    codes = linked.trace.events["name"].cat.codes.to_numpy()
    ops = _rows_at(host.ops, pieces.thread, at)
    op_name = np.where(ops < 0, -1, codes[ops])
    del ops
    loaders = _rows_at(host.loaders, pieces.thread, at)
    event = np.where((pieces.cause == _INPUT) & (loaders >= 0), loaders, pieces.event)
    del loaders
    call = np.where(pieces.cause == _SYNC, _waiting_calls(pieces, linked, host), event)
    name, call_name = (np.where(rows < 0, -1, codes[rows]) for rows in (event, call))
    return name, op_name, call_name, _copies(linked).on(call)


def _copies(linked: Linked) -> Coded:
    """Gives the copy that each call of EVENTS issued.

    It is told by the host's memory and its way: 'pageable to_host'.
    """
    way, memory = (linked.kernels[name].cat for name in ("copy_way", "host_memory"))
    launch = as_integers(linked.kernels["launch"])
    kinds = ["", *(f"{kind} " for kind in memory.categories)]
    labels = [kind + word for word in way.categories for kind in kinds]
    code = (way.codes.to_numpy() * len(kinds) + memory.codes.to_numpy() + 1).astype(np.int8)
    code[way.codes.to_numpy() < 0] = -1
    # There are few words (of where from, where to, and two kinds of memory), and many events.
    issued = np.full(len(linked.trace.events), -1, dtype=np.int8)
    rows = np.flatnonzero((launch >= 0) & (code >= 0))
    issued[launch[rows]] = code[rows]
    return Coded(issued, labels)


def _waiting_calls(pieces: Pieces, linked: Linked, host: Host) -> Integers:
    """Gives the row in EVENTS of the call of each wait.

    It is the event itself, or the last call inside an op that waits.
    """
    start, dur = (linked.trace.events[name].to_numpy() for name in ("ts_us", "dur_us"))
    calls = np.full(pieces.event.size, -1, dtype=np.int64)
    for code, mine in grouped(np.where((pieces.cause == _SYNC) & (pieces.event >= 0), pieces.thread, -1)):
        waits = host.waits.get(code, NOTHING)
        event = pieces.event[mine]
        last = np.searchsorted(waits.start, start[event] + dur[event], side="left") - 1
        row = np.append(waits.row, -1)[last]
        calls[mine] = np.where((last >= 0) & (start[row] >= start[event]), row, -1)
    return calls
