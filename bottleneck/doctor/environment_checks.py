"""Judges facts about this machine, row by row.

They are of programs, processors, memory, accelerators and sensors.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from bottleneck.analysis.libraries import BUILD_NAMES
from bottleneck.doctor.facts import LIBRARIES, Facts, FolderAccess, Machine, ProbeOutput, Processors, gather
from bottleneck.harness.nvml import NO_DRIVER, REMEDIES, match_sensors
from bottleneck.harness.torch_private import OLDEST
from bottleneck.schema.checks import Check, Checkup, at_fault
from bottleneck.units import counted, format_si


def examine_environment() -> Checkup:
    """The check-up of this machine: everything that a measurement needs, and what is missing."""
    return judge(gather())


def judge(facts: Facts) -> Checkup:
    """Judges the facts as rows.

    `bottleneck run` can work unless something that it cannot do without is missing.
    """
    devices = (_devices(facts), _kernels(facts), _visible(facts), _gpu_calibration(facts))
    rows = (*program_rows(facts), *devices, *sensor_rows(facts), *machine_rows(facts))
    checks = tuple(check for check in rows if check is not None)
    lacking = [f"{check.title}: {check.fact}" for check in at_fault(checks) if check.status == "missing"]
    worse = dict.fromkeys(check.title for check in checks if check.status in {"limited", "missing"})
    worth = f" Worth a look: {', '.join(worse)}." if worse else ""
    return Checkup(
        kind="environment",
        subject="this machine",
        verdict="not ready" if lacking else "ready",
        sentence=f"bottleneck run cannot work here: {'; '.join(lacking)}."
        if lacking
        else f"bottleneck run can work here.{worth}",
        checks=checks,
    )


_PROGRAMS = "programs"
_PYTHON = partial(Check, "python", _PROGRAMS, "Python")
_TORCH = partial(Check, "torch", _PROGRAMS, "torch", decides=True)
_PROFILER = partial(Check, "profiler", _PROGRAMS, "profiler", decides=True)
_NAME = partial(Check, "name", _PROGRAMS, "our name")
_PANDAS = partial(Check, "pandas", _PROGRAMS, "pandas")
_SHADOWS = partial(Check, "shadows", _PROGRAMS, "shadows")
_OTHER_PROFILERS = partial(Check, "other-profilers", _PROGRAMS, "profilers")
_SLOWING = partial(Check, "slowing", _PROGRAMS, "settings")
_LINKED = partial(Check, "linked-libraries", _PROGRAMS, "libraries")
_INSTALLED = partial(Check, "installed-libraries", _PROGRAMS, "installed")

# The versions of torch that were tried (docs/reference/versions.md): from the first up to, not including, the second.
TESTED_TORCH = (OLDEST, (2, 15))
_TESTED_PYTHON = ("3.11", "3.12", "3.13")
_ANEW = "uninstall it, then install torch-bottleneck anew, since both wrote into one folder:"
_PIP = f'pip install "torch>={OLDEST[0]}.{OLDEST[1]}"'

_INJECTED = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "NSYS_", "NV_NSIGHT", "NV_COMPUTE_PROFILER",
             "HSA_TOOLS_LIB", "ROCP_TOOL", "ROCPROFILER_")  # fmt: skip
_PROFILER_LIBRARIES = ("nsys", "nsight", "ncu", "rocprof", "vtune", "injection")
# Settings that make the program slower than it is without them.
_SLOW_SETTINGS = {
    "CUDA_LAUNCH_BLOCKING": "every launch waits for its kernel",
    "AMD_SERIALIZE_KERNEL": "every launch waits for its kernel",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "every tensor is allocated by the driver",
    "COVERAGE_PROCESS_START": "coverage follows every line of Python",
}
_OFF = {"", "0", "false", "no", "off"}


def program_rows(facts: Facts) -> list[Check | None]:
    """Checks of Python, torch, names and other profilers."""
    return [
        _python(facts),
        _torch(facts),
        _profiler(facts.torch),
        _linked(facts.torch),
        _installed(facts),
        _name(facts),
        _pandas(facts.pandas),
        _shadows(facts.programs.shadows),
        _other_profilers(facts.environment),
        _slowing(facts.environment),
    ]


def _python(facts: Facts) -> Check:
    programs = facts.programs
    fact = f"{programs.python} on {programs.system}, bottleneck {programs.ours}"
    if not programs.system.startswith("Linux"):
        return _PYTHON("limited", fact, "only Linux is tested")
    tested = any(f" {version}." in programs.python for version in _TESTED_PYTHON)
    return _PYTHON("ok", fact, "" if tested else f"tried with Python {', '.join(_TESTED_PYTHON)}")


def _torch(facts: Facts) -> Check:
    build_facts, installed = facts.torch.stages.get("import"), facts.programs.torch
    if build_facts is None and installed is None:
        why = "`run` uses the torch of the program that it runs; reports of traces need none"
        return _TORCH("missing", "not installed", why, command=_PIP)
    if build_facts is None:
        why = f"importing it {_end(facts.torch)}"
        return _TORCH("missing", f"{installed} is installed but cannot be imported", why, "install it anew", _PIP)
    build = f"CUDA {build_facts['cuda']}" if build_facts.get("cuda") else "CPU"
    build = f"ROCm {build_facts['hip']}" if build_facts.get("hip") else build
    fact = f"{build_facts['version']} ({build} build), {counted(build_facts['threads'], 'thread')}"
    if not build_facts.get("kineto"):
        return _TORCH("missing", fact, "this build has no Kineto, which records the events", command=_PIP)
    first, last = (".".join(map(str, numbers)) for numbers in TESTED_TORCH)
    if release(str(build_facts["version"])) < TESTED_TORCH[0]:
        why = f"older than {first}, the oldest that can be measured; traces of any version can be read"
        return _TORCH("missing", fact, why, command=_PIP)
    if release(str(build_facts["version"])) >= TESTED_TORCH[1]:
        return _TORCH("limited", fact, f"tried with {first} up to, not including, {last}")
    return _TORCH("ok", fact)


def release(version: str) -> tuple[int, ...]:
    """The first two numbers of a version; (0, 0) of what is none."""
    numbers = [part for part in version.partition("+")[0].split(".")[:2] if part.isascii() and part.isdecimal()]
    return tuple(int(part) for part in numbers) if len(numbers) == 2 else (0, 0)


def _end(output: ProbeOutput) -> str:
    """The end of a probe that did not reach its last stage."""
    if output.status is None:
        return "did not end in time"
    ended = f"died of signal {-output.status}" if output.status < 0 else "failed"
    return f"{ended}: {output.error}" if output.error else ended


def _profiler(output: ProbeOutput) -> Check | None:
    """Check that a tiny window holds the ops that ran in it."""
    if "import" not in output.stages:
        return None
    window = output.stages.get("profiler")
    if window is None:
        return _PROFILER("missing", "recording a tiny window failed", f"it {_end(output)}", command=_PIP)
    if "error" in window:
        return _PROFILER("missing", "recording a tiny window failed", str(window["error"]), command=_PIP)
    if not window.get("ops"):
        return _PROFILER("missing", "a tiny window was recorded, but holds no op", command=_PIP)
    return _PROFILER("ok", f"records: {counted(window['ops'], 'op')} in a tiny window")


def _linked(output: ProbeOutput) -> Check | None:
    """The libraries that compute what torch's own kernels do not."""
    if "libraries" not in output.stages:
        return None
    stage = output.stages["libraries"]
    linked = [f"{name} {version}".rstrip() for name, version in stage.get("linked", {}).items()]
    built = stage.get("built_with", {})
    chosen = [f"{part.upper()} by {BUILD_NAMES.get(library, library)}" for part, library in built.items()]
    if not linked and not chosen:
        return _LINKED("unknown", "this torch does not tell which libraries it is linked with")
    return _LINKED("ok", f"torch is linked with {'; '.join(filter(None, (', '.join(linked), ', '.join(chosen))))}")


