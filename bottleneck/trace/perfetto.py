"""Turns Perfetto's protobuf traces into the text of Chrome's JSON ones.

It goes block by block, for the same reader. Three writers are known. Kineto with Perfetto's own library interns names,
and compresses packets: https://perfetto.dev/docs/reference/synthetic-track-event. Kineto's own builder
(libkineto/src/PerfettoTraceBuilder.cpp) gives each event a track of its own and no category, and its arguments as one
text. Converters of Chrome's JSON, such as that of meta-pytorch's transformer_nuggets, copy events whole and put
overlapping work of a stream on several tracks.
"""

import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from bottleneck.errors import TraceError
from bottleneck.system.perfetto import field_head
from bottleneck.trace.damage import Damage

if TYPE_CHECKING:
    from pathlib import Path

_EXTRA = "install the extra perfetto: pip install perfetto protobuf, or '.[perfetto]' in a clone"
# Messages in memory are some 50 times as large as the smallest ones in a file.
_LARGEST_PACKET_BYTES, _BATCH_BYTES, _TEXT_BYTES = 2 * 1024**2, 2 * 1024**2, 512 * 1024
_COMPRESSED, _ZSTD = "compressed_packets", "zstd_compressed_packets"
_COMPRESSED_FIELD = 50


def chrome_text(
    path: "Path", blocks: Iterable[bytes], damage: Damage, check: Callable[[int, int], None]
) -> Iterator[bytes]:
    """Yields blocks of the JSON text of the trace in ``blocks``.

    Damage is counted, and the sound part of a file read. ``check`` is given the bytes that came out of compressed
    packets and those that went in; it raises TraceError beyond its limits. Raises TraceError where the package is
    missing that reads protobuf, and for a trace of another program without events of any thread.
    """
    messages = _messages(path)
    events, events_seen = _ChromeEvents(path, damage), False
    text: list[bytes] = []
    size = 0
    for packet in _packets(_PacketReader(blocks, damage, check), messages, damage):
        text += events.of(packet)
        if not text:
            continue
        size += sum(map(len, text[-2:]))
        if size > _TEXT_BYTES:
            yield (b",\n" if events_seen else events.header()) + b",\n".join(text)
            text, size, events_seen = [], 0, True
    text += events.last()
    if not events.any_event:
        raise _without_events(path, damage)
    yield (b",\n" if events_seen and text else b"" if events_seen else events.header()) + b",\n".join(text) + b"\n]}\n"


def _without_events(path: "Path", damage: Damage) -> TraceError:
    if any(damage[kind] for kind in ("broken", "perfetto-cut", "perfetto-deflate", "perfetto-zstd")):
        why = "; ".join(caveat.message for caveat in damage.caveats(0))
        return TraceError(f"no event in {path}, a Perfetto trace, can be read", why=why, fix="record it again")
    return TraceError(
        f"{path} is a Perfetto trace that another tool wrote, not PyTorch",
        why="it holds no event on the track of a thread or a stream",
        fix="pass the trace that torch.profiler's export_chrome_trace wrote",
    )


def _messages(path: "Path") -> Any:
    """Gives the class of traces.

    Raises TraceError where the package that has it is missing or does not fit.
    """
    what = f"{path} is a Perfetto protobuf trace, which the package perfetto reads"
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2  # noqa: PLC0415 - for such traces only
    except ImportError as exc:
        raise TraceError(what, why=f"it is not installed ({exc})", fix=_EXTRA) from exc
    except Exception as exc:  # the error for a protobuf that is too old is of a class of protobuf's own
        fix = "install one that fits: pip install --upgrade perfetto protobuf"
        raise TraceError(what, why=f"it does not work with the protobuf that is installed ({exc})", fix=fix) from exc
    return perfetto_trace_pb2.Trace


