"""One message: the verdict tells to do first what the first finding advises, where that is worth telling."""

from collections.abc import Sequence
from dataclasses import replace

from bottleneck.analysis.verdict import JUDGE_APART
from bottleneck.records import Analysis, Finding, Verdict

# A verdict names what matters; from this share of the step on, by the middle of the predicted gain.
_WORTH_NAMING = 0.02


def with_findings(analysis: Analysis, findings: Sequence[Finding]) -> Analysis:
    """The analysis with its findings; the first of them is the first thing to do.

    The verdict keeps its own advice where that is to record anew, and where no finding predicts a gain that shows.
    """
    found = replace(analysis, findings=tuple(findings))
    first = next((finding for finding in findings if _is_worth_naming(finding, analysis.steps.wall_us)), None)
    if first is None or not _is_open(analysis.verdict):
        return found
    return replace(found, verdict=_beginning_with(analysis.verdict, first))


def _is_worth_naming(finding: Finding, step_us: float) -> bool:
    gain = finding.predicted_gain_us
    if gain is None or finding.within_noise:
        return False
    return (gain.low + gain.high) / 2 >= _WORTH_NAMING * step_us > 0


def _is_open(verdict: Verdict) -> bool:
    """Whether the verdict advises how to save time, not how to learn more."""
    return verdict.bound != "inconclusive" and verdict.first_step not in {None, JUDGE_APART}


def _beginning_with(verdict: Verdict, finding: Finding) -> Verdict:
    assert finding.predicted_speedup is not None
    low, high = (f"{times:.2f}" for times in (finding.predicted_speedup.low, finding.predicted_speedup.high))
    times = high if low == high else f"{low} to {high}"
    step = f"{_continuing(finding.advice)} (predicted: {times} times as fast)"
    opening = verdict.sentence.removesuffix(f"First: {verdict.first_step}.")
    return replace(verdict, sentence=f"{opening}First: {step}.", first_step=step)


def _continuing(advice: str) -> str:
    """Advice as it continues a sentence: names such as CUDA keep their capitals, the full stop goes."""
    text = advice.strip().removesuffix(".")
    return text[:1].lower() + text[1:] if text[1:2].islower() else text
