"""What a step is made of: the modules, optimizers, loaders and tensors that it can reach."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Subject:
    """A step made afresh, and what it works with, found through its closure, its defaults and the file's globals.

    ``modules`` are the outermost ones only. ``train`` tells whether a step goes backward or updates parameters.
    """

    torch: Any
    step: Callable[[], Any]
    modules: tuple[Any, ...] = ()
    optimizers: tuple[Any, ...] = ()
    loaders: tuple[Any, ...] = ()
    train: bool = False
