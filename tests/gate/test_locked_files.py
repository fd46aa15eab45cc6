import shutil
from pathlib import Path

import pytest

from bottleneck.gate.locked_files import read_lock_at
from bottleneck.gate.lockfile import write_lock
from bottleneck.schema.counters import Counts, Fingerprint, Lock
from tests.experiment.clones import commit, git

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def lock(ops: int) -> Lock:
    return Lock("net", ("net.py",), Counts({"ops": ops}, Fingerprint()))


def test_the_lock_file_of_a_commit_is_read_and_not_that_of_now(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    path = tmp_path / "sub" / ".bottleneck" / "net.lock.toml"
    empty = commit(tmp_path, "nothing")
    write_lock(path, lock(3))
    first = commit(tmp_path, "lock")
    path.write_text("broken")
    broken = commit(tmp_path, "broken")
    write_lock(path, lock(4))
    assert read_lock_at(first, path) == lock(3)
    assert read_lock_at(empty, path) is None
    assert read_lock_at(broken, path) is None
    assert read_lock_at("", path) is None


def test_a_lock_file_that_is_a_link_to_elsewhere_is_that_of_the_commit(tmp_path: Path) -> None:
    root = tmp_path / "clone"
    root.mkdir()
    git(root, "init", "--quiet")
    write_lock(root / "net.lock.toml", lock(3))
    first = commit(root, "lock")
    (root / "net.lock.toml").unlink()
    (root / "net.lock.toml").symlink_to(tmp_path / "elsewhere")
    assert read_lock_at(first, root / "net.lock.toml") == lock(3)


def test_outside_of_a_clone_there_is_none(tmp_path: Path) -> None:
    assert read_lock_at("HEAD", tmp_path / "net.lock.toml") is None
