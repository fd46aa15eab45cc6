"""The gate on a terminal: three lines first, all of it within the width, and no name that a log would obey."""

import re
from dataclasses import replace

import pytest

from bottleneck.report.ci.gate_terminal import render
from bottleneck.report.terminal import TerminalStyle
from bottleneck.schema.gate_result import Gate
from tests.report.gates import COUNTED, COUNTS, GATES, HOSTILE, PASSED, SLOWED, change, equal, gate

EACH = pytest.mark.parametrize("gate", GATES.values(), ids=GATES)


def obeyed(line: str) -> bool:
    """True if a log could take a line for a command (ActionCommand.cs of actions/runner, and others' '##vso[')."""
    return line.lstrip().startswith("::") or re.search(r"##\w*\[", line) is not None


@EACH
@pytest.mark.parametrize("width", [20, 80])
def test_no_line_is_a_command_of_a_log(gate: Gate, width: int) -> None:
    assert not any(map(obeyed, render(gate, TerminalStyle(width)).splitlines()))


def test_the_hostile_gate_would_be_obeyed_unescaped() -> None:
    assert any(obeyed(line) for line in HOSTILE.why) and obeyed(HOSTILE.name)


@EACH
@pytest.mark.parametrize("width", [40, 80])
def test_no_line_is_wider_than_the_terminal_but_commands_to_copy(gate: Gate, width: int) -> None:
    lines = [
        line
        for line in render(gate, TerminalStyle(width)).splitlines()
        if not line.strip().startswith("bottleneck accept ")
    ]
    assert max(map(len, lines)) <= width


@EACH
def test_a_command_to_copy_stays_whole(gate: Gate) -> None:
    for line in render(gate, TerminalStyle(40)).splitlines():
        if line.strip().startswith("bottleneck accept ") and "\\x" not in line:
            assert line.endswith('--reason "…"')


@EACH
def test_an_encoding_without_unicode_is_enough(gate: Gate) -> None:
    assert render(gate, TerminalStyle(encoding="ascii")).isascii()


@EACH
def test_escape_sequences_appear_with_colour_only(gate: Gate) -> None:
    assert "\x1b" not in render(gate)
    assert "\x1b[" in render(gate, TerminalStyle(color=True))


def test_a_failure_begins_with_what_why_and_fix() -> None:
    lines = render(GATES["slowed"], TerminalStyle(200)).splitlines()
    assert lines[0] == "FAIL bench/train_step.py  4 counters over budget; step +7.6 %; took 91 s"
    assert lines[1] == f"  what {SLOWED.what}"
    assert lines[2] == f"  why  {SLOWED.why[0]}"
    assert lines[3] == f"       {SLOWED.why[1]}"
    assert lines[4] == "  fix  undo that, or:"
    assert lines[5].strip().startswith("bottleneck accept bench/train_step.py --metric h2d_bytes,h2d_copies,")


def test_a_pass_is_one_line_and_the_verdict_on_all_another() -> None:
    assert render(GATES["passed"], TerminalStyle(200)).splitlines() == [
        "PASS examples/mlp.py  15 counters equal; step +0.4 % [-0.6 %, +1.3 %], could see 1.8 % or more; took 41 s",
        "PASS, exit code 0: 1 workload passed. Took 41 s.",
    ]


def test_a_time_that_only_advises_says_so_and_why() -> None:
    told = "step 18.2 -> 19.6 ms (advisory): the two recordings did not take turns; took 41 s"
    assert told in render(GATES["advisory"], TerminalStyle(200))


def test_a_figure_that_decides_nothing_says_so() -> None:
    first, *_ = render(GATES["wavered"], TerminalStyle(200)).splitlines()
    assert first == "FAIL bench/train_step.py  4 counters over budget; step +2.1 % (undecided); took 12 s"


def test_the_worst_stands_first_and_the_verdict_on_all_last() -> None:
    lines = render(GATES["several"], TerminalStyle(200)).splitlines()
    heads = [line.split()[0] for line in lines if re.match(r"[A-Z]+ \S+\.py ", line)]
    assert heads == ["FAIL", "ERROR", "UNDECIDED", "PASS", "PASS"]
    assert lines[-1].startswith("FAIL, exit code 1: 1 of 5 workloads regressed")


