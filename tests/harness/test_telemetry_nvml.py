"""The sampler of NVIDIA devices, through the real pynvml on a stub of the library."""

import subprocess
import sys
from pathlib import Path

import pytest

from bottleneck.harness.nvml import match_sensors
from tests.harness.nvml import CARD, OTHER_CARD, build, environment, tell

SLICES = ("MIG-00000000-0001-0000-0000-000000000000", "MIG-00000000-0002-0000-0000-000000000001")
PLAIN = {
    "sm_clock_mhz",
    "memory_clock_mhz",
    "power_w",
    "average_power_w",
    "energy_j",
    "temperature_c",
    "utilization",
    "memory_used_bytes",
    "throttle_bits",
    "pcie_tx_bytes_per_s",
    "pcie_rx_bytes_per_s",
}
ACTIVITY = {"sm_activity", "tensor_activity", "dram_activity"}


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def old_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("old_nvml"), "-DOLD_DRIVER")


def test_a_device_tells_what_it_has_in_our_units(library: Path, tmp_path: Path) -> None:
    told = tell(library, tmp_path, ["devices 1"])
    assert (told.is_open, told.notes) == (True, [])
    ((sensor, values),) = told.rows[0]
    assert sensor == CARD
    assert values == {
        "sm_clock_mhz": 1755.0,
        "memory_clock_mhz": 2619.0,
        "power_w": 310.5,
        "average_power_w": 300.0,
        "energy_j": 1000.0,
        "temperature_c": 61.0,
        "utilization": pytest.approx(0.41),
        "memory_used_bytes": 5e9,
        "throttle_bits": 4.0,
        "pcie_tx_bytes_per_s": 1e6,
        "pcie_rx_bytes_per_s": 2e6,
    }


def test_each_value_is_read_as_often_as_it_changes(library: Path, tmp_path: Path) -> None:
    told = tell(library, tmp_path, ["devices 1"], ticks=101)
    counts = {column: len(told.of(CARD, column)) for column in PLAIN}
    assert {column for column, count in counts.items() if count == 101} == {"sm_clock_mhz", "power_w", "throttle_bits"}
    assert counts["energy_j"] == counts["utilization"] == 21
    assert counts["temperature_c"] == 3
    assert counts["pcie_tx_bytes_per_s"] == 2


def test_a_driver_whose_calls_are_slow_is_asked_less_often(library: Path, tmp_path: Path) -> None:
    quick, slow = (tell(library, tmp_path, ["devices 1"], ticks=200, cost_s=cost_s) for cost_s in (1e-6, 1e-3))
    # A call of 1 ms may come every 500 ms: 0.2 % of the time.
    assert len(quick.of(CARD, "sm_clock_mhz")) == 200
    assert 5 <= len(slow.of(CARD, "sm_clock_mhz")) <= 9


def test_hopper_tells_the_activity_of_its_parts_and_its_traffic(library: Path, tmp_path: Path) -> None:
    told = tell(library, tmp_path, ["devices 1", "set 0 gpm 1", "set 0 gpm2 38", "set 0 gpm5 12.5", "set 0 gpm20 3"])
    assert told.columns(CARD) == PLAIN | ACTIVITY
    assert set(told.of(CARD, "sm_activity")) == {0.38}
    assert set(told.of(CARD, "tensor_activity")) == {0.125}
    assert set(told.of(CARD, "pcie_tx_bytes_per_s")) == {3 * 2**20}


def test_a_device_without_activity_counters_has_none_rather_than_zero(library: Path, tmp_path: Path) -> None:
    told = tell(library, tmp_path, ["devices 2", "set 0 gpm 1"])
    assert told.columns(CARD) >= ACTIVITY
    assert not told.columns(OTHER_CARD) & ACTIVITY


def test_an_activity_that_one_device_lacks_is_absent(library: Path, tmp_path: Path) -> None:
    told = tell(library, tmp_path, ["devices 1", "set 0 gpm 1", "set 0 gpm5 -1"])
    assert told.columns(CARD) & ACTIVITY == {"sm_activity", "dram_activity"}