def _installed(facts: Facts) -> Check:
    """Other libraries that could do the work, by their packages."""
    versions = facts.programs.libraries
    groups = [
        f"{work}: {', '.join(f'{name} {versions[name]}' for name in names if name in versions)}"
        for work, names in LIBRARIES.items()
        if any(name in versions for name in names)
    ]
    return _INSTALLED("ok", "; ".join(groups) if groups else "no other library that computes what torch does")


def _name(facts: Facts) -> Check:
    """Check that `import bottleneck` finds this package; an array library has the same name."""
    package, other = facts.pandas.stages.get("bottleneck"), facts.programs.bottleneck
    why = "both are imported as `bottleneck`, and pandas calls functions of the other"
    if package is None:
        fact = "`import bottleneck` fails"
        return _NAME("missing", fact, _end(facts.pandas), "install it anew", decides=True)
    if package["is_array_library"]:
        fact = f"`import bottleneck` gives the array library at {package['file']}"
        return _NAME("missing", fact, why, _ANEW, "pip uninstall Bottleneck", decides=True)
    if other is not None:
        fact = f"the array library Bottleneck {other} is installed too"
        return _NAME("limited", fact, why, _ANEW, "pip uninstall Bottleneck", decides=True)
    return _NAME("ok", "`import bottleneck` is ours, and no other package claims it")


