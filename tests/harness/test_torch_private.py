"""Another torch than this one: private names that are gone or changed cost a caveat, never the program."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import bottleneck
from bottleneck.harness.torch_private import PRIVATE

from .driver import record

PACKAGE = Path(bottleneck.__file__).parent

PROGRAM = """
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(320, 8), torch.randn(320, 1))
for inputs, wanted in DataLoader(data, batch_size=4):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), wanted)
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.6f}")
print("done", file=sys.stderr)
sys.exit(3)
"""


def _break(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, how: str) -> "subprocess.CompletedProcess[str]":
    """The outcome of the program under Python; further programs run with this name broken."""
    (folder / "plain.py").write_text(PROGRAM)
    plain = subprocess.run([sys.executable, "plain.py"], cwd=folder, capture_output=True, text=True, check=False)
    (folder / "site").mkdir()
    shutil.copy(Path(__file__).with_name("broken_torch.py"), folder / "site" / "sitecustomize.py")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder / "site"), str(PACKAGE.parent)]))
    monkeypatch.setenv("BROKEN", name)
    monkeypatch.setenv("HOW", how)
    return plain


@pytest.mark.slow
@pytest.mark.parametrize("how", ["lookup", "use"])
@pytest.mark.parametrize("name", PRIVATE)
def test_a_torch_with_another_private_name_leaves_the_program_undisturbed(
    name: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = _break(tmp_path, monkeypatch, name, how)
    run = record(tmp_path, PROGRAM)
    assert (run.stdout, run.stderr, run.status) == (plain.stdout, plain.stderr, plain.returncode)
    assert run.recording.traces
    assert not [each for each in run.recording.warnings if "failed" in each or "could not" in each]
    if PRIVATE[name] is not None:
        asked = [each for each in run.recording.warnings if "does not tell" in each]
        assert asked in ([], [f"torch {torch.__version__} does not tell {PRIVATE[name]}"])


OURS = [
    "window.Guard.watch",
    "window.ProfilerWindow.start",
    "window.ProfilerWindow.event_count",
    "window.ProfilerWindow.export",
    "lines.find_lines",
    "module_paths.find_modules",
    "boundaries.Boundaries.watch",
    "boundaries.Boundaries.narrow",
    "stopwatch.Stopwatch.mark",
    "session.Session.time",
    "session.Session.keep",
    "session.Session.offer",
    "session.Session.look_at_values",
    "session.Session.note_debug_modes",
    "session.Session.finish_measuring",
    "torch_state.describe_torch",
    "run_log.RunLog.summarise",
    "script.Script.leave",
]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["before", "after"])
@pytest.mark.parametrize("name", OURS)
def test_a_failure_of_our_own_leaves_the_program_undisturbed(
    name: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = _break(tmp_path, monkeypatch, name, how)
    run = record(tmp_path, PROGRAM)
    assert (run.stdout, run.stderr, run.status) == (plain.stdout, plain.stderr, plain.returncode)
    assert name in run.said or run.recording.traces
