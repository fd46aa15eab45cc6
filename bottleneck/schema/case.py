"""The evidence behind an analysis: its tables and the recording, as advice and counters read them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd

from bottleneck.schema.analysis import Analysis
from bottleneck.schema.linked_trace import Linked
from bottleneck.schema.recording import Recording


@dataclass(frozen=True)
class OpSum:
    """Calls per step, and microseconds per profiled step in them: in full, and less that of ops directly inside."""

    calls: float
    us: float
    self_us: float


@dataclass(frozen=True)
class Case:
    """One analysis with its evidence. With several ranks the analysis is of all, the tables of the rank that paces.

    ``costs`` is COSTS, row for row as ``linked.trace.signatures`` (CALLS); ``attribution`` and ``roofline`` are
    ATTRIBUTION and ROOFLINE, row for row as ``linked.kernels``. These tables hold the whole trace under the profiler:
    rows whose ``step`` is null lie outside the window, and times are of profiled steps, not yet scaled to unprofiled
    ones.
    ``recording`` is null for a bare trace. ``charged`` is CHARGED, row for row as ``linked.kernels``: time per step on
    the ledger's scale, zero outside the window.
    """

    analysis: Analysis
    linked: Linked
    costs: pd.DataFrame
    attribution: pd.DataFrame
    roofline: pd.DataFrame
    recording: Recording | None = None
    charged: pd.DataFrame | None = None

    @property
    def step_us(self) -> float:
        """The step that gains are gains of: unprofiled where that was measured."""
        return self.analysis.steps.wall_us

    @property
    def steps(self) -> int:
        """Steps in the window: what sums over rows of the tables are divided by."""
        return max(1, self.analysis.steps.count)

    @cached_property
    def op_sums(self) -> Mapping[str, OpSum]:
        """What each name of OPS adds up to in the window; cached, for many rules ask."""
        ops = self.linked.ops
        rows = self._inside(ops["ts_us"].to_numpy())
        return self._sums(ops["name"].iloc[rows], ops["dur_us"].to_numpy()[rows], ops["self_us"].to_numpy()[rows])

    @cached_property
    def mark_sums(self) -> Mapping[str, OpSum]:
        """The same of annotations (optimizer steps, loaders, garbage collection …); their self time is the full one."""
        events = self.linked.trace.events
        rows = np.flatnonzero((events["category"] == "annotation").to_numpy())
        rows = rows[self._inside(events["ts_us"].to_numpy()[rows])]
        durations = events["dur_us"].to_numpy()[rows]
        return self._sums(events["name"].iloc[rows], durations, durations)

    def _inside(self, at_us: "npt.NDArray[np.float64]") -> "npt.NDArray[np.int64]":
        low, high = self.linked.window.host_us
        return np.flatnonzero((at_us >= low) & (at_us < high))

    def _sums(
        self, names: "pd.Series[str]", us: "npt.NDArray[np.float64]", self_us: "npt.NDArray[np.float64]"
    ) -> Mapping[str, OpSum]:
        codes, labels = names.cat.codes.to_numpy(), names.cat.categories
        size = len(labels)
        columns = (
            np.bincount(codes, minlength=size),
            np.bincount(codes, weights=us, minlength=size),
            np.bincount(codes, weights=self_us, minlength=size),
        )
        found = np.flatnonzero(columns[0])
        values = np.stack(columns, axis=1)[found] / self.steps
        return {str(labels[code]): OpSum(*row) for code, row in zip(found.tolist(), values.tolist(), strict=True)}
