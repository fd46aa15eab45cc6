"""`bottleneck.watch()` in a program's own code."""

import subprocess
import sys
from pathlib import Path

import pytest

from bottleneck.watched.read_log import read_watched

pytest.importorskip("torch")
pytestmark = pytest.mark.process

TRAINS = """
import torch
model = torch.nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 16)).sum().backward()
        optimizer.step()
"""


def run(folder: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(code)
    command = [sys.executable, *arguments, "train.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("is_first", [True, False], ids=["before torch", "after torch"])
def test_a_program_is_watched_to_its_end(tmp_path: Path, is_first: bool) -> None:
    begin = "import bottleneck\nbottleneck.watch()\n"
    code = begin + TRAINS if is_first else TRAINS + begin
    done = run(tmp_path, code + "train(200)\nprint('trained')\n")
    assert done.returncode == 0 and done.stdout == "trained\n"
    assert done.stderr == (
        "bottleneck: watched 199 steps in bottleneck-runs/train; see: bottleneck watch bottleneck-runs/train\n"
    )
    (rank,) = read_watched(tmp_path / "bottleneck-runs" / "train")
    assert rank.steps == 199 and rank.header.is_complete


def test_a_block_is_watched_and_reported_and_the_next_has_a_folder_of_its_own(tmp_path: Path) -> None:
    code = (
        TRAINS
        + "import bottleneck\ntrain(20)\n"
        + "with bottleneck.watch('log', quiet=True) as watched:\n    train(100)\ntrain(50)\n"
        + "print(watched.report().splitlines()[0])\nwith bottleneck.watch('log', quiet=True) as again:\n    train(30)\n"
        + "print(again.folder)"
    )
    done = run(tmp_path, code)
    assert done.returncode == 0 and done.stderr == ""
    first, last = done.stdout.splitlines()
    assert first.startswith("WATCHED · log · 99 steps") and last == "log-2"


def test_a_second_one_at_a_time_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path, "import bottleneck\nbottleneck.watch('a')\nbottleneck.watch('b')\n")
    assert done.returncode == 1 and "this program is being watched already" in done.stderr
    assert not (tmp_path / "b").exists()


def test_under_the_command_it_does_nothing(tmp_path: Path) -> None:
    code = "import bottleneck\nbottleneck.watch('inner')\n" + TRAINS + "train(100)\n"
    done = run(tmp_path, code, "-m", "bottleneck", "watch", "-o", "outer")
    assert done.returncode == 0 and not (tmp_path / "inner").exists()
    (rank,) = read_watched(tmp_path / "outer")
    assert rank.steps == 99


def test_an_exception_ends_the_log_with_its_status(tmp_path: Path) -> None:
    done = run(tmp_path, "import bottleneck\nbottleneck.watch('log')\n" + TRAINS + "train(100)\nraise ValueError\n")
    assert done.returncode == 1
    (rank,) = read_watched(tmp_path / "log")
    assert rank.header.is_complete and rank.header.status == 1 and rank.steps == 99
