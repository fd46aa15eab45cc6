import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from bottleneck.schema.recording import read_recording

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


# One is imported by this package before the program; others by what it imports, by torch, or by nothing.
NAMES = [
    "copy",
    "csv",
    "enum",
    "json",
    "queue",
    "random",
    "signal",
    "statistics",
    "tempfile",
    "token",
    "types",
    "utils",
]


@pytest.mark.parametrize("is_module", [False, True], ids=["script", "module"])
def test_a_module_beside_the_script_comes_before_any_that_was_loaded_for_us(is_module: bool, tmp_path: Path) -> None:
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text("VALUE = 'beside the script'")
    program = f"import importlib\nfor name in {NAMES}: print(name, importlib.import_module(name).VALUE)\n"
    (tmp_path / "folder").mkdir()
    (tmp_path / "program.py").write_text(program)
    # As the `bottleneck` command runs: `-m` has the working folder on the path of Python itself.
    command = [str(Path(sys.executable).with_name("bottleneck")), "run", "-q", "-o", "recording"]
    command += ["-m", "program"] if is_module else ["program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout.splitlines()) == (0, [f"{name} beside the script" for name in NAMES])


def test_a_module_of_the_standard_library_that_nothing_shadows_is_loaded_once(tmp_path: Path) -> None:
    program = "import random, sys, threading; print(random is sys.modules['random'], threading.main_thread().name)"
    (tmp_path / "program.py").write_text(program)
    assert run_recorded(tmp_path, "program.py") == run_plainly(tmp_path, "program.py")


def test_a_torch_of_the_programs_own_is_said_not_to_be_pytorch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("VALUE = 3")
    (tmp_path / "program.py").write_text("import torch; print(torch.VALUE)")
    (tmp_path / "recording").mkdir()  # kept, although nothing is recorded
    assert run_recorded(tmp_path, "program.py") == run_plainly(tmp_path, "program.py")
    (warning,) = read_recording(tmp_path / "recording").warnings
    assert warning.startswith("the module torch is not PyTorch (") and "torch.py)" in warning


def test_an_import_that_fails_inside_a_watched_module_shows_no_frame_of_ours(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import missing")
    (tmp_path / "program.py").write_text("import torch")
    assert run_recorded(tmp_path, "program.py") == run_plainly(tmp_path, "program.py")


def test_a_working_folder_that_is_gone_is_no_hindrance_to_a_script_named_in_full(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("print(__file__)")
    gone = "import os, sys; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone'); os.execv(sys.executable, {})"
    command = [sys.executable, "-P", "-m", "bottleneck.cli", "run", "-q", "-o", str(tmp_path / "out")]
    outputs = []
    for start in ([sys.executable], command):
        code = gone.format([*start, str(tmp_path / "program.py")])
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
        outputs.append((done.returncode, done.stdout))
    assert outputs == [(0, f"{tmp_path / 'program.py'}\n")] * 2
