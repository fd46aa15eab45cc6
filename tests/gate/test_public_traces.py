"""Steps of real GPU programs, one against the other: the study behind the counters found them alike in 56 traces."""

from pathlib import Path

import pytest

from bottleneck.gate.count import count
from bottleneck.pipeline import examine
from bottleneck.schema.sources import TraceSource

ALIKE = ("ops", "launches", "syncs", "copies", "h2d_copies", "d2h_copies", "autograd_nodes", "kernel_names")
# Of V100, A100, H100 and MI300X; with and without stacks, with workers and without, of 2 to 29 steps.
SAMPLE = (
    "pytorch+kineto__tb_plugin__samples__resnet50_num_workers_0__",
    "pytorch+kineto__tb_plugin__samples__resnet50_num_workers_4__worker0_at_7bd25bd",
    "pytorch+kineto__tb_plugin__samples__resnet50_autograd_api_num_workers_0__worker0.pt",
    "facebookresearch+HolisticTraceAnalysis__tests__data__nccl_parser_config__nccl_data",
    "facebookresearch+HolisticTraceAnalysis__tests__data__ns_resolution_trace__rank-0",
    "facebookresearch+HolisticTraceAnalysis__tests__data__trace_diff__test__test",
    "facebookresearch+HolisticTraceAnalysis__tests__data__trace_diff__control__control",
    "facebookresearch+param__et_replay__tests__inputs__linear_kineto",
    "AMD-AGI+TraceLens__tests__traces__mi300__resnet_act_checkpoint",
    "AMD-AGI+TraceLens__evals__unit_tests__attention__sdpa_01_long_seq_low_eff",
    "Quentin-Anthony+torch-profiling-tutorial__log__transformer__",
    "pytorch+torchrec__examples__golden_training__trace__sst_sleep_pl_dense_after_backward_2__",
    "pytorch+torchrec__examples__golden_training__trace__sst_long_a2a_optimizer_5_qcomm__",
)


@pytest.mark.parametrize("name", SAMPLE)
def test_every_step_of_a_gpu_program_counts_the_same(name: str, traces: Path) -> None:
    path = min(traces.glob(f"{name}*"))
    counts = count(examine(TraceSource(path)))
    assert counts.steps >= 2
    assert not [counter for counter in ALIKE if counter in counts.unstable]
    assert all(counts.values[counter] > 0 for counter in ("ops", "launches", "kernel_names"))
    assert counts.fingerprint.portable["backend"] in {"cuda", "rocm"}
