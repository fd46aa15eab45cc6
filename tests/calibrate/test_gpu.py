"""Calibration of a GPU: its calls on the CPU's torch with a stand-in for events, and what becomes of the readings."""

import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bottleneck.calibrate.calibration import Ceiling
from bottleneck.calibrate.gpu import (
    LAUNCH,
    CudaBench,
    GpuSizes,
    as_device,
    cuda_probes,
    data_sheet,
    identity,
    measure_gpu,
    off_sheet,
    read_gpu_calibration,
    stream_sizes,
)
from bottleneck.calibrate.probes import ClockWatch, NvmlClock, ProbeEffort, driver_version, no_progress, settle
from bottleneck.devices.match import device_by_name
from bottleneck.schema.records import replace
from tests.calibrate.test_calibration import ceiling
from tests.harness.nvml import OTHER_CARD, build, environment

H200 = device_by_name("NVIDIA H200")
V100 = device_by_name("Tesla V100-SXM2-16GB")
FACTS = {
    "index": 0,
    "name": "NVIDIA H200",
    "total_memory": 150_000_000_000,
    "multi_processor_count": 132,
    "major": 9,
    "minor": 0,
    "clock_rate": 1_980_000,
    "L2_cache_size": 62_914_560,
    "uuid": "a serial number",
}
SMALL = GpuSizes((128, 64), 32, 1.0, 1024, 4096, 40, 1e6)
HASTY = ProbeEffort(0.002, most_rounds=2)


class Event:
    """A moment on the host's clock."""

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing
        self.at = 0.0

    def record(self) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        assert self.at

    def elapsed_time(self, end: "Event") -> float:
        return max(1e3 * (end.at - self.at), 1e-6)


class Profile:
    """A profiler that shows fifty kernels of 1.5 to 1.99 us and a copy."""

    def __init__(self, activities: list[str]) -> None:
        assert activities == ["CUDA"]
        kernels = [SimpleNamespace(duration_ns=lambda ns=ns: ns, device_type=_cuda) for ns in range(1500, 2000, 10)]
        others = [SimpleNamespace(duration_ns=lambda: 1, device_type=lambda: "the host")]
        self.profiler = SimpleNamespace(kineto_results=SimpleNamespace(events=lambda: kernels + others))

    def __enter__(self) -> "Profile":
        return self

    def __exit__(self, *_: object) -> None:
        return None


def _cuda() -> object:
    import torch

    return torch.autograd.DeviceType.CUDA


class StandIn:
    """The CPU's torch, which believes that it is a GPU's: tensors that go to the device stay at home."""

    def __init__(self, torch: Any, name: str = "NVIDIA H200") -> None:
        self._torch = torch
        self.asked: list[str] = []
        self.slept = 0
        self.version = SimpleNamespace(cuda="13.0", hip=None)
        self.profiler = SimpleNamespace(profile=Profile, ProfilerActivity=SimpleNamespace(CUDA="CUDA"))
        facts = {key: value for key, value in FACTS.items() if key != "index"} | {"name": name}
        self.cuda = SimpleNamespace(
            Event=Event,
            _sleep=self._sleep,
            synchronize=lambda: None,
            is_available=lambda: True,
            is_initialized=lambda: True,
            device_count=lambda: 1,
            mem_get_info=lambda index: (2**26, 2**27),
            get_device_properties=lambda index: SimpleNamespace(**facts),
            jiterator=SimpleNamespace(_create_jit_fn=lambda code: lambda numbers: numbers * 0.999 + 0.001),
        )

    def _sleep(self, cycles: int) -> None:
        self.slept += cycles

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._torch, name)
        if name in {"rand", "randn", "randint", "empty", "ones", "zeros"}:
            self.asked.append(name)
            return lambda *sizes, **more: found(
                *sizes, **{key: given for key, given in more.items() if key != "device"}
            )
        return found