UNSUPPORTED = {
    "nvmlDeviceGetClockInfo": {"sm_clock_mhz", "memory_clock_mhz"},
    "nvmlDeviceGetFieldValues": {"power_w"},
    "nvmlDeviceGetPowerUsage": {"average_power_w"},
    "nvmlDeviceGetTotalEnergyConsumption": {"energy_j"},
    "nvmlDeviceGetTemperature": {"temperature_c"},
    "nvmlDeviceGetUtilizationRates": {"utilization"},
    "nvmlDeviceGetPcieThroughput": {"pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s"},
}


@pytest.mark.parametrize(
    ("function", "code"),
    [*((function, 3) for function in UNSUPPORTED), *(("nvmlDeviceGetPowerUsage", code) for code in (2, 4, 13, 25))],
)
def test_what_a_device_does_not_support_is_absent_and_the_rest_is_reported(
    function: str, code: int, library: Path, tmp_path: Path
) -> None:
    told = tell(library, tmp_path, ["devices 1", f"fail {function} {code}"], ticks=2)
    assert told.columns(CARD) == PLAIN - UNSUPPORTED[function]
    assert told.notes == []


@pytest.mark.parametrize(
    ("newer", "column"),
    [
        ("nvmlDeviceGetCurrentClocksEventReasons", "throttle_bits"),
        ("nvmlDeviceGetMemoryInfo_v2", "memory_used_bytes"),
        ("nvmlGpmMetricsGet", "pcie_tx_bytes_per_s"),
    ],
)
def test_an_older_call_takes_the_place_of_one_that_is_not_supported(
    newer: str, column: str, library: Path, tmp_path: Path
) -> None:
    assert column in tell(library, tmp_path, ["devices 1", "set 0 gpm 1", f"fail {newer} 3"], ticks=1).columns(CARD)


def test_a_driver_that_lacks_functions_tells_what_it_can(old_library: Path, tmp_path: Path) -> None:
    told = tell(old_library, tmp_path, ["devices 1", "set 0 gpm 1"], ticks=1)
    assert told.columns(CARD) == PLAIN - {"power_w"}
    assert told.of(CARD, "memory_used_bytes") == [5.5e9]  # the old call counts what the driver keeps for itself


ABSENT = {
    "power 4294967295": "power_w",
    "average_power 4294967295": "average_power_w",
    "energy 18446744073709551615": "energy_j",
    "utilization 4294967295": "utilization",
    "utilization 250": "utilization",
    "memory_used 90e9": "memory_used_bytes",
    "pcie_tx 4294967295": "pcie_tx_bytes_per_s",
    "sm_clock 4294967295": "sm_clock_mhz",
}


@pytest.mark.parametrize("value", ABSENT)
def test_a_value_that_cannot_be_true_is_absent(value: str, library: Path, tmp_path: Path) -> None:
    told = tell(library, tmp_path, ["devices 1", f"set 0 {value}"], ticks=3)
    assert told.columns(CARD) == PLAIN - {ABSENT[value]}


