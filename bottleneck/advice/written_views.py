"""Rule of ops in place on views.

Autograd copies the gradient of the whole tensor for each.
"""

import re

import numpy as np

from bottleneck.advice.kernel_work import requires_gain, work_of
from bottleneck.advice.quantities import format_count, format_per_step
from bottleneck.advice.ranking import Draft
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


RULES = (written_views,)
