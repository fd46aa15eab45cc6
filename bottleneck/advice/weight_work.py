"""Rules of work on parameters alone.

What is made of weights again and again, and copies of all parameters.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
from msgspec import Struct

from bottleneck.advice.kernel_work import KernelWork, Size, has_backward_pass, is_size, work_of
from bottleneck.advice.parameter_loops import parameter_sizes, tensor_loop
from bottleneck.advice.quantities import (
    format_count,
    format_per_step,
    ops_in_window,
    optimizer_names,
    outermost_spans,
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
)
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence, remembered
from bottleneck.schema.intervals import Integers
from bottleneck.schema.op_names import OPTIMIZER_STEP, at_source
from bottleneck.schema.tables import as_integers
from bottleneck.units import counted

_PRODUCTS = re.compile(r"^aten::(?:linear|conv\w+)$")
_RANDOM = re.compile(r"^aten::(?:rand|normal|uniform|bernoulli)")
_VIEWS = re.compile(r"^aten::(?:t|transpose|permute|view|unsqueeze|squeeze|detach|expand\w*|select|slice)$")
# So many times as often as there are weights of such sizes is once more than needed.
_LEAST_TIMES = 2
_CERTAIN = 0.7
_ARITHMETIC = re.compile(r"^aten::(?:add|sub|mul|div|lerp|copy|addcmul|pow|square|sqrt|sign)_?$")
# What needs every parameter in each step, or happens once.
_NEEDED = re.compile(r"clip|unscale|scaler|zero_grad|\binit")
_LEAST_AVERAGED, _LEAST_TENSORS = 0.08, 3
_OF_AVERAGES = (0.3, 0.9)


@remembered
def _program_calls(evidence: Evidence) -> pd.DataFrame:
    """Returns outermost ops outside of the backward pass and optimizers.

    Row, name, source and signature.
    """
    ops, top = evidence.linked.ops, program_rows(evidence)
    columns = {name: ops[name].astype(object).to_numpy()[top] for name in ("name", "source", "module")}
    table = pd.DataFrame({"row": top, **columns, "signature": as_integers(ops["signature"])[top]})
    return table[(table["signature"] >= 0) & table["source"].notna()]


def _sizes_in(dims: object) -> Iterator[Size]:
    """The sizes of an argument: of a tensor, or of those in a list."""
    for entry in dims if isinstance(dims, list) and dims and isinstance(dims[0], list) else [dims]:
        if is_size(entry) and entry:
            yield tuple(entry)


@remembered
def _parameters_by_size(evidence: Evidence) -> Mapping[Size, float]:
    """The number of parameters of each size that the optimizers step, per step."""
    ops, work = evidence.linked.ops, work_of(evidence)
    inside = outermost_spans(evidence, OPTIMIZER_STEP).hold(ops["ts_us"].to_numpy()) & ops["signature"].notna()
    inside &= (ops["depth"] == 0).to_numpy() & ops_in_window(evidence)
    calls = ops[inside].groupby(["name", "signature"], observed=True).size()
    counts: dict[Size, Counter[str]] = {}
    for name, signature, count in calls.reset_index(name="count").itertuples(index=False):
        for size in _sizes_in(next(iter(work.text_column("dims", int(signature))), None)):
            counts.setdefault(size, Counter())[str(name)] += int(count)
    return {size: min(by_name.values()) / evidence.steps for size, by_name in counts.items()}


class _WeightSizes(Struct, frozen=True):
    """Sizes of weights with their number per step.

    And the sizes that data has.
    """

    count: Mapping[Size, float]
    data: frozenset[Size]


@remembered
def _weights(evidence: Evidence) -> _WeightSizes:
    """Returns the weights.

    Of a training the parameters of two dimensions and more, else what linear layers and convolutions read.
    """
    work, calls = work_of(evidence), _program_calls(evidence)
    data, read = set[Size](), set[Size]()
    for name, signature in calls[["name", "signature"]].drop_duplicates().itertuples(index=False):
        sizes = work.tensors_of(signature)
        if _PRODUCTS.match(name) and len(sizes) > 1:
            data |= {sizes[0], (*sizes[0][:-1], sizes[1][0])}
            read.add(sizes[1])
        elif _RANDOM.match(name):
            data |= {size for text in work.text_column("concrete", signature)[:4] for size in _numbers(str(text))}
            data |= set(sizes)
    trained = _parameters_by_size(evidence)
    mine = trained if has_backward_pass(evidence) else dict.fromkeys(read, 0.0)
    return _WeightSizes({size: n for size, n in mine.items() if len(size) > 1 and size not in data}, frozenset(data))


def _numbers(text: str) -> Iterator[Size]:
    if text.startswith("["):
        yield tuple(int(digits) for digits in re.findall(r"\d{1,12}", text))


def _weight_of(sizes: Sequence[Size], weights: _WeightSizes) -> Size | None:
    """Returns the weight that an op works on alone.

    All of its operands have its sizes, those of a part, or none.
    """
    largest = max(sizes, key=math.prod, default=())
    size = next((shape for shape in (largest, (*largest[:-2], *largest[:-3:-1])) if shape in weights.count), None)
    if size is None:
        return None
    fits = all(not shape or shape in {size, largest} or _is_part(shape, largest) for shape in sizes)
    return size if fits else None


def _is_part(size: Size, whole: Size) -> bool:
    """True for sizes that are broadcast to those of the whole."""
    ends = zip(size[::-1], whole[::-1], strict=False)
    return len(size) <= len(whole) and all(one in {1, other} for one, other in ends)


@remembered
def _remade(evidence: Evidence) -> tuple[tuple[int, float, str, float], ...]:
    """Returns ops on weights alone that run more often than weights are.

    Row, spared part, line and runs per step.
    """
    work, weights, calls = work_of(evidence), _weights(evidence), _program_calls(evidence)
    if not weights.count:
        return ()
    remade = []
    for _, group in calls.groupby(["name", "source", "signature"], sort=False):
        name, source, signature = (group[column].iloc[0] for column in ("name", "source", "signature"))
        sizes = work.tensors_of(int(signature))
        size = None if _VIEWS.match(name) or _PRODUCTS.match(name) else _weight_of(sizes, weights)
        if size is None or group["module"].astype(str).str.contains("Parametriz").any():
            continue
        runs, needed = len(group) / evidence.steps, weights.count[size]
        if runs >= _LEAST_TIMES * needed and (needed or runs >= 1):
            remade += [(row, 1 - needed / runs, str(source), runs) for row in group["row"].tolist()]
    return tuple(remade)


def remade_weights(evidence: Evidence) -> Draft | None:
    """Finds what is computed of weights alone several times.

    Between two updates, or in each step of inference. Gain: the time of these ops and of their backward nodes, but for
    one run for each weight, from 70 % of it.
    """
    remade = _remade(evidence)
    if not remade:
        return None
    forward = [row for row, *_ in remade]
    rows = [*forward, *backward_of(evidence, forward)]
    removal, work = removal_of(evidence, rows, certain=_CERTAIN), work_of(evidence)
    spared = min(part for _, part, *_ in remade)
    if evidence.share_of_step(spared * removal.us) < 2 * LEAST_SHARE:
        return None
    line, trains = main_source(evidence, forward), has_backward_pass(evidence)
    runs = max(times for *_, source, times in remade if source == line or line is None)
    place, count = at_source(line), counted(format_count(runs), "time")
    return Draft(
        slug="remade-weights",
        title="The same is computed of the weights again and again",
        evidence=(
            f"ops on tensors of weights' sizes alone run {count} per step {place}, "
            + ("more often than there are such weights" if trains else "and no weight changes"),
            f"that takes {format_per_step(evidence, removal.us)}{', with the backward pass' if trains else ''}",
            *work.describe(issued_by(evidence, work, rows)),
        ),
        advice=f"Compute what is made of the weights alone {place} once and keep it until the optimizer changes them: "
        "in front of the loop, or as an argument of what is called in it."
        if trains
        else f"Compute what is made of the weights alone {place} once, when the model is loaded, and keep the result. "
        "Weights that are kept in fewer bits to save memory want a kernel for them instead.",
        places=(line,),
        code="weight = make(self.weight)  # once per forward pass\nfor x in inputs:\n    h = cell(x, h, weight)"
        if trains
        else "self.ready = make(self.weight)  # once; self.ready in forward",
        gain_us=Interval(spared * removal.gain.low, spared * removal.gain.high),
        claims=removal.claims_of_part(spared),
        removes=True,
    )


@remembered
def _averaged(evidence: Evidence) -> Integers:
    """Returns rows that compute on parameters' sizes alone, line by line.

    Outside of modules, optimizers and autograd.
    """
    none = np.empty(0, dtype=np.int64)
    sizes = parameter_sizes(evidence)
    if not sizes or not has_backward_pass(evidence) or not optimizer_names(evidence):
        return none
    work, calls = work_of(evidence), _program_calls(evidence)
    if calls.empty:
        return none
    calls = calls[calls["module"].isna() & calls["name"].map(_ARITHMETIC.match).notna()]
    calls = calls[calls["signature"].map(lambda call: _are_parameters(work, call, sizes)).astype(bool)]
    texts = evidence.source_texts
    calls = calls[~calls["source"].map(lambda line: _NEEDED.search(texts.get(line, "")) is not None).astype(bool)]
    loop = tensor_loop(evidence)
    calls = calls[~calls["source"].isin(() if loop is None else loop.lines)]
    if calls.empty:
        return none
    rows = calls["row"].to_numpy()
    calls = calls[~autograd_records(evidence, rows)]
    by_line = calls.groupby("source")
    kinds, often = by_line["signature"].transform("nunique"), by_line["row"].transform("size")
    return np.asarray(calls["row"].to_numpy()[((often >= _LEAST_TENSORS * evidence.steps) & (kinds > 1)).to_numpy()])


def _are_parameters(work: KernelWork, call: int, sizes: frozenset[Size]) -> bool:
    mine = [size for size in work.tensors_of(call) if size]
    return bool(mine) and all(size in sizes for size in mine)


def parameter_averages(evidence: Evidence) -> Draft | None:
    """Finds all parameters averaged or copied in each step.

    Outside of the optimizer: a target network, an average. Gain: 30 to 90 % of the time of these ops: one pass in place
    takes less, and every few steps are enough.
    """
    rows = _averaged(evidence).tolist()
    if not rows:
        return None
    removal, work, line = removal_of(evidence, rows), work_of(evidence), main_source(evidence, rows)
    if evidence.share_of_step(removal.us) < _LEAST_AVERAGED:
        return None
    low, high = (part * end for part, end in zip(_OF_AVERAGES, (removal.gain.low, removal.gain.high), strict=True))
    return Draft(
        slug="parameter-averages",
        title="All parameters are averaged or copied in every step",
        evidence=(
            f"{counted(format_count(len(rows) / evidence.steps), 'op')} per step on tensors of parameters' sizes, "
            f"outside of modules and optimizers, most of their time {at_source(line)}",
            f"that takes {format_per_step(evidence, removal.us)}",
            *work.describe(issued_by(evidence, work, rows)),
        ),
        advice=f"Update the copy of the parameters {at_source(line)} every so many steps (with a decay that fits), and "
        "in place in one pass: torch._foreach_lerp_ makes no new tensors, as a new dictionary of states does.",
        brief=f"Update the copy of the parameters {at_source(line)} less often, and in place in one pass",
        places=(line,),
        code="if step % 10 == 0:\n    with torch.no_grad():\n"
        "        torch._foreach_lerp_(averages, list(model.parameters()), 1 - decay**10)",
        gain_us=Interval(low, high),
        claims=removal.claims_of_part(_OF_AVERAGES[1]),
        removes=True,
    )


RULES = (remade_weights, parameter_averages)
