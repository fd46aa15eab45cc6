from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bottleneck.harness import workload
from bottleneck.harness.messages import Plan
from bottleneck.harness.session import Session
from bottleneck.harness.workload import measure

torch: Any = pytest.importorskip("torch")


@pytest.fixture
def session(tmp_path: Path) -> Session:
    plan = Plan(
        folder=str(tmp_path),
        form="workload",
        target="program.py",
        module=False,
        settings=(),
        train=False,
        steps=4,
        warmup=1,
        timed_s=0.0,
    )
    return Session(plan)


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
    longer = Session(replace(session.plan, timed_s=0.05))
    measure(adding(), longer)
    assert longer.notes.timed_ns is not None
    begins, ends = longer.notes.timed_ns
    assert ends - begins >= 50e6


def test_fewer_steps_are_profiled_when_they_would_make_too_many_events(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workload, "EVENT_BUDGET", 1)
    measure(adding(), session)
    assert len(session.notes.step_marks_ns) == 2
    assert any("profiled 1 of 4 steps" in warning for warning in session.notes.warnings)


def test_a_full_disk_is_reported_and_leaves_no_partial_trace(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(window: object, path: Path) -> None:
        path.write_text("half a tr")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bottleneck.harness.window.Window.export", fail)
    measure(adding(), session)
    assert any("No space left" in warning for warning in session.notes.warnings)
    assert not list(tmp_path.glob(".*trace*"))
    assert session.notes.step_marks_ns == ()


def test_page_faults_of_both_kinds_of_steps_are_noted(session: Session) -> None:
    measure(adding(), session)
    faults = session.notes.page_faults
    assert faults is not None and faults.profiled is not None and faults.unprofiled is not None
