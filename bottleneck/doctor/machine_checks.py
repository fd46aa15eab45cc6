"""Judges the facts about processors, memory, disk, accelerators and sensors."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from bottleneck.doctor.facts import Driver, Facts, FolderAccess, Machine, Processors
from bottleneck.harness.nvml import NO_DRIVER, REMEDIES, match_sensors
from bottleneck.schema.checks import Check
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
    """Checks of processors, memory, disk and output."""
    machine = facts.machine
    threads = facts.torch.stages.get("import", {}).get("threads")
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
    present = [word for column, word in _SENSOR_WORDS.items() if column in machine.host_sensors]
    absent = [word for column, word in _SENSOR_WORDS.items() if column not in machine.host_sensors]
    if absent:
        why = f"this system does not report: {', '.join(absent)}"
        return _HOST_SENSORS("limited", ", ".join(present), why)
    return _HOST_SENSORS("ok", ", ".join(present))


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
        return _MEMORY("unknown", "the system does not report how much is left")
    fact = f"{format_si(left, 'B')} left"
    if left < _WINDOW_BYTES:
        why = f"a long window of the profiler takes up to {format_si(_WINDOW_BYTES, 'B')} beside the program"
        return _MEMORY("limited", fact, why, "record fewer steps:", "bottleneck run --steps 2 FILE")
    return _MEMORY("ok", fact)


def _disk(work: FolderAccess) -> Check:
    if not work.is_writable:
        why, command = "a recording is a folder beside it", "bottleneck run -o DIR FILE"
        return _DISK("limited", f"{work.path} cannot be written", why, "name another folder:", command)
    if work.free_bytes is None:
        return _DISK("unknown", f"{work.path} can be written; its free space is unknown")
    fact = f"{format_si(work.free_bytes, 'B')} free in {work.path}"
    if work.free_bytes < _TRACE_BYTES:
        why = "a recording takes up to 0.1 GB, and room to export it"
        return _DISK("limited", fact, why, "name another folder:", "bottleneck run -o DIR FILE")
    return _DISK("ok", fact)


def _cache(cache: FolderAccess) -> Check:
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
    """Rights that other profilers need and this one does not."""
    seen = (("ptrace scope", facts.driver.ptrace_scope), ("perf_event_paranoid", facts.driver.perf_paranoid))
    named = ", ".join(f"{name} {value}" for name, value in seen if value is not None)
    fact = "none needed: no root, no ptrace, no perf events" + (f" ({named} do not matter)" if named else "")
    return _RIGHTS("ok", fact)


_DEVICE_GROUP = "devices"
_DEVICES = partial(Check, "devices", _DEVICE_GROUP, "devices")
_KERNELS = partial(Check, "kernels", _DEVICE_GROUP, "kernels")
_GPU_CALIBRATION = partial(Check, "gpu-calibration", _DEVICE_GROUP, "calibration")
_VISIBLE = partial(Check, "visible", _DEVICE_GROUP, "visible")

_OPEN_COUNTERS = (
    "echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' | sudo tee /etc/modprobe.d/nvidia-profiling.conf"
)
_MOST_DEVICES = 16
_CALIBRATE = "bottleneck calibrate --device cuda"


def device_rows(facts: Facts) -> list[Check]:
    """The rows of this group; on a machine without accelerators there is one."""
    rows = (_devices(facts), _kernels(facts), _visible(facts), _gpu_calibration(facts))
    return [row for row in rows if row is not None]


def has_nvidia(facts: Facts) -> bool:
    """True if the driver, its files or its library show an NVIDIA device."""
    return facts.driver.nvidia is not None or facts.driver.nvidia_files > 0 or bool(sensor_names(facts))


def sensor_names(facts: Facts) -> Mapping[str, str]:
    """Names of the devices that NVML shows, by UUID."""
    names: Mapping[str, str] = facts.nvml.stages.get("devices", {}).get("names", {})
    return names


def _devices(facts: Facts) -> Check:
    state = facts.torch.stages.get("cuda", {})
    found = state.get("devices", [])
    if found:
        each = ", ".join(
            f"{one['name']} (compute capability {one['major']}.{one['minor']})" for one in found[:_MOST_DEVICES]
        )
        driver = f"; driver: {facts.driver.nvidia}" if facts.driver.nvidia else ""
        foreign = [
            one["name"] for one in found if not is_built_for(state.get("built_for", []), one["major"], one["minor"])
        ]
        if foreign:
            why = (
                f"this torch is built for {', '.join(state['built_for'])}, not for {', '.join(foreign[:_MOST_DEVICES])}"
            )
            return _DEVICES(
                "limited", f"torch sees {len(found)}: {each}{driver}", why, "install a newer or older torch"
            )
        return _DEVICES("ok", f"torch sees {len(found)}: {each}{driver}")
    if not (has_nvidia(facts) or facts.driver.amd):
        return _DEVICES(
            "missing", "no NVIDIA or AMD device here: work on the CPU can be measured, and traces explained"
        )
    maker = "NVIDIA" if has_nvidia(facts) else "AMD"
    fact = f"torch uses none, though this machine has one of {maker}"
    imported = facts.torch.stages.get("import", {})
    if imported and not (imported.get("cuda") or imported.get("hip")):
        remedy = f"install the build for {maker} that pytorch.org/get-started names"
        return _DEVICES("limited", fact, "this torch is a CPU build", remedy)
    why = str(state.get("error", "torch does not say why"))
    return _DEVICES("limited", fact, why, "compare CUDA_VISIBLE_DEVICES, and the driver with the CUDA of this torch")


def is_built_for(targets: Sequence[str], major: int, minor: int) -> bool:
    """True if machine code or PTX among the targets runs on a device of this capability, or no targets are known.

    Machine code runs on the same major version, PTX on any later one (CUDA C++ Programming Guide, compute capability).
    """
    wanted, known = 10 * major + minor, []
    for target in targets:
        kind, _, number = target.partition("_")
        if kind in {"sm", "compute"} and (digits := number.rstrip("af")).isdecimal():
            known.append((kind, int(digits)))
    runs = [kind == "compute" or number // 10 == major for kind, number in known if number <= wanted]
    return any(runs) or not known


def _kernels(facts: Facts) -> Check | None:
    """Check that a tiny window holds the kernels that ran in it."""
    if not facts.torch.stages.get("cuda", {}).get("devices"):
        return None
    window = facts.torch.stages.get("kernels", {})
    if window.get("recorded"):
        return _KERNELS("ok", f"recorded: {window['recorded']} in a tiny window{_counters(facts.driver)}")
    fact = "none was recorded in a tiny window that ran some: only the host side can be measured"
    if facts.driver.admin_only and not facts.driver.is_privileged:
        why = "the driver lets only administrators profile (RmProfilingAdminOnly: 1)"
        remedy = "start the container with --cap-add=SYS_ADMIN, or on the host (then restart it):"
        return _KERNELS("limited", fact, why, remedy, _OPEN_COUNTERS)
    # What failed may have said so; a window that is merely empty leaves nothing but the usual causes.
    words = str(window.get("error", "")) or ("" if window else facts.torch.error)
    why = words or "CUPTI could not listen: another profiler, or a stub library in LD_LIBRARY_PATH"
    return _KERNELS("limited", fact, why, "end other profilers; remove stubs from LD_LIBRARY_PATH")


def _counters(driver: Driver) -> str:
    return "; hardware counters are for administrators, but none are needed" if driver.admin_only else ""


def _visible(facts: Facts) -> Check | None:
    """Check of the devices that CUDA_VISIBLE_DEVICES hides."""
    value = facts.environment.get("CUDA_VISIBLE_DEVICES")
    if value is None or not has_nvidia(facts):
        return None
    entries = [entry.strip() for entry in value.split(",") if entry.strip()]
    if not entries or entries[0] == "-1":
        fact, why = "CUDA_VISIBLE_DEVICES hides all devices", "the program will run on the CPU"
        return _VISIBLE("limited", fact, why, command="unset CUDA_VISIBLE_DEVICES")
    # Numbers are taken in the order of the bus: in another order they stand for as many devices.
    found = match_sensors((), {**facts.environment, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, list(sensor_names(facts)))
    if sensor_names(facts) and len(found) < len(entries):
        fact = f"CUDA_VISIBLE_DEVICES={value} names {len(entries)}, of which {len(found)} can be found"
        why = "CUDA stops at the first entry that it does not know, and takes none if one is named twice"
        return _VISIBLE("limited", fact, why, "name devices that `nvidia-smi -L` lists")
    return _VISIBLE("ok", f"CUDA_VISIBLE_DEVICES={value}")


def _gpu_calibration(facts: Facts) -> Check | None:
    """The ceilings of the GPU; without them those of the data sheet count."""
    if not facts.torch.stages.get("cuda", {}).get("devices"):
        return None
    known = facts.torch.stages.get("calibration")
    if known is None or "error" in known:
        why = "recordings are judged against the data sheet, which no device quite reaches"
        return _GPU_CALIBRATION("missing", "none yet of this GPU, its driver and this torch", why, command=_CALIBRATE)
    fact = f"measured {known['age_days']:.0f} days ago"
    if known["caveats"]:
        return _GPU_CALIBRATION(
            "limited", fact, "; ".join(known["caveats"]), "while the GPU has no other work:", _CALIBRATE
        )
    return _GPU_CALIBRATION("ok", fact)


_SENSORS = partial(Check, "sensors", "devices", "sensors")
_BINDING = "pip install nvidia-ml-py"
_OFFICIAL = "pip uninstall pynvml && pip install --force-reinstall nvidia-ml-py"

# Column of a sensor -> what people call it.
_CALLED = {
    "sm_clock_mhz": "clocks", "memory_clock_mhz": "clocks", "power_w": "power",
    "average_power_w": "power (1 s average)", "energy_j": "energy", "temperature_c": "temperature",
    "utilization": "use", "throttle_bits": "throttling", "memory_used_bytes": "memory",
    "pcie_tx_bytes_per_s": "PCIe", "pcie_rx_bytes_per_s": "PCIe", "sm_activity": "SM activity",
    "tensor_activity": "tensor activity", "dram_activity": "DRAM activity",
}  # fmt: skip
# What every device should give; activity counters only those of Hopper and newer have.
_WANTED = ("clocks", "power", "energy", "temperature", "use", "throttling", "memory", "PCIe")
_OF_THE_CARD = frozenset({"power", "energy", "PCIe"})


def sensor_rows(facts: Facts) -> list[Check]:
    """One row per device, or one that says why there is none to read; none on a machine without such devices."""
    stages, binding = facts.nvml.stages, facts.nvml.stages.get("binding")
    if binding is not None and not binding["is_official"]:
        fact = f"the unofficial pynvml at {binding['file']} stands in the way of nvidia-ml-py"
        return [_SENSORS("missing", fact, command=_OFFICIAL)]
    if "refusal" in stages:
        return _refused(facts, stages["refusal"])
    if not has_nvidia(facts):
        return []
    if binding is None:
        return [_SENSORS("missing", "nvidia-ml-py cannot be imported", facts.nvml.error, command=_BINDING)]
    if "devices" not in stages:
        why = "it did not answer in time" if facts.nvml.status is None else facts.nvml.error
        return [_SENSORS("missing", "the driver's library failed", why, "`nvidia-smi` may say more")]
    columns: Mapping[str, Sequence[str]] = stages.get("sensors", {}).get("columns", {})
    slices = stages["devices"].get("slices", [])
    names = list(sensor_names(facts).items())[:_MOST_DEVICES]
    each = [_device(f"{name} ({sensor})", columns.get(sensor, ()), is_slice=sensor in slices) for sensor, name in names]
    return [*each, *(_SENSORS("missing", text) for text in stages["devices"].get("complaints", [])[:_MOST_DEVICES])]


def _refused(facts: Facts, refusal: Mapping[str, Any]) -> list[Check]:
    code = int(refusal["code"])
    if code in NO_DRIVER and not has_nvidia(facts):
        return []
    fact = f"the driver's library refuses: {refusal['text']} (error {code})"
    return [_SENSORS("missing", fact, remedy=REMEDIES.get(code, "`nvidia-smi` may say more"))]


def _device(name: str, columns: Sequence[str], *, is_slice: bool) -> Check:
    called = list(dict.fromkeys(_CALLED.get(column, column) for column in columns))
    if not called:
        return _SENSORS("missing", f"{name} gives nothing", "the driver supports no sensor of it, as in some VMs")
    absent = [word for word in _WANTED if not any(each.startswith(word) for each in called)]
    fact = f"{name}: {', '.join(called)}"
    if is_slice and set(absent) <= _OF_THE_CARD:
        return _SENSORS("ok", fact, "a slice of a card (MIG): power, energy and PCIe are those of all slices together")
    if absent:
        return _SENSORS("limited", fact, f"this device does not report: {', '.join(absent)}")
    return _SENSORS("ok", fact)
