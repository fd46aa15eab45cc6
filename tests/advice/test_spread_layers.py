"""Rule of layers that compute the same rows many times over, since their input was spread before them."""

from pathlib import Path

import pytest

from bottleneck.advice import advise
from bottleneck.advice.spread_layers import spread_layer
from tests.advice.cases import program_line, two_steps
from tests.builders import Event, op

ROWS, JOINED, WEIGHT = [4, 32, 32, 128], [4, 32, 32, 256], [8, 256]
MODEL = [program_line(14, 700, 250), op("aten::mm", 710, 200, dims=[[64, 64], [64, 64]])]
EXPANDED = [[4096, 128, 0, 1], [4096, 0, 128, 1]]
FULL = [[131072, 4096, 128, 1], [131072, 4096, 128, 1]]


def layer(at_us: float, size: list[int], weight: list[int], name: str = "linear") -> Event:
    return op(f"aten::{name}", at_us, 200, dims=[size, weight, [weight[0]]])


def joined(strides: list[list[int]], *before: Event, rows: list[int] | None = None) -> list[Event]:
    """Two tensors joined at train.py:11 in 200 us, and a layer on what was joined in 200."""
    size = rows or ROWS
    cat = op("aten::cat", 210, 200, dims=[[size, size], []], concrete=["", "-1"])
    cat["args"]["Input Strides"] = [strides, []]
    wide = [*size[:-1], 2 * size[-1]]
    return [program_line(11, 100, 520), *before, cat, layer(410, wide, [8, wide[-1]])]


def test_a_layer_on_all_pairs_is_a_sum_of_a_product_for_each_part(tmp_path: Path) -> None:
    evidence = two_steps(tmp_path, [*joined(EXPANDED), *MODEL])
    draft = spread_layer(evidence)
    assert draft is not None and draft.gain_us is not None and draft.removes
    assert "at train.py:11" in draft.advice and "Split the layer's weight" in draft.advice
    assert "4x32x32x256" in draft.evidence[0] and "32 times" in draft.evidence[0]
    assert 200 < draft.gain_us.high < 400
    assert advise(evidence)[0].slug == "spread-layer"


def test_rows_that_an_index_picks_many_times_are_spread_too(tmp_path: Path) -> None:
    edges = [1024, 64]

    def picked(nodes: int) -> list[Event]:
        pick = [op("aten::index", at, 40, dims=[[nodes, 64], [[1024]]]) for at in (110, 160)]
        return [*joined([[64, 1], [64, 1]], *pick, rows=edges), *MODEL]

    draft = spread_layer(two_steps(tmp_path / "few", picked(32)))
    assert draft is not None and "32 times" in draft.evidence[0]
    assert spread_layer(two_steps(tmp_path / "many", picked(512))) is None


def test_tensors_that_hold_each_row_once_are_left_alone(tmp_path: Path) -> None:
    assert spread_layer(two_steps(tmp_path / "full", [*joined(FULL), *MODEL])) is None
    # Something that is not linear stands between.
    cat = joined(EXPANDED)
    relu = [*cat[:-1], op("aten::relu", 410, 50, dims=[JOINED]), layer(470, JOINED, WEIGHT)]
    assert spread_layer(two_steps(tmp_path / "relu", [*relu, *MODEL])) is None


def test_one_part_that_is_spread_is_told_with_its_share(tmp_path: Path) -> None:
    draft = spread_layer(two_steps(tmp_path, [*joined([EXPANDED[0], FULL[0]]), *MODEL]))
    assert draft is not None and draft.gain_us is not None and "50 % of the features" in draft.evidence[0]
    assert draft.gain_us.high < 300


@pytest.mark.parametrize("name", ["add", "sub"])
def test_a_layer_of_a_sum_of_broadcast_rows_goes_before_the_sum(tmp_path: Path, name: str) -> None:
    added = op(f"aten::{name}", 210, 200, dims=[[4, 32, 1, 256], [4, 1, 32, 256], []])
    draft = spread_layer(two_steps(tmp_path, [program_line(11, 100, 520), added, layer(410, JOINED, WEIGHT), *MODEL]))
    assert draft is not None and "before the sum" in draft.advice and "32 times" in draft.advice


def test_a_layer_on_expanded_rows_goes_before_the_expansion(tmp_path: Path) -> None:
    one = layer(410, JOINED, WEIGHT)
    one["args"]["Input Strides"] = [[8192, 0, 256, 1], [256, 1], [1]]
    draft = spread_layer(two_steps(tmp_path, [program_line(11, 100, 520), one, *MODEL]))
    assert draft is not None and "expand the result" in draft.advice and "32 times" in draft.evidence[0]


def test_a_layer_on_repeated_rows_goes_before_the_repetition(tmp_path: Path) -> None:
    copied = op("aten::reshape", 210, 200, dims=[[128, 32, 256], []], strides=[[256, 0, 1], []])
    repeat = op("aten::repeat", 210, 200, dims=[[128, 256], []], concrete=["", "[32, 1]"])
    for name, maker in (("copied", copied), ("repeat", repeat)):
        events = [program_line(11, 100, 520), maker, layer(410, [4096, 256], WEIGHT), *MODEL]
        draft = spread_layer(two_steps(tmp_path / name, events))
        assert draft is not None and "expand the result" in draft.advice and "32 times" in draft.evidence[0]


def gathered(nodes: int, width: int = 256, results: int = 8) -> list[Event]:
    """4,096 rows picked by an index at train.py:11 in 200 us, and a layer on them in 200."""
    pick = op("aten::index", 210, 200, dims=[[nodes, width], [[4096]]])
    return [program_line(11, 100, 520), pick, layer(410, [4096, width], [results, width]), *MODEL]


def test_a_layer_on_rows_that_an_index_picked_goes_before_the_index(tmp_path: Path) -> None:
    draft = spread_layer(two_steps(tmp_path, gathered(128)))
    assert draft is not None and draft.gain_us is not None
    assert "before the index at train.py:11" in draft.advice and "32 times" in draft.evidence[0]
    # The layer takes a 32nd of its 200 us, and the index 8 / 256 of its own.
    assert draft.gain_us.high == pytest.approx(400 - 200 / 32 - 200 * 8 / 256, rel=0.02)
    assert draft.gain_us.low == pytest.approx(draft.gain_us.high / 2)


def test_picking_wider_results_costs_what_the_layer_saves(tmp_path: Path) -> None:
    assert spread_layer(two_steps(tmp_path, gathered(128, width=64, results=256))) is None


def test_an_index_that_picks_each_row_about_once_is_no_spreading(tmp_path: Path) -> None:
    assert spread_layer(two_steps(tmp_path, gathered(2048))) is None
