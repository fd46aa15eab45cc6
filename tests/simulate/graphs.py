"""Graphs of a step made by hand: what the host does, in order, as the replay takes it."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bottleneck.schema.accounts import HOST_STATES
from bottleneck.schema.intervals import Floats
from bottleneck.schema.records import replace
from bottleneck.simulate.graph import ALL_WORK, NOTHING_AWAITED, HostWork, IssuedWork, StepGraph

LATENCY_US, GAP_US = 5.0, 1.0
PYTHON = HOST_STATES.index("python")


@dataclass
class Script:
    """What the host does: work, launches, waits for work and for batches; ``graph`` is the step that this makes."""

    repeats: bool = False
    _host: list[tuple[int, float]] = field(default_factory=list)
    _points: list[tuple[int, float]] = field(default_factory=list)
    _work: list[tuple[int, int, float, int, float]] = field(default_factory=list)

    def work(self, us: float) -> "Script":
        """The host works for so long."""
        self._host.append((len(self._points), us))
        return self

    def launch(self, us: float, stream: int = 0, after: int = -1, held_us: float = 0.0) -> "Script":
        """The host issues work that takes so long, which follows work on another stream where ``after`` says so."""
        self._work.append((len(self._points), stream, us, after, held_us))
        self._points.append((NOTHING_AWAITED, -np.inf))
        return self

    def wait(self, position: int = ALL_WORK) -> "Script":
        """The host waits for the work at this position, or for all."""
        self._points.append((position, -np.inf))
        return self

    def batch(self, ready_us: float) -> "Script":
        """The host waits for a batch that comes at this time."""
        self._points.append((NOTHING_AWAITED, ready_us))
        return self

    def graph(self, **more: Any) -> StepGraph:
        """The graph of one step that does all this."""
        point, us = (np.array([each[at] for each in self._host], dtype=kind) for at, kind in ((0, int), (1, float)))
        columns = list(zip(*self._work, strict=True)) or [()] * 5
        points, streams, lengths, after, held = columns
        count = len(self._work)
        none = np.full(us.size, -1)
        host = HostWork(
            np.cumsum(us) - us, us, point, np.full(us.size, PYTHON), none, none, none, np.zeros(us.size, dtype=bool)
        )
        device = IssuedWork(
            row=np.arange(count),
            point=np.array(points, dtype=int),
            stream=np.array(streams, dtype=int),
            us=np.array(lengths, dtype=float),
            latency_us=np.full(count, LATENCY_US),
            gap_us=np.full(count, GAP_US),
            after=np.array(after, dtype=int),
            held_us=np.array(held, dtype=float),
        )
        made = StepGraph(
            wall_us=float(us.sum()),
            lag_us=0.0,
            length_us=float(us.sum()),
            steps=1,
            repeats=self.repeats,
            awaited=np.array([each for each, _ in self._points], dtype=int),
            ready_us=np.array([ready for _, ready in self._points], dtype=float),
            call=np.arange(len(self._points)),
            host=host,
            device=device,
            backlog_us=np.full(max(streams, default=-1) + 1, -np.inf),
        )
        return replace(made, **more)


def scaled(graph: StepGraph, factor: float) -> StepGraph:
    """The same graph with every time multiplied."""

    def times(record: Any, *names: str) -> Any:
        return replace(record, **{name: getattr(record, name) * factor for name in names})

    host = times(graph.host, "start_us", "us")
    device = times(graph.device, "us", "latency_us", "gap_us", "held_us")
    changed: StepGraph = times(graph, "wall_us", "lag_us", "length_us", "ready_us", "backlog_us")
    return replace(changed, host=host, device=device)


def ones(values: Floats) -> Floats:
    """A factor of one for each value."""
    return np.ones(values.size)
