import gzip
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .driver import Run, record

pytest.importorskip("torch")

WORKLOAD = """
    import torch

    def workload(size=16, name="none"):
        print("size", size, repr(name), __name__)
        model = torch.nn.Linear(size, size)
        inputs = torch.ones(4, size)

        def step():
            model(inputs).sum().backward()

        return step

    if __name__ == "__main__":
        print("not to be run")
"""


def load_trace(run: Run) -> dict[str, Any]:
    (trace,) = run.recording.traces
    with gzip.open(run.folder / trace.file, "rt") as file:
        document: dict[str, Any] = json.load(file)
    return document


def ops_by_step(run: Run) -> list[list[dict[str, Any]]]:
    """Op events between neighbouring marks of the recording."""
    document, marks = load_trace(run), run.recording.traces[0].step_marks_ns
    base = document["baseTimeNanoseconds"]
    ops = [event for event in document["traceEvents"] if event.get("cat") == "cpu_op"]
    return [
        [op for op in ops if begin <= base + float(op["ts"]) * 1000 < end] for begin, end in itertools.pairwise(marks)
    ]


def test_a_workload_is_timed_profiled_and_marked(tmp_path: Path) -> None:
    run = record(tmp_path, WORKLOAD, "--set", "size=8", "--set", "name=a word", "--steps", "3")
    assert (run.status, run.stdout, run.stderr) == (0, "size 8 'a word' program\n", "")
    recording = run.recording
    assert (recording.form, recording.step_source) == ("workload", "workload")
    steps = ops_by_step(run)
    assert len(steps) == 3
    for ops in steps:
        names = [op["name"] for op in ops]
        assert names.count("aten::linear") == 1
        assert names.count("aten::sum") >= 1
    linear = next(op for op in steps[0] if op["name"] == "aten::linear")
    assert linear["args"]["Input Dims"][:2] == [[4, 8], [8, 8]]
    categories = {event.get("cat") for event in load_trace(run)["traceEvents"]}
    assert {"python_function", "cpu_instant_event"} <= categories
    assert recording.unprofiled is not None and recording.profiled is not None
    assert recording.unprofiled.n >= 5 and recording.profiled.n == 3
    assert recording.perturbation == pytest.approx(recording.profiled.median / recording.unprofiled.median)
    assert sorted(path.name for path in run.folder.iterdir()) == [
        "light.rank0.json.gz",
        "recording.json",
        "telemetry.csv",
        "trace.rank0.json.gz",
    ]


@pytest.mark.process
def test_the_allocators_complaint_about_older_blocks_stays_unseen(tmp_path: Path) -> None:
    # Plainly profiled, this program makes torch write "Memory block of unknown size was allocated before ...".
    program = """
        import torch

        def workload():
            kept = [torch.ones(1000)]

            def step():
                kept[0] = torch.ones(1000)

            return step
    """
    assert record(tmp_path, program).stderr == ""


MODEL = """
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout())
    inputs = {"input": torch.ones(2, 4)}
"""


@pytest.mark.process
@pytest.mark.parametrize("train", [False, True], ids=["forward", "train"])
def test_a_bare_model_runs_forward_or_trains(train: bool, tmp_path: Path) -> None:
    run = record(tmp_path, MODEL, *(["--train"] if train else []), "--steps", "1")
    assert (run.status, run.stderr, run.recording.form) == (0, "", "model")
    names = {op["name"] for op in ops_by_step(run)[0]}
    assert ("autograd::engine::evaluate_function: AddmmBackward0" in names) is train
    assert ("aten::native_dropout" in names or "aten::bernoulli_" in names) is train


def test_a_workload_that_raises_shows_only_its_own_frames(tmp_path: Path) -> None:
    run = record(tmp_path, "def workload():\n    return lambda: 1 / 0\n")
    assert run.status == 1
    frames = [line for line in run.stderr.splitlines() if line.startswith("  File")]
    assert frames == [f'  File "{tmp_path}/program.py", line 2, in <lambda>']
    assert run.recording.traces == ()


