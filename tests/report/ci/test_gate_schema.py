"""The JSON Schema says what gate.json holds, and is current."""

import json

import jsonschema
import pytest

from bottleneck.report.ci.outputs import to_json
from bottleneck.schema.gate_result import Gate
from scripts.write_schema import GATE, schema_text
from tests.report.gates import GATES

PUBLISHED = json.loads(GATE.file.read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(PUBLISHED)


def test_the_published_schema_follows_from_the_records() -> None:
    assert schema_text(GATE) == GATE.file.read_text(encoding="utf-8"), "python -m scripts.write_schema"


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(PUBLISHED)


@pytest.mark.parametrize("gate", GATES.values(), ids=GATES)
def test_what_is_written_is_valid_by_the_published_schema(gate: Gate) -> None:
    VALIDATOR.validate(json.loads(to_json(gate)))


@pytest.mark.parametrize(
    ("key", "value"),
    [("schema", "bottleneck/gate/9"), ("verdict", "maybe"), ("exit_code", "1"), ("results", [{"name": "x"}])],
)
def test_the_schema_refuses_what_is_no_gate(key: str, value: object) -> None:
    assert not VALIDATOR.is_valid({**json.loads(to_json(GATES["slowed"])), key: value})


def test_every_key_has_words() -> None:
    for record in PUBLISHED["$defs"].values():
        assert record["description"]
        assert all(part["description"] for part in record["properties"].values())
