"""Samples in memory that a loader fetches one by one are told apart from samples that cost something."""

from pathlib import Path

import pytest

from bottleneck.advice import RULES, data_loading
from bottleneck.advice.row_fetching import row_fetching
from bottleneck.advice.slow_calls import without_general
from bottleneck.schema.evidence import Evidence
from tests.advice.cases import case_of
from tests.advice.test_data_loading import LENGTH, ONE, SEVERAL, loading_case, loading_events
from tests.builders import Event, frame, op


def samples(count: int, each_us: float) -> tuple[Event, ...]:
    """So many calls of __getitem__ one after the other, and the collating of the batch, in a load of 12 ms."""
    fetch = [frame("train.py(26): __getitem__", 10 + each_us * number, 0.9 * each_us) for number in range(count)]
    return (*fetch, frame("torch/utils/data/_utils/collate.py(398): default_collate", 10 + each_us * count, 1_000))


def fetching(folder: Path, count: int, each_us: float, load_us: float = 12_000.0, **more: object) -> Evidence:
    return loading_case(folder, load_us, inside=samples(count, each_us), **more)


def test_cheap_samples_that_are_fetched_one_by_one_are_to_be_indexed_as_a_batch(tmp_path: Path) -> None:
    case = fetching(tmp_path, 512, 20.0)
    draft = row_fetching(case)
    assert draft is not None and draft.gain_us is not None and draft.comes_first
    assert "23.4 us for each of 512 samples" in draft.evidence[0]
    assert "BatchSampler" in draft.advice and "__getitem__() (train.py:26) runs for each sample" in draft.advice
    assert 7_000 < draft.gain_us.low < draft.gain_us.high < 12_000
    drafts = [made for rule in RULES if (made := rule(case)) is not None]
    kept = {each.slug for each in without_general(drafts)}
    assert kept >= {"row-fetching", "input-wait"} and kept.isdisjoint({"loader-hot-spot", "loader-without-workers"})
    wait = data_loading.input_wait(case)
    assert wait is not None and "row-fetching" in wait.remedies


@pytest.mark.parametrize(
    ("count", "each_us", "more"),
    [
        (16, 700.0, {}),  # each sample is decoded, or made
        (8, 20.0, {"load_us": 1_400.0}),  # few samples
        (512, 20.0, {"kind": SEVERAL}),  # workers fetch them: this process does not see how
    ],
)
def test_samples_that_cost_something_are_another_matter(
    tmp_path: Path, count: int, each_us: float, more: dict[str, object]
) -> None:
    assert row_fetching(fetching(tmp_path, count, each_us, **more)) is None  # type: ignore[arg-type]


def test_samples_that_cost_nothing_are_known_by_the_collating(tmp_path: Path) -> None:
    def collated(us: float) -> tuple[Event, ...]:
        return (frame("torch/utils/data/_utils/collate.py(398): default_collate", 50, us),)

    draft = row_fetching(loading_case(tmp_path / "all", 12_000.0, inside=collated(9_000.0)))
    assert draft is not None and "takes 75" in draft.evidence[1]
    assert row_fetching(loading_case(tmp_path / "part", 12_000.0, inside=collated(3_000.0))) is None


def test_samples_that_a_function_of_its_own_puts_together_are_no_rows_of_a_tensor(tmp_path: Path) -> None:
    """A loader of graphs was told to index all samples of a batch at once, which a list of graphs cannot."""
    *fetch, _ = samples(512, 20.0)
    own = frame("torch_geometric/loader/dataloader.py(27): __call__", 10 + 20.0 * 512, 1_000)
    assert row_fetching(loading_case(tmp_path, 12_000.0, inside=(*fetch, own))) is None


@pytest.mark.parametrize(
    ("rows", "is_told"), [(512, True), (8, False), (100, False)], ids=["cheap", "few", "each costs something"]
)
def test_without_python_calls_rows_that_are_taken_tell_the_samples(tmp_path: Path, rows: int, is_told: bool) -> None:
    """A load of 12 ms takes a row of each of two tensors for a sample, and stacks each."""
    taken = [op("aten::select", 10 + 20 * number, 2) for number in range(rows)]
    inside = (*taken, *(op("aten::stack", 11_000 + 100 * field, 50) for field in range(2)))
    recorded = [event for event in loading_events(12_000.0, ONE, inside=inside) if event["cat"] != "python_function"]
    draft = row_fetching(case_of(tmp_path, recorded, unprofiled_us=LENGTH))
    assert (draft is not None) is is_told
    if draft is not None:
        assert "36.1 us for each of 256 samples" in draft.evidence[0]
