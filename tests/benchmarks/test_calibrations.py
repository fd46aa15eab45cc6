"""The benchmark of calibrations: how far two are apart, and which kernel came nearest to a ceiling."""

from typing import Any

import pytest

from benchmarks.calibrations import (
    Ceiling,
    Drift,
    Feat,
    compare,
    feats,
    measure_drift,
    tell_ceilings,
    tell_drift,
    tell_feats,
)
from bottleneck.schema.analysis import KernelSummary
from bottleneck.schema.device import Device
from bottleneck.schema.records import replace
from tests.report.samples import gpu_overhead

CPU = Device(
    name="some CPU",
    vendor=None,
    kind="cpu",
    count=1,
    peaks_flops_per_s={"fp32_tensor": 1e11},
    bandwidth_bytes_per_s=1e10,
    launch_floor_us=1.0,
    source="measured",
    ridge_flops_per_byte={},
    bandwidth_by_bytes=((1e4, 1e11), (1e6, 1e11), (1e8, 1e10)),
)


def told(*values: float, stable: bool = True, busy: str = "") -> dict[str, Any]:
    names = ("fp32 product", "DRAM stream")
    return {
        "device": {"name": "some CPU"},
        "threads": 2,
        "torch": "2.13.0",
        "ceilings": [
            {"name": name, "unit": "FLOP/s", "value": value, "stable": stable}
            for name, value in zip(names, values, strict=False)
        ],
        "caveats": [{"message": busy}] if busy else [],
    }


def kernel(**more: Any) -> KernelSummary:
    row = gpu_overhead().kernels[0]
    facts = {"confidence": "high", "calls": 2.0, "us": 200.0, "flops": None, "bytes_low": None, "compute_us": None}
    return replace(row, **(facts | more))


def of(*kernels: KernelSummary) -> list[Feat]:
    return feats(replace(gpu_overhead(), device=CPU, kernels=kernels), "a recording")


def test_two_calibrations_are_compared_ceiling_by_ceiling() -> None:
    ceilings = compare(told(1e11, 2e10), told(1.1e11, 2e10, stable=False))
    assert [each.gap for each in ceilings] == pytest.approx([0.1, 0.0])
    assert not any(each.stable for each in ceilings)
    assert compare(told(1e11, 2e10), told(1e11)) == [Ceiling("fp32 product", "FLOP/s", (1e11, 1e11), True)]


def test_the_worst_ceiling_and_what_disturbed_it_are_named() -> None:
    first, second = told(1e11, 2e10), told(1.1e11, 2e10, busy="other programs")
    text = "\n".join(tell_ceilings(first, second, compare(first, second)))
    assert "fp32 product, 10.0 % apart" in text and "Disturbed: other programs" in text
    assert "Disturbed" not in "\n".join(tell_ceilings(first, first, compare(first, first)))


def test_arithmetic_is_held_against_the_peak_that_the_floor_was_made_with() -> None:
    (feat,) = of(kernel(flops=2e7, compute_us=150.0, dtype="fp32"), kernel(flops=1e7, compute_us=100.0, dtype="fp32"))
    assert (feat.kind, feat.rate, feat.share) == ("fp32 arithmetic", pytest.approx(1e11), 0.75)


def test_bytes_are_held_against_the_working_set_of_one_call() -> None:
    (feat,) = of(kernel(bytes_low=2e8, us=2e4))
    assert (feat.kind, feat.rate) == ("bytes", pytest.approx(1e10))
    assert feat.share == pytest.approx(3 / 4)  # at the full bandwidth; in place 4/3 of it may come


@pytest.mark.parametrize(
    "more",
    [{"confidence": "medium"}, {"us": 30.0}, {"bytes_low": 1e4}],
    ids=["unsure", "short", "smaller than measured"],
)
def test_what_is_not_known_well_is_no_feat(more: dict[str, Any]) -> None:
    assert of(kernel(bytes_low=2e8)) and of(kernel(**{"bytes_low": 2e8} | more)) == []


def test_a_feat_is_a_line_of_the_table() -> None:
    lines = tell_feats([Feat("mlp", "bytes", "aten::mul", 2e10, "B/s", 1.2)])
    assert lines[-1] == "| mlp | bytes | `aten::mul` | 20.0 GB/s | 120 % |"


def test_how_quiet_the_machine_is_shows_in_loops_that_do_the_same_again() -> None:
    drift = Drift("a stream", "B/s", (2e10, 5e10, 3e10))
    assert tell_drift([drift]) == ["- a stream: 20.0 GB/s to 50.0 GB/s, 150 % apart"]


def test_both_loops_take_at_least_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.calibrations._TURN_SECONDS", 0.001)
    monkeypatch.setattr("benchmarks.calibrations._DRIFT_BYTES", 12_000)
    drifts = measure_drift(0.0, threads=1)
    if not drifts:
        pytest.skip("no C++ compiler here")
    assert [each.unit for each in drifts] == ["FLOP/s", "B/s"]
    assert all(each.rates and min(each.rates) > 0 for each in drifts)
