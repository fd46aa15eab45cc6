"""Changes to where batches come from.

They are workers, pinned memory, a replayed batch and a larger batch.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from bottleneck.experiment.interventions.compilers import runs_on_gpu
from bottleneck.experiment.interventions.subject import Change, NotApplicable, Subject
from bottleneck.experiment.loader_call import SourceCall, call_under_way
from bottleneck.harness.forms import BATCH
from bottleneck.harness.machine import usable_processors
from bottleneck.harness.stopwatch import Step, Stopwatch
from bottleneck.harness.torch_private import (
    call_before_shutdown,
    dataset_of,
    end_workers,
    loader_iterator,
    loader_like,
    workers_of,
)
from bottleneck.schema.measurements import LoaderSetting
from bottleneck.units import US_PER_S


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


def _tuned(subject: Subject, values: Mapping[str, Any]) -> Step:
    """Gives one loader of the step the setting that a search chose."""
    loader = searchable_loaders(subject)[values["loader"]]
    setting = LoaderSetting(**values["setting"])
    resting = Resting()
    _replace(subject, loader, _loader_with(subject.torch, loader, setting, resting))
    return resting.around(subject.step)


def _loader_with(torch: Any, loader: Any, setting: LoaderSetting, resting: Resting) -> Any:
    """A loader of the same data with this setting."""
    other = asdict(setting)
    if setting.batch_size is None:
        del other["batch_size"]
    settings = _settings(loader, **other)
    if not setting.num_workers:
        # Torch refuses what only workers need.
        settings = {name: value for name, value in settings.items() if name not in _OF_WORKERS}
        return torch.utils.data.DataLoader(**settings)
    return late_loader(torch, settings, resting)


_OF_WORKERS = ("prefetch_factor", "timeout", "multiprocessing_context", "persistent_workers")


def searchable_loaders(subject: Subject) -> list[Any]:
    """The loaders of the step, each of which worker processes can serve.

    NotApplicable where there is none, or where one of them is of another kind.
    """
    loaders = _loaders(subject)
    if not loaders:
        raise NotApplicable("needs a torch.utils.data.DataLoader")
    for loader in loaders:
        _settings(loader)
        if isinstance(loader.dataset, subject.torch.utils.data.IterableDataset):
            raise NotApplicable("needs a dataset with indices: each worker would go through the whole of this one")
    return loaders


@contextlib.contextmanager
def calls_noted(torch: Any) -> Iterator[dict[int, SourceCall]]:
    """Notes the calls that make loaders, by the id of the loader."""
    calls: dict[int, SourceCall] = {}
    loader_class = torch.utils.data.DataLoader
    initialise = loader_class.__init__

    def noted(loader: Any, *arguments: Any, **options: Any) -> None:
        call = call_under_way(sys._getframe(1))
        if call is not None:
            calls[id(loader)] = call
        initialise(loader, *arguments, **options)

    loader_class.__init__ = noted
    try:
        yield calls
    finally:
        loader_class.__init__ = initialise


class LoaderTurns:
    """Turns of one step with other settings of its loader.

    There is one model and one dataset; of the loaders, only that of the turn has workers. With several, it is the one
    that the step waits for the longest.
    """

    def __init__(self, subject: Subject, calls: Mapping[int, SourceCall]) -> None:
        self._subject, self._loaders = subject, searchable_loaders(subject)
        self._number = _waited_for(subject, self._loaders)
        self._loader = self._loaders[self._number]
        self._call = calls.get(id(self._loader))
        under_way = [iterator for iterator in subject.iterators if dataset_of(iterator) is self._loader.dataset]
        self._places = subject.places_of(self._loader)
        self._iterator_places = [place for iterator in under_way for place in subject.places_of(iterator)]
        if not (self._places or self._iterator_places):
            raise NotApplicable("needs the step to hold its loader in a variable or an attribute that can be set")
        if under_way and not self._iterator_places:
            raise NotApplicable("needs the step to hold the loader's iterator in a variable that can be set")

    def describe(self) -> dict[str, Any]:
        """Describes the loader for the search, as JSON."""
        loader = self._loader
        workers = loader.num_workers
        prefetch = loader.prefetch_factor if workers else None
        own = LoaderSetting(workers, prefetch, bool(loader.pin_memory), bool(loader.persistent_workers))
        return {
            "number": self._number,
            "loaders": len(self._loaders),
            "own": asdict(own),
            "samples": loader.batch_size,
            "batches": len(loader) if _has_length(loader) else 0,
            "processors": usable_processors(),
            "is_on_gpu": runs_on_gpu(self._subject),
            "call": None if self._call is None else asdict(self._call),
        }

    def turn(self, setting: LoaderSetting, limit_s: float) -> float | None:
        """Times the step with a fresh loader of this setting, in microseconds.

        Null where it took longer than the limit. The first batch of each worker does not count, and a whole number of
        batches of each does, since workers that begin together deliver together.
        """
        until = time.monotonic() + limit_s
        loader = _loader_with(self._subject.torch, self._loader, setting, Resting())
        try:
            self._put(loader)
            together = max(1, setting.num_workers)
            for _ in range(together + 1):
                self._subject.step()
                if time.monotonic() > until:
                    return None
            return self._timed(together, until)
        finally:
            self._take_away(loader)

    def _timed(self, together: int, until: float) -> float | None:
        stopwatch, steps = Stopwatch(self._subject.torch), 0
        stopwatch.wait()
        began = time.perf_counter()
        while steps < 2 * together or time.perf_counter() - began < TURN_S:
            for _ in range(together):
                self._subject.step()
                if time.monotonic() > until:
                    return None
            steps += together
        stopwatch.wait()
        return (time.perf_counter() - began) / steps * US_PER_S

    def _put(self, loader: Any) -> None:
        for place in self._places:
            assert place.set is not None
            place.set(loader)
        for place in self._iterator_places:
            assert place.set is not None
            place.set(iter(loader))

    def _take_away(self, loader: Any) -> None:
        """Ends the workers of a turn's loader, and puts the original back."""
        for place in self._iterator_places:
            assert place.set is not None
            end_workers(place.get())
            place.set(None)
        end_workers(getattr(loader, "_iterator", None))
        for place in self._places:
            assert place.set is not None
            place.set(self._loader)


# Long enough that a tick of the scheduler is little.
TURN_S = 0.3
_WATCHED_STEPS = 12


def _waited_for(subject: Subject, loaders: list[Any]) -> int:
    """The number of the loader that some steps wait for the longest."""
    if len(loaders) == 1:
        return 0
    kind, waited_s = loader_iterator(), dict.fromkeys((id(loader.dataset) for loader in loaders), 0.0)
    take = kind.__next__

    def timed(iterator: Any) -> Any:
        began = time.perf_counter()
        try:
            return take(iterator)
        finally:
            waited_s[id(dataset_of(iterator))] = (
                waited_s.get(id(dataset_of(iterator)), 0.0) + time.perf_counter() - began
            )

    kind.__next__ = timed
    try:
        for _ in range(_WATCHED_STEPS):
            subject.step()
    finally:
        kind.__next__ = take
    return max(range(len(loaders)), key=lambda number: waited_s[id(loaders[number].dataset)])


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
    Change("workers", "DataLoader(num_workers=…, persistent_workers=True)", "same", _workers, tune=_tuned),
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
