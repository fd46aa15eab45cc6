"""Rules of forward passes without gradients in each step of a training.

They are evaluation, losses without a backward pass, and networks that do not learn.
"""

import math
import re
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from msgspec import Struct

from bottleneck.advice.kernel_work import KernelWork, has_backward_pass, work_of
from bottleneck.advice.quantities import format_count, format_per_step, optimizer_names, outermost_spans
from bottleneck.advice.ranking import Draft
from bottleneck.advice.removal import (
    Removal,
    autograd_records,
    forward_threads,
    issued_by,
    main_source,
    program_rows,
    removal_of,
    sequence_numbers,
    top_rows,
    with_python,
    with_unseen_faults,
)
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence, remembered
from bottleneck.schema.intervals import Flags, Floats, Integers
from bottleneck.schema.op_names import (
    LOADER_FETCH,
    OPTIMIZER_MARK,
    OPTIMIZER_STEP,
    PYTHON_FRAME,
    at_known,
    at_source,
    function_source,
    line_source,
)
from bottleneck.schema.tables import as_integers, text_matches
from bottleneck.units import counted

# Names of evaluation, in a line's text or in its function.
_EVALUATES = re.compile(
    r"(?:^|[^a-z])(?:evaluat|valid(?:at|_|$|\b)|val(?:_|\b)|test(?:_|\b)|dev_|accura|acc(?:_|\b)|metric|perplexity|"
    r"monitor|holdout|held_out|f1|auc)|_(?:val|test|eval|acc|accuracy|metrics?)\b|\beval_",
    re.IGNORECASE,
)
_RANDOM = re.compile(r"^aten::(?:randn|rand(?!int|perm)|normal|uniform|bernoulli|dropout|native_dropout|poisson)")
# Networks that follow another one, or act: their weights or their inputs change.
_FOLLOWS = re.compile(
    r"target|ema\b|ema_|_ema|moment|polyak|\bact|polic|actor|critic|reward|agent|\bq\w{0,3}\(|old|key_enc|_k\(|generat|"
    r"sampl|fake|anchor|shadow",
    re.IGNORECASE,
)
# Of the step: less is not worth a change.
_LEAST_EVALUATED, _LEAST_FROZEN = 0.05, 0.25
# Every so many steps is enough for an evaluation.
_SELDOM = 0.95
_NAMED_LINES = 2
# Losses, and the place of their argument "reduction", which is 0 for one number per sample.
_REDUCTION_AT = {
    **dict.fromkeys(("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div"), 2),
    **dict.fromkeys(("cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d", "binary_cross_entropy"), 3),
    "binary_cross_entropy_with_logits": 4,
}
# Inputs may come back, or not: that much of the time is gained at least.
_SURE_OF_FROZEN = 0.3
# Steps with such a pass: fewer are seldom already.
_NEARLY_ALL = 0.8


class _Pass(Struct, frozen=True):
    """Stretch at a line in which autograd records no op of modules.

    It has its ops, step, line and text. ``evaluates`` is set where the line or its function is named so. ``modules``
    are the roots of the modules.
    """

    rows: tuple[int, ...]
    step: object
    source: str
    text: str
    evaluates: bool
    modules: frozenset[str]


class _LineEvent(Struct, frozen=True):
    """Event of a line.

    Its span, its source, its text, and the function that it is in.
    """

    start_us: float
    end_us: float
    source: str
    text: str
    function: str


def _lines(evidence: Evidence) -> Iterator[_LineEvent]:
    """The events of lines in the window, the outermost of each instant first.

    Where the trace has none, they are the calls of functions of the program, which ops are told to be in.
    """
    events, texts = evidence.linked.trace.events, evidence.source_texts
    low_us, high_us = evidence.linked.window.host_us
    start, dur = events["ts_us"].to_numpy(), events["dur_us"].to_numpy()
    is_line = (events["category"] == "line").to_numpy()
    has_lines, functions = bool(is_line.any()), frozenset(map(str, evidence.linked.ops["source"].cat.categories))
    wanted = is_line if has_lines else (events["category"] == "python").to_numpy()
    rows = np.flatnonzero(wanted & (start >= low_us) & (start < high_us))
    for row in rows[np.lexsort((-dur[rows], start[rows]))].tolist():
        name = str(events["name"].iloc[row])
        match = PYTHON_FRAME.match(name)
        if match is not None:
            function, source = name[match.end() :], line_source(match["path"], match["line"])
            if not has_lines and (source := function_source(function, source)) not in functions:
                continue
            yield _LineEvent(start[row], start[row] + dur[row], source, texts.get(source, ""), function)


