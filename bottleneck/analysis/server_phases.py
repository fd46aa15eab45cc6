"""Tells what limits an inference server, and which settings help.

It divides the steps by phase, and sets the metrics beside them.

Times are those of the ledger: KERNEL_TIME and IDLE_TIME, divided at the marks of the server's steps.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from msgspec import Struct

from bottleneck.schema.accounts import IDLE_CAUSES
from bottleneck.schema.analysis import IdleCause
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.inference import (
    HostPart,
    InferenceServing,
    Limit,
    Part,
    PhaseOfServer,
    ServerMetrics,
    ServerPhase,
    ServerSetting,
)
from bottleneck.schema.intervals import Flags, Floats
from bottleneck.schema.records import replace
from bottleneck.schema.request_waits import serving_of

# Of vLLM: 'execute_context_1(32)_generation_4(4)'; newer ones have sums over the requests: sq (queries), sk (keys) ….
_VLLM = re.compile(r"^execute_(?:\w{1,40}?_)?context_(\d{1,9})\((\w{0,90})\)_generation_(\d{1,9})\((\w{0,90})\)")
_SUMS = re.compile(r"^sq(\d{1,12})sk(\d{1,12})sq")
_SGLANG = re.compile(r"^step\[(\w+) bs=(\d{1,9})(?: toks=(\d{1,12}))?")
_TENSORRT = re.compile(
    r"^\[Executor\] _forward_step \d+: (\d{1,9}) ctx reqs, (\d{1,12}) ctx tokens, (\d{1,9}) gen reqs"
)
_SGLANG_PHASES = {"DECODE": "decode", "EXTEND": "prefill", "PREFILL": "prefill", "MIXED": "mixed"}
# Attention of servers without marks tells the phase by its name.
_DECODES = re.compile(r"paged_attention|decode", re.IGNORECASE)
_PREFILLS = re.compile(r"prefill|context_attention|extend_attention", re.IGNORECASE)
# Sampling runs after the graph of the model; routing of experts, which has such names too, runs in it.
_SAMPLES = re.compile(r"argmax|multinomial|sampl|top_?k_?top_?p|min_p|penalt|exponential_kernel", re.IGNORECASE)
_HOST_PARTS: tuple[tuple[HostPart, "re.Pattern[str]"], ...] = (
    ("detokenising", re.compile(r"detoken", re.IGNORECASE)),
    ("API server", re.compile(r"api_server|http_server|openai|uvicorn|tokenizer_manager", re.IGNORECASE)),
    ("scheduling", re.compile(r"schedul|kv_cache_manager|block_pool|radix_cache", re.IGNORECASE)),
)
_PARTS: dict[str, Part] = {"attention": "attention", "matmul": "products", "collective": "communication"}
# Below: of the step the host holds the device back; of the kernel time collectives limit; bytes known are too few.
_BUSY, _COMMUNICATES, _KNOWN = 0.9, 0.3, 0.5
# From here a cache counts as full; up to here one step holds few requests, and the cache has room.
_FULL, _FEW_REQUESTS, _ROOMY = 0.9, 4, 0.5
_REPLAYED, _ATTENDS, _MUCH, _PREFILL_SHARE = 0.5, 0.15, 2.0, 0.1


class StepMark(Struct, frozen=True):
    """Batch of a step by its mark.

    Requests, tokens and tokens of context are null where the mark does not tell them.
    """

    phase: PhaseOfServer
    requests: float | None
    tokens: float | None
    context: float | None


def read_mark(name: str) -> StepMark | None:
    """Reads the batch of a step from the name of its mark.

    Null where it is no such mark.
    """
    vllm, sglang, tensorrt = (pattern.match(name) for pattern in (_VLLM, _SGLANG, _TENSORRT))
    if vllm is not None:
        prefills, decodes = float(vllm[1]), float(vllm[3])
        (queries, keys), (more, other_keys) = _sums(vllm[2]), _sums(vllm[4])
        context = None if keys is None or other_keys is None else keys + other_keys
        tokens = None if queries is None or more is None else queries + more
        return StepMark(_phase(prefills, decodes), prefills + decodes, tokens, context)
    if sglang is not None:
        requests = float(sglang[2])
        phase: PhaseOfServer = _SGLANG_PHASES.get(sglang[1], "unknown")  # type: ignore[assignment]
        is_one_each = sglang[1] == "DECODE" and sglang[3] is None
        return StepMark(phase, requests, requests if is_one_each else float(sglang[3]) if sglang[3] else None, None)
    if tensorrt is not None:
        prefills, decodes = float(tensorrt[1]), float(tensorrt[3])
        return StepMark(_phase(prefills, decodes), prefills + decodes, float(tensorrt[2]) + decodes, None)
    return None


def _sums(text: str) -> tuple[float | None, float | None]:
    """Gives queries and keys of a mark's brackets.

    A plain number is that of queries.
    """
    sums = _SUMS.match(text)
    if sums is not None:
        return float(sums[1]), float(sums[2])
    return (float(text) if text.isdigit() else None), None


def _phase(prefills: float, decodes: float) -> PhaseOfServer:
    if prefills and decodes:
        return "mixed"
    return "prefill" if prefills else "decode" if decodes else "unknown"


def summarize_serving(evidence: Evidence, server: str | None, metrics: ServerMetrics | None) -> InferenceServing:
    """Summarizes the steps of a server, its metrics, and what limits it.

    ``server`` is the one that the trace names; null where it names none.
    """
    phases = _phases(evidence)
    us = _kernel_time(evidence)["us"].to_numpy()
    replayed_us = float(us[evidence.linked.kernels["replayed"].to_numpy()].sum())
    ridges = evidence.analysis.device.ridge_flops_per_byte
    ridge = ridges.get("bf16_tensor", ridges.get("fp16_tensor"))
    busy = evidence.share_of_step(evidence.analysis.totals.busy_us)
    replayed = replayed_us / float(us.sum()) if us.sum() > 0 else 0.0
    by_trace = _limit_of_trace(evidence, phases, busy, ridge)
    # Metrics of another server say nothing of this one.
    own = metrics if metrics is None or server in (None, metrics.server) else None
    by_metrics = None if own is None else limit_of_metrics(own)
    serving = InferenceServing(
        server=server or ("" if metrics is None else metrics.server),
        phases=phases,
        busy_share=min(busy, 1.0),
        replayed_share=min(replayed, 1.0),
        ridge_tokens=ridge,
        limit=by_metrics or by_trace,
        trace_limit=by_trace,
        metrics_limit=by_metrics,
        disagreement=None if metrics is None else _disagreement(phases, by_trace, metrics, server),
        settings=(),
        metrics=metrics,
    )
    return replace(serving, settings=judge_settings(replace(serving, metrics=own)))


def _kernel_time(evidence: Evidence) -> pd.DataFrame:
    assert evidence.kernel_time is not None, "kernels are timed before a server is judged"
    return evidence.kernel_time


def _idle_time(evidence: Evidence) -> pd.DataFrame:
    assert evidence.idle_time is not None, "idle time is known before a server is judged"
    return evidence.idle_time


def _marks(evidence: Evidence) -> tuple[Floats, list[StepMark]]:
    """Gives starts and batches of the marks of steps.

    One inside another is left out.
    """
    events = evidence.linked.trace.events
    names = events["name"].cat
    batches = {code: read_mark(str(name)) for code, name in enumerate(names.categories)}
    codes = names.codes.to_numpy()
    is_mark = np.isin(codes, [code for code, batch in batches.items() if batch is not None])
    rows = np.flatnonzero(is_mark & (events["category"] == "annotation").to_numpy())
    start, end = (events["ts_us"].to_numpy()[rows], (events["ts_us"] + events["dur_us"]).to_numpy()[rows])
    starts, marks, until = [], [], -np.inf
    for at in np.lexsort((-end, start)).tolist():
        batch = batches[int(codes[rows[at]])]
        if start[at] >= until and batch is not None:
            starts.append(float(start[at]))
            marks.append(batch)
            until = end[at]
    return np.array(starts), marks


def _phases(evidence: Evidence) -> tuple[ServerPhase, ...]:
    starts, marks = _marks(evidence)
    kernels, us = evidence.linked.kernels, _kernel_time(evidence)["us"].to_numpy()
    at = kernels["launch_ts_us"].to_numpy(dtype=np.float64, na_value=np.nan)
    at = np.where(np.isnan(at), kernels["ts_us"].to_numpy(), at)
    if not marks:
        starts, marks = np.array([-np.inf]), [_batch_by_kernels(evidence, us)]
    # A step lasts from its mark to the next one: some servers sample behind it.
    step = np.clip(np.searchsorted(starts, at, side="right") - 1, 0, None)
    in_use = np.bincount(step[us > 0], minlength=len(marks)) > 0
    idle = _idle_time(evidence)
    idle_at = idle["start"].to_numpy(dtype=np.float64, na_value=np.nan)
    idle_step = np.clip(np.searchsorted(starts, idle_at, side="right") - 1, 0, len(marks) - 1)
    idle_step = np.where(np.isnan(idle_at), -1, idle_step)
    names = [mark.phase for mark in marks]
    total_us = float(us.sum() + idle["us"].sum())
    phases = []
    for name in dict.fromkeys(names):
        chosen = np.flatnonzero(np.array([mark == name for mark in names]) & in_use)
        if not chosen.size:
            continue
        mine = np.isin(step, chosen) & (us > 0)
        kernel_us = float(us[mine].sum())
        part = kernel_us / float(us.sum())
        idle_us = np.where(idle_step == -1, part, np.isin(idle_step, chosen)) * idle["us"].to_numpy()
        batch = [marks[place] for place in chosen.tolist()]
        phases.append(_describe(evidence, name, batch, mine, idle_us, total_us))
    return tuple(sorted(phases, key=lambda phase: -phase.share))


def _describe(
    evidence: Evidence, name: PhaseOfServer, batch: Sequence[StepMark], mine: Flags, idle_us: Floats, total_us: float
) -> ServerPhase:
    """Describes one phase, from the kernels that are its and its idle time."""
    us, runs = (_kernel_time(evidence)[column].to_numpy()[mine] for column in ("us", "runs"))
    kernel_us, scale = float(us.sum()), evidence.steps / len(batch)
    all_us = kernel_us + float(idle_us.sum())
    moved = evidence.roofline["bytes_low"].to_numpy(dtype=np.float64, na_value=np.nan)[mine]
    is_known = ~np.isnan(moved)
    known_share = min(float(us[is_known].sum()) / kernel_us, 1.0)
    bandwidth = evidence.analysis.device.bandwidth_bytes_per_s
    replayed = evidence.linked.kernels["replayed"].to_numpy()[mine]
    reason = (
        (
            "graph-replay"
            if float(us[replayed & ~is_known].sum()) > _KNOWN * kernel_us * (1 - known_share)
            else "no-costs"
        )
        if known_share < _KNOWN
        else "no-bandwidth"
        if bandwidth is None
        else None
    )
    total_bytes = float((moved[is_known] * runs[is_known]).sum()) if known_share >= _KNOWN else None
    roof = None if reason or bandwidth is None or total_bytes is None else total_bytes / bandwidth * 1e6 / kernel_us
    tokens = _mean([mark.tokens for mark in batch])
    step_us = all_us * scale
    return ServerPhase(
        name=name,
        steps=len(batch),
        us=step_us,
        share=min(all_us / total_us, 1.0),
        requests=_mean([mark.requests for mark in batch]),
        tokens=tokens,
        context_tokens=_mean([mark.context for mark in batch]),
        tokens_per_s=None if tokens is None else tokens / step_us * 1e6,
        parts=_parts(evidence, mine, us, all_us),
        host_parts=_host_parts(evidence, idle_us, all_us),
        bytes=None if total_bytes is None else total_bytes * scale,
        roof_share=None if roof is None else min(roof, 1.0),
        known_share=known_share,
        reason=reason,
    )


def _mean(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers and len(numbers) == len(values) else None


def _parts(evidence: Evidence, mine: Flags, us: Floats, all_us: float) -> dict[str, float]:
    """Gives the shares of kinds of kernels in the time of a phase."""
    kernels = evidence.linked.kernels
    families = evidence.roofline["family"].astype(object).to_numpy()[mine]
    kinds, replayed = kernels["kind"].astype(object).to_numpy()[mine], kernels["replayed"].to_numpy()[mine]
    names = kernels["name"].astype(object).to_numpy()[mine]
    sums: defaultdict[str, float] = defaultdict(float)
    for family, kind, is_replayed, kernel, spent in zip(families, kinds, replayed, names, us.tolist(), strict=True):
        part = "communication" if kind == "collective" else _PARTS.get(family, "other kernels")
        if part == "other kernels" and not is_replayed and _SAMPLES.search(kernel):
            part = "sampling"
        sums[part] += spent
    return _largest_first(sums, all_us)


def _largest_first(sums: Mapping[str, float], all_us: float) -> dict[str, float]:
    ordered = sorted(sums.items(), key=lambda item: -item[1])
    return {part: spent / all_us for part, spent in ordered if spent > 0}


def _host_parts(evidence: Evidence, idle_us: Floats, all_us: float) -> dict[str, float]:
    """Gives the shares of what the host did while the device was idle.

    Idle time has causes, and causes have lines: the time of a cause is divided as its lines are.
    """
    causes = _idle_time(evidence)["cause"].to_numpy()
    sums: defaultdict[str, float] = defaultdict(float)
    for code in np.unique(causes).tolist():
        spent = float(idle_us[causes == code].sum())
        rows = [row for row in evidence.analysis.idle if row.cause == IDLE_CAUSES[code]]
        whole = sum(row.us for row in rows)
        for row in rows:
            sums[_host_part(row)] += spent * row.us / whole if whole > 0 else 0.0
        if not whole:
            sums["other host"] += spent
    return _largest_first(sums, all_us)


def _host_part(row: IdleCause) -> HostPart:
    text = f"{row.source or ''} {row.detail or ''}"
    return next((part for part, pattern in _HOST_PARTS if pattern.search(text)), "other host")


def _batch_by_kernels(evidence: Evidence, us: Floats) -> StepMark:
    """Tells the phase without marks.

    It does so by attention kernels, replayed graphs and rows of products.
    """
    kernels = evidence.linked.kernels
    names = {str(name) for name in kernels["name"][us > 0].unique()}
    decodes, prefills = (any(pattern.search(name) for name in names) for pattern in (_DECODES, _PREFILLS))
    replayed = float(us[kernels["replayed"].to_numpy()].sum()) > _REPLAYED * float(us.sum())
    phase = _phase(float(prefills), float(decodes or (replayed and not prefills)))
    return StepMark(phase, None, _rows_of_products(evidence, us), None)


def _rows_of_products(evidence: Evidence, us: Floats) -> float | None:
    """Gives the rows that products have for most of their time.

    Null where no shapes are recorded.
    """
    signature = evidence.attribution["signature"].to_numpy(dtype=np.float64, na_value=-1).astype(np.int64)
    is_product = (evidence.roofline["family"] == "matmul").to_numpy() & (signature >= 0) & (us > 0)
    if not is_product.any():
        return None
    rows = evidence.costs["m"].to_numpy(dtype=np.float64, na_value=np.nan)[signature[is_product]]
    sums = pd.Series(us[is_product]).groupby(rows).sum()
    return float(sums.index[int(sums.to_numpy().argmax())]) if len(sums) else None


def _limit_of_trace(
    evidence: Evidence, phases: Sequence[ServerPhase], busy: float, ridge: float | None
) -> Limit | None:
    """Tells what limits the server by its trace; null where it does not tell."""
    if evidence.is_host_only or not phases:
        return None
    if busy < _BUSY:
        return "host-bound" if serving_of(evidence) is None else "too-little-load"
    if sum(phase.share * phase.parts.get("communication", 0.0) for phase in phases) >= _COMMUNICATES:
        return "communication"
    main = phases[0]
    if ridge is None or main.tokens is None:
        return None
    if main.tokens < ridge:
        return "bandwidth-bound-decode" if main.name in ("decode", "mixed") else None
    return "compute-bound-prefill" if main.name in ("prefill", "mixed") else None


def limit_of_metrics(metrics: ServerMetrics) -> Limit | None:
    """Tells what limits the server by its metrics; null where they do not tell.

    Whether the host or the device takes the time of a step stands in no metric.
    """
    running, waiting, used = (metrics.value(name) for name in ("running", "waiting", "kv_used_share"))
    if used is not None and used >= _FULL and ((waiting or 0) > 0 or (metrics.value("preemptions") or 0) > 0):
        return "kv-cache-full"
    is_roomy = used is None or used < _ROOMY
    if running is not None and running <= _FEW_REQUESTS and not waiting and is_roomy:
        return "too-little-load"
    return None


def _disagreement(
    phases: Sequence[ServerPhase], by_trace: Limit | None, metrics: ServerMetrics, server: str | None
) -> str | None:
    """Gives the code of how trace and metrics contradict each other."""
    running, waiting, interval_s = (metrics.value(name) for name in ("running", "waiting", "token_interval_s"))
    if metrics.server != server:
        return "no-server" if server is None else "other-server"
    if by_trace == "too-little-load" and ((waiting or 0) > 0 or (running or 0) > _FEW_REQUESTS):
        return "load"
    requests = phases[0].requests if phases else None
    if requests and running is not None and max(requests, running) > _MUCH * max(min(requests, running), 1.0):
        return "requests"
    decodes = [phase for phase in phases if phase.name in ("decode", "mixed")]
    if interval_s is not None and decodes and interval_s * 1e6 > _MUCH * max(phase.us for phase in decodes):
        return "interval"
    return None


def judge_settings(serving: InferenceServing) -> tuple[ServerSetting, ...]:
    """Judges the settings that people try first, each with the code of the reason."""
    return (
        *_of_graphs(serving),
        _of_requests(serving),
        _of_chunks(serving),
        _of_devices(serving),
        _of_cache_dtype(serving),
        _of_speculation(serving),
        _of_prefixes(serving),
        _of_memory(serving),
    )


def _of_graphs(serving: InferenceServing) -> tuple[ServerSetting, ServerSetting]:
    if not serving.phases:
        helps, cause = None, "no-trace"
    elif serving.replayed_share >= _REPLAYED:
        helps, cause = False, "replays-already"
    elif serving.busy_share >= _BUSY:
        helps, cause = False, "device-busy"
    elif serving.trace_limit == "too-little-load":
        helps, cause = False, "waits-for-requests"
    elif serving.phases[0].name == "prefill":
        helps, cause = None, "prefill-not-captured"
    else:
        helps, cause = True, "launches-one-by-one"
    return ServerSetting("graphs", helps, cause), ServerSetting("graph_sizes", helps, cause)


def _of_requests(serving: InferenceServing) -> ServerSetting:
    waiting = None if serving.metrics is None else serving.metrics.value("waiting")
    if serving.limit == "kv-cache-full":
        return ServerSetting("requests", False, "cache-is-full")
    if serving.limit == "too-little-load" or waiting == 0:
        return ServerSetting("requests", False, "none-wait")
    if serving.trace_limit == "compute-bound-prefill":
        return ServerSetting("requests", False, "arithmetic-is-full")
    if waiting:
        return ServerSetting("requests", True, "requests-wait")
    if serving.trace_limit == "bandwidth-bound-decode":
        return ServerSetting("requests", True, "more-rows-read-no-more")
    return ServerSetting("requests", None, "queue-unknown")


def _of_chunks(serving: InferenceServing) -> ServerSetting:
    filled = [phase for phase in serving.phases if phase.name in ("prefill", "mixed")]
    if not filled:
        return ServerSetting("chunked_prefill", None, "no-prefill-seen")
    tokens, ridge = filled[0].tokens, serving.ridge_tokens
    if tokens is None or ridge is None:
        return ServerSetting("chunked_prefill", None, "tokens-unknown")
    if tokens >= ridge:
        return ServerSetting("chunked_prefill", False, "arithmetic-is-full")
    return ServerSetting("chunked_prefill", True, "rows-below-ridge")


def _of_devices(serving: InferenceServing) -> ServerSetting:
    causes: dict[str | None, tuple[bool | None, str]] = {
        "kv-cache-full": (True, "more-memory"),
        "bandwidth-bound-decode": (True, "more-bandwidth"),
        "compute-bound-prefill": (True, "more-arithmetic"),
        "communication": (False, "communicates-already"),
        "host-bound": (False, "host-holds"),
        "too-little-load": (False, "none-wait"),
        None: (None, "limit-unknown"),
    }
    return ServerSetting("tensor_parallel", *causes[serving.limit])


def _of_cache_dtype(serving: InferenceServing) -> ServerSetting:
    if serving.limit == "kv-cache-full":
        return ServerSetting("fp8_kv", True, "holds-more")
    if serving.limit == "too-little-load":
        return ServerSetting("fp8_kv", False, "none-wait")
    if not serving.phases:
        return ServerSetting("fp8_kv", None, "no-trace")
    is_decode = serving.trace_limit == "bandwidth-bound-decode"
    attends = serving.phases[0].parts.get("attention", 0.0) >= _ATTENDS
    return ServerSetting("fp8_kv", is_decode and attends, "reads-less" if is_decode and attends else "attention-small")


def _of_speculation(serving: InferenceServing) -> ServerSetting:
    tokens = serving.phases[0].tokens if serving.phases else None
    if serving.limit == "kv-cache-full":
        return ServerSetting("speculative", False, "cache-is-full")
    if serving.trace_limit == "compute-bound-prefill":
        return ServerSetting("speculative", False, "arithmetic-is-full")
    if serving.trace_limit == "host-bound":
        return ServerSetting("speculative", None, "more-host-work")
    if serving.trace_limit != "bandwidth-bound-decode" or tokens is None or serving.ridge_tokens is None:
        return ServerSetting("speculative", None, "limit-unknown")
    has_room = tokens * 4 < serving.ridge_tokens
    return ServerSetting("speculative", has_room, "rows-are-free" if has_room else "arithmetic-is-full")


def _of_prefixes(serving: InferenceServing) -> ServerSetting:
    hits = None if serving.metrics is None else serving.metrics.value("prefix_hit_share")
    share = sum(phase.share for phase in serving.phases if phase.name in ("prefill", "mixed"))
    if hits is not None and hits > 0:
        return ServerSetting("prefix_cache", False, "hits-already")
    if share >= _PREFILL_SHARE:
        return ServerSetting(
            "prefix_cache", None if hits is None else False, "no-hits" if hits == 0 else "hits-unknown"
        )
    return ServerSetting("prefix_cache", None, "no-prefill-seen")


def _of_memory(serving: InferenceServing) -> ServerSetting:
    used = None if serving.metrics is None else serving.metrics.value("kv_used_share")
    if used is None:
        return ServerSetting("memory_share", None, "cache-unknown")
    is_full = serving.limit == "kv-cache-full"
    return ServerSetting("memory_share", is_full, "more-memory" if is_full else "cache-has-room")
