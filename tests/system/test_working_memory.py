"""What is put into a spool comes back, from memory or from a file."""

import gc
import tempfile
from pathlib import Path

import pytest

from bottleneck.errors import WorkloadError
from bottleneck.system import working_memory
from bottleneck.system.working_memory import Spool


@pytest.mark.parametrize("held_bytes", [1, 8, 1000])
def test_bytes_come_back_whatever_is_held_in_memory(held_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working_memory, "_HELD_BYTES", held_bytes)
    kept = Spool()
    places = [kept.reserve(size) for size in (3, 5, 2)]
    for place, data in reversed(list(zip(places, (b"abc", b"defgh", b"ij"), strict=True))):
        kept.write(place, data)
    assert kept.read(places[1], 5) == b"defgh"
    assert kept.read(0, 10) == b"abcdefghij"


def test_a_spool_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(working_memory, "_HELD_BYTES", 1)
    kept = Spool()
    kept.write(kept.reserve(10), bytes(10))
    del kept
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    monkeypatch.setattr(working_memory, "_HELD_BYTES", 1)
    kept = Spool()
    with pytest.raises(WorkloadError, match="absent") as caught:
        kept.write(kept.reserve(10), bytes(10))
    assert "TMPDIR" in caught.value.fix
