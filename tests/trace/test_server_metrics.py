"""Metrics pages of inference servers: names of many versions, one vocabulary, untrusted text."""

from collections.abc import Callable
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck.errors import TraceError
from bottleneck.schema.inference import Amount, ServerMetric, ServerMetrics
from bottleneck.trace import server_metrics
from bottleneck.trace.server_metrics import metric_rows, parse_samples, read_metrics
from tests.server_pages import SITUATIONS, Load, Situation, sglang_page, vllm_page


def amount_of(metrics: ServerMetrics, name: Amount) -> ServerMetric:
    return next(amount for amount in metrics.amounts if amount.name == name)


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize(("server", "page"), [("vLLM", vllm_page), ("SGLang", sglang_page)])
def test_both_servers_give_one_vocabulary(server: str, page: Callable[[Load], bytes], situation: Situation) -> None:
    load = SITUATIONS[situation]
    metrics = read_metrics(page(load), "metrics.txt")
    assert metrics.server == server
    values = [metrics.value(name) for name in ("running", "waiting", "kv_used_share", "preemptions")]
    assert values == [load.running, load.waiting, load.used, load.preempted]
    assert metrics.value("token_interval_s") == pytest.approx(load.interval_s)
    assert metrics.value("prefix_hit_share") == 0.25
    assert tuple(amount.name for amount in metrics.amounts) == get_args(Amount)


def test_an_amount_is_null_exactly_where_it_has_a_reason() -> None:
    metrics = read_metrics(vllm_page(SITUATIONS["cache full"]), "metrics.txt")
    assert all((amount.value is None) is (amount.reason is not None) for amount in metrics.amounts)
    assert amount_of(metrics, "first_token_s").reason == "not-on-page"
    assert amount_of(read_metrics(b"tgi_queue_size 3", "page"), "kv_used_share").reason == "no-metric-of-server"
    empty = (
        b"vllm:num_requests_running 1\nvllm:time_to_first_token_seconds_sum 0\nvllm:time_to_first_token_seconds_count 0"
    )
    assert amount_of(read_metrics(empty, "page"), "first_token_s").reason == "nothing-counted"
    wrong = b"vllm:num_requests_running 1\nvllm:kv_cache_usage_perc 99.4"
    assert amount_of(read_metrics(wrong, "page"), "kv_used_share").reason == "out-of-range"


def test_requests_of_engines_add_up_and_the_fullest_cache_counts() -> None:
    page = b'vllm:num_requests_running{engine="0"} 3\nvllm:num_requests_running{engine="1"} 4\n'
    page += b'vllm:gpu_cache_usage_perc{engine="0"} 0.2\nvllm:gpu_cache_usage_perc{engine="1"} 0.9\n'
    metrics = read_metrics(page, "page")
    assert (metrics.value("running"), metrics.value("kv_used_share")) == (7, 0.9)
    assert amount_of(metrics, "kv_used_share").metric == "vllm:gpu_cache_usage_perc"


def test_amounts_of_triton_are_chosen_by_label_and_scaled() -> None:
    page = b"""nv_trt_llm_request_metrics{model="m",request_type="scheduled",version="1"} 4
nv_trt_llm_request_metrics{model="m",request_type="waiting",version="1"} 3
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="m"} 0.5
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="m"} 2448
nv_inference_queue_duration_us{model="m"} 3000000
nv_inference_count{model="m"} 6
"""
    metrics = read_metrics(page, "page")
    assert metrics.server == "TensorRT-LLM"
    assert [metrics.value(name) for name in ("running", "waiting", "kv_used_share", "queue_s")] == [4, 3, 0.5, 0.5]


def test_the_table_has_amounts_and_ways_that_are_known() -> None:
    assert {row.amount for row in metric_rows()} == set(get_args(Amount))
    assert {row.how for row in metric_rows()} == {"sum", "highest", "mean"}
    keys = [(row.metric, row.label) for row in metric_rows()]
    assert len(keys) == len(set(keys))


def test_labels_hold_any_text_and_samples_may_have_a_time_and_an_example() -> None:
    text = rb'a:b_total{host="x}\"#,y=",le="+Inf",} 1e3 1700000000000 # {trace="1"} 2'
    (sample,) = parse_samples(text, "page")
    assert (sample.name, sample.value) == ("a:b_total", 1000.0)
    assert sample.labels == {"host": r"x}\"#,y=", "le": "+Inf"}


@pytest.mark.parametrize(
    "line", ["no number here", "name{", 'name{a="b} 1', "name{a=b} 1", "1name 3", "name x", "{} 1", "<html>"]
)
def test_a_wrong_line_is_refused_with_its_number(line: str) -> None:
    with pytest.raises(TraceError) as caught:
        parse_samples(f"# comment\nok 1\n{line}\n".encode(), "page")
    assert "line 3" in caught.value.why and "page" in caught.value.what and caught.value.fix


def test_pages_without_a_server_and_too_large_ones_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TraceError, match="no metric of an inference server"):
        read_metrics(b"process_cpu_seconds_total 3\n", "page")
    monkeypatch.setattr(server_metrics, "MOST_BYTES", 10)
    with pytest.raises(TraceError, match="too large"):
        read_metrics(b"vllm:num_requests_running 3\n", "page")


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    refused = None
    samples = []
    try:
        samples = parse_samples(content, "page")
    except TraceError as error:
        refused = error
    assert all(sample.name for sample in samples)
    assert refused is None or (refused.why and refused.fix)


@given(
    st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), st.text("ab\\\\ }{=,#\t"), max_size=3), st.floats()
)
def test_a_written_sample_is_read_again(labels: dict[str, str], value: float) -> None:
    quoted = {key: text.replace("\\", "\\\\").replace('"', '\\"') for key, text in labels.items()}
    inner = ",".join(f'{key}="{text}"' for key, text in quoted.items())
    (sample,) = parse_samples(f"name{{{inner}}} {value!r}".encode(), "page")
    assert dict(sample.labels) == quoted
    assert sample.value == value or value != value  # noqa: PLR0124 - NaN
