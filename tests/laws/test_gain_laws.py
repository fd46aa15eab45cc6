"""No finding promises more than the time of what it names: accounts, kernels, a phase, lines, or timed pieces.

Over all samples, all public traces and all cases that this machine has, and over any drafts of rules. A finding lists
the source lines that its sentences name.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck.advice.ranking import Draft, rank
from bottleneck.advice.widening import Basis, Widening
from bottleneck.errors import TraceError
from bottleneck.report.findings import findings as all_findings
from bottleneck.report.findings import first_findings
from bottleneck.schema.analysis import Analysis, Finding, Fold, Interval, Phase, is_certain
from bottleneck.schema.finding_order import LITTLE
from bottleneck.schema.records import replace
from tests import trace_cache
from tests.report.samples import analysis, kernel

_ROOT = Path(__file__).resolve().parents[2]
_SHARED = _ROOT.parent / "shared"
_RECORDINGS = sorted(path.parent for path in (_ROOT / "sample_traces").glob("*/recording.json"))
_TRACES = sorted(
    path for folder in ("traces", "cases") for path in (_SHARED / folder).glob("*.json*") if _SHARED.is_dir()
)
_ROUNDING = 1 + 1e-9


def named_us(finding: Finding, analysed: Analysis) -> float:
    """The time per step of what a finding names; that of the step where it names nothing."""
    step_us = analysed.steps.wall_us
    accounts = {entry.account: entry.us for entry in analysed.ledger}
    kernels = {f"kernel:{row}": each.us for row, each in enumerate(analysed.kernels)}
    known = {**accounts, **kernels}
    limits = [step_us]
    if finding.claims:
        assert finding.claims.keys() <= known.keys(), finding.slug
        limits.append(math.fsum(known[claim] for claim in finding.claims))
    if finding.phase is not None and analysed.phases:
        limits.append(math.fsum(phase.us for phase in analysed.phases if phase.name == finding.phase))
    if finding.lines:
        limits.append(math.fsum(each.us + each.idle_us for each in analysed.lines if each.name in finding.lines))
    return min(limits)


def check_gains(analysed: Analysis) -> None:
    step_us = analysed.steps.wall_us
    for finding in analysed.findings:
        gain, speedup = finding.predicted_gain_us, finding.predicted_speedup
        if gain is None or speedup is None:
            continue
        assert gain.low < gain.high < step_us or gain.low <= gain.high == 0, finding.slug
        assert gain.high - finding.relief_us <= named_us(finding, analysed) * _ROUNDING, finding.slug
        check_relief(finding, analysed)
        assert speedup.high == pytest.approx(step_us / (step_us - gain.high)), finding.slug
        stated = finding.stated_speedup
        assert stated is not None and step_us * (1 - 1 / stated.high) <= named_us(finding, analysed) * _ROUNDING
    added = [each.added_gain_us.high for each in analysed.findings if each.added_gain_us is not None]
    assert math.fsum(added) <= step_us
    check_pieces(analysed)
    check_waits(analysed)
    check_order(analysed)
    check_places(analysed)


def check_relief(finding: Finding, analysed: Analysis) -> None:
    """What the rest of a step gains is memory time, by the part of the step that goes, and on a CPU only."""
    assert finding.predicted_gain_us is not None
    memory_us = math.fsum(entry.us for entry in analysed.ledger if entry.account.partition(".")[0] == "memory")
    gone_us = finding.predicted_gain_us.high - finding.relief_us
    assert 0 <= finding.relief_us <= gone_us / analysed.steps.wall_us * memory_us * _ROUNDING, finding.slug
    assert finding.relief_us == 0 or analysed.device.kind == "cpu", finding.slug


_LINE = re.compile(r"[^\s:()`'\"]{1,200}\.py:\d{1,9}(?!\d)")


def check_places(analysed: Analysis) -> None:
    """A finding lists each line that it names, so that reports can show its text without reading sentences."""
    for finding in analysed.findings:
        advised, listed = " ".join(finding.places), " ".join((*finding.places, *finding.seen_at))
        lines = set(_LINE.findall(f"{finding.title} {finding.advice}"))
        assert {line for line in lines if line not in advised} == set(), finding.slug
        seen = set(_LINE.findall(" ".join(finding.evidence)))
        assert {line for line in seen if line not in listed} == set(), finding.slug


def check_waits(analysed: Analysis) -> None:
    """What is done about a wait on a CPU promises no more than the wait that the ledger shows beside it.

    A finding that names a little of a second account would else be let take all of that.
    """
    accounts = {entry.account: entry.us for entry in analysed.ledger}
    waits = [
        name for name in ("overhead.input", "overhead.sync", "overhead.gc", "overhead.compile") if name in accounts
    ]
    for finding in analysed.findings:
        mostly = [name for name in waits if finding.claims.get(name, 0.0) > 0.5 * math.fsum(finding.claims.values())]
        if mostly and analysed.device.kind == "cpu" and finding.predicted_gain_us is not None:
            gone_us = finding.predicted_gain_us.high - finding.relief_us
            assert gone_us <= accounts[mostly[0]] * _ROUNDING, finding.slug


def check_pieces(analysed: Analysis) -> None:
    """What was timed on all of a finding's work promises no more than the pieces saved."""
    pieces = () if analysed.pieces is None else analysed.pieces.pieces
    for finding in analysed.findings:
        mine = [each for each in pieces if each.finding == finding.slug and each.ratio is not None]
        if not finding.measured or finding.predicted_gain_us is None or sum(each.share for each in mine) < 1:
            continue
        saved_us = math.fsum(
            each.calls * each.as_is_us.high * max(1 - each.ratio.low, 0.0)
            for each in mine
            if each.ratio is not None and each.as_is_us is not None
        )
        entered_us = (analysed.device.compiled_call_us or 0.0) * math.fsum(each.calls for each in mine)
        assert finding.predicted_gain_us.high <= (saved_us + entered_us) * _ROUNDING, finding.slug


