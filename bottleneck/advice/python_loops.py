"""Rules of loops over tensors in Python.

They cost a call for each row and op. A loop is seen by its lines, by rows that are picked one by one, by the order of
ops, or by many passes.
"""

import re
from collections.abc import Mapping

import numpy as np
import pandas as pd

from bottleneck.advice.bare_loops import bare_loop
from bottleneck.advice.kernel_work import has_double, work_of
from bottleneck.advice.line_patterns import cuts_windows
from bottleneck.advice.loop_lines import (
    LEAST_SHARE,
    LOOP_OF,
    MOSTLY_OVERHEAD,
    OpLoop,
    functions_of_lines,
    layer_lines,
    library_of_loop,
    loop_claims,
    loop_of,
    loops_by_source,
    program_ops,
    with_backward_us,
)
from bottleneck.advice.loop_remedies import (
    CARRIED,
    IN_FUNCTION,
    IN_ORDER,
    OF_LIBRARY,
    PICK_BY_PICK,
    ROW_BY_ROW,
    SAMPLE_BY_SAMPLE,
    SOLVED,
    WINDOW_BY_WINDOW,
    adapts_weights,
    cell_of,
    remedy_by_text,
    remedy_of_loop,
)
from bottleneck.advice.parameter_loops import reading_loop, tensor_loop
from bottleneck.advice.quantities import (
    ISSUE_ACCOUNTS,
    claims_of,
    events_in_window,
    events_of_source,
    format_count,
    format_per_step,
    host_us_per_launch,
    idle_rows,
    is_compiled,
    issue_part_us,
    ops_in_window,
    outermost_spans,
    overhead_us_per_op,
    rows_of_ops,
)
from bottleneck.advice.ranking import Draft
from bottleneck.advice.recurrent_cells import saved_by_sequence_us
from bottleneck.advice.removal import backward_passes
from bottleneck.advice.servers import find_server
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence, remembered
from bottleneck.schema.intervals import Integers, union
from bottleneck.schema.loading import LOADER_CALL
from bottleneck.schema.op_names import at_source, is_line, place_of
from bottleneck.schema.tables import as_integers, text_matches
from bottleneck.units import counted, format_share, format_us, listed

# Less than MOSTLY_OVERHEAD is enough where the loop steps a recurrent cell, or has so many rounds, and takes so much
# of the step.
_SOME_OVERHEAD, _MOST_OF_STEP, _MANY_ROUNDS = 0.15, 0.4, 64
# Of a loop's time what one op for all rows saves at least (its arithmetic stays): a speaker loss of 384 rounds took
# 52 % of its step, and next to nothing as one product (torch 2.13, EPYC, one thread).
_LEAST_OF_LOOP = 0.6
# Rule 8: an op that picks one row, again and again from one line; its third argument is where.
_PICKS = ("aten::select", "aten::narrow", "aten::slice")
_INDEX = re.compile(r'^\["[^"]*", ?"[^"]*", ?"(-?\d{1,18})"')
_WHOLE = re.compile(r"^-?\d{1,3}$")
_LIBRARY_FRAME = re.compile(r"^<|^nn\.Module: |(?:^|[/\\])torch[/\\]")
_LEAST_PICKED = 0.02


@remembered
def op_loop(evidence: Evidence) -> OpLoop | None:
    """Finds lines that run the same op on the same sizes again and again.

    In one step, in the same module or outside of any. Layers that one line calls one after the other are different
    modules, and the lines of the function that does so are no loop over rows. Loops over parameters are ``tensor_loop``
    and ``reading_loop``.
    """
    ops = program_ops(evidence)
    others = {
        line for loop in (tensor_loop(evidence), reading_loop(evidence)) if loop is not None for line in loop.lines
    }
    others |= layer_lines(evidence)
    same = ["source", "name", "module", "signature", "thread", "step"]
    often = loops_by_source(ops.groupby(same, observed=True, dropna=False).size(), evidence.steps)
    often = {source: count for source, count in often.items() if source not in others}
    often |= {line: count for line, count in _many_rounds(evidence).items() if line not in {*others, *often}}
    if not any(map(is_line, often)):
        # Where only the function is known, its lines may do the same one after the other, but not as often as a loop.
        plain = loops_by_source(
            ops[ops["module"].isna()].groupby(same, observed=True, dropna=False).size(), evidence.steps
        )
        often = {
            line: plain[line] for line in often if line in plain and _loops_in_a_call(evidence, line, plain[line][0])
        }
    return loop_of(evidence, often, tuple(often)) if often else None


