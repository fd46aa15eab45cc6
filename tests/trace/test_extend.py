"""A copy of a trace holds every event of it unchanged, with more behind them, and is sound where the trace was not."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from bottleneck.errors import TraceError
from bottleneck.trace.extend import extend_trace
from tests.builders import kernel, launch, op, step, write_trace
from tests.samples import recordings

OURS = {"ph": "X", "name": "ours", "ts": 1}


def extended(path: Path) -> Any:
    return json.loads(b"".join(extend_trace(path, [json.dumps(OURS).encode()])))


def written(path: Path, text: bytes) -> Path:
    path.write_bytes(text)
    return path


EVENTS = [step(1, 0, 100), op("aten::relu", 10, 20), launch(1, 15, 5), kernel(1, 30, 50)]
LIST = json.dumps(EVENTS).encode()


def test_the_events_of_the_trace_come_first_and_unchanged(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "trace.json", EVENTS)
    original, copy = json.loads(path.read_text()), extended(path)
    assert copy.pop("traceEvents") == [*original.pop("traceEvents"), OURS]
    assert copy == original


@pytest.mark.parametrize("recording", recordings(), ids=lambda path: path.name)
def test_a_recorded_trace_is_copied_whole(recording: Path) -> None:
    path = next(recording.glob("trace.*.json.gz"))
    original, copy = json.loads(gzip.decompress(path.read_bytes())), extended(path)
    assert copy.pop("traceEvents") == [*original.pop("traceEvents"), OURS]
    assert copy == original


def test_values_before_and_after_the_list_stay(tmp_path: Path) -> None:
    path = written(tmp_path / "t.json", b'{"schemaVersion": 1, "traceEvents": ' + LIST + b', "traceName": "x"}')
    assert extended(path) == {"schemaVersion": 1, "traceEvents": [*EVENTS, OURS], "traceName": "x"}


def test_a_bare_list_stays_one(tmp_path: Path) -> None:
    assert extended(written(tmp_path / "t.json", LIST)) == [*EVENTS, OURS]


def test_an_empty_list_gets_the_new_events_only(tmp_path: Path) -> None:
    assert extended(written(tmp_path / "t.json", b'{"traceEvents": []}')) == {"traceEvents": [OURS]}
    nothing = b"".join(extend_trace(tmp_path / "t.json", []))
    assert json.loads(nothing) == {"traceEvents": []}


def test_a_file_that_ends_early_is_closed(tmp_path: Path) -> None:
    text = b'{"schemaVersion": 1, "traceEvents": ' + LIST[:-30]
    copy = extended(written(tmp_path / "t.json", text))
    assert copy == {"schemaVersion": 1, "traceEvents": [*EVENTS[:-1], OURS]}


def test_a_damaged_event_is_repaired_with_all_its_fields(tmp_path: Path) -> None:
    bad = b'{"ph": "X", "cat": "python_function", "name": "C:\\queue\\user.py", "pid": 1, "tid": 1, "ts": 5, "id": 7}'
    copy = extended(written(tmp_path / "t.json", b'{"traceEvents": [' + LIST[1:-1] + b"," + bad + b"]}"))
    assert copy["traceEvents"][:-2] == EVENTS
    assert copy["traceEvents"][-2] == json.loads(bad.replace(b"\\", b"\\\\"))


def test_text_that_is_no_json_around_the_list_is_left_out(tmp_path: Path) -> None:
    path = written(tmp_path / "t.json", b'{"a": NaN, "traceEvents": ' + LIST + b', "b": 1, "c": oops}')
    copy = extended(path)
    assert copy["traceEvents"] == [*EVENTS, OURS]


def test_a_file_without_events_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError):
        extended(written(tmp_path / "t.json", b'{"a": 1}'))
