"""Predictions of steps made by hand, and the laws that they keep."""

import json

import pytest

from bottleneck.devices.match import device_by_name
from bottleneck.predict.answer import answer, usual_backends
from bottleneck.schema.device import Device
from bottleneck.schema.records import replace
from bottleneck.schema.step_calls import EngineSettings, StepCall, StepCalls, Storage, TensorUse
from tests.predict.steps import call, convolution, step, use

H100 = device_by_name("NVIDIA H100 80GB HBM3")
T4 = device_by_name("Tesla T4")
MI300X = device_by_name("AMD Instinct MI300X")
MI250X = device_by_name("AMD Instinct MI250X")
SETTINGS = EngineSettings(False, True, "highest", False, (), False, False, False)


def _product(m: int, n: int, k: int, first: int = 0) -> StepCall:
    """aten::mm of [m, k] and [k, n], from storages first and first + 1 into first + 2."""
    return StepCall(
        name="aten::mm",
        dims=json.dumps([[m, k], [k, n]]),
        types=json.dumps(["float", "float"]),
        strides=json.dumps([[k, 1], [n, 1]]),
        concrete=json.dumps(["", ""]),
        inputs=(TensorUse((m, k), (k, 1), "float", first), TensorUse((k, n), (n, 1), "float", first + 1)),
        outputs=(TensorUse((m, n), (n, 1), "float", first + 2),),
        phase="forward",
    )


def _step(batch: int, width: int = 4096) -> StepCalls:
    """One product of a batch with square weights."""
    return StepCalls(
        "model.py",
        "fake step",
        [_product(batch, width, width)],
        SETTINGS,
        storages=(
            Storage(4 * batch * width, "input"),
            Storage(4 * width * width, "parameter"),
            Storage(4 * batch * width, "activation", 0),
        ),
        batch_size=batch,
        host_ops=2,
    )


def _slower(device: Device, factor: float) -> Device:
    """The device with less of everything."""
    assert device.bandwidth_bytes_per_s is not None
    return replace(
        device,
        peaks_flops_per_s={name: peak / factor for name, peak in device.peaks_flops_per_s.items()},
        bandwidth_bytes_per_s=device.bandwidth_bytes_per_s / factor,
    )


@pytest.mark.parametrize("device", [H100, T4], ids=lambda device: device.name)
def test_twice_the_batch_is_never_faster(device: Device) -> None:
    batches = answer([_step(2**power) for power in range(4, 15)], [device], ["eager"], {}).devices[0].batches
    times = [point.us for point in batches]
    assert None not in times
    assert times == sorted(times)  # type: ignore[type-var]


@pytest.mark.parametrize("batch", [16, 1024, 16384])
def test_device_with_more_of_everything_is_never_slower(batch: int) -> None:
    fast, slow = answer([_step(batch)], [H100, _slower(H100, 2.0)], ["eager"], {}).devices
    assert fast.step.us is not None
    assert slow.step.us is not None
    assert fast.step.us <= slow.step.us
    assert fast.step.floor_us is not None
    assert slow.step.floor_us is not None
    assert fast.step.floor_us < slow.step.floor_us


def test_large_product_in_fp32_is_bound_by_compute_and_gains_by_tf32() -> None:
    predicted = answer([_step(16384)], [H100], ["eager"], {}).devices[0]
    assert predicted.bound == "compute"
    assert predicted.engine == "fp32_vector"
    assert predicted.gains[-1].name == "tf32"
    assert (predicted.gains[-1].speedup or 0.0) > 2.0


def test_step_of_a_trace_that_lacks_the_sizes_of_most_work_gets_no_time() -> None:
    step = replace(_step(1024), origin="trace", unpriced_share=0.676)
    predicted = answer([step], [H100], ["eager"], {}).devices[0].step
    assert predicted.us is None
    assert "67.6 %" in predicted.reasons[0]
    assert answer([replace(step, unpriced_share=0.1)], [H100], ["eager"], {}).devices[0].step.us is not None


