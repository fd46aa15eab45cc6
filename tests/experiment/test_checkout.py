"""Where a base comes from: what is found in each shape of clone, what is left behind (nothing), and what is said."""

import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from bottleneck.experiment import worktree
from bottleneck.experiment.checkout import (
    MERGE_BASE,
    Base,
    base_stand,
    find_root,
    identify,
    lacks,
    moved_target,
    sources,
)
from bottleneck.experiment.git import NO_GIT, Answer, git_in
from bottleneck.experiment.worktree import PREFIX, remove_left_over, worktree_at
from tests.experiment.clones import SETTINGS, commit, git, make_clone, own_settings

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> None:
    own_settings(monkeypatch)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone on a branch that left main one commit ago, main having gone on since."""
    folder = make_clone(tmp_path / "clone")
    git(folder, "checkout", "--quiet", "-b", "change")
    commit(folder, "change", train_py="two = 2\n")
    git(folder, "checkout", "--quiet", "main")
    commit(folder, "meanwhile", other_py="")
    git(folder, "checkout", "--quiet", "change")
    return folder


def look(clone: Path | None, against: str, scratch: Path, setup: str = "", **told: str) -> tuple[Base, str]:
    """The base, and what its `train.py` holds while it is there."""
    with base_stand(clone, against, setup, scratch, environment=told) as base:
        text = (base.stand.folder / "train.py").read_text() if base.stand else ""
    return base, text


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
        with base_stand(clone, MERGE_BASE, "", tmp_path / "scratch", None, {}) as base:
            assert base.stand is not None and base.stand.folder.is_dir()
            (base.stand.folder / "litter").write_text("")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list((tmp_path / "scratch").iterdir()) == []
    assert git(clone, "worktree", "list").count("\n") == 0


_KILLED = """
import sys, time
from pathlib import Path
from bottleneck.experiment.checkout import base_stand
with base_stand(Path(sys.argv[1]), "main", "", Path(sys.argv[2])) as base:
    print(base.stand.folder, flush=True)
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
        with base_stand(clone, MERGE_BASE, "", tmp_path / "scratch", None, {}) as base:
            seen[name] = base
            meeting.wait(60)

    jobs = [threading.Thread(target=job, args=(name,)) for name in "abc"]
    for each in jobs:
        each.start()
    for each in jobs:
        each.join()
    assert [base.reason for base in seen.values()] == [None] * 3
    assert len({base.stand.folder for base in seen.values() if base.stand}) == 3
    assert git(clone, "worktree", "list").count("\n") == 0


def test_a_lock_of_gits_is_waited_for_and_other_refusals_are_not(clone: Path, tmp_path: Path) -> None:
    said = ["fatal: could not lock config file .git/config.lock: File exists"] * 2
    real, waits = git_in(clone), list[float]()

    def held(*words: str, settings: tuple[str, ...] = ()) -> Answer:
        if words[:2] == ("worktree", "add") and said:
            return Answer(128, errors=said.pop())
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

    def held(*words: str, settings: tuple[str, ...] = ()) -> Answer:
        return Answer(128, errors="fatal: Unable to create 'index.lock': File exists.")

    with worktree_at(held, "0" * 40, tmp_path / "scratch", waits.append) as tree:
        assert tree.reason is not None and "File exists" in tree.reason
    assert len(waits) == worktree._TRIES - 1 and sum(waits) < 10


