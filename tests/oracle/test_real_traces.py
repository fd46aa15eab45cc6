"""Costs against measured kernels of real eager traces: all of their time is modelled, and none beats the hardware."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bottleneck.cost import compute_costs
from bottleneck.cost.attribution import attribute
from bottleneck.devices.match import device_by_name
from bottleneck.schema.device import Device
from tests import trace_cache

FOLDERS = {"h100": "NVIDIA H100 80GB HBM3", "mi300": "AMD Instinct MI300X"}
MODELS = (
    "Falconsai_nsfw_image_detection__1016002",
    "facebook_timesformer-base-finetuned-k400__1016002",
    "gaunernst_bert-small-uncased__1016001",
)


@pytest.fixture(scope="module", params=[(folder, model) for folder in FOLDERS for model in MODELS], ids="-".join)
def judged(request, traces: Path) -> tuple[Device, pd.DataFrame, float]:
    """The device, cost and measured time of every op with kernels, and the attributed share of compute time."""
    folder, model = request.param
    linked = trace_cache.linked(traces / f"AMD-AGI+TraceLens__tests__traces__{folder}__{model}.json.gz")
    costs = compute_costs(linked.trace.signatures)
    attribution = attribute(linked.ops, linked.kernels, costs)
    computes = linked.kernels["kind"] == "compute"
    paid = attribution["op"].notna()
    dur_us = linked.kernels["dur_us"]
    attributed_ops = dur_us[paid].groupby(attribution["op"][paid].astype("int64")).sum()
    signature = linked.ops["signature"].to_numpy(dtype=np.int64, na_value=-1)[attributed_ops.index]
    costed = costs.iloc[signature].assign(dur_us=attributed_ops.to_numpy())
    return device_by_name(FOLDERS[folder]), costed, dur_us[computes & paid].sum() / dur_us[computes].sum()


def test_all_compute_time_of_an_eager_trace_has_a_payer(judged):
    assert judged[2] > 0.995


def test_no_op_moves_its_bytes_faster_than_memory_behind_a_cold_cache(judged):
    device, costed, _ = judged
    from_memory = np.maximum(costed["bytes_low"] - device.cache_bytes, 0)
    assert (from_memory / device.bandwidth_bytes_per_s * 1e6 <= 1.03 * costed["dur_us"]).all()


def test_no_op_computes_faster_than_its_matrix_engine(judged):
    device, costed, _ = judged
    floor_us = costed["matrix_flops"] / device.peaks_flops_per_s["bf16_tensor"] * 1e6
    assert (floor_us <= 1.03 * costed["dur_us"]).all()


def test_the_best_op_comes_within_a_factor_of_four_of_a_roof(judged):
    # Without this, costs of next to nothing would pass the two tests above.
    device, costed, _ = judged
    compute_us = costed["matrix_flops"] / device.peaks_flops_per_s["bf16_tensor"] * 1e6
    memory_us = costed["bytes_low"] / device.bandwidth_bytes_per_s * 1e6
    assert (np.maximum(compute_us, memory_us) / costed["dur_us"]).max() > 0.25
