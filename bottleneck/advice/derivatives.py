"""Rules of derivatives that take a backward pass for each component or input."""

import re

import numpy as np
from msgspec import Struct

from bottleneck.advice.loop_lines import BACKWARD_CALL
from bottleneck.advice.quantities import (
    claims_of,
    format_count,
    format_per_step,
    line_at,
    outermost_frames,
)
from bottleneck.advice.ranking import Draft
from bottleneck.advice.removal import backward_rows, forward_threads, removal_of, sequence_numbers
from bottleneck.advice.untrained_parameters import ACCUMULATES
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.intervals import Floats, Integers, Spans
from bottleneck.schema.op_names import at_known, at_source
from bottleneck.units import counted

_TAKES = re.compile(r"\bgrad\(|\b(?:jacobian|hessian|hvp|vhp|vjp|jvp)\(")
# The gradient of a loss is one number's: rounds of it are steps of a training, or of meta-learning.
_OF_LOSS = re.compile(r"\bgrad\(\s*(?:\w+\.)*\w*loss\w*\s*,")
_WHOLE = re.compile(r"\b(?:jacobian|hessian)\(")
_LEAST_PASSES, _LEAST_SHARE = 4, 0.1
# One pass for all components computes as much, with fewer calls; another formula needs fewer components.
_AT_LEAST = 0.3
_LONGEST_TEXT = 80


class _Passes(Struct, frozen=True):
    """The line with most time in backward passes that it asks for.

    It has passes and time per step.
    """

    line: str
    text: str
    count: float
    us: float


def _most_passes(evidence: Evidence) -> _Passes | None:
    texts = evidence.source_texts
    spans, us, count = outermost_frames(evidence, BACKWARD_CALL), dict[str, float](), dict[str, int]()
    for start, end in zip(spans.start.tolist(), spans.end.tolist(), strict=True):
        line = line_at(evidence, start)
        text = texts.get(line, "") if line is not None else ""
        if line is not None and _TAKES.search(text) and not _OF_LOSS.search(text):
            us[line], count[line] = us.get(line, 0.0) + end - start, count.get(line, 0) + 1
    if not us:
        return None
    line = max(us, key=lambda source: us[source])
    scale = evidence.host_scale / evidence.steps
    return _Passes(line, texts[line], count[line] / evidence.steps, us[line] * scale)


def derivative_by_component(evidence: Evidence) -> Draft | None:
    """Finds a line that asks for many backward passes per step.

    There are four or more, one for each component of a derivative. Gain: the time of these passes less that of one,
    from 30 % of it.
    """
    passes = _most_passes(evidence)
    if passes is None or passes.count < _LEAST_PASSES or evidence.share_of_step(passes.us) < _LEAST_SHARE:
        return None
    high_us = passes.us * (1 - 1 / passes.count)
    quoted = f" (`{passes.text}`)" if len(passes.text) <= _LONGEST_TEXT else ""
    whole = " Of a whole Jacobian or Hessian, ask for vectorize=True." if _WHOLE.search(passes.text) else ""
    return Draft(
        slug="derivative-by-component",
        title="A derivative takes a backward pass for each of its components",
        evidence=(
            f"{passes.line} asks for {format_count(passes.count)} backward passes per step{quoted}",
            f"that takes {format_per_step(evidence, passes.us)}; what goes backward through these passes comes on top",
        ),
        advice=f"Take all components at once {at_source(passes.line)}, in place of a backward pass for each: "
        "torch.func.vmap over vjp, jacrev or hessian, or torch.autograd.grad(..., is_grads_batched=True)."
        f"{whole} Where only a product or a trace is used, less is needed: one jvp or hvp in place of the matrix, "
        "torch.func.jacfwd or jvp (forward mode) for few inputs, and random vectors (Hutchinson) for a trace or a "
        "Laplacian. Gradients of several losses: add the losses, where their sum is used.",
        brief=f"Take all components at once {at_source(passes.line)}, with torch.func or is_grads_batched=True",
        places=(passes.line,),
        code="rows = torch.autograd.grad(y, x, torch.eye(n)[:, None].expand(n, *y.shape), is_grads_batched=True, "
        "create_graph=True)[0]\nlaplacian = torch.func.vmap(lambda x: torch.func.hessian(f)(x).trace())(x)",
        gain_us=Interval(_AT_LEAST * high_us, high_us),
        claims=claims_of(evidence, *_ACCOUNTS, most_us=high_us),
        removes=True,
    )


_GRAD = re.compile(r"autograd[/\\]__init__\.py\(\d+\): grad$")
_LEAST_APART = 0.05
# Nodes of the shorter of two passes that the other has run too: then they go through one graph.
_MOSTLY_SHARED = 0.5


class _RepeatedPasses(Struct, frozen=True):
    """Calls of torch.autograd.grad through a graph that a call before has gone through.

    ``rows`` are outermost backward ops that one call for all inputs would not run: those of these calls, and those of
    later passes through the graphs that these calls made. ``times`` are when these calls begin.
    """

    rows: list[int]
    times: list[float]


