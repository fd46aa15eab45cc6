"""`bottleneck report --repair` finishes what a killed run left; without it nothing is changed."""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bottleneck.errors import TraceError
from bottleneck.harness.folder import CLAIM_FILE, LOCK_FILE, RunState, claim
from bottleneck.harness.machine import cpu_facts
from bottleneck.recorder.finish_run import repair
from bottleneck.schema.recording import read_recording
from tests.harness.driver import HANGS_S, driven
from tests.harness.test_finish import leave
from tests.harness.test_folder import PLAN

KILLS = "import os; os.kill(os.getpid(), 9)"
# At which moment the supervisor is killed, and which files it has then made.
MOMENTS = {
    "before it looks at the notes": (
        f"finish_run.finish = lambda *_: exec({KILLS!r})",
        {".partial.trace.rank0.json.gz", ".notes.rank0.json", CLAIM_FILE, LOCK_FILE},
    ),
    "before the recording is written": (
        f"from bottleneck.harness import finish\nfinish.write_recording = lambda *_: exec({KILLS!r})",
        {"trace.rank0.json.gz", "telemetry.csv", ".notes.rank0.json", CLAIM_FILE, LOCK_FILE},
    ),
    "before the notes are removed": (
        f"from bottleneck.harness import finish\nfinish.remove_notes = lambda *_: exec({KILLS!r})",
        {"trace.rank0.json.gz", "telemetry.csv", "recording.json", ".notes.rank0.json", CLAIM_FILE, LOCK_FILE},
    ),
    "before the report": (
        f"finish_run._report = lambda *_: exec({KILLS!r})",
        {"trace.rank0.json.gz", "telemetry.csv", "recording.json", CLAIM_FILE, LOCK_FILE},
    ),
}
TRAINS = """
import os
import torch

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
"""
WINDOW = """
while not torch.autograd._profiler_enabled():
    optimizer.step()
optimizer.step()
print("profiling", os.getpid(), flush=True)
while True:  # a signal just before `signal.pause()` would leave it waiting for the next one
    pass
"""


