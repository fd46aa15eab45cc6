"""Recording a program in a process of its own: its sensors, its environment, and the reasons why it failed."""

import os
from pathlib import Path

import pytest

from bottleneck.experiment.record_once import Ceilings, ProgramFailed, Recorder
from bottleneck.harness.messages import Notes, Program, RecordOptions

OPTIONS = RecordOptions(steps=1, warmup=0, batch_test=False, option_costs=False, timed_s=0.2)
# It never imports torch: it is timed, not profiled, and its process starts at once.
WORKLOAD = """
import os, sys

def workload(status=0):
    assert os.environ["OMP_NUM_THREADS"] == "3"
    if status:
        print("no data", file=sys.stderr)
        sys.exit(status)
    return lambda: sum(range(200))
"""


def test_ceilings_are_requested_once_for_each_number_of_threads() -> None:
    requested: list[int | None] = []
    ceilings = Ceilings(lambda notes: requested.append(notes.threads))
    for threads in (1, 2, 1, 2):
        ceilings.of(Notes(threads=threads))
    assert requested == [1, 2]


@pytest.mark.process
def test_a_recording_has_the_environment_of_its_process_and_the_sensors(tmp_path: Path) -> None:
    (tmp_path / "step.py").write_text(WORKLOAD)
    folder = tmp_path / "out"
    folder.mkdir()
    recorder = Recorder({**os.environ, "OMP_NUM_THREADS": "3"}, tmp_path, telemetry_s=0.02)
    recording, notes = recorder.record(Program("step.py"), folder, OPTIONS, "times")
    assert recording.unprofiled is not None and recording.unprofiled == notes.unprofiled
    assert recording.environment["OMP_NUM_THREADS"] == "3"
    assert recording.sampling is not None and recording.sampling.samples > 0


@pytest.mark.process
def test_a_program_that_fails_or_leaves_no_trace_is_reported_with_its_last_line(tmp_path: Path) -> None:
    (tmp_path / "step.py").write_text(WORKLOAD)
    recorder = Recorder({**os.environ, "OMP_NUM_THREADS": "3"}, tmp_path)
    with pytest.raises(ProgramFailed) as failed:
        recorder.record(Program("step.py", settings=(("status", "3"),)), tmp_path, OPTIONS)
    assert (failed.value.status, failed.value.reason) == (3, "no data")
    with pytest.raises(ProgramFailed) as without:
        recorder.record(Program("step.py"), tmp_path, OPTIONS, "trace")
    assert without.value.status == 0
