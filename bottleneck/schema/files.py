"""Reads small files of recordings, lock-files and saved analyses, which may be anything on a hostile disk."""

import errno
import os
import stat
from pathlib import Path, PurePath
from typing import BinaryIO

from bottleneck.errors import TraceError


def read_file(path: Path, most_bytes: int) -> bytes:
    """The content of a regular file; OSError for a pipe, a device or a folder, and for more bytes than allowed.

    A pipe is not waited for. The size is checked while reading: a file may grow, and a device has none.
    """
    with path.open("rb") if is_remote(path) else _open_regular(path) as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"it is too large: over {most_bytes} bytes")
    return data


def _open_regular(path: Path) -> BinaryIO:
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    file = open(handle, "rb")  # noqa: PTH123, SIM115 - a handle, not a path; the caller closes the file
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is no regular file")
    return file


def is_remote(path: PurePath) -> bool:
    """True for the address of a file in a store (``remote.RemotePath``), which is no path of this machine."""
    return not isinstance(path, Path)


def cannot_read(path: Path, error: OSError) -> TraceError:
    """The error of a file that could not be read."""
    why = error.strerror or type(error).__name__
    if is_remote(path):
        return TraceError(f"cannot read {path}", why=why, fix="check the address, and the credentials for it")
    return TraceError(f"cannot read {path}: {why.lower()}", fix="check the path and its permissions")
