"""The graph of a trace's steps, and the lines of the program at its parts."""

import numpy as np
import numpy.typing as npt
import pandas as pd

from bottleneck.schema.evidence import Evidence, remembered
from bottleneck.schema.intervals import Integers
from bottleneck.simulate.graph import StepGraph, build_graph

Texts = npt.NDArray[np.object_]


@remembered
def graph_of(evidence: Evidence) -> StepGraph:
    """The graph of the steps, built once."""
    return build_graph(evidence)


@remembered
def sources_of_host(evidence: Evidence) -> Texts:
    """The line of the program at each host stretch of the graph; empty text where it is not known."""
    graph, linked = graph_of(evidence), evidence.linked
    source = _texts(linked.ops["source"], graph.host.op)
    if linked.places is not None:
        source = np.where(source == "", _texts(linked.places["source"], graph.host.place), source)
    return source


@remembered
def sources_of_points(evidence: Evidence) -> Texts:
    """The line of the program at each point of the graph; empty text where it is not known."""
    graph = graph_of(evidence)
    return np.append(sources_of_host(evidence), "")[_stretch_before(graph)]


def ops_of_points(graph: StepGraph) -> Integers:
    """The row in OPS of the innermost op open at each point, -1 for none."""
    return np.append(graph.host.op, -1)[_stretch_before(graph)]


def _stretch_before(graph: StepGraph) -> Integers:
    """For each point the last host stretch before it: the beginning of a call lies in the same op as its wait."""
    return np.searchsorted(graph.host.point, np.arange(graph.awaited.size), side="right") - 1


def _texts(column: "pd.Series[str]", rows: Integers) -> Texts:
    labels = np.append(column.cat.categories.to_numpy(dtype=object), "")
    return np.asarray(labels[np.append(column.cat.codes.to_numpy().astype(np.int64), -1)[rows]])
