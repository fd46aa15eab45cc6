"""The parts that every report is made of, whatever the medium: tables, notes, remedies and strips."""

from dataclasses import dataclass
from typing import Literal

# A name is cut so that it stays different from its neighbours, a place keeps its end, words keep their beginning.
Kind = Literal["name", "place", "words", "number"]


@dataclass(frozen=True)
class Column:
    """A column: its title, and what it holds, which decides how it is aligned and shortened."""

    title: str
    kind: Kind


@dataclass(frozen=True)
class Row:
    """A row: its cells, the group that it belongs to (for its mark and colour), and words to set beneath it.

    ``role``: a 'part' belongs to the row above it and is counted there; 'rest' folds rows that are not shown; the
    'total' is the sum of all that are neither parts nor totals.
    """

    cells: tuple[str, ...]
    role: Literal["plain", "part", "rest", "total"] = "plain"
    group: str | None = None
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """A titled table with the sentences that explain it."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Notes:
    """A titled list of sentences; each item is a lead and the lines that belong to it."""

    title: str
    items: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Remedy:
    """One thing to do: what it is about, labelled lines, code to write, and a command that tries it, to be copied."""

    lead: str
    lines: tuple[tuple[str, str], ...] = ()
    code: tuple[str, ...] = ()
    command: str | None = None


@dataclass(frozen=True)
class Remedies:
    """A titled and ranked list of things to do: what to know before, what they come to, and what is left out.

    ``groups`` are those without a rank, told shortly, each group with its heading.
    """

    title: str
    items: tuple[Remedy, ...]
    before: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()
    groups: tuple[tuple[str, tuple[Remedy, ...]], ...] = ()
    closing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Strip:
    """A titled figure of one line: values over time, none below 0, and the words that read it."""

    title: str
    values: tuple[float, ...]
    words: str
