"""Laws of the rules of bandwidth and compute, on the recordings of this repository."""

from itertools import chain
from pathlib import Path

import pytest

from bottleneck.advice import compilation, convolutions, fusion, matrix_products, precision, traffic
from bottleneck.schema.evidence import Evidence
from tests import trace_cache

SAMPLES = Path(__file__).parents[2] / "sample_traces"
MODULES = (fusion, traffic, precision, matrix_products, convolutions)
RULES = (*chain.from_iterable(module.RULES for module in MODULES), *compilation.ALTERNATIVES)


@pytest.fixture(scope="module", params=sorted(path.name for path in SAMPLES.iterdir() if path.is_dir()))
def case(request: pytest.FixtureRequest) -> Evidence:
    return trace_cache.evidence(SAMPLES / request.param)


def test_no_gain_exceeds_the_time_that_it_claims_or_the_step(case: Evidence) -> None:
    for draft in filter(None, (rule(case) for rule in RULES)):
        if draft.gain_us is None:
            assert draft.gain_reason, draft.slug
            continue
        assert 0 <= draft.gain_us.low <= draft.gain_us.high <= case.step_us * (1 + 1e-9), draft.slug
        assert draft.gain_us.high <= sum(draft.claims.values()) * (1 + 1e-9), draft.slug


def test_every_finding_has_evidence_and_one_sentence_of_advice(case: Evidence) -> None:
    for draft in filter(None, (rule(case) for rule in RULES)):
        assert draft.evidence
        assert all(line and "nan" not in line for line in draft.evidence), draft.evidence
        assert draft.advice.endswith("."), draft.slug
        assert draft.advice.count(". ") == 0, draft.slug


def test_the_same_case_gives_the_same_findings_again(case: Evidence) -> None:
    assert [rule(case) for rule in RULES] == [rule(case) for rule in RULES]


def test_what_the_samples_were_made_to_show_is_found() -> None:
    found = {
        name: {draft.slug for rule in RULES if (draft := rule(trace_cache.evidence(SAMPLES / name)))}
        for name in ("pointwise", "pointwise_fused", "matmul")
    }
    assert "unfused-chain" in found["pointwise"]
    assert "unfused-chain" not in found["pointwise_fused"]
    assert "near-roof" in found["matmul"]
