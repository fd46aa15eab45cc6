"""Phases and limits of inference servers, from traces made by hand and pages of metrics."""

from pathlib import Path

import pytest

from bottleneck.analysis.server_phases import StepMark, limit_of_metrics, read_mark, summarize_serving
from bottleneck.pipeline import Options, explain
from bottleneck.schema.inference import InferenceServing, Limit, Setting
from bottleneck.trace.server_metrics import read_metrics
from tests.advice.cases import case_of
from tests.builders import Event, complete, frame, kernel, launch
from tests.server_pages import SITUATIONS, Situation, sglang_page, vllm_page

DECODE = "execute_context_0(0)_generation_32(32)"
PREFILL = "execute_context_2(4096)_generation_0(0)"
ATTENTION, PRODUCT = "void paged_attention_v2_kernel<__nv_bfloat16>", "nvjet_tst_64x64_64x16_2x1_v_bz_TNT"
SAMPLE, REDUCE = "void at::native::reduce_kernel<512, ArgMaxOps<float>>", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"


def steps(
    marks: list[str], kernels: list[tuple[str, float]], length: float, call: str = "cudaGraphLaunch"
) -> list[Event]:
    """Steps of vLLM of so many microseconds, each with these kernels one behind the other.

    Under one replay of a graph the last one is behind it, with a launch of its own; else each has its own launch.
    """
    events = [frame("vllm/v1/worker/gpu_model_runner.py(2019): execute_model", 0, length * len(marks))]
    for number, mark in enumerate(marks):
        at, now = length * number, length * number + 10
        events.append(complete(mark, "user_annotation", at, length - 1))
        for index, (name, us) in enumerate(kernels):
            last = index == len(kernels) - 1
            is_own = call != "cudaGraphLaunch" or last
            correlation = 1 + number * 100 + (index if is_own else 0)
            if is_own or not index:
                events.append(launch(correlation, at + 1 + index * 0.5, 0.4, "cudaLaunchKernel" if is_own else call))
            events.append(kernel(correlation, now, us, name))
            now += us
    return events


BUSY = [(PRODUCT, 500.0), (ATTENTION, 300.0), (PRODUCT, 100.0), (SAMPLE, 90.0)]
IDLE = [(PRODUCT, 100.0), (ATTENTION, 60.0), (PRODUCT, 20.0), (SAMPLE, 20.0)]


def serve(folder: Path, events: list[Event], situation: Situation | None = None) -> InferenceServing:
    page = None if situation is None else read_metrics(vllm_page(SITUATIONS[situation]), "metrics.txt")
    return summarize_serving(case_of(folder, events), "vLLM", page)


def helps(serving: InferenceServing, name: Setting) -> tuple[bool | None, str]:
    return next((setting.helps, setting.cause) for setting in serving.settings if setting.name == name)


@pytest.mark.parametrize(
    ("name", "mark"),
    [
        (DECODE, StepMark("decode", 32, 32, None)),
        (PREFILL, StepMark("prefill", 2, 4096, None)),
        ("execute_context_1(100)_generation_4(4)", StepMark("mixed", 5, 104, None)),
        (
            "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk32785sqsq32sqsk32785)",
            StepMark("decode", 32, 32, 32785),
        ),
        ("step[DECODE bs=16]", StepMark("decode", 16, 16, None)),
        ("step[EXTEND bs=2 toks=4096]", StepMark("prefill", 2, 4096, None)),
        ("[Executor] _forward_step 7: 1 ctx reqs, 512 ctx tokens, 3 gen reqs", StepMark("mixed", 4, 515, None)),
        ("step[IDLE bs=0]", StepMark("unknown", 0, None, None)),
        ("execute_model", None),
        ("ProfilerStep#3", None),
    ],
)
def test_the_batch_of_a_step_is_read_from_its_mark(name: str, mark: StepMark | None) -> None:
    assert read_mark(name) == mark


