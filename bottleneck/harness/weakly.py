"""Callbacks that the interpreter keeps for good, without keeping a finished measurement in memory with them."""

import weakref
from collections.abc import Callable


def weakly(method: Callable[[], object]) -> Callable[[], None]:
    """The same method, which does nothing once its object is gone: a window alone may hold half a gigabyte."""
    reference = weakref.WeakMethod(method)

    def call() -> None:
        found = reference()
        if found is not None:
            found()

    return call
