"""Facts of a trace for a judgement by hand, from its raw events.

Reads the JSON itself and imports nothing of bottleneck, so that a judgement that rests on it is independent of ours::

    python -m benchmarks.expert_facts TRACE [TRACE …]

Times are wall times of the recording in milliseconds unless a unit stands beside them.
"""

import bisect
import collections
import gzip
import itertools
import json
import re
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Event = dict[str, Any]
Span = tuple[float, float]

DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "mtia_ccp_events", "concurrent_kernel"}
CALLS = {"cuda_runtime", "cuda_driver", "runtime", "hip_runtime", "privateuse1_runtime"}
OPS = {"cpu_op", "operator"}
NOTES = {"user_annotation", "gpu_user_annotation"}
WAITS = re.compile(r"Synchronize|cudaMemcpy$|hipMemcpy$|hipMemcpyWithStream|EventSynchronize")
KINDS = {
    "collective": "nccl|rccl",
    "copy to or from the host": "HtoD|DtoH",
    "copy or fill on the device": "DtoD|Memset",
    "attention": "flash|fmha|attn|sage_|attention",
    "layout": "nchwToNhwc|nhwcToNchw|convertTensor|batched_transpose",
    "convolution": "conv|wgrad|dgrad|fprop|scudnn|winograd|igemm|implicit|gcgemm|fft2d",
    "product": "gemm|Cijk|cutlass|nvjet|gemv|matmul|splitK",
    "norm": "norm|bn_|Norm|rms",
    "softmax": "oft[Mm]ax",
    "lookup": "embedding|indexing_back|gather|index",
    "optimizer": "multi_tensor",
    "cat": "CatArray",
    "sort": "Radix|cub::",
    "pooling": "pool",
    "pointwise": "elementwise|triton|unrolled|vectorized|reduce|upsample|dropout",
}
SERVERS = re.compile(r"vllm|sglang|tensorrt_llm|execute_context|execute_model|prefill|decode|xdit", re.IGNORECASE)
CONVOLUTIONS = {"aten::convolution", "aten::cudnn_convolution", "aten::miopen_convolution", "aten::mkldnn_convolution"}
PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::linear", "aten::_scaled_mm", "aten::matmul"}


def load(path: Path) -> tuple[dict[str, Any], str]:
    """The trace as JSON, with what had to be mended to read it."""
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8", "replace")
    mended = ""
    for attempt in ("", "bare backslashes doubled", "cut after the last whole event"):
        try:
            data = json.loads(text, strict=False)
        except ValueError:
            text = re.sub(r'\\(?!["\\/bfnrtu])', r"\\\\", text) if not attempt else text[: text.rfind("}") + 1] + "]}"
            mended = "bare backslashes doubled" if not attempt else "cut after the last whole event"
        else:
            return (data if isinstance(data, dict) else {"traceEvents": data}), mended
    raise ValueError(f"{path}: no JSON")


def whole_events(data: dict[str, Any]) -> list[Event]:
    """The complete events, with numbers for ``ts`` and ``dur`` and a lower-case ``cat``."""
    events = []
    for raw in data.get("traceEvents", []):
        if raw.get("ph") == "X":
            try:
                start, length = float(raw["ts"]), float(raw.get("dur") or 0.0)
            except (KeyError, ValueError):
                continue
            cat = str(raw.get("cat", "")).lower()
            events.append({**raw, "ts": start, "dur": length, "cat": cat, "args": raw.get("args") or {}})
    return sorted(events, key=lambda event: (event["ts"], -event["dur"]))


