"""Where in the user's program an instant of a host thread lies: module path and source line, from Python frames."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bottleneck.trace.events import ends_ns, is_any_of, names, starts_ns, threads
from bottleneck.trace.libraries import (
    MODEL_LIBRARY,
    MODULE,
    MODULE_PREFIX,
    OWN,
    PLUMBING,
    kind_of_frame,
    short_source,
)
from bottleneck.trace.nesting import Ints, Nest, ancestor_where, nest
from bottleneck.tracing import Trace

# Deeper modules keep the path of this level: no model nests as deep, and paths of a hostile file would grow with the
# square of the depth.
_DEEPEST_MODULE = 64
_LONGEST_MODULE_NAME = 200

_NEVER_NS = np.iinfo(np.int64).min


@dataclass(frozen=True)
class Labels:
    """Row for row as the instants asked for: a code into ``labels`` (-1: unknown), and when that frame was entered."""

    code: Ints
    labels: list[str]
    since_ns: Ints


@dataclass(frozen=True)
class Places:
    """Module path and source line of each instant asked for."""

    module: Labels
    source: Labels


@dataclass(frozen=True)
class Frames:
    """Python frames as trees, and the code of each one's name, row for row as the nest."""

    nest: Nest
    name: Ints

    def at(self, thread: Ints, at_ns: Ints) -> tuple[Ints, Ints]:
        """Row of the innermost frame at each instant (-1: none), and the start of that frame."""
        row = self.nest.innermost(thread, at_ns)
        return row, np.append(self.nest.start_ns, _NEVER_NS)[row]

    def names_at(self, thread: Ints, at_ns: Ints) -> tuple[Ints, Ints]:
        """Name of the innermost frame at each instant (-1: none), and the start of that frame."""
        row, since_ns = self.at(thread, at_ns)
        return np.append(self.name, -1)[row], since_ns


class Stacks:
    """The Python frames of a trace by kind: modules, the user's own code, libraries of models. Plumbing is left out.

    Lines that our own recordings add are frames of the user's code that last as long as a line does.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.labels = list(trace.events["name"].cat.categories)
        self.rows = _rows_by_kind(trace, self.labels)

    @cached_property
    def modules(self) -> Frames:
        """Frames of nn.Modules."""
        return frames_of(self.trace, self.rows[MODULE])

    @cached_property
    def own(self) -> Frames:
        """Frames of the user's own code."""
        return frames_of(self.trace, self.rows[OWN])

    @cached_property
    def library(self) -> Frames:
        """Frames of libraries that hold model code."""
        return frames_of(self.trace, self.rows[MODEL_LIBRARY])


def locate(stacks: Stacks, thread: Ints, at_ns: Ints) -> Places:
    """Module path and source line at each instant of a host thread (a code of ``events.thread``).

    The path is that of the nn.Module frames open at that instant. The source is the innermost frame of the user's own
    code; on threads that run none of it, such as a server's, the innermost frame of a library of models.
    """
    return Places(_modules(stacks.modules, stacks.labels, thread, at_ns), _sources(stacks, thread, at_ns))


def frames_at(stacks: Stacks, thread: Ints, at_ns: Ints) -> tuple[Ints, Ints]:
    """Name (a code of ``stacks.labels``, -1: none) and start of the frame that ``locate`` takes the source from."""
    name, since_ns = stacks.own.names_at(thread, at_ns)
    missing = np.flatnonzero(name < 0)
    if len(missing):
        name[missing], since_ns[missing] = stacks.library.names_at(thread[missing], at_ns[missing])
    return name, since_ns


def _rows_by_kind(trace: Trace, labels: list[str]) -> dict[int, Ints]:
    """Events of each kind of frame but PLUMBING, which is nearly all of them; a name is judged once."""
    rows = np.flatnonzero(is_any_of(trace, ("python", "line")))
    name = names(trace, rows)
    kinds = np.full(len(labels), PLUMBING, dtype=np.int8)
    for used in np.flatnonzero(np.bincount(name, minlength=len(labels))).tolist():
        kinds[used] = kind_of_frame(labels[used])
    kind = kinds[name]
    return {each: rows[kind == each] for each in (MODULE, OWN, MODEL_LIBRARY)}


def frames_of(trace: Trace, rows: Ints) -> Frames:
    """The trees that some events form."""
    trees = nest(threads(trace, rows), starts_ns(trace, rows), ends_ns(trace, rows))
    return Frames(trees, names(trace, rows)[trees.order])


def _modules(frames: Frames, labels: list[str], thread: Ints, at_ns: Ints) -> Labels:
    path, paths = _paths(frames, labels)
    row, since_ns = frames.at(thread, at_ns)
    return Labels(np.append(path, -1)[row], paths, since_ns)


def _paths(frames: Frames, labels: list[str]) -> tuple[Ints, list[str]]:
    """Path code per frame and the paths, level by level from the outermost modules."""
    path = np.full(len(frames.name), -1, dtype=np.int64)
    paths: list[str] = []
    for depth in range(min(int(frames.nest.depth.max(initial=-1)) + 1, _DEEPEST_MODULE)):
        rows = np.flatnonzero(frames.nest.depth == depth)
        above = np.append(path, -1)[frames.nest.parent[rows]]
        keys, code = np.unique((above + 1) * len(labels) + frames.name[rows], return_inverse=True)
        path[rows] = len(paths) + code
        for outer, name in zip(*(part.tolist() for part in np.divmod(keys, len(labels))), strict=True):
            element = labels[name].removeprefix(MODULE_PREFIX)[:_LONGEST_MODULE_NAME]
            paths.append(f"{paths[outer - 1]}.{element}" if outer else element)
    return path[ancestor_where(frames.nest.parent, frames.nest.depth < _DEEPEST_MODULE)], paths


def _sources(stacks: Stacks, thread: Ints, at_ns: Ints) -> Labels:
    labels = stacks.labels
    name, since_ns = frames_at(stacks, thread, at_ns)
    text = {each: short_source(labels[each]) for each in np.unique(name[name >= 0]).tolist()}
    sources = sorted(set(text.values()))
    position = {source: code for code, source in enumerate(sources)}
    code = np.full(len(labels) + 1, -1, dtype=np.int64)
    for each, source in text.items():
        code[each] = position[source]
    return Labels(code[name], sources, since_ns)
