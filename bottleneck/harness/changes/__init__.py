"""The changes that can be tried on a step, by name. A new one is one function and one line in its module's table."""

from collections.abc import Mapping

from bottleneck.harness.changes import (
    backends,
    batch,
    compilers,
    folding,
    graphs,
    host,
    layout,
    loaders,
    optimizers,
    padding,
    precision,
    recompute,
)
from bottleneck.harness.changes.change import Change

_TABLES: tuple[tuple[Change, ...], ...] = (
    precision.CHANGES,
    layout.CHANGES,
    optimizers.CHANGES,
    host.CHANGES,
    batch.CHANGES,
    compilers.CHANGES,
    backends.CHANGES,
    graphs.CHANGES,
    folding.CHANGES,
    recompute.CHANGES,
    loaders.CHANGES,
    padding.CHANGES,
)

CHANGES: Mapping[str, Change] = {change.name: change for table in _TABLES for change in table}
