"""The recordings of the working folder: listed, and the latest taken where `report` names none."""

import json
import os
import shutil
from datetime import datetime
from pathlib import Path

import pytest

from bottleneck.cli import _run
from bottleneck.commands.runs import _told, latest_recording, recorded_runs

SAMPLE = Path(__file__).parents[1] / "sample_traces" / "matmul"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def recorded(folder: Path, created: str, program: str = "matmul.py") -> Path:
    """A copy of a sample with another time and program."""
    shutil.copytree(SAMPLE, folder)
    file = folder / "recording.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"created": created, "command": [program]}))
    return folder


def test_report_without_arguments_takes_the_latest_by_its_own_time(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(here / "bottleneck-runs" / "new", "2026-03-01T10:00:00+02:00")
    old = recorded(here / "old", "2026-03-01T07:00:00+00:00")
    os.utime(old / "recording.json")  # a copy or a checkout sets it anew
    assert latest_recording() == Path("bottleneck-runs/new")
    assert _run(["report", "--format", "json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["steps"]["count"] > 0
    assert "bottleneck-runs/new" in err


def test_runs_are_listed_latest_first_with_program_and_verdict(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(here / "first", "2026-03-01T08:00:00+00:00", "first.py")
    second = recorded(here / "second", "2026-03-02T08:00:00+00:00", "second.py")
    assert _run(["report", "second", "-o", str(second / "analysis.json")]) == 0
    assert _run(["runs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [lines[0], lines[2]] == ["second/", "first/"]
    assert "second.py" in lines[1] and "compute" in lines[1].lower()
    assert "2026-03-0" in lines[3] and lines[3].endswith("-  first.py")


def test_an_unfinished_run_and_a_broken_recording_say_so(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "killed").mkdir()
    (here / "killed" / ".run.json").write_text("{}")
    (here / "broken").mkdir()
    (here / "broken" / "recording.json").write_text("no")
    recorded(here / "far", "9999-12-31T23:59:59-12:00")
    (here / "else").mkdir()
    assert {(run.folder.name, run.state) for run in recorded_runs()} == {
        ("killed", "not finished: bottleneck report --repair"),
        ("broken", "cannot be read"),
        ("far", "cannot be read"),
    }
    assert _run(["runs"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


@pytest.mark.parametrize("command", ["report", "runs"])
def test_a_folder_without_recordings_is_exit_2_with_what_to_do(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert _run([command]) == 2
    assert "bottleneck run FILE" in capsys.readouterr().err


def test_a_recording_of_today_or_yesterday_is_told_by_its_day() -> None:
    now = datetime(2026, 3, 2, 0, 30).astimezone()
    for created, told in (
        (datetime(2026, 3, 2, 0, 10), "today 00:10"),
        (datetime(2026, 3, 1, 23, 50), "yesterday 23:50"),
        (datetime(2026, 2, 28, 23, 50), "2026-02-28 23:50"),
        (datetime(2026, 3, 3, 0, 0), "2026-03-03 00:00"),
    ):
        assert _told(created.astimezone(), now) == told
