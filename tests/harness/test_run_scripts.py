import subprocess
import sys
from pathlib import Path

import pytest

from .driver import Run, record
from .test_run_forms import load_trace, ops_by_step

pytest.importorskip("torch")

TRAINING = """
    import os, signal, sys, torch
    from torch.autograd.profiler import record_function
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(steps):
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(4, 8)).sum().backward()
            optimizer.step()

"""


def train_and(folder: Path, body: str, *, status: int = 0) -> Run:
    """The run of a training program that leaves nothing on stderr, as under plain python."""
    run = record(folder, TRAINING + body)
    assert (run.stderr, run.status) == ("", status)
    return run


def test_a_training_script_is_followed_by_its_optimizer(tmp_path: Path) -> None:
    run = train_and(tmp_path, "    train(40); print('trained')")
    assert run.stdout == "trained\n"
    assert run.recording.step_source == "optimizer"
    assert run.recording.step_name == "optimizer.step of SGD"
    assert run.recording.steps_seen is not None and 29 <= run.recording.steps_seen <= 40
    assert run.recording.unprofiled is not None and run.recording.unprofiled.n == 20
    steps = ops_by_step(run)
    assert len(steps) == 5
    for ops in steps:
        names = [op["name"] for op in ops]
        assert (names.count("aten::linear"), names.count("aten::addmm")) == (1, 1)


def test_an_inference_script_is_followed_by_its_outermost_module(tmp_path: Path) -> None:
    body = """
        import sys, torch
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
        with torch.no_grad():
            for _ in range(40):
                model(torch.ones(2, 4))
        print("torch._inductor" in sys.modules)
    """
    run = record(tmp_path, body)
    assert (run.status, run.stderr, run.recording.step_source) == (0, "", "module")
    assert run.stdout == "False\n", "the profiler's upper class would have loaded the compiler"
    assert [sum(op["name"] == "aten::relu" for op in ops) for ops in ops_by_step(run)] == [1] * 5


@pytest.mark.parametrize(
    ("steps", "source", "marks", "message"),
    [
        (1, "whole program", 0, "ended after 1 step"),
        (3, "optimizer", 2, "one was profiled"),
        (25, "optimizer", 2, "1 of 5"),
    ],
)
def test_a_short_script_keeps_what_there_is(steps: int, source: str, marks: int, message: str, tmp_path: Path) -> None:
    run = train_and(tmp_path, f"    train({steps})")
    assert run.recording.step_source == source
    assert len(run.recording.traces[0].step_marks_ns) == marks
    assert message in run.said
    assert any(event["name"] == "aten::addmm" for event in load_trace(run)["traceEvents"])


def test_a_script_without_steps_is_profiled_as_a_whole(tmp_path: Path) -> None:
    run = record(tmp_path, "import torch\nfor _ in range(50):\n    torch.ones(8, 8) @ torch.ones(8, 8)\n")
    assert run.recording.step_source == "whole program"
    assert sum(event["name"] == "aten::mm" for event in load_trace(run)["traceEvents"]) == 50


def test_a_profiler_of_the_programs_own_gives_the_same_results(tmp_path: Path) -> None:
    body = """
    train(2)
    with torch.profiler.profile() as profiler:
        train(3)
    print(sorted(event.name for event in profiler.events()))
    train(40)
"""
    # The profiler library names the times of its own start and stop on stderr.
    run = record(tmp_path, TRAINING + body)
    plain = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert run.stdout == plain.stdout
    assert run.status == 0
    assert "profiler of its own" in run.said


def test_forks_exit_at_any_time_without_hanging(tmp_path: Path) -> None:
    body = """
    for steps in (0, 1, 1, 22, 3, 12):
        train(steps)
        child = os.fork()
        if child == 0:
            sys.exit(steps)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
    assert train_and(tmp_path, body).stdout.split() == ["0", "1", "1", "22", "3", "12"]


def test_loader_workers_are_forked_without_our_profiler(tmp_path: Path) -> None:
    body = """
    from torch.utils.data import DataLoader, Dataset

    class Numbers(Dataset):
        def __len__(self):
            return 40
        def __getitem__(self, index):
            return torch.tensor(float(torch.autograd._profiler_enabled()))

    for _ in range(2):
        seen = 0.0
        for batch in DataLoader(Numbers(), num_workers=1):
            train(1)
            seen += batch.item()
        print(seen)
"""
    run = train_and(tmp_path, body)
    assert run.stdout == "0.0\n0.0\n"
    assert len(ops_by_step(run)) == 5


def test_a_scope_around_all_steps_keeps_windows_from_opening(tmp_path: Path) -> None:
    # A scope that spanned two windows would corrupt the heap: the program would die of it, now and then.
    run = train_and(tmp_path, "    with record_function('epoch'):\n        train(40)\n    train(40)\n")
    assert len(ops_by_step(run)) == 5
    assert all(op["name"] != "epoch" for op in load_trace(run)["traceEvents"])


@pytest.mark.parametrize(
    ("ending", "status"),
    [("os.kill(os.getpid(), signal.SIGTERM)", 143), ("os._exit(6)", 6)],
    ids=["terminated", "left at once"],
)
def test_what_was_recorded_outlives_the_program(ending: str, status: int, tmp_path: Path) -> None:
    run = train_and(tmp_path, f"    train(26)\n    {ending}\n", status=status)
    assert len(run.recording.traces[0].step_marks_ns) >= 2


def test_an_error_in_the_profiled_steps_shows_no_frame_of_ours(tmp_path: Path) -> None:
    run = record(tmp_path, TRAINING + "    train(26)\n    model(torch.ones(1, 3))\n")
    assert run.status == 1
    assert "bottleneck" not in run.stderr.replace(str(tmp_path), "")
    assert run.stderr.splitlines()[1] == f'  File "{tmp_path}/program.py", line 13, in <module>'
    assert len(ops_by_step(run)) == 2


def test_the_supervisor_can_tell_when_all_is_measured_while_the_program_goes_on(tmp_path: Path) -> None:
    body = """
    import json, pathlib

    def is_measured():
        notes = pathlib.Path("recording/.notes.rank0.json")
        return notes.exists() and json.loads(notes.read_text())["is_measured"]

    train(24)
    print(is_measured())
    train(40)
    print(is_measured(), pathlib.Path("recording/.partial.trace.rank0.json.gz").exists(), flush=True)
    os._exit(0)
"""
    run = train_and(tmp_path, body)
    assert run.stdout == "False\nTrue True\n"
    assert len(ops_by_step(run)) == 5
    assert "abruptly" not in run.said


def test_variables_set_before_torch_is_imported_still_work(tmp_path: Path) -> None:
    program = "import os\nos.environ['OMP_NUM_THREADS'] = '1'\nimport torch\nprint(torch.get_num_threads())\n"
    assert record(tmp_path, program).stdout == "1\n"


def test_training_in_a_thread_is_timed(tmp_path: Path) -> None:
    run = train_and(
        tmp_path, "    import threading\n    t = threading.Thread(target=train, args=(40,)); t.start(); t.join()"
    )
    assert run.recording.unprofiled is not None
    assert "a thread other than the main one" in run.said
