"""Entry point of the processes that run the user's program.

It calls a function of this package with the arguments. Started by its path (`python child.py MODULE:FUNCTION
ARGUMENTS…`), so that no folder of the user's can shadow this package.
"""

import sys
import time

_BEGAN_NS = time.perf_counter_ns()
# What Python itself loads before any script; the rest of the modules here are ours.
_AT_START = frozenset(sys.modules)

import importlib  # noqa: E402
import os  # noqa: E402
from types import ModuleType  # noqa: E402


def _import_ours(*names: str) -> list[ModuleType]:
    """Imports modules of ours once, from where this file lies.

    It leaves sys.path as Python made it.
    """
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - before anything is imported
    root = os.path.dirname(os.path.dirname(here))  # noqa: PTH120
    if not sys.flags.safe_path:
        del sys.path[0]
    sys.path.insert(0, root)
    try:
        return [importlib.import_module(name) for name in names]
    finally:
        sys.path.remove(root)


if __name__ == "__main__":
    _module, _, _function = sys.argv[1].partition(":")
    _program, _entry = _import_ours("bottleneck.harness.program", _module)
    _program.note_start(_AT_START, _BEGAN_NS)
    getattr(_entry, _function)(*sys.argv[2:])
