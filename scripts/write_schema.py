"""Writes the JSON Schemas of our files and the tables of keys in json.md: ``python -m scripts.write_schema``.

Both follow from the records of ``bottleneck.schema``: types and defaults by msgspec, the meaning of a record from the
first paragraph of its docstring, meaning and unit of a field from its ``Doc``. Tests check that the files are current.
"""

import inspect
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec

from bottleneck.schema.analysis import SCHEMA, Analysis
from bottleneck.schema.comparison import COMPARE_SCHEMA, Comparison
from bottleneck.schema.gate_result import GATE_SCHEMA, Gate, GateVerdict
from bottleneck.schema.judgement import JUDGE_SCHEMA, PatchJudgement
from bottleneck.schema.predicted_changes import PREDICTED_CHANGES_SCHEMA, PredictedChanges
from bottleneck.schema.prediction import PREDICT_SCHEMA, Prediction
from bottleneck.schema.records import Doc, is_record
from bottleneck.schema.whatif import WHATIF_SCHEMA, WhatIf

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
PAGE = REFERENCE / "json.md"
_BLOCK = re.compile(
    r"(<!-- written by scripts/write_schema.py: begin ([\w-]+) -->\n).*?(<!-- .*?: end \2 -->)", re.DOTALL
)
_VERDICT = Doc("the verdict on all workloads together, which the exit code stands for")


@dataclass(frozen=True)
class SchemaFile:
    """One published schema: its file, its title, and the record that it describes."""

    file: Path
    title: str
    root: type
    names: Mapping[str, str]  # by record: the name that its key "schema" must hold
    extra_keys: Mapping[str, Mapping[str, tuple[Doc, dict[str, Any]]]] = field(default_factory=dict)


ANALYSIS = SchemaFile(REFERENCE / "analysis.schema.json", "analysis", Analysis, {"Analysis": SCHEMA})
COMPARE = SchemaFile(
    REFERENCE / "compare.schema.json",
    "comparison",
    Comparison,
    {"Comparison": COMPARE_SCHEMA},
)
GATE = SchemaFile(
    REFERENCE / "gate.schema.json",
    "gate",
    Gate,
    {"Gate": GATE_SCHEMA, "Comparison": COMPARE_SCHEMA},
    # Written beside the fields of the record, from which it follows.
    extra_keys={"Gate": {"verdict": (_VERDICT, {"enum": sorted(get_args(GateVerdict))})}},
)
WHATIF = SchemaFile(
    REFERENCE / "whatif.schema.json",
    "what-if",
    WhatIf,
    {"WhatIf": WHATIF_SCHEMA},
)
PREDICT = SchemaFile(
    REFERENCE / "predict.schema.json",
    "prediction",
    Prediction,
    {"Prediction": PREDICT_SCHEMA},
)
CHANGES = SchemaFile(
    REFERENCE / "predicted-changes.schema.json",
    "predicted changes",
    PredictedChanges,
    {"PredictedChanges": PREDICTED_CHANGES_SCHEMA},
)
JUDGE = SchemaFile(
    REFERENCE / "judge.schema.json",
    "judgement of a patch",
    PatchJudgement,
    {"PatchJudgement": JUDGE_SCHEMA, "Comparison": COMPARE_SCHEMA},
)
FILES = (ANALYSIS, COMPARE, GATE, JUDGE, WHATIF, PREDICT, CHANGES)


def schema(of: SchemaFile) -> dict[str, Any]:
    """The JSON Schema with a description and a unit for each key."""
    generated = msgspec.json.schema(of.root)["$defs"]
    records = {record.__name__: record for record in _records(of.root)}
    assert records.keys() == generated.keys(), "records and schema differ"
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{of.names[of.root.__name__].replace('/', ':')}",
        "title": f"bottleneck {of.title}",
        "description": "Durations are microseconds per step, shares lie in 0-1, null means unknown.",
        "$ref": f"#/$defs/{of.root.__name__}",
        "$defs": {name: _describe(of, records[name], generated[name]) for name in sorted(generated)},
    }


