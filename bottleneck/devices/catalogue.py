"""The device table and the rates per architecture, read from the two CSV files beside this module."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
GIB = 2.0**30
MIB = 2.0**20

# Ceilings as the classifier keys them: '<dtype>_tensor', '<dtype>_vector', and AMD's fp32 matrix instructions.
PEAKS = (
    "fp64_vector",
    "fp64_tensor",
    "fp32_vector",
    "fp32_matrix",
    "tf32_tensor",
    "fp16_tensor",
    "bf16_tensor",
    "fp16_vector",
    "bf16_vector",
    "fp8_tensor",
    "int8_tensor",
    "fp4_tensor",
)

# One-way bytes/s of pinned copies over all lanes of a slot, as measured in practice; the table gives GB/s both ways.
_PCIE_PRACTICAL = {"PCIe3": (12e9, 32.0), "PCIe4": (25e9, 64.0), "PCIe5": (52e9, 128.0)}


@dataclass(frozen=True)
class Entry:
    """One row of the table in SI units: dense peaks with fp32 accumulation, per device as torch counts devices.

    A name in ``exact_names`` matches as a whole only; one in ``names`` also where another word follows it.
    ``sm_counts`` and ``memory_bytes`` hold every figure that the part is known to report; the first SM count is the one
    that the peaks belong to.
    """

    names: tuple[str, ...]
    exact_names: tuple[str, ...]
    vendor: str
    architecture: str
    sm_counts: tuple[int, ...]
    boost_mhz: float
    tensor_mhz: float
    peaks_flops_per_s: Mapping[str, float]
    bandwidth_bytes_per_s: float
    cache_bytes: float
    memory_bytes: tuple[float, ...]
    link_bytes_per_s: float | None
    source: str
    confidence: str
    notes: str

    @property
    def label(self) -> str:
        """The name to show: the first of the row."""
        return (self.names + self.exact_names)[0]


@cache
def entries() -> tuple[Entry, ...]:
    """Every row of table.csv, in its order."""
    return tuple(_entry(row) for row in read_rows("table.csv"))


@cache
def rates() -> Mapping[str, Mapping[str, float]]:
    """FLOPs per clock and multiprocessor by architecture and peak; 'special' holds special-function ops per clock."""
    return {
        row["architecture"]: {
            column.removesuffix("_flops_per_clock").removesuffix("_ops_per_clock"): float(value)
            for column, value in row.items()
            if column.endswith("_per_clock") and value and float(value) > 0
        }
        for row in read_rows("rates.csv")
    }


def read_rows(file: str) -> list[dict[str, str]]:
    """The rows of a CSV file of this package, cells as text."""
    with (HERE / file).open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def _entry(row: Mapping[str, str]) -> Entry:
    names = row["names"].split("|")
    return Entry(
        names=tuple(name for name in names if not name.startswith("=")),
        exact_names=tuple(name.removeprefix("=") for name in names if name.startswith("=")),
        vendor=row["vendor"],
        architecture=row["architecture"],
        sm_counts=tuple(int(count) for count in row["sm_count"].split("/")),
        boost_mhz=float(row["boost_mhz"]),
        tensor_mhz=float(row["tensor_mhz"]),
        peaks_flops_per_s={
            peak: float(row[f"{peak}_tflop_per_s"]) * 1e12 for peak in PEAKS if row[f"{peak}_tflop_per_s"]
        },
        bandwidth_bytes_per_s=float(row["dram_gb_per_s"]) * 1e9,
        cache_bytes=(float(row["l2_mib"] or 0) + float(row["last_level_mib"] or 0)) * MIB,
        memory_bytes=tuple(float(size) * GIB for size in row["memory_gib"].split("/")),
        link_bytes_per_s=_link(row["interconnect_gb_per_s_both_ways"]),
        source=row["source"],
        confidence=row["confidence"],
        notes=row["notes"],
    )


def _link(text: str) -> float | None:
    """One-way bytes/s between host and device; null where the row names no PCIe link.

    'PCIe4 x8 32' is half of a full PCIe4 slot: the figure in the text gives the width.
    """
    words = text.replace(";", " ").split()
    for generation, (practical, full) in _PCIE_PRACTICAL.items():
        if generation in words:
            figures = [word for word in words[words.index(generation) + 1 :] if word.replace(".", "").isdigit()]
            return practical * float(figures[0]) / full
    return None
