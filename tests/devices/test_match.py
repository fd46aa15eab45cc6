"""Matching a device: names checked against properties, slices scaled, unknown parts derived or left unknown."""

from pathlib import Path

import pytest

from bottleneck.devices.match import choose_device, device_by_name, match_device
from bottleneck.errors import UsageError
from bottleneck.schema.device import Device
from bottleneck.schema.linked_trace import DeviceProperties
from bottleneck.trace.read import read_trace
from tests.advice.cases import case_of, cpu_events
from tests.builders import kernel, launch, write_trace

GIB = 2**30


def reported(name: str, sm_count: int, memory_gib: float, capability: str, warp: int = 32) -> DeviceProperties:
    return DeviceProperties(0, name, int(memory_gib * GIB), sm_count, capability, warp)


def match(properties: DeviceProperties, flavour: str = "cuda") -> tuple[Device, list[str]]:
    device, caveats = match_device([properties], [0], flavour)
    return device, [caveat.slug for caveat in caveats]


H100 = reported("NVIDIA H100 80GB HBM3", 132, 79.2, "9.0")


def test_a_name_whose_properties_agree_gives_the_data_sheet() -> None:
    device, caveats = match(H100)
    assert (device.source, caveats) == ("datasheet", [])
    assert device.kind == "cuda" and device.vendor == "NVIDIA"
    assert device.peaks_flops_per_s["bf16_tensor"] == pytest.approx(989.4e12)
    assert device.bandwidth_bytes_per_s == pytest.approx(3352e9)
    assert device.ridge_flops_per_byte["bf16_tensor"] == pytest.approx(295, rel=0.01)
    assert device.special_ops_per_s == pytest.approx(16 * 132 * 1980e6)
    assert device.memory_bytes == H100.memory_bytes


def test_the_longest_name_wins() -> None:
    assert match(reported("NVIDIA H100 NVL", 132, 94, "9.0"))[0].bandwidth_bytes_per_s == pytest.approx(3938e9)
    assert match(reported("NVIDIA L40S", 142, 45, "8.9"))[0].peaks_flops_per_s["bf16_tensor"] > 300e12


def test_plain_h100_is_another_board_than_the_80_gb_one() -> None:
    device, caveats = match(reported("NVIDIA H100", 132, 95, "9.0"))
    assert device.bandwidth_bytes_per_s == pytest.approx(2447e9)
    assert caveats == ["unconfirmed-peaks"]


def test_an_a10_does_not_swallow_an_a100x() -> None:
    device, caveats = match(reported("NVIDIA A100X", 108, 79.2, "8.0"))
    assert device.peaks_flops_per_s["bf16_tensor"] == pytest.approx(312e12)
    assert caveats == ["device-by-fingerprint"]


def test_a_laptop_part_without_a_row_is_its_desktop_namesake_scaled() -> None:
    device, caveats = match(reported("NVIDIA RTX A4000 Laptop GPU", 40, 8, "8.6"))
    assert device.source == "derived" and caveats == ["derived-peaks"]
    assert device.peaks_flops_per_s["bf16_tensor"] == pytest.approx(76.7e12 * 40 / 48)


# Multiprocessors, memory in GiB, GB/s and TFLOP/s of fp32 as NVIDIA lists them.
LAPTOPS = [
    ("NVIDIA GeForce RTX 4090 Laptop GPU", 76, 16, 576, 39.7),
    ("NVIDIA GeForce RTX 4060 Laptop GPU", 24, 8, 256, 14.6),
    ("NVIDIA GeForce RTX 3080 Laptop GPU", 48, 16, 448, 21.0),
    ("NVIDIA GeForce RTX 3050 Laptop GPU", 16, 4, 192, 7.1),
    ("NVIDIA GeForce RTX 5090 Laptop GPU", 82, 24, 896, 45.3),
    ("NVIDIA RTX 5000 Ada Generation Laptop GPU", 76, 16, 576, 42.6),
    ("NVIDIA RTX 4000 Ada Generation Laptop GPU", 58, 12, 432, 33.6),
    ("NVIDIA RTX 3000 Ada Generation Laptop GPU", 36, 8, 256, 19.9),
    ("NVIDIA RTX 2000 Ada Generation Laptop GPU", 24, 8, 256, 14.5),
    ("NVIDIA RTX 1000 Ada Generation Laptop GPU", 20, 6, 192, 12.1),
    ("NVIDIA RTX 500 Ada Generation Laptop GPU", 16, 4, 128, 9.2),
]


