"""The ledger in time adds up to the ledger, account by account, and every instant of the window is in it once."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bottleneck.analysis.ledger import build_ledger
from bottleneck.analysis.timeline import build_timeline
from bottleneck.schema.evidence import Evidence
from tests.analysis.scenes import Event, Kernel, Op, Scene, evidence
from tests.samples import recordings
from tests.trace_cache import evidence as evidence_of


def timeline_of(found: Evidence) -> pd.DataFrame:
    return build_timeline(found.linked, found.roofline, found.analysis.ledger, found.analysis.device)


def lasted(timeline: pd.DataFrame) -> dict[str, float]:
    """Time of the stretches by account."""
    length = (timeline["end_us"] - timeline["start_us"]).groupby(timeline["account"], observed=True).sum()
    return {str(account): float(us) for account, us in length.items()}


def rows(timeline: pd.DataFrame) -> list[tuple[float, float, str]]:
    return [(row.start_us, row.end_us, str(row.account)) for row in timeline.itertuples()]


def assert_is_the_ledger_in_time(found: Evidence) -> None:
    timeline = timeline_of(found)
    profiled = build_ledger(found.linked, found.roofline, found.analysis.device).ledger
    passes = max(len(found.linked.window.steps), 1) * timeline["device"].nunique()
    times = lasted(timeline)
    for entry in profiled.entries:
        assert times.get(entry.account, 0.0) / passes == pytest.approx(entry.us, rel=1e-6, abs=1e-6 * profiled.wall_us)
    told = timeline.groupby("account", observed=True)["us"].sum()
    for entry in found.analysis.ledger:
        if entry.account in told.index:
            assert told[entry.account] == pytest.approx(entry.us, rel=1e-9)
    for _, mine in timeline.groupby("device"):
        ends = mine["end_us"].to_numpy()
        assert np.all(mine["start_us"].to_numpy()[1:] >= ends[:-1] - 1e-6), "two accounts hold one instant"
    assert sum(times.values()) == pytest.approx(found.linked.window.wall_us * timeline["device"].nunique(), rel=1e-6)


def test_work_and_idle_time_follow_each_other() -> None:
    scene = Scene(
        wall=100.0,
        kernels=[Kernel(20, 30, "compute", launch=(5, 5)), Kernel(50, 20, "memory", launch=(12, 3))],
        events=[Event("python", "work.py(1): main", 0, 100)],
    )
    timeline = timeline_of(evidence(scene))
    assert (20.0, 50.0, "compute") in rows(timeline)
    assert (50.0, 70.0, "memory") in rows(timeline)
    assert rows(timeline)[0][0] == 0.0 and rows(timeline)[-1][1] == 100.0
    assert_is_the_ledger_in_time(evidence(scene))


def test_kernels_that_run_at_once_divide_the_stretch_between_their_accounts() -> None:
    scene = Scene(wall=30.0, kernels=[Kernel(0, 30, "compute"), Kernel(10, 10, "memory", stream="0/8")])
    timeline = timeline_of(evidence(scene))
    assert lasted(timeline) == pytest.approx({"compute": 25.0, "memory": 5.0})
    assert_is_the_ledger_in_time(evidence(scene))


def test_a_kernel_hides_the_copy_below_it() -> None:
    scene = Scene(wall=30.0, kernels=[Kernel(0, 20, "compute"), Kernel(10, 20, "transfer", kind="copy", stream="0/8")])
    assert rows(timeline_of(evidence(scene))) == [(0.0, 20.0, "compute"), (20.0, 30.0, "transfer")]


def test_ops_of_the_host_nest() -> None:
    scene = Scene(wall=40.0, ops=[Op(0, 30, bound="dispatch"), Op(10, 10, bound="memory", parent=0)])
    assert [row for row in rows(timeline_of(evidence(scene))) if row[2] != "overhead.unknown"][:3] == [
        (0.0, 10.0, "overhead.dispatch"),
        (10.0, 20.0, "memory"),
        (20.0, 30.0, "overhead.dispatch"),
    ]
    assert_is_the_ledger_in_time(evidence(scene))


def test_each_device_has_its_own_window() -> None:
    scene = Scene(wall=30.0, kernels=[Kernel(0, 30, "compute"), Kernel(0, 10, "memory", device=1, stream="1/7")])
    timeline = timeline_of(evidence(scene))
    assert set(timeline["device"]) == {0, 1}
    assert_is_the_ledger_in_time(evidence(scene))


@pytest.mark.parametrize("recording", recordings(), ids=lambda path: path.name)
def test_samples_add_up(recording: Path) -> None:
    assert_is_the_ledger_in_time(evidence_of(recording))
