"""Bounds of kernels in public traces: nothing faster than physics, and the shares that a prototype found too."""

from pathlib import Path

import pandas as pd
import pytest

from bottleneck.analysis.roofline import classify
from bottleneck.cost import compute_costs
from bottleneck.cost.attribution import attribute
from bottleneck.cost.graph_replay import CostedTrace, assign_replayed_costs
from bottleneck.cost.shape_inference import infer_shapes
from bottleneck.devices.match import match_device
from bottleneck.schema.analysis import Device
from bottleneck.trace.link import link
from bottleneck.trace.read import read_trace
from bottleneck.trace.steps import find_steps

TRACELENS = "AMD-AGI+TraceLens__tests__traces__"
HTA = "facebookresearch+HolisticTraceAnalysis__tests__data__"

# Eager traces with shapes, by device. Their kernels took 1.5 us to 20 ms; the older two count whole microseconds.
EAGER = {
    "H100 image classifier": f"{TRACELENS}h100__Falconsai_nsfw_image_detection__1016002.json.gz",
    "H100 video transformer": f"{TRACELENS}h100__facebook_timesformer-base-finetuned-k400__1016002.json.gz",
    "H100 language model": f"{TRACELENS}h100__gaunernst_bert-small-uncased__1016001.json.gz",
    "MI300X image classifier": f"{TRACELENS}mi300__Falconsai_nsfw_image_detection__1016002.json.gz",
    "MI300X video transformer": f"{TRACELENS}mi300__facebook_timesformer-base-finetuned-k400__1016002.json.gz",
    "MI300X language model": f"{TRACELENS}mi300__gaunernst_bert-small-uncased__1016001.json.gz",
    "A100 training": f"{HTA}trace_diff__control__control.json.gz",
    "V100 training": f"{HTA}trace_diff__test__test.json.gz",
}


# Traces of replayed graphs and of generated kernels, and the captures that price what they replay.
INFERENCE = f"{TRACELENS}inference__"
REPLAYED = {
    "MI300X sglang": (
        f"{INFERENCE}sglang_decode__sglang_Qwen3-8B_decode.json.gz",
        f"{INFERENCE}sglang_decode__capture_traces__bs_32_rank0.json.gz",
    ),
    "MI300X vLLM": (
        f"{INFERENCE}vllm_decode_full__graph_execution.json.gz",
        f"{INFERENCE}vllm_decode_full__capture_traces__graph_capture_rank_0.1773709742341309550.pt.trace.json.gz",
    ),
    "MI300X Flux with its capture": (
        f"{INFERENCE}xdit_flux.1_aiter_sage__capture_traces__capture_trace_rank_0.json.gz",
    ),
    "MI300X Flux": (
        f"{INFERENCE}xdit_flux.1_aiter_sage__profile_trace_rank_0.json.gz",
        f"{INFERENCE}xdit_flux.1_aiter_sage__capture_traces__capture_trace_rank_0.json.gz",
    ),
    "A100 captured without names": ("pytorch+ao__tutorials__quantize_vit__bfloat16_at_41da88f.json.gz",),
    "MI300X before the window": (f"{TRACELENS}mi300__resnet_act_checkpoint.json.gz",),
    "MI300X generated kernels": (f"{TRACELENS}torch_compile_triton__trace.json.gz",),
}


def priced(path: Path, *captures: Path) -> CostedTrace:
    """A trace with its prices, those of twins included."""
    trace = read_trace(path)
    linked = infer_shapes(link(trace, find_steps(trace)))
    costs = compute_costs(linked.trace.signatures)
    alone = CostedTrace(linked, costs, attribute(linked.ops, linked.kernels, costs))
    return assign_replayed_costs(alone, [priced(capture) for capture in captures])[0]


def judged(path: Path, *captures: Path) -> tuple[pd.DataFrame, Device]:
    """ROOFLINE with the name and duration of each kernel, and the device of a trace."""
    found = priced(path, *captures)
    linked, costs, attribution = found.linked, found.costs, found.attribution
    trace = linked.trace
    used = [int(index) for index in trace.device_args["device"].dropna().unique()]
    device, _ = match_device(trace.devices, used, trace.flavour)
    roofline = classify(linked.kernels, linked.ops, costs, attribution, device)
    return roofline.assign(
        name=linked.kernels["name"], kind=linked.kernels["kind"], us=linked.kernels["dur_us"]
    ), device