def _repeated_passes(evidence: Evidence) -> _RepeatedPasses:
    """Finds calls from one output through nodes that an earlier call has run."""
    ops, number = evidence.linked.ops, sequence_numbers(evidence)
    at_us, nodes = ops["ts_us"].to_numpy(), backward_rows(evidence)
    nodes = nodes[number[nodes] >= 0]
    nodes = nodes[np.argsort(at_us[nodes], kind="stable")]
    if np.unique(forward_threads(evidence)[nodes]).size > 1:
        return _RepeatedPasses([], [])
    # Without Python calls the numbers tell where a pass begins.
    is_told = evidence.linked.places is not None
    spans = outermost_frames(evidence, _GRAD) if is_told else _passes_to_inputs(evidence, nodes)
    seen: dict[int, set[int]] = {}
    rows, times, made = list[int](), list[float](), [np.zeros(0, dtype=np.int64)]
    others = nodes[~spans.hold(at_us[nodes])]
    first, last = (np.searchsorted(at_us[nodes], bounds) for bounds in (spans.start, spans.end))
    newest = _newest_number(number, at_us, np.stack([spans.start, spans.end]))
    for at, start in enumerate(spans.start.tolist()):
        mine = nodes[first[at] : last[at]]
        ran = set(number[mine].tolist())
        if not ran:
            continue
        before = seen.setdefault(max(ran), set())
        shared = before & ran
        if len(shared) >= _MOSTLY_SHARED * min(len(ran), len(before) or len(ran)):
            rows += mine[np.isin(number[mine], list(shared))].tolist()
            made.append(np.arange(newest[0, at] + 1, newest[1, at] + 1))
            times.append(start)
        before |= ran
    rows += others[np.isin(number[others], np.concatenate(made))].tolist()
    return _RepeatedPasses(sorted(set(rows)), times)


def _passes_to_inputs(evidence: Evidence, nodes: Integers) -> Spans:
    """Returns backward passes that add to no gradient, as those of torch.autograd.grad.

    The engine runs the newest node first: where a number does not fall, another pass begins.
    """
    ops, number = evidence.linked.ops, sequence_numbers(evidence)[nodes]
    start_us = ops["ts_us"].to_numpy()[nodes]
    end_us = start_us + ops["dur_us"].to_numpy()[nodes]
    begins = np.flatnonzero(np.diff(number, prepend=-1) >= 0)
    begin_us = start_us[begins]
    adds_us = ops["ts_us"].to_numpy()[(ops["name"] == ACCUMULATES).to_numpy()]
    adds = np.bincount(np.searchsorted(begin_us, adds_us, side="right"), minlength=begins.size + 1)[1:] > 0
    last_us = end_us[np.append(begins[1:], number.size) - 1] if begins.size else begin_us
    return Spans(begin_us[~adds], last_us[~adds], begins[~adds])


def _newest_number(number: Integers, at_us: Floats, bounds_us: Floats) -> Integers:
    """Returns the newest number that autograd had given by each of these times."""
    order = np.argsort(at_us, kind="stable")
    newest = np.append(-1, np.maximum.accumulate(number[order]))
    return np.asarray(newest[np.searchsorted(at_us[order], bounds_us)])


def gradients_apart(evidence: Evidence) -> Draft | None:
    """Finds several gradients of one output that are asked for one by one.

    Each call goes through the same graph again. Gain: these calls but the first, and what goes backward through the
    graphs that they make; from 90 % of it.
    """
    repeats = _repeated_passes(evidence)
    if not repeats.rows or derivative_by_component(evidence) is not None:
        return None
    removal, calls = removal_of(evidence, repeats.rows), len(repeats.times) / evidence.steps
    line = line_at(evidence, repeats.times[0])
    if evidence.share_of_step(removal.gain.high) < _LEAST_APART:
        return None
    return Draft(
        slug="gradients-apart",
        title="Gradients of one output are asked for one by one",
        evidence=(
            f"{counted(format_count(calls), 'call')} of torch.autograd.grad per step{at_known(line)} "
            f"{'goes' if calls == 1 else 'go'} through a graph that a call before has gone through",
            f"these passes, and what goes backward through them, take {format_per_step(evidence, removal.us)}",
        ),
        advice=f"Ask for all gradients of an output in one call {at_source(line)}, in place of a call for each: "
        "torch.autograd.grad(u, (x, y, t), …), or of one tensor that holds the inputs as its columns. Where the calls "
        "differ in grad_outputs, stack these and pass is_grads_batched=True.",
        brief=f"Ask for all gradients of an output in one call of torch.autograd.grad {at_source(line)}".rstrip(),
        places=(line,),
        code="points.requires_grad_()  # (n, 3): in place of x, y and t\n"
        "du = torch.autograd.grad(u.sum(), points, create_graph=True)[0]  # u_x, u_y, u_t are its columns",
        gain_us=removal.gain,
        claims=removal.claims,
        removes=True,
        cannot_lose=True,
    )


_ACCOUNTS = ("overhead.python", "overhead.dispatch", "overhead.launch_floor", "memory", "compute")

RULES = (derivative_by_component, gradients_apart)
