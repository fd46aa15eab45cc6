"""The time between the ops of a step, from the steps that nothing held up."""

import numpy as np
import pytest

from bottleneck.analysis.between_ops import calm_steps, measure_stretches
from bottleneck.schema.intervals import union
from bottleneck.schema.linked_trace import Linked, Step
from bottleneck.schema.records import replace
from tests.analysis.scenes import Op, Scene

NO_HOOKS = union(np.zeros(0), np.zeros(0))


def _steps(*lengths: float) -> Linked:
    """Steps that run two ops of 10 us each: one after a tenth of the step, one at the end."""
    ops, steps, at = [], [], 0.0
    for number, us in enumerate(lengths):
        ops += [Op(at + us / 10, 10), Op(at + us - 10, 10)]
        steps.append(Step(f"step {number}", at, at + us))
        at += us
    linked = Scene(at, ops=ops).linked()
    return replace(linked, window=replace(linked.window, steps=tuple(steps)))


@pytest.mark.parametrize(
    ("lengths", "calm"), [((100, 110), 2), ((100, 1000), 1), ((1000, 100), 1), ((100, 90, 1000), 2)]
)
def test_a_step_that_was_held_up_is_not_calm_even_where_there_are_two(lengths: tuple[float, ...], calm: int) -> None:
    assert len(calm_steps(_steps(*lengths).window)) == calm


def test_stretches_are_those_of_calm_steps() -> None:
    alone, beside = (measure_stretches(_steps(*lengths), NO_HOOKS, 0.0) for lengths in ((100,), (100, 1000)))
    assert alone is not None and beside is not None
    # The first stretch begins after the last op before it, which a single step does not show.
    assert beside.us.tolist() == alone.us.tolist() == [pytest.approx(10), pytest.approx(70)]
