"""Builds the sections on an inference server.

They tell its phases, what limits it, and its settings. The words for the codes of ``schema/inference.py`` are here.
"""

from bottleneck.report.document import ListSection, Section, TableColumn, TableRow, TableSection, columns
from bottleneck.schema.inference import Amount, InferenceServing, Limit, ServerMetrics, ServerPhase
from bottleneck.units import counted, format_share, format_us

_MENU = "server"
LIMITS: dict[Limit, str] = {
    "too-little-load": "too little load",
    "host-bound": "host-bound",
    "kv-cache-full": "the KV cache is full",
    "bandwidth-bound-decode": "decode bound by memory bandwidth",
    "compute-bound-prefill": "prefill bound by arithmetic",
    "communication": "communication between devices",
}
_AMOUNTS: dict[Amount, str] = {
    "running": "requests running",
    "waiting": "requests waiting",
    "kv_used_share": "KV cache in use",
    "preemptions": "preemptions since the start",
    "prompt_tokens": "prompt tokens since the start",
    "generated_tokens": "generated tokens since the start",
    "generated_tokens_per_s": "generated tokens per second",
    "tokens_per_step": "tokens per step",
    "first_token_s": "time to the first token",
    "token_interval_s": "time between tokens",
    "queue_s": "time in the queue",
    "prefix_hit_share": "prompt tokens found in the prefix cache",
}
_AMOUNT_REASONS = {
    "no-metric-of-server": "this server has no metric of it",
    "not-on-page": "the page lacks it",
    "nothing-counted": "nothing was counted yet",
    "out-of-range": "its value is out of range",
}
_ROOF_REASONS = {
    "graph-replay": "Bytes of replayed graphs are not known: pass the trace of their capture with --capture, or record "
    "one step without graphs.",
    "no-costs": "Bytes are not known for most kernels: record with shapes (record_shapes=True).",
    "no-bandwidth": "The bandwidth of the device is not known: pass --device.",
}
_DISAGREEMENTS = {
    "no-server": "Nothing in the trace names the server of the metrics, so they may be of another program.",
    "other-server": "The trace is of another server than the metrics, so they do not count.",
    "load": "The trace waits for requests, but the metrics have requests to work on: they are of different times.",
    "requests": "The metrics have another number of requests than the steps of the trace: they are of different times, "
    "or of several engines.",
    "interval": "By the metrics a token takes over twice as long as a decode step of the trace: the rest is between "
    "the steps, or in steps with prefill that the trace lacks.",
}
_SETTINGS = {
    "graphs": ("CUDA or HIP graphs", {"vLLM": "no --enforce-eager", "SGLang": "no --disable-cuda-graph"}),
    "graph_sizes": (
        "sizes of graphs",
        {"vLLM": "--max-cudagraph-capture-size", "SGLang": "--cuda-graph-max-bs"},
    ),
    "requests": (
        "more requests per step",
        {"vLLM": "--max-num-seqs", "SGLang": "--max-running-requests", "TensorRT-LLM": "--max_batch_size"},
    ),
    "chunked_prefill": (
        "larger prefill chunks",
        {
            "vLLM": "--max-num-batched-tokens",
            "SGLang": "--chunked-prefill-size",
            "TensorRT-LLM": "--max_num_tokens",
            "TGI": "--max-batch-prefill-tokens",
        },
    ),
    "tensor_parallel": (
        "more devices per model",
        {
            "vLLM": "--tensor-parallel-size",
            "SGLang": "--tp-size",
            "TensorRT-LLM": "--tp_size",
            "TGI": "--num-shard",
        },
    ),
    "fp8_kv": ("fp8 KV cache", {"vLLM": "--kv-cache-dtype fp8", "SGLang": "--kv-cache-dtype fp8_e4m3"}),
    "speculative": (
        "speculative decoding",
        {"vLLM": "--speculative-config", "SGLang": "--speculative-algorithm", "TGI": "--speculate"},
    ),
    "prefix_cache": (
        "prefix caching",
        {"vLLM": "--enable-prefix-caching", "SGLang": "no --disable-radix-cache"},
    ),
    "memory_share": (
        "more memory for the cache",
        {
            "vLLM": "--gpu-memory-utilization",
            "SGLang": "--mem-fraction-static",
            "TensorRT-LLM": "--kv_cache_free_gpu_memory_fraction",
            "TGI": "--cuda-memory-fraction",
        },
    ),
}
_CAUSES = {
    "no-trace": "no step of the server was recorded",
    "replays-already": "most kernel time is in replayed graphs already",
    "device-busy": "the device is busy, so launches do not hold it back",
    "waits-for-requests": "the device waits for requests, not for launches",
    "prefill-not-captured": "the recorded steps are prefill, which many servers run without graphs",
    "launches-one-by-one": "the device waits for the host, which launches kernels one by one",
    "cache-is-full": "the KV cache has no room for more",
    "none-wait": "no requests wait for it",
    "arithmetic-is-full": "the arithmetic units have enough rows already",
    "requests-wait": "requests wait, and a step with more of them reads the weights once all the same",
    "more-rows-read-no-more": "if requests wait (--metrics shows it): more of them read the weights once all the same",
    "queue-unknown": "whether requests wait stands in no trace: pass --metrics",
    "no-prefill-seen": "no prefill was recorded",
    "tokens-unknown": "the tokens of a step, or the peaks of the device, are not known",
    "rows-below-ridge": "prefill steps have too few tokens to fill the arithmetic units",
    "more-memory": "it gives the KV cache more memory, so fewer requests are preempted",
    "more-bandwidth": "each device reads its part of the weights only, at the cost of communication",
    "more-arithmetic": "each device does its part of the arithmetic only, at the cost of communication",
    "communicates-already": "communication takes much of the step already",
    "host-holds": "the host holds the step back, and each rank has the same host work",
    "limit-unknown": "what limits the server is not known",
    "holds-more": "the cache holds twice the tokens of a 16-bit one",
    "reads-less": "attention takes a good part of the step, and reads half the bytes",
    "attention-small": "attention over the cache is not what takes the time",
    "rows-are-free": "a decode step has few rows, so checking some more tokens costs little",
    "more-host-work": "it adds host work to each step, and saves steps",
    "hits-already": "prompts are found in the cache already",
    "no-hits": "it is on or its prompts share nothing: no prompt token was found in it",
    "hits-unknown": "prefill takes time; whether prompts share a beginning stands in no trace: pass --metrics",
    "cache-unknown": "how full the KV cache is stands in no trace: pass --metrics",
    "cache-has-room": "the KV cache has room",
}
_ANSWERS = {True: "yes", False: "no", None: "not known"}


