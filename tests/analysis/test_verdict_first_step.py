"""The verdict and the first finding say one thing."""

from dataclasses import replace

import pytest

from bottleneck.analysis.ledger import ledger_of
from bottleneck.analysis.verdict import Grounds, decide
from bottleneck.schema.analysis import Finding, Interval, Verdict
from bottleneck.schema.evidence import TwoSided

_ACCOUNTS = {"overhead.sync": 600.0, "compute": 400.0}
_SYNC = Finding(
    "item-sync",
    "A sync",
    (),
    Interval(200.0, 400.0),
    Interval(1.25, 1.667),
    "Read the loss every 100 steps.",
    None,
)


_GROUNDS = Grounds(ledger_of(_ACCOUNTS, 1000.0), (), ())


def _verdict(*findings: Finding, grounds: Grounds = _GROUNDS) -> Verdict:
    return decide(grounds, findings)


def test_the_first_finding_is_the_first_thing_to_do() -> None:
    verdict = _verdict(_SYNC, replace(_SYNC, advice="Something else."))
    assert verdict.sentence == (
        "Overhead holds the step back: 60.0 % of 1.00 ms, its largest part waiting in synchronisations (60.0 %). "
        "First: read the loss every 100 steps (predicted: 1.25 to 1.67 times as fast)."
    )
    assert verdict.sentence.endswith(f"First: {verdict.first_step}.")


def test_without_findings_the_verdict_advises_by_its_largest_part() -> None:
    assert _verdict() == decide(_GROUNDS)
    assert decide(_GROUNDS).sentence.endswith("First: remove or defer the synchronisation.")


@pytest.mark.parametrize(
    "silent",
    [
        replace(_SYNC, within_noise=True),
        replace(_SYNC, predicted_gain_us=None, predicted_speedup=None),
        replace(_SYNC, predicted_gain_us=Interval(0.0, 30.0)),
    ],
    ids=["within noise", "no gain predicted", "1.5 % of the step"],
)
def test_a_finding_whose_gain_does_not_show_is_not_the_first_thing_to_do(silent: Finding) -> None:
    assert _verdict(silent) == decide(_GROUNDS)
    assert "read the loss" in _verdict(silent, _SYNC).sentence


@pytest.mark.parametrize(
    "grounds",
    [replace(_GROUNDS, broken="half of it is missing"), replace(_GROUNDS, sides=TwoSided(0.5, 0.01, 0.99))],
    ids=["broken", "two sides"],
)
def test_advice_to_record_anew_stays_first(grounds: Grounds) -> None:
    assert _verdict(_SYNC, grounds=grounds) == decide(grounds)


def test_the_sentence_on_a_straggler_stands_first_whatever_it_says() -> None:
    verdict = _verdict(_SYNC, grounds=replace(_GROUNDS, straggler="Rank 2 is late. First: no."))
    assert verdict.sentence.startswith("Rank 2 is late. First: no. Overhead holds the step back")
    assert verdict.sentence.count("First:") == 2
