"""Entry point of the processes that run the user's program: calls a function of this package with the arguments.

Started by its path (`python child.py MODULE:FUNCTION ARGUMENTS…`), so that no folder of the user's can shadow this
package.
"""

import importlib
import os
import sys
from types import ModuleType


def _import_ours(name: str) -> ModuleType:
    """Makes `bottleneck` importable once, from where this file lies, and leaves sys.path as Python made it."""
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - before anything is imported
    root = os.path.dirname(os.path.dirname(here))  # noqa: PTH120
    if not sys.flags.safe_path:
        del sys.path[0]
    sys.path.insert(0, root)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(root)


if __name__ == "__main__":
    _module, _, _function = sys.argv[1].partition(":")
    getattr(_import_ours(_module), _function)(*sys.argv[2:])
