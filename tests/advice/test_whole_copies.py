"""Rule of writes to few rows of a large tensor that copy all of it."""

from pathlib import Path

import pytest

from bottleneck.advice import advise
from bottleneck.advice.whole_copies import whole_tensor_copy
from bottleneck.schema.evidence import Evidence
from tests.advice.cases import program_line, two_steps
from tests.builders import Event, op

BANK = [20000, 64]
MODEL = [program_line(50, 700, 250), op("aten::mm", 710, 200, dims=[[64, 64], [64, 64]])]


def write(name: str, *, rows: int = 64, dur: float = 400, ts: float = 110) -> Event:
    """A write of so many rows into the bank."""
    return op(name, ts, dur, dims=[BANK, [], [rows], [rows, 64]], concrete=["", "0", "", ""])


def case(folder: Path, *ops: Event, text: str = "") -> Evidence:
    return two_steps(folder, [program_line(34, 100, 500), *ops, *MODEL], source_texts={"train.py:34": text})


def test_a_write_out_of_place_is_to_be_one_in_place(tmp_path: Path) -> None:
    evidence = case(tmp_path, write("aten::index_copy"))
    draft = whole_tensor_copy(evidence)
    assert draft is not None and draft.gain_us is not None and draft.removes
    assert "Write in place at train.py:34: index_copy_ (or x[rows] = new)" in draft.advice
    assert "changes 0.3 %" in draft.evidence[0] and "1 time per step" in draft.evidence[0]
    assert 250 < draft.gain_us.low < draft.gain_us.high < 510
    assert advise(evidence)[0].slug == "whole-tensor-copy"
    fill = op("aten::index_fill", 110, 400, dims=[BANK, [], [64], []], concrete=["", "0", "", "0"])
    filled = whole_tensor_copy(case(tmp_path / "fill", fill))
    assert filled is not None and "index_fill_" in filled.advice


def test_a_clone_of_which_few_rows_are_written_is_not_needed(tmp_path: Path) -> None:
    clone = op("aten::clone", 110, 400, dims=[BANK, []])
    draft = whole_tensor_copy(case(tmp_path / "few", clone, write("aten::index_put_", dur=5, ts=520)))
    assert draft is not None and "index_put_ on the tensor itself in place of clone" in draft.advice
    assert whole_tensor_copy(case(tmp_path / "alone", clone)) is None
    all_of_it = write("aten::index_put_", rows=20000, dur=50, ts=520)
    assert whole_tensor_copy(case(tmp_path / "all", clone, all_of_it)) is None


@pytest.mark.parametrize(
    ("text", "mask", "is_told"),
    [
        ("bank = torch.where(seen[:, None], new, bank)", [20000, 1], True),
        ("bank = torch.where(seen, new, bank)", BANK, False),
        ("mixed = torch.where(seen[:, None], new, bank)", [20000, 1], False),
        # A mask over the last dimension, as a causal one for all heads, chooses no rows.
        ("bank = torch.where(seen, new, bank)", BANK[-1:], False),
    ],
)
def test_a_choice_by_rows_that_replaces_its_own_tensor(
    tmp_path: Path, text: str, mask: list[int], is_told: bool
) -> None:
    draft = whole_tensor_copy(case(tmp_path, op("aten::where", 110, 400, dims=[mask, BANK, BANK]), text=text))
    assert (draft is not None) == is_told


def test_writes_of_most_rows_in_place_or_of_little_time_are_left_alone(tmp_path: Path) -> None:
    assert whole_tensor_copy(case(tmp_path / "most", write("aten::index_add", rows=15000))) is None
    assert whole_tensor_copy(case(tmp_path / "place", write("aten::index_add_"))) is None
    assert whole_tensor_copy(case(tmp_path / "little", write("aten::index_add", dur=20))) is None
