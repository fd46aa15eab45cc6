"""Costs of single calls by us, torch's FLOP counter, torch's profile_analysis and TraceLens, beside those by hand.

python -m benchmarks.compare_tools FOLDER                              prints the table
python -m benchmarks.compare_tools FOLDER --write benchmarks/results/cost.md
                                                                       puts it between the tools markers there

FOLDER holds the public traces. The tools run: ours on the whole trace, FlopCounterMode over the call itself, and the
two estimators of torch/_inductor/analysis/profile_analysis.py on the call's event. TraceLens does not run: its figures
are those of the reports in its repository, whose files and commits ``compare_cases`` names.
"""

import argparse
import gzip
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch._inductor.analysis import profile_analysis
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.compare_cases import CASES, TRACELENS_FILES, TRACES, Case
from benchmarks.pages import write_between_markers
from bottleneck.cost import compute_costs
from bottleneck.pipeline import analyse
from bottleneck.schema.analysis import Analysis

_MIB = 2**20


@dataclass(frozen=True)
class Amounts:
    """FLOPs, and bytes as an interval; null where a tool has none; ``error`` is what it raised instead."""

    flops: float | None = None
    low: float | None = None
    high: float | None = None
    error: str | None = None


@dataclass(frozen=True)
class Compared:
    """One call through all tools."""

    case: Case
    hand: Amounts
    ours: Amounts
    counter: Amounts
    profile_analysis: Amounts
    tracelens: Amounts | None


def by_hand(case: Case) -> Amounts:
    """The FLOPs and bytes of the case by hand."""
    flops = None if case.flops is None else float(eval(case.flops, {"__builtins__": {}}))
    moved = float(eval(case.bytes, {"__builtins__": {}}))
    return Amounts(flops, moved, moved)


def tensors(case: Case) -> Callable[..., Any]:
    """A maker of the tensors of a case, in the dtype that its title names, without data for calls of GPUs."""
    device = "cpu" if case.source == "CPU" else "meta"
    usual = torch.bfloat16 if "bf16" in case.title else torch.float32

    def make(*shape: int, dtype: str | None = None) -> torch.Tensor:
        return torch.zeros(shape, dtype=getattr(torch, dtype) if dtype else usual, device=device)

    return make


def recorded_event(case: Case, folder: Path) -> dict[str, Any]:
    """The profiler's event of the call: from the public trace, or recorded now."""
    if case.source in TRACES:
        dims = json.loads(case.dims or "null")
        events = _launching_ops(folder / TRACES[case.source])
        return next(e for e in events if e["name"] == case.op and e["args"].get("Input Dims") == dims)
    make = tensors(case)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        case.work(make)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return next(event for event in events if event.get("name") == case.op)


@cache
def _launching_ops(path: Path) -> list[dict[str, Any]]:
    """The events of the ops that issued device work; the ids of these traces can be trusted."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    issuing = {e["args"].get("External id") for e in events if e.get("cat") in {"kernel", "gpu_memcpy"}}
    return [e for e in events if e.get("cat") == "cpu_op" and e["args"]["External id"] in issuing]


@cache
def _analysed(path: Path) -> Analysis:
    return analyse([path])


def ours(case: Case, event: Mapping[str, Any], folder: Path) -> Amounts:
    """Our cost: of the call's kernels in the analysis of the whole trace, or of the event alone."""
    if case.source in TRACES:
        return _ours_in_trace(case, _analysed(folder / TRACES[case.source]))
    keys = {"dims": "Input Dims", "types": "Input type", "strides": "Input Strides", "concrete": "Concrete Inputs"}
    args = event["args"]
    call = {"name": case.op, **{name: json.dumps(args[key]) for name, key in keys.items() if key in args}}
    cost = compute_costs(pd.DataFrame([call])).iloc[0]
    return Amounts(cost["matrix_flops"] + cost["vector_flops"], cost["bytes_low"], cost["bytes_high"])


def _ours_in_trace(case: Case, analysis: Analysis) -> Amounts:
    rows = [row for row in analysis.kernels if (row.op, row.shapes) == (case.op, case.dims)]
    modelled = [row for row in rows if row.bytes_low]
    if not modelled:  # a copy, which is judged by the bytes that cross the link
        return Amounts(0.0, analysis.totals.h2d_bytes, analysis.totals.h2d_bytes)
    # A call has a row per kernel, and calls from different lines have rows of their own.
    lines = {(row.source, row.module) for row in modelled}
    calls = sum(max(row.calls for row in modelled if (row.source, row.module) == line) for line in lines)
    amounts = (
        sum(getattr(row, name) or 0.0 for row in modelled) / calls for name in ("flops", "bytes_low", "bytes_high")
    )
    return Amounts(*amounts)


