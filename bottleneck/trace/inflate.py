"""Yields the text of a trace file in blocks, inflated and as JSON.

Limits guard against damaged files and bombs. isal instead of zlib: 0.27 s against 0.95 s for 1 GB of trace. Raw deflate
with the checksum taken here, because the ready-made gzip readers throw away the last block when only the checksum is
wrong.
"""

import itertools
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

from isal import igzip_lib, isal_zlib

from bottleneck.errors import TraceError
from bottleneck.system.files import cannot_read, is_remote
from bottleneck.system.perfetto import is_perfetto
from bottleneck.trace.damage import Damage
from bottleneck.trace.foreign import reject_by_magic
from bottleneck.trace.perfetto import chrome_text
from bottleneck.units import counted

GZIP_MAGIC, ZIP_MAGIC = b"\x1f\x8b", b"PK\x03\x04"
# What is compressed once more, or lies in a zip archive, is inflated too.
_MOST_GZIPS = 2
# A list of the files in a zip archive of so many bytes is read into memory; one entry takes some 80.
_LARGEST_DIRECTORY_BYTES = 2**20
# The record at the end, which a comment of up to 64 KiB follows, and what stands before it in zip64.
_ZIP_END, _ZIP64_END, _ZIP_END_BYTES = b"PK\x05\x06", b"PK\x06\x07", 66_000
_TEXT_BYTES = 1024 * 1024
_BEGIN_BYTES = 4096

# Real traces shrink about 10 to 25 times; a bomb shrinks about 1000 times.
MAX_INFLATED_BYTES = 8 * 1024**3
_MAX_RATIO, _RATIO_FREE_BYTES = 200, 256 * 1024**2

# Its stubs call the class an instance.
_DAMAGED = cast("type[Exception]", igzip_lib.error)

_HAS_CHECKSUM, _HAS_EXTRA, _HAS_NAME, _HAS_COMMENT = 2, 4, 8, 16
_RESCUE_STEP_BYTES = 64
# Files made in blocks end with one empty member; hundreds in a row are no trace.
_MOST_EMPTY_MEMBERS = 256


class _Source:
    """Compressed blocks that can be taken by the byte and put back."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._ready = b""
        self._position = 0
        self.taken = 0

    def block(self) -> bytes:
        """Whatever is ready, or the next block; empty at the end."""
        data = self._ready[self._position :] or next(self._blocks, b"")
        self._ready, self._position = b"", 0
        self.taken += len(data)
        return data

    def put_back(self, data: bytes) -> None:
        """Makes the bytes, taken last, the next ones again."""
        self._ready, self._position = data + self._ready[self._position :], 0
        self.taken -= len(data)

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes, fewer at the end."""
        if self._position + count > len(self._ready):
            data = b""
            while len(data) < count and (more := self.block()):
                data += more
            self.put_back(data)
        data = self._ready[self._position : self._position + count]
        self._position += len(data)
        self.taken += len(data)
        return data

    def skip_text(self) -> None:
        """Passes a zero-terminated text."""
        while data := self.block():
            end = data.find(b"\0")
            if end >= 0:
                self.put_back(data[end + 1 :])
                return


def inflate(path: Path, blocks: Iterator[bytes], damage: Damage, *, is_file: bool = True) -> Iterator[bytes]:
    """Yields blocks of the text of all gzip members.

    Damage ends the text and is counted. ``path`` is read again from the start of the member when a regular file is
    corrupt inside, to save the text before the damage; not where the blocks come out of another archive. Raises
    TraceError beyond the limits on size and ratio.
    """
    source = _Source(blocks)
    yielded = empty = 0
    while empty < _MOST_EMPTY_MEMBERS and _enter_member(source, damage):
        before = yielded
        for text in _member(path if is_file else None, source, damage):
            yielded += len(text)
            _check_limits(path, yielded, source.taken)
            yield text
        empty = 0 if yielded > before else empty + 1
    damage["gzip-junk"] += 1 if empty >= _MOST_EMPTY_MEMBERS else 0


def _enter_member(source: _Source, damage: Damage) -> bool:
    """True where a member follows; skips its header."""
    head = source.take(10)
    if not head:
        return False
    if not head.startswith(GZIP_MAGIC):
        # Tools pad with zeros to a block size; anything else that follows a whole member is junk.
        damage["gzip-junk"] += 1 if head.strip(b"\0") else 0
        return False
    if len(head) < 10:
        damage["truncated-gzip"] += 1
        return False
    flags = head[3]
    if flags & _HAS_EXTRA:
        source.take(int.from_bytes(source.take(2), "little"))
    for flag in (_HAS_NAME, _HAS_COMMENT):
        if flags & flag:
            source.skip_text()
    if flags & _HAS_CHECKSUM:
        source.take(2)
    return True


