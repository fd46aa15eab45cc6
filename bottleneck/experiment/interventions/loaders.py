"""Changes to where batches come from.

They are workers, pinned memory, a replayed batch and a larger batch.
"""

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping
from typing import Any

from bottleneck.experiment.interventions.compilers import runs_on_gpu
from bottleneck.experiment.interventions.subject import Change, NotApplicable, Subject
from bottleneck.harness.forms import BATCH
from bottleneck.harness.stopwatch import Step
from bottleneck.harness.torch_private import call_before_shutdown, dataset_of, loader_like, workers_of


class Resting:
    """Stops the workers of some loaders between the steps of one variant.

    They would otherwise load ahead, for nothing, while the original has its turn: it would be slowed, and what they
    gain would be counted as gained by the change.
    """

    def __init__(self) -> None:
        self._iterators: list[Any] = []

    def watch(self, iterator: Any) -> None:
        """Registers an iterator whose workers rest between steps.

        Its workers are woken before it shuts down, so that they can end.
        """
        call_before_shutdown(iterator, lambda: _send(_processes(iterator), "SIGCONT"))
        self._iterators.append(iterator)

    def around(self, step: Step) -> Step:
        """The step, during which alone the workers work."""

        def awake() -> Any:
            self._tell("SIGCONT")
            try:
                return step()
            finally:
                self._tell("SIGSTOP")

        return awake

    def _tell(self, name: str) -> None:
        for iterator in self._iterators:
            _send(_processes(iterator), name)


def late_loader(torch: Any, settings: dict[str, Any], resting: Resting) -> Any:
    """A loader whose workers start when the first batch is requested.

    So the sampler draws its seed when that of a loader without workers does. The seed of the workers themselves comes
    from a generator of its own, and for it one number is drawn per epoch, as it would be without workers.
    """
    base = torch.utils.data.DataLoader

    class LateLoader(base):  # type: ignore[misc, valid-type]
        generator: Any

        def __iter__(self) -> Iterator[Any]:
            torch.empty((), dtype=torch.int64).random_(generator=self.generator)
            return self._batches()

        def _batches(self) -> Iterator[Any]:
            is_first = self._iterator is None
            own_generator, self.generator = self.generator, torch.Generator()
            try:
                iterator = super().__iter__()
            finally:
                self.generator = own_generator
            if is_first:
                resting.watch(iterator)
            yield from iterator

    return LateLoader(**settings)


def _processes(iterator: Any) -> list[int]:
    return [worker.pid for worker in workers_of(iterator) if worker.pid is not None]


def _send(processes: list[int], name: str) -> None:
    """Sends a signal, where the system has it, to those that are still there."""
    if not hasattr(signal, name):
        return
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, getattr(signal, name))


# More of them seldom help, and every one holds a copy of what it loads.
WORKERS_AT_MOST = 4


def _workers(subject: Subject) -> Step:
    """The step with workers for its loaders, which rest while another step runs."""
    wanted = min(WORKERS_AT_MOST, len(os.sched_getaffinity(0)))
    loaders = [candidate for candidate in _loaders(subject) if candidate.num_workers < wanted]
    if not loaders:
        raise NotApplicable(f"needs a loader with fewer than {wanted} workers")
    for loader in loaders:
        if isinstance(loader.dataset, subject.torch.utils.data.IterableDataset):
            raise NotApplicable("needs a dataset with indices: each worker would go through the whole of this one")
    resting = Resting()
    for loader in loaders:
        other = late_loader(subject.torch, _settings(loader, num_workers=wanted, persistent_workers=True), resting)
        _replace(subject, loader, other)
    return resting.around(subject.step)


def _pin_memory(subject: Subject) -> Step:
    """Gives the step loaders that put each batch into pinned memory.

    Copies to the GPU are quicker from there.
    """
    if not runs_on_gpu(subject):
        raise NotApplicable("needs a step that works on an NVIDIA GPU")
    loaders = [candidate for candidate in _loaders(subject) if not candidate.pin_memory]
    if not loaders:
        raise NotApplicable("needs a loader that does not pin its batches yet")
    for loader in loaders:
        _replace(subject, loader, subject.torch.utils.data.DataLoader(**_settings(loader, pin_memory=True)))
    return subject.step


