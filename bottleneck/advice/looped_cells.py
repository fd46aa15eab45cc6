"""Finds recurrent cells that a program steps through a sequence itself."""

import re

import numpy as np

from bottleneck.advice.kernel_work import has_double, work_of
from bottleneck.advice.python_loops import LOOP_OF, LOST_OF_DOUBLES, looped_op
from bottleneck.advice.quantities import format_count, format_per_step, outermost_us, rows_of_ops
from bottleneck.advice.ranking import Draft
from bottleneck.advice.removal import backward_of, main_source, removal_of, roots_of
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.intervals import Integers
from bottleneck.schema.op_names import at_source
from bottleneck.schema.tables import as_integers, text_matches
from bottleneck.units import counted

# Of the step: calls that take less make no finding.
_LEAST_SHARE = 0.05
# Of a step's calls of a cell the module of the whole sequence saves this part of their time, and so many us per call,
# at least and at most, and no more than the last part: over hidden sizes of 32 to 1024, in inference and in training,
# by `python -m benchmarks.calls_for_few_rows` (torch 2.13, one thread of an EPYC). LSTM cells of 32 to 128 numbers lose
# 66 to 91 % of their time, of 1024 numbers 19 to 33 %; GRU cells lose 2 to 43 %, others 1 to 61 %.
_CELLS = {
    "lstm_cell": ("LSTM", (0.12, 15.0), (0.3, 60.0), 0.9),
    "gru_cell": ("GRU", (0.02, 0.0), (0.2, 20.0), 0.45),
    "rnn_tanh_cell": ("RNN", (0.01, 0.0), (0.2, 20.0), 0.65),
    "rnn_relu_cell": ("RNN", (0.01, 0.0), (0.2, 20.0), 0.65),
}


# Between calls, what makes the next input of the last output: attention over a state, or a choice of the next token.
_FEEDS_BACK = re.compile(r"^aten::(?:_?softmax|bmm|argmax|multinomial|topk)$")
_LEAST_FED = 0.3


def _feeds_itself(evidence: Evidence, cells: Integers) -> bool:
    """True if a cell's inputs depend on its earlier outputs.

    Ops between its calls tell so. A stack of cells has them between its last call and the first of the next step alone.
    """
    ops = evidence.linked.ops
    at_us = ops["ts_us"].to_numpy()
    fed_us = np.sort(at_us[text_matches(ops["name"], _FEEDS_BACK.match)])
    called_us = np.sort(at_us[cells])
    between = np.diff(np.searchsorted(fed_us, called_us)) > 0
    return bool(between.size and between.mean() >= _LEAST_FED)


def looped_cell(evidence: Evidence) -> Draft | None:
    """Finds recurrent cells that are called step by step through time.

    Silent where attention or a choice between the calls makes the next input of the last output. Gain on a CPU: what
    the module of the whole sequence saved in trials. On a device none is predicted.
    """
    rows = {cell: rows_of_ops(evidence, (f"aten::{cell}",)) for cell in _CELLS}
    cell = max(rows, key=lambda name: rows[name].size)
    calls = rows[cell].size / evidence.steps
    # A loop with known lines tells more.
    if calls < LOOP_OF or looped_op(evidence) is not None or _feeds_itself(evidence, rows[cell]):
        return None
    roots = np.unique(roots_of(evidence)[rows[cell]]).tolist()
    removal = removal_of(evidence, [*roots, *backward_of(evidence, roots)])
    host_us = outermost_us(evidence, f"aten::{cell}")
    if evidence.share_of_step(removal.us if evidence.is_host_only else host_us) < _LEAST_SHARE:
        return None
    module, least, most, whole = _CELLS[cell]
    low_us, high_us = (
        min(part * removal.us + us_per_call * calls, whole * removal.us) for part, us_per_call in (least, most)
    )
    call = as_integers(evidence.linked.ops["signature"])[rows[cell][0]]
    if call >= 0 and evidence.is_host_only and has_double(work_of(evidence), int(call)):
        return None
    low_us = low_us if call >= 0 else -LOST_OF_DOUBLES * removal.us
    line = main_source(evidence, roots)
    return Draft(
        slug="looped-cell",
        title=f"{module}Cell is called once for each step of its sequence",
        evidence=(
            f"{counted(format_count(calls), 'call')} of aten::{cell} per step"
            + ("" if line is None else f", most of them {at_source(line)}"),
            f"{format_per_step(evidence, removal.us if evidence.is_host_only else host_us)} goes into them",
        ),
        advice=f"Where no input depends on an earlier output, give torch.nn.{module} the whole sequence: it multiplies "
        "all inputs at once, and runs the steps without Python.",
        brief=f"Give torch.nn.{module} the whole sequence in one call",
        places=(line,),
        code=f"outputs, state = torch.nn.{module}(size, hidden)(sequence)  # steps first; in place of the loop",
        gain_us=Interval(low_us, high_us) if evidence.is_host_only else None,
        gain_reason=None if evidence.is_host_only else "cuDNN runs a sequence in a few kernels; only a trial shows it",
        claims=removal.claims if evidence.is_host_only else {},
    )


RULES = (looped_cell,)