def _many_rounds(evidence: Evidence) -> dict[str, tuple[float, float]]:
    """Gives lines that run one op on the same sizes very often.

    Its numbers may differ, as in `x[batch == g]` for each g. They are as ``loops_by_source`` gives them.
    """
    ops, work = program_ops(evidence), work_of(evidence)
    sizes = {call: str(work.tensors_of(call)) for call in ops["signature"].dropna().unique().tolist()}
    same = ["source", "name", "module", "sizes", "thread", "step"]
    counts = ops.assign(sizes=ops["signature"].map(sizes)).groupby(same, observed=True, dropna=False).size()
    lines = loops_by_source(counts, evidence.steps)
    return {line: count for line, count in lines.items() if is_line(line) and count[0] >= _MANY_ROUNDS}


def _loops_in_a_call(evidence: Evidence, source: str, count: float) -> bool:
    """True for a function in which an op runs many times per call."""
    calls = int(events_of_source(evidence, source).sum())
    # A function whose one call spans all steps, such as that of the training, runs each op once per step and more.
    return calls > 0 and count * evidence.steps >= _MANY_ROUNDS * max(calls, evidence.steps)


def _looped_ops(evidence: Evidence) -> Draft | None:
    """Finds lines that run the same small ops for row after row (rule 8).

    Here loops are nested, or pick nothing. Gain: the time of these lines, with their part of the backward pass, less
    one round of it; from 60 % of that, and less where they compute.
    """
    loop = op_loop(evidence)
    if loop is None or find_server(evidence) or is_compiled(evidence):
        return None  # the pieces of a compiled program, and the layers that a server calls, are no rows
    is_mostly = loop.overhead >= MOSTLY_OVERHEAD
    if not is_mostly and not _costs_much(evidence, loop):
        return None
    high_us = loop.us * (1 - 1 / loop.count)
    if evidence.share_of_step(high_us) < LEAST_SHARE:
        return None
    remedy, source = remedy_of_loop(evidence, loop), _head_of_loop(evidence, loop)
    runs = source
    if remedy is ROW_BY_ROW and source == loop.source:
        source = _calling_line(evidence, loop)
        runs = loop.source if source == loop.source else f"{loop.source}, called at {source},"
    if remedy is SAMPLE_BY_SAMPLE and adapts_weights(evidence, loop):
        return None
    library = library_of_loop(evidence, loop.source, loop.count) if remedy in {ROW_BY_ROW, IN_FUNCTION} else None
    if library is not None:
        return _loop_of_library(evidence, loop, library)
    low_us = _LEAST_OF_LOOP * (1.0 if is_mostly else loop.overhead) * high_us
    carrying = _carrying_line(evidence, loop) if remedy is ROW_BY_ROW else None
    if carrying is None and remedy in {ROW_BY_ROW, IN_FUNCTION} and goes_in_order(evidence, loop):
        remedy, (low_us, high_us) = IN_ORDER, (part * high_us for part in _OF_SOLVED)
    elif carrying is not None:
        remedy, parts = (SOLVED, _OF_SOLVED) if _ADDS.match(evidence.source_texts[carrying]) else (CARRIED, _OF_CARRIED)
        source, (low_us, high_us) = carrying, (part * high_us for part in parts)
    low_us, high_us = _saved_of_cell(evidence, loop, Interval(low_us, high_us))
    return Draft(
        slug="looped-op",
        title=remedy.title,
        evidence=(
            f"{runs} runs the same op on the same sizes {counted(format_count(loop.count), 'time')} per step",
            f"{format_per_step(evidence, loop.us)} goes into the lines of the loop and their backward pass, "
            f"{format_share(loop.overhead)} of it calls that compute next to nothing",
        ),
        advice=remedy.advice.format(at=at_source(source)),
        brief=remedy.brief_at(at_source(source)),
        places=(source,),
        code=remedy.code,
        gain_us=Interval(low_us, high_us),
        claims=loop_claims(evidence, high_us),
        removes=True,
        lines=loop.lines,
    )


