"""Finds the text of tensors, made in each step to print them."""

import re

from bottleneck.advice.loop_lines import FORMATS_TENSORS, LEAST_SHARE, loop_claims
from bottleneck.advice.quantities import format_count, format_per_step, line_at, outermost_frames
from bottleneck.advice.ranking import Draft
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.op_names import at_source
from bottleneck.units import counted

# A call of a logger whose text is made before the call: by an f-string, format() or the operator %.
_LOGS_MADE_TEXT = re.compile(
    r"\blog\w*\.(?:debug|info|warn\w*|error|log|critical|trace)\("
    r".*(?:\bf[\"']|\bstr\(|\brepr\(|\.format\(|[\"'] *%|[\"'] *\+)",
    re.IGNORECASE,
)


def printed_tensor(evidence: Evidence) -> Draft | None:
    """Finds a step that makes the text of tensors.

    It does so number by number, to print or log them. Gain: the time of that, from 90 % of it.
    """
    spans = outermost_frames(evidence, FORMATS_TENSORS)
    us = spans.total() / evidence.steps * evidence.host_scale
    if evidence.share_of_step(us) < LEAST_SHARE:
        return None
    us_at: dict[str | None, float] = {}
    for start, end in zip(spans.start.tolist(), spans.end.tolist(), strict=True):
        line = line_at(evidence, start)
        us_at[line] = us_at.get(line, 0.0) + end - start
    line = max(us_at, key=lambda place: us_at[place])
    texts = evidence.source_texts
    is_logged = _LOGS_MADE_TEXT.search(texts.get(line or "", "")) is not None
    return Draft(
        slug="printed-tensor",
        title="Tensors become text for log messages, written or not"
        if is_logged
        else "The text of whole tensors is made in each step",
        evidence=(
            f"{counted(format_count(spans.start.size / evidence.steps), 'tensor')} per step become text "
            f"{at_source(line)}: {format_per_step(evidence, us)}",
            "each number of it is formatted by Python",
        ),
        advice=f"Let logging format the tensor {at_source(line)} itself, and only if the level is on: pass it as an "
        "argument in place of an f-string, which is made before logging looks at the level. Or guard the call by "
        "logger.isEnabledFor(logging.DEBUG), or remove it."
        if is_logged
        else f"Print or log the tensor {at_source(line)} every so many steps only, or numbers that sum it up.",
        brief=f"Let logging format the tensor {at_source(line)} itself, and only if the level is on",
        places=(line,),
        code='logger.debug("output: %s", out)  # no text where DEBUG is off'
        if is_logged
        else "if step % 100 == 0:\n    print(step, out.shape, out.mean().item())  # not the tensor itself",
        gain_us=Interval(0.9 * us, us),
        claims=loop_claims(evidence, us),
        removes=True,
    )


RULES = (printed_tensor,)
