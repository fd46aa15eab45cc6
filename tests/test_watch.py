"""`bottleneck watch` times a whole run, names planted faults with their steps, and leaves the program as it was."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bottleneck.schema.watch_log import PHASES
from bottleneck.watched.read_log import read_watched

pytest.importorskip("torch")
pytestmark = pytest.mark.process

# Every planted fault is far longer than what a busy machine does to a step.
TRAINS = """
import gc, os, sys, time
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
data = TensorDataset(torch.randn(1024, 16), torch.randint(0, 4, (1024,)))
loader, others = DataLoader(data, batch_size=32), DataLoader(data, batch_size=8)
model = torch.nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
planted, kept, step = set(sys.argv[1:]), [], 0

class Node:
    pass

def make_garbage():
    for _ in range(400_000):
        one, other = Node(), Node()
        one.other, other.one = other, one

def log_metrics():
    until = time.thread_time() + 0.6
    while time.thread_time() < until:
        pass

if "gc" in planted:
    gc.disable()
while step < 384:
    for inputs, labels in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        step += 1
        if "gc" in planted and step == 150:
            make_garbage()
        if "gc" in planted and step == 151:
            gc.collect()
        if "line" in planted and step in (200, 300):
            log_metrics()
        if "pass" in planted and step == 250:
            for _ in range(20):
                for inputs, labels in others:
                    model(inputs)
        if "list" in planted:
            kept.append(torch.ones(100_000))
        if "killed" in planted and step == 380:
            os.kill(os.getpid(), 9)
print("trained", step)
"""


def watch(folder: Path, *planted: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(TRAINS)
    command = [sys.executable, "-m", "bottleneck.cli", "watch", "-o", "log", "train.py", *planted]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def causes(folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "bottleneck.cli", "watch", "--format", "json", "log"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    (rank,) = json.loads(done.stdout)["ranks"]
    return {cause["kind"]: cause for cause in rank["causes"]}


def test_planted_faults_are_named_with_their_steps_and_lines(tmp_path: Path) -> None:
    done = watch(tmp_path, "gc", "line", "pass", "list")
    assert done.returncode == 0 and done.stdout == "trained 384\n"
    named = causes(tmp_path)
    assert named["gc"]["steps"] == [151]
    assert named["other-data"]["steps"] == [250]
    assert "held by train.py:46" in named["memory"]["headline"]
    # Where other programs had the processor for most of such a step, they are the reason that is named (test_causes).
    (rank,) = read_watched(tmp_path / "log")
    seen = {slow.step: slow.lines[0].function for slow in rank.slow if slow.lines}
    assert (seen[200], seen[300]) == ("log_metrics", "log_metrics")
    page = (tmp_path / "log" / "report.html").read_text()
    assert all("Python collected garbage" in text for text in (done.stderr, page)) and "Step time" in page


def test_a_steady_run_has_nothing_but_what_the_machine_did_to_it(tmp_path: Path) -> None:
    done = watch(tmp_path)
    assert done.returncode == 0
    assert not {"gc", "memory", "other-data", "compile", "checkpoint", "dead-worker"} & set(causes(tmp_path))


def test_the_phases_add_up_to_the_step_and_steps_are_all_there(tmp_path: Path) -> None:
    watch(tmp_path)
    (rank,) = read_watched(tmp_path / "log")
    assert rank.steps == 383 and rank.header.steps == 383 and rank.header.is_complete
    phases = sum(
        rank.records[f"{phase}_us"].astype(float) for phase in ("data", "forward", "backward", "optimizer", "rest")
    )
    assert phases == pytest.approx(rank.records["us"].astype(float), rel=1e-3, abs=1.0)
    assert all((rank.records[f"{phase}_us"] > 0).all() for phase in ("data", "forward", "backward", "optimizer"))
    assert (rank.records["batches"] == 1).mean() > 0.9


def test_a_program_that_is_killed_leaves_its_log(tmp_path: Path) -> None:
    done = watch(tmp_path, "killed", "line")
    assert done.returncode == 128 + signal.SIGKILL
    (rank,) = read_watched(tmp_path / "log")
    assert not rank.header.is_complete and rank.steps >= 1
    assert "the program was cut off after step" in done.stderr


def test_by_force_a_log_is_replaced_and_never_added_to(tmp_path: Path) -> None:
    watch(tmp_path)
    (tmp_path / "log" / "watch.rank1.json").write_text("{}")
    command = [sys.executable, "-m", "bottleneck.cli", "watch", "-o", "log", "train.py"]
    refused = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert refused.returncode == 2 and "log is not empty" in refused.stderr
    command.insert(4, "--force")
    subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    (rank,) = read_watched(tmp_path / "log")
    assert rank.steps == 383


def test_its_failure_is_the_programs_own(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit(7)")
    command = [sys.executable, "-m", "bottleneck.cli", "watch", "-o", "log", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 7
    assert "holds no step of a watched run" in done.stderr and "it never imported torch" in done.stderr


def test_a_workload_has_no_run_to_watch(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("def workload():\n    return lambda: None\n")
    command = [sys.executable, "-m", "bottleneck.cli", "watch", "model.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "measure its step: bottleneck run model.py" in done.stderr


def test_an_option_behind_the_log_of_a_run_is_refused(tmp_path: Path) -> None:
    """It was left out without a word, and the report had another format."""
    (tmp_path / "watch.rank0.json").write_text("{}")
    command = [sys.executable, "-m", "bottleneck.cli", "watch", ".", "--format", "html"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "put it before the file: --format html ." in done.stderr


def test_two_ranks_share_a_log_and_the_late_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        TRAINS.replace("import gc, os, sys, time", "import gc, os, sys, time\nimport torch.distributed as dist")
        .replace("torch.manual_seed(0)", "torch.manual_seed(0)\ndist.init_process_group('gloo')")
        .replace(
            "        optimizer.zero_grad()\n",
            "        if dist.get_rank() == 1: sum(range(200_000))\n        optimizer.zero_grad()\n",
        )
        .replace(
            "model = torch.nn.Linear(16, 4)",
            "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 4))",
        )
        + "dist.destroy_process_group()\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "bottleneck.cli"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "watch", "-o", "log", "train.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [rank.header.rank for rank in read_watched(tmp_path / "log")] == [0, 1]
    assert "rank 1: outside the backward pass it takes" in done.stderr.replace("\n       ", " ")


# Each rank has a clock that goes on by what its work is said to take. In the backward pass the ranks meet, and each
# clock becomes that of the last one: so they wait for one another by a clock that no other program disturbs.
MEETS = """
import sys
from pathlib import Path
import torch
import torch.distributed as dist
from bottleneck.harness.messages import Program
from bottleneck.harness.step_log import StepLog
from bottleneck.harness.step_watch import StepWatch
from bottleneck.harness.watched_windows import WatchedWindows, WindowWishes

