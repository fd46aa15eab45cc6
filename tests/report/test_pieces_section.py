"""The table of pieces: times that give what each saves, places, and the reasons of those without times."""

from typing import Any

from bottleneck.experiment.pieces.kinds import KINDS
from bottleneck.report.analysis_document import build, to_markdown, to_terminal
from bottleneck.report.analysis_tables import KIND_WORDS, measured_pieces
from bottleneck.schema.measurements import MeasuredPiece, MeasuredPieces, Ratio, Timing
from bottleneck.schema.records import replace
from tests.report.samples import analysis


def piece(as_is_us: float, changed_us: float, **more: Any) -> MeasuredPiece:
    ratio = changed_us / as_is_us
    plain: dict[str, Any] = {
        "kind": "chain",
        "finding": "unfused-chain",
        "change": "compile",
        "what": "mul, add and 6 ops more on 64x1024, 1024",
        "calls": 4.0,
        "recorded_us": 4 * as_is_us,
        "share": 1.0,
        "as_is_us": Timing(as_is_us, as_is_us, as_is_us, 9),
        "changed_us": Timing(changed_us, changed_us, changed_us, 9),
        "ratio": Ratio(ratio, ratio * 0.9, ratio * 1.1, 9),
        "source": "model.py:57",
    }
    return MeasuredPiece(**{**plain, **more})


FAILED = replace(piece(1, 1), as_is_us=None, changed_us=None, ratio=None, reason="InductorError: no C++ compiler")
LOST = piece(2000.0, 3000.0, change="channels-last", kind="layout", source=None, module="Net > conv", calls=1.0)
PIECES = MeasuredPieces(
    10.0,
    7.4,
    "a CPU",
    2,
    "2.13.0",
    (piece(20_000.0, 10_000.0, at_worst=Ratio(0.8, 0.7, 0.9, 9)), LOST, FAILED),
    ("exp, sum on 8x8 (compile, about 8 s)",),
)


def test_a_recording_without_pieces_has_no_table() -> None:
    assert measured_pieces(None) is None
    assert measured_pieces(replace(PIECES, pieces=(), left_out=())) is None


def test_a_piece_shows_its_times_and_what_they_save() -> None:
    table = measured_pieces(PIECES)
    assert table is not None
    assert table.title == "Pieces of the step, timed alone, in ms"
    assert [column.title for column in table.columns] == [
        "change", "calls", "as it is", "changed", "ratio", "95 %", "saves",
    ]  # fmt: skip
    assert table.rows[0].cells == ("compile", "4", "20.00", "10.00", "0.50", "0.45 to 0.55", "40.00")
    assert table.rows[0].details == (
        "chain compiled: mul, add and 6 ops more on 64x1024, 1024 at model.py:57 [unfused-chain]",
        "at worst 0.80",
    )


def test_a_piece_that_gets_slower_saves_less_than_nothing() -> None:
    table = measured_pieces(PIECES)
    assert table is not None
    assert table.rows[1].cells[-1] == "-1.00"
    assert table.rows[1].details == (
        "channels last: mul, add and 6 ops more on 64x1024, 1024 in Net > conv [unfused-chain]",
    )


def test_pieces_without_times_are_named_with_the_reason() -> None:
    table = measured_pieces(PIECES)
    assert table is not None
    assert table.rows[2].cells == ("compile", "4", "-", "-", "-", "-", "-")
    assert table.rows[2].details[-1] == "not measured: InductorError: no C++ compiler"
    assert table.notes[-1] == (
        "1 piece left out for lack of time: exp, sum on 8x8 (compile, about 8 s); to measure more: bottleneck run "
        "--probe-budget 60"
    )


def test_what_found_no_time_alone_is_told_without_a_table() -> None:
    table = measured_pieces(replace(PIECES, pieces=()))
    assert table is not None
    assert table.rows == ()
    assert "left out" in table.notes[-1]


def test_the_table_stands_in_the_full_report_in_80_columns_and_in_markdown() -> None:
    made = analysis({"compute.matmul": 100_000.0}, pieces=PIECES)
    assert any(section.title.startswith("Pieces of the step") for section in build(made).sections)
    text = to_terminal(made)
    assert "compile            4     20.00    10.00" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "| compile | 4 | 20.00 | 10.00 | 0.50 | 0.45 to 0.55 | 40.00 |" in to_markdown(made)


def test_every_kind_has_its_words() -> None:
    assert KIND_WORDS.keys() == KINDS.keys()
