"""Row 30 of the reliability exam: whatever NVML does, the program keeps its status and nothing unknown shows as 0."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bottleneck.schema.telemetry import HOST, read_samples
from tests.harness.nvml import CARD, OTHER_CARD, build
from tests.harness.test_run_telemetry import wait_for

pytestmark = pytest.mark.process

POWER = frozenset({"power_w", "average_power_w", "energy_j"})


@dataclass(frozen=True)
class Case:
    """The script of the stub, the number of samples to wait for, and what must be said, present and absent."""

    script: tuple[str, ...]
    wanted: Mapping[str, int] = field(default_factory=lambda: {"host": 2, "card": 3})
    said: str = ""
    present: frozenset[str] = frozenset({"sm_clock_mhz"})
    absent: frozenset[str] = frozenset()
    library: str = "library"
    environment: Mapping[str, str] = field(default_factory=dict)


HOST_ONLY: Mapping[str, int] = {"host": 2}
NOTHING: frozenset[str] = frozenset()


def _refused(code: int, said: str) -> Case:
    return Case((f"fail nvmlInitWithFlags {code}",), HOST_ONLY, said, NOTHING)


CASES = {
    "no library": Case((), HOST_ONLY, "", NOTHING, library="nowhere"),
    "no permission": _refused(4, "may not read them"),
    "driver not loaded": _refused(9, ""),
    "driver updated": _refused(18, "restart the machine"),
    "unknown error": _refused(999, "container"),
    "no device": Case(("devices 0",), HOST_ONLY, "", NOTHING),
    "slices": Case(("devices 1", "mig 0 2"), absent=frozenset({"utilization"})),
    "virtual": Case(
        (
            "devices 1",
            *(f"fail {name} 3" for name in ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetFieldValues")),
            *(f"fail {name} 3" for name in ("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPcieThroughput")),
        ),
        absent=POWER | {"pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s"},
    ),
    "lost from the start": Case(
        ("devices 2", "fail nvmlDeviceGetUUID 15 0 0"), {"other": 3}, "device 0 cannot be reached", NOTHING
    ),
    "lost at the first sample": Case(("devices 2", "fail nvmlDeviceGetClockInfo 15 5 0"), {"other": 9}, "was lost"),
    "lost later": Case(("devices 2", "fail nvmlDeviceGetClockInfo 15 34 0"), {"other": 150}, "was lost"),
    "to be reset": Case(("devices 2", "fail nvmlDeviceGetTemperature 16 3 0"), {"other": 60}, "was lost"),
    "driver taken away": Case(("devices 1", "fail nvmlDeviceGetClockInfo 1 12"), {"host": 3}, "went away"),
    "slow": Case(("devices 1", "sleep nvmlDeviceGetClockInfo 200000"), {"host": 2, "card": 1}),
    "hangs": Case(("devices 1", "sleep nvmlInitWithFlags 60000000"), HOST_ONLY, "did not answer", NOTHING),
    "one less than counted": Case(
        ("devices 2", "fail nvmlDeviceGetHandleByIndex_v2 6 0 1"), said="device 1 cannot be reached"
    ),
    "odd name": Case(("devices 2", "set 0 bad_uuid 1"), {"other": 3}, "cannot be reached", NOTHING),
    "no memory told": Case(("devices 1", "set 0 memory_used 90e9"), absent=frozenset({"memory_used_bytes"})),
    "function not found": Case(
        ("devices 1", "fail nvmlDeviceGetUtilizationRates 13"), absent=frozenset({"utilization"})
    ),
    "old driver": Case(("devices 1", "set 0 gpm 1"), absent=frozenset({"power_w"}), library="old"),
    "older version": Case(
        ("devices 1", "fail nvmlDeviceGetMemoryInfo_v2 25"), present=frozenset({"memory_used_bytes"})
    ),
    "no sense": Case(("devices 1", "set 0 utilization 250"), absent=frozenset({"utilization"})),
    "sentinel": Case(("devices 1", "set 0 average_power 4294967295"), absent=frozenset({"average_power_w"})),
    "passing time-outs": Case(("devices 1", "fail nvmlDeviceGetTemperature 10 2"), {"card": 9}),
    "counter backwards": Case(("devices 1", "ramp 0 energy -1000"), {"card": 9}, present=frozenset({"energy_j"})),
    "sixteen": Case(("devices 16",), {"card": 3, "other": 3}),
    "other order": Case(
        ("devices 2",), {"card": 3, "other": 3}, environment={"CUDA_VISIBLE_DEVICES": f"{OTHER_CARD},{CARD}"}
    ),
}


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    nowhere = tmp_path_factory.mktemp("nowhere")
    (nowhere / "libnvidia-ml.so.1").write_text("")  # hides one that this machine may have
    return {
        "library": build(tmp_path_factory.mktemp("nvml")),
        "old": build(tmp_path_factory.mktemp("old"), "-DOLD_DRIVER"),
        "nowhere": nowhere,
    }


@pytest.mark.parametrize("name", CASES)
def test_the_program_keeps_its_status_and_the_unknown_is_absent(
    name: str, libraries: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    (tmp_path / "script").write_text("\n".join(case.script) + "\n")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    environment = {"LD_LIBRARY_PATH": str(libraries[case.library]), "NVML_STUB": str(tmp_path / "script")}
    for variable, value in {**environment, **case.environment}.items():
        monkeypatch.setenv(variable, value)
    run = wait_for(tmp_path, **case.wanted)
    assert (run.status, run.stdout, run.stderr) == (3, "[]\n", "")
    assert case.said in run.said
    assert ("NVIDIA" in run.said or CARD in run.said or "sensors" in run.said) is bool(case.said)
    samples = read_samples(run.folder)
    assert any(sample.sensor == HOST for sample in samples) or "host" not in case.wanted
    columns = {column for sample in samples if sample.sensor == CARD for column in sample.values}
    assert columns >= case.present
    assert not columns & case.absent
    if case.environment:
        assert run.recording.sampling is not None
        assert run.recording.sampling.sensors == {0: OTHER_CARD, 1: CARD}


@pytest.mark.sample
def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 25
