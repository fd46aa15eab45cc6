"""Rule of gradients that are computed for parameters that nothing trains.

A look at the parameters shows them, or a trace: nothing in it reads or resets these gradients.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct

from bottleneck.advice.kernel_work import Size, size_words, work_of
from bottleneck.advice.process import NODE_OPS
from bottleneck.advice.quantities import (
    add_claims,
    format_per_step,
    model_runs,
    ops_in_window,
    optimizer_names,
    outermost_spans,
    smallest_op_us,
)
from bottleneck.advice.ranking import Draft
from bottleneck.advice.removal import backward_rows, python_beside_us, removal_of, roots_of, sequence_numbers, top_rows
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence, counted_faults_us
from bottleneck.schema.intervals import Integers
from bottleneck.schema.measurements import SpareGradients
from bottleneck.schema.op_names import LOADER_FETCH, OPTIMIZER_MARK, OPTIMIZER_STEP, at_known
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
    both = removal_of(evidence, [*untrained.rows, *untrained.passing])
    python_us = python_beside_us(evidence, whole, untrained.rows)
    unseen_us = python_us + _of_graph_us(evidence, untrained.rows)
    advice, code = _remedy(untrained, evidence.linked.trace.module_paths)
    return Draft(
        slug="untrained-parameters",
        title="Gradients are computed, and thrown away before an optimizer reads them"
        if untrained.starts_anew
        else "Gradients are computed for parameters that no optimizer has",
        evidence=(
            untrained.evidence,
            f"the backward pass through them takes {format_per_step(evidence, us)}",
        ),
        advice=advice,
        places=(untrained.source,),
        code=code,
        gain_us=Interval(low_us, high_us + unseen_us),
        claims=add_claims(evidence, both.claims_with("overhead.python", python_us), unseen_us - python_us, _OF_GRAPH),
        removes=not untrained.passing,
        comes_first=evidence.share_of_step(low_us) >= _FIRST_BACKWARD,
        cannot_lose=True,
    )


# Accounts in which the recording of nodes, new pages and their freeing are, the likeliest first.
_OF_GRAPH = ("overhead.allocator", "overhead.dispatch", "overhead.python", "memory", "overhead.unknown", "compute")


def _of_graph_us(evidence: Evidence, rows: Sequence[int]) -> float:
    """Returns what a forward pass without these nodes saves of itself, at most.

    It records no node, and what the nodes kept and accumulated needs no new pages. A probe of convolutions took 2.07 ms
    with its encoder frozen, where its forward pass alone had taken 3.06 ms (torch 2.13, one thread of an EPYC).
    """
    if not evidence.is_host_only or not rows:
        return 0.0
    part = np.unique(rows).size / max(backward_rows(evidence).size, 1)
    node_us = NODE_OPS[1] * smallest_op_us(evidence) * len(rows) / evidence.steps
    return node_us + part * counted_faults_us(evidence)


class _Untrained(Struct, frozen=True):
    """Parameters that nothing trains.

    ``rows`` are outermost backward ops for them alone, ``passing`` those that also pass a gradient on to an input.
    ``modules`` hold them, and ``source`` is the line that calls these. With ``starts_anew`` something resets the
    gradients: an optimizer may train the parameters at another time. ``is_alone`` where the backward passes reach no
    other network.
    """

    rows: list[int]
    passing: list[int]
    modules: Sequence[str]
    source: str | None
    evidence: str
    starts_anew: bool = False
    is_alone: bool = False


def _remedy(untrained: _Untrained, paths: Mapping[str, str]) -> tuple[str, str]:
    """Returns what to change in words, and as code.

    ``paths`` are the names of modules in the program, by those in the trace.
    """
    modules = [paths.get(module.rpartition(".")[2], module) for module in untrained.modules]
    network = ", ".join(modules[:_NAMED]) or "the network whose parameters no optimizer has"
    last = modules[0].rpartition(".")[2] if modules else "network"
    called = at_known(untrained.source)
    if not untrained.starts_anew:
        return (
            f"Freeze {network} with requires_grad_(False), or run the call{called} under torch.no_grad(). If it should "
            "learn, give its parameters to the optimizer: now it does not.",
            f"{last}.requires_grad_(False)  # before training; or: with torch.no_grad(): hidden = {last}(x)",
        )
    if untrained.passing and untrained.is_alone:
        return (
            f"Take the gradient of the input alone, with torch.autograd.grad(loss, x) in place of loss.backward(): the "
            f"gradients of {network}{called} are thrown away.",
            "(gradient,) = torch.autograd.grad(loss, x)  # in place of loss.backward() and x.grad",
        )
    if untrained.passing:
        return (
            f"Switch the parameters of {network} off with requires_grad_(False) ahead of its call{called}, whose "
            "backward pass only goes through it to its input, and on again after that. If nothing trains it, freeze it "
            "for good.",
            f"{last}.requires_grad_(False)\nloss = criterion({last}(x))\nloss.backward()\n{last}.requires_grad_(True)",
        )
    return (
        f"Detach the output of {network}{called} with .detach(), or run that call under torch.no_grad(), where another "
        "network learns from it. If nothing trains it, freeze it with requires_grad_(False).",
        f"made = {last}(x).detach()  # while the other network learns from it",
    )


def _by_look(evidence: Evidence, spare: SpareGradients) -> _Untrained:
    """The parameters that a look at values found to stay as they are."""
    rows = _with_sums(evidence, _backward_of(evidence, spare).tolist(), ends=not spare.passes_on)
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


def _with_sums(evidence: Evidence, nodes: list[int], *, ends: bool) -> list[int]:
    """Adds to backward nodes the sums of the gradients that they make.

    Where the backward pass ``ends`` in them, also what runs behind the last gradient that others make: it is for them.
    """
    gradients = _gradients(evidence)
    sums = [one.row for one in gradients if one.node in set(nodes)]
    others = [one.row for one in gradients if one.node not in set(nodes)]
    behind = _after_the_last(evidence, others, sums) if ends and others and sums else []
    return sorted({*nodes, *sums, *behind})


def _backward_of(evidence: Evidence, spare: SpareGradients) -> Integers:
    """Returns rows of the outermost backward ops of such modules.

    The modules hold nothing but such parameters.
    """
    ops, paths = evidence.linked.ops, evidence.linked.trace.module_paths

    def is_spare(module: str) -> bool:
        parts = module.split(".")
        module_paths = [path for part in parts if (path := paths.get(part)) is not None]
        return any(_lies_in(path, spare.modules) for path in module_paths) or bool(set(parts) & set(spare.calls))

    return backward_rows(evidence)[text_matches(ops["module"], is_spare)[backward_rows(evidence)]]


def _lies_in(path: str, modules: Sequence[str]) -> bool:
    """True for a path at or below one of these.

    They begin with the class of their model, as it may.
    """
    for module in modules:
        for start in (module, module.partition(".")[2]):
            if start and (path == start or path.startswith(f"{start}.")):
                return True
    return False


class _Gradient(Struct, frozen=True):
    """Accumulation of a parameter's gradient.

    It has the row of its outermost op, the backward node that made it and that node's module, its sizes, its time, and
    the line that runs the backward pass.
    """

    row: int
    node: int
    module: str
    size: Size
    adds: bool
    at_us: float
    line: str

    @property
    def kind(self) -> tuple[str, Size]:
        return self.module, self.size


def _gradients(evidence: Evidence) -> list[_Gradient]:
    """The gradients that the backward passes of the window accumulate, in order."""
    ops, work, roots = evidence.linked.ops, work_of(evidence), roots_of(evidence)
    sums = np.flatnonzero(text_matches(ops["name"], lambda name: name == ACCUMULATES) & ops_in_window(evidence))
    adding = set(ops["parent"].to_numpy()[text_matches(ops["name"], ADDS.__contains__)].tolist())
    nodes = backward_rows(evidence)
    makes = nodes[~np.isin(nodes, roots[sums])]
    before = np.searchsorted(makes, roots[sums]) - 1
    modules, signatures = ops["module"].astype(object), as_integers(ops["signature"])
    lines, at_us = ops["source"].astype(object), ops["ts_us"].to_numpy()
    gradients = []
    for row, place in zip(sums.tolist(), before.tolist(), strict=True):
        root, node = int(roots[row]), int(makes[place]) if place >= 0 else -1
        module, line = modules.iloc[node] if node >= 0 else None, lines.iloc[root]
        gradients.append(
            _Gradient(
                root,
                node,
                module if isinstance(module, str) else "",
                next(iter(work.sizes_of(int(signatures[row]))), ()),
                row in adding,
                float(at_us[root]),
                line if isinstance(line, str) else "",
            )
        )
    return gradients


def _by_trace(evidence: Evidence) -> _Untrained | None:
    """Finds gradients that no optimizer reads, where others are read."""
    if evidence.is_incomplete or evidence.steps < _LEAST_STEPS or not optimizer_names(evidence):
        return None
    gradients = _gradients(evidence)
    candidates = (_never_read(evidence, gradients), _dropped(evidence, gradients))
    finds = [one for one in candidates if one is not None]
    return max(finds, key=lambda one: len(one.rows) + len(one.passing), default=None)


def _never_read(evidence: Evidence, gradients: Sequence[_Gradient]) -> _Untrained | None:
    """Finds gradients whose sizes nothing in the window reads.

    They add up in every step while nothing resets them, or the steps of the optimizers hold no tensor of as many
    numbers and nothing outside of modules does.
    """
    kinds = {one.kind: True for one in gradients if one.size}
    for one in gradients:
        kinds[one.kind] = kinds.get(one.kind, False) and one.adds
    read, reset = _numbers_read(evidence, gradients), _numbers_reset(evidence)
    unread_kinds = {
        (module, size)
        for (module, size), always_adds in kinds.items()
        if (always_adds and math.prod(size) not in reset) or (read is not None and math.prod(size) not in read)
    }
    unread = [one for one in gradients if one.kind in unread_kinds]
    if not unread or len(unread) == len(gradients):
        return None
    others = [one for one in gradients if one.kind not in unread_kinds]
    rows = set(_after_the_last(evidence, [one.row for one in others], [one.row for one in unread]))
    passing, modules = set[int](), list[str]()
    for module, nodes in _nodes_by_module(evidence, others, unread).items():
        modules.append(module)
        (passing if _needs_input_gradient(evidence, nodes) else rows).update(nodes)
    return _Untrained(
        sorted(rows),
        sorted(passing - rows),
        modules,
        _last_call(evidence, modules),
        f"{_describe(evidence, unread, modules)} are made in each step, and no optimizer's step, clipping or reset "
        f"touches them; it does {len(others) // evidence.steps} others",
        starts_anew=not any(kinds[one.kind] for one in unread),
    )


def _describe(evidence: Evidence, gradients: Sequence[_Gradient], modules: Sequence[str]) -> str:
    """Words for so many gradients per step, of these modules."""
    numbers = math.fsum(math.prod(one.size) for one in gradients) / evidence.steps
    largest = max(gradients, key=lambda one: math.prod(one.size)).size
    of = f" of {', '.join(modules[:_NAMED])}" if modules else ""
    count = max(len(gradients) // evidence.steps, 1)
    return f"{counted(count, 'gradient')}{of} ({format_si(numbers, 'numbers').strip()}, such as {size_words(largest)})"


def _last_call(evidence: Evidence, modules: Sequence[str], before_us: float = math.inf) -> str | None:
    """Returns the source of the last call of these modules before a time.

    They are called from outside of any; null where none is known.
    """
    runs = model_runs(evidence)
    runs = runs[runs["module"].isin(modules).to_numpy(dtype=bool)]
    sources = runs["source"][runs["ts_us"].to_numpy() < before_us].dropna()
    return None if sources.empty else str(sources.iloc[-1])


def _dropped(evidence: Evidence, gradients: Sequence[_Gradient]) -> _Untrained | None:
    """Finds gradients that are reset before any step of an optimizer reads them.

    They are all those of a module from the backward passes of one line. Sizes tell what a step reads: at least one of
    these gradients has a size that no step reads in time, and what the steps read of the other sizes, gradients of
    other modules account for.
    """
    steps, until_us, outside = _steps_read(evidence, gradients), _resets_us(gradients), _sizes_outside(evidence)

    def most_read(one: _Gradient) -> int:
        numbers = math.prod(one.size)
        times = (step.reads[numbers] for step in steps if one.at_us < step.start_us < until_us[one.row])
        return max(times, default=0)

    def is_outside(one: _Gradient) -> bool:
        return one.size in outside or (math.prod(one.size),) in outside

    resets = [one for one in gradients if until_us[one.row] < math.inf] if steps else []
    sure = {one.row for one in resets if not most_read(one) and not is_outside(one)}
    by_group: dict[tuple[str, str], list[_Gradient]] = {}
    for one in gradients if sure else ():
        for module in _modules_above(one.module):
            by_group.setdefault((module, one.line), []).append(one)
    dropped = dict[tuple[str, str], list[_Gradient]]()
    for (module, line), mine in by_group.items():
        is_inner = any((above, line) in dropped for above in _modules_above(module)[:-1])
        if is_inner or not any(one.row in sure for one in mine):
            continue
        others = _made_elsewhere(gradients, module)
        # A loss and a counter are single numbers too.
        several = [(one, others[math.prod(one.size)]) for one in mine if math.prod(one.size) > 1]
        met_outside = [one for one, count in several if not count and is_outside(one)]
        if all(most_read(one) <= count for one, count in several) and _are_few(met_outside, mine):
            dropped[module, line] = mine
    return _of_dropped(evidence, gradients, dropped) if dropped else None


# Of the numbers of a module's gradients: what reads gradients outside of optimizers reads all; a vector as long as
# the batch may be anything.
_MOST_MET = 0.02


def _are_few(some: Sequence[_Gradient], of: Sequence[_Gradient]) -> bool:
    """True for a small part of the numbers of these gradients."""
    part, whole = (math.fsum(math.prod(one.size) for one in many) for many in (some, of))
    return part <= _MOST_MET * whole


def _of_dropped(
    evidence: Evidence, gradients: Sequence[_Gradient], groups: Mapping[tuple[str, str], Sequence[_Gradient]]
) -> _Untrained:
    """Gives the backward passes of the modules and lines of these gradients.

    Those whose input needs its gradient are another change: only where there is no other do they count.
    """
    paths, nodes = evidence.linked.ops["module"].astype(object), backward_rows(evidence)
    after = np.searchsorted([one.row for one in gradients], nodes)
    lines = [*(one.line for one in gradients), ""]
    made = {
        (module, line): [
            row
            for row, place in zip(nodes.tolist(), after.tolist(), strict=True)
            if lines[place] == line and module in _modules_above(paths.iloc[row])
        ]
        for module, line in groups
    }
    ending = [group for group, rows in made.items() if not (rows and _needs_input_gradient(evidence, rows))]
    mine = ending or list(groups)
    dropped = [one for group in mine for one in groups[group]]
    through = {row for group in mine for row in made[group]}
    sums = {one.row for one in dropped}
    modules = list(dict.fromkeys(module for module, _ in mine))
    first_us = float(evidence.linked.ops["ts_us"].to_numpy()[min(sums | through)])
    places = sorted({one.line for one in dropped if one.line})
    by_line = f" by {' and '.join(places)}" if places else ""
    there, roots = [one for one in gradients if one.line in places], {module.partition(".")[0] for module in modules}
    return _Untrained(
        sorted(sums | through) if ending else sorted(sums),
        [] if ending else sorted(through),
        modules,
        _last_call(evidence, modules, first_us),
        f"{_describe(evidence, dropped, modules)} are made in each step{by_line}, and start anew before the step of an "
        "optimizer has read them",
        starts_anew=True,
        is_alone=bool(there) and {one.module.partition(".")[0] for one in there} <= roots,
    )


class _StepReads(Struct, frozen=True):
    """Step of an optimizer: how many gradients it may read, by their numbers."""

    start_us: float
    reads: Counter[int]


def _steps_read(evidence: Evidence, gradients: Sequence[_Gradient]) -> list[_StepReads]:
    """Returns what the steps of optimizers read.

    An op that reads a gradient has another tensor of its size, such as the parameter: the most calls of one such op
    bound the number of gradients of that size. None where the sizes of a step are not recorded.
    """
    ops, work, spans = evidence.linked.ops, work_of(evidence), outermost_spans(evidence, OPTIMIZER_STEP)
    at_us, inside = ops["ts_us"].to_numpy(), np.flatnonzero(ops_in_window(evidence))
    signatures, names = as_integers(ops["signature"]), ops["name"].astype(object).to_numpy()
    made, steps = {math.prod(one.size) for one in gradients}, list[_StepReads]()
    for start, end in zip(spans.start.tolist(), spans.end.tolist(), strict=True):
        rows = inside[(at_us[inside] >= start) & (at_us[inside] < end)]
        pairs, singles = dict[str, Counter[int]](), dict[str, Counter[int]]()
        for (name, signature), calls in Counter(zip(names[rows], signatures[rows].tolist(), strict=True)).items():
            arguments = [Counter(map(math.prod, sizes)) for sizes in work.argument_sizes(signature)]
            for numbers in set[int]().union(*arguments):
                counts = [argument[numbers] for argument in arguments if numbers in argument]
                by_name = pairs if len(counts) > 1 else singles
                by_name.setdefault(name, Counter())[numbers] += calls * max(counts)
        reads = Counter({**_most_of(singles), **_most_of(pairs)})
        if len(made & set(reads)) < _LEAST_STEPS:
            return []
        steps.append(_StepReads(start, reads))
    return steps


def _most_of(calls: Mapping[str, Counter[int]]) -> Counter[int]:
    """The largest count of each number over all ops."""
    most = Counter[int]()
    for counts in calls.values():
        most |= counts
    return most


def _resets_us(gradients: Sequence[_Gradient]) -> dict[int, float]:
    """Returns when a gradient is known to be gone, by its row.

    That is when the next one of its kind starts anew; infinity where none does.
    """
    by_kind: dict[tuple[str, Size], list[_Gradient]] = {}
    for one in gradients:
        by_kind.setdefault(one.kind, []).append(one)
    return {
        one.row: min(
            (
                later.at_us
                for later in by_kind[one.kind]
                if later.at_us > one.at_us and not later.adds and later.node != one.node
            ),
            default=math.inf,
        )
        for one in gradients
    }


def _made_elsewhere(gradients: Sequence[_Gradient], module: str) -> Counter[int]:
    """Counts parameters of other modules by their numbers, as their gradients tell."""
    by_node = Counter((one.kind, one.node) for one in gradients if module not in _modules_above(one.module))
    most: dict[tuple[str, Size], int] = {}
    for (kind, _), count in by_node.items():
        most[kind] = max(most.get(kind, 0), count)
    numbers = Counter[int]()
    for (_, size), count in most.items():
        numbers[math.prod(size)] += count
    return numbers


def _sizes_outside(evidence: Evidence) -> set[Size]:
    """Sizes of what is read outside of modules, optimizers and loaders.

    What is set to zero is not.
    """
    top, ops = _outside_modules(evidence), evidence.linked.ops
    at_us = ops["ts_us"].to_numpy()[top]
    for marks in (OPTIMIZER_MARK, LOADER_FETCH):
        held = outermost_spans(evidence, marks).hold(at_us)
        top, at_us = top[~held], at_us[~held]
    top = top[~text_matches(ops["name"], _ZEROES.search)[top]]
    work, signatures = work_of(evidence), as_integers(ops["signature"])
    return {size for signature in np.unique(signatures[top]).tolist() for size in work.tensors_of(int(signature))}


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
    ops, nodes = evidence.linked.ops, backward_rows(evidence)
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
    for row in backward_rows(evidence).tolist():
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
