"""The base from a commit or a folder, set up by the user's command, with the clone left as it was."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from bottleneck.experiment.sources import NO_GIT, git_in
from bottleneck.experiment.worktree import MERGE_BASE, base_side, find_root, identify, lacks, moved_target, sources
from tests.experiment.clones import SETTINGS, commit, git, look, make_branched, make_clone, own_settings

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> None:
    own_settings(monkeypatch)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone on a branch that left main one commit ago."""
    return make_branched(tmp_path / "clone")


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


def test_submodules_and_large_files_are_told(clone: Path, tmp_path: Path) -> None:
    (clone / ".gitmodules").write_text("")
    (clone / ".gitattributes").write_text("*.bin filter=lfs diff=lfs\n")
    commit(clone, "more")
    base, _ = look(clone, "HEAD", tmp_path / "scratch", "echo pip install -e .")
    told = "; ".join(base.warnings)
    assert "submodules are empty" in told and "git-lfs" in told and "both sides run in" in told
    assert "compared with itself" in told
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
