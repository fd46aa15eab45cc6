"""Frozen records of an inference server.

They hold the phases of its steps, its metrics, what limits it, and its settings.
Limits, settings and causes are codes; ``report/inference.py`` has their words.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Struct

from bottleneck.schema.records import Doc

PhaseOfServer = Literal["prefill", "decode", "mixed", "unknown"]
Limit = Literal[
    "too-little-load",
    "host-bound",
    "kv-cache-full",
    "bandwidth-bound-decode",
    "compute-bound-prefill",
    "communication",
]
Amount = Literal[
    "running",
    "waiting",
    "kv_used_share",
    "preemptions",
    "prompt_tokens",
    "generated_tokens",
    "generated_tokens_per_s",
    "tokens_per_step",
    "first_token_s",
    "token_interval_s",
    "queue_s",
    "prefix_hit_share",
]
Setting = Literal[
    "graphs",
    "graph_sizes",
    "requests",
    "chunked_prefill",
    "tensor_parallel",
    "fp8_kv",
    "speculative",
    "prefix_cache",
    "memory_share",
]
Part = Literal["attention", "products", "sampling", "communication", "other kernels"]
HostPart = Literal["scheduling", "detokenising", "API server", "other host"]


class ServerPhase(Struct, frozen=True):
    """Steps of a server of one phase.

    Amounts are means over these steps. Tokens are those that enter the model: a request in decode has one per step.
    """

    name: Annotated[PhaseOfServer, Doc("'mixed' has requests in prefill and in decode")]
    steps: Annotated[int, Doc("recorded steps of this phase")]
    us: Annotated[float, Doc("time of one of them", "us")]
    share: Annotated[float, Doc("of the time of all steps", "share")]
    requests: Annotated[float | None, Doc("requests in a step; null where no mark tells")]
    tokens: Annotated[float | None, Doc("tokens in a step, the rows of its products; null where no mark tells")]
    context_tokens: Annotated[float | None, Doc("tokens whose keys and values a step reads; null where no mark tells")]
    tokens_per_s: Annotated[float | None, Doc("tokens / time", "1/s")]
    parts: Annotated[Mapping[str, float], Doc("kernel time by kind of work, of the phase", "share")]
    host_parts: Annotated[Mapping[str, float], Doc("idle time of the device by what the host did", "share")]
    bytes: Annotated[float | None, Doc("weights, keys and values and results that a step moves at least", "B")]
    roof_share: Annotated[
        float | None, Doc("time that these bytes need at the device's bandwidth / time of its kernels", "share")
    ]
    known_share: Annotated[float, Doc("of the kernel time: what bytes are known for", "share")]
    reason: Annotated[str | None, Doc("why bytes and roof are not known, as a code")] = None


class ServerMetric(Struct, frozen=True):
    """An amount of a server's metrics.

    It is null with a reason where the file does not have it.
    """

    name: Annotated[Amount, Doc("counters are since the start of the server, latencies are means since then")]
    value: Annotated[float | None, Doc("running and waiting are added over engines, kv_used_share is the highest")]
    metric: Annotated[str | None, Doc("name of the metric in the file")]
    reason: Annotated[str | None, Doc("why it is null, as a code")] = None


class ServerMetrics(Struct, frozen=True):
    """Amounts of a server's metrics page."""

    server: Annotated[str, Doc("server whose metrics these are")]
    source: Annotated[str, Doc("file or address that they were read from")]
    amounts: Annotated[tuple[ServerMetric, ...], Doc("all amounts of the vocabulary, in its order")]

    def value(self, name: Amount) -> float | None:
        """Returns the value of an amount; null where it is not known."""
        return next((amount.value for amount in self.amounts if amount.name == name), None)


class ServerSetting(Struct, frozen=True):
    """A setting, whether it helps here, and why."""

    name: Annotated[Setting, Doc("the setting, by its code")]
    helps: Annotated[bool | None, Doc("null where the evidence does not tell")]
    cause: Annotated[str, Doc("why, as a code")]


class InferenceServing(Struct, frozen=True):
    """An inference server's steps beside its metrics."""

    server: Annotated[str, Doc("name of the server")]
    phases: Annotated[tuple[ServerPhase, ...], Doc("phases of its steps, most time first")]
    busy_share: Annotated[float, Doc("of the step: the device works", "share")]
    replayed_share: Annotated[float, Doc("of the kernel time: in replayed graphs", "share")]
    ridge_tokens: Annotated[
        float | None, Doc("tokens per step from which products of 16-bit weights are bound by arithmetic")
    ]
    limit: Annotated[Limit | None, Doc("what limits the server; null where neither evidence tells")]
    trace_limit: Annotated[Limit | None, Doc("what limits it by the trace alone")]
    metrics_limit: Annotated[Limit | None, Doc("what limits it by the metrics alone")]
    disagreement: Annotated[str | None, Doc("how trace and metrics contradict each other, as a code")]
    settings: Annotated[tuple[ServerSetting, ...], Doc("settings that people try first")]
    metrics: Annotated[ServerMetrics | None, Doc("the server's metrics; null where none were passed")] = None