def union(spans: Iterable[Span]) -> list[Span]:
    """The spans merged where they touch."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def total(spans: Iterable[Span]) -> float:
    """The length of spans that do not overlap."""
    return sum(end - start for start, end in spans)


def without(spans: Sequence[Span], others: Sequence[Span]) -> float:
    """The length of merged spans outside other merged spans."""
    both = sum(max(0.0, min(end, b) - max(start, a)) for start, end in spans for a, b in others)
    return total(spans) - both


def span(event: Event) -> Span:
    """Start and end of an event."""
    return event["ts"], event["ts"] + event["dur"]


def arg(event: Event, *names: str) -> Any:
    """The first of the arguments that the event has."""
    return next((event["args"][name] for name in names if name in event["args"]), None)


def ms(us: float) -> str:
    """Microseconds as milliseconds."""
    return f"{us / 1000:.3f}"


def convolution_flops(op: Event, image: list[int], weight: list[int]) -> float | None:
    """FLOPs of a forward convolution; without a recorded stride, of those that keep the channels, as of stride 1."""
    numbers = [json.loads(text) for text in arg(op, "Concrete Inputs") or [] if re.match(r"\[\d", str(text))]
    if len(numbers) < 2:
        if weight[0] != weight[1]:
            return None
        numbers = [[1], [weight[-1] // 2]]
    stride, padding = numbers[:2] if op["name"] == "aten::convolution" else numbers[1::-1]
    product = 2.0 * image[0] * weight[0] * weight[1]
    for place, (size, width) in enumerate(zip(image[2:], weight[2:], strict=True)):
        product *= width * ((size + 2 * padding[place % len(padding)] - width) // stride[place % len(stride)] + 1)
    return product


def flops(op: Event) -> float | None:
    """FLOPs of a matrix product or a convolution by its recorded shapes, two per multiply-add."""
    dims = arg(op, "Input Dims", "Input dims")
    name = op["name"]
    try:
        if name in {"aten::addmm", "aten::baddbmm"}:
            a, b = dims[1], dims[2]
        elif name in PRODUCTS:
            a, b = dims[0], dims[1]
        elif name in CONVOLUTIONS:
            return convolution_flops(op, dims[0], dims[1])
        else:
            return None
        product = 2.0 * b[-1 if name != "aten::linear" else 0]
        for size in a:
            product *= size
    except (TypeError, IndexError):
        return None
    return product


def link_ops(events: Sequence[Event]) -> dict[Any, Event]:
    """The op that encloses the launch, by correlation."""
    ops_of = collections.defaultdict(list)
    for event in events:
        if event["cat"] in OPS:
            ops_of[event.get("pid"), event.get("tid")].append(event)
    starts = {thread: [op["ts"] for op in ops] for thread, ops in ops_of.items()}
    linked = {}
    for call in events:
        key = arg(call, "correlation")
        thread = (call.get("pid"), call.get("tid"))
        if call["cat"] in CALLS and key is not None and thread in starts:
            place = bisect.bisect_right(starts[thread], call["ts"]) - 1
            for op in reversed(ops_of[thread][max(0, place - 60) : place + 1]):
                if op["ts"] + op["dur"] >= call["ts"]:
                    linked[key] = op
                    break
    return linked


def table(rows: Iterable[Sequence[Any]]) -> list[str]:
    """Indented lines."""
    return ["    " + "  ".join(str(cell) for cell in row) for row in rows]


def origin(data: dict[str, Any], events: Sequence[Event], mended: str) -> list[str]:
    """Era, device and what was recorded."""
    keys = {key: value for key, value in data.items() if key != "traceEvents"}
    devices = collections.Counter(device.get("name") for device in keys.pop("deviceProperties", None) or [])
    cats = collections.Counter(event["cat"] for event in events)
    phases = collections.Counter(event.get("ph") for event in data.get("traceEvents", []))
    lines = [f"metadata {json.dumps(keys)[:700]}", f"devices {dict(devices)}  phases {dict(phases)}"]
    lines.append(f"categories {dict(cats.most_common())}")
    lines.append(f"threads {collections.Counter((e.get('pid'), e.get('tid')) for e in events).most_common(8)}")
    ids = sorted({arg(e, "External id", "Ev Idx") for e in events if e["cat"] in OPS} - {None})
    if ids and all(isinstance(key, int) for key in ids):
        lines.append(
            f"ids of ops {len(ids)} in a range of {ids[-1] - ids[0] + 1}: {len(ids) / (ids[-1] - ids[0] + 1):.3f}"
        )
    notes = collections.Counter(re.sub(r"\d+", "#", e["name"]) for e in events if e["cat"] in NOTES)
    lines.append(f"annotations {notes.most_common(12)}")
    servers = sorted({e["name"][:70] for e in events if SERVERS.search(e["name"])})[:6]
    if mended:
        lines.append(f"mended: {mended}")
    return [*lines, f"server names {servers}"]


def device_time(device: Sequence[Event], window: Span) -> list[str]:
    """The device's busy time by kind of work, and its idle time."""
    busy = union(span(event) for event in device)
    wall = window[1] - window[0]
    gaps = [(b[0] - a[1], a[1]) for a, b in itertools.pairwise(busy)]
    classes = [0] * 4
    for gap, _ in gaps:
        classes[(gap > 5) + (gap > 50) + (gap > 1000)] += 1
    summed = ms(sum(event["dur"] for event in device))
    lines = [
        f"device busy {ms(total(busy))} of {ms(wall)} = {total(busy) / wall:.4f}; sum {summed}"
        f"; idle before first {ms(busy[0][0] - window[0])}, after last {ms(window[1] - busy[-1][1])};"
        f" busy in between {total(busy) / max(busy[-1][1] - busy[0][0], 1e-9):.4f}",
        f"gaps up to 5 us, 50 us, 1 ms, above: {classes};"
        f" largest {[(ms(gap), ms(at - window[0])) for gap, at in sorted(gaps, reverse=True)[:6]]}",
    ]
    streams = collections.Counter()
    for event in device:
        streams[arg(event, "stream") if arg(event, "stream") is not None else event.get("tid")] += event["dur"]
    lines.append(f"streams {[(key, ms(us)) for key, us in streams.most_common(6)]}")
    collective = union(span(e) for e in device if re.search(r"nccl|rccl|oneccl", e["name"], re.IGNORECASE))
    if collective:
        rest = union(span(e) for e in device if not re.search(r"nccl|rccl|oneccl", e["name"], re.IGNORECASE))
        lines.append(f"collectives {ms(total(collective))}, exposed {ms(without(collective, rest))}")
    return lines


