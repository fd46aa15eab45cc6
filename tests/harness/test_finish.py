import dataclasses
import gzip
import json
from pathlib import Path

import pytest

from bottleneck.harness.finish import Ending, finish_recording, measured_spans, read_all_notes
from bottleneck.harness.folder import RankFiles
from bottleneck.harness.machine import usable_processors
from bottleneck.harness.messages import Notes, Plan, Program, RecordOptions, rank_of
from bottleneck.harness.sensors import Telemetry
from bottleneck.schema.measurements import OtherThreads, Timing
from bottleneck.schema.recording import LightWindow, Recording, read_recording
from bottleneck.schema.telemetry import HOST, Sample
from bottleneck.system.files import write_whole

MEASURED = Notes(
    ranks=2,
    step_source="optimizer",
    step_marks_ns=(1000, 2000),
    unprofiled=Timing(100.0, 90.0, 110.0, 20),
    timed_ns=(100, 900),
    profiled=Timing(150.0, 150.0, 150.0, 1),
    threads=1,
    is_complete=True,
)


def leave(folder: Path, rank: int, notes: Notes = MEASURED, trace: bytes | None = b'{"traceEvents": []}') -> None:
    """The files that a child leaves."""
    files = RankFiles(folder, rank)
    write_whole(files.notes, json.dumps(dataclasses.asdict(notes)))
    if trace is not None:
        files.partial.write_bytes(gzip.compress(trace))


def finish(folder: Path, ending: Ending | None = None) -> Recording:
    plan = Plan(str(folder), Program("train.py", form="script"), RecordOptions(warmup=3))
    recording = finish_recording(plan, read_all_notes(folder), ending or Ending(0, 0.0), None)
    assert read_recording(folder) == recording
    return recording


def slower(factor: float) -> Notes:
    return dataclasses.replace(MEASURED, unprofiled=Timing(100.0 * factor, 90.0, 110.0 * factor, 20))


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"RANK": "3", "WORLD_SIZE": "8"}, (3, 8)),
        ({"RANK": "3"}, (3, 1)),
        ({"RANK": "first", "WORLD_SIZE": "8"}, (0, 1)),
        ({"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4"}, (2, 4)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, (0, 1)),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "RANK": "5", "WORLD_SIZE": "8"}, (5, 8)),
        ({}, (0, 1)),
    ],
)
def test_a_process_knows_its_rank_from_its_launcher(environment: dict[str, str], told: tuple[int, int]) -> None:
    assert rank_of(environment) == told


def test_each_rank_keeps_its_own_times_and_the_recording_those_of_the_lowest(tmp_path: Path) -> None:
    leave(tmp_path, 1, slower(2.0))
    leave(tmp_path, 0)
    recording = finish(tmp_path)
    assert [(trace.rank, trace.file) for trace in recording.traces] == [
        (0, "trace.rank0.json.gz"),
        (1, "trace.rank1.json.gz"),
    ]
    assert [trace.unprofiled.median for trace in recording.traces if trace.unprofiled] == [100.0, 200.0]
    assert [trace.timed_ns for trace in recording.traces] == [(100, 900), (100, 900)]
    assert recording.unprofiled == MEASURED.unprofiled
    assert recording.perturbation == 1.5
    assert recording.processors == usable_processors()
    assert recording.warnings == ()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "recording.json",
        "trace.rank0.json.gz",
        "trace.rank1.json.gz",
    ]


def test_a_rank_that_left_nothing_is_named_beside_the_traces_of_the_others(tmp_path: Path) -> None:
    leave(tmp_path, 0)
    recording = finish(tmp_path)
    assert [trace.rank for trace in recording.traces] == [0]
    assert recording.warnings == ("rank 1: the program ended before anything was measured",)


def test_a_trace_that_was_cut_off_takes_no_other_rank_with_it(tmp_path: Path) -> None:
    leave(tmp_path, 0, trace=b'{"traceEvents": [')
    leave(tmp_path, 1, slower(2.0))
    recording = finish(tmp_path)
    assert [trace.rank for trace in recording.traces] == [1]
    assert recording.unprofiled is not None and recording.unprofiled.median == 200.0
    assert recording.warnings[0].startswith("rank 0: the trace is not whole and was left as .partial.trace.rank0")


