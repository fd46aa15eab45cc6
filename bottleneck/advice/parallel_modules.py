"""Rule of modules of one kind that a loop calls one after the other.

Each is called on its own: heads, ensembles, branches.
"""

import ast
import re

from bottleneck.advice.python_loops import loop_claims, loop_of, program_ops
from bottleneck.advice.quantities import format_count, format_per_step, is_compiled
from bottleneck.advice.ranking import Draft
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.op_names import at_source
from bottleneck.schema.source_text import parse_line
from bottleneck.schema.tables import text_matches
from bottleneck.units import counted, format_share

_LAYER = re.compile(r"^aten::(?:linear|conv\w*|bilinear|embedding)$")
_LEAST_MODULES, _LEAST_OVERHEAD, _LEAST_SHARE = 4, 0.3, 0.15
# Of the loop's overhead one call for all saves at least so much; the work itself stays.
_SURE = 0.6


def _calls_each(text: str) -> bool:
    """True for a comprehension that calls its own variable.

    That is `[m(x) for m in models]`, and `outs.append(m(x))`.
    """
    if ".append(" in text:
        return True
    statement = parse_line(text)
    if statement is None:
        return re.search(r"\b(\w+)\(\w.*\bfor\b.*\b\1\b.*\bin\b", text) is not None
    for node in ast.walk(statement):
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            bound = {
                name.id for part in node.generators for name in ast.walk(part.target) if isinstance(name, ast.Name)
            }
            result = node.value if isinstance(node, ast.DictComp) else node.elt
            if any(isinstance(one, ast.Call) and ast.unparse(one.func) in bound for one in ast.walk(result)):
                return True
    return False


def parallel_modules(evidence: Evidence) -> Draft | None:
    """Finds modules of one kind that a loop calls one after the other.

    They are of one size, and none takes the result of another. Gain: the time of the line that is no arithmetic, less
    one round of it; from 60 % of that.
    """
    if is_compiled(evidence) or evidence.recording is None:
        return None
    texts, ops = evidence.recording.source_texts, program_ops(evidence)
    layers = ops[text_matches(ops["name"], _LAYER.search) & ops["module"].notna().to_numpy()]
    same = ["source", "signature", "step"]
    counts = layers.groupby(same, observed=True)["module"].nunique().groupby(level="source", observed=True).max()
    often = {
        str(source): (float(count), float(count))
        for source, count in counts.items()
        if count >= _LEAST_MODULES and _calls_each(texts.get(str(source), ""))
    }
    if not often:
        return None
    loop = loop_of(evidence, often, tuple(often))
    high_us = loop.overhead * loop.us * (1 - 1 / loop.count)
    if loop.overhead < _LEAST_OVERHEAD or evidence.share_of_step(high_us) < _LEAST_SHARE:
        return None
    return Draft(
        slug="parallel-modules",
        title="Modules of one size are called one after the other in a loop",
        evidence=(
            f"{loop.source} runs layers of {counted(format_count(loop.count), 'module')} on inputs of one size"
            f" (`{texts.get(loop.source, '')[:80]}`)",
            f"{format_per_step(evidence, loop.us)} goes into the line and its backward pass, "
            f"{format_share(loop.overhead)} of it calls that compute next to nothing",
        ),
        advice=f"Compute all of them at once in place of the loop {at_source(loop.source)}: keep their weights in one "
        "tensor (one wide Linear whose result is split into heads, a batched product, a convolution with groups), or "
        "stack existing modules with torch.func.stack_module_state and vmap.",
        brief=f"Compute all of them at once in place of the loop {at_source(loop.source)}",
        places=(loop.source,),
        code="q = self.q(x).unflatten(-1, (heads, width))  # one Linear for all heads\n"
        "out = torch.baddbmm(bias, x.expand(count, -1, -1), weight)  # an ensemble: weight is count x inputs x outputs",
        gain_us=Interval(_SURE * high_us, high_us),
        claims=loop_claims(evidence, high_us),
        removes=True,
        lines=loop.lines,
    )


RULES = (parallel_modules,)
