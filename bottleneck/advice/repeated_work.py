"""Rules of work that a step does several times with the same result.

It is of parametrized weights, calls of modules and lines.
"""

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from msgspec import Struct

from bottleneck.advice.kernel_work import Size, has_backward_pass, size_words, work_of
from bottleneck.advice.quantities import (
    format_count,
    format_per_step,
    idle_rows,
    outermost_frames,
    rows_of_events,
)
from bottleneck.advice.ranking import Draft
from bottleneck.advice.removal import (
    LEAST_SHARE,
    autograd_records,
    backward_of,
    issued_by,
    main_source,
    program_rows,
    removal_of,
    top_rows,
    with_freeing,
    with_python,
    with_unseen_faults,
)
from bottleneck.advice.whole_copies import whole_copy_rows
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence, remembered
from bottleneck.schema.intervals import Floats, Integers
from bottleneck.schema.measurements import RepeatedModule
from bottleneck.schema.op_names import OPTIMIZER_STEP, PYTHON_FRAME, at_known, at_source, line_source
from bottleneck.schema.source_text import LIBRARY_FOLDER
from bottleneck.schema.tables import as_integers, text_matches
from bottleneck.units import counted

# The frames in which a parametrized weight is computed: of torch.nn.utils.parametrize, and of the older hooks.
_COMPUTES_WEIGHT = re.compile(
    r"nn[/\\]utils[/\\](?:parametrize\.py\(\d+\): forward|(?:weight|spectral)_norm\.py\(\d+\): __call__)$"
)
_LIST = re.compile(r"^(.*?ParametrizationList_\d+)")


# Of the time of computations that are left out so much is gained at least: a step of 208 ms, 63 % of it in weights that
# were computed eight times, took 101 ms with parametrize.cached() on one machine, and of 207 ms 138 ms beside others.
_CERTAIN = 0.7
# Runs that have these in common give the same weight.
_ONE_VALUE = ["weight", "signature", "update", "step"]


class _Weights(Struct, frozen=True):
    """Parametrized weights that are computed several times between two updates.

    ``rows`` are the outermost ops of all that compute them, ``spared`` is the part of their time beyond the first of
    each, ``runs`` how often the weight with the most time is computed per update, ``module`` is its path.
    """

    rows: tuple[int, ...]
    spared: float
    runs: float
    module: str | None


@remembered
def _repeated_weights(evidence: Evidence) -> _Weights | None:
    ops, top = evidence.linked.ops, top_rows(evidence)
    spans = outermost_frames(evidence, _COMPUTES_WEIGHT)
    if not spans.start.size:
        return None
    at_us = ops["ts_us"].to_numpy()
    mine = top[spans.hold(at_us[top])]
    table = ops.iloc[mine][["module", "dur_us", "step"]].astype({"module": object})
    table = table.assign(row=mine, run=np.searchsorted(spans.start, at_us[mine], side="right"))
    table = table.assign(signature=as_integers(ops["signature"])[mine], update=_updates(evidence, at_us[mine]))
    table["weight"] = [_weight_of(module) for module in table["module"]]
    runs = table.groupby("run").agg(**{name: (name, "first") for name in _ONE_VALUE}, us=("dur_us", "sum"))
    groups = runs.groupby(_ONE_VALUE, dropna=False)
    again = runs[groups["us"].transform("size") > 1]
    if again.empty:
        return None
    firsts = again.groupby(_ONE_VALUE, dropna=False)["us"]
    spared_us = float(firsts.sum().sum() - firsts.mean().sum())
    most = max(firsts, key=lambda item: float(item[1].sum()))
    weight = most[0][0]
    sizes = firsts.size()
    same = sizes[sizes.index.get_level_values("weight") == weight] if isinstance(weight, str) else sizes
    rows = table["row"][table["run"].isin(again.index)]
    return _Weights(
        tuple(rows.tolist()),
        spared_us / float(again["us"].sum()) if again["us"].sum() > 0 else 0.0,
        float(same.mean()),
        weight if isinstance(weight, str) else None,
    )


