"""The cost of following the steps to the program in the unprofiled phase, in microseconds of CPU time per step.

python -m benchmarks.hook_cost [--pairs 2000] [--after]
python -m benchmarks.hook_cost --watch [--pairs 60]

With ``--after``, of what follows a script's steps once all is measured. The samples of the stack are no part of it.
With ``--watch``, of `bottleneck watch`, whose log is written meanwhile; a turn then has some hundred steps.

One process, one thread: a few steps with the hooks of `bottleneck run` and a few without them take turns, so that both
meet the same memory layout, clock and company; pairs of whole runs (benchmarks.disturbance) vary by more than the
hooks cost, and so do long turns. Sensors run in another process and are no part of this. The interval is that of the
median difference of a pair, by order statistics.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from bottleneck.harness.boundaries import Boundaries
from bottleneck.harness.messages import Program
from bottleneck.harness.run_log import RunLog
from bottleneck.harness.step_log import StepLog
from bottleneck.harness.step_watch import StepWatch
from bottleneck.harness.stopwatch import Stopwatch
from bottleneck.harness.watched_windows import WatchedWindows, WindowWishes
from bottleneck.schema.statistics import summarise_durations

Step = Callable[[], object]


def main() -> None:
    """Prints a table with a row per program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int)
    parser.add_argument("--after", action="store_true")
    parser.add_argument("--watch", action="store_true")
    arguments = parser.parse_args()
    if arguments.watch:
        return watched(arguments.pairs or 60)
    pairs = arguments.pairs or 2000
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print("| steps | found by | bare step | more per step | of the step | pairs |\n|---|---|---:|---:|---:|---:|")
    # Inference first: once an optimizer has been made, its steps are waited for.
    for name, make in (("mlp-inference", inference), ("mlp", mlp), ("transformer", transformer)):
        step, block = make()
        followed = _Followed(is_after=arguments.after)
        print(_row(name, step, block, max(10, pairs // (2 if block == 1 else 1)), followed))
    return None


def watched(pairs: int) -> None:
    """Prints what `bottleneck watch` adds to training steps."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print("| steps | found by | bare step | more per step | of the step | pairs |\n|---|---|---:|---:|---:|---:|")
    for name, (step, _), block in (("mlp", mlp(), 128), ("a step of 1 ms", millisecond(), 64)):
        print(_row(name, step, block, pairs, _Watched()))
        # What such a comparison shows where nothing is watched.
        print(_row(f"{name}, not watched", step, block, pairs, _Watched(is_on=False)))


def _row(name: str, step: Step, block: int, pairs: int, followed: "_Followed | _Watched") -> str:
    for _ in range(3 * block):
        step()
    bare_us, more_us = [], []
    for number in range(pairs):
        # In turns, so that a drift hits both alike.
        first = number % 2 == 0
        once = followed.time_us(step, block) if first else _time_us(step, block)
        again = _time_us(step, block) if first else followed.time_us(step, block)
        bare, hooked = (again, once) if first else (once, again)
        bare_us.append(bare)
        more_us.append(hooked - bare)
    usual, more = statistics.median(bare_us), summarise_durations(more_us)
    assert more is not None
    shares = f"{more.median / usual:+.2%} ({more.low / usual:+.2%} to {more.high / usual:+.2%})"
    spread = f"{more.median:+.1f} us ({more.low:+.1f} to {more.high:+.1f})"
    return f"| {name} | {followed.source} | {usual:.0f} us | {spread} | {shares} | {pairs} |"


def _time_us(step: Step, block: int) -> float:
    """CPU microseconds of this thread per step. As many go before: changed hooks undo what Python has cached."""
    for _ in range(block):
        step()
    begin = time.thread_time_ns()
    for _ in range(block):
        step()
    return (time.thread_time_ns() - begin) / 1e3 / block


class _Followed:
    """Steps with the hooks of the unprofiled phase, or those that stay; they are put on before the clock runs."""

    def __init__(self, *, is_after: bool) -> None:
        self.source = ""
        self._is_after = is_after

    def time_us(self, step: Step, block: int) -> float:
        stopwatch = Stopwatch(None)
        boundaries = Boundaries(stopwatch.mark, self._note)
        boundaries.watch(torch)
        try:
            for _ in range(3):
                step()
            boundaries.narrow()
            seen = stopwatch.steps
            log = RunLog()
            if self._is_after:
                assert boundaries.only_tell(log.mark, log.stop_sampling), "these steps cost little to follow"
            took_us = _time_us(step, block)
            assert stopwatch.steps + len(log.ticks) == seen + 2 * block, "each step was followed"
            return took_us
        finally:
            boundaries.forget()

    def _note(self, _source: str, name: str) -> None:
        self.source = name


class _Watched:
    """Steps that are watched, with the log that is written meanwhile; the same without, where it is off."""

    def __init__(self, *, is_on: bool = True) -> None:
        self.source = ""
        self._is_on = is_on

    def time_us(self, step: Step, block: int) -> float:
        with tempfile.TemporaryDirectory() as folder:
            # As the command has them. None opens: a turn is over before the first could.
            wishes = WindowWishes(Program("steps.py", form="script"), at_slow_steps=2)
            windows = WatchedWindows(Path(folder), wishes, time.perf_counter_ns)
            watch = StepWatch(StepLog(Path(folder), 0), None, 0, 1, windows=windows)
            if self._is_on:
                watch.start()
            try:
                for _ in range(80):  # the first steps are looked at for what usual ones are, and for memory
                    step()
                took_us = _time_us(step, block)
                self.source = watch.header.step_name
            finally:
                watch.finish(0)
            assert not windows.recorded
            steps = 2 * block + 79 if self._is_on else 0
            assert watch.header.steps == steps, "each step was watched, or none"
            return took_us


def inference() -> tuple[Step, int]:
    """A step of a tenth of a millisecond without an optimizer, and how many of them make a turn."""
    model, inputs = _small(), torch.randn(32, 64)

    def step() -> object:
        with torch.no_grad():
            return model(inputs)

    return step, 20


def mlp() -> tuple[Step, int]:
    """A training step of a tiny network, and how many of them make a turn."""
    return _training(_small(), torch.randn(32, 64)), 5


def millisecond() -> tuple[Step, int]:
    """A training step of about a millisecond."""
    model = nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(256, 256), nn.ReLU())))
    return _training(model, torch.randn(24, 256)), 1


def transformer() -> tuple[Step, int]:
    """A training step of a small transformer, one of which makes a turn."""
    layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
    return _training(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(8, 64, 128)), 1


def _small() -> nn.Module:
    return nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.ReLU())))


def _training(model: nn.Module, inputs: torch.Tensor) -> Step:
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    main()
