"""Small traces made by hand, each with one thing that is easily judged wrong; the right answers are an expert's."""

import gzip
import json
from pathlib import Path

import pytest

from bottleneck.analysis.fitness import check_trace
from bottleneck.errors import TraceError
from bottleneck.pipeline import analyse, explain
from bottleneck.schema.analysis import Analysis, StepAnalysis
from tests.advice.cases import case_of
from tests.builders import frame, kernel, launch, op, step, write_trace

CASES = Path(__file__).parent / "cases"


def judged(name: str) -> Analysis:
    """The report of a case."""
    return analyse([CASES / f"{name}.json.gz"])


@pytest.mark.parametrize("name", ["sync_only", "py_and_sync", "py_only"])
def test_a_window_in_which_nothing_ran_is_refused(name: str) -> None:
    with pytest.raises(TraceError, match="without any op or kernel"):
        judged(name)


def slugs(analysis: Analysis) -> list[str]:
    """The kinds of the findings, first to last."""
    return [finding.slug for finding in analysis.findings]


def test_random_numbers_that_the_cpu_makes_are_no_copies() -> None:
    found = judged("randn_cpu_no_device")
    assert max(found.ledger, key=lambda entry: entry.us).account == "unknown.creation"
    assert slugs(found)[0] == "made-on-host"
    assert "needless-copies" not in slugs(found)
    listed = next(caveat.message for caveat in found.caveats if caveat.slug == "device-listed-alone")
    assert "NVIDIA A100-SXM4-80GB" in listed


def test_the_bias_that_a_product_copies_is_a_part_of_it() -> None:
    assert "needless-copies" not in slugs(judged("bias_copy"))


def test_products_with_a_vector_of_a_model_in_bf16_are_not_called_fp32() -> None:
    found = judged("made_decoding")
    assert found.verdict.bound == "memory"
    assert not {"half-precision", "fp32-products"} & {*slugs(found)}


def test_checks_for_nan_are_not_charged_with_the_stalls_that_fell_into_them() -> None:
    """Their 42 calls take 3.4 ms in three steps without three of 20 to 24 ms."""
    checks = next(row for row in judged("recorded_watched_convolutions").findings if row.slug == "anomaly-detection")
    assert "1.79 ms per step" in checks.evidence[0]


def test_drawing_random_numbers_on_a_cpu_is_arithmetic_of_their_generator(tmp_path: Path) -> None:
    """One thread draws some 200 million numbers a second, far below what any memory moves; a fill is memory's."""
    assert bound_of(judged("recorded_simulated_paths"), "aten::normal_") == "compute"
    # The same on a CPU with known ceilings: 4 MB in 5 ms, where memory would take 0.4.
    drawn, filled = (
        op(name, at, 5000, dims=[[1000, 1000], [], []]) for name, at in (("aten::normal_", 10), ("aten::fill_", 6000))
    )
    found = case_of(tmp_path, [step(1, 0, 12_000), drawn, filled]).analysis
    assert (bound_of(found, "aten::normal_"), bound_of(found, "aten::fill_")) == ("compute", "memory")


def bound_of(found: StepAnalysis, name: str) -> str:
    """The bound of the op of this name."""
    return next(row.bound for row in found.kernels if row.name == name)


# Bound and kinds of first advice by somebody who judged the raw events before a report was read.
@pytest.mark.parametrize(
    ("name", "bound", "first"),
    [
        ("made_generation_without_cache", "compute", {"no-kv-cache"}),
        ("made_pageable_images", "transfer", {"pageable-copies", "copies-not-overlapped"}),
        ("recorded_unaided_loader", "overhead", {"loader-without-workers", "input-wait", "loader-hot-spot"}),
        ("recorded_recurrent_loop", "overhead", {"looped-op", "eager-overhead", "host-overhead"}),
        ("made_sharded_training", "communication", {"exposed-communication"}),
        ("recorded_simulated_paths", "compute", {"unfused-chain"}),
        ("recorded_watched_convolutions", "overhead", {"host-stalls"}),
        ("recorded_written_attention", "memory", {"unfused-attention", "unfused-chain"}),
        ("recorded_distilled_teacher", "compute", {"untrained-parameters"}),
        # Judged as memory at first. A sort of so many numbers takes an eighth of the time once they are in order, with
        # the same bytes: comparisons hold it back.
        ("recorded_sorted_gallery", "compute", {"unused-result"}),
        ("recorded_factorised_twice", "compute", {"matrix-decomposition", "double-precision"}),
        ("recorded_edge_messages", "memory", {"scattered-lookups", "sparse-product", "slow-for-its-bytes"}),
    ],
)
def test_a_report_says_what_was_judged_blind(name: str, bound: str, first: set[str]) -> None:
    found = judged(name)
    assert found.verdict.bound == bound and slugs(found)[0] in first


