"""Rule of penalties on parameters that autograd goes through.

A decay in the optimizer does the same.
"""

import math
import re
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from bottleneck.advice.kernel_work import Size, work_of
from bottleneck.advice.parameter_loops import parameter_sizes
from bottleneck.advice.quantities import format_count, format_per_step, optimizer_names
from bottleneck.advice.ranking import Draft
from bottleneck.advice.removal import (
    LEAST_SHARE,
    autograd_records,
    backward_of,
    issued_by,
    main_source,
    program_rows,
    removal_of,
)
from bottleneck.schema.evidence import Evidence, remembered
from bottleneck.schema.op_names import at_source
from bottleneck.schema.tables import as_integers
from bottleneck.units import counted

# Ops that may come between a parameter and the sum, and those that make a number of it.
_BETWEEN = re.compile(r"^aten::(?:pow|square|abs|mul|sub|sign|sqrt|log1p|clamp\w*|relu|flatten|view|reshape)_?$")
_SUMS = re.compile(r"^aten::(?:sum|mean|norm|linalg_norm|linalg_vector_norm|frobenius_norm|dot|mse_loss|l1_loss)$")
_NAMES_PARAMETERS = re.compile(r"param|weight|\bwd\b|named_|decay|\bl[12]\b", re.IGNORECASE)
_ABSOLUTE = re.compile(r"aten::(?:abs|l1_loss)$")
_MOST_BETWEEN = 3
# Tensors of a line that have sizes of parameters: fewer may be data of such sizes, unless the line's text names them.
_LEAST_TENSORS = 3
# Of their time so much is gained at least: a decay is another pass over the gradients. A network of 4.4 million
# parameters gained 46 % of it in processes of their own, and 80 to 110 % within one (CPU, two threads, torch 2.13).
_CERTAIN = 0.5


class _Penalty(Struct, frozen=True):
    """One term of a penalty.

    The ops from a parameter to a number, the line of the first, and the parameter's size.
    """

    rows: tuple[int, ...]
    source: str
    size: Size
    is_absolute: bool
    is_difference: bool


@remembered
def _penalties(evidence: Evidence) -> tuple[_Penalty, ...]:
    """Finds chains of ops on tensors of parameters' sizes.

    They end in a number, and autograd records them.
    """
    parameters = {size for size in parameter_sizes(evidence) if math.prod(size) > 1}
    if not parameters:
        return ()
    ops, work, top = evidence.linked.ops, work_of(evidence), program_rows(evidence)
    names = ops["name"].astype(object).to_numpy()[top].tolist()
    sources = ops["source"].astype(object).to_numpy()[top].tolist()
    calls = as_integers(ops["signature"])[top].tolist()
    penalties, at = [], 0
    while at < top.size:
        size = next(iter(work.tensors_of(calls[at])), ())
        length = _length(names[at : at + _MOST_BETWEEN + 1]) if size in parameters else 0
        mine = range(at, at + length)
        alike = length > 0 and all(set(work.tensors_of(calls[call])) <= {size, (math.prod(size),), ()} for call in mine)
        reduces = alike and _reduces_all(work.text_column("concrete", calls[at + length - 1]))
        if reduces and isinstance(sources[at], str):
            kinds, concrete = names[at : at + length], work.text_column("concrete", calls[at + length - 1])
            is_absolute = any(map(_ABSOLUTE.match, kinds)) or _is_one_norm(kinds[-1], concrete)
            parts = tuple(top[at : at + length].tolist())
            penalties.append(_Penalty(parts, sources[at], size, is_absolute, "aten::sub" in kinds))
        at += max(length if reduces else 0, 1)
    records = autograd_records(evidence, np.array([call.rows[-1] for call in penalties], dtype=np.int64))
    return tuple(call for call, is_recorded in zip(penalties, records.tolist(), strict=True) if is_recorded)


def _length(names: Sequence[str]) -> int:
    """Counts the ops up to the first that adds up, this one included.

    It is 0 where another op comes before it.
    """
    for at, name in enumerate(names):
        if _SUMS.match(name):
            return at + 1
        if not _BETWEEN.match(name):
            return 0
    return 0


