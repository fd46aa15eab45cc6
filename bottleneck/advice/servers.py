"""Advice for inference servers.

Their steps are changed by settings of the server, not by lines of a training loop.
"""

import re
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from bottleneck.advice.quantities import idle_lines
from bottleneck.advice.ranking import Draft
from bottleneck.schema.evidence import Evidence, remembered
from bottleneck.schema.inference import InferenceServing
from bottleneck.schema.records import replace
from bottleneck.schema.request_waits import describe_pace, serving_of
from bottleneck.schema.tables import text_matches
from bottleneck.units import counted, format_share, format_us


class Server(Struct, frozen=True):
    """Inference server.

    ``frames`` finds the names of its frames, ops and marks; advice and code are by kind of remedy.
    """

    name: str
    frames: "re.Pattern[str]"
    remedies: Mapping[str, tuple[str, str]]


_GRAPHS, _BATCH, _HOST = "graphs", "batch", "host"
# SGLang runs kernels and uses modules of vLLM, so that it is looked for first.
SERVERS = (
    Server(
        "SGLang",
        re.compile(r"\bsglang/(?:srt|jit_kernel)/|^sglang(?:_profiler)?::"),
        {
            _GRAPHS: (
                "Let SGLang replay its decode steps as graphs, for batches as large as those that it serves.",
                "python -m sglang.launch_server --cuda-graph-max-bs 256  # and no --disable-cuda-graph",
            ),
            _BATCH: (
                "Let SGLang put more requests into one step (--max-running-requests).",
                "python -m sglang.launch_server --max-running-requests 512 --chunked-prefill-size 8192",
            ),
            _HOST: (
                "Let SGLang schedule the next step while this one runs.",
                "python -m sglang.launch_server  # without --disable-overlap-schedule",
            ),
        },
    ),
    Server(
        "TensorRT-LLM",
        re.compile(r"\btensorrt_llm/|^(?:trtllm|tensorrt_llm)::"),
        {
            _GRAPHS: (
                "Let TensorRT-LLM replay its decode steps as graphs, for batches as large as those that it serves.",
                "LLM(model, cuda_graph_config=CudaGraphConfig(max_batch_size=256, enable_padding=True))",
            ),
            _BATCH: (
                "Let TensorRT-LLM put more requests into one step (--max_batch_size).",
                "trtllm-serve MODEL --max_batch_size 512 --max_num_tokens 16384",
            ),
            _HOST: (
                "Let TensorRT-LLM schedule the next step while this one runs.",
                "LLM(model, disable_overlap_scheduler=False)",
            ),
        },
    ),
    Server(
        "vLLM",
        re.compile(
            r"\bvllm/(?:v1|worker|engine|model_executor|entrypoints)/|^vllm::|^execute_\w*(?:context|generation)_"
        ),
        {
            _GRAPHS: (
                "Let vLLM replay its steps as graphs (no enforce_eager), for batches as large as those that it serves.",
                "vllm serve MODEL --max-cudagraph-capture-size 512  # and no --enforce-eager",
            ),
            _BATCH: (
                "Let vLLM put more requests and more tokens into one step (--max-num-seqs, --max-num-batched-tokens).",
                "vllm serve MODEL --max-num-seqs 512 --max-num-batched-tokens 16384",
            ),
            _HOST: (
                "Let vLLM schedule the next step while this one runs.",
                "vllm serve MODEL --async-scheduling",
            ),
        },
    ),
)

# Findings whose remedy in a server is a setting; the rest say the same there.
_KINDS = {
    "late-launches": _GRAPHS,
    "eager-overhead": _GRAPHS,
    "tiny-kernels": _GRAPHS,
    "small-network": _GRAPHS,
    "input-wait": _HOST,
    "loader-without-workers": _HOST,
    "loader-hot-spot": _HOST,
    "python-call": _HOST,
    "host-sync": _HOST,
}

# The server's scheduler, and the requests that come, decide on the size of a batch.
_BY_SCHEDULER = frozenset({"larger-batch", "room-for-batch"})


@remembered
def find_server(evidence: Evidence) -> Server | None:
    """Finds the inference server whose step this is.

    By the names of its frames, ops and annotations; else null.
    """
    events = evidence.linked.trace.events
    is_host = text_matches(events["category"], ("python", "op", "annotation").__contains__)
    labels, codes = events["name"].cat.categories, events["name"].cat.codes.to_numpy()[is_host]
    names = [str(labels[code]) for code in np.flatnonzero(np.bincount(codes)).tolist()]
    return next((server for server in SERVERS if any(server.frames.search(name) for name in names)), None)


# Of the step. A device that works less waits for its host first; replayed graphs are how servers decode.
_BUSY, _REPLAYED = 0.9, 0.5