def test_device_without_tf32_has_no_such_gain() -> None:
    assert not answer([_step(1024)], [T4], ["eager"], {}).devices[0].gains


def test_no_time_lies_below_the_floor_of_its_arithmetic() -> None:
    predicted = answer([_step(16384)], [H100], ["eager"], {}).devices[0].step
    arithmetic_us = 2 * 16384 * 4096**2 / H100.peaks_flops_per_s["fp32_vector"] * 1e6
    assert predicted.floor_us == pytest.approx(arithmetic_us, rel=0.01)
    assert predicted.us is not None
    assert predicted.us >= predicted.floor_us


def test_largest_batch_fills_the_memory_of_the_device() -> None:
    predicted = answer([_step(1024), _step(2048)], [T4], ["eager"], {}).devices[0]
    assert T4.memory_bytes is not None
    per_sample, weights = 2 * 4 * 4096, 4 * 4096**2
    assert predicted.largest_batch == (T4.memory_bytes - 2**30 - weights) // per_sample
    assert predicted.fits


def test_step_larger_than_the_memory_does_not_fit() -> None:
    assert answer([_step(2**20)], [T4], ["eager"], {}).devices[0].fits is False


def test_one_batch_size_tells_neither_largest_nor_knee() -> None:
    predicted = answer([_step(64)], [T4], ["eager"], {}).devices[0]
    assert predicted.largest_batch is predicted.knee_batch is None
    assert predicted.largest_batch_reason == predicted.knee_reason == "the program was not run at another batch size"


