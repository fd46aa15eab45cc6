"""Times steps in turns, as pairs or in rounds, so that drift of the machine reaches all of them alike."""

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bottleneck.experiment.worker import Refused, Worker
from bottleneck.schema.statistics import LOOKS, next_look

# A turn lasts at least this long: in a shorter one, ticks of the scheduler and caches that the other variant filled
# count too much (gate statistics, section 3.2).
TURN_US, STEPS_AT_LEAST, STEPS_AT_MOST = 50_000.0, 3, 2_000
# From here on a cache that was filled by the other variant is little, and turns of more steps would last too long.
LONG_US = 250_000.0

Clock = Callable[[], float]


@dataclass(frozen=True)
class TimedStep:
    """A variant in its process, and the time of its step once warm.

    ``prefetched`` is how many batches the loaders of it, or of the one that it takes turns with, make ready meanwhile.
    Steps that use those up do not count. The others come in bursts, as workers finish: their mean is the step.
    """

    worker: Worker
    name: str
    usual_us: float
    prefetched: int = 0

    @property
    def steps(self) -> tuple[int, int]:
        """The steps of a turn that count, and those before them that do not."""
        if self.prefetched:
            return max(self._usual_steps[0], 2 * self.prefetched), 1 + self.prefetched
        return self._usual_steps

    @property
    def _usual_steps(self) -> tuple[int, int]:
        if self.usual_us >= LONG_US:
            return 1, 0
        total = max(STEPS_AT_LEAST, math.ceil(TURN_US / max(self.usual_us, TURN_US / STEPS_AT_MOST)))
        return total - 1, 1

    @property
    def turn_s(self) -> float:
        """The duration of a turn."""
        return sum(self.steps) * self.usual_us / 1e6

    def turn_us(self) -> float:
        """The typical step of a turn, in microseconds."""
        steps, lead = self.steps
        times_us = self.worker.turn(self.name, steps, lead, self.usual_us)
        return max(1e-3, statistics.fmean(times_us) if self.prefetched else statistics.median(times_us))


@dataclass
class Pairing:
    """Pairs of turns of an original and a changed step, which works on ``samples`` times as many samples.

    ``logs`` holds log(changed / original) per sample for each pair, positive where the changed one is slower.
    """

    original: TimedStep
    changed: TimedStep
    draw: random.Random
    samples: float = 1.0
    logs: list[float] = field(default_factory=list)
    original_us: list[float] = field(default_factory=list)
    changed_us: list[float] = field(default_factory=list)

    @property
    def pair_s(self) -> float:
        """The duration of a pair, by the times of warm steps."""
        return self.original.turn_s + self.changed.turn_s

    def take(self) -> None:
        """One pair more, in an order that is drawn."""
        if self.draw.random() < 0.5:
            original_us, changed_us = self.original.turn_us(), self.changed.turn_us()
        else:
            changed_us, original_us = self.changed.turn_us(), self.original.turn_us()
        self.original_us.append(original_us)
        self.changed_us.append(changed_us)
        self.logs.append(math.log(changed_us / (self.samples * original_us)))

    def take_until(
        self, is_enough: Callable[[Sequence[float]], bool], seconds: float, clock: Clock = time.monotonic
    ) -> None:
        """Takes pairs from look to look until they are enough, or the time is over and there are some to look at."""
        until = clock() + seconds
        while (wanted := next_look(len(self.logs))) is not None:
            while len(self.logs) < wanted:
                if clock() >= until and len(self.logs) >= LOOKS[0]:
                    return
                self.take()
            if is_enough(self.logs):
                return


def take_rounds(
    steps: Mapping[int, TimedStep], rounds: int, draw: random.Random, tell: Callable[[str], None]
) -> tuple[dict[int, list[float]], dict[int, str]]:
    """The turns of several steps in microseconds, one of each in every round, in an order that is drawn anew.

    A step that fails takes no more turns; the second value has its reason instead.
    """
    taken: dict[int, list[float]] = {index: [] for index in steps}
    reasons: dict[int, str] = {}
    for number in range(rounds):
        for index in draw.sample(list(taken), len(taken)):
            try:
                taken[index].append(steps[index].turn_us())
            except Refused as refused:
                reasons[index] = refused.reason
                del taken[index]
        if (number + 1) % 10 == 0 or number + 1 == rounds:
            tell(f"bottleneck: round {number + 1} of {rounds}")
    return taken, reasons