def server_settings(evidence: Evidence) -> Draft | None:
    """Finds a server that decodes by replayed graphs on a busy device.

    More requests in a step share one read of the weights. Gain: none predicted, because no trace of a replay says how
    far from its roof the device is.
    """
    server = find_server(evidence)
    if server is None or evidence.is_host_only:
        return None
    dur_us, replayed = (evidence.linked.kernels[name].to_numpy() for name in ("dur_us", "replayed"))
    inside = evidence.kernels_in_window
    whole_us = float(dur_us[inside].sum())
    part = float(dur_us[inside & replayed].sum()) / whole_us if whole_us > 0 else 0.0
    busy = evidence.share_of_step(evidence.analysis.totals.busy_us)
    serving = evidence.analysis.serving
    if serving is not None and serving.metrics_limit is not None:
        return _by_metrics(server, serving)
    if busy < _BUSY or part < _REPLAYED:
        return None
    advice, code = server.remedies[_BATCH]
    return Draft(
        slug="server-settings",
        title=f"{server.name} decodes on a busy device",
        evidence=(
            f"the device works for {format_share(busy)} of the step, {format_share(part)} of that in replayed graphs",
            "a decoding step reads all weights once, for however many requests it holds",
        ),
        advice=advice,
        gain_reason="not predicted: only a trial shows how long a step with more requests takes",
        code=code,
        changes_results=True,
    )


_GIVE_ROOM = {
    "SGLang": "python -m sglang.launch_server --kv-cache-dtype fp8_e4m3 --mem-fraction-static 0.9",
    "TensorRT-LLM": "trtllm-serve MODEL --kv_cache_free_gpu_memory_fraction 0.95",
    "vLLM": "vllm serve MODEL --kv-cache-dtype fp8 --gpu-memory-utilization 0.95",
}


def _by_metrics(server: Server, serving: InferenceServing) -> Draft:
    """Advises what the server's metrics tell: its cache is full, or few requests come."""
    amounts = {} if serving.metrics is None else {one.name: one.value for one in serving.metrics.amounts}
    running, waiting, used, preempted = (
        amounts.get(name) for name in ("running", "waiting", "kv_used_share", "preemptions")
    )
    seen = (
        *(() if running is None else (f"{counted(round(running), 'request')} running by the server's metrics",)),
        *(() if waiting is None else (f"{counted(round(waiting), 'request')} waiting",)),
        *(() if used is None else (f"{format_share(used)} of the KV cache in use",)),
        *(() if preempted is None else (f"{counted(round(preempted), 'preemption')} since its start",)),
    )
    if serving.metrics_limit == "kv-cache-full":
        return Draft(
            slug="server-settings",
            title=f"The KV cache of {server.name} is full",
            evidence=seen,
            advice="Give the cache more room, or store it in fewer bits; more requests at once would be preempted.",
            gain_reason="not predicted: it depends on the lengths of the requests that come",
            code=_GIVE_ROOM[server.name],
            changes_results=True,
        )
    return Draft(
        slug="server-settings",
        title=f"{server.name} has too few requests to judge its settings",
        evidence=seen,
        advice="Send it as many requests as it will get; more requests per step change nothing until then.",
        gain_reason="none: the requests come at the pace of those who send them",
    )


def server_idle(evidence: Evidence) -> Draft | None:
    """Finds a program that waits for requests.

    How busy it is, and how many calls of its model a second it could take. Gain: none, because the requests come at the
    pace of those who send them.
    """
    serving = serving_of(evidence)
    if serving is None:
        return None
    return Draft(
        slug="server-idle",
        title="The server waits for requests",
        evidence=(
            f"idle for {format_share(evidence.share_of_step(serving.idle_us))} of the time: {describe_pace(serving)}",
            *idle_lines(evidence, "wait", most=1),
        ),
        advice=(
            "Send it as many requests as it will get, to judge it under load; until then only the "
            f"{format_us(serving.busy_us)} that a call takes count."
        ),
        gain_reason="none: the requests come at the pace of those who send them",
    )


def fit_to_server(evidence: Evidence, drafts: Sequence[Draft]) -> list[Draft]:
    """Returns the drafts for an inference server, with its settings.

    The settings are remedies: of drafts with one remedy the largest gain stays. Those on the size of a batch are left
    out, which the server's scheduler decides on.
    """
    server = find_server(evidence)
    if server is None:
        return list(drafts)
    drafts = [draft for draft in drafts if draft.slug not in _BY_SCHEDULER]
    largest: dict[str, Draft] = {}
    for draft in drafts:
        kind = _KINDS.get(draft.slug)
        if kind is not None and (kind not in largest or _high(draft) > _high(largest[kind])):
            largest[kind] = draft
    return [
        replace(draft, advice=server.remedies[kind][0], code=server.remedies[kind][1], tries=()) if kind else draft
        for draft in drafts
        if (kind := _KINDS.get(draft.slug)) is None or largest[kind] is draft
    ]


def _high(draft: Draft) -> float:
    return -1.0 if draft.gain_us is None else draft.gain_us.high


RULES = (server_settings, server_idle)
