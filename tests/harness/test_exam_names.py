"""Row 9 of the reliability exam: hostile names leave a trace valid; the files of both exporters can be read."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bottleneck.harness import trace_export
from bottleneck.harness import window as capture
from bottleneck.harness.window import Detail, Guard, ProfilerWindow
from bottleneck.schema.linked_trace import Trace
from bottleneck.trace.read import read_trace

torch = pytest.importorskip("torch")

NAMES = {
    "quote": 'say "hi"',
    "injection": '", "ph": "M", "args": {"name": "theirs"}}, {"x": "',
    "backslash": "C:\\new\\u0041\\",
    "newline": "two\nlines\r\n",
    "controls": "\x01\x07\t\x1b[31m\x7f\x9b",
    "null": "before\x00after",
    "accents": "Überprüfung",
    "ideographs": "日本語",
    "emoji": "🔥🔥",
    "bidi": "\u202eesrever\u200b",
    "script": "</script><script>alert(1)</script>",
    "markup": "[/]$\\frac{$ {{7*7}} %s",
    "formula": "=cmd|' /C calc'!A0",
    "long": "x" * 100_000,
    "empty": "",
    "surrogate": "\ud800",
}


def _work(name: str) -> None:
    with torch.autograd.profiler.record_function(name):
        torch.ones(4, 4) @ torch.ones(4, 4)


def _by_ours(name: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "GUARD", Guard())
    window = ProfilerWindow(torch, Detail())
    assert window.open()
    _work(name)
    window.stop()
    window.export(path)


def _by_torch(name: str, path: Path, _: pytest.MonkeyPatch) -> None:
    with torch.profiler.profile(record_shapes=True) as profiler:
        _work(name)
    profiler.export_chrome_trace(str(path))


def _products(trace: Trace) -> int:
    return int((trace.events["name"].astype(str) == "aten::mm").sum())


@pytest.mark.parametrize(
    "error",
    [AttributeError("flow_id"), UnicodeDecodeError("utf-8", b"\xdb", 0, 1, "invalid continuation byte")],
    ids=type,
)
def test_a_torch_that_does_not_tell_of_its_activities_writes_the_trace_itself(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> None:
        raise error

    monkeypatch.setattr(trace_export, "export", refuses)
    _by_ours("a range", tmp_path / "trace.json.gz", monkeypatch)
    trace = read_trace(tmp_path / "trace.json.gz")
    assert _products(trace) == 1 and "a range" in set(trace.events["name"])


@pytest.mark.parametrize("name", [name for name in NAMES if name != "surrogate"])
def test_our_trace_is_valid_json_and_has_the_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _by_ours(NAMES[name], tmp_path / "trace.json.gz", monkeypatch)
    with gzip.open(tmp_path / "trace.json.gz", "rt", encoding="utf-8") as file:
        document: dict[str, Any] = json.load(file)
    told = {event["name"] for event in document["traceEvents"] if event.get("cat") == "user_annotation"}
    # The C string of a name ends at its first NUL.
    assert told == {NAMES[name].partition("\0")[0]}
    trace = read_trace(tmp_path / "trace.json.gz")
    assert _products(trace) == 1
    # To our reader an event without a name is none, and it says so.
    assert {caveat.slug for caveat in trace.caveats} == ({"skipped-events"} if name == "empty" else set())


@pytest.mark.parametrize("record", [_by_ours, _by_torch])
def test_torch_itself_refuses_a_lone_surrogate(
    record: Callable[[str, Path, pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RuntimeError, match="Cast error"):
        record(NAMES["surrogate"], tmp_path / "trace.json", monkeypatch)
    if capture.GUARD.window is not None:
        capture.GUARD.window.stop()


# What torch's default exporter (2.13) writes for these names is not JSON. For the injection it is, with one more event.
INVALID = {"quote"}


@pytest.mark.parametrize("name", [name for name in NAMES if name != "surrogate"])
def test_a_trace_of_the_default_exporter_is_read_with_its_damage_counted(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace.json"
    _by_torch(NAMES[name], path, monkeypatch)
    try:
        json.loads(path.read_bytes())
        is_valid = True
    except ValueError:
        is_valid = False
    trace = read_trace(path)
    assert _products(trace) == 1
    damage = {caveat.slug for caveat in trace.caveats} & {"repaired-json", "skipped-events"}
    assert bool(damage) is (not is_valid or name == "empty")
    assert is_valid is (name not in INVALID)
