"""Gate <-> ``gate.json``: the record of a gate as a file that other programs, and later gates, read."""

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, NoReturn

from bottleneck.errors import TraceError
from bottleneck.gated import GATE_SCHEMA, Gate
from bottleneck.measured import Ratio, Timing
from bottleneck.report.gate_words import verdict_of

_HEAD = ("schema", "version", "verdict", "exit_code", "sentence")


def to_json(gate: Gate) -> str:
    """The gate as indented JSON in ASCII, which ``read_gate`` reads back; what is not finite is null, as unknown.

    ``verdict`` is that of all workloads together, which follows from the others and is not read.
    """
    plain = {**_plain(gate), "verdict": verdict_of(gate)}
    return json.dumps({key: plain[key] for key in (*_HEAD, *plain)}, indent=1, ensure_ascii=True) + "\n"


def read_gate(text: str) -> Gate:
    """The gate in a text of ``to_json``, of this schema; TraceError says what is wrong with any other text.

    Keys that we do not know are ignored, so that a file of a later version of the same schema can be read.
    """
    import msgspec  # noqa: PLC0415 - loaded only where it is used

    try:
        tree = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as exc:
        raise _not_readable("this is no JSON", str(exc)) from exc
    if not isinstance(tree, dict) or "schema" not in tree:
        raise _not_readable("this is no gate.json", "it has no key 'schema'")
    if tree["schema"] != GATE_SCHEMA:
        raise _not_readable(f"the gate has schema {tree['schema']!r:.80}", f"this version reads {GATE_SCHEMA!r} only")
    try:
        return msgspec.convert(tree, Gate)
    except (msgspec.ValidationError, AssertionError, RecursionError) as exc:
        raise _not_readable("the gate breaks its schema", str(exc)) from exc


def _plain(value: Any) -> Any:
    """The record as dicts and lists, with null for floats that are not finite; a measurement without them is null."""
    if is_dataclass(value):
        tree = {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
        return None if isinstance(value, Ratio | Timing) and None in tree.values() else tree
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


def _no_number(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number of JSON")


def _not_readable(what: str, why: str) -> TraceError:
    return TraceError(what, why=why, fix="make it again: bottleneck gate --out FOLDER --format json")