def test_knee_is_where_twice_the_batch_no_longer_pays() -> None:
    predicted = answer([_step(2**power) for power in range(4, 17)], [T4], ["eager"], {}).devices[0]
    assert predicted.knee_batch is not None
    rates = {point.batch_size: point.samples_per_s or 0.0 for point in predicted.batches}
    assert rates[predicted.knee_batch] >= 1.1 * rates[predicted.knee_batch // 2]
    assert all(rates[2 * size] < 1.1 * rates[size] for size in rates if predicted.knee_batch <= size < 2**16)


def test_price_of_a_million_samples_follows_from_the_rate() -> None:
    predicted = answer([_step(64)], [T4], ["eager"], {T4.name: 3.6}).devices[0]
    assert predicted.samples_per_s is not None
    assert predicted.cost_per_million_samples is not None
    assert predicted.cost_per_million_samples.high == pytest.approx(1e6 / predicted.samples_per_s.low * 3.6 / 3600)
    assert answer([_step(64)], [T4], ["eager"], {}).devices[0].cost_per_million_samples is None


def test_work_adds_up_to_the_time_of_the_device() -> None:
    predicted = answer([_step(16384)], [H100], ["eager", "compile"], {}).devices[0]
    assert sum(row.us for row in predicted.work) == pytest.approx(predicted.step.device_us)
    assert predicted.gains[0].name == "compile"
    assert predicted.step.kernels == predicted.gains[0].step.kernels == ()


def test_work_has_the_flops_and_the_least_bytes_of_its_calls() -> None:
    (row,) = answer([_step(1024)], [H100], ["eager"], {}).devices[0].work
    assert row.flops == 2 * 1024 * 4096**2
    assert row.bytes == 4 * (2 * 1024 * 4096 + 4096**2)
    assert row.engine == "fp32_vector"


def test_device_without_learned_rates_gets_the_floor_of_the_step_and_no_time() -> None:
    predicted = answer([_step(16384)], [MI300X], ["eager", "compile"], {}).devices[0]
    arithmetic_us = 2 * 16384 * 4096**2 / MI300X.peaks_flops_per_s["fp32_matrix"] * 1e6
    assert predicted.step.us is predicted.samples_per_s is None
    assert predicted.step.floor_us == pytest.approx(arithmetic_us, rel=0.01)
    assert predicted.floor_bound == "compute"
    assert predicted.bound == "inconclusive"
    assert predicted.fits


def test_floor_elsewhere_takes_the_faster_of_the_units_that_may_compute_fp32() -> None:
    peaks = MI250X.peaks_flops_per_s
    assert peaks["fp32_matrix"] > peaks["fp32_vector"]
    floor_us = answer([_step(16384)], [MI250X], ["eager"], {}).devices[0].step.floor_us
    assert floor_us == pytest.approx(2 * 16384 * 4096**2 / peaks["fp32_matrix"] * 1e6, rel=0.01)


def test_floor_of_bytes_is_what_the_cache_cannot_hold() -> None:
    predicted = answer([_step(1, width=16384)], [MI300X], ["eager"], {}).devices[0]
    assert MI300X.bandwidth_bytes_per_s is not None
    assert MI300X.cache_bytes is not None
    moved = 4 * 16384**2 + 2 * 4 * 16384 - MI300X.cache_bytes
    assert predicted.step.floor_us == pytest.approx(moved / MI300X.bandwidth_bytes_per_s * 1e6, rel=0.01)
    assert predicted.floor_bound == "memory"


def test_predicted_step_has_no_bound_of_floors_beside_its_own() -> None:
    assert answer([_step(1024)], [H100], ["eager"], {}).devices[0].floor_bound is None


def test_copies_from_the_host_take_the_time_of_the_link() -> None:
    copying = replace(_step(1024), copied_bytes=52e6)
    predicted = answer([copying], [H100], ["eager"], {})
    assert H100.link_bytes_per_s is not None
    assert predicted.copied_bytes == 52e6
    assert predicted.devices[0].copy_us == pytest.approx(52e6 / H100.link_bytes_per_s * 1e6)
    assert answer([_step(1024)], [H100], ["eager"], {}).devices[0].copy_us is None


def test_nothing_is_promised_for_compiling_what_is_compiled_already() -> None:
    settings = replace(SETTINGS, compiled=True)
    compiled = replace(_step(16384), origin="trace", settings=settings)
    backends = usual_backends(compiled)
    assert [gain.name for gain in answer([compiled], [H100], backends, {}).devices[0].gains] == ["tf32"]
    as_eager = replace(compiled, settings=SETTINGS)
    assert "compile" in [gain.name for gain in answer([as_eager], [H100], backends, {}).devices[0].gains]


def test_program_that_calls_the_compiler_is_predicted_compiled() -> None:
    compiled = replace(_step(16384), settings=replace(SETTINGS, compiled=True))
    assert usual_backends(_step(16384))[0] == "eager"
    predicted = answer([compiled], [H100], usual_backends(compiled), {}).devices[0]
    assert predicted.step.backend == "compile"
    assert "compile" not in [gain.name for gain in predicted.gains]


def test_fused_work_has_the_flops_of_its_calls_and_the_bytes_that_are_left() -> None:
    x, y, z = use(0, 4096, 4096), use(1, 4096, 4096), use(2, 4096, 4096)
    chain = step(call("relu", [x], y), call("neg", [y], z))
    (eager,), (fused,) = (answer([chain], [H100], [way], {}).devices[0].work for way in ("eager", "compile"))
    assert eager.bytes == 4 * 4 * 4096**2
    assert fused.bytes == 2 * 4 * 4096**2
    assert fused.flops == eager.flops


def test_work_of_a_convolution_stands_under_its_name_though_its_copies_take_longer() -> None:
    images = step(convolution(4, 4))
    assert {row.kind for row in answer([images], [T4], ["eager"], {}).devices[0].work} == {"convolution"}
    assert {row.kind for row in answer([images], [H100], ["eager"], {}).devices[0].work} == {"convolution"}


def test_a_price_without_a_batch_size_is_told_to_be_of_no_use() -> None:
    known = _step(64)
    unknown = replace(known, batch_size=None)
    notes = [answer([step], [H100], ["eager"], {H100.name: 2.5}).notes for step in (unknown, known)]
    assert ["samples have no price" in " ".join(each) for each in notes] == [True, False]
    assert not answer([unknown], [H100], ["eager"], {}).notes
