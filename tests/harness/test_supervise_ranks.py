import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from bottleneck.errors import UsageError
from bottleneck.harness.messages import Plan, Program, RecordOptions
from bottleneck.harness.rank_coordination import LaunchedRank, check_ranks, launched_rank
from bottleneck.harness.supervise import program_command
from bottleneck.schema.recording import Form, read_recording
from bottleneck.trace.read import read_trace
from tests.harness.driver import HANGS_S, driven, record

pytest.importorskip("torch")

PROGRAM = Path(__file__).with_name("ddp.py")
PLAN = Plan("/out", Program("train.py", ("x",), "script"), RecordOptions(warmup=3))


def torchrun(folder: Path, *arguments: str, module: bool = False) -> subprocess.CompletedProcess[str]:
    """The result of the program under plain torchrun."""
    target = ["-m", "program"] if module else ["program.py"]
    command = [str(Path(sys.executable).with_name("torchrun")), "--nproc-per-node", "2", *target, *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=HANGS_S
    )


def comparable(text: str) -> list[str]:
    """The lines in a fixed order, without times, numbers of processes and frames of the launcher's own code."""
    text = re.sub(r"[EW]\d{4} [\d:.]+ \d+ ", "", text)
    text = re.sub(r"\(pid: \d+\)|20\d\d-\d\d-\d\d_[\d:]+", "", text)
    lines = [line for line in text.splitlines() if not re.match(r"\s*(File|sys\.exit|run\.main|getattr)\b|\s*\^", line)]
    return sorted(lines)


