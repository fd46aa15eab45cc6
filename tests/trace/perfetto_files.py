"""Perfetto traces made of Chrome's events, as each of the known writers lays them out."""

import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import pytest

from tests.builders import Event

pytest.importorskip("perfetto", reason="the extra perfetto is not installed")

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

Packet = Any
BOOT, OWN_CLOCK = 6, 64


def packet(**fields: Any) -> Packet:
    """A packet with these fields."""
    return pb.TracePacket(**fields)


def trace_of(packets: Sequence[Packet]) -> bytes:
    """The file that holds the packets."""
    return bytes(pb.Trace(packet=packets).SerializeToString())


def compressed(packets: Sequence[Packet]) -> Packet:
    """One packet that holds others compressed."""
    return packet(compressed_packets=zlib.compress(trace_of(packets)))


def ns(us: float) -> int:
    """Nanoseconds of microseconds."""
    return round(us * 1000)


def _marks(events: Sequence[Event]) -> Iterator[tuple[int, int, Event | None]]:
    """(time, lane, event or null where one ends) in order, on as many lanes as nest without crossing."""
    lanes: list[list[int]] = []
    rows: list[tuple[int, int, int, Event | None]] = []
    order = count()
    for event in sorted(events, key=lambda event: (ns(event["ts"]), -ns(event["ts"] + event["dur"]))):
        start, end = ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])
        for stack in lanes:
            while stack and stack[-1] <= start:
                rows.append((stack.pop(), next(order), lanes.index(stack), None))
            if not stack or end <= stack[-1]:
                break
        else:
            stack = []
            lanes.append(stack)
        lane = next(number for number, each in enumerate(lanes) if each is stack)
        rows.append((start, next(order), lane, event))
        stack.append(end)
    for lane, stack in enumerate(lanes):
        rows += [(end, next(order), lane, None) for end in reversed(stack)]
    for time, _, lane, found in sorted(rows, key=lambda row: (row[0], row[1])):
        yield time, lane, found


def _annotate(track_event: Any, name: str, value: object) -> None:
    import json

    each = track_event.debug_annotations.add(name=name)
    if isinstance(value, bool):
        each.bool_value = value
    elif isinstance(value, int):
        each.int_value = value
    elif isinstance(value, float):
        each.double_value = value
    elif isinstance(value, str):
        each.string_value = value
    else:
        each.legacy_json_value = json.dumps(value)


