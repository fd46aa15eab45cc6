"""Holds predicted speedups against KernelBench's pairs of times, and learns how wide they must be.

The pairs are of eager and compiled times, and of eager times of different programs: for changes of a program that is
run as before.

python -m benchmarks.kernelbench.gains FOLDER          prints how many lie inside, by the way to run a step
python -m benchmarks.kernelbench.gains FOLDER --ship   and puts the factors into the package's table of intervals

The times are those of rates that were learned without the program, and so are the factors: programs are held out in
groups. Both steps of a pair run on one machine, whose pace is not told.
"""

import argparse
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.kernelbench.judge import (
    Judged,
    Speedup,
    covering,
    folds,
    judge,
    learn,
    samples,
    speedups,
    write_intervals,
)
from benchmarks.kernelbench.programs import Key, Timing, read_steps, read_timings
from bottleneck.devices.match import device_by_name
from bottleneck.predict.gains import half_width
from bottleneck.predict.interval import GAIN, read_spreads
from bottleneck.predict.price import PricedWork, price_work
from bottleneck.schema.step_calls import StepCalls

# A program is held against those that stand so much farther in the order of programs: similar and other ones.
_FARTHER = (1, 7, 31, 53)


@dataclass(frozen=True)
class PricedPair:
    """A pair of times, the error of its predicted speedup, and half the interval on that side, as logarithms."""

    pair: Speedup
    error: float
    half: float

    @property
    def program(self) -> str:
        """The program, by which pairs are held out."""
        return self.pair.after.timing.program

    @property
    def run(self) -> str:
        """How the compiled step is run."""
        return self.pair.after.run

    @property
    def score(self) -> float:
        """How many times the interval has to be as wide."""
        return abs(self.error) / max(self.half, 1e-6)


def other_programs(judged: Sequence[Judged]) -> Iterator[Speedup]:
    """Eager times of a machine in pairs of programs."""
    eager = [one for one in judged if one.timing.backend == "eager"]
    for machine in sorted({one.timing.machine for one in eager}):
        mine = [one for one in eager if one.timing.machine == machine]
        mine.sort(key=lambda one: (one.timing.program, one.timing.key))
        for steps in _FARTHER:
            for position, one in enumerate(mine):
                other = mine[(position + steps) % len(mine)]
                if other.timing.program != one.timing.program:
                    yield Speedup(one, other)


def priced_pairs(found: Sequence[Speedup], steps: Mapping[Key, StepCalls]) -> list[PricedPair]:
    """Each pair of times with the interval of its speedup before any factor."""
    pairs = []
    for speedup in found:
        before, after = (_price(side.timing, steps) for side in (speedup.before, speedup.after))
        if isinstance(before, str) or isinstance(after, str):
            continue
        error = math.log(speedup.measured / speedup.predicted)
        low, high = half_width(before, after)
        pairs.append(PricedPair(speedup, error, high if error > 0 else low))
    return pairs


def _price(timing: Timing, steps: Mapping[Key, StepCalls]) -> PricedWork | str:
    return price_work(steps[timing.key], device_by_name(timing.hardware), timing.backend)


def factors(pairs: Sequence[PricedPair]) -> dict[str, float]:
    """The factor by the way to run a step."""
    return {
        run: covering([(each.program, each.score) for each in pairs if each.run == run])
        for run in sorted({each.run for each in pairs})
    }


def inside(pairs: Sequence[PricedPair]) -> list[tuple[PricedPair, float]]:
    """Each pair with the factor that the other programs taught."""
    found = []
    for held in folds(each.program for each in pairs):
        learned = factors([each for each in pairs if each.program not in held])
        found += [(each, learned[each.run]) for each in pairs if each.program in held]
    return found


def main() -> None:
    """Reads, learns, judges, prints and ships."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ship", action="store_true")
    wanted = parser.parse_args()
    timings = read_timings(wanted.folder)
    steps, _ = read_steps(wanted.folder)
    eager, compiled = samples(timings, steps)
    judged = judge(eager, compiled, learn(eager, compiled))
    pairs = priced_pairs([*speedups(judged), *other_programs(judged)], steps)
    held = inside(pairs)
    print("| way to run | pairs | inside | median high / low | right sign beyond 5 % | factor |\n" + "| --- " * 6 + "|")
    learned = factors(pairs)
    for run in learned:
        mine = [(each, factor) for each, factor in held if each.run == run]
        clear = [each for each, _ in mine if abs(math.log(each.pair.measured)) > math.log(1.05)]
        share = sum(each.score <= factor for each, factor in mine) / len(mine)
        width = statistics.median(math.exp(2 * factor * each.half) for each, factor in mine)
        sign = sum((each.pair.measured > 1) == (each.pair.predicted > 1) for each in clear) / max(len(clear), 1)
        print(f"| {run} | {len(mine)} | {share:.1%} | {width:.2f} | {sign:.1%} of {len(clear)} | {learned[run]:.2f} |")
    if wanted.ship:
        ship(learned, pairs)


def ship(learned: dict[str, float], pairs: Sequence[PricedPair]) -> None:
    """Puts the factors into the package's table, in place of those that are there."""
    counts = {run: sum(each.run == run for each in pairs) for run in learned}
    rows = [(f"{GAIN}{run}", f"{factor:.3f}", counts[run]) for run, factor in learned.items()]
    others = tuple(name for name in read_spreads() if not name.startswith(GAIN))
    write_intervals(rows, others)


if __name__ == "__main__":
    main()
