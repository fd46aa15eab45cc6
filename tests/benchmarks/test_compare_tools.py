"""Our figures in the comparison of tools are those by hand, and the table says what the tools really say."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.compare_cases import CASES, LIVE, ON_TRACES, TRACES, Case
from benchmarks.compare_tools import (
    Amounts,
    Compared,
    by_hand,
    compare,
    counted,
    estimated,
    fails_on,
    ours,
    page,
    recorded_event,
)

# torch says so of ops that it calls experimental, and of profiling without a GPU.
pytestmark = pytest.mark.filterwarnings("ignore")
NOWHERE = Path("nowhere")


def title(case: Case) -> str:
    return case.title


def check_ours(case: Case, folder: Path) -> None:
    """FLOPs as by hand; bytes too, at one end of the interval where a call leaves them open."""
    hand, found = by_hand(case), ours(case, recorded_event(case, folder), folder)
    if hand.flops is not None:
        assert found.flops == pytest.approx(hand.flops, rel=1e-9)
    assert hand.low in (pytest.approx(found.low, rel=1e-9), pytest.approx(found.high, rel=1e-9))


@pytest.mark.parametrize("case", LIVE, ids=title)
def test_our_cost_of_a_live_call_is_that_by_hand(case: Case) -> None:
    check_ours(case, NOWHERE)


@pytest.mark.parametrize("case", ON_TRACES, ids=title)
def test_our_cost_in_a_public_trace_is_that_by_hand(case: Case, traces: Path) -> None:
    check_ours(case, traces)


@pytest.mark.parametrize("case", [case for case in ON_TRACES if case.published != (None, None)], ids=title)
def test_published_bytes_of_tracelens_are_those_by_hand_or_the_verdict_says_what_is_missing(case: Case) -> None:
    _, mib = case.published or (None, None)
    assert mib is not None
    agrees = mib * 2**20 == pytest.approx(by_hand(case).low, rel=1e-4)
    assert agrees != ("TraceLens leaves out" in case.verdict or "TraceLens takes it for" in case.verdict)


def of(title_part: str) -> Case:
    return next(case for case in CASES if title_part in case.title)


def test_what_the_verdicts_say_of_torchs_counter_is_what_it_counts() -> None:
    def factor(part: str) -> float:
        case = of(part)
        return (counted(case).flops or 0.0) / (by_hand(case).flops or 1.0)

    assert factor("in 4 groups") == pytest.approx(2.5)
    assert factor("depthwise") == pytest.approx(32.5)
    assert factor("causal flash attention") == pytest.approx(1.967, abs=0.001)
    assert factor("causal attention on a CPU") == factor("mv, ") == 0
    assert factor("mm, [1024, 768]") == factor("transposed") == 1


def test_what_the_verdicts_say_of_profile_analysis_is_what_it_estimates() -> None:
    def estimate(part: str) -> tuple[Amounts, Amounts]:
        case = of(part)
        return estimated(recorded_event(case, NOWHERE)), by_hand(case)

    def bytes_factor(part: str) -> float:
        theirs, hand = estimate(part)
        return (theirs.low or 0.0) / (hand.low or 1.0)

    assert bytes_factor("mm, [1024, 768]") == pytest.approx(2)
    assert bytes_factor("baddbmm") == pytest.approx(1 / 8, rel=0.01)
    assert bytes_factor("7x7") == pytest.approx(29, abs=0.5)
    assert estimate("in 4 groups")[0].error == "IndexError"
    transposed, hand = estimate("transposed")
    assert 4 * (transposed.flops or 0) == hand.flops


def test_profile_analysis_ends_on_flash_attention_and_not_on_the_other_trace(traces: Path) -> None:
    assert fails_on(traces / TRACES["bert-small"]) == "AttributeError"
    assert fails_on(traces / TRACES["timesformer"]) is None


def test_a_row_shows_errors_intervals_and_what_was_never_printed() -> None:
    case = replace(of("embedding"), published=None)
    theirs = Amounts(None, 2e6, 2e6, "IndexError")
    text = page([Compared(case, by_hand(case), Amounts(0.0, 1e6, 2e6), Amounts(0.0), theirs, None)], {"x": "KeyError"})
    row = text.splitlines()[-1]
    assert "| 0 GFLOP; 1 to 2 MB |" in row
    assert "| 2 MB; IndexError | not printed |" in row
    assert "does not get through x (KeyError)" in text


def test_there_are_twenty_calls_and_more_half_of_them_from_public_h100_traces() -> None:
    assert len(CASES) >= 20
    assert 2 * len(ON_TRACES) >= len(CASES)
    assert compare(LIVE[0], NOWHERE).case is LIVE[0]
