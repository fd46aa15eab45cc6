"""Files that are no PyTorch traces are rejected with one clear error that names their format."""

import io
import json
import os
import pickle
import sqlite3
import tarfile
import zipfile
from pathlib import Path

import pytest

from bottleneck.errors import TraceError
from bottleneck.trace.read import read_trace
from tests.builders import Event, complete, frame, step
from tests.trace.read_files import chain, gzipped, refusal

pytestmark = pytest.mark.usefixtures("read_with_workers_too")


def zipped() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("trace.json", "[]")
        archive.writestr("other.json", "[]")
    return buffer.getvalue()


def tarred() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("trace.json"), io.BytesIO(b""))
    return buffer.getvalue()


def database(path: Path) -> bytes:
    connection = sqlite3.connect(path)
    connection.execute("create table a (b)")
    connection.commit()
    connection.close()
    return path.read_bytes()


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (zipped(), "zip archive"),
        (tarred(), "tar archive"),
        (pickle.dumps([1]), "pickle, which bottleneck never loads"),
        (b"\x28\xb5\x2f\xfd rest", "zstd archive"),
        (b"\x0a\x0f\x08\x00\x12perfetto", "Perfetto"),
        (b"\x7fELF\x02", "ELF program"),
        (b"\x00\x01\x02\x03", "binary file"),
        ("[]".encode("utf-16"), "UTF-16"),
        (gzipped(gzipped(gzipped(b"[]"))), "compressed by gzip more than twice"),
        (b"<!DOCTYPE html><title>Sign in</title>", "HTML"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        (b'[[1.0, "alloc", 512, 3]]', "memory timeline"),
        (b'{"schema": "1.0.1", "nodes": []}', "execution trace"),
        (
            b'{"traceEvents": [{"ph": "X", "cat": "FEE", "name": "f", "ts": 1, "dur": 1}], "viztracer_metadata": {}}',
            "VizTracer",
        ),
        (b'[{"ph": "B", "cat": "dynamo_timed", "name": "f", "ts": 1}]', "torch.compile"),
        (b'[{"ph": "X", "cat": "toplevel,v8", "name": "f", "ts": 1, "dur": 1}]', "Chrome browser"),
        (b'[{"ph": "X", "cat": "Node", "name": "f", "ts": 1, "dur": 1}]', "ONNX Runtime"),
        (b'[{"ph": "X", "name": "f", "ts": 1, "dur": 1}]', "another tool"),
        (b'{"rank": 0, "step_source": "optimizer", "steps": 9}', "the log of a run that bottleneck watched"),
        (b'{"results": [1, 2]}', "JSON without trace events"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_another_format_is_named(tmp_path: Path, data: bytes, kind: str) -> None:
    error = refusal(tmp_path, data)
    assert kind in error.what
    assert error.fix


def test_a_database_is_named(tmp_path: Path) -> None:
    assert "SQLite" in refusal(tmp_path, database(tmp_path / "report.sqlite")).what


@pytest.mark.parametrize("text", ["", " \n\t", "\0\0\0\0"])
def test_a_file_without_content_is_called_empty_or_blank(tmp_path: Path, text: str) -> None:
    assert refusal(tmp_path, text).what.endswith(("is empty", "blanks"))


@pytest.mark.parametrize("text", ["hello", "not json", "nothing"])
def test_what_is_no_json_is_told_so(tmp_path: Path, text: str) -> None:
    told = refusal(tmp_path, text)
    assert told.what.endswith("is not JSON") and told.why == f"unexpected {text[0]!r} at its beginning"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("null", "null"),
        ("3", "a number"),
        ('"x"', "a string"),
        ('{"traceEvents": null}', "null"),
        ('{"traceEvents": {"a": 1}}', "an object"),
        ('{"traceEvents": 7}', "a number"),
    ],
)
def test_the_type_found_in_place_of_the_events_is_named(tmp_path: Path, text: str, found: str) -> None:
    assert f"holds {found} where" in refusal(tmp_path, text).why


@pytest.mark.parametrize(
    "text",
    [
        '{"schemaVersion": 1, "traceEvents": []}',
        '{"schemaVersion": 1, "traceEvents": [], "traceName": "x"}',
        '{"deviceProperties": [], "traceEvents": [\n]}',
        '{"traceEvents": [{"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "ts": 1, "dur": 1}]}',
        json.dumps([step(1, 0, 5)]),
    ],
)
def test_a_trace_whose_window_never_opened_says_so(tmp_path: Path, text: str) -> None:
    error = refusal(tmp_path, text)
    assert "without any op or kernel" in error.what
    assert "never became active" in error.why
    assert "prof.step()" in error.fix


@pytest.mark.parametrize(
    "events",
    [
        [step(6, 0, 5), complete("PyTorch Profiler (0)", "Trace", 0, 9)],
        [frame("train.py(5): main", 0, 9), frame("torch/profiler/profiler.py(342): start_trace", 1, 5)],
    ],
)
def test_an_export_after_the_cycle_has_ended_is_told_where_to_export(tmp_path: Path, events: list[Event]) -> None:
    error = refusal(tmp_path, json.dumps({"schemaVersion": 1, "traceEvents": events}))
    assert "exported after the schedule's cycle has ended" in error.why
    assert "on_trace_ready=" in error.fix and "activities" not in error.fix


@pytest.mark.parametrize("name", ["report.nsys-rep", "report.qdrep"])
def test_a_report_of_nsight_systems_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x01\x00\x02\x03binary")
    with pytest.raises(TraceError, match="is a report of Nsight Systems"):
        read_trace(tmp_path / name)


@pytest.mark.parametrize("text", ["[]", "[\n]", '{"traceEvents": []}', "[", '{"a": 1'])
def test_an_empty_list_that_nothing_marks_as_pytorch_is_refused(tmp_path: Path, text: str) -> None:
    refusal(tmp_path, text)


def test_a_file_of_nothing_but_broken_events_says_that_it_is_broken(tmp_path: Path) -> None:
    error = refusal(tmp_path, json.dumps(chain(3)).replace('"ph"', '"ph'))
    assert "can be read" in error.what
    assert "could not be read even after repair" in error.why


def test_events_without_any_usable_time_are_refused(tmp_path: Path) -> None:
    error = refusal(tmp_path, json.dumps([{**event, "ts": None} for event in chain(3)]))
    assert "3 event(s) without a start time" in error.why


@pytest.mark.parametrize("opening", ["[", '{"a":', '{"traceEvents":[{"args":[', '[{"ph":"X","args":{"a":'])
def test_a_nesting_bomb_is_refused(tmp_path: Path, opening: str) -> None:
    refusal(tmp_path, opening * 200_000)


def test_a_missing_file_a_folder_and_a_device_are_refused_by_name(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "none.json", "no such file"), (tmp_path, "folder"), (Path(os.devnull), "device")):
        with pytest.raises(TraceError, match=reason) as caught:
            read_trace(path)
        assert str(path) in caught.value.what


def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "locked.json"
    path.write_text(json.dumps(chain(1)))
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    with pytest.raises(TraceError, match="permission denied"):
        read_trace(path)


def test_a_pipe_is_read_like_a_file(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "wb") as file:
        file.write(json.dumps(chain(20)).encode())
    trace = read_trace(Path(f"/proc/self/fd/{read_end}"))
    os.close(read_end)
    assert len(trace.events) == 20