def test_counters_that_differ_stand_in_a_table_with_their_limits() -> None:
    lines = [line.split() for line in render(GATES["counters"]).splitlines()]
    assert ["launches", "303", "327", "+24", "+0", "over", "budget"] in lines
    assert ["h2d_bytes", "0", "12.6", "MB", "+12.6", "MB", "+0", "over", "budget"] in lines
    assert ["module:decoder.*.launches", "18", "20", "+2", "+2", "within", "budget"] in lines
    assert not any(line[:2] == ["ops", "7"] for line in lines)


def test_a_cause_of_several_counters_in_a_row_is_reported_once() -> None:
    text = render(GATES["counters"])
    assert text.count("\n    +24 aten::copy_ in decoder.rotary at model/rope.py:88, changed here\n") == 1


def test_what_was_not_compared_and_what_is_unstable_is_reported_with_its_reason() -> None:
    text = render(GATES["counters"], TerminalStyle(200))
    assert "not compared: peak_bytes, kernel_names: the lock-file is of sm 8.0, this is sm 9.0" in text
    assert "unstable: allocations: 715..716: the first step of a process allocates once more" in text
    assert "time not run; no base: this is a shallow clone" in text


def test_unstable_counters_that_only_the_counts_know_are_reported_too() -> None:
    bare = replace(COUNTED, counters=(), verdict="pass")
    assert "unstable: allocations: 715..716" in render(gate(bare, exit_code=0, sentence="."), TerminalStyle(200))


def test_what_neither_side_can_know_is_reported_of_a_failure_only() -> None:
    nowhere = change("graphs", None, None, "not compared", reason="nothing was compiled")
    passed = replace(COUNTED, verdict="pass", counters=(*equal("ops"), nowhere), counts=replace(COUNTS, unstable={}))
    assert "1 counter equal; time not run" in render(gate(passed, exit_code=0, sentence="."), TerminalStyle(200))
    assert "nothing was compiled" not in render(gate(passed, exit_code=0, sentence="."), TerminalStyle(200))
    failed = replace(passed, verdict="fail")
    assert "not compared: graphs: nothing was compiled" in render(
        gate(failed, exit_code=1, sentence="."), TerminalStyle(200)
    )


def test_an_improvement_names_the_command_that_keeps_it() -> None:
    text = render(GATES["improved"], TerminalStyle(200))
    assert "better: launches 311 -> 303, d2h_bytes 4 -> 0; to keep it:" in text
    assert '    bottleneck accept examples/better.py --metric d2h_bytes,launches --reason "…"\n' in text


def test_without_a_lock_file_there_is_nothing_to_accept() -> None:
    text = render(gate(replace(GATES["improved"].results[0], lock=""), exit_code=0, sentence="."), TerminalStyle(200))
    assert "better: launches 311 -> 303, d2h_bytes 4 -> 0\n" in text and "bottleneck accept" not in text


def test_a_cause_told_twice_is_reported_once() -> None:
    text = render(gate(replace(COUNTED, why=("the cause", "the cause")), exit_code=1, sentence="."))
    assert text.count("the cause") == 1


def test_a_pass_tells_what_grew_within_its_budget_or_was_accepted() -> None:
    assert "allowed: copies 30 -> 31 per step, limit +0: per-head norm (#812)" in render(
        GATES["improved"], TerminalStyle(200)
    )


def test_a_crash_says_nothing_of_counters_or_time() -> None:
    first, *rest = render(GATES["crashed"]).splitlines()
    assert first == "ERROR bench/crash.py  took 3.1 s"
    assert not any(line.startswith("  time") for line in rest)


def test_warnings_of_the_whole_gate_are_reported() -> None:
    assert "warning: the tree has changes that are not committed" in render(GATES["several"])


def test_many_workloads_that_pass_take_a_line_each() -> None:
    many = gate(*[replace(PASSED, name=f"bench/{n}.py") for n in range(30)], exit_code=0, sentence="30 passed.")
    assert len(render(many, TerminalStyle(120)).splitlines()) == 31
