import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bottleneck.experiment.interventions import loaders
from bottleneck.experiment.interventions.loaders import BATCH_CHANGES, CHANGES, double_batch
from bottleneck.experiment.interventions.subject import NotApplicable, Subject, make_subject, subject_of

torch: Any = pytest.importorskip("torch")
data = torch.utils.data
WORKERS, PIN, REPLAY = CHANGES


class Numbers(data.Dataset):
    """Its own indices, with the process that read them; counts what is read in this process."""

    def __init__(self) -> None:
        self.reads = 0

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[int, int]:
        self.reads += 1
        return index, os.getpid()


class Stream(data.IterableDataset):
    """Numbers without an end."""

    def __iter__(self) -> Iterator[int]:
        return itertools.count()


def over(loader: Any) -> Callable[[], Any]:
    """A step that holds the loader, and an iterator made before."""
    batches = iter(loader)

    def step() -> Any:
        nonlocal batches
        batch = next(batches, None)
        if batch is None:
            batches = iter(loader)
            batch = next(batches)
        return batch

    return step


def shuffled(**settings: Any) -> Subject:
    torch.manual_seed(3)
    return subject_of(over(data.DataLoader(Numbers(), batch_size=4, shuffle=True, **settings)))


def close(subject: Subject) -> None:
    """Ends the workers of a subject whose loader was replaced."""
    for _, cell in cells(subject):
        getattr(getattr(cell, "_iterator", None), "_shutdown_workers", lambda: None)()


def cells(subject: Subject) -> list[tuple[str, Any]]:
    step: Any = subject.step
    return [(name, cell.cell_contents) for name, cell in zip(step.__code__.co_freevars, step.__closure__, strict=True)]


@pytest.fixture(autouse=True)
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


def test_workers_load_in_other_processes_what_the_original_loads_in_the_same_order() -> None:
    original, changed = shuffled(), shuffled()
    torch.manual_seed(5)
    want = [original.step() for _ in range(5)]
    step = WORKERS.apply(changed)
    torch.manual_seed(5)
    got = [step() for _ in range(5)]
    close(changed)
    assert [batch[0].tolist() for batch in got] == [batch[0].tolist() for batch in want]
    processes = {int(process) for batch in got for process in batch[1]}
    assert len(processes) == 2 and os.getpid() not in processes


def test_workers_leave_the_random_numbers_of_the_step_as_they_were() -> None:
    drawn = []
    for apply in (WORKERS.apply, lambda subject: subject.step):
        subject = shuffled()
        step = apply(subject)
        drawn.append([(step()[0].tolist(), float(torch.rand(()))) for _ in range(5)])
        close(subject)
    assert drawn[0] == drawn[1]


def test_workers_rest_between_steps() -> None:
    subject = shuffled()
    step = WORKERS.apply(subject)
    processes = set(step()[1].tolist())
    for process in processes:
        assert os.waitid(os.P_PID, process, os.WSTOPPED | os.WNOWAIT) is not None
    step()
    close(subject)
    for process in processes:
        with pytest.raises(ChildProcessError):
            os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)


def test_workers_leave_the_original_loader_alone() -> None:
    original, changed = shuffled(), shuffled()
    before = dict(original.loaders[0].__dict__)
    step = WORKERS.apply(changed)
    step()
    close(changed)
    assert original.loaders[0].__dict__ == before
    assert set(original.step()[1].tolist()) == {os.getpid()}


def test_an_iterator_without_its_loader_gets_workers_too() -> None:
    batches = itertools.cycle(iter([]))
    batches = iter(data.DataLoader(Numbers(), batch_size=4))
    subject = subject_of(lambda: next(batches))
    step = WORKERS.apply(subject)
    first = step()
    assert first[0].tolist() == [0, 1, 2, 3] and os.getpid() not in first[1].tolist()
    replaced = dict(cells(subject))["batches"]
    replaced.close()


