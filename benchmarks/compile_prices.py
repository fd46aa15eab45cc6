"""Checks the prices of graph breaks, guards and recompiles: takes each away, and measures what is saved.

python -m benchmarks.compile_prices [--rounds 5]

The program is benchmarks/planted_compile.py. Each variant runs in processes of its own, in turns, with one thread.
Steps are timed with warm caches, by the quickest of 40 blocks of 50 steps, in time of the processor: other programs
make blocks longer and never shorter. Compiling is timed with an empty cache and one thread, in time of the processor
with that of the C++ compiler. Prices are those of a recording by
`bottleneck run` of the whole program, with an empty cache too.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAM = Path(__file__).with_name("planted_compile.py")
VARIANTS = ("", "value", "print", "inserted", "guards", "size", "number")
_COMPILES = ("size", "number")
_STEPS, _BLOCKS = 50, 40


def main() -> None:
    """Prints a row per planted cost: predicted beside measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--child")
    arguments = parser.parse_args()
    if arguments.child is not None:
        print(json.dumps(_measure(arguments.child)))
        return
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/cache",
            "OMP_NUM_THREADS": "1",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }
        for variant in VARIANTS:
            _child(variant, environment)
        prices = _prices(Path(folder), {**environment, "TORCHINDUCTOR_CACHE_DIR": f"{folder}/recorded"})
        steps = [{one: _child(one, environment)["step_us"] for one in VARIANTS} for _ in range(arguments.rounds)]
        starts = [_starts(Path(folder) / str(turn), environment) for turn in range(arguments.rounds)]
    print("| taken away | predicted | saved, median (least to most) |\n|---|---:|---:|")
    for variant in VARIANTS[1:]:
        compiles = variant in _COMPILES
        unit, digits, turns = (" s of compiling", 2, starts) if compiles else (" us per step", 1, steps)
        saved = sorted(turn[""] - turn[variant] for turn in turns)
        low, middle, high = (round(one, digits) for one in (saved[0], statistics.median(saved), saved[-1]))
        print(f"| {variant} | {prices[variant]}{unit} | {middle} ({low} to {high}) |")


def _measure(variant: str) -> dict[str, float]:
    """Measures the time of a step, and of the compilations before it."""
    import torch  # noqa: PLC0415 - for children only

    from benchmarks.planted_compile import workload  # noqa: PLC0415

    torch.set_num_threads(1)
    begin_s = sum(os.times()[:4])
    step = workload(variant)
    start_s = sum(os.times()[:4]) - begin_s
    for _ in range(_STEPS):
        step()
    blocks = []
    for _ in range(_BLOCKS):
        begin_s = time.process_time()
        for _ in range(_STEPS):
            step()
        blocks.append((time.process_time() - begin_s) / _STEPS * 1e6)
    return {"step_us": min(blocks), "start_s": start_s}


def _child(variant: str, environment: dict[str, str]) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.compile_prices", "--child", variant]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def _starts(folder: Path, environment: dict[str, str]) -> dict[str, float]:
    """Times the compilations of variants, each with a cache of its own."""
    return {
        one: _child(one, {**environment, "TORCHINDUCTOR_CACHE_DIR": f"{folder}/{one or 'whole'}"})["start_s"]
        for one in ("", *_COMPILES)
    }


def _prices(folder: Path, environment: dict[str, str]) -> dict[str, str]:
    """Reads the prices that a report of the whole program states."""
    command = [sys.executable, "-m", "bottleneck", "run", "-q", "-o", f"{folder}/recording", str(PROGRAM)]
    subprocess.run(command, env=environment, capture_output=True, check=True)
    health = json.loads((folder / "recording" / "analysis.json").read_text())["compile_health"]
    prices = {one["cause"]: f"{one['price_us'][0]:.1f} to {one['price_us'][1]:.1f}" for one in health["breaks"]}
    guarded = next(graph for graph in health["graphs"] if graph["function"] == "guarded")
    others = [graph["guards_us"] for graph in health["graphs"] if graph["calls"] and graph is not guarded]
    # Without the many guards a lookup still takes what it takes for the other graphs.
    prices["guards"] = f"{guarded['guards_us'] - min(others):.1f}"
    for cause in ("size", "number"):
        seconds = [one["seconds"] for one in health["recompiles"] if one["cause"] == cause]
        prices[cause] = f"{sum(seconds):.2f}"
    return prices


if __name__ == "__main__":
    main()
