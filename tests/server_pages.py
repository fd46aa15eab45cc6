"""Pages of metrics of inference servers in four situations, in the public text formats of vLLM and SGLang."""

from typing import Literal, NamedTuple

Situation = Literal["too little load", "host-bound", "cache full", "bandwidth-bound decode"]


class Load(NamedTuple):
    """What a server counts in a situation."""

    running: int
    waiting: int
    used: float
    preempted: int
    interval_s: float


SITUATIONS: dict[Situation, Load] = {
    "too little load": Load(1, 0, 0.004, 0, 0.009),
    "host-bound": Load(32, 0, 0.21, 0, 0.021),
    "cache full": Load(41, 87, 0.994, 412, 0.034),
    "bandwidth-bound decode": Load(32, 12, 0.62, 0, 0.011),
}
_COUNT = 4000


def vllm_page(load: Load) -> bytes:
    """The page of vLLM 0.9 and later."""
    labels = 'engine="0",model_name="openai/gpt-oss-20b"'
    return f"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{{labels}}} {load.running}.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{{labels}}} {load.waiting}.0
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{{labels}}} {load.used}
# HELP vllm:num_preemptions_total Cumulative number of preemption from the engine.
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{{{labels}}} {load.preempted}.0
vllm:num_preemptions_created{{{labels}}} 1.7641e+09
# TYPE vllm:inter_token_latency_seconds histogram
vllm:inter_token_latency_seconds_bucket{{{labels},le="0.01"}} 10.0
vllm:inter_token_latency_seconds_bucket{{{labels},le="+Inf"}} {_COUNT}.0
vllm:inter_token_latency_seconds_count{{{labels}}} {_COUNT}.0
vllm:inter_token_latency_seconds_sum{{{labels}}} {load.interval_s * _COUNT}
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{{{labels}}} 2000.0
vllm:prefix_cache_hits_total{{{labels}}} 500.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{{block_size="16",cache_dtype="auto",gpu_memory_utilization="0.9"}} 1.0
""".encode()


def sglang_page(load: Load) -> bytes:
    """The page of SGLang with --enable-metrics."""
    labels = 'model_name="Qwen/Qwen3-8B",tp_rank="0"'
    return f"""# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{{{labels}}} {load.running}
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{{{labels}}} {load.waiting}
# TYPE sglang:token_usage gauge
sglang:token_usage{{{labels}}} {load.used}
# TYPE sglang:num_retracted_reqs gauge
sglang:num_retracted_reqs{{{labels}}} {load.preempted}
# TYPE sglang:cache_hit_rate gauge
sglang:cache_hit_rate{{{labels}}} 0.25
# TYPE sglang:inter_token_latency_seconds histogram
sglang:inter_token_latency_seconds_sum{{{labels}}} {load.interval_s * _COUNT}
sglang:inter_token_latency_seconds_count{{{labels}}} {_COUNT}.0
""".encode()
