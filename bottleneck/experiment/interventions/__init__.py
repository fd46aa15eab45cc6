"""The changes that can be tried on a step, by name. A new one is one function and one line in its module's table."""

from collections.abc import Mapping

from bottleneck.experiment.interventions import backends, compilers, graphs, loaders, recompute
from bottleneck.experiment.interventions import loaders as batch
from bottleneck.experiment.interventions import memory_format as folding
from bottleneck.experiment.interventions import memory_format as layout
from bottleneck.experiment.interventions import mixed_precision as padding
from bottleneck.experiment.interventions import mixed_precision as precision
from bottleneck.experiment.interventions import optimizer_step as optimizers
from bottleneck.experiment.interventions import process as host
from bottleneck.experiment.interventions.change import Change

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
