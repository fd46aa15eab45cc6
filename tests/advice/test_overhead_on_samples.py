"""The rules of overhead on the sample recordings: the findings of each, and no gain beyond its accounts."""

import math

import pytest

from bottleneck.advice import compilation, dispatch, host, optimizers, process, small_steps
from bottleneck.advice.ranking import Draft
from bottleneck.schema.evidence import Evidence
from tests import trace_cache
from tests.samples import SAMPLES

MODULES = (dispatch, optimizers, small_steps, host, compilation, process)
EXPECTED = {
    "mlp": {"larger-batch", "small-network", "compile-does-not-pay", "threads-for-small-work"},
    "train_script": {"unfused-optimizer", "compile-does-not-pay", "threads-for-small-work"},
    "transformer": {"unfused-optimizer"},
    "slow_loader": set(),
    "pointwise": set(),
    "pointwise_fused": set(),
    "matmul": set(),
}


def drafts_of(name: str) -> tuple[Evidence, tuple[Draft, ...]]:
    case = trace_cache.evidence(SAMPLES / name)
    drafts = (rule(case) for module in MODULES for rule in module.RULES)
    return case, tuple(draft for draft in drafts if draft is not None)


@pytest.mark.parametrize("name", EXPECTED)
def test_each_sample_gets_the_findings_that_fit_it(name: str) -> None:
    assert {draft.slug for draft in drafts_of(name)[1]} == EXPECTED[name]


@pytest.mark.parametrize("name", EXPECTED)
def test_no_gain_exceeds_what_it_is_taken_from(name: str) -> None:
    case, drafts = drafts_of(name)
    for draft in drafts:
        assert (draft.gain_us is None) == (draft.gain_reason is not None), draft.slug
        for account, claim in draft.claims.items():
            assert claim <= case.account_us(account) * (1 + 1e-9), (draft.slug, account)
        if draft.gain_us is not None:
            assert 0 <= draft.gain_us.low <= draft.gain_us.high <= math.fsum(draft.claims.values()) * (1 + 1e-9)
