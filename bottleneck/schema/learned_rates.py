"""Rates learned from timed programs, shared by predictions and advice.

They are efficiencies of kernels and host times of ops.

`python -m benchmarks.kernelbench FOLDER --ship` learns them; each row of the table has the number of timings and the
spread behind it. Shares of bandwidth are of the data sheet's; host times are in units of the host's pace.
"""

import csv
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

TABLE = Path(__file__).with_name("learned_rates.csv")


@lru_cache(maxsize=1)
def learned_rates() -> Mapping[str, tuple[float, float]]:
    """Reads each rate by its name, with its spread.

    The spread is the factor by which timings lie around the rate.
    """
    with TABLE.open(encoding="utf-8", newline="") as lines:
        return {row["name"]: (float(row["value"]), float(row["spread"])) for row in csv.DictReader(lines)}


def fused_share(kind: str) -> tuple[float, float]:
    """Returns the bandwidth share of a fused Inductor kernel, with its spread.

    The kind is 'pointwise' or 'reduction'.
    """
    rates = learned_rates()
    (of_eager, spread), (eager, _) = rates[f"fused {kind}:memory"], rates["memory"]
    return of_eager * eager, spread


def host_units(kind: str) -> float:
    """Returns host time for a kind, as a multiple of the pace.

    The kind is that of an op or a kernel, and the pace is the host's.
    """
    return learned_rates()[f"host:{kind}"][0]


def fastest_host_us() -> float:
    """Returns the pace of a fast host among those timed, in microseconds."""
    pace, spread = learned_rates()["pace"][0], learned_rates()["pace:spread"][0]
    return pace / spread