@pytest.mark.parametrize("name", ["q_simt_align1", "simt_align1", "q_sgemm"])
def test_products_without_matrix_units_are_told_to_use_them(name: str) -> None:
    found = slugs(judged(name))
    assert "misaligned-products" not in found
    assert "fp32-products" in found[:2]


def test_an_optimizer_alone_is_one_step_and_told_to_take_lists() -> None:
    found = judged("optimizer_only")
    assert found.steps.count == 1
    assert slugs(found) == ["unfused-optimizer"]
    assert "_foreach_" in found.findings[0].advice


def test_calls_that_are_held_up_come_before_the_batch() -> None:
    found = judged("host_stalls")
    assert slugs(found)[0] == "host-stalls"
    assert "12.0 ms" in found.findings[0].evidence[0]


@pytest.mark.parametrize("name", ["slow_card_a100", "slow_card_unknown"])
def test_a_device_far_below_any_such_device_is_told_before_the_program(name: str) -> None:
    assert slugs(judged(name)) == ["device-held-back"]


@pytest.mark.parametrize("name", ["q_bn_relu_4090", "q_bn_relu_unknown"])
def test_a_slow_device_runs_a_fused_kernel_slowly_too(name: str) -> None:
    found = judged(name)
    assert slugs(found) == ["device-held-back", "unfused-norm"]
    gain = found.findings[1].predicted_gain_us
    assert gain is not None
    assert gain.low <= 0.3 * found.steps.wall_us
    assert gain.high <= 0.55 * found.steps.wall_us


def test_loading_belongs_to_the_step(tmp_path: Path) -> None:
    before = judged("loader_then_work")
    trace = json.loads(gzip.decompress((CASES / "loader_then_work.json.gz").read_bytes()))
    fetch = next(event for event in trace["traceEvents"] if event["name"].startswith("enumerate(DataLoader)"))
    fetch["ts"] = max(event["ts"] + event["dur"] for event in trace["traceEvents"] if event is not fetch) + 10
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(trace))
    for found in (before, analyse([path])):
        assert found.steps.wall_us == pytest.approx(62_700, rel=0.01)
        assert {entry.account: entry.us for entry in found.ledger}["overhead.input"] == pytest.approx(15_000, rel=0.01)
        assert "loader-without-workers" in slugs(found)


def test_work_on_a_gpu_of_apple_is_not_that_of_a_cpu() -> None:
    found = judged("mps_like")
    assert found.verdict.bound == "inconclusive"
    assert "apple-gpu-not-recorded" in {caveat.slug for caveat in found.caveats}
    assert "item-calls" in slugs(found)


def test_the_backward_pass_of_packed_attention_has_a_cost() -> None:
    """Neither mask nor lengths of sequences were recorded: its bytes are known, its arithmetic from below."""
    found = judged("q_fa3_bwd")
    assert found.coverage.modelled_share == pytest.approx(1.0)
    attention = next(row for row in found.kernels if row.op == "flash_attn_3::bwd")
    # Eight tensors of 16384 x 6 x 128 in bf16 and the sums of the softmax, per step.
    assert attention.bytes_low == pytest.approx(attention.calls * (8 * 16384 * 768 * 2 + 4 * 6 * 16384))
    assert attention.confidence != "high"


@pytest.mark.parametrize(("last_us", "is_told"), [(18, True), (400, False)])
def test_a_short_last_wait_shows_that_a_device_without_kernels_kept_up(
    tmp_path: Path, last_us: float, is_told: bool
) -> None:
    events = [op("aten::mm", 20 * at, 15) for at in range(100)]
    events += [launch(at, 20 * at + 5, 5) for at in range(100)]
    events.append(launch(900, 2000, last_us, "cudaDeviceSynchronize"))
    found = analyse([write_trace(tmp_path / "trace.json", events)])
    assert found.verdict.bound == "inconclusive"
    assert ("the device kept up with the host" in found.verdict.sentence) == is_told


