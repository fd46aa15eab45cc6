"""Decoded events turned into columns, chunk by chunk, so that no event outlives its chunk."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from bottleneck.trace.categories import category_of, implied, role_of
from bottleneck.trace.damage import Damage
from bottleneck.trace.decode import (
    ABSENT,
    AnyEvent,
    ArgsDecoder,
    DeviceArgs,
    LaunchArgs,
    MemoryArgs,
    Number,
    OpArgs,
)

NO_TIME = ABSENT
_MAX_NS = 2**63 - 1
_MEMORY_NAME = "[memory]"

Array = npt.NDArray[Any]


class Codes(dict[Any, int]):
    """Distinct values in the order met, each with its number; looking up a new one adds it."""

    def __missing__(self, value: Any) -> int:
        self[value] = code = len(self)
        return code


class Column:
    """An array that grows by pieces."""

    def __init__(self, dtype: Any) -> None:
        self._dtype = dtype
        self._pieces: list[Array] = []

    def add(self, values: Iterable[Any], count: int) -> None:
        """Appends ``count`` values; what is no whole number of 64 bits must not be among them."""
        self._pieces.append(np.fromiter(values, self._dtype, count))

    def add_array(self, values: Array) -> None:
        """Appends an array."""
        self._pieces.append(values.astype(self._dtype, copy=False))

    def take(self) -> Array:
        """The whole column; empties this one."""
        pieces, self._pieces = self._pieces, []
        return np.concatenate(pieces) if pieces else np.empty(0, self._dtype)


class Rows:
    """Columns of the events of one role; ``row`` is the event's position among all complete events."""

    def __init__(self, **dtypes: str) -> None:
        self.columns = {"row": Column("int64"), **{name: Column(dtype) for name, dtype in dtypes.items()}}

    def take(self) -> dict[str, Array]:
        """All columns as arrays."""
        return {name: column.take() for name, column in self.columns.items()}


DEVICE_NUMBERS = (
    "correlation", "external_id", "external_id_1_8", "device", "stream", "registers", "shared_bytes", "bytes", "graph",
    "input_elements", "output_elements", "group_size", "ascend_stream", "mtia_size",
)  # fmt: skip


