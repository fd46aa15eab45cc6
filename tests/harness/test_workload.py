import gzip
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bottleneck.harness import workload
from bottleneck.harness.messages import Plan, Program, RecordOptions
from bottleneck.harness.session import LONG_US, Session
from bottleneck.harness.workload import measure
from bottleneck.schema.measurements import Timing

torch: Any = pytest.importorskip("torch")


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(Plan(str(tmp_path), Program("program.py"), RecordOptions(steps=4, warmup=1, timed_s=0.0)))


def adding() -> Callable[[], None]:
    values = torch.ones(4)
    return lambda: values.add_(1.0)


def test_a_step_is_repeated_through_all_phases(session: Session) -> None:
    measure(adding(), session)
    notes = session.notes
    assert notes.unprofiled is not None and notes.unprofiled.n >= workload.TIMED_STEPS
    assert len(notes.step_marks_ns) == 5
    assert notes.framework == f"PyTorch {torch.__version__}"
    assert session.has_profiled_steps


def test_a_step_is_timed_as_long_as_the_plan_says(session: Session) -> None:
    longer = Session(replace(session.plan, options=replace(session.options, timed_s=0.05)))
    measure(adding(), longer)
    assert longer.notes.timed_ns is not None
    begins, ends = longer.notes.timed_ns
    assert ends - begins >= 50e6


def test_what_the_second_step_takes_to_get_ready_is_part_of_the_set_up(session: Session) -> None:
    """A step that is compiled whole is recorded at its second call: its set-up of 6 s was missing."""
    values, taken_s = torch.ones(64, 64), list[float]()

    def step() -> None:
        started = time.perf_counter()
        for _ in range(2000 if len(taken_s) == 1 else 1):
            values @ values
        taken_s.append(time.perf_counter() - started)

    measure(step, session)
    setup_s, usual = session.notes.setup_s, session.notes.unprofiled
    assert setup_s is not None and usual is not None
    assert setup_s >= taken_s[1] - usual.median / 1e6 > 0


def test_fewer_steps_are_profiled_when_they_would_make_too_many_events(session: Session) -> None:
    session.options = replace(session.options, most_events=1)
    measure(adding(), session)
    assert len(session.notes.step_marks_ns) == 2
    assert any("profiled 1 of 4 steps" in warning for warning in session.notes.warnings)


def test_a_full_disk_is_reported_and_leaves_no_partial_trace(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(window: object, path: Path, own_ns: object = ()) -> None:
        path.write_text("half a tr")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bottleneck.harness.window.ProfilerWindow.export", fail)
    measure(adding(), session)
    assert any("No space left" in warning for warning in session.notes.warnings)
    assert not list(tmp_path.glob(".*trace*"))
    assert session.notes.step_marks_ns == ()


def test_page_faults_of_both_kinds_of_steps_are_noted(session: Session) -> None:
    measure(adding(), session)
    faults = session.notes.page_faults
    assert faults is not None and faults.profiled is not None and faults.unprofiled is not None


def names_of(path: Path) -> list[str]:
    return [event.get("cat") for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]]


def test_a_second_window_records_ops_alone(session: Session) -> None:
    measure(adding(), session)
    light = session.notes.light
    assert light is not None and len(light.step_marks_ns) == 5 and light.profiled is not None
    assert light.step_marks_ns[0] > session.notes.step_marks_ns[-1]
    assert "python_function" in names_of(session.files.partial)
    assert "cpu_op" in names_of(session.files.partial_light)
    assert "python_function" not in names_of(session.files.partial_light)


def test_nothing_is_recorded_twice_with_the_fewest_options(session: Session) -> None:
    least = Session(replace(session.plan, options=replace(session.options, shapes=False, stacks=False, memory=False)))
    measure(adding(), least)
    assert least.has_profiled_steps and least.notes.light is None


@pytest.mark.parametrize(("longer", "steps"), [(1.01, 0), (1.5, 3)])
def test_long_steps_are_repeated_only_where_the_profiler_made_them_longer(
    session: Session, longer: float, steps: int
) -> None:
    session.files.partial.touch()
    step_us = 2 * LONG_US
    session.note(unprofiled=timing(step_us), profiled=timing(longer * step_us))
    assert session.light_steps(workload.DETAIL, 20) == steps


@pytest.mark.parametrize(
    ("step_us", "full", "light"), [(100.0, 20, 20), (2500.0, 8, 20), (15_000.0, 5, 7), (200_000.0, 5, 5)]
)
def test_short_steps_are_repeated_until_they_fill_the_time_of_their_window(
    session: Session, step_us: float, full: int, light: int
) -> None:
    free = Session(replace(session.plan, options=replace(session.options, steps=None)))
    free.note(unprofiled=timing(step_us))
    assert (free.wanted_steps, free.wanted_light_steps) == (full, light)
    session.note(unprofiled=timing(step_us))
    assert (session.wanted_steps, session.wanted_light_steps) == (4, 4)


@pytest.mark.parametrize(
    ("events", "step_us", "steps"),
    [(100, 10_000.0, 5), (7_000, 10_000.0, 5), (8_000, 10_000.0, 4), (50_000, 10_000.0, 3), (100, LONG_US, 3)],
)
def test_fewer_steps_are_profiled_where_each_is_long_or_has_thousands_of_events(
    session: Session, events: int, step_us: float, steps: int
) -> None:
    free = Session(replace(session.plan, options=replace(session.options, steps=None)))
    for one in (free, session):
        one.note(unprofiled=timing(step_us))
    assert free.plan_steps(events) == free.planned_steps == steps
    assert session.plan_steps(events) == 4, "as many as were asked for"
    free.note(ranks=2)
    assert free.plan_steps(events) == 5, "as many as the other ranks"


def timing(us: float) -> Timing:
    return Timing(us, us, us, 5)
