import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck.gate.judge import (
    exit_code,
    is_compared,
    is_red,
    judge_counts,
    sentence_of,
    verdict_of,
    with_accepted,
    with_summary,
)
from bottleneck.report.ci.phrases import amount
from bottleneck.schema.comparison import Bar, ChangeRow, CompareSide, Comparison
from bottleneck.schema.counters import COUNTERS, Acceptance, Anchor, Counts, Fingerprint, Lock, Site
from bottleneck.schema.gate_result import (
    Cause,
    CounterChange,
    CounterVerdict,
    Culprit,
    Fix,
    GateSettings,
    GateVerdict,
    Limit,
    TimeResult,
    TimeVerdict,
    WorkloadResult,
)
from bottleneck.schema.measurements import Ratio, Timing
from bottleneck.schema.records import replace

HERE = Fingerprint({"torch": "2.13", "backend": "cuda"}, {"device": "H100", "sm_count": 132}, {"cpu": "Xeon"})
COUNTS = Counts(
    values={"ops": 200, "launches": 300, "syncs": 0, "flops": 1000, "peak_bytes": 1_000_000},
    fingerprint=HERE,
    modules={"Net.Linear": {"launches": 9, "ops": 20}, "Net.Head": {"launches": 1}},
    input_sha="aaaa",
)


def lock_of(counts: Counts = COUNTS, anchor: Anchor | None = None, accepted: tuple[Acceptance, ...] = ()) -> Lock:
    return Lock("net", ("net.py",), counts, anchor, accepted)


def counted(**values: int | None) -> Counts:
    """The counts with other values; a counter of None is not counted."""
    changed = {**COUNTS.values, **values}
    return replace(COUNTS, values={name: value for name, value in changed.items() if value is not None})


def judge(counts: Counts, lock: Lock | None = None, **settings: object) -> dict[str, CounterChange]:
    changes = judge_counts(lock or lock_of(), counts, replace(GateSettings(), **settings))
    return {f"creep {change.metric}" if change.is_creep else change.metric: change for change in changes}


def verdicts(changes: dict[str, CounterChange]) -> set[str]:
    return {change.verdict for change in changes.values()}


def test_the_same_counts_are_the_same() -> None:
    assert verdicts(judge(COUNTS)) == {"same"}


@pytest.mark.parametrize("name", ["ops", "launches", "syncs", "flops"])
def test_one_more_of_anything_portable_is_red_and_one_less_is_not(name: str) -> None:
    more, less = judge(counted(**{name: COUNTS.values[name] + 1})), judge(counted(**{name: COUNTS.values[name] - 1}))
    assert [metric for metric, change in more.items() if is_red(change)] == [name]
    assert not [metric for metric, change in less.items() if is_red(change)]
    if COUNTS.values[name]:
        assert less[name].verdict == "improved"


def test_memory_has_one_percent() -> None:
    assert judge(counted(peak_bytes=1_010_000))["peak_bytes"].verdict == "within budget"
    assert judge(counted(peak_bytes=1_010_001))["peak_bytes"].verdict == "broken"


def test_a_budget_of_the_settings_replaces_the_usual_one() -> None:
    budgets = {"launches": Limit("launches", absolute=2)}
    assert judge(counted(launches=302), budgets=budgets)["launches"].verdict == "within budget"
    assert judge(counted(launches=303), budgets=budgets)["launches"].verdict == "broken"
    assert judge(counted(ops=201), budgets=budgets)["ops"].verdict == "broken"


def test_another_torch_compares_nothing_and_says_which_and_what_to_do() -> None:
    other = replace(counted(ops=1), fingerprint=replace(HERE, portable={"torch": "2.12", "backend": "cuda"}))
    changes = judge(COUNTS, lock_of(other))
    assert verdicts(changes) == {"not compared"}
    assert not is_compared(list(changes.values()))
    reason = changes["ops"].reason or ""
    assert "of torch 2.12, this is torch 2.13" in reason
    assert "gate --update" in reason


def test_a_fact_that_one_side_lacks_is_a_difference() -> None:
    other = replace(COUNTS, fingerprint=replace(HERE, portable={"backend": "cuda"}))
    assert "unknown torch" in (judge(COUNTS, lock_of(other))["ops"].reason or "")