def _weight_of(module: object) -> str | None:
    """Returns the path of the parametrization around an op, or its module.

    Null without one.
    """
    if not isinstance(module, str):
        return None
    match = _LIST.match(module)
    return match[1] if match else module


def _updates(evidence: Evidence, at_us: Floats) -> Integers:
    """Count of the steps of optimizers that began before each instant."""
    marks = rows_of_events(evidence, OPTIMIZER_STEP)
    return np.searchsorted(np.sort(evidence.linked.trace.events["ts_us"].to_numpy()[marks]), at_us)


def repeated_parametrization(evidence: Evidence) -> Draft | None:
    """A parametrized weight is computed several times before it is updated: at each access.

    Gain: the time of all but the first computation of each, with their backward nodes, from 70 % of it: the gradients
    of all uses of the one that is kept have to be added up.
    """
    repeated = _repeated_weights(evidence)
    if repeated is None:
        return None
    rows = [*repeated.rows, *backward_of(evidence, repeated.rows)]
    removal, work = (
        with_python(evidence, removal_of(evidence, rows, certain=_CERTAIN), repeated.rows, certain=_CERTAIN),
        work_of(evidence),
    )
    if evidence.share_of_step(repeated.spared * removal.us) < LEAST_SHARE:
        return None
    line, runs = main_source(evidence, repeated.rows), format_count(round(repeated.runs, 1))
    of_module = "" if repeated.module is None else f" of {repeated.module.partition('.ParametrizationList')[0]}"
    return Draft(
        slug="repeated-parametrization",
        title="A parametrized weight is computed anew at each access",
        evidence=(
            f"the parametrization{of_module} is recomputed {runs} times between two updates, {at_source(line)}",
            f"that takes {format_per_step(evidence, removal.us)}, with the backward pass",
            *work.describe(issued_by(evidence, work, rows)),
        ),
        advice="Compute the parametrized weight once per forward pass: call the model inside parametrize.cached(), or "
        f"take the weight before the loop, in place of each access {at_source(line)}.",
        brief=f"Compute the parametrized weight {at_source(line)} once per forward pass (parametrize.cached())",
        places=(line,),
        code="with torch.nn.utils.parametrize.cached():\n    out = model(x)  # until the weights are updated",
        gain_us=Interval(repeated.spared * removal.gain.low, repeated.spared * removal.gain.high),
        claims=removal.claims_of_part(repeated.spared),
        removes=True,
        confidence="high",
    )


# Of the step: what calls take that give the same in each step, to be worth a change, and to be the first thing to say.
_LEAST_OF_MODULES, _FIRST = 0.05, 0.2
_NAMED = 4


# A call of a module, and one of a function of the program, as the trace names them.
_MODULE_CALL = re.compile(r"^nn\.Module: (?P<name>\w{1,100})_\d+$")
_FUNCTION_CALL = re.compile(rf"^(?!<|.*{LIBRARY_FOLDER})[^\n]{{1,1000}}?\(\d{{1,9}}\): (?P<name>\w{{1,100}})$")
_NEARLY_ALL = 0.9  # of the ops inside of a call, and of their time


class _WholeCall(Struct, frozen=True):
    """A call that does nothing but repeated work.

    'TextEncoder' or 'mel_filterbank()', and the line that calls it.
    """

    name: str
    source: str


def _whole_call(evidence: Evidence, rows: Sequence[int]) -> _WholeCall | None:
    """Finds the outermost call of which nearly all ops are among these.

    Null where the trace has no Python calls, or the line of the call is not known.
    """
    events, ops, top = evidence.linked.trace.events, evidence.linked.ops, top_rows(evidence)
    dur_us, start = ops["dur_us"].to_numpy(), ops["ts_us"].to_numpy()
    at_us = start[max(rows, key=lambda row: float(dur_us[row]))]
    begin_us = events["ts_us"].to_numpy()
    around = (events["category"] == "python").to_numpy() & (begin_us <= at_us)
    frames = np.flatnonzero(around & (begin_us + events["dur_us"].to_numpy() > at_us))
    mine = np.isin(top, np.fromiter(rows, dtype=np.int64))
    for name in dict.fromkeys(map(str, events["name"].iloc[frames[np.argsort(begin_us[frames], kind="stable")]])):
        called = _MODULE_CALL.match(name) or _FUNCTION_CALL.match(name)
        if called is None:
            continue
        spans = outermost_frames(evidence, re.compile(f"^{re.escape(name)}$"))
        inside = spans.hold(start[top])
        if not dur_us[top[inside]].sum() > 0:
            continue
        parts = [
            float(amounts[inside & mine].sum() / amounts[inside].sum()) for amounts in (dur_us[top], np.ones(top.size))
        ]
        if min(parts) >= _NEARLY_ALL:
            source = _line_around(evidence, float(spans.start[0]), float(spans.end[0]))
            return None if source is None else _WholeCall(called["name"] + "()" * (called.re is _FUNCTION_CALL), source)
    return None


