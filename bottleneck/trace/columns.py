"""Collects decoded events into columns chunk by chunk, with exact times.

No event outlives its chunk. Epoch microseconds with three decimals have 19 digits, more than a float64 holds; so starts
become whole nanoseconds before anything is subtracted from them.
"""

import itertools
import math
import mmap
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct

from bottleneck.trace.categories import (
    HOST_COLLECTIVE,
    MANY_CATEGORIES,
    NO_CATEGORY,
    Role,
    category_of,
    implied_category,
    is_host_collective,
    role_of,
)
from bottleneck.trace.damage import Damage
from bottleneck.trace.decode import (
    ABSENT,
    DECODE_ERRORS,
    EXACT_BELOW_US,
    AnyEvent,
    ArgsDecoder,
    DeviceArgs,
    FrameArgs,
    LaunchArgs,
    MemoryArgs,
    Number,
    OpArgs,
)

Array = npt.NDArray[Any]

_FIRST_ROWS = 4096


class Codes(dict[Any, int]):
    """Distinct values in the order met, each with its number.

    Looking up a new value adds it.
    """

    def __missing__(self, value: Any) -> int:
        self[value] = code = len(self)
        return code

    def since(self, count: int) -> list[Any]:
        """The values added after the first ``count``, in the order met."""
        return [*itertools.islice(reversed(self), len(self) - count)][::-1]


class GrowingColumn:
    """An array that grows.

    It lies in memory mapped for it alone, which goes back to the system when it has grown out of it. Pieces joined at
    the end, or arrays grown in place, leave holes in the heap: 1 GB of trace then peaks at 0.62 or 0.40 GB, not 0.30.
    """

    def __init__(self, dtype: str) -> None:
        self.dtype = np.dtype(dtype)
        self._data = self._mapped(0)
        self._count = 0

    def _mapped(self, rows: int) -> Array:
        size = max(rows, _FIRST_ROWS) * self.dtype.itemsize
        return np.frombuffer(mmap.mmap(-1, size), self.dtype)

    def add(self, values: Iterable[Any], count: int) -> None:
        """Appends ``count`` numbers; OverflowError when one does not fit."""
        self.add_array(np.fromiter(values, self.dtype, count))

    def add_array(self, values: Array) -> None:
        """Appends an array."""
        end = self._count + len(values)
        if end > len(self._data):
            larger = self._mapped(max(end, 2 * len(self._data)))
            larger[: self._count] = self._data[: self._count]
            self._data = larger
        self._data[self._count : end] = values
        self._count = end

    def rows(self) -> Array:
        """All rows so far."""
        return self._data[: self._count]

    def clear(self) -> None:
        """Forgets all rows and keeps their memory, which the next ones overwrite."""
        self._count = 0

    def take(self) -> Array:
        """All rows; empties this column."""
        rows = self.rows()
        self._data, self._count = self._mapped(0), 0
        return rows


class SparseColumn(GrowingColumn):
    """A column of int64 that takes memory only once it has values.

    Only a number that is not ABSENT counts as a value.
    """

    def __init__(self) -> None:
        super().__init__("int64")
        self._absent = 0

    def add_array(self, values: Array) -> None:
        """Appends an array."""
        if self._count == 0 and (values == ABSENT).all():
            self._absent += len(values)
            return
        if self._absent:
            super().add_array(np.full(self._absent, ABSENT))
            self._absent = 0
        super().add_array(values)

    def rows(self) -> Array:
        """All rows so far, read-only when all are absent."""
        return super().rows() if self._count or not self._absent else np.broadcast_to(np.int64(ABSENT), self._absent)

    def clear(self) -> None:
        """Forgets all rows and keeps their memory, which the next ones overwrite."""
        super().clear()
        self._absent = 0

    def take(self) -> Array:
        """All rows, read-only when all are absent; empties this column."""
        rows = super().take()
        self._absent = 0
        return rows


class CodedColumn(GrowingColumn):
    """A column of the codes of values, several of which may share the codes."""

    def __init__(self, codes: Codes, dtype: str = "int32") -> None:
        super().__init__(dtype)
        self.codes = codes

    def add_values(self, values: Iterable[Any], count: int) -> None:
        """Appends the codes of ``count`` values."""
        self.add(map(self.codes.__getitem__, values), count)


