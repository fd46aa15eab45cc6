"""Gains that come from a replay of the step, held against the ledger of traces made by hand."""

from pathlib import Path

import pytest

from bottleneck.advice import advise
from bottleneck.advice.measured import with_replayed_gain
from bottleneck.advice.ranking import Draft, Transformation
from bottleneck.schema.analysis import Finding, Interval
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.records import replace
from tests.advice.cases import case_of, cpu_events, gpu_events
from tests.simulate.test_whatif import syncing_events

ISSUE = ("overhead.sync", "overhead.dispatch", "overhead.python", "overhead.launch")


def finding(case: Evidence, slug: str) -> Finding:
    return next(each for each in advise(case) if each.slug == slug)


def draft(gain: Interval, **made: object) -> Draft:
    transformation = Transformation(("remove sync",), **made)  # type: ignore[arg-type]
    return Draft("host-sync", "a wait", (), "wait less", gain, transformation=transformation)


def saving(case: Evidence, us: float | None) -> Evidence:
    """The case with a replay that answers so."""
    return replace(case, predict=lambda _evidence, _changes: us)


@pytest.fixture
def syncing(tmp_path: Path) -> Evidence:
    return case_of(tmp_path, syncing_events())


def test_a_sync_is_worth_what_the_host_then_does_beside_the_device(syncing: Evidence) -> None:
    found = finding(syncing, "host-sync")
    assert found.changes == ("remove sync",)
    assert found.predicted_gain_us is not None
    assert found.predicted_gain_us.high == pytest.approx(1480 - 1010, rel=0.03)
    assert found.predicted_gain_us.high <= syncing.account_us(*ISSUE) + 1e-6


def test_late_launches_are_worth_what_a_graph_saves_and_no_more_than_the_idle_time(tmp_path: Path) -> None:
    case = case_of(tmp_path, gpu_events(30, 5, 100, steps=3))
    found = finding(case, "late-launches")
    assert found.changes == ("graph",)
    assert found.predicted_gain_us is not None
    assert 0.5 * case.step_us < found.predicted_gain_us.high <= case.account_us(*ISSUE)


def test_a_replayed_gain_is_no_larger_than_the_formula_unless_accounts_are_named(syncing: Evidence) -> None:
    case = saving(syncing, 300.0)
    bounded, free = (with_replayed_gain(case, draft(Interval(50, 100), accounts=accounts)) for accounts in ((), ISSUE))
    assert bounded is not None
    assert free is not None
    assert bounded.gain_us == Interval(50, 100) and bounded.basis == "replayed"
    assert free.gain_us == Interval(150, 300)
    assert sum(free.claims.values()) == pytest.approx(300)


def test_a_change_that_saves_nothing_is_no_finding(syncing: Evidence) -> None:
    assert with_replayed_gain(saving(syncing, 0.0), draft(Interval(50, 100))) is None


def test_without_an_answer_the_formula_stays_with_a_wider_interval(syncing: Evidence) -> None:
    found = with_replayed_gain(saving(syncing, None), draft(Interval(50, 100)))
    assert found is not None
    assert found.gain_us == Interval(25, 100)


def test_on_a_cpu_the_formula_stays(tmp_path: Path) -> None:
    case = saving(case_of(tmp_path, cpu_events(20, 80, 100)), 10.0)
    made = draft(Interval(50, 100))
    assert with_replayed_gain(case, made) is made
