"""Cases for the tests of counting: a few events by hand, taken through the whole path from the file on."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from bottleneck.pipeline import examine, finish
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.recording import Recording
from bottleneck.schema.sources import TraceSource
from tests.builders import HOST, Event, write_trace

RECORDING = Recording(
    created="2026-01-01T00:00:00+00:00",
    command=("train.py", "--epochs", "1"),
    form="script",
    step_source="optimizer",
    program_status=0,
    framework="PyTorch 2.13.0+cpu",
    versions={"python": "3.11.7", "cpu": "a CPU", "platform": "Linux-6.1-x86_64"},
    environment={},
    traces=(),
    threads=2,
    libraries={"isa": "AVX2", "onednn": True, "cudnn": 90100},
)


def case_of(folder: Path, events: Sequence[Event], recording: Recording | None = None, **top: object) -> Evidence:
    """The case that a trace of these events makes; with a recording, as if it had recorded them."""
    case = finish(examine(TraceSource(write_trace(folder / "trace.json", events, **top))))
    return dataclasses.replace(case, recording=recording)


def memory(ts: float, nbytes: int, **more: object) -> Event:
    """An allocation (or, with negative bytes, a release) on the host."""
    args = {"Device Type": 0, "Device Id": -1, "Bytes": nbytes, "Total Allocated": 0, "Total Reserved": 0}
    event = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "s": "t", "pid": HOST, "tid": HOST}
    return {**event, "ts": ts, "args": args, **more}
