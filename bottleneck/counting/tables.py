"""Rows of one kind with their step and their place in the program: what every breakdown of a counter is made from."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from bottleneck.counting.scope import Ints, Scope, latest

LABELS = ("source", "module")


@dataclass(frozen=True)
class Rows:
    """Rows that count, with the step of each (-1: none) and its places: codes (-1: unknown) into labels, by column."""

    step: Ints
    places: Mapping[str, tuple[Ints, list[str]]]

    def only(self, chosen: "np.ndarray[tuple[int], np.dtype[np.bool_]] | Ints") -> "Rows":
        """Some of them."""
        return Rows(self.step[chosen], {name: (code[chosen], labels) for name, (code, labels) in self.places.items()})


def op_rows(scope: Scope) -> Rows:
    """All of OPS, row for row."""
    return Rows(scope.op_step, _places(scope.linked.ops))


def kernel_rows(scope: Scope) -> Rows:
    """All of KERNELS, row for row: the step in which each was launched."""
    kernels = scope.linked.kernels
    launch = kernels["launch"].to_numpy(dtype=np.int64, na_value=-1)
    step = np.full(len(kernels), -1, dtype=np.int64)
    known = np.flatnonzero(launch >= 0)
    step[known] = scope.of_events(launch[known])
    return Rows(step, _places(kernels))


def event_rows(scope: Scope, rows: Ints) -> Rows:
    """These rows of EVENTS, at the places where their threads are then."""
    places = scope.linked.places
    if places is None or not len(rows):
        nowhere = np.full(len(rows), -1, dtype=np.int64)
        return Rows(scope.of_events(rows), {name: (nowhere, []) for name in LABELS})
    at_us = scope.events["ts_us"].to_numpy()[rows]
    found = _place_at(scope, places, scope.thread[rows], at_us)
    return Rows(
        scope.of_events(rows),
        {name: (np.append(code, -1)[found], labels) for name, (code, labels) in _places(places).items()},
    )


def _place_at(
    scope: Scope, places: pd.DataFrame, thread: Ints, at_us: "np.ndarray[tuple[int], np.dtype[np.float64]]"
) -> Ints:
    """Row of PLACES in which each thread is at each instant, -1 for none."""
    of_place = scope.recode(places["thread"])
    order = np.lexsort((places["ts_us"].to_numpy(), of_place))
    start_us, end_us = (places[name].to_numpy()[order] for name in ("ts_us", "end_us"))
    row = latest(of_place[order], start_us, thread, at_us)
    return np.where((row >= 0) & (at_us < end_us[row]), order[row], -1)


def _places(table: pd.DataFrame) -> dict[str, tuple[Ints, list[str]]]:
    return {
        name: (table[name].cat.codes.to_numpy().astype(np.int64), list(table[name].cat.categories)) for name in LABELS
    }
