"""Facts about a machine, between gathering them and judging them: frozen records that tests make by hand."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ProbeOutput:
    """Output of a probe process.

    ``stages`` holds the facts of each stage that it reached. ``status`` is its exit status (negative: the signal that
    ended it), null if it took too long and was killed. ``error`` is the last line of its stderr.
    """

    stages: Mapping[str, Any] = field(default_factory=dict)
    status: int | None = 0
    error: str = ""


@dataclass(frozen=True)
class Programs:
    """The interpreter and what is installed beside us: versions of distributions, null where there is none."""

    python: str
    system: str
    ours: str
    torch: str | None
    bottleneck: str | None
    shadows: tuple[str, ...] = ()


@dataclass(frozen=True)
class Driver:
    """Accelerators, and the rights to profile them, as the system states them.

    ``admin_only`` is RmProfilingAdminOnly of the NVIDIA driver, ``is_privileged`` CAP_SYS_ADMIN or CAP_PERFMON.
    """

    nvidia: str | None = None
    nvidia_files: int = 0
    amd: bool = False
    admin_only: bool | None = None
    is_privileged: bool = False
    in_container: bool = False
    ptrace_scope: str | None = None
    perf_paranoid: str | None = None


@dataclass(frozen=True)
class Processors:
    """Processors of the machine, those that this process may use, the quota of its control group, and their load."""

    machine: int
    allowed: int
    quota: float | None
    busy: float


@dataclass(frozen=True)
class FolderAccess:
    """A folder that is written to: its path, write access, and free bytes (null: unknown)."""

    path: str
    is_writable: bool
    free_bytes: int | None


@dataclass(frozen=True)
class KeptCalibration:
    """The ceilings that are kept for this CPU: when they were measured, for how many threads, and their caveats."""

    created: str
    age_days: float | None
    threads: int
    caveats: tuple[str, ...]


@dataclass(frozen=True)
class Screen:
    """The standard output: encoding, columns, whether it is a terminal, and the locale's name."""

    encoding: str
    columns: int
    is_terminal: bool
    locale: str


@dataclass(frozen=True)
class Machine:
    """The host apart from its accelerators; ``memory_bytes`` is what a program may still take."""

    processors: Processors
    memory_bytes: int | None
    work: FolderAccess
    cache: FolderAccess
    calibration: KeptCalibration | None
    compiler: str | None
    host_sensors: tuple[str, ...]
    screen: Screen


@dataclass(frozen=True)
class Facts:
    """All facts; ``environment`` holds only variables that shape a measurement."""

    programs: Programs
    driver: Driver
    machine: Machine
    environment: Mapping[str, str]
    torch: ProbeOutput
    pandas: ProbeOutput
    nvml: ProbeOutput
