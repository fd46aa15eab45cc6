"""The trace file of a window holds what torch's own exporter in Python writes."""

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bottleneck.harness.trace_export import export

torch = pytest.importorskip("torch")
theirs = pytest.importorskip("torch.profiler._chrome_trace_export")

_HERE, _START_NS = 4321, 1_800_000_000_123_456_789


@dataclass(frozen=True)
class _Activity:
    """An activity of the profiler, with what the exporters ask of it."""

    values: Mapping[str, Any]

    def __getattr__(self, name: str) -> Any:
        return lambda: self.values[name]


@dataclass(frozen=True)
class _Results:
    activities: Sequence[Any]

    def trace_activities(self) -> Sequence[Any]:
        return self.activities


def activity(kind: str, name: str, start_us: float, **values: Any) -> _Activity:
    """An activity of 2.5 us on the host unless ``values`` say something else."""
    usual = {
        "type": kind,
        "name": name,
        "timestamp": _START_NS + round(1e3 * start_us),
        "duration": 2500,
        "device_id": _HERE,
        "resource_id": 77,
        "linked_correlation_id": 0,
        "correlation_id": 0,
        "metadata_json": "",
        "flow_id": 0,
        "flow_type": 0,
        "flow_start": False,
        "linked_activity": None,
    }
    return _Activity({**usual, **values})


_COMMS = activity("cpu_op", "record_param_comms", 1, metadata_json='"Collective name": "allreduce"')
_ACTIVITIES = (
    activity("python_function", 'train.py(3): "main" \\ \n', 0),
    activity("cpu_op", "aten::mm", 1, correlation_id=5, metadata_json='"Input Dims": [[2, 2]]', flow_id=3, flow_type=1),
    activity("cuda_runtime", "cudaLaunchKernel", 2, correlation_id=9, flow_id=9, flow_type=2, flow_start=True),
    activity("kernel", "gemm", 3, device_id=0, resource_id=7, linked_correlation_id=5, flow_id=9, flow_type=2),
    activity("kernel", "ncclDevKernel", 3.7, device_id=1, resource_id=-20, duration=-5, linked_activity=_COMMS),
    activity("kernel", "ncclDevKernel", 9, device_id=1, metadata_json='"grid": [1, 1, 1]', linked_activity=_COMMS),
    activity("gpu_memcpy", "Memcpy HtoD", 3, device_id=0, resource_id=-(2**63), correlation_id=4),
    activity("overhead", "buffer request", -3, device_id=-1, resource_id=0),
)


@pytest.mark.parametrize("activities", [_ACTIVITIES, _ACTIVITIES[:1]])
def test_events_are_those_of_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, activities: Sequence[Any]) -> None:
    monkeypatch.setattr("os.getpid", lambda: _HERE)
    monkeypatch.setattr(theirs._time, "time", lambda: _START_NS / 1e9)
    fields = {"record_shapes": "1", "distributedInfo": '{"rank": 3}'}
    path = tmp_path / "ours.json.gz"
    export(torch, _Results(activities), path, fields)
    theirs.export_chrome_trace(_Results(activities), str(tmp_path / "theirs.json"), fields)
    ours, expected = json.loads(gzip.decompress(path.read_bytes())), json.loads((tmp_path / "theirs.json").read_text())
    assert _in_order(ours.pop("traceEvents")) == _in_order(expected.pop("traceEvents"))
    assert ours == {**expected, "traceName": str(path)}


def test_window_without_activities_is_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "empty.json.gz"
    export(torch, _Results(()), path, {})
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    assert [event["name"] for event in events] == ["Record Window End"]


def _in_order(events: Sequence[Mapping[str, Any]]) -> list[str]:
    return sorted(json.dumps(event, sort_keys=True) for event in events)
