"""Rule of buffers that the step copies whole to add to them.

They are tensors joined onto themselves, rolled or shifted.
"""

import ast
import math
import re

import numpy as np

from bottleneck.advice.hot_lines import HotLine
from bottleneck.advice.kernel_work import work_of
from bottleneck.advice.line_patterns import dotted, joins_onto_itself, shifts_itself
from bottleneck.advice.quantities import format_per_step
from bottleneck.advice.ranking import Draft
from bottleneck.advice.removal import (
    autograd_records,
    issued_by,
    main_source,
    removal_of,
    top_rows,
    with_freeing,
    with_python,
    with_unseen_faults,
)
from bottleneck.advice.wasted_work import joined_size
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.op_names import at_source, forward_of, is_backward
from bottleneck.schema.source_text import parse_line
from bottleneck.schema.tables import as_integers

# Below this part of the step the copies are not worth a change; from the second on they are the first thing to say.
_LEAST, _FIRST = 0.1, 0.3
_ROLLS = re.compile(r"(?:^|\.)roll$")


def moved_buffer(evidence: Evidence) -> Draft | None:
    """Finds a line that copies a tensor whole to extend it.

    It joins new rows onto the tensor, or rolls it by one place, outside of autograd. Gain: the time of the ops at those
    lines, from 90 % of it, and their part of the page faults that no op shows; at most also their part of the Python
    between ops, where the tensors of before go back to the system.
    """
    texts = evidence.source_texts
    trained = {forward_of(fold.name) for fold in evidence.analysis.lines if is_backward(fold.name)}
    lines = {source for source, text in texts.items() if source not in trained and _moves_all(source, text)}
    top = top_rows(evidence)
    sources = evidence.linked.ops["source"].iloc[top]
    mine = [*top[sources.isin(lines).to_numpy()].tolist(), *_turned_over(evidence)] if top.size else []
    mine = sorted(set(mine))
    if not mine:
        return None
    removal = with_python(evidence, removal_of(evidence, mine), mine)
    if evidence.share_of_step(removal.us) < _LEAST:
        return None
    removal = with_freeing(evidence, with_unseen_faults(evidence, removal, mine), mine, only_counted=True)
    source = main_source(evidence, mine)
    if source is None:
        return None
    line = HotLine(source, (), 0.0, texts.get(source, ""))
    work = work_of(evidence)
    return Draft(
        slug="moved-buffer",
        title="A tensor is copied as a whole to add to it",
        evidence=(
            f"{line.place()} takes {format_per_step(evidence, removal.us)}",
            *work.describe(issued_by(evidence, work, mine)),
        ),
        advice=f"Make the tensor once, at its full size, and write what is new in place (a ring buffer, at position % "
        f"size, where old rows go; a preallocated cache where it grows): all of it is copied {line.where()} for each "
        "addition.",
        brief=f"Make the tensor once, at its full size, and write what is new in place, {at_source(line.source)}",
        places=(line.source,),
        code="buffer[position % size] = row  # in place; position += 1; or parts in a list, and one torch.cat",
        gain_us=removal.gain,
        claims=removal.claims,
        removes=True,
        comes_first=evidence.share_of_step(removal.us) >= _FIRST,
    )


# Of the rows that such a join makes: so many come from the tensor itself.
_NEARLY_ALL = 0.8
# Ops between the slice of the tensor and the join, at most.
_NEAR, _SLICE = 4, "aten::slice"


def _turned_over(evidence: Evidence) -> list[int]:
    """Returns joins that make a tensor anew to add a few rows.

    Such as ``queue = torch.cat([new, queue[:-n]])``, or ``torch.cat([queue, new])[-size:]``: just before or after them
    a tensor of the size that they make is sliced. Autograd records none of them.
    """
    ops, work, top = evidence.linked.ops, work_of(evidence), top_rows(evidence)
    names, calls = ops["name"].astype(str).to_numpy()[top], as_integers(ops["signature"])[top]
    joins = []
    for at in np.flatnonzero((names == "aten::cat") & ~autograd_records(evidence, top)).tolist():
        size = joined_size(work, int(calls[at]))
        parts = [math.prod(part) for part in work.tensors_of(int(calls[at]))]
        if size is None or len(parts) != 2 or max(parts) < _NEARLY_ALL * math.prod(size):
            continue
        beside = [place for place in range(max(at - _NEAR, 0), min(at + _NEAR, top.size)) if names[place] == _SLICE]
        if any(tuple(next(iter(work.sizes_of(int(calls[place]))), ())) == size for place in beside):
            joins.append(int(top[at]))
    return joins


def _moves_all(source: str, text: str) -> bool:
    line = HotLine(source, (), 0.0, text)
    return joins_onto_itself(line) or shifts_itself(line) or _rolls_by_few(line)


def _rolls_by_few(line: HotLine) -> bool:
    """True for ``memory = torch.roll(memory, -1, 0)``: by a place, and onto itself."""
    statement = parse_line(line.text)
    if not isinstance(statement, ast.Assign):
        return False
    call = statement.value
    if not isinstance(call, ast.Call) or not _ROLLS.search(dotted(call.func)):
        return False
    is_function = dotted(call.func) == "torch.roll"
    given = [*call.args[1 if is_function else 0 :][:1], *(one.value for one in call.keywords if one.arg == "shifts")]
    rolled = call.args[0] if is_function and call.args else getattr(call.func, "value", None)
    target = statement.targets[0]
    buffer = target.value if isinstance(target, ast.Subscript) else target
    is_same = isinstance(rolled, ast.expr) and ast.unparse(rolled) == ast.unparse(buffer)
    return is_same and any(_is_number(shift) for shift in given)


def _is_number(node: ast.expr) -> bool:
    node = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value in {1, -1}


RULES = (moved_buffer,)