# The target is told by the service that runs the job.
TOLD: list[Mapping[str, str]] = [
    {"GITHUB_BASE_REF": "release"},
    {"CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "release"},
    {"BUILDKITE_PULL_REQUEST_BASE_BRANCH": "release"},
    {"CHANGE_TARGET": "release"},
    {"BITBUCKET_PR_DESTINATION_BRANCH": "release"},
    {"SYSTEM_PULLREQUEST_TARGETBRANCH": "refs/heads/release"},
]


@pytest.mark.parametrize("told", TOLD, ids=lambda told: next(iter(told)))
def test_the_service_says_which_branch_it_is_merged_into(clone: Path, tmp_path: Path, told: Mapping[str, str]) -> None:
    git(clone, "update-ref", "refs/remotes/origin/release", "change~1")
    git(clone, "update-ref", "refs/remotes/origin/main", "change")
    base, text = look(clone, MERGE_BASE, tmp_path / "scratch", **told)
    assert text == "one = 1\n"
    assert base.label == f"merge-base with origin/release ({base.commit[:7]})"


@pytest.mark.parametrize("name", ["CI_MERGE_REQUEST_TARGET_BRANCH_SHA", "CI_MERGE_REQUEST_DIFF_BASE_SHA"])
def test_gitlab_says_the_commit_itself(clone: Path, tmp_path: Path, name: str) -> None:
    base, _ = look(clone, MERGE_BASE, tmp_path, **{name: git(clone, "rev-parse", "main")})
    assert base.commit == git(clone, "rev-parse", "main")


def test_a_branch_that_is_told_but_not_here_is_not_replaced_by_another(clone: Path, tmp_path: Path) -> None:
    base, _ = look(clone, MERGE_BASE, tmp_path, GITHUB_BASE_REF="release")
    assert base.reason == (
        "the branch release that GITHUB_BASE_REF names is not in this clone: "
        "git fetch origin +refs/heads/release:refs/remotes/origin/release"
    )


def test_a_pull_request_of_two_commits_is_enough(clone: Path, tmp_path: Path) -> None:
    git(clone, "checkout", "--quiet", "--detach", "main")
    git(clone, "merge", "--quiet", "--no-edit", "change")
    service = tmp_path / "service"
    git(tmp_path, "clone", "--quiet", "--depth=2", f"file://{clone}", str(service))
    git(service, "checkout", "--quiet", "--detach", "HEAD")
    git(service, "update-ref", "-d", "refs/remotes/origin/HEAD")
    base, text = look(service, MERGE_BASE, tmp_path / "scratch", GITHUB_BASE_REF="main", GITHUB_REF="refs/pull/7/merge")
    assert text == "one = 1\n"
    assert base.label == f"the target of the pull request ({base.commit[:7]})"


def test_on_the_branch_itself_changes_are_held_against_its_last_commit(tmp_path: Path) -> None:
    clone = make_clone(tmp_path / "clone")
    commit(clone, "second", train_py="two = 2\n")
    base, text = look(clone, MERGE_BASE, tmp_path / "scratch")
    assert text == "one = 1\n"
    assert base.label == f"HEAD~1 ({base.commit[:7]})"
    assert base.warnings == ("nothing here differs from main: the last commit is held against the one before it",)
    (clone / "output.json").write_text("{}")  # what a job leaves about is no change
    assert look(clone, MERGE_BASE, tmp_path / "scratch")[0].label == base.label
    (clone / "train.py").write_text("three = 3\n")
    base, text = look(clone, MERGE_BASE, tmp_path / "scratch")
    assert text == "two = 2\n"
    assert base.label == f"HEAD ({base.commit[:7]})" and base.is_dirty and base.warnings == ()


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
    with base_stand(clone, "./v1", "", tmp_path / "scratch", None, {}) as base:
        assert base.stand is not None and base.stand.folder == clone / "v1"


@pytest.mark.parametrize("name", ["--output=stolen", "-h", "", "no such", "main..change", "train.py", "$(id)", "a\0b"])
def test_what_is_no_name_of_a_commit_is_refused(clone: Path, tmp_path: Path, name: str) -> None:
    base, _ = look(clone, name, tmp_path / "scratch")
    assert base.stand is None
    assert base.reason is not None
    assert not (clone / "stolen").exists()


def test_a_target_that_is_told_as_an_option_is_no_option(clone: Path, tmp_path: Path) -> None:
    base, _ = look(clone, MERGE_BASE, tmp_path, GITHUB_BASE_REF="--output=stolen")
    assert base.stand is None and base.reason is not None
    assert not (clone / "stolen").exists()


SHALLOW = [
    (["--no-single-branch"], False, "this clone is shallow and does not reach back to where HEAD left origin/main: "),
    ([], False, "the branch main that GITHUB_BASE_REF names is not in this clone: "),
    (["--no-single-branch"], True, "this clone is shallow and does not reach back to where HEAD left origin/main: "),
]


@pytest.mark.parametrize(("options", "is_detached", "said"), SHALLOW, ids=["all branches", "one branch", "detached"])
def test_a_shallow_clone_says_a_command_that_helps(
    clone: Path, tmp_path: Path, options: list[str], is_detached: bool, said: str
) -> None:
    commit(clone, "more", train_py="three = 3\n")
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "--quiet", "--depth=1", *options, f"file://{clone}", str(shallow))
    if is_detached:
        git(shallow, "checkout", "--quiet", "--detach")
    base, _ = look(shallow, MERGE_BASE, tmp_path / "scratch", GITHUB_BASE_REF="main")
    assert base.reason is not None and base.reason.startswith(said)
    assert base.reason.endswith(" (GitHub: fetch-depth: 0; GitLab: GIT_DEPTH: 0)")
    command = base.reason.removeprefix(said).partition(" (")[0]
    assert command.startswith("git fetch --depth=200 origin ")
    git(shallow, *shlex.split(command)[1:])
    base, text = look(shallow, MERGE_BASE, tmp_path / "scratch", GITHUB_BASE_REF="main")
    assert (base.reason, text) == (None, "one = 1\n")


