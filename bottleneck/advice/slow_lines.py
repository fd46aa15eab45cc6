"""Finds a line whose own Python takes a large part of each step.

It runs no op of torch.
"""

import math

from msgspec import Struct

from bottleneck.advice.loop_lines import spans_without_torch
from bottleneck.advice.quantities import claims_of, format_per_step, idle_rows
from bottleneck.advice.ranking import Draft
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence, remembered
from bottleneck.schema.intervals import Spans
from bottleneck.schema.op_names import at_source, is_line, place_of

# Lines of Python below this part of the step are not worth a change.
_LEAST_LINE = 0.1
# What Python of its own takes, from half of it: its work has to be done somewhere, or in another way.
_OF_LINE = (0.5, 1.0)
_LONGEST_TEXT = 80


class SlowLine(Struct, frozen=True):
    """Line of the program that runs Python of its own, and no torch.

    Time per step with functions that it calls.
    """

    source: str
    lines: tuple[str, ...]
    us: float


@remembered
def slow_line(evidence: Evidence) -> SlowLine | None:
    """The line with most time in Python of its own; null without recorded lines.

    Lines in which torch runs (ops, modules, optimizers) are not among them. A function whose lines were not recorded
    counts to the line that calls it.
    """
    us: dict[str, float] = {}
    for row in idle_rows(evidence, "python"):
        if row.source is not None:
            us[row.source] = us.get(row.source, 0.0) + row.us
    spans = spans_without_torch(
        evidence, [source for source in us if evidence.share_of_step(us[source]) >= _LEAST_LINE / 4]
    )
    best = None
    for source, open_ in spans.items():
        if not is_line(source):
            continue
        inner = [other for other, held in spans.items() if other != source and _lies_in(held, open_, other)]
        candidate = SlowLine(source, (source, *inner), us[source] + math.fsum(us[other] for other in inner))
        best = candidate if best is None or candidate.us > best.us else best
    return best


def _lies_in(inner: Spans, outer: Spans, source: str) -> bool:
    """True for a function whose calls all lie in these spans."""
    place = place_of(source)
    return place is not None and place.is_function and bool(outer.hold(inner.start).all())


def python_line(evidence: Evidence) -> Draft | None:
    """Finds a line whose own Python takes a tenth of the step and more.

    Known patterns are `slow_call`'s. Gain: that time, from half of it.
    """
    line = slow_line(evidence)
    if line is None or evidence.share_of_step(line.us) < _LEAST_LINE:
        return None
    texts = evidence.source_texts
    text = texts.get(line.source, "")
    low, high = (part * line.us for part in _OF_LINE)
    return Draft(
        slug="python-line",
        title="Python of the program takes a part of each step",
        evidence=(
            f"{line.source} takes {format_per_step(evidence, line.us)} in Python, and runs no op"
            + (f": {text[:_LONGEST_TEXT]}" if text else ""),
        ),
        advice=f"Take the Python {at_source(line.source)} out of the step: computed once and kept, or in the loader's "
        "workers, or do it for the whole batch at once.",
        brief=f"Take the Python {at_source(line.source)} out of the step, or do it for the whole batch at once",
        places=(line.source,),
        code="values = numpy.fromiter(items, dtype=float)  # or an op for the batch, or a worker of the DataLoader",
        gain_us=Interval(low, high),
        claims=claims_of(evidence, "overhead.python", most_us=high),
        removes=True,
        lines=line.lines,
    )


RULES = (python_line,)
