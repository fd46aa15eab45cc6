"""Makes a program import its packages from one side of a comparison, whatever an editable installation says."""

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

# Holds the folders, parted as PATH is.
VARIABLE = "BOTTLENECK_ROOTS"


class Roots(MetaPathFinder):
    """Finds what lies in these folders before any other finder does: build backends put hooks of theirs in front.

    A folder without `__init__.py` is left to others: many a `datasets` beside the sources is no package. So are the
    standard library's names.
    """

    def __init__(self, folders: Sequence[str]) -> None:
        self._folders = list(folders)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module spec of a top-level name in these folders; null where it is not in them."""
        if path is not None or fullname in sys.stdlib_module_names:
            return None
        found = PathFinder.find_spec(fullname, self._folders, target)
        return found if found is not None and found.origin is not None else None


def prefer_roots() -> None:
    """Puts the folders that the environment names before all others; does nothing where it names none."""
    folders = [each for each in os.environ.get(VARIABLE, "").split(os.pathsep) if each]
    if folders:
        sys.meta_path.insert(0, Roots(folders))
