"""Finds recurrent cells that a program steps through a sequence itself."""

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd

from bottleneck.advice.kernel_work import Size, has_double, work_of
from bottleneck.advice.loop_lines import LOOP_OF
from bottleneck.advice.python_loops import LOST_OF_DOUBLES, looped_op
from bottleneck.advice.quantities import format_count, format_per_step, outermost_us, rows_of_ops
from bottleneck.advice.ranking import Draft
from bottleneck.advice.recurrent_cells import CELLS, saved_by_sequence_us
from bottleneck.advice.removal import (
    Removal,
    backward_of,
    main_source,
    python_beside_us,
    removal_of,
    roots_of,
    top_rows,
)
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.intervals import Integers
from bottleneck.schema.op_names import at_source
from bottleneck.schema.tables import as_integers, text_matches
from bottleneck.units import counted

# Of the step: calls that take less make no finding.
_LEAST_SHARE = 0.05


# Between calls, what makes the next input of the last output: attention over a state, or a choice of the next token.
_FEEDS_BACK = re.compile(r"^aten::(?:_?softmax|bmm|argmax|multinomial|topk)$")
_LEAST_FED = 0.3


_WHOLE = (
    "Where no input depends on an earlier output, give torch.nn.{module} the whole sequence{at}: it multiplies all "
    "inputs at once, and runs the steps without Python."
)
_CODE = "outputs, state = torch.nn.{module}(size, hidden)(sequence)  # steps first; in place of the loop"


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


# Layers that get one step of a sequence in each call: the least and most of their time that one call for the whole
# sequence saved, with a state of up to so many numbers a row and above (1 to 3 layers, 1 to 64 rows, in inference and
# training; torch 2.13, one thread of an EPYC).
_SMALL_STATE = 64
# What else each round calls may be done for the whole sequence too: most of its time at best.
_EACH_ROUND, _OF_REST = 0.9, 0.7
_LAYERS = {
    "lstm": ("LSTM", (0.75, 0.97), (0.3, 0.95)),
    "gru": ("GRU", (0.25, 0.5), (0.05, 0.45)),
    "rnn_tanh": ("RNN", (0.4, 0.85), (0.05, 0.8)),
    "rnn_relu": ("RNN", (0.4, 0.85), (0.05, 0.8)),
}


RECURRENT_LAYERS = {layer: module for layer, (module, *_) in _LAYERS.items()}


def stepped_layer(evidence: Evidence) -> Draft | None:
    """Finds recurrent layers that get one step of a sequence in each call.

    Where sizes were not recorded, those that are called as often. Silent where the next input is made of an earlier
    output: where ops between calls show it, or where the recording followed tensors from round to round through other
    lines than the layer's. Gain on a CPU: what one call of the whole sequence saved in trials; from none without sizes.
    """
    rows = {layer: rows_of_ops(evidence, (f"aten::{layer}",)) for layer in _LAYERS}
    layer = max(rows, key=lambda name: rows[name].size)
    calls, sizes = rows[layer].size / evidence.steps, sizes_of_calls(evidence, rows[layer])
    if calls < LOOP_OF or not evidence.is_host_only or not all(map(is_one_step, sizes)):
        return None
    roots = np.unique(roots_of(evidence)[rows[layer]]).tolist()
    line = main_source(evidence, roots)
    carried = () if evidence.recording is None else evidence.recording.carried_lines
    if any(other != line for other in carried) or _feeds_itself(evidence, rows[layer]):
        return None
    removal = removal_of(evidence, [*roots, *backward_of(evidence, roots)])
    if evidence.share_of_step(removal.us) < _LEAST_SHARE:
        return None
    rounds = _of_each_round(evidence, calls)
    rest_us = max(rounds.us - removal.us, 0.0)
    module, of_small, of_large = _LAYERS[layer]
    widest = max((size[1][2] for size in sizes), default=_SMALL_STATE + 1)
    low, high = of_small if widest <= _SMALL_STATE else of_large
    at = "" if line is None else f" {at_source(line)}"
    return Draft(
        slug="looped-cell",
        title=f"torch.nn.{module} is called once for each step of its sequence"
        if sizes
        else f"torch.nn.{module} is called {format_count(calls)} times per step, perhaps for one step of a sequence "
        "each",
        evidence=(
            f"{counted(format_count(calls), 'call')} of aten::{layer} per step{at}"
            + (", each for one step of a sequence" if sizes else "; sizes were not recorded"),
            f"{format_per_step(evidence, removal.us)} goes into them",
            *(("nothing but the layer's own state goes from one round to the next",) if carried else ()),
        ),
        advice=_WHOLE.format(module=module, at=at),
        brief=f"Give torch.nn.{module} the whole sequence in one call{at}",
        places=(line,),
        code=_CODE.format(module=module),
        gain_us=Interval((low if sizes else 0.0) * removal.us, high * removal.us + _OF_REST * rest_us),
        claims=rounds.claims if rest_us else removal.claims,
        removes=bool(sizes),
        confidence="medium" if sizes else "low",
    )


