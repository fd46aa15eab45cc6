"""Finds what makes a data loader slow: the line, function or op of the program that holds most of the wait."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bottleneck.advice.draft import Draft, up_to
from bottleneck.advice.loading import INPUT, LOADER, MODERATE, ONE_PROCESS, loader_kinds
from bottleneck.advice.measures import (
    Flags,
    Floats,
    account_us,
    claims_of,
    events_like,
    idle_rows,
    outermost,
    share_of_step,
)
from bottleneck.case import Case
from bottleneck.units import format_share, format_us

# One line, op or function of the loader is worth naming when it holds this part of the loading.
_DOMINANT = 0.5

_CALLS_NEXT = re.compile(r"dataloader\.py: __next__$")
_COLLATES = re.compile(r"_utils[/\\]collate\.py\(\d+\): default_collate$")
_NOTHING = ("", 0.0)


def loader_hot_spot(case: Case) -> Draft | None:
    """Rule 44: one line, function or op of a loader without workers holds most of the wait."""
    wait_us = account_us(case, INPUT)
    if share_of_step(case, wait_us) < MODERATE or ONE_PROCESS not in loader_kinds(case):
        return None
    what, share = max((_slowest_line(case), _collating(case), _slowest_op(case)), key=lambda found: found[1])
    if share < _DOMINANT:
        return None
    return Draft(
        slug="loader-hot-spot",
        title=f"Most of the loading is {what}",
        evidence=(f"{what} takes {format_share(share)} of the {format_us(wait_us)} that the step waits for its data",),
        advice="Do this once and keep the result, or for a whole batch at a time, or with a faster library.",
        code="def __getitems__(self, indices):\n    return self.samples[indices]  # all samples of a batch at once",
        gain_us=up_to(share * wait_us),
        claims=claims_of(case, INPUT, most_us=share * wait_us),
    )


def _slowest_line(case: Case) -> tuple[str, float]:
    """The line of the program inside the loader with most of the wait; the line that calls the loader is none."""
    rows = idle_rows(case, "input")
    calling = {row.source for row in rows if row.detail and _CALLS_NEXT.search(row.detail)}
    us: dict[str, float] = {}
    for row in rows:
        if row.source is not None and row.source not in calling:
            us[row.source] = us.get(row.source, 0.0) + row.us
    return _largest(us, sum(row.us for row in rows))


def _collating(case: Case) -> tuple[str, float]:
    """The time that default_collate takes to make a batch of samples, as a share of the loading."""
    spans, rows = _loading_spans(case), events_like(case, _COLLATES)
    if spans is None or not rows.size:
        return _NOTHING
    events = case.linked.trace.events
    start, dur = events["ts_us"].to_numpy()[rows], events["dur_us"].to_numpy()[rows]
    reach = np.maximum.accumulate(np.concatenate(([-np.inf], (start + dur)[:-1])))
    inside_us = float(dur[spans.holds(start) & (start >= reach)].sum())
    return "default_collate, which makes a batch of samples,", min(inside_us / spans.total_us, 1.0)


def _slowest_op(case: Case) -> tuple[str, float]:
    spans = _loading_spans(case)
    if spans is None:
        return _NOTHING
    ops = case.linked.ops
    names = [str(name) for name in ops["name"].cat.categories]
    codes = ops["name"].cat.codes.to_numpy()
    marks = np.array([LOADER.match(name) is not None for name in names], dtype=bool)
    rows = np.flatnonzero(spans.holds(ops["ts_us"].to_numpy()) & ~np.append(marks, False)[codes])
    rows = outermost(case, rows)
    us = np.bincount(codes[rows], weights=ops["dur_us"].to_numpy()[rows], minlength=len(names))
    return _largest(dict(zip(names, us.tolist(), strict=True)), spans.total_us)


def _largest(us: Mapping[str, float], of_us: float) -> tuple[str, float]:
    if not us or of_us <= 0:
        return _NOTHING
    name = max(us, key=lambda each: us[each])
    return name, min(us[name] / of_us, 1.0)


@dataclass(frozen=True)
class _Spans:
    """The stretches of the window in which a loader ran, in order."""

    start: Floats
    end: Floats

    @property
    def total_us(self) -> float:
        """Their length."""
        return float((self.end - self.start).sum())

    def holds(self, at_us: Floats) -> Flags:
        """Whether each instant lies in one of them."""
        row = np.searchsorted(self.start, at_us, side="right") - 1
        return np.asarray((row >= 0) & (at_us < np.append(self.end, -np.inf)[row]))


def _loading_spans(case: Case) -> _Spans | None:
    """Where the loaders ran, by their marks in the window; null where there are none."""
    events, rows = case.linked.trace.events, events_like(case, LOADER)
    if not rows.size:
        return None
    start = events["ts_us"].to_numpy()[rows]
    end = np.maximum.accumulate(start + events["dur_us"].to_numpy()[rows])
    start = np.maximum(start, np.concatenate(([-np.inf], end[:-1])))
    return _Spans(start, end) if float((end - start).sum()) > 0 else None


RULES = (loader_hot_spot,)
