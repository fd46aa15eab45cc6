"""Costs against measured times of real devices: nearly all work is modelled, and nothing beats its bytes."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.cost_coverage import cover
from bottleneck.cost import compute_costs
from bottleneck.cost.attribution import attribute
from bottleneck.cost.shape_inference import infer_shapes
from bottleneck.devices.match import match_device
from bottleneck.trace.link import link
from bottleneck.trace.steps import whole_window
from tests import trace_cache

EAGER = (
    "*__h100__Falconsai_nsfw_image_detection__*",
    "*__h100__facebook_timesformer-base-finetuned-k400__*",
    "*__h100__gaunernst_bert-small-uncased__*",
    "*__mi300__Falconsai_nsfw_image_detection__*",
    "*__mi300__facebook_timesformer-base-finetuned-k400__*",
    "*__mi300__gaunernst_bert-small-uncased__*",
    "*__mi300__resnet_act_checkpoint*",
)
# An A100 of 2023, where operands without strides, isnan and repeated copies can make a cost too high.
OLDER = ("*result__trace_100Kpar_4exp*", "*amg_example__asdf_True_at_c84af29*")
# Torch 1.8 on a V100, without dtypes, strides and scalars; recommendation models, whose rows are data.
COMPLETED = (
    "*resnet50_autograd_api_num_workers_0*",
    "*resnet50_num_workers_0__*",
    "*resnet50_num_workers_4__*",
    "*trace_diff__control__*",
    "*trace_diff__test__*",
    "*amg_example__asdf_False_at_9ab058c*",
    "*amg_example__asdf_True_at_02c6e09*",
)

# The largest last-level caches of the devices in these traces.
CACHE_BYTES = {"cuda": 50e6, "rocm": 256e6}


def find(traces: Path, pattern: str) -> Path:
    found = list(traces.glob(pattern))
    if not found:
        pytest.skip(f"no trace {pattern}")
    return found[0]


@pytest.mark.parametrize("pattern", COMPLETED)
def test_shape_inference_models_nine_tenths_of_the_work_of_ops(traces, pattern):
    assert cover(find(traces, pattern)).unmodelled_share < 0.1


@pytest.mark.parametrize("pattern", EAGER)
def test_less_than_one_percent_of_eager_work_is_unmodelled(traces, pattern):
    coverage = cover(find(traces, pattern))
    assert coverage.work_us > 0
    assert coverage.unmodelled_share < 0.01


@pytest.mark.parametrize("pattern", EAGER + OLDER + COMPLETED)
def test_no_op_is_faster_than_the_bytes_that_the_cache_cannot_hold(traces, pattern):
    trace = trace_cache.read(find(traces, pattern))
    linked = infer_shapes(link(trace, whole_window(trace)))
    costs = compute_costs(linked.trace.signatures)
    op = attribute(linked.ops, linked.kernels, costs)["op"].dropna().astype("int64")
    measured_us = linked.kernels["dur_us"].loc[op.index].groupby(op).sum()
    signature = linked.ops["signature"].iloc[measured_us.index].astype("int64")
    device, _ = match_device(trace.devices, [0], trace.flavour)
    if device.bandwidth_bytes_per_s is None:
        pytest.skip("the trace does not name its device")
    beyond_cache = np.maximum(0.0, costs["bytes_low"].iloc[signature].to_numpy() - CACHE_BYTES[trace.flavour])
    floor_us = beyond_cache / device.bandwidth_bytes_per_s * 1e6
    assert len(measured_us) > 0
    assert (floor_us <= 1.03 * measured_us.to_numpy()).all()


def test_completed_convolutions_add_up_to_those_of_a_resnet(traces):
    """ResNet-50 takes 4.09 G multiply-adds an image of 224 x 224 (He et al. 2015: 3.8; torchvision's v1.5: 4.09).

    Its backward pass takes twice as many, less the gradient of the images themselves. Six steps of 32 images.
    """
    trace = trace_cache.read(find(traces, "*resnet50_num_workers_0__*"))
    linked = infer_shapes(link(trace, whole_window(trace)))
    costs = compute_costs(linked.trace.signatures)
    op = attribute(linked.ops, linked.kernels, costs)["op"].dropna().astype("int64").unique()
    paid = linked.ops.iloc[op]
    flops = costs["matrix_flops"].iloc[paid["signature"].astype("int64")].groupby(paid["name"].to_numpy()).sum()
    forward = 2 * 4.089e9 * 6 * 32
    first_layer = 2 * 112 * 112 * 64 * 3 * 7 * 7 * 6 * 32
    parts = flops["aten::cudnn_convolution"], flops["aten::cudnn_convolution_backward_weight"]
    assert parts == pytest.approx((forward, forward), rel=1e-3)
    assert flops["aten::cudnn_convolution_backward_input"] == pytest.approx(forward - first_layer, rel=1e-3)
