"""Gives the rows behind a finding, or those of a table, page by page."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from pydantic import Field

from bottleneck.agent.diagnosis import FindingInFull, basis_of, in_full
from bottleneck.agent.results import (
    AnswerSize,
    Cell,
    ResultColumn,
    ResultTable,
    ToolResult,
    fitted,
    rounded,
)
from bottleneck.errors import UsageError
from bottleneck.report.text import clean
from bottleneck.schema.accounts import meaning_of
from bottleneck.schema.analysis import Analysis, Finding
from bottleneck.schema.finding_order import put_in_reading_order

# Rows and characters per text of the pages that are tried until one is small enough.
_SIZES = tuple(AnswerSize(*size) for size in ((10, 120), (8, 100), (6, 80), (4, 80), (2, 60), (1, 40)))
MOST_ROWS = 500
_CLAIMED_KERNEL = "kernel:"

Reference = tuple[str, int]
"""A row of an analysis: its table, and its position there."""


class EvidencePage(ToolResult):
    """Rows of the analysis, with how many there are in all."""

    path: str
    of: str
    finding: FindingInFull | None = None
    tables: list[ResultTable]
    rows_in_all: int
    rows_left_out: int = Field(description="rows behind this page; `next_cursor` gets them")
    next_cursor: str | None = None


@dataclass(frozen=True)
class EvidenceTable:
    """One table of the analysis: its records, columns and cells."""

    records: Callable[[Analysis], Sequence[Any]]
    columns: tuple[ResultColumn, ...]
    cells: Callable[[Any], tuple[Cell, ...]]


def _name(name: str) -> ResultColumn:
    return ResultColumn(name=name, from_trace=True)


_TIME = (
    ResultColumn(name="time", unit="us", basis="measured"),
    ResultColumn(name="share", unit="share", basis="measured"),
    ResultColumn(name="calls", unit="1/step", basis="measured"),
)


def _folds(name: str, records: Callable[[Analysis], Sequence[Any]]) -> EvidenceTable:
    idle = ResultColumn(name="idle", unit="us", basis="measured")
    return EvidenceTable(
        records, (_name(name), *_TIME, idle), lambda fold: (fold.name, fold.us, fold.share, fold.calls, fold.idle_us)
    )


TABLES: Mapping[str, EvidenceTable] = {
    "accounts": EvidenceTable(
        lambda analysis: sorted(analysis.ledger, key=lambda entry: -entry.us),
        (
            ResultColumn(name="account"),
            ResultColumn(name="meaning"),
            ResultColumn(name="time", unit="us", basis="by row"),
            ResultColumn(name="share", unit="share", basis="by row"),
            ResultColumn(name="basis"),
        ),
        lambda entry: (entry.account, meaning_of(entry.account), entry.us, entry.share, basis_of(entry.account)),
    ),
    "kernels": EvidenceTable(
        lambda analysis: analysis.kernels,
        (
            *map(_name, ("kernel", "op", "module", "line")),
            *_TIME,
            ResultColumn(name="bound", basis="modelled"),
            ResultColumn(name="explained", unit="share", basis="modelled"),
            ResultColumn(name="headroom", unit="us", basis="modelled"),
            ResultColumn(name="reason", from_trace=True),
        ),
        lambda row: (
            row.name,
            row.op,
            row.module,
            row.source,
            row.us,
            row.share,
            row.calls,
            row.bound,
            row.explained,
            row.headroom_us,
            row.reason,
        ),
    ),
    "ops": _folds("op", lambda analysis: analysis.ops),
    "lines": _folds("line", lambda analysis: analysis.lines),
    "modules": _folds("module", lambda analysis: analysis.modules),
    "idle": EvidenceTable(
        lambda analysis: analysis.idle,
        (ResultColumn(name="cause"), *_TIME, *map(_name, ("line", "detail", "next work"))),
        lambda row: (row.cause, row.us, row.share, row.calls, row.source, row.detail, row.after),
    ),
    "caveats": EvidenceTable(
        lambda analysis: analysis.caveats,
        (ResultColumn(name="id"), _name("message"), ResultColumn(name="affected", unit="share", basis="modelled")),
        lambda caveat: (caveat.slug, caveat.message, caveat.share),
    ),
    "findings": EvidenceTable(
        lambda analysis: put_in_reading_order(analysis.findings, analysis.steps.wall_us, analysis.verdict.bound),
        (
            ResultColumn(name="id"),
            _name("title"),
            ResultColumn(name="speedup from", unit="ratio", basis="predicted"),
            ResultColumn(name="to", unit="ratio", basis="predicted"),
        ),
        lambda finding: (
            finding.slug,
            finding.title,
            None if finding.predicted_speedup is None else finding.predicted_speedup.low,
            None if finding.predicted_speedup is None else finding.predicted_speedup.high,
        ),
    ),
}


def evidence(
    analysis: Analysis, path: str, of: str, *, limit: int | None = None, cursor: str | None = None
) -> EvidencePage:
    """A page of the rows behind a finding, or of a table.

    Without ``limit`` as many rows as a small result has room for. UsageError for what is neither, and for a cursor
    that no page gave.
    """
    finding = None if of in TABLES else _finding(analysis, of)
    rows = _all_rows(analysis, of) if finding is None else _rows_behind(analysis, finding)
    rest = _RestOfRows(analysis, path, of, finding, rows, _start(cursor, len(rows)))
    return fitted(rest.page, _SIZES if limit is None else (AnswerSize(min(limit, MOST_ROWS), 400),))


@dataclass(frozen=True)
class _RestOfRows:
    """The rows of an answer from ``start`` on."""

    analysis: Analysis
    path: str
    of: str
    finding: Finding | None
    rows: Sequence[Reference]
    start: int

    def page(self, size: AnswerSize) -> EvidencePage:
        """The first rows, with texts of at most so many characters."""
        count, characters = size
        end = min(self.start + count, len(self.rows))
        tables = [
            _table(self.analysis, kind, [position for _, position in references], characters)
            for kind, references in groupby(self.rows[self.start : end], key=lambda reference: reference[0])
        ]
        # The texts of a finding are on its first page alone.
        finding = None if self.start else self.finding
        return EvidencePage(
            path=self.path,
            of=self.of,
            finding=None if finding is None else in_full(finding, 2 * characters),
            tables=tables,
            rows_in_all=len(self.rows),
            rows_left_out=len(self.rows) - end,
            next_cursor=str(end) if end < len(self.rows) else None,
        )


def _table(analysis: Analysis, kind: str, positions: Sequence[int], characters: int) -> ResultTable:
    table = TABLES[kind]
    records = table.records(analysis)
    return ResultTable(
        kind=kind,
        columns=list(table.columns),
        rows=[[_cell(cell, characters) for cell in table.cells(records[position])] for position in positions],
    )


def _cell(cell: Cell, characters: int) -> Cell:
    if cell is None:
        return None
    return clean(cell, characters) if isinstance(cell, str) else rounded(cell)


def _finding(analysis: Analysis, of: str) -> Finding:
    for finding in analysis.findings:
        if finding.slug == of:
            return finding
    from difflib import get_close_matches

    slugs = dict.fromkeys(finding.slug for finding in analysis.findings)
    near = get_close_matches(of, [*slugs, *TABLES], n=3, cutoff=0.5)
    raise UsageError(
        f"this analysis has no finding or table called {of}",
        why=f"near it are {', '.join(near)}" if near else "",
        fix=f"ask for a finding by its id, or for one of {', '.join(TABLES)}",
    )


def _all_rows(analysis: Analysis, kind: str) -> list[Reference]:
    return [(kind, position) for position in range(len(TABLES[kind].records(analysis)))]


def _rows_behind(analysis: Analysis, finding: Finding) -> list[Reference]:
    """Finds the rows that the time of a finding comes from.

    They are those of kernels, idle time, lines and accounts.
    """
    claims = finding.claims
    kernels = [position for position in range(len(analysis.kernels)) if f"{_CLAIMED_KERNEL}{position}" in claims]
    waits = (
        at
        for at, row in enumerate(analysis.idle)
        if f"overhead.{row.cause}" in claims and (not finding.lines or row.source in finding.lines)
    )
    places = {*finding.lines, *finding.places, *finding.seen_at}
    lines = [at for at, fold in enumerate(analysis.lines) if fold.name in places]
    accounts = [at for at, entry in enumerate(TABLES["accounts"].records(analysis)) if entry.account in claims]
    chosen = {"kernels": kernels, "idle": finding.waits or [*waits], "lines": lines, "accounts": accounts}
    return [(kind, position) for kind, positions in chosen.items() for position in positions]


def _start(cursor: str | None, count: int) -> int:
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 10 and int(cursor) < max(count, 1)):
        raise UsageError(
            f"{clean(cursor, 20)} is no cursor of this evidence", fix="pass the next_cursor of the page before"
        )
    return int(cursor)
