"""Rule of buffers that the step copies whole to add to them.

They are tensors joined onto themselves, rolled or shifted.
"""

import ast
import re

from bottleneck.advice.hot_lines import HotLine
from bottleneck.advice.kernel_work import work_of
from bottleneck.advice.line_patterns import calls_in, dotted, joins_onto_itself, shifts_itself
from bottleneck.advice.quantities import format_per_step
from bottleneck.advice.ranking import Draft
from bottleneck.advice.removal import issued_by, removal_of, top_rows, with_python
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.op_names import forward_of, is_backward

# Below this part of the step the copies are not worth a change; from the second on they are the first thing to say.
_LEAST, _FIRST = 0.1, 0.3
_ROLLS = re.compile(r"(?:^|\.)roll$")


def moved_buffer(evidence: Evidence) -> Draft | None:
    """Finds a line that copies a tensor whole to extend it.

    It joins new rows onto the tensor, or rolls it by one place, outside of autograd. Gain: the time of the ops at those
    lines, from 90 % of it.
    """
    texts = {} if evidence.recording is None else evidence.recording.source_texts
    trained = {forward_of(fold.name) for fold in evidence.analysis.lines if is_backward(fold.name)}
    lines = {source for source, text in texts.items() if source not in trained and _moves_all(source, text)}
    top = top_rows(evidence)
    if not lines or not top.size:
        return None
    sources = evidence.linked.ops["source"].iloc[top]
    mine = top[sources.isin(lines).to_numpy()].tolist()
    removal = with_python(evidence, removal_of(evidence, mine), mine)
    if evidence.share_of_step(removal.us) < _LEAST:
        return None
    us = evidence.linked.ops.iloc[mine].groupby("source", observed=True)["dur_us"].sum().sort_values(ascending=False)
    line = HotLine(str(us.index[0]), (), 0.0, texts[str(us.index[0])])
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
        brief="Make the tensor once, at its full size, and write what is new in place",
        places=(line.source,),
        code="buffer[position % size] = row  # in place; position += 1; or parts in a list, and one torch.cat",
        gain_us=removal.gain,
        claims=removal.claims,
        removes=True,
        comes_first=evidence.share_of_step(removal.us) >= _FIRST,
    )


def _moves_all(source: str, text: str) -> bool:
    line = HotLine(source, (), 0.0, text)
    return joins_onto_itself(line) or shifts_itself(line) or _rolls_by_few(line)


def _rolls_by_few(line: HotLine) -> bool:
    """True for ``torch.roll(memory, -1, 0)``: by a number of places that the line states."""
    shifts = (
        [
            *call.args[1 if dotted(call.func) == "torch.roll" else 0 :][:1],
            *(keyword.value for keyword in call.keywords if keyword.arg == "shifts"),
        ]
        for call in calls_in(line)
        if _ROLLS.search(dotted(call.func))
    )
    return any(_is_number(shift) for given in shifts for shift in given)


def _is_number(node: ast.expr) -> bool:
    node = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value in {1, -1}


RULES = (moved_buffer,)
