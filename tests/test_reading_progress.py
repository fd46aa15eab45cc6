"""Progress over traces and within a large one: nothing for a short read, lines in a log, and a bar on a terminal."""

import gzip
import io
import os
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


def test_a_named_pipe_is_told_of_since_its_writer_may_not_come(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "trace.json")
    with reading_progress() as tell:
        tell(0, 1, tmp_path / "trace.json")
        tell(0, 1, SAMPLE)
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"bottleneck: {tmp_path}/trace.json is a pipe; reading until its writer closes it"


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


def _read_one(seconds_each: float, pieces: int) -> None:
    """Tells of a trace of so many megabytes, each of which takes so long."""
    now_s = 0.0
    with reading_progress(lambda: now_s) as tell:
        tell(0, 1, Path("large.json"), 0, 0)
        for piece in range(1, pieces + 1):
            now_s += seconds_each
            tell(0, 1, Path("large.json"), piece * 10**6, pieces * 10**6)


def test_a_log_says_how_much_of_a_large_trace_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    _read_one(0.125, 1000)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 12
    assert lines[0] == "bottleneck: 80 of 1,000 MB of large.json read"


def test_a_trace_read_within_two_seconds_says_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _read_one(0.1, 19)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr", terminal := _Terminal())
    _read_one(0.1, 19)
    assert terminal.getvalue() == ""


def test_a_terminal_gets_a_bar_of_the_megabytes_of_a_large_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", terminal := _Terminal())
    _read_one(0.5, 30)
    assert "reading large.json" in terminal.getvalue() and "15/30 MB" in terminal.getvalue()
    assert "explaining large.json" in terminal.getvalue()


@pytest.mark.parametrize("packed", [False, True])
def test_all_bytes_of_a_file_are_told_of(traces: Path, packed: bool) -> None:
    path = traces / "rank0.json.gz"
    if not packed:
        path.write_bytes(gzip.decompress(path.read_bytes()))
    told: list[tuple[int, ...]] = []
    analyse([path], on_trace=lambda *progress: told.append(progress[3:]))
    size = path.stat().st_size
    assert told[0] == () and told[-1] == (size, size)