def test_another_device_leaves_only_the_portable_counters() -> None:
    other = replace(COUNTS, fingerprint=replace(HERE, backend={"device": "A100", "sm_count": 108}))
    changes = judge(counted(peak_bytes=9_000_000), lock_of(other))
    assert changes["peak_bytes"].verdict == "not compared"
    assert "device A100, sm_count 108, this is device H100" in (changes["peak_bytes"].reason or "")
    assert changes["ops"].verdict == "same"
    assert is_compared(list(changes.values()))


def test_another_host_compares_everything() -> None:
    other = replace(COUNTS, fingerprint=replace(HERE, host={"cpu": "EPYC"}))
    assert verdicts(judge(COUNTS, lock_of(other))) == {"same"}


def test_other_arguments_never_pass_in_silence_and_never_hide_growth() -> None:
    other = replace(counted(launches=301, ops=150), input_sha="bbbb")
    changes = judge(other)
    assert changes["launches"].verdict == "broken"
    assert changes["ops"].verdict == "not compared"
    assert changes["syncs"].verdict == "not compared"
    assert all("arguments or settings" in (change.reason or "") for change in changes.values())
    assert not is_compared(list(judge(replace(COUNTS, input_sha="bbbb")).values()))


def test_unknown_arguments_compare_everything() -> None:
    assert verdicts(judge(replace(COUNTS, input_sha=""))) == {"same"}


def test_what_calibration_found_unstable_is_never_gated() -> None:
    shaky = replace(counted(syncs=None), unstable={"syncs": "0..2: runs differ"})
    for counts in (COUNTS, counted(syncs=50), counted(syncs=None), shaky):
        change = judge(counts, lock_of(shaky))["syncs"]
        assert (change.verdict, change.reason) == ("unstable", "0..2: runs differ")


def test_what_varies_only_now_is_red_where_even_its_lowest_is_beyond_the_budget() -> None:
    low = replace(counted(syncs=None), unstable={"syncs": "0..2: steps differ"}, lowest={"syncs": 0})
    high = replace(counted(syncs=None), unstable={"syncs": "1..2: steps differ"}, lowest={"syncs": 1})
    assert judge(low)["syncs"].verdict == "unstable"
    assert "exact before" in (judge(low)["syncs"].reason or "")
    assert (judge(high)["syncs"].verdict, judge(high)["syncs"].after) == ("broken", 1)


def test_a_counter_without_a_lowest_value_is_only_unstable_whatever_its_words_say() -> None:
    odd = replace(counted(syncs=None), unstable={"syncs": "9..10: known in some runs only"})
    assert judge(odd)["syncs"].verdict == "unstable"


def test_a_counter_that_vanished_is_an_error_with_the_reason() -> None:
    gone = replace(counted(flops=None), unknown={"flops": "recorded without shapes"})
    change = judge(gone)["flops"]
    assert (change.verdict, change.reason) == ("gone", "recorded without shapes")
    assert is_red(change)


def test_what_neither_side_knows_is_reported_and_not_gated() -> None:
    unknown = replace(COUNTS, unknown={"recompiles": "nothing was compiled"})
    change = judge(unknown, lock_of(unknown))["recompiles"]
    assert (change.verdict, change.reason) == ("not compared", "nothing was compiled")


def test_a_counter_without_baseline_is_new() -> None:
    change = judge(counted(graphs=3))["graphs"]
    assert (change.verdict, change.before, change.after) == ("new", None, 3)
    assert not is_red(change)


def test_without_a_lock_file_all_is_new() -> None:
    changes = judge_counts(None, COUNTS, GateSettings())
    assert {change.metric for change in changes} == set(COUNTS.values)
    assert {change.verdict for change in changes} == {"new"}
    assert not is_compared(changes)


@pytest.mark.parametrize(("launches", "verdict"), [(0, "gone"), (149, "gone"), (150, "improved"), (299, "improved")])
def test_less_than_half_of_what_must_exist_is_a_broken_measurement(launches: int, verdict: str) -> None:
    change = judge(counted(launches=launches))["launches"]
    assert change.verdict == verdict
    assert ("collapsed" in (change.reason or "")) == (verdict == "gone")


def test_no_more_syncs_are_a_win() -> None:
    assert judge(counted(syncs=0), lock_of(counted(syncs=40)))["syncs"].verdict == "improved"