def schema_text(of: SchemaFile) -> str:
    """The schema as it is published."""
    return json.dumps(schema(of), indent=1, ensure_ascii=False) + "\n"


def tables(of: SchemaFile, shown: Collection[str] = ()) -> str:
    """The tables of keys of a file, one per record, that of the whole file first; what was shown is left out."""
    generated = schema(of)["$defs"]
    lines: list[str] = []
    for record in sorted(_records(of.root), key=lambda record: (record is not of.root, record.__name__)):
        if record.__name__ in shown:
            continue
        described = generated[record.__name__]
        lines += [f"### {record.__name__}", "", described["description"], ""]
        lines += ["| key | type | unit | meaning |", "|---|---|---|---|"]
        for key, (meaning, unit) in _docs(of, record).items():
            lines.append(f"| `{key}` | {_type(described['properties'][key])} | {unit} | {meaning} |")
        lines.append("")
    return "\n".join(lines)


def page_text() -> str:
    """The reference page with its tables renewed, each record once; the text around them is kept."""
    files = {of.file.name.partition(".")[0]: of for of in FILES}
    shown: set[str] = set()

    def renew(match: re.Match[str]) -> str:
        of = files[match[2]]
        text = tables(of, shown)
        shown.update(record.__name__ for record in _records(of.root))
        return f"{match[1]}\n{text}\n{match[3]}"

    return _BLOCK.sub(renew, PAGE.read_text(encoding="utf-8"))


def _records(root: Any) -> Iterator[type]:
    """The record and all records that its fields hold, each once."""
    found: dict[type, None] = {}
    waiting = [root]
    while waiting:
        kind = waiting.pop()
        waiting += get_args(kind)
        if isinstance(kind, type) and is_record(kind) and kind not in found:
            found[kind] = None
            waiting += get_type_hints(kind).values()
    return iter(found)


def _docs(of: SchemaFile, record: type) -> dict[str, Doc]:
    """Meaning and unit by key, "schema" and "version" first; AssertionError for a field without a ``Doc``."""
    hints = get_type_hints(record, include_extras=True)
    docs = {key: next((part for part in get_args(hint) if isinstance(part, Doc)), None) for key, hint in hints.items()}
    docs |= {key: doc for key, (doc, _) in of.extra_keys.get(record.__name__, {}).items()}
    first = [key for key in ("schema", "version", *of.extra_keys.get(record.__name__, {})) if key in docs]
    ordered: dict[str, Doc] = {}
    for key in (*first, *docs):
        doc = docs[key]
        assert doc is not None, f"{record.__name__}.{key} has no Doc"
        ordered[key] = doc
    return ordered


def _describe(of: SchemaFile, record: type, generated: dict[str, Any]) -> dict[str, Any]:
    """The schema of one record, with our descriptions."""
    name, extra = record.__name__, of.extra_keys.get(record.__name__, {})
    properties = {**generated["properties"], **{key: part for key, (_, part) in extra.items()}}
    required = [*extra, *generated["required"]]
    if name in of.names:
        properties["schema"] = {"const": of.names[name]}
        required = ["schema", *required]
    described = {key: {**properties[key], "description": _description(doc)} for key, doc in _docs(of, record).items()}
    summary = " ".join((inspect.getdoc(record) or "").partition("\n\n")[0].split())
    return {**generated, "title": name, "description": summary, "properties": described, "required": required}


def _description(doc: Doc) -> str:
    return f"{doc.description} ({doc.unit})" if doc.unit else doc.description


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


def main() -> None:
    """Writes all files."""
    for of in FILES:
        of.file.write_text(schema_text(of), encoding="utf-8")
    PAGE.write_text(page_text(), encoding="utf-8")


if __name__ == "__main__":
    main()
