"""Copies a trace file with more events at the end of its list.

This is the way back from tables to a trace. Events that can be read are copied as they are written, damaged ones as the
reader repairs them. The copy goes block by block: no more than a block is held at a time.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from bottleneck.trace.damage import Damage
from bottleneck.trace.decode import DECODE_ERRORS, load_leniently
from bottleneck.trace.inflate import read_blocks
from bottleneck.trace.read import TraceDocument

_EMPTY_LIST = b"[]}"


class _RawDecoder:
    """Checks lists of events and hands them on as the text that they are."""

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(list[msgspec.Raw])

    def decode(self, text: bytes) -> Sequence[msgspec.Raw]:
        text.decode()  # the decoder of raw values does not look at the encoding
        return self._decoder.decode(text)

    def coerce(self, values: Iterable[object]) -> list[msgspec.Raw]:
        return [msgspec.Raw(_dumped(value)) for value in values if isinstance(value, dict)]


def extend_trace(path: Path, added: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the text of a trace in blocks, with events added.

    ``added`` are blocks of JSON events, separated by commas, that follow its own. Raises TraceError as ``read_trace``
    does where the file holds no list of events.
    """
    damage = Damage()
    document = TraceDocument(path, read_blocks(path, damage), damage, _RawDecoder())
    opened = False
    for block in _blocks(document, added):
        yield (b",\n" if opened else _opening(document.header)) + block
        opened = True
    yield (b"" if opened else _opening(document.header)) + _closing(document)


def _blocks(document: "TraceDocument[msgspec.Raw]", added: Iterable[bytes]) -> Iterator[bytes]:
    for events in document:
        if events:
            yield b",\n".join(events)
    yield from added


def _opening(header: bytes) -> bytes:
    """Gives the text before the first event.

    It is that of the file, or a sound one with the same values.
    """
    if not header:
        return b"[\n"
    try:
        msgspec.json.decode(header)
    except DECODE_ERRORS:
        header = _dumped({**_loaded(header), "traceEvents": []})
    return header.removesuffix(_EMPTY_LIST) + b"[\n"


def _closing(document: "TraceDocument[msgspec.Raw]") -> bytes:
    """Gives the text after the last event.

    What follows the end of the document is left out.
    """
    if not document.header:
        return b"\n]\n"
    values = document.footer.rstrip(b"\0").strip().removeprefix(b",").lstrip()
    try:
        msgspec.json.decode(b"{" + values)
    except DECODE_ERRORS:
        values = _dumped(_loaded(b"{" + values))[1:]
    return b"\n]" + (b"" if values.startswith(b"}") else b",\n") + values + b"\n"


def _loaded(text: bytes) -> dict[str, object]:
    try:
        value = load_leniently(text)
    except DECODE_ERRORS:
        return {}
    return value if isinstance(value, dict) else {}


def _dumped(value: object) -> bytes:
    """Writes a value as JSON of ASCII characters.

    Lone surrogates are escapes. Gives an empty object for values nested too deeply.
    """
    try:
        return json.dumps(value, allow_nan=False).encode()
    except (RecursionError, ValueError):
        return b"{}"