@pytest.mark.parametrize(("name", "count", "memory", "bandwidth", "fp32"), LAPTOPS, ids=str)
def test_a_laptop_part_is_not_its_desktop_namesake(
    name: str, count: int, memory: float, bandwidth: float, fp32: float
) -> None:
    device, caveats = match(reported(name, count, 0.97 * memory, "12.0" if " RTX 50" in name else "8.9"))
    assert device.source == "datasheet"
    assert set(caveats) <= {"unconfirmed-peaks"}
    assert device.bandwidth_bytes_per_s == pytest.approx(bandwidth * 1e9)
    assert device.peaks_flops_per_s["fp32_vector"] == pytest.approx(fp32 * 1e12, rel=0.01)


@pytest.mark.parametrize(
    ("query", "name", "bandwidth"),
    [
        ("gaudi3", "Gaudi3", 3670e9),
        ("Ascend 910B3", "Ascend910B3", 1600e9),
        ("Apple M1 Max", "Apple M1 Max", 409.6e9),
        ("m4 pro", "Apple M4 Pro", 273e9),
        ("arc a750", "Intel(R) Arc(TM) A750 Graphics", 512e9),
        ("H20-3e", "NVIDIA H20-3e", 4800e9),
        ("rtx 5070", "NVIDIA GeForce RTX 5070", 672e9),
        ("MI325X", "AMD Instinct MI325X", 6000e9),
        ("MI355X", "AMD Instinct MI355X", 8000e9),
    ],
)
def test_devices_of_other_makers_are_known_by_name(query: str, name: str, bandwidth: float) -> None:
    device = device_by_name(query)
    assert (device.name, device.bandwidth_bytes_per_s) == (name, bandwidth)


def test_a_bigger_board_of_a_longer_name_keeps_nothing_of_the_shorter() -> None:
    device, caveats = match(reported("NVIDIA GeForce RTX 3060 Ti", 38, 7.8, "8.6"))
    assert device.bandwidth_bytes_per_s is None  # 448 GB/s in truth; the RTX 3060's 360 would be too low
    assert device.source == "derived" and caveats == ["derived-peaks"]