def test_small_steps_that_add_up_are_red_against_the_anchor() -> None:
    creep = {"launches": Limit("launches", relative=0.1, text="+10%")}
    budgets = {"launches": Limit("launches", absolute=5)}
    lock = lock_of(counted(launches=328), Anchor("v1.2", {"launches": 300}))
    inside = judge(counted(launches=330), lock, creep=creep, budgets=budgets)
    beyond = judge(counted(launches=331), lock, creep=creep, budgets=budgets)
    assert inside["creep launches"].verdict == "within budget"
    assert beyond["launches"].verdict == "within budget"
    assert beyond["creep launches"].verdict == "broken"
    assert (beyond["creep launches"].before, beyond["creep launches"].reason) == (300, "since v1.2")


@pytest.mark.parametrize("anchor", [None, Anchor("v1", {"ops": 1})])
def test_a_creep_budget_without_its_anchor_says_so(anchor: Anchor | None) -> None:
    change = judge(COUNTS, lock_of(anchor=anchor), creep={"launches": Limit("launches")})["creep launches"]
    assert change.verdict == "not compared"
    assert "--anchor" in (change.reason or "")


MODULES = {"module:Net.*.launches": Limit("module:Net.*.launches", absolute=2)}


def test_each_module_of_a_pattern_is_held_to_its_limit() -> None:
    grown = replace(COUNTS, modules={"Net.Linear": {"launches": 12}, "Net.Head": {"launches": 3}})
    changes = judge(grown, budgets=MODULES)
    assert changes["module:Net.Linear.launches"].verdict == "broken"
    assert changes["module:Net.Head.launches"].verdict == "within budget"


def test_a_module_that_is_new_counts_from_nothing() -> None:
    grown = replace(COUNTS, modules={**COUNTS.modules, "Net.Norm": {"launches": 3}})
    change = judge(grown, budgets=MODULES)["module:Net.Norm.launches"]
    assert (change.before, change.after, change.verdict) == (0, 3, "broken")


def test_a_pattern_that_matches_no_module_holds_nothing_and_says_so() -> None:
    change = judge(COUNTS, budgets={"module:Nat.*.launches": Limit("x")})["module:Nat.*.launches"]
    assert (change.verdict, change.reason) == ("not compared", "no module matches Nat.*")


def test_a_limit_of_modules_on_what_the_step_does_not_count_says_so() -> None:
    host = replace(counted(launches=None), unknown={"launches": "a CPU runs no kernels that are launched"})
    change = judge(host, lock_of(host), budgets=MODULES)["module:Net.*.launches"]
    assert (change.verdict, change.reason) == ("not compared", "a CPU runs no kernels that are launched")


def test_what_says_most_comes_first() -> None:
    changes = judge_counts(lock_of(), counted(ops=202, launches=301, syncs=1, flops=900), GateSettings())
    assert [change.metric for change in changes[:3]] == ["syncs", "ops", "launches"]


def test_an_acceptance_since_the_base_is_reported() -> None:
    row = Acceptance("2026-09-30", "77aa01b", "launches", 290, 300, "a norm per head")
    base, lock = lock_of(counted(launches=290)), lock_of(accepted=(row,))
    changes = with_accepted(judge_counts(lock, COUNTS, GateSettings()), lock, base)
    accepted = next(change for change in changes if change.verdict == "accepted")
    assert (accepted.metric, accepted.before, accepted.after, accepted.reason) == (
        "launches",
        290,
        300,
        "a norm per head",
    )


def test_without_an_edit_since_the_base_nothing_counts_as_accepted() -> None:
    changes = judge_counts(lock_of(), COUNTS, GateSettings())
    assert with_accepted(changes, lock_of(), lock_of()) == changes
    assert with_accepted(changes, lock_of(), None) == changes


def test_a_lock_file_that_was_edited_without_a_reason_is_reported() -> None:
    changes = judge_counts(lock_of(), COUNTS, GateSettings())
    told = {row.metric: row for row in with_accepted(changes, lock_of(), lock_of(counted(launches=290)))}
    assert (told["launches"].verdict, told["launches"].before) == ("accepted", 290)
    assert "without a reason" in (told["launches"].reason or "")
    assert told["ops"].verdict == "same"


numbers = st.dictionaries(st.sampled_from(sorted(COUNTERS)), st.integers(0, 10**6))


@given(before=numbers, after=numbers)
def test_every_counter_has_one_verdict_and_only_growth_or_loss_is_red(
    before: dict[str, int], after: dict[str, int]
) -> None:
    old, new = replace(COUNTS, values=before), replace(COUNTS, values=after)
    changes = judge_counts(lock_of(old), new, GateSettings())
    assert sorted(change.metric for change in changes) == sorted({*before, *after})
    for change in changes:
        if is_red(change) and change.before is not None and change.after is not None and change.verdict == "broken":
            assert change.after > change.before
        if change.verdict == "same":
            assert change.after == change.before
    assert judge_counts(lock_of(old), old, GateSettings()) == tuple(
        change for change in judge_counts(lock_of(old), old, GateSettings()) if change.verdict == "same"
    )


