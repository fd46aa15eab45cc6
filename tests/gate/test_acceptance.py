from dataclasses import replace
from pathlib import Path

import pytest

from bottleneck.errors import TraceError, UsageError
from bottleneck.gate.acceptance import (
    Stamp,
    accept,
    chosen,
    describe_acceptance,
    describe_anchor,
    growth_words,
    last_path,
    read_last,
    with_anchor,
    write_last,
)
from bottleneck.gate.judge import is_red, judge_counts
from bottleneck.gate.lockfile import kept
from bottleneck.schema.counters import Acceptance, Anchor, Counts, Fingerprint, Lock, Site
from bottleneck.schema.gate_result import CounterChange, GateSettings, Limit

STAMP = Stamp("2026-09-30", "77aa01b", "one norm per head")
BEFORE = Counts(
    values={"ops": 200, "launches": 300, "syncs": 4, "peak_bytes": 1000},
    fingerprint=Fingerprint({"torch": "2.13"}),
    ops={"aten::mm": 100, "aten::add": 100},
    kernels={"gemm": 300},
    modules={"Net": {"ops": 50, "launches": 7}},
    sites=(Site("net.py", 3, "x = f(x)", {"ops": 200, "launches": 300}),),
    input_sha="aaaa",
)
AFTER = replace(
    BEFORE,
    values={"ops": 203, "launches": 308, "syncs": 2, "peak_bytes": 1500},
    ops={"aten::mm": 100, "aten::add": 103},
    kernels={"gemm": 300, "add": 8},
    modules={"Net": {"ops": 53, "launches": 15}},
    sites=(
        Site("net.py", 4, "x = f(x)", {"ops": 200, "launches": 300}, {"aten::mm": 100}),
        Site("net.py", 3, "x = x + 1", {"ops": 3, "launches": 8}, {"aten::add": 3}),
    ),
)
LOCK = Lock("net", ("net.py",), BEFORE)


def changes_of(lock: Lock = LOCK, counts: Counts = AFTER, **settings: object) -> tuple[CounterChange, ...]:
    return judge_counts(lock, counts, replace(GateSettings(), **settings))


def accepted(*metrics: str, lock: Lock = LOCK, counts: Counts = AFTER) -> Lock:
    return accept(lock, counts, chosen(changes_of(lock, counts), metrics), STAMP)


def test_all_that_is_broken_is_accepted_unless_metrics_are_named() -> None:
    assert {change.metric for change in chosen(changes_of(), ())} == {"ops", "launches", "peak_bytes"}
    assert [change.metric for change in chosen(changes_of(), ("launches",))] == ["launches"]


def test_after_accepting_all_nothing_is_red_and_nothing_more_to_accept() -> None:
    lock = accepted()
    assert not [change for change in changes_of(lock) if is_red(change)]
    assert chosen(changes_of(lock), ()) == ()
    assert lock.counts.sites == kept(Lock("", (), AFTER)).counts.sites
    assert (lock.counts.ops, lock.counts.modules, lock.counts.kernels) == (AFTER.ops, AFTER.modules, AFTER.kernels)


def test_accepting_one_metric_leaves_all_others_as_they_were() -> None:
    lock = accepted("launches")
    assert lock.counts.values == {**BEFORE.values, "launches": 308}
    assert lock.counts.modules == {"Net": {"ops": 50, "launches": 15}}
    assert lock.counts.ops == BEFORE.ops
    assert {site.text: dict(site.counts) for site in lock.counts.sites} == {
        "x = f(x)": {"ops": 200, "launches": 300},
        "x = x + 1": {"launches": 8},
    }
    assert {change.metric for change in changes_of(lock) if is_red(change)} == {"ops", "peak_bytes"}


def test_what_was_accepted_is_written_down_after_what_was_before() -> None:
    old = Acceptance("2026-01-01", "", "syncs", 3, 4, "logs")
    lock = accepted("launches", lock=replace(LOCK, accepted=(old,)))
    assert lock.accepted == (old, Acceptance("2026-09-30", "77aa01b", "launches", 300, 308, "one norm per head"))


def test_a_win_is_kept_where_it_is_named_and_not_by_itself() -> None:
    assert accepted().counts.values["syncs"] == 4
    assert accepted("syncs").counts.values["syncs"] == 2


def test_a_collapse_can_be_accepted() -> None:
    fused = replace(AFTER, values={**AFTER.values, "launches": 10})
    assert next(change for change in changes_of(counts=fused) if change.metric == "launches").verdict == "gone"
    assert accepted("launches", counts=fused).counts.values["launches"] == 10


def test_a_counter_that_is_not_counted_any_more_cannot_be_accepted() -> None:
    lost = replace(AFTER, values={"ops": 200}, unknown={"launches": "recorded without a device"})
    with pytest.raises(UsageError) as caught:
        chosen(changes_of(counts=lost), ("launches",))
    assert "recorded without a device" in caught.value.why


