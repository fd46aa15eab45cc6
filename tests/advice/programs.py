"""Steps made of calls, one after the other, for the rules about kernels: on a CPU, and on a GPU that has a queue."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bottleneck.schema.evidence import Evidence
from tests.advice.cases import case_of
from tests.builders import Event, complete, frame, kernel, launch, op, step


@dataclass(frozen=True)
class Call:
    """One op that takes so long (GPU: its kernel does), with its sizes; ``more`` goes to the builder of the op."""

    name: str
    us: float
    dims: Sequence[object] | None
    kernel: str = "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>(int)"
    grid: int = 4000
    inside: str | None = None
    more: dict[str, Any] = field(default_factory=dict)


def on_cpu(
    folder: Path, calls: Sequence[Call], steps: int = 2, marks: Sequence[str] = (), **recording: Any
) -> Evidence:
    """The case of steps that run these ops on the host without a pause; ``marks`` are annotations over each step."""
    return case_of(folder, _events(calls, steps, marks, on_device=False), **recording)


def on_gpu(
    folder: Path, calls: Sequence[Call], steps: int = 1, *, called_by: Sequence[str] = (), **recording: Any
) -> Evidence:
    """The case of steps whose kernels run without a pause on an H100, launched 5 us apart; then the host waits.

    ``called_by`` are the frames around all calls, outermost first.
    """
    events = _events(calls, steps, (), on_device=True)
    length = max(event["ts"] + event["dur"] for event in events if "dur" in event)
    return case_of(folder, [*events, *(frame(name, 0, length) for name in called_by)], **recording)


def _events(calls: Sequence[Call], steps: int, marks: Sequence[str], *, on_device: bool) -> list[Event]:
    length = sum(call.us for call in calls) + 20
    events = [frame("train.py(12): train", 0, length * steps)]
    for number in range(steps):
        at = number * length
        events.append(step(number, at, length - 1))
        events += [complete(mark, "user_annotation", at + 1, length - 4) for mark in marks]
        at += 2
        for index, call in enumerate(calls):
            if on_device:
                events += _launched(call, number * length + 1 + 5 * index, at + 8, number * len(calls) + index + 1)
            else:
                events += _run(call, at)
            at += call.us
        if on_device:
            begin = number * length + 5 * len(calls) + 1
            events.append(launch(10**7 + number, begin, max(at + 9 - begin, 1.0), "cudaDeviceSynchronize"))
    return events


def _run(call: Call, at: float) -> list[Event]:
    around = [op(call.inside, at, call.us - 0.1)] if call.inside else []
    return [*around, op(call.name, at + 0.01, call.us - 0.2, dims=call.dims, **call.more)]


def _launched(call: Call, host_at: float, device_at: float, correlation: int) -> list[Event]:
    around = [op(call.inside, host_at, 4.9, external_id=10**6 + correlation)] if call.inside else []
    return [
        *around,
        op(call.name, host_at + 0.1, 4.5, dims=call.dims, external_id=correlation, **call.more),
        launch(correlation, host_at + 1, 2),
        kernel(correlation, device_at, call.us, call.kernel, grid=[call.grid, 1, 1]),
    ]


def halves(count: int) -> dict[str, Any]:
    """Types of so many bf16 tensors, for ``Call.more``."""
    return {"types": ["c10::BFloat16"] * count}