def _saved_of_cell(evidence: Evidence, loop: OpLoop, saved: Interval) -> tuple[float, float]:
    """Gives what a loop saves where it steps a recurrent cell.

    It is what the module of the whole sequence saved in trials; for other loops what was known.
    """
    cell = cell_of(evidence, loop.source)
    if cell is not None and _has_doubles(evidence, loop.source):
        return -LOST_OF_DOUBLES * saved.high, LOST_OF_DOUBLES * saved.high
    if cell is None or not evidence.is_host_only or remedy_by_text(evidence, loop) is not None:
        return saved.low, saved.high
    sure_us = saved.low if cell == "LSTM" else 0.0  # whose module calls nothing for each step
    low_us, high_us = saved_by_sequence_us(cell, loop.us, loop.count)
    return min(max(low_us, sure_us), high_us), high_us


def _loop_of_library(evidence: Evidence, loop: OpLoop, library: str) -> Draft:
    """Advises on a loop that the program cannot rewrite: a solver's, a sampler's."""
    at, remedy = at_source(loop.source), OF_LIBRARY
    return Draft(
        slug="looped-op",
        title=remedy.title,
        evidence=(
            f"{library} calls {loop.source}, which runs the same op on the same sizes "
            f"{counted(format_count(loop.count), 'time')} per step",
            f"{format_per_step(evidence, loop.us)} goes into these lines and their backward pass, "
            f"{format_share(loop.overhead)} of it calls that compute next to nothing",
        ),
        advice=remedy.advice.format(at=at, caller=library),
        brief=None if remedy.brief is None else remedy.brief.format(at=at, caller=library),
        places=(loop.source,),
        gain_reason="only a trial shows how few rounds keep the accuracy, and how large a batch may be",
        lines=loop.lines,
        comes_first=evidence.share_of_step(loop.us) >= _MOST_OF_STEP,
    )


def goes_in_order(evidence: Evidence, loop: OpLoop) -> bool:
    """True where each round of a loop was seen to need the one before."""
    return evidence.recording is not None and loop.source in evidence.recording.carried_lines


def _carrying_line(evidence: Evidence, loop: OpLoop) -> str | None:
    """Returns the line that hands a result of each round on to the next.

    It is a line of the loop (`h = torch.tanh(x[t] + self.h(h))`), or calls the function that is a round of it
    (`h = self.cell(x[:, t], h)`). Null where none is known.
    """
    texts = evidence.source_texts
    carrying = [source for source, text in texts.items() if _CARRIES.search(text) or _adds_to_input(source, texts)]
    inside = next((source for source in carrying if source in loop.lines), None)
    if inside is not None or not carrying:
        return inside
    events = evidence.linked.trace.events
    start, end = events["ts_us"].to_numpy(), (events["ts_us"] + events["dur_us"]).to_numpy()
    file, _, function = functions_of_lines(evidence).get(loop.source, "").partition(": ")
    called = re.compile(rf"(?:^|[/\\]){re.escape(file)}\(\d+\): {re.escape(function)}$")
    rounds = (
        start[events_in_window(evidence, "python") & text_matches(events["name"], called.search)]
        if function
        else start[:0]
    )
    for source in carrying:
        mine = events_of_source(evidence, source)
        spans = union(start[mine], end[mine])
        if spans.hold(rounds).sum() >= _MOST_ROUNDS * loop.count * evidence.steps:
            return source
    return None


