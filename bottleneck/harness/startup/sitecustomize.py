"""Waits for torch in each interpreter that a program starts.

Python imports this at its start under `--follow-children`. It waits for torch, or for a process of `multiprocessing` to
begin, before anything of this package is loaded.
"""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from types import ModuleType

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - little may be imported here
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))  # noqa: PTH120
_AWAITED = frozenset({"torch", "multiprocessing.process"})


class _Waiting:
    """Finder that finds nothing itself.

    At the first awaited module it has this process followed.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the module spec of an awaited module.

        It is found by the hooks that watch it from then on; else null.
        """
        if name not in _AWAITED or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        sys.path.insert(0, _ROOT)
        try:
            from bottleneck.harness.follow import follow_this_interpreter
        finally:
            sys.path.remove(_ROOT)
        for hook in follow_this_interpreter():
            spec = hook.find_spec(name, path, target)
            if spec is not None:
                return spec
        return None


def _run_theirs() -> None:
    """Runs the file of this name that Python would have found without ours."""
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        sys.modules["sitecustomize"] = module = module_from_spec(spec)
        spec.loader.exec_module(module)


sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _HERE]  # noqa: PTH100
sys.meta_path.insert(0, _Waiting())
_run_theirs()
