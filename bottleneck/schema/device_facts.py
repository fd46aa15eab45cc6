"""Reads facts of boards and generations beside their ceilings.

They come from the CSV files of ``bottleneck/devices``. A new board or generation is rows there; no module of the
package names one.
"""

import csv
import re
from functools import cache
from pathlib import Path

from msgspec import Struct

FOLDER = Path(__file__).parents[1] / "devices"
# Template arguments of C++ may be megabytes long; what tells a generation stands at the beginning of a name.
NAME_LIMIT = 300


def read_rows(file: str) -> list[dict[str, str]]:
    """Returns the rows of a CSV file of devices, cells as text."""
    with (FOLDER / file).open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


_NEVER = re.compile(r"(?!)")


class Generation(Struct, frozen=True):
    """Holds what is true of all boards of a generation.

    ``instruction`` reaches its matrix units, kernels whose name ``older`` finds use that of the generation before.
    ``tensor_share`` is the part of the peaks of its tensor cores that kernels of libraries reach, relative to others.
    ``attention_share`` is the most of the peak that attention reaches in training.
    """

    instruction: str = ""
    older: re.Pattern[str] = _NEVER
    tensor_share: float = 1.0
    attention_share: float = 1.0


class Board(Struct, frozen=True):
    """Public facts about a board beside its data sheet.

    They do not come from the timings of the rates.

    ``memory_share`` and ``lanes_share`` are the shares of bandwidth and of the fp32 peak that it sustains, the latter
    in large products with torch. ``year`` is that of its servers; programs were timed on the parts in ``timed``.
    """

    year: int
    memory_share: float
    lanes_share: float
    timed: tuple[str, ...] = ()


class AttentionKernel(Struct, frozen=True):
    """Kind of attention kernel that has a quicker successor on a generation.

    ``reached`` is the share of the peak that it gets to.
    """

    kernel: re.Pattern[str]
    words: str
    reached: float
    advice: str
    code: str


# A board that has no row: of large fp32 products torch reaches 0.93 to 0.98 of the peak on one, and 0.78 on another.
USUAL_LANES = 0.865
_UNLISTED = Board(2021, 1.0, USUAL_LANES)


@cache
def _generations() -> dict[str, Generation]:
    return {
        architecture: Generation(
            row["instruction"],
            re.compile(row["older_kernels"]) if row["older_kernels"] else _NEVER,
            float(row["tensor_share"] or 1.0),
            float(row["attention_share"] or 1.0),
        )
        for row in read_rows("generations.csv")
        for architecture in row["architectures"].split("|")
    }


def generation_of(architecture: str | None) -> Generation:
    """Returns the facts of a generation; those of one without a row say nothing."""
    return _generations().get(architecture or "", Generation())


@cache
def _boards() -> dict[str, Board]:
    return {
        row["name_begins"]: Board(
            int(row["year"]), float(row["memory_share"]), float(row["lanes_share"]), tuple(row["timed"].split("|"))
        )
        for row in read_rows("boards.csv")
    }


def board_of(name: str) -> Board:
    """Returns the facts of the board whose row begins like this name.

    The longest match counts. A board without a row gets the usual facts.
    """
    begin = max((begin for begin in _boards() if name.startswith(begin)), key=len, default="")
    return _boards().get(begin, _UNLISTED)


@cache
def attention_kernels(architecture: str | None) -> tuple[AttentionKernel, ...]:
    """Returns the kinds of attention kernels that have a quicker successor on a generation."""
    return tuple(
        AttentionKernel(re.compile(row["kernel"]), row["words"], float(row["reached"]), row["advice"], row["code"])
        for row in read_rows("attention.csv")
        if architecture in row["architectures"].split("|")
    )
