"""The device table: sourced, dense, unambiguous, and in agreement with the rates of the architectures."""

import pytest

from bottleneck.devices.catalogue import Entry, entries, rates, read_rows
from bottleneck.devices.match import formula_peaks

ROWS = pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.label)
TENSORS = ("fp64_tensor", "tf32_tensor", "fp16_tensor", "bf16_tensor", "fp8_tensor", "int8_tensor", "fp4_tensor")

# Parts with one public boost clock, whose data sheet follows from rates x multiprocessors x clock.
DERIVABLE = (
    "Tesla P100-SXM2-16GB",
    "Tesla V100-SXM2-16GB",
    "Tesla V100-PCIE-16GB",
    "Tesla T4",
    "NVIDIA GeForce RTX 2080 Ti",
    "NVIDIA A100-SXM4-40GB",
    "NVIDIA A30",
    "NVIDIA A10",
    "NVIDIA A40",
    "NVIDIA RTX A6000",
    "NVIDIA GeForce RTX 3090",
    "NVIDIA L4",
    "NVIDIA RTX 6000 Ada Generation",
    "NVIDIA GeForce RTX 4090",
    "NVIDIA GeForce RTX 5090",
    "AMD Instinct MI100",
    "AMD Instinct MI210",
    "AMD Instinct MI300X",
    "AMD Instinct MI355X",
)


def row_of(label: str) -> Entry:
    return next(entry for entry in entries() if entry.label == label)


def raw_of(label: str) -> dict[str, str]:
    return next(row for row in read_rows("table.csv") if row["names"].split("|")[0].removeprefix("=") == label)


def test_no_part_of_the_table_is_lost() -> None:
    assert len(entries()) >= 148


@ROWS
def test_a_row_names_its_source(entry: Entry) -> None:
    assert len(entry.source) >= 8
    assert entry.confidence in {"A", "B", "C"}


@ROWS
def test_a_row_has_positive_ceilings(entry: Entry) -> None:
    assert entry.peaks_flops_per_s
    assert all(value > 0 for value in entry.peaks_flops_per_s.values())
    assert entry.bandwidth_bytes_per_s > 0
    assert all(count > 0 for count in entry.sm_counts)


@ROWS
def test_half_precision_is_never_slower_than_single(entry: Entry) -> None:
    peaks = entry.peaks_flops_per_s
    if "fp16_tensor" in peaks and "fp32_vector" in peaks:
        assert peaks["fp16_tensor"] >= peaks["fp32_vector"]
    if "tf32_tensor" in peaks:
        assert peaks["fp16_tensor"] >= peaks["tf32_tensor"] * 0.99


@ROWS
def test_tensor_peaks_are_dense(entry: Entry) -> None:
    """A sparse figure is twice what the architecture can do at the row's own clock."""
    possible = formula_peaks(entry.architecture, entry.sm_counts[0], entry.boost_mhz, entry.tensor_mhz)
    for peak in TENSORS:
        if peak in entry.peaks_flops_per_s and peak in possible:
            assert entry.peaks_flops_per_s[peak] <= possible[peak] * 1.1, peak


def test_the_check_on_density_would_catch_a_sparse_peak() -> None:
    entry = row_of("NVIDIA L4")
    possible = formula_peaks(entry.architecture, entry.sm_counts[0], entry.boost_mhz, entry.tensor_mhz)
    assert 2 * entry.peaks_flops_per_s["bf16_tensor"] > possible["bf16_tensor"] * 1.1


def test_no_name_stands_in_two_rows() -> None:
    names = [name for entry in entries() for name in entry.names + entry.exact_names]
    assert len(names) == len(set(names))


@ROWS
def test_the_architecture_of_a_row_has_rates(entry: Entry) -> None:
    assert entry.architecture in rates()


@pytest.mark.parametrize("label", DERIVABLE)
def test_rates_times_clock_reproduce_the_data_sheet(label: str) -> None:
    entry = row_of(label)
    derived = formula_peaks(entry.architecture, entry.sm_counts[0], entry.boost_mhz, entry.tensor_mhz)
    compared = entry.peaks_flops_per_s.keys() & derived.keys()
    assert len(compared) >= 3
    for peak in compared:
        # A sheet that prints one decimal ('0.5' TFLOP/s of fp64) is itself only good to half of its last digit.
        printed = raw_of(label)[f"{peak}_tflop_per_s"]
        half_digit = 0.5 * 10 ** -len(printed.partition(".")[2]) * 1e12
        assert abs(entry.peaks_flops_per_s[peak] - derived[peak]) <= 0.01 * derived[peak] + half_digit, peak


def test_geforce_boards_carry_the_halved_rate_of_fp32_accumulation() -> None:
    assert row_of("NVIDIA GeForce RTX 4090").peaks_flops_per_s["bf16_tensor"] == pytest.approx(165.2e12)
    assert row_of("NVIDIA RTX 6000 Ada Generation").peaks_flops_per_s["bf16_tensor"] == pytest.approx(364.2e12)


def test_cache_counts_the_last_level_too() -> None:
    assert row_of("AMD Instinct MI300X").cache_bytes == (32 + 256) * 2**20
    assert row_of("NVIDIA H100 80GB HBM3").cache_bytes == 50 * 2**20


@pytest.mark.parametrize(
    ("label", "link"),
    [
        ("Tesla T4", 12e9),
        ("NVIDIA L4", 25e9),
        ("NVIDIA A2", 12.5e9),  # half the lanes
        ("NVIDIA H100 PCIe", 52e9),
        ("NVIDIA A100-SXM4-80GB", 25e9),
        ("NVIDIA A40", None),  # the row names only NVLink
    ],
)
def test_the_link_to_the_host_is_what_pinned_copies_reach(label: str, link: float | None) -> None:
    assert row_of(label).link_bytes_per_s == link