class _PacketReader:
    """A reader of stretches of whole packets of a stream.

    What is compressed in large packets is inflated.
    """

    def __init__(self, blocks: Iterable[bytes], damage: Damage, check: Callable[[int, int], None]) -> None:
        self._blocks = iter(blocks)
        self._damage = damage
        self._check = check
        self._taken = self._inflated = 0

    def __iter__(self) -> Iterator[bytes]:
        yield from self._of(self._blocks)

    def of_compressed(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """The stretches in the data of a compressed packet."""
        yield from self._of(self._inflate(pieces), is_compressed=True)

    def _of(self, blocks: Iterator[bytes], *, is_compressed: bool = False) -> Iterator[bytes]:
        data = b""
        for block in blocks:
            data += block
            at, end = self._whole(data)
            while at or (end is not None and end > _LARGEST_PACKET_BYTES):
                if at:
                    yield data[:at]
                    data = data[at:]
                else:
                    large = _LargePacket(data, end or 0, blocks)
                    yield from () if is_compressed else self._of_large(large)
                    self._damage["broken"] += is_compressed
                    data = large.skip()
                    self._damage["perfetto-cut"] += large.is_cut
                at, end = self._whole(data)
            if end is None:
                break
        self._damage["perfetto-cut"] += bool(data)

    @staticmethod
    def _whole(data: bytes) -> tuple[int, int | None]:
        """Finds the end of the last whole packet.

        Also gives the end of the packet that follows, null where what follows is none.
        """
        at = 0
        try:
            while (head := field_head(data, at)) is not None:
                if head[2] > len(data):
                    return at, head[2]
                at = head[2]
        except ValueError:
            return at, None
        return at, at

    def _of_large(self, large: "_LargePacket") -> Iterator[bytes]:
        """Yields the stretches in a packet too large for memory.

        Only what is compressed in it.
        """
        pieces = large.field(_COMPRESSED_FIELD)
        if pieces is None:
            self._damage["broken"] += 1
        else:
            yield from self.of_compressed(pieces)

    def _inflate(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        decompressor = zlib.decompressobj()
        try:
            for piece in pieces:
                self._taken += len(piece)
                data = piece
                while data and not decompressor.eof:
                    text = decompressor.decompress(data, _TEXT_BYTES)
                    data = decompressor.unconsumed_tail
                    self._inflated += len(text)
                    self._check(self._inflated, self._taken)
                    if text:
                        yield text
        except zlib.error:
            self._damage["perfetto-deflate"] += 1
            return
        self._damage["perfetto-deflate"] += not decompressor.eof


class _LargePacket:
    """A packet of many megabytes, taken in pieces."""

    def __init__(self, data: bytes, size: int, blocks: Iterator[bytes]) -> None:
        self._data, self._blocks = data, blocks
        self._left, self.is_cut = size, False
        head = field_head(data, 0)
        assert head is not None
        self._drop(head[1])

    def field(self, number: int) -> Iterator[bytes] | None:
        """Gives the pieces of the value of a field.

        Null where the packet has no such field, or what comes before it is large or broken.
        """
        try:
            while self._left:
                head = field_head(self._data, 0)
                if head is None or head[1] > self._left:
                    return None
                if head[0] == number:
                    self._drop(head[1])
                    return self._take(min(head[2] - head[1], self._left))
                if head[2] > len(self._data):
                    return None
                self._drop(head[2])
        except ValueError:
            pass
        return None

    def skip(self) -> bytes:
        """Passes the rest of the packet.

        Gives the bytes already read of the stream behind it.
        """
        for _ in self._take(self._left):
            pass
        return self._data

    def _drop(self, count: int) -> None:
        self._data, self._left = self._data[count:], self._left - count

    def _take(self, count: int) -> Iterator[bytes]:
        while count:
            piece = self._data[:count]
            count -= len(piece)
            self._drop(len(piece))
            if piece:
                yield piece
            if not self._data and self._left and count:
                self._data = next(self._blocks, b"")
                if not self._data:
                    self._left, self.is_cut = 0, True
                    return


def _packets(batches: _PacketReader, trace: Any, damage: Damage) -> Iterator[Any]:
    """Yields all packets, in the order of the file.

    Those that are compressed come in their place.
    """
    can_be_zstd = _ZSTD in trace.DESCRIPTOR.fields_by_name["packet"].message_type.fields_by_name
    for packet in _decoded(batches, trace, damage):
        if packet.HasField(_COMPRESSED):
            for inner in _decoded(batches.of_compressed([packet.compressed_packets]), trace, damage):
                if inner.HasField(_COMPRESSED):
                    damage["broken"] += 1
                else:
                    yield inner
        elif can_be_zstd and packet.HasField(_ZSTD):
            damage["perfetto-zstd"] += 1
        else:
            yield packet


def _decoded(stretches: Iterable[bytes], trace: Any, damage: Damage) -> Iterator[Any]:
    from google.protobuf.message import DecodeError  # noqa: PLC0415 - for such traces only

    for stretch in stretches:
        for text in _cut(stretch):
            try:
                yield from trace.FromString(text).packet
            except DecodeError:
                for one in _cut(text, 1):
                    try:
                        packets = trace.FromString(one).packet
                    except DecodeError:
                        damage["broken"] += 1
                    else:
                        yield from packets


def _cut(stretch: bytes, most_bytes: int = _BATCH_BYTES) -> Iterator[bytes]:
    """Whole packets in batches, each of as few as reach ``most_bytes``."""
    if len(stretch) < most_bytes:
        yield stretch
        return
    start = at = 0
    while at < len(stretch):
        head = field_head(stretch, at)
        assert head is not None
        at = head[2]
        if at - start >= most_bytes:
            yield stretch[start:at]
            start = at
    if start < at:
        yield stretch[start:at]


# Limits on what is kept until it is used. Kineto's own builder makes a track per event.
_MOST_STRINGS_BYTES, _MOST_OPEN, _MOST_TRACKS, _MOST_SEQUENCES = 512 * 1024**2, 1_000_000, 8_000_000, 100_000
_MOST_WAITING = 50_000
# Torch gives an event some twenty arguments; a packet of two megabytes could hold a million.
_MOST_ARGUMENTS = 1000
# Traces of other programs, and files that inflate to millions of tiny packets, hold little else.
_USED = {"track_event", "track_descriptor", "clock_snapshot"}
_MOST_UNUSED, _UNUSED_PER_USED = 1_000_000, 20
# An interned string costs so much beside its text.
_STRING_BYTES = 100
_CLEARED = 1

_BOOT_TIME, _REAL_TIME = 6, 1
# Clocks of these numbers mean something else in each sequence.
_OWN_CLOCKS = range(64, 128)
_SLICE_BEGIN, _SLICE_END, _INSTANT, _COUNTER = 1, 2, 3, 4
# Above, starts in microseconds are no exact decimals in a float.
_EXACT_NS, _EPOCH_NS, _SECOND_NS = 9 * 10**15, 10**18, 10**9


class _PacketClock(msgspec.Struct, gc=False):
    """A clock of one sequence, which may count on from the last packet."""

    is_incremental: bool
    unit_ns: int
    last: int
    offset_ns: int


class _PacketSequence:
    """Names and defaults that packets of one writer refer to by numbers."""

    def __init__(self) -> None:
        self.clocks: dict[int, _PacketClock] = {}
        self.clear()

    def clear(self) -> None:
        """Forgets all names and defaults; the writer begins anew."""
        self.names: dict[int, str] = {}
        self.categories: dict[int, str] = {}
        self.argument_names: dict[int, str] = {}
        self.texts: dict[int, str] = {}
        self.clock = 0
        self.track: int | None = None


class _TrackText(msgspec.Struct, frozen=True):
    """Facts of a descriptor of a track.

    Of a thread they are its own numbers, of other tracks their name.
    """

    parent: int
    name: str
    pid: int | None
    tid: int | None
    process_name: str
    is_counter: bool
    adds_up: bool
    unit: float


class _OpenSlice(msgspec.Struct):
    """A slice that has begun."""

    start_ns: int | None
    category: str
    name: str
    args: dict[str, Any]


Event = dict[str, Any]
_ThreadKey = tuple[Any, Any]
_NUMBERED = re.compile(r"(?:^|\s)(?:thread|stream) (-?\d{1,18})\b")
_MOST_PARENTS = 32
_METADATA_MARKS = {"trace_metadata", "device_properties"}
_MOST_FACTS = 1000


class _ChromeEvents:
    """A maker of Chrome's events from packets.

    It uses the names, clocks and tracks that earlier packets gave.
    """

    def __init__(self, path: "Path", damage: Damage) -> None:
        self._path, self._damage = path, damage
        self._encode = msgspec.json.Encoder().encode
        self._sequences: dict[int, _PacketSequence] = {}
        self._tracks: dict[int, _TrackText] = {}
        self._alike: dict[_TrackText, _TrackText] = {}
        self._threads: dict[int, _ThreadKey] = {}
        self._named: set[_ThreadKey] = set()
        self._open: dict[int, list[_OpenSlice]] = {}
        self._count_open = self._bytes = 0
        self._sums: dict[int, float] = {}
        self._waiting: list[tuple[int, Event]] = []
        self._offsets_ns: dict[int, int] = {}
        self._base_ns: int | None = None
        self._real_ns: int | None = None
        self._facts: dict[str, Any] = {}
        self._used = self._unused = 0
        self.any_event = False

    def header(self) -> bytes:
        """The text before the first event."""
        facts = {key: value for key, value in self._facts.items() if key != "traceEvents"}
        if self._real_ns is not None:
            facts["baseTimeNanoseconds"] = self._real_ns + (self._base_ns or 0)
        elif self._base_ns and self._base_ns >= _EPOCH_NS:
            facts["baseTimeNanoseconds"] = self._base_ns
        return self._encode({**facts, "traceEvents": []})[:-2] + b"\n"

    def of(self, packet: Any) -> list[bytes]:
        """The events that a packet ends."""
        sequence, kind = self._sequence(packet), packet.WhichOneof("data")
        if kind in _USED:
            self._used += 1
        else:
            self._note_unused()
        if kind == "clock_snapshot":
            self._learn_clocks(packet.clock_snapshot, sequence)
        if packet.HasField("interned_data"):
            self._learn_names(packet.interned_data, sequence)
        if packet.HasField("trace_packet_defaults"):
            defaults = packet.trace_packet_defaults
            sequence.clock = defaults.timestamp_clock_id
            if defaults.track_event_defaults.HasField("track_uuid"):
                sequence.track = defaults.track_event_defaults.track_uuid
        if kind == "track_descriptor":
            return self._learn_track(packet.track_descriptor)
        time_ns = self._time_ns(packet, sequence)
        return self._of_event(packet.track_event, time_ns, sequence) if kind == "track_event" else []

    def last(self) -> list[bytes]:
        """The events that nothing has ended."""
        rest = [self._encoded(uuid, event) for uuid, event in self._waiting]
        self._waiting = []
        for uuid, slices in self._open.items():
            rest += [self._encoded(uuid, _complete(open_slice, None)) for open_slice in slices]
        return rest

    def _sequence(self, packet: Any) -> _PacketSequence:
        number = packet.trusted_packet_sequence_id
        sequence = self._sequences.get(number)
        if sequence is None:
            sequence = self._sequences[number] = _PacketSequence()
            if len(self._sequences) > _MOST_SEQUENCES:
                raise self._too_much(f"more than {_MOST_SEQUENCES:,} writers")
        if packet.sequence_flags & _CLEARED or packet.incremental_state_cleared:
            sequence.clear()
        return sequence

    def _note_unused(self) -> None:
        self._unused += 1
        if self._unused > max(_MOST_UNUSED, _UNUSED_PER_USED * self._used):
            raise TraceError(
                f"{self._path} is hardly a trace of PyTorch",
                why=f"of its first {self._used + self._unused:,} packets {self._used:,} belong to events",
                fix="pass the trace that torch.profiler's export_chrome_trace wrote",
            )

    def _too_much(self, what: str) -> TraceError:
        fix = "record fewer steps, or export JSON: prof.export_chrome_trace('trace.json')"
        return TraceError(f"{self._path} is too large a Perfetto trace", why=f"it holds {what}", fix=fix)

    def _learn_clocks(self, snapshot: Any, sequence: _PacketSequence) -> None:
        now = {clock.clock_id: clock.timestamp for clock in snapshot.clocks if not clock.is_incremental}
        boot = now.get(_BOOT_TIME)
        if boot is not None and _REAL_TIME in now and self._base_ns is None:
            self._real_ns = now[_REAL_TIME] - boot
        for clock in snapshot.clocks:
            unit_ns = clock.unit_multiplier_ns or 1
            offset_ns = 0 if boot is None else boot - clock.timestamp * unit_ns
            if clock.clock_id in _OWN_CLOCKS:
                sequence.clocks[clock.clock_id] = _PacketClock(
                    clock.is_incremental, unit_ns, clock.timestamp, offset_ns
                )
            elif boot is not None:
                self._offsets_ns.setdefault(clock.clock_id, offset_ns)

    def _time_ns(self, packet: Any, sequence: _PacketSequence) -> int | None:
        """Gives the time of a packet on the clock of the trace.

        Null where it has none.
        """
        if not packet.HasField("timestamp"):
            return None
        number = packet.timestamp_clock_id or sequence.clock or _BOOT_TIME
        time: int = packet.timestamp
        if number not in _OWN_CLOCKS:
            return time + self._offsets_ns.get(number, 0)
        clock = sequence.clocks.get(number)
        if clock is None:
            return None
        if clock.is_incremental:
            clock.last += time
            time = clock.last
        return time * clock.unit_ns + clock.offset_ns

    def _learn_names(self, interned: Any, sequence: _PacketSequence) -> None:
        kinds = (
            (interned.event_names, sequence.names),
            (interned.event_categories, sequence.categories),
            (interned.debug_annotation_names, sequence.argument_names),
        )
        for entries, learnt in kinds:
            for entry in entries:
                learnt[entry.iid] = name = _text(entry.name)
                self._bytes += len(name) + _STRING_BYTES
        for entry in interned.debug_annotation_string_values:
            sequence.texts[entry.iid] = text = _text(entry.str)
            self._bytes += len(text) + _STRING_BYTES
        if self._bytes > _MOST_STRINGS_BYTES:
            raise self._too_much(f"more than {_MOST_STRINGS_BYTES >> 20} MiB of names")

    def _learn_track(self, descriptor: Any) -> list[bytes]:
        thread, process = descriptor.thread, descriptor.process
        is_thread, is_process = descriptor.HasField("thread"), descriptor.HasField("process")
        counter = descriptor.counter
        track = _TrackText(
            parent=descriptor.parent_uuid,
            name=_text(descriptor.name or descriptor.static_name or (thread.thread_name if is_thread else "")),
            pid=thread.pid if is_thread else process.pid if is_process else None,
            tid=thread.tid if is_thread else None,
            process_name=_text(process.process_name) if is_process else "",
            is_counter=descriptor.HasField("counter"),
            adds_up=counter.is_incremental,
            unit=float(counter.unit_multiplier or 1),
        )
        uuid = descriptor.uuid
        self._tracks[uuid] = self._alike.setdefault(track, track)
        if len(self._tracks) > _MOST_TRACKS:
            raise self._too_much(f"more than {_MOST_TRACKS:,} tracks")
        self._threads.pop(uuid, None)
        ready = [held for held in self._waiting if held[0] == uuid]
        if ready:
            self._waiting = [held for held in self._waiting if held[0] != uuid]
        return [*self._names_of(uuid, track), *(self._encoded(*held) for held in ready)]

    def _names_of(self, uuid: int, track: _TrackText) -> list[bytes]:
        """The events with which Chrome's format names processes and threads."""
        key = self._thread(uuid) if not track.process_name else (track.pid, None)
        text = track.process_name or ("" if track.is_counter else track.name)
        if not text or key in self._named or len(self._named) > _MOST_STRINGS_BYTES // 1000:
            return []
        self._named.add(key)
        event: Event = {"ph": "M", "name": "process_name" if key[1] is None else "thread_name", "pid": key[0]}
        return [self._encode(event | ({} if key[1] is None else {"tid": key[1]}) | {"args": {"name": text}})]

    def _thread(self, uuid: int) -> _ThreadKey:
        """Gives process and thread, or device and stream, of a track.

        They are its own, else by its name and its parents.
        """
        key = self._threads.get(uuid)
        if key is None:
            key = self._threads[uuid] = self._find_thread(uuid)
        return key

    def _find_thread(self, uuid: int) -> _ThreadKey:
        track, tid, root = self._tracks.get(uuid), None, ""
        for _ in range(_MOST_PARENTS):
            if track is None:
                break
            root = track.name
            if tid is None and (match := _NUMBERED.search(track.name)):
                tid = int(match[1])
            if track.tid is not None:
                return track.pid, track.tid
            if track.pid is not None:
                return track.pid, self._name_of(uuid) if tid is None else tid
            track = self._tracks.get(track.parent) if track.parent else None
        return root, self._name_of(uuid) if tid is None else tid

    def _name_of(self, uuid: int) -> str:
        track = self._tracks.get(uuid)
        return (track.name if track else "") or f"track {uuid}"

    def _of_event(self, event: Any, time_ns: int | None, sequence: _PacketSequence) -> list[bytes]:
        uuid = event.track_uuid if event.HasField("track_uuid") else sequence.track
        uuid = -1 if uuid is None else uuid
        kind = event.type
        if kind == _SLICE_BEGIN:
            self.any_event = True
            self._begin(uuid, event, time_ns, sequence)
            return []
        if kind == _SLICE_END:
            return self._end(uuid, event, time_ns, sequence)
        if kind == _INSTANT:
            return self._of_instant(uuid, event, time_ns, sequence)
        return self._of_counter(uuid, event, time_ns) if kind == _COUNTER else []

    def _begin(self, uuid: int, event: Any, time_ns: int | None, sequence: _PacketSequence) -> None:
        args = self._args(event, sequence)
        name = self._name(event, sequence)
        category = self._category(event, sequence) or _implied_category(name, args)
        if category == "gpu_memcpy":
            name = _copy_name(name, args)
        self._count_open += 1
        if self._count_open > _MOST_OPEN:
            raise self._too_much(f"more than {_MOST_OPEN:,} slices that have begun and not ended")
        self._open.setdefault(uuid, []).append(_OpenSlice(self._based(time_ns), category, name, args))

    def _end(self, uuid: int, event: Any, time_ns: int | None, sequence: _PacketSequence) -> list[bytes]:
        slices = self._open.get(uuid)
        if not slices:
            # It had begun before the recording.
            self._damage["no-time"] += 1
            return []
        begun = slices.pop()
        self._count_open -= 1
        if not slices:
            del self._open[uuid]
        if event.debug_annotations:
            begun.args.update(self._args(event, sequence))
        end_ns = None if time_ns is None else self._based(time_ns)
        return self._out(uuid, _complete(begun, end_ns))

    def _of_instant(self, uuid: int, event: Any, time_ns: int | None, sequence: _PacketSequence) -> list[bytes]:
        name, args = self._name(event, sequence), self._args(event, sequence)
        if name in _METADATA_MARKS and time_ns is None:
            self._learn_facts(name, args)
            return []
        self.any_event = True
        shown: Event = {"ph": "i", "s": "t", "name": name, "ts": _us(self._based(time_ns)), "args": args}
        category = self._category(event, sequence)
        return self._out(uuid, shown | ({"cat": category} if category else {}))

    def _of_counter(self, uuid: int, event: Any, time_ns: int | None) -> list[bytes]:
        track = self._tracks.get(uuid)
        value = event.double_counter_value if event.HasField("double_counter_value") else event.counter_value
        if track is not None and track.adds_up:
            value = self._sums[uuid] = self._sums.get(uuid, 0) + value
        value *= track.unit if track else 1.0
        self.any_event = True
        name = self._name_of(uuid)
        ts = _us(self._based(time_ns))
        return self._out(uuid, {"ph": "C", "name": name, "ts": ts, "args": {name: _finite(value)}})

    def _out(self, uuid: int, event: Event) -> list[bytes]:
        """The text of an event; none while its track is not described yet."""
        if uuid in self._tracks:
            return [self._encoded(uuid, event)]
        self._waiting.append((uuid, event))
        if len(self._waiting) < _MOST_WAITING:
            return []
        waiting, self._waiting = self._waiting, []
        return [self._encoded(*held) for held in waiting]

    def _encoded(self, uuid: int, event: Event) -> bytes:
        pid, tid = self._thread(uuid)
        return self._encode(event | {"pid": pid, "tid": tid})

    def _based(self, time_ns: int | None) -> int | None:
        """Gives the time after the base of the text.

        Microseconds are then exact.
        """
        if time_ns is None:
            return None
        if self._base_ns is None:
            self._base_ns = time_ns - time_ns % _SECOND_NS if abs(time_ns) >= _EXACT_NS else 0
        return time_ns - self._base_ns

    def _learn_facts(self, mark: str, args: dict[str, Any]) -> None:
        """Notes what Kineto's builder knows of the job and of devices.

        Its JSON has these facts before the events.
        """
        for key, value in args.items():
            if len(self._facts) < _MOST_FACTS:
                parsed = _parsed(value) if isinstance(value, str) else value
                self._facts["deviceProperties" if mark == "device_properties" else key] = parsed

    def _name(self, event: Any, sequence: _PacketSequence) -> str:
        return _text(event.name) if event.HasField("name") else sequence.names.get(event.name_iid, "")

    def _category(self, event: Any, sequence: _PacketSequence) -> str:
        categories = [_text(entry) for entry in event.categories]
        if event.category_iids:
            categories += [sequence.categories.get(entry, "") for entry in event.category_iids]
        return categories[0] if len(categories) == 1 else ",".join(filter(None, categories))

    def _args(self, event: Any, sequence: _PacketSequence) -> dict[str, Any]:
        args: dict[str, Any] = {}
        annotations = event.debug_annotations
        for annotation in annotations if len(annotations) <= _MOST_ARGUMENTS else annotations[:_MOST_ARGUMENTS]:
            name = _argument_name(annotation, sequence)
            value = _value(annotation, sequence)
            if name == "metadata" and isinstance(value, str):
                args.update(_fragment(value))
            elif name == "correlation_id":
                args.setdefault("correlation", value)
            elif name:
                args[name] = value
        return args


def _text(value: str | bytes) -> str:
    """A text of the file; bytes that are not UTF-8 are replaced."""
    return value if isinstance(value, str) else value.decode("utf-8", errors="replace")


def _us(time_ns: int | None) -> float | None:
    return None if time_ns is None else time_ns / 1000


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _complete(begun: _OpenSlice, end_ns: int | None) -> Event:
    """Chrome's complete event; without a duration where a slice has no end."""
    start_ns = begun.start_ns
    event: Event = {"ph": "X", "cat": begun.category, "name": begun.name, "ts": _us(start_ns)}
    if end_ns is not None and start_ns is not None:
        event["dur"] = (end_ns - start_ns) / 1000
    event["args"] = begun.args
    return event


_PLAIN = {"int_value", "uint_value", "bool_value", "pointer_value"}


def _value(annotation: Any, sequence: _PacketSequence) -> Any:
    """Gives the value of an argument, as JSON has it.

    Null where it is of a kind that no profiler writes.
    """
    kind = annotation.WhichOneof("value")
    if kind in _PLAIN:
        return getattr(annotation, kind)
    value: Any = None
    if kind == "legacy_json_value":
        value = _parsed(_text(annotation.legacy_json_value))
    elif kind == "string_value":
        value = _text(annotation.string_value)
    elif kind == "string_value_iid":
        value = sequence.texts.get(annotation.string_value_iid, "")
    elif kind == "double_value":
        value = _finite(annotation.double_value)
    elif annotation.array_values:
        value = [_value(entry, sequence) for entry in annotation.array_values]
    elif annotation.dict_entries:
        value = {_argument_name(entry, sequence): _value(entry, sequence) for entry in annotation.dict_entries}
    return value


def _argument_name(annotation: Any, sequence: _PacketSequence) -> str:
    return (
        _text(annotation.name) if annotation.HasField("name") else sequence.argument_names.get(annotation.name_iid, "")
    )


def _copy_name(name: str, args: dict[str, Any]) -> str:
    """Gives the name of a copy with its direction.

    The monitor of CUPTI writes the direction as arguments.
    """
    kind, source, target = (args.get(key) for key in ("copy kind", "src kind", "dst kind"))
    if name != "Memcpy" or not isinstance(kind, str):
        return name
    return f"{name} {kind} ({str(source).capitalize()} -> {str(target).capitalize()})"


def _parsed(text: str) -> Any:
    """Parses the JSON value of a text.

    The text itself where it is no JSON.
    """
    try:
        return msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return text


def _fragment(text: str) -> dict[str, Any]:
    """The arguments that Kineto's builder writes as one text, without braces around them."""
    try:
        return msgspec.json.decode("{" + text + "}", type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return {"metadata": text}


# Kineto's builder writes no categories; its JSON writes these arguments for events of them.
_IMPLIED = (
    ("cuda_sync_kind", "cuda_sync"),
    ("cbid", "cuda_runtime"),
    ("cid", "cuda_runtime"),
    ("Python id", "python_function"),
    ("Record function id", "cpu_op"),
    ("Ev Idx", "cpu_op"),
)


def _implied_category(name: str, args: dict[str, Any]) -> str:
    if "stream" in args and "device" in args and "cuda_sync_kind" not in args:
        return "gpu_memcpy" if name.startswith("Memcpy") else "gpu_memset" if name.startswith("Memset") else "kernel"
    return next((category for argument, category in _IMPLIED if argument in args), "")
