"""Facts to rows: accelerators, and whether their kernels can be recorded."""

from collections.abc import Mapping, Sequence
from functools import partial

from bottleneck.checks import Check
from bottleneck.harness.checkup.facts import Driver, Facts
from bottleneck.harness.nvml_devices import match_sensors

_GROUP = "devices"
_DEVICES = partial(Check, "devices", _GROUP, "devices")
_KERNELS = partial(Check, "kernels", _GROUP, "kernels")
_CALIBRATION = partial(Check, "gpu-calibration", _GROUP, "calibration")
_VISIBLE = partial(Check, "visible", _GROUP, "visible")

_OPEN_COUNTERS = (
    "echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' | sudo tee /etc/modprobe.d/nvidia-profiling.conf"
)
_MOST_DEVICES = 16
_CALIBRATE = "bottleneck calibrate --device cuda"


def device_rows(facts: Facts) -> list[Check]:
    """The rows of this group; on a machine without accelerators there is one."""
    rows = (_devices(facts), _kernels(facts), _visible(facts), _calibration(facts))
    return [row for row in rows if row is not None]


def has_nvidia(facts: Facts) -> bool:
    """Whether anything tells of an NVIDIA device: the driver, its files, or its library."""
    return facts.driver.nvidia is not None or facts.driver.nvidia_files > 0 or bool(sensor_names(facts))


def sensor_names(facts: Facts) -> Mapping[str, str]:
    """Names of the devices that NVML shows, by UUID."""
    names: Mapping[str, str] = facts.nvml.told.get("devices", {}).get("names", {})
    return names


def _devices(facts: Facts) -> Check:
    told = facts.torch.told.get("cuda", {})
    found = told.get("devices", [])
    if found:
        each = ", ".join(
            f"{one['name']} (compute capability {one['major']}.{one['minor']})" for one in found[:_MOST_DEVICES]
        )
        driver = f"; driver: {facts.driver.nvidia}" if facts.driver.nvidia else ""
        foreign = [
            one["name"] for one in found if not is_built_for(told.get("built_for", []), one["major"], one["minor"])
        ]
        if foreign:
            why = (
                f"this torch is built for {', '.join(told['built_for'])}, not for {', '.join(foreign[:_MOST_DEVICES])}"
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
    imported = facts.torch.told.get("import", {})
    if imported and not (imported.get("cuda") or imported.get("hip")):
        remedy = f"install the build for {maker} that pytorch.org/get-started names"
        return _DEVICES("limited", fact, "this torch is a CPU build", remedy)
    why = str(told.get("error", "torch does not say why"))
    return _DEVICES("limited", fact, why, "compare CUDA_VISIBLE_DEVICES, and the driver with the CUDA of this torch")


def is_built_for(targets: Sequence[str], major: int, minor: int) -> bool:
    """Whether machine code or PTX among the targets runs on a device of this capability; true where none are told.

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
    """Whether a window that was recorded just now holds the kernels that ran in it."""
    if not facts.torch.told.get("cuda", {}).get("devices"):
        return None
    told = facts.torch.told.get("kernels", {})
    if told.get("recorded"):
        return _KERNELS("ok", f"recorded: {told['recorded']} in a tiny window{_counters(facts.driver)}")
    fact = "none was recorded in a tiny window that ran some: only the host side can be measured"
    if facts.driver.admin_only and not facts.driver.is_privileged:
        why = "the driver lets only administrators profile (RmProfilingAdminOnly: 1)"
        remedy = "start the container with --cap-add=SYS_ADMIN, or on the host (then restart it):"
        return _KERNELS("limited", fact, why, remedy, _OPEN_COUNTERS)
    # What failed may have said so; a window that is merely empty leaves nothing but the usual causes.
    words = str(told.get("error", "")) or ("" if told else facts.torch.last_words)
    why = words or "CUPTI could not listen: another profiler, or a stub library in LD_LIBRARY_PATH"
    return _KERNELS("limited", fact, why, "end other profilers; remove stubs from LD_LIBRARY_PATH")


def _counters(driver: Driver) -> str:
    return "; hardware counters are for administrators, but none are needed" if driver.admin_only else ""


def _visible(facts: Facts) -> Check | None:
    """What CUDA_VISIBLE_DEVICES leaves of the devices."""
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


def _calibration(facts: Facts) -> Check | None:
    """The ceilings of the GPU; without them those of the data sheet count."""
    if not facts.torch.told.get("cuda", {}).get("devices"):
        return None
    known = facts.torch.told.get("calibration")
    if known is None or "error" in known:
        why = "recordings are judged against the data sheet, which no device quite reaches"
        return _CALIBRATION("missing", "none yet of this GPU, its driver and this torch", why, command=_CALIBRATE)
    fact = f"measured {known['age_days']:.0f} days ago"
    if known["caveats"]:
        return _CALIBRATION(
            "limited", fact, "; ".join(known["caveats"]), "while the GPU has no other work:", _CALIBRATE
        )
    return _CALIBRATION("ok", fact)
