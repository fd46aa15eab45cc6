"""The samples of a run in memory, thinned out as it goes on, so that a run of days leaves a log of megabytes."""

import threading
from collections.abc import Callable, Sequence

from bottleneck.sensors import Sample

Span = tuple[float, float]

_MOST_SAMPLES = 20_000
_FRESH_NS = 10e9


class SensorLog:
    """Holds samples of several threads. When full, every second sample of each sensor goes, but not the newest.

    ``spans`` tells which stretches of the wall clock were measured, in ns: samples there are all kept, and around them.
    """

    def __init__(self, spans: Callable[[], Sequence[Span]] = tuple, most: int = _MOST_SAMPLES) -> None:
        self._spans, self._most = spans, most
        self._limit = most
        self._samples: list[Sample] = []
        self._lock = threading.Lock()

    def add(self, sample: Sample) -> None:
        """Appends a sample."""
        with self._lock:
            self._samples.append(sample)
            if len(self._samples) > self._limit:
                self._samples = _thinned(self._samples, self._spans())
                # Where most is worth keeping, thinning again at once would gain nothing.
                self._limit = max(self._most, len(self._samples) + self._most // 4)

    def samples(self) -> tuple[Sample, ...]:
        """The samples, oldest first."""
        with self._lock:
            return tuple(sorted(self._samples, key=lambda sample: sample.elapsed_s))


def _thinned(samples: Sequence[Sample], spans: Sequence[Span]) -> list[Sample]:
    """The samples without every second old one of each sensor outside the spans."""
    newest_ns = max(sample.unix_ns for sample in samples)
    kept: list[Sample] = []
    is_next: dict[str, bool] = {}
    for sample in samples:
        is_next[sample.sensor] = not is_next.get(sample.sensor, False)
        is_fresh = sample.unix_ns >= newest_ns - _FRESH_NS
        if is_fresh or is_next[sample.sensor] or any(_holds(span, sample.unix_ns) for span in spans):
            kept.append(sample)
    return kept


def _holds(span: Span, unix_ns: int) -> bool:
    """Whether an instant lies in the span or within a second of it, where counters are read for its ends."""
    return span[0] - 1e9 <= unix_ns <= span[1] + 1e9
