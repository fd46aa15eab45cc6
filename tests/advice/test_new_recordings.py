"""Advice to record anew: where a trace shows something else than its program at work, and nowhere else."""

from pathlib import Path

import pytest

from bottleneck.advice import advise
from bottleneck.advice.new_recordings import with_new_recording
from bottleneck.advice.ranking import Draft
from bottleneck.pipeline import examine
from bottleneck.schema.analysis import Caveat, CollectiveSummary, Interval
from bottleneck.schema.evidence import Evidence, TwoSided
from bottleneck.schema.finding_order import SURE_FINDINGS
from bottleneck.schema.records import replace
from bottleneck.schema.sources import find_traces
from tests.advice.cases import case_of, cpu_events, with_analysis, with_ledger
from tests.advice.test_pages import all_slugs
from tests.builders import Event, launch, op, step, write_trace
from tests.builders import kernel as kernel_of
from tests.report.samples import kernel

_SMALL = Draft("half-precision", "Products", (), "Lower it.", Interval(10.0, 20.0), {"compute": 20.0})


def advised(case: Evidence, *drafts: Draft) -> list[tuple[str, str]]:
    """The slugs and the advice of the drafts, first to last."""
    return [(draft.slug, draft.advice) for draft in with_new_recording(case, drafts)]


def case(folder: Path, *caveats: Caveat, bound: str = "overhead") -> Evidence:
    """A step of 100 us, 90 of them in one account of the bound, with these caveats only."""
    account = {"overhead": "overhead.python", "inconclusive": "unknown"}.get(bound, bound)
    made = with_ledger(case_of(folder, cpu_events(10, 3, 8)), {account: 90.0, "memory": 10.0})
    return replace(made, analysis=replace(made.analysis, caveats=caveats), bound=bound)


def test_a_window_of_work_that_is_done_once_is_recorded_later(tmp_path: Path) -> None:
    (anew, other) = advised(case(tmp_path, Caveat("one-off", "one call takes 60 % of the window", 0.6)), _SMALL)
    assert anew == ("record-anew", "Record later steps, after warm-up: one call takes 60 % of the window.")
    assert other[0] == "half-precision"


def capturing(folder: Path, *launches: int) -> Evidence:
    """Captures of so many launches, each with a replay behind it."""
    events = [op("aten::x", 0, 1_000 * len(launches))]
    for number, count in enumerate(launches):
        at, first = 1_000 * number, 100 * number
        events += [
            launch(first, at + 10, 1, "cudaStreamBeginCapture"),
            *(launch(first + entered, at + 20 + entered, 0.5) for entered in range(1, count + 1)),
            launch(first + 98, at + 800, 1, "cudaStreamEndCapture"),
            launch(first + 99, at + 810, 5, "cudaGraphLaunch"),
            kernel_of(first + 99, at + 820, 5),
        ]
    made = case_of(folder, events)
    return replace(made, analysis=replace(made.analysis, caveats=(Caveat("graph-capture", "captured"),)))


def test_a_graph_that_is_captured_in_each_step_is_told_to_be(tmp_path: Path) -> None:
    """Three of five timed calls captured their graph again, in 210 ms, where a replay took 2 ms."""
    (again,) = with_new_recording(capturing(tmp_path / "again", 40, 40, 40), [])
    assert "again" in again.title and "cudagraph_mark_step_begin" in again.advice
    assert again.evidence[1] == "a graph of 40 launches is captured 3 times, and replayed 3 times in all"
    for name, launches in (("once", (40,)), ("sizes", (40, 30, 20))):
        (once,) = with_new_recording(capturing(tmp_path / name, *launches), [])
        assert once.title == "The window captures a graph that later steps replay" and once.evidence == ("captured",)


@pytest.mark.parametrize("first", ["device-allocations", "python-call"])
@pytest.mark.parametrize(
    ("slug", "share", "is_left_out"), [("one-off", 0.9, True), ("graph-capture", 1.0, True), ("one-off", 0.1, False)]
)
def test_what_first_steps_do_is_no_advice_beside_later_ones(
    tmp_path: Path, slug: str, share: float, is_left_out: bool, first: str
) -> None:
    """43 s of start-up and first calls promised 1.3 to 2.5 s of each step for the memory that was taken in them."""
    drafts = [_SMALL, replace(_SMALL, slug=first)]
    listed = [name for name, _ in advised(case(tmp_path, Caveat(slug, "it is done once", share)), *drafts)]
    assert (first not in listed) == is_left_out
    assert "half-precision" in listed


