"""Digests in files: what is read is what was written, or nothing."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bottleneck.analysis.ranks import digest_rank
from bottleneck.mapping.rank_reading import DigestFolder
from bottleneck.schema.digest import RankDigest
from bottleneck.schema.records import replace
from tests.analysis.scenes import Kernel, Scene, evidence
from tests.analysis.test_digest import same


@pytest.fixture(scope="module")
def digest() -> RankDigest:
    rows = [Kernel(at, 40, "communication", kind="collective", name="ncclDevKernel_AllReduce") for at in (100, 1500)]
    return digest_rank(evidence(Scene(2000, rows, steps=2, more={"rank": 3, "world_size": 8})), "node-3")


def test_what_is_read_is_what_was_written(tmp_path: Path, digest: RankDigest) -> None:
    DigestFolder(tmp_path / "new").write("key", digest)
    found = DigestFolder(tmp_path / "new").read("key")
    assert found is not None and same(found, digest)
    assert found.calls.start_us.dtype == np.float64 and found.calls.is_inside.dtype == np.bool_


def test_a_number_of_numpy_is_kept_as_a_number(tmp_path: Path, digest: RankDigest) -> None:
    kept = DigestFolder(tmp_path)
    wall_us = np.float64(digest.steps.wall_us)
    kept.write("key", replace(digest, steps=replace(digest.steps, wall_us=wall_us, count=np.int64(2))))
    found = kept.read("key")
    assert found is not None and (found.steps.wall_us, found.steps.count) == (float(wall_us), 2)


def test_another_key_finds_nothing(tmp_path: Path, digest: RankDigest) -> None:
    kept = DigestFolder(tmp_path)
    kept.write("key", digest)
    assert kept.read("other") is None
    [file] = tmp_path.iterdir()
    kept.write("other", digest)
    [other] = set(tmp_path.iterdir()) - {file}
    other.write_bytes(file.read_bytes())
    assert kept.read("other") is None


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "cut off": lambda data: data[:-7],
    "empty": lambda data: b"",
    "a changed byte": lambda data: data[:60] + bytes([data[60] ^ 1]) + data[61:],
    "longer": lambda data: data + b"x",
    "another format": lambda data: data.replace(b"digest 3", b"digest 0", 1),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_counts_as_not_there(tmp_path: Path, digest: RankDigest, kind: str) -> None:
    kept = DigestFolder(tmp_path)
    kept.write("key", digest)
    [file] = tmp_path.iterdir()
    file.write_bytes(DAMAGE[kind](file.read_bytes()))
    assert kept.read("key") is None


@pytest.mark.parametrize("column", ["message", "group"])
def test_codes_that_name_nothing_count_as_damage(tmp_path: Path, digest: RankDigest, column: str) -> None:
    kept = DigestFolder(tmp_path)
    kept.write("key", replace(digest, calls=replace(digest.calls, **{column: np.array([0, 9])})))
    assert kept.read("key") is None


def test_columns_of_different_lengths_count_as_damage(tmp_path: Path, digest: RankDigest) -> None:
    kept = DigestFolder(tmp_path)
    kept.write("key", replace(digest, calls=replace(digest.calls, end_us=np.zeros(5))))
    assert kept.read("key") is None
    kept.write("key", replace(digest, step_wall_us=np.zeros(5)))
    assert kept.read("key") is None


def test_a_folder_that_cannot_be_made_keeps_nothing(tmp_path: Path, digest: RankDigest) -> None:
    (tmp_path / "file").write_text("")
    kept = DigestFolder(tmp_path / "file" / "folder")
    kept.write("key", digest)
    assert kept.read("key") is None


def test_only_what_was_written_here_is_removed(tmp_path: Path, digest: RankDigest) -> None:
    DigestFolder(tmp_path).write("earlier", digest)
    kept = DigestFolder(tmp_path)
    kept.write("now", digest)
    kept.remove_written()
    assert kept.read("now") is None and kept.read("earlier") is not None


def test_what_nobody_resumed_for_a_month_is_removed(tmp_path: Path, digest: RankDigest) -> None:
    DigestFolder(tmp_path).write("old", digest)
    [old] = tmp_path.iterdir()
    os.utime(old, (1_000_000, 1_000_000))
    assert DigestFolder(tmp_path, now_s=1_000_000 + 29 * 86_400).read("old") is not None
    assert DigestFolder(tmp_path, now_s=1_000_000 + 31 * 86_400).read("old") is None