class Clock:
    now_ns = 1_000_000_000
    def __call__(self):
        self.now_ns += 1_000
        return self.now_ns

dist.init_process_group("gloo")
torch.set_num_threads(1)
rank, log, clock = dist.get_rank(), Path("log"), Clock()
wishes = WindowWishes(Program("train.py", form="script"), at_slow_steps=3)
watch = StepWatch(StepLog(log, rank), None, rank, 2, clock, WatchedWindows(log, wishes, clock, rank))
watch.start()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(400):
    clock.now_ns += 5_000_000_000 if rank == int(sys.argv[1]) and step == 200 else 400_000_000
    loss = model(torch.ones(2, 16)).sum()
    loss.backward()
    now = torch.tensor(clock.now_ns + 100_000_000)
    dist.all_reduce(now, dist.ReduceOp.MAX)
    clock.now_ns = int(now)
    optimizer.step()
    optimizer.zero_grad()
watch.finish(0)
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("late", "recorded"), [(1, ["step-200", "step-200-rank-1"]), (0, ["step-200"])])
def test_of_the_ranks_behind_the_first_only_a_late_one_is_recorded(
    tmp_path: Path, late: int, recorded: list[str]
) -> None:
    (tmp_path / "train.py").write_text(MEETS)
    (tmp_path / "log").mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py", str(late)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ranks = read_watched(tmp_path / "log")
    # Both were slow in that step: one computed, and one waited for it in the backward pass.
    assert [[slow.step for slow in rank.slow] for rank in ranks] == [[200], [200]]
    backward_us = [rank.slow[0].phases_us[PHASES.index("backward")] for rank in ranks]
    assert backward_us[1 - late] > 4e6 > backward_us[late]
    windows = [window for rank in ranks for window in rank.header.windows]
    assert [window.folder for window in windows] == [f"windows/{name}" for name in recorded]
    assert {(window.after, window.trigger) for window in windows} == {(200, "slow")}
    assert all(list((tmp_path / "log" / window.folder).glob(".partial.*")) for window in windows)


def test_windows_that_are_asked_for_are_recordings_and_leave_the_program_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINS)
    bottleneck = [sys.executable, "-m", "bottleneck.cli"]

    def run(*words: str) -> str:
        done = subprocess.run([*bottleneck, *words], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout

    assert run("watch", "-o", "log", "--every", "0.01s", "train.py") == "trained 384\n"
    watched = json.loads(run("watch", "--format", "json", "log"))
    run("watch", "-o", "watched.html", "log")
    assert (tmp_path / "watched.html").read_text().lower().startswith("<!doctype html")
    (rank,), windows = watched["ranks"], watched["windows"]
    assert len(windows) >= 2 and all(window["why"] == "asked for" for window in windows)
    # The steps of windows are in no record. The last one may have been open at the end.
    assert rank["steps"] + sum(window["steps"] for window in windows) == 383
    first = windows[0]["folder"]
    assert first == f"log/windows/step-{windows[0]['after']}"
    analysis = json.loads(run("report", "--format", "json", first))
    assert analysis["steps"]["count"] >= 1 and analysis["recording"]["kind"] == "run"
    assert not list((tmp_path / first).glob(".*"))
    assert run("watch", "-o", "log", "--force", "--windows", "0", "train.py") == "trained 384\n"
    assert not (tmp_path / "log" / "windows").exists()


@pytest.mark.parametrize("every", ["10", "m", "0s", "-3s", "1d", "1e3s"])
def test_a_time_that_is_none_is_refused(tmp_path: Path, every: str) -> None:
    command = [sys.executable, "-m", "bottleneck.cli", "watch", "--every", every, "train.py"]
    (tmp_path / "train.py").write_text("")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and f"--every {every} is no time" in done.stderr
