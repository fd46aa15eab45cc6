"""Rules of loops over parameters, changed or read one by one.

One call changes a list of them; what is only watched need not be read in each step.
"""

import re
from collections.abc import Collection, Iterator, Set

import numpy as np
import pandas as pd

from bottleneck.advice.bare_loops import bare_update
from bottleneck.advice.kernel_work import Size, is_size, work_of
from bottleneck.advice.loop_lines import (
    LEAST_SHARE,
    LINE_NAME,
    LOOP_OF,
    MOSTLY_OVERHEAD,
    OpLoop,
    functions_of_lines,
    has_backward_fold,
    line_number,
    loop_claims,
    loop_of,
    loops_by_source,
    program_ops,
    spans_without_torch,
)
from bottleneck.advice.quantities import (
    ISSUE_ACCOUNTS,
    claims_of,
    events_in_window,
    format_count,
    format_per_step,
    ops_in_window,
    outermost_spans,
)
from bottleneck.advice.ranking import Draft
from bottleneck.advice.removal import CERTAIN
from bottleneck.advice.removal import backward_of as backward_nodes
from bottleneck.schema.accounts import UNMODELLED_ACCOUNTS
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence, remembered
from bottleneck.schema.intervals import Spans, union
from bottleneck.schema.loading import NOT_THE_PROGRAMS
from bottleneck.schema.op_names import OPTIMIZER_STEP, at_source, is_line, place_of
from bottleneck.schema.records import replace
from bottleneck.schema.tables import text_matches
from bottleneck.units import counted, format_us, listed

# Ops that torch has for a list of tensors, and what they save of a loop over single ones, state_dict() included: a
# moving average of 305 tensors took 27 to 32 % of its step by single ops (torch 2.13, EPYC, one thread), and next to
# nothing by _foreach_lerp_ over lists that are made once.
_IN_PLACE = re.compile(r"^aten::(?:add_|mul_|sub_|div_|lerp_|copy_|zero_|addcmul_|addcdiv_|clamp_\w*)$")
_OF_FOREACH = (0.5, 0.95)
# Traversing state_dict() detaches each tensor.
_TRAVERSES = "aten::detach"


@remembered
def tensor_loop(evidence: Evidence) -> OpLoop | None:
    """Finds lines that change tensor after tensor in place.

    Outside of any module: parameters, gradients or averages.
    """
    work, ops = work_of(evidence), program_ops(evidence)
    ops = ops[ops["module"].isna()]
    mine = ops[text_matches(ops["name"], _IN_PLACE.search)]
    whole = {
        signature: bool(next(iter(work.sizes_of(signature)), ())) for signature in mine["signature"].unique().tolist()
    }
    mine = mine[mine["signature"].map(whole).to_numpy(dtype=bool)]
    counts = mine.groupby(["source", "name", "step"], observed=True, dropna=False).size()
    often = loops_by_source(counts, evidence.steps)
    # An average or a clipping has no gradient.
    often = {source: count for source, count in often.items() if not has_backward_fold(evidence, source)}
    if not often:
        return None
    files = {place.file for source in often if (place := place_of(source)) is not None}
    traversed = ops[text_matches(ops["name"], lambda name: name == _TRAVERSES)]
    walks = loops_by_source(traversed.groupby(["source", "name", "step"], observed=True).size(), evidence.steps)
    beside = [source for source in walks if (place := place_of(source)) is not None and place.file in files]
    changed = {work.sizes_of(signature)[0] for signature in mine["signature"][mine["source"].isin(often)].unique()}
    making = [source for source in _making(evidence, ops, changed, often) if source not in beside]
    return loop_of(evidence, often, (*often, *beside, *making))


def _making(evidence: Evidence, ops: pd.DataFrame, sizes: Collection[Size], lines: Collection[str]) -> Iterator[str]:
    """Finds lines of the same functions that make such tensors one by one.

    Such as new averages that are then copied into the old ones. Nothing that they make has a gradient.
    """
    work, function_of = work_of(evidence), functions_of_lines(evidence)
    functions = {function_of[line] for line in lines if line in function_of}
    others = ops[~ops["source"].isin(lines) & ops["source"].map(function_of).astype(object).isin(functions)]
    alike = {
        signature: next(iter(work.sizes_of(signature)), ()) in sizes
        for signature in others["signature"].unique().tolist()
    }
    made = others[others["signature"].map(alike).to_numpy(dtype=bool)]
    often = loops_by_source(made.groupby(["source", "name", "step"], observed=True).size(), evidence.steps)
    return (source for source in often if not has_backward_fold(evidence, source))


