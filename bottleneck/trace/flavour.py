"""Which vendor's profiler wrote the trace, and whether its device side is missing."""

from typing import Literal

from bottleneck.records import Caveat
from bottleneck.trace.categories import ASCEND_TASK, category_of
from bottleneck.trace.columns import Columns
from bottleneck.trace.metadata import Metadata

Flavour = Literal["cuda", "rocm", "xpu", "mtia", "npu", "cpu"]

_DEVICE_WORK = {"kernel", "copy", "fill"}
_LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx", "hipLaunchKernel",
             "hipExtModuleLaunchKernel", "hipModuleLaunchKernel", "cudaGraphLaunch", "hipGraphLaunch")  # fmt: skip


def flavour_of(columns: Columns, metadata: Metadata) -> Flavour:
    """The vendor; 'cpu' when no device did any work, whatever devices the machine has."""
    raw = {name.lower() for name in columns.counts}
    if not _has_device_work(columns):
        return "cpu"
    if any(name.startswith("mtia_") for name in raw):
        return "mtia"
    if any(name.startswith("xpu_") for name in raw):
        return "xpu"
    if ASCEND_TASK in columns.categories:
        return "npu"
    return "rocm" if _is_rocm(columns, metadata) else "cuda"


def _is_rocm(columns: Columns, metadata: Metadata) -> bool:
    words = [*metadata.keys, *(device.name.lower() for device in metadata.devices)]
    return any(word.startswith(("hip_", "roctracer", "amd")) for word in words) or any(
        name.startswith("hip") and name[3:4].isupper() for name in columns.names
    )


def _has_device_work(columns: Columns) -> bool:
    return any(category_of(name) in _DEVICE_WORK for name in columns.categories)


def missing_device_work(columns: Columns) -> tuple[Caveat, ...]:
    """A caveat when kernels were launched but none was recorded."""
    if _has_device_work(columns) or not any(name in columns.names for name in _LAUNCHES):
        return ()
    return (
        Caveat(
            "no-device-events",
            "kernels were launched but the profiler recorded none; the device's profiling interface was not usable "
            "(missing permission, a stub library in LD_LIBRARY_PATH, or another profiler), so only the host side shows",
        ),
    )
