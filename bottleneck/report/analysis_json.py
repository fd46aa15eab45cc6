"""Writes and reads ``analysis.json``."""

import math
from numbers import Integral, Real
from typing import Any

import msgspec

from bottleneck.errors import TraceError
from bottleneck.schema.analysis import SCHEMA, Analysis, Ledger

_FIRST = ("schema", "version", "recording", "device", "steps", "verdict", "ledger", "totals", "coverage", "kernels")
_THEN = (
    "ops",
    "modules",
    "lines",
    "idle",
    "queue",
    "collectives",
    "findings",
    "batch_test",
    "option_costs",
    "telemetry",
)
_LAST = ("ranks", "caveats")
KEYS = _FIRST + _THEN + _LAST
"""The keys of the file in the order in which they are written."""


def to_json(analysis: Analysis) -> str:
    """The analysis as indented JSON that ``from_json`` reads back; the same analysis gives the same text.

    A float that is not finite is written as null, as unknown; where null is not allowed, that is an AssertionError.
    """
    plain = _sound(msgspec.to_builtins(analysis, enc_hook=_plain_number))
    try:
        checked = msgspec.to_builtins(msgspec.convert(plain, Analysis))
    except msgspec.ValidationError as exc:
        raise AssertionError(f"this analysis breaks its own schema: {exc}") from exc
    return msgspec.json.format(msgspec.json.encode({key: checked[key] for key in KEYS}), indent=1).decode() + "\n"


def from_json(text: str) -> Analysis:
    """The analysis in a text of ``to_json``, of this schema; TraceError says what is wrong with any other text.

    Keys that we do not know are ignored, so that a file of a later version of the same schema can be read.
    """
    try:
        head = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as exc:
        raise _not_readable("this is no JSON", str(exc)) from exc
    if not isinstance(head, dict) or "schema" not in head:
        raise _not_readable("this is no analysis.json", "it has no key 'schema'")
    if head["schema"] != SCHEMA:
        raise _not_readable(f"the analysis has schema {head['schema']!r:.80}", f"this version reads {SCHEMA!r} only")
    try:
        analysis = msgspec.json.decode(text, type=Analysis)
        Ledger(analysis.steps.wall_us, analysis.ledger)
    except (msgspec.ValidationError, AssertionError) as exc:
        raise _not_readable("the analysis breaks its schema", str(exc)) from exc
    return analysis


def _not_readable(what: str, why: str) -> TraceError:
    return TraceError(what, why=why, fix="make it again: bottleneck report TRACE --format json > analysis.json")


def _plain_number(value: object) -> object:
    """A numpy scalar as a number of Python's; numpy registers its own with these abstract types."""
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise TypeError(f"{type(value).__name__} does not belong in an analysis")


def _sound(value: Any) -> Any:
    """The same tree with null for floats that are not finite, and escapes for lone surrogates."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {_sound(key): _sound(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_sound(inner) for inner in value]
    return value
