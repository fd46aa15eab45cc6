"""Assembles the columns of a trace file into a ``Trace``.

Its tables are sorted and rebased, and null where a value is unknown. The last step of ``read_trace``, after ``Columns``
has collected all events.
"""

import json
import re
from collections.abc import Callable, Sequence
from functools import cache

import msgspec
import numpy as np
import pandas as pd
from msgspec import Struct

from bottleneck.schema.intervals import FEW
from bottleneck.schema.tables import (
    CATEGORIES,
    COUNTER_SAMPLES,
    DEVICE_ARGS,
    EVENTS,
    LAUNCH_ARGS,
    MEMORY,
    OP_ARGS,
    SIGNATURES,
    category,
)
from bottleneck.trace.categories import LEGACY_KERNEL, category_by_name, category_of, depends_on_name, range_names
from bottleneck.trace.columns import Array, Columns
from bottleneck.trace.damage import Damage
from bottleneck.trace.decode import ABSENT, DECODE_ERRORS
from bottleneck.trace.vendors import call_kinds

# Traces last seconds to minutes. An event days away has a broken clock, and would cost all others their precision.
LONGEST_US = 7 * 86_400e6
# Some events stand apart after a pause of a minute, and of so many times what all others take. More events than these,
# and this part of all, are a recording of their own.
_LEAST_APART_NS, _APART, _FEW_STRAYS, _FEW_STRAYS_SHARE = 60 * 10**9, 1000, 3, 0.01

# Of equal intervals the one that can enclose the other comes first.
_OUTER_FIRST = ("line", "python", "annotation", "op", "runtime")
_RANK = np.array([_OUTER_FIRST.index(name) if name in _OUTER_FIRST else 9 for name in CATEGORIES], np.int8)


class Events(Struct, frozen=True):
    """Columns of all complete events in file order.

    Category, name and track are codes among sorted labels.
    """

    ts_ns: Array
    dur_us: Array
    category: Array
    name: Array
    track: Array


def event_order(events: Events, nameless: Array, identifier: Array, damage: Damage) -> Array:
    """Gives positions of the events that stay, in the order of EVENTS.

    Counts the others by the reason. ``nameless`` is True for the codes of ``events.name`` that are no name;
    ``identifier`` holds the External id of an op, the Python id of a frame and the correlation of other work, or
    ABSENT.
    """
    # Each kind of event comes in time order; merging such runs is what this sort is fastest at.
    rows = np.argsort(events.ts_ns, kind="stable")
    rows = _without(rows, (events.ts_ns == ABSENT) | np.isnan(events.dur_us), "no-time", damage)
    rows = _without(rows, nameless[events.name], "no-name", damage)
    rows = _without(rows, events.dur_us > LONGEST_US, "far-time", damage)
    rows = _near_the_middle(events.ts_ns, rows, damage)
    return _break_ties(events, _without_strays(events, rows, damage), identifier)


def _without(rows: Array, bad: Array, kind: str, damage: Damage) -> Array:
    if not bad.any():
        return rows
    sound_rows = rows[~bad[rows]]
    damage[kind] += len(rows) - len(sound_rows)
    return sound_rows


