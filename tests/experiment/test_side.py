"""A side runs its own files and packages, whichever folder an editable installation points to."""

from pathlib import Path

import pytest

from bottleneck.experiment.side import Side, relative_to_root
from bottleneck.experiment.turns import SideFailed, SideWorker
from bottleneck.experiment.worker import Refused, Worker
from bottleneck.harness.messages import Program
from bottleneck.harness.process_setup import Roots

# Ends before torch would be imported, with the name of the side that its package lies on.
WORKLOAD = "import toy\nraise SystemExit(toy.SIDE)\n"
PROGRAM = Program("bench/step.py")

FINDER = """
import sys
from importlib.machinery import PathFinder

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return PathFinder.find_spec(name, [{folder!r}], target) if name == "toy" else None

sys.meta_path.insert({place}, Finder)
"""
BEHIND, IN_FRONT = 1000, 0


def side_folder(root: Path, name: str, layout: str) -> Path:
    """A checkout with a workload and the package that it imports."""
    folder = root / name
    (folder / layout / "toy").mkdir(parents=True)
    (folder / layout / "toy" / "__init__.py").write_text(f"SIDE = {name!r}\n")
    (folder / "bench").mkdir()
    (folder / "bench" / "step.py").write_text(WORKLOAD)
    return folder


def install(site: Path, sources: Path, finder: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The traces of `pip install -e`: a .pth file with the path of the sources, or one that installs a finder.

    It sides in a folder that Python reads as it does site-packages, at its start.
    """
    site.mkdir()
    if finder is not None:
        (site / "toy_hook.py").write_text(FINDER.format(folder=str(sources), place=finder))
    (site / "toy.pth").write_text(f"{sources}\n" if finder is None else "import toy_hook\n")
    (site / "sitecustomize.py").write_text(f"import site\nsite.addsitedir({str(site)!r})\n")
    monkeypatch.setenv("PYTHONPATH", str(site))


def what_it_imports(side: Side, log: Path) -> str:
    """The side of the package that a process of this side imports."""
    with SideWorker(PROGRAM, "base", side, log) as corner:
        corner.start_making("step")
        with pytest.raises(SideFailed) as failed:
            corner.made()
    return failed.value.reason


@pytest.mark.parametrize(
    ("finder", "layout"),
    [(None, "src"), (BEHIND, "."), (IN_FRONT, "src")],
    ids=["path", "hook behind", "hook in front"],
)
def test_each_side_imports_its_own_package_although_the_candidate_is_installed_in_place(
    finder: int | None, layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, candidate = side_folder(tmp_path, "base", layout), side_folder(tmp_path, "candidate", layout)
    install(tmp_path / "site", candidate / layout, finder, monkeypatch)
    assert what_it_imports(Side("base", base), tmp_path / "log.txt") == "SystemExit: base"


def test_a_process_that_only_starts_in_the_base_would_import_the_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, candidate = side_folder(tmp_path, "base", "src"), side_folder(tmp_path, "candidate", "src")
    install(tmp_path / "site", candidate / "src", IN_FRONT, monkeypatch)
    with Worker(PROGRAM, tmp_path / "log.txt", folder=base) as worker:
        worker.start_making("step")
        with pytest.raises(Refused, match="SystemExit: candidate"):
            worker.made()


def test_what_cannot_be_imported_is_reported_as_the_failure_of_that_side(tmp_path: Path) -> None:
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "step.py").write_text(WORKLOAD)
    with SideWorker(PROGRAM, "candidate", Side("this", tmp_path), tmp_path / "log.txt") as corner:
        corner.start_making("step")
        with pytest.raises(SideFailed) as failed:
            corner.made()
    assert (failed.value.role, failed.value.label) == ("candidate", "this")
    assert failed.value.reason == "ModuleNotFoundError: No module named 'toy'"


def test_a_folder_that_is_gone_is_reported_as_the_failure_of_that_side(tmp_path: Path) -> None:
    with pytest.raises(SideFailed) as failed:
        SideWorker(PROGRAM, "base", Side("main", tmp_path / "gone"), tmp_path / "log.txt")
    assert failed.value.role == "base" and "No such file" in failed.value.reason


def test_its_folders_come_before_those_of_the_user_and_its_variables_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "src").mkdir()
    monkeypatch.setenv("PYTHONPATH", "theirs")
    variables = Side("base", tmp_path, {"OMP_NUM_THREADS": "1"}).variables
    assert variables["PYTHONPATH"].split(":") == [str(tmp_path), str(tmp_path / "src"), "theirs"]
    assert variables["OMP_NUM_THREADS"] == "1"


def test_only_packages_are_taken_from_a_side(tmp_path: Path) -> None:
    (tmp_path / "datasets").mkdir()
    (tmp_path / "random.py").touch()
    (tmp_path / "toy.py").touch()
    finder = Roots([str(tmp_path)])
    assert finder.find_spec("datasets") is None  # a folder of data beside a package of that name elsewhere
    assert finder.find_spec("random") is None
    assert finder.find_spec("toy.part", ["elsewhere"]) is None
    found = finder.find_spec("toy")
    assert found is not None and found.origin == str(tmp_path / "toy.py")


def test_a_file_of_the_root_is_named_from_there_and_another_is_the_same_for_both(tmp_path: Path) -> None:
    assert relative_to_root(Program(str(tmp_path / "bench" / "step.py")), tmp_path).target == "bench/step.py"
    assert relative_to_root(Program("bench/step.py"), tmp_path).target == "bench/step.py"
    assert relative_to_root(Program("/elsewhere/step.py"), tmp_path).target == "/elsewhere/step.py"
