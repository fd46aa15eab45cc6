"""Alerts as GitHub, GitLab and SARIF readers parse them: at the right line, and nothing in a name acts."""

import json
import re
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from bottleneck.report.ci.annotations import MOST, is_inside
from bottleneck.report.ci.annotations import render_github as render
from bottleneck.report.ci.annotations import render_gitlab as gitlab_render
from bottleneck.report.ci.annotations import render_sarif as sarif_render
from bottleneck.report.ci.outputs import to_openmetrics as metrics
from bottleneck.report.text import clean
from bottleneck.schema.gate_result import Gate
from tests.report.gates import COPY, COUNTED, CRASHED, GATES, HOSTILE, ROPE, change, gate, limit

EACH = pytest.mark.parametrize("gate", GATES.values(), ids=GATES)


@dataclass(frozen=True)
class Command:
    name: str
    properties: dict[str, str]
    message: str


def unescape(text: str, marks: dict[str, str]) -> str:
    for mark, character in marks.items():
        text = text.replace(mark, character)
    return text


DATA = {"%0D": "\r", "%0A": "\n", "%25": "%"}
PROPERTY = {"%0D": "\r", "%0A": "\n", "%3A": ":", "%2C": ",", "%25": "%"}


def parse(line: str) -> Command:
    """A line as TryParseV2 of the runner reads it: ends of properties first, then each at its first '='."""
    text = line.lstrip()
    assert text.startswith("::")
    end = text.index("::", 2)
    name, _, told = text[2:end].partition(" ")
    pairs = [pair.split("=", 1) for pair in told.strip().split(",") if pair]
    properties = {key.strip(): unescape(value, PROPERTY) for key, value in pairs}
    return Command(name, properties, unescape(text[end + 2 :], DATA))


def commands(gate: Gate) -> list[Command]:
    return [parse(line) for line in render(gate).splitlines()]


@EACH
def test_every_line_is_one_annotation_and_nothing_else(gate: Gate) -> None:
    for line in render(gate).splitlines():
        assert parse(line).name in {"error", "warning", "notice"}
        assert set(parse(line).properties) in ({"title"}, {"file", "line", "title"})
        assert "##[" not in line


def test_hostile_names_come_back_as_text() -> None:
    found = commands(GATES["hostile"])
    assert len(found) == 4  # the verdict, a line of code, what has no line inside of the repository, and what is better
    assert found[1].properties["file"].startswith("a,b:c/\\x1b[31mred")
    assert found[1].properties["line"] == "3"
    assert clean("::error file=x,line=1::injected") in found[1].message
    assert "\r" not in "".join(command.message for command in found)


def test_what_one_line_of_code_did_is_one_annotation_at_that_line() -> None:
    first, copy, item, *_ = commands(GATES["counters"])
    assert first.name == "notice" and first.message.startswith("FAIL, exit code 1: ")
    assert (copy.name, copy.properties["file"], copy.properties["line"]) == ("error", "model/rope.py", "88")
    assert copy.properties["title"] == "bottleneck gate: bench/train_step.py"
    assert copy.message.splitlines() == [
        "h2d_copies 0 to 24 per step, limit +0",
        "h2d_bytes 0 to 12.6 MB per step, limit +0",
        "launches 303 to 327 per step, limit +0",
        "+24 aten::copy_ in decoder.rotary at model/rope.py:88, changed here",
        COUNTED.fix.text,
    ]
    assert (item.properties["file"], item.properties["line"]) == ("train.py", "141")


def test_a_slowdown_stands_at_the_line_that_takes_more_time() -> None:
    _, slower = commands(GATES["timed"])
    assert (slower.properties["file"], slower.properties["line"]) == ("model/rope.py", "88")
    assert "+7.6 % (98 %: +5.1 % to +9.9 %) over 14 pairs" in slower.message


def test_what_has_no_line_stands_at_the_program() -> None:
    assert commands(GATES["crashed"])[1].properties["file"] == "bench/crash.py"


def test_a_pass_is_a_notice_of_the_verdict_alone() -> None:
    assert [command.name for command in commands(GATES["passed"])] == ["notice"]


def test_what_got_better_is_a_notice() -> None:
    assert "notice" in {command.name for command in commands(GATES["improved"])[1:]}


def test_no_more_of_a_kind_are_printed_than_github_shows_and_the_last_says_so() -> None:
    many = [replace(CRASHED, name=f"{n}.py", program=(f"{n}.py",)) for n in range(14)]
    found = commands(gate(*many, exit_code=4, sentence="14 of 14 workloads did not run"))
    errors = [command for command in found if command.name == "error"]
    assert len(errors) == MOST
    assert errors[-1].message.endswith("4 more are in gate.md")


def test_a_line_of_code_that_did_much_does_not_fill_the_page() -> None:
    copy = next(change for change in COUNTED.counters if change.culprits)
    many = tuple(replace(copy, metric=f"module:m{n}.launches") for n in range(50))
    (error,) = [
        c for c in commands(gate(replace(COUNTED, counters=many), exit_code=1, sentence=".")) if c.name == "error"
    ]
    assert len(error.message.splitlines()) == 21
    assert error.message.endswith("in gate.md: 32 more lines")


def test_notices_leave_room_for_the_verdict() -> None:
    better = GATES["improved"].results[0]
    many = [replace(better, name=f"{n}.py", program=(f"{n}.py",)) for n in range(14)]
    found = commands(gate(*many, exit_code=0, sentence="14 workloads passed."))
    assert sum(command.name == "notice" for command in found) == MOST


