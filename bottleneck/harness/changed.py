"""The step of a program with changes applied to it before its first call, as a sweep's series ask for."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from bottleneck.harness.changes import CHANGES
from bottleneck.harness.changes.outcomes import Missing, NotApplicable
from bottleneck.harness.changes.subject import make_subject
from bottleneck.harness.notes import Plan

Step = Callable[[], Any]


def changed_step(plan: Plan, arguments: Sequence[str]) -> tuple[Step, float]:
    """The changed step, and how many seconds applying the changes took."""
    subject = make_subject(plan.target, tuple(arguments), plan.form, plan.settings, train=plan.train)
    started = time.perf_counter()
    for name in plan.changes:
        subject = replace(subject, step=CHANGES[name].apply(subject))
    return subject.step, time.perf_counter() - started


@contextmanager
def refusals_told() -> Iterator[None]:
    """Ends the process with one line where a change says that it cannot be tried on this step, or not on this machine.

    Compilers say so at the first call of the step.
    """
    try:
        yield
    except NotApplicable as state:
        sys.exit(f"not applicable: {state}")
    except Missing as state:
        sys.exit(f"missing: {state}")
