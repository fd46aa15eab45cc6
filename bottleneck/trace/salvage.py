"""Stretches of the event list that do not decode as a whole, taken event by event."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from bottleneck.trace.damage import Damage
from bottleneck.trace.decode import DECODE_ERRORS, AnyEvent, EventDecoder
from bottleneck.trace.repair import repair_events

# Between any two objects of a list.
ANY_BOUNDARY = re.compile(rb'\}(\s*,\s*)(?=\{\s*")')

# No two runs of blanks may meet in a pattern: it would take a time that grows with the square of their length.
_LIST_END = re.compile(rb"\}\s*(?:(,)\s*)?\]")
_ENDS_TRIED = _PIECES_JOINED = 16


@dataclass(frozen=True)
class Salvage:
    """Events, and the text that follows them: after the end of the list, or of an event that is not whole yet."""

    events: Sequence[AnyEvent]
    rest: bytes = b""
    ended: bool = False


class Salvager:
    """Reads damaged stretches with the decoder that the sound ones are read with; counts what it repairs or drops."""

    def __init__(self, decoder: EventDecoder, damage: Damage) -> None:
        self._decoder = decoder
        self._damage = damage

    def salvage(self, text: bytes, boundary: re.Pattern[bytes]) -> Salvage:
        """What a stretch holds; an event that may go on in the text after it is left as the rest."""
        pieces = _cut(text, boundary)
        events: list[AnyEvent] = []
        first = 0
        while first < len(pieces):
            taken = self._take_whole(pieces[first : first + _PIECES_JOINED])
            if taken is None and _is_open(pieces[first]) and first + _PIECES_JOINED > len(pieces):
                return Salvage(events, b",".join(pieces[first:]))
            count, found = taken or (1, self._repaired(pieces[first]))
            events += found.events
            first += count
            if found.ended:
                return Salvage(events, b",".join([found.rest, *pieces[first:]]), ended=True)
        return Salvage(events)

    def salvage_last(self, text: bytes, boundary: re.Pattern[bytes]) -> Salvage:
        """What a stretch holds that no text follows: an event that is not whole has been cut off with the file."""
        found = self.salvage(text, boundary)
        events = [*found.events]
        while found.rest and not found.ended:
            piece, *others = _cut(found.rest, boundary)
            events += self._repaired(piece).events
            found = self.salvage(b",".join(others), boundary) if others else Salvage([])
            events += found.events
        return Salvage(events, found.rest, found.ended)

    def _repaired(self, piece: bytes) -> Salvage:
        """The events in a broken piece, which may hold the end of the list; nothing when no repair helps."""
        for match in itertools.islice(_LIST_END.finditer(piece), _ENDS_TRIED):
            events = repair_events(piece[: match.start() + 1], self._damage)
            if events is not None:
                return Salvage(events, piece[match.end() :], ended=True)
        events = repair_events(piece, self._damage)
        if events is None and ANY_BOUNDARY.search(piece):
            # Several events, of which one is broken and all but the first begin with another key.
            return self.salvage_last(piece, ANY_BOUNDARY)
        self._damage["broken"] += events is None
        return Salvage(events or [])

    def _take_whole(self, pieces: Sequence[bytes]) -> tuple[int, Salvage] | None:
        """How many pieces make one event, and the event; null when it is broken.

        One, unless its arguments hold a list of objects that begin with the same key as events do.
        """
        for count, text in enumerate(itertools.accumulate(pieces, lambda left, right: left + b"," + right), 1):
            if count > 1 and not _is_open(pieces[0]):
                return None
            if count > 1 and _is_open(text):
                continue
            found = self._decoded(text) or self._at_end(text)
            if found:
                return count, found
        return None

    def _decoded(self, text: bytes) -> Salvage | None:
        try:
            return Salvage(self._decoder.decode(b"[" + text + b"]"))
        except DECODE_ERRORS:
            return None

    def _at_end(self, text: bytes) -> Salvage | None:
        """The event before the end of the list, when that lies in the text."""
        for match in itertools.islice(_LIST_END.finditer(text), _ENDS_TRIED):
            found = self._decoded(text[: match.start() + 1])
            if found:
                self._damage["comma"] += match[1] is not None
                return Salvage(found.events, text[match.end() :], ended=True)
        return None


def _is_open(text: bytes) -> bool:
    return text.count(b"{") > text.count(b"}")


def _cut(text: bytes, boundary: re.Pattern[bytes]) -> list[bytes]:
    cuts = [(match.start() + 1, match.end(1)) for match in boundary.finditer(text)]
    starts, ends = [0, *(end for _, end in cuts)], [*(start for start, _ in cuts), len(text)]
    return [text[start:end] for start, end in zip(starts, ends, strict=True)]
