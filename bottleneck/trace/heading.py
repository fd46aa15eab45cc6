"""What lies before the first event of a trace document; the way into its list of events."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from bottleneck.errors import TraceError
from bottleneck.trace.damage import Damage
from bottleneck.trace.decode import DECODE_ERRORS, load_leniently
from bottleneck.trace.foreign import refuse_json, refuse_value

_LIST_KEY = re.compile(rb'"traceEvents"\s*:\s*')
_BLANKS = b" \t\r\n"
_BOM = b"\xef\xbb\xbf"
_LIMIT_BYTES = 16 * 1024**2
_KEYS_TRIED = 32
# Enough to see the first key of the first event.
_LOOK_AHEAD_BYTES = 4096


@dataclass(frozen=True)
class Heading:
    """``text`` is an object closed after its empty event list, '' for a bare array; ``rest`` begins with an event."""

    text: bytes
    rest: bytes


def pass_heading(path: Path, blocks: Iterator[bytes], damage: Damage) -> Heading:
    """The heading of the document in ``blocks``; raises TraceError when no list of events follows it."""
    text = next(blocks, b"").removeprefix(_BOM).lstrip(_BLANKS)
    if text.startswith(b"["):
        start, header = 1, b""
    elif text.startswith(b"{"):
        text, start = _find_list(path, text, blocks, damage)
        header = text[: start - 1] + b"[]}"
    else:
        refuse_value(path, text)
    rest = text[start:].lstrip(_BLANKS)
    while len(rest) < _LOOK_AHEAD_BYTES and (block := next(blocks, b"")):
        rest = (rest + block).lstrip(_BLANKS)
    if rest.startswith(b"["):
        refuse_value(path, rest)
    return Heading(header, rest)


def _find_list(path: Path, text: bytes, blocks: Iterator[bytes], damage: Damage) -> tuple[bytes, int]:
    """The text read so far and the position after the bracket that opens the list."""
    searched = tried = 0
    while tried < _KEYS_TRIED:
        for match in itertools.islice(_LIST_KEY.finditer(text, searched), _KEYS_TRIED):
            tried += 1
            if match.end() < len(text) and _is_top_level(text[: match.start()]):
                return text, _after_bracket(path, text, match.end())
        searched = max(0, len(text) - len(b'"traceEvents" : ') - 64)
        block = next(blocks, b"")
        if not block or len(text) > _LIMIT_BYTES:
            break
        text += block
    unverified = _LIST_KEY.search(text)
    if unverified is None or unverified.end() == len(text):
        _refuse_without_list(path, text)
    damage["metadata"] += 1
    return text, _after_bracket(path, text, unverified.end())


def _is_top_level(header: bytes) -> bool:
    """Whether a key that follows the text is one of the outermost object."""
    try:
        return isinstance(load_leniently(header + b'"traceEvents":null}'), dict)
    except DECODE_ERRORS:
        return False


def _after_bracket(path: Path, text: bytes, start: int) -> int:
    if text[start : start + 1] != b"[":
        refuse_value(path, text[start:])
    return start + 1


def _refuse_without_list(path: Path, text: bytes) -> NoReturn:
    try:
        top = load_leniently(text)
    except DECODE_ERRORS:
        raise TraceError(
            f"{path} is no readable JSON",
            why="no list of trace events was found in it",
            fix="record it again; the program may have ended while it was written",
        ) from None
    refuse_json(path, top, ())