def tensor_by_tensor(evidence: Evidence) -> Draft | None:
    """Finds parameters, gradients or averages changed one by one.

    One call changes a list of them. Gain: the time of these lines, from half of it.
    """
    loop = tensor_loop(evidence)
    if loop is None:
        return _tensors_without_lines(evidence)
    if loop.overhead < MOSTLY_OVERHEAD or evidence.share_of_step(loop.us) < LEAST_SHARE:
        return None
    return replace(
        _one_call(evidence, loop.us, f" {at_source(loop.source)}"),
        evidence=(
            f"{loop.source} changes {counted(format_count(loop.count), 'tensor')} in place per step, outside of any "
            "module and of the optimizer",
            f"{format_per_step(evidence, loop.us)} goes into the lines of the loop{_listed_lines(loop)}",
        ),
        places=(loop.source,),
        lines=loop.lines,
    )


def _tensors_without_lines(evidence: Evidence) -> Draft | None:
    """The same in a trace without lines, by ops that follow one another."""
    update = bare_update(evidence)
    us = 0.0 if update is None else update.us * evidence.host_scale
    if update is None or evidence.share_of_step(us) < LEAST_SHARE:
        return None
    return replace(
        _one_call(evidence, us, ""),
        evidence=(
            f"{counted(format_count(update.changes), 'tensor')} of several sizes are changed in place per step, one "
            "after the other, outside of the optimizer",
            f"{format_per_step(evidence, us)} goes into that, by the first and the last of these ops",
        ),
        brief="Change all tensors in one call, such as torch._foreach_lerp_ for a moving average of the weights",
    )


def _one_call(evidence: Evidence, us: float, place: str) -> Draft:
    """The advice for a loop that takes so long per step.

    ``place`` names it, with a space ahead.
    """
    low, high = _OF_FOREACH
    return Draft(
        slug="tensor-by-tensor",
        title="A Python loop changes tensors one by one",
        evidence=(),
        advice=f"Change all tensors{place} in one call (torch._foreach_lerp_, _foreach_mul_, …), with lists of them "
        "that are made once.",
        code=_FOREACH,
        gain_us=Interval(low * us, high * us),
        claims=loop_claims(evidence, high * us),
        removes=True,
    )


_FOREACH = (
    "averages, weights = list(ema.parameters()), list(model.parameters())  # once\n"
    "torch._foreach_lerp_(averages, weights, 1 - decay)  # in each step"
)


def _listed_lines(loop: OpLoop) -> str:
    """': a.py:5 and a.py:6'; empty where one line is all of it."""
    lines = sorted(filter(is_line, loop.lines), key=line_number)
    return f": {listed(lines[:_NAMED_LINES])}" if len(lines) > 1 else ""


_NAMED_LINES = 4
# Ops by which the host reads numbers: the last is what `tolist` and `numpy` call.
_READS = ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::resolve_neg")
# What takes the place of the loop: one call for all and one read, or the same every so many steps.
_SURE_OF_READING = 0.5


@remembered
def reading_loop(evidence: Evidence) -> OpLoop | None:
    """Finds lines of one function that read parameter after parameter.

    Or their gradients, outside of modules, backward pass and optimizer. The program changes none of these tensors in
    place, so that all the function makes is what the host reads. Sizes of parameters are those of the tensors that the
    optimizer's step takes.
    """
    sizes, work, ops = parameter_sizes(evidence), work_of(evidence), program_ops(evidence)
    # What has a gradient is a loss, whose sizes may be those of a parameter by chance.
    ops = ops[
        ops["module"].isna() & ~ops["source"].map(lambda source: has_backward_fold(evidence, source)).astype(bool)
    ]
    if not sizes or ops.empty:
        return None
    on_parameter = {
        signature: bool(shapes := work.sizes_of(signature)) and shapes[0] in sizes
        for signature in ops["signature"].unique().tolist()
    }
    ops = ops.assign(
        function=ops["source"].map(functions_of_lines(evidence)).astype(object),
        reads=ops["name"].isin(_READS),
        works=ops["signature"].map(on_parameter).to_numpy(dtype=bool) & ~ops["name"].isin(_READS),
        changes=text_matches(ops["name"], _IN_PLACE.search) & ops["signature"].map(on_parameter).to_numpy(dtype=bool),
    )
    if ops["changes"].any():
        return None  # a clipping needs what it reads
    loops = []
    for function, mine in ops.groupby("function", observed=True, sort=False):
        often = min(int(mine["reads"].sum()), int(mine["works"].sum())) / evidence.steps
        worked = {work.sizes_of(signature)[0] for signature in mine["signature"][mine["works"]].unique().tolist()}
        if often >= LOOP_OF and _are_of_parameters(worked, sizes):
            lines = _lines_of_reading(evidence, mine)
            if lines:
                loops.append(loop_of(evidence, lines, (*lines, *_beside(evidence, str(function), tuple(lines)))))
    return max(loops, key=lambda loop: loop.us, default=None)


