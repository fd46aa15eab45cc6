"""Finds small models that are called for few rows at a time."""

from msgspec import Struct

from bottleneck.advice.looped_cells import looped_cell
from bottleneck.advice.python_loops import looped_op
from bottleneck.advice.quantities import (
    ISSUE_ACCOUNTS,
    claims_of,
    format_count,
    format_per_step,
    is_compiled,
    model_runs,
)
from bottleneck.advice.ranking import Draft
from bottleneck.advice.servers import find_server
from bottleneck.schema.accounts import UNMODELLED_ACCOUNTS
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.op_names import at_source
from bottleneck.units import counted, format_share, format_us

# Calls per step, the longest that is small (a call of a language model for one token takes longer), and the least part
# of the step that is overhead.
_OFTEN, _SMALL_US, _MOSTLY_OVERHEAD = 32, 1000.0, 0.5
_LEAST_SHARE = 0.2
# Of the time at the place of the calls, which one call for several rows saves: 87 % for a policy of 8 environments, by
# `python -m benchmarks.calls_for_few_rows`.
_SAVED = (0.3, 0.85)


class _ModelCalls(Struct, frozen=True):
    """Calls of one model from one place of the program.

    ``us`` is the time per step at that place, in the model and outside of it.
    """

    source: str
    model: str
    calls: float
    call_us: float
    us: float


def _most_calls(evidence: Evidence) -> _ModelCalls | None:
    """Returns the model that one place calls most often.

    Null without Python calls in the trace.
    """
    runs = model_runs(evidence)
    groups = runs.groupby(["source", "module"], observed=True)["us"]
    largest = max(groups, key=lambda group: group[1].size, default=None)
    if largest is None:
        return None
    (source, model), us = largest
    folds = [fold for fold in evidence.analysis.lines if fold.name == source]
    return _ModelCalls(
        source=str(source),
        model=str(model),
        calls=us.size / evidence.steps,
        call_us=float(us.median()),
        us=sum(fold.us + fold.idle_us for fold in folds),
    )


def many_small_calls(evidence: Evidence) -> Draft | None:
    """Finds a small model that one place calls many times per step.

    Most of such a step is overhead. Gain: 30 to 85 % of the time at that place.
    """
    often, overhead_us = _most_calls(evidence), evidence.group_us("overhead")
    if often is None or often.calls < _OFTEN or often.call_us > _SMALL_US:
        return None
    if evidence.share_of_step(often.us) < _LEAST_SHARE or evidence.share_of_step(overhead_us) < _MOSTLY_OVERHEAD:
        return None
    if is_compiled(evidence) or find_server(evidence) or any(rule(evidence) for rule in (looped_cell, looped_op)):
        return None
    return Draft(
        slug="many-small-calls",
        title=f"A small model is called {counted(format_count(often.calls), 'time')} per step, for few rows each",
        evidence=(
            f"{often.model} is called {at_source(often.source)} {counted(format_count(often.calls), 'time')} per step, "
            f"{format_us(often.call_us)} each",
            f"{format_per_step(evidence, often.us)} goes into that place; "
            f"{format_share(overhead_us / evidence.step_us)} of the step is overhead",
        ),
        advice=f"Call {often.model} once for all rows that do not need one another's results (environments, samples, "
        f"candidates) {at_source(often.source)}: stack them into one batch, and do with the batch what now follows "
        "each call.",
        brief=f"Call {often.model} once for all rows {at_source(often.source)}: stack them into one batch",
        places=(often.source,),
        code="rows = torch.stack([make_input(one) for one in environments])\nresults = model(rows)  # one call",
        gain_us=Interval(_SAVED[0] * often.us, _SAVED[1] * often.us),
        claims=claims_of(
            evidence, *ISSUE_ACCOUNTS, "overhead.launch_floor", "memory", "compute", *UNMODELLED_ACCOUNTS,
            most_us=_SAVED[1] * often.us,
        ),
        lines=(often.source,),
    )  # fmt: skip


RULES = (many_small_calls,)
