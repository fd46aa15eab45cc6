"""A loader with workers that only work while their own step runs, and that draws random numbers as one without does."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any


class Resting:
    """Stops the workers of some loaders between the steps of one variant.

    They would otherwise load ahead, for nothing, while the original has its turn: it would be slowed, and what they
    gain would be counted as gained by the change.
    """

    def __init__(self) -> None:
        self._iterators: list[Any] = []

    def watch(self, iterator: Any) -> None:
        """Has the workers of this iterator rest, and wakes them to be told to end."""
        end = iterator._shutdown_workers

        def wake_and_end() -> None:
            _send(_processes(iterator), "SIGCONT")
            end()

        iterator._shutdown_workers = wake_and_end
        self._iterators.append(iterator)

    def around(self, step: Callable[[], Any]) -> Callable[[], Any]:
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
    """A loader whose workers start when the first batch is asked for.

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
            kept, self.generator = self.generator, torch.Generator()
            try:
                iterator = super().__iter__()
            finally:
                self.generator = kept
            if is_first:
                resting.watch(iterator)
            yield from iterator

    return LateLoader(**settings)


def _processes(iterator: Any) -> list[int]:
    return [worker.pid for worker in iterator._workers if worker.pid is not None]


def _send(processes: list[int], name: str) -> None:
    """Sends a signal, where the system has it, to those that are still there."""
    if not hasattr(signal, name):
        return
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, getattr(signal, name))