@pytest.mark.parametrize("caveat", [Caveat("one-off", "a tenth", 0.1), Caveat("clock-skew", "all of it", 1.0)])
def test_a_smaller_part_or_another_limit_of_a_sound_trace_does_not_come_first(tmp_path: Path, caveat: Caveat) -> None:
    assert advised(case(tmp_path, caveat), _SMALL) == [("half-precision", "Lower it.")]


def test_a_trace_that_lacks_a_part_is_recorded_again(tmp_path: Path) -> None:
    broken = case(tmp_path, Caveat("kernels-missing", "half of the launches have no kernel"), bound="inconclusive")
    again = "Record it again, and let prof.step() mark some whole steps after warm-up."
    assert advised(broken, _SMALL)[0] == ("record-anew", again)


def test_a_file_that_was_cut_off_is_called_that_before_what_it_lacks(tmp_path: Path) -> None:
    lacks = Caveat("no-device-events", "the file was cut off before any work of its device")
    cut_off = case(tmp_path, Caveat("truncated", "the file ends inside an event"), lacks, bound="inconclusive")
    assert advised(cut_off)[0][1] == "Record it again, and let the program end by itself."
    assert with_new_recording(cut_off, [])[0].evidence[0] == "the file ends inside an event"


def test_what_says_the_same_of_a_trace_with_less_is_left_out(tmp_path: Path) -> None:
    broken = case(tmp_path, Caveat("kernels-missing", "half of the launches have no kernel"), bound="inconclusive")
    same = replace(_SMALL, slug="incomplete-trace", gain_us=None)
    assert [slug for slug, _ in advised(broken, _SMALL, same)] == ["record-anew", "half-precision"]
    assert [slug for slug, _ in advised(case(tmp_path / "whole"), _SMALL, same)] == [
        "half-precision",
        "incomplete-trace",
    ]


def test_what_holds_whatever_the_step_is_stays_before_it(tmp_path: Path) -> None:
    broken = case(tmp_path, Caveat("kernels-missing", "half of the launches have no kernel"), bound="inconclusive")
    leading = replace(_SMALL, slug="device-held-back", gain_us=None, comes_first=True)
    assert [slug for slug, _ in advised(broken, _SMALL, leading)] == [
        "device-held-back",
        "record-anew",
        "half-precision",
    ]


def test_beside_other_programs_what_the_program_does_comes_before_a_new_recording(tmp_path: Path) -> None:
    loaded = case(tmp_path, Caveat("disturbed-profile", "other programs used the processors"), bound="inconclusive")
    assert advised(loaded, _SMALL)[0] == ("record-anew", "Record it again while nothing else runs.")
    loader = replace(_SMALL, slug="loader-without-workers", advice="Set num_workers=4.")
    drafts = with_new_recording(loaded, [_SMALL, loader])
    assert [draft.slug for draft in drafts] == ["loader-without-workers", "half-precision"]
    assert drafts[0].comes_first
    assert "record-anew" not in dict(advised(replace(loaded, bound="memory"), _SMALL))


def test_findings_that_hold_under_load_are_findings() -> None:
    assert SURE_FINDINGS - all_slugs() == set()


def undecided(folder: Path, reason: str | None) -> Evidence:
    """A step whose only kernel has no cost, for this reason."""
    row = replace(kernel("odd", 90.0, 100.0), bound="unknown", reason_code=reason)
    made = case(folder, bound="inconclusive")
    return replace(made, analysis=replace(made.analysis, kernels=(row,)))


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("no_shapes", "record_shapes=True"),
        ("no_peaks", "--peaks"),
        ("graph_launch", "without graphs"),
        ("launched_before", "begin before"),
        ("outside_op", "through an op"),
        ("no_strides", "2.3 or later"),
        ("no_tensor_argument", "2.3 or later"),
    ],
)
def test_advice_for_unmodelled_work_follows_the_reason_for_the_missing_cost(
    tmp_path: Path, reason: str, advice: str
) -> None:
    assert advice in advised(undecided(tmp_path, reason))[0][1]


@pytest.mark.parametrize("reason", ["no_formula", "no_indices", None])
def test_no_recording_is_asked_for_that_would_show_no_more(tmp_path: Path, reason: str | None) -> None:
    assert advised(undecided(tmp_path, reason), _SMALL) == [("half-precision", "Lower it.")]


def test_one_rank_that_waits_for_others_is_looked_at_beside_them(tmp_path: Path) -> None:
    alone = case(tmp_path, Caveat("one-rank", "one of 8"), bound="communication")
    small, large = (replace(_SMALL, gain_us=Interval(low, 60.0)) for low in (44.0, 46.0))
    assert "traces of all ranks" in advised(alone, small)[0][1]
    assert advised(alone, large)[0][0] == "half-precision"
    assert advised(case(tmp_path, bound="communication"), small)[0][0] == "half-precision"


