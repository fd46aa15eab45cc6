"""Holds predicted times of products of 8-bit integers against published ones, and learns the share of the peak.

python -m benchmarks.int8_products           prints measured over predicted time by source, also with each held out
python -m benchmarks.int8_products --ship    puts the shares into bottleneck/predict/int8_products.csv

int8_timings.csv holds the products, in microseconds:

bitsandbytes   its kernel in Triton, which restores the scale and writes half precision (benchmarking/switchback/
               info_a100_py2.jsonl, rowwise_fwd); the page names an A100, one of 80 GB is assumed
sglang, vllm   kernels of CUTLASS that do the same, on an A100 (sglang, pull requests 2752, 2774 and 3093)
cheddar        32-bit results by CUTLASS on an A100 (comment in the header of PcmmBlasHandler)
cutlass        32-bit results by torch._int_mm on an H100, which takes the kernel of an A100 (public notes beside
               cutlass_int8_sm90)

Each source weighs the same. A generation that was not timed has the share of the A100, for whose instructions the
kernels are made.
"""

import argparse
import csv
import math
import statistics
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from bottleneck.devices.match import device_by_name
from bottleneck.predict.rates import as_columns, ceilings_of, read_rates, times
from bottleneck.predict.step_kernels import Kernel
from bottleneck.predict.tensor_products import INT8_TABLE, OTHERS, of_generation, product_rates
from bottleneck.schema.records import replace
from bottleneck.schema.step_calls import EngineSettings

TIMINGS = Path(__file__).with_name("int8_timings.csv")
_TURNS = 20
# The generation whose share the others have.
_MODEL = "8.0"


def main() -> None:
    """Learns, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ship", action="store_true")
    options = parser.parse_args()
    with TIMINGS.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    generations = {device_by_name(row["device"]).architecture or OTHERS for row in rows}
    shares = {name: learn_share(rows, name) for name in generations}
    for source in dict.fromkeys(row["source"] for row in rows):
        own = [row for row in rows if row["source"] == source]
        generation = device_by_name(own[0]["device"]).architecture or OTHERS
        others = [row for row in rows if row["source"] != source]
        ratios = sorted(ratio(row, shares[generation]) for row in own)
        text = f"{source:13} {len(own):2} on {generation}: {statistics.median(ratios):.2f}"
        text += f" ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        if any(device_by_name(row["device"]).architecture == generation for row in others):
            share = learn_share(others, generation)
            text += f", held out {statistics.median(ratio(row, share) for row in own):.2f}"
        print(text)
    if options.ship:
        _ship(shares, rows)


def learn_share(rows: Sequence[dict[str, str]], generation: str) -> float:
    """Returns the share at which measured over predicted time is 1 in the mean of a generation's sources."""
    own = [row for row in rows if device_by_name(row["device"]).architecture == generation]
    share = of_generation(product_rates(), generation, "int8")
    for _ in range(_TURNS):
        share /= math.exp(statistics.mean(_medians(own, share)))
    return share


def _medians(rows: Sequence[dict[str, str]], share: float) -> Collection[float]:
    sources = {row["source"] for row in rows}
    return [
        statistics.median(math.log(ratio(row, share)) for row in rows if row["source"] == source) for source in sources
    ]


def ratio(row: dict[str, str], share: float) -> float:
    """Returns measured over predicted time of a product at a share of the peak."""
    kernel = product_of(row)
    ceilings, _ = ceilings_of([kernel], EngineSettings(), device_by_name(row["device"]))
    ceilings = replace(ceilings, product_share=np.array([share]))
    return float(row["us"]) / float(times(as_columns([kernel]), ceilings, read_rates()).us[0])


def product_of(row: dict[str, str]) -> Kernel:
    """Returns the kernel of a timed product."""
    rows, columns, inner, result_bytes = (float(row[name]) for name in ("rows", "columns", "inner", "result_bytes"))
    stored = rows * columns * result_bytes
    return Kernel(
        "product",
        bytes=rows * inner + inner * columns + stored,
        flops=2.0 * rows * columns * inner,
        dtype="int8",
        rows=rows,
        columns=columns,
        inner=inner,
        element_bytes=1.0,
        stored_bytes=stored,
    )


def _ship(shares: dict[str, float], rows: Sequence[dict[str, str]]) -> None:
    lines = [["name", "value", "source"]]
    for generation, share in sorted(shares.items()):
        own = [row["source"] for row in rows if device_by_name(row["device"]).architecture == generation]
        source = f"{len(own)} products by {', '.join(dict.fromkeys(own))} (benchmarks/int8_products.py)"
        lines.append([f"{generation}:int8", f"{share:.4g}", source])
    lines.append(
        [f"{OTHERS}:int8", f"{shares[_MODEL]:.4g}", "as on an A100, for whose instructions the kernels are made"]
    )
    with INT8_TABLE.open("w", encoding="utf-8", newline="") as table:
        csv.writer(table, lineterminator="\n").writerows(lines)


if __name__ == "__main__":
    main()
