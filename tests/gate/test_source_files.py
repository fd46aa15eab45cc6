from dataclasses import replace
from pathlib import Path

import pytest

from bottleneck.gate.source_files import SourceFiles
from bottleneck.schema.evidence import Evidence
from tests.builders import frame, op, step
from tests.gate.cases import RECORDING, case_of


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "src" / "pkg").mkdir(parents=True)
    (folder / "src" / "pkg" / "net.py").write_text("first\n  second = 2\n")
    (tmp_path / "secret.py").write_text("password\n")
    (folder / "link.py").symlink_to(tmp_path / "secret.py")
    return folder


def case_with(folder: Path, *frames: str, search_path: tuple[str, ...] = ()) -> Evidence:
    events = [frame(name, 10 * number + 1, 9) for number, name in enumerate(frames)]
    ops = [op("aten::mm", 10 * number + 2, 2) for number in range(len(frames))]
    recording = replace(RECORDING, search_path=search_path)
    return case_of(folder, [step(0, 0, 1000), *events, *ops], recording, deviceProperties=[])


def test_a_name_that_the_profiler_has_cut_is_found_where_modules_come_from(tmp_path: Path, root: Path) -> None:
    sources = SourceFiles(case_with(tmp_path, "pkg/net.py(2): forward", search_path=("src", ".")), root)
    assert sources.locate("net.py:2") == ("src/pkg/net.py", 2)
    assert sources.text("src/pkg/net.py", 2) == "second = 2"
    assert sources.text("src/pkg/net.py", 3) == ""


def test_an_absolute_name_inside_is_relative_and_one_outside_keeps_its_last_part(tmp_path: Path, root: Path) -> None:
    inside, outside = root / "src" / "pkg" / "net.py", tmp_path / "secret.py"
    sources = SourceFiles(case_with(tmp_path, f"{inside}(1): f", f"{outside}(1): g"), root)
    assert sources.locate("net.py:1") == ("src/pkg/net.py", 1)
    assert sources.locate("secret.py:1") == ("secret.py", 1)
    assert sources.text("secret.py", 1) == ""


def test_nothing_outside_is_read_whatever_the_trace_names(tmp_path: Path, root: Path) -> None:
    sources = SourceFiles(case_with(tmp_path, "../secret.py(1): f", "link.py(1): g"), root)
    for name in ("../secret.py", "link.py", str(tmp_path / "secret.py"), "/etc/hostname", "a\0b"):
        assert sources.text(name, 1) == ""
    assert sources.locate("link.py:1") == ("link.py", 1)


def test_two_files_of_one_name_with_code_in_one_line_are_not_told_apart(tmp_path: Path, root: Path) -> None:
    sources = SourceFiles(case_with(tmp_path, "pkg/net.py(2): f", "other/net.py(2): g", search_path=("src",)), root)
    assert sources.locate("net.py:2") == ("net.py", 2)


def test_without_a_folder_nothing_is_opened(tmp_path: Path, root: Path) -> None:
    sources = SourceFiles(case_with(tmp_path, "pkg/net.py(2): f"), None)
    assert sources.locate("net.py:2") == ("pkg/net.py", 2)
    assert sources.text("src/pkg/net.py", 2) == ""


def test_a_line_is_cut(tmp_path: Path, root: Path) -> None:
    (root / "long.py").write_text("x" * 1000)
    assert len(SourceFiles(case_with(tmp_path, "long.py(1): f"), root).text("long.py", 1)) == 200