@remembered
def _passes(evidence: Evidence) -> tuple[_Pass, ...]:
    """Returns the passes of a training's steps that autograd does not record.

    Each is by its outermost line without training.
    """
    if not has_backward_pass(evidence) or not optimizer_names(evidence):
        return ()
    ops, rows = evidence.linked.ops, program_rows(evidence)
    at_us = ops["ts_us"].to_numpy()[rows]
    order = np.argsort(at_us, kind="stable")
    rows, at_us = rows[order], at_us[order]
    trained = np.append(0, np.cumsum(autograd_records(evidence, rows)))
    module = ops["module"].astype(object).to_numpy()[rows]
    in_module = np.append(0, np.cumsum([isinstance(path, str) for path in module]))
    passes, until_us, held = list[_Pass](), -math.inf, 0
    for line in _lines(evidence):
        first, last = np.searchsorted(at_us, [line.start_us, line.end_us])
        if in_module[last] == in_module[first] or trained[last] > trained[first]:
            continue
        is_inner = line.start_us < until_us
        if is_inner and (passes[-1].evaluates or in_module[last] - in_module[first] < held):
            continue
        candidate = _pass_of(evidence, line, rows[first:last], module[first:last].tolist())
        if not is_inner:
            until_us, held = line.end_us, in_module[last] - in_module[first]
            passes.append(candidate)
        elif candidate.evaluates:  # the same modules, in a function that says what it does
            passes[-1] = candidate
    return tuple(passes)


def _pass_of(evidence: Evidence, line: _LineEvent, rows: Integers, modules: Sequence[object]) -> _Pass:
    steps = evidence.linked.ops["step"].iloc[rows].dropna()
    return _Pass(
        tuple(rows.tolist()),
        steps.iloc[0] if len(steps) else None,
        line.source,
        line.text,
        any(_EVALUATES.search(word) is not None for word in (line.text, line.function)),
        frozenset(word.partition(".")[0] for word in modules if isinstance(word, str)),
    )


def _are_in_all_steps(evidence: Evidence, passes: Sequence[_Pass]) -> bool:
    return len({one.step for one in passes}) >= max(_NEARLY_ALL * evidence.steps, 2)


def evaluation_in_step(evidence: Evidence) -> Draft | None:
    """Finds an evaluation in each step of a training.

    It is passes without gradients at lines that are named so. Gain: their ops and the Python around them, from 90 % of
    it, if they run every twentieth step or more seldom, and their part of page faults that no op of the trace shows.
    Where there is none, it is passes that autograd records up to a loss that no backward pass starts from.
    """
    mine = [one for one in _passes(evidence) if one.evaluates]
    if not _are_in_all_steps(evidence, mine):
        return _loss_without_backward(evidence)
    rows = [row for one in mine for row in one.rows]
    removal, work = with_python(evidence, removal_of(evidence, rows), rows), work_of(evidence)
    removal = _seldom(with_unseen_faults(evidence, removal, rows))
    if evidence.share_of_step(removal.us) < _LEAST_EVALUATED:
        return None
    lines = _lines_of(mine)
    more = lines[1] if len(lines) == 2 else counted(len(lines) - 1, "other line")
    place = at_source(lines[0]) + (f" and {more}" if len(lines) > 1 else "")
    return Draft(
        slug="evaluation-in-step",
        title="The model is evaluated in every step of its training",
        evidence=(
            f"modules run without gradients {place} in each of {counted(evidence.steps, 'step')}",
            f"that takes {format_per_step(evidence, removal.us)}",
            *work.describe(issued_by(evidence, work, rows)),
        ),
        advice=f"Evaluate {place} every hundred steps or once per epoch, not in every step. For a curve of "
        "the training, take the metric from the outputs that the training computes anyway.",
        brief=f"Evaluate {place} every hundred steps or once per epoch",
        places=lines[:_NAMED_LINES],
        code="if step % 100 == 0:\n    score = evaluate(model)",
        gain_us=removal.gain,
        claims=removal.claims,
        removes=True,
    )