class Replay:
    """Loader that gives the first batch of another every time.

    All else is that loader's own.
    """

    def __init__(self, loader: Any) -> None:
        self._loader, self._batch, self._is_filled = loader, None, False

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        return (self._first() for _ in range(len(self)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def _first(self) -> Any:
        if not self._is_filled:
            self._batch, self._is_filled = next(iter(self._loader)), True
        return self._batch


def _replay_batch(subject: Subject) -> Step:
    """Runs the step on one batch again and again.

    No loader can take away the time that is left.
    """
    loaders = _loaders(subject)
    if not loaders:
        raise NotApplicable("needs a torch.utils.data.DataLoader")
    if not all(_has_length(loader) for loader in loaders):
        raise NotApplicable("needs a loader that knows its length")
    for loader in loaders:
        subject.replace_loader(loader, Replay(loader))
    return subject.step


def _loaders(subject: Subject) -> list[Any]:
    """Finds the loaders of the step.

    Of a loader that only has an iterator left, it makes one like it.
    """
    datasets = {id(loader.dataset) for loader in subject.loaders}
    alone = {
        id(dataset_of(iterator)): iterator for iterator in subject.iterators if id(dataset_of(iterator)) not in datasets
    }
    return [*subject.loaders, *(loader_like(subject.torch, iterator) for iterator in alone.values())]


def _settings(loader: Any, **other: Any) -> dict[str, Any]:
    """Returns the settings of a loader like this one, some replaced.

    Order and batches come from the same samplers.
    """
    if loader.__class__.__module__ != "torch.utils.data.dataloader":
        raise NotApplicable(f"needs a torch.utils.data.DataLoader; {type(loader).__name__} is a class of its own")
    names = ("dataset", "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "generator", "in_order")
    made = {name: getattr(loader, name) for name in (*names, "multiprocessing_context", "persistent_workers")}
    if loader.num_workers > 0:
        made["prefetch_factor"] = loader.prefetch_factor
    if loader.batch_size is None and loader.batch_sampler is not None:
        made["batch_sampler"] = loader.batch_sampler
    else:
        made |= {"batch_size": loader.batch_size, "sampler": loader.sampler, "drop_last": loader.drop_last}
    return {**made, **other}


def _replace(subject: Subject, loader: Any, other: Any) -> None:
    """Puts a loader of the same data in this one's place.

    Generators of random numbers stay as they are.
    """
    own = loader.generator.get_state() if loader.generator is not None else None
    with subject.torch.random.fork_rng(devices=[]):
        subject.replace_loader(loader, other)
    if own is not None:
        loader.generator.set_state(own)


def _has_length(loader: Any) -> bool:
    try:
        len(loader)
    except TypeError:
        return False
    return True


CHANGES = (
    Change("workers", "DataLoader(num_workers=…, persistent_workers=True)", "same", _workers),
    Change("pin-memory", "DataLoader(pin_memory=True)", "same", _pin_memory),
    Change(
        "replay-batch", "one cached batch in place of the loader: the bound of any loader", "other work", _replay_batch
    ),
)


def double_batch(parameters: Mapping[str, object]) -> Mapping[str, object]:
    """Doubles the batch size of these parameters of a workload.

    NotApplicable where they have none that is a count.
    """
    if BATCH not in parameters:
        raise NotApplicable(f"needs a workload with a parameter {BATCH}")
    size = parameters[BATCH]
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise NotApplicable(f"needs a {BATCH} that can be doubled; it is {size!r}")
    return {BATCH: 2 * size}


BATCH_CHANGES = (
    Change("batch-x2", "twice as many samples in a step", "other work", settings=double_batch, samples=2.0),
)
