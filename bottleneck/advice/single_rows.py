"""Rule of recurrent layers that get a batch of one row."""

from collections.abc import Sequence

import numpy as np

from bottleneck.advice.kernel_work import Size, has_backward_pass
from bottleneck.advice.looped_cells import RECURRENT_LAYERS, is_one_step, sizes_of_calls
from bottleneck.advice.quantities import claims_of, format_per_step, rows_of_ops
from bottleneck.advice.ranking import Draft
from bottleneck.advice.removal import backward_of, main_source, removal_of, roots_of
from bottleneck.schema.accounts import UNMODELLED_ACCOUNTS
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence
from bottleneck.units import counted

_LEAST_SHARE = 0.3
# Of the time of one row, what each of sixteen rows saves: 0.87 to 0.93 with a state of 32 numbers, 0.67 to 0.85 of 128
# and 512 (torch 2.13, one thread of an EPYC). What the step does beside is done for all rows at once, at best.
_SMALL_STATE, _LEAST_OF_LAYERS, _OF_SMALL, _OF_LARGE, _OF_REST = 64, 0.6, 0.93, 0.85, 0.75
_ACCOUNTS = ("compute", "memory", "overhead.dispatch", "overhead.python", "overhead.launch_floor", "overhead.allocator")


def single_row(evidence: Evidence) -> Draft | None:
    """Finds recurrent layers whose sequences come one at a time.

    Each step of a sequence multiplies one row by all weights, which takes nearly as long for several rows. Gain, for
    the same sequences in batches of 16 and more: what each of sixteen rows saved in trials; at most also most of what
    the step does beside.
    """
    rows = {layer: rows_of_ops(evidence, (f"aten::{layer}",)) for layer in RECURRENT_LAYERS}
    layer = max(rows, key=lambda name: rows[name].size)
    sizes = sizes_of_calls(evidence, rows[layer])
    if not evidence.is_host_only or not sizes or not all(_has_one_row(size) for size in sizes):
        return None
    roots = np.unique(roots_of(evidence)[rows[layer]]).tolist()
    removal = removal_of(evidence, [*roots, *backward_of(evidence, roots)])
    if evidence.share_of_step(removal.us) < _LEAST_SHARE:
        return None
    module, line = RECURRENT_LAYERS[layer], main_source(evidence, roots)
    steps = max(max(size[0][:2]) for size in sizes)
    rest_us = sum(evidence.account_us(account) for account in _ACCOUNTS) - removal.us
    high = _OF_SMALL if max(size[1][2] for size in sizes) <= _SMALL_STATE else _OF_LARGE
    gain = Interval(_LEAST_OF_LAYERS * removal.us, high * removal.us + _OF_REST * max(rest_us, 0.0))
    return Draft(
        slug="single-row",
        title=f"torch.nn.{module} gets one sequence at a time",
        evidence=(
            f"its input has one row of {counted(steps, 'step')}: each step multiplies that row by all weights",
            f"{format_per_step(evidence, removal.us)} goes into such calls",
        ),
        advice="Put sequences into batches of 16 to 64, padded or packed where their lengths differ"
        + (" (and the learning rate with it)." if has_backward_pass(evidence) else "."),
        brief="Put sequences into batches of 16 to 64",
        places=(line,),
        code="batch = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True)  # or pack_sequence",
        gain_us=gain,
        claims=claims_of(evidence, *_ACCOUNTS, *UNMODELLED_ACCOUNTS, most_us=gain.high),
        changes_results=has_backward_pass(evidence),
        per="sample",
    )


def _has_one_row(sizes: Sequence[Size]) -> bool:
    """True for a whole sequence of one row."""
    return len(sizes[1]) == 3 and sizes[1][1] == 1 and not is_one_step(sizes)


RULES = (single_row,)