def change(verdict: CounterVerdict) -> CounterChange:
    return CounterChange("ops", 1, 2, verdict)


@pytest.mark.parametrize(
    ("counters", "time", "verdict"),
    [
        (["same"], None, "pass"),
        (["same", "improved", "within budget", "accepted"], "fine", "pass"),
        (["same", "broken"], "fine", "fail"),
        (["same"], "slower", "fail"),
        (["broken", "gone"], "slower", "nothing measured"),
        (["same"], "undecided", "undecided"),
        (["same"], "not run", "pass"),
        (["same"], "advisory", "pass"),
        (["broken"], "undecided", "fail"),
        ([], "fine", "pass"),
        ([], "faster", "pass"),
        ([], "not run", "nothing measured"),
        ([], "advisory", "nothing measured"),
        (["new", "not compared", "unstable"], None, "nothing measured"),
        ([], None, "nothing measured"),
    ],
)
def test_the_verdict_is_that_of_the_worst_that_was_seen(
    counters: list[CounterVerdict], time: TimeVerdict | None, verdict: GateVerdict
) -> None:
    found = verdict_of([change(each) for each in counters], None if time is None else TimeResult(time))
    assert found == verdict


def result(verdict: GateVerdict, *, is_new: bool = False, time: TimeVerdict | None = None) -> WorkloadResult:
    timed = None if time is None else TimeResult(time)
    return WorkloadResult(verdict, (), verdict, verdict, is_new=is_new, time=timed)


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        (["pass"], 0),
        (["pass", "fail", "failed", "undecided"], 1),
        (["pass", "failed", "nothing measured"], 4),
        (["pass", "nothing measured"], 5),
        (["undecided", "pass"], 0),
        ([], 5),
    ],
)
def test_a_regression_comes_before_a_crash_and_a_crash_before_what_is_open(
    verdicts: list[GateVerdict], code: int
) -> None:
    assert exit_code([result(each) for each in verdicts], GateSettings()) == code


def test_the_settings_decide_on_what_is_undecided_or_new() -> None:
    lax, firm = GateSettings(on_new="warn"), GateSettings(on_undecided="fail", on_new="fail")
    for each in (result("undecided"), result("nothing measured", is_new=True), result("pass", is_new=True)):
        assert exit_code([each], lax) == 0
        assert exit_code([each], firm) == 5


def test_a_new_workload_passes_by_default_only_if_something_was_measured() -> None:
    assert exit_code([result("pass", is_new=True)], GateSettings()) == 0
    assert exit_code([result("nothing measured", is_new=True)], GateSettings()) == 5


def test_a_regression_of_a_new_workload_is_red_all_the_same() -> None:
    assert exit_code([result("fail", is_new=True)], GateSettings()) == 1


def test_strict_lets_nothing_pass_that_was_not_measured() -> None:
    for each in (result("undecided"), result("pass", is_new=True), result("pass", time="not run")):
        assert exit_code([each], GateSettings(), is_strict=True) == 5
    uncounted = replace(result("pass", time="fine"), counters=(change("not compared"), change("unstable")))
    assert exit_code([uncounted], GateSettings(), is_strict=True) == 5
    counted = replace(uncounted, counters=(change("not compared"), change("same")))
    for each in (counted, result("pass", time="fine")):
        assert exit_code([each], GateSettings(), is_strict=True) == 0


def test_the_sentence_names_what_did_not_pass() -> None:
    one, two = result("fail"), replace(result("pass"), name="mlp")
    assert sentence_of([one, two], 1) == "1 of 2 workloads regressed: fail; 1 workload passed."
    assert sentence_of([one], 1) == "fail regressed."
    assert sentence_of([two], 0) == "mlp passed."
    assert "let pass" in sentence_of([result("undecided"), two], 0)
    assert sentence_of([], 5) == "No workload was gated."