@pytest.mark.parametrize(("wait_us", "first"), [(1.0, "half-precision"), (40.0, "record-anew")])
def test_one_rank_whose_calls_take_alike_shows_that_it_does_not_wait(
    tmp_path: Path, wait_us: float, first: str
) -> None:
    alone = case(tmp_path, Caveat("one-rank", "one of 8"), bound="communication")
    gathers = CollectiveSummary(
        "all_gather", "bf16", 8, 4.0, 90.0, 90.0, 1e9, None, transfer_us=90.0 - wait_us, wait_us=wait_us, reason=None
    )
    assert advised(with_analysis(alone, collectives=(gathers,)), _SMALL)[0][0] == first


def test_parts_of_a_window_are_reported_by_themselves_unless_they_are_one_step(tmp_path: Path) -> None:
    parted = replace(case(tmp_path), sides=TwoSided(0.57, 0.0, 0.964))
    assert "--window A:B" in advised(parted, _SMALL)[0][1]
    one_step = replace(parted, sides=TwoSided(0.57, 0.0, 0.964, is_one_step=True))
    assert advised(one_step, _SMALL)[0][0] == "half-precision"


def test_work_that_cannot_be_modelled_is_recorded_with_more_only_where_nothing_gains(tmp_path: Path) -> None:
    busy = replace(undecided(tmp_path, "no_shapes"), bound="device")
    assert advised(busy, _SMALL)[-1][0] == "half-precision"
    last = with_new_recording(busy, [replace(_SMALL, gain_us=Interval(0.0, 1.0))])[-1]
    assert "record_shapes=True" in last.advice and not last.comes_first
    hope = replace(_SMALL, slug="needless-copies", gain_us=Interval(0.0, 0.1 * busy.step_us))
    assert with_new_recording(busy, [hope])[-1].slug == "record-anew"
    assert with_new_recording(busy, [replace(hope, slug="host-sync")])[-1].slug == "host-sync"
    assert advised(replace(undecided(tmp_path, "no_formula"), bound="device")) == []


def test_idle_time_of_which_nothing_is_told_asks_for_the_host_unless_that_was_recorded(tmp_path: Path) -> None:
    silent = with_ledger(case(tmp_path), {"overhead.unknown": 60.0, "memory": 40.0})
    assert silent.linked.places is not None
    assert advised(silent)[0][1].startswith("Record it again while nothing else runs")
    without_frames = replace(silent, linked=replace(silent.linked, places=None))
    assert advised(without_frames)[0][1].startswith("Record the host too")
    assert advised(with_ledger(silent, {"overhead.unknown": 40.0, "memory": 60.0})) == []


@pytest.mark.parametrize(("op_us", "asks"), [(62.0, True), (85.0, False)])
def test_a_trace_without_python_calls_is_recorded_anew_where_much_is_python(
    tmp_path: Path, op_us: float, asks: bool
) -> None:
    """A replay buffer of Python objects: a third of the step in stretches too short to be calls, and no advice."""
    events: list[Event] = []
    for number in range(3):
        at = 1000.0 * number
        events.append(step(number, at, 999))
        for call, name in enumerate(
            ["sort", "cumsum", "mm", "topk", "index_add", "cdist", "gather", "sort", "mm", "cumsum"]
        ):
            events.append(op(f"aten::{name}", at + 2 + 100.0 * call, op_us, dims=[[64, 64 + call], [64 + call, 64]]))
    (source,) = find_traces(write_trace(tmp_path / "trace.json", events, deviceProperties=[]))
    findings = advise(examine(source))
    first = findings[0] if findings else None
    assert (first is not None and first.advice.startswith("Record with Python calls")) == asks


def test_a_recording_with_next_to_nothing_in_it_is_to_be_made_of_whole_steps(tmp_path: Path) -> None:
    events = [kernel_of(1, 100, 50), op("record_param_comms", 200, 100)]
    (anew,) = with_new_recording(case_of(tmp_path / "two", events), [])
    assert (anew.slug, anew.advice) == (
        "record-anew",
        "Record three steps or more after warm-up, with sizes: profile(record_shapes=True).",
    )
    # The device and its host take turns: the part of the window that is judged is the host's.
    assert anew.evidence == ("1 op and 0 kernels in the window",)
    many = [kernel_of(1, 100, 50), *(op("aten::add", 200 + 10 * number, 5) for number in range(20))]
    assert with_new_recording(case_of(tmp_path / "many", many), []) == []
