"""Cuts Perfetto's protobuf traces into packets.

It recognises such files by their first bytes, not by their names. A trace is a message with one repeated field, the
packets: https://perfetto.dev/docs/reference/trace-packet-proto.
"""

import zlib
from pathlib import Path

_VARINT, _FIXED64, _SIZED, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10
_PACKETS_TRIED, _LOOKED_AT_BYTES = 8, 4096
# No JSON text holds these; nearly each packet does: numbers below nine are bytes of these values.
_CONTROLS = bytes({*range(9), *range(14, 32)})
_GZIP_MAGIC, _GZIP_WBITS = b"\x1f\x8b", 31


def varint(data: bytes, at: int) -> tuple[int, int] | None:
    """Reads a number, and the position behind it.

    Null where the data ends in it. Raises ValueError where it has no end.
    """
    if at < len(data) and data[at] < 0x80:
        return data[at], at + 1
    value = shift = 0
    for position in range(at, min(at + _LONGEST_VARINT, len(data))):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
        shift += 7
    if len(data) - at >= _LONGEST_VARINT:
        raise ValueError("a number of more than 64 bits")
    return None


def field_head(data: bytes, at: int) -> tuple[int, int, int] | None:
    """Reads the number of a field, and the begin and end of its value.

    Null where the data ends in its head. The end may lie behind the data. Raises ValueError for what is no field.
    """
    tag = varint(data, at)
    if tag is None:
        return None
    number, wire = tag[0] >> 3, tag[0] & 7
    begin = tag[1]
    if not 0 < number < 2**29:
        raise ValueError("no number of a field")
    if wire == _SIZED:
        size = varint(data, begin)
        return None if size is None else (number, size[1], size[1] + size[0])
    if wire == _VARINT:
        value = varint(data, begin)
        return None if value is None else (number, begin, value[1])
    if wire in {_FIXED32, _FIXED64}:
        return number, begin, begin + (4 if wire == _FIXED32 else 8)
    raise ValueError("no kind of a field")


def is_perfetto(first: bytes) -> bool:
    """True for the first bytes of a Perfetto trace.

    One of the first packets has to be a sound message: the tag of a packet is a line feed, which may stand before JSON
    too.
    """
    first = first[:_LOOKED_AT_BYTES]
    if first[:1] != b"\x0a" or len(first.translate(None, _CONTROLS)) == len(first):
        return False
    at = 0
    try:
        for _ in range(_PACKETS_TRIED):
            head = field_head(first, at) if first[at : at + 1] == b"\x0a" else None
            if head is None:
                return False
            _, begin, at = head
            if begin < at and _is_message(first[begin:at], is_whole=at <= len(first)):
                return True
    except ValueError:
        pass
    return False


def _is_message(data: bytes, *, is_whole: bool) -> bool:
    """True where fields follow each other up to the end."""
    at = 0
    try:
        while at < len(data):
            head = field_head(data, at)
            if head is None:
                return not is_whole
            at = head[2]
    except ValueError:
        return False
    return at == len(data) or not is_whole


def holds_perfetto(path: Path) -> bool:
    """True for a regular file that begins as a Perfetto trace does.

    It may be compressed by gzip.
    """
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            first = file.read(_LOOKED_AT_BYTES)
    except OSError:  # the reader raises, with a remedy
        return False
    if first.startswith(_GZIP_MAGIC):
        try:
            first = zlib.decompressobj(_GZIP_WBITS).decompress(first, _LOOKED_AT_BYTES)
        except zlib.error:
            return False
    return is_perfetto(first)