class Rows:
    """Columns of the events of one role.

    ``row`` is the event's position among all complete events.
    """

    def __init__(self, numbers: Sequence[str], **more: GrowingColumn) -> None:
        self.numbers = numbers
        self.row = GrowingColumn("int32")
        self.columns: dict[str, GrowingColumn] = {name: SparseColumn() for name in numbers}
        self.coded = {name: column for name, column in more.items() if isinstance(column, CodedColumn)}
        self.columns |= more

    def take(self) -> dict[str, Array]:
        """All columns as arrays; empties this one."""
        return {"row": self.row.take()} | {name: column.take() for name, column in self.columns.items()}


_LARGEST_US = 9.2e15
_LARGEST_DIGITS = 15


def starts_ns(values: list[Number]) -> Array:
    """Converts starts in microseconds of any type to nanoseconds (int64).

    ABSENT for values that are no time.
    """
    try:
        floats = np.fromiter(values, np.float64, len(values))
        if np.abs(floats).max(initial=0) < EXACT_BELOW_US:
            nanoseconds: Array = np.rint(floats * 1000).astype(np.int64)
            return nanoseconds
        # Of decimals the fraction would be cut off here, so only a column that begins with a whole number is tried.
        if isinstance(values[0], int) and np.abs(floats).max() < _LARGEST_US:
            integers = np.fromiter(values, np.int64, len(values))
            if (integers == floats).all():
                return integers * 1000
    except (TypeError, ValueError, OverflowError):
        pass
    return np.fromiter(map(start_ns, values), np.int64, len(values))


def start_ns(value: Number) -> int:
    """One start in microseconds as nanoseconds; ABSENT for a value that is no time."""
    if isinstance(value, int):
        return value * 1000 if abs(value) < _LARGEST_US else ABSENT
    try:
        exact = Decimal(str(value)) if isinstance(value, str | float) else value
        if exact is None or not exact.is_finite() or exact.adjusted() > _LARGEST_DIGITS:
            return ABSENT
        return int((exact * 1000).to_integral_value()) if abs(exact) < _LARGEST_US else ABSENT
    except InvalidOperation:
        return ABSENT


def durations_us(values: list[Any]) -> Array:
    """Durations in microseconds (float64); NaN for values that are no number."""
    try:
        return np.fromiter(values, np.float64, len(values))
    except (TypeError, ValueError, OverflowError):
        return np.array([_float(value) for value in values])


