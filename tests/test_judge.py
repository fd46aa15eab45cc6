"""`bottleneck judge` from the command line: real processes on two commits, files of results, and refusals."""

import io
import json
import os
import subprocess
from pathlib import Path

import pytest

from bottleneck.cli import _run
from bottleneck.commands.judge import _programs
from bottleneck.errors import UsageError
from bottleneck.gate.settings import read_project

PROGRAM = """\
import torch

from model import spread


def workload():
    weight = torch.ones(64, 64, requires_grad=True)

    def step():
        loss = spread(weight @ torch.ones(64, 64))
        loss.backward()
        return loss

    return step
"""
LOOPED = """\
def spread(values):
    total = 0.0
    for row in values:
        total += row.sum().item()
    return values.sum() - total + total
"""
MENDED = """\
def spread(values):
    return values.sum()
"""


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone in which we are, whose model reads each row back; the program that measures it is in no commit."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("bottleneck.calibrate.cache.cpu_calibration", lambda threads, tell, is_quiet=False: None)
    (tmp_path / "model.py").write_text(LOOPED)
    git("init", "--quiet", "--initial-branch=main")
    git("add", "--all")
    git("commit", "--quiet", "--message", "first")
    (tmp_path / "bench.py").write_text(PROGRAM)
    return tmp_path


def git(*words: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *identity, *words], check=True, capture_output=True)


@pytest.mark.process
def test_a_patch_that_takes_64_reads_out_of_the_step_is_faster_with_the_same_results(
    capsys: pytest.CaptureFixture[str], clone: Path
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    (clone / "model.py").write_text(MENDED)
    status = _run(["judge", "main", "--workload", "bench.py", "--resolve", "10", "-f", "json"])
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    (result,) = document["results"]
    assert status == 0, captured.err
    assert result["verdict"] == "faster" and result["is_same"] and result["speedup"]["low"] > 1.1
    assert result["sentence"].startswith("faster ") and ", same results, 64 fewer syncs" in result["sentence"]
    assert result["numerics"]["gradients"] == 0 and result["numerics"]["compared"] >= 2
    assert result["counts"][0]["culprits"][0]["site"]["file"] == "model.py"
    assert document["touched"] == {"model.py": [2]}
    assert result["comparison"]["rows"]
    assert any("has no bench.py" in warning for warning in result["warnings"])
    assert not list(clone.glob("bottleneck-*"))
    assert (
        subprocess.run(["git", "worktree", "list"], capture_output=True, text=True, check=True).stdout.count("\n") == 1
    )


@pytest.mark.process
def test_a_side_that_does_not_run_ends_with_its_reason(capsys: pytest.CaptureFixture[str], clone: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    (clone / "model.py").write_text("def spread(values):\n    raise ValueError('no rows')\n")
    assert _run(["judge", ".", "main", "-w", "bench.py"]) == 4
    assert "no rows" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "status", "words_of_error"),
    [
        (["main"], 2, "nothing to judge by"),
        (["main", "-w", "nothing.py"], 2, "no workload nothing.py"),
        (["other", "-w", "bench.py"], 2, "other names no sources"),
        (["main", "-w", "bench.py", "--rounding", "int8"], 2, "no rounding of int8"),
        (["a.json"], 2, "no other is named"),
        (["a.json", "a.json"], 3, "holds no times"),
        (["-"], 2, "no two lists"),
    ],
)
def test_what_cannot_be_judged_is_refused(
    capsys: pytest.CaptureFixture[str],
    clone: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    status: int,
    words_of_error: str,
) -> None:
    (clone / "a.json").write_text("{}")
    monkeypatch.setattr("sys.stdin", io.StringIO("nothing"))
    assert _run(["judge", *words]) == status
    assert words_of_error in capsys.readouterr().err


def test_a_workload_that_only_the_two_folders_hold_is_found_in_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
        (folder / "bench.py").write_text(PROGRAM)
    project = read_project(tmp_path)
    (program,) = _programs(("bench.py",), (), project, folders, train=False)
    assert (program.target, program.form) == ("bench.py", "workload")
    with pytest.raises(UsageError, match=r"no workload bench\.py"):
        _programs(("bench.py",), (), project, [], train=False)


def test_numbers_on_standard_input_are_judged(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("10 11 10 11 10 11 10 11\n20 22 20 22 20 22 20 22\n"))
    assert _run(["judge", "-"]) == 1
    assert "Slower 2.00x" in capsys.readouterr().out
