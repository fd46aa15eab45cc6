"""Cases for the rules, from events made by hand through the stages that a real trace goes through."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bottleneck.pipeline import examine
from bottleneck.schema.accounts import ACCOUNTS
from bottleneck.schema.analysis import IdleCause, LedgerEntry
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.measurements import StepTimes, Timing
from bottleneck.schema.recording import RankTrace, Recording, write_recording
from bottleneck.schema.records import replace
from bottleneck.schema.sources import find_traces
from tests.analysis.frames import CPU
from tests.builders import Event, complete, frame, kernel, launch, op, step, write_trace


def case_of(folder: Path, events: Sequence[Event], **recording: Any) -> Evidence:
    """The case of a trace with these events; with any field of a recording given, of a recording that holds it.

    A trace without device work is one of a CPU, whose recording has the ceilings of ``tests.analysis.frames.CPU``
    unless ``device`` says otherwise. ``unprofiled_us`` is short for step times around that median.
    """
    folder.mkdir(parents=True, exist_ok=True)
    on_device = any(event["cat"] in {"kernel", "gpu_memcpy", "gpu_memset"} for event in events)
    if on_device and not recording:
        return examine(find_traces(write_trace(folder / "trace.json", events))[0])
    write_trace(folder / "trace.rank0.json", events, **({} if on_device else {"deviceProperties": []}))
    median_us = recording.pop("unprofiled_us", None)
    if median_us is not None:
        recording["unprofiled"] = Timing(median_us, 0.99 * median_us, 1.01 * median_us, 100)
    made = Recording(
        created="2026-01-02T03:04:05+00:00",
        command=("train.py",),
        form="workload",
        step_source="workload",
        program_status=0,
        framework="PyTorch 2.13.0",
        versions={},
        environment={},
        traces=(RankTrace(0, "trace.rank0.json"),),
        device=None if on_device else CPU,
    )
    write_recording(folder, replace(made, **recording))
    return examine(find_traces(folder)[0])


def program_line(number: int, ts: float, dur: float) -> Event:
    """A stretch at a line of train.py."""
    return complete(f"train.py({number}): <module>", "python_line", ts, dur)


def two_steps(folder: Path, body: Sequence[Event], length_us: float = 1000.0, **recording: Any) -> Evidence:
    """The case of two steps of a CPU program with these events each; with any field of a recording given."""
    events = [frame("train.py(1): <module>", 0, 2 * length_us)]
    for number in range(2):
        events.append(step(number, length_us * number, length_us - 1))
        events += [event | {"ts": event["ts"] + length_us * number} for event in body]
    return case_of(folder, events, unprofiled_us=length_us, **recording)


def gpu_events(
    kernels: int, kernel_us: float, every_us: float, steps: int = 2, name: str = "some_kernel"
) -> list[Event]:
    """Steps that launch so many kernels from train.py:12, one each ``every_us``: a slow host if kernels are shorter."""
    length = every_us * kernels + kernel_us + 20
    events = [frame("train.py(12): train", 0, length * steps)]
    for number in range(steps):
        at = length * number
        events.append(step(number, at, length - 1))
        free = at
        for index in range(kernels):
            correlation, now = number * kernels + index + 1, at + every_us * index
            free = max(free, now + 8)
            events += [
                op("aten::add", now, every_us * 0.8, dims=[[8, 8], [8, 8], []], external_id=correlation),
                launch(correlation, now + 1, every_us * 0.2),
                kernel(correlation, free, kernel_us, name),
            ]
            free += kernel_us
    return events


def cpu_events(ops: int, op_us: float, every_us: float, steps: int = 2, **more: Any) -> list[Event]:
    """Steps that run so many ops of 8 x 8 numbers on the host, one each ``every_us``, from train.py:12.

    ``more`` goes to each op: ``dims`` for other sizes, ``name`` for another op.
    """
    name, dims = more.pop("name", "aten::add"), more.pop("dims", [[8, 8], [8, 8], []])
    length = every_us * ops + 10
    events = [frame("train.py(12): train", 0, length * steps)]
    for number in range(steps):
        at = length * number
        events.append(step(number, at, length - 1))
        events += [op(name, at + 1 + every_us * index, op_us, dims=dims, **more) for index in range(ops)]
    return events


def with_analysis(case: Evidence, **parts: Any) -> Evidence:
    """The case with parts of its analysis replaced."""
    return replace(case, analysis=replace(case.analysis, **parts))


def with_recording(case: Evidence, **parts: Any) -> Evidence:
    """The case with parts of its recording replaced (it must have one)."""
    assert case.recording is not None
    return replace(case, recording=replace(case.recording, **parts))


def with_ledger(case: Evidence, accounts: Mapping[str, float], idle: Sequence[IdleCause] | None = None) -> Evidence:
    """The case with another ledger of one step, in microseconds, and the idle rows that belong to it.

    Without ``idle``, every idle account becomes one row without a line.
    """
    wall_us = sum(accounts.values())
    entries = tuple(LedgerEntry(name, ACCOUNTS[name].group, us, us / wall_us) for name, us in accounts.items())
    rows = tuple(
        IdleCause(name.removeprefix("overhead."), us, us / wall_us, None, 1.0)
        for name, us in accounts.items()
        if name.startswith("overhead.") and name != "overhead.launch_floor"
    )
    idle = rows if idle is None else tuple(idle)
    idle_us = sum(row.us for row in idle)
    totals = replace(case.analysis.totals, busy_us=wall_us - idle_us, idle_us=idle_us)
    steps: StepTimes = replace(case.analysis.steps, wall_us=wall_us)
    return with_analysis(case, ledger=entries, idle=idle, totals=totals, steps=steps)


def idle_row(cause: str, us: float, source: str | None = "train.py:12", **more: Any) -> IdleCause:
    """A row of idle time; ``more`` are its other fields."""
    return IdleCause(**{"cause": cause, "us": us, "share": 0.0, "source": source, "calls": 1.0, **more})
