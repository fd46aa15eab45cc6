"""Copies and fills: bytes over the link between host and device, or over its DRAM, and how far they stay below it."""

import re
from dataclasses import dataclass

import numpy as np

from bottleneck.analysis.groups import Flags, Floats, Labelled, Work, by_name, rows
from bottleneck.analysis.shortfalls import Shortfall, first_that_holds, two_digits
from bottleneck.units import US_PER_S, format_si

_OVER_LINK = re.compile(r"HtoD|DtoH|HostToDevice|DeviceToHost|Host -> Device|Device -> Host", re.IGNORECASE)
_INSIDE = re.compile(r"DtoD|DeviceToDevice", re.IGNORECASE)
_PAGEABLE = re.compile(r"pageable", re.IGNORECASE)
_SMALL_BYTES = 65536.0  # below, a copy between host and device is a round trip rather than a stream


@dataclass(frozen=True)
class Copies:
    """Per row of KERNELS: whether it is a copy or fill, its floor (NaN if unknown), and why it is slower."""

    is_copy: Flags
    memory_us: Floats
    reason: Labelled


def copy_floors(work: Work) -> Copies:
    """The least time of every copy and fill.

    A copy inside the device reads and writes its bytes, sparing what the cache holds; a fill only writes. The way
    between two devices is not in the table, so such copies have no floor. Where the trace gives no bytes (ROCm), those
    that the copying op reads and writes stand in.
    """
    kernels, device = work.kernels, work.device
    over_link, inside = (_matches(work, pattern) for pattern in (_OVER_LINK, _INSIDE))
    kind = kernels["kind"]
    is_copy, is_fill = (kind == "copy").to_numpy(), (kind == "fill").to_numpy()
    moved = kernels["bytes"].to_numpy(dtype=np.float64, na_value=np.nan)
    moved = np.where(is_copy & np.isnan(moved), _bytes_of_op(work), moved)
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
    memory_us = seconds * US_PER_S
    return Copies(is_copy | is_fill, memory_us, _why_slow(work, moved, memory_us, is_copy & over_link))


def _matches(work: Work, pattern: re.Pattern[str]) -> Flags:
    """Whether each row is a copy of such a name; names of other work are not looked at."""
    matching = np.zeros(len(work.kernels), dtype=bool)
    copies = np.flatnonzero((work.kernels["kind"] == "copy").to_numpy())
    if copies.size:
        names = work.kernels.iloc[copies].assign(name=lambda frame: frame["name"].cat.remove_unused_categories())
        matching[copies] = by_name(names, pattern.search) > 0
    return matching


def _bytes_of_op(work: Work) -> Floats:
    """Half of what the op of each row reads and writes, where all that it does is copying; NaN for the others."""
    op = rows(work.kernels["op"])
    signature = np.append(rows(work.ops["signature"]), -1)[op]
    copies = np.append((work.costs["family"] == "copy").to_numpy(), False)[signature]
    traffic = np.append(work.costs["bytes_low"].to_numpy(), np.nan)[signature]
    return np.where(copies, traffic / 2, np.nan)


def _why_slow(work: Work, moved: Floats, memory_us: Floats, over_link: Flags) -> Labelled:
    """Why a copy is slower than the link or the DRAM would be; null where it is not, or where nothing can be told."""
    duration = work.kernels["dur_us"].to_numpy()
    is_copy = (work.kernels["kind"] == "copy").to_numpy()
    slow = is_copy & (memory_us < work.limits.memory_share * duration)
    pageable = _matches(work, _PAGEABLE)
    pace = two_digits(moved / np.maximum(duration, 1e-9) * US_PER_S)
    link, dram = work.device.link_bytes_per_s, work.device.bandwidth_bytes_per_s
    limit = np.where(over_link, link or np.nan, dram or np.nan)
    rules = (
        Shortfall(pageable & ~(moved >= _SMALL_BYTES), lambda: "pageable host memory", ()),
        Shortfall(
            pageable,
            lambda pace, limit: f"pageable host memory: about {_of_limit(pace, limit, 'link')}",
            (pace, limit),
        ),
        Shortfall(slow & (moved < _SMALL_BYTES), lambda size: f"small copy: {format_si(size, 'B')}", (moved,)),
        Shortfall(
            slow & over_link,
            lambda pace, limit: f"slow link: about {_of_limit(pace, limit, 'link')}",
            (pace, limit),
        ),
        Shortfall(
            slow,
            lambda pace, limit: f"slow copy: reads and writes about {_of_limit(2 * pace, limit, 'DRAM')}",
            (pace, limit),
        ),
        Shortfall(is_copy & np.isnan(moved), lambda: "no bytes in the trace", ()),
    )
    told = np.any([rule.holds for rule in rules], axis=0)
    return first_that_holds(rules, np.asarray(told))


def _of_limit(pace: float, limit: float, of_what: str) -> str:
    """'7.70 GB/s of the link's 25.0 GB/s'; -1 is a limit that nobody knows."""
    return format_si(pace, "B/s") + (f" of the {of_what}'s {format_si(limit, 'B/s')}" if limit > 0 else "")
