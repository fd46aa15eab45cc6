"""Measures how much kernel time of the public GPU traces has a modelled cost, and checks floors against the clock.

python -m benchmarks.coverage FOLDER                                    prints the tables
python -m benchmarks.coverage FOLDER --write benchmarks/results/cost.md
                                                                        puts them between the coverage markers there

The denominator is the time of every compute kernel in a file, those that a graph replayed and those that no op issued
included; collectives and copies, which have no roofline, are counted apart. Each file counts as a whole, warm-up too. A
group of kernels that share a cost violates it when the least time that its FLOPs or bytes can take, with a cache that
held all it can hold, lies more than 3 % above the measured time. The script fails when there is a violation.

Files named FOLDER__capture_traces__… are captures of the graphs that other files of that FOLDER replay, which are
given costs with their help, as `report --capture` does.
"""

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.pages import write_between_markers
from bottleneck.analysis.roofline import classify
from bottleneck.cost import compute_costs
from bottleneck.cost.attribution import attribute
from bottleneck.cost.graph_replay import CostedTrace, assign_replayed_costs
from bottleneck.cost.shape_inference import infer_shapes
from bottleneck.devices.match import match_device
from bottleneck.errors import BottleneckError
from bottleneck.schema.device import Device
from bottleneck.schema.linked_trace import Linked, Trace
from bottleneck.schema.reasons import PLACES, REASONS
from bottleneck.trace.link import link
from bottleneck.trace.read import read_trace
from bottleneck.trace.steps import whole_window

EAGER = ("__traces__h100__", "__traces__mi300__Falconsai", "__traces__mi300__facebook", "__traces__mi300__gaunernst")
BEYOND = 1.03
NO_GPU = ("mtia", "npu")
_SHOWN_REASONS = 25
_CAPTURES = "__capture_traces__"


@dataclass(frozen=True)
class Coverage:
    """One trace: microseconds of compute kernels, and of those linked, modelled, and modelled with evidence.

    ``matched_us`` is the part of ``completed_us`` with the cost of a matching kernel, ``capture_us`` the part of that
    whose match is in another file; ``wide_us`` is modelled time whose bytes may exceed the least by a factor above 2.
    ``unmodelled_us`` is indexed by 'op: reason'. ``groups`` are kernels that share a cost and could be judged;
    ``violations`` describe those whose floor lies above their time, ``cached`` counts those that only a cache explains.
    """

    name: str
    flavour: str
    device: str
    kernel_us: float
    linked_us: float
    modelled_us: float
    completed_us: float
    matched_us: float
    capture_us: float
    wide_us: float
    collective_us: float
    copy_us: float
    unmodelled_us: pd.Series
    groups: int
    cached: int
    violations: tuple[str, ...]

    @property
    def counts(self) -> bool:
        """True for traces of GPUs."""
        return self.flavour not in NO_GPU

    @property
    def eager(self) -> bool:
        """True for the eager H100 and MI300X traces, of which 99 % must be modelled."""
        return any(part in self.name for part in EAGER)

    def share(self, us: float) -> float:
        """A part of the kernel time."""
        return us / self.kernel_us if self.kernel_us else 1.0


def cover(path: Path) -> Coverage | None:
    """The coverage of a file; null when it is no trace, has no device work, or no shapes."""
    try:
        trace = read_trace(path)
    except BottleneckError:
        return None
    if trace.flavour == "cpu" or not trace.signatures["dims"].notna().any():
        return None
    alone = _costed(trace)
    found, _ = assign_replayed_costs(
        alone, [assign_replayed_costs(_costed(read_trace(capture)))[0] for capture in _captures(path)]
    )
    linked, costs, attribution = found.linked, found.costs, found.attribution
    used = [int(index) for index in trace.device_args["device"].dropna().unique()]
    device, _ = match_device(trace.devices, used, trace.flavour)
    roofline = classify(linked.kernels, linked.ops, costs, attribution, device)
    kernels = linked.kernels
    dur_us, compute = kernels["dur_us"], kernels["kind"] == "compute"
    modelled = compute & attribution["share"].notna()
    signature = attribution["signature"].to_numpy(dtype=np.int64, na_value=-1)
    facts = [evidence or () for evidence in costs["evidence"]]
    completed = np.array([*map(bool, facts), False])[signature]
    by_match, by_capture = (
        np.array([*(PLACES[place] in each for each in facts), False])[signature]
        for place in ("elsewhere", "at_capture")
    )
    groups = _judge(linked, attribution, roofline, device)
    return Coverage(
        name=path.name.removesuffix(".gz").removesuffix(".json"),
        flavour=trace.flavour,
        device=device.name,
        kernel_us=float(dur_us[compute].sum()),
        linked_us=float(dur_us[compute & kernels["op"].notna() & ~kernels["replayed"]].sum()),
        modelled_us=float(dur_us[modelled].sum()),
        completed_us=float(dur_us[modelled & completed].sum()),
        matched_us=float(dur_us[modelled & (by_match | by_capture)].sum()),
        capture_us=float(dur_us[modelled & by_capture].sum()),
        wide_us=float(dur_us[modelled & (roofline["bytes_high"] > 2 * roofline["bytes_low"])].sum()),
        collective_us=float(dur_us[kernels["kind"] == "collective"].sum()),
        copy_us=float(dur_us[kernels["kind"].isin(["copy", "fill"])].sum()),
        unmodelled_us=_by_reason(found, (compute & ~modelled).to_numpy()),
        groups=len(groups),
        cached=int((groups["cold_us"] > groups["slowest_us"]).sum()),
        violations=_violations(groups),
    )


