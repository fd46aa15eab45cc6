"""GitLab's code quality report has the keys that it reads; OpenMetrics text parses line by line."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from bottleneck.report.ci.annotations import is_inside
from bottleneck.report.ci.annotations import render_gitlab as render
from bottleneck.report.ci.openmetrics import render as metrics
from bottleneck.schema.gate_result import Gate
from tests.report.gates import COUNTED, GATES, change, gate, limit

EACH = pytest.mark.parametrize("gate", GATES.values(), ids=GATES)


def issues(gate: Gate) -> list[dict[str, Any]]:
    read = json.loads(render(gate))
    assert isinstance(read, list)
    return read


@EACH
def test_every_issue_has_what_gitlab_reads(gate: Gate) -> None:
    for issue in issues(gate):
        assert issue["description"] and issue["check_name"].startswith("bottleneck/")
        assert issue["severity"] in {"info", "minor", "major", "critical", "blocker"}
        assert re.fullmatch(r"[0-9a-f]{32}", issue["fingerprint"])
        assert is_inside(issue["location"]["path"]) and not issue["location"]["path"].startswith("./")
        assert issue["location"]["lines"]["begin"] >= 1


@EACH
def test_fingerprints_are_unique(gate: Gate) -> None:
    marks = [issue["fingerprint"] for issue in issues(gate)]
    assert len(set(marks)) == len(marks)


def test_a_pass_and_what_got_better_are_no_issues() -> None:
    assert issues(GATES["passed"]) == []
    assert {issue["severity"] for issue in issues(GATES["improved"])} == {"minor"}  # the counter without a baseline


def test_an_issue_names_its_workload_counter_line_and_cause() -> None:
    launches = next(issue for issue in issues(GATES["counters"]) if issue["check_name"] == "bottleneck/launches")
    assert launches["description"] == (
        "bench/train_step.py: launches 303 -> 327 per step, limit +0 - "
        "+24 aten::copy_ in decoder.rotary at model/rope.py:88, changed here"
    )
    assert launches["location"] == {"path": "model/rope.py", "lines": {"begin": 88}}


LABEL = r'[a-z]+="(?:[^"\\\n]|\\[\\"n])*"'
SAMPLE = re.compile(rf"([a-z_]+)(\{{{LABEL}(?:,{LABEL})*\}})? (-?[0-9.e+-]+)")


@EACH
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
