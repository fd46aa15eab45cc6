"""Repairs of event text that is not valid JSON, tried from the mildest to the boldest.

Kineto wrote names without escaping until 2026-07: Windows backslashes (pytorch#60187, #98432, kineto#617), quotes
(pytorch#146900, kineto#1459), raw control characters (pytorch#130622).
"""

import re
from collections.abc import Callable, Iterator

from bottleneck.trace.damage import Damage
from bottleneck.trace.decode import DECODE_ERRORS, Event, coerce_events, load_leniently

# Kineto writes `"name": "<raw>", "pid":` on one line; that anchors the raw name whatever it holds.
_NAME = re.compile(rb'("name"\s*:\s*")(.*?)("\s*,\s*"pid"\s*:)', re.DOTALL)
_NAME_KEY, _NAMES_REPAIRED = b'"name"', 4
_ILLEGAL_ESCAPE = re.compile(rb'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_BARE_QUOTE = re.compile(rb'(?<!\\)"')
_NOT_A_NUMBER = re.compile(rb"(?<=[:\[,])(\s*)[-+]?(?:nan|inf|infinity|N/A|1\.#[A-Z]+)(?=\s*[,}\]])", re.IGNORECASE)

_COMMAS = re.compile(rb"\}\s*(?:,\s*)*\{")

_CONTROL_ESCAPES = str.maketrans({"\n": r"\n", "\t": r"\t", "\r": r"\r", "\b": r"\b", "\f": r"\f"})


def _as_it_is(text: bytes) -> bytes:
    return text


def _null_for_no_number(text: bytes) -> bytes:
    return _NOT_A_NUMBER.sub(rb"\1null", text)


def _mend_commas(text: bytes) -> bytes:
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


# Repair -> the defect that it mends.
_REPAIRS: tuple[tuple[Callable[[bytes], bytes], str], ...] = (
    (_as_it_is, "literal"),
    (_null_for_no_number, "literal"),
    (_mend_commas, "comma"),
    (_escape_quotes, "quote"),
    (_escape_names, "backslash"),
    (_escape_everything, "backslash"),
)


def repair_events(text: bytes, damage: Damage) -> list[Event] | None:
    """The events of a damaged stretch of the list, null when no repair makes it readable; counts what it mends."""
    for repaired, kind in _attempts(text):
        try:
            values = load_leniently(b"[" + repaired + b"]")
        except DECODE_ERRORS:
            continue
        events = coerce_events(values)
        found = "encoding" if kind == "literal" and _not_utf8(text) else kind
        damage[found] += 1 if found == "comma" else len(events)
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
    r"""A name in which legal escapes of a Windows path (``torch\nn``) had turned into control characters."""
    return name.translate(_CONTROL_ESCAPES)
