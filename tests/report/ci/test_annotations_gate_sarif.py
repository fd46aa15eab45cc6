"""SARIF holds to the rules of the standard that servers depend on, and its paths and fingerprints to ours.

The rules are those of SARIF 2.1.0 (OASIS): a version and $schema, at least one run with a tool.driver.name, rules of
unique ids, results with a message.text, a level of none, note, warning or error and a ruleIndex that points at the rule
of the ruleId, uris that are valid relative references, lines from 1, partialFingerprints of strings, invocations with
executionSuccessful. GitHub besides shows only results with a physicalLocation, and wants a shortDescription of rules.
"""

import json
import re
from dataclasses import replace
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from bottleneck.report.ci.annotations import is_inside
from bottleneck.report.ci.annotations import render_sarif as render
from bottleneck.schema.gate_result import Gate
from tests.report.gates import COPY, COUNTED, GATES, ROPE, gate

EACH = pytest.mark.parametrize("gate", GATES.values(), ids=GATES)


def run_of(gate: Gate) -> dict[str, Any]:
    log = json.loads(render(gate))
    assert log["version"] == "2.1.0" and log["$schema"].endswith("sarif-2.1.0.json")
    (run,) = log["runs"]
    assert isinstance(run, dict)
    return run


@EACH
def test_the_tool_and_its_rules_are_as_the_standard_wants_them(gate: Gate) -> None:
    driver = run_of(gate)["tool"]["driver"]
    assert driver["name"] == "bottleneck gate"
    ids = [rule["id"] for rule in driver["rules"]]
    assert len(set(ids)) == len(ids)
    assert all(rule["shortDescription"]["text"] and rule["fullDescription"]["text"] for rule in driver["rules"])


@EACH
def test_results_are_as_the_standard_wants_them(gate: Gate) -> None:
    run = run_of(gate)
    rules = run["tool"]["driver"]["rules"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in {"none", "note", "warning", "error"}
        assert result["message"]["text"]
        assert re.fullmatch(r"[0-9a-f]{32}", result["partialFingerprints"]["bottleneckGate/v1"])
        assert len(result["locations"]) == 1


def physical(run: dict[str, Any]) -> list[dict[str, Any]]:
    places = [
        place for result in run["results"] for place in (*result["locations"], *result.get("relatedLocations", ()))
    ]
    return [place["physicalLocation"] for place in places]


@EACH
def test_every_place_is_a_line_of_a_relative_and_encoded_uri(gate: Gate) -> None:
    for place in physical(run_of(gate)):
        uri = place["artifactLocation"]["uri"]
        assert re.fullmatch(r"(?:[A-Za-z0-9._~/-]|%[0-9A-F]{2})+", uri)
        parts = urlsplit(uri)
        assert not (parts.scheme or parts.netloc or parts.query or parts.fragment)
        assert is_inside(unquote(uri))
        assert place["region"]["startLine"] >= 1


@EACH
def test_how_it_ended_is_told(gate: Gate) -> None:
    (invocation,) = run_of(gate)["invocations"]
    assert invocation["exitCode"] == gate.exit_code
    assert invocation["executionSuccessful"] == (gate.exit_code in {0, 1})


def test_a_broken_counter_is_an_error_of_its_rule_at_its_line() -> None:
    found = {result["ruleId"]: result for result in run_of(GATES["slowed"])["results"]}
    assert {"h2d_copies", "h2d_bytes", "launches", "syncs", "step-time", "copies"} == set(found)
    launches = found["launches"]
    assert launches["level"] == "error"
    assert launches["message"]["text"].splitlines()[0] == "bench/train_step.py: launches 303 -> 327 per step, limit +0"
    assert launches["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "model/rope.py"
    assert launches["locations"][0]["physicalLocation"]["region"] == {"startLine": 88}
    assert found["copies"]["level"] == "note"


def fingerprints(gate: Gate) -> list[str]:
    return [result["partialFingerprints"]["bottleneckGate/v1"] for result in run_of(gate)["results"]]


def test_fingerprints_stay_when_the_line_moves_and_the_numbers_change() -> None:
    moved = replace(COPY, change=25, site=replace(ROPE, line=91))
    counters = tuple(
        replace(change, after=(change.after or 0) + 1, culprits=(moved,)) if COPY in change.culprits else change
        for change in COUNTED.counters
    )
    later = gate(replace(COUNTED, counters=counters), exit_code=1, sentence=".")
    assert fingerprints(later) == fingerprints(GATES["counters"])


def test_fingerprints_tell_counters_lines_and_workloads_apart() -> None:
    marks = fingerprints(GATES["slowed"])
    assert len(set(marks)) == len(marks)
    renamed = gate(replace(COUNTED, name="other"), exit_code=1, sentence=".")
    assert not set(fingerprints(renamed)) & set(marks)


def test_a_second_line_that_did_it_is_a_related_location() -> None:
    other = replace(COPY, site=replace(ROPE, line=120))
    counters = tuple(
        replace(change, culprits=(COPY, other)) for change in COUNTED.counters if change.metric == "launches"
    )
    (result,) = run_of(gate(replace(COUNTED, counters=counters), exit_code=1, sentence="."))["results"]
    assert result["relatedLocations"][0]["id"] == 1
    assert result["relatedLocations"][0]["physicalLocation"]["region"] == {"startLine": 120}


@pytest.mark.parametrize(
    ("file", "inside"),
    [
        ("train.py", True), ("a/b.py", True), ("a:b.py", True), ("..a/b.py", True), (".hidden/x.py", True),
        ("", False), ("/etc/passwd", False), ("../x.py", False), ("a/../../x.py", False), ("C:\\x.py", False),
        ("C:/x.py", False), ("file:///x.py", False), ("https://x/y.py", False), ("\\\\host\\share", False),
    ],
)  # fmt: skip
def test_what_is_a_file_of_the_repository(file: str, inside: bool) -> None:
    assert is_inside(file) == inside


@pytest.mark.parametrize("name", ["new", "new, timed"])
def test_a_workload_without_a_lock_file_is_one_warning_that_says_so(name: str) -> None:
    (result,) = run_of(GATES[name])["results"]
    assert (result["ruleId"], result["level"]) == ("nothing-measured", "warning")
    assert "there is no lock-file yet" in result["message"]["text"]


def test_a_time_that_is_undecided_beside_a_regression_is_a_warning_of_its_own() -> None:
    found = {result["ruleId"]: result for result in run_of(GATES["wavered"])["results"]}
    assert found["step-time"]["level"] == "warning"
    assert "undo that" not in found["step-time"]["message"]["text"]
    assert found["step-time"]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "bench/train_step.py"


def test_a_path_has_no_dot_before_it() -> None:
    dotted = replace(COPY, site=replace(ROPE, file="./model/rope.py"))
    counters = tuple(replace(each, culprits=(dotted,)) for each in COUNTED.counters if each.metric == "launches")
    (place,) = physical(run_of(gate(replace(COUNTED, counters=counters), exit_code=1, sentence=".")))
    assert place["artifactLocation"]["uri"] == "model/rope.py"


def test_a_path_outside_of_the_repository_is_no_location() -> None:
    text = json.dumps([place["artifactLocation"] for place in physical(run_of(GATES["hostile"]))])
    assert "passwd" not in text and "up.py" not in text and "pyproject.toml" in text
