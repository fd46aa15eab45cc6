"""Declares the log of a watched run.

A rank leaves two files that only grow, so that a run that is killed loses the last second at most: records of a fixed
size, one for each step or for several in a row, and a line of JSON for each slow step.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bottleneck.schema.compile_health import CompileHealth
from bottleneck.schema.recording import StepSource

Phase = Literal["data", "forward", "backward", "optimizer", "rest"]
# In the order in which a step meets them. Data is the wait for the loader; forward has the copies to the device.
PHASES: tuple[Phase, ...] = ("data", "forward", "backward", "optimizer", "rest")
# Those that begin and end with a loader's batch. Without a loader nothing tells them from the rest, and both are 0.
PHASES_OF_LOADER: tuple[Phase, ...] = ("data", "forward")


def has_loader_phases(phases_us: Sequence[float]) -> bool:
    """Tells whether a loader's batches parted the phases, whose times go by PHASES."""
    return any(us for phase, us in zip(PHASES, phases_us, strict=True) if phase in PHASES_OF_LOADER)


FORMAT = "bottleneck/watch/1"
STEP_FILES, SLOW_FILES, HEADER_FILES = "steps.rank*.bin", "slow.rank*.jsonl", "watch.rank*.json"
# Folder of the recordings of windows, each in one of its own.
WINDOWS_FOLDER = "windows"
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
    ("passes", "I"),
    ("switches", "I"),
    ("faults", "I"),
    ("memory_bytes", "d"),
)
STEP_RECORD = struct.Struct("<" + "".join(kind for _, kind in STEP_FIELDS))


@dataclass(frozen=True)
class SeenLine:
    """A line of the program that samples saw a slow step at.

    ``kind`` is what a library was doing for it: compiling, saving, starting workers, loading; empty for none.
    """

    source: str
    function: str
    samples: int
    kind: str = ""


@dataclass(frozen=True)
class DeadWorker:
    """A worker process of a loader that is gone.

    ``exit_code`` is negative for the signal that killed it.
    """

    number: int
    exit_code: int | None


@dataclass(frozen=True)
class SlowStep:
    """A step far beyond the usual, and what the host did meanwhile.

    ``end_s`` is in seconds since the first step; ``phases_us`` and ``usual_phases_us`` go by PHASES. ``cpu_us`` is the
    processor time of the thread that steps; ``faults`` are page faults that read from disk, ``switches`` counts how
    often the system took the processor away. ``batches`` are those that loaders gave in this step, ``passes`` those
    over the data that began in it. ``waited_us`` is how long the thread was ready and had no processor, and
    ``threads_waited_us`` and ``workers_waited_us`` are the most of another thread of the process, and of a worker of
    the loader; null where the system does not tell. ``workers`` are those of the last loader, of which so many were
    started in this step; ``dead_workers`` failed in it.
    """

    step: int
    end_s: float
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
    passes: int = 0
    waited_us: float | None = None
    threads_waited_us: float | None = None
    workers_waited_us: float | None = None
    workers: int = 0
    started_workers: int = 0
    dead_workers: tuple[DeadWorker, ...] = ()


@dataclass(frozen=True)
class DevicePhases:
    """The phases of some steps by the clock of the device.

    ``phases_us`` go by PHASES and are medians over ``steps``. ``copies_us`` is the time of copies from the host to the
    device before the backward pass: a part of the phases.
    """

    steps: int
    phases_us: tuple[float, ...]
    copies_us: float


WindowTrigger = Literal["slow", "drift", "asked"]


@dataclass(frozen=True)
class RecordedWindow:
    """A stretch that the profiler recorded.

    It follows step ``after`` and took so many ``steps``, which are not in the log. ``times`` is how many times the
    usual one that step took, or by how much the steps had become longer; null where the window was asked for.
    ``folder`` has the recording, seen from that of the run.
    """

    after: int
    steps: int
    trigger: WindowTrigger
    times: float | None
    folder: str


@dataclass(frozen=True)
class WatchHeader:
    """Facts of a rank besides its steps.

    ``clock_ns`` is the wall clock at the first step's beginning. ``memory_keepers`` name what holds more and more.
    ``dead_workers`` are those that had failed when the program ended. ``windows_problem`` says why no more windows
    were recorded, where something stood in the way. ``device_phases`` are null where the program used no GPU.
    ``command`` is the program with its arguments, as `python` gets them; empty where it is not known.
    ``compile_health`` is what torch.compile made of it; null where it compiled nothing.
    """

    rank: int
    ranks: int
    clock_ns: int
    step_source: StepSource
    step_name: str
    python: str = ""
    torch: str = ""
    device: str = "cpu"
    steps: int = 0
    is_complete: bool = False
    status: int | None = None
    memory_keepers: tuple[str, ...] = ()
    dead_workers: tuple[DeadWorker, ...] = ()
    windows: tuple[RecordedWindow, ...] = ()
    windows_problem: str | None = None
    device_phases: DevicePhases | None = None
    problem: str | None = None
    command: tuple[str, ...] = ()
    compile_health: CompileHealth | None = None
    format: str = FORMAT
