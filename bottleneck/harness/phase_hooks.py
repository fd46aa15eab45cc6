"""Tells when the phases of a step begin.

They are a loader's pass and its `next`, a backward pass, and an optimizer's step.
"""

import importlib
from collections.abc import Callable
from typing import Any

from bottleneck.harness.boundaries import OptimizerHook, Removal, watch_attribute
from bottleneck.harness.torch_private import (
    READ_NEXT_BY_LOADER,
    WRITTEN_BY_LOADER,
    loader_iterator,
    tell_of_backward,
)


class PhaseHooks:
    """The hooks of all phases.

    None leaves a frame of ours in a traceback of the program. Whoever ends the steps at an optimizer's knows of its end
    already: it is told of from ``watch_optimizer_ends`` on.
    """

    def __init__(
        self,
        begin_pass: Callable[[Any], None],
        begin_data: Callable[[Any], None],
        end_data: Callable[[Any], None],
        begin_backward: Callable[[], None],
        begin_optimizer: Callable[[Any], None],
        end_optimizer: Callable[[Any], None],
    ) -> None:
        self._begin_pass, self._begin_data, self._end_data = begin_pass, begin_data, end_data
        self._begin_backward = begin_backward
        self._begin_optimizer, self._end_optimizer = begin_optimizer, end_optimizer
        self._removals: list[Removal] = []
        self._has_loaders = self._has_ends = False

    def watch(self) -> None:
        """Begins to listen, once torch is imported."""
        optimizers = importlib.import_module("torch.optim.optimizer")
        before = OptimizerHook(optimizers.register_optimizer_step_pre_hook, self._begin_optimizer)
        self._removals.append(before.remove)
        importlib.import_module("torch.autograd.graph")
        end = tell_of_backward(self._begin_backward)
        if end is not None:
            self._removals.append(end)
        self.watch_loaders()

    def watch_optimizer_ends(self) -> None:
        """Listens to the ends of optimizers' steps as well."""
        if self._has_ends or not self._removals:
            return
        self._has_ends = True
        optimizers = importlib.import_module("torch.optim.optimizer")
        after = OptimizerHook(optimizers.register_optimizer_step_post_hook, self._end_optimizer)
        self._removals.append(after.remove)

    def watch_loaders(self) -> None:
        """Listens to loaders as well, once the program has imported them."""
        kind = loader_iterator()
        if kind is None or self._has_loaders or not self._removals:
            return
        self._has_loaders = True
        self._removals += [
            watch_attribute(kind, READ_NEXT_BY_LOADER, self._begin_data),
            watch_attribute(kind, WRITTEN_BY_LOADER, None, self._count),
        ]

    def _count(self, iterator: Any) -> None:
        """Tells of a batch that was given, or of a pass that begins."""
        (self._end_data if vars(iterator)[WRITTEN_BY_LOADER] else self._begin_pass)(iterator)

    def forget(self) -> None:
        """Ends all of it."""
        for removal in self._removals:
            removal()
        self._removals.clear()