def kernels(device: Sequence[Event], linked: dict[Any, Event], count: int = 16) -> list[str]:
    """The largest kernels, with op and shapes."""
    groups: dict[Any, list[float]] = collections.defaultdict(list)
    work: dict[Any, float] = collections.Counter()
    for event in device:
        op = linked.get(arg(event, "correlation"))
        shape = json.dumps(arg(op, "Input Dims", "Input dims"))[:110] if op else ""
        key = (event["name"][:80], op["name"] if op else "-", shape)
        groups[key].append(event["dur"])
        work[key] += (flops(op) or 0.0) if op else 0.0
    every = sum(event["dur"] for event in device) or 1.0
    rows = []
    for key, durs in sorted(groups.items(), key=lambda item: -sum(item[1]))[:count]:
        rate = f"{work[key] / sum(durs) / 1e6:.1f} TFLOP/s" if work[key] and sum(durs) else ""
        rows.append(
            (
                f"{sum(durs) / every:6.3f}",
                ms(sum(durs)),
                f"x{len(durs)}",
                f"median {statistics.median(durs):.1f} us",
                *key,
                rate,
            )
        )
    kinds: dict[str, float] = collections.Counter()
    for event in device:
        kinds[next((kind for kind, names in KINDS.items() if re.search(names, event["name"])), "other")] += event["dur"]
    parts = [f"{kind} {ms(us)}" for kind, us in sorted(kinds.items(), key=lambda item: -item[1])]
    short = sum(event["dur"] < 10 for event in device)
    return [f"kernels and copies {len(device)}, shorter than 10 us {short}", f"kinds {parts}", *table(rows)]