def _float(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return math.nan


_LARGEST_INT64 = 2**63 - 1
_LONGEST_ANNOTATION = 500
_MOST_CATEGORIES = 2000
_MEMORY_NAME = "[memory]"
_MEMORY_CATEGORIES = {"", NO_CATEGORY, "cpu_instant_event"}


SHAPE_TEXTS = ("dims", "types", "strides", "concrete", "dims_1_8")
_IDS = ("correlation", "external_id", "external_id_1_8")
_DEVICE_NUMBERS = (
    *_IDS, "device", "stream", "blocks", "threads", "registers", "shared_bytes", "bytes", "graph",
    "input_elements", "output_elements", "group_size", "ascend_stream", "mtia_size",
)  # fmt: skip


_ROLES = ("ops", "launches", "devices", "frames", "memory", "counters")
_COUNTER_CATEGORIES = {"mtia_counters", "hardware_counters"}
_MOST_COUNTER_SAMPLES = 4_000_000


class EventBlock(Struct, frozen=True):
    """Columns of one block of events that another process decoded.

    With them come the values of the codes that the block used first.
    """

    arrays: Sequence[Array]
    values: Sequence[Sequence[Any]]
    counts: Counter[str]
    count: int
    damage: Counter[str]


class Recoding:
    """The codes of this process for those of another, by the position among ``Columns.codes``."""

    def __init__(self, columns: "Columns") -> None:
        self._ours = [(codes, GrowingColumn("int32")) for codes in columns.codes()]

    def learn(self, values: Sequence[Sequence[Any]]) -> None:
        """Notes the values that the other process met first in its last block."""
        for (codes, numbers), new in zip(self._ours, values, strict=True):
            numbers.add(map(codes.__getitem__, new), len(new))

    def of(self, column: GrowingColumn, array: Array) -> Array:
        """Gives the values of a column of the other process.

        They are in our codes where the column holds codes.
        """
        if not isinstance(column, CodedColumn):
            return array
        return next(numbers.rows() for codes, numbers in self._ours if codes is column.codes)[array]


class Columns:
    """Columns of all events of a file, by role.

    ``assemble`` makes the tables from them.
    """

    def __init__(self, damage: Damage) -> None:
        self.damage = damage
        self.counts: Counter[str] = Counter()
        self.count = 0
        self.any_fraction = False
        self.categories, self.names, self.tracks = Codes(), Codes(), Codes()
        self.shapes, self.collectives, self.dtypes, self.kernels = Codes(), Codes(), Codes(), Codes()
        self.groups, self.annotations = Codes(), Codes()
        self.ts_ns, self.dur_us = GrowingColumn("int64"), GrowingColumn("float64")
        self.category = CodedColumn(self.categories, "int16")
        self.name, self.track = CodedColumn(self.names), CodedColumn(self.tracks)
        self.ops = Rows(("external_id", "sequence", "forward_thread"), shape=CodedColumn(self.shapes))
        self.launches = Rows(_IDS, kernel=CodedColumn(self.kernels))
        self.devices = Rows(
            _DEVICE_NUMBERS,
            collective=CodedColumn(self.collectives),
            message_dtype=CodedColumn(self.dtypes),
            process_group=CodedColumn(self.groups),
            annotation=CodedColumn(self.annotations),
        )
        self.frames = Rows(("python_id",))
        self.memory = Rows(
            ("bytes", "device_type", "device", "address", "total_allocated", "total_reserved"),
            ts_ns=GrowingColumn("int64"),
            track=CodedColumn(self.tracks),
        )
        self.counters = Rows(
            (),
            ts_ns=GrowingColumn("int64"),
            value=GrowingColumn("float64"),
            name=CodedColumn(Codes()),
            track=CodedColumn(self.tracks),
        )
        self._counter_args = msgspec.json.Decoder(dict[str, Any])
        self._op_args = ArgsDecoder(OpArgs, damage)
        self._launch_args = ArgsDecoder(LaunchArgs, damage)
        self._device_args = ArgsDecoder(DeviceArgs, damage)
        self._frame_args = ArgsDecoder(FrameArgs, damage)
        self._memory_args = ArgsDecoder(MemoryArgs, damage)
        self._add_args: dict[Role, Callable[[list[msgspec.Raw]], None]] = {
            "op": self._add_ops,
            "launch": self._add_launches,
            "device": self._add_devices,
            "frame": self._add_frames,
        }

    def add(self, events: Sequence[AnyEvent]) -> None:
        """Adds the fields of a chunk of events to the columns."""
        # One pass that deals events out by category is cheaper than coding categories and selecting by code.
        complete: defaultdict[str, list[AnyEvent]] = defaultdict(list)
        other = []
        for event in events:
            if event.ph == "X":
                complete[event.cat].append(event)
            else:
                other.append(event)
        self._count_other(other)
        if "" in complete:
            for event in complete.pop(""):
                complete[implied_category(event.pid, bytes(event.args))].append(event)
        annotations = complete.get("user_annotation", ())
        if collectives := [event for event in annotations if is_host_collective(event.name)]:
            others = [event for event in complete.pop("user_annotation") if not is_host_collective(event.name)]
            complete |= {HOST_COLLECTIVE: collectives, **({"user_annotation": others} if others else {})}
        if len(self.categories) + len(complete) > _MOST_CATEGORIES:
            complete = self._few(complete)
        self.counts.update({raw: len(group) for raw, group in complete.items()})
        for raw in _COUNTER_CATEGORIES & complete.keys():
            self._add_counters(complete[raw])
        for raw in _MEMORY_CATEGORIES & complete.keys():
            self._add_memory(complete[raw])
            complete[raw] = [event for event in complete[raw] if event.name != _MEMORY_NAME]
        self._add_complete(complete)

    def codes(self) -> list[Codes]:
        """The codes of all columns, once each."""
        distinct = {id(column.codes): column.codes for _, column in self.each() if isinstance(column, CodedColumn)}
        return [*distinct.values()]

    def block(self, known: Sequence[int]) -> EventBlock:
        """Gives the events added since ``clear``.

        With them come the values after the ``known`` number of each of ``codes``.
        """
        return EventBlock(
            arrays=[column.rows() for _, column in self.each()],
            values=[codes.since(count) for codes, count in zip(self.codes(), known, strict=True)],
            counts=self.counts,
            count=self.count,
            damage=self.damage,
        )

    def clear(self) -> None:
        """Forgets all events, but not the codes of their values."""
        for _, column in self.each():
            column.clear()
        self.counts.clear()
        self.count = 0

    def may_fold_categories(self) -> bool:
        """Returns True where many categories have been met.

        Those of the next events may then be counted under one name.
        """
        return len(self.counts) > _MOST_CATEGORIES // 2 or MANY_CATEGORIES in self.counts

    def append(self, block: EventBlock, recoding: Recoding) -> None:
        """Adds a block whose values ``recoding`` knows, as ``add`` would have added its events."""
        for (name, column), array in zip(self.each(), block.arrays, strict=True):
            column.add_array(array + self.count if name.endswith(".row") else recoding.of(column, array))
        self.counts.update(block.counts)
        self.damage.update(block.damage)
        self.count += block.count

    def each(self) -> Iterator[tuple[str, GrowingColumn]]:
        """All columns with their names."""
        for name in ("ts_ns", "dur_us", "category", "name", "track"):
            yield name, getattr(self, name)
        for role in _ROLES:
            rows: Rows = getattr(self, role)
            yield f"{role}.row", rows.row
            for name, column in rows.columns.items():
                yield f"{role}.{name}", column

    def _few(self, groups: Mapping[str, list[AnyEvent]]) -> defaultdict[str, list[AnyEvent]]:
        """Puts groups of new categories under one name.

        No profiler has thousands of categories.
        """
        few: defaultdict[str, list[AnyEvent]] = defaultdict(list)
        for raw, group in groups.items():
            few[raw if raw in self.categories or category_of(raw) != "other" else MANY_CATEGORIES] += group
        return few

    def _count_other(self, events: list[AnyEvent]) -> None:
        counters = [event for event in events if event.ph == "C"]
        if counters:
            self._add_counters(counters)
        counts = Counter([event.cat for event in events])
        if _MEMORY_CATEGORIES & counts.keys():
            self._add_memory(events)
        if counts.pop("", 0):
            counts.update(f"(ph {event.ph})" for event in events if event.ph and not event.cat)
        if len(self.counts) < _MOST_CATEGORIES:
            self.counts.update(counts)

    def has_work(self) -> bool:
        """True where any op or device work was among the events."""
        return any(role_of(name) in {"op", "device"} for name in self.categories)

    def runtime_calls(self) -> int:
        """The number of calls of a device's runtime or driver."""
        codes = [self.categories[name] for name in [*self.categories] if role_of(name) == "launch"]
        return int(np.isin(self.category.rows(), codes).sum())

    def is_pytorch(self) -> bool:
        """True where the categories show that PyTorch's profiler wrote the events."""
        return any(category_of(name) != "other" for name in self.counts)

    def _add_complete(self, groups: Mapping[str, list[AnyEvent]]) -> None:
        by_role: defaultdict[Role, list[AnyEvent]] = defaultdict(list)
        for raw, group in groups.items():
            by_role[role_of(raw)] += group
        raws = sorted(groups, key=lambda raw: list(by_role).index(role_of(raw)))
        codes = np.array([self.categories[raw] for raw in raws], np.int16)
        self.category.add_array(np.repeat(codes, [len(groups[raw]) for raw in raws]))
        self._add_common(list(itertools.chain.from_iterable(by_role.values())))
        for role, events in by_role.items():
            if role in self._add_args and events:
                self._add_args[role]([event.args for event in events])
            self.count += len(events)

    def _add_common(self, events: list[AnyEvent]) -> None:
        count = len(events)
        self.name.add_values([event.name for event in events], count)
        tracks = zip([event.pid for event in events], [event.tid for event in events], strict=True)
        self.track.add_values(tracks, count)
        self.ts_ns.add_array(self._starts(events))
        self.dur_us.add_array(durations_us([event.dur for event in events]))

    def _starts(self, events: Sequence[AnyEvent]) -> Array:
        starts = [event.ts for event in events]
        # A column written with decimals shows them at one of its ends.
        self.any_fraction |= any(isinstance(start, float | str | Decimal) for start in (*starts[:4], *starts[-4:]))
        return starts_ns(starts)

    def _add_ops(self, raws: list[msgspec.Raw]) -> None:
        values = self._op_args.columns(raws)
        texts = map(b"\0".join, zip(*(values[name] for name in SHAPE_TEXTS), strict=True))
        self._add_rows(self.ops, values | {"shape": texts}, len(raws))

    def _add_launches(self, raws: list[msgspec.Raw]) -> None:
        self._add_rows(self.launches, self._launch_args.columns(raws), len(raws))

    def _add_devices(self, raws: list[msgspec.Raw]) -> None:
        values = self._device_args.columns(raws)
        for name, sizes in (("blocks", "grid"), ("threads", "block")):
            values[name] = [math.prod(size or (ABSENT,)) for size in values[sizes]]
        marks = zip(values["annotation"], values["annotation_text"], strict=True)
        values["annotation"] = [(bytes(mark) or bytes(text))[:_LONGEST_ANNOTATION] for mark, text in marks]
        self._add_rows(self.devices, values, len(raws))

    def _add_frames(self, raws: list[msgspec.Raw]) -> None:
        # Whole microseconds leave a third of all frames with the same interval as their caller; decimals leave none.
        if not self.any_fraction:
            self._add_rows(self.frames, self._frame_args.columns(raws), len(raws))

    def _add_memory(self, events: list[AnyEvent]) -> None:
        events = [event for event in events if event.name == _MEMORY_NAME]
        if not events:
            return
        values = self._memory_args.columns([event.args for event in events])
        self._add_rows(self.memory, values | {"track": [(event.pid, event.tid) for event in events]}, len(events))
        self.memory.columns["ts_ns"].add_array(self._starts(events))

    def _add_counters(self, events: Sequence[AnyEvent]) -> None:
        """Adds the numbers among the arguments of counter events.

        A lone number has the name of its event.
        """
        samples = []
        for event, start in zip(events, self._starts(events).tolist(), strict=True):
            values = self._numbers(event.args)
            names = [event.name] if len(values) == 1 and event.ph == "C" else [*values]
            track = (event.pid, event.tid)
            samples += [(start, value, name, track) for name, value in zip(names, values.values(), strict=True) if name]
        rows = self.counters
        if not samples or len(rows.columns["ts_ns"].rows()) + len(samples) > _MOST_COUNTER_SAMPLES:
            return
        starts, numbers, labels, tracks = zip(*samples, strict=True)
        rows.row.add_array(np.arange(len(samples)))
        rows.columns["ts_ns"].add_array(np.array(starts, np.int64))
        rows.columns["value"].add_array(np.array(numbers, np.float64))
        rows.coded["name"].add_values(labels, len(samples))
        rows.coded["track"].add_values(tracks, len(samples))

    def _numbers(self, args: msgspec.Raw) -> dict[str, float]:
        try:
            values = self._counter_args.decode(args)
        except DECODE_ERRORS:
            self.damage["odd-args"] += 1
            return {}
        return {
            name: float(value)
            for name, value in values.items()
            if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST_US
        }

    def _add_rows(self, rows: Rows, values: Mapping[str, Any], count: int) -> None:
        rows.row.add_array(np.arange(self.count, self.count + count))
        for name, column in rows.coded.items():
            column.add_values(values[name], count)
        for name in rows.numbers:
            try:
                rows.columns[name].add(values[name], count)
            except OverflowError:
                rows.columns[name].add(map(self._within_64_bits, values[name]), count)

    def _within_64_bits(self, value: int) -> int:
        if ABSENT <= value <= _LARGEST_INT64:
            return value
        self.damage["large-id"] += 1
        return ABSENT
