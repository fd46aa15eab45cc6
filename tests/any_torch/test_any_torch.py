"""Every command that runs a program, with whatever torch is installed: `make test-torch TORCH=2.6.0`."""

import gzip
import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

MODEL = """
import torch

def workload(batch_size: int = 16):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(batch_size, 32)

    def step():
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    return step
"""
BARE = """
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8))
inputs = torch.randn(16, 32)
"""
SCRIPT = """
import torch
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    data = TensorDataset(torch.randn(960, 32), torch.randint(0, 8, (960,)))
    for inputs, labels in DataLoader(data, batch_size=8, num_workers=2):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")
"""
COMPILED = """
import torch

torch.manual_seed(0)
model = torch.compile(torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 8)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
inputs = torch.randn(16, 32)
for _ in range(120):
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()
"""
RANKS = """
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

distributed.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(100):
    optimizer.zero_grad()
    model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
distributed.barrier()
distributed.destroy_process_group()
"""
BLOCK = """
import torch
import bottleneck

model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with bottleneck.record("block", steps=5) as block:
    for _ in range(100):
        optimizer.zero_grad()
        model(torch.randn(16, 64)).square().mean().backward()
        optimizer.step()
assert "bound" in block.report().lower()
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the programs, and a cache of its own that holds the ceilings of this CPU under this torch."""
    folder = tmp_path_factory.mktemp("any_torch")
    programs = {"model": MODEL, "bare": BARE, "script": SCRIPT, "compiled": COMPILED, "ranks": RANKS, "block": BLOCK}
    for name, text in programs.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text).lstrip("\n"))
    (folder / "pyproject.toml").write_text('[tool.bottleneck.gate]\nworkloads = ["model.py"]\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setenv("OMP_NUM_THREADS", "1")
        yield folder


def command(place: Path, *words: str, accepted: tuple[int, ...] = (0,)) -> str:
    """What `bottleneck WORDS` prints; its status is one of those that are accepted."""
    done = subprocess.run(
        [sys.executable, "-m", "bottleneck.cli", *words], cwd=place, capture_output=True, text=True, check=False
    )
    assert done.returncode in accepted, f"status {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout + done.stderr


def analysis(place: Path, recording: str) -> dict[str, Any]:
    """The report of a recording as JSON."""
    command(place, "report", recording, "--format", "json", "-o", f"{recording}.json")
    found: dict[str, Any] = json.loads((place / f"{recording}.json").read_text())
    return found


def test_the_ceilings_of_the_cpu_are_measured(place: Path) -> None:
    assert "fp32" in command(place, "calibrate", "--device", "cpu")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("workload", ("model.py",)),
        ("training", ("--train", "bare.py")),
        ("script", ("script.py",)),
        ("compiled", ("compiled.py",)),
        ("two-ranks", ("--nproc-per-node", "2", "ranks.py")),
    ],
)
def test_a_program_is_recorded_and_reported(name: str, words: tuple[str, ...], place: Path) -> None:
    said = command(place, "run", "--probe-budget", "0", "-o", name, *words)
    assert "failed" not in said
    found = analysis(place, name)
    assert found["verdict"]["bound"]
    assert found["steps"]["count"] >= 2
    assert sum(each["share"] for each in found["ledger"]) == pytest.approx(1.0, abs=0.01)


def test_lines_of_the_program_are_told(place: Path) -> None:
    trace = next((place / "script").glob("trace*.json.gz"))
    assert gzip.decompress(trace.read_bytes()).count(b"python_line") > 10


def test_a_block_is_recorded_in_code(place: Path) -> None:
    done = subprocess.run([sys.executable, "block.py"], cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_change_is_tried(place: Path) -> None:
    tried = command(place, "verify", "--try", "threads-1,compile", "--budget", "6", "--within", "120", "model.py")
    assert "threads-1" in tried


def test_a_gate_is_written_and_passes(place: Path) -> None:
    command(place, "gate", "--update")
    command(place, "gate", "--only", "counters")


def test_two_recordings_are_compared(place: Path) -> None:
    assert command(place, "compare", "workload", "training", accepted=(0, 1))


@pytest.fixture(scope="module")
def repository(place: Path) -> Path:
    """A repository of two commits: the model of the second is wider."""
    folder = place / "repository"
    folder.mkdir()
    (folder / "pyproject.toml").write_text('[tool.bottleneck.gate]\nworkloads = ["model.py"]\n')
    for hidden in ("64", "512"):
        (folder / "model.py").write_text(textwrap.dedent(MODEL).replace("64", hidden).lstrip("\n"))
        for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", hidden]):
            author = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
            subprocess.run(["git", *author, *words], cwd=folder, check=True)
    return folder


def test_two_commits_are_compared(repository: Path) -> None:
    said = command(repository, "compare", "HEAD~1", "HEAD", "--workload", "model.py", accepted=(0, 1))
    assert "aten::addmm" in said or "matmul" in said


def test_the_times_of_two_commits_are_gated(repository: Path) -> None:
    said = command(repository, "gate", "--only", "time", "--against", "HEAD~1", "--pairs", "7", accepted=(0, 1, 5))
    assert "step" in said
    assert "failed in" not in said


def test_a_step_is_swept(place: Path) -> None:
    swept = command(place, "sweep", "model.py", "--param", "batch_size=4,64", "--seconds", "0.3")
    assert "batch_size" in swept


def test_a_step_is_predicted_for_a_gpu(place: Path) -> None:
    assert "A100" in command(place, "predict", "--device", "A100", "model.py")


def test_the_doctor_says_what_can_be_measured(place: Path) -> None:
    import torch

    assert torch.__version__ in command(place, "doctor", accepted=(0, 1))
