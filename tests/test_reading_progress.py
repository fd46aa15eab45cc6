"""Progress over many traces: nothing for a short read, lines in a log, and a bar on a terminal."""

import io
import shutil
from pathlib import Path

import pytest

from bottleneck.commands.reading_progress import reading_progress
from bottleneck.pipeline import analyse

SAMPLE = Path(__file__).parents[1] / "sample_traces" / "mlp" / "trace.rank0.json.gz"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class _FullDisk(io.StringIO):
    def write(self, _: str) -> int:
        raise OSError(28, "No space left on device")


def _read(seconds_each: float, total: int) -> None:
    """Tells of so many traces, each of which takes so long."""
    now_s = 0.0
    with reading_progress(lambda: now_s) as tell:
        for done in range(total):
            tell(done, total, Path(f"rank{done}.json"))
            now_s += seconds_each


def test_a_log_gets_a_line_every_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    _read(0.5, 2001)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 100
    assert lines[-1] == "bottleneck: 2,000 of 2,001 traces read"


def test_a_short_read_says_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    _read(0.1, 15)
    assert capsys.readouterr().err == ""
    terminal = _Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    _read(0.1, 15)
    _read(9.0, 1)
    assert terminal.getvalue() == ""


def test_a_terminal_gets_a_bar_with_the_name_of_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", terminal := _Terminal())
    _read(1.0, 5)
    assert "reading rank4.json" in terminal.getvalue() and "4/5" in terminal.getvalue()


def test_a_full_disk_behind_standard_error_stops_no_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", _FullDisk())
    _read(60.0, 3)


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """A folder of three traces."""
    for rank in range(3):
        shutil.copyfile(SAMPLE, tmp_path / f"rank{rank}.json.gz")
    return tmp_path


def test_each_trace_is_told_of_before_it_is_read(traces: Path) -> None:
    told: list[tuple[int, int, str]] = []
    analyse([traces], on_trace=lambda done, total, path: told.append((done, total, path.name)))
    assert told == [(done, 3, f"rank{done}.json.gz") for done in range(3)]
