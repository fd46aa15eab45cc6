"""Chains of ops that each pass over the same numbers again, and what one pass of them all would take."""

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bottleneck.advice.measures import runs_on_host
from bottleneck.advice.work import Flags, Floats, Integers, Work, elements, goes_backward

# What a compiler makes one loop of: each element of the result hangs on one element, or one row, of the operands.
_FUSIBLE = ("pointwise", "normalization", "softmax", "reduction", "random")
_NORMS = re.compile(r"norm|dropout|bernoulli")
_IN_PLACE = re.compile(r"[a-z0-9]_(?:\.|$)")
_FOREACH = re.compile(r"_foreach_|_fused_")
# Scalars on their way between other ops; they do not end a chain.
_TRIFLE_BYTES = 4096.0
# A compiled loop reaches the bandwidth of the eager one or less: measured 1.2 to 1.7 times its floor (Inductor's C++ on
# a chain of 8 multiplications of 16 million numbers), and 0.8 to 1 of the bandwidth with Triton (cost_model, 6).
_SLACK = 2.0
# The C library maps blocks of this size anew at every allocation (analysis.faults): each such result costs its pages.
_FRESH_FROM_BYTES = 32 * 2**20
# On a CPU, what a compiled loop takes of the time that an op takes beyond its bytes, at least and at most. Measured
# with Inductor's C++ on one thread, half a million to 16 million numbers: exp, tanh … are as dear as before; a layer
# norm becomes 1.4 times as long (ATen's has wide vectors for its statistics); random numbers take 1.8 times as long,
# but are drawn by all threads, by one before. What nothing explains (threads that wait for one another) may stay.
_KEPT_SPECIAL = (0.5, 1.0)
_KEPT_STATISTICS = (0.7, 1.5)
_KEPT_RANDOM = (1.2, 2.5)
_KEPT_OTHERS = (0.0, 0.5)
_STATISTICS = ("normalization", "softmax", "reduction")
_MANY_THREADS = 8


@dataclass(frozen=True)
class Chains:
    """Chains by number, and the number of each row of the work (-1: in none).

    ``ops`` counts the ops of each chain, ``bytes`` what they move per run, ``fused_bytes`` what one pass of all would
    move at best. ``norm`` tells chains with a normalization or dropout. ``low_us`` and ``high_us`` are, per row and
    step, what fusing saves at least and at most: less than nothing where a compiled loop may take longer.
    """

    of_row: Integers
    ops: Integers
    bytes: Floats
    fused_bytes: Floats
    norm: Flags
    low_us: Floats
    high_us: Floats

    def where(self, chosen: Flags) -> Flags:
        """Whether each row is in one of the chosen chains."""
        return np.append(chosen, False)[self.of_row]


@dataclass(frozen=True)
class _Candidates:
    """Rows that may stand in chains, in order: places in the work, and numbers of elements.

    ``opens`` marks the first row of a run, ``hands_on`` rows that hand their result to a row of another op.
    """

    place: Integers
    count: Floats
    opens: Flags
    hands_on: Flags


def chains_of(work: Work) -> Chains:
    """The chains of this work; kept beside it, for two rules ask."""
    kept = vars(work)
    if "_chains" not in kept:
        kept["_chains"] = find_chains(work)
    found: Chains = kept["_chains"]
    return found


def find_chains(work: Work) -> Chains:
    """Runs of fusible ops over as many numbers each, one directly after the other on one stream, in trace order.

    A trace has no ids of tensors: that each consumes the result of the one before is likely, not proven. Then neither
    the write nor the read of what lies between two ops is needed, unless the backward pass reads it too: in training,
    at worst only the read is spared. An op in place leaves nothing behind that others could read.
    """
    found = _candidates(work)
    chain = np.cumsum(found.opens) - 1
    ops = 1 + np.bincount(chain, weights=found.hands_on, minlength=1).astype(np.int64) if chain.size else chain
    long = ops >= 2
    number = np.where(long, np.cumsum(long) - 1, -1)
    of_row = np.full(work.row.size, -1, dtype=np.int64)
    of_row[found.place] = number[chain]
    kept = np.flatnonzero(of_row[found.place] >= 0)
    found = _Candidates(*(values[kept] for values in vars(found).values()))
    return _price(work, found, of_row, ops[long])


def _candidates(work: Work) -> _Candidates:
    bytes_low = work.roof("bytes_low")
    trifle = (bytes_low <= _TRIFLE_BYTES) & ~work.family("matmul", "convolution", "attention", "recurrent")
    fusible = work.family(*_FUSIBLE) & ~work.op_like(_FOREACH) & (bytes_low > _TRIFLE_BYTES) & work.in_model
    fusible &= work.bound("memory") | (work.bound("compute") & ~work.family("normalization"))
    place = np.flatnonzero(~trifle)
    count = elements(work, fusible)[place]
    stream = work.case.linked.kernels["stream"].cat.codes.to_numpy()[work.row[place]]
    step = work.case.linked.kernels["step"].to_numpy(dtype=np.int64, na_value=-1)[work.row[place]]
    linked = (count[1:] == count[:-1]) & (stream[1:] == stream[:-1]) & (step[1:] == step[:-1])
    opens = np.concatenate((np.ones(min(1, place.size), dtype=bool), ~linked))
    op = work.op[place]
    hands_on = np.append(linked & (op[1:] != op[:-1]), np.zeros(min(1, place.size), dtype=bool))
    usable = np.isfinite(count)
    return _Candidates(place[usable], count[usable], opens[usable], hands_on[usable])


