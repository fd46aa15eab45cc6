"""Asks what-if of a public trace, and holds the answer against a second trace that differs by one known change.

    python -m benchmarks.whatif_pairs [--traces FOLDER] [--write]

The simulator predicts what a change of the work does to the step, not how long a kernel that nobody has run will take.
Where a pair replaces kernels, the new times are those of the second trace ("kernel times of the second"): the pair then
tests whether the step follows. ``--write`` renews the table of ``benchmarks/results/simulator.md``.
"""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from benchmarks.pages import write_between_markers
from benchmarks.replay import PAGE, TRACES
from bottleneck.pipeline import examine
from bottleneck.schema.analysis import StepAnalysis
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.sources import find_traces
from bottleneck.simulate.whatif import ask

HEADER = (
    "| pair | known change | asked | told besides | step before | predicted | measured "
    "| speedup predicted | measured |\n"
    "|---|---|---|---|---:|---:|---:|---:|---:|"
)
NOTHING, TIMES, COPY_TIMES = "nothing", "kernel times of the second", "copy times of the second"
Changes = Callable[[Evidence, Evidence], tuple[str, ...]]


@dataclass(frozen=True)
class Pair:
    """Two public traces, the change between them in words and for the replay; ``note`` explains the result."""

    name: str
    before: str
    after: str
    known: str
    changes: Changes
    told: str
    note: str


def kernel_us(analysis: StepAnalysis, pattern: str) -> float:
    """Time per step of the kernels whose names fit."""
    return math.fsum(kernel.us for kernel in analysis.kernels if fnmatchcase(kernel.name, pattern))


def mean_us(analysis: StepAnalysis, pattern: str) -> float:
    """Mean time of one run of these kernels."""
    calls = math.fsum(kernel.calls for kernel in analysis.kernels if fnmatchcase(kernel.name, pattern))
    return kernel_us(analysis, pattern) / calls


def _without_loading(_before: Evidence, _after: Evidence) -> tuple[str, ...]:
    return ("remove input",)


def _one_pass(_before: Evidence, after: Evidence) -> tuple[str, ...]:
    dequantize, activation = (mean_us(after.analysis, name) for name in ("triton__0d1d2d3d4d5d67d", "triton__0d1d2d"))
    return (
        "remove kernel:*direct_copy*",
        "remove kernel:*kDequantizeBlockwise<float*",
        "remove kernel:*CUDAFunctor_add<float>*",
        f"set kernel:*kDequantizeBlockwise<__half*={dequantize:.0f}us",
        "remove kernel:*silu*",
        f"set kernel:*MulFunctor*={activation:.0f}us",
    )


def _products_in_int8(one: Evidence, other: Evidence) -> tuple[str, ...]:
    before, after = one.analysis, other.analysis
    products_us = kernel_us(before, "*gemm_bf16*")
    factor = (products_us + after.totals.busy_us - before.totals.busy_us) / products_us
    return (f"set kernel:*gemm_bf16*={factor:.2f}x",)


def _all_kernels(before: Evidence, after: Evidence) -> tuple[str, ...]:
    return (f"set kernel={after.analysis.totals.busy_us / before.analysis.totals.busy_us:.2f}x",)


def _pinned_and_together(_before: Evidence, after: Evidence) -> tuple[str, ...]:
    copies = after.linked.kernels
    ways = ((way, copies["dur_us"][copies["name"].str.contains(way)].mean()) for way in ("HtoD", "DtoH"))
    return (*(f"set copy:*{way}*={us:.0f}us" for way, us in ways), "set host:launch=0.01x", "overlap copy")


