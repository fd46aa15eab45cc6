"""Recovers events from text that is not valid JSON.

Repairs come first, then decoding event by event. Kineto wrote names without escaping until 2026-07: Windows backslashes
(pytorch#60187, #98432, kineto#617), quotes (pytorch#146900, kineto#1459), raw control characters (pytorch#130622).
"""

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Generic

from msgspec import Struct

from bottleneck.trace.damage import Damage
from bottleneck.trace.decode import DECODE_ERRORS, Entry, ListDecoder, load_leniently

# Kineto writes `"name": "<raw>", "pid":` on one line; that anchors the raw name whatever it holds.
_NAME = re.compile(rb'("name"\s*:\s*")(.*?)("\s*,\s*"pid"\s*:)', re.DOTALL)
_NAME_KEY, _NAMES_REPAIRED = b'"name"', 4
_ILLEGAL_ESCAPE = re.compile(rb'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_BARE_QUOTE = re.compile(rb'(?<!\\)"')
_NOT_A_NUMBER = re.compile(rb"(?<=[:\[,])(\s*)[-+]?(?:nan|inf|infinity|N/A|1\.#[A-Z]+)(?=\s*[,}\]])", re.IGNORECASE)

_COMMAS = re.compile(rb"\}\s*(?:,\s*)*\{")

_CONTROL_ESCAPES = str.maketrans({"\n": r"\n", "\t": r"\t", "\r": r"\r", "\b": r"\b", "\f": r"\f"})


def _null_for_no_number(text: bytes) -> bytes:
    return _NOT_A_NUMBER.sub(rb"\1null", text)


def _repair_commas(text: bytes) -> bytes:
    return _COMMAS.sub(b"},{", text.strip(b", \t\r\n"))


def _escape_quotes(text: bytes) -> bytes:
    return _with_names(text, lambda name: _BARE_QUOTE.sub(rb'\\"', name))


def _escape_names(text: bytes) -> bytes:
    return _with_names(text, lambda name: name.replace(b"\\", b"\\\\").replace(b'"', b'\\"'))


def _with_names(text: bytes, escape: Callable[[bytes], bytes]) -> bytes:
    # Searched for the end of each of many names, a long text would take a time that grows with its square.
    if text.count(_NAME_KEY) > _NAMES_REPAIRED:
        return text
    return _NAME.sub(lambda match: match[1] + escape(match[2]) + match[3], text)


def _escape_everything(text: bytes) -> bytes:
    return _ILLEGAL_ESCAPE.sub(rb"\\\\", _null_for_no_number(_escape_names(text)))


# Repair -> the defect that it repairs.
_REPAIRS: tuple[tuple[Callable[[bytes], bytes], str], ...] = (
    (bytes, "literal"),  # as it is
    (_null_for_no_number, "literal"),
    (_repair_commas, "comma"),
    (_escape_quotes, "quote"),
    (_escape_names, "backslash"),
    (_escape_everything, "backslash"),
)


def repair_events(text: bytes, decoder: ListDecoder[Entry], damage: Damage) -> Sequence[Entry] | None:
    """Repairs a damaged stretch of the list and gives its events.

    Null when no repair makes it readable. Counts repaired events.
    """
    for repaired, kind in _attempts(text):
        try:
            values = load_leniently(b"[" + repaired + b"]")
        except DECODE_ERRORS:
            continue
        events = decoder.coerce(values)
        defect = "encoding" if kind == "literal" and _not_utf8(text) else kind
        damage[defect] += 1 if defect == "comma" else len(events)
        damage["broken"] += len(values) - len(events)
        return events
    return None


def _attempts(text: bytes) -> Iterator[tuple[bytes, str]]:
    before = None
    for repair, kind in _REPAIRS:
        repaired = repair(text)
        if repaired != before:
            yield repaired, kind
        before = repaired


def _not_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return True
    return False


def restore_backslashes(name: str) -> str:
    r"""Restores a name whose backslashes had turned into control characters.

    They are those of legal escapes of a Windows path (``torch\nn``).
    """
    return name.translate(_CONTROL_ESCAPES)


# Between any two objects of a list.
ANY_BOUNDARY = re.compile(rb'\}(\s*,\s*)(?=\{\s*")')

# No two runs of blanks may meet in a pattern: it would take a time that grows with the square of their length.
_LIST_END = re.compile(rb"\}\s*(?:(,)\s*)?\]")
_ENDS_TRIED = _PIECES_JOINED = 16


class Salvage(Struct, Generic[Entry], frozen=True):
    """Events, and the text that follows them.

    That text is what comes after the end of the list, or an event that is not whole yet.
    """

    events: Sequence[Entry]
    rest: bytes = b""
    ended: bool = False


class Salvager(Generic[Entry]):
    """A reader of damaged stretches of the event list.

    It uses the same decoder as for sound ones, and counts repairs and losses.
    """

    def __init__(self, decoder: ListDecoder[Entry], damage: Damage) -> None:
        self._decoder = decoder
        self._damage = damage

    def salvage(self, text: bytes, boundary: re.Pattern[bytes]) -> Salvage[Entry]:
        """Gives the events of a stretch.

        An event that may go on in the text after it is left as the rest.
        """
        pieces = _cut(text, boundary)
        events: list[Entry] = []
        first = 0
        while first < len(pieces):
            taken = self._take_whole(pieces[first : first + _PIECES_JOINED])
            if taken is None and _is_open(pieces[first]) and first + _PIECES_JOINED > len(pieces):
                return Salvage(events, b",".join(pieces[first:]))
            count, salvaged = taken or (1, self._repaired(pieces[first]))
            events += salvaged.events
            first += count
            if salvaged.ended:
                return Salvage(events, b",".join([salvaged.rest, *pieces[first:]]), ended=True)
        return Salvage(events)

    def salvage_last(self, text: bytes, boundary: re.Pattern[bytes]) -> Salvage[Entry]:
        """Gives the events of a stretch that no text follows.

        An incomplete event has been cut off with the file.
        """
        salvaged = self.salvage(text, boundary)
        events = [*salvaged.events]
        while salvaged.rest and not salvaged.ended:
            piece, *others = _cut(salvaged.rest, boundary)
            events += self._repaired(piece).events
            salvaged = self.salvage(b",".join(others), boundary) if others else Salvage([])
            events += salvaged.events
        return Salvage(events, salvaged.rest, salvaged.ended)

    def _repaired(self, piece: bytes) -> Salvage[Entry]:
        """Gives the events in a broken piece.

        It may hold the end of the list. Nothing when no repair helps.
        """
        for match in itertools.islice(_LIST_END.finditer(piece), _ENDS_TRIED):
            events = repair_events(piece[: match.start() + 1], self._decoder, self._damage)
            if events is not None:
                return Salvage(events, piece[match.end() :], ended=True)
        events = repair_events(piece, self._decoder, self._damage)
        if events is None and ANY_BOUNDARY.search(piece):
            # Several events, of which one is broken and all but the first begin with another key.
            return self.salvage_last(piece, ANY_BOUNDARY)
        self._damage["broken"] += events is None
        return Salvage(events or [])

    def _take_whole(self, pieces: Sequence[bytes]) -> tuple[int, Salvage[Entry]] | None:
        """Takes the pieces that make one event.

        Gives their number and the event, null when it is broken. The number is one, unless the event's arguments hold a
        list of objects that begin with the same key as events do.
        """
        for count, text in enumerate(itertools.accumulate(pieces, lambda left, right: left + b"," + right), 1):
            if count > 1 and not _is_open(pieces[0]):
                return None
            if count > 1 and _is_open(text):
                continue
            whole = self._decoded(text) or self._at_end(text)
            if whole:
                return count, whole
        return None

    def _decoded(self, text: bytes) -> Salvage[Entry] | None:
        try:
            return Salvage(self._decoder.decode(b"[" + text + b"]"))
        except DECODE_ERRORS:
            return None

    def _at_end(self, text: bytes) -> Salvage[Entry] | None:
        """The event before the end of the list, when that lies in the text."""
        for match in itertools.islice(_LIST_END.finditer(text), _ENDS_TRIED):
            last = self._decoded(text[: match.start() + 1])
            if last:
                self._damage["comma"] += match[1] is not None
                return Salvage(last.events, text[match.end() :], ended=True)
        return None


def _is_open(text: bytes) -> bool:
    return text.count(b"{") > text.count(b"}")


def _cut(text: bytes, boundary: re.Pattern[bytes]) -> list[bytes]:
    cuts = [(match.start() + 1, match.end(1)) for match in boundary.finditer(text)]
    starts, ends = [0, *(end for _, end in cuts)], [*(start for start, _ in cuts), len(text)]
    return [text[start:end] for start, end in zip(starts, ends, strict=True)]
