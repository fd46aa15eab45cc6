"""Computes the time that a step saves without some of its outermost ops.

It is for the rules that find ops that it need not run.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct

from bottleneck.advice.kernel_work import KernelWork, work_of
from bottleneck.advice.quantities import claims_of, idle_rows, kept_pages_gain, ops_in_window, outermost_spans
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence, counted_faults_us, remembered
from bottleneck.schema.intervals import Flags, Integers
from bottleneck.schema.op_names import IN_PLACE, OPTIMIZER_STEP, is_line
from bottleneck.schema.tables import as_integers
from bottleneck.units import US_PER_S

# Below this part of the step the ops are not worth a change.
LEAST_SHARE = 0.03
# Of the time of ops that are left out so much is gained at least; the rest is what takes their place.
CERTAIN = 0.9
# What stays to be moved is moved at this part of the bandwidth at worst.
MOVES_AT = 0.4
BYTES_OF_NUMBER = 4.0  # of a number in fp32
_NEARLY_ALL = 0.9
DISPATCH = "overhead.dispatch"
_OF_AN_OP = " > "  # parts an op from the words for what its time went into


class Removal(Struct, frozen=True):
    """Time per step that a step without some ops saves.

    And the accounts that it comes from.
    """

    us: float
    gain: Interval
    claims: dict[str, float]

    def claims_of_part(self, part: float) -> dict[str, float]:
        """The claims of so much of it."""
        return {name: part * us for name, us in self.claims.items()}

    def claims_with(self, account: str, us: float) -> dict[str, float]:
        """The claims, and so much more of this account."""
        return {**self.claims, account: self.claims.get(account, 0.0) + us} if us > 0 else self.claims


@remembered
def roots_of(evidence: Evidence) -> Integers:
    """The row in OPS of the outermost op around each row of OPS."""
    depth = evidence.linked.ops["depth"].to_numpy()
    return np.maximum.accumulate(np.where(depth == 0, np.arange(depth.size), 0))


def issued_by(evidence: Evidence, work: KernelWork, roots: Iterable[int]) -> Flags:
    """Mask of the rows of the work that these outermost ops issue."""
    wanted = np.zeros(len(evidence.linked.ops) + 1, dtype=bool)
    wanted[np.fromiter(roots, dtype=np.int64)] = True
    return np.asarray(wanted[np.append(roots_of(evidence), -1)[work.op]] & (work.op >= 0))


def removal_of(evidence: Evidence, roots: Sequence[int], *, certain: float = CERTAIN, kept_us: float = 0.0) -> Removal:
    """Returns the saving of a step without these outermost ops.

    Their work, and on a CPU their part of dispatching, by ops. ``kept_us`` is the least time of what takes their place.
    """
    work = work_of(evidence)
    rows = issued_by(evidence, work, roots)
    less = np.where(rows, work.us, 0.0)
    passes = work.gain(certain * less, less, rows)
    issued_us = _part_of_ops(evidence, roots) * evidence.account_us(DISPATCH) if evidence.is_host_only else 0.0
    low = max(float(passes.low) + certain * issued_us - kept_us / MOVES_AT, 0.0)
    high = max(float(passes.high) + issued_us - kept_us, low)
    claims = {DISPATCH: issued_us} if issued_us > 0 else {}
    return Removal(float(less.sum()) + issued_us, Interval(low, high), {**work.claims(less), **claims})


def _part_of_ops(evidence: Evidence, roots: Sequence[int]) -> float:
    """Returns the part of the window's ops that these and their inner ops are."""
    inside = ops_in_window(evidence)
    mine = np.isin(roots_of(evidence)[inside], roots)
    return float(mine.mean()) if mine.size else 0.0


def with_python(evidence: Evidence, removal: Removal, roots: Sequence[int], *, certain: float = CERTAIN) -> Removal:
    """Adds the Python between ops at lines that these ops nearly fill.

    Nearly all of the lines' outermost ops are among these, by their time.
    """
    ops, top = evidence.linked.ops, top_rows(evidence)
    mine, whole = (ops.iloc[rows].groupby("source", observed=True)["dur_us"].sum() for rows in (list(roots), top))
    lines = {str(source) for source in mine.index if mine[source] >= _NEARLY_ALL * whole.get(source, math.inf)}
    us = math.fsum(row.us for row in idle_rows(evidence, "python") if row.source in lines)
    if us <= 0:
        return removal
    gain = Interval(removal.gain.low + certain * us, removal.gain.high + us)
    return Removal(removal.us + us, gain, {**removal.claims, "overhead.python": us})