def launches(events: Sequence[Event], device: Sequence[Event]) -> list[str]:
    """Delay from launch to start, and launches that stand for many kernels."""
    calls = {arg(e, "correlation"): e for e in events if e["cat"] in CALLS and arg(e, "correlation") is not None}
    delays = [e["ts"] - calls[k]["ts"] for e in device if (k := arg(e, "correlation")) in calls]
    orphans = sum(arg(e, "correlation") not in calls for e in device)
    lines = [f"device events without a recorded call {orphans} of {len(device)}"]
    if delays:
        cut = statistics.quantiles(delays, n=10) if len(delays) > 2 else delays
        lines.append(
            f"launch to start, us: deciles {[round(value) for value in cut]}, negative {sum(d < 0 for d in delays)}"
        )
    names = collections.Counter()
    for event in events:
        if event["cat"] in CALLS:
            names[event["name"]] += event["dur"]
    counts = collections.Counter(e["name"] for e in events if e["cat"] in CALLS)
    lines += table((name, f"x{counts[name]}", ms(us)) for name, us in names.most_common(9))
    ran = {arg(e, "correlation") for e in device}
    silent = [
        e
        for e in events
        if e["cat"] in CALLS and re.search("LaunchKernel|GraphLaunch", e["name"]) and arg(e, "correlation") not in ran
    ]
    return [*lines, f"launches without a device event {len(silent)}"]


def copies(device: Sequence[Event]) -> list[str]:
    """Copies by direction, with bytes and rate."""
    groups: dict[str, list[Event]] = collections.defaultdict(list)
    for event in device:
        if event["cat"] in {"gpu_memcpy", "gpu_memset"}:
            groups[event["name"]].append(event)
    rows = []
    for name, group in groups.items():
        moved = sum(float(arg(e, "bytes") or 0) for e in group)
        us = sum(e["dur"] for e in group)
        rows.append(
            (name, f"x{len(group)}", ms(us), f"{moved / 1e6:.3f} MB", f"{moved / max(us, 1e-9) / 1e3:.2f} GB/s")
        )
    return table(rows)


def steps(events: Sequence[Event], device: Sequence[Event]) -> list[str]:
    """Marked steps, with the device's part of each."""
    marks = [e for e in events if re.match(r"ProfilerStep", e["name"]) and e["cat"] != "gpu_user_annotation"]
    busy = union(span(event) for event in device)
    rows = []
    for mark in marks[:10]:
        start, end = span(mark)
        part = sum(max(0.0, min(b, end) - max(a, start)) for a, b in busy)
        rows.append((mark["name"], ms(mark["dur"]), f"device {ms(part)} = {part / max(mark['dur'], 1e-9):.3f}"))
    return [f"marked steps {len(marks)}", *table(rows)]


def own_times(events: Sequence[Event], cats: set[str]) -> dict[str, list[float]]:
    """Own time of each event of a kind (without the events of the kind inside it), by name."""
    own: dict[str, list[float]] = collections.defaultdict(list)
    stacks: dict[Any, list[list[Any]]] = collections.defaultdict(list)
    for event in events:
        if event["cat"] not in cats:
            continue
        stack = stacks[event.get("pid"), event.get("tid")]
        while stack and stack[-1][0] <= event["ts"]:
            _, name, us = stack.pop()
            own[name].append(us)
        if stack:
            stack[-1][2] -= event["dur"]
        stack.append([event["ts"] + event["dur"], event["name"], event["dur"]])
    for stack in stacks.values():
        for _, name, us in stack:
            own[name].append(us)
    return own


def host(events: Sequence[Event], window: Span) -> list[str]:
    """Ops, Python and annotations by own time."""
    lines = []
    kinds = [("ops", OPS | {""}), ("python", {"python_function"}), ("annotations", {"user_annotation"})]
    for kind, cats in kinds:
        own = own_times(events, cats)
        if own:
            every = sum(map(sum, own.values()))
            share = every / (window[1] - window[0])
            lines.append(
                f"{kind}: {sum(map(len, own.values()))} calls, own time {ms(every)} = {share:.3f} of the window"
            )
            top = sorted(own.items(), key=lambda item: -sum(item[1]))[: 12 if kind == "ops" else 8]
            lines += table(
                (
                    ms(sum(us)),
                    f"x{len(us)}",
                    f"median {statistics.median(us):.1f} us",
                    f"largest {max(us):.0f} us",
                    name[:100],
                )
                for name, us in top
            )
    return lines