def test_a_file_that_was_cut_off_lacks_its_device_for_that_reason(tmp_path: Path) -> None:
    events = [op("nccl:all_reduce", 20 * at, 15) for at in range(100)]
    whole = write_trace(tmp_path / "whole.json", events, deviceProperties=[])
    cut_off = tmp_path / "cut.json"
    cut_off.write_text(whole.read_text()[:-400])
    found = analyse([cut_off])
    assert found.verdict.sentence.startswith("The file was cut off")
    assert "recorded without its GPU" in analyse([whole]).verdict.sentence
    assert "recorded without its GPU" not in found.verdict.sentence
    assert found.findings[0].advice == "Record it again, and let the program end by itself."
    explained = explain([cut_off])
    (row,) = [each for each in check_trace(explained.linked, explained.analysis) if each.slug == "no-device-events"]
    assert "cut off" in f"{row.fact} {row.why}"


def test_a_wait_names_the_kernel_that_it_is_for_and_the_op_that_comes_next(tmp_path: Path) -> None:
    events = [frame("train.py(3): main", 0, 20_000)]
    for number in range(10):
        at = 2000 * number
        events += [
            op("aten::mm", at, 20, external_id=2 * number + 1),
            launch(2 * number + 1, at + 5, 5),
            kernel(2 * number + 1, at + 12, 900, "some_gemm"),
            launch(1000 + number, at + 30, 1400, "cudaStreamSynchronize"),
            op("aten::relu", at + 1450, 20, external_id=2 * number + 2),
            launch(2 * number + 2, at + 1455, 5),
            kernel(2 * number + 2, at + 1462, 500, "some_relu"),
        ]
    found = analyse([write_trace(tmp_path / "trace.json", events)])
    longest = max((row for row in found.idle if row.cause == "sync"), key=lambda row: row.us)
    assert (longest.before, longest.after) == ("some_gemm", "aten::relu")
    (synced,) = [finding for finding in found.findings if finding.slug == "host-sync"]
    assert any("for some_gemm to end, before aten::relu" in words for words in synced.evidence)


def of_a_task_queue(folder: Path, call: str, thread: int = 7) -> Analysis:
    """Ten ops whose kernels name no launch; another thread issues them, each with a call of the runtime of 0.8 ms."""
    events: list[dict[str, object]] = [step(1, 0, 10_000)]
    for number in range(10):
        at = 1000 * number
        events.append(op("aten::mm", at + 1, 20))
        called = {"name": call, "ph": "X", "pid": 9, "tid": thread, "ts": at + 50, "dur": 800}
        events.append({**called, "args": {"connection_id": number}})
        ran = {"name": "MatMul", "ph": "X", "pid": 800, "tid": 3, "ts": at + 860, "dur": 100}
        events.append({**ran, "args": {"Task Type": "AI_CORE", "connection_id": number}})
    return analyse([write_trace(folder / "trace.json", events, deviceProperties=[])])


def test_operators_that_the_runtime_compiles_while_the_device_is_free_are_found(tmp_path: Path) -> None:
    found = of_a_task_queue(tmp_path, "AscendCL@aclopCompileAndExecute")
    assert {entry.account: entry.us for entry in found.ledger}["overhead.compile"] == pytest.approx(8000, rel=0.02)
    assert slugs(found)[0] == "compiling-in-step"
    assert "set_compile_mode(jit_compile=False)" in found.findings[0].advice
    assert "10 times per step: 8.00 ms of the host" in found.findings[0].evidence[1]


def test_calls_of_a_task_queue_that_only_execute_compile_nothing(tmp_path: Path) -> None:
    found = of_a_task_queue(tmp_path, "AscendCL@aclopExecuteV2")
    assert "overhead.compile" not in {entry.account for entry in found.ledger}
    assert "compiling-in-step" not in slugs(found)


def test_a_public_trace_with_compiled_operators_is_told_so(traces: Path) -> None:
    (path,) = traces.glob("Ascend+msprof-analyze*timeline_advice__trace_view.json.gz")
    found = analyse([path])
    assert slugs(found)[0] == "compiling-in-step"
    assert "aclopCompileAndExecute, 11 times per step: 6.64 ms" in found.findings[0].evidence[1]
