"""Exports a window as a trace file with the events of torch's own exporter.

The program waits for it: torch's own, in Python as well, takes a third more. From torch 2.13 on the activities of a
window can be read from Python; ``native_export`` serves the torch before.
"""

import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

# torch counts times from the start of such a stretch, as Kineto does: numbers that a double holds to the nanosecond.
_BASE_SECONDS = 7889238
_GZIP_LEVEL, _EVENTS_AT_ONCE = 1, 4096
# Kineto's kinds of arrows: from a forward op to its backward op, from a launch to its kernel.
_FLOWS, _LAUNCH_FLOW = {1: "fwdbwd"}, "ac2g"
# What is linked to an op by another field, if at all: its own number is no op's.
_UNLINKED = frozenset(
    {"gpu_memcpy", "gpu_memset", "kernel", "cuda_runtime", "cuda_driver", "privateuse1_runtime", "privateuse1_driver"}
)
_PARAM_COMMS = "record_param_comms"
_NO_THREAD = -(2**63)
_SPANS_PLACE, _FIRST_GPU_PLACE, _OVERHEAD_PLACE = 0x20000000, 5_000_000, 0x1000000


def export(torch: Any, results: Any, path: Path, metadata: Mapping[str, str]) -> None:
    """Writes the gzipped trace of the results `WithLines`; ``metadata`` holds JSON by name.

    OSError where the disk cannot take it.
    """
    from isal import igzip  # loaded only where it is used

    activities = results.trace_activities()
    first_ns = min((activity.timestamp() for activity in activities), default=0)
    base_ns = first_ns // (_BASE_SECONDS * 10**9) * _BASE_SECONDS * 10**9
    fields = {
        "schemaVersion": "1",
        "deviceProperties": json.dumps(_devices(torch)),
        **metadata,
        "displayTimeUnit": '"ms"',
        "baseTimeNanoseconds": str(base_ns),
    }
    head = "".join(f"{json.dumps(name)}: {value},\n" for name, value in fields.items())
    events = _events(activities, base_ns, first_ns)
    with igzip.open(path, "wb", _GZIP_LEVEL) as file:  # type: ignore[no-untyped-call]
        file.write(f'{{\n{head}"traceEvents": ['.encode())
        separator = "\n"
        while chunk := list(itertools.islice(events, _EVENTS_AT_ONCE)):
            file.write((separator + ",\n".join(chunk)).encode())
            separator = ",\n"
        file.write(f'\n],\n"traceName": {json.dumps(str(path))}\n}}\n'.encode())


def _events(activities: Sequence[Any], base_ns: int, first_ns: int) -> Iterator[str]:
    """Yields each activity as an event, and last what is said of all.

    Behind it comes the end of an arrow that it has.
    """
    spelled: dict[str, str] = {}
    threads_us: dict[tuple[int, int], str] = {}
    last_ns = first_ns
    for activity in activities:
        try:
            name = activity.name()
        except UnicodeDecodeError:  # read from freed memory, which another reading found to be text
            continue
        category, start_ns, dur_ns = activity.type(), activity.timestamp(), activity.duration()
        process, thread = activity.device_id(), activity.resource_id()
        thread = 0 if thread == _NO_THREAD else abs(thread)
        text = spelled.get(name)
        if text is None:
            text = spelled[name] = json.dumps(name)
        offset_ns = start_ns - base_ns
        ts = f"{offset_ns // 1000}.{offset_ns % 1000:03d}"
        dur = f"{dur_ns // 1000}.{dur_ns % 1000:03d}" if dur_ns > 0 else "0.000"
        if (process, thread) not in threads_us:
            threads_us[process, thread] = ts
        last_ns = max(last_ns, start_ns + dur_ns)
        number = activity.linked_correlation_id()
        if not number and category not in _UNLINKED:
            number = activity.correlation_id()
        details = activity.metadata_json()
        if category == "kernel":
            details = _with_collective(activity, details)
        if number:
            details = f'"External id": {number},{details}' if details else f'"External id": {number}'
        place = f'"pid":{process},"tid":{thread},"ts":{ts}'
        arguments = f',"args":{{{details}}}' if details else ""
        yield f'{{"ph":"X","cat":"{category}","name":{text},{place},"dur":{dur}{arguments}}}'
        flow = activity.flow_id()
        if flow > 0:
            kind = _FLOWS.get(activity.flow_type(), _LAUNCH_FLOW)
            phase, bind = ("s", "") if activity.flow_start() else ("f", ',"bp":"e"')
            yield f'{{"ph":"{phase}","id":{flow},{place},"cat":"{kind}","name":"{kind}"{bind}}}'
    yield from _threads(threads_us)
    if threads_us:
        yield from _span(_in_us(first_ns - base_ns), _in_us(last_ns - first_ns))
    end = _in_us(last_ns + 1000 - base_ns)
    yield f'{{"ph":"i","s":"g","name":"Record Window End","pid":"","tid":"","ts":{end}}}'