def _near_the_middle(ts_ns: Array, rows: Array, damage: Damage) -> Array:
    """Keeps the rows within a week of the middle one.

    The rows are in order of time.
    """
    if not rows.size:
        return rows
    middle, reach = int(ts_ns[rows[rows.size // 2]]), int(LONGEST_US * 1000)
    if middle - int(ts_ns[rows[0]]) <= reach and int(ts_ns[rows[-1]]) - middle <= reach:
        return rows
    near = np.abs(ts_ns[rows] / 1000 - middle / 1000) <= LONGEST_US
    damage["far-time"] += int(np.count_nonzero(~near))
    near_rows: Array = rows[near]
    return near_rows


def _without_strays(events: Events, rows: Array, damage: Damage) -> Array:
    """Keeps all rows but a few that stand apart from all others.

    The rows are in order of time. An event stands apart where nothing happens between it and the middle one for a
    thousand times as long as all that goes on around the middle takes together.
    """
    if not rows.size:
        return rows
    start_ns = events.ts_ns[rows]
    if start_ns[-1] - start_ns[0] < _LEAST_APART_NS:
        return rows
    reach_ns = np.maximum.accumulate(start_ns + np.rint(events.dur_us[rows] * 1000).astype(np.int64))
    pauses = np.flatnonzero(start_ns[1:] - reach_ns[:-1] >= _LEAST_APART_NS) + 1
    middle = int(np.searchsorted(pauses, rows.size // 2, side="right"))
    bounds = [0, *pauses.tolist(), rows.size]
    low, high = bounds[middle], bounds[middle + 1]
    span_ns = int(reach_ns[high - 1] - start_ns[low])
    before_ns = int(start_ns[low] - reach_ns[low - 1]) if low else 0
    after_ns = int(start_ns[high] - reach_ns[high - 1]) if high < rows.size else 0
    low = low if before_ns > _APART * span_ns else 0
    high = high if after_ns > _APART * span_ns else rows.size
    strays = rows.size - (high - low)
    if strays > max(_FEW_STRAYS, _FEW_STRAYS_SHARE * rows.size) or 2 * strays >= rows.size:
        return rows
    damage["far-time"] += strays
    near_rows: Array = rows[low:high]
    return near_rows


def _break_ties(events: Events, rows: Array, identifier: Array) -> Array:
    """Reorders rows with equal starts independently of the file's order.

    Changes ``rows``. Ids grow inwards, because ops and frames get theirs when they begin. Names and tracks only make
    the order total.
    """
    ts_ns = events.ts_ns[rows]
    same = np.zeros(rows.size + 1, bool)
    np.equal(ts_ns[1:], ts_ns[:-1], out=same[1:-1])
    tied = np.flatnonzero(same[1:] | same[:-1])
    if not tied.size:
        return rows
    some = rows[tied]
    keys = (
        events.name[some],
        events.track[some],
        identifier[some],
        _RANK[events.category[some]],
        -events.dur_us[some],
        ts_ns[tied],
    )
    rows[tied] = some[np.lexsort(keys)]
    return rows


def signature_table(shapes: list[bytes], shape: Array, labels: list[str], name: Array) -> tuple[pd.DataFrame, Array]:
    """SIGNATURES, and for each op its row there (int32, -1 without shapes).

    ``shapes`` are texts as ``Columns`` joins them; ``shape`` and ``name`` hold a code among shapes and labels per op.
    """
    plain = cache(_plain)  # of a hundred shapes, types and strides are mostly the same
    texts = [_parts(joined, plain) for joined in shapes]
    rank = np.array(_ranks(texts), np.int64)
    key = name.astype(np.int64) << 32 | (rank[shape] if shape.size else shape)
    has_shape = np.array([bool(parts[0]) for parts in texts], bool)
    shaped = has_shape[shape] if shape.size else np.zeros(0, bool)
    # Hashing beats the sort of np.unique where a few thousand keys stand for a million calls.
    code, met = pd.factorize(key[shaped], size_hint=FEW)
    order = np.argsort(met)
    distinct = met[order]
    row = np.full(len(shape), -1, np.int32)
    row[shaped] = np.argsort(order)[code]
    by_rank = dict(zip(rank.tolist(), texts, strict=True))
    rows = [(labels[code >> 32], *by_rank[code & 0xFFFFFFFF]) for code in distinct.tolist()]
    columns = zip(*rows, strict=True) if rows else [()] * len(SIGNATURES.columns)
    frame = pd.DataFrame(dict(zip(SIGNATURES.columns, columns, strict=True)), dtype=object)
    return SIGNATURES.check(frame), row


def _parts(joined: bytes, plain: Callable[[str], str]) -> tuple[str | None, ...]:
    dims, types, strides, concrete, dims_1_8 = joined.decode("utf-8", errors="replace").split("\0")
    return plain(dims or dims_1_8) or None, plain(types) or None, plain(strides) or None, plain(concrete) or None


def _plain(text: str) -> str:
    """Gives a list on one line, '' for anything else.

    Hand-made and post-processed traces hold the list as a string.
    """
    try:
        value = json.loads(text) if text.startswith('"') else text
        return msgspec.json.format(value, indent=0) if str(value).lstrip().startswith("[") else ""
    except DECODE_ERRORS:
        return ""


def _ranks(texts: list[tuple[str | None, ...]]) -> list[int]:
    """Position of each text among the distinct ones in sorted order."""
    keys = [(a or "", b or "", c or "", d or "") for a, b, c, d in texts]
    order = {key: rank for rank, key in enumerate(sorted(set(keys)))}
    return [order[key] for key in keys]


# Devices and streams have small numbers; elsewhere pid and tid are those of processes and threads.
_LARGEST_DEVICE, _LARGEST_STREAM = 255, 65_535
_STREAM = re.compile(r"(?:stream )?(\d{1,9})")


class Tracks:
    """Distinct tracks in sorted order.

    ``recode`` turns codes of the file into positions among ``labels``.
    """

    def __init__(self, tracks: Sequence[tuple[object, object]]) -> None:
        texts = [f"{'' if pid is None else pid}/{'' if tid is None else tid}" for pid, tid in tracks]
        self.labels = sorted(set(texts))
        codes = {label: code for code, label in enumerate(self.labels)}
        self.recode = np.array([codes[text] for text in texts] or [0], np.int32)
        self._devices = np.full(len(self.labels), ABSENT)
        self._streams = np.full(len(self.labels), ABSENT)
        for (pid, tid), text in zip(tracks, texts, strict=True):
            code = codes[text]
            self._devices[code] = _number(tid if pid == LEGACY_KERNEL else pid, _LARGEST_DEVICE)
            self._streams[code] = ABSENT if pid == LEGACY_KERNEL else _number(tid, _LARGEST_STREAM)

    def fill(self, devices: dict[str, Array], track: Array) -> None:
        """Writes device and stream where the arguments have none (ROCm before 2.3, legacy arrays)."""
        own = track[devices["row"]]
        for name, numbers in (("device", self._devices), ("stream", self._streams)):
            devices[name] = np.where(devices[name] == ABSENT, numbers[own], devices[name])


def _number(label: object, largest: int) -> int:
    match = _STREAM.fullmatch(str(label))
    return int(match[1]) if match and int(match[1]) <= largest else ABSENT


Arrays = dict[str, Array]

_CODE = {name: code for code, name in enumerate(CATEGORIES)}
_DEVICE_WORK = ("kernel", "copy", "fill")
_GONE = -1
_INT32_MAX = 2**31 - 1


class Assembled(Struct, frozen=True):
    """Tables of a trace and the time at which they begin.

    That is the time of ts_us == 0 on the clock of the file, in nanoseconds.
    """

    events: pd.DataFrame
    op_args: pd.DataFrame
    signatures: pd.DataFrame
    launch_args: pd.DataFrame
    device_args: pd.DataFrame
    memory: pd.DataFrame
    first_ns: int
    counters: pd.DataFrame | None


def assemble(columns: Columns, names: Sequence[str]) -> Assembled:
    """All tables; ``names`` holds the name of each code of ``columns.names``.

    Events without a time or a name, and those days away from all others, are left out and counted in the damage.
    """
    tracks = Tracks(list(columns.tracks))
    ops, launches, devices = columns.ops.take(), *_correlated(columns.launches.take(), columns.devices.take())
    labels = sorted(set(names))
    events = _events(columns, names, labels, tracks)
    nameless = np.array([not label for label in labels] or [True])
    identifier = _identifiers(len(events.ts_ns), (ops, launches, devices, columns.frames.take()))
    order = event_order(events, nameless, identifier, columns.damage)
    del identifier
    first_ns = int(events.ts_ns[order[0]]) if order.size else 0
    place = np.full(len(events.ts_ns), _GONE, np.int32)
    place[order] = np.arange(order.size)
    tracks.fill(devices, events.track)
    ops = _pick(ops, events.category, place, ("op", "collective"))
    signatures, signature = signature_table(
        list(columns.shapes), ops["shape"], labels, events.name[order[ops["event"]]]
    )
    trusted = _ids_are_trusted(devices, launches)
    calls = _pick(launches, events.category, place, ("runtime",))
    return Assembled(
        events=_events_table(events, order, first_ns, labels, tracks.labels),
        op_args=_op_args(ops, signature),
        signatures=signatures,
        launch_args=_launch_args(columns, calls, call_kinds(events.name[order[calls["event"]]], labels), trusted),
        device_args=_device_args(columns, _pick(devices, events.category, place, _DEVICE_WORK), trusted),
        memory=_memory(columns.memory.take(), first_ns, tracks),
        first_ns=first_ns,
        counters=_counters(columns, first_ns),
    )


def _correlated(launches: Arrays, devices: Arrays) -> tuple[Arrays, Arrays]:
    """Gives launches and device work with the External id as correlation.

    Only where the file calls it by that name: a builder of ROCm traces has no field for the correlation, and each piece
    of work shares an External id with one call.
    """
    called, issued = launches["external_id"], devices["external_id"]
    if (launches["correlation"] != ABSENT).any() or (devices["correlation"] != ABSENT).any() or not issued.size:
        return launches, devices
    called = called[called != ABSENT]
    is_own = np.unique(issued).size == issued.size and np.unique(called).size == called.size
    if not is_own or not np.isin(issued, called).all():
        return launches, devices
    return {**launches, "correlation": launches["external_id"]}, {**devices, "correlation": issued}


def _ids_are_trusted(devices: Arrays, launches: Arrays) -> bool:
    """Returns True where External ids can be those of ops.

    The ids are those of device work, or of launches where there is none. From 1.12 to 2.2 Kineto wrote the correlation
    in their place (fixed in 63675439, Kineto #873). Over 224 real traces the share of kernels where both are equal is
    exactly 1 in the bad ones and at most 0.083 in the good ones.
    """
    for rows in (devices, launches):
        both = (rows["correlation"] != ABSENT) & (rows["external_id"] != ABSENT)
        if both.any():
            return bool((rows["correlation"][both] == rows["external_id"][both]).mean() <= 0.5)
    return True


def _events(columns: Columns, names: Sequence[str], labels: list[str], tracks: Tracks) -> Events:
    codes = {label: code for code, label in enumerate(labels)}
    recode = np.array([codes[name] for name in names] or [0], np.int32)
    raw, name = columns.category.take(), columns.name.take()
    return Events(
        ts_ns=columns.ts_ns.take(),
        dur_us=_clamped(columns),
        category=_categories(list(columns.categories), names, raw, name),
        name=recode[name],
        track=tracks.recode[columns.track.take()],
    )


def _identifiers(count: int, roles: Sequence[Arrays]) -> Array:
    identifier = np.full(count, ABSENT)
    for rows in roles:
        name = next(name for name in ("correlation", "external_id", "python_id") if name in rows)
        identifier[rows["row"]] = rows[name]
    return identifier


def _clamped(columns: Columns) -> Array:
    dur_us = columns.dur_us.take()
    negative = dur_us < 0
    columns.damage["negative-duration"] += int(np.count_nonzero(negative))
    dur_us[negative] = 0.0
    return dur_us


def _categories(raws: list[str], names: Sequence[str], raw: Array, name: Array) -> Array:
    """Category codes by raw category, and by name where that overrules it."""
    by_raw = np.array([_CODE[category_of(label)] for label in raws] or [0], np.int8)
    result: Array = by_raw[raw]
    for code, label in enumerate(raws):
        if not depends_on_name(label):
            continue
        by_label = np.array([_CODE[category_by_name(label, text)] for text in names], np.int8)
        rows = np.flatnonzero(raw == code)
        ranges = range_names(label, [names[at] for at in np.unique(name[rows]).tolist()])
        by_label[[at for at, text in enumerate(names) if text in ranges]] = _CODE["annotation"]
        result[rows] = by_label[name[rows]]
    return result


def _pick(rows: Arrays, categories: Array, place: Array, wanted: Sequence[str]) -> Arrays:
    """Selects the rows of wanted categories whose event stays.

    They are in the order of EVENTS, with ``event`` for ``row``.
    """
    row = rows.pop("row")
    event = place[row]
    wanted_rows = np.flatnonzero((event != _GONE) & np.isin(categories[row], [_CODE[name] for name in wanted]))
    wanted_rows = wanted_rows[np.argsort(event[wanted_rows], kind="stable")]
    # Popping frees each column as soon as its sorted copy exists.
    return {"event": event[wanted_rows].astype(np.int64), **{name: rows.pop(name)[wanted_rows] for name in list(rows)}}


def _events_table(events: Events, order: Array, first_ns: int, labels: list[str], threads: list[str]) -> pd.DataFrame:
    return EVENTS.check(
        pd.DataFrame(
            {
                "ts_us": (events.ts_ns[order] - first_ns) / 1000,
                "dur_us": events.dur_us[order],
                "category": category(events.category[order], list(CATEGORIES)),
                "name": category(events.name[order], labels),
                "thread": category(events.track[order], threads),
            },
            copy=False,
        )
    )


def _nullable(values: Array, dtype: str = "int64") -> pd.arrays.IntegerArray:
    missing = values == ABSENT
    if dtype == "int32":
        missing |= np.abs(values) > _INT32_MAX
    return pd.arrays.IntegerArray(np.where(missing, 0, values).astype(dtype, copy=False), missing)


def _ids(values: Array) -> pd.arrays.IntegerArray:
    """A column of ids: in 32 bits where all fit."""
    missing = values == ABSENT
    ids = np.where(missing, 0, values)
    fits = not ids.size or np.abs(ids).max() <= _INT32_MAX
    return pd.arrays.IntegerArray(ids.astype(np.int32) if fits else ids, missing)


def _positive(values: Array) -> Array:
    # Some ROCm profilers write a grid of (0, 0, 0) for a kernel whose grid they did not see.
    return np.where(values > 0, values, ABSENT)


def _op_args(rows: Arrays, signature: Array) -> pd.DataFrame:
    return OP_ARGS.check(
        pd.DataFrame(
            {
                "event": rows["event"],
                "external_id": _ids(rows.pop("external_id")),
                "signature": pd.arrays.IntegerArray(signature, signature < 0),
                "sequence": _ids(rows.pop("sequence")),
                "forward_thread": _ids(rows.pop("forward_thread")),
            },
            copy=False,
        )
    )


def _external_id(rows: Arrays, trusted: bool) -> pd.arrays.IntegerArray:
    ids = np.where(rows["external_id"] == ABSENT, rows["external_id_1_8"], rows["external_id"])
    return _nullable(ids if trusted else np.full_like(ids, ABSENT))


# Marks of a captured part: [{"name": "attention"}] as JSON, or as Python writes it; torch's own tool writes 'str' too.
_MARK = re.compile(r"""['"](?:name|str)['"]\s*:\s*['"]([^'"\\]{1,100})""")
_MOST_MARKS = 8


def _annotation(raw: bytes) -> str:
    """Gives the path of the marks around a captured kernel.

    A program set them as the graph of the kernel was captured. '' where there are none.
    """
    text = raw.decode("utf-8", errors="replace").strip().replace('\\"', '"')
    marks = _MARK.findall(text)[:_MOST_MARKS]
    if marks:
        return ".".join(marks)
    plain = text.strip('"')
    is_plain = text.startswith('"') and plain not in {"", "null", "None"} and plain[0] not in "[{"
    return plain if is_plain else ""


def _launch_args(columns: Columns, rows: Arrays, kinds: pd.Categorical, trusted: bool) -> pd.DataFrame:
    return LAUNCH_ARGS.check(
        pd.DataFrame(
            {
                "event": rows["event"],
                "correlation": _nullable(rows["correlation"]),
                "external_id": _external_id(rows, trusted),
                "kernel": _labelled(rows["kernel"], list(columns.kernels)),
                "call_kind": kinds,
            },
            copy=False,
        )
    )


def _device_args(columns: Columns, rows: Arrays, trusted: bool) -> pd.DataFrame:
    stream = np.where(rows["stream"] == ABSENT, rows["ascend_stream"], rows["stream"])
    size = np.where(rows["bytes"] == ABSENT, rows["mtia_size"], rows["bytes"])
    return DEVICE_ARGS.check(
        pd.DataFrame(
            {
                "event": rows["event"],
                "correlation": _nullable(rows["correlation"]),
                "external_id": _external_id(rows, trusted),
                "device": _nullable(rows["device"], "int32"),
                "stream": _nullable(stream),
                "blocks": _nullable(_positive(rows["blocks"])),
                "threads": _nullable(_positive(rows["threads"])),
                "registers": _nullable(rows["registers"], "int32"),
                "shared_bytes": _nullable(rows["shared_bytes"]),
                "bytes": _nullable(size),
                "graph": _nullable(rows["graph"]),
                "collective": _labelled(rows["collective"], list(columns.collectives)),
                "input_elements": _nullable(rows["input_elements"]),
                "output_elements": _nullable(rows["output_elements"]),
                "group_size": _nullable(rows["group_size"]),
                "message_dtype": _labelled(rows["message_dtype"], list(columns.dtypes)),
                "process_group": _labelled(rows["process_group"], list(columns.groups)),
                "annotation": _labelled(rows["annotation"], [_annotation(text) for text in columns.annotations]),
            },
            copy=False,
        )
    )


def _labelled(codes: Array, texts: list[str]) -> pd.Categorical:
    """Texts by code as a categorical; the empty text is null."""
    labels = sorted({text for text in texts if text})
    number = {label: code for code, label in enumerate(labels)}
    recode = np.array([number.get(text, -1) for text in texts] or [-1], np.int32)
    return category(recode[codes], labels)


def _memory(rows: Arrays, first_ns: int, tracks: Tracks) -> pd.DataFrame:
    near = np.abs(rows["ts_ns"] / 1000 - first_ns / 1000) <= LONGEST_US
    kept_rows = np.flatnonzero(near & (rows["ts_ns"] != ABSENT) & (rows["bytes"] != ABSENT))
    kept_rows = kept_rows[
        np.lexsort([rows[key][kept_rows] for key in ("bytes", "total_reserved", "total_allocated", "track", "ts_ns")])
    ]
    track = rows["track"][kept_rows]
    return MEMORY.check(
        pd.DataFrame(
            {
                "ts_us": (rows["ts_ns"][kept_rows] - first_ns) / 1000,
                "thread": category(tracks.recode[track], tracks.labels),
                "bytes": rows["bytes"][kept_rows],
                "on_device": rows["device_type"][kept_rows] != 0,
                "device": _nullable(rows["device"][kept_rows]),
                "address": _nullable(rows["address"][kept_rows]),
                "total_allocated": _nullable(rows["total_allocated"][kept_rows]),
                "total_reserved": _nullable(rows["total_reserved"][kept_rows]),
            },
            copy=False,
        )
    )


def _counters(columns: Columns, first_ns: int) -> pd.DataFrame | None:
    names, tracks = list(columns.counters.coded["name"].codes), list(columns.tracks)
    rows = columns.counters.take()
    near = np.abs(rows["ts_ns"] / 1000 - first_ns / 1000) <= LONGEST_US
    kept_rows = np.flatnonzero(near & (rows["ts_ns"] != ABSENT))
    if not kept_rows.size:
        return None
    used, track = np.unique(rows["track"][kept_rows], return_inverse=True)
    labels, name = _coded(names, rows["name"][kept_rows])
    places, place = _coded([_place(tracks[code]) for code in used.tolist()], track)
    order = np.lexsort((rows["value"][kept_rows], rows["ts_ns"][kept_rows], name, place))
    return COUNTER_SAMPLES.check(
        pd.DataFrame(
            {
                "ts_us": (rows["ts_ns"][kept_rows][order] - first_ns) / 1000,
                "place": category(place[order], places),
                "name": category(name[order], labels),
                "value": rows["value"][kept_rows][order],
            },
            copy=False,
        )
    )


def _coded(texts: list[str], codes: Array) -> tuple[list[str], Array]:
    """The distinct texts in order, and codes among these for codes among the texts."""
    labels = sorted(set(texts))
    number = {label: code for code, label in enumerate(labels)}
    return labels, np.array([number[text] for text in texts], np.int32)[codes]


def _place(track: tuple[object, object]) -> str:
    return "" if track[0] is None else str(track[0])
