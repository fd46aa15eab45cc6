"""Takes the gain of a finding from the replay of the step, where the rule names the change that its advice makes."""

from dataclasses import replace

from bottleneck.advice.quantities import claims_of
from bottleneck.advice.ranking import Draft
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence

# A gain below this share of the step is none.
_LEAST_GAIN = 0.001
# Without a replay the lower end is this part of what the rule's formula gives.
_DOUBT = 0.5


def with_replayed_gain(evidence: Evidence, draft: Draft) -> Draft | None:
    """The finding with the gain that a replay of its change gives; null where the change saves nothing.

    On a CPU ops follow one another, so that the formulas of the rules add up what a replay would. Where a trace cannot
    be replayed the formula stays, with a wider interval. A replayed gain is no larger than the formula's bound, unless
    the rule names the accounts that it comes from.
    """
    made = draft.transformation
    if made is None or draft.gain_us is None or evidence.is_host_only or evidence.predict is None:
        return draft
    saved_us = evidence.predict(evidence, made.changes)
    if saved_us is None:
        return replace(draft, gain_us=Interval(_DOUBT * draft.gain_us.low, draft.gain_us.high))
    high_us = made.most * saved_us
    high_us = min(high_us, evidence.account_us(*made.accounts) if made.accounts else draft.gain_us.high)
    if high_us < _LEAST_GAIN * evidence.step_us:
        return None
    claims = claims_of(evidence, *made.accounts, most_us=high_us) if made.accounts else draft.claims
    return replace(draft, gain_us=Interval(high_us * made.least / made.most, high_us), claims=claims)
