"""The fuzz harness: its cases repeat, and a sample of them ends without a crash."""

import json
import random
from pathlib import Path

import pytest

from benchmarks.fuzz import inputs_of, mutate_bytes, mutate_tree, run_case

TREE = {
    "traceEvents": [{"ph": "X", "name": "aten::mm", "args": {"Input Dims": [[8, 8], [8, 8]]}}] * 3,
    "schemaVersion": 1,
}

# (seed, case) of cases that ended with exit code 70 once; none did so far.
ONCE_FAILED: tuple[tuple[int, int], ...] = ()


def test_a_seed_gives_the_same_mutation_again() -> None:
    trees, texts = ([], [])
    for _ in range(2):
        chance = random.Random("1:5")
        trees.append(json.dumps(mutate_tree(json.loads(json.dumps(TREE)), chance)))
        texts.append(mutate_bytes(b"some text", chance))
    assert trees[0] == trees[1] and texts[0] == texts[1]
    changed = [json.dumps(mutate_tree(json.loads(json.dumps(TREE)), random.Random(each))) for each in range(20)]
    assert len({*changed, json.dumps(TREE)}) > 15


@pytest.mark.process
def test_a_sample_of_cases_ends_without_a_crash(tmp_path: Path) -> None:
    inputs = inputs_of(None)
    cases = [*ONCE_FAILED, *((7, number) for number in range(12))]
    outcomes = [run_case(seed, number, inputs) for seed, number in cases]
    assert {outcome.status for outcome in outcomes} <= {0, 1, 2, 3, 4, 5}, outcomes
    assert not any(outcome.status == 70 for outcome in outcomes)