def test_a_shallow_clone_has_no_commits_before_its_own(clone: Path, tmp_path: Path) -> None:
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "--quiet", "--depth=1", "--branch=main", f"file://{clone}", str(shallow))
    base, _ = look(shallow, "HEAD~1", tmp_path / "scratch")
    assert base.reason is not None and "this clone is shallow: git fetch --unshallow" in base.reason
    base, _ = look(shallow, MERGE_BASE, tmp_path / "scratch")
    assert base.reason is not None and "git fetch --depth=200 origin main" in base.reason


def test_a_command_is_safe_to_copy_whatever_a_branch_is_called(clone: Path, tmp_path: Path) -> None:
    base, _ = look(clone, MERGE_BASE, tmp_path, GITHUB_BASE_REF="$(reboot);x")
    assert base.reason is not None
    assert "git fetch origin '+refs/heads/$(reboot);x:refs/remotes/origin/$(reboot);x'" in base.reason


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ("unrelated", "HEAD and main have no commit in common (no merge-base); name a base with --against REF"),
        ("unborn", "this clone has no commit yet"),
        ("first", "nothing here differs from main, and the commit before HEAD is not in this clone: HEAD is the first"),
        ("nameless", "there is no origin/HEAD, origin/main, main or master; name one with --against REF"),
        ("damaged", "git cannot read"),
    ],
)
def test_a_clone_without_a_base_says_why(tmp_path: Path, shape: str, said: str) -> None:
    clone = make_clone(tmp_path / "clone")
    if shape == "unrelated":
        git(clone, "checkout", "--quiet", "--orphan", "alone")
        commit(clone, "alone")
    if shape == "unborn":
        shutil.rmtree(clone)
        clone.mkdir()
        git(clone, "init", "--quiet")
    if shape == "nameless":
        git(clone, "branch", "--quiet", "--move", "main", "trunk")
    if shape == "damaged":
        (clone / ".git" / "HEAD").unlink()
    base, _ = look(clone, MERGE_BASE, tmp_path / "scratch")
    assert base.stand is None
    assert base.reason is not None and said in base.reason


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
    base, _ = look(clone, MERGE_BASE, tmp_path / "scratch", "echo compiling; echo no compiler >&2; exit 3")
    assert base.stand is None
    assert base.reason == "`setup` failed in the base with status 3: compiling; no compiler"
    base, _ = look(clone, MERGE_BASE, tmp_path / "scratch", "false\ntrue")
    assert base.reason == "`setup` failed in the base with status 1"
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_folder_of_the_clone_is_mirrored(clone: Path, tmp_path: Path) -> None:
    commit(clone, "sub", sub__train_py="five = 5\n")
    with base_stand(clone, "HEAD", "pwd > here", tmp_path / "scratch", clone / "sub", {}) as base:
        assert base.stand is not None and base.stand.folder.name == "sub"
        assert (base.stand.folder / "here").read_text().strip() == str(base.stand.folder)
        assert lacks(base, "train.py") is None
        assert lacks(base, "new.py") == (
            f"the base, {base.label}, has no new.py: there is nothing to hold its time against until it is merged"
        )
    with base_stand(clone, "main", "", tmp_path / "scratch", clone / "sub", {}) as base:
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


def test_submodules_and_large_files_are_told(clone: Path, tmp_path: Path) -> None:
    (clone / ".gitmodules").write_text("")
    (clone / ".gitattributes").write_text("*.bin filter=lfs diff=lfs\n")
    commit(clone, "more")
    base, _ = look(clone, "HEAD", tmp_path / "scratch", "echo pip install -e .")
    told = "; ".join(base.warnings)
    assert "submodules are empty" in told and "git-lfs" in told and "both sides run in" in told
    assert "held against itself" in told
    assert look(clone, MERGE_BASE, tmp_path / "scratch")[0].warnings == ()


def test_large_files_stay_pointers_even_where_the_clone_demands_git_lfs(clone: Path, tmp_path: Path) -> None:
    (clone / ".gitattributes").write_text("*.bin filter=lfs\n")
    (clone / "data.bin").write_text("pointer\n")
    commit(clone, "data")
    git(clone, "config", "filter.lfs.smudge", f"touch {tmp_path}/fetched; cat")
    git(clone, "config", "filter.lfs.required", "true")
    with base_stand(clone, "HEAD", "", tmp_path / "scratch", None, {}) as base:
        assert base.stand is not None and (base.stand.folder / "data.bin").read_text() == "pointer\n"
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


def test_the_lock_of_a_tree_is_held_while_it_is_there(clone: Path, tmp_path: Path) -> None:
    with worktree_at(git_in(clone), "main", tmp_path / "scratch") as tree:
        (entry,) = (clone / ".git" / "worktrees").iterdir()
        assert entry.name == tree.folder.name and entry.name.startswith(PREFIX)
        with (entry / "bottleneck.lock").open("rb") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_the_tests_have_settings_of_their_own() -> None:
    assert {name: os.environ[name] for name in SETTINGS} == SETTINGS