def _price(work: Work, found: _Candidates, of_row: Integers, ops: Integers) -> Chains:
    size, place = ops.size, found.place
    chain = of_row[place]

    def total(values: Floats) -> Floats:
        return np.bincount(chain, weights=values, minlength=size).astype(np.float64)

    between = np.where(found.hands_on, found.count * _item_bytes(work)[place], 0.0)
    in_place = work.op_like(_IN_PLACE)[place]
    takes_over = np.append(in_place[1:], False) | (not goes_backward(work.case))
    bytes_all = total(work.roof("bytes_low")[place])
    least = _largest(chain, found.count * _item_bytes(work)[place], size)
    best = np.maximum(bytes_all - 2 * total(between), np.minimum(least, bytes_all))
    worst = np.maximum(bytes_all - total(np.where(takes_over, 2.0, 1.0) * between), best)
    memory_us, us = total(work.memory_us()[place]), total(work.us[place])
    kept_least, kept_most = _kept_us(work, found)
    runs = np.maximum(total(np.ones(place.size)) / ops, 1.0)
    launch_us = total(np.nan_to_num(work.roof("launch_us"))[place]) / (ops * runs) * work.scale / work.case.steps
    shortest = np.maximum(memory_us * best / bytes_all, launch_us) + total(kept_least)
    longest = np.maximum(_SLACK * memory_us * worst / bytes_all, launch_us) + total(kept_most)
    parts = [np.clip(1.0 - after / np.maximum(us, 1e-12), -1.0, 1.0) for after in (longest, shortest)]
    low, high = (np.where(of_row >= 0, work.us * np.append(part, 0.0)[of_row], 0.0) for part in parts)
    norm = (total((work.family("normalization") | work.op_like(_NORMS))[place].astype(np.float64)) > 0) & (size > 0)
    return Chains(of_row, ops, bytes_all, best, np.asarray(norm), low, high)


def _kept_us(work: Work, found: _Candidates) -> tuple[Floats, Floats]:
    """What each candidate takes beyond its bytes that a fused loop would take too, at least and at most."""
    place = found.place
    beyond = (work.us - work.memory_us())[place]
    special = np.nan_to_num(work.cost("special_ops")[place]) > 0
    random = work.family("random")[place]
    if not runs_on_host(work.case):
        arithmetic = np.nan_to_num(work.roof("compute_us")[place]) * work.scale / work.case.steps
        kept = np.clip(arithmetic - work.memory_us()[place], 0.0, beyond)
        return kept, kept
    fresh = _fresh_us(work, found, beyond)
    result = np.where(found.hands_on, 0.0, fresh)
    results = fresh if goes_backward(work.case) else result
    statistics = work.family(*_STATISTICS)[place]
    few, many = _threads(work)
    kinds = [random, statistics, special]
    least = np.select(kinds, [_KEPT_RANDOM[0] / many, _KEPT_STATISTICS[0], _KEPT_SPECIAL[0]], _KEPT_OTHERS[0])
    most = np.select(kinds, [_KEPT_RANDOM[1] / few, _KEPT_STATISTICS[1], _KEPT_SPECIAL[1]], _KEPT_OTHERS[1])
    return (beyond - fresh) * least + result, (beyond - fresh) * most + results


def _threads(work: Work) -> tuple[int, int]:
    """Threads that an op of the step has, as an interval where the recording does not tell."""
    recording = work.case.recording
    known = None if recording is None else recording.threads
    return (known, known) if known else (1, _MANY_THREADS)


def _fresh_us(work: Work, found: _Candidates, beyond: Floats) -> Floats:
    """The part of ``beyond`` that new pages for the result take, on a CPU."""
    rate, place = work.case.analysis.device.fresh_bytes_per_s, found.place
    written = found.count * _item_bytes(work)[place]
    makes_result = ~work.op_like(_IN_PLACE)[place] & ~work.family("reduction")[place] & (written >= _FRESH_FROM_BYTES)
    if rate is None:
        return np.zeros(place.size)
    # An op without arithmetic to speak of takes its time beyond the bytes for nothing else.
    plain = ~((np.nan_to_num(work.cost("special_ops")[place]) > 0) | work.family("random")[place])
    shown = makes_result & plain
    # Pages are dearer on a busy machine than when they were calibrated: ops that do little else show it.
    shown_us = float(beyond[shown].sum() / written[shown].sum()) if shown.any() else 0.0
    priced = written * max(1e6 / rate * work.scale / work.case.steps, shown_us)
    return np.where(makes_result, np.where(plain, beyond, np.minimum(priced, beyond)), 0.0)


def _item_bytes(work: Work) -> npt.NDArray[np.float64]:
    return np.select([work.dtype("bf16", "fp16"), work.dtype("fp64", "int64")], [2.0, 8.0], 4.0)


def _largest(chain: Integers, values: Floats, size: int) -> Floats:
    largest = np.zeros(size)
    np.maximum.at(largest, chain, values)
    return largest