def first_calls(events: Sequence[Event], window: Span) -> list[str]:
    """Single calls that take more than half of their group's time and 5 % of the window."""
    groups: dict[str, list[Event]] = collections.defaultdict(list)
    for event in events:
        if event["cat"] in OPS | CALLS | {""}:
            groups[event["name"]].append(event)
    rows = []
    for name, group in groups.items():
        largest = max(group, key=lambda event: event["dur"])
        limit = max(0.5 * sum(event["dur"] for event in group), 0.05 * (window[1] - window[0]))
        if len(group) > 1 and largest["dur"] > limit:
            median = statistics.median(event["dur"] for event in group)
            place = f"call {group.index(largest) + 1} of {len(group)}"
            rows.append((ms(largest["dur"]), place, f"median of all {median:.1f} us", name))
    rows.sort(key=lambda row: -float(row[0]))
    return ["one call above half of its group and 5 % of the window:", *table(rows[:10])]


def products(events: Sequence[Event]) -> list[str]:
    """Products and convolutions by shapes, with their rate on the host's clock (a CPU's rate)."""
    modelled: dict[Any, list[float]] = collections.defaultdict(lambda: [0.0, 0.0, 0.0])
    wrappers = {"aten::linear", "aten::matmul", "aten::convolution"}
    for event in events:
        amount = flops(event) if event["cat"] in OPS and event["name"] not in wrappers else None
        if amount:
            key = (event["name"], json.dumps(arg(event, "Input Dims", "Input dims"))[:90])
            modelled[key] = [a + b for a, b in zip(modelled[key], (event["dur"], amount, 1.0), strict=True)]
    top = sorted(modelled.items(), key=lambda item: -item[1][0])[:8]
    rows = [
        (ms(us), f"x{count:.0f}", f"{amount / max(us, 1e-9) / 1e3:.1f} GFLOP/s", *key)
        for key, (us, amount, count) in top
    ]
    every = sum(row[1] for row in modelled.values()) / 1e9
    return [f"products and convolutions with shapes {every:.3f} GFLOP; host time of the op, rate in it", *table(rows)]


def idle_host(events: Sequence[Event], device: Sequence[Event], window: Span) -> list[str]:
    """The host calls that cover most of the device's idle time, innermost first."""
    busy = union(span(event) for event in device)
    edges = [window[0], *(edge for pair in busy for edge in pair), window[1]]
    gaps = [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if b > a]
    starts = [gap[0] for gap in gaps]
    covered: dict[str, float] = collections.Counter()
    for event in events:
        if event["cat"] in CALLS | OPS | {"user_annotation"}:
            start, end = span(event)
            place = max(0, bisect.bisect_right(starts, start) - 1)
            while place < len(gaps) and gaps[place][0] < end:
                covered[event["name"][:90]] += max(0.0, min(end, gaps[place][1]) - max(start, gaps[place][0]))
                place += 1
    idle = total(gaps)
    rows = sorted(covered.items(), key=lambda item: -item[1])[:14]
    return [
        f"idle {ms(idle)}; calls open in it (they nest):",
        *table((ms(us), f"{us / max(idle, 1e-9):.3f}", name) for name, us in rows),
    ]


def facts(path: Path) -> str:
    """Everything above for one trace."""
    data, mended = load(path)
    events = whole_events(data)
    lines = [f"== {path.name}", *origin(data, events, mended)]
    if not events:
        return "\n".join([*lines, "no complete events"])
    device = [e for e in events if e["cat"] in DEVICE]
    timed = [e for e in events if e["cat"] not in {"trace", "overhead"} and "Iteration" not in e["name"]]
    window = (min(e["ts"] for e in timed), max(e["ts"] + e["dur"] for e in timed))
    lines.append(f"window {ms(window[1] - window[0])}")
    lines += steps(events, device)
    if device:
        linked = link_ops(events)
        lines += device_time(device, window) + launches(events, device) + copies(device)
        lines += kernels(device, linked) + idle_host(events, device, window)
    lines += host(events, window) + first_calls(events, window) + products(events)
    return "\n".join(lines)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(facts(Path(argument)), end="\n\n")