def _loss_without_backward(evidence: Evidence) -> Draft | None:
    """Finds forward passes up to a loss of which only the value is used.

    Gain: the ops that autograd records for nothing, from what a pass every twentieth step leaves of them.
    """
    mine = _unused_losses(evidence)
    if not _are_in_all_steps(evidence, mine):
        return None
    rows, work = [row for one in mine for row in one.rows], work_of(evidence)
    removal = with_unseen_faults(evidence, removal_of(evidence, rows), rows)
    if evidence.share_of_step(removal.us) < _LEAST_EVALUATED:
        return None
    lines = [line for line in _lines_of(mine) if line]
    loss = at_source(lines[0] if lines else None)
    count = format_count(len(mine) / evidence.steps)
    return Draft(
        slug="evaluation-in-step",
        title="A loss is computed in every step, and no backward pass starts from it",
        evidence=(
            f"{counted(count, 'time')} per step autograd records a forward pass up to the loss {loss}, "
            "and no backward pass goes through it: only its value is used",
            f"that takes {format_per_step(evidence, removal.us)}",
            *work.describe(issued_by(evidence, work, rows)),
        ),
        advice=f"Leave out the loss {loss}, and the forward pass before it, where no backward pass "
        "follows; or compute it every hundred steps, for a log. Where the step needs its value, run both under "
        "torch.no_grad(), which saves little of it.",
        brief=f"Leave out the loss {loss} and its forward pass where no backward pass follows",
        places=tuple(lines[:_NAMED_LINES]),
        code="if backward_follows or step % 100 == 0:\n    loss = criterion(model(x), y)",
        gain_us=Interval(_SELDOM * removal.gain.low, removal.gain.high),
        claims=removal.claims,
        removes=True,
    )


def _unused_losses(evidence: Evidence) -> list[_Pass]:
    """Returns forward passes up to a loss that autograd records for nothing.

    None of the nodes that their ops make runs in the trace, though a step of an optimizer follows. A loss of one number
    per sample is left out: it may pick samples.
    """
    ops, number, top = evidence.linked.ops, sequence_numbers(evidence), top_rows(evidence)
    steps = outermost_spans(evidence, OPTIMIZER_STEP)
    top = top[number[top] >= 0]
    nodes = np.flatnonzero(ops["is_autograd"].to_numpy() & (ops["depth"] == 0).to_numpy() & (number >= 0))
    if evidence.is_incomplete or not steps.start.size or not top.size:
        return []
    thread = ops["thread"].cat.codes.to_numpy()[top]
    top = top[thread == np.bincount(thread).argmax()]
    if np.unique(forward_threads(evidence)[nodes]).size != 1 or (np.diff(number[top]) < 0).any():
        return []
    run = np.unique(number[nodes])
    is_made, is_run = np.diff(number[top]) > 0, np.diff(np.searchsorted(run, number[top])) > 0
    passes, rows = list[_Pass](), list[int]()
    step = as_integers(ops["step"])
    at_us = ops["ts_us"].to_numpy()
    for row, runs in zip(top[:-1][is_made].tolist(), is_run[is_made].tolist(), strict=True):
        if runs or (rows and step[rows[0]] != step[row]):
            rows = []
        if runs:
            continue
        rows.append(row)
        if at_us[row] < steps.start[-1] and _is_reduced_loss(evidence, row):
            passes.append(_up_to_loss(evidence, rows))
            rows = []
    return passes


def _is_reduced_loss(evidence: Evidence, row: int) -> bool:
    """True for a loss that is one number."""
    ops = evidence.linked.ops
    place = _REDUCTION_AT.get(str(ops["name"].iloc[row]).removeprefix("aten::"))
    if place is None:
        return False
    reduction = work_of(evidence).text_column("concrete", int(as_integers(ops["signature"])[row]))[place : place + 1]
    return reduction != ("0",)


def _up_to_loss(evidence: Evidence, rows: Sequence[int]) -> _Pass:
    """Makes a pass of these ops, at the line of the last one."""
    ops = evidence.linked.ops
    source = ops["source"].astype(object).iloc[rows[-1]]
    source = source if isinstance(source, str) else ""
    modules = ops["module"].astype(object).iloc[list(rows)].tolist()
    return _Pass(
        tuple(rows),
        ops["step"].iloc[rows[-1]],
        source,
        evidence.source_texts.get(source, ""),
        True,
        frozenset(word.partition(".")[0] for word in modules if isinstance(word, str)),
    )


