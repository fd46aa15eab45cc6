"""The report of a what-if, from records made by hand."""

import json

import pytest

from bottleneck.report.analysis_tables import path_table
from bottleneck.report.whatif import build, option_of, render
from bottleneck.schema.analysis import CriticalPath, Interval, LedgerEntry, PathPart, ReplayCheck
from bottleneck.schema.records import replace
from bottleneck.schema.whatif import ChangedStep, WhatIf

CHECK = ReplayCheck(0.0123, 0.04, 0.0, 3, None)
PATH = CriticalPath(
    CHECK,
    1000.0,
    (
        PathPart("device", "void at::native::softmax_kernel<float>(float*)", "model.py:7", 700.0, 0.7),
        PathPart("host", "dispatch", None, 200.0, 0.2),
        PathPart("wait", "from launch to start", None, 100.0, 0.1),
    ),
)
LATER = CriticalPath(CHECK, 600.0, (PathPart("host", "dispatch", None, 600.0, 1.0),))
LEDGER = (LedgerEntry("memory", "memory", 700.0, 0.7), LedgerEntry("overhead.dispatch", "overhead", 300.0, 0.3))
CHANGED = ChangedStep(("set kernel:softmax*=0.5x",), Interval(500.0, 600.0), Interval(1.67, 2.0))
ANSWER = WhatIf(
    "trace.json",
    1000.0,
    Interval(0.5, 1.0),
    PATH,
    LEDGER,
    CHANGED,
    LATER,
    (LedgerEntry("memory", "memory", 350.0, 0.58), LedgerEntry("overhead.dispatch", "overhead", 250.0, 0.42)),
)
OPEN = WhatIf("trace.json", 1000.0, Interval(1.0, 1.0), PATH, LEDGER, best=(CHANGED,))


def terminal(answer: WhatIf) -> str:
    return render(answer, "terminal")


def test_the_sentence_says_the_step_and_the_speedup() -> None:
    text = " ".join(terminal(ANSWER).split())
    assert "The step would take 500 us to 600 us instead of 1.00 ms: 1.67 to 2.00 times as fast." in text


def test_the_replay_check_stands_with_every_answer() -> None:
    for answer in (ANSWER, OPEN):
        words = " ".join(terminal(answer).split())
        assert "3 steps, error +1.23 % against the measured one" in words
        assert "4.0 % of it are delays" in words


def test_an_error_that_rounds_to_nothing_has_no_sign() -> None:
    """It read 'error -0.00 %'."""
    exact = replace(OPEN, path=replace(PATH, check=replace(CHECK, error=-0.00004)))
    assert "error <0.01 % against the measured one" in " ".join(terminal(exact).split())


def test_both_ledgers_add_up_as_printed() -> None:
    rows = [line.split() for line in terminal(ANSWER).partition("Ledger")[2].splitlines()]
    table = [row[-3:] for row in rows if len(row) > 3 and row[-1].lstrip("+-").isdigit()]
    *parts, total = [[float(cell.replace(",", "")) for cell in row] for row in table[:3]]
    assert [sum(column) for column in zip(*parts, strict=True)] == total == [1000.0, 600.0, -400.0]


def test_the_critical_path_is_shown_now_and_then() -> None:
    text = terminal(ANSWER)
    assert "softmax_kernel<float>" in text
    assert "model.py:7" in text
    assert text.count("Critical path") == 1


LONG = ChangedStep(("set kernel:" + "long_name_" * 7 + "=floor",), Interval(500.0, 600.0), Interval(1.67, 2.0))


def test_a_command_is_never_cut() -> None:
    option = option_of(LONG.changes[0])
    text = terminal(replace(OPEN, best=(CHANGED, LONG)))
    assert "--set 'kernel:softmax*=0.5x'" in text
    assert option.replace(" ", "") in "".join(text.split())
    assert "the first below would help most" in " ".join(terminal(replace(OPEN, best=(LONG,))).split())


def test_the_last_line_names_this_trace_and_a_change_that_was_tried() -> None:
    closing = build(replace(OPEN, trace="a b.json")).closing
    assert closing.endswith("bottleneck whatif 'a b.json' --set 'kernel:softmax*=0.5x'")
    assert not build(replace(OPEN, best=())).closing and not build(ANSWER).closing


def test_without_a_change_the_best_changes_come_first() -> None:
    document = build(OPEN)
    assert [section.title for section in document.sections if hasattr(section, "title")] == [
        "Changes that would help most",
        "Critical path",
    ]
    assert "--set 'kernel:softmax*=0.5x' would help most" in " ".join(terminal(OPEN).split())


def test_parts_beyond_the_longest_are_one_row_and_the_table_adds_up() -> None:
    rows = path_table(PATH, 1).rows
    assert [row.role for row in rows] == ["plain", "rest", "total"]
    assert sum(float(row.cells[3].replace(",", "")) for row in rows[:-1]) == float(rows[-1].cells[3].replace(",", ""))


def test_a_trace_that_cannot_tell_says_why() -> None:
    check = ReplayCheck(0.2, 0.0, 0.2, 1, "a replay of the recorded steps is off by 20%")
    answer = WhatIf("trace.json", 1000.0, Interval(1.0, 1.0), CriticalPath(check, 1000.0, PATH.parts), LEDGER)
    assert "No change can be predicted from this trace: a replay of the recorded steps" in terminal(answer)


def test_markdown_and_json_hold_the_same_answer() -> None:
    assert "**The step would take 500 us to 600 us" in render(ANSWER, "markdown")
    read = json.loads(render(ANSWER, "json"))
    assert read["schema"] == "bottleneck/whatif/1"
    assert read["changed"]["step_us"] == {"low": 500.0, "high": 600.0}
    assert sum(part["us"] for part in read["path"]["parts"]) == pytest.approx(read["path"]["step_us"])


@pytest.mark.parametrize("answer", [ANSWER, OPEN], ids=["changed", "open"])
def test_the_text_fits_80_columns(answer: WhatIf) -> None:
    assert max(map(len, terminal(answer).splitlines())) <= 80
