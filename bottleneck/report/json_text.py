"""Writes all JSON answers (analysis, comparison, verify, sweep, doctor, gate), and reads ``analysis.json``.

The text is ASCII, so that it is valid JSON whatever the encoding of standard output.
"""

import json
import re
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any

import msgspec

from bottleneck.errors import TraceError
from bottleneck.schema.analysis import SCHEMA, Analysis, Ledger
from bottleneck.schema.records import check_ranges

# fmt: off
KEYS = (
    "schema", "version", "recording", "device", "steps", "verdict", "ledger", "totals", "coverage", "phases",
    "ranges", "kernels", "ops", "modules", "module_classes", "module_paths", "lines", "idle", "critical_path",
    "source_texts", "queue", "collectives", "memory", "memory_reason", "findings", "no_gain", "batch_test",
    "option_costs", "run", "start_up", "compile_health", "serving", "pieces", "telemetry", "ranks", "job",
    "caveats",
)
# fmt: on
"""The keys of ``analysis.json`` in the order in which they are written."""

_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


def _encodable(text: str) -> str:
    r"""Gives the text with lone surrogates as six characters each (``\ud800``).

    JSON cannot carry them.
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _is_encodable(tree: object) -> bool:
    """Returns True where no text of the tree holds a lone surrogate.

    It takes a hundredth of the time of looking at each.
    """
    try:
        msgspec.json.encode(tree)
    except UnicodeEncodeError:
        return False
    return True


LONGEST_TEXT = 2000


def encode(
    record: object,
    first: Sequence[str] = ("schema", "version"),
    text: Callable[[str], str | None] = _encodable,
) -> str:
    """Encodes the record as indented JSON.

    The keys ``first`` come before the others; the same record gives the same text. A number that is not finite is
    written as null, as unknown. ``text`` makes each string safe to show, where that is wanted; null from it is null in
    the file.
    """
    tree = _tree_of(record, text)
    if isinstance(tree, dict):
        tree = {key: tree[key] for key in dict.fromkeys((*(key for key in first if key in tree), *tree))}
    encoded = msgspec.json.format(msgspec.json.encode(tree), indent=1).decode()
    escaped = encoded if encoded.isascii() else _NOT_ASCII.sub(lambda match: json.dumps(match[0])[1:-1], encoded)
    return escaped + "\n"


def _tree_of(record: object, text: Callable[[str], str | None]) -> Any:
    tree = msgspec.to_builtins(record, enc_hook=_plain_number)
    return tree if text is _encodable and _is_encodable(tree) else _with_text(tree, text)


def to_json(analysis: Analysis, *, all_findings: bool = True) -> str:  # noqa: ARG001 - as all formats; it has all
    """Encodes the analysis as text that ``from_json`` reads back.

    Raises AssertionError where null stands and is not allowed.
    """
    try:
        checked = msgspec.json.decode(msgspec.json.encode(_tree_of(analysis, _encodable)), type=Analysis)
    except msgspec.ValidationError as exc:
        raise AssertionError(f"this analysis breaks its own schema: {exc}") from exc
    return encode(checked, KEYS)


def from_json(text: str) -> Analysis:
    """Reads the analysis in a text of ``to_json``, of this schema.

    Raises TraceError for any other text, with what is wrong with it. Keys that we do not know are ignored, so that a
    file of a later version of the same schema can be read.
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
        check_ranges(analysis)
        Ledger(analysis.steps.wall_us, analysis.ledger)
    except (ValueError, AssertionError, OverflowError, RecursionError) as exc:
        raise _not_readable("the analysis breaks its schema", str(exc)) from exc
    return analysis


def _not_readable(what: str, why: str) -> TraceError:
    return TraceError(what, why=why, fix="make it again: bottleneck report TRACE --format json > analysis.json")


def _plain_number(value: object) -> object:
    """Converts a numpy scalar to one of Python's.

    numpy registers its numbers, not its truth values, with the abstract types.
    """
    if getattr(value, "dtype", None) == "bool":
        return bool(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise TypeError(f"{type(value).__name__} does not belong in an analysis")


def _with_text(value: Any, text: Callable[[str], str | None]) -> Any:
    """The same tree with each string, keys included, as ``text`` gives it."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, dict):
        return {_encodable(key): _with_text(inner, text) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_with_text(inner, text) for inner in value]
    return value
