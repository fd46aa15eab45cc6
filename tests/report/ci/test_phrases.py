"""The words of the gate: numbers that do not round away what differs, and one verdict from the exit code."""

import math
from dataclasses import replace

import pytest

from bottleneck.report.ci.phrases import (
    CHANGES,
    VERDICTS,
    accept_command,
    amounts,
    asides,
    count_by_verdict,
    describe_cause,
    describe_culprit,
    describe_limit,
    describe_time,
    differing,
    growth,
    share,
    took,
    verdict_and_code,
    verdict_of,
    workload_verdict,
)
from bottleneck.schema.gate_result import CounterChange, Culprit, Gate, GateVerdict
from tests.report.gates import (
    COPY,
    CRASHED,
    IMPROVED,
    MOST,
    NO_TIME,
    PASSED,
    SLOWED,
    SLOWER,
    UNDECIDED,
    UNMEASURED,
    change,
    gate,
    limit,
)


@pytest.mark.parametrize(
    ("ratio", "shown"),
    [
        (1.076, "+7.6 %"), (0.994, "-0.6 %"), (1.0, "+0.0 %"), (1.0004, "+0.04 %"), (0.99996, "-<0.01 %"),
        (2.5, "+150.0 %"), (math.inf, "unknown"), (math.nan, "unknown"),
    ],
)  # fmt: skip
def test_a_ratio_is_reported_as_growth(ratio: float, shown: str) -> None:
    assert growth(ratio) == shown


def test_a_share_that_is_small_has_more_digits() -> None:
    assert (share(0.024), share(0.0004), share(math.inf)) == ("2.4 %", "0.04 %", "unknown")


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "0.0 s"), (4.21, "4.2 s"), (9.96, "10 s"), (41.2, "41 s"), (119.4, "119 s"), (119.6, "2 min 0 s"),
        (192.0, "3 min 12 s"), (math.nan, "an unknown time"),
    ],
)  # fmt: skip
def test_how_long_it_took(seconds: float, shown: str) -> None:
    assert took(seconds) == shown


@pytest.mark.parametrize(
    ("metric", "before", "after", "shown"),
    [
        ("launches", 303, 311, ("303", "311", "+8")),
        ("ops", 12_629, 12_630, ("12,629", "12,630", "+1")),
        ("h2d_bytes", 0, 12_600_000, ("0", "12.6 MB", "+12.6 MB")),
        ("peak_bytes", 9_680_904, 9_680_912, ("9,680,904", "9,680,912", "+8")),
        ("flops", 344_571_904, 172_285_952, ("345 MFLOP", "172 MFLOP", "-172 MFLOP")),
        ("module:a.h2d_bytes", 0, 12_600_000, ("0", "12.6 MB", "+12.6 MB")),
        ("of a later version", 3, None, ("3", "-", "-")),
        ("flops", 0, 10**400, ("0", f"{10**400:,}", f"+{10**400:,}")),
        ("ops", 7, 7, ("7", "7", "0")),
    ],
)
def test_before_and_after_never_look_alike_where_they_differ(
    metric: str, before: int, after: int | None, shown: tuple[str, str, str]
) -> None:
    assert amounts(metric, before, after) == shown


def test_a_metric_counts_once_as_its_worst() -> None:
    changes = [*MOST, change("ops", 1, 9, "broken", is_creep=True), change("ops", 7, 7, "same")]
    assert count_by_verdict(changes) == "1 counter over budget, 14 equal"
    assert count_by_verdict([]) == ""


def test_every_verdict_on_a_counter_has_words() -> None:
    for verdict, words in CHANGES.items():
        assert words in count_by_verdict([change("ops", 1, 1, verdict)])


def test_a_creep_budget_says_since_when() -> None:
    crept = change("launches", 300, 340, "broken", limit=limit("launches", "+10%"), is_creep=True)
    assert describe_limit(crept) == "+10% since the anchor"


def test_a_culprit_keeps_the_commas_of_its_name() -> None:
    assert describe_culprit(COPY) == "+24 aten::copy_ in decoder.rotary at model/rope.py:88, changed here"
    assert (
        describe_culprit(replace(COPY, what="f<1,2>", change=-12_345, site=None)) == "-12,345 f<1,2> in decoder.rotary"
    )


def test_all_that_is_known_of_a_time_is_reported() -> None:
    assert describe_time(SLOWER) == (
        "slower; step 18.2 ms to 19.6 ms; +7.6 % (98 %: +5.1 % to +9.9 %) over 14 pairs, 7 of them fresh ones to "
        "confirm; budget +3.0 %, or 200 us where that is more; this run could see 2.4 % or more; measured in 78 s"
    )
    assert describe_time(NO_TIME).startswith("not run; no base: ")


@pytest.mark.parametrize(
    ("results", "code", "verdict"),
    [
        ((PASSED,), 0, "pass"), ((UNDECIDED, PASSED), 0, "pass"), ((UNDECIDED,), 5, "undecided"),
        ((UNDECIDED, UNMEASURED), 5, "nothing measured"), ((CRASHED,), 4, "failed"), ((PASSED,), 5, "undecided"),
        ((), 5, "nothing measured"), ((CRASHED, PASSED), 1, "fail"),
    ],
)  # fmt: skip
def test_the_verdict_on_all_is_the_one_that_the_exit_code_stands_for(
    results: tuple[object, ...], code: int, verdict: GateVerdict
) -> None:
    made: Gate = gate(*results, exit_code=code, sentence=".")  # type: ignore[arg-type]
    assert verdict_of(made) == verdict
    assert verdict in VERDICTS


def test_the_command_that_accepts_names_workload_and_metrics_as_a_shell_reads_them() -> None:
    command = accept_command("bench/x.py --n 3", {"launches", "d2h_bytes"})
    assert command == "bottleneck accept 'bench/x.py --n 3' --metric d2h_bytes,launches --reason \"…\""
    (better,) = [line for line in asides(IMPROVED) if line.label == "better"]
    assert better.text.endswith("; to keep it:")
    assert better.command == 'bottleneck accept examples/better.py --metric d2h_bytes,launches --reason "…"'


def test_what_the_causes_leave_of_a_change_is_said() -> None:
    cause = Culprit("ops (aten::sum)", 60)
    assert describe_cause(CounterChange("ops", 160, 208, "broken", culprits=(cause,)))[1:] == ["-12 elsewhere"]
    assert len(describe_cause(CounterChange("ops", 160, 220, "broken", culprits=(cause,)))) == 1
    assert len(describe_cause(CounterChange("h2d_bytes", 0, 99, "broken", culprits=(cause,)))) == 1  # calls, not bytes


def test_the_costliest_counter_that_is_broken_comes_first() -> None:
    changes = tuple(CounterChange(name, 0, 9, "broken") for name in ("flops", "ops", "syncs"))
    assert [change.metric for change in differing(replace(SLOWED, counters=changes))] == ["syncs", "ops", "flops"]


def test_what_was_measured_in_part_is_not_called_nothing() -> None:
    over = CounterChange("flops", 100, 800, "broken")
    in_part = replace(UNMEASURED, counters=(*UNMEASURED.counters, over))
    nothing = replace(UNMEASURED, counters=(CounterChange("ops", 40, 0, "gone"),))
    assert (workload_verdict(in_part), workload_verdict(nothing)) == ("NOT ALL MEASURED", "NOTHING MEASURED")
    assert verdict_and_code(gate(in_part, exit_code=5, sentence="")) == "NOT ALL MEASURED, exit code 5"
    assert verdict_and_code(gate(in_part, nothing, exit_code=5, sentence="")) == "NOTHING MEASURED, exit code 5"