@pytest.fixture
def torch() -> StandIn:
    return StandIn(pytest.importorskip("torch"))


def bench(torch: StandIn) -> CudaBench:
    return CudaBench(torch, "cuda:0", 2.0**26, 2.0**14, SMALL)


def test_every_call_is_one_that_torch_knows(torch: StandIn) -> None:
    outcome = settle(list(cuda_probes(bench(torch))), HASTY, ClockWatch(lambda: 1500.0))
    assert {"fp32 product", "tf32 product", "bf16 product", "fp16 product", "fp64 product"} <= outcome.measured.keys()
    assert {"fp32 multiply-add", "L2 stream", "DRAM stream", "enqueue by the host"} <= outcome.measured.keys()
    assert {"host to device, pageable", "device to host, pageable"} <= outcome.measured.keys()
    # What only a GPU has is missing here, with a reason, and stops nothing.
    assert outcome.missing.keys() <= {"fp8 product", "int8 product", *(f"{way}, pinned" for way in LINKED)}
    assert all(outcome.missing.values())
    assert 1e6 / outcome.measured[LAUNCH].rate == pytest.approx(1.541, abs=0.01)  # a tenth of the kernels is shorter
    assert all(each.rate > 0 for each in outcome.measured.values())


LINKED = ("host to device", "device to host")


def test_data_are_random_and_never_zeros(torch: StandIn) -> None:
    settle(list(cuda_probes(bench(torch))), HASTY, ClockWatch(lambda: None))
    assert {"rand", "randn", "randint"} <= set(torch.asked) and "zeros" not in torch.asked


def test_the_device_sleeps_until_a_batch_is_queued(torch: StandIn) -> None:
    take = bench(torch).batch(lambda: None, calls=100)
    take(lambda: None)
    assert torch.slept >= 100 * 10_000


def test_a_batch_tells_the_seconds_of_one_call_and_the_clock_is_read_while_it_runs(torch: StandIn) -> None:
    order: list[str] = []
    torch.cuda.Event = type(
        "Timed",
        (),
        {
            "__init__": lambda self, enable_timing: None,
            "record": lambda self: order.append("record"),
            "synchronize": lambda self: order.append("wait"),
            "elapsed_time": lambda self, end: 50.0,
        },
    )
    seconds = bench(torch).batch(lambda: order.append("call"), calls=2)(lambda: order.append("look"))
    assert seconds == pytest.approx(0.025)
    assert order == ["record", "call", "call", "record", "look", "wait"]


def test_fp32_is_not_rounded_unless_tf32_is_asked_for_and_the_setting_is_put_back(torch: StandIn) -> None:
    seen: list[str] = []
    matmul = SimpleNamespace(fp32_precision="the user's")
    torch.backends = SimpleNamespace(cuda=SimpleNamespace(matmul=matmul))
    torch.mm = lambda left, right, out: seen.append(matmul.fp32_precision)
    probes = {probe.ceiling: probe for probe in cuda_probes(bench(torch))}
    for name, precision in (("fp32 product", "ieee"), ("tf32 product", "tf32"), ("bf16 product", "the user's")):
        seen.clear()
        probes[name].prepare()(lambda: None)
        assert set(seen) == {precision}
    assert matmul.fp32_precision == "the user's"


def test_a_dtype_that_the_device_hardly_does_is_measured_small(torch: StandIn) -> None:
    slow = replace(bench(torch), sizes=replace(SMALL, product_s=0.0))
    ways = {probe.how for probe in cuda_probes(slow) if probe.ceiling == "fp64 product"}
    assert ways == {"32 x 32"}


def test_sizes_leave_a_small_device_its_memory(torch: StandIn) -> None:
    poor = replace(bench(torch), free_bytes=2.0**18)
    assert max(stream_sizes(poor).values()) <= 2.0**16
    assert {probe.how for probe in cuda_probes(poor) if probe.ceiling == "fp64 product"} == {"32 x 32"}
    rich = CudaBench(torch, "cuda:0", 140e9, 62_914_560.0)
    sizes = stream_sizes(rich)
    assert sizes["L2"] < rich.cache_bytes < sizes["4 x L2"] < sizes["DRAM"] / 8


