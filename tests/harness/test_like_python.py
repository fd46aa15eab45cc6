import textwrap
from pathlib import Path

import pytest

from .exam import PACKAGE, SCRIPTS, run_plainly, run_recorded


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_gives_the_same_bytes_and_status_as_under_python(name: str, tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("VALUE = 'beside the script'")
    (tmp_path / "program.py").write_text(textwrap.dedent(SCRIPTS[name]).lstrip("\n"))
    arguments = ("program.py", "-o", "theirs", "--help", "a b", "--")
    assert run_recorded(tmp_path, *arguments) == run_plainly(tmp_path, *arguments)


@pytest.mark.parametrize("module", ["package.tool", "package", "package.raises", "package.missing", "missing"])
def test_module_gives_the_same_bytes_and_status_as_under_python(module: str, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    for name, text in PACKAGE.items():
        (tmp_path / "package" / name).write_text(textwrap.dedent(text).lstrip("\n"))
    assert run_recorded(tmp_path, "-m", module, "x") == run_plainly(tmp_path, "-m", module, "x")


@pytest.mark.parametrize("target", ["missing.py", "folder", "folder/../program.py", "link.py", "empty"])
def test_unusual_target_gives_the_same_bytes_and_status_as_under_python(target: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").mkdir()
    program = "import sys\nprint(__name__, __file__, sys.path[0], sys.argv, __package__, repr(__spec__)[:20])\n"
    (tmp_path / "folder" / "__main__.py").write_text(program)
    (tmp_path / "program.py").write_text(program)
    (tmp_path / "folder" / "linked.py").write_text(program)
    (tmp_path / "link.py").symlink_to("folder/linked.py")
    assert run_recorded(tmp_path, target) == run_plainly(tmp_path, target)
