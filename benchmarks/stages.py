"""Measures the CPU time of each stage of a report on one trace, beside orjson.loads of the same bytes.

    python benchmarks/stages.py TRACE [--megabytes 300]

TRACE is repeated up to the size given, in a temporary folder that is removed afterwards. CPU time; the best of three
for every stage but the reading.
"""

import argparse
import gc
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.repeat import repeat_trace
from bottleneck.analysis.ledger import build_ledger
from bottleneck.analysis.roofline import classify
from bottleneck.cost import compute_costs
from bottleneck.cost.attribution import attribute
from bottleneck.devices.match import match_device
from bottleneck.trace.kernels import describe_kernel
from bottleneck.trace.link import link
from bottleneck.trace.read import read_trace
from bottleneck.trace.steps import find_steps


def timed(work: Callable[[], Any], times: int = 3) -> tuple[Any, float]:
    """The result of the work and its least CPU time in seconds."""
    best = float("inf")
    for _ in range(times):
        began = time.process_time()
        result = work()
        best = min(best, time.process_time() - began)
    return result, best


def measure(path: Path) -> list[tuple[str, float]]:
    """Stages in order with their CPU seconds, orjson first."""
    gc.disable()
    baseline = timed(lambda: len(orjson.loads(path.read_bytes())), 1)[1]
    gc.enable()
    trace, read = timed(lambda: read_trace(path), 1)
    window, steps = timed(lambda: find_steps(trace))
    linked, links = timed(lambda: link(trace, window))
    costs, costing = timed(lambda: compute_costs(trace.signatures))
    attribution, attributing = timed(lambda: attribute(linked.ops, linked.kernels, costs))
    device, _ = match_device(
        trace.devices, [int(i) for i in trace.device_args["device"].dropna().unique()], trace.flavour
    )
    roofline, classes = timed(lambda: classify(linked.kernels, linked.ops, costs, attribution, device))
    ledger = timed(lambda: build_ledger(linked, roofline))[1]
    longest_name = timed(lambda: describe_kernel("fmha_fwd (" * 1_000_000))[1]
    return [
        ("orjson.loads", baseline),
        ("read", read),
        ("steps", steps),
        ("link", links),
        (f"costs ({len(trace.signatures)} signatures)", costing),
        ("attribution", attributing),
        (f"classify ({len(linked.kernels)} kernels)", classes),
        ("ledger", ledger),
        ("one kernel name of 10 MB", longest_name),
    ]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--megabytes", type=int, default=300)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        repeat_trace(options.trace, path, options.megabytes * 1_000_000)
        rows = measure(path)
    for name, seconds in rows:
        print(f"{name:<32} {seconds:8.3f} s  {seconds / rows[0][1]:6.3f} of orjson")


if __name__ == "__main__":
    main()