def test_phases_add_up_to_the_step_and_have_their_own_means(tmp_path: Path) -> None:
    serving = serve(tmp_path, steps([DECODE, PREFILL, DECODE, DECODE], BUSY, 1000.0))
    assert {phase.name: phase.steps for phase in serving.phases} == {"decode": 3, "prefill": 1}
    assert sum(phase.share for phase in serving.phases) == pytest.approx(1.0)
    decode, prefill = serving.phases
    assert (decode.tokens, prefill.tokens) == (32, 4096)
    assert decode.share == pytest.approx(0.75, abs=0.02)
    assert decode.us == pytest.approx(1000.0, rel=0.02)
    assert decode.tokens_per_s == pytest.approx(32 / decode.us * 1e6)
    # 600 of products, 300 of attention and 90 of sampling, of 1,000.
    assert decode.parts["products"] == pytest.approx(0.6, abs=0.02)
    assert decode.parts["attention"] == pytest.approx(0.3, abs=0.02)
    assert decode.parts["sampling"] == pytest.approx(0.09, abs=0.01)
    assert sum(decode.parts.values()) + sum(decode.host_parts.values()) == pytest.approx(1.0)


def test_bytes_of_replayed_graphs_are_null_with_a_reason(tmp_path: Path) -> None:
    (decode,) = serve(tmp_path, steps([DECODE, DECODE], BUSY, 1000.0)).phases
    assert decode.bytes is None and decode.roof_share is None and decode.reason == "graph-replay"


@pytest.mark.parametrize(
    ("mark", "kernels", "limit"),
    [
        (DECODE, BUSY, "bandwidth-bound-decode"),
        (PREFILL, BUSY, "compute-bound-prefill"),
        (DECODE, [(PRODUCT, 400.0), (REDUCE, 590.0)], "communication"),
        (DECODE, IDLE, "host-bound"),
        ("execute_model", BUSY, None),
    ],
)
def test_the_trace_alone_tells_a_limit(
    tmp_path: Path, mark: str, kernels: list[tuple[str, float]], limit: Limit | None
) -> None:
    serving = serve(tmp_path, steps([mark, mark], kernels, 1000.0))
    assert (serving.limit, serving.trace_limit, serving.metrics_limit) == (limit, limit, None)


@pytest.mark.parametrize("page", [vllm_page, sglang_page])
@pytest.mark.parametrize(
    ("situation", "limit"),
    [
        ("too little load", "too-little-load"),
        ("host-bound", None),
        ("cache full", "kv-cache-full"),
        ("bandwidth-bound decode", None),
    ],
)
def test_the_metrics_alone_tell_load_and_cache_only(page: object, situation: Situation, limit: Limit | None) -> None:
    assert callable(page)
    assert limit_of_metrics(read_metrics(page(SITUATIONS[situation]), "metrics.txt")) == limit


@pytest.mark.parametrize(
    ("situation", "kernels", "limit"),
    [
        ("too little load", BUSY, "too-little-load"),
        ("host-bound", IDLE, "host-bound"),
        ("cache full", BUSY, "kv-cache-full"),
        ("bandwidth-bound decode", BUSY, "bandwidth-bound-decode"),
    ],
)
def test_trace_and_metrics_together_tell_all_four_situations(
    tmp_path: Path, situation: Situation, kernels: list[tuple[str, float]], limit: Limit
) -> None:
    assert (
        serve(tmp_path, steps([DECODE, DECODE], kernels, 10_000.0 if kernels is IDLE else 1000.0), situation).limit
        == limit
    )


def test_settings_follow_the_evidence(tmp_path: Path) -> None:
    full = serve(tmp_path / "full", steps([DECODE, DECODE], BUSY, 1000.0), "cache full")
    assert helps(full, "memory_share") == (True, "more-memory")
    assert helps(full, "requests") == (False, "cache-is-full")
    decode = serve(tmp_path / "decode", steps([DECODE, DECODE], BUSY, 1000.0), "bandwidth-bound decode")
    assert helps(decode, "requests") == (True, "requests-wait")
    assert helps(decode, "fp8_kv") == (True, "reads-less")
    assert helps(decode, "speculative") == (True, "rows-are-free")
    assert helps(decode, "graphs") == (False, "replays-already")
    assert helps(decode, "memory_share") == (False, "cache-has-room")
    host = serve(tmp_path / "host", steps([DECODE, DECODE], IDLE, 1000.0, "cudaLaunchKernel"))
    assert helps(host, "graphs") == (True, "launches-one-by-one")
    assert helps(host, "requests") == (None, "queue-unknown")
    alone = serve(tmp_path / "alone", steps([DECODE, DECODE], BUSY, 1000.0))
    assert helps(alone, "requests") == (True, "more-rows-read-no-more")
    prefill = serve(tmp_path / "prefill", steps([PREFILL, PREFILL], BUSY, 1000.0))
    assert helps(prefill, "speculative") == (False, "arithmetic-is-full")
    assert helps(prefill, "chunked_prefill") == (False, "arithmetic-is-full")
    assert helps(prefill, "prefix_cache") == (None, "hits-unknown")


