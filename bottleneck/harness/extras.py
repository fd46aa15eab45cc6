"""What a step that can be repeated tells once its trace is kept: the cost of the profiler's options, the batch test."""

from collections.abc import Callable
from typing import Any

from bottleneck.harness.batch import Doubling, run_batch_test
from bottleneck.harness.capture import Detail
from bottleneck.harness.option_costs import run_option_costs
from bottleneck.harness.session import Session
from bottleneck.measured import BatchTest, OptionCosts

Step = Callable[[], Any]

# Each rank would stop after its own number of steps, and wait for the others for ever.
_RANKS = "the ranks of a job take steps together"


def measure_extras(step: Step, torch: Any, session: Session, doubling: Doubling | None, kept: Detail) -> None:
    """Adds both to the notes; neither ever raises, nor changes what the program writes.

    ``kept`` is what the window recorded whose trace was kept; ``doubling`` is null where there is no batch size.
    """
    timing, profiled = session.notes.unprofiled, session.notes.profiled
    if timing is None or not timing.median > 0 or profiled is None:
        return
    if session.notes.ranks > 1:
        session.note(option_costs=OptionCosts(reason=_RANKS), batch_test=doubling and BatchTest(None, reason=_RANKS))
        session.save()
        return
    if session.plan.option_costs:
        session.note(option_costs=run_option_costs(step, torch, (timing.median, profiled.median), kept))
        session.save()
    if doubling is not None and session.plan.batch_test is not False:
        is_asked = session.plan.batch_test is not None
        session.note(batch_test=run_batch_test(step, torch, doubling, timing.median, is_asked=is_asked))
        session.save()