def _adds_to_input(source: str, texts: Mapping[str, str]) -> bool:
    """True for a line that adds to what lines before it take.

    An example is `y = y + h * k1` after `k1 = f(t, y)`. A sum that no other line takes hands nothing on
    (`loss = loss + criterion(x[i])`).
    """
    added, place = _ADDS.match(texts[source]), place_of(source)
    if added is None or place is None or place.is_function:
        return False
    takes = re.compile(rf"^\w+\s*=[^=#]*\w\([^#]*\b{re.escape(added['state'])}\b")
    before = (f"{source.rpartition(':')[0]}:{place.line - number}" for number in range(1, _LINES_OF_ROUND))
    return any(takes.match(texts.get(line, "")) for line in before)


def _head_of_loop(evidence: Evidence, loop: OpLoop) -> str:
    """Returns the loop's line, or the `for` in the next one.

    A comparison of tensors calls nothing that tells its own line.
    """
    texts = evidence.source_texts
    place = place_of(loop.source)
    if place is None or place.is_function or texts.get(loop.source, "").startswith(("for ", "while ")):
        return loop.source
    following = f"{place.file.rpartition('/')[2]}:{place.line + 1}"
    return following if texts.get(following, "").startswith("for ") else loop.source


def _calling_line(evidence: Evidence, loop: OpLoop) -> str:
    """Returns the line of the loop that calls the function with its ops.

    It is the outermost line of the loop that runs in each round and holds the loop's line; that line where none does.
    """
    events = evidence.linked.trace.events
    start, end = events["ts_us"].to_numpy(), (events["ts_us"] + events["dur_us"]).to_numpy()
    inner = start[events_of_source(evidence, loop.source)]
    around = {loop.source: 0.0}
    for source in loop.lines:
        rows = events_of_source(evidence, source)
        spans = union(start[rows], end[rows])
        is_round = source != loop.source and is_line(source) and rows.sum() >= LOOP_OF * evidence.steps
        if is_round and inner.size and spans.hold(inner).mean() >= _MOST_ROUNDS:
            around[source] = spans.total()
    return max(around, key=lambda source: around[source])


def _costs_much(evidence: Evidence, loop: OpLoop) -> bool:
    """True for a loop that takes most of the step with some overhead.

    It has many rounds, or is over a recurrent cell.
    """
    is_most = evidence.share_of_step(loop.us) >= _MOST_OF_STEP and loop.overhead >= _SOME_OVERHEAD
    return is_most and (loop.count >= _MANY_ROUNDS or cell_of(evidence, loop.source) is not None)


# A name that is made anew of itself: `h = self.cell(x[:, t], h)`.
_CARRIES = re.compile(r"^(?P<state>[A-Za-z_]\w*)(?:\s*,\s*\w+)*\s*=(?!=)[^#]*\([^#]*\b(?P=state)\b\s*[,)]")
_ADDS = re.compile(r"^(?P<state>[A-Za-z_]\w*)\s*(?:[+-]=|=\s*(?P=state)\s*[+-])")
# Lines of a round of such a loop, at most.
_LINES_OF_ROUND = 12
# Of the rounds of a loop: so many are calls from that line.
_MOST_ROUNDS = 0.9
# Of a loop whose rounds need one another: a cell of 96 numbers with a norm, over 50 steps, lost 28 % of its time with
# the products of its inputs ahead of the loop, and 53 % as one nn.GRU (torch 2.13, two threads of a Xeon).
_OF_CARRIED = (0.15, 0.6)
# Of the cells' time in fp64, which the module of the sequence computes by the same ops and some copies: two cells of 51
# numbers took 0.92 to 0.94 times as long as their module (torch 2.13, two threads of an EPYC).
LOST_OF_DOUBLES = 0.1
# Of a loop of Runge and Kutta through a network of three layers, with its backward pass, torch.compile of a round took
# 15 and 27 % away with 64 numbers per layer, and added 8 % with 256 (torch 2.13, one thread of a Xeon, processor time).
_OF_SOLVED = (-0.1, 0.3)


def _has_doubles(evidence: Evidence, source: str) -> bool:
    """True where ops of a line on a CPU compute in fp64."""
    ops = program_ops(evidence)
    calls = as_integers(ops["signature"])[(ops["source"] == source).to_numpy()]
    return evidence.is_host_only and any(
        has_double(work_of(evidence), call) for call in np.unique(calls[calls >= 0]).tolist()
    )


