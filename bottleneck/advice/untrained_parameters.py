"""Rule of gradients that are computed for parameters that nothing trains.

A look at the parameters shows them, or a trace: nothing in it reads or resets these gradients.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from msgspec import Struct

from bottleneck.advice.kernel_work import Size, work_of
from bottleneck.advice.quantities import (
    format_per_step,
    model_runs,
    ops_in_window,
    optimizer_names,
    outermost_spans,
)
from bottleneck.advice.ranking import Draft
from bottleneck.advice.removal import removal_of, roots_of, sequence_numbers, top_rows
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.intervals import Integers
from bottleneck.schema.measurements import SpareGradients
from bottleneck.schema.op_names import OPTIMIZER_STEP, at_known
from bottleneck.schema.tables import as_integers, text_matches
from bottleneck.units import counted, format_si

# Of the backward pass of such a module: all but what stays of its forward pass; where an input needs its gradient, the
# products for the weights are half of it.
_WHOLE, _PART = (0.9, 1.0), (0.3, 0.6)
_LEAST_BACKWARD, _FIRST_BACKWARD = 0.03, 0.1
_NAMED = 3

ACCUMULATES, ADDS = "torch::autograd::AccumulateGrad", frozenset({"aten::add_", "aten::add"})
_RESETS = re.compile(r"^aten::(?:_foreach_)?(?:zero|fill|mul)_+$")
_ZEROES = re.compile(r"zero_+$")
# Of one step alone it is not known that the next one does not reset them.
_LEAST_STEPS = 2
# What shows whether the gradient of an input is computed too.
_TELLING = re.compile(r"^aten::(?:mm|bmm|convolution_backward|embedding(?:_dense)?_backward)$")


def untrained_parameters(evidence: Evidence) -> Draft | None:
    """Finds parameters that get gradients and that nothing changes.

    That is in each step: no optimizer has them. Gain: the backward pass that is for them alone, from 90 % of it; 30 to
    60 % of it where an input of such a module needs its gradient, which has to be computed through it.
    """
    spare = None if evidence.recording is None or evidence.recording.values is None else evidence.recording.values.spare
    untrained = _by_trace(evidence) if spare is None else _by_look(evidence, spare)
    if untrained is None or not (untrained.rows or untrained.passing):
        return None
    whole, part = (removal_of(evidence, rows) for rows in (untrained.rows, untrained.passing))
    us = whole.us + part.us
    low_us, high_us = (of_whole * whole.us + of_part * part.us for of_whole, of_part in zip(_WHOLE, _PART, strict=True))
    if evidence.share_of_step(high_us) < _LEAST_BACKWARD:
        return None
    names, source = ", ".join(untrained.modules[:_NAMED]), untrained.source
    network = names or "the network whose parameters no optimizer has"
    last = untrained.modules[0].rpartition(".")[2] if untrained.modules else "network"
    return Draft(
        slug="untrained-parameters",
        title="Gradients are computed for parameters that no optimizer has",
        evidence=(
            untrained.evidence,
            f"the backward pass through them takes {format_per_step(evidence, us)}",
        ),
        advice=f"Freeze {network} with requires_grad_(False), or run the call"
        f"{at_known(source)} under torch.no_grad(). If it should learn, give its "
        "parameters to the optimizer: now it does not.",
        places=(source,),
        code=f"{last}.requires_grad_(False)  # before training; or: with torch.no_grad(): hidden = {last}(x)",
        gain_us=Interval(low_us, high_us),
        claims=removal_of(evidence, [*untrained.rows, *untrained.passing]).claims,
        comes_first=evidence.share_of_step(low_us) >= _FIRST_BACKWARD,
    )


class _Untrained(Struct, frozen=True):
    """Parameters that nothing trains.

    ``rows`` are outermost backward ops for them alone, ``passing`` those that also pass a gradient on to an input.
    ``modules`` hold them, and ``source`` is the line that calls these.
    """

    rows: list[int]
    passing: list[int]
    modules: Sequence[str]
    source: str | None
    evidence: str


def _by_look(evidence: Evidence, spare: SpareGradients) -> _Untrained:
    """The parameters that a look at values found to stay as they are."""
    rows = _backward_of(evidence, spare).tolist()
    names = ", ".join(spare.modules[:_NAMED])
    return _Untrained(
        [] if spare.passes_on else rows,
        rows if spare.passes_on else [],
        spare.modules,
        spare.source,
        f"{counted(spare.parameters, 'parameter')} ({format_si(spare.numbers, 'numbers').strip()}) of {names} get "
        f"gradients in each step, belong to no optimizer and stay as they are; optimizers have "
        f"{counted(spare.trained, 'parameter')}",
    )


def _backward_of(evidence: Evidence, spare: SpareGradients) -> Integers:
    """Returns rows of the outermost backward ops of such modules.

    The modules hold nothing but such parameters.
    """
    ops, paths = evidence.linked.ops, evidence.linked.trace.module_paths

    def is_spare(module: str) -> bool:
        parts = module.split(".")
        module_paths = [path for part in parts if (path := paths.get(part)) is not None]
        return any(_lies_in(path, spare.modules) for path in module_paths) or bool(set(parts) & set(spare.calls))

    return _nodes(evidence)[text_matches(ops["module"], is_spare)[_nodes(evidence)]]


def _lies_in(path: str, modules: Sequence[str]) -> bool:
    """True for a path at or below one of these.

    They begin with the class of their model, as it may.
    """
    for module in modules:
        for start in (module, module.partition(".")[2]):
            if start and (path == start or path.startswith(f"{start}.")):
                return True
    return False


def _nodes(evidence: Evidence) -> Integers:
    """Rows of the outermost ops of the backward pass in the window."""
    ops = evidence.linked.ops
    return np.flatnonzero(ops["is_autograd"].to_numpy() & (ops["depth"] == 0).to_numpy() & ops_in_window(evidence))


class _Gradient(Struct, frozen=True):
    """Accumulation of a parameter's gradient.

    It has the row of its outermost op, the module whose backward pass made it, and its sizes.
    """

    row: int
    module: str
    size: Size
    adds: bool


def _gradients(evidence: Evidence) -> list[_Gradient]:
    """The gradients that the backward passes of the window accumulate, in order."""
    ops, work, roots = evidence.linked.ops, work_of(evidence), roots_of(evidence)
    sums = np.flatnonzero(text_matches(ops["name"], lambda name: name == ACCUMULATES) & ops_in_window(evidence))
    adding = set(ops["parent"].to_numpy()[text_matches(ops["name"], ADDS.__contains__)].tolist())
    nodes = _nodes(evidence)
    makes = nodes[~np.isin(nodes, roots[sums])]
    before = np.searchsorted(makes, roots[sums]) - 1
    modules, signatures = ops["module"].astype(object), as_integers(ops["signature"])
    gradients = []
    for row, node in zip(sums.tolist(), before.tolist(), strict=True):
        module = modules.iloc[makes[node]] if node >= 0 else None
        size = next(iter(work.sizes_of(int(signatures[row]))), ())
        gradients.append(_Gradient(int(roots[row]), module if isinstance(module, str) else "", size, row in adding))
    return gradients


def _by_trace(evidence: Evidence) -> _Untrained | None:
    """Finds gradients that no optimizer reads, where others are read.

    They add up in every step while nothing resets them, or the steps of the optimizers hold no tensor of as many
    numbers and nothing outside of modules does.
    """
    if evidence.is_incomplete or evidence.steps < _LEAST_STEPS or not optimizer_names(evidence):
        return None
    gradients = _gradients(evidence)
    kinds = {(one.module, one.size): True for one in gradients if one.size}
    for one in gradients:
        kinds[one.module, one.size] = kinds.get((one.module, one.size), False) and one.adds
    read, reset = _numbers_read(evidence, gradients), _numbers_reset(evidence)
    unread_kinds = {
        (module, size)
        for (module, size), always_adds in kinds.items()
        if (always_adds and math.prod(size) not in reset) or (read is not None and math.prod(size) not in read)
    }
    unread = [one for one in gradients if (one.module, one.size) in unread_kinds]
    if not unread or len(unread) == len(gradients):
        return None
    others = [one for one in gradients if (one.module, one.size) not in unread_kinds]
    rows = set(_after_the_last(evidence, [one.row for one in others], [one.row for one in unread]))
    passing, modules = set[int](), list[str]()
    for module, nodes in _nodes_by_module(evidence, others, unread).items():
        modules.append(module)
        (passing if _needs_input_gradient(evidence, nodes) else rows).update(nodes)
    numbers = math.fsum(math.prod(one.size) for one in unread) / evidence.steps
    largest = max(unread, key=lambda one: math.prod(one.size)).size
    of = f" of {', '.join(modules[:_NAMED])}" if modules else ""
    runs = model_runs(evidence)
    sources = runs["source"][runs["module"].isin(modules).to_numpy(dtype=bool)].dropna()
    return _Untrained(
        sorted(rows),
        sorted(passing - rows),
        modules,
        None if sources.empty else str(sources.iloc[0]),
        f"{counted(len(unread) // evidence.steps, 'gradient')}{of} ({format_si(numbers, 'numbers').strip()}, such as "
        f"{'x'.join(map(str, largest))}) are made in each step, and no optimizer's step, clipping or reset touches "
        f"them; it does {len(others) // evidence.steps} others",
    )


def _numbers(evidence: Evidence, rows: Iterable[int]) -> Iterator[int]:
    """Counts the numbers in each tensor of these ops."""
    work, signatures = work_of(evidence), as_integers(evidence.linked.ops["signature"])
    for signature in np.unique(signatures[list(rows)]).tolist():
        yield from (math.prod(size) for size in work.tensors_of(int(signature)))


def _numbers_read(evidence: Evidence, gradients: Sequence[_Gradient]) -> set[int] | None:
    """Returns the sizes, in numbers, of what steps of optimizers and other ops read.

    Those are outside of modules and of the backward pass. Null where a step of an optimizer has no tensor of a
    gradient's size: it keeps them in another form, or its sizes are not recorded.
    """
    ops, spans = evidence.linked.ops, outermost_spans(evidence, OPTIMIZER_STEP)
    at_us, inside = ops["ts_us"].to_numpy(), np.flatnonzero(ops_in_window(evidence))
    made, read = {math.prod(one.size) for one in gradients}, set[int]()
    for start, end in zip(spans.start.tolist(), spans.end.tolist(), strict=True):
        numbers = set(_numbers(evidence, inside[(at_us[inside] >= start) & (at_us[inside] < end)]))
        if len(made & numbers) < _LEAST_STEPS:
            return None
        read |= numbers
    top = _outside_modules(evidence)
    reads = top[~text_matches(ops["name"], _ZEROES.search)[top]]
    return (read | set(_numbers(evidence, reads))) if spans.start.size else None


def _numbers_reset(evidence: Evidence) -> set[int]:
    """Returns the sizes, in numbers, of what is filled or scaled in place.

    A step of an optimizer scales its own tensors, such as momentum, and resets no gradient.
    """
    top = _outside_modules(evidence)
    in_step = outermost_spans(evidence, OPTIMIZER_STEP).hold(evidence.linked.ops["ts_us"].to_numpy()[top])
    top = top[~in_step]
    return set(_numbers(evidence, top[text_matches(evidence.linked.ops["name"], _RESETS.search)[top]]))


def _outside_modules(evidence: Evidence) -> Integers:
    """Rows of the outermost ops outside of modules and of the backward pass."""
    top = top_rows(evidence)
    return top[evidence.linked.ops["module"].isna().to_numpy()[top]]


def _after_the_last(evidence: Evidence, read: Sequence[int], unread: Sequence[int]) -> list[int]:
    """Returns backward ops after the last gradient of their step that is read.

    Up to the last one that is not: all of them are for such gradients.
    """
    ops, nodes = evidence.linked.ops, _nodes(evidence)
    step, thread = (as_integers(ops[name].cat.codes if name == "thread" else ops[name]) for name in ("step", "thread"))
    rows = list[int]()
    for number in np.unique(step[nodes]).tolist():
        last_read = max((row for row in read if step[row] == number), default=None)
        last = max((row for row in unread if step[row] == number), default=None)
        if last_read is None or last is None or thread[last_read] != thread[last]:
            continue
        rows += nodes[(nodes > last_read) & (nodes <= last)].tolist()
    return rows


def _nodes_by_module(
    evidence: Evidence, read: Sequence[_Gradient], unread: Sequence[_Gradient]
) -> dict[str, list[int]]:
    """Returns the backward ops of modules without any gradient that is read.

    By the outermost of these modules.
    """
    used = {above for one in read for above in _modules_above(one.module)}
    spare = {above for one in unread for above in _modules_above(one.module)} - used
    modules, nodes = evidence.linked.ops["module"].astype(object), dict[str, list[int]]()
    for row in _nodes(evidence).tolist():
        module = modules.iloc[row]
        outermost = next((above for above in _modules_above(module) if above in spare), None) if module else None
        if outermost is not None:
            nodes.setdefault(outermost, []).append(row)
    return nodes


def _modules_above(module: object) -> list[str]:
    """Gives the module and those around it, the outermost first."""
    parts = module.split(".") if isinstance(module, str) and module else []
    return [".".join(parts[: depth + 1]) for depth in range(len(parts))]


def _needs_input_gradient(evidence: Evidence, nodes: Sequence[int]) -> bool:
    """True unless the module's first op computes no gradient of its input.

    That is an embedding, a convolution that says so, or a product of which only one goes backward.
    """
    ops, number, roots = evidence.linked.ops, sequence_numbers(evidence), roots_of(evidence)
    telling = np.flatnonzero(text_matches(ops["name"], _TELLING.search))
    telling = telling[np.isin(roots[telling], nodes)]
    if not telling.size:
        return True
    first = roots[telling[np.argmin(number[roots[telling]])]]
    inner = telling[roots[telling] == first].tolist()
    name = str(ops["name"].iloc[inner[0]])
    if name == "aten::convolution_backward":
        signature = int(as_integers(ops["signature"])[inner[0]])
        masks = work_of(evidence).text_column("concrete", signature)[-1:]
        return not str(next(iter(masks), "")).startswith("[False")
    return len(inner) > 1 and "embedding" not in name


RULES = (untrained_parameters,)
