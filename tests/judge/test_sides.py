"""The two sides of a patch: commits, folders, the working tree, patches, and a workload that a side lacks."""

import shutil
from pathlib import Path

import pytest

from bottleneck.errors import UsageError
from bottleneck.judge.sides import differing_lines, patch_sides, share_program
from bottleneck.schema.gate_result import GateSettings
from tests.experiment.clones import commit, git, make_clone, own_settings

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")

FIRST = "one = 1\ntwo = 2\nthree = 3\n"
PATCHED = "one = 1\ntwo = 22\nthree = 3\n"


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder: a clone whose working tree is two lines ahead of its commit."""
    own_settings(monkeypatch)
    folder = make_clone(tmp_path / "clone", FIRST)
    monkeypatch.chdir(folder)
    return folder


def texts(base: str, changed: str | None, folder: Path, scratch: Path, name: str = "train.py") -> tuple[str, str]:
    """What a file holds on both sides."""
    with patch_sides(base, changed, folder, GateSettings(), scratch) as sides:
        return ((sides.base.folder / name).read_text(), (sides.changed.folder / name).read_text())


def test_a_commit_is_compared_with_the_working_tree(clone: Path, tmp_path: Path) -> None:
    (clone / "train.py").write_text(PATCHED)
    with patch_sides("main", None, clone, GateSettings(), tmp_path / "scratch") as sides:
        assert (sides.base.folder / "train.py").read_text() == FIRST
        assert sides.changed.folder == clone
        assert sides.touched == {"train.py": frozenset({2})}
        assert "main" in sides.base.label and sides.changed.label == "the working tree"
        left = sides.base.folder
    assert not left.exists()


def test_two_commits_are_compared_whatever_the_working_tree_holds(clone: Path, tmp_path: Path) -> None:
    second = commit(clone, "second", train_py=PATCHED)
    (clone / "train.py").write_text("broken(")
    assert texts("HEAD~1", second, clone, tmp_path / "scratch") == (FIRST, PATCHED)


def test_a_patch_is_applied_to_a_copy_of_the_working_tree(clone: Path, tmp_path: Path) -> None:
    (clone / ".gitignore").write_text("built.so\n")
    (clone / "built.so").write_text("binary")
    (clone / "train.py").write_text(PATCHED)
    patch = tmp_path / "change.patch"
    patch.write_text(git(clone, "diff") + "\n")
    (clone / "train.py").write_text(FIRST)
    (clone / "new.py").write_text("in no commit\n")
    with patch_sides(str(patch), None, clone, GateSettings(), tmp_path / "scratch") as sides:
        assert sides.base.folder == clone
        assert (sides.changed.folder / "train.py").read_text() == PATCHED
        assert (sides.changed.folder / "new.py").read_text() == "in no commit\n"
        assert (sides.changed.folder / "built.so").read_text() == "binary"
        assert sides.touched == {"train.py": frozenset({2})}
    assert (clone / "train.py").read_text() == FIRST


def test_a_patch_is_applied_to_a_commit_that_is_named(clone: Path, tmp_path: Path) -> None:
    (clone / "train.py").write_text(PATCHED)
    patch = tmp_path / "change.diff"
    patch.write_text(git(clone, "diff") + "\n")
    (clone / "train.py").write_text("something else\n")
    assert texts("main", str(patch), clone, tmp_path / "scratch") == (FIRST, PATCHED)


def test_a_patch_that_does_not_fit_is_refused_with_what_git_says(clone: Path, tmp_path: Path) -> None:
    (clone / "train.py").write_text(PATCHED)
    patch = tmp_path / "change.patch"
    patch.write_text(git(clone, "diff") + "\n")
    (clone / "train.py").write_text("other\n")
    with pytest.raises(UsageError, match=r"change.patch cannot be applied") as refused:
        texts(str(patch), None, clone, tmp_path / "scratch")
    assert "train.py" in refused.value.why


def test_two_folders_need_no_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("before", FIRST), ("after", PATCHED)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    with patch_sides("before", "after", tmp_path, GateSettings(), tmp_path / "scratch") as sides:
        assert (sides.base.folder / "train.py").read_text() == FIRST
        assert sides.touched == {"train.py": frozenset({2})}
        with pytest.raises(UsageError, match=r"has no bench.py"):
            share_program(sides, "bench.py", tmp_path)


@pytest.mark.parametrize("base", ["nothing", "--help", "a.patch"])
def test_what_names_no_sources_is_refused(clone: Path, tmp_path: Path, base: str) -> None:
    with pytest.raises(UsageError, match="names no sources"):
        texts(base, None, clone, tmp_path / "scratch")


def test_a_patch_as_the_base_of_another_side_is_refused(clone: Path, tmp_path: Path) -> None:
    (clone / "a.patch").write_text("")
    with pytest.raises(UsageError, match="is a patch"):
        texts("a.patch", "main", clone, tmp_path / "scratch")


def test_a_workload_that_a_commit_does_not_have_yet_is_copied_there(clone: Path, tmp_path: Path) -> None:
    (clone / "bench").mkdir()
    (clone / "bench" / "step.py").write_text("new\n")
    with patch_sides("main", None, clone, GateSettings(), tmp_path / "scratch") as sides:
        assert "has no bench/step.py" in str(share_program(sides, "bench/step.py", clone))
        assert (sides.base.folder / "bench" / "step.py").read_text() == "new\n"
        assert share_program(sides, "train.py", clone) is None
    assert not (clone / "bench" / "bench").exists()


def test_the_same_sources_twice_are_said_to_be(clone: Path, tmp_path: Path) -> None:
    with patch_sides(".", None, clone, GateSettings(), tmp_path / "scratch") as sides:
        assert "the working tree is compared with itself" in sides.warnings


def test_two_sides_with_the_same_python_files_are_said_to_be(clone: Path, tmp_path: Path) -> None:
    same = "no Python file differs between both sides: only other files can make a difference"
    with patch_sides("main", None, clone, GateSettings(), tmp_path / "scratch") as sides:
        assert sides.warnings == (same,)
    (clone / "train.py").write_text(FIRST.replace("two = 2\n", ""))
    with patch_sides("main", None, clone, GateSettings(), tmp_path / "scratch") as sides:
        assert sides.touched == {} and sides.warnings == ()


def test_a_patch_of_the_commit_that_lies_here_is_not_compared_with_itself(clone: Path, tmp_path: Path) -> None:
    (clone / "train.py").write_text(PATCHED)
    patch = tmp_path / "change.diff"
    patch.write_text(git(clone, "diff") + "\n")
    (clone / "train.py").write_text(FIRST)
    with patch_sides("main", str(patch), clone, GateSettings(), tmp_path / "scratch") as sides:
        assert sides.warnings == ()


def test_lines_that_are_new_or_changed_are_those_of_the_second_folder(tmp_path: Path) -> None:
    for name, text in (("a", "x\ny\nz\n"), ("b", "x\nnew\nnew\ny\n")):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "sub" / "m.py").write_text(text)
        (tmp_path / name / "notes.txt").write_text(name)
    assert differing_lines(tmp_path / "a", tmp_path / "b") == {"sub/m.py": frozenset({2, 3})}
    assert differing_lines(tmp_path / "a", tmp_path / "a") == {}
