"""The folder of a recording, by the command line: refused before the program starts, gone if nothing came of it."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

RUN = [sys.executable, "-m", "bottleneck.cli", "run"]
RAN = "print('it ran')"


def run(folder: Path, *arguments: str, program: str = RAN) -> "subprocess.CompletedProcess[str]":
    (folder / "program.py").write_text(program)
    return subprocess.run(
        [*RUN, *arguments], cwd=folder, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def a_file(folder: Path) -> None:
    (folder / "out").write_text("mine")


def a_full_folder(folder: Path) -> None:
    (folder / "out").mkdir()
    (folder / "out" / "precious").write_text("mine")


def a_link(folder: Path) -> None:
    (folder / "elsewhere").mkdir()
    (folder / "out").symlink_to("elsewhere")


def a_pipe(folder: Path) -> None:
    os.mkfifo(folder / "out")


def nothing(_folder: Path) -> None:
    """The thing in the way is there already."""


@pytest.mark.parametrize(
    ("prepare", "output"),
    [
        (a_file, "out"),
        (a_file, "out/below"),
        (a_full_folder, "out"),
        (a_link, "out"),
        (a_pipe, "out"),
        (nothing, "/dev/null"),
        (nothing, "a" * 256),
        (nothing, "/proc/out"),
    ],
)
def test_a_folder_that_will_not_do_is_reported_in_three_lines_before_the_program_starts(
    prepare: Callable[[Path], None], output: str, tmp_path: Path
) -> None:

    prepare(tmp_path)
    before = names(tmp_path)
    done = run(tmp_path, "-o", output, "program.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["error", "  why", "  fix"]
    assert names(tmp_path) == sorted([*before, "program.py"])


@pytest.mark.parametrize("name", ["with space", "with 'quotes\"", "line\nbreak"])
def test_an_unusual_name_is_recorded_into(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    done = run(tmp_path, "-o", name, "program.py")
    assert (done.returncode, done.stdout) == (0, "it ran\n")
    # A program of a few milliseconds may end before the first sample of the sensors.
    assert set(names(tmp_path / name)) - {"telemetry.csv"} == {"recording.json"}


@pytest.mark.parametrize("options", [[], ["-o", "runs/first"]], ids=["default", "named"])
def test_a_program_that_leaves_nothing_to_keep_leaves_no_folder(options: list[str], tmp_path: Path) -> None:
    done = run(tmp_path, *options, "program.py", program="raise SystemExit(3)")
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1] == "bottleneck: recorded nothing: the program ended with status 3"
    assert done.stderr.count("bottleneck: ") == 2
    assert names(tmp_path) == ["program.py"]


@pytest.mark.parametrize("options", [[], ["-o", "runs/first"]], ids=["default", "named"])
def test_a_missing_program_is_one_error_with_the_status_of_python(options: list[str], tmp_path: Path) -> None:
    done = run(tmp_path, *options, "missing.py")
    assert done.returncode == 2
    assert done.stderr == (
        "error: there is no file missing.py\n  fix: check the path: it is looked for from the working folder\n"
    )
    assert names(tmp_path) == ["program.py"]


def test_a_folder_with_something_of_the_programs_stays(tmp_path: Path) -> None:
    run(tmp_path, "-o", "out", "program.py", program="open('out/result.txt', 'w').close()")
    assert names(tmp_path / "out") == ["result.txt"]


def test_a_second_run_into_the_same_folder_is_refused_before_it_starts(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text("print('ready', flush=True); input()")
    first = subprocess.Popen(
        [*RUN, "-o", "out", "waits.py"], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with first:
        assert first.stdout is not None and first.stdout.readline() == "ready\n"
        for options, words in (([], "is not empty"), (["--force"], "another run is recording")):
            done = run(tmp_path, "-o", "out", *options, "program.py")
            assert (done.returncode, done.stdout) == (2, "")
            assert words in done.stderr
        first.communicate("\n")
    assert first.returncode == 0


def test_nothing_is_written_through_a_link_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "out").mkdir()
    for name in ("recording.json", "telemetry.csv", "analysis.json", ".run.json", ".notes.rank0.json"):
        (tmp_path / "out" / name).symlink_to("../precious")
    assert run(tmp_path, "-o", "out", "--force", "program.py").returncode == 0
    assert (tmp_path / "precious").read_text() == "mine"
    assert not [path for path in (tmp_path / "out").iterdir() if path.is_symlink()]


def test_a_run_that_cannot_start_takes_its_folder_away(tmp_path: Path) -> None:
    code = (
        "from bottleneck.harness import supervise\n"
        "def fork(*_): raise OSError(11, 'Resource temporarily unavailable')\n"
        "supervise.subprocess.Popen = fork\n"
        "from bottleneck.cli import main; main(['run', '-o', 'out', '--telemetry-ms', '0', 'program.py'])"
    )
    (tmp_path / "program.py").write_text(RAN)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (70, "")
    assert names(tmp_path) == ["program.py"]
