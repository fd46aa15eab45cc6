"""Rule of sparse gradients of embeddings whose tables are small."""

import math
import re

import numpy as np

from bottleneck.advice.kernel_work import KernelWork, Size, requires_gain, work_of
from bottleneck.advice.quantities import claims_of, format_per_step, outermost_spans, rows_of_ops
from bottleneck.advice.ranking import Draft
from bottleneck.schema.accounts import UNMODELLED_ACCOUNTS
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.intervals import Flags
from bottleneck.schema.op_names import OPTIMIZER_STEP
from bottleneck.schema.tables import as_integers
from bottleneck.units import US_PER_S, counted, format_us

_GIVES_ROWS, _SORTS = "aten::embedding_sparse_backward", "aten::_coalesce"
_SORTING = re.compile(rf"^{_SORTS}$")
# What puts the gradients of several lookups together, as many rows as were looked up.
_PUTS_TOGETHER = re.compile(r"^aten::(?:fill_|zero_|cat|copy_|add_?)$")
_LEAST_SHARE = 0.1
# A gradient as large as its table is filled, and read by a fused update, which reads and writes weight and two moments:
# bytes per number of the table. Each number of a row that was looked up is read and added to it.
_PER_NUMBER, _PER_LOOKUP = 32.0, 12.0
# Of the memory's bandwidth, or where it is not known in bytes per second: a table may lie in a cache.
_RATES, _USUAL_RATES = (0.7, 2.0), (25e9, 100e9)
_ACCOUNTS = ("memory", "overhead.dispatch", "overhead.python", "overhead.allocator", *UNMODELLED_ACCOUNTS)


@requires_gain
def sparse_gradients(evidence: Evidence) -> Draft | None:
    """Finds sparse gradients that cost more than dense ones would.

    The rows that were looked up are sorted, added up and picked out of the moments in many ops. Gain on a CPU: what the
    optimizer and the sorting take, and at most also what puts gradients together in the backward pass, less the time of
    a gradient as large as the table and a fused update, by their bytes.
    """
    work = work_of(evidence)
    tables, given = (_sizes(evidence, work, name) for name in (_SORTS, _GIVES_ROWS))
    if not evidence.is_host_only or not tables or not given:
        return None
    in_table, looked_up = (math.fsum(map(math.prod, sizes)) / evidence.steps for sizes in (tables, given))
    dense_bytes = _PER_NUMBER * in_table + _PER_LOOKUP * looked_up
    bandwidth = evidence.analysis.device.bandwidth_bytes_per_s
    low, high = _USUAL_RATES if not bandwidth else (part * bandwidth for part in _RATES)
    least_dense_us, most_dense_us = (dense_bytes / rate * US_PER_S for rate in (high, low))
    updates = work.inside(OPTIMIZER_STEP)
    sorts = work.op_like(_SORTING) & ~updates
    puts_together = _of_rows(work, given) & ~updates & ~sorts
    update_us = outermost_spans(evidence, OPTIMIZER_STEP).total() / evidence.steps * evidence.host_scale
    sparse_us = max(update_us, work.us_of(updates)) + work.us_of(sorts)
    gain = Interval(sparse_us - most_dense_us, sparse_us + work.us_of(puts_together) - least_dense_us)
    if evidence.share_of_step(gain.high) < _LEAST_SHARE or gain.low + gain.high <= 0:
        return None
    rows, width = max(tables, key=math.prod)
    return Draft(
        slug="sparse-gradients",
        title="Sparse gradients cost more than gradients as large as the table would",
        evidence=(
            f"gradients of {counted(round(math.fsum(size[0] for size in given) / evidence.steps), 'row')} are sorted "
            f"per step; the largest table has {counted(rows, 'row')} of {counted(width, 'number')}",
            f"optimizer and sorting of rows take {format_per_step(evidence, sparse_us)}; a gradient as large as the "
            f"table and one fused update would take {format_us(least_dense_us)} to {format_us(most_dense_us)}",
            *work.describe(updates | sorts),
        ),
        advice="Take dense gradients (sparse=False) with a fused optimizer: the table is so small that going through "
        "all of it is cheaper than sorting rows. SparseAdam leaves the moments of other rows alone, Adam does not.",
        brief="Take dense gradients (sparse=False) with a fused optimizer",
        code="nn.Embedding(rows, width)  # sparse=False\n"
        "optimizer = torch.optim.Adam(model.parameters(), lr=lr, fused=True)",
        gain_us=gain,
        claims=claims_of(evidence, *_ACCOUNTS, most_us=gain.high),
        changes_results=True,
    )


def _sizes(evidence: Evidence, work: KernelWork, name: str) -> list[Size]:
    """Returns the size of the first matrix of each call of an op."""
    calls = as_integers(evidence.linked.ops["signature"])[rows_of_ops(evidence, (name,))].tolist()
    firsts = (next(iter(work.tensors_of(call)), ()) for call in calls if call >= 0)
    return [size for size in firsts if len(size) == 2]


def _of_rows(work: KernelWork, given: list[Size]) -> Flags:
    """Masks what moves matrices of as many rows as a lookup gives, or more."""
    widths, least = {width for _, width in given}, min(rows for rows, _ in given)

    def is_of_rows(signature: int) -> bool:
        size = next(iter(work.tensors_of(signature)), ())
        return len(size) == 2 and size[1] in widths and size[0] >= least

    moves = work.op_like(_PUTS_TOGETHER) & (work.signature >= 0)
    return np.asarray(work.calls_that(moves, is_of_rows))


RULES = (sparse_gradients,)