class Columns:
    """Everything that the tables are made of."""

    def __init__(self, damage: Damage) -> None:
        self.damage = damage
        self.counts: Counter[str] = Counter()
        self.count = 0
        self.any_fraction = False
        self.categories, self.names, self.tracks = Codes(), Codes(), Codes()
        self.shapes, self.collectives, self.dtypes = Codes(), Codes(), Codes()
        self._roles: list[str] = []
        self.ts_ns, self.dur_us = Column("int64"), Column("float64")
        self.category, self.name, self.track = Column("int16"), Column("int32"), Column("int32")
        self.ops = Rows(external_id="int64", sequence="int64", forward_thread="int64", shape="int32")
        self.launches = Rows(correlation="int64", external_id="int64", external_id_1_8="int64")
        numbers = dict.fromkeys(DEVICE_NUMBERS, "int64")
        self.devices = Rows(**numbers, blocks="int64", threads="int64", collective="int32", message_dtype="int32")
        self.memory = Rows(ts_ns="int64", track="int32", bytes="int64", device_type="int64", total_allocated="int64")
        self._op_args = ArgsDecoder(OpArgs, damage)
        self._launch_args = ArgsDecoder(LaunchArgs, damage)
        self._device_args = ArgsDecoder(DeviceArgs, damage)
        self._memory_args = ArgsDecoder(MemoryArgs, damage)

    def add(self, events: Sequence[AnyEvent]) -> None:
        """Takes over what is needed of a chunk of events."""
        counts = Counter([event.cat for event in events])
        complete = [event for event in events if event.ph == "X"]
        bare = counts.pop("", 0)
        if bare:
            counts.update(event.ph and f"(ph {event.ph})" for event in events if not event.cat)
        if bare or "cpu_instant_event" in counts:
            self._add_memory([event for event in events if event.name == _MEMORY_NAME])
            complete = [event for event in complete if event.name != _MEMORY_NAME]
        self.counts += counts
        if complete:
            self._add_complete(complete)

    def has_work(self) -> bool:
        """Whether any op, runtime call or device work was among the events."""
        return any(role != "plain" for role in self._roles)

    def is_pytorch(self) -> bool:
        """Whether PyTorch's profiler must have written the events, work or not."""
        return any(category_of(name) != "other" for name in self.counts)

    def _add_complete(self, events: list[AnyEvent]) -> None:
        count = len(events)
        raw = [event.cat for event in events]
        if "" in raw:
            raw = [cat or implied(event.pid, bytes(event.args)) for cat, event in zip(raw, events, strict=True)]
        codes = np.fromiter(map(self.categories.__getitem__, raw), np.int16, count)
        self._roles += [role_of(name) for name in list(self.categories)[len(self._roles) :]]
        self.category.add_array(codes)
        self.name.add(map(self.names.__getitem__, [event.name for event in events]), count)
        tracks = zip([event.pid for event in events], [event.tid for event in events], strict=True)
        self.track.add(map(self.tracks.__getitem__, tracks), count)
        self.ts_ns.add_array(self._ns([event.ts for event in events]))
        self.dur_us.add_array(_microseconds([event.dur for event in events]))
        self._add_args(events, codes)
        self.count += count

    def _add_args(self, events: list[AnyEvent], codes: Array) -> None:
        roles = np.array(self._roles)[codes]
        for role, add in (("op", self._add_ops), ("launch", self._add_launches), ("device", self._add_devices)):
            rows = np.flatnonzero(roles == role)
            if rows.size:
                add(rows + self.count, [events[row].args for row in rows.tolist()])

    def _add_ops(self, rows: Array, raws: list[msgspec.Raw]) -> None:
        args = self._op_args.decode(raws)
        self._add_numbers(self.ops, rows, args, ("external_id", "sequence", "forward_thread"))
        texts = [b"\0".join((a.dims, a.types, a.strides, a.concrete, a.dims_1_8)) for a in args]
        self.ops.columns["shape"].add(map(self.shapes.__getitem__, texts), len(texts))

    def _add_launches(self, rows: Array, raws: list[msgspec.Raw]) -> None:
        args = self._launch_args.decode(raws)
        self._add_numbers(self.launches, rows, args, ("correlation", "external_id", "external_id_1_8"))

    def _add_devices(self, rows: Array, raws: list[msgspec.Raw]) -> None:
        args = self._device_args.decode(raws)
        self._add_numbers(self.devices, rows, args, DEVICE_NUMBERS)
        columns, count = self.devices.columns, len(args)
        columns["blocks"].add([_product(a.grid) for a in args], count)
        columns["threads"].add([_product(a.block) for a in args], count)
        columns["collective"].add([self.collectives[a.collective] for a in args], count)
        columns["message_dtype"].add([self.dtypes[a.message_dtype] for a in args], count)

    def _add_memory(self, events: list[AnyEvent]) -> None:
        if not events:
            return
        args = self._memory_args.decode([event.args for event in events])
        rows = np.arange(len(events))
        self._add_numbers(self.memory, rows, args, ("bytes", "device_type", "total_allocated"))
        self.memory.columns["ts_ns"].add_array(self._ns([event.ts for event in events]))
        self.memory.columns["track"].add([self.tracks[event.pid, event.tid] for event in events], len(events))

    def _add_numbers(self, rows: Rows, positions: Array, args: Sequence[Any], names: Iterable[str]) -> None:
        rows.columns["row"].add_array(positions)
        for name in names:
            values = [getattr(record, name) for record in args]
            try:
                rows.columns[name].add(values, len(values))
            except OverflowError:
                rows.columns[name].add([self._within_64_bits(value) for value in values], len(values))

    def _within_64_bits(self, value: int) -> int:
        if ABSENT <= value <= _MAX_NS:
            return value
        self.damage["large-id"] += 1
        return ABSENT

    def _ns(self, values: list[Number]) -> Array:
        """Nanoseconds; NO_TIME for what is no time."""
        try:
            array = np.array(values)
        except (ValueError, OverflowError):
            return self._ns_one_by_one(values)
        if array.dtype.kind == "i" and np.abs(array).max() < _MAX_NS // 1000:
            return array.astype(np.int64) * 1000
        if array.dtype.kind == "f":
            self.any_fraction = True
            if np.abs(array).max() < 9.0e12:
                nanoseconds: Array = np.rint(array * 1000).astype(np.int64)
                return nanoseconds
        return self._ns_one_by_one(values)

    def _ns_one_by_one(self, values: list[Number]) -> Array:
        self.any_fraction = self.any_fraction or any(isinstance(value, float | str | Decimal) for value in values)
        return np.fromiter(map(to_ns, values), np.int64, len(values))


def _product(sizes: list[int] | None) -> int:
    product = math.prod(sizes) if sizes else ABSENT
    return product if abs(product) <= _MAX_NS else ABSENT


def to_ns(value: Number) -> int:
    """A start in microseconds of any type as nanoseconds; NO_TIME for what is no time."""
    if isinstance(value, int):
        return value * 1000 if abs(value) < _MAX_NS // 1000 else NO_TIME
    try:
        exact = Decimal(str(value)) if isinstance(value, str | float) else value
        if exact is None or not exact.is_finite() or exact.adjusted() > 15:
            return NO_TIME
        return int((exact * 1000).to_integral_value())
    except InvalidOperation:
        return NO_TIME


def _microseconds(values: list[Any]) -> Array:
    """Durations; NaN for what is none."""
    try:
        return np.fromiter(values, np.float64, len(values))
    except (TypeError, ValueError, OverflowError):
        return np.array([_float(value) for value in values])


def _float(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return math.nan