def serving_sections(serving: InferenceServing | None) -> tuple[Section, ...]:
    """Builds the sections on a server; none where it is none."""
    if serving is None:
        return ()
    sections: list[Section] = [_limit(serving)]
    if serving.phases:
        sections.append(_phases(serving))
    if serving.metrics is not None:
        sections.append(_metrics(serving.metrics))
    sections.append(_settings(serving))
    return tuple(sections)


def _limit(serving: InferenceServing) -> ListSection:
    answer = "not known" if serving.limit is None else LIMITS[serving.limit]
    items = [(f"Limit: {answer}.",), (f"By the trace: {_by_trace(serving)}.",)]
    metrics = serving.metrics
    if metrics is None:
        items.append(("By metrics: not known; pass --metrics http://HOST:PORT/metrics, or a saved page.",))
    else:
        items.append((f"By the metrics: {_by_metrics(serving, metrics)}.",))
    if serving.disagreement is not None:
        items.append((f"They disagree: {_DISAGREEMENTS.get(serving.disagreement, serving.disagreement)}",))
    return ListSection(f"Inference server: {serving.server}", tuple(items))


def _by_trace(serving: InferenceServing) -> str:
    if not serving.phases:
        return "not known, as no step has device work"
    main = serving.phases[0]
    batch = "" if main.requests is None else f" with {counted(round(main.requests), 'request')}"
    step = "step" if main.name == "unknown" else f"{main.name} step"
    parts = [
        "not known" if serving.trace_limit is None else LIMITS[serving.trace_limit],
        f"the device works for {format_share(serving.busy_share)} of a {step}{batch}",
    ]
    if main.tokens is not None and serving.ridge_tokens is not None:
        tokens, ridge = counted(round(main.tokens), "row"), round(serving.ridge_tokens)
        parts.append(f"its products have {tokens}, and arithmetic limits those of 16-bit weights from {ridge} on")
    if serving.trace_limit == "bandwidth-bound-decode":
        roof = main.roof_share
        near = "is not known" if roof is None else f"is at least {format_share(roof)}"
        parts.append(f"its share of the roof of memory {near}")
    return "; ".join(parts)