def _lines_of(passes: Sequence[_Pass]) -> tuple[str, ...]:
    """Returns the lines of these passes, that with most ops first."""
    ops = {one.source: len(one.rows) for one in passes}
    return tuple(sorted(ops, key=lambda line: -ops[line]))


def _seldom(removal: Removal) -> Removal:
    gain = Interval(_SELDOM * removal.gain.low, _SELDOM * removal.gain.high)
    return Removal(removal.us, gain, removal.claims)


def frozen_features(evidence: Evidence) -> Draft | None:
    """Finds a network that does not learn and runs in each step.

    Its inputs hold no random numbers, so that results may be kept. Gain: the time of its ops, from 30 % of it: only the
    program knows whether its inputs come back.
    """
    passes = _passes(evidence)
    trained = _trained_roots(evidence)
    mine = [
        one
        for one in passes
        if not one.evaluates
        and not one.modules & trained
        and not _FOLLOWS.search(one.text)
        and not _changes(evidence, one)
    ]
    if not _are_in_all_steps(evidence, mine):
        return None
    rows = [row for one in mine for row in one.rows]
    removal, work = removal_of(evidence, rows), work_of(evidence)
    if evidence.share_of_step(removal.us) < _LEAST_FROZEN:
        return None
    line = max(mine, key=lambda one: len(one.rows)).source
    return Draft(
        slug="frozen-features",
        title="A network that does not learn runs in every step",
        evidence=(
            f"{line} runs modules without gradients, none of which is trained; no random number goes into it",
            f"that takes {format_per_step(evidence, removal.us)}",
            *work.describe(issued_by(evidence, work, rows)),
        ),
        advice=f"Where its inputs come back in each epoch, compute what the frozen network gives {at_source(line)} "
        "once for all samples, keep it (features, teacher's outputs), and train on that. Otherwise run it in bf16, for "
        "more rows per call.",
        brief=f"Compute what the frozen network gives {at_source(line)} once, and train on that",
        places=(line,),
        code="with torch.inference_mode():\n    features = torch.cat([net(x) for x, _ in loader])  # once, in order",
        gain_us=Interval(_SURE_OF_FROZEN * removal.gain.low, removal.gain.high),
        claims=removal.claims,
        removes=True,
        confidence="low",
    )


@remembered
def _trained_roots(evidence: Evidence) -> frozenset[str]:
    """The root modules in which autograd records ops."""
    top = top_rows(evidence)
    modules = evidence.linked.ops["module"].astype(object).to_numpy()[top][autograd_records(evidence, top)]
    return frozenset(path.partition(".")[0] for path in modules if isinstance(path, str))


def _changes(evidence: Evidence, one: _Pass) -> bool:
    """True if random numbers are drawn in the step up to this pass's end.

    Those that pick rows do not count.
    """
    ops, top = evidence.linked.ops, _random_rows(evidence)
    end_us = float(ops["ts_us"].to_numpy()[one.rows[-1]])
    at_us: Floats = ops["ts_us"].to_numpy()[top]
    same = (ops["step"].iloc[top] == one.step).to_numpy(dtype=bool, na_value=False)
    return bool((same & (at_us <= end_us)).any())


@remembered
def _random_rows(evidence: Evidence) -> Integers:
    top = top_rows(evidence)
    return top[text_matches(evidence.linked.ops["name"], lambda name: bool(_RANDOM.match(name)))[top]]


# Of the step; and of the time of these ops, what computes in place of moving or making tensors.
_LEAST_PREPARED, _COMPUTES = 0.15, 0.5
_MOVES = re.compile(
    r"^aten::(?:to|_to_copy|copy_|clone|contiguous|zeros|zero_|ones|full|fill_|empty\w*|lift_fresh|detach)"
)


_MEASURES = re.compile(r"^aten::(?:sort|topk|bincount|_?unique\w*|histc|eq)$")
_MOST_MEASURED = 0.2
_LAYERS = re.compile(r"^aten::(?:addmm|convolution\w*|\w*_convolution|native_layer_norm|\w*batch_norm)$")
# A matrix that Python fills by its own indices, as one of sampled neighbours, is another one in each step.
_FILLS = re.compile(r"^aten::_?index_put")
_READS = re.compile(r"^aten::(?:item|_local_scalar_dense|is_nonzero)$")


