"""Rule of derivatives that take a backward pass for each of their components."""

import re

from msgspec import Struct

from bottleneck.advice.python_loops import BACKWARD_CALL
from bottleneck.advice.quantities import claims_of, format_count, format_per_step, line_at, outermost_frames
from bottleneck.advice.ranking import Draft
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.op_names import at_source

_TAKES = re.compile(r"\bgrad\(|\b(?:jacobian|hessian|hvp|vhp|vjp|jvp)\(")
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
    texts = {} if evidence.recording is None else evidence.recording.source_texts
    spans, us, count = outermost_frames(evidence, BACKWARD_CALL), dict[str, float](), dict[str, int]()
    for start, end in zip(spans.start.tolist(), spans.end.tolist(), strict=True):
        line = line_at(evidence, start)
        if line is not None and _TAKES.search(texts.get(line, "")):
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


_ACCOUNTS = ("overhead.python", "overhead.dispatch", "overhead.launch_floor", "memory", "compute")

RULES = (derivative_by_component,)