def _member(path: Path | None, source: _Source, damage: Damage) -> Iterator[bytes]:
    decompressor = igzip_lib.IgzipDecompressor(igzip_lib.DECOMP_DEFLATE)
    start, yielded, checksum = source.taken, 0, 0
    while not decompressor.eof:
        data = source.block() if decompressor.needs_input else b""
        if not data and decompressor.needs_input:
            damage["truncated-gzip"] += 1
            return
        try:
            text = decompressor.decompress(data, _TEXT_BYTES)
        except _DAMAGED:
            damage["corrupt-gzip"] += 1
            yield from _rescue(path, start, yielded) if path is not None else ()
            return
        checksum = isal_zlib.crc32(text, checksum)
        yielded += len(text)
        if text:
            yield text
    source.put_back(decompressor.unused_data)
    _check_trailer(source, damage, checksum)


def _check_trailer(source: _Source, damage: Damage, checksum: int) -> None:
    trailer = source.take(8)
    if len(trailer) < 8:
        damage["truncated-gzip"] += 1
    elif int.from_bytes(trailer[:4], "little") != checksum:
        damage["gzip-checksum"] += 1


def _rescue(path: Path, start: int, yielded: int) -> Iterator[bytes]:
    """The text between the last yielded byte and the damaged block, which is lost."""
    if not path.is_file():
        return
    decompressor = zlib.decompressobj(wbits=-zlib.MAX_WBITS)
    inflated = 0
    with path.open("rb") as file:
        file.seek(start)
        while data := file.read(_RESCUE_STEP_BYTES):
            try:
                text = decompressor.decompress(data)
            except zlib.error:
                return
            inflated += len(text)
            if inflated > yielded:
                yield text[-(inflated - yielded) :]
                yielded = inflated


def _check_limits(path: Path, yielded: int, taken: int) -> None:
    if yielded > MAX_INFLATED_BYTES:
        why = f"it inflates to more than {MAX_INFLATED_BYTES >> 30} GiB"
    elif yielded > _RATIO_FREE_BYTES and yielded > _MAX_RATIO * taken:
        why = f"it inflates more than {_MAX_RATIO} times; traces inflate about 20 times"
    else:
        return
    raise TraceError(f"refusing to inflate {path}", why=why, fix="inflate it yourself if you trust it")


# Smaller blocks cost more calls, larger ones more memory and cache; flat between 512 KiB and 1 MiB.
BLOCK_BYTES = 1024 * 1024


def ignore_progress(_read_bytes: int, _size_bytes: int) -> None:
    """Takes how much of a file is read, for nobody."""


def read_blocks(path: Path, damage: Damage, on_bytes: Callable[[int, int], None] = ignore_progress) -> Iterator[bytes]:
    """Yields blocks of the file's text.

    Gzip is recognised by its first bytes, not by the name. ``on_bytes`` is called with the bytes read and those in the
    file, after each block of a file that has a size. Raises TraceError for files that cannot be opened, are of another
    known format, or inflate beyond the limits.
    """
    try:
        _reject_non_files(path)
        with path.open("rb", buffering=0) as file:
            size = path.stat().st_size if is_remote(path) else _regular_size(file)
            blocks = _ReadBlocks(_file_blocks(file, size, on_bytes))
            first = next(iter(blocks), b"")
            if first.startswith(ZIP_MAGIC) and size is not None and not is_remote(path):
                yield from _text_blocks(path, _ReadBlocks(_unzipped(path, file, size, on_bytes)), damage)
            else:
                yield from _text_blocks(path, blocks.again(first), damage, is_file=True)
    except OSError as error:
        raise cannot_read(path, error) from error


def _reject_non_files(path: Path) -> None:
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise TraceError(f"cannot read {path}: it is a folder", fix="name a trace file in it")
    if stat.S_ISBLK(mode) or stat.S_ISSOCK(mode) or (stat.S_ISCHR(mode) and path != Path("/dev/stdin")):
        raise TraceError(f"cannot read {path}: it is a device, not a file", fix="name a trace file")


