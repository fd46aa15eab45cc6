"""Reads the words of each vendor's profiler from ``vendors.tsv``: marks, raw categories, calls, copies.

Everything behind the trace stage reads the columns that are made here, and no names of a vendor.
"""

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
from msgspec import Struct

from bottleneck.schema.intervals import Codes
from bottleneck.schema.tables import CALL_KINDS, COPY_WAYS, HOST_MEMORY, category

TABLE = Path(__file__).with_name("vendors.tsv")
# Template arguments of C++ may be megabytes long; names of calls and copies are short.
_NAME_LIMIT = 200
# Work outside graphs has a call of its own; other vendors give one number to all that a call issues.
ONE_PER_CALL = "one piece of work per call"
# Some versions lose records of kernels that a graph replays; waits between streams and for events are recorded.
LOSES_OF_REPLAYS, RECORDS_WAITS = "may lose kernels of replays", "records waits of streams"


class Word(Struct, frozen=True):
    """A row of the table: a pattern and its value.

    Texts that the pattern finds have this value. ``example`` is one of them.
    """

    vendor: str
    value: str
    pattern: re.Pattern[str]
    example: str


@cache
def words() -> Mapping[str, tuple[Word, ...]]:
    """Gives the rows of the table by their word.

    They are in the order in which they are tried.
    """
    rows: dict[str, list[Word]] = {}
    with TABLE.open(encoding="utf-8", newline="") as lines:
        table = (line for line in lines if not line.startswith("#"))
        for row in csv.DictReader(table, restval="", delimiter="\t", quoting=csv.QUOTE_NONE):
            word = Word(row["vendor"], row["value"], re.compile(row["pattern"]), row["example"])
            rows.setdefault(row["word"], []).append(word)
    return {word: tuple(several) for word, several in rows.items()}


def first_word(word: str, text: str) -> Word | None:
    """Returns the first row of a word whose pattern finds the text.

    Null for none.
    """
    text = text[:_NAME_LIMIT]
    return next((row for row in words().get(word, ()) if row.pattern.search(text)), None)


@lru_cache(maxsize=1024)
def category_of_vendor(raw: str) -> str | None:
    """Returns the category of EVENTS of a vendor's raw one.

    The raw one is in lower case, as a vendor's profiler writes it. Null for none.
    """
    return next((row.value for row in words()["category"] if row.pattern.fullmatch(raw)), None)


def vendor_marked(texts: Mapping[str, Iterable[str]]) -> str:
    """Returns the vendor whose mark comes first in the table.

    ``texts`` are by the value of marks.
    """
    marks = words()["mark"]
    return next(row.vendor for row in marks if any(row.pattern.search(text) for text in texts.get(row.value, ())))


def has_trait(vendor: str, trait: str) -> bool:
    """Returns true where a trait holds for a vendor."""
    return any(row.vendor == vendor and row.value == trait for row in words()["trait"])


def call_kind(name: str) -> str | None:
    """Returns one of CALL_KINDS for the name of a call.

    The call is into runtime or driver. Null for any other call.
    """
    row = first_word("call", name)
    return None if row is None else row.value


def vendors_that_call(kinds: Sequence[str], names: Iterable[str]) -> set[str]:
    """Returns the vendors of calls of these kinds among names of any events."""
    rows = [row for row in words()["call"] if row.value in kinds]
    # Of a hundred thousand names few are calls: one search each finds them.
    any_call = re.compile("|".join(f"(?:{row.pattern.pattern})" for row in rows))
    first_rows = (first_word("call", name) for name in names if any_call.search(name[:_NAME_LIMIT]))
    return {row.vendor for row in first_rows if row is not None and row.value in kinds}


def call_kinds(codes: Codes, names: Sequence[str]) -> pd.Categorical:
    """Returns the kind of each call from codes into names.

    Each name that occurs is looked at once.
    """
    return _by_name("call", CALL_KINDS, codes, names)


def copy_columns(codes: Codes, names: Sequence[str]) -> dict[str, pd.Categorical]:
    """Returns the columns of KERNELS that the names of copies decide.

    Code -1 is no copy.
    """
    return {
        "copy_way": _by_name("copy", COPY_WAYS, codes, names),
        "host_memory": _by_name("memory", HOST_MEMORY, codes, names),
    }


def _by_name(word: str, values: Sequence[str], codes: Codes, names: Sequence[str]) -> pd.Categorical:
    code_of = np.full(len(names) + 1, -1, dtype=np.int8)
    for code in np.unique(codes[codes >= 0]).tolist():
        row = first_word(word, names[code])
        code_of[code] = -1 if row is None else values.index(row.value)
    return category(code_of[codes], list(values))