def test_what_all_ranks_say_is_reported_once_and_without_their_numbers(tmp_path: Path) -> None:
    for rank in range(2):
        leave(tmp_path, rank, dataclasses.replace(MEASURED, warnings=("it is late", f"from {rank}")))
    assert finish(tmp_path).warnings == ("it is late", "rank 0: from 0", "rank 1: from 1")


def test_a_program_of_one_process_is_reported_without_a_rank(tmp_path: Path) -> None:
    leave(tmp_path, 0, dataclasses.replace(MEASURED, ranks=1, is_complete=False), trace=None)
    recording = finish(tmp_path)
    assert recording.traces == ()
    assert recording.warnings == ("the program ended abruptly: only what was already on disk is shown",)


def test_a_measurement_that_cannot_be_is_left_out_and_costs_nothing_else(tmp_path: Path) -> None:
    busy = OtherThreads(wall_s=1.0, cpu_share=7.5, queued_share=0.0)
    leave(tmp_path, 0, dataclasses.replace(MEASURED, ranks=1, other_threads=busy))
    recording = finish(tmp_path)
    assert recording.other_threads is None
    assert recording.unprofiled == MEASURED.unprofiled
    assert recording.warnings == (
        "a measurement was left out: OtherThreads.cpu_share is 7.5, and has to lie between 0 and 1",
    )


def test_a_missing_trace_that_nothing_explains_is_said(tmp_path: Path) -> None:
    leave(tmp_path, 0, dataclasses.replace(MEASURED, ranks=1), trace=None)
    assert finish(tmp_path).warnings == ("no trace was taken",)


def test_the_sensors_are_kept_while_any_rank_measures(tmp_path: Path) -> None:
    leave(tmp_path, 0)
    leave(tmp_path, 1, dataclasses.replace(MEASURED, step_marks_ns=(), timed_ns=(5000, 6000)))
    assert measured_spans(tmp_path) == ((1000, 2000), (100, 900), (5000, 6000))


@pytest.mark.parametrize(("trace", "is_kept"), [(b'{"traceEvents": []}', True), (b'{"traceEv', False)])
def test_the_window_with_the_fewest_options_is_kept_where_it_is_whole(
    tmp_path: Path, trace: bytes, *, is_kept: bool
) -> None:
    files = RankFiles(tmp_path, 0)
    light = LightWindow(files.light.name, (1, 2), MEASURED.unprofiled)
    leave(tmp_path, 0, dataclasses.replace(MEASURED, ranks=1, light=light))
    files.partial_light.write_bytes(gzip.compress(trace))
    assert finish(tmp_path).traces[0].light == (light if is_kept else None)
    assert files.light.exists() is is_kept


def sensed(others_s: float) -> Telemetry:
    """Ten seconds of a program on one processor, beside others that used ``others_s``."""
    samples = tuple(
        Sample(int(1e9 * at_s), at_s, HOST, {"busy_cpu_s": 100 + share * (10 + others_s), "process_cpu_s": 10 * share})
        for at_s, share in ((0.0, 0.0), (10.0, 1.0))
    )
    return Telemetry(samples, (), 0.1, None, None)


def test_other_programs_are_warned_of_by_what_they_used_during_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(tmp_path, 0)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert any("in the minute before" in text for text in finish(tmp_path, Ending(0, 1.6)).warnings)

    leave(tmp_path, 0)
    quiet = finish(tmp_path, Ending(0, 1.6, sensed(2.0), processors=2))
    assert not any("other programs" in text for text in quiet.warnings)

    leave(tmp_path, 0)
    ending = Ending(0, 0.0, sensed(15.0), processors=2)
    (said,) = [text for text in finish(tmp_path, ending).warnings if "other programs" in text]
    assert said == "other programs kept 1.5 of 2 processors busy during the run: step times may be too long"

    leave(tmp_path, 0)
    many = finish(tmp_path, Ending(0, 0.0, sensed(15.0), processors=64))
    assert not any("other programs" in text for text in many.warnings)
