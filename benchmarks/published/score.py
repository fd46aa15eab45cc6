"""Scores predicted gains and step times against the stated ones."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.published.stated import StatedGain
from bottleneck.predict.gains import PredictedGain
from bottleneck.schema.predicted_changes import PredictedVerdict

# A stated change of less is no gain and no loss: it has no sign.
CHANGE = 0.05
NEAR = 0.20


@dataclass(frozen=True)
class HeldGain:
    """A stated gain with the predicted one, and what `verify --device` says of it."""

    stated: StatedGain
    predicted: PredictedGain
    verdict: PredictedVerdict

    @property
    def is_inside(self) -> bool:
        """True where the stated gain lies in the interval."""
        return self.predicted.interval.low <= self.stated.gain <= self.predicted.interval.high

    @property
    def width(self) -> float:
        """Upper end over lower end."""
        return self.predicted.interval.high / self.predicted.interval.low

    @property
    def has_sign(self) -> bool:
        """True where the stated gain or loss is large enough to have a sign."""
        return abs(math.log(self.stated.gain)) > math.log1p(CHANGE)

    @property
    def is_sign_right(self) -> bool:
        """True where both are gains or both are losses."""
        return (self.stated.gain > 1) == (self.predicted.speedup > 1)

    @property
    def promises_nothing(self) -> bool:
        """True where it is not said to help, and what is expected is no gain beyond CHANGE."""
        return self.verdict != "helps" and self.predicted.speedup < 1 + CHANGE


@dataclass(frozen=True)
class HeldTime:
    """A stated time of a step with the predicted one, in microseconds."""

    stated_us: float
    predicted_us: float

    @property
    def is_near(self) -> bool:
        """True within a fifth of the stated time."""
        return abs(self.predicted_us / self.stated_us - 1) <= NEAR


@dataclass(frozen=True)
class Score:
    """How many of how many, and the interval's upper end over its lower one in the median."""

    inside: int
    gains: int
    width: float
    right: int
    signs: int
    nothing: int
    negatives: int
    near: int
    times: int


def score(gains: Sequence[HeldGain], times: Sequence[HeldTime]) -> Score:
    """The score of all gains and times."""
    signs = [gain for gain in gains if gain.has_sign]
    negatives = [gain for gain in gains if gain.stated.is_negative]
    return Score(
        inside=sum(gain.is_inside for gain in gains),
        gains=len(gains),
        width=statistics.median(gain.width for gain in gains) if gains else math.nan,
        right=sum(gain.is_sign_right for gain in signs),
        signs=len(signs),
        nothing=sum(gain.promises_nothing for gain in negatives),
        negatives=len(negatives),
        near=sum(time.is_near for time in times),
        times=len(times),
    )
