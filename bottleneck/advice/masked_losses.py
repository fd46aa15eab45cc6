"""Rule of losses that leave positions out after the largest product.

That product was computed for all positions.
"""

import math
import re
from collections.abc import Sequence

from msgspec import Struct

from bottleneck.advice.kernel_work import KernelWork, Size, work_of
from bottleneck.advice.quantities import format_per_step
from bottleneck.advice.ranking import Draft
from bottleneck.advice.removal import backward_of, issued_by, main_source, removal_of, top_rows
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence, remembered
from bottleneck.schema.op_names import at_source
from bottleneck.schema.tables import as_integers
from bottleneck.units import counted

_LOSSES = re.compile(r"^aten::(?:cross_entropy_loss|nll_loss\w*)$")
_PRODUCTS = frozenset({"aten::linear", "aten::matmul", "aten::addmm", "aten::mm"})
_LEAST_CLASSES, _LEAST_ROWS = 1000, 32
_LEAST_SHARE = 0.15
# A label that losses leave out.
_LEFT_OUT = re.compile(r"^-100(?:\.0*)?$")
_SAYS_SO = re.compile(r"ignore_index|-100\b")
_UNREDUCED = "0"
_PADS = frozenset({"aten::pad", "aten::constant_pad_nd"})
_MASKS = frozenset({"aten::mul", "aten::index", "aten::masked_select", "aten::masked_fill", "aten::where"})
_MOST_AFTER = 6
# Of the time of the head: how many positions count, only the values tell. Labels that are taken out one by one are most
# of them as a rule; what a mask leaves out may be padding.
_OF_LABELS, _OF_MASK, _MOST = 0.25, 0.1, 0.9


class _Head(Struct, frozen=True):
    """Ops of the loss over all positions, and of the product before.

    ``sure`` where labels are left out by value.
    """

    rows: tuple[int, ...]
    positions: int
    classes: int
    line: object
    sure: bool


@remembered
def _masked_heads(evidence: Evidence) -> tuple[_Head, ...]:
    """Finds losses over many classes that leave out some positions.

    They are left out by the label -100 or a mask afterwards.
    """
    ops, work, top = evidence.linked.ops, work_of(evidence), top_rows(evidence)
    names = ops["name"].astype(object).to_numpy()[top].tolist()
    calls = as_integers(ops["signature"])[top].tolist()
    sources = ops["source"].astype(object).to_numpy()[top].tolist()
    texts = evidence.source_texts
    marks = {call for call in set(calls) if any(map(_LEFT_OUT.match, map(str, _scalars(work, call))))}
    is_marked = any(
        call in marks and not _LOSSES.match(name) and not _pads_one(work, name, call)
        for call, name in zip(calls, names, strict=True)
    )
    heads: list[_Head] = []
    seen: set[Size] = set()
    for at, name in enumerate(names):
        given = next(iter(work.tensors_of(calls[at])), ()) if _LOSSES.match(name) else ()
        if len(given) < 2:
            continue
        # Classes are the second dimension: (positions, classes), or (samples, classes, positions of a sample).
        size = (math.prod(given) // max(given[1], 1), given[1])
        if size[1] < _LEAST_CLASSES or size[0] < _LEAST_ROWS or size in seen:
            continue
        said = is_marked or _ignores(work, calls[at]) or _SAYS_SO.search(texts.get(str(sources[at]), "")) is not None
        is_masked = _is_unreduced(work, calls[at]) and any(
            names[later] in _MASKS and any(math.prod(other) == size[0] for other in work.tensors_of(calls[later]))
            for later in range(at + 1, min(at + 1 + _MOST_AFTER, top.size))
        )
        if said or is_masked:
            seen.add(size)
            rows = tuple(
                int(top[other])
                for other in range(top.size)
                if _makes_classes(names[other], work.tensors_of(calls[other]), size)
            )
            heads.append(_Head(rows, size[0], size[1], sources[at], said))
    return tuple(heads)


def _scalars(work: KernelWork, call: int) -> Sequence[object]:
    return work.text_column("concrete", call)


def _pads_one(work: KernelWork, name: str, call: int) -> bool:
    """True where one label is added to each row.

    A causal loss has none for the last position.
    """
    amounts = re.findall(r"-?\d+", str(next(iter(_scalars(work, call)[1:2]), "")))
    return name in _PADS and sum(map(int, amounts)) <= 1


def _ignores(work: KernelWork, call: int) -> bool:
    """True if the loss was given another label to ignore than the usual one."""
    concrete = _scalars(work, call)
    return len(concrete) > 4 and str(concrete[4]) not in ("", "-100")


def _is_unreduced(work: KernelWork, call: int) -> bool:
    concrete = work.text_column("concrete", call)
    return len(concrete) > 3 and str(concrete[3]) == _UNREDUCED


def _makes_classes(name: str, sizes: Sequence[Size], logits: Size) -> bool:
    """True for an op on the logits, and for the product that makes them."""
    positions, classes = logits
    if any(classes in size and _are_positions(math.prod(size) // classes, positions) for size in sizes):
        return True
    if name not in _PRODUCTS or len(sizes) < 2 or not sizes[0]:
        return False
    return _are_positions(math.prod(sizes[0][:-1]), positions) and classes in sizes[1]


def _are_positions(rows: int, positions: int) -> bool:
    """True for as many rows as the loss has positions.

    Or for one more in each sequence: a causal language model has no label for the last position of a sequence.
    """
    more = rows - positions
    return more == 0 or (0 < more <= rows // 2 and rows % more == 0)


def masked_positions(evidence: Evidence) -> Draft | None:
    """Finds logits for positions that the loss then leaves out.

    They are over many classes, in training or evaluation. Gain: up to 90 % of the time of these ops and of their
    backward nodes. It is counted
    from a quarter where labels are left out by their value, from a tenth where a mask follows, which may be of padding.
    """
    heads = _masked_heads(evidence)
    if not heads:
        return None
    largest = max(heads, key=lambda one: one.positions * one.classes)
    forward = sorted({row for one in heads for row in one.rows})
    rows = [*forward, *backward_of(evidence, forward)]
    removal, work = removal_of(evidence, rows), work_of(evidence)
    if evidence.share_of_step(removal.us) < _LEAST_SHARE:
        return None
    line, head = largest.line if isinstance(largest.line, str) else None, main_source(evidence, forward)
    least = _OF_LABELS if largest.sure else _OF_MASK
    return Draft(
        slug="masked-positions",
        title="Logits are computed for positions that the loss leaves out",
        evidence=(
            f"the loss {at_source(line)} is over {counted(largest.classes, 'class', 'classes')} for "
            f"{counted(largest.positions, 'position')}, some of which "
            + ("have the label -100 or another that is ignored" if largest.sure else "a mask takes out afterwards"),
            f"logits and loss take {format_per_step(evidence, removal.us)}, with the backward pass",
            *work.describe(issued_by(evidence, work, rows)),
        ),
        advice=f"Select the positions that have a target before the product {at_source(head)}, so that logits and loss "
        "are computed for these alone: in masked language modelling that is one in seven, in a padded batch what is "
        "no padding, and in overlapping windows of a text what is new.",
        brief=f"Select the positions that have a target before the product {at_source(head)}",
        places=(
            line,
            head,
        ),
        code="keep = labels != -100\nloss = F.cross_entropy(head(hidden[keep]), labels[keep])  # in place of all "
        "positions",
        gain_us=Interval(least * removal.gain.low, _MOST * removal.gain.high),
        claims=removal.claims_of_part(_MOST),
        removes=True,
        confidence="medium" if largest.sure else "low",
    )


RULES = (masked_positions,)