def _pandas(output: ProbeOutput) -> Check:
    imported, median = output.stages.get("import"), output.stages.get("median")
    if imported is None:
        return _PANDAS("missing", "cannot be imported", _end(output), command="pip install pandas", decides=True)
    if median is None or median["value"] != 2.0:
        why = f"it {_end(output)}" if median is None else f"the median of 1, 2, 3 was {median['value']}"
        fact = f"{imported['version']} does not work beside us"
        return _PANDAS("missing", fact, why, command="pip uninstall Bottleneck", decides=True)
    return _PANDAS("ok", f"{imported['version']} works beside us")


def _shadows(found: tuple[str, ...]) -> Check:
    if not found:
        return _SHADOWS("ok", "no file here or on PYTHONPATH hides a module")
    shown = ", ".join(found[:4]) + (f" and {len(found) - 4} more" if len(found) > 4 else "")
    why = "Python takes these where a program beside them means a module of that name"
    return _SHADOWS("limited", shown, why, "rename them, or leave their folder out of PYTHONPATH")


def _other_profilers(environment: Mapping[str, str]) -> Check:
    """Only one profiler can listen to a device at a time."""
    preloaded = environment.get("LD_PRELOAD", "").lower()
    profilers = [name for name in environment if name.startswith(_INJECTED)]
    profilers += ["LD_PRELOAD"] if any(word in preloaded for word in _PROFILER_LIBRARIES) else []
    kineto = [name for name in environment if name.startswith("KINETO_") and name != "KINETO_LOG_LEVEL"]
    if profilers:
        why = "a device takes one profiler at a time: kernels may be missing from the recording"
        remedy = "start `bottleneck run` outside of the other profiler"
        fact = f"another profiler is set up: {', '.join(profilers)}"
        return _OTHER_PROFILERS("limited", fact, why, remedy)
    if kineto:
        fact, why = f"set: {', '.join(kineto)}", "they change what torch's profiler records"
        return _OTHER_PROFILERS("limited", fact, why, command=f"unset {' '.join(kineto)}")
    return _OTHER_PROFILERS("ok", "no other profiler is set up here")


def _slowing(environment: Mapping[str, str]) -> Check | None:
    slowing = [name for name in _SLOW_SETTINGS if environment.get(name, "").lower() not in _OFF]
    if not slowing:
        return None
    why = "; ".join(dict.fromkeys(_SLOW_SETTINGS[name] for name in slowing))
    return _SLOWING("limited", f"set: {', '.join(slowing)}", why, command=f"unset {' '.join(slowing)}")


_MACHINE = "machine"
_THREADS = partial(Check, "threads", _MACHINE, "threads")
_LOAD = partial(Check, "load", _MACHINE, "load")
_HOST_SENSORS = partial(Check, "host-sensors", _MACHINE, "host sensors")
_CALIBRATION = partial(Check, "calibration", _MACHINE, "calibration")
_COMPILER = partial(Check, "compiler", _MACHINE, "compiler")
_MEMORY = partial(Check, "memory", _MACHINE, "memory")
_DISK = partial(Check, "disk", _MACHINE, "disk")
_CACHE = partial(Check, "cache", _MACHINE, "cache")
_SCREEN = partial(Check, "screen", _MACHINE, "output")
_RIGHTS = partial(Check, "rights", _MACHINE, "rights")

# Others that keep more of a processor busy than this make times vary.
_QUIET_LOAD = 0.5
# A window of 200,000 events takes up to 0.7 GB while it is recorded and 0.1 GB on disk (EVENT_BUDGET of the capture).
_WINDOW_BYTES, _TRACE_BYTES = 1.5e9, 0.5e9
# Ceilings depend on the system and on what else runs, which change with time.
_STALE_DAYS = 90
_CALIBRATE_CPU = "bottleneck calibrate --device cpu"
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
    fact = f"{counted(processors.machine, 'processor')}, {processors.allowed} for this process{granted}"
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
        return _LOAD("limited", fact, "what runs beside the program makes its steps vary", "wait for it to end")
    return _LOAD("ok", fact)


