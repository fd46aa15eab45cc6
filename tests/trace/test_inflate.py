"""Gzip files that nobody writes by accident: long headers, and members without content."""

import gzip
import zlib
from collections import Counter
from pathlib import Path

from bottleneck.trace.inflate import read_blocks

TEXT = b'{"traceEvents": []}'


def named(name: bytes, text: bytes) -> bytes:
    """A gzip member with a name in its header."""
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    body = packer.compress(text) + packer.flush()
    trailer = zlib.crc32(text).to_bytes(4, "little") + len(text).to_bytes(4, "little")
    return b"\x1f\x8b\x08\x08\0\0\0\0\0\xff" + name + b"\0" + body + trailer


def inflated(folder: Path, content: bytes) -> tuple[bytes, Counter[str]]:
    (folder / "trace.json.gz").write_bytes(content)
    damage: Counter[str] = Counter()
    return b"".join(read_blocks(folder / "trace.json.gz", damage)), +damage


def test_a_name_in_the_header_of_any_length_is_passed(tmp_path: Path) -> None:
    for length in (5, 3_000_000):
        assert inflated(tmp_path, named(b"n" * length, TEXT) * 2) == (TEXT * 2, Counter())


def test_some_empty_members_are_normal_and_very_many_are_junk(tmp_path: Path) -> None:
    empty, whole = gzip.compress(b""), gzip.compress(TEXT)
    assert inflated(tmp_path, whole + empty * 20 + whole) == (TEXT * 2, Counter())
    assert inflated(tmp_path, whole + empty * 5000 + whole) == (TEXT, Counter({"gzip-junk": 1}))
