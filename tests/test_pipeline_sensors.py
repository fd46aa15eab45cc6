"""The sensors of a recording in its analysis: laid on the trace's clock, and of the devices that the trace used."""

from dataclasses import replace
from pathlib import Path

import pytest

from bottleneck.pipeline import Options, analyse
from bottleneck.schema.measurements import Timing
from bottleneck.schema.recording import Sampling
from bottleneck.schema.telemetry import HOST, TELEMETRY_FILE, Sample, write_samples
from tests.test_pipeline import ORIGIN_NS, SLOW, gpu_events, record

SAMPLING = Sampling(period_ms=20.0, samples=9, cpu_share=0.01, missed_share=0.0, sensors={0: "GPU-b", 1: "GPU-a"})


def at(us: float, sensor: str = "GPU-b", **values: float) -> Sample:
    return Sample(ORIGIN_NS + round(1000 * us), us / 1e6, sensor, values)


def recorded(folder: Path, *samples: Sample, **more: object) -> Path:
    path = record(folder, gpu_events(), **{"sampling": SAMPLING, **more})
    write_samples(path, samples)
    return path


def test_samples_within_the_steps_of_the_trace_are_told(tmp_path: Path) -> None:
    clocks = [at(-500, sm_clock_mhz=1.0), at(700, sm_clock_mhz=1500.0), at(900, sm_clock_mhz=1700.0)]
    telemetry = analyse([recorded(tmp_path / "r", *clocks, at(9000, sm_clock_mhz=2.0))]).telemetry
    assert telemetry is not None
    assert (telemetry.samples, telemetry.sm_clock_mhz) == (2, 1600.0)


def test_devices_are_those_that_the_trace_used_by_their_uuid(tmp_path: Path) -> None:
    telemetry = analyse([recorded(tmp_path / "r", at(700, "GPU-a", power_w=1.0), at(700, power_w=300.0))]).telemetry
    assert telemetry is not None and telemetry.power_w == 300.0
    unknown = replace(SAMPLING, sensors={})
    assert analyse([recorded(tmp_path / "s", at(700, power_w=1.0), sampling=unknown)]).telemetry is None


def test_the_unprofiled_steps_are_heard_too_unless_the_whole_trace_is_asked_for(tmp_path: Path) -> None:
    span = (ORIGIN_NS - 4_000_000_000, ORIGIN_NS - 2_000_000_000)
    samples = [at(700, HOST, cpu_clock_mhz=2000.0), at(-3e6, HOST, cpu_clock_mhz=1000.0)]
    path = recorded(tmp_path / "r", *samples, timed_ns=span, unprofiled=Timing(990.0, 980.0, 1000.0, 20))
    both, window = analyse([path]).telemetry, analyse([path], Options(whole=True)).telemetry
    assert both is not None and both.samples == 2
    assert window is not None and (window.samples, window.cpu_clock_mhz) == (1, 2000.0)


def test_a_recording_whose_sensors_were_not_read_has_no_telemetry(tmp_path: Path) -> None:
    analysis = analyse([record(tmp_path / "r", gpu_events())])
    assert analysis.telemetry is None
    assert "sensors-unreadable" not in {caveat.slug for caveat in analysis.caveats}


@pytest.mark.parametrize("text", ["", "# bottleneck/telemetry/9\n", "\x00\xff"], ids=["empty", "later", "binary"])
def test_a_log_that_is_none_is_a_caveat_and_no_failure(tmp_path: Path, text: str) -> None:
    path = recorded(tmp_path / "r")
    (path / TELEMETRY_FILE).write_text(text)
    analysis = analyse([path])
    assert analysis.telemetry is None
    assert "sensors-unreadable" in {caveat.slug for caveat in analysis.caveats}


def test_a_throttled_device_is_a_reason_for_slow_kernels(tmp_path: Path) -> None:
    fast = replace(SLOW, peaks_flops_per_s={"fp32_vector": 1e15, "tf32_tensor": 1e15}, bandwidth_bytes_per_s=1e13)
    reasons = {}
    for bits in (0.0, 4.0):
        path = recorded(tmp_path / str(bits), at(700, throttle_bits=bits))
        kernels = analyse([path], Options(device=fast)).kernels
        reasons[bits] = {row.reason for row in kernels if row.op == "aten::relu"}
    assert reasons == {0.0: {"unexplained"}, 4.0: {"clocks: the device was throttled (power cap)"}}


def test_a_low_clock_lowers_the_compute_roof_with_a_caveat(tmp_path: Path) -> None:
    peaks = {"fp32_vector": 1e13, "tf32_tensor": 1e14}
    clocked = replace(SLOW, peaks_flops_per_s=peaks, peak_clocks_mhz=dict.fromkeys(peaks, 2000.0))
    floors = {}
    for mhz in (2000.0, 1000.0):
        analysis = analyse([recorded(tmp_path / str(mhz), at(700, sm_clock_mhz=mhz))], Options(device=clocked))
        told = "low-clocks" in {caveat.slug for caveat in analysis.caveats}
        floors[mhz] = {row.op: row.compute_us for row in analysis.kernels if row.compute_us}
        assert told == (mhz < 2000.0)
    assert floors[2000.0] and floors[1000.0].keys() == floors[2000.0].keys()
    assert all(floors[1000.0][op] >= floors[2000.0][op] for op in floors[2000.0])
    assert floors[1000.0] != floors[2000.0]
