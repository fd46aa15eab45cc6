"""``report --cache``: a second look takes what was kept, and nothing that could be another report's."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bottleneck import pipeline
from bottleneck.cli import _run
from bottleneck.commands import kept_reports
from bottleneck.commands.kept_reports import ReportFolder, ReportParts, key_of
from bottleneck.pipeline import DEFAULTS, explain
from tests.builders import kernel, launch, op, step, write_trace
from tests.samples import SAMPLES


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of kept reports, not there yet."""
    monkeypatch.setattr("bottleneck.harness.machine.cache_folder", lambda: tmp_path / "cache")
    return tmp_path / "cache" / "reports"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two steps of one op that launches one kernel."""
    events = [step(1, 0, 100), step(2, 100, 100)]
    for index, start in enumerate((10, 110)):
        events += [op("aten::relu", start, 20, dims=[[4096, 4096]]), launch(index + 1, start + 5, 5)]
        events.append(kernel(index + 1, start + 20, 51, "vectorized_elementwise_kernel<4, relu>"))
    return write_trace(tmp_path / "trace.json", events)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one whenever a trace is read."""
    found: list[int] = []

    def count(*arguments: Any) -> Any:
        found.append(1)
        return explain(*arguments)

    monkeypatch.setattr(pipeline, "explain", count)
    return found


def report(trace: Path, *options: str, form: str = "json") -> bytes:
    output = trace.parent / f"out.{form}"
    assert _run(["report", str(trace), "--format", form, "-o", str(output), *options]) == 0
    return output.read_bytes()


@pytest.mark.parametrize("form", ["terminal", "markdown", "json", "html"])
def test_each_format_is_the_same_from_what_was_kept(form: str, trace: Path, reads: list[int]) -> None:
    plain = report(trace, form=form)
    assert [report(trace, "--cache", form=form) for _ in range(2)] == [plain, plain]
    assert len(reads) == 2


def test_a_recording_is_kept_with_all_of_its_files(tmp_path: Path, reads: list[int]) -> None:
    recording = tmp_path / "recording"
    recording.mkdir()
    for file in (SAMPLES / "mlp").iterdir():
        (recording / file.name).write_bytes(file.read_bytes())
    plain = report(recording, form="html")
    assert [report(recording, "--cache", form="html") for _ in range(2)] == [plain, plain]
    assert len(reads) == 2
    with (recording / "telemetry.csv").open("a") as file:
        file.write("\n")
    report(recording, "--cache", form="html")
    assert len(reads) == 3


def test_a_page_is_not_made_from_a_report_that_was_kept_without_its_events(trace: Path, reads: list[int]) -> None:
    report(trace, "--cache", form="json")
    assert report(trace, "--cache", form="html") == report(trace, form="html")
    assert len(reads) == 3
    report(trace, "--cache", form="json")
    assert len(reads) == 3


def test_changed_content_is_read_again_though_size_and_time_are_the_same(trace: Path, reads: list[int]) -> None:
    before, status = report(trace, "--cache"), trace.stat()
    text = trace.read_bytes()
    trace.write_bytes(text.replace(b'"dur": 51', b'"dur": 49').replace(b'"dur":51', b'"dur":49'))
    os.utime(trace, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (trace.stat().st_size, trace.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    after = report(trace, "--cache")
    assert len(reads) == 2
    assert after == report(trace) != before


@pytest.mark.parametrize("options", [["--all"], ["--steps", "0:1"], ["--device", "NVIDIA A30"], ["--window", "20us:"]])
def test_other_options_are_read_again(options: list[str], trace: Path, reads: list[int]) -> None:
    report(trace, "--cache")
    assert report(trace, "--cache", *options) == report(trace, *options)
    assert len(reads) == 3


def test_the_number_of_processes_does_not_matter(trace: Path, reads: list[int]) -> None:
    report(trace, "--cache", "-j", "1")
    report(trace, "--cache", "-j", "2")
    assert len(reads) == 1


def test_a_report_that_other_code_made_is_not_used(
    trace: Path, reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    report(trace, "--cache")
    monkeypatch.setattr(kept_reports, "_code", lambda: "another version")
    report(trace, "--cache")
    assert len(reads) == 2


def _cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _flip(data: bytes) -> bytes:
    return data[:-40] + bytes([data[-40] ^ 1]) + data[-39:]


def _empty(_data: bytes) -> bytes:
    return b""


def _pickled(_data: bytes) -> bytes:
    return b"\x80\x04cos\nsystem\n(X\x04\x00\x00\x00truetR."


@pytest.mark.parametrize("damage", [_cut, _flip, _empty, _pickled])
def test_a_damaged_file_is_told_and_the_trace_read_again(
    damage: Callable[[bytes], bytes],
    trace: Path,
    folder: Path,
    reads: list[int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = report(trace, "--cache")
    (kept,) = folder.iterdir()
    kept.write_bytes(damage(kept.read_bytes()))
    capsys.readouterr()
    assert report(trace, "--cache") == plain
    assert "warning: the kept report of" in capsys.readouterr().err
    assert report(trace, "--cache") == plain
    assert len(reads) == 2, "the damaged file was not replaced"


def test_the_file_of_another_trace_is_not_taken(trace: Path, folder: Path, tmp_path: Path) -> None:
    report(trace, "--cache")
    (kept,) = folder.iterdir()
    data = kept.read_bytes()
    other = write_trace(tmp_path / "other.json", [op("aten::relu", 0, 20), launch(1, 5, 5), kernel(1, 20, 5)])
    report(other, "--cache")
    (others,) = set(folder.iterdir()) - {kept}
    others.write_bytes(data)
    assert report(other, "--cache") == report(other)


def test_a_folder_that_cannot_be_written_costs_no_report(
    trace: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.parent.write_text("a file where the folder should be")
    assert report(trace, "--cache") == report(trace)
    assert "is not kept: " in capsys.readouterr().err


def test_a_trace_that_changes_while_it_is_read_is_not_kept(
    trace: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def read(*arguments: Any) -> Any:
        explained = explain(*arguments)
        trace.write_bytes(trace.read_bytes() + b"\n")
        return explained

    monkeypatch.setattr(pipeline, "explain", read)
    report(trace, "--cache")
    assert not folder.exists()
    assert "changed while it was read" in capsys.readouterr().err


def test_writers_and_readers_at_once_see_whole_files_only(trace: Path, folder: Path) -> None:
    key, parts = str(key_of([trace], DEFAULTS)), ReportParts(explain([trace]).analysis, None, has_tracks=False)
    kept = ReportFolder(folder)
    kept.write(key, parts)

    def work(_number: int) -> object:
        kept.write(key, parts)
        found = kept.read(key)
        return found and found.analysis

    with ThreadPoolExecutor(8) as pool:
        assert set(map(repr, pool.map(work, range(64)))) == {repr(parts.analysis)}
    assert len(list(folder.iterdir())) == 1


def test_the_oldest_files_are_removed(trace: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_reports, "_MOST_KEPT", 2)
    for options in ([], ["--all"], ["--steps", "0:1"]):
        report(trace, "--cache", *options)
    assert len(list(folder.iterdir())) == 2


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_has_no_key(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert key_of([tmp_path / "pipe"], DEFAULTS) is None


def test_an_export_says_that_it_is_never_kept(trace: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["report", str(trace), "--cache", "-o", str(trace.parent / "annotated.json.gz")]) == 0
    assert "--cache is ignored" in capsys.readouterr().err
    assert not folder.exists()
