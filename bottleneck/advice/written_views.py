"""Rules of views of parts of a tensor.

Autograd copies the gradient of the whole tensor for each op in place on one, and makes a whole one for each that a loop
picks.
"""

import math
import re

import numpy as np

from bottleneck.advice.kernel_work import KernelWork, Size, requires_gain, size_words, work_of
from bottleneck.advice.quantities import format_count, format_per_step, ops_in_window
from bottleneck.advice.ranking import Draft
from bottleneck.advice.removal import BYTES_OF_NUMBER, issued_by, main_source, moved_us, removal_of, roots_of
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.op_names import at_source, forward_of
from bottleneck.schema.tables import as_integers, text_matches
from bottleneck.units import counted

_NODE = re.compile(r"CopySlices$")
_COPY = re.compile(r"^aten::(?:copy_|clone|_to_copy)$")
_LEAST = 0.01


@requires_gain
def written_views(evidence: Evidence) -> Draft | None:
    """Finds activations in place on parts of a tensor.

    Each node of the backward pass first copies the whole gradient. Gain: these copies, from half: what takes the place
    of an op in place writes a tensor of its own.
    """
    ops, work = evidence.linked.ops, work_of(evidence)
    is_node = text_matches(ops["name"], _NODE.search)
    if not is_node.any():
        return None
    parent, below = as_integers(ops["parent"]), is_node
    while not np.array_equal(more := below | (np.append(below, False)[parent] & (parent >= 0)), below):
        below = more
    copies = np.append(below & text_matches(ops["name"], _COPY.search), False)
    rows = copies[work.op] & (work.op >= 0)
    if work.share(rows) < _LEAST:
        return None
    less = np.where(rows, work.us, 0.0)
    sources = evidence.linked.kernels["source"].astype(object).to_numpy()[work.row[rows]]
    longest: dict[str, float] = {}
    for source, us in zip(sources.tolist(), work.us[rows].tolist(), strict=True):
        longest[str(source)] = longest.get(str(source), 0.0) + us
    line = forward_of(max(longest, key=lambda source: longest[source]))
    place = "" if line in {"None", "nan"} else f" {at_source(line)}"
    return Draft(
        slug="written-views",
        title="Ops in place on views make the backward pass copy whole gradients",
        evidence=(
            f"{counted(format_count(float(np.count_nonzero(rows)) / evidence.steps), 'copy', 'copies')} per step in "
            f"CopySlices nodes take {format_per_step(evidence, work.us_of(rows))}",
            *work.describe(rows),
        ),
        advice=f"Write no part of a tensor in place{place}: split it, compute each part out of place, and "
        "join the parts, or write a tensor that is no view.",
        places=(line,),
        code="left, right = x.chunk(2, dim=-1)\nx = torch.cat([left.relu(), right], dim=-1)  # not x[..., :n].relu_()",
        gain_us=work.gain(less / 2, less, rows),
        claims=work.claims(less),
    )


# Parts of one size per step, and their share of the step, from which on picking them one by one is worth a change.
_LEAST_PARTS, _LEAST_PICKED = 8, 0.05
# And where no sizes are recorded: that much time of so many nodes is that of whole tensors.
_LEAST_UNSIZED = 0.2
_PICKED = re.compile(r"^aten::(?:select|slice)_backward$")
_BYTES_READ_AND_WRITTEN = 2 * BYTES_OF_NUMBER


@requires_gain
def picked_parts(evidence: Evidence) -> Draft | None:
    """Finds a loop over the parts of a tensor by index (``x[:, i]``).

    The backward pass makes a gradient of the whole tensor for each part, fills it with zeros, and adds it to the
    others. Gain: these nodes, from 90 %, less one pass over the tensor, which joins the parts of ``unbind``.
    """
    ops, work = evidence.linked.ops, work_of(evidence)
    picked = np.flatnonzero(text_matches(ops["name"], _PICKED.search) & ops_in_window(evidence))
    roots, signatures = roots_of(evidence), as_integers(ops["signature"])
    nodes: dict[tuple[Size, Size], set[int]] = {}
    whole = _largest_sizes(evidence, work)
    has_sizes = any(whole.values())
    for row in picked.tolist():
        part = next(iter(work.tensors_of(int(signatures[row]))), ())
        size = whole.get(int(roots[row]), ())
        if not has_sizes or _LEAST_PARTS * math.prod(part) <= math.prod(size):
            nodes.setdefault((size, part), set()).add(int(roots[row]))
    many = {sizes: rows for sizes, rows in nodes.items() if len(rows) >= _LEAST_PARTS * evidence.steps}
    rows = sorted(row for group in many.values() for row in group)
    if not rows:
        return None
    joined_bytes = _BYTES_READ_AND_WRITTEN * evidence.steps * sum(math.prod(size) for size, _ in many)
    removal = removal_of(evidence, rows, kept_us=moved_us(evidence, joined_bytes))
    if evidence.share_of_step(removal.us) < (_LEAST_PICKED if has_sizes else _LEAST_UNSIZED):
        return None
    source = main_source(evidence, rows)
    place = "" if source is None else f" {at_source(forward_of(source))}"
    size, part = max(many, key=lambda sizes: math.prod(sizes[0]) * len(many[sizes]))
    such = f", such as {size_words(part)} of {size_words(size)}" if has_sizes else ""
    return Draft(
        slug="picked-parts",
        title="Parts that a loop picks by index each get a gradient of the whole tensor",
        evidence=(
            f"{counted(format_count(len(rows) / evidence.steps), 'part')} per step{place}{such}",
            f"their nodes of the backward pass take {format_per_step(evidence, removal.us)}",
            *work.describe(issued_by(evidence, work, rows)),
        ),
        advice=f"Split the tensor once{place}, before the loop: x.unbind(dim), or x.split(n, dim), in place of x[:, i] "
        "for each i. The backward pass then joins the parts once.",
        brief=f"Split the tensor once{place}, x.unbind(dim), in place of picking each part by index",
        places=(None if source is None else forward_of(source),),
        code="for part in x.unbind(1):  # not: for i in range(x.shape[1]): part = x[:, i]",
        gain_us=removal.gain,
        claims=removal.claims,
        removes=True,
    )


def _largest_sizes(evidence: Evidence, work: KernelWork) -> dict[int, Size]:
    """Gives the sizes of the largest tensor inside each outermost op."""
    rows = np.flatnonzero(ops_in_window(evidence))
    roots, signatures = roots_of(evidence)[rows].tolist(), as_integers(evidence.linked.ops["signature"])[rows].tolist()
    largest = {
        signature: max(work.tensors_of(signature), key=math.prod, default=())
        for signature in set(signatures)
        if signature >= 0
    }
    sizes: dict[int, Size] = {}
    for root, signature in zip(roots, signatures, strict=True):
        size = largest.get(signature, ())
        if math.prod(size) > math.prod(sizes.get(root, (0,))):
            sizes[root] = size
    return sizes


RULES = (written_views, picked_parts)