def python_beside_us(evidence: Evidence, removal: Removal, roots: Sequence[int]) -> float:
    """Returns the Python between ops that may go with these ops, at most.

    It is their part of all such time on a CPU, by the number of outermost ops: a loop's rounds, autograd between its
    nodes. What the removal counts of it already is left out.
    """
    outermost = (evidence.linked.ops["depth"] == 0).to_numpy() & ops_in_window(evidence)
    count = int(np.count_nonzero(outermost))
    if not count or not len(roots) or not evidence.is_host_only:
        return 0.0
    part = np.count_nonzero(outermost[np.unique(roots)]) / count
    counted_us = removal.claims.get("overhead.python", 0.0)
    return float(max(part * evidence.account_us("overhead.python") - counted_us, 0.0))


def with_unseen_faults(evidence: Evidence, removal: Removal, roots: Sequence[int]) -> Removal:
    """Adds these ops' part of page faults that no op shows.

    The faults are taken to lie in all ops alike by the numbers of their largest tensor, views and ops in place left
    out. At worst half of them stay.
    """
    us = math.fsum(
        row.us for row in idle_rows(evidence, "allocator") if row.on_pages and _OF_AN_OP not in (row.detail or "")
    )
    part_us = us * _part_of_numbers(evidence, roots)
    if part_us <= 0:
        return removal
    more = kept_pages_gain(evidence, part_us)
    gain = Interval(removal.gain.low + more.low, removal.gain.high + more.high)
    claims = claims_of(evidence, "overhead.allocator", "overhead.unknown", most_us=more.high)
    claims = {name: removal.claims.get(name, 0.0) + claims.get(name, 0.0) for name in {**removal.claims, **claims}}
    return Removal(removal.us + part_us, gain, claims)


def _part_of_numbers(evidence: Evidence, roots: Sequence[int]) -> float:
    """Returns the part of all numbers that ops make anew which these make."""
    work = work_of(evidence)
    makes = np.isfinite(work.cost("bytes_low")) & ~work.op_like(IN_PLACE) & ~work.family("view")
    numbers = np.nan_to_num(work.elements(makes))
    total = float(numbers.sum())
    return float(numbers[issued_by(evidence, work, roots)].sum()) / total if total > 0 else 0.0


def with_freeing(evidence: Evidence, removal: Removal, roots: Sequence[int], *, only_counted: bool = False) -> Removal:
    """Adds these ops' part of the other Python between ops to the upper end.

    Large tensors on a CPU go back to the system there, which takes as long as many ops do and which no op shows. It is
    no more than the page faults that taking them anew causes, where these were counted; nothing where they were not and
    ``only_counted``.
    """
    counted_us = removal.claims.get("overhead.python", 0.0)
    between_us = max(math.fsum(row.us for row in idle_rows(evidence, "python")) - counted_us, 0.0)
    us = between_us * _part_of_numbers(evidence, roots)
    is_counted = evidence.recording is not None and evidence.recording.page_faults is not None
    if is_counted or only_counted:
        us = min(us, counted_faults_us(evidence))
    if us <= 0 or not evidence.is_host_only:
        return removal
    gain, claims = Interval(removal.gain.low, removal.gain.high + us), {**removal.claims}
    claims["overhead.python"] = claims.get("overhead.python", 0.0) + us
    return Removal(removal.us, gain, claims)


def moved_us(evidence: Evidence, nbytes: float) -> float:
    """Returns the least time per step to move so many bytes.

    They are those of the whole window; 0 where the bandwidth is not known.
    """
    bandwidth = evidence.analysis.device.bandwidth_bytes_per_s
    return nbytes / evidence.steps / bandwidth * US_PER_S if bandwidth else 0.0


def main_source(evidence: Evidence, rows: Sequence[int]) -> str | None:
    """Returns the source with most time of these rows of OPS.

    A line goes before the function that it is in.
    """
    ops = evidence.linked.ops.iloc[list(rows)]
    us = ops.groupby("source", observed=True)["dur_us"].sum()
    if us.empty:
        return None
    lines = [str(label) for label in us.index if is_line(str(label))]
    return max(lines or list(map(str, us.index)), key=lambda label: float(us[label]))


