"""Reduces the evidence of one rank to the digest that the ranks of a job are compared by."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from bottleneck.analysis.collectives import messages_of
from bottleneck.analysis.verdict import find_bound, grounds_of
from bottleneck.schema.analysis import TRUNCATED
from bottleneck.schema.digest import CollectiveCalls, RankDigest
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.intervals import Integers
from bottleneck.schema.linked_trace import Linked

Value = TypeVar("Value")


def digest_rank(evidence: Evidence, host: str | None = None) -> RankDigest:
    """The digest of one rank; ``host`` is where it ran, as its folder or file name tells."""
    analysis, linked = evidence.analysis, evidence.linked
    window = linked.window
    steps = sorted([*window.steps, *(step for step, _ in window.set_aside)], key=lambda step: step.start_us)
    return RankDigest(
        path=analysis.recording.path,
        host=host,
        rank=linked.trace.rank,
        world_size=linked.trace.world_size,
        start_unix_ns=linked.trace.start_unix_ns,
        steps=analysis.steps,
        ledger=analysis.ledger,
        collectives=analysis.collectives,
        bound=find_bound(grounds_of(evidence)).bound,
        calls=collective_calls(linked),
        process_groups=linked.trace.process_groups,
        step_start_us=np.array([step.start_us for step in steps], dtype=np.float64),
        step_wall_us=np.array([step.us for step in steps], dtype=np.float64),
        is_cut_off=any(caveat.slug == TRUNCATED for caveat in analysis.caveats),
    )


def collective_calls(linked: Linked) -> CollectiveCalls:
    """Every collective of the trace, in and outside the window."""
    kernels, window = linked.kernels, linked.window
    rows = np.flatnonzero((kernels["kind"] == "collective").to_numpy())
    start_us = kernels["ts_us"].to_numpy()[rows]
    order = np.argsort(start_us, kind="stable")
    rows, start_us = rows[order], start_us[order]
    end_us = start_us + kernels["dur_us"].to_numpy()[rows]
    message, messages = _coded(messages_of(linked, rows))
    group, groups = _coded(_groups(linked, rows))
    return CollectiveCalls(
        messages=messages,
        groups=groups,
        message=message,
        group=group,
        start_us=start_us,
        end_us=end_us,
        is_inside=np.asarray((end_us > window.start_us) & (start_us < window.end_us)),
    )


def _coded(values: Sequence[Value]) -> tuple[Integers, tuple[Value, ...]]:
    """The position of each value among the distinct ones, and those in the order met."""
    code = {value: position for position, value in enumerate(dict.fromkeys(values))}
    return np.array([code[value] for value in values], dtype=np.int64), tuple(code)


def _groups(linked: Linked, rows: Integers) -> list[str]:
    """Name of the process group of each of these rows of KERNELS; '' where the trace does not tell."""
    told = linked.trace.device_args.set_index("event")["process_group"]
    found = told.reindex(linked.kernels["event"].to_numpy()[rows])
    return list(found.astype(object).where(found.notna(), ""))
