"""Writes the JSON Schemas of our files and the tables of their guides: ``python -m scripts.write_schema``.

They follow from the records and from the words in ``scripts.analysis_keys`` and ``scripts.gate_keys``; tests hold that
they are current.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import msgspec

from bottleneck.schema.analysis import SCHEMA, Analysis
from bottleneck.schema.comparison import COMPARE_SCHEMA, Comparison
from bottleneck.schema.gate_result import GATE_SCHEMA, Gate, GateVerdict
from scripts import gate_keys
from scripts.analysis_keys import KEYS, RECORDS, Meaning

_REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
SCHEMA_FILE = _REFERENCE / "analysis.schema.json"
GATE_SCHEMA_FILE = _REFERENCE / "gate.schema.json"
COMPARE_SCHEMA_FILE = _REFERENCE / "compare.schema.json"
GUIDE_FILE = _REFERENCE / "analysis.md"
COMPARE_GUIDE_FILE = _REFERENCE / "compare.md"
BEGIN, END = "<!-- written by scripts/write_schema.py: begin -->", "<!-- written by scripts/write_schema.py: end -->"


@dataclass(frozen=True)
class Words:
    """What the records of a file, and the keys of each, mean."""

    records: Mapping[str, str]
    keys: Mapping[str, Mapping[str, Meaning]]


_ANALYSIS = Words(RECORDS, KEYS)
_GATE = Words(gate_keys.RECORDS, gate_keys.KEYS)


def schema() -> dict[str, Any]:
    """The JSON Schema of analysis.json with a description and a unit for each key."""
    records = _records(Analysis, _ANALYSIS, {})
    _name_schema(records["Analysis"], SCHEMA)
    return _document("analysis", SCHEMA, "Analysis", records)


def gate_schema() -> dict[str, Any]:
    """The JSON Schema of gate.json, the same way; ``verdict`` is written beside the keys of the record."""
    verdicts: dict[str, Any] = {"enum": sorted(get_args(GateVerdict))}
    records = _records(Gate, _GATE, {"Gate": {"verdict": verdicts}})
    _name_schema(records["Gate"], GATE_SCHEMA)
    records["Gate"]["required"] = ["verdict", *records["Gate"]["required"]]
    _name_schema(records["Comparison"], COMPARE_SCHEMA)
    return _document("gate", GATE_SCHEMA, "Gate", records)


def compare_schema() -> dict[str, Any]:
    """The JSON Schema of what `compare --format json` prints, in the words of gate.json, which holds the same."""
    records = _records(Comparison, _GATE, {})
    _name_schema(records["Comparison"], COMPARE_SCHEMA)
    return _document("comparison", COMPARE_SCHEMA, "Comparison", records)


def _document(what: str, name: str, root: str, records: dict[str, Any]) -> dict[str, Any]:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{name.replace('/', ':')}",
        "title": f"bottleneck {what}",
        "description": "Durations are microseconds per step, shares lie in 0-1, null means unknown.",
        "$ref": f"#/$defs/{root}",
        "$defs": records,
    }


def _name_schema(record: dict[str, Any], name: str) -> None:
    """Makes a record's schema demand that it names its own."""
    record["properties"]["schema"] = {"const": name, "description": record["properties"]["schema"]["description"]}
    record["required"] = ["schema", *record["required"]]


def schema_text(tree: dict[str, Any] | None = None) -> str:
    """A schema as it is published; that of analysis.json unless another is given."""
    return json.dumps(tree or schema(), indent=1, ensure_ascii=False) + "\n"


def _records(root: type, words: Words, further: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The schema of each record in our words; AssertionError where the words and a record differ."""
    generated = msgspec.json.schema(root)["$defs"]
    return {
        name: _describe(name, {**record, "properties": {**record["properties"], **further.get(name, {})}}, words)
        for name, record in sorted(generated.items())
    }


def _describe(name: str, record: dict[str, Any], told: Words) -> dict[str, Any]:
    words, properties = told.keys[name], record["properties"]
    assert set(words) == set(properties), f"{name}: {sorted(set(words) ^ set(properties))}"
    described = {key: {**properties[key], **_note(*words[key])} for key in words}
    return {**record, "title": name, "description": told.records[name], "properties": described}


def _note(unit: str, words: str) -> dict[str, str]:
    return {"description": f"{words} ({unit})" if unit else words}


def tables(tree: dict[str, Any] | None = None, told: Words = _ANALYSIS) -> str:
    """The tables of keys for a guide, one per record, that of the whole file first.

    They are those of analysis.json unless another schema is given.
    """
    tree = tree or schema()
    records, root = tree["$defs"], tree["$ref"].rpartition("/")[2]
    lines: list[str] = []
    for name in sorted((name for name in told.keys if name in records), key=lambda name: name != root):
        lines += [f"### {name}: {told.records[name]}", "", "| key | type | unit | meaning |", "|---|---|---|---|"]
        for key, (unit, meaning) in told.keys[name].items():
            lines.append(f"| `{key}` | {_type(records[name]['properties'][key])} | {unit} | {meaning} |")
        lines.append("")
    return "\n".join(lines)


def _type(part: dict[str, Any]) -> str:
    """A type in a few words: 'number or null', 'list of KernelSummary'."""
    readers: dict[str, Callable[[Any], str]] = {
        "anyOf": lambda options: " or ".join(map(_type, options)),
        "$ref": lambda target: target.rpartition("/")[2],
        "enum": lambda values: " or ".join("null" if value is None else f"`{value}`" for value in values),
        "const": lambda value: f"`{value}`",
        "prefixItems": lambda items: f"pair of {_type(items[0])}",
        "items": lambda item: f"list of {_type(item)}",
        "additionalProperties": lambda item: f"{_type(item)} by name",
        "type": str,
    }
    return next(read(part[key]) for key, read in readers.items() if key in part)


def guide(file: Path = GUIDE_FILE, told: str | None = None) -> str:
    """A guide with its tables renewed; what stands around them is kept. That of analysis.json unless one is given."""
    before, _, rest = file.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n\n{told or tables()}\n{END}{after}"


def compare_guide() -> str:
    """The guide to the JSON of `compare`, with its tables renewed."""
    return guide(COMPARE_GUIDE_FILE, tables(compare_schema(), _GATE))


def main() -> None:
    """Writes all files."""
    SCHEMA_FILE.write_text(schema_text(), encoding="utf-8")
    GATE_SCHEMA_FILE.write_text(schema_text(gate_schema()), encoding="utf-8")
    COMPARE_SCHEMA_FILE.write_text(schema_text(compare_schema()), encoding="utf-8")
    GUIDE_FILE.write_text(guide(), encoding="utf-8")
    COMPARE_GUIDE_FILE.write_text(compare_guide(), encoding="utf-8")


if __name__ == "__main__":
    main()
