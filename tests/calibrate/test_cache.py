"""Ceilings for a run: those that are kept, or measured by a helper process; a failure is reported and stops nothing."""

import dataclasses
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bottleneck.calibrate import cache
from bottleneck.calibrate.cache import cpu_calibration, write_calibration
from bottleneck.calibrate.calibration import Calibration
from bottleneck.harness.machine import cpu_facts
from bottleneck.schema.analysis import Caveat
from bottleneck.schema.device import Device
from bottleneck.schema.recording import RankTrace, Recording, read_recording, write_recording
from tests.calibrate.test_calibration import NOISY, made

AGAIN = "; to try again: bottleneck calibrate"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@dataclass
class Helper:
    """Stands in for the helper process: what it was started with, and what it leaves."""

    leaves: Calibration | None = None
    stderr: str = ""
    commands: list[list[str]] = field(default_factory=list)
    streams: list[Any] = field(default_factory=list)

    def run(self, command: list[str], **more: Any) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        self.streams.append(more["stderr"])
        if self.leaves is not None:
            write_calibration(self.leaves)
        return subprocess.CompletedProcess(command, 0 if self.leaves else 4, "", self.stderr)


@pytest.fixture
def helper(monkeypatch: pytest.MonkeyPatch) -> Helper:
    helper = Helper(made())
    monkeypatch.setattr(cache.subprocess, "run", helper.run)
    return helper


def minutes_ago(minutes: float) -> str:
    return (datetime.now(UTC) - timedelta(minutes=minutes)).isoformat(timespec="seconds")


def test_what_is_kept_is_not_measured_again(helper: Helper) -> None:
    write_calibration(made())
    messages: list[str] = []
    assert cpu_calibration(2, messages.append) == made()
    assert (helper.commands, messages) == ([], [])


def test_what_is_missing_is_measured_by_the_command_that_users_have(helper: Helper) -> None:
    messages: list[str] = []
    assert cpu_calibration(2, messages.append) == made()
    ((python, *arguments),) = helper.commands
    assert python == sys.executable
    assert arguments[:6] == ["-P", "-m", "bottleneck.cli", "calibrate", "--short", "--device"]
    assert arguments[6:9] == ["cpu", "--threads", "2"]
    assert "once" in messages[0]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_shows_where_ours_would(helper: Helper, monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)
    cpu_calibration(2, lambda text: None)
    assert ("--quiet" in helper.commands[0]) is not is_terminal
    assert helper.streams == [None if is_terminal else subprocess.PIPE]


@pytest.mark.parametrize(("minutes", "runs"), [(30.0, 0), (25 * 60.0, 1)])
def test_a_disturbed_result_is_improved_on_but_not_at_every_run(helper: Helper, minutes: float, runs: int) -> None:
    write_calibration(made(caveats=NOISY, created=minutes_ago(minutes)))
    messages: list[str] = []
    cpu_calibration(2, messages.append)
    assert len(helper.commands) == runs == len(messages)
    assert all("busy the last time" in text for text in messages)


@pytest.mark.parametrize(
    ("changes", "threads", "words"),
    [
        ({}, 1, "again, for 1 thread instead of 2"),
        ({"torch": "1.0"}, 2, "again, for torch "),
        ({"identity": "another"}, 2, "another CPU"),
        ({"is_default": False}, None, "other processors than the last time"),
    ],
)
def test_a_repeated_measurement_is_announced_with_its_reason(
    helper: Helper, changes: dict[str, Any], threads: int | None, words: str
) -> None:
    write_calibration(made(**changes))
    messages: list[str] = []
    cpu_calibration(threads, messages.append)
    assert words in messages[0] and "once" not in messages[0]


def test_no_measurement_is_announced_where_there_is_no_torch(helper: Helper, monkeypatch: pytest.MonkeyPatch) -> None:
    write_calibration(made(torch="1.0"))
    assert cache.reason_to_measure(2) is not None
    monkeypatch.setattr(cache, "torch_version", lambda: "")
    assert cache.reason_to_measure(2) is None


def test_a_measurement_after_an_interrupted_one_says_so(helper: Helper, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(cache.subprocess, "run", interrupt)
        with pytest.raises(KeyboardInterrupt):
            cpu_calibration(2, lambda text: None)
    messages: list[str] = []
    cpu_calibration(2, messages.append)
    assert "again, since it was interrupted the last time" in messages[0]
    assert cache.reason_to_measure(2) is None


def test_a_quiet_measurement_says_only_that_it_failed(helper: Helper) -> None:
    messages: list[str] = []
    assert cpu_calibration(2, messages.append, is_quiet=True) is not None and messages == []
    cache.calibration_file(made()).unlink()
    helper.leaves, helper.stderr = None, "error: torch cannot be imported"
    assert cpu_calibration(2, messages.append, is_quiet=True) is None
    assert messages == [f"this CPU could not be measured: torch cannot be imported{AGAIN}"]


def test_a_failure_is_reported_with_its_reason(helper: Helper) -> None:
    helper.leaves, helper.stderr = None, "error: torch cannot be imported\n  why: something\n"
    messages: list[str] = []
    assert cpu_calibration(2, messages.append) is None
    assert messages[-1] == f"this CPU could not be measured: torch cannot be imported{AGAIN}"


def test_a_result_that_was_not_kept_is_reported(helper: Helper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "read_calibration", lambda threads: None)
    messages: list[str] = []
    assert cpu_calibration(2, messages.append) is None
    assert messages[-1].endswith(f"could not be kept in the user's cache{AGAIN}")


def test_a_helper_that_dies_silently_is_reported_by_its_status(helper: Helper) -> None:
    helper.leaves = None
    messages: list[str] = []
    assert cpu_calibration(2, messages.append) is None
    assert messages[-1].endswith(f"it ended with status 4{AGAIN}")


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

    monkeypatch.setattr(cache, "cpu_calibration", calibration)
    return asked


def test_a_recording_gets_the_ceilings_of_this_cpu(tmp_path: Path, asked: list[int | None]) -> None:
    write_recording(tmp_path, BLOCK)
    cache.add_ceilings(tmp_path, print)
    found = read_recording(tmp_path)
    assert (found.device, found.warnings, asked) == (DEVICE, ("doubtful",), [2])
    cache.add_ceilings(tmp_path, print)
    assert asked == [2]


@pytest.mark.parametrize(
    "changes",
    [
        {"versions": {"cpu": "another"}},
        {"versions": {}},
        {"traces": ()},
        {"device": DEVICE},
        {"device_facts": ({"name": "NVIDIA H100"},)},
    ],
    ids=["of another machine", "of an unknown one", "no trace", "has them", "of a GPU"],
)
def test_any_other_recording_stays_as_it_is(tmp_path: Path, asked: list[int | None], changes: dict[str, Any]) -> None:
    recording = dataclasses.replace(BLOCK, **changes)
    write_recording(tmp_path, recording)
    cache.add_ceilings(tmp_path, print)
    assert read_recording(tmp_path) == recording
    assert asked == []


def test_a_trace_or_a_folder_without_recording_is_left_alone(tmp_path: Path, asked: list[int | None]) -> None:
    cache.add_ceilings(tmp_path, print)
    cache.add_ceilings(tmp_path / "trace.json", print)
    assert asked == []
