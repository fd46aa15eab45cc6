import textwrap
import zipfile
from pathlib import Path

import pytest

from .exam import PACKAGE, SCRIPTS
from .exam_runs import run_plainly, run_recorded


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
    arguments = ("-m", module, "--algo", "ppo", "-o", "theirs", "x")
    assert run_recorded(tmp_path, *arguments) == run_plainly(tmp_path, *arguments)


@pytest.mark.parametrize("target", ["folder", "folder/../program.py", "link.py", "empty"])
def test_unusual_target_gives_the_same_bytes_and_status_as_under_python(target: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").mkdir()
    program = "import sys\nprint(__name__, __file__, sys.path[0], sys.argv, __package__, repr(__spec__)[:20])\n"
    (tmp_path / "folder" / "__main__.py").write_text(program)
    (tmp_path / "program.py").write_text(program)
    (tmp_path / "folder" / "linked.py").write_text(program)
    (tmp_path / "link.py").symlink_to("folder/linked.py")
    assert run_recorded(tmp_path, target) == run_plainly(tmp_path, target)


def test_archive_gives_the_same_bytes_and_status_as_under_python(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "program.pyz", "w") as archive:
        archive.writestr(
            "__main__.py", "import beside, sys\nprint(__name__, __file__, sys.path[0], beside.VALUE)\n1 / 0\n"
        )
        archive.writestr("beside.py", "VALUE = 'from the archive'")
    assert run_recorded(tmp_path, "program.pyz", "x") == run_plainly(tmp_path, "program.pyz", "x")


FLAGS = [("-O",), ("-W", "error"), ("-X", "dev"), ("-u",), ("-I",), ("-B", "-bb", "-q"), ("-X", "utf8=0", "-E")]


@pytest.mark.parametrize("flags", FLAGS, ids=" ".join)
def test_flags_of_the_interpreter_reach_the_program(flags: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import sys, warnings\nprint(sys.flags, sys.warnoptions, sys.path[:2], __debug__, sys.dont_write_bytecode)\n"
        "print(sorted(sys._xoptions), sys.stdout.encoding, sys.stdout.write_through)\nwarnings.warn('careful')\n"
    )
    assert run_recorded(tmp_path, "program.py", flags=flags) == run_plainly(tmp_path, *flags, "program.py")


@pytest.mark.parametrize("file", ["bottleneck.py", "bottleneck/__init__.py"])
def test_a_module_of_the_programs_own_may_have_our_name(file: str, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs" / file
    theirs.parent.mkdir(parents=True)
    theirs.write_text("class Bottleneck: pass\n")
    program = "import bottleneck, sys\nprint(bottleneck.Bottleneck, bottleneck.__file__)\nsys.exit(3)\n"
    (tmp_path / "theirs" / "program.py").write_text(program)
    (tmp_path / "theirs" / "__main__.py").write_text(program)
    for target in ("theirs/program.py", "theirs"):
        assert run_recorded(tmp_path, target, output=f"of-{target[-3:]}") == run_plainly(tmp_path, target)