def run(folder: Path, program: str, setup: str = "") -> "subprocess.Popen[str]":
    (folder / "program.py").write_text(program)
    return subprocess.Popen(
        driven("run", "-o", "recording", "program.py", setup=setup),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def report(folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        driven("report", *options, "recording"), cwd=folder, capture_output=True, text=True, check=False
    )


def names(folder: Path) -> set[str]:
    return {path.name for path in (folder / "recording").iterdir()}


@pytest.mark.process
def test_when_we_are_killed_the_program_saves_and_ends_and_report_finishes_the_work(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with run(tmp_path, TRAINS + WINDOW) as recorded:
        assert recorded.stdout is not None
        word, process = recorded.stdout.readline().split()
        ended = os.pidfd_open(int(process))
        recorded.kill()
        assert (word, recorded.stdout.read()) == ("profiling", "")
    # It can be read once the program has ended, whether or not anybody has asked for its status.
    assert select.select([ended], [], [], HANGS_S)[0]
    os.close(ended)
    left = names(tmp_path)
    done = report(tmp_path)
    assert (done.returncode, done.stdout, names(tmp_path)) == (3, "", left)
    assert "is not finished" in done.stderr and "bottleneck report --repair recording" in done.stderr
    done = report(tmp_path, "--repair")
    assert done.returncode == 0, done.stderr
    assert "was cut off; finishing its recording" in done.stderr
    recording = read_recording(tmp_path / "recording")
    assert recording.program_status is None
    assert "cut off" in recording.warnings[0]
    assert names(tmp_path) == {"recording.json", "trace.rank0.json.gz"}
    assert "cut off" not in report(tmp_path).stderr


@pytest.mark.process
def test_a_kill_at_any_moment_of_the_finish_is_repaired(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    for moment, (setup, left) in MOMENTS.items():
        with run(tmp_path, TRAINS, setup) as recorded:
            _, said = recorded.communicate()
            assert recorded.returncode == -signal.SIGKILL, (moment, said)
        assert names(tmp_path) == left, (moment, said)
        done = report(tmp_path, "--repair")
        assert done.returncode == 0, (moment, done.stderr)
        recording = read_recording(tmp_path / "recording")
        assert (len(recording.traces), recording.program_status) == (1, 0), moment
        assert not [name for name in names(tmp_path) if name.startswith(".")], moment
        shutil.rmtree(tmp_path / "recording")


def test_a_run_that_was_killed_before_anything_was_captured_is_told_so(tmp_path: Path) -> None:
    with run(tmp_path, "import signal; print('ready', flush=True); signal.pause()") as recorded:
        assert recorded.stdout is not None and recorded.stdout.readline() == "ready\n"
        recorded.kill()
        recorded.communicate()
    done = report(tmp_path, "--repair")
    assert done.returncode == 3
    assert "holds no trace" in done.stderr and "Traceback" not in done.stderr


def test_a_run_that_goes_on_is_left_alone(tmp_path: Path) -> None:
    with run(tmp_path, "import signal; print('ready', flush=True); signal.pause()") as recorded:
        assert recorded.stdout is not None and recorded.stdout.readline() == "ready\n"
        done = report(tmp_path)
        assert done.returncode == 3
        assert "is still being recorded" in done.stderr
        recorded.terminate()
        recorded.communicate()
        assert recorded.returncode == 143


def cut_off(folder: Path, state: RunState) -> None:
    """Leaves what a killed run would: its mark, notes and trace."""
    mark = claim(folder)
    assert mark is not None
    mark.note(state)
    mark.release(is_finished=False)
    leave(folder, 0)


def test_a_folder_from_elsewhere_is_finished_in_itself(tmp_path: Path) -> None:
    for name in ("moved", "elsewhere"):
        (tmp_path / name).mkdir()
    cut_off(tmp_path / "moved", RunState(replace(PLAN, folder=str(tmp_path / "elsewhere")), {"A": "b"}, 0.0))
    leave(tmp_path / "moved", 1)
    repair(tmp_path / "moved", _no_waiting)
    assert list((tmp_path / "elsewhere").iterdir()) == []
    recording = read_recording(tmp_path / "moved")
    assert (recording.command, recording.environment) == (("train.py", "--x"), {"A": "b"})


def test_a_recording_that_is_finished_on_another_machine_keeps_its_own_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int | None] = []
    monkeypatch.setattr("bottleneck.calibrate.cache.cpu_calibration", lambda n, _, is_quiet: asked.append(n))
    there = {"cpu": "EPYC Recorded 25 1 1", "python": "3.10.1"}
    for folder, versions in (("there", there), ("here", None)):
        (tmp_path / folder).mkdir()
        state = RunState(PLAN, {}, 0.0, versions=versions, processors=96)
        cut_off(tmp_path / folder, state)
        repair(tmp_path / folder, _no_waiting)
    recording = read_recording(tmp_path / "there")
    assert (recording.versions, recording.processors, recording.device) == (there, 96, None)
    assert read_recording(tmp_path / "here").versions["cpu"] == cpu_facts().identity
    assert len(asked) == 1


@pytest.mark.parametrize("text", ["", "{}", json.dumps({"plan": "{}"})])
def test_a_mark_that_says_nothing_is_taken_away(text: str, tmp_path: Path) -> None:
    (tmp_path / CLAIM_FILE).write_text(text)
    repair(tmp_path, _no_waiting)
    assert list(tmp_path.iterdir()) == []


def test_a_mark_that_leads_elsewhere_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / CLAIM_FILE).symlink_to(tmp_path / "precious")
    (tmp_path / "precious").write_text("mine")
    repair(tmp_path / "folder", _no_waiting)
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_repair_that_the_disk_does_not_take_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_off(tmp_path, RunState(PLAN, {}, 0.0))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bottleneck.harness.finish.write_recording", full)
    with pytest.raises(TraceError, match="cannot be finished") as found:
        repair(tmp_path, _no_waiting)
    assert found.value.why == "No space left on device"
    monkeypatch.undo()
    repair(tmp_path, _no_waiting)
    assert len(read_recording(tmp_path).traces) == 1


def test_a_program_that_still_saves_is_waited_for(tmp_path: Path) -> None:
    # It has its command line when it speaks, not before; and ends with its input, however this test ends.
    saves = [sys.executable, "-c", "print('ready', flush=True); input()", str(tmp_path)]
    with subprocess.Popen(saves, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as saving:
        assert saving.stdout is not None and saving.stdout.readline() == "ready\n"
        cut_off(tmp_path, RunState(PLAN, {}, 0.0, saving.pid))
        waited: list[float] = []

        def wait(seconds: float) -> None:
            waited.append(seconds)
            saving.kill()
            saving.wait()

        repair(tmp_path, wait)
    assert len(waited) == 1
    assert len(read_recording(tmp_path).traces) == 1


def _no_waiting(_seconds: float) -> None:
    raise AssertionError("there is nothing to wait for")