def _line_around(evidence: Evidence, start_us: float, end_us: float) -> str | None:
    """Returns the innermost line that the whole of a call is in."""
    events = evidence.linked.trace.events
    begin_us, dur_us = events["ts_us"].to_numpy(), events["dur_us"].to_numpy()
    around = (begin_us <= start_us + _CLOCK_US) & (begin_us + dur_us >= end_us - _CLOCK_US)
    lines = np.flatnonzero((events["category"] == "line").to_numpy() & around)
    if not lines.size:
        return None
    name = PYTHON_FRAME.match(str(events["name"].iloc[lines[np.argmax(begin_us[lines])]]))
    return None if name is None else line_source(name["path"], name["line"])


_CLOCK_US = 0.05  # a line and the call in it may begin at the same time

# What both forms of weight_norm call.
_NORMALISES_WEIGHT = re.compile(r"^aten::_weight_norm(?:_interface)?$")
# What torch.nn.utils.parametrize computes a weight with.
_PARAMETRIZATION = "ParametrizationList"
_TAKE_OFF = (
    "Take the parametrization of the weights off once they are loaded and nothing trains them: they are computed "
    "{place} in each call, and come out the same."
)
_TAKE_OFF_CODE = (
    "for module in model.modules():\n    if torch.nn.utils.parametrize.is_parametrized(module):\n"
    '        torch.nn.utils.parametrize.remove_parametrizations(module, "weight")'
)


def repeated_module(evidence: Evidence) -> Draft | None:
    """Finds modules with the same inputs and results in two steps.

    The steps were looked at, and other modules had new inputs. Gain: the time of their ops and of Python at their
    lines, from 90 % of it.
    """
    noted = () if evidence.recording is None else evidence.recording.repeated_modules
    by_module = {module: rows for module in noted if (rows := _rows_of_module(evidence, module))}
    rows = sorted({row for mine in by_module.values() for row in mine})
    if not rows:
        return None
    whole = [*rows, *backward_of(evidence, rows)]
    removal, work = with_python(evidence, removal_of(evidence, whole), rows), work_of(evidence)
    if evidence.share_of_step(removal.us) < _LEAST_OF_MODULES:
        return None
    removal = with_freeing(evidence, with_unseen_faults(evidence, removal, whole), whole, only_counted=True)
    us = evidence.linked.ops["dur_us"].to_numpy()
    order = sorted(by_module, key=lambda module: -float(us[by_module[module]].sum()))
    first = order[0]
    name, source = first.label.rpartition("_")[0], first.source
    if name != _PARAMETRIZATION and (call := _whole_call(evidence, rows)) is not None:
        name, source = call.name, call.source
    place = _line_with_text(evidence, source)
    return Draft(
        slug="repeated-module",
        title="Parametrized weights (weight_norm, spectral_norm) are computed again in each step"
        if name == _PARAMETRIZATION
        else f"{name} computes the same result again in each step",
        evidence=(
            "in two steps in a row, the inputs and the results of "
            f"{', '.join(one.label for one in order[:_NAMED])} were the same, as far as samples of them show, while "
            "other modules had new inputs",
            f"that takes {format_per_step(evidence, removal.us)}: {_line_with_text(evidence, first.source)}",
            *work.describe(issued_by(evidence, work, whole)),
        ),
        advice=_TAKE_OFF.format(place=place)
        if name == _PARAMETRIZATION
        else f"Call {name} once, before the loop, and keep its result for all steps, in place of the call in each "
        f"step {place}: its inputs and its weights do not change from step to step.",
        brief="Take the parametrization of the weights off, once they are loaded (remove_parametrizations)"
        if name == _PARAMETRIZATION
        else f"Call {name} once, before the loop, and keep its result{at_known(source)}",
        places=(source,),
        code=_TAKE_OFF_CODE
        if name == _PARAMETRIZATION
        else "with torch.no_grad():\n    features = encoder(prompts)  # once, before the loop\n"
        "for batch in loader:\n    out = model(batch, features)  # in place of encoder(prompts) in each step",
        gain_us=removal.gain,
        claims=removal.claims,
        removes=True,
        comes_first=evidence.share_of_step(removal.us) >= _FIRST,
    )