def _by_metrics(serving: InferenceServing, metrics: ServerMetrics) -> str:
    amounts = [
        f"{_AMOUNTS[amount.name]} {_value(amount.name, amount.value)}"
        for amount in metrics.amounts[:4]
        if amount.value is not None
    ]
    limit = serving.metrics_limit
    lead = "no limit of their own, as the time of a step stands in none" if limit is None else LIMITS[limit]
    return "; ".join([lead, ", ".join(amounts)] if amounts else [lead])


def _phases(serving: InferenceServing) -> TableSection:
    rows = tuple(
        TableRow(
            (
                phase.name,
                str(phase.steps),
                format_us(phase.us),
                format_share(phase.share),
                _number(phase.requests),
                _number(phase.tokens),
                _number(phase.tokens_per_s),
                "-" if phase.roof_share is None else format_share(phase.roof_share),
            ),
            details=(_parts(phase),),
        )
        for phase in serving.phases
    )
    heads = (
        *columns("name", "phase"),
        *columns("number", "steps", "a step", "share", "requests", "tokens", "tokens/s", "of roof"),
    )
    reasons = dict.fromkeys(phase.reason for phase in serving.phases if phase.reason is not None)
    notes = (
        "tokens: rows that enter the model. of roof: the time that the bytes of weights and results need at the "
        "device's bandwidth, over the kernel time; at least that, as the cached keys and values are not all counted."
        if any(phase.roof_share is not None for phase in serving.phases)
        else "tokens: rows that enter the model. of roof: not known.",
        *(_ROOF_REASONS.get(reason, reason) for reason in reasons),
    )
    details = TableColumn("where its time goes", "words")
    return TableSection("Phases of the server", heads, rows, notes, details, is_cards=True, menu=_MENU)


def _parts(phase: ServerPhase) -> str:
    parts = {**phase.parts, **phase.host_parts}
    words = ", ".join(f"{name} {format_share(share)}" for name, share in parts.items() if share >= 0.001)
    cached = "" if phase.context_tokens is None else f"; reads {phase.context_tokens:,.0f} cached tokens"
    return f"{words}{cached}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.3g}"


def _value(name: Amount, value: float | None) -> str:
    if value is None:
        return "-"
    if name.endswith("_share"):
        return format_share(value)
    return format_us(value * 1e6) if name.endswith("_s") and not name.endswith("per_s") else _number(value)


def _metrics(metrics: ServerMetrics) -> TableSection:
    shown = [amount for amount in metrics.amounts if amount.value is not None]
    rows = tuple(
        TableRow((_AMOUNTS[amount.name], _value(amount.name, amount.value), amount.metric or "")) for amount in shown
    )
    missing = [
        f"Not known, as {words}: {', '.join(names)}."
        for reason, words in _AMOUNT_REASONS.items()
        if (names := [_AMOUNTS[amount.name] for amount in metrics.amounts if amount.reason == reason])
    ]
    notes = (
        f"Read from {metrics.source}. Times are means since the server's start.",
        *missing,
    )
    heads = (*columns("words", "amount"), *columns("number", "value"), *columns("name", "metric"))
    return TableSection(f"Metrics of {metrics.server}", heads, rows, notes, menu=_MENU)


def _settings(serving: InferenceServing) -> TableSection:
    rows = tuple(
        TableRow(
            (
                _SETTINGS[setting.name][0],
                _SETTINGS[setting.name][1].get(serving.server, ""),
                _ANSWERS[setting.helps],
            ),
            details=(_CAUSES.get(setting.cause, setting.cause),),
        )
        for setting in sorted(serving.settings, key=lambda setting: (True, None, False).index(setting.helps))
    )
    heads = columns("words", "setting", "option", "helps here")
    details = TableColumn("why", "words")
    return TableSection("Settings of the server", heads, rows, (), details, menu=_MENU)