def _judge(linked: Linked, attribution: pd.DataFrame, roofline: pd.DataFrame, device: Device) -> pd.DataFrame:
    """Per group of kernels under one cost, on a device with known peaks: its floors and its measured time."""
    frame = roofline[["compute_us", "bytes_low"]].assign(
        group=attribution["group"], us=linked.kernels["dur_us"], kernels=1, name=linked.kernels["name"].astype(object)
    )
    frame = frame[(attribution["share"].notna() & (linked.kernels["kind"] == "compute")).to_numpy()]
    groups = frame.groupby("group").agg(
        {"compute_us": "sum", "bytes_low": "sum", "us": "sum", "kernels": "sum", "name": "first"}
    )
    if device.bandwidth_bytes_per_s is None:
        return groups.iloc[:0].assign(warm_us=0.0, cold_us=0.0, slowest_us=0.0)
    whole = linked.trace.integer_timestamps
    us_per_byte = 1e6 / device.bandwidth_bytes_per_s
    return groups.assign(
        warm_us=(groups["bytes_low"] - (device.cache_bytes or 0.0)).clip(lower=0.0) * us_per_byte,
        cold_us=groups["bytes_low"] * us_per_byte,
        slowest_us=BEYOND * (groups["us"] + (0.5 * groups["kernels"] if whole else 0.0)),
    )


def _violations(groups: pd.DataFrame) -> tuple[str, ...]:
    floor_us = groups[["compute_us", "warm_us"]].max(axis=1)
    beyond = groups.assign(floor_us=floor_us)[floor_us > groups["slowest_us"]]
    return tuple(f"{row.name[:80]}: {row.us:.2f} us, floor {row.floor_us:.2f} us" for row in beyond.itertuples())


def _costed(trace: Trace) -> CostedTrace:
    linked = infer_shapes(link(trace, whole_window(trace)))
    costs = compute_costs(linked.trace.signatures)
    return CostedTrace(linked, costs, attribute(linked.ops, linked.kernels, costs))


def _captures(path: Path) -> list[Path]:
    """The captures of the graphs that a file may replay."""
    if _CAPTURES in path.name:
        return []
    return sorted(path.parent.glob(f"{path.name.rpartition('__')[0]}{_CAPTURES}*"))


def _by_reason(found: CostedTrace, chosen: np.ndarray) -> pd.Series:
    """Time of the chosen kernels by 'op: reason', most first."""
    linked, reasons = found.linked, found.costs["reason"].to_numpy()
    kernels, signatures = linked.kernels[chosen], found.attribution["signature"][chosen]
    names, signature = linked.ops["name"].astype(object).to_numpy(), linked.ops["signature"]
    calls = linked.trace.signatures["name"].to_numpy()
    labels = []
    columns = (kernels["op"], kernels["unlinked"], kernels["replayed"], signatures)
    for op, unlinked, replayed, call in zip(*columns, strict=True):
        if pd.notna(call):
            labels.append(f"{calls[call]}: {reasons[call].words}")
        elif replayed:
            labels.append("replayed by a graph")
        elif pd.isna(op):
            labels.append(REASONS.get(str(unlinked), str(unlinked)))
        else:
            row = signature.iloc[op]
            reason = None if pd.isna(row) else reasons[row]
            words = "no work of its own" if reason is None else reason.words
            labels.append(f"{names[op]}: {'no shapes recorded' if pd.isna(row) else words}")
    return kernels["dur_us"].groupby(np.array(labels, dtype=object)).sum().sort_values(ascending=False)


def survey(folder: Path, jobs: int = 1) -> list[Coverage]:
    """The coverage of every trace of a folder that has device work and shapes."""
    files = sorted(path for path in folder.iterdir() if path.name.endswith((".json", ".gz")))
    if jobs == 1:
        found = [cover(path) for path in files]
    else:
        with ProcessPoolExecutor(jobs) as pool:
            found = list(pool.map(cover, files))
    return [one for one in found if one is not None and one.kernel_us > 0]


