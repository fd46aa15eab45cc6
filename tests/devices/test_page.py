"""The reference page on devices is current and matches the code."""

import re
from pathlib import Path

from bottleneck.devices.catalogue import KNOWN_PEAKS, device_from_peaks_file, entries
from scripts.write_devices import PAGE_FILE, page, table

TEXT = PAGE_FILE.read_text(encoding="utf-8")


def test_the_table_of_the_page_is_current() -> None:
    assert page(TEXT) == TEXT, "python -m scripts.write_devices renews it"


def test_a_change_of_the_table_would_show() -> None:
    assert page(TEXT.replace("NVIDIA H200", "NVIDIA H201")) == TEXT


def test_there_is_a_line_for_every_row_and_as_many_cells_in_each() -> None:
    lines = table().splitlines()
    assert len(lines) == len(entries()) + 2
    assert len({line.count(" | ") for line in lines}) == 1


def test_every_known_peak_is_named() -> None:
    assert [peak for peak in KNOWN_PEAKS if f"`{peak}`" not in TEXT] == []


def test_the_example_of_a_peaks_file_is_one(tmp_path: Path) -> None:
    example = re.search(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    assert example
    path = tmp_path / "ours.toml"
    path.write_text(example[1])
    assert device_from_peaks_file(path).ridge_flops_per_byte["bf16_tensor"] > 100