def _by_thread(events: Sequence[Event]) -> dict[tuple[Any, Any], list[Event]]:
    found: dict[tuple[Any, Any], list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            found[event["pid"], event["tid"]].append(event)
    return found


def converted(events: Sequence[Event]) -> list[Packet]:
    """The packets of a converter: names in full, tracks named 'thread 1' or 'stream 7' under their process."""
    packets, bodies = [], []
    for number, ((pid, tid), mine) in enumerate(_by_thread(events).items(), start=1):
        process = 1_000_000 + pid
        packets.append(packet(track_descriptor={"uuid": process, "process": {"pid": pid, "process_name": "python"}}))
        name = f"stream {tid}" if pid < 50 else f"thread {tid} (python)"
        seen = set()
        for time, lane, event in _marks(mine):
            uuid = number * 1000 + lane
            if uuid not in seen:
                seen.add(uuid)
                packets.append(packet(track_descriptor={"uuid": uuid, "parent_uuid": process, "name": name}))
            body = pb.TrackEvent(type=2 if event is None else 1, track_uuid=uuid)
            if event is not None:
                body.name = event["name"]
                body.categories.append(event["cat"])
                for key, value in event["args"].items():
                    _annotate(body, key, value)
            bodies.append(packet(timestamp=time, trusted_packet_sequence_id=1001, track_event=body))
    return [*packets, *sorted(bodies, key=lambda each: each.timestamp)]


def interned(events: Sequence[Event], *, unit_ns: int = 1) -> list[Packet]:
    """The packets of Perfetto's library: one sequence per thread, interned names, a clock that counts on."""
    packets: list[Packet] = []
    for number, ((pid, tid), mine) in enumerate(_by_thread(events).items(), start=1):
        for lane in sorted({lane for _, lane, _ in _marks(mine)}):
            sequence, uuid = number * 100 + lane, number * 1000 + lane
            numbers: dict[tuple[str, str], int] = {}
            clocks = [
                {"clock_id": OWN_CLOCK, "timestamp": 0, "is_incremental": True, "unit_multiplier_ns": unit_ns},
                {"clock_id": BOOT, "timestamp": 0},
            ]
            defaults = {"timestamp_clock_id": OWN_CLOCK, "track_event_defaults": {"track_uuid": uuid}}
            common = {"trusted_packet_sequence_id": sequence}
            packets += [
                packet(**common, sequence_flags=1, clock_snapshot={"clocks": clocks}, trace_packet_defaults=defaults),
                packet(**common, track_descriptor={"uuid": uuid, "thread": {"pid": pid, "tid": tid}}),
            ]
            before = 0
            for time, _, event in (row for row in _marks(mine) if row[1] == lane):
                one = packet(**common, sequence_flags=2, timestamp=(time - before) // unit_ns)
                before = time
                one.track_event.type = 2 if event is None else 1
                if event is not None:
                    _intern(one, event, numbers)
                packets.append(one)
    return packets


def _intern(one: Packet, event: Event, numbers: dict[tuple[str, str], int]) -> None:
    def number(kind: str, text: str) -> int:
        if (kind, text) not in numbers:
            numbers[kind, text] = len(numbers) + 1
            field = "str" if kind == "debug_annotation_string_values" else "name"
            value = text.encode() if field == "str" else text
            getattr(one.interned_data, kind).add(iid=numbers[kind, text], **{field: value})
        return numbers[kind, text]

    body = one.track_event
    body.name_iid = number("event_names", event["name"])
    body.category_iids.append(number("event_categories", event["cat"]))
    for key, value in event["args"].items():
        _annotate(body, key, value)
        each = body.debug_annotations[-1]
        each.ClearField("name")
        each.name_iid = number("debug_annotation_names", key)
        if isinstance(value, str):
            each.string_value_iid = number("debug_annotation_string_values", value)


def built(events: Sequence[Event], facts: dict[str, str] | None = None) -> list[Packet]:
    """The packets of Kineto's own builder: a track per event, arguments as one text, no categories."""
    import json

    common = {"trusted_packet_sequence_id": 77}
    packets = [packet(**common, track_descriptor={"uuid": 1, "process": {"pid": 0, "process_name": "Kineto Trace"}})]
    for key, value in (facts or {}).items():
        mark = "device_properties" if key == "properties" else "trace_metadata"
        body = pb.TrackEvent(type=3, name=mark, track_uuid=1)
        _annotate(body, key, value)
        packets.append(packet(**common, track_event=body))
    uuid = count(1000)
    for number, ((pid, tid), mine) in enumerate(_by_thread(events).items(), start=10):
        thread = {"pid": pid, "tid": tid, "thread_name": f"thread {tid}"}
        packets.append(packet(**common, track_descriptor={"uuid": number, "parent_uuid": 1, "thread": thread}))
        for event in mine:
            own = next(uuid)
            packets.append(packet(track_descriptor={"uuid": own, "parent_uuid": number, "name": f"thread {tid}"}))
            begin = pb.TrackEvent(type=1, name=event["name"], track_uuid=own)
            _annotate(begin, "metadata", json.dumps(event["args"])[1:-1])
            if "correlation" in event["args"]:
                _annotate(begin, "correlation_id", event["args"]["correlation"])
            end = pb.TrackEvent(type=2, track_uuid=own)
            at = ns(event["ts"])
            packets.append(packet(**common, timestamp=at, track_event=begin))
            packets.append(packet(**common, timestamp=at + ns(event["dur"]), track_event=end))
    return packets
