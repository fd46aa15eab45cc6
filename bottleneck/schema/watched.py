"""Declares the log of a watched run and the records made of it.

A rank leaves two files that only grow, so that a run that is killed loses the last second at most: records of a fixed
size, one for each step or for several in a row, and a line of JSON for each slow step.
"""

import struct
from typing import Annotated, Literal

from msgspec import Meta, Struct

Phase = Literal["data", "forward", "backward", "optimizer", "rest"]
# In the order in which a step meets them. Data is the wait for the loader; forward has the copies to the device.
PHASES: tuple[Phase, ...] = ("data", "forward", "backward", "optimizer", "rest")

FORMAT = "bottleneck/watch/1"
STEP_FILES, SLOW_FILES, HEADER_FILES = "steps.rank*.bin", "slow.rank*.jsonl", "watch.rank*.json"
# The fields of a record of steps; all but the first two and the last are sums over its steps.
STEP_FIELDS: tuple[tuple[str, str], ...] = (
    ("end_s", "d"),
    ("first", "I"),
    ("count", "I"),
    ("us", "f"),
    *((f"{phase}_us", "f") for phase in PHASES),
    ("gc_us", "f"),
    ("cpu_us", "f"),
    ("longest_us", "f"),
    ("batches", "I"),
    ("switches", "I"),
    ("faults", "I"),
    ("memory_bytes", "d"),
)
STEP_RECORD = struct.Struct("<" + "".join(kind for _, kind in STEP_FIELDS))


class SeenLine(Struct, frozen=True):
    """A line of the program that samples saw a slow step at.

    ``kind`` is what a library was doing for it: compiling, saving, starting workers, loading; empty for none.
    """

    source: str
    function: str
    samples: int
    kind: str = ""


class SlowStep(Struct, frozen=True):
    """A step far beyond the usual, and what the host did meanwhile.

    ``phases_us`` and ``usual_phases_us`` go by PHASES. ``cpu_us`` is the processor time of the thread that steps;
    ``faults`` are page faults that read from disk, ``switches`` counts how often the system took the processor away.
    ``batches`` are those that loaders gave in this step. Workers are those of the last loader.
    """

    step: int
    end_s: Annotated[float, Meta(description="seconds since the first step")]
    us: float
    usual_us: float
    phases_us: tuple[float, ...]
    usual_phases_us: tuple[float, ...]
    gc_us: float
    cpu_us: float
    usual_cpu_us: float
    switches: int
    usual_switches: float
    faults: int
    batches: int
    usual_batches: float
    lines: tuple[SeenLine, ...] = ()
    workers: int = 0
    dead_workers: int = 0


class WatchHeader(Struct, frozen=True):
    """Facts of a rank besides its steps.

    ``clock_ns`` is the wall clock at the first step's beginning. ``memory_keepers`` name what holds more and more.
    """

    rank: int
    ranks: int
    clock_ns: int
    step_source: str
    step_name: str
    python: str = ""
    torch: str = ""
    device: str = "cpu"
    steps: int = 0
    is_complete: bool = False
    status: int | None = None
    memory_keepers: tuple[str, ...] = ()
    problem: str | None = None
    format: str = FORMAT


class WatchedCause(Struct, frozen=True):
    """Why some steps were slow, or what grew over the run.

    ``beyond_us`` is the time that it took beyond usual steps; null for what grows.
    """

    kind: str
    headline: str
    advice: str
    rank: int = 0
    steps: tuple[int, ...] = ()
    beyond_us: float | None = None


class WatchedRunRank(Struct, frozen=True):
    """One rank of a watched run. ``phases_us`` go by PHASES, mean per step.

    ``blocks`` are stretches of the run: the step in the middle, and the median, shortest and longest step of each.
    """

    rank: int
    steps: int
    total_us: float
    usual_us: float
    phases_us: tuple[float, ...]
    causes: tuple[WatchedCause, ...] = ()
    blocks: tuple[tuple[float, float, float, float], ...] = ()


class WatchedRun(Struct, frozen=True):
    """A watched run as it is reported. ``warnings`` say what is missing from it."""

    name: str
    date: str
    ranks: tuple[WatchedRunRank, ...]
    step_name: str = ""
    warnings: tuple[str, ...] = ()
    schema: str = "bottleneck/watched/1"
