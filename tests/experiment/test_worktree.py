"""A worktree of the clone: what is left of it (nothing), whose it is, and two jobs at once."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bottleneck.experiment import worktree
from bottleneck.experiment.git_clone import MERGE_BASE, NO_GIT, GitOutput, find_root, git_in, identify
from bottleneck.experiment.worktree import (
    PREFIX,
    base_side,
    lacks,
    moved_target,
    remove_left_over,
    sources,
    worktree_at,
)
from tests.experiment.clones import SETTINGS, commit, git, look, make_branched, make_clone, own_settings
from tests.harness.driver import HANGS_S

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
            meeting.wait(HANGS_S)

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


def test_the_base_is_where_the_branch_left_main(clone: Path, tmp_path: Path) -> None:
    base, text = look(clone, MERGE_BASE, tmp_path / "scratch")
    assert text == "one = 1\n"
    assert base.commit == git(clone, "rev-parse", "main~1")
    assert base.label == f"merge-base with main ({base.commit[:7]})"
    assert (base.reason, base.warnings, base.is_dirty) == (None, (), False)


def test_the_clone_is_as_it_was_afterwards(clone: Path, tmp_path: Path) -> None:
    (clone / "train.py").write_text("three = 3\n")
    hook = clone / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/hooked\n")
    hook.chmod(0o755)
    index = clone / ".git" / "index"
    before = (git(clone, "for-each-ref"), index.read_bytes(), index.stat().st_mtime_ns, git(clone, "stash", "list"))
    base, text = look(clone, MERGE_BASE, tmp_path / "scratch")
    assert text == "one = 1\n" and base.is_dirty
    assert before[:3] == (git(clone, "for-each-ref"), index.read_bytes(), index.stat().st_mtime_ns)
    assert list((tmp_path / "scratch").iterdir()) == []
    assert git(clone, "worktree", "list").count("\n") == 0
    assert not (tmp_path / "hooked").exists()
    git(clone, "checkout", "--quiet", "--force", "main")
    assert (tmp_path / "hooked").exists()  # the hook would have told


def test_the_tree_goes_when_the_block_is_left_by_an_exception(clone: Path, tmp_path: Path) -> None:
    def interrupted() -> None:
        with base_side(clone, MERGE_BASE, "", tmp_path / "scratch", None, {}) as base:
            assert base.side is not None and base.side.folder.is_dir()
            (base.side.folder / "litter").write_text("")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list((tmp_path / "scratch").iterdir()) == []
    assert git(clone, "worktree", "list").count("\n") == 0


def test_a_name_of_the_users_is_looked_up_and_a_folder_taken_as_it_is(clone: Path, tmp_path: Path) -> None:
    git(clone, "tag", "v1", "main~1")
    assert look(clone, "v1", tmp_path / "scratch")[1] == "one = 1\n"
    assert look(clone, "HEAD", tmp_path / "scratch")[1] == "two = 2\n"
    other = tmp_path / "other"
    other.mkdir()
    (other / "train.py").write_text("four = 4\n")
    for root in (clone, None):
        base, text = look(root, str(other), tmp_path / "scratch", setup="exit 1")
        assert (text, base.label, base.commit) == ("four = 4\n", str(other), "")
    (clone / "v1").mkdir()  # a name that is both means the commit, unless it is written as a path
    assert look(clone, "v1", tmp_path / "scratch")[1] == "one = 1\n"
    with base_side(clone, "./v1", "", tmp_path / "scratch", None, {}) as base:
        assert base.side is not None and base.side.folder == clone / "v1"


def test_without_a_clone_or_git_the_folder_is_named_as_the_way_out(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, _ = look(None, MERGE_BASE, tmp_path)
    assert base.reason == (
        "this folder is in no git repository, where a base could be found; name a folder with --against DIR"
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    base, _ = look(clone, MERGE_BASE, tmp_path)
    assert base.reason is not None and base.reason.startswith("git is not installed")
    assert identify(clone) is None
    assert git_in(clone)("status").status == NO_GIT
    assert look(clone, str(clone), tmp_path)[1] == "two = 2\n"


def test_a_clone_of_somebody_else_says_how_to_trust_it(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")  # git's own tests pretend it like this
    base, _ = look(clone, MERGE_BASE, tmp_path)
    assert base.reason is not None and f"git config --global --add safe.directory {clone}" in base.reason


def test_a_hook_that_calls_us_does_not_turn_us_to_another_clone(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_clone(tmp_path / "other", "other = 0\n")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git" / "index"))
    assert look(clone, MERGE_BASE, tmp_path / "scratch")[1] == "one = 1\n"


def test_the_base_is_set_up_by_the_users_own_words(clone: Path, tmp_path: Path) -> None:
    words = "echo built > $PWD/built  # a comment\ncp built train.py"
    assert look(clone, MERGE_BASE, tmp_path / "scratch", words)[1] == "built\n"
    assert not (clone / "built").exists()
    (clone / "data").write_text("a lot\n")
    assert look(clone, MERGE_BASE, tmp_path / "scratch", 'ln -sf "$BOTTLENECK_CANDIDATE/data" train.py')[1] == "a lot\n"
    base, _ = look(clone, MERGE_BASE, tmp_path / "scratch", "echo compiling; echo no compiler >&2; exit 3")
    assert base.side is None
    assert base.reason == "`setup` failed in the base with status 3: compiling; no compiler"
    base, _ = look(clone, MERGE_BASE, tmp_path / "scratch", "false\ntrue")
    assert base.reason == "`setup` failed in the base with status 1"
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_folder_of_the_clone_is_mirrored(clone: Path, tmp_path: Path) -> None:
    commit(clone, "sub", sub__train_py="five = 5\n")
    with base_side(clone, "HEAD", "pwd > here", tmp_path / "scratch", clone / "sub", {}) as base:
        assert base.side is not None and base.side.folder.name == "sub"
        assert (base.side.folder / "here").read_text().strip() == str(base.side.folder)
        assert lacks(base, "train.py") is None
        assert lacks(base, "new.py") == (
            f"the base, {base.label}, has no new.py: there is nothing to hold its time against until it is merged"
        )
    with base_side(clone, "main", "", tmp_path / "scratch", clone / "sub", {}) as base:
        assert base.reason == f"the base, {base.label}, has no folder sub"


def test_a_program_is_found_from_each_sides_own_folder(clone: Path, tmp_path: Path) -> None:
    assert moved_target("train.py", clone, clone) == "train.py"
    assert moved_target(str(clone / "sub" / "train.py"), clone, clone / "sub") == "train.py"
    assert moved_target(str(clone / "train.py"), clone, clone / "sub") == "../train.py"
    outside = str(tmp_path / "elsewhere.py")
    assert moved_target(outside, clone, clone) == outside
    assert moved_target(outside, None, clone) == outside


def test_a_package_that_is_installed_in_place_is_the_bases_own(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tmp_path / "tree"
    for folder in (clone / "src", tree / "src", clone / ".venv" / "lib"):
        folder.mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(clone), str(clone / "src"), str(clone / ".venv" / "lib"), "/usr/lib"])
    assert sources(clone, tree) == {"PYTHONPATH": str(tree / "src")}
    monkeypatch.setenv("PYTHONPATH", f"{clone}/lib{os.pathsep}/elsewhere")
    expected = [tree / "lib", Path("/elsewhere"), tree / "src"]
    assert sources(clone, tree) == {"PYTHONPATH": os.pathsep.join(map(str, expected))}
    monkeypatch.delenv("PYTHONPATH")
    monkeypatch.setattr(sys, "path", [str(clone), "/usr/lib"])
    assert sources(clone, tree) == {}


def test_submodules_and_large_files_are_reported(clone: Path, tmp_path: Path) -> None:
    (clone / ".gitmodules").write_text("")
    (clone / ".gitattributes").write_text("*.bin filter=lfs diff=lfs\n")
    commit(clone, "more")
    base, _ = look(clone, "HEAD", tmp_path / "scratch", "echo pip install -e .")
    told = "; ".join(base.warnings)
    assert "submodules are empty" in told and "git-lfs" in told and "both sides run in" in told
    assert "compared with itself" in str(base.own)
    assert look(clone, MERGE_BASE, tmp_path / "scratch")[0].warnings == ()


def test_large_files_stay_pointers_even_where_the_clone_demands_git_lfs(clone: Path, tmp_path: Path) -> None:
    (clone / ".gitattributes").write_text("*.bin filter=lfs\n")
    (clone / "data.bin").write_text("pointer\n")
    commit(clone, "data")
    git(clone, "config", "filter.lfs.smudge", f"touch {tmp_path}/fetched; cat")
    git(clone, "config", "filter.lfs.required", "true")
    with base_side(clone, "HEAD", "", tmp_path / "scratch", None, {}) as base:
        assert base.side is not None and (base.side.folder / "data.bin").read_text() == "pointer\n"
    assert not (tmp_path / "fetched").exists()


def test_a_scratch_folder_that_cannot_be_made_is_a_reason(clone: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    base, _ = look(clone, MERGE_BASE, tmp_path / "file" / "scratch")
    assert base.reason is not None and "no folder can be made for the base" in base.reason


def test_a_clone_is_found_from_any_folder_in_it_and_has_a_name(clone: Path, tmp_path: Path) -> None:
    (clone / "deep" / "er").mkdir(parents=True)
    assert find_root(clone / "deep" / "er") == clone
    assert find_root(tmp_path) is None
    known = identify(clone)
    assert known is not None
    assert (known.branch, known.is_dirty, known.label) == ("change", False, f"change {known.commit}")
    (clone / "train.py").write_text("")
    git(clone, "checkout", "--quiet", "--detach")
    known = identify(clone)
    assert known is not None and known.label == f"{known.commit} with uncommitted changes"


def test_the_tests_have_settings_of_their_own() -> None:
    assert {name: os.environ[name] for name in SETTINGS} == SETTINGS