# Of the time of a weight's norm: traced alone, its results may come in new pages of memory, and without it the layers
# read their weights from memory themselves. Of four networks in inference 24 to 100 % was saved where pages are kept.
_OF_NORMS = 0.25


def normalised_weights(evidence: Evidence) -> Draft | None:
    """Finds weight_norm in a step without a backward pass, by its ops alone.

    Where the modules are known to give the same, ``repeated_module`` says so. Gain: a quarter of the time of these ops
    to all of it, with their part of page faults and of freeing their tensors, and with the Python in front of each: a
    parametrized weight is made by a property, two modules and their hooks.
    """
    if has_backward_pass(evidence) or repeated_module(evidence) is not None:
        return None
    top = program_rows(evidence)
    rows = top[text_matches(evidence.linked.ops["name"], _NORMALISES_WEIGHT.match)[top]].tolist()
    if not rows:
        return None
    removal, work = removal_of(evidence, rows, certain=_OF_NORMS), work_of(evidence)
    if evidence.share_of_step(removal.us) < _LEAST_OF_MODULES:
        return None
    removal = with_freeing(evidence, with_unseen_faults(evidence, removal, rows), rows, only_counted=True)
    python_us = _python_before(evidence, rows)
    line = main_source(evidence, rows)
    return Draft(
        slug="repeated-module",
        title="Weights of weight_norm are computed again in each step",
        evidence=(
            f"{counted(format_count(len(rows) / evidence.steps), 'weight')} of weight_norm are computed in each step, "
            "and no step has a backward pass",
            f"that takes {format_per_step(evidence, removal.us)}",
            *work.describe(issued_by(evidence, work, rows)),
        ),
        advice=f"Take weight_norm off once the weights are loaded and nothing trains them{at_known(line)} "
        "(remove_parametrizations, or remove_weight_norm of the older form). While a model is evaluated between steps "
        "of training, call it inside parametrize.cached() instead.",
        brief=f"Take weight_norm off, once the weights are loaded{at_known(line)} (remove_parametrizations, or "
        "remove_weight_norm)",
        places=(line,),
        code=_TAKE_OFF_CODE,
        gain_us=Interval(removal.gain.low, removal.gain.high + python_us),
        claims={**removal.claims, "overhead.python": removal.claims.get("overhead.python", 0.0) + python_us},
        removes=True,
    )


def _python_before(evidence: Evidence, rows: Sequence[int]) -> float:
    """Gives the time per step between these outermost ops and the ones before."""
    ops, top = evidence.linked.ops, top_rows(evidence)
    start, threads = ops["ts_us"].to_numpy()[top], ops["thread"].astype(object).to_numpy()[top]
    at = np.flatnonzero(np.isin(top, rows))
    at = at[at > 0]
    at = at[threads[at] == threads[at - 1]]
    gaps_us = start[at] - start[at - 1] - ops["dur_us"].to_numpy()[top][at - 1]
    # The first op of a step comes after what the program does between steps.
    is_inside = as_integers(ops["step"])[top][at] == as_integers(ops["step"])[top][at - 1]
    all_us = math.fsum(row.us for row in idle_rows(evidence, "python"))
    return min(float(np.maximum(gaps_us[is_inside], 0.0).sum()) / evidence.steps, all_us)