def _host_sensors(machine: Machine) -> Check:
    if not machine.host_sensors:
        return _HOST_SENSORS("missing", "none", "psutil is missing", command="pip install psutil")
    present = [word for column, word in _SENSOR_WORDS.items() if column in machine.host_sensors]
    absent = [word for column, word in _SENSOR_WORDS.items() if column not in machine.host_sensors]
    if absent:
        return _HOST_SENSORS("limited", ", ".join(present), f"this system does not report: {', '.join(absent)}")
    return _HOST_SENSORS("ok", ", ".join(present))


def _calibration(machine: Machine, threads: int | None) -> Check:
    ceilings = machine.calibration
    if ceilings is None:
        why = "the first run of a CPU program measures the ceilings, in about 5 s"
        of = f" with {counted(threads, 'thread')}" if threads is not None else ""
        fact = f"none yet of this CPU{of} and this torch"
        return _CALIBRATION("missing", fact, why, command=_CALIBRATE_CPU)
    age = "at an unknown time" if ceilings.age_days is None else f"{counted(round(ceilings.age_days), 'day')} ago"
    fact = f"this CPU with {counted(ceilings.threads, 'thread')}, measured {age}"
    if ceilings.caveats:
        return _CALIBRATION("limited", fact, "; ".join(ceilings.caveats), "on a quiet machine:", _CALIBRATE_CPU)
    if ceilings.age_days is None or ceilings.age_days > _STALE_DAYS:
        return _CALIBRATION("limited", fact, "system and firmware may have changed since", command=_CALIBRATE_CPU)
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
    why, command = "ceilings are measured anew in each run", "export XDG_CACHE_HOME=DIR"
    return _CACHE("limited", f"{cache.path} cannot be written", why, "name another folder:", command)


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


_DEVICE = "devices"
_DEVICES = partial(Check, "devices", _DEVICE, "devices")
_KERNELS = partial(Check, "kernels", _DEVICE, "kernels")
_GPU_CALIBRATION = partial(Check, "gpu-calibration", _DEVICE, "calibration")
_VISIBLE = partial(Check, "visible", _DEVICE, "visible")

_OPEN_COUNTERS = (
    "echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' | sudo tee /etc/modprobe.d/nvidia-profiling.conf"
)
_MOST_DEVICES = 16
_CALIBRATE_GPU = "bottleneck calibrate --device cuda"


def has_nvidia(facts: Facts) -> bool:
    """True if the driver, its files or its library show an NVIDIA device."""
    return facts.driver.nvidia is not None or facts.driver.nvidia_files > 0 or bool(sensor_names(facts))


def sensor_names(facts: Facts) -> Mapping[str, str]:
    """Names of the devices that NVML shows, by UUID."""
    names: Mapping[str, str] = facts.nvml.stages.get("devices", {}).get("names", {})
    return names


def _devices(facts: Facts) -> Check:
    state = facts.torch.stages.get("cuda", {})
    devices = state.get("devices", [])
    if devices:
        named = [f"{one['name']} (compute capability {one['major']}.{one['minor']})" for one in devices[:_MOST_DEVICES]]
        driver = f"; driver: {facts.driver.nvidia}" if facts.driver.nvidia else ""
        fact = f"torch sees {len(devices)}: {', '.join(named)}{driver}"
        targets = state.get("built_for", [])
        foreign = [one["name"] for one in devices if not is_built_for(targets, one["major"], one["minor"])]
        if foreign:
            why = f"this torch is built for {', '.join(targets)}, not for {', '.join(foreign[:_MOST_DEVICES])}"
            return _DEVICES("limited", fact, why, "install a newer or older torch")
        return _DEVICES("ok", fact)
    if not (has_nvidia(facts) or facts.driver.amd):
        fact = "no NVIDIA or AMD device here: work on the CPU can be measured, and traces explained"
        return _DEVICES("missing", fact)
    maker = "NVIDIA" if has_nvidia(facts) else "AMD"
    fact = f"torch uses none, though this machine has one of {maker}"
    imported = facts.torch.stages.get("import", {})
    if imported and not (imported.get("cuda") or imported.get("hip")):
        remedy = f"install the build for {maker} that pytorch.org/get-started names"
        return _DEVICES("limited", fact, "this torch is a CPU build", remedy)
    why = str(state.get("error", "torch does not say why"))
    return _DEVICES("limited", fact, why, "compare CUDA_VISIBLE_DEVICES, and the driver with the CUDA of this torch")