def _with_collective(kernel: Any, details: str) -> str:
    """Gives the details of a kernel with those of its collective."""
    op = kernel.linked_activity()
    more = op.metadata_json() if op is not None and op.name() == _PARAM_COMMS else ""
    return ",".join(filter(None, (details, more)))


def _threads(threads_us: Mapping[tuple[int, int], str]) -> Iterator[str]:
    """Yields names and places of processes and threads.

    They are at the time of the first event of each.
    """
    here, begun = os.getpid(), set()
    for (process, thread), ts in sorted(threads_us.items()):
        is_host = process == here or process < 0
        if process not in begun:
            begun.add(process)
            label = "CPU" if process == here else "Overhead" if is_host else f"GPU {process}"
            place = (process if process >= 0 else _OVERHEAD_PLACE) if is_host else _FIRST_GPU_PLACE + process
            yield _note("process_name", ts, process, 0, name="python")
            yield _note("process_labels", ts, process, 0, labels=label)
            yield _note("process_sort_index", ts, process, 0, sort_index=place)
        yield _note("thread_name", ts, process, thread, name=f"thread {thread}" if is_host else f"stream {thread} ")
        yield _note("thread_sort_index", ts, process, thread, sort_index=thread)


def _span(ts: str, dur: str) -> Iterator[str]:
    """Yields the marks of the whole window."""
    span = '"cat":"Trace","name":"PyTorch Profiler (0)","pid":"Spans","tid":"PyTorch Profiler"'
    yield f'{{"ph":"X",{span},"ts":{ts},"dur":{dur},"args":{{"Op count": 0}}}}'
    yield _note("process_sort_index", ts, "Spans", 0, sort_index=_SPANS_PLACE)
    start = '"name":"Iteration Start: PyTorch Profiler","pid":"Traces","tid":"Trace PyTorch Profiler"'
    yield f'{{"ph":"i","s":"g",{start},"ts":{ts}}}'


def _note(name: str, ts: str, process: int | str, thread: int, /, **arguments: str | int) -> str:
    where = f'"pid":{json.dumps(process)},"tid":{thread}'
    return f'{{"ph":"M","name":"{name}","ts":{ts},{where},"args":{json.dumps(arguments)}}}'


def _in_us(time_ns: int) -> str:
    return f"{time_ns // 1000}.{time_ns % 1000:03d}"


def _devices(torch: Any) -> Sequence[Mapping[str, Any]]:
    """Describes each GPU as Kineto does."""
    devices = (torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count()))
    return [
        {
            "id": number,
            "name": device.name,
            "totalGlobalMem": device.total_memory,
            "computeMajor": device.major,
            "computeMinor": device.minor,
            "maxThreadsPerBlock": device.max_threads_per_block,
            "maxThreadsPerMultiprocessor": device.multi_processor_count,
            "regsPerMultiprocessor": device.regs_per_multiprocessor,
            "warpSize": device.warp_size,
        }
        for number, device in enumerate(devices)
    ]