@pytest.mark.parametrize(
    ("environment", "job"),
    [
        (
            {
                "RANK": "1",
                "WORLD_SIZE": "4",
                "TORCHELASTIC_RUN_ID": "none",
                "MASTER_ADDR": "10.0.0.1",
                "MASTER_PORT": "29500",
            },
            LaunchedRank(1, 4, "none-10-0-0-1-29500"),
        ),
        (
            {"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "3", "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0"},
            LaunchedRank(2, 3, "77-0"),
        ),
        # The script that `sbatch` runs is no rank, whatever number of tasks the job has.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "3", "SLURM_JOB_ID": "77"}, None),
        ({"RANK": "0", "WORLD_SIZE": "1", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, None),
        ({"RANK": "5", "WORLD_SIZE": "4"}, None),
        ({}, None),
    ],
    ids=["torchrun", "srun", "sbatch", "one rank", "nonsense", "alone"],
)
def test_a_process_is_a_rank_of_what_its_launcher_says(
    environment: Mapping[str, str], job: LaunchedRank | None
) -> None:
    assert launched_rank(environment) == job


@pytest.mark.parametrize("wanted", ["0", "-1", "2.5", "", "two ranks", "$(reboot)"])
def test_a_number_of_ranks_that_is_none_is_refused(wanted: str) -> None:
    with pytest.raises(UsageError, match="no number of ranks"):
        check_ranks(wanted, "script", "train.py", {})


@pytest.mark.parametrize("wanted", ["1", "16", "gpu", "auto", "cpu", None])
def test_a_script_may_be_run_by_ranks(wanted: str | None) -> None:
    check_ranks(wanted, "script", "train.py", {"RANK": "0", "WORLD_SIZE": "2"})


@pytest.mark.parametrize("form", ["workload", "model"])
@pytest.mark.parametrize(("wanted", "environment"), [("2", {}), (None, {"RANK": "0", "WORLD_SIZE": "2"})])
def test_a_step_that_we_repeat_is_not_repeated_by_several_ranks(
    form: Form, wanted: str | None, environment: Mapping[str, str]
) -> None:
    check_ranks(None, form, "file.py", {})
    with pytest.raises(UsageError, match="runs in one process"):
        check_ranks(wanted, form, "file.py", environment)


def test_ranks_need_torch_to_start_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    check_ranks(None, "script", "train.py", {})
    with pytest.raises(UsageError, match="needs torch"):
        check_ranks("2", "script", "train.py", {})


def test_without_ranks_the_program_is_our_only_child() -> None:
    assert "torchrun" not in " ".join(program_command(PLAN))
    assert program_command(PLAN)[-4].endswith("child.py")
    launched = program_command(dataclasses.replace(PLAN, options=RecordOptions(nproc_per_node="2")))
    assert launched[3:5] == ["2", "script"] and launched[-2:] == ["train.py", "x"]


@pytest.mark.process
def test_two_ranks_run_as_under_torchrun_and_make_one_recording(tmp_path: Path) -> None:
    run = record(tmp_path, PROGRAM.read_text(), "--nproc-per-node", "2", arguments=("120", "a b"))
    plain = torchrun(tmp_path, "120", "a b")
    assert (run.status, plain.returncode) == (0, 0)
    assert sorted(run.stdout.splitlines()) == sorted(plain.stdout.splitlines())
    assert comparable(run.stderr) == comparable(plain.stderr)
    traces = run.recording.traces
    assert [(trace.rank, len(trace.step_marks_ns)) for trace in traces] == [(0, 6), (1, 6)]
    timed = [trace.unprofiled.n for trace in traces if trace.unprofiled is not None and trace.timed_ns is not None]
    assert len(timed) == 2 and timed[0] == timed[1]
    # They profile the same steps: in each, both meet.
    for step in range(5):
        begins, ends = ([trace.step_marks_ns[mark] for trace in traces] for mark in (step, step + 1))
        assert max(begins) < min(ends)
    assert [path.name for path in sorted(run.folder.iterdir()) if path.name.startswith(".")] == []


def test_a_module_is_run_by_ranks_too(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text(
        "import sys\nsys.stdout.write(f'{__name__} {__package__} {sys.argv[1:]}\\n')\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "bottleneck.cli", "run", "--nproc-per-node", "2", "-m", "package.train", "--x", "1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=HANGS_S,
    )
    assert (done.stdout, done.returncode) == ("__main__ package ['--x', '1']\n" * 2, 0)
    assert "never imported torch" in done.stderr


@pytest.mark.process
def test_a_recording_tells_which_groups_its_rank_is_in(tmp_path: Path) -> None:
    begun = 'distributed.init_process_group("gloo")\n'
    grouped = begun + 'distributed.new_group([0, 1], group_desc="tensor_parallel")\n' + "distributed.new_group([1])\n"
    run = record(tmp_path, PROGRAM.read_text().replace(begun, grouped), "--nproc-per-node", "2", arguments=("120",))
    assert run.status == 0
    traces = [read_trace(run.folder / trace.file) for trace in run.recording.traces]
    found = [{(group.description, group.size, group.ranks) for group in trace.process_groups} for trace in traces]
    shared = {("default_pg", 2, (0, 1)), ("tensor_parallel", 2, (0, 1))}
    assert found[0] == shared
    assert found[1] - shared == {("undefined", 1, (1,))} and shared < found[1]


@pytest.mark.process
def test_a_rank_that_is_killed_takes_no_trace_of_another_with_it(tmp_path: Path) -> None:
    run = record(tmp_path, PROGRAM.read_text(), "--nproc-per-node", "2", arguments=("120", "kill"))
    assert run.status == 1
    assert "program.py FAILED" in run.stderr
    assert [trace.rank for trace in run.recording.traces] == [0, 1]
    # The launcher then ends rank 0, which may be in the middle of a collective and have no time to save either.
    assert "the program ended abruptly" in run.said


@pytest.mark.process
def test_under_a_launcher_of_the_users_the_ranks_share_one_recording(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.read_text())
    launched = driven("run", "program.py", "120", report="settings.say('the report')")
    command = [str(Path(sys.executable).with_name("torchrun")), "--nproc-per-node", "2", "--no-python", *launched]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=HANGS_S
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("bottleneck: recorded 5 steps") == done.stderr.count("the report") == 1
    [folder] = tmp_path.glob("bottleneck-runs/program-*")
    assert [(trace.rank, len(trace.step_marks_ns)) for trace in read_recording(folder).traces] == [(0, 6), (1, 6)]
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_all_ranks_refuse_a_folder_that_is_not_empty(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious.txt").write_text("mine")
    (tmp_path / "program.py").touch()
    job = {"RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    done = subprocess.run(
        driven("run", "-o", "out", "program.py"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=HANGS_S,
        env={**os.environ, **job},
    )
    assert done.returncode == 2
    assert "is not empty" in done.stderr
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["precious.txt"]
