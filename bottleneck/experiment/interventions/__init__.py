"""The changes that can be tried on a step, by name.

A new one is one function and one line in its module's table.
"""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from bottleneck.experiment.interventions import (
    ahead_of_time,
    attention,
    compilers,
    dropout,
    graphs,
    loaders,
    memory_format,
    mixed_precision,
    optimizer_step,
    padded_layers,
    process_settings,
    recompute,
)
from bottleneck.experiment.interventions.subject import Change, Missing, NotApplicable, make_subject
from bottleneck.harness.messages import Plan
from bottleneck.harness.stopwatch import Step

_TABLES: tuple[tuple[Change, ...], ...] = (
    mixed_precision.CHANGES,
    memory_format.CHANGES,
    optimizer_step.CHANGES,
    dropout.CHANGES,
    process_settings.CHANGES,
    loaders.BATCH_CHANGES,
    compilers.CHANGES,
    attention.CHANGES,
    compilers.BACKEND_CHANGES,
    graphs.CHANGES,
    ahead_of_time.CHANGES,
    memory_format.FOLDING_CHANGES,
    recompute.CHANGES,
    loaders.CHANGES,
    mixed_precision.PADDING_CHANGES,
    padded_layers.CHANGES,
)

CHANGES: Mapping[str, Change] = {change.name: change for table in _TABLES for change in table}


@contextmanager
def changed_step(plan: Plan) -> Iterator[tuple[Step, float]]:
    """The step with the plan's changes, and how many seconds applying them took.

    Ends the process with one line where a change says, at once or at the first call of the step, that it cannot be
    tried on this step or on this machine.
    """
    try:
        program = plan.program
        subject = make_subject(program.target, program.arguments, program.form, program.settings, train=program.train)
        started = time.perf_counter()
        for name in plan.options.changes:
            subject = replace(subject, step=CHANGES[name].apply(subject))
        yield subject.step, time.perf_counter() - started
    except (NotApplicable, Missing) as state:
        sys.exit(f"{state.verdict}: {state}")