def _prepared_rows(evidence: Evidence) -> Integers:
    """Gives the outermost ops of a training's steps that prepare their inputs.

    They come before the first op that autograd records in the step, in its thread, outside of modules, of optimizers
    and of the loader.
    """
    ops, top = evidence.linked.ops, top_rows(evidence)
    recorded = top[autograd_records(evidence, top)]
    step, at_us = ops["step"], ops["ts_us"].to_numpy()
    first_us = pd.Series(at_us[recorded]).groupby(step.iloc[recorded].to_numpy(na_value=-1)).min()
    begins_us = step.iloc[top].map(first_us).to_numpy(dtype=np.float64, na_value=np.nan)
    threads = ops["thread"].cat.codes.to_numpy()
    is_mine = (at_us[top] < begins_us) & np.isin(threads[top], threads[recorded])
    is_mine &= ops["module"].isna().to_numpy()[top]
    for marks in (outermost_spans(evidence, OPTIMIZER_MARK), outermost_spans(evidence, LOADER_FETCH)):
        is_mine &= ~marks.hold(at_us[top])
    # What ends in a number that the host reads is a metric, of the step before where steps end with the optimizer's.
    reads = top[is_mine & text_matches(ops["name"], _READS.search)[top]]
    read_us = pd.Series(at_us[reads]).groupby(step.iloc[reads].to_numpy(na_value=-1)).max()
    last_us = step.iloc[top].map(read_us).to_numpy(dtype=np.float64, na_value=-np.inf)
    return top[is_mine & ~(at_us[top] <= last_us)]


def _are_features(evidence: Evidence, work: KernelWork, rows: Integers, mine: Flags) -> bool:
    """True for ops that may compute features of the inputs alone.

    They are in all steps, and draw no random numbers.
    """
    ops = evidence.linked.ops
    if ops["step"].iloc[rows].nunique() < max(_NEARLY_ALL * evidence.steps, 2):
        return False
    if np.isin(_random_rows(evidence), rows).any() or text_matches(ops["name"], _FILLS.search)[rows].any():
        return False
    us = work.us_of(mine)
    if work.us_of(mine & work.op_like(_MOVES)) > (1 - _COMPUTES) * us:
        return False
    # What sorts or counts is a metric of the step before, where steps end with the optimizer's.
    if work.us_of(mine & work.op_like(_MEASURES)) > _MOST_MEASURED * us:
        return False
    # Without modules layers tell nobody whose they are: of a frozen network, or of one that follows the trained one.
    return not (ops["module"].isna().all() and (mine & work.op_like(_LAYERS)).any())


def features_in_step(evidence: Evidence) -> Draft | None:
    """Finds features of the inputs that are computed in each step.

    They depend on no weight, and no random number goes into them, nor places that Python picks. The program knows
    whether its inputs come back.
    """
    if not has_backward_pass(evidence):
        return None
    rows = _prepared_rows(evidence)
    removal, work = removal_of(evidence, rows.tolist()), work_of(evidence)
    mine = issued_by(evidence, work, rows)
    if evidence.share_of_step(removal.us) < _LEAST_PREPARED or not _are_features(evidence, work, rows, mine):
        return None
    line = main_source(evidence, rows.tolist())
    place = at_known(line)
    return Draft(
        slug="features-in-step",
        title="Features of the inputs are computed in every step",
        evidence=(
            f"{format_per_step(evidence, removal.us)} in ops{place} before the first op that learns: autograd records "
            "none of them, and they draw no random numbers",
            *work.describe(mine),
        ),
        advice=f"Where the inputs come back in each epoch, compute their features{place} once, keep them, and train on "
        "that; else compute them in the workers of the loader while the step runs, where there are processors for it.",
        brief=f"Compute the features{place} once, and train on them",
        places=() if line is None else (line,),
        code="features = [prepare(x) for x, _ in dataset]  # once; torch.save keeps them for later runs",
        gain_us=Interval(_SURE_OF_FROZEN * removal.gain.low, removal.gain.high),
        claims=removal.claims,
        removes=True,
        confidence="low",
    )


RULES = (evaluation_in_step, frozen_features, features_in_step)
