"""Finds a loop that goes over all data once for each class.

A metric, or a lookup by key, that compares one tensor with number after number.
"""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pandas as pd

from bottleneck.advice.kernel_work import size_words, work_of
from bottleneck.advice.loop_lines import LEAST_SHARE, LOOP_OF, has_backward_fold, loop_claims, program_ops
from bottleneck.advice.quantities import format_per_step
from bottleneck.advice.ranking import Draft
from bottleneck.advice.removal import autograd_records, removal_of, top_rows
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.op_names import at_source
from bottleneck.schema.records import replace
from bottleneck.schema.tables import as_integers, text_matches

_EQUALS = frozenset({"aten::eq", "aten::eq_", "aten::ne"})
# One pass over the data takes the place of all: what is saved of the loop at least; and from where it comes first.
_LEAST_OF_CLASSES, _MOST_CLASSES_FIRST = 0.6, 0.4


def class_by_class(evidence: Evidence) -> Draft | None:
    """Finds a loop that compares one tensor with number after number.

    It works on each mask: a metric, or a lookup, by class. Lines without a backward pass. Gain: the time of the lines
    that run ops of these sizes as often, less four passes.
    """
    ops, work = program_ops(evidence), work_of(evidence)
    pairs = {code: work.sizes_of(code) for code in ops["signature"].unique().tolist()}
    compared = ops[text_matches(ops["name"], _EQUALS.__contains__)]
    compared = compared[compared["signature"].map(lambda code: _with_a_number(pairs[code])).to_numpy(dtype=bool)]
    counts = Counter(
        (str(source), pairs[signature][0], step)
        for source, signature, step in compared[["source", "signature", "step"]].itertuples(index=False)
    )
    (source, size, _), count = max(counts.items(), key=lambda code: code[1], default=(("", (), 0), 0))
    if count < LOOP_OF:
        return _classes_without_lines(evidence)
    mine = ops[ops["signature"].map(lambda code: next(iter(pairs[code]), ()) == size).to_numpy(dtype=bool)]
    runs = mine.groupby(["source", "name", "step"], observed=True, dropna=False).size()
    lines = sorted({str(code[0]) for code in runs[runs >= LOOP_OF].index})
    folds = [fold for fold in evidence.analysis.lines if fold.name in lines]
    us = math.fsum(_part_in_rounds(ops, runs, fold.name) * fold.us + fold.idle_us for fold in folds)
    if evidence.share_of_step(us) < LEAST_SHARE or any(has_backward_fold(evidence, line) for line in lines):
        return None
    high_us = us * (1 - min(4 / max(count, 1), 1.0))
    return replace(
        _class_draft(size, count, _comparing_line(evidence, source, us)),
        evidence=(
            f"{source} compares a tensor of {size_words(size)} with a number {count} times per step",
            f"{format_per_step(evidence, us)} goes into {', '.join(lines[:4])}",
        ),
        gain_us=Interval(_LEAST_OF_CLASSES * high_us, high_us),
        claims=loop_claims(evidence, high_us),
        lines=tuple(fold.name for fold in folds),
        comes_first=evidence.share_of_step(us) >= _MOST_CLASSES_FIRST,
    )


def _class_draft(size: Sequence[int], count: int, line: str | None) -> Draft:
    """The advice in place of a loop over classes, with the line that compares."""
    loop = f"the loop {at_source(line)}" if line is not None else "the loop"
    return Draft(
        slug="class-by-class",
        title="A loop goes over all data once for each class",
        evidence=(f"a tensor of {size_words(size)} is compared with a number {count} times per step",),
        advice=f"Compute all classes at once in place of {loop}: one torch.bincount of target * classes + prediction "
        "is the confusion matrix, whose diagonal, rows and columns hold the sums of all classes.",
        brief=f"Compute all classes at once, with torch.bincount, in place of {loop}",
        places=(line,),
        code="matrix = torch.bincount((target * classes + prediction).flatten(), minlength=classes**2)\n"
        "matrix = matrix.view(classes, classes)  # other lookups by key: sort by the key once, or scatter_add",
        removes=True,
    )


def _classes_without_lines(evidence: Evidence) -> Draft | None:
    """Finds such a loop on a CPU where the trace holds no lines.

    Its ops lie between the first and the last comparison of a step, on tensors of that size or on single numbers.
    """
    ops, work, top = evidence.linked.ops, work_of(evidence), top_rows(evidence)
    if not evidence.is_host_only or ops["source"].notna().any():
        return None
    compares = text_matches(ops["name"], _EQUALS.__contains__)[top]
    if np.count_nonzero(compares) < LOOP_OF:
        return None
    calls, step = as_integers(ops["signature"])[top].tolist(), as_integers(ops["step"])[top]
    sizes = {call: work.sizes_of(call) for call in set(calls)}
    first = [tuple(next(iter(sizes[call]), ())) for call in calls]
    compares &= np.array([_with_a_number(sizes[call]) for call in calls], dtype=bool)
    counts = Counter((first[at], int(step[at])) for at in np.flatnonzero(compares).tolist())
    (size, _), count = max(counts.items(), key=lambda code: code[1], default=(((), 0), 0))
    if count < LOOP_OF:
        return None
    compares &= np.array([one == size for one in first], dtype=bool)
    inside = np.zeros(top.size, dtype=bool)
    for number in np.unique(step[compares]).tolist():
        places = np.flatnonzero(compares & (step == number))
        inside[places[0] : places[-1] + 1] = places.size >= LOOP_OF
    rows = top[inside & np.array([one == size or math.prod(one) == 1 for one in first], dtype=bool)].tolist()
    removal = removal_of(evidence, rows)
    if evidence.share_of_step(removal.us) < LEAST_SHARE or autograd_records(evidence, np.array(rows)).any():
        return None
    high_us = removal.gain.high * (1 - min(4 / count, 1.0))
    draft = _class_draft(size, count, None)
    return replace(
        draft,
        evidence=(*draft.evidence, f"{format_per_step(evidence, removal.us)} goes into the ops of that loop"),
        gain_us=Interval(_LEAST_OF_CLASSES * high_us, high_us),
        claims=removal.claims,
    )


def _part_in_rounds(ops: pd.DataFrame, runs: pd.Series, source: str) -> float:
    """Returns the part of a source's time that is in rounds of a loop.

    It is in ops that run as often. Where the source is a function, ops before its loop are among its time.
    """
    mine = ops[ops["source"] == source]
    often = {code[1] for code in runs[runs >= LOOP_OF].index if code[0] == source}
    whole_us = float(mine["dur_us"].sum())
    return float(mine["dur_us"][mine["name"].isin(often)].sum()) / whole_us if whole_us > 0 else 1.0


def _with_a_number(sizes: Sequence[Sequence[int]]) -> bool:
    """True for a tensor and a number.

    Of a number a trace has no sizes, or none that say more than one.
    """
    return bool(sizes) and math.prod(sizes[0]) > 1 and all(math.prod(size) == 1 for size in sizes[1:])


def _comparing_line(evidence: Evidence, source: str, us: float) -> str:
    """Returns the sampled line of this function that compares.

    The source itself where none was sampled.
    """
    run = evidence.analysis.run
    sampled = {} if run is None else run.spread(source, us, {})
    return next((line.source for line in sampled if "==" in (line.text or "") or "!=" in (line.text or "")), source)


RULES = (class_by_class,)
