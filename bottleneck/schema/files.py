"""Reads small files of recordings, lock-files and saved analyses, which may be anything on a hostile disk."""

import errno
import os
import stat
from pathlib import Path


def read_file(path: Path, most_bytes: int) -> bytes:
    """The content of a regular file; OSError for a pipe, a device or a folder, and for more bytes than allowed.

    A pipe is not waited for. The size is checked while reading: a file may grow, and a device has none.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(handle, "rb") as file:  # noqa: PTH123 - a handle, not a path
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"it is too large: over {most_bytes} bytes")
    return data