def test_a_loader_that_makes_no_batches_stays_so() -> None:
    loader = data.DataLoader(Numbers(), batch_size=None)
    subject = subject_of(over(loader))
    step = WORKERS.apply(subject)
    assert [step()[0] for _ in range(3)] == [0, 1, 2]
    close(subject)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_a_step_without_a_loader_has_nothing_to_load(change: Any) -> None:
    values = torch.ones(3)
    with pytest.raises(NotApplicable):
        change.apply(subject_of(lambda: values + 1))


def test_a_loader_with_workers_enough_is_left_alone() -> None:
    loader = data.DataLoader(Numbers(), batch_size=4, num_workers=2)
    with pytest.raises(NotApplicable, match="fewer than 2 workers"):
        WORKERS.apply(subject_of(lambda: list(loader)))


def test_a_dataset_without_indices_would_be_read_by_each_worker() -> None:
    with pytest.raises(NotApplicable, match="indices"):
        WORKERS.apply(subject_of(over(data.DataLoader(Stream(), batch_size=4))))


def test_a_loader_of_the_users_own_class_is_left_alone() -> None:
    class Own(data.DataLoader):
        pass

    with pytest.raises(NotApplicable, match="Own is a class of its own"):
        WORKERS.apply(subject_of(over(Own(Numbers(), batch_size=4))))


def test_pinning_needs_a_gpu() -> None:
    with pytest.raises(NotApplicable, match="GPU"):
        PIN.apply(shuffled())


def test_pinning_makes_the_same_loader_with_pinned_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaders, "runs_on_gpu", lambda subject: True)
    loader = data.DataLoader(Numbers(), batch_size=4, drop_last=True)

    def step() -> Any:
        return loader

    PIN.apply(subject_of(step))
    made = step()
    assert made.pin_memory and made.batch_size == 4 and made.drop_last and made.num_workers == 0
    with pytest.raises(NotApplicable, match="does not pin"):
        PIN.apply(subject_of(step))


def test_replay_reads_one_batch_and_gives_it_for_ever() -> None:
    subject = shuffled()
    dataset = subject.loaders[0].dataset
    step = REPLAY.apply(subject)
    batches = [step() for _ in range(8)]
    assert all(batch is batches[0] for batch in batches)
    assert dataset.reads == 4


def test_an_epoch_of_replay_is_as_long_as_that_of_the_loader() -> None:
    loader = data.DataLoader(Numbers(), batch_size=5)
    step = REPLAY.apply(subject_of(lambda: [len(batch[0]) for batch in loader]))
    assert step() == [5, 5, 5]
    assert loader.batch_size == 5


def test_replay_leaves_the_original_loader_alone() -> None:
    original = shuffled()
    REPLAY.apply(shuffled())()
    assert original.step()[0].tolist() != original.step()[0].tolist()


def test_replay_needs_to_know_how_long_an_epoch_is() -> None:
    with pytest.raises(NotApplicable, match="length"):
        REPLAY.apply(subject_of(over(data.DataLoader(Stream(), batch_size=4))))


MLP = Path(__file__).parents[3] / "examples" / "mlp.py"


def test_the_step_works_on_twice_as_many_samples() -> None:
    torch: Any = pytest.importorskip("torch")
    parameters = {"batch_size": 3, "hidden": 8}
    subject = make_subject(str(MLP), settings={**parameters, **double_batch(parameters)})
    assert {len(tensor) for tensor in subject.tensors} == {6}
    assert isinstance(subject.trained()[0], torch.nn.Parameter)
    assert BATCH_CHANGES[0].samples == 2.0


def test_a_workload_without_a_batch_size_has_nothing_to_double() -> None:
    with pytest.raises(NotApplicable, match="needs a workload with a parameter batch_size"):
        double_batch({"n": 2})


@pytest.mark.parametrize("size", ["many", True, 2.5, 0, None])
def test_a_batch_size_that_is_no_count_is_not_doubled(size: object) -> None:
    with pytest.raises(NotApplicable, match="can be doubled"):
        double_batch({"batch_size": size})
