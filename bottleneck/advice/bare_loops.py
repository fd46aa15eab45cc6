"""Finds Python loops in a trace that has neither lines nor sizes.

Such a loop shows by its order: the same few ops follow one another again and again.
"""

import re

import numpy as np
from msgspec import Struct

from bottleneck.advice.quantities import is_compiled, ops_in_window, outermost_spans
from bottleneck.advice.servers import find_server
from bottleneck.schema.evidence import Evidence, remembered
from bottleneck.schema.intervals import Flags, Integers
from bottleneck.schema.loading import LOADER_CALL
from bottleneck.schema.op_names import AUTOGRAD_PREFIX, OPTIMIZER_STEP
from bottleneck.schema.tables import main_thread, text_matches

# Rounds of a loop, and ops in each, at most; rounds of an inner loop, which are so many only together.
_LEAST_ROUNDS, _MOST_OPS, _LEAST_INNER = 64, 40, 8
# An op that takes a part of a tensor, or turns one into an array; and those that are no work on single rows.
_PICKS = re.compile(r"^aten::(?:index|select|narrow|slice|gather|item|_local_scalar_dense|resolve_neg)$")
_WORKS = re.compile(r"mm$|linear|matmul|conv|einsum|lstm|gru|rnn|attention|embedding|_norm")
# Ops that only look at a tensor, or hand it on.
_HANDS_ON = re.compile(r"^aten::(?:to|lift_fresh|detach|resolve_conj|resolve_neg|item|_local_scalar_dense)$")


class BareLoop(Struct, frozen=True):
    """A loop of outermost ops.

    ``names`` are those of one round; ``rounds`` and ``us`` are per step.
    """

    names: tuple[str, ...]
    rounds: float
    us: float

    @property
    def works(self) -> tuple[str, ...]:
        """The distinct ops that work, in order."""
        return tuple(dict.fromkeys(name for name in self.names if not _HANDS_ON.match(name)))


