"""A sampler that plays a recorded sensor log, in place of a device."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from bottleneck.schema.telemetry import Sample, read_samples


class ReplaySampler:
    """Tells each row of a log when as much time has passed as when it was sampled; the newest one of each sensor.

    TraceError when the folder holds a file that is no log of ours.
    """

    shortest_beat_s = 0.0

    def __init__(self, folder: Path) -> None:
        self.notes: list[str] = []
        self._rest: list[Sample] = sorted(read_samples(folder), key=lambda sample: -sample.elapsed_s)
        self._zero_s = self._rest[-1].elapsed_s if self._rest else 0.0

    def open(self, process: int) -> bool:
        """True if the log holds anything."""
        return bool(self._rest)

    def sample(self, now_s: float) -> Sequence[tuple[str, Mapping[str, float]]]:
        """The rows up to this time that were not told yet."""
        rows: dict[str, dict[str, float]] = {}
        while self._rest and self._rest[-1].elapsed_s - self._zero_s <= now_s + 1e-6:
            sample = self._rest.pop()
            rows[sample.sensor] = {**rows.get(sample.sensor, {}), **sample.values}
        return list(rows.items())

    def close(self) -> None:
        """Nothing is held."""