def looped_op(evidence: Evidence) -> Draft | None:
    """Finds a line that works on a tensor row by row (rule 8).

    The loop that takes more time, of picks or of the same small ops.
    """
    kinds = (_looped_ops(evidence), _looped_picks(evidence), _looped_order(evidence), _looped_passes(evidence))
    # What gives the same in each step is computed once, and may stay a loop.
    same = frozenset(() if evidence.recording is None else evidence.recording.repeated_lines)
    drafts = [draft for draft in kinds if draft is not None and not same.issuperset(draft.places or ("",))]
    return max(drafts, key=lambda draft: 0.0 if draft.gain_us is None else draft.gain_us.high, default=None)


def _looped_picks(evidence: Evidence) -> Draft | None:
    """Finds a line that takes row after row of a tensor.

    It picks the rows, or unbinds the tensor. It works on each of them alone. The gain is N - 1 passes at the cost of a
    launch (CPU: of three ops, the pick, the work and its result), and no more than the overhead at that line. Where the
    trace has no lines it is the overhead of all rounds but one, and at least that of one op in each. Loops of data
    loaders are another rule's.
    """
    picked = _most_picked(evidence) or _most_unbound(evidence)
    if picked is None:
        return None
    source, name, count = picked
    lost_us = sum(
        issue_part_us(row) for row in idle_rows(evidence, "dispatch", "python", "launch") if row.source == source
    )
    if evidence.is_host_only:
        lost_us += sum(row.us for row in evidence.analysis.kernels if row.source == source and row.bound == "dispatch")
    per_op_us = 3 * (overhead_us_per_op(evidence) or 0.0) if evidence.is_host_only else host_us_per_launch(evidence)
    high_us = min(lost_us, (count - 1) * (per_op_us or 0.0))
    gain_us = Interval(high_us / 2, high_us)
    if source is None:
        ops_per_round, part = _rounds(evidence, count)
        high_us = lost_us * part * (1 - 1 / count)
        gain_us = Interval(high_us / ops_per_round, high_us)
    if evidence.share_of_step(high_us) < _LEAST_PICKED:
        return None
    text = evidence.source_texts.get(source or "", "")
    remedy = WINDOW_BY_WINDOW if cuts_windows(text) else PICK_BY_PICK
    times = counted(format_count(count), "time")
    return Draft(
        slug="looped-op",
        title=remedy.title,
        evidence=(f"{name} runs {times} per step, for one row each; the trace has no source lines",)
        if source is None
        else (
            f"{source} calls {name} {times} per step",
            f"{format_us(lost_us)} of the step is spent between the ops of that line",
        ),
        advice=remedy.advice.format(at="there" if source is None else at_source(source)),
        brief=remedy.brief_at("there" if source is None else at_source(source)),
        places=(source,),
        code=remedy.code,
        gain_us=gain_us,
        claims=claims_of(evidence, *ISSUE_ACCOUNTS, most_us=high_us),
    )


# Of the time of a loop that only its order shows, so much is sure; at most one of its rounds stays. One over pairs of a
# batch took 59 to 76 % of it less as ops on all pairs, or on arrays made once, one over boxes 93 % (torch 2.13, EPYC).
_SURE_OF_ORDER, _LEAST_ORDER = 0.5, 0.1
_SHOWN = 3


