"""Tables of what torch.compile made of a program, and the report of its logs alone."""

import json
from pathlib import Path

import pytest

from bottleneck.cli import main
from bottleneck.report import render_document
from bottleneck.report.compile_health import build_log, changes, compile_sections, compile_summary, log_text
from bottleneck.report.document import TableSection
from bottleneck.schema.compile_health import (
    BreakHealth,
    CompileHealth,
    CompileLog,
    CudagraphSkip,
    GraphHealth,
    Recompile,
)
from tests.trace.test_compile_log import WHOLE, log_in

GRAPHS = tuple(
    GraphHealth(f"{at}/0", "torch_dynamo_resume_in_forward_at_14", f"net.py:{10 + at}", 3, 2, 1.25, 40, is_warm=False)
    for at in range(20)
)
HEALTH = CompileHealth(
    GRAPHS,
    (
        BreakHealth("print", "net.py:5", "print", 2, lines=("net.py:17", "net.py:5"), price_us=(130.0, 244.0)),
        BreakHealth("value", "net.py:14", "item", price_us=(50.0, 90.0), eager_ops=("aten::item",), eager_calls=1.0),
        BreakHealth("other", None, "Attempted to wrap sparse Tensor", 1, price_reason="not-entered"),
    ),
    (Recompile("0/1", "forward", "net.py:10", "size", "…", "8", "9", "x", 0, "0/0", 2.5),),
    (CudagraphSkip("mutation", "net.py:3", "mutated inputs", price_reason="no-device"),),
)  # fmt: skip


def table(title: str, health: CompileHealth = HEALTH) -> TableSection:
    (section,) = [section for section in compile_sections(health) if section.title == title]
    return section


def test_rows_beyond_the_first_are_folded_and_the_seconds_add_up() -> None:
    rows = table("What torch.compile made of it").rows
    shown = [float(row.cells[-1]) for row in rows if row.role in {"plain", "rest"}]
    assert len(rows) == 14 and rows[-2].cells[0] == "8 more"
    assert rows[-1].role == "total" and sum(shown) == pytest.approx(float(rows[-1].cells[-1])) == 25.0


def test_the_dearest_break_stands_first_with_its_words_and_price() -> None:
    first, second, third = table("Graph breaks").rows
    assert first.cells == ("net.py:5", "it prints", "2", "130 to 244 us")
    assert second.details == ("uncompiled there: aten::item (1 call per step)",)
    assert third.cells[0] == "not known" and third.cells[-1] == "0: not run in these steps"
    assert third.details == ("torch: Attempted to wrap sparse Tensor",)


def test_recompiles_tell_the_value_expected_and_the_one_that_came() -> None:
    assert table("Recompiles").rows[0].cells == ("0/1 forward", "net.py:10", "size 0 of x: 8, then 9", "2.50")


def test_a_skip_says_why_it_has_no_price() -> None:
    assert table("Not captured as CUDA graphs").rows[0].cells[-1] == "none: the program uses no GPU"


def test_a_program_that_compiled_nothing_has_no_table() -> None:
    assert compile_sections(None) == () and compile_sections(CompileHealth(())) == ()


def test_compiling_is_paid_back_after_its_time_over_what_a_step_saves() -> None:
    """25 s of compiling, over 100 us of 1 ms saved by 1.1 times as fast, and 500 us by 1.5 times."""
    (note, *_), (unknown, *_) = (compile_sections(HEALTH, us)[0].notes for us in (1000.0, None))
    assert "Compiling took 25.00 s" in note and "after 250,000 steps if it made the step 1.1 times as fast" in note
    assert "after 50,000 steps if 1.5 times" in note
    assert "paid back" not in unknown


def test_one_change_stands_for_all_of_a_cause() -> None:
    twice = CompileHealth((), (HEALTH.breaks[0], HEALTH.breaks[0]), HEALTH.recompiles, HEALTH.skips)
    actions = changes(twice)
    assert len(actions) == 3
    assert actions[1].code == ("torch._dynamo.mark_dynamic(x, 0)",)


def test_the_sentence_sums_what_was_compiled() -> None:
    assert compile_summary(HEALTH) == (
        "20 graphs compiled in 25.00 s (cold); 3 lines break graphs; 1 recompile took 2.50 s of that; "
        "1 graph is not captured as a CUDA graph."
    )
    assert "nothing breaks graphs" in compile_summary(CompileHealth(GRAPHS))


@pytest.mark.parametrize("form", ["terminal", "markdown", "html", "json"])
def test_a_log_is_reported_in_every_form(tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["report", str(log_in(tmp_path / "logs")), "--format", form])
    assert left.value.code == 0
    text = capsys.readouterr().out
    assert "net.py:14" in text
    if form == "json":
        content = json.loads(text)
        assert content["schema"] == "bottleneck/compile-log/1"
        assert content["processes"][0]["health"]["breaks"][0]["cause"] == "value"


def test_lines_of_a_terminal_fit_into_80_columns() -> None:
    text = log_text([CompileLog("a.log", HEALTH)], "logs", "terminal")
    assert max(map(len, text.splitlines())) <= 90  # the closing command is never broken
    assert "Graph breaks" in text and "it prints" in text


def test_a_form_that_a_log_has_not_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["report", str(log_in(tmp_path / "logs", WHOLE)), "--format", "perfetto"])
    assert left.value.code == 2
    assert "a compile log has no report in the format perfetto" in capsys.readouterr().err


def test_each_process_of_several_has_its_tables_and_damage_is_told() -> None:
    logs = [CompileLog("a.log", HEALTH, 2, rank=0), CompileLog("b.log", HEALTH, 0, rank=1)]
    text = render_document(build_log(logs, "logs"), "markdown")
    assert "Graph breaks (rank 0)" in text and "Graph breaks (rank 1)" in text
    assert "2 lines of the logs could not be read" in text
