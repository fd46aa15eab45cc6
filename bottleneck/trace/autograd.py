"""Backward ops tied to the forward op that they differentiate, by autograd sequence number; used by ``link``."""

import numpy as np

from bottleneck.trace.joins import match_latest
from bottleneck.trace.nesting import Ints


def forward_of(sequence: Ints, forward_thread: Ints, thread: Ints, start_ns: Ints) -> Ints:
    """Row of the forward op of each backward op, -1 for other ops and where it is not in the trace.

    The profiler gives every op the next sequence number of its thread (-1: null), and a backward op that of its node
    together with autograd's id of the forward thread (0 or null on forward ops). Of the nested forward ops that share a
    number the one that started last made the node, as torch/csrc/profiler takes it for its own flow arrows. Numbers are
    counted per thread, but forward ops do not tell autograd's id of theirs: it is taken to be the host thread that has
    most of the numbers in question.
    """
    found = np.full(len(sequence), -1, dtype=np.int64)
    backward = np.flatnonzero((sequence >= 0) & (forward_thread > 0))
    forward = np.flatnonzero((sequence >= 0) & (forward_thread <= 0))
    for autograd_id in np.unique(forward_thread[backward]):
        asking = backward[forward_thread[backward] == autograd_id]
        sought = forward[np.isin(sequence[forward], sequence[asking])]
        if len(sought):
            sought = sought[thread[sought] == np.bincount(thread[sought]).argmax()]
            match = match_latest(sequence[sought], start_ns[sought], sequence[asking], start_ns[asking])
            found[asking] = np.append(sought, -1)[match.before]
    return found
