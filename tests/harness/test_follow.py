"""Processes that a program starts, under `--follow-children`: those with torch are ranks, their helpers are not."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from bottleneck.harness import follow
from bottleneck.harness.follow import FollowedRanks

from .driver import record

TRAINS = """
import torch

def train(rank=None):
    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(150):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
"""


@pytest.fixture(autouse=True)
def outside_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())  # type: ignore[arg-type]


def test_processes_take_ranks_in_the_order_in_which_they_have_something_to_keep(tmp_path: Path) -> None:
    assert [FollowedRanks(tmp_path).take()[0].rank for _ in range(3)] == [0, 1, 2]
    assert json.loads((tmp_path / ".notes.rank1.json").read_text())["ranks"] == 1


def test_a_process_of_a_job_takes_the_rank_that_it_has_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "8")
    files, ranks = FollowedRanks(tmp_path, index=1).take()
    assert (files.rank, ranks) == (5, 8)
    group = SimpleNamespace(is_initialized=lambda: True, get_rank=lambda: 2, get_world_size=lambda: 3)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(distributed=group))  # type: ignore[arg-type]
    files, ranks = FollowedRanks(tmp_path).take()
    assert (files.rank, ranks) == (2, 3)


def test_a_second_process_of_one_number_keeps_nothing(tmp_path: Path) -> None:
    assert FollowedRanks(tmp_path, index=1).take()[0].notes.exists()
    assert not FollowedRanks(tmp_path, index=1).take()[0].folder.exists()


def test_the_program_itself_is_a_rank_only_if_it_steps_first(tmp_path: Path) -> None:
    assert FollowedRanks(tmp_path, is_parent=True).take()[0].notes.exists()
    assert not FollowedRanks(tmp_path, is_parent=True).take()[0].folder.exists()


@pytest.mark.parametrize(
    ("module", "arguments", "index"),
    [("torch.multiprocessing.spawn", (None, 3, (), None), 3), ("__main__", (None, 3), None)],
)
def test_the_processes_of_torchs_spawn_have_their_numbers(
    module: str, arguments: tuple[object, ...], index: int | None
) -> None:
    process = SimpleNamespace(_target=SimpleNamespace(__module__=module), _args=arguments)
    assert follow._index_of(process) == index


MIXED = """
import subprocess, sys
import torch.multiprocessing as mp
from torch.utils.data import DataLoader
from worker import train

if __name__ == "__main__":
    mp.spawn(train, nprocs=2)
    other = mp.get_context("fork").Process(target=train)
    other.start()
    other.join()
    status = subprocess.call([sys.executable, "worker.py"])
    helped = [batch.shape for batch in DataLoader(list(range(8)), batch_size=4, num_workers=1)]
    print(other.exitcode, status, len(helped))
"""


@pytest.mark.process
def test_spawned_forked_and_other_interpreters_are_ranks_and_the_workers_of_a_loader_are_not(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "worker.py").write_text(f"{TRAINS}\nif __name__ == '__main__': train()\n")
    run = record(tmp_path, MIXED, "--follow-children", "--steps", "2", "--telemetry-ms", "0")
    assert (run.stdout, run.status) == ("0 0 2\n", 0)
    assert run.stderr == ""
    assert [trace.rank for trace in run.recording.traces] == [0, 1, 2, 3]
    assert all(trace.profiled is not None and trace.profiled.n >= 2 for trace in run.recording.traces)
    assert not list(run.folder.glob(".*"))


def test_a_program_without_processes_is_recorded_as_ever(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    run = record(tmp_path, f"{TRAINS}\ntrain()\n", "--follow-children", "--steps", "2", "--telemetry-ms", "0")
    assert [trace.rank for trace in run.recording.traces] == [0]
    assert run.recording.step_name == "optimizer.step of SGD"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--nproc-per-node", "2"], "--follow-children and --nproc-per-node do not go together"),
        (["--stop"], "--follow-children and --stop do not go together"),
        ([], "program.py is a workload"),
    ],
)
def test_ways_of_running_that_exclude_it_are_refused(options: list[str], words: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("def workload(): return print\n")
    command = [sys.executable, "-m", "bottleneck.cli", "run", "--follow-children", *options, "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and words in done.stderr


def test_a_sitecustomize_of_the_users_own_runs_too(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('theirs')")
    startup = Path(follow.__file__).with_name("startup")
    code = "import sys; print(sys.modules['sitecustomize'].__file__, any('startup' in entry for entry in sys.path))"
    command = [sys.executable, "-c", code]
    environment = {"PYTHONPATH": f"{startup}:{tmp_path}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (f"theirs\n{tmp_path / 'sitecustomize.py'} False\n", "")