def test_a_new_counter_is_taken_without_an_acceptance() -> None:
    new = replace(AFTER, values={**AFTER.values, "graphs": 2})
    lock = accepted("graphs", counts=new)
    assert lock.counts.values["graphs"] == 2
    assert lock.accepted == ()


def test_what_varies_cannot_be_accepted() -> None:
    values = {name: value for name, value in AFTER.values.items() if name != "syncs"}
    shaky = replace(AFTER, values=values, unstable={"syncs": "5..7: steps differ"}, lowest={"syncs": 5})
    with pytest.raises(UsageError, match="varies from step to step"):
        accepted("syncs", counts=shaky)


def test_other_arguments_need_a_new_lock_file() -> None:
    with pytest.raises(UsageError, match="other arguments or settings"):
        accepted("ops", counts=replace(AFTER, input_sha="bbbb"))


@pytest.mark.parametrize(
    ("metric", "said"),
    [("step_ms", "is a time"), ("lanches", "no counter"), ("graph_breaks", "not among"), ("module:x.ops", "not among")],
)
def test_a_metric_that_cannot_be_accepted_says_why(metric: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        chosen(changes_of(), (metric,))


def test_a_metric_that_is_as_before_is_nothing_to_accept() -> None:
    assert chosen(changes_of(counts=BEFORE), ("ops",)) == ()


def test_a_module_alone_can_be_accepted() -> None:
    budgets = {"module:*.launches": Limit("module:*.launches", absolute=0)}
    changes = chosen(changes_of(budgets=budgets), ("module:Net.launches",))
    lock = accept(LOCK, AFTER, changes, STAMP)
    assert lock.counts.modules == {"Net": {"ops": 50, "launches": 15}}
    assert lock.counts.values == BEFORE.values
    assert lock.accepted[0].metric == "module:Net.launches"


def test_a_creep_is_not_accepted_but_told() -> None:
    lock = replace(LOCK, anchor=Anchor("v1.2", {"launches": 290}))
    creep = {"launches": Limit("launches", relative=0.05, text="+5%")}
    changes = changes_of(lock, creep=creep)
    moved = accept(lock, AFTER, chosen(changes, ()), STAMP)
    left = [change for change in changes_of(moved, creep=creep) if is_red(change)]
    assert [(change.metric, change.is_creep) for change in left] == [("launches", True)]
    text = describe_acceptance("a.toml", "net", chosen(changes, ("launches",)), left, STAMP)
    assert "still red: launches 290 to 308 per step (+18, +6.2 %) since v1.2" in text
    assert not [each for each in changes_of(with_anchor(moved, "v1.3"), creep=creep) if is_red(each)]


def test_what_is_given_up_is_reported_exactly() -> None:
    text = describe_acceptance(
        ".bottleneck/net.lock.toml", "net", chosen(changes_of(), ("launches", "syncs")), (), STAMP
    )
    assert "gives up: launches 300 to 308 per step (+8, +2.7 %)" in text
    assert "keeps: syncs 4 to 2 per step (-2, -50.0 %)" in text
    assert "one norm per head" in text
    assert "git add .bottleneck/net.lock.toml" in text


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (CounterChange("syncs", 0, 1, "broken"), "syncs 0 to 1 per step (+1)"),
        (CounterChange("h2d_bytes", 0, 12_600_000, "broken"), "h2d_bytes 0 to 12.6 MB per step (+12.6 MB)"),
        (CounterChange("graphs", None, 3, "new"), "graphs: 3 per step, new"),
    ],
)
def test_growth_is_reported_in_the_unit_of_the_counter(change: CounterChange, text: str) -> None:
    assert growth_words(change) == text


def test_a_new_anchor_tells_how_far_the_counters_have_come() -> None:
    text = describe_anchor("a.toml", LOCK, with_anchor(LOCK, "v1", {"launches": 290, "syncs": 4}))
    assert "creep counts from v1" in text
    assert "launches 290 to 300 per step (+10, +3.4 %) since" in text
    assert "syncs" not in text


def test_the_last_counts_are_read_as_they_were_written_and_git_ignores_them(tmp_path: Path) -> None:
    path = last_path(tmp_path, "net")
    write_last(path, AFTER)
    assert read_last(path) == AFTER
    assert (path.parent / ".gitignore").read_text().splitlines()[-1] == "*"


def test_where_nothing_can_be_written_the_gate_goes_on(tmp_path: Path) -> None:
    (tmp_path / ".bottleneck").write_text("")
    write_last(last_path(tmp_path, "net"), AFTER)
    assert (tmp_path / ".bottleneck").read_text() == ""


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b'{"values": 3}', b"[" * 100_000])
def test_a_file_that_holds_no_counts_is_reported(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(data)
    with pytest.raises(TraceError, match="holds no counts"):
        read_last(path)
