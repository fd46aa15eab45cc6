"""One reading of a sensor, how often it is taken, and what becomes of it when it fails."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bottleneck.sensors import sound

# Costs are judged by the least of so many: one that was interrupted by other programs says nothing.
_COSTS = 3
_MOST_FAILURES = 5


@dataclass(frozen=True)
class Reading:
    """Columns that a call may give, the call, and how often it is made.

    ``interval_s`` is the time in which the value changes. ``share`` is the part of the time that the call may take up:
    a slow driver is asked less often, for its calls take locks that the program needs too.
    """

    columns: tuple[str, ...]
    read: Callable[[Any], Mapping[str, float | None]]
    interval_s: float = 0.0
    share: float = 0.001


class Taken:
    """A reading of one source as time goes on. ``source`` is what the call takes, ``clock`` tells seconds.

    ``crowd`` is the number of sources that share the time for this reading.
    """

    def __init__(self, reading: Reading, source: Any, clock: Callable[[], float], crowd: int = 1) -> None:
        self.reading = reading
        self._source, self._clock = source, clock
        self._share = reading.share / crowd
        self._costs_s: deque[float] = deque(maxlen=_COSTS)
        self._due_s = 0.0
        self._failures = 0

    def is_due(self, now_s: float) -> bool:
        """Whether it is time again; a beat that comes a little early counts."""
        return now_s + 1e-3 >= self._due_s

    def take(self, now_s: float) -> dict[str, float]:
        """The values by column; raises what the call raises."""
        began_s = self._clock()
        try:
            return sound(self._source_values())
        finally:
            self._costs_s.append(self._clock() - began_s)
            self._due_s = now_s + max(self.reading.interval_s, min(self._costs_s) / self._share)

    def _source_values(self) -> Mapping[str, float | None]:
        values = self.reading.read(self._source)
        self._failures = 0
        return values

    def failed(self) -> bool:
        """Counts a failure that may pass; whether it has been one too many in a row."""
        self._failures += 1
        return self._failures >= _MOST_FAILURES


def taken(readings: Sequence[Reading], source: Any, clock: Callable[[], float], crowd: int) -> list[Taken]:
    """Each reading of a source, none taken yet."""
    return [Taken(reading, source, clock, crowd) for reading in readings]
