"""The difference of step times that two recordings of the same code may show, and what the sentence says of it."""

import pytest

from bottleneck.compare.build import compare
from bottleneck.compare.sides import ComparedSide
from bottleneck.compare.time_floor import DEVICE_ROWS, SAME_CODE, describe_floor, find_floor, row_floor
from bottleneck.schema.analysis import CONTENDED, Caveat
from bottleneck.schema.comparison import TimeFloor
from bottleneck.schema.counters import Counts, Fingerprint
from bottleneck.schema.gate_result import TimeResult
from bottleneck.schema.measurements import Ratio
from bottleneck.schema.records import replace
from tests.compare.sides import side, stepped, work
from tests.report.samples import XEON

USUAL, BUSY = SAME_CODE["measured elsewhere"], SAME_CODE["measured elsewhere, busy"]


def recorded(us: float, half_width: float = 0.003, **more: object) -> ComparedSide:
    """A side on a CPU whose step takes this long, and varies by so much."""
    return stepped(side([work("aten::mm", us)], device=XEON, **more), half_width)


def with_caveat(one: ComparedSide, slug: str) -> ComparedSide:
    assert one.analysis is not None
    return replace(one, saved=replace(one.analysis, caveats=(Caveat(slug, "said"),)))


def with_windows(one: ComparedSide, *us: float) -> ComparedSide:
    assert one.analysis is not None
    return replace(one, saved=replace(one.analysis, steps=replace(one.analysis.steps, windows_us=us)))


def turned(low: float, high: float) -> TimeResult:
    return TimeResult("undecided", ratio=Ratio((low + high) / 2, low, high, 7))


def floor_of(before: ComparedSide, after: ComparedSide, timed: TimeResult | None = None) -> TimeFloor:
    found = find_floor(before, after, timed)
    assert found is not None
    return found


def test_steps_that_agree_within_a_run_do_not_tell_two_runs_apart() -> None:
    found = floor_of(recorded(1000.0), recorded(1000.0 * (1 - USUAL / 2)))
    assert found.is_within and found.share == USUAL and found.basis == "measured elsewhere"
    assert not floor_of(recorded(1000.0), recorded(1000.0 * (1 - 2 * USUAL))).is_within


def test_steps_that_vary_more_than_that_make_the_floor() -> None:
    found = floor_of(recorded(1000.0, 0.3), recorded(600.0, 0.4))
    assert found.is_within and found.share == pytest.approx(0.5) and found.basis == "steps"


@pytest.mark.parametrize(("new_us", "is_within"), [(1795.0, True), (1805.0, False), (205.0, True)])
def test_the_change_is_held_against_the_floor_as_it_is_shown(new_us: float, is_within: bool) -> None:
    assert floor_of(recorded(1000.0, 0.8), recorded(new_us)).is_within is is_within


def test_windows_of_a_recording_that_lie_apart_make_the_floor() -> None:
    apart = with_windows(recorded(1000.0), 1300.0, 1000.0, 9000.0)
    assert floor_of(apart, recorded(1000.0)).share == pytest.approx(0.3)
    assert floor_of(with_windows(recorded(1000.0), 1300.0), recorded(1000.0)).share == USUAL


def test_other_programs_raise_the_floor() -> None:
    found = floor_of(recorded(1000.0), with_caveat(recorded(700.0), CONTENDED))
    assert found.is_within and found.share == BUSY


def test_turns_tell_what_recordings_one_by_one_cannot() -> None:
    sides = recorded(1000.0), recorded(1020.0)
    assert not floor_of(*sides, turned(1.01, 1.03)).is_within
    assert floor_of(*sides, turned(0.99, 1.03)).is_within
    assert floor_of(*sides, TimeResult("not run", "a script")).basis == "measured elsewhere"


def test_rows_of_a_device_repeat_better_than_the_step() -> None:
    rows = [work("aten::mm", 1000.0)]
    assert row_floor(side(rows), side(rows)) == DEVICE_ROWS
    assert row_floor(recorded(1000.0), recorded(1000.0)) == USUAL


def test_the_first_sentence_says_that_a_small_difference_does_not_tell() -> None:
    said = compare(recorded(1000.0), recorded(950.0)).sentence
    assert said == (
        "The step takes 50.0 us (5.0 %) less; two recordings of the same code differ by up to about "
        f"{100 * USUAL:.0f} %, so the two may be equally fast."
    )


def test_the_first_sentence_holds_the_floor_of_a_large_difference_too() -> None:
    first = compare(recorded(1000.0), recorded(1500.0)).sentence.partition(". ")[0]
    assert "more, where two recordings of the same code differ by up to about" in first


def test_turns_are_said_with_their_interval() -> None:
    said = compare(recorded(1000.0), recorded(1020.0), timed=turned(0.99, 1.03)).sentence
    assert "7 pairs of processes that took turns show 1.0 % less to 3.0 % more, so the two may be equally fast" in said


def test_exact_counters_come_before_times() -> None:
    counted = [Counts({"ops": 9, "syncs": syncs, "launches": 3}, Fingerprint()) for syncs in (4, 5)]
    comparison = compare(*(recorded(us, counts=counts) for us, counts in zip((1000.0, 1500.0), counted, strict=True)))
    assert comparison.sentence.startswith("Syncs 4 → 5 per step; the step takes 500 us (50.0 %) more")


def test_a_floor_in_words_names_what_it_rests_on() -> None:
    assert describe_floor(TimeFloor(BUSY, "measured elsewhere, busy", True)).endswith("beside other programs")
    assert "about" not in describe_floor(TimeFloor(0.123, "steps", True))
