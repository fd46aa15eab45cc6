"""`bottleneck gate` from the command line: a lock-file, a step that does more, its acceptance, and what is refused."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bottleneck.cli import _run
from tests.builders import op, step, write_trace

WORKLOAD = """
import torch
from torch import nn

def workload(width=64):
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 8))
    inputs = torch.randn(4, width)

    def step():
        loss = model(inputs).sum()
        loss.backward()
        model.zero_grad()

    return step
"""
SETTINGS = """
[tool.bottleneck.gate]
workloads = ["bench.py"]
env = { OMP_NUM_THREADS = "1" }
"""


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a workload, its settings and its lock-file."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("locked")
    (folder / "bench.py").write_text(WORKLOAD)
    (folder / "pyproject.toml").write_text(SETTINGS)
    done = gate(folder, "--update")
    assert done.returncode == 0, done.stderr
    assert "it is new: commit it" in done.stdout
    return folder


def gate(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The gate, run as a user would in this folder."""
    command = [sys.executable, "-m", "bottleneck.cli", "gate", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.process
def test_an_unchanged_step_passes_and_an_added_sync_is_red_with_its_line(locked: Path) -> None:
    assert gate(locked, "--only", "counters").returncode == 0
    (locked / "bench.py").write_text(WORKLOAD.replace("loss.backward()", "loss.backward()\n        print(loss.item())"))
    try:
        done = gate(locked, "--only", "counters", "--out", "gate")
    finally:
        (locked / "bench.py").write_text(WORKLOAD)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "syncs 0 to 1" in done.stdout
    assert "bench.py:12" in done.stdout and "print(loss.item())" in done.stdout
    told = json.loads((locked / "gate" / "gate.json").read_text())
    assert told["exit_code"] == 1
    assert told["results"][0]["verdict"] == "fail"
    assert {file.name for file in (locked / "gate").iterdir()} >= {"gate.md", "junit.xml", "gate.sarif"}


@pytest.mark.process
def test_the_lock_file_holds_no_times(locked: Path) -> None:
    text = (locked / ".bottleneck" / "bench.lock.toml").read_text()
    assert "syncs = 0" in text
    assert "_us" not in text and "_ms" not in text


@pytest.mark.process
def test_a_workload_that_crashes_is_exit_4_with_what_it_said(locked: Path, tmp_path: Path) -> None:
    (tmp_path / "bench.py").write_text("def workload():\n    raise RuntimeError('no data today')\n")
    done = gate(tmp_path, "bench.py", "--only", "counters")
    assert done.returncode == 4
    assert "no data today" in done.stdout


def test_nothing_to_gate_says_where_to_write_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert _run(["gate"]) == 2
    assert "[tool.bottleneck.gate]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["none.py"], "there is no workload none.py"),
        (["--", "--steps 3 bench.py"], "does not know --steps"),
        (["bench.py", "--format", "pdf"], "there is no format pdf"),
        (["bench.py", "--format", "json,junit"], "--out"),
        (["bench.py", "--set"], "--set"),
    ],
)
def test_what_cannot_be_is_exit_2_and_says_what_can(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bench.py").write_text(WORKLOAD)
    assert _run(["gate", *words]) == 2
    assert said in capsys.readouterr().err


def trace(path: Path, calls: int) -> Path:
    """Two steps of so many ops each."""
    events = [step(1, 0, 100), step(2, 100, 100)]
    for start in (0, 100):
        events += [op("aten::relu", start + 10 + 10 * place, 5, dims=[[8, 8]]) for place in range(calls)]
    return write_trace(path, events)


def test_two_traces_gate_counters_and_tell_the_time_as_a_remark(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before, same = trace(tmp_path / "before.json", 2), trace(tmp_path / "same.json", 2)
    assert _run(["gate", str(same), "--against", str(before)]) == 0
    assert "did not take turns" in " ".join(capsys.readouterr().out.split())
    assert _run(["gate", str(trace(tmp_path / "more.json", 3)), "--against", str(before)]) == 1
    assert "ops 2 to 3" in capsys.readouterr().out


def test_a_recording_needs_another_one_to_be_held_against(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = trace(tmp_path / "a.json", 2)
    assert _run(["gate", str(file)]) == 2
    assert "--against" in capsys.readouterr().err
    assert _run(["gate", str(file), "--against", str(file), "--update"]) == 2