def test_a_slice_has_its_part_of_arithmetic_and_bandwidth() -> None:
    device, caveats = match(reported("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 16, 10, "9.0"))
    assert device.peaks_flops_per_s["bf16_tensor"] == pytest.approx(989.4e12 * 16 / 132)
    assert device.bandwidth_bytes_per_s == pytest.approx(3352e9 / 8)
    assert device.source == "derived" and caveats == ["derived-peaks"]


def test_a_partition_of_an_mi300x_is_scaled_by_its_compute_units() -> None:
    device, _ = match(reported("AMD Instinct MI300X", 38, 24, "9.4", 64), "rocm")
    assert device.peaks_flops_per_s["bf16_tensor"] == pytest.approx(1307.4e12 / 8)
    assert device.bandwidth_bytes_per_s == pytest.approx(5325e9 / 8)


def test_less_memory_alone_does_not_lower_the_bandwidth() -> None:
    device, _ = match(reported("NVIDIA A40-12Q", 84, 12, "8.6"))
    assert device.bandwidth_bytes_per_s == pytest.approx(696e9)


def test_a_name_without_properties_is_believed() -> None:
    device, caveats = match_device([DeviceProperties(0, "Tesla T4")], [0], "cuda")
    assert (device.source, device.sm_count, caveats) == ("datasheet", 40, ())


@pytest.mark.parametrize("name", ["Tesla T4", "NVIDIA Tesla T4", " Tesla T4 "])
def test_the_makers_name_may_stand_before_the_part(name: str) -> None:
    assert match(reported(name, 40, 14.6, "7.5"))[0].source == "datasheet"


def test_an_amd_device_without_a_name_is_known_by_its_fingerprint() -> None:
    device, caveats = match(reported("", 304, 192, "9.4", 64), "rocm")
    assert device.name == "AMD Instinct MI300X"
    assert device.source == "datasheet" and caveats == ["device-by-fingerprint"]


def test_the_same_capability_is_another_part_at_another_vendor() -> None:
    device, _ = match(reported("AMD Radeon Graphics", 104, 64, "9.0", 64), "rocm")
    assert device.vendor == "AMD"
    assert device.bandwidth_bytes_per_s == pytest.approx(1638.4e9)


def test_the_gcd_of_an_mi250_is_found_under_the_shared_name() -> None:
    device, _ = match(reported("AMD Instinct MI250X/MI250", 104, 64, "9.0", 64), "rocm")
    assert device.peaks_flops_per_s["bf16_tensor"] == pytest.approx(181e12)


def test_a_virtual_function_has_the_ceilings_of_its_part() -> None:
    device, caveats = match(reported("AMD Instinct MI300X VF", 304, 192, "9.4", 64), "rocm")
    assert device.source == "datasheet" and not caveats


def test_rows_that_fit_an_unknown_name_give_the_higher_ceilings() -> None:
    device, caveats = match(reported("Tesla V100-FHHL-32GB", 80, 31.7, "7.0"))
    assert device.peaks_flops_per_s["fp16_tensor"] == pytest.approx(130e12)
    assert device.source == "derived" and caveats == ["device-by-fingerprint"]


def test_a_part_known_only_by_architecture_has_peaks_but_no_bandwidth() -> None:
    device, caveats = match(reported("NVIDIA RTX A1000 6GB Laptop GPU", 20, 6, "8.6"))
    assert device.peaks_flops_per_s["bf16_tensor"] == pytest.approx(20 * 1024 * 1800e6)
    assert device.bandwidth_bytes_per_s is None and device.ridge_flops_per_byte == {}
    assert device.source == "derived" and caveats == ["derived-peaks"]


def test_a_gtx_board_has_no_tensor_cores() -> None:
    device, _ = match(reported("NVIDIA GeForce GTX 1650", 16, 4, "7.5"))
    assert device.peaks_flops_per_s and not [peak for peak in device.peaks_flops_per_s if peak.endswith("_tensor")]


def test_workgroup_pairs_of_radeon_boards_are_no_mismatch() -> None:
    assert match(reported("AMD Radeon RX 7900 XTX", 48, 24, "11.0"), "rocm")[0].source == "datasheet"


def test_half_of_a_two_tile_xpu_is_scaled() -> None:
    device, _ = match(DeviceProperties(0, "Intel(R) Data Center GPU Max 1550", 64 * GIB, 64), "xpu")
    assert device.kind == "xpu"
    assert device.bandwidth_bytes_per_s == pytest.approx(3276.8e9 / 2)


@pytest.mark.parametrize("properties", [[], [DeviceProperties(0, "Ascend 910B")]], ids=["nothing known", "stranger"])
def test_an_unknown_device_has_no_ceilings_and_says_what_to_pass(properties: list[DeviceProperties]) -> None:
    device, caveats = match_device(properties, [0], "npu")
    assert (device.peaks_flops_per_s, device.bandwidth_bytes_per_s, device.source) == ({}, None, None)
    assert [caveat.slug for caveat in caveats] == ["unknown-device"]
    assert "--device" in caveats[0].message and "--peaks" in caveats[0].message


@pytest.mark.parametrize(
    ("name", "option", "ridge"),
    [
        ("volta_sgemm_128x64_nt", "--device 'Tesla V100-SXM2-16GB'", (14, 26)),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm>(int)", "--device 'NVIDIA A100-SXM4-40GB'", (7, 114)),
        ("some_kernel", "--device NAME", (7, 114)),
    ],
)
def test_a_device_without_a_name_is_guessed_by_the_names_of_its_kernels(
    tmp_path: Path, name: str, option: str, ridge: tuple[float, float]
) -> None:
    trace = read_trace(
        write_trace(tmp_path / "trace.json", [launch(1, 0, 2), kernel(1, 5, 10, name)], deviceProperties=[])
    )
    device, (caveat,) = choose_device(trace)
    assert device.source is None and device.peaks_flops_per_s == {}
    assert caveat.slug == "unknown-device" and option in caveat.message
    low, high = device.plausible_ridges["fp32_vector"]
    assert low >= ridge[0] and high <= ridge[1]


@pytest.mark.parametrize(
    ("identity", "name"),
    [
        ("AMD EPYC 9534 64-Core Processor AuthenticAMD 25 17 1", "AMD EPYC 9534 64-Core Processor"),
        ("Intel(R) Xeon(R) Gold 6230 CPU @ 2.10GHz GenuineIntel 6 85 7", "Intel(R) Xeon(R) Gold 6230 CPU @ 2.10GHz"),
        ("aarch64 0x41 0xd0c", "aarch64"),
        ("", "CPU"),
    ],
)
def test_a_recording_names_its_cpu_even_without_ceilings(tmp_path: Path, identity: str, name: str) -> None:
    case = case_of(tmp_path, cpu_events(4, 3, 8), device=None, versions={"cpu": identity}, threads=3)
    assert (case.analysis.device.name, case.analysis.device.source) == (name, None)
    (message,) = [caveat.message for caveat in case.analysis.caveats if caveat.slug == "unknown-device"]
    assert "`bottleneck report --repair`" in message


def test_a_cpu_that_was_not_calibrated_is_unknown() -> None:
    device, caveats = match_device([], [], "cpu")
    assert (device.kind, device.name, device.source) == ("cpu", "CPU", None)
    assert [caveat.slug for caveat in caveats] == ["unknown-device"]


def test_a_gpu_that_did_no_work_gives_no_ceilings_to_a_cpu() -> None:
    device, caveats = match_device([H100], [], "cpu")
    assert (device.kind, device.name, device.peaks_flops_per_s) == ("cpu", "CPU", {})
    assert [caveat.slug for caveat in caveats] == ["unknown-device"]


def test_only_devices_with_work_are_counted() -> None:
    host = [DeviceProperties(index, H100.name, H100.memory_bytes, 132, "9.0", 32) for index in range(8)]
    assert match_device(host, [3], "cuda")[0].count == 1
    assert match_device(host, [0, 1, 2], "cuda")[0].count == 3


def test_work_on_different_parts_is_reported() -> None:
    pair = [H100, DeviceProperties(1, "Tesla T4", 15 * GIB, 40, "7.5", 32)]
    assert [caveat.slug for caveat in match_device(pair, [0, 1], "cuda")[1]] == ["mixed-devices"]
    assert match_device(pair, [1], "cuda")[0].name == "Tesla T4"
    assert not match_device(pair, [1], "cuda")[1]


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("NVIDIA H100", "NVIDIA H100"),
        ("h200", "NVIDIA H200"),
        ("MI300X", "AMD Instinct MI300X"),
        ("rtx 4090", "NVIDIA GeForce RTX 4090"),
        ("RTX 4070", "NVIDIA GeForce RTX 4070"),  # and not the RTX 4070 Ti
        ("RTX 4070 Ti", "NVIDIA GeForce RTX 4070 Ti"),
        ("H100", "NVIDIA H100 80GB HBM3"),  # the part that is rented most
        ("h100 sxm", "NVIDIA H100 80GB HBM3"),
        ("H100 PCIe", "NVIDIA H100 PCIe"),
        ("A100 40GB", "NVIDIA A100-SXM4-40GB"),
        ("a100 80gb pcie", "NVIDIA A100 80GB PCIe"),
    ],
)
def test_a_user_may_name_a_device_by_its_own_words(query: str, name: str) -> None:
    assert device_by_name(query).name == name


def test_a_name_that_fits_several_rows_lists_them() -> None:
    with pytest.raises(UsageError, match="several devices fit 'a800'") as caught:
        device_by_name("a800")
    assert "NVIDIA A800-SXM4-80GB" in caught.value.why


def test_a_misspelt_name_lists_its_neighbours() -> None:
    with pytest.raises(UsageError, match="no device is called 'mi30x'") as caught:
        device_by_name("mi30x")
    assert "MI300X" in caught.value.why


@pytest.mark.parametrize("query", ["", "   ", "quantum annealer"])
def test_a_name_that_resembles_nothing_is_refused(query: str) -> None:
    with pytest.raises(UsageError, match="no device is called"):
        device_by_name(query)
