"""What other programs made longer is taken off: each op counts as its quickest call with the same sizes."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck.analysis.ledger import LedgerResult, build_ledger, ledger_of
from bottleneck.analysis.load import (
    Load,
    find_load,
    is_beside_load,
    quick_stretches,
    quicken,
    without_load,
    without_stalls,
)
from bottleneck.pipeline import examine, finish
from bottleneck.report.analysis_document import to_terminal
from bottleneck.schema.analysis import LOAD_TAKEN_OFF, TelemetrySummary
from bottleneck.schema.linked_trace import Linked
from bottleneck.schema.measurements import Timing
from bottleneck.schema.recording import Recording
from bottleneck.schema.records import replace
from bottleneck.schema.sources import find_traces
from tests.advice.cases import two_steps
from tests.analysis.scenes import Event, Kernel, Op, Scene
from tests.builders import op

BUSY = TelemetrySummary(
    9, None, None, None, None, None, (), host_utilization=1.0, process_processors=1.0, other_processors=1.0
)
RECORDING = Recording(
    created="2026-01-02T03:04:05+00:00",
    command=("train.py",),
    form="workload",
    step_source="workload",
    program_status=0,
    framework="PyTorch 2.13.0",
    versions={},
    environment={},
    traces=(),
    threads=2,
    processors=2,
)
CALM_US = (4.0, 40.0, 4.0, 40.0, 9.0, 4.0)
KINDS = np.array([0, 1, 0, 1, 2, 0])


def scene(durations_us: Sequence[float], floor_us: Sequence[float] = (2.0, 10.0, 2.0, 10.0, 3.0, 2.0)) -> Scene:
    """Ops of three kinds, one after another, with 1 us between them, two to a step."""
    bounds = ("compute", "memory", "compute", "memory", "memory", "compute")
    ops, at_us = [], 0.0
    for name, us, least_us, bound in zip(
        ("mm", "add", "mm", "add", "mul", "mm"), durations_us, floor_us, bounds, strict=True
    ):
        ops.append(Op(at_us, us, f"aten::{name}", bound, roofline={"explained": least_us / us}))
        at_us += us + 1.0
    return Scene(at_us, ops=ops, events=[Event("annotation", "train", 0, at_us)], steps=3)


def explained(case: Scene) -> tuple[Linked, LedgerResult]:
    linked = quicken(case.linked(), KINDS, case.roofline())
    return linked, without_load(build_ledger(case.linked(), case.roofline()), linked, Load("waits", 1.04, 2))


@given(
    longer_us=st.lists(st.floats(0.0, 1e6), min_size=6, max_size=6),
    spared=st.tuples(st.sampled_from([0, 2, 5]), st.sampled_from([1, 3])),
)
def test_calls_that_waited_count_as_the_quickest_of_their_kind(longer_us: list[float], spared: tuple[int, int]) -> None:
    beside = [0.0 if at in spared else longer for at, longer in enumerate(longer_us)]
    loaded = scene([us + longer for us, longer in zip(CALM_US, beside, strict=True)])
    quick_us = quicken(loaded.linked(), KINDS, loaded.roofline()).kernels["dur_us"].tolist()
    assert quick_us[:4] + quick_us[5:] == pytest.approx([4.0, 40.0, 4.0, 40.0, 4.0])
    # The only call of its kind: floors are a quarter of the quickest calls of its bound, and it took no longer.
    assert quick_us[4] == pytest.approx(min(3.0 / 0.25, 9.0 + beside[4]))


@given(st.lists(st.floats(1.0, 1e6), min_size=6, max_size=6))
def test_no_call_gets_longer_or_shorter_than_its_floor(durations_us: list[float]) -> None:
    floors_us = [0.5 * us for us in durations_us]
    case = scene(durations_us, floors_us)
    quick_us = quicken(case.linked(), np.full(6, -1), case.roofline()).kernels["dur_us"].to_numpy()
    assert np.all(quick_us <= np.array(durations_us) * (1 + 1e-12))
    assert np.all(quick_us >= np.array(floors_us) * (1 - 1e-12))


@pytest.mark.parametrize("most", [0.0, 0.1, 0.5])
def test_no_more_is_taken_off_than_the_system_counted_as_waits(most: float) -> None:
    """A sort of 13 ms, of which a model knows 0.15 ms, was called waiting while its thread worked all the time."""
    case = scene((4.0, 9000.0, 4.0, 8000.0, 9.0, 4.0))
    before, after = case.linked(), quicken(case.linked(), KINDS, case.roofline(), most)
    taken_us = (before.kernels["dur_us"] - after.kernels["dur_us"]).to_numpy()
    assert taken_us.sum() == pytest.approx(most * before.window.wall_us) and (taken_us >= 0).all()


def test_an_op_all_of_whose_calls_waited_has_its_floor_by_the_rate_of_others() -> None:
    case = scene((4.0, 9000.0, 4.0, 8000.0, 9.0, 4.0), (2.0, 10.0, 2.0, 10.0, 3.0, 2.0))
    quick_us = quicken(case.linked(), KINDS, case.roofline()).kernels["dur_us"].tolist()
    assert quick_us[1::2][:2] == pytest.approx([10.0, 10.0])  # no other op of its bound tells a rate
    small = scene((4.0, 900.0, 4.0, 800.0, 9.0, 4.0), (2.0, 10.0, 2.0, 10.0, 3.0, 2.0))
    kept_us = quicken(small.linked(), KINDS, small.roofline()).kernels["dur_us"].tolist()
    assert kept_us[1::2][:2] == pytest.approx([800.0, 800.0])  # shorter than a turn of another program: slow by itself


def test_the_ledger_without_load_adds_up_and_says_what_was_taken_off() -> None:
    quiet, loaded = scene(CALM_US), scene((4.0, 540.0, 54.0, 40.0, 9.0, 4.0))
    _, result = explained(loaded)
    amounts = {entry.account: entry.us for entry in result.ledger.entries}
    expected = {entry.account: entry.us for entry in build_ledger(quiet.linked(), quiet.roofline()).ledger.entries}
    assert amounts == pytest.approx(expected)
    assert sum(amounts.values()) == pytest.approx(result.ledger.wall_us, rel=1e-12)
    (caveat,) = result.caveats
    assert caveat.slug == LOAD_TAKEN_OFF and caveat.share == pytest.approx(550 / 657)
    assert (
        "other programs kept 1.0 of 2 processors busy: at least 183 of 219 us per step were waits for them; these"
        in caveat.message
    )


def test_rows_and_accounts_agree_without_load() -> None:
    linked, result = explained(scene((4.0, 540.0, 54.0, 40.0, 9.0, 4.0)))
    assert result.kernel_us.tolist() == pytest.approx(linked.kernels["dur_us"].tolist())


def test_idle_time_in_an_account_of_ops_is_not_shortened_with_them() -> None:
    # Two ops waited; the sleep between them, which the same account holds here, did not.
    ops = [Op(0, 10, bound="dispatch"), Op(70, 40, bound="dispatch")]
    case = Scene(110, ops=ops, events=[Event("annotation", "train", 0, 110)], steps=1)
    result = build_ledger(case.linked(), case.roofline())
    (ops_account,) = {entry.account for entry in result.ledger.entries} - {"overhead.python"}
    idle = result.idle.assign(cause=ops_account.removeprefix("overhead."))
    mixed = replace(result, ledger=ledger_of({ops_account: 110.0}, 110.0), idle=idle)
    linked = case.linked()
    quick = replace(linked, kernels=linked.kernels.assign(dur_us=10.0))
    alone = without_load(mixed, quick, Load("waits", 1.04, 2))
    assert {entry.account: entry.us for entry in alone.ledger.entries} == {ops_account: pytest.approx(80.0)}
    assert alone.idle["us"].sum() == 60.0 and alone.kernel_us.tolist() == [10.0, 10.0]


def test_python_between_ops_takes_the_quickest_time_of_any_step() -> None:
    # Three steps of 100 us with one op at 50 us; in the second the process waited 30 us before it.
    ops = [Op(start, 10, "aten::add", roofline={"explained": 0.5}) for start in (50, 180, 250)]
    case = Scene(300, ops=ops, events=[Event("annotation", "train", 0, 300)], steps=3)
    stretches = quick_stretches(case.linked())
    assert stretches is not None and stretches.us.tolist() == [50, 10]


def test_calls_that_others_held_up_are_left_out_of_the_ledger() -> None:
    result = build_ledger(scene(CALM_US).linked(), scene(CALM_US).roofline())
    held_us = {entry.account: entry.us for entry in result.ledger.entries}["overhead.python"]
    entries = tuple(
        replace(entry, account="overhead.stall") if entry.account == "overhead.python" else entry
        for entry in result.ledger.entries
    )
    idle = result.idle.assign(cause=result.idle["cause"].replace("python", "stall"))
    held = replace(result, ledger=replace(result.ledger, entries=entries), idle=idle)
    own = without_stalls(held)
    assert own.ledger.wall_us == pytest.approx(result.ledger.wall_us - held_us)
    assert {entry.account for entry in own.ledger.entries} == {"compute", "memory"}
    assert not own.idle["us"].any()


@pytest.mark.parametrize(
    ("telemetry", "threads", "processors", "is_loaded"),
    [
        (BUSY, 2, 2, True),
        (replace(BUSY, host_utilization=None, process_processors=None), 2, 2, True),  # steps too short for the counters
        (replace(BUSY, process_processors=1.9), 2, 2, False),  # it got what it wanted
        (replace(BUSY, host_utilization=0.8), 2, 2, False),  # a processor was free
        (replace(BUSY, other_processors=0.3), 2, 2, False),
        (replace(BUSY, other_processors=None), 2, 2, False),
        (BUSY, 1, 2, False),  # one processor for each
        (replace(BUSY, process_processors=0.7, other_processors=1.3), 1, 2, True),
        (replace(BUSY, process_waits=1.0), 2, 2, True),
        (replace(BUSY, process_waits=0.1), 2, 2, False),  # it kept one thread busy, and had a processor for it
        # Of steps too short for the counters, the seconds around them tell.
        (replace(BUSY, process_processors=None, waited_share=0.02), 2, 2, False),
        (replace(BUSY, process_processors=None, waited_share=0.3), 2, 2, True),
        # On one processor of many, with somebody else on it.
        (replace(BUSY, host_utilization=0.3, process_processors=0.5, process_waits=0.5), 1, 1, True),
        (replace(BUSY, process_waits=1.0, other_processors=0.0), 2, 2, False),
        # Four threads wait for one another.
        (replace(BUSY, process_waits=3.0, process_processors=1.9, other_processors=0.1), 4, 2, False),
        (None, 2, 2, False),
        (BUSY, None, 2, False),
        (BUSY, 2, None, False),
    ],
)
def test_load_is_what_others_took_of_the_processors_that_the_threads_wanted(
    telemetry: TelemetrySummary | None, threads: int | None, processors: int | None, is_loaded: bool
) -> None:
    assert is_beside_load(telemetry, threads, processors) is is_loaded


@pytest.mark.parametrize(
    ("unprofiled", "kind"),
    [
        (Timing(193.0, 189.0, 196.0, 268), "stalls"),
        (Timing(193.0, 189.0, 400.0, 268), "waits"),
        (Timing(9300.0, 9200.0, 9400.0, 20), "waits"),
        (None, "waits"),
    ],
)
def test_the_median_of_short_steady_steps_is_the_programs_own(unprofiled: Timing | None, kind: str) -> None:
    assert find_load(BUSY, RECORDING, scene(CALM_US).linked(), unprofiled) == Load(kind, 1.0, 2)


def test_load_takes_nothing_off_a_program_on_a_device_or_a_bare_trace() -> None:
    on_device = Scene(100, [Kernel(0, 30, launch=(-9, 2))], events=[Event("annotation", "train", 0, 100)]).linked()
    assert find_load(BUSY, RECORDING, on_device, None) == Load()
    counted = replace(BUSY, waited_share=0.3)
    assert find_load(counted, RECORDING, scene(CALM_US).linked(), None) == Load("waits", 1.0, 2, pytest.approx(0.45))
    assert find_load(BUSY, None, scene(CALM_US).linked(), None) == Load()
    assert find_load(None, RECORDING, scene(CALM_US).linked(), None) == Load()
    rank = replace(scene(CALM_US), more={"rank": 1, "world_size": 2}).linked()
    assert find_load(BUSY, RECORDING, rank, None) == Load()


PRODUCT_US, SUM_US = 600.0, 60.0


def step_of(product_us: float, sums_us: Sequence[float]) -> list[dict[str, object]]:
    """A product and two sums of the same sizes."""
    events = [op("aten::mm", 0.0, product_us, dims=[[256, 256], [256, 256]])]
    at_us = product_us + 5
    for us in sums_us:
        events.append(op("aten::add", at_us, us, dims=[[512, 512], [512, 512], []]))
        at_us += us + 5
    return events


def test_a_step_beside_load_gets_the_verdict_of_a_quiet_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = finish(two_steps(tmp_path / "quiet", step_of(PRODUCT_US, (SUM_US, SUM_US)), 800.0)).analysis
    monkeypatch.setattr("bottleneck.pipeline.read_telemetry", lambda *_: (BUSY, ()))
    # In one sum of each step the threads waited longer than the product takes.
    two_steps(tmp_path / "loaded", step_of(PRODUCT_US, (SUM_US, 2460.0)), 3200.0, threads=2, processors=2)
    evidence = examine(find_traces(tmp_path / "loaded")[0])
    loaded = finish(evidence).analysis
    assert (quiet.verdict.bound, loaded.verdict.bound) == ("compute", "compute")
    work_us = {entry.account: entry.us for entry in loaded.ledger if entry.group != "overhead"}
    assert work_us == pytest.approx({entry.account: entry.us for entry in quiet.ledger if entry.group != "overhead"})
    assert loaded.has_load_taken_off and not quiet.has_load_taken_off and not evidence.is_broken
    assert loaded.steps.unprofiled_us is None
    assert "But" in {clause.label for clause in loaded.verdict.clauses}
    assert "were waits for them; these are taken off" in loaded.verdict.sentence
    assert "while profiled, beside other programs" in " ".join(to_terminal(loaded).split())
    assert "of the peak or more" in loaded.verdict.sentence
    assert "or more" not in quiet.verdict.sentence
