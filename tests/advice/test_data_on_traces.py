"""The rules on input, copies, memory and ranks find in recordings and public traces what an expert finds there."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bottleneck.advice import data_loading, distributed, machine, memory_capacity, transfers
from bottleneck.advice.ranking import Draft
from bottleneck.schema.evidence import Evidence
from tests import trace_cache

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"
RULES: tuple[Callable[[Evidence], Draft | None], ...] = (
    *data_loading.RULES,
    *transfers.RULES,
    *memory_capacity.RULES,
    *distributed.RULES,
    *machine.RULES,
)
NO_WORKERS = "pytorch+kineto__tb_plugin__samples__resnet50_num_workers_0__worker0.1623143566756.pt.trace.json.gz"
FOUR_WORKERS = "pytorch+kineto__tb_plugin__samples__resnet50_num_workers_4__worker0_at_7bd25bd.pt.trace.json.gz"
PINNED, PAGEABLE = "pytorch+benchmark__trace.json.gz", "pytorch+benchmark__trace3.json.gz"
SLEEPING_RANK = "pytorch+torchrec__examples__golden_training__trace__sst_sleep_*"
REMARKS = {"low-clocks", "busy-not-productive", "profiler-distorts", "incomplete-trace"}


def drafts_of(path: Path) -> tuple[Evidence, dict[str, Draft]]:
    case = trace_cache.evidence(path)
    drafts = [draft for rule in RULES if (draft := rule(case)) is not None]
    return case, {draft.slug: draft for draft in drafts}


def assert_bounded(case: Evidence, drafts: dict[str, Draft]) -> None:
    """Fails where a gain exceeds what it claims, a claim its account, or one of gain and reason is missing."""
    accounts = {entry.account: entry.us for entry in case.analysis.ledger}
    for slug, draft in drafts.items():
        assert (draft.gain_us is None) == bool(draft.gain_reason), slug
        assert (draft.gain_us is None) or slug not in REMARKS
        assert all(us <= accounts[name] * (1 + 1e-9) for name, us in draft.claims.items()), slug
        if draft.gain_us is not None and draft.claims:
            assert 0 <= draft.gain_us.low <= draft.gain_us.high <= sum(draft.claims.values()) * (1 + 1e-9), slug
        if draft.gain_us is not None:
            assert draft.gain_us.high <= case.step_us, slug


@pytest.mark.parametrize("sample", sorted(path.name for path in SAMPLES.iterdir() if path.is_dir()))
def test_no_gain_exceeds_the_time_that_it_comes_from(sample: str) -> None:
    assert_bounded(*drafts_of(SAMPLES / sample))


@pytest.mark.parametrize("name", [NO_WORKERS, FOUR_WORKERS, PINNED, PAGEABLE])
def test_no_gain_of_a_public_trace_exceeds_the_time_that_it_comes_from(traces: Path, name: str) -> None:
    assert_bounded(*drafts_of(traces / name))


def test_a_loader_without_workers_is_found_and_one_with_four_is_not(traces: Path) -> None:
    case, found = drafts_of(traces / NO_WORKERS)
    bound, workers = found["input-wait"].gain_us, found["loader-without-workers"].gain_us
    assert bound is not None and 0.2 < bound.high / case.step_us < 0.25
    assert workers is not None and workers.high <= bound.high
    assert not {"input-wait", "loader-without-workers"} & drafts_of(traces / FOUR_WORKERS)[1].keys()


def test_copies_that_fill_the_link_already_are_worth_nothing(traces: Path) -> None:
    case, found = drafts_of(traces / PAGEABLE)
    pinned, beside = found["pageable-copies"].gain_us, found["copies-not-overlapped"].gain_us
    assert pinned is not None and beside is not None
    # Half of the step are results that are copied back, which only pinning spares.
    assert 0.3 < beside.high / case.step_us < 0.5 < pinned.high / case.step_us < 0.8
    assert found["copies-not-overlapped"].remedies == ("pageable-copies",)
    # The same program with pinned memory: the copies take the whole step, so none of them can be hidden.
    assert not {"pageable-copies", "copies-not-overlapped"} & drafts_of(traces / PINNED)[1].keys()


def test_the_rank_that_sleeps_is_named_with_what_it_does(traces: Path) -> None:
    paths = sorted(traces.glob(SLEEPING_RANK))
    findings = {each.slug: each for each in trace_cache.analysed(*paths).findings}
    late = findings["late-rank"]
    assert "rank 2" in late.title and any("Python between ops" in line for line in late.evidence)
    assert late.predicted_speedup is not None and late.predicted_speedup.high > 5
    assert "exposed-communication" not in findings
