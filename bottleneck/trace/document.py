"""The event list of a trace as chunks of decoded events, and the text around it.

The text is never parsed as a whole: each block is cut after its last complete event. In sound JSON a cut between
events looks like `}, {"ph"`, where "ph" stands for the key that the first event begins with. A nested list of objects
would have to begin with that key too to be mistaken for one; then the chunk does not decode and is taken apart.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from bottleneck.errors import TraceError
from bottleneck.trace.damage import Damage
from bottleneck.trace.decode import DECODE_ERRORS, AnyEvent, EventDecoder
from bottleneck.trace.heading import pass_heading
from bottleneck.trace.salvage import ANY_BOUNDARY, Salvager

_FIRST_KEY = re.compile(rb'\{\s*("(?:[^"\\]|\\.)*")\s*:')
_BLANKS = b" \t\r\n"

_WINDOW_BYTES = 4096
_ANY_BOUNDARY_AFTER_BYTES = 8 * 1024**2
_LONGEST_EVENT_BYTES = 256 * 1024**2
_FOOTER_LIMIT_BYTES = 16 * 1024**2


class Document:
    """One trace document; iterate it once, then read ``header`` and ``footer``, the texts around the event list."""

    def __init__(self, path: Path, blocks: Iterator[bytes], damage: Damage) -> None:
        self._path = path
        self._blocks = blocks
        self._damage = damage
        self._decoder = EventDecoder()
        self._salvager = Salvager(self._decoder, damage)
        self._boundary = ANY_BOUNDARY
        self.header = b""
        self.footer = b""

    def __iter__(self) -> Iterator[Sequence[AnyEvent]]:
        heading = pass_heading(self._path, self._blocks, self._damage)
        self.header = heading.text
        if heading.rest.startswith(b"]"):
            self._take_footer(heading.rest[1:])
            return
        self._boundary = _boundary_after(heading.rest)
        tail = [heading.rest]
        for block in self._blocks:
            end, start = self._last_cut(block)
            if not start:
                self._lengthen(tail, block)
                continue
            text, tail = b"".join((b"[", *tail, memoryview(block)[:end], b"]")), [block[start:]]
            try:
                yield self._decoder.decode(text)
            except DECODE_ERRORS:
                found = self._salvager.salvage(text[1:-1], self._boundary)
                yield found.events
                if found.ended:
                    self._take_footer(b",".join([found.rest, *tail]))
                    return
                tail = [found.rest, b",", *tail] if found.rest else tail
        yield from self._last_events(b"".join(tail).rstrip(b"\0" + _BLANKS))

    def _lengthen(self, tail: list[bytes], block: bytes) -> None:
        """Adds to the tail a block in which no event ends, or only one that begins with another key."""
        tail.append(block)
        size = sum(map(len, tail))
        if size > _ANY_BOUNDARY_AFTER_BYTES:
            self._boundary = ANY_BOUNDARY
        if size > _LONGEST_EVENT_BYTES:
            raise TraceError(
                f"{self._path} holds no end of an event in {size >> 20} MiB",
                why="events take a few hundred bytes; the file is damaged or no trace",
                fix="record it again",
            )

    def _last_events(self, text: bytes) -> Iterator[Sequence[AnyEvent]]:
        """Events of the text that no block follows."""
        text, begun = _without_begun_event(text)
        end, start = self._last_cut(text)
        if start:
            try:
                yield self._decoder.decode(b"[" + text[:end] + b"]")
                text = text[start:]
            except DECODE_ERRORS:
                pass
        broken = self._damage["broken"]
        found = self._salvager.salvage_last(text, self._boundary)
        yield found.events
        if found.ended:
            self._take_footer(found.rest)
        elif self._damage["broken"] > broken:
            # The last one that could not be read is the one that the end of the file cut off.
            self._damage["broken"] -= 1
            self._damage["truncated-json"] += 1
        else:
            self._damage["truncated-json" if begun else "unclosed-json"] += 1

    def _last_cut(self, block: bytes) -> tuple[int, int]:
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
                return 0, 0
            window *= 16

    def _take_footer(self, text: bytes) -> None:
        pieces = [text]
        for block in self._blocks:
            # Reading on to the end finds damage of the compressed stream, and costs next to nothing.
            if sum(map(len, pieces)) < _FOOTER_LIMIT_BYTES:
                pieces.append(block)
        self.footer = b"".join(pieces)


def _boundary_after(text: bytes) -> re.Pattern[bytes]:
    """What lies between two events of a list that begins with the text."""
    match = _FIRST_KEY.match(text)
    return re.compile(rb"\}(\s*,\s*)(?=\{\s*" + re.escape(match[1]) + rb"\s*:)") if match else ANY_BOUNDARY


def _without_begun_event(text: bytes) -> tuple[bytes, bytes]:
    """Text up to its last closing brace, and the begin of an event that follows a comma there and has no brace."""
    end = text.rfind(b"}") + 1
    rest = text[end:].strip(_BLANKS)
    return (text[:end], rest.strip(b"," + _BLANKS)) if rest.startswith(b",") else (text, b"")
