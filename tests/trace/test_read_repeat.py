"""The law of scale, by the trace that the benchmarks repeat: k times the events, each with times and ids of its own."""

from pathlib import Path

import pytest

from benchmarks.repeat import repeat_trace
from bottleneck.trace.read import read_trace
from tests.builders import kernel, launch, op, write_trace
from tests.trace.read_files import check_promises

EVENTS = [op("aten::mm", 10.125, 9, dims=[[2, 3], [3, 4]], external_id=4), launch(5, 12.5, 1), kernel(5, 14.25, 3)]


@pytest.mark.parametrize("first_us", [0.0, 7691357119982.875])
def test_a_repeated_trace_holds_each_event_as_often(tmp_path: Path, first_us: float) -> None:
    events = [{**event, "ts": event["ts"] + first_us} for event in EVENTS]
    one = read_trace(write_trace(tmp_path / "one.json", events))
    times = repeat_trace(tmp_path / "one.json", tmp_path / "many.json", 5000)
    many = read_trace(tmp_path / "many.json")
    check_promises(many)
    assert times > 3
    assert many.counts == {raw: times * count for raw, count in one.counts.items()}
    assert len(many.signatures) == len(one.signatures)
    assert (many.devices, many.facts, many.start_unix_ns) == (one.devices, one.facts, one.start_unix_ns)
    assert many.events["dur_us"].sum() == times * one.events["dur_us"].sum()
    for ids in (many.device_args["correlation"], many.launch_args["correlation"], many.op_args["external_id"]):
        assert ids.is_unique and len(ids) == times
    assert set(many.device_args["correlation"]) == set(many.launch_args["correlation"])


def test_a_public_trace_repeats_too(traces: Path, tmp_path: Path) -> None:
    source = traces / "pytorch+kineto__tb_plugin__test__gpu_metrics_input_at_71530b1.json.gz"
    times = repeat_trace(source, tmp_path / "many.json", 300_000)
    assert read_trace(tmp_path / "many.json").counts == {
        raw: times * count for raw, count in read_trace(source).counts.items()
    }
