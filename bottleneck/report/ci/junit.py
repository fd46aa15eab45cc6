"""The gate's result as JUnit XML.

The elements and attributes are those of junit-10.xsd of Jenkins' xunit plugin, as pytest writes them too.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree as ET

from bottleneck.report.ci import phrases
from bottleneck.report.text import clean
from bottleneck.schema.gate_result import CounterChange, CounterVerdict, Gate, TimeResult, WorkloadResult
from bottleneck.schema.numerics import NumericsResult

_TEXT = 2000

# Counters that are one test together, because one line of code changes them together.
_GROUPS: Mapping[str, tuple[str, ...]] = {
    "work": ("ops", "flops", "float64_ops", "autograd_nodes", "module_calls"),
    "launches": ("launches", "kernel_names"),
    "syncs": ("syncs",),
    "copies": ("copies", "h2d_copies", "h2d_bytes", "d2h_copies", "d2h_bytes"),
    "compilation": ("graphs", "graph_breaks", "recompiles", "cudagraph_skips"),
    "memory": ("allocations", "allocated_bytes", "peak_bytes"),
}
_GROUP_OF = {name: group for group, names in _GROUPS.items() for name in names}

Outcome = Literal["failure", "error", "skipped", "passed"]
_WORST: tuple[Outcome, ...] = ("error", "failure", "passed", "skipped")


@dataclass(frozen=True)
class _Case:
    """A test case: outcome, message and the lines beneath it."""

    name: str
    outcome: Outcome
    message: str
    body: tuple[str, ...] = ()
    seconds: float = 0.0


def render(gate: Gate) -> str:
    """Renders one test suite.

    A workload has a test per group of counters, one for its time and one for its run.

    Where the gate fails and no test does, there is one for all workloads.
    """
    cases = [(result.name, case) for result in gate.results for case in _cases(result, gate.exit_code)]
    if gate.exit_code and all(case.outcome in {"passed", "skipped"} for _, case in cases):
        cases.append(("all workloads", _Case("verdict", "error", phrases.closing(gate), gate.warnings)))
    totals = {
        "tests": str(len(cases)),
        "failures": str(sum(case.outcome == "failure" for _, case in cases)),
        "errors": str(sum(case.outcome == "error" for _, case in cases)),
    }
    root = ET.Element("testsuites", {"name": "bottleneck gate", "time": _seconds(gate.seconds), **totals})
    skipped = str(sum(case.outcome == "skipped" for _, case in cases))
    suite = ET.SubElement(root, "testsuite", {**root.attrib, "skipped": skipped})
    values = {
        "verdict": phrases.verdict_words(gate),
        "exit_code": str(gate.exit_code),
        "base": gate.base,
        "candidate": gate.candidate,
        "version": gate.version,
    }
    properties = ET.SubElement(suite, "properties")
    for name, value in values.items():
        ET.SubElement(properties, "property", {"name": name, "value": clean(value, _TEXT)})
    for workload, case in cases:
        _case(suite, workload, case)
    ET.SubElement(suite, "system-out").text = clean(phrases.closing(gate), _TEXT)
    ET.indent(root, " ")
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _case(suite: ET.Element, workload: str, case: _Case) -> None:
    attributes = {"classname": clean(workload, _TEXT), "name": case.name, "time": _seconds(case.seconds)}
    element = ET.SubElement(suite, "testcase", attributes)
    body = "\n".join(clean(line, _TEXT) for line in case.body)
    if case.outcome == "passed":
        if body:
            ET.SubElement(element, "system-out").text = body
        return
    message = {"message": clean(case.message, _TEXT)}
    kind = {} if case.outcome == "skipped" else {"type": f"bottleneck.{case.name.replace(' ', '-')}"}
    ET.SubElement(element, case.outcome, {**message, **kind}).text = body


def _cases(result: WorkloadResult, exit_code: int) -> list[_Case]:
    """Lists the tests of a workload: run, counters, outputs, time.

    That of the run holds what no other does.
    """
    groups: dict[str, list[CounterChange]] = {}
    for change in result.counters:
        counter = phrases.counter_of(change.metric)
        group = _GROUP_OF.get(counter.name, "other counters") if counter else "other counters"
        groups.setdefault("modules" if change.metric.startswith("module:") else group, []).append(change)
    cases = [_group_case(name, changes, result) for name, changes in groups.items()]
    if result.numerics is not None:
        cases.append(_outputs_case(result.numerics, result.fix.text))
    if result.time is not None:
        cases.append(_time_case(result.time, result, exit_code))
    return [_run_case(result, exit_code, cases), *cases]


def _run_case(result: WorkloadResult, exit_code: int, cases: list[_Case]) -> _Case:
    """Builds the test of the run itself.

    Passed where something was measured, skipped where that is optional.
    """
    body = (*(cause.text for cause in result.why), result.fix.text)
    if result.verdict == "failed":
        return _Case("run", "error", result.what, body, result.seconds)
    is_reported = any(case.outcome in {"error", "failure"} for case in cases)
    if result.verdict == "pass" or is_reported:
        return _Case("run", "passed", "", seconds=result.seconds)
    outcome: Outcome = "failure" if result.verdict == "fail" else "error" if exit_code == 5 else "skipped"
    return _Case("run", outcome, result.what or phrases.workload_verdict(result), body, result.seconds)


def _group_case(name: str, changes: list[CounterChange], result: WorkloadResult) -> _Case:
    outcomes = [_OUTCOMES.get(change.verdict, "passed") for change in changes]
    worst = min(outcomes, key=_WORST.index)
    message = "; ".join(
        _message(changed) for changed, outcome in zip(changes, outcomes, strict=True) if outcome == worst
    )
    body = []
    for change in changes:
        before, after, _ = phrases.amounts(change.metric, change.before, change.after)
        body.append(f"{change.metric}: {before} to {after}, {phrases.CHANGES[change.verdict]}")
        body += [f"  {cause}" for cause in phrases.describe_cause(change)]
    fix = [result.fix.text] if worst in {"failure", "error"} and result.fix.text else []
    return _Case(name, worst, message, (*body, *fix))


_OUTCOMES: Mapping[CounterVerdict, Outcome] = {
    "broken": "failure",
    "gone": "error",
    "removed": "failure",
    "new": "skipped",
    "unstable": "skipped",
    "not compared": "skipped",
}


def _message(change: CounterChange) -> str:
    if change.verdict in {"new", "unstable", "not compared", "gone", "removed"}:
        return f"{change.metric} {phrases.CHANGES[change.verdict]}" + (f": {change.reason}" if change.reason else "")
    return phrases.describe_change(change)


def _outputs_case(numerics: NumericsResult, fix: str) -> _Case:
    """The test of the step's outputs; skipped where they were not compared."""
    unstable = [f"{name}: {why}" for name, why in numerics.unstable.items()]
    if numerics.verdict == "same":
        return _Case("outputs", "passed", "", tuple(unstable))
    if numerics.verdict == "differs":
        body = [*map(phrases.describe_output, numerics.changes), *unstable, *([fix] if fix else [])]
        return _Case("outputs", "failure", phrases.outputs_in_short(numerics), tuple(body))
    return _Case("outputs", "skipped", numerics.reason or "not compared", tuple(unstable))


def _time_case(time: TimeResult, result: WorkloadResult, exit_code: int) -> _Case:
    outcomes: dict[str, Outcome] = {"fine": "passed", "faster": "passed", "slower": "failure"}
    outcome = outcomes.get(time.verdict, "skipped")
    if time.verdict == "undecided" and result.verdict == "undecided" and exit_code == 5:
        outcome = "error"
    story = (*(cause.text for cause in result.why), result.fix.text) if outcome in {"failure", "error"} else ()
    return _Case("step time", outcome, phrases.time_summary(time), (phrases.describe_time(time), *story), time.seconds)


def _seconds(seconds: float) -> str:
    """Seconds with three decimals; the schema knows no infinite time."""
    return f"{max(seconds, 0.0):.3f}" if math.isfinite(seconds) else "0.000"
