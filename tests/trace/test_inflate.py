"""Archives: gzip files that nobody writes by accident, gzip in gzip, and a zip with one trace inside."""

import gzip
import io
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from bottleneck.errors import TraceError
from bottleneck.trace import inflate
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


def zipped(members: dict[str, bytes]) -> bytes:
    """A zip archive of files."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return packed.getvalue()


def refused(folder: Path, content: bytes) -> str:
    with pytest.raises(TraceError) as caught:
        inflated(folder, content)
    return caught.value.what + (caught.value.why or "")


def test_a_zip_with_one_trace_and_gzip_in_gzip_are_read(tmp_path: Path) -> None:
    for text in (TEXT, b'{"traceEvents": [' + b" " * 3_000_000 + b"]}"):
        packed = gzip.compress(text)
        of_macos = zipped({"a/": b"", "__MACOSX/a/trace.json": b"x", "a/trace.json": text})
        for content in (gzip.compress(packed), zipped({"trace": text}), zipped({"trace.json.gz": packed}), of_macos):
            assert inflated(tmp_path, content) == (text, Counter())
    assert "twice" in refused(tmp_path, gzip.compress(gzip.compress(gzip.compress(TEXT))))


def test_a_zip_that_is_not_one_trace_is_refused(tmp_path: Path) -> None:
    assert "2 files" in refused(tmp_path, zipped({"one": TEXT, "two": TEXT}))
    assert "0 files" in refused(tmp_path, zipped({"a/": b""}))
    assert "thousands of files" in refused(tmp_path, zipped({f"name{at}": b"" for at in range(20_000)}))
    whole = zipped({"trace": gzip.compress(bytes(200_000))})
    for damaged in (whole[: len(whole) // 2], whole[:60] + b"x" * 30 + whole[90:], whole[:-30]):
        assert "damaged zip" in refused(tmp_path, damaged)
    locked = bytearray(zipped({"trace": TEXT}))
    locked[locked.index(b"PK\x01\x02") + 8] |= 1
    assert "password" in refused(tmp_path, bytes(locked))


def test_a_zip_whose_end_claims_zip64_is_refused(tmp_path: Path) -> None:
    whole = zipped({"trace": TEXT})
    at = whole.rindex(b"PK\x05\x06")
    assert "thousands" in refused(tmp_path, whole[:at] + b"PK\x06\x07" + bytes(16) + whole[at:])


def test_names_in_a_zip_are_no_paths(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("../../outside.json", TEXT)
    (tmp_path / "inner").mkdir()
    assert inflated(tmp_path / "inner", packed.getvalue()) == (TEXT, Counter())
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["trace.json.gz"]


@pytest.mark.parametrize("pack", [gzip.compress, lambda text: zipped({"trace": text})], ids=["gzip", "zip"])
def test_bombs_in_archives_are_refused(
    pack: Callable[[bytes], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inflate, "_RATIO_FREE_BYTES", 2**20)
    # Each of two layers alone stays below the limit of 200 times.
    bomb = gzip.compress(gzip.compress(b"x" * 20_000_000, 9), 9)
    assert "inflates more than 200 times" in refused(tmp_path, bomb)
    assert "inflates more than 200 times" in refused(tmp_path, pack(b"x" * 20_000_000))
    assert "inflates more than 200 times" in refused(tmp_path, pack(gzip.compress(b"x" * 20_000_000, 9)))
    monkeypatch.setattr(inflate, "MAX_INFLATED_BYTES", 100)
    assert "refusing to inflate" in refused(tmp_path, pack(TEXT * 10))