# Of the step: what lines take that give the same in each step.
_LEAST_OF_LINES = 0.1


def repeated_result(evidence: Evidence) -> Draft | None:
    """Finds lines whose ops gave the same in two steps.

    The steps were looked at, and others had new inputs. Gain: the time of these ops and of Python at their lines, from
    90 % of it, and their part of page faults; at most also of freeing their tensors. What modules do is another
    rule's.
    """
    noted = frozenset(() if evidence.recording is None else evidence.recording.repeated_lines)
    if not noted or repeated_module(evidence) is not None:
        return None
    top = top_rows(evidence)
    source = evidence.linked.ops["source"]
    copies = whole_copy_rows(evidence)
    rows = [int(row) for row in top[text_matches(source, noted.__contains__)[top]] if int(row) not in copies]
    if not rows:
        return None
    removal, work = with_python(evidence, removal_of(evidence, rows), rows), work_of(evidence)
    if evidence.share_of_step(removal.us) < _LEAST_OF_LINES:
        return None
    removal = with_freeing(evidence, with_unseen_faults(evidence, removal, rows), rows, only_counted=True)
    us = evidence.linked.ops.iloc[rows].groupby("source", observed=True)["dur_us"].sum().sort_values(ascending=False)
    lines = [str(line) for line in us.index][:_NAMED]
    call = _whole_call(evidence, rows)
    what, place = ("what is computed", lines[0]) if call is None else (f"what {call.name} gives", call.source)
    return Draft(
        slug="repeated-result",
        title="Two steps in a row compute the same result",
        evidence=(
            f"in two steps in a row, the ops at {', '.join(lines)} gave the same, as far as samples of their results "
            "show, while others had new inputs",
            f"they take {format_per_step(evidence, removal.us)}",
            *work.describe(issued_by(evidence, work, rows)),
        ),
        advice=f"If its inputs never change, compute once, before the loop, and keep {what} "
        f"{_line_with_text(evidence, place)}: it came out the same in two steps in a row.",
        brief=f"If its inputs never change, compute once, before the loop, and keep {what} {at_source(place)}",
        places=(place,),
        code="kept = normalize(adjacency)  # once, before the loop\nfor batch in loader:\n    out = model(batch, kept)",
        gain_us=removal.gain,
        claims=removal.claims,
        removes=True,
        comes_first=evidence.share_of_step(removal.us) >= _FIRST,
    )


_NORMS = frozenset({"aten::linalg_vector_norm", "aten::norm"})
_MULTIPLIES = frozenset({"aten::matmul", "aten::mm", "aten::linear"})
# Ops from the norm to the product, at most; rows of the normalised operand for each of the other one, at least.
_NEAR, _FEW = 12, 16


def normalised_operand(evidence: Evidence) -> Draft | None:
    """Finds the far larger operand of a product normalised in each step.

    As the vectors of a search are, which stay the same; where a recording looked at them, ``repeated_result`` says so.
    Nothing that has a gradient. Gain: the time of the ops from the norm to the division, from half of it: their results
    may come in new pages in the trace alone.
    """
    rows, size = _normalised(evidence)
    if not rows or repeated_result(evidence) is not None:
        return None
    removal, work = removal_of(evidence, rows), work_of(evidence)
    if evidence.share_of_step(removal.us) < _LEAST_OF_LINES:
        return None
    line = main_source(evidence, rows)
    shown = size_words(size)
    return Draft(
        slug="repeated-result",
        title="The larger operand of a product is normalised in each step",
        evidence=(
            f"a tensor of {shown} is divided by its norms, and multiplied with {counted(size[0] // _FEW, 'row')} at "
            "most; no op of the step makes it",
            f"that takes {format_per_step(evidence, removal.us)}",
            *work.describe(issued_by(evidence, work, rows)),
        ),
        advice=f"If the tensor of {shown} stays the same from step to step, normalise it once, before the "
        f"loop{at_known(line)}: only the rows of the step are new.",
        places=(line,),
        code="vectors = F.normalize(vectors, dim=-1)  # once\nfor queries in batches:\n"
        "    scores = F.normalize(queries, dim=-1) @ vectors.T",
        gain_us=Interval(removal.us / 2, removal.gain.high),
        claims=removal.claims,
        removes=True,
        confidence="low",
    )


