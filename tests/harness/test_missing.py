import dataclasses
from pathlib import Path
from typing import Any

import pytest

from bottleneck.calibrate import cached as ceilings
from bottleneck.calibrate import cached as missing
from bottleneck.calibrate.calibration import Calibration
from bottleneck.harness.machine import cpu_facts
from bottleneck.schema.analysis import Caveat, Device
from bottleneck.schema.recording import RankTrace, Recording, read_recording, write_recording

DEVICE = Device("CPU", None, "cpu", 1, {}, 1e9, 1.0, "measured", {})
BLOCK = Recording(
    created="2026-11-21T00:00:00+00:00",
    command=("train.py",),
    form="script",
    step_source="mark",
    program_status=None,
    framework=None,
    versions={"cpu": cpu_facts().identity},
    environment={},
    traces=(RankTrace(0, "trace.rank0.json.gz"),),
    threads=2,
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """The numbers of threads for which ceilings were asked."""
    asked: list[int | None] = []

    def calibration(threads: int | None, _tell: Any) -> Calibration:
        asked.append(threads)
        return Calibration(DEVICE, "", "", 2, True, "", "", 1.0, caveats=(Caveat("noisy-calibration", "doubtful"),))

    monkeypatch.setattr(ceilings, "cpu_calibration", calibration)
    return asked


def test_a_block_gets_the_ceilings_of_this_cpu(tmp_path: Path, asked: list[int | None]) -> None:
    write_recording(tmp_path, BLOCK)
    missing.add_ceilings(tmp_path)
    found = read_recording(tmp_path)
    assert (found.device, found.warnings, asked) == (DEVICE, ("doubtful",), [2])
    missing.add_ceilings(tmp_path)
    assert asked == [2]


@pytest.mark.parametrize(
    "changes",
    [
        {"versions": {"cpu": "another"}},
        {"versions": {}},
        {"traces": ()},
        {"device": DEVICE},
        {"device_facts": ({"name": "NVIDIA H100"},)},
        {"program_status": 0},
    ],
    ids=["of another machine", "of an unknown one", "no trace", "has them", "of a GPU", "of a whole program"],
)
def test_any_other_recording_stays_as_it_is(tmp_path: Path, asked: list[int | None], changes: dict[str, Any]) -> None:
    recording = dataclasses.replace(BLOCK, **changes)
    write_recording(tmp_path, recording)
    missing.add_ceilings(tmp_path)
    assert read_recording(tmp_path) == recording
    assert asked == []


def test_a_trace_or_a_folder_without_recording_is_left_alone(tmp_path: Path, asked: list[int | None]) -> None:
    missing.add_ceilings(tmp_path)
    missing.add_ceilings(tmp_path / "trace.json")
    assert asked == []
