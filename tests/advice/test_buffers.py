"""Tensors that are copied as a whole to add to them, told by the text of their lines."""

from pathlib import Path

import pytest

from bottleneck.advice.buffers import moved_buffer
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.op_names import backward_of
from bottleneck.schema.records import replace
from tests.advice.cases import program_line, two_steps, with_analysis, with_recording
from tests.builders import frame, op

ROWS = [[9996, 64], [4, 64]]


def joining(folder: Path, text: str, join_us: float = 400.0) -> Evidence:
    """Two steps of 1 ms in which train.py:12, which says this, runs an op, and train.py:20 a product."""
    body = [
        program_line(12, 10, join_us + 5),
        op("aten::cat", 12, join_us, dims=[ROWS, []]),
        program_line(20, 500, 400),
        op("aten::mm", 510, 380, dims=[[64, 64], [64, 64]]),
    ]
    return with_recording(two_steps(folder, body), source_texts={"train.py:12": text, "train.py:20": "y = x @ w"})


@pytest.mark.parametrize(
    "text",
    [
        "memory = torch.cat([memory[4:], rows])",
        "self.keys = torch.cat((self.keys, key), dim=2)",
        "memory = torch.roll(memory, -1, 0)",
        "memory = memory.roll(shifts=-1, dims=0)",
        "memory[:-1] = memory[1:].clone()",
    ],
)
def test_a_tensor_that_is_copied_to_add_to_it_is_to_be_written_in_place(tmp_path: Path, text: str) -> None:
    draft = moved_buffer(joining(tmp_path, text))
    assert draft is not None and draft.gain_us is not None
    assert "train.py:12" in draft.advice and "ring buffer" in draft.advice and draft.removes and draft.comes_first
    assert 300 < draft.gain_us.low <= draft.gain_us.high < 600


@pytest.mark.parametrize(
    "text",
    [
        "x = torch.cat([a, b], dim=1)",
        "y = torch.roll(x, self.shift, 1)",
        "s = torch.roll(f, 1, 0) + torch.roll(f, -1, 0)",
        "x = self.layer(x)",
        "x[1:] = y[:-1]",
    ],
)
def test_an_ordinary_join_is_none(tmp_path: Path, text: str) -> None:
    assert moved_buffer(joining(tmp_path, text)) is None


def test_a_short_join_and_one_that_is_trained_through_are_none(tmp_path: Path) -> None:
    text = "x = torch.cat([x, self.block(x)], dim=1)"
    assert moved_buffer(joining(tmp_path / "short", text, join_us=20.0)) is None
    case = joining(tmp_path / "trained", text)
    assert moved_buffer(case) is not None
    backward = replace(case.analysis.lines[0], name=backward_of("train.py:12"))
    assert moved_buffer(with_analysis(case, lines=(*case.analysis.lines, backward))) is None


@pytest.mark.parametrize(
    ("slice_at", "sliced", "is_told"),
    [(11.0, [10000, 64], True), (413.0, [10000, 64], True), (11.0, [20000, 64], False)],
)
def test_sizes_show_a_queue_that_is_made_anew_where_no_line_is_recorded(
    tmp_path: Path, slice_at: float, sliced: list[int], is_told: bool
) -> None:
    """`cat([queue[4:], new])` or `cat([queue, new])[-size:]`; a part of another tensor is none."""
    body = [
        op("aten::slice", slice_at, 0.5, dims=[sliced, [], [], [], []]),
        op("aten::cat", 12, 400, dims=[ROWS, []], concrete=["", "0"]),
        op("aten::mm", 510, 380, dims=[[64, 64], [64, 64]]),
    ]
    draft = moved_buffer(two_steps(tmp_path, [frame("train.py(26): enqueue", 5, 900), *body]))
    assert (draft is not None) == is_told
    if draft is not None:
        assert "in enqueue() (train.py:26)" in draft.advice and draft.comes_first
