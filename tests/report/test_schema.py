"""The JSON Schema and the guide say what analysis.json holds, and are current."""

import json
import re

import jsonschema
import pytest

from bottleneck.report.json_text import to_json
from bottleneck.schema.analysis import Analysis
from scripts.write_schema import ANALYSIS, FILES, PAGE, SchemaFile, page_text, schema, schema_text
from tests.report.samples import SAMPLES, gpu_overhead

PUBLISHED = json.loads(ANALYSIS.file.read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(PUBLISHED)
RENEW = "python -m scripts.write_schema renews it"


@pytest.mark.parametrize("of", FILES, ids=lambda of: of.title)
def test_a_published_schema_follows_from_the_records(of: SchemaFile) -> None:
    assert schema_text(of) == of.file.read_text(encoding="utf-8"), RENEW


def test_the_page_of_keys_follows_from_the_records() -> None:
    assert page_text() == PAGE.read_text(encoding="utf-8"), RENEW


def test_the_page_of_keys_has_each_record_once() -> None:
    headings = re.findall(r"^### ([A-Z]\w+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(headings) == len(set(headings))
    assert {record for of in FILES if of.title != "gate" for record in schema(of)["$defs"]} <= set(headings)


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(PUBLISHED)


@pytest.mark.parametrize("analysis", SAMPLES.values(), ids=SAMPLES)
def test_what_is_written_is_valid_by_the_published_schema(analysis: Analysis) -> None:
    VALIDATOR.validate(json.loads(to_json(analysis)))


@pytest.mark.parametrize(
    ("key", "value"),
    [("schema", "bottleneck/analysis/9"), ("verdict", None), ("kernels", [{"name": "x"}]), ("ledger", {})],
)
def test_the_schema_refuses_what_is_no_analysis(key: str, value: object) -> None:
    tree = json.loads(to_json(gpu_overhead()))
    assert not VALIDATOR.is_valid({**tree, key: value})


def test_every_key_has_words() -> None:
    for record in PUBLISHED["$defs"].values():
        assert record["description"]
        assert all(part["description"] for part in record["properties"].values())
