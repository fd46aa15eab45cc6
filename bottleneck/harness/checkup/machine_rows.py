"""Facts to rows: processors, memory, disk, calibration, and where text is shown."""

from collections.abc import Mapping
from functools import partial

from bottleneck.checks import Check
from bottleneck.harness.checkup.facts import Facts, Machine, Place, Processors
from bottleneck.units import format_si

_GROUP = "machine"
_THREADS = partial(Check, "threads", _GROUP, "threads")
_LOAD = partial(Check, "load", _GROUP, "load")
_HOST_SENSORS = partial(Check, "host-sensors", _GROUP, "host sensors")
_CALIBRATION = partial(Check, "calibration", _GROUP, "calibration")
_COMPILER = partial(Check, "compiler", _GROUP, "compiler")
_MEMORY = partial(Check, "memory", _GROUP, "memory")
_DISK = partial(Check, "disk", _GROUP, "disk")
_CACHE = partial(Check, "cache", _GROUP, "cache")
_SCREEN = partial(Check, "screen", _GROUP, "output")
_RIGHTS = partial(Check, "rights", _GROUP, "rights")

# Others that keep more of a processor busy than this make times vary.
_QUIET_LOAD = 0.5
# A window of 200,000 events takes up to 0.7 GB while it is recorded and 0.1 GB on disk (EVENT_BUDGET of the capture).
_WINDOW_BYTES, _TRACE_BYTES = 1.5e9, 0.5e9
# Ceilings depend on the system and on what else runs, which change with time.
_STALE_DAYS = 90
_SENSOR_WORDS = {
    "busy_cpu_s": "load", "cpu_clock_mhz": "clock", "memory_used_bytes": "memory",
    "process_cpu_s": "CPU time of the program", "process_memory_bytes": "memory of the program",
}  # fmt: skip
_THREAD_SETTINGS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def machine_rows(facts: Facts) -> list[Check]:
    """The rows of this group."""
    machine = facts.machine
    threads = facts.torch.told.get("import", {}).get("threads")
    return [
        _threads(machine.processors, threads, facts.environment),
        _load(machine.processors),
        _host_sensors(machine),
        _calibration(machine, threads),
        _compiler(machine),
        _memory(machine),
        _disk(machine.work),
        _cache(machine.cache),
        _screen(machine),
        _rights(facts),
    ]


def _threads(processors: Processors, threads: int | None, environment: Mapping[str, str]) -> Check:
    usable = min(processors.allowed, processors.quota or processors.allowed)
    granted = "" if processors.quota is None else f", a quota of {processors.quota:.3g}"
    fact = f"{processors.machine} processors, {processors.allowed} for this process{granted}"
    if threads is None:
        return _THREADS("unknown", fact, "torch did not say how many threads it takes")
    fact = f"torch takes {threads} on {fact}"
    if threads > usable:
        why = "threads that share a processor wait for one another"
        command = f"export OMP_NUM_THREADS={max(1, int(usable))}"
        return _THREADS("limited", fact, why, command=command)
    settings = [f"{name}={environment[name]}" for name in _THREAD_SETTINGS if name in environment]
    if settings and threads * 2 <= usable:
        why = f"{', '.join(settings)} leaves processors unused"
        command = f"unset {' '.join(name for name in _THREAD_SETTINGS if name in environment)}"
        return _THREADS("limited", fact, why, "where that is not meant:", command)
    return _THREADS("ok", fact)


def _load(processors: Processors) -> Check:
    fact = f"{processors.busy:.1f} processors were busy over the last minute"
    if processors.busy > _QUIET_LOAD:
        return _LOAD(
            "limited",
            fact,
            "what runs beside the program makes its steps vary",
            "wait for it to end",
        )
    return _LOAD("ok", fact)


def _host_sensors(machine: Machine) -> Check:
    if not machine.host_sensors:
        return _HOST_SENSORS("missing", "none", "psutil is missing", command="pip install psutil")
    told = [word for column, word in _SENSOR_WORDS.items() if column in machine.host_sensors]
    absent = [word for column, word in _SENSOR_WORDS.items() if column not in machine.host_sensors]
    if absent:
        why = f"this system does not tell: {', '.join(absent)}"
        return _HOST_SENSORS("limited", ", ".join(told), why)
    return _HOST_SENSORS("ok", ", ".join(told))


