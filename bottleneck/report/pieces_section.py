"""Builds the section on pieces of the step that were timed alone: as they are and changed, and what that saves."""

from collections.abc import Mapping

from bottleneck.report.document import TableColumn, TableRow, TableSection, number_columns
from bottleneck.report.text import UNKNOWN, Scale, scale_of
from bottleneck.report.wording import calls_number
from bottleneck.schema.measurements import MeasuredPiece, MeasuredPieces, left_out_words
from bottleneck.schema.op_names import at_source

KIND_WORDS: Mapping[str, str] = {
    "chain": "chain compiled",
    "library-op": "the library's op",
    "layout": "channels last",
    "narrow-product": "narrow dtype",
    "padded-product": "padded sizes",
    "optimizer": "optimizer",
    "attention": "fused attention",
    "threads": "fewer threads",
}
"""Kinds of pieces by key, as people read them."""

_COLUMNS = (
    TableColumn("change", "words"),
    *number_columns(("calls", "as it is", "changed", "ratio", "95 %", "saves")),
)


def measured_pieces(measured: MeasuredPieces | None) -> TableSection | None:
    """The pieces with their times, what each saves per step, and the reason of those without; null without any."""
    if measured is None or not (measured.pieces or measured.left_out):
        return None
    timed = [piece for piece in measured.pieces if piece.ratio is not None]
    others = [piece for piece in measured.pieces if piece.ratio is None]
    scale = scale_of(max((_longest_us(piece) for piece in timed), default=0.0))
    rows = [*(_row(piece, scale) for piece in timed), *(_row_without_times(piece) for piece in others)]
    notes = (
        f"Timed alone after the program's end, on recorded sizes, in {measured.spent_s:.1f} of "
        f"{measured.budget_s:g} s: one call as it is and changed, in turns. ratio: changed / as it is, with its 95 % "
        "interval. saves: calls x (as it is - changed) per step, before the finding counts what else binds the step.",
    )
    title = f"Pieces of the step, timed alone, in {scale.unit}" if timed else "Pieces of the step, timed alone"
    details = TableColumn("piece", "words")
    return TableSection(
        title, _COLUMNS, tuple(rows), (*notes, *left_out_words(measured, len(measured.left_out))), details
    )


def _longest_us(piece: MeasuredPiece) -> float:
    before, after = _times_us(piece)
    return max(before, after, abs(_saved_us(piece)))


def _times_us(piece: MeasuredPiece) -> tuple[float, float]:
    assert piece.as_is_us is not None, "a piece with a ratio has times"
    assert piece.changed_us is not None, "a piece with a ratio has times"
    return piece.as_is_us.median, piece.changed_us.median


def _saved_us(piece: MeasuredPiece) -> float:
    before, after = _times_us(piece)
    return piece.calls * (before - after)


def _row(piece: MeasuredPiece, scale: Scale) -> TableRow:
    before, after = _times_us(piece)
    saved_us = _saved_us(piece)
    saved = f"-{scale.one(-saved_us)}" if saved_us < 0 else scale.one(saved_us)
    ratio = piece.ratio
    assert ratio is not None, "only pieces with a ratio have this row"
    cells = (
        piece.change,
        calls_number(piece.calls),
        scale.one(before),
        scale.one(after),
        _ratio(ratio.median),
        f"{_ratio(ratio.low)} to {_ratio(ratio.high)}",
        saved,
    )
    worst = () if piece.at_worst is None else (f"at worst {_ratio(piece.at_worst.median)}",)
    return TableRow(cells, details=(_what(piece), *worst))


def _row_without_times(piece: MeasuredPiece) -> TableRow:
    cells = (piece.change, calls_number(piece.calls), *(UNKNOWN,) * (len(_COLUMNS) - 2))
    return TableRow(cells, details=(_what(piece), f"not measured: {piece.reason}"))


def _what(piece: MeasuredPiece) -> str:
    """The kind, the ops and the place of a piece, with the finding that it is for."""
    place = f" {at_source(piece.source)}" if piece.source is not None else ""
    place = f" in {piece.module}" if not place and piece.module is not None else place
    return f"{KIND_WORDS.get(piece.kind, piece.kind)}: {piece.what}{place} [{piece.finding}]"


def _ratio(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio >= 0.095 or not ratio else f"{ratio:.2g}"