def _text_blocks(path: Path, taken: "_ReadBlocks", damage: Damage, *, is_file: bool = False) -> Iterator[bytes]:
    first, blocks = _begun(iter(taken))
    if not first:
        raise TraceError(f"{path} is empty", why="the program may have ended before it was written", fix="record again")
    for _ in range(_MOST_GZIPS):
        if not first.startswith(GZIP_MAGIC):
            break
        inflated = inflate(path, blocks, damage, is_file=is_file)
        is_file = False
        first, blocks = _begun(_within_limits(path, inflated, taken))
    if is_perfetto(first):
        yield from chrome_text(path, blocks, damage, partial(_check_limits, path))
        return
    reject_by_magic(path, first)
    yield from blocks


def _begun(blocks: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """Gives the first bytes of the blocks, and all of them.

    Where the first block is not enough to know the format by, the first bytes are those of several.
    """
    first = next(blocks, b"")
    while first.startswith(b"\n") and len(first) < _BEGIN_BYTES and (more := next(blocks, b"")):
        first += more
    return first, itertools.chain([first], blocks)


class _ReadBlocks:
    """Blocks that count the bytes that were taken of them."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks, self.count = blocks, 0

    def __iter__(self) -> Iterator[bytes]:
        for block in self._blocks:
            self.count += len(block)
            yield block

    def again(self, first: bytes) -> "_ReadBlocks":
        """The same with a block put back that was taken."""
        return _ReadBlocks(itertools.chain([first] if first else [], self._blocks))


def _within_limits(path: Path, blocks: Iterator[bytes], taken: _ReadBlocks) -> Iterator[bytes]:
    """Yields blocks no larger in all than the limits allow.

    The limits hold against what was taken of the file: of gzip in gzip each alone may be within them.
    """
    yielded = 0
    for block in blocks:
        yielded += len(block)
        _check_limits(path, yielded, taken.count)
        yield block


def _unzipped(path: Path, file: BinaryIO, size: int, on_bytes: Callable[[int, int], None]) -> Iterator[bytes]:
    """Yields the content of the one file in a zip archive.

    Raises TraceError where the archive holds none, several, or one that is locked.
    """
    import zipfile  # noqa: PLC0415 - for archives only

    try:
        if _directory_bytes(file) > _LARGEST_DIRECTORY_BYTES:
            raise _is_zip(path, "thousands of files")
        with zipfile.ZipFile(file) as archive:
            inside = [entry for entry in archive.infolist() if _is_of_program(entry.filename)]
            if len(inside) != 1:
                raise _is_zip(path, counted(len(inside), "file"))
            (one,) = inside
            if one.flag_bits & 1 or one.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
                raise _is_zip(path, "a file that is locked by a password, or packed in a rare way")
            with archive.open(one) as member:
                yielded = 0
                while block := member.read(_TEXT_BYTES):
                    yielded += len(block)
                    _check_limits(path, yielded, min(one.compress_size, size))
                    on_bytes(min(size, size * yielded // max(one.file_size, 1)), size)
                    yield block
    except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, RuntimeError, zlib.error) as exc:
        raise TraceError(f"{path} is a damaged zip archive", why=str(exc), fix="copy or pack it again") from exc


def _is_of_program(name: str) -> bool:
    """False for folders, and for what macOS adds to archives."""
    return not name.endswith("/") and not name.startswith("__MACOSX/") and not name.endswith(".DS_Store")


def _is_zip(path: Path, content: str) -> TraceError:
    what = f"{path} is a zip archive with {content}, not one with one trace inside"
    return TraceError(what, fix="unpack it, and pass the trace or the folder")


def _directory_bytes(file: BinaryIO) -> int:
    """Gives the size of the list of files of a zip archive.

    The archive's end states it. Very large where only zip64 can hold it.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _ZIP_END_BYTES))
    end = file.read(_ZIP_END_BYTES)
    file.seek(0)
    has_no_comment = end[-22:].startswith(_ZIP_END) and end.endswith(b"\0\0")
    at = len(end) - 22 if has_no_comment else end.rfind(_ZIP_END)
    if at < 0:
        return 0
    return 2**64 if end[:at][-20:].startswith(_ZIP64_END) else int.from_bytes(end[at + 12 : at + 16], "little")


def _regular_size(file: BinaryIO) -> int | None:
    """The size of a regular file; null for a pipe."""
    status = os.fstat(file.fileno())
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _file_blocks(file: BinaryIO, size: int | None, on_bytes: Callable[[int, int], None]) -> Iterator[bytes]:
    # A regular file is read to the size that it had when opened: it may be growing.
    read = 0
    while block := file.read(BLOCK_BYTES if size is None else min(BLOCK_BYTES, size - read)):
        read += len(block)
        if size is not None:
            on_bytes(read, size)
        yield block