class TestMeasured:
    @pytest.fixture
    def made(self, torch: StandIn, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        return measure_gpu(torch, 0, HASTY, no_progress, SMALL)

    def test_it_is_a_measured_device_with_the_data_sheet_behind_it(self, made: Any) -> None:
        assert (made.device.name, made.device.source, made.device.kind) == ("NVIDIA H200", "measured", "cuda")
        assert made.device.peaks_flops_per_s.keys() == H200.peaks_flops_per_s.keys()
        assert made.device.peaks_flops_per_s["fp4_tensor" if "fp4_tensor" in H200.peaks_flops_per_s else "fp8_tensor"]
        assert made.device.sm_count == 132 and made.device.special_ops_per_s == H200.special_ops_per_s

    def test_a_cpu_falls_short_of_an_h200_and_that_is_said_by_name(self, made: Any) -> None:
        (caveat,) = (caveat for caveat in made.caveats if caveat.slug == "off-data-sheet")
        assert "bf16 product <0.1 %" in caveat.message and "DRAM stream" in caveat.message

    def test_neither_serial_number_nor_file_betrays_which_device_it_was(self, made: Any) -> None:
        assert "serial" not in made.identity and "name=NVIDIA H200" in made.identity

    def test_a_run_finds_it_where_all_devices_are_alike(self, made: Any) -> None:
        from bottleneck.calibrate.cache import gpu_calibration, write_calibration

        assert gpu_calibration([FACTS]) is None
        write_calibration(replace(made, driver=driver_version()))
        found = gpu_calibration([FACTS, {**FACTS, "index": 1, "uuid": "another"}])
        assert found is not None and found.device == made.device
        assert gpu_calibration([FACTS, {**FACTS, "name": "NVIDIA L4"}]) is None
        assert gpu_calibration([]) is None

    def test_it_is_found_again_by_what_the_program_saw_of_the_device(self, made: Any) -> None:
        from bottleneck.calibrate.cache import write_calibration

        write_calibration(made)
        assert read_gpu_calibration(identity(FACTS), made.driver) == made
        assert read_gpu_calibration(identity(FACTS), "another driver") is None
        assert read_gpu_calibration(identity({**FACTS, "clock_rate": 1_700_000}), made.driver) is None


def device_of(*ceilings: Ceiling, sheet: Any = H200) -> Any:
    return as_device(sheet, FACTS, ceilings)


def product(dtype: str, value: float, **more: object) -> Ceiling:
    return ceiling(f"{dtype} product", "matrix", value, "FLOP/s", **more)


class TestDevice:
    def test_what_was_measured_replaces_the_data_sheet_and_nothing_else(self) -> None:
        device = device_of(product("bf16", 790e12, clock_mhz=1500.0), ceiling("DRAM stream", "memory", 4.3e12, "B/s"))
        assert device.peaks_flops_per_s == {**H200.peaks_flops_per_s, "bf16_tensor": 790e12}
        assert (device.bandwidth_bytes_per_s, device.link_bytes_per_s) == (4.3e12, H200.link_bytes_per_s)
        assert device.ridge_flops_per_byte["bf16_tensor"] == pytest.approx(790 / 4.3)
        assert device.peak_clocks_mhz == {**H200.peak_clocks_mhz, "bf16_tensor": 1500.0}

    def test_products_are_no_ceiling_of_the_vector_units_unless_they_beat_the_data_sheet(self) -> None:
        sheet = H200.peaks_flops_per_s["fp32_vector"]
        assert device_of(product("fp32", 0.8 * sheet)).peaks_flops_per_s["fp32_vector"] == sheet
        assert device_of(product("fp32", 1.1 * sheet)).peaks_flops_per_s["fp32_vector"] == 1.1 * sheet

    def test_chains_of_multiply_adds_are(self) -> None:
        chains = ceiling("fp32 multiply-add", "vector", 60e12, "FLOP/s")
        assert device_of(chains, product("fp32", 50e12)).peaks_flops_per_s["fp32_vector"] == 60e12
        assert device_of(chains, product("fp32", 61e12)).peaks_flops_per_s["fp32_vector"] == 61e12

    def test_a_dtype_without_units_of_its_own_gives_no_peak(self) -> None:
        device = device_of(product("bf16", 12e12), product("tf32", 12e12), sheet=V100)
        assert device.peaks_flops_per_s.keys() == V100.peaks_flops_per_s.keys()

    def test_a_device_that_no_table_knows_has_what_was_measured(self) -> None:
        stranger = replace(H200, peaks_flops_per_s={}, bandwidth_bytes_per_s=None, source=None, peak_clocks_mhz={})
        device = device_of(product("bf16", 1e14), ceiling("DRAM stream", "memory", 1e12, "B/s"), sheet=stranger)
        assert device.peaks_flops_per_s == {"bf16_tensor": 1e14}
        assert (device.source, device.ridge_flops_per_byte) == ("measured", {"bf16_tensor": 100.0})

    def test_the_launch_floor_is_the_profilers_and_the_link_the_faster_direction(self) -> None:
        device = device_of(
            ceiling(LAUNCH, "time", 1.5, "us"),
            ceiling("smallest kernels, back to back", "time", 2.4, "us"),
            ceiling("host to device, pinned", "link", 54e9, "B/s"),
            ceiling("device to host, pinned", "link", 55e9, "B/s"),
            ceiling("host to device, pageable", "link", 99e9, "B/s"),
        )
        assert (device.launch_floor_us, device.link_bytes_per_s) == (1.5, 55e9)


class TestDataSheet:
    def test_a_live_device_is_found_as_one_of_a_trace_is(self, torch: StandIn) -> None:
        device, caveats = data_sheet(torch, FACTS)
        assert (device.name, device.source, caveats) == ("NVIDIA H200", "datasheet", ())

    @pytest.mark.parametrize(
        ("share", "flagged"), [(0.49, True), (0.5, False), (0.8, False), (1.0, False), (1.02, True)]
    )
    def test_only_what_cannot_be_or_is_held_back_is_flagged(self, share: float, flagged: bool) -> None:
        caveats = off_sheet((product("bf16", share * 1e15, nominal=1e15), product("fp8", 1.0)))
        assert [caveat.slug for caveat in caveats] == ["off-data-sheet"] * flagged
        assert all("bf16 product" in caveat.message and "fp8" not in caveat.message for caveat in caveats)


_SENSORS = """
import json
from bottleneck.calibrate.probes import NvmlClock, driver_version
sensors = NvmlClock({"index": 0, "uuid": "%s"})
print(json.dumps([sensors.clock_mhz(), sensors.memory_mhz(), sensors.used_share(), sensors.driver]))
sensors.close()
"""


@pytest.mark.parametrize(
    ("script", "expected"),
    [(["devices 2"], [1755.0, 2619.0, 0.41, ""]), (["devices 0"], [None, None, None, ""])],
    ids=["two", "none"],
)
def test_clocks_come_from_the_card_that_is_measured(tmp_path: Path, script: list[str], expected: list[object]) -> None:
    library, path = build(tmp_path), tmp_path / "script"
    path.write_text("\n".join(script) + "\n")
    done = subprocess.run(
        [sys.executable, "-c", _SENSORS % OTHER_CARD],
        env=environment(library, path),
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == expected


def test_without_a_driver_there_are_no_clocks() -> None:
    sensors = NvmlClock(FACTS)
    assert (sensors.clock_mhz(), sensors.memory_mhz(), sensors.used_share()) == (None, None, None)
    sensors.close()
