"""Selects the rows of the evidence's tables that belong to its steps, with the source line and module of each.

A thread that reads ahead (a data loader's) does its work in one step or the next, as timing has it, and what the main
thread does to take over its results goes with it: neither is counted. Nor is what a loader does once per epoch.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd

from bottleneck.schema.linked_trace import Linked

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

ENGINE = "autograd::engine::evaluate_function: "
_NODE = re.compile(r"^(?:torch::autograd::)?(?:\w+Backward\d*|AccumulateGrad)$")
# A loader whose workers are processes: batches arrive in any order, so that one call may take over none or two.
_TAKES_OVER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter"
# Draws the order of an epoch's samples and the seed of its workers: in one step of many.
_BEGINS_EPOCH = re.compile(r"torch/utils/data/(dataloader|sampler)\.py\(\d+\): (__iter__|_get_iterator)$")


@dataclass(frozen=True)
class ThreadSpans:
    """Stretches that threads (by their number) are in, in any order; they may enclose one another."""

    thread: Ints
    start_us: Floats
    end_us: Floats

    def cover(self, thread: Ints, at_us: Floats) -> Flags:
        """For each instant of a thread, whether one of the spans contains it."""
        if not len(self.thread):
            return np.zeros(len(at_us), dtype=bool)
        order = np.lexsort((self.start_us, self.thread))
        # One that encloses others reaches over their ends; the offsets keep threads apart.
        ends, rank = np.unique(self.end_us[order], return_inverse=True)
        offset = self.thread[order] * len(ends)
        reach_us = ends[np.maximum.accumulate(offset + rank) - offset]
        row = latest_row(self.thread[order], self.start_us[order], thread, at_us)
        return np.asarray((row >= 0) & (at_us < reach_us[row]))


def latest_row(thread: Ints, start_us: Floats, at_thread: Ints, at_us: Floats) -> Ints:
    """The row that started last before, or at, each instant of ``at_thread``; -1 where there is none.

    Rows are sorted by thread, then start. Threads may be as many as rows.
    """
    _, rank = np.unique(np.concatenate([start_us, at_us]), return_inverse=True)
    size = len(rank) + 1
    key = thread * size + rank[: len(start_us)]
    row = np.searchsorted(key, at_thread * size + rank[len(start_us) :], side="right") - 1
    known = row >= 0
    known[known] = thread[row[known]] == at_thread[known]
    return np.where(known, row, -1)


class StepScope:
    """The steps of a window, and the rows that belong to them; without steps the window is one."""

    def __init__(self, linked: Linked) -> None:
        self.linked = linked
        self.events = linked.trace.events
        steps = linked.window.steps
        bounds = [(step.start_us, step.end_us) for step in steps] or [linked.window.host_us]
        self._start_ns, self._end_ns = (np.rint(np.array(side) * 1e3) for side in zip(*bounds, strict=True))

    @property
    def steps(self) -> int:
        """The number of steps, at least one."""
        return len(self._start_ns)

    def step_at(self, thread: Ints, at_us: Floats) -> Ints:
        """The step that each instant of a thread (a code of ``events.thread``) belongs to, -1 where to none."""
        at_ns = np.rint(at_us * 1e3)
        step = np.searchsorted(self._start_ns, at_ns, side="right") - 1
        inside = (step >= 0) & (at_ns < self._end_ns[step])
        rows = np.flatnonzero(inside)
        rows = rows[self._works[thread[rows]]]
        rows = rows[~self._of_loaders.cover(thread[rows], at_us[rows])]
        found = np.full(len(at_us), -1, dtype=np.int64)
        found[rows] = step[rows]
        return found

    def of_events(self, rows: Ints) -> Ints:
        """The step of each of these rows of EVENTS."""
        return self.step_at(self.thread[rows], self.events["ts_us"].to_numpy()[rows])

    def rows_named(self, category: str, test: Callable[[str], bool]) -> Ints:
        """Rows of EVENTS of a category whose name passes; each distinct name is tested once."""
        categories = list(self.events["category"].cat.categories)
        if category not in categories:
            return np.empty(0, dtype=np.int64)
        rows = np.flatnonzero(self.events["category"].cat.codes.to_numpy() == categories.index(category))
        codes = self.events["name"].cat.codes.to_numpy()[rows]
        labels = self.events["name"].cat.categories
        passes = np.zeros(len(labels) + 1, dtype=bool)
        for code in np.flatnonzero(np.bincount(codes, minlength=len(labels))).tolist():
            passes[code] = test(labels[code])
        return rows[passes[codes]]

    @cached_property
    def thread(self) -> Ints:
        """Thread of each row of EVENTS, as a code."""
        return self.events["thread"].cat.codes.to_numpy().astype(np.int64)

    @cached_property
    def op_thread(self) -> Ints:
        """Thread of each row of OPS, as a code of ``events.thread``."""
        return self.recode(self.linked.ops["thread"])

    @cached_property
    def op_step(self) -> Ints:
        """Step of each row of OPS, -1 for those that do not count."""
        return self.step_at(self.op_thread, self.linked.ops["ts_us"].to_numpy())

    def recode(self, column: "pd.Series[str]") -> Ints:
        """Threads of another table as codes of ``events.thread``; those without events get the code after all."""
        known = {label: code for code, label in enumerate(self.events["thread"].cat.categories)}
        codes = [known.get(label, len(known)) for label in column.cat.categories]
        return np.array([*codes, len(known)], dtype=np.int64)[column.cat.codes.to_numpy()]

    def ops_named(self, test: Callable[[str], bool]) -> Flags:
        """For each row of OPS, whether its name passes the test; each distinct name is tested once."""
        names = self.linked.ops["name"].cat
        return np.array([*map(test, names.categories), False], dtype=bool)[names.codes.to_numpy()]

    @cached_property
    def autograd_nodes(self) -> Flags:
        """For each row of OPS, whether it is a node that autograd's engine evaluates; before torch 1.10 by its name."""
        marked = self.ops_named(lambda name: name.startswith(ENGINE))
        if marked.any():
            return marked
        is_outermost = self.linked.ops["depth"].to_numpy() == 0
        return np.asarray(self.ops_named(lambda name: _NODE.search(name) is not None) & is_outermost)

    @cached_property
    def _works(self) -> Flags:
        """By code of a thread: whether it is the step's, the one in which most ops begin, or one of autograd's."""
        ops, size = self.linked.ops, len(self.events["thread"].cat.categories) + 1
        if ops.empty:
            return np.ones(size, dtype=bool)
        is_engine = self.autograd_nodes
        start_ns = ops["ts_us"].to_numpy() * 1e3
        inside = (start_ns >= self._start_ns[0]) & (start_ns < self._end_ns[-1])
        begins = inside & ~is_engine & (ops["depth"].to_numpy() == 0)
        works = np.bincount(self.op_thread[is_engine], minlength=size) > 0
        works[int(np.bincount(self.op_thread[begins], minlength=size).argmax())] = True
        return works

    @cached_property
    def _of_loaders(self) -> ThreadSpans:
        taking_over = self.rows_named("annotation", lambda name: name.startswith(_TAKES_OVER))
        beginning = self.rows_named("python", lambda name: _BEGINS_EPOCH.search(name) is not None)
        rows = np.concatenate([taking_over, beginning])
        start_us = self.events["ts_us"].to_numpy()[rows]
        return ThreadSpans(self.thread[rows], start_us, start_us + self.events["dur_us"].to_numpy()[rows])


