"""By how much the sensors that `bottleneck run` reads beside a program slow it down.

python -m benchmarks.sampler_cost [--pairs 400] [--turn-s 0.4] [--threads 1 2]

A process reads the sensors as the supervisor does, every 20 ms where they have news as often. A training step goes on
all the time in another; the reader is stopped and resumed (SIGSTOP, SIGCONT) turn by turn, in a drawn order, so that a
turn with it and one without make a pair that meets the same machine. Whole runs vary by more than sensors cost. A
turn's time is that of all its steps; the interval is that of the median pair, by order statistics. With as many threads
as processors the reader has to share one with the step.
"""

import argparse
import math
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from benchmarks.hook_cost import mlp, transformer
from bottleneck.harness.nvml import NvmlSampler
from bottleneck.harness.sensors import HostSampler, Monitor
from bottleneck.schema.statistics import summarise_durations

PERIOD_S = 0.02
_STEPS = {"mlp": mlp, "transformer": transformer}


def main() -> None:
    """Prints a table with a row per program and number of threads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=400)
    parser.add_argument("--turn-s", type=float, default=0.4)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, len(os.sched_getaffinity(0))])
    asked = parser.parse_args()
    print("| steps | threads | bare step | with sensors, of the step | pairs |\n|---|---:|---:|---:|---:|")
    for threads in asked.threads:
        for name, make in _STEPS.items():
            torch.set_num_threads(threads)
            torch.manual_seed(0)
            step, _ = make()
            with reader() as process:
                print(f"| {name} | {threads} | {row(step, process, asked.pairs, asked.turn_s)}", flush=True)


@contextmanager
def reader() -> Iterator[int]:
    """A process that reads the sensors beside this one, until the end of the block."""
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=_read, args=(os.getpid(), ready), daemon=True)
    process.start()
    ready.wait()
    assert process.pid is not None
    try:
        yield process.pid
    finally:
        process.kill()
        process.join()


def _read(program: int, ready: "multiprocessing.synchronize.Event") -> None:
    Monitor((NvmlSampler(), HostSampler()), PERIOD_S).start(program)
    ready.set()
    signal.pause()


def row(step: Callable[[], object], process: int, pairs: int, turn_s: float) -> str:
    """The result of so many pairs of turns."""
    draw = random.Random(0)
    for _ in range(20):
        step()
    began = time.perf_counter()
    for _ in range(20):
        step()
    steps = max(1, round(turn_s / ((time.perf_counter() - began) / 20)))
    bare_us, logs = [], []
    for _ in range(pairs):
        order = [signal.SIGCONT, signal.SIGSTOP]
        draw.shuffle(order)
        took = {number: _turn_us(step, steps, process, number) for number in order}
        bare_us.append(took[signal.SIGSTOP])
        logs.append(math.log(took[signal.SIGCONT] / took[signal.SIGSTOP]))
    bare, more = summarise_durations(bare_us), summarise_durations(logs)
    assert bare is not None and more is not None
    median, low, high = (math.expm1(each) for each in (more.median, more.low, more.high))
    return f"{bare.median:.0f} us | {median:+.2%} ({low:+.2%} to {high:+.2%}) | {pairs} |"


def _turn_us(step: Callable[[], object], steps: int, process: int, number: signal.Signals) -> float:
    """Microseconds of a step with the reader resumed or stopped; one step more goes before."""
    os.kill(process, number)
    if number == signal.SIGSTOP:  # which takes effect once the process is scheduled, late on a busy machine
        os.waitid(os.P_PID, process, os.WSTOPPED | os.WNOWAIT)
    step()
    began = time.perf_counter_ns()
    for _ in range(steps):
        step()
    return (time.perf_counter_ns() - began) / 1e3 / steps


if __name__ == "__main__":
    main()
