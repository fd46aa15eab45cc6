"""Verdicts and exit codes: what fails, what the settings let pass, and what --strict does not."""

from dataclasses import replace

import pytest

from bottleneck.gate.judging import exit_code, sentence_of, verdict_of
from bottleneck.schema.gate_result import (
    CounterChange,
    CounterVerdict,
    GateSettings,
    GateVerdict,
    TimeResult,
    TimeVerdict,
    WorkloadResult,
)


def change(verdict: CounterVerdict) -> CounterChange:
    return CounterChange("ops", 1, 2, verdict)


@pytest.mark.parametrize(
    ("counters", "time", "verdict"),
    [
        (["same"], None, "pass"),
        (["same", "improved", "within budget", "accepted"], "fine", "pass"),
        (["same", "broken"], "fine", "fail"),
        (["same"], "slower", "fail"),
        (["broken", "gone"], "slower", "nothing measured"),
        (["same"], "undecided", "undecided"),
        (["same"], "not run", "pass"),
        (["same"], "advisory", "pass"),
        (["broken"], "undecided", "fail"),
        ([], "fine", "pass"),
        ([], "faster", "pass"),
        ([], "not run", "nothing measured"),
        ([], "advisory", "nothing measured"),
        (["new", "not compared", "unstable"], None, "nothing measured"),
        ([], None, "nothing measured"),
    ],
)
def test_the_verdict_is_that_of_the_worst_that_was_seen(
    counters: list[CounterVerdict], time: TimeVerdict | None, verdict: GateVerdict
) -> None:
    found = verdict_of([change(each) for each in counters], None if time is None else TimeResult(time))
    assert found == verdict


def result(verdict: GateVerdict, *, is_new: bool = False, time: TimeVerdict | None = None) -> WorkloadResult:
    timed = None if time is None else TimeResult(time)
    return WorkloadResult(verdict, (), verdict, verdict, is_new=is_new, time=timed)


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        (["pass"], 0),
        (["pass", "fail", "failed", "undecided"], 1),
        (["pass", "failed", "nothing measured"], 4),
        (["pass", "nothing measured"], 5),
        (["undecided", "pass"], 0),
        ([], 5),
    ],
)
def test_a_regression_comes_before_a_crash_and_a_crash_before_what_is_open(
    verdicts: list[GateVerdict], code: int
) -> None:
    assert exit_code([result(each) for each in verdicts], GateSettings()) == code


def test_the_settings_decide_on_what_is_undecided_or_new() -> None:
    lax, firm = GateSettings(), GateSettings(on_undecided="fail", on_new="fail")
    for each in (result("undecided"), result("nothing measured", is_new=True), result("pass", is_new=True)):
        assert exit_code([each], lax) == 0
        assert exit_code([each], firm) == 5


def test_a_regression_of_a_new_workload_is_red_all_the_same() -> None:
    assert exit_code([result("fail", is_new=True)], GateSettings()) == 1


def test_strict_lets_nothing_pass_that_was_not_measured() -> None:
    for each in (result("undecided"), result("pass", is_new=True), result("pass", time="not run")):
        assert exit_code([each], GateSettings(), is_strict=True) == 5
    uncounted = replace(result("pass", time="fine"), counters=(change("not compared"), change("unstable")))
    assert exit_code([uncounted], GateSettings(), is_strict=True) == 5
    counted = replace(uncounted, counters=(change("not compared"), change("same")))
    for each in (counted, result("pass", time="fine")):
        assert exit_code([each], GateSettings(), is_strict=True) == 0


def test_the_sentence_names_what_did_not_pass() -> None:
    one, two = result("fail"), replace(result("pass"), name="mlp")
    assert sentence_of([one, two], 1) == "1 of 2 workloads regressed: fail; 1 workload passed."
    assert sentence_of([one], 1) == "1 of 1 workload regressed: fail."
    assert sentence_of([two], 0) == "1 workload passed."
    assert "let pass" in sentence_of([result("undecided"), two], 0)
    assert sentence_of([], 5) == "No workload was gated."
