"""Times each program of this folder with and without its read of a tensor, in turns.

    OMP_NUM_THREADS=1 python -m benchmarks.no_gain

`bottleneck verify --no-gain` cannot try that change: the program has to be written otherwise. Here the read is written
as a tensor that stays one. A row has the median ratio of the times, and the interval of that median.
"""

import itertools
import random
import time
import types
from collections.abc import Callable
from pathlib import Path

import torch

from bottleneck.schema.statistics import summarise_durations

PROGRAMS = ("attention", "pictures", "projections", "regression", "tagger")
# How a read is written, and the same without one.
READS = ((".item()", ".detach()"), ("if bool((scores.argmax(-1) == 0).all()):", "if (scores.argmax(-1) == 0) is None:"))
_WARMUP, _STEPS, _PAIRS = 10, 10, 40

Step = Callable[[], object]


def main() -> None:
    """Prints the table."""
    print("| program | with the read / without it | pairs |\n|---|---|---:|")
    for name in PROGRAMS:
        path = Path(__file__).with_name(f"{name}.py")
        text = path.read_text()
        later = text
        for read, kept in READS:
            later = later.replace(read, kept)
        assert later != text, f"{name} has a read that is known"
        ratio = summarise_durations(ratios(load(path, text), load(path, later)))
        assert ratio is not None
        print(f"| {name} | {ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f}) | {_PAIRS} |", flush=True)


def load(path: Path, text: str) -> Step:
    """The step of a program, by its text."""
    module = types.ModuleType(path.stem)
    exec(compile(text, str(path), "exec"), vars(module))
    torch.manual_seed(0)
    step: Step = vars(module)["workload"]()
    return step


def ratios(before: Step, after: Step) -> list[float]:
    """How many times as long the one takes as the other, in turns of some steps."""
    for step in (before, after):
        for _ in range(_WARMUP):
            step()
    order = list(itertools.islice(itertools.cycle([(before, after), (after, before)]), _PAIRS))
    random.Random(0).shuffle(order)
    pairs = [{step: seconds(step) for step in pair} for pair in order]
    return [pair[before] / pair[after] for pair in pairs]


def seconds(step: Step) -> float:
    """The time of some steps."""
    begin = time.perf_counter()
    for _ in range(_STEPS):
        step()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
