"""Columns in file order turned into the tables of a Trace: sorted, rebased, null where the file does not tell."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from bottleneck.tables import CATEGORIES, DEVICE_ARGS, EVENTS, LAUNCH_ARGS, MEMORY, OP_ARGS, category
from bottleneck.trace.categories import by_name, category_of, depends_on_name
from bottleneck.trace.columns import Columns
from bottleneck.trace.decode import ABSENT
from bottleneck.trace.order import LONGEST_US, Events, event_order
from bottleneck.trace.signatures import signature_table
from bottleneck.trace.tracks import Tracks

Array = npt.NDArray[Any]
Arrays = dict[str, Array]

_CODE = {name: code for code, name in enumerate(CATEGORIES)}
_DEVICE_WORK = ("kernel", "copy", "fill")
_GONE = -1
_INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class Assembled:
    """The tables, and the time of ts_us == 0 on the clock of the file in nanoseconds."""

    events: pd.DataFrame
    op_args: pd.DataFrame
    signatures: pd.DataFrame
    launch_args: pd.DataFrame
    device_args: pd.DataFrame
    memory: pd.DataFrame
    first_ns: int


def assemble(columns: Columns, names: Sequence[str]) -> Assembled:
    """All tables; ``names`` holds the name of each code of ``columns.names``.

    Events without a time or a name, and those days away from all others, are left out and counted in the damage.
    """
    tracks = Tracks(list(columns.tracks))
    ops, launches, devices = columns.ops.take(), columns.launches.take(), columns.devices.take()
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
    return Assembled(
        events=_events_table(events, order, first_ns, labels, tracks.labels),
        op_args=_op_args(ops, signature),
        signatures=signatures,
        launch_args=_launch_args(columns, _pick(launches, events.category, place, ("runtime",)), trusted),
        device_args=_device_args(columns, _pick(devices, events.category, place, _DEVICE_WORK), trusted),
        memory=_memory(columns.memory.take(), first_ns, tracks),
        first_ns=first_ns,
    )


def _ids_are_trusted(devices: Arrays, launches: Arrays) -> bool:
    """Whether External ids of device work, or of launches where there is none, can be those of ops.

    From 1.12 to 2.2 Kineto wrote the correlation in their place (fixed in 63675439, Kineto #873). Over 224 real traces
    the share of kernels where both are equal is exactly 1 in the bad ones and at most 0.083 in the good ones.
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
        by_label = np.array([_CODE[by_name(label, text)] for text in names], np.int8)
        rows = np.flatnonzero(raw == code)
        result[rows] = by_label[name[rows]]
    return result


def _pick(rows: Arrays, categories: Array, place: Array, wanted: Sequence[str]) -> Arrays:
    """The rows whose event stays and is of a wanted category, in the order of EVENTS, with ``event`` for ``row``."""
    row = rows.pop("row")
    event = place[row]
    kept = np.flatnonzero((event != _GONE) & np.isin(categories[row], [_CODE[name] for name in wanted]))
    kept = kept[np.argsort(event[kept], kind="stable")]
    # Popping frees each column as soon as its sorted copy exists.
    return {"event": event[kept].astype(np.int64), **{name: rows.pop(name)[kept] for name in list(rows)}}


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
    return pd.arrays.IntegerArray(np.where(missing, 0, values).astype(dtype), missing)


def _positive(values: Array) -> Array:
    # Some ROCm profilers write a grid of (0, 0, 0) for a kernel whose grid they did not see.
    return np.where(values > 0, values, ABSENT)


def _op_args(rows: Arrays, signature: Array) -> pd.DataFrame:
    return OP_ARGS.check(
        pd.DataFrame(
            {
                "event": rows["event"],
                "external_id": _nullable(rows["external_id"]),
                "signature": pd.arrays.IntegerArray(signature, signature < 0),
                "sequence": _nullable(rows["sequence"]),
                "forward_thread": _nullable(rows["forward_thread"]),
            },
            copy=False,
        )
    )


def _external_id(rows: Arrays, trusted: bool) -> pd.arrays.IntegerArray:
    ids = np.where(rows["external_id"] == ABSENT, rows["external_id_1_8"], rows["external_id"])
    return _nullable(ids if trusted else np.full_like(ids, ABSENT))


def _launch_args(columns: Columns, rows: Arrays, trusted: bool) -> pd.DataFrame:
    return LAUNCH_ARGS.check(
        pd.DataFrame(
            {
                "event": rows["event"],
                "correlation": _nullable(rows["correlation"]),
                "external_id": _external_id(rows, trusted),
                "kernel": _labelled(rows["kernel"], list(columns.kernels)),
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
    kept = np.flatnonzero(near & (rows["ts_ns"] != ABSENT) & (rows["bytes"] != ABSENT))
    kept = kept[
        np.lexsort([rows[key][kept] for key in ("bytes", "total_reserved", "total_allocated", "track", "ts_ns")])
    ]
    track = rows["track"][kept]
    return MEMORY.check(
        pd.DataFrame(
            {
                "ts_us": (rows["ts_ns"][kept] - first_ns) / 1000,
                "thread": category(tracks.recode[track], tracks.labels),
                "bytes": rows["bytes"][kept],
                "on_device": rows["device_type"][kept] != 0,
                "total_allocated": _nullable(rows["total_allocated"][kept]),
                "total_reserved": _nullable(rows["total_reserved"][kept]),
            },
            copy=False,
        )
    )
