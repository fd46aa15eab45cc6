"""Record of a device and its ceilings.

They are measured by calibration, or come from the table of devices.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from bottleneck.schema.records import Doc

# The peak of fp32 products that oneDNN multiplies, on a CPU: convolutions reach it, and products where a program allows
# a lower precision.
ONEDNN_PEAK = "fp32_onednn"


@dataclass(frozen=True)
class Device:
    """Ceilings of one device. Peaks are dense, keyed '<dtype>_tensor' or '<dtype>_vector', in FLOP/s.

    A CPU's ``fp32_onednn`` is that of products by oneDNN, which ``fp32_tensor`` reaches only where MKL is as fast.
    ``source`` is their origin, ``peak_clocks_mhz`` the clock at which a peak holds, where that is known. A CPU
    has (working set in bytes, bytes/s) pairs in ``bandwidth_by_bytes``, smallest first, a GPU the size of its last
    cache. ``fresh_bytes_per_s`` is the rate of new pages: what a CPU program's first write costs beyond a second one.
    Blocks of 32 MiB and more come as new pages each time they are allocated.
    """

    name: Annotated[str, Doc("name reported by the device; empty where the trace does not record it")]
    vendor: Annotated[str | None, Doc("manufacturer")]
    kind: Annotated[str, Doc("'cpu', or the vendor's word in the table of vendors ('cuda', 'rocm' …); 'other' without")]
    count: Annotated[int, Doc("devices in the recording")]
    peaks_flops_per_s: Annotated[
        Mapping[str, float], Doc("dense peaks by dtype and engine: 'bf16_tensor', 'fp32_vector' …", "FLOP/s")
    ]
    bandwidth_bytes_per_s: Annotated[float | None, Doc("of the device's memory", "B/s")]
    launch_floor_us: Annotated[float | None, Doc("shortest time of any kernel", "us")]
    source: Annotated[
        Literal["measured", "datasheet", "derived", "user"] | None,
        Doc("origin of the ceilings; null where there are none"),
    ]
    ridge_flops_per_byte: Annotated[Mapping[str, float], Doc("peak / bandwidth, keyed as the peaks", "FLOP/B")]
    sm_count: Annotated[int | None, Doc("multiprocessors")] = None
    memory_bytes: Annotated[int | None, Doc("size of the device's memory", "B")] = None
    cache_bytes: Annotated[float | None, Doc("size of the last cache", "B")] = None
    special_ops_per_s: Annotated[
        float | None, Doc("rate of exponentials, square roots and similar functions", "1/s")
    ] = None
    link_bytes_per_s: Annotated[float | None, Doc("bandwidth between host and device", "B/s")] = None
    bandwidth_by_bytes: Annotated[
        tuple[tuple[float, float], ...], Doc("bandwidth by working set, smallest first; CPUs only", "B, B/s")
    ] = ()
    fresh_bytes_per_s: Annotated[
        float | None,
        Doc("rate at which the system supplies new pages: the extra time of a first write; CPUs only", "B/s"),
    ] = None
    peak_clocks_mhz: Annotated[
        Mapping[str, float], Doc("clock at which each peak holds, keyed as the peaks; empty where not known", "MHz")
    ] = field(default_factory=dict)
    compiled_call_us: Annotated[
        float | None, Doc("what entering compiled code costs beyond calling a function; CPUs only", "us")
    ] = None
    compiled_call_backward_us: Annotated[
        float | None, Doc("the same for a call that is differentiated, its backward pass included; CPUs only", "us")
    ] = None
    plausible_ridges: Annotated[
        Mapping[str, tuple[float, float]],
        Doc("lowest and highest ridge of the devices that it may be, by peak; empty where its own is known", "FLOP/B"),
    ] = field(default_factory=dict)
    architecture: Annotated[str | None, Doc("generation, as the tables of devices name it; null where unknown")] = None

    @property
    def main_bandwidth_bytes_per_s(self) -> float | None:
        """Bytes per second from memory.

        Of a CPU, it is that of its largest measured working set.
        """
        if self.bandwidth_bytes_per_s is None and self.bandwidth_by_bytes:
            return self.bandwidth_by_bytes[-1][1]
        return self.bandwidth_bytes_per_s

    @property
    def is_gpu(self) -> bool:
        """Tells whether people call the device a GPU."""
        return self.kind in {"cuda", "rocm", "xpu"} or (self.vendor == "Apple" and self.kind != "cpu")


_MAKERS = re.compile(r"^(NVIDIA |Tesla |AMD |GeForce |Intel(?:\(R\))? )+")


def without_maker(name: str) -> str:
    """Gives the name of a device without that of its maker."""
    return _MAKERS.sub("", name)


_SIGNS = re.compile(r"\((?:R|TM)\)|(?: CPU)? @ [\d.]+ ?GHz")


def without_signs(name: str) -> str:
    """Gives the name of a device without trademark signs and the base clock."""
    return _SIGNS.sub("", name)


def peak_name(peak: str, kind: str) -> str:
    """Names a peak of a device of this kind.

    A CPU has no tensor cores: matrix products were measured there.
    """
    if peak == ONEDNN_PEAK:
        return "fp32 products by oneDNN"
    words = peak.replace("_", " ")
    return words.replace(" tensor", " matrix products") if kind == "cpu" else words
