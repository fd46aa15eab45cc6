"""Reads from public traces how much the paces of hosts differ.

The pace of a trace's host is its time for an elementwise op that launches one kernel, by the lower quartile of all of
them: the others found a full queue or a cold cache. A profiler doubles that time, and is taken to slow each host alike,
so that only ratios of paces are used. Traces of one repository on one device are of one host.
"""

import bisect
import gzip
import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bottleneck.predict.host_pace import slower_than_usual
from bottleneck.predict.interval import COVERAGE

_NAMES = ("add", "mul", "sub", "div", "neg", "pow", "rsqrt", "sqrt", "exp", "tanh", "sigmoid", "silu", "gelu", "relu")
_ELEMENTWISE = frozenset(f"aten::{name}{place}" for name in _NAMES for place in ("", "_"))
_LAUNCHES = frozenset({"cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel"})
_FEWEST_OPS = 15


@dataclass(frozen=True)
class TracedHost:
    """A host that a trace was recorded on: its device, and its time for an elementwise op under a profiler."""

    source: str
    device: str
    op_us: float

    @property
    def score(self) -> float:
        """The pace as a logarithm, relative to the usual one of the device's year."""
        return math.log(self.op_us / slower_than_usual(self.device))


def pace_half(groups: Sequence[Sequence[float]]) -> float:
    """Returns half the interval of another host's pace, as a logarithm.

    Each group of logarithms has a middle of its own. A host is as far off as it lies from the mean of the others of its
    group, and of all hosts and the next one the share COVERAGE lies within (jackknife+, Barber et al. 2021).
    """
    scores = sorted(
        abs(score - statistics.mean(group)) * len(group) / (len(group) - 1) for group in groups for score in group
    )
    return scores[min(math.ceil(COVERAGE * (len(scores) + 1)), len(scores)) - 1]


def traced_hosts(folder: Path) -> list[TracedHost]:
    """Returns the hosts of NVIDIA devices that a folder of traces shows, each once."""
    paces: dict[tuple[str, str], list[float]] = {}
    for path in sorted(folder.glob("*.json*")):
        document = _read(path)
        if document is None:
            continue
        device = _device(document)
        durations = list(_op_durations(document["traceEvents"]))
        if device is not None and len(durations) >= _FEWEST_OPS:
            quartile = statistics.quantiles(durations, n=4)[0]
            paces.setdefault((path.name.partition("__")[0], device), []).append(quartile)
    return [TracedHost(*key, statistics.median(quartiles)) for key, quartiles in paces.items()]


def _read(path: Path) -> Mapping[str, Any] | None:
    """Reads a trace; null for a file that is none, since folders hold broken ones on purpose."""
    content = path.read_bytes()
    try:
        document = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
    except (ValueError, OSError, EOFError):
        return None
    is_trace = isinstance(document, dict) and isinstance(document.get("traceEvents"), list)
    return document if is_trace else None


def _device(document: Mapping[str, Any]) -> str | None:
    """Returns the first NVIDIA device of a trace."""
    names = [str(device.get("name", "")) for device in document.get("deviceProperties") or []]
    return next((name for name in names if name.startswith(("NVIDIA", "Tesla", "Quadro", "GeForce"))), None)


def _op_durations(events: Sequence[Any]) -> Iterator[float]:
    """Yields the microseconds of each elementwise op in which one kernel was launched."""
    spans = [event for event in events if isinstance(event, dict) and event.get("ph") == "X" and "tid" in event]
    launches: dict[tuple[object, object], list[float]] = {}
    for event in spans:
        if event.get("name") in _LAUNCHES:
            launches.setdefault((event.get("pid"), event["tid"]), []).append(float(event["ts"]))
    for starts in launches.values():
        starts.sort()
    for event in spans:
        if event.get("name") in _ELEMENTWISE:
            starts = launches.get((event.get("pid"), event["tid"]), [])
            begin, duration = float(event["ts"]), float(event.get("dur", 0.0))
            if bisect.bisect_right(starts, begin + duration) - bisect.bisect_left(starts, begin) == 1:
                yield duration
