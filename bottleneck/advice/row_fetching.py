"""Names a loader whose cost is fetching cheap samples one by one."""

import math
import re

import numpy as np

from bottleneck.advice.data_loading import INPUT, MODERATE, ONE_PROCESS, loader_kinds
from bottleneck.advice.hot_lines import HotLine, hot_lines
from bottleneck.advice.quantities import (
    claims_of,
    event_spans,
    format_count,
    outermost_frames,
    rows_of_events,
    setting_line,
)
from bottleneck.advice.ranking import Draft
from bottleneck.advice.slow_calls import match_of
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.intervals import Spans
from bottleneck.schema.loading import LOADER
from bottleneck.schema.op_names import at_known
from bottleneck.units import counted, format_share, format_us

_GETS_ITEM = re.compile(r"\.py\(\d+\): __getitem__$")
_COLLATES = re.compile(r"_utils[/\\]collate\.py\(\d+\): default_collate$")
# A sample that takes no longer is a few calls of torch, of NumPy and of collating: 5 us to 15 us where it is made of
# two to four tensors (torch 2.13, one thread). One that is decoded, parsed or augmented takes 100 us and more.
_CHEAP_US = 60.0
_LEAST_SAMPLES = 16
# Without Python calls: each sample takes a row of each of its tensors, and collating stacks each of these. Recording
# the ops makes them up to so much longer (benchmarks/results/run.md).
_TAKES_ROW, _STACKS, _STRETCH = "aten::select", "aten::stack", 1.3
# What indexing a whole batch leaves of the loading, at most and at least.
_GONE = (0.6, 0.97)
# A line with so much of the loading that a known quicker way exists for says more than this.
_MOST = 0.5
# The loading is collating alone where it takes this part.
_ALL_COLLATED = 0.6


def row_fetching(evidence: Evidence) -> Draft | None:
    """Finds a loader without workers that fetches cheap samples one by one.

    It calls ``__getitem__`` for each sample, and puts batches together. Gain: 60 to 97 % of the wait for data, which is
    what is left out where a batch is indexed as a whole.
    """
    wait_us = evidence.account_us(INPUT)
    if evidence.share_of_step(wait_us) < MODERATE or loader_kinds(evidence) != {ONE_PROCESS}:
        return None
    samples, each_us = _samples(evidence)
    collated = _collated_share(evidence)
    if (each_us > _CHEAP_US or samples < _LEAST_SAMPLES) and (samples > 0 or collated < _ALL_COLLATED):
        return None
    if _is_known_better(evidence, wait_us) or _has_own_collate(evidence):
        return None
    fetching = _fetching_line(evidence)
    lines = hot_lines(evidence, "input")
    at = f" {lines[0].where()}" if lines else ""
    now = f"each sample is fetched by itself{at}" if fetching is None else f"{fetching.place()} runs for each sample"
    cost = f", {format_us(each_us)} for each of {counted(format_count(samples), 'sample')}" if samples else ""
    loader = setting_line(evidence, "loader")
    return Draft(
        slug="row-fetching",
        title="Samples in memory are fetched and put together one by one",
        evidence=(
            f"a batch takes {format_us(samples * each_us or wait_us)} to load{cost}: so little per sample is calls "
            "of Python and of small ops",
            *((f"default_collate, which stacks samples, takes {format_share(collated)} of it",) if collated else ()),
            *(f"{one.source}: {format_us(one.us)} per step{one.quoted()}" for one in lines[:2]),
        ),
        advice=f"Fetch whole batches: index the tensors or arrays with all the indices of a batch at once (a "
        f"BatchSampler as the sampler and batch_size=None, __getitems__, or slices of a permutation). Now {now}, "
        "and default_collate stacks the samples again; workers would do the same, and "
        "hand it over.",
        brief="Fetch whole batches: index with all the indices of a batch at once"
        + at_known(loader or (fetching.source if fetching is not None else lines[0].source if lines else None)),
        places=(loader, *(one.source for one in ([] if fetching is None else [fetching]) + list(lines[:2]))),
        code="order = BatchSampler(RandomSampler(dataset), 1024, drop_last=True)\n"
        "loader = DataLoader(dataset, batch_size=None, sampler=order)  # __getitem__ gets a list: self.x[indices]",
        gain_us=Interval(_GONE[0] * wait_us, _GONE[1] * wait_us),
        claims=claims_of(evidence, INPUT),
        removes=True,
        comes_first=evidence.share_of_step(wait_us) >= 2 * MODERATE,
    )  # fmt: skip


def _samples(evidence: Evidence) -> tuple[float, float]:
    """Returns samples that are fetched per step, and the time for each.

    It is 0 where none is seen.
    """
    loads = event_spans(evidence, rows_of_events(evidence, LOADER))
    gets = outermost_frames(evidence, _GETS_ITEM)
    inside = int(np.count_nonzero(loads.hold(gets.start))) if loads.start.size else 0
    us = loads.total() * evidence.host_scale
    if not inside and evidence.linked.places is None:
        inside, us = _taken_rows(evidence, loads), us / _STRETCH
    if not inside:
        return 0.0, 0.0
    # The profiler stretches calls of Python more than the rest: the ledger's wait is the truer one where it is all.
    per_step_us = us / evidence.steps
    if evidence.is_host_only:
        per_step_us = min(per_step_us, evidence.account_us(INPUT))
    return inside / evidence.steps, per_step_us * evidence.steps / inside


def _taken_rows(evidence: Evidence, loads: Spans) -> int:
    """Counts the samples of these loads by their ops.

    Rows that are taken, by the tensors of each load that are stacked. 0 where none is stacked.
    """
    ops, at_us = evidence.linked.ops, evidence.linked.ops["ts_us"].to_numpy()
    rows, stacks = (
        int(np.count_nonzero((ops["name"] == name).to_numpy() & loads.hold(at_us) & (ops["depth"] == 0).to_numpy()))
        for name in (_TAKES_ROW, _STACKS)
    )
    fields = stacks / max(loads.start.size, 1)
    return int(rows / fields) if fields >= 1 else 0


def _collated_share(evidence: Evidence) -> float:
    loads = event_spans(evidence, rows_of_events(evidence, LOADER))
    if not loads.start.size or loads.total() <= 0:
        return 0.0
    spans = outermost_frames(evidence, _COLLATES)
    inside = loads.hold(spans.start)
    return min(float((spans.end - spans.start)[inside].sum()) / loads.total(), 1.0)


def _has_own_collate(evidence: Evidence) -> bool:
    """True where a function other than torch's puts batches together.

    Such samples, of graphs or of text, are no rows of one tensor. Torch's own function is seen by its frames, where
    frames are recorded.
    """
    return outermost_frames(evidence, _GETS_ITEM).start.size > 0 and not _collated_share(evidence)


def _is_known_better(evidence: Evidence, wait_us: float) -> bool:
    """True where a quicker way is known that is not a batch at once.

    It is for lines that most of the loading is in.
    """
    calls = ((line, match_of(line)) for line in hot_lines(evidence, "input"))
    return math.fsum(line.us for line, call in calls if call is not None and not call.per_batch) >= _MOST * wait_us


def _fetching_line(evidence: Evidence) -> HotLine | None:
    """Returns the slowest line, or function, that gets a sample.

    Null where none is known.
    """
    getting = (line for line in hot_lines(evidence, "input") if any("__getitem__" in name for name in line.named))
    return next(getting, None)


RULES = (row_fetching,)