SITE = Site("train.py", 57, "total += loss.item()")
SYNC = CounterChange("syncs", 0, 1, "broken", culprits=(Culprit("aten::item", 1, "head", SITE, is_touched=True),))
OPS = CounterChange("ops", 1204, 1206, "broken", culprits=(Culprit("aten::item", 1, "head", SITE, is_touched=True),))
SLOW = TimeResult(
    "slower",
    ratio=Ratio(1.076, 1.051, 1.099, 14),
    base_us=Timing(18200.0, 18000.0, 18400.0, 14),
    candidate_us=Timing(19600.0, 19500.0, 19700.0, 14),
    budget=0.03,
)


def failure(
    counters: list[CounterChange], time: TimeResult | None = None, comparison: Comparison | None = None
) -> WorkloadResult:
    """A workload that fails for these changes, with its three lines."""
    changes = tuple(counters)
    return with_summary(
        WorkloadResult(
            "mlp", ("mlp.py",), "fail", "", lock="mlp.lock.toml", counters=changes, time=time, comparison=comparison
        )
    )


def test_a_sync_is_reported_with_its_line_once_though_two_counters_changed() -> None:
    story = failure([SYNC, OPS])
    assert story.what == "syncs 0 to 1, ops 1,204 to 1,206 per step"
    assert story.why == (Cause("+1 aten::item in head at train.py:57, changed here", "total += loss.item()"),)
    assert story.fix == Fix("undo that, or:", 'bottleneck accept mlp --metric ops,syncs --reason "…"')


def test_lines_that_the_diff_touches_are_reported_before_others() -> None:
    other = Culprit("aten::add", 3, None, Site("old.py", 2, "x + y"), is_touched=False)
    unplaced = Culprit("aten::mul", 1)
    broken = CounterChange("ops", 1, 5, "broken", culprits=(unplaced, other))
    why = failure([broken, SYNC]).why
    assert [(cause.sentence, cause.code) for cause in why] == [
        ("+1 aten::item in head at train.py:57, changed here", "total += loss.item()"),
        ("+3 aten::add at old.py:2", "x + y"),
        ("+1 aten::mul", ""),
    ]


def test_a_slower_step_is_reported_with_its_interval_and_with_what_takes_longer() -> None:
    row = ChangeRow(
        "aten::copy_", "rope", None, None, "new", "nothing", 0, 24, 0.0, 1100.0, 1100.0, 0.0, "rope.py:88", True
    )
    less = ChangeRow("aten::mm", None, None, None, "faster", "op", 1, 1, 900.0, 800.0, 0.0, -100.0)
    sides = (CompareSide("base", "a", "cpu", 18200.0), CompareSide("this", "b", "cpu", 19600.0))
    bars = (Bar("memory", "memory", 18000.0, 19000.0), Bar("overhead.sync", "overhead", 200.0, 600.0))
    comparison = Comparison(*sides, bars=bars, rows=(row, less), idle=bars[1:])
    story = failure([], SLOW, comparison)
    assert story.what == "step 18.2 ms to 19.6 ms, +7.6 % (+5.1 % to +9.9 %), budget 3.0 %"
    assert story.why == (
        Cause("+1.10 ms aten::copy_ (new) in rope at rope.py:88, changed here"),
        Cause("+400 us overhead.sync"),
    )
    assert "budget of step_us" in story.fix.sentence


def test_recordings_that_show_no_slowdown_name_no_cause_of_one() -> None:
    row = ChangeRow("aten::copy_", None, None, None, "new", "nothing", 0, 1, 0.0, 100.0, 100.0, 0.0)
    sides = (CompareSide("base", "a", "cpu", 3000.0), CompareSide("this", "b", "cpu", 2000.0))
    bars = (Bar("memory", "memory", 0.0, 100.0), Bar("overhead.python", "overhead", 3000.0, 1900.0))
    story = failure([], SLOW, Comparison(*sides, bars=bars, rows=(row,), idle=bars[1:]))
    assert story.why == ()
    assert story.fix.sentence.startswith("see what changed")


def test_a_slower_step_that_counts_more_needs_both_to_be_accepted() -> None:
    fix = failure([SYNC], SLOW).fix
    assert fix.sentence == "undo that, or raise the budget of step_us and:"
    assert fix.command == 'bottleneck accept mlp --metric syncs --reason "…"'


def test_what_vanished_asks_for_a_look_at_the_workload() -> None:
    story = failure([CounterChange("flops", 10, None, "gone", reason="flops fell from 10 to nothing")])
    assert story.what == "flops: counted before, and no more"
    assert story.why == (Cause("flops fell from 10 to nothing"),)
    assert story.fix.command == "bottleneck gate --update"
    collapsed = failure([CounterChange("ops", 40, 3, "gone", reason="ops collapsed")])
    assert collapsed.fix.command == 'bottleneck accept mlp --metric ops --reason "…"'


