import subprocess
import sys
from pathlib import Path

import pytest

from bottleneck.harness.script import TIMED_STEPS, TIMED_STEPS_AT_LEAST
from bottleneck.pipeline import analyse

from .driver import Run, record
from .test_run_forms import load_trace, ops_by_step

pytestmark = pytest.mark.process

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


# With a fixed number of steps to warm up, phases begin at known steps: 2 pilot, 3 timed, 23 lead-in, 24 profiled.
WARM = ("--warmup", "3")


def train_and(folder: Path, body: str, *options: str, status: int = 0) -> Run:
    """The run of a training program that leaves nothing on stderr, as under plain python."""
    run = record(folder, TRAINING + body, *WARM, *options)
    assert (run.stderr, run.status) == ("", status)
    return run


@pytest.mark.sample
def test_a_training_script_is_followed_by_its_optimizer(tmp_path: Path) -> None:
    run = train_and(tmp_path, "    train(40); print('trained')")
    assert run.stdout == "trained\n"
    assert run.recording.step_source == "optimizer"
    assert run.recording.step_name == "optimizer.step of SGD"
    assert run.recording.steps_seen is not None and 29 <= run.recording.steps_seen <= 40
    assert run.recording.unprofiled is not None and TIMED_STEPS_AT_LEAST <= run.recording.unprofiled.n <= TIMED_STEPS
    steps = ops_by_step(run)
    assert len(steps) == 5
    for ops in steps:
        names = [op["name"] for op in ops]
        assert (names.count("aten::linear"), names.count("aten::addmm")) == (1, 1)


@pytest.mark.sample
def test_an_inference_script_is_followed_by_its_outermost_module(tmp_path: Path) -> None:
    body = """
        import sys, torch
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
        with torch.no_grad():
            for _ in range(40):
                model(torch.ones(2, 4))
        print("torch._inductor" in sys.modules)
    """
    run = record(tmp_path, body, *WARM)
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


@pytest.mark.sample
def test_a_script_without_steps_is_profiled_as_a_whole(tmp_path: Path) -> None:
    run = record(tmp_path, "import torch\nfor _ in range(50):\n    torch.ones(8, 8) @ torch.ones(8, 8)\n")
    assert run.recording.step_source == "whole program"
    assert sum(event["name"] == "aten::mm" for event in load_trace(run)["traceEvents"]) == 50


def test_rounds_of_a_program_of_ops_alone_are_steps_with_their_lines(tmp_path: Path) -> None:
    """A simulation has no module, optimizer or loader: its start is recorded again with Python calls."""
    body = """
    import time, torch
    field, until = torch.rand(300, 300), time.monotonic() + 8
    def around(f):
        return torch.roll(f, 1, 0) + torch.roll(f, -1, 0) + torch.roll(f, 1, 1) + torch.roll(f, -1, 1) - 4 * f
    while time.monotonic() < until:
        field = (field + 0.1 * around(field)).clamp(0, 1).sqrt()
    """
    run = record(tmp_path, body)
    assert (run.status, run.recording.step_source) == (0, "whole program")
    told = analyse([run.folder])
    assert told.steps.count >= 3 and told.steps.wall_us < 1e6
    assert {row.source for row in told.kernels if row.name == "aten::cat"} == {"program.py:4"}


def test_a_profiler_of_the_programs_own_gives_the_same_results(tmp_path: Path) -> None:
    body = """
    train(2)
    with torch.profiler.profile() as profiler:
        train(3)
    print(sorted(event.name for event in profiler.events()))
    train(40)
"""
    # The profiler library names the times of its own start and stop on stderr.
    run = record(tmp_path, TRAINING + body, *WARM)
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


