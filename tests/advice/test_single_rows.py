"""Recurrent layers that get one sequence, or one step of a sequence, at a time."""

from pathlib import Path

import pytest

from bottleneck.advice.looped_cells import stepped_layer
from bottleneck.advice.single_rows import single_row
from bottleneck.schema.evidence import Evidence
from tests.advice.cases import case_of, with_recording
from tests.builders import Event, op, step


def calls(layer: str, given: list[int] | None, state: list[int], count: int, us: float) -> list[Event]:
    """Two steps of 10 ms with calls of a layer that follow each other."""
    sizes = None if given is None else [given, state, state, [160, given[2]], [160, state[2]], [160], [160]]
    events: list[Event] = []
    for number in range(2):
        at = 10_000.0 * number
        events.append(step(number, at, 9_990))
        events += [op(f"aten::{layer}", at + 10 + us * call, us - 1, dims=sizes) for call in range(count)]
    return events


def case(folder: Path, given: list[int] | None, state: list[int], count: int, layer: str = "lstm") -> Evidence:
    return case_of(folder, calls(layer, given, state, count, 9000.0 / count), unprofiled_us=10_000.0)


@pytest.mark.parametrize("given", [[1, 64, 25], [64, 1, 25]], ids=["steps first", "rows first"])
def test_a_layer_that_gets_one_step_in_each_call_can_have_the_whole_sequence(tmp_path: Path, given: list[int]) -> None:
    """DeepAR called its LSTM 192 times a step: the whole window in one call made it 3.4 to 3.9 times as fast."""
    draft = stepped_layer(case(tmp_path, given, [3, 64, 40], 90))
    assert draft is not None and draft.gain_us is not None and draft.slug == "looped-cell"
    assert draft.evidence[0] == "90 calls of aten::lstm per step, each for one step of a sequence"
    assert draft.gain_us.low == pytest.approx(0.75 * 9000, rel=0.03)
    assert draft.gain_us.high == pytest.approx(0.97 * 9000, rel=0.03)


def test_wide_states_and_other_layers_gain_less(tmp_path: Path) -> None:
    wide = stepped_layer(case(tmp_path / "wide", [1, 64, 25], [1, 64, 512], 90))
    other = stepped_layer(case(tmp_path / "gru", [1, 64, 25], [1, 64, 512], 90, "gru"))
    assert wide is not None and wide.gain_us is not None and other is not None and other.gain_us is not None
    assert wide.gain_us.low == pytest.approx(0.3 * 9000, rel=0.03)
    assert other.gain_us.high == pytest.approx(0.45 * 9000, rel=0.03)


@pytest.mark.parametrize(
    ("given", "count"), [([20, 64, 25], 90), ([1, 64, 25], 4)], ids=["whole sequences", "a few calls"]
)
def test_whole_sequences_and_few_calls_are_left_alone(tmp_path: Path, given: list[int], count: int) -> None:
    assert stepped_layer(case(tmp_path, given, [1, 64, 40], count)) is None


@pytest.mark.parametrize(("carried", "is_told"), [("train.py:94", False), ("", True)])
def test_a_layer_whose_output_makes_its_next_input_needs_its_loop(tmp_path: Path, carried: str, is_told: bool) -> None:
    lines = (carried,) if carried else ()
    followed = with_recording(case(tmp_path, [1, 64, 25], [3, 64, 40], 90), carried_lines=lines)
    assert (stepped_layer(followed) is not None) == is_told


def test_without_sizes_it_is_a_guess_from_none(tmp_path: Path) -> None:
    draft = stepped_layer(case(tmp_path, None, [3, 64, 40], 90))
    assert draft is not None and draft.gain_us is not None and draft.gain_us.low == 0
    assert draft.evidence[0].endswith("sizes were not recorded") and draft.confidence == "low"
    assert draft.title == "torch.nn.LSTM is called 90 times per step, perhaps for one step of a sequence each"


def test_one_sequence_at_a_time_is_worth_a_batch(tmp_path: Path) -> None:
    """An autoencoder of sequences: batches of 32 gave 2.6 to 4.3 times as many sequences per second."""
    draft = single_row(case(tmp_path, [140, 1, 8], [1, 1, 256], 4))
    assert draft is not None and draft.gain_us is not None and draft.per == "sample"
    assert draft.evidence[0].startswith("its input has one row of 140 steps")
    assert draft.gain_us.low == pytest.approx(0.6 * 9000, rel=0.03)
    assert draft.gain_us.high == pytest.approx(0.85 * 9000 + 0.75 * 1000, rel=0.05)


@pytest.mark.parametrize("given", [[140, 16, 8], [1, 1, 8]], ids=["a batch", "one step"])
def test_batches_and_single_steps_are_left_alone(tmp_path: Path, given: list[int]) -> None:
    assert single_row(case(tmp_path, given, [1, given[1], 256], 4)) is None