@pytest.mark.parametrize(
    ("body", "message"), [("return 3", "not a function"), ("return lambda value: value", "takes arguments")]
)
def test_a_workload_without_a_step_is_told_so(body: str, message: str, tmp_path: Path) -> None:
    run = record(tmp_path, f"def workload():\n    {body}\n")
    assert run.status == 1
    assert message in run.stderr


def test_a_workload_without_torch_is_timed_and_says_so(tmp_path: Path) -> None:
    run = record(tmp_path, "def workload():\n    return lambda: sum(range(1000))\n")
    assert run.status == 0
    assert run.recording.unprofiled is not None
    assert "never imported torch" in run.said


def test_a_failure_of_ours_keeps_the_programs_status(tmp_path: Path) -> None:
    run = record(tmp_path, "raise SystemExit(7)", report="1 / 0")
    assert run.status == 7


def test_strict_turns_a_failure_of_ours_into_4(tmp_path: Path) -> None:
    assert record(tmp_path, "print('no torch here')", "--strict").status == 4
    other = tmp_path / "other"
    other.mkdir()
    assert record(other, "raise SystemExit(7)", "--strict").status == 7


def test_a_program_that_removes_the_recording_keeps_its_status(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import shutil; shutil.rmtree('recording'); raise SystemExit(7)")
    command = [sys.executable, "-m", "bottleneck.cli", "run", "--probe-budget", "0", "-o", "recording", "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 7
    assert "is gone" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.process
def test_a_program_that_removes_its_folder_keeps_its_status(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    work = "import os, shutil, torch; torch.ones(9).sum(); shutil.rmtree(os.getcwd()); raise SystemExit(7)"
    (here / "program.py").write_text(work)
    command = [
        sys.executable,
        "-m",
        "bottleneck.cli",
        "run",
        "--probe-budget",
        "0",
        "-o",
        str(tmp_path / "recording"),
        "program.py",
    ]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    assert done.returncode == 7
    assert str(tmp_path / "recording") in done.stderr
    assert "Traceback" not in done.stderr


BATCHED = """
    import torch

    def workload(batch_size=4, width=16):
        print("made for", batch_size)
        model = torch.nn.Linear(width, width)
        inputs = torch.ones(batch_size, width)
        return lambda: model(inputs).sum().backward()
"""


@pytest.mark.process
def test_a_batch_size_is_doubled_unseen_and_the_profilers_options_are_tried(tmp_path: Path) -> None:
    run = record(tmp_path, BATCHED, "--set", "batch_size=8", "--warmup", "2", "--probe")
    assert (run.status, run.stdout, run.stderr) == (0, "made for 8\n", "")
    test, costs = run.recording.batch_test, run.recording.option_costs
    assert test is not None and test.reason is None and test.batch_size == 8
    assert test.ratio is not None and test.ratio.n >= 6 and test.once is not None and test.twice is not None
    assert costs is not None and (costs.reason or len(costs.costs) == 5)
    assert run.recording.windows_us and run.recording.peak_memory is not None


@pytest.mark.process
def test_what_goes_wrong_at_twice_the_batch_leaves_program_and_recording_alone(tmp_path: Path) -> None:
    program = BATCHED.replace("        model =", "        assert batch_size < 8, 'too many'\n        model =")
    run = record(tmp_path, program, "--warmup", "2")
    assert (run.status, run.stderr, len(run.recording.traces)) == (0, "", 1)
    test = run.recording.batch_test
    assert test is not None and test.ratio is None
    assert test.reason == "the step at batch_size=8 failed: AssertionError: too many"


@pytest.mark.process
def test_the_batch_test_can_be_left_out_and_needs_a_batch_size(tmp_path: Path) -> None:
    assert record(tmp_path, BATCHED, "--warmup", "2", "--no-batch-test").recording.batch_test is None
    other = tmp_path / "other"
    other.mkdir()
    assert record(other, BATCHED.replace("batch_size", "rows"), "--warmup", "2").recording.batch_test is None