def _normalised(evidence: Evidence) -> tuple[list[int], Size]:
    """Finds the outermost ops that normalise such an operand, and its size."""
    ops, work, top = evidence.linked.ops, work_of(evidence), top_rows(evidence)
    norms = np.flatnonzero(text_matches(ops["name"], _NORMS.__contains__)[top])
    names, codes = ops["name"].cat.categories, ops["name"].cat.codes.to_numpy()[top]
    calls = as_integers(ops["signature"])[top]
    rows: list[int] = []
    operand: Size = ()
    for at in norms.tolist():
        sizes = {one: work.tensors_of(int(calls[one])) for one in range(at, min(at + _NEAR, top.size))}
        size = next(iter(sizes[at]), ())
        if len(size) != _OF_ROWS or (operand and size != operand):
            continue
        first = {one: next(iter(given), ()) for one, given in sizes.items()}
        divides = next((one for one in sizes if names[codes[one]] == "aten::div" and first[one] == size), top.size)
        if any(_multiplies(names[codes[one]], sizes[one], size) for one in sizes if one > divides):
            rows += [int(top[one]) for one in range(at, divides + 1) if first[one] in {size, (size[0], 1)}]
            operand = size
    has_gradient = bool(rows) and autograd_records(evidence, np.array(rows, dtype=np.int64)).any()
    return ([], ()) if has_gradient else (rows, operand)


_OF_ROWS = 2  # dimensions of a matrix


def _multiplies(name: str, sizes: Sequence[Size], operand: Size) -> bool:
    """True for a product of few rows with this operand, or with it transposed."""
    if name not in _MULTIPLIES or len(sizes) < 2 or not {operand, operand[::-1]} & {*sizes[:2]}:
        return False
    other = sizes[0] if sizes[1] in {operand, operand[::-1]} else sizes[1]
    return math.prod(other[:-1]) * _FEW <= operand[0]


# Of the step: what is spared by computing once what one step computes several times.
_LEAST_IN_STEP = 0.05


def same_in_step(evidence: Evidence) -> Draft | None:
    """Finds modules and lines with the same result several times in one step.

    Gain: the time of all calls but the first with their backward nodes, from 70 % of it.
    """
    recording = evidence.recording
    modules = () if recording is None else recording.same_in_step
    lines = {} if recording is None else recording.lines_same_in_step
    by_module = {module: _rows_of_later_calls(evidence, module) for module in modules}
    again = {row for mine in by_module.values() for row in mine}
    at_lines = [row for row in _rows_of_later_rounds(evidence, lines) if row not in again]
    rows = sorted({*again, *at_lines})
    if not rows:
        return None
    whole = [*rows, *backward_of(evidence, rows)]
    removal, work = removal_of(evidence, whole, certain=_CERTAIN), work_of(evidence)
    if evidence.share_of_step(removal.us) < _LEAST_IN_STEP:
        return None
    most = None if at_lines else max(by_module, key=lambda module: len(by_module[module]))
    # A network's own lines are not where it is called.
    line = main_source(evidence, rows) if most is None or most.source is None else most.source
    text = _line_with_text(evidence, line)
    first = next((module for module in modules if module.source == line), None)
    name = "the ops there" if first is None else first.label.rpartition("_")[0]
    source = evidence.linked.ops["source"].to_numpy(object)
    per_step = sum(source[row] == line for row in rows) / evidence.steps
    return Draft(
        slug="same-in-step",
        title="A step computes the same several times",
        evidence=(
            f"in one step, {name} {text} had the same inputs in each round, or the first rows of them, and gave the "
            "same, as far as samples show"
            if first is None or not first.repeated
            else f"in one step, {len(first.repeated)} of {counted(first.calls, 'call')} of {name} had inputs of an "
            "earlier one, and gave the same, as far as samples show",
            f"all {'rounds' if first is None or not first.repeated else 'calls'} but the first take "
            f"{format_per_step(evidence, removal.us)}"
            + (f": {counted(format_count(per_step), 'op')} {at_source(line)}" if per_step else ""),
            *work.describe(issued_by(evidence, work, whole)),
        ),
        advice=f"Compute once per step, before the loop, and keep what is computed anew in each round {text}. Where a "
        "round needs its first rows only, slice the result."
        if first is None or not first.repeated
        else f"Call {name} once per step for these inputs, and pass its result on, in place of each call {text}.",
        brief=f"Compute once per step, before the loop, what is computed anew in each round {at_source(line)}"
        if first is None or not first.repeated
        else f"Call {name} once per step for the same inputs, in place of each call {at_source(line)}",
        places=(line,),
        code="u = net(x, t)  # once per step; then u_x = grad(u, x), u_t = grad(u, t)"
        if first is not None and first.repeated
        else "keys = self.keys(encoded)  # once, before the loop\nfor t in range(steps):\n"
        "    scores = attend(keys[:rows], hidden)  # in place of self.keys(encoded[:rows]) in each round",
        gain_us=removal.gain,
        claims=removal.claims,
        removes=True,
        comes_first=evidence.share_of_step(removal.us) >= _FIRST,
    )


