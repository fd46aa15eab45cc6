"""Counter tracks of a trace are means over its window, and modelled work is held against them."""

from pathlib import Path
from typing import Any

import pytest

from bottleneck.analysis.counter_tracks import hold_against_model, read_counters
from bottleneck.pipeline import analyse
from bottleneck.schema.analysis import Analysis, Coverage, TelemetrySummary, Totals
from bottleneck.schema.records import replace
from bottleneck.trace.read import read_trace
from tests.builders import Event, complete, kernel, launch, op, write_trace
from tests.trace.traces import linked

WORK = [op("aten::relu", 0, 20, dims=[[1000, 1000]]), launch(1, 5, 5), kernel(1, 0, 4000)]
PLACE = "GPU 0 Counters"


def sample(ts: float, name: str, value: Any, place: object = PLACE) -> Event:
    return {"ph": "C", "name": name, "pid": place, "tid": 0, "ts": ts, "args": {name: value}}


def track(name: str, *values: float, place: object = PLACE) -> list[Event]:
    return [sample(1000 * row, name, value, place) for row, value in enumerate(values)]


def counters(folder: Path, *events: Event) -> TelemetrySummary | None:
    return read_counters(linked(folder, [*WORK, *events]))


def test_a_share_is_the_mean_over_the_window(tmp_path: Path) -> None:
    found = counters(tmp_path, *track("SM Active (%)", 100, 50, 50, 0), *track("DRAM BW (%)", 10, 10, 30, 30))
    assert found is not None
    assert found.sm_activity == pytest.approx(0.5)
    assert found.dram_activity == pytest.approx(0.2)
    assert found.tensor_activity is None
    assert found.samples == 8


def test_names_of_nvidias_metrics_are_known(tmp_path: Path) -> None:
    found = counters(
        tmp_path,
        *track("sm__cycles_active.avg.pct_of_peak_sustained_elapsed", 80, 80, 80, 80),
        *track("sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_elapsed", 30, 30, 30, 30),
        *track("dram__throughput.avg.pct_of_peak_sustained_elapsed", 60, 60, 60, 60),
    )
    assert found is not None
    assert (found.sm_activity, found.tensor_activity, found.dram_activity) == pytest.approx((0.8, 0.3, 0.6))


def test_reads_and_writes_are_added_up(tmp_path: Path) -> None:
    found = counters(tmp_path, *track("DRAM Read BW (%)", 20, 20, 20, 20), *track("DRAM Write BW (%)", 10, 10, 10, 10))
    assert found is not None and found.dram_activity == pytest.approx(0.3)


def test_power_and_temperature_are_medians(tmp_path: Path) -> None:
    found = counters(
        tmp_path, sample(1, "Power (W)", 300), sample(9, "Power (W)", 200.0), sample(5, "Temperature (C)", 40)
    )
    assert found is not None
    assert (found.power_w, found.temperature_c, found.sm_activity) == (250.0, 40.0, None)


def test_samples_of_less_than_half_of_the_window_say_nothing(tmp_path: Path) -> None:
    assert counters(tmp_path, sample(0, "SM Active (%)", 90), sample(500, "SM Active (%)", 90)) is None


def test_a_device_that_did_not_work_does_not_count(tmp_path: Path) -> None:
    idle = track("SM Active (%)", 0, 0, 0, 0, place="GPU 1 Counters")
    found = counters(tmp_path, *track("SM Active (%)", 80, 80, 80, 80), *idle)
    assert found is not None and found.sm_activity == pytest.approx(0.8)


def test_a_trace_without_known_counters_has_none(tmp_path: Path) -> None:
    assert counters(tmp_path) is None
    assert counters(tmp_path, *track("cpu_percent", 1, 2, 3, 4)) is None


@pytest.mark.parametrize("value", ["text", None, True, [1], 1e300], ids=str)
def test_values_that_are_no_numbers_are_left_out(tmp_path: Path, value: object) -> None:
    trace = read_trace(write_trace(tmp_path / "trace.json", [*WORK, sample(5, "SM Active (%)", value)]))
    assert trace.counters is None


def test_stretches_of_hardware_counters_are_counters_and_no_work_of_the_profiler(tmp_path: Path) -> None:
    events = [
        complete("counters", "hardware_counters", 1000 * row, 1000, pid=0, tid=0, args={"dram__throughput.pct": 40.0})
        for row in range(4)
    ]
    found = counters(tmp_path, *events)
    assert found is not None and found.dram_activity == pytest.approx(0.4)
    trace = read_trace(write_trace(tmp_path / "trace.json", [*WORK, *events]))
    assert trace.events["category"].tolist().count("counter") == 4
    assert "profiler" not in trace.events["category"].tolist()


def _analysis(folder: Path, *events: Event) -> Analysis:
    return analyse([write_trace(folder / "trace.json", [*WORK, *events])])


def test_the_ledger_is_the_same_with_and_without_counters(tmp_path: Path) -> None:
    assert _analysis(tmp_path).ledger == _analysis(tmp_path, *track("SM Active (%)", 90, 90, 90, 90)).ledger


def test_a_report_says_by_how_much_counted_and_modelled_traffic_differ(tmp_path: Path) -> None:
    analysis = _analysis(tmp_path, *track("DRAM BW (%)", 60, 60, 60, 60))
    (caveat,) = [each for each in analysis.caveats if each.slug == "counters-differ"]
    assert analysis.totals.bandwidth_utilization == pytest.approx(8e6 / 3.35e12 / 4e-3, rel=0.05)
    assert "DRAM 60.0 % by the counters, <0.1 % by the model" in caveat.message
    assert "was counted" in caveat.message


def _held(counted: float, low: float, high: float, tensor: tuple[float, float] | None = None) -> list[str]:
    bare = TelemetrySummary(0, None, None, None, None, None, ())
    telemetry = replace(bare, dram_activity=counted, tensor_activity=tensor and tensor[0])
    totals = Totals(*[0.0] * 2, 1.0, 100.0, 100.0 * high / low, *[0.0] * 5, None, None, None, tensor and tensor[1], low)
    return [each.message for each in hold_against_model(telemetry, totals, Coverage(1.0, 0.9, ()))]


def test_counters_within_the_interval_of_the_model_are_silent() -> None:
    assert _held(0.3, 0.2, 0.4) == []
    assert _held(0.5, 0.2, 0.4) == []


def test_tensor_cores_contradict_only_where_the_model_has_more() -> None:
    assert _held(0.3, 0.2, 0.4, (0.9, 0.1)) == []
    (message,) = _held(0.3, 0.2, 0.4, (0.1, 0.5))
    assert "tensor cores 10.0 % by the counters, 50.0 % by the model (5.0 times as much is modelled)" in message
    assert "90.0 % of the busy time" in message