def test_what_vanished_hides_no_counter_that_is_over_its_budget() -> None:
    changes = (CounterChange("flops", 100, 800, "broken"), CounterChange("ops", 40, 0, "gone", reason="ops collapsed"))
    result = WorkloadResult("now", ("now.json",), "nothing measured", "", counters=changes)
    assert with_summary(result).what == "ops: counted before, and no more; over budget: flops 100 to 800 per step"
    assert sentence_of([result], 5) == "now remained unmeasured; over budget all the same: flops 100 to 800 per step."
    other = replace(result, name="other", counters=changes[1:])
    assert sentence_of([result, other], 5) == (
        "2 of 2 workloads remained unmeasured: now, other; over budget in now: flops 100 to 800 per step."
    )


def test_advice_on_recordings_names_no_lock_file() -> None:
    gone = (CounterChange("ops", 40, 0, "gone", reason="ops collapsed"),)
    result = with_summary(WorkloadResult("now", ("now.json",), "nothing measured", "", counters=gone))
    assert "both are recordings of the same program" in result.fix.sentence and not result.fix.command
    before = replace(lock_of(), program=())
    elsewhere = replace(COUNTS, fingerprint=Fingerprint({"torch": "9.9"}), input_sha="2")
    reasons = {change.reason or "" for change in judge_counts(before, elsewhere, GateSettings())}
    assert any(reason.startswith("the recording before is of") for reason in reasons)
    assert not any("lock-file" in reason or "bottleneck" in reason for reason in reasons)


def test_a_growth_that_rounding_would_hide_is_reported_exactly() -> None:
    broken = CounterChange("flops", 344_571_904, 344_571_968, "broken")
    assert failure([broken]).what == "flops 344,571,904 to 344,571,968 per step"


def test_creep_is_not_accepted_by_its_metric() -> None:
    creep = CounterChange("launches", 300, 340, "broken", is_creep=True)
    story = failure([creep])
    assert story.what == "launches 300 to 340 per step since the anchor"
    assert story.fix == Fix("see what changed: bottleneck compare, or move the anchor in the lock-file")


def test_amounts_are_exact_but_for_those_with_a_unit() -> None:
    assert amount("ops", 1234567) == "1,234,567"
    assert amount("flops", 344571904) == "345 MFLOP"
    assert amount("h2d_bytes", 512) == "512"
    assert amount("module:decoder.0.launches", 31) == "31"
    assert amount("syncs", None) == "-"


def test_recordings_have_no_lock_file_to_accept_in() -> None:
    stands: tuple[tuple[GateVerdict, str], ...] = (("fail", "a.lock.toml"), ("fail", ""), ("nothing measured", ""))
    told = [
        with_summary(WorkloadResult("now", ("now.json",), verdict, "", counters=(SYNC,), lock=lock)).fix
        for verdict, lock in stands
    ]
    assert "accept" in told[0].command
    assert [(fix.sentence, fix.command) for fix in told[1:]] == [
        ("undo that, or raise the budget in pyproject.toml", ""),
        ("name recordings of the same program", ""),
    ]


def test_a_counter_that_was_taken_out_of_the_lock_file_is_red_whatever_the_machine() -> None:
    values = {name: value for name, value in COUNTS.values.items() if name != "syncs"}
    lock = replace(lock_of(replace(COUNTS, values=values)), counted=tuple(COUNTS.values))
    elsewhere = replace(COUNTS, fingerprint=Fingerprint({"torch": "9.9"}))
    for counts in (COUNTS, elsewhere):
        change = judge(counts, lock)["syncs"]
        assert change.verdict == "removed" and is_red(change) and "took it out" in (change.reason or "")
        assert verdict_of((change,), None) == "fail"
    listed_nowhere = replace(lock, counted=tuple(values))
    assert judge(COUNTS, listed_nowhere)["syncs"].verdict == "new"


def test_a_removed_counter_is_named_with_the_command_that_counts_it_anew() -> None:
    removed = CounterChange("syncs", None, 2, "removed", reason="somebody took it out")
    told = with_summary(WorkloadResult("net", ("net.py",), "fail", "", counters=(removed,), lock="net.lock.toml"))
    assert told.what == "syncs: taken out of the lock-file" and "--metric syncs" in told.fix.command
