"""The event list of a trace as chunks of decoded events, and the text around it.

The text is never parsed as a whole: each block is cut after its last complete event. In sound JSON a cut between
events looks like `}, {"ph"`, where "ph" stands for the key that the first event begins with; a nested list of objects
would have to begin with the same key to be mistaken for it, and then the chunk does not decode and is taken event by
event instead.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from bottleneck.errors import TraceError
from bottleneck.trace.damage import Damage
from bottleneck.trace.decode import DECODE_ERRORS, EVENTS, EXACT_EVENTS, AnyEvent
from bottleneck.trace.foreign import refuse_json, refuse_shape
from bottleneck.trace.repair import repair_events
from bottleneck.trace.times import EXACT_BELOW_US

_LIST_KEY = re.compile(rb'"traceEvents"\s*:\s*')
_FIRST_KEY = re.compile(rb'\{\s*("(?:[^"\\]|\\.)*")')
_LIST_END = re.compile(rb"\}\s*(,?)\s*\]")
_BLANKS = b" \t\r\n"
_BOM = b"\xef\xbb\xbf"

_WINDOW_BYTES = 4096
_LOOSE_AFTER_BYTES = 8 * 1024**2
_HEADER_LIMIT_BYTES = _FOOTER_LIMIT_BYTES = 64 * 1024**2
_ENDS_TRIED = 16


class Document:
    """One trace document; iterate it once, then read ``header`` and ``footer``."""

    def __init__(self, path: Path, blocks: Iterator[bytes], damage: Damage) -> None:
        self._path = path
        self._blocks = blocks
        self._damage = damage
        self._decoder: msgspec.json.Decoder[list[AnyEvent]] = EVENTS  # type: ignore[assignment]
        self._boundary = re.compile(rb"(?!)")
        self._ended = False
        self.header = b""
        self.footer = b""

    def __iter__(self) -> Iterator[list[AnyEvent]]:
        tail = self._enter_list()
        self._boundary = _boundary_of(tail)
        if tail.startswith(b"]"):
            self._end(tail[1:])
        for block in self._blocks:
            if self._ended:
                self._end(block)
                continue
            close, opening = self._last_cut(tail, block)
            if not opening:
                tail += block
                continue
            text, tail = b"".join((b"[", tail, memoryview(block)[:close], b"]")), block[opening:]
            yield self._events(text)
        if not self._ended:
            yield self._last_events(tail)

    def _enter_list(self) -> bytes:
        """Text from the first event on; what lies before becomes the header."""
        text = next(self._blocks, b"").removeprefix(_BOM).lstrip(_BLANKS)
        if text.startswith(b"["):
            text = text[1:]
        elif text.startswith(b"{"):
            text = self._pass_header(text)
        else:
            refuse_shape(self._path, text)
        while not text.lstrip(_BLANKS)[_WINDOW_BYTES:] and (block := next(self._blocks, b"")):
            text += block
        return text.lstrip(_BLANKS)

    def _pass_header(self, text: bytes) -> bytes:
        searched = 0
        while True:
            for match in _LIST_KEY.finditer(text, searched):
                if match.end() < len(text) and _is_top_level(text[: match.start()]):
                    return self._open_list(text, match.end())
            searched = max(0, len(text) - 64)
            block = next(self._blocks, b"")
            if not block or len(text) > _HEADER_LIMIT_BYTES:
                return self._open_unverified_list(text)
            text += block

    def _open_list(self, text: bytes, start: int) -> bytes:
        if text[start : start + 1] != b"[":
            refuse_shape(self._path, text[start:])
        self.header = text[:start] + b"[]"
        return text[start + 1 :]

    def _open_unverified_list(self, text: bytes) -> bytes:
        """Text of the list in a file whose header is broken; raises TraceError when there is no list at all."""
        match = _LIST_KEY.search(text)
        if match is None or match.end() == len(text):
            refuse_json(self._path, self._parsed(text), ())
        self._damage["metadata"] += 1
        return self._open_list(text, match.end())

    def _parsed(self, text: bytes) -> object:
        try:
            return msgspec.json.decode(text)
        except DECODE_ERRORS:
            raise TraceError(
                f"{self._path} is no readable JSON", why="no list of trace events was found in it", fix="record again"
            ) from None

    def _last_cut(self, tail: bytes, block: bytes) -> tuple[int, int]:
        """(end of the last complete event, start of the next) in the block; (0, 0) when there is no cut."""
        window = _WINDOW_BYTES
        while True:
            start = max(0, len(block) - window)
            cut = None
            for match in self._boundary.finditer(block, start):
                cut = match
            if cut:
                return cut.start() + 1, cut.end(1)
            if start == 0:
                break
            window *= 16
        if len(tail) > _LOOSE_AFTER_BYTES:
            self._boundary = _LOOSE_BOUNDARY
        return 0, 0

    def _events(self, text: bytes) -> list[AnyEvent]:
        """The events in a stretch of the list, which stands in brackets."""
        try:
            events = self._decoder.decode(text)
            if self._decoder is EVENTS and _needs_exactness(events):
                self._decoder = EXACT_EVENTS  # type: ignore[assignment]
                events = self._decoder.decode(text)
        except DECODE_ERRORS:
            return self._one_by_one(text[1:-1])
        return events

    def _one_by_one(self, chunk: bytes) -> list[AnyEvent]:
        events: list[AnyEvent] = []
        start = 0
        for match in self._boundary.finditer(chunk):
            events += self._piece(chunk[start : match.start() + 1])
            start = match.end(1)
            if self._ended:
                self._end(chunk[start:])
                return events
        return events + self._piece(chunk[start:])

    def _piece(self, piece: bytes) -> list[AnyEvent]:
        try:
            return self._decoder.decode(b"[" + piece + b"]")
        except DECODE_ERRORS:
            pass
        ended = self._at_end(piece)
        if ended is not None:
            return ended
        repaired = repair_events(piece, self._damage)
        if repaired is None:
            self._damage["broken"] += 1
            return []
        return [*repaired]

    def _at_end(self, piece: bytes) -> list[AnyEvent] | None:
        """The last event when the piece holds the end of the list, which becomes the footer's start; else null."""
        for tried, match in enumerate(_LIST_END.finditer(piece)):
            if tried == _ENDS_TRIED:
                return None
            text = piece[: match.start() + 1]
            try:
                events = self._decoder.decode(b"[" + text + b"]")
            except DECODE_ERRORS:
                continue
            self._damage["comma"] += len(match[1])
            self._end(piece[match.end() :])
            return events
        return None

    def _last_events(self, tail: bytes) -> list[AnyEvent]:
        """Events of the text that no block follows."""
        text = tail.rstrip(b"\0" + _BLANKS)
        if not text:
            self._damage["unclosed-json"] += 1
            return []
        broken = self._damage["broken"]
        events = self._one_by_one(text)
        if not self._ended:
            cut = self._damage["broken"] - broken
            self._damage["broken"] -= cut
            self._damage["truncated-json" if cut else "unclosed-json"] += cut or 1
        return events

    def _end(self, text: bytes) -> None:
        self._ended = True
        if len(self.footer) < _FOOTER_LIMIT_BYTES:
            self.footer += text


_LOOSE_BOUNDARY = re.compile(rb'\}(\s*,\s*)(?=\{\s*")')


def _boundary_of(text: bytes) -> re.Pattern[bytes]:
    match = _FIRST_KEY.match(text)
    if not match:
        return _LOOSE_BOUNDARY
    return re.compile(rb"\}(\s*,\s*)(?=\{\s*" + re.escape(match[1]) + rb"\s*:)")


def _is_top_level(header: bytes) -> bool:
    try:
        return isinstance(msgspec.json.decode(header + b'"traceEvents":null}'), dict)
    except DECODE_ERRORS:
        return False


def _needs_exactness(events: list[AnyEvent]) -> bool:
    return any(type(event.ts) is float and event.ts >= EXACT_BELOW_US for event in (*events[:8], *events[-8:]))
