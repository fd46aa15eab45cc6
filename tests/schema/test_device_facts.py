"""Facts of boards and generations: rows name what the tables of devices have, and boards go by their longest row."""

import pytest

from bottleneck.devices.catalogue import entries, kernel_names, kinds_by_vendor, rates, usual_names
from bottleneck.schema.device_facts import Generation, attention_kernels, board_of, generation_of, read_rows

SHARES = ("tensor_share", "attention_share", "memory_share", "lanes_share", "reached")


@pytest.mark.parametrize("file", ["generations.csv", "kernel_names.csv", "attention.csv"])
def test_a_row_is_of_architectures_that_have_rates(file: str) -> None:
    named = {architecture for row in read_rows(file) for architecture in row["architectures"].split("|")}
    assert named and named <= rates().keys()


@pytest.mark.parametrize("file", ["generations.csv", "boards.csv", "attention.csv"])
def test_a_row_names_its_source_and_its_shares_are_shares(file: str) -> None:
    for row in read_rows(file):
        assert len(row["source"]) >= 8
        assert all(0 < float(row[share]) <= 1 for share in SHARES if row.get(share))


def test_each_vendor_has_its_kind_and_each_usual_name_one_device() -> None:
    assert {entry.vendor for entry in entries()} == kinds_by_vendor().keys()
    called = [name for entry in entries() for name in entry.called]
    assert len(called) == len(set(called)) == len(usual_names())


def test_a_board_is_that_of_the_longest_row_that_begins_its_name() -> None:
    assert board_of("NVIDIA H20") != board_of("NVIDIA H200")
    assert board_of("NVIDIA L40S") == board_of("NVIDIA L40") != board_of("NVIDIA L4")
    begins = [row["name_begins"] for row in read_rows("boards.csv")]
    labels = [name for entry in entries() for name in entry.names + entry.exact_names]
    assert [begin for begin in begins if not any(label.startswith(begin) for label in labels)] == []
    timed = {name for row in read_rows("boards.csv") for name in row["timed"].split("|") if name}
    assert timed <= set(labels)


def test_what_has_no_row_is_like_the_others() -> None:
    assert generation_of(None) == generation_of("3.7") == Generation()
    assert Generation().older.search("ampere_sgemm") is None
    assert attention_kernels(None) == ()
    assert (board_of("someone's board").memory_share, kernel_names()[0].architectures != ()) == (1.0, True)
