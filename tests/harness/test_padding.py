"""The sample of padding in the ids that embeddings get."""

from pathlib import Path
from typing import Any

import pytest

from bottleneck.harness.padding import PaddingSampler
from bottleneck.schema.measurements import Padding
from tests.harness.driver import record

torch: Any = pytest.importorskip("torch")


def sampled(*batches: list[list[int]], model: Any = None) -> Padding | None:
    """The sample of these batches of ids."""
    model = torch.nn.Embedding(100, 4) if model is None else model
    sampler = PaddingSampler()
    sampler.start(torch)
    assert sampler.is_on
    for batch in batches:
        model(torch.tensor(batch))
    found = sampler.stop()
    model(torch.tensor([[1, 2]]))
    assert not sampler.is_on and sampler.stop() is None
    return found


def test_repeated_ids_at_the_end_of_rows_are_padding() -> None:
    batch = [[5, 6, 7, 0, 0, 0], [5, 6, 0, 0, 0, 0], [1, 2, 3, 4, 5, 0]]
    assert sampled(batch) == Padding(share=7 / 18, rows=3, columns=6)


def test_padding_at_the_beginning_counts_as_well() -> None:
    assert sampled([[9, 9, 9, 1], [9, 9, 2, 3]]) == Padding(share=5 / 8, rows=2, columns=4)


def test_rows_without_padding_have_none_and_a_word_said_twice_by_one_row_is_little() -> None:
    assert sampled([[1, 2, 3], [4, 5, 6]]) == Padding(share=0.0, rows=2, columns=3)


def test_of_an_embedding_that_names_its_padding_only_that_id_counts() -> None:
    named = torch.nn.Embedding(100, 4, padding_idx=0)
    assert sampled([[7, 7, 7, 7], [5, 0, 0, 0], [3, 4, 5, 0]], model=named) == Padding(share=4 / 12, rows=3, columns=4)


def test_segments_are_no_padding() -> None:
    assert sampled([[1, 1, 1, 2, 2, 2]], model=torch.nn.Embedding(3, 4)) is None
    named = torch.nn.Embedding(3, 4, padding_idx=0)
    assert sampled([[1, 1, 2, 2, 2, 0]], model=named) == Padding(share=1 / 6, rows=1, columns=6)


def test_several_batches_add_up_and_positions_in_one_row_are_no_rows() -> None:
    assert sampled([[1, 0, 0, 0]], [[1, 2, 3, 4]]) == Padding(share=3 / 8, rows=2, columns=4)
    assert sampled(model=torch.nn.Embedding(100, 2)) is None
    only_positions = PaddingSampler()
    only_positions.start(torch)
    torch.nn.Embedding(100, 2)(torch.arange(4))
    assert only_positions.stop() is None


def test_ids_on_a_device_are_looked_at_where_asked() -> None:
    model, ids = torch.nn.Embedding(100, 4, device="meta"), torch.zeros(2, 4, dtype=torch.long, device="meta")
    for on_devices in (False, True):
        sampler = PaddingSampler()
        sampler.start(torch, on_devices=on_devices)
        model(ids)
        assert sampler.stop() is None  # such a tensor has no values, and looking at them fails in silence


def frames_of(*batches: Any, model: Any = None) -> Padding | None:
    """The sample of these batches of numbers."""
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.ReLU()) if model is None else model
    sampler = PaddingSampler()
    sampler.start(torch)
    for batch in batches:
        model(batch)
    return sampler.stop()


def spectrograms(*lengths: int, longest: int = 40, features: int = 8) -> Any:
    """Rows of frames that are not zero, padded to the longest: rows x 1 x features x frames."""
    batch = torch.zeros(len(lengths), 1, features, longest)
    for row, length in enumerate(lengths):
        batch[row, 0, :, :length] = 1.0
    return batch


def test_frames_of_zeros_behind_shorter_rows_are_padding() -> None:
    batch = spectrograms(40, 30, 20, 10)
    padding = Padding(share=60 / 160, rows=4, columns=40, unit="frame")
    assert frames_of(batch) == padding
    assert frames_of(batch.squeeze(1).transpose(1, 2)) == padding  # rows x frames x features
    assert frames_of(batch, batch) == Padding(share=60 / 160, rows=8, columns=40, unit="frame")


def test_zeros_that_every_row_ends_in_are_no_padding() -> None:
    assert frames_of(spectrograms(30, 20, 20, 10)) is None  # the border of pictures
    assert frames_of(torch.zeros(4, 1, 8, 40)) is None  # a state that nothing was written to yet
    assert frames_of(spectrograms(40, 40, 40, 40)) is None
    assert frames_of(spectrograms(*[40] * 9, 30)) is None  # one row of ten
    assert frames_of(spectrograms(8, 4, longest=8)) is None  # too few frames
    assert frames_of(torch.zeros(4, 40)) is None


def test_only_what_the_model_gets_is_looked_at() -> None:
    class Masked(torch.nn.Module):  # type: ignore[misc]
        """Makes padded rows of its own."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.ReLU()

        def forward(self, batch: Any) -> Any:
            """Cuts the rows."""
            return self.inner(batch * spectrograms(40, 30, 20, 10))

    assert frames_of(spectrograms(40, 40, 40, 40), model=Masked()) is None


def test_the_larger_part_of_ids_and_frames_is_told() -> None:
    class Both(torch.nn.Module):  # type: ignore[misc]
        """Gets frames, and looks ids up."""

        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(100, 4, padding_idx=0)

        def forward(self, batch: Any, ids: Any) -> Any:
            """Uses both."""
            return batch.sum() + self.table(ids).sum()

    for ids, unit in (([[1, 2, 3, 0]] * 4, "frame"), ([[1, 0, 0, 0]] * 4, "id")):
        sampler, model = PaddingSampler(), Both()
        sampler.start(torch)
        model(spectrograms(40, 30, 20, 10), torch.tensor(ids))
        padding = sampler.stop()
        assert padding is not None and padding.unit == unit


PROGRAM = """
import torch

model = torch.nn.Sequential(torch.nn.Embedding(50, 8), torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
ids = torch.tensor([[1, 2, 3, 0, 0, 0, 0, 0]] * 4)
for _ in range(80):
    optimizer.zero_grad()
    model(ids).sum().backward()
    optimizer.step()
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("options", "padding"),
    [(("--inspect-padding",), Padding(5 / 8, 4, 8)), ((), Padding(5 / 8, 4, 8))],
    ids=["asked for", "on a CPU"],
)
def test_a_recording_holds_the_sample_where_it_was_asked_for(
    tmp_path: Path, options: tuple[str, ...], padding: Padding | None
) -> None:
    assert record(tmp_path, PROGRAM, *options).recording.padding == padding