def _calibration(machine: Machine, threads: int | None) -> Check:
    known = machine.calibration
    if known is None:
        why = "the first run of a CPU program measures the ceilings, in about half a minute"
        of = f" with {threads} threads" if threads is not None else ""
        fact = f"none yet of this CPU{of} and this torch"
        return _CALIBRATION("missing", fact, why, command="bottleneck calibrate --device cpu")
    age = "at an unknown time" if known.age_days is None else f"{known.age_days:.0f} days ago"
    fact = f"this CPU with {known.threads} threads, measured {age}"
    if known.caveats:
        return _CALIBRATION(
            "limited",
            fact,
            "; ".join(known.caveats),
            "on a quiet machine:",
            "bottleneck calibrate --device cpu",
        )
    if known.age_days is None or known.age_days > _STALE_DAYS:
        why = "system and firmware may have changed since"
        return _CALIBRATION("limited", fact, why, command="bottleneck calibrate --device cpu")
    return _CALIBRATION("ok", fact)


def _compiler(machine: Machine) -> Check:
    if machine.compiler is None:
        why = "the vector units and the first cache of the CPU cannot be measured, nor can torch.compile be used"
        return _COMPILER("limited", "no C++ compiler", why, "install g++ or clang++")
    return _COMPILER("ok", machine.compiler)


def _memory(machine: Machine) -> Check:
    left = machine.memory_bytes
    if left is None:
        return _MEMORY("unknown", "the system does not tell how much is left")
    fact = f"{format_si(left, 'B')} left"
    if left < _WINDOW_BYTES:
        why = f"a long window of the profiler takes up to {format_si(_WINDOW_BYTES, 'B')} beside the program"
        return _MEMORY("limited", fact, why, "record fewer steps:", "bottleneck run --steps 2 FILE")
    return _MEMORY("ok", fact)


def _disk(work: Place) -> Check:
    if not work.is_writable:
        why, command = "a recording is a folder beside it", "bottleneck run -o DIR FILE"
        return _DISK("limited", f"{work.path} cannot be written", why, "name another folder:", command)
    if work.free_bytes is None:
        return _DISK("unknown", f"{work.path} can be written; how much room is left is not told")
    fact = f"{format_si(work.free_bytes, 'B')} free in {work.path}"
    if work.free_bytes < _TRACE_BYTES:
        why = "a recording takes up to 0.1 GB, and room to export it"
        return _DISK("limited", fact, why, "name another folder:", "bottleneck run -o DIR FILE")
    return _DISK("ok", fact)


def _cache(cache: Place) -> Check:
    if cache.is_writable:
        return _CACHE("ok", f"{cache.path} can be written")
    why = "ceilings are measured anew in each run"
    fact = f"{cache.path} cannot be written"
    return _CACHE("limited", fact, why, "name another folder:", "export XDG_CACHE_HOME=DIR")


def _screen(machine: Machine) -> Check:
    screen = machine.screen
    where = f"a terminal of {screen.columns} columns" if screen.is_terminal else "a pipe or file"
    fact = f"{where}, {screen.encoding}, locale {screen.locale}"
    if screen.encoding.lower().startswith("utf"):
        return _SCREEN("ok", fact)
    why = "tables are drawn in ASCII, and other characters show as escapes"
    return _SCREEN("limited", fact, why, command="export PYTHONIOENCODING=utf-8 LC_ALL=C.UTF-8")


def _rights(facts: Facts) -> Check:
    """What other profilers need and we do not."""
    seen = (("ptrace scope", facts.driver.ptrace_scope), ("perf_event_paranoid", facts.driver.perf_paranoid))
    named = ", ".join(f"{name} {value}" for name, value in seen if value is not None)
    fact = "none needed: no root, no ptrace, no perf events" + (f" ({named} do not matter)" if named else "")
    return _RIGHTS("ok", fact)
