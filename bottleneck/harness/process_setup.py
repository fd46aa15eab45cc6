"""Prepares the child process before the user's program is loaded.

Sets import paths, device, threads and seeds.
"""

import os
import random
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from bottleneck.harness.messages import RecordOptions


def prepare_torch(options: RecordOptions) -> None:
    """Sets what the options name, and imports torch for it.

    Ends the process with a reason where that cannot be had.
    """
    if options.device is None and options.threads is None:
        return
    import torch

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    if options.device is not None:
        torch.set_default_device(_present(options.device))


def _present(name: str) -> str:
    """The device, if torch knows it and one is there."""
    import torch

    try:
        device = torch.device(name)
        count = 1 if device.type == "cpu" else torch.get_device_module(device).device_count()
    except (RuntimeError, AssertionError) as error:
        sys.exit(f"torch has no device {name}: {str(error).strip().splitlines()[0]}")
    if count <= (device.index or 0):
        sys.exit(f"there is no device {name} here: torch {torch.__version__} sees {count} of this kind")
    return name


def seeders(seed: int | None) -> dict[str, Callable[[Any], None]]:
    """Gives the functions that seed torch and numpy, by module name.

    They are to be called once that module is loaded. Python's own generator is set at once.
    """
    if seed is None:
        return {}
    random.seed(seed)
    return {"torch": lambda torch: sow(seed, torch), "numpy": lambda numpy: _sow_numpy(seed, numpy)}


def sow(seed: int | None, torch: Any) -> None:
    """Sets torch's generators, those of GPUs included, unless the seed is null."""
    if seed is not None and hasattr(torch, "manual_seed"):  # else it is another module of this name
        torch.manual_seed(seed)
        if "numpy" in sys.modules:
            _sow_numpy(seed, sys.modules["numpy"])


def _sow_numpy(seed: int, numpy: Any) -> None:
    # Half loaded, where torch is imported while numpy is.
    sow_numpy = getattr(getattr(numpy, "random", None), "seed", None)
    if sow_numpy is not None:
        sow_numpy(seed % 2**32)


# Holds the folders, parted as PATH is.
VARIABLE = "BOTTLENECK_ROOTS"


class Roots(MetaPathFinder):
    """Finds modules in these folders before any other finder does.

    Build backends put hooks of theirs in front.

    A folder without `__init__.py` is left to others: many a `datasets` beside the sources is no package. So are the
    standard library's names.
    """

    def __init__(self, folders: Sequence[str]) -> None:
        self._folders = list(folders)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Gives the module spec of a top-level name in these folders.

        Null where it is not in them.
        """
        if path is not None or fullname in sys.stdlib_module_names:
            return None
        spec = PathFinder.find_spec(fullname, self._folders, target)
        return spec if spec is not None and spec.origin is not None else None


def prefer_roots() -> None:
    """Puts the folders that the environment names before all others.

    Does nothing where it names none.
    """
    folders = [folder for folder in os.environ.get(VARIABLE, "").split(os.pathsep) if folder]
    if folders:
        sys.meta_path.insert(0, Roots(folders))
