"""Why steps were slow: what the host is known to have done comes before the line at which it was seen."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from bottleneck.schema.watch_log import PHASES, DeadWorker, SeenLine, SlowStep, WatchHeader
from bottleneck.watched.causes import advice_to_record, find_causes, find_drifts
from bottleneck.watched.read_log import _DTYPE, WatchedRank

USUAL = SlowStep(
    step=500,
    end_s=1.0,
    us=400_000.0,
    usual_us=1_000.0,
    phases_us=(100.0, 400_000.0 - 500.0, 200.0, 100.0, 100.0),
    usual_phases_us=(100.0, 500.0, 200.0, 100.0, 100.0),
    gc_us=0.0,
    cpu_us=400_000.0,
    usual_cpu_us=1_000.0,
    switches=0,
    usual_switches=0.0,
    faults=0,
    batches=1,
    usual_batches=1.0,
    lines=(SeenLine("train.py:18", "log_metrics", 39),),
)


def rank(*slow: SlowStep, us: Any = 1_000.0, memory: Any = 1e9, steps: int = 2_000, **header: Any) -> WatchedRank:
    records = np.zeros(steps, dtype=_DTYPE)
    records["count"], records["us"], records["longest_us"] = 1, us, us
    records["first"] = np.arange(1, steps + 1)
    records["forward_us"], records["memory_bytes"] = us, memory
    return WatchedRank(WatchHeader(0, 1, 0, "optimizer", "optimizer.step of SGD", **header), records, slow)


def kind_of(**changes: Any) -> str:
    (cause,) = find_causes(rank(dataclasses.replace(USUAL, **changes)))
    return cause.kind


def in_phase(phase: str, us: float = 399_000.0) -> tuple[float, ...]:
    return tuple(usual + us * (name == phase) for name, usual in zip(PHASES, USUAL.usual_phases_us, strict=True))


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"gc_us": 300_000.0}, "gc"),
        ({"lines": (SeenLine("train.py:9", "<module>", 30, "compile"),)}, "compile"),
        ({"lines": (SeenLine("train.py:9", "save", 30, "checkpoint"),)}, "checkpoint"),
        ({"batches": 65}, "other-data"),
        ({"faults": 4_000}, "disk"),
        ({"cpu_us": 2_000.0, "switches": 40}, "no-processor"),
        ({"phases_us": in_phase("data"), "workers": 4, "dead_workers": (DeadWorker(1, -9),)}, "dead-worker"),
        ({"phases_us": in_phase("data"), "workers": 4, "started_workers": 4, "passes": 1}, "workers"),
        ({"phases_us": in_phase("data"), "workers": 4, "passes": 1}, "pass"),
        (
            {"phases_us": in_phase("data"), "cpu_us": 1_000.0, "waited_us": 0, "workers_waited_us": 3e5},
            "no-processor",
        ),
        ({"phases_us": in_phase("data"), "waited_us": 0.0, "workers_waited_us": 100_000.0, "workers": 4}, "loader"),
        ({"waited_us": 300_000.0, "cpu_us": 2_000.0}, "no-processor"),
        ({"waited_us": 10_000.0, "cpu_us": 2_000.0, "switches": 40}, "line:train.py:18"),
        # Another thread of an op had no processor: this one slept, or spun, until it was done.
        ({"waited_us": 1_000.0, "cpu_us": 2_000.0, "threads_waited_us": 300_000.0}, "no-processor"),
        ({"waited_us": 200_000.0, "cpu_us": 200_000.0, "threads_waited_us": 150_000.0}, "no-processor"),
        ({"waited_us": 100_000.0, "cpu_us": 300_000.0, "threads_waited_us": 100_000.0}, "line:train.py:18"),
        # It waited for nearly all of the time, and what it computed more was spinning; earlier waits do not count.
        ({"waited_us": 900_000.0, "cpu_us": 60_000.0}, "no-processor"),
        ({"waited_us": 900_000.0, "cpu_us": 150_000.0}, "line:train.py:18"),
        (
            {"phases_us": in_phase("data"), "waited_us": 0.0, "cpu_us": 1e3, "threads_waited_us": 3e5, "workers": 4},
            "loader",
        ),
        ({"phases_us": in_phase("data"), "workers": 4}, "loader"),
        ({"phases_us": in_phase("rest")}, "line:train.py:18"),
        ({"lines": ()}, "phase:forward"),
    ],
)
def test_a_slow_step_has_the_cause_that_explains_most_of_it(changes: dict[str, Any], kind: str) -> None:
    assert kind_of(**changes) == kind


def test_a_collection_that_took_little_of_it_is_not_the_cause() -> None:
    assert kind_of(gc_us=20_000.0) == "line:train.py:18"


def test_more_work_than_usual_is_the_cause_whoever_else_had_the_processor() -> None:
    assert kind_of(switches=50) == "line:train.py:18"
    assert kind_of(switches=50, cpu_us=150_000.0) == "line:train.py:18"


def test_a_wait_for_workers_is_no_lack_of_a_processor() -> None:
    waits = {"phases_us": in_phase("data"), "workers": 2, "cpu_us": 1_000.0}
    assert kind_of(switches=1, **waits) == "loader"
    assert kind_of(switches=40, **waits) == "no-processor"


def test_steps_of_one_cause_are_told_together_the_largest_first() -> None:
    collection = dataclasses.replace(USUAL, step=9, gc_us=390_000.0)
    causes = find_causes(rank(USUAL, dataclasses.replace(USUAL, step=700), collection))
    assert [(cause.kind, cause.steps) for cause in causes] == [("line:train.py:18", (500, 700)), ("gc", (9,))]


def test_what_is_little_of_the_run_and_of_any_step_is_not_told() -> None:
    slight = dataclasses.replace(USUAL, us=2_500.0, phases_us=in_phase("forward", 1_500.0))
    assert find_causes(rank(slight)) == ()


def test_steps_that_grow_are_a_drift_and_steady_ones_are_none() -> None:
    growing = np.linspace(10_000.0, 20_000.0, 2_000)
    (drift,) = find_drifts(rank(us=growing))
    assert drift.kind == "time" and drift.what.startswith("steps grew from 11.2 ms to 18.8 ms")
    assert find_drifts(rank(us=10_000.0)) == ()


def test_a_machine_that_becomes_slower_once_or_for_seconds_is_no_drift() -> None:
    growing = np.linspace(1_000.0, 2_000.0, 2_000)
    assert find_drifts(rank(us=growing)) == ()  # 3 s in all
    up_and_down = 10_000.0 + 1_000.0 * np.sin(np.linspace(0.0, 20.0, 2_000)) + np.linspace(0.0, 2_000.0, 2_000)
    assert find_drifts(rank(us=up_and_down)) == ()


def test_a_stretch_without_processors_has_what_came_late_in_it() -> None:
    away = {"us": 20_000.0, "cpu_us": 1_000.0, "waited_us": 18_000.0, "phases_us": in_phase("forward", 19_000.0)}
    late = {"us": 20_000.0, "waited_us": 0.0, "workers": 2, "phases_us": in_phase("data", 19_000.0)}
    steps = range(1_200, 1_300)
    stretch = [dataclasses.replace(USUAL, step=step, **(late if step % 4 == 2 else away)) for step in steps]
    elsewhere = dataclasses.replace(USUAL, step=40, **away)
    long = dataclasses.replace(USUAL, step=1_250, gc_us=390_000.0)
    slow = sorted([elsewhere, *stretch[:50], long, *stretch[51:]], key=lambda step: step.step)
    causes = {cause.kind: cause.steps for cause in find_causes(rank(*slow))}
    assert causes == {"no-processor": tuple(step for step in steps if step != 1_250), "gc": (1_250,)}


def test_a_worker_that_died_with_the_program_is_named_however_short_the_run() -> None:
    dead = {"status": 1, "dead_workers": (DeadWorker(3, -9),)}
    (drift,) = find_drifts(rank(steps=5, **dead))
    assert drift.what == "worker 3 of the loader died by SIGKILL, and the program ended with status 1"
    assert "memory" in drift.advice
    assert find_drifts(rank(steps=5, **{**dead, "status": 0})) == ()


def test_memory_that_grows_names_the_line_that_keeps_it() -> None:
    (drift,) = find_drifts(rank(memory=np.linspace(1e9, 1.4e9, 2_000), memory_keepers=("train.py:25",)))
    assert drift.kind == "memory" and "held by train.py:25" in drift.what
    assert find_drifts(rank(memory=np.linspace(1e9, 1.01e9, 2_000))) == ()


def test_steps_that_are_longer_from_one_on_are_one_change() -> None:
    us = np.where(np.arange(2_000) < 1_234, 1_000.0, 4_000.0)
    us[::25] *= 5.0
    # The first ones were noted as slow before they became the usual ones; one stands out among them.
    noted = [dataclasses.replace(USUAL, step=step, us=4_000.0, cpu_us=1_000.0) for step in range(1_235, 1_430)]
    far = dataclasses.replace(USUAL, step=1_600)
    changed = rank(*noted, far, us=us)
    (drift,) = find_drifts(changed)
    assert drift.kind == "level" and drift.what.startswith("from step 1,235 on steps take 4.00 ms, before 1.00 ms")
    assert drift.beyond_us == pytest.approx(766 * 3_000.0)
    assert [cause.steps for cause in find_causes(changed)] == [(1_600,)]


@pytest.mark.parametrize(
    "us",
    [
        np.where((np.arange(2_000) > 900) & (np.arange(2_000) < 1_200), 4_000.0, 1_000.0),
        np.linspace(1_000.0, 3_000.0, 2_000),
        np.where(np.arange(2_000) < 1_000, 1_000.0, 1_400.0),
        np.where(np.arange(2_000) < 1_990, 1_000.0, 4_000.0),
        np.where(np.arange(2_000) % 2 == 0, 1_000.0, 4_000.0),
    ],
    ids=["for a while", "all along", "a little", "at the very end", "in turns"],
)
def test_other_courses_are_no_lasting_change(us: Any) -> None:
    assert not find_drifts(rank(us=us))


def test_advice_to_record_names_the_program_or_says_how_to_start_it() -> None:
    assert advice_to_record(("-m", "my.train", "a b")) == "record some steps of it: bottleneck run -m my.train 'a b'"
    assert "start it by bottleneck run in place of bottleneck watch" in advice_to_record(())
