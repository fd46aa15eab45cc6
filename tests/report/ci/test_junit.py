"""JUnit XML has the shape of junit-10.xsd of Jenkins' xunit plugin, counts what it holds, and holds text as text.

No schema is at hand in a test, so what it demands stands here: which elements and attributes there are, which of them
must be, and how a time is written (SUREFIRE_TIME).
"""

import re
from xml.etree import ElementTree as ET

import pytest

from bottleneck.report.ci.junit import render
from bottleneck.schema.gate_result import Gate
from tests.report.gates import GATES

EACH = pytest.mark.parametrize("gate", GATES.values(), ids=GATES)

# element: its children, the attributes that it must have, and those that it may have
SHAPE: dict[str, tuple[set[str], set[str], set[str]]] = {
    "testsuites": ({"testsuite"}, set(), {"name", "time", "tests", "failures", "errors"}),
    "testsuite": (
        {"properties", "testcase", "system-out", "system-err"},
        {"name", "tests", "failures", "errors"},
        {"group", "time", "skipped", "timestamp", "hostname", "id", "package", "file", "log", "url"},
    ),
    "properties": ({"property"}, set(), set()),
    "property": (set(), {"name", "value"}, set()),
    "testcase": ({"skipped", "error", "failure", "system-out", "system-err"}, {"name"}, {"time", "classname", "group"}),
    "skipped": (set(), set(), {"type", "message"}),
    "error": (set(), set(), {"type", "message"}),
    "failure": (set(), set(), {"type", "message"}),
    "system-out": (set(), set(), set()),
}
TIME = re.compile(r"[0-9]+(?:\.[0-9]*)?")


@EACH
def test_elements_and_attributes_are_those_of_the_schema(gate: Gate) -> None:
    for element in ET.fromstring(render(gate)).iter():
        children, required, allowed = SHAPE[element.tag]
        assert {child.tag for child in element} <= children
        assert required <= set(element.attrib) <= required | allowed
        assert TIME.fullmatch(element.get("time", "0"))


@EACH
def test_what_is_counted_is_there(gate: Gate) -> None:
    root = ET.fromstring(render(gate))
    (suite,) = root
    for tag, name in (("testcase", "tests"), ("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        assert int(suite.get(name, "")) == len(list(suite.iter(tag)))
    assert [root.get(name) for name in ("tests", "failures", "errors")] == [
        suite.get(name) for name in ("tests", "failures", "errors")
    ]


@EACH
def test_tests_have_names_of_their_own(gate: Gate) -> None:
    names = [(case.get("classname"), case.get("name")) for case in ET.fromstring(render(gate)).iter("testcase")]
    assert len(set(names)) == len(names)


@EACH
def test_no_character_is_illegal_in_xml(gate: Gate) -> None:
    assert not re.search(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", render(gate))


def outcomes(name: str, workload: str) -> dict[str, str]:
    """Of a workload's tests, by name: what became of each."""
    cases = [case for case in ET.fromstring(render(GATES[name])).iter("testcase") if case.get("classname") == workload]
    told = {"failure", "error", "skipped"}
    return {str(case.get("name")): next((child.tag for child in case if child.tag in told), "passed") for case in cases}


def test_a_group_of_counters_fails_with_its_worst_and_the_time_that_did_not_run_is_skipped() -> None:
    assert outcomes("counters", "bench/train_step.py") == {
        "run": "passed",
        "work": "passed",
        "compilation": "passed",
        "copies": "failure",
        "launches": "failure",
        "syncs": "failure",
        "modules": "passed",
        "memory": "skipped",
        "step time": "skipped",
    }


def test_a_crash_is_an_error_of_the_run() -> None:
    assert outcomes("crashed", "bench/crash.py") == {"run": "error"}


def test_counters_that_vanished_are_errors() -> None:
    assert outcomes("unmeasured", "bench/empty.py") == {
        "run": "passed", "launches": "error", "work": "error", "step time": "skipped",
    }  # fmt: skip


def test_what_is_undecided_is_an_error_only_where_that_fails_the_build() -> None:
    assert outcomes("undecided", "bench/noisy.py")["step time"] == "error"
    assert outcomes("tolerated", "bench/noisy.py")["step time"] == "skipped"


def test_a_failure_says_before_after_limit_cause_and_fix() -> None:
    cases = ET.fromstring(render(GATES["counters"])).iter("failure")
    told = next(case for case in cases if case.get("type") == "bottleneck.launches")
    assert told.get("message") == "launches 303 to 327 per step, limit +0"
    lines = (told.text or "").splitlines()
    assert lines[:2] == [
        "launches: 303 to 327, over budget",
        "  +24 aten::copy_ in decoder.rotary at model/rope.py:88, changed here",
    ]
    assert lines[-1].startswith("undo that, or: bottleneck accept")


def test_hostile_text_comes_back_as_text() -> None:
    texts = [element.get("message", "") for element in ET.fromstring(render(GATES["hostile"])).iter("failure")]
    assert any("]]> ::error file=x,line=1::injected" in text and "<script>" in text for text in texts)
