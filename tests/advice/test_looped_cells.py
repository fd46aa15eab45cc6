"""Rule of recurrent cells that are called once per time step."""

from pathlib import Path
from typing import Any

import pytest

from bottleneck.advice.looped_cells import looped_cell
from bottleneck.advice.recurrent_cells import saved_by_sequence_us
from bottleneck.schema.evidence import Evidence
from tests.advice.cases import two_steps
from tests.builders import Event, op


def cells(count: int, cell: str = "lstm_cell", us: float = 30, **types: Any) -> list[Event]:
    """So many calls of a cell, each with a product inside."""
    sizes = [[8, 32], [32, 128]]
    types = {"dims": sizes, **types}
    calls = []
    for number in range(count):
        at = 100.0 + (us + 5) * number
        calls += [op(f"aten::{cell}", at, us, **types), op("aten::mm", at + 2, us - 4, dims=sizes)]
    return calls


def case(folder: Path, count: int, cell: str = "lstm_cell", us: float = 30, **types: Any) -> Evidence:
    return two_steps(folder, cells(count, cell, us, **types))


def test_small_cells_lose_most_of_their_time_in_the_module_of_the_sequence(tmp_path: Path) -> None:
    evidence = case(tmp_path, 20)
    draft = looped_cell(evidence)
    assert draft is not None and draft.gain_us is not None
    assert "torch.nn.LSTM " in draft.advice and "20 calls of aten::lstm_cell" in draft.evidence[0]
    python_us = draft.claims["overhead.python"]
    whole_us = sum(draft.claims.values()) - python_us
    # Nothing but cells runs, and the module has no Python between them.
    assert python_us == pytest.approx(evidence.account_us("overhead.python"))
    assert draft.gain_us.high == pytest.approx(0.9 * whole_us + python_us)
    assert draft.gain_us.low == pytest.approx(0.12 * whole_us + 15 * 20)
    assert draft.removes  # so that it stands before compiling the same loop


def test_other_cells_gain_less_and_few_calls_are_no_loop(tmp_path: Path) -> None:
    small, other = (looped_cell(case(tmp_path / cell, 20, cell)) for cell in ("lstm_cell", "gru_cell"))
    assert small is not None and other is not None
    assert small.gain_us is not None and other.gain_us is not None
    assert other.gain_us.low < small.gain_us.low and other.gain_us.high < small.gain_us.high
    assert looped_cell(case(tmp_path / "few", 8)) is None


@pytest.mark.parametrize(
    ("us", "saved_us"),
    [(76, 67), (134, 102), (263, 181), (831, 446), (729, 451), (2488, 1378), (18, 16), (95, 67), (821, 500)],
)
def test_an_lstm_saves_what_was_measured_of_its_cells(us: float, saved_us: float) -> None:
    """Time of a cell and what the module saves of it: 32 to 512 numbers, training and inference, EPYC, one thread."""
    low_us, high_us = saved_by_sequence_us("LSTM", 50 * us, 50)
    assert low_us <= 50 * saved_us <= high_us


def test_in_fp64_the_module_runs_the_same_ops_and_may_where_no_type_is_known(tmp_path: Path) -> None:
    assert looped_cell(case(tmp_path / "double", 20, types=["double", "double"])) is None
    unknown = looped_cell(case(tmp_path / "unknown", 20, dims=None))
    assert unknown is not None and unknown.gain_us is not None
    in_cells_us = sum(unknown.claims.values()) - unknown.claims["overhead.python"]
    assert unknown.gain_us.low == pytest.approx(-0.1 * in_cells_us) and not unknown.removes
    assert unknown.gain_us.high > 0


@pytest.mark.parametrize(("name", "is_told"), [("aten::softmax", False), ("aten::log_softmax", True)])
def test_cells_that_are_fed_by_attention_over_their_outputs_are_left_alone(
    tmp_path: Path, name: str, is_told: bool
) -> None:
    between = [op(name, 100.0 + 35 * number + 31, 3, dims=[[8, 32], []]) for number in range(19)]
    assert (looped_cell(two_steps(tmp_path, [*cells(20), *between])) is not None) == is_told