LABELS = ("source", "module")


@dataclass(frozen=True)
class StepRows:
    """Rows with the step of each (-1: none) and its places: codes (-1: unknown) into labels, by column."""

    step: Ints
    places: Mapping[str, tuple[Ints, list[str]]]

    def only(self, chosen: "np.ndarray[tuple[int], np.dtype[np.bool_]] | Ints") -> "StepRows":
        """Some of them."""
        return StepRows(
            self.step[chosen], {name: (code[chosen], labels) for name, (code, labels) in self.places.items()}
        )


def op_rows(scope: StepScope) -> StepRows:
    """All of OPS, row for row."""
    return StepRows(scope.op_step, _places(scope.linked.ops))


def kernel_rows(scope: StepScope) -> StepRows:
    """All of KERNELS, row for row: the step in which each was launched."""
    kernels = scope.linked.kernels
    launch = kernels["launch"].to_numpy(dtype=np.int64, na_value=-1)
    step = np.full(len(kernels), -1, dtype=np.int64)
    known = np.flatnonzero(launch >= 0)
    step[known] = scope.of_events(launch[known])
    return StepRows(step, _places(kernels))


def event_rows(scope: StepScope, rows: Ints) -> StepRows:
    """These rows of EVENTS, at the places where their threads are then."""
    places = scope.linked.places
    if places is None or not len(rows):
        nowhere = np.full(len(rows), -1, dtype=np.int64)
        return StepRows(scope.of_events(rows), {name: (nowhere, []) for name in LABELS})
    at_us = scope.events["ts_us"].to_numpy()[rows]
    found = _place_at(scope, places, scope.thread[rows], at_us)
    return StepRows(
        scope.of_events(rows),
        {name: (np.append(code, -1)[found], labels) for name, (code, labels) in _places(places).items()},
    )


def _place_at(
    scope: StepScope, places: pd.DataFrame, thread: Ints, at_us: "np.ndarray[tuple[int], np.dtype[np.float64]]"
) -> Ints:
    """Row of PLACES in which each thread is at each instant, -1 for none."""
    of_place = scope.recode(places["thread"])
    order = np.lexsort((places["ts_us"].to_numpy(), of_place))
    start_us, end_us = (places[name].to_numpy()[order] for name in ("ts_us", "end_us"))
    row = latest_row(of_place[order], start_us, thread, at_us)
    return np.where((row >= 0) & (at_us < end_us[row]), order[row], -1)


def _places(table: pd.DataFrame) -> dict[str, tuple[Ints, list[str]]]:
    return {
        name: (table[name].cat.codes.to_numpy().astype(np.int64), list(table[name].cat.categories)) for name in LABELS
    }
