"""The base commit of a change, in each shape of clone; and the remedy where there is none."""

import os
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bottleneck.experiment.git_clone import MERGE_BASE, _name, parse_diff, touched_lines
from tests.experiment.clones import commit, git, look, make_branched, make_clone, own_settings

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> None:
    own_settings(monkeypatch)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone on a branch that left main one commit ago."""
    return make_branched(tmp_path / "clone")


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


def test_a_branch_that_is_reported_but_not_here_is_not_replaced_by_another(clone: Path, tmp_path: Path) -> None:
    base, _ = look(clone, MERGE_BASE, tmp_path, GITHUB_BASE_REF="release")
    assert base.reason == (
        "the branch release that GITHUB_BASE_REF names is not in this clone: "
        "git fetch origin +refs/heads/release:refs/remotes/origin/release"
    )


def test_the_main_branch_may_have_any_name_that_is_reported(clone: Path, tmp_path: Path) -> None:
    git(clone, "branch", "--move", "main", "trunk")
    git(clone, "update-ref", "refs/remotes/origin/trunk", "trunk")
    wanted = f"merge-base with origin/trunk ({git(clone, 'rev-parse', '--short=7', 'trunk~1')})"
    assert look(clone, "merge-base:trunk", tmp_path / "scratch")[0].label == wanted
    assert look(clone, "merge-base:origin/trunk", tmp_path / "scratch")[0].label == wanted
    assert look(clone, MERGE_BASE, tmp_path / "scratch", CI_DEFAULT_BRANCH="trunk")[0].label == wanted
    assert look(clone, "trunk", tmp_path / "scratch")[0].commit == git(clone, "rev-parse", "trunk")  # its tip
    base, _ = look(clone, "merge-base:--all", tmp_path / "scratch", GITHUB_BASE_REF="trunk")
    assert base.reason is not None and "the branch --all that --against names is not in this clone" in base.reason


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
    assert base.warnings == ("nothing here differs from main: the last commit is compared with the one before it",)
    (clone / "output.json").write_text("{}")  # what a job leaves about is no change
    assert look(clone, MERGE_BASE, tmp_path / "scratch")[0].label == base.label
    (clone / "train.py").write_text("three = 3\n")
    base, text = look(clone, MERGE_BASE, tmp_path / "scratch")
    assert text == "two = 2\n"
    assert base.label == f"HEAD ({base.commit[:7]})" and base.is_dirty and base.warnings == ()


@pytest.mark.parametrize("name", ["--output=stolen", "-h", "", "no such", "main..change", "train.py", "$(id)", "a\0b"])
def test_what_is_no_name_of_a_commit_is_refused(clone: Path, tmp_path: Path, name: str) -> None:
    base, _ = look(clone, name, tmp_path / "scratch")
    assert base.side is None
    assert base.reason is not None
    assert not (clone / "stolen").exists()


def test_a_target_that_is_told_as_an_option_is_no_option(clone: Path, tmp_path: Path) -> None:
    base, _ = look(clone, MERGE_BASE, tmp_path, GITHUB_BASE_REF="--output=stolen")
    assert base.side is None and base.reason is not None
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
        ("nameless", "there is no origin/HEAD, origin/main, main or master; name one with --against merge-base:BRANCH"),
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
    assert base.side is None
    assert base.reason is not None and said in base.reason


TEN = "".join(f"line {number}\n" for number in range(1, 11))


@pytest.fixture
def ten_lines(tmp_path: Path) -> Path:
    """A clone with a file of ten lines."""
    return make_clone(tmp_path / "clone", TEN)


def touched(ten_lines: Path) -> dict[str, list[int]]:
    """The lines that differ from HEAD."""
    found = touched_lines(ten_lines, git(ten_lines, "rev-parse", "HEAD"))
    assert found is not None
    return {name: sorted(lines) for name, lines in found.items()}


def test_nothing_is_touched_where_nothing_was_changed(ten_lines: Path) -> None:
    assert touched(ten_lines) == {}


def test_lines_are_those_of_the_new_side(ten_lines: Path) -> None:
    lines = TEN.splitlines(keepends=True)
    (ten_lines / "train.py").write_text("".join(["new\n", *lines[:4], "fifth\n", *lines[5:8], "new\n", "new\n"]))
    assert touched(ten_lines) == {"train.py": [1, 6, 10, 11]}


def test_lines_that_are_gone_touch_none(ten_lines: Path) -> None:
    (ten_lines / "train.py").write_text("".join(TEN.splitlines(keepends=True)[2:]))
    assert touched(ten_lines) == {}
    (ten_lines / "train.py").unlink()
    assert touched(ten_lines) == {}


def test_commits_the_index_and_the_working_tree_count_alike(ten_lines: Path) -> None:
    first = git(ten_lines, "rev-parse", "HEAD")
    commit(ten_lines, "second", train_py="zeroth\n" + TEN)
    (ten_lines / "train.py").write_text("zeroth\n" + TEN + "staged\n")
    git(ten_lines, "add", "train.py")
    (ten_lines / "train.py").write_text("zeroth\n" + TEN + "staged\nlast\n")
    found = touched_lines(ten_lines, first)
    assert found == {"train.py": frozenset({1, 12, 13})}


def test_a_file_that_was_moved_counts_by_its_new_name_where_it_differs(ten_lines: Path) -> None:
    (ten_lines / "train.py").rename(ten_lines / "moved.py")
    git(ten_lines, "add", "--all")
    assert touched(ten_lines) == {}
    (ten_lines / "moved.py").write_text(TEN + "more\n")
    assert touched(ten_lines) == {"moved.py": [11]}


def test_a_new_file_counts_as_a_whole_unless_it_is_ignored_or_no_text(ten_lines: Path) -> None:
    commit(ten_lines, "ignore", **{".gitignore": "ignored.py\n"})
    for name in ("ignored.py", "new.py"):
        (ten_lines / name).write_text("a\nb\nc")
    (ten_lines / "data.bin").write_bytes(b"\0\n\n")
    (ten_lines / "link.py").symlink_to("train.py")
    (ten_lines / "large.txt").write_text("x\n" * 600_000)
    assert touched(ten_lines) == {"new.py": [1, 2, 3]}


ODD = ["with space.py", "tab\t.py", 'quo"te.py', "back\\slash.py", "new\nline.py", "ü.py", "-x.py", "a b/c => d.py"]


def test_names_may_be_odd(ten_lines: Path) -> None:
    names = [*ODD, os.fsdecode(b"\xff\xfe.py")]
    for name in names:
        (ten_lines / name).parent.mkdir(exist_ok=True)
        (ten_lines / name).write_text("one\ntwo\n")
    assert touched(ten_lines) == {name: [1, 2] for name in names}
    commit(ten_lines, "odd")
    for name in names:
        (ten_lines / name).write_text("one\nchanged\n")
    assert touched(ten_lines) == {name: [2] for name in names}


def test_a_folder_of_a_clone_knows_its_own_files_by_its_own_names(ten_lines: Path) -> None:
    commit(ten_lines, "sub", sub__inner_py="one\n")
    (ten_lines / "sub" / "inner.py").write_text("one\ntwo\n")
    (ten_lines / "sub" / "new.py").write_text("one\n")
    (ten_lines / "train.py").write_text("")
    assert touched(ten_lines / "sub") == {"inner.py": [2], "new.py": [1]}


def test_lines_that_look_like_a_diff_are_only_lines(ten_lines: Path) -> None:
    text = "++ b/other.py\n@@ -1 +1,5 @@\ndiff --git a/x b/x\n-- a/x\n"
    (ten_lines / "train.py").write_text(text)
    assert touched(ten_lines) == {"train.py": [1, 2, 3, 4]}
    commit(ten_lines, "odd")
    (ten_lines / "train.py").write_text("one")
    assert touched(ten_lines) == {"train.py": [1]}


def test_binary_files_are_passed_over(ten_lines: Path) -> None:
    (ten_lines / "data.bin").write_bytes(b"\0\1\2")
    commit(ten_lines, "data")
    (ten_lines / "data.bin").write_bytes(b"\0\1\3")
    (ten_lines / "train.py").write_text(TEN + "more\n")
    assert touched(ten_lines) == {"train.py": [11]}


def test_settings_of_the_user_change_nothing(ten_lines: Path) -> None:
    for setting in ("diff.noprefix", "diff.mnemonicPrefix", "color.ui"):
        git(ten_lines, "config", setting, "always" if setting == "color.ui" else "true")
    git(ten_lines, "config", "diff.external", "false")
    (ten_lines / "train.py").write_text(TEN + "more\n")
    assert touched(ten_lines) == {"train.py": [11]}


@pytest.mark.parametrize("name", ["", "--output=stolen", "nothing"])
def test_what_is_no_commit_has_no_answer(ten_lines: Path, name: str) -> None:
    assert touched_lines(ten_lines, name) is None
    assert not (ten_lines / "stolen").exists()


def test_outside_of_a_clone_there_is_no_answer(tmp_path: Path) -> None:
    assert touched_lines(tmp_path, "HEAD") is None


@settings(max_examples=settings.default.max_examples * 3, deadline=None)
@given(st.binary(max_size=200))
def test_no_text_breaks_the_reading(text: bytes) -> None:
    assert isinstance(parse_diff(b"diff --git a/x b/x\n+++ b/x\n@@ -0,0 +1,2 @@\n" + text), dict)


def test_a_size_that_is_absurd_is_read_as_far_as_there_are_lines() -> None:
    text = b"diff --git a/x b/x\n+++ b/x\n@@ -0,0 +1,999999999999 @@\n+a\n"
    assert parse_diff(text) == {"x": frozenset({1})}


def test_quoted_names_are_read_as_git_writes_them() -> None:
    assert _name(b'"b/\\303\\274\\t\\"\\\\.py"') == 'ü\t"\\.py'
    assert _name(b"/dev/null") is None
