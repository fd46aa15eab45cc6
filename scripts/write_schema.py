"""Writes the JSON Schema of analysis.json and the tables of its guide: ``python -m scripts.write_schema``.

Both follow from the records and from the words in ``scripts.analysis_keys``; a test holds that they are current.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from bottleneck.records import SCHEMA, Analysis
from scripts.analysis_keys import KEYS, RECORDS

_REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
SCHEMA_FILE = _REFERENCE / "analysis.schema.json"
GUIDE_FILE = _REFERENCE / "analysis.md"
BEGIN, END = "<!-- written by scripts/write_schema.py: begin -->", "<!-- written by scripts/write_schema.py: end -->"


def schema() -> dict[str, Any]:
    """The JSON Schema of analysis.json with a description and a unit for each key."""
    generated = msgspec.json.schema(Analysis)
    records = {name: _describe(name, record) for name, record in sorted(generated["$defs"].items())}
    records["Analysis"]["properties"]["schema"] = {"const": SCHEMA, "description": KEYS["Analysis"]["schema"][1]}
    records["Analysis"]["required"] = ["schema", *records["Analysis"]["required"]]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{SCHEMA.replace('/', ':')}",
        "title": "bottleneck analysis",
        "description": "Durations are microseconds per step, shares lie in 0-1, null means unknown.",
        "$ref": "#/$defs/Analysis",
        "$defs": records,
    }


def schema_text() -> str:
    """The schema as it is published."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


def _describe(name: str, record: dict[str, Any]) -> dict[str, Any]:
    """A record's schema in our words; AssertionError where the words and the record differ."""
    words, properties = KEYS[name], record["properties"]
    assert set(words) == set(properties), f"{name}: {sorted(set(words) ^ set(properties))}"
    described = {key: {**properties[key], **_note(*words[key])} for key in words}
    return {**record, "title": name, "description": RECORDS[name], "properties": described}


def _note(unit: str, words: str) -> dict[str, str]:
    return {"description": f"{words} ({unit})" if unit else words}


def tables() -> str:
    """The tables of keys for the guide, one per record."""
    records = schema()["$defs"]
    lines: list[str] = []
    for name, words in KEYS.items():
        lines += [f"### {name}: {RECORDS[name]}", "", "| key | type | unit | meaning |", "|---|---|---|---|"]
        for key, (unit, meaning) in words.items():
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


def guide() -> str:
    """The guide with its tables renewed; what stands around them is kept."""
    before, _, rest = GUIDE_FILE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n\n{tables()}\n{END}{after}"


def main() -> None:
    """Writes both files."""
    SCHEMA_FILE.write_text(schema_text(), encoding="utf-8")
    GUIDE_FILE.write_text(guide(), encoding="utf-8")


if __name__ == "__main__":
    main()
