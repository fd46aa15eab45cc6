"""The bytes of a trace file in blocks, inflated on the way; the first step of reading."""

import itertools
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from bottleneck.errors import TraceError
from bottleneck.trace.damage import Damage
from bottleneck.trace.foreign import refuse_by_magic
from bottleneck.trace.inflate import GZIP_MAGIC, inflate

# Smaller blocks cost more calls, larger ones more memory and cache; flat between 512 KiB and 1 MiB.
BLOCK_BYTES = 1024 * 1024


def read_blocks(path: Path, damage: Damage) -> Iterator[bytes]:
    """Blocks of the file's text; gzip is told by its first bytes, not by the name.

    Raises TraceError for what cannot be opened, is of a known other kind, or inflates beyond the limits.
    """
    try:
        _refuse_non_files(path)
        with path.open("rb", buffering=0) as file:
            yield from _text_blocks(path, file, damage)
    except OSError as error:
        why = (error.strerror or type(error).__name__).lower()
        raise TraceError(f"cannot read {path}: {why}", fix="check the path and its permissions") from error


def _refuse_non_files(path: Path) -> None:
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise TraceError(f"cannot read {path}: it is a folder", fix="name a trace file in it")
    if stat.S_ISBLK(mode) or stat.S_ISSOCK(mode) or (stat.S_ISCHR(mode) and path != Path("/dev/stdin")):
        raise TraceError(f"cannot read {path}: it is a device, not a file", fix="name a trace file")


def _text_blocks(path: Path, file: BinaryIO, damage: Damage) -> Iterator[bytes]:
    blocks = _file_blocks(file)
    first = next(blocks, b"")
    if not first:
        raise TraceError(f"{path} is empty", why="the program may have ended before it was written", fix="record again")
    blocks = itertools.chain([first], blocks)
    if first.startswith(GZIP_MAGIC):
        blocks = inflate(path, blocks, damage)
        first = next(blocks, b"")
        blocks = itertools.chain([first], blocks)
    refuse_by_magic(path, first)
    yield from blocks


def _file_blocks(file: BinaryIO) -> Iterator[bytes]:
    # A regular file is read to the size that it had when opened: it may be growing.
    status = os.fstat(file.fileno())
    left = status.st_size if stat.S_ISREG(status.st_mode) else None
    while block := file.read(BLOCK_BYTES if left is None else min(BLOCK_BYTES, left)):
        left = None if left is None else left - len(block)
        yield block
