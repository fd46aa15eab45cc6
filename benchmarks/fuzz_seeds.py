"""Small traces to mutate: samples of this repository cut to some hundred events, and programs of each kind by hand."""

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.builders import H100, Event, complete, frame, kernel, launch, memcpy, op, step
from tests.trace.test_read_eras import LEGACY, TORCH_1_8

SAMPLES = Path(__file__).parents[1] / "sample_traces"
_MOST_EVENTS = 250
_STEP_US, _STEPS = 1000.0, 3
_DEFAULT_GROUP = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": 2, "ranks": [0, 1]}


def _document(events: Sequence[Event], **more: Any) -> Mapping[str, Any]:
    top = {"schemaVersion": 1, "deviceProperties": [H100], "baseTimeNanoseconds": 1_700_000_000_000_000_000}
    return {**top, **more, "traceEvents": [*events]}


def _training_step(number: int, rank: int | None) -> list[Event]:
    """A step of training: a batch is copied, a product, an activation, a reduction, an optimizer, a wait for it all."""
    at, first = number * _STEP_US, number * 10
    events = [
        step(number, at, _STEP_US - 10),
        frame("train.py(10): train", at, 900),
        frame("nn.Module: Linear_0", at + 150, 200),
        complete("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "user_annotation", at + 1, 60),
        op("aten::copy_", at + 70, 40, dims=[[64, 256], [64, 256]], external_id=first),
        launch(first + 1, at + 80, 20, "cudaMemcpyAsync"),
        memcpy(first + 1, at + 105, 30, 65536),
        op("aten::linear", at + 150, 100, dims=[[64, 256], [512, 256], [512]], external_id=first + 1),
        op("aten::addmm", at + 155, 90, dims=[[512], [64, 256], [256, 512], [], []], external_id=first + 2),
        launch(first + 2, at + 170, 10),
        kernel(first + 2, at + 200, 120, "ampere_sgemm_128x64_tn"),
        op("aten::relu", at + 260, 30, dims=[[64, 512]], external_id=first + 3, strides=[[512, 1]]),
        launch(first + 3, at + 265, 8),
        kernel(first + 3, at + 321, 20, "void at::native::vectorized_elementwise_kernel<4, relu>"),
        complete("Optimizer.step#SGD.step", "user_annotation", at + 400, 120),
        op("aten::_foreach_add_", at + 410, 60, dims=[[[512, 256], [512]], [[512, 256], [512]], []]),
        launch(first + 4, at + 420, 10, "cudaLaunchKernelExC"),
        kernel(first + 4, at + 440, 15, "void at::native::multi_tensor_apply_kernel<Add>", stream=7),
        complete("cudaDeviceSynchronize", "cuda_runtime", at + 700, 150, args={"correlation": first + 5}),
        _allocation(at + 152, 131072, 131072 * (number + 1)),
        _allocation(at + 300, -65536, 65536),
    ]
    return events if rank is None else [*events, *_reduction(at + 500, first + 6)]


def _allocation(at_us: float, nbytes: int, total: int) -> Event:
    args = {"Total Allocated": total, "Total Reserved": 2**21, "Bytes": nbytes, "Addr": 4096, "Device Id": 0}
    return {
        "ph": "i",
        "cat": "cpu_instant_event",
        "s": "t",
        "name": "[memory]",
        "pid": 100,
        "tid": 100,
        "ts": at_us,
        "args": {**args, "Device Type": 1},
    }


def _reduction(at_us: float, correlation: int) -> list[Event]:
    told = {
        "Collective name": "allreduce",
        "In msg nelems": 131072,
        "Out msg nelems": 131072,
        "Group size": 2,
        "dtype": "Float",
        "Process Group Name": "0",
        "Process Group Description": "default_pg",
        "Process Group Ranks": "[0, 1]",
    }
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    return [
        complete("nccl:all_reduce", "user_annotation", at_us, 60),
        launch(correlation, at_us + 10, 10),
        kernel(correlation, at_us + 30, 100, name, stream=20, args=told),
    ]


def _training(rank: int | None = None) -> Mapping[str, Any]:
    events = [event for number in range(_STEPS) for event in _training_step(number, rank)]
    if rank is None:
        return _document(events, record_shapes=1, with_stack=1, profile_memory=1)
    info = {"backend": "nccl", "rank": rank, "world_size": 2, "pg_count": 1, "pg_config": [_DEFAULT_GROUP]}
    return _document(events, distributedInfo=info)


def _without_ops() -> Mapping[str, Any]:
    """Frames, waits and a copy, as of a program that leaves all work to a library of its own."""
    events = []
    for number in range(_STEPS):
        at = number * _STEP_US
        events += [step(number, at, 990), frame("serve.py(20): wait", at + 10, 800), frame("sleep", at + 20, 300)]
        events += [complete("cudaStreamSynchronize", "cuda_runtime", at + 400, 200, args={"correlation": number})]
        moved = {"stream": 7, "device": 0, "bytes": 4096, "correlation": _STEPS + number}
        events += [complete("Memcpy DtoH (Device -> Pinned)", "gpu_memcpy", at + 420, 5, args=moved)]
    return _document(events)


def _on_cpu() -> Mapping[str, Any]:
    events = []
    for number in range(_STEPS):
        at = number * _STEP_US
        events += [step(number, at, 990), frame("model.py(5): forward", at + 10, 900)]
        events += [op("aten::linear", at + 20, 400, dims=[[8, 16], [16, 16], []])]
        events += [op("aten::addmm", at + 30, 380, dims=[[16], [8, 16], [16, 16], [], []])]
        events += [op("aten::item", at + 500, 50, dims=[[]]), op("aten::_local_scalar_dense", at + 505, 30, dims=[[]])]
    return _document(events, deviceProperties=[])


def _replayed_graph() -> Mapping[str, Any]:
    """A captured graph that is launched once per step, with two streams and a wait between them."""
    events = []
    for number in range(_STEPS):
        at, correlation = number * _STEP_US, number + 1
        events += [step(number, at, 990), launch(correlation, at + 50, 30, "cudaGraphLaunch")]
        for position in range(4):
            stream = 7 + position % 2
            args = {"graph id": 1, "graph node id": position}
            events += [kernel(correlation, at + 90 + 100 * position, 90, "gemm_128x128_tn", stream=stream, args=args)]
        wait = {"stream": 7, "correlation": correlation, "wait_on_stream": 8, "cuda_sync_kind": "Stream Wait Event"}
        events += [complete("Stream Wait Event", "cuda_sync", at + 300, 20, args=wait, pid=0, tid=7)]
        events += [complete("cudaStreamSynchronize", "cuda_runtime", at + 100, 600, args={"correlation": 90 + number})]
    return _document(events)


def _cut_sample(path: Path) -> Mapping[str, Any]:
    """A real trace cut to its first events."""
    document = json.loads(gzip.decompress(path.read_bytes()))
    events = document["traceEvents"]
    timed = sorted((each for each in events if "ts" in each and each.get("ph") != "M"), key=lambda each: each["ts"])
    named = [each for each in events if each.get("ph") == "M"]
    return {**document, "traceEvents": [*named[:20], *timed[:_MOST_EVENTS]]}


def write_seeds(folder: Path) -> list[Path]:
    """Writes the small traces as files, half of them compressed; their paths, in order."""
    made: dict[str, Any] = {
        "training": _training(),
        "rank": _training(rank=0),
        "without_ops": _without_ops(),
        "on_cpu": _on_cpu(),
        "replayed_graph": _replayed_graph(),
        "legacy": json.loads(LEGACY),
        "torch_1_8": json.loads(TORCH_1_8),
    }
    for path in sorted(SAMPLES.glob("*/trace.rank0.json.gz")):
        made[f"sample_{path.parent.name}"] = _cut_sample(path)
    paths = []
    for number, (name, document) in enumerate(made.items()):
        text = json.dumps(document).encode()
        path = folder / f"{name}.json{'.gz' if number % 2 else ''}"
        path.write_bytes(gzip.compress(text, 1) if number % 2 else text)
        paths.append(path)
    return paths


def write_ranks(folder: Path) -> Path:
    """Writes the two ranks of a small job into a folder; the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in (0, 1):
        (folder / f"trace.rank{rank}.json").write_text(json.dumps(_training(rank=rank)))
    return folder