def _reduces_all(concrete: Sequence[object]) -> bool:
    """True for a reduction that names no dimension, as far as its record tells."""
    return not any(re.match(r"^\[-?\d", str(argument)) for argument in concrete[1:4])


def _is_one_norm(name: str, concrete: Sequence[object]) -> bool:
    return name.endswith("norm") and len(concrete) > 1 and str(concrete[1]).rstrip("0").rstrip(".") == "1"


def _is_of_parameters(group: Sequence[_Penalty], steps: int) -> bool:
    """True for many terms of several sizes, as weights and biases have.

    Pairs of rows of one size are a loss.
    """
    return len(group) >= _LEAST_TENSORS * steps and len({penalty.size for penalty in group}) > 1


def parameter_penalty(evidence: Evidence) -> Draft | None:
    """Finds a penalty on the parameters that is added up inside autograd.

    It is of squares, absolute values or norms of all of them. Gain: the time of these ops and of their backward nodes,
    from half of it: a decay passes over the gradients too.
    """
    by_line: dict[str, list[_Penalty]] = {}
    for penalty in _penalties(evidence):
        by_line.setdefault(penalty.source, []).append(penalty)
    texts = evidence.source_texts
    mine = [
        penalty
        for source, group in by_line.items()
        if _is_of_parameters(group, evidence.steps) or _NAMES_PARAMETERS.search(texts.get(source, ""))
        for penalty in group
    ]
    if not mine:
        return None
    forward = [row for penalty in mine for row in penalty.rows]
    rows = [*forward, *backward_of(evidence, forward)]
    removal, work = removal_of(evidence, rows, certain=_CERTAIN), work_of(evidence)
    if evidence.share_of_step(removal.gain.high) < LEAST_SHARE:
        return None
    line, count = main_source(evidence, forward), format_count(len(mine) / evidence.steps)
    advice, code = _remedy(mine, optimizer_names(evidence))
    return Draft(
        slug="parameter-penalty",
        title="A penalty on all parameters goes through autograd in each step",
        evidence=(
            f"{counted(count, 'tensor')} of the sizes of parameters per step become a number "
            f"{at_source(line)}, and the backward pass goes through them",
            f"that takes {format_per_step(evidence, removal.us)}, with the backward pass",
            *work.describe(issued_by(evidence, work, rows)),
        ),
        advice=advice.format(at=at_source(line)),
        places=(line,),
        code=code,
        gain_us=removal.gain,
        claims=removal.claims,
        removes=True,
        confidence="high" if len(mine) >= _LEAST_TENSORS * evidence.steps else "medium",
    )


def _remedy(mine: Sequence[_Penalty], optimizers: Sequence[str]) -> tuple[str, str]:
    """Advice in place of the penalty, with {at} for its line, and the code."""
    if any(one.is_difference for one in mine):
        return (
            "Take the penalty {at} out of the loss: add its gradient, factor * (parameter - anchor), to the gradients "
            "after backward() with torch._foreach ops and under no_grad. That needs no graph and keeps nothing.",
            "with torch.no_grad():  # after loss.backward()\n"
            "    torch._foreach_add_(grads, torch._foreach_sub(params, anchors), alpha=2 * factor)",
        )
    if all(one.is_absolute for one in mine):
        return (
            "Take the penalty on the parameters {at} out of the loss: its gradient is factor * sign(parameter), which "
            "is added to the gradients after backward() under no_grad, or the parameters are shrunk by lr * factor "
            "after the step (soft threshold).",
            "with torch.no_grad():  # after loss.backward()\n"
            "    torch._foreach_add_(grads, torch._foreach_sign(params), alpha=factor)",
        )
    name = next((one for one in optimizers if one in {"SGD", "Adam", "AdamW", "RMSprop"}), "the optimizer")
    note = "AdamW decays apart from the gradient, which is better as a rule" if name == "AdamW" else "the same update"
    return (
        f"Take the penalty on the parameters {{at}} out of the loss and give its factor to the optimizer: weight_decay "
        f"of {name} (2 * factor for a sum of squares; {note}) changes the gradients in its own pass. "
        "If its value is logged, compute it now and then under no_grad.",
        "optimizer = torch.optim.SGD(model.parameters(), lr=lr, weight_decay=2 * factor)  # loss without the penalty",
    )


RULES = (parameter_penalty,)