def total_share(covers: Sequence[Coverage], amount: str = "modelled_us") -> float:
    """A part of the kernel time of all GPU traces."""
    counted = [one for one in covers if one.counts]
    return sum(getattr(one, amount) for one in counted) / sum(one.kernel_us for one in counted)


def page(covers: Sequence[Coverage]) -> str:
    """The tables with their totals."""
    counted = [one for one in covers if one.counts]
    violations = [f"{one.name}: {text}" for one in counted for text in one.violations]
    eager = [one.share(one.modelled_us) for one in counted if one.eager]

    def share(amount: str) -> str:
        return _share(total_share(covers, amount))

    lines = [
        f"{len(counted)} GPU traces with shapes, {_ms(sum(one.kernel_us for one in counted))} ms of compute kernels: "
        f"{share('linked_us')} linked to an op outside a replayed graph, **{share('modelled_us')} modelled**. "
        f"Of the kernel time, {share('completed_us')} is modelled with facts that the call itself does not record: "
        f"sizes or dtypes from kernel names and neighbours, or, for {share('matched_us')}, a matching kernel (for "
        f"{share('capture_us')} in another file that recorded the graph's capture). For {share('wide_us')} the bytes "
        "may be more than twice the least that the cost allows. "
        f"The lowest modelled share of the {len(eager)} eager H100 and MI300X traces (★) is at "
        f"**{_share(min(eager, default=0.0))}**. "
        f"Collectives ({_ms(sum(one.collective_us for one in counted))} ms) and copies "
        f"({_ms(sum(one.copy_us for one in counted))} ms) are judged by the bytes on their link and not counted here.",
        "",
        f"Of {sum(one.groups for one in counted)} groups of kernels with a modelled cost, on devices with known peaks, "
        f"**{len(violations)} have a floor above the measured time + 3 %** once the cache is counted; "
        f"{sum(one.cached for one in counted)} lie above the plain DRAM roof: a cache served them. (For an MI300X the "
        "cache is its 256 MB, so that this test is lenient there.)",
        *(f"- {text}" for text in violations),
        "",
        "| trace | device | kernels ms | linked | modelled | with help | by match | most unmodelled time |",
        "|---|---|---|---|---|---|---|---|",
        *map(_row, covers),
        "",
        "Unmodelled work over all of these, by time:",
        "",
        "| share | op: reason |",
        "|---|---|",
        *_reason_rows(counted),
    ]
    return "\n".join(lines)


def _row(one: Coverage) -> str:
    largest = one.unmodelled_us.index[0] if len(one.unmodelled_us) else ""
    if len(one.unmodelled_us) and one.share(float(one.unmodelled_us.iloc[0])) < 0.0005:
        largest = ""
    name = one.name.replace("__", "/") + ("` ★" if one.eager else "`")
    device = one.device if one.counts else f"{one.device} ({one.flavour}: no GPU, not counted)"
    shares = " | ".join(
        _share(one.share(us)) for us in (one.linked_us, one.modelled_us, one.completed_us, one.matched_us)
    )
    return f"| `{name} | {device} | {_ms(one.kernel_us)} | {shares} | {_escaped(largest)} |"


def _reason_rows(counted: Sequence[Coverage]) -> list[str]:
    whole = sum(one.kernel_us for one in counted)
    reasons = pd.concat([one.unmodelled_us for one in counted]).groupby(level=0).sum().sort_values(ascending=False)
    shown = [f"| {_share(us / whole)} | {_escaped(reason)} |" for reason, us in reasons.head(_SHOWN_REASONS).items()]
    rest = reasons.iloc[_SHOWN_REASONS:]
    return [*shown, f"| {_share(rest.sum() / whole)} | {len(rest)} others |"] if len(rest) else shown


def _escaped(text: object) -> str:
    return str(text).replace("|", "\\|").replace("<", "&lt;")


def _share(share: float) -> str:
    """A nonzero share never prints as 0 %, a partial one never as 100 %."""
    if 0 < share < 0.0005:
        return "<0.1%"
    return ">99.9%" if 0.9995 <= share < 1 else f"{share:.1%}"


def _ms(us: float) -> str:
    return f"{us / 1e3:.2f}" if us < 1e4 else f"{us / 1e3:.1f}"


def main() -> int:
    """Surveys the folder; the exit status is 1 when a floor exceeds the measured time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", type=Path, help="page that holds the coverage markers")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    covers = survey(options.folder, options.jobs)
    text = page(covers)
    if options.write:
        write_between_markers(options.write, "coverage", text)
        print(f"{total_share(covers):.2%} modelled")
    else:
        print(text)
    return int(any(one.violations for one in covers if one.counts))


if __name__ == "__main__":
    sys.exit(main())
