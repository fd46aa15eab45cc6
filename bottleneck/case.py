"""What a rule of advice looks at: the analysis, the tables that it was made from, and the recording."""

from dataclasses import dataclass

import pandas as pd

from bottleneck.recording import Recording
from bottleneck.records import Analysis
from bottleneck.tracing import Linked


@dataclass(frozen=True)
class Case:
    """One analysis with its evidence. With several ranks the analysis is of all, the tables of the rank that paces.

    ``costs`` is COSTS, row for row as ``linked.trace.signatures`` (CALLS); ``charges`` and ``roofline`` are CHARGES and
    ROOFLINE, row for row as ``linked.kernels``. These tables hold the whole trace under the profiler: rows whose
    ``step`` is null lie outside the window, and times are of profiled steps, not yet scaled to unprofiled ones.
    ``recording`` is null for a bare trace.
    """

    analysis: Analysis
    linked: Linked
    costs: pd.DataFrame
    charges: pd.DataFrame
    roofline: pd.DataFrame
    recording: Recording | None = None

    @property
    def step_us(self) -> float:
        """The step that gains are gains of: unprofiled where that was measured."""
        return self.analysis.steps.wall_us

    @property
    def steps(self) -> int:
        """Steps in the window: what sums over rows of the tables are divided by."""
        return max(1, self.analysis.steps.count)
