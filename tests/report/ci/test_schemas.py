"""JUnit, SARIF and code quality files are valid by the schemas of those who read them, whatever stands in a name."""

import json
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import pytest

from bottleneck.report.ci.outputs import GATE_FORMATS
from bottleneck.schema.gate_result import Gate
from tests.report.ci.xsd import Schema
from tests.report.gates import GATES, HOSTILE_TEXTS

FOLDER = Path(__file__).parent / "schemas"
JUNIT = Schema(FOLDER / "junit-10.xsd")
SARIF = jsonschema.Draft4Validator(json.loads((FOLDER / "sarif-2.1.0.json").read_text(encoding="utf-8")))
CODE_QUALITY = jsonschema.Draft202012Validator(json.loads((FOLDER / "code-quality.json").read_text(encoding="utf-8")))

TEXTS = (
    *HOSTILE_TEXTS,
    "\U0001f525\U0001f469\u200d\U0001f4bb\U0001f1ea\U0001f1fa",
    "x" * 100_000,
    "\ud83d",
    "",
    " \t\n",
)
# Words that the code knows and no program chooses.
CHOSEN = {"verdict", "metric", "schema", "lock", "kind", "match", "group", "account"}


def poisoned(value: Any, text: str) -> Any:
    """The record with this text after every string in it that a program, a path or a message chooses."""
    if isinstance(value, str):
        return value + text
    if isinstance(value, tuple):
        return tuple(poisoned(each, text) for each in value)
    if is_dataclass(value) and not isinstance(value, type):
        changes = {
            each.name: poisoned(getattr(value, each.name), text) for each in fields(value) if each.name not in CHOSEN
        }
        return replace(value, **changes)
    return value


def errors(form: str, gate: Gate) -> list[str]:
    """What the schema of a format does not allow in the file of a gate."""
    content = GATE_FORMATS[form].render(gate).encode("utf-8")  # no lone surrogate is left
    if form == "junit":
        return list(JUNIT.errors(ET.fromstring(content)))
    validator = SARIF if form == "sarif" else CODE_QUALITY
    return [each.message for each in validator.iter_errors(json.loads(content))]


FORM = pytest.mark.parametrize("form", ["junit", "sarif", "gitlab"])


@FORM
@pytest.mark.parametrize("gate", GATES.values(), ids=GATES)
def test_the_file_of_every_verdict_is_valid(form: str, gate: Gate) -> None:
    assert errors(form, gate) == []


@FORM
@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_no_text_in_a_gate_makes_its_file_invalid(form: str, text: str) -> None:
    for name in (
        "passed",
        "counters",
        "slowed",
        "tolerated",
        "undecided",
        "unmeasured",
        "crashed",
        "new",
        "improved",
        "removed",
        "other outputs",
    ):
        assert errors(form, poisoned(GATES[name], text)) == []


def test_a_text_reaches_the_files() -> None:
    for form in ("junit", "sarif", "gitlab"):
        assert "marked" in GATE_FORMATS[form].render(poisoned(GATES["counters"], "marked"))


@pytest.mark.parametrize(
    ("before", "after", "error"),
    [
        ("<testcase ", "<testcase colour='1' ", "<testcase> has colour"),
        ("tests=", "test=", "<testsuite> has no tests"),
        ('time="', 'time="1e', "SUREFIRE_TIME"),
        ("failure", "failing", "<failing> is no element"),
        ("<properties>", "text<properties>", "<testsuite> holds text"),
        ("</testsuites>", "<testcase name='x' /></testsuites>", "<testsuites> holds"),
    ],
)
def test_the_check_of_junit_finds_what_the_schema_does_not_allow(before: str, after: str, error: str) -> None:
    text = GATE_FORMATS["junit"].render(GATES["counters"])
    assert before in text
    broken = ET.fromstring(text.replace(before, after))
    assert any(error in each for each in JUNIT.errors(broken))


@pytest.mark.parametrize(
    ("form", "before", "after"),
    [
        ("sarif", '"level": "error"', '"level": "fatal"'),
        ("sarif", '"startLine": 88', '"startLine": 0'),
        ("gitlab", '"severity": "major"', '"severity": "bad"'),
        ("gitlab", '"path": "train.py"', '"path": "./train.py"'),
    ],
)
def test_the_schemas_refuse_what_is_wrong(form: str, before: str, after: str) -> None:
    text = GATE_FORMATS[form].render(GATES["counters"])
    assert before in text
    validator = SARIF if form == "sarif" else CODE_QUALITY
    assert list(validator.iter_errors(json.loads(text.replace(before, after))))


def test_a_schema_with_a_construct_that_is_not_checked_is_refused(tmp_path: Path) -> None:
    text = (FOLDER / "junit-10.xsd").read_text(encoding="utf-8").replace("xs:choice", "xs:all")
    (tmp_path / "other.xsd").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="all"):
        Schema(tmp_path / "other.xsd")
