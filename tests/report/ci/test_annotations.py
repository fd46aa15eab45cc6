"""Annotations parse as GitHub's runner parses them, stand at the line that did it, and cannot be injected."""

from dataclasses import dataclass, replace

import pytest

from bottleneck.report.ci.annotations import MOST
from bottleneck.report.ci.annotations import render_github as render
from bottleneck.report.text import clean
from bottleneck.schema.gate_result import Gate
from tests.report.gates import COUNTED, CRASHED, GATES, HOSTILE, gate

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
        "h2d_copies 0 -> 24 per step, limit +0",
        "h2d_bytes 0 -> 12.6 MB per step, limit +0",
        "launches 303 -> 327 per step, limit +0",
        "+24 aten::copy_ in decoder.rotary at model/rope.py:88, changed here",
        COUNTED.fix,
    ]
    assert (item.properties["file"], item.properties["line"]) == ("train.py", "141")


def test_a_slowdown_stands_at_the_line_that_takes_more_time() -> None:
    _, slower = commands(GATES["timed"])
    assert (slower.properties["file"], slower.properties["line"]) == ("model/rope.py", "88")
    assert "+7.6 % [98 %: +5.1 %, +9.9 %] over 14 pairs" in slower.message


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
    assert error.message.endswith("32 more lines are in gate.md")


def test_notices_leave_room_for_the_verdict() -> None:
    better = GATES["improved"].results[0]
    many = [replace(better, name=f"{n}.py", program=(f"{n}.py",)) for n in range(14)]
    found = commands(gate(*many, exit_code=0, sentence="14 workloads passed."))
    assert sum(command.name == "notice" for command in found) == MOST


def test_the_parser_of_this_test_is_fooled_by_what_is_not_escaped() -> None:
    assert parse(HOSTILE.why[1]).name == "error"
    assert parse(f"::error title={HOSTILE.why[1]}::x").message != "x"
