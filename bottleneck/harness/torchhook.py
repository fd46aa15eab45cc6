"""Tells when the program imports torch, which is never imported before the program does."""

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class TorchHook:
    """An import finder that finds nothing itself; it calls back when torch or its compiler is imported."""

    def __init__(self, on_torch: Callable[[Any], None], on_compiler: Callable[[], None]) -> None:
        self._on_torch = on_torch
        self._on_compiler = on_compiler

    def install(self) -> None:
        """Puts the hook before all other finders."""
        sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Null, or for torch the spec of the finder that has it, with a loader that calls back."""
        if name == "torch._dynamo":
            self._on_compiler()
        if name != "torch":
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                self._call_back_after(spec.loader)
                return spec
        return None

    def _call_back_after(self, loader: Any) -> None:
        """Wraps the loader's work for one call; torch keeps its own loader and spec."""
        load = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            load(module)
            self._on_torch(module)

        loader.exec_module = exec_module
