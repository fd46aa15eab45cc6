"""Idle time told for people: which call, loader, op or function held the host, at which line and module, folded."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from bottleneck.analysis.details import FAULTS, copy_words, detail_of, short
from bottleneck.analysis.host import Host
from bottleneck.analysis.idle import CAUSES, Gaps, Pieces
from bottleneck.analysis.segments import NOTHING, Segments
from bottleneck.analysis.timeline import Floats, Integers, grouped
from bottleneck.tracing import Linked

IDLE_TEXTS = ("source", "module", "detail")
_SYNC, _INPUT, _ALLOCATOR = (CAUSES.index(cause) for cause in ("sync", "input", "allocator"))


@dataclass(frozen=True)
class Coded:
    """Texts as codes into labels; -1 is null."""

    code: Integers
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
            np.array([*(position[label] for label in each.labels), -1], dtype=np.int64)[each.code]
            for each in (self, other)
        )
        return Coded(np.where(mine < 0, others, mine), labels)


def coded(column: "pd.Series[str]") -> Coded:
    """A category column."""
    return Coded(column.cat.codes.to_numpy().astype(np.int64), [str(label) for label in column.cat.categories])


@dataclass(frozen=True)
class Waits:
    """Stretches of idle time: cause (index in CAUSES), place, detail, length, and the occasion that each is part of."""

    cause: Integers
    source: Coded
    module: Coded
    detail: Coded
    us: Floats
    occasion: Integers


def fold(waits: Waits) -> pd.DataFrame:
    """Time and number of occasions per cause, line, module and detail (null: unknown), largest first."""
    keys = (waits.cause, waits.source.code, waits.module.code, waits.detail.code)
    key = _paired(*keys)
    _, first, group = np.unique(key, return_index=True, return_inverse=True)
    occasions = np.unique(_paired(group, waits.occasion), return_index=True)[1]
    causes = [CAUSES[code] for code in waits.cause[first].tolist()]
    texts: dict[str, Coded] = {name: getattr(waits, name) for name in IDLE_TEXTS}
    frame = pd.DataFrame(
        {
            "cause": pd.Series(causes, dtype=object),
            **{name: pd.Series(each.on(first).texts(), dtype=object) for name, each in texts.items()},
            "us": np.bincount(group, weights=waits.us, minlength=first.size).astype(np.float64),
            "calls": np.bincount(group[occasions], minlength=first.size).astype(np.float64),
        }
    )
    return frame.sort_values("us", ascending=False, kind="stable", ignore_index=True)


def _paired(first: Integers, *others: Integers) -> Integers:
    """One dense code for each distinct combination, so that no product of sizes can overflow."""
    code = np.unique(first, return_inverse=True)[1].astype(np.int64)
    for other in others:
        dense = np.unique(other, return_inverse=True)[1].astype(np.int64)
        code = np.unique(code * (dense.max(initial=0) + 1) + dense, return_inverse=True)[1].astype(np.int64)
    return code


def explain(pieces: Pieces, gaps: Gaps, linked: Linked, host: Host) -> Waits:
    """The pieces of gaps with their places and details.

    The place is where the thread was meanwhile; where that is not on record, the one that issued the work behind the
    gap. A wait for the device gets no such stand-in: the line behind it is not the one to change.
    """
    at = (pieces.start + pieces.end) / 2
    place, op = (_rows_at(each, pieces.thread, at) for each in (host.places, host.inner))
    main = np.where(pieces.thread >= 0, host.main_thread, -1)
    place = np.where((place < 0) & (op < 0), _rows_at(host.places, main, at), place)
    stands_in = (place < 0) & (op < 0) & (pieces.cause != _SYNC)
    following = np.where(stands_in, gaps.following[pieces.gap], -1)

    def told(name: str) -> Coded:
        sources = [coded(linked.ops[name]).on(op), coded(linked.kernels[name]).on(following)]
        if linked.places is not None:
            sources.insert(0, coded(linked.places[name]).on(place))
        first, *others = sources
        for other in others:
            first = first.or_else(other)
        return first

    frame = coded(linked.places["frame"]).on(place) if linked.places is not None else Coded(np.full(at.size, -1), [])
    return Waits(
        pieces.cause,
        told("source"),
        told("module"),
        _details(pieces, at, frame, linked, host),
        pieces.us,
        pieces.gap,
    )


def explain_ops(rows: Integers, cause: Integers, us: Floats, linked: Linked, host: Host) -> Waits:
    """Ops of the host (rows of OPS) that a data loader or a compiler runs, as waits of these causes."""
    ops = linked.ops.iloc[rows]
    threads, start = coded(ops["thread"]), ops["ts_us"].to_numpy()
    code = np.array([*(host.labels.get(label, -1) for label in threads.labels), -1], dtype=np.int64)[threads.code]
    nothing = np.full(rows.size, -1, dtype=np.int64)
    event = np.full(rows.size, -1, dtype=np.int64)
    for state in np.unique(cause).tolist():
        mine = np.flatnonzero(cause == state)
        event[mine] = _rows_at(host.states_of(CAUSES[state]), code[mine], start[mine])
    pieces = Pieces(rows, start, start, cause, event, code)
    detail = _details(pieces, start, Coded(nothing, []), linked, host)
    return Waits(cause, coded(ops["source"]), coded(ops["module"]), detail, us, rows)


def explain_faults(rows: Integers, us: Floats, linked: Linked) -> Waits:
    """Page faults of ops of the host (rows of OPS), as waits for the allocator."""
    ops = linked.ops.iloc[rows]
    names = coded(ops["name"])
    detail = Coded(names.code, [f"{short(label)} > {FAULTS}" for label in names.labels])
    return Waits(np.full(rows.size, _ALLOCATOR), coded(ops["source"]), coded(ops["module"]), detail, us, rows)


def _rows_at(segments: Mapping[int, Segments], thread: Integers, at: Floats) -> Integers:
    """The row that holds each instant on its thread, -1 for none."""
    rows = np.full(at.size, -1, dtype=np.int64)
    for code, mine in grouped(thread):
        rows[mine] = segments.get(code, NOTHING).at(at[mine])
    return rows


def _details(pieces: Pieces, at: Floats, frame: Coded, linked: Linked, host: Host) -> Coded:
    """What held the host in words; each distinct combination of events is worded once."""
    ops, loaders = (_rows_at(each, pieces.thread, at) for each in (host.ops, host.loaders))
    event = np.where((pieces.cause == _INPUT) & (loaders >= 0), loaders, pieces.event)
    call = np.where(pieces.cause == _SYNC, _waiting_calls(pieces, linked, host), event)
    names = linked.trace.events["name"].cat
    name = np.append(names.codes.to_numpy().astype(np.int64), -1)
    copied = _copies(linked)
    parts = (pieces.cause, name[event], name[ops], name[call], copied.on(call).code, frame.code)
    _, first, group = np.unique(_paired(*parts), return_index=True, return_inverse=True)
    label = [str(text) for text in names.categories]

    def text(labels: list[str], code: int) -> str | None:
        return labels[code] if code >= 0 else None

    words = [
        detail_of(
            CAUSES[cause],
            text(label, event),
            text(label, op),
            (text(label, call), text(copied.labels, copy)),
            text(frame.labels, function),
        )
        for cause, event, op, call, copy, function in zip(*(part[first].tolist() for part in parts), strict=True)
    ]
    distinct = sorted({word for word in words if word})
    position = {word: code for code, word in enumerate(distinct)}
    return Coded(np.array([position.get(word or "", -1) for word in words], dtype=np.int64)[group], distinct)


def _copies(linked: Linked) -> Coded:
    """Row for row as EVENTS: the copy that a call issued, in words."""
    name, launch = linked.kernels["name"].cat, linked.kernels["launch"].to_numpy(dtype=np.int64, na_value=-1)
    words = [copy_words(str(label)) for label in name.categories]
    labels = sorted({word for word in words if word})
    code = np.array([*(labels.index(word) if word else -1 for word in words), -1], dtype=np.int64)[
        name.codes.to_numpy()
    ]
    issued = np.full(len(linked.trace.events), -1, dtype=np.int64)
    rows = np.flatnonzero((launch >= 0) & (code >= 0))
    issued[launch[rows]] = code[rows]
    return Coded(issued, labels)


def _waiting_calls(pieces: Pieces, linked: Linked, host: Host) -> Integers:
    """Row in EVENTS of the call in which each wait was: the event itself, or the last call inside an op that waits."""
    start, dur = (linked.trace.events[name].to_numpy() for name in ("ts_us", "dur_us"))
    calls = np.full(pieces.event.size, -1, dtype=np.int64)
    for code, mine in grouped(np.where((pieces.cause == _SYNC) & (pieces.event >= 0), pieces.thread, -1)):
        waits = host.waits.get(code, NOTHING)
        event = pieces.event[mine]
        last = np.searchsorted(waits.start, start[event] + dur[event], side="left") - 1
        row = np.append(waits.row, -1)[last]
        calls[mine] = np.where((last >= 0) & (start[row] >= start[event]), row, -1)
    return calls
