"""Tells when the program imports torch or parts of its compiler, none of which is imported before the program does."""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class TorchHook:
    """An import finder that finds nothing itself; it calls back around the import of the modules that it watches.

    ``after`` holds what to call with a module once it is loaded, ``before`` what to call as its import begins.
    """

    def __init__(self, after: Mapping[str, Callable[[Any], None]], before: Mapping[str, Callable[[], None]]) -> None:
        self._after = after
        self._before = before

    def install(self) -> None:
        """Puts the hook before all other finders."""
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Takes it away, if it is there."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Null, or for a watched module the spec of the finder that has it, with a loader that calls back."""
        if name in self._before:
            self._before[name]()
        if name not in self._after:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                _call_back_after(spec.loader, self._after[name])
                return spec
        return None


def _call_back_after(loader: Any, call_back: Callable[[Any], None]) -> None:
    """Wraps the loader's work for one call; the module keeps its own loader and spec."""
    load = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module
        load(module)
        call_back(sys.modules.get(module.__name__, module))

    loader.exec_module = exec_module