def test_without_a_driver_there_is_nothing_to_sample_and_nothing_to_say(tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("")  # hides one that this machine may have
    told = tell(tmp_path, tmp_path, [])
    assert (told.is_open, told.notes) == (False, [])


@pytest.mark.parametrize("code", [9, 12])
def test_a_driver_that_is_not_loaded_is_passed_over(code: int, library: Path, tmp_path: Path) -> None:
    told = tell(library, tmp_path, ["devices 1", f"fail nvmlInitWithFlags {code}"])
    assert (told.is_open, told.notes) == (False, [])


@pytest.mark.parametrize(("code", "remedy"), [(18, "restart the machine"), (999, "container"), (4, "may not"), (1, "")])
def test_a_driver_that_refuses_is_named_with_what_helps(code: int, remedy: str, library: Path, tmp_path: Path) -> None:
    told = tell(library, tmp_path, ["devices 1", f"fail nvmlInitWithFlags {code}"])
    assert not told.is_open
    (note,) = told.notes
    assert "were not read" in note and remedy in note


def test_no_device_is_no_error(library: Path, tmp_path: Path) -> None:
    told = tell(library, tmp_path, ["devices 0"])
    assert (told.is_open, told.notes) == (False, [])


@pytest.mark.parametrize("code", [6, 15, 16, 28])
def test_a_device_that_is_lost_leaves_the_others(code: int, library: Path, tmp_path: Path) -> None:
    told = tell(library, tmp_path, ["devices 2", f"fail nvmlDeviceGetClockInfo {code} 9 0"], ticks=50)
    (note,) = told.notes
    assert f"{CARD} was lost" in note
    assert 0 < len(told.of(CARD, "sm_clock_mhz")) < 12
    assert len(told.of(OTHER_CARD, "sm_clock_mhz")) == 50


def test_a_device_that_was_lost_before_is_named_and_left_out(library: Path, tmp_path: Path) -> None:
    told = tell(library, tmp_path, ["devices 2", "fail nvmlDeviceGetUUID 15 0 1"])
    (note,) = told.notes
    assert "device 1 cannot be reached" in note
    assert {sensor for tick in told.rows for sensor, _ in tick} == {CARD}


def test_every_device_lost_ends_the_rows_and_not_the_sampler(library: Path, tmp_path: Path) -> None:
    told = tell(library, tmp_path, ["devices 1", "fail * 15 60"], ticks=100)
    assert 0 < len(told.of(CARD, "sm_clock_mhz")) < 50
    assert told.rows[-1] == []


def test_a_driver_that_goes_away_ends_the_sampling_with_a_note(library: Path, tmp_path: Path) -> None:
    told = tell(library, tmp_path, ["devices 2", "fail nvmlDeviceGetClockInfo 1 20"], ticks=50)
    (note,) = told.notes
    assert "went away" in note
    assert told.rows[-1] == []


@pytest.mark.parametrize("code", [10, 17, 20, 21, 29, 999])
def test_an_error_that_may_pass_is_tried_again_but_not_for_ever(code: int, library: Path, tmp_path: Path) -> None:
    told = tell(library, tmp_path, ["devices 1", f"fail nvmlDeviceGetPowerUsage {code} 4"], ticks=100)
    assert told.notes == []
    assert len(told.of(CARD, "average_power_w")) == 2  # two calls went into trying it out
    assert len(told.of(CARD, "sm_clock_mhz")) == 100


def test_a_name_with_odd_bytes_costs_that_device_only(library: Path, tmp_path: Path) -> None:
    told = tell(library, tmp_path, ["devices 2", "set 0 bad_uuid 1"])
    assert {sensor for tick in told.rows for sensor, _ in tick} == {OTHER_CARD}
    assert "cannot be reached" in told.notes[0]


def test_sixteen_devices_share_the_time(library: Path, tmp_path: Path) -> None:
    told = tell(library, tmp_path, ["devices 16"], ticks=100, cost_s=1e-5)
    sensors = {sensor for tick in told.rows for sensor, _ in tick}
    assert len(sensors) == 16
    # 10 us a call, 0.2 % of the time over 16 devices: every 80 ms.
    assert {len(told.of(sensor, "sm_clock_mhz")) for sensor in sensors} <= {24, 25, 26}


def test_a_slice_tells_its_own_memory_and_activity_but_no_power_of_the_whole_card(
    library: Path, tmp_path: Path
) -> None:
    told = tell(library, tmp_path, ["devices 1", "mig 0 2", "set 0 gpm 1", "set 0 gpm2 20"])
    shared = {"sm_clock_mhz", "memory_clock_mhz", "temperature_c", "throttle_bits", "memory_used_bytes"}
    for sensor in SLICES:
        assert told.columns(sensor) >= shared | {"sm_activity"}
        assert not told.columns(sensor) & {"power_w", "average_power_w", "energy_j", "utilization"}
    assert told.columns(CARD) >= {"power_w", "energy_j"}
    assert not told.columns(CARD) & ({"utilization"} | ACTIVITY)


def test_a_card_with_mig_switched_off_is_one_device(library: Path, tmp_path: Path) -> None:
    told = tell(library, tmp_path, ["devices 1", "set 0 has_mig 1"])
    assert {sensor for tick in told.rows for sensor, _ in tick} == {CARD}


def test_the_library_is_shut_down_at_the_end(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv("NVML_STUB_LOG", str(log))
    tell(library, tmp_path, ["devices 1"])
    assert log.read_text() == "shutdown\n"


def test_the_stub_would_catch_a_call_without_a_handle(library: Path, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("devices 1\n")
    code = "import pynvml; pynvml.nvmlInit(); pynvml.nvmlDeviceGetClockInfo(None, 1)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(library, script), capture_output=True, check=False
    )
    assert done.returncode < 0


FACTS = ({"index": 0, "uuid": OTHER_CARD.removeprefix("GPU-")}, {"index": 1, "uuid": CARD.removeprefix("GPU-")})


def test_devices_are_told_apart_by_what_cuda_says_of_them() -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "0,1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert match_sensors(FACTS, environment, [CARD, OTHER_CARD]) == {0: OTHER_CARD, 1: CARD}
    upper = [{"index": 0, "uuid": SLICES[0].removeprefix("MIG-").upper()}]
    assert match_sensors(upper, {}, [CARD, *SLICES]) == {0: SLICES[0]}


ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({"CUDA_VISIBLE_DEVICES": f"{OTHER_CARD},{CARD}"}, {0: OTHER_CARD, 1: CARD}),
        ({"CUDA_VISIBLE_DEVICES": "GPU-00000001"}, {0: OTHER_CARD}),
        ({"CUDA_VISIBLE_DEVICES": "GPU-0000000"}, {}),  # tells two devices, so none
        ({"CUDA_VISIBLE_DEVICES": "1", **ORDER}, {0: OTHER_CARD}),
        ({"CUDA_VISIBLE_DEVICES": "1, 0", **ORDER}, {0: OTHER_CARD, 1: CARD}),
        ({"CUDA_VISIBLE_DEVICES": "1"}, {}),  # CUDA counts the fastest first; which that is, it does not tell
        ({"CUDA_VISIBLE_DEVICES": "1,-1,0", **ORDER}, {0: OTHER_CARD}),
        ({"CUDA_VISIBLE_DEVICES": "1,1", **ORDER}, {}),
        ({"CUDA_VISIBLE_DEVICES": "7", **ORDER}, {}),
        ({"CUDA_VISIBLE_DEVICES": "99999999999999999999", **ORDER}, {}),
        ({"CUDA_VISIBLE_DEVICES": ""}, {}),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, {}),
        ({"CUDA_VISIBLE_DEVICES": "²", **ORDER}, {}),
        ({}, {}),
    ],
    ids=str,
)
def test_what_the_environment_tells_for_certain_is_used_where_cuda_did_not_speak(
    environment: dict[str, str], found: dict[int, str]
) -> None:
    assert match_sensors((), environment, [CARD, OTHER_CARD]) == found


def test_a_slice_is_found_by_its_name() -> None:
    sensors = [CARD, *SLICES]
    assert match_sensors((), {"CUDA_VISIBLE_DEVICES": SLICES[1]}, sensors) == {0: SLICES[1]}


def test_a_single_device_needs_no_telling() -> None:
    assert match_sensors((), {}, [CARD]) == {0: CARD}
    assert match_sensors((), {"CUDA_VISIBLE_DEVICES": "0"}, [CARD]) == {0: CARD}
    assert match_sensors((), {}, []) == {}