def check_order(analysed: Analysis) -> None:
    """A gain that may be a loss stands behind those that are certain and add 2 % of the step or more."""
    ranked = [each for each in analysed.findings if each.predicted_speedup is not None and not each.corrects_results]
    sure = [each.predicted_speedup is not None and is_certain(each.predicted_speedup) for each in ranked]
    hurts = [each.predicted_gain_us is not None and each.predicted_gain_us.low <= 0 for each in ranked]
    added = (each.added_gain_us or each.predicted_gain_us for each in ranked)
    least_us = 2 * LITTLE * analysed.steps.wall_us
    gains = [
        is_sure and gain is not None and gain.low + gain.high >= least_us
        for gain, is_sure in zip(added, sure, strict=True)
    ]
    last = max((at for at, is_gain in enumerate(gains) if is_gain), default=0)
    assert not any(hurt and not is_sure for hurt, is_sure in list(zip(hurts, sure, strict=True))[:last])
    check_first_step(analysed)


def check_first_step(analysed: Analysis) -> None:
    """The first step of the verdict is finding 1, in the analysis, on the screen and in the full report."""
    clauses = [clause for clause in analysed.verdict.clauses if clause.role == "first"]
    if not analysed.verdict.clauses:
        return  # drafts alone
    screen, whole = first_findings(analysed, 1, 10**6, 0), all_findings(analysed)
    first = next((finding for finding in analysed.findings if not finding.on_request), None)
    if not clauses or first is None:
        assert not clauses and (screen is None or not screen.items)
        assert analysed.verdict.first_step is None
        return
    assert screen is not None and whole is not None
    assert clauses[0].source == first.slug == screen.items[0].key == whole.items[0].key
    assert (first.brief or first.advice).strip().rstrip(".").casefold() in clauses[0].text.casefold()


@pytest.mark.parametrize("recording", _RECORDINGS, ids=lambda path: path.name)
def test_no_gain_of_a_sample_exceeds_what_it_names(recording: Path) -> None:
    check_gains(trace_cache.analysed(recording))


@pytest.mark.skipif(not _TRACES, reason="../shared with public traces is not here")
@pytest.mark.parametrize("trace", _TRACES, ids=lambda path: path.name[-60:])
def test_no_gain_of_a_public_trace_exceeds_what_it_names(trace: Path) -> None:
    try:
        analysed = trace_cache.analysed(trace)
    except TraceError:
        pytest.skip("no trace of a PyTorch program")
    check_gains(analysed)


_ACCOUNTS = {"overhead.python": 500.0, "overhead.sync": 200.0, "compute": 300.0}
_ROWS = kernel("a", 200.0, 1000.0), kernel("a", 50.0, 1000.0), kernel("b", 50.0, 1000.0)
_LINES = (Fold("train.py:1", 1.0, 100.0, 0.1, {}, 30.0), Fold("train.py:2", 1.0, 0.0, 0.0, {}, 400.0))
_PHASES = (Phase("optimizer", 120.0, 0.12, {}), Phase("other", 880.0, 0.88, {}))
# Of shorter times than a picosecond, two neighbouring numbers make no interval.
_US = st.just(0.0) | st.floats(1e-6, 2e3)
_NAMED = st.dictionaries(st.sampled_from([*_ACCOUNTS, "kernel:0", "kernel:1", "kernel:2"]), _US)
_DRAFTS = st.builds(
    lambda gain, claims, phase, lines, removes: Draft(
        "rule",
        "A title",
        (),
        "Do it.",
        Interval(min(gain), max(gain)),
        claims,
        phase=phase,
        lines=tuple(lines),
        removes=removes,
    ),
    st.tuples(st.floats(-500, -1e-6) | _US, _US),
    _NAMED,
    st.sampled_from([None, "optimizer"]),
    st.sets(st.sampled_from(["train.py:1", "train.py:2", "absent.py:1"])),
    st.booleans(),
)
_WIDENINGS: Mapping[Basis, Widening] = {"formula": Widening(3.0, 0.2, 20, 5)}


@given(st.lists(_DRAFTS, max_size=6))
def test_no_gain_of_any_rule_exceeds_what_it_names_however_wide_its_interval(drafts: list[Draft]) -> None:
    judged = replace(analysis(_ACCOUNTS, kernels=_ROWS), lines=_LINES, phases=_PHASES)
    for widenings in ({}, _WIDENINGS):
        check_gains(replace(judged, findings=rank(drafts, judged, None, widenings)))
