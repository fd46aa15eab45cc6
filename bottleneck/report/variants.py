"""Kernels that differ only in shapes which change from step to step, told as one: they must not hide a cost."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from bottleneck.records import KernelSummary

_SUMS = ("us", "share", "calls")
_KNOWN_SUMS = ("flops", "bytes_low", "bytes_high", "compute_us", "memory_us", "launch_us")


@dataclass(frozen=True)
class Variants:
    """Kernels told as one row, and how many shapes of them there are."""

    kernel: KernelSummary
    shapes: int


def varying_together(kernels: Iterable[KernelSummary]) -> tuple[Variants, ...]:
    """One entry per kernel; those that run less than once per step and share all but their shapes are one."""
    groups: dict[tuple[object, ...], list[KernelSummary]] = {}
    for number, row in enumerate(kernels):
        key = (row.name, row.op, row.source, row.dtype, row.bound) if row.calls < 1 - 1e-9 else (number,)
        groups.setdefault(key, []).append(row)
    return tuple(Variants(_together(rows), len(rows)) for rows in groups.values())


def _together(rows: Sequence[KernelSummary]) -> KernelSummary:
    """The largest of these rows with the sums of all; a sum of which a part is unknown is unknown."""
    if len(rows) == 1:
        return rows[0]
    sums: dict[str, float | None] = {name: math.fsum(getattr(row, name) for row in rows) for name in _SUMS}
    for name in _KNOWN_SUMS:
        parts = [getattr(row, name) for row in rows]
        sums[name] = None if None in parts else math.fsum(parts)
    explained = None
    if all(row.explained is not None for row in rows) and sums["us"]:
        explained = math.fsum((row.explained or 0.0) * row.us for row in rows) / sums["us"]
    return replace(max(rows, key=lambda row: row.us), **sums, explained=explained)  # type: ignore[arg-type]