@remembered
def top_rows(evidence: Evidence) -> Integers:
    """Returns outermost ops in the window outside of the backward pass.

    They are in the order of threads and starts.
    """
    ops = evidence.linked.ops
    top = ops_in_window(evidence) & (ops["depth"] == 0).to_numpy()
    return np.flatnonzero(top & ~ops["is_autograd"].to_numpy())


@remembered
def program_rows(evidence: Evidence) -> Integers:
    """Returns those of ``top_rows`` that no step of an optimizer runs."""
    top = top_rows(evidence)
    return top[~outermost_spans(evidence, OPTIMIZER_STEP).hold(evidence.linked.ops["ts_us"].to_numpy()[top])]


@remembered
def backward_rows(evidence: Evidence) -> Integers:
    """Returns outermost ops of the backward pass in the window."""
    ops = evidence.linked.ops
    is_node = ops["is_autograd"].to_numpy() & (ops["depth"] == 0).to_numpy()
    return np.flatnonzero(is_node & ops_in_window(evidence))


def autograd_records(evidence: Evidence, rows: Integers) -> Flags:
    """Marks outermost ops in which autograd records a node.

    The next op of the thread has a higher number then.
    """
    top, number = top_rows(evidence), sequence_numbers(evidence)
    top = top[number[top] >= 0]
    thread = evidence.linked.ops["thread"].cat.codes.to_numpy()[top]
    rises = np.flatnonzero((np.diff(number[top]) > 0) & (np.diff(thread) == 0))
    return np.isin(rows, top[rises])


def backward_of(evidence: Evidence, rows: Iterable[int]) -> list[int]:
    """Returns the outermost backward nodes that these forward ops made.

    The ops are outermost and of one forward thread. Nodes are numbered in the order in which they are made: a node
    belongs to the last op that began at its number.
    """
    ops, number = evidence.linked.ops, sequence_numbers(evidence)
    top = top_rows(evidence)
    top = top[number[top] >= 0]
    nodes = backward_rows(evidence)
    nodes = nodes[number[nodes] >= 0]
    if not top.size or not nodes.size or np.unique(forward_threads(evidence)[nodes]).size > 1:
        return []
    thread = ops["thread"].cat.codes.to_numpy()
    top = top[thread[top] == np.bincount(thread[top]).argmax()]
    if (np.diff(number[top]) < 0).any():
        return []
    place = np.searchsorted(number[top], number[nodes], side="right") - 1
    wanted = np.isin(top, np.fromiter(rows, dtype=np.int64))
    return [int(row) for row in nodes[(place >= 0) & wanted[np.maximum(place, 0)]]]


@remembered
def backward_passes(evidence: Evidence) -> float:
    """Counts backward passes per step, by autograd's nodes that follow numbered ops."""
    ops, top, number = evidence.linked.ops, top_rows(evidence), sequence_numbers(evidence)
    nodes = backward_rows(evidence)
    forward = top[number[top] >= 0]
    rows = np.append(forward, nodes)
    is_node = np.append(np.zeros(forward.size, dtype=bool), np.ones(nodes.size, dtype=bool))
    in_order = is_node[np.argsort(ops["ts_us"].to_numpy()[rows], kind="stable")]
    return float(np.count_nonzero(in_order[1:] & ~in_order[:-1])) / evidence.steps


@remembered
def sequence_numbers(evidence: Evidence) -> Integers:
    """Autograd's sequence number of each row of OPS, -1 for none."""
    return _of_autograd(evidence, "sequence")


@remembered
def forward_threads(evidence: Evidence) -> Integers:
    """Returns autograd's number of the forward thread of each row of OPS.

    It is -1 for none: numbers of ops are counted by thread.
    """
    return _of_autograd(evidence, "forward_thread")


def _of_autograd(evidence: Evidence, column: str) -> Integers:
    args = evidence.linked.trace.op_args
    number = np.full(len(evidence.linked.trace.events), -1, dtype=np.int64)
    number[args["event"].to_numpy()] = as_integers(args[column])
    return np.asarray(number[evidence.linked.ops["event"].to_numpy()])
