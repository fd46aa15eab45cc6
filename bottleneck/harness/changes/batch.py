"""The change that makes a step work on more samples: a batch of twice the size."""

from collections.abc import Mapping

from bottleneck.harness.changes.change import Change
from bottleneck.harness.changes.outcomes import NotApplicable
from bottleneck.harness.forms import BATCH


def double_batch(parameters: Mapping[str, object]) -> Mapping[str, object]:
    """Twice the batch size of these parameters of a workload; NotApplicable where it has none that is a count."""
    if BATCH not in parameters:
        raise NotApplicable(f"needs a workload with a parameter {BATCH}")
    size = parameters[BATCH]
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise NotApplicable(f"needs a {BATCH} that can be doubled; it is {size!r}")
    return {BATCH: 2 * size}


CHANGES = (Change("batch-x2", "twice as many samples in a step", "other work", settings=double_batch, samples=2.0),)