def test_modules_that_loader_workers_call_are_not_recorded_in_place_of_the_training(tmp_path: Path) -> None:
    body = """
    from torch.utils.data import DataLoader, Dataset

    class Blurred(Dataset):
        blur = torch.nn.Sequential(torch.nn.Conv1d(1, 1, 3))
        def __len__(self):
            return 400
        def __getitem__(self, index):
            with torch.no_grad():
                return self.blur(torch.ones(1, 1, 16))[0]

    for batch in DataLoader(Blurred(), batch_size=10, num_workers=2):
        train(1)
"""
    run = train_and(tmp_path, body)
    assert "optimizer" in str(run.recording.step_name)
    names = {op["name"] for op in load_trace(run)["traceEvents"]}
    assert "aten::convolution" not in names and any(name.startswith("autograd::engine") for name in names)


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
    run = record(tmp_path, TRAINING + "    train(26)\n    model(torch.ones(1, 3))\n", *WARM)
    assert run.status == 1
    assert "bottleneck" not in run.stderr.replace(str(tmp_path), "")
    assert run.stderr.splitlines()[1] == f'  File "{tmp_path}/program.py", line 13, in <module>'
    # Beside other programs the steps get long, so that fewer lead in and the error may come after the window.
    assert len(ops_by_step(run)) >= 2


def test_the_supervisor_can_tell_when_all_is_measured_while_the_program_goes_on(tmp_path: Path) -> None:
    body = """
    import json, pathlib

    def is_measured():
        notes = pathlib.Path("recording/.notes.rank0.json")
        return notes.exists() and json.loads(notes.read_text())["is_measured"]

    train(24)
    print(is_measured())
    train(160)
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


IN_A_THREAD = "    import threading\n    thread = threading.Thread(target=train, args=({steps},))\n    thread.start()\n"


@pytest.mark.parametrize("joined", [True, False], ids=["awaited", "left to python's exit"])
def test_training_in_a_thread_is_profiled(joined: bool, tmp_path: Path) -> None:
    run = train_and(tmp_path, IN_A_THREAD.format(steps=40) + ("    thread.join()\n" if joined else ""))
    assert run.recording.unprofiled is not None and TIMED_STEPS_AT_LEAST <= run.recording.unprofiled.n <= TIMED_STEPS
    assert [sum(op["name"] == "aten::addmm" for op in ops) for ops in ops_by_step(run)] == [1] * 5


def test_a_thread_that_ends_in_the_profiled_steps_leaves_what_there_is(tmp_path: Path) -> None:
    run = train_and(tmp_path, IN_A_THREAD.format(steps=26) + "    thread.join()\n    train(3)\n")
    assert len(ops_by_step(run)) == 2


def test_training_in_a_thread_that_torch_was_imported_in_is_profiled_without_a_word(tmp_path: Path) -> None:
    body = """
        import threading

        def work():
            import torch
            model = torch.nn.Linear(8, 8)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(40):
                optimizer.zero_grad()
                model(torch.ones(4, 8)).sum().backward()
                optimizer.step()

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    """
    run = record(tmp_path, body, *WARM)
    assert (run.stderr, run.status) == ("", 0)
    assert len(ops_by_step(run)) == 5


def test_a_profiler_of_the_programs_own_in_another_thread_finds_ours_stopped(tmp_path: Path) -> None:
    body = """
    import threading

    def work():
        with torch.profiler.profile() as profiler:
            torch.ones(2, 2) @ torch.ones(2, 2)
        print(sum(event.name == "aten::mm" for event in profiler.events()))

    train(26)
    thread = threading.Thread(target=work)
    thread.start()
    {wait}
    thread.join()
"""
    for wait in ("pass", "while thread.is_alive(): train(1)"):
        folder = tmp_path / wait[:4]
        folder.mkdir()
        run = record(folder, TRAINING + body.format(wait=wait), *WARM)
        assert (run.stdout, run.status) == ("1\n", 0)
        assert "profiler of its own" in run.said


def test_a_loader_with_many_calls_for_each_batch_is_the_step(tmp_path: Path) -> None:
    body = """
        import torch
        from torch.utils.data import DataLoader, TensorDataset
        model = torch.nn.Linear(4, 4)
        with torch.no_grad():
            for (batch,) in DataLoader(TensorDataset(torch.ones(80, 4)), batch_size=2):
                for _ in range(3):
                    batch = model(batch)
    """
    run = record(tmp_path, body, *WARM)
    assert (run.stderr, run.recording.step_source) == ("", "loader")
    assert run.recording.step_name == "next of DataLoader"
    assert [sum(op["name"] == "aten::addmm" for op in ops) for ops in ops_by_step(run)] == [3] * 5


def test_an_evaluation_before_the_training_gives_way_to_it(tmp_path: Path) -> None:
    body = """
    with torch.no_grad():
        for _ in range(10):
            model(torch.ones(4, 8))
    train(40)