def _of_each_round(evidence: Evidence, rounds: float) -> Removal:
    """Gives what goes with all that is called in each round of a loop.

    Its backward pass goes too.
    """
    ops, top = evidence.linked.ops, top_rows(evidence)
    called = pd.Series([*zip(ops["name"].to_numpy()[top], ops["source"].to_numpy()[top], strict=True)], index=top)
    counts = called.map(called.value_counts())
    rows = counts.index[counts >= _EACH_ROUND * rounds * evidence.steps].tolist()
    return removal_of(evidence, [*rows, *backward_of(evidence, rows)])


def sizes_of_calls(evidence: Evidence, rows: Integers) -> list[Sequence[Size]]:
    """Returns the sizes of the tensors of each kind of call.

    None where they were not recorded.
    """
    work, calls = work_of(evidence), as_integers(evidence.linked.ops["signature"])[rows]
    given = (work.tensors_of(call) for call in np.unique(calls).tolist() if call >= 0)
    return [sizes for sizes in given if len(sizes) > 1]


def is_one_step(sizes: Sequence[Size]) -> bool:
    """True if the input has one step.

    That is (1, rows, features), or (rows, 1, features) where the state has as many rows.
    """
    if len(sizes[0]) != 3 or len(sizes[1]) != 3:
        return False
    (first, second, _), rows = sizes[0], sizes[1][1]
    return (first == 1 and second == rows) or (second == 1 and first == rows)


def looped_cell(evidence: Evidence) -> Draft | None:
    """Finds recurrent cells that are called step by step through time.

    Silent where attention or a choice between the calls makes the next input of the last output. Gain on a CPU: what
    the module of the whole sequence saved in trials. On a device none is predicted.
    """
    rows = {cell: rows_of_ops(evidence, (f"aten::{cell}",)) for cell in CELLS}
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
    module, (low_us, high_us) = CELLS[cell], saved_by_sequence_us(CELLS[cell], removal.us, calls)
    call = as_integers(evidence.linked.ops["signature"])[rows[cell][0]]
    if call >= 0 and evidence.is_host_only and has_double(work_of(evidence), int(call)):
        return None
    low_us = low_us if call >= 0 else -LOST_OF_DOUBLES * removal.us
    # The module runs its steps without Python in between.
    python_us = python_beside_us(evidence, removal, [*roots, *backward_of(evidence, roots)])
    line = main_source(evidence, roots)
    return Draft(
        slug="looped-cell",
        title=f"{module}Cell is called once for each step of its sequence",
        evidence=(
            f"{counted(format_count(calls), 'call')} of aten::{cell} per step"
            + ("" if line is None else f", most of them {at_source(line)}"),
            f"{format_per_step(evidence, removal.us if evidence.is_host_only else host_us)} goes into them",
        ),
        advice=_WHOLE.format(module=module, at=""),
        brief=f"Give torch.nn.{module} the whole sequence in one call",
        places=(line,),
        code=_CODE.format(module=module),
        gain_us=Interval(low_us, high_us + python_us) if evidence.is_host_only else None,
        gain_reason=None if evidence.is_host_only else "cuDNN runs a sequence in a few kernels; only a trial shows it",
        claims=removal.claims_with("overhead.python", python_us) if evidence.is_host_only else {},
        removes=evidence.is_host_only and call >= 0 and low_us > 0,
    )


RULES = (looped_cell, stepped_layer)