def counted(case: Case) -> Amounts:
    """The figures of torch's FLOP counter for the call; it counts no bytes."""
    make = tensors(case)
    with FlopCounterMode(display=False) as counter:
        case.work(make)
    return Amounts(float(counter.get_total_flops()))


def estimated(event: Mapping[str, Any]) -> Amounts:
    """The figures of profile_analysis' two estimators for the event; FLOPs and bytes fail each for themselves."""
    found: list[float | None] = []
    errors = []
    for estimate in (profile_analysis._calculate_flops, profile_analysis._estimate_gb):
        try:
            found.append(float(estimate(json.loads(json.dumps(event)))))
        except Exception as error:  # theirs, whatever it is, is the finding
            found.append(None)
            errors.append(type(error).__name__)
    flops, gigabytes = found
    moved = None if gigabytes is None else 1e9 * gigabytes
    return Amounts(flops, moved, moved, ", ".join(errors) or None)


def fails_on(path: Path) -> str | None:
    """The error that profile_analysis ends with on a whole trace; null when it reaches the end."""
    with tempfile.TemporaryDirectory() as scratch:
        plain = Path(scratch) / "trace.json"
        plain.write_bytes(gzip.decompress(path.read_bytes()))
        try:
            profile_analysis.JsonProfile(str(plain)).augment_trace()
        except Exception as error:  # theirs, whatever it is, is the finding
            return type(error).__name__
    return None


def published(case: Case) -> Amounts | None:
    """TraceLens' printed row in FLOPs and bytes; null where it printed none."""
    if case.published is None:
        return None
    gflop, mib = case.published
    moved = None if mib is None else mib * _MIB
    return Amounts(None if gflop is None else 1e9 * gflop, moved, moved)


def compare(case: Case, folder: Path) -> Compared:
    """One call through all tools."""
    event = recorded_event(case, folder)
    return Compared(case, by_hand(case), ours(case, event, folder), counted(case), estimated(event), published(case))


def page(compared: list[Compared], failures: Mapping[str, str | None]) -> str:
    """The table and what must be known to read it."""
    failing = ", ".join(f"{name} ({error})" for name, error in failures.items() if error)
    files = "; ".join(f"`{path}` at {commit}" for path, commit in TRACELENS_FILES.values())
    stops = f" As a whole, profile_analysis does not get through {failing}: its figures are of the single events."
    lines = [
        f"{len(compared)} calls. GFLOP count a multiply-add as two; MB are decimal. Bytes of ours are an interval "
        "where the trace leaves something open. TraceLens' figures are those of the reports in its own repository, "
        "MiB made MB: "
        f"{files}; 'not printed' means that they hold no such call, 'none' that its row is empty."
        + (stops if failing else ""),
        "",
        "| call (from) | by hand | ours | FLOP counter | profile_analysis | TraceLens | who is right, and why |",
        "|---|---|---|---|---|---|---|",
        *map(_row, compared),
    ]
    return "\n".join(lines)


def _row(one: Compared) -> str:
    case = one.case
    flops = "FLOPs: convention" if case.flops is None else f"{_times(case.flops)} = {_gflop(one.hand.flops)}"
    hand = f"{flops}; {_times(case.bytes)} = {_mb(one.hand)}"
    lens = "not printed" if one.tracelens is None else _amounts(one.tracelens)
    cells = (
        f"{case.title} ({case.source})",
        hand,
        _amounts(one.ours),
        _gflop(one.counter.flops),
        _amounts(one.profile_analysis),
        lens,
        case.verdict,
    )
    return "| " + " | ".join(cells) + " |"


def _times(text: str) -> str:
    return text.replace(" * ", "·").replace("*", "·")


def _amounts(amounts: Amounts) -> str:
    told = "; ".join(text for text in (_gflop(amounts.flops), _mb(amounts)) if text)
    return "; ".join(part for part in (told or None if amounts.error else told or "none", amounts.error) if part)


def _gflop(flops: float | None) -> str:
    return "" if flops is None else f"{flops / 1e9:.5g} GFLOP"


def _mb(amounts: Amounts) -> str:
    if amounts.low is None or amounts.high is None:
        return ""
    low, high = f"{amounts.low / 1e6:.5g}", f"{amounts.high / 1e6:.5g}"
    return f"{low} MB" if low == high else f"{low} to {high} MB"


def main() -> int:
    """Compares and prints or writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", type=Path, help="page that holds the tools markers")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")  # torch's, about ops that it calls experimental
    compared = [compare(case, options.folder) for case in CASES]
    text = page(compared, {name: fails_on(options.folder / file) for name, file in TRACES.items()})
    if options.write:
        write_between_markers(options.write, "tools", text)
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
