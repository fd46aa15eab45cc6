"""Decoded events turned into columns, chunk by chunk, so that no event outlives its chunk."""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from bottleneck.trace.categories import (
    HOST_COLLECTIVE,
    MANY_CATEGORIES,
    NO_CATEGORY,
    Role,
    category_of,
    implied,
    is_host_collective,
    role_of,
)
from bottleneck.trace.damage import Damage
from bottleneck.trace.decode import (
    ABSENT,
    AnyEvent,
    ArgsDecoder,
    DeviceArgs,
    FrameArgs,
    LaunchArgs,
    MemoryArgs,
    OpArgs,
)
from bottleneck.trace.growing import Codes, Column, Rows
from bottleneck.trace.times import durations_us, has_fraction, starts_ns

_LARGEST_INT64 = 2**63 - 1
_MOST_CATEGORIES = 2000
_MEMORY_NAME = "[memory]"
_MEMORY_CATEGORIES = {"", NO_CATEGORY, "cpu_instant_event"}

Array = npt.NDArray[Any]

SHAPE_TEXTS = ("dims", "types", "strides", "concrete", "dims_1_8")
_IDS = ("correlation", "external_id", "external_id_1_8")
_DEVICE_NUMBERS = (
    *_IDS, "device", "stream", "blocks", "threads", "registers", "shared_bytes", "bytes", "graph",
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
        self.shapes, self.collectives, self.dtypes, self.kernels = Codes(), Codes(), Codes(), Codes()
        self.ts_ns, self.dur_us = Column("int64"), Column("float64")
        self.category, self.name, self.track = Column("int16"), Column("int32"), Column("int32")
        self.ops = Rows(("external_id", "sequence", "forward_thread"), shape="int32")
        self.launches = Rows(_IDS, kernel="int32")
        self.devices = Rows(_DEVICE_NUMBERS, collective="int32", message_dtype="int32")
        self.frames = Rows(("python_id",))
        self.memory = Rows(("bytes", "device_type", "total_allocated", "total_reserved"), ts_ns="int64", track="int32")
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
        """Takes over what is needed of a chunk of events."""
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
                complete[implied(event.pid, bytes(event.args))].append(event)
        annotations = complete.get("user_annotation", ())
        if collectives := [event for event in annotations if is_host_collective(event.name)]:
            others = [event for event in complete.pop("user_annotation") if not is_host_collective(event.name)]
            complete |= {HOST_COLLECTIVE: collectives, **({"user_annotation": others} if others else {})}
        if len(self.categories) + len(complete) > _MOST_CATEGORIES:
            complete = self._few(complete)
        self.counts.update({raw: len(group) for raw, group in complete.items()})
        for raw in _MEMORY_CATEGORIES & complete.keys():
            self._add_memory(complete[raw])
            complete[raw] = [event for event in complete[raw] if event.name != _MEMORY_NAME]
        self._add_complete(complete)

    def _few(self, groups: Mapping[str, list[AnyEvent]]) -> defaultdict[str, list[AnyEvent]]:
        """Groups with those of new categories under one name; no profiler has thousands of categories."""
        few: defaultdict[str, list[AnyEvent]] = defaultdict(list)
        for raw, group in groups.items():
            few[raw if raw in self.categories or category_of(raw) != "other" else MANY_CATEGORIES] += group
        return few

    def _count_other(self, events: list[AnyEvent]) -> None:
        counts = Counter([event.cat for event in events])
        if _MEMORY_CATEGORIES & counts.keys():
            self._add_memory(events)
        if counts.pop("", 0):
            counts.update(f"(ph {event.ph})" for event in events if event.ph and not event.cat)
        if len(self.counts) < _MOST_CATEGORIES:
            self.counts.update(counts)

    def has_work(self) -> bool:
        """Whether any op, runtime call or device work was among the events."""
        return any(role_of(name) in {"op", "launch", "device"} for name in self.categories)

    def is_pytorch(self) -> bool:
        """Whether PyTorch's profiler must have written the events, work or not."""
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
        self.name.add(map(self.names.__getitem__, [event.name for event in events]), count)
        tracks = zip([event.pid for event in events], [event.tid for event in events], strict=True)
        self.track.add(map(self.tracks.__getitem__, tracks), count)
        self.ts_ns.add_array(self._starts(events))
        self.dur_us.add_array(durations_us([event.dur for event in events]))

    def _starts(self, events: Sequence[AnyEvent]) -> Array:
        starts = [event.ts for event in events]
        self.any_fraction = self.any_fraction or has_fraction(starts)
        return starts_ns(starts)

    def _add_ops(self, raws: list[msgspec.Raw]) -> None:
        values = self._op_args.columns(raws)
        self._add_numbers(self.ops, values)
        texts = map(b"\0".join, zip(*(values[name] for name in SHAPE_TEXTS), strict=True))
        self.ops.columns["shape"].add(map(self.shapes.__getitem__, texts), len(raws))

    def _add_launches(self, raws: list[msgspec.Raw]) -> None:
        values = self._launch_args.columns(raws)
        self._add_numbers(self.launches, values)
        self.launches.columns["kernel"].add(map(self.kernels.__getitem__, values["kernel"]), len(raws))

    def _add_devices(self, raws: list[msgspec.Raw]) -> None:
        values = self._device_args.columns(raws)
        for name, sizes in (("blocks", "grid"), ("threads", "block")):
            values[name] = [math.prod(size or (ABSENT,)) for size in values[sizes]]
        self._add_numbers(self.devices, values)
        for name, codes in (("collective", self.collectives), ("message_dtype", self.dtypes)):
            self.devices.columns[name].add(map(codes.__getitem__, values[name]), len(raws))

    def _add_frames(self, raws: list[msgspec.Raw]) -> None:
        # Whole microseconds leave a third of all frames with the same interval as their caller; decimals leave none.
        if not self.any_fraction:
            self._add_numbers(self.frames, self._frame_args.columns(raws))

    def _add_memory(self, events: list[AnyEvent]) -> None:
        events = [event for event in events if event.name == _MEMORY_NAME]
        if not events:
            return
        values = self._memory_args.columns([event.args for event in events])
        self._add_numbers(self.memory, values)
        self.memory.columns["ts_ns"].add_array(self._starts(events))
        self.memory.columns["track"].add([self.tracks[event.pid, event.tid] for event in events], len(events))

    def _add_numbers(self, rows: Rows, values: Mapping[str, Sequence[int]]) -> None:
        count = len(values[rows.numbers[0]])
        rows.add_rows(self.count, count)
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
