"""Steps that the harness adds of its own accord write nothing: the program's output stays what it would have been."""

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def silenced(*descriptors: int) -> Iterator[None]:
    """While it lasts, what goes to these file descriptors is lost; one that is closed is left alone."""
    _flush()
    kept = {descriptor: copy for descriptor in descriptors if (copy := _copy(descriptor)) is not None}
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in kept:
        os.dup2(nowhere, descriptor)
    try:
        yield
    finally:
        _flush()
        for descriptor, copy in kept.items():
            os.dup2(copy, descriptor)
            os.close(copy)
        os.close(nowhere)


def _copy(descriptor: int) -> int | None:
    try:
        return os.dup(descriptor)
    except OSError:
        return None


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the program may have closed or replaced it
            stream.flush()