def test_contradictions_of_trace_and_metrics_are_told(tmp_path: Path) -> None:
    events = steps([DECODE, DECODE], BUSY, 10_000.0)
    assert serve(tmp_path / "few", events, "too little load").disagreement == "requests"
    assert serve(tmp_path / "cache", events, "cache full").disagreement == "interval"
    assert serve(tmp_path / "fits", events, "bandwidth-bound decode").disagreement is None
    page = read_metrics(sglang_page(SITUATIONS["bandwidth-bound decode"]), "metrics.txt")
    case = case_of(tmp_path / "other", events)
    assert summarize_serving(case, "vLLM", page).disagreement == "other-server"
    full = read_metrics(sglang_page(SITUATIONS["cache full"]), "metrics.txt")
    assert summarize_serving(case, "SGLang", full).limit == "kv-cache-full"
    apart = summarize_serving(case, "vLLM", full)
    # These steps last 10 ms, of which the device works 1.
    assert (apart.limit, apart.metrics_limit) == ("host-bound", None)
    assert helps(apart, "memory_share") == (None, "cache-unknown")
    assert summarize_serving(case, None, page).disagreement == "no-server"


@pytest.mark.parametrize(
    ("kernels", "phase"),
    [(BUSY, "decode"), ([("BatchPrefillWithPagedKVCacheKernel", 900.0), (SAMPLE, 9.0)], "prefill")],
)
def test_without_marks_kernels_tell_the_phase(tmp_path: Path, kernels: list[tuple[str, float]], phase: str) -> None:
    serving = serve(tmp_path, steps(["step", "step"], kernels, 1000.0, "cudaLaunchKernel"))
    assert [item.name for item in serving.phases] == [phase]
    assert serving.phases[0].tokens is None


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("name", "context", "products", "attention"),
    [("sglang_Qwen3-8B_decode", 32785, 5.78, 2.13), ("vllm_decode_full__graph_execution", 55086, 8.26, 0.66)],
)
def test_public_steps_of_servers_are_judged_as_by_hand(
    traces: Path, name: str, context: float, products: float, attention: float
) -> None:
    """Milliseconds are sums over kernel names in the raw events."""
    (path,) = traces.glob(f"*{name}*")
    serving = explain([path]).analysis.serving
    assert serving is not None and serving.limit == "bandwidth-bound-decode"
    (phase,) = serving.phases
    assert (phase.name, phase.requests, phase.tokens, phase.context_tokens) == ("decode", 32, 32, context)
    assert phase.parts["products"] * phase.us / 1000 == pytest.approx(products, rel=0.02)
    assert phase.parts["attention"] * phase.us / 1000 == pytest.approx(attention, rel=0.02)
    assert "communication" not in phase.parts


@pytest.mark.corpus
def test_a_capture_tells_the_bytes_of_the_weights(traces: Path) -> None:
    """Qwen3-8B has 7.57e9 parameters beside its embedding, of two bytes each, which a decode step reads once."""
    (path,) = traces.glob("*sglang_Qwen3-8B_decode*")
    captures = tuple(traces.glob("*sglang_decode__capture_traces__bs_32*"))
    serving = explain([path], Options(captures=captures)).analysis.serving
    assert serving is not None
    (phase,) = serving.phases
    assert phase.bytes is not None and 2 * 7.57e9 < phase.bytes < 1.1 * 2 * 7.57e9
    assert phase.roof_share is not None and 0.28 < phase.roof_share < 0.39