@remembered
def bare_loop(evidence: Evidence) -> BareLoop | None:
    """Finds the longest sequence of ops that follows upon itself.

    It picks single rows or numbers, and calls no layer. Null where lines are known, which tell more.
    """
    ops = evidence.linked.ops
    if not evidence.is_host_only or ops["source"].notna().any() or is_compiled(evidence) or find_server(evidence):
        return None
    rows = main_ops(evidence)
    code = ops["name"].cat.codes.to_numpy().astype(np.int64)[rows]
    names = ops["name"].cat.categories
    picks = _kinds(code, len(names), text_matches(ops["name"], _PICKS.search)[rows])
    period, starts, ends = _longest(code, picks, evidence.steps)
    if not period:
        return None
    sequence = tuple(str(names[at]) for at in code[starts[0] : starts[0] + period])
    if any(_WORKS.search(name) for name in sequence) or all(map(_HANDS_ON.match, sequence)):
        return None
    begin_us, dur_us = (ops[name].to_numpy()[rows] for name in ("ts_us", "dur_us"))
    us = float((begin_us[ends - 1] + dur_us[ends - 1] - begin_us[starts]).sum())
    rounds = float(((ends - starts) // period).sum())
    return BareLoop(sequence, rounds / evidence.steps, us / evidence.steps)


def main_ops(evidence: Evidence) -> Integers:
    """Returns rows of the main thread's outermost ops, in order of time.

    None of the backward pass, an optimizer or a loader.
    """
    ops, events = evidence.linked.ops, evidence.linked.trace.events
    thread = events["thread"].cat.categories[main_thread(events)] if len(ops) else ""
    chosen = ops_in_window(evidence) & (ops["depth"] == 0).to_numpy() & (ops["thread"] == thread).to_numpy()
    chosen &= ~text_matches(ops["name"], re.compile(re.escape(AUTOGRAD_PREFIX)).match)
    start_us = ops["ts_us"].to_numpy()
    for pattern in (OPTIMIZER_STEP, LOADER_CALL):
        chosen &= ~outermost_spans(evidence, pattern).hold(start_us)
    rows = np.flatnonzero(chosen)
    return rows[np.argsort(start_us[rows], kind="stable")]


def _kinds(code: Integers, count: int, is_pick: Flags) -> Flags:
    """Marks the codes of ops that pick."""
    marked = np.zeros(count, dtype=bool)
    marked[code[is_pick]] = True
    return marked


def _of_one_loop(
    code: Integers, starts: Integers, ends: Integers, period: int, steps: int
) -> tuple[Integers, Integers]:
    """Chooses the runs of one loop.

    They are those with many rounds, or of the inner loop with the most. An inner loop begins anew in each round of the
    outer one, with the same ops, at any of which a run may begin. None where it has few rounds in a step.
    """
    is_long = ends - starts >= _LEAST_ROUNDS * period
    if is_long.any():
        return starts[is_long], ends[is_long]
    is_run = ends - starts >= _LEAST_INNER * period
    starts, ends = starts[is_run], ends[is_run]
    loops: dict[bytes, list[int]] = {}
    for at, start in enumerate(starts.tolist()):
        loops.setdefault(np.sort(code[start : start + period]).tobytes(), []).append(at)
    rounds = {ops: int(((ends - starts)[runs] // period).sum()) for ops, runs in loops.items()}
    most = max(rounds, key=lambda ops: rounds[ops], default=b"")
    if not rounds or rounds[most] < _LEAST_ROUNDS * steps:
        return starts[:0], ends[:0]
    return starts[loops[most]], ends[loops[most]]


def _longest(code: Integers, picks: Flags, steps: int) -> tuple[int, Integers, Integers]:
    """Returns the period that most ops repeat with, and its runs.

    These are the first op of each run and the one behind its last. Of periods that hold as many ops the shortest; 0
    without any.
    """
    best, nothing = (0, np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)), 0
    most = nothing
    for period in range(2, min(_MOST_OPS, code.size // _LEAST_ROUNDS) + 1):
        same = np.concatenate(([False], code[period:] == code[:-period], [False])).astype(np.int8)
        edges = np.flatnonzero(np.diff(same))
        starts, ends = edges[::2], edges[1::2] + period
        starts, ends = _of_one_loop(code, starts, ends, period, steps)
        if starts.size and not picks[code[starts[0] : starts[0] + period]].any():
            continue
        held = int((ends - starts).sum())
        if held > most:
            best, most = (period, starts, ends), held
    return best


# Ops on one tensor after the other: in place, what makes the values for that, and a look at each.
_CHANGES = re.compile(r"^aten::(?:add_|mul_|sub_|div_|lerp_|copy_|addcmul_|addcdiv_)$")
_MAKES = re.compile(r"^aten::(?:detach|mul|add|sub|div|lerp|rsub)$")
# Changes in one step, and sizes of the tensors, at least: parameters come in several.
_LEAST_CHANGES, _LEAST_SIZES = 16, 3


class BareUpdate(Struct, frozen=True):
    """Tensors that are changed one after the other; ``changes`` and ``us`` are per step."""

    changes: float
    us: float


@remembered
def bare_update(evidence: Evidence) -> BareUpdate | None:
    """Finds tensors of several sizes that are changed one by one.

    Such as the moving average of a model's weights. Null where lines are known, which tell more.
    """
    ops = evidence.linked.ops
    if not evidence.is_host_only or ops["source"].notna().any() or is_compiled(evidence) or find_server(evidence):
        return None
    rows = main_ops(evidence)
    changes, makes = (text_matches(ops["name"], pattern.search)[rows] for pattern in (_CHANGES, _MAKES))
    begin_us, dur_us = (ops[name].to_numpy()[rows] for name in ("ts_us", "dur_us"))
    edges = np.flatnonzero(np.diff(np.concatenate(([False], changes | makes, [False])).astype(np.int8)))
    us = count = 0.0
    for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        changed = rows[start:end][changes[start:end]]
        sizes = ops["signature"].iloc[changed].dropna().nunique()
        if changed.size >= _LEAST_CHANGES and sizes >= _LEAST_SIZES:
            us += float(begin_us[end - 1] + dur_us[end - 1] - begin_us[start])
            count += changed.size
    return BareUpdate(count / evidence.steps, us / evidence.steps) if count else None