def _looped_order(evidence: Evidence) -> Draft | None:
    """Finds a loop that only the order of its ops shows.

    The trace has no lines. Gain: from half of the loop's time to all of it but one round, and of as much of the
    backward pass as it is of the forward pass.
    """
    loop = bare_loop(evidence)
    if loop is None or evidence.share_of_step(loop.us) < _LEAST_ORDER:
        return None
    whole_us = with_backward_us(evidence, loop.us)
    low_us, high_us = _SURE_OF_ORDER * whole_us, (1 - 1 / max(loop.rounds, 2)) * whole_us
    works = listed([name.removeprefix("aten::") for name in loop.works[:_SHOWN]])
    times = counted(format_count(loop.rounds), "time")
    at = f"in the loop that runs {works} for each row"
    return Draft(
        slug="looped-op",
        title=PICK_BY_PICK.title,
        evidence=(
            f"the same {counted(len(loop.names), 'op')} in a row, {times} per step: {', '.join(loop.names)}",
            f"{format_per_step(evidence, whole_us)} passes in it"
            f"{' and its part of the backward pass' if whole_us > loop.us else ''}; the trace has no source lines",
        ),
        advice=PICK_BY_PICK.advice.format(at=at),
        brief=f"Do for all rows at once what a Python loop does row by row ({works})",
        code=PICK_BY_PICK.code,
        gain_us=Interval(low_us, high_us),
        claims=loop_claims(evidence, high_us),
        removes=True,
    )


def _looped_passes(evidence: Evidence) -> Draft | None:
    """Finds many forward and backward passes in a step.

    No lines tell what they loop over. Gain: the step but for one pass, from half of what the passes lose between ops.
    """
    issue_us = evidence.account_us(*ISSUE_ACCOUNTS)
    if any(fold.name for fold in evidence.analysis.lines) or evidence.share_of_step(issue_us) < MOSTLY_OVERHEAD:
        return None
    if (passes := backward_passes(evidence)) < LOOP_OF:
        return None
    lost_us = (1 - 1 / passes) * issue_us
    high_us = (1 - 1 / passes) * evidence.step_us
    return Draft(
        slug="looped-op",
        title="A step runs many forward and backward passes, one after the other",
        evidence=(
            f"{format_count(passes)} backward passes per step",
            f"between ops it loses {format_per_step(evidence, lost_us)}",
        ),
        advice="Put the samples of a step into one forward and backward pass: a batch of all of them; rows of unlike "
        "length padded or grouped, trees level by level. More passes per step take as much longer.",
        brief="Put the samples of a step into one forward and backward pass, in place of one pass for each",
        code="loss = criterion(model(batch), targets)  # all samples; loss.backward() once",
        gain_us=Interval(lost_us / 2, high_us),
        claims=loop_claims(evidence, high_us),
        removes=True,
    )


def _rounds(evidence: Evidence, count: float) -> tuple[float, float]:
    """Gives the ops in each round of a loop without a line.

    There are ``count`` rounds. The second result is their part of all ops of a step.
    """
    ops = _outermost_ops(evidence, np.flatnonzero(ops_in_window(evidence)), with_lines=False)
    runs = ops.groupby(["name", "signature", "module", "thread", "step"], observed=True, dropna=False).size()
    repeated = float(runs[(runs >= count) & (runs % count == 0)].sum())
    return max(repeated / (count * evidence.steps), 1.0), repeated / max(len(ops), 1)


def _outermost_ops(evidence: Evidence, rows: Integers, *, with_lines: bool = True) -> pd.DataFrame:
    """Returns those of these rows of OPS that no other op calls.

    No loader does either. They are at a known line if ``with_lines``.
    """
    ops = evidence.linked.ops
    rows = rows[(ops["depth"].to_numpy()[rows] == 0) & (ops["source"].notna().to_numpy()[rows] | (not with_lines))]
    rows = rows[~outermost_spans(evidence, LOADER_CALL).hold(ops["ts_us"].to_numpy()[rows])]
    columns = ["source", "name", "module", "thread", "step", "signature", "ts_us"]
    return ops.iloc[rows][columns].reset_index(drop=True)


