"""Floors of copies and fills: bytes over the link between host and device, or over its DRAM."""

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

from bottleneck.analysis.groups import Flags, Floats, by_name
from bottleneck.records import Device
from bottleneck.units import US_PER_S

_OVER_LINK = re.compile(r"HtoD|DtoH|HostToDevice|DeviceToHost", re.IGNORECASE)
_INSIDE = re.compile(r"DtoD|DeviceToDevice", re.IGNORECASE)
_PAGEABLE = re.compile(r"pageable", re.IGNORECASE)


@dataclass(frozen=True)
class Copies:
    """Per row of KERNELS: whether it is a copy or fill, its floor (NaN if unknown), whether from pageable memory."""

    is_copy: Flags
    memory_us: Floats
    pageable: Flags


def copy_floors(kernels: pd.DataFrame, device: Device) -> Copies:
    """The least time of every copy and fill.

    A copy inside the device reads and writes its bytes, sparing what the cache holds; a fill only writes. The way
    between two devices is not in the table, so such copies have no floor.
    """
    over_link, inside, pageable = (by_name(kernels, pattern.search) > 0 for pattern in (_OVER_LINK, _INSIDE, _PAGEABLE))
    kind = kernels["kind"]
    is_copy, is_fill = (kind == "copy").to_numpy(), (kind == "fill").to_numpy()
    moved = kernels["bytes"].to_numpy(dtype=np.float64, na_value=np.nan)
    dram = device.bandwidth_bytes_per_s or np.nan
    traffic = np.where(is_fill, moved, 2 * moved)
    seconds = np.select(
        [is_copy & over_link, is_fill | (is_copy & inside)],
        [
            moved / (device.link_bytes_per_s or np.nan),
            np.minimum(traffic / dram, np.maximum(traffic - (device.cache_bytes or 0.0), 0.0) / dram),
        ],
        default=np.nan,
    )
    return Copies(is_copy | is_fill, seconds * US_PER_S, pageable & is_copy)
