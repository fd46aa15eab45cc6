"""Ceilings for a run: those that are kept, or measured by a helper process; a failure is told and stops nothing."""

import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bottleneck.calibrate import cached as ceilings
from bottleneck.calibrate.cached import cpu_calibration
from bottleneck.calibrate.calibration import Calibration, write_calibration
from tests.calibrate.test_calibration import NOISY, made


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
    monkeypatch.setattr(ceilings.subprocess, "run", helper.run)
    return helper


def minutes_ago(minutes: float) -> str:
    return (datetime.now(UTC) - timedelta(minutes=minutes)).isoformat(timespec="seconds")


def test_what_is_kept_is_not_measured_again(helper: Helper) -> None:
    write_calibration(made())
    told: list[str] = []
    assert cpu_calibration(2, told.append) == made()
    assert (helper.commands, told) == ([], [])


def test_what_is_missing_is_measured_by_the_command_that_users_have(helper: Helper) -> None:
    told: list[str] = []
    assert cpu_calibration(2, told.append) == made()
    ((python, *arguments),) = helper.commands
    assert python == sys.executable
    assert arguments[:5] == ["-P", "-m", "bottleneck.cli", "calibrate", "--device"]
    assert arguments[5:8] == ["cpu", "--threads", "2"]
    assert "once" in told[0]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_shows_where_ours_would(helper: Helper, monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)
    cpu_calibration(2, lambda text: None)
    assert ("--quiet" in helper.commands[0]) is not is_terminal
    assert helper.streams == [None if is_terminal else subprocess.PIPE]


@pytest.mark.parametrize(("minutes", "runs"), [(1.0, 0), (30.0, 1)])
def test_a_disturbed_result_is_improved_on_but_not_at_every_run(helper: Helper, minutes: float, runs: int) -> None:
    write_calibration(made(caveats=NOISY, created=minutes_ago(minutes)))
    told: list[str] = []
    cpu_calibration(2, told.append)
    assert len(helper.commands) == runs == len(told)
    assert all("busy the last time" in text for text in told)


def test_a_failure_is_told_with_its_reason(helper: Helper) -> None:
    helper.leaves, helper.stderr = None, "error: torch cannot be imported\n  why: something\n"
    told: list[str] = []
    assert cpu_calibration(2, told.append) is None
    assert told[-1] == "bottleneck: this CPU could not be measured: torch cannot be imported"


def test_a_result_that_was_not_kept_is_told(helper: Helper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "read_calibration", lambda threads: None)
    told: list[str] = []
    assert cpu_calibration(2, told.append) is None
    assert told[-1].endswith("could not be kept in the user's cache")


def test_a_helper_that_dies_silently_is_told_by_its_status(helper: Helper) -> None:
    helper.leaves = None
    told: list[str] = []
    assert cpu_calibration(2, told.append) is None
    assert told[-1].endswith("it ended with status 4")
