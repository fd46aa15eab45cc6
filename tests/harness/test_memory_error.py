"""Where a program runs out of a GPU's memory, what held it is kept beside the recording and said at the end."""

import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from bottleneck.harness.memory_error import begin_history, keep_snapshot, snapshots_beside
from tests.allocators import MIB, CachingAllocator, OutOfMemoryError

# A GPU that a program of the tests has: torch's own names, with a snapshot that was made before.
PROGRAM = """
    import shutil, sys, torch
    torch.cuda.is_initialized = lambda: True
    torch.cuda.memory._dump_snapshot = lambda path: shutil.copy("made.pickle", path)
    print("begins")
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 60.00 MiB.")
"""


def made(folder: Path) -> None:
    """Writes a snapshot of 160 MiB of states, and of a request of 60 MiB that failed."""
    device = CachingAllocator(200 * MIB)
    for _ in range(4):
        device.allocate(40 * MIB, ("/v/site-packages/torch/optim/adamw.py", 1, "_init_group"), ("/me/a.py", 95, "main"))
    with pytest.raises(OutOfMemoryError):
        device.allocate(60 * MIB, ("/me/a.py", 31, "forward"))
    (folder / "made.pickle").write_bytes(pickle.dumps(device.dump()))


@pytest.mark.process
@pytest.mark.parametrize("command", ["run", "watch"])
def test_what_held_the_memory_is_said_after_the_program_s_own_error(tmp_path: Path, command: str) -> None:
    pytest.importorskip("torch")
    made(tmp_path)
    (tmp_path / "a.py").write_text("\n".join(line.strip() for line in PROGRAM.splitlines()))
    done = subprocess.run(
        [sys.executable, "-m", "bottleneck", command, "a.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("begins\n") and done.returncode == 1
    words = " ".join(done.stderr.split())
    assert "OutOfMemoryError: CUDA out of memory" in words
    assert "A request of 60 MiB at a.py:31 forward() failed: it lacked 20 MiB" in words
    assert "Largest: a.py:95 main(), optimizer state: 160 MiB (100.0 % of what is allocated) in 4 blocks" in words
    (kept,) = (tmp_path / "bottleneck-runs").glob("*.out-of-memory.rank0.pickle")
    assert f"bottleneck report bottleneck-runs/{kept.name}" in words


class FakeTorch(ModuleType):
    """The part of torch that is asked for."""

    def __init__(self, *, initialized: bool = True, available: bool = True) -> None:
        super().__init__("torch")
        self.cuda = SimpleNamespace(is_initialized=lambda: initialized, is_available=lambda: available)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, object]]:
    """What is asked of torch.cuda.memory."""
    made_calls: list[tuple[str, object]] = []
    memory = ModuleType("torch.cuda.memory")
    vars(memory)["_dump_snapshot"] = lambda path: made_calls.append(("dump", path))
    vars(memory)["_record_memory_history"] = lambda **options: made_calls.append(("history", options["stacks"]))
    monkeypatch.setitem(sys.modules, "torch", FakeTorch())
    monkeypatch.setitem(sys.modules, "torch.cuda.memory", memory)
    return made_calls


def test_another_error_or_a_gpu_that_is_not_in_use_leaves_no_snapshot(
    tmp_path: Path, calls: list[tuple[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")
    assert keep_snapshot(ValueError("no such key"), tmp_path / "a") is None
    assert keep_snapshot(out, tmp_path / "a", 3) == tmp_path / "a.out-of-memory.rank3.pickle"
    assert calls == [("dump", str(tmp_path / "a.out-of-memory.rank3.pickle"))]
    monkeypatch.setitem(sys.modules, "torch", FakeTorch(initialized=False))
    assert keep_snapshot(out, tmp_path / "a") is None


def test_a_snapshot_that_cannot_be_written_hides_no_error(tmp_path: Path, calls: list[tuple[str, object]]) -> None:
    vars(sys.modules["torch.cuda.memory"])["_dump_snapshot"] = lambda path: 1 / 0
    assert keep_snapshot(MemoryError("out of memory"), tmp_path / "a") is None and calls == []


def test_lines_are_noted_where_there_is_a_gpu(calls: list[tuple[str, object]], monkeypatch: pytest.MonkeyPatch) -> None:
    assert begin_history() and calls == [("history", "python")]
    monkeypatch.setitem(sys.modules, "torch", FakeTorch(available=False))
    assert not begin_history()


def test_snapshots_are_found_beside_a_folder_whose_name_is_a_pattern(tmp_path: Path) -> None:
    for name in ("a[1].out-of-memory.rank0.pickle", "a1.out-of-memory.rank0.pickle"):
        (tmp_path / name).touch()
    assert [path.name for path in snapshots_beside(tmp_path / "a[1]")] == ["a[1].out-of-memory.rank0.pickle"]