def _most_unbound(evidence: Evidence) -> tuple[str | None, str, float] | None:
    """Returns line, op and calls of an op on each row of a tensor.

    The calls are per step; ``for row in x`` unbinds the tensor. The op comes after the unbinding, takes a tensor of the
    row's sizes, and runs as often as there are rows, in one module or one call. Layers that get one row each are
    different modules. Null where there is none. The line is null in a trace without lines.
    """
    with_lines = bool(evidence.linked.ops["source"].notna().any())
    unbound = _outermost_ops(evidence, rows_of_ops(evidence, ("aten::unbind",)), with_lines=with_lines)
    unbound = unbound.dropna(subset=["signature"])
    work, loops = work_of(evidence), dict[tuple[int, ...], tuple[int, float]]()
    for at_us, signature in zip(unbound["ts_us"].tolist(), unbound["signature"].tolist(), strict=True):
        sizes, dim = next(iter(work.sizes_of(signature)), ()), work.text_column("concrete", signature)[1:2]
        at = int(str(dim[0])) if dim and _WHOLE.match(str(dim[0])) else 0
        row = (*sizes[:at], *sizes[at:][1:])
        if row and -len(sizes) <= at < len(sizes) and sizes[at] >= LOOP_OF:
            loops.setdefault(row, (sizes[at], at_us))
    if not loops:
        return None
    ops = _outermost_ops(evidence, np.flatnonzero(ops_in_window(evidence)), with_lines=with_lines)
    ops = ops.dropna(subset=["signature"])
    taken = {code: work.sizes_of(code) for code in ops["signature"].unique().tolist()}
    for row, (count, from_us) in loops.items():
        on_row = ops["signature"].isin([code for code, sizes in taken.items() if row in sizes])
        body = ops[on_row & (ops["ts_us"] > from_us)]
        same = ["source", "name", "module", "thread", "step"]
        for _, group in body.groupby(same, observed=True, dropna=False, sort=False):
            in_one = group["module"].notna().all() or _runs_in_one_call(evidence, group)
            if len(group) >= count and in_one:
                source = str(group["source"].iloc[0]) if with_lines else None
                return source, str(group["name"].iloc[0]), float(len(group))
    return None


def _most_picked(evidence: Evidence) -> tuple[str, str, float] | None:
    """Returns line, op and calls of the op that picks most rows.

    They are of one tensor from one line, outside other ops; the calls are per step. Null where none picks enough. A
    loop runs in one call of one function, and its index changes. That the tensor is the same follows from its sizes and
    strides: a trace has no addresses. Layers that one line calls one after the other are other modules and other calls.
    """
    picks = _outermost_ops(evidence, rows_of_ops(evidence, _PICKS))
    if len(picks) < LOOP_OF:
        return None
    calls = evidence.linked.trace.signatures.reset_index(drop=True)[["dims", "strides", "concrete"]]
    picks = picks.merge(calls.astype(object), left_on="signature", right_index=True)
    picks["index"] = picks["concrete"].astype(str).str.extract(_INDEX, expand=False)
    same = ["source", "name", "module", "thread", "step", "dims", "strides"]
    picks = picks.dropna(subset=["index"])
    groups = picks.groupby(same, observed=True, dropna=False, sort=False)
    number, indices = groups.ngroup(), groups["index"].nunique().to_numpy()
    for loop in sorted(np.flatnonzero(indices >= LOOP_OF).tolist(), key=lambda position: -int(indices[position])):
        group = picks[number == loop]
        if _runs_in_one_call(evidence, group):
            first = group.iloc[0]
            return str(first["source"]), str(first["name"]), float(len(group))
    return None


def _runs_in_one_call(evidence: Evidence, picks: pd.DataFrame) -> bool:
    """True if the picks are in one call of the program's function.

    It is the innermost frame of the program around them; true also where no frames are known.
    """
    events = evidence.linked.trace.events
    frames = (events["category"] == "python").to_numpy() & (events["thread"] == picks["thread"].iloc[0]).to_numpy()
    frames &= ~text_matches(events["name"], _LIBRARY_FRAME.search)
    start = events["ts_us"].to_numpy()[frames]
    end = start + events["dur_us"].to_numpy()[frames]
    first, last = picks["ts_us"].min(), picks["ts_us"].max()
    around = np.flatnonzero((start <= last) & (end > first))
    start, end = start[around], end[around]
    innermost = {
        int(np.flatnonzero((start <= at) & (end > at))[-1:].sum()) for at in picks["ts_us"].tolist() if start.size
    }
    return len(innermost) <= 1


RULES = (looped_op,)
