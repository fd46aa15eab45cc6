"""The changes that can be tried on a step, by name. A new one is one function and one line in its module's table."""

from collections.abc import Mapping

from bottleneck.experiment.interventions import (
    backends,
    compilers,
    graphs,
    loaders,
    memory_format,
    mixed_precision,
    optimizer_step,
    process,
    recompute,
)
from bottleneck.experiment.interventions.change import Change

_TABLES: tuple[tuple[Change, ...], ...] = (
    mixed_precision.CHANGES,
    memory_format.CHANGES,
    optimizer_step.CHANGES,
    process.CHANGES,
    loaders.BATCH_CHANGES,
    compilers.CHANGES,
    backends.CHANGES,
    graphs.CHANGES,
    memory_format.FOLDING_CHANGES,
    recompute.CHANGES,
    loaders.CHANGES,
    mixed_precision.PADDING_CHANGES,
)

CHANGES: Mapping[str, Change] = {change.name: change for table in _TABLES for change in table}
