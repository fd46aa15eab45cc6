"""Traces made by hand: a few events in the words of today's profiler, written as a file that the reader takes."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Event = dict[str, Any]

HOST = 100
H100 = {
    "id": 0,
    "name": "NVIDIA H100 80GB HBM3",
    "totalGlobalMem": 85018279936,
    "computeMajor": 9,
    "computeMinor": 0,
    "warpSize": 32,
    "numSms": 132,
}


def complete(name: str, cat: str, ts: float, dur: float, **more: Any) -> Event:
    """A complete event ('ph': 'X') on the main host thread unless pid and tid say otherwise."""
    args = more.pop("args", {})
    return {"ph": "X", "cat": cat, "name": name, "pid": HOST, "tid": HOST, "ts": ts, "dur": dur, "args": args, **more}


def op(name: str, ts: float, dur: float, *, dims: Sequence[object] | None = None, **more: Any) -> Event:
    """A framework op; ``dims`` and ``types`` (default float) record its shapes, ``concrete`` its scalars."""
    args: dict[str, Any] = {"External id": more.pop("external_id", 1)}
    if dims is not None:
        args["Input Dims"] = dims
        args["Input type"] = more.pop("types", ["float" if shape else "Scalar" for shape in dims])
        args["Concrete Inputs"] = more.pop("concrete", [""] * len(dims))
        strides = more.pop("strides", None)
        if strides is not None:
            args["Input Strides"] = strides
    return complete(name, "cpu_op", ts, dur, args=args, **more)


def in_graph(event: Event, number: int, forward_thread: int = 0) -> Event:
    """The op with a sequence number of autograd; of a backward node also with its forward thread."""
    return event | {"args": event["args"] | {"Sequence number": number, "Fwd thread id": forward_thread}}


def launch(correlation: int, ts: float, dur: float, name: str = "cudaLaunchKernel", **more: Any) -> Event:
    """A runtime call that issues device work of the same correlation."""
    return complete(name, "cuda_runtime", ts, dur, args={"correlation": correlation, "cbid": 211}, **more)


def kernel(correlation: int, ts: float, dur: float, name: str = "some_kernel", **more: Any) -> Event:
    """A kernel on device 0, stream 7 (``stream=`` for another), with one block per SM unless ``grid=`` says more."""
    stream = more.pop("stream", 7)
    args = {
        "correlation": correlation,
        "device": 0,
        "stream": stream,
        "grid": more.pop("grid", [132, 1, 1]),
        "block": [256, 1, 1],
        **more.pop("args", {}),
    }
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": ts, "dur": dur, "args": args}


def memcpy(correlation: int, ts: float, dur: float, nbytes: int, kind: str = "HtoD (Pinned -> Device)") -> Event:
    """A copy on device 0, stream 7."""
    args = {"correlation": correlation, "device": 0, "stream": 7, "bytes": nbytes}
    return {
        "ph": "X",
        "cat": "gpu_memcpy",
        "name": f"Memcpy {kind}",
        "pid": 0,
        "tid": 7,
        "ts": ts,
        "dur": dur,
        "args": args,
    }


def step(number: int, ts: float, dur: float) -> Event:
    """A profiler step mark on the main host thread."""
    return complete(f"ProfilerStep#{number}", "user_annotation", ts, dur)


def frame(name: str, ts: float, dur: float, **more: Any) -> Event:
    """A Python frame such as 'model.py(57): forward' or 'nn.Module: Linear_0'."""
    return complete(name, "python_function", ts, dur, **more)


def write_trace(path: Path, events: Sequence[Event], **top: Any) -> Path:
    """The file at ``path`` holding ``events`` in the object form, with an H100 unless ``deviceProperties`` is given."""
    document: Mapping[str, Any] = {
        "schemaVersion": 1,
        "deviceProperties": [H100],
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
        **top,
        "traceEvents": list(events),
    }
    path.write_text(json.dumps(document))
    return path
