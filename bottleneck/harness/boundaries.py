"""Where the steps of an unmodified script begin: its optimizer, else its outermost module, watched through hooks."""

import importlib
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

from bottleneck.recording import StepSource


class Boundaries:
    """Calls back at each step boundary, in the thread and for the optimizer (module) that came first.

    An optimizer's boundary is the end of its step; that of a module is the start of its call, from the second call on
    (in training the optimizer has spoken by then).
    """

    def __init__(self, on_boundary: Callable[[], None], on_new_source: Callable[[StepSource], None]) -> None:
        self._on_boundary = on_boundary
        self._on_new_source = on_new_source
        self._source: StepSource = "none"
        self._owner: weakref.ref[Any] | None = None
        self._place: tuple[int, int] | None = None
        self._optimizer_hook: Any = None
        self._module_hook: Any = None

    def watch(self, torch: Any) -> None:
        """Registers the hooks; the optimizer's costs a microsecond a step, the module's a few per module call."""
        optimizers = importlib.import_module("torch.optim.optimizer")  # torch.optim hides its name
        self._optimizer_hook = optimizers.register_optimizer_step_post_hook(self._after_optimizer)
        self._module_hook = torch.nn.modules.module.register_module_forward_pre_hook(self._before_module)

    def forget_modules(self) -> None:
        """Removes the module hook: the compiler would trace it and warn of it."""
        if self._module_hook is not None:
            self._module_hook.remove()
            self._module_hook = None

    def forget(self) -> None:
        """Removes all hooks; the program goes on at full speed."""
        self.forget_modules()
        if self._optimizer_hook is not None:
            self._optimizer_hook.remove()
            self._optimizer_hook = None

    def _after_optimizer(self, optimizer: Any, _arguments: Any, _keywords: Any) -> None:
        if self._source != "optimizer":
            self.forget_modules()
            self._adopt("optimizer", optimizer)
        if self._is_ours(optimizer):
            self._on_boundary()

    def _before_module(self, module: Any, _arguments: Any) -> None:
        if self._owner is None:
            self._adopt("module", module)
        elif self._is_ours(module):
            self._on_boundary()

    def _adopt(self, source: StepSource, owner: Any) -> None:
        self._source = source
        self._owner = weakref.ref(owner)
        self._place = _place()
        self._on_new_source(source)

    def _is_ours(self, owner: Any) -> bool:
        return self._owner is not None and self._owner() is owner and self._place == _place()


def _place() -> tuple[int, int]:
    return os.getpid(), threading.get_ident()
