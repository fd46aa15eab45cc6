"""A signal to a command that measures: it says that it was interrupted, what is kept, and how to go on."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.experiment.clones import commit, git

pytestmark = pytest.mark.process

WORKLOAD = """
import torch

def workload(size=8):
    values = torch.ones(size, size)
    return lambda: values @ values
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text(WORKLOAD)
    return tmp_path


def interrupted(arguments: Sequence[str], awaited: str, folder: Path, *, has_ceilings: bool = True) -> str:
    """What a command says on standard error after an interrupt at the line that holds ``awaited``."""
    command = [sys.executable, "-m", "bottleneck.cli", *arguments]
    environment = os.environ if has_ceilings else {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=folder, env=environment, text=True, start_new_session=True, **streams) as run:  # type: ignore[call-overload]
        assert run.stderr is not None
        said = ""
        for line in run.stderr:
            said += line
            if awaited in line:
                break
        assert awaited in said, said
        run.send_signal(signal.SIGINT)
        rest: str = run.stderr.read()
    assert run.returncode == 130, said + rest
    assert rest.count("interrupted") == 1 and "Traceback" not in rest, rest
    return " ".join(rest[rest.index("bottleneck: interrupted") :].split())


def test_calibrate_keeps_the_ceilings_that_it_had(folder: Path) -> None:
    said = interrupted(["calibrate", "--device", "cpu"], "measuring, round 1", folder, has_ceilings=False)
    assert said.endswith("ceilings that were kept before are as they were; to measure them anew: bottleneck calibrate")


def test_verify_before_its_first_trial_has_nothing_to_keep(folder: Path) -> None:
    said = interrupted(["verify", "model.py", "--try", "threads-1"], "recording model.py", folder)
    assert said.endswith("interrupted; no change was tried yet, so nothing is kept; the same command begins anew")


def test_verify_names_the_trials_that_are_left(folder: Path) -> None:
    arguments = ["verify", "model.py", "--try", "gc-freeze,inference-mode", "--budget", "1", "--probe-budget", "0"]
    said = interrupted(arguments, "trying inference-mode", folder)
    assert said.endswith("interrupted; 1 trial done, as shown above; for the others: --try inference-mode")


def test_sweep_says_how_many_points_it_has_and_how_to_go_on(folder: Path) -> None:
    arguments = ["sweep", "model.py", "--param", "size=8,16", "--keep", "points"]
    said = interrupted(arguments, "ceilings", folder, has_ceilings=False)
    assert "interrupted; 0 of 2 points measured, which follow, with their recordings in points; the others: " in said


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        (["--update"], "lock-files named above are written, others are as they were"),
        (["--only", "counters"], "there is no verdict"),
    ],
)
def test_gate_says_which_lock_files_are_written(options: list[str], kept: str, folder: Path) -> None:
    said = interrupted(["gate", "model.py", *options], "counting model.py", folder)
    assert said.endswith(f"interrupted; {kept}; the same command begins anew")


def test_compare_that_records_begins_anew(folder: Path) -> None:
    git(folder, "init", "--quiet")
    commit(folder, "one")
    said = interrupted(["compare", "HEAD", ".", "--workload", "model.py"], "timing both in turns", folder)
    assert said.endswith("and nothing else is kept; the same command begins anew")
