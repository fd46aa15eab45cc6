"""Makes a large trace from a real one: repeats its events, each time later and with ids of their own."""

import re
from collections.abc import Iterator
from pathlib import Path

from bottleneck.trace.damage import Damage
from bottleneck.trace.decode import EventDecoder
from bottleneck.trace.inflate import read_blocks
from bottleneck.trace.read import TraceDocument

# Numbers that must differ between repetitions. Flows carry the correlation in "id".
_NUMBER = re.compile(rb'("ts"\s*:\s*"?|"(?:correlation|[Ee]xternal id|id)"\s*:\s*)(\d+)(?:\.(\d+))?')
_SPACING_US = 1000


def repeat_trace(source: Path, target: Path, size_bytes: int) -> int:
    """Writes to ``target`` the trace in ``source``, repeated until ``size_bytes`` are reached; returns the repeats.

    The layout of the text is kept, so that parsing costs what it costs in the original.
    """
    header, events, footer = _parts(source)
    pattern = _Pattern(events)
    written = times = 0
    with target.open("wb") as file:
        file.write(header)
        while written < size_bytes:
            file.write(b",\n" if times else b"")
            written += sum(file.write(piece) for piece in pattern.repetition(times))
            times += 1
        file.write(footer)
    return times


def _parts(source: Path) -> tuple[bytes, bytes, bytes]:
    """Text up to the opening bracket of the event list, the events, text from the closing bracket on."""
    text = b"".join(read_blocks(source, Damage()))
    document = TraceDocument(source, iter([text]), Damage(), EventDecoder())
    for _ in document:
        pass
    start = text.index(b"[", max(0, len(document.header) - len(b"[]}"))) + 1
    end = len(text) - len(document.footer) - 1
    return text[:start], text[start:end].strip().rstrip(b","), text[end:]


class _Pattern:
    """The events cut at the numbers that change."""

    def __init__(self, events: bytes) -> None:
        self._literals: list[bytes] = []
        self._numbers: list[tuple[int, int, bool]] = []
        position = 0
        for match in _NUMBER.finditer(events):
            fraction = match[3] or b""
            self._literals.append(events[position : match.end(1)])
            self._numbers.append((int(match[2] + fraction), len(fraction), b"ts" in match[1]))
            position = match.end()
        self._end = events[position:]
        self._span_us = _span_us([number // 10**digits for number, digits, is_time in self._numbers if is_time])
        self._ids = 1 + max((number for number, _, is_time in self._numbers if not is_time), default=0)

    def repetition(self, index: int) -> Iterator[bytes]:
        """The text of one repetition in pieces."""
        for literal, (number, digits, is_time) in zip(self._literals, self._numbers, strict=True):
            yield literal
            yield _shifted(number, digits, index * (self._span_us if is_time else self._ids))
        yield self._end


def _shifted(number: int, digits: int, shift: int) -> bytes:
    whole, fraction = divmod(number + shift * 10**digits, 10**digits)
    return b"%d.%0*d" % (whole, digits, fraction) if digits else b"%d" % whole


def _span_us(times: list[int]) -> int:
    # Metadata at time 0 must not stretch the span to decades.
    last = max(times, default=0)
    return _SPACING_US + last - min((time for time in times if time > last // 2), default=last)