"""
    run = train_and(tmp_path, body)
    assert run.recording.step_name == "optimizer.step of SGD"
    assert len(ops_by_step(run)) == 5


def test_closures_and_accumulated_gradients_are_parts_of_a_step(tmp_path: Path) -> None:
    body = """
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, tolerance_change=0, tolerance_grad=0)
    batch = torch.randn(4, 8)

    def closure():
        optimizer.zero_grad()
        loss = model(batch).square().sum()
        loss.backward()
        return loss

    for _ in range(40):
        optimizer.step(closure)
"""
    run = train_and(tmp_path, body)
    assert run.recording.step_name == "optimizer.step of LBFGS"
    assert len(ops_by_step(run)) == 5
    assert all(sum(op["name"] == "aten::addmm" for op in ops) > 1 for ops in ops_by_step(run))


def test_steps_that_a_scaler_skips_belong_to_the_next_one(tmp_path: Path) -> None:
    body = """
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for number in range(60):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8)).sum() * (float("inf") if number % 10 == 0 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
    run = train_and(tmp_path, body)
    assert run.recording.step_name == "optimizer.step of SGD"
    assert len(ops_by_step(run)) == 5


def test_a_compiled_model_without_an_optimizer_is_followed_by_its_calls(tmp_path: Path) -> None:
    body = """
        import torch
        model = torch.compile(torch.nn.Linear(4, 4), backend="eager")
        with torch.no_grad():
            for _ in range(60):
                model(torch.ones(2, 4))
    """
    run = record(tmp_path, body, *WARM)
    assert (run.stderr, run.status) == ("", 0)
    assert (run.recording.step_source, run.recording.step_name) == ("module", "call of Linear")


def test_the_user_names_the_step(tmp_path: Path) -> None:
    run = train_and(tmp_path, "    train(40)", "--step", "Linear")
    assert (run.recording.step_source, run.recording.step_name) == ("module", "call of Linear")
    assert len(ops_by_step(run)) == 5


def test_a_step_that_the_program_ends_itself_overrules_the_optimizer(tmp_path: Path) -> None:
    run = train_and(
        tmp_path, "    import bottleneck\n    for _ in range(40):\n        train(2)\n        bottleneck.step()\n"
    )
    assert (run.recording.step_source, run.recording.step_name) == ("mark", "bottleneck.step()")
    assert [sum(op["name"] == "aten::addmm" for op in ops) for ops in ops_by_step(run)] == [2] * 5


def test_a_name_that_never_shows_up_is_answered_with_those_that_do(tmp_path: Path) -> None:
    run = train_and(tmp_path, "    train(40)", "--step", "Lion")
    assert run.recording.step_source == "whole program"
    assert "no step called Lion was seen twice; what was seen: module Linear, optimizer SGD" in run.said


def test_a_program_that_is_to_stop_ends_in_an_orderly_way_once_all_is_measured(tmp_path: Path) -> None:
    body = """
    import atexit
    atexit.register(lambda: print("bye"))
    try:
        train(100_000)
    finally:
        print("finally")
    print("never")
"""
    run = train_and(tmp_path, body, "--stop")
    assert run.stdout == "finally\nbye\n"
    assert len(ops_by_step(run)) == 5


def test_the_user_chooses_what_is_recorded(tmp_path: Path) -> None:
    run = train_and(tmp_path, "    train(40)", "--no-shapes", "--no-stacks")
    trace = load_trace(run)
    assert not trace.get("record_shapes") and not trace.get("with_stack")
    assert not any(event.get("cat") == "python_function" for event in trace["traceEvents"])


def test_steps_that_settle_are_timed_without_a_number_from_the_user(tmp_path: Path) -> None:
    run = record(tmp_path, TRAINING + "    train(150)\n")
    assert run.recording.unprofiled is not None and run.recording.unprofiled.n >= TIMED_STEPS_AT_LEAST
    assert len(ops_by_step(run)) == 5
    assert run.recording.settled is not None