def is_built_for(targets: Sequence[str], major: int, minor: int) -> bool:
    """True if code among the targets runs on a device of this capability.

    Also true where no targets are known. Machine code runs on the same major version, PTX on any later one (CUDA C++
    Programming Guide, compute capability).
    """
    wanted, codes = 10 * major + minor, []
    for target in targets:
        kind, _, number = target.partition("_")
        if kind in {"sm", "compute"} and (digits := number.rstrip("af")).isdecimal():
            codes.append((kind, int(digits)))
    runs = [kind == "compute" or number // 10 == major for kind, number in codes if number <= wanted]
    return any(runs) or not codes


def _kernels(facts: Facts) -> Check | None:
    """Check that a tiny window holds the kernels that ran in it."""
    if not facts.torch.stages.get("cuda", {}).get("devices"):
        return None
    window = facts.torch.stages.get("kernels", {})
    if window.get("recorded"):
        counters = "; hardware counters are for administrators, but none are needed" if facts.driver.admin_only else ""
        return _KERNELS("ok", f"recorded: {window['recorded']} in a tiny window{counters}")
    fact = "none was recorded in a tiny window that ran some: only the host side can be measured"
    if facts.driver.admin_only and not facts.driver.is_privileged:
        why = "the driver lets only administrators profile (RmProfilingAdminOnly: 1)"
        remedy = "start the container with --cap-add=SYS_ADMIN, or on the host (then restart it):"
        return _KERNELS("limited", fact, why, remedy, _OPEN_COUNTERS)
    # What failed may have said so; a window that is merely empty leaves nothing but the usual causes.
    words = str(window.get("error", "")) or ("" if window else facts.torch.error)
    why = words or "CUPTI could not listen: another profiler, or a stub library in LD_LIBRARY_PATH"
    return _KERNELS("limited", fact, why, "end other profilers; remove stubs from LD_LIBRARY_PATH")


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
    sensors = match_sensors((), {**facts.environment, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, list(sensor_names(facts)))
    if sensor_names(facts) and len(sensors) < len(entries):
        fact = f"CUDA_VISIBLE_DEVICES={value} names {len(entries)}, of which {len(sensors)} can be found"
        why = "CUDA stops at the first entry that it does not know, and takes none if one is named twice"
        return _VISIBLE("limited", fact, why, "name devices that `nvidia-smi -L` lists")
    return _VISIBLE("ok", f"CUDA_VISIBLE_DEVICES={value}")


def _gpu_calibration(facts: Facts) -> Check | None:
    """The ceilings of the GPU; without them those of the data sheet count."""
    if not facts.torch.stages.get("cuda", {}).get("devices"):
        return None
    ceilings = facts.torch.stages.get("calibration")
    if ceilings is None or "error" in ceilings:
        why = "recordings are judged against the data sheet, which no device quite reaches"
        return _GPU_CALIBRATION(
            "missing", "none yet of this GPU, its driver and this torch", why, command=_CALIBRATE_GPU
        )
    fact = f"measured {counted(round(ceilings['age_days']), 'day')} ago"
    if ceilings["caveats"]:
        remedy = "while the GPU has no other work:"
        return _GPU_CALIBRATION("limited", fact, "; ".join(ceilings["caveats"]), remedy, _CALIBRATE_GPU)
    return _GPU_CALIBRATION("ok", fact)


_SENSORS = partial(Check, "sensors", _DEVICE, "sensors")
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
    """Judges each device's sensors in a row, or says why none can be read.

    There is no row on a machine without such devices.
    """
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
    rows = [_device(f"{name} ({sensor})", columns.get(sensor, ()), is_slice=sensor in slices) for sensor, name in names]
    return [*rows, *(_SENSORS("missing", text) for text in stages["devices"].get("complaints", [])[:_MOST_DEVICES])]


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
    absent = [word for word in _WANTED if not any(name_of_column.startswith(word) for name_of_column in called)]
    fact = f"{name}: {', '.join(called)}"
    if is_slice and set(absent) <= _OF_THE_CARD:
        return _SENSORS("ok", fact, "a slice of a card (MIG): power, energy and PCIe are those of all slices together")
    if absent:
        return _SENSORS("limited", fact, f"this device does not report: {', '.join(absent)}")
    return _SENSORS("ok", fact)
