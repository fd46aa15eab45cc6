"""Prices of calls in another type of numbers."""

from pathlib import Path

import numpy as np
import pytest

from bottleneck.devices.match import device_by_name
from bottleneck.predict.other_dtype import price_in_dtype
from bottleneck.schema.evidence import Evidence, PricedCalls
from tests.advice.cases import with_analysis
from tests.advice.programs import Call, on_gpu

SIZES = [[4096, 4096], [4096, 4096]]


def prices(evidence: Evidence, dtype: str) -> PricedCalls:
    return price_in_dtype(evidence, np.ones(len(evidence.costs)), dtype)


def test_a_large_product_takes_half_as_long_in_bf16_as_in_tf32(tmp_path: Path) -> None:
    case = on_gpu(tmp_path, [Call("aten::mm", 3000.0, SIZES)])
    fp32, tf32, bf16 = (prices(case, dtype) for dtype in ("fp32", "tf32", "bf16"))
    assert bf16.high_us[0] == pytest.approx(tf32.high_us[0] / 2, rel=0.25)
    assert fp32.low_us[0] > 4 * tf32.low_us[0]
    assert all(price.low_us[0] < price.high_us[0] for price in (fp32, tf32, bf16))


def test_no_end_is_below_the_floor_of_the_arithmetic(tmp_path: Path) -> None:
    case = on_gpu(tmp_path, [Call("aten::mm", 3000.0, SIZES)])
    peak = case.analysis.device.peaks_flops_per_s["bf16_tensor"]
    assert prices(case, "bf16").low_us[0] >= 2 * 4096**3 / peak * 1e6


def test_calls_without_sizes_and_devices_without_such_units_have_no_price(tmp_path: Path) -> None:
    unsized = on_gpu(tmp_path / "unsized", [Call("aten::mm", 3000.0, None)])
    assert np.isnan(prices(unsized, "bf16").high_us).all()
    older = with_analysis(
        on_gpu(tmp_path / "older", [Call("aten::mm", 3000.0, SIZES)]), device=device_by_name("Tesla V100-SXM2-16GB")
    )
    assert np.isnan(prices(older, "bf16").high_us).all()
    assert np.isfinite(prices(older, "fp16").high_us).all()
