"""A worktree of the clone: what is left of it (nothing), whose it is, and two jobs at once."""

import fcntl
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bottleneck.experiment import worktree
from bottleneck.experiment.sources import GitOutput, git_in
from bottleneck.experiment.worktree import MERGE_BASE, PREFIX, base_side, remove_left_over, worktree_at
from tests.experiment.clones import git, look, make_branched, own_settings

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> None:
    own_settings(monkeypatch)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone on a branch that left main one commit ago."""
    return make_branched(tmp_path / "clone")


_KILLED = """
import sys, time
from pathlib import Path
from bottleneck.experiment.worktree import base_side
with base_side(Path(sys.argv[1]), "main", "", Path(sys.argv[2])) as base:
    print(base.side.folder, flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_job_left_goes_with_the_next_one_but_not_what_a_living_one_holds(
    clone: Path, tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    with subprocess.Popen(
        [sys.executable, "-c", _KILLED, str(clone), str(scratch)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as job:
        assert job.stdout is not None
        folder = Path(job.stdout.readline().strip())
        assert (folder / "train.py").exists()
        assert remove_left_over(git_in(clone)) == ()
        assert (folder / "train.py").exists()
        job.send_signal(signal.SIGKILL)
        job.wait()
    assert remove_left_over(git_in(clone)) == (folder,)
    assert not folder.exists()
    assert git(clone, "worktree", "list").count("\n") == 0


def test_what_is_left_without_its_folder_goes_too(clone: Path, tmp_path: Path) -> None:
    folder = tmp_path / f"{PREFIX}gone"
    git(clone, "worktree", "add", "--quiet", "--detach", str(folder), "main")
    shutil.rmtree(folder)
    assert remove_left_over(git_in(clone)) == ()  # it may be about to be locked
    (clone / ".git" / "worktrees" / folder.name / "bottleneck.lock").touch()
    assert remove_left_over(git_in(clone)) == (folder,)
    assert git(clone, "worktree", "list").count("\n") == 0


def test_worktrees_of_the_user_are_never_taken_for_ours(clone: Path, tmp_path: Path) -> None:
    mine, gone = tmp_path / "mine", tmp_path / "gone"
    git(clone, "worktree", "add", "--quiet", "--detach", str(mine), "main")
    git(clone, "worktree", "add", "--quiet", "--detach", str(gone), "main")
    shutil.rmtree(gone)  # a disk that is not there just now
    with (clone / ".git" / "worktrees" / "mine" / "bottleneck.lock").open("wb"):
        look(clone, MERGE_BASE, tmp_path / "scratch")
    assert mine.is_dir()
    assert git(clone, "worktree", "list").count("\n") == 2


def test_two_jobs_at_once_each_have_a_tree_of_their_own(clone: Path, tmp_path: Path) -> None:
    meeting, seen = threading.Barrier(3), {}

    def job(name: str) -> None:
        with base_side(clone, MERGE_BASE, "", tmp_path / "scratch", None, {}) as base:
            seen[name] = base
            meeting.wait(60)

    jobs = [threading.Thread(target=job, args=(name,)) for name in "abc"]
    for each in jobs:
        each.start()
    for each in jobs:
        each.join()
    assert [base.reason for base in seen.values()] == [None] * 3
    assert len({base.side.folder for base in seen.values() if base.side}) == 3
    assert git(clone, "worktree", "list").count("\n") == 0


def test_a_lock_of_gits_is_waited_for_and_other_refusals_are_not(clone: Path, tmp_path: Path) -> None:
    said = ["fatal: could not lock config file .git/config.lock: File exists"] * 2
    real, waits = git_in(clone), list[float]()

    def held(*words: str, settings: tuple[str, ...] = ()) -> GitOutput:
        if words[:2] == ("worktree", "add") and said:
            return GitOutput(128, errors=said.pop())
        return real(*words, settings=settings)

    with worktree_at(held, git(clone, "rev-parse", "main"), tmp_path / "scratch", waits.append) as tree:
        assert tree.reason is None
    assert waits == [0.1, 0.2]
    said.extend(["fatal: No space left on device"])
    with worktree_at(held, git(clone, "rev-parse", "main"), tmp_path / "scratch", waits.append) as tree:
        assert tree.reason is not None and tree.reason.endswith("No space left on device")
    assert len(waits) == 2


def test_a_lock_that_stays_is_given_up(clone: Path, tmp_path: Path) -> None:
    waits = list[float]()

    def held(*words: str, settings: tuple[str, ...] = ()) -> GitOutput:
        return GitOutput(128, errors="fatal: Unable to create 'index.lock': File exists.")

    with worktree_at(held, "0" * 40, tmp_path / "scratch", waits.append) as tree:
        assert tree.reason is not None and "File exists" in tree.reason
    assert len(waits) == worktree._TRIES - 1 and sum(waits) < 10


def test_the_lock_of_a_tree_is_held_while_it_is_there(clone: Path, tmp_path: Path) -> None:
    with worktree_at(git_in(clone), "main", tmp_path / "scratch") as tree:
        (entry,) = (clone / ".git" / "worktrees").iterdir()
        assert entry.name == tree.folder.name and entry.name.startswith(PREFIX)
        with (entry / "bottleneck.lock").open("rb") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