def _rows_of_later_calls(evidence: Evidence, module: RepeatedModule) -> list[int]:
    """Gives the outermost ops of a module's later calls in a step."""
    top, ops = top_rows(evidence), evidence.linked.ops
    inside = top[text_matches(ops["module"], lambda path: module.label in path.split("."))[top]]
    spans = outermost_frames(evidence, re.compile(rf"^nn\.Module: {re.escape(module.label)}$"))
    if not spans.start.size:
        return []
    at_us, step = ops["ts_us"].to_numpy()[inside], as_integers(ops["step"])[inside]
    call = np.searchsorted(spans.start, at_us, side="right")
    if module.repeated:
        return [int(row) for row in inside[np.isin((call - 1) % max(module.calls, 1), module.repeated)]]
    first = pd.Series(call).groupby(step).transform("min").to_numpy()
    return [int(row) for row in inside[call > first]]


def _rows_of_later_rounds(evidence: Evidence, lines: Mapping[str, int]) -> list[int]:
    """Gives the outermost ops at these lines after the first round.

    ``lines`` holds the rounds.
    """
    top, ops = top_rows(evidence), evidence.linked.ops
    mine = top[text_matches(ops["source"], lines.__contains__)[top]]
    if not mine.size:
        return []
    table = ops.iloc[mine][["source", "name", "step", "signature"]].astype({"source": object, "name": object})
    alike = table.groupby(["source", "name", "step", "signature"], observed=True, dropna=False)
    rounds = table["source"].map(lines.get).to_numpy(np.float64)
    in_first = np.maximum(np.rint(alike["source"].transform("size").to_numpy() / rounds), 1)
    return [int(row) for row in mine[alike.cumcount().to_numpy() >= in_first]]


def _line_with_text(evidence: Evidence, source: str | None) -> str:
    texts = evidence.source_texts
    text = texts.get(source or "", "")
    return f"{at_source(source)}{f' (`{text}`)' if text else ''}"


def _rows_of_module(evidence: Evidence, module: RepeatedModule) -> list[int]:
    """The outermost ops of the calls of a module that give the same."""
    ops, top = evidence.linked.ops, top_rows(evidence)
    inside = text_matches(ops["module"], lambda path: module.label in path.split("."))[top]
    if module.repeated:
        spans = outermost_frames(evidence, re.compile(rf"^nn\.Module: {re.escape(module.label)}$"))
        at_us = ops["ts_us"].to_numpy()[top]
        number = (np.searchsorted(spans.start, at_us, side="right") - 1) % max(module.calls, 1)
        inside = inside & np.isin(number, module.repeated)
    return [int(row) for row in top[inside]]


RULES = (
    repeated_parametrization,
    repeated_module,
    normalised_weights,
    repeated_result,
    normalised_operand,
    same_in_step,
)
