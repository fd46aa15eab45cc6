"""The lines that a change touches: in real clones, and however oddly files are named."""

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bottleneck.experiment.sources import _name, parse_diff
from bottleneck.experiment.worktree import touched_lines
from tests.experiment.clones import commit, git, make_clone, own_settings

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")

TEN = "".join(f"line {number}\n" for number in range(1, 11))


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> None:
    own_settings(monkeypatch)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone with a file of ten lines."""
    return make_clone(tmp_path / "clone", TEN)


def touched(clone: Path) -> dict[str, list[int]]:
    """The lines that differ from HEAD."""
    found = touched_lines(clone, git(clone, "rev-parse", "HEAD"))
    assert found is not None
    return {name: sorted(lines) for name, lines in found.items()}


def test_nothing_is_touched_where_nothing_was_changed(clone: Path) -> None:
    assert touched(clone) == {}


def test_lines_are_those_of_the_new_side(clone: Path) -> None:
    lines = TEN.splitlines(keepends=True)
    (clone / "train.py").write_text("".join(["new\n", *lines[:4], "fifth\n", *lines[5:8], "new\n", "new\n"]))
    assert touched(clone) == {"train.py": [1, 6, 10, 11]}


def test_lines_that_are_gone_touch_none(clone: Path) -> None:
    (clone / "train.py").write_text("".join(TEN.splitlines(keepends=True)[2:]))
    assert touched(clone) == {}
    (clone / "train.py").unlink()
    assert touched(clone) == {}


def test_commits_the_index_and_the_working_tree_count_alike(clone: Path) -> None:
    first = git(clone, "rev-parse", "HEAD")
    commit(clone, "second", train_py="zeroth\n" + TEN)
    (clone / "train.py").write_text("zeroth\n" + TEN + "staged\n")
    git(clone, "add", "train.py")
    (clone / "train.py").write_text("zeroth\n" + TEN + "staged\nlast\n")
    found = touched_lines(clone, first)
    assert found == {"train.py": frozenset({1, 12, 13})}


def test_a_file_that_was_moved_counts_by_its_new_name_where_it_differs(clone: Path) -> None:
    (clone / "train.py").rename(clone / "moved.py")
    git(clone, "add", "--all")
    assert touched(clone) == {}
    (clone / "moved.py").write_text(TEN + "more\n")
    assert touched(clone) == {"moved.py": [11]}


def test_a_new_file_counts_as_a_whole_unless_it_is_ignored_or_no_text(clone: Path) -> None:
    commit(clone, "ignore", **{".gitignore": "ignored.py\n"})
    for name in ("ignored.py", "new.py"):
        (clone / name).write_text("a\nb\nc")
    (clone / "data.bin").write_bytes(b"\0\n\n")
    (clone / "link.py").symlink_to("train.py")
    (clone / "large.txt").write_text("x\n" * 600_000)
    assert touched(clone) == {"new.py": [1, 2, 3]}


ODD = ["with space.py", "tab\t.py", 'quo"te.py', "back\\slash.py", "new\nline.py", "ü.py", "-x.py", "a b/c => d.py"]


def test_names_may_be_odd(clone: Path) -> None:
    names = [*ODD, os.fsdecode(b"\xff\xfe.py")]
    for name in names:
        (clone / name).parent.mkdir(exist_ok=True)
        (clone / name).write_text("one\ntwo\n")
    assert touched(clone) == {name: [1, 2] for name in names}
    commit(clone, "odd")
    for name in names:
        (clone / name).write_text("one\nchanged\n")
    assert touched(clone) == {name: [2] for name in names}


def test_a_folder_of_a_clone_knows_its_own_files_by_its_own_names(clone: Path) -> None:
    commit(clone, "sub", sub__inner_py="one\n")
    (clone / "sub" / "inner.py").write_text("one\ntwo\n")
    (clone / "sub" / "new.py").write_text("one\n")
    (clone / "train.py").write_text("")
    assert touched(clone / "sub") == {"inner.py": [2], "new.py": [1]}


def test_lines_that_look_like_a_diff_are_only_lines(clone: Path) -> None:
    text = "++ b/other.py\n@@ -1 +1,5 @@\ndiff --git a/x b/x\n-- a/x\n"
    (clone / "train.py").write_text(text)
    assert touched(clone) == {"train.py": [1, 2, 3, 4]}
    commit(clone, "odd")
    (clone / "train.py").write_text("one")
    assert touched(clone) == {"train.py": [1]}


def test_binary_files_are_passed_over(clone: Path) -> None:
    (clone / "data.bin").write_bytes(b"\0\1\2")
    commit(clone, "data")
    (clone / "data.bin").write_bytes(b"\0\1\3")
    (clone / "train.py").write_text(TEN + "more\n")
    assert touched(clone) == {"train.py": [11]}


def test_settings_of_the_user_change_nothing(clone: Path) -> None:
    for setting in ("diff.noprefix", "diff.mnemonicPrefix", "color.ui"):
        git(clone, "config", setting, "always" if setting == "color.ui" else "true")
    git(clone, "config", "diff.external", "false")
    (clone / "train.py").write_text(TEN + "more\n")
    assert touched(clone) == {"train.py": [11]}


@pytest.mark.parametrize("name", ["", "--output=stolen", "nothing"])
def test_what_is_no_commit_has_no_answer(clone: Path, name: str) -> None:
    assert touched_lines(clone, name) is None
    assert not (clone / "stolen").exists()


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
