"""Measures the unmodelled part of the work in traces, by op and reason.

python benchmarks/cost_coverage.py TRACE|FOLDER … [--top 5]

On a GPU the share is of compute-kernel time that an op of the trace issued; kernels without an op are counted apart,
since no formula applies to them. On a CPU it is of the self time of ops; an op with children and without a formula only
calls them and is not counted.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from bottleneck.cost import FORMULAS, compute_costs
from bottleneck.cost.attribution import attribute
from bottleneck.cost.shape_inference import infer_shapes
from bottleneck.errors import BottleneckError
from bottleneck.schema.linked_trace import Linked
from bottleneck.schema.reasons import Reason
from bottleneck.trace.link import link
from bottleneck.trace.read import read_trace
from bottleneck.trace.steps import whole_window


@dataclass(frozen=True)
class Coverage:
    """Time of one trace, and the unmodelled part by op and reason."""

    flavour: str
    work_us: float
    unlinked_us: float
    unmodelled_us: pd.Series

    @property
    def unmodelled_share(self) -> float:
        """Unmodelled part of the work."""
        return float(self.unmodelled_us.sum()) / self.work_us if self.work_us else 0.0


def cover(path: Path) -> Coverage:
    """The coverage of one trace file."""
    trace = read_trace(path)
    linked = infer_shapes(link(trace, whole_window(trace)))
    costs = compute_costs(linked.trace.signatures)
    kernels = linked.kernels
    attribution = attribute(linked.ops, kernels, costs)
    reasons = _reasons(linked, costs)
    if trace.flavour == "cpu":
        works = (linked.ops["children"] == 0) | linked.ops["name"].isin(FORMULAS.keys())
        missing = (reasons.notna() & works).to_numpy()
        return Coverage("cpu", float(kernels["dur_us"].sum()), 0.0, _by_reason(kernels[missing], reasons[missing]))
    work = kernels[(kernels["kind"] == "compute") & ~kernels["replayed"]]
    issued = work[work["op"].notna()]
    modelled = attribution["op"].notna().loc[issued.index]
    missing = issued[~modelled]
    labels = reasons.iloc[missing["op"].astype("int64")].fillna("op without work of its own")
    labels.index = missing.index
    unlinked_us = float(work["dur_us"].sum() - issued["dur_us"].sum())
    return Coverage(trace.flavour, float(issued["dur_us"].sum()), unlinked_us, _by_reason(missing, labels))


def _reasons(linked: Linked, costs: pd.DataFrame) -> pd.Series:
    """'op: reason' for each unmodelled op, null for the others."""
    ops = linked.ops
    signature = ops["signature"].fillna(-1).astype("int64")
    reason = pd.Series(
        [_words(costs["reason"].iat[row]) if row >= 0 else "no shapes" for row in signature], dtype="object"
    )
    return (ops["name"].astype("object") + ": " + reason).where(reason.notna())


def _words(reason: Reason | None) -> str | None:
    return None if reason is None else reason.words


def _by_reason(kernels: pd.DataFrame, reasons: pd.Series) -> pd.Series:
    grouped = kernels["dur_us"].groupby(reasons.to_numpy(), observed=True).sum()
    return grouped[grouped > 0].sort_values(ascending=False)


def _files(paths: list[Path]) -> list[Path]:
    return [file for path in paths for file in (sorted(path.glob("*.json*")) if path.is_dir() else [path])]


def main() -> None:
    """Print one line per trace and its largest gaps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--top", type=int, default=5, help="gaps shown per trace")
    chosen = parser.parse_args()
    for file in _files(chosen.paths):
        try:
            coverage = cover(file)
        except BottleneckError as error:
            print(f"{file.name}: {error}")
            continue
        print(
            f"{file.name}: {coverage.flavour}, {coverage.work_us / 1e3:.1f} ms of work, "
            f"{coverage.unmodelled_share:.2%} unmodelled, {coverage.unlinked_us / 1e3:.1f} ms without op"
        )
        for reason, us in coverage.unmodelled_us.head(chosen.top).items():
            print(f"    {us / coverage.work_us:7.2%}  {reason}")


if __name__ == "__main__":
    main()
