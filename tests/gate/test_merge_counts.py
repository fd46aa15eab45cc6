from dataclasses import replace

import pytest

from bottleneck.errors import UndecidedError
from bottleneck.gate.count_program import merge_counts
from bottleneck.schema.counters import Counts, Fingerprint, Site

ONE = Counts(
    values={"ops": 10, "syncs": 1},
    fingerprint=Fingerprint({"torch": "2.13"}, {"threads": 2}, {"cpu": "one"}),
    ops={"aten::set_": 8, "aten::add": 2},
    modules={"Net": {"ops": 10}, "Net.Linear": {"ops": 4}},
    sites=(Site("a.py", 3, "x", {"ops": 10, "syncs": 1}, {"aten::add": 2, "aten::set_": 8}),),
    input_sha="1234",
    steps=3,
)


def test_runs_that_agree_are_one_record_of_both() -> None:
    assert merge_counts([ONE, ONE]) == replace(ONE, runs=2)


def test_what_differs_between_runs_is_unstable_and_nowhere_else() -> None:
    site = replace(ONE.sites[0], counts={"ops": 12, "syncs": 1}, ops={"aten::add": 2, "aten::set_": 10})
    other = replace(
        ONE,
        values={"ops": 12, "syncs": 1},
        ops={"aten::set_": 10, "aten::add": 2},
        modules={"Net": {"ops": 10}, "Net.Linear": {"ops": 6}},
        sites=(site,),
    )
    merged = merge_counts([ONE, other])
    assert merged.values == {"syncs": 1} and merged.ops == {"aten::add": 2}
    assert merged.unstable == {"ops": "10..12: runs differ", "ops:aten::set_": "8..10: runs differ"}
    assert merged.lowest == {"ops": 10}
    assert merged.modules == {"Net": {"ops": 10}}
    assert merged.sites == (replace(site, counts={"syncs": 1}, ops={"aten::add": 2}),)


def test_a_counter_that_is_unstable_in_one_run_is_unstable_in_all() -> None:
    words = "9..10: steps differ (data-dependent)"
    shaky = replace(ONE, values={"syncs": 1}, unstable={"ops": words}, lowest={"ops": 9})
    assert merge_counts([ONE, shaky]).lowest == merge_counts([shaky, ONE]).lowest == {"ops": 9}
    assert merge_counts([ONE, shaky]).unstable["ops"] == "9..10: steps differ (data-dependent)"
    assert "ops" not in merge_counts([shaky, ONE]).values


def test_a_counter_that_only_some_runs_know_is_unstable() -> None:
    blind = replace(ONE, values={"syncs": 1}, unknown={"ops": "no shapes"})
    merged = merge_counts([ONE, blind])
    assert merged.unstable == {"ops": "no shapes: known in some runs only"} and merged.unknown == merged.lowest == {}
    assert merge_counts([blind, blind]).unknown == {"ops": "no shapes"}


@pytest.mark.parametrize(
    "other",
    [
        replace(ONE, fingerprint=replace(ONE.fingerprint, backend={"threads": 1})),
        replace(ONE, fingerprint=replace(ONE.fingerprint, portable={})),
        replace(ONE, input_sha="5678"),
    ],
    ids=["threads", "torch", "input"],
)
def test_runs_under_different_circumstances_are_not_merged(other: Counts) -> None:
    with pytest.raises(UndecidedError):
        merge_counts([ONE, other])


def test_the_host_may_differ() -> None:
    elsewhere = replace(ONE, fingerprint=replace(ONE.fingerprint, host={"cpu": "two"}))
    assert merge_counts([ONE, elsewhere]).runs == 2