@pytest.mark.parametrize("file", EAGER.values(), ids=EAGER)
def test_no_kernel_is_faster_than_its_floor(traces: Path, file: str) -> None:
    table, device = judged(traces / file)
    assert device.source == "datasheet"
    too_fast = table[table["reason"].astype(str).str.startswith("faster than its floor")]
    assert too_fast.empty, too_fast[["name", "us", "compute_us", "memory_us"]].to_string()
    assert table["explained"].dropna().between(0, 1).all()


@pytest.mark.parametrize("files", REPLAYED.values(), ids=REPLAYED)
def test_no_kernel_is_faster_than_the_floor_of_its_twin(traces: Path, files: tuple[str, ...]) -> None:
    table, _ = judged(*(traces / file for file in files))
    too_fast = table[table["reason"].astype(str).str.startswith("faster than its floor")]
    assert too_fast.empty, too_fast[["name", "us", "compute_us", "memory_us"]].to_string()
    assert table["explained"].dropna().between(0, 1).all()


def test_every_replay_of_a_graph_has_the_flops_of_its_capture(traces: Path) -> None:
    """Flux: four replays in one recording, one in that of the capture, which holds the captured launches too.

    Their kernels differ in time, not in work.
    """
    execution, capture = (traces / file for file in REPLAYED["MI300X Flux"])
    totals = []
    for found in (priced(execution, capture), priced(capture)):
        kernels, attribution = found.linked.kernels, found.attribution
        flops = (found.costs["matrix_flops"] + found.costs["vector_flops"]).to_numpy()
        paid = (kernels["replayed"] & attribution["share"].notna()).to_numpy()
        amount = flops[attribution["signature"][paid].astype("int64")] * attribution["share"][paid]
        totals += amount.groupby(kernels["launch"][paid].astype("int64")).sum().tolist()
    assert len(totals) == 5
    assert totals == pytest.approx([totals[0]] * 5, rel=1e-9)
    assert totals[0] > 1e12


def test_an_operand_in_the_cache_is_told_as_such(traces: Path) -> None:
    """The A100 multiplies 2.6 M fp32 numbers at 3.5 TB/s, more than twice the bandwidth of its DRAM.

    (At two thirds of that if both factors were the same tensor, which a trace cannot tell.)
    """
    table, device = judged(traces / EAGER["A100 training"])
    cached = table[table["reason"].astype(str) == "served from cache"]
    rate = cached["bytes_high"] / cached["us"] * 1e6
    assert rate.max() > 2 * (device.bandwidth_bytes_per_s or 0)
    assert (cached["explained"] <= 1).all()


def test_attention_of_a_video_transformer_is_underutilised_memory_not_memory_bound(traces: Path) -> None:
    """Shares of kernel time by the prototype of the method: 79.5 %, 14.3 %, 5.5 %."""
    table, _ = judged(traces / EAGER["H100 video transformer"])
    kernels = table[table["kind"] == "compute"]
    share = kernels.groupby(["bound", "regime"], observed=True)["us"].sum() / kernels["us"].sum()
    assert share["memory", "underutilised"] == pytest.approx(0.795, abs=0.01)
    assert share["memory", "saturated"] == pytest.approx(0.143, abs=0.01)
    assert share["compute", "saturated"] == pytest.approx(0.055, abs=0.01)


def test_kernels_of_a_tiny_model_saturate_nothing(traces: Path) -> None:
    table, _ = judged(traces / EAGER["H100 language model"])
    kernels = table[table["kind"] == "compute"]
    assert not (kernels["regime"] == "saturated").any()
    assert kernels["us"][kernels["bound"] == "overhead"].sum() > 0.5 * kernels["us"].sum()


def test_a_trace_without_device_work_is_not_held_against_the_gpus_of_its_machine(traces: Path) -> None:
    table, device = judged(traces / f"{HTA}distributed_info_unavailable__distributed_info_not_found.json.gz")
    assert device.kind == "cpu" and device.source is None
    assert not table["bound"].isin(["compute", "memory"]).any()
