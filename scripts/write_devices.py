"""Writes the table of the reference page on devices: ``python -m scripts.write_devices``.

It follows from the device table of the package; a test holds that it is current.
"""

from collections.abc import Sequence
from pathlib import Path

from bottleneck.devices.catalogue import Entry, entries

PAGE_FILE = Path(__file__).parents[1] / "docs" / "reference" / "devices.md"
BEGIN = "<!-- written by scripts/write_devices.py: begin -->"
END = "<!-- written by scripts/write_devices.py: end -->"

_HEADINGS = ("device", "SMs", "fp64", "fp32 vector", "tf32", "fp16", "bf16", "fp8", "int8", "GB/s", "cache", "memory",
             "link", "conf.", "source")  # fmt: skip
_PEAK_COLUMNS = ("fp64_vector", "fp32_vector", "tf32_tensor", "fp16_tensor", "bf16_tensor", "fp8_tensor", "int8_tensor")


def table() -> str:
    """One line per row of the device table, with its headings."""
    rows = [_HEADINGS, ["---"] * len(_HEADINGS), *(_cells(entry) for entry in entries())]
    return "\n".join(map(_line, rows)) + "\n"


def page(text: str) -> str:
    """The page with its table renewed; what stands around it is written by hand."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{table()}{END}{rest.split(END)[1]}"


def _cells(entry: Entry) -> list[str]:
    peaks = [entry.peaks_flops_per_s.get(name) for name in _PEAK_COLUMNS]
    return [
        ", ".join(entry.names + entry.exact_names),
        "/".join(map(str, entry.sm_counts)),
        *("" if peak is None else f"{peak / 1e12:g}" for peak in peaks),
        f"{entry.bandwidth_bytes_per_s / 1e9:g}",
        f"{entry.cache_bytes / 2**20:g}",
        "/".join(f"{size / 2**30:g}" for size in entry.memory_bytes),
        "" if entry.link_bytes_per_s is None else f"{entry.link_bytes_per_s / 1e9:g}",
        entry.confidence,
        entry.source,
    ]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    PAGE_FILE.write_text(page(PAGE_FILE.read_text(encoding="utf-8")), encoding="utf-8")