_COPIES = "pytorch+benchmark__trace"
_KINETO = "pytorch+kineto__tb_plugin__samples__resnet50_num_workers_"
_NUGGETS = "drisspg+transformer_nuggets__benchmarks__data__4096_8_128_"
_VIT = "pytorch+ao__tutorials__quantize_vit__"
_SAM = "pytorch-labs+segment-anything-fast__amg_example__asdf_"
PAIRS = (
    Pair(
        "resnet50, kineto",
        f"{_KINETO}0__worker0.1623143566756.pt.trace.json.gz",
        f"{_KINETO}4__worker0_at_7bd25bd.pt.trace.json.gz",
        "loader without workers, then with 4",
        _without_loading,
        NOTHING,
        "a miss: the wait for data is gone, but beside four workers the host issues at about half the pace "
        "(dispatch 12 ms, then 45 ms of the idle time), which no trace of the first run shows",
    ),
    Pair(
        "dequantized linear layers",
        f"{_NUGGETS}bnb.json.gz",
        f"{_NUGGETS}qlora.json.gz",
        "four passes that dequantize, then one compiled kernel",
        _one_pass,
        TIMES,
        "the second runs compiled code, which also issues in less time: its host is not asked about",
    ),
    Pair(
        "vision transformer",
        f"{_VIT}bfloat16_at_05a20b2.json.gz",
        f"{_VIT}quant_at_1f5f03b.json.gz",
        "products in bfloat16, then in int8 with the kernels that it needs",
        _products_in_int8,
        TIMES,
        "the device binds before and after",
    ),
    Pair(
        "copies alone",
        f"{_COPIES}3.json.gz",
        f"{_COPIES}.json.gz",
        "from and to pageable memory in turns, then pinned and together",
        _pinned_and_together,
        COPY_TIMES,
        "a call for pageable memory holds the host while it stages; without asking for that too the host binds, at "
        "33 ms",
    ),
    Pair(
        "segment anything",
        f"{_SAM}False_at_9ab058c.json.gz",
        f"{_SAM}True_at_c84af29.json.gz",
        "eager in float32, then compiled in bfloat16",
        _all_kernels,
        TIMES,
        "several changes at once: what waits for the device shrinks with it",
    ),
)
LEFT_OUT = (
    "The other pairs of the folder differ by more than one change: `trace_diff` of HolisticTraceAnalysis has products "
    "in its second trace that the first has none of; of the traces of CodingPlatelets one runs on a CPU, two are over "
    "80 % start-up and one has other sizes; `asdf_True_at_02c6e09` launches a quarter of the kernels of the other two."
)


@cache
def evidence_of(path: Path) -> Evidence:
    """The evidence of a trace."""
    return examine(find_traces(path)[0])


def row_of(pair: Pair, folder: Path) -> str:
    """A row of the table."""
    before, after = evidence_of(folder / pair.before), evidence_of(folder / pair.after)
    changes = pair.changes(before, after)
    answer = ask(before, changes)
    assert answer.changed is not None, f"{pair.before}: {answer.path.check.reason}"
    step, speedup = answer.changed.step_us, answer.changed.speedup
    measured_us = after.analysis.steps.wall_us
    cells = (
        pair.name,
        pair.known,
        "<br>".join(f"`{change}`".replace("|", "") for change in changes),
        pair.told,
        f"{answer.step_us / 1e3:.2f} ms",
        f"{step.low / 1e3:.2f} to {step.high / 1e3:.2f} ms",
        f"{measured_us / 1e3:.2f} ms",
        f"{speedup.low:.2f} to {speedup.high:.2f}",
        f"{answer.step_us / measured_us:.2f}",
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Prints the table, and writes it where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, default=TRACES)
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args()
    table = "\n".join((HEADER, *(row_of(pair, chosen.traces) for pair in PAIRS)))
    notes = "\n".join(f"- {pair.name}: {pair.note}." for pair in PAIRS)
    print("\n".join((table, "", notes, "", LEFT_OUT)))
    if chosen.write:
        write_between_markers(PAGE, "pairs", f"\n{table}\n\n{notes}\n\n{LEFT_OUT}\n")


if __name__ == "__main__":
    main()