# Of the sizes of all parameters: what is read of each of them comes in at least so many.
_MOST_SIZES = 0.5


def _are_of_parameters(worked: Set[tuple[int, ...]], sizes: Set[tuple[int, ...]]) -> bool:
    """True where tensors of these sizes are the parameters of those.

    One size that is theirs may be that of a box by chance, and that of a bias is often the size of a batch or of a
    list of classes: a weight is among them, where there is one.
    """
    weights = {size for size in sizes if len(size) > 1}
    return len(worked & sizes) >= _MOST_SIZES * len(sizes) and (not weights or not weights.isdisjoint(worked))


@remembered
def parameter_sizes(evidence: Evidence) -> frozenset[tuple[int, ...]]:
    """Returns sizes of the tensors that an optimizer's step takes.

    One by one, or in lists.
    """
    ops, work = evidence.linked.ops, work_of(evidence)
    inside = outermost_spans(evidence, OPTIMIZER_STEP).hold(ops["ts_us"].to_numpy()) & ops["signature"].notna()
    shapes = set()
    for signature in ops["signature"][inside].unique().tolist():
        for dims in work.text_column("dims", int(signature))[:1]:
            parts = dims if isinstance(dims, list) and dims and isinstance(dims[0], list) else [dims]
            shapes |= {tuple(part) for part in parts if is_size(part) and part}
    return frozenset(shapes)


