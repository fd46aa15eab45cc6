"""Rule of iterations in logarithms that exponentiate a matrix each round.

Examples are Sinkhorn, message passing and CRFs.
"""

import math
import re
from collections.abc import Sequence

from msgspec import Struct

from bottleneck.advice.kernel_work import Size, broadcast, size_words, work_of
from bottleneck.advice.quantities import format_count, format_per_step
from bottleneck.advice.ranking import Draft
from bottleneck.advice.removal import backward_of, issued_by, main_source, removal_of, top_rows
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.op_names import at_source
from bottleneck.schema.tables import as_integers
from bottleneck.units import counted

_SUMS = "aten::logsumexp"
_NORMALISES = frozenset({"aten::softmax", "aten::log_softmax"})
_ADDS = re.compile(r"^aten::r?(?:add|sub)_?$")
_SCALES = re.compile(r"^aten::(?:mul|div|neg|true_divide|multiply|clamp\w*)_?$")
# Rounds per step, numbers of the matrix, and the part of the step that these ops take, at least.
_LEAST_ROUNDS, _LEAST_NUMBERS, _LEAST = 8, 4096, 0.15
# Ops before a sum in which the vector may be added to the matrix.
_BEFORE = 3
# Of these ops so much goes; a product of matrix and vector reads the matrix once in place of five times and more.
_SAVES = (0.4, 0.9)


class _LogCall(Struct, frozen=True):
    """An outermost op with its sizes and dimensions.

    The dimensions are those that it works along, as text.
    """

    row: int
    name: str
    sizes: list[Size]
    dims: str


def log_domain_rounds(evidence: Evidence) -> Draft | None:
    """Finds rounds of a loop that take a logsumexp beside a vector.

    A round adds a vector to a matrix, or takes it away, and takes the logsumexp of a dimension. So too where softmax
    follows softmax along another dimension. Gain: these ops with their backward pass, from 40 to 90 % of them.
    """
    rounds: dict[Size, list[int]] = {}
    sums: dict[Size, int] = {}
    for size, rows in _rounds(evidence):
        rounds.setdefault(size, []).extend(rows)
        sums[size] = sums.get(size, 0) + 1
    often = [size for size in rounds if sums[size] >= _LEAST_ROUNDS * evidence.steps]
    if not often:
        return None
    us = evidence.linked.ops["dur_us"].to_numpy()
    size = max(often, key=lambda candidate: float(us[rounds[candidate]].sum()))
    forward, work = sorted(set(rounds[size])), work_of(evidence)
    rows = [*forward, *backward_of(evidence, forward)]
    removal, line = removal_of(evidence, rows, certain=1.0), main_source(evidence, forward)
    if evidence.share_of_step(removal.us) < _LEAST:
        return None
    count, by = format_count(sums[size] / evidence.steps), size_words(size)
    low, high = _SAVES
    return Draft(
        slug="log-domain-rounds",
        title="Each round of a loop exponentiates the same numbers anew",
        evidence=(
            f"{counted(count, 'logsumexp or softmax', 'logsumexp or softmax')} per step of a tensor of {by} "
            f"{at_source(line)}: {format_per_step(evidence, removal.us)} with what comes before",
            *work.describe(issued_by(evidence, work, rows)),
        ),
        advice="Exponentiate once, and iterate with products of a matrix and a vector "
        f"{at_source(line)}: {count} times per step {by} numbers are exponentiated and summed up. "
        "Where the matrix is the same in each round, "
        "logsumexp(g - cost) is log(exp(-cost) @ exp(g)): Sinkhorn's rounds become u = a / (K @ v), v = b / (K.T @ u) "
        "with K = exp(-cost / eps), and those of a chain (CRF, HMM) products with exp(transitions), scaled by the "
        "largest value. Or take fewer rounds: stop when nothing changes any more, or start from the last result.",
        brief=f"Exponentiate once, and iterate with products of a matrix and a vector {at_source(line)}",
        places=(line,),
        code="K = torch.exp(-cost / eps)  # once, before the rounds\n"
        "u = a / (K @ v); v = b / (u @ K)  # in each round\n"
        "plan = u[:, None] * K * v  # the same plan up to rounding; for tiny eps keep logarithms",
        gain_us=Interval(low * removal.gain.low, high * removal.gain.high),
        claims=removal.claims,
        removes=True,
    )


def _rounds(evidence: Evidence) -> list[tuple[Size, list[int]]]:
    """Gives the sums of exponentials of each round.

    Each has the size of what is summed up, and the ops from the vector on.
    """
    calls, rounds = _log_calls(evidence), []
    dims: dict[tuple[str, Size], str] = {}
    for at, call in enumerate(calls):
        size = call.sizes[0] if call.sizes else ()
        if len(size) < 2 or math.prod(size) < _LEAST_NUMBERS or call.name not in {_SUMS, *_NORMALISES}:
            continue
        turns = dims.get((call.name, size), call.dims) != call.dims
        dims[call.name, size] = call.dims
        before, after = calls[max(at - _BEFORE, 0) : at], calls[at + 1 : at + 2]
        if call.name == _SUMS:
            rows = _from_vector(before, size)
            if rows is None and turns and after and _is_spread(after[0], size):
                rows = [after[0].row]
        else:
            rows = [] if turns and before and before[-1].name == call.name else None
        if rows is not None:
            rounds.append((size, [*rows, call.row]))
    return rounds


def _log_calls(evidence: Evidence) -> list[_LogCall]:
    work, top = work_of(evidence), top_rows(evidence)
    ops = evidence.linked.ops.iloc[top]
    names, numbers = ops["name"].astype(object).tolist(), as_integers(ops["signature"]).tolist()
    return [
        _LogCall(row, str(name), work.tensors_of(number), str([*work.text_column("concrete", number)][1:2]))
        for row, name, number in zip(top.tolist(), names, numbers, strict=True)
    ]


def _from_vector(before: Sequence[_LogCall], size: Size) -> list[int] | None:
    """Gives the ops from the one that adds a vector.

    The sum then has this size. Null where no op adds one.
    """
    for at in reversed(range(len(before))):
        if _is_spread(before[at], size):
            return [later_call.row for later_call in before[at:]]
        if _SCALES.match(before[at].name) is None:
            return None
    return None


def _is_spread(call: _LogCall, size: Size) -> bool:
    """True for a sum or difference with a vector, of this size.

    It has two operands, of which one is a vector beside the other.
    """
    if _ADDS.match(call.name) is None or len(call.sizes) != 2:
        return False
    numbers = sorted(math.prod(operand) for operand in call.sizes)
    return (
        broadcast(call.sizes) == tuple(size) and 1 < numbers[0] < math.prod(size) and numbers[0] * 4 <= math.prod(size)
    )


RULES = (log_domain_rounds,)
