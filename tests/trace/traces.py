"""Small traces for the tests of linking: events in the builders' words, read as a file would be."""

from collections.abc import Sequence
from pathlib import Path

from bottleneck.schema.linked_trace import Linked, Trace
from bottleneck.trace.link import link
from bottleneck.trace.read import read_trace
from bottleneck.trace.steps import find_steps
from tests.builders import Event, write_trace


def read(folder: Path, events: Sequence[Event], **top: object) -> Trace:
    """The trace that a file with these events is read as."""
    return read_trace(write_trace(folder / "trace.json", events, **top))


def linked(folder: Path, events: Sequence[Event], **top: object) -> Linked:
    """The same, linked over the window that its own marks give."""
    trace = read(folder, events, **top)
    return link(trace, find_steps(trace))


def ops_of_kernels(result: Linked) -> list[str | None]:
    """Name of the op that each kernel is tied to, in the order of KERNELS."""
    names = list(result.ops["name"])
    return [
        None if op is None else names[op]
        for op in result.kernels["op"].astype(object).where(lambda op: op.notna(), None)
    ]
