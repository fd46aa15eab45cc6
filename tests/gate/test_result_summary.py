"""The three lines of a failure: what happened, why with the line of code, how to fix or accept it."""

from bottleneck.gate.result_summary import with_summary
from bottleneck.report.ci.phrases import amount
from bottleneck.schema.comparison import Bar, ChangeRow, CompareSide, Comparison
from bottleneck.schema.counters import Site
from bottleneck.schema.gate_result import CounterChange, Culprit, GateVerdict, TimeResult, WorkloadResult
from bottleneck.schema.measurements import Ratio, Timing

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
    assert story.what == "syncs 0 -> 1, ops 1 204 -> 1 206 per step"
    assert story.why == ("+1 aten::item in head at train.py:57, changed here  total += loss.item()",)
    assert story.fix == 'undo that, or: bottleneck accept mlp --metric ops,syncs --reason "…"'


def test_lines_that_the_diff_touches_are_reported_before_others() -> None:
    other = Culprit("aten::add", 3, None, Site("old.py", 2, "x + y"), is_touched=False)
    unplaced = Culprit("aten::mul", 1)
    broken = CounterChange("ops", 1, 5, "broken", culprits=(unplaced, other))
    why = failure([broken, SYNC]).why
    assert [text.split(" at ")[0] for text in why] == ["+1 aten::item in head", "+3 aten::add", "+1 aten::mul"]


def test_a_slower_step_is_reported_with_its_interval_and_with_what_takes_longer() -> None:
    row = ChangeRow(
        "aten::copy_", "rope", None, None, "new", "nothing", 0, 24, 0.0, 1100.0, 1100.0, 0.0, "rope.py:88", True
    )
    less = ChangeRow("aten::mm", None, None, None, "faster", "op", 1, 1, 900.0, 800.0, 0.0, -100.0)
    sides = (CompareSide("base", "a", "cpu", 18200.0), CompareSide("this", "b", "cpu", 19600.0))
    bars = (Bar("memory", "memory", 18000.0, 19000.0), Bar("overhead.sync", "overhead", 200.0, 600.0))
    comparison = Comparison(*sides, bars=bars, rows=(row, less), idle=bars[1:])
    story = failure([], SLOW, comparison)
    assert story.what == "step 18.2 ms -> 19.6 ms, +7.6 % [+5.1 %, +9.9 %], budget 3.0 %"
    assert story.why == (
        "+1.10 ms aten::copy_ (new) in rope at rope.py:88, changed here",
        "+400 us overhead.sync",
    )
    assert "budget of step_us" in story.fix


def test_recordings_that_show_no_slowdown_name_no_cause_of_one() -> None:
    row = ChangeRow("aten::copy_", None, None, None, "new", "nothing", 0, 1, 0.0, 100.0, 100.0, 0.0)
    sides = (CompareSide("base", "a", "cpu", 3000.0), CompareSide("this", "b", "cpu", 2000.0))
    bars = (Bar("memory", "memory", 0.0, 100.0), Bar("overhead.python", "overhead", 3000.0, 1900.0))
    story = failure([], SLOW, Comparison(*sides, bars=bars, rows=(row,), idle=bars[1:]))
    assert story.why == ()
    assert story.fix.startswith("see what changed")


def test_a_slower_step_that_counts_more_needs_both_to_be_accepted() -> None:
    fix = failure([SYNC], SLOW).fix
    assert fix == ('undo that, or raise the budget of step_us and: bottleneck accept mlp --metric syncs --reason "…"')


def test_what_vanished_asks_for_a_look_at_the_workload() -> None:
    story = failure([CounterChange("flops", 10, None, "gone", reason="flops fell from 10 to nothing")])
    assert story.what == "flops: counted before, and no more"
    assert story.why == ("flops fell from 10 to nothing",)


def test_a_growth_that_rounding_would_hide_is_reported_exactly() -> None:
    broken = CounterChange("flops", 344_571_904, 344_571_968, "broken")
    assert failure([broken]).what == "flops 344 571 904 -> 344 571 968 per step"


def test_creep_is_not_accepted_by_its_metric() -> None:
    creep = CounterChange("launches", 300, 340, "broken", is_creep=True)
    story = failure([creep])
    assert story.what == "launches 300 -> 340 per step since the anchor"
    assert "--metric" not in story.fix


def test_amounts_are_exact_but_for_those_with_a_unit() -> None:
    assert amount("ops", 1234567) == "1 234 567"
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
    assert "accept" in told[0]
    assert told[1:] == ["undo that, or raise the budget in pyproject.toml", "name recordings of the same program"]