def _lines_of_reading(evidence: Evidence, ops: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """Returns the lines that run ops for most parameters.

    With runs of the op that they run most and of all, per step.
    """
    counts = ops.groupby(["source", "name"], observed=True).size() / evidence.steps
    by_line = counts.groupby(level="source", observed=True)
    lines = zip(map(str, by_line.max().index), by_line.max().tolist(), by_line.sum().tolist(), strict=True)
    return {
        line: (most, runs) for line, most, runs in lines if most >= LOOP_OF and not has_backward_fold(evidence, line)
    }


def _beside(evidence: Evidence, function: str, lines: tuple[str, ...]) -> tuple[str, ...]:
    """Returns sources of the same function that run as often without an op.

    And the function itself where it is not the step's. It is the step's where a module, a backward pass or an optimizer
    runs in it.
    """
    folds = [fold for fold in evidence.analysis.lines if functions_of_lines(evidence).get(fold.name) == function]
    counts = evidence.linked.trace.events["name"][events_in_window(evidence, "line")].value_counts()
    often = {
        f"{match['file']}:{match['line']}"
        for name, count in counts.items()
        if count >= LOOP_OF * evidence.steps and (match := LINE_NAME.search(str(name)))
    }
    whole = [fold.name for fold in folds if not is_line(fold.name)]
    own = spans_without_torch(evidence, whole, with_ops=True)
    sources = [fold.name for fold in folds if fold.name in often or fold.name in own]
    return tuple(source for source in sources if source not in lines)


@remembered
def reading_spans(evidence: Evidence) -> Spans:
    """Finds when the host reads parameter after parameter, without lines.

    That is the time of runs of outermost ops outside of modules, backward pass, optimizer and loader. All of them take
    tensors of the sizes of parameters, or single numbers; a run has 16 reads, and as many ops on parameters. Where a
    device works, it counts from the end of its first read on, which waits for work queued before. As in
    ``reading_loop``, the program changes no such tensor, and nothing goes into a loss.
    """
    ops, sizes, work = evidence.linked.ops, parameter_sizes(evidence), work_of(evidence)
    nothing = union(np.zeros(0), np.zeros(0))
    if not sizes or ops["source"].notna().any():
        return nothing
    rows = np.flatnonzero(ops_in_window(evidence) & (ops["depth"] == 0).to_numpy())
    columns = ["name", "signature", "module", "is_autograd", "step", "ts_us", "dur_us"]
    top = ops.iloc[rows][columns].assign(row=rows).sort_values("ts_us", kind="stable")
    others = top["module"].notna() | top["is_autograd"]
    others |= outermost_spans(evidence, NOT_THE_PROGRAMS).hold(top["ts_us"].to_numpy())
    takes = {code: next(iter(work.sizes_of(code)), ()) for code in top["signature"].dropna().unique().tolist()}
    top["reads"] = top["name"].isin(_READS)
    top["works"] = (
        top["signature"].isin([code for code, size in takes.items() if size in sizes]) & ~top["reads"] & ~others
    )
    if (top["works"].to_numpy() & text_matches(top["name"], _IN_PLACE.search)).any():
        return nothing
    # Before `tolist` and `numpy` read a tensor, they resolve what is lazy in it.
    is_number = top["signature"].isin([code for code, size in takes.items() if not size])
    is_number |= top["name"] == "aten::resolve_conj"
    top["looks"] = (top["reads"] | top["works"] | is_number) & ~others
    top["run"] = (~top["looks"]).cumsum()
    begins, ends = [], []
    for _, run in top[top["looks"]].groupby(["run", "step"], sort=False):
        worked = {takes[code] for code in run["signature"][run["works"]].unique().tolist()}
        if min(run["reads"].sum(), run["works"].sum()) < LOOP_OF or not _are_of_parameters(worked, sizes):
            continue
        if backward_nodes(evidence, run["row"]):
            continue
        end = (run["ts_us"] + run["dur_us"]).to_numpy()
        begins.append(run["ts_us"].iloc[0] if evidence.is_host_only else end[int(np.argmax(run["reads"]))])
        ends.append(end[-1])
    return union(np.array(begins), np.array(ends))


def _logged_without_lines(evidence: Evidence) -> Draft | None:
    """Finds the same where no line is known.

    Gain: the time of these runs, from 90 % of it.
    """
    spans = reading_spans(evidence)
    us = spans.total() / evidence.steps * evidence.host_scale
    if evidence.share_of_step(us) < LEAST_SHARE:
        return None
    ops = evidence.linked.ops
    inside = ops[spans.hold(ops["ts_us"].to_numpy()) & (ops["depth"] == 0).to_numpy()]
    by_op = inside.groupby("name", observed=True)["dur_us"].agg(["sum", "size"]).sort_values("sum", ascending=False)
    name, (most_us, calls) = str(by_op.index[0]), by_op.iloc[0]
    reads = int(inside["name"].isin(_READS).sum()) / evidence.steps
    return Draft(
        slug="logged-parameters",
        title="Numbers of every parameter are read out in each step",
        evidence=(
            f"ops on parameters or gradients one by one, outside of model, backward pass and optimizer, whose results "
            f"are read {counted(format_count(reads), 'time')} per step",
            f"{format_per_step(evidence, us)} goes into that, most of it {name}: "
            f"{format_us(most_us / evidence.steps * evidence.host_scale)} in "
            f"{counted(format_count(calls / evidence.steps), 'call')}",
        ),
        advice=f"Log the statistics of parameters and gradients ({name} and others) every so many steps only.",
        code="if step % 100 == 0:\n    log(model)",
        gain_us=Interval(CERTAIN * us, us),
        claims=loop_claims(evidence, us),
        removes=True,
    )


def logged_parameters(evidence: Evidence) -> Draft | None:
    """Finds norms, means or histograms of every parameter or gradient.

    They are read out in each step. Gain: the time of these lines with all that they call, from half of it. At most by
    their part of the profiled steps, where the ledger has charged less of it to them.
    """
    loop = reading_loop(evidence)
    if loop is None:
        return _logged_without_lines(evidence)
    if evidence.share_of_step(loop.us) < LEAST_SHARE:
        return None
    inside = spans_without_torch(evidence, loop.lines, with_ops=True).values()
    spans = union(*(np.concatenate([getattr(part, end) for part in inside]) for end in ("start", "end")))
    low = _SURE_OF_READING * loop.us
    high = max(loop.us, spans.total() / evidence.steps * evidence.host_scale)
    calling = {fold.name for fold in evidence.analysis.lines if fold.calls > 0}
    shown = sorted((line for line in loop.lines if is_line(line) and line in calling), key=line_number) or [loop.source]
    return Draft(
        slug="logged-parameters",
        title="Numbers of every parameter are read out in each step",
        evidence=(
            f"{', '.join(shown[:4])}: ops on parameters or gradients one by one, whose results are read, "
            f"{counted(format_count(loop.count), 'time')} per step",
            f"{format_per_step(evidence, loop.us)} goes into these lines: their ops, dispatching, Python and reads",
        ),
        advice=f"Log what {' and '.join(dict.fromkeys((shown[0], shown[-1])))} read of each parameter every so many "
        "steps only, or with torch._foreach_norm and one read.",
        code="if step % 100 == 0:\n    log(model)\n"
        "norms = torch.stack(torch._foreach_norm(gradients)).tolist()  # one read for all",
        gain_us=Interval(low, high),
        claims=claims_of(
            evidence, "overhead.sync", *ISSUE_ACCOUNTS, "overhead.launch_floor", "memory", "compute",
            *UNMODELLED_ACCOUNTS, most_us=high,
        ),
        removes=True,
    )  # fmt: skip


RULES = (tensor_by_tensor, logged_parameters)
