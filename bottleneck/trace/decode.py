"""Decodes trace events into typed records.

A clean chunk is decoded whole, any other value by value. Every event keeps its ``args`` as raw text, and only those of
categories that need them are decoded, by role. Measured and rejected: a union of structs tagged by `ph` (no faster);
one tagged by `cat` with typed args inside (7 % less time where most events are ops, none elsewhere, and a second path
for events of an unknown category or none); the collector on (4 % more); chunks below 512 KiB (more calls) and above 1
MiB (more memory).
"""

import json
from collections.abc import Iterable, Sequence
from decimal import Decimal
from functools import cache
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from bottleneck.trace.damage import Damage

# Everything that decoding hostile bytes may raise; UnicodeDecodeError is a ValueError.
DECODE_ERRORS = (msgspec.MsgspecError, ValueError, RecursionError)

# An id or size that the trace does not give; a column turns it into null.
ABSENT = -(2**63)
NOTHING = msgspec.Raw(b"")

Number = int | float | str | Decimal | None


class Event(msgspec.Struct, gc=False):
    """One entry of the event list; anything may be missing."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: int | float | str | None = None
    dur: int | float | str | None = None
    args: msgspec.Raw = msgspec.Raw(b"{}")


class ExactEvent(msgspec.Struct, gc=False):
    """An Event whose start does not fit in a float.

    Epoch microseconds with decimals have 19 digits.
    """

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: Decimal | None = None
    dur: int | float | str | None = None
    args: msgspec.Raw = msgspec.Raw(b"{}")


AnyEvent = Event | ExactEvent
Entry = TypeVar("Entry")
_Entry_co = TypeVar("_Entry_co", covariant=True)


class OpArgs(msgspec.Struct, gc=False):
    """Arguments of a framework op.

    Shapes stay text: most of them repeat, and only distinct ones are parsed.
    """

    external_id: int = msgspec.field(name="External id", default=ABSENT)
    sequence: int = msgspec.field(name="Sequence number", default=ABSENT)
    forward_thread: int = msgspec.field(name="Fwd thread id", default=ABSENT)
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=NOTHING)
    types: msgspec.Raw = msgspec.field(name="Input type", default=NOTHING)
    strides: msgspec.Raw = msgspec.field(name="Input Strides", default=NOTHING)
    concrete: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=NOTHING)
    dims_1_8: msgspec.Raw = msgspec.field(name="Input dims", default=NOTHING)


class LaunchArgs(msgspec.Struct, gc=False):
    """Arguments of a runtime call."""

    correlation: int = ABSENT
    external_id: int = msgspec.field(name="External id", default=ABSENT)
    external_id_1_8: int = msgspec.field(name="external id", default=ABSENT)
    kernel: str = ""


class DeviceArgs(msgspec.Struct, gc=False):
    """Arguments of a kernel, copy or fill."""

    correlation: int = ABSENT
    external_id: int = msgspec.field(name="External id", default=ABSENT)
    external_id_1_8: int = msgspec.field(name="external id", default=ABSENT)
    device: int = ABSENT
    stream: int = ABSENT
    grid: tuple[int, ...] = (ABSENT,)
    block: tuple[int, ...] = (ABSENT,)
    registers: int = msgspec.field(name="registers per thread", default=ABSENT)
    shared_bytes: int = msgspec.field(name="shared memory", default=ABSENT)
    bytes: int = ABSENT
    graph: int = msgspec.field(name="graph id", default=ABSENT)
    collective: str = msgspec.field(name="Collective name", default="")
    input_elements: int = msgspec.field(name="In msg nelems", default=ABSENT)
    output_elements: int = msgspec.field(name="Out msg nelems", default=ABSENT)
    group_size: int = msgspec.field(name="Group size", default=ABSENT)
    message_dtype: str = msgspec.field(name="dtype", default="")
    process_group: str = msgspec.field(name="Process Group Name", default="")
    ascend_stream: int = msgspec.field(name="Stream Id", default=ABSENT)
    mtia_size: int = msgspec.field(name="size", default=ABSENT)
    annotation: msgspec.Raw = NOTHING
    annotation_text: msgspec.Raw = msgspec.field(name="str", default=NOTHING)


class FrameArgs(msgspec.Struct, gc=False):
    """Arguments of a Python frame."""

    python_id: int = msgspec.field(name="Python id", default=ABSENT)


class MemoryArgs(msgspec.Struct, gc=False):
    """Arguments of a '[memory]' instant."""

    bytes: int = msgspec.field(name="Bytes", default=ABSENT)
    device_type: int = msgspec.field(name="Device Type", default=0)
    device: int = msgspec.field(name="Device Id", default=ABSENT)
    address: int = msgspec.field(name="Addr", default=ABSENT)
    total_allocated: int = msgspec.field(name="Total Allocated", default=ABSENT)
    total_reserved: int = msgspec.field(name="Total Reserved", default=ABSENT)


Record = TypeVar("Record", bound=msgspec.Struct)

# Floats of microseconds below this hold three decimals exactly.
EXACT_BELOW_US = 9.0e12


class EventDecoder:
    """A decoder of lists of events.

    It goes over to exact decimals, at twice the cost, when a start needs them.
    """

    def __init__(self) -> None:
        self._plain = msgspec.json.Decoder(list[Event])
        self._exact = msgspec.json.Decoder(list[ExactEvent])
        self.needs_exact = False

    def decode(self, text: bytes) -> Sequence[AnyEvent]:
        """The events of a JSON list; raises one of DECODE_ERRORS when it is damaged."""
        if not self.needs_exact:
            events = self._plain.decode(text)
            # A file writes all its starts alike; a look at some of each chunk is enough.
            some = (*events[:8], *events[-8:])
            self.needs_exact = any(type(event.ts) is float and event.ts >= EXACT_BELOW_US for event in some)
            if not self.needs_exact:
                return events
        return self._exact.decode(text)

    def coerce(self, values: Iterable[object]) -> list[AnyEvent]:
        """Events from parsed JSON; values other than objects are dropped."""
        return [from_mapping(Event, value) for value in values if isinstance(value, dict)]


class ListDecoder(Protocol[_Entry_co]):
    """A reader of lists of events, sound or damaged.

    Sound lists are read from their text, damaged ones from the values that were saved of them.
    """

    def decode(self, text: bytes) -> Sequence[_Entry_co]:
        """The events of a JSON list; raises one of DECODE_ERRORS when it is damaged."""
        ...

    def coerce(self, values: Iterable[object]) -> Sequence[_Entry_co]:
        """Events from parsed JSON; values other than objects are dropped."""
        ...


class ArgsDecoder(Generic[Record]):
    """Decodes the raw ``args`` of many events of one kind."""

    def __init__(self, kind: type[Record], damage: Damage) -> None:
        self._kind = kind
        self._damage = damage
        self._decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(kind)

    def columns(self, raws: Sequence[msgspec.Raw]) -> dict[str, Sequence[Any]]:
        """Gives values by field name, one per raw text.

        Values of the wrong type are absent, and counted.
        """
        values = zip(*map(msgspec.structs.astuple, self._records(raws)), strict=True)
        return dict(zip(self._kind.__struct_fields__, values, strict=True))

    def _records(self, raws: Sequence[msgspec.Raw]) -> list[Record]:
        try:
            records = self._decoder.decode_lines(b"\n".join(raws))
        except DECODE_ERRORS:
            records = []
        return records if len(records) == len(raws) else [self._each(raw) for raw in raws]

    def _each(self, raw: msgspec.Raw) -> Record:
        try:
            return self._decoder.decode(raw)
        except DECODE_ERRORS:
            try:
                values = load_leniently(bytes(raw))
            except DECODE_ERRORS:
                values = None
            if values is not None or bytes(raw).strip() != b"null":
                self._damage["odd-args"] += 1
            return from_mapping(self._kind, values)


def load_leniently(text: bytes) -> Any:
    """Reads JSON as Python does, with null for NaN and Infinity.

    Raw control characters and lone surrogates pass.
    """
    return _LENIENT.decode(text.decode("utf-8", errors="replace").strip())


_LENIENT = json.JSONDecoder(strict=False, parse_constant=lambda _: None)


def from_mapping(kind: type[Record], values: object) -> Record:
    """Makes a record of the values that fit.

    Numbers in strings count as numbers. Values that do not fit are absent.
    """
    if not isinstance(values, dict):
        return kind()
    fitting: dict[str, Any] = {}
    for field in _fields(kind):
        if field.encode_name in values:
            fitting.update(_fit(field, values[field.encode_name]))
    return kind(**fitting)


@cache
def _fields(kind: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(kind)


def _fit(field: msgspec.structs.FieldInfo, value: object) -> dict[str, Any]:
    if field.type is msgspec.Raw:
        return {field.name: msgspec.Raw(_encoded(value))}
    if isinstance(value, str):
        value = value.encode("utf-8", errors="replace").decode()
        value = _listed(value) if field.name in {"grid", "block"} else value
    try:
        return {field.name: msgspec.convert(value, field.type, strict=False)}
    except DECODE_ERRORS:
        return {}


def _encoded(value: object) -> bytes:
    """Encodes a value as JSON, with null for overflowing numbers like 1e999.

    Gives an empty object for values nested too deeply.
    """
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(value).encode()
    except DECODE_ERRORS:
        return b"{}"


def _listed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