def test_the_parser_of_this_test_is_fooled_by_what_is_not_escaped() -> None:
    line = HOSTILE.why[1].sentence
    assert parse(line).name == "error"
    assert parse(f"::error title={line}::x").message != "x"


GITLAB_EACH = pytest.mark.parametrize("gate", GATES.values(), ids=GATES)


def issues(gate: Gate) -> list[dict[str, Any]]:
    read = json.loads(gitlab_render(gate))
    assert isinstance(read, list)
    return read


@GITLAB_EACH
def test_every_issue_has_what_gitlab_reads(gate: Gate) -> None:
    for issue in issues(gate):
        assert issue["description"] and issue["check_name"].startswith("bottleneck/")
        assert issue["severity"] in {"info", "minor", "major", "critical", "blocker"}
        assert re.fullmatch(r"[0-9a-f]{32}", issue["fingerprint"])
        assert is_inside(issue["location"]["path"]) and not issue["location"]["path"].startswith("./")
        assert issue["location"]["lines"]["begin"] >= 1


@GITLAB_EACH
def test_fingerprints_are_unique(gate: Gate) -> None:
    marks = [issue["fingerprint"] for issue in issues(gate)]
    assert len(set(marks)) == len(marks)


def test_a_pass_and_what_got_better_are_no_issues() -> None:
    assert issues(GATES["passed"]) == []
    assert {issue["severity"] for issue in issues(GATES["improved"])} == {"minor"}  # the counter without a baseline


def test_an_issue_names_its_workload_counter_line_and_cause() -> None:
    launches = next(issue for issue in issues(GATES["counters"]) if issue["check_name"] == "bottleneck/launches")
    assert launches["description"] == (
        "bench/train_step.py: launches 303 to 327 per step, limit +0 - "
        "+24 aten::copy_ in decoder.rotary at model/rope.py:88, changed here"
    )
    assert launches["location"] == {"path": "model/rope.py", "lines": {"begin": 88}}


LABEL = r'[a-z]+="(?:[^"\\\n]|\\[\\"n])*"'
SAMPLE = re.compile(rf"([a-z_]+)(\{{{LABEL}(?:,{LABEL})*\}})? (-?[0-9.e+-]+)")


@GITLAB_EACH
def test_every_line_of_the_metrics_parses_and_each_series_is_there_once(gate: Gate) -> None:
    *lines, end = metrics(gate).splitlines()
    assert end == "# EOF"
    declared, seen = set(), set()
    for line in lines:
        if line.startswith("# TYPE "):
            declared.add(line.split()[2])
            continue
        found = SAMPLE.fullmatch(line)
        assert found is not None, line
        assert found[1] in declared and (found[1], found[2]) not in seen
        seen.add((found[1], found[2]))


def test_counters_and_ratios_are_metrics() -> None:
    text = metrics(GATES["slowed"])
    assert 'bottleneck_counter{workload="bench/train_step.py",metric="launches"} 327\n' in text
    assert 'bottleneck_step_ratio{workload="bench/train_step.py",bound="median"} 1.076\n' in text


def test_two_limits_on_one_metric_are_one_issue() -> None:
    twice = replace(
        COUNTED, counters=(change("ops", 1, 2, "broken"), change("ops", 1, 2, "broken", limit=limit("x", "+9")))
    )
    assert len(issues(gate(twice, exit_code=1, sentence="."))) == 1


SARIF_EACH = pytest.mark.parametrize("gate", GATES.values(), ids=GATES)


def run_of(gate: Gate) -> dict[str, Any]:
    log = json.loads(sarif_render(gate))
    assert log["version"] == "2.1.0" and log["$schema"].endswith("sarif-2.1.0.json")
    (run,) = log["runs"]
    assert isinstance(run, dict)
    return run


@SARIF_EACH
def test_the_tool_and_its_rules_are_as_the_standard_wants_them(gate: Gate) -> None:
    driver = run_of(gate)["tool"]["driver"]
    assert driver["name"] == "bottleneck gate"
    ids = [rule["id"] for rule in driver["rules"]]
    assert len(set(ids)) == len(ids)
    assert all(rule["shortDescription"]["text"] and rule["fullDescription"]["text"] for rule in driver["rules"])


@SARIF_EACH
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


@SARIF_EACH
def test_every_place_is_a_line_of_a_relative_and_encoded_uri(gate: Gate) -> None:
    for place in physical(run_of(gate)):
        uri = place["artifactLocation"]["uri"]
        assert re.fullmatch(r"(?:[A-Za-z0-9._~/-]|%[0-9A-F]{2})+", uri)
        parts = urlsplit(uri)
        assert not (parts.scheme or parts.netloc or parts.query or parts.fragment)
        assert is_inside(unquote(uri))
        assert place["region"]["startLine"] >= 1


@SARIF_EACH
def test_how_it_ended_is_reported(gate: Gate) -> None:
    (invocation,) = run_of(gate)["invocations"]
    assert invocation["exitCode"] == gate.exit_code
    assert invocation["executionSuccessful"] == (gate.exit_code in {0, 1})


def test_a_broken_counter_is_an_error_of_its_rule_at_its_line() -> None:
    found = {result["ruleId"]: result for result in run_of(GATES["slowed"])["results"]}
    assert {"h2d_copies", "h2d_bytes", "launches", "syncs", "step-time", "copies"} == set(found)
    launches = found["launches"]
    assert launches["level"] == "error"
    assert launches["message"]["text"].splitlines()[0] == "bench/train_step.py: launches 303 to 327 per step, limit +0"
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
